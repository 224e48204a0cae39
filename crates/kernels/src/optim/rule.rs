//! The rules as data: the name of each, its parameters with their defaults and ranges, the size of its state
//! per key, and the parameters of its device kernel. The formulas are in `sgd`, `adam`, `adagrad` and
//! `rmsprop`.

use serde::{Deserialize, Serialize};

use ringpull_base::{Error, Result};

use super::Optimizer;
use super::adam::corrected_rate;

/// The update rule.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Rule {
    /// Stochastic gradient descent.
    Sgd {
        /// The momentum. 0 means none.
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
        /// The number that is added to the square root of the second moment.
        epsilon: f64,
    },
    /// MXNet's `test` optimizer: `weight += rescale_grad * gradient`. The state is a copy of the weight.
    Test,
    /// `AdaGrad`.
    AdaGrad {
        /// The number that is added to the sum of squares, before its root is taken.
        eps: f64,
    },
    /// `RMSProp`, in Tieleman and Hinton's form or in Graves's.
    RmsProp {
        /// Decay of the mean square, and of the mean.
        gamma1: f64,
        /// Momentum of Graves's form.
        gamma2: f64,
        /// The number that is added to the mean square, before its root is taken.
        epsilon: f64,
        /// True for Graves's form, in which the mean square is that of the difference from the mean.
        centered: bool,
        /// Weights are clipped to `[-c, c]`.
        clip_weights: Option<f64>,
    },
}

/// A reference to a parameter's value in an optimizer. In text all are numbers.
pub(super) enum Field<'a> {
    Number(&'a mut f64),
    /// A limit, which is infinite if there is none.
    Limit(&'a mut Option<f64>),
    Flag(&'a mut bool),
}

impl Field<'_> {
    pub(super) fn get(&self) -> f64 {
        match self {
            Field::Number(value) => **value,
            Field::Limit(limit) => limit.unwrap_or(f64::INFINITY),
            Field::Flag(flag) => f64::from(u8::from(**flag)),
        }
    }

    pub(super) fn set(self, value: f64) {
        match self {
            Field::Number(field) => *field = value,
            Field::Limit(limit) => *limit = value.is_finite().then_some(value),
            Field::Flag(flag) => *flag = value != 0.0,
        }
    }
}

/// The values that a parameter may have, as text and as a test.
pub(super) type Range = (&'static str, fn(f64) -> bool);
pub(super) const FINITE: Range = ("finite", f64::is_finite);
const AT_LEAST_0: Range = ("finite and at least 0", |value| value.is_finite() && value >= 0.0);
const ABOVE_0: Range = ("finite and more than 0", |value| value.is_finite() && value > 0.0);
const BELOW_1: Range = ("at least 0 and less than 1", |value| (0.0..1.0).contains(&value));
const LIMIT: Range = ("more than 0", |value| value > 0.0);
const FLAG: Range = ("0 or 1", |value| value == 0.0 || value == 1.0);

/// Returns an error if a parameter may not have the value.
pub(super) fn check_range(name: &str, value: f64, (range, holds): Range) -> Result<()> {
    if holds(value) {
        return Ok(());
    }
    Err(Error::argument(format!("the optimizer's {name} is {value}"), format!("give a {name} that is {range}")))
}

/// A parameter: its name, its value, and its range.
pub(super) type Parameter<'a> = (&'static str, Field<'a>, Range);

impl Rule {
    /// The rules by their names, with MXNet's defaults: the learning rate, and the rule's own parameters.
    pub const ALL: [(&'static str, f64, Rule); 6] = [
        ("sgd", 0.01, Rule::Sgd { momentum: 0.0, nesterov: false }),
        ("nag", 0.01, Rule::Sgd { momentum: 0.0, nesterov: true }),
        ("adam", 0.001, Rule::Adam { beta1: 0.9, beta2: 0.999, epsilon: 1e-8 }),
        ("test", 0.01, Rule::Test),
        ("adagrad", 0.01, Rule::AdaGrad { eps: 1e-7 }),
        (
            "rmsprop",
            0.001,
            Rule::RmsProp { gamma1: 0.9, gamma2: 0.9, epsilon: 1e-8, centered: false, clip_weights: None },
        ),
    ];

    /// An optimizer for each code path of the rules, for tests that run all of them.
    pub const EXAMPLES: [&'static str; 8] = [
        "sgd,lr=0.1,wd=0.01,rescale_grad=0.3",
        "sgd,lr=0.1,momentum=0.9,clip_gradient=2",
        "nag,lr=0.1,momentum=0.9,wd=0.01",
        "test,rescale_grad=0.7",
        "adam,lr=0.01,wd=0.1,clip_gradient=3",
        "adagrad,lr=0.1,wd=0.01,rescale_grad=0.3,clip_gradient=2",
        "rmsprop,lr=0.1,wd=0.01,rescale_grad=0.3,clip_gradient=2,clip_weights=1.5",
        "rmsprop,lr=0.1,wd=0.01,rescale_grad=0.3,clip_gradient=2,gamma2=0.8,centered=1",
    ];

    /// The index in [`ALL`](Self::ALL).
    pub(super) fn index(&self) -> usize {
        match self {
            Rule::Sgd { nesterov, .. } => usize::from(*nesterov),
            Rule::Adam { .. } => 2,
            Rule::Test => 3,
            Rule::AdaGrad { .. } => 4,
            Rule::RmsProp { .. } => 5,
        }
    }

    /// The parameters that only this rule has.
    fn parameters(&mut self) -> Vec<Parameter<'_>> {
        use Field::{Flag, Limit, Number};
        match self {
            Rule::Sgd { momentum, .. } => vec![("momentum", Number(momentum), BELOW_1)],
            Rule::Adam { beta1, beta2, epsilon } => vec![
                ("beta1", Number(beta1), BELOW_1),
                ("beta2", Number(beta2), BELOW_1),
                ("epsilon", Number(epsilon), ABOVE_0),
            ],
            Rule::Test => Vec::new(),
            Rule::AdaGrad { eps } => vec![("eps", Number(eps), ABOVE_0)],
            Rule::RmsProp { gamma1, gamma2, epsilon, centered, clip_weights } => vec![
                ("gamma1", Number(gamma1), BELOW_1),
                ("gamma2", Number(gamma2), BELOW_1),
                ("epsilon", Number(epsilon), ABOVE_0),
                ("centered", Flag(centered), FLAG),
                ("clip_weights", Limit(clip_weights), LIMIT),
            ],
        }
    }

    /// The number of slots in the state of a key.
    pub(super) fn slots(&self) -> usize {
        match self {
            Rule::Sgd { momentum, .. } => usize::from(*momentum != 0.0),
            Rule::Adam { .. } => 2,
            Rule::Test | Rule::AdaGrad { .. } => 1,
            Rule::RmsProp { centered, .. } => {
                if *centered {
                    3
                } else {
                    1
                }
            }
        }
    }
}

impl Optimizer {
    /// Returns the learning rate of update number `updates`, counted from 1.
    pub fn rate_at(&self, updates: u64) -> f64 {
        match self.rule {
            Rule::Adam { beta1, beta2, .. } => corrected_rate(self.learning_rate, beta1, beta2, updates),
            _ => self.learning_rate,
        }
    }

    /// Returns all parameters. The learning rate comes before those of the rule.
    pub(super) fn parameters(&mut self) -> Vec<Parameter<'_>> {
        let mut all = vec![("learning_rate", Field::Number(&mut self.learning_rate), AT_LEAST_0)];
        all.extend(self.rule.parameters());
        all.extend([
            ("weight_decay", Field::Number(&mut self.weight_decay), AT_LEAST_0),
            ("rescale_grad", Field::Number(&mut self.rescale_grad), FINITE),
            ("clip_gradient", Field::Limit(&mut self.clip_gradient), LIMIT),
            ("multi_precision", Field::Flag(&mut self.multi_precision), FLAG),
        ]);
        all
    }

    /// Returns the parameters of a device kernel for update number `updates`: the rule's number and its
    /// parameters, in the order of `Rule` and `Step` in update.cu.
    pub fn step_on_device(&self, updates: u64) -> (i32, [f64; 8]) {
        let unlimited = f64::INFINITY;
        let (rule, [first, second, epsilon, bound]) = match self.rule {
            Rule::Sgd { momentum: 0.0, .. } => (0, [0.0; 4]),
            Rule::Sgd { momentum, nesterov } => (1 + i32::from(nesterov), [momentum, 0.0, 0.0, 0.0]),
            Rule::Test => (3, [0.0; 4]),
            Rule::Adam { beta1, beta2, epsilon } => (4, [beta1, beta2, epsilon, 0.0]),
            Rule::AdaGrad { eps } => (5, [0.0, 0.0, eps, 0.0]),
            Rule::RmsProp { gamma1, gamma2, epsilon, centered, clip_weights } => {
                (6 + i32::from(centered), [gamma1, gamma2, epsilon, clip_weights.unwrap_or(unlimited)])
            }
        };
        let clip = self.clip_gradient.unwrap_or(unlimited);
        (rule, [self.rate_at(updates), self.weight_decay, self.rescale_grad, clip, first, second, epsilon, bound])
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
