//! Measures an allreduce of plain buffers, without the store: our plans and the MPI library's own.

use std::sync::Arc;
use std::time::Instant;

use xxhash_rust::xxh3::xxh3_64;

use crate::collective::Parts;
use crate::communicator::{Choice, Host};
use crate::config::Config;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::harness::pattern::Pattern;
use crate::harness::record::{Measured, Record};
use crate::progress::Engine;
use crate::tensor::Tensor;
use crate::topology::host_name;

/// Sums buffers of `sizes` bytes over all ranks by `algorithm`, verifies every result, and gives rank 0 one record a size. Collective.
pub fn run(sizes: &[usize], algorithm: &str, dtype: DType, iters: usize, warmup: usize) -> Result<Option<Vec<Record>>> {
    if iters == 0 {
        return Err(Error::argument("--iters 0 measures nothing", "give at least 1"));
    }
    if let Some(size) = sizes.iter().find(|size| *size % dtype.size_bytes() != 0) {
        return Err(Error::argument(
            format!("{size} bytes are not whole elements of {dtype}"),
            format!("give sizes that are multiples of {}", dtype.size_bytes()),
        ));
    }
    let choice: Choice = algorithm.parse()?;
    let engine = connect(&Config::from_env()?)?;
    let mut records = Vec::new();
    for size in sizes {
        let size = *size;
        let work = move |host: &mut Host, stamp: u32| measure(host, stamp, choice, dtype, size, iters, warmup);
        let (seconds, hosts) = engine.collective("bench allreduce", work)?;
        records.push(Record::of_verified(Measured {
            op: "allreduce",
            mode: if choice == Choice::Native { "mpi" } else { "dist_sync_mpi" }.to_owned(),
            algorithm: algorithm.to_owned(),
            ranks: engine.size(),
            hosts,
            servers: 0,
            bytes: size as u64,
            dtype,
            seconds,
            host_bytes: None,
        })?);
    }
    Ok((engine.rank() == 0).then_some(records))
}

#[cfg(feature = "mpi")]
fn connect(config: &Config) -> Result<Arc<Engine>> {
    crate::progress::process::mpi_engine(config)
}

#[cfg(not(feature = "mpi"))]
fn connect(_config: &Config) -> Result<Arc<Engine>> {
    Err(Error::KindUnavailable {
        kind: "bench allreduce".to_owned(),
        reason: "this build has no MPI".to_owned(),
        remedy: "build it with the feature `mpi`, which is on by default".to_owned(),
    })
}

/// The slowest rank's seconds in each measured iteration, and the number of hosts.
fn measure(
    host: &mut Host,
    stamp: u32,
    choice: Choice,
    dtype: DType,
    size: usize,
    iters: usize,
    warmup: usize,
) -> Result<(Vec<f64>, usize)> {
    let pattern = Pattern::new(host.size(), dtype)?;
    let tensor = Tensor::zeros(dtype, &[size / dtype.size_bytes()]);
    let mut own = Vec::with_capacity(iters + 1);
    for iteration in 0..warmup + iters {
        pattern.fill(&tensor, host.rank(), iteration);
        let mut data = tensor.write();
        barrier(host, stamp)?;
        let start = Instant::now();
        host.allreduce_by(choice, dtype, data.bytes_mut(), stamp)?;
        let seconds = start.elapsed().as_secs_f64();
        drop(data);
        pattern.check(&tensor, "the buffer", host.rank(), iteration..=iteration)?;
        if iteration >= warmup {
            own.push(seconds);
        }
    }
    // 32 bits of the hash of the host's name: an f64 holds them exactly.
    own.push((xxh3_64(host_name().as_bytes()) >> 32) as f64);
    let rows = gather(host, stamp, &own)?;
    let slowest = (0..iters).map(|at| rows.iter().map(|row| row[at]).fold(0.0, f64::max)).collect();
    let mut hosts: Vec<u64> = rows.iter().map(|row| row[iters] as u64).collect();
    hosts.sort_unstable();
    hosts.dedup();
    Ok((slowest, hosts.len()))
}

/// Returns when every rank is here, by a sum of one byte.
fn barrier(host: &mut Host, stamp: u32) -> Result<()> {
    host.allreduce_by(Choice::Auto, DType::U8, &mut [0], stamp)
}

/// Every rank's `own`, in the order of the ranks.
fn gather(host: &mut Host, stamp: u32, own: &[f64]) -> Result<Vec<Vec<f64>>> {
    let mut all = vec![0f64; own.len() * host.size()];
    all[host.rank() * own.len()..][..own.len()].copy_from_slice(own);
    let bounds = (0..=host.size()).map(|rank| rank * size_of_val(own)).collect();
    host.allgather(Parts::of(bounds), bytemuck::cast_slice_mut(&mut all), stamp)?;
    Ok(all.chunks_exact(own.len()).map(<[f64]>::to_vec).collect())
}
