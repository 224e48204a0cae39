//! Stores over simulated devices, in one process: any number of ranks and devices, repeated steps, and a fault at every step.

use std::net::{Ipv4Addr, SocketAddr};
use std::slice::from_ref;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use ringpull::config::{Config, Dmlc, Role};
use ringpull::device::{Devices, Fault, Manner, Simulated};
use ringpull::progress::Engine;
use ringpull::store::KvStore;
use ringpull::store::device_sums::DeviceSums;
use ringpull::store::on_devices::OnDevices;
use ringpull::store::servers::Servers;
use ringpull::{DType, Kind, Result, Tensor, ps};

/// Short, since work that never ends is waited for this long.
fn config(timeout: Duration) -> Config {
    Config { timeout, ..Config::default() }
}

/// As `config`, with a transport that takes the memory of devices.
fn direct(timeout: Duration) -> Config {
    Config { mpi_device_memory: Some(true), ..config(timeout) }
}

/// One step of training on `devices`: outputs and values on every device, an optimizer, a pull to the host.
fn train(store: &KvStore, devices: &Devices, len: usize) -> Result<Vec<f32>> {
    let mine = (store.rank() + 1) as f64;
    store.init("w", &Tensor::full(DType::F32, &[len], 1.0))?;
    store.set_optimizer(&"sgd,lr=0.5,momentum=0.5".parse()?)?;
    let upload = |device: usize| devices.upload(device, &Tensor::full(DType::F32, &[len], mine));
    let values = (0..devices.count()).map(upload).collect::<Result<Vec<_>>>()?;
    store.push("w", &values, 0)?;
    store.push_pull("w", &values[..1], &values, 0)?;
    let seen = devices.download(&values[0])?.to_vec::<f32>()?;
    let host = Tensor::zeros(DType::F32, &[len]);
    store.pull("w", from_ref(&host), 0)?;
    assert_eq!(host.to_vec::<f32>()?, seen);
    store.wait_all()?;
    for value in &values {
        assert_eq!(devices.download(value)?.to_vec::<f32>()?, seen);
    }
    store.barrier()?;
    Ok(seen)
}

/// What `train` must see: two steps of momentum with `ranks` ranks of these numbers of devices.
fn expected(counts: &[usize]) -> f32 {
    let sum = |each: &dyn Fn(usize) -> usize| -> f32 {
        counts.iter().enumerate().map(|(rank, count)| (each(*count) * (rank + 1)) as f32).sum()
    };
    let first = -0.5 * sum(&|count| count);
    let second = 0.5 * first - 0.5 * sum(&|_| 1);
    1.0 + first + second
}

/// Runs `train` on ranks with these numbers of devices, of which rank 0's may have a fault; every rank's outcome, and rank 0's steps.
fn job(counts: &[usize], len: usize, fault: Option<Fault>, limit: Duration) -> (Vec<Result<Vec<f32>>>, u64) {
    let (outcomes, platform) = job_of(&config(limit), counts, len, fault);
    (outcomes, platform.steps())
}

/// As `job`, with the ranks' settings; rank 0's platform.
fn job_of(
    config: &Config,
    counts: &[usize],
    len: usize,
    fault: Option<Fault>,
) -> (Vec<Result<Vec<f32>>>, Arc<Simulated>) {
    let limit = config.timeout;
    let engines = Engine::in_process(counts.len(), config).unwrap();
    let platforms: Vec<Arc<Simulated>> =
        counts.iter().enumerate().map(|(rank, count)| Simulated::faulty(*count, fault.filter(|_| rank == 0))).collect();
    let ranks: Vec<_> = engines
        .into_iter()
        .zip(&platforms)
        .map(|(engine, platform)| {
            let (platform, config) = (Arc::clone(platform), config.clone());
            thread::spawn(move || {
                let outcome = Devices::over(platform, limit).and_then(|devices| {
                    let backend = OnDevices::over_ranks(Arc::clone(&devices), Arc::clone(&engine), config.timeout);
                    let store = KvStore::over(Kind::DistSyncMpi, Box::new(backend), &config);
                    train(&store, &devices, len)
                });
                if outcome.is_err() {
                    engine.give_up();
                }
                outcome
            })
        })
        .collect();
    let outcomes = ranks.into_iter().map(|rank| rank.join().unwrap()).collect();
    (outcomes, Arc::clone(&platforms[0]))
}

#[test]
fn a_transport_that_takes_memory_of_devices_is_given_it() {
    for (counts, len) in [(vec![1, 1], 9), (vec![2; 3], 11), (vec![1; 4], (5 << 20) / 4 + 3), (vec![4, 4], 1)] {
        let (outcomes, platform) = job_of(&direct(Duration::from_secs(30)), &counts, len, None);
        for outcome in outcomes {
            assert!(outcome.unwrap().iter().all(|value| *value == expected(&counts)), "{counts:?} with {len} elements");
        }
        assert!(platform.exposed() > 0);
    }
    let (outcomes, platform) = job_of(&direct(Duration::from_secs(30)), &[1, 3], 9, None);
    outcomes.into_iter().for_each(|outcome| assert_eq!(outcome.unwrap(), [expected(&[1, 3]); 9]));
    assert_eq!(platform.exposed(), 0, "ranks with different numbers of devices have different parts");
}

fn alone(count: usize, fault: Option<Fault>, limit: Duration) -> (Result<Vec<f32>>, u64) {
    let platform = Simulated::faulty(count, fault);
    let over: Arc<Simulated> = Arc::clone(&platform);
    let outcome = Devices::over(over, limit).and_then(|devices| {
        let backend = OnDevices::alone(Arc::clone(&devices), limit);
        train(&KvStore::over(Kind::Device, Box::new(backend), &config(limit)), &devices, 9)
    });
    (outcome, platform.steps())
}

#[test]
fn any_number_of_ranks_with_any_number_of_devices_sums() {
    for ranks in 1..=4 {
        for devices in [1, 2, 4] {
            let counts = vec![devices; ranks];
            let (outcomes, _) = job(&counts, 11, None, Duration::from_secs(30));
            for outcome in outcomes {
                assert_eq!(outcome.unwrap(), [expected(&counts); 11], "{ranks} ranks of {devices} devices");
            }
        }
    }
}

#[test]
fn ranks_may_have_different_numbers_of_devices_and_tensors_several_segments() {
    let (len, counts) = ((5 << 20) / 4 + 3, [1, 3]);
    let (outcomes, _) = job(&counts, len, None, Duration::from_secs(30));
    for outcome in outcomes {
        assert!(outcome.unwrap().iter().all(|value| *value == expected(&counts)));
    }
}

#[test]
fn one_process_meets_a_fault_at_any_step_with_an_error() {
    for count in [1, 2] {
        let (outcome, steps) = alone(count, None, Duration::from_secs(30));
        assert_eq!(outcome.unwrap(), [expected(&[count]); 9]);
        assert!(steps > 20, "{steps} steps");
        for step in 0..steps {
            for manner in [Manner::Returned, Manner::Later] {
                let (outcome, _) = alone(count, Some(Fault { step, manner }), Duration::from_secs(30));
                check(&outcome, step, manner, steps);
            }
        }
        for step in (0..steps).step_by(5) {
            let fault = Fault { step, manner: Manner::Never };
            let (outcome, _) = alone(count, Some(fault), Duration::from_millis(50));
            assert!(
                outcome.is_err() || step + 5 > steps,
                "step {step} of {steps}: work that never ends went unnoticed"
            );
        }
    }
}

/// The last steps come after the last result was taken.
fn check(outcome: &Result<Vec<f32>>, step: u64, manner: Manner, steps: u64) {
    match outcome {
        Err(error) => {
            let text = error.to_string();
            assert!(text.contains(&format!("injected at step {step}")), "step {step}, {manner:?}: {text}");
        }
        Ok(_) => assert!(step + 5 > steps, "step {step} of {steps}, {manner:?}: the fault went unnoticed"),
    }
}

#[test]
fn every_rank_meets_the_fault_of_one() {
    meet_the_fault_of_rank_0(&[2, 1]);
}

#[test]
fn every_one_of_four_ranks_meets_the_fault_of_one() {
    meet_the_fault_of_rank_0(&[1, 2, 1, 1]);
}

#[test]
fn every_rank_meets_the_fault_of_one_whose_memory_the_transport_has() {
    meet_the_fault_of(direct, &[2, 2]);
}

fn meet_the_fault_of_rank_0(counts: &[usize]) {
    meet_the_fault_of(config, counts);
}

fn meet_the_fault_of(config: fn(Duration) -> Config, counts: &[usize]) {
    let (outcomes, platform) = job_of(&config(Duration::from_secs(30)), counts, 9, None);
    let steps = platform.steps();
    outcomes.into_iter().for_each(|outcome| assert_eq!(outcome.unwrap(), [expected(counts); 9]));
    let faults: Vec<Fault> = [Manner::Returned, Manner::Later]
        .into_iter()
        .flat_map(|manner| (0..steps - 10).map(move |step| Fault { step, manner }))
        .collect();
    // Each of them spends its time waiting.
    let outcomes = faults.chunks(16).flat_map(|faults| {
        thread::scope(|scope| {
            let running: Vec<_> = faults
                .iter()
                .map(|fault| {
                    scope.spawn(move || (fault, job_of(&config(Duration::from_secs(20)), counts, 9, Some(*fault)).0))
                })
                .collect();
            running.into_iter().map(|job| job.join().unwrap()).collect::<Vec<_>>()
        })
    });
    for (fault, outcomes) in outcomes {
        for (rank, outcome) in outcomes.iter().enumerate() {
            let text = outcome.as_ref().expect_err("a fault reaches every rank").to_string();
            let known = text.contains("injected at step") || text.contains("rank 0") || text.contains("aborted");
            assert!(known, "rank {rank} after {fault:?}: {text}");
        }
    }
}

/// Where the `number`-th job's scheduler listens: on an address of this process, and on a port that the system gives to nobody by itself.
fn address(number: usize) -> SocketAddr {
    let [.., upper, lower] = std::process::id().to_be_bytes();
    (Ipv4Addr::new(127, upper, lower, 7), 20_000 + number as u16).into()
}

/// A job of one worker whose platform may have a fault, a server and a scheduler, all threads of this process.
fn with_servers(kind: Kind, root: SocketAddr, fault: Option<Fault>) -> (Result<Vec<f32>>, u64) {
    let (count, limit) = (2, Duration::from_secs(20));
    let node_host = Some(root.ip());
    let dmlc = |role| Dmlc { role, root, num_workers: 1, num_servers: 1, node_host, preferred_rank: None };
    let platform = Simulated::faulty(count, fault);
    let over: Arc<Simulated> = Arc::clone(&platform);
    let patient = config(limit);
    let outcome = thread::scope(|scope| {
        for role in [Role::Scheduler, Role::Server] {
            let (dmlc, patient) = (dmlc(role), &patient);
            scope.spawn(move || ps::run_node(role, patient, &dmlc));
        }
        let servers = Servers::connect(kind, &patient, &dmlc(Role::Worker)).unwrap();
        let devices = Devices::over(over, limit)?;
        let backend = DeviceSums::new(servers, Arc::clone(&devices), limit);
        train(&KvStore::over(kind, Box::new(backend), &patient), &devices, 9)
    });
    (outcome, platform.steps())
}

#[test]
fn a_worker_of_servers_meets_a_fault_at_any_step_with_an_error() {
    meet_faults_with_servers(Kind::DistSyncDevice, 0);
}

#[test]
fn a_worker_of_servers_that_do_not_wait_meets_a_fault_at_any_step_with_an_error() {
    meet_faults_with_servers(Kind::DistAsyncDevice, 2000);
}

fn meet_faults_with_servers(kind: Kind, first_address: usize) {
    let (outcome, steps) = with_servers(kind, address(first_address), None);
    assert_eq!(outcome.unwrap(), [expected(&[2]); 9]);
    assert!(steps > 20, "{steps} steps");
    let steps_of = |manner| (0..steps).map(move |step| Fault { step, manner });
    let faults: Vec<Fault> = steps_of(Manner::Returned).chain(steps_of(Manner::Later)).collect();
    // Each of them spends its time meeting and parting.
    let numbered: Vec<(usize, Fault)> = (first_address + 1..).zip(faults).collect();
    for faults in numbered.chunks(16) {
        thread::scope(|scope| {
            for (number, fault) in faults {
                scope.spawn(move || {
                    let (outcome, _) = with_servers(kind, address(*number), Some(*fault));
                    check(&outcome, fault.step, fault.manner, steps);
                });
            }
        });
    }
}

#[test]
fn steps_on_devices_that_repeat_send_no_control_message() {
    let config = config(Duration::from_secs(30));
    let engines = Engine::in_process(3, &config).unwrap();
    // A rank that leaves has something to say to the others.
    let all_counted = Arc::new(Barrier::new(3));
    let ranks: Vec<_> = engines
        .into_iter()
        .map(|engine| {
            let (config, all_counted) = (config.clone(), Arc::clone(&all_counted));
            thread::spawn(move || {
                let devices = Devices::simulated(2).unwrap();
                let backend = OnDevices::over_ranks(Arc::clone(&devices), engine, config.timeout);
                let store = KvStore::over(Kind::DistSyncMpi, Box::new(backend), &config);
                let keys = ["a", "b", "c", "d"];
                let tensor = |device| devices.upload(device, &Tensor::full(DType::F32, &[5], 1.0)).unwrap();
                let tensors: Vec<Vec<Tensor>> = keys.iter().map(|_| (0..2).map(tensor).collect()).collect();
                keys.iter().for_each(|key| store.init(*key, &Tensor::zeros(DType::F32, &[5])).unwrap());
                let mut value = 1.0;
                let mut before = 0;
                for step in 0..12 {
                    if step == 4 {
                        before = store.stats().control_messages;
                    }
                    for (key, values) in keys.iter().zip(&tensors) {
                        store.push_pull(*key, values, values, 0).unwrap();
                    }
                    value *= 6.0;
                    for tensor in tensors.iter().flatten() {
                        assert_eq!(devices.download(tensor).unwrap().to_vec::<f32>().unwrap(), [value; 5]);
                    }
                }
                let after = store.stats().control_messages;
                all_counted.wait();
                (before, after)
            })
        })
        .collect();
    for rank in ranks {
        let (before, after) = rank.join().unwrap();
        assert!(before > 0);
        assert_eq!(before, after);
    }
}
