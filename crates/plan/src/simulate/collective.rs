//! The schedules of a collective as tasks, as the interpreter of `ringpull-allreduce` runs them.
//!
//! A message is sent when its dependencies are done, and the processor takes an arrived message when its
//! dependencies are done. A rank takes one message after the other, to add or to copy.

use crate::Schedule;
use crate::schedule::{Action, Lane};
use crate::simulate::engine::{Hop, Simulation, Task, TaskKind, Transit, ns};
use crate::simulate::{Codes, Costs};

/// The stations of one rank's host.
pub(super) struct SimulatedHost {
    pub out: usize,
    pub into: usize,
    pub processor: usize,
    pub window: usize,
}

/// Adds the tasks of a collective, which each rank begins after its task in `begin`. Returns the tasks that
/// end with it on each rank. If all ranks' schedules are alike, one schedule represents them: the rank's
/// receives then have the bytes that it sends to other ranks.
pub(super) fn add(
    engine: &mut Simulation,
    (hosts, costs): (&[SimulatedHost], &Costs),
    (schedules, codes): (&[Schedule], Option<&Codes>),
    begin: &[Task],
    priority: i32,
) -> Vec<Task> {
    let is_one = schedules.len() == 1;
    // For each message, by rank and index: the task with which it is done on its rank, and the task that
    // sends it.
    let mut done: Vec<Vec<Task>> = Vec::new();
    let mut sent: Vec<Vec<Task>> = Vec::new();
    for (rank, schedule) in schedules.iter().enumerate() {
        let host = &hosts[rank];
        let mut own_done = Vec::with_capacity(schedule.messages());
        let mut own_sent = Vec::with_capacity(schedule.messages());
        for message in &schedule.all {
            let len = message.len();
            if message.action == Action::Send {
                let peer = schedule.out[message.lane as usize].peer;
                let bytes = codes.map_or(len as f64, |codes| codes.bytes(rank, message.start, len));
                let to = if is_one { host } else { &hosts[peer] };
                let hops = [host.out, to.into].map(|station| Hop::at(station, bytes)).into();
                let act = Transit {
                    window: Some(host.window),
                    priority,
                    bytes: len,
                    frees: true,
                    is_spread: false,
                    hops,
                    left: Vec::new(),
                };
                let send = engine.task(TaskKind::Send(act), &begin[rank..=rank]);
                let left = engine.task(TaskKind::Nothing, &[]);
                engine.wait_until_left(left, send);
                own_sent.push(send);
                own_done.push(left);
            } else {
                let added = if message.action == Action::Reduce { len as f64 / costs.sum_bytes_per_us } else { 0.0 };
                let time = ns(costs.message_us + added);
                let take = engine.task(TaskKind::Work { station: host.processor, time }, &begin[rank..=rank]);
                own_sent.push(take);
                own_done.push(take);
            }
        }
        for index in 0..schedule.messages() as u32 {
            for later in schedule.dependents(index) {
                engine.wait(own_sent[*later as usize], own_done[index as usize]);
            }
        }
        done.push(own_done);
        sent.push(own_sent);
    }
    for (rank, schedule) in schedules.iter().enumerate() {
        for (at, out) in schedule.out.iter().enumerate() {
            let (receiver, into) = if is_one {
                (rank, &schedule.into[at])
            } else {
                let lanes = &schedules[out.peer].into;
                (out.peer, lanes.iter().find(|lane| lane.peer == rank).expect("what is sent is received"))
            };
            let (sends, takes) = (ends(schedule, out), ends(&schedules[receiver], into));
            let mut sends = sends.into_iter().peekable();
            let mut last = None;
            for (take, end) in takes {
                while last.is_none_or(|(_, sent_end)| sent_end < end) && sends.peek().is_some() {
                    last = sends.next();
                }
                if let Some((send, _)) = last {
                    engine.wait(done[receiver][take as usize], sent[rank][send as usize]);
                }
            }
        }
    }
    done.iter()
        .zip(begin)
        .map(|(done, begin)| engine.task(TaskKind::Nothing, &[&done[..], &[*begin]].concat()))
        .collect()
}

/// The messages of a lane, each with the bytes up to its end. Ranks that are alike may cut a range at
/// different offsets, so messages are matched by their bytes.
fn ends(schedule: &Schedule, lane: &Lane) -> Vec<(u32, usize)> {
    let messages = (0..).map_while(|place| lane.message(place));
    let mut end = 0;
    messages
        .map(|index| {
            end += schedule.all[index as usize].len();
            (index, end)
        })
        .collect()
}
