//! The changes of a TrainJob to its runtime. Only the containers `node` of the jobs with the trainer's label
//! get the trainer's image, words and variables.

use super::Findings;
use super::job::is_trainer;
use super::node::Node;

/// The trainer's fields that replace the fields of a container.
const FIELDS: [&str; 4] = ["image", "command", "args", "env"];

/// Checks a TrainJob of this runtime.
pub(super) fn check(trainjob: &Node, runtime: &Node, findings: &mut Findings) {
    let trainer = trainjob.down("spec.trainer");
    let given = || FIELDS.into_iter().map(|field| trainer.get(field)).find(Node::is_there);
    let jobs = runtime.down("spec.template.spec.replicatedJobs").items();
    let role = |name: &str| jobs.iter().find(|job| job.get("name").text() == Some(name));
    let gets = |name: &str| role(name).is_some_and(|job| is_trainer(job.value));
    let label = "trainer.kubeflow.org/trainjob-ancestor-step: trainer";
    if let Some(at) = given().filter(|_| !jobs.is_empty() && !jobs.iter().any(|job| is_trainer(job.value))) {
        findings.add(
            "trainer-ignored",
            &at,
            "no job of the runtime has the label of the trainer: image, command, args and env have no effect",
            format!("give the job of the runtime that trains, of MPI its launcher, template.metadata.labels {label}"),
        );
        return;
    }
    if !runtime.down("spec.mlPolicy.mpi").is_there() {
        return;
    }
    let words = ["command", "args"].into_iter().map(|field| trainer.get(field)).find(Node::is_there);
    if let Some(at) = words.filter(|_| gets("node")) {
        findings.add(
            "no-sshd",
            &at,
            "the runtime's job node has the label of the trainer, so this replaces its sshd: nothing answers the launcher's ssh",
            format!("label only the launcher of the runtime with {label}"),
        );
    }
    let image = trainer.get("image");
    let own = |name: &str| {
        let containers = role(name)?.down("template.spec.template.spec.containers").items();
        containers.into_iter().find(|it| it.get("name").text() == Some("node"))?.get("image").text()
    };
    for (name, other) in [("node", "launcher"), ("launcher", "node")] {
        if image.is_there() && !gets(name) && gets(other) && own(name).is_some_and(|own| image.text() != Some(own)) {
            let what = format!(
                "this image reaches the {other} only; the {name} keeps {}: their MPI must be exactly the same version",
                own(name).unwrap_or("its own")
            );
            findings.add("two-images", &image, what, "give both jobs of the runtime this image");
        }
    }
}
