//! Shows on stderr what a command is doing, from its third second on: as a bar or a spinner in a terminal,
//! elsewhere as a line every ten seconds. Nothing is coloured.

use std::io::IsTerminal as _;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Shorter work shows nothing.
const SHORT: Duration = Duration::from_secs(2);
/// The interval at which a line is printed if stderr is not a terminal.
const INTERVAL: Duration = Duration::from_secs(10);
const TICK: Duration = Duration::from_millis(200);

/// The progress of the work.
#[derive(Debug, Clone, Default)]
struct ProgressState {
    /// The number of finished parts and of all parts, if the work has parts.
    parts: Option<(usize, usize)>,
    words: String,
    /// Results so far that have not been shown.
    results: Vec<String>,
}

/// Shows the progress of some work until it is dropped.
#[derive(Debug)]
pub struct Progress {
    state: Arc<Mutex<ProgressState>>,
    end: Option<Sender<()>>,
    shown: Option<JoinHandle<()>>,
}

impl Progress {
    /// Begins to show progress. `words` name the first work.
    pub fn start(words: impl Into<String>) -> Self {
        let state = Arc::new(Mutex::new(ProgressState { words: words.into(), ..ProgressState::default() }));
        let (end, ended) = channel();
        let of_thread = Arc::clone(&state);
        let in_terminal = std::io::stderr().is_terminal();
        let show = move || {
            let wait = |time| ended.recv_timeout(time) == Err(RecvTimeoutError::Timeout);
            let begun = Instant::now();
            if !wait(SHORT) {
                return;
            }
            if in_terminal {
                // Hidden until its state is complete, because each change is drawn.
                let bar = ProgressBar::hidden().with_elapsed(begun.elapsed());
                update(&bar, &lock(&of_thread));
                bar.set_draw_target(ProgressDrawTarget::stderr());
                while wait(TICK) {
                    update(&bar, &lock(&of_thread));
                    results(&of_thread).for_each(|text| bar.println(text));
                    bar.tick();
                }
                bar.finish_and_clear();
                return;
            }
            loop {
                results(&of_thread).for_each(|text| eprintln!("{text}"));
                eprintln!("{}", line(&lock(&of_thread), begun.elapsed()));
                if !wait(INTERVAL) {
                    return;
                }
            }
        };
        let spawned = std::thread::Builder::new().name("progress".to_owned()).spawn(show);
        if let Err(cause) = &spawned {
            tracing::debug!(%cause, "no progress is shown");
        }
        Progress { state, end: Some(end), shown: spawned.ok() }
    }

    /// Shows that the work named by `words` has begun.
    pub fn at(&self, words: impl Into<String>) {
        lock(&self.state).words = words.into();
    }

    /// Shows the next part of the work: `done` of `all` parts are finished.
    pub fn part(&self, done: usize, all: usize, words: impl Into<String>) {
        let mut state = lock(&self.state);
        (state.parts, state.words) = (Some((done, all)), words.into());
    }

    /// Shows a result so far above the progress.
    pub fn result(&self, text: String) {
        lock(&self.state).results.push(text);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(shown) = self.shown.take()
            && shown.join().is_err()
        {
            tracing::debug!("the progress ended with a panic");
        }
    }
}

fn lock(state: &Mutex<ProgressState>) -> MutexGuard<'_, ProgressState> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

fn results(state: &Mutex<ProgressState>) -> impl Iterator<Item = String> {
    std::mem::take(&mut lock(state).results).into_iter()
}

fn update(bar: &ProgressBar, state: &ProgressState) {
    let template = match state.parts {
        None => "{spinner} {elapsed}: {msg}",
        Some((0, _)) => "{bar:24} {pos} of {len}, {elapsed} so far: {msg}",
        Some(_) => "{bar:24} {pos} of {len}, {elapsed} so far, {eta} left: {msg}",
    };
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar.set_message(state.words.clone());
    if let Some((done, all)) = state.parts {
        bar.set_length(all as u64);
        bar.set_position(done as u64);
    }
}

/// The state as one line. The time left takes all parts to be alike.
fn line(state: &ProgressState, elapsed: Duration) -> String {
    let parts = state.parts.map_or(String::new(), |(done, all)| format!("{done} of {all} done, "));
    let left = state.parts.filter(|(done, _)| *done > 0).map_or(String::new(), |(done, all)| {
        format!(", about {:.0} s left", elapsed.as_secs_f64() / done as f64 * (all - done) as f64)
    });
    format!("progress: {parts}{} s so far{left}: {}", elapsed.as_secs(), state.words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_how_far_the_work_is_without_codes_of_a_terminal() {
        let mut state = ProgressState { words: "host 3 of 8".to_owned(), ..ProgressState::default() };
        assert_eq!(line(&state, Duration::from_millis(2300)), "progress: 2 s so far: host 3 of 8");
        state.parts = Some((7, 35));
        assert_eq!(
            line(&state, Duration::from_secs(12)),
            "progress: 7 of 35 done, 12 s so far, about 48 s left: host 3 of 8"
        );
    }

    #[test]
    fn short_work_ends_at_once() {
        let begun = Instant::now();
        let progress = Progress::start("something");
        progress.part(1, 2, "something else");
        drop(progress);
        assert!(begun.elapsed() < SHORT);
    }
}
