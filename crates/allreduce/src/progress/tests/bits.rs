//! A job gives the same bits each time, whatever else the machine does.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ringpull_base::config::{ClusterSource, Config};
use ringpull_base::topology::host_name;
use ringpull_base::{Buffer, DType, Error, Reduction, Result};

use crate::interpreter::Memory;
use crate::progress::answer::{Reply, answer};
use crate::progress::engine::Engine;
use crate::progress::job::{Job, Submission};
use crate::progress::messages::{Operation, Terms, Topic, Transfer};

/// A sum over all ranks that returns its result to the caller.
struct SumJob {
    data: Vec<f32>,
    reply: Reply<Vec<f32>>,
}

impl Job for SumJob {
    fn transfer(&self) -> Transfer {
        let (dtype, reduction, len_bytes) = (DType::F32, Reduction::Sum, 4 * self.data.len());
        Transfer::Sum { dtype, reduction, len_bytes, priority: 0, is_divided: false }
    }

    fn lend(&mut self) -> Memory {
        Memory::Own(Buffer::copy_of(bytemuck::cast_slice(&self.data)))
    }

    fn receive(&mut self, memory: Memory) {
        self.data.copy_from_slice(bytemuck::cast_slice(memory.bytes()));
    }

    fn finish(self: Box<Self>) -> Result<()> {
        self.reply.send(Ok(self.data));
        Ok(())
    }

    fn fail(self: Box<Self>, fault: &Error) {
        self.reply.send(Err(fault.clone()));
    }
}

/// The lengths of the keys of a step. Short keys are summed together when the steps repeat themselves.
const LENS: [usize; 6] = [1, 700, 3_000, 40_000, 9, 300_000];
const STEPS: usize = 6;

/// The bits of every sum of a job of five ranks.
fn job(source: &ClusterSource) -> Vec<u32> {
    let config = Config { cluster: source.clone(), timeout: Duration::from_secs(60), ..Config::default() };
    let engines = Engine::in_process(5, &config).unwrap();
    let rank = |engine: &Arc<Engine>| {
        let mut bits = Vec::new();
        for step in 0..STEPS {
            let calls = LENS.iter().enumerate().map(|(key, len)| {
                // Sums of thirds are rounded, and the rounding depends on the order of addition.
                let element = |at: usize| ((at * 7 + key + 1) * (engine.rank() + 2) + step) as f32 / 3.0;
                let (reply, answer) = answer();
                let topic = Topic::Key { store: 0, key: (key as i64).into() };
                let job = Submission::new(SumJob { data: (0..*len).map(element).collect(), reply });
                engine.submit(topic, Operation::Push, Terms::default(), job).unwrap();
                answer
            });
            let answers: Vec<_> = calls.collect();
            for answer in &answers {
                bits.extend(engine.wait_for(answer).unwrap().iter().map(|element| element.to_bits()));
            }
        }
        engine.leave();
        bits
    };
    let all: Vec<Vec<u32>> = std::thread::scope(|scope| {
        let ranks: Vec<_> = engines.iter().map(|engine| scope.spawn(move || rank(engine))).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    assert!(all.iter().all(|one| *one == all[0]), "ranks hold different bits");
    all.into_iter().next().unwrap_or_default()
}

/// Runs `work` while every core is busy with something else.
fn beside_busy_processes<T>(work: impl FnOnce() -> T) -> T {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        is_over.store(true, Ordering::Relaxed);
        outcome.unwrap_or_else(|cause| std::panic::resume_unwind(cause))
    })
}

#[test]
fn a_job_gives_the_same_bits_beside_a_busy_process_with_a_cluster_file_and_without() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("cluster.toml");
    let slow = format!("[[host]]\nname = \"{0}\"\nsends_mbit = 50\n", host_name());
    std::fs::write(&file, format!("[network]\nlink_mbit = 200\nlatency_us = 1\nmessage_us = 1\n{slow}")).unwrap();
    let mut by_source = Vec::new();
    for source in [ClusterSource::None, ClusterSource::File(file)] {
        let alone = job(&source);
        for _ in 0..2 {
            assert_eq!(beside_busy_processes(|| job(&source)), alone, "{source}");
        }
        by_source.push(alone);
    }
    assert_ne!(by_source[0], by_source[1], "links that differ have another plan");
}
