//! The cluster file: the hosts of a cluster and the rates of their network, as TOML that a person can read
//! and edit. `ringpull probe` writes it, and jobs read it (`learn`).
//!
//! A file may name more hosts than a job has. Hosts of a job that it does not name have the rates of
//! `[network]`.

use std::collections::{BTreeSet, HashMap};

use serde::{Deserialize, Serialize};

use ringpull_base::Error;
use ringpull_plan::{LinkRates, Model};

use super::racks::Racks;

/// The number of bytes per microsecond in one megabit per second.
const MBIT: f64 = 0.125;

/// The contents of a cluster file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cluster {
    /// The network that the hosts have in common.
    pub network: Network,
    /// The hosts.
    #[serde(default, rename = "host")]
    pub hosts: Vec<ClusterHost>,
}

/// The network of a cluster. docs/reference/cluster-file.md explains the numbers.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "`NUMBERS` explains each")]
pub struct Network {
    pub link_mbit: f64,
    pub latency_us: f64,
    #[serde(default)]
    pub burst_mbit: f64,
    #[serde(default)]
    pub burst_kb: f64,
    #[serde(default = "message_us")]
    pub message_us: f64,
    #[serde(default)]
    pub shared_message_us: f64,
    #[serde(default)]
    pub shared_us_per_mb: f64,
    #[serde(default = "fan_factor")]
    pub fan_factor: f64,
    #[serde(default = "adding_mb")]
    pub adding_mb: f64,
}

fn message_us() -> f64 {
    Model::default().message_us
}

fn fan_factor() -> f64 {
    Model::default().fan_factor
}

fn adding_mb() -> f64 {
    Model::default().sum_bytes_per_us
}

/// A host of a cluster.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterHost {
    /// The host's name, as `uname -n` prints it.
    pub name: String,
    /// The rate at which the host's link sends, in Mbit/s, if it is not `link_mbit`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sends_mbit: Option<f64>,
    /// The rate at which the host's link receives, in the same way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receives_mbit: Option<f64>,
    /// The name of its rack.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rack: Option<String>,
}

/// The name of a number in `[network]`, its value in a network, and its meaning.
type NetworkNumber = (&'static str, fn(&Network) -> f64, &'static str);

/// The numbers of `[network]`, in the order of the file.
const NUMBERS: [NetworkNumber; 9] = [
    ("link_mbit", |of| of.link_mbit, "Mbit/s that a host's link carries, each way"),
    ("latency_us", |of| of.latency_us, "microseconds from a message's leaving to its arriving"),
    ("burst_mbit", |of| of.burst_mbit, "Mbit/s that a link carries after a rest; 0: link_mbit"),
    ("burst_kb", |of| of.burst_kb, "kilobytes that go at burst_mbit"),
    ("message_us", |of| of.message_us, "microseconds that a rank works for a message"),
    ("shared_message_us", |of| of.shared_message_us, "microseconds of every rank for a message, if hosts share cores"),
    ("shared_us_per_mb", |of| of.shared_us_per_mb, "microseconds of every rank for a megabyte, if hosts share cores"),
    ("fan_factor", |of| of.fan_factor, "how many times as long bytes take where many flows meet"),
    ("adding_mb", |of| of.adding_mb, "MB/s at which a rank adds"),
];

impl Cluster {
    /// Reads the text of a file. The error explains what is wrong with it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let cluster: Cluster = toml::from_str(text).map_err(|cause| cause.to_string().trim_end().to_owned())?;
        if !cluster.network.model().is_sound() {
            let given: Vec<String> =
                NUMBERS.iter().map(|(name, number, _)| format!("{name} = {}", number(&cluster.network))).collect();
            return Err(format!("its [network] is impossible: {}", given.join(", ")));
        }
        let is_rate = |rate: &Option<f64>| rate.is_none_or(|rate| rate.is_finite() && rate > 0.0);
        match cluster.hosts.iter().find(|host| !is_rate(&host.sends_mbit) || !is_rate(&host.receives_mbit)) {
            Some(host) => Err(format!("a rate of host {} is not above 0", host.name)),
            None => Ok(cluster),
        }
    }

    /// The text of a file, with the meaning of each number beside it.
    pub fn text(&self) -> String {
        let mut lines = vec![
            "# The hosts of a cluster and what their network carries. Correct what you know better.".to_owned(),
            "# Jobs read it by RINGPULL_CLUSTER=FILE. `ringpull probe` writes it.".to_owned(),
            "\n[network]".to_owned(),
        ];
        lines.extend(NUMBERS.iter().map(|(name, number, meaning)| {
            let line = format!("{name} = {:?}", number(&self.network));
            format!("{line:<26} # {meaning}")
        }));
        for host in &self.hosts {
            lines.push(format!("\n[[host]]\nname = {}", quoted(&host.name)));
            for (name, rate) in [("sends_mbit", host.sends_mbit), ("receives_mbit", host.receives_mbit)] {
                lines.extend(rate.map(|rate| format!("{name} = {rate:?}")));
            }
            lines.extend(host.rack.as_ref().map(|rack| format!("rack = {}", quoted(rack))));
        }
        lines.join("\n") + "\n"
    }

    /// Returns the cluster file of hosts with these names. `links` is empty if the links are alike. Bit `h`
    /// of `racks` is the rack of host `h`; 0 means one rack. Numbers are rounded to three digits.
    pub(super) fn of(model: &Model, names: Vec<String>, links: &[LinkRates], racks: u64) -> Self {
        let mbit = |rate: f64| rounded(rate / MBIT);
        let is_shaped = model.short_bytes > 0.0;
        let network = Network {
            link_mbit: mbit(model.long_bytes_per_us),
            latency_us: rounded(model.latency_us),
            burst_mbit: if is_shaped { mbit(model.short_bytes_per_us) } else { 0.0 },
            burst_kb: rounded(model.short_bytes / 1e3),
            message_us: rounded(model.message_us),
            shared_message_us: rounded(model.shared_message_us),
            shared_us_per_mb: rounded(model.shared_us_per_byte * 1e6),
            fan_factor: rounded(model.fan_factor),
            adding_mb: rounded(model.sum_bytes_per_us),
        };
        let host = |(host, name): (usize, String)| ClusterHost {
            name,
            sends_mbit: links.get(host).map(|rates| mbit(rates.sends)),
            receives_mbit: links.get(host).map(|rates| mbit(rates.receives)),
            rack: (racks != 0).then(|| (1 + (racks >> host & 1)).to_string()),
        };
        Cluster { network, hosts: names.into_iter().enumerate().map(host).collect() }
    }

    /// Returns the entries of the job's hosts, in the order of the hosts. If several hosts have one name,
    /// each takes the next entry of that name.
    fn entries(&self, names: &[String]) -> Vec<Option<&ClusterHost>> {
        let mut seen = HashMap::new();
        let entry = |name: &String| {
            let before: &mut usize = seen.entry(name.clone()).or_default();
            *before += 1;
            self.hosts.iter().filter(|host| host.name == *name).nth(*before - 1)
        };
        names.iter().map(entry).collect()
    }

    /// The rates of the links of the job's hosts, in bytes a microsecond.
    pub(super) fn links(&self, names: &[String]) -> Vec<LinkRates> {
        let rate = |of: Option<f64>| MBIT * of.unwrap_or(self.network.link_mbit);
        let rates = |host: Option<&ClusterHost>| LinkRates {
            sends: rate(host.and_then(|host| host.sends_mbit)),
            receives: rate(host.and_then(|host| host.receives_mbit)),
        };
        self.entries(names).into_iter().map(rates).collect()
    }

    /// The model of the job's hosts: its rate in the long run is the rate of the slowest link.
    pub(super) fn model(&self, names: &[String]) -> Model {
        let slowest = self.links(names).iter().map(|rates| rates.slower()).fold(f64::INFINITY, f64::min);
        let model = self.network.model();
        Model { long_bytes_per_us: slowest, short_bytes_per_us: model.short_bytes_per_us.max(slowest), ..model }
    }

    /// Returns the two racks of the job's hosts, if every host has a rack and there are two. More racks are
    /// an error, because there is no plan for them.
    pub(super) fn racks(&self, names: &[String]) -> Result<Option<Racks>, Error> {
        let all = self.entries(names).into_iter().map(|host| host?.rack.as_deref()).collect::<Option<Vec<_>>>();
        let all = all.unwrap_or_default();
        let different: BTreeSet<&str> = all.iter().copied().collect();
        if different.len() > 2 {
            return Err(Error::argument(
                format!("the cluster file has the hosts of this job in {} racks: {different:?}", different.len()),
                "there is a plan for two racks: name the two that the narrowest link lies between, or no rack",
            ));
        }
        Ok(Racks::of(&all.into_iter().map(super::racks::hashed).collect::<Vec<_>>()))
    }

    /// The job's hosts that the file does not name.
    pub(super) fn unknown<'a>(&self, names: &'a [String]) -> Vec<&'a str> {
        self.entries(names).iter().zip(names).filter(|(entry, _)| entry.is_none()).map(|(_, name)| &name[..]).collect()
    }
}

impl Network {
    fn model(&self) -> Model {
        let rate = MBIT * self.link_mbit;
        Model {
            latency_us: self.latency_us,
            message_us: self.message_us,
            shared_message_us: self.shared_message_us,
            shared_us_per_byte: self.shared_us_per_mb / 1e6,
            short_bytes_per_us: if self.burst_mbit == 0.0 { rate } else { MBIT * self.burst_mbit },
            short_bytes: 1e3 * self.burst_kb,
            long_bytes_per_us: rate,
            fan_factor: self.fan_factor,
            sum_bytes_per_us: self.adding_mb,
        }
    }
}

/// A TOML string. Names of hosts and racks have no other characters that need an escape.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

/// Returns the number rounded to three digits, as a person would write it.
fn rounded(number: f64) -> f64 {
    format!("{number:.2e}").parse().unwrap_or(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn a_file_is_read_as_it_was_written() {
        let model = Model { latency_us: 100.0 / 3.0, short_bytes: 131_072.0, ..Model::default() };
        let links = [LinkRates::both(25.0), LinkRates { sends: 12.5, receives: 25.0 }, LinkRates::both(25.0)];
        for (links, racks) in [(&links[..], 0), (&[], 0b110), (&[], 0)] {
            let written = Cluster::of(&model, names(&["h1", "h\"2", "h3"]), links, racks);
            assert_eq!(Cluster::parse(&written.text()).unwrap(), written, "{}", written.text());
        }
        let text = Cluster::of(&model, names(&["h1", "h2", "h3"]), &links, 0).text();
        for line in ["link_mbit = 3200.0", "latency_us = 33.3", "burst_kb = 131.0", "name = \"h2\"\nsends_mbit = 100.0"]
        {
            assert!(text.contains(line), "{line} in {text}");
        }
    }

    #[test]
    fn a_job_has_the_links_of_its_own_hosts_in_its_own_order() {
        let by_hand = "[network]\nlink_mbit = 1000\nlatency_us = 50\n\
                       [[host]]\nname = \"a\"\n[[host]]\nname = \"slow\"\nsends_mbit = 100\nrack = \"x\"\n";
        let cluster = Cluster::parse(by_hand).unwrap();
        let job = names(&["slow", "new", "a"]);
        let links = cluster.links(&job);
        assert_eq!(links, [LinkRates { sends: 12.5, receives: 125.0 }, LinkRates::both(125.0), LinkRates::both(125.0)]);
        assert_eq!(cluster.unknown(&job), ["new"]);
        assert_eq!(cluster.model(&job).long_bytes_per_us, 12.5);
        assert_eq!(cluster.model(&job[1..]).long_bytes_per_us, 125.0, "the slow host takes no part");
        assert_eq!(cluster.racks(&job).unwrap(), None, "one host has a rack, the others have none");
        assert!(cluster.network.model().is_sound());
    }

    #[test]
    fn hosts_of_one_name_have_the_entries_of_that_name_in_turn() {
        let rates = [1.0, 2.0, 3.0].map(LinkRates::both);
        let cluster = Cluster::of(&Model::default(), names(&["a", "a", "b"]), &rates, 0);
        let found = cluster.links(&names(&["a", "b", "a", "a"]));
        let typical = Model::default().long_bytes_per_us;
        assert_eq!(found, [1.0, 3.0, 2.0, typical].map(LinkRates::both));
    }

    #[test]
    fn two_racks_are_those_of_the_jobs_hosts() {
        let all = names(&["a", "b", "c", "d"]);
        let cluster = Cluster::of(&Model::default(), all.clone(), &[], 0b1010);
        assert_eq!(cluster.racks(&all).unwrap(), Racks::of(&[1, 2, 1, 2]));
        assert_eq!(cluster.racks(&names(&["a", "c"])).unwrap(), None, "one rack");
        let mut cluster = cluster;
        cluster.hosts[3].rack = Some("third".to_owned());
        let error = cluster.racks(&all).unwrap_err().to_string();
        assert!(
            error.contains(r#"in 3 racks: {"1", "2", "third"}"#) && error.contains("plan for two racks"),
            "{error}"
        );
        assert_eq!(cluster.racks(&all[..3]).unwrap(), Racks::of(&[1, 2, 1]), "of those that the job has");
        cluster.hosts[0].rack = None;
        assert_eq!(cluster.racks(&all).unwrap(), None, "not every host has one");
    }

    #[test]
    fn a_file_that_no_cluster_can_have_says_why() {
        let network = "[network]\nlink_mbit = 100\nlatency_us = 50\n";
        for (text, part) in [
            ("[network]\nlink_mbit = 100\n".to_owned(), "latency_us"),
            ("[network]\nlink_mbit = 0\nlatency_us = 1\n".to_owned(), "link_mbit = 0"),
            (format!("{network}[[host]]\nname = \"a\"\nsends_mbit = -1\n"), "host a"),
            (format!("{network}[[host]]\nname = \"a\"\nspeed = 1\n"), "speed"),
            ("{}".to_owned(), "expected"),
        ] {
            let error = Cluster::parse(&text).unwrap_err();
            assert!(error.contains(part), "{part} in {error}");
        }
    }
}
