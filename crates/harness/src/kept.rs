//! Records that a benchmark has measured before it is interrupted or fails. They are printed once: here, or
//! by the benchmark when it ends.

use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use ringpull_base::{Error, Result};

use crate::record::Record;

/// The time in which a fault is reported after SIGTERM, which a launcher sends after a fault too.
const REPORT: Duration = Duration::from_millis(400);

type Print = Box<dyn Fn(&[Record]) + Send + Sync>;

static KEPT: Mutex<Vec<Record>> = Mutex::new(Vec::new());
static PRINT: OnceLock<Print> = OnceLock::new();

/// The way in which rank 0 prints.
pub fn print_by(print: impl Fn(&[Record]) + Send + Sync + 'static) {
    // A process runs one benchmark.
    PRINT.get_or_init(|| Box::new(print));
}

/// Keeps a record on rank 0, and returns it. From the first one on Ctrl-C prints what is kept.
pub fn keep(record: Record, rank: usize) -> Result<Record> {
    if let (0, Some(print)) = (rank, PRINT.get()) {
        let is_first = {
            let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
            kept.push(record.clone());
            kept.len() == 1
        };
        if is_first {
            watch(print).map_err(|cause| Error::io("watch", "signals", &cause))?;
        }
    }
    Ok(record)
}

/// The record that is kept, once.
pub fn take() -> Vec<Record> {
    std::mem::take(&mut KEPT.lock().unwrap_or_else(PoisonError::into_inner))
}

fn watch(print: &'static Print) -> std::io::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    std::thread::Builder::new().name("interrupted".to_owned()).spawn(move || {
        let Some(signal) = signals.forever().next() else { return };
        let records = take();
        if !records.is_empty() {
            print(&records);
            eprintln!("ringpull: interrupted by signal {signal}: what was measured before is above");
        }
        if signal == SIGTERM {
            std::thread::sleep(REPORT);
        }
        signal_hook::low_level::exit(128 + signal);
    })?;
    Ok(())
}
