//! The two binary interfaces of MPI, and the names of their libraries.

use std::fmt;

/// MPIs whose libraries can take each other's place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// Open MPI 4 and 5.
    OpenMpi,
    /// MPICH 3, 4 and 5, Intel MPI, and others of that interface.
    Mpich,
}

impl Family {
    /// Both of them.
    pub const ALL: [Family; 2] = [Family::OpenMpi, Family::Mpich];

    /// The names under which the system's loader knows its library.
    pub fn libraries(self) -> &'static [&'static str] {
        match self {
            Family::OpenMpi => &["libmpi.so.40"],
            // Debian's MPICH has the second one.
            Family::Mpich => &["libmpi.so.12", "libmpich.so.12"],
        }
    }

    /// The family of a library's file, by its name.
    pub fn of_file(name: &str) -> Option<Self> {
        Family::ALL.into_iter().find(|family| {
            family
                .libraries()
                .iter()
                .any(|library| name.strip_prefix(library).is_some_and(|rest| rest.is_empty() || rest.starts_with('.')))
        })
    }

    /// The family of a launcher's program, by its name, if the name says so: `mpirun` does not.
    pub fn of_launcher(program: &str) -> Option<Self> {
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

    /// The folder of the code that is built against it.
    pub fn folder(self) -> &'static str {
        match self {
            Family::OpenMpi => "openmpi",
            Family::Mpich => "mpich",
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Family::OpenMpi => "Open MPI",
            Family::Mpich => "MPICH or Intel MPI",
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
            ("libmpi_cxx.so.40", None),
            ("libmpichfort.so.12", None),
        ] {
            assert_eq!(Family::of_file(name), family, "{name}");
        }
    }
}
