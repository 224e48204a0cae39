//! Translates the options of `horovodrun`, of MXNet's `launch.py` and of `mpirun` into options of
//! `ringpull launch`.
//!
//! `ringpull launch -np 4 -H host1:2,host2:2 python train.py` starts the same job. Before the command line is
//! parsed, each of their options that we do not have is replaced by one of ours, by a warning that it has no
//! effect, or by an error that names another way. Words of the command itself are not changed.

use std::ffi::OsString;

use clap::{Arg, Command};

use ringpull_base::{Error, Result};

/// The meaning of a foreign option here.
enum OptionMeaning {
    /// Our option of this name.
    Option(&'static str),
    /// Our option of this name, which makes the job elastic.
    Elastic(&'static str),
    /// Our option of this name, if another option makes the job elastic.
    IfElastic(&'static str),
    /// A variable of the processes, made of the option's value.
    Variable(&'static str, fn(&str) -> Option<String>),
    /// No effect, with the reason.
    Nothing(&'static str),
    /// An error that says what to do instead.
    Refused(&'static str),
}

use OptionMeaning::{Elastic, IfElastic, Nothing, Option as Ours, Refused, Variable};

/// Its names, how many values follow, and what it is.
const OPTIONS: [(&[&str], usize, OptionMeaning); 38] = [
    (&["-np", "--num-proc"], 1, Ours("--num-workers")),
    (&["-hostfile"], 1, Ours("--hostfile")),
    (&["--hosts"], 1, Ours("--hostfile")),
    (&["-machinefile", "--machinefile", "-f", "-host", "--host", "-hosts"], 1, Ours("--hostfile")),
    (
        &["-ppn", "--ppn", "-perhost", "-npernode", "--npernode", "-N"],
        1,
        Refused(
            "give each host's number of processes as its slots: a line `host slots=1` of the hostfile, or -H host1:1,host2:1",
        ),
    ),
    (&["-x"], 1, Refused("give --env NAME or --env NAME=VALUE; other hosts get your environment by themselves")),
    (&["--p3"], 0, Nothing("it changes the order in which MXNet's workers send values, and no sum")),
    (&["--fusion-threshold-mb"], 1, Variable("RINGPULL_FUSION_BYTES", mib)),
    (&["--timeline-filename"], 1, Variable("RINGPULL_TIMELINE", same)),
    (&["--stall-check-warning-time-seconds"], 1, Variable("RINGPULL_WARN", same)),
    (&["--stall-check-shutdown-time-seconds"], 1, Variable("RINGPULL_TIMEOUT", same)),
    (&["--no-stall-check"], 0, Variable("RINGPULL_TIMEOUT", never)),
    (&["--log-level"], 1, Variable("RINGPULL_LOG", level)),
    (&["--verbose"], 0, Variable("RINGPULL_LOG", verbose)),
    (&["--mpi"], 0, Nothing("MPI ranks are started by mpirun anyway")),
    (&["--gloo"], 0, Nothing("ranks exchange messages by MPI")),
    (&["--tcp"], 0, Nothing("the MPI library chooses the network")),
    (&["--cycle-time-ms"], 1, Nothing("nothing waits for a cycle: what is summed together follows from the calls")),
    (&["--cache-capacity"], 1, Nothing("steps that repeat themselves are recognised without a limit")),
    (&["--disable-cache"], 0, Nothing("no checks before the job are cached")),
    (&["--hierarchical-allreduce", "--no-hierarchical-allreduce"], 0, Nothing("`auto` decides by the hosts")),
    (&["--hierarchical-allgather", "--no-hierarchical-allgather"], 0, Nothing("`auto` decides by the hosts")),
    (&["--autotune", "--no-autotune"], 0, Nothing("`auto` goes by what `ringpull probe` has measured")),
    (&["--timeline-mark-cycles"], 0, Nothing("operations do not run in cycles here")),
    (&["--start-timeout"], 1, Nothing("a rank that does not come is reported after RINGPULL_TIMEOUT seconds")),
    (&["--gloo-timeout-seconds"], 1, Nothing("ranks exchange messages by MPI")),
    (&["--num-nccl-streams", "--thread-affinity"], 1, Nothing("ringpull has no such setting")),
    (&["-i", "--ssh-identity-file"], 1, Refused("set RINGPULL_SSH='ssh -i FILE'")),
    (
        &["--network-interface", "--network-interfaces"],
        1,
        Refused("set the MPI library's variable, for Open MPI --env OMPI_MCA_btl_tcp_if_include=eth0"),
    ),
    (&["--mpi-args", "--binding-args", "--output-filename", "--config-file"], 1, Refused("run mpirun itself")),
    (&["--jsrun"], 0, Refused("in an allocation of Slurm use --launcher slurm, of Grid Engine --launcher sge")),
    (&["--min-np", "--min-num-proc"], 1, Elastic("--min-workers")),
    (&["--max-np", "--max-num-proc"], 1, Elastic("--max-workers")),
    (&["--host-discovery-script"], 1, Elastic("--discover-hosts")),
    (&["--reset-limit"], 1, Elastic("--max-resets")),
    (&["--blacklist-cooldown-range"], 2, IfElastic("--cooldown")),
    (&["--elastic-timeout"], 1, Nothing("an elastic job waits for hosts until there are enough")),
    (&["--slots", "--slots-per-host"], 1, Refused("let the script print the slots of each host: host:slots")),
];

fn same(value: &str) -> Option<String> {
    (!value.is_empty()).then(|| value.to_owned())
}

fn mib(value: &str) -> Option<String> {
    let mib: f64 = value.parse().ok().filter(|mib: &f64| (0.0..1e6).contains(mib))?;
    Some(((mib * f64::from(1 << 20)) as u64).to_string())
}

/// Returns 0, which means never, for an option without a value.
fn never(value: &str) -> Option<String> {
    value.is_empty().then(|| "0".to_owned())
}

fn verbose(_value: &str) -> Option<String> {
    level("debug")
}

fn level(value: &str) -> Option<String> {
    let level = match value.to_ascii_lowercase().as_str() {
        "warning" => "warn",
        "fatal" => "error",
        level @ ("trace" | "debug" | "info" | "error") => return Some(format!("ringpull={level}")),
        _ => return None,
    };
    Some(format!("ringpull={level}"))
}

/// Translates the `words` of a command line behind `ringpull launch` into the options of `launch`. Returns
/// the warnings too.
pub(crate) fn translated(words: Vec<OsString>, launch: &Command) -> Result<(Vec<OsString>, Vec<String>)> {
    let (mut ours, mut warnings) = (Vec::new(), Vec::new());
    let (mut is_elastic, mut if_elastic) = (false, Vec::new());
    let mut rest = words.into_iter();
    while let Some(word) = rest.next() {
        let Some(text) = word.to_str().filter(|text| text.starts_with('-') && *text != "--") else {
            // The command begins here.
            let says_so = ours.iter().any(|word| word == "--elastic");
            if is_elastic && !says_so {
                ours.push("--elastic".into());
            }
            if is_elastic || says_so {
                ours.append(&mut if_elastic);
            } else if !if_elastic.is_empty() {
                warnings.push("warning: --blacklist-cooldown-range has no effect: the job is not elastic".to_owned());
            }
            ours.push(word);
            break;
        };
        let (name, value) = match text.split_once('=') {
            Some((name, value)) if text.starts_with("--") => (name, Some(OsString::from(value))),
            _ => (text, None),
        };
        let Some((_, wanted, meaning)) = OPTIONS.iter().find(|(names, ..)| names.contains(&name)) else {
            if let Some((name, value)) = glued(launch, text) {
                ours.extend([name.into(), value.into()]);
                continue;
            }
            let takes_value = takes_value(launch, name)? && value.is_none();
            ours.push(word);
            if takes_value {
                ours.extend(rest.next());
            }
            continue;
        };
        let mut values: Vec<OsString> = value.into_iter().collect();
        while values.len() < *wanted {
            let Some(value) = rest.next() else {
                return Err(Error::argument(format!("{name} without a value"), "give its value behind it"));
            };
            values.push(value);
        }
        match meaning {
            Ours(option) => ours.extend([OsString::from(option)].into_iter().chain(values)),
            Elastic(option) => {
                is_elastic = true;
                ours.extend([OsString::from(option)].into_iter().chain(values));
            }
            IfElastic(option) => if_elastic.extend([OsString::from(option)].into_iter().chain(values)),
            Variable(variable, of) => {
                let given = values.first().map_or("", |value| value.to_str().unwrap_or_default());
                let made = of(given).ok_or_else(|| {
                    Error::argument(
                        format!("invalid {name} {given:?}"),
                        format!("give a value that can be translated into {variable}, or set the variable yourself: --env {variable}=VALUE"),
                    )
                })?;
                ours.extend(["--env".into(), format!("{variable}={made}").into()]);
            }
            Nothing(why) => warnings.push(format!("warning: {name} has no effect: {why}")),
            Refused(instead) => {
                return Err(Error::argument(format!("launch has no option {name}"), (*instead).to_owned()));
            }
        }
    }
    ours.extend(rest);
    Ok((ours, warnings))
}

/// Returns true if the next word is the value of this option of ours, or of the last of several short ones in
/// one word. An error if there is no such option.
fn takes_value(launch: &Command, name: &str) -> Result<bool> {
    let option = match name.strip_prefix("--") {
        Some("help") => return Ok(false),
        Some(long) => launch.get_arguments().find(|arg| {
            arg.get_long() == Some(long) || arg.get_all_aliases().is_some_and(|aliases| aliases.contains(&long))
        }),
        None if name == "-h" => return Ok(false),
        None => name[1..].chars().map(|short| short_option(launch, short)).reduce(Option::and).flatten(),
    };
    let takes = option.map(|option| option.get_action().takes_values());
    takes.ok_or_else(|| {
        Error::argument(
            format!("launch has no option {name}"),
            "see `ringpull launch --help`; the options of your program follow its name",
        )
    })
}

fn short_option(launch: &Command, short: char) -> Option<&Arg> {
    launch.get_arguments().find(|arg| arg.get_short() == Some(short))
}

/// A short option of ours and its value, if both are one word, such as `-n2`: clap would take it for the
/// program, which may begin with a hyphen.
fn glued<'a>(launch: &Command, word: &'a str) -> Option<(&'a str, &'a str)> {
    let (name, value) = word.split_at_checked(2).filter(|(_, value)| !value.is_empty())?;
    let takes = short_option(launch, name.chars().nth(1)?)?.get_action().takes_values();
    let is_value = name == "-H" || value.starts_with(|c: char| c.is_ascii_digit());
    (takes && is_value).then_some((name, value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    fn of(text: &str) -> Result<(Vec<String>, Vec<String>)> {
        let command = crate::commands::Cli::command();
        let launch = command.find_subcommand("launch").unwrap();
        let words = text.split(' ').skip(2).map(OsString::from).collect();
        let (words, warnings) = translated(words, launch)?;
        Ok((words.into_iter().map(|word| word.into_string().unwrap()).collect(), warnings))
    }

    #[test]
    fn options_of_horovodrun_become_ours_and_the_command_is_left_alone() {
        for (theirs, ours) in [
            ("ringpull launch -np 4 python train.py -np 3", "ringpull launch --num-workers 4 python train.py -np 3"),
            (
                "ringpull launch -np 4 -H a:2,b:2 -p 22 --verbose python x",
                "ringpull launch --num-workers 4 -H a:2,b:2 -p 22 --env RINGPULL_LOG=ringpull=debug python x",
            ),
            (
                "ringpull launch -np 2 --fusion-threshold-mb 32 --timeline-filename=t.json -- x --gloo",
                "ringpull launch --num-workers 2 --env RINGPULL_FUSION_BYTES=33554432 --env RINGPULL_TIMELINE=t.json -- x --gloo",
            ),
            (
                "ringpull launch -np 4 --min-np 2 --max-np=8 --host-discovery-script ./hosts --reset-limit 3 --blacklist-cooldown-range 1 2 x",
                "ringpull launch --num-workers 4 --min-workers 2 --max-workers 8 --discover-hosts ./hosts --max-resets 3 --elastic --cooldown 1 2 x",
            ),
            (
                "ringpull launch -n 2 --launcher mpi --env A=1 --no-tag --no-stall-check x",
                "ringpull launch -n 2 --launcher mpi --env A=1 --no-tag --env RINGPULL_TIMEOUT=0 x",
            ),
            ("ringpull launch -n 2 -machinefile m x -f y", "ringpull launch -n 2 --hostfile m x -f y"),
            ("ringpull launch -n2 -s1 -Ha:1,b:1 -qp 3 x -n4", "ringpull launch -n 2 -s 1 -H a:1,b:1 -qp 3 x -n4"),
            ("ringpull launch --num-workers 2 -np 3 x", "ringpull launch --num-workers 2 --num-workers 3 x"),
            ("ringpull launch -h", "ringpull launch -h"),
            ("ringpull launch -n 2 -- -x a", "ringpull launch -n 2 -- -x a"),
        ] {
            let (words, warnings) = of(theirs).unwrap();
            assert_eq!(format!("ringpull launch {}", words.join(" ")), ours);
            assert!(warnings.is_empty(), "{warnings:?}");
        }
    }

    #[test]
    fn what_has_no_meaning_here_is_a_warning_or_an_error_that_names_another_way() {
        let (words, warnings) =
            of("ringpull launch --gloo --cycle-time-ms 5 --blacklist-cooldown-range 1 2 -np 2 x").unwrap();
        assert_eq!(words.join(" "), "--num-workers 2 x");
        assert!(warnings.len() == 3 && warnings[1].contains("--cycle-time-ms has no effect"), "{warnings:?}");
        let (words, warnings) = of("ringpull launch -n 2 --p3 x --p3").unwrap();
        assert!(words.join(" ") == "-n 2 x --p3" && warnings[0].contains("--p3 has no effect"), "{warnings:?}");
        for (text, part) in [
            ("ringpull launch -np 2 -i key x", "RINGPULL_SSH"),
            ("ringpull launch -np", "-np without a value"),
            ("ringpull launch -n 8 -ppn 1 -machinefile hosts x", "-ppn"),
            ("ringpull launch --blacklist-cooldown-range 1", "--blacklist-cooldown-range without a value"),
            ("ringpull launch --fusion-threshold-mb much x", "RINGPULL_FUSION_BYTES"),
            ("ringpull launch --log-level loud x", "RINGPULL_LOG"),
            ("ringpull launch -n 2 -x A=1 -- x", "--env NAME=VALUE"),
            ("ringpull launch --nproc_per_node 2 x", "launch has no option --nproc_per_node"),
            ("ringpull launch --num-workers 2 --map-by node -- x", "launch has no option --map-by"),
            ("ringpull launch --nnodes=2 x", "launch has no option --nnodes"),
            ("ringpull launch -c 2 x", "launch has no option -c"),
        ] {
            let error = of(text).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn no_option_of_ours_is_taken_for_one_of_theirs() {
        let command = crate::commands::Cli::command();
        let launch = command.find_subcommand("launch").unwrap();
        for arg in launch.get_arguments() {
            let names = arg.get_long().map(|long| format!("--{long}")).into_iter();
            for name in names.chain(arg.get_short().map(|short| format!("-{short}"))) {
                assert!(!OPTIONS.iter().any(|(names, ..)| names.contains(&name.as_str())), "{name}");
            }
        }
    }
}
