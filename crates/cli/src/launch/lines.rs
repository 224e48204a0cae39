//! Merges the output of several processes into one text: decides which process writes next, and where names
//! are put.
//!
//! A line belongs to one process. The bytes of a line are written as soon as they arrive, so that prompts,
//! progress bars and last messages appear. While the line of one process is open, the other processes wait
//! until it ends, but at most [`LONGEST`]. Then the open line is cut for them, and its rest begins a new
//! line. A carriage return begins a line again, as a progress bar does: there other processes may write
//! without waiting.
//!
//! With a name, each line begins with `[name] `, also after a carriage return. Without one nothing is added.
//! Everything here is a function of the bytes and of the times at which they arrived.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// The time for which other processes wait for the end of an open line.
const LONGEST: Duration = Duration::from_secs(2);

/// The place of a process in its line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LinePlace {
    Start,
    Middle,
    /// Behind a carriage return, which may be the first byte of a line's end.
    Returned,
}

#[derive(Debug)]
struct LineSource {
    tag: Option<Vec<u8>>,
    place: LinePlace,
    /// True if the line was cut for others. Then the process's own end of this line is left out.
    is_cut: bool,
    /// True if a carriage return has begun the line again.
    is_bar: bool,
    pending: Vec<u8>,
    /// True if a line ends in the pending bytes.
    has_line: bool,
    /// The last byte that arrived.
    last: u8,
}

impl LineSource {
    /// Writes the first pending bytes.
    fn write_pending(&mut self, count: usize, to: &mut Vec<u8>) {
        let rest = self.pending.split_off(count);
        let bytes = std::mem::replace(&mut self.pending, rest);
        self.write(&bytes, to);
        self.has_line = self.has_line && self.pending.contains(&b'\n');
    }

    /// Writes bytes with the name where lines begin.
    fn write(&mut self, mut bytes: &[u8], to: &mut Vec<u8>) {
        if bytes.is_empty() {
            return;
        }
        if std::mem::take(&mut self.is_cut) {
            bytes = bytes.strip_prefix(b"\n").or(bytes.strip_prefix(b"\r\n")).unwrap_or(bytes);
        }
        while !bytes.is_empty() {
            let at = memchr::memchr2(b'\n', b'\r', bytes);
            let (line, rest) = bytes.split_at(at.map_or(bytes.len(), |at| at + 1));
            // A blank line has the name, and a bar has it behind its carriage return.
            let is_bar = line == b"\r" && rest.first() != Some(&b'\n');
            let has_begun = self.place == LinePlace::Middle || (self.place == LinePlace::Returned && line == b"\n");
            if let Some(tag) = self.tag.as_ref().filter(|_| !has_begun && !is_bar) {
                to.extend_from_slice(tag);
            }
            to.extend_from_slice(line);
            self.is_bar = self.place == LinePlace::Returned || (self.is_bar && self.place == LinePlace::Middle);
            self.place = match line.last() {
                Some(b'\n') => LinePlace::Start,
                Some(b'\r') => LinePlace::Returned,
                _ => LinePlace::Middle,
            };
            bytes = rest;
        }
    }
}

/// The state of one text.
#[derive(Debug, Default)]
pub(super) struct Lines {
    sources: Vec<LineSource>,
    /// The process whose line is open.
    open: Option<usize>,
    /// The processes that have bytes to write, in the order in which the bytes arrived.
    waiting: VecDeque<usize>,
    /// The time since which other processes wait for the open line.
    waits: Option<Instant>,
}

impl Lines {
    /// Adds a process and returns its number. If it has a name, its lines begin with it.
    pub(super) fn add(&mut self, name: Option<&str>) -> usize {
        let tag = name.map(|name| format!("[{name}] ").into_bytes());
        self.sources.push(LineSource {
            tag,
            place: LinePlace::Start,
            is_cut: false,
            is_bar: false,
            pending: Vec::new(),
            has_line: false,
            last: b'\n',
        });
        self.sources.len() - 1
    }

    /// Takes bytes of a process, and appends to `to` the bytes that may be written now.
    pub(super) fn push(&mut self, number: usize, bytes: &[u8], now: Instant, to: &mut Vec<u8>) {
        let Some(last) = bytes.last() else { return };
        let source = &mut self.sources[number];
        source.last = *last;
        let is_alone = self.waiting.is_empty() && self.open.is_none_or(|open| open == number);
        if is_alone {
            source.write(bytes, to);
            self.open = (source.place != LinePlace::Start).then_some(number);
            return;
        }
        source.pending.extend_from_slice(bytes);
        source.has_line |= bytes.contains(&b'\n');
        if !self.waiting.contains(&number) {
            self.waiting.push_back(number);
        }
        self.advance(now, to);
    }

    /// Takes note that a process has ended, which ends its line.
    pub(super) fn end(&mut self, number: usize, now: Instant, to: &mut Vec<u8>) {
        let source = &self.sources[number];
        if source.tag.is_some() && source.last != b'\n' {
            self.push(number, b"\n", now, to);
        } else if self.open == Some(number) && source.pending.is_empty() {
            self.open = None;
            self.advance(now, to);
        }
    }

    /// The time at which [`Lines::wake`] has something to do, if no bytes arrive before.
    pub(super) fn due(&self) -> Option<Instant> {
        self.waits.map(|since| since + LONGEST)
    }

    /// Cuts an open line if other processes have waited long enough.
    pub(super) fn wake(&mut self, now: Instant, to: &mut Vec<u8>) {
        if self.due().is_some_and(|due| due <= now) {
            self.cut(to);
            // The next line has its own time.
            self.waits = None;
            self.advance(now, to);
        }
    }

    /// Writes everything, at the end of all.
    pub(super) fn flush(&mut self, now: Instant, to: &mut Vec<u8>) {
        while !self.waiting.is_empty() {
            self.cut(to);
            self.advance(now, to);
        }
    }

    fn advance(&mut self, now: Instant, to: &mut Vec<u8>) {
        while !self.waiting.is_empty() {
            if let Some(open) = self.open {
                if self.sources[open].is_bar && self.next_is_bar(open) {
                    self.cut(to);
                } else {
                    self.go_on(open, to);
                }
                if self.open.is_some() {
                    break;
                }
            } else if let Some(at) = self.waiting.iter().position(|one| self.sources[*one].has_line) {
                let number = self.waiting[at];
                let source = &mut self.sources[number];
                let end = memchr::memrchr(b'\n', &source.pending).map_or(0, |end| end + 1);
                source.write_pending(end, to);
                self.leave_if_empty(number);
            } else {
                let number = self.waiting[0];
                self.write_all(number, to);
            }
        }
        let others_wait = self.open.is_some() && !self.waiting.is_empty();
        self.waits = if others_wait { self.waits.or(Some(now)) } else { None };
    }

    /// Writes the bytes of the open line's process up to the end of the line, or to the next carriage return.
    fn go_on(&mut self, number: usize, to: &mut Vec<u8>) {
        let source = &mut self.sources[number];
        match memchr::memchr2(b'\n', b'\r', &source.pending) {
            Some(at) if source.pending[at] == b'\n' || source.pending.get(at + 1) == Some(&b'\n') => {
                let end = if source.pending[at] == b'\n' { at + 1 } else { at + 2 };
                source.write_pending(end, to);
                self.open = None;
                self.leave_if_empty(number);
            }
            Some(at) => {
                source.write_pending(at, to);
                self.cut(to);
                // The other processes come first.
                self.waiting.retain(|one| *one != number);
                self.waiting.push_back(number);
            }
            None if source.place == LinePlace::Returned && source.pending.is_empty() => self.cut(to),
            None if source.pending.is_empty() => {}
            None => self.write_all(number, to),
        }
    }

    /// Writes the bytes of a line that has no end yet.
    fn write_all(&mut self, number: usize, to: &mut Vec<u8>) {
        let source = &mut self.sources[number];
        source.write_pending(source.pending.len(), to);
        self.open = (source.place != LinePlace::Start).then_some(number);
        self.leave_if_empty(number);
    }

    fn leave_if_empty(&mut self, number: usize) {
        if self.sources[number].pending.is_empty() {
            self.waiting.retain(|one| *one != number);
        }
    }

    /// Returns true if the next waiting process begins its line again by a carriage return.
    fn next_is_bar(&self, open: usize) -> bool {
        let next = self.waiting.iter().find(|one| **one != open);
        next.is_some_and(|next| self.sources[*next].pending.first() == Some(&b'\r'))
    }

    /// Cuts the open line for other processes. A progress bar needs no new line, because it begins at the
    /// start of the same line.
    fn cut(&mut self, to: &mut Vec<u8>) {
        let Some(number) = self.open.take() else { return };
        let is_bar = self.next_is_bar(number);
        let source = &mut self.sources[number];
        if source.tag.is_none() {
            return;
        }
        if !is_bar {
            to.push(b'\n');
        }
        (source.place, source.is_cut) = (LinePlace::Start, !is_bar);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A text of two processes. Bytes arrive at times in milliseconds.
    struct Text {
        lines: Lines,
        start: Instant,
        to: Vec<u8>,
    }

    impl Text {
        fn new(names: [Option<&str>; 2]) -> Self {
            let mut lines = Lines::default();
            for name in names {
                lines.add(name);
            }
            Text { lines, start: Instant::now(), to: Vec::new() }
        }

        fn at(&mut self, ms: u64, number: usize, bytes: &str) -> &mut Self {
            let now = self.start + Duration::from_millis(ms);
            self.lines.wake(now, &mut self.to);
            self.lines.push(number, bytes.as_bytes(), now, &mut self.to);
            self
        }

        fn says(&mut self, ms: u64, expected: &str) -> &mut Self {
            self.lines.wake(self.start + Duration::from_millis(ms), &mut self.to);
            assert_eq!(String::from_utf8_lossy(&self.to), expected, "after {ms} ms");
            self
        }

        fn ends(&mut self, number: usize) -> &mut Self {
            self.lines.end(number, self.start, &mut self.to);
            self
        }
    }

    const TWO: [Option<&str>; 2] = [Some("a"), Some("b")];

    #[test]
    fn each_line_begins_with_a_name_and_what_has_come_is_written_at_once() {
        let mut text = Text::new(TWO);
        text.at(0, 0, "one\ntwo").says(0, "[a] one\n[a] two").at(0, 0, "\n\n").says(0, "[a] one\n[a] two\n[a] \n");
        let mut text = Text::new(TWO);
        text.at(0, 0, "name? ").says(0, "[a] name? ").ends(0).says(0, "[a] name? \n");
    }

    #[test]
    fn a_bar_has_its_name_behind_each_carriage_return() {
        let mut text = Text::new(TWO);
        text.at(0, 0, "\r 1%").at(5, 0, "\r 2%").at(9, 0, "\n").says(9, "\r[a]  1%\r[a]  2%\n");
        let mut text = Text::new(TWO);
        text.at(0, 0, "1%\r").at(5, 0, "2%\r").says(5, "[a] 1%\r[a] 2%\r");
    }

    #[test]
    fn a_carriage_return_before_a_newline_is_one_end_of_a_line_also_in_two_pieces() {
        let mut text = Text::new(TWO);
        text.at(0, 0, "one\r\n\r\ntwo\r").at(0, 0, "\nthree").says(0, "[a] one\r\n[a] \r\n[a] two\r\n[a] three");
    }

    #[test]
    fn a_line_waits_for_the_end_of_another_processs_line() {
        let mut text = Text::new(TWO);
        text.at(0, 0, "x=").at(1, 1, "one\ntwo\n").says(1, "[a] x=").at(2, 0, "1\ny");
        text.says(2, "[a] x=1\n[b] one\n[b] two\n[a] y");
    }

    #[test]
    fn a_silent_line_is_ended_for_others_and_its_own_end_is_left_out() {
        let mut text = Text::new(TWO);
        text.at(0, 0, "name? ").at(50, 1, "hello\n").says(2049, "[a] name? ").says(2050, "[a] name? \n[b] hello\n");
        text.at(3000, 0, "\nnext\n").says(3000, "[a] name? \n[b] hello\n[a] next\n");
        let mut text = Text::new(TWO);
        text.at(0, 0, "name? ")
            .at(50, 1, "hello\n")
            .at(3000, 0, "Ada\n")
            .says(3000, "[a] name? \n[b] hello\n[a] Ada\n");
    }

    #[test]
    fn nobody_waits_for_ever_for_a_line_of_dots() {
        let mut text = Text::new(TWO);
        text.at(0, 0, ".").at(1, 1, "hello\n");
        for tick in 1..19 {
            text.at(tick * 100, 0, ".");
        }
        text.says(2000, &format!("[a] {}", ".".repeat(19)));
        text.says(2001, &format!("[a] {}\n[b] hello\n", ".".repeat(19)));
    }

    #[test]
    fn two_bars_take_turns_and_a_line_comes_between_them() {
        let mut text = Text::new(TWO);
        text.at(0, 0, "\r 1%").at(10, 1, "\r 5%").at(20, 0, "\r 2%").says(20, "\r[a]  1%\r[b]  5%\r[a]  2%");
        text.at(30, 1, "\nend\n").says(9000, "\r[a]  1%\r[b]  5%\r[a]  2%\n[b] \n[b] end\n");
    }

    #[test]
    fn without_a_name_nothing_is_added() {
        let mut text = Text::new([None, None]);
        text.at(0, 0, "a\r\nb")
            .at(10, 1, "c\n")
            .says(10, "a\r\nb")
            .says(9000, "a\r\nbc\n")
            .ends(0)
            .says(9000, "a\r\nbc\n");
    }
}
