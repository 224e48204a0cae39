//! Collectives on host memory: one at a time to its end, or several sums begun and advanced together.
#![allow(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ringpull_base::config::{Config, ModelSource};
use ringpull_base::{Buffer, DType, Error, Result, Tensor};
use ringpull_kernels::compress::{Codec, Compression, Feedback};
use ringpull_plan::{Parts, Schedule, Segments};

use crate::communicator::choice::Choice;
use crate::communicator::compressed;
use crate::communicator::ends::{Coded, Elements, Ends};
use crate::communicator::hierarchy::{self, Hosts};
use crate::communicator::learn::{self, Learned};
use crate::communicator::node::{Node, Patience};
use crate::communicator::placement::Placement;
use crate::communicator::racks::Racks;
use crate::communicator::schedules::{Schedules, Sum};
use crate::interpreter::{Endpoint, Runner, Ticket, stopped};
use crate::transport::{Stamp, Transport};

/// All ranks of a job, seen from one of them. Every operation is collective, with the same length, dtype and stamp on all ranks, and
/// blocks, but for those begun with [`begin_allreduce`](Self::begin_allreduce). Those that block are called by all ranks in one
/// order, when nothing is under way.
pub struct Host {
    transport: Box<dyn Transport>,
    runner: Runner,
    choice: Choice,
    learned: Learned,
    /// How messages are cut.
    cuts: Segments,
    schedules: Schedules,
    stop: Arc<AtomicBool>,
    placement: Placement,
    takes_device_memory: bool,
}

impl Host {
    /// Collectives over `transport`. When `stop` is set, an operation under way ends in an error. Collective.
    pub fn new(mut transport: Box<dyn Transport>, config: &Config, stop: Arc<AtomicBool>) -> Result<Self> {
        // Longer than the control star waits for a silent rank: it names the one that is lost, a runner only its neighbours.
        let mut runner = Runner::new(config.segment_bytes, config.timeout * 3 / 2);
        let choice = config.algorithm.parse()?;
        let placement = Placement::find(&mut *transport, &mut runner, &stop)?;
        let learned = Learned::default();
        // By the library's own sum there is no message of ours.
        let takes_device_memory =
            choice != Choice::Native && config.mpi_device_memory.unwrap_or_else(|| transport.takes_device_memory());
        let cuts = Segments { most_bytes: config.segment_bytes, is_fixed: config.segment_is_fixed };
        Ok(Host {
            transport,
            runner,
            choice,
            learned,
            cuts,
            schedules: Schedules::default(),
            stop,
            placement,
            takes_device_memory,
        })
    }

    /// Finds out what `auto` must know of the cluster, as rank 0's `config` says. Collective; until then `auto` goes by the
    /// default model. Ranks that all share one host's memory need no network, and learn nothing.
    pub fn learn(&mut self, config: &Config) -> Result<()> {
        if self.placement.is_one_host() {
            if let (ModelSource::File(path), 0) = (&config.model, self.rank()) {
                tracing::warn!(path = %path.display(), "RINGPULL_MODEL is not read: all ranks share one host's memory, and no model is needed");
            }
            return Ok(());
        }
        let source = if self.choice.is_auto() { &config.model } else { &ModelSource::Default };
        let Placement { hosts, racks, are_racks_named, .. } = &mut self.placement;
        let cluster = (&hosts[..], *are_racks_named);
        self.learned = learn::learn(&mut self.runner, &mut *self.transport, cluster, source, &self.stop)?;
        if !*are_racks_named {
            *racks = Racks::of_bits(self.learned.racks, hosts.len());
        }
        self.schedules = Schedules::default();
        if self.rank() == 0 && self.choice.is_auto() {
            let is_in_named_racks = self.placement.are_racks_named && self.placement.racks.is_some();
            let (hosts, size) = (self.placement.hosts.len(), self.transport.size());
            self.learned.explain(hosts, size, is_in_named_racks, self.cuts);
        }
        Ok(())
    }

    /// What `auto` knows of the cluster.
    pub fn learned(&self) -> &Learned {
        &self.learned
    }

    /// The most bytes that short sums should travel in together: any number where no network is between the ranks.
    pub fn bucket_bytes(&self) -> usize {
        if self.placement.is_one_host() {
            return usize::MAX;
        }
        self.learned.model.bucket_bytes(self.size(), self.cuts)
    }

    /// How sums are to be done.
    pub fn choice(&self) -> Choice {
        self.choice
    }

    /// How long ranks wait for each other.
    pub fn limit(&self) -> Duration {
        self.runner.limit
    }

    /// An error when the host was told to stop: for those who wait for other ranks elsewhere than here.
    pub fn go_on(&self) -> Result<()> {
        if self.stop.load(Ordering::Acquire) { Err(stopped(self.rank())) } else { Ok(()) }
    }

    /// How messages are cut.
    pub fn segments(&self) -> Segments {
        self.cuts
    }

    /// The ranks that share memory, host by host: among those of one host `auto` sums there.
    pub fn hosts(&self) -> &[Vec<usize>] {
        &self.placement.hosts
    }

    /// The racks the hosts stand in, if there are two, named or found: each one's hosts, by their place in [`hosts`](Self::hosts).
    pub fn racks(&self) -> Option<&[Vec<usize>; 2]> {
        Some(self.placement.racks.as_ref()?.hosts())
    }

    /// Whether sums by `choice` are done in shared memory or by the library, and not by a plan.
    fn sums_at_once(&self, choice: Choice) -> bool {
        match choice {
            Choice::Auto | Choice::Nccl => self.placement.has_neighbours(),
            Choice::Ordered => self.is_ordered_anyway(),
            Choice::Plan(_) => false,
            Choice::Native => true,
        }
    }

    /// What a sum by messages between all ranks is to do.
    fn schedule(&mut self, sum: Sum) -> Arc<Schedule> {
        let (rank, size) = (self.rank(), self.size());
        let (placement, model, cuts) = (&self.placement, &self.learned.model, self.cuts);
        self.schedules.find(sum, || sum.plan((rank, size), placement, model, cuts))
    }

    /// Whether all ranks sum in shared memory, which adds in the order of the ranks anyway.
    fn is_ordered_anyway(&self) -> bool {
        self.placement.is_one_host() && self.placement.has_neighbours()
    }

    /// This rank.
    pub fn rank(&self) -> usize {
        self.transport.rank()
    }

    /// The number of ranks.
    pub fn size(&self) -> usize {
        self.transport.size()
    }

    /// The library under the transport, for people.
    pub fn library(&self) -> String {
        self.transport.name()
    }

    /// Payload bytes sent and received; a buffer that is summed in shared memory, or by devices themselves, counts once in each direction.
    pub fn traffic_bytes(&self) -> (u64, u64) {
        let moved = self.placement.node.as_ref().map_or(0, Node::moved_bytes);
        (self.runner.sent_bytes + moved, self.runner.received_bytes + moved)
    }

    /// Takes note of a buffer that others than the transport have summed over the ranks.
    pub fn count(&mut self, len_bytes: usize) {
        self.runner.sent_bytes += len_bytes as u64;
        self.runner.received_bytes += len_bytes as u64;
    }

    /// Whether sums by the host's own choice are done at once, one after another on every rank in one order.
    pub fn sums_block(&self) -> bool {
        self.sums_at_once(self.choice)
    }

    /// Begins to sum `data` over all ranks; its ticket, or `None` if it had to be done at once and is: what is under way is then
    /// finished first. Sums of higher `priority` go first. Operations under way together have stamps of their own. `step_bytes` is what the
    /// step that it is part of sums in all, the same on every rank, and 0 where that is not known.
    ///
    /// # Safety
    /// `data` stays valid, and nobody else touches it, until the ticket is reported by [`take_finished`](Self::take_finished); after
    /// an error, of this or of any later call, for ever.
    pub unsafe fn begin_allreduce(
        &mut self,
        dtype: DType,
        data: *mut [u8],
        stamp: Stamp,
        (priority, step_bytes): (i32, usize),
    ) -> Result<Option<Ticket>> {
        if self.sums_block() {
            self.drain()?;
            // SAFETY: the caller gives the memory away until this is done.
            return unsafe { self.allreduce(dtype, &mut *data, stamp) }.map(|()| None);
        }
        let schedule = self.schedule(Sum { step_bytes, ..Sum::of(self.choice, dtype, data.len()) });
        // SAFETY: as the caller promises.
        Ok(Some(unsafe { self.runner.begin(&schedule, data, stamp, priority) }))
    }

    /// Moves what can be moved now; whether anything did. Does not block.
    pub fn advance(&mut self) -> Result<bool> {
        self.runner.advance(&mut *self.transport, &self.stop)
    }

    /// To be called when nothing has moved: waits a little. An error if nothing has moved for too long.
    pub fn pause(&mut self) -> Result<()> {
        self.runner.pause(&mut *self.transport)
    }

    /// To be called now and then while nothing is under way here: others may still wait for what the library owes them. Does not block.
    pub fn progress(&mut self) {
        self.transport.progress();
    }

    /// The sums that have finished since this was asked last.
    pub fn take_finished(&mut self) -> impl Iterator<Item = Ticket> {
        self.runner.take_finished()
    }

    /// Returns when everything begun is finished.
    pub fn drain(&mut self) -> Result<()> {
        while self.runner.is_busy() {
            if !self.advance()? {
                self.pause()?;
            }
        }
        Ok(())
    }

    /// `data` becomes the sum over all ranks, the same bits on each.
    ///
    /// # Safety
    /// After an error the transport may still read and write `data`: it stays valid, and nobody else
    /// touches it, until the transport is gone.
    pub unsafe fn allreduce(&mut self, dtype: DType, data: &mut [u8], stamp: Stamp) -> Result<()> {
        // SAFETY: as the caller promises.
        unsafe { self.allreduce_by(self.choice, dtype, data, stamp) }
    }

    /// What `tensor` holds becomes the sum over all ranks, by the given way. After an error it stays locked
    /// for ever, as the transport may still use its memory.
    pub fn allreduce_tensor(&mut self, choice: Choice, tensor: &Tensor, stamp: Stamp) -> Result<()> {
        let mut guard = tensor.write();
        // SAFETY: after an error neither the lock nor the memory behind it is ever given back.
        let outcome = unsafe { self.allreduce_by(choice, tensor.dtype(), guard.bytes_mut(), stamp) };
        if outcome.is_err() {
            std::mem::forget((guard, tensor.clone()));
        }
        outcome
    }

    /// As [`allreduce`](Self::allreduce), by the given way.
    ///
    /// # Safety
    /// As for [`allreduce`](Self::allreduce).
    pub unsafe fn allreduce_by(&mut self, choice: Choice, dtype: DType, data: &mut [u8], stamp: Stamp) -> Result<()> {
        if self.sums_at_once(choice) {
            return match choice {
                Choice::Native => self.transport.native_allreduce(dtype, data),
                // SAFETY: as the caller promises.
                _ => unsafe { self.allreduce_by_host(dtype, data, stamp) },
            };
        }
        let schedule = self.schedule(Sum::of(choice, dtype, data.len()));
        // SAFETY: as the caller promises.
        unsafe { self.runner.run(&schedule, data, &mut *self.transport, stamp, &self.stop) }
    }

    /// `out` becomes the sum over all ranks of what their compressed gradients say, the same bits on each. The gradient stands in `out`
    /// itself if none is given.
    pub fn allreduce_compressed(
        &mut self,
        compression: &Compression,
        feedback: &mut Feedback,
        gradient: Option<&[f32]>,
        out: &mut [f32],
        stamp: Stamp,
    ) -> Result<()> {
        match compression {
            Compression::Codec(codec) => {
                let (codec, len) = (*codec, out.len());
                let mut ends = Elements { codec, gradient, residual: feedback.residual_mut(len), out };
                self.exchange(codec, len, &mut ends, stamp)
            }
            Compression::TopK(_) => self.gather_compressed(compression, feedback, gradient, out, stamp),
        }
    }

    /// As [`allreduce_compressed`](Self::allreduce_compressed), of a gradient of `len` elements that somebody else has encoded and will decode:
    /// `sums` becomes the sum of all ranks' `codes`, as [`Codec::sum`] writes it.
    pub fn allreduce_codes(
        &mut self,
        codec: Codec,
        len: usize,
        codes: &[u8],
        sums: &mut [u8],
        stamp: Stamp,
    ) -> Result<()> {
        self.exchange(codec, len, &mut Coded { codec, codes, sums }, stamp)
    }

    fn exchange(&mut self, codec: Codec, len: usize, ends: &mut dyn Ends, stamp: Stamp) -> Result<()> {
        let (rank, size) = (self.rank(), self.size());
        if size == 1 {
            compressed::sum_alone(codec, len, ends);
            return Ok(());
        }
        let schedule =
            self.schedule(Sum { is_coded: true, ..Sum::of(self.choice, DType::F32, len * size_of::<f32>()) });
        let exchange = Box::new(compressed::Exchange::new(codec, (rank, size), len, ends));
        // SAFETY: the exchange keeps what it gives to the transport in buffers of its own, until it is done or for ever.
        unsafe { self.runner.run_between(&schedule, exchange, &mut *self.transport, stamp, &self.stop) }
    }

    /// Every rank gets every rank's code and adds them up in the order of the ranks.
    fn gather_compressed(
        &mut self,
        compression: &Compression,
        feedback: &mut Feedback,
        gradient: Option<&[f32]>,
        out: &mut [f32],
        stamp: Stamp,
    ) -> Result<()> {
        let (rank, size, each) = (self.rank(), self.size(), compression.code_bytes(out.len()));
        let parts = Parts::of((0..=size).map(|rank| rank * each).collect());
        let codes = self.gather(parts, stamp, |code| compression.encode(gradient.unwrap_or(out), feedback, code))?;
        out.fill(0.0);
        for (peer, code) in codes.bytes().chunks_exact(each.max(1)).enumerate() {
            compression.check_code(code, out.len()).map_err(|what| Error::Protocol {
                rank,
                peer: format!("rank {peer}"),
                what,
                remedy: "run the same version of ringpull on every rank".to_owned(),
            })?;
            compression.decode_add(code, out);
        }
        Ok(())
    }

    /// Whether [`allreduce_between`](Self::allreduce_between) may be given addresses in the memory of devices.
    pub fn takes_device_memory(&self) -> bool {
        self.takes_device_memory
    }

    /// As [`allreduce`](Self::allreduce), of `len_bytes` that this rank's `endpoint` has. Always by messages, of at least `least_bytes` where
    /// the plan has as many.
    ///
    /// # Safety
    /// The transport can read and write at the addresses that the endpoint gives, and nobody else does until the endpoint is told that their
    /// message is done; after an error never again.
    pub unsafe fn allreduce_between(
        &mut self,
        dtype: DType,
        len_bytes: usize,
        endpoint: Box<dyn Endpoint + '_>,
        least_bytes: usize,
        stamp: Stamp,
    ) -> Result<()> {
        let least_bytes = Some(least_bytes);
        let schedule = self.schedule(Sum { least_bytes, ..Sum::of(self.choice, dtype, len_bytes) });
        // SAFETY: as the caller promises.
        unsafe { self.runner.run_between(&schedule, endpoint, &mut *self.transport, stamp, &self.stop) }
    }

    /// `data` becomes rank `root`'s.
    ///
    /// # Safety
    /// As for [`allreduce`](Self::allreduce).
    pub unsafe fn broadcast(&mut self, root: usize, data: &mut [u8], stamp: Stamp) -> Result<()> {
        let plan = ringpull_plan::broadcast(root, self.rank(), self.size(), data.len());
        let schedule = self.runner.schedule(&plan, DType::U8);
        // SAFETY: as the caller promises.
        unsafe { self.runner.run(&schedule, data, &mut *self.transport, stamp, &self.stop) }
    }

    /// `data` becomes every other rank's, which call [`broadcast`](Self::broadcast) with this rank as the root.
    ///
    /// # Safety
    /// As for [`allreduce`](Self::allreduce).
    pub unsafe fn broadcast_own(&mut self, data: &[u8], stamp: Stamp) -> Result<()> {
        let plan = ringpull_plan::broadcast(self.rank(), self.rank(), self.size(), data.len());
        let schedule = self.runner.schedule(&plan, DType::U8);
        // SAFETY: as the caller promises.
        unsafe { self.runner.send_out(&schedule, data, &mut *self.transport, stamp, &self.stop) }
    }

    /// Part `r` of `data`, bounded in bytes, becomes rank `r`'s on every rank.
    ///
    /// # Safety
    /// As for [`allreduce`](Self::allreduce).
    pub unsafe fn allgather(&mut self, parts: Parts, data: &mut [u8], stamp: Stamp) -> Result<()> {
        let plan = ringpull_plan::allgather(self.rank(), self.size(), parts);
        let schedule = self.runner.schedule(&plan, DType::U8);
        // SAFETY: as the caller promises.
        unsafe { self.runner.run(&schedule, data, &mut *self.transport, stamp, &self.stop) }
    }

    /// As [`allgather`](Self::allgather), into memory of its own, which after an error the transport keeps: every rank's part, of which `fill`
    /// writes this rank's.
    pub fn gather(&mut self, parts: Parts, stamp: Stamp, fill: impl FnOnce(&mut [u8])) -> Result<Buffer> {
        let mut all = Buffer::zeroed(parts.len());
        fill(&mut all.bytes_mut()[parts.range(self.rank()..self.rank() + 1)]);
        // SAFETY: after an error the memory is never freed.
        if let Err(cause) = unsafe { self.allgather(parts, all.bytes_mut(), stamp) } {
            std::mem::forget(all);
            return Err(cause);
        }
        Ok(all)
    }

    /// By shared memory within hosts, and by a plan between them.
    ///
    /// # Safety
    /// As for [`allreduce`](Self::allreduce).
    unsafe fn allreduce_by_host(&mut self, dtype: DType, data: &mut [u8], stamp: Stamp) -> Result<()> {
        let patience = Patience { stamp, stop: &self.stop, limit: self.runner.limit };
        if self.placement.is_one_host()
            && let Some(node) = &mut self.placement.node
        {
            return node.allreduce(dtype, data, patience);
        }
        let hosts = Hosts {
            ranks: &self.placement.hosts,
            racks: self.placement.racks.as_ref(),
            model: &self.learned.model,
            segments: self.cuts,
        };
        let node = self.placement.node.as_mut();
        let wire = hierarchy::Wire {
            transport: &mut *self.transport,
            runner: &mut self.runner,
            schedules: &mut self.schedules,
        };
        // SAFETY: as the caller promises.
        unsafe { hierarchy::allreduce((hosts, node), wire, dtype, data, patience) }
    }
}
