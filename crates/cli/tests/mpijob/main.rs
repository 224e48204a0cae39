//! MPIJobs on this machine, without Kubernetes: pods as namespaces, with the image's files, the key and the hostfile as
//! the operator and the kubelet lay them. `scripts/test --all` runs the long ones too.
//!
//! `RINGPULL_IMAGE_ROOT` names the root file system of an image built from `mpijob/Dockerfile`; without it the image's
//! files are laid over this machine's own root file system.

mod cases;
mod operator;
mod pod;

use std::path::Path;
use std::time::Duration;

use ringpull_base::config::FASHION_MNIST;

use self::operator::Trouble;
use self::pod::Image;

/// The image, or nothing where pods cannot be had, which is said.
fn image() -> Option<Image> {
    let lacks = pod::lacks().or_else(|| {
        (!Path::new(FASHION_MNIST).exists()).then(|| "the package dataset-fashion-mnist is not installed".to_owned())
    });
    if let Some(lacks) = lacks {
        println!("skipped: {lacks}");
        return None;
    }
    Some(match std::env::var("RINGPULL_IMAGE_ROOT") {
        Ok(root) => Image::of_folder(&root),
        Err(_) => Image::over_this_machine(),
    })
}

const CALM: Trouble = Trouble { workers_late: None, names_late: None };

#[test]
fn an_mpijob_of_four_workers_trains_as_a_plain_mpirun_of_four_ranks() {
    let Some(image) = image() else { return };
    cases::trains_alike("a", &image, &["--workers", "4"], 4, 4, CALM);
}

#[test]
#[ignore = "long: scripts/test --all"]
fn uid_1000_trains_with_every_capability_dropped() {
    let Some(image) = image() else { return };
    cases::trains_alike("b", &image, &["--workers", "2", "--non-root"], 2, 2, CALM);
}

#[test]
#[ignore = "long: scripts/test --all"]
fn two_slots_in_each_of_two_workers_are_four_ranks_on_two_hosts() {
    let Some(image) = image() else { return };
    cases::trains_alike("c", &image, &["--workers", "2", "--slots", "2"], 2, 4, CALM);
}

#[test]
#[ignore = "long: scripts/test --all"]
fn a_launcher_that_works_holds_the_first_ranks() {
    let Some(image) = image() else { return };
    cases::trains_alike("d", &image, &["--workers", "2", "--launcher-works"], 2, 2, CALM);
    cases::trains_alike("e", &image, &["--workers", "2", "--launcher-works", "--non-root"], 2, 2, CALM);
}

#[test]
#[ignore = "long: scripts/test --all"]
fn workers_that_come_six_seconds_late_are_waited_for() {
    let Some(image) = image() else { return };
    let late = Trouble { workers_late: Some(Duration::from_secs(6)), names_late: None };
    cases::trains_alike("f", &image, &["--workers", "2"], 2, 2, late);
    cases::trains_alike("g", &image, &["--workers", "2", "--non-root"], 2, 2, late);
}

#[test]
#[ignore = "long: scripts/test --all"]
fn names_that_come_three_seconds_late_are_waited_for() {
    let Some(image) = image() else { return };
    let late = Trouble { workers_late: None, names_late: Some(Duration::from_secs(3)) };
    cases::trains_alike("h", &image, &["--workers", "2"], 2, 2, late);
}

#[test]
#[ignore = "long: scripts/test --all"]
fn a_lost_worker_ends_the_job_and_the_next_start_loses_nothing() {
    let Some(image) = image() else { return };
    cases::loses_a_worker("i", &image);
}

#[test]
#[ignore = "long: scripts/test --all"]
fn with_fewer_workers_allowed_the_others_go_on() {
    let Some(image) = image() else { return };
    cases::goes_on_with_fewer("j", &image);
}

#[test]
#[ignore = "long: scripts/test --all"]
fn a_worker_that_never_comes_is_named_and_nothing_runs() {
    let Some(image) = image() else { return };
    cases::names_the_missing("k", &image);
}

#[test]
#[ignore = "long: scripts/test --all"]
fn ranks_that_would_all_land_on_the_launcher_are_refused() {
    let Some(image) = image() else { return };
    cases::refuses_ranks_elsewhere("l", &image);
}

#[test]
#[ignore = "long: scripts/test --all"]
fn servers_and_the_comparison_run_on_the_pods_of_one_mpijob() {
    let Some(image) = image() else { return };
    cases::serves_and_compares("m", &image);
}
