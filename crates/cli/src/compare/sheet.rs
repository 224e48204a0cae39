//! The report on one page of PDF: verdict, table, charts, machine and command.
//!
//! Its fonts are those that every reader of PDF has, so a machine without fonts can write it and none is in
//! the file. Lengths are points, counted from the top left corner of the page.

use pdf_writer::types::LineCapStyle;
use pdf_writer::{Content, Finish, Name, Pdf, Rect, Ref, Str, TextStr};

use crate::compare::charts::{Drawing, Mark, PUBLISHED};
use crate::compare::columns::{Column, columns};
use crate::compare::report::{drawings, headline, place};
use crate::compare::results::Comparison;
use crate::compare::table::order;

/// A4.
const PAGE: (f32, f32) = (595.0, 842.0);
const MARGIN: f32 = 42.0;
const WIDTH: f32 = PAGE.0 - 2.0 * MARGIN;
/// Points for a pixel of a chart, unless it has to be smaller to fit.
const CHART_SCALE: f32 = 0.64;
const GAP: f32 = 24.0;

type Colour = [f32; 3];
const INK: Colour = rgb(0x1d, 0x1f, 0x24);
const SOFT: Colour = rgb(0x5f, 0x63, 0x6d);
const RULE: Colour = rgb(0xdc, 0xd9, 0xd1);
const CARD: Colour = rgb(0xf2, 0xf0, 0xea);

const fn rgb(red: u8, green: u8, blue: u8) -> Colour {
    [red as f32 / 255.0, green as f32 / 255.0, blue as f32 / 255.0]
}

/// The colour of a class, as on the page of the report.
fn colour(class: &str) -> Colour {
    match class.rsplit(' ').next().unwrap_or(class) {
        "allreduce" => rgb(0x0b, 0x6e, 0x69),
        "helped" => rgb(0x6b, 0x8a, 0x1f),
        "shared" => rgb(0xc2, 0x66, 0x2d),
        "dedicated" => rgb(0x7a, 0x4f, 0x9a),
        "compressed" => rgb(0x3d, 0x6f, 0xb5),
        "peer" => rgb(0x8b, 0x8f, 0x99),
        "grid" => RULE,
        "tick" | "axis" | "leader" => SOFT,
        _ => INK,
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Font {
    Plain,
    Bold,
    Code,
}

impl Font {
    const ALL: [(Font, &'static [u8], &'static [u8]); 3] =
        [(Font::Plain, b"F1", b"Helvetica"), (Font::Bold, b"F2", b"Helvetica-Bold"), (Font::Code, b"F3", b"Courier")];

    fn name(self) -> Name<'static> {
        let found = Font::ALL.iter().find(|(font, ..)| *font == self);
        Name(found.map_or(b"F1", |(_, name, _)| name))
    }

    /// The width of a text in points.
    fn width(self, text: &str, size: f32) -> f32 {
        let of = |c: char| match (self, (c as usize).checked_sub(32)) {
            (Font::Code, _) => 600,
            (Font::Plain, Some(at)) => HELVETICA.get(at).copied().unwrap_or(556),
            // Letters are wider in the bold face by at most this, and the signs of figures are not.
            (Font::Bold, Some(at)) => {
                HELVETICA.get(at).map_or(611, |width| if c.is_ascii_alphabetic() { width + 56 } else { *width })
            }
            (_, None) => 0,
        };
        text.chars().map(|c| f32::from(of(c))).sum::<f32>() * size / 1000.0
    }

    /// The text in lines of at most so many points.
    fn wrapped(self, text: &str, size: f32, width: f32) -> Vec<String> {
        let mut lines: Vec<String> = Vec::new();
        for word in text.split_whitespace() {
            match lines.last_mut() {
                Some(line) if self.width(&format!("{line} {word}"), size) <= width => {
                    line.push(' ');
                    line.push_str(word);
                }
                _ => lines.extend(self.broken(word, size, width)),
            }
        }
        lines
    }

    /// A word in pieces of at most so many points.
    fn broken(self, word: &str, size: f32, width: f32) -> Vec<String> {
        let mut pieces = vec![String::new()];
        for c in word.chars() {
            match pieces.last_mut() {
                Some(piece) if self.width(&format!("{piece}{c}"), size) <= width => piece.push(c),
                _ => pieces.push(c.to_string()),
            }
        }
        pieces
    }
}

/// The widths of Helvetica's glyphs from the blank to the tilde, in thousandths of its size (Adobe, "Font
/// Metrics for PDF Core 14 Fonts").
#[rustfmt::skip]
const HELVETICA: [u16; 95] = [
    278, 278, 355, 556, 556, 889, 667, 191, 333, 333, 389, 584, 278, 333, 278, 278,
    556, 556, 556, 556, 556, 556, 556, 556, 556, 556, 278, 278, 584, 584, 584, 556,
    1015, 667, 667, 722, 722, 667, 611, 778, 722, 278, 500, 667, 556, 833, 722, 778,
    667, 778, 722, 667, 611, 722, 667, 944, 667, 667, 611, 278, 278, 278, 469, 556,
    333, 556, 556, 500, 556, 556, 278, 556, 556, 222, 222, 500, 222, 833, 556, 556,
    556, 556, 333, 500, 278, 556, 500, 722, 500, 500, 500, 334, 260, 334, 584,
];

/// The text in the encoding of the page's fonts.
fn encoded(text: &str) -> Vec<u8> {
    let byte = |c: char| match c {
        ' '..='~' => c as u8,
        '\u{b1}' => 0xb1,
        '\u{2013}' => 0x96,
        _ => b'?',
    };
    text.chars().map(byte).collect()
}

/// A page that is written from top to bottom.
struct Sheet {
    content: Content,
    /// How far down it is filled.
    y: f32,
}

impl Sheet {
    fn fill(&mut self, colour: Colour) {
        self.content.set_fill_rgb(colour[0], colour[1], colour[2]);
    }

    fn rect(&mut self, colour: Colour, (x, y): (f32, f32), (width, height): (f32, f32)) {
        self.fill(colour);
        self.content.rect(x, PAGE.1 - y - height, width, height).fill_nonzero();
    }

    fn line(&mut self, colour: Colour, width: f32, from: (f32, f32), to: (f32, f32)) {
        self.content.set_stroke_rgb(colour[0], colour[1], colour[2]).set_line_width(width);
        self.content.move_to(from.0, PAGE.1 - from.1).line_to(to.0, PAGE.1 - to.1).stroke();
    }

    /// A text whose base line is at `y`.
    fn text(&mut self, (font, size): (Font, f32), colour: Colour, (x, y): (f32, f32), text: &str) {
        self.fill(colour);
        self.content.begin_text().set_font(font.name(), size);
        self.content.next_line(x, PAGE.1 - y).show(Str(&encoded(text))).end_text();
    }

    /// A text that ends at `x`.
    fn text_to(&mut self, (font, size): (Font, f32), colour: Colour, (x, y): (f32, f32), text: &str) {
        self.text((font, size), colour, (x - font.width(text, size), y), text);
    }

    /// A paragraph over the width of the page.
    fn paragraph(&mut self, (font, size): (Font, f32), colour: Colour, text: &str) {
        for line in font.wrapped(text, size, WIDTH) {
            self.y += size * 1.35;
            self.text((font, size), colour, (MARGIN, self.y), &line);
        }
    }

    fn verdict(&mut self, sentences: &[String]) {
        const PADDING: f32 = 9.0;
        let style = |index: usize| if index == 0 { (Font::Bold, 11.0) } else { (Font::Plain, 9.0) };
        let lines = |(index, sentence): (usize, &String)| {
            let (font, size) = style(index);
            let wrapped = font.wrapped(sentence, size, WIDTH - 2.0 * PADDING - 4.0);
            wrapped.into_iter().map(move |line| (font, size, line)).collect::<Vec<_>>()
        };
        let lines: Vec<_> = sentences.iter().enumerate().flat_map(lines).collect();
        let height = lines.iter().map(|(_, size, _)| size * 1.4).sum::<f32>() + 2.0 * PADDING - 3.0;
        self.rect(CARD, (MARGIN, self.y), (WIDTH, height));
        self.rect(colour("allreduce"), (MARGIN, self.y), (3.0, height));
        let bottom = self.y + height;
        self.y += PADDING - 3.0;
        for (font, size, line) in lines {
            self.y += size * 1.4;
            self.text((font, size), INK, (MARGIN + PADDING + 4.0, self.y - 1.0), &line);
        }
        self.y = bottom;
    }

    fn table(&mut self, results: &Comparison) {
        const SIZE: f32 = 8.0;
        let columns = columns(results);
        let ranking = results.ranking();
        let widest = |column: &&Column| {
            let cells = ranking.iter().filter_map(|it| (column.cell)(it, results));
            let widths = cells.map(|cell| Font::Bold.width(&cell, SIZE));
            widths.fold(Font::Bold.width(column.heading, SIZE), f32::max)
        };
        let names = results.rows.iter().map(|row| 12.0 + Font::Code.width(&row.variant, SIZE)).fold(0.0, f32::max);
        let widths: Vec<f32> = columns.iter().map(widest).collect();
        let gap = (WIDTH - names - widths.iter().sum::<f32>()) / columns.len().max(1) as f32;
        let ends: Vec<f32> = widths
            .iter()
            .scan(MARGIN + names, |end, width| {
                *end += gap + width;
                Some(*end)
            })
            .collect();
        let end = |index: usize| ends[index];
        self.y += 12.0;
        self.text((Font::Bold, SIZE), SOFT, (MARGIN, self.y), "method");
        for (index, column) in columns.iter().enumerate() {
            self.text_to((Font::Bold, SIZE), SOFT, (end(index), self.y), column.heading);
        }
        let home = results.home().map(|measured| measured.row.variant.clone());
        for row in results.sorted_rows() {
            self.y += 4.0;
            self.line(RULE, 0.6, (MARGIN, self.y), (MARGIN + WIDTH, self.y));
            self.y += 10.0;
            self.rect(colour(row.family.class()), (MARGIN, self.y - 6.5), (7.0, 7.0));
            self.text((Font::Code, SIZE), INK, (MARGIN + 12.0, self.y), &row.variant);
            let font = if home.as_ref() == Some(&row.variant) { Font::Bold } else { Font::Plain };
            for (index, column) in columns.iter().enumerate() {
                let cell = match row.measured() {
                    Some(measured) => (column.cell)(&measured, results).unwrap_or_else(|| "\u{2013}".to_owned()),
                    None if index == 0 => row.status().to_owned(),
                    None => continue,
                };
                self.text_to((font, SIZE), INK, (end(index), self.y), &cell.replace("+-", "\u{b1}"));
            }
        }
    }

    /// The charts two by two, as many as fit above `bottom`.
    fn charts(&mut self, drawings: &[Drawing], bottom: f32) {
        const HEADING: f32 = 20.0;
        let width = (WIDTH - GAP) / 2.0;
        for pair in drawings.chunks(2) {
            let height = pair.iter().map(|drawing| drawing.height as f32).fold(0.0, f32::max);
            let scale = CHART_SCALE.min((bottom - self.y - HEADING) / height);
            // Smaller it could not be read.
            if scale < 0.4 {
                return;
            }
            for (index, drawing) in pair.iter().enumerate() {
                let left = MARGIN + (width + GAP) * index as f32;
                self.text((Font::Bold, 9.0), INK, (left, self.y + 12.0), drawing.title);
                self.drawing(drawing, (left, self.y + HEADING), width, scale);
            }
            self.y += HEADING + height * scale + 4.0;
        }
    }

    fn drawing(&mut self, drawing: &Drawing, (left, top): (f32, f32), width: f32, scale: f32) {
        let at = |(x, y): (f64, f64)| (left + x as f32 / 100.0 * width, top + y as f32 * scale);
        for mark in &drawing.marks {
            match mark {
                Mark::Rect { class, y, width: part } => {
                    let size = (*part as f32 / 100.0 * width, 14.0 * scale);
                    self.rect(colour(class), at((0.0, *y)), size);
                }
                Mark::Line { class, from, to } => {
                    let thick = if class.starts_with("curve") { 1.4 } else { 0.6 };
                    let dashes: &[f32] = if class == "reference" { &[2.5, 2.0] } else { &[] };
                    self.content.set_dash_pattern(dashes.iter().copied(), 0.0);
                    self.line(colour(class), thick, at(*from), at(*to));
                    self.content.set_dash_pattern([], 0.0);
                }
                Mark::Dot { class, at: middle } => {
                    self.content.set_line_cap(LineCapStyle::RoundCap);
                    self.line(colour(class), 7.0 * scale, at(*middle), at(*middle));
                    if class.starts_with(PUBLISHED) {
                        self.line([1.0; 3], 4.0 * scale, at(*middle), at(*middle));
                    }
                    self.content.set_line_cap(LineCapStyle::ButtCap);
                }
                Mark::Text { class, anchor, at: point, text, words } => {
                    let (font, size) = match *class {
                        "name" => (Font::Code, 12.5 * scale),
                        "value" | "reference-label" => (Font::Bold, 12.0 * scale),
                        _ => (Font::Plain, 12.0 * scale),
                    };
                    let (x, y) = at(*point);
                    let wide = font.width(text, size);
                    let start = match *anchor {
                        "middle" => x - wide / 2.0,
                        "end" => x - wide,
                        _ => x,
                    };
                    self.text((font, size), colour(class), (start, y), text);
                    let (after, size) = (start + wide + 6.0 * scale, 11.0 * scale);
                    // The value stands at the right end.
                    if after + Font::Plain.width(words, size) < left + width - 60.0 * scale {
                        self.text((Font::Plain, size), SOFT, (after, y), words);
                    }
                }
            }
        }
    }
}

/// The page as the bytes of a PDF.
pub(crate) fn render(results: &Comparison) -> Vec<u8> {
    let environment = &results.environment;
    let mut sheet = Sheet { content: Content::new(), y: MARGIN };
    sheet.paragraph((Font::Bold, 15.0), INK, &headline(results));
    sheet.paragraph((Font::Plain, 9.0), SOFT, &format!("{}. {}.", place(results), environment.date));
    sheet.y += 10.0;
    sheet.verdict(&results.verdict);
    sheet.y += 6.0;
    sheet.table(results);
    sheet.y += 8.0;
    sheet.paragraph((Font::Plain, 7.5), SOFT, &order(results));
    sheet.y += 8.0;
    let machines = environment.machines(&results.setup);
    let foot = format!(
        "{machines}. {}, {}, ringpull {}. Every element of every sum was compared with its closed form.",
        environment.kernel, environment.mpi, environment.ringpull
    );
    let (foot_size, code_size) = (7.5, 6.5);
    let lines = Font::Plain.wrapped(&foot, foot_size, WIDTH).len() as f32 * foot_size
        + Font::Code.wrapped(&results.command, code_size, WIDTH).len() as f32 * code_size;
    let bottom = PAGE.1 - MARGIN - lines * 1.35 - 6.0;
    sheet.charts(&drawings(results), bottom);
    sheet.y = bottom;
    sheet.paragraph((Font::Plain, foot_size), SOFT, &foot);
    sheet.y += 3.0;
    sheet.paragraph((Font::Code, code_size), SOFT, &results.command);
    file(&headline(results), sheet.content)
}

/// A file of one page.
fn file(title: &str, content: Content) -> Vec<u8> {
    let (catalog, pages, page, contents, info) = (Ref::new(1), Ref::new(2), Ref::new(3), Ref::new(4), Ref::new(5));
    let fonts = (6..).map(Ref::new).zip(Font::ALL);
    let mut pdf = Pdf::new();
    pdf.catalog(catalog).pages(pages);
    pdf.document_info(info).title(TextStr(title)).creator(TextStr("ringpull compare"));
    pdf.pages(pages).kids([page]).count(1);
    let mut written = pdf.page(page);
    written.media_box(Rect::new(0.0, 0.0, PAGE.0, PAGE.1)).parent(pages).contents(contents);
    let mut resources = written.resources();
    let mut named = resources.fonts();
    for (id, (_, name, _)) in fonts.clone() {
        named.pair(Name(name), id);
    }
    named.finish();
    resources.finish();
    written.finish();
    for (id, (_, _, base)) in fonts {
        pdf.type1_font(id).base_font(Name(base)).encoding_predefined(Name(b"WinAnsiEncoding"));
    }
    pdf.stream(contents, &content.finish());
    pdf.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_wrapped_at_the_width_and_keep_every_word() {
        assert_eq!(Font::Plain.width("Wi 1", 10.0), 20.0);
        assert_eq!(Font::Code.width("abc", 10.0), 18.0);
        let text = "one two three four five six seven eight nine ten";
        let lines = Font::Plain.wrapped(text, 10.0, 60.0);
        assert!(lines.len() > 2 && lines.iter().all(|line| Font::Plain.width(line, 10.0) <= 60.0), "{lines:?}");
        assert_eq!(lines.join(" "), text);
        let lines = Font::Code.wrapped("--modes dist_sync_mpi,dist_sync:1shared", 10.0, 100.0);
        assert_eq!(lines, ["--modes", "dist_sync_mpi,di", "st_sync:1shared"]);
    }

    #[test]
    fn what_the_fonts_lack_becomes_a_question_mark() {
        assert_eq!(encoded("a\u{b1}\u{2013}\u{4e2d}"), [b'a', 0xb1, 0x96, b'?']);
    }
}
