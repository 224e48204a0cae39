//! Memory of a tensor that is not the host's.

use std::any::Any;
use std::sync::Arc;

use crate::Error;

/// Memory that is not the host's, as its owner knows it.
#[derive(Clone)]
pub struct Remote {
    owner: Arc<dyn Any + Send + Sync>,
    place: Arc<str>,
}

impl Remote {
    /// Returns memory that belongs to `owner`. `place` is its name in messages.
    pub fn new(owner: Arc<dyn Any + Send + Sync>, place: &str) -> Self {
        Remote { owner, place: place.into() }
    }

    /// The owner, if it is a `T`.
    pub fn owner<T: Any + Send + Sync>(&self) -> Option<&T> {
        self.owner.downcast_ref()
    }

    /// Returns the place as text.
    pub fn place(&self) -> &str {
        &self.place
    }

    pub(crate) fn refuse(&self) -> Error {
        Error::argument(
            format!("the tensor is in the memory of {}, but this call needs it in host memory", self.place),
            "copy it with `Devices::download`, or use a store that works on devices",
        )
    }
}
