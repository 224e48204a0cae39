//! Charts of `compare` and `advise`: their layout as marks (rectangles, lines and texts), which [`picture`]'s
//! templates write as SVG without a script.
//!
//! Horizontal positions are per cent of the drawing's width and vertical ones are pixels, so a chart fits any
//! width while its text keeps its size. No line crosses a text: texts have bands of their own.

pub mod picture;

use serde::Serialize;

use crate::variant::Family;

/// A mark of a drawing. Its class decides its colour.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "mark", rename_all = "lowercase")]
pub enum Mark {
    Rect {
        class: String,
        y: f64,
        width: f64,
    },
    Line {
        class: String,
        from: (f64, f64),
        to: (f64, f64),
    },
    Dot {
        class: String,
        at: (f64, f64),
    },
    Text {
        class: &'static str,
        anchor: &'static str,
        at: (f64, f64),
        text: String,
        /// More words behind the text, in a softer colour. A phone has no room for them.
        words: String,
    },
}

/// A chart, laid out.
#[derive(Debug, Clone, Serialize)]
pub struct Drawing {
    pub id: &'static str,
    /// The heading, also for screen readers.
    pub title: &'static str,
    pub height: f64,
    pub marks: Vec<Mark>,
}

/// A chart with one bar for each variant.
#[derive(Debug, Clone)]
pub struct Chart {
    pub id: &'static str,
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
pub struct Bar {
    /// The name above the bar.
    pub name: String,
    /// The meaning of the name.
    pub words: String,
    pub family: Family,
    pub value: f64,
    /// The value as text, in the line of the name.
    pub label: String,
    /// Single samples, drawn as ticks.
    pub samples: Vec<f64>,
}

/// A chart with a line for each variant over the number of workers.
#[derive(Debug, Clone)]
pub struct Curves {
    pub id: &'static str,
    pub title: &'static str,
    pub axis: &'static str,
    /// True if the axis of workers is logarithmic: every doubling has the same width.
    pub by_doubling: bool,
    pub of_variants: Vec<Curve>,
    pub tick: fn(f64) -> String,
}

#[derive(Debug, Clone)]
pub struct Curve {
    pub name: String,
    /// `None` for a bound, which is dashed.
    pub family: Option<Family>,
    /// Numbers of workers and values, the fewest workers first.
    pub points: Vec<(usize, f64)>,
    /// A published point beside the measured ones: a circle, with its value behind the name.
    pub published: Option<(usize, f64)>,
}

/// A number of an axis: at most four digits after the point, and no zeros at the end.
pub fn plain(value: f64) -> String {
    let text = format!("{value:.4}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// A number of an axis in per cent.
pub fn percent(value: f64) -> String {
    format!("{} %", plain(value))
}

const ROW: f64 = 46.0;
/// The distance from the top of a row to its bar. The row's text ends above the bar.
const BAR: f64 = 21.0;
const BAR_HEIGHT: f64 = 14.0;
/// The height below the bars, for the axis's numbers and label.
const BELOW: f64 = 44.0;

pub fn text(class: &'static str, anchor: &'static str, x: f64, y: f64, words: &str) -> Mark {
    Mark::Text { class, anchor, at: (x, y), text: words.to_owned(), words: String::new() }
}

fn line(class: &str, from: (f64, f64), to: (f64, f64)) -> Mark {
    Mark::Line { class: class.to_owned(), from, to }
}

impl Chart {
    pub fn drawn(&self) -> Drawing {
        let samples = self.bars.iter().flat_map(|bar| bar.samples.iter().copied().chain([bar.value]));
        let largest = samples.chain(self.reference.iter().map(|(value, _)| *value)).fold(0.0, f64::max);
        let (step, end) = axis(largest);
        let at = |value: f64| (value / end * 1e5).round() / 1e3;
        let top = if self.reference.is_some() { 28.0 } else { 4.0 };
        let bottom = top + ROW * self.bars.len() as f64 - (ROW - BAR - BAR_HEIGHT) + 6.0;
        let ticks: Vec<f64> = (0..=(end / step).round() as usize).map(|index| index as f64 * step).collect();
        let mut marks = Vec::new();
        for (index, bar) in self.bars.iter().enumerate() {
            let y = top + ROW * index as f64;
            let band = (y + BAR - 3.0, y + BAR + BAR_HEIGHT + 3.0);
            let across = |class: &str, x: f64| line(class, (x, band.0), (x, band.1));
            marks.extend(ticks.iter().map(|value| across("grid", at(*value))));
            let class = format!("bar {}", bar.family.class());
            marks.push(Mark::Rect { class, y: y + BAR, width: at(bar.value).max(0.2) });
            marks.extend(bar.samples.iter().map(|sample| {
                let x = at(*sample);
                line("sample", (x, y + BAR - 1.0), (x, y + BAR + BAR_HEIGHT + 1.0))
            }));
            marks.extend(self.reference.iter().map(|(value, _)| across("reference", at(*value))));
            let name = (bar.name.clone(), bar.words.clone());
            marks.push(Mark::Text { class: "name", anchor: "start", at: (0.0, y + 14.0), text: name.0, words: name.1 });
            marks.push(text("value", "end", 100.0, y + 14.0, &bar.label));
        }
        if let Some((value, label)) = &self.reference {
            let x = at(*value);
            marks.push(line("reference", (x, 19.0), (x, 27.0)));
            let (anchor, x) = if x < 25.0 {
                ("start", 0.0)
            } else if x < 60.0 {
                ("middle", x)
            } else {
                ("end", x)
            };
            marks.push(text("reference-label", anchor, x, 13.0, label));
        }
        for (index, value) in ticks.iter().enumerate() {
            let anchor = if index == 0 {
                "start"
            } else if index + 1 == ticks.len() {
                "end"
            } else {
                "middle"
            };
            marks.push(text("tick", anchor, at(*value), bottom + 14.0, &(self.tick)(*value)));
        }
        marks.push(text("axis", "start", 0.0, bottom + 34.0, self.axis));
        Drawing { id: self.id, title: self.title, height: bottom + BELOW, marks }
    }
}

/// The left and right end of the curves, in per cent; the numbers of the axis are left of them, and the names
/// right.
const CURVES: (f64, f64) = (14.0, 58.0);
const CURVES_HEIGHT: f64 = 260.0;
/// The class of a published point: a hollow dot.
pub const PUBLISHED: &str = "published";
/// The distance between the base lines of two names.
const NAME: f64 = 17.0;

impl Curves {
    pub fn drawn(&self) -> Drawing {
        let all = || self.of_variants.iter().flat_map(|curve| curve.points.iter().chain(&curve.published));
        let (step, end) = axis(all().map(|(_, value)| *value).fold(0.0, f64::max));
        let counts: std::collections::BTreeSet<usize> = all().map(|(workers, _)| *workers).collect();
        let (first, last) = (counts.first().copied().unwrap_or(0), counts.last().copied().unwrap_or(1));
        // Names may need more height than the curves.
        let height = CURVES_HEIGHT.max(NAME * self.of_variants.len() as f64);
        let bottom = 8.0 + height;
        let round = |value: f64| (value * 1e3).round() / 1e3;
        let x = |workers: usize| {
            let place = |workers: usize| if self.by_doubling { (workers.max(1) as f64).log2() } else { workers as f64 };
            let width = place(last) - place(first);
            let part = if width > 0.0 { (place(workers) - place(first)) / width } else { 0.0 };
            round(CURVES.0 + part * (CURVES.1 - CURVES.0))
        };
        let y = |value: f64| round(bottom - value / end * height);
        let mut marks = Vec::new();
        for index in 0..=(end / step).round() as usize {
            let value = index as f64 * step;
            marks.push(line("grid", (CURVES.0, y(value)), (CURVES.1, y(value))));
            marks.push(text("tick", "end", CURVES.0 - 1.5, y(value) + 4.0, &(self.tick)(value)));
        }
        let mut shown = f64::NEG_INFINITY;
        for workers in &counts {
            if x(*workers) - shown >= 5.0 {
                shown = x(*workers);
                marks.push(text("tick", "middle", shown, bottom + 18.0, &workers.to_string()));
            }
        }
        marks.push(text("axis", "start", 0.0, bottom + 38.0, self.axis));
        for curve in &self.of_variants {
            let class = curve.family.map_or("reference".to_owned(), |family| format!("curve {}", family.class()));
            let at = |(workers, value): &(usize, f64)| (x(*workers), y(*value));
            marks.extend(curve.points.windows(2).map(|pair| line(&class, at(&pair[0]), at(&pair[1]))));
            let dots = curve.points.iter().filter(|_| curve.family.is_some());
            marks.extend(dots.map(|point| Mark::Dot { class: class.clone(), at: at(point) }));
        }
        // In front of all curves.
        for curve in &self.of_variants {
            let class = curve.family.map_or("", Family::class);
            let circle =
                |(workers, value)| Mark::Dot { class: format!("{PUBLISHED} {class}"), at: (x(workers), y(value)) };
            marks.extend(curve.published.map(circle));
        }
        let mut named: Vec<(f64, &Curve)> =
            self.of_variants.iter().filter_map(|curve| Some((y(curve.points.last()?.1), curve))).collect();
        named.sort_by(|a, b| a.0.total_cmp(&b.0));
        let places = spread(&named.iter().map(|(y, _)| *y).collect::<Vec<_>>(), bottom);
        for ((end, curve), place) in named.iter().zip(places) {
            marks.push(line("leader", (CURVES.1 + 1.0, *end), (CURVES.1 + 3.5, place)));
            let words = curve.published.map_or(String::new(), |(_, value)| (self.tick)(value));
            let at = (CURVES.1 + 4.5, place + 4.0);
            marks.push(Mark::Text { class: "series", anchor: "start", at, text: curve.name.clone(), words });
        }
        Drawing { id: self.id, title: self.title, height: bottom + BELOW, marks }
    }
}

/// Places near `wanted`, which ascends, that are [`NAME`] apart and end at `bottom`.
fn spread(wanted: &[f64], bottom: f64) -> Vec<f64> {
    let mut places = wanted.to_vec();
    for at in 1..places.len() {
        places[at] = places[at].max(places[at - 1] + NAME);
    }
    let mut lowest = bottom;
    for place in places.iter_mut().rev() {
        *place = place.min(lowest);
        lowest = *place - NAME;
    }
    places
}

/// An axis may hold values up to its end times this: a sample of 100.02 % needs no axis to 150 %.
const PAST_END: f64 = 1.004;

/// The step of an axis from zero and its end, a round number, for values up to `largest`.
fn axis(largest: f64) -> (f64, f64) {
    let within = largest / PAST_END;
    let step = tick_step(within);
    (step, (within / step).ceil().max(1.0) * step)
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
    fn a_sample_that_is_hardly_past_a_round_number_makes_no_axis_longer() {
        assert_eq!([100.02, 101.0].map(axis), [(20.0, 100.0), (50.0, 150.0)]);
    }

    fn chart() -> Chart {
        let bar = |value: f64| Bar {
            name: "a".to_owned(),
            words: "what it is".to_owned(),
            family: Family::Allreduce,
            value,
            label: format!("{value} s"),
            samples: vec![value, value * 1.1],
        };
        let (bars, reference) = (vec![bar(2.0), bar(4.0)], Some((1.0, "bound".to_owned())));
        Chart { id: "time", title: "t", axis: "seconds", reference, bars, tick: plain }
    }

    fn curves() -> Curves {
        let curve = |name: &str, family, last| Curve {
            name: name.to_owned(),
            family,
            points: vec![(2, 1.0), (4, 2.0), (8, last)],
            published: family.map(|_| (4, 3.0)),
        };
        let of_variants = vec![
            curve("a", Some(Family::Allreduce), 4.0),
            curve("b", Some(Family::Shared), 4.01),
            curve("bound", None, 0.1),
        ];
        Curves { id: "scaling", title: "t", axis: "workers", by_doubling: false, of_variants, tick: plain }
    }

    #[test]
    fn the_axis_ends_at_a_round_number_and_scales_bars_samples_and_the_reference() {
        let marks = chart().drawn().marks;
        let bars: Vec<f64> = marks
            .iter()
            .filter_map(|mark| match mark {
                Mark::Rect { width, .. } => Some(*width),
                _ => None,
            })
            .collect();
        assert_eq!(bars, [40.0, 80.0], "of an axis that ends at 5");
        let lines = |class: &str| -> Vec<f64> {
            let of = |mark: &Mark| match mark {
                Mark::Line { class: own, from, .. } if own == class => Some(from.0),
                _ => None,
            };
            marks.iter().filter_map(of).collect()
        };
        assert_eq!((lines("sample"), lines("reference")), (vec![40.0, 44.0, 80.0, 88.0], vec![20.0; 3]));
        let last = marks.iter().rev().find(|mark| matches!(mark, Mark::Text { class: "tick", .. }));
        assert_eq!(last, Some(&text("tick", "end", 100.0, 129.0, "5")));
    }

    /// The top and bottom of a text, as a browser draws it at most.
    fn band(mark: &Mark) -> Option<(f64, f64)> {
        match mark {
            Mark::Text { at, .. } => Some((at.1 - 10.0, at.1 + 3.0)),
            _ => None,
        }
    }

    #[test]
    fn no_line_or_bar_of_a_bar_chart_reaches_into_the_height_of_a_text() {
        let marks = chart().drawn().marks;
        for (top, bottom) in marks.iter().filter_map(band) {
            for mark in &marks {
                let (from, to) = match mark {
                    Mark::Line { from, to, .. } => (from.1, to.1),
                    Mark::Rect { y, .. } => (*y, y + BAR_HEIGHT),
                    _ => continue,
                };
                assert!(to <= top || from >= bottom, "{mark:?} crosses a text from {top} to {bottom}");
            }
        }
    }

    #[test]
    fn curves_have_their_names_beside_them_apart_from_each_other() {
        let drawing = curves().drawn();
        let names: Vec<(f64, f64)> = drawing
            .marks
            .iter()
            .filter_map(|mark| match mark {
                Mark::Text { class: "series", at, .. } => Some(*at),
                _ => None,
            })
            .collect();
        assert_eq!(names.len(), 3);
        assert!(names.windows(2).all(|pair| pair[1].1 - pair[0].1 >= NAME), "{names:?}");
        assert!(names.iter().all(|(x, y)| *x > CURVES.1 && *y < drawing.height - BELOW + 5.0), "{names:?}");
        for mark in &drawing.marks {
            if let Mark::Line { class, from, to } = mark {
                assert!(class == "leader" || from.0.max(to.0) <= CURVES.1, "{mark:?} reaches into the names");
                assert!(class == "leader" || from.0.min(to.0) >= CURVES.0, "{mark:?} reaches into the axis");
            }
        }
        let dots = |part: &str| {
            drawing.marks.iter().filter(|it| matches!(it, Mark::Dot { class, .. } if class.starts_with(part))).count()
        };
        assert_eq!((dots("curve"), dots(PUBLISHED)), (6, 2));
    }

    #[test]
    fn by_doubling_every_number_of_workers_is_as_far_from_the_next() {
        let ticks = |by_doubling| {
            let marks = Curves { by_doubling, ..curves() }.drawn().marks;
            let of = |mark: &Mark| match mark {
                Mark::Text { class: "tick", anchor: "middle", at, .. } => Some(at.0),
                _ => None,
            };
            marks.iter().filter_map(of).collect::<Vec<f64>>()
        };
        assert_eq!((ticks(true), ticks(false)), (vec![14.0, 36.0, 58.0], vec![14.0, 28.667, 58.0]));
    }

    #[test]
    fn names_that_want_one_place_get_places_side_by_side() {
        assert_eq!(spread(&[10.0, 11.0, 50.0], 100.0), [10.0, 27.0, 50.0]);
        assert_eq!(spread(&[95.0, 96.0, 97.0], 100.0), [66.0, 83.0, 100.0]);
    }
}
