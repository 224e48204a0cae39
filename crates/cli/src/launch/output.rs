//! The processes' output: printed with the process's name before each line, printed as it is, or kept.
//!
//! With every launcher all output of a job goes through one [`Printer`]. It is the only writer of the
//! launcher's stdout and stderr, so it can keep the lines of processes apart (`lines`). If the reader of the
//! output is slow, it keeps up to [`BACKLOG`] bytes, so a pager does not block the processes.
//!
//! A job goes on if output is lost, and the other stream reports that once. There are two cases. If the
//! reader of a stream has ended, its stream is dropped. If a file cannot be written, it is tried again with
//! the next piece.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::lines::Lines;

/// The place to which the output of a job's processes goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sink {
    /// To stdout and stderr, with `[worker 0] ` before every line.
    Tagged,
    /// To stdout and stderr as it is.
    Plain,
    /// Into the [`JobEnd`](super::JobEnd).
    Kept,
}

/// One of a process's two output streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OutputStream {
    Out,
    Err,
}

/// The number of bytes that may wait for the readers of the launcher's output before processes must wait.
const BACKLOG: usize = 64 << 20;
/// The bytes that a pipe can hold. At most these bytes can still arrive after a process has ended.
pub(super) const PIPE: usize = 1 << 20;
/// The number of bytes that are read at once.
pub(super) const PIECE: usize = 64 << 10;

/// One stream of a process, to a [`Printer`].
#[derive(Debug)]
pub(super) struct OutputSource {
    shared: Arc<SharedQueue>,
    stream: OutputStream,
    number: usize,
}

#[derive(Debug)]
struct SharedQueue {
    queue: Mutex<OutputQueue>,
    /// Notified if there is an event.
    more: Condvar,
    /// Notified if there is room, or if nothing is left to write.
    less: Condvar,
    /// True if stdout and stderr are one file, such as a terminal.
    is_one: bool,
}

#[derive(Debug, Default)]
struct OutputQueue {
    events: VecDeque<Event>,
    /// The bytes of `events`, and of the events that are being written.
    bytes: usize,
    sources: [usize; 2],
    is_closed: bool,
    /// True if the end of the program does not wait for the remaining output.
    is_given_up: bool,
}

#[derive(Debug)]
enum Event {
    Add(OutputStream, Option<String>),
    Bytes(OutputStream, usize, Vec<u8>),
    End(OutputStream, usize),
}

/// Prints the output of all processes, in a thread. Dropping it prints everything that it was given.
#[derive(Debug)]
pub(super) struct Printer {
    feed: Feed,
    thread: Option<JoinHandle<()>>,
}

/// A way to add streams to a [`Printer`].
#[derive(Debug, Clone)]
pub(super) struct Feed(Arc<SharedQueue>);

impl Printer {
    pub(super) fn start() -> Self {
        let is_one = are_one(std::io::stdout(), std::io::stderr());
        let shared =
            Arc::new(SharedQueue { queue: Mutex::default(), more: Condvar::new(), less: Condvar::new(), is_one });
        let feed = Feed(Arc::clone(&shared));
        Printer { feed, thread: Some(std::thread::spawn(move || shared.print())) }
    }

    pub(super) fn feed(&self) -> Feed {
        self.feed.clone()
    }

    /// Stops waiting for output that nobody reads. The thread still has it, and ends with this process.
    pub(super) fn give_up(&self) {
        self.feed.0.lock().is_given_up = true;
    }

    /// Returns true if bytes wait to be written.
    pub(super) fn is_busy(&self) -> bool {
        self.feed.0.lock().bytes > 0
    }
}

impl Feed {
    /// A stream whose lines begin with `[name] `, or which is printed as it is.
    pub(super) fn source(&self, stream: OutputStream, name: Option<&str>) -> OutputSource {
        let Feed(shared) = self;
        let mut queue = shared.lock();
        let at = shared.text_of(stream);
        let number = queue.sources[at];
        queue.sources[at] += 1;
        queue.events.push_back(Event::Add(stream, name.map(str::to_owned)));
        OutputSource { shared: Arc::clone(shared), stream, number }
    }
}

impl Feed {
    /// Prints a line of the launcher to stderr. It does not wait for a reader, because the code that ends
    /// processes calls it.
    pub(super) fn say(&self, line: &str) {
        let source = self.source(OutputStream::Err, None);
        source.put(source.shared.lock(), format!("{line}\n").into_bytes());
    }
}

impl Drop for Printer {
    fn drop(&mut self) {
        let Feed(shared) = &self.feed;
        let is_given_up = {
            let mut queue = shared.lock();
            queue.is_closed = true;
            queue.is_given_up
        };
        shared.more.notify_all();
        shared.less.notify_all();
        if self.thread.take().filter(|_| !is_given_up).is_some_and(|thread| thread.join().is_err()) {
            tracing::warn!("the last output is lost");
        }
    }
}

impl OutputSource {
    /// Queues bytes for printing. Waits if too many bytes are queued already.
    pub(super) fn write(&self, bytes: Vec<u8>) {
        let mut queue = self.shared.lock();
        while queue.bytes > BACKLOG && !queue.is_closed {
            queue = self.shared.less.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        self.put(queue, bytes);
    }

    /// Adds bytes to the queue, unless the job is over: a process that the job has left behind may write
    /// without end.
    fn put(&self, mut queue: MutexGuard<'_, OutputQueue>, bytes: Vec<u8>) {
        if !queue.is_closed {
            queue.bytes += bytes.len();
            queue.events.push_back(Event::Bytes(self.stream, self.number, bytes));
            self.shared.more.notify_one();
        }
    }
}

/// One end of a pipe.
pub(super) trait Pipe: Read + AsFd + Send {}
impl<T: Read + AsFd + Send> Pipe for T {}

/// Reads a pipe in pieces of whole lines, as far as lines are complete. Bytes are passed on at once. One read
/// may end within a line whose rest is already in the pipe.
pub(super) struct Pieces<P> {
    from: P,
    read: Vec<u8>,
    /// The beginning of a line whose rest is already in the pipe.
    begun: Vec<u8>,
}

impl<P: Pipe> Pieces<P> {
    pub(super) fn of(from: P) -> Self {
        Pieces { from, read: vec![0; PIECE / 2], begun: Vec::new() }
    }

    fn is_more(&self) -> bool {
        let mut from = [PollFd::new(&self.from, PollFlags::IN)];
        poll(&mut from, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
    }
}

impl<P: Pipe> Iterator for Pieces<P> {
    type Item = Vec<u8>;

    fn next(&mut self) -> Option<Vec<u8>> {
        loop {
            let count = match self.from.read(&mut self.read) {
                Ok(count) => count,
                Err(cause) if cause.kind() == ErrorKind::Interrupted => continue,
                Err(_) => 0,
            };
            let mut piece = std::mem::take(&mut self.begun);
            if count == 0 {
                return (!piece.is_empty()).then_some(piece);
            }
            piece.extend_from_slice(&self.read[..count]);
            let end = memchr::memrchr(b'\n', &piece).map_or(0, |end| end + 1);
            if (1..PIECE / 2).contains(&(piece.len() - end)) && self.is_more() {
                self.begun = piece.split_off(end);
            }
            if !piece.is_empty() {
                return Some(piece);
            }
        }
    }
}

impl Drop for OutputSource {
    fn drop(&mut self) {
        self.shared.lock().events.push_back(Event::End(self.stream, self.number));
        self.shared.more.notify_one();
    }
}

impl SharedQueue {
    fn lock(&self) -> MutexGuard<'_, OutputQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn text_of(&self, stream: OutputStream) -> usize {
        usize::from(!self.is_one && stream == OutputStream::Err)
    }

    fn print(&self) {
        let mut texts = [Lines::default(), Lines::default()];
        let mut targets = [OutputFile::default(), OutputFile::default()];
        let mut queue = self.lock();
        loop {
            let (events, bytes) = (std::mem::take(&mut queue.events), queue.bytes);
            let is_over = queue.is_closed && events.is_empty();
            drop(queue);
            let mut to: [Vec<u8>; 2] = Default::default();
            let now = Instant::now();
            for event in events {
                match event {
                    Event::Add(stream, name) => {
                        texts[self.text_of(stream)].add(name.as_deref());
                    }
                    Event::Bytes(stream, number, bytes) => {
                        let at = self.text_of(stream);
                        texts[at].push(number, &bytes, now, &mut to[at]);
                    }
                    Event::End(stream, number) => {
                        let at = self.text_of(stream);
                        texts[at].end(number, now, &mut to[at]);
                    }
                }
            }
            for (text, to) in texts.iter_mut().zip(&mut to) {
                text.wake(now, to);
                if is_over {
                    text.flush(now, to);
                }
            }
            let [out, err] = to;
            // Written without the locks of stdout and stderr, because this may wait for a reader, and other
            // code writes to stderr too.
            write_both((&std::io::stdout(), &std::io::stderr()), [&out, &err], &mut targets, self.is_one);
            queue = self.lock();
            queue.bytes -= bytes;
            self.less.notify_all();
            if is_over {
                return;
            }
            if queue.events.is_empty() && !queue.is_closed {
                let due = texts.iter().filter_map(Lines::due).min();
                queue = match due.map(|due| due.saturating_duration_since(Instant::now())) {
                    None => self.more.wait(queue).unwrap_or_else(PoisonError::into_inner),
                    Some(left) => self
                        .more
                        .wait_timeout(queue, left)
                        .map_or_else(|poisoned| poisoned.into_inner().0, |(queue, _)| queue),
                };
            }
        }
    }
}

/// Returns true if both are the same file.
fn are_one(one: impl AsFd, other: impl AsFd) -> bool {
    match (rustix::fs::fstat(one), rustix::fs::fstat(other)) {
        (Ok(one), Ok(other)) => (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino),
        _ => false,
    }
}

/// The worst failure of a file so far.
#[derive(Debug, Default, PartialEq, Eq)]
enum OutputLoss {
    #[default]
    Nothing,
    /// It could not be written for some time.
    Some,
    /// Nobody reads it any more.
    Reader,
}

/// One of the two files that this program writes to.
#[derive(Debug, Default)]
struct OutputFile {
    loss: OutputLoss,
    /// True if a line was begun and not ended.
    is_within_line: bool,
    /// True if the last bytes were lost.
    is_broken: bool,
    /// The report of a failure, which is to be written to the other file, or if that fails too, to this one.
    owed: Option<String>,
}

/// Writes everything to stdout and stderr as far as possible, and reports lost output.
fn write_both((out, err): (&impl AsFd, &impl AsFd), texts: [&[u8]; 2], targets: &mut [OutputFile; 2], is_one: bool) {
    let to = [out.as_fd(), err.as_fd()];
    for at in 0..2 {
        targets[at].write(to[at], texts[at], ["stdout", "stderr"][at]);
    }
    for at in 0..2 {
        let Some(words) = targets[at].owed.take() else { continue };
        let others = if is_one { [at, at] } else { [1 - at, at] };
        let is_said = others.into_iter().any(|other| targets[other].say(to[other], &words));
        targets[at].owed = Some(words).filter(|_| !is_said);
    }
}

impl OutputFile {
    fn write(&mut self, to: BorrowedFd, bytes: &[u8], name: &str) {
        if bytes.is_empty() || self.loss == OutputLoss::Reader {
            return;
        }
        // The lost line has no end in the file.
        let cut: &[u8] = if self.is_broken && self.is_within_line { b"\n" } else { b"" };
        let written = self.write_all(to, cut).and_then(|()| self.write_all(to, bytes));
        self.is_broken = written.is_err();
        let Err(cause) = written else { return };
        if matches!(cause, Errno::PIPE | Errno::BADF) {
            self.loss = OutputLoss::Reader;
            self.owed = Some(format!(
                "ringpull: nobody reads {name} any more: further output for it is dropped, and the job goes on"
            ));
        } else if self.loss == OutputLoss::Nothing {
            self.loss = OutputLoss::Some;
            self.owed = Some(format!(
                "warning: output is lost: {name} cannot be written: {}\n  hint: make room, or end the job and send its \
                 output elsewhere; the job goes on, and what comes later is written if it can be",
                std::io::Error::from(cause)
            ));
        }
    }

    /// Writes a report as a line of its own. Returns true if it was written.
    fn say(&mut self, to: BorrowedFd, words: &str) -> bool {
        let begin = if self.is_within_line { "\n" } else { "" };
        self.loss != OutputLoss::Reader && self.write_all(to, format!("{begin}{words}\n").as_bytes()).is_ok()
    }

    /// Writes all bytes, also to a terminal that another program has set to non-blocking.
    fn write_all(&mut self, to: BorrowedFd, mut bytes: &[u8]) -> rustix::io::Result<()> {
        while !bytes.is_empty() {
            match rustix::io::write(to, bytes) {
                Ok(0) => return Err(Errno::IO),
                Ok(count) => {
                    self.is_within_line = bytes[count - 1] != b'\n';
                    bytes = &bytes[count..];
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => match poll(&mut [PollFd::new(&to, PollFlags::OUT)], None) {
                    Ok(_) | Err(Errno::INTR) => {}
                    Err(cause) => return Err(cause),
                },
                Err(cause) => return Err(cause),
            }
        }
        Ok(())
    }
}

/// Divides a stream that arrives in pieces into lines. If a line is longer than a piece, its rest is left
/// out.
#[derive(Debug, Default)]
pub(super) struct WholeLines(Vec<u8>);

impl WholeLines {
    /// Calls `on_line` for each line that ends in `bytes`.
    pub(super) fn push(&mut self, bytes: &[u8], mut on_line: impl FnMut(&str)) {
        let WholeLines(line) = self;
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            line.extend_from_slice(&part[..part.len().min(PIECE.saturating_sub(line.len()))]);
            if part.ends_with(b"\n") {
                on_line(&String::from_utf8_lossy(line));
                line.clear();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn what_a_full_disk_takes_is_said_once_and_what_comes_later_is_written() {
        for is_one in [false, true] {
            let folder = tempfile::tempdir().unwrap();
            let [full, log] = ["/dev/full".into(), folder.path().join("log")]
                .map(|path| File::options().append(true).create(true).open(path).unwrap());
            let mut targets = [OutputFile::default(), OutputFile::default()];
            write_both((&log, &log), [b"1 %", b""], &mut targets, is_one);
            // Both streams fail, so the report waits.
            for _ in 0..2 {
                write_both((&full, &full), [b" 2 %\n", b""], &mut targets, is_one);
            }
            for _ in 0..2 {
                write_both((&log, &log), [b"3 %\n", b""], &mut targets, is_one);
            }
            let text = std::fs::read_to_string(folder.path().join("log")).unwrap();
            let lines: Vec<&str> = text.lines().collect();
            assert_eq!((lines[0], lines[1], lines[4], lines.len()), ("1 %", "3 %", "3 %", 5), "{text}");
            assert!(lines[2].starts_with("warning: output is lost: stdout cannot be written: No space left"), "{text}");
        }
    }
}
