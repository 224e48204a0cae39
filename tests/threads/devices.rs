//! Tests of stores over simulated devices in one process: any number of ranks and devices, repeated steps,
//! and a fault at every step.

use std::net::{Ipv4Addr, SocketAddr};
use std::slice::from_ref;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use ringpull::KvStore;
use ringpull::internal::{Allreduce, Backend, DeviceSums, OnDevices, Servers, store_over};
use ringpull_allreduce::progress::Engine;
use ringpull_base::config::{Config, Dmlc, Role};
use ringpull_base::{Algorithm, AlgorithmChoice, DType, Kind, Result, Tensor};
use ringpull_device::{DeviceFault, Devices, Manner, Simulated};
use ringpull_ps as ps;

/// Returns the settings with this time limit. It is short, because the tests wait that long for work that
/// never ends.
fn config(timeout: Duration) -> Config {
    Config { timeout, ..Config::default() }
}

/// Returns the settings of `config`, with sums by way of host memory.
fn staged(timeout: Duration) -> Config {
    Config { algorithm: Algorithm::Ring.into(), ..config(timeout) }
}

/// Returns the settings of `config`, with sums by the devices of all ranks.
fn joined(timeout: Duration) -> Config {
    Config { algorithm: AlgorithmChoice::Nccl, ..config(timeout) }
}

/// Trains on `devices`, with outputs and values on every device, an optimizer, and a pull to the host.
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

/// Returns the value that `train` must get: two steps of momentum, with one rank per item of `counts` and
/// that number of devices on it.
fn expected(counts: &[usize]) -> f32 {
    let sum = |each: &dyn Fn(usize) -> usize| -> f32 {
        counts.iter().enumerate().map(|(rank, count)| (each(*count) * (rank + 1)) as f32).sum()
    };
    let first = -0.5 * sum(&|count| count);
    let second = 0.5 * first - 0.5 * sum(&|_| 1);
    1.0 + first + second
}

/// Runs `train` on ranks with these numbers of devices. Returns every rank's outcome.
fn job(counts: &[usize], len: usize, limit: Duration) -> Vec<Result<Vec<f32>>> {
    job_of(&config(limit), counts, len, None).0
}

/// Runs a job as `job` does, with each rank's settings. One rank may have a fault. Returns also the platform
/// of that rank, or of rank 0 if none has a fault.
fn job_of(
    config: &Config,
    counts: &[usize],
    len: usize,
    fault: Option<(usize, DeviceFault)>,
) -> (Vec<Result<Vec<f32>>>, Arc<Simulated>) {
    let limit = config.timeout;
    let engines = Engine::in_process(counts.len(), config).unwrap();
    let fault_of = |rank: usize| fault.filter(|(at, _)| *at == rank).map(|(_, fault)| fault);
    let platforms: Vec<Arc<Simulated>> =
        counts.iter().enumerate().map(|(rank, count)| Simulated::faulty(*count, fault_of(rank))).collect();
    let ranks: Vec<_> = engines
        .into_iter()
        .zip(&platforms)
        .map(|(engine, platform)| {
            let (platform, config) = (Arc::clone(platform), config.clone());
            thread::spawn(move || {
                let outcome = Devices::over(platform, limit).and_then(|devices| {
                    let backend = OnDevices::over_ranks(Arc::clone(&devices), Arc::clone(&engine), config.timeout);
                    let store = store_over(Kind::DistSyncMpi, Box::new(backend), &config);
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
    (outcomes, Arc::clone(&platforms[fault.map_or(0, |(rank, _)| rank)]))
}

#[test]
fn a_rank_on_devices_among_ranks_in_host_memory_gets_an_error_with_the_variable_to_set() {
    let config = config(Duration::from_secs(30));
    let engines = Engine::in_process(2, &config).unwrap();
    let stores: Vec<KvStore> = engines
        .into_iter()
        .map(|engine| {
            let backend: Box<dyn Backend> = match engine.rank() {
                0 => Box::new(OnDevices::over_ranks(Devices::simulated(2).unwrap(), engine, config.timeout)),
                _ => Box::new(Allreduce::new(engine)),
            };
            store_over(Kind::DistSyncMpi, backend, &config)
        })
        .collect();
    stores.iter().for_each(|store| store.init("w", &Tensor::zeros(DType::F32, &[4])).unwrap());
    for store in stores {
        let text = store.wait_all().unwrap_err().to_string();
        let views = text.contains("bytes on devices, rank 1 has sums by auto");
        assert!(views && text.contains("RINGPULL_DEVICES to all or to none"), "{text}");
    }
}

fn alone(count: usize, fault: Option<DeviceFault>, limit: Duration) -> (Result<Vec<f32>>, u64) {
    let platform = Simulated::faulty(count, fault);
    let over: Arc<Simulated> = Arc::clone(&platform);
    let outcome = Devices::over(over, limit).and_then(|devices| {
        let backend = OnDevices::alone(Arc::clone(&devices), limit);
        train(&store_over(Kind::Device, Box::new(backend), &config(limit)), &devices, 9)
    });
    (outcome, platform.steps())
}

#[test]
fn any_number_of_ranks_with_any_number_of_devices_sums() {
    for ranks in 1..=4 {
        for devices in [1, 2, 4] {
            let counts = vec![devices; ranks];
            for outcome in job(&counts, 11, Duration::from_secs(30)) {
                assert_eq!(outcome.unwrap(), [expected(&counts); 11], "{ranks} ranks of {devices} devices");
            }
        }
    }
}

#[test]
fn ranks_may_have_different_numbers_of_devices_and_tensors_several_segments() {
    let (len, counts) = ((5 << 20) / 4 + 3, [1, 3]);
    for outcome in job(&counts, len, Duration::from_secs(30)) {
        assert!(outcome.unwrap().iter().all(|value| *value == expected(&counts)));
    }
}

#[test]
fn one_process_meets_a_fault_at_any_step_with_an_error() {
    for count in [1, 2] {
        let (outcome, steps) = alone(count, None, Duration::from_secs(30));
        assert_eq!(outcome.unwrap(), [expected(&[count]); 9]);
        assert!(steps > 20, "{steps} steps");
        println!("{} faults of 1 process", 2 * steps + steps.div_ceil(5));
        for step in 0..steps {
            for manner in [Manner::Returned, Manner::Later] {
                let (outcome, _) = alone(count, Some(DeviceFault { step, manner }), Duration::from_secs(30));
                check(&outcome, step, manner, steps);
            }
        }
        for step in (0..steps).step_by(5) {
            let fault = DeviceFault { step, manner: Manner::Never };
            let (outcome, _) = alone(count, Some(fault), Duration::from_millis(50));
            assert!(
                outcome.is_err() || step + 5 > steps,
                "step {step} of {steps}: work that never ends went unnoticed"
            );
        }
    }
}

/// Checks the outcome of a fault. A fault in the last 5 steps may go unnoticed, because it comes after the
/// last result was read.
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
    meet_the_fault_of(staged, &[2, 1], 0);
}

#[test]
fn every_one_of_four_ranks_meets_the_fault_of_one() {
    meet_the_fault_of(staged, &[1, 2, 1, 1], 0);
}

#[test]
fn every_rank_meets_the_fault_of_the_one_that_names_the_meeting_of_devices() {
    meet_the_fault_of(joined, &[2, 2], 0);
}

#[test]
fn every_rank_meets_the_fault_of_another_whose_devices_sum_with_theirs() {
    meet_the_fault_of(joined, &[1, 1, 1], 2);
}

/// Returns the outcomes of jobs in which rank `who` has one of `faults`. Each job spends its time waiting.
fn jobs_with(
    config: &Config,
    counts: &[usize],
    who: usize,
    faults: impl Iterator<Item = DeviceFault>,
) -> Vec<(DeviceFault, Vec<Result<Vec<f32>>>)> {
    let faults: Vec<DeviceFault> = faults.collect();
    println!("{} faults of rank {who} of {} ranks", faults.len(), counts.len());
    let outcomes = faults.chunks(16).flat_map(|faults| {
        thread::scope(|scope| {
            let running: Vec<_> = faults
                .iter()
                .map(|fault| scope.spawn(move || (*fault, job_of(config, counts, 9, Some((who, *fault))).0)))
                .collect();
            running.into_iter().map(|job| job.join().unwrap()).collect::<Vec<_>>()
        })
    });
    outcomes.collect()
}

fn is_told(error: &str, who: usize) -> bool {
    // Code that uses the devices without the store learns only that their sum has ended, not the reason.
    ["injected at step", "aborted", "another rank is lost"].iter().any(|words| error.contains(words))
        || error.contains(&format!("rank {who}"))
}

fn meet_the_fault_of(config: fn(Duration) -> Config, counts: &[usize], who: usize) {
    let patient = config(Duration::from_secs(30));
    let (outcomes, _) = job_of(&patient, counts, 9, None);
    outcomes.into_iter().for_each(|outcome| assert_eq!(outcome.unwrap(), [expected(counts); 9]));
    let nowhere = DeviceFault { step: u64::MAX, manner: Manner::Returned };
    let steps = job_of(&patient, counts, 9, Some((who, nowhere))).1.steps();
    let faults = [Manner::Returned, Manner::Later]
        .into_iter()
        .flat_map(|manner| (0..steps - 10).map(move |step| DeviceFault { step, manner }));
    for (fault, outcomes) in jobs_with(&config(Duration::from_secs(20)), counts, who, faults) {
        let texts: Vec<String> = outcomes
            .iter()
            .map(|outcome| outcome.as_ref().expect_err("a fault reaches every rank").to_string())
            .collect();
        assert!(texts.iter().all(|text| is_told(text, who)), "after {fault:?}: {texts:#?}");
        // A rank that only learns of another rank's loss does not know the reason. At least one rank knows
        // it.
        let knows = |text: &String| ["injected at step", "aborted"].iter().any(|words| text.contains(words));
        assert!(texts.iter().any(knows), "after {fault:?}: {texts:#?}");
    }
}

#[test]
fn work_that_never_ends_where_devices_sum_over_ranks_is_an_error_on_every_rank_in_time() {
    let (counts, limit) = ([1, 1], Duration::from_millis(500));
    let nowhere = DeviceFault { step: u64::MAX, manner: Manner::Never };
    let steps = job_of(&joined(Duration::from_secs(30)), &counts, 9, Some((1, nowhere))).1.steps();
    let start = Instant::now();
    let faults = (0..steps - 10).map(|step| DeviceFault { step, manner: Manner::Never });
    for (fault, outcomes) in jobs_with(&joined(limit), &counts, 1, faults) {
        for (rank, outcome) in outcomes.iter().enumerate() {
            assert!(outcome.is_err(), "rank {rank} after {fault:?}");
        }
    }
    assert!(start.elapsed() < Duration::from_secs(60), "{:?} for {steps} jobs", start.elapsed());
}

/// With `auto`, devices that cannot join are no error, because the ranks use another route. All other faults
/// reach every rank.
#[test]
fn devices_that_cannot_join_leave_auto_the_other_routes() {
    let counts = [1, 1];
    for who in [0, 1] {
        let nowhere = DeviceFault { step: u64::MAX, manner: Manner::Returned };
        let steps = job_of(&config(Duration::from_secs(30)), &counts, 9, Some((who, nowhere))).1.steps();
        let faults = (0..steps - 10).map(|step| DeviceFault { step, manner: Manner::Returned });
        let mut survived = 0;
        for (fault, outcomes) in jobs_with(&config(Duration::from_secs(20)), &counts, who, faults) {
            if outcomes.iter().all(Result::is_ok) {
                survived += 1;
                outcomes.into_iter().for_each(|outcome| assert_eq!(outcome.unwrap(), [expected(&counts); 9]));
                continue;
            }
            for (rank, outcome) in outcomes.iter().enumerate() {
                let text = outcome.as_ref().expect_err("a fault reaches every rank").to_string();
                assert!(is_told(&text, who), "rank {rank} after {fault:?}: {text}");
            }
        }
        // Only rank 0 creates the identifier of the join.
        assert_eq!(survived, if who == 0 { 2 } else { 1 });
    }
}

/// Returns the address of the `number`-th job's scheduler: an address that only this process uses, and a port
/// that the system does not assign by itself.
fn address(number: usize) -> SocketAddr {
    let [.., upper, lower] = std::process::id().to_be_bytes();
    (Ipv4Addr::new(127, upper, lower, 7), 20_000 + number as u16).into()
}

/// Runs a worker, a server and a scheduler as threads of this process. The worker's platform may have a
/// fault.
fn with_servers(kind: Kind, root: SocketAddr, fault: Option<DeviceFault>) -> (Result<Vec<f32>>, u64) {
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
        train(&store_over(kind, Box::new(backend), &patient), &devices, 9)
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
    let steps_of = |manner| (0..steps).map(move |step| DeviceFault { step, manner });
    let faults: Vec<DeviceFault> = steps_of(Manner::Returned).chain(steps_of(Manner::Later)).collect();
    // Each job spends its time on starting and ending.
    println!("{} faults of a worker of servers", faults.len());
    let numbered: Vec<(usize, DeviceFault)> = (first_address + 1..).zip(faults).collect();
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
                let store = store_over(Kind::DistSyncMpi, Box::new(backend), &config);
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
