//! Tests of hosts: lists, names and addresses of this host, the environment on other hosts, login shells and
//! folders. A script in ssh's place runs the commands of all hosts here.

use super::*;

/// A script in place of ssh. It writes the host's name into a file. It gives the host its own folder for
/// temporary files, because daemons of several hosts disturb each other in one folder. Then this shell runs
/// the rest of the command line.
fn ssh(folder: &Path, shell: &str) -> PathBuf {
    let options = "while :; do case $1 in -[oilpFe]) shift 2 ;; -*) shift ;; *) break ;; esac; done";
    let called = format!("STUB=$1; export STUB; shift; echo \"$STUB\" >>{}/called", folder.display());
    let own = "TMPDIR=${0%/*}/tmp.$$; mkdir \"$TMPDIR\"; export TMPDIR";
    script(folder, "ssh", &format!("{options}\n{called}\n{own}\n{shell}"))
}

/// Runs a job over this ssh. Each of its processes writes the output of `says` into a file. Returns the
/// files' texts in order.
fn job(folder: &Path, shell: &str, options: &[&str], variables: &[(&str, &str)], says: &str) -> (Vec<String>, String) {
    let out = folder.join("out");
    std::fs::create_dir_all(&out).unwrap();
    let write = format!("{says} >{0}/new.$$ && mv {0}/new.$$ {0}/seen.$$", out.display());
    let ssh = ssh(folder, shell);
    let mut command = launch(&[options, &["--", "sh", "-c", &write]].concat());
    let output = command.envs(variables.iter().copied()).env("RINGPULL_SSH", ssh).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let entries = std::fs::read_dir(&out).unwrap().flatten();
    let mut seen: Vec<String> =
        entries.map(|entry| std::fs::read_to_string(entry.path()).unwrap().trim_end().to_owned()).collect();
    seen.sort();
    std::fs::remove_dir_all(&out).unwrap();
    (seen, format!("{:?} {said}", output.status.code()))
}

const HERE: &str = "exec sh -c \"$*\"";

#[test]
fn hosts_whose_names_share_a_label_and_users_with_ports_get_their_own_ranks() {
    if !has_mpi() {
        eprintln!("skipped: mpirun is not installed");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let hosts = folder.path().join("hosts");
    std::fs::write(
        &hosts,
        "a.x.invalid\na.y.invalid slots=1\r\nann@127.0.0.2\n[::1]:2222\n127.0.0.2:2223\nlocalhost\n",
    )
    .unwrap();
    let says = "echo ${STUB:-here}";
    let (seen, said) = job(folder.path(), HERE, &["-n", "6", "-H", hosts.to_str().unwrap()], &[], says);
    assert_eq!(seen, ["127.0.0.2", "::1", "a.x.invalid", "a.y.invalid", "ann@127.0.0.2", "here"], "{said}");
    // Each rank is on the host that the list gives it, also with different numbers of slots and with this
    // host in the list.
    let list = "a.x.invalid:2,localhost:3, a.y.invalid,";
    let says = "echo ${OMPI_COMM_WORLD_RANK:-$PMI_RANK} ${STUB:-here}";
    let (seen, said) = job(folder.path(), HERE, &["-n", "6", "-H", list], &[], says);
    assert_eq!(seen, ["0 a.x.invalid", "1 here", "2 a.y.invalid", "3 a.x.invalid", "4 here", "5 here"], "{said}");
}

#[test]
fn a_rank_that_shares_its_host_with_more_than_the_list_says_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let answer = "[ \"$1\" = --version ] && { echo 'mpirun (Open MPI) 4.1.4'; exit; }";
    let ranks = "while [ \"$1\" != -n ]; do shift; done; shift 2; OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_LOCAL_RANK=1 exec \"$@\"";
    let mpirun = script(folder.path(), "mpirun", &format!("{answer}\n{ranks}"));
    let variables = [("RINGPULL_MPIRUN", mpirun.to_str().unwrap())];
    let options = ["-n", "2", "--no-tag", "-H", "a.invalid,b.invalid"];
    let (seen, said) = job(folder.path(), HERE, &options, &variables, "echo ran");
    assert!(
        seen.is_empty() && said.contains("rank 1 is after 1 others on the host") && said.starts_with("Some(1)"),
        "{said}"
    );
    let (seen, said) = job(folder.path(), HERE, &["-n", "2", "-H", "a.invalid:2"], &variables, "echo ran");
    assert_eq!(seen, ["ran"], "{said}");
}

#[test]
fn this_host_needs_no_ssh_server_by_any_of_its_names_and_addresses() {
    let folder = tempfile::tempdir().unwrap();
    let own = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let list = format!("{own}:1, localhost:1 127.0.0.2:1,[::1]:1");
    for servers in ["0", "1"] {
        if servers == "0" && !has_mpi() {
            continue;
        }
        let options = ["-n", "4", "-s", servers, "-H", &list];
        let (seen, said) = job(folder.path(), "exit 1", &options, &[], "echo $DMLC_ROLE ${STUB:-here}");
        let nodes = if servers == "0" {
            &[" here"; 4][..]
        } else {
            &["scheduler here", "server here", "worker here", "worker here", "worker here", "worker here"]
        };
        let seen: Vec<&str> = seen.iter().map(|text| if servers == "0" { " here" } else { text }).collect();
        assert_eq!(seen, nodes, "{said}");
        assert!(!folder.path().join("called").exists(), "{said}");
    }
    // For processes on other hosts the scheduler's address is not a loopback address.
    let options = ["-n", "2", "-s", "1", "-H", "localhost,ann@127.0.0.1"];
    let (seen, said) = job(folder.path(), HERE, &options, &[], "echo $DMLC_ROLE ${STUB:-here}");
    assert_eq!(seen, ["scheduler here", "server here", "worker ann@127.0.0.1", "worker here"], "{said}");
}

#[test]
fn the_users_environment_reaches_other_hosts_but_what_belongs_to_this_one() {
    let folder = tempfile::tempdir().unwrap();
    let bin = folder.path().join("bin");
    std::fs::create_dir(&bin).unwrap();
    script(&bin, "python-of-a-venv", "echo venv");
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let variables = [
        ("PATH", &path[..]),
        ("LD_LIBRARY_PATH", "/of/the/user"),
        ("RINGPULL_WARN", "7"),
        ("HOROVOD_FUSION_THRESHOLD", "8"),
        ("WANDB_API_KEY", "it's \"secret\" $HOME\nof two lines"),
        ("EMPTY", ""),
        ("TMPDIR", "/tmp"),
        ("SSH_AUTH_SOCK", "/sock"),
        ("XDG_RUNTIME_DIR", "/run/user/0"),
    ];
    // The other host has none of this process's environment, but programs of its own.
    let shell = "printf '%s\\n' \"$@\" >>\"${0%/*}/arguments\"\nexec env -i STUB=$STUB HOME=$HOME TMPDIR=$TMPDIR LD_LIBRARY_PATH=/of/it PATH=/own:/usr/bin:/bin:/usr/sbin sh -c \"$*\"";
    let says = "printf '%s|' $(python-of-a-venv) \"$RINGPULL_WARN\" \"$HOROVOD_FUSION_THRESHOLD\" \"$WANDB_API_KEY\" \
                \"${EMPTY-unset}\" \"${TMPDIR%/tmp.*}\" \"$SSH_AUTH_SOCK\" \"$XDG_RUNTIME_DIR\" \"${PATH##*:/own}\" $(case $LD_LIBRARY_PATH in /of/the/user:*/of/it*) echo libraries ;; esac) $DMLC_ROLE $STUB";
    let own = folder.path().display();
    let expected = format!("venv|7|8|it's \"secret\" $HOME\nof two lines||{own}|||:/usr/bin:/bin:/usr/sbin|libraries|");
    for servers in ["0", "1"] {
        if servers == "0" && !has_mpi() {
            continue;
        }
        let options = ["-n", "2", "-s", servers, "-H", "ann@127.0.0.2,bob@127.0.0.3"];
        let (seen, said) = job(folder.path(), shell, &options, &variables, says);
        let of_others: Vec<&String> = seen.iter().filter(|text| text.contains('@')).collect();
        assert_eq!(of_others.len(), 2 + servers.parse::<usize>().unwrap(), "{seen:?} {said}");
        for text in of_others {
            assert!(text.starts_with(&expected), "{text:?} {said}");
        }
        let arguments = std::fs::read_to_string(folder.path().join("arguments")).unwrap();
        assert!(!arguments.contains("secret"), "{arguments}");
    }
}

#[test]
fn a_host_whose_login_shell_is_csh_runs_every_job() {
    if Command::new("tcsh").args(["-f", "-c", "true"]).output().is_err() {
        eprintln!("skipped: tcsh is not installed");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let memory = folder.path().join("memory");
    std::fs::create_dir(&memory).unwrap();
    let elastic = ["--elastic", "--min-workers", "2", "--snapshots", memory.to_str().unwrap()];
    let shell = "exec tcsh -f -c \"$*\"";
    for (options, count) in [(&["-n", "2", "-s", "1"][..], 4), (&["-n", "2"], 2), (&elastic, 2)] {
        if count == 2 && !has_mpi() {
            continue;
        }
        let options = [options, &["-H", "ann@127.0.0.2,bob@127.0.0.3"]].concat();
        let (seen, said) = job(folder.path(), shell, &options, &[], "echo \"it's a !line\" $STUB");
        assert_eq!(seen.len(), count, "{seen:?} {said}");
        assert!(said.starts_with("Some(0)") && !said.contains("Unmatched"), "{said}");
    }
}

/// Runs a shell script with mounts (`-m`) or a network (`-n`) of its own. Returns `None` if this user may not
/// have them.
fn apart(own: &str, script: &str, words: &[&str], ssh: &Path) -> Option<Output> {
    let run = |script: &str| {
        let mut command = Command::new("unshare");
        command.args([own, "sh", "-c", script, "sh"]).args(words).env("RINGPULL_SSH", ssh).output().ok()
    };
    let tried = if own == "-m" { "mount -t tmpfs none /mnt" } else { "ip link set lo up" };
    if run(tried).is_none_or(|output| !output.status.success()) {
        eprintln!("skipped: mounts and networks of its own need root");
        return None;
    }
    run(script)
}

#[test]
fn folders_for_temporary_files_may_forbid_programs_and_have_blanks() {
    if !has_mpi() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let stub = ssh(folder.path(), HERE);
    std::fs::create_dir(folder.path().join("t")).unwrap();
    let words = [folder.path().to_str().unwrap(), env!("CARGO_BIN_EXE_ringpull")];
    for name in ["t", "t/a b"] {
        let script = format!(
            "mount -t tmpfs -o noexec none \"$1/t\"; mkdir -p \"$1/{name}\"; TMPDIR=\"$1/{name}\"; export TMPDIR
             exec \"$2\" launch -n 2 -H ann@127.0.0.2:2 -- sh -c 'echo rank >\"$0/rank.$$\"' \"$1\""
        );
        let Some(output) = apart("-m", &script, &words, &stub) else { return };
        let ranks: Vec<PathBuf> =
            std::fs::read_dir(folder.path()).unwrap().flatten().map(|entry| entry.path()).collect();
        let ranks = ranks.iter().filter(|path| path.to_string_lossy().contains("/rank."));
        assert!(output.status.success() && ranks.clone().count() == 2, "{name}: {output:?}");
        ranks.for_each(|path| std::fs::remove_file(path).unwrap());
    }
}

#[test]
fn an_mpirun_that_cannot_say_what_it_is_is_quoted() {
    let folder = tempfile::tempdir().unwrap();
    let mpirun =
        script(folder.path(), "mpirun", "echo ----- >&2; echo 'Unable to get the user home directory' >&2; exit 1");
    let output = launch(&["-n", "1", "--", "true"]).env("RINGPULL_MPIRUN", mpirun).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && text.contains("Unable to get the user home directory"), "{text}");
}

#[test]
fn servers_run_on_hosts_that_have_addresses_of_ipv6_alone() {
    let folder = tempfile::tempdir().unwrap();
    let stub = ssh(folder.path(), HERE);
    let script = "ip link set lo up; ip -4 addr flush dev lo; ip addr add fd00:6::1/128 dev lo; ip addr add fd00:6::2/128 dev lo
        exec \"$1\" launch -n 2 -s 1 --no-tag -H 'ann@[fd00:6::1]:1,ann@fd00:6::2' -- sh -c 'echo $DMLC_ROLE $DMLC_PS_ROOT_URI $DMLC_NODE_HOST'";
    let Some(output) = apart("-n", script, &[env!("CARGO_BIN_EXE_ringpull")], &stub) else { return };
    let text = String::from_utf8_lossy(&output.stdout);
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    let workers = ["worker fd00:6::1 fd00:6::1", "worker fd00:6::1 fd00:6::2"];
    assert_eq!(lines, [&["scheduler fd00:6::1", "server fd00:6::1 fd00:6::1"], &workers[..]].concat(), "{output:?}");
}

#[test]
fn the_doctor_sees_hosts_as_a_job_does_and_names_what_stays_here() {
    let folder = tempfile::tempdir().unwrap();
    let shell = "exec env -i STUB=$STUB HOME=$HOME PATH=/usr/bin:/bin TMPDIR=${0%/*}/none sh -c \"$*\"";
    let stub = ssh(folder.path(), shell);
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringpull"));
    command.args(["doctor", "--format", "json", "-H", "localhost ann@127.0.0.2"]).env("RINGPULL_SSH", stub);
    let output = command.env("XDG_RUNTIME_DIR", "/run/user/1").stdin(Stdio::null()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let found: Vec<serde_json::Value> = serde_json::from_str(&text).unwrap();
    let of =
        |check: &str| found.iter().find(|found| found["check"] == check).unwrap_or_else(|| panic!("{check}: {text}"));
    let environment = of("environment")["what"].as_str().unwrap();
    let (passed, stays) = environment.split_once("; not ").unwrap();
    assert!(passed.ends_with("variables are passed on to other hosts"), "{environment}");
    assert!(stays.contains("HOME") && stays.contains("XDG_RUNTIME_DIR") && !stays.contains("PATH"), "{environment}");
    assert_eq!(
        (&of("temporary files")["host"], &of("temporary files")["verdict"]),
        (&"127.0.0.2".into(), &"warning".into())
    );
    assert!(!found.iter().any(|found| found["check"] == "python"), "PATH is passed on: {text}");
}

#[test]
fn a_login_that_is_refused_and_a_folder_that_is_missing_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let refusing = "echo 'This account is currently not available.'; exit 1";
    let (_, said) = job(folder.path(), refusing, &["-n", "1", "-H", "ann@127.0.0.2"], &[], "true");
    assert!(said.contains("cannot be reached by ssh: This account is currently not available."), "{said}");
    if has_mpi() {
        let variables = [("TMPDIR", "/nonexistent")];
        let (_, said) = job(folder.path(), HERE, &["-n", "1", "-H", "ann@127.0.0.2"], &variables, "true");
        assert!(said.contains("folder in /nonexistent: ") && said.contains("hint: set TMPDIR"), "{said}");
    }
}
