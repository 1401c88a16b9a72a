//! What a part has in line and under way is bounded, and what is over is told before anything is begun.

use super::world::{node, view};
use crate::entry::Version;
use crate::limits::{PART_BYTES_MAX, PART_OPS_MAX};
use crate::replica::Standing::{Backup, Syncing};
use crate::replica::{
    Change, Copies, Effect, GroupEpoch, Message, Offer, Outcome, Part, Pending, Refusal, State, View, Want,
};
use std::collections::BTreeMap;

/// A change of so many bytes, and whether it removes.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Weight(u64, bool);

impl Change for Weight {
    fn removes(&self) -> bool {
        self.1
    }

    fn size_bytes(&self) -> u64 {
        self.0
    }
}

/// Keeps what is pending, and no states; there is one entry, of key 9.
#[derive(Default)]
struct Blank {
    pending: BTreeMap<u32, Pending>,
    counter: Version,
    /// Whether a flush has ended all.
    is_over: bool,
}

impl Copies<u32, Weight> for Blank {
    fn state(&self, key: &u32) -> State {
        State {
            committed: Version::from(*key == 9),
            pending: self.pending.get(key).copied().filter(|_| !self.is_over),
            is_over: self.is_over,
        }
    }

    fn pendings(&self) -> Vec<(u32, Pending)> {
        self.pending.iter().map(|(key, pending)| (*key, *pending)).collect()
    }

    fn next_version(&mut self, _: &u32, _: GroupEpoch) -> Version {
        self.counter += 1;
        self.counter
    }

    fn prepare(&mut self, key: &u32, write: Pending, _: &Weight) -> Result<(), Refusal> {
        self.pending.insert(*key, write);
        Ok(())
    }

    fn end(&mut self, key: &u32, version: Version, _: bool) {
        self.pending.retain(|of, pending| of != key || pending.version != version);
    }

    fn whole(&self, _: &u32) -> Weight {
        Weight(1, self.is_over)
    }

    fn whole_committed(&self, _: &u32) -> Weight {
        Weight(1, false)
    }

    fn has_token(&self, _: &u32) -> bool {
        false
    }

    fn next_key(&self, key: Option<&u32>) -> Option<u32> {
        key.is_none().then_some(9)
    }

    fn copy(&mut self, _: &u32, _: Version, _: &Weight) -> Result<(), Refusal> {
        Ok(())
    }
}

type Leading = (Part<u32, Weight, u32>, Blank);

/// Node 1, which leads, with one other member that has adopted if `is_open`.
fn leading(view: View, is_open: bool) -> Leading {
    let (mut part, mut at) = (Part::new(node(1)), Blank::default());
    let (epoch, peer) = (view.epoch, view.members[0].node);
    part.take(&mut at, view);
    if is_open {
        part.link_up(peer, 1);
        part.receive(&mut at, peer, 1, Message::Adopted { epoch, pending: Vec::new(), is_last: true });
    }
    part.effects();
    (part, at)
}

/// Asks for a write of so many bytes; its answer, if it has one already.
fn write(part: &mut Part<u32, Weight, u32>, at: &mut Blank, key: u32, size_bytes: u64) -> Option<Outcome> {
    part.ask(key, key);
    while let Some(effect) = part.effects().into_iter().next() {
        match effect {
            Effect::Decide(key, ops) => part.begin(at, key, ops, Some(Weight(size_bytes, false))),
            Effect::Answer(_, outcome) => return Some(outcome),
            _ => return None,
        }
    }
    None
}

#[test]
fn a_copy_rests_until_it_is_to_go_on_and_writes_do_not() {
    let (mut part, mut at) = leading(view(1, 1, 1, &[(2, Syncing, 1)], 1), false);
    part.rest(node(2));
    assert_eq!(part.copies_under_way(), 0, "it is not there");
    let copies = |part: &mut Part<u32, Weight, u32>| {
        let is = |effect: &Effect<_, _, _>| matches!(effect, Effect::Send(_, _, Message::Copy { .. }));
        part.effects().iter().filter(|effect| is(effect)).count()
    };
    part.link_up(node(2), 1);
    part.receive(&mut at, node(2), 1, Message::Adopted { epoch: 1, pending: Vec::new(), is_last: true });
    assert_eq!((copies(&mut part), part.copies_under_way()), (0, 1));
    assert!(matches!(write(&mut part, &mut at, 3, 1), Some(Outcome::Done(_))), "it waits for nobody who has not all");
    assert_eq!(copies(&mut part), 0);
    part.copy_on(&mut at, node(2));
    assert_eq!(copies(&mut part), 1);
    part.copy_on(&mut at, node(2));
    assert_eq!(copies(&mut part), 0, "one at a time");
}

#[test]
fn operations_beyond_the_most_are_told_so_at_once() {
    let (mut part, mut at) = leading(view(1, 1, 1, &[(2, Backup, 1)], 2), false);
    for key in 0..PART_OPS_MAX as u32 {
        assert_eq!(write(&mut part, &mut at, key, 1), None, "it waits until the member has adopted");
    }
    assert_eq!(write(&mut part, &mut at, 0, 1), Some(Outcome::Busy));
    part.take(&mut at, view(2, 2, 2, &[(1, Backup, 2)], 2));
    let answers = part.effects();
    let moved = |effect: &Effect<_, _, _>| matches!(effect, Effect::Answer(ops, Outcome::Moved) if ops.len() == 1);
    assert_eq!(answers.iter().filter(|effect| moved(effect)).count(), PART_OPS_MAX);
    part.take(&mut at, view(3, 3, 1, &[(2, Backup, 3)], 2));
    assert_eq!(write(&mut part, &mut at, 0, 1), None, "none is counted any more");
}

#[test]
fn changes_under_way_have_so_many_bytes_together_and_a_large_one_keeps_no_small_ones_out() {
    let (mut part, mut at) = leading(view(1, 1, 1, &[(2, Backup, 1)], 2), true);
    assert_eq!(write(&mut part, &mut at, 1, PART_BYTES_MAX + 1), None, "one may be of any size");
    assert_eq!(write(&mut part, &mut at, 5, PART_BYTES_MAX / 2), None, "others beside it");
    assert_eq!(write(&mut part, &mut at, 2, 1), Some(Outcome::Busy));
    assert_eq!(at.state(&2).pending, None, "nothing was begun");
    let pending = Pending { version: 1, base: 0, removes: false };
    assert_eq!(at.state(&1).pending, Some(pending));
    let verdict = crate::replica::Verdict::Prepared;
    part.receive(&mut at, node(2), 1, Message::Answer { epoch: 1, key: 1, version: 1, verdict });
    assert!(matches!(&part.effects()[..], [Effect::Answer(_, Outcome::Done(1))]));
    assert_eq!(write(&mut part, &mut at, 2, PART_BYTES_MAX / 2), None);
    assert_eq!(write(&mut part, &mut at, 4, 1), Some(Outcome::Busy));
}

#[test]
fn a_copy_ends_if_its_member_does_not_keep_up() {
    // Large ones count as when they are under way: a put of any size beside others fails no copy.
    let after = [(0, PART_OPS_MAX as u32 + 1), (PART_BYTES_MAX / 100, 101), (2 * PART_BYTES_MAX, 3)];
    for (size_bytes, writes) in after {
        let (mut part, mut at) = leading(view(1, 1, 1, &[(3, Syncing, 1)], 1), true);
        let mut written = 0;
        let failed = loop {
            part.ask(written % 9, written);
            let Some(Effect::Decide(key, ops)) = part.effects().into_iter().next() else { panic!("it is decided") };
            part.begin(&mut at, key, ops, Some(Weight(size_bytes, false)));
            written += 1;
            let effects = part.effects();
            assert!(effects.iter().any(|effect| matches!(effect, Effect::Answer(_, Outcome::Done(_)))));
            if effects.contains(&Effect::Want(Want::Removed(node(3)))) {
                break written;
            }
        };
        assert_eq!(failed, writes);
    }
}

#[test]
fn a_primary_that_leaves_no_versions_is_not_obeyed() {
    for (version, is_served) in [(1 << 63, true), (Version::MAX, false), (Version::MAX - (1 << 38), false)] {
        let (mut part, mut at) = (Part::<u32, Weight, u32>::new(node(2)), Blank::default());
        part.take(&mut at, view(1, 1, 1, &[(2, Backup, 1)], 2));
        part.link_up(node(1), 1);
        let (write, offer) = (Pending { version, base: 0, removes: false }, Offer::Change(Weight(1, false)));
        let prepare = Message::Prepare { epoch: 1, serial: 1, settled: 0, key: 3, write, offer };
        part.receive(&mut at, node(1), 1, prepare);
        let effects = part.effects();
        assert_eq!(effects.contains(&Effect::Close(node(1))), !is_served, "{effects:?}");
        assert_eq!(at.pending.len(), usize::from(is_served));
    }
}

/// Node 1 takes over with a write pending; node 2 has it, and node 3 gets a copy.
#[test]
fn who_is_not_waited_for_gets_the_whole_and_ends_no_write() {
    for is_over in [false, true] {
        let mut at = Blank::default();
        let write = Pending { version: 5, base: 0, removes: false };
        at.pending.insert(3, write);
        let mut part = Part::<u32, Weight, u32>::new(node(1));
        part.take(&mut at, view(2, 2, 1, &[(2, Backup, 1), (3, Syncing, 2)], 2));
        let adopts = |part: &mut Part<u32, Weight, u32>, at: &mut Blank, generation| {
            part.link_up(node(3), generation);
            part.effects();
            part.receive(at, node(3), generation, Message::Adopted { epoch: 2, pending: Vec::new(), is_last: true });
            part.effects()
        };
        let whole = |effect: &Effect<u32, Weight, u32>| match effect {
            Effect::Send(_, _, Message::Prepare { key: 3, write, offer: Offer::Whole(_), .. }) => Some(*write),
            _ => None,
        };
        let copies = |effect: &Effect<u32, Weight, u32>| matches!(effect, Effect::Send(_, _, Message::Copy { .. }));
        assert_eq!(adopts(&mut part, &mut at, 1).iter().filter(|it| copies(it)).count(), 1, "key 9 comes first");
        at.is_over = is_over;
        let sent = adopts(&mut part, &mut at, 2);
        assert_eq!(sent.iter().find_map(whole), Some(Pending { removes: is_over, ..write }), "{sent:?}");
        assert_eq!(part.pending(), 1, "it waits for node 2, as before");
    }
}

/// Node 1 takes over and has nothing of an entry at which node 2 has a token pending: whichever of the two is left, and
/// however often the link breaks, node 2 ends with what node 1 has.
#[test]
fn a_token_that_a_member_alone_has_pending_is_resolved_by_one_message() {
    let (mut part, mut at) = (Part::<u32, Weight, u32>::new(node(1)), Blank::default());
    part.take(&mut at, view(2, 2, 1, &[(2, Backup, 1)], 2));
    let mut theirs = Pending { version: 5, base: 0, removes: true };
    for generation in 1..4 {
        part.link_up(node(2), generation);
        part.effects();
        let adopted = Message::Adopted { epoch: 2, pending: vec![(3, theirs)], is_last: true };
        part.receive(&mut at, node(2), generation, adopted);
        let sent = part.effects();
        let told = |effect: &Effect<u32, Weight, u32>| match effect {
            Effect::Send(_, _, Message::Prepare { key: 3, write, offer: Offer::Whole(_), .. }) => Some(*write),
            _ => None,
        };
        let write = sent.iter().find_map(told).expect("it is told what is there");
        assert_eq!((write.base, write.removes, write.version == theirs.version), (0, true, false));
        assert!(!sent.iter().any(|effect| matches!(effect, Effect::Send(_, _, Message::Resolve { .. }))), "{sent:?}");
        assert!(!part.is_open(), "it is not known to be there");
        // It has that pending by now, and not what it had before.
        theirs = write;
    }
    let verdict = crate::replica::Verdict::Prepared;
    part.receive(&mut at, node(2), 3, Message::Answer { epoch: 2, key: 3, version: theirs.version, verdict });
    assert!(part.is_open());
}
