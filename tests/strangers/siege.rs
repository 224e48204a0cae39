//! A job under attack, and the checks after each attack.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ringpull_base::config;

use crate::attacks::Attack;
use crate::greetings::Speaks;
use crate::job::{Job, JobProcess};
use crate::overheard::Overheard;
use crate::port::{OpenPort, Outcome};
use crate::vitals::Vitals;

/// The time in which a worker must report.
const WINDOW: Duration = Duration::from_secs(4);
/// The memory that a process may keep after all attacks together, and the memory that it may need during one
/// attack.
const GROWTH: usize = 4 << 20;
const PEAK: usize = 8 << 20;
/// The number of additional connections or threads that a process may have during an attack: 64 for unproved
/// strangers, 64 that are being closed, and some for nodes.
const GUESTS: usize = 160;
/// The time limit for a process to return to its earlier number of descriptors and threads, and the time for
/// which it must keep that number.
const REST: Duration = Duration::from_secs(8);
const QUIET: Duration = Duration::from_secs(1);
/// The least time between two lines of a process about strangers.
const LOG_EVERY: Duration = Duration::from_secs(60);

/// A job whose ports are known.
pub(crate) struct Siege {
    job: Job,
    ports: Vec<OpenPort>,
    before: BTreeMap<String, Vitals>,
    begun: Instant,
}

impl Siege {
    /// Finds the ports, and records the greetings of nodes that connect to them.
    pub(crate) fn lay(job: Job) -> Self {
        let mut ports = job.ports();
        for port in &mut ports {
            if !port.clients.is_empty() {
                match Overheard::at(port) {
                    Ok(overheard) => port.overheard = Some(overheard),
                    Err(cause) if cause.kind() == std::io::ErrorKind::PermissionDenied => {
                        assert!(config::text("CI").is_none(), "CI lets a test share its children's sockets: {cause}");
                        println!(
                            "skipped: no real greeting is replayed, as no socket of {} can be had: {cause}",
                            port.owner
                        );
                    }
                    Err(cause) => panic!("no greeting could be recorded at {}: {cause}\n{job}", port.owner),
                }
            }
        }
        let mut siege = Siege { job, ports, before: BTreeMap::new(), begun: Instant::now() };
        siege.before = siege.at_rest();
        siege
    }

    /// Returns the resource use of every process, after the nodes whose greetings were recorded have
    /// connected again.
    fn at_rest(&self) -> BTreeMap<String, Vitals> {
        let counts = |all: &BTreeMap<String, Vitals>| -> Vec<_> {
            all.values().map(|vitals| (vitals.descriptors, vitals.threads)).collect()
        };
        let vitals = || self.vitals().unwrap_or_else(|what| panic!("{what}:\n{}", self.job));
        let misses_clients = || self.ports.iter().any(|port| port.clients != self.job.clients_of(port.at));
        let (mut last, mut since) = (vitals(), Instant::now());
        let end = Instant::now() + REST;
        while since.elapsed() < QUIET || misses_clients() {
            assert!(Instant::now() < end, "the job comes to no rest:\n{}", self.job);
            std::thread::sleep(Duration::from_millis(20));
            let now = vitals();
            if counts(&now) != counts(&last) {
                since = Instant::now();
            }
            last = now;
        }
        last
    }

    /// Returns the present resource use of every process. Returns an error that names a process if it has
    /// ended.
    fn vitals(&self) -> Outcome<BTreeMap<String, Vitals>> {
        let of = |member: &JobProcess| {
            let vitals = Vitals::of(member.pid).ok_or_else(|| format!("{} has ended", member.name))?;
            Ok((member.name.clone(), vitals))
        };
        self.job.members().iter().map(of).collect()
    }

    /// Attacks all ports at once, and checks the job. Panics with a list of everything that is wrong.
    pub(crate) fn withstand(&self, name: &str, attack: Attack, step: Duration) {
        let begun = Instant::now();
        let before = self.windows();
        let is_over = AtomicBool::new(false);
        let (mut wrong, peaks) = std::thread::scope(|scope| {
            let watch = scope.spawn(|| self.peaks_until(&is_over));
            let strikes: Vec<_> = self.ports.iter().map(|port| (port, scope.spawn(move || attack(port)))).collect();
            let mut wrong = Vec::new();
            for (port, strike) in strikes {
                if let Err(what) = strike.join().unwrap() {
                    wrong.push(format!("at the port of {}: {what}", port.owner));
                }
            }
            is_over.store(true, Ordering::Release);
            (wrong, watch.join().unwrap())
        });
        let took = begun.elapsed();
        let longest = self.look_at_steps(&before, step, &mut wrong);
        self.look_at_processes(&peaks, &mut wrong);
        let most = |what: fn(&Vitals) -> usize| -> usize {
            let grown = peaks.iter().map(|(name, peak)| what(peak).saturating_sub(what(&self.before[name])));
            grown.max().unwrap_or_default()
        };
        println!(
            "{}, {name}: {:.1} s, the longest step {:.1} ms; a process had at most {} descriptors \
             and {} threads more, and {} KiB",
            self.job.name(),
            took.as_secs_f64(),
            longest.as_secs_f64() * 1e3,
            most(|vitals| vitals.descriptors),
            most(|vitals| vitals.threads),
            most(|vitals| vitals.resident_bytes) >> 10
        );
        assert!(wrong.is_empty(), "{name}:\n{}\nall that was written:\n{}", wrong.join("\n"), self.job);
    }

    fn windows(&self) -> BTreeMap<&str, usize> {
        let stepping = self.job.members().iter().filter(|member| member.steps);
        stepping.map(|member| (member.name.as_str(), self.job.windows(&member.name).len())).collect()
    }

    fn peaks_until(&self, is_over: &AtomicBool) -> BTreeMap<String, Vitals> {
        let mut peaks = BTreeMap::<String, Vitals>::new();
        while !is_over.load(Ordering::Acquire) {
            for member in self.job.members() {
                let now = Vitals::of(member.pid).unwrap_or_default();
                let peak = peaks.entry(member.name.clone()).or_default();
                *peak = peak.most(now);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        peaks
    }

    /// Checks what the processes have kept, what they used during the attack, and what they have written.
    /// Adds faults to `wrong`.
    fn look_at_processes(&self, peaks: &BTreeMap<String, Vitals>, wrong: &mut Vec<String>) {
        let now = match self.vitals_at_rest(wrong) {
            Ok(now) => now,
            Err(what) => return wrong.push(what),
        };
        for (name, before) in &self.before {
            let mib = |bytes: usize| bytes >> 20;
            let (had, has) = (before.resident_bytes, now[name].resident_bytes);
            if has > had + GROWTH {
                wrong.push(format!("{name} grew from {} to {} MiB", mib(had), mib(has)));
            }
            let peak = peaks.get(name).copied().unwrap_or_default();
            if peak.resident_bytes > had + PEAK {
                wrong.push(format!("{name} had {} MiB, before {}", mib(peak.resident_bytes), mib(had)));
            }
            for (what, peak, before) in
                [("descriptors", peak.descriptors, before.descriptors), ("threads", peak.threads, before.threads)]
            {
                if peak > before + GUESTS {
                    wrong.push(format!("{name} had {peak} {what}, before {before}"));
                }
            }
        }
        wrong.extend(self.told_too_often());
    }

    /// Waits until every worker has made steps after the attack. Returns the longest step since the attack
    /// began.
    fn look_at_steps(&self, before: &BTreeMap<&str, usize>, limit: Duration, wrong: &mut Vec<String>) -> Duration {
        let is_star = self.ports.iter().any(|port| port.speaks == Speaks::ControlStar);
        let after = self.windows();
        let mut all = Duration::ZERO;
        for (name, before) in before {
            let end = Instant::now() + WINDOW;
            // Wait for a whole window that began after the attack.
            let wanted = after[name] + 2;
            while self.job.windows(name).len() < wanted && Instant::now() < end {
                std::thread::sleep(Duration::from_millis(5));
            }
            let windows = self.job.windows(name);
            if windows.len() < wanted {
                wrong.push(format!("{name} makes no steps any more"));
                continue;
            }
            let longest = windows[*before..].iter().map(|window| window.longest).max().unwrap_or_default();
            if longest > limit {
                wrong.push(format!("a step of {name} took {longest:?}, of at most {limit:?}"));
            }
            let messages = [before - 1, windows.len() - 1].map(|at| windows[at].control_messages);
            if is_star && messages[0] == messages[1] {
                wrong.push(format!("{name} needed no control message, so nothing was proved of them"));
            }
            all = all.max(longest);
        }
        all
    }

    /// Returns the resource use of the processes, after each has returned to its earlier number of
    /// descriptors and threads.
    fn vitals_at_rest(&self, wrong: &mut Vec<String>) -> Outcome<BTreeMap<String, Vitals>> {
        let end = Instant::now() + REST;
        loop {
            let now = self.vitals()?;
            let differs = |(name, now): (&String, &Vitals)| {
                let before = self.before[name];
                let differ = (now.descriptors, now.threads) != (before.descriptors, before.threads);
                differ.then(|| format!("{name} has {now:?} and had {before:?}"))
            };
            let differing: Vec<String> = now.iter().filter_map(differs).collect();
            if differing.is_empty() || Instant::now() > end {
                wrong.extend(differing);
                return Ok(now);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Returns the processes that have written more than one line a minute about strangers. Lines about
    /// broken connections of the job do not count, because the test breaks connections too. All other lines
    /// are about strangers.
    fn told_too_often(&self) -> Vec<String> {
        let most = 1 + (self.begun.elapsed().as_secs() / LOG_EVERY.as_secs()) as usize;
        let members = self.job.members().iter();
        let told = members.map(|member| (&member.name, self.lines_of(&member.name)));
        told.filter(|(_, lines)| lines.len() > most)
            .map(|(name, lines)| format!("{name} wrote more than {most} line(s):\n{}", lines.join("\n")))
            .collect()
    }

    fn lines_of(&self, name: &str) -> Vec<String> {
        self.job.written(name).err.lines().filter(|line| !line.contains(" INFO ")).map(str::to_owned).collect()
    }

    /// Lets the job end, after each process that refused strangers has logged this. Checks that the job ends
    /// with success.
    pub(crate) fn end(self) {
        for port in self.ports.iter().filter(|port| port.speaks != Speaks::Nothing) {
            assert!(!self.lines_of(&port.owner).is_empty(), "{} wrote nothing of strangers:\n{}", port.owner, self.job);
        }
        for (name, before) in &self.before {
            let pid = self.job.members().iter().find(|member| member.name == *name).map(|member| member.pid);
            let now = pid.and_then(Vitals::of).unwrap_or_default();
            let kib = |bytes: usize| bytes >> 10;
            println!("{name}: {} KiB before, {} KiB after", kib(before.resident_bytes), kib(now.resident_bytes));
        }
        self.job.ends_well();
    }
}

/// Runs `attacks` on `port` while `meanwhile` runs.
pub(crate) fn among_strangers<T>(port: &OpenPort, attacks: &[Attack], meanwhile: impl FnOnce() -> T) -> T {
    std::thread::scope(|scope| {
        let strikes: Vec<_> = attacks.iter().map(|attack| scope.spawn(move || attack(port))).collect();
        let done = meanwhile();
        for strike in strikes {
            strike.join().unwrap().unwrap_or_else(|what| panic!("at the port of {}: {what}", port.owner));
        }
        done
    })
}
