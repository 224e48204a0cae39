//! Called collectives: their options, and the waits of their callers.

use std::sync::Arc;
use std::time::Duration;

use ringpull_allreduce::progress::{Answer, Engine};
use ringpull_base::forked::OfProcess;
use ringpull_base::{Key, Reduction, Result, Tensor, waits};

use super::jobs::Arrival;

/// The options of a collective. Names and factors must be the same on every rank.
///
/// ```
/// use ringpull::CallOptions;
///
/// let named = CallOptions { name: Some("loss".into()), ..CallOptions::default() };
/// # assert!(named.out.is_none());
/// ```
#[derive(Clone)]
pub struct CallOptions {
    /// The name by which the calls of the ranks are matched. Calls without a name are matched in their order.
    pub name: Option<Key>,
    /// Operations of higher priority leave earlier.
    pub priority: i32,
    /// The output tensor. Without it the result is a new tensor.
    pub out: Option<Tensor>,
    /// A factor on every input of a reduction.
    pub prescale: f64,
    /// A factor on the result of a reduction.
    pub postscale: f64,
}

impl Default for CallOptions {
    fn default() -> Self {
        CallOptions { name: None, priority: 0, out: None, prescale: 1.0, postscale: 1.0 }
    }
}

impl CallOptions {
    /// Returns true if the result overwrites the input.
    pub(super) fn is_in_place(&self, input: &Tensor) -> bool {
        self.out.as_ref().is_some_and(|out| out.is_same(input))
    }

    pub(super) fn arrival(&self, reduction: Reduction, size: usize) -> Arrival {
        let divisor = if reduction == Reduction::Average { size as u32 } else { 1 };
        // The division is done when the sum is there.
        let reduction = if reduction == Reduction::Average { Reduction::Sum } else { reduction };
        Arrival { reduction, divisor, postscale: self.postscale }
    }

    pub(super) fn factors(&self) -> String {
        let factor = |what: &str, factor: f64| if factor == 1.0 { String::new() } else { format!(", {what} {factor}") };
        factor("prescale", self.prescale) + &factor("postscale", self.postscale)
    }
}

/// An operation under way. It goes on if the handle is dropped.
#[must_use = "the result is given to who waits for it"]
pub struct Handle<T> {
    engine: OfProcess<Arc<Engine>>,
    answer: OfProcess<Answer<T>>,
}

impl<T> Handle<T> {
    pub(super) fn new(engine: Arc<Engine>, answer: Answer<T>) -> Self {
        Handle { engine: OfProcess::new(engine), answer: OfProcess::new(answer) }
    }

    /// Waits for the result. Returns it, or the error of the operation. Blocks.
    pub fn wait(self) -> Result<T> {
        self.wait_here()
    }

    /// Waits as [`wait`](Self::wait) does, but does not consume the handle. To be called once.
    #[doc(hidden)]
    pub fn wait_here(&self) -> Result<T> {
        self.engine.process().check("this handle")?;
        waits::call();
        self.engine.wait_for(&self.answer)
    }

    /// Waits as [`wait`](Self::wait) does, and returns `None` after `limit`. May be called again until it has
    /// returned the result.
    pub fn wait_within(&self, limit: Duration) -> Result<Option<T>> {
        self.engine.process().check("this handle")?;
        waits::call();
        self.engine.wait_within(&self.answer, limit)
    }

    /// Returns the result if it is there, but only once. Does not count as a wait, so it does not change how
    /// earlier calls are fused.
    #[doc(hidden)]
    pub fn take(&self) -> Result<Option<T>> {
        self.engine.process().check("this handle")?;
        self.engine.take(&self.answer)
    }

    /// Returns true if [`wait`](Self::wait) would return at once.
    pub fn is_done(&self) -> bool {
        if !self.answer.is_there() && self.answer.process().is_here() {
            self.engine.wait();
        }
        self.answer.is_there()
    }
}
