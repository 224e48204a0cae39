//! The processes of a job as a service of Hadoop YARN, over the REST API of its `ResourceManager`
//! (`/app/v1/services`).
//!
//! Each role is a component of the service, each process a container. They meet in a folder that this host
//! and the containers see: it has the script that every container runs, which only this user can read, and
//! each process's output and exit code. In a job without servers `mpirun` runs here and starts its daemons
//! in the containers: its agent leaves a command in the folder, where a container waits for it.
//!
//! `curl` makes the calls, since it proves a user by Kerberos too.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use ringpull_base::config::{self, Config, Role};
use ringpull_base::{Error, Result};

use super::batch::{Batch, BatchJob};
use super::host::{quote, temporary_folder, with_environment, working_folder};
use super::output::{OutputSource, OutputStream, Printer};
use super::{Sink, Spec, by_mpi, process_name};
use crate::mpirun::Mpirun;
use ringpull_harness::interrupt::Interrupt;
use ringpull_harness::text::write;

/// How often files are read, and how often YARN is asked for the service's state.
const READ: Duration = Duration::from_millis(100);
const ASKED: Duration = Duration::from_secs(2);
/// The time for which files may be on their way after the service has ended.
const LATE: Duration = Duration::from_secs(5);

/// The place of a job.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct Cluster {
    /// The address of YARN's `ResourceManager`, such as `http://rm.example:8088` (yarn only).
    #[arg(long, value_name = "URL")]
    pub yarn: Option<String>,
    /// The queue of YARN [default: the cluster's].
    #[arg(long, value_name = "NAME", requires = "yarn")]
    yarn_queue: Option<String>,
    /// The cores of each container of YARN.
    #[arg(long, value_name = "N", default_value_t = 1, requires = "yarn", value_parser = clap::value_parser!(u32).range(1..))]
    yarn_cpus: u32,
    /// The memory of each container of YARN, in MB.
    #[arg(long, value_name = "MB", default_value_t = 2048, requires = "yarn", value_parser = clap::value_parser!(u32).range(1..))]
    yarn_memory: u32,
    /// The GPUs of each worker's container of YARN.
    #[arg(long, value_name = "N", default_value_t = 0, requires = "yarn")]
    yarn_gpus: u32,
}

#[derive(Debug, Clone)]
pub(crate) struct YarnJob {
    pub cluster: Cluster,
    /// Without servers it starts MPI ranks.
    pub spec: Spec,
    pub sink: Sink,
    /// The time for which the other processes may run after one failed, or after the last worker.
    pub grace: Duration,
}

/// What a container does in a job without servers, as `$name`.
const WAITS: &str = r#"until [ -s "$folder/$name.run" ] || [ -e "$folder/end" ]; do sleep 0.1; done
[ ! -e "$folder/end" ] || exit 0
sh "$folder/$name.run"
echo $? >"$folder/$name.new" && mv "$folder/$name.new" "$folder/$name.began"
# Its daemon may have left it.
until [ -e "$folder/end" ]; do sleep 0.1; done"#;

/// What `mpirun` calls as `agent [options] NAME words...` in place of ssh, after the line that sets `folder`.
const AGENT: &str = r#"while :; do case $1 in -[oilpF]) shift 2 ;; -*) shift ;; *) break ;; esac; done
name=$1
shift
echo "$*" >"$folder/$name.new" && mv "$folder/$name.new" "$folder/$name.run"
until [ -s "$folder/$name.began" ]; do sleep 0.1; done
exit "$(cat "$folder/$name.began")"
"#;

/// What each container does after `folder` and `body` are set: runs the body, keeps its output and its code.
const KEEPS: &str = r#"name=$1-$2 child=
trap '[ -z "$child" ] || kill -TERM $child' TERM INT
: >"$folder/$name.up"
body >"$folder/$name.out" 2>"$folder/$name.err" </dev/null &
child=$!
while :; do
  wait $child
  code=$?
  kill -0 $child 2>/dev/null || break
done
echo $code >"$folder/$name.last" && mv "$folder/$name.last" "$folder/$name.code"
exit $code
"#;

impl YarnJob {
    /// Runs the job to its end; its exit code. The service is gone when this returns.
    pub(crate) fn run(&self) -> Result<i32> {
        let Some(address) = self.cluster.yarn.as_deref() else {
            return Err(Error::argument(
                "--launcher yarn needs the address of a ResourceManager",
                "give it with --yarn http://HOST:8088",
            ));
        };
        let interrupt = Interrupt::watch()?;
        interrupt.watch_for_job()?;
        let here = working_folder()?;
        let folder = temporary_folder(".ringpull-yarn-", &here)
            .map_err(|cause| Error::io("create a folder in", here.display(), &cause))?;
        check_path(folder.path())?;
        write(&folder.path().join("role"), &self.script(&here, folder.path())?)?;
        let name = folder.path().file_name().unwrap_or_default().to_string_lossy().to_lowercase();
        let service = Service { address: address.trim_end_matches('/'), name: name.trim_start_matches('.') };
        service.create(&self.yarnfile(service.name, folder.path()))?;
        eprintln!("ringpull: YARN starts {} containers of the service {}", self.names().len(), service.name);
        let mut job = Followed {
            job: self,
            service: &service,
            folder: folder.path(),
            seen: BTreeMap::new(),
            printer: Printer::start(),
            asked: None,
        };
        let end = if self.spec.servers == 0 { job.run_ranks(&interrupt) } else { job.follow(&interrupt) };
        // Whatever happened before: nothing of the job stays.
        let destroyed = service.destroy();
        let code = end?;
        destroyed?;
        Ok(code)
    }

    /// The processes: the name of a container, as YARN calls it, and of the process.
    fn names(&self) -> Vec<(Role, usize)> {
        match self.spec.servers {
            0 => (0..self.spec.workers).map(|index| (Role::Worker, index)).collect(),
            _ => self.spec.roles().collect(),
        }
    }

    /// The service as YARN's API has it.
    fn yarnfile(&self, name: &str, folder: &Path) -> Value {
        let count = |role| self.names().iter().filter(|(other, _)| *other == role).count();
        let component = |role: Role| {
            let mut resource = json!({
                "cpus": self.cluster.yarn_cpus, "memory": self.cluster.yarn_memory.to_string(),
            });
            if role == Role::Worker && self.cluster.yarn_gpus > 0 {
                resource["additional"] = json!({ "yarn.io/gpu": { "value": self.cluster.yarn_gpus, "unit": "" } });
            }
            json!({
                "name": role.to_string(),
                "number_of_containers": count(role),
                // YARN puts this between double quotes as it is.
                "launch_command": format!("sh {}/role {role} ${{COMPONENT_ID}}", folder.display()),
                "resource": resource,
                "restart_policy": "NEVER",
                "configuration": { "properties": { "yarn.service.container-failure.retry.max": "0" } },
            })
        };
        let roles = [Role::Scheduler, Role::Server, Role::Worker].into_iter().filter(|role| count(*role) > 0);
        let mut service = json!({
            "name": name, "version": "1.0.0", "description": "a job of ringpull launch",
            "components": roles.map(component).collect::<Vec<_>>(),
        });
        if let Some(queue) = &self.cluster.yarn_queue {
            service["queue"] = json!(queue);
        }
        service
    }

    /// What every container runs, with its role and its number.
    fn script(&self, here: &Path, folder: &Path) -> Result<String> {
        let secret = config::secret_or_new()?;
        let environment = with_environment(&[(config::SECRET.to_owned(), secret.reveal().to_owned())]);
        let environment = String::from_utf8_lossy(&environment).into_owned();
        let servers = self.spec.servers;
        let body = if servers == 0 {
            WAITS.to_owned()
        } else {
            let job = BatchJob { batch: Batch::Slurm, spec: self.spec.clone(), is_tagged: false };
            let tasks =
                "case $1 in server) task=$((1 + $2)) ;; worker) task=$((1 + servers + $2)) ;; *) task=0 ;; esac";
            format!("servers={servers}\n{tasks}\n{}", job.script(&folder.join("meet"), "$task"))
        };
        let set = format!("cd {} || exit 1\nfolder={}\n", quote(here.as_os_str()), quote(folder.as_os_str()));
        let body = format!("body() {{\nset -- ${{name%-*}} ${{name##*-}}\n{body}\n}}\n");
        Ok([environment, set, body, KEEPS.to_owned()].concat())
    }
}

/// YARN and the shell take the path as it is.
fn check_path(path: &Path) -> Result<()> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+".contains(c);
    if path.to_string_lossy().chars().all(is_plain) {
        return Ok(());
    }
    Err(Error::argument(
        format!("YARN cannot be given the path {}", path.display()),
        "start the job in a folder whose path has only letters, digits and / . _ - +",
    ))
}

/// A job whose service exists.
struct Followed<'a> {
    job: &'a YarnJob,
    service: &'a Service<'a>,
    folder: &'a Path,
    /// The length of each file that was printed, and its place.
    seen: BTreeMap<PathBuf, (u64, OutputSource)>,
    printer: Printer,
    asked: Option<Instant>,
}

impl Followed<'_> {
    fn file(&self, (role, index): (Role, usize), kind: &str) -> PathBuf {
        self.folder.join(format!("{role}-{index}.{kind}"))
    }

    /// Follows the processes to the job's end; its exit code.
    fn follow(&mut self, interrupt: &Interrupt) -> Result<i32> {
        let names = self.job.names();
        let (mut first, mut until, mut ended) = (None, None, None);
        loop {
            let codes: Vec<Option<i32>> = names.iter().map(|name| self.code(*name)).collect();
            self.print()?;
            first = first.or(codes.iter().flatten().copied().find(|code| *code != 0));
            let has_ended = |at: usize| names[at].0 != Role::Worker || codes[at].is_some();
            if first.is_some() || (0..names.len()).all(has_ended) {
                until = until.or(Some(Instant::now() + self.job.grace));
            }
            if let Some(signal) = interrupt.signal() {
                return Ok(128 + signal);
            }
            interrupt.decline_for_job("YARN");
            if codes.iter().all(Option::is_some) || until.is_some_and(|until| Instant::now() > until) {
                // Nobody needs servers that end after that.
                let is_well = |at: usize| names[at].0 != Role::Worker || codes[at] == Some(0);
                return Ok(first.filter(|_| !(0..names.len()).all(is_well)).unwrap_or(0));
            }
            if ended.is_none() {
                ended = self.why_ended()?.map(|why| (why, Instant::now()));
            }
            if let Some((why, since)) = &ended
                && since.elapsed() > LATE
            {
                let missing = codes.iter().position(Option::is_none).unwrap_or(0);
                return Err(lost(&process_name(names[missing].0, names[missing].1), why));
            }
            std::thread::park_timeout(READ);
        }
    }

    /// Runs `mpirun` here once all containers wait; its exit code.
    fn run_ranks(&mut self, interrupt: &Interrupt) -> Result<i32> {
        let names = self.job.names();
        while !names.iter().all(|name| self.file(*name, "up").exists()) {
            if let Some(signal) = interrupt.signal() {
                return Ok(128 + signal);
            }
            if let Some(why) = self.why_ended()? {
                self.print()?;
                return Err(lost("a worker", &why));
            }
            std::thread::park_timeout(READ);
        }
        let hosts: Vec<String> = names.iter().map(|(role, index)| format!("{role}-{index}")).collect();
        let agent = format!("#!/bin/sh\nfolder={}\n{AGENT}", quote(self.folder.as_os_str()));
        let job = by_mpi::MpiJob::new(&self.job.spec, None, self.job.sink, Box::new(|_| ()))?;
        let ready = Mpirun::find()?.command_by_agent(&hosts, &agent, &job.parts)?;
        // With ranks elsewhere, whose ends it hears of. Its daemons have left the agent, so it waits without end
        // for one that is lost before it has reported.
        let grace = Config::from_env()?.silence() * 3 / 2;
        let end = job.run(ready, interrupt, None, |_, code| (code != Some(0)).then_some(grace));
        write(&self.folder.join("end"), "")?;
        self.print()?;
        end
    }

    /// The exit code of a process that has ended.
    fn code(&self, name: (Role, usize)) -> Option<i32> {
        std::fs::read_to_string(self.file(name, "code")).ok()?.trim().parse().ok()
    }

    /// Prints what is new.
    fn print(&mut self) -> Result<()> {
        for name in self.job.names() {
            for (kind, stream) in [("out", OutputStream::Out), ("err", OutputStream::Err)] {
                let path = self.file(name, kind);
                let feed = self.printer.feed();
                let name = (self.job.sink == Sink::Tagged).then(|| process_name(name.0, name.1));
                let add = || (0, feed.source(stream, name.as_deref()));
                let (seen, source) = self.seen.entry(path.clone()).or_insert_with(add);
                let Ok(mut file) = File::open(&path) else { continue };
                let mut text = Vec::new();
                let read = file.seek(SeekFrom::Start(*seen)).and_then(|_| file.read_to_end(&mut text));
                read.map_err(|cause| Error::io("read", path.display(), &cause))?;
                *seen += text.len() as u64;
                source.write(text);
            }
        }
        Ok(())
    }

    /// What YARN says of a service that has ended, asked from time to time.
    fn why_ended(&mut self) -> Result<Option<String>> {
        if self.asked.is_some_and(|asked| asked.elapsed() < ASKED) {
            return Ok(None);
        }
        self.asked = Some(Instant::now());
        self.service.why_ended()
    }
}

fn lost(process: &str, why: &str) -> Error {
    Error::argument(
        format!("{process} has not run to its end: {why}"),
        "see `yarn logs -applicationId ID`; containers must run as the user who submits, in a folder that all hosts see",
    )
}

/// A service of a `ResourceManager`.
struct Service<'a> {
    address: &'a str,
    name: &'a str,
}

impl Service<'_> {
    fn create(&self, yarnfile: &Value) -> Result<()> {
        let (status, body) = self.call("POST", "", Some(yarnfile))?;
        if status == 202 || status == 200 { Ok(()) } else { Err(self.refused("create", status, &body)) }
    }

    /// Why it does not run, if it does not.
    fn why_ended(&self) -> Result<Option<String>> {
        let (status, body) = self.call("GET", &format!("/{}", self.name), None)?;
        let answer: Value = serde_json::from_str(&body).unwrap_or(Value::Null);
        let state = answer["state"].as_str().unwrap_or("");
        match (status, state) {
            (404, _) => Ok(Some(format!("YARN has no service {}", self.name))),
            (200, "FAILED" | "STOPPED" | "SUCCEEDED") => {
                let why = answer["diagnostics"].as_str().unwrap_or("YARN gives no reason");
                Ok(Some(format!("the service {} is {state}: {why}", self.name)))
            }
            (200, _) => Ok(None),
            _ => Err(self.refused("ask for", status, &body)),
        }
    }

    /// Ends all containers and removes the service.
    fn destroy(&self) -> Result<()> {
        let path = format!("/{}", self.name);
        // It may have stopped by itself, which is refused in several ways.
        self.call("PUT", &path, Some(&json!({ "state": "STOPPED" })))?;
        let (status, body) = self.call("DELETE", &path, None)?;
        if [200, 202, 204, 404].contains(&status) { Ok(()) } else { Err(self.refused("destroy", status, &body)) }
    }

    fn refused(&self, what: &str, status: u16, body: &str) -> Error {
        let answer: Value = serde_json::from_str(body).unwrap_or(Value::Null);
        let why = answer["diagnostics"].as_str().unwrap_or(body).trim();
        Error::argument(
            format!("YARN at {} does not {what} the service {}: {status} {why}", self.address, self.name),
            "its API of services must be on (yarn.webapp.api-service.enable), and you must be known to it (kinit)",
        )
    }

    /// Status and body of the answer.
    fn call(&self, method: &str, path: &str, body: Option<&Value>) -> Result<(u16, String)> {
        let user = ["HADOOP_USER_NAME", "USER", "LOGNAME"].iter().find_map(|name| config::text(name));
        let user = user.map_or(String::new(), |user| format!("?user.name={user}"));
        let url = format!("{}/app/v1/services{path}{user}", self.address);
        let failed = |cause: &std::io::Error| Error::io("run", "curl", cause);
        let mut command = Command::new("curl");
        command.args(["-sS", "--max-time", "60", "--negotiate", "-u", ":", "-X", method, "-w", "\n%{http_code}"]);
        if body.is_some() {
            command.args(["-H", "Content-Type: application/json", "--data-binary", "@-"]);
        }
        let mut child = command
            .arg(&url)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|cause| failed(&cause))?;
        if let (Some(mut to), Some(body)) = (child.stdin.take(), body) {
            to.write_all(body.to_string().as_bytes()).map_err(|cause| failed(&cause))?;
        }
        let output = child.wait_with_output().map_err(|cause| failed(&cause))?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        match text.rsplit_once('\n').and_then(|(body, status)| Some((status.trim().parse().ok()?, body.to_owned()))) {
            Some(answer) if output.status.success() => Ok(answer),
            _ => Err(Error::argument(
                format!("YARN at {} does not answer: {}", self.address, String::from_utf8_lossy(&output.stderr).trim()),
                "give the address of the ResourceManager's web server: --yarn http://HOST:8088",
            )),
        }
    }
}
