//! The settings that must be equal on all ranks of a job. If one were set only on rank 0, it would apply only
//! there, and nobody would notice.

use super::{Config, shared_memory};
use crate::Error;

/// The bytes of a value, as ranks exchange it: its text, padded with zeros.
pub type AlikeValue = [u8; 24];

/// A setting with its variable and its value in a configuration, as a user would write it.
type Setting = (&'static str, fn(&Config) -> String);

/// All settings that must be equal.
const SETTINGS: [Setting; 8] =
    [
        ("RINGPULL_SEGMENT", |config| {
            if config.segment_is_fixed { config.segment_bytes.to_string() } else { "unset".to_owned() }
        }),
        ("RINGPULL_ALGORITHM", |config| config.algorithm.to_string()),
        ("RINGPULL_FUSION_BYTES", |config| {
            config.fusion_bytes.map_or_else(|| "unset".to_owned(), |bytes| bytes.to_string())
        }),
        ("RINGPULL_CHECK_NAN", |config| switch(config.check_nan)),
        ("RINGPULL_CHECK_REPLICAS", |config| config.check_replicas.to_string()),
        ("RINGPULL_SHARED_MEMORY", |_| switch(shared_memory())),
        ("RINGPULL_READ_MEMORY", |config| config.read_memory.map_or_else(|| "auto".to_owned(), switch)),
        ("RINGPULL_ELASTIC", |config| switch(config.elastic)),
    ];

/// The values of one rank.
pub type AlikeValues = [AlikeValue; SETTINGS.len()];

fn switch(on: bool) -> String {
    u8::from(on).to_string()
}

/// The names of the variables.
#[cfg(test)]
pub(crate) fn alike_variables() -> impl Iterator<Item = &'static str> {
    SETTINGS.iter().map(|(variable, _)| *variable)
}

impl Config {
    /// Returns the values of the settings that must be equal on all ranks.
    pub fn alike(&self) -> AlikeValues {
        SETTINGS.map(|(_, of)| {
            let (mut value, text) = ([0; size_of::<AlikeValue>()], of(self));
            let len = text.len().min(value.len());
            value[..len].copy_from_slice(&text.as_bytes()[..len]);
            value
        })
    }
}

/// Returns an error if the ranks' values are not equal. It names the variable and each rank's value.
pub fn check_alike(ranks: &[AlikeValues]) -> crate::Result<()> {
    let differs = |at: &usize| ranks.iter().any(|rank| rank[*at] != ranks[0][*at]);
    let Some(at) = (0..SETTINGS.len()).find(differs) else { return Ok(()) };
    let variable = SETTINGS[at].0;
    let mut views: Vec<(AlikeValue, Vec<usize>)> = Vec::new();
    for (rank, values) in ranks.iter().enumerate() {
        match views.iter_mut().find(|(value, _)| *value == values[at]) {
            Some((_, holders)) => holders.push(rank),
            None => views.push((values[at], vec![rank])),
        }
    }
    let said = |(value, holders): &(AlikeValue, Vec<usize>)| {
        let value = String::from_utf8_lossy(value).trim_end_matches('\0').to_owned();
        match &holders[..] {
            [one] => format!("rank {one} has {value}"),
            several => {
                format!("ranks {} have {value}", several.iter().map(usize::to_string).collect::<Vec<_>>().join(", "))
            }
        }
    };
    Err(Error::job_mismatch(
        format!("the ranks disagree on {variable}: {}", views.iter().map(said).collect::<Vec<_>>().join("; ")),
        format!(
            "set {variable} alike on every rank, or give each the same Config: `ringpull launch` passes it on to all hosts, \
             Open MPI's mpirun with -x {variable}"
        ),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::listed::variables;

    #[test]
    fn each_setting_that_differs_is_named_with_every_ranks_value() {
        let plain = Config::default();
        let all = [
            (
                "RINGPULL_SEGMENT",
                "rank 1 has 4096",
                Config { segment_is_fixed: true, segment_bytes: 4096, ..plain.clone() },
            ),
            ("RINGPULL_ALGORITHM", "rank 1 has ring", Config { algorithm: "ring".parse().unwrap(), ..plain.clone() }),
            (
                "RINGPULL_FUSION_BYTES",
                "ranks 0, 2 have unset; rank 1 has 0",
                Config { fusion_bytes: Some(0), ..plain.clone() },
            ),
            ("RINGPULL_CHECK_NAN", "ranks 0, 2 have 0; rank 1 has 1", Config { check_nan: true, ..plain.clone() }),
            (
                "RINGPULL_CHECK_REPLICAS",
                "rank 1 has 18446744073709551615",
                Config { check_replicas: u64::MAX, ..plain.clone() },
            ),
            (
                "RINGPULL_READ_MEMORY",
                "ranks 0, 2 have auto; rank 1 has 0",
                Config { read_memory: Some(false), ..plain.clone() },
            ),
            ("RINGPULL_ELASTIC", "rank 1 has 1", Config { elastic: true, ..plain.clone() }),
        ];
        let own = plain.alike();
        assert_eq!(check_alike(&[own; 3]), Ok(()));
        for (variable, said, config) in &all {
            let error = check_alike(&[own, config.alike(), own]).unwrap_err().to_string();
            assert!(error.contains(&format!("disagree on {variable}: ")) && error.contains(said), "{error}");
        }
        // Shared memory is not a field of the configuration.
        let tried = all.iter().map(|(variable, ..)| *variable).chain(["RINGPULL_SHARED_MEMORY"]);
        assert_eq!(tried.collect::<std::collections::BTreeSet<_>>(), alike_variables().collect());
        assert!(alike_variables().all(|name| variables().any(|variable| variable == name)));
    }
}
