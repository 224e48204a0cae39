//! The lines in which a job reports its fault, found in its output.

use std::collections::BTreeSet;

use serde::Serialize;

/// The report of a job.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct JobReport {
    /// The number of ranks that wrote an error.
    pub ranks: usize,
    /// The first error with a remedy, or the last line.
    pub error: Option<String>,
    /// Its remedy.
    pub hint: Option<String>,
}

impl JobReport {
    /// Reads the output of `ringpull launch`, whose lines begin with the name of their process: `[rank 2] `.
    pub fn of(output: &str) -> Self {
        let lines: Vec<(&str, &str)> = output.lines().filter(|line| !line.trim().is_empty()).map(tagged).collect();
        let is_error =
            |text: &str| ["Error", "error: ", "ringpull: rank ", ": stopped: "].iter().any(|word| text.contains(word));
        let speakers = lines.iter().filter(|(who, text)| is_member(who) && is_error(text));
        let ranks = speakers.map(|(who, _)| *who).collect::<BTreeSet<_>>().len();
        let hinted = lines.iter().enumerate().find_map(|(at, (who, text))| {
            let hint = text.trim().strip_prefix("hint: ")?;
            let before = lines[..at].iter().rfind(|(other, _)| other == who)?;
            Some((before.1.to_owned(), hint.to_owned()))
        });
        let last = || lines.iter().rfind(|(who, _)| is_member(who)).map(|(_, text)| (*text).to_owned());
        let (error, hint) = hinted.map_or((None, None), |(error, hint)| (Some(error), Some(hint)));
        JobReport { ranks, error: error.or_else(last), hint }
    }
}

fn is_member(who: &str) -> bool {
    ["rank ", "worker "].iter().any(|role| who.starts_with(role))
}

/// The process and the text of a line.
fn tagged(line: &str) -> (&str, &str) {
    line.strip_prefix('[').and_then(|rest| rest.split_once("] ")).unwrap_or(("", line))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_with_a_remedy_is_found_among_others_lines() {
        let output = "\
[rank 0] ringpull: 3 ranks on 1 host, shared memory, Open MPI 4.1.4
[rank 1] epoch 1
[rank 0] ringpull: rank 0: rank 2 (pid 7 on h3) is lost: its process ended
[rank 1] ringpull: rank 1: rank 2 (pid 7 on h3) is lost: its process ended
[rank 0]   hint: restart the job from its last checkpoint
mpirun noticed that process rank 2 exited
";
        let said = JobReport::of(output);
        assert_eq!(said.ranks, 2);
        assert_eq!(said.error.unwrap(), "ringpull: rank 0: rank 2 (pid 7 on h3) is lost: its process ended");
        assert_eq!(said.hint.unwrap(), "restart the job from its last checkpoint");
        let said = JobReport::of("[rank 0] epoch 1\n[rank 0] Segmentation fault\n");
        assert_eq!((said.ranks, said.error.as_deref(), said.hint), (0, Some("Segmentation fault"), None));
        assert_eq!(JobReport::of(""), JobReport::default());
    }
}
