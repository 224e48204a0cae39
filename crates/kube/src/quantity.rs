//! Kubernetes' quantities: `500m`, `2`, `1.5`, `8Gi`, `64M`, `1e3`.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;

use ringpull_base::{Error, Result};

/// A positive quantity, kept as the text that it was read from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Quantity {
    text: String,
}

/// The suffixes of the powers of 1000, from the -3rd on. With an `i` they are powers of 1024.
const SUFFIXES: [&str; 10] = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"];

impl Quantity {
    /// The number that the quantity stands for.
    pub fn value(&self) -> f64 {
        value_of(&self.text).unwrap_or(0.0)
    }

    /// Reads an amount of memory of at least a mebibyte: `512m` would be half a byte.
    pub fn memory(text: &str) -> Result<Self> {
        let quantity: Quantity = text.parse()?;
        if quantity.value() < 1024.0 * 1024.0 {
            let number = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
            return Err(Error::argument(
                format!("{text:?} of memory is only {} bytes", quantity.value()),
                format!("write memory in Mi or Gi: {number}Mi or {number}Gi (m is a thousandth)"),
            ));
        }
        Ok(quantity)
    }

    /// Reads a number of cores, at least a thousandth.
    pub fn cpus(text: &str) -> Result<Self> {
        let quantity: Quantity = text.parse()?;
        if !(0.001..=1e6).contains(&quantity.value()) {
            return Err(Error::argument(
                format!("{text:?} is not a number of cores"),
                "write cores as 2, 0.5 or 500m (thousandths)",
            ));
        }
        Ok(quantity)
    }
}

fn value_of(text: &str) -> Option<f64> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    if !number.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    let number: f64 = number.parse().ok()?;
    // Powers of 1024 begin with Ki.
    let (name, base, least) = match suffix.strip_suffix('i') {
        Some("K") => ("k", 1024f64, 4),
        Some(name) if name != "k" => (name, 1024.0, 4),
        _ => (suffix, 1000.0, 0),
    };
    let mut places = (0..).zip(SUFFIXES);
    if let Some((at, _)) = places.find(|(at, other)| *other == name && *at >= least) {
        return Some(number * base.powi(at - 3));
    }
    let exponent: i32 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
    Some(number * 10f64.powi(exponent))
}

impl FromStr for Quantity {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        if value_of(text).is_some_and(|value| value > 0.0 && value.is_finite()) {
            return Ok(Quantity { text: text.to_owned() });
        }
        let near = text.trim().trim_end_matches(['B', 'b']).replace(' ', "");
        let near = if value_of(&near).is_some_and(|value| value > 0.0) {
            near
        } else {
            let upper = near.to_uppercase();
            if value_of(&upper).is_some_and(|value| value > 0.0) { upper } else { "8Gi".to_owned() }
        };
        Err(Error::argument(
            format!("{text:?} is not a quantity"),
            format!("write {near}: a number above 0, directly followed by m, k, M, G, T, Ki, Mi, Gi, Ti or nothing"),
        ))
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantity_is_a_number_and_a_suffix() {
        let values = ["2", "500m", "1.5", "8Gi", "64M", "1e3", "2k", "1Ki", "1n"]
            .map(|text| text.parse::<Quantity>().unwrap().value());
        assert_eq!(values, [2.0, 0.5, 1.5, 8_589_934_592.0, 64e6, 1000.0, 2000.0, 1024.0, 1e-9]);
        assert_eq!("8Gi".parse::<Quantity>().unwrap().to_string(), "8Gi");
    }

    #[test]
    fn text_that_is_not_a_quantity_is_an_error_that_suggests_one() {
        for text in ["ki", "Kim", "mi", "i", "1e", "K"] {
            assert!(format!("1{text}").parse::<Quantity>().is_err(), "{text}");
        }
        for (text, near) in [
            ("8GB", "8G"),
            ("8 Gi", "8Gi"),
            ("4gb", "4G"),
            ("", "8Gi"),
            ("-1", "8Gi"),
            ("0", "8Gi"),
            ("GiB", "8Gi"),
            ("1.2.3", "8Gi"),
        ] {
            let error = text.parse::<Quantity>().unwrap_err().to_string();
            assert!(error.contains(near) && error.contains("hint: "), "{text}: {error}");
        }
    }

    #[test]
    fn a_thousandth_of_a_byte_and_a_billion_cores_are_errors() {
        assert!(Quantity::memory("512m").unwrap_err().to_string().contains("512Mi"));
        assert!(Quantity::memory("512Mi").is_ok());
        assert!(Quantity::cpus("8Gi").unwrap_err().to_string().contains("500m"));
        assert!(Quantity::cpus("250m").is_ok());
    }
}
