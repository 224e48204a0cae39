//! The program of a rank of a job. In step `s` each rank adds `2^own + 1024 s` to every element, where `own`
//! is its number at the start. So a sum shows the ranks whose contributions it has.

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use ringpull::{DType, Error, Optimizer, Result, Tensor};
use ringpull_base::config;
use ringpull_base::topology::host_name;
use rustix::process::{Pid, Signal, getpid, getppid, kill_process};
use rustix::time::{ClockId, clock_gettime};

use crate::uses;

/// The variable with the work of the ranks and the times of their losses:
/// `steps=40;kill=2@7+300,0@12;cut=1@20` kills rank 2 in step 7, 300 us after its beginning, and rank 0 in
/// step 12 before it, and cuts the link of rank 1's emulated host. With `stops=0` a rank that will be killed
/// first stops rank 0 for [`STOPPED`].
pub(crate) const CHILD: &str = "RINGPULL_ELASTIC_CHILD";
pub(crate) const STEP: f64 = 1024.0;
const STOPPED: &str = "0.3";

/// The words of [`CHILD`].
pub(crate) struct Plan(BTreeMap<String, String>);

impl Plan {
    fn from_env() -> Self {
        let text = config::text(CHILD).expect("the tests start it");
        let words = text.split(';').filter_map(|word| word.split_once('='));
        Plan(words.map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
    }

    fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    pub(crate) fn number(&self, name: &str, default: usize) -> usize {
        self.0.get(name).map_or(default, |word| word.parse().unwrap())
    }

    /// Returns true if the fault `name` hits rank `own` in this step.
    fn is(&self, name: &str, own: usize, step: usize) -> bool {
        self.0.get(name).is_some_and(|when| *when == format!("{own}@{step}"))
    }

    /// Returns the time of the fault `name` for rank `own`: the step, and the microseconds after its
    /// beginning.
    pub(crate) fn when(&self, name: &str, own: usize) -> Option<(String, Option<u64>)> {
        let all = self.0.get(name)?.split(',').filter_map(|word| word.split_once('@'));
        let (_, when) = all.into_iter().find(|(who, _)| *who == own.to_string())?;
        let (step, after) = when.split_once('+').map_or((when, None), |(step, after)| (step, Some(after)));
        Some((step.to_owned(), after.map(|after| after.parse().unwrap())))
    }

    /// Loses rank `own`, if it is to be lost in this step. A rank that is to be lost a moment later makes at
    /// most one more step.
    pub(crate) fn lose(&self, own: usize, step: &str) {
        let mut pending = PENDING.lock().unwrap();
        match pending.take() {
            Some((thread, true)) => thread.join().unwrap(),
            Some((thread, false)) => *pending = Some((thread, true)),
            None => {}
        }
        for (name, act) in [("kill", die as fn(&Plan)), ("cut", cut)] {
            let Some((_, after)) = self.when(name, own).filter(|(when, _)| when == step) else { continue };
            let Some(after) = after else { return act(self) };
            let plan = Plan(self.0.clone());
            let thread = std::thread::spawn(move || {
                std::thread::sleep(Duration::from_micros(after));
                act(&plan);
            });
            *pending = Some((thread, false));
        }
    }
}

/// The loss that comes a moment later, and true if a step has begun since.
static PENDING: Mutex<Option<(JoinHandle<()>, bool)>> = Mutex::new(None);

fn now_s() -> f64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as f64 + now.tv_nsec as f64 * 1e-9
}

fn die(plan: &Plan) {
    if let Some(rank) = plan.0.get("stops") {
        let stopped = Pid::from_raw(process_of(rank)).unwrap();
        kill_process(stopped, Signal::STOP).unwrap();
        let goes_on = format!("sleep {STOPPED}; kill -CONT {stopped}");
        drop(Command::new("sh").args(["-c", &goes_on]).spawn().unwrap());
    }
    println!("lost {:.6}", now_s());
    kill_process(getpid(), Signal::KILL).unwrap();
}

/// The process of another rank of this job, which has the same parent.
fn process_of(rank: &str) -> i32 {
    let wanted = format!("OMPI_COMM_WORLD_RANK={rank}");
    let is_it = |pid: &i32| {
        let (read, folder) = (std::fs::read_to_string, format!("/proc/{pid}"));
        let parent = read(format!("{folder}/stat")).ok().and_then(|stat| {
            stat.rsplit_once(") ").and_then(|(_, rest)| rest.split_whitespace().nth(1)?.parse::<i32>().ok())
        });
        let env = std::fs::read(format!("{folder}/environ")).unwrap_or_default();
        parent == getppid().map(Pid::as_raw_pid)
            && env.split(|byte| *byte == 0).any(|variable| variable == wanted.as_bytes())
    };
    let all = std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    all.into_iter().find(is_it).expect("the rank lives")
}

/// Cuts the link of this emulated host at the bridge, which is in the network of the test.
fn cut(plan: &Plan) {
    println!("lost {:.6}", now_s());
    let network = format!("--net=/proc/{}/ns/net", plan.0["links"]);
    let link = format!("rp-{}", host_name());
    let done = Command::new("nsenter").args([&network, "ip", "link", "set", &link, "down"]).status();
    assert!(done.is_ok_and(|status| status.success()), "{link} is not cut");
}

/// Returns the ranks whose contributions a sum of that step has.
fn mask(sum: f64, step: usize) -> Option<u32> {
    (1..=16u32).find_map(|count| {
        let rest = sum - f64::from(count) * STEP * step as f64;
        let mask = rest as u32;
        ((0.0..STEP).contains(&rest) && mask.count_ones() == count).then_some(mask)
    })
}

/// Returns the value of all elements of a tensor, which must be equal.
pub(crate) fn element(tensor: &Tensor) -> Result<f64> {
    let all = tensor.to_vec::<f32>()?;
    let odd = all.iter().find(|element| **element != all[0]);
    odd.map_or(Ok(f64::from(all[0])), |odd| Err(Error::bug(format!("elements {} and {odd}", all[0]))))
}

pub(crate) fn give(tensor: &Tensor, value: f64) {
    tensor.write().as_mut_slice::<f32>().fill(value as f32);
}

/// Prints the ranks whose contributions the sum of a step has.
pub(crate) fn say_sum(key: &str, step: usize, sum: f64) -> Result<()> {
    let mask = mask(sum, step).ok_or_else(|| Error::bug(format!("step {step}, {key}: {sum}")))?;
    println!("sum {step} {key} {mask} {:.6}", now_s());
    Ok(())
}

#[test]
#[ignore = "one process of a job, which the other tests start"]
fn one_process_of_a_job() {
    let plan = Plan::from_env();
    let done = plan.0.get("kind").map_or_else(|| steps(&plan), |kind| uses::of_kind(kind, &plan));
    if let Err(fault) = done {
        println!("failed {fault}");
        std::process::exit(1);
    }
}

fn steps(plan: &Plan) -> Result<()> {
    let (steps, len) = (plan.number("steps", 30), plan.number("len", 300_000));
    let store = ringpull::create("dist_sync_mpi")?;
    // The store may have another rank, and fewer ranks, if some were lost while it was made.
    let own = config::launcher_rank().expect("a launcher has started it");
    println!("began {} {}", store.rank(), store.num_workers());
    let told = Arc::new(AtomicU64::new(0));
    let tells = Arc::clone(&told);
    store.on_change(Box::new(move |change| {
        println!("without {} {} {} {:?}", change.generation, change.rank, change.num_workers, change.lost);
        tells.store(change.generation, Ordering::Release);
        Ok(())
    }));
    plan.lose(own, "init");
    let (long, short) = (Tensor::zeros(DType::F32, &[len]), Tensor::zeros(DType::F32, &[10]));
    store.init("long", &long)?;
    store.init("short", &short)?;
    let others = ringpull::create_elastic("dist_sync_mpi")?;
    others.set_optimizer(&"sgd,lr=1,momentum=0.5".parse::<Optimizer>()?)?;
    others.init("weights", &short)?;
    let (gradient, weights) = (Tensor::zeros(DType::F32, &[10]), Tensor::zeros(DType::F32, &[10]));
    let pause = Duration::from_micros(plan.number("pause", 0) as u64);
    for step in 0..steps {
        plan.lose(own, &step.to_string());
        let value = f64::from(1u32 << own) + STEP * step as f64;
        give(&long, value);
        give(&short, value);
        give(&gradient, value / 1024.0);
        if plan.is("error", own, step) {
            store.push("no such key", std::slice::from_ref(&long), 0)?;
        }
        assert!(!plan.is("panic", own, step), "a program may panic");
        store.push_pull("long", std::slice::from_ref(&long), std::slice::from_ref(&long), 0)?;
        store.push_pull("short", std::slice::from_ref(&short), std::slice::from_ref(&short), 0)?;
        others.push("weights", std::slice::from_ref(&gradient), 0)?;
        for (key, tensor) in [("long", &long), ("short", &short)] {
            say_sum(key, step, element(tensor)?)?;
        }
        std::thread::sleep(pause);
    }
    if plan.has("leave") {
        // All but rank 0 leave at once, and a rank may die while their last sum is under way.
        give(&long, f64::from(1u32 << own));
        store.push("long", std::slice::from_ref(&long), 0)?;
        plan.lose(own, "leave");
        if own == 0 {
            store.pull("long", std::slice::from_ref(&long), 0)?;
            println!("last {}", element(&long)?);
        } else if plan.when("kill", own).is_some() {
            std::thread::sleep(Duration::from_secs(5));
        }
        return Ok(());
    }
    others.pull("weights", std::slice::from_ref(&weights), 0)?;
    store.barrier()?;
    // The callback of a loss during the barrier runs at the next call.
    while store.generation() > told.load(Ordering::Acquire) {
        store.pull("short", std::slice::from_ref(&short), 0)?;
    }
    println!("ended {} {} {}", store.num_workers(), store.generation(), element(&weights)?);
    Ok(())
}
