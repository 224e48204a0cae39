//! Tests of nodes without the secret of their job's other nodes. `tests/strangers` tests strangers.

use crate::job::{self, Job};

const SECRET: Option<&str> = Some("what only the nodes of this job know");

#[test]
fn a_node_without_the_secret_or_with_another_is_one_error_on_both_ends() {
    for (of_worker, says, scheduler_says) in [
        (None, "this node has none", "does not know the job's secret"),
        (Some("a secret of another job"), "another secret", "it has another secret"),
    ] {
        let mut job = Job::empty(job::free_port());
        job.secret = SECRET;
        job.add("sums", "scheduler", None, 1, 1);
        job.secret = of_worker;
        job.add("sums", "worker", Some(0), 1, 1);
        job.wait_for("worker 0", says);
        job.wait_for("scheduler", scheduler_says);
        job.fails_slowly(&["RINGPULL_SECRET"]);
    }
    let mut job = Job::empty(job::free_port());
    job.add("sums", "scheduler", None, 1, 1);
    job.secret = SECRET;
    job.add("sums", "worker", Some(0), 1, 1);
    job.wait_for("worker 0", "it has no secret, and this node has one");
    job.wait_for("scheduler", "it has a secret and this node has none");
    job.fails_slowly(&["RINGPULL_SECRET"]);
}
