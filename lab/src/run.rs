//! What every comparison needs, be it a bench or a figure: the programs, the order of the arms, and how a run that
//! others disturbed is taken again.

use std::path::PathBuf;

use clap::Args;
use serde_json::{Value, json};

use crate::error::{Error, Result};
use crate::peers::{self, find_program};
use crate::processor::ATTEMPTS;

/// The servers' programs.
#[derive(Args, Clone, Debug)]
pub(crate) struct Programs {
    /// Herd's binary; without it only the peers are measured.
    #[arg(long)]
    pub(crate) herd: Option<PathBuf>,
    /// memcached's binary [default: the one on PATH].
    #[arg(long)]
    pub(crate) memcached: Option<PathBuf>,
    /// redis-server's binary [default: the one on PATH].
    #[arg(long)]
    pub(crate) redis: Option<PathBuf>,
    /// pogocache's binary; without it there is no such arm.
    #[arg(long)]
    pub(crate) pogocache: Option<PathBuf>,
    /// nginx's binary [default: the one on PATH].
    #[arg(long)]
    pub(crate) nginx: Option<PathBuf>,
    /// etcd's binary [default: the one on PATH].
    #[arg(long)]
    pub(crate) etcd: Option<PathBuf>,
}

impl Programs {
    /// Each program's name and path, those on PATH found.
    fn found(&self) -> [(&'static str, Option<PathBuf>); 7] {
        let or_path = |given: &Option<PathBuf>, name: &str| given.clone().or_else(|| find_program(name));
        [
            ("herd", self.herd.clone()),
            ("memcached", or_path(&self.memcached, "memcached")),
            ("redis", or_path(&self.redis, "redis-server")),
            ("pogocache", self.pogocache.clone()),
            ("nginx", or_path(&self.nginx, "nginx")),
            ("etcd", or_path(&self.etcd, "etcd")),
            ("iperf3", find_program("iperf3")),
        ]
    }

    /// A program's path, if it was given or is on PATH.
    pub(crate) fn path(&self, wanted: &str) -> Option<PathBuf> {
        self.found().into_iter().find(|(name, _)| *name == wanted).and_then(|(_, path)| path)
    }
}

/// Prints, and gives, what each program says it is.
pub(crate) fn print_versions(programs: &Programs) -> serde_json::Map<String, Value> {
    let versions = versions(programs);
    versions.iter().for_each(|version| print!("{}", version_line(version)));
    versions.into_iter().map(|(name, version)| (name.to_owned(), json!(version))).collect()
}

/// What each program says it is; `None`: it is absent.
pub(crate) fn versions(programs: &Programs) -> Vec<(&'static str, Option<String>)> {
    let found = programs.found().into_iter();
    found.map(|(name, program)| (name, program.map(|program| peers::version(&program)))).collect()
}

/// That as people read it.
pub(crate) fn version_line((name, version): &(&'static str, Option<String>)) -> String {
    format!("{name:<10} {}\n", version.as_deref().unwrap_or("absent"))
}

/// `items` in the order of turn `turn`: a Williams design, in which every arm stands in every place, and behind every
/// other, equally often; each second turn goes the way back. Whole after as many turns as there are items, twice as
/// many where their number is odd.
pub(crate) fn alternated<T>(items: &[T], turn: usize) -> impl Iterator<Item = &T> {
    let (len, back) = (items.len(), turn % 2 == 1);
    (0..len).map(move |at| {
        let at = if back { len - 1 - at } else { at };
        // 0, then from both ends: last, first, last but one, second ..
        let first = if at % 2 == 1 { len - at.div_ceil(2) } else { at / 2 };
        &items[(first + turn / 2) % len]
    })
}

/// A run, taken until it counted, and why earlier tries of it did not.
pub(crate) struct Taken<T> {
    /// What was measured; an error is the server's, the client's, or that no try counted.
    pub(crate) outcome: Result<T>,
    /// The reason of each try that was void.
    pub(crate) voids: Vec<String>,
}

/// Takes a run until it counts. `once` gives what it measured and, where others disturbed it, the reason for which it
/// is void. An error is never tried again, nor is an answer that did not come: those are what the run was to find.
/// `pause` waits until the others are quiet.
pub(crate) fn take<T>(
    mut pause: impl FnMut() -> Result<()>,
    mut once: impl FnMut() -> Result<(T, Option<String>)>,
) -> Taken<T> {
    let mut voids = Vec::new();
    while voids.len() < ATTEMPTS {
        match once() {
            Ok((outcome, None)) => return Taken { outcome: Ok(outcome), voids },
            Ok((_, Some(reason))) => voids.push(reason),
            Err(error) => return Taken { outcome: Err(error), voids },
        }
        if let Err(error) = pause() {
            return Taken { outcome: Err(error), voids };
        }
    }
    Taken { outcome: Err(Error::new(format!("void {ATTEMPTS} times: this machine is too busy"))), voids }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn every_arm_follows_every_other_equally_often() {
        for len in 1..=9_usize {
            let items: Vec<usize> = (0..len).collect();
            let turns = if len % 2 == 0 { len } else { 2 * len };
            let (mut follows, mut places) = (BTreeMap::new(), BTreeMap::new());
            for turn in 0..turns {
                let order: Vec<usize> = alternated(&items, turn).copied().collect();
                for pair in order.windows(2) {
                    *follows.entry((pair[0], pair[1])).or_insert(0) += 1;
                }
                for place in order.into_iter().enumerate() {
                    *places.entry(place).or_insert(0) += 1;
                }
            }
            assert_eq!(follows.len(), len * (len - 1), "{len} arms: {follows:?}");
            assert!(follows.values().all(|count| *count == turns / len), "{len} arms: {follows:?}");
            assert_eq!(places.len(), len * len, "{len} arms: {places:?}");
            assert!(places.values().all(|count| *count == turns / len), "{len} arms: {places:?}");
        }
        assert_eq!(alternated(&[0; 0], 3).count(), 0);
    }

    #[test]
    fn void_runs_are_told_and_errors_are_not_tried_again() {
        let (mut tries, mut pauses) = (0, 0);
        let pause = || {
            pauses += 1;
            Ok(())
        };
        let taken = take(pause, || {
            tries += 1;
            Ok((tries, (tries < 3).then(|| format!("void {tries}"))))
        });
        assert_eq!(
            (taken.outcome.expect("the third"), taken.voids),
            (3, vec!["void 1".to_owned(), "void 2".to_owned()])
        );
        assert_eq!(pauses, 2);
        let mut tries = 0;
        let taken = take(
            || Ok(()),
            || {
                tries += 1;
                Err::<((), _), _>(Error::new("2 requests unanswered"))
            },
        );
        assert!(taken.outcome.is_err() && taken.voids.is_empty() && tries == 1);
        let taken = take(|| Ok(()), || Ok(((), Some("stolen".into()))));
        assert!(taken.outcome.is_err() && taken.voids.len() == ATTEMPTS, "the last try is held to the same measure");
    }
}
