//! Output and signals of the processes of a job, the same with every launcher. Under `scripts/own-slurm` the
//! launcher is Slurm's.

use super::ranks::{Job, lines_of};
use super::*;

/// Each way to start two workers: its options, and the name of a worker. On the login host of a Slurm it is
/// only Slurm's way; the others are tested elsewhere.
fn launchers() -> Vec<(Vec<&'static str>, &'static str)> {
    if slurm::answers() {
        return vec![
            (vec!["-n", "2", "--launcher", "slurm", "--"], "rank"),
            (vec!["-n", "2", "-s", "1", "--launcher", "slurm", "--"], "worker"),
        ];
    }
    let by_mpi = [
        (vec!["-n", "2", "--"], "rank"),
        (vec!["-n", "2", "-s", "1", "--launcher", "mpi", "--"], "worker"),
        (vec!["-n", "2", "-s", "1", "--hybrid", "--"], "rank"),
        (vec!["-n", "2", "--elastic", "--min-workers", "2", "--max-restarts", "0", "--"], "rank"),
    ];
    let servers = (vec!["-n", "2", "-s", "1", "--"], "worker");
    let by_mpi = by_mpi.into_iter().filter(|_| has_mpi());
    [servers].into_iter().chain(by_mpi).collect()
}

#[test]
fn every_byte_of_a_process_arrives_in_its_lines_and_so_does_its_exit_code() {
    let program = "printf 'bro\\377ken \\0 \\303'; printf '\\244\\n\\n'\n\
                   head -c 3000000 /dev/zero | tr '\\0' x; echo\n\
                   i=0; while [ $i -lt 300 ]; do echo line $i $me; i=$((i + 1)); done\n\
                   printf end; printf late >&2\n\
                   [ $me = 0 ] || touch $F/done\nuntil [ -e $F/done ]; do sleep 0.05; done\n[ $me = 1 ] || exit 7";
    for (options, name) in launchers() {
        let (code, out, err) = Job::start(&options, program).end();
        assert_eq!(code, Some(7), "{options:?}: {err}");
        for worker in 0..2 {
            let lines = lines_of(&out, &format!("{name} {worker}"));
            let numbered: Vec<String> = (0..300).map(|line| format!("line {line} {worker}")).collect();
            assert_eq!(lines.len(), 304, "{options:?}");
            assert_eq!(lines[0], b"bro\xffken \0 \xc3\xa4");
            let is_long = lines[2].len() == 3_000_000 && lines[2].iter().all(|byte| *byte == b'x');
            assert!(lines[1].is_empty() && is_long && lines[303] == b"end", "{options:?}");
            assert!(lines[3..303].iter().zip(&numbered).all(|(line, expected)| *line == expected.as_bytes()));
            assert!(err.contains(&format!("[{name} {worker}] late\n")), "{options:?}: {err}");
        }
    }
}

/// Because of the variable Python does not buffer the lines.
#[test]
fn a_prompt_and_a_bar_appear_before_their_line_has_ended() {
    let wait = |name: &str| format!("until [ -e $F/{name} ]; do sleep 0.05; done\n");
    let program = format!(
        "if [ $me = 0 ]; then printf \"name$PYTHONUNBUFFERED? \"\n{}printf '\\r 50%%'\n{}printf '\\r100%%\\n'; fi",
        wait("prompted"),
        wait("half")
    );
    for (options, name) in launchers() {
        let mut job = Job::start(&options, &program);
        job.reads(&format!("[{name} 0] name1? "));
        job.make("prompted");
        job.reads(&format!("\r[{name} 0]  50%"));
        job.make("half");
        job.reads(&format!("\r[{name} 0] 100%\n"));
        let (code, _, err) = job.end();
        assert_eq!(code, Some(0), "{options:?}: {err}");
    }
}

/// The first worker saves its state, and needs a child process for that. The second ends at once, which must
/// not end the first. A shell around a program gives the program time, too. A copy of a shell has another
/// name, so it does not count as a shell.
#[test]
fn after_sigterm_a_worker_saves_its_state_with_its_children_and_all_of_its_output_arrives() {
    let saves = "sleep 1000 & helper=$!\n\
                 trap 'kill -0 $helper && echo told; until [ -e $F/go ]; do sleep 0.05; done; \
                 kill -0 $helper && echo saved; kill $helper; exit 0' TERM\necho up; while :; do sleep 0.05; done";
    let program = format!(
        "if [ $me = 0 ]; then cat >$F/saves <<'END'\n{saves}\nEND\ncp $(command -v sh) $F/trainer; $F/trainer $F/saves; echo $?\nelse echo up; exec sleep 1000; fi"
    );
    for (options, name) in launchers() {
        let mut job = Job::start(&options, &program);
        let seen = job.reads("] up\n");
        let other = usize::from(!lines_of(&seen, &format!("{name} 0")).is_empty());
        job.reads(&format!("[{name} {other}] up\n"));
        job.signal(Signal::TERM);
        job.reads(&format!("[{name} 0] told\n"));
        job.make("go");
        job.reads(&format!("[{name} 0] saved\n"));
        let (code, _, err) = job.end();
        assert_eq!(code, Some(143), "{options:?}: {err}");
        assert!(!err.contains("panicked"), "{err}");
    }
}

/// A shell without a trap passes the signals on. A program beside it that does not handle them goes on.
#[test]
fn signals_for_the_program_reach_each_worker_and_end_no_job() {
    let traps = "trap 'echo one' USR1; trap 'echo two; exit 0' USR2; echo up; while :; do sleep 0.05; done";
    let program = format!(
        "if [ $me = 0 ]; then {traps}; else cat >$F/traps <<'END'\n{traps}\nEND\nsh $F/traps | cat; echo rest; fi"
    );
    for (options, name) in launchers() {
        let mut job = Job::start(&options, &program);
        let mut said = String::new();
        let mut reads = |job: &mut Job, word: &str| {
            while (0..2).any(|worker| !said.contains(&format!("[{name} {worker}] {word}\n"))) {
                said.push_str(&String::from_utf8_lossy(&job.reads("\n")));
            }
        };
        reads(&mut job, "up");
        job.signal(Signal::USR1);
        reads(&mut job, "one");
        job.signal(Signal::USR2);
        reads(&mut job, "two");
        let (code, out, err) = job.end();
        let rest = String::from_utf8_lossy(&out).contains(&format!("[{name} 1] rest"));
        assert!(code == Some(0) && (rest || said.contains("] rest")), "{options:?}: {code:?} {err}");
    }
}

#[test]
fn a_second_interrupt_kills_what_ignores_the_first_and_nothing_is_left() {
    for (options, name) in launchers() {
        let mark = mark();
        let program = format!("trap '' TERM INT; echo up; sleep {mark} & sleep {mark}");
        let mut job = Job::start(&options, &program);
        let seen = job.reads("] up\n");
        let other = usize::from(!lines_of(&seen, &format!("{name} 0")).is_empty());
        job.reads(&format!("[{name} {other}] up\n"));
        until("both started their children", || running(&mark) == 4);
        // Two signals that arrive at once count as one.
        until("the job has ended", || {
            job.signal(Signal::INT);
            job.child.try_wait().unwrap().is_some()
        });
        let (code, _, err) = job.end();
        assert_eq!(code, Some(130), "{options:?}: {err}");
        until("nothing is left", || running(&mark) == 0);
    }
}
