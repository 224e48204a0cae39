//! The steps of one key, which run as operations of all ranks or at once, and the step of its first value.

use std::sync::Arc;
use std::time::Duration;

use ringpull_allreduce::communicator::Communicator;
use ringpull_allreduce::interpreter::Memory;
use ringpull_allreduce::progress::{Job, Launch};
use ringpull_base::{Buffer, Error, Result};
use ringpull_device::Devices;

use super::slot::DeviceSlot;

/// A step of one key.
pub(super) trait Step: Send {
    /// Queues the step on the devices. Blocks for the part that needs other ranks.
    fn queue(&mut self, ranks: Option<(&mut Communicator, &Launch)>) -> Result<()>;
    /// Returns true if the step uses the ranks' communicator even if there is only one rank.
    fn is_coded(&self) -> bool {
        false
    }
    /// Does the rest of the step when it is queued.
    fn finish(self) -> Result<()>;
    /// Called instead of `finish` when the step will never be done.
    fn fail(self, fault: &Error);
}

/// A step as a job of the engine.
pub(super) struct OverRanks<S> {
    pub(super) step: S,
}

impl<S: Step> Job for OverRanks<S> {
    fn run(&mut self, comm: &mut Communicator, launch: &Launch) -> Result<()> {
        let ranks = (comm.size() > 1 || self.step.is_coded()).then_some((comm, launch));
        self.step.queue(ranks)
    }

    fn finish(self: Box<Self>) -> Result<()> {
        self.step.finish()
    }

    fn fail(self: Box<Self>, fault: &Error) {
        self.step.fail(fault);
    }
}

/// The step that gives every rank rank 0's value, with a part on each device.
pub(super) struct DeviceInit {
    pub(super) slot: Arc<DeviceSlot>,
    pub(super) devices: Arc<Devices>,
    pub(super) value: Arc<Buffer>,
    pub(super) limit: Duration,
}

impl Step for DeviceInit {
    fn queue(&mut self, ranks: Option<(&mut Communicator, &Launch)>) -> Result<()> {
        if let Some((comm, launch)) = ranks {
            let mut value = Buffer::zeroed(self.slot.entry.len_bytes());
            if comm.rank() == 0 {
                value.bytes_mut().copy_from_slice(self.value.bytes());
            }
            self.value = Arc::new(comm.broadcast(0, Memory::Own(value), launch.number)?.into_buffer());
        }
        self.slot.put(&self.devices, self.value.bytes(), self.limit)
    }

    fn finish(self) -> Result<()> {
        self.slot.settle();
        Ok(())
    }

    fn fail(self, fault: &Error) {
        self.slot.fail(fault);
    }
}
