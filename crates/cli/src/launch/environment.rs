//! The variables of the user's environment that processes on other hosts get, with every launcher. Variables
//! that belong to this host, to this login or to another job are not passed on.
//!
//! `PATH` and `LD_LIBRARY_PATH` are put before the values of the other host. So the Python of an active
//! virtual environment is found first, and programs that only the other host has are found too.

use std::collections::BTreeMap;

/// The variables whose values are put before the other host's own.
pub(crate) const IN_FRONT: [&str; 2] = ["PATH", "LD_LIBRARY_PATH"];

/// The names of variables that are not passed on. A name that ends with `*` stands for all names with this
/// beginning. In turn they belong to this host, to this login, to the user's account on this host, and to
/// MPI, a batch system or an operator.
const STAYS: [&str; 4] = [
    "HOST HOSTNAME HOSTTYPE MACHTYPE OSTYPE VENDOR TMP TMPDIR TEMP TEMPDIR RINGPULL_LOCAL_WORKERS RINGPULL_RACK \
     DMLC_NODE_HOST NVIDIA_VISIBLE_DEVICES NVIDIA_DRIVER_CAPABILITIES",
    "_ DISPLAY WAYLAND_DISPLAY XAUTHORITY WINDOWID DBUS_* SSH_* GPG_* KRB5CCNAME XDG_RUNTIME_DIR XDG_SESSION_* \
     XDG_SEAT* XDG_VTNR TMUX* STY TTY JOURNAL_STREAM INVOCATION_ID NOTIFY_SOCKET LISTEN_* SUDO_*",
    "HOME USER USERNAME LOGNAME UID EUID GROUP GROUPS SHELL SHELLOPTS MAIL PWD OLDPWD PPID SHLVL TMOUT ENV BASH*",
    "OMPI_* OPAL_* ORTE_* PMIX_* PRTE_* PMI_* HYD* MPI_LOCAL* SLURM* SBATCH_* SRUN_* PBS_* LSB_* LSF_* LS_* SGE_* PE _CONDOR_* FLUX_* PALS_* MV2_COMM_WORLD_* \
     PE_HOSTFILE JOB_ID NSLOTS NHOSTS NQUEUES K_MPI_JOB_ROLE POD_NAME POD_IP",
];

/// Returns true if a variable of this name is passed on. A shell can set only valid names.
pub(crate) fn is_passed_on(name: &str) -> bool {
    is_name(name) && !STAYS.iter().any(|names| is_among(names, name))
}

/// Returns true if a name is one of these, which blanks part and of which those that end with `*` are
/// beginnings.
pub(crate) fn is_among(names: &str, name: &str) -> bool {
    let is_it = |known: &str| known.strip_suffix('*').map_or(known == name, |beginning| name.starts_with(beginning));
    names.split_whitespace().any(is_it)
}

/// The variables of this process's environment that are passed on, by name. Values that are not text are left
/// out.
pub(crate) fn passed_on() -> BTreeMap<String, String> {
    let text =
        std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    text.filter(|(name, _)| is_passed_on(name)).collect()
}

/// The names of the variables that are not passed on.
pub(crate) fn kept_here() -> Vec<String> {
    let passed = passed_on();
    let names = std::env::vars_os().map(|(name, _)| name.to_string_lossy().into_owned());
    let mut kept: Vec<String> = names.filter(|name| !passed.contains_key(name)).collect();
    kept.sort();
    kept
}

/// Returns true if a shell can set a variable of this name.
pub(crate) fn is_name(name: &str) -> bool {
    let is_legal = |c: char| c.is_ascii_alphanumeric() || c == '_';
    name.chars().all(is_legal) && !name.starts_with(|c: char| c.is_ascii_digit()) && !name.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_is_passed_on_but_what_belongs_to_this_host_this_login_or_another_job() {
        let passed = "PATH PYTHONPATH VIRTUAL_ENV LD_LIBRARY_PATH OMP_NUM_THREADS HOROVOD_FUSION_THRESHOLD NCCL_DEBUG \
                      CUDA_VISIBLE_DEVICES WANDB_API_KEY RINGPULL_WARN DMLC_INTERFACE XDG_CACHE_HOME TERM HOSTS PERSON";
        assert_eq!(passed.split_whitespace().find(|name| !is_passed_on(name)), None);
        let stays = "HOSTNAME TMPDIR HOME PWD SSH_AUTH_SOCK DISPLAY XDG_RUNTIME_DIR OMPI_COMM_WORLD_RANK PMI_RANK \
                     SLURM_JOB_ID RINGPULL_RACK BASH_FUNC_module%% 1A a-b";
        assert_eq!(stays.split_whitespace().find(|name| is_passed_on(name)), None);
    }
}
