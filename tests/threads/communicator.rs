//! Collectives of a communicator over ranks that are threads: what each gives, for every dtype and reduction,
//! lengths that differ, process sets beside each other, and calls that do not fit together.

use std::sync::Arc;
use std::time::Duration;

use ringpull::{CallOptions, Communicator, DType, Element, Error, Reduction, Tensor};
use ringpull_base::config::Config;
use ringpull_base::with_element;

use crate::ranks;

/// Runs `work` as each of `size` ranks.
fn on_ranks<T: Send>(size: usize, work: impl Fn(&Communicator) -> T + Sync) -> Vec<T> {
    let config = Config { timeout: Duration::from_secs(20), ..Config::default() };
    on_ranks_with(size, &config, work)
}

fn on_ranks_with<T: Send>(size: usize, config: &Config, work: impl Fn(&Communicator) -> T + Sync) -> Vec<T> {
    ranks::on_engines(size, config, |engine| work(&Communicator::over(Arc::clone(engine), config).unwrap()))
}

fn plain() -> CallOptions {
    CallOptions::default()
}

fn named(name: &str) -> CallOptions {
    CallOptions { name: Some(name.into()), ..plain() }
}

fn ints(shape: &[usize], values: impl IntoIterator<Item = i64>) -> Tensor {
    Tensor::from_slice(shape, &values.into_iter().collect::<Vec<i64>>())
}

/// Returns the value of rank `rank` at `i`.
fn given(rank: usize, i: usize) -> f64 {
    ((rank * 3 + i * 5) % 7 + 1) as f64
}

fn expected(reduction: Reduction, size: usize, i: usize) -> f64 {
    let all = (0..size).map(|rank| given(rank, i));
    match reduction {
        Reduction::Sum => all.sum(),
        Reduction::Average => all.sum::<f64>() / size as f64,
        Reduction::Min => all.fold(f64::MAX, f64::min),
        Reduction::Max => all.fold(0.0, f64::max),
        Reduction::Product => all.product(),
    }
}

fn assert_close<T: Element>(found: T, expected: f64, what: &str) {
    let rounded = T::from_f64(expected).to_f64();
    // All results but averages are integers. A float16 or bfloat16 average is rounded once more.
    assert!((found.to_f64() - rounded).abs() <= rounded.abs() / 100.0, "{what}: {} and {expected}", found.to_f64());
}

#[test]
fn an_allreduce_and_a_reduce_scatter_of_every_dtype_by_every_reduction() {
    for size in [1, 2, 3, 5] {
        on_ranks(size, |comm| {
            for dtype in DType::ALL {
                for reduction in Reduction::ALL {
                    // The product of five ranks' numbers is too much for the shortest integers.
                    if dtype.size_bytes() == 1 && reduction == Reduction::Product && size > 2 {
                        continue;
                    }
                    with_element!(dtype, T => {
                        for len in [0, 1, 7, 3000] {
                            let what = format!("{reduction} of {len} {dtype} on {size} ranks");
                            let mine: Vec<T> = (0..len).map(|i| T::from_f64(given(comm.rank(), i))).collect();
                            let mine = Tensor::from_slice(&[len], &mine);
                            let all = comm.allreduce(&mine, reduction, &plain()).unwrap();
                            let part = comm.reduce_scatter(&mine, reduction, None, &plain()).unwrap();
                            let is_exact = reduction != Reduction::Average && dtype != DType::F16 && dtype != DType::BF16;
                            for (i, found) in all.wait().unwrap().to_vec::<T>().unwrap().into_iter().enumerate() {
                                let expected = expected(reduction, size, i);
                                if is_exact {
                                    assert_eq!(found, T::from_f64(expected), "{what}, {i}");
                                } else if dtype.is_float() {
                                    assert_close(found, expected, &what);
                                } else {
                                    assert_eq!(found.to_f64(), expected.trunc(), "{what}, {i}");
                                }
                            }
                            let part = part.wait().unwrap();
                            let before = |rank: usize| rank * (len / size) + rank.min(len % size);
                            assert_eq!(part.shape(), [before(comm.rank() + 1) - before(comm.rank())], "{what}");
                            for (i, found) in part.to_vec::<T>().unwrap().into_iter().enumerate() {
                                let expected = expected(reduction, size, before(comm.rank()) + i);
                                if dtype.is_float() {
                                    assert_close(found, expected, &what);
                                } else {
                                    assert_eq!(found.to_f64(), expected.trunc(), "{what}, {i}");
                                }
                            }
                            // The input stays as it was.
                            assert_eq!(mine.to_vec::<T>().unwrap().len(), len);
                            let first = mine.to_vec::<T>().unwrap().first().map(|first| first.to_f64());
                            assert_eq!(first, (len > 0).then(|| T::from_f64(given(comm.rank(), 0)).to_f64()));
                        }
                    });
                }
            }
        });
    }
}

#[test]
fn parts_of_a_reduce_scatter_and_rows_of_an_allgather_may_differ() {
    for size in [1, 2, 4] {
        on_ranks(size, |comm| {
            let lens: Vec<usize> = (0..size).map(|rank| rank * 3 % 5 * 40).collect();
            let rows: usize = lens.iter().sum();
            let mine = ints(&[rows, 100], (0..rows as i64 * 100).map(|i| i + comm.rank() as i64));
            let part = comm.reduce_scatter(&mine, Reduction::Sum, Some(&lens), &plain()).unwrap().wait().unwrap();
            let start: usize = lens[..comm.rank()].iter().sum::<usize>() * 100;
            assert_eq!(part.shape(), [lens[comm.rank()], 100]);
            let of_ranks = (size * (size - 1) / 2) as i64;
            let sums: Vec<i64> = (0..part.len()).map(|i| (size * (start + i)) as i64 + of_ranks).collect();
            assert_eq!(part.to_vec::<i64>().unwrap(), sums);
            for known in [None, Some(&lens[..])] {
                let own = ints(&[lens[comm.rank()], 2], vec![comm.rank() as i64; 2 * lens[comm.rank()]]);
                let all = comm.allgather(&own, known, &plain()).unwrap().wait().unwrap();
                assert_eq!(all.shape(), [rows, 2]);
                let expected = lens.iter().enumerate().flat_map(|(rank, len)| vec![rank as i64; 2 * len]);
                assert_eq!(all.to_vec::<i64>().unwrap(), expected.collect::<Vec<_>>());
            }
            let one = comm.allgather(&ints(&[], [comm.rank() as i64]), None, &plain()).unwrap().wait().unwrap();
            assert_eq!((one.shape(), one.to_vec::<i64>().unwrap()), (&[size][..], (0..size as i64).collect()));
        });
    }
}

#[test]
fn an_alltoall_brings_each_rank_what_the_others_have_for_it() {
    for size in [1, 2, 3, 4] {
        on_ranks(size, |comm| {
            let me = comm.rank();
            // Blocks of equal length for all ranks.
            let equal = ints(&[2 * size], (0..2 * size).map(|i| (me * 100 + i / 2) as i64));
            let (found, taken) = comm.alltoall(&equal, None, None, &plain()).unwrap().wait().unwrap();
            let expected: Vec<i64> = (0..size).flat_map(|rank| vec![(rank * 100 + me) as i64; 2]).collect();
            assert_eq!((found.to_vec::<i64>().unwrap(), taken), (expected, vec![2; size]));
            // Blocks that differ between ranks, and none for some ranks.
            let split = |from: usize, to: usize| (from * 2 + to * 3) % 4 * 500;
            let splits: Vec<usize> = (0..size).map(|to| split(me, to)).collect();
            let comes: Vec<usize> = (0..size).map(|from| split(from, me)).collect();
            let rows = splits.iter().enumerate().flat_map(|(to, rows)| vec![(me * 100 + to) as i64; 3 * rows]);
            let mine = ints(&[splits.iter().sum(), 3], rows);
            for known in [None, Some(&comes[..])] {
                let called = comm.alltoall(&mine, Some(&splits), known, &plain()).unwrap();
                let (found, taken) = called.wait().unwrap();
                assert_eq!((found.shape(), &taken), (&[comes.iter().sum(), 3][..], &comes));
                let expected =
                    comes.iter().enumerate().flat_map(|(from, rows)| vec![(from * 100 + me) as i64; 3 * rows]);
                assert_eq!(found.to_vec::<i64>().unwrap(), expected.collect::<Vec<_>>());
            }
        });
    }
}

#[test]
fn a_broadcast_goes_from_any_root_into_an_output_or_in_place() {
    on_ranks(3, |comm| {
        for root in 0..3 {
            let mine = ints(&[5000], vec![comm.rank() as i64; 5000]);
            let found = comm.broadcast(&mine, root, &plain()).unwrap().wait().unwrap();
            assert_eq!(found.to_vec::<i64>().unwrap(), vec![root as i64; 5000]);
            assert_eq!(mine.to_vec::<i64>().unwrap()[0], comm.rank() as i64);
            let in_place = CallOptions { out: Some(mine.clone()), ..plain() };
            let found = comm.broadcast(&mine, root, &in_place).unwrap().wait().unwrap();
            assert!(found.is_same(&mine));
            assert_eq!(mine.to_vec::<i64>().unwrap(), vec![root as i64; 5000]);
        }
        comm.barrier().unwrap();
    });
}

#[test]
fn factors_and_an_output_in_place() {
    on_ranks(2, |comm| {
        let tensor = Tensor::full(DType::F32, &[4], 3.0);
        let options = CallOptions { out: Some(tensor.clone()), prescale: 2.0, postscale: 0.25, ..plain() };
        comm.allreduce(&tensor, Reduction::Sum, &options).unwrap().wait().unwrap();
        assert_eq!(tensor.to_vec::<f32>().unwrap(), [3.0; 4]);
        let options = CallOptions { prescale: 2.0, postscale: 0.5, ..plain() };
        let part = comm.reduce_scatter(&tensor, Reduction::Max, None, &options).unwrap().wait().unwrap();
        assert_eq!(part.to_vec::<f32>().unwrap(), [3.0; 2]);
        assert_eq!(tensor.to_vec::<f32>().unwrap(), [3.0; 4], "the input is not changed");
    });
}

#[test]
fn a_group_reads_every_input_before_it_writes_an_output_that_is_its_memory() {
    on_ranks(2, |comm| {
        let (one, ten) = (ints(&[2], [1, 2]), ints(&[2], [10, 20]));
        let into = |out: &Tensor| CallOptions { out: Some(out.clone()), ..plain() };
        let inputs = [one.clone(), ten.clone()];
        let handles = comm.grouped_allreduce(&inputs, Reduction::Sum, &[into(&ten), into(&one)]).unwrap();
        handles.into_iter().for_each(|handle| drop(handle.wait().unwrap()));
        assert_eq!(one.to_vec::<i64>().unwrap(), [20, 40]);
        assert_eq!(ten.to_vec::<i64>().unwrap(), [2, 4]);
        let out = ints(&[2], [0, 0]);
        let error = comm.grouped_allreduce(&inputs, Reduction::Sum, &[into(&out), into(&out)]).err().unwrap();
        assert!(error.to_string().contains("outputs 0 and 1 share memory"), "{error}");
    });
}

#[test]
fn calls_with_names_go_together_in_any_order_and_repeating_ones_need_no_messages() {
    on_ranks(3, |comm| {
        for step in 0..40 {
            let mut keys: Vec<usize> = (0..6).collect();
            keys.rotate_left((comm.rank() * 2 + step) % 6);
            let call = |key: usize| {
                let mine = ints(&[10 + key], vec![(key * step + comm.rank()) as i64; 10 + key]);
                (key, comm.allreduce(&mine, Reduction::Sum, &named(&format!("key {key}"))).unwrap())
            };
            let called: Vec<_> = keys.into_iter().map(call).collect();
            for (key, handle) in called {
                assert_eq!(
                    handle.wait().unwrap().to_vec::<i64>().unwrap(),
                    vec![(3 * key * step + 3) as i64; 10 + key]
                );
            }
        }
        // Every rank calls a sum and a max in turn, in the same order. The calls are frozen, and a sum is not
        // fused with a max.
        let before = comm.traffic().2;
        for step in 0..30 {
            let (sum, max) = (ints(&[3], [step; 3]), ints(&[3], [step + comm.rank() as i64; 3]));
            let (sum, max) = (
                comm.allreduce(&sum, Reduction::Sum, &named("sum")),
                comm.allreduce(&max, Reduction::Max, &named("max")),
            );
            assert_eq!(sum.unwrap().wait().unwrap().to_vec::<i64>().unwrap(), [3 * step; 3]);
            assert_eq!(max.unwrap().wait().unwrap().to_vec::<i64>().unwrap(), [step + 2; 3]);
        }
        assert!(comm.traffic().2 - before < 60, "{} messages for 60 calls", comm.traffic().2 - before);
    });
}

#[test]
fn repeating_collectives_of_other_sorts_are_right_without_messages_too() {
    on_ranks(3, |comm| {
        for step in 0..30usize {
            let own = ints(&[(comm.rank() + step) % 4], vec![comm.rank() as i64; (comm.rank() + step) % 4]);
            let all = comm.allgather(&own, None, &named("rows")).unwrap();
            let scattered = comm.reduce_scatter(&ints(&[6], [1; 6]), Reduction::Sum, None, &named("parts")).unwrap();
            let splits = [0, 1, 2].map(|to| (to + step) % 3);
            let blocks = ints(&[splits.iter().sum()], vec![comm.rank() as i64; splits.iter().sum()]);
            let blocks = comm.alltoall(&blocks, Some(&splits), None, &named("blocks")).unwrap();
            let expected: Vec<i64> = (0..3).flat_map(|rank| vec![rank as i64; (rank + step) % 4]).collect();
            assert_eq!(all.wait().unwrap().to_vec::<i64>().unwrap(), expected);
            assert_eq!(scattered.wait().unwrap().to_vec::<i64>().unwrap(), [3; 2]);
            let each = (comm.rank() + step) % 3;
            let expected: Vec<i64> = (0..3).flat_map(|rank| vec![rank; each]).collect();
            assert_eq!(blocks.wait().unwrap().0.to_vec::<i64>().unwrap(), expected);
        }
    });
}

#[test]
fn a_handle_says_whether_it_is_done_and_a_wait_may_have_a_limit() {
    on_ranks(2, |comm| {
        if comm.rank() == 0 {
            let called = comm.allreduce(&ints(&[1], [1]), Reduction::Sum, &plain()).unwrap();
            assert!(!called.is_done() && called.wait_within(Duration::from_millis(20)).unwrap().is_none());
            comm.send(&ints(&[1], [7]), 1, 0).unwrap().wait().unwrap();
            while !called.is_done() {
                std::thread::yield_now();
            }
            assert_eq!(called.wait().unwrap().to_vec::<i64>().unwrap(), [3]);
        } else {
            let out = ints(&[1], [0]);
            assert_eq!(comm.recv(&out, 0, 0).unwrap().wait().unwrap().1, 0);
            assert_eq!(out.to_vec::<i64>().unwrap(), [7]);
            let called = comm.allreduce(&ints(&[1], [2]), Reduction::Sum, &plain()).unwrap();
            assert_eq!(called.wait().unwrap().to_vec::<i64>().unwrap(), [3]);
        }
    });
}

#[test]
fn messages_between_two_ranks_are_told_apart_by_their_tags_and_ends() {
    on_ranks(3, |comm| {
        let (me, right, left) = (comm.rank(), (comm.rank() + 1) % 3, (comm.rank() + 2) % 3);
        let sent: Vec<_> = (0..4u32)
            .map(|tag| comm.send(&ints(&[2, 500], vec![(me * 10) as i64 + i64::from(tag); 1000]), right, tag).unwrap())
            .collect();
        for tag in (0..4u32).rev() {
            let out = ints(&[1000], vec![0; 1000]);
            let (found, from) = comm.recv(&out, left, tag).unwrap().wait().unwrap();
            assert_eq!(from, left);
            assert_eq!(found.to_vec::<i64>().unwrap(), vec![(left * 10) as i64 + i64::from(tag); 1000]);
        }
        sent.into_iter().for_each(|sent| sent.wait().unwrap());
    });
}

#[test]
fn a_receive_from_any_rank_takes_the_first_message_and_says_whose_it_is() {
    on_ranks(4, |comm| {
        // The communicator's ranks have other numbers than in the job.
        let turned = comm.split(&[3, 2, 1, 0]).unwrap().unwrap();
        for (comm, rounds) in [(comm, 3), (&turned, 1)] {
            let me = comm.rank();
            if me == 1 {
                let mut counts = [0; 4];
                for _ in 0..3 * rounds {
                    let (found, from) = comm.recv(&ints(&[50], vec![0; 50]), None, 4).unwrap().wait().unwrap();
                    assert_eq!(found.to_vec::<i64>().unwrap(), vec![(10 * from + counts[from]) as i64; 50]);
                    counts[from] += 1;
                }
                assert_eq!(counts, [rounds, 0, rounds, rounds], "every message came, each rank's in its order");
            } else {
                let sent =
                    (0..rounds).map(|at| comm.send(&ints(&[50], vec![(10 * me + at) as i64; 50]), 1, 4).unwrap());
                sent.collect::<Vec<_>>().into_iter().for_each(|sent| sent.wait().unwrap());
            }
        }
    });
}

#[test]
fn receives_take_messages_in_the_order_in_which_they_were_called() {
    on_ranks(3, |comm| match comm.rank() {
        0 => {
            let of = |from: Option<usize>| comm.recv(&ints(&[1], [0]), from, 0).unwrap();
            let (first, second, third) = (of(None), of(Some(1)), of(None));
            // Another tag, and another communicator, are other messages.
            let (apart, pair) = (comm.recv(&ints(&[1], [0]), None, 1).unwrap(), comm.subset(&[0, 2]).unwrap());
            let of_pair = pair.recv(&ints(&[1], [0]), None, 0).unwrap();
            comm.send(&ints(&[1], [0]), 1, 9).unwrap().wait().unwrap();
            let found = |handle: ringpull::Handle<(Tensor, usize)>| {
                let (found, from) = handle.wait().unwrap();
                (found.to_vec::<i64>().unwrap()[0], from)
            };
            assert_eq!([first, second, third].map(found), [(10, 1), (11, 1), (12, 1)]);
            comm.send(&ints(&[1], [0]), 2, 9).unwrap().wait().unwrap();
            assert_eq!((found(apart), found(of_pair)), ((20, 2), (21, 1)));
        }
        1 => {
            comm.recv(&ints(&[1], [0]), 0, 9).unwrap().wait().unwrap();
            (10..13).for_each(|value| comm.send(&ints(&[1], [value]), 0, 0).unwrap().wait().unwrap());
        }
        _ => {
            let pair = comm.subset(&[0, 2]).unwrap();
            comm.recv(&ints(&[1], [0]), 0, 9).unwrap().wait().unwrap();
            comm.send(&ints(&[1], [20]), 0, 1).unwrap().wait().unwrap();
            pair.send(&ints(&[1], [21]), 0, 0).unwrap().wait().unwrap();
        }
    });
}

#[test]
fn messages_that_do_not_fit_fail_at_both_ends_and_those_after_them_arrive() {
    on_ranks(3, |comm| {
        for from in [Some(1), None] {
            if comm.rank() == 0 {
                for words in ["i64 of shape [4]", "f32 of shape [3]"] {
                    let error = comm.recv(&ints(&[3], vec![0; 3]), from, 2).unwrap().wait().err().unwrap();
                    assert_disagrees(
                        &error,
                        &["to rank 0, tag 2", "rank 1 has send and recv of", words, "i64 of shape [3]"],
                    );
                }
                let (found, from) = comm.recv(&ints(&[3], vec![0; 3]), from, 2).unwrap().wait().unwrap();
                assert_eq!((found.to_vec::<i64>().unwrap(), from), (vec![7; 3], 1));
            } else if comm.rank() == 1 {
                for wrong in [ints(&[4], vec![1; 4]), Tensor::from_slice(&[3], &[1f32; 3])] {
                    let error = comm.send(&wrong, 0, 2).unwrap().wait().err().unwrap();
                    assert_disagrees(&error, &["to rank 0, tag 2", "rank 0 has send and recv of i64 of shape [3]"]);
                }
                comm.send(&ints(&[3], vec![7; 3]), 0, 2).unwrap().wait().unwrap();
            }
            comm.barrier().unwrap();
        }
    });
    on_ranks(1, |comm| {
        let error = comm.recv(&ints(&[1], [0]), None, 0).err().unwrap().to_string();
        assert!(error.contains("sends to itself"), "{error}");
    });
}

#[test]
fn a_receive_that_nobody_sends_to_is_an_error_and_no_hang() {
    // All ranks wait for messages that cannot come. Rank 1 waits for rank 0, which has called nothing that
    // concerns rank 1.
    let errors = on_ranks(3, |comm| {
        let from = if comm.rank() == 1 { Some(0) } else { None };
        comm.recv(&ints(&[1], [0]), from, 0).unwrap().wait().err().unwrap()
    });
    for error in errors {
        assert!(matches!(error, Error::Deadlock { .. }), "{error}");
        let text = error.to_string();
        let words = "send and recv of key \"from any rank to rank 0, tag 0\", which rank(s) [1, 2] have not called";
        assert!(text.contains(words), "{text}");
    }
}

#[test]
fn messages_go_on_beside_sums_that_repeat_themselves() {
    on_ranks(3, |comm| {
        let (me, right) = (comm.rank(), (comm.rank() + 1) % 3);
        for step in 0..60i64 {
            // From some step on the sums begin without messages.
            let sent = (step % 7 == 6).then(|| comm.send(&ints(&[1], [step]), right, 0).unwrap());
            let early =
                (step % 7 == 6 && me == 1).then(|| comm.recv(&ints(&[1], [0]), None, 0).unwrap().wait().unwrap());
            let sum = comm.allreduce(&ints(&[2000], vec![step; 2000]), Reduction::Sum, &plain()).unwrap();
            let late =
                (step % 7 == 6 && me != 1).then(|| comm.recv(&ints(&[1], [0]), None, 0).unwrap().wait().unwrap());
            for (found, from) in early.into_iter().chain(late) {
                assert_eq!((found.to_vec::<i64>().unwrap(), from), (vec![step], (me + 2) % 3));
            }
            assert_eq!(sum.wait().unwrap().to_vec::<i64>().unwrap(), vec![3 * step; 2000]);
            sent.into_iter().for_each(|sent| sent.wait().unwrap());
        }
    });
}

#[test]
fn process_sets_go_on_beside_each_other_and_beside_the_job() {
    on_ranks(5, |comm| {
        let even = comm.split(&[4, 0, 2]).unwrap();
        let odd = comm.split(&[1, 3]).unwrap();
        assert_eq!(even.is_some(), comm.rank() % 2 == 0);
        let own = even.or(odd).unwrap();
        assert_eq!(own.ranks(), if comm.rank() % 2 == 0 { &[4, 0, 2][..] } else { &[1, 3] });
        assert_eq!(own.ranks()[own.rank()], comm.rank());
        for step in 0..30i64 {
            // The whole job's repeating calls are frozen meanwhile.
            let whole = comm.allreduce(&ints(&[100], vec![step; 100]), Reduction::Sum, &named("whole")).unwrap();
            // The ranks of one set are far ahead of those of the other set.
            for round in 0..(if comm.rank() % 2 == 0 { 3 } else { 1 }) {
                let mine = ints(&[9], vec![comm.rank() as i64 + round; 9]);
                let max = own.allreduce(&mine, Reduction::Max, &plain()).unwrap();
                let all = own.allgather(&ints(&[1], [comm.rank() as i64]), None, &named("rows")).unwrap();
                let part = own
                    .reduce_scatter(&ints(&[own.size()], vec![1; own.size()]), Reduction::Sum, None, &plain())
                    .unwrap();
                let from = own.broadcast(&mine, 1, &plain()).unwrap();
                assert_eq!(from.wait().unwrap().to_vec::<i64>().unwrap(), [own.ranks()[1] as i64 + round; 9]);
                assert_eq!(part.wait().unwrap().to_vec::<i64>().unwrap(), [own.size() as i64]);
                let expected: Vec<i64> = own.ranks().iter().map(|rank| *rank as i64).collect();
                assert_eq!(all.wait().unwrap().to_vec::<i64>().unwrap(), expected);
                let most = *own.ranks().iter().max().unwrap() as i64 + round;
                assert_eq!(max.wait().unwrap().to_vec::<i64>().unwrap(), [most; 9]);
            }
            own.barrier().unwrap();
            assert_eq!(whole.wait().unwrap().to_vec::<i64>().unwrap(), vec![5 * step; 100]);
        }
        // A set of a set, and one of all ranks.
        let pair = own.split(&[1, 0]).unwrap();
        if let Some(pair) = pair {
            let all = pair.allgather(&ints(&[1], [comm.rank() as i64]), None, &plain()).unwrap().wait().unwrap();
            assert_eq!(all.to_vec::<i64>().unwrap(), [own.ranks()[1] as i64, own.ranks()[0] as i64]);
        }
        let again = comm.split(&[0, 1, 2, 3, 4]).unwrap().unwrap();
        let sum = again.allreduce(&ints(&[1], [1]), Reduction::Sum, &plain()).unwrap().wait().unwrap();
        assert_eq!(sum.to_vec::<i64>().unwrap(), [5]);
    });
}

/// An allgather without lengths is two collectives: one for the lengths, one for the blocks. The test calls
/// more of them than can be under way at once.
#[test]
fn a_rank_may_wait_for_the_first_of_many_operations_of_several_collectives_before_it_calls_the_others() {
    on_ranks(3, |comm| {
        let gather = |name: usize| {
            let mine = ints(&[comm.rank() + 1], vec![name as i64; comm.rank() + 1]);
            comm.allgather(&mine, None, &named(&name.to_string())).unwrap()
        };
        for step in 0..12 {
            let first = gather(0);
            let first = if step == 11 && comm.rank() == 1 { Err(first.wait().unwrap()) } else { Ok(first) };
            let others: Vec<_> = (1..24).map(gather).collect();
            let first = first.map_or_else(|all| all, |handle| handle.wait().unwrap());
            assert_eq!(first.to_vec::<i64>().unwrap(), [0; 6]);
            for (name, all) in (1..).zip(others) {
                assert_eq!(all.wait().unwrap().to_vec::<i64>().unwrap(), [name; 6]);
            }
        }
    });
}

#[test]
fn the_ranks_of_a_set_can_make_it_without_the_others() {
    on_ranks(3, |comm| {
        // The whole job's calls are frozen before, and go on.
        let whole = |step: i64| {
            let sum = comm.allreduce(&ints(&[100], vec![step; 100]), Reduction::Sum, &named("whole")).unwrap();
            assert_eq!(sum.wait().unwrap().to_vec::<i64>().unwrap(), vec![3 * step; 100]);
        };
        (0..20).for_each(whole);
        if comm.rank() == 1 {
            let text = comm.subset(&[2, 0]).err().unwrap().to_string();
            assert!(text.contains("ranks [2, 0] made by rank 1"), "{text}");
        } else {
            for _ in 0..2 {
                let set = comm.subset(&[2, 0]).unwrap();
                assert_eq!((set.ranks(), set.ranks()[set.rank()]), (&[2, 0][..], comm.rank()));
                let all = set.allgather(&ints(&[1], [comm.rank() as i64]), None, &plain()).unwrap();
                let passed = set.begin_barrier().unwrap();
                assert_eq!(all.wait().unwrap().to_vec::<i64>().unwrap(), [2, 0]);
                passed.wait().unwrap();
            }
        }
        (20..40).for_each(whole);
        let all = comm.subset(&[0, 1, 2]).unwrap();
        let passed = all.begin_barrier().unwrap();
        let sum = all.allreduce(&ints(&[1], [1]), Reduction::Sum, &plain()).unwrap().wait().unwrap();
        assert_eq!(sum.to_vec::<i64>().unwrap(), [3]);
        passed.wait().unwrap();
    });
}

#[test]
fn more_operations_than_go_at_once_are_done_in_order_while_those_of_a_set_pass_them() {
    on_ranks(3, |comm| {
        let set = comm.split(&[0, 2]).unwrap();
        let called: Vec<_> = (0..120i64)
            .map(|at| comm.allreduce(&ints(&[20_000], vec![at; 20_000]), Reduction::Sum, &plain()).unwrap())
            .collect();
        // Rank 1 has made the same 120 calls. The ranks of the set, 0 and 2, wait for the set's sum, which
        // was called last.
        if let Some(set) = set {
            let last = set.allreduce(&ints(&[1], [1]), Reduction::Sum, &plain()).unwrap();
            assert_eq!(last.wait().unwrap().to_vec::<i64>().unwrap(), [2]);
        }
        for (at, handle) in called.into_iter().enumerate() {
            assert_eq!(handle.wait().unwrap().to_vec::<i64>().unwrap(), vec![3 * at as i64; 20_000]);
        }
    });
}

fn assert_disagrees(error: &Error, words: &[&str]) {
    assert!(matches!(error, Error::Disagreement { .. }), "{error}");
    let text = error.to_string();
    words.iter().for_each(|word| assert!(text.contains(word), "{word:?} in {text}"));
}

#[test]
fn calls_that_do_not_fit_fail_on_every_rank_and_the_job_goes_on() {
    on_ranks(3, |comm| {
        let me = comm.rank();
        let set = comm.split(&[0, 1]).unwrap();
        for round in 0..3 {
            let one = ints(&[2 + me % 2], vec![1; 2 + me % 2]);
            let error = comm.allreduce(&one, Reduction::Sum, &named("grad")).unwrap().wait().err().unwrap();
            assert_disagrees(&error, &["\"grad\"", "allreduce", "rank 1 has", "i64 of shape [3]", "i64 of shape [2]"]);
            let reduction = if me == 2 { Reduction::Max } else { Reduction::Sum };
            let error = comm.allreduce(&ints(&[1], [1]), reduction, &plain()).unwrap().wait().err().unwrap();
            assert_disagrees(&error, &["collective", "rank 2 has allreduce of i64 of shape [1] by max", "by sum"]);
            let error = comm.broadcast(&ints(&[1], [1]), me, &plain()).unwrap().wait().err().unwrap();
            assert_disagrees(&error, &["from rank 0", "from rank 1", "from rank 2"]);
            let error = if me == 0 {
                comm.allgather(&ints(&[1], [1]), None, &plain()).unwrap().wait().err().unwrap()
            } else {
                comm.reduce_scatter(&ints(&[1], [1]), Reduction::Sum, None, &plain()).unwrap().wait().err().unwrap()
            };
            assert_disagrees(
                &error,
                &["rank 0 has allgather", "rank 1 has reduce_scatter", "in one order, or give each a name"],
            );
            if let Some(set) = &set {
                let shape = [1 + me];
                let own = ints(&shape, vec![1; 1 + me]);
                let error = set.allreduce(&own, Reduction::Sum, &plain()).unwrap().wait().err().unwrap();
                assert_disagrees(&error, &["ranks [0, 1]", "rank 0 has", "rank 1 has"]);
                let sum = set.allreduce(&ints(&[1], [round]), Reduction::Sum, &plain()).unwrap().wait().unwrap();
                assert_eq!(sum.to_vec::<i64>().unwrap(), [2 * round]);
            }
            let sum = comm.allreduce(&ints(&[1], [round]), Reduction::Sum, &plain()).unwrap().wait().unwrap();
            assert_eq!(sum.to_vec::<i64>().unwrap(), [3 * round]);
        }
        let error = comm.split(&[me]).err().unwrap();
        assert_disagrees(&error, &["split", "ranks [0]", "ranks [2]"]);
    });
}

#[test]
fn wrong_arguments_are_errors_of_the_caller_and_change_nothing() {
    on_ranks(2, |comm| {
        let tensor = ints(&[3], [1, 2, 3]);
        let wrong = |text: &str, error: Option<Error>| {
            let text_of_error = error.map_or_else(String::new, |error| error.to_string());
            assert!(text_of_error.contains(text) && text_of_error.contains("hint:"), "{text:?} in {text_of_error:?}");
        };
        wrong("alltoall of 3 rows", comm.alltoall(&tensor, None, None, &plain()).err());
        let own_differs = comm.alltoall(&tensor, Some(&[1, 2]), Some(&[2, 1]), &plain());
        wrong("it sends itself", own_differs.err());
        wrong("lengths [1, 1]", comm.reduce_scatter(&tensor, Reduction::Sum, Some(&[1, 1]), &plain()).err());
        wrong("[3]", comm.allgather(&tensor, Some(&[3]), &plain()).err());
        wrong("rank 2 of a communicator of 2", comm.broadcast(&tensor, 2, &plain()).err());
        wrong(
            "an output of",
            comm.allreduce(&tensor, Reduction::Sum, &CallOptions { out: Some(ints(&[1], [0])), ..plain() }).err(),
        );
        wrong(
            "an output that is the input",
            comm.reduce_scatter(&tensor, Reduction::Sum, None, &CallOptions { out: Some(tensor.clone()), ..plain() })
                .err(),
        );
        wrong(
            "without lengths",
            comm.allgather(&tensor, None, &CallOptions { out: Some(ints(&[6], [0; 6])), ..plain() }).err(),
        );
        wrong("sends to itself", comm.send(&tensor, comm.rank(), 0).err());
        wrong("ranks [0, 5]", comm.split(&[0, 5]).err());
        wrong("named twice", comm.split(&[0, 0]).err());
        let sum = comm.allreduce(&tensor, Reduction::Sum, &plain()).unwrap().wait().unwrap();
        assert_eq!(sum.to_vec::<i64>().unwrap(), [2, 4, 6]);
    });
}

#[test]
fn a_rank_that_never_comes_to_a_set_is_named() {
    let config = Config { timeout: Duration::from_secs(2), ..Config::default() };
    let errors = on_ranks_with(3, &config, |comm| {
        let set = comm.split(&[0, 2]).unwrap();
        let Some(set) = set.filter(|_| comm.rank() == 0) else {
            // Wait until the error has come to this rank too.
            while comm.fault().is_none() {
                std::thread::sleep(Duration::from_millis(50));
            }
            return None;
        };
        set.allreduce(&ints(&[1], [1]), Reduction::Sum, &named("late")).unwrap().wait().err()
    });
    let text = errors[0].as_ref().unwrap().to_string();
    assert!(text.contains("\"late\"") && text.contains("rank(s) [2] have not called it"), "{text}");
}

#[test]
fn a_rank_that_has_joined_adds_zeros_to_sums_and_refuses_what_has_no_zeros() {
    on_ranks(3, |comm| {
        for step in 0..(2 + comm.rank() as i64) {
            let sum = comm.allreduce(&ints(&[4], [1; 4]), Reduction::Sum, &named("steps")).unwrap().wait().unwrap();
            let with_data = (0..3).filter(|rank| step < 2 + rank).count() as i64;
            assert_eq!(sum.to_vec::<i64>().unwrap(), [with_data; 4]);
        }
        if comm.rank() == 2 {
            let max = comm.allreduce(&ints(&[1], [1]), Reduction::Max, &plain()).unwrap().wait();
            let text = max.err().map_or_else(String::new, |error| error.to_string());
            assert!(text.contains("have called join"), "{text}");
        }
        assert!(comm.join().unwrap() < 3);
        let sum = comm.allreduce(&ints(&[1], [1]), Reduction::Sum, &plain()).unwrap().wait().unwrap();
        assert_eq!(sum.to_vec::<i64>().unwrap(), [3]);
    });
}
