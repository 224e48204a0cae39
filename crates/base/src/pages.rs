//! The pages of the book about this crate: every error, made from the sources, and every variable.
//!
//! A new variant of [`Error`] does not compile until [`advice`] has advice for its reader, and the test fails
//! until [`examples`] has an example.

#[path = "../../../tests/committed/mod.rs"]
mod committed;

use std::fmt::Write as _;

use crate::config::alike::alike_variables;
use crate::config::listed::variables;
use crate::{Error, Key, Kind};

/// Returns advice about an error, beyond the hint in its text.
fn advice(error: &Error) -> &'static str {
    match error {
        Error::UnknownKind { .. } => {
            "Correct the name where the program creates its store. Names are exact: `dist_sync_mpi`, and neither `Dist_Sync_MPI` nor `dist-sync-mpi`."
        }
        Error::KindUnavailable { .. } => {
            "Do what the hint says, or choose another kind. `ringpull info` shows what this build and this machine have; `ringpull doctor` shows what would stop a job from running."
        }
        Error::Unsupported { .. } => {
            "Use another kind of store, or leave the call out. A program can check with `store.is_capable(...)` beforehand. [Kinds of store](kinds.md) has what each kind can do."
        }
        Error::MixedKeyTypes { .. } => "Name all keys of a store by integers, or all by strings.",
        Error::NotInitialized { .. } => {
            "Call `init` or `broadcast` for the key on every rank before its first push or pull. Check that the key in the error is the one that the program means."
        }
        Error::AlreadyInitialized { .. } => {
            "Initialise each key once. A second model in one program needs other keys or another store. To change a value, push to it."
        }
        Error::ShapeMismatch { .. } => {
            "Look at the tensor that the program gives on that rank. Most often it has a batch dimension, or it is the tensor of another layer."
        }
        Error::DtypeMismatch { .. } => {
            "Convert the gradient to the key's element type, or initialise the key with the gradient's."
        }
        Error::Disagreement { .. } => {
            "Compare the ranks' values, which the error lists. Most often the ranks run different versions of a script, or build their models from different files."
        }
        Error::InvalidArgument { .. } => "Correct the argument. Nothing has changed, so the store can be used further.",
        Error::Stalled { .. } => {
            "Find out what the ranks in the error do instead; their processes are alive. If a rank may evaluate, save or load for longer than `RINGPULL_TIMEOUT`, raise that limit on every rank. If a rank ran out of data, give all ranks as many steps, or call `store.join()`."
        }
        Error::Deadlock { .. } => {
            "Call every key of a step before waiting for one of them, or wait in the same order on every rank. The error shows what each rank waits for and, from Python, at which line."
        }
        Error::Finished { .. } => {
            "Give every rank the same number of steps, or let those without data call `store.join()`. If the text contains an error of that rank, fix that error first. The rank's own output shows where in its program it happened."
        }
        Error::PeerLost { .. } => {
            "Look at the output of that process, and at its host: `dmesg` shows whether the kernel killed the process because memory ran out. Then start the job again from its last checkpoint. If hosts cannot reach each other, `ringpull doctor -H hosts` names the link."
        }
        Error::Stopped {} => "Look for the error that another call, or another rank, has reported: it is the cause.",
        Error::ThreadEnded { .. } => {
            "Look at what the process printed before. This is a fault of ringpull, or of a library under it: please report it with that output."
        }
        Error::Incomplete { .. } => {
            "See which processes are missing: their launcher's output says why. `ringpull doctor` checks ports, names and secrets between hosts."
        }
        Error::JobMismatch { .. } => {
            "Start every process of the job in one way: by one `ringpull launch` or one `mpirun`, with the same variables. Two jobs on one host need ports of their own, which `ringpull launch` chooses."
        }
        Error::LimitExceeded { .. } => {
            "Do what the hint says. The limits are far above what a job of training needs, so look first whether a rank or a loop makes more calls than it should."
        }
        Error::OutOfMemory { .. } => {
            "Check the length first: a wrong shape can ask for any amount. If the length is right, the process, its container or its host has no memory left. The store still works, for example to save a checkpoint."
        }
        Error::Elsewhere { .. } => {
            "Read the message of that process, which has the cause and the hint. `ringpull launch` begins each line of output with the name of its process."
        }
        Error::Bug { .. } => {
            "Please report it, with the whole output of the job and the versions that `ringpull info` prints. Starting again from a checkpoint may help meanwhile."
        }
        Error::Protocol { .. } => {
            "Install the same version of ringpull on every host, and give all processes of a job the same settings. If another program connects to the port, choose another port."
        }
        Error::Library { .. } => {
            "Look up the code in the documentation of that library. `ringpull doctor` shows which MPI, CUDA and NCCL a process finds."
        }
        Error::Io { .. } => "Check the path, its owner and the space on its disk, on the host where the process runs.",
        Error::NotFinite { .. } => {
            "The value was made on that rank, for that key. Look at the loss, the learning rate and the batch of that rank."
        }
        Error::ReplicasDiffer { .. } => {
            "Make the updater compute the same on every rank: without random numbers of its own, without a clock, and in the same order. If it does so already, test the memory of the host. Then restart from a checkpoint that is older than that update."
        }
        Error::UpdaterFailed { .. } => {
            "The rank has printed the traceback of the updater. An updater changes the value that it is given; it may not call stores."
        }
        Error::Environment { .. } => {
            "Correct the variable, or unset it. [Variables](variables.md) lists them with their defaults."
        }
        Error::Interrupted {} => {
            "If the signal was intended, do nothing. The operation goes on, and you can wait for it again."
        }
        Error::Inherited { .. } => {
            "Create the store in the rank itself, and start children only for work that needs no store. [Processes](../how-to/python.md#processes) says what a child may do, and how to start a child that has no place in the job."
        }
        Error::Forked { .. } => {
            "Create the store in the process that uses it. Children that need no store, such as data loaders, may be started in any way, also by `fork`. A child that is started by `spawn` or as another program has no place in the job either: see [Processes](../how-to/python.md#processes)."
        }
    }
}

/// One of each, as a job prints it.
fn examples() -> Vec<Error> {
    let text = str::to_owned;
    let (key, w) = (Key::from("fc1"), Key::from("w"));
    let lost = "its process ended (signal 9)";
    vec![
        "dist_snyc".parse::<Kind>().expect_err("a slip"),
        Error::KindUnavailable {
            kind: text("dist_sync_mpi"),
            reason: text("no library of MPI was found"),
            remedy: text("install Open MPI or MPICH, or choose dist_sync"),
        },
        Error::Unsupported {
            kind: text("local"),
            operation: text("set_gradient_compression"),
            reason: text("a store of one process sends no gradients"),
        },
        Error::MixedKeyTypes { key: Key::from(3), first: w.clone(), rank: 0 },
        Error::NotInitialized { key: key.clone(), operation: text("push"), rank: 0 },
        Error::AlreadyInitialized { key: key.clone(), rank: 0 },
        Error::ShapeMismatch {
            key: key.clone(),
            operation: text("push"),
            rank: 1,
            expected: vec![128, 10],
            got: vec![64, 128, 10],
        },
        Error::DtypeMismatch {
            key: key.clone(),
            operation: text("push"),
            rank: 1,
            expected: text("f32"),
            got: text("f64"),
        },
        Error::Disagreement {
            key: key.clone(),
            operation: text("init"),
            views: vec![(0, text("[128, 10] f32")), (1, text("[128, 20] f32"))],
            remedy: text(crate::INIT_ALIKE),
        },
        Error::argument("push of key \"fc1\": the list of values is empty", "give at least one value"),
        Error::Stalled {
            operation: text("push"),
            key: key.clone(),
            rank: 0,
            missing: vec![1],
            waited_s: 1800,
            why: String::new(),
        },
        Error::Deadlock {
            waits: vec![
                (0, text(" at train.py:31 for pushpull of key \"a\", which rank(s) [1] have not called")),
                (1, text(" at train.py:33 for pushpull of key \"b\", which rank(s) [0] have not called")),
            ],
        },
        Error::Finished {
            peer: text("rank 3 (pid 71 on h4)"),
            ranks: vec![3],
            operation: text("push of key \"fc1\""),
            rank: 0,
            why: String::new(),
        },
        Error::PeerLost {
            peer: text("rank 3 (pid 71 on h4)"),
            ranks: vec![3],
            cause: text(lost),
            operation: text("push of key \"fc1\""),
            rank: Some(0),
        },
        Error::Stopped {},
        Error::ThreadEnded { thread: text("the communication thread"), rank: Some(1) },
        Error::Incomplete {
            what: text("3 of 4 workers have come after 1820 s"),
            remedy: text("see why the others did not start"),
        },
        Error::job_mismatch(
            "the workers created stores of kinds dist_sync and dist_async",
            "create the same kind of store on every worker",
        ),
        Error::limit(
            "rank 1 is 65536 calls of set_optimizer ahead of another rank",
            "call set_optimizer at the same step on every rank",
        ),
        Error::OutOfMemory { what: text("an array"), len_bytes: 1 << 47 },
        Error::on_rank(0, "rank 0 could not use the file that its RINGPULL_CLUSTER names"),
        Error::bug("a code of the wrong length arrived on rank 2"),
        Error::protocol(2, "10.55.0.3:4711", "a frame of 4 GiB"),
        Error::Library {
            library: text("Open MPI"),
            call: text("MPI_Isend"),
            code: 16,
            text: text("MPI_ERR_OTHER"),
            rank: Some(1),
        },
        Error::io("write", "/train/run.safetensors", &std::io::Error::from(std::io::ErrorKind::PermissionDenied)),
        Error::NotFinite { key: key.clone(), rank: 2, index: 17, what: text("NaN") },
        Error::ReplicasDiffer { key: key.clone(), update: 400, ranks: vec![2], others: vec![0, 1, 3] },
        Error::UpdaterFailed { key, rank: 2, cause: text("ZeroDivisionError: division by zero") },
        Error::Environment {
            variable: text("RINGPULL_ALGORITHM"),
            value: text("rign"),
            expected: text("one of auto, ring, direct, ..."),
            remedy: text("did you mean ring?"),
        },
        Error::Interrupted {},
        Error::Inherited {
            what: text("this process (pid 4712) is a child of rank 0, pid 4711 (python train.py)"),
            variables: text("OMPI_, PMIX_ or PRTE_"),
        },
        Error::Forked { what: text("this store"), pid: 4711 },
    ]
}

/// The variants with the first paragraph of their comments, in the order of the source.
fn described() -> Vec<(String, String)> {
    let source = include_str!("error.rs");
    let body = source.split_once("pub enum Error {").expect("the enum").1.split_once("\n}").expect("its end").0;
    let (mut found, mut comment) = (Vec::new(), String::new());
    for line in body.lines().filter_map(|line| line.strip_prefix("    ")) {
        if let Some(words) = line.strip_prefix("/// ") {
            comment = format!("{comment}{}{words}", if comment.is_empty() { "" } else { " " });
        } else if line.starts_with(|first: char| first.is_ascii_uppercase()) {
            let name = line.split(' ').next().expect("a name");
            found.push((name.to_owned(), std::mem::take(&mut comment)));
        }
    }
    found
}

/// The class of Python for a variant, with its bases: `StalledError(KVStoreError, TimeoutError)`.
fn python_class(variant: &str) -> String {
    let source =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../python/ringpull/errors.py")).unwrap();
    let after = |mark: &str| source.split_once(mark).map(|(_, rest)| rest.to_owned());
    let class =
        after(&format!("\n    \"{variant}\": ")).unwrap_or_else(|| panic!("errors.py has no class for {variant}"));
    let class = class.split(',').next().unwrap_or_default().to_owned();
    let bases = after(&format!("\nclass {class}(")).unwrap_or_else(|| panic!("errors.py has no {class}"));
    format!("{class}({})", bases.split(')').next().unwrap_or_default())
}

/// A paragraph in lines of at most 110 columns.
fn wrapped(paragraph: &str) -> String {
    let mut lines = vec![String::new()];
    for word in paragraph.split(' ') {
        let line = lines.last_mut().expect("at least one line");
        if line.is_empty() {
            line.push_str(word);
        } else if line.chars().count() + 1 + word.chars().count() <= 110 {
            line.push(' ');
            line.push_str(word);
        } else {
            lines.push(word.to_owned());
        }
    }
    lines.join("\n")
}

fn variant(error: &Error) -> String {
    let debugged = format!("{error:?}");
    debugged.split([' ', '{']).next().unwrap_or_default().to_owned()
}

#[test]
fn the_page_of_errors_has_each_with_its_text_and_what_to_do() {
    let (described, examples) = (described(), examples());
    let names: Vec<String> = described.iter().map(|(name, _)| name.clone()).collect();
    assert_eq!(names, examples.iter().map(variant).collect::<Vec<_>>(), "an example of each, in the order of error.rs");
    let mut page = String::from(
        "# Every error\n\n<!-- Made by `RENEW=1 cargo test -p ringpull-base pages`. -->\n\n\
         Each error of a store, with what it means and what to do. [When something goes wrong](../faults.md) says\n\
         how and when a job ends. In Rust they are variants of `ringpull::Error`, in Python classes of `ringpull`.\n\n\
         | error | in Python |\n| --- | --- |\n",
    );
    for name in &names {
        writeln!(page, "| [{name}](#{}) | `{}` |", name.to_lowercase(), python_class(name)).unwrap();
    }
    for ((name, comment), example) in described.iter().zip(&examples) {
        let (comment, advice) = (wrapped(comment), wrapped(advice(example)));
        write!(page, "\n## {name}\n\n{comment}\n\n```text\n{example}\n```\n\n{advice}\n").unwrap();
    }
    committed::keep("docs/reference/errors.md", &page);
}

#[test]
fn the_page_of_variables_has_a_section_for_each() {
    const ALIKE: &str = "If ranks of `dist_sync_mpi` have different values, every rank gets an error at the start";
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/variables.md");
    let page = std::fs::read_to_string(page).unwrap();
    let (_, sections) = page.split_once("\n## ").unwrap();
    let (sections, _) = sections.split_once("\n## Targets of the log").unwrap();
    let sections: Vec<(&str, &str)> =
        sections.split("\n## ").map(|section| section.split_once("\n\n").unwrap()).collect();
    let named: Vec<&str> = sections.iter().map(|(name, _)| *name).collect();
    assert_eq!(named, variables().collect::<Vec<_>>(), "one for each, in the order of config/listed.rs");
    for (name, meaning) in sections {
        let meaning = meaning.split_whitespace().collect::<Vec<_>>().join(" ");
        let is_alike = alike_variables().any(|alike| alike == name);
        assert_eq!(meaning.contains(ALIKE), is_alike, "{name}: {meaning}");
    }
}
