//! The formats of times, counts and tables.

use comfy_table::{CellAlignment, Table, presets};

/// A time or a difference of times in three digits: `1.83 s`, `25.1 ms`, `-340 us`.
pub(crate) fn format_seconds(seconds: f64) -> String {
    let (value, unit) = match seconds.abs() {
        s if s >= 1.0 => (s, "s"),
        s if s >= 1e-3 => (s * 1e3, "ms"),
        s => (s * 1e6, "us"),
    };
    let decimals = usize::from(value < 10.0) + usize::from(value < 100.0);
    format!("{}{value:.decimals$} {unit}", if seconds < 0.0 { "-" } else { "" })
}

/// `1 round`, `3 rounds`.
pub(crate) fn several(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// A table with a heading for a terminal. The first `words` columns are aligned left, the others right.
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
