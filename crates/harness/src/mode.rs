//! The modes of our own store.

use std::fmt;
use std::str::FromStr;

use ringpull_base::{Error, Kind, closest};

/// The place of the servers of a parameter-server mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ServerPlacement {
    /// Each on a host of its own.
    Dedicated,
    /// On the workers' hosts, in order from the first.
    Shared,
}

impl ServerPlacement {
    pub fn name(self) -> &'static str {
        match self {
            ServerPlacement::Dedicated => "dedicated",
            ServerPlacement::Shared => "shared",
        }
    }
}

/// How our store sums: `dist_sync_mpi`, `dist_sync_mpi:Khelpers`, `dist_sync:K`, `dist_sync:Kshared`,
/// `dist_async:K`, `dist_async:Kshared`, `dist_hybrid:K`, `dist_hybrid:Kshared`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Allreduce over the workers, no server.
    Allreduce,
    /// Allreduce over the workers with helpers, each helper on a host of its own.
    Helped { helpers: usize },
    Servers {
        /// True if a push waits for the other workers' pushes.
        sync: bool,
        servers: usize,
        placement: ServerPlacement,
    },
    /// Allreduce over the workers for dense keys, and servers for row-sparse ones.
    Hybrid { servers: usize, placement: ServerPlacement },
}

impl Mode {
    /// The kind of store that the workers create.
    pub fn kind(self) -> Kind {
        match self {
            Mode::Allreduce | Mode::Helped { .. } => Kind::DistSyncMpi,
            Mode::Servers { sync: true, .. } => Kind::DistSync,
            Mode::Servers { sync: false, .. } => Kind::DistAsync,
            Mode::Hybrid { .. } => Kind::DistHybrid,
        }
    }

    /// The number of servers, 0 for allreduce.
    pub fn servers(self) -> usize {
        match self {
            Mode::Allreduce | Mode::Helped { .. } => 0,
            Mode::Servers { servers, .. } | Mode::Hybrid { servers, .. } => servers,
        }
    }

    /// The number of hosts that are needed beyond the workers' own.
    pub fn extra_hosts(self) -> usize {
        match self {
            Mode::Servers { servers, placement: ServerPlacement::Dedicated, .. }
            | Mode::Hybrid { servers, placement: ServerPlacement::Dedicated } => servers,
            Mode::Helped { helpers } => helpers,
            _ => 0,
        }
    }

    /// The place of the mode's servers, if it has servers.
    pub fn placement(self) -> Option<ServerPlacement> {
        match self {
            Mode::Allreduce | Mode::Helped { .. } => None,
            Mode::Servers { placement, .. } | Mode::Hybrid { placement, .. } => Some(placement),
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match *self {
            Mode::Allreduce => Kind::DistSyncMpi.name().to_owned(),
            Mode::Helped { helpers } => format!("{}:{helpers}helpers", self.kind()),
            Mode::Servers { servers, placement, .. } | Mode::Hybrid { servers, placement } => {
                let suffix = if placement == ServerPlacement::Shared { "shared" } else { "" };
                format!("{}:{servers}{suffix}", self.kind())
            }
        };
        out.pad(&name)
    }
}

impl FromStr for Mode {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let unknown = || {
            let kind = text.split(':').next().unwrap_or(text);
            let names = [Kind::DistSyncMpi, Kind::DistSync, Kind::DistAsync, Kind::DistHybrid].map(Kind::name);
            let with_servers = |name: &str| if name == names[0] { name.to_owned() } else { format!("{name}:K") };
            let meant = closest(kind, names).map(|name| format!("; did you mean {}?", with_servers(name)));
            let meant = meant.filter(|_| !names.contains(&kind)).unwrap_or_default();
            Error::argument(
                format!("unknown mode {text:?}"),
                format!(
                    "the modes are dist_sync_mpi, dist_sync_mpi:Khelpers (K more hosts that only reduce), dist_sync_mpi:ALGORITHM (such as ring), dist_sync:K (K dedicated servers), dist_sync:Kshared (K servers on the workers' hosts), dist_async:K and dist_async:Kshared, dist_hybrid:K and dist_hybrid:Kshared (servers for row-sparse keys alone), with K at least 1{meant}"
                ),
            )
        };
        if text == Kind::DistSyncMpi.name() {
            return Ok(Mode::Allreduce);
        }
        let (kind, count) = text.split_once(':').ok_or_else(unknown)?;
        let number = |text: &str| -> Result<usize, Error> {
            let is_plain = text.bytes().all(|byte| byte.is_ascii_digit());
            let number = if is_plain { text.parse().ok() } else { None };
            number.filter(|number| (1..=1024).contains(number)).ok_or_else(unknown)
        };
        if kind == Kind::DistSyncMpi.name() {
            return Ok(Mode::Helped { helpers: number(count.strip_suffix("helpers").ok_or_else(unknown)?)? });
        }
        let (count, placement) = match count.strip_suffix("shared") {
            Some(count) => (count, ServerPlacement::Shared),
            None => (count, ServerPlacement::Dedicated),
        };
        let servers = || number(count);
        match kind {
            "dist_sync" => Ok(Mode::Servers { sync: true, servers: servers()?, placement }),
            "dist_async" => Ok(Mode::Servers { sync: false, servers: servers()?, placement }),
            "dist_hybrid" => Ok(Mode::Hybrid { servers: servers()?, placement }),
            _ => Err(unknown()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mode_is_printed_as_it_is_read() {
        for text in [
            "dist_sync_mpi",
            "dist_sync_mpi:8helpers",
            "dist_sync:1",
            "dist_sync:8shared",
            "dist_async:2",
            "dist_async:4shared",
            "dist_hybrid:8shared",
        ] {
            assert_eq!(text.parse::<Mode>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn an_unknown_mode_is_an_error_that_lists_the_modes() {
        for wrong in [
            "",
            "dist_sync",
            "dist_sync:",
            "dist_sync:0",
            "dist_sync:+1",
            "dist_snyc:1",
            "dist_sync:2Shared",
            "dist_sync_mpi:2",
            "dist_sync_mpi:0helpers",
        ] {
            let error = wrong.parse::<Mode>().unwrap_err().to_string();
            assert!(error.contains("dist_sync:Kshared") && error.contains(&format!("{wrong:?}")), "{error}");
        }
        for (wrong, meant) in [("dist_snyc:1", "; did you mean dist_sync:K?"), ("dist_sync", "at least 1")] {
            assert!(wrong.parse::<Mode>().unwrap_err().to_string().ends_with(meant));
        }
    }
}
