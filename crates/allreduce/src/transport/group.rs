//! Some ranks of a transport as a transport of their own: a plan for `members.len()` ranks runs among them,
//! in any order.
#![allow(unsafe_code)]

use ringpull_base::Result;

use crate::transport::{SendMode, Stamp, Transport};

/// The members, seen from one of them.
pub struct Group<'a> {
    whole: &'a mut dyn Transport,
    members: &'a [usize],
    place: usize,
    on_progress: &'a dyn Fn(),
}

impl<'a> Group<'a> {
    /// The group in which rank `r` is `members[r]` of `whole`; this rank is among them. `on_progress` is
    /// called when messages have moved.
    ///
    /// # Panics
    /// If this rank is no member.
    pub fn of(whole: &'a mut dyn Transport, members: &'a [usize], on_progress: &'a dyn Fn()) -> Self {
        let place =
            members.iter().position(|member| *member == whole.rank()).expect("a rank groups itself with others");
        Group { whole, members, place, on_progress }
    }
}

impl Transport for Group<'_> {
    fn rank(&self) -> usize {
        self.place
    }

    fn size(&self) -> usize {
        self.members.len()
    }

    unsafe fn send(&mut self, to: usize, stamp: Stamp, data: *const [u8], mode: SendMode, token: u32) -> Result<()> {
        // SAFETY: as the caller promises.
        unsafe { self.whole.send(self.members[to], stamp, data, mode, token) }
    }

    unsafe fn recv(&mut self, from: usize, stamp: Stamp, into: *mut [u8], token: u32) -> Result<()> {
        // SAFETY: as the caller promises.
        unsafe { self.whole.recv(self.members[from], stamp, into, token) }
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

    fn name(&self) -> String {
        self.whole.name()
    }
}
