//! The layout of horizontal bar charts, which the page's template draws as SVG without a script.
//!
//! Positions along the axis are per cent of the drawing's width and heights are pixels, so a chart fits any
//! width while its text keeps its size. Each bar has its name above it and its value at its end.

use minijinja::value::Serde;
use minijinja::{Value, context};

use crate::variant::Family;

/// A chart with one bar for each variant.
#[derive(Debug, Clone)]
pub(crate) struct Chart {
    pub id: &'static str,
    /// The heading, also for screen readers.
    pub title: &'static str,
    /// The label of the axis, with its unit.
    pub axis: &'static str,
    /// A line across all bars, such as a bound: its value and its label.
    pub reference: Option<(f64, String)>,
    pub bars: Vec<Bar>,
    /// The format of the axis's numbers.
    pub tick: fn(f64) -> String,
}

#[derive(Debug, Clone)]
pub(crate) struct Bar {
    /// The name above the bar.
    pub name: String,
    pub family: Family,
    pub value: f64,
    /// The value as text, at the bar's end.
    pub label: String,
    /// Single samples, drawn as ticks.
    pub samples: Vec<f64>,
}

/// A number of an axis: at most four digits after the point, and no zeros at the end.
pub(super) fn plain(value: f64) -> String {
    let text = format!("{value:.4}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// The end of the axis, in per cent; the rest is for the values' labels.
const AXIS_PERCENT: f64 = 76.0;
const TOP: usize = 26;
const ROW: usize = 46;

impl Chart {
    /// Its layout, for the template.
    pub(super) fn drawn(&self) -> Value {
        let samples = self.bars.iter().flat_map(|bar| bar.samples.iter().copied().chain([bar.value]));
        let largest = samples.chain(self.reference.iter().map(|(value, _)| *value)).fold(0.0, f64::max);
        let step = tick_step(largest);
        let end = (largest / step).ceil().max(1.0) * step;
        let at = |value: f64| (value / end * AXIS_PERCENT * 1e3).round() / 1e3;
        let mark = |value: f64, label: &str| context! { at => at(value), label };
        let ticks = (0..=(end / step).round() as usize).map(|index| index as f64 * step);
        let bars = self.bars.iter().enumerate().map(|(index, bar)| {
            context! {
                name => bar.name.as_str(),
                class => Serde(bar.family),
                label => bar.label.as_str(),
                top => TOP + ROW * index,
                at => at(bar.value).max(0.2),
                samples => bar.samples.iter().map(|sample| at(*sample)).collect::<Vec<_>>(),
                end => at(bar.samples.iter().copied().fold(bar.value, f64::max)),
            }
        });
        context! {
            id => self.id,
            title => self.title,
            axis => self.axis,
            height => TOP + ROW * self.bars.len() + 44,
            ticks => ticks.map(|value| mark(value, &(self.tick)(value))).collect::<Vec<_>>(),
            reference => self.reference.as_ref().map(|(value, label)| mark(*value, label)),
            bars => bars.collect::<Vec<_>>(),
        }
    }
}

/// A step of 1, 2 or 5 times a power of ten that divides `largest` into three to five parts: few enough for a
/// phone.
fn tick_step(largest: f64) -> f64 {
    if largest <= 0.0 {
        return 1.0;
    }
    let power = 10f64.powf((largest / 4.0).log10().floor());
    [1.0, 2.0, 5.0, 10.0].into_iter().map(|factor| factor * power).find(|step| largest / step <= 5.0).unwrap_or(largest)
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
    fn the_axis_ends_at_a_round_number_and_scales_bars_samples_and_the_reference() {
        let bar = |value: f64| Bar {
            name: "a".to_owned(),
            family: Family::Allreduce,
            value,
            label: format!("{value} s"),
            samples: vec![value, value * 1.1],
        };
        let (bars, reference) = (vec![bar(2.0), bar(4.0)], Some((1.0, "bound".to_owned())));
        let chart = Chart { id: "time", title: "t", axis: "seconds", reference, bars, tick: plain };
        let drawn = chart.drawn();
        let of = |path: &[&str]| {
            path.iter().fold(drawn.clone(), |value, name| match name.parse::<usize>() {
                Ok(index) => value.get_item_by_index(index).unwrap(),
                Err(_) => value.get_attr(name).unwrap(),
            })
        };
        let bar = ["top", "at", "end"].map(|name| of(&["bars", "1", name]).to_string());
        assert_eq!(bar, ["72", "60.8", "66.88"], "4 and 4.4 of an axis that ends at 5");
        let others = [of(&["reference", "at"]), of(&["height"]), of(&["ticks", "5", "label"])];
        assert_eq!(others.map(|value| value.to_string()), ["15.2", "162", "5"]);
    }
}
