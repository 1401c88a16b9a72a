//! Which faults befall a herd, in which order and for how long: drawn from a seed, and from it alone. Pure.
//!
//! Faults come in blocks. A block has each kind as often as its share says, in an order of its own, so that whatever a
//! run must have seen it sees from its first minutes on. Step `n` of a seed is the same however long the run is, and
//! whatever came before it: so a run can go on where it was broken off.

use serde::{Deserialize, Serialize};

use crate::values::Random;

/// What befalls a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Kind {
    /// `kill -9`, and a start anew later.
    Kill,
    /// The same while another member of its groups is stopped for a moment, so that writes are pending at it.
    KillPending,
    /// SIGSTOP for less than a lease.
    Pause,
    /// SIGSTOP for longer than a lease, with gets in its sockets while their objects are written elsewhere.
    Outlast,
    /// Its cable is pulled.
    Cut,
    /// Its cable has 1 Mbit/s.
    Slow,
    /// `kill -9` of the warden's node, and a start anew.
    Warden,
    /// A node comes while the others serve.
    Join,
}

/// One fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) kind: Kind,
    /// Decides which node, of those there are.
    pub(super) draw: u64,
    /// How long it is dead, stopped or cut off.
    pub(super) time_ms: u64,
    /// Whether replicas are made to refuse writes before it.
    pub(super) fills: bool,
}

/// How often each kind is in a block, and how long it takes.
const SHARES: [(Kind, usize, (u64, u64)); 7] = [
    (Kind::Kill, 1, (100, 3_500)),
    (Kind::KillPending, 3, (100, 3_500)),
    (Kind::Pause, 1, (300, 1_900)),
    (Kind::Outlast, 2, (3_200, 6_000)),
    (Kind::Cut, 1, (300, 4_500)),
    (Kind::Slow, 1, (500, 4_000)),
    (Kind::Warden, 1, (100, 3_000)),
];
/// Steps of a block.
pub(super) const BLOCK: usize = 10;
/// Replicas are made to refuse before each so many steps.
const FILLS: usize = 4;
/// A herd lives for so many steps; then another one is begun, with nothing in it.
pub(super) const LIFE: usize = 40;
/// At this step of a herd's life another node comes; at a later one a node is dead for so long that the other gets
/// copies of what it kept.
const JOINS_AT: usize = 17;
const MISSED_AT: usize = 20;
const MISSED_MS: u64 = 13_000;

/// Step `number` of a seed, of a herd whose links can be cut or not.
pub(super) fn step(seed: u64, number: usize, has_links: bool) -> Step {
    let (block, place) = (number / BLOCK, number % BLOCK);
    let mut random = Random::new(seed.wrapping_mul(0x9e37_79b9).wrapping_add(block as u64));
    let mut order: Vec<(Kind, (u64, u64))> = Vec::new();
    for (kind, share, times) in SHARES {
        order.extend((0..share).map(|_| (kind, times)));
    }
    for last in (1..order.len()).rev() {
        order.swap(last, random.below(last as u64 + 1) as usize);
    }
    let draws: Vec<(u64, u64)> = order.iter().map(|_| (random.below(1 << 32), random.below(1 << 32))).collect();
    let (mut kind, (least, most)) = order[place];
    if number % LIFE == JOINS_AT {
        kind = Kind::Join;
    }
    kind = if has_links { kind } else { without_links(kind) };
    let (draw, time) = draws[place];
    let step = Step { kind, draw, time_ms: least + time % (most - least), fills: number % FILLS == 1 };
    if number % LIFE == MISSED_AT { Step { kind: Kind::Kill, time_ms: MISSED_MS, ..step } } else { step }
}

/// What befalls a herd on loopback in place of what needs links of our own.
fn without_links(kind: Kind) -> Kind {
    match kind {
        Kind::Cut => Kind::KillPending,
        Kind::Slow => Kind::Pause,
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_depends_on_seed_and_number_alone() {
        let all: Vec<Step> = (0..60).map(|number| step(7, number, true)).collect();
        assert_eq!(step(7, 41, true), all[41]);
        assert_ne!(all, (0..60).map(|number| step(8, number, true)).collect::<Vec<_>>());
        assert_ne!(all[..10], all[20..30], "blocks have orders of their own");
    }

    #[test]
    fn each_block_has_its_shares() {
        assert_eq!(SHARES.iter().map(|share| share.1).sum::<usize>(), BLOCK);
        for block in 0..30 {
            let numbers = (block * BLOCK..(block + 1) * BLOCK).filter(|number| number % LIFE != MISSED_AT);
            let steps: Vec<Step> = numbers.map(|number| step(3, number, true)).collect();
            for (kind, share, (least, most)) in SHARES {
                let of: Vec<&Step> = steps.iter().filter(|step| step.kind == kind).collect();
                let others = BLOCK - steps.len() + steps.iter().filter(|step| step.kind == Kind::Join).count();
                assert!(of.len() <= share && of.len() + others >= share, "{kind:?} in block {block}");
                assert!(of.iter().all(|step| (least..most).contains(&step.time_ms)));
            }
        }
    }

    #[test]
    fn links_are_left_alone_where_there_are_none() {
        let mut kinds = (0..200).map(|number| step(5, number, false).kind);
        assert!(kinds.all(|kind| !matches!(kind, Kind::Cut | Kind::Slow)));
    }
}
