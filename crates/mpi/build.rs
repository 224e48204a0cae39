//! Compiles `plugin.c` with the compiler of each MPI that is here: `MPICC` and `MPICH_MPICC` if they are set,
//! and those that Debian and MPI itself install. A machine without any builds everything too, and
//! `dist_sync_mpi` returns an error that explains why it is missing.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// The names of the interfaces, as `family.rs` has them.
const INTERFACES: [&str; 3] = ["openmpi", "mpich", "standard"];

/// The compilers to try after those that variables name.
const COMPILERS: [&str; 4] = ["mpicc.openmpi", "mpicc.mpich", "mpicc", "mpicc_abi"];

const SOURCE: &str = "src/plugin.c";

fn main() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    println!("cargo:rerun-if-changed={SOURCE}");
    println!("cargo:rerun-if-changed=build.rs");
    let named = ["MPICC", "MPICH_MPICC"].into_iter().filter_map(|name| {
        println!("cargo:rerun-if-env-changed={name}");
        env::var(name).ok().filter(|value| !value.is_empty())
    });
    let compilers: Vec<String> = named.chain(COMPILERS.map(str::to_owned)).collect();
    let mut table = "pub(crate) const PLUGINS: &[(&str, &[u8])] = &[\n".to_owned();
    for interface in INTERFACES {
        let file = out.join(format!("{interface}.so"));
        let built = compilers
            .iter()
            .any(|compiler| interface_of(compiler).as_deref() == Some(interface) && build(compiler, &file));
        if built {
            let file = file.to_str().expect("OUT_DIR is text");
            writeln!(table, "    ({interface:?}, include_bytes!({file:?})),").expect("a String grows");
        }
    }
    table.push_str("];\n");
    fs::write(out.join("plugins.rs"), table).expect("OUT_DIR can be written");
}

/// The binary interface that the compiler's header has; nothing if there is no such compiler.
fn interface_of(compiler: &str) -> Option<String> {
    let mut words = compiler.split_whitespace();
    let output = Command::new(words.next()?).args(words).args(["-E", "-DPROBE", SOURCE]).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().find_map(|line| line.trim().strip_prefix("ringpull interface ")).map(str::to_owned)
}

/// Builds the plugin. Returns true if that succeeded. The plugin is not linked with the compiler's MPI: it
/// takes the functions of the one that the process has loaded.
fn build(compiler: &str, file: &Path) -> bool {
    let object = file.with_extension("o");
    let mut words = compiler.split_whitespace();
    let compiler = words.next().unwrap_or_default();
    let is_made = |command: &mut Command| command.status().is_ok_and(|status| status.success());
    let (object, file) = (object.as_os_str(), file.as_os_str());
    is_made(
        Command::new(compiler)
            .args(words)
            .args(["-O2", "-fPIC", "-fno-stack-protector", "-c", SOURCE, "-o"])
            .arg(object),
    ) && is_made(Command::new("cc").args(["-shared", "-nostdlib", "-s", "-o"]).arg(file).arg(object))
}
