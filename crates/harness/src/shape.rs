//! The shape of a lab: the number of hosts, the rate of their links, and their racks.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use ringpull_base::{Error, Result};

use crate::link::{LinkRate, as_text};

/// The hosts of a lab and how they are joined.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shape {
    /// The number of hosts, from 1 to 100.
    pub hosts: usize,
    /// The rate of the link of every host that has no rate of its own.
    pub rate: LinkRate,
    /// The hosts whose links have rates of their own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub own: Vec<HostRate>,
    /// The two racks, if the hosts do not share one bridge.
    #[serde(default)]
    pub racks: Option<RackShape>,
}

/// Two racks, each a bridge of its own, and one link between them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RackShape {
    /// The rate of the link between the racks.
    pub uplink: LinkRate,
    /// True if hosts alternate between the racks; otherwise the first half of them is in the first rack.
    pub alternate: bool,
}

/// The rate of one host's link: `3=500mbit`, `h3=500mbit`, or `3=500mbit/1gbit` where it sends at the first
/// rate and receives at the second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct HostRate {
    /// The host, counted from 1.
    pub host: usize,
    /// The rate at which it sends.
    pub sends: LinkRate,
    /// The rate at which it receives.
    pub receives: LinkRate,
}

impl FromStr for HostRate {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let bad = || {
            Error::argument(
                format!("invalid link of a host {text:?}"),
                "give the host and its rate, such as 3=500mbit, or 3=500mbit/1gbit to send at 500mbit and receive at 1gbit",
            )
        };
        let (host, rates) = text.split_once('=').ok_or_else(bad)?;
        let host = host.strip_prefix('h').unwrap_or(host).parse().map_err(|_| bad())?;
        let (sends, receives) = rates.split_once('/').unwrap_or((rates, rates));
        Ok(HostRate { host, sends: sends.parse()?, receives: receives.parse()? })
    }
}

impl fmt::Display for HostRate {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "h{}={}", self.host, self.sends)?;
        if self.sends == self.receives { Ok(()) } else { write!(out, "/{}", self.receives) }
    }
}

as_text!(HostRate);

/// The hosts that have link rates of their own, in words: ` with h3=500mbit`. Empty if there are none.
pub fn own_words(own: &[HostRate]) -> String {
    let words: Vec<String> = own.iter().map(ToString::to_string).collect();
    if words.is_empty() { String::new() } else { format!(" with {}", words.join(", ")) }
}

impl Shape {
    /// The number of hosts that a lab may have.
    pub const MOST_HOSTS: usize = 100;

    /// Returns an error unless a lab of this shape can be made.
    pub fn check(&self) -> Result<()> {
        if !(1..=Self::MOST_HOSTS).contains(&self.hosts) {
            return Err(Error::argument(
                format!("invalid number of hosts {}: expected 1 to {}", self.hosts, Self::MOST_HOSTS),
                "give another number",
            ));
        }
        let mut named: Vec<usize> = self.own.iter().map(|own| own.host).collect();
        named.sort_unstable();
        let is_twice = named.windows(2).any(|two| two[0] == two[1]);
        if is_twice || named.iter().any(|host| !(1..=self.hosts).contains(host)) {
            return Err(Error::argument(
                format!("invalid hosts{}: expected each of h1 to h{} once at most", own_words(&self.own), self.hosts),
                "name other hosts",
            ));
        }
        if self.racks.is_some() && self.hosts < 2 {
            return Err(Error::argument("two racks need two hosts", "give more hosts, or omit --uplink"));
        }
        Ok(())
    }

    /// The rates at which host `host` sends and receives.
    pub fn link(&self, host: usize) -> (LinkRate, LinkRate) {
        let own = self.own.iter().find(|own| own.host == host);
        own.map_or((self.rate, self.rate), |own| (own.sends, own.receives))
    }

    /// The rack of host `host`, which is counted from 1.
    pub fn rack(&self, host: usize) -> usize {
        match self.racks {
            None => 0,
            Some(RackShape { alternate: true, .. }) => (host - 1) % 2,
            Some(RackShape { alternate: false, .. }) => usize::from(host > self.hosts / 2),
        }
    }
}

impl fmt::Display for RackShape {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let order = if self.alternate { ", in turn," } else { "" };
        write!(out, "in two racks{order} joined by one link of {}", self.uplink)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_in_two_halves_or_alternate() {
        let shape = |alternate| Shape {
            hosts: 5,
            rate: LinkRate::default(),
            own: Vec::new(),
            racks: Some(RackShape { uplink: LinkRate::default(), alternate }),
        };
        let racks = |shape: Shape| (1..=5).map(|host| shape.rack(host)).collect::<Vec<_>>();
        assert_eq!(racks(shape(false)), [0, 0, 1, 1, 1]);
        assert_eq!(racks(shape(true)), [0, 1, 0, 1, 0]);
        assert_eq!(racks(Shape { racks: None, ..shape(true) }), [0; 5]);
        assert!(Shape { hosts: 1, ..shape(true) }.check().is_err());
    }

    #[test]
    fn a_hosts_own_link_is_printed_as_it_is_read_and_an_invalid_one_is_an_error() {
        for text in ["h3=500mbit", "h1=100mbit/1gbit"] {
            assert_eq!(text.parse::<HostRate>().unwrap().to_string(), text);
        }
        assert_eq!("3=500mbit".parse::<HostRate>().unwrap(), "h3=500mbit/500mbit".parse().unwrap());
        for text in ["", "3", "x=1gbit", "3=", "3=fast", "3=1gbit/"] {
            let error = text.parse::<HostRate>().unwrap_err().to_string();
            assert!(error.contains("500mbit") || error.contains("200mbit"), "{text}: {error}");
        }
    }

    #[test]
    fn each_host_has_its_own_link_or_that_of_all_and_no_other_host_is_named() {
        let own = |text: &[&str]| text.iter().map(|text| text.parse().unwrap()).collect();
        let shape = |text: &[&str]| Shape { hosts: 3, rate: "1gbit".parse().unwrap(), own: own(text), racks: None };
        let rates = |shape: &Shape, host| shape.link(host).0.to_string() + "/" + &shape.link(host).1.to_string();
        let good = shape(&["2=500mbit", "3=1gbit/200mbit"]);
        good.check().unwrap();
        assert_eq!([1, 2, 3].map(|host| rates(&good, host)), ["1gbit/1gbit", "500mbit/500mbit", "1gbit/200mbit"]);
        for wrong in [&["4=1gbit"][..], &["0=1gbit"], &["2=1gbit", "2=500mbit"]] {
            assert!(shape(wrong).check().unwrap_err().to_string().contains("h1 to h3"));
        }
    }
}
