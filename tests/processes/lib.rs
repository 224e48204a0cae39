//! Processes that a test starts: their output as it comes, their end by a deadline, and the command that starts ranks.

mod example;

pub use example::example;

use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A started process whose output is being gathered. Dropping it kills it.
pub struct Process {
    name: String,
    child: Child,
    text: Arc<Mutex<String>>,
    readers: Vec<JoinHandle<()>>,
}

impl Process {
    pub fn start(name: &str, command: &mut Command) -> Self {
        let command = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|cause| panic!("cannot start {name}: {cause}"));
        let text = Arc::default();
        let readers = vec![gather(child.stdout.take(), &text), gather(child.stderr.take(), &text)];
        Process { name: name.to_owned(), child, text, readers }
    }

    /// What it has written so far, whole lines only.
    pub fn text(&self) -> String {
        self.text.lock().unwrap().clone()
    }

    pub fn runs(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Whether the process ended in time; if not, it is killed.
    pub fn ends_by(&mut self, deadline: Instant) -> bool {
        while self.runs() {
            if Instant::now() > deadline {
                self.child.kill().unwrap();
                return false;
            }
            // The process's end is the event; the standard library has no wait with a deadline.
            std::thread::park_timeout(Duration::from_millis(5));
        }
        true
    }

    pub fn succeeded(&mut self) -> bool {
        self.child.wait().unwrap().success()
    }

    /// All of its output, each line with its name. Waits until nobody can write any more.
    pub fn output(&mut self) -> String {
        self.readers.drain(..).for_each(|reader| reader.join().unwrap());
        self.text().lines().fold(String::new(), |text, line| text + &self.name + ": " + line + "\n")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) && self.child.kill().is_ok() {
            self.child.wait().unwrap();
        }
    }
}

fn gather(stream: Option<impl Read + Send + 'static>, text: &Arc<Mutex<String>>) -> JoinHandle<()> {
    let text = Arc::clone(text);
    std::thread::spawn(move || {
        for line in BufReader::new(stream.unwrap()).split(b'\n') {
            let line = line.unwrap();
            *text.lock().unwrap() += &(String::from_utf8_lossy(&line).into_owned() + "\n");
        }
    })
}

/// Whether ranks can be started here at all.
pub fn has_mpi() -> bool {
    Command::new(ringpull_base::config::mpirun_program())
        .arg("--version")
        .output()
        .is_ok_and(|output| output.status.success())
}

/// This test's own binary.
pub fn own_path() -> PathBuf {
    std::env::current_exe().unwrap()
}

/// The command that starts `workers` ranks of this test's own binary, with output tagged by rank.
pub fn mpirun(workers: usize) -> Command {
    let program = ringpull_base::config::mpirun_program();
    let version = Command::new(&program).arg("--version").output().map(|output| output.stdout).unwrap_or_default();
    let mut command = Command::new(&program);
    command.args(["-n", &workers.to_string()]);
    if String::from_utf8_lossy(&version).contains("Open MPI") {
        command
            .args(["--oversubscribe", "--bind-to", "none", "--tag-output", "--mca", "mpi_yield_when_idle", "1"])
            .envs([("OMPI_ALLOW_RUN_AS_ROOT", "1"), ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")]);
    } else {
        command.arg("-prepend-rank");
    }
    command.arg(own_path());
    command
}
