//! The binary interfaces of MPI, and the names of their libraries.

use std::fmt;

/// A family of MPIs whose libraries can replace each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MpiFamily {
    /// Open MPI 4 and 5.
    OpenMpi,
    /// MPICH 3, 4 and 5, Intel MPI, and others with their interface.
    Mpich,
    /// Libraries that have the standard interface of MPI 5, beside their own.
    Standard,
}

impl MpiFamily {
    /// All families, in the order in which they are tried.
    pub(crate) const ALL: [MpiFamily; 3] = [MpiFamily::OpenMpi, MpiFamily::Mpich, MpiFamily::Standard];

    /// The names under which the system's loader knows the family's library.
    pub(crate) fn libraries(self) -> &'static [&'static str] {
        match self {
            MpiFamily::OpenMpi => &["libmpi.so.40"],
            // Debian's MPICH has the second one.
            MpiFamily::Mpich => &["libmpi.so.12", "libmpich.so.12"],
            MpiFamily::Standard => &["libmpi_abi.so.0"],
        }
    }

    /// Returns the family of a library's file, by its name.
    pub(crate) fn of_file(name: &str) -> Option<Self> {
        MpiFamily::ALL.into_iter().find(|family| {
            family
                .libraries()
                .iter()
                .any(|library| name.strip_prefix(library).is_some_and(|rest| rest.is_empty() || rest.starts_with('.')))
        })
    }

    /// Returns the family of a launcher's program, by its name, if the name shows it. `mpirun` does not.
    pub(crate) fn of_launcher(program: &str) -> Option<Self> {
        match program {
            "orterun" | "orted" | "prterun" | "prted" | "prte" | "mpirun.openmpi" | "mpiexec.openmpi" => {
                Some(MpiFamily::OpenMpi)
            }
            "hydra_pmi_proxy" | "hydra_bstrap_proxy" | "mpiexec.hydra" | "mpirun.mpich" | "mpiexec.mpich" => {
                Some(MpiFamily::Mpich)
            }
            _ => None,
        }
    }

    /// The name of the plugin that is built against the family's interface.
    pub(crate) fn interface(self) -> &'static str {
        match self {
            MpiFamily::OpenMpi => "openmpi",
            MpiFamily::Mpich => "mpich",
            MpiFamily::Standard => "standard",
        }
    }
}

impl fmt::Display for MpiFamily {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            MpiFamily::OpenMpi => "Open MPI",
            MpiFamily::Mpich => "MPICH or Intel MPI",
            MpiFamily::Standard => "an MPI with the standard interface",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_belongs_to_the_family_that_its_name_says() {
        for (name, family) in [
            ("libmpi.so.40", Some(MpiFamily::OpenMpi)),
            ("libmpi.so.40.30.4", Some(MpiFamily::OpenMpi)),
            ("libmpi.so.12", Some(MpiFamily::Mpich)),
            ("libmpi.so.12.0.0", Some(MpiFamily::Mpich)),
            ("libmpich.so.12.2.2", Some(MpiFamily::Mpich)),
            ("libmpi.so.120", None),
            ("libmpi.so", None),
            ("libmpi_abi.so.0", Some(MpiFamily::Standard)),
            ("libmpi_cxx.so.40", None),
            ("libmpichfort.so.12", None),
        ] {
            assert_eq!(MpiFamily::of_file(name), family, "{name}");
        }
    }
}
