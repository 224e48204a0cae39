//! The settings of the machine, from the environment. It is read once, when the driver is first called.
//!
//! | variable | default | meaning |
//! | --- | --- | --- |
//! | `FAKE_CUDA_DEVICES` | `1` | number of devices, MiB of each: `4`, `2x64` |
//! | `CUDA_VISIBLE_DEVICES` | all | which of them this process sees, in its order |
//! | `FAKE_CUDA_PEERS` | `1` | `0`: no device reaches another's memory |
//! | `FAKE_CUDA_HOST_REACHES` | `0` | `1`: the host may touch memory of devices, unless NCCL sums with other processes |
//! | `FAKE_CUDA_LATE_US` | `0` | every piece of work begins that many microseconds late |
//! | `FAKE_CUDA_LOG` | none | a file that findings are appended to; they go to stderr too |
//! | `FAKE_CUDA_LEAKS` | `0` | `1`: what is not given back at the end of the process is a finding |
//! | `FAKE_CUDA_FAULT` | none | what fails and when: [`Fault`] |
//! | `FAKE_CUDA_DRIVER` | `13050` | what `cuDriverGetVersion` answers: newer PTX is refused |
//! | `FAKE_NCCL_VERSION` | `22805` | what `ncclGetVersion` answers |

use std::env;
use std::ffi::c_int;
use std::path::PathBuf;
use std::sync::LazyLock;
use std::time::Duration;

/// A fault at the `at`-th call of `entry`. Written as `cuMemAlloc_v2@3=2` (the call fails with this code),
/// `run:cuLaunchKernel@1=700` (its work does, later) or `hang:ncclAllReduce@2` (its work never ends); several
/// are parted by commas. `#1` at the end: on rank 1 of an MPI job alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) entry: String,
    pub(crate) at: u64,
    pub(crate) effect: Effect,
}

/// The effect of a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effect {
    /// The call returns this code and does nothing.
    Returns(c_int),
    /// The queued work fails with this code when it runs; its device is failed from then on.
    Fails(c_int),
    /// The queued work never ends.
    Hangs,
}

pub(crate) struct Settings {
    /// The bytes of each device of the machine.
    pub(crate) devices: Vec<usize>,
    /// The devices that are seen.
    pub(crate) visible: Vec<usize>,
    pub(crate) has_peers: bool,
    pub(crate) host_reaches: bool,
    pub(crate) late: Duration,
    pub(crate) log: Option<PathBuf>,
    pub(crate) reports_leaks: bool,
    pub(crate) faults: Vec<Fault>,
    pub(crate) nccl_version: c_int,
    pub(crate) driver_version: c_int,
}

pub(crate) static SETTINGS: LazyLock<Settings> = LazyLock::new(|| {
    let text = |name: &str| env::var(name).ok().filter(|text| !text.is_empty());
    let number = |name: &str| text(name).map(|text| text.parse::<u64>().unwrap_or_else(|_| wrong(name, &text)));
    let devices = text("FAKE_CUDA_DEVICES").unwrap_or_else(|| "1".to_owned());
    let devices = devices_of(&devices).unwrap_or_else(|| wrong("FAKE_CUDA_DEVICES", &devices));
    let visible = match env::var("CUDA_VISIBLE_DEVICES") {
        // As the driver reads it: what follows a number that no device has is not seen.
        Ok(list) => {
            list.split(',').map_while(|one| one.trim().parse().ok()).take_while(|one| *one < devices.len()).collect()
        }
        Err(_) => (0..devices.len()).collect(),
    };
    let faults = text("FAKE_CUDA_FAULT").unwrap_or_default();
    Settings {
        visible,
        devices,
        has_peers: number("FAKE_CUDA_PEERS") != Some(0),
        host_reaches: number("FAKE_CUDA_HOST_REACHES") == Some(1),
        late: Duration::from_micros(number("FAKE_CUDA_LATE_US").unwrap_or(0)),
        log: text("FAKE_CUDA_LOG").map(PathBuf::from),
        reports_leaks: number("FAKE_CUDA_LEAKS") == Some(1),
        faults: faults_of(&faults, rank().as_deref()).unwrap_or_else(|| wrong("FAKE_CUDA_FAULT", &faults)),
        nccl_version: number("FAKE_NCCL_VERSION").unwrap_or(22_805) as c_int,
        driver_version: number("FAKE_CUDA_DRIVER").unwrap_or(13_050) as c_int,
    }
});

fn wrong(name: &str, text: &str) -> ! {
    panic!("fake-cuda: {name}={text:?}: see tests/fake-cuda/src/settings.rs")
}

fn rank() -> Option<String> {
    ["OMPI_COMM_WORLD_RANK", "PMI_RANK"].into_iter().find_map(|name| env::var(name).ok())
}

fn devices_of(text: &str) -> Option<Vec<usize>> {
    let (count, mebibytes) = text.split_once('x').unwrap_or((text, "256"));
    let (count, mebibytes) = (count.parse().ok()?, mebibytes.parse::<usize>().ok()?);
    (count <= 8).then(|| vec![mebibytes << 20; count])
}

fn faults_of(text: &str, rank: Option<&str>) -> Option<Vec<Fault>> {
    let mut found = Vec::new();
    for one in text.split(',').filter(|one| !one.is_empty()) {
        let (one, only) = one.split_once('#').map_or((one, None), |(one, only)| (one, Some(only)));
        let (manner, one) = one.split_once(':').unwrap_or(("", one));
        let (one, code) = one.split_once('=').map_or((one, None), |(one, code)| (one, code.parse().ok()));
        let (entry, at) = one.split_once('@')?;
        let effect = match (manner, code) {
            ("", Some(code)) => Effect::Returns(code),
            ("run", Some(code)) => Effect::Fails(code),
            ("hang", None) => Effect::Hangs,
            _ => return None,
        };
        if only.is_none() || only == rank {
            found.push(Fault { entry: entry.to_owned(), at: at.parse().ok()?, effect });
        }
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_and_faults_are_strict() {
        assert_eq!(devices_of("2x64"), Some(vec![64 << 20; 2]));
        assert_eq!((devices_of("9"), devices_of("two")), (None, None));
        let found = faults_of("a@3=2,run:b@1=700#1,hang:c@2", Some("0")).unwrap();
        let effects: Vec<_> = found.iter().map(|fault| (fault.entry.as_str(), fault.at, fault.effect)).collect();
        assert_eq!(effects, [("a", 3, Effect::Returns(2)), ("c", 2, Effect::Hangs)]);
        assert_eq!(faults_of("b@1=700#1", Some("1")).map(|found| found.len()), Some(1));
        for wrong in ["a", "a@3", "run:a@3", "hang:a@1=2"] {
            assert_eq!(faults_of(wrong, None), None, "{wrong}");
        }
    }
}
