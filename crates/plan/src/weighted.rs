//! Links that are not equally fast: trees in which each rank has as many neighbours as its link can carry.
//!
//! A buffer of `S` bytes that goes up a tree of the ranks and down again passes each edge once in each
//! direction: contributions are added on their way to the root, and the sum returns. A rank with `d`
//! neighbours sends `d S` and receives `d S`, whichever rank is the root. A tree of `n` ranks has `n - 1`
//! edges, so the degrees of all ranks add up to `2 (n-1)`; and any degrees of at least 1 that do so are those
//! of a tree.
//!
//! *The least time.* With `b_i` for the slower direction of rank `i`'s link, `d_i` for what it carries over
//! `S`, and `t` for the time over `S`, `1 <= d_i <= t b_i`: every rank must send its contribution to each
//! element, or a sum with it, and receive something of each element. Each element takes at least `2 (n-1)`
//! messages, so the sum of all `d_i` is no less. Therefore
//!
//! ```text
//!   t = max(1 / min(b), 2 (n-1) / sum(b))
//! ```
//!
//! *Parts.* One tree has whole numbers of neighbours. So the buffer is cut into parts, each with a tree of
//! its own, such that the mean degree of each rank is `d_i`. What a rank has beyond one neighbour, `d_i - 1`,
//! is laid end to end on a line of length `n - 2`. In the tree of the point `u` of 0 to 1, a rank has one
//! more neighbour for each of `u, u + 1, u + 2, ...` that lies on its piece. Between two ends of pieces,
//! modulo 1, all `u` have the same tree: there are at most `n`. Each rank has its `d_i` rounded up or down,
//! the fewest neighbours that meet in its link at a time: two or three if no rate is more than twice another.
//!
//! *What is left over.* Where `1 / min(b)` is longer, links other than the slowest carry less than they
//! could: all that carry more than `S` take equally long for what they carry.
//!
//! *With one of eight hosts at half the rate*, its link carries `S` and so it is a leaf of every tree. Each
//! tree is a line of the others with one of them, by turns, at its other end. That takes 2.0 of `S` over the
//! rate of a fast link, and a ring of even parts 3.5:
//!
//! ```text
//!   slow - h1 - h2 - h3 - h4 - h5 - h6 - h7          slow - h2 - h3 - h4 - h5 - h6 - h7 - h1     ...
//! ```
//!
//! *When.* All trees run at the same time. Each part is cut into as many segments; in each turn the next
//! segment of every part leaves the leaves of its tree. A segment rises one level in a turn, and from the
//! root it falls one level in a turn. Each rank thus has the same to do in every turn but the first and the
//! last ones, and its messages to one peer leave in the order of the turns.
//!
//! *How far ahead.* Messages to different peers share a link as TCP divides it, which is not evenly. The
//! leaves of a tree have all contributions at once: one flow would be far ahead of another, the sums of every
//! turn would wait for the flow that is behind, and the way back would be idle first and too narrow in the
//! end. So a contribution waits for the sum of an earlier segment of its part: of the segment that the turns
//! would have returned by then, and [`SLACK`] turns more.

//! *Helpers* are ranks that only reduce: they bring no contribution and keep no sum. A tree may have any of
//! them. With `n` workers and a helper in it, its degrees add up to `2 n`: two more than without. So a helper
//! of `d` neighbours takes `d - 2` off the workers for `d` that it carries, and the more neighbours the
//! better: it is the root of a tree in which every worker is a leaf. Such a part passes each worker's link
//! once in each direction. The rest of the buffer goes on trees of the workers alone. With `h` for the sum of
//! what the helpers' links carry in the time of 1, `t` is the least for which
//!
//! ```text
//!   sum over workers of (t b_i - 1)  =  (n - 2) (1 - t h / n),        t >= 1 / min(b of workers)
//! ```
//!
//! On equal links and with `k` helpers that is `t = 2 n (n-1) / (n^2 + k n - 2 k)`, and 1 from `k = n` on.
//! With two workers a helper takes nothing off them.
//!
//! ```text
//!   with n = 4 and k = 2, h for a helper:      h         h'          and the rest:  w1 - w2 - w3 - w4, ...
//!                                           /|   |\   /|   |\
//!                                          w1 w2 w3 w4 (of both)
//! ```
//!
//! Every worker has a message for every helper in each turn. They leave in an order in which no two of a slot
//! are for the same helper.

use std::collections::BTreeSet;

use super::parts::Parts;
use super::plan::{Move, Plan, Then};

/// Rates that differ by less count as equal: a probe on busy hosts is not more exact, and even parts take
/// fewer messages.
const ALIKE: f64 = 1.25;

/// Shorter parts are not worth a tree. Their ends move by less, and what a rank carries by less than twice
/// that.
const LEAST: f64 = 0.01;

/// Turns by which a contribution may be early: ranks that share cores do not keep step.
const SLACK: usize = 4;

/// What each rank's link carries, and the trees that suit it.
#[derive(Debug, Clone, PartialEq)]
pub struct Links {
    /// Of each rank, relative to the slowest.
    rates: Vec<f64>,
    /// How many of the ranks, the last ones, only reduce.
    helpers: usize,
    trees: Vec<Tree>,
}

/// What the trees for some links are like.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Shape {
    /// How many there are.
    pub trees: usize,
    /// The longest part of the buffer, of 1.
    pub longest_share: f64,
    /// The levels below a root.
    pub levels: usize,
    /// A rank's in one tree.
    pub most_neighbours: usize,
    /// What a rank sends, and receives, in a turn.
    pub most_messages: usize,
    /// What all ranks send in a turn,
    pub all_messages: usize,
    /// and of a buffer as long as 1.
    pub all_sent: f64,
}

/// A tree of ranks, all workers among them, and its part of the buffer.
#[derive(Debug, Clone, PartialEq)]
struct Tree {
    /// Of 1.
    share: f64,
    /// The helper that is its root.
    helper: Option<usize>,
    /// Of each rank; the root has none, nor has a helper of another tree.
    parents: Vec<Option<usize>>,
    children: Vec<Vec<usize>>,
    /// Levels below each rank.
    heights: Vec<usize>,
    /// Levels above each rank.
    depths: Vec<usize>,
}

impl Links {
    /// Of the ranks' rates in the slower direction of each, in any unit; `None` if they are so much alike
    /// that even parts suit them, or if there are fewer than three.
    pub fn of(rates: &[f64]) -> Option<Self> {
        let slowest = rates.iter().copied().fold(f64::INFINITY, f64::min);
        let fastest = rates.iter().copied().fold(0.0, f64::max);
        let is_sound = rates.iter().all(|rate| rate.is_finite() && *rate > 0.0);
        if rates.len() < 3 || !is_sound || fastest < ALIKE * slowest {
            return None;
        }
        let rates = classes(rates);
        let beyond = beyond(&rates);
        Some(Links::carrying(rates, &beyond))
    }

    /// Of the ranks' rates in the slower direction of each, in any unit, where the last `helpers` of them
    /// only reduce; `None` if they have nothing to do: there are none, or fewer than three workers.
    pub fn with_helpers(rates: &[f64], helpers: usize) -> Option<Self> {
        let is_sound = rates.iter().all(|rate| rate.is_finite() && *rate > 0.0);
        if helpers == 0 || rates.len() < helpers + 3 || !is_sound {
            return None;
        }
        Some(Links::helped(classes(rates), helpers))
    }

    fn helped(rates: Vec<f64>, helpers: usize) -> Self {
        let workers = rates.len() - helpers;
        let (of_workers, of_helpers) = rates.split_at(workers);
        let time = balanced_time(of_workers, of_helpers);
        let helped = helped_share(time, of_workers, of_helpers);
        let sum: f64 = of_helpers.iter().sum();
        let star = |(at, rate): (usize, &f64)| Tree::star(workers, (workers + at, helpers), helped * rate / sum);
        let mut trees: Vec<Tree> = of_helpers.iter().enumerate().map(star).collect();
        if helped < 1.0 {
            let all: f64 = of_workers.iter().map(|rate| (time * rate - 1.0).max(0.0)).sum();
            let whole = workers as f64 - 2.0;
            let beyond: Vec<f64> = of_workers.iter().map(|rate| (time * rate - 1.0).max(0.0) * whole / all).collect();
            trees.extend(self::trees(&beyond).into_iter().map(|tree| tree.among(1.0 - helped, helpers)));
        }
        Links { rates, helpers, trees }
    }

    /// Of ranks that carry as much more than the buffer, in buffers: `n - 2` together.
    pub(crate) fn carrying(rates: Vec<f64>, beyond: &[f64]) -> Self {
        Links { rates, helpers: 0, trees: trees(beyond) }
    }

    /// Those of the workers alone; `None` if even parts suit them.
    pub fn without_helpers(&self) -> Option<Self> {
        Links::of(&self.rates[..self.len() - self.helpers])
    }

    /// How many of the ranks, the last ones, only reduce.
    pub fn helpers(&self) -> usize {
        self.helpers
    }

    /// The number of ranks.
    #[allow(clippy::len_without_is_empty, reason = "there are at least three")]
    pub fn len(&self) -> usize {
        self.rates.len()
    }

    /// Of each rank, relative to the slowest.
    pub fn rates(&self) -> &[f64] {
        &self.rates
    }

    /// What each rank sends, and receives, of a buffer as long as 1.
    pub fn carried(&self) -> Vec<f64> {
        let of = |rank: usize| self.trees.iter().map(|tree| tree.share * tree.degree(rank) as f64).sum();
        (0..self.len()).map(of).collect()
    }

    /// What the trees are like.
    pub fn shape(&self) -> Shape {
        let degrees = |rank: usize| self.trees.iter().map(move |tree| tree.degree(rank));
        let most = |of: &dyn Fn(usize) -> usize| (0..self.len()).map(of).max().unwrap_or(0);
        Shape {
            trees: self.trees.len(),
            longest_share: self.trees.iter().map(|tree| tree.share).fold(0.0, f64::max),
            levels: self.trees.iter().map(Tree::height).max().unwrap_or(0),
            most_neighbours: most(&|rank| degrees(rank).max().unwrap_or(0)),
            most_messages: most(&|rank| degrees(rank).sum()),
            all_messages: (0..self.len()).flat_map(degrees).sum(),
            all_sent: self.carried().iter().sum(),
        }
    }

    /// The least time of an allreduce, where 1 is what the slowest link takes for the whole buffer.
    pub fn least_time(&self) -> f64 {
        if self.helpers == 0 {
            return least_time(&self.rates);
        }
        let (workers, helpers) = self.rates.split_at(self.len() - self.helpers);
        let slowest = workers.iter().copied().fold(f64::INFINITY, f64::min);
        balanced_time(workers, helpers).max(1.0 / slowest)
    }
}

/// The part of the buffer that helpers reduce in this time, of 1.
fn helped_share(time: f64, workers: &[f64], helpers: &[f64]) -> f64 {
    /// What is left over is not worth a tree.
    const WHOLE: f64 = 1.0 - LEAST;
    let share = time * helpers.iter().sum::<f64>() / workers.len() as f64;
    if share > WHOLE { 1.0 } else { share }
}

/// The time in which all links that carry more than the buffer do so until the end.
fn balanced_time(workers: &[f64], helpers: &[f64]) -> f64 {
    /// The time is halved as often: more digits than it has.
    const HALVINGS: usize = 64;
    let whole = workers.len() as f64 - 2.0;
    let is_enough = |time: f64| {
        let beyond: f64 = workers.iter().map(|rate| (time * rate - 1.0).max(0.0)).sum();
        beyond >= whole * (1.0 - helped_share(time, workers, helpers))
    };
    // Without helpers, and with all on the slowest link.
    let slowest = workers.iter().copied().fold(f64::INFINITY, f64::min);
    let (mut short, mut long) = (0.0, 2.0 / slowest);
    for _ in 0..HALVINGS {
        let half = f64::midpoint(short, long);
        if is_enough(half) {
            long = half;
        } else {
            short = half;
        }
    }
    long
}

/// The least time of an allreduce for links of these rates, of a buffer as long as 1 at the rate 1.
fn least_time(rates: &[f64]) -> f64 {
    let slowest = rates.iter().copied().fold(f64::INFINITY, f64::min);
    let bus = 2.0 * (rates.len() as f64 - 1.0) / rates.iter().sum::<f64>();
    bus.max(if rates.len() < 2 { 0.0 } else { 1.0 / slowest })
}

/// The rates, relative to the slowest, where those that a probe may have found for equal links are equal.
fn classes(rates: &[f64]) -> Vec<f64> {
    /// What the fastest link of a class may have more than the slowest.
    const NOISE: f64 = ALIKE;
    let mut ranks: Vec<usize> = (0..rates.len()).collect();
    ranks.sort_by(|one, other| rates[*one].total_cmp(&rates[*other]));
    let mut equal = vec![0.0; rates.len()];
    let mut rest = &ranks[..];
    while let [first, ..] = rest {
        let (class, others) = rest.split_at(rest.partition_point(|rank| rates[*rank] < NOISE * rates[*first]));
        let mean = class.iter().map(|rank| rates[*rank]).sum::<f64>() / class.len() as f64;
        class.iter().for_each(|rank| equal[*rank] = mean);
        rest = others;
    }
    let slowest = equal[ranks[0]];
    equal.iter().map(|rate| rate / slowest).collect()
}

/// How much more than the buffer each rank carries, in buffers: `n - 2` together.
fn beyond(rates: &[f64]) -> Vec<f64> {
    let mut busy: Vec<bool> = vec![true; rates.len()];
    loop {
        let of_busy = || rates.iter().zip(&busy).filter(|(_, is_busy)| **is_busy).map(|(rate, _)| *rate);
        let time = (rates.len() as f64 - 2.0 + of_busy().count() as f64) / of_busy().sum::<f64>();
        // A link that carries the buffer alone takes longer than the busy ones.
        let is_busy = |rate: &f64| time * rate > 1.0;
        if of_busy().all(|rate| is_busy(&rate)) {
            let of = |(rate, is_busy): (&f64, &bool)| if *is_busy { time * rate - 1.0 } else { 0.0 };
            return rates.iter().zip(&busy).map(of).collect();
        }
        busy.iter_mut().zip(rates).for_each(|(busy, rate)| *busy &= is_busy(rate));
    }
}

/// Trees in which each rank has as many neighbours beyond the first as `beyond` says, on average.
fn trees(beyond: &[f64]) -> Vec<Tree> {
    let whole = beyond.len() as f64 - 2.0;
    let mut ends: Vec<f64> = beyond
        .iter()
        .scan(0.0, |end, piece| {
            *end += piece;
            Some(*end)
        })
        .collect();
    // Whatever rounding has left.
    ends.iter_mut().rev().take_while(|end| whole - **end < LEAST).for_each(|end| *end = whole);
    let mut cuts: Vec<f64> = ends.iter().map(|end| end.fract()).chain([0.0]).collect();
    cuts.sort_by(f64::total_cmp);
    cuts.dedup_by(|cut, before| *cut - *before < LEAST);
    if 1.0 - cuts[cuts.len() - 1] < LEAST && cuts.len() > 1 {
        cuts.pop();
    }
    cuts.push(1.0);
    let of = |(at, cut): (usize, &[f64])| {
        let point = f64::midpoint(cut[0], cut[1]);
        let mut before = 0;
        let more = ends.iter().map(|end| {
            let until = (end - point).ceil().max(0.0) as usize;
            let here = until - before;
            before = until;
            here
        });
        Tree::of(&more.collect::<Vec<_>>(), at, cut[1] - cut[0])
    };
    cuts.windows(2).enumerate().map(of).collect()
}

impl Tree {
    /// The flattest one in which rank `r` has `1 + more[r]` neighbours; of equal ranks those from `first` on
    /// are nearer to the root.
    fn of(more: &[usize], first: usize, share: f64) -> Self {
        let size = more.len();
        let mut ranks: Vec<usize> = (0..size).map(|at| (at + first) % size).collect();
        ranks.sort_by_key(|rank| std::cmp::Reverse(more[*rank]));
        let mut tree = Tree {
            share,
            helper: None,
            parents: vec![None; size],
            children: vec![Vec::new(); size],
            heights: vec![0; size],
            depths: vec![0; size],
        };
        let mut next = 1;
        for (at, rank) in ranks.iter().enumerate() {
            let count = more[*rank] + usize::from(at == 0);
            for child in ranks.iter().skip(next).take(count) {
                tree.parents[*child] = Some(*rank);
                tree.depths[*child] = tree.depths[*rank] + 1;
                tree.children[*rank].push(*child);
            }
            next += count;
        }
        for rank in ranks.iter().rev() {
            if let Some(parent) = tree.parents[*rank] {
                tree.heights[parent] = tree.heights[parent].max(tree.heights[*rank] + 1);
            }
        }
        tree
    }

    /// A helper of so many, which has all workers as its children.
    fn star(workers: usize, (helper, helpers): (usize, usize), share: f64) -> Self {
        let size = workers + helpers;
        let mut tree = Tree {
            share,
            helper: Some(helper),
            parents: vec![None; size],
            children: vec![Vec::new(); size],
            heights: vec![0; size],
            depths: vec![1; size],
        };
        tree.parents[..workers].fill(Some(helper));
        tree.children[helper] = (0..workers).collect();
        (tree.heights[helper], tree.depths[helper]) = (1, 0);
        tree
    }

    /// The same for a shorter part, beside helpers of other trees.
    fn among(mut self, share: f64, helpers: usize) -> Self {
        let size = self.parents.len() + helpers;
        self.share *= share;
        self.parents.resize(size, None);
        self.children.resize(size, Vec::new());
        self.heights.resize(size, 0);
        self.depths.resize(size, 0);
        self
    }

    fn height(&self) -> usize {
        self.heights.iter().copied().max().unwrap_or(0)
    }

    fn degree(&self, rank: usize) -> usize {
        self.children[rank].len() + usize::from(self.parents[rank].is_some())
    }
}

/// The plan of `rank`, in as many turns.
pub(super) fn allreduce(rank: usize, links: &Links, len: usize, turns: usize) -> Plan {
    let trees = &links.trees;
    let (mut starts, mut share, mut start) = (Vec::with_capacity(trees.len() * turns + 1), 0.0, 0);
    for (at, tree) in trees.iter().enumerate() {
        share += tree.share;
        let end = if at + 1 == trees.len() { len } else { ((share * len as f64).round() as usize).clamp(start, len) };
        let cut = Parts::even(end - start, turns);
        starts.extend((0..turns).map(|turn| start + cut.range(0..turn).end));
        start = end;
    }
    starts.push(len);
    let slots = (links.len() - links.helpers).max(links.helpers).max(1);
    // With the turn in which each leaves its sender, and its slot there.
    let mut moves: Vec<((usize, usize), Move)> = Vec::new();
    for (at, tree) in trees.iter().enumerate() {
        let height = tree.height();
        for turn in 0..turns {
            let parts = at * turns + turn..at * turns + turn + 1;
            let slot = |other: usize| match tree.helper {
                None => 0,
                Some(helper) if rank == helper => (helper + slots - other) % slots,
                Some(helper) => (helper + slots - rank) % slots,
            };
            let up = |sender: usize, other: usize| (turn + tree.heights[sender], slot(other));
            let down = |sender: usize, other: usize| (turn + height + tree.depths[sender], slot(other));
            let send = |to: usize| Move::Send { to, parts: parts.clone() };
            let recv = |from: usize, then: Then| Move::Recv { from, parts: parts.clone(), then };
            moves.extend(tree.children[rank].iter().map(|child| (up(*child, *child), recv(*child, Then::Reduce))));
            if let Some(parent) = tree.parents[rank] {
                moves.push((up(rank, parent), send(parent)));
                moves.push((down(parent, parent), recv(parent, Then::Copy)));
            }
            moves.extend(tree.children[rank].iter().map(|child| (down(rank, *child), send(*child))));
        }
    }
    moves.sort_by_key(|(leaves, _)| *leaves);
    if rank + links.helpers >= links.len() {
        begin_with_copies(moves.iter_mut().map(|(_, step)| step));
    }
    let mut plan = Plan::new(Parts::of(starts));
    // Of each segment whose sum comes from another rank, the place of its receive.
    let mut sums = vec![None; plan.parts.count()];
    for (_, step) in moves {
        let (at, place) = (step.parts().start, plan.moves.len());
        match step {
            Move::Send { to, parts } => {
                plan.send(to, parts);
                let tree = &trees[at / turns];
                let ahead = 2 * tree.height() + SLACK;
                if tree.parents[rank] == Some(to) && at % turns >= ahead && plan.moves.len() > place {
                    plan.after.extend(sums[at - ahead].map(|sum| (place, sum)));
                }
            }
            Move::Recv { from, parts, then } => {
                plan.recv(from, parts, then);
                if then == Then::Copy && plan.moves.len() > place {
                    sums[at] = Some(place);
                }
            }
        }
    }
    plan
}

/// The first contribution to a part takes the place of what a helper has there, which is none.
fn begin_with_copies<'a>(moves: impl Iterator<Item = &'a mut Move>) {
    let mut begun = BTreeSet::new();
    for step in moves {
        if let Move::Recv { parts, then, .. } = step
            && begun.insert(parts.start)
        {
            *then = Then::Copy;
        }
    }
}

#[cfg(test)]
mod tests {
    use ringpull_base::DType;

    use super::*;
    use crate::Schedule;

    fn close(found: &[f64], expected: &[f64]) {
        let is_close = found.iter().zip(expected).all(|(one, other)| (one - other).abs() < 1e-9);
        assert!(found.len() == expected.len() && is_close, "{found:?} instead of {expected:?}");
    }

    #[test]
    fn a_slow_link_of_eight_carries_the_buffer_once_and_the_others_share_the_rest() {
        let links = Links::of(&[1.0, 1.0, 0.5, 1.0, 1.0, 1.0, 1.0, 1.0]).unwrap();
        assert!((links.least_time() - 1.0).abs() < 1e-12);
        let more = 13.0 / 7.0;
        close(&links.carried(), &[more, more, 1.0, more, more, more, more, more]);
        let shape = links.shape();
        assert_eq!((shape.trees, shape.levels, shape.most_neighbours), (7, 4, 2), "{shape:?}");
        assert!((shape.longest_share - 1.0 / 7.0).abs() < 1e-9, "{shape:?}");
    }

    #[test]
    fn half_of_the_links_slow_all_are_busy_until_the_end() {
        let rates = [1.0, 1.0, 1.0, 1.0, 0.5, 0.5, 0.5, 0.5];
        let links = Links::of(&rates).unwrap();
        // 14/6 of S/B; the slowest link takes 2 for S.
        assert!((2.0 * links.least_time() - 14.0 / 6.0).abs() < 1e-12);
        close(&links.carried(), &rates.map(|rate| 14.0 / 6.0 * rate));
        assert_eq!(links.shape().most_neighbours, 3, "{links:?}");
    }

    #[test]
    fn no_link_takes_longer_than_the_least_time_whatever_the_rates_are() {
        for size in 3..=33 {
            for of in
                [|rank: usize| 1.0 + rank as f64, |rank| 1.0 / (1.0 + rank as f64), |rank| 4f64.powi(rank as i32 % 3)]
            {
                let rates: Vec<f64> = (0..size).map(of).collect();
                let links = Links::of(&rates).unwrap();
                for (rank, (rate, carried)) in links.rates().iter().zip(links.carried()).enumerate() {
                    let most = links.least_time() * rate + 2.0 * LEAST;
                    assert!(carried < most + 1e-9, "rank {rank} carries {carried} instead of {most}: {rates:?}");
                }
            }
        }
    }

    #[test]
    fn a_contribution_waits_for_the_sum_of_an_earlier_segment() {
        let (turns, links) = (40, Links::of(&[1.0, 1.0, 0.5, 1.0, 1.0]).unwrap());
        let tree = &links.trees[0];
        let ahead = 2 * tree.height() + SLACK;
        for rank in (0..5).filter(|rank| tree.parents[*rank].is_some()) {
            let plan = allreduce(rank, &links, 10_000, turns);
            let schedule = Schedule::of(&plan, DType::F32, usize::MAX);
            let (sends, receives): (Vec<Move>, Vec<Move>) = plan
                .after
                .iter()
                .map(|(send, receive)| (plan.moves[*send].clone(), plan.moves[*receive].clone()))
                .unzip();
            let of_tree: Vec<usize> = sends.iter().map(|send| send.parts().start).filter(|at| *at < turns).collect();
            assert_eq!(of_tree, (ahead..turns).collect::<Vec<_>>(), "rank {rank}");
            assert!(receives.iter().all(|receive| matches!(receive, Move::Recv { then: Then::Copy, .. })));
            for (send, receive) in plan.after {
                assert!(schedule.dependents(receive as u32).contains(&(send as u32)), "rank {rank}, move {send}");
            }
        }
    }

    #[test]
    fn what_a_probe_finds_for_equal_links_is_one_rate() {
        let links = Links::of(&[24.1, 23.3, 12.2, 24.4, 22.9, 11.8]).unwrap();
        let fast = links.rates()[0];
        close(links.rates(), &[fast, fast, 1.0, fast, fast, 1.0]);
        assert!((1.9..2.1).contains(&fast), "{fast}");
    }

    #[test]
    fn the_least_time_of_equal_links_is_that_of_a_ring() {
        for size in 2..=33 {
            let time = least_time(&vec![1.0; size]);
            assert!((time - 2.0 * (size as f64 - 1.0) / size as f64).abs() < 1e-12, "{size}: {time}");
        }
        assert_eq!(least_time(&[1.0]), 0.0);
    }

    #[test]
    fn links_that_are_alike_or_too_few_have_even_parts() {
        for rates in [&[1.0; 8][..], &[1.0, 1.2, 1.05], &[1.0, 0.5], &[1.0, 0.0, 1.0], &[1.0, f64::NAN, 1.0], &[]] {
            assert_eq!(Links::of(rates), None, "{rates:?}");
        }
    }
}
