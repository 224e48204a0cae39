//! The scheduler's socket and clock.

use std::time::{Duration, Instant};

use ringpull_base::config::{self, Config, Dmlc};
use ringpull_base::topology::host_name;
use ringpull_base::{Result, notice, secret};
use ringpull_session::{Door, Event, Frame};

use crate::link::{FAREWELL, GRACE, node_address};
use crate::message::{ToScheduler, decode, encode};
use crate::scheduler::{JobPhase, Scheduler, Settings};
use crate::socket::{self, Bell, Bound, Listener};

/// The number of connections in addition to those of the job's nodes. They are for surplus nodes, which get
/// an error.
const STRANGERS: usize = 64;

pub(super) fn run(config: &Config, dmlc: &Dmlc) -> Result<()> {
    let bell = Bell::default();
    let bound = Bound::to(dmlc.root, node_address(dmlc).ok())?;
    let door = Door {
        name: "the scheduler".to_owned(),
        secret: config::secret()?,
        admits: Box::new(|_| true),
        most: dmlc.num_workers + dmlc.num_servers + STRANGERS,
        settings: if config.elastic { socket::ELASTIC_SCHEDULER } else { socket::SCHEDULER },
    };
    if door.secret.is_none() {
        tracing::warn!(
            "anybody who reaches port {} of this host may join the job and change its values; \
             set RINGPULL_SECRET or RINGPULL_SECRET_FILE to one secret on every node, as `ringpull launch` does",
            bound.port()
        );
    }
    let listener = bound.open(door, &bell)?;
    let mut scheduler = Scheduler::new(Settings {
        num_workers: dmlc.num_workers,
        num_servers: dmlc.num_servers,
        warn: config.warn,
        timeout: config.timeout,
        silence: config.silence(),
        bigarray_bound: config.bigarray_bound,
        token: u64::from_le_bytes(secret::random()?),
        is_elastic: config.elastic,
        host: host_name(),
    });
    let start = Instant::now();
    let tick = (config.heartbeat_interval / 2).min(Duration::from_millis(250));
    let mut ended: Option<Instant> = None;
    let mut broken: Option<Instant> = None;
    loop {
        bell.wait(tick);
        while let Some(event) = listener.event() {
            match event {
                Event::Gone(_) => broken = Some(Instant::now()),
                Event::Refused(error) => return Err(error),
                Event::Connected(_) => {}
            }
        }
        while let Some((session, frame)) = listener.receive() {
            take(&mut scheduler, &listener, session.identity(), &frame.header, start.elapsed());
        }
        // The node's last messages have been read by now.
        if broken.is_some_and(|since| since.elapsed() > GRACE) {
            broken = None;
            scheduler.probe();
        }
        scheduler.tick(start.elapsed());
        if let Some(warning) = scheduler.warning(start.elapsed()) {
            notice(&warning);
        }
        send_all(&listener, &mut scheduler);
        if *scheduler.phase() != JobPhase::Running {
            let since = *ended.get_or_insert_with(Instant::now);
            if scheduler.all_left() || since.elapsed() > FAREWELL {
                break;
            }
        }
    }
    let phase = scheduler.phase().clone();
    socket::close(listener.endpoint, FAREWELL, matches!(phase, JobPhase::Failed(_)));
    match phase {
        JobPhase::Failed(error) => Err(error),
        _ => Ok(()),
    }
}

fn take(scheduler: &mut Scheduler, listener: &Listener, from: &[u8], header: &[u8], now: Duration) {
    let dropped = match decode::<ToScheduler>(header) {
        Some(message) => scheduler.handle(from, message, now).err(),
        None => Some("it cannot be decoded".to_owned()),
    };
    let Some(why) = dropped else { return };
    if scheduler.knows(from) {
        tracing::warn!("dropped a message to the scheduler: {why}");
        return;
    }
    listener.endpoint.report_stranger(from, &why);
    if !scheduler.answers(from) {
        listener.endpoint.dismiss(from);
    }
}

fn send_all(listener: &Listener, scheduler: &mut Scheduler) {
    for (identity, message) in scheduler.take_outputs() {
        if !listener.send(&identity, Frame::from(encode(&message))) {
            scheduler.unreachable(&identity);
        }
    }
}
