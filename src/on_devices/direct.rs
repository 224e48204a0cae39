//! Allreduce of memory of devices over a transport that takes it as it is: CUDA-aware MPI.
//!
//! The parts of the devices go one after the other, each by the plan that host memory would go by. The
//! transport reads and writes the devices' memory, and what arrives to be added goes into a room on the same
//! device, where the sum kernel adds it.
//!
//! MPI is not ordered by streams, and must not run beside the device's collectives: NCCL's kernel waits for
//! its peers and keeps MPI's copies waiting, whose peers it waits for. So it begins when the lanes are idle,
//! and no collective begins until it has ended.
#![allow(unsafe_code)]

use std::sync::Arc;
use std::time::Duration;

use ringpull_allreduce::communicator::Communicator;
use ringpull_allreduce::interpreter::{Action, Endpoint, Message, Scratch};
use ringpull_base::{DType, Error, Result};
use ringpull_device::{Memory, Pool, Slice, Stream, Work};

use super::sum::Sum;

/// Bytes of one message at least: a launch and a wait for it cost as much as some hundred kilobytes on the
/// network.
const LEAST_BYTES: usize = 2 << 20;

/// The parts become the sums over all ranks, of which each has as many devices. Blocks; collective.
pub(super) fn allreduce(comm: &mut Communicator, sum: &Sum<'_>) -> Result<()> {
    let Sum { devices, dtype, parts, stamp, limit, pool, .. } = *sum;
    devices.without_collectives(limit, || {
        for part in parts.iter().filter(|part| part.len_bytes() > 0) {
            let start = devices.platform().expose(part, true)?;
            let device = part.device().unwrap_or(0);
            let owner = RoomOwner {
                start,
                platform: Arc::clone(devices.platform()),
                lane: Arc::clone(devices.lane(device)),
                dtype,
                part: part.clone(),
                pool: Arc::clone(pool),
                given: Vec::new(),
                limit,
            };
            comm.allreduce_between(dtype, part.len_bytes(), Box::new(owner), LEAST_BYTES, stamp)?;
        }
        Ok(())
    })
}

/// A part, and the rooms that the transport may write what is added to it into.
struct RoomOwner {
    /// The address of the part.
    start: *mut u8,
    platform: Arc<dyn ringpull_device::Platform>,
    lane: Arc<Stream>,
    dtype: DType,
    part: Slice,
    pool: Arc<Pool>,
    given: Vec<Room>,
    limit: Duration,
}

struct Room {
    memory: Arc<Memory>,
    address: *mut u8,
}

// SAFETY: the transport takes memory of devices. The lane is idle, and queues nothing on the part but what
// this waits for. It owns the part and the rooms.
unsafe impl Endpoint for RoomOwner {
    fn copies_in_place(&self) -> bool {
        true
    }

    fn outgoing(&mut self, message: &Message, _scratch: &mut Scratch) -> Result<*const u8> {
        Ok(self.start.wrapping_add(message.start).cast_const())
    }

    fn sent(&mut self, _message: &Message, _scratch: &mut Scratch) {}

    fn incoming(&mut self, message: &Message, _peer: usize, _scratch: &mut Scratch) -> Result<*mut u8> {
        if message.action == Action::Copy {
            return Ok(self.start.wrapping_add(message.start));
        }
        let len_bytes = message.len();
        let memory = self.pool.take(&self.platform, Some(self.lane.device()), len_bytes)?;
        let address = self.platform.expose(&Slice::of(&memory, 0..len_bytes), true)?;
        self.given.push(Room { memory, address });
        Ok(address)
    }

    fn received(&mut self, message: &Message, _peer: usize, place: *mut u8, _scratch: &mut Scratch) -> Result<()> {
        if message.action == Action::Copy {
            return Ok(());
        }
        let Some(at) = self.given.iter().position(|given| given.address == place) else {
            return Err(Error::bug("a room that was not given"));
        };
        let sum = self.part.part(message.start..message.start + message.len());
        let arrived = Slice::of(&self.given[at].memory, 0..message.len());
        self.platform.enqueue(&self.lane, &Work::sum(self.dtype, vec![sum.clone(), arrived], sum))?;
        self.lane.record()?.synchronize(self.limit)?;
        // Only here: after an error the owner keeps it.
        self.pool.give(self.given.swap_remove(at).memory);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::routes::{self, Route};
    use super::*;
    use ringpull_allreduce::transport::inproc;
    use ringpull_base::config::Config;
    use ringpull_base::{Algorithm, AlgorithmChoice, Tensor};
    use ringpull_device::{Devices, Layout, Simulated, SumScratch};
    use std::sync::atomic::AtomicBool;
    use std::thread;

    const LIMIT: Duration = Duration::from_secs(20);

    /// Returns the tensors of every rank after two sums, the number of times that its transport was given
    /// memory of devices, and the allocations of the second sum.
    fn sum(config: &Config, counts: &[usize], dtype: DType, len: usize) -> Vec<(Vec<Tensor>, u64, u64)> {
        let ranks = inproc::world(counts.len()).into_iter().zip(counts).map(|(transport, &count)| {
            let config = config.clone();
            thread::spawn(move || {
                let rank = ringpull_allreduce::transport::Transport::rank(&transport);
                let mut comm =
                    Communicator::new(Box::new(transport), 0, &config, Arc::new(AtomicBool::new(false))).unwrap();
                let platform = Simulated::new(count);
                let devices = Devices::over(platform.clone(), LIMIT).unwrap();
                let layout = Layout::new(len, dtype.size_bytes(), count);
                let tensors: Vec<Tensor> = (0..count)
                    .map(|device| devices.upload(device, &Tensor::full(dtype, &[len], (rank + 1) as f64)).unwrap())
                    .collect();
                let inputs: Vec<Slice> =
                    tensors.iter().map(|one| devices.array(one.remote()).unwrap().slice().clone()).collect();
                let parts = devices.parts(&layout).unwrap();
                let (route, mut allocated) = (Route::default(), 0);
                for stamp in 0..2 {
                    devices.join().unwrap();
                    devices.sum_parts(dtype, &layout, &inputs, &parts, &mut SumScratch::default()).unwrap();
                    let sum = Sum {
                        devices: &devices,
                        layout: &layout,
                        dtype,
                        parts: &parts,
                        stamp,
                        limit: LIMIT,
                        pool: &route.pool,
                    };
                    let before = platform.allocations();
                    routes::allreduce(&mut comm, &route, &sum).unwrap();
                    allocated = platform.allocations() - before;
                    devices.join().unwrap();
                    devices.gather_parts(dtype, &layout, &parts, &inputs).unwrap();
                }
                devices.drain(LIMIT).unwrap();
                let downloaded = tensors.iter().map(|one| devices.download(one).unwrap());
                (downloaded.collect(), platform.exposed(), allocated)
            })
        });
        let ranks: Vec<_> = ranks.collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    }

    fn direct() -> Config {
        Config { timeout: LIMIT, mpi_device_memory: Some(true), ..Config::default() }
    }

    #[test]
    fn memory_of_devices_is_summed_where_it_is() {
        for algorithm in ["auto", "ring", "ordered", "doubling"] {
            let config = Config { algorithm: algorithm.parse().unwrap(), ..direct() };
            for (counts, len) in [(vec![1, 1], 7), (vec![2; 3], 1001), (vec![2, 2], 1), (vec![1; 4], (3 << 20) / 4 + 1)]
            {
                let total: usize = (1..=counts.len()).sum();
                // Each rank gives what it has from each of its devices, twice.
                let value = (total * counts[0] * counts.len() * counts[0]) as f32;
                for (rank, (tensors, exposed, _)) in sum(&config, &counts, DType::F32, len).into_iter().enumerate() {
                    assert!(exposed > 0, "{algorithm} on {counts:?}");
                    for tensor in tensors {
                        assert_eq!(
                            tensor.to_vec::<f32>().unwrap(),
                            vec![value; len],
                            "rank {rank} of {counts:?} by {algorithm}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn the_bits_are_those_of_the_same_plan_on_the_host() {
        let staged = Config { mpi_device_memory: Some(false), algorithm: Algorithm::Ring.into(), ..direct() };
        let config = Config { algorithm: Algorithm::Ring.into(), ..direct() };
        for dtype in DType::ALL {
            let bits = |config: &Config| {
                sum(config, &[1, 1, 1], dtype, 1003)
                    .iter()
                    .map(|(all, ..)| all[0].read().unwrap().bytes().to_vec())
                    .collect::<Vec<_>>()
            };
            assert_eq!(bits(&config), bits(&staged), "{dtype}");
        }
    }

    #[test]
    fn ranks_with_different_numbers_of_devices_pass_through_the_host() {
        for (tensors, exposed, _) in sum(&direct(), &[1, 2], DType::F32, 9) {
            assert_eq!(exposed, 0);
            assert!(tensors.iter().all(|tensor| tensor.to_vec::<f32>().unwrap() == [5.0 * 3.0; 9]));
        }
    }

    #[test]
    fn sums_after_the_first_allocate_nothing() {
        let direct = Config { algorithm: Algorithm::Ring.into(), ..direct() };
        let staged = Config { mpi_device_memory: Some(false), ..direct.clone() };
        let joined = Config { algorithm: AlgorithmChoice::Nccl, ..direct.clone() };
        for config in [staged, direct, joined] {
            // The whole is some segments; a plan's few messages are all given rooms before the first arrives.
            for (counts, len) in [(vec![1, 1], 9), (vec![2; 3], 1001), (vec![2, 2], (5 << 20) / 4 + 3)] {
                for (rank, (.., allocated)) in sum(&config, &counts, DType::F32, len).into_iter().enumerate() {
                    assert_eq!(allocated, 0, "rank {rank} of {counts:?} with {len} elements");
                }
            }
        }
    }

    #[test]
    fn mpi_and_collectives_take_turns() {
        let platform = Simulated::new(2);
        let devices = Devices::over(platform.clone(), LIMIT).unwrap();
        let tensor = |device: usize| devices.upload(device, &Tensor::full(DType::F32, &[8], 1.0)).unwrap();
        let tensors = [tensor(0), tensor(1)];
        let slices: Vec<Slice> =
            tensors.iter().map(|one| devices.array(one.remote()).unwrap().slice().clone()).collect();
        let (layout, exposed) = (Layout::new(8, 4, 2), Memory::on(devices.platform(), 0, 4).unwrap());
        let parts = devices.parts(&layout).unwrap();
        devices.join().unwrap();
        devices.sum_parts(DType::F32, &layout, &slices, &parts, &mut SumScratch::default()).unwrap();
        let by_whose_turn_it_is_not = devices.platform().expose(&Slice::all(&exposed), true).err().unwrap().to_string();
        assert!(by_whose_turn_it_is_not.contains("turn"), "{by_whose_turn_it_is_not}");
        let turn = devices.platform().turn();
        let beside = devices.platform().expose(&Slice::all(&exposed), true).err().unwrap().to_string();
        assert!(beside.contains("while a collective may be under way"), "{beside}");
        drop(turn);
        devices
            .without_collectives(LIMIT, || devices.platform().expose(&Slice::all(&exposed), true).map(drop))
            .unwrap();
        assert_eq!(platform.exposed(), 1);
    }
}
