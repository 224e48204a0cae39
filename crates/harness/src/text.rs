//! The formats of times, counts and tables, JSON, and files of text.

use std::path::Path;

use comfy_table::{CellAlignment, Table, presets};

use ringpull_base::{Error, Result};

/// A time or a difference of times with three digits: `1.83 s`, `25.1 ms`, `-340 us`.
pub fn format_seconds(seconds: f64) -> String {
    let (value, unit) = match seconds.abs() {
        s if s >= 1.0 => (s, "s"),
        s if s >= 1e-3 => (s * 1e3, "ms"),
        s => (s * 1e6, "us"),
    };
    let decimals = usize::from(value < 10.0) + usize::from(value < 100.0);
    format!("{}{value:.decimals$} {unit}", if seconds < 0.0 { "-" } else { "" })
}

/// Seconds from `50us`, `0.2ms` or `1s`.
pub fn parse_seconds(text: &str) -> Result<f64> {
    const UNITS: [(&str, f64); 4] = [("ns", 1e-9), ("us", 1e-6), ("ms", 1e-3), ("s", 1.0)];
    let parsed = UNITS.iter().find_map(|(unit, seconds)| Some(text.strip_suffix(unit)?.parse::<f64>().ok()? * seconds));
    parsed.filter(|seconds| (0.0..=3600.0).contains(seconds)).ok_or_else(|| {
        Error::argument(format!("invalid time {text:?}"), "give a number and its unit, ns, us, ms or s, such as 50us")
    })
}

/// `1 round`, `3 rounds`.
pub fn several(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// A table with a heading for a terminal. The first `words` columns are aligned left, the others right.
pub fn grid<S: ToString>(head: impl IntoIterator<Item = S>, rows: Vec<Vec<String>>, words: usize) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(head.into_iter().map(|cell| cell.to_string()));
    table.add_rows(rows);
    for (index, column) in table.column_iter_mut().enumerate() {
        column.set_padding((u16::from(index > 0), 1));
        if index >= words {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>().join("\n")
}

/// `value` as indented JSON.
pub fn to_json(value: &(impl serde::Serialize + ?Sized)) -> Result<String> {
    serde_json::to_string_pretty(value).map_err(|cause| Error::io("write", "JSON", &std::io::Error::other(cause)))
}

/// `value` as one line of JSON.
pub fn to_json_line(value: &(impl serde::Serialize + ?Sized)) -> Result<String> {
    serde_json::to_string(value).map_err(|cause| Error::io("write", "JSON", &std::io::Error::other(cause)))
}

/// Writes a file.
pub fn write(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).map_err(|cause| Error::io("write", path.display(), &cause))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_a_unit() {
        for (text, seconds) in [("50us", 50e-6), ("0.2ms", 0.2e-3), ("1s", 1.0), ("7ns", 7e-9), ("0us", 0.0)] {
            assert!((parse_seconds(text).unwrap() - seconds).abs() < 1e-12, "{text}");
        }
        for text in ["", "50", "us", "-1us", "1h", "4000s", "nans"] {
            assert!(parse_seconds(text).unwrap_err().to_string().contains("such as 50us"), "{text}");
        }
    }
}
