//! Gives processes fake GPUs on a machine without a GPU: an environment in which a process finds the CUDA
//! driver and NCCL of `ringpull-fake-cuda`, and the real NVRTC.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use ringpull_base::config;
use tempfile::NamedTempFile;

use super::own_path;

/// The fake library, which Cargo builds beside the tests that use this crate.
const LIBRARY: &str = "libringpull_fake_cuda.so";

/// Fake GPUs for the processes of a test.
pub struct FakeGpus {
    folder: PathBuf,
    nvrtc: Option<PathBuf>,
    log: NamedTempFile,
    more: Vec<(String, String)>,
}

impl FakeGpus {
    /// Creates fake GPUs. `devices` has the format of `FAKE_CUDA_DEVICES`: `4`, or `2x64` for two devices of
    /// 64 MiB. Returns `None` without the real NVRTC, which compiles the kernels. On CI a missing NVRTC is a
    /// failure.
    pub fn new(devices: &str) -> Option<Self> {
        let nvrtc = nvrtc_folder();
        if nvrtc.is_none() && !is_loadable("libnvrtc.so") {
            assert!(config::text("CI").is_none(), "NVRTC must be here on CI: scripts/setup --nvrtc");
            println!("skipped: NVRTC is not here (scripts/setup --nvrtc)");
            return None;
        }
        let deps = own_path().parent().map(Path::to_path_buf).unwrap_or_default();
        let library =
            [&deps, &deps.join("deps")].into_iter().map(|folder| folder.join(LIBRARY)).find(|path| path.exists());
        let library = library.unwrap_or_else(|| panic!("{LIBRARY} is not in {}", deps.display()));
        let folder = deps.with_file_name("fake-cuda");
        for name in ["libcuda.so.1", "libnccl.so.2"] {
            link(&library, &folder.join("all").join(name));
        }
        link(&library, &folder.join("driver").join("libcuda.so.1"));
        let more = vec![
            ("FAKE_CUDA_DEVICES".to_owned(), devices.to_owned()),
            ("XDG_CACHE_HOME".to_owned(), folder.join("cache").display().to_string()),
        ];
        Some(FakeGpus { folder: folder.join("all"), nvrtc, log: NamedTempFile::new().unwrap(), more })
    }

    /// Hides NCCL from the processes.
    #[must_use]
    pub fn without_nccl(mut self) -> Self {
        self.folder.set_file_name("driver");
        self
    }

    /// Adds an environment variable. tests/fake-cuda/src/settings.rs lists the variables of the fake library.
    #[must_use]
    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.more.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Returns the environment variables of a process that uses these GPUs.
    pub fn envs(&self) -> Vec<(String, OsString)> {
        let mut folders = vec![self.folder.clone()];
        folders.extend(self.nvrtc.clone());
        folders.extend(std::env::var_os("LD_LIBRARY_PATH").iter().flat_map(std::env::split_paths));
        let path = std::env::join_paths(folders).expect("folders of libraries hold no colon");
        let mut envs = vec![
            ("LD_LIBRARY_PATH".to_owned(), path),
            ("FAKE_CUDA_LOG".to_owned(), self.log.path().as_os_str().to_owned()),
        ];
        envs.extend(self.more.iter().map(|(name, value)| (name.clone(), value.into())));
        envs
    }

    /// Returns the errors that the fake library has found so far, one per line.
    pub fn findings(&self) -> String {
        fs::read_to_string(self.log.path()).unwrap_or_default()
    }
}

/// Returns the folder of `scripts/setup --nvrtc`.
fn nvrtc_folder() -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.deps/nvrtc/nvidia").canonicalize().ok()?;
    let found = fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path().join("lib"));
    found.into_iter().find(|folder| folder.is_dir())
}

fn is_loadable(name: &str) -> bool {
    let folders = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    std::env::split_paths(&folders).any(|folder| folder.join(name).exists())
}

/// Makes `to` a link to `library`, even while other processes do the same.
fn link(library: &Path, to: &Path) {
    /// Tests are threads of one process, so the lock orders them.
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock();
    fs::create_dir_all(to.parent().unwrap_or(to)).unwrap();
    if fs::read_link(to).is_ok_and(|known| known == library) {
        return;
    }
    let new = to.with_extension(format!("{}.new", std::process::id()));
    symlink(library, &new).and_then(|()| fs::rename(&new, to)).unwrap();
}
