//! The comm thread. It begins launched operations, keeps several sums under way, and hands finished
//! operations on.
//!
//! Only the comm thread uses the transport. Sums begin as they are launched, a limited number at once, and
//! progress together, by messages and in shared memory alike. A job that needs the communicator for itself
//! runs when no other operation of all ranks is under way, and so does a sum by the library's own allreduce.
//! The sums of a bucket are copied into one buffer, and back (`layout`). A job that chooses its own messages
//! is asked for the next ones when these are done. Finished operations are handed on in the order in which
//! they began, with two exceptions. An operation may overtake operations of lower priority. An operation for
//! which a held operation waits may overtake all. No operation overtakes another of its own topic.
//!
//! A divided sum, and messages of a key, begin when no earlier operation of their topics is under way,
//! because the earlier ones produce the value that an update needs, or the residual of a compressed gradient.
//! Until then they are held. Held operations delay only later operations of their topics and jobs that run
//! alone.
//!
//! The ranks of a process set begin its operation between operations of all ranks, each when it receives the
//! launch. Operations that have the same tag are not under way together.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use ringpull_base::timeline::{self, Phase};
use ringpull_base::{Awake, Buffer, Error, waits};

use crate::communicator::{BegunOperation, Communicator, PartUpdate, Passage};
use crate::interpreter::{Memory, Ticket};
use crate::progress::job::Submission;
use crate::progress::layout::Layout;
use crate::progress::messages::{Launch, Topic, Transfer};
use crate::progress::shared::{Command, LaunchedJobs, Shared};
use crate::transport::tag;

/// An operation under way: of one job, or of several sums in a bucket.
struct RunningOperation {
    jobs: Vec<(Topic, Submission)>,
    bucket: Option<Bucket>,
    launch: Launch,
    /// True if the job must be asked for its next messages.
    advances: bool,
    priority: i32,
    state: BegunOperation,
    /// The time at which it began, by the timeline's clock.
    since_ns: u64,
}

/// The offsets of several sums in one buffer, and the memory of each sum, which gets the result at the end.
struct Bucket {
    layout: Layout,
    lent: Vec<Memory>,
}

struct CommThread<'a> {
    shared: &'a Shared,
    communicator: Communicator,
    /// The operations under way, in the order in which they began.
    running: Vec<RunningOperation>,
    /// Commands of all ranks that may not begin yet, in order.
    held: VecDeque<Command>,
    /// Operations of process sets that wait for another operation with their tag to end, in order.
    held_of_sets: VecDeque<Command>,
    finishing: &'a Sender<Submission>,
    /// Memory of buckets, for the next ones of the same length.
    buckets: Vec<Buffer>,
}

/// Runs launched jobs until it receives the command to stop, or until a fault ends this generation of ranks
/// and not the job. In the second case every job is kept or has failed.
pub(super) fn communicate(
    shared: &Shared,
    communicator: Communicator,
    inbox: &Receiver<Command>,
    finishing: &Sender<Submission>,
) {
    waits::leave_out_this_thread();
    let (running, held, held_of_sets, buckets) = (Vec::new(), VecDeque::new(), VecDeque::new(), Vec::new());
    let mut comm = CommThread { shared, communicator, running, held, held_of_sets, finishing, buckets };
    let mut lingers = false;
    loop {
        if comm.running.is_empty()
            && let Some(fault) = shared.condition.loss()
        {
            // Commands are sent under this lock, and no command is sent after a fault. So these are all
            // commands.
            let waiting = shared.waiting.lock();
            let left = comm.held_of_sets.drain(..).chain(comm.held.drain(..)).chain(inbox.try_iter());
            let left: Vec<Command> = left.collect();
            drop(waiting);
            left.into_iter().flat_map(Command::into_jobs).for_each(|(_, job)| shared.abandon(job, &fault));
            break;
        }
        let held = comm.take_held();
        let was_held = held.is_some();
        let command = match held {
            Some(command) => command,
            None if comm.running.is_empty() => comm.next(inbox, std::mem::take(&mut lingers)).unwrap_or(Command::Stop),
            None => inbox.try_recv().unwrap_or(Command::Go),
        };
        match command {
            command if !was_held && comm.holds(&command) => {
                let held = if command.is_of_a_set() { &mut comm.held_of_sets } else { &mut comm.held };
                held.push_back(command);
            }
            // Every rank has called the barrier, so nothing is left to be done.
            Command::Run(LaunchedJobs { jobs, launch, cycle_bytes: None }) if launch.topic == Topic::Barrier => {
                match shared.condition.fault() {
                    Some(fault) => jobs.into_iter().for_each(|(_, job)| shared.abandon(job, &fault)),
                    None => comm.end(launch.number, jobs.into_iter()),
                }
            }
            Command::Run(LaunchedJobs { jobs, launch, cycle_bytes }) => {
                comm.take(jobs, launch, cycle_bytes.unwrap_or(0));
            }
            Command::Go => {
                comm.go_on();
                lingers = true;
            }
            Command::Stop => break,
        }
    }
    while !comm.running.is_empty() {
        comm.go_on();
    }
    if !shared.condition.is_well() {
        comm.communicator.abandon();
    }
}

impl CommThread<'_> {
    /// The number of operations of all ranks that are under way.
    fn running_of_all(&self) -> usize {
        self.running.iter().filter(|running| !running.is_of_a_set()).count()
    }

    /// Returns true if a command must be held, because it may not begin or may not pass held commands. An
    /// operation of a process set is held only while another has its tag: its ranks may wait for it before they
    /// come to the operations under way.
    fn holds(&self, command: &Command) -> bool {
        if matches!(command, Command::Go) || command.is_of_a_set() {
            return self.shares_tag(command);
        }
        let may_begin = || self.running_of_all() < self.communicator.most_under_way() && !self.waits(command, 0);
        !self.held.is_empty() || !may_begin()
    }

    /// Returns true if the messages of an operation under way could be taken for those of the command. That
    /// operation ends without the command: every rank has called it or will.
    fn shares_tag(&self, command: &Command) -> bool {
        let is_of = |own: u32| self.running.iter().any(|it| !it.is_done() && tag(it.launch.number) == own);
        tag_of(command).is_some_and(is_of)
    }

    /// Takes the first held command that may begin. The commands that it passes keep their places.
    fn take_held(&mut self) -> Option<Command> {
        if let Some(at) = self.held_of_sets.iter().position(|command| !self.shares_tag(command)) {
            return self.held_of_sets.remove(at);
        }
        let room = self.communicator.most_under_way().saturating_sub(self.running_of_all());
        let may_pass =
            |at: &usize| *at == 0 || !self.keeps_place(&self.held[*at - 1]) && !self.keeps_place(&self.held[*at]);
        let mut all = (0..self.held.len().min(room)).take_while(may_pass);
        let at = all.find(|at| !self.waits(&self.held[*at], *at))?;
        self.held.remove(at)
    }

    /// Returns true if a command waits for operations of its topics, or for one with its tag. Any command
    /// waits for operations of its topics that are held before it. A command that needs the results of earlier
    /// operations also waits for those under way. The last command waits for all operations of process sets.
    fn waits(&self, command: &Command, place: usize) -> bool {
        let is_of = |topic: &Topic| command.is_of(topic);
        // In a job that goes on without lost ranks, no rank finishes an operation before every rank has all
        // data of the previous operation on that topic. So a rank lacks at most one operation that another
        // rank has.
        let waits_for_running = command.needs_earlier() || self.shared.elastic.is_some();
        (waits_for_running && self.running.iter().flat_map(RunningOperation::topics).any(is_of))
            || self
                .held
                .iter()
                .take(place)
                .any(|held| held.jobs().any(|(topic, _)| is_of(topic)) || share_tag(held, command))
            || self.shares_tag(command)
            || (matches!(command, Command::Stop) && !self.held_of_sets.is_empty())
    }

    /// Returns true if a command passes no held command and no command passes it. Another rank that has begun
    /// such a command begins nothing else until it is done.
    fn keeps_place(&self, command: &Command) -> bool {
        self.communicator.sums_block()
            || !matches!(command, Command::Run(_))
            || command.jobs().any(|(_, job)| job.is_alone())
    }

    /// Returns the next command, while no operation is under way. A caller that waited for the last operation
    /// may send a command soon, and a sleep would delay that command.
    fn next(&mut self, inbox: &Receiver<Command>, lingers: bool) -> Result<Command, RecvTimeoutError> {
        const LINGER: Duration = Duration::from_micros(100);
        const NAPS: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(100));
        let mut awake = Awake::new(if lingers { LINGER } else { Duration::ZERO });
        loop {
            if let Ok(command) = inbox.try_recv() {
                return Ok(command);
            }
            if !awake.is_awake() {
                break;
            }
        }
        let mut nap = NAPS.0;
        loop {
            match inbox.recv_timeout(nap) {
                Err(RecvTimeoutError::Timeout) if self.shared.condition.is_well() => {
                    self.communicator.executor().progress();
                }
                Err(RecvTimeoutError::Timeout) => {}
                next => return next,
            }
            nap = (2 * nap).min(NAPS.1);
        }
    }

    /// Begins a sum or a job's messages, or runs a job that needs the communicator to itself.
    fn take(&mut self, mut jobs: Vec<(Topic, Submission)>, launch: Launch, step_bytes: usize) {
        if let Some(fault) = self.shared.condition.fault() {
            return jobs.into_iter().for_each(|(_, job)| self.shared.abandon(job, &fault));
        }
        if jobs.iter().any(|(_, job)| job.check.is_some())
            && let Err(fault) = self.check(&mut jobs, &launch)
        {
            return jobs.into_iter().for_each(|(_, job)| self.shared.abandon(job, &fault));
        }
        if let [(_, job)] = &jobs[..]
            && let Transfer::Messages { priority } = job.job.transfer()
        {
            return self.begin(jobs, launch, priority);
        }
        let sums = jobs.iter().map(|(_, job)| match job.job.transfer() {
            Transfer::Sum { dtype, reduction, len_bytes, priority, is_divided } => {
                Some(((reduction, dtype), len_bytes, priority, is_divided))
            }
            Transfer::Alone | Transfer::Messages { .. } => None,
        });
        let Some(sums) = sums.collect::<Option<Vec<_>>>() else {
            return jobs.into_iter().for_each(|(_, job)| self.run_alone(job, &launch));
        };
        let (arithmetic, _, priority, is_divided) =
            sums.iter().copied().max_by_key(|sum| sum.2).expect("a unit has a member");
        if self.communicator.sums_block() {
            self.drain();
        }
        if let Some(fault) = self.shared.condition.fault() {
            return jobs.into_iter().for_each(|(_, job)| self.shared.abandon(job, &fault));
        }
        let owners = if is_divided { self.communicator.size() } else { 1 };
        let layout = Layout::new(sums.iter().map(|sum| sum.1), arithmetic.1.size_bytes(), owners);
        let update = if is_divided { Some(self.part_update(&mut jobs, &layout)) } else { None };
        let update = match update.transpose() {
            Ok(update) => update,
            Err(cause) => {
                self.fail(&cause, Vec::new());
                return jobs.into_iter().for_each(|(_, job)| self.shared.abandon(job, &cause));
            }
        };
        let parts = layout.parts();
        let span = timeline::span(Phase::Pack, || launch.topic.name());
        let (memory, bucket) = if let [(_, job)] = &mut jobs[..] {
            (job.job.lend(), None)
        } else {
            let lent: Vec<Memory> = jobs.iter_mut().map(|(_, job)| job.job.lend()).collect();
            (Memory::Own(self.fill(&lent, &layout)), Some(Bucket { layout, lent }))
        };
        drop(span);
        let since_ns = timeline::now_ns();
        // If sums block, this one runs from here on.
        self.shared.running.lock().begin(launch.number, launch.topic.clone());
        let (comm, stamp) = (&mut self.communicator, launch.number);
        let begun = match update {
            None => comm.begin_allreduce(arithmetic, memory, stamp, (priority, step_bytes)),
            Some(update) => {
                let passage = Passage { stamp, priority };
                comm.begin_divided((arithmetic.1, parts), memory, update, passage, step_bytes)
            }
        };
        if !matches!(begun, Ok(BegunOperation::UnderWay(_))) {
            timeline::record(Phase::Collective, || launch.topic.name(), since_ns, 0);
        }
        match begun {
            Ok(state) => {
                self.running.push(RunningOperation {
                    jobs,
                    bucket,
                    launch,
                    advances: false,
                    priority,
                    state,
                    since_ns,
                });
            }
            Err(cause) => {
                bucket.into_iter().for_each(|bucket| bucket.give_back(&mut jobs));
                self.fail(&cause, jobs.into_iter().map(|(_, job)| job).collect());
            }
        }
    }

    /// Begins the messages of a job.
    fn begin(&mut self, jobs: Vec<(Topic, Submission)>, launch: Launch, priority: i32) {
        if launch.topic.set().is_none() && self.communicator.sums_block() {
            // The job may come to a sum by the library's own allreduce, and two operations could reach such
            // sums in different orders.
            self.drain();
            if let Some(fault) = self.shared.condition.fault() {
                return jobs.into_iter().for_each(|(_, job)| self.shared.abandon(job, &fault));
            }
        }
        self.shared.running.lock().begin(launch.number, launch.topic.clone());
        let since_ns = timeline::now_ns();
        self.running.push(RunningOperation {
            jobs,
            bucket: None,
            launch,
            advances: true,
            priority,
            state: BegunOperation::Done(Memory::Nothing),
            since_ns,
        });
        match self.advance(self.running.len() - 1) {
            Ok(()) => {
                self.count_traffic();
                self.hand_on();
            }
            Err(cause) => self.fail(&cause, Vec::new()),
        }
    }

    /// Asks the job of an operation for its next messages, until messages are under way or the job has no
    /// more.
    fn advance(&mut self, at: usize) -> Result<(), Error> {
        let RunningOperation { jobs, launch, state, since_ns, .. } = &mut self.running[at];
        let [(topic, job)] = &mut jobs[..] else { unreachable!("messages are one job's") };
        loop {
            match job.job.advance(&mut self.communicator, launch)? {
                Some(BegunOperation::Done(memory)) => job.job.receive(memory),
                Some(begun) => {
                    *state = begun;
                    return Ok(());
                }
                None => break,
            }
        }
        *state = BegunOperation::Done(Memory::Nothing);
        timeline::record(Phase::Collective, || topic.name(), *since_ns, 0);
        Ok(())
    }

    /// Runs the checks that come before the sums of these jobs. Returns the first fault, if there was one.
    fn check(&mut self, jobs: &mut [(Topic, Submission)], launch: &Launch) -> Result<(), Error> {
        self.drain();
        for (topic, check) in jobs.iter_mut().filter_map(|(topic, job)| Some((topic, job.check.as_mut()?))) {
            if let Some(fault) = self.shared.condition.fault() {
                return Err(fault);
            }
            self.shared.running.lock().begin(launch.number, topic.clone());
            if let Err(cause) = check(&mut self.communicator, launch) {
                self.fail(&cause, Vec::new());
                return Err(self.shared.condition.fault().unwrap_or(cause));
            }
            self.shared.running.lock().end(launch.number, topic.clone());
        }
        self.count_traffic();
        Ok(())
    }

    /// Returns the update that this rank applies to the sums of its part of the bucket.
    fn part_update(&self, jobs: &mut [(Topic, Submission)], layout: &Layout) -> Result<PartUpdate, Error> {
        let rank = self.communicator.rank();
        let mut start = layout.parts().range(0..rank).len() * layout.element();
        // For each piece: its range in the bucket, its start in its job's memory, and its update.
        let mut pieces: Vec<(Range<usize>, usize, PartUpdate)> = Vec::new();
        for (job, piece) in layout.pieces_of(rank) {
            let update = jobs[job].1.job.part_update(piece.clone())?;
            pieces.push((start..start + piece.len(), piece.start, update));
            start += piece.len();
        }
        Ok(Box::new(move |start, sums| {
            let end = start + sums.len();
            let first = pieces.partition_point(|(place, ..)| place.end <= start);
            for (place, origin, update) in pieces[first..].iter_mut().take_while(|(place, ..)| place.start < end) {
                let (from, to) = (place.start.max(start), place.end.min(end));
                if from < to {
                    update(*origin + from - place.start, &mut sums[from - start..to - start])?;
                }
            }
            Ok(())
        }))
    }

    /// Returns a buffer with all the elements that are to be summed.
    fn fill(&mut self, lent: &[Memory], layout: &Layout) -> Buffer {
        let len_bytes = layout.len_bytes();
        let kept = self.buckets.iter().position(|bucket| bucket.bytes().len() == len_bytes);
        let mut bucket = kept.map_or_else(|| Buffer::zeroed(len_bytes), |at| self.buckets.swap_remove(at));
        let mut rest = bucket.bytes_mut();
        for (job, piece) in layout.pieces() {
            let (place, behind) = rest.split_at_mut(piece.len());
            place.copy_from_slice(&lent[job].bytes()[piece]);
            rest = behind;
        }
        bucket
    }

    /// Copies each sum of a bucket into the memory of its tensor.
    fn empty(&mut self, sums: Buffer, Bucket { layout, lent }: &mut Bucket) {
        let mut rest = sums.bytes();
        for (job, piece) in layout.pieces() {
            let (sum, behind) = rest.split_at(piece.len());
            lent[job].bytes_mut()[piece].copy_from_slice(sum);
            rest = behind;
        }
        self.buckets.push(sums);
        if self.buckets.len() > self.communicator.most_under_way() {
            // This is a bucket of a cycle that has ended.
            self.buckets.remove(0);
        }
    }

    fn run_alone(&mut self, mut job: Submission, launch: &Launch) {
        self.drain();
        if let Some(fault) = self.shared.condition.fault() {
            return self.shared.abandon(job, &fault);
        }
        self.shared.running.lock().begin(launch.number, launch.topic.clone());
        let span = timeline::span(Phase::Collective, || launch.topic.name());
        let outcome = job.job.run(&mut self.communicator, launch);
        drop(span);
        self.count_traffic();
        match outcome {
            Ok(()) => self.end(launch.number, std::iter::once((launch.topic.clone(), job))),
            Err(cause) => self.fail(&cause, vec![job]),
        }
    }

    fn count_traffic(&self) {
        let (sent, received) = self.communicator.traffic_bytes();
        self.shared.counters.sent_bytes.store(sent, Ordering::Relaxed);
        self.shared.counters.received_bytes.store(received, Ordering::Relaxed);
    }

    /// Advances the operations under way, or waits a little.
    fn go_on(&mut self) {
        let executor = self.communicator.executor();
        let outcome = executor.advance().and_then(|moved| if moved { Ok(()) } else { executor.pause() });
        self.count_traffic();
        match outcome {
            Ok(()) => self.hand_on(),
            Err(cause) => self.fail(&cause, Vec::new()),
        }
    }

    /// Waits until no operation of all ranks is under way.
    fn drain(&mut self) {
        while self.running_of_all() > 0 {
            self.go_on();
        }
    }

    /// Hands on the finished operations that are next in order.
    fn hand_on(&mut self) {
        loop {
            let finished: Vec<(Ticket, Memory)> = self.communicator.executor().take_finished().collect();
            if finished.is_empty() {
                break;
            }
            let mut outcome = Ok(());
            for (ticket, memory) in finished {
                let is_of_it = |running: &RunningOperation| matches!(running.state, BegunOperation::UnderWay(own) if own == ticket);
                let at = self.running.iter().position(is_of_it);
                let at = at.expect("a ticket belongs to an operation under way");
                let running = &mut self.running[at];
                if running.advances {
                    running.jobs[0].1.job.receive(memory);
                    outcome = outcome.and_then(|()| self.advance(at));
                } else {
                    timeline::record(Phase::Collective, || running.jobs[0].0.name(), running.since_ns, 0);
                    running.state = BegunOperation::Done(memory);
                }
            }
            if let Err(cause) = outcome {
                return self.fail(&cause, Vec::new());
            }
        }
        if !self.running.iter().any(RunningOperation::is_done) {
            return;
        }
        while let Some(at) = self.next_to_go() {
            let RunningOperation { mut jobs, bucket, launch, advances, state, .. } = self.running.remove(at);
            let BegunOperation::Done(memory) = state else { unreachable!("it is done") };
            if let Some(mut bucket) = bucket {
                let _span = timeline::span(Phase::Unpack, || jobs[0].0.name());
                self.empty(memory.into_buffer(), &mut bucket);
                bucket.give_back(&mut jobs);
            } else if !advances {
                jobs[0].1.job.receive(memory);
            }
            self.end(launch.number, jobs.into_iter());
        }
    }

    /// Returns the place of the first operation that may be handed on.
    fn next_to_go(&self) -> Option<usize> {
        // The topics for which held commands wait: their own, and those of operations that the operations of
        // these topics may not overtake.
        let mut awaited: Vec<&Topic> = self.held.iter().flat_map(Command::jobs).map(|(topic, _)| topic).collect();
        if !awaited.is_empty() {
            for running in self.running.iter().rev() {
                if running.topics().any(|topic| awaited.contains(&topic)) {
                    awaited.extend(running.topics());
                }
            }
        }
        (0..self.running.len()).find(|at| self.may_go(*at, &awaited))
    }

    fn may_go(&self, at: usize, awaited: &[&Topic]) -> bool {
        let sum = &self.running[at];
        let shares = |earlier: &RunningOperation| earlier.topics().any(|topic| sum.topics().any(|own| own == topic));
        let is_awaited = sum.topics().any(|topic| awaited.contains(&topic));
        let is_apart = |earlier: &RunningOperation| !earlier.launch.topic.shares_ranks(&sum.launch.topic);
        let gives_way = |earlier: &RunningOperation| {
            is_apart(earlier) || ((is_awaited || earlier.priority < sum.priority) && !shares(earlier))
        };
        sum.is_done() && self.running[..at].iter().all(gives_way)
    }

    /// Finishes the jobs of an operation, or passes them to the finishing thread.
    fn end(&self, number: u32, jobs: impl Iterator<Item = (Topic, Submission)>) {
        let mut last = None;
        for (topic, job) in jobs {
            let finishes_here = job.job.is_soon_finished() && self.shared.unfinished.is_empty();
            self.shared.unfinished.give();
            if finishes_here {
                self.shared.finish(job);
            } else {
                drop(self.finishing.send(job));
            }
            last = Some(topic);
        }
        last.into_iter().for_each(|topic| self.shared.running.lock().end(number, topic));
    }

    /// Reports the cause to all ranks, if it is the first. Every operation under way fails with it.
    fn fail(&mut self, cause: &Error, jobs: Vec<Submission>) {
        self.shared.poison(cause, true);
        let fault = &self.shared.condition.fault().unwrap_or_else(|| cause.clone());
        self.communicator.executor().abandon().into_iter().for_each(|memory| memory.give_up(fault));
        for RunningOperation { mut jobs, bucket, advances, state, .. } in self.running.drain(..) {
            match (bucket, state) {
                (Some(bucket), _) => bucket.give_back(&mut jobs),
                (None, BegunOperation::Done(memory)) if !advances => jobs[0].1.job.receive(memory),
                _ => {}
            }
            jobs.into_iter().for_each(|(_, job)| self.shared.abandon(job, fault));
        }
        jobs.into_iter().for_each(|job| self.shared.abandon(job, fault));
        self.shared.running.lock().clear();
    }
}

fn tag_of(command: &Command) -> Option<u32> {
    if let Command::Run(launched) = command { Some(tag(launched.launch.number)) } else { None }
}

fn share_tag(one: &Command, other: &Command) -> bool {
    tag_of(one).is_some_and(|tag| tag_of(other) == Some(tag))
}

impl RunningOperation {
    fn topics(&self) -> impl Iterator<Item = &Topic> {
        self.jobs.iter().map(|(topic, _)| topic)
    }

    fn is_of_a_set(&self) -> bool {
        self.launch.topic.set().is_some()
    }

    fn is_done(&self) -> bool {
        matches!(self.state, BegunOperation::Done(_))
    }
}

impl Bucket {
    fn give_back(self, jobs: &mut [(Topic, Submission)]) {
        jobs.iter_mut().zip(self.lent).for_each(|((_, job), memory)| job.job.receive(memory));
    }
}

/// Ends the process if the thread unwinds, because the peers would otherwise wait for ever.
pub(super) struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}
