//! Ranks as threads of one process that share memory as ranks of one host do: all lengths, dtypes and sorts
//! of memory.
#![allow(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use ringpull_base::buffer::arena;
use ringpull_base::config::Config;
use ringpull_base::{AlgorithmChoice, Buffer, DType, Element, Error, with_element};

use crate::communicator::Communicator;
use crate::transport::inproc::world_on;
use crate::transport::window::SLOT_BYTES;

/// Runs `work` on every rank of a world in which ranks with the same number are on the same host.
fn on_ranks<T: Send>(hosts: &[usize], work: impl Fn(&mut Communicator) -> T + Sync) -> Vec<T> {
    arena::of_process().expect("this system has shared memory");
    let config = Config { timeout: Duration::from_secs(20), ..Config::default() };
    std::thread::scope(|scope| {
        let (config, work) = (&config, &work);
        let ranks = world_on(hosts).into_iter().map(|end| {
            scope.spawn(move || {
                let mut comm = Communicator::new(Box::new(end), config, Arc::new(AtomicBool::new(false))).unwrap();
                work(&mut comm)
            })
        });
        let ranks: Vec<_> = ranks.collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// A buffer of the arena if it is long enough and `is_shared`, of the heap otherwise.
fn buffer(len_bytes: usize, is_shared: bool) -> Buffer {
    if is_shared {
        return Buffer::zeroed(len_bytes);
    }
    let mut memory = vec![0u64; len_bytes / 8 + 1];
    let start = std::ptr::NonNull::new(memory.as_mut_ptr().cast()).unwrap();
    // SAFETY: the vector outlives the buffer as its owner, and is not touched meanwhile.
    unsafe { Buffer::foreign(start, len_bytes, Box::new(memory)) }
}

fn input<T: Element>(rank: usize, element: usize) -> T {
    T::from_f64(((rank * 3 + element * 7) % 11) as f64)
}

/// Sums `len` elements several times over, and checks them; `is_shared` says which ranks' buffers are in an
/// arena.
fn check(hosts: &[usize], dtype: DType, len: usize, is_shared: impl Fn(usize) -> bool + Sync) {
    with_element!(dtype, T => on_ranks(hosts, |comm| {
        let mut data = buffer(len * dtype.size_bytes(), is_shared(comm.rank()));
        for round in 0..3 {
            let values: &mut [T] = bytemuck::cast_slice_mut(data.bytes_mut());
            values.iter_mut().enumerate().for_each(|(at, value)| *value = input::<T>(comm.rank(), at + round));
            // SAFETY: there is no error.
            unsafe { comm.allreduce_by(AlgorithmChoice::Auto, dtype, data.bytes_mut(), round as u32).unwrap() };
            let values: &[T] = bytemuck::cast_slice(data.bytes());
            for (at, value) in values.iter().enumerate() {
                let expected: f64 = (0..comm.size()).map(|rank| Element::to_f64(input::<T>(rank, at + round))).sum();
                assert_eq!(Element::to_f64(*value), expected, "{dtype}, element {at} of {len} on rank {}", comm.rank());
            }
        }
    }));
}

/// Lengths of f32 around every boundary: nothing, one, shorter than the ranks, short slots, a slot, several.
const LENGTHS: [usize; 10] = [
    0,
    1,
    3,
    1000,
    4096,
    4097,
    SLOT_BYTES / 4 - 1,
    SLOT_BYTES / 4 + 1,
    3 * SLOT_BYTES / 4 + 77,
    13 * SLOT_BYTES / 4 + 77,
];

#[test]
fn ranks_of_one_host_sum_any_length_in_any_memory() {
    for size in [2, 3, 5] {
        for len in LENGTHS {
            check(&vec![0; size], DType::F32, len, |_| true);
            check(&vec![0; size], DType::F32, len, |_| false);
            check(&vec![0; size], DType::F32, len, |rank| rank % 2 == 0);
        }
    }
}

#[test]
fn every_dtype_is_summed_in_shared_memory() {
    for dtype in DType::ALL {
        for len in [1, 777, 300_001] {
            check(&[0; 4], dtype, len, |_| true);
            check(&[0; 4], dtype, len, |rank| rank == 1);
        }
    }
}

#[test]
fn hosts_with_equal_or_different_numbers_of_ranks_sum_together() {
    for hosts in [&[0, 0, 1, 1][..], &[0, 1, 0, 1, 0, 1], &[0, 0, 0, 1], &[0, 1, 1, 2, 2, 2, 1]] {
        for len in [0, 1, 5, 5000, 70_000, 400_003] {
            check(hosts, DType::F32, len, |_| true);
            check(hosts, DType::I64, len, |rank| rank % 3 == 0);
            check(hosts, DType::BF16, len, |_| false);
        }
    }
}

#[test]
fn all_ranks_hold_the_same_bits_in_every_run() {
    let runs: Vec<Vec<u8>> = (0..4)
        .flat_map(|run| {
            on_ranks(&[0, 0, 1, 1, 1], |comm| {
                let mut data = buffer(4 * 100_003, run % 2 == 0 || comm.rank() % 2 == 0);
                let values: &mut [f32] = bytemuck::cast_slice_mut(data.bytes_mut());
                values.iter_mut().enumerate().for_each(|(at, value)| *value = 1.0 / (1 + at + 7 * comm.rank()) as f32);
                // SAFETY: there is no error.
                unsafe { comm.allreduce_by(AlgorithmChoice::Auto, DType::F32, data.bytes_mut(), 0).unwrap() };
                data.bytes().to_vec()
            })
        })
        .collect();
    assert!(runs.windows(2).all(|pair| pair[0] == pair[1]));
}

#[test]
fn an_ordered_sum_has_the_same_bits_wherever_the_ranks_run() {
    for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
        for len in [3, 5000, 300_001] {
            let sums = |hosts: &[usize]| {
                let of_ranks = with_element!(dtype, T => on_ranks(hosts, |comm| {
                    let mut data = buffer(len * dtype.size_bytes(), true);
                    let values: &mut [T] = bytemuck::cast_slice_mut(data.bytes_mut());
                    let value = |at: usize, rank: usize| T::from_f64(1.0 / (1 + (at + 7 * rank) % 89) as f64);
                    values.iter_mut().enumerate().for_each(|(at, to)| *to = value(at, comm.rank()));
                    // SAFETY: there is no error.
                    unsafe { comm.allreduce_by(AlgorithmChoice::Ordered, dtype, data.bytes_mut(), 0).unwrap() };
                    data.bytes().to_vec()
                }));
                assert!(of_ranks.windows(2).all(|pair| pair[0] == pair[1]), "{len} of {dtype} on {hosts:?}");
                of_ranks[0].clone()
            };
            let together = sums(&[0; 4]);
            for hosts in [&[0, 1, 2, 3][..], &[0, 0, 1, 1], &[0, 1, 0, 1]] {
                assert!(sums(hosts) == together, "{len} of {dtype} on {hosts:?}");
            }
        }
    }
}

#[test]
fn a_rank_that_does_not_come_is_an_error_for_the_others_within_the_deadline() {
    let config = Config { timeout: Duration::from_millis(300), ..Config::default() };
    std::thread::scope(|scope| {
        let config = &config;
        let ranks = world_on(&[0; 3]).into_iter().enumerate().map(|(rank, end)| {
            scope.spawn(move || {
                let mut comm = Communicator::new(Box::new(end), config, Arc::new(AtomicBool::new(false))).unwrap();
                // SAFETY: in shared memory no transport keeps the data.
                (rank != 1)
                    .then(|| unsafe { comm.allreduce_by(AlgorithmChoice::Auto, DType::F32, &mut [0; 4 << 10], 0) })
            })
        });
        let ranks: Vec<_> = ranks.collect();
        for outcome in ranks.into_iter().filter_map(|rank| rank.join().unwrap()) {
            let Err(Error::PeerLost { peer, .. }) = outcome else { panic!("{outcome:?}") };
            assert!(peer.contains("[1]"), "{peer}");
        }
    });
}
