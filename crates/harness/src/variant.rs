//! The programs that are measured: our own store in one of its modes, or a peer, which is somebody else's
//! program on the same hosts. `compare` and `sweep` share this list of peers.

use std::fmt;
use std::str::FromStr;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use ringpull_base::{AlgorithmChoice, Error, Result};
use ringpull_kernels::compress::Compression;

use crate::mode::{Mode, ServerPlacement};

/// Somebody else's program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, ValueEnum)]
pub enum Peer {
    /// The MPI library's own `MPI_Allreduce`.
    #[value(alias = "openmpi:default")]
    Mpi,
    /// Open MPI's basic linear algorithm.
    #[value(name = "openmpi:1")]
    OpenMpiLinear,
    /// Open MPI's nonoverlapping algorithm.
    #[value(name = "openmpi:2")]
    OpenMpiNonoverlapping,
    /// Open MPI's recursive doubling.
    #[value(name = "openmpi:3")]
    OpenMpiDoubling,
    /// Open MPI's ring.
    #[value(name = "openmpi:4")]
    OpenMpiRing,
    /// Open MPI's segmented ring.
    #[value(name = "openmpi:5")]
    OpenMpiSegmentedRing,
    /// Open MPI's Rabenseifner algorithm.
    #[value(name = "openmpi:6")]
    OpenMpiRabenseifner,
    /// MPICH's own `MPI_Allreduce`.
    Mpich,
    /// The real MXNet's `dist_sync`.
    Mxnet,
    /// Horovod's allreduce.
    Horovod,
    /// Gloo's allreduce, as PyTorch ships it.
    Gloo,
    /// Ours through the API of Horovod for PyTorch.
    RingpullHorovod,
    /// Ours as the backend of torch.distributed.
    RingpullTorch,
}

impl Peer {
    /// The method, as tables name it.
    fn method(self) -> &'static str {
        match self {
            Peer::Mpi => "MPI_Allreduce",
            Peer::OpenMpiLinear => "Open MPI, basic linear",
            Peer::OpenMpiNonoverlapping => "Open MPI, nonoverlapping",
            Peer::OpenMpiDoubling => "Open MPI, recursive doubling",
            Peer::OpenMpiRing => "Open MPI, ring",
            Peer::OpenMpiSegmentedRing => "Open MPI, segmented ring",
            Peer::OpenMpiRabenseifner => "Open MPI, Rabenseifner",
            Peer::Mpich => "MPICH's MPI_Allreduce",
            Peer::Mxnet => "MXNet dist_sync",
            Peer::Horovod => "Horovod allreduce",
            Peer::Gloo => "gloo allreduce",
            Peer::RingpullHorovod => "ours by ringpull.horovod",
            Peer::RingpullTorch => "ours by torch.distributed",
        }
    }

    /// Returns true if the peer is a call of the MPI library, which needs no program except ours.
    pub fn is_mpi(self) -> bool {
        !matches!(self, Peer::Mxnet | Peer::Horovod | Peer::Gloo | Peer::RingpullHorovod | Peer::RingpullTorch)
    }

    /// Returns true if it is our own allreduce behind the API of another library.
    fn is_front_end(self) -> bool {
        matches!(self, Peer::RingpullHorovod | Peer::RingpullTorch)
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(self.to_possible_value().as_ref().map_or("", |value| value.get_name()))
    }
}

/// One measured program, with its mode and compression.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Variant {
    /// `None` for our own store.
    pub peer: Option<Peer>,
    /// The mode of our store. For a peer that has servers, it is the place of these servers.
    pub mode: Mode,
    pub compression: Option<Compression>,
    /// The allreduce of our store.
    pub algorithm: AlgorithmChoice,
    /// True if MPICH starts and joins the ranks.
    pub on_mpich: bool,
}

/// A group of variants with one colour in the charts. Each family is a CSS class of the page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Family {
    Allreduce,
    Helped,
    Shared,
    Dedicated,
    Compressed,
    Peer,
}

impl Family {
    /// Every family with its words, in the order of the legend.
    pub const ALL: [(Family, &str); 6] = [
        (Family::Allreduce, "allreduce (dist_sync_mpi)"),
        (Family::Helped, "allreduce with helpers, which only reduce"),
        (Family::Shared, "parameter servers on the workers' hosts"),
        (Family::Dedicated, "parameter servers on their own hosts"),
        (Family::Compressed, "compressed gradients"),
        (Family::Peer, "other programs"),
    ];
}

impl Family {
    /// The family's CSS class on the page.
    pub fn class(self) -> &'static str {
        match self {
            Family::Allreduce => "allreduce",
            Family::Helped => "helped",
            Family::Shared => "shared",
            Family::Dedicated => "dedicated",
            Family::Compressed => "compressed",
            Family::Peer => "peer",
        }
    }
}

impl Variant {
    pub fn ours(mode: Mode) -> Self {
        Variant { peer: None, mode, compression: None, algorithm: AlgorithmChoice::Auto, on_mpich: false }
    }

    /// The program of `peer`, with its servers in the place that `mode` gives.
    pub fn theirs(peer: Peer, mode: Mode) -> Self {
        Variant { peer: Some(peer), on_mpich: peer == Peer::Mpich, ..Variant::ours(mode) }
    }

    pub fn ours_on_mpich() -> Self {
        Variant { on_mpich: true, ..Variant::ours(Mode::Allreduce) }
    }

    /// Our own variants and those of `peers`. A peer with servers occurs once for each of our `dist_sync`
    /// modes.
    pub fn list(ours: &[Variant], peers: &[Peer]) -> Vec<Variant> {
        let sync = ours.iter().filter(|it| it.peer.is_none() && matches!(it.mode, Mode::Servers { sync: true, .. }));
        let theirs = peers.iter().flat_map(|peer| match peer {
            Peer::Mxnet => sync.clone().map(|variant| Variant::theirs(*peer, variant.mode)).collect(),
            _ => vec![Variant::theirs(*peer, Mode::Allreduce)],
        });
        let mut list: Vec<Variant> = Vec::new();
        for variant in ours.iter().copied().chain(theirs) {
            if !list.contains(&variant) {
                list.push(variant);
            }
        }
        list
    }

    /// Every allreduce, ours and those of peers, without the front ends of ours.
    pub fn allreduces() -> Vec<Variant> {
        let peers = Peer::value_variants().iter().filter(|peer| **peer != Peer::Mxnet && !peer.is_front_end());
        let ours = [Variant::ours(Mode::Allreduce), Variant::ours_on_mpich()];
        ours.into_iter().chain(peers.map(|peer| Variant::theirs(*peer, Mode::Allreduce))).collect()
    }

    /// The environment variables that the variant's ranks need.
    pub fn env(self) -> Vec<(String, String)> {
        if self.algorithm != AlgorithmChoice::Auto {
            return vec![("RINGPULL_ALGORITHM".to_owned(), self.algorithm.to_string())];
        }
        let name = self.to_string();
        // Open MPI numbers its algorithms from 1.
        let Some(number) = name.strip_prefix("openmpi:") else { return Vec::new() };
        let set = [("use_dynamic_rules", "1"), ("allreduce_algorithm", number)];
        set.map(|(name, value)| (format!("OMPI_MCA_coll_tuned_{name}"), value.to_owned())).to_vec()
    }

    pub fn family(self) -> Family {
        match (self.peer, self.mode) {
            (Some(peer), _) if peer.is_front_end() => Family::Allreduce,
            (Some(_), _) => Family::Peer,
            (None, _) if self.compression.is_some() => Family::Compressed,
            (None, Mode::Allreduce) => Family::Allreduce,
            (None, Mode::Helped { .. }) => Family::Helped,
            (None, mode) if mode.placement() == Some(ServerPlacement::Shared) => Family::Shared,
            (None, _) => Family::Dedicated,
        }
    }

    /// The method, as tables name it.
    pub fn words(self) -> String {
        let method = match (self.peer, self.mode) {
            (None, Mode::Allreduce) if self.on_mpich => "ours on MPICH".to_owned(),
            (None, Mode::Allreduce) if self.algorithm != AlgorithmChoice::Auto => {
                format!("allreduce, {}", self.algorithm)
            }
            (None, Mode::Allreduce) => "allreduce (dist_sync_mpi)".to_owned(),
            (None, Mode::Helped { .. }) => "allreduce, with helpers".to_owned(),
            (None, Mode::Servers { sync: true, placement, .. }) => format!("PS {}", placement.name()),
            (None, Mode::Servers { sync: false, placement, .. }) => format!("PS {}, async", placement.name()),
            (None, Mode::Hybrid { placement, .. }) => format!("hybrid, servers {}", placement.name()),
            (Some(peer), mode) => match mode.placement() {
                None => peer.method().to_owned(),
                Some(placement) => format!("{} {}", peer.method(), placement.name()),
            },
        };
        self.compression.map_or(method.clone(), |compression| format!("{method}, {compression}"))
    }
}

impl fmt::Display for Variant {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match (self.peer, self.mode) {
            (None, mode) if self.on_mpich => format!("{mode}:mpich"),
            (None, mode) if self.algorithm != AlgorithmChoice::Auto => format!("{mode}:{}", self.algorithm),
            (None, mode) => self.compression.map_or(mode.to_string(), |compression| format!("{mode}+{compression}")),
            (Some(peer), Mode::Allreduce) => peer.to_string(),
            (Some(peer), mode) => format!("{peer}:{mode}"),
        };
        out.pad(&name)
    }
}

impl FromStr for Variant {
    type Err = Error;

    /// Parses a variant, which is one of these: a mode of ours, with its compression after a `+`, as in
    /// `dist_sync_mpi+2bit:0.5`; our allreduce with its algorithm, as in `dist_sync_mpi:ring`; a peer; or
    /// MXNet with the mode that places its servers, as in `mxnet:dist_sync:2`. The sweep calls our allreduce
    /// `ours` and `ours:mpich`.
    fn from_str(text: &str) -> Result<Self, Error> {
        if let Some(peer) = <Peer as ValueEnum>::from_str(text, false).ok().filter(|peer| *peer != Peer::Mxnet) {
            return Ok(Variant::theirs(peer, Mode::Allreduce));
        }
        match text {
            "ours" => return Ok(Variant::ours(Mode::Allreduce)),
            "ours:mpich" | "dist_sync_mpi:mpich" => return Ok(Variant::ours_on_mpich()),
            _ => {}
        }
        let algorithm = text.strip_prefix("dist_sync_mpi:").and_then(AlgorithmChoice::of_name);
        if let Some(algorithm) = algorithm.filter(|algorithm| !algorithm.is_auto()) {
            return Ok(Variant { algorithm, ..Variant::ours(Mode::Allreduce) });
        }
        if let Some(mode) = text.strip_prefix("mxnet:") {
            return Ok(Variant::theirs(Peer::Mxnet, mode.parse()?));
        }
        let (mode, compression) = match text.split_once('+') {
            Some((mode, compression)) => (mode, Some(compression.parse()?)),
            None => (text, None),
        };
        Ok(Variant { compression, ..Variant::ours(mode.parse()?) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variant(name: &str) -> Variant {
        name.parse().unwrap()
    }

    #[test]
    fn every_variant_is_printed_as_it_is_read_and_has_its_own_words() {
        let named = [
            "dist_sync_mpi",
            "dist_sync:8shared+fp16",
            "dist_sync_mpi+2bit:0.5",
            "dist_sync_mpi:ring",
            "mxnet:dist_sync:8",
            "ringpull-horovod",
            "ringpull-torch",
        ];
        let all: Vec<Variant> =
            named.map(variant).into_iter().chain(Variant::allreduces().into_iter().skip(1)).collect();
        for variant in &all {
            assert_eq!(variant.to_string().parse(), Ok(*variant));
        }
        let mut words: Vec<String> = all.iter().map(|variant| variant.words()).collect();
        words.sort();
        words.dedup();
        assert_eq!(words.len(), all.len(), "{words:?}");
        let coded = variant("dist_sync_mpi+2bit:0.5");
        assert_eq!(
            (coded.family(), coded.words().as_str()),
            (Family::Compressed, "allreduce (dist_sync_mpi), 2bit:0.5")
        );
    }

    #[test]
    fn the_names_of_the_sweep_mean_the_same_variants() {
        for (name, same) in
            [("ours", "dist_sync_mpi"), ("ours:mpich", "dist_sync_mpi:mpich"), ("openmpi:default", "mpi")]
        {
            assert_eq!(variant(name), variant(same));
        }
        assert_eq!(
            ["ours", "ours:mpich", "mpi", "mpich"].map(|name| variant(name).on_mpich),
            [false, true, false, true]
        );
    }

    #[test]
    fn a_wrong_compression_is_an_error_that_lists_what_exists() {
        let error = "dist_sync_mpi+3bit".parse::<Variant>().unwrap_err().to_string();
        assert!(error.contains("3bit") && error.contains(&Compression::names()), "{error}");
        assert!(["openmpi:7", "nccl", "mxnet"].iter().all(|name| name.parse::<Variant>().is_err()));
    }

    #[test]
    fn only_a_numbered_algorithm_needs_variables() {
        for variant in Variant::allreduces() {
            let is_numbered = variant.to_string().starts_with("openmpi:");
            assert_eq!(variant.env().len(), if is_numbered { 2 } else { 0 }, "{variant}");
        }
        assert_eq!(variant("dist_sync_mpi:ring").env(), [("RINGPULL_ALGORITHM".to_owned(), "ring".to_owned())]);
        let env = variant("openmpi:4").env();
        assert!(env[0].0.ends_with("use_dynamic_rules") && env[1] == (env[1].0.clone(), "4".to_owned()), "{env:?}");
    }

    #[test]
    fn mxnet_has_a_row_for_each_of_our_rows_with_servers() {
        let modes = ["dist_sync_mpi", "dist_sync:1shared", "dist_async:1", "dist_sync:8"];
        let list = Variant::list(&modes.map(variant), &[Peer::Mpi, Peer::Mxnet]);
        let names: Vec<String> = list.iter().map(ToString::to_string).collect();
        assert_eq!(names, [&modes[..], &["mpi", "mxnet:dist_sync:1shared", "mxnet:dist_sync:8"]].concat());
    }
}
