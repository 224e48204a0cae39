//! Kernels from source to PTX by NVRTC, and the cache of what was compiled.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString};
use std::fs;
use std::path::PathBuf;

use cudarc::nvrtc::{result, sys};
use xxhash_rust::xxh3::xxh3_64;

use ringpull_base::{Error, Result, config, file_limit};

use super::super::failed;
use super::super::kernels::{ARCHITECTURES, OPTIONS, Unit};

/// Whether NVRTC is here. Nothing else of this file may be called before this was asked.
pub(super) fn is_present() -> bool {
    super::is_present(&["libnvrtc.so", "libnvrtc.so.13", "libnvrtc.so.12"])
}

/// NVRTC's version.
pub(super) fn version() -> Option<String> {
    let (mut major, mut minor) = (0, 0);
    // SAFETY: the library is present, and writes two ints.
    (is_present() && unsafe { sys::nvrtcVersion(&raw mut major, &raw mut minor) } == sys::nvrtcResult::NVRTC_SUCCESS)
        .then(|| format!("{major}.{minor}"))
}

/// The unit's PTX for `architecture`, such as `compute_80`.
pub(super) fn compile(unit: &Unit, architecture: &str) -> Result<CString> {
    if !is_present() {
        return Err(Error::argument(
            "NVRTC, which compiles the kernels, was not found: looked for libnvrtc.so and its versions",
            "install the CUDA toolkit or Python's nvidia-cuda-nvrtc, and put its folder into LD_LIBRARY_PATH",
        ));
    }
    let source = CString::new(unit.source()).expect("sources hold no zero");
    let name = CString::new(unit.name).expect("names hold no zero");
    let wrong = |call: &str, cause: result::NvrtcError| failed("NVRTC", call, cause.0 as i64, format!("{:?}", cause.0));
    let program = result::create_program(&source, Some(&name)).map_err(|cause| wrong("nvrtcCreateProgram", cause))?;
    let mut options: Vec<String> = OPTIONS.map(str::to_owned).to_vec();
    options.push(format!("--gpu-architecture={architecture}"));
    // SAFETY: the program was just made, and is destroyed once, below.
    let outcome = unsafe {
        let compiled = result::compile_program(program, &options);
        let log = result::get_program_log(program).map(|log| text(&log)).unwrap_or_default();
        let outcome = match compiled {
            Ok(()) => result::get_ptx(program).map_err(|cause| wrong("nvrtcGetPTX", cause)),
            Err(cause) => {
                let words = format!("{} for {architecture}: {:?} {log}", unit.name, cause.0);
                Err(failed("NVRTC", "nvrtcCompileProgram", cause.0 as i64, words))
            }
        };
        let destroyed = result::destroy_program(program).map_err(|cause| wrong("nvrtcDestroyProgram", cause));
        outcome.and_then(|ptx| destroyed.map(|()| ptx))
    }?;
    Ok(CString::new(text(&outcome)).expect("the text ends before its first zero"))
}

/// As [`compile`], from the cache if it has it. A device newer than NVRTC knows runs what was made for an
/// older one.
pub(super) fn cached(unit: &Unit, architecture: &str) -> Result<CString> {
    let place = cache_file(unit, architecture);
    if let Some(kept) = place.as_ref().and_then(|place| fs::read(place).ok()).and_then(|bytes| CString::new(bytes).ok())
    {
        return Ok(kept);
    }
    let known = ARCHITECTURES.iter().rev().copied().filter(|older| is_older(older, architecture));
    let mut first = None;
    for candidate in std::iter::once(architecture).chain(known) {
        match compile(unit, candidate) {
            Ok(ptx) => {
                if let Some(place) = place {
                    keep(&place, &ptx);
                }
                return Ok(ptx);
            }
            Err(cause) => drop(first.get_or_insert(cause)),
        }
    }
    Err(first.unwrap_or_else(|| failed("NVRTC", "compile", -1, "no architecture was tried")))
}

fn is_older(older: &str, than: &str) -> bool {
    let number = |name: &str| name.trim_start_matches("compute_").parse::<u32>().unwrap_or(0);
    number(older) < number(than)
}

fn cache_file(unit: &Unit, architecture: &str) -> Option<PathBuf> {
    let content = format!("{} {OPTIONS:?} {}", unit.source(), version().unwrap_or_default());
    let name = format!("{}-{architecture}-{:016x}.ptx", unit.name, xxh3_64(content.as_bytes()));
    Some(config::cache_folder()?.join("ringpull").join(name))
}

/// A cache that cannot be written costs time and nothing else.
fn keep(place: &PathBuf, ptx: &CStr) {
    let written = place.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| {
        let part = place.with_extension(format!("{}.part", std::process::id()));
        file_limit::without_signal(|| fs::write(&part, ptx.to_bytes())).and_then(|()| fs::rename(&part, place))
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
            for architecture in ARCHITECTURES {
                let ptx = compile(unit, architecture).unwrap_or_else(|error| panic!("{error}"));
                let ptx = ptx.to_string_lossy();
                for kernel in unit.kernels {
                    assert!(ptx.contains(&format!(".entry {kernel}(")), "{kernel} for {architecture}");
                }
                assert!(!ptx.contains("fma.rn.f32"), "{} for {architecture} has a fused multiply-add", unit.name);
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
}
