//! The one place where an operation meets its object: the object is locked, [`decide`] says what becomes of it, that is
//! done, and the answer is made; then the lock is released, and those who wait for the object are told.
//!
//! Doors translate: bytes to an [`Op`], an [`Outcome`] to bytes. What reads a large value, or makes one, is decided on
//! a snapshot and put together while the object is free; if it has changed meanwhile, that begins anew.
//!
//! What is not this node's alone is neither looked at nor changed here: its seat is read whenever the object was
//! locked, and [`Elsewhere`] says so. What is done at another node comes back as an [`Outcome`] too, so that a door
//! has one way to write an answer.
//!
//! A get that changes nothing does not come here: `Store::get` hands the object to its door under the lock.

use crate::context::Context;
use crate::flight::{Cargo, Landed};
use herd_core::checksum::crc32c;
use herd_core::door::memcached::Clock;
use herd_core::entry::{Fence, Found, Head, Value, Version};
use herd_core::op::{
    Action, Answer, Change, Circumstances, Decided, New, NewValue, Op, Part, Put, There, decide, decide_put,
};
use herd_core::{Error, ErrorKind};
use herd_store::{Amended, Body, Collection, Entry, Given, NewObject};
use std::sync::Arc;

/// Tries of an operation on a large value that others keep coming before.
const TRIES: usize = 16;

/// The version that an object has then, or its removal (0: none), and what a method answered.
pub(crate) type Done = Result<(Version, Answer<Arc<Body>>), Error>;

/// The object is not this node's alone to decide on: nothing was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Elsewhere;

/// What became of an operation; an object that is here is still locked.
pub(crate) struct Outcome<'e, 's> {
    /// What was there before.
    pub(crate) before: Option<Head>,
    /// The version of the object or of its removal (0: none), and what a method answered.
    pub(crate) done: Done,
    /// The object as it is now.
    pub(crate) at: At<'e, 's>,
}

/// Where an operation was done.
pub(crate) enum At<'e, 's> {
    /// Here.
    Here(&'e mut Entry<'s>),
    /// At another node.
    There(&'e Landed),
}

impl Outcome<'_, '_> {
    /// The object as it is now, if there is one; with its value where that was asked for.
    #[inline]
    pub(crate) fn found(&self) -> Option<herd_store::Found<'_>> {
        match &self.at {
            At::Here(entry) => entry.found(),
            At::There(landed) => landed.found(),
        }
    }

    /// The clocks by which its times count.
    pub(crate) fn clock(&self, cx: &Context) -> Clock {
        match &self.at {
            At::Here(_) => cx.clock(),
            At::There(landed) => landed.clock,
        }
    }

    /// Counts a get; another node has counted those of its own.
    pub(crate) fn count_get(&mut self, hit: bool) {
        if let At::Here(entry) = &mut self.at {
            entry.count_get(hit);
        }
    }

    /// Counts a hit that is no use.
    pub(crate) fn count_hit(&mut self) {
        if let At::Here(entry) = &mut self.at {
            entry.count_hit();
        }
    }
}

/// Carries out an operation; `finish` makes the answer while the object is locked.
#[inline]
pub(crate) fn apply<R>(
    cx: &Context,
    c: &Collection,
    name: &[u8],
    op: &Op<'_, Arc<Body>>,
    finish: impl FnOnce(Outcome<'_, '_>) -> R,
) -> Result<R, Elsewhere> {
    let Action::Put(new) = &op.action else { return apply_other(cx, c, name, op, finish) };
    if new.from.is_some() {
        return apply_other(cx, c, name, op, finish);
    }
    let mut entry = cx.shared.store.entry(c, name, cx.now);
    if !cx.shared.gates.decides(&entry) || cx.shared.gates.holds_nothing() {
        return Err(Elsewhere);
    }
    let (before, done) = put_whole(&mut entry, op, new);
    // The entry is lent, not given: it is large, and this is the most frequent way.
    let (answer, changed) = conclude(&mut entry, op, before, done, true, finish);
    drop(entry);
    tell(cx, (c, name), changed);
    Ok(answer)
}

/// A put of a whole object, in fewer steps than the others need: nothing is made of what is there.
#[inline]
fn put_whole(entry: &mut Entry<'_>, op: &Op<'_, Arc<Body>>, new: &Put<'_, Arc<Body>>) -> (Option<Head>, Done) {
    let there = There { found: entry.found(), left: entry.left() };
    let before = there.found.as_ref().map(|found| found.head);
    let decided = decide_put(op, new, &there);
    let done = decided.and_then(|new| put(entry, &new)).map(|version| (version, Answer::Nothing));
    (before, done)
}

fn apply_other<R>(
    cx: &Context,
    c: &Collection,
    name: &[u8],
    op: &Op<'_, Arc<Body>>,
    finish: impl FnOnce(Outcome<'_, '_>) -> R,
) -> Result<R, Elsewhere> {
    let entry = cx.shared.store.entry(c, name, cx.now);
    if !cx.shared.gates.decides(&entry) || cx.shared.gates.holds_nothing() && op.brings() {
        return Err(Elsewhere);
    }
    let found = entry.found();
    if op.action.reads_value() && matches!(&found, Some(Found { value: Value::Body(_), .. })) {
        drop(entry);
        return apply_unlocked(cx, c, name, op, finish);
    }
    let before = found.as_ref().map(|found| found.head);
    let decided = decide(op, &There { found, left: entry.left() }, &circumstances(cx, op, c, &entry));
    if let Ok(Decided { change: Change::Put(New { value: NewValue::Parts(_), .. }), .. }) = &decided {
        drop(entry);
        return apply_unlocked(cx, c, name, op, finish);
    }
    Ok(carry_out_and_conclude(cx, (c, name), op, before, decided, entry, finish))
}

/// An object as it was, held by nobody.
#[derive(Clone)]
pub(crate) struct Snapshot {
    /// What is known of it.
    pub(crate) head: Head,
    /// Its attributes, encoded.
    pub(crate) attributes: Vec<u8>,
    /// The highest token that was shown.
    pub(crate) fence: Option<Fence>,
    /// Its value.
    pub(crate) value: Kept,
}

/// The value of an object as it was.
#[derive(Clone)]
pub(crate) enum Kept {
    /// At most 4 KiB, with their CRC-32C.
    Small(Arc<[u8]>, u32),
    /// Larger.
    Large(Arc<Body>),
}

impl Kept {
    /// Whether it is this value: the very body, where it is large.
    pub(crate) fn is(&self, other: &Kept) -> bool {
        match (self, other) {
            (Kept::Small(a, _), Kept::Small(b, _)) => a == b,
            (Kept::Large(a), Kept::Large(b)) => Arc::ptr_eq(a, b),
            _ => false,
        }
    }
}

impl Snapshot {
    /// Of what was found, without its value.
    pub(crate) fn without_value(found: &Found<'_, Arc<Body>>) -> Self {
        let value = Kept::Small(Arc::default(), 0);
        Self { head: found.head, attributes: found.attributes.to_vec(), fence: found.fence, value }
    }

    /// Of an object that was found.
    pub(crate) fn of(found: &Found<'_, Arc<Body>>) -> Self {
        let value = match found.value {
            Value::Inline(bytes, crc) => Kept::Small(bytes.into(), crc),
            Value::Body(body) => Kept::Large(body.clone()),
        };
        Self { head: found.head, attributes: found.attributes.to_vec(), fence: found.fence, value }
    }

    /// As another node tells of one.
    pub(crate) fn made(head: Head, attributes: Vec<u8>, value: Cargo) -> Self {
        let value = match value {
            Cargo::Small(bytes) => {
                let check = crc32c(&bytes);
                Kept::Small(bytes.into(), check)
            }
            Cargo::Large(body) => Kept::Large(body),
        };
        Self { head, attributes, fence: None, value }
    }

    /// Bytes of it, a large value aside.
    pub(crate) fn bytes(&self) -> u64 {
        let value = match &self.value {
            Kept::Small(bytes, _) => bytes.len(),
            Kept::Large(_) => 0,
        };
        (size_of::<Self>() + self.attributes.len() + value) as u64
    }

    /// As it is given to doors.
    pub(crate) fn found(&self) -> Found<'_, Arc<Body>> {
        let value = match &self.value {
            Kept::Small(bytes, crc) => Value::Inline(bytes, *crc),
            Kept::Large(body) => Value::Body(body),
        };
        Found { head: self.head, attributes: &self.attributes, fence: self.fence, value }
    }
}

/// As [`apply`], on a snapshot: decided and put together while the object is free, and done if it has not changed.
#[cold]
fn apply_unlocked<R>(
    cx: &Context,
    c: &Collection,
    name: &[u8],
    op: &Op<'_, Arc<Body>>,
    finish: impl FnOnce(Outcome<'_, '_>) -> R,
) -> Result<R, Elsewhere> {
    let store = &cx.shared.store;
    cx.was_dear();
    for _ in 0..TRIES {
        let (snapshot, left, at) = {
            let entry = store.entry(c, name, cx.now);
            if !cx.shared.gates.decides(&entry) {
                return Err(Elsewhere);
            }
            (entry.found().as_ref().map(Snapshot::of), entry.left(), circumstances(cx, op, c, &entry))
        };
        let there = There { found: snapshot.as_ref().map(Snapshot::found), left };
        let decided = decide(op, &there, &at).and_then(|decided| built(cx, (c, name), decided, snapshot.as_ref()));
        let before = snapshot.as_ref().map(|snapshot| snapshot.head);
        let entry = store.entry(c, name, cx.now);
        if !cx.shared.gates.decides(&entry) || cx.shared.gates.holds_nothing() && op.brings() {
            return Err(Elsewhere);
        }
        // Where there was nothing and is nothing, the slot tells whether there was something between: it may have been
        // a lock, whose grant must not be given again.
        let was = before.map(|head| head.version).ok_or(at.next_version);
        if entry.version().ok_or(entry.next_version()) == was && entry.left() == left {
            return Ok(carry_out_and_conclude(cx, (c, name), op, before, decided, entry, finish));
        }
    }
    let mut entry = store.entry(c, name, cx.now);
    let text = "the object changed again and again while its new value was put together: try again";
    let before = entry.found().map(|found| found.head);
    Ok(finish(Outcome { before, done: Err(Error::new(ErrorKind::Busy, text)), at: At::Here(&mut entry) }))
}

fn circumstances<B>(cx: &Context, op: &Op<'_, B>, c: &Collection, entry: &Entry<'_>) -> Circumstances {
    let (next_version, id) = (entry.next_version(), entry.id());
    Circumstances { now_ms: cx.decides_ms(op), next_version, id, evicts: c.class().evicts() }
}

/// Does what was decided, and concludes.
fn carry_out_and_conclude<R>(
    cx: &Context,
    of: (&Collection, &[u8]),
    op: &Op<'_, Arc<Body>>,
    before: Option<Head>,
    decided: Result<Decided<'_, Arc<Body>>, Error>,
    mut entry: Entry<'_>,
    finish: impl FnOnce(Outcome<'_, '_>) -> R,
) -> R {
    let changes = !matches!(decided, Ok(Decided { change: Change::None, .. }));
    let done = decided.and_then(|decided| carry_out(&mut entry, before, decided));
    let (answer, changed) = conclude(&mut entry, op, before, done, changes, finish);
    drop(entry);
    tell(cx, of, changed);
    answer
}

/// Answers while the object is held; also gives whether those who wait for it are to be told.
#[inline]
fn conclude<R>(
    entry: &mut Entry<'_>,
    op: &Op<'_, Arc<Body>>,
    before: Option<Head>,
    done: Done,
    changes: bool,
    finish: impl FnOnce(Outcome<'_, '_>) -> R,
) -> (R, bool) {
    let mut changed = changes;
    if let Err(error) = &done {
        let meant = !matches!(error.kind, ErrorKind::ConditionFailed | ErrorKind::NotAllowed);
        changed = op.else_remove && meant && entry.remove(None).is_some();
    }
    (finish(Outcome { before, done, at: At::Here(entry) }), changed)
}

/// Tells those who wait for an object that was let go.
#[inline]
fn tell(cx: &Context, (c, name): (&Collection, &[u8]), changed: bool) {
    if changed {
        cx.changed(c, name);
    }
}

#[inline]
fn carry_out(entry: &mut Entry<'_>, before: Option<Head>, decided: Decided<'_, Arc<Body>>) -> Done {
    let version = match &decided.change {
        Change::None => before.map_or(0, |head| head.version),
        Change::Put(new) => put(entry, new)?,
        Change::Remove(fence) => entry.remove(*fence).unwrap_or(0),
        Change::Leave(fence) => {
            entry.leave(*fence);
            0
        }
    };
    Ok((version, decided.answer))
}

#[inline]
fn put(entry: &mut Entry<'_>, new: &New<'_, Arc<Body>>) -> Result<Version, Error> {
    let (flags, expires_ms, memcached, fence) = (new.flags, new.expires_ms, new.memcached, new.fence);
    let value = match &new.value {
        NewValue::Kept => return entry.amend(&Amended { flags, expires_ms, memcached, fence }),
        NewValue::Small(bytes, crc) => Given::Small(bytes, *crc),
        NewValue::Large(body) => Given::Large(body.clone()),
        NewValue::Parts(_) => unreachable!("what is made of parts was put together before"),
    };
    let kept;
    let attributes = match new.attributes {
        Some(attributes) => attributes,
        None => {
            kept = entry.found().map(|found| found.attributes.to_vec()).unwrap_or_default();
            &kept[..]
        }
    };
    entry.put(&NewObject { value, flags, expires_ms, attributes, memcached, fence })
}

/// A decision whose value is whole.
pub(crate) fn built<'a>(
    cx: &Context,
    of: (&Collection, &[u8]),
    mut decided: Decided<'a, Arc<Body>>,
    snapshot: Option<&Snapshot>,
) -> Result<Decided<'a, Arc<Body>>, Error> {
    if let Change::Put(New { value, .. }) = &mut decided.change
        && let NewValue::Parts(parts) = value
    {
        *value = NewValue::Large(Arc::new(put_together(cx, of, parts, snapshot)?));
    }
    Ok(decided)
}

fn put_together(
    cx: &Context,
    (c, name): (&Collection, &[u8]),
    parts: &[Part<'_, Arc<Body>>],
    snapshot: Option<&Snapshot>,
) -> Result<Body, Error> {
    let (size_bytes, changed_bytes) = sizes(parts, snapshot);
    let mut upload = cx.shared.store.admit_change(c, name, size_bytes, changed_bytes)?;
    for part in parts {
        match part {
            Part::Bytes(bytes) => upload.write(bytes, cx.now)?,
            Part::Large(body) => upload.copy(body, 0, body.len(), cx.now)?,
            Part::Zeros(n) => upload.zeros(*n, cx.now)?,
            Part::Old(from, to) => match snapshot.map(|snapshot| &snapshot.value) {
                Some(Kept::Small(bytes, _)) => upload.write(&bytes[*from as usize..*to as usize], cx.now)?,
                Some(Kept::Large(body)) => upload.copy(body, *from, *to, cx.now)?,
                None => unreachable!("a part of an object that is not there is empty, and was left out"),
            },
        }
    }
    upload.finish(cx.now)
}

/// Bytes of the new value, and how many of them take memory: neither zeros nor what stays in its place does.
fn sizes(parts: &[Part<'_, Arc<Body>>], snapshot: Option<&Snapshot>) -> (u64, u64) {
    let has_blocks = snapshot.is_some_and(|snapshot| matches!(snapshot.value, Kept::Large(_)));
    parts.iter().fold((0, 0), |(at, changed), part| {
        let stays = match part {
            Part::Zeros(_) => true,
            Part::Old(from, _) => has_blocks && *from == at,
            Part::Bytes(_) | Part::Large(_) => false,
        };
        (at + part.len(), changed + if stays { 0 } else { part.len() })
    })
}
