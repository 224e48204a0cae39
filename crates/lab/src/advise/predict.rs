//! A step of training in a mode, as input of the simulation in `ringpull-plan`: the keys that the store would
//! sum together, the plan of each sum, and the server of each segment.

use ringpull_allreduce::communicator::plan_of_codes;
use ringpull_allreduce::progress::fusion::{BUCKET_BYTES, units};
use ringpull_allreduce::progress::messages::Step as Called;
use ringpull_allreduce::progress::{Operation, Terms, Topic, Transfer};
use ringpull_base::config::Config;
use ringpull_base::{Algorithm, AlgorithmChoice, DType, Error, Key, Reduction, Result};
use ringpull_kernels::compress::{Codec, Compression};
use ringpull_plan::simulate::{
    self, Codes, ComputedLayer, Exchange, Network, PushedUnit, SimulatedSegment, SimulatedServers,
};
use ringpull_plan::{LinkRates, Links, Model, Schedule, Segments, allreduce, auto, part_in_turns, predict};
use ringpull_ps::shard;

use ringpull_harness::layers;
use ringpull_harness::link::LinkRate;
use ringpull_harness::mode::{Mode, ServerPlacement};
use ringpull_harness::shape::HostRate;
use ringpull_harness::train::BACKWARD;
use ringpull_harness::variant::Variant;

/// The share of an Ethernet link's rate that TCP leaves: 1448 bytes of each 1514.
pub const GOODPUT: f64 = 0.956;

/// The model and the network, from which steps on any number of hosts are predicted.
pub struct Setting {
    pub network: layers::Network,
    pub compute_s: f64,
    pub link_bytes_per_s: f64,
    /// The workers' hosts whose links have rates of their own.
    pub own: Vec<HostRate>,
    pub latency_s: f64,
}

impl Setting {
    /// The gradients of one worker.
    pub fn bytes(&self) -> f64 {
        4.0 * self.network.keys.iter().map(|key| key.len() as f64).sum::<f64>()
    }

    /// Returns true if a mode that has a prediction has one for `workers` workers. If ranks differ, each rank
    /// is simulated, and too many ranks would take too long.
    pub fn reaches(&self, variant: Variant, workers: usize) -> bool {
        let is_coded = variant.compression.is_some() && variant.mode.kind().has_ranks();
        let is_apart = !self.own_links(workers).is_empty();
        match variant.mode {
            Mode::Helped { helpers } => workers + helpers <= MOST_APART,
            Mode::Servers { servers, .. } => servers <= MOST_SERVERS,
            _ => !is_apart || workers <= MOST_APART && !is_coded,
        }
    }

    /// The links with rates of their own, on the hosts of the first `workers` workers. Each is the worker,
    /// its sending rate and its receiving rate, in bytes per microsecond.
    fn own_links(&self, workers: usize) -> Vec<(usize, f64, f64)> {
        let rate = |rate: LinkRate| GOODPUT * rate.bytes_per_s().unwrap_or(self.link_bytes_per_s) / 1e6;
        let own = self.own.iter().filter(|own| own.host <= workers);
        own.map(|own| (own.host - 1, rate(own.sends), rate(own.receives))).collect()
    }

    /// The time of a step of `workers` workers.
    ///
    /// Returns an error if the mode or its codec has no prediction.
    pub fn step_s(&self, variant: Variant, workers: usize) -> Result<f64> {
        let codec = codec(variant)?;
        let model = self.model();
        let network = Network { own: self.own_links(workers), ..Network::even(workers, &model) };
        let layers = self.network.layers.iter().map(|layer| ComputedLayer {
            backward_us: 1e6 * self.compute_s * BACKWARD * layer.part,
            forward_us: 1e6 * self.compute_s * (1.0 - BACKWARD) * layer.part,
        });
        let (units, servers) = match variant.mode {
            Mode::Allreduce | Mode::Hybrid { .. } | Mode::Helped { .. } if workers == 1 => (Vec::new(), None),
            _ if !self.reaches(variant, workers) => return Err(too_many(variant, workers)),
            // A model's keys are dense, so dist_hybrid sums all of them over the ranks.
            Mode::Allreduce | Mode::Hybrid { .. } | Mode::Helped { .. } => match codec {
                None => {
                    let helpers = if let Mode::Helped { helpers } = variant.mode { helpers } else { 0 };
                    (self.sums(&network, &model, helpers), None)
                }
                Some(codec) => (self.coded_sums(codec, workers), None),
            },
            Mode::Servers { servers, placement, .. } => {
                let window = ringpull_ps::window(workers, servers);
                let is_shared = placement == ServerPlacement::Shared;
                (self.on_servers(codec, servers), Some(SimulatedServers { count: servers, is_shared, window }))
            }
        };
        let step = simulate::Step { layers: layers.collect(), units, servers };
        Ok(simulate::step_us(&network, &step) / 1e6)
    }

    /// The processor time for a message.
    pub fn message_s(&self) -> f64 {
        self.model().message_us / 1e6
    }

    fn model(&self) -> Model {
        model(self.link_bytes_per_s, self.latency_s)
    }

    /// The keys in the order in which a step pushes them, with their layers.
    fn calls(&self) -> Vec<(usize, usize)> {
        let layers = self.network.layers.iter().enumerate().rev();
        layers.flat_map(|(index, layer)| layer.keys.clone().rev().map(move |key| (index, key))).collect()
    }

    /// Sums over all ranks, in which short keys are summed together. The schedules of helpers follow those of
    /// the workers. A helper begins when the workers begin.
    fn sums(&self, network: &Network, model: &Model, helpers: usize) -> Vec<PushedUnit> {
        let (workers, calls) = (network.workers, self.calls());
        let segments = Segments { most_bytes: Config::default().segment_bytes, is_fixed: false };
        let len_bytes = |key: usize| 4 * self.network.keys[key].len();
        let called = |(layer, key): &(usize, usize)| Called {
            topic: Topic::Key { store: 0, key: Key::from(self.network.keys[*key].name.as_str()).into() },
            ordinal: 0,
            operation: Operation::Push,
            terms: Terms::default(),
            transfer: Transfer::Sum {
                dtype: DType::F32,
                reduction: Reduction::Sum,
                len_bytes: len_bytes(*key),
                priority: priority(*layer),
                is_divided: false,
            },
        };
        let steps: Vec<Called> = calls.iter().map(called).collect();
        let mut rates = vec![LinkRates::both(network.bytes_per_us); workers + helpers];
        for (worker, sends, receives) in &network.own {
            rates[*worker] = LinkRates { sends: *sends, receives: *receives };
        }
        let links = Links::with_helpers(&rates, helpers).or_else(|| Links::of(&rates));
        // A ring is as fast as its slowest link, so the store takes this rate as that of the cluster.
        let slowest = rates.iter().map(|rates| rates.slower()).fold(f64::INFINITY, f64::min);
        let model = &Model { short_bytes_per_us: slowest, long_bytes_per_us: slowest, ..*model };
        let bucket_bytes = model.bucket_bytes(workers, segments).min(BUCKET_BYTES);
        // The plans in which the simulation of one rank stands for all ranks. Buffers that would take another
        // plan have few bytes.
        let plans = || Algorithm::ALL.into_iter().filter(|algorithm| network.ranks(*algorithm).len() == 1);
        let sum = |members: Vec<u32>| {
            let members = members.iter().map(|step| calls[*step as usize]);
            let bytes: usize = members.clone().map(|(_, key)| len_bytes(key)).sum();
            let predicted = plans().map(|algorithm| predict(model, algorithm, bytes, workers, segments));
            let schedules = match predicted.min_by(|a, b| a.time_us.total_cmp(&b.time_us)) {
                // Parts of equal length make all ranks equal.
                Some(best) if links.is_none() => {
                    let plan = allreduce(best.algorithm, 0, workers, (bytes / 4).next_multiple_of(workers));
                    vec![Schedule::of(&plan, DType::F32, best.segment_bytes)]
                }
                _ => {
                    let of = |rank| {
                        let cluster = (model, links.as_ref());
                        let (plan, segment_bytes) = auto(cluster, (rank, workers), (bytes / 4, 4), segments);
                        Schedule::of(&plan, DType::F32, segment_bytes)
                    };
                    (0..workers + helpers).map(of).collect()
                }
            };
            unit(members.map(|(layer, _)| layer), false, Exchange::Sum(schedules, None))
        };
        units(&steps, &vec![0; steps.len()], bucket_bytes).into_iter().map(sum).collect()
    }

    /// Sums of codes, each key by itself and one after another.
    fn coded_sums(&self, codec: Codec, workers: usize) -> Vec<PushedUnit> {
        const LONG: usize = 1 << 20;
        let ratio = |bytes: usize| bytes as f64 / (4 * LONG) as f64;
        let sum = |(layer, key): (usize, usize)| {
            let len = self.network.keys[key].len().next_multiple_of(workers * Codec::BLOCK);
            let own = part_in_turns(0, workers, len, Codec::BLOCK);
            let own = 4 * own.start..4 * own.end;
            let codes = Codes {
                own: vec![own],
                code: ratio(codec.code_bytes(LONG)),
                sum: ratio(codec.sum_bytes(LONG, workers)),
            };
            let schedule = Schedule::of(&plan_of_codes(0, workers, len), DType::F32, usize::MAX);
            unit([layer].into_iter(), true, Exchange::Sum(vec![schedule], Some(codes)))
        };
        self.calls().into_iter().map(sum).collect()
    }

    fn on_servers(&self, codec: Option<Codec>, servers: usize) -> Vec<PushedUnit> {
        let bound = self.network.bigarray_bound;
        let key = |(layer, key): (usize, usize)| {
            let key = &self.network.keys[key];
            let layout = shard::Layout::new(&Key::from(key.name.as_str()), &key.shape, 4, servers, bound);
            let segments = layout.segments.iter().enumerate().map(|(index, segment)| {
                let bytes = layout.bytes_of(index).len();
                let pushed_bytes = codec.map_or(bytes, |codec| codec.code_bytes(bytes / 4));
                SimulatedSegment { server: segment.server, pushed_bytes, answered_bytes: bytes }
            });
            unit([layer].into_iter(), false, Exchange::Servers(segments.collect()))
        };
        self.calls().into_iter().map(key).collect()
    }
}

/// The model of a cluster with these links, as a store would learn it.
pub fn model(link_bytes_per_s: f64, latency_s: f64) -> Model {
    let (latency_us, rate) = (1e6 * latency_s, GOODPUT * link_bytes_per_s / 1e6);
    Model { latency_us, short_bytes_per_us: rate, long_bytes_per_us: rate, ..Model::default() }
}

/// A layer that the forward pass needs sooner has a higher priority.
fn priority(layer: usize) -> i32 {
    -(layer as i32)
}

fn unit(layers: impl Iterator<Item = usize>, is_alone: bool, exchange: Exchange) -> PushedUnit {
    let layers: Vec<usize> = layers.collect();
    let priority = layers.iter().map(|layer| priority(*layer)).max().unwrap_or(0);
    PushedUnit { layers, priority, is_alone, exchange }
}

/// The most ranks of a job in which ranks differ: with helpers, or on links of different rates.
pub const MOST_APART: usize = 64;
/// The most servers of a job. The time of the prediction grows with the square of their number.
const MOST_SERVERS: usize = 1024;

fn too_many(variant: Variant, workers: usize) -> Error {
    Error::argument(
        format!("{variant} has no prediction for {workers} hosts"),
        format!(
            "the limits are {MOST_SERVERS} servers in a job, and {MOST_APART} hosts in all, without compression, if there are helpers or links of different rates"
        ),
    )
}

/// Returns the codec of a variant. It is an error if the variant has no prediction.
fn codec(variant: Variant) -> Result<Option<Codec>> {
    let is_sync = !matches!(variant.mode, Mode::Servers { sync: false, .. });
    match variant.compression {
        _ if variant.peer.is_some() || variant.on_mpich || !is_sync => {}
        _ if variant.algorithm != AlgorithmChoice::Auto => {}
        None => return Ok(None),
        Some(Compression::Codec(codec)) => return Ok(Some(codec)),
        Some(Compression::TopK(_)) => {}
    }
    Err(Error::argument(
        format!("{variant} has no prediction"),
        "choose dist_sync_mpi, dist_sync:K or dist_sync:Kshared, alone or with +fp16, +bf16, +2bit or +1bit",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setting(model: &str, compute_s: f64) -> Setting {
        let network = layers::load(model, 1.0).unwrap();
        Setting { network, compute_s, link_bytes_per_s: 1.25e9, own: Vec::new(), latency_s: 50e-6 }
    }

    fn step_s(setting: &Setting, mode: &str, workers: usize) -> f64 {
        setting.step_s(mode.parse().unwrap(), workers).unwrap()
    }

    #[test]
    fn a_step_without_computing_takes_a_little_more_than_the_bound_of_its_mode() {
        let setting = setting("vgg16", 1e-9);
        for mode in [
            "dist_sync_mpi",
            "dist_sync:1",
            "dist_sync:8",
            "dist_sync:4shared",
            "dist_sync:8shared",
            "dist_sync_mpi:8helpers",
        ] {
            let bound =
                ringpull_harness::cost::mode_bound_s(mode.parse::<Variant>().unwrap().mode, 8, setting.bytes(), 1.25e9);
            let ratio = GOODPUT * step_s(&setting, mode, 8) / bound;
            assert!((0.999..1.15).contains(&ratio), "{mode}: {ratio}");
        }
    }

    #[test]
    fn a_slow_host_costs_an_allreduce_what_its_weighted_bound_says_and_servers_what_theirs_does() {
        let own: Vec<HostRate> = vec!["3=5gbit".parse().unwrap()];
        let setting = Setting { own: own.clone(), ..setting("vgg16", 1e-9) };
        for (mode, workers) in
            [("dist_sync_mpi", 3), ("dist_sync_mpi", 8), ("dist_sync:8", 8), ("dist_sync:2shared", 8)]
        {
            let links = ringpull_harness::cost::Links { bytes_per_s: 1.25e9, own: &own };
            let bound = ringpull_harness::cost::mode_bound_s(
                mode.parse::<Variant>().unwrap().mode,
                workers,
                setting.bytes(),
                links,
            );
            let ratio = GOODPUT * step_s(&setting, mode, workers) / bound;
            assert!((0.999..1.15).contains(&ratio), "{mode} on {workers}: {ratio}");
        }
        // On two hosts all plans move the same bytes. A cluster file may name the slow host of a larger
        // cluster, in which a ring would take twice as long.
        let even = Setting { own: Vec::new(), ..setting };
        let setting = Setting { own, ..self::setting("vgg16", 1e-9) };
        assert_eq!(step_s(&setting, "dist_sync_mpi", 2), step_s(&even, "dist_sync_mpi", 2));
        let times = step_s(&setting, "dist_sync_mpi", 40) / step_s(&even, "dist_sync_mpi", 40);
        assert!((1.0..1.3).contains(&times), "{times}");
        assert!(setting.step_s("dist_sync_mpi+fp16".parse().unwrap(), 8).is_err());
    }

    #[test]
    fn what_computing_hides_costs_nothing_and_the_rest_as_much_as_the_busiest_link_takes() {
        let setting = setting("vgg16", 1.0);
        let of = |mode| 1.0 / step_s(&setting, mode, 8);
        let [allreduce, shared, eight, four, two] =
            ["dist_sync_mpi", "dist_sync:8shared", "dist_sync:8", "dist_sync:4", "dist_sync:2"].map(of);
        assert!([allreduce, shared, eight].iter().all(|it| *it > 0.98), "{allreduce} {shared} {eight}");
        assert!(eight >= four && four > 1.5 * two && two < 0.6, "{eight} {four} {two}");
    }

    #[test]
    fn codes_shorten_a_step_that_waits_for_the_network() {
        let setting = setting("vgg16", 0.1);
        let [plain, halves, codes] =
            ["dist_sync_mpi", "dist_sync_mpi+fp16", "dist_sync_mpi+2bit:0.5"].map(|mode| step_s(&setting, mode, 8));
        assert!(halves < 0.7 * plain && codes < 0.5 * halves, "{plain} {halves} {codes}");
        let [whole, pushed] = ["dist_sync:2", "dist_sync:2+2bit:0.5"].map(|mode| step_s(&setting, mode, 8));
        assert!(pushed < whole, "{pushed} {whole}");
    }

    #[test]
    fn one_host_computes_and_a_thousand_are_predicted_too() {
        let setting = setting("resnet50", 0.2);
        assert!((step_s(&setting, "dist_sync_mpi", 1) / 0.2 - 1.0).abs() < 1e-6);
        let thousand = step_s(&setting, "dist_sync_mpi", 1024);
        assert!((0.2..2.0).contains(&thousand), "{thousand}");
    }

    #[test]
    fn what_has_no_prediction_is_an_error_that_lists_what_has() {
        for mode in ["dist_async:1", "dist_sync_mpi+topk:0.01", "gloo"] {
            let error = setting("vgg16", 1.0).step_s(mode.parse().unwrap(), 2).unwrap_err().to_string();
            assert!(error.contains(mode) && error.contains("dist_sync:K"), "{error}");
        }
    }
}
