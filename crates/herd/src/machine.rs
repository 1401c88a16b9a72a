//! What this machine, or the control group this process is in, has for a node: memory and a name.

use std::fs;
use std::path::{Path, PathBuf};

/// Memory of the machine, or less if a control group (version 2) bounds it, in bytes.
pub(crate) fn memory_bytes() -> u64 {
    let machine = fs::read_to_string("/proc/meminfo").ok().and_then(|text| total_bytes(&text)).unwrap_or(2 << 30);
    let group = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let bounds = groups(&group).into_iter().filter_map(|group| {
        let path = Path::new("/sys/fs/cgroup").join(group).join("memory.max");
        fs::read_to_string(path).ok()?.trim().parse().ok()
    });
    bounds.fold(machine, u64::min)
}

/// The line `MemTotal` of `/proc/meminfo`, in bytes.
fn total_bytes(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

/// The groups of a process as `/proc/self/cgroup` tells them: its own and all above, each of which bounds it.
fn groups(text: &str) -> Vec<PathBuf> {
    let own = text.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or("");
    Path::new(own).ancestors().map(Path::to_path_buf).collect()
}

/// The machine's name.
pub(crate) fn name() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    if name.is_empty() { "node".into() } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_s_memory_is_read_from_its_line() {
        assert_eq!(total_bytes("MemFree: 1 kB\nMemTotal:       24025108 kB\n"), Some(24_025_108 * 1024));
        assert_eq!(total_bytes("MemTotal: lots\n"), None);
        assert_eq!(total_bytes(&format!("MemTotal: {} kB\n", u64::MAX)), None);
    }

    #[test]
    fn a_group_and_all_above_it_bound() {
        let paths = |text| groups(text).iter().map(|path| path.display().to_string()).collect::<Vec<_>>();
        assert_eq!(paths("1:cpu:/x\n0::/user.slice/herd.service\n"), ["user.slice/herd.service", "user.slice", ""]);
        assert_eq!(paths("0::/\n"), [""]);
        assert_eq!(paths(""), [""]);
    }
}
