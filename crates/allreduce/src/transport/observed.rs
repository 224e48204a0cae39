//! A transport that notifies its user when messages have moved.
#![allow(unsafe_code)]

use ringpull_base::Result;

use crate::transport::{SendMode, Stamp, Transport};

/// Calls `on_progress` when messages have moved.
pub struct Observed<'a> {
    whole: &'a mut dyn Transport,
    on_progress: &'a dyn Fn(),
}

impl<'a> Observed<'a> {
    /// The transport `whole`.
    pub fn new(whole: &'a mut dyn Transport, on_progress: &'a dyn Fn()) -> Self {
        Observed { whole, on_progress }
    }
}

impl Transport for Observed<'_> {
    fn rank(&self) -> usize {
        self.whole.rank()
    }

    fn size(&self) -> usize {
        self.whole.size()
    }

    unsafe fn send(&mut self, to: usize, stamp: Stamp, data: *const [u8], mode: SendMode, token: u32) -> Result<()> {
        // SAFETY: as the caller promises.
        unsafe { self.whole.send(to, stamp, data, mode, token) }
    }

    unsafe fn recv(&mut self, from: usize, stamp: Stamp, into: *mut [u8], token: u32) -> Result<()> {
        // SAFETY: as the caller promises.
        unsafe { self.whole.recv(from, stamp, into, token) }
    }

    fn poll(&mut self, done: &mut Vec<u32>) -> Result<()> {
        let before = done.len();
        self.whole.poll(done)?;
        if done.len() > before {
            (self.on_progress)();
        }
        Ok(())
    }

    fn relax(&mut self) {
        self.whole.relax();
    }

    fn wait(&mut self, longest: std::time::Duration) {
        self.whole.wait(longest);
    }

    fn narrow(&mut self, workers: usize) -> Result<()> {
        self.whole.narrow(workers)
    }

    fn name(&self) -> String {
        self.whole.name()
    }
}
