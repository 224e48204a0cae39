//! The memory limit of this process's control group, and the processes that the kernel has killed because of
//! it.
//!
//! Such a rank ends by signal 9, as if a person had killed it, and its host reports nothing else.

use std::path::{Path, PathBuf};

/// The control group of this process.
#[derive(Debug)]
pub(super) struct MemoryLimit {
    group: MemoryGroup,
    /// The number of kills when this value was made.
    before: u64,
}

/// The two files of a group: the count of kills, in a line `oom_kill N`, and the limit.
#[derive(Debug)]
struct MemoryGroup {
    kills: PathBuf,
    limit: PathBuf,
}

impl MemoryLimit {
    /// Finds the group of this process, in version 2 or 1 of the kernel's control groups.
    pub(super) fn of_this_process() -> Option<Self> {
        let own = std::fs::read_to_string("/proc/self/cgroup").ok()?;
        Self::of(&own, Path::new("/sys/fs/cgroup"))
    }

    /// `own` has a line `NUMBER:CONTROLLERS:PATH` for each hierarchy. Containers see their group as the root.
    fn of(own: &str, root: &Path) -> Option<Self> {
        let path_in = |controller: &str| {
            let lines = own.lines().filter_map(|line| line.splitn(3, ':').skip(1).collect::<Vec<_>>().try_into().ok());
            lines.into_iter().find_map(|[controllers, path]: [&str; 2]| {
                controllers.split(',').any(|it| it == controller).then(|| path.trim_start_matches('/').to_owned())
            })
        };
        let group = |folder: PathBuf, kills: &str, limit: &str| MemoryGroup {
            kills: folder.join(kills),
            limit: folder.join(limit),
        };
        let two = [path_in("").unwrap_or_default(), String::new()].map(|path| root.join(path));
        let one = [path_in("memory").unwrap_or_default(), String::new()].map(|path| root.join("memory").join(path));
        let all = two
            .map(|folder| group(folder, "memory.events", "memory.max"))
            .into_iter()
            .chain(one.map(|folder| group(folder, "memory.oom_control", "memory.limit_in_bytes")));
        all.into_iter().find_map(|group| Some(MemoryLimit { before: group.kills()?, group }))
    }

    /// The text about kills since this value was made, which follows the name of a killed process. `None` if
    /// there were no kills.
    pub(super) fn kills(&self) -> Option<String> {
        (self.group.kills()? > self.before).then(|| {
            let limit =
                std::fs::read_to_string(&self.group.limit).ok().and_then(|text| text.trim().parse::<u64>().ok());
            let limit = limit.map_or(String::new(), |bytes| format!(", {} MiB", bytes >> 20));
            format!(
                "was killed by the kernel: its host or container has reached its limit of memory{limit}\n  hint: raise \
                 the limit of the container or of the batch job, or start fewer ranks in it"
            )
        })
    }
}

impl MemoryGroup {
    fn kills(&self) -> Option<u64> {
        let text = std::fs::read_to_string(&self.kills).ok()?;
        text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kills_of_either_version_are_found_in_the_processs_own_group_or_at_the_root_of_a_container() {
        let own = "5:devices:/x\n4:memory,hugetlb:/jobs/a\n0::/unified/b\n";
        for (folder, kills, limit) in [
            ("unified/b", "memory.events", "memory.max"),
            ("", "memory.events", "memory.max"),
            ("memory/jobs/a", "memory.oom_control", "memory.limit_in_bytes"),
            ("memory", "memory.oom_control", "memory.limit_in_bytes"),
        ] {
            let root = tempfile::tempdir().unwrap();
            assert!(MemoryLimit::of(own, root.path()).is_none());
            let folder = root.path().join(folder);
            std::fs::create_dir_all(&folder).unwrap();
            let write = |name: &str, text: &str| std::fs::write(folder.join(name), text).unwrap();
            write(kills, "low 0\noom_kill 2\n");
            let found = MemoryLimit::of(own, root.path()).unwrap();
            assert_eq!(found.kills(), None, "those before are of others");
            write(kills, "low 0\noom_kill 3\n");
            write(limit, "268435456\n");
            assert!(found.kills().unwrap().contains("its limit of memory, 256 MiB\n"), "{folder:?}");
            write(limit, "max\n");
            assert!(found.kills().unwrap().contains("its limit of memory\n"), "{folder:?}");
        }
    }
}
