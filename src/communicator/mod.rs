//! Collectives of all ranks of a job, or of some of them, without keys and values: allreduce, reduce-scatter,
//! allgather, alltoall, broadcast, barrier, send and receive.
//!
//! They are done like a store's sums. A call is a job (`jobs`) of the same engine, ranks agree on it by name
//! or by the order of calls, and the same interpreter runs it. `called` has the waits of the callers; `sets`
//! makes process sets.

mod called;
mod jobs;
mod sets;

use std::sync::{Arc, Weak};
use std::time::Duration;

use ringpull_allreduce::interpreter::Memory;
use ringpull_allreduce::progress::{
    Engine, Envelope, Operation, Peering, Reply, StandIn, Submission, Terms, Topic, answer,
};
use ringpull_base::config::{Config, Dmlc};
use ringpull_base::forked::OfProcess;
use ringpull_base::last_words;
use ringpull_base::topology::host_name;
use ringpull_base::{Buffer, DType, Error, Key, Reduction, Result, Tensor, TensorMut, waits};
use ringpull_kernels::reduce;
use xxhash_rust::xxh3::xxh3_64;

use crate::Change;
pub use called::{CallOptions, Handle};
use jobs::{Arrival, Blocks, Collective, Outcome, Output, Site, Travels};

/// All or some ranks of a job, as one of them sees them, with their common operations.
///
/// [`communicator`] makes one for all ranks of the job. [`split`](Self::split) makes one for some of its
/// ranks, a process set. Collectives of a process set go on beside those of other communicators. Every
/// operation is collective: all ranks of the communicator call it, with arguments that fit. Calls with a name
/// are matched by the name, in whatever order each rank makes them. Calls without a name are matched in their
/// order. They return at once, with a [`Handle`] to wait for.
///
/// Until an operation is done, its inputs stay locked for writers, and its results stay locked for readers
/// and writers. If the calls do not fit together, that operation is an [`Error::Disagreement`] on every rank
/// of the communicator once all have called it, and the job goes on. A rank that is lost or that is late for
/// too long is an error of the whole job.
pub struct Communicator {
    engine: OfProcess<Arc<Engine>>,
    /// The number of the communicator among those with these ranks.
    number: u32,
    /// The communicator's ranks, if they are not all ranks of the job.
    set: Option<Arc<[usize]>>,
    /// The communicator's ranks, by their numbers in the job.
    ranks: Arc<[usize]>,
    place: usize,
    /// The number of each rank's host, by the rank in the job.
    hosts: Arc<[u64]>,
    /// The time for which an output may stay locked by the caller before that is an error.
    output_limit: Duration,
    /// Adds zeros to sums when this rank has joined.
    zeros: Arc<Zeros>,
    /// The generation of ranks to which the communicator belongs.
    generation: u64,
}

/// Returns a communicator of all ranks of this process's MPI job. It finds them as [`create`](crate::create)
/// does for `dist_sync_mpi`, and shares the engine with such stores. A process without `mpirun` is a job of
/// one rank. Collective; blocks until every rank has called it.
///
/// ```no_run
/// use ringpull::{CallOptions, Reduction, Tensor};
///
/// # fn main() -> ringpull::Result<()> {
/// let comm = ringpull::communicator()?;
/// let mine = Tensor::from_slice(&[2], &[comm.rank() as f32, 1.0]);
/// let most = comm.allreduce(&mine, Reduction::Max, &CallOptions::default())?;
/// // Computing goes on meanwhile.
/// assert_eq!(most.wait()?.to_vec::<f32>()?, [comm.size() as f32 - 1.0, 1.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`create`](crate::create) for `dist_sync_mpi`.
pub fn communicator() -> Result<Communicator> {
    communicator_with(&Config::from_env()?)
}

/// Returns a communicator as [`communicator`] does, with the caller's settings. They must be the same on
/// every rank.
pub fn communicator_with(config: &Config) -> Result<Communicator> {
    config.check()?;
    let engine = ringpull_allreduce::progress::process::mpi_engine(config, Some(config.segment_bytes))?;
    last_words::introduce(engine.rank(), engine.size());
    crate::create::announce(&engine)?;
    Communicator::over(engine, config)
}

/// The job that adds zeros to the sums of others.
struct Zeros;

impl StandIn for Zeros {
    fn stand_in(&self, key: &Key, operation: &Operation, terms: &Terms) -> Result<Submission> {
        let Some((dtype, shape)) = &terms.value else {
            return Err(Error::bug(format!("{operation} of {key} has no shape, so a joined rank cannot add zeros")));
        };
        let zeros = Tensor::zeros(*dtype, shape);
        let (reply, _) = answer();
        Ok(Submission::new(jobs::allreduce(
            Site::default(),
            Output::within(zeros.clone(), zeros.write()),
            Arrival::default(),
            reply,
        )))
    }
}

/// Returns the number of rows of a tensor, its first dimension, and the shape of a row. A scalar is one row.
fn rows(tensor: &Tensor) -> (usize, &[usize]) {
    tensor.shape().split_first().map_or((1, &[]), |(first, rest)| (*first, rest))
}

impl Communicator {
    /// Returns a communicator of all ranks of an engine. Collective; blocks. For tests, like the engine.
    #[doc(hidden)]
    pub fn over(engine: Arc<Engine>, config: &Config) -> Result<Self> {
        let own = xxh3_64(host_name().as_bytes());
        let (generation, (place, found, stores)) = loop {
            engine.settle();
            let (generation, stores) = (engine.generation(), engine.stores());
            let outcome = engine.collective_in(generation, "communicator", move |comm, stamp| {
                Ok((comm.rank(), comm.gather_word(own, stamp)?, comm.gather_word(stores, stamp)?))
            });
            match outcome {
                // A rank was lost, and the others go on.
                Err(_) if engine.is_elastic() && engine.first_fault().is_none() => {}
                outcome => break (generation, outcome?),
            }
        };
        let number = engine.store_after(stores.into_iter().max().unwrap_or(0));
        let zeros = Arc::new(Zeros);
        // The annotation makes the trait object out of a `Weak` of a sized type.
        let stand_in: Weak<Zeros> = Arc::downgrade(&zeros);
        engine.introduce(number, stand_in);
        Ok(Communicator {
            generation,
            ranks: (0..found.len()).collect(),
            engine: OfProcess::new(engine),
            number,
            set: None,
            place,
            hosts: found.into(),
            output_limit: config.timeout,
            zeros,
        })
    }

    /// Returns true if its job goes on, in the processes that are left, when it loses a rank
    /// ([`create_elastic`](crate::create_elastic)).
    pub fn is_elastic(&self) -> bool {
        self.engine.is_elastic()
    }

    /// Returns the number of losses after which its job had gone on when the communicator was made.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Returns the losses since the communicator was made. After a loss its calls fail. Waits while a loss is
    /// being handled.
    pub fn changes(&self) -> Vec<Change> {
        self.engine.settle();
        let all = self.engine.changes(0).into_iter();
        all.filter(|change| change.generation > self.generation).collect()
    }

    /// This rank's number among those of the communicator.
    pub fn rank(&self) -> usize {
        self.place
    }

    /// Returns the number of the communicator's ranks.
    pub fn size(&self) -> usize {
        self.ranks.len()
    }

    /// Returns the communicator's ranks, by their numbers in the job.
    pub fn ranks(&self) -> &[usize] {
        &self.ranks
    }

    fn host(&self, place: usize) -> u64 {
        self.hosts[self.ranks[place]]
    }

    /// Returns this rank's number among the communicator's ranks on its host, and the number of these ranks.
    pub fn local(&self) -> (usize, usize) {
        let own = self.host(self.place);
        let neighbours = || (0..self.size()).filter(|place| self.host(*place) == own);
        (neighbours().filter(|place| *place < self.place).count(), neighbours().count())
    }

    /// Returns the number of this host among the hosts on which some rank of the communicator has this rank's
    /// local rank, and the number of these hosts.
    pub fn cross(&self) -> (usize, usize) {
        let (local_rank, _) = self.local();
        let mut hosts: Vec<(u64, usize)> = Vec::new();
        for place in 0..self.size() {
            match hosts.iter_mut().find(|(host, _)| *host == self.host(place)) {
                Some((_, ranks)) => *ranks += 1,
                None => hosts.push((self.host(place), 1)),
            }
        }
        hosts.retain(|(_, ranks)| *ranks > local_rank);
        let own = hosts.iter().position(|(host, _)| *host == self.host(self.place));
        (own.expect("this rank has its own local rank"), hosts.len())
    }

    /// Reduces all ranks' `input`, for example to their sum. Every rank gets the result, in `options.out`,
    /// which may be the input itself, or in a new tensor. All inputs have one shape and dtype, and the result
    /// has the same bits on every rank.
    pub fn allreduce(&self, input: &Tensor, reduction: Reduction, options: &CallOptions) -> Result<Handle<Tensor>> {
        let arrival = options.arrival(reduction, self.size());
        self.call(options.name.clone(), Operation::Collective("allreduce".to_owned()), |site, reply| {
            let mut out = self.result(input, options.out.as_ref(), input.dtype(), input.shape())?;
            if !options.is_in_place(input) {
                out.copy_from(input.read()?.bytes());
            }
            if options.prescale != 1.0 {
                reduce::scale(input.dtype(), out.bytes_mut(), options.prescale);
            }
            let arguments = format!(" by {reduction}{}", options.factors());
            let terms = terms(input.dtype(), input.shape(), arguments);
            Ok((terms, jobs::allreduce(site.with_priority(options.priority), out, arrival, reply)))
        })
    }

    /// Does several allreduces as one operation. Returns a handle for each. An input may be the output of
    /// another allreduce, which writes it after it has been read.
    pub fn grouped_allreduce(
        &self,
        inputs: &[Tensor],
        reduction: Reduction,
        options: &[CallOptions],
    ) -> Result<Vec<Handle<Tensor>>> {
        if inputs.len() != options.len() {
            let what = format!("{} tensors have {} sets of options", inputs.len(), options.len());
            return Err(Error::argument(what, "give one set of options for each tensor"));
        }
        let inputs = self.apart_from_outputs("grouped_allreduce", inputs, options)?;
        inputs.iter().zip(options).map(|(input, options)| self.allreduce(input, reduction, options)).collect()
    }

    /// Returns the inputs of the calls of a group. An input is copied if another call of the group writes its
    /// memory. If two outputs share memory, that is an error, because the memory cannot hold both results.
    fn apart_from_outputs(&self, what: &str, inputs: &[Tensor], options: &[CallOptions]) -> Result<Vec<Tensor>> {
        let outs: Vec<(usize, &Tensor)> =
            options.iter().enumerate().filter_map(|(at, options)| Some((at, options.out.as_ref()?))).collect();
        let share = |one: &Tensor, other: &Tensor| one.is_same(other) || one.overlaps(other);
        for (place, (at, out)) in outs.iter().enumerate() {
            if let Some((other, _)) = outs[..place].iter().find(|(_, other)| share(other, out)) {
                return Err(Error::argument(
                    format!(
                        "{what} on rank {}: outputs {other} and {at} share memory, which cannot hold both results",
                        self.place
                    ),
                    "give each output memory of its own",
                ));
            }
        }
        let apart = |(at, input): (usize, &Tensor)| {
            if !outs.iter().any(|(other, out)| *other != at && share(out, input)) {
                return Ok(input.clone());
            }
            let copy = Buffer::try_copy_of(input.read()?.bytes(), "the copy of an input")?;
            Ok(Tensor::from_buffer(input.dtype(), input.shape(), copy))
        };
        inputs.iter().enumerate().map(apart).collect()
    }

    /// Returns this rank's rows of the reduction of all ranks' `input`. The first dimension is divided, with
    /// `lens[r]` rows for rank `r`. `lens` is the same on every rank. By default the rows are divided as
    /// evenly as possible, and the first ranks may have one row more than the others.
    pub fn reduce_scatter(
        &self,
        input: &Tensor,
        reduction: Reduction,
        lens: Option<&[usize]>,
        options: &CallOptions,
    ) -> Result<Handle<Tensor>> {
        let arrival = options.arrival(reduction, self.size());
        self.call(options.name.clone(), Operation::Collective("reduce_scatter".to_owned()), |site, reply| {
            let ((count, rest), size) = (rows(input), self.size());
            let lens = match lens {
                Some(lens) => lens.to_vec(),
                None => (0..size).map(|rank| count / size + usize::from(rank < count % size)).collect(),
            };
            self.check_lens("reduce_scatter", &lens, Some(count))?;
            let shape: Vec<usize> = std::iter::once(lens[self.place]).chain(rest.iter().copied()).collect();
            let out = self.result_apart(input, options.out.as_ref(), &shape)?;
            let mut given = Memory::Read(input.read()?);
            if options.prescale != 1.0 {
                let mut scaled = Buffer::try_copy_of(given.bytes(), "the scaled input")?;
                reduce::scale(input.dtype(), scaled.bytes_mut(), options.prescale);
                given = Memory::Own(scaled);
            }
            let arguments = format!(" by {reduction} in parts of {lens:?} rows{}", options.factors());
            let terms = terms(input.dtype(), input.shape(), arguments);
            let row_len: usize = rest.iter().product();
            let lens = lens.iter().map(|rows| rows * row_len).collect();
            let site = site.with_priority(options.priority);
            Ok((terms, jobs::reduce_scatter(site, (given, lens), out, arrival, reply)))
        })
    }

    /// Gathers all ranks' `input` on every rank, one behind the other along the first dimension. First
    /// dimensions may differ. If every rank knows the number of rows of each rank, `lens`, this saves a round
    /// of messages. Only then there may be an output.
    pub fn allgather(&self, input: &Tensor, lens: Option<&[usize]>, options: &CallOptions) -> Result<Handle<Tensor>> {
        self.call(options.name.clone(), Operation::Collective("allgather".to_owned()), |site, reply| {
            let (count, rest) = rows(input);
            let mut shape = vec![0];
            shape.extend_from_slice(rest);
            let out = match (lens, options.out.as_ref()) {
                (Some(lens), out) => {
                    self.check_lens("allgather", lens, None)?;
                    if lens[self.place] != count {
                        return Err(Error::argument(
                            format!("allgather on rank {}: {count} rows do not fit lengths {lens:?}", self.place),
                            "give the number of each rank's rows",
                        ));
                    }
                    shape[0] = lens.iter().sum();
                    Some(self.result_apart(input, out, &shape)?)
                }
                (None, None) => None,
                (None, Some(_)) => {
                    return Err(Error::argument(
                        format!("allgather on rank {}: an output is given without lengths", self.place),
                        "give the number of each rank's rows, or no output",
                    ));
                }
            };
            let arguments = lens.map_or_else(String::new, |lens| format!(" of {lens:?} rows"));
            let terms = terms(input.dtype(), rest, arguments);
            let given = (input.read()?, lens.map(<[usize]>::to_vec));
            Ok((terms, jobs::allgather(site.with_priority(options.priority), given, shape, out, reply)))
        })
    }

    /// Sends `splits[r]` rows of `input` to rank `r`. Returns the rows that the ranks have sent to this rank,
    /// in the order of the ranks, and the number of rows from each. Without `splits` all blocks are equal.
    /// With `splits`, ranks first send each other the numbers, unless every rank gives `taken`, the number of
    /// rows that come from each rank. Either all ranks give `taken` or none does. There may be an output only
    /// if these numbers are known.
    pub fn alltoall(
        &self,
        input: &Tensor,
        splits: Option<&[usize]>,
        taken: Option<&[usize]>,
        options: &CallOptions,
    ) -> Result<Handle<(Tensor, Vec<usize>)>> {
        self.call(options.name.clone(), Operation::Collective("alltoall".to_owned()), |site, reply| {
            let ((count, rest), size) = (rows(input), self.size());
            let (given, taken, arguments) = match (splits, taken) {
                (None, _) if count.is_multiple_of(size) => {
                    (vec![count / size; size], Some(vec![count / size; size]), " in equal blocks")
                }
                (None, _) => {
                    return Err(Error::argument(
                        format!("alltoall of {count} rows on rank {}: they do not divide by {size} ranks", self.place),
                        "give the rows for each rank as splits, or a multiple of the number of ranks",
                    ));
                }
                (Some(splits), None) => (splits.to_vec(), None, " in blocks of each rank's own"),
                (Some(splits), Some(taken)) => {
                    (splits.to_vec(), Some(taken.to_vec()), " in blocks that both ends know")
                }
            };
            self.check_lens("alltoall", &given, Some(count))?;
            taken.as_ref().map_or(Ok(()), |taken| self.check_lens("alltoall", taken, None))?;
            if let Some(taken) = &taken
                && taken[self.place] != given[self.place]
            {
                let (rank, given, taken) = (self.place, given[self.place], taken[self.place]);
                return Err(Error::argument(
                    format!("alltoall on rank {rank}: it sends itself {given} rows but expects {taken} from itself"),
                    "give the same number for this rank among the splits and among the rows that come",
                ));
            }
            let mut shape = vec![0];
            shape.extend_from_slice(rest);
            let out = match (&taken, options.out.as_ref()) {
                (Some(taken), out) => {
                    shape[0] = taken.iter().sum();
                    Some(self.result_apart(input, out, &shape)?)
                }
                (None, None) => None,
                (None, Some(_)) => {
                    return Err(Error::argument(
                        format!("alltoall on rank {}: an output needs the rows that come from each", self.place),
                        "give the rows that come from each rank, or no output",
                    ));
                }
            };
            let compared = if splits.is_none() { input.shape() } else { rest };
            let terms = terms(input.dtype(), compared, arguments.to_owned());
            let blocks = Blocks { given, taken };
            let site = site.with_priority(options.priority);
            Ok((terms, jobs::alltoall(site, input.read()?, blocks, shape, out, reply)))
        })
    }

    /// Gives every rank the `input` of rank `root`, in `options.out`, which may be the input itself, or in a
    /// new tensor. All inputs have one shape and dtype.
    pub fn broadcast(&self, input: &Tensor, root: usize, options: &CallOptions) -> Result<Handle<Tensor>> {
        self.call(options.name.clone(), Operation::Collective("broadcast".to_owned()), |site, reply| {
            self.check_rank("broadcast from", root)?;
            let mut out = self.result(input, options.out.as_ref(), input.dtype(), input.shape())?;
            if self.place == root && !options.is_in_place(input) {
                out.copy_from(input.read()?.bytes());
            }
            let terms = terms(input.dtype(), input.shape(), format!(" from rank {root}"));
            let site = site.with_priority(options.priority);
            Ok((terms, jobs::broadcast(site, root, Travels::Out(out), reply)))
        })
    }

    /// Waits until every rank of the communicator has called `barrier`.
    pub fn barrier(&self) -> Result<()> {
        if self.set.is_none() {
            self.check()?;
            return self.engine.barrier();
        }
        self.begin_barrier()?.wait()
    }

    /// Begins a barrier and returns at once. The handle waits for the others. A rank's `begin_barrier` does
    /// not match another rank's [`barrier`](Self::barrier).
    pub fn begin_barrier(&self) -> Result<Handle<()>> {
        self.call(None, Operation::Barrier, |site, reply| Ok((Terms::default(), jobs::rendezvous(&site, reply))))
    }

    /// Sends `input` to rank `to`, which [receives](Self::recv) it. Messages from one rank to another that
    /// have one tag are received in the order of the calls.
    pub fn send(&self, input: &Tensor, to: usize, tag: u32) -> Result<Handle<()>> {
        self.message(Peering::To(to), tag, input, |site, reply| {
            let travels = Travels::Input(Memory::Read(input.read()?));
            Ok(jobs::broadcast(site, 0, travels, reply))
        })
    }

    /// Receives into `out` a message that rank `from` [sends](Self::send) to this rank with this tag. If
    /// `from` is `None`, any rank may send. The message must have the dtype and the number of elements of
    /// `out`. The result is `out` and the rank that sent.
    ///
    /// Receives take messages in the order of the calls, also receives from any rank. If several ranks have
    /// sent, a receive from any rank takes the message of which rank 0 of the job heard first. If the message
    /// has another length or dtype, sender and receiver get an [`Error::Disagreement`], and the job goes on.
    ///
    /// ```no_run
    /// # fn main() -> ringpull::Result<()> {
    /// # let comm = ringpull::communicator()?;
    /// let out = ringpull::Tensor::zeros(ringpull::DType::F32, &[2]);
    /// let (out, from) = comm.recv(&out, None, 0)?.wait()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn recv(&self, out: &Tensor, from: impl Into<Option<usize>>, tag: u32) -> Result<Handle<(Tensor, usize)>> {
        self.message(Peering::From(from.into()), tag, out, |site, reply| {
            let guard = out.write_within(self.output_limit)?;
            out.lend(&self.engine.waiter(), true);
            Ok(jobs::broadcast(site, 0, Travels::Out(self.output(out.clone(), guard)), reply))
        })
    }

    /// Sends or receives a message. The peer is a rank of this communicator, or any rank.
    fn message<T: Outcome + 'static>(
        &self,
        peer: Peering,
        tag: u32,
        tensor: &Tensor,
        job: impl FnOnce(Site, Reply<T>) -> Result<Collective<T>>,
    ) -> Result<Handle<T>> {
        self.reporting(|| {
            peer.rank().map_or(Ok(()), |other| self.check_rank("send and recv with", other))?;
            if peer.rank() == Some(self.place) || self.size() == 1 {
                let what = format!("rank {} of a communicator of {} sends to itself", self.place, self.size());
                return Err(Error::argument(what, "send to another rank"));
            }
            let (rank, among) = (self.engine.rank(), self.set.as_ref().map(|set| set.to_vec()));
            let peer = peer.map(|other| self.ranks[other]);
            let topic = Topic::Message(Envelope { comm: self.number, among, tag, rank, peer });
            let terms = terms(tensor.dtype(), &[tensor.len()], String::new());
            let (reply, answer) = answer();
            let job = job(Site { set: Some(Arc::clone(&self.ranks)), priority: 0 }, reply)?;
            self.engine.submit_in(self.generation, topic, Operation::message(), terms, Submission::new(job))?;
            Ok(Handle::new(Arc::clone(&self.engine), answer))
        })
    }

    /// Joins, because this rank has no data left. Until every rank of the job has joined, this rank adds
    /// zeros to the sums and averages of the others. Returns the rank that joined last. An average still
    /// divides by the number of all ranks. Only for the communicator of the whole job. Blocks.
    pub fn join(&self) -> Result<usize> {
        if self.set.is_some() {
            return Err(Error::argument("a process set cannot join", "join with the communicator of the whole job"));
        }
        self.check()?;
        self.engine.join()
    }

    /// Returns true from the call on at which all ranks of the job stop, because one `wants` to. The reason
    /// may be a warning of the batch system, or a limit of time. Every rank makes one call per step, and all
    /// get the same answers. Nothing is sent before a rank wants to stop. Then calls block for a moment,
    /// until the ranks have agreed on the first call that no rank has passed. In a job that goes on without
    /// lost ranks each call is an allreduce instead. Only for the communicator of the whole job.
    ///
    /// ```no_run
    /// # fn main() -> ringpull::Result<()> {
    /// let job = ringpull::communicator()?;
    /// let begun = std::time::Instant::now();
    /// while !job.should_stop(begun.elapsed().as_secs() > 3600)? {
    ///     // ... a step ...
    /// }
    /// // ... a checkpoint, of the same step on every rank ...
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Unsupported`] in a worker of a job with servers, which is no rank of MPI.
    pub fn should_stop(&self, wants: bool) -> Result<bool> {
        if self.set.is_some() {
            return Err(Error::argument("a process set cannot stop", "stop with the communicator of the whole job"));
        }
        if self.size() == 1 && Dmlc::from_env()?.is_some_and(|job| job.num_workers > 1) {
            return Err(Error::Unsupported {
                kind: "dist_sync".to_owned(),
                operation: "should_stop".to_owned(),
                reason: "its workers are not ranks of one MPI job; stop after a number of steps that all workers know"
                    .to_owned(),
            });
        }
        if self.is_elastic() {
            let wants = Tensor::from_slice(&[1], &[f32::from(u8::from(wants))]);
            let name = Some("ringpull.should_stop".into());
            let options = CallOptions { name, out: Some(wants.clone()), ..CallOptions::default() };
            return Ok(self.allreduce(&wants, Reduction::Max, &options)?.wait()?.to_vec::<f32>()?[0] > 0.0);
        }
        self.check()?;
        self.engine.should_stop(wants)
    }

    /// Returns the payload bytes sent and received by this process, and the number of messages without
    /// payload.
    pub fn traffic(&self) -> (u64, u64, u64) {
        self.engine.traffic()
    }

    /// Tells the other ranks why this rank is about to end, as
    /// [`KvStore::report_failure`](crate::KvStore::report_failure) does.
    pub fn report_failure(&self, why: &str) {
        if self.engine.process().is_here() {
            self.engine.failing(Some(why));
        }
    }

    /// Returns the first error of the whole job, if there was one. Every later call returns it too.
    pub fn fault(&self) -> Option<Error> {
        self.engine.fault()
    }

    fn check(&self) -> Result<()> {
        self.engine.process().check("this communicator")?;
        waits::call();
        self.engine.check_generation(self.generation)?;
        self.engine.fault().map_or(Ok(()), Err)
    }

    fn check_rank(&self, what: &str, rank: usize) -> Result<()> {
        if rank < self.size() {
            return Ok(());
        }
        let what = format!("{what} rank {rank} of a communicator of {} on rank {}", self.size(), self.place);
        Err(Error::argument(what, "ranks are counted from 0, within the communicator"))
    }

    fn check_lens(&self, what: &str, lens: &[usize], total: Option<usize>) -> Result<()> {
        let sum: usize = lens.iter().sum();
        if lens.len() == self.size() && total.is_none_or(|total| total == sum) {
            return Ok(());
        }
        let total = total.map_or_else(String::new, |total| format!(" and {total} rows"));
        Err(Error::argument(
            format!("{what} on rank {}: lengths {lens:?} do not fit {} ranks{total}", self.place, self.size()),
            "give a number of rows for each rank, which together are all rows",
        ))
    }

    /// Returns a locked tensor for the result, which is `out` if that is given.
    fn result(&self, input: &Tensor, out: Option<&Tensor>, dtype: DType, shape: &[usize]) -> Result<Output> {
        let is_new = out.is_none();
        let out = match out {
            Some(out) => out.clone(),
            None => Tensor::try_zeros(dtype, shape, "a result")?,
        };
        let len: usize = shape.iter().product();
        if out.dtype() != dtype || out.len() != len {
            return Err(Error::argument(
                format!("an output of {} cannot hold {}", out.dtype().of_shape(out.shape()), dtype.of_shape(shape)),
                "give an output of the result's dtype and shape",
            ));
        }
        if !out.is_same(input) && out.overlaps(input) {
            return Err(Error::argument(
                "an output shares memory with the input, but is not the input itself",
                "give the input itself, or memory of its own",
            ));
        }
        let guard = out.write_within(self.output_limit)?;
        out.lend(&self.engine.waiter(), true);
        Ok(if is_new { Output::within(out, guard) } else { self.output(out, guard) })
    }

    /// Returns an output that gives the result in the caller's memory.
    fn output(&self, out: Tensor, guard: TensorMut) -> Output {
        if self.engine.is_elastic() { Output::apart(out, guard) } else { Output::within(out, guard) }
    }

    /// Returns a tensor as [`result`](Self::result) does, in memory other than the input's.
    fn result_apart(&self, input: &Tensor, out: Option<&Tensor>, shape: &[usize]) -> Result<Output> {
        if out.is_some_and(|out| out.is_same(input)) {
            return Err(Error::argument("an output that is the input cannot be given here", "give memory of its own"));
        }
        self.result(input, out, input.dtype(), shape)
    }

    /// Calls an operation, with the terms and the job that `make` returns.
    fn call<T: Outcome + 'static>(
        &self,
        name: Option<Key>,
        operation: Operation,
        make: impl FnOnce(Site, Reply<T>) -> Result<(Terms, Collective<T>)>,
    ) -> Result<Handle<T>> {
        self.call_among(self.set.as_ref(), name, operation, make)
    }

    /// Calls an operation as [`call`](Self::call) does, of the ranks of `set`, or of all ranks of the job.
    fn call_among<T: Outcome + 'static>(
        &self,
        set: Option<&Arc<[usize]>>,
        name: Option<Key>,
        operation: Operation,
        make: impl FnOnce(Site, Reply<T>) -> Result<(Terms, Collective<T>)>,
    ) -> Result<Handle<T>> {
        self.reporting(|| {
            let (reply, answer) = answer();
            let (terms, job) = make(Site { set: set.cloned(), priority: 0 }, reply)?;
            let topic = Topic::Collective { comm: self.number, set: set.map(|set| set.to_vec()), name };
            self.engine.submit_in(self.generation, topic, operation, terms, Submission::new(job))?;
            Ok(Handle::new(Arc::clone(&self.engine), answer))
        })
    }

    /// Runs a caller's operation. If it fails, tells the other ranks the error, in case this rank ends
    /// because of it.
    fn reporting<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        self.check()?;
        let outcome = work();
        let why = outcome.as_ref().err().map(|error| error.last_words(None).line);
        self.engine.failing(why.as_deref());
        outcome
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        if std::thread::panicking() && self.engine.process().is_here() {
            self.engine.give_up();
        }
    }
}

fn terms(dtype: DType, shape: &[usize], arguments: String) -> Terms {
    Terms { value: Some((dtype, shape.into())), arguments, ..Terms::default() }
}
