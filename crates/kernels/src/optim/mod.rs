//! Optimizers as data and pure functions: a description that can be sent to servers, a state per key, and one
//! update.
//!
//! Every rank of `dist_sync_mpi` and every server runs the same update on the same bits, so states need not
//! travel. To that end the arithmetic is fixed to the bit: each element is computed on its own, in the order
//! of operations written in `sgd`, `adam`, `adagrad` and `rmsprop`, with no fused multiply-add and no call of
//! the platform's `pow`; threads only share out elements. Halves widen to f32 and round once; f64 weights are
//! computed in f64.

mod adagrad;
mod adam;
mod apply;
mod element;
mod parse;
mod rmsprop;
mod rule;
mod sgd;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use ringpull_base::{DType, Key, Result};

pub use self::rule::Rule;
use self::rule::{FINITE, check_range};

/// An optimizer with its hyper-parameters, in MXNet's words and arithmetic.
///
/// ```
/// # use ringpull_kernels::optim as ringpull;
/// use ringpull::{Optimizer, Rule};
///
/// let optimizer = Optimizer { rescale_grad: 1.0 / 64.0, ..Optimizer::sgd(0.1) };
/// assert!(matches!(optimizer.rule, Rule::Sgd { .. }));
/// ```
///
/// Its learning rate and weight decay are those of all keys, and each key may have factors of its own, such
/// as no decay of a bias:
///
/// ```
/// # use ringpull_kernels::optim as ringpull;
/// # use ringpull_base::Key;
/// let mut optimizer: ringpull::Optimizer = "sgd,lr=0.1,wd=1e-4".parse()?;
/// optimizer.wd_mult.insert(Key::from("fc1_bias"), 0.0);
/// optimizer.lr_mult.insert(Key::from("fc2_weight"), 10.0);
/// # Ok::<(), ringpull_base::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Optimizer {
    /// The rule of the optimizer.
    pub rule: Rule,
    /// Learning rate.
    pub learning_rate: f64,
    /// Weight decay.
    pub weight_decay: f64,
    /// Every gradient is multiplied by this first; `1 / (batch * num_workers)` as `Module` sets it.
    pub rescale_grad: f64,
    /// Rescaled gradients are clipped to `[-c, c]`.
    pub clip_gradient: Option<f64>,
    /// True if f16 and bf16 weights have an f32 master copy in the state.
    pub multi_precision: bool,
    /// The factors of some keys' learning rates; that of any other key is 1.
    pub lr_mult: BTreeMap<Key, f64>,
    /// The factors of some keys' weight decays; that of any other key is 1.
    pub wd_mult: BTreeMap<Key, f64>,
}

/// The state of an optimizer for one key. Empty before its first update.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// The number of updates of the key.
    pub updates: u64,
    /// Slots of one f32 (f64 for f64 weights) per weight element, little endian: momentum; mean and variance;
    /// the master copy last.
    pub slots: Vec<Vec<u8>>,
}

impl State {
    /// Keeps the state of a part of the weight alone: a range of its bytes, and their number.
    pub fn keep(&mut self, part: Range<usize>, of_bytes: usize) {
        for slot in &mut self.slots {
            let at = |byte: usize| (slot.len() as u64 * byte as u64).checked_div(of_bytes as u64).unwrap_or(0) as usize;
            *slot = slot[at(part.start)..at(part.end)].to_vec();
        }
    }
}

/// The bytes of a slot for each element of a weight.
pub fn slot_element_bytes(dtype: DType) -> usize {
    if dtype == DType::F64 { 8 } else { 4 }
}

impl Optimizer {
    /// Plain SGD at `learning_rate`, with nothing else switched on.
    pub fn sgd(learning_rate: f64) -> Self {
        Optimizer {
            rule: Rule::Sgd { momentum: 0.0, nesterov: false },
            learning_rate,
            weight_decay: 0.0,
            rescale_grad: 1.0,
            clip_gradient: None,
            multi_precision: false,
            lr_mult: BTreeMap::new(),
            wd_mult: BTreeMap::new(),
        }
    }

    /// The optimizer as it is for `key`: its factors are in the learning rate and the weight decay, and those
    /// of other keys are left out.
    #[must_use]
    pub fn of(self: &Arc<Self>, key: &Key) -> Arc<Self> {
        if self.lr_mult.is_empty() && self.wd_mult.is_empty() {
            return Arc::clone(self);
        }
        let times = |value: f64, factors: &BTreeMap<Key, f64>| value * factors.get(key).unwrap_or(&1.0);
        Arc::new(Optimizer {
            rule: self.rule.clone(),
            learning_rate: times(self.learning_rate, &self.lr_mult),
            weight_decay: times(self.weight_decay, &self.wd_mult),
            lr_mult: BTreeMap::new(),
            wd_mult: BTreeMap::new(),
            ..**self
        })
    }

    /// Returns true if states that `earlier` left can be carried on by this optimizer: the same rule with the
    /// same slots.
    pub fn keeps_states_of(&self, earlier: &Optimizer) -> bool {
        std::mem::discriminant(&self.rule) == std::mem::discriminant(&earlier.rule)
            && self.rule.slots() == earlier.rule.slots()
            && self.multi_precision == earlier.multi_precision
    }

    /// An error that names the hyper-parameter whose value makes no sense.
    pub fn check(&self) -> Result<()> {
        for (name, field, range) in self.clone().parameters() {
            check_range(name, field.get(), range)?;
        }
        for (name, factors) in [("lr_mult", &self.lr_mult), ("wd_mult", &self.wd_mult)] {
            for (key, factor) in factors {
                check_range(&format!("{name} of key {key}"), *factor, FINITE)?;
            }
        }
        Ok(())
    }
}
