//! The binary interfaces of MPI, and the names of their libraries.

use std::fmt;

/// A family of MPIs whose libraries can replace each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Family {
    /// Open MPI 4 and 5.
    OpenMpi,
    /// MPICH 3, 4 and 5, Intel MPI, and others of that interface.
    Mpich,
    /// Libraries with the standard interface of MPI 5, beside their own.
    Standard,
}

impl Family {
    /// All families, in the order in which they are tried.
    pub(crate) const ALL: [Family; 3] = [Family::OpenMpi, Family::Mpich, Family::Standard];

    /// The names under which the system's loader knows its library.
    pub(crate) fn libraries(self) -> &'static [&'static str] {
        match self {
            Family::OpenMpi => &["libmpi.so.40"],
            // Debian's MPICH has the second one.
            Family::Mpich => &["libmpi.so.12", "libmpich.so.12"],
            Family::Standard => &["libmpi_abi.so.0"],
        }
    }

    /// The family of a library's file, by its name.
    pub(crate) fn of_file(name: &str) -> Option<Self> {
        Family::ALL.into_iter().find(|family| {
            family
                .libraries()
                .iter()
                .any(|library| name.strip_prefix(library).is_some_and(|rest| rest.is_empty() || rest.starts_with('.')))
        })
    }

    /// The family of a launcher's program, by its name, if the name says so: `mpirun` does not.
    pub(crate) fn of_launcher(program: &str) -> Option<Self> {
        match program {
            "orterun" | "orted" | "prterun" | "prted" | "prte" | "mpirun.openmpi" | "mpiexec.openmpi" => {
                Some(Family::OpenMpi)
            }
            "hydra_pmi_proxy" | "hydra_bstrap_proxy" | "mpiexec.hydra" | "mpirun.mpich" | "mpiexec.mpich" => {
                Some(Family::Mpich)
            }
            _ => None,
        }
    }

    /// The name of the plugin that is built against it.
    pub(crate) fn interface(self) -> &'static str {
        match self {
            Family::OpenMpi => "openmpi",
            Family::Mpich => "mpich",
            Family::Standard => "standard",
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Family::OpenMpi => "Open MPI",
            Family::Mpich => "MPICH or Intel MPI",
            Family::Standard => "an MPI with the standard interface",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_belongs_to_the_family_that_its_name_says() {
        for (name, family) in [
            ("libmpi.so.40", Some(Family::OpenMpi)),
            ("libmpi.so.40.30.4", Some(Family::OpenMpi)),
            ("libmpi.so.12", Some(Family::Mpich)),
            ("libmpi.so.12.0.0", Some(Family::Mpich)),
            ("libmpich.so.12.2.2", Some(Family::Mpich)),
            ("libmpi.so.120", None),
            ("libmpi.so", None),
            ("libmpi_abi.so.0", Some(Family::Standard)),
            ("libmpi_cxx.so.40", None),
            ("libmpichfort.so.12", None),
        ] {
            assert_eq!(Family::of_file(name), family, "{name}");
        }
    }
}
