//! A sum over the devices of all ranks, as it is passed to each route.

use std::sync::Arc;
use std::time::Duration;

use ringpull_allreduce::transport::Stamp;
use ringpull_base::DType;
use ringpull_device::{Devices, Layout, Pool, Slice};

/// A sum over the ranks.
pub(crate) struct Sum<'a> {
    /// The devices of this rank.
    pub devices: &'a Devices,
    /// The division of the tensor over the devices.
    pub layout: &'a Layout,
    /// The element type.
    pub dtype: DType,
    /// The parts, one on each device, written on its lane.
    pub parts: &'a [Slice],
    /// The operation's stamp.
    pub stamp: Stamp,
    /// The time limit of work on a device.
    pub limit: Duration,
    /// The memory through which sums pass, kept between sums.
    pub pool: &'a Arc<Pool>,
}
