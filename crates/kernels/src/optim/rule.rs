//! The rules as data: the name of each, its parameters with their defaults and ranges, how much state it has
//! per key, and the parameters of its device kernel. The formulas are in `sgd` and `adam`.

use serde::{Deserialize, Serialize};

use super::Optimizer;
use super::adam::corrected_rate;

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

/// What a parameter may be, in words and as a test.
pub(super) type Range = (&'static str, fn(f64) -> bool);
pub(super) const FINITE: Range = ("finite", f64::is_finite);
pub(super) const AT_LEAST_0: Range = ("finite and at least 0", |value| value.is_finite() && value >= 0.0);
pub(super) const ABOVE_0: Range = ("finite and more than 0", |value| value.is_finite() && value > 0.0);
const BELOW_1: Range = ("at least 0 and less than 1", |value| (0.0..1.0).contains(&value));

impl Rule {
    /// The rules by their names, with MXNet's defaults: the learning rate, and the rule's own parameters.
    pub const ALL: [(&'static str, f64, Rule); 4] = [
        ("sgd", 0.01, Rule::Sgd { momentum: 0.0, nesterov: false }),
        ("nag", 0.01, Rule::Sgd { momentum: 0.0, nesterov: true }),
        ("adam", 0.001, Rule::Adam { beta1: 0.9, beta2: 0.999, epsilon: 1e-8 }),
        ("test", 0.01, Rule::Test),
    ];

    /// An optimizer for each code path of the rules, for tests that run all of them.
    pub const EXAMPLES: [&'static str; 5] = [
        "sgd,lr=0.1,wd=0.01,rescale_grad=0.3",
        "sgd,lr=0.1,momentum=0.9,clip_gradient=2",
        "nag,lr=0.1,momentum=0.9,wd=0.01",
        "test,rescale_grad=0.7",
        "adam,lr=0.01,wd=0.1,clip_gradient=3",
    ];

    /// The index in [`ALL`](Self::ALL).
    pub(super) fn index(&self) -> usize {
        match self {
            Rule::Sgd { nesterov, .. } => usize::from(*nesterov),
            Rule::Adam { .. } => 2,
            Rule::Test => 3,
        }
    }

    /// The parameters that only this rule has.
    pub(super) fn parameters(&mut self) -> Vec<(&'static str, &mut f64, Range)> {
        match self {
            Rule::Sgd { momentum, .. } => vec![("momentum", momentum, BELOW_1)],
            Rule::Adam { beta1, beta2, epsilon } => {
                vec![("beta1", beta1, BELOW_1), ("beta2", beta2, BELOW_1), ("epsilon", epsilon, ABOVE_0)]
            }
            Rule::Test => Vec::new(),
        }
    }

    /// How many slots it has in the state of a key.
    pub(super) fn slots(&self) -> usize {
        match self {
            Rule::Sgd { momentum, .. } => usize::from(*momentum != 0.0),
            Rule::Adam { .. } => 2,
            Rule::Test => 1,
        }
    }
}

impl Optimizer {
    /// The learning rate of update number `updates`, counted from 1.
    pub fn rate_at(&self, updates: u64) -> f64 {
        match self.rule {
            Rule::Adam { beta1, beta2, .. } => corrected_rate(self.learning_rate, beta1, beta2, updates),
            _ => self.learning_rate,
        }
    }

    /// The parameters of a device kernel for update number `updates`: the rule's number and its parameters,
    /// in the order of `Rule` and `Step` in update.cu.
    pub fn step_on_device(&self, updates: u64) -> (i32, [f64; 7]) {
        let (rule, [first, second, epsilon]) = match self.rule {
            Rule::Sgd { momentum: 0.0, .. } => (0, [0.0; 3]),
            Rule::Sgd { momentum, nesterov } => (1 + i32::from(nesterov), [momentum, 0.0, 0.0]),
            Rule::Test => (3, [0.0; 3]),
            Rule::Adam { beta1, beta2, epsilon } => (4, [beta1, beta2, epsilon]),
        };
        let clip = self.clip_gradient.unwrap_or(f64::INFINITY);
        (rule, [self.rate_at(updates), self.weight_decay, self.rescale_grad, clip, first, second, epsilon])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rule_has_its_name_and_an_example() {
        for (index, (name, rate, rule)) in Rule::ALL.into_iter().enumerate() {
            let parsed: Optimizer = name.parse().unwrap();
            assert_eq!((rule.index(), &parsed.rule, parsed.learning_rate), (index, &rule, rate), "{name}");
            assert!(Rule::EXAMPLES.iter().any(|example| example.split(',').next() == Some(name)), "{name}");
        }
    }
}
