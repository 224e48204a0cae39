//! The MPI wire: point-to-point messages on a communicator of our own, through the table of `ringpull_mpi`.
//!
//! All calls are made by the one thread that created the [`Mpi`]. Every return code is checked here, so that
//! an error is reported with our words. By default MPI would end the job.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::time::Duration;

use ringpull_base::config::{self, ELASTIC_SETTING, STARTED};
use ringpull_base::own_folder::OwnFolder;
use ringpull_base::{DType, Error, Result, file_limit};
use ringpull_mpi::{Api, Comm, Requests, element};

use crate::transport::library::{
    api, check, check_launcher, check_threads, error_text, level_wanted, library_error, mpi_library, set_parameter,
    set_parameters, yields_when_idle,
};
use crate::transport::remaining::RemainingProcesses;
use crate::transport::sockets::Sockets;
use crate::transport::ulfm::Ulfm;
use crate::transport::{BlockCollective, SendMode, Stamp, TAG_BITS, Transport};

/// Returns MPI's tag. The number of lost ranks is in the bits above. Only Open MPI 5 and later go on after a
/// loss, and they allow all tags of an int.
fn tag(stamp: Stamp, lost: usize) -> c_int {
    ((lost as u32) << TAG_BITS | crate::transport::tag(stamp)) as c_int
}

/// Returns a number that is equal on processes that reach each other over loopback, and almost surely differs
/// on others.
pub fn network_id() -> u64 {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_else(|_| std::process::id().to_string());
    let namespace = std::fs::read_link("/proc/self/ns/net").map(|name| name.to_string_lossy().into_owned());
    let namespace = namespace.unwrap_or_else(|_| std::process::id().to_string());
    xxhash_rust::xxh3::xxh3_64((read("/proc/sys/kernel/random/boot_id") + &namespace).as_bytes())
}

/// MPI, from initialisation to finalisation, and this process's place in it.
pub struct Mpi {
    pub(super) api: &'static Api,
    pub(super) comm: Comm,
    /// The ranks' numbers in the communicator.
    pub(super) remaining: RemainingProcesses,
    /// The communicator of the ranks that call the library's collectives, and their number.
    collective: (Comm, usize),
    pub(super) rank: usize,
    pub(super) size: usize,
    pub(super) name: String,
    pub(super) requests: Requests,
    pub(super) inflight: Vec<InFlight>,
    pub(super) sockets: Sockets,
    /// True if the library yields the processor when it finds that no request is done.
    pub(super) yields: bool,
    /// True if this thread initialised MPI. The thread that initialised MPI may finalise it as soon as none
    /// of our messages is under way. If that is another thread, this thread cannot wait for the answers to
    /// synchronous messages before, so no message is synchronous.
    pub(super) initialised_here: bool,
    /// The functions of ULFM, in a job that goes on without lost ranks.
    pub(super) ulfm: Option<Ulfm>,
}

#[derive(Clone, Copy)]
pub(super) struct InFlight {
    pub(super) token: u32,
    /// The direction (true for a receive), the peer and the tag. Messages that have these in common are done
    /// in order.
    pub(super) way: (bool, usize, c_int),
    /// For a receive: the expected peer, stamp and length.
    pub(super) due: Option<(usize, Stamp, usize)>,
}

/// Finalises MPI, unless it is finalised already. To be called on the thread that initialised it, when
/// nothing of MPI is used any more. Waits for all peers, without a limit.
pub(crate) fn finalise() {
    let Ok(api) = api() else { return };
    let mut flag: c_int = 0;
    // SAFETY: the first function may be called at any time. The second is called once, on the thread that
    // initialised MPI.
    unsafe {
        (api.finalized)(&raw mut flag);
        if flag == 0 {
            (api.finalize)();
        }
    }
}

/// Lets the library take messages that have arrived, and reports of losses. Receives nothing. The next
/// operation returns the error, if there is one.
pub(super) fn probe(api: &Api, comm: Comm) {
    // SAFETY: the communicator lives.
    unsafe { (api.probe)(comm) };
}

/// Returns the communicator that has only this process.
pub(super) fn own(api: &Api) -> Comm {
    // SAFETY: the call returns a constant of the library.
    unsafe { (api.comm_self)() }
}

/// Tells the launcher, which may start the job again, that all ranks have started MPI. From now on the others
/// go on if a rank ends. Before, they would wait for it.
fn mark_start() {
    let marked = config::elastic().map(|job| {
        job.map(|(folder, generation)| OwnFolder::open(&folder)?.mark(&format!("{STARTED}{generation}"))).transpose()
    });
    if !matches!(marked, Ok(Ok(_))) {
        tracing::debug!(?marked, "the launcher takes a loss for one before the start, and starts the job again");
    }
}

impl Mpi {
    /// Initialises MPI, unless the process has already done so, and takes a communicator of its own over all
    /// ranks, in which helpers come last. Messages of up to `eager_bytes`, or of up to the library's own
    /// limit if it is `None`, are sent without asking the receiver. All ranks must give the same value. If
    /// `elastic`, the job goes on without lost ranks, if the library and the launcher can. Collective.
    pub fn initialise(eager_bytes: Option<usize>, elastic: bool, is_helper: bool) -> Result<Self> {
        let (api, name) = (api()?, mpi_library()?);
        // The library makes files to share memory with ranks of this host. If it cannot, it does not need
        // them.
        file_limit::without_signal_in_this_thread();
        set_parameters(eager_bytes);
        let ulfm = if elastic { Ulfm::usable(api) } else { None };
        if ulfm.is_some() {
            set_parameter(ELASTIC_SETTING.0, ELASTIC_SETTING.1);
        }
        let mut flag: c_int = 0;
        // SAFETY: may be called at any time.
        check("MPI_Initialized", 0, unsafe { (api.initialized)(&raw mut flag) })?;
        let initialised_here = flag == 0;
        if initialised_here {
            let mut provided: c_int = 0;
            // SAFETY: MPI is not initialised, and this thread makes all later calls of ours.
            let code = unsafe { (api.init_thread)(level_wanted(api, ulfm.is_some()), &raw mut provided) };
            check("MPI_Init_thread", 0, code)?;
            if ulfm.is_some() {
                // Without this call a loss in the next call ends the process. SAFETY: MPI is initialised.
                let set = unsafe { (api.set_errors_return)((api.world)()) };
                check("MPI_Comm_set_errhandler", 0, set)?;
            }
            check_threads(api, true, provided)?;
        } else {
            let mut provided: c_int = 0;
            // SAFETY: MPI is initialised; the out-pointer is valid.
            check("MPI_Query_thread", 0, unsafe { (api.query_thread)(&raw mut provided) })?;
            check_threads(api, false, provided)?;
        }
        let mut comm = Comm::UNSET;
        let (mut rank, mut size, mut world): (c_int, c_int, c_int) = (0, 0, 0);
        // SAFETY: MPI is initialised; the out-pointers are valid; `comm` is written by a successful
        // MPI_Comm_split. Ranks with the same key keep their order.
        unsafe {
            let (color, key) = (c_int::from(ulfm.is_some()), c_int::from(is_helper));
            check("MPI_Comm_size", 0, (api.comm_size)((api.world)(), &raw mut world))?;
            check("MPI_Comm_split", 0, (api.comm_split)((api.world)(), color, key, &raw mut comm))?;
            check("MPI_Comm_set_errhandler", 0, (api.set_errors_return)(comm))?;
            check("MPI_Comm_rank", 0, (api.comm_rank)(comm, &raw mut rank))?;
            check("MPI_Comm_size", rank as usize, (api.comm_size)(comm, &raw mut size))?;
        }
        if size < world {
            // The ranks would wait for each other in different ways.
            return Err(Error::job_mismatch(
                format!(
                    "{} of {world} ranks are to go on without lost ranks (RINGPULL_ELASTIC), the others are not",
                    if ulfm.is_some() { size } else { world - size }
                ),
                "give every rank the same; a job with helpers (RINGPULL_ROLE=helper) has to be without RINGPULL_ELASTIC",
            ));
        }
        let (rank, size) = (rank as usize, size as usize);
        check_launcher(size)?;
        if ulfm.is_some() && initialised_here {
            mark_start();
        }
        let yields = yields_when_idle(&name);
        Ok(Mpi::over(api, comm, RemainingProcesses::all(size), rank, name, yields, (initialised_here, ulfm)))
    }

    /// Returns MPI over the remaining processes of its own communicator. The tags differ for each number of
    /// lost processes.
    pub(super) fn over(
        api: &'static Api,
        comm: Comm,
        remaining: RemainingProcesses,
        rank: usize,
        name: String,
        yields: bool,
        (initialised_here, ulfm): (bool, Option<Ulfm>),
    ) -> Self {
        let size = remaining.size();
        Mpi {
            api,
            comm,
            remaining,
            collective: (comm, size),
            rank,
            size,
            name,
            requests: Requests::of(api),
            inflight: Vec::new(),
            sockets: Sockets::default(),
            yields,
            initialised_here,
            ulfm,
        }
    }

    /// Returns true if the job can go on without lost ranks.
    pub fn is_elastic(&self) -> bool {
        self.ulfm.is_some() && self.initialised_here
    }

    /// Returns true if this type has initialised MPI, and not the program.
    pub fn is_initialised_here(&self) -> bool {
        self.initialised_here
    }

    /// Returns rank 0's `text` on every rank. Blocks; collective.
    pub fn broadcast_text(&mut self, text: &str) -> Result<String> {
        let mut len = text.len() as c_int;
        // SAFETY: one int is broadcast from and to a valid int.
        let code = unsafe { (self.api.bcast)((&raw mut len).cast(), size_of::<c_int>() as c_int, 0, self.comm) };
        check("MPI_Bcast", self.rank, code)?;
        let mut bytes = text.as_bytes().to_vec();
        bytes.resize(len as usize, 0);
        // SAFETY: `bytes` holds `len` bytes on every rank.
        let code = unsafe { (self.api.bcast)(bytes.as_mut_ptr().cast(), len, 0, self.comm) };
        check("MPI_Bcast", self.rank, code)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Returns a function that finalises MPI if `initialise` initialised it. To be called on the thread that
    /// initialised MPI. Waits for all peers, without a limit.
    pub fn finaliser(&self) -> Box<dyn FnOnce()> {
        if self.initialised_here { Box::new(finalise) } else { Box::new(|| ()) }
    }

    /// Posts the request that `call` makes.
    fn post(&mut self, name: &str, flight: InFlight, call: impl FnOnce(*mut c_void) -> c_int) -> Result<()> {
        check(name, self.rank, self.requests.post(call))?;
        super::opened();
        self.inflight.push(flight);
        Ok(())
    }
}

impl Transport for Mpi {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    unsafe fn send(&mut self, to: usize, stamp: Stamp, data: *const [u8], mode: SendMode, token: u32) -> Result<()> {
        let api = self.api;
        let (name, send) = match mode {
            // In a job that goes on without lost ranks, a send is done only when it has arrived, so no
            // message is under way that the library has freed.
            _ if self.ulfm.is_some() => ("MPI_Issend", api.issend),
            SendMode::Synchronous if self.initialised_here => ("MPI_Issend", api.issend),
            _ => ("MPI_Isend", api.isend),
        };
        let (tag, number, comm) = (tag(stamp, self.remaining.lost()), self.remaining.number(to), self.comm);
        // SAFETY: the caller keeps `data` valid and unchanged until the token is returned; a segment fits an
        // int.
        self.post(name, InFlight { token, way: (false, to, tag), due: None }, |request| unsafe {
            send(data.cast::<c_void>(), data.len() as c_int, number, tag, comm, request)
        })
    }

    unsafe fn recv(&mut self, from: usize, stamp: Stamp, into: *mut [u8], token: u32) -> Result<()> {
        let irecv = self.api.irecv;
        let (tag, number, comm) = (tag(stamp, self.remaining.lost()), self.remaining.number(from), self.comm);
        let flight = InFlight { token, way: (true, from, tag), due: Some((from, stamp, into.len())) };
        // SAFETY: the caller keeps `into` valid and untouched until the token is returned; a segment fits an
        // int.
        self.post("MPI_Irecv", flight, |request| unsafe {
            irecv(into.cast::<c_void>(), into.len() as c_int, number, tag, comm, request)
        })
    }

    fn poll(&mut self, done: &mut Vec<u32>) -> Result<()> {
        if self.requests.is_empty() {
            return Ok(());
        }
        if self.ulfm.is_some() {
            return self.poll_elastic(done);
        }
        // SAFETY: the requests are active ones of this communicator, and this is the thread that calls MPI.
        let (code, finished) = unsafe { self.requests.test_some() };
        if code != 0 {
            return Err(self.first_failure(code, finished));
        }
        if finished == 0 {
            return Ok(());
        }
        self.sockets.moved();
        super::moved(finished);
        let mut indices = Vec::with_capacity(finished);
        for at in 0..finished {
            let index = self.requests.end(at).index as usize;
            let flight = self.inflight[index];
            if let Some(due) = flight.due {
                // SAFETY: MPI_Testsome has stored this receive's status there.
                check_arrival(self.rank, due, unsafe { self.requests.received(at) })?;
            }
            done.push(flight.token);
            indices.push(index);
        }
        indices.sort_unstable();
        for index in indices.into_iter().rev() {
            self.requests.swap_remove(index);
            self.inflight.swap_remove(index);
        }
        Ok(())
    }

    fn progress(&mut self) {
        if !self.initialised_here {
            return;
        }
        // In a job that goes on without lost ranks, probe only this process's communicator, as `Heritage`
        // does.
        probe(self.api, if self.ulfm.is_some() { own(self.api) } else { self.comm });
    }

    fn relax(&mut self) {
        if !self.yields {
            std::thread::yield_now();
        }
    }

    fn wait(&mut self, longest: Duration) {
        self.sockets.wait(longest);
    }

    fn native_allreduce(&mut self, dtype: DType, data: &mut [u8]) -> Result<()> {
        self.check_whole()?;
        let (datatype, (comm, _)) = (self.datatype(dtype)?, self.collective);
        let count = self.count(data.len() / dtype.size_bytes())?;
        // SAFETY: `data` holds `count` elements; the call blocks until they are no longer needed.
        let code = unsafe { (self.api.allreduce)(data.as_mut_ptr().cast(), count, datatype, comm) };
        check("MPI_Allreduce", self.rank, code)
    }

    fn native_collective(&mut self, which: BlockCollective, input: &[u8], out: &mut [u8]) -> Result<()> {
        self.check_whole()?;
        let (from, to) = (input.as_ptr().cast::<c_void>(), out.as_mut_ptr().cast::<c_void>());
        let (comm, size) = self.collective;
        let (name, code) = match which {
            BlockCollective::Allgather => {
                let count = self.count(input.len())?;
                // SAFETY: `input` holds `count` bytes, and `out` holds `count` bytes for each rank. The call
                // blocks.
                ("MPI_Allgather", unsafe { (self.api.allgather)(from, count, to, comm) })
            }
            BlockCollective::Alltoall => {
                let count = self.count(input.len() / size)?;
                // SAFETY: both hold `count` bytes for each rank; the call blocks.
                ("MPI_Alltoall", unsafe { (self.api.alltoall)(from, count, to, comm) })
            }
            BlockCollective::ReduceScatter(dtype) => {
                let (datatype, count) = (self.datatype(dtype)?, self.count(out.len() / dtype.size_bytes())?);
                // SAFETY: `out` holds `count` elements, and `input` holds `count` elements for each rank. The
                // call blocks.
                ("MPI_Reduce_scatter_block", unsafe { (self.api.reduce_scatter)(from, to, count, datatype, comm) })
            }
        };
        check(name, self.rank, code)
    }

    fn hosts(&mut self) -> Result<Vec<usize>> {
        if self.ulfm.is_some() {
            let all = self.exchange(&network_id().to_ne_bytes(), 0)?;
            return Ok(all.iter().map(|own| all.iter().position(|other| other == own).unwrap_or(0)).collect());
        }
        let mut local = Comm::UNSET;
        let mut lowest = self.rank as c_int;
        let (comm, size) = self.collective;
        let mut hosts = vec![0 as c_int; size];
        let int = size_of::<c_int>() as c_int;
        // SAFETY: `local` is written by a successful split and freed here; each buffer holds what the call
        // reads or writes.
        unsafe {
            let code = (self.api.comm_split_hosts)(comm, self.rank as c_int, &raw mut local);
            check("MPI_Comm_split_type", self.rank, code)?;
            // The local ranks are in the order of the ranks in `comm`, so the first is the lowest.
            let code = (self.api.bcast)((&raw mut lowest).cast(), int, 0, local);
            check("MPI_Bcast", self.rank, code)?;
            check("MPI_Comm_free", self.rank, (self.api.comm_free)(local))?;
            let (from, to) = ((&raw const lowest).cast(), hosts.as_mut_ptr().cast());
            check("MPI_Allgather", self.rank, (self.api.allgather)(from, int, to, comm))?;
        }
        Ok(hosts.into_iter().map(|rank| rank as usize).collect())
    }

    fn narrow(&mut self, workers: usize) -> Result<()> {
        let mut comm = Comm::UNSET;
        let (color, key) = (c_int::from(self.rank >= workers), self.rank as c_int);
        // SAFETY: `comm` is written by a successful MPI_Comm_split.
        unsafe {
            let code = (self.api.comm_split)(self.comm, color, key, &raw mut comm);
            check("MPI_Comm_split", self.rank, code)?;
            check("MPI_Comm_set_errhandler", self.rank, (self.api.set_errors_return)(comm))?;
        }
        self.collective = (comm, if self.rank < workers { workers } else { self.size - workers });
        Ok(())
    }

    fn name(&self) -> String {
        self.name.clone()
    }
}

impl Mpi {
    /// The number of an element type in the table of MPI's functions.
    fn datatype(&self, dtype: DType) -> Result<c_int> {
        Ok(match dtype {
            DType::F32 => element::F32,
            DType::F64 => element::F64,
            DType::I8 => element::I8,
            DType::U8 => element::U8,
            DType::I32 => element::I32,
            DType::I64 => element::I64,
            DType::F16 | DType::BF16 => {
                return Err(self.unsupported(format!("MPI has no {dtype}; choose another algorithm")));
            }
        })
    }

    /// Returns an error if ranks were lost, because the library's collectives work only until the first loss.
    fn check_whole(&self) -> Result<()> {
        match self.remaining.lost() {
            0 => Ok(()),
            lost => {
                let reason = format!("{lost} rank(s) were lost (RINGPULL_ELASTIC); choose another algorithm");
                Err(self.unsupported(reason))
            }
        }
    }

    /// Converts a count to MPI's int.
    fn count(&self, count: usize) -> Result<c_int> {
        let reason = || format!("MPI counts elements in an int, too short for {count}; choose another algorithm");
        c_int::try_from(count).map_err(|_| self.unsupported(reason()))
    }

    fn unsupported(&self, reason: String) -> Error {
        Error::Unsupported { kind: self.name.clone(), operation: "a collective of MPI's own".to_owned(), reason }
    }

    /// Returns the error of a failed `MPI_Testsome`. It is the error of the first request that failed, and
    /// names its peer.
    fn first_failure(&self, code: c_int, finished: usize) -> Error {
        for end in (0..finished).map(|at| self.requests.end(at)).filter(|end| end.error != 0) {
            if let Some((from, stamp, len)) = self.inflight[end.index as usize].due {
                let text = error_text(end.error);
                let what = format!("{text} for a message of operation {stamp} with {len} bytes");
                return Error::protocol(self.rank, format!("rank {from}"), what);
            }
        }
        library_error("MPI_Testsome", self.rank, code)
    }
}

/// Returns an error if a message has not the expected length. Its bytes have been received but are never
/// used.
pub(super) fn check_arrival(
    rank: usize,
    (from, stamp, len): (usize, Stamp, usize),
    (code, bytes): (c_int, c_int),
) -> Result<()> {
    check("MPI_Get_count", rank, code)?;
    if usize::try_from(bytes) == Ok(len) {
        return Ok(());
    }
    let what = format!("{bytes} bytes of operation {stamp} instead of {len} bytes");
    Err(Error::protocol(rank, format!("rank {from}"), what))
}
