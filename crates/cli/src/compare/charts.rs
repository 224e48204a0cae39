//! Horizontal bar charts as inline SVG, without a script and at any width.
//!
//! Positions along the axis are per cent of the drawing's width and heights are pixels, so the browser fits a chart into a
//! phone and a laptop alike while its text keeps its size. Colours are classes that the page's style sheet fills in, light
//! or dark. Each bar is labelled directly: its name above it, its value at its end.

use std::fmt::Write as _;

/// A chart: what it shows and one bar for each variant.
#[derive(Debug, Clone)]
pub struct Chart {
    /// The element's id.
    pub id: &'static str,
    /// What a screen reader says first.
    pub title: &'static str,
    /// The axis in words, with its unit.
    pub axis: &'static str,
    /// A line across all bars.
    pub reference: Option<Reference>,
    /// The bars, from the top.
    pub bars: Vec<Bar>,
    /// How the axis writes its numbers.
    pub tick: fn(f64) -> String,
}

/// A line across all bars, such as a bound.
#[derive(Debug, Clone)]
pub struct Reference {
    /// Where.
    pub value: f64,
    /// What it is.
    pub label: String,
}

/// One bar.
#[derive(Debug, Clone)]
pub struct Bar {
    /// The name above the bar.
    pub name: String,
    /// The class that colours it.
    pub class: &'static str,
    /// How long.
    pub value: f64,
    /// The value in words, at the bar's end.
    pub label: String,
    /// Single samples, drawn as ticks.
    pub samples: Vec<f64>,
}

/// A number of an axis: at most four digits after the point, and no zeros at the end.
pub(super) fn plain(value: f64) -> String {
    let text = format!("{value:.4}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// The axis ends here, in per cent: what is left holds the values' labels.
const AXIS_PERCENT: f64 = 76.0;
const TOP: f64 = 26.0;
const ROW: f64 = 46.0;
const BAR: f64 = 16.0;

impl Chart {
    /// The chart as an `svg` element.
    pub fn svg(&self) -> String {
        let largest = self
            .bars
            .iter()
            .flat_map(|bar| bar.samples.iter().copied().chain([bar.value]))
            .chain(self.reference.iter().map(|reference| reference.value))
            .fold(0.0, f64::max);
        let step = tick_step(largest);
        let end = (largest / step).ceil().max(1.0) * step;
        let at = |value: f64| value / end * AXIS_PERCENT;
        let bottom = TOP + ROW * self.bars.len() as f64;
        let mut svg = format!(
            "<svg id=\"{}\" class=\"chart\" role=\"img\" aria-label=\"{}\" width=\"100%\" height=\"{}\">",
            self.id,
            escaped(self.title),
            bottom + 44.0
        );
        for index in 0..=(end / step).round() as usize {
            let value = index as f64 * step;
            let (x, anchor) = (at(value), if index == 0 { "start" } else { "middle" });
            line(&mut svg, "grid", x, TOP, bottom);
            text(&mut svg, "tick", anchor, x, bottom + 16.0, &(self.tick)(value));
        }
        text(&mut svg, "axis", "start", 0.0, bottom + 36.0, self.axis);
        let tops = |index: usize| TOP + ROW * index as f64;
        for (index, bar) in self.bars.iter().enumerate() {
            let y = tops(index) + 21.0;
            write_to(
                &mut svg,
                format_args!(
                    "<rect class=\"bar {}\" x=\"0\" y=\"{y}\" width=\"{:.3}%\" height=\"{BAR}\" rx=\"2\"/>",
                    bar.class,
                    at(bar.value).max(0.2)
                ),
            );
            for sample in &bar.samples {
                line(&mut svg, "sample", at(*sample), y - 1.0, y + BAR + 1.0);
            }
        }
        if let Some(reference) = &self.reference {
            let x = at(reference.value);
            line(&mut svg, "reference", x, TOP - 6.0, bottom);
            let (anchor, x) = match x {
                ..25.0 => ("start", 0.0),
                60.0.. => ("end", x),
                _ => ("middle", x),
            };
            text(&mut svg, "reference-label", anchor, x, TOP - 12.0, &reference.label);
        }
        // Words come last, so that no line runs through them.
        for (index, bar) in self.bars.iter().enumerate() {
            let furthest = bar.samples.iter().copied().fold(bar.value, f64::max);
            text(&mut svg, "name", "start", 0.0, tops(index) + 15.0, &bar.name);
            write_to(
                &mut svg,
                format_args!(
                    "<text class=\"value\" x=\"{:.3}%\" dx=\"7\" y=\"{}\">{}</text>",
                    at(furthest),
                    tops(index) + 17.5 + BAR,
                    escaped(&bar.label)
                ),
            );
        }
        svg.push_str("</svg>");
        svg
    }
}

/// A step of 1, 2 or 5 times a power of ten that divides `largest` into three to five parts: few enough for a phone.
fn tick_step(largest: f64) -> f64 {
    if largest <= 0.0 {
        return 1.0;
    }
    let power = 10f64.powf((largest / 4.0).log10().floor());
    [1.0, 2.0, 5.0, 10.0].into_iter().map(|factor| factor * power).find(|step| largest / step <= 5.0).unwrap_or(largest)
}

fn line(svg: &mut String, class: &str, x: f64, from: f64, to: f64) {
    write_to(svg, format_args!("<line class=\"{class}\" x1=\"{x:.3}%\" x2=\"{x:.3}%\" y1=\"{from}\" y2=\"{to}\"/>"));
}

fn text(svg: &mut String, class: &str, anchor: &str, x: f64, y: f64, words: &str) {
    write_to(
        svg,
        format_args!(
            "<text class=\"{class}\" text-anchor=\"{anchor}\" x=\"{x:.3}%\" y=\"{y}\">{}</text>",
            escaped(words)
        ),
    );
}

fn write_to(svg: &mut String, words: std::fmt::Arguments<'_>) {
    svg.write_fmt(words).expect("writing to a string cannot fail");
}

/// Text as it may stand in an element or an attribute.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_axis_has_three_to_five_round_steps() {
        for (largest, step) in [(1.0, 0.2), (8.4, 2.0), (0.037, 0.01), (1.75, 0.5), (12e6, 5e6), (0.0, 1.0)] {
            assert!((tick_step(largest) / step - 1.0).abs() < 1e-9, "{largest}: {}", tick_step(largest));
        }
    }

    #[test]
    fn every_bar_sample_and_label_is_drawn_and_escaped() {
        let bar = |name: &str, value: f64| Bar {
            name: name.to_owned(),
            class: "allreduce",
            value,
            label: format!("{value} s"),
            samples: vec![value, value * 1.1],
        };
        let chart = Chart {
            id: "time",
            title: "a \"title\"",
            axis: "seconds",
            reference: Some(Reference { value: 1.0, label: "bound".to_owned() }),
            bars: vec![bar("a<b", 2.0), bar("c", 4.0)],
            tick: |value| value.to_string(),
        };
        let svg = chart.svg();
        assert_eq!(svg.matches("<rect").count(), 2);
        assert_eq!(svg.matches("class=\"sample\"").count(), 4);
        assert!(svg.contains("a&lt;b") && svg.contains("a &quot;title&quot;") && svg.contains(">bound<"));
        assert!(svg.contains("width=\"60.800%\""), "4 of an axis that ends at 5: {svg}");
    }
}
