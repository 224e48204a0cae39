//! Measures the messages and the memory of rank 0 in a job of many ranks, until the job needs no more
//! messages.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ringpull_base::{DType, Key, Reduction};

use crate::progress::agreement::Agreement;
use crate::progress::fusion::BUCKET_BYTES;
use crate::progress::messages::{Call, ControlMessage, Operation, Order, Terms, Topic, Transfer};

/// The keys of ResNet-50.
const KEYS: usize = 161;

/// The messages and the memory of rank 0, from the first call of any rank until the cycle is frozen.
#[derive(Debug, Default)]
struct MessageCounts {
    received: usize,
    received_bytes: usize,
    sent: usize,
    sent_bytes: usize,
    /// The most bytes by which the process has grown.
    stored_bytes: usize,
    took: Duration,
}

/// Returns a rank's call on key `key` in step `step`. The first call is the init.
fn call(key: usize, step: u64, operation: Operation) -> Call {
    let len_bytes = 4 << 16;
    let transfer =
        Transfer::Sum { dtype: DType::F32, reduction: Reduction::Sum, len_bytes, priority: 0, is_divided: false };
    let terms = Terms { value: Some((DType::F32, Arc::from([256, 256]))), ..Terms::default() };
    let topic = Topic::Key { store: 0, key: Key::from(format!("layer{key}.weight")).into() };
    Call { topic, ordinal: step, operation, terms, transfer, waited: key == 0 && step > 1 }
}

fn resident_bytes() -> usize {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    pages.split(' ').nth(1).and_then(|pages| pages.parse().ok()).map_or(0, |pages: usize| pages * 4096)
}

/// Every rank in turn makes all calls of a step, so all keys are pending until the last rank calls.
fn counted(ranks: usize) -> MessageCounts {
    let (mut table, mut of) = (Agreement::new(ranks, 1800.0, BUCKET_BYTES), MessageCounts::default());
    let (before, mut is_frozen, mut step) = (resident_bytes(), false, 0);
    while !is_frozen {
        assert!(step < 5, "two steps that are alike are frozen");
        let operation = || if step == 0 { Operation::Init } else { Operation::Push };
        let calls: Vec<Call> = (0..KEYS).map(|key| call(key, step, operation())).collect();
        let bytes = |note: &ControlMessage| postcard::to_stdvec(note).unwrap().len();
        let called: Vec<usize> = calls.iter().map(|call| bytes(&ControlMessage::Called(call.clone()))).collect();
        for rank in 0..ranks {
            for (call, bytes_of_call) in calls.iter().zip(&called) {
                if is_frozen {
                    break;
                }
                let (made, start) = (call.clone(), Instant::now());
                let orders = table.call(rank, made, 0.0).unwrap();
                of.took += start.elapsed();
                of.received += 1;
                of.received_bytes += bytes_of_call;
                is_frozen = orders.iter().any(|order| matches!(order, Order::Freeze(_)));
                for order in orders {
                    of.sent += ranks;
                    of.sent_bytes += ranks * bytes(&ControlMessage::Order(order));
                }
            }
            if rank % 64 == 0 {
                of.stored_bytes = of.stored_bytes.max(resident_bytes().saturating_sub(before));
            }
        }
        step += 1;
    }
    of
}

/// `--nocapture` prints the table; `RINGPULL_TEST_RANKS` names another number of ranks.
#[test]
fn rank_0_exchanges_as_much_with_each_rank_however_many_there_are() {
    println!("until {KEYS} keys are agreed on for good, rank 0");
    println!("  ranks  receives             sends                stores     takes");
    let counts = match std::env::var("RINGPULL_TEST_RANKS") {
        Ok(count) => vec![count.parse().unwrap()],
        Err(_) => vec![8, 64, 1000],
    };
    let mut of_a_rank = Vec::new();
    for ranks in counts {
        let of = counted(ranks);
        let mb = |bytes: usize| bytes as f64 / 1e6;
        println!(
            "{ranks:>7}  {:>8} ({:>6.1} MB)  {:>8} ({:>6.1} MB)  {:>6.1} MB  {:>6.2} s",
            of.received,
            mb(of.received_bytes),
            of.sent,
            mb(of.sent_bytes),
            mb(of.stored_bytes),
            of.took.as_secs_f64()
        );
        assert_eq!((of.received % ranks, of.sent % ranks), (0, 0));
        of_a_rank.push((of.received / ranks, of.sent / ranks, of.sent_bytes / ranks));
    }
    assert!(of_a_rank.iter().all(|of| *of == of_a_rank[0]), "{of_a_rank:?}");
}
