//! Optimizers on the command line: `sgd,lr=0.1,momentum=0.9`.

use std::str::FromStr;

use super::{Optimizer, Rule};
use crate::error::{Error, Result};

impl FromStr for Optimizer {
    type Err = Error;

    /// A rule (`sgd`, `nag`, `adam`, `test`), then `name=value` pairs in MXNet's names; what is not named has MXNet's default.
    fn from_str(text: &str) -> Result<Self> {
        let mut words = text.split(',').map(str::trim);
        let name = words.next().unwrap_or_default();
        let mut optimizer = match name {
            "sgd" => Optimizer::sgd(0.01),
            "nag" => Optimizer { rule: Rule::Sgd { momentum: 0.0, nesterov: true }, ..Optimizer::sgd(0.01) },
            "adam" => {
                Optimizer { rule: Rule::Adam { beta1: 0.9, beta2: 0.999, epsilon: 1e-8 }, ..Optimizer::sgd(0.001) }
            }
            "test" => Optimizer { rule: Rule::Test, ..Optimizer::sgd(0.01) },
            _ => {
                return Err(Error::argument(
                    format!("unknown optimizer {name:?}"),
                    "the optimizers are sgd, nag, adam, test; an example: sgd,lr=0.1,momentum=0.9",
                ));
            }
        };
        for word in words {
            optimizer.set(name, word)?;
        }
        optimizer.check()?;
        Ok(optimizer)
    }
}

impl Optimizer {
    fn set(&mut self, rule: &str, word: &str) -> Result<()> {
        let (name, value) = word.split_once('=').unwrap_or((word, ""));
        let (name, value) = (name.trim(), value.trim());
        let number = || {
            value.parse::<f64>().map_err(|_| {
                Error::argument(format!("{name}={value:?} in the optimizer {rule}"), format!("give {name} a number"))
            })
        };
        match (name, &mut self.rule) {
            ("lr" | "learning_rate", _) => self.learning_rate = number()?,
            ("wd" | "weight_decay", _) => self.weight_decay = number()?,
            ("rescale_grad", _) => self.rescale_grad = number()?,
            ("clip_gradient", _) => self.clip_gradient = Some(number()?),
            ("multi_precision", _) => self.multi_precision = number()? != 0.0,
            ("momentum", Rule::Sgd { momentum, .. }) => *momentum = number()?,
            ("beta1", Rule::Adam { beta1, .. }) => *beta1 = number()?,
            ("beta2", Rule::Adam { beta2, .. }) => *beta2 = number()?,
            ("epsilon", Rule::Adam { epsilon, .. }) => *epsilon = number()?,
            _ => {
                let own = match self.rule {
                    Rule::Sgd { .. } => ", momentum",
                    Rule::Adam { .. } => ", beta1, beta2, epsilon",
                    Rule::Test => "",
                };
                return Err(Error::argument(
                    format!("the optimizer {rule} has no parameter {name:?}"),
                    format!("its parameters are lr, wd, rescale_grad, clip_gradient, multi_precision{own}"),
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_values_are_read_in_mxnets_words() {
        let nag: Optimizer = "nag,lr=0.1, momentum=0.9,wd=1e-4,clip_gradient=5,multi_precision=1".parse().unwrap();
        assert_eq!(nag.rule, Rule::Sgd { momentum: 0.9, nesterov: true });
        assert_eq!((nag.learning_rate, nag.weight_decay), (0.1, 1e-4));
        assert_eq!((nag.clip_gradient, nag.multi_precision), (Some(5.0), true));
        let adam: Optimizer = "adam".parse().unwrap();
        assert_eq!((adam.rule, adam.learning_rate), (Rule::Adam { beta1: 0.9, beta2: 0.999, epsilon: 1e-8 }, 0.001));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, named) in [
            ("sdg", "\"sdg\""),
            ("sgd,beta1=0.5", "\"beta1\""),
            ("sgd,lr=fast", "\"fast\""),
            ("sgd,lr=-1", "learning_rate"),
            ("sgd,lr=inf", "learning_rate"),
            ("sgd,momentum=1", "momentum"),
            ("adam,beta2=1.5", "beta2"),
            ("adam,epsilon=0", "epsilon"),
            ("sgd,wd=nan", "weight_decay"),
            ("sgd,clip_gradient=0", "clip_gradient"),
            ("sgd,rescale_grad=nan", "rescale_grad"),
        ] {
            let error = text.parse::<Optimizer>().unwrap_err().to_string();
            assert!(error.contains(named) && error.contains("hint:"), "{text}: {error}");
        }
    }
}
