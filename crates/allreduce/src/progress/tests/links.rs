//! The hosts' links are measured again while a job runs.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use ringpull_base::config::{Config, ModelSource};
use ringpull_base::{DType, Error, Key, Reduction, Result};
use ringpull_plan::Links;

use crate::communicator::Communicator;
use crate::progress::connected::Connected;
use crate::progress::engine::Engine;
use crate::progress::job::{Job, Reply, answer};
use crate::progress::messages::{Launch, Operation, Terms, Topic, Transfer};
use crate::progress::pace::Pace;
use crate::transport::control::Control;
use crate::transport::inproc::{self, Inproc};
use crate::transport::over_links::{Cable, OverLinks};

/// Engines on links of these rates, by a model that they have measured.
fn engines(rates: &[f64]) -> (Vec<Arc<Engine>>, Arc<Mutex<Cable>>) {
    let cable = Cable::of(rates);
    let config = Config {
        model: ModelSource::Probe,
        heartbeat_interval: Duration::from_millis(20),
        timeout: Duration::from_secs(60),
        ..Config::default()
    };
    let ends = inproc::world(rates.len()).into_iter().zip(Control::in_process(rates.len()));
    let engines = std::thread::scope(|scope| {
        let start = |(inner, control): (Inproc, Control)| {
            let (cable, config) = (Arc::clone(&cable), &config);
            let connect = move || {
                let transport = OverLinks::new(inner, cable);
                Ok(Connected {
                    transport: Box::new(transport),
                    control,
                    helpers: 0,
                    is_cluster: true,
                    finalise: Box::new(|| ()),
                    succession: None,
                })
            };
            scope.spawn(move || Engine::start(config, Box::new(connect)).unwrap())
        };
        let ranks: Vec<_> = ends.map(start).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    (engines, cable)
}

/// A sum of all ranks, which its caller gets.
struct Summed {
    data: Vec<f32>,
    reply: Reply<Vec<f32>>,
}

impl Job for Summed {
    fn transfer(&self) -> Transfer {
        let (dtype, reduction, len_bytes) = (DType::F32, Reduction::Sum, 4 * self.data.len());
        Transfer::Sum { dtype, reduction, len_bytes, priority: 0, is_divided: false }
    }

    fn addend(&mut self) -> &mut [u8] {
        bytemuck::cast_slice_mut(&mut self.data)
    }

    fn run(&mut self, _comm: &mut Communicator, _launch: &Launch) -> Result<()> {
        unreachable!("it is a sum")
    }

    fn finish(self: Box<Self>) -> Result<()> {
        self.reply.send(Ok(self.data));
        Ok(())
    }

    fn fail(self: Box<Self>, fault: &Error) {
        self.reply.send(Err(fault.clone()));
    }
}

const LEN: usize = 512 << 10;

/// Sums once; whether the third rank's link is to carry less than the others by what the ranks know afterwards.
/// On a busy machine links may seem to differ otherwise.
fn step(engine: &Arc<Engine>) -> bool {
    let (reply, answer) = answer();
    let job = Box::new(Summed { data: vec![engine.rank() as f32 + 1.0; LEN], reply });
    let topic = Topic::Key { store: 0, key: Key::from(0) };
    engine.submit(topic, Operation::Push, Terms::default(), job).unwrap();
    let sum = engine.wait_for(&answer).unwrap();
    let expected = (engine.size() * (engine.size() + 1) / 2) as f32;
    assert!(sum.iter().all(|element| *element == expected), "on rank {}", engine.rank());
    let look = |comm: &mut Communicator| comm.learned().links.as_ref().map(Links::carried);
    let carried = engine.collective("look", Vec::new(), move |comm, _, _| Ok(look(comm))).unwrap();
    carried.is_some_and(|all| all.iter().enumerate().all(|(rank, one)| rank == 2 || one.sends > 1.2 * all[2].sends))
}

#[test]
#[ignore = "it measures, and needs a quiet machine: scripts/test --all"]
fn a_link_that_becomes_slow_is_found_while_steps_go_on_and_sums_are_planned_for_it() {
    let (engines, cable) = engines(&[40.0; 4]);
    std::thread::scope(|scope| {
        for engine in &engines {
            let cable = &cable;
            scope.spawn(move || {
                for _ in 0..8 {
                    step(engine);
                }
                engine.barrier().unwrap();
                if engine.rank() == 0 {
                    cable.lock().unwrap().rates[2] = 15.0;
                }
                // All ranks see it after the same step, so all end.
                assert!((0..200).any(|_| step(engine)), "rank {} never heard of it", engine.rank());
                assert!(step(engine));
                engine.leave();
            });
        }
    });
}

#[test]
fn ranks_that_leave_while_links_are_about_to_be_measured_end() {
    for round in 0..10_u64 {
        let (engines, _) = engines(&[400.0; 3]);
        std::thread::scope(|scope| {
            for engine in &engines {
                scope.spawn(move || {
                    for _ in 0..4 {
                        step(engine);
                    }
                    // From here on every rank reports that sums are slow.
                    let shared = engine.current.get();
                    *shared.slow_sums.lock() = Pace::slow_in_test();
                    drop(shared);
                    // Rank 0 orders the measurement with its next heartbeats, before or after others leave.
                    std::thread::sleep(Duration::from_millis(5 * round * engine.rank() as u64));
                    engine.leave();
                    assert_eq!(engine.fault(), None);
                });
            }
        });
    }
}
