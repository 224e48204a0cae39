//! Tests the end of engines whose library does not end.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded};

use ringpull_base::config::Config;

use crate::progress::connected::ReadyTransport;
use crate::progress::engine::Engine;
use crate::transport::control::Control;
use crate::transport::inproc;

/// Returns two engines with libraries that end when the sender is dropped.
fn held(limit: Duration) -> (Vec<Arc<Engine>>, Sender<()>) {
    let (held, release): (Sender<()>, Receiver<()>) = bounded(0);
    let config = Config { timeout: limit, ..Config::default() };
    let ends = inproc::world(2).into_iter().zip(Control::in_process(2));
    let engines = std::thread::scope(|scope| {
        let ranks: Vec<_> = ends
            .map(|(transport, control)| {
                let (release, config) = (release.clone(), &config);
                let connect = move || {
                    let finalise = Box::new(move || while release.recv().is_ok() {});
                    Ok(ReadyTransport {
                        transport: Box::new(transport),
                        control,
                        helpers: 0,
                        finalise,
                        succession: None,
                    })
                };
                scope.spawn(move || Engine::start(config, Box::new(connect)).unwrap())
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    (engines, held)
}

#[test]
fn a_library_that_does_not_end_is_left_once_every_rank_has_done_its_work() {
    let limit = Duration::from_millis(300);
    let (engines, _held) = held(limit);
    let start = Instant::now();
    std::thread::scope(|scope| {
        for engine in &engines {
            scope.spawn(|| engine.leave());
        }
    });
    assert!(start.elapsed() >= limit, "it was given its time");
}

#[test]
fn a_rank_that_still_works_is_awaited() {
    let (engines, held) = held(Duration::from_millis(100));
    std::thread::scope(|scope| {
        let first = scope.spawn(|| engines[0].leave());
        std::thread::sleep(Duration::from_millis(500));
        assert!(!first.is_finished(), "rank 1 has not said that it leaves");
        drop(held);
        engines[1].leave();
    });
}
