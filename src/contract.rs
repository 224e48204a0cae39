//! The interface between programs and a store, below the store and below its backends.

use ringpull_base::{Key, Result, Tensor};

/// A function that replaces an optimizer. A thread of the store calls `updater(key, received, stored)` once
/// for each merged gradient, and it changes `stored`. If it returns an error, reading or pulling the key
/// returns that error. It cannot call a store: that is an error.
///
/// ```
/// let store = ringpull::create("local")?;
/// let weight = ringpull::Tensor::from_slice(&[1], &[10.0f32]);
/// store.init(0, &weight)?;
/// store.set_updater(Box::new(|_key, received, stored| {
///     let step = received.to_vec::<f32>()?[0];
///     stored.write().as_mut_slice::<f32>()[0] -= 0.5 * step;
///     Ok(())
/// }))?;
/// store.push(0, &[ringpull::Tensor::from_slice(&[1], &[4.0f32])], 0)?;
/// store.pull(0, std::slice::from_ref(&weight), 0)?;
/// assert_eq!(weight.to_vec::<f32>()?, [8.0]);
/// # Ok::<(), ringpull::Error>(())
/// ```
pub type Updater = Box<dyn FnMut(&Key, &Tensor, &Tensor) -> Result<()> + Send>;

pub use ringpull_allreduce::progress::Change;

/// The function that a program has called after a loss; see [`on_change`](crate::KvStore::on_change).
pub type OnChange = Box<dyn FnMut(&Change) -> Result<()> + Send>;
