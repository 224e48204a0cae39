//! The comm thread: begins what is launched, keeps several sums under way, and hands on what is finished.
//!
//! It alone talks to the transport. Sums are begun as they are launched, up to a number, and move together; a job that wants
//! the host to itself is run when nothing else is under way. Finished sums are handed on in the order in which they were begun,
//! except that one may overtake those of lower priority; never one of its own topic.
#![allow(unsafe_code)]

use std::sync::atomic::Ordering;

use crossbeam_channel::{Receiver, Sender};

use crate::collective::Ticket;
use crate::communicator::Host;
use crate::error::Error;
use crate::progress::agreement::{Launch, Topic};
use crate::progress::job::{Job, Wire};
use crate::progress::shared::{Command, Shared};
use crate::timeline::{self, Phase};

/// Sums under way at once: enough to hide the latency of each, few enough to keep the messages posted for them few.
const MOST_FLIGHTS: usize = 16;

/// A sum under way.
struct Flight {
    job: Box<dyn Job>,
    topic: Topic,
    priority: i32,
    /// `None` when it is finished.
    ticket: Option<Ticket>,
    /// When it was begun, by the timeline's clock.
    since_ns: u64,
}

struct Comm<'a> {
    shared: &'a Shared,
    host: Host,
    /// In the order in which they were begun.
    flights: Vec<Flight>,
    finishing: &'a Sender<Box<dyn Job>>,
}

/// Runs launched jobs until it is told to stop.
pub(super) fn communicate(shared: &Shared, host: Host, inbox: &Receiver<Command>, finishing: &Sender<Box<dyn Job>>) {
    let _guard = AbortOnPanic;
    let mut comm = Comm { shared, host, flights: Vec::new(), finishing };
    loop {
        let command = match comm.flights.len() {
            0 => inbox.recv().unwrap_or(Command::Stop),
            MOST_FLIGHTS.. => Command::Go,
            _ => inbox.try_recv().unwrap_or(Command::Go),
        };
        match command {
            Command::Run(job, launch) => comm.take(job, &launch),
            Command::Go => comm.go_on(),
            Command::Stop => break,
        }
    }
    comm.drain();
    if shared.fault.get().is_some() {
        // Requests may be in flight; the library must not be called any more, not even to free it.
        std::mem::forget(comm.host);
    }
}

impl Comm<'_> {
    fn take(&mut self, mut job: Box<dyn Job>, launch: &Launch) {
        if let Some(fault) = self.shared.fault.get() {
            return job.fail(fault);
        }
        match job.wire() {
            Wire::Sum { dtype, priority, .. } if launch.topic != Topic::Barrier => {
                let span = timeline::span(Phase::Pack, || launch.topic.name());
                let addend: *mut [u8] = job.addend();
                drop(span);
                let since_ns = timeline::now_ns();
                // SAFETY: the job owns the memory, or its lock, and is kept until its ticket is reported; after a fault it is
                // told to fail, and then keeps for ever what the transport may still use.
                match unsafe { self.host.begin_allreduce(dtype, addend, launch.number, priority) } {
                    Ok(ticket) => {
                        let topic = launch.topic.clone();
                        self.flights.push(Flight { job, topic, priority, ticket, since_ns });
                        self.note();
                    }
                    Err(cause) => self.fail(&cause, Some(job)),
                }
            }
            _ => self.run_alone(job, launch),
        }
    }

    fn run_alone(&mut self, mut job: Box<dyn Job>, launch: &Launch) {
        self.drain();
        if let Some(fault) = self.shared.fault.get() {
            return job.fail(fault);
        }
        *self.shared.running.lock() = vec![launch.topic.clone()];
        let span = timeline::span(Phase::Collective, || launch.topic.name());
        let outcome = job.run(&mut self.host, launch);
        drop(span);
        match outcome {
            Ok(()) => {
                self.shared.running.lock().clear();
                self.done(job, launch.topic.clone());
            }
            Err(cause) => self.fail(&cause, Some(job)),
        }
    }

    /// Moves what is under way, or waits a little.
    fn go_on(&mut self) {
        let outcome = self.host.advance().and_then(|moved| if moved { Ok(()) } else { self.host.pause() });
        match outcome {
            Ok(()) => self.hand_on(),
            Err(cause) => self.fail(&cause, None),
        }
    }

    /// Returns when nothing is under way.
    fn drain(&mut self) {
        while !self.flights.is_empty() {
            self.go_on();
        }
    }

    /// Hands on what is finished and may go.
    fn hand_on(&mut self) {
        let mut finished = 0;
        for ticket in self.host.take_finished() {
            let flight = self.flights.iter_mut().find(|flight| flight.ticket == Some(ticket));
            let flight = flight.expect("a ticket belongs to a sum under way");
            timeline::record(Phase::Collective, || flight.topic.name(), flight.since_ns, 0);
            flight.ticket = None;
            finished += 1;
        }
        if finished == 0 && self.flights.iter().all(|flight| flight.ticket.is_some()) {
            return;
        }
        while let Some(at) = (0..self.flights.len()).find(|at| self.may_go(*at)) {
            let flight = self.flights.remove(at);
            self.done(flight.job, flight.topic);
        }
        self.note();
    }

    fn may_go(&self, at: usize) -> bool {
        let flight = &self.flights[at];
        let gives_way = |earlier: &Flight| earlier.priority < flight.priority && earlier.topic != flight.topic;
        flight.ticket.is_none() && self.flights[..at].iter().all(gives_way)
    }

    fn done(&self, job: Box<dyn Job>, topic: Topic) {
        let (sent, received) = self.host.traffic_bytes();
        self.shared.sent_bytes.store(sent, Ordering::Relaxed);
        self.shared.received_bytes.store(received, Ordering::Relaxed);
        *self.shared.last.lock() = Some(topic);
        drop(self.finishing.send(job));
    }

    /// The first cause is everybody's; everything under way fails with it.
    fn fail(&mut self, cause: &Error, job: Option<Box<dyn Job>>) {
        self.shared.poison(cause, true);
        let fault = self.shared.fault.get().unwrap_or(cause);
        self.flights.drain(..).map(|flight| flight.job).chain(job).for_each(|job| job.fail(fault));
    }

    fn note(&self) {
        *self.shared.running.lock() = self.flights.iter().map(|flight| flight.topic.clone()).collect();
    }
}

/// Ends the process if its thread unwinds: the peers would wait for ever.
pub(super) struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}
