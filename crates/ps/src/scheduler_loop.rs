//! The scheduler's socket and clock.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::{Duration, Instant};

use zmq::{Context, Message, POLLIN, Socket};

use ringpull_base::config::{Config, Dmlc};
use ringpull_base::{Result, notice};

use crate::link::GRACE;
use crate::message::{ToScheduler, decode, encode};
use crate::scheduler::{Scheduler, Settings, Standing};
use crate::socket::{self, Event, Monitor};

/// How long the last words to nodes may take.
const FAREWELL: Duration = Duration::from_secs(2);

pub(super) fn run(config: &Config, dmlc: &Dmlc) -> Result<()> {
    let context = Context::new();
    let (router, _) = socket::listen(&context, dmlc.root, 1000)?;
    // So that a message to a node whose connection is gone comes back at once.
    router.set_router_mandatory(true).map_err(socket::failed("zmq_setsockopt", 0))?;
    let monitor = Monitor::new(&context, &router, "scheduler")?;
    let mut scheduler = Scheduler::new(Settings {
        num_workers: dmlc.num_workers,
        num_servers: dmlc.num_servers,
        warn: config.warn,
        timeout: config.timeout,
        silence: config.silence(),
        bigarray_bound: config.bigarray_bound,
        // Each hasher of the standard library has keys of its own from the system's random source.
        token: RandomState::new().build_hasher().finish(),
    });
    let start = Instant::now();
    let tick = (config.heartbeat_interval / 2).min(Duration::from_millis(250));
    let mut ended: Option<Instant> = None;
    let mut broken: Option<Instant> = None;
    loop {
        let mut items = [router.as_poll_item(POLLIN), monitor.socket().as_poll_item(POLLIN)];
        socket::poll(&mut items, tick)?;
        while let Some(event) = monitor.next() {
            match event {
                Event::Stranger => {
                    tracing::warn!("dropped a connection to the scheduler that does not speak its protocol");
                }
                Event::Disconnected => broken = Some(Instant::now()),
            }
        }
        while let Some(frames) = socket::receive(&router)? {
            take(&mut scheduler, &frames, start.elapsed());
        }
        // What the node said last has been read by now.
        if broken.is_some_and(|since| since.elapsed() > GRACE) {
            broken = None;
            scheduler.probe();
        }
        scheduler.tick(start.elapsed());
        if let Some(warning) = scheduler.warning(start.elapsed()) {
            notice(&warning);
        }
        send_all(&router, &mut scheduler)?;
        if *scheduler.standing() != Standing::Running {
            let since = *ended.get_or_insert_with(Instant::now);
            if scheduler.all_left() || since.elapsed() > FAREWELL {
                break;
            }
        }
    }
    let standing = scheduler.standing().clone();
    socket::close(router, FAREWELL);
    match standing {
        Standing::Failed(error) => Err(error),
        _ => Ok(()),
    }
}

fn take(scheduler: &mut Scheduler, frames: &[Message], now: Duration) {
    let dropped = match frames {
        [identity, header] => match decode::<ToScheduler>(header) {
            Some(message) => scheduler.handle(identity, message, now).err(),
            None => Some("it cannot be decoded".to_owned()),
        },
        _ => Some(format!("it has {} frames", frames.len())),
    };
    if let Some(why) = dropped {
        tracing::warn!("dropped a message to the scheduler: {why}");
    }
}

fn send_all(router: &Socket, scheduler: &mut Scheduler) -> Result<()> {
    for (identity, message) in scheduler.take_outputs() {
        let frames = vec![Message::from(&identity[..]), Message::from(encode(&message))];
        if !socket::send(router, frames)? {
            scheduler.unreachable(&identity);
        }
    }
    Ok(())
}
