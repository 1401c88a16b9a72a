//! Which groups this node decides for: what all loops look at before they read an object, or hand a change to its part.
//!
//! A new map closes the gates of the groups whose primary changed before it sets any seat; the part opens its gate when
//! its take-over is done, if the map has not gone on meanwhile. So a gate is open only while what is committed here is
//! all that was acknowledged.
//!
//! A backup has a gate, too, as long as the map says that it may answer reads: its part opens that once it goes by this
//! view. What is acknowledged then is committed here, or pending; so an object beside which nothing is pending is read
//! here ([`Gates::may_get`]).

use crate::lease::Leases;
use herd_core::bugs::{Bug, has};
use herd_core::limits::{COPY_EXPIRY_MS, SLOTS, SPREADS_MAX};
use herd_core::place::{Group, GroupId, Kind, Life, Map, Seat, Spread};
use herd_core::replica::GroupEpoch;
use herd_store::Entry;
use std::collections::BTreeSet;
use std::sync::atomic::{
    AtomicBool, AtomicU16, AtomicU32, AtomicU64,
    Ordering::{Relaxed, SeqCst},
};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

const OPEN: u64 = 1;
/// There is a part of the group here, or was.
const PART: u64 = 2;
/// This node is a backup, and answers reads if the gate is open.
const COPY: u64 = 4;
/// Above these: the epoch since which this node is the group's primary, or of the view in which it is a backup; 0: it
/// is neither.
const SINCE_SHIFT: u32 = 3;

/// The gates of all groups.
#[derive(Default)]
pub(crate) struct Gates {
    spreads: [OnceLock<Box<[AtomicU64]>>; SPREADS_MAX],
    /// The group of each slot.
    slots: [OnceLock<Box<[AtomicU16]>>; SPREADS_MAX],
    /// Writes of each group that this node leads which wait for members, for the metrics.
    pending: [OnceLock<Box<[AtomicU32]>>; SPREADS_MAX],
    /// Until when reads of what others keep too are answered without asking them; without links it never is.
    lease: OnceLock<Arc<Leases>>,
    /// The herd goes on without this process, as other nodes say.
    barred: AtomicBool,
    /// By the map the herd holds nothing, and its groups may be planned anew: nothing is brought.
    empty: AtomicBool,
    /// In which epoch of which group this node acted as the primary, where somebody looks at it from inside.
    acts: OnceLock<Mutex<Acts>>,
}

/// Groups, and epochs of them.
pub(crate) type Acts = BTreeSet<(GroupId, GroupEpoch)>;

impl Gates {
    fn gate(&self, id: GroupId) -> Option<&AtomicU64> {
        let groups = self.spreads.get(usize::from(id.spread))?;
        groups.get_or_init(|| (0..SLOTS).map(|_| AtomicU64::new(0)).collect()).get(usize::from(id.number))
    }

    fn get(&self, id: GroupId) -> u64 {
        self.gate(id).map_or(0, |gate| gate.load(SeqCst))
    }

    /// A map is taken, by which this node is `me`: closes what it does not decide for any more, or does anew. Called
    /// before seats are set, by one thread at a time.
    pub(crate) fn adopt(&self, me: Life, map: &Map) {
        self.close_gone(map);
        for spread in &map.spreads {
            let slots =
                self.slots[usize::from(spread.id)].get_or_init(|| (0..SLOTS).map(|_| AtomicU16::new(0)).collect());
            // Most stay as they are, and a store that all threads see in one order is dear.
            let changed = slots.iter().zip(spread.slots.iter()).filter(|(slot, number)| slot.load(Relaxed) != **number);
            changed.for_each(|(slot, number)| slot.store(*number, SeqCst));
            for (number, group) in spread.groups.iter().enumerate() {
                let id = GroupId { spread: spread.id, number: number as u16 };
                let lives = map.node(me.node).is_some_and(|node| node.incarnation == me.incarnation);
                self.adopt_one(id, lives && has_part(me, spread, group), role(me, group).filter(|_| lives));
            }
        }
    }

    /// Of spread groups that the map has no more nobody decides anything.
    fn close_gone(&self, map: &Map) {
        for (spread, gates) in (0..).zip(&self.spreads).filter(|(id, _)| map.spread(*id).is_none()) {
            let groups = gates.get().map_or(0, |gates| gates.len());
            (0..groups).for_each(|number| self.adopt_one(GroupId { spread, number: number as u16 }, false, None));
        }
    }

    fn adopt_one(&self, id: GroupId, needs_part: bool, role: Option<u64>) {
        let Some(gate) = self.gate(id) else { return };
        let before = gate.load(SeqCst);
        if before & PART == 0 && !needs_part {
            return;
        }
        let next = role.unwrap_or(0) | PART;
        if before & !OPEN != next {
            let kept = if has(Bug::StaleRead) { before & OPEN } else { 0 };
            gate.store(next | kept, SeqCst);
        }
    }

    /// The part of a group has taken over, as its primary since that epoch.
    pub(super) fn open(&self, id: GroupId, since: u32) {
        let closed = u64::from(since) << SINCE_SHIFT | PART;
        if let Some(gate) = self.gate(id) {
            // Another value is of another map.
            gate.compare_exchange(closed, closed | OPEN, SeqCst, SeqCst).ok();
        }
    }

    /// The part of a group goes by the view of that epoch, in which it has all that was acknowledged, or has it
    /// pending.
    pub(super) fn open_copy(&self, id: GroupId, epoch: u32) {
        let closed = u64::from(epoch) << SINCE_SHIFT | PART | COPY;
        if let Some(gate) = self.gate(id) {
            gate.compare_exchange(closed, closed | OPEN, SeqCst, SeqCst).ok();
        }
    }

    /// The part of a group decides no more.
    pub(super) fn close(&self, id: GroupId) {
        let is_meant = |gate: &&AtomicU64| gate.load(SeqCst) & COPY == 0 && !has(Bug::StaleRead);
        if let Some(gate) = self.gate(id).filter(is_meant) {
            gate.fetch_and(!OPEN, SeqCst);
        }
    }

    /// Whether there is a part of the group here, or must be one.
    pub(crate) fn is_shared(&self, id: GroupId) -> bool {
        self.get(id) & PART != 0
    }

    /// Whether this node decides for a group, and its take-over is done.
    pub(crate) fn is_open(&self, id: GroupId) -> bool {
        self.get(id) & (OPEN | COPY) == OPEN
    }

    /// The epoch since which this node decides for a group; 0: it does not.
    pub(crate) fn since(&self, id: GroupId) -> u32 {
        let gate = self.get(id);
        if gate & COPY == 0 { (gate >> SINCE_SHIFT) as u32 } else { 0 }
    }

    /// Whether this node decides for a group, since that epoch, and its take-over is done.
    pub(crate) fn is_open_since(&self, id: GroupId, since: u32) -> bool {
        self.get(id) == u64::from(since) << SINCE_SHIFT | PART | OPEN
    }

    /// Whether what was looked at, while this node decided since that epoch, may be answered without asking the other
    /// members. A grant counts when the map that it is of has closed and opened gates, so the gate is looked at last:
    /// if it is as it was, the lease is none of a map after which others decide.
    #[inline]
    pub(crate) fn has_lease_since(&self, id: GroupId, since: u32) -> bool {
        self.has_lease() && self.is_open_since(id, since)
    }

    /// Whether what this node has of class `cache` may be given to others when it is silent, by that map: there are
    /// others, or may be any time, where the map is kept elsewhere.
    pub(crate) fn is_leased(&self, map: &Map) -> bool {
        self.lease.get().is_some_and(|lease| map.nodes.len() > 1 || lease.is_always())
    }

    /// Others may have what this node has alone, or may not, from now on; whether that is another than before. Before
    /// the seats are set anew.
    pub(crate) fn bar(&self, is_barred: bool) -> bool {
        self.barred.swap(is_barred, SeqCst) != is_barred
    }

    /// Whether the herd goes on without this process.
    pub(super) fn is_barred(&self) -> bool {
        self.barred.load(SeqCst)
    }

    /// Whether the herd may hold objects, by the map that is being taken: no, before any seat is set by it; yes, when
    /// all are.
    pub(crate) fn note_held(&self, held: bool) {
        self.empty.store(!held, SeqCst);
    }

    /// Whether nothing may be brought, as the herd's groups may be planned anew any time. Asked where what is brought
    /// is decided on, behind the look at the seat: a node that handed it on may go by an older map.
    #[inline]
    pub(crate) fn holds_nothing(&self) -> bool {
        self.empty.load(SeqCst)
    }

    /// The lease of this node; before its loops are made.
    pub(crate) fn go_by(&self, lease: Arc<Leases>) {
        self.lease.set(lease).ok();
    }

    /// A batch of events begins.
    #[inline]
    pub(crate) fn begin(&self) {
        if has(Bug::ClockFirst) {
            self.lease.get().into_iter().for_each(|lease| lease.begin());
        }
    }

    /// Whether this node has a lease now.
    #[inline]
    fn has_lease(&self) -> bool {
        self.lease.get().is_some_and(|lease| lease.holds())
    }

    /// Whether this node decides on an object, whose entry is locked, and asks nobody.
    #[inline]
    pub(crate) fn decides(&self, entry: &Entry<'_>) -> bool {
        match entry.seat() {
            Seat::Alone => true,
            Seat::Leased => self.has_cache_lease(),
            Seat::Led | Seat::Held | Seat::Away => false,
        }
    }

    /// Whether this node answers for what it has of class `cache` now.
    #[inline]
    pub(crate) fn has_cache_lease(&self) -> bool {
        self.lease.get().is_some_and(|lease| lease.holds_caches()) && !self.barred.load(SeqCst)
    }

    /// Whether an object is read here, whose entry is locked: this node alone decides, or for its group, and has leave
    /// to answer without asking the other members. The clock is looked at here, behind the lock.
    #[inline]
    pub(crate) fn may_read(&self, entry: &Entry<'_>) -> bool {
        match entry.seat() {
            Seat::Alone => true,
            Seat::Leased => self.has_cache_lease(),
            Seat::Led => self.is_open_slot(entry.spread(), entry.slot()) && self.has_lease(),
            Seat::Held | Seat::Away => has(Bug::StaleRead) && self.is_open_slot(entry.spread(), entry.slot()),
        }
    }

    /// Whether a get of such an object waits here for a newer one: this node decides, with or without leave to answer.
    pub(crate) fn may_wait(&self, entry: &Entry<'_>) -> bool {
        entry.seat() == Seat::Led && self.is_open_slot(entry.spread(), entry.slot()) || self.may_read(entry)
    }

    /// As [`Gates::may_read`], of a get that changes nothing: also where this node is a backup that has leave to
    /// answer, and nothing is pending beside the object. A backup that is taken out meanwhile has no lease any more, or
    /// has told that its gate is closed, before anything is acknowledged without it.
    #[inline]
    pub(crate) fn may_get(&self, entry: &Entry<'_>, unix_ms: u64) -> bool {
        match entry.seat() {
            Seat::Held => {
                let is_clean = entry.is_clean() || has(Bug::BesideRead);
                is_clean && entry.lives_until(unix_ms + COPY_EXPIRY_MS) && self.has_lease() && self.is_copy(entry)
            }
            _ => self.may_read(entry),
        }
    }

    /// Whether this node is a backup of the object's group, and has leave to answer reads.
    fn is_copy(&self, entry: &Entry<'_>) -> bool {
        let id = self.group_of(entry.spread(), entry.slot());
        id.is_some_and(|id| self.get(id) & (OPEN | COPY) == OPEN | COPY)
    }

    /// From now on acts as a primary are noted.
    pub(crate) fn note_acts(&self) {
        self.acts.get_or_init(Mutex::default);
    }

    /// This node acts as the primary of that epoch: it decides, or tells members what to do.
    #[inline]
    pub(super) fn note_act(&self, id: GroupId, epoch: GroupEpoch) {
        if let Some(acts) = self.acts.get() {
            acts.lock().unwrap_or_else(PoisonError::into_inner).insert((id, epoch));
        }
    }

    /// What was noted since the last time.
    pub(crate) fn take_acts(&self) -> Acts {
        let acts = self.acts.get().map(|acts| acts.lock().unwrap_or_else(PoisonError::into_inner));
        acts.map(|mut acts| std::mem::take(&mut *acts)).unwrap_or_default()
    }

    /// So many writes of a group wait for its members.
    pub(super) fn note_pending(&self, id: GroupId, writes: usize) {
        let counts = self.pending.get(usize::from(id.spread));
        let counts = counts.map(|counts| counts.get_or_init(|| (0..SLOTS).map(|_| AtomicU32::new(0)).collect()));
        let count = counts.and_then(|counts| counts.get(usize::from(id.number)));
        count.into_iter().for_each(|count| count.store(writes as u32, Relaxed));
    }

    /// Writes of a group that this node leads which wait for its members.
    pub(crate) fn pending(&self, id: GroupId) -> u32 {
        let counts = self.pending.get(usize::from(id.spread)).and_then(OnceLock::get);
        counts.and_then(|counts| counts.get(usize::from(id.number))).map_or(0, |count| count.load(Relaxed))
    }

    fn is_open_slot(&self, spread: u16, slot: usize) -> bool {
        self.group_of(spread, slot).is_some_and(|id| self.is_open(id))
    }

    /// The group of a slot, by the map that was taken last; `None` before there is one.
    pub(super) fn group_of(&self, spread: u16, slot: usize) -> Option<GroupId> {
        let slots = self.slots.get(usize::from(spread)).and_then(OnceLock::get)?;
        slots.get(slot).map(|number| GroupId { spread, number: number.load(SeqCst) })
    }

    /// What the node is to the slots of a group: where a part of it is, or was, it goes on to decide, also alone, as
    /// writes may be under way there.
    /// Its own of class `cache` it has by its lease, if others may get that.
    pub(crate) fn seat(&self, spread: &Spread, number: u16, seat: Seat, is_leased: bool) -> Seat {
        let id = GroupId { spread: spread.id, number };
        match seat {
            Seat::Alone if spread.kind == Kind::Cache && is_leased => Seat::Leased,
            Seat::Alone if spread.kind == Kind::Kept && self.is_shared(id) => Seat::Led,
            Seat::Alone if self.barred.load(SeqCst) => Seat::Leased,
            seat => seat,
        }
    }
}

/// Whether a node needs a part of a group: it is a member, and not the only one that there must be.
pub(super) fn has_part(me: Life, spread: &Spread, group: &Group) -> bool {
    let is_alone = group.others.is_empty() && spread.needed == 1;
    group.members().any(|member| member == me.node) && !is_alone
}

/// What a node is to a group, as its gate says: its primary, or a backup that may answer reads.
fn role(me: Life, group: &Group) -> Option<u64> {
    let leads = group.primary == Some(me.node);
    let primary = leads.then(|| u64::from(group.primary_since) << SINCE_SHIFT);
    let copy = || group.answers(me.node).then(|| u64::from(group.epoch) << SINCE_SHIFT | COPY);
    primary.or_else(copy)
}
