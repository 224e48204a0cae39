//! Measures an allreduce of plain buffers, without the store: our plans and the MPI library's own.

use std::sync::Arc;
use std::time::{Duration, Instant};

use xxhash_rust::xxh3::xxh3_64;

use ringpull_allreduce::communicator::{Choice, Communicator, Parts};
use ringpull_allreduce::progress::Engine;
use ringpull_base::config::Config;
use ringpull_base::topology::host_name;
use ringpull_base::{DType, Error, Result, Tensor};
use ringpull_workload::pattern::Pattern;

use crate::record::{Measured, Record};
use crate::usage::{Memory, Usage, cpu_s};

/// How buffers are measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Plan {
    /// The element type.
    pub dtype: DType,
    /// Measured iterations, at least 1.
    pub iters: usize,
    /// Iterations before them, verified but not timed.
    pub warmup: usize,
    /// How long the ranks do nothing before each iteration. What a link's shaper lets through at once grows meanwhile: without a rest a
    /// sample is the shorter the longer the barriers around it take.
    pub rest: Duration,
    /// How late rank 0 comes to one more iteration, in which the others' processor time is taken. Zero leaves it out.
    pub late: Duration,
}

/// What a row of what a rank has found holds beside the seconds of its iterations.
const COLUMNS: usize = 4;

/// What one rank has found.
struct Own {
    seconds: Vec<f64>,
    cpu_s: f64,
    waiting_cpu: f64,
    extra_rss_bytes: f64,
}

/// Sums buffers of `sizes` bytes over all ranks by `algorithm`, or else as the environment says, verifies every result, and gives rank 0 one
/// record a size. Collective.
pub fn run(sizes: &[usize], algorithm: Option<&str>, plan: &Plan) -> Result<Option<Vec<Record>>> {
    let dtype = plan.dtype;
    if plan.iters == 0 {
        return Err(Error::argument("--iters 0 measures nothing", "give at least 1"));
    }
    if let Some(size) = sizes.iter().find(|size| *size % dtype.size_bytes() != 0) {
        return Err(Error::argument(
            format!("{size} bytes are not whole elements of {dtype}"),
            format!("give sizes that are multiples of {}", dtype.size_bytes()),
        ));
    }
    let environment = Config::from_env()?;
    let asked: Option<Choice> = algorithm.map(str::parse).transpose()?;
    let choice = asked.map_or_else(|| environment.algorithm.parse(), Ok)?;
    if choice == Choice::Nccl {
        return Err(Error::argument(
            "what is measured here is in host memory, which nccl does not sum",
            "choose another --algorithm; `RINGPULL_ALGORITHM=nccl` is for stores on GPUs",
        ));
    }
    // Only `auto` needs to know the cluster.
    let eager_bytes = eager_bytes(asked, &environment);
    let engine = connect(&Config { algorithm: choice.to_string(), ..environment }, eager_bytes)?;
    let mut records = Vec::new();
    for size in sizes {
        let size = *size;
        let plan = *plan;
        let buffers = Buffers::new(size, &plan);
        let memory = vec![buffers.summed.clone(), buffers.flag.clone()];
        let work =
            move |comm: &mut Communicator, _: &[Tensor], stamp: u32| measure(comm, stamp, choice, &buffers, &plan);
        let (seconds, hosts, usage) = engine.collective("bench allreduce", memory, work)?;
        records.push(Record::of_verified(Measured {
            op: "allreduce",
            mode: if choice == Choice::Native { "mpi" } else { "dist_sync_mpi" }.to_owned(),
            algorithm: choice.to_string(),
            ranks: engine.size(),
            hosts,
            servers: 0,
            bytes: size as u64,
            dtype,
            seconds,
            host_bytes: None,
            usage,
        })?);
    }
    Ok((engine.rank() == 0).then_some(records))
}

/// What the MPI library is to send without asking: a segment, but where its own allreduce was asked for by the command line, which is the same
/// on every rank as a variable need not be, it keeps its own limit.
fn eager_bytes(asked: Option<Choice>, config: &Config) -> Option<usize> {
    (asked != Some(Choice::Native)).then_some(config.segment_bytes)
}

#[cfg(feature = "mpi")]
pub(super) fn connect(config: &Config, eager_bytes: Option<usize>) -> Result<Arc<Engine>> {
    ringpull_allreduce::progress::process::mpi_engine(config, eager_bytes)
}

#[cfg(not(feature = "mpi"))]
pub(super) fn connect(_config: &Config, _eager_bytes: Option<usize>) -> Result<Arc<Engine>> {
    Err(Error::KindUnavailable {
        kind: "bench allreduce".to_owned(),
        reason: "this build has no MPI".to_owned(),
        remedy: "build it with the feature `mpi`, which is on by default".to_owned(),
    })
}

/// What the transport uses of this rank's memory.
struct Buffers {
    summed: Tensor,
    /// One byte, for barriers.
    flag: Tensor,
}

impl Buffers {
    fn new(size: usize, plan: &Plan) -> Self {
        Buffers {
            summed: Tensor::zeros(plan.dtype, &[size / plan.dtype.size_bytes()]),
            flag: Tensor::zeros(DType::U8, &[1]),
        }
    }
}

/// The slowest rank's seconds in each measured iteration, the number of hosts, and the costs.
fn measure(
    comm: &mut Communicator,
    stamp: u32,
    choice: Choice,
    buffers: &Buffers,
    plan: &Plan,
) -> Result<(Vec<f64>, usize, Usage)> {
    let own = measure_own(comm, stamp, choice, buffers, plan)?;
    // 32 bits of the hash of the host's name: an f64 holds them exactly.
    let name = (xxh3_64(host_name().as_bytes()) >> 32) as f64;
    let others: [f64; COLUMNS] = [name, own.cpu_s, own.waiting_cpu, own.extra_rss_bytes];
    let rows = gather(comm, stamp, &[&own.seconds[..], &others].concat())?;
    let iters = plan.iters;
    let slowest = (0..iters).map(|at| rows.iter().map(|row| row[at]).fold(0.0, f64::max)).collect();
    let mut hosts: Vec<u64> = rows.iter().map(|row| row[iters] as u64).collect();
    hosts.sort_unstable();
    hosts.dedup();
    let column = |at: usize| rows.iter().map(move |row| row[iters + at]);
    let ranks = rows.len() as f64;
    let usage = Usage {
        cpu_s_per_gb: Some(column(1).sum::<f64>() / ranks / (iters as f64 * buffers.summed.len_bytes() as f64 / 1e9)),
        // Rank 0 is the late one.
        waiting_cpu: (!plan.late.is_zero() && rows.len() > 1).then(|| column(2).skip(1).sum::<f64>() / (ranks - 1.0)),
        extra_rss_bytes: column(3).all(|bytes| bytes >= 0.0).then(|| column(3).fold(0.0, f64::max) as u64),
    };
    Ok((slowest, hosts.len(), usage))
}

fn measure_own(comm: &mut Communicator, stamp: u32, choice: Choice, buffers: &Buffers, plan: &Plan) -> Result<Own> {
    let pattern = Pattern::new(comm.size(), plan.dtype)?;
    let tensor = &buffers.summed;
    let mut own = Own { seconds: Vec::with_capacity(plan.iters), cpu_s: 0.0, waiting_cpu: 0.0, extra_rss_bytes: 0.0 };
    pattern.fill(tensor, comm.rank(), 0);
    let mut memory = Memory::watch();
    let last = plan.warmup + plan.iters;
    for iteration in 0..last + usize::from(!plan.late.is_zero()) {
        if iteration == plan.warmup {
            memory.look_away();
        }
        rest(plan.rest);
        pattern.fill(tensor, comm.rank(), iteration);
        barrier(comm, stamp, &buffers.flag)?;
        if iteration == last && comm.rank() == 0 {
            std::thread::sleep(plan.late);
        }
        let (start, cpu) = (Instant::now(), cpu_s());
        comm.allreduce_tensor(choice, tensor, stamp)?;
        let (seconds, cpu) = (start.elapsed().as_secs_f64(), cpu_s() - cpu);
        // The first to finish would take the processor from the last.
        barrier(comm, stamp, &buffers.flag)?;
        pattern.check(tensor, "the buffer", comm.rank(), iteration..=iteration)?;
        if iteration == last {
            // The sum itself costs what it does in the other iterations.
            own.waiting_cpu = (cpu - own.cpu_s / plan.iters as f64).max(0.0) / plan.late.as_secs_f64();
        } else if iteration >= plan.warmup {
            own.seconds.push(seconds);
            own.cpu_s += cpu;
        }
    }
    own.extra_rss_bytes = memory.grown_bytes().map_or(-1.0, |bytes| bytes as f64);
    Ok(own)
}

/// Lets time pass awake: ranks that share cores and have slept come back one after the other, which the next sum would wait for.
fn rest(time: Duration) {
    let start = Instant::now();
    while start.elapsed() < time {
        std::thread::yield_now();
    }
}

/// Returns when every rank is here, by a sum of one byte.
fn barrier(comm: &mut Communicator, stamp: u32, flag: &Tensor) -> Result<()> {
    comm.allreduce_tensor(Choice::Auto, flag, stamp)
}

/// Every rank's `own`, in the order of the ranks.
fn gather(comm: &mut Communicator, stamp: u32, own: &[f64]) -> Result<Vec<Vec<f64>>> {
    let parts = Parts::of((0..=comm.size()).map(|rank| rank * size_of_val(own)).collect());
    let all = comm.gather(parts, stamp, |part| part.copy_from_slice(bytemuck::cast_slice(own)))?;
    let row = |row: &[u8]| row.chunks_exact(size_of::<f64>()).map(bytemuck::pod_read_unaligned).collect();
    Ok(all.bytes().chunks_exact(size_of_val(own)).map(row).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_librarys_own_sum_asked_for_by_name_has_its_own_limit() {
        let by_variable = Config { algorithm: "native".to_owned(), ..Config::default() };
        assert_eq!(eager_bytes(Some(Choice::Native), &Config::default()), None);
        for (asked, config) in [(Some(Choice::Auto), &Config::default()), (None, &by_variable)] {
            assert_eq!(eager_bytes(asked, config), Some(config.segment_bytes));
        }
    }
}
