//! Compiles `plugin.c` with the compiler of each MPI that it finds: `MPICC` and `MPICH_MPICC` if they are
//! set, and those that Debian and MPI itself install. The build also works without any MPI. `dist_sync_mpi`
//! then returns an error that explains why it is missing.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// The names of the interfaces, as `family.rs` has them.
const INTERFACES: [&str; 3] = ["openmpi", "mpich", "standard"];

/// The variables that name compilers, and the compilers to try after these.
const VARIABLES: [&str; 2] = ["MPICC", "MPICH_MPICC"];
const COMPILERS: [&str; 4] = ["mpicc.openmpi", "mpicc.mpich", "mpicc", "mpicc_abi"];

const SOURCE: &str = "src/plugin.c";

fn main() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    for file in [SOURCE, "build.rs"] {
        println!("cargo:rerun-if-changed={file}");
    }
    for variable in VARIABLES.into_iter().chain(["PATH"]) {
        println!("cargo:rerun-if-env-changed={variable}");
    }
    let mut compilers: Vec<Vec<String>> = VARIABLES.iter().filter_map(|variable| named(variable)).collect();
    if is_native() {
        compilers.extend(COMPILERS.map(|compiler| vec![compiler.to_owned()]));
    }
    let mut table = "pub(crate) const PLUGINS: &[(&str, &[u8])] = &[\n".to_owned();
    for interface in INTERFACES {
        let file = out.join(format!("{interface}.so"));
        let is_of = |compiler: &&Vec<String>| interface_of(compiler).as_deref() == Some(interface);
        let built = compilers.iter().filter(is_of).any(|compiler| build(compiler, &file));
        if built {
            let file = file.to_str().expect("OUT_DIR is text");
            writeln!(table, "    ({interface:?}, include_bytes!({file:?})),").expect("a String grows");
        } else if interface != "standard" {
            // An MPI that is installed later changes one of these folders.
            for folder in env::split_paths(&env::var_os("PATH").unwrap_or_default()).filter(|folder| folder.is_dir()) {
                println!("cargo:rerun-if-changed={}", folder.display());
            }
        }
    }
    table.push_str("];\n");
    fs::write(out.join("plugins.rs"), table).expect("OUT_DIR can be written");
}

/// Returns the compiler that a variable names, and its options.
fn named(variable: &str) -> Option<Vec<String>> {
    let value = env::var(variable).ok().filter(|value| !value.is_empty())?;
    let words = if Path::new(&value).is_file() {
        vec![value.clone()]
    } else {
        value.split_whitespace().map(str::to_owned).collect()
    };
    if interface_of(&words).is_none() {
        println!("cargo:warning={variable}={value} compiles no program of an MPI that ringpull knows, and is not used");
    }
    Some(words)
}

/// Returns false if the program is for another kind of machine, because this machine's compilers do not know
/// the MPI there.
fn is_native() -> bool {
    let kind = |name| {
        let triple: String = env::var(name).unwrap_or_default();
        triple.split('-').next().map(str::to_owned).zip(triple.split_once("-linux-").map(|(_, libc)| libc.to_owned()))
    };
    kind("HOST") == kind("TARGET")
}

/// Returns the binary interface of the compiler's header, or nothing if there is no such compiler.
fn interface_of(compiler: &[String]) -> Option<String> {
    let (program, words) = compiler.split_first()?;
    let output = Command::new(program).args(words).args(["-E", "-DPROBE", SOURCE]).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let interface = text.lines().find_map(|line| line.trim().strip_prefix("ringpull interface "))?;
    INTERFACES.contains(&interface).then(|| interface.to_owned())
}

/// Compiles the plugin. Returns true if that succeeded. The plugin is not linked with the compiler's MPI,
/// because it uses the functions of the MPI that the process has loaded.
fn build(compiler: &[String], file: &Path) -> bool {
    let Some((program, words)) = compiler.split_first() else { return false };
    let object = file.with_extension("o");
    let linker =
        ["CC", "RUSTC_LINKER"].into_iter().find_map(|name| env::var(name).ok().filter(|value| !value.is_empty()));
    let linkers = linker.into_iter().chain(["cc".to_owned(), program.clone()]);
    let compiled = succeeds(
        Command::new(program)
            .args(words)
            .args(["-O2", "-fPIC", "-fno-stack-protector", "-c", SOURCE, "-o"])
            .arg(&object),
    );
    let linked = compiled
        && linkers.into_iter().any(|linker| {
            succeeds(Command::new(linker).args(["-shared", "-nostdlib", "-s", "-o"]).arg(file).arg(&object))
        });
    if !linked {
        println!(
            "cargo:warning=the plugin for MPI could not be made with {program}; see the output of cargo build -vv"
        );
    }
    linked
}

/// Runs a command, which prints its own errors.
fn succeeds(command: &mut Command) -> bool {
    command.status().is_ok_and(|status| status.success())
}
