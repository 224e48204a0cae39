//! The types that programs, stores and backends share.

use ringpull_base::{Key, Result, Tensor};

/// A function that replaces an optimizer. A thread of the store calls `updater(key, received, stored)` once
/// for each merged gradient, and the updater changes `stored`. If it returns an error, reading or pulling the
/// key returns this error. It is an error if an updater calls a store.
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

/// The function of a program that is called after a loss; see [`on_change`](crate::KvStore::on_change).
pub type OnChange = Box<dyn FnMut(&Change) -> Result<()> + Send>;
