//! Ranks as threads of one process that share memory as ranks of one host do: all lengths, dtypes and sorts
//! of memory.
#![allow(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use ringpull_base::buffer::arena;
use ringpull_base::config::Config;
use ringpull_base::{AlgorithmChoice, Buffer, DType, Element, Error, Reduction, with_element};
use ringpull_plan::Parts;

use crate::communicator::Communicator;
use crate::communicator::begun::Passage;
use crate::interpreter::Memory;
use crate::transport::inproc::world_on;
use crate::transport::window::SLOT_BYTES;

/// Runs `work` on every rank of a world in which ranks with the same number are on the same host. Buffers in
/// no arena go through the window.
fn on_ranks<T: Send>(hosts: &[usize], work: impl Fn(&mut Communicator) -> T + Sync) -> Vec<T> {
    on_ranks_that_read(false, hosts, work)
}

/// As [`on_ranks`]. Buffers in no arena are read in their process if `reads` is true.
fn on_ranks_that_read<T: Send>(reads: bool, hosts: &[usize], work: impl Fn(&mut Communicator) -> T + Sync) -> Vec<T> {
    arena::of_process().expect("this system has shared memory");
    let config = Config { timeout: Duration::from_secs(20), read_memory: Some(reads), ..Config::default() };
    std::thread::scope(|scope| {
        let (config, work) = (&config, &work);
        let ranks = world_on(hosts).into_iter().map(|end| {
            scope.spawn(move || {
                let mut comm = Communicator::new(Box::new(end), 0, config, Arc::new(AtomicBool::new(false))).unwrap();
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

/// Sums `len` elements several times, and checks the sums. `is_shared` returns true for the ranks with
/// buffers in an arena.
fn check(hosts: &[usize], dtype: DType, len: usize, is_shared: impl Fn(usize) -> bool + Sync) {
    for reads in [false, true] {
        check_by(reads, hosts, dtype, len, &is_shared);
    }
}

fn check_by(reads: bool, hosts: &[usize], dtype: DType, len: usize, is_shared: impl Fn(usize) -> bool + Sync) {
    with_element!(dtype, T => on_ranks_that_read(reads, hosts, |comm| {
        let mut data = buffer(len * dtype.size_bytes(), is_shared(comm.rank()));
        for round in 0..3 {
            let values: &mut [T] = bytemuck::cast_slice_mut(data.bytes_mut());
            values.iter_mut().enumerate().for_each(|(at, value)| *value = input::<T>(comm.rank(), at + round));
            data = comm.allreduce_by(AlgorithmChoice::Auto, dtype, Memory::Own(data), round as u32).unwrap().into_buffer();
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
fn collectives_of_one_host_give_the_same_in_any_memory() {
    let passage = |stamp| Passage { stamp, priority: 0 };
    let value = |rank: usize, at: usize| (rank * 1000 + at) as u64;
    for (reads, size, len) in [(false, 3), (true, 2), (true, 3)]
        .into_iter()
        .flat_map(|(reads, size)| [1, 5000, 300_000].map(|len| (reads, size, len)))
    {
        for shared in [|_: usize| true, |_: usize| false, |rank: usize| rank == 1] {
            on_ranks_that_read(reads, &vec![0; size], |comm| {
                let (rank, own) = (comm.rank(), len * comm.rank()..len * (comm.rank() + 1));
                let mut given = buffer(8 * size * len, shared(rank));
                let values: &mut [u64] = bytemuck::cast_slice_mut(given.bytes_mut());
                values.iter_mut().enumerate().for_each(|(at, to)| *to = value(rank, at));
                let out = |len: usize| Memory::Own(buffer(8 * len, shared(rank)));
                let lens = vec![8 * len; size];
                let pair = |memory: Memory| match memory {
                    Memory::Pair(pair) => *pair,
                    _ => panic!("it has two buffers"),
                };
                let buffers = (Memory::Own(given), out(size * len));
                let begun = comm.begin_alltoall(None, (&lens, &lens), buffers, passage(1));
                let (given, taken) = pair(comm.complete(begun).unwrap());
                let found: &[u64] = bytemuck::cast_slice(taken.bytes());
                let from = |at: usize| value(at / len, own.start + at % len);
                assert!((0..size * len).all(|at| found[at] == from(at)), "alltoall {reads} {size} {len}");

                let parts = Parts::even(size * len, size);
                let sum = (Reduction::Sum, DType::I64);
                let begun = comm.begin_reduce_scatter(None, sum, parts, (given, out(len)), passage(2));
                let (given, taken) = pair(comm.complete(begun).unwrap());
                let found: &[u64] = bytemuck::cast_slice(taken.bytes());
                let total = |at: usize| (0..size).map(|rank| value(rank, at)).sum::<u64>();
                assert!(found.iter().zip(own.clone()).all(|(found, at)| *found == total(at)), "{reads} {size} {len}");
                let kept: &[u64] = bytemuck::cast_slice(given.bytes());
                assert!((0..size * len).all(|at| kept[at] == value(rank, at)), "the input of a reduce-scatter stays");

                let parts = Parts::of((0..=size).map(|rank| 8 * len * rank).collect());
                let begun = comm.begin_allgather(None, parts, given, passage(3));
                let mut given = comm.complete(begun).unwrap();
                let found: &[u64] = bytemuck::cast_slice(given.bytes());
                assert!((0..size * len).all(|at| found[at] == value(at / len, at)), "allgather {reads} {size} {len}");

                given.bytes_mut()[0] = rank as u8;
                let root = size - 1;
                let given = comm.broadcast(root, given, 4).unwrap();
                assert_eq!(usize::from(given.bytes()[0]), root, "broadcast {reads} {size} {len}");
                let found: &[u64] = bytemuck::cast_slice(given.bytes());
                assert!((1..size * len).all(|at| found[at] == value(at / len, at)), "broadcast {reads} {size} {len}");
            });
        }
    }
}

#[test]
fn an_alltoall_in_shared_memory_has_blocks_of_any_lengths_and_says_which_do_not_fit() {
    let passage = |stamp| Passage { stamp, priority: 0 };
    let cases = [(false, 2), (false, 3), (true, 2), (true, 4)];
    for (reads, size, len) in
        cases.into_iter().flat_map(|(reads, size)| [1, 700, 200_000].map(|len| (reads, size, len)))
    {
        // Some blocks are empty, and all blocks from the last rank.
        let count = |from: usize, to: usize| if from + 1 == size { 0 } else { len * ((from + 2 * to) % 3) };
        let lens = |counts: &dyn Fn(usize) -> usize| (0..size).map(|other| 8 * counts(other)).collect::<Vec<_>>();
        for shared in [|_: usize| true, |_: usize| false, |rank: usize| rank == 1] {
            on_ranks_that_read(reads, &vec![0; size], |comm| {
                let rank = comm.rank();
                let (given, taken) = (lens(&|to| count(rank, to)), lens(&|from| count(from, rank)));
                let mut input = buffer(given.iter().sum(), shared(rank));
                let values = (0..size).flat_map(|to| (0..count(rank, to)).map(move |at| (rank, to, at)));
                let value = |(from, to, at): (usize, usize, usize)| ((from * size + to) * 1_000_000 + at) as u64;
                let words: &mut [u64] = bytemuck::cast_slice_mut(input.bytes_mut());
                words.iter_mut().zip(values).for_each(|(word, at)| *word = value(at));
                for stamp in 1..=2 {
                    let out = buffer(taken.iter().sum(), shared(rank));
                    let buffers = (Memory::Own(std::mem::replace(&mut input, Buffer::zeroed(0))), Memory::Own(out));
                    let begun = comm.begin_alltoall(None, (&given, &taken), buffers, passage(stamp));
                    let Ok(Memory::Pair(pair)) = comm.complete(begun) else { panic!("it has two buffers") };
                    let found: &[u64] = bytemuck::cast_slice(pair.1.bytes());
                    let expected = (0..size).flat_map(|from| (0..count(from, rank)).map(move |at| (from, rank, at)));
                    assert!(found.iter().copied().eq(expected.map(value)), "{reads} {size} {len} rank {rank}");
                    input = pair.0.into_buffer();
                }
            });
        }
    }
    let errors = on_ranks_that_read(false, &[0; 2], |comm| {
        let taken = [8, if comm.rank() == 0 { 16 } else { 8 }];
        let buffers = (Memory::Own(Buffer::zeroed(16)), Memory::Own(Buffer::zeroed(taken.iter().sum())));
        let begun = comm.begin_alltoall(None, (&[8, 8], &taken), buffers, passage(1));
        comm.complete(begun).err().map(|error| error.to_string())
    });
    let expected = "a block of 8 bytes instead of 16 for local rank 0 in an alltoall from local rank 1 of this host";
    assert!(errors.iter().all(|error| error.as_ref().is_some_and(|error| error.contains(expected))), "{errors:?}");
}

#[test]
fn memory_that_one_rank_cannot_use_is_an_error_on_all() {
    let page = rustix::param::page_size();
    let len = 64 * page;
    let (config, stop) = (Config { read_memory: Some(true), ..Config::default() }, || Arc::new(AtomicBool::new(false)));
    std::thread::scope(|scope| {
        let config = &config;
        let ranks = world_on(&[0; 3]).into_iter().enumerate().map(|(rank, end)| {
            scope.spawn(move || {
                let mut comm = Communicator::new(Box::new(end), 0, config, stop()).unwrap();
                // SAFETY: new memory that stays. Rank 1's part has a hole, and only the other ranks read it.
                let outcome = unsafe {
                    let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
                    let start = libc::mmap(std::ptr::null_mut(), len, prot, flags, -1, 0);
                    assert_ne!(start, libc::MAP_FAILED);
                    if rank == 1 {
                        assert_eq!(libc::mprotect(start.add(len / 2), page, libc::PROT_NONE), 0);
                    }
                    let start = std::ptr::NonNull::new(start.cast::<u8>()).unwrap();
                    let data = Memory::Own(Buffer::foreign(start, len, Box::new(())));
                    comm.allgather(Parts::even(len, 3), data, 1)
                };
                let Err(Error::PeerLost { peer, .. }) = outcome else { panic!("rank {rank}: no rank is lost") };
                assert!(peer.contains("[1]"), "rank {rank}: {peer}");
            })
        });
        let ranks: Vec<_> = ranks.collect();
        ranks.into_iter().for_each(|rank| rank.join().unwrap());
    });
}

#[test]
fn all_ranks_hold_the_same_bits_in_every_run() {
    let runs: Vec<Vec<u8>> = (0..4)
        .flat_map(|run| {
            on_ranks_that_read(run % 2 == 1, &[0, 0, 1, 1, 1], |comm| {
                let mut data = buffer(4 * 100_003, run % 2 == 0 || comm.rank() % 2 == 0);
                let values: &mut [f32] = bytemuck::cast_slice_mut(data.bytes_mut());
                values.iter_mut().enumerate().for_each(|(at, value)| *value = 1.0 / (1 + at + 7 * comm.rank()) as f32);
                comm.allreduce_by(AlgorithmChoice::Auto, DType::F32, Memory::Own(data), 0).unwrap().bytes().to_vec()
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
                    comm.allreduce_by(AlgorithmChoice::Ordered, dtype, Memory::Own(data), 0).unwrap().bytes().to_vec()
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

/// The memory of the other ranks is never freed, because peers and transports may still use it.
#[test]
fn a_rank_that_does_not_come_is_an_error_for_the_others_within_the_deadline() {
    let config = Config { timeout: Duration::from_millis(300), ..Config::default() };
    for hosts in [[0; 3], [0, 1, 2]] {
        std::thread::scope(|scope| {
            let config = &config;
            let ranks = world_on(&hosts).into_iter().enumerate().map(|(rank, end)| {
                scope.spawn(move || {
                    let stop = Arc::new(AtomicBool::new(false));
                    let mut comm = Communicator::new(Box::new(end), 0, config, stop).unwrap();
                    if rank == 1 {
                        return None;
                    }
                    let owner = Arc::new(vec![0_u64; 2 << 10]);
                    let start = std::ptr::NonNull::new(owner.as_ptr().cast_mut().cast()).unwrap();
                    // SAFETY: the owner is kept, and nobody reads it.
                    let data = unsafe { Buffer::foreign(start, 16 << 10, Box::new(Arc::clone(&owner))) };
                    let outcome = comm.allreduce_by(AlgorithmChoice::Auto, DType::F32, Memory::Own(data), 0);
                    comm.executor().abandon().into_iter().for_each(|memory| memory.give_up(&Error::Stopped {}));
                    drop(comm);
                    assert_eq!(Arc::strong_count(&owner), 2, "rank {rank} on {hosts:?}");
                    Some(outcome)
                })
            });
            let ranks: Vec<_> = ranks.collect();
            let outcomes = ranks.into_iter().filter_map(|rank| rank.join().unwrap());
            let lost = outcomes.map(|outcome| match outcome {
                Err(Error::PeerLost { peer, .. }) => peer,
                _ => panic!("no rank is lost"),
            });
            // By messages one rank may see that the other has given up.
            let lost: Vec<String> = lost.collect();
            let names_it = |peer: &String| peer.contains('1');
            assert!(if hosts == [0; 3] { lost.iter().all(names_it) } else { lost.iter().any(names_it) }, "{lost:?}");
        });
    }
}
