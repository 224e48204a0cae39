//! Optimizers as data and pure functions: a description that can be sent to servers, a state per key, and one
//! update.
//!
//! All ranks of `dist_sync_mpi`, and all servers, run the same update on the same bits, so states need not be
//! sent. For this the arithmetic is fixed to the bit: each element is computed separately, in the order of
//! operations in `sgd`, `adam`, `adagrad` and `rmsprop`, without fused multiply-add and without the
//! platform's `pow`. Threads only divide the elements. f16 and bf16 are widened to f32 and rounded once. f64
//! weights are computed in f64.

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

/// An optimizer with its hyper-parameters, with MXNet's names and arithmetic.
///
/// ```
/// # use ringpull_kernels::optim as ringpull;
/// use ringpull::{Optimizer, Rule};
///
/// let optimizer = Optimizer { rescale_grad: 1.0 / 64.0, ..Optimizer::sgd(0.1) };
/// assert!(matches!(optimizer.rule, Rule::Sgd { .. }));
/// ```
///
/// Its learning rate and weight decay apply to all keys, and a key may have its own factors, such as 0 for
/// the decay of a bias:
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
    /// The factor of every gradient. `Module` sets it to `1 / (batch * num_workers)`.
    pub rescale_grad: f64,
    /// Rescaled gradients are clipped to `[-c, c]`.
    pub clip_gradient: Option<f64>,
    /// True if f16 and bf16 weights have an f32 master copy in the state.
    pub multi_precision: bool,
    /// The factors of some keys' learning rates. The factor of any other key is 1.
    pub lr_mult: BTreeMap<Key, f64>,
    /// The factors of some keys' weight decays. The factor of any other key is 1.
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
    /// Keeps only the state of `part`, a range of the weight's bytes. The weight has `of_bytes` bytes.
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

    /// Returns the optimizer for `key`. The key's factors are applied to the learning rate and the weight
    /// decay, and those of other keys are left out.
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

    /// Returns true if this optimizer can continue with the states of `earlier`, because it has the same rule
    /// with the same slots.
    pub fn keeps_states_of(&self, earlier: &Optimizer) -> bool {
        std::mem::discriminant(&self.rule) == std::mem::discriminant(&earlier.rule)
            && self.rule.slots() == earlier.rule.slots()
            && self.multi_precision == earlier.multi_precision
    }

    /// Returns an error if a hyper-parameter has an invalid value. It names the hyper-parameter.
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
