//! The rate of a link, such as `200mbit`, `1gbit` or `none`, and the settings of a shaper for it.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use ringpull_base::{Error, Result};

/// The number of bits that a link carries each second in each direction; unknown or unlimited for `none`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct LinkRate {
    bits_per_s: Option<u64>,
}

impl LinkRate {
    /// Makes a link of `bits_per_s` bits per second.
    pub const fn of_bits(bits_per_s: u64) -> Self {
        LinkRate { bits_per_s: Some(bits_per_s) }
    }

    /// Bits a second, `None` for a link without a limit.
    pub fn bits_per_s(self) -> Option<u64> {
        self.bits_per_s
    }

    /// Bytes a second, `None` for a link without a limit.
    pub fn bytes_per_s(self) -> Option<f64> {
        self.bits_per_s.map(|bits| bits as f64 / 8.0)
    }

    /// The shaper's burst: a millisecond's worth, and at least 128 KiB. With less the kernel cuts every large
    /// packet into small ones, and the link reaches a fraction of its rate.
    pub fn burst_bytes(self) -> Option<u64> {
        self.bits_per_s.map(|bits| (bits / 8 / 1000).max(128 << 10))
    }

    /// The bytes that may wait at a port of a switch before packets are dropped: 50 ms of the rate, and at
    /// least 1 MiB.
    pub fn switch_queue_bytes(self) -> u64 {
        self.bits_per_s.map_or(0, |bits| bits / 8 / 20).max(1 << 20)
    }

    /// The bytes that may wait at a host's own interface: 1,000 packets (Linux's default) of 64 KiB (the most
    /// that TCP hands over at once). So a host drops none of its own packets, however many connections it
    /// sends on.
    pub const HOST_QUEUE_BYTES: u64 = 1000 << 16;
}

const UNITS: [(&str, u64); 4] = [("gbit", 1_000_000_000), ("mbit", 1_000_000), ("kbit", 1_000), ("bit", 1)];

impl FromStr for LinkRate {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        if text == "none" {
            return Ok(LinkRate::default());
        }
        let bad = || {
            Error::argument(
                format!("invalid link rate {text:?}"),
                "give a number and kbit, mbit or gbit, such as 200mbit or 2.5gbit, or none for no limit",
            )
        };
        let (number, unit) =
            UNITS.iter().find_map(|(name, unit)| Some((text.strip_suffix(name)?, *unit))).ok_or_else(bad)?;
        let bits = number.parse::<f64>().map_err(|_| bad())? * unit as f64;
        // The shaper counts whole bytes. Below a kilobit per second every timeout would be too short.
        if bits.is_finite() && (1e3..=1e13).contains(&bits) {
            Ok(LinkRate::of_bits(bits.round() as u64))
        } else {
            Err(bad())
        }
    }
}

/// Makes serde write a type as its text, and read it by parsing this text.
macro_rules! as_text {
    ($type:ty) => {
        impl TryFrom<String> for $type {
            type Error = ringpull_base::Error;

            fn try_from(text: String) -> ringpull_base::Result<Self> {
                text.parse()
            }
        }

        impl From<$type> for String {
            fn from(value: $type) -> Self {
                value.to_string()
            }
        }
    };
}
pub(crate) use as_text;

as_text!(LinkRate);

impl fmt::Display for LinkRate {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(bits) = self.bits_per_s else { return out.pad("none") };
        let whole = UNITS.iter().find(|(_, unit)| bits % unit == 0).unwrap_or(&("bit", 1));
        out.pad(&format!("{}{}", bits / whole.1, whole.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_printed_as_it_is_read() {
        for text in ["200mbit", "1gbit", "2500mbit", "56kbit", "1001bit", "none"] {
            assert_eq!(text.parse::<LinkRate>().unwrap().to_string(), text);
        }
        assert_eq!("2.5gbit".parse::<LinkRate>().unwrap(), LinkRate::of_bits(2_500_000_000));
    }

    #[test]
    fn an_invalid_rate_is_an_error_that_shows_a_valid_one() {
        for text in ["", "200", "mbit", "-1mbit", "0gbit", "1e99gbit", "nanmbit", "fast", "200 MB"] {
            let error = text.parse::<LinkRate>().unwrap_err().to_string();
            assert!(error.contains("200mbit"), "{text}: {error}");
        }
    }

    #[test]
    fn the_burst_never_falls_below_128_kib() {
        assert_eq!(LinkRate::of_bits(200_000_000).burst_bytes(), Some(128 << 10));
        assert_eq!(LinkRate::of_bits(10_000_000_000).burst_bytes(), Some(1_250_000));
        assert_eq!(LinkRate::default().burst_bytes(), None);
    }
}
