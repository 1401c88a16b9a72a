//! Replica groups of this node (docs/decisions/007, 008): the part of a group lives on one loop, decides what its node
//! is the primary of, and keeps what others decide.
//!
//! * `operation.rs`: operations that wait, and their decisions. `change.rs`: what members tell each other of an object.
//! * `at_once.rs`: puts that need no decision.
//! * `copies.rs`: the store behind the rules. `outbox.rs`: what is said to a member, long values ahead of it.
//! * `mail.rs`: operations that another loop has, and what they came to.
//! * `share.rs`: a part and what is around it; its effects. `gate.rs`: which groups this node decides for.
//!
//! Here is the table of a loop's parts, and what comes to them: views from the map, links that come and go, messages,
//! operations, time. Group number modulo lanes is the loop of a part, and of the link to each member.

mod at_once;
mod change;
mod copies;
mod gate;
mod mail;
mod operation;
mod outbox;
mod share;
#[cfg(test)]
mod tests;

pub(crate) use at_once::{AtOnce, may_put_at_once, put_at_once};
pub(crate) use change::Key;
pub(crate) use gate::Gates;
pub(crate) use mail::Mail;
pub(crate) use operation::{Done, Operation, Origin, Sent, Told, read, too_old};

use crate::context::Context;
use crate::link::Change;
use herd_core::limits::PART_OPS_MAX;
use herd_core::place::{GroupId, Kind, Life, Map};
use herd_core::replica::{GroupEpoch, Message, View};
use herd_core::wire::{Ahead, Fields, FrameHead, GroupMessage, LinkId, WireError, is_ahead, lanes};
use mail::Letter;
use share::{Looked, Share};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// The parts of one loop.
#[derive(Default)]
pub(crate) struct Parts {
    /// `None`: it is at work, below in the stack.
    shares: BTreeMap<GroupId, Option<Box<Share>>>,
    /// Views that were to be adopted in groups of which this node knows nothing yet.
    early: BTreeMap<GroupId, (LinkId, View)>,
    /// Maps taken so far, when the map was seen last.
    seen: u64,
    /// When [`alarm`] has something to do, unless there is a new map.
    due_ms: Option<u64>,
    /// What operations came to, and who is told.
    told: VecDeque<(Origin, Told)>,
    /// What those of tests came to.
    #[cfg(test)]
    tests: Vec<(u64, Told)>,
}

impl Parts {
    /// When [`alarm`] has something to do.
    #[inline]
    pub(crate) fn alarm_ms(&self, maps: u64) -> u64 {
        let is_due = maps != self.seen || !self.told.is_empty();
        if is_due { 0 } else { self.due_ms.unwrap_or(u64::MAX) }
    }

    /// Keeps a view until there is a part to adopt it: the latest, as who led before may ask later than who leads now.
    fn came_early(&mut self, group: GroupId, link: LinkId, view: View) {
        let is_newest = self.early.get(&group).is_none_or(|(_, early)| early.epoch <= view.epoch);
        if is_newest && (self.early.len() < PART_OPS_MAX || self.early.contains_key(&group)) {
            self.early.insert(group, (link, view));
        }
    }

    /// Writes under way in a group whose answers are kept for their windows.
    #[cfg(test)]
    fn answering(&self, group: GroupId) -> usize {
        self.shares.get(&group).and_then(Option::as_ref).map_or(0, |share| share.kept.answering())
    }

    /// How many slots the part of a group looks after.
    #[cfg(test)]
    fn slots(&self, group: GroupId) -> usize {
        self.shares.get(&group).and_then(Option::as_ref).map_or(0, |share| share.kept.slots.len())
    }

    fn tell(&mut self, told: &mut Vec<(Origin, Told)>) {
        self.told.extend(told.drain(..));
    }
}

/// Asks an operation on an object of the part of its group, which may live on another loop. What comes of it is told to
/// its origin, later.
pub(crate) fn ask(cx: &mut Context, key: Key, group: Option<GroupId>, op: Operation) {
    let on_loop = group.map_or(cx.number, |group| loop_of(cx, group));
    if on_loop != cx.number {
        if let Err(Letter::Ask(_, op)) = cx.shared.post(on_loop, Letter::Ask(key, Box::new(op))) {
            cx.parts.told.push_back((op.origin, Told::failed(mail::too_many())));
        }
        return;
    }
    // A map that came just now may have made the part.
    look_at_map(cx);
    let origin = op.origin;
    if with(cx, group, |share, cx| share.ask(cx, key, op)).is_none() {
        cx.parts.told.push_back((origin, Told::Again { may_be_done: false }));
    }
}

/// Has the members of a group, whose part may live on another loop, confirm what a read has found. Its origin is told
/// then, later.
pub(crate) fn confirm(cx: &mut Context, group: GroupId, origin: Origin, told: Told, since: GroupEpoch) {
    let on_loop = loop_of(cx, group);
    if on_loop != cx.number {
        // What comes of it always goes: there is no more of it than was asked.
        drop(cx.shared.post(on_loop, Letter::Confirm(group, origin, Box::new(told), since)));
        return;
    }
    look_at_map(cx);
    if with(cx, Some(group), |share, cx| share.confirm(cx, Looked::Found(origin, told, since))).is_none() {
        cx.parts.told.push_back((origin, Told::Again { may_be_done: false }));
    }
}

/// Hands on what operations came to: to flights of this loop, and to the loops that asked the others.
pub(crate) fn deliver(cx: &mut Context) {
    while let Some((origin, told)) = cx.parts.told.pop_front() {
        match origin {
            Origin::Nobody => {}
            Origin::Flight(on_loop, id) if on_loop == cx.number => cx.flight_told(id, told),
            // A loop that there is not has asked nothing.
            Origin::Put(ticket) => cx.put_told(ticket, told),
            Origin::Flight(on_loop, _) => drop(cx.shared.post(on_loop, Letter::Told(origin, Box::new(told)))),
            #[cfg(test)]
            Origin::Test(number) => cx.parts.tests.push((number, told)),
        }
    }
}

/// Whether other loops have handed something over.
#[inline]
pub(crate) fn has_mail(cx: &Context) -> bool {
    cx.shared.mail.has_any(cx.number)
}

/// Takes what other loops have handed over.
fn open_letters(cx: &mut Context) {
    for letter in cx.shared.mail.take(cx.number) {
        match letter {
            Letter::Ask(key, op) => {
                let group = group_of(cx, &key);
                ask(cx, key, group, *op);
            }
            Letter::Confirm(group, origin, told, since) => confirm(cx, group, origin, *told, since),
            Letter::Told(origin, told) => cx.parts.told.push_back((origin, *told)),
        }
    }
}

/// The loop on which the part of a group lives.
fn loop_of(cx: &Context, group: GroupId) -> usize {
    usize::from(group.number % lanes_of(cx.shared.config.threads))
}

/// The group of an object, by the map that this node goes by.
pub(crate) fn group_of(cx: &Context, key: &Key) -> Option<GroupId> {
    let (map, _) = cx.shared.place.get()?.map()?;
    let spread = map.spread(key.of.spread())?;
    Some(GroupId { spread: spread.id, number: spread.slots[key.of.slot()] })
}

/// A message of a group came over a link. Error: the other end breaks the protocol.
pub(crate) fn came(
    cx: &mut Context,
    link: LinkId,
    head: &FrameHead<'_>,
    fields: &Fields<'_>,
    body: &[u8],
) -> Result<(), WireError> {
    look(cx);
    if is_ahead(&head.header) {
        let ahead = Ahead::decode(&head.header, fields, body)?;
        with(cx, Some(ahead.group), |share, cx| share.ahead(cx, link, &ahead));
    } else {
        let message = GroupMessage::decode(head, body)?;
        let came = with(cx, Some(message.group), |share, cx| share.came(cx, link, &message.message));
        if let (None, Message::Adopt { view }) = (came, message.message) {
            // The map by which this node has a part of the group is on its way; before it adopts it is told nothing.
            cx.parts.came_early(message.group, link, view);
        }
    }
    deliver(cx);
    Ok(())
}

/// Takes note of links that came and went, and of a new map.
pub(crate) fn look(cx: &mut Context) {
    for change in cx.links.take_changes() {
        let (Change::Up(link, _) | Change::Down(link)) = change;
        let theirs: Vec<GroupId> = match change {
            Change::Up(_, loops) => on_link(cx, link, loops),
            Change::Down(_) => cx.parts.shares.keys().copied().collect(),
        };
        for group in theirs {
            with(cx, Some(group), |share, cx| match change {
                Change::Up(..) => share.link_up(cx, link),
                Change::Down(_) => share.link_down(cx, link),
            });
        }
    }
    look_at_map(cx);
}

/// Does what is due by the time.
pub(crate) fn alarm(cx: &mut Context) {
    look(cx);
    open_letters(cx);
    if cx.parts.due_ms.is_some_and(|due_ms| due_ms <= cx.now_ms()) {
        by_time(cx);
    }
    deliver(cx);
}

fn by_time(cx: &mut Context) {
    let now_ms = cx.now_ms();
    cx.parts.due_ms = None;
    let groups: Vec<GroupId> = cx.parts.shares.keys().copied().collect();
    for group in groups {
        with(cx, Some(group), |share, cx| share.alarm(cx, now_ms));
    }
}

/// The groups whose messages go over a link to a node of so many loops.
fn on_link(cx: &Context, link: LinkId, theirs: u16) -> Vec<GroupId> {
    let own = cx.shared.config.threads;
    let is_on = |group: &&GroupId| link_of(group.number, own, theirs.into()) == link.link;
    cx.parts.shares.keys().filter(is_on).copied().collect()
}

/// The number of the link by which a group's messages go between nodes of so many loops.
fn link_of(number: u16, own: usize, theirs: usize) -> u16 {
    number % lanes_of(own).max(lanes_of(theirs))
}

/// Loops on which parts live.
fn lanes_of(loops: usize) -> u16 {
    lanes::lanes(u16::try_from(loops).unwrap_or(u16::MAX))
}

fn look_at_map(cx: &mut Context) {
    let Some(place) = cx.shared.place.get().filter(|place| place.maps() != cx.parts.seen) else { return };
    if cx.parts.shares.values().any(Option::is_none) {
        // One is at work, below in the stack, and could not take its view: soon again.
        return;
    }
    cx.parts.seen = place.maps();
    let (me, map) = (place.me(), place.map());
    let Some((map, _)) = map else { return };
    adopt(cx, me, &map);
}

/// Makes the parts that a map asks of this loop, and has all take their views.
fn adopt(cx: &mut Context, me: Life, map: &Arc<Map>) {
    let lives = map.node(me.node).is_some_and(|node| node.incarnation == me.incarnation);
    // A group that there is no more has no slots, or its part would go on to look after them.
    // One of class `cache` has none: its number may be that of a spread group that is gone.
    let is_kept = |id: GroupId| map.spread(id.spread).is_some_and(|spread| spread.kind == Kind::Kept);
    let gone = |id: &&GroupId| lives && (map.group(**id).is_none() || !is_kept(**id));
    let gone: Vec<GroupId> = cx.parts.shares.keys().filter(gone).copied().collect();
    for id in gone {
        with(cx, Some(id), |share, cx| share.adopt(cx, Vec::new(), None));
    }
    for spread in map.spreads.iter().filter(|spread| lives && spread.kind == Kind::Kept) {
        // Groups have nearly as many slots each.
        let each = spread.slots.len().div_ceil(spread.groups.len());
        let mut slots_of: Vec<Vec<u16>> = spread.groups.iter().map(|_| Vec::with_capacity(each)).collect();
        (0..).zip(spread.slots.iter()).for_each(|(slot, of)| slots_of[usize::from(*of)].push(slot));
        for (number, group) in spread.groups.iter().enumerate() {
            let id = GroupId { spread: spread.id, number: number as u16 };
            let is_here = loop_of(cx, id) == cx.number;
            let is_known = cx.parts.shares.contains_key(&id);
            // A map that came and went meanwhile may have needed one: then the store goes by it still.
            if !is_here || !is_known && !gate::has_part(me, spread, group) && !cx.shared.gates.is_shared(id) {
                continue;
            }
            if !is_known {
                let share = Box::new(Share::new(cx, me.node, id));
                cx.parts.shares.insert(id, Some(share));
            }
            let slots: Vec<u16> = std::mem::take(&mut slots_of[number]);
            let links: Vec<LinkId> = match is_known {
                true => Vec::new(),
                false => {
                    let own = cx.shared.config.threads;
                    let all = cx.links.current();
                    all.filter(|(link, n)| link_of(id.number, own, (*n).into()) == link.link).map(|it| it.0).collect()
                }
            };
            let view = View::of(group, spread.needed);
            with(cx, Some(id), |share, cx| {
                links.into_iter().for_each(|link| share.link_up(cx, link));
                share.adopt(cx, slots, view);
            });
            if let Some((link, view)) = cx.parts.early.remove(&id) {
                with(cx, Some(id), |share, cx| share.came(cx, link, &Message::Adopt { view }));
            }
        }
    }
}

/// Has the part of a group do something; `None`: there is none on this loop.
fn with<R>(cx: &mut Context, group: Option<GroupId>, act: impl FnOnce(&mut Share, &mut Context) -> R) -> Option<R> {
    let group = group?;
    let mut share = cx.parts.shares.get_mut(&group)?.take()?;
    let result = act(&mut share, cx);
    share.carry_out(cx);
    let due_ms = share.due_ms();
    cx.parts.due_ms = [cx.parts.due_ms, due_ms].into_iter().flatten().min();
    cx.parts.shares.entry(group).and_modify(|place| *place = Some(share));
    Some(result)
}
