//! What the comparison can run: modes of our own store, and peers, which are other people's programs.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use ringpull_base::{Error, Kind, closest};
use ringpull_kernels::compress::Compression;

/// Where the servers of a parameter-server mode run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Placement {
    /// Each on a host of its own.
    Dedicated,
    /// On the workers' hosts, in order from the first.
    Shared,
}

/// A way of our own store to sum: `dist_sync_mpi`, `dist_sync:K`, `dist_sync:Kshared`, `dist_async:K`, `dist_async:Kshared`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Allreduce over the workers, no server.
    Allreduce,
    /// Parameter servers.
    Servers {
        /// Whether a push waits for the other workers' pushes.
        sync: bool,
        /// How many servers.
        servers: usize,
        /// Where they run.
        placement: Placement,
    },
}

impl Mode {
    /// The kind of store that the workers create.
    pub fn kind(self) -> Kind {
        match self {
            Mode::Allreduce => Kind::DistSyncMpi,
            Mode::Servers { sync: true, .. } => Kind::DistSync,
            Mode::Servers { sync: false, .. } => Kind::DistAsync,
        }
    }

    /// The number of servers, 0 for allreduce.
    pub fn servers(self) -> usize {
        match self {
            Mode::Allreduce => 0,
            Mode::Servers { servers, .. } => servers,
        }
    }

    /// The hosts needed beyond the workers' own.
    pub fn extra_hosts(self) -> usize {
        match self {
            Mode::Servers { servers, placement: Placement::Dedicated, .. } => servers,
            _ => 0,
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match *self {
            Mode::Allreduce => Kind::DistSyncMpi.name().to_owned(),
            Mode::Servers { servers, placement, .. } => {
                let suffix = if placement == Placement::Shared { "shared" } else { "" };
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
            let names = [Kind::DistSyncMpi, Kind::DistSync, Kind::DistAsync].map(Kind::name);
            let with_servers = |name: &str| if name == names[0] { name.to_owned() } else { format!("{name}:K") };
            let meant = closest(kind, names).map(|name| format!("; did you mean {}?", with_servers(name)));
            let meant = meant.filter(|_| !names.contains(&kind)).unwrap_or_default();
            Error::argument(
                format!("unknown mode {text:?}"),
                format!(
                    "the modes are dist_sync_mpi, dist_sync:K (K dedicated servers), dist_sync:Kshared (K servers on the workers' hosts), dist_async:K and dist_async:Kshared, with K at least 1{meant}"
                ),
            )
        };
        if text == Kind::DistSyncMpi.name() {
            return Ok(Mode::Allreduce);
        }
        let (kind, count) = text.split_once(':').ok_or_else(unknown)?;
        let sync = match kind {
            "dist_sync" => true,
            "dist_async" => false,
            _ => return Err(unknown()),
        };
        let (count, placement) = match count.strip_suffix("shared") {
            Some(count) => (count, Placement::Shared),
            None => (count, Placement::Dedicated),
        };
        if !count.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(unknown());
        }
        let servers = count.parse().ok().filter(|servers| (1..=1024).contains(servers)).ok_or_else(unknown)?;
        Ok(Mode::Servers { sync, servers, placement })
    }
}

/// Somebody else's program, run on the same hosts in the same rounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Peer {
    /// The MPI library's own `MPI_Allreduce`, with its defaults.
    Mpi,
    /// The real MXNet's `dist_sync`.
    Mxnet,
    /// Horovod's allreduce.
    Horovod,
    /// Gloo's allreduce, as PyTorch ships it.
    Gloo,
}

impl Peer {
    /// Every peer.
    pub const ALL: [Peer; 4] = [Peer::Mpi, Peer::Mxnet, Peer::Horovod, Peer::Gloo];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Peer::Mpi => "mpi",
            Peer::Mxnet => "mxnet",
            Peer::Horovod => "horovod",
            Peer::Gloo => "gloo",
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(self.name())
    }
}

impl FromStr for Peer {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        Peer::ALL.into_iter().find(|peer| peer.name() == text).ok_or_else(|| {
            Error::argument(
                format!("unknown peer {text:?}"),
                format!("the peers are {}", Peer::ALL.map(Peer::name).join(", ")),
            )
        })
    }
}

/// One row of the comparison: who sums, by which mode, and how gradients are compressed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Variant {
    /// `None` for our own store.
    pub peer: Option<Peer>,
    /// The mode: a peer that has servers has them where the mode says.
    pub mode: Mode,
    /// The compression of our own store's gradients; a peer has none.
    pub compression: Option<Compression>,
}

/// What variants have in common: the colour of a chart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Family {
    /// Our allreduce.
    Allreduce,
    /// Our servers on the workers' hosts.
    Shared,
    /// Our servers on hosts of their own.
    Dedicated,
    /// Any mode of ours with compressed gradients.
    Compressed,
    /// A peer.
    Peer,
}

impl Family {
    /// Every family, in the order of the legend.
    pub const ALL: [Family; 5] =
        [Family::Allreduce, Family::Shared, Family::Dedicated, Family::Compressed, Family::Peer];

    /// The legend's words.
    pub fn words(self) -> &'static str {
        match self {
            Family::Allreduce => "allreduce (dist_sync_mpi)",
            Family::Shared => "parameter servers on the workers' hosts",
            Family::Dedicated => "parameter servers on hosts of their own",
            Family::Compressed => "compressed gradients",
            Family::Peer => "other programs",
        }
    }
}

impl Variant {
    /// Our own store by `mode`, uncompressed.
    pub fn ours(mode: Mode) -> Self {
        Variant { peer: None, mode, compression: None }
    }

    /// The program of `peer`, where `mode` says.
    pub fn theirs(peer: Peer, mode: Mode) -> Self {
        Variant { peer: Some(peer), mode, compression: None }
    }

    /// The variants of our own and of `peers`, a peer with servers once for each of our `dist_sync` modes.
    pub fn list(ours: &[Variant], peers: &[Peer]) -> Vec<Variant> {
        let mut list: Vec<Variant> = Vec::new();
        let mut add = |variant: Variant| {
            if !list.contains(&variant) {
                list.push(variant);
            }
        };
        ours.iter().for_each(|variant| add(*variant));
        for peer in peers {
            if *peer != Peer::Mxnet {
                add(Variant::theirs(*peer, Mode::Allreduce));
                continue;
            }
            let modes = ours.iter().map(|variant| variant.mode);
            let sync = modes.filter(|mode| matches!(mode, Mode::Servers { sync: true, .. }));
            sync.for_each(|mode| add(Variant::theirs(*peer, mode)));
        }
        list
    }

    /// The colour group.
    pub fn family(self) -> Family {
        match (self.peer, self.mode) {
            (Some(_), _) => Family::Peer,
            (None, _) if self.compression.is_some() => Family::Compressed,
            (None, Mode::Allreduce) => Family::Allreduce,
            (None, Mode::Servers { placement: Placement::Shared, .. }) => Family::Shared,
            (None, Mode::Servers { placement: Placement::Dedicated, .. }) => Family::Dedicated,
        }
    }

    /// The method in the words of a table.
    pub fn words(self) -> String {
        let method = match (self.peer, self.mode) {
            (None, Mode::Allreduce) => "allreduce (dist_sync_mpi)".to_owned(),
            (None, Mode::Servers { sync, placement, .. }) => {
                let place = if placement == Placement::Shared { "shared" } else { "dedicated" };
                format!("PS {place}{}", if sync { "" } else { ", async" })
            }
            (Some(Peer::Mpi), _) => "MPI_Allreduce".to_owned(),
            (Some(Peer::Mxnet), Mode::Servers { placement: Placement::Dedicated, .. }) => {
                "MXNet dist_sync dedicated".to_owned()
            }
            (Some(Peer::Mxnet), _) => "MXNet dist_sync shared".to_owned(),
            (Some(Peer::Horovod), _) => "Horovod allreduce".to_owned(),
            (Some(Peer::Gloo), _) => "gloo allreduce".to_owned(),
        };
        self.compression.map_or(method.clone(), |compression| format!("{method}, {compression}"))
    }
}

impl fmt::Display for Variant {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.peer, self.mode) {
            (None, mode) => match self.compression {
                Some(compression) => out.pad(&format!("{mode}+{compression}")),
                None => mode.fmt(out),
            },
            (Some(peer), Mode::Allreduce) => peer.fmt(out),
            (Some(peer), mode) => out.pad(&format!("{peer}:{mode}")),
        }
    }
}

impl FromStr for Variant {
    type Err = Error;

    /// One of our own: a mode, and behind a `+` its compression, as in `dist_sync_mpi+2bit:0.5`.
    fn from_str(text: &str) -> Result<Self, Error> {
        let (mode, compression) = match text.split_once('+') {
            Some((mode, compression)) => (mode, Some(compression.parse()?)),
            None => (text, None),
        };
        Ok(Variant { peer: None, mode: mode.parse()?, compression })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mode_of_ours_may_have_a_compression() {
        for text in ["dist_sync_mpi", "dist_sync:8shared+fp16", "dist_sync_mpi+2bit:0.5"] {
            assert_eq!(text.parse::<Variant>().unwrap().to_string(), text);
        }
        let variant: Variant = "dist_sync_mpi+2bit:0.5".parse().unwrap();
        assert_eq!(
            (variant.family(), variant.words().as_str()),
            (Family::Compressed, "allreduce (dist_sync_mpi), 2bit:0.5")
        );
        let error = "dist_sync_mpi+3bit".parse::<Variant>().unwrap_err().to_string();
        assert!(error.contains("3bit") && error.contains(Compression::NAMES), "{error}");
    }

    #[test]
    fn every_mode_is_printed_as_it_is_read() {
        for text in ["dist_sync_mpi", "dist_sync:1", "dist_sync:8shared", "dist_async:2", "dist_async:4shared"] {
            assert_eq!(text.parse::<Mode>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn a_wrong_mode_or_peer_is_an_error_that_lists_what_exists() {
        for wrong in ["", "dist_sync", "dist_sync:", "dist_sync:0", "dist_sync:+1", "dist_snyc:1", "dist_sync:2Shared"]
        {
            let error = wrong.parse::<Mode>().unwrap_err().to_string();
            assert!(error.contains("dist_sync:Kshared") && error.contains(&format!("{wrong:?}")), "{error}");
        }
        for (wrong, meant) in [("dist_snyc:1", "; did you mean dist_sync:K?"), ("dist_sync", "at least 1")] {
            assert!(wrong.parse::<Mode>().unwrap_err().to_string().ends_with(meant));
        }
        let error = "nccl".parse::<Peer>().unwrap_err().to_string();
        assert!(error.contains("mpi, mxnet, horovod, gloo"), "{error}");
    }

    #[test]
    fn mxnet_has_a_row_for_each_of_our_rows_with_servers() {
        let modes = ["dist_sync_mpi", "dist_sync:1shared", "dist_async:1", "dist_sync:8"].map(|m| m.parse().unwrap());
        let names: Vec<String> =
            Variant::list(&modes, &[Peer::Mpi, Peer::Mxnet]).iter().map(ToString::to_string).collect();
        let expected = [
            "dist_sync_mpi",
            "dist_sync:1shared",
            "dist_async:1",
            "dist_sync:8",
            "mpi",
            "mxnet:dist_sync:1shared",
            "mxnet:dist_sync:8",
        ];
        assert_eq!(names, expected);
    }
}
