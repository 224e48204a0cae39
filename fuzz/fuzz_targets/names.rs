//! Text from command lines and variables: every parser takes any text without a panic. A value that it
//! accepts is written and read again without a change.
#![no_main]

use std::fmt::{Debug, Display};
use std::str::FromStr;

use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use ringpull_base::{AlgorithmChoice, DType, Kind, closest};
use ringpull_kernels::compress::Compression;
use ringpull_kernels::optim::{Optimizer, Rule};

#[derive(Arbitrary, Debug)]
enum NamesInput {
    Text(String),
    /// A rule, and parameters by their index.
    Optimizer(u8, Vec<(u8, f64)>),
    /// A codec and its parameters.
    Compression(u8, Vec<f64>),
}

const PARAMETERS: [&str; 14] = [
    "lr",
    "wd",
    "rescale_grad",
    "clip_gradient",
    "multi_precision",
    "momentum",
    "beta1",
    "beta2",
    "epsilon",
    "eps",
    "gamma1",
    "gamma2",
    "centered",
    "clip_weights",
];

impl NamesInput {
    fn text(self) -> String {
        match self {
            NamesInput::Text(text) => text,
            NamesInput::Optimizer(rule, parameters) => {
                let name = |at: u8| PARAMETERS[usize::from(at) % PARAMETERS.len()];
                let pairs = parameters.into_iter().map(|(at, value)| format!(",{}={value}", name(at)));
                Rule::ALL[usize::from(rule) % Rule::ALL.len()].0.to_owned() + &pairs.collect::<String>()
            }
            NamesInput::Compression(codec, values) => {
                let values = values.into_iter().map(|value| format!(":{value}"));
                Compression::ALL[usize::from(codec) % Compression::ALL.len()].0.to_owned() + &values.collect::<String>()
            }
        }
    }
}

fuzz_target!(|input: NamesInput| {
    let text = &input.text();
    read_again::<Compression>(text);
    read_again::<Optimizer>(text);
    read_again::<AlgorithmChoice>(text);
    read_again::<DType>(text);
    read_again::<Kind>(text);
    if let Ok(Some(chosen)) = Compression::choice(text) {
        assert_eq!(text.parse(), Ok(chosen), "a choice is what the parser gives");
        chosen.check().expect("what was parsed has been checked");
    }
    if text.len() < 100 {
        closest(text, ["ring", "direct", "dist_sync_mpi"]);
    }
});

fn read_again<T: FromStr + Display + PartialEq + Debug>(text: &str)
where
    T::Err: Display + Debug + PartialEq,
{
    match text.parse::<T>() {
        Ok(value) => {
            let written = value.to_string();
            assert_eq!(written.parse(), Ok(value), "{text:?} is written as {written:?}");
        }
        Err(error) => assert!(!error.to_string().is_empty(), "an error has a text"),
    }
}
