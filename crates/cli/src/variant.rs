//! Who is measured: our own store in one of its modes, or a peer, which is somebody else's program on the
//! same hosts.
//! `compare` and `sweep` have one list of peers, and these names for them.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use ringpull_base::{Error, Result};
use ringpull_kernels::compress::Compression;

use crate::mode::{Mode, Placement};

/// Somebody else's program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Peer {
    /// The MPI library's own `MPI_Allreduce`, with its defaults.
    Mpi,
    /// One of Open MPI's algorithms, numbered from 1 as its parameter `coll_tuned_allreduce_algorithm` does.
    OpenMpi(u8),
    /// MPICH's `MPI_Allreduce`, with its defaults.
    Mpich,
    /// The real MXNet's `dist_sync`.
    Mxnet,
    /// Horovod's allreduce.
    Horovod,
    /// Gloo's allreduce, as PyTorch ships it.
    Gloo,
}

/// Open MPI's algorithms in the order of their numbers, by our names and by its own.
const OPEN_MPI: [(&str, &str); 6] = [
    ("openmpi:1", "Open MPI, basic linear"),
    ("openmpi:2", "Open MPI, nonoverlapping"),
    ("openmpi:3", "Open MPI, recursive doubling"),
    ("openmpi:4", "Open MPI, ring"),
    ("openmpi:5", "Open MPI, segmented ring"),
    ("openmpi:6", "Open MPI, Rabenseifner"),
];

impl Peer {
    /// Every peer.
    pub const ALL: [Peer; 11] = {
        use Peer::{Gloo, Horovod, Mpi, Mpich, Mxnet, OpenMpi};
        [Mpi, OpenMpi(1), OpenMpi(2), OpenMpi(3), OpenMpi(4), OpenMpi(5), OpenMpi(6), Mpich, Mxnet, Horovod, Gloo]
    };

    /// The name on the command line, and the method in the words of a table.
    fn names(self) -> (&'static str, &'static str) {
        match self {
            Peer::Mpi => ("mpi", "MPI_Allreduce"),
            Peer::OpenMpi(number) => OPEN_MPI[usize::from(number) - 1],
            Peer::Mpich => ("mpich", "MPICH's MPI_Allreduce"),
            Peer::Mxnet => ("mxnet", "MXNet dist_sync"),
            Peer::Horovod => ("horovod", "Horovod allreduce"),
            Peer::Gloo => ("gloo", "gloo allreduce"),
        }
    }

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        self.names().0
    }

    /// The peer of this name; `openmpi:default` is another one of `mpi`.
    pub fn named(name: &str) -> Option<Peer> {
        let name = if name == "openmpi:default" { "mpi" } else { name };
        Peer::ALL.into_iter().find(|peer| peer.name() == name)
    }

    /// Whether it is a call of the MPI library, which needs no program but ours.
    pub fn is_mpi(self) -> bool {
        matches!(self, Peer::Mpi | Peer::OpenMpi(_) | Peer::Mpich)
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(self.name())
    }
}

/// Who is measured, by which mode, and how gradients are compressed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Variant {
    /// `None` for our own store.
    pub peer: Option<Peer>,
    /// The mode: a peer that has servers has them where the mode says.
    pub mode: Mode,
    /// The compression of our own store's gradients; a peer has none.
    pub compression: Option<Compression>,
    /// Whether the ranks are those of a second build of this program, with MPICH.
    pub on_mpich: bool,
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
    /// Every family, in the order of the legend: the class that colours it on the page, and the legend's
    /// words.
    pub const ALL: [(Family, &str, &str); 5] = [
        (Family::Allreduce, "allreduce", "allreduce (dist_sync_mpi)"),
        (Family::Shared, "shared", "parameter servers on the workers' hosts"),
        (Family::Dedicated, "dedicated", "parameter servers on hosts of their own"),
        (Family::Compressed, "compressed", "compressed gradients"),
        (Family::Peer, "peer", "other programs"),
    ];

    /// The class that colours it on the page.
    pub fn class(self) -> &'static str {
        Self::ALL[self as usize].1
    }
}

impl Variant {
    /// Our own store by `mode`, uncompressed.
    pub fn ours(mode: Mode) -> Self {
        Variant { peer: None, mode, compression: None, on_mpich: false }
    }

    /// The program of `peer`, where `mode` says.
    pub fn theirs(peer: Peer, mode: Mode) -> Self {
        Variant { peer: Some(peer), mode, compression: None, on_mpich: peer == Peer::Mpich }
    }

    /// Our own allreduce over MPICH.
    pub fn ours_on_mpich() -> Self {
        Variant { on_mpich: true, ..Variant::ours(Mode::Allreduce) }
    }

    /// The variants of our own and of `peers`, a peer with servers once for each of our `dist_sync` modes.
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

    /// Everybody who has an allreduce.
    pub fn allreduces() -> Vec<Variant> {
        let peers = Peer::ALL.into_iter().filter(|peer| *peer != Peer::Mxnet);
        let ours = [Variant::ours(Mode::Allreduce), Variant::ours_on_mpich()];
        ours.into_iter().chain(peers.map(|peer| Variant::theirs(peer, Mode::Allreduce))).collect()
    }

    /// The environment of its ranks.
    pub fn env(self) -> Vec<(String, String)> {
        let Some(Peer::OpenMpi(number)) = self.peer else { return Vec::new() };
        vec![
            ("OMPI_MCA_coll_tuned_use_dynamic_rules".to_owned(), "1".to_owned()),
            ("OMPI_MCA_coll_tuned_allreduce_algorithm".to_owned(), number.to_string()),
        ]
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
            (None, Mode::Allreduce) if self.on_mpich => "ours on MPICH".to_owned(),
            (None, Mode::Allreduce) => "allreduce (dist_sync_mpi)".to_owned(),
            (None, Mode::Servers { sync: true, placement, .. }) => format!("PS {}", placement.name()),
            (None, Mode::Servers { sync: false, placement, .. }) => format!("PS {}, async", placement.name()),
            (Some(peer), Mode::Allreduce) => peer.names().1.to_owned(),
            (Some(peer), Mode::Servers { placement, .. }) => format!("{} {}", peer.names().1, placement.name()),
        };
        self.compression.map_or(method.clone(), |compression| format!("{method}, {compression}"))
    }
}

impl fmt::Display for Variant {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match (self.peer, self.mode) {
            (None, mode) if self.on_mpich => format!("{mode}:mpich"),
            (None, mode) => self.compression.map_or(mode.to_string(), |compression| format!("{mode}+{compression}")),
            (Some(peer), Mode::Allreduce) => peer.to_string(),
            (Some(peer), mode) => format!("{peer}:{mode}"),
        };
        out.pad(&name)
    }
}

impl FromStr for Variant {
    type Err = Error;

    /// A mode of ours, and behind a `+` its compression, as in `dist_sync_mpi+2bit:0.5`; a peer; MXNet with
    /// the mode that its servers are placed by, as in `mxnet:dist_sync:2`. The sweep's names for our
    /// allreduce are `ours` and `ours:mpich`.
    fn from_str(text: &str) -> Result<Self, Error> {
        if let Some(peer) = Peer::named(text).filter(|peer| *peer != Peer::Mxnet) {
            return Ok(Variant::theirs(peer, Mode::Allreduce));
        }
        match text {
            "ours" => return Ok(Variant::ours(Mode::Allreduce)),
            "ours:mpich" | "dist_sync_mpi:mpich" => return Ok(Variant::ours_on_mpich()),
            _ => {}
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
    fn every_variant_is_printed_as_it_is_read_and_has_words_of_its_own() {
        let named = ["dist_sync_mpi", "dist_sync:8shared+fp16", "dist_sync_mpi+2bit:0.5", "mxnet:dist_sync:8"];
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
        assert!(Family::ALL.iter().enumerate().all(|(at, (family, ..))| *family as usize == at));
    }

    #[test]
    fn all_peers_are_in_the_list() {
        let place = |peer| match peer {
            Peer::Mpi => 0,
            Peer::OpenMpi(number) => usize::from(number),
            Peer::Mpich => 7,
            Peer::Mxnet => 8,
            Peer::Horovod => 9,
            Peer::Gloo => 10,
        };
        assert!(Peer::ALL.into_iter().enumerate().all(|(at, peer)| place(peer) == at));
    }

    #[test]
    fn the_names_of_the_sweep_are_names_of_the_same() {
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
        assert!(error.contains("3bit") && error.contains(Compression::NAMES), "{error}");
        assert_eq!((Peer::named("openmpi:7"), Peer::named("nccl")), (None, None));
    }

    #[test]
    fn only_an_algorithm_by_number_is_set_by_hand() {
        for variant in Variant::allreduces() {
            let is_numbered = matches!(variant.peer, Some(Peer::OpenMpi(_)));
            assert_eq!(variant.env().len(), if is_numbered { 2 } else { 0 }, "{variant}");
        }
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
