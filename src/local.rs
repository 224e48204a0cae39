//! The store of one process. Values are in host memory, and a push is applied before it returns.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

use ringpull_base::{Buffer, Error, Key, Result, Tensor, TensorMut};
use ringpull_kernels::compress::Compression;
use ringpull_kernels::optim::Optimizer;

use crate::{Backend, Contribution, Entry, MergedRows, SavedStates, Updater, Updates, contribution};

type Value = Arc<Mutex<Arc<Buffer>>>;

/// The backend of kind `local`.
#[derive(Default)]
pub(super) struct Local {
    values: Mutex<BTreeMap<Key, Value>>,
    updates: Updates,
}

impl Local {
    fn slot(&self, entry: &Entry, operation: &str) -> Result<Value> {
        self.values.lock().get(&entry.key).cloned().ok_or_else(|| entry.not_initialized(operation, 0))
    }
}

impl Backend for Local {
    fn init(&self, entry: &Entry, value: &Tensor) -> Result<()> {
        let value = value.read()?.snapshot();
        self.values.lock().insert(entry.key.clone(), Arc::new(Mutex::new(value)));
        Ok(())
    }

    fn push(&self, entry: &Entry, gradient: Vec<Contribution>, mut outs: Vec<TensorMut>, _priority: i32) -> Result<()> {
        let update = self.updates.present(entry)?;
        let value = self.slot(entry, "push")?;
        let mut value = value.lock();
        if let Err(cause) =
            self.updates.apply_contribution(&update, entry, contribution::only(gradient), &outs, &mut value)
        {
            for out in outs {
                out.fail(cause.clone());
            }
            return Err(cause);
        }
        for out in &mut outs {
            out.copy_from(value.bytes());
        }
        Ok(())
    }

    fn push_rows(&self, entry: &Entry, gradient: MergedRows, _priority: i32) -> Result<()> {
        let update = self.updates.present(entry)?;
        let value = self.slot(entry, "push_rows")?;
        self.updates.apply_rows(&update, entry, &gradient, &mut value.lock())
    }

    fn value(&self, entry: &Entry, operation: &str, _priority: i32) -> Result<Arc<Buffer>> {
        Ok(Arc::clone(&self.slot(entry, operation)?.lock()))
    }

    fn set_optimizer(&self, optimizer: &Optimizer) -> Result<()> {
        self.updates.set_optimizer(optimizer);
        Ok(())
    }

    fn set_updater(&self, updater: Updater) -> Result<()> {
        self.updates.set_updater(updater);
        Ok(())
    }

    fn set_compression(&self, compression: Option<&Compression>) -> Result<()> {
        let Some(compression) = compression else { return Ok(()) };
        Err(Error::Unsupported {
            kind: "local".to_owned(),
            operation: format!("set_gradient_compression({compression})"),
            reason: "a store of one process sends no gradients".to_owned(),
        })
    }

    fn states(&self) -> Result<SavedStates> {
        Ok(self.updates.states()?.0)
    }

    fn state_bytes(&self) -> u64 {
        self.updates.state_bytes()
    }

    fn set_states(&self, states: SavedStates) -> Result<()> {
        self.updates.set_states(states)
    }
}
