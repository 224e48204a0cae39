//! Jobs of `dist_sync_mpi` with threads of this process as ranks. They run every promise without MPI, for
//! more numbers of workers and more plans than there is time for with real jobs.

use std::fmt::Write as _;
use std::sync::Arc;

use ringpull::internal::{Allreduce, store_over};
use ringpull_allreduce::progress::Engine;
use ringpull_base::Kind;
use ringpull_base::config::{ClusterSource, Config};
use ringpull_base::topology::host_name;

use crate::world::{Promise, World};

/// A job whose ranks are threads.
#[derive(Default)]
pub(crate) struct Threads<'a> {
    pub(crate) workers: usize,
    pub(crate) helpers: usize,
    /// The number of workers on each host, which share memory. 0 means one worker per host, without shared
    /// memory.
    pub(crate) on_host: usize,
    /// The rates at which each rank sends and receives, for the plans.
    pub(crate) links: &'a [(f64, f64)],
}

impl Threads<'_> {
    /// Runs the promises of `group` and returns the hash of what the workers saw.
    pub(crate) fn run(&self, group: &str, promises: &[Promise]) -> String {
        let folder = tempfile::tempdir().unwrap();
        let cluster = if self.links.is_empty() && self.helpers == 0 {
            ClusterSource::None
        } else {
            let file = folder.path().join("cluster.toml");
            std::fs::write(&file, cluster_file(self.links)).unwrap();
            ClusterSource::File(file)
        };
        let config = Config { cluster, check_nan: group == "integers", ..Config::default() };
        // The engines are kept until all workers have ended, because rank 0's engine tells the helpers when
        // nobody needs them any more.
        let hosts: Vec<usize> = (0..self.workers + self.helpers).map(|rank| rank / self.on_host.max(1)).collect();
        let engines = Engine::in_process_on(&hosts, self.helpers, &config).unwrap();
        let (workers, helpers) = engines.split_at(self.workers);
        let work = |engine: &Arc<Engine>| {
            // A rank that breaks a promise leaves the job, so its peers get an error and no thread is left.
            let _leave = Leave(engine);
            let store = store_over(Kind::DistSyncMpi, Box::new(Allreduce::new(Arc::clone(engine))), &config);
            let world = World::new(store, folder.path().to_owned(), group == "sharded");
            for (name, promise) in promises {
                println!("rank {} begins {name}", world.rank());
                promise(&world);
            }
            world.store.wait_all().unwrap();
            world.store.barrier().unwrap();
            format!("{:016x}", world.hash())
        };
        let hashes: Vec<String> = std::thread::scope(|scope| {
            for helper in helpers {
                scope.spawn(|| helper.serve().unwrap());
            }
            let ranks: Vec<_> = workers.iter().map(|engine| scope.spawn(|| work(engine))).collect();
            ranks.into_iter().map(|rank| rank.join().expect("a rank broke a promise")).collect()
        });
        assert!(hashes.iter().all(|hash| *hash == hashes[0]), "the workers hold different bits: {hashes:?}");
        hashes[0].clone()
    }
}

struct Leave<'a>(&'a Engine);

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        self.0.leave();
    }
}

/// Returns a cluster file in which only bytes have a cost.
pub(crate) fn cluster_file(rates: &[(f64, f64)]) -> String {
    let mut file = String::from(
        "[network]\nlink_mbit = 1.0\nlatency_us = 0.0\nmessage_us = 1e-9\nadding_mb = 1e9\nfan_factor = 1.0\n",
    );
    let name = host_name();
    for (sends, receives) in rates {
        write!(file, "[[host]]\nname = \"{name}\"\nsends_mbit = {sends}\nreceives_mbit = {receives}\n").unwrap();
    }
    file
}
