//! What to say of calls that are not alike.

use ringpull_base::{Error, INIT_ALIKE};

use crate::progress::agreement::Pending;
use crate::progress::messages::Call;

/// The error for an operation that two ranks have called differently.
pub(super) fn disagreement(pending: &Pending) -> Error {
    let (made, (_, first)) = (|| pending.made(), pending.first());
    let alike = |of: fn(&Call) -> &String| made().all(|(_, call)| of(call) == of(first));
    let (view, remedy): (fn(&Call) -> String, _) = if !alike(|call| &call.operation) {
        (|call| format!("{} of {}", call.operation, call.terms), "every rank must call the same operations on a key")
    } else if !alike(|call| &call.terms.words) && first.operation == "init" {
        (|call| call.terms.to_string(), INIT_ALIKE)
    } else if !alike(|call| &call.terms.words) || alike(|call| &call.terms.how) {
        (
            |call| format!("{} of {}", call.operation, call.terms),
            "every rank must use the same shapes, dtypes, optimizer and gradient compression for a key",
        )
    } else {
        (
            |call| format!("sums {}", call.terms.how),
            "give every rank the same RINGPULL_ALGORITHM and RINGPULL_SEGMENT, or the same Config, and RINGPULL_DEVICES to all or to none",
        )
    };
    Error::Disagreement {
        key: first.topic.key(),
        operation: first.operation.clone(),
        views: made().map(|(rank, call)| (rank, view(call))).collect(),
        remedy: remedy.to_owned(),
    }
}
