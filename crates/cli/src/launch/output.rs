//! The processes' output: printed with the process's name before each line, printed as it is, or kept.
//!
//! All output of a job goes through one [`Printer`], whichever launcher starts its processes: it is the only
//! writer of the launcher's stdout and stderr, so it can keep the lines of processes apart (`lines`). It takes
//! bytes faster than a slow reader of its output does, up to [`BACKLOG`]: a process is not blocked by a pager.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::lines::Lines;

/// Where the output of a job's processes goes.
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

/// How many bytes wait for the readers of the launcher's output before processes have to.
const BACKLOG: usize = 64 << 20;
/// How many bytes are read at once.
pub(super) const PIECE: usize = 64 << 10;

/// One stream of a process, to a [`Printer`].
#[derive(Debug)]
pub(super) struct OutputSource {
    shared: Arc<Shared>,
    stream: OutputStream,
    number: usize,
}

#[derive(Debug)]
struct Shared {
    queue: Mutex<Queue>,
    /// There is an event.
    more: Condvar,
    /// There is room, or nothing is left to write.
    less: Condvar,
    /// Whether stdout and stderr are one file, such as a terminal.
    is_one: bool,
}

#[derive(Debug, Default)]
struct Queue {
    events: VecDeque<Event>,
    /// The bytes of `events`, and of those that are being written.
    bytes: usize,
    sources: [usize; 2],
    is_closed: bool,
    /// Whether the end of the program does not wait for what is left.
    is_given_up: bool,
}

#[derive(Debug)]
enum Event {
    Add(OutputStream, Option<String>),
    Bytes(OutputStream, usize, Vec<u8>),
    End(OutputStream, usize),
}

/// Prints the output of all processes, in a thread. What it was given is printed when it is dropped.
#[derive(Debug)]
pub(super) struct Printer {
    feed: Feed,
    thread: Option<JoinHandle<()>>,
}

/// A way to add streams to a [`Printer`].
#[derive(Debug, Clone)]
pub(super) struct Feed(Arc<Shared>);

impl Printer {
    pub(super) fn start() -> Self {
        let is_one = are_one(std::io::stdout(), std::io::stderr());
        let shared = Arc::new(Shared { queue: Mutex::default(), more: Condvar::new(), less: Condvar::new(), is_one });
        let feed = Feed(Arc::clone(&shared));
        Printer { feed, thread: Some(std::thread::spawn(move || shared.print())) }
    }

    pub(super) fn feed(&self) -> Feed {
        self.feed.clone()
    }

    /// Leaves what is not written to the thread, which the end of this process ends: nobody reads it.
    pub(super) fn give_up(&self) {
        self.feed.0.lock().is_given_up = true;
    }

    /// Whether bytes wait to be written.
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
    /// Prints a line of the launcher's own to stderr.
    pub(super) fn say(&self, line: &str) {
        self.source(OutputStream::Err, None).write(format!("{line}\n").into_bytes());
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
    /// Prints bytes soon. Waits if too many wait already.
    pub(super) fn write(&self, bytes: Vec<u8>) {
        let mut queue = self.shared.lock();
        while queue.bytes > BACKLOG && !queue.is_closed {
            queue = self.shared.less.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        queue.bytes += bytes.len();
        queue.events.push_back(Event::Bytes(self.stream, self.number, bytes));
        self.shared.more.notify_one();
    }
}

/// One end of a pipe.
pub(super) trait Pipe: Read + AsFd + Send {}
impl<T: Read + AsFd + Send> Pipe for T {}

/// What comes through a pipe, at once, in whole lines as far as they have come: what is read at once may end
/// within a line whose rest is there too.
pub(super) struct Pieces<P> {
    from: P,
    read: Vec<u8>,
    /// The begin of a line whose rest is there too.
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

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn text_of(&self, stream: OutputStream) -> usize {
        usize::from(!self.is_one && stream == OutputStream::Err)
    }

    fn print(&self) {
        let mut texts = [Lines::default(), Lines::default()];
        let mut is_lost = [false; 2];
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
            write(std::io::stdout().lock(), &out, &mut is_lost[0]);
            write(std::io::stderr().lock(), &err, &mut is_lost[1]);
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

/// Whether both are the same file.
fn are_one(one: impl AsFd, other: impl AsFd) -> bool {
    match (rustix::fs::fstat(one), rustix::fs::fstat(other)) {
        (Ok(one), Ok(other)) => (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino),
        _ => false,
    }
}

/// Writes everything, unless the reader has gone.
fn write(mut to: impl Write + AsFd, bytes: &[u8], is_lost: &mut bool) {
    if bytes.is_empty() || *is_lost {
        return;
    }
    if let Err(cause) = write_all(&mut to, bytes) {
        *is_lost = true;
        tracing::debug!(%cause, "output is lost: its reader has gone");
    }
}

/// As `write_all`, also to a terminal that somebody else has told not to block.
fn write_all(to: &mut (impl Write + AsFd), mut bytes: &[u8]) -> std::io::Result<()> {
    while !bytes.is_empty() {
        match to.write(bytes) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(count) => bytes = &bytes[count..],
            Err(cause) if cause.kind() == ErrorKind::Interrupted => {}
            Err(cause) if cause.kind() == ErrorKind::WouldBlock => {
                poll(&mut [PollFd::new(&to, PollFlags::OUT)], None)?;
            }
            Err(cause) => return Err(cause),
        }
    }
    to.flush()
}

/// The lines of a stream that comes in pieces. The rest of one that is longer than a piece is left out.
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
