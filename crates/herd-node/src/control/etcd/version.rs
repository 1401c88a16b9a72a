//! Which versions of etcd never read stale.
//!
//! Of earlier ones a member that stood still for a while may answer a linearizable read with what was before (etcd's
//! issue 20418): a warden would go by a map that was replaced.

/// The first versions of each line in which it is mended.
const MENDED: [(u32, u32, u32); 3] = [(3, 4, 42), (3, 5, 28), (3, 6, 9)];

/// What a version is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fitness {
    /// It reads what is.
    Fit,
    /// It may read what was.
    Stale,
    /// It is no version of etcd.
    Unknown,
}

/// Judges a version as a member tells it: `3.5.28`, perhaps with something behind.
pub(super) fn judge(version: &str) -> Fitness {
    let Some((major, minor, patch)) = numbers(version) else { return Fitness::Unknown };
    let is_line = |line: &&(u32, u32, u32)| (line.0, line.1) == (major, minor);
    // What is to come with a number is not there yet: 3.6.9-rc.1 is before 3.6.9.
    let is_early = version.contains('-');
    match MENDED.iter().find(is_line) {
        Some(line) if (patch, !is_early) >= (line.2, true) => Fitness::Fit,
        Some(_) => Fitness::Stale,
        None if (major, minor) > (3, 6) => Fitness::Fit,
        None => Fitness::Stale,
    }
}

/// What is said of one that may read stale.
pub(super) fn stale(version: &str) -> String {
    format!(
        "it is of version {version}, which may read old data: install 3.6.9, 3.5.28, 3.4.42 or later, or \
         set HERD_ETCD_FORCE=1 for a trial with this one"
    )
}

fn numbers(version: &str) -> Option<(u32, u32, u32)> {
    let plain = version.split(['-', '+']).next()?;
    let mut numbers = plain.split('.').map(str::parse);
    let mut next = || numbers.next()?.ok();
    let all = (next()?, next()?, next()?);
    numbers.next().is_none().then_some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_that_read_stale_are_known() {
        for fit in ["3.4.42", "3.4.43", "3.5.28", "3.6.9", "3.6.10+abc", "3.7.0", "3.7.1-rc.0", "4.0.0"] {
            assert_eq!(judge(fit), Fitness::Fit, "{fit}");
        }
        for stale in ["3.4.23", "3.4.41", "3.5.0", "3.5.27", "3.6.8", "3.6.9-rc.1", "3.3.27", "2.3.8"] {
            assert_eq!(judge(stale), Fitness::Stale, "{stale}");
        }
        for unknown in ["", "3.6", "3.6.x", "3.6.9.1", "etcd"] {
            assert_eq!(judge(unknown), Fitness::Unknown, "{unknown}");
        }
    }
}
