//! What /proc says about a process: resident memory, its peak, and CPU time through [`crate::sys`].

use std::fs;

use crate::error::{Context, Error, Result};
use crate::sys;

/// Sum of the CPU time of `pids`, in nanoseconds.
pub(crate) fn cpu_ns(pids: &[i32]) -> Result<u64> {
    pids.iter().try_fold(0, |sum, &pid| {
        let used_ns = sys::process_cpu_ns(pid).during(|| format!("CPU clock of process {pid}"))?;
        Ok(sum + used_ns)
    })
}

/// Resident bytes of `pid` now (`Rss` of smaps_rollup, which walks the pages and so is exact).
pub(crate) fn resident_bytes(pid: i32) -> Result<u64> {
    field_bytes(&format!("/proc/{pid}/smaps_rollup"), "Rss:")
}

/// Peak resident bytes of `pid` (`VmHWM`).
pub(crate) fn peak_resident_bytes(pid: i32) -> Result<u64> {
    field_bytes(&format!("/proc/{pid}/status"), "VmHWM:")
}

fn field_bytes(path: &str, field: &str) -> Result<u64> {
    let text = fs::read_to_string(path).during(|| format!("read {path}"))?;
    parse_kib_field(&text, field).ok_or_else(|| Error::new(format!("{path} has no field {field}")))
}

/// Bytes of a `Name:  123 kB` line.
fn parse_kib_field(text: &str, field: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(field))?;
    let kib: u64 = line.split_ascii_whitespace().next()?.parse().ok()?;
    Some(kib * 1_024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_kib_fields() {
        let text = "head\nRss:              2048 kB\nPss:  7 kB\n";
        assert_eq!(parse_kib_field(text, "Rss:"), Some(2_048 * 1_024));
        assert_eq!(parse_kib_field(text, "Swap:"), None);
    }

    #[test]
    fn own_process_has_memory_and_time() {
        let pid = i32::try_from(std::process::id()).expect("pids are small");
        assert!(resident_bytes(pid).expect("own smaps") > 100_000);
        assert!(peak_resident_bytes(pid).expect("own status") > 100_000);
        let before = cpu_ns(&[pid]).expect("own clock");
        let mut x = 1u64;
        for i in 0..2_000_000u64 {
            x = std::hint::black_box(x.wrapping_mul(31).wrapping_add(i));
        }
        assert!(cpu_ns(&[pid]).expect("own clock") > before, "{x}");
    }
}
