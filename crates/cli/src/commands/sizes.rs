//! `ringpull compare --sizes`: compares our allreduce with others, for several sizes and numbers of ranks.

use std::path::{Path, PathBuf};

use ringpull_base::{DType, Error, Result};

use super::compare::{CompareArgs, command};
use super::{SUCCESS, Status, put, to_json_line, write};
use crate::launched::{Launched, Testbed};
use ringpull_harness::compare::Environment;
use ringpull_harness::progress::Progress;
use ringpull_harness::rounds::JobRunner as _;
use ringpull_harness::size::{elements, parse_sizes};
use ringpull_harness::sweep::{self, Sweep, SweepPlan, page};
use ringpull_harness::variant::{Peer, Variant};

/// Measures, and writes the times, and the page of all sweeps in the folder.
pub(super) fn run(args: &CompareArgs, sizes: &str, testbed: Testbed) -> Result<Status> {
    let sizes = parse_sizes(sizes)?;
    sizes.iter().try_for_each(|bytes| elements(*bytes, DType::F32).map(drop))?;
    let theirs = |peer: &Peer| Variant::allreduces().iter().any(|variant| variant.peer == Some(*peer));
    if let Some(peer) = args.peers.iter().find(|peer| !theirs(peer)) {
        return Err(Error::argument(
            format!("--sizes excludes the peer {peer}: it has no allreduce of its own"),
            "compare it without --sizes, or name others, such as mpi,gloo",
        ));
    }
    let mut launched = Launched::start(testbed, 0)?;
    let (most, own_hosts) = (launched.workers(), launched.has_own_hosts());
    let ranks = ranks(args, most)?;
    let plan =
        SweepPlan { place: launched.words(), link: args.link, ranks, sizes, rounds: args.rounds, iters: args.iters };
    let progress = Progress::start("looking for the contenders");
    let told = (Environment::survey(), command());
    let results = sweep::run(&mut launched, &contenders(args), &plan, own_hosts, told, &mut |_, step| {
        progress.part(step.done, step.planned, step.words);
    });
    drop(progress);
    let interrupted = launched.interrupted();
    drop(launched);
    let name = if own_hosts { format!("hosts{most}-{}", args.link) } else { "local".to_owned() };
    write(&args.out.join(format!("{name}.json")), &to_json_line(&results)?)?;
    let page = page::render(&stored(&args.out)?);
    write(&args.out.join("README.md"), &page)?;
    put(&format!("{page}\n"));
    Ok(interrupted.map_or(SUCCESS, super::status_of_signal))
}

/// The numbers of ranks: those of --scaling, or all from 2 on.
fn ranks(args: &CompareArgs, most: usize) -> Result<Vec<usize>> {
    let mut ranks = super::compare::fewer_workers(args, most)?;
    if args.scaling.is_empty() {
        ranks.extend(2..=most);
    } else if args.scaling.contains(&most) {
        ranks.push(most);
    }
    Ok(ranks)
}

/// Our allreduce and the given peers, or all installed peers.
fn contenders(args: &CompareArgs) -> Vec<Variant> {
    let is_wanted = |peer: Peer| args.peers.is_empty() || args.peers.contains(&peer);
    let all = Variant::allreduces().into_iter();
    all.filter(|variant| match variant.peer {
        None => !variant.on_mpich || is_wanted(Peer::Mpich),
        Some(peer) => is_wanted(peer),
    })
    .collect()
}

/// The sweeps in the folder, sorted by the names of their files.
fn stored(folder: &Path) -> Result<Vec<Sweep>> {
    let failed = |cause: std::io::Error| Error::io("read the results in", folder.display(), &cause);
    let entries = std::fs::read_dir(folder).map_err(failed)?;
    let mut files: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "json"))
        .filter(|path| path.file_name().is_some_and(|name| name != "results.json"))
        .collect();
    files.sort();
    let read = |path: &PathBuf| {
        let failed = |cause: std::io::Error| Error::io("read", path.display(), &cause);
        serde_json::from_slice(&std::fs::read(path).map_err(failed)?)
            .map_err(|cause| failed(std::io::Error::other(cause)))
    };
    files.iter().map(read).collect()
}
