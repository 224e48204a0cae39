//! Measures reduce-scatter, allgather and alltoall of plain buffers, ours and the MPI library's own in turns.

use std::time::{Duration, Instant};

use ringpull_allreduce::communicator::Communicator;
use ringpull_allreduce::transport::BlockCollective;
use ringpull_base::config::Config;
use ringpull_base::{DType, Element, Error, Result, Tensor, with_element};

use crate::allreduce::{barrier, connect, gather, rest};
use crate::link::LinkRate;
use crate::ranks::{RankReport, gather_by, record_of};
use crate::record::Record;
use crate::usage::cpu_s;

/// A collective that is half of an allreduce.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Collective {
    ReduceScatter,
    Allgather,
    Alltoall,
}

impl Collective {
    pub fn name(self) -> &'static str {
        match self {
            Collective::ReduceScatter => "reduce_scatter",
            Collective::Allgather => "allgather",
            Collective::Alltoall => "alltoall",
        }
    }

    fn of(self, dtype: DType) -> BlockCollective {
        match self {
            Collective::ReduceScatter => BlockCollective::ReduceScatter(dtype),
            Collective::Allgather => BlockCollective::Allgather,
            Collective::Alltoall => BlockCollective::Alltoall,
        }
    }
}

/// The ways to do a collective.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Way {
    /// By our plans, and through shared memory on one host.
    Auto,
    /// By the MPI library's own collective.
    Native,
}

/// The subject of the measurement.
#[derive(Debug, Clone, Copy)]
pub struct CollectiveOptions {
    pub dtype: DType,
    pub iters: usize,
    pub warmup: usize,
    pub rest: Duration,
    pub link: LinkRate,
}

/// Measures a collective for each of `sizes` bytes and each way, and gives rank 0 one record for each. The
/// bytes are a rank's input of a reduce-scatter or alltoall, and a rank's output of an allgather. They are
/// rounded down to equal blocks of at least one element. Collective.
pub fn run(
    which: Collective,
    sizes: &[usize],
    ways: &[Way],
    options: CollectiveOptions,
) -> Result<Option<Vec<Record>>> {
    if options.iters == 0 {
        return Err(Error::argument("invalid --iters 0: expected at least 1", "give a larger number"));
    }
    let config = Config::from_env()?;
    let engine = connect(&config, Some(config.segment_bytes))?;
    let element = options.dtype.size_bytes();
    let mut records = Vec::new();
    for size in sizes {
        let len = (size / element / engine.size()).max(1) * engine.size();
        let (flag, measured) = (Tensor::zeros(DType::U8, &[1]), ways.to_vec());
        let work = move |comm: &mut Communicator, stamp: u32| {
            let found = measure(comm, stamp, which, (&measured, len), &flag, &options)?;
            let gathered = found.iter().map(|found| gather_by(found, |_, numbers| gather(comm, stamp, numbers)));
            gathered.collect::<Result<Vec<_>>>()
        };
        let found = engine.collective("bench", work)?;
        for (way, ranks) in ways.iter().zip(&found) {
            let (mode, algorithm) = match way {
                Way::Auto => ("dist_sync_mpi", "auto"),
                Way::Native => ("mpi", "native"),
            };
            let blank = Record::blank(which.name(), options.dtype);
            let record = Record { mode: mode.to_owned(), algorithm: algorithm.to_owned(), ..blank };
            let record = record_of(ranks, len * element, record)?;
            let rate = options.link.bytes_per_s();
            let record = if let Some(rate) = rate { record.with_links(rate, None, None) } else { record };
            records.push(record);
        }
    }
    Ok((engine.rank() == 0).then_some(records))
}

/// The input of rank `rank` at `i`, so small that sums are exact.
fn given(rank: usize, i: usize, iteration: usize) -> f64 {
    ((i + 3 * rank + iteration) % 4) as f64
}

/// Measures each way on this rank. Each iteration goes through all ways.
fn measure(
    comm: &mut Communicator,
    stamp: u32,
    which: Collective,
    (ways, len): (&[Way], usize),
    flag: &Tensor,
    options: &CollectiveOptions,
) -> Result<Vec<RankReport>> {
    let (size, which_blocks) = (comm.size(), which.of(options.dtype));
    let (given_len, taken_len) = match which {
        Collective::ReduceScatter => (len, len / size),
        Collective::Allgather => (len / size, len),
        Collective::Alltoall => (len, len),
    };
    let (input, out) = (Tensor::zeros(options.dtype, &[given_len]), Tensor::zeros(options.dtype, &[taken_len]));
    let mut found: Vec<RankReport> = ways.iter().map(|_| RankReport::default()).collect();
    for iteration in 0..options.warmup + options.iters {
        for at in 0..ways.len() {
            let at = (at + iteration) % ways.len();
            rest(options.rest);
            fill((&input, &out), comm.rank(), iteration);
            barrier(comm, stamp, flag)?;
            let (start, cpu) = (Instant::now(), cpu_s());
            comm.collect((which_blocks, ways[at] == Way::Native), &input, &out, stamp)?;
            let (seconds, cpu) = (start.elapsed().as_secs_f64(), cpu_s() - cpu);
            barrier(comm, stamp, flag)?;
            check(&out, which, (comm.rank(), size), iteration)?;
            if iteration >= options.warmup {
                found[at].seconds.push(seconds);
                found[at].spent.cpu_s += cpu;
            }
        }
    }
    Ok(found)
}

fn fill((input, out): (&Tensor, &Tensor), rank: usize, iteration: usize) {
    out.write().bytes_mut().fill(0xee);
    with_element!(input.dtype(), T => {
        let values: [T; 4] = std::array::from_fn(|i| T::from_f64(given(rank, i, iteration)));
        input.write().as_mut_slice::<T>().iter_mut().enumerate().for_each(|(i, value)| *value = values[i % 4]);
    });
}

fn check(out: &Tensor, which: Collective, (rank, size): (usize, usize), iteration: usize) -> Result<()> {
    let found = out.read()?;
    with_element!(out.dtype(), T => {
        let out: &[T] = found.as_slice();
        let block = if which == Collective::ReduceScatter { out.len() } else { out.len() / size };
        // The expected element `i` of the block that comes from rank `from`.
        let of = |from: usize, i: usize| match which {
            Collective::Allgather => given(from, i, iteration),
            Collective::Alltoall => given(from, rank * block + i, iteration),
            Collective::ReduceScatter => (0..size).map(|from| given(from, rank * block + i, iteration)).sum(),
        };
        for (from, found) in out.chunks_exact(block).enumerate() {
            let expected: [T; 4] = std::array::from_fn(|i| T::from_f64(of(from, i)));
            if let Some(at) = (0..block).find(|i| found[*i] != expected[i % 4]) {
                return Err(Error::bug(format!("{} on rank {rank}: element {at} of block {from} is wrong", which.name())));
            }
        }
        Ok(())
    })
}
