//! The interpreter over threads and channels: every plan, every number of ranks, segments small enough that
//! they interleave.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use ringpull_base::{Buffer, DType};

use ringpull_plan::{Algorithm, Parts, Schedule, allgather, allreduce, broadcast};

use crate::interpreter::*;
use crate::transport::inproc;

/// Longer than any stall of a test; under miri each of them takes minutes.
const LIMIT: Duration = Duration::from_secs(if cfg!(miri) { 600 } else { 20 });

/// Runs `work` as each of `size` ranks, and returns what each returns.
fn ranks<T: Send>(
    size: usize,
    segment_bytes: usize,
    work: impl Fn(usize, &mut Runner, &mut inproc::Inproc) -> T + Sync,
) -> Vec<T> {
    std::thread::scope(|scope| {
        let work = &work;
        let ends = inproc::world(size).into_iter().enumerate().map(|(rank, mut end)| {
            scope.spawn(move || {
                let value = work(rank, &mut Runner::new(segment_bytes, LIMIT), &mut end);
                (value, end)
            })
        });
        let ends: Vec<_> = ends.collect();
        ends.into_iter().map(|end| end.join().unwrap().0).collect()
    })
}

/// Runs `schedule` on `data` to its end.
fn run(
    schedule: &Arc<Schedule>,
    runner: &mut Runner,
    data: &mut [u8],
    end: &mut inproc::Inproc,
    (stamp, stop): (u32, &AtomicBool),
) -> ringpull_base::Result<()> {
    let mut memory = Memory::Own(Buffer::copy_of(data));
    let outcome = runner.run(schedule, &mut memory, end, stamp, stop);
    if outcome.is_ok() {
        data.copy_from_slice(memory.bytes());
    }
    outcome
}

#[test]
fn every_plan_sums_exactly_and_leaves_equal_bits() {
    let stop = AtomicBool::new(false);
    for algorithm in Algorithm::ALL {
        for size in [1, 2, 3, 4, 5, 7, 8, 9] {
            for len in [0, 1, size - 1, size, size + 1, 2 * size + 3, 1000] {
                let results = ranks(size, 64, |rank, runner, end| {
                    let mut data: Vec<f32> = (0..len).map(|i| (i * 3 + rank) as f32).collect();
                    let plan = allreduce(algorithm, rank, size, len);
                    run(
                        &runner.schedule(&plan, DType::F32),
                        runner,
                        bytemuck::cast_slice_mut(&mut data),
                        end,
                        (7, &stop),
                    )
                    .unwrap();
                    data
                });
                let expected: Vec<f32> = (0..len).map(|i| (size * i * 3 + size * (size - 1) / 2) as f32).collect();
                for (rank, result) in results.iter().enumerate() {
                    assert_eq!(*result, expected, "{algorithm} of {len} on rank {rank} of {size}");
                }
            }
        }
    }
}

#[test]
fn inexact_sums_have_the_same_bits_on_every_rank_and_in_every_run() {
    let stop = AtomicBool::new(false);
    for algorithm in Algorithm::ALL {
        let once = || {
            ranks(5, 64, |rank, runner, end| {
                let mut data: Vec<f32> = (0..777).map(|i| 1.0 / (i * 5 + rank + 1) as f32).collect();
                let plan = allreduce(algorithm, rank, 5, data.len());
                run(&runner.schedule(&plan, DType::F32), runner, bytemuck::cast_slice_mut(&mut data), end, (7, &stop))
                    .unwrap();
                data.iter().map(|value| value.to_bits()).collect::<Vec<u32>>()
            })
        };
        let (first, again) = (once(), once());
        assert!(first.iter().all(|bits| *bits == first[0]), "{algorithm} differs between ranks");
        assert_eq!(first, again, "{algorithm} differs between runs");
    }
}

#[test]
fn broadcast_and_uneven_allgather_deliver_every_byte() {
    let stop = AtomicBool::new(false);
    for size in [2, 3, 5, 8] {
        for root in 0..size {
            let results = ranks(size, 64, |rank, runner, end| {
                let mut data = vec![rank as u8; 301];
                run(&runner.schedule(&broadcast(root, rank, size, 301), DType::U8), runner, &mut data, end, (1, &stop))
                    .unwrap();
                data
            });
            assert!(results.iter().all(|data| *data == vec![root as u8; 301]), "root {root} of {size}");
        }
        let bounds: Vec<usize> = (0..=size).map(|rank| rank * rank * 40).collect();
        let results = ranks(size, 64, |rank, runner, end| {
            let mut data = vec![0u8; bounds[size]];
            data[bounds[rank]..bounds[rank + 1]].fill(rank as u8 + 1);
            let plan = allgather(rank, size, Parts::of(bounds.clone()));
            run(&runner.schedule(&plan, DType::U8), runner, &mut data, end, (1, &stop)).unwrap();
            data
        });
        let expected: Vec<u8> =
            (0..size).flat_map(|rank| vec![rank as u8 + 1; bounds[rank + 1] - bounds[rank]]).collect();
        assert!(results.iter().all(|data| *data == expected), "allgather of {size}");
    }
}

#[test]
fn ranks_in_different_operations_get_an_error_and_not_a_mixture() {
    let stop = AtomicBool::new(false);
    let errors = ranks(2, 64, |rank, runner, end| {
        runner.limit = Duration::from_millis(50);
        let mut data = [0u8; 16];
        let plan = allreduce(Algorithm::Ring, rank, 2, 4);
        run(&runner.schedule(&plan, DType::F32), runner, &mut data, end, (rank as u32, &stop)).unwrap_err().to_string()
    });
    assert!(errors.iter().any(|error| error.contains("nothing moved")), "{errors:?}");
}

#[test]
fn ranks_that_cut_messages_differently_get_an_error_and_not_a_mixture() {
    let stop = AtomicBool::new(false);
    let errors = ranks(2, 64, |rank, runner, end| {
        let mut data = [0u8; 256];
        let schedule = Arc::new(Schedule::of(&allreduce(Algorithm::Ring, rank, 2, 64), DType::F32, 64 >> rank));
        run(&schedule, runner, &mut data, end, (1, &stop)).unwrap_err().to_string()
    });
    assert!(errors.iter().any(|error| error.contains("instead of")), "{errors:?}");
}

/// Begins one allreduce for each of `lens` in the order that `order` gives this rank, and drives all to their
/// end.
fn together(
    rank: usize,
    runner: &mut Runner,
    end: &mut inproc::Inproc,
    lens: &[usize],
    order: impl Fn(usize) -> usize,
) -> (Vec<Vec<u32>>, Vec<Ticket>) {
    let stop = AtomicBool::new(false);
    let size = crate::transport::Transport::size(end);
    let input = |len: usize| -> Vec<f32> { (0..len).map(|i| 1.0 / (i * 5 + rank + 1) as f32).collect() };
    let begin = |which: usize, runner: &mut Runner| {
        let plan = allreduce(Algorithm::ALL[which % Algorithm::ALL.len()], rank, size, lens[which]);
        let memory = Memory::Own(Buffer::copy_of(bytemuck::cast_slice(&input(lens[which]))));
        runner.begin(&runner.schedule(&plan, DType::F32), memory, which as u32, (which % 3) as i32)
    };
    let begun: Vec<(usize, Ticket)> = (0..lens.len()).map(order).map(|which| (which, begin(which, runner))).collect();
    let (mut finished, mut bits) = (Vec::new(), vec![Vec::new(); lens.len()]);
    while finished.len() < lens.len() {
        if !runner.advance(end, &stop).unwrap() {
            runner.pause(end).unwrap();
        }
        for (ticket, memory) in runner.take_finished() {
            let (which, _) = begun.iter().find(|(_, own)| *own == ticket).unwrap();
            bits[*which] = bytemuck::cast_slice(memory.bytes()).to_vec();
            finished.push(ticket);
        }
    }
    (bits, finished)
}

#[test]
fn operations_in_flight_together_have_the_bits_of_operations_one_by_one_in_whatever_order_ranks_begin_them() {
    let stop = AtomicBool::new(false);
    let lens = [777, 1, 0, 300, 5000, 12, 64, 999, 2, 4096];
    for size in [1, 2, 4, 5, 8] {
        let alone = ranks(size, 64, |rank, runner, end| {
            let one = |(which, len): (usize, &usize)| {
                let mut data: Vec<f32> = (0..*len).map(|i| 1.0 / (i * 5 + rank + 1) as f32).collect();
                let plan = allreduce(Algorithm::ALL[which % Algorithm::ALL.len()], rank, size, *len);
                run(
                    &runner.schedule(&plan, DType::F32),
                    runner,
                    bytemuck::cast_slice_mut(&mut data),
                    end,
                    (which as u32, &stop),
                )
                .unwrap();
                data.iter().map(|value| value.to_bits()).collect::<Vec<u32>>()
            };
            lens.iter().enumerate().map(one).collect::<Vec<_>>()
        });
        let all_at_once = ranks(size, 64, |rank, runner, end| {
            together(rank, runner, end, &lens, |at| (at * 3 + 7 * rank) % lens.len()).0
        });
        assert_eq!(alone, all_at_once, "{size} ranks");
    }
}

#[test]
fn a_short_operation_of_higher_priority_overtakes_a_long_one_that_was_begun_before_it() {
    let orders = ranks(4, 64, |rank, runner, end| together(rank, runner, end, &[40_000, 100], |at| at).1);
    assert!(orders.iter().all(|order| *order == [2, 1]), "{orders:?}");
}

#[test]
fn a_peer_that_does_not_move_is_an_error_after_the_limit() {
    let mut end = inproc::world(2).into_iter().next().unwrap();
    let mut runner = Runner::new(64, Duration::from_millis(50));
    let mut data = [0u8; 16];
    let plan = allreduce(Algorithm::Ring, 0, 2, 4);
    let error =
        run(&runner.schedule(&plan, DType::F32), &mut runner, &mut data, &mut end, (1, &AtomicBool::new(false)))
            .unwrap_err();
    assert!(error.to_string().contains("rank"), "{error}");
}

#[test]
fn one_schedule_runs_again_and_several_times_at_once() {
    let stop = AtomicBool::new(false);
    let sums = ranks(3, 64, |rank, runner, end| {
        let schedule = runner.schedule(&allreduce(Algorithm::Ring, rank, 3, 300), DType::I32);
        for (stamp, factor) in [1, 10, 100].into_iter().enumerate() {
            let values = vec![factor * (rank as i32 + 1); 300];
            let memory = Memory::Own(Buffer::copy_of(bytemuck::cast_slice(&values)));
            runner.begin(&schedule, memory, stamp as u32, 0);
        }
        while runner.is_busy() {
            if !runner.advance(end, &stop).unwrap() {
                runner.pause(end).unwrap();
            }
        }
        let mut sums: Vec<(Ticket, Vec<i32>)> = runner
            .take_finished()
            .map(|(ticket, memory)| (ticket, bytemuck::cast_slice(memory.bytes()).to_vec()))
            .collect();
        sums.sort_unstable();
        run(&schedule, runner, bytemuck::cast_slice_mut(&mut sums[0].1), end, (9, &stop)).unwrap();
        sums.into_iter().map(|(_, sum)| sum).collect::<Vec<_>>()
    });
    assert!(sums.iter().all(|sums| *sums == [vec![18; 300], vec![60; 300], vec![600; 300]]), "{:?}", sums[0][0]);
}
