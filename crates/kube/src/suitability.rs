//! The check whether a command suits its kind of job. A kind of job gives its processes a connection
//! ([`PeerSetup`]). The words of a command show the needs of its program ([`Need`]). A table decides every
//! pair of a connection and a need.

use ringpull_base::{Kind, Result, closest};

use crate::command::{example, is_mpirun, is_store, store_of, words_and_programs};
use crate::options::{JobKind, Request, wrong};

/// The connection that a job gives the processes of its command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PeerSetup {
    /// No connection: there is one process.
    One,
    /// No connection that a store can use: each process of a TFJob is alone.
    Apart,
    /// The ranks of one `mpirun`.
    Ranks,
    /// Servers, and workers that `ringpull launch` starts beside them.
    Launched,
    /// The variables `DMLC_*`: each pod has one process, which is a scheduler, a server or a worker.
    Roles,
}

/// A need of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Need {
    /// No other process, because the program's store is of one process.
    Itself,
    /// MPI ranks, which sum by allreduce.
    Ranks,
    /// Horovod's ranks. One process alone is enough.
    Horovod,
    /// A scheduler and servers.
    Servers,
    /// Both ranks and servers.
    Both,
    /// Ranks or servers. The program has a store, and the words do not show its kind.
    Store,
    /// A job of one pod, in which the program starts its processes itself.
    Starts,
}

/// A need, and the words that show it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Evidence {
    pub(super) need: Need,
    pub(super) words: String,
    /// True if the words can mean nothing else.
    pub(super) is_certain: bool,
}

/// The failure of a program in a kind of job that does not suit it, and the remedy.
pub(super) type Misfit = (&'static str, &'static str);

const TRAIN: &str = "write ringpull manifest train, in a pipeline distribution_type MPI: its ranks are one job";
const PS: &str = "write ringpull manifest ps, in a pipeline distribution_type PS: it starts a scheduler and servers";
const HYBRID: &str = "give the command dist_sync_mpi or dist_sync: only ringpull launch --hybrid starts dist_hybrid";

/// Returns the misfit of a job's connection and a program's need. Returns `None` if they suit each other.
pub(super) fn misfit(given: PeerSetup, need: Need) -> Option<Misfit> {
    use PeerSetup::{Apart, Launched, One, Ranks, Roles};
    Some(match (given, need) {
        (One, Need::Itself | Need::Horovod | Need::Store | Need::Starts)
        | (Ranks, Need::Ranks | Need::Horovod | Need::Store)
        | (Launched | Roles, Need::Servers | Need::Store) => return None,
        (One, Need::Ranks | Need::Servers | Need::Both) => {
            ("the job is one process", "give the command --kv-store local or device, or write another kind of job")
        }
        (Apart, Need::Itself) => ("each of its pods would train a separate model", TRAIN),
        (Apart, Need::Ranks | Need::Horovod) => {
            ("its pods have no mpirun, so each would train a separate model", TRAIN)
        }
        (Apart, Need::Servers) => ("its pods have no scheduler, so each would fail", PS),
        (Apart | Roles, Need::Both) => ("its pods have no mpirun, so each would fail", HYBRID),
        (Apart, Need::Store) => {
            ("its pods have neither mpirun nor a scheduler, so each would train a separate model or fail", TRAIN)
        }
        (Apart | Roles, Need::Starts) => ("each pod would start a job of its own, and train a separate model", TRAIN),
        (Ranks, Need::Itself) => (
            "every rank would train a separate model",
            "give the command --kv-store dist_sync_mpi, or write another kind of job",
        ),
        (Ranks, Need::Servers) => (
            "mpirun starts only workers, and each would fail without servers",
            "give the command --kv-store dist_sync_mpi, or write ringpull manifest ps, in a pipeline distribution_type PS",
        ),
        (Ranks | Launched, Need::Both) => ("its ranks are started without one half of the store", HYBRID),
        (Ranks | Launched, Need::Starts) => {
            ("the manifest starts the processes itself", "give only what one rank runs")
        }
        (Launched, Need::Itself | Need::Ranks | Need::Horovod) | (Roles, Need::Itself) => (
            "its servers would have nothing to do",
            "give the command --kv-store dist_sync or dist_async, or write another kind of job",
        ),
        (Roles, Need::Ranks | Need::Horovod) => {
            ("its pods have no mpirun, so each worker would train a separate model", TRAIN)
        }
    })
}

/// Returns the needs that the words of a command and these variables show.
pub(super) fn needs(command: &[String], env: &[(String, String)]) -> Vec<Evidence> {
    let (words, programs) = words_and_programs(command);
    let shown = |need, words: &str| Evidence { need, words: words.to_owned(), is_certain: true };
    let mut found = Vec::new();
    found.extend(starter(&words));
    let variables = env.iter().filter(|(name, _)| is_store(name)).map(|(name, value)| format!("{name}={value}"));
    let variables: Vec<String> = variables.collect();
    // A variable of the operator or the user has the scheduler's address.
    let mut names = words.iter().chain(env.iter().map(|(name, _)| name));
    let knows_servers = names.any(|name| name.starts_with("DMLC_PS_ROOT_URI"));
    let store = store_of(&words).or_else(|| store_of(&variables));
    if let Some((as_given, kind)) = &store {
        // The kind may be a shell variable that the job sets.
        let name = kind.strip_prefix('$').map(|name| name.trim_matches(['{', '}']));
        let value = name.and_then(|name| env.iter().rfind(|(other, _)| other == name));
        let kind = value.map_or(*kind, |(_, value)| value);
        // Other programs have variables with such names, too.
        let certain = |need| need != Need::Itself || as_given.starts_with('-');
        found.extend(need_of(kind).map(|need| Evidence { is_certain: certain(need), ..shown(need, as_given) }));
    } else {
        // A distributed kind as a word of its own, or as the value of an option with any name.
        let texts = programs.iter().flat_map(|text| text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_'));
        let mut values = words.iter().filter_map(|word| word.rsplit(['=', ':']).next()).chain(texts);
        let kind = values.find(|word| word.starts_with("dist_") && need_of(word).is_some());
        let creates = |kind: &str, quote: char| {
            programs.iter().any(|text| text.contains(&format!("create({quote}{kind}{quote}")))
        };
        found.extend(kind.and_then(|kind| {
            let is_certain = ['"', '\''].into_iter().any(|quote| creates(kind, quote));
            Some(Evidence { is_certain, ..shown(need_of(kind)?, kind) })
        }));
    }
    let module = |name: &str| {
        let is_it = |word: &str| word == name || word.starts_with(&format!("{name}."));
        words.windows(2).any(|pair| pair[0] == "-m" && is_it(&pair[1]))
            || words.iter().any(|word| word.strip_prefix("-m").is_some_and(is_it))
    };
    let imports = |package: &str| {
        let is_it = |line: &str| {
            let rest = ["import ", "from "].iter().find_map(|word| line.trim_start().strip_prefix(word));
            let rest = rest.and_then(|rest| rest.trim_start().strip_prefix(package));
            rest.is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_'))
        };
        programs.iter().any(|text| text.lines().any(is_it))
    };
    if module("ringpull.horovod") {
        found.push(shown(Need::Horovod, "-m ringpull.horovod"));
    } else if let Some(package) = ["horovod", "ringpull.horovod"].into_iter().find(|name| imports(name)) {
        found.push(shown(Need::Horovod, &format!("import {package}")));
    } else if module("ringpull.mxnet") && store.is_none() {
        found.push(shown(Need::Store, "-m ringpull.mxnet"));
    }
    found.retain(|one| !(knows_servers && one.need == Need::Servers));
    found
}

/// Returns the need of a kind of store, by MXNet's name or ours.
fn need_of(kind: &str) -> Option<Need> {
    // MXNet scripts prefix the kinds of our servers.
    let kind = kind.strip_prefix("ringpull_").unwrap_or(kind);
    match kind.parse() {
        Ok(Kind::Local | Kind::Device) => Some(Need::Itself),
        Ok(Kind::DistSyncMpi) => Some(Need::Ranks),
        Ok(Kind::DistHybrid) => Some(Need::Both),
        Ok(Kind::DistSync | Kind::DistAsync | Kind::DistSyncDevice | Kind::DistAsyncDevice) => Some(Need::Servers),
        Err(_) => match kind {
            "nccl" => Some(Need::Itself),
            "horovod" => Some(Need::Ranks),
            "p3" | "dist_sync_p3" | "p3store_dist" | "byteps" => Some(Need::Servers),
            _ => None,
        },
    }
}

/// Returns the first word that starts processes.
fn starter(words: &[String]) -> Option<Evidence> {
    let last = |word: &str| word.rsplit('/').next().unwrap_or("").to_owned();
    let is_program = |at: usize| {
        let before = at.checked_sub(1).map_or(";", |at| words[at].as_str());
        let is_assigned = before.contains('=') && !before.starts_with('-');
        [";", "--", "exec", "env", "time", "nohup", "then", "do"].contains(&before)
            || is_assigned
            || before.starts_with('-') && before.ends_with('c')
    };
    let starts = |pair: &[String]| match (last(&pair[0]).as_str(), pair[1].as_str()) {
        ("ringpull" | "accelerate", "launch") => Some(format!("{} launch", last(&pair[0]))),
        ("-m", module @ ("torch.distributed.run" | "torch.distributed.launch" | "ringpull.torchrun")) => {
            Some(format!("-m {module}"))
        }
        _ => None,
    };
    let single = |(at, word): (usize, &String)| {
        let name = last(word);
        let is_other = ["torchrun", "deepspeed", "horovodrun"].contains(&name.as_str()) && is_program(at);
        (is_mpirun(word) || is_other || word.ends_with("tools/launch.py")).then_some(name)
    };
    let name = words.iter().enumerate().find_map(single).or_else(|| words.windows(2).find_map(starts))?;
    // PyTorch's launchers can join those of other pods.
    let joins = |word: &String| ["rdzv", "nnodes", "master_addr", "master-addr"].iter().any(|it| word.contains(it));
    Some(Evidence { need: Need::Starts, words: name, is_certain: !words.iter().any(joins) })
}

/// Returns the needs that a job does not meet.
pub(super) fn misfits(given: PeerSetup, needs: &[Evidence]) -> Vec<(&Evidence, Misfit)> {
    let starts = needs.iter().find(|one| one.need == Need::Starts);
    let (given, needs): (_, Vec<&Evidence>) = match starts.filter(|_| given == PeerSetup::One) {
        // For a launcher, its own options decide if it starts servers.
        Some(one) if one.words.contains("launch") => return Vec::new(),
        Some(_) => (PeerSetup::Ranks, needs.iter().filter(|one| one.need != Need::Starts).collect()),
        None => (given, needs.iter().collect()),
    };
    needs.into_iter().filter_map(|one| Some((one, misfit(given, one.need)?))).collect()
}

impl Request {
    /// Returns the connection that this kind of job gives the processes of the command. Returns `None` if the
    /// job runs no command, or a command of its own.
    fn given(&self) -> Option<PeerSetup> {
        match self.kind {
            JobKind::Train | JobKind::Trainjob => Some(PeerSetup::Ranks),
            JobKind::Ps => Some(PeerSetup::Launched),
            JobKind::Mxjob => Some(PeerSetup::Roles),
            JobKind::Tfjob if u64::from(self.workers) + u64::from(self.servers) > 1 => Some(PeerSetup::Apart),
            JobKind::Job | JobKind::Tfjob => Some(PeerSetup::One),
            JobKind::Compare | JobKind::Claim | JobKind::NetworkPolicy => None,
        }
    }

    /// Returns an error if the command cannot work in this kind of job.
    pub(super) fn check_command(&self) -> Result<()> {
        let needs = needs(&self.command, &self.env);
        if self.kind == JobKind::Compare && needs.iter().any(|one| one.need == Need::Starts) {
            return wrong("compare starts the processes itself", "give only options of ringpull compare");
        }
        let Some(given) = self.given() else { return Ok(()) };
        let (words, _) = words_and_programs(&self.command);
        let unknown = |(as_given, kind): &(String, &str)| as_given.starts_with('-') && need_of(kind).is_none();
        if let Some((as_given, kind)) = store_of(&words).filter(unknown)
            && let Some(meant) = closest(kind, Kind::ALL.map(Kind::name))
        {
            return wrong(format!("{as_given} is no kind of store"), format!("did you mean {meant}?"));
        }
        match misfits(given, &needs).into_iter().find(|(one, _)| one.is_certain) {
            Some((one, (what, remedy))) => wrong(format!("{} with {}: {what}", self.kind.name(), one.words), remedy),
            None => Ok(()),
        }
    }

    /// Returns true if the command is ringpull's example `train` without a checkpoint.
    pub(super) fn loses_its_work(&self) -> bool {
        let ours = example(&self.command).is_some_and(|word| word.rsplit('/').next() == Some("train"));
        ours && !self.command.iter().any(|word| word.starts_with("--checkpoint"))
    }

    /// Returns a warning about the command, with a hint. The job may still be what the user wants.
    pub fn doubt(&self) -> Option<String> {
        let resumes = |word: &String| ["checkpoint", "resume", "restore"].iter().any(|part| word.contains(part));
        if self.min_workers.is_some() && !self.command.iter().any(resumes) {
            return Some(
                "--min-workers, and the command names no checkpoint: commits (ringpull.elastic) are in the workers' \
                 memory, so the loss of all of them starts the training anew\n  \
                 hint: let the command save its state on the claim too, less often, and go on from there"
                    .to_owned(),
            );
        }
        let given = self.given()?;
        let needs = needs(&self.command, &self.env);
        if let Some((one, (what, remedy))) = misfits(given, &needs).into_iter().next() {
            return Some(format!(
                "{} with {}, if the program takes that so: {what}\n  hint: {remedy}",
                self.kind.name(),
                one.words
            ));
        }
        let wanted = match given {
            PeerSetup::Ranks => "add --kv-store dist_sync_mpi to the command",
            PeerSetup::Launched | PeerSetup::Roles => "add --kv-store dist_sync to the command",
            PeerSetup::Apart => "write ringpull manifest train, and add --kv-store dist_sync_mpi to the command",
            PeerSetup::One => return None,
        };
        let example = example(&self.command)?;
        let (words, _) = words_and_programs(&self.command);
        store_of(&words).is_none().then(|| {
            format!("{example} without --kv-store uses local: every worker trains a separate model\n  hint: {wanted}")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(kind: JobKind, command: &[&str]) -> Request {
        Request { command: command.iter().map(|word| (*word).to_owned()).collect(), ..Request::new(kind) }
    }

    fn words(command: &str) -> Vec<&str> {
        command.split(' ').collect()
    }

    /// The error of a command; else its warning with a mark before it; else an empty text.
    fn judged(request: &Request) -> String {
        let error = request.check().err().map(|error| error.to_string());
        let doubt = || request.doubt().map_or_else(String::new, |doubt| format!("warning: {doubt}"));
        error.unwrap_or_else(doubt)
    }

    #[test]
    fn an_example_without_a_kind_of_store_is_warned_about() {
        let doubt = |kind, command: &str| request(kind, &words(command)).doubt();
        for (kind, wanted) in [
            (JobKind::Train, "dist_sync_mpi"),
            (JobKind::Trainjob, "dist_sync_mpi"),
            (JobKind::Ps, "dist_sync"),
            (JobKind::Tfjob, "dist_sync_mpi"),
        ] {
            for command in ["train --data /train", "/opt/bin/train", "python3 examples/mxnet/train.py"] {
                let text = doubt(kind, command).unwrap();
                assert!(text.ends_with(&format!("add --kv-store {wanted} to the command")), "{text}");
            }
        }
        assert_eq!(doubt(JobKind::Job, "train"), None);
        for command in [
            "train --kv-store dist_sync_mpi",
            "train --kv-store=dist_sync_mpi",
            "python3 train.py",
            "python3 cli.py train",
            "python3 -m tool train",
            "python3 tool.py --data /train --val /data/train",
        ] {
            assert_eq!(doubt(JobKind::Train, command), None, "{command}");
        }
    }

    /// A row for each program. The columns are these kinds of job: train or trainjob, ps, mxjob, tfjob, job.
    /// `x` is an error, `?` a warning, `-` neither.
    const TABLE: [(&str, &str); 43] = [
        ("python3 train.py", "-----"),
        ("python3 train.py --epochs 3 --data /train/dist_sync", "-----"),
        ("python3 train.py --kv-store local", "xxxx-"),
        ("python3 train.py --kv-store=device", "xxxx-"),
        ("python3 train.py --kvstore nccl", "xxxx-"),
        ("python3 train.py --kv-store dist_sync_mpi", "-xxxx"),
        ("python3 train.py --kv-store=dist_sync_mpi", "-xxxx"),
        ("python3 train.py --kvstore dist_sync_mpi", "-xxxx"),
        ("python3 train.py --kv_store=dist_sync_mpi", "-xxxx"),
        ("python3 train.py -kvstore dist_sync_mpi", "-xxxx"),
        ("python3 train.py trainer.kvstore=dist_sync_mpi", "-xxxx"),
        ("env KV_STORE=dist_sync_mpi python3 train.py", "-xxxx"),
        ("KVSTORE=dist_sync_mpi python3 train.py", "-xxxx"),
        ("python3 train.py --kvstore horovod", "-xxxx"),
        ("python3 train.py --kv-store dist_sync", "x--xx"),
        ("python3 train.py --kv-store dist_async", "x--xx"),
        ("python3 train.py --kv-store dist", "x--xx"),
        ("python3 train.py --kv-store=dist_device_sync", "x--xx"),
        ("python3 train.py --kv-store dist_async_device", "x--xx"),
        ("python3 train.py --kv-store ringpull_dist_sync", "x--xx"),
        ("python3 train.py --kv-store dist_hybrid", "xxxxx"),
        ("python3 train.py --kv-store $KIND", "-----"),
        ("python3 train.py --kv-store dist_snyc", "xxxxx"),
        ("env DMLC_PS_ROOT_URI=10.0.0.1 python3 train.py --kv-store dist_sync", "-----"),
        ("python3 train.py dist_sync_mpi", "-????"),
        ("python3 train.py --mode=dist_sync", "?--??"),
        ("python3 -m ringpull.mxnet train.py", "---x-"),
        ("python3 -m ringpull.mxnet train.py --kv-store dist_sync", "x--xx"),
        ("python3 -m ringpull.horovod train.py", "-xxx-"),
        ("python3 -mringpull.horovod train.py", "-xxx-"),
        ("mpirun -n 2 python3 train.py --kv-store dist_sync_mpi", "xxxx-"),
        ("mpirun -n 2 python3 train.py --kv-store local", "xxxxx"),
        ("horovodrun -np 2 python3 train.py", "xxxx-"),
        ("ringpull launch -n 2 -s 1 -- python3 train.py --kv-store dist_sync", "xxxx-"),
        ("python3 tools/launch.py -n 2 -s 1 python3 train.py --kv-store dist_sync", "xxxx-"),
        ("python3 launch.py --epochs 3", "-----"),
        ("python3 train.py --strategy deepspeed", "-----"),
        ("env KV_STORE=local python3 train.py", "????-"),
        ("env KV_STORE=redis python3 train.py", "-----"),
        ("torchrun --nproc-per-node 2 train.py", "xxxx-"),
        ("python3 -m ringpull.torchrun --nproc-per-node 2 train.py", "xxxx-"),
        ("horovodrun -np 2 python3 train.py", "xxxx-"),
        ("torchrun --nnodes 2 --rdzv-endpoint a:1 train.py", "????-"),
    ];

    #[test]
    fn every_pair_of_program_and_kind_of_job_is_decided() {
        let kinds = [JobKind::Train, JobKind::Ps, JobKind::Mxjob, JobKind::Tfjob, JobKind::Job];
        let mark = |request: &Request| match judged(request) {
            text if text.is_empty() => '-',
            text if text.starts_with("warning: ") => '?',
            _ => 'x',
        };
        for (command, expected) in TABLE {
            let script = format!("cd /train && exec {command}");
            for (spelling, command) in [("words", words(command)), ("script", vec!["sh", "-ec", &script])] {
                let found: String = kinds.iter().map(|kind| mark(&request(*kind, &command))).collect();
                assert_eq!(found, expected, "{spelling}: {command:?}");
                assert_eq!(mark(&request(JobKind::Trainjob, &command)), found.chars().next().unwrap(), "{command:?}");
                // A TFJob with a single process is not several separate models.
                let single = Request { workers: 1, ..request(JobKind::Tfjob, &command) };
                assert_eq!(mark(&single), found.chars().last().unwrap(), "{command:?}");
            }
        }
    }

    #[test]
    fn a_misfit_names_the_words_and_the_remedy() {
        for (kind, command, expected) in [
            (
                JobKind::Tfjob,
                "python3 a.py --kv-store dist_sync_mpi",
                ["--kv-store dist_sync_mpi: its pods have no mpirun", "distribution_type MPI"],
            ),
            (
                JobKind::Tfjob,
                "python3 a.py --kvstore=dist_async",
                ["tfjob with --kvstore=dist_async", "distribution_type PS"],
            ),
            (
                JobKind::Tfjob,
                "python3 -m ringpull.horovod a.py",
                ["with -m ringpull.horovod", "ringpull manifest train"],
            ),
            (
                JobKind::Train,
                "python3 a.py --kv-store local",
                ["every rank would train a separate model", "--kv-store dist_sync_mpi"],
            ),
            (JobKind::Train, "mpirun -n 2 a", ["train with mpirun", "only what one rank runs"]),
            (JobKind::Job, "python3 a.py --kv-store dist_sync", ["the job is one process", "local or device"]),
            (JobKind::Ps, "python3 a.py --kv-store dist_sync_mpi", ["nothing to do", "dist_sync or dist_async"]),
            (
                JobKind::Train,
                "python3 a.py --kv-store dist_snyc",
                ["--kv-store dist_snyc is no kind", "did you mean dist_sync?"],
            ),
        ] {
            let error = judged(&request(kind, &words(command)));
            let (what, hint) = error.split_once("hint: ").unwrap_or((&error, ""));
            assert!(what.contains(expected[0]) && hint.contains(expected[1]), "{kind:?} {command}: {error}");
        }
        // The program has the variables of the job.
        let env = [("MXNET_KVSTORE".to_owned(), "dist_sync_mpi".to_owned())].into();
        let error = judged(&Request { env, ..request(JobKind::Tfjob, &["python3", "a.py"]) });
        assert!(error.contains("tfjob with MXNET_KVSTORE=dist_sync_mpi"), "{error}");
        let env = [("KIND".to_owned(), "dist_async".to_owned())].into();
        let error =
            judged(&Request { env, ..request(JobKind::Tfjob, &["sh", "-c", "python3 a.py --kv-store ${KIND}"]) });
        assert!(error.contains("with --kv-store ${KIND}: its pods have no scheduler"), "{error}");
        let env = [("MXNET_KVSTORE_BIGARRAY_BOUND".to_owned(), "10".to_owned())].into();
        assert_eq!(judged(&Request { env, ..request(JobKind::Tfjob, &["python3", "a.py"]) }), "");
    }

    #[test]
    fn the_text_of_a_program_shows_what_it_imports() {
        let shell =
            "program_path=$(mktemp)\nprintf \"%s\" \"$0\" > \"$program_path\"\npython3 -u \"$program_path\" \"$@\"\n";
        let of = |kind, text: &str| judged(&request(kind, &["sh", "-ec", shell, text, "--epochs", "3"]));
        let cell = "def train():\n    # mpirun -np 2 starts it\n    import horovod.tensorflow.keras as hvd\n    hvd.init()\n\ntrain()\n";
        assert!(of(JobKind::Tfjob, cell).contains("tfjob with import horovod: its pods have no mpirun"));
        assert!(of(JobKind::Mxjob, cell).contains("mxjob with import horovod"));
        assert_eq!((of(JobKind::Train, cell), of(JobKind::Job, cell)), (String::new(), String::new()));
        let ours = "import ringpull.horovod.torch as hvd\nhvd.init()\n";
        assert!(of(JobKind::Tfjob, ours).contains("import ringpull.horovod"));
        let store = "import ringpull\nstore = ringpull.create('dist_sync_mpi')\n";
        assert!(of(JobKind::Tfjob, store).starts_with("tfjob with dist_sync_mpi: its pods have no mpirun"));
        assert_eq!(of(JobKind::Train, store), "");
        let other = "import mxnet as mx\nkinds = ['dist_sync', 'local']\n";
        assert!(of(JobKind::Tfjob, other).starts_with("warning: tfjob with dist_sync, if"));
        for other in
            ["import horovod_tools\nprint(1)\n", "import tensorflow\ntf.distribute.ParameterServerStrategy()\n"]
        {
            assert_eq!(of(JobKind::Tfjob, other), "");
        }
        let python = judged(&request(JobKind::Tfjob, &["python3", "-u", "-c", "import horovod.torch"]));
        assert!(python.contains("import horovod"), "{python}");
    }
}
