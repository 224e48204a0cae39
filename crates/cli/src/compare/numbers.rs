//! How tables, sentences and pages write a time and a count.

/// A time in three digits: `1.83 s`, `25.1 ms`, `340 us`.
pub fn format_seconds(seconds: f64) -> String {
    let (value, unit) = match seconds {
        s if s >= 1.0 => (s, "s"),
        s if s >= 1e-3 => (s * 1e3, "ms"),
        s => (s * 1e6, "us"),
    };
    let decimals = usize::from(value < 10.0) + usize::from(value < 100.0);
    format!("{value:.decimals$} {unit}")
}

/// `1 round`, `3 rounds`.
pub fn several(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}
