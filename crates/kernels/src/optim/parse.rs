//! Optimizers on the command line: `sgd,lr=0.1,momentum=0.9`.

use std::fmt;
use std::str::FromStr;

use ringpull_base::{Error, Result, did_you_mean};

use super::rule::check_range;
use super::{Optimizer, Rule};

/// Short forms of names.
const SHORT: [(&str, &str); 2] = [("lr", "learning_rate"), ("wd", "weight_decay")];

impl FromStr for Optimizer {
    type Err = Error;

    /// Reads a rule (`sgd`, `nag`, `adam`, `test`, `adagrad`, `rmsprop`), followed by `name=value` pairs with
    /// MXNet's names. Other settings have MXNet's default.
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
        words.try_for_each(|word| optimizer.set(name, word))?;
        Ok(optimizer)
    }
}

impl fmt::Display for Optimizer {
    /// Writes the form that is parsed. Settings with MXNet's default are left out. Factors of keys come last,
    /// and cannot be parsed.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, rate, default) = Rule::ALL[self.rule.index()].clone();
        let mut default = Optimizer { rule: default, ..Optimizer::sgd(rate) };
        write!(out, "{name}")?;
        for ((name, field, _), (_, default, _)) in self.clone().parameters().into_iter().zip(default.parameters()) {
            let value = field.get();
            if name == "learning_rate" || value.to_bits() != default.get().to_bits() {
                let short = SHORT.iter().find(|(_, long)| *long == name).map_or(name, |(short, _)| short);
                write!(out, ",{short}={value}")?;
            }
        }
        for (name, factors) in [("lr_mult", &self.lr_mult), ("wd_mult", &self.wd_mult)] {
            factors.iter().try_for_each(|(key, factor)| write!(out, ", {name} of {key} {factor}"))?;
        }
        Ok(())
    }
}

impl Optimizer {
    fn set(&mut self, rule: &str, word: &str) -> Result<()> {
        let (name, value) = word.split_once('=').unwrap_or((word, ""));
        let (name, value) = (name.trim(), value.trim());
        let long = SHORT.iter().find(|(short, _)| *short == name).map_or(name, |(_, long)| long);
        let mut parameters = self.parameters();
        let Some(at) = parameters.iter().position(|(name, ..)| *name == long) else {
            let names = SHORT.iter().map(|(short, _)| *short).chain(parameters.iter().map(|(name, ..)| *name));
            let names: Vec<&str> = names.collect();
            return Err(Error::argument(
                format!("the optimizer {rule} has no parameter {name:?}{}", did_you_mean(name, names.iter().copied())),
                format!("its parameters are {}; lr is learning_rate and wd is weight_decay", names.join(", ")),
            ));
        };
        let value = value.parse().map_err(|_| {
            Error::argument(format!("{name}={value:?} in the optimizer {rule}"), format!("give {name} a number"))
        })?;
        let (_, field, range) = parameters.swap_remove(at);
        check_range(long, value, range)?;
        field.set(value);
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
            "adagrad,lr=0.01,eps=0.5",
            "rmsprop,lr=0.001,gamma1=0.5,centered=1,clip_weights=2,wd=0.5",
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
            ("sgd,multi_precision=2", "multi_precision"),
            ("adagrad,eps=0", "eps"),
            ("rmsprop,centered=0.5", "centered"),
            ("rmsprop,clip_weights=nan", "clip_weights"),
            ("sgd,rescale_grad=nan", "rescale_grad"),
        ] {
            let error = text.parse::<Optimizer>().unwrap_err().to_string();
            assert!(error.contains(named) && error.contains("hint:"), "{text}: {error}");
        }
    }
}
