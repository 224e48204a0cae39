//! Checks that `mpiImplementation` is the MPI of the image and of the command's options. The operator sets
//! its variables for this MPI.

use super::Findings;
use super::job::MpiJobSpec;
use crate::command::mpirun_options;

/// Options that only Open MPI's `mpirun` knows.
const OPEN_MPI: &str = "--allow-run-as-root -allow-run-as-root --mca -mca --prtemca --oversubscribe -oversubscribe \
    --report-bindings --tag-output -x";

/// Options that only the `mpirun` of MPICH and of Intel MPI know.
const HYDRA: &str = "-genv -genvall -genvlist -genvnone -envall -envlist -ppn -perhost -iface -prepend-rank";

pub(crate) fn check(job: &MpiJobSpec, findings: &mut Findings) {
    let implementation = job.implementation;
    let image = job.launcher.container.get("image");
    if let Some(other) = image.text().and_then(named_in).filter(|other| *other != implementation) {
        findings.add(
            "mpi-image",
            &image,
            format!(
                "the image is named after {other}, which ignores what the operator sets for {implementation}: \
                 ranks find no hosts"
            ),
            format!("write mpiImplementation: {other}, or take an image with {implementation}"),
        );
        return;
    }
    let (theirs, others) = if implementation == "OpenMPI" { (HYDRA, "MPICH or Intel") } else { (OPEN_MPI, "OpenMPI") };
    let words = job.launcher.words();
    if let Some(option) =
        mpirun_options(&words).into_iter().flatten().find(|word| theirs.split(' ').any(|option| option == *word))
    {
        findings.add(
            "mpi-options",
            &job.launcher_words(),
            format!("{option} is an option of {others}, and mpiImplementation is {implementation}"),
            format!("write mpiImplementation: {others}, or the option as {implementation} has it"),
        );
    }
}

/// The implementation that the image's name or tag contains. Our image has Open MPI.
fn named_in(image: &str) -> Option<&'static str> {
    let name = image.rsplit('/').next()?.to_lowercase();
    let has = |parts: &[&str]| parts.iter().any(|part| name.contains(part));
    let is_operators = image.contains("mpioperator/");
    if has(&["mpich"]) {
        Some("MPICH")
    } else if has(&["openmpi", "open-mpi"]) || name.split([':', '@']).next() == Some("ringpull") {
        Some("OpenMPI")
    } else if has(&["intelmpi", "intel-mpi", "oneapi"]) || is_operators && has(&["intel"]) {
        Some("Intel")
    } else {
        None
    }
}
