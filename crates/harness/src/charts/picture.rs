//! A chart as a file of its own, and pages that draw charts by the same templates.

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{AutoEscape, Environment as Templates, Value, context};

use ringpull_base::{Error, Result};

use crate::charts::Drawing;
use crate::variant::Family;

const CHART: &str = include_str!("chart.svg");

/// Fills the template `text`; errors call it `name`. It may include `drawing.svg`, which draws the marks of a
/// chart.
pub fn filled(name: &str, text: &str, values: Value) -> Result<String> {
    let mut templates = Templates::new();
    let failed = |cause: minijinja::Error| Error::io("render", name, &std::io::Error::other(cause));
    templates.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build().map_err(failed)?);
    for (name, text) in [(name, text), ("drawing.svg", include_str!("drawing.svg"))] {
        templates.add_template(name, text).map_err(failed)?;
    }
    // Names that end in .svg are not escaped unless this is said.
    templates.set_auto_escape_callback(|_| AutoEscape::Html);
    templates.get_template(name).map_err(failed)?.render(values).map_err(failed)
}

/// A chart as a file, with a legend of these families.
pub fn framed(
    chart: &Drawing,
    subtitle: &str,
    families: impl Iterator<Item = (Family, &'static str)>,
) -> Result<String> {
    let lines = wrapped(subtitle);
    let below = 52 + 18 * lines.len();
    let legend: Vec<Value> = (0..)
        .zip(families)
        .map(|(index, (family, words))| {
            context! { class => Serde(family), words, x => 24 + 356 * (index % 2), y => below + 20 * (index / 2) }
        })
        .collect();
    let top = below + 20 + 20 * legend.len().div_ceil(2);
    let values = context! { title => chart.title, subtitle => lines, families => legend, top, chart => Serde(chart) };
    filled("chart.svg", CHART, values)
}

/// The longest line of a subtitle, in characters. A picture is wide enough for it.
const SUBTITLE: usize = 100;

/// Divides a subtitle into lines that fit the width of a picture. Lines end after commas; text between two
/// commas is not divided.
fn wrapped(subtitle: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for part in subtitle.split_inclusive(", ") {
        match lines.last_mut() {
            Some(line) if line.chars().chain(part.trim_end().chars()).count() <= SUBTITLE => line.push_str(part),
            _ => lines.push(part.to_owned()),
        }
    }
    lines.into_iter().map(|line| line.trim_end().to_owned()).collect()
}
