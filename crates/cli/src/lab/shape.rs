//! The shape of a lab: the number of hosts, the rate of their links, and their racks.

use std::fmt;

use serde::{Deserialize, Serialize};

use ringpull_base::{Error, Result};

use crate::link::LinkRate;

const MAX_HOSTS: usize = 100;

/// The hosts of a lab and how they are joined.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shape {
    /// How many hosts, from 1 to 100.
    pub hosts: usize,
    /// The rate of every host's link.
    pub rate: LinkRate,
    /// The two racks, if the hosts do not share one bridge.
    #[serde(default)]
    pub racks: Option<Racks>,
}

/// Two racks, each a bridge of its own, and one link between them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Racks {
    /// The rate of the link between the racks.
    pub uplink: LinkRate,
    /// Whether hosts alternate between the racks; otherwise the first half of them is in the first rack.
    pub alternate: bool,
}

impl Shape {
    /// An error unless a lab of this shape can be made.
    pub fn check(&self) -> Result<()> {
        if !(1..=MAX_HOSTS).contains(&self.hosts) {
            return Err(Error::argument(
                format!("invalid number of hosts {}: expected 1 to {MAX_HOSTS}", self.hosts),
                "give another number",
            ));
        }
        if self.racks.is_some() && self.hosts < 2 {
            return Err(Error::argument("two racks need two hosts", "give more hosts, or omit --uplink"));
        }
        Ok(())
    }

    /// The rack of host `host`, which is counted from 1.
    pub(super) fn rack(&self, host: usize) -> usize {
        match self.racks {
            None => 0,
            Some(Racks { alternate: true, .. }) => (host - 1) % 2,
            Some(Racks { alternate: false, .. }) => usize::from(host > self.hosts / 2),
        }
    }
}

impl fmt::Display for Racks {
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
            racks: Some(Racks { uplink: LinkRate::default(), alternate }),
        };
        let racks = |shape: Shape| (1..=5).map(|host| shape.rack(host)).collect::<Vec<_>>();
        assert_eq!(racks(shape(false)), [0, 0, 1, 1, 1]);
        assert_eq!(racks(shape(true)), [0, 1, 0, 1, 0]);
        assert_eq!(racks(Shape { racks: None, ..shape(true) }), [0; 5]);
        assert!(Shape { hosts: 1, ..shape(true) }.check().is_err());
    }
}
