//! The error for an operation that ranks have called differently.

use ringpull_base::{Error, INIT_ALIKE};

use crate::progress::agreement::PendingOperation;
use crate::progress::messages::{Call, Operation, Sums, Terms, Topic};

/// Returns the error for an operation that two ranks have called differently.
pub(super) fn disagreement(pending: &PendingOperation) -> Error {
    let (_, first) = pending.first();
    let alike = |are: fn(&Call, &Call) -> bool| pending.made().all(|(_, call)| are(call, first));
    let is_same_sum = alike(|one, other| Terms { sums: other.terms.sums.clone(), ..one.terms.clone() } == other.terms);
    let (view, remedy): (fn(&Call) -> String, _) = if !alike(|one, other| one.operation == other.operation) {
        let remedy = if first.topic.is_collective() {
            "every rank must call the same collectives in one order, or give each a name"
        } else {
            "every rank must call the same operations on a key"
        };
        (|call| format!("{} of {}", call.operation, call.terms), remedy)
    } else if !is_same_sum && first.operation == Operation::Init {
        (|call| call.terms.to_string(), INIT_ALIKE)
    } else if matches!(first.topic, Topic::Message(_)) {
        (
            |call| format!("{} of {}", call.operation, call.terms),
            "receive the dtype and the number of elements that are sent, and give different messages different tags",
        )
    } else if first.topic.is_collective() {
        (
            |call| format!("{} of {}", call.operation, call.terms),
            "give every rank of the communicator the same dtype, shape and arguments",
        )
    } else if !is_same_sum {
        (
            |call| format!("{} of {}", call.operation, call.terms),
            "every rank must use the same shapes, dtypes, optimizer and gradient compression for a key",
        )
    } else {
        (
            |call| format!("sums {}", call.terms.sums.iter().map(Sums::to_string).collect::<String>()),
            "give every rank the same RINGPULL_ALGORITHM, RINGPULL_SEGMENT and RINGPULL_CHECK_REPLICAS, or the same Config, and RINGPULL_DEVICES to all or to none",
        )
    };
    Error::Disagreement {
        key: first.topic.key(),
        operation: first.operation.to_string(),
        views: pending.made().map(|(rank, call)| (rank, view(call))).collect(),
        remedy: remedy.to_owned(),
    }
}
