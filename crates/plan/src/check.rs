//! The proof that the plans of all ranks fit together and reach their goal.
//!
//! [`check`] takes the plans of all ranks and a [`Goal`] and proves three things, or returns the fault and
//! its place.
//!
//! 1. *Form.* All ranks divide the buffer alike. No move is empty, to its own rank or out of bounds. The
//!    sends of each rank to each other match, in order and with the same parts, the receives of the other. In
//!    an alltoall each rank divides its own buffer, and both ends have parts of the same lengths.
//! 2. *Progress.* Nothing waits for itself, even if no message is buffered anywhere. Each move has two
//!    events: it is posted, and it is done. By the rules of [`Plan`], the events of all ranks form a graph of
//!    dependencies, and a plan can stop only if this graph has a cycle. The graph's longest path is the
//!    number of messages that follow one another, the [`Traffic::rounds`].
//! 3. *Value.* The plans are executed with symbols in place of numbers: a symbol is a contribution (the
//!    initial content of a rank's part), or the sum of two symbols. As with floats, `x + y` is `y + x`, but
//!    `(x + y) + z` is not `x + (y + z)`. At the end each part of the goal must contain each contribution
//!    that the goal names exactly once. A part that the goal gives to every rank must be one symbol on all
//!    ranks, which means the same bits.
//!
//! All elements of a part are treated alike, so one symbol per part represents them. Time and memory grow
//! with the square of the number of ranks, so this is for tests.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;

use super::plan::{Move, Plan, ReceiveAction};

/// The goal of the plans: the contributions that each part of each rank ends with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Goal {
    /// Every rank ends with the sum of all ranks' buffers.
    Allreduce,
    /// Every one of the first `workers` ranks ends with the sum of their buffers. The others contribute
    /// nothing, and their final content has no meaning.
    HelpedAllreduce {
        /// The number of workers, which are the first ranks.
        workers: usize,
    },
    /// Every rank ends with the buffer of the root.
    Broadcast {
        /// The rank whose buffer all get.
        root: usize,
    },
    /// Every rank ends with part `r` of rank `r`, for each `r`.
    Allgather,
    /// Rank `r` ends with the sum of all ranks' parts `r`. The content of its other parts has no meaning.
    ReduceScatter,
    /// Each of `n` ranks has `2 n` blocks with equal numbers of parts. For each other rank `s`, rank `r` ends
    /// with block `r` of rank `s` in its block `n + s`. Its first `n` blocks are not changed.
    Alltoall,
}

/// The initial content of a part: the rank, and the part.
pub type PartContent = (usize, usize);

impl Goal {
    /// Returns true if all ranks divide one buffer in the same way.
    fn has_one_buffer(self) -> bool {
        self != Goal::Alltoall
    }

    /// Returns the number of ranks that end with equal content. They are the first of `size` ranks.
    fn alike(self, size: usize) -> usize {
        match self {
            Goal::Allreduce | Goal::Broadcast { .. } | Goal::Allgather => size,
            Goal::HelpedAllreduce { workers } => workers,
            Goal::ReduceScatter | Goal::Alltoall => 0,
        }
    }

    /// Returns the contributions that `part` of `rank` has to end with; `None` if its content has no meaning.
    fn expected(self, rank: usize, part: usize, plans: &[Plan]) -> Option<Vec<PartContent>> {
        let size = plans.len();
        let of_all = || Some((0..size).map(|other| (other, part)).collect());
        match self {
            Goal::Allreduce => of_all(),
            Goal::HelpedAllreduce { workers } if rank < workers => {
                Some((0..workers).map(|worker| (worker, part)).collect())
            }
            Goal::ReduceScatter if part == rank => of_all(),
            Goal::Broadcast { root } => Some(vec![(root, part)]),
            Goal::Allgather => Some(vec![(part, part)]),
            Goal::Alltoall => {
                let parts_per_block = |rank: usize| plans[rank].parts.count() / (2 * size);
                let (block, at) = (part / parts_per_block(rank), part % parts_per_block(rank));
                match block.checked_sub(size) {
                    None => Some(vec![(rank, part)]),
                    Some(from) if from == rank => None,
                    Some(from) => Some(vec![(from, rank * parts_per_block(from) + at)]),
                }
            }
            Goal::HelpedAllreduce { .. } | Goal::ReduceScatter => None,
        }
    }
}

/// The cost of correct plans.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Traffic {
    /// Elements sent, by rank.
    pub sent_len: Vec<usize>,
    /// Elements received, by rank.
    pub received_len: Vec<usize>,
    /// Messages sent, by rank.
    pub messages: Vec<usize>,
    /// The length of the longest chain of messages in which each waits for the previous one to arrive.
    pub rounds: usize,
}

/// The fault of wrong plans.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The buffer is divided differently.
    #[error("rank {rank} divides the buffer otherwise than rank 0")]
    PartsDiffer {
        /// The rank.
        rank: usize,
    },
    /// A move that no plan may have.
    #[error(
        "move {index} of rank {rank}, {step:?}, is to itself, to nobody, empty or out of bounds, or waits for what is no earlier receive"
    )]
    BadMove {
        /// The rank.
        rank: usize,
        /// The index of the move in the plan.
        index: usize,
        /// The move.
        step: Move,
    },
    /// A message that is sent and not received, or received and not sent, or has different lengths at its
    /// ends.
    #[error("message {index} of rank {from} to rank {to}: sent {sent:?}, received {received:?}")]
    Unmatched {
        /// The sender.
        from: usize,
        /// The receiver.
        to: usize,
        /// The number of the message between the two, from 0.
        index: usize,
        /// The parts sent, if it is sent.
        sent: Option<Range<usize>>,
        /// The parts received, if it is received.
        received: Option<Range<usize>>,
    },
    /// The plans wait for one another for ever.
    #[error("deadlock: rank {rank} never gets past move {index}, {step:?}")]
    Deadlock {
        /// A rank that waits.
        rank: usize,
        /// The first of its moves that is never done.
        index: usize,
        /// That move.
        step: Move,
    },
    /// A part does not end with the contributions it should have.
    #[error("part {part} of rank {rank} ends with {got:?}, expected {expected:?} (rank and part of each)")]
    WrongSum {
        /// The rank.
        rank: usize,
        /// The part.
        part: usize,
        /// The contributions that it has. A contribution that it has several times is repeated.
        got: Vec<PartContent>,
        /// The contributions that it should have.
        expected: Vec<PartContent>,
    },
    /// A part has the right contributions, but they were added in another order than on rank 0.
    #[error("part {part} of rank {rank} is added in another order than on rank 0: the bits may differ")]
    BitsDiffer {
        /// The rank.
        rank: usize,
        /// The part.
        part: usize,
    },
}

/// Proves that `plans`, one for each rank in order, reach `goal`, in the sense of the module's text.
pub fn check(plans: &[Plan], goal: Goal) -> Result<Traffic, Fault> {
    check_form(plans, goal)?;
    let messages = match_messages(plans, goal)?;
    let rounds = longest_chain(plans, &messages)?;
    check_values(plans, goal)?;
    let received = |plan: &Plan| {
        let receives = plan.moves.iter().filter(|step| matches!(step, Move::Recv { .. }));
        receives.map(|step| plan.parts.range(step.parts()).len()).sum()
    };
    let sends = |plan: &Plan| plan.moves.iter().filter(|step| matches!(step, Move::Send { .. })).count();
    Ok(Traffic {
        sent_len: plans.iter().map(Plan::sent_len).collect(),
        received_len: plans.iter().map(received).collect(),
        messages: plans.iter().map(sends).collect(),
        rounds,
    })
}

fn check_form(plans: &[Plan], goal: Goal) -> Result<(), Fault> {
    for (rank, plan) in plans.iter().enumerate() {
        let has_blocks = || plan.parts.count().is_multiple_of(2 * plans.len());
        let fits = if goal.has_one_buffer() { plan.parts == plans[0].parts } else { has_blocks() };
        if !fits {
            return Err(Fault::PartsDiffer { rank });
        }
        for (index, step) in plan.moves.iter().enumerate() {
            let (peer, parts) = (step.peer(), step.parts());
            let is_within = parts.start <= parts.end && parts.end <= plan.parts.count();
            if peer == rank || peer >= plans.len() || !is_within || plan.parts.range(parts).is_empty() {
                return Err(Fault::BadMove { rank, index, step: step.clone() });
            }
        }
        for (send, receive) in plan.after.iter().copied() {
            let are = (&plan.moves[send], &plan.moves[receive]);
            if receive >= send || !matches!(are, (Move::Send { .. }, Move::Recv { .. })) {
                return Err(Fault::BadMove { rank, index: send, step: are.0.clone() });
            }
        }
    }
    Ok(())
}

/// One message: the ranks of its two ends, and the indices of their moves.
struct MatchedMessage {
    from: usize,
    send: usize,
    to: usize,
    recv: usize,
}

/// Pairs the k-th send of each rank to each other rank with the k-th receive there.
fn match_messages(plans: &[Plan], goal: Goal) -> Result<Vec<MatchedMessage>, Fault> {
    let size = plans.len();
    let fit = |from: usize, sent: &Option<Range<usize>>, to: usize, received: &Option<Range<usize>>| {
        let lens = |rank: usize, parts: &Option<Range<usize>>| -> Vec<usize> {
            let parts = parts.clone().into_iter().flatten();
            parts.map(|part| plans[rank].parts.range(part..part + 1).len()).collect()
        };
        if goal.has_one_buffer() { sent == received } else { lens(from, sent) == lens(to, received) }
    };
    let mut sends: Vec<Vec<usize>> = vec![Vec::new(); size * size];
    let mut recvs = sends.clone();
    for (rank, plan) in plans.iter().enumerate() {
        for (index, step) in plan.moves.iter().enumerate() {
            match step {
                Move::Send { to, .. } => sends[rank * size + to].push(index),
                Move::Recv { from, .. } => recvs[from * size + rank].push(index),
            }
        }
    }
    let mut messages = Vec::new();
    for (pair, (sends, recvs)) in sends.iter().zip(&recvs).enumerate() {
        let (from, to) = (pair / size, pair % size);
        for index in 0..sends.len().max(recvs.len()) {
            let (send, recv) = (sends.get(index), recvs.get(index));
            let parts_sent = send.map(|at| plans[from].moves[*at].parts());
            let parts_received = recv.map(|at| plans[to].moves[*at].parts());
            match (send, recv) {
                (Some(&send), Some(&recv)) if fit(from, &parts_sent, to, &parts_received) => {
                    messages.push(MatchedMessage { from, send, to, recv });
                }
                _ => {
                    return Err(Fault::Unmatched { from, to, index, sent: parts_sent, received: parts_received });
                }
            }
        }
    }
    Ok(messages)
}

/// The dependencies of the events of all ranks. Each event has a number. Its round is the round of the last
/// message for which it waits.
struct Waits {
    /// For each event, the events that wait for it, each with true if it is a round later.
    then: Vec<Vec<(usize, bool)>>,
    /// For each event, the number of events for which it waits.
    missing: Vec<usize>,
}

impl Waits {
    fn add(&mut self, earlier: usize, later: usize, is_next_round: bool) {
        self.then[earlier].push((later, is_next_round));
        self.missing[later] += 1;
    }
}

/// Returns the length of the longest chain of messages, or the deadlock, if no message is buffered anywhere.
///
/// Each move has two events, posted and done. A message is done for its sender when both ends are posted. A
/// reduce may be posted before the earlier moves on its parts are done, because it arrives in separate
/// memory, but it is done after them.
fn longest_chain(plans: &[Plan], messages: &[MatchedMessage]) -> Result<usize, Fault> {
    let mut offsets = vec![0];
    for plan in plans {
        offsets.push(offsets[offsets.len() - 1] + 2 * plan.moves.len());
    }
    let posted = |rank: usize, index: usize| offsets[rank] + 2 * index;
    let done = |rank: usize, index: usize| offsets[rank] + 2 * index + 1;
    let events = offsets[plans.len()];
    let mut waits = Waits { then: vec![Vec::new(); events], missing: vec![0; events] };
    for (rank, plan) in plans.iter().enumerate() {
        for (index, step) in plan.moves.iter().enumerate() {
            for (earlier, before) in plan.moves[..index].iter().enumerate() {
                if follow_on_one_wire(before, step) {
                    waits.add(done(rank, earlier), posted(rank, index), false);
                }
                let is_reduce = matches!(step, Move::Recv { then: ReceiveAction::Reduce, .. });
                if conflict(before, step) && is_reduce {
                    waits.add(done(rank, earlier), done(rank, index), false);
                } else if conflict(before, step) {
                    waits.add(done(rank, earlier), posted(rank, index), true);
                }
            }
        }
    }
    for (rank, plan) in plans.iter().enumerate() {
        plan.after.iter().for_each(|(send, receive)| waits.add(done(rank, *receive), posted(rank, *send), false));
    }
    for message in messages {
        let ends = [(message.from, message.send), (message.to, message.recv)];
        for (rank, index) in ends {
            for (other, at) in ends {
                waits.add(posted(other, at), done(rank, index), false);
            }
        }
    }
    let mut rounds = vec![0; events];
    let mut ready: Vec<usize> = (0..events).filter(|event| waits.missing[*event] == 0).collect();
    while let Some(event) = ready.pop() {
        for (later, is_next_round) in std::mem::take(&mut waits.then[event]) {
            rounds[later] = rounds[later].max(rounds[event] + usize::from(is_next_round));
            waits.missing[later] -= 1;
            if waits.missing[later] == 0 {
                ready.push(later);
            }
        }
    }
    for (rank, plan) in plans.iter().enumerate() {
        for (index, step) in plan.moves.iter().enumerate() {
            if waits.missing[done(rank, index)] > 0 {
                return Err(Fault::Deadlock { rank, index, step: step.clone() });
            }
        }
    }
    Ok(rounds.into_iter().max().map_or(0, |last| last + usize::from(events > 0)))
}

/// Returns true if two moves are in the same direction with the same peer.
fn follow_on_one_wire(before: &Move, after: &Move) -> bool {
    let is_send = |step: &Move| matches!(step, Move::Send { .. });
    is_send(before) == is_send(after) && before.peer() == after.peer()
}

/// Returns true if two moves touch the same part and one of them writes it.
fn conflict(before: &Move, after: &Move) -> bool {
    let (one, other) = (before.parts(), after.parts());
    let is_write = [before, after].into_iter().any(|step| matches!(step, Move::Recv { .. }));
    is_write && one.start < other.end && other.start < one.end
}

/// Symbols, numbered: contributions in the order of ranks and parts, then sums as they are made.
struct Symbols {
    sums: HashMap<(usize, usize), usize>,
    /// The contributions in each symbol, in ascending order. A contribution that was added several times is
    /// repeated.
    contributions: Vec<Vec<PartContent>>,
}

impl Symbols {
    fn of_ranks(size: usize, parts: usize) -> Self {
        let contributions = (0..size).flat_map(|rank| (0..parts).map(move |part| vec![(rank, part)])).collect();
        Symbols { sums: HashMap::new(), contributions }
    }

    /// The symbol `one + other`, which is `other + one`.
    fn sum(&mut self, one: usize, other: usize) -> usize {
        let operands = (one.min(other), one.max(other));
        if let Some(known) = self.sums.get(&operands) {
            return *known;
        }
        let mut ranks = [&self.contributions[one][..], &self.contributions[other][..]].concat();
        ranks.sort_unstable();
        self.contributions.push(ranks);
        self.sums.insert(operands, self.contributions.len() - 1);
        self.contributions.len() - 1
    }
}

fn check_values(plans: &[Plan], goal: Goal) -> Result<(), Fault> {
    let mut symbols = Symbols::of_ranks(plans.len(), most_parts(plans));
    let values = execute(plans, &mut symbols)?;
    for (rank, values) in values.iter().enumerate() {
        for part in filled_parts(&plans[rank]) {
            let Some(expected) = goal.expected(rank, part, plans) else { continue };
            let got = &symbols.contributions[values[part]];
            if *got != expected {
                return Err(Fault::WrongSum { rank, part, got: got.clone(), expected });
            }
        }
    }
    for (rank, of_rank) in values.iter().enumerate().take(goal.alike(plans.len())) {
        for part in filled_parts(&plans[rank]) {
            if of_rank[part] != values[0][part] {
                return Err(Fault::BitsDiffer { rank, part });
            }
        }
    }
    Ok(())
}

/// Returns the greatest number of parts of any rank. If the ranks divide one buffer, all have this number.
fn most_parts(plans: &[Plan]) -> usize {
    plans.iter().map(|plan| plan.parts.count()).max().unwrap_or(0)
}

fn filled_parts(plan: &Plan) -> impl Iterator<Item = usize> {
    (0..plan.parts.count()).filter(|part| !plan.parts.range(*part..part + 1).is_empty())
}

/// Executes the plans in their plain meaning, with moves in order and sends that never wait. Returns each
/// rank's symbol per part.
fn execute(plans: &[Plan], symbols: &mut Symbols) -> Result<Vec<Vec<usize>>, Fault> {
    let (size, count) = (plans.len(), most_parts(plans));
    let mut values: Vec<Vec<usize>> = (0..size).map(|rank| (rank * count..(rank + 1) * count).collect()).collect();
    let mut wires: Vec<VecDeque<Vec<usize>>> = vec![VecDeque::new(); size * size];
    let mut next = vec![0; size];
    let mut ready: Vec<usize> = (0..size).collect();
    while let Some(rank) = ready.pop() {
        while let Some(step) = plans[rank].moves.get(next[rank]) {
            match step {
                Move::Send { to, parts } => {
                    wires[rank * size + to].push_back(values[rank][parts.clone()].to_vec());
                    ready.push(*to);
                }
                Move::Recv { from, parts, then } => {
                    let Some(arrived) = wires[from * size + rank].pop_front() else { break };
                    for (own, arrived) in values[rank][parts.clone()].iter_mut().zip(arrived) {
                        *own = if *then == ReceiveAction::Copy { arrived } else { symbols.sum(*own, arrived) };
                    }
                }
            }
            next[rank] += 1;
        }
    }
    for (rank, plan) in plans.iter().enumerate() {
        if let Some(step) = plan.moves.get(next[rank]) {
            return Err(Fault::Deadlock { rank, index: next[rank], step: step.clone() });
        }
    }
    Ok(values)
}
