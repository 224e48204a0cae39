//! Optimizers on the command line: `sgd,lr=0.1,momentum=0.9`.

use std::fmt;
use std::str::FromStr;

use ringpull_base::{Error, Result, did_you_mean};

use super::{Optimizer, Rule};

impl FromStr for Optimizer {
    type Err = Error;

    /// A rule (`sgd`, `nag`, `adam`, `test`), then `name=value` pairs in MXNet's names; what is not named has
    /// MXNet's default.
    fn from_str(text: &str) -> Result<Self> {
        let mut words = text.split(',').map(str::trim);
        let name = words.next().unwrap_or_default();
        let Some((_, rate, rule)) = Rule::ALL.into_iter().find(|(known, ..)| *known == name) else {
            return Err(Error::argument(
                format!("unknown optimizer {name:?}"),
                format!(
                    "the optimizers are {}; an example: sgd,lr=0.1,momentum=0.9",
                    Rule::ALL.map(|(name, ..)| name).join(", ")
                ),
            ));
        };
        let mut optimizer = Optimizer { rule, ..Optimizer::sgd(rate) };
        for word in words {
            optimizer.set(name, word)?;
        }
        optimizer.check()?;
        Ok(optimizer)
    }
}

impl fmt::Display for Optimizer {
    /// As it is parsed; what has MXNet's default is left out.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, _, mut default) = Rule::ALL[self.rule.index()].clone();
        let mut rule = self.rule.clone();
        write!(out, "{name},lr={}", self.learning_rate)?;
        let own = rule.parameters().into_iter().zip(default.parameters());
        let own = own.map(|((name, value, _), (_, default, _))| (name, *value, *default));
        for (name, value, default) in
            own.chain([("wd", self.weight_decay, 0.0), ("rescale_grad", self.rescale_grad, 1.0)])
        {
            if value.to_bits() != default.to_bits() {
                write!(out, ",{name}={value}")?;
            }
        }
        if let Some(limit) = self.clip_gradient {
            write!(out, ",clip_gradient={limit}")?;
        }
        if self.multi_precision { out.write_str(",multi_precision=1") } else { Ok(()) }
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
        match name {
            "lr" | "learning_rate" => self.learning_rate = number()?,
            "wd" | "weight_decay" => self.weight_decay = number()?,
            "rescale_grad" => self.rescale_grad = number()?,
            "clip_gradient" => self.clip_gradient = Some(number()?),
            "multi_precision" => self.multi_precision = number()? != 0.0,
            _ => {
                let mut own = self.rule.parameters();
                if let Some((_, value, _)) = own.iter_mut().find(|(known, ..)| *known == name) {
                    **value = number()?;
                    return Ok(());
                }
                let common =
                    ["lr", "learning_rate", "wd", "weight_decay", "rescale_grad", "clip_gradient", "multi_precision"];
                let names: Vec<&str> = common.into_iter().chain(own.iter().map(|(name, ..)| *name)).collect();
                return Err(Error::argument(
                    format!(
                        "the optimizer {rule} has no parameter {name:?}{}",
                        did_you_mean(name, names.iter().copied())
                    ),
                    format!("its parameters are {}; lr is learning_rate and wd is weight_decay", names.join(", ")),
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
    fn what_is_written_is_read_again_and_leaves_out_what_is_the_default() {
        for text in [
            "sgd,lr=0.1",
            "nag,lr=0.1,momentum=0.9,wd=0.0001,clip_gradient=5,multi_precision=1",
            "adam,lr=0.001,beta2=0.99,epsilon=0.000001,rescale_grad=0.25",
            "test,lr=0.01",
        ] {
            assert_eq!(text.parse::<Optimizer>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn a_parameter_that_is_nearly_one_is_named() {
        let error = "sgd,learning_rat=0.1".parse::<Optimizer>().unwrap_err().to_string();
        assert!(error.contains("did you mean learning_rate?"), "{error}");
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
