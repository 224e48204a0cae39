//! Tests the routes of device memory with simulated devices: the agreement of the ranks, and their errors if
//! a rank does not come.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use ringpull_allreduce::communicator::Communicator;
use ringpull_allreduce::transport::inproc::{Inproc, world};
use ringpull_allreduce::transport::{SendMode, Stamp, Transport};
use ringpull_base::config::Config;
use ringpull_base::{DType, Result, Tensor};
use ringpull_device::{Devices, JoinedDevices, Layout, Meeting, Simulated, Slice, SumScratch};

use super::routes::{Route, allreduce};
use super::sum::Sum;

const LIMIT: Duration = Duration::from_secs(20);

fn by(algorithm: &str) -> Config {
    Config { timeout: LIMIT, algorithm: algorithm.parse().unwrap(), ..Config::default() }
}

/// A rank with its devices and a tensor on each device, for sums with the other ranks.
struct Rank {
    comm: Communicator,
    stop: Arc<AtomicBool>,
    platform: Arc<Simulated>,
    devices: Arc<Devices>,
    layout: Layout,
    dtype: DType,
    inputs: Vec<Tensor>,
    outputs: Vec<Tensor>,
    route: Route,
    sums: Stamp,
    /// The number of allocations of the last sum over the ranks.
    allocations: u64,
}

impl Rank {
    fn slices(&self, tensors: &[Tensor]) -> Vec<Slice> {
        tensors.iter().map(|one| self.devices.array(one.remote()).unwrap().slice().clone()).collect()
    }

    /// Sums the inputs of all ranks into every output.
    fn sum(&mut self) -> Result<()> {
        let (devices, layout, dtype) = (&self.devices, &self.layout, self.dtype);
        let parts = devices.parts(layout)?;
        devices.join()?;
        devices.sum_parts(dtype, layout, &self.slices(&self.inputs), &parts, &mut SumScratch::default())?;
        let (stamp, limit, pool) = (self.sums, LIMIT, &self.route.pool);
        let sum = Sum { devices, layout, dtype, parts: &parts, stamp, limit, pool };
        let before = self.platform.allocations();
        allreduce(&mut self.comm, &self.route, &sum)?;
        self.allocations = self.platform.allocations() - before;
        self.sums += 1;
        self.devices.join()?;
        self.devices.gather_parts(dtype, layout, &parts, &self.slices(&self.outputs))?;
        self.devices.drain(LIMIT)
    }

    fn seen(&self) -> Vec<Tensor> {
        self.outputs.iter().map(|one| self.devices.download(one).unwrap()).collect()
    }
}

/// Runs `work` on ranks. `counts` has the number of devices of each. Every device has `len` elements of
/// `rank + 1` times `unit`.
fn on_ranks<T: Send, W: Transport + Send + 'static>(
    config: &Config,
    (counts, wires): (&[usize], Vec<W>),
    (dtype, len, unit): (DType, usize, f64),
    work: impl Fn(&mut Rank) -> T + Sync,
) -> Vec<T> {
    thread::scope(|scope| {
        let work = &work;
        let ranks = wires.into_iter().zip(counts).enumerate().map(|(rank, (wire, &count))| {
            scope.spawn(move || {
                let stop = Arc::new(AtomicBool::new(false));
                let comm = Communicator::new(Box::new(wire), 0, config, Arc::clone(&stop)).unwrap();
                let platform = Simulated::new(count);
                let devices = Devices::over(platform.clone(), LIMIT).unwrap();
                let value = Tensor::full(dtype, &[len], (rank + 1) as f64 * unit);
                let tensors = || (0..count).map(|device| devices.upload(device, &value).unwrap()).collect();
                let (inputs, outputs) = (tensors(), tensors());
                let layout = Layout::new(len, dtype.size_bytes(), count);
                let (route, sums, allocations) = (Route::default(), 0, 0);
                work(&mut Rank {
                    comm,
                    stop,
                    platform,
                    devices,
                    layout,
                    dtype,
                    inputs,
                    outputs,
                    route,
                    sums,
                    allocations,
                })
            })
        });
        let ranks: Vec<_> = ranks.collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// Returns the sum of all elements at one place, over all devices of ranks with these numbers of devices.
fn total(counts: &[usize]) -> f32 {
    counts.iter().enumerate().map(|(rank, count)| ((rank + 1) * count) as f32).sum()
}

#[test]
fn devices_of_all_ranks_sum_by_themselves() {
    for (counts, len) in [(vec![1, 1], 7), (vec![2; 3], 1001), (vec![4, 4], 1), (vec![1; 4], (3 << 20) / 4 + 1)] {
        let seen = on_ranks(&by("nccl"), (&counts, world(counts.len())), (DType::F32, len, 1.0), |rank| {
            (0..2).for_each(|_| rank.sum().unwrap());
            (rank.seen(), rank.platform.sums_over_ranks())
        });
        for (rank, (tensors, joined)) in seen.into_iter().enumerate() {
            assert_eq!(joined, 2);
            for tensor in tensors {
                assert_eq!(tensor.to_vec::<f32>().unwrap(), vec![total(&counts); len], "rank {rank} of {counts:?}");
            }
        }
    }
}

#[test]
fn every_rank_has_the_same_bits_of_every_dtype() {
    for dtype in DType::ALL {
        let bits = on_ranks(&by("nccl"), (&[2, 2, 2], world(3)), (dtype, 67, 0.7), |rank| {
            rank.sum().unwrap();
            rank.seen().iter().map(|one| one.read().unwrap().bytes().to_vec()).collect::<Vec<_>>()
        });
        assert!(bits.iter().flatten().all(|one| *one == bits[0][0]), "{dtype}");
    }
}

/// Returns, for each rank, the number of sums by its devices' own collectives, after `sums` sums.
fn ways<W: Transport + Send + 'static>(config: &Config, counts: &[usize], wires: Vec<W>, sums: usize) -> Vec<u64> {
    on_ranks(config, (counts, wires), (DType::F32, 1000, 1.0), |rank| {
        for _ in 0..sums {
            rank.sum().unwrap();
            for tensor in rank.seen() {
                assert_eq!(tensor.to_vec::<f32>().unwrap(), [total(counts); 1000]);
            }
        }
        rank.platform.sums_over_ranks()
    })
}

#[test]
fn auto_tries_every_route_and_all_ranks_keep_the_same() {
    assert_eq!(ways(&by("auto"), &[2, 2, 2], world(3), 6), [3; 3]);
    let kept = ways(&by("auto"), &[2, 2, 2], world(3), 12);
    assert!(kept.iter().all(|joined| *joined == kept[0] && [3, 9].contains(joined)), "{kept:?}");
}

#[test]
fn a_plans_name_keeps_sums_away_from_the_devices_own() {
    for algorithm in ["ring", "ordered"] {
        assert_eq!(ways(&by(algorithm), &[2, 2], world(2), 3), [0; 2]);
    }
}

/// A wire on which every message is slow.
struct Slow(Inproc);

#[allow(unsafe_code)]
impl Transport for Slow {
    fn rank(&self) -> usize {
        self.0.rank()
    }

    fn size(&self) -> usize {
        self.0.size()
    }

    unsafe fn send(&mut self, to: usize, stamp: Stamp, data: *const [u8], mode: SendMode, token: u32) -> Result<()> {
        thread::sleep(Duration::from_millis(30));
        // SAFETY: as the caller promises.
        unsafe { self.0.send(to, stamp, data, mode, token) }
    }

    unsafe fn recv(&mut self, from: usize, stamp: Stamp, into: *mut [u8], token: u32) -> Result<()> {
        // SAFETY: as the caller promises.
        unsafe { self.0.recv(from, stamp, into, token) }
    }

    fn poll(&mut self, done: &mut Vec<u32>) -> Result<()> {
        self.0.poll(done)
    }

    fn narrow(&mut self, _workers: usize) -> Result<()> {
        Ok(())
    }

    fn name(&self) -> String {
        self.0.name()
    }
}

#[test]
fn where_messages_are_slow_the_devices_sum_by_themselves() {
    let slow = world(2).into_iter().map(Slow).collect();
    assert_eq!(ways(&by("auto"), &[1, 1], slow, 10), [3 + 4; 2]);
}

#[test]
fn ranks_of_unlike_devices_do_without_unless_it_was_asked_for() {
    assert_eq!(ways(&by("auto"), &[1, 2], world(2), 8), [0; 2]);
    let errors = on_ranks(&by("nccl"), (&[1, 2], world(2)), (DType::F32, 9, 1.0), |rank| rank.sum().unwrap_err());
    for error in errors {
        let text = error.to_string();
        assert!(text.contains("rank 1 has 2 devices") && text.contains("hint:"), "{text}");
    }
}

#[test]
fn turn_is_held_while_devices_sum_over_ranks() {
    let platform = Simulated::new(1);
    let devices = Devices::over(platform.clone(), LIMIT).unwrap();
    let id = devices.platform().unique_id().unwrap();
    let meeting = Meeting { ids: vec![id], rank: 0, size: 1 };
    let joined = JoinedDevices::at(devices.platform(), &meeting, &|| Ok(())).unwrap();
    let tensor = devices.upload(0, &Tensor::full(DType::F32, &[8], 1.0)).unwrap();
    let part = devices.array(tensor.remote()).unwrap().slice().clone();
    devices.lane(0).follow(devices.array(tensor.remote()).unwrap().stream()).unwrap();
    let lanes = [Arc::clone(devices.lane(0))];
    let queue =
        || devices.platform().sum_joined(joined.id(), &lanes, DType::F32, std::slice::from_ref(&part), &|| Ok(()));
    let text = queue().unwrap_err().to_string();
    assert!(text.contains("turn"), "{text}");
    let turn = devices.platform().turn();
    queue().unwrap();
    drop(turn);
}

#[test]
fn sums_after_the_first_allocate_nothing() {
    for algorithm in ["ring", "nccl"] {
        for (counts, len) in [(vec![1, 1], 9), (vec![2; 3], 1001), (vec![2, 2], (5 << 20) / 4 + 3)] {
            let allocated = on_ranks(&by(algorithm), (&counts, world(counts.len())), (DType::F32, len, 1.0), |rank| {
                (0..2).for_each(|_| rank.sum().unwrap());
                rank.allocations
            });
            assert!(allocated.iter().all(|count| *count == 0), "{algorithm}, {counts:?}, {len}: {allocated:?}");
        }
    }
}

#[test]
fn a_rank_that_is_gone_ends_the_others_sum_with_an_error() {
    let errors = on_ranks(&by("nccl"), (&[2, 2], world(2)), (DType::F32, 99, 1.0), |rank| {
        rank.sum().unwrap();
        let start = Instant::now();
        (rank.comm.rank() == 0).then(|| (rank.sum().unwrap_err().to_string(), start.elapsed()))
    });
    let (text, took) = errors[0].as_ref().unwrap();
    assert!(text.contains("another rank is lost"), "{text}");
    assert!(*took < LIMIT / 2, "{took:?}");
}

#[test]
fn a_rank_that_does_not_come_is_waited_for_until_the_deadline_or_the_stop() {
    let config = Config { timeout: Duration::from_millis(200), ..by("nccl") };
    let over = Barrier::new(2);
    let errors = on_ranks(&config, (&[1, 1], world(2)), (DType::F32, 99, 1.0), |rank| {
        rank.sum().unwrap();
        let error = (rank.comm.rank() == 0).then(|| rank.sum().unwrap_err().to_string());
        over.wait();
        error
    });
    let text = errors[0].as_deref().unwrap();
    assert!(text.contains("did not join within 300ms") || text.contains("was not done in 300ms"), "{text}");
    let over = Barrier::new(2);
    let stopping = on_ranks(&by("nccl"), (&[1, 1], world(2)), (DType::F32, 99, 1.0), |rank| {
        rank.sum().unwrap();
        let start = Instant::now();
        let error = (rank.comm.rank() == 0).then(|| {
            let stop = Arc::clone(&rank.stop);
            thread::scope(|scope| {
                scope.spawn(|| {
                    thread::sleep(Duration::from_millis(50));
                    stop.store(true, Ordering::Release);
                });
                rank.sum().unwrap_err().to_string()
            })
        });
        over.wait();
        (error, start.elapsed())
    });
    let (text, took) = &stopping[0];
    assert!(text.as_deref().unwrap().contains("the job was stopped") && *took < LIMIT / 2, "{text:?} after {took:?}");
}
