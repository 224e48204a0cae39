//! Compression as text: MXNet's parameters, `{'type': '2bit', 'threshold': 0.5}`, and one word for command
//! lines, `2bit:0.5`.

use std::fmt;
use std::str::FromStr;

use ringpull_base::{Error, Result};

use super::{Codec, Compression, TopK};

impl Compression {
    /// The types by their names, with their default parameters. The thresholds are MXNet's.
    pub const ALL: [(&'static str, Compression); 5] = [
        ("fp16", Compression::Codec(Codec::Fp16)),
        ("bf16", Compression::Codec(Codec::Bf16)),
        ("2bit", Compression::Codec(Codec::TwoBit { threshold: 0.5 })),
        ("1bit", Compression::Codec(Codec::OneBit { threshold: 0.5 })),
        ("topk", Compression::TopK(TopK { ratio: 0.01, momentum: 0.0 })),
    ];

    /// All names, for messages.
    pub fn names() -> String {
        Compression::ALL.map(|(name, _)| name).join(", ")
    }

    /// Reads MXNet's parameters: `type`, and `threshold` (2bit, 1bit) or `ratio` and `momentum` (topk). A
    /// parameter that the type does not have is an error.
    pub fn from_params<'a>(params: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<Self> {
        let (mut name, mut others) = (None, Vec::new());
        for (key, value) in params {
            if key == "type" {
                name = Some(value);
            } else {
                others.push((key, value));
            }
        }
        let name = name.ok_or_else(|| {
            Error::argument("required parameter type of gradient compression is not presented", "give 'type': '2bit'")
        })?;
        let mut compression = Compression::of_type(name)?;
        for (key, value) in others {
            compression.set(key, value)?;
        }
        compression.check().map(|()| compression)
    }

    /// Reads `none`, or a compression in one word or in MXNet's parameters.
    pub fn choice(text: &str) -> Result<Option<Self>> {
        match params_of(text)? {
            Some(pairs) => {
                Compression::choice_of_params(pairs.iter().map(|(key, value)| (key.as_str(), value.as_str())))
            }
            None if text == "none" => Ok(None),
            None => text.parse().map(Some),
        }
    }

    /// Reads parameters as [`from_params`](Self::from_params) does. Returns `None` for the type `none`, which
    /// has no parameters.
    pub fn choice_of_params<'a>(params: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<Option<Self>> {
        let params: Vec<_> = params.into_iter().collect();
        if params == [("type", "none")] { Ok(None) } else { Compression::from_params(params).map(Some) }
    }

    fn of_type(name: &str) -> Result<Self> {
        Compression::ALL.into_iter().find(|(known, _)| *known == name).map(|(_, compression)| compression).ok_or_else(
            || {
                Error::argument(
                    format!("unknown type for gradient compression {name:?}"),
                    format!("the types are {}", Compression::names()),
                )
            },
        )
    }

    fn set(&mut self, key: &str, value: &str) -> Result<()> {
        match (&mut *self, key) {
            (Compression::Codec(Codec::TwoBit { threshold } | Codec::OneBit { threshold }), "threshold") => {
                *threshold = number(key, value)?;
            }
            (Compression::TopK(topk), "ratio") => topk.ratio = number(key, value)?,
            (Compression::TopK(topk), "momentum") => topk.momentum = number(key, value)?,
            _ => {
                return Err(Error::argument(
                    format!("gradient compression {self} has no parameter {key:?}"),
                    "2bit and 1bit have a threshold, topk a ratio and a momentum, fp16 and bf16 none",
                ));
            }
        }
        Ok(())
    }
}

/// The pairs of `{'type': '2bit', 'threshold': 0.5}`, as Python or JSON writes them, if the text is such.
fn params_of(text: &str) -> Result<Option<Vec<(String, String)>>> {
    let Some(inside) = text.trim().strip_prefix('{').and_then(|text| text.strip_suffix('}')) else { return Ok(None) };
    let bare = |word: &str| word.trim().trim_matches(['\'', '"']).to_owned();
    let pairs = inside.split(',').filter(|pair| !pair.trim().is_empty());
    let pairs: Option<Vec<_>> =
        pairs.map(|pair| pair.split_once(':').map(|(key, value)| (bare(key), bare(value)))).collect();
    let wrong = || Error::argument(format!("invalid parameters {text:?}"), "write {'type': '2bit', 'threshold': 0.5}");
    pairs.ok_or_else(wrong).map(Some)
}

fn number<T: FromStr>(key: &str, value: &str) -> Result<T> {
    value.parse().map_err(|_| {
        Error::argument(format!("invalid {key}={value:?}: expected a number"), "give a number such as 0.5")
    })
}

impl FromStr for Compression {
    type Err = Error;

    /// Reads `2bit`, `2bit:0.5`, `topk:0.01`, `topk:0.01:0.9`, or MXNet's parameters as Python or JSON writes
    /// them.
    fn from_str(text: &str) -> Result<Self> {
        if let Some(pairs) = params_of(text)? {
            return Compression::from_params(pairs.iter().map(|(key, value)| (key.as_str(), value.as_str())));
        }
        let mut words = text.split(':');
        let name = words.next().unwrap_or_default();
        let keys: &[&str] = match name {
            "2bit" | "1bit" => &["threshold"],
            "topk" => &["ratio", "momentum"],
            _ => &[],
        };
        let values: Vec<&str> = words.collect();
        if values.len() > keys.len() && Compression::of_type(name).is_ok() {
            return Err(Error::argument(
                format!("{text:?} has more parameters than {name} takes"),
                "write fp16, bf16, 2bit:THRESHOLD, 1bit:THRESHOLD, topk:RATIO or topk:RATIO:MOMENTUM",
            ));
        }
        let params = keys.iter().copied().zip(values);
        Compression::from_params(std::iter::once(("type", name)).chain(params))
    }
}

impl fmt::Display for Compression {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Compression::Codec(Codec::Fp16) => "fp16".to_owned(),
            Compression::Codec(Codec::Bf16) => "bf16".to_owned(),
            Compression::Codec(Codec::TwoBit { threshold }) => format!("2bit:{threshold}"),
            Compression::Codec(Codec::OneBit { threshold }) => format!("1bit:{threshold}"),
            Compression::TopK(TopK { ratio, momentum: 0.0 }) => format!("topk:{ratio}"),
            Compression::TopK(TopK { ratio, momentum }) => format!("topk:{ratio}:{momentum}"),
        };
        out.pad(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> String {
        text.parse::<Compression>().unwrap_or_else(|error| panic!("{text}: {error}")).to_string()
    }

    fn refused(text: &str) -> String {
        text.parse::<Compression>().map_or_else(|error| error.to_string(), |read| panic!("{text} was read as {read}"))
    }

    #[test]
    fn words_of_the_command_line_and_of_mxnet_name_the_same() {
        for (texts, name) in [
            (
                &["2bit", "2bit:0.5", "{'type': '2bit', 'threshold': 0.5}", r#"{"threshold":"0.5","type":"2bit"}"#][..],
                "2bit:0.5",
            ),
            (&["1bit:0", "{'type':'1bit','threshold':0}"], "1bit:0"),
            (&["topk", "topk:0.01", "{'type': 'topk'}"], "topk:0.01"),
            (&["topk:0.02:0.9", "{'type': 'topk', 'ratio': 0.02, 'momentum': 0.9,}"], "topk:0.02:0.9"),
            (&["fp16", " {'type': 'fp16'} "], "fp16"),
            (&["bf16"], "bf16"),
        ] {
            texts.iter().for_each(|text| assert_eq!(parsed(text), name));
            assert_eq!(parsed(name), name);
        }
    }

    #[test]
    fn every_type_has_its_name_and_stands_in_every_help() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let helps = [
            "crates/cli/src/commands/measured.rs",
            "crates/cli/src/commands/compare.rs",
            "examples/training/training.rs",
            "python/ringpull/kvstore.py",
            "python/ringpull/worker.py",
            "docs/compression.md",
        ]
        .map(|file| (file, std::fs::read_to_string(root.join(file)).unwrap()));
        for (name, compression) in Compression::ALL {
            assert_eq!((parsed(name), parsed(&compression.to_string())), (compression.to_string(), parsed(name)));
            assert_eq!(compression.to_string().split(':').next(), Some(name));
            for (file, text) in &helps {
                assert!(text.contains(name), "{file} has nothing of {name}");
            }
        }
    }

    #[test]
    fn none_is_a_choice_and_no_compression() {
        for text in ["none", "{'type': 'none'}"] {
            assert_eq!(Compression::choice(text), Ok(None), "{text}");
        }
        for text in ["2bit", "{'type': '2bit'}"] {
            assert_eq!(Compression::choice(text), text.parse().map(Some), "{text}");
        }
        assert!(Compression::choice("{'type': 'none', 'threshold': 1}").is_err());
    }

    #[test]
    fn bad_parameters_are_errors_that_say_what_is_right() {
        for (text, part) in [
            ("none", "the types are fp16, bf16, 2bit"),
            ("3bit", "\"3bit\""),
            ("", "unknown type"),
            ("2bit:0", "must be greater than 0"),
            ("2bit:-1", "must be greater than 0"),
            ("2bit:nan", "must be greater than 0"),
            ("2bit:inf", "must be greater than 0"),
            ("2bit:half", "expected a number"),
            ("2bit:", "expected a number"),
            ("2bit:1:2", "more parameters"),
            ("bf16:1", "more parameters"),
            ("1bit:-0.1", "must not be below 0"),
            ("topk:0", "a ratio of 0"),
            ("topk:1.5", "a ratio of 1.5"),
            ("topk:0.1:1", "a momentum of 1"),
            ("{'threshold': 0.5}", "required parameter type"),
            ("{'type': '2bit', 'ratio': 0.5}", "no parameter \"ratio\""),
            ("{'type'}", "invalid parameters"),
        ] {
            let error = refused(text);
            assert!(error.contains(part) && error.contains("hint:"), "{text}: {error}");
        }
    }
}
