//! Sizes such as `4`, `64KiB` and `25MB`. MB is 10^6 bytes, MiB is 2^20.

use ringpull_base::{DType, Error, Result};

const UNITS: [(&str, u64); 8] = [
    ("", 1),
    ("B", 1),
    ("kB", 1000),
    ("KB", 1000),
    ("KiB", 1 << 10),
    ("MB", 1_000_000),
    ("MiB", 1 << 20),
    ("GB", 1_000_000_000),
];
/// A pebibyte: no buffer is larger.
const LARGEST: usize = 1 << 50;
const GIB: (&str, u64) = ("GiB", 1 << 30);

/// Bytes from `25MB`, `64KiB`, `0.5GB` or a plain number. The result must be a whole number of bytes.
pub fn parse_size(text: &str) -> Result<usize> {
    let wrong = |why: &str| {
        Error::argument(
            format!("invalid size {text:?}: it {why}"),
            "write a number and a unit: 4, 64KiB, 25MB (MB is 10^6 bytes, MiB is 2^20; also B, KB, GB, GiB)",
        )
    };
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let (_, factor) = UNITS
        .into_iter()
        .chain([GIB])
        .find(|(name, _)| *name == unit)
        .ok_or_else(|| wrong(&format!("has the unknown unit {unit:?}")))?;
    if let Ok(whole) = number.parse::<u64>() {
        let bytes = whole.checked_mul(factor).and_then(|bytes| usize::try_from(bytes).ok());
        return bytes.filter(|bytes| *bytes <= LARGEST).ok_or_else(|| wrong("is too large"));
    }
    let bytes = number.parse::<f64>().map_err(|_| wrong("has no number"))? * factor as f64;
    if bytes.fract() != 0.0 || bytes > 1e15 {
        return Err(wrong("is not a whole number of bytes"));
    }
    Ok(bytes as usize)
}

/// The number of elements of a buffer of `bytes` bytes.
pub fn elements(bytes: usize, dtype: DType) -> Result<usize> {
    let size = dtype.size_bytes();
    if bytes > 0 && bytes.is_multiple_of(size) {
        return Ok(bytes / size);
    }
    Err(Error::argument(
        format!("invalid size of {bytes} bytes: expected whole {dtype} elements"),
        format!("give a multiple of {size} bytes, at least {size}"),
    ))
}

/// Sizes separated by commas, at least one.
pub fn parse_sizes(text: &str) -> Result<Vec<usize>> {
    text.split(',').map(|part| parse_size(part.trim())).collect()
}

/// Bytes as text, in decimal units and three digits: `25 MB`, `138 kB`, `4 B`.
pub fn format_size(bytes: f64) -> String {
    let (value, unit) = match bytes {
        b if b < 1e3 => return format!("{b:.0} B"),
        b if b < 1e6 => (b / 1e3, "kB"),
        b if b < 1e9 => (b / 1e6, "MB"),
        b => (b / 1e9, "GB"),
    };
    format!("{} {unit}", three_digits(value))
}

/// A payload in binary units if it is a whole number of them, such as `64 KiB`; else as [`format_size`].
pub fn format_payload(bytes: u64) -> String {
    let binary = [GIB, ("MiB", 1 << 20), ("KiB", 1 << 10)];
    match binary.iter().find(|(_, unit)| bytes > 0 && bytes.is_multiple_of(*unit)) {
        Some((name, unit)) if !bytes.is_multiple_of(1000) => format!("{} {name}", bytes / unit),
        _ => format_size(bytes as f64),
    }
}

/// A positive number with three significant digits and no trailing zeros after the point.
fn three_digits(value: f64) -> String {
    let decimals = usize::from(value < 10.0) + usize::from(value < 100.0);
    let text = format!("{value:.decimals$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimal_and_binary_units_differ() {
        assert_eq!(parse_sizes("4,64KiB,25MB,1MiB, 2GB").unwrap(), [4, 65_536, 25_000_000, 1_048_576, 2_000_000_000]);
        assert_eq!(parse_size("0.5MB").unwrap(), 500_000);
        assert_eq!(parse_size("1GiB").unwrap(), 1 << 30);
    }

    #[test]
    fn payloads_are_printed_as_they_are_written() {
        for name in ["4 B", "1 KiB", "64 KiB", "1 MiB", "3 GiB", "25 MB", "100 MB", "1 GB"] {
            let bytes = parse_size(&name.replace(' ', "")).unwrap();
            assert_eq!(format_payload(bytes as u64), name);
        }
    }

    #[test]
    fn an_invalid_size_is_an_error_that_lists_the_units() {
        let wrong = ",MB,25mb,25 MB x,1.0000001KB,-4,25MBs,99999999999GB,9999999999GB,18446744073709551615";
        for wrong in wrong.split(',') {
            let error = parse_size(wrong).unwrap_err().to_string();
            assert!(error.contains("MiB is 2^20") && error.contains(&format!("{wrong:?}")), "{error}");
        }
        assert!(parse_sizes("4,,5").is_err());
    }

    #[test]
    fn sizes_are_printed_with_three_digits() {
        let shown = [4.0, 999.0, 65_536.0, 25e6, 43_750_000.0, 553_430_176.0, 2.5e9].map(format_size);
        assert_eq!(shown, ["4 B", "999 B", "65.5 kB", "25 MB", "43.8 MB", "553 MB", "2.5 GB"]);
    }
}
