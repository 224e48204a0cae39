//! Who is measured in a sweep, and the jobs that measure them.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use ringpull_base::{Error, Result};

use super::{Job, Runner};
use crate::compare::launched::Launched;
use crate::compare::peers;
use crate::mode::Peer;
use crate::mpirun::Mpirun;
use crate::record::Record;

/// Somebody's allreduce.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Contender {
    /// Ours, with `auto`.
    Ours,
    /// The same over MPICH.
    OursOnMpich,
    /// Open MPI's `MPI_Allreduce`: its own choice, or one of its algorithms, numbered from 1 as its parameter
    /// `coll_tuned_allreduce_algorithm` does.
    OpenMpi(Option<u8>),
    /// MPICH's `MPI_Allreduce`, its own choice.
    Mpich,
    /// Gloo, as PyTorch ships it.
    Gloo,
    /// Horovod over MPI.
    Horovod,
}

/// Open MPI's names of its algorithms, in the order of their numbers.
const OPEN_MPI: [&str; 6] =
    ["basic linear", "nonoverlapping", "recursive doubling", "ring", "segmented ring", "Rabenseifner"];

impl Contender {
    /// Everybody.
    pub fn all() -> Vec<Contender> {
        let numbered = (1..=OPEN_MPI.len() as u8).map(|number| Contender::OpenMpi(Some(number)));
        let mut all = vec![Contender::Ours, Contender::OursOnMpich, Contender::OpenMpi(None)];
        all.extend(numbered);
        all.extend([Contender::Mpich, Contender::Gloo, Contender::Horovod]);
        all
    }

    /// The name in the words of a page.
    pub fn words(self) -> String {
        match self {
            Contender::Ours => "ringpull, auto".to_owned(),
            Contender::OursOnMpich => "ringpull on MPICH, auto".to_owned(),
            Contender::OpenMpi(None) => "Open MPI, its choice".to_owned(),
            Contender::OpenMpi(Some(number)) => format!("Open MPI, {}", OPEN_MPI[usize::from(number) - 1]),
            Contender::Mpich => "MPICH, its choice".to_owned(),
            Contender::Gloo => "gloo".to_owned(),
            Contender::Horovod => "Horovod".to_owned(),
        }
    }

    /// Whether it is this program, and no rival.
    pub fn is_ours(self) -> bool {
        matches!(self, Contender::Ours | Contender::OursOnMpich)
    }

    /// Whether its ranks are those of MPICH.
    fn is_on_mpich(self) -> bool {
        matches!(self, Contender::OursOnMpich | Contender::Mpich)
    }

    /// The environment of its ranks.
    fn env(self) -> Vec<(String, String)> {
        let Contender::OpenMpi(Some(number)) = self else { return Vec::new() };
        vec![
            ("OMPI_MCA_coll_tuned_use_dynamic_rules".to_owned(), "1".to_owned()),
            ("OMPI_MCA_coll_tuned_allreduce_algorithm".to_owned(), number.to_string()),
        ]
    }
}

impl fmt::Display for Contender {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Contender::Ours => out.pad("ours"),
            Contender::OursOnMpich => out.pad("ours:mpich"),
            Contender::OpenMpi(None) => out.pad("openmpi:default"),
            Contender::OpenMpi(Some(number)) => out.pad(&format!("openmpi:{number}")),
            Contender::Mpich => out.pad("mpich"),
            Contender::Gloo => out.pad("gloo"),
            Contender::Horovod => out.pad("horovod"),
        }
    }
}

impl FromStr for Contender {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let all = Contender::all();
        all.iter().copied().find(|contender| contender.to_string() == text).ok_or_else(|| {
            let names: Vec<String> = all.iter().map(ToString::to_string).collect();
            Error::argument(format!("unknown contender {text:?}"), format!("the contenders are {}", names.join(", ")))
        })
    }
}

/// The runner that starts real processes.
pub struct Processes {
    launched: Launched,
    mpirun: Mpirun,
    /// This program built with MPICH, and its `mpirun`.
    mpich: Option<(PathBuf, Mpirun)>,
}

impl Processes {
    /// Runs on `launched`'s hosts.
    pub fn new(launched: Launched, mpich: Option<(PathBuf, Mpirun)>) -> Result<Self> {
        Ok(Processes { launched, mpirun: Mpirun::find()?, mpich })
    }
}

impl Runner for Processes {
    fn missing(&mut self, contender: &Contender) -> Option<String> {
        match contender {
            contender if contender.is_on_mpich() && self.mpich.is_none() => Some(
                "scripts/setup --mpich, then scripts/bench builds with it and names the program with --mpich"
                    .to_owned(),
            ),
            Contender::Gloo => peers::missing(Peer::Gloo),
            Contender::Horovod => peers::missing(Peer::Horovod),
            _ => None,
        }
    }

    fn run(&mut self, contender: &Contender, job: &Job) -> Result<Vec<Record>> {
        let joined = |sizes: Vec<String>| sizes.join(",");
        let mut loops: Vec<String> = vec!["--iters".to_owned(), job.iters.to_string()];
        loops.extend(["--warmup".to_owned(), job.warmup.to_string(), "--rest".to_owned(), job.rest_ms.to_string()]);
        let bench = |program: PathBuf, algorithm: &str| {
            let sizes = joined(job.sizes.iter().map(ToString::to_string).collect());
            let fixed = ["bench", "allreduce", "--algorithm", algorithm, "--late", "0", "--format", "json", "--sizes"];
            let mut words = vec![OsString::from(program)];
            words.extend(fixed.map(OsString::from));
            words.push(sizes.into());
            words.extend(loops.iter().map(OsString::from));
            words
        };
        let peer = |peer: Peer| -> Result<Vec<OsString>> {
            let lens = joined(job.sizes.iter().map(|bytes| (bytes / 4).to_string()).collect());
            let mut words = peers::command(peer)?;
            words.extend(["--apart".to_owned(), "--lens".to_owned(), lens]);
            words.extend(loops.iter().cloned());
            Ok(words.into_iter().map(OsString::from).collect())
        };
        let mut mpirun = &self.mpirun;
        let command = match contender {
            Contender::Ours => bench(self.launched.program().to_owned(), "auto"),
            Contender::OpenMpi(_) => bench(self.launched.program().to_owned(), "native"),
            Contender::Mpich | Contender::OursOnMpich => {
                let (program, its_mpirun) =
                    self.mpich.as_ref().ok_or_else(|| Error::argument("there is no MPICH build", "give --mpich"))?;
                mpirun = its_mpirun;
                bench(program.clone(), if contender.is_ours() { "auto" } else { "native" })
            }
            Contender::Gloo => peer(Peer::Gloo)?,
            Contender::Horovod => peer(Peer::Horovod)?,
        };
        let printed = self.launched.mpi_job(mpirun, job.ranks, command, contender.env())?;
        let name = contender.to_string();
        if contender.is_on_mpich()
            && let Ok(records) = Record::parse_list(&name, &printed.text)
        {
            // All was measured and verified before MPI_Finalize, from which the MPICH 4.0 of Debian does not always come back.
            tracing::debug!(fault = ?printed.fault, "the job of MPICH ended after its records");
            return Ok(records);
        }
        Record::parse_list(&name, &printed.ended_well()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_contender_is_printed_as_it_is_read_and_has_words() {
        for contender in Contender::all() {
            assert_eq!(contender.to_string().parse(), Ok(contender));
            assert!(!contender.words().is_empty());
        }
        let error = "openmpi:7".parse::<Contender>().unwrap_err().to_string();
        assert!(error.contains("openmpi:6") && error.contains("gloo"), "{error}");
    }

    #[test]
    fn only_an_algorithm_by_number_is_set_by_hand() {
        let env = Contender::OpenMpi(Some(4)).env();
        assert!(
            ["use_dynamic_rules", "allreduce_algorithm"]
                .iter()
                .all(|part| env.iter().any(|(name, _)| name.ends_with(part)))
        );
        let numbered = |contender: &Contender| matches!(contender, Contender::OpenMpi(Some(_)));
        assert!(
            Contender::all()
                .iter()
                .filter(|contender| !numbered(contender))
                .all(|contender| contender.env().is_empty())
        );
        for (name, is_ours, is_on_mpich) in [("ours", true, false), ("ours:mpich", true, true), ("mpich", false, true)]
        {
            let contender: Contender = name.parse().unwrap();
            assert_eq!((contender.is_ours(), contender.is_on_mpich()), (is_ours, is_on_mpich));
        }
    }
}
