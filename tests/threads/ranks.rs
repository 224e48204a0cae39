//! Runs ranks of `dist_sync_mpi` as threads.

use std::sync::Arc;

use ringpull::KvStore;
use ringpull::internal::{Allreduce, store_over};
use ringpull_allreduce::progress::Engine;
use ringpull_base::Kind;
use ringpull_base::config::Config;

/// Runs `work` as each of `size` workers.
pub(crate) fn workers<T: Send>(size: usize, config: &Config, work: impl Fn(&KvStore) -> T + Sync) -> Vec<T> {
    on_engines(size, config, |engine| {
        let store = store_over(Kind::DistSyncMpi, Box::new(Allreduce::new(Arc::clone(engine))), config);
        work(&store)
    })
}

/// Runs `work` with the engine of each of `size` ranks: first as if all ranks were on one host, where they
/// share memory, then as if each were on its own host. Returns the results of the second run. Engines end
/// together, when all work is done.
pub(crate) fn on_engines<T: Send>(size: usize, config: &Config, work: impl Fn(&Arc<Engine>) -> T + Sync) -> Vec<T> {
    on_hosts(&vec![0; size], config, &work);
    on_hosts(&(0..size).collect::<Vec<_>>(), config, &work)
}

/// Runs `work` as [`on_engines`] does, with the ranks on these hosts.
pub(crate) fn on_hosts<T: Send>(
    hosts: &[usize],
    config: &Config,
    work: &(impl Fn(&Arc<Engine>) -> T + Sync),
) -> Vec<T> {
    let engines = Engine::in_process_on(hosts, 0, config).unwrap();
    let share = hosts.len() > 1 && hosts[0] == hosts[1];
    assert_eq!(engines[0].placement().contains("shared memory"), share, "{}", engines[0].placement());
    std::thread::scope(|scope| {
        let threads = engines.into_iter().map(|engine| scope.spawn(move || (work(&engine), engine)));
        let threads: Vec<_> = threads.collect();
        let ends: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        let (values, engines): (Vec<T>, Vec<Arc<Engine>>) = ends.into_iter().unzip();
        for engine in engines {
            scope.spawn(move || drop(engine));
        }
        values
    })
}
