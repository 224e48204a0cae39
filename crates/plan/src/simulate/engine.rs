//! The clock of the simulation: tasks, their dependencies, and the stations that they occupy.
//!
//! A station is one direction of a link, or a processor. It serves messages and work in the order of arrival.
//! A message passes several stations one after the other, and its head goes on while its tail still arrives.
//! So if all stations are free, a message takes its time at the slowest station, and the latency. Time is in
//! whole nanoseconds and everything else is in order, so the same tasks always take the same time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Nanoseconds since the beginning.
pub(super) type Ns = u64;
/// A task, by its number.
pub(super) type Task = u32;

/// The action of a task when everything for which it waits is done.
pub(super) enum TaskKind {
    Nothing,
    /// Takes this time, beside all other tasks.
    Delay(Ns),
    /// Occupies a station.
    Work {
        station: usize,
        time: Ns,
    },
    Send(Transit),
    /// Makes room in a window.
    Answered {
        window: usize,
        bytes: usize,
    },
}

pub(super) struct Transit {
    /// The window in which the message waits until earlier tasks have made room.
    pub window: Option<usize>,
    /// Among waiting messages, those of higher priority go first, and then those of earlier tasks.
    pub priority: i32,
    /// The bytes for which the message counts in its window.
    pub bytes: usize,
    /// True if the message makes room when it has left its first station. Otherwise an `Answered` task makes
    /// room.
    pub frees: bool,
    /// True if the message represents several, some of which find the first station free and are at the
    /// second at once.
    pub is_spread: bool,
    pub hops: Vec<Hop>,
    /// The tasks that wait until it has left.
    pub left: Vec<Task>,
}

/// Stations that a message occupies at the same time, each for `bytes` bytes.
#[derive(Clone)]
pub(super) struct Hop {
    pub stations: std::ops::Range<usize>,
    /// A station of the range that the message does not occupy.
    pub but: Option<usize>,
    pub bytes: f64,
}

impl Hop {
    pub(super) fn at(station: usize, bytes: f64) -> Self {
        Hop { stations: station..station + 1, but: None, bytes }
    }
}

struct QueuedEvent {
    pending: u32,
    then: Vec<Task>,
    act: TaskKind,
}

struct Station {
    ns_per_byte: f64,
    free: Ns,
}

struct SimulatedWindow {
    waiting: BinaryHeap<(i32, Reverse<Task>)>,
    messages: usize,
    bytes: usize,
    /// The limits of messages and of bytes. There is room while either is not reached.
    most: (usize, usize),
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Done(Task),
    Left(Task),
    /// The head of the task's message is at this hop. Its tail leaves the previous hop at this time.
    Head(Task, usize, Ns),
}

pub(super) struct Simulation {
    tasks: Vec<QueuedEvent>,
    stations: Vec<Station>,
    windows: Vec<SimulatedWindow>,
    events: BinaryHeap<Reverse<(Ns, u64, Event)>>,
    posted: u64,
    latency: Ns,
    done: Vec<Option<Ns>>,
}

pub(super) fn ns(us: f64) -> Ns {
    (us * 1e3).round() as Ns
}

impl Simulation {
    pub(super) fn new(latency_us: f64) -> Self {
        Simulation {
            tasks: Vec::new(),
            stations: Vec::new(),
            windows: Vec::new(),
            events: BinaryHeap::new(),
            posted: 0,
            latency: ns(latency_us),
            done: Vec::new(),
        }
    }

    pub(super) fn station(&mut self, bytes_per_us: f64) -> usize {
        self.stations.push(Station { ns_per_byte: 1e3 / bytes_per_us, free: 0 });
        self.stations.len() - 1
    }

    /// Adds a window that has room while fewer messages or fewer bytes than these are under way.
    pub(super) fn window(&mut self, messages: usize, bytes: usize) -> usize {
        self.windows.push(SimulatedWindow {
            waiting: BinaryHeap::new(),
            messages: 0,
            bytes: 0,
            most: (messages, bytes),
        });
        self.windows.len() - 1
    }

    /// Adds a task that waits for the tasks `after`.
    pub(super) fn task(&mut self, act: TaskKind, after: &[Task]) -> Task {
        let task = self.tasks.len() as Task;
        self.tasks.push(QueuedEvent { pending: 0, then: Vec::new(), act });
        after.iter().for_each(|earlier| self.wait(task, *earlier));
        task
    }

    /// Lets a task wait for another one too.
    pub(super) fn wait(&mut self, task: Task, earlier: Task) {
        self.tasks[earlier as usize].then.push(task);
        self.tasks[task as usize].pending += 1;
    }

    /// Lets a task wait until a message has left.
    pub(super) fn wait_until_left(&mut self, task: Task, sent: Task) {
        if let TaskKind::Send(message) = &mut self.tasks[sent as usize].act {
            message.left.push(task);
            self.tasks[task as usize].pending += 1;
        }
    }

    /// Returns the time at which each task is done.
    ///
    /// # Panics
    /// If tasks wait for one another.
    pub(super) fn run(mut self) -> Vec<Ns> {
        self.done = vec![None; self.tasks.len()];
        let first: Vec<Task> =
            (0..self.tasks.len() as Task).filter(|task| self.tasks[*task as usize].pending == 0).collect();
        first.into_iter().for_each(|task| self.begin(task, 0));
        while let Some(Reverse((now, _, event))) = self.events.pop() {
            match event {
                Event::Done(task) => {
                    self.done[task as usize] = Some(now);
                    let then = std::mem::take(&mut self.tasks[task as usize].then);
                    then.into_iter().for_each(|later| self.release(later, now));
                }
                Event::Left(task) => {
                    let TaskKind::Send(message) = &mut self.tasks[task as usize].act else { continue };
                    let left = std::mem::take(&mut message.left);
                    let freed = message.window.filter(|_| message.frees).map(|window| (window, message.bytes));
                    left.into_iter().for_each(|later| self.release(later, now));
                    if let Some((window, bytes)) = freed {
                        self.make_room(window, bytes, now);
                    }
                }
                Event::Head(task, at, tail) => self.pass(task, at, now, tail),
            }
        }
        let done = self.done.into_iter().collect::<Option<Vec<Ns>>>();
        done.expect("no task waits for one that waits for it: plans make progress")
    }

    fn post(&mut self, at: Ns, event: Event) {
        self.posted += 1;
        self.events.push(Reverse((at, self.posted, event)));
    }

    fn release(&mut self, task: Task, now: Ns) {
        let pending = &mut self.tasks[task as usize].pending;
        *pending -= 1;
        if *pending == 0 {
            self.begin(task, now);
        }
    }

    fn begin(&mut self, task: Task, now: Ns) {
        match &self.tasks[task as usize].act {
            TaskKind::Nothing => self.post(now, Event::Done(task)),
            TaskKind::Delay(time) => self.post(now + time, Event::Done(task)),
            TaskKind::Work { station, time } => {
                let station = &mut self.stations[*station];
                station.free = station.free.max(now) + time;
                let end = station.free;
                self.post(end, Event::Done(task));
            }
            TaskKind::Send(Transit { window: Some(window), priority, .. }) => {
                let window = *window;
                self.windows[window].waiting.push((*priority, Reverse(task)));
                self.leave(window, now);
            }
            TaskKind::Send(_) => self.pass(task, 0, now, now),
            TaskKind::Answered { window, bytes } => {
                let (window, bytes) = (*window, *bytes);
                self.post(now, Event::Done(task));
                self.make_room(window, bytes, now);
            }
        }
    }

    fn make_room(&mut self, window: usize, bytes: usize, now: Ns) {
        self.windows[window].messages -= 1;
        self.windows[window].bytes -= bytes;
        self.leave(window, now);
    }

    /// Sends the waiting messages of a window while there is room.
    fn leave(&mut self, window: usize, now: Ns) {
        loop {
            let SimulatedWindow { waiting, messages, bytes, most } = &mut self.windows[window];
            if *messages >= most.0 && *bytes >= most.1 {
                return;
            }
            let Some((_, Reverse(task))) = waiting.pop() else { return };
            let TaskKind::Send(message) = &self.tasks[task as usize].act else { return };
            *messages += 1;
            *bytes += message.bytes;
            self.pass(task, 0, now, now);
        }
    }

    /// Handles the arrival of a message's head at a hop.
    fn pass(&mut self, task: Task, at: usize, now: Ns, tail: Ns) {
        let TaskKind::Send(message) = &self.tasks[task as usize].act else { return };
        let (hop, hops, is_spread) = (message.hops[at].clone(), message.hops.len(), message.is_spread);
        let (mut start, mut end) = (now, now.max(tail));
        for station in hop.stations.filter(|station| Some(*station) != hop.but) {
            let station = &mut self.stations[station];
            let begin = station.free.max(now);
            station.free = begin + (hop.bytes * station.ns_per_byte).round() as Ns;
            start = start.max(begin);
            end = end.max(station.free);
        }
        if at == 0 {
            self.post(end, Event::Left(task));
        }
        let latency = if at == 0 { self.latency } else { 0 };
        if at + 1 < hops {
            let head = if is_spread && at == 0 { now } else { start };
            self.post(head + latency, Event::Head(task, at + 1, end + latency));
        } else {
            self.post(end + if hops == 1 { latency } else { 0 }, Event::Done(task));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(window: Option<usize>, priority: i32, hops: Vec<Hop>) -> TaskKind {
        TaskKind::Send(Transit { window, priority, bytes: 1, frees: true, is_spread: false, hops, left: Vec::new() })
    }

    #[test]
    fn a_message_takes_the_time_of_its_slowest_station_and_the_latency() {
        let mut engine = Simulation::new(5.0);
        let (fast, slow) = (engine.station(100.0), engine.station(50.0));
        let hops = |stations: [usize; 2]| stations.map(|station| Hop::at(station, 1000.0)).to_vec();
        let up = engine.task(message(None, 0, hops([fast, slow])), &[]);
        let down = engine.task(message(None, 0, hops([slow, fast])), &[up]);
        let done = engine.run();
        assert_eq!([done[up as usize], done[down as usize]], [25_000, 50_000]);
    }

    #[test]
    fn a_station_serves_one_after_another_and_a_lane_the_urgent_first() {
        let mut engine = Simulation::new(0.0);
        let station = engine.station(1.0);
        let window = engine.window(1, 0);
        let sent: Vec<Task> = [0, 1, 2]
            .map(|priority| engine.task(message(Some(window), priority, vec![Hop::at(station, 10.0)]), &[]))
            .to_vec();
        let done = engine.run();
        assert_eq!(sent.iter().map(|task| done[*task as usize]).collect::<Vec<_>>(), [10_000, 30_000, 20_000]);
    }

    #[test]
    fn an_answer_makes_room_in_a_lane() {
        let mut engine = Simulation::new(0.0);
        let station = engine.station(1.0);
        let window = engine.window(1, 0);
        let hops = || vec![Hop::at(station, 10.0)];
        let push = |engine: &mut Simulation| {
            let act = TaskKind::Send(Transit {
                window: Some(window),
                priority: 0,
                bytes: 1,
                frees: false,
                is_spread: false,
                hops: hops(),
                left: Vec::new(),
            });
            let push = engine.task(act, &[]);
            let merged = engine.task(TaskKind::Delay(7000), &[push]);
            engine.task(TaskKind::Answered { window, bytes: 1 }, &[merged])
        };
        let (first, second) = (push(&mut engine), push(&mut engine));
        let done = engine.run();
        assert_eq!([done[first as usize], done[second as usize]], [17_000, 34_000]);
    }
}
