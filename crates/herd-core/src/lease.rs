//! Leases of nodes (docs/decisions/012): until when a node may answer reads of objects that others keep too, without
//! asking these whether somebody else decides by now. Pure: time is handed in, of one clock that all threads of the
//! node share, ns.
//!
//! A node asks with each beat to the warden's node ([`Grants`]); the answer may be a [`Grant`].
//!
//! * It is good until half of [`LEASE_MS`] after the beat was **sent**, by the clock of who asked
//!   ([`Grant::until_ns`]). The warden takes it to last for all of that from when the beat **came**, by its own. So one
//!   of the clocks may go twice as fast as the other.
//! * It counts for the map that its holder has, if that is not of a lower epoch, nor of a higher term.
//! * Grants are given for half of [`LEASE_MS`] after the store was **asked** whether the term is in office still, and
//!   not at all once it says that it is not. So the last of them is over before a warden that has just come into office
//!   takes out anybody who is silent: that one counts from when the store's answer **came**, as it may have won at any
//!   moment before.
//! * Nothing is granted in a term before its map was read: until then there may be a map of somebody else's, by which
//!   others decide.
//! * The same grant lasts [`CACHE_LEASE_MS`] for groups of class `cache`, which have nobody to ask: half of that for
//!   its holder, for reads and writes, and all of it for the warden ([`Grants::cold`]).
//! * A node that may live is taken out when the last grant to it has run out, and nothing is granted to it until the
//!   map says so ([`Grants::silent`]).
//!
//! Callers: links of the warden's node, which answer beats; the warden's thread; the node that asked.

use crate::bugs::{Bug, has};
use crate::control::{ControlError, Outcome, Term};
use crate::limits::{CACHE_LEASE_MS, LEASE_MS, LEASE_STEADY_MS};
use crate::place::NodeId;
use crate::warden::{Call, Reply};
use std::collections::{BTreeMap, BTreeSet};

const MS: u64 = 1_000_000;

/// Leave to answer reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The warden's term.
    pub term: Term,
    /// The epoch of its map.
    pub epoch: u32,
    /// How long it is taken to last, ms.
    pub lease_ms: u32,
}

impl Grant {
    /// When it ends for its holder, whose map is of this term and epoch and who sent the beat at that time; `None`: it
    /// does not count.
    pub fn until_ns(self, than: (Term, u32), sent_ns: u64) -> Option<u64> {
        let part = if has(Bug::LongLease) { 1 } else { 2 };
        self.counts(than).then(|| sent_ns.saturating_add(u64::from(self.lease_ms) * MS / part))
    }

    /// As [`Grant::until_ns`], for groups of class `cache`.
    pub fn cache_until_ns(self, than: (Term, u32), sent_ns: u64) -> Option<u64> {
        let part = if has(Bug::LongCacheLease) { 1 } else { 2 };
        self.counts(than).then(|| sent_ns.saturating_add(CACHE_LEASE_MS * MS / part))
    }

    fn counts(self, (term, epoch): (Term, u32)) -> bool {
        self.epoch <= epoch && self.term >= term
    }
}

/// What was heard of a node, in one of its lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heard {
    /// Which life.
    pub incarnation: u64,
    /// When its last beat came, ns.
    pub heard_ns: u64,
    /// When it was last granted something, ns; 0: never.
    pub granted_ns: u64,
}

/// What the warden's node grants, and what it heard.
#[derive(Debug, Default)]
pub struct Grants {
    /// The warden's term, since when it is in office, and until when that is sure, ns.
    office: Option<(Term, u64, u64)>,
    /// The term in which a map was last read or written, and its epoch.
    map: (Term, u32),
    barred: BTreeSet<(NodeId, u64)>,
    /// Lives that are over: nothing that came of them counts.
    over: BTreeSet<(NodeId, u64)>,
    heard: BTreeMap<NodeId, Heard>,
    /// Since when this node itself beats without a gap, and its last beat, ns.
    steady: (u64, u64),
}

impl Grants {
    /// The store answered a call of the warden's, which was asked at that time.
    pub fn answered(&mut self, call: &Call, reply: &Result<Reply, ControlError>, asked_ns: u64, now_ns: u64) {
        match (call, reply) {
            (Call::Txn(txn), Ok(Reply::Outcome(Outcome::Done(_)))) => {
                txn.term.into_iter().for_each(|term| self.in_office(term, asked_ns, now_ns));
            }
            // It looked at nothing but the term.
            (Call::Txn(txn), Ok(Reply::Outcome(Outcome::Refused))) if txn.compares.is_empty() => self.office = None,
            (Call::Campaign { name, .. }, Ok(Reply::Office(office))) => match office.holder.as_ref() == Some(name) {
                true => self.in_office(office.term, asked_ns, now_ns),
                false => self.office = None,
            },
            _ => {}
        }
    }

    /// The term is in office: the store was asked at that time, and has now said so.
    pub fn in_office(&mut self, term: Term, asked_ns: u64, now_ns: u64) {
        let since_ns = self.office.filter(|office| office.0 == term).map_or(now_ns, |office| office.1);
        self.office = Some((term, since_ns, asked_ns.saturating_add(LEASE_MS * MS / 2)));
    }

    /// A map of this epoch is in the store, read or written in that term.
    pub fn wrote(&mut self, term: Term, epoch: u32) {
        self.map = self.map.max((term, epoch));
    }

    /// A node beats, in that life.
    pub fn beat(&mut self, node: NodeId, incarnation: u64, now_ns: u64) -> Option<Grant> {
        let new = Heard { incarnation, heard_ns: now_ns, granted_ns: 0 };
        let heard = self.heard.entry(node).or_insert(new);
        if heard.incarnation > incarnation || self.over.contains(&(node, incarnation)) {
            return None;
        }
        if heard.incarnation < incarnation {
            *heard = new;
        }
        heard.heard_ns = heard.heard_ns.max(now_ns);
        let (term, ..) = self.office.filter(|(.., until_ns)| now_ns < *until_ns)?;
        let (read, epoch) = self.map;
        if read != term || self.barred.contains(&(node, incarnation)) {
            return None;
        }
        heard.granted_ns = heard.granted_ns.max(now_ns);
        Some(Grant { term, epoch, lease_ms: LEASE_MS as u32 })
    }

    /// That life of a node is over: what is heard of it came before, and it is granted nothing any more.
    pub fn bury(&mut self, node: NodeId, incarnation: u64) {
        self.over.insert((node, incarnation));
    }

    /// This node's own beat, as [`Grants::beat`]. While it does not come nobody is known to be silent.
    pub fn own_beat(&mut self, node: NodeId, incarnation: u64, now_ns: u64) -> Option<Grant> {
        let (since_ns, last_ns) = self.steady;
        let is_steady = now_ns <= last_ns + LEASE_STEADY_MS * MS;
        self.steady = (if is_steady { since_ns } else { now_ns }, now_ns);
        self.beat(node, incarnation, now_ns)
    }

    /// Those of these nodes, in those lives, that may be taken out at once: nothing was heard of them for so long that
    /// all that was granted to them is over. They are granted nothing from now on, until this is asked again; others
    /// are. Nobody, while it is not sure that what they said would have been heard, and soon after a warden has come
    /// into office: others may have granted something before.
    pub fn silent(&mut self, nodes: &[(NodeId, u64)], now_ns: u64) -> Vec<(NodeId, u64)> {
        self.barred.clear();
        self.heard.retain(|node, _| nodes.iter().any(|(known, _)| known == node));
        self.over.retain(|life| nodes.contains(life));
        let (since_ns, last_ns) = self.steady;
        let is_steady = last_ns > 0 && now_ns <= last_ns + LEASE_STEADY_MS * MS;
        let lasts_ns = LEASE_MS * MS;
        let knows =
            self.office.is_some_and(|(_, since_ns, until_ns)| now_ns < until_ns && now_ns >= since_ns + 2 * lasts_ns);
        let judges = is_steady && now_ns >= since_ns + lasts_ns && (knows || has(Bug::EarlyRemoval));
        let is_silent = |(node, life): &(NodeId, u64), heard: &mut BTreeMap<NodeId, Heard>| {
            let new = Heard { incarnation: *life, heard_ns: now_ns, granted_ns: 0 };
            let heard = heard.entry(*node).or_insert(new);
            if heard.incarnation < *life {
                *heard = new;
            }
            heard.incarnation == *life && now_ns >= heard.heard_ns.max(heard.granted_ns) + lasts_ns
        };
        let silent =
            nodes.iter().copied().filter(|node| is_silent(node, &mut self.heard) && judges).collect::<Vec<_>>();
        self.barred.extend(&silent);
        silent
    }

    /// Of the nodes that are silent by [`Grants::silent`], which barred them, those whose groups of class `cache` may
    /// be given to others: all is over that was granted to them for these too, also by a warden before this one.
    pub fn cold(&self, silent: &[(NodeId, u64)], now_ns: u64) -> Vec<(NodeId, u64)> {
        let lasts_ns = CACHE_LEASE_MS * MS;
        let knows = self.office.is_some_and(|(_, since_ns, _)| now_ns >= since_ns + LEASE_MS * MS + lasts_ns);
        let is_cold = |(node, _): &&(NodeId, u64)| {
            let heard = self.heard.get(node);
            heard.is_some_and(|heard| now_ns >= heard.heard_ns.max(heard.granted_ns) + lasts_ns)
        };
        silent.iter().filter(|_| knows).filter(is_cold).copied().collect()
    }

    /// Whether a node, in that life, may answer reads by what was granted to it here; `has_caches`: or for what it has
    /// of class `cache`, which it does for half of that lease by its own clock.
    pub fn may_answer(&self, (node, incarnation): (NodeId, u64), has_caches: bool, now_ns: u64) -> bool {
        let lasts_ms = if has_caches { CACHE_LEASE_MS / 2 + LEASE_MS / 2 } else { LEASE_MS };
        let granted = |heard: &&Heard| heard.incarnation == incarnation && heard.granted_ns > 0;
        let heard = self.heard.get(&node).filter(granted);
        heard.is_some_and(|heard| now_ns < heard.granted_ns + lasts_ms * MS)
    }

    /// Whether a node, in that life, was heard within a few beats.
    pub fn is_heard(&self, node: NodeId, incarnation: u64, now_ns: u64) -> bool {
        let lives = |heard: &&Heard| heard.incarnation == incarnation && !self.over.contains(&(node, incarnation));
        let heard = self.heard.get(&node).filter(lives);
        heard.is_some_and(|heard| now_ns < heard.heard_ns + LEASE_STEADY_MS * MS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::num::NonZeroU32;

    const NODE: NodeId = NodeId(NonZeroU32::MIN);

    fn ns(ms: u64) -> u64 {
        ms * MS
    }

    #[test]
    fn it_lasts_half_as_long_for_its_holder_as_for_the_warden() {
        let grant = Grant { term: 3, epoch: 7, lease_ms: LEASE_MS as u32 };
        assert_eq!(grant.until_ns((3, 7), ns(500)), Some(ns(500 + LEASE_MS / 2)));
        assert_eq!(grant.until_ns((3, 9), 0), Some(ns(LEASE_MS / 2)), "its holder is ahead");
        assert_eq!(grant.until_ns((2, 7), 0), Some(ns(LEASE_MS / 2)));
        assert_eq!(grant.until_ns((3, 6), 0), None, "its holder has not the map yet");
        assert_eq!(grant.until_ns((4, 7), 0), None, "the term is over");
    }

    #[test]
    fn nothing_is_granted_out_of_office_nor_to_who_is_barred() {
        let mut grants = Grants::default();
        let at = |grants: &mut Grants, life, ms| grants.beat(NODE, life, ns(ms)).is_some();
        assert!(!at(&mut grants, 1, 10), "nobody is in office");
        grants.in_office(1, ns(20), ns(20));
        grants.wrote(1, 5);
        assert_eq!(grants.beat(NODE, 1, ns(30)), Some(Grant { term: 1, epoch: 5, lease_ms: LEASE_MS as u32 }));
        assert!(
            at(&mut grants, 1, 19 + LEASE_MS / 2) && !at(&mut grants, 1, 20 + LEASE_MS / 2),
            "it was not asked again"
        );
        grants.in_office(1, ns(3_000), ns(3_000));
        assert!(at(&mut grants, 1, 3_001) && at(&mut grants, 2, 3_003), "its next life is another one");
        assert!(!at(&mut grants, 1, 3_004), "and the one before is over");
    }

    #[test]
    fn nothing_is_granted_to_a_life_that_is_over() {
        let mut grants = Grants::default();
        grants.in_office(1, 0, 0);
        grants.wrote(1, 5);
        assert!(grants.beat(NODE, 1, ns(10)).is_some() && grants.is_heard(NODE, 1, ns(11)));
        grants.bury(NODE, 1);
        for ms in [12, 13] {
            assert_eq!(grants.beat(NODE, 1, ns(ms)), None);
            assert!(!grants.is_heard(NODE, 1, ns(ms)), "what came before its end is no sign of life");
            grants.silent(&[(NODE, 1)], ns(ms));
        }
        assert!(grants.beat(NODE, 2, ns(14)).is_some() && grants.is_heard(NODE, 2, ns(15)), "its next life");
        grants.silent(&[(NODE, 2)], ns(16));
        assert_eq!((grants.over.len(), grants.beat(NODE, 1, ns(17))), (0, None));
    }

    #[test]
    fn a_node_is_silent_when_all_is_over_that_was_granted_to_it() {
        let other = NodeId(NonZeroU32::MIN.saturating_add(1));
        let mut grants = Grants::default();
        grants.wrote(1, 5);
        let mut ms = 0;
        // This node beats, and the store is asked, for so long.
        let mut live = |grants: &mut Grants, until_ms: u64| {
            while ms < until_ms {
                ms += 100;
                grants.in_office(1, ns(ms), ns(ms));
                grants.own_beat(NODE, 1, ns(ms));
            }
        };
        live(&mut grants, 5_000);
        assert!(grants.beat(other, 1, ns(5_000)).is_some());
        let nodes = [(NODE, 1), (other, 1)];
        live(&mut grants, 4_900 + LEASE_MS);
        assert_eq!(grants.silent(&nodes, ns(4_999 + LEASE_MS)), []);
        live(&mut grants, 5_000 + LEASE_MS);
        assert_eq!(grants.silent(&nodes, ns(5_000 + LEASE_MS)), [(other, 1)]);
        assert_eq!(grants.beat(other, 1, ns(5_001 + LEASE_MS)), None, "it is being taken out");
        assert!(grants.is_heard(other, 1, ns(5_002 + LEASE_MS)) && !grants.is_heard(other, 2, ns(5_002 + LEASE_MS)));
        assert_eq!(grants.silent(&nodes, ns(5_003 + LEASE_MS)), [], "it is back");
        assert!(grants.beat(other, 1, ns(5_004 + LEASE_MS)).is_some());
    }

    #[test]
    fn for_caches_it_lasts_longer_and_as_long_again_for_the_warden() {
        let grant = Grant { term: 3, epoch: 7, lease_ms: LEASE_MS as u32 };
        assert_eq!(grant.cache_until_ns((3, 7), ns(500)), Some(ns(500 + CACHE_LEASE_MS / 2)));
        assert_eq!([(3, 6), (4, 7)].map(|than| grant.cache_until_ns(than, 0)), [None, None]);
        let (other, new_ms) = (NodeId(NonZeroU32::MIN.saturating_add(1)), 30_000);
        let mut grants = Grants::default();
        grants.wrote(1, 5);
        let mut cold_ms = Vec::new();
        for ms in (100..=60_000).step_by(100) {
            let term = if ms < new_ms { 1 } else { 2 };
            grants.in_office(term, ns(ms), ns(ms));
            grants.wrote(term, 5);
            grants.own_beat(NODE, 1, ns(ms));
            if ms == 15_000 || ms == new_ms - 100 {
                // It is barred, but heard.
                grants.beat(other, 1, ns(ms));
            }
            let silent = grants.silent(&[(other, 1)], ns(ms));
            let cold = grants.cold(&silent, ns(ms));
            assert!(cold.iter().all(|node| silent.contains(node)), "who is cold is barred");
            if !cold.is_empty() {
                cold_ms.push(ms);
            }
        }
        // Before it was first heard, from then on until it was heard again, and then for a new warden.
        let first = (LEASE_MS + CACHE_LEASE_MS + 100..15_000).step_by(100);
        let second = (15_000 + CACHE_LEASE_MS..new_ms - 100).step_by(100);
        let third = (new_ms + LEASE_MS + CACHE_LEASE_MS..=60_000).step_by(100);
        assert_eq!(cold_ms, first.chain(second).chain(third).collect::<Vec<_>>());
    }

    #[test]
    fn a_process_may_answer_for_as_long_as_the_longest_of_its_leases() {
        let mut grants = Grants::default();
        grants.in_office(1, 0, 0);
        grants.wrote(1, 5);
        let grant = grants.beat(NODE, 1, ns(10)).expect("it is in office");
        for (has_caches, lasts_ms) in [(false, LEASE_MS), (true, CACHE_LEASE_MS / 2 + LEASE_MS / 2)] {
            let may_answer = |life, ms| grants.may_answer((NODE, life), has_caches, ns(ms));
            assert!(may_answer(1, 9 + lasts_ms) && !may_answer(1, 10 + lasts_ms) && !may_answer(2, 10));
        }
        assert_eq!(grant.cache_until_ns((1, 5), ns(10)), Some(ns(10 + CACHE_LEASE_MS / 2)));
    }

    #[test]
    fn a_new_warden_takes_out_nobody_before_the_grants_of_the_one_before_are_over() {
        let mut grants = Grants::default();
        for ms in (100..=2 * LEASE_MS + 200).step_by(100) {
            grants.in_office(if ms < 200 { 1 } else { 2 }, ns(ms), ns(ms));
            grants.own_beat(NODE, 1, ns(ms));
            let other = NodeId(NonZeroU32::MIN.saturating_add(1));
            assert_eq!(grants.silent(&[(other, 1)], ns(ms)).is_empty(), ms < 200 + 2 * LEASE_MS, "{ms}");
        }
    }

    #[test]
    fn who_stood_still_knows_of_nobody_that_is_silent() {
        let other = NodeId(NonZeroU32::MIN.saturating_add(1));
        let mut grants = Grants::default();
        let mut at = |ms: u64, beats: bool| {
            grants.in_office(1, ns(ms), ns(ms));
            if beats {
                grants.own_beat(NODE, 1, ns(ms));
            }
            grants.silent(&[(other, 1)], ns(ms))
        };
        (1..=100).for_each(|tick| drop(at(100 * tick, true)));
        assert_eq!(at(10_100, true), [(other, 1)]);
        assert_eq!(at(10_101 + LEASE_STEADY_MS, false), [], "its own loop stands still");
        assert_eq!(at(20_000, true), [], "it begins anew");
        (201..220).for_each(|tick| assert_eq!(at(100 * tick, true), []));
        assert_eq!(at(20_000 + LEASE_MS, true), [(other, 1)]);
    }
}
