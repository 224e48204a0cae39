//! A parameter server as a function from (state, message) to replies. It does no I/O; `server_loop` does.
//!
//! A segment exists from the first worker's `Init` on, and has a value from rank 0's `Init` on. A message
//! that cannot be answered yet (a pull of a round that is still open, a push before the value) is kept until
//! it can. `payload` checks the content of requests; `segment` is the state of one segment.

mod members;
mod payload;
mod segment;

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;

use ringpull_base::{Error, INIT_ALIKE, Result};
use ringpull_kernels::optim::{Optimizer, State};

use self::members::Members;
use self::payload::{broken_code, check_code, check_init, ids_of, in_words, rows_of};
use self::segment::{Pull, ServedSegment};
use crate::merge::{self, Geometry, Gradient};
use crate::message::{Place, Places, PullTarget, Reply, Request};

/// The most segments of a server. The limit counts because workers may declare segments before they send
/// values.
const MAX_SEGMENTS: usize = 1 << 20;

/// The most pushes by which a worker may be ahead of a segment's value.
const MAX_AHEAD: u64 = 1 << 16;

/// The most pulls of a segment that may wait, for each worker.
const MAX_PULLS: usize = 1 << 10;

/// The most optimizers that later pushes may name.
const MAX_OPTIMIZERS: usize = 1 << 16;

/// An action that a server asks for.
pub enum Output {
    /// Send a reply to a worker.
    Reply {
        /// The worker's rank.
        rank: usize,
        /// The header.
        reply: Reply,
        /// The payload.
        payload: Option<Bytes>,
    },
    /// The job has failed.
    Fault(Error),
    /// The message was not applied, for this reason.
    Dropped(String),
}

/// The state of one server.
pub struct Server {
    workers: usize,
    sync: bool,
    segments: BTreeMap<Place, ServedSegment>,
    optimizers: BTreeMap<u64, (usize, Arc<Optimizer>)>,
    /// For each rank, the oldest version that its later pushes may name.
    oldest: Vec<u64>,
    outputs: Vec<Output>,
    /// Pulls on their way to their next segment.
    passing: Vec<Pull>,
    /// True if there was a fault.
    ended: bool,
    /// In an elastic job: the workers.
    members: Option<Members>,
}

impl Server {
    /// Returns a server of a job with `workers` workers. If `sync`, a round merges one push of each worker.
    pub fn new(workers: usize, sync: bool) -> Self {
        Server {
            workers,
            sync,
            segments: BTreeMap::new(),
            optimizers: BTreeMap::new(),
            oldest: vec![0; workers],
            outputs: Vec::new(),
            passing: Vec::new(),
            ended: false,
            members: None,
        }
    }

    /// Returns a server of a job that goes on without workers that it loses.
    pub fn elastic(workers: usize, sync: bool) -> Self {
        Server { members: Some(Members::new(workers)), ..Server::new(workers, sync) }
    }

    /// Takes `request` of worker `rank`. A request that does not fit is dropped. Of a request with rows of
    /// several segments, the segments before the first one that does not fit are still applied.
    ///
    /// After a fault nothing is answered. Otherwise a value that does not fit could reach a rank before the
    /// fault, which goes through the scheduler.
    pub fn handle(&mut self, rank: usize, request: Request, payload: Vec<u8>) -> Vec<Output> {
        if self.ended {
            return Vec::new();
        }
        if let Err(why) = self.take(rank, request, payload) {
            self.outputs.push(Output::Dropped(why));
        }
        self.pass_on();
        self.ended = self.outputs.iter().any(|output| matches!(output, Output::Fault(_)));
        std::mem::take(&mut self.outputs)
    }

    /// Returns the number of rounds of the segment that has had the most.
    pub(crate) fn rounds(&self) -> u64 {
        let of = |segment: &ServedSegment| segment.applied.iter().fold(segment.completed, |most, own| most.max(*own));
        self.segments.values().map(of).max().unwrap_or(0)
    }

    /// Describes the awaited ranks, if a round is open: `waits for push of key w by rank(s) [1]`.
    pub(crate) fn awaited(&self) -> Option<String> {
        let (place, segment) = self.segments.iter().find(|(_, segment)| !segment.rounds.is_empty())?;
        let (operation, ranks) = self.missing(place, segment.completed + 1).ok()?;
        (!ranks.is_empty()).then(|| format!("waits for {operation} of key {} by rank(s) {ranks:?}", place.key))
    }

    fn take(&mut self, rank: usize, request: Request, payload: Vec<u8>) -> Result<(), String> {
        match request {
            Request::Init { place, dtype, shape, len_bytes, unit_bytes, here, spans } => {
                let size = |bytes| usize::try_from(bytes).map_err(|_| format!("an init of {bytes} bytes"));
                let geometry = Geometry { dtype, len_bytes: size(len_bytes)?, unit_bytes: size(unit_bytes)?.max(1) };
                if let Some(members) = &mut self.members {
                    members.declare(&place.key, here as usize, spans);
                }
                self.init(rank, &place, geometry, shape, payload)
            }
            Request::Push { place, round, optimizer, compression, reply } => {
                let geometry = self.segments.get(&place).ok_or("a push before init")?.geometry;
                let gradient = match compression {
                    None if payload.len() != geometry.len_bytes => {
                        return Err(format!("{} bytes for a segment of {}", payload.len(), geometry.len_bytes));
                    }
                    None => Gradient::Dense(payload),
                    Some(compression) => {
                        if let Err(what) = check_code(&compression, &payload, geometry) {
                            self.outputs.push(Output::Fault(broken_code(rank, &place, what)));
                            return Ok(());
                        }
                        Gradient::Coded(compression, payload)
                    }
                };
                let value = reply.filter(|(want, _)| *want == PullTarget::Value).map(|(_, reply)| reply);
                self.push(rank, &place, round, optimizer, value, gradient)?;
                if let Some((PullTarget::Word, reply)) = reply {
                    self.passing.push(Pull::for_a_word(rank, round, reply, vec![place]));
                }
                Ok(())
            }
            Request::PushRows { places, round, optimizer, ids_bytes, word } => {
                let found = self.find(&places).ok_or("a push before init")?;
                let (places, geometries): (Vec<Place>, Vec<Geometry>) =
                    found.into_iter().map(|(place, segment)| (place, segment.geometry)).unzip();
                let gradients = rows_of(ids_bytes, &payload, &geometries)?;
                for (place, gradient) in places.iter().zip(gradients) {
                    self.push(rank, place, round, optimizer, None, gradient)?;
                    if matches!(self.outputs.last(), Some(Output::Fault(_))) {
                        return Ok(());
                    }
                }
                self.passing.extend(word.map(|reply| Pull::for_a_word(rank, round, reply, places)));
                Ok(())
            }
            Request::Pull { places, rounds, want, reply } => {
                let found = self.find(&places).ok_or("a pull before init")?;
                if want == PullTarget::State && found.len() > 1 {
                    return Err(format!("a pull of the state of {} segments", found.len()));
                }
                let geometries: Vec<Geometry> = found.iter().map(|(_, segment)| segment.geometry).collect();
                let ids = if want == PullTarget::Rows {
                    ids_of(&payload, &geometries)?
                } else {
                    vec![Vec::new(); found.len()]
                };
                let pulls = |segment: &ServedSegment| segment.pulls.iter().filter(|pull| pull.rank == rank).count();
                if found.iter().any(|(_, segment)| pulls(segment) >= MAX_PULLS) {
                    return Err(format!("more than {MAX_PULLS} pulls of one segment at a time"));
                }
                let segments = found.into_iter().zip(ids).map(|((place, _), ids)| (place, ids)).collect();
                self.passing.push(Pull { want, segments, ..Pull::for_a_word(rank, rounds, reply, Vec::new()) });
                Ok(())
            }
            Request::SetOptimizer { version, oldest, optimizer } => {
                self.set_optimizer(rank, version, oldest, &optimizer);
                Ok(())
            }
            Request::WhoIsMissing { places, rounds, reply } => {
                let segments = self.find(&places).ok_or("a question before init")?;
                let mut missing = segments.iter().map(|(place, _)| self.missing(place, rounds));
                let found = missing.find(|missing| !matches!(missing, Ok((_, ranks)) if ranks.is_empty()));
                let (operation, ranks) = found.unwrap_or(Ok(("push", Vec::new())))?;
                let reply = Reply::Missing { reply, operation: operation.to_owned(), ranks };
                self.outputs.push(Output::Reply { rank, reply, payload: None });
                Ok(())
            }
            Request::Flush { reply } => {
                self.outputs.push(Output::Reply { rank, reply: Reply::Value { reply }, payload: None });
                Ok(())
            }
            Request::SetState { place, optimizer, state, reply } => {
                let rule = self.optimizers.get(&optimizer).map(|(_, rule)| Arc::clone(rule));
                let segment = self.segments.get_mut(&place).ok_or("a state before init")?;
                (segment.state, segment.rule) = (state, rule);
                self.outputs.push(Output::Reply { rank, reply: Reply::Value { reply }, payload: None });
                Ok(())
            }
            Request::Commit { key, round } => {
                let members = self.members.as_mut().ok_or("a commit, which only elastic jobs have")?;
                members.commit(&key, round, rank)?;
                self.advance_key(&key);
                Ok(())
            }
        }
    }

    /// Returns the segments that a message names. Returns `None` if there are none, if they are not in order,
    /// or if one is not on this server.
    fn find(&self, places: &Places) -> Option<Vec<(Place, &ServedSegment)>> {
        let Places { key, segments } = places;
        if !segments.is_sorted_by(|before, after| before < after) {
            return None;
        }
        let place = |segment: &u32| Place { key: key.clone(), segment: *segment };
        let mut here = self.segments.range(place(segments.first()?)..=place(segments.last()?));
        let found = |segment: &u32| {
            let (place, found) = here.find(|(place, _)| place.segment >= *segment)?;
            (place.segment == *segment).then(|| (place.clone(), found))
        };
        segments.iter().map(found).collect()
    }

    /// Passes pulls from segment to segment, until each has to wait or is answered.
    fn pass_on(&mut self) {
        'pulls: for mut pull in std::mem::take(&mut self.passing) {
            while let Some((place, _)) = pull.segments.get(pull.past) {
                let Some(segment) = self.segments.get_mut(place) else { continue 'pulls };
                if !segment.is_ready_for(&pull, self.sync) {
                    segment.pulls.push(pull);
                    continue 'pulls;
                }
                segment.give(&mut pull, &mut None);
            }
            self.outputs.push(pull.answer());
        }
    }

    fn init(
        &mut self,
        rank: usize,
        place: &Place,
        geometry: Geometry,
        shape: Vec<u64>,
        value: Vec<u8>,
    ) -> Result<(), String> {
        check_init(geometry, &shape)?;
        if (rank == 0 || self.members.is_some()) && value.len() != geometry.len_bytes {
            return Err(format!("an init of {} bytes with {}", geometry.len_bytes, value.len()));
        }
        if self.segments.len() >= MAX_SEGMENTS && !self.segments.contains_key(place) {
            self.outputs.push(Output::Fault(Error::limit(
                format!("key {} exceeds the limit of a server: it has {MAX_SEGMENTS} segments of keys", place.key),
                "start more servers (DMLC_NUM_SERVER, `ringpull launch -s`)",
            )));
            return Ok(());
        }
        let workers = self.workers;
        let segment = self.segments.entry(place.clone()).or_insert_with(|| ServedSegment {
            geometry,
            views: BTreeMap::new(),
            value: None,
            candidates: BTreeMap::new(),
            state: State::default(),
            rule: None,
            completed: 0,
            applied: vec![0; workers],
            rounds: BTreeMap::new(),
            pulls: Vec::new(),
        });
        let view = (geometry.dtype, shape);
        let differs = segment.views.values().next().is_some_and(|first| *first != view);
        if segment.views.insert(rank, view).is_some() {
            return Err("a second init".to_owned());
        }
        if differs {
            let views = segment.views.iter();
            let views = views.map(|(rank, (dtype, shape))| (*rank, dtype.of_shape(shape)));
            self.outputs.push(Output::Fault(Error::Disagreement {
                key: place.key.clone(),
                operation: "init".to_owned(),
                views: views.collect(),
                remedy: INIT_ALIKE.to_owned(),
            }));
            return Ok(());
        }
        if geometry != segment.geometry {
            // Later requests are sliced by the geometry of the first init.
            let words = |of: Geometry| format!("a segment of {} bytes in units of {}", of.len_bytes, of.unit_bytes);
            let what = format!("{}, but another rank has {}", words(geometry), words(segment.geometry));
            let peer = format!("its init of key {}", place.key);
            self.outputs.push(Output::Fault(Error::protocol(rank, peer, what)));
            return Ok(());
        }
        if self.members.is_some() {
            if segment.value.is_none() {
                segment.candidates.entry(rank).or_insert(value);
            }
            self.arrive(&place.key, 0, rank);
        } else if rank == 0 {
            segment.value = Some(merge::aligned(value, geometry.dtype));
            segment.let_pass(self.sync, &mut self.passing);
            self.advance(place);
        }
        Ok(())
    }

    fn push(
        &mut self,
        rank: usize,
        place: &Place,
        round: u64,
        version: u64,
        reply: Option<u64>,
        gradient: Gradient,
    ) -> Result<(), String> {
        let optimizer = match version {
            0 => None,
            version => Some(self.optimizers.get(&version).ok_or("an optimizer never sent")?.1.of(&place.key)),
        };
        if self.members.as_ref().is_some_and(|members| !members.is_member(rank)) {
            return Err("a push of a worker that takes no part yet".to_owned());
        }
        let segment = self.segments.get_mut(place).ok_or("a push before init")?;
        // If each push is applied by itself, a push of higher priority may overtake an earlier one.
        let done = if self.sync { segment.completed } else { 0 };
        let applied = if self.sync { segment.completed } else { segment.applied[rank] };
        if round > applied.saturating_add(MAX_AHEAD) {
            return Err(format!("a push of round {round} after {applied} were applied"));
        }
        // If pushes are not merged, each push of a rank is a separate round.
        let own = || round.checked_mul(self.workers as u64)?.checked_add(rank as u64);
        let number = if self.sync { round } else { own().ok_or_else(|| format!("a push of round {round}"))? };
        if round <= done || segment.rounds.get(&number).is_some_and(|open| open.merge.has(rank)) {
            return Err(format!("push {round} once more"));
        }
        let open = segment.rounds.entry(number).or_default();
        match &open.optimizer {
            None => open.optimizer = Some((rank, version, optimizer)),
            Some((_, other, _)) if *other == version => {}
            Some((other_rank, other, _)) => {
                let view = |version: u64| format!("made {version} calls of set_optimizer");
                self.outputs.push(Output::Fault(Error::Disagreement {
                    key: place.key.clone(),
                    operation: "push".to_owned(),
                    views: vec![(*other_rank, view(*other)), (rank, view(version))],
                    remedy: "call set_optimizer at the same step on every rank".to_owned(),
                }));
                return Ok(());
            }
        }
        let compression = match &gradient {
            Gradient::Dense(_) => Some(None),
            Gradient::Coded(compression, _) => Some(Some(*compression)),
            Gradient::Rows(..) => None,
        };
        if let Some(compression) = compression {
            let (other_rank, other) = *open.compression.get_or_insert((rank, compression));
            if other != compression {
                self.outputs.push(Output::Fault(Error::Disagreement {
                    key: place.key.clone(),
                    operation: "push".to_owned(),
                    views: vec![(other_rank, in_words(other)), (rank, in_words(compression))],
                    remedy: "call set_gradient_compression with the same setting at the same step on every rank"
                        .to_owned(),
                }));
                return Ok(());
            }
        }
        open.replies.extend(reply.map(|reply| (rank, reply)));
        if self.members.is_some() && self.sync {
            open.merge.hold(rank, gradient);
            self.arrive(&place.key, round, rank);
            return Ok(());
        }
        open.merge.add(if self.sync { rank } else { 0 }, gradient, segment.geometry);
        if let Err(fault) = segment.advance(self.workers, self.sync, &mut self.outputs, &mut self.passing) {
            self.outputs.push(Output::Fault(fault));
        }
        Ok(())
    }

    /// Applies the complete rounds of the segment, in order.
    fn advance(&mut self, place: &Place) {
        let Some(segment) = self.segments.get_mut(place) else { return };
        if let Err(fault) = segment.advance(self.workers, self.sync, &mut self.outputs, &mut self.passing) {
            self.outputs.push(Output::Fault(fault));
        }
    }

    fn set_optimizer(&mut self, rank: usize, version: u64, oldest: u64, optimizer: &Optimizer) {
        let (first, known) = self.optimizers.entry(version).or_insert_with(|| (rank, Arc::new(optimizer.clone())));
        if **known != *optimizer {
            self.outputs.push(Output::Fault(Error::Disagreement {
                key: "(every key)".into(),
                operation: "set_optimizer".to_owned(),
                views: vec![(*first, known.to_string()), (rank, optimizer.to_string())],
                remedy: "set the same optimizer on every rank".to_owned(),
            }));
            return;
        }
        self.oldest[rank] = oldest;
        let floor = self.oldest.iter().copied().min().unwrap_or(0);
        self.optimizers.retain(|version, _| *version >= floor);
        if self.optimizers.len() > MAX_OPTIMIZERS {
            self.outputs.push(Output::Fault(Error::limit(
                format!("rank {rank} is {MAX_OPTIMIZERS} calls of set_optimizer ahead of another rank"),
                "call set_optimizer at the same step on every rank",
            )));
        }
    }
}

#[cfg(test)]
mod elastic_tests;
#[cfg(test)]
mod tests;
