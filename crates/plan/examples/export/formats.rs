//! Schedules for other programs: as data, as the operations of GOAL, which `LogGOPSim` and its successors
//! simulate (Hoefler, Siebert and Lumsdaine 2009, "Group operation assembly language"), and as actions of a
//! time-independent trace, which `SimGrid` replays (Desprez, Markomanolis, Quinson and Suter 2011).

use std::fmt::Write as _;

use ringpull_plan::{Action, Message, Schedule};

/// A message as one of its two ranks sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ExportedMessage {
    /// `send`, `reduce` or `copy`: the last two receive.
    pub(crate) action: &'static str,
    /// The rank at the other end.
    pub(crate) peer: usize,
    /// The message's number among those to, or from, the peer. Both ends have the same number.
    pub(crate) tag: usize,
    /// The offset of the message's bytes in the buffer.
    pub(crate) start: usize,
    /// The number of its bytes.
    pub(crate) bytes: usize,
    /// The messages of this rank that must be done first, by their indices.
    pub(crate) after: Vec<usize>,
}

/// The messages of a schedule, in program order.
pub(crate) fn messages(schedule: &Schedule) -> Vec<ExportedMessage> {
    let mut tags = [vec![0; schedule.out.len()], vec![0; schedule.into.len()]];
    let of = |message: &Message| {
        let (action, lanes, tags) = match message.action {
            Action::Send => ("send", &schedule.out, &mut tags[0]),
            Action::Reduce => ("reduce", &schedule.into, &mut tags[1]),
            Action::Copy => ("copy", &schedule.into, &mut tags[1]),
        };
        let lane = message.lane as usize;
        tags[lane] += 1;
        let (peer, tag) = (lanes[lane].peer, tags[lane] - 1);
        ExportedMessage { action, peer, tag, start: message.start, bytes: message.len(), after: Vec::new() }
    };
    let mut all: Vec<ExportedMessage> = schedule.all.iter().map(of).collect();
    for index in 0..all.len() {
        for later in schedule.dependents(index as u32) {
            all[*later as usize].after.push(index);
        }
    }
    all
}

/// The block of one rank in GOAL. A file is `num_ranks N` and the blocks of all ranks.
pub(crate) fn goal(rank: usize, schedule: &Schedule) -> String {
    let mut text = format!("rank {rank} {{\n");
    let all = messages(schedule);
    let wrote = "a string takes all that is written";
    for (index, message) in (1..).zip(&all) {
        let ExportedMessage { peer, tag, bytes, .. } = message;
        let (verb, way) = if message.action == "send" { ("send", "to") } else { ("recv", "from") };
        writeln!(text, "l{index}: {verb} {bytes}b {way} {peer} tag {tag}").expect(wrote);
    }
    for (index, message) in (1..).zip(&all) {
        for earlier in &message.after {
            writeln!(text, "l{index} requires l{}", earlier + 1).expect(wrote);
        }
    }
    text + "}\n"
}

/// The actions of one rank in a trace that `smpirun -replay` reads: a file has the actions of all ranks. A
/// trace has one order for each rank and no dependencies, so messages are posted in program order, each after
/// a wait for the messages that it needs. At the end there are waits for all messages that are still under
/// way. The cost of adding is not included.
pub(crate) fn smpi(rank: usize, schedule: &Schedule) -> String {
    let all = messages(schedule);
    let is_send = |message: &ExportedMessage| message.action == "send";
    let wait = |message: &ExportedMessage| {
        let (from, to) = if is_send(message) { (rank, message.peer) } else { (message.peer, rank) };
        format!("{rank} wait {from} {to} {}\n", message.tag)
    };
    let (mut lines, mut open) = (vec![format!("{rank} init\n")], vec![false; all.len()]);
    for (index, message) in all.iter().enumerate() {
        for earlier in &message.after {
            if std::mem::take(&mut open[*earlier]) {
                lines.push(wait(&all[*earlier]));
            }
        }
        let ExportedMessage { peer, tag, bytes, .. } = message;
        let verb = if is_send(message) { "isend" } else { "irecv" };
        lines.push(format!("{rank} {verb} {peer} {tag} {bytes}\n"));
        open[index] = true;
    }
    let rest = all.iter().zip(open).filter(|(_, is_open)| *is_open);
    lines.extend(rest.map(|(message, _)| wait(message)));
    lines.push(format!("{rank} finalize\n"));
    lines.concat()
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use ringpull_base::DType;
    use ringpull_plan::{Algorithm, allreduce};

    use super::*;

    fn schedule(algorithm: Algorithm, rank: usize, size: usize, len: usize) -> Schedule {
        Schedule::of(&allreduce(algorithm, rank, size, len), DType::F32, 64)
    }

    #[test]
    fn a_ring_of_two_sends_its_part_and_forwards_the_sum() {
        let expected = "rank 0 {\n\
            l1: send 20b to 1 tag 0\nl2: recv 20b from 1 tag 0\nl3: send 20b to 1 tag 1\nl4: recv 20b from 1 tag 1\n\
            l3 requires l2\nl4 requires l1\n}\n";
        assert_eq!(goal(0, &schedule(Algorithm::Ring, 0, 2, 10)), expected);
    }

    #[test]
    fn a_trace_waits_for_what_a_message_needs_and_for_each_message_once() {
        let expected = "0 init\n0 isend 1 0 20\n0 irecv 1 0 20\n0 wait 1 0 0\n0 isend 1 1 20\n0 wait 0 1 0\n\
            0 irecv 1 1 20\n0 wait 0 1 1\n0 wait 1 0 1\n0 finalize\n";
        assert_eq!(smpi(0, &schedule(Algorithm::Ring, 0, 2, 10)), expected);
        for algorithm in Algorithm::ALL {
            for (size, rank) in (1..10).flat_map(|size| (0..size).map(move |rank| (size, rank))) {
                let mut open = BTreeSet::new();
                for line in smpi(rank, &schedule(algorithm, rank, size, 97)).lines() {
                    let words: Vec<&str> = line.split(' ').collect();
                    assert_eq!(words[0], rank.to_string());
                    let number = |at: usize| words[at].parse::<usize>().unwrap();
                    match words[1] {
                        "isend" => assert!(open.insert((rank, number(2), number(3))), "{line}"),
                        "irecv" => assert!(open.insert((number(2), rank, number(3))), "{line}"),
                        "wait" => assert!(open.remove(&(number(2), number(3), number(4))), "{line}"),
                        _ => assert!(["init", "finalize"].contains(&words[1]), "{line}"),
                    }
                }
                assert!(open.is_empty(), "{algorithm} on {size}, rank {rank}: {open:?}");
            }
        }
    }

    #[test]
    fn what_one_rank_sends_another_receives_under_the_same_tag() {
        for algorithm in Algorithm::ALL {
            for size in 1..10 {
                let mut open: BTreeMap<(usize, usize, usize), (usize, usize)> = BTreeMap::new();
                let all: Vec<_> = (0..size).map(|rank| messages(&schedule(algorithm, rank, size, 97))).collect();
                let sides = |is_send: bool| {
                    let of = move |(rank, list): (usize, &Vec<ExportedMessage>)| {
                        let own = list.clone().into_iter().filter(move |message| (message.action == "send") == is_send);
                        own.map(move |message| (rank, message))
                    };
                    all.iter().enumerate().flat_map(of)
                };
                for (rank, it) in sides(true) {
                    open.insert((rank, it.peer, it.tag), (it.start, it.bytes));
                }
                for (rank, it) in sides(false) {
                    let sent = open.remove(&(it.peer, rank, it.tag));
                    assert_eq!(sent, Some((it.start, it.bytes)), "{algorithm} on {size}, rank {rank}");
                }
                assert!(open.is_empty(), "{algorithm} on {size}: {open:?}");
                let is_earlier = |list: &Vec<ExportedMessage>| {
                    list.iter().enumerate().all(|(at, message)| message.after.iter().all(|earlier| *earlier < at))
                };
                assert!(all.iter().all(is_earlier), "{algorithm} on {size}");
            }
        }
    }
}
