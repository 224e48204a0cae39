//! Measures an allreduce of plain buffers, without the store: our plans and the MPI library's own.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ringpull_allreduce::communicator::{Communicator, Parts};
use ringpull_allreduce::progress::Engine;
use ringpull_base::config::Config;
use ringpull_base::{AlgorithmChoice, DType, Error, Result, Tensor};
use ringpull_workload::pattern::Pattern;

use crate::progress::Progress;
use crate::ranks::{RankReport, gather_by, record_of};
use crate::record::Record;
use crate::size::format_size;
use crate::usage::{Memory, cpu_s};

/// Milliseconds without traffic before each iteration, the same for all programs. A shaped link saves up a
/// burst while it is idle. Without this rest the program with the slower barrier would seem to have the
/// faster sum.
pub const REST_MS: f64 = 2.0;

/// The settings by which buffers are measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AllreduceOptions {
    pub dtype: DType,
    /// Measured iterations, at least 1.
    pub iters: usize,
    /// Iterations before the measured ones, verified but not timed.
    pub warmup: usize,
    /// The time for which the ranks are idle before each iteration, so that every sample finds the same burst
    /// saved up by the links' shapers.
    pub rest: Duration,
    /// The time for which the other ranks wait for rank 0 in one more iteration, in which their processor
    /// time is measured. Zero omits this iteration.
    pub waiting: Duration,
}

/// Sums buffers of `sizes` bytes over all ranks, verifies every result, and gives rank 0 one record for each
/// size. Each size must be a whole number of elements. The algorithm is `asked`; if that is `None`, the
/// environment decides. Collective; one rank may show the progress.
pub fn run(
    sizes: &[usize],
    asked: Option<AlgorithmChoice>,
    plan: &AllreduceOptions,
    progress: Option<&Progress>,
) -> Result<Option<Vec<Record>>> {
    let dtype = plan.dtype;
    if plan.iters == 0 {
        return Err(Error::argument("invalid --iters 0: expected at least 1", "give a larger number"));
    }
    let environment = Config::from_env()?;
    let choice = asked.unwrap_or(environment.algorithm);
    if choice == AlgorithmChoice::Nccl {
        return Err(Error::argument(
            "invalid --algorithm nccl: it sums only memory of GPUs, and these buffers are in host memory",
            "choose another --algorithm; `RINGPULL_ALGORITHM=nccl` is for stores on GPUs",
        ));
    }
    // Only `auto` needs to know the cluster.
    let eager_bytes = eager_bytes(asked, &environment);
    let engine = connect(&Config { algorithm: choice, ..environment }, eager_bytes)?;
    let mut records = Vec::new();
    for (done, size) in sizes.iter().copied().enumerate() {
        if let Some(progress) = progress {
            progress.part(done, sizes.len(), format!("summing {}", format_size(size as f64)));
        }
        let plan = *plan;
        let summed = Tensor::zeros(dtype, &[size / dtype.size_bytes()]);
        let buffers = Buffers { summed, flag: Tensor::zeros(DType::U8, &[1]) };
        let work = move |comm: &mut Communicator, stamp: u32| {
            let found = measure(comm, stamp, choice, &buffers, &plan)?;
            gather_by(&found, |_, numbers| gather(comm, stamp, numbers))
        };
        let ranks = engine.collective("bench allreduce", work)?;
        let mode = if choice == AlgorithmChoice::Native { "mpi" } else { "dist_sync_mpi" }.to_owned();
        let (algorithm, blank) = (choice.to_string(), Record::blank("allreduce", dtype));
        let record = Record { mode, algorithm, ..blank };
        records.push(record_of(&ranks, size, record)?);
    }
    Ok((engine.rank() == 0).then_some(records))
}

/// The size up to which the MPI library is to send eagerly: a segment. The library keeps its own limit if the
/// command line asks for the library's own allreduce. Only the command line counts here: it is the same on
/// every rank, while a variable may differ.
fn eager_bytes(asked: Option<AlgorithmChoice>, config: &Config) -> Option<usize> {
    (asked != Some(AlgorithmChoice::Native)).then_some(config.segment_bytes)
}

pub fn connect(config: &Config, eager_bytes: Option<usize>) -> Result<Arc<Engine>> {
    ringpull_allreduce::progress::process::mpi_engine(config, eager_bytes)
}

/// The tensors that the transport uses.
struct Buffers {
    summed: Tensor,
    /// One byte, for barriers.
    flag: Tensor,
}

/// Measures the buffers on this rank.
fn measure(
    comm: &mut Communicator,
    stamp: u32,
    choice: AlgorithmChoice,
    buffers: &Buffers,
    plan: &AllreduceOptions,
) -> Result<RankReport> {
    let pattern = Pattern::new(comm.size(), plan.dtype)?;
    let tensor = &buffers.summed;
    let mut found = RankReport::default();
    pattern.fill(tensor, comm.rank(), 0);
    let mut memory = Memory::watch();
    let last = plan.warmup + plan.iters;
    for iteration in 0..last + usize::from(!plan.waiting.is_zero()) {
        if iteration == plan.warmup {
            memory.stop();
        }
        rest(plan.rest);
        pattern.fill(tensor, comm.rank(), iteration);
        barrier(comm, stamp, &buffers.flag)?;
        if iteration == last && comm.rank() == 0 {
            std::thread::sleep(plan.waiting);
        }
        let (start, cpu) = (Instant::now(), cpu_s());
        comm.allreduce_tensor(choice, tensor, stamp)?;
        let (seconds, cpu) = (start.elapsed().as_secs_f64(), cpu_s() - cpu);
        // Without this barrier the first ranks to finish would take processor time from the last.
        barrier(comm, stamp, &buffers.flag)?;
        pattern.check(tensor, "the buffer", comm.rank(), iteration..=iteration)?;
        if iteration == last {
            // The sum itself takes as much processor time as in the other iterations. Rank 0 is the late
            // rank.
            let waiting = (cpu - found.spent.cpu_s / plan.iters as f64).max(0.0) / plan.waiting.as_secs_f64();
            found.waiting_cpu = (comm.rank() > 0).then_some(waiting);
        } else if iteration >= plan.warmup {
            found.seconds.push(seconds);
            found.spent.cpu_s += cpu;
        }
    }
    Ok(RankReport { extra_rss_bytes: memory.grown_bytes(), ..found })
}

/// Waits without sleeping. Ranks that share cores wake up one after the other, so after a sleep the next sum
/// would wait for the last rank.
pub fn rest(time: Duration) {
    let start = Instant::now();
    while start.elapsed() < time {
        std::thread::yield_now();
    }
}

/// Returns when every rank has called it. It sums one byte.
pub fn barrier(comm: &mut Communicator, stamp: u32, flag: &Tensor) -> Result<()> {
    comm.allreduce_tensor(AlgorithmChoice::Auto, flag, stamp)
}

/// Returns every rank's `own`.
pub fn gather(comm: &mut Communicator, stamp: u32, own: &[f64]) -> Result<Vec<Vec<f64>>> {
    let parts = Parts::of((0..=comm.size()).map(|rank| rank * size_of_val(own)).collect());
    let all = comm.gather(parts, stamp, |part| part.copy_from_slice(bytemuck::cast_slice(own)))?;
    let row = |row: &[u8]| row.chunks_exact(size_of::<f64>()).map(bytemuck::pod_read_unaligned).collect();
    Ok(all.bytes().chunks_exact(size_of_val(own)).map(row).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_keeps_its_eager_limit_only_if_the_option_asks_for_its_allreduce() {
        let by_variable = Config { algorithm: AlgorithmChoice::Native, ..Config::default() };
        assert_eq!(eager_bytes(Some(AlgorithmChoice::Native), &Config::default()), None);
        for (asked, config) in [(Some(AlgorithmChoice::Auto), &Config::default()), (None, &by_variable)] {
            assert_eq!(eager_bytes(asked, config), Some(config.segment_bytes));
        }
    }
}
