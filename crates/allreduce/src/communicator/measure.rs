//! Measures the hosts of a job and their network, for a cluster file.

use ringpull_base::{Error, Result};
use ringpull_plan::{LinkRates, Model};

use super::cluster::Cluster;
use super::learn::JobHosts;
use super::probe::{ProbeRunner as _, Prober, fit, median};
use super::probe_rings::ProbeRing;
use super::rack_probe::{PairResults, typical_rate};
use super::{Communicator, cluster_cache};

/// The number of measurements of the network. The median of each number counts.
const TIMES: usize = 3;

impl Communicator {
    /// Measures the hosts and their network. If `is_kept`, the cache of rank 0's user gets the result, for
    /// later jobs of exactly these hosts. `report` is called on every rank with the name of the next
    /// measurement. Collective; takes seconds, or minutes with many slow links.
    pub fn measure_cluster(&mut self, is_kept: bool, report: &dyn Fn(&str)) -> Result<Cluster> {
        let rank = self.rank();
        if self.placement.is_one_host() {
            return Err(Error::argument(
                "all ranks share one host's memory, so there is no network to measure",
                "start the probe on two hosts or more, with -H HOSTFILE or by mpirun",
            ));
        }
        let (hosts, are_named) = (self.placement.hosts.clone(), self.placement.are_racks_named);
        let executor = &mut self.executor;
        let job = JobHosts::gather(executor, &hosts)?;
        let mut machines = vec![0; executor.size()];
        for (ranks, identity) in hosts.iter().zip(&job.identities) {
            ranks.iter().for_each(|rank| machines[*rank] = *identity);
        }
        let mut prober = Prober::new(executor, ProbeRing::of(rank, &machines));
        let (mut models, mut last) = (Vec::new(), None);
        for time in 1..=TIMES {
            report(&format!("latency and rates, {time} of {TIMES}"));
            let times = prober.measure()?;
            tracing::debug!("the probe's times: {times:?}");
            models.push(fit(&times));
            last = Some(times);
        }
        let times = last.expect("it was measured");
        let PairResults { racks, rates } = prober.pairs(&hosts, are_named, &times, report)?;
        let cluster = Cluster::of(&with_links(middle(&models), &rates), job.names, &rates, racks);
        if rank == 0
            && is_kept
            && let Some(file) = cluster_cache::file_of(&job.identities)
            && let Err(cause) = cluster_cache::store(&file, &cluster.text())
        {
            tracing::info!(%cause, "the measurement is not kept for later jobs");
        }
        Ok(cluster)
    }
}

/// Returns the median of each number.
fn middle(models: &[Model]) -> Model {
    let numbers: Vec<[f64; size_of::<Model>() / size_of::<f64>()]> =
        models.iter().copied().map(bytemuck::cast).collect();
    bytemuck::cast(std::array::from_fn::<f64, { size_of::<Model>() / size_of::<f64>() }, _>(|at| {
        median(&mut numbers.iter().map(|numbers| numbers[at]).collect::<Vec<_>>())
    }))
}

/// `model` with the rate of the typical link, if links differ: a ring is as fast as the slowest.
fn with_links(model: Model, rates: &[LinkRates]) -> Model {
    if rates.is_empty() {
        return model;
    }
    let typical = typical_rate(rates);
    Model { long_bytes_per_us: typical, short_bytes_per_us: model.short_bytes_per_us.max(typical), ..model }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ringpull_base::config::Config;

    use super::*;
    use crate::transport::{Transport, inproc};

    /// The clusters that ranks over these transports measure.
    fn measured<T: Transport + Send + 'static>(ends: Vec<T>) -> Vec<Cluster> {
        let run = |end: T| {
            let mut comm = Communicator::new(Box::new(end), 0, &Config::default(), Arc::default()).unwrap();
            comm.measure_cluster(false, &|_| ()).unwrap()
        };
        std::thread::scope(|scope| {
            let ranks: Vec<_> = ends.into_iter().map(|end| scope.spawn(move || run(end))).collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        })
    }

    #[test]
    fn every_rank_measures_the_same_file_which_a_job_can_read() {
        let clusters = measured(inproc::world(3));
        assert!(clusters.iter().all(|cluster| *cluster == clusters[0]), "{clusters:?}");
        assert_eq!(clusters[0].hosts.len(), 3);
        assert_eq!(Cluster::parse(&clusters[0].text()).as_ref(), Ok(&clusters[0]));
    }

    #[test]
    fn of_each_number_the_median_counts() {
        let model = |latency_us, message_us| Model { latency_us, message_us, ..Model::default() };
        let found = middle(&[model(1.0, 9.0), model(7.0, 2.0), model(2.0, 3.0)]);
        assert_eq!(found, model(2.0, 3.0));
    }
}
