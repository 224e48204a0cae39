//! Links that are not equally fast: trees in which each rank has as many neighbours as its link can carry.
//!
//! A buffer of `S` bytes that goes up a tree of the ranks and down again passes each edge once in each
//! direction: contributions are added on their way to the root, and the sum returns. It may return on another
//! tree, of the same root. A rank that is not the root sends its contribution once, and the sum to each of
//! its children in the second tree; it receives the sum once, and a contribution from each of its children in
//! the first. A tree of `n` ranks has `n - 1` edges, so all ranks together send `2 (n-1) S` bytes and receive
//! `2 (n-1) S` bytes. Conversely, any whole numbers of at least 1 with this sum belong to two such trees. So
//! a link that is faster in one direction than in the other can use both rates.
//!
//! *The least time.* Let `b_i` be the rate of rank `i`'s link in one direction, `d_i` the bytes that it
//! carries in this direction divided by `S`, and `t` the time divided by `S`. Then `1 <= d_i <= t b_i`,
//! because every rank must send its contribution to each element, or a sum that contains it, and must receive
//! each element. Each element takes at least `2 (n-1)` messages, so the sum of all `d_i` is no less.
//! Therefore
//!
//! ```text
//!   t = max(1 / min(b), 2 (n-1) / sum(b)),  the longer of the two directions
//! ```
//!
//! *Parts.* One tree has whole numbers of neighbours. So the buffer is cut into parts with different trees,
//! such that each rank sends and receives `d_i` on average. The messages that a rank sends beyond one, `d_i -
//! 1`, are laid end to end on a line of length `n - 2`, and those that it receives on another. In the trees
//! of the point `u` of 0 to 1, a rank has one more child for each of `u, u + 1, u + 2, ...` that lies on its
//! piece. Between two ends of pieces, modulo 1, all `u` have the same trees, so there are at most `n` trees,
//! and `2 n` if a link has two rates. In each tree a rank has its `d_i` rounded up or down as its number of
//! neighbours, the fewest that can share its link at a time. These are two or three if no rate is more than
//! twice another.
//!
//! *Unused capacity.* If `1 / min(b)` is the longer time, links other than the slowest carry less than they
//! could. All links that carry more than `S` then take equally long.
//!
//! *With one of eight hosts at half the rate*, its link carries `S` and so it is a leaf of every tree. Each
//! tree is a line of the others with one of them, by turns, at its other end. In units of `S` over the rate
//! of a fast link, that takes 2.0, and a ring of even parts takes 3.5:
//!
//! ```text
//!   slow - h1 - h2 - h3 - h4 - h5 - h6 - h7          slow - h2 - h3 - h4 - h5 - h6 - h7 - h1     ...
//! ```
//!
//! *When.* All trees run at the same time. Each part is cut into as many segments; in each turn the next
//! segment of every part leaves the leaves of its tree. A segment rises one level in a turn, and from the
//! root it falls one level in a turn. So each rank has equal work in every turn except the first and the last
//! ones, and its messages to one peer leave in the order of the turns.
//!
//! *How far ahead.* Messages to different peers share a link as TCP divides it, which is not evenly. The
//! leaves of a tree have all contributions at once: one flow would be far ahead of another, the sums of every
//! turn would wait for the flow that is behind, and the way back would be idle first and too narrow in the
//! end. So a contribution waits for the sum of an earlier segment of its part. This segment is [`SLACK`]
//! turns earlier than the segment whose sum would just have returned in the order of the turns.
//!
//! *Helpers* are ranks that only reduce: they bring no contribution and keep no sum. A tree may have any of
//! them. With `n` workers and a helper in a tree, the degrees add up to `2 n`, which is two more than without
//! the helper. So a helper with `d` neighbours carries `d` and takes `d - 2` off the workers. Many neighbours
//! are best, so the helper is the root of a tree in which every worker is a leaf. Such a part passes each
//! worker's link once in each direction. The rest of the buffer goes on trees of the workers alone. Let `h`
//! be the sum of the helpers' rates. Then `t` is the least time for which
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
//! Every worker has a message for every helper in each turn. The workers' messages leave in an order in which
//! no two messages of a slot are for one helper.

use std::collections::BTreeSet;

use bytemuck::{Pod, Zeroable};
use serde::{Deserialize, Serialize};

use super::parts::Parts;
use super::plan::{Move, Plan, ReceiveAction};

/// Rates that differ by less than this factor count as equal, because a probe on busy hosts is not more
/// exact, and even parts take fewer messages.
const ALIKE: f64 = 1.25;

/// The least length of a part that is worth a tree. Without shorter parts, ends of parts move by less than
/// this length, and the bytes that a rank carries change by less than twice this length.
const LEAST: f64 = 0.01;

/// The number of turns by which a contribution may be early, because ranks that share cores are not
/// synchronous.
const SLACK: usize = 4;

/// The rates of a link in its two directions, in any unit.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, Pod, Zeroable)]
#[repr(C)]
pub struct LinkRates {
    /// The rate at which the link's rank sends.
    pub sends: f64,
    /// The rate at which the link's rank receives.
    pub receives: f64,
}

impl LinkRates {
    /// Returns equal rates in both directions.
    pub fn both(rate: f64) -> Self {
        LinkRates { sends: rate, receives: rate }
    }

    /// Returns the slower rate.
    pub fn slower(self) -> f64 {
        self.sends.min(self.receives)
    }

    fn each(self) -> [f64; 2] {
        [self.sends, self.receives]
    }
}

/// The rates of the ranks' links, and the trees that suit them.
#[derive(Debug, Clone, PartialEq)]
pub struct Links {
    /// Of each rank, relative to the slowest of all.
    rates: Vec<LinkRates>,
    /// The number of helpers, which are the last ranks.
    helpers: usize,
    trees: Vec<Tree>,
}

/// The shape of the trees for some links.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Shape {
    /// The number of trees.
    pub trees: usize,
    /// The longest part, as a fraction of the buffer.
    pub longest_share: f64,
    /// The levels below a root.
    pub levels: usize,
    /// The most neighbours of a rank in one tree.
    pub most_neighbours: usize,
    /// The most messages that a rank sends or receives in a turn.
    pub most_messages: usize,
    /// The messages that all ranks send in a turn,
    pub all_messages: usize,
    /// and of a buffer as long as 1.
    pub all_sent: f64,
}

/// The two trees of one part of the buffer. All workers are in both.
#[derive(Debug, Clone, PartialEq)]
struct Tree {
    /// Of 1.
    share: f64,
    /// The helper that is the root, if one is.
    helper: Option<usize>,
    /// On which contributions go to the root,
    up: Edges,
    /// and on which the sum comes from it.
    down: Edges,
}

/// The neighbours of each rank in a tree.
#[derive(Debug, Clone, PartialEq)]
struct Edges {
    /// The parent of each rank. The root has none, and neither has a helper of another tree.
    parents: Vec<Option<usize>>,
    children: Vec<Vec<usize>>,
    /// The number of levels below each rank.
    heights: Vec<usize>,
    /// The number of levels above each rank.
    depths: Vec<usize>,
}

impl Links {
    /// Returns the links for the ranks' rates. Returns `None` if the rates are so similar that even parts
    /// suit them, or if there are fewer than three ranks.
    pub fn of(rates: &[LinkRates]) -> Option<Self> {
        let are_alike = |of: fn(&LinkRates) -> f64| {
            let slowest = rates.iter().map(of).fold(f64::INFINITY, f64::min);
            rates.iter().map(of).fold(0.0, f64::max) < ALIKE * slowest
        };
        if rates.len() < 3 || !are_sound(rates) || are_alike(|rates| rates.sends) && are_alike(|rates| rates.receives) {
            return None;
        }
        let rates = classes(rates);
        let beyond = beyond(&rates);
        Some(Links::carrying(rates, &beyond))
    }

    /// Returns the links for the ranks' rates, if the last `helpers` ranks only reduce. Returns `None` if
    /// there are no helpers, or fewer than three workers. The slower direction of each link counts.
    pub fn with_helpers(rates: &[LinkRates], helpers: usize) -> Option<Self> {
        if helpers == 0 || rates.len() < helpers + 3 || !are_sound(rates) {
            return None;
        }
        let slower: Vec<LinkRates> = rates.iter().map(|rates| LinkRates::both(rates.slower())).collect();
        Some(Links::helped(classes(&slower), helpers))
    }

    fn helped(rates: Vec<LinkRates>, helpers: usize) -> Self {
        let workers = rates.len() - helpers;
        let slower: Vec<f64> = rates.iter().map(|rates| rates.slower()).collect();
        let (of_workers, of_helpers) = slower.split_at(workers);
        let time = balanced_time(of_workers, of_helpers);
        let helped = helped_share(time, of_workers, of_helpers);
        let sum: f64 = of_helpers.iter().sum();
        let star = |(at, rate): (usize, &f64)| Tree::star(workers, (workers + at, helpers), helped * rate / sum);
        let mut trees: Vec<Tree> = of_helpers.iter().enumerate().map(star).collect();
        if helped < 1.0 {
            let all: f64 = of_workers.iter().map(|rate| (time * rate - 1.0).max(0.0)).sum();
            let whole = workers as f64 - 2.0;
            let beyond = |rate: &f64| LinkRates::both((time * rate - 1.0).max(0.0) * whole / all);
            let beyond: Vec<LinkRates> = of_workers.iter().map(beyond).collect();
            trees.extend(self::trees(&beyond).into_iter().map(|tree| tree.among(1.0 - helped, helpers)));
        }
        Links { rates, helpers, trees }
    }

    /// Returns the links of ranks that send and receive `beyond` more than the buffer, in units of the
    /// buffer. The sum is `n - 2`.
    pub(crate) fn carrying(rates: Vec<LinkRates>, beyond: &[LinkRates]) -> Self {
        Links { rates, helpers: 0, trees: trees(beyond) }
    }

    /// Returns the links of the workers only, or `None` if even parts suit them.
    pub fn without_helpers(&self) -> Option<Self> {
        Links::of(&self.rates[..self.len() - self.helpers])
    }

    /// Returns the number of helpers, which are the last ranks.
    pub fn helpers(&self) -> usize {
        self.helpers
    }

    /// The number of ranks.
    #[allow(clippy::len_without_is_empty, reason = "there are at least three")]
    pub fn len(&self) -> usize {
        self.rates.len()
    }

    /// Of each rank, relative to the slowest of all.
    pub fn rates(&self) -> &[LinkRates] {
        &self.rates
    }

    /// Returns the bytes that each rank sends, and receives, of a buffer of length 1.
    pub fn carried(&self) -> Vec<LinkRates> {
        let sum = |of: &dyn Fn(&Tree) -> usize| self.trees.iter().map(|tree| tree.share * of(tree) as f64).sum();
        let of = |rank: usize| LinkRates {
            sends: sum(&|tree| tree.sends(rank)),
            receives: sum(&|tree| tree.receives(rank)),
        };
        (0..self.len()).map(of).collect()
    }

    /// Returns the shape of the trees.
    pub fn shape(&self) -> Shape {
        let sends = |rank: usize| self.trees.iter().map(move |tree| tree.sends(rank));
        let receives = |rank: usize| self.trees.iter().map(move |tree| tree.receives(rank));
        let most = |of: &dyn Fn(usize) -> usize| (0..self.len()).map(of).max().unwrap_or(0);
        Shape {
            trees: self.trees.len(),
            longest_share: self.trees.iter().map(|tree| tree.share).fold(0.0, f64::max),
            levels: self.trees.iter().map(|tree| tree.levels().div_ceil(2)).max().unwrap_or(0),
            most_neighbours: most(&|rank| sends(rank).chain(receives(rank)).max().unwrap_or(0)),
            most_messages: most(&|rank| sends(rank).sum::<usize>().max(receives(rank).sum())),
            all_messages: (0..self.len()).flat_map(sends).sum(),
            all_sent: self.carried().iter().map(|carried| carried.sends).sum(),
        }
    }

    /// Returns the least time of an allreduce. The unit is the time of the slowest link for the whole buffer.
    pub fn least_time(&self) -> f64 {
        if self.helpers == 0 {
            return least_time(&self.rates);
        }
        let slower: Vec<f64> = self.rates.iter().map(|rates| rates.slower()).collect();
        let (workers, helpers) = slower.split_at(self.len() - self.helpers);
        let slowest = workers.iter().copied().fold(f64::INFINITY, f64::min);
        balanced_time(workers, helpers).max(1.0 / slowest)
    }
}

fn are_sound(rates: &[LinkRates]) -> bool {
    rates.iter().flat_map(|rates| rates.each()).all(|rate| rate.is_finite() && rate > 0.0)
}

/// Returns the fraction of the buffer that helpers reduce in this time.
fn helped_share(time: f64, workers: &[f64], helpers: &[f64]) -> f64 {
    /// From this fraction on, the remainder is not worth a tree.
    const WHOLE: f64 = 1.0 - LEAST;
    let share = time * helpers.iter().sum::<f64>() / workers.len() as f64;
    if share > WHOLE { 1.0 } else { share }
}

/// Returns the time for which all links that carry more than the buffer are busy until the end.
fn balanced_time(workers: &[f64], helpers: &[f64]) -> f64 {
    /// The number of halvings of the interval, which gives more digits than a number has.
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

/// Returns the least time of an allreduce for links of these rates. The unit is the time of the buffer at
/// rate 1.
fn least_time(rates: &[LinkRates]) -> f64 {
    let whole = 2.0 * (rates.len() as f64 - 1.0);
    let of = |one: fn(&LinkRates) -> f64| {
        let slowest = rates.iter().map(one).fold(f64::INFINITY, f64::min);
        (whole / rates.iter().map(one).sum::<f64>()).max(if rates.len() < 2 { 0.0 } else { 1.0 / slowest })
    };
    of(|rates| rates.sends).max(of(|rates| rates.receives))
}

/// Returns the rates, relative to the slowest. Rates that a probe may have found for equal links are made
/// equal.
fn classes(rates: &[LinkRates]) -> Vec<LinkRates> {
    /// The largest ratio of the fastest link of a class to the slowest.
    const NOISE: f64 = ALIKE;
    let all: Vec<f64> = rates.iter().flat_map(|rates| rates.each()).collect();
    let mut order: Vec<usize> = (0..all.len()).collect();
    order.sort_by(|one, other| all[*one].total_cmp(&all[*other]));
    let mut equal = vec![0.0; all.len()];
    let mut rest = &order[..];
    while let [first, ..] = rest {
        let (class, others) = rest.split_at(rest.partition_point(|at| all[*at] < NOISE * all[*first]));
        let mean = class.iter().map(|at| all[*at]).sum::<f64>() / class.len() as f64;
        class.iter().for_each(|at| equal[*at] = mean);
        rest = others;
    }
    let slowest = equal[order[0]];
    let (pairs, _) = equal.as_chunks::<2>();
    pairs.iter().map(|[sends, receives]| LinkRates { sends: sends / slowest, receives: receives / slowest }).collect()
}

/// Returns the excess of each rank's sends and receives over the buffer, in units of the buffer. The sum is
/// `n - 2`.
fn beyond(rates: &[LinkRates]) -> Vec<LinkRates> {
    let [sends, receives] = [|rates: &LinkRates| rates.sends, |rates: &LinkRates| rates.receives]
        .map(|of| beyond_one_way(&rates.iter().map(of).collect::<Vec<_>>()));
    sends.into_iter().zip(receives).map(|(sends, receives)| LinkRates { sends, receives }).collect()
}

fn beyond_one_way(rates: &[f64]) -> Vec<f64> {
    let mut busy: Vec<bool> = vec![true; rates.len()];
    loop {
        let of_busy = || rates.iter().zip(&busy).filter(|(_, is_busy)| **is_busy).map(|(rate, _)| *rate);
        let time = (rates.len() as f64 - 2.0 + of_busy().count() as f64) / of_busy().sum::<f64>();
        // A link that carries only the buffer may take longer than the busy links.
        let is_busy = |rate: &f64| time * rate > 1.0;
        if of_busy().all(|rate| is_busy(&rate)) {
            let of = |(rate, is_busy): (&f64, &bool)| if *is_busy { time * rate - 1.0 } else { 0.0 };
            return rates.iter().zip(&busy).map(of).collect();
        }
        busy.iter_mut().zip(rates).for_each(|(busy, rate)| *busy &= is_busy(rate));
    }
}

/// Returns trees in which each rank has, on average, `beyond` neighbours in addition to the first.
fn trees(beyond: &[LinkRates]) -> Vec<Tree> {
    let lines = [Line::of(beyond.iter().map(|of| of.sends)), Line::of(beyond.iter().map(|of| of.receives))];
    let mut cuts: Vec<f64> = lines.iter().flat_map(|line| line.ends.iter().map(|end| end.fract())).collect();
    cuts.push(0.0);
    cuts.sort_by(f64::total_cmp);
    cuts.dedup_by(|cut, before| *cut - *before < LEAST);
    if 1.0 - cuts[cuts.len() - 1] < LEAST && cuts.len() > 1 {
        cuts.pop();
    }
    cuts.push(1.0);
    let of = |(at, cut): (usize, &[f64])| {
        let [sends, receives] = [0, 1].map(|way| lines[way].at(f64::midpoint(cut[0], cut[1])));
        Tree::of((&sends, &receives), at, cut[1] - cut[0])
    };
    cuts.windows(2).enumerate().map(of).collect()
}

/// The messages of all ranks beyond one neighbour, end to end.
struct Line {
    ends: Vec<f64>,
}

impl Line {
    fn of(pieces: impl ExactSizeIterator<Item = f64>) -> Self {
        let whole = pieces.len() as f64 - 2.0;
        let sum = |end: &mut f64, piece| {
            *end += piece;
            Some(*end)
        };
        let mut ends: Vec<f64> = pieces.scan(0.0, sum).collect();
        // Remove the remainders of rounding.
        ends.iter_mut().rev().take_while(|end| whole - **end < LEAST).for_each(|end| *end = whole);
        Line { ends }
    }

    /// Returns the number of the points `point`, `point + 1`, ... on each rank's piece.
    fn at(&self, point: f64) -> Vec<usize> {
        let mut before = 0;
        let here = |end: &f64| {
            let until = (end - point).ceil().max(0.0) as usize;
            until - std::mem::replace(&mut before, until)
        };
        self.ends.iter().map(here).collect()
    }
}

impl Tree {
    /// Returns the flattest trees in which rank `r` sends `1 + sends[r]` messages and receives `1 +
    /// receives[r]`. Of equal ranks those from `first` on are nearer to the root.
    fn of((sends, receives): (&[usize], &[usize]), first: usize, share: f64) -> Self {
        let size = sends.len();
        let mut ranks: Vec<usize> = (0..size).map(|at| (at + first) % size).collect();
        ranks.sort_by_key(|rank| std::cmp::Reverse(sends[*rank] + receives[*rank]));
        let of = |more: &[usize]| {
            let mut ranks = ranks.clone();
            // Both trees have one root.
            ranks[1..].sort_by_key(|rank| std::cmp::Reverse(more[*rank]));
            Edges::of(more, &ranks)
        };
        Tree { share, helper: None, up: of(receives), down: of(sends) }
    }

    /// Returns the tree of one of `helpers` helpers, with all workers as its children.
    fn star(workers: usize, (helper, helpers): (usize, usize), share: f64) -> Self {
        let mut edges = Edges::none(workers + helpers);
        edges.parents[..workers].fill(Some(helper));
        edges.children[helper] = (0..workers).collect();
        edges.depths.fill(1);
        (edges.heights[helper], edges.depths[helper]) = (1, 0);
        Tree { share, helper: Some(helper), up: edges.clone(), down: edges }
    }

    /// Returns this tree for a part of length `share`, beside helpers of other trees.
    fn among(mut self, share: f64, helpers: usize) -> Self {
        self.share *= share;
        [&mut self.up, &mut self.down].into_iter().for_each(|edges| edges.make_room(helpers));
        self
    }

    /// Returns the levels of both trees together.
    fn levels(&self) -> usize {
        self.up.height() + self.down.height()
    }

    /// Returns the number of messages that a rank sends in a turn.
    fn sends(&self, rank: usize) -> usize {
        self.down.children[rank].len() + usize::from(self.up.parents[rank].is_some())
    }

    fn receives(&self, rank: usize) -> usize {
        self.up.children[rank].len() + usize::from(self.down.parents[rank].is_some())
    }
}

impl Edges {
    fn none(size: usize) -> Self {
        Edges {
            parents: vec![None; size],
            children: vec![Vec::new(); size],
            heights: vec![0; size],
            depths: vec![0; size],
        }
    }

    /// Returns the flattest tree in which rank `r` has `more[r]` children, and the root, the first of
    /// `ranks`, has one more. The other ranks are in descending order of their children.
    fn of(more: &[usize], ranks: &[usize]) -> Self {
        let mut edges = Edges::none(ranks.len());
        let mut next = 1;
        for (at, rank) in ranks.iter().enumerate() {
            let count = more[*rank] + usize::from(at == 0);
            for child in ranks.iter().skip(next).take(count) {
                edges.parents[*child] = Some(*rank);
                edges.depths[*child] = edges.depths[*rank] + 1;
                edges.children[*rank].push(*child);
            }
            next += count;
        }
        for rank in ranks.iter().rev() {
            if let Some(parent) = edges.parents[*rank] {
                edges.heights[parent] = edges.heights[parent].max(edges.heights[*rank] + 1);
            }
        }
        edges
    }

    fn make_room(&mut self, helpers: usize) {
        let size = self.parents.len() + helpers;
        self.parents.resize(size, None);
        self.children.resize(size, Vec::new());
        self.heights.resize(size, 0);
        self.depths.resize(size, 0);
    }

    fn height(&self) -> usize {
        self.heights.iter().copied().max().unwrap_or(0)
    }
}

/// Returns the plan of `rank`, in `turns` turns.
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
    // Each move comes with the turn in which the message leaves its sender, and its slot there.
    let mut moves: Vec<((usize, usize), Move)> = Vec::new();
    for (at, tree) in trees.iter().enumerate() {
        let (to_root, from_root, height) = (&tree.up, &tree.down, tree.up.height());
        for turn in 0..turns {
            let parts = at * turns + turn..at * turns + turn + 1;
            let slot = |other: usize| match tree.helper {
                None => 0,
                Some(helper) if rank == helper => (helper + slots - other) % slots,
                Some(helper) => (helper + slots - rank) % slots,
            };
            let up = |sender: usize, other: usize| (turn + to_root.heights[sender], slot(other));
            let down = |sender: usize, other: usize| (turn + height + from_root.depths[sender], slot(other));
            let send = |to: usize| Move::Send { to, parts: parts.clone() };
            let recv = |from: usize, then: ReceiveAction| Move::Recv { from, parts: parts.clone(), then };
            let children = &to_root.children[rank];
            moves.extend(children.iter().map(|child| (up(*child, *child), recv(*child, ReceiveAction::Reduce))));
            moves.extend(to_root.parents[rank].map(|parent| (up(rank, parent), send(parent))));
            moves.extend(
                from_root.parents[rank].map(|parent| (down(parent, parent), recv(parent, ReceiveAction::Copy))),
            );
            moves.extend(from_root.children[rank].iter().map(|child| (down(rank, *child), send(*child))));
        }
    }
    moves.sort_by_key(|(leaves, _)| *leaves);
    if rank + links.helpers >= links.len() {
        begin_with_copies(moves.iter_mut().map(|(_, step)| step));
    }
    let mut plan = Plan::new(Parts::of(starts));
    // For each segment with a sum from another rank, the index of the receive.
    let mut sums = vec![None; plan.parts.count()];
    for (_, step) in moves {
        let (at, place) = (step.parts().start, plan.moves.len());
        match step {
            Move::Send { to, parts } => {
                plan.send(to, parts);
                let tree = &trees[at / turns];
                let ahead = tree.levels() + SLACK;
                let is_up = tree.up.parents[rank] == Some(to) && sums[at].is_none();
                if is_up && at % turns >= ahead && plan.moves.len() > place {
                    plan.after.extend(sums[at - ahead].map(|sum| (place, sum)));
                }
            }
            Move::Recv { from, parts, then } => {
                plan.recv(from, parts, then);
                if then == ReceiveAction::Copy && plan.moves.len() > place {
                    sums[at] = Some(place);
                }
            }
        }
    }
    plan
}

/// Makes the first contribution to a part replace the helper's content, because a helper has no contribution.
fn begin_with_copies<'a>(moves: impl Iterator<Item = &'a mut Move>) {
    let mut begun = BTreeSet::new();
    for step in moves {
        if let Move::Recv { parts, then, .. } = step
            && begun.insert(parts.start)
        {
            *then = ReceiveAction::Copy;
        }
    }
}

#[cfg(test)]
mod tests {
    use ringpull_base::DType;

    use super::*;
    use crate::Schedule;

    /// Links whose directions are equally fast.
    fn even(rates: &[f64]) -> Vec<LinkRates> {
        rates.iter().copied().map(LinkRates::both).collect()
    }

    fn close(found: &[f64], expected: &[f64]) {
        let is_close = found.iter().zip(expected).all(|(one, other)| (one - other).abs() < 1e-9);
        assert!(found.len() == expected.len() && is_close, "{found:?} instead of {expected:?}");
    }

    /// Returns the bytes that each rank sends, which equal the bytes that it receives.
    fn sent(links: &Links) -> Vec<f64> {
        let carried = links.carried();
        assert!(carried.iter().all(|carried| (carried.sends - carried.receives).abs() < 1e-9), "{carried:?}");
        carried.iter().map(|carried| carried.sends).collect()
    }

    #[test]
    fn a_slow_link_of_eight_carries_the_buffer_once_and_the_others_share_the_rest() {
        let links = Links::of(&even(&[1.0, 1.0, 0.5, 1.0, 1.0, 1.0, 1.0, 1.0])).unwrap();
        assert!((links.least_time() - 1.0).abs() < 1e-12);
        let more = 13.0 / 7.0;
        close(&sent(&links), &[more, more, 1.0, more, more, more, more, more]);
        let shape = links.shape();
        assert_eq!((shape.trees, shape.levels, shape.most_neighbours), (7, 4, 2), "{shape:?}");
        assert!((shape.longest_share - 1.0 / 7.0).abs() < 1e-9, "{shape:?}");
    }

    #[test]
    fn half_of_the_links_slow_all_are_busy_until_the_end() {
        let rates = [1.0, 1.0, 1.0, 1.0, 0.5, 0.5, 0.5, 0.5];
        let links = Links::of(&even(&rates)).unwrap();
        // It takes 14/6 of S/B. The slowest link takes 2 for S.
        assert!((2.0 * links.least_time() - 14.0 / 6.0).abs() < 1e-12);
        close(&sent(&links), &rates.map(|rate| 14.0 / 6.0 * rate));
        assert_eq!(links.shape().most_neighbours, 3, "{links:?}");
    }

    #[test]
    fn no_link_takes_longer_than_the_least_time_whatever_the_rates_are() {
        for size in 3..=33 {
            for of in
                [|rank: usize| 1.0 + rank as f64, |rank| 1.0 / (1.0 + rank as f64), |rank| 4f64.powi(rank as i32 % 3)]
            {
                let rates: Vec<f64> = (0..size).map(of).collect();
                let links = Links::of(&even(&rates)).unwrap();
                for (rank, (rate, carried)) in links.rates().iter().zip(sent(&links)).enumerate() {
                    let most = links.least_time() * rate.sends + 2.0 * LEAST;
                    assert!(carried < most + 1e-9, "rank {rank} carries {carried} instead of {most}: {rates:?}");
                }
            }
        }
    }

    #[test]
    fn a_contribution_waits_for_the_sum_of_an_earlier_segment() {
        let (turns, links) = (40, Links::of(&even(&[1.0, 1.0, 0.5, 1.0, 1.0])).unwrap());
        let tree = &links.trees[0];
        let ahead = tree.levels() + SLACK;
        for rank in (0..5).filter(|rank| tree.up.parents[*rank].is_some()) {
            let plan = allreduce(rank, &links, 10_000, turns);
            let schedule = Schedule::of(&plan, DType::F32, usize::MAX);
            let (sends, receives): (Vec<Move>, Vec<Move>) = plan
                .after
                .iter()
                .map(|(send, receive)| (plan.moves[*send].clone(), plan.moves[*receive].clone()))
                .unzip();
            let of_tree: Vec<usize> = sends.iter().map(|send| send.parts().start).filter(|at| *at < turns).collect();
            assert_eq!(of_tree, (ahead..turns).collect::<Vec<_>>(), "rank {rank}");
            assert!(receives.iter().all(|receive| matches!(receive, Move::Recv { then: ReceiveAction::Copy, .. })));
            for (send, receive) in plan.after {
                assert!(schedule.dependents(receive as u32).contains(&(send as u32)), "rank {rank}, move {send}");
            }
        }
    }

    #[test]
    fn what_a_probe_finds_for_equal_links_is_one_rate() {
        let links = Links::of(&even(&[24.1, 23.3, 12.2, 24.4, 22.9, 11.8])).unwrap();
        let fast = links.rates()[0].sends;
        assert_eq!(links.rates(), even(&[fast, fast, 1.0, fast, fast, 1.0]));
        assert!((1.9..2.1).contains(&fast), "{fast}");
    }

    #[test]
    fn the_least_time_of_equal_links_is_that_of_a_ring() {
        for size in 2..=33 {
            let time = least_time(&even(&vec![1.0; size]));
            assert!((time - 2.0 * (size as f64 - 1.0) / size as f64).abs() < 1e-12, "{size}: {time}");
        }
        assert_eq!(least_time(&even(&[1.0])), 0.0);
    }

    #[test]
    fn links_that_are_alike_or_too_few_have_even_parts() {
        for rates in [&[1.0; 8][..], &[1.0, 1.2, 1.05], &[1.0, 0.5], &[1.0, 0.0, 1.0], &[1.0, f64::NAN, 1.0], &[]] {
            assert_eq!(Links::of(&even(rates)), None, "{rates:?}");
        }
    }

    #[test]
    fn a_link_that_is_slow_in_one_direction_carries_more_in_the_other() {
        let mut rates = even(&[1.0; 8]);
        rates[2].sends = 0.5;
        let links = Links::of(&rates).unwrap();
        assert!((links.least_time() - 1.0).abs() < 1e-12);
        let carried = links.carried();
        assert!((carried[2].sends - 1.0).abs() < 1e-9 && (carried[2].receives - 1.75).abs() < 1e-9, "{carried:?}");
        // Half of the ranks send at half the rate, and the others receive at half the rate: with one number
        // for a link, all would be slow.
        let rates: Vec<LinkRates> = (0..8)
            .map(|rank| if rank < 4 { (0.5, 1.0) } else { (1.0, 0.5) })
            .map(|(sends, receives)| LinkRates { sends, receives })
            .collect();
        let links = Links::of(&rates).unwrap();
        assert!((2.0 * links.least_time() - 14.0 / 6.0).abs() < 1e-12);
        for (rate, carried) in rates.iter().zip(links.carried()) {
            assert!((carried.sends - 14.0 / 6.0 * rate.sends).abs() < 1e-9, "{carried:?}");
            assert!((carried.receives - 14.0 / 6.0 * rate.receives).abs() < 1e-9, "{carried:?}");
        }
    }

    #[test]
    fn links_that_all_send_at_one_rate_and_receive_at_another_have_even_parts() {
        assert_eq!(Links::of(&[LinkRates { sends: 1.0, receives: 3.0 }; 5]), None);
    }
}
