//! Work that is done on the host although the value is on devices: updaters and row-sparse gradients.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use ringpull_allreduce::communicator::{Communicator, Passage};
use ringpull_allreduce::progress::{Launch, Script};
use ringpull_base::{Buffer, Error, Result};
use ringpull_device::Devices;
use ringpull_kernels::optim::State;

use super::slot::{DeviceSlot, SlotMemory};
use super::{OnDevices, Step, take_loaded};
use crate::sum_rows::sum_rows;
use crate::update::{Update, Updates};
use crate::{MergedRows, SavedStates};

/// Copies the value to the host, lets `change` change it, and copies it back. Blocks.
pub(super) fn on_host(
    slot: &DeviceSlot,
    content: &mut SlotMemory,
    devices: &Devices,
    limit: Duration,
    change: impl FnOnce(&mut Arc<Buffer>) -> Result<()>,
) -> Result<()> {
    let mut value = Arc::new(devices.fetch(&slot.layout, &content.value, limit)?);
    change(&mut value)?;
    // Other lanes may still read the value into outputs.
    devices.join()?;
    devices.scatter(&slot.layout, value.bytes(), &content.value, limit)
}

/// The job of one row-sparse push.
pub(super) struct DevicePushRows {
    slot: Arc<DeviceSlot>,
    devices: Arc<Devices>,
    updates: Arc<Updates>,
    loaded: Arc<Mutex<SavedStates>>,
    gradient: MergedRows,
    update: Update,
    limit: Duration,
}

impl DevicePushRows {
    pub(super) fn new(store: &OnDevices, slot: &Arc<DeviceSlot>, gradient: MergedRows, update: Update) -> Self {
        DevicePushRows {
            slot: Arc::clone(slot),
            devices: Arc::clone(&store.devices),
            updates: Arc::clone(&store.updates),
            loaded: Arc::clone(&store.loaded),
            gradient,
            update,
            limit: store.limit,
        }
    }

    fn apply(&self) -> Result<()> {
        let (slot, entry, gradient) = (&self.slot, &self.slot.entry, &self.gradient);
        let mut content = slot.content();
        let Update::Optimize(optimizer) = &self.update else {
            return on_host(slot, &mut content, &self.devices, self.limit, |value| {
                self.updates.apply_rows(&self.update, entry, gradient, value)
            });
        };
        let loaded = take_loaded(&self.loaded, &entry.key, optimizer);
        let kept = slot.state_of(&content, optimizer, &self.devices, self.limit)?;
        let mut state: State = loaded.or(kept).unwrap_or_default();
        on_host(slot, &mut content, &self.devices, self.limit, |value| {
            let weight = ringpull_base::unshare(value).bytes_mut();
            let rows = gradient.rows.bytes();
            optimizer.apply_rows(&mut state, entry.dtype, weight, entry.row_bytes(), &gradient.ids, rows)
        })?;
        slot.set_state(&mut content, optimizer, &state, &self.devices, self.limit)
    }
}

impl Step for DevicePushRows {
    fn queue(&mut self, ranks: Option<(&mut Communicator, &Launch)>) -> Result<()> {
        if let Some((comm, launch)) = ranks {
            let (entry, own) = (self.slot.entry.clone(), self.gradient.clone());
            let passage = Passage { stamp: launch.number, priority: i32::MAX };
            let script = Script::new(comm, passage, |all| async move { sum_rows(&all, &entry, &own).await });
            self.gradient = script.run(comm)?;
        }
        // This is done here and not in `finish`, because the next job of the key may be queued before this
        // job is finished.
        self.apply()
    }

    fn finish(self) -> Result<()> {
        self.slot.settle();
        Ok(())
    }

    fn fail(self, fault: &Error) {
        self.slot.fail(fault);
    }
}
