//! Compiles kernels by NVRTC for the driver, and caches the results.
#![allow(unsafe_code)]

use std::ffi::{CString, c_int};
use std::fs;
use std::path::{Path, PathBuf};

use cudarc::nvrtc::{result, sys};
use xxhash_rust::xxh3::xxh3_64;

use ringpull_base::{Error, Result, config, file_limit};

use super::super::failed;
use super::super::kernels::{ARCHITECTURES, OPTIONS, TranslationUnit};
use super::Version;

/// Returns true if NVRTC is installed. To be called before any other function of this file.
pub(super) fn is_present() -> bool {
    super::is_present(&["libnvrtc.so", "libnvrtc.so.13", "libnvrtc.so.12"])
}

/// NVRTC's version, major and minor.
fn version_numbers() -> Option<Version> {
    let (mut major, mut minor) = (0, 0);
    // SAFETY: the library is present, and writes two ints.
    (is_present() && unsafe { sys::nvrtcVersion(&raw mut major, &raw mut minor) } == sys::nvrtcResult::NVRTC_SUCCESS)
        .then_some((major, minor))
}

/// NVRTC's version, in words.
pub(super) fn version() -> Option<String> {
    version_numbers().map(|(major, minor)| format!("{major}.{minor}"))
}

fn missing() -> Error {
    Error::argument(
        "NVRTC, which compiles the kernels, was not found: looked for libnvrtc.so and its versions",
        "install the CUDA toolkit or Python's nvidia-cuda-nvrtc, and put its folder into LD_LIBRARY_PATH",
    )
}

/// Returns the architecture for which NVRTC is to compile on a GPU of compute capability `major`.`minor`:
/// `compute_80`, which is PTX, or `sm_80`, which is that GPU's own code.
pub(super) fn architecture((major, minor): (c_int, c_int), driver: Version) -> Result<String> {
    let nvrtc = version_numbers().ok_or_else(missing)?;
    Ok(format!("{}_{major}{minor}", form(nvrtc, driver)?))
}

/// Returns the form of code to compile. A driver compiles the PTX of its own version and of older ones.
/// Within one CUDA major version it runs the GPU code of newer toolkits too ("Minor Version Compatibility" in
/// NVIDIA's CUDA Compatibility).
fn form(nvrtc: Version, driver: Version) -> Result<&'static str> {
    if nvrtc <= driver {
        return Ok("compute");
    }
    if nvrtc.0 == driver.0 {
        return Ok("sm");
    }
    let ((major, minor), (old, old_minor)) = (nvrtc, driver);
    Err(Error::argument(
        format!("NVRTC {major}.{minor} compiles for drivers of CUDA {major}; this driver is of CUDA {old}.{old_minor}"),
        format!(
            "install a driver of CUDA {major}, or in place of this NVRTC put the folder of Python's \
             nvidia-cuda-nvrtc-cu{old} into LD_LIBRARY_PATH"
        ),
    ))
}

/// Compiles code that the driver loads for `architecture`. It is a cubin if the architecture begins with
/// `sm_`, and PTX otherwise.
pub(super) fn compile(unit: &TranslationUnit, architecture: &str) -> Result<Vec<u8>> {
    if !is_present() {
        return Err(missing());
    }
    let source = CString::new(unit.source()).expect("sources hold no zero");
    let name = CString::new(unit.name).expect("names hold no zero");
    let wrong = |call: &str, cause: result::NvrtcError| failed("NVRTC", call, cause.0 as i64, format!("{:?}", cause.0));
    let program = result::create_program(&source, Some(&name)).map_err(|cause| wrong("nvrtcCreateProgram", cause))?;
    let mut options: Vec<String> = OPTIONS.map(str::to_owned).to_vec();
    options.push(format!("--gpu-architecture={architecture}"));
    // SAFETY: the program was just made, and is destroyed once, below.
    unsafe {
        let compiled = result::compile_program(program, &options);
        let log = result::get_program_log(program).map(|log| text(&log)).unwrap_or_default();
        let outcome = match compiled {
            Ok(()) if is_cubin(architecture) => cubin(program).map_err(|cause| wrong("nvrtcGetCUBIN", cause)),
            Ok(()) => {
                let ptx = result::get_ptx(program).map_err(|cause| wrong("nvrtcGetPTX", cause));
                ptx.map(|ptx| text(&ptx).into_bytes())
            }
            Err(cause) => {
                let words = format!("{} for {architecture}: {:?} {log}", unit.name, cause.0);
                Err(failed("NVRTC", "nvrtcCompileProgram", cause.0 as i64, words))
            }
        };
        let destroyed = result::destroy_program(program).map_err(|cause| wrong("nvrtcDestroyProgram", cause));
        outcome.and_then(|image| destroyed.map(|()| image))
    }
}

fn is_cubin(architecture: &str) -> bool {
    architecture.starts_with("sm_")
}

/// # Safety
/// The program was compiled for a GPU, and is not destroyed.
unsafe fn cubin(program: sys::nvrtcProgram) -> std::result::Result<Vec<u8>, result::NvrtcError> {
    let mut len = 0;
    // SAFETY: as the caller promises. NVRTC writes the length, and then this number of bytes.
    unsafe {
        sys::nvrtcGetCUBINSize(program, &raw mut len).result()?;
        let mut image = vec![0u8; len];
        sys::nvrtcGetCUBIN(program, image.as_mut_ptr().cast()).result()?;
        Ok(image)
    }
}

/// Returns compiled code as [`compile`] does, from the cache if it is there, and with a zero at its end, as
/// the driver requires for PTX. A device that is newer than NVRTC runs the code for an older device.
pub(super) fn cached(unit: &TranslationUnit, architecture: &str) -> Result<Vec<u8>> {
    let place = cache_file(unit, architecture);
    let kept = place.as_ref().and_then(|place| fs::read(place).ok());
    let mut image = match kept {
        Some(kept) => kept,
        None => compile_for(unit, architecture).inspect(|made| {
            if let Some(place) = &place {
                keep(place, made);
            }
        })?,
    };
    image.push(0);
    Ok(image)
}

/// Compiles for `architecture`, or for the newest older architecture that NVRTC knows and whose code runs on
/// it.
fn compile_for(unit: &TranslationUnit, architecture: &str) -> Result<Vec<u8>> {
    compile(unit, architecture).or_else(|cause| {
        let older = older(architecture);
        older.iter().rev().find_map(|older| compile(unit, older).ok()).ok_or(cause)
    })
}

/// Returns architectures that are older than this one and whose PTX, or code, runs on it.
fn older(than: &str) -> Vec<String> {
    let (form, number) = than.split_once('_').unwrap_or_default();
    let number: u32 = number.parse().unwrap_or(0);
    // GPUs of one major version run each other's code, if it is not newer.
    let runs = |known: &u32| *known < number && (form == "compute" || *known / 10 == number / 10);
    ARCHITECTURES.into_iter().filter(runs).map(|known| format!("{form}_{known}")).collect()
}

fn cache_file(unit: &TranslationUnit, architecture: &str) -> Option<PathBuf> {
    let content = format!("{} {OPTIONS:?} {}", unit.source(), version().unwrap_or_default());
    let end = if is_cubin(architecture) { "cubin" } else { "ptx" };
    let name = format!("{}-{architecture}-{:016x}.{end}", unit.name, xxh3_64(content.as_bytes()));
    Some(config::cache_folder()?.join("ringpull").join(name))
}

/// Writes to the cache. A failure only costs time later.
fn keep(place: &Path, image: &[u8]) {
    let written = place.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| {
        let part = place.with_extension(format!("{}.part", std::process::id()));
        file_limit::without_signal(|| fs::write(&part, image)).and_then(|()| fs::rename(&part, place))
    });
    if let Err(cause) = written {
        tracing::debug!(%cause, place = %place.display(), "kernel not cached");
    }
}

/// The characters before the first zero.
fn text(characters: &[std::ffi::c_char]) -> String {
    let bytes: Vec<u8> = characters.iter().map(|c| *c as u8).take_while(|byte| *byte != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::super::super::kernels::UNITS;
    use super::*;

    #[test]
    fn every_kernel_compiles_for_every_architecture() {
        if !is_present() {
            println!("skipped: NVRTC is not here (scripts/setup --nvrtc)");
            return;
        }
        for unit in &UNITS {
            let code = compile(unit, "sm_80").unwrap_or_else(|error| panic!("{error}"));
            assert!(code.starts_with(b"\x7fELF"), "{}", unit.name);
            for number in ARCHITECTURES {
                let ptx = compile(unit, &format!("compute_{number}")).unwrap_or_else(|error| panic!("{error}"));
                let ptx = String::from_utf8_lossy(&ptx);
                for kernel in unit.kernels {
                    assert!(ptx.contains(&format!(".entry {kernel}(")), "{kernel} for {number}");
                }
                assert!(!ptx.contains("fma.rn.f32"), "{} for {number} has a fused multiply-add", unit.name);
            }
        }
    }

    #[test]
    fn a_kernel_that_is_wrong_is_an_error_with_the_compilers_words() {
        if !is_present() {
            assert!(compile(&UNITS[0], "compute_80").unwrap_err().to_string().contains("libnvrtc.so"));
            return;
        }
        let error = compile(&UNITS[0], "compute_10").unwrap_err().to_string();
        assert!(error.contains("NVRTC") && error.contains("compute_10"), "{error}");
    }

    #[test]
    fn the_driver_gets_what_it_can_load() {
        assert_eq!(form((12, 4), (12, 4)), Ok("compute"));
        assert_eq!(form((12, 9), (13, 0)), Ok("compute"));
        assert_eq!(form((13, 5), (13, 0)), Ok("sm"));
        let error = form((13, 0), (12, 9)).unwrap_err().to_string();
        assert!(error.contains("NVRTC 13.0") && error.contains("CUDA 12.9") && error.contains("nvrtc-cu12"), "{error}");
    }

    #[test]
    fn an_older_architecture_serves_if_its_image_runs() {
        assert_eq!(older("compute_130"), ["compute_75", "compute_80", "compute_90"]);
        assert_eq!(older("sm_89"), ["sm_80"]);
        assert_eq!(older("sm_120"), [""; 0]);
        if is_present() {
            let ptx = compile_for(&UNITS[1], "compute_999").unwrap_or_else(|error| panic!("{error}"));
            assert!(String::from_utf8_lossy(&ptx).contains(".target sm_90"));
            assert!(compile_for(&UNITS[1], "sm_999").unwrap_err().to_string().contains("sm_999"));
        }
    }
}
