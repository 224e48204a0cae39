//! Ranks as threads, between which links carry so many bytes in a time. For tests.
#![allow(unsafe_code)]

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ringpull_base::Result;

use super::inproc::Inproc;
use super::{SendMode, Stamp, Transport};

/// Bytes per microsecond of each rank's link, and until when its two directions are used.
pub(crate) struct Cable {
    pub(crate) rates: Vec<f64>,
    sends: Vec<Instant>,
    receives: Vec<Instant>,
}

impl Cable {
    pub(crate) fn of(rates: &[f64]) -> Arc<Mutex<Self>> {
        let free = vec![Instant::now(); rates.len()];
        Arc::new(Mutex::new(Cable { rates: rates.to_vec(), sends: free.clone(), receives: free }))
    }
}

/// A rank's end, whose messages arrive when the links of both ranks have carried them.
pub(crate) struct OverLinks {
    inner: Inproc,
    cable: Arc<Mutex<Cable>>,
    /// Of receives that are posted: the sender, the length and the token.
    posted: Vec<(usize, usize, u32)>,
    arriving: Vec<(Instant, u32)>,
}

impl OverLinks {
    pub(crate) fn new(inner: Inproc, cable: Arc<Mutex<Cable>>) -> Self {
        OverLinks { inner, cable, posted: Vec::new(), arriving: Vec::new() }
    }
}

impl Transport for OverLinks {
    fn rank(&self) -> usize {
        self.inner.rank()
    }

    fn size(&self) -> usize {
        self.inner.size()
    }

    unsafe fn send(&mut self, to: usize, stamp: Stamp, data: *const [u8], mode: SendMode, token: u32) -> Result<()> {
        // SAFETY: as the caller promises.
        unsafe { self.inner.send(to, stamp, data, mode, token) }
    }

    unsafe fn recv(&mut self, from: usize, stamp: Stamp, into: *mut [u8], token: u32) -> Result<()> {
        self.posted.push((from, into.len(), token));
        // SAFETY: as the caller promises.
        unsafe { self.inner.recv(from, stamp, into, token) }
    }

    fn poll(&mut self, done: &mut Vec<u32>) -> Result<()> {
        let (mut all, now, rank) = (Vec::new(), Instant::now(), self.rank());
        self.inner.poll(&mut all)?;
        for token in all {
            let Some(at) = self.posted.iter().position(|(.., posted)| *posted == token) else {
                done.push(token);
                continue;
            };
            let (from, len, _) = self.posted.swap_remove(at);
            let mut cable = self.cable.lock().unwrap();
            let takes = |rate: f64| Duration::from_secs_f64(len as f64 / rate / 1e6);
            let out = cable.sends[from].max(now) + takes(cable.rates[from]);
            let into = cable.receives[rank].max(now) + takes(cable.rates[rank]);
            (cable.sends[from], cable.receives[rank]) = (out, into);
            self.arriving.push((out.max(into), token));
        }
        let (come, left): (Vec<(Instant, u32)>, _) = self.arriving.drain(..).partition(|(when, _)| *when <= now);
        self.arriving = left;
        done.extend(come.into_iter().map(|(_, token)| token));
        Ok(())
    }

    fn narrow(&mut self, workers: usize) -> Result<()> {
        self.inner.narrow(workers)
    }

    fn name(&self) -> String {
        self.inner.name()
    }
}
