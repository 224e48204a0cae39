//! The processes of a job as one step of Slurm (`srun`) or as one job of Grid Engine (`qsub`).
//!
//! Slurm starts MPI ranks itself. For Grid Engine `mpirun` starts them, and finds the hosts by itself. In a
//! job with servers every process runs the same shell script: task 0 is the scheduler, the next tasks are the
//! servers, and the others are the workers. The tasks of Slurm connect to the launcher, which prints their
//! output and orders them to end, because `srun` itself would kill them at once. Grid Engine writes all
//! output into one file, so with it the first host puts a process's name before the process's lines. Task 0
//! writes the scheduler's address to a file that all hosts see. Beside this file is one with the job's
//! secret, which only this user can read: a batch system shows a job's command line to all users, and Grid
//! Engine shows its variables too.

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use ringpull_base::config::{self, Config, Role};
use ringpull_base::{Error, Result};
use rustix::process::Pid;
use tempfile::NamedTempFile;

use super::control::{Ending, RankControl, RankHosts};
use super::host::{quote, working_folder};
use super::{Sink, Spec, Variables, wrapper};
use crate::child;
use crate::mpirun::{Flavour, Mpirun, by_name_and_value};
use ringpull_harness::interrupt::Interrupt;
use ringpull_harness::text::several;
use ringpull_lab::ends::{MpirunEnd, code_of, of_mpirun};

/// The batch system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum BatchSystem {
    Slurm,
    /// Grid Engine, with the name of the parallel environment for the job's slots.
    Sge {
        environment: String,
    },
}

#[derive(Debug, Clone)]
pub(crate) struct BatchJob {
    pub batch: BatchSystem,
    /// The program. Without servers the job consists of MPI ranks.
    pub spec: Spec,
    /// True if each line of output begins with the name of the task or process that wrote it.
    pub is_tagged: bool,
}

/// The script of task `$1` of a job with servers. `$2` is the file with the address, `$3` is the number of
/// servers, and `$4` the number of workers.
const ROLES: &str = r#"task=$1 meet=$2 servers=$3 workers=$4
shift 4
export DMLC_NUM_SERVER=$servers DMLC_NUM_WORKER=$workers
if [ "$task" -eq 0 ]; then
  export DMLC_ROLE=scheduler
  while :; do
    port=$((10000 + $(od -An -N2 -tu2 /dev/urandom) % 22000))
    listening=$(printf ':%04X [0-9A-F]*:0000 0A' $port)
    grep -q "$listening" /proc/net/tcp /proc/net/tcp6 2>/dev/null || break
  done
  host=$(hostname -I 2>/dev/null | cut -d ' ' -f 1)
  (set -C; echo "${host:-$(hostname)} $port" >"$meet.new") && mv "$meet.new" "$meet" || {
    echo "error: the scheduler cannot write $meet
  hint: start the job in a folder of yours that all hosts see" >&2
    exit 1
  }
elif [ "$task" -le "$servers" ]; then
  export DMLC_ROLE=server DMLC_SERVER_ID=$((task - 1))
else
  export DMLC_ROLE=worker DMLC_WORKER_ID=$((task - 1 - servers))
fi
name="$DMLC_ROLE${DMLC_SERVER_ID:+ $DMLC_SERVER_ID}${DMLC_WORKER_ID:+ $DMLC_WORKER_ID}"
tries=0
until [ -s "$meet" ]; do
  tries=$((tries + 1))
  [ $tries -lt 600 ] || { echo "error: the scheduler has not written $meet within 60 s" >&2; exit 1; }
  sleep 0.1
done
read -r host port <"$meet"
export DMLC_PS_ROOT_URI=$host DMLC_PS_ROOT_PORT=$port"#;

impl BatchJob {
    /// Runs the job to its end and returns its exit code.
    pub(crate) fn run(&self) -> Result<i32> {
        let interrupt = Interrupt::watch()?;
        interrupt.watch_for_job()?;
        let folder = working_folder()?;
        // The file has a unique name. A name made of a process's number may exist already, from a launcher
        // that was killed.
        let meeting = put("", ".ringpull-meet-", &folder)?;
        let meet = meeting.path();
        let secret = config::secret_or_new()?;
        // Dropping these values removes the files.
        let file =
            if self.spec.servers == 0 { None } else { Some(put(secret.reveal(), ".ringpull-secret-", &folder)?) };
        let job = file.as_ref().map_or_else(|| self.clone(), |file| self.with_secret_in(file.path()));
        let script = match self.batch {
            BatchSystem::Slurm => None,
            BatchSystem::Sge { .. } => Some(put(&job.sge_script(meet), ".ringpull-job-", &folder)?),
        };
        if self.batch == BatchSystem::Slurm {
            let sink = if self.is_tagged { Sink::Tagged } else { Sink::Plain };
            let control = RankControl::listen(RankHosts::Anywhere, secret, sink, Box::new(|_| ()))?;
            let wrapper = control.words_before(&job.name())?;
            let words = job.words(meet, (process_manager(), &wrapper), None);
            let end = job.run_srun(&words, &control, &interrupt);
            return end;
        }
        let words = job.words(meet, ("", &[]), script.as_ref().map(NamedTempFile::path));
        let mut command = Command::new(&words[0]);
        if file.is_some() {
            command.env_remove(config::SECRET);
        }
        let mut child = start(&mut command, &words)?;
        let mut forward = interrupt.forward_to(Pid::from_child(&child));
        let (status, _) = child::wait(&mut child, "qsub", || {
            forward();
            interrupt.decline_for_job("Grid Engine");
            false
        })?;
        // After a signal qsub itself ends with 1.
        Ok(interrupt.signal().map_or(code_of(status), |signal| 128 + signal))
    }

    /// Runs `srun` to its end and returns the exit code. After a process has failed, the others have time to
    /// report which process they lost.
    fn run_srun(&self, words: &[OsString], control: &RankControl, interrupt: &Interrupt) -> Result<i32> {
        let mut command = Command::new(&words[0]);
        let names = [vec![config::SECRET], self.by_name()].concat();
        command.env(config::SECRET, control.secret.reveal());
        command.envs(exported(config::text(EXPORTED), &names).map(|chosen| (EXPORTED, chosen)));
        // `srun` has its own process group, so it gets no Ctrl-C, at which it would kill the tasks.
        let mut child = start(command.process_group(0), words)?;
        let mut ending = Ending::new(control, interrupt, Pid::from_child(&child));
        let grace = Config::from_env()?.silence() * 3 / 2;
        let (status, _) = child::wait(&mut child, "srun", || {
            ending.poll();
            if control.first_failure().is_some() || control.have_workers_succeeded(self.spec.workers) {
                ending.end_within(grace);
            }
            false
        })?;
        control.finish(interrupt);
        let code = code_of(status);
        if code != 0 && interrupt.signal().is_none() && !control.has_ranks() && config::text("SLURM_JOB_ID").is_some() {
            let tasks = self.tasks();
            eprintln!(
                "ringpull: srun has started none of the {tasks} tasks of this job{}\n  hint: if its own words above say \
                 that the allocation is too small, give sbatch or salloc --ntasks={tasks}",
                if self.spec.servers == 0 {
                    String::new()
                } else {
                    format!(
                        ": a scheduler, {}, {}",
                        several(self.spec.servers, "server"),
                        several(self.spec.workers, "worker")
                    )
                }
            );
        }
        let end = MpirunEnd {
            code: Some(code),
            interrupted: interrupt.signal(),
            was_ended: control.first_failure().is_some(),
            have_all_ended: control.have_all_ended(self.tasks()),
            have_workers_succeeded: control.have_workers_succeeded(self.spec.workers),
            first_failure: control.first_failure(),
        };
        Ok(of_mpirun(end).unwrap_or(code))
    }

    /// The name of a task, for [`wrapper`](super::wrapper).
    fn name(&self) -> String {
        if self.spec.servers == 0 { "rank".to_owned() } else { format!("role:{}", self.spec.servers) }
    }

    /// Returns this job with its secret in a file.
    fn with_secret_in(&self, file: &Path) -> Self {
        let named = (config::SECRET_FILE.to_owned(), file.display().to_string());
        let mut job = self.clone();
        job.spec.variables.env.insert(0, named);
        job
    }

    /// The number of processes that the job has.
    fn tasks(&self) -> usize {
        if self.spec.servers == 0 { self.spec.workers } else { 1 + self.spec.servers + self.spec.workers }
    }

    /// The command that submits the job and waits for it. Grid Engine damages words with quotes or line
    /// feeds, so its script is in a file.
    fn words(&self, meet: &Path, (manager, wrapper): (&str, &[OsString]), script: Option<&Path>) -> Vec<OsString> {
        let tasks = self.tasks();
        match &self.batch {
            BatchSystem::Slurm => {
                let manager = if self.spec.servers == 0 { manager } else { "none" };
                // Ranks of MPI wait for a lost rank for ever. Servers and workers do not.
                let ends = format!("--kill-on-bad-exit={}", u8::from(self.spec.servers == 0));
                let options = [ends, format!("--mpi={manager}"), "-n".to_owned(), tasks.to_string()];
                let mut words: Vec<OsString> = [OsString::from("srun")].into();
                words.extend(options.map(OsString::from));
                words.extend(wrapper.iter().cloned());
                if self.spec.servers == 0 {
                    words.extend(self.variables(Role::Worker));
                    words.extend(self.spec.command.iter().cloned());
                } else {
                    words.extend(["sh", "-c"].map(OsString::from));
                    words.push(self.script(meet, "$SLURM_PROCID").into());
                }
                words
            }
            BatchSystem::Sge { environment } => {
                let words = [
                    "qsub", "-sync", "y", "-N", "ringpull", "-cwd", "-V", "-j", "y", "-S", "/bin/sh", "-b", "y",
                    "-shell", "n", "-pe",
                ];
                let mut words: Vec<OsString> = words.map(OsString::from).into();
                words.extend([environment.into(), tasks.to_string().into(), "/bin/sh".into()]);
                words.extend(script.map(|script| script.as_os_str().to_owned()));
                words
            }
        }
    }

    /// The names of the variables that have the same values in this process's environment.
    fn by_name(&self) -> Vec<&str> {
        let Variables { env, env_server, env_worker } = &self.spec.variables;
        [env, env_server, env_worker].into_iter().flat_map(|env| by_name_and_value(env).0).collect()
    }

    /// `env NAME=VALUE...` for the other variables, if there are any.
    fn variables(&self, role: Role) -> Vec<OsString> {
        let all = self.spec.variables.of(role);
        let (_, given) = by_name_and_value(&all);
        let set: Vec<OsString> = given.into_iter().map(|(name, value)| format!("{name}={value}").into()).collect();
        if set.is_empty() { set } else { std::iter::once("env".into()).chain(set).collect() }
    }

    /// The shell script that runs the role of a task.
    pub(super) fn script(&self, meet: &Path, task: &str) -> String {
        let quoted = |words: &[OsString]| words.iter().map(|word| quote(word)).collect::<Vec<_>>().join(" ");
        let (server, worker) = (self.variables(Role::Server), self.variables(Role::Worker));
        let command = quoted(&self.spec.command);
        let run = format!(
            "if [ \"$DMLC_ROLE\" = worker ]; then exec {} {command}; else exec {} {command}; fi",
            quoted(&worker),
            quoted(&server)
        );
        let meet = quote(meet.as_os_str());
        format!("set -- {task} {meet} {} {}\n{ROLES}\n{run}", self.spec.servers, self.spec.workers)
    }

    /// The script that Grid Engine runs on the first host. It starts `mpirun`, or a `qrsh` for each process,
    /// which runs the same script again as its task.
    fn sge_script(&self, meet: &Path) -> String {
        let quoted = |words: &[OsString]| words.iter().map(|word| quote(word)).collect::<Vec<_>>().join(" ");
        if self.spec.servers == 0 {
            // `mpirun` passes on only the variables that these options name.
            let names = Mpirun::find().map(|mpirun| mpirun.naming(&self.by_name())).unwrap_or_default();
            let mpirun = quote(OsStr::new(&config::mpirun_program()));
            let variables = self.variables(Role::Worker);
            let words =
                [names.into_iter().map(OsString::from).collect(), vec!["-n".into(), self.tasks().to_string().into()]];
            let mut tag: Vec<OsString> = Vec::new();
            if self.is_tagged {
                // The wrapper cannot connect to this host from there, so it writes the names itself.
                tag.extend(wrapper::words_before("rank", &[], Sink::Tagged).unwrap_or_default());
            }
            let words = [&words.concat()[..], &tag, &variables, &self.spec.command].concat();
            return format!("exec {mpirun} {}", quoted(&words));
        }
        let role = self.script(meet, "$RINGPULL_TASK");
        // A qrsh ends with its program, so output that a filter on the other host wrote after that would be
        // lost. So this host puts the name before each line.
        let filter = if self.is_tagged { "sed -u \"s/^/[$name] /\"" } else { "cat" };
        // Each line of the file is `host slots queue processors`; a slot is a process.
        format!(
            "if [ -n \"${{RINGPULL_TASK:-}}\" ]; then\n{role}\nfi\n\
             task=0 pids= filters= pipes=$(mktemp -d) || exit 1\n\
             for host in $(awk '{{ for (i = 0; i < $2; i++) print $1 }}' \"$PE_HOSTFILE\"); do\n  \
             if [ $task -eq 0 ]; then name=scheduler; elif [ $task -le {servers} ]; then name=\"server $((task - 1))\"; \
             else name=\"worker $((task - 1 - {servers}))\"; fi\n  \
             mkfifo \"$pipes/$task\"\n  {filter} <\"$pipes/$task\" &\n  filters=\"$filters $!\"\n  \
             qrsh -inherit -nostdin -V \"$host\" env RINGPULL_TASK=$task /bin/sh \"$0\" >\"$pipes/$task\" 2>&1 &\n  \
             pids=\"$pids $!\" task=$((task + 1))\ndone\n\
             code=0\nfor pid in $pids; do wait $pid || code=$?; done\nwait $filters\nrm -r \"$pipes\"\nexit $code",
            servers = self.spec.servers,
        )
    }
}

/// Starts a command of the batch system.
fn start(command: &mut Command, words: &[OsString]) -> Result<Child> {
    command.args(&words[1..]).stdin(Stdio::null()).spawn().map_err(|cause| {
        Error::argument(
            format!("{} cannot be run: {cause}", words[0].to_string_lossy()),
            "run this on a host of the cluster, or choose another --launcher",
        )
    })
}

/// Writes a new file that only this user can read, in a folder that all hosts see.
fn put(text: &str, prefix: &str, folder: &Path) -> Result<NamedTempFile> {
    use std::io::Write;
    let written = tempfile::Builder::new().prefix(prefix).tempfile_in(folder).and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        Ok(file)
    });
    written.map_err(|cause| Error::io("write a file in", folder.display(), &cause))
}

/// Slurm's variable with the names of the variables that `srun` passes on, or `ALL` (the default), `NONE` or
/// `NIL`.
const EXPORTED: &str = "SLURM_EXPORT_ENV";

/// The value with which `srun` passes on `names` too. `None` if it passes on all variables.
fn exported(chosen: Option<String>, names: &[&str]) -> Option<String> {
    let names = names.join(",");
    match chosen?.as_str() {
        "ALL" => None,
        "NONE" | "NIL" => Some(names),
        list => Some(format!("{list},{names}")),
    }
}

/// The value of `srun --mpi` by which ranks find each other. Without a value every rank would be a job of its
/// own.
fn process_manager() -> &'static str {
    match Mpirun::find().map(|mpirun| mpirun.flavour()) {
        Ok(Flavour::Mpich) => "pmi2",
        Ok(Flavour::OpenMpi | Flavour::OpenMpi5) | Err(_) => "pmix",
    }
}

#[cfg(test)]
mod tests {
    use ringpull_base::Secret;

    use super::*;

    fn job(batch: BatchSystem, servers: usize) -> BatchJob {
        let command = ["echo", "it's $DMLC_ROLE"].map(OsString::from).into();
        let variables = Variables {
            env: vec![("A".to_owned(), "1 2".to_owned())],
            env_server: Vec::new(),
            env_worker: vec![("B".to_owned(), "3".to_owned())],
        };
        BatchJob { batch, spec: Spec { workers: 2, servers, helpers: 0, command, variables }, is_tagged: true }
    }

    fn words(job: &BatchJob, meet: &str) -> Vec<String> {
        job.words(Path::new(meet), ("pmix", &["WRAPPER".into()]), Some(Path::new("/job")))
            .iter()
            .map(|word| word.to_string_lossy().into_owned())
            .collect()
    }

    #[test]
    fn slurm_starts_ranks_as_its_tasks() {
        let mut ranks = job(BatchSystem::Slurm, 0);
        ranks.is_tagged = false;
        let expected = "srun --kill-on-bad-exit=1 --mpi=pmix -n 2 WRAPPER env A=1 2 B=3 echo it's $DMLC_ROLE";
        assert_eq!(words(&ranks, "/m").join(" "), expected);
        let roles = words(&job(BatchSystem::Slurm, 1), "/m");
        assert_eq!(roles[1..6], ["--kill-on-bad-exit=0", "--mpi=none", "-n", "4", "WRAPPER"]);
    }

    #[test]
    fn grid_engine_runs_mpirun_in_its_slots() {
        let sge = BatchSystem::Sge { environment: "orte".to_owned() };
        let mut job = job(sge, 0);
        let tagged = words(&job, "/m");
        let expected = "qsub -sync y -N ringpull -cwd -V -j y -S /bin/sh -b y -shell n -pe orte 2 /bin/sh /job";
        assert_eq!(tagged.join(" "), expected);
        let script = job.sge_script(Path::new("/m"));
        assert!(
            script.contains("'-n' '2' '/bin/sh' '-c' ") && script.contains("'--name' 'rank' '--tagged' '--' "),
            "{script}"
        );
        assert!(script.contains("'env' 'A=1 2' 'B=3' 'echo'"), "{script}");
        job.is_tagged = false;
        let script = job.sge_script(Path::new("/m"));
        assert!(script.contains("'-n' '2' 'env' 'A=1 2' 'B=3' 'echo'"), "{script}");
    }

    #[test]
    fn grid_engine_tags_each_line_with_its_process() {
        let folder = tempfile::tempdir().unwrap();
        let mut job = job(BatchSystem::Sge { environment: "orte".to_owned() }, 1);
        let program = "echo one; echo two >&2; [ \"$DMLC_WORKER_ID\" != 1 ] || exit 3";
        job.spec.command = ["sh", "-c", program].map(OsString::from).into();
        let file = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let hosts = file("hosts", "a 3 queue UNDEFINED\nb 1 queue UNDEFINED\n");
        let script = file("job", &job.sge_script(&folder.path().join("meet")));
        // A replacement for Grid Engine's qrsh, which starts the words on a host.
        let qrsh = file("qrsh", "#!/bin/sh\nwhile [ \"$1\" != env ]; do shift; done\nexec \"$@\"\n");
        std::fs::set_permissions(&qrsh, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let path = format!("{}:{}", folder.path().display(), config::text("PATH").unwrap());
        let output = Command::new("sh").arg(script).env("PE_HOSTFILE", hosts).env("PATH", path).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let mut lines: Vec<&str> = text.lines().collect();
        lines.sort_unstable();
        let names = ["scheduler", "server 0", "worker 0", "worker 1"];
        let expected: Vec<String> =
            names.iter().flat_map(|name| ["one", "two"].map(|word| format!("[{name}] {word}"))).collect();
        assert_eq!((lines, output.status.code()), (expected.iter().map(String::as_str).collect(), Some(3)));
    }

    #[test]
    fn values_from_the_environment_are_not_in_command_lines() {
        let path = config::text("PATH").unwrap();
        let sge = BatchSystem::Sge { environment: "orte".to_owned() };
        for (batch, servers) in [(BatchSystem::Slurm, 0), (BatchSystem::Slurm, 1), (sge.clone(), 0), (sge, 1)] {
            let mut job = job(batch, servers);
            job.spec.variables.env.push(("PATH".to_owned(), path.clone()));
            let words = words(&job, "/m").join(" ") + &job.sge_script(Path::new("/m"));
            assert!(words.contains("A=1 2") && !words.contains(&path), "{words}");
            assert_eq!(job.by_name(), ["PATH"]);
        }
        assert_eq!(exported(None, &["A"]), None);
        assert_eq!(exported(Some("ALL".to_owned()), &["A"]), None);
        assert_eq!(exported(Some("NONE".to_owned()), &["A", "B"]).as_deref(), Some("A,B"));
        assert_eq!(exported(Some("ALL,C=1".to_owned()), &["A", "B"]).as_deref(), Some("ALL,C=1,A,B"));
    }

    #[test]
    fn the_secret_of_a_job_with_servers_is_in_a_file_that_only_this_user_can_read() {
        use std::os::unix::fs::PermissionsExt;

        let folder = tempfile::tempdir().unwrap();
        let secret = Secret::new_random().unwrap();
        let file = put(secret.reveal(), ".ringpull-secret-", folder.path()).unwrap();
        assert_eq!(std::fs::read_to_string(file.path()).unwrap(), secret.reveal());
        assert_eq!(file.as_file().metadata().unwrap().permissions().mode() & 0o777, 0o600);
        let words = words(&job(BatchSystem::Slurm, 1).with_secret_in(file.path()), "/m").join(" ");
        assert!(words.contains(&format!("RINGPULL_SECRET_FILE={}", file.path().display())), "{words}");
        assert!(!words.contains(secret.reveal()));
        drop(file);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_tasks_number_gives_its_role_and_a_file_the_schedulers_address() {
        let folder = tempfile::tempdir().unwrap();
        let meet = folder.path().join("meet");
        let mut job = job(BatchSystem::Slurm, 1);
        let words = "echo $DMLC_ROLE $DMLC_SERVER_ID$DMLC_WORKER_ID of $DMLC_NUM_SERVER $DMLC_NUM_WORKER at ${DMLC_PS_ROOT_PORT:+port} A=$A B=$B";
        job.spec.command = ["sh", "-c", words].map(OsString::from).into();
        let script = job.script(&meet, "$SLURM_PROCID");
        let mut tasks = Vec::new();
        for task in 0..4 {
            let mut command = Command::new("sh");
            command.args(["-c", &script]).env("SLURM_PROCID", task.to_string()).stdout(Stdio::piped());
            tasks.push(command.spawn().unwrap());
        }
        let said: Vec<String> = tasks
            .into_iter()
            .map(|task| String::from_utf8(task.wait_with_output().unwrap().stdout).unwrap().trim().to_owned())
            .collect();
        let expected = [
            "scheduler of 1 2 at port A=1 2 B=",
            "server 0 of 1 2 at port A=1 2 B=",
            "worker 0 of 1 2 at port A=1 2 B=3",
            "worker 1 of 1 2 at port A=1 2 B=3",
        ];
        assert_eq!(said.iter().map(|line| line.replace("  ", " ")).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_scheduler_that_cannot_write_its_address_says_so_and_follows_no_link() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("precious"), "precious").unwrap();
        std::os::unix::fs::symlink(at("precious"), at("meet.new")).unwrap();
        for meet in [at("meet"), at("none/meet")] {
            let script = job(BatchSystem::Slurm, 1).script(&meet, "0");
            let output = Command::new("sh").args(["-c", &script]).output().unwrap();
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.code() == Some(1) && text.contains("the scheduler cannot write"), "{text}");
        }
        assert_eq!(std::fs::read_to_string(at("precious")).unwrap(), "precious");
    }
}
