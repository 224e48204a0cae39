//! Measures the share of a bandwidth that is used: of the device's memory by the kernels, of the link to the
//! host by the staging, and of the link between devices by the collectives.

use std::slice::from_ref;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use ringpull::internal::{OnDevices, store_over};
use ringpull_allreduce::progress::Engine;
use ringpull_base::config::Config;
use ringpull_base::{Algorithm, DType, Error, Kind, Result, Tensor};
use ringpull_device::{Collective, CollectiveKind, Devices, Memory, Operation, Slice, Stream, Work};
use ringpull_kernels::optim::Optimizer;

use super::{FIRST, LIMIT, Speed};
use ringpull_harness::statistics::Summary;

/// The bytes of a buffer are a multiple of this number, so that every piece of a buffer has equal length.
pub(crate) const UNIT: usize = 4 << 10;
/// The number of launches in one run. With several launches the time of queueing is hidden.
const LAUNCHES: u32 = 10;
/// The number of runs. The first is discarded.
const RUNS: usize = 8;

/// Measures with buffers of `bytes` bytes.
pub(super) fn measure(name: &str, devices: &Arc<Devices>, bytes: usize) -> Result<Vec<Speed>> {
    let bench = Bench(devices);
    let buffers = (0..6).map(|_| bench.buffer(bytes)).collect::<Result<Vec<_>>>()?;
    let codes = bench.buffer(bytes / 16)?;
    let at = |index: usize| buffers[index].clone();
    let mut speeds = Vec::new();
    let copy = bench.kernel("copy on the device", &Work::copy(at(0), at(1)), 1.0)?;
    let limit = copy.bytes_per_s;
    speeds.push(Speed { share: 1.0, ..copy });
    let zero = Work::zero(at(0));
    speeds.push(bench.kernel("zero", &zero, limit)?);
    for count in [2, 4] {
        for dtype in [DType::F32, DType::BF16] {
            let work = Work::sum(dtype, (0..count).map(at).collect(), at(5));
            speeds.push(bench.kernel(&format!("sum of {count} buffers of {dtype}"), &work, limit)?);
        }
    }
    let pieces = 64;
    let cut = |index: usize| -> Vec<Slice> {
        (0..pieces).map(|piece| at(index).part(piece * bytes / pieces..(piece + 1) * bytes / pieces)).collect()
    };
    let pack = Work { operation: Operation::Copy, reads: cut(0), writes: cut(1) };
    speeds.push(bench.kernel("packing of 64 keys", &pack, limit)?);
    let quantise = Work {
        operation: Operation::Quantise2 { threshold: 0.5 },
        reads: vec![at(0), at(1)],
        writes: vec![codes.clone(), at(1)],
    };
    speeds.push(bench.kernel("2-bit quantise", &quantise, limit)?);
    let add = Work {
        operation: Operation::AddDequantised2 { threshold: 0.5 },
        reads: vec![codes, at(1)],
        writes: vec![at(1)],
    };
    speeds.push(bench.kernel("2-bit dequantise and add", &add, limit)?);
    for (name, slots) in [("sgd,lr=0.1,momentum=0.9", 1), ("adam,lr=0.01", 2)] {
        let optimizer: Arc<Optimizer> = Arc::new(name.parse()?);
        let operation = Operation::Update { optimizer, dtype: DType::F32, updates: 1 };
        let written: Vec<Slice> = (1..2 + slots).map(at).collect();
        let reads = std::iter::once(at(0)).chain(written.iter().cloned()).collect();
        speeds.push(bench.kernel(&format!("update by {name}"), &Work { operation, reads, writes: written }, limit)?);
    }
    let link = bench.link(&buffers[0])?;
    let slower = link.iter().map(|speed| speed.bytes_per_s).fold(f64::INFINITY, f64::min);
    speeds.extend(link);
    speeds.push(staging(name, bytes / 4, slower)?);
    speeds.extend(bench.collectives(bytes)?);
    Ok(speeds)
}

/// Measures `push_pull` of one tensor by two ranks of this process that share the devices: the tensor is
/// copied to the host, summed over the ranks, and copied back. Its limit is the slower of its two stages
/// alone: the copies at `link_bytes_per_s`, or the ranks' allreduce in host memory.
fn staging(name: &str, len_bytes: usize, link_bytes_per_s: f64) -> Result<Speed> {
    // With a plan's name the ranks do not try other routes.
    let config = Config { timeout: LIMIT, algorithm: Algorithm::Ring.into(), ..Config::default() };
    let running = Engine::in_process(2, &config)?.into_iter().map(|engine| {
        let (name, config) = (name.to_owned(), config.clone());
        thread::spawn(move || one_of_two(&name, &config, &engine, len_bytes))
    });
    let running: Vec<_> = running.collect();
    let lost = || Err(Error::argument("a rank panicked", "see its message above"));
    let ends = running.into_iter().map(|rank| rank.join().unwrap_or_else(|_| lost())).collect::<Result<Vec<_>>>()?;
    let slowest =
        |times: &dyn Fn(&RunTimes) -> &Vec<f64>, run: usize| ends.iter().map(|end| times(end)[run]).fold(0.0, f64::max);
    let seconds: Vec<f64> = (1..RUNS).map(|run| slowest(&|end| &end.staged, run)).collect();
    let in_host: Vec<f64> = (1..RUNS).map(|run| slowest(&|end| &end.in_host, run)).collect();
    let least = (len_bytes as f64 / link_bytes_per_s).max(median(&in_host));
    let took = median(&seconds);
    Ok(Speed {
        name: "staging between two ranks".to_owned(),
        bytes: len_bytes as u64,
        bytes_per_s: len_bytes as f64 / took,
        share: least / took,
        seconds,
    })
}

/// Seconds of a rank's runs.
struct RunTimes {
    /// From a device to a device.
    staged: Vec<f64>,
    /// In host memory alone.
    in_host: Vec<f64>,
}

fn one_of_two(name: &str, config: &Config, engine: &Arc<Engine>, len_bytes: usize) -> Result<RunTimes> {
    let devices = ringpull_device::open(name)?;
    let backend = OnDevices::over_ranks(Arc::clone(&devices), Arc::clone(engine), LIMIT);
    let store = store_over(Kind::DistSyncMpi, Box::new(backend), config);
    let tensor = devices.zeros(FIRST, DType::F32, &[len_bytes / DType::F32.size_bytes()])?;
    store.init("w", &Tensor::zeros(DType::F32, tensor.shape()))?;
    let memory = Tensor::zeros(DType::F32, tensor.shape());
    let mut times = RunTimes { staged: Vec::new(), in_host: Vec::new() };
    for _ in 0..RUNS {
        store.barrier()?;
        let start = Instant::now();
        store.push_pull("w", from_ref(&tensor), from_ref(&tensor), 0)?;
        store.wait_all()?;
        times.staged.push(start.elapsed().as_secs_f64());
        store.barrier()?;
        let start = Instant::now();
        let summed = memory.clone();
        engine.collective("an allreduce in host memory", move |host, number| {
            host.allreduce_tensor(host.choice(), &summed, number)
        })?;
        times.in_host.push(start.elapsed().as_secs_f64());
    }
    Ok(times)
}

fn median(seconds: &[f64]) -> f64 {
    Summary::of(seconds).map_or(f64::NAN, |summary| summary.median)
}

struct Bench<'a>(&'a Devices);

impl Bench<'_> {
    fn buffer(&self, len_bytes: usize) -> Result<Slice> {
        let slice = Slice::all(&Memory::on(self.0.platform(), FIRST, len_bytes)?);
        self.0.platform().enqueue(self.0.lane(FIRST), &Work::zero(slice.clone()))?;
        Ok(slice)
    }

    /// Measures a kernel. Its bytes are those that must be read and written; bytes that are changed in place
    /// count twice.
    fn kernel(&self, name: &str, work: &Work, limit: f64) -> Result<Speed> {
        let bytes = work.reads.iter().chain(&work.writes).map(|slice| slice.len_bytes() as u64).sum();
        self.timed(name, bytes, limit, self.0.lane(FIRST), work)
    }

    /// Measures collectives over all devices by the bus bandwidth of nccl-tests: the bytes that a link must
    /// carry for a buffer of `bytes` bytes, divided by the time. The limit is a copy from one device to
    /// another.
    fn collectives(&self, bytes: usize) -> Result<Vec<Speed>> {
        let count = self.0.count();
        if count < 2 || !self.0.platform().has_collectives() {
            return Ok(Vec::new());
        }
        let part_bytes = bytes / UNIT * (UNIT / count / 8 * 8);
        let memory = |len_bytes: usize| -> Result<Vec<Slice>> {
            let on = |device| Ok(Slice::all(&Memory::on(self.0.platform(), device, len_bytes)?));
            let all = (0..count).map(on).collect::<Result<Vec<Slice>>>()?;
            let zero = |(device, slice): (usize, &Slice)| {
                self.0.platform().enqueue(self.0.lane(device), &Work::zero(slice.clone()))
            };
            all.iter().enumerate().try_for_each(zero).map(|()| all)
        };
        let (whole, parts) = (memory(part_bytes * count)?, memory(part_bytes)?);
        self.0.join()?;
        let bytes = (part_bytes * count) as u64;
        let copy = Work::copy(whole[0].clone(), whole[1].clone());
        let copy = self.timed("copy from device to device", bytes, 1.0, self.0.lane(1), &copy)?;
        let limit = copy.bytes_per_s;
        let mut speeds = vec![Speed { share: 1.0, ..copy }];
        let of_all = (count - 1) as f64 / count as f64;
        for (name, kind, send, receive, factor) in [
            ("allreduce", CollectiveKind::AllReduce, &whole, &whole, 2.0 * of_all),
            ("reduce_scatter", CollectiveKind::ReduceScatter, &whole, &parts, of_all),
            ("allgather", CollectiveKind::AllGather, &parts, &whole, of_all),
        ] {
            let call = [Collective { kind, dtype: DType::F32, send: send.clone(), receive: receive.clone() }];
            let mut seconds = Vec::with_capacity(RUNS);
            for _ in 0..RUNS {
                self.0.join()?;
                self.0.drain(LIMIT)?;
                let start = Instant::now();
                (0..LAUNCHES).try_for_each(|_| self.0.collective(&call))?;
                self.0.drain(LIMIT)?;
                seconds.push(start.elapsed().as_secs_f64() / f64::from(LAUNCHES));
            }
            seconds.remove(0);
            let bytes_per_s = bytes as f64 / median(&seconds) * factor;
            let name = format!("{name} over {count} devices, busbw");
            speeds.push(Speed { name, bytes, seconds, bytes_per_s, share: bytes_per_s / limit });
        }
        Ok(speeds)
    }

    /// Measures copies to and from pinned memory, each alone.
    fn link(&self, buffer: &Slice) -> Result<Vec<Speed>> {
        let bytes = buffer.len_bytes();
        let pinned = || Ok(Slice::all(&Memory::pinned(self.0.platform(), bytes)?));
        let (staging, other) = (pinned()?, pinned()?);
        let (down, up) = (self.0.down(FIRST), self.0.up(FIRST));
        let work = Work::copy(buffer.clone(), staging.clone());
        let to_host = self.timed("copy to pinned memory", bytes as u64, 1.0, down, &work)?;
        let work = Work::copy(other, buffer.clone());
        let to_device = self.timed("copy from pinned memory", bytes as u64, 1.0, up, &work)?;
        Ok(vec![Speed { share: 1.0, ..to_host }, Speed { share: 1.0, ..to_device }])
    }

    fn timed(&self, name: &str, bytes: u64, limit: f64, stream: &Stream, work: &Work) -> Result<Speed> {
        let mut seconds = Vec::with_capacity(RUNS);
        stream.follow(self.0.lane(FIRST))?;
        for _ in 0..RUNS {
            stream.record()?.synchronize(LIMIT)?;
            let start = Instant::now();
            (0..LAUNCHES).try_for_each(|_| self.0.platform().enqueue(stream, work))?;
            stream.record()?.synchronize(LIMIT)?;
            seconds.push(start.elapsed().as_secs_f64() / f64::from(LAUNCHES));
        }
        seconds.remove(0);
        let bytes_per_s = bytes as f64 / median(&seconds);
        Ok(Speed { name: name.to_owned(), bytes, seconds, bytes_per_s, share: bytes_per_s / limit })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn staging_is_timed_on_simulated_devices_too() {
        let speed = staging("sim:1", 4 << 10, 1e9).unwrap();
        assert!(speed.bytes_per_s > 0.0 && speed.share > 0.0 && speed.seconds.len() == RUNS - 1);
    }
}
