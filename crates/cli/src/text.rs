//! How tables, sentences and pages write times, counts and rows.

use comfy_table::{CellAlignment, Table, presets};

/// A time in three digits: `1.83 s`, `25.1 ms`, `340 us`.
pub(crate) fn format_seconds(seconds: f64) -> String {
    let (value, unit) = match seconds {
        s if s >= 1.0 => (s, "s"),
        s if s >= 1e-3 => (s * 1e3, "ms"),
        s => (s * 1e6, "us"),
    };
    let decimals = usize::from(value < 10.0) + usize::from(value < 100.0);
    format!("{value:.decimals$} {unit}")
}

/// A difference of times, which may be negative.
pub(crate) fn format_signed_seconds(seconds: f64) -> String {
    format!("{}{}", if seconds < 0.0 { "-" } else { "" }, format_seconds(seconds.abs()))
}

/// `1 round`, `3 rounds`.
pub(crate) fn several(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// Rows under a heading, in columns for a terminal. The first `words` columns are set left, numbers right.
pub(crate) fn grid<S: ToString>(head: impl IntoIterator<Item = S>, rows: Vec<Vec<String>>, words: usize) -> String {
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
