//! Herd in virtual time: one real node (store, sessions, engine) and several real clients in one thread, from a seed.
//!
//! A seed decides all: what is asked, how bytes are cut, who stalls, half-closes, leaves or resets, when time passes.
//! Checked are values and versions (`history.rs`), that a part is the one asked for, that a wait ends neither too early
//! nor long after the change (`session`), the budget, that every request is answered or its connection closed, and that
//! nothing is left when all clients have gone (`world.rs`). Not asked yet: methods, tokens, conditions, ranged puts,
//! listings, collections that come and go. A seed that fails does so again:
//! `herd-sim one --seed N`.
//!
//! Development only; callers: its binary, its test.

pub mod cli;
pub mod herd;
mod history;
mod random;
mod session;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs one seed. The error tells what was wrong; a panic is one too.
pub fn run(seed: u64) -> Result<(), String> {
    let run = catch_unwind(AssertUnwindSafe(|| world::run(seed)));
    run.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        Err(text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string)).unwrap_or_default())
    })
}

/// Seeds that are run for each planted bug before it counts as not found: of one node, and of herds.
#[cfg(herd_bugs)]
const SEEDS_MAX: (u64, u64) = (400, 2_000);

/// Plants each bug that is meant in turn and looks for it; what it found, by bug. None of them: not found.
#[cfg(herd_bugs)]
pub fn bugs(
    is_meant: impl Fn(herd_core::bugs::Bug) -> bool,
    mut found: impl FnMut(herd_core::bugs::Bug, Option<(u64, String)>),
) {
    use herd_core::bugs::{Bug, plant};
    let all = herd::Cut::default();
    let caches = herd::Cut { copies: Some(1), reigns: Some(true), ..all.clone() };
    for bug in Bug::ONE.into_iter().chain(Bug::HERD).filter(|bug| is_meant(*bug)) {
        plant(Some(bug));
        let is_caches = matches!(bug, Bug::EndlessCacheLease | Bug::LongCacheLease | Bug::UnsealedCache);
        let cut = if is_caches { &caches } else { &all };
        let is_herds = Bug::HERD.contains(&bug);
        let seeds = if is_herds { SEEDS_MAX.1 } else { SEEDS_MAX.0 };
        let run = |seed| if is_herds { herd::run(seed, cut).map(drop) } else { run(seed) };
        // This one is there for one check, which no other may stand in for.
        let is_own = |error: &String| bug != Bug::TwoPrimaries || error.contains(herd::BOTH_ACT);
        let is_meant = |error: &String| error != herd::UNCHANGED && is_own(error);
        let first = (0..seeds).find_map(|seed| Some((seed, run(seed).err().filter(is_meant)?)));
        plant(None);
        found(bug, first);
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn some_hundred_seeds_hold() {
        for seed in 0..if cfg!(debug_assertions) { 60 } else { 400 } {
            if let Err(error) = super::run(seed) {
                panic!("seed {seed}: {error}");
            }
        }
    }
}
