//! Opens devices by name, and describes those of this machine.

use std::sync::Arc;

use ringpull_base::{Error, Result};

use super::devices::Devices;
#[cfg(not(feature = "cuda"))]
use super::survey::Library;
use super::survey::Survey;

/// Opens the devices that `name` means: `cuda` is all GPUs of this machine, `cuda:0,2` is the GPUs 0 and 2,
/// and `sim:4` is four simulated devices.
pub fn open(name: &str) -> Result<Arc<Devices>> {
    let (platform, which) = name.split_once(':').unwrap_or((name, ""));
    match (platform, which) {
        ("sim", count) => match count.parse() {
            Ok(count @ 1..=64) => Devices::simulated(count),
            _ => Err(misspelt(name)),
        },
        ("cuda", "") => open_cuda(None),
        ("cuda", list) => {
            let numbers = list.split(',').map(str::parse).collect::<Result<Vec<usize>, _>>();
            open_cuda(Some(numbers.map_err(|_| misspelt(name))?))
        }
        _ => Err(misspelt(name)),
    }
}

fn misspelt(name: &str) -> Error {
    Error::argument(
        format!("unknown devices {name:?}"),
        "devices are cuda (all GPUs), cuda:0,2 (those) or sim:4 (four simulated ones, for tests)",
    )
}

#[cfg(feature = "cuda")]
fn open_cuda(which: Option<Vec<usize>>) -> Result<Arc<Devices>> {
    Devices::over(super::cuda::Cuda::open(which)?, super::devices::LIMIT)
}

#[cfg(not(feature = "cuda"))]
fn open_cuda(_which: Option<Vec<usize>>) -> Result<Arc<Devices>> {
    Err(Error::argument(
        "GPUs need the CUDA driver, NVRTC and, for several GPUs, NCCL 2; this build cannot use them",
        "build with the feature `cuda`, which is on by default and needs no CUDA to build",
    ))
}

/// Returns a description of this machine's devices. Never fails and never panics: missing parts are described
/// in words.
pub fn survey() -> Survey {
    #[cfg(feature = "cuda")]
    return super::cuda::survey();
    #[cfg(not(feature = "cuda"))]
    {
        let absent = || Library::Missing("not in this build (build with --features cuda)".to_owned());
        Survey { driver: absent(), nccl: absent(), nvrtc: absent(), ..Survey::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_devices_are_strict() {
        assert_eq!(open("sim:2").map(|devices| devices.count()), Ok(2));
        for wrong in ["", "sim", "sim:0", "sim:many", "cuda:a", "gpu", "rocm:0"] {
            let error = open(wrong).err().map(|error| error.to_string()).unwrap_or_default();
            assert!(error.contains(&format!("{wrong:?}")) && error.contains("hint:"), "{wrong}: {error}");
        }
    }

    #[test]
    fn a_survey_says_what_is_missing() {
        let survey = survey();
        for library in [survey.driver, survey.nccl, survey.nvrtc] {
            let text = library.to_string();
            assert!(library.version().is_some() || text.contains("looked for") || text.contains("build"), "{text}");
        }
    }
}
