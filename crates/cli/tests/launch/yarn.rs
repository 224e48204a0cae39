//! Jobs as services of Hadoop YARN, with a `ResourceManager` of our own that keeps to the documented API of
//! services and starts containers as processes here. No test has met a YARN cluster.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde_json::{Value, json};

use super::{has_mpi, launch, mark, running, stayer, until};

#[derive(Default)]
struct Services {
    /// The containers of each service, by its name.
    running: BTreeMap<String, Vec<Child>>,
    requests: Vec<(String, String, Value)>,
}

/// A `ResourceManager` on loopback, for as long as the process lives.
struct Manager {
    address: String,
    services: Arc<Mutex<Services>>,
}

impl Manager {
    fn start() -> Manager {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let services = Arc::new(Mutex::new(Services::default()));
        let own = Arc::clone(&services);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                own.lock().unwrap().serve(stream);
            }
        });
        Manager { address, services }
    }

    /// What was asked for: `METHOD path`.
    fn asked(&self) -> Vec<String> {
        let services = self.services.lock().unwrap();
        services.requests.iter().map(|(method, path, _)| format!("{method} {path}")).collect()
    }

    fn yarnfile(&self) -> Value {
        self.services.lock().unwrap().requests[0].2.clone()
    }
}

impl Services {
    fn serve(&mut self, mut stream: TcpStream) {
        let (head, body) = read_request(&mut stream);
        let mut words = head.split_whitespace();
        let (method, target) = (words.next().unwrap().to_owned(), words.next().unwrap().to_owned());
        let (path, query) = target.split_once('?').unwrap();
        assert!(query.starts_with("user.name="), "{target}");
        let body: Value = serde_json::from_slice(&body).unwrap_or(Value::Null);
        let name = path.strip_prefix("/app/v1/services").unwrap().trim_start_matches('/').to_owned();
        self.requests.push((
            method.clone(),
            path.replace(&name, if name.is_empty() { "" } else { "NAME" }),
            body.clone(),
        ));
        let (status, answer) = self.answer(&method, &name, &body);
        let text = if answer.is_null() { String::new() } else { answer.to_string() };
        let reply = format!("HTTP/1.1 {status} -\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{text}", text.len());
        stream.write_all(reply.as_bytes()).unwrap();
    }

    fn answer(&mut self, method: &str, name: &str, body: &Value) -> (u16, Value) {
        match (method, self.running.contains_key(name)) {
            ("POST", _) => match self.create(body) {
                Ok(()) => (202, Value::Null),
                Err(why) => (400, json!({ "diagnostics": why })),
            },
            (_, false) => (404, json!({ "diagnostics": "no such service" })),
            ("GET", true) => {
                let is_over = |child: &mut Child| child.try_wait().unwrap().is_some();
                let all = self.running.get_mut(name).unwrap().iter_mut().all(is_over);
                (200, json!({ "name": name, "state": if all { "STOPPED" } else { "STABLE" } }))
            }
            ("PUT", true) => {
                assert_eq!(body, &json!({ "state": "STOPPED" }));
                self.stop(name);
                (204, Value::Null)
            }
            ("DELETE", true) => {
                self.stop(name);
                self.running.remove(name);
                (204, Value::Null)
            }
            other => panic!("{other:?} is not of the API"),
        }
    }

    /// Starts the containers of a service; what the API refuses is an error.
    fn create(&mut self, service: &Value) -> Result<(), String> {
        let name = service["name"].as_str().ok_or("no name")?;
        let is_label = |name: &str| {
            name.len() <= 63
                && name.starts_with(|c: char| c.is_ascii_lowercase())
                && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
        };
        if !is_label(name) || !service["version"].is_string() {
            return Err(format!("the name {name} or the version"));
        }
        if service["queue"] == "closed" {
            return Err("the queue closed is not there".to_owned());
        }
        let mut children = Vec::new();
        for component in service["components"].as_array().ok_or("no components")? {
            let (role, command) = (component["name"].as_str().unwrap(), component["launch_command"].as_str().unwrap());
            assert!(is_label(role) && component["restart_policy"] == "NEVER");
            assert!(component["resource"]["cpus"].is_u64() && component["resource"]["memory"].is_string());
            for number in 0..component["number_of_containers"].as_u64().unwrap() {
                // As YARN's launch_container.sh has it.
                let line = command.replace("${COMPONENT_ID}", &number.to_string());
                let mut bash = Command::new("bash");
                bash.args(["-c", &format!("exec /bin/bash -c \"{line}\"")]).env_clear().env("PATH", "/usr/bin:/bin");
                bash.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
                children.push(bash.current_dir("/").process_group(0).spawn().unwrap());
            }
        }
        self.running.insert(name.to_owned(), children);
        Ok(())
    }

    /// SIGTERM to each container, and in the end SIGKILL to all that it has started.
    fn stop(&mut self, name: &str) {
        for child in self.running.get_mut(name).unwrap() {
            let pid = Pid::from_child(child);
            if child.try_wait().unwrap().is_none() {
                kill_process(pid, Signal::TERM).unwrap();
                child.wait().unwrap();
            }
            // Nothing may be left of it.
            if let Err(cause) = kill_process_group(pid, Signal::KILL) {
                eprintln!("the container had ended: {cause}");
            }
        }
    }
}

fn read_request(stream: &mut TcpStream) -> (String, Vec<u8>) {
    let mut text = Vec::new();
    let mut piece = [0; 4096];
    loop {
        let count = stream.read(&mut piece).unwrap();
        text.extend_from_slice(&piece[..count]);
        let Some(end) = text.windows(4).position(|window| window == b"\r\n\r\n") else { continue };
        let head = String::from_utf8(text[..end].to_vec()).unwrap();
        let length = head.lines().find_map(|line| line.to_lowercase().strip_prefix("content-length: ")?.parse().ok());
        let length: usize = length.unwrap_or(0);
        while text.len() < end + 4 + length {
            let count = stream.read(&mut piece).unwrap();
            text.extend_from_slice(&piece[..count]);
        }
        return (head, text[end + 4..].to_vec());
    }
}

fn on_yarn(manager: &Manager, folder: &Path, words: &[&str]) -> Command {
    let mut command = launch(&[&["--launcher", "yarn", "--yarn", &manager.address], words].concat());
    command.current_dir(folder).env("USER", "alice");
    command
}

/// Returns true if the working folder holds nothing of a job any more.
fn is_empty(folder: &Path) -> bool {
    std::fs::read_dir(folder).unwrap().next().is_none()
}

#[test]
fn every_role_is_a_container_whose_lines_and_exit_code_come_back() {
    let (manager, folder) = (Manager::start(), tempfile::tempdir().unwrap());
    let program = "echo $DMLC_ROLE $DMLC_WORKER_ID$DMLC_SERVER_ID of $DMLC_NUM_WORKER at ${DMLC_PS_ROOT_PORT:+port} $A $B in $(pwd); \
                   echo $C >&2; [ \"$DMLC_WORKER_ID\" != 1 ] || exit 7";
    let words = ["-n", "2", "-s", "1", "--env", "A=1 2", "--env-worker", "B:it's", "--env", "C"];
    let words =
        [&words[..], &["--yarn-memory", "512", "--yarn-cpus", "3", "--yarn-gpus", "2", "--", "sh", "-c", program]]
            .concat();
    let output = on_yarn(&manager, folder.path(), &words).env("C", "from \"here\" $x").output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(7), "{error}");
    let mut lines: Vec<String> = String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect();
    lines.sort();
    let here = folder.path().canonicalize().unwrap();
    let expected = [
        "[scheduler] scheduler of 2 at port 1 2 in",
        "[server 0] server 0 of 2 at port 1 2 in",
        "[worker 0] worker 0 of 2 at port 1 2 it's in",
        "[worker 1] worker 1 of 2 at port 1 2 it's in",
    ];
    assert_eq!(lines, expected.map(|line| format!("{line} {}", here.display())), "{error}");
    assert!(error.contains("[server 0] from \"here\" $x\n"), "{error}");
    let file = manager.yarnfile();
    let of =
        |field: &str| file["components"].as_array().unwrap().iter().map(|it| it[field].clone()).collect::<Vec<_>>();
    assert_eq!(of("name"), ["scheduler", "server", "worker"]);
    assert_eq!(of("number_of_containers"), [1, 1, 2]);
    let gpus = json!({ "cpus": 3, "memory": "512", "additional": { "yarn.io/gpu": { "value": 2, "unit": "" } } });
    let plain = json!({ "cpus": 3, "memory": "512" });
    assert_eq!(of("resource"), [plain.clone(), plain, gpus]);
    // Neither the secret nor a variable's value is in what YARN shows.
    assert!(!file.to_string().contains("RINGPULL") && !file.to_string().contains("from"), "{file}");
    let asked = manager.asked();
    assert_eq!(asked[0], "POST /app/v1/services");
    assert_eq!(asked[asked.len() - 2..], ["PUT /app/v1/services/NAME", "DELETE /app/v1/services/NAME"]);
    assert!(is_empty(folder.path()));
}

#[test]
fn mpi_ranks_run_in_the_containers_of_a_service() {
    if !has_mpi() {
        return;
    }
    let (manager, folder) = (Manager::start(), tempfile::tempdir().unwrap());
    let bench = [env!("CARGO_BIN_EXE_ringpull"), "bench", "allreduce", "--sizes", "4KB", "--iters", "2"];
    let mut processes = ringpull_processes::Processes::new();
    let program = processes.redirected(bench);
    let mut command = on_yarn(&manager, folder.path(), &["-n", "2", "-s", "0", "--"]);
    processes.run("launch", command.args(program).env("RINGPULL_TIMEOUT", "10"));
    assert_eq!(processes.child("launch").wait().unwrap().code(), Some(0), "{processes}");
    assert!(processes.rank(0).out.contains("every sum was checked"), "{processes}");
    let output =
        on_yarn(&manager, folder.path(), &["-n", "2", "-s", "0", "--", "sh", "-c", "exit 5"]).output().unwrap();
    assert_eq!(output.status.code(), Some(5), "{output:?}");
    assert!(is_empty(folder.path()));
}

#[test]
fn sigterm_ends_the_service_and_all_that_its_containers_run() {
    let (manager, folder, mark) = (Manager::start(), tempfile::tempdir().unwrap(), mark());
    let words = ["-n", "1", "-s", "1", "--", "sh", "-c", &stayer(&mark)];
    let mut child =
        on_yarn(&manager, folder.path(), &words).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    until("three processes with a child each", || running(&mark) == 6);
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(143));
    until("no process is left", || running(&mark) == 0);
    assert!(manager.asked().ends_with(&["DELETE /app/v1/services/NAME".to_owned()]) && is_empty(folder.path()));
}

#[test]
fn a_service_that_yarn_refuses_or_loses_is_an_error_with_its_reason() {
    let (manager, folder) = (Manager::start(), tempfile::tempdir().unwrap());
    let words = ["-n", "1", "-s", "1", "--yarn-queue", "closed", "--", "true"];
    let output = on_yarn(&manager, folder.path(), &words).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && text.contains("400 the queue closed is not there"), "{text}");
    // Somebody else stops it, with SIGKILL to the processes that would write their codes.
    let mark = mark();
    let words = ["-n", "1", "-s", "1", "--", "sh", "-c", &stayer(&mark)];
    let child = on_yarn(&manager, folder.path(), &words).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    until("three processes with a child each", || running(&mark) == 6);
    for container in manager.services.lock().unwrap().running.values_mut().flatten() {
        kill_process_group(Pid::from_child(container), Signal::KILL).unwrap();
    }
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && text.contains("is STOPPED"), "{text}");
    // Without an address, and with one at which nobody answers.
    let output = launch(&["-n", "1", "--launcher", "yarn", "--", "true"]).output().unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).contains("--yarn http://HOST:8088"), "{output:?}");
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let nobody = format!("http://{free}");
    let output = launch(&["-n", "1", "--launcher", "yarn", "--yarn", &nobody, "--", "true"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && text.contains("does not answer: curl:"), "{text}");
}
