//! Tests that any interleaving gives the same bits, and that no message does harm.

use proptest::prelude::*;

use ringpull_base::{DType, Key};
use ringpull_kernels::compress::{Codec, Compression, Feedback};
use ringpull_kernels::row_ids;

use super::*;

fn place() -> Place {
    Place { key: Key::from("w"), segment: 0 }
}

fn places() -> Places {
    Places { key: Key::from("w"), segments: vec![0] }
}

fn message(values: &[f32]) -> Vec<u8> {
    bytemuck::cast_slice::<f32, u8>(values).to_vec()
}

fn init(rank: usize, values: &[f32]) -> (Request, Vec<u8>) {
    let len_bytes = values.len() as u64 * 4;
    let shape = vec![values.len() as u64];
    let request =
        Request::Init { place: place(), dtype: DType::F32, shape, len_bytes, unit_bytes: 4, here: 1, spans: false };
    (request, if rank == 0 { message(values) } else { Vec::new() })
}

fn push(round: u64, value: f32, reply: u64) -> (Request, Vec<u8>) {
    (
        Request::Push {
            place: place(),
            round,
            optimizer: 0,
            compression: None,
            reply: Some((PullTarget::Value, reply)),
        },
        message(&[value, 0.1 * value]),
    )
}

/// A key of two segments, each with four rows of one element.
fn table(segments: &[u32]) -> Places {
    Places { key: Key::from("table"), segments: segments.to_vec() }
}

fn init_table(rank: usize) -> Vec<(Request, Vec<u8>)> {
    let init = |segment| {
        let place = Place { key: Key::from("table"), segment };
        let (dtype, shape) = (DType::F32, vec![8, 1]);
        let request = Request::Init { place, dtype, shape, len_bytes: 16, unit_bytes: 4, here: 2, spans: false };
        (request, if rank == 0 { message(&[0.0; 4]) } else { Vec::new() })
    };
    vec![init(0), init(1)]
}

/// Returns a push of the rows `ids` of some segments, all with this value. `word` asks for a confirmation
/// when it is done.
fn push_rows(segments: &[u32], round: u64, ids: &[i64], value: f32, word: Option<u64>) -> (Request, Vec<u8>) {
    let mut payload = row_ids::encode(ids, 4 * segments.len());
    let ids_bytes = payload.len() as u64;
    payload.extend(message(&vec![value; ids.len()]));
    (Request::PushRows { places: table(segments), round, optimizer: 0, ids_bytes, word }, payload)
}

fn pull_rows(segments: &[u32], rounds: u64, ids: &[i64], reply: u64) -> (Request, Vec<u8>) {
    let code = row_ids::encode(ids, 4 * segments.len());
    (Request::Pull { places: table(segments), rounds, want: PullTarget::Rows, reply }, code)
}

fn word(rounds: u64, reply: u64) -> (Request, Vec<u8>) {
    (Request::Pull { places: table(&[0, 1]), rounds, want: PullTarget::Word, reply }, Vec::new())
}

/// Returns a server's answers, by rank and reply. Fails if there is any other output.
fn answers(server: &mut Server, messages: Vec<(usize, (Request, Vec<u8>))>) -> BTreeMap<(usize, u64), Vec<u8>> {
    let mut answers = BTreeMap::new();
    for (rank, (request, payload)) in messages {
        for output in server.handle(rank, request, payload) {
            match output {
                Output::Reply { rank, reply: Reply::Value { reply }, payload } => {
                    let before = answers.insert((rank, reply), payload.unwrap_or_default().to_vec());
                    assert!(before.is_none(), "one answer for each request");
                }
                Output::Reply { .. } => panic!("nobody asked for anything else"),
                Output::Fault(error) => panic!("{error}"),
                Output::Dropped(why) => panic!("{why}"),
            }
        }
    }
    answers
}

/// Returns each rank's messages in their order, with the ranks interleaved according to `choices`.
fn interleaved(workers: usize, rounds: u64, choices: &[usize]) -> Vec<(usize, (Request, Vec<u8>))> {
    let mut queues: Vec<std::collections::VecDeque<_>> = (0..workers)
        .map(|rank| {
            let of_round = |round: u64| {
                let value = (rank as f32 + 0.3) * round as f32;
                // The ranks' messages concern different segments.
                let ids = [1, 3, 5 + (rank as i64 + round as i64) % 3];
                let rows = match rank % 2 {
                    0 => vec![push_rows(&[0, 1], round, &ids, value, Some(100 + round))],
                    _ => vec![
                        push_rows(&[0], round, &ids[..2], value, None),
                        push_rows(&[1], round, &[ids[2] - 4], value, None),
                        word(round, 100 + round),
                    ],
                };
                let pull = pull_rows(&[0, 1], round, &[0, 1, 3, 5, 6, 7], 200 + round);
                [push(round, value, round)].into_iter().chain(rows).chain([pull])
            };
            let inits = init_table(rank).into_iter().chain([init(rank, &[0.0, 0.0])]);
            inits.chain((1..=rounds).flat_map(of_round)).collect()
        })
        .collect();
    let mut messages = Vec::new();
    for choice in choices.iter().cycle() {
        let open: Vec<usize> = (0..workers).filter(|rank| !queues[*rank].is_empty()).collect();
        if open.is_empty() {
            break;
        }
        let rank = open[choice % open.len()];
        messages.extend(queues[rank].pop_front().map(|message| (rank, message)));
    }
    messages
}

#[test]
fn an_init_of_other_bytes_than_the_first_ranks_is_a_fault_and_nothing_is_sliced_by_it() {
    let mut server = Server::new(2, true);
    let (Request::Init { place, dtype, shape, .. }, _) = init(1, &[0.0; 2]) else { unreachable!("it is one") };
    let shorter = Request::Init { place, dtype, shape, len_bytes: 4, unit_bytes: 4, here: 1, spans: false };
    assert!(server.handle(1, shorter, Vec::new()).is_empty());
    let (request, value) = init(0, &[1.0, 2.0]);
    let outputs = server.handle(0, request, value);
    assert!(matches!(&outputs[..], [Output::Fault(Error::Protocol { rank: Some(0), .. })]));
    let rows = Request::Pull { places: places(), rounds: 0, want: PullTarget::Rows, reply: 1 };
    let far = row_ids::encode(&[1 << 30], usize::MAX);
    assert!(server.handle(0, rows, far).is_empty(), "there is no value to slice");
}

#[test]
fn what_an_init_declares_is_bounded_by_its_shape_and_by_the_longest_segment() {
    let f32 = |shape: &[u64], len_bytes, unit_bytes| Request::Init {
        place: place(),
        dtype: DType::F32,
        shape: shape.to_vec(),
        len_bytes,
        unit_bytes,
        here: 1,
        spans: false,
    };
    for (request, why) in [
        (f32(&[2], 12, 4), "12 bytes of a key of 8"),
        (f32(&[1 << 40], 1 << 40, 4), "1099511627776 bytes"),
        (f32(&[1 << 40], (2 << 20) + 4, 4), "2097156 bytes"),
        (f32(&[1 << 62, 1 << 62], 8, 4), "more elements than can be counted"),
        (f32(&[1; 65], 4, 4), "65 dimensions"),
        (f32(&[2], 8, 3), "broken elements"),
        (f32(&[3], 12, 8), "broken elements"),
        (f32(&[2], u64::MAX, u64::MAX), "bytes"),
    ] {
        let mut server = Server::new(2, true);
        let outputs = server.handle(1, request, Vec::new());
        assert!(matches!(&outputs[..], [Output::Dropped(said)] if said.contains(why)), "{why}");
        // Nothing of the wrong init is kept, so the other ranks' inits work.
        assert!(answers(&mut server, vec![(1, init(1, &[1.0, 2.0])), (0, init(0, &[1.0, 2.0]))]).is_empty());
    }
}

#[test]
fn a_worker_that_pulls_or_pushes_far_ahead_is_bounded() {
    let mut server = Server::new(2, true);
    answers(&mut server, vec![(0, init(0, &[1.0, 2.0])), (1, init(1, &[1.0, 2.0]))]);
    let pull = |reply| Request::Pull { places: places(), rounds: 1, want: PullTarget::Value, reply };
    for reply in 0..MAX_PULLS as u64 {
        assert!(server.handle(1, pull(reply), Vec::new()).is_empty());
    }
    assert!(matches!(&server.handle(1, pull(0), Vec::new())[..], [Output::Dropped(_)]));
    assert!(server.handle(0, pull(0), Vec::new()).is_empty(), "each rank for itself");
    let (request, value) = push(MAX_AHEAD + 1, 1.0, 1);
    assert!(matches!(&server.handle(1, request, value)[..], [Output::Dropped(_)]));
}

#[test]
fn a_push_of_a_round_that_cannot_be_counted_is_dropped() {
    let mut server = Server::new(2, false);
    let (request, value) = init(0, &[0.0, 0.0]);
    server.handle(0, request, value);
    let (request, value) = push(u64::MAX, 1.0, 1);
    assert!(matches!(&server.handle(1, request, value)[..], [Output::Dropped(why)] if why.contains("round")));
}

#[test]
fn a_pull_before_the_value_is_answered_when_it_comes() {
    let mut server = Server::new(2, true);
    let pull = Request::Pull { places: places(), rounds: 0, want: PullTarget::Value, reply: 1 };
    assert!(answers(&mut server, vec![(1, init(1, &[4.0, 2.0])), (1, (pull, Vec::new()))]).is_empty());
    assert_eq!(answers(&mut server, vec![(0, init(0, &[4.0, 2.0]))])[&(1, 1)], message(&[4.0, 2.0]));
}

#[test]
fn rows_of_several_segments_are_answered_when_all_of_them_have_had_the_round() {
    let mut server = Server::new(2, true);
    let inits = (0..2).flat_map(|rank| init_table(rank).into_iter().map(move |init| (rank, init)));
    answers(&mut server, inits.collect());
    let of_0 = [push_rows(&[0, 1], 1, &[0, 7], 1.0, Some(1)), pull_rows(&[0, 1], 1, &[0, 6, 7], 2)];
    let first = of_0.into_iter().map(|message| (0, message)).chain([(1, push_rows(&[0], 1, &[0], 2.0, None))]);
    assert!(answers(&mut server, first.collect()).is_empty(), "the second segment lacks rank 1");
    let who = Request::WhoIsMissing { places: table(&[0, 1]), rounds: 1, reply: 9 };
    let outputs = server.handle(0, who, Vec::new());
    assert!(matches!(&outputs[..], [Output::Reply { reply: Reply::Missing { ranks, .. }, .. }] if *ranks == [1]));
    let last = answers(&mut server, vec![(1, push_rows(&[1], 1, &[2, 3], 2.0, None))]);
    assert_eq!(last, BTreeMap::from([((0, 1), Vec::new()), ((0, 2), message(&[3.0, 2.0, 3.0]))]));
}

#[test]
fn a_worker_without_rows_of_a_segment_counts_for_its_round() {
    for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
        let mut server = Server::new(3, true);
        let inits = (0..3).flat_map(|rank| init_table(rank).into_iter().map(move |init| (rank, init)));
        answers(&mut server, inits.collect());
        let ids: [&[i64]; 3] = [&[0], &[0, 6], &[]];
        let pushes = order.map(|rank| (rank, push_rows(&[0, 1], 1, ids[rank], 1.0, None)));
        assert!(answers(&mut server, pushes.into()).is_empty());
        let pulled = answers(&mut server, vec![(2, pull_rows(&[0, 1], 1, &[0, 5, 6], 1))]);
        assert_eq!(pulled[&(2, 1)], message(&[2.0, 0.0, 1.0]), "order {order:?}");
    }
}

#[test]
fn rows_that_do_not_fit_their_segments_are_dropped() {
    let mut server = Server::new(1, true);
    answers(&mut server, init_table(0).into_iter().map(|init| (0, init)).collect());
    let mut short = push_rows(&[0, 1], 1, &[0, 7], 1.0, None);
    short.1.pop();
    for (request, payload) in [
        short,
        push_rows(&[0, 2], 1, &[0], 1.0, None),
        push_rows(&[1, 0], 1, &[0], 1.0, None),
        push_rows(&[0, 0], 1, &[0], 1.0, None),
        push_rows(&[], 1, &[], 1.0, None),
        pull_rows(&[1], 0, &[3, 4], 1),
        (Request::Pull { places: table(&[0, 1]), rounds: 0, want: PullTarget::State, reply: 1 }, Vec::new()),
    ] {
        let words = format!("{request:?}");
        assert!(matches!(&server.handle(0, request, payload)[..], [Output::Dropped(_)]), "{words}");
    }
    let fits =
        answers(&mut server, vec![(0, push_rows(&[0, 1], 1, &[7], 2.0, None)), (0, pull_rows(&[1], 1, &[2, 3], 1))]);
    assert_eq!(fits[&(0, 1)], message(&[0.0, 2.0]));
}

proptest! {
    #[test]
    fn any_interleaving_gives_the_same_bits(
        workers in 1usize..5, rounds in 1u64..4, choices in proptest::collection::vec(0usize..64, 1..40),
    ) {
        let one = answers(&mut Server::new(workers, true), interleaved(workers, rounds, &[0]));
        let other = answers(&mut Server::new(workers, true), interleaved(workers, rounds, &choices));
        prop_assert_eq!(one.len(), 3 * workers * rounds as usize);
        prop_assert_eq!(one, other);
    }

    #[test]
    fn decoded_requests_of_any_content_never_panic(
        rank in 0usize..2, round in 0u64..4, optimizer in 0u64..3, count in prop_oneof![0u64..4, Just(u64::MAX)],
        payload in proptest::collection::vec(any::<u8>(), 0..40), which in 0usize..6,
        compression in prop::sample::select(vec!["2bit", "1bit", "fp16", "bf16", "topk:0.5"]),
    ) {
        let mut server = Server::new(2, true);
        answers(&mut server, vec![(0, init(0, &[1.0, 2.0])), (1, init(1, &[1.0, 2.0]))]);
        let place = place();
        let request = match which {
            0 => Request::Push { place, round, optimizer, compression: None, reply: None },
            1 => Request::PushRows { places: places(), round, optimizer, ids_bytes: count, word: None },
            2 => Request::Pull { places: places(), rounds: round, want: PullTarget::Rows, reply: 1 },
            3 => Request::WhoIsMissing { places: places(), rounds: round, reply: 1 },
            4 => {
                let compression = Some(compression.parse().unwrap());
                Request::Push { place, round, optimizer, compression, reply: None }
            }
            _ => Request::Init { place, dtype: DType::F64, shape: vec![count], len_bytes: count, unit_bytes: count, here: 1, spans: false },
        };
        server.handle(rank, request, payload);
    }
}

#[test]
fn a_rank_that_pushes_twice_does_not_stand_in_for_another() {
    let mut server = Server::new(2, true);
    let messages =
        vec![(0, init(0, &[0.0, 0.0])), (1, init(1, &[0.0, 0.0])), (0, push(1, 1.0, 1)), (0, push(2, 2.0, 2))];
    assert!(answers(&mut server, messages).is_empty());
    let who = Request::WhoIsMissing { places: places(), rounds: 1, reply: 9 };
    let outputs = server.handle(0, who, Vec::new());
    assert!(matches!(&outputs[..], [Output::Reply { reply: Reply::Missing { ranks, .. }, .. }] if *ranks == [1]));
    assert_eq!(answers(&mut server, vec![(1, push(1, 5.0, 1))]).len(), 2);
}

#[test]
fn what_does_not_fit_is_dropped_and_changes_nothing() {
    let mut server = Server::new(1, true);
    answers(&mut server, vec![(0, init(0, &[4.0, 2.0]))]);
    let wrong = Request::Push { place: place(), round: 1, optimizer: 0, compression: None, reply: None };
    assert!(matches!(&server.handle(0, wrong, message(&[1.0]))[..], [Output::Dropped(_)]));
    let unknown = Request::Push { place: place(), round: 1, optimizer: 3, compression: None, reply: None };
    assert!(matches!(&server.handle(0, unknown, message(&[1.0, 1.0]))[..], [Output::Dropped(_)]));
    let pull = Request::Pull { places: places(), rounds: 0, want: PullTarget::Value, reply: 1 };
    assert_eq!(answers(&mut server, vec![(0, (pull, Vec::new()))])[&(0, 1)], message(&[4.0, 2.0]));
}

#[test]
fn after_a_fault_nothing_is_answered() {
    let mut server = Server::new(2, true);
    answers(&mut server, vec![(0, init(0, &[4.0, 2.0]))]);
    let (request, payload) = init(1, &[4.0, 2.0, 1.0]);
    let outputs = server.handle(1, request, payload);
    assert!(matches!(&outputs[..], [Output::Fault(Error::Disagreement { views, .. })] if views.len() == 2));
    let pull = Request::Pull { places: places(), rounds: 0, want: PullTarget::Value, reply: 1 };
    assert!(server.handle(1, pull, Vec::new()).is_empty(), "rank 1 has three elements where this has two");
}

#[test]
fn ranks_that_push_with_different_optimizers_get_an_error() {
    let mut server = Server::new(2, true);
    answers(&mut server, vec![(0, init(0, &[0.0, 0.0])), (1, init(1, &[0.0, 0.0])), (0, push(1, 1.0, 1))]);
    let set = Request::SetOptimizer { version: 1, oldest: 1, optimizer: Optimizer::sgd(0.5) };
    assert!(server.handle(1, set, Vec::new()).is_empty());
    let push = Request::Push { place: place(), round: 1, optimizer: 1, compression: None, reply: None };
    let outputs = server.handle(1, push, message(&[1.0, 1.0]));
    assert!(matches!(&outputs[..], [Output::Fault(Error::Disagreement { views, .. })] if views.len() == 2));
}

fn coded(compression: Compression, round: u64, values: &[f32], feedback: &mut Feedback) -> (Request, Vec<u8>) {
    let mut code = vec![0; compression.code_bytes(values.len())];
    compression.encode(values, feedback, &mut code);
    let compression = Some(compression);
    (Request::Push { place: place(), round, optimizer: 0, compression, reply: Some((PullTarget::Value, round)) }, code)
}

fn two_bit(threshold: f32) -> Compression {
    Compression::Codec(Codec::TwoBit { threshold })
}

#[test]
fn codes_are_decoded_and_added_up_whatever_the_order_they_come_in() {
    // With 0.1, three decoded codes added one by one make slightly more than 0.3.
    for (threshold, sums) in [(0.5, [1.5f32, -0.5]), (0.1, [0.3, -0.1])] {
        for order in [[0, 1, 2], [2, 0, 1]] {
            let mut server = Server::new(3, true);
            let mut messages: Vec<_> = (0..3).map(|rank| (rank, init(rank, &[0.0, 0.0]))).collect();
            let values = [[9.0, 0.0], [9.0, -9.0], [9.0, 0.0]];
            let push = |rank: usize| coded(two_bit(threshold), 1, &values[rank], &mut Feedback::default());
            messages.extend(order.map(|rank| (rank, push(rank))));
            for answer in answers(&mut server, messages).into_values() {
                assert_eq!(answer, message(&sums));
            }
        }
    }
}

#[test]
fn ranks_that_compress_differently_get_an_error() {
    for other in [None, Some(two_bit(0.25)), Some("bf16".parse().unwrap())] {
        let mut server = Server::new(2, true);
        let first = coded(two_bit(0.5), 1, &[1.0, 0.0], &mut Feedback::default());
        answers(&mut server, vec![(0, init(0, &[0.0, 0.0])), (1, init(1, &[0.0, 0.0])), (0, first)]);
        let (request, payload) = match other {
            None => push(1, 1.0, 1),
            Some(other) => coded(other, 1, &[1.0, 0.0], &mut Feedback::default()),
        };
        let outputs = server.handle(1, request, payload);
        let [Output::Fault(error @ Error::Disagreement { .. })] = &outputs[..] else { panic!("no disagreement") };
        let text = error.to_string();
        assert!(text.contains("rank 0 has a gradient compressed by 2bit:0.5") && text.contains("rank 1"), "{text}");
    }
}

#[test]
fn codes_that_no_worker_sends_end_the_job_with_a_protocol_error() {
    let topk: Compression = "topk:0.5".parse().unwrap();
    let index_2 = [bytemuck::cast_slice(&[2u32]), bytemuck::cast_slice(&[1f32])].concat();
    for (compression, code, part) in [
        (two_bit(0.5), vec![0; 8], "8 bytes of codes instead of 4"),
        (two_bit(0.5), vec![0x40, 0, 0, 0], "no encoder writes"),
        (two_bit(0.5), vec![0, 0, 0, 3], "no encoder writes"),
        (two_bit(f32::NAN), vec![0; 4], "greater than 0"),
        (topk, index_2, "ascend below 2"),
        (topk, vec![1; 3], "not a whole number of entries"),
    ] {
        let mut server = Server::new(1, true);
        answers(&mut server, vec![(0, init(0, &[4.0, 2.0]))]);
        let compression = Some(compression);
        let request = Request::Push { place: place(), round: 1, optimizer: 0, compression, reply: None };
        let outputs = server.handle(0, request, code);
        let [Output::Fault(error @ Error::Protocol { .. })] = &outputs[..] else { panic!("{part}: no fault") };
        assert!(error.to_string().contains(part) && error.to_string().contains("key \"w\""), "{error}");
        let pull = Request::Pull { places: places(), rounds: 0, want: PullTarget::Value, reply: 1 };
        assert!(server.handle(0, pull, Vec::new()).is_empty(), "no worker gets a value that may be wrong");
    }
}
