//! Links that are measured while ranks sum.

use std::thread;

use crossbeam_channel::bounded;

use ringpull_base::config::{Config, ModelSource};
use ringpull_base::{Buffer, DType, Error, Reduction, Result};

use crate::communicator::Communicator;
use crate::progress::engine::Engine;
use crate::progress::job::Job;
use crate::progress::messages::{ControlMessage, Launch, Operation, Terms, Topic, Transfer};

const LEN: usize = 300_000;
const STEPS: usize = 12;

/// A sum, whose first element it gives back.
struct Sum {
    data: Buffer,
    result: crossbeam_channel::Sender<Result<f32>>,
}

impl Job for Sum {
    fn transfer(&self) -> Transfer {
        let (dtype, reduction) = (DType::F32, Reduction::Sum);
        Transfer::Sum { dtype, reduction, len_bytes: 4 * LEN, priority: 0, is_divided: false }
    }

    fn addend(&mut self) -> &mut [u8] {
        self.data.bytes_mut()
    }

    fn run(&mut self, _communicator: &mut Communicator, _launch: &Launch) -> Result<()> {
        unreachable!("a sum is begun")
    }

    fn finish(self: Box<Self>) -> Result<()> {
        let values: &[f32] = bytemuck::cast_slice(self.data.bytes());
        assert!(values.iter().all(|value| *value == values[0]), "the sum is the same everywhere");
        drop(self.result.send(Ok(values[0])));
        Ok(())
    }

    fn fail(self: Box<Self>, fault: &Error) {
        drop(self.result.send(Err(fault.clone())));
    }
}

fn sum(engine: &Engine, value: f32) -> f32 {
    let mut data = Buffer::zeroed(4 * LEN);
    bytemuck::cast_slice_mut::<u8, f32>(data.bytes_mut()).fill(value);
    let (result, answer) = bounded(1);
    let topic = Topic::Key { store: 0, key: 1.into() };
    engine.submit(topic, Operation::Push, Terms::default(), Box::new(Sum { data, result })).unwrap();
    answer.recv().unwrap().unwrap()
}

#[test]
fn sums_are_right_before_and_after_a_measurement_in_the_middle_of_a_frozen_cycle() {
    let config = Config { model: ModelSource::Default, ..Config::default() };
    let engines = Engine::in_process(4, &config).unwrap();
    thread::scope(|scope| {
        for engine in &engines {
            scope.spawn(move || {
                for step in 0..STEPS {
                    if engine.rank() == 0 && [0, STEPS / 2].contains(&step) {
                        engine.note(ControlMessage::Measure);
                    }
                    assert_eq!(sum(engine, step as f32), 4.0 * step as f32, "step {step}");
                }
            });
        }
    });
}
