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
pub(crate) enum Kind {
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
    /// A node comes while the others serve, and gets copies of what they keep.
    Join,
    /// A node drains, ends, and is forgotten.
    Drain,
    /// `kill -9` of the etcd that keeps the map, and a start anew.
    EtcdKill,
    /// SIGSTOP of that.
    EtcdPause,
}

/// What befalls a herd while copies move, because a node has come or drains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Within {
    Nothing,
    /// `kill -9` of the node that comes or drains, and a start anew.
    KillMoving,
    /// Of another one, to or from which copies go.
    KillOther,
    /// SIGSTOP of the node that comes or drains, for less than a lease.
    PauseMoving,
    /// The drain is called off; a node that comes is left alone.
    Cancel,
}

/// One fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) kind: Kind,
    /// Decides which node, of those there are.
    pub(crate) draw: u64,
    /// How long it is dead, stopped or cut off.
    pub(crate) time_ms: u64,
    /// Of a node that comes or drains.
    pub(crate) within: Within,
    /// Whether replicas are made to refuse writes before it.
    pub(crate) fills: bool,
}

/// How often each kind is in a block, and how long it takes.
const SHARES: [(Kind, usize, (u64, u64)); 8] = [
    (Kind::Kill, 1, (100, 3_500)),
    (Kind::KillPending, 4, (100, 3_500)),
    (Kind::Pause, 1, (300, 1_900)),
    (Kind::Outlast, 4, (3_500, 5_300)),
    (Kind::Cut, 1, (300, 4_500)),
    (Kind::Slow, 1, (500, 4_000)),
    (Kind::Warden, 1, (100, 3_000)),
    (Kind::EtcdKill, 1, (300, 5_000)),
];
/// Steps of a block.
pub(crate) const BLOCK: usize = 14;
/// Replicas are made to refuse before each so many steps.
const FILLS: usize = 4;
/// A herd lives for so many steps; then another one is begun, with nothing in it.
pub(crate) const LIFE: usize = 40;
/// At these steps of a herd's life another node comes, and at these one drains; at a later one a node is dead for so
/// long that another gets copies of what it kept.
const JOINS_AT: [usize; 3] = [3, 15, 31];
const DRAINS_AT: [usize; 3] = [6, 23, 36];
const MISSED_AT: usize = 20;
const MISSED_MS: u64 = 13_000;
/// While copies move each of these comes as often.
const WITHIN: [Within; 5] =
    [Within::KillMoving, Within::KillOther, Within::Nothing, Within::PauseMoving, Within::Cancel];

/// What a herd has that can be disturbed, beside its nodes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Has {
    /// Links that can be cut.
    pub(crate) links: bool,
    pub(crate) etcd: bool,
}

/// Step `number` of a seed, of a herd that has these.
pub(crate) fn step(seed: u64, number: usize, has: Has) -> Step {
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
    let (kind, (least, most)) = order[place];
    let (draw, time) = draws[place];
    let kind = match number % LIFE {
        at if JOINS_AT.contains(&at) => Kind::Join,
        at if DRAINS_AT.contains(&at) => Kind::Drain,
        _ => kind.of_herd(has, draw),
    };
    let within = WITHIN[(draw / 5 % WITHIN.len() as u64) as usize];
    let step = Step { kind, draw, time_ms: least + time % (most - least), within, fills: number % FILLS == 1 };
    if number % LIFE == MISSED_AT { Step { kind: Kind::Kill, time_ms: MISSED_MS, ..step } } else { step }
}

impl Kind {
    /// What befalls a herd in place of what it has not.
    fn of_herd(self, has: Has, draw: u64) -> Self {
        match self {
            Self::Cut if !has.links => Self::KillPending,
            Self::Slow if !has.links => Self::Pause,
            Self::EtcdKill if !has.etcd => Self::Kill,
            Self::EtcdKill if draw.is_multiple_of(2) => Self::EtcdPause,
            kind => kind,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Has = Has { links: true, etcd: true };

    fn steps(seed: u64, numbers: std::ops::Range<usize>, has: Has) -> Vec<Step> {
        numbers.map(|number| step(seed, number, has)).collect()
    }

    #[test]
    fn a_step_depends_on_seed_and_number_alone() {
        let all = steps(7, 0..60, ALL);
        assert_eq!(step(7, 41, ALL), all[41]);
        assert_ne!(all, steps(8, 0..60, ALL));
        assert_ne!(all[..BLOCK], all[2 * BLOCK..3 * BLOCK], "blocks have orders of their own");
    }

    #[test]
    fn each_block_has_its_shares() {
        assert_eq!(SHARES.iter().map(|share| share.1).sum::<usize>(), BLOCK);
        let is_its_own = |number: &usize| {
            let at = number % LIFE;
            !JOINS_AT.contains(&at) && !DRAINS_AT.contains(&at) && at != MISSED_AT
        };
        for block in 0..30 {
            let numbers = (block * BLOCK..(block + 1) * BLOCK).filter(is_its_own);
            let own: Vec<Step> = numbers.map(|number| step(3, number, ALL)).collect();
            for (kind, share, (least, most)) in SHARES {
                let is_it = |it: Kind| it == kind || kind == Kind::EtcdKill && it == Kind::EtcdPause;
                let of: Vec<&Step> = own.iter().filter(|step| is_it(step.kind)).collect();
                assert!(of.len() <= share && of.len() + BLOCK - own.len() >= share, "{kind:?} in block {block}");
                assert!(of.iter().all(|step| (least..most).contains(&step.time_ms)));
            }
        }
    }

    #[test]
    fn what_is_not_there_is_left_alone() {
        let none = steps(5, 0..200, Has { links: false, etcd: false });
        let gone = [Kind::Cut, Kind::Slow, Kind::EtcdKill, Kind::EtcdPause];
        assert!(none.iter().all(|step| !gone.contains(&step.kind)));
        let all = steps(5, 0..200, ALL);
        assert!(gone.iter().all(|kind| all.iter().any(|step| step.kind == *kind)));
    }

    #[test]
    fn copies_move_in_each_life_and_in_the_short_form() {
        for life in 0..5 {
            let life = steps(11, life * LIFE..(life + 1) * LIFE, ALL);
            let count = |kind| life.iter().filter(|step| step.kind == kind).count();
            assert_eq!((count(Kind::Join), count(Kind::Drain)), (JOINS_AT.len(), DRAINS_AT.len()));
        }
        let within: Vec<Within> = steps(11, 0..200, ALL).iter().map(|step| step.within).collect();
        assert!(WITHIN.iter().all(|it| within.contains(it)));
        let kinds: Vec<Kind> = steps(1, 0..8, ALL).iter().map(|step| step.kind).collect();
        assert!(kinds.contains(&Kind::Join) && kinds.contains(&Kind::Drain));
    }
}
