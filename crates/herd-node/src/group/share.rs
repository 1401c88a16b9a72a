//! A part of a group, and what is around it on its loop: what it keeps, what it says to each member, and what comes
//! with time. Its effects are carried out here, in order, before anything else comes to it.

use super::at_once::{AT_ONCE_BYTES, AtOnce};
use super::change::{Becomes, Edit, Key, left_ms};
use super::copies::{Copies, Kept, floor};
use super::mail::{Room, too_many};
use super::operation::{Operation, Origin, PUT_AT_ONCE, Told, decide_all};
use super::outbox::{Inbox, Outbox};
use crate::context::Context;
use crate::metrics::add;
use herd_core::bugs::{Bug, has};
use herd_core::entry::{Memcached, Version};
use herd_core::limits::{
    FLIGHT_AGAIN_MS, GROUP_LATE_MAX_MS, GROUP_LATE_MIN_MS, GROUP_LINK_PATIENCE_MS, GROUP_SETTLE_MS, GROUP_SWEEP_MS,
    GROUP_TURN_ENTRIES, PART_OPS_MAX,
};
use herd_core::place::{GroupId, NodeId};
use herd_core::replica::Copies as _;
use herd_core::replica::{Departure, Effect, GroupEpoch, Member, Message, Offer, Outcome, Part, Pending, Refusal};
use herd_core::replica::{Standing, Verdict, View};
use herd_core::wire::{self, Ahead, Answers, Asked, Delta, GroupMessage, LinkId, PutOf, Said, Sent, ValueOf};
use herd_core::{Error, ErrorKind, quote};
use herd_store::{Collection, NewObject, SlotCursor};
use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::Ordering::Relaxed;

/// See the module.
pub(super) struct Share {
    id: GroupId,
    part: Part<Key, Edit, Operation>,
    pub(super) kept: Kept,
    out: BTreeMap<NodeId, Outbox>,
    /// Since when there is no link to a node; one that is not here had none since `made_ms`.
    lost_ms: BTreeMap<NodeId, u64>,
    made_ms: u64,
    coming: BTreeMap<NodeId, Inbox>,
    /// When members are told what is committed, if they are owed that.
    settle_ms: Option<u64>,
    /// Where its dropping stands, while all is dropped.
    clearing: Option<Walk>,
    /// Where the search for what is over stands, and when it goes on.
    sweep: Walk,
    sweep_ms: u64,
    /// Removals of what is over that are under way.
    expiring: usize,
    /// Operations that the part is not asked yet, and when it is looked whether it may be.
    waiting: VecDeque<Operation>,
    again_ms: Option<u64>,
    /// When it is looked for operations that nobody waits for any more.
    late_ms: Option<u64>,
    /// What was looked at without a lease, by the round of asking that it waits for: they rise.
    looked: VecDeque<(u64, Looked)>,
    /// Room for what the part wants done.
    effects: Vec<Effect<Key, Edit, Operation>>,
    /// Room for prepares that are to be sent.
    departures: Vec<Departure>,
    /// Room for the answers that they bring.
    answers: Vec<u8>,
    /// What operations came to, and who is told.
    told: Vec<(Origin, Told)>,
    /// Writes that wait for members, as the metrics have it.
    pending: usize,
    /// Copies that are being made, as all loops know.
    copies: u64,
}

/// What was decided from what is committed here, and changes nothing: until the members have confirmed that nobody else
/// decides, it is told to nobody.
pub(super) enum Looked {
    /// A read has found this, while the node decided since that epoch.
    Found(Origin, Told, GroupEpoch),
    /// An operation came to this.
    Decided(Box<Operation>),
}

impl Looked {
    fn since(&self) -> Option<GroupEpoch> {
        if let Looked::Found(.., since) = self { Some(*since) } else { None }
    }
}

/// A walk through the slots of a group, in turns.
#[derive(Clone, Copy, Default)]
struct Walk {
    /// Place among the group's slots.
    at: usize,
    cursor: Option<SlotCursor>,
}

impl Walk {
    /// Hands cursors to `turn` until the slots are done, or one turn is full; whether they are done.
    fn go_on(&mut self, kept: &Kept, mut turn: impl FnMut(&mut SlotCursor, usize) -> bool) -> bool {
        // An empty slot costs little: some of them a turn.
        for _ in 0..64 {
            let Some(slot) = kept.slots.get(self.at) else {
                *self = Self::default();
                return true;
            };
            let new = || SlotCursor::new(kept.group.spread, usize::from(*slot));
            let cursor = self.cursor.get_or_insert_with(new);
            let is_full = turn(cursor, GROUP_TURN_ENTRIES / 16);
            if cursor.is_at_end() {
                (self.at, self.cursor) = (self.at + 1, None);
            }
            if is_full {
                return false;
            }
        }
        false
    }
}

impl Share {
    pub(super) fn new(cx: &Context, me: NodeId, id: GroupId) -> Self {
        Self {
            id,
            part: Part::new(me),
            kept: Kept::new(&cx.shared.store, id),
            out: BTreeMap::new(),
            lost_ms: BTreeMap::new(),
            made_ms: cx.now_ms(),
            coming: BTreeMap::new(),
            settle_ms: None,
            clearing: None,
            sweep: Walk::default(),
            sweep_ms: 0,
            expiring: 0,
            waiting: VecDeque::new(),
            again_ms: None,
            late_ms: None,
            looked: VecDeque::new(),
            effects: Vec::new(),
            departures: Vec::new(),
            answers: Vec::new(),
            told: Vec::new(),
            pending: 0,
            copies: 0,
        }
    }

    /// When [`Share::alarm`] has something to do.
    pub(super) fn due_ms(&self) -> Option<u64> {
        // While removals are under way there is nothing to look for.
        let sweep = (self.part.is_open() && self.expiring == 0).then_some(self.sweep_ms);
        let clear = self.clearing.map(|_| 0);
        let rest = self.out.values().filter_map(Outbox::rests_until_ms).min();
        [self.settle_ms, self.again_ms, self.late_ms, sweep, clear, rest].into_iter().flatten().min()
    }

    /// A map says which slots the group has, and its view, if it has a primary.
    pub(super) fn adopt(&mut self, cx: &Context, slots: Vec<u16>, view: Option<View>) {
        if self.kept.slots != slots {
            // A walk that stands in a slot which is another group's now goes no further there.
            self.sweep = Walk::default();
            self.clearing = self.clearing.map(|_| Walk::default());
            self.kept.slots = slots;
        }
        if let Some(view) = view {
            self.part.take(&mut Copies { cx, kept: &mut self.kept }, view);
        }
    }

    pub(super) fn link_up(&mut self, cx: &mut Context, link: LinkId) {
        if self.out.get(&link.node).is_some_and(|out| out.generation == link.generation()) {
            // It was there when the part was made: told once more, the part would begin anew on it, midway.
            return;
        }
        self.out.insert(link.node, Outbox::new(self.id, link.node, link.generation()));
        self.coming.remove(&link.node);
        self.part.link_up(link.node, link.generation());
        // Rests go with the link.
        self.part.copy_on(&mut Copies { cx, kept: &mut self.kept }, link.node);
        self.carry_out(cx);
    }

    pub(super) fn link_down(&mut self, cx: &Context, link: LinkId) {
        self.part.link_down(link.node, link.generation());
        if self.out.get(&link.node).is_some_and(|out| out.generation == link.generation()) {
            self.out.remove(&link.node);
            self.coming.remove(&link.node);
            self.lost_ms.insert(link.node, cx.now_ms());
        }
    }

    /// Why nothing is answered: the herd goes on without this process, and has nobody else whose ack is needed. Where
    /// others are needed they tell that they have gone on.
    fn barred(&self, cx: &Context) -> Option<Error> {
        let is_needed = |member: &Member| member.standing != Standing::Syncing;
        let is_alone = || self.part.leads() && !self.part.view().members.iter().any(is_needed);
        let text = "the herd goes on without this node, and another one may have what it had alone: ask that one";
        (cx.shared.gates.is_barred() && is_alone()).then(|| Error::new(ErrorKind::Unreachable, text))
    }

    /// Why nothing is begun now: a member whose ack is needed has no link for a while. What is not begun fails at once
    /// and for certain, where it would end as of unknown outcome. A take-over that has just begun is waited for longer.
    fn stopped(&self, cx: &Context, key: &Key) -> Option<Error> {
        let (patience_ms, what) = match self.part.is_open() {
            true => (GROUP_LINK_PATIENCE_MS, "no write"),
            false => (3 * GROUP_LINK_PATIENCE_MS, "it is neither read nor written"),
        };
        let gone = self.gone(cx, patience_ms)?;
        let (name, of) = (name_of(cx, gone), quote(&key.of.name));
        let text = format!("node '{name}', which keeps a copy of '{of}', can't be reached: {what} until it is back");
        Some(Error::new(ErrorKind::Unreachable, text))
    }

    /// A member whose ack is needed, and that has had no link for so long.
    fn gone(&self, cx: &Context, patience_ms: u64) -> Option<NodeId> {
        let is_gone = |member: &&Member| {
            let since_ms = self.lost_ms.get(&member.node).unwrap_or(&self.made_ms);
            let is_lost = !self.out.contains_key(&member.node) && cx.now_ms() - since_ms > patience_ms;
            is_lost && member.standing != Standing::Syncing
        };
        self.part.view().members.iter().find(is_gone).map(|member| member.node)
    }

    /// An operation of this node's clients, or of a node that handed it on.
    pub(super) fn ask(&mut self, cx: &Context, key: Key, mut op: Operation) {
        if let Some(error) = self.barred(cx) {
            return self.end(&op, Told::failed(error));
        }
        // What is free is decided first, as it may change nothing; what was asked before may be under way here.
        let is_first = || op.asked.as_ref().is_none_or(|asked| !asked.may_be_done());
        if self.part.leads()
            && (!self.part.is_open() || self.part.is_busy(&key) && is_first())
            && let Some(error) = self.stopped(cx, &key)
        {
            return self.end(&op, Told::failed(error));
        }
        if self.part.leads()
            && let Some(may_be_done) = op.is_of_before(self.part.view().since)
        {
            return self.end(&op, Told::Again { may_be_done });
        }
        let count = self.waiting.len();
        if let Err(error) = if count < PART_OPS_MAX { op.hold(cx) } else { Err(too_many()) } {
            return self.end(&op, Told::failed(error));
        }
        if op.until_ms < u64::MAX {
            self.late_ms = Some(self.late_ms.map_or(op.until_ms, |late_ms| late_ms.min(op.until_ms)));
        }
        if let Some(asked) = op.asked.filter(|_| !op.stands) {
            (op.stands, op.is_new) = (true, self.kept.stand(&asked, cx.now_ms()));
        }
        self.waiting.push_back(op.of(key));
    }

    /// Begins a put at once, if it needs no decision and nothing stands in its way: it is prepared here, and its
    /// prepares are sent. False: nothing was begun.
    pub(super) fn put_at_once(&mut self, cx: &mut Context, put: &AtOnce<'_>) -> bool {
        let key = Key { of: put.key.clone(), generation: put.collection.generation() };
        let mut answers = std::mem::take(&mut self.answers);
        answers.clear();
        Answers::push(&mut answers, put.id, PUT_AT_ONCE);
        let size_bytes = (put.value.len() + answers.len()) as u64;
        let is_laden = |(node, out): (&NodeId, &Outbox)| !out.is_empty() || cx.links.is_laden(*node, out.generation);
        if !self.waiting.is_empty() || !self.part.takes_at_once(&key, size_bytes) || self.out.iter().any(is_laden) {
            return false;
        }
        if cx.shared.gates.holds_nothing() || self.barred(cx).is_some() {
            return false;
        }
        let asked = put.own.map(|own| Asked::of_own(&own, 0));
        if asked.is_some_and(|asked| !self.kept.is_new(&asked, cx.now_ms())) {
            return false;
        }
        let held_bytes = put.held_bytes + (AT_ONCE_BYTES + 2 * (put.key.name.len() + put.value.len())) as u64;
        let Ok(room) = Room::take(&cx.shared, held_bytes) else { return false };
        let new = NewObject {
            value: herd_store::Given::Small(put.value, Some(put.check)),
            flags: put.flags,
            expires_ms: put.expires_ms,
            attributes: &[],
            memcached: Memcached::default(),
            fence: None,
        };
        let mut copies = Copies { cx, kept: &mut self.kept };
        let floor = floor(self.part.view().since);
        let Some(write) = copies.prepare_put((put.collection, &key), &new, floor, put.id) else { return false };
        cx.shared.gates.note_act(self.id, self.part.view().epoch);
        let op = Operation::put(put.ticket, put.id, key.clone(), put.else_remove).holding(room);
        let mut departures = std::mem::take(&mut self.departures);
        let mut copies = Copies { cx, kept: &mut self.kept };
        self.part.begin_prepared(&mut copies, (&key, write, size_bytes), op, |departure| departures.push(departure));
        for Departure { to, generation, epoch, serial, settled } in departures.drain(..) {
            let object = PutOf {
                value: ValueOf::Whole(Sent::Inline(put.value, put.check)),
                flags: put.flags,
                left_ms: left_ms(put.expires_ms, cx.now.unix_ms),
                attributes: Some(&[]),
                memcached: new.memcached,
                fence: None,
            };
            let told = if has(Bug::WindowAtHome) { None } else { Answers::of(&answers) };
            let delta = Delta { becomes: wire::Becomes::Put(object), answers: told.unwrap_or_default() };
            let offer = Offer::Change(delta);
            let message = Message::Prepare { epoch, serial, settled, key: key.sent(), write, offer };
            let message = GroupMessage { group: self.id, message };
            cx.links.tell(to, generation, |epoch, out| {
                message.encode(out, epoch).expect("a small value fits a frame");
            });
        }
        (self.departures, self.answers) = (departures, answers);
        true
    }

    /// Asks the part the next that waits, unless too much is on its way to a member already: all that one which takes
    /// nothing is to be told would be kept here, and what stands behind a long value for all of its time would end as
    /// of unknown outcome. Whether there was one.
    fn ask_next(&mut self, cx: &Context) -> bool {
        self.again_ms = None;
        let is_needed = |node| self.part.view().member(node).is_some_and(|it| it.standing != Standing::Syncing);
        let is_laden = |(node, out): (&NodeId, &Outbox)| {
            cx.links.is_laden(*node, out.generation) || out.is_laden() && is_needed(*node)
        };
        if !self.waiting.is_empty() && self.part.leads() && self.out.iter().any(is_laden) {
            self.again_ms = Some(cx.now_ms() + FLIGHT_AGAIN_MS);
            return false;
        }
        let Some(op) = self.waiting.pop_front() else { return false };
        let key = op.key.clone().expect("it stands in line");
        self.part.ask(key, op);
        true
    }

    /// Ends what stands in line and nobody waits for any more: it was not begun, and is not done later.
    fn end_late(&mut self, cx: &Context, now_ms: u64) {
        let mut next_ms = now_ms + GROUP_LATE_MAX_MS;
        let late = self.part.withdraw(|op| {
            let is_late = op.until_ms <= now_ms;
            next_ms = if is_late { next_ms } else { next_ms.min(op.until_ms) };
            is_late
        });
        let waiting = std::mem::take(&mut self.waiting).into_iter();
        let (over, waiting): (Vec<_>, Vec<_>) = waiting.partition(|op| op.until_ms <= now_ms);
        self.waiting = waiting.into();
        for op in late.into_iter().chain(over) {
            let name = op.key.as_ref().map(|key| quote(&key.of.name)).unwrap_or_default();
            let lost = |member: &&Member| member.standing != Standing::Syncing && !self.out.contains_key(&member.node);
            let text = match self.part.view().members.iter().find(lost) {
                Some(member) => {
                    let node = name_of(cx, member.node);
                    format!(
                        "node '{node}', which keeps a copy of '{name}', does not answer: nothing was done, try again"
                    )
                }
                None => format!("what was asked of '{name}' before is still under way: nothing was done, try again"),
            };
            self.end(&op, Told::failed(Error::new(ErrorKind::Unreachable, text)));
        }
        if let Some(error) = self.unconfirmed(cx) {
            let looked = std::mem::take(&mut self.looked);
            looked.into_iter().for_each(|(_, looked)| self.end_looked(Told::failed(error.clone()), looked));
        }
        let has_ops = self.part.has_ops() || !self.waiting.is_empty() || !self.looked.is_empty();
        next_ms = self.waiting.iter().map(|op| op.until_ms).min().map_or(next_ms, |until_ms| next_ms.min(until_ms));
        self.late_ms = has_ops.then(|| next_ms.max(now_ms + GROUP_LATE_MIN_MS));
    }

    /// A message came.
    pub(super) fn came(&mut self, cx: &mut Context, link: LinkId, message: &Message<wire::Key<'_>, Delta<'_>>) {
        if !self.part.is_current(link.node, link.generation()) {
            return;
        }
        let inbox = if names_ahead(message) { self.coming.remove(&link.node) } else { None };
        let Some(message) = owned(cx, link, message, inbox) else { return self.close(cx, link.node) };
        // Where too few copies are left no write is taken until one more is made.
        if let Message::Answer { verdict: Verdict::Copied, .. } = &message
            && self.part.view().is_enough()
            && self.out.get_mut(&link.node).is_some_and(|out| out.copied(cx))
        {
            self.part.rest(link.node);
        }
        let mut copies = Copies { cx, kept: &mut self.kept };
        self.part.receive(&mut copies, link.node, link.generation(), message);
    }

    /// Something about a long value came.
    pub(super) fn ahead(&mut self, cx: &mut Context, link: LinkId, ahead: &Ahead<'_>) {
        let (node, generation) = (link.node, link.generation());
        if !self.part.is_current(node, generation) {
            return;
        }
        match ahead.said {
            Said::Taken(bytes) => {
                let out = self.out.get_mut(&node).filter(|out| out.generation == generation);
                let rests = self.part.view().is_enough();
                out.into_iter().for_each(|out| out.taken(cx, (ahead.id, bytes), rests));
            }
            Said::Part { of, length, from, bytes } => {
                let before = self.coming.remove(&node);
                let Some(inbox) = Inbox::take(before, cx, generation, ahead.id, (of, length, from, bytes)) else {
                    return self.close(cx, node);
                };
                let taken = Ahead { group: self.id, id: ahead.id, said: Said::Taken(inbox.came()) };
                self.coming.insert(node, inbox);
                cx.links.tell(node, generation, |epoch, out| {
                    taken.encode(out, epoch, None).expect("it is short");
                });
            }
        }
    }

    /// Does what is due.
    pub(super) fn alarm(&mut self, cx: &mut Context, now_ms: u64) {
        if self.settle_ms.is_some_and(|at_ms| at_ms <= now_ms) {
            self.settle_ms = None;
            let peers: Vec<NodeId> = self.part.view().members.iter().map(|member| member.node).collect();
            peers.into_iter().for_each(|peer| self.part.settle(peer));
        }
        if self.late_ms.is_some_and(|at_ms| at_ms <= now_ms) {
            self.end_late(cx, now_ms);
        }
        let rested = self.out.iter_mut().filter_map(|(node, out)| out.has_rested(cx).then_some(*node));
        for node in rested.collect::<Vec<_>>() {
            self.part.copy_on(&mut Copies { cx, kept: &mut self.kept }, node);
        }
        if self.clearing.is_some() {
            self.clear(cx);
        }
        if self.part.is_open() && self.sweep_ms <= now_ms && self.expiring == 0 {
            self.sweep_ms = now_ms + GROUP_SWEEP_MS;
            self.remove_due(cx);
        }
    }

    /// A turn of dropping all that is here of the group.
    fn clear(&mut self, cx: &Context) {
        let Some(mut walk) = self.clearing else { return };
        let store = &cx.shared.store;
        // A map that is just taken may give the slot to another group: gates know before anything is written there.
        let is_its = |slot| cx.shared.gates.group_of(self.id.spread, slot) == Some(self.id);
        let is_done = walk.go_on(&self.kept, |cursor, budget| {
            store.clear_turn(cursor, budget, cx.now, is_its);
            !cursor.is_at_end()
        });
        self.clearing = Some(walk).filter(|_| !is_done);
        if is_done {
            self.kept.forget();
            self.part.cleared(&mut Copies { cx, kept: &mut self.kept });
        }
    }

    /// A turn of looking for objects whose time is over: they are removed, as by any client.
    fn remove_due(&mut self, cx: &Context) {
        if !cx.shared.store.has_expiring() {
            return;
        }
        let mut due = Vec::new();
        self.sweep.go_on(&self.kept, |cursor, budget| {
            cx.shared.store.due_turn(cursor, &mut due, budget, cx.now);
            due.len() >= PART_OPS_MAX / 32
        });
        for of in due {
            let key = Copies { cx, kept: &mut self.kept }.key_of(of);
            self.expiring += usize::from(key.is_some());
            key.into_iter().for_each(|key| self.ask(cx, key, Operation::expire()));
        }
    }

    /// Carries out what the part wants.
    pub(super) fn carry_out(&mut self, cx: &mut Context) {
        loop {
            let mut effects = std::mem::take(&mut self.effects);
            self.part.effects_into(&mut effects);
            let is_done = effects.is_empty();
            effects.drain(..).for_each(|effect| self.carry_out_one(cx, effect));
            self.effects = effects;
            if is_done && !self.ask_next(cx) {
                break;
            }
        }
        self.tell_looked(cx);
        cx.parts.tell(&mut self.told);
        let pending = self.part.pending();
        if self.pending != pending {
            self.pending = pending;
            cx.shared.gates.note_pending(self.id, pending);
        }
        let copies = self.part.copies_under_way() as u64;
        let before = std::mem::replace(&mut self.copies, copies);
        if copies != before {
            cx.shared.copies.fetch_add(copies.wrapping_sub(before), Relaxed);
        }
        let view = self.part.view();
        self.kept.lost_before(view.lost);
        if self.kept.is_blind() && self.sees_all() {
            self.kept.sees_all(view.epoch);
        }
        if self.part.is_open() {
            cx.shared.gates.open(self.id, view.since);
        } else {
            cx.shared.gates.close(self.id);
            if self.part.is_waited_for() && self.clearing.is_none() {
                cx.shared.gates.open_copy(self.id, view.epoch);
            }
        }
        if view.members.iter().any(|member| self.part.owes_settle(member.node)) {
            self.settle_ms.get_or_insert(cx.now_ms() + GROUP_SETTLE_MS);
        }
    }

    /// Whether all that is asked first under the map of this view comes by the part: each write waits for this node, or
    /// it leads, and others are more than syncing. It is the one that asked for that, in a view before: so it did
    /// nothing alone any more when somebody had this map.
    fn sees_all(&self) -> bool {
        let is_member = |member: &Member| member.standing != Standing::Syncing;
        self.part.is_waited_for() && (!self.part.leads() || self.part.view().members.iter().any(is_member))
    }

    fn carry_out_one(&mut self, cx: &mut Context, effect: Effect<Key, Edit, Operation>) {
        if let Effect::Send(_, _, message) = &effect
            && let Some(epoch) = message.led_in()
        {
            cx.shared.gates.note_act(self.id, epoch);
        }
        match effect {
            Effect::Send(to, generation, message) => {
                if let Message::Answer { verdict: Verdict::Refused(_) | Verdict::CopyRefused, .. } = &message {
                    add(&cx.metrics().refused_copies, 1);
                }
                if let Some(out) = self.out.get_mut(&to).filter(|out| out.generation == generation) {
                    out.push(cx, message);
                }
            }
            Effect::Decide(key, ops) => self.decide(cx, key, ops),
            Effect::Answer(ops, outcome) => ops.into_iter().for_each(|op| self.answer(cx, op, outcome)),
            Effect::Want(want) => cx.links.want(self.id, self.part.view().epoch, want),
            Effect::Clear => self.clearing = Some(Walk::default()),
            Effect::TookOver(pending) => {
                add(&cx.metrics().take_overs, 1);
                add(&cx.metrics().take_overs_pending, u64::from(pending > 0));
            }
            Effect::Close(peer) => self.close(cx, peer),
        }
    }

    /// The member breaks the rules.
    fn close(&mut self, cx: &mut Context, peer: NodeId) {
        let generation = self.out.get(&peer).map(|out| out.generation);
        let link = generation.and_then(|generation| cx.links.of_generation(peer, generation));
        link.into_iter().for_each(|link| crate::link::close(cx, link));
    }

    fn decide(&mut self, cx: &Context, key: Key, ops: Vec<Operation>) {
        let barred = self.barred(cx);
        let mut copies = Copies { cx, kept: &mut self.kept };
        if !self.part.is_open() {
            return self.part.begin(&mut copies, key, ops, None);
        }
        if let Some(error) = barred {
            self.part.begin(&mut copies, key, Vec::new(), None);
            return ops.into_iter().for_each(|op| self.end(&op, Told::failed(error.clone())));
        }
        if cx.shared.gates.holds_nothing() && ops.iter().any(Operation::brings) {
            self.part.begin(&mut copies, key, Vec::new(), None);
            // They wait where they were asked until there is leave.
            return ops.into_iter().for_each(|op| self.end(&op, Told::Again { may_be_done: false }));
        }
        cx.shared.gates.note_act(self.id, self.part.view().epoch);
        let c = cx.shared.store.collection_by_id(key.of.collection);
        let decided = match &c {
            Some(c) => decide_all(&mut copies, (c, &key), self.part.view().since, ops),
            None => Err(ops),
        };
        let mut decision = match decided {
            Ok(decision) => decision,
            Err(ops) => {
                // A flush may be under way: the generation that it begins is told when it is over.
                c.iter().for_each(Collection::wait_for_flush);
                self.part.begin(&mut copies, key.clone(), Vec::new(), None);
                return self.ask_anew(cx, &key, ops);
            }
        };
        if has(Bug::AroundGroup) && decision.ops.iter().any(Operation::is_instead) {
            let write = Pending { version: decision.version.take().unwrap_or(0), base: 0, removes: true };
            let change = decision.change.take().filter(|change| copies.prepare(&key, write, change).is_ok());
            change.into_iter().for_each(|_| copies.end(&key, write.version, true));
        }
        self.part.put_back(&key, decision.rest);
        copies.kept.version = decision.version;
        if let Some(error) = decision.change.as_ref().and_then(|_| self.stopped(cx, &key)) {
            self.part.begin(&mut Copies { cx, kept: &mut self.kept }, key, Vec::new(), None);
            self.kept.version = None;
            return decision.ops.into_iter().for_each(|op| self.end(&op, Told::failed(error.clone())));
        }
        let mut copies = Copies { cx, kept: &mut self.kept };
        let (ops, told) = match decision.change {
            Some(_) => (decision.ops, Vec::new()),
            None => (Vec::new(), decision.ops),
        };
        self.part.begin(&mut copies, key, ops, decision.change);
        copies.kept.version = None;
        // The clock is looked at behind the decision.
        match told.is_empty() || cx.shared.gates.has_lease_since(self.id, self.part.view().since) {
            true => told.into_iter().for_each(|op| self.tell(cx, op, 0)),
            false => told.into_iter().for_each(|op| self.confirm(cx, Looked::Decided(Box::new(op)))),
        }
    }

    /// Tells what was looked at once the members have confirmed it.
    pub(super) fn confirm(&mut self, cx: &Context, looked: Looked) {
        let is_full = self.looked.len() >= PART_OPS_MAX;
        let refusal = is_full.then(too_many).or_else(|| self.unconfirmed(cx));
        match refusal {
            Some(error) => self.end_looked(Told::failed(error), looked),
            None if !self.part.is_open() || looked.since().is_some_and(|since| since != self.part.view().since) => {
                self.end_looked(Told::Again { may_be_done: false }, looked)
            }
            None => {
                let late_ms = cx.now_ms() + GROUP_LATE_MAX_MS;
                self.late_ms = Some(self.late_ms.map_or(late_ms, |at_ms| at_ms.min(late_ms)));
                self.looked.push_back((self.part.confirm(), looked));
            }
        }
    }

    /// Why nothing is confirmed now: nobody has to, and the herd goes on without this process, or a member that would
    /// have to has had no link for a while.
    fn unconfirmed(&self, cx: &Context) -> Option<Error> {
        if let Some(error) = self.barred(cx) {
            return Some(error);
        }
        let gone = self.gone(cx, GROUP_LINK_PATIENCE_MS)?;
        let name = name_of(cx, gone);
        let text = format!(
            "neither the warden nor node '{name}', which keeps a copy, can be reached, so this one may be out of date: \
             it is not read until one of them is back"
        );
        Some(Error::new(ErrorKind::Unreachable, text))
    }

    /// What was looked at goes, with that.
    fn end_looked(&mut self, told: Told, looked: Looked) {
        match looked {
            Looked::Found(origin, ..) => self.told.push((origin, told)),
            Looked::Decided(op) => self.end(&op, told),
        }
    }

    /// Tells what is confirmed by now, or void.
    fn tell_looked(&mut self, cx: &Context) {
        while let Some((round, _)) = self.looked.front()
            && let Some(is_so) = self.part.confirmed(*round)
        {
            match self.looked.pop_front() {
                Some((_, looked)) if !is_so => self.end_looked(Told::Again { may_be_done: false }, looked),
                Some((_, Looked::Found(origin, told, _))) => self.told.push((origin, told)),
                Some((_, Looked::Decided(op))) => self.tell(cx, *op, 0),
                None => {}
            }
        }
    }

    /// Operations on what a flush has ended are asked again, of what came after it.
    fn ask_anew(&mut self, cx: &Context, key: &Key, ops: Vec<Operation>) {
        let c = cx.shared.store.collection_by_id(key.of.collection);
        let primary = self.part.view().primary;
        for mut op in ops {
            // Others that stand here may come before it now.
            op.is_new &= op.id.is_none_or(|id| self.kept.stands_alone(id));
            match &c {
                Some(c) => self.ask(cx, Key { of: key.of.clone(), generation: c.generation() }, op),
                None => self.fail(cx, op, Outcome::Refused(primary, Refusal::NoCollection)),
            }
        }
    }

    fn answer(&mut self, cx: &Context, op: Operation, outcome: Outcome) {
        match outcome {
            Outcome::Done(version) => self.tell(cx, op, version),
            _ => self.fail(cx, op, outcome),
        }
    }

    /// The write that an operation shared is done, or it needs none.
    fn tell(&mut self, cx: &Context, mut op: Operation, version: Version) {
        let told = op.take_told(version);
        op.note_use(cx, &told);
        self.end(&op, told);
    }

    fn end(&mut self, op: &Operation, told: Told) {
        self.expiring -= usize::from(op.is_expiry());
        if let Some(id) = op.id.filter(|_| op.stands) {
            self.kept.leave(id);
        }
        if let Some(id) = op.id.filter(|_| op.is_instead()) {
            self.kept.undoing.remove(&id);
        }
        self.told.push((op.origin, told));
    }

    fn fail(&mut self, cx: &Context, op: Operation, outcome: Outcome) {
        if let Outcome::Moved | Outcome::Unknown = outcome {
            return self.end(&op, Told::Again { may_be_done: outcome == Outcome::Unknown });
        }
        let name = op.key.as_ref().map(|key| quote(&key.of.name)).unwrap_or_default();
        let error = self.error_of(cx, outcome, &name);
        let is_refused = matches!(outcome, Outcome::Refused(_, Refusal::Full | Refusal::Quota));
        match if is_refused { op.instead(error) } else { Err(Box::new((op, error))) } {
            Ok(op) => {
                let key = op.key.clone().expect("it stood in line");
                self.kept.undoing.extend(op.id);
                self.part.ask(key, op);
            }
            Err(refused) => self.end(&refused.0, Told::failed(refused.1)),
        }
    }

    fn error_of(&self, cx: &Context, outcome: Outcome, name: &str) -> Error {
        let view = self.part.view();
        let (kind, text) = match outcome {
            Outcome::Refused(node, Refusal::Full) => {
                let node = name_of(cx, node);
                let text = format!(
                    "the memory of node '{node}', which keeps a copy of '{name}', is full: remove something, or start \
                     it with more --memory"
                );
                (ErrorKind::Full, text)
            }
            Outcome::Refused(node, Refusal::Quota) => {
                let node = name_of(cx, node);
                let text = format!(
                    "the quota of the collection of '{name}' is full at node '{node}', which keeps a copy: remove \
                     something"
                );
                (ErrorKind::Quota, text)
            }
            Outcome::Refused(_, Refusal::NoCollection) => {
                (ErrorKind::NoCollection, format!("the collection of '{name}' is there no more"))
            }
            Outcome::Busy => {
                (ErrorKind::Busy, format!("too many changes are under way where '{name}' is kept: ask again later"))
            }
            Outcome::TooFew => (
                ErrorKind::Unreachable,
                format!(
                    "fewer than the {} nodes that must keep '{name}' have a copy, until another one is made: nothing \
                     was done, try again",
                    view.needed
                ),
            ),
            // These are no errors.
            Outcome::Moved | Outcome::Unknown | Outcome::Done(_) => {
                (ErrorKind::Unreachable, format!("another node decides on '{name}' now: try again"))
            }
        };
        Error::new(kind, text)
    }
}

/// The name of a node, as errors have it.
fn name_of(cx: &Context, node: NodeId) -> String {
    let map = cx.shared.place.get().and_then(|place| place.map());
    let name = map.and_then(|(map, _)| map.node(node).map(|node| quote(node.name.as_bytes())));
    name.unwrap_or_else(|| node.0.to_string())
}

/// Whether a message names a value that went ahead of it.
fn names_ahead(message: &Message<wire::Key<'_>, Delta<'_>>) -> bool {
    use wire::{Becomes, Sent, ValueOf};
    let delta = match message {
        Message::Prepare { offer: Offer::Change(delta) | Offer::Whole(delta), .. } => delta,
        Message::Copy { state, .. } => state,
        _ => return false,
    };
    let Becomes::Put(put) = delta.becomes else { return false };
    matches!(put.value, ValueOf::Whole(Sent::Staged { .. }) | ValueOf::Range(_, Sent::Staged { .. }))
}

/// A message as this node keeps it; `inbox` is the value that came ahead. `None`: that is not the one it names.
fn owned(
    cx: &Context,
    link: LinkId,
    message: &Message<wire::Key<'_>, Delta<'_>>,
    inbox: Option<Inbox>,
) -> Option<Message<Key, Edit>> {
    let store = &cx.shared.store;
    let (inbox, is_missing) = (Cell::new(inbox), Cell::new(false));
    let key = match message {
        Message::Prepare { key, .. } | Message::Copy { key, .. } => Some(*key),
        _ => None,
    };
    let staged = |id, length| {
        let value = inbox.take().and_then(|inbox| inbox.finish(cx, (link.generation(), id, length)));
        is_missing.set(value.is_none());
        value.unwrap_or(Err(Refusal::Full))
    };
    // What ends some time ends no earlier than where it comes from: a lock's lease, as its holder counts it.
    let ends = |delta: &Delta<'_>| matches!(&delta.becomes, wire::Becomes::Put(put) if put.left_ms.is_some());
    let edit = |delta: &Delta<'_>| match &key {
        Some(key) => Edit::came((store, key, if ends(delta) { cx.clock_now() } else { cx.now }), delta, staged),
        None => Edit::new(Becomes::Refused(Refusal::Full), Vec::new()),
    };
    let message = message.map(|key| Key::came(store, key), edit);
    (!is_missing.get()).then_some(message)
}
