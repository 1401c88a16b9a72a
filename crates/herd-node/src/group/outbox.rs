//! What a group's part here says to one member: messages in order, and ahead of each the value that is too long for its
//! frame. And what a member said of that: parts of a value, until the message comes that names it.
//!
//! Of one group a member is sent one long value at a time, and has at most [`AHEAD_BYTES`] of it unanswered; all that
//! is to be said to it later stands behind that, as messages must not pass each other.

use super::change::{Edit, Key, refusal_of};
use crate::context::Context;
use herd_core::limits::GROUP_AHEAD_BYTES as AHEAD_BYTES;
use herd_core::limits::{BLOCK_BYTES, COPY_BUSY_PART, COPY_REST_COPIES, COPY_REST_MAX_MS, WIRE_FRAME_BODY_MAX_BYTES};
use herd_core::place::{GroupId, NodeId};
use herd_core::replica::{Change as _, Message, Offer, Refusal};
use herd_core::wire::{Ahead, GroupMessage, Said};
use herd_store::{Body, Upload};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// What is to be said to one member over one link.
pub(super) struct Outbox {
    group: GroupId,
    to: NodeId,
    /// Of the link.
    pub(super) generation: u64,
    waiting: VecDeque<Message<Key, Edit>>,
    /// Of the long values among them that are to be stored.
    long_bytes: u64,
    /// Number of the value that is sent, or was last; bytes of it that were sent, and that have come.
    id: u64,
    sent: u64,
    taken: u64,
    pace: Pace,
}

/// How fast objects are copied to a member that is syncing: while the node serves clients, with rests.
#[derive(Default)]
struct Pace {
    /// When a part of a copy was sent last, ns, and how many bytes of it.
    sent_ns: u64,
    sent_bytes: u64,
    /// What is to be rested: less than 1 ms, as it adds up.
    owed_ns: u64,
    /// Until when nothing is copied.
    until_ms: Option<u64>,
}

const MS: u64 = 1_000_000;

impl Pace {
    fn sent(&mut self, cx: &Context, bytes: u64) {
        (self.sent_ns, self.sent_bytes) = (cx.up().as_nanos() as u64, bytes);
    }

    /// What was sent has come; whether nothing more is copied for now.
    fn came(&mut self, cx: &Context) -> bool {
        let copies = cx.shared.copies.load(Relaxed).max(1);
        self.came_beside(cx.is_busy().then_some(copies), cx.up().as_nanos() as u64)
    }

    /// As [`Pace::came`]; `copies`: how many are made from here, if clients are served.
    fn came_beside(&mut self, copies: Option<u64>, now_ns: u64) -> bool {
        let Some(copies) = copies else {
            self.owed_ns = 0;
            return false;
        };
        let took_ns = now_ns.saturating_sub(self.sent_ns).min(COPY_REST_MAX_MS * MS);
        let of_block_ns = took_ns * self.sent_bytes.min(BLOCK_BYTES as u64) / BLOCK_BYTES as u64;
        self.owed_ns += of_block_ns * (copies * COPY_BUSY_PART - 1);
        if self.owed_ns < MS {
            return false;
        }
        let most_ns = COPY_REST_MAX_MS * MS * copies.div_ceil(COPY_REST_COPIES);
        let rest_ns = std::mem::take(&mut self.owed_ns).min(most_ns);
        self.until_ms = Some((now_ns + rest_ns).div_ceil(MS));
        true
    }
}

impl Outbox {
    pub(super) fn new(group: GroupId, to: NodeId, generation: u64) -> Self {
        Self {
            group,
            to,
            generation,
            waiting: VecDeque::new(),
            long_bytes: 0,
            id: 0,
            sent: 0,
            taken: 0,
            pace: Pace::default(),
        }
    }

    /// Says it, when all before it is said.
    pub(super) fn push(&mut self, cx: &mut Context, message: Message<Key, Edit>) {
        self.long_bytes += long_bytes(&message);
        self.waiting.push_back(message);
        if self.waiting.len() == 1 || self.pace.until_ms.is_some() {
            self.go_on(cx);
        }
    }

    /// Whether a copy of an object is to be said next, and nothing else: what stands behind it makes it hurry.
    fn may_rest(&self) -> bool {
        self.is_copying() && self.waiting.len() == 1
    }

    /// Whether all is said.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Whether much is to be sent still of long values that are to be stored.
    pub(super) fn is_laden(&self) -> bool {
        let sent = if self.is_copying() { 0 } else { self.sent };
        self.long_bytes.saturating_sub(sent) > AHEAD_BYTES
    }

    /// So many bytes of a value have come. `rests`: whether copies may rest.
    pub(super) fn taken(&mut self, cx: &mut Context, (id, bytes): (u64, u64), rests: bool) {
        if id == self.id && bytes <= self.sent {
            self.taken = self.taken.max(bytes);
            if rests && self.is_copying() && self.taken == self.sent {
                self.pace.came(cx);
            }
            self.go_on(cx);
        }
    }

    /// Whether a copy of an object is to be said next.
    fn is_copying(&self) -> bool {
        matches!(self.waiting.front(), Some(Message::Copy { .. }))
    }

    /// The member has the copy of an object; whether the next one waits until [`Outbox::rests_until_ms`].
    pub(super) fn copied(&mut self, cx: &Context) -> bool {
        self.pace.came(cx)
    }

    /// Until when nothing is copied to the member, if it is so.
    pub(super) fn rests_until_ms(&self) -> Option<u64> {
        self.pace.until_ms
    }

    /// Whether it has rested, and goes on.
    pub(super) fn has_rested(&mut self, cx: &mut Context) -> bool {
        let has_rested = self.pace.until_ms.take_if(|until_ms| *until_ms <= cx.now_ms()).is_some();
        if has_rested {
            self.go_on(cx);
        }
        has_rested
    }

    fn go_on(&mut self, cx: &mut Context) {
        while let Some(message) = self.waiting.front() {
            if self.may_rest() && self.pace.until_ms.is_some() {
                return;
            }
            if let Some((key, body)) = long_value(message)
                && !{
                    let (key, body) = (key.clone(), body.clone());
                    self.send_value(cx, &key, &body)
                }
            {
                return;
            }
            let Some(message) = self.waiting.pop_front() else { return };
            self.long_bytes -= long_bytes(&message);
            let (id, now_ms) = (self.id, cx.now.unix_ms);
            if let Message::Copy { state, .. } = &message {
                // Of a long value the last part may be on its way still.
                let bytes = state.long_value().map_or(state.size_bytes(), |_| self.sent - self.taken);
                self.pace.sent(cx, bytes);
            }
            let message = message.map(Key::sent, |edit| edit.sent(id, now_ms));
            let message = GroupMessage { group: self.group, message };
            let encode = |epoch, out: &mut Vec<u8>| {
                message.encode(out, epoch).expect("a part keeps the limits of a frame");
            };
            cx.links.tell(self.to, self.generation, encode);
            (self.sent, self.taken) = (0, 0);
        }
    }

    /// Sends what may be sent of a value; whether that is all of it.
    fn send_value(&mut self, cx: &mut Context, key: &Key, body: &Arc<Body>) -> bool {
        if self.sent == 0 {
            self.id += 1;
        }
        // A copy leaves others room beside it.
        let ahead = if self.may_rest() && cx.is_busy() { BLOCK_BYTES as u64 } else { AHEAD_BYTES };
        while self.sent < body.len() && self.sent - self.taken < ahead {
            let is_laden = cx.links.is_laden(self.to, self.generation);
            if is_laden && self.sent > self.taken {
                // It goes on when what is on its way has come.
                return false;
            }
            let most = if is_laden { BLOCK_BYTES } else { WIRE_FRAME_BODY_MAX_BYTES.min(ahead as usize) };
            let end = body.len().min(self.sent + most as u64);
            let mut bytes = Vec::with_capacity((end - self.sent) as usize);
            herd_core::entry::Value::Body(&**body).copy(self.sent, end, &mut bytes);
            let of = (key.of.collection, &*key.of.name);
            let said = Said::Part { of, length: body.len(), from: self.sent, bytes: &bytes };
            let ahead = Ahead { group: self.group, id: self.id, said };
            let (first, last) = ((self.sent / BLOCK_BYTES as u64) as usize, end.div_ceil(BLOCK_BYTES as u64) as usize);
            let checks = &body.checksums()[first..last];
            cx.links.tell(self.to, self.generation, |epoch, out| {
                ahead.encode(out, epoch, checks.iter().copied()).expect("it was cut to fit a frame");
            });
            if self.is_copying() {
                self.pace.sent(cx, end - self.sent);
            }
            self.sent = end;
        }
        self.sent == body.len()
    }
}

/// How much goes ahead of a message, unless it is a copy.
fn long_bytes(message: &Message<Key, Edit>) -> u64 {
    let value = long_value(message).filter(|_| !matches!(message, Message::Copy { .. }));
    value.map_or(0, |(_, body)| body.len())
}

/// The value that goes ahead of a message, and its object.
fn long_value(message: &Message<Key, Edit>) -> Option<(&Key, &Arc<Body>)> {
    let (key, edit) = match message {
        Message::Prepare { key, offer: Offer::Change(edit) | Offer::Whole(edit), .. } => (key, edit),
        Message::Copy { key, state, .. } => (key, state),
        _ => return None,
    };
    edit.long_value().map(|body| (key, body))
}

/// A value that is coming.
pub(super) struct Inbox {
    generation: u64,
    id: u64,
    length: u64,
    came: u64,
    /// Where it goes; or why it can't.
    upload: Result<Upload, Refusal>,
}

impl Inbox {
    /// Takes a part of a value; what is there of another one goes. `None`: it is not the next part.
    pub(super) fn take(
        before: Option<Self>,
        cx: &Context,
        generation: u64,
        id: u64,
        (of, length, from, bytes): ((herd_core::key::CollectionId, &[u8]), u64, u64, &[u8]),
    ) -> Option<Self> {
        let begins = from == 0;
        let mut inbox = match before {
            Some(inbox) if !begins => {
                let is_next = (inbox.generation, inbox.id, inbox.length, inbox.came) == (generation, id, length, from);
                Some(inbox).filter(|_| is_next)?
            }
            _ if begins => Self { generation, id, length, came: 0, upload: admit(cx, of, length) },
            _ => return None,
        };
        if let Ok(upload) = &mut inbox.upload
            && let Err(error) = upload.write(bytes, cx.now)
        {
            inbox.upload = Err(refusal_of(&error));
        }
        inbox.came += bytes.len() as u64;
        Some(inbox)
    }

    /// So many bytes have come.
    pub(super) fn came(&self) -> u64 {
        self.came
    }

    /// The value, for a message that names it. `None`: it is not this one, or not there.
    pub(super) fn finish(
        self,
        cx: &Context,
        (generation, id, length): (u64, u64, u64),
    ) -> Option<Result<Arc<Body>, Refusal>> {
        let is_it = (self.generation, self.id, self.length, self.came) == (generation, id, length, length);
        let finish = |upload: Upload| upload.finish(cx.now).map(Arc::new).map_err(|error| refusal_of(&error));
        is_it.then(|| self.upload.and_then(finish))
    }
}

fn admit(cx: &Context, (id, name): (herd_core::key::CollectionId, &[u8]), length: u64) -> Result<Upload, Refusal> {
    let store = &cx.shared.store;
    let c = store.collection_by_id(id).ok_or(Refusal::NoCollection)?;
    store.admit(&c, name, Some(length)).map_err(|error| refusal_of(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Copies one after the other, each of which takes so long to come; which part of the time they are on their way.
    fn part_on_way(copies: Option<u64>, bytes: u64, took_ns: u64) -> f64 {
        let (mut pace, mut now_ns) = (Pace::default(), 0);
        let count = 500;
        for _ in 0..count {
            (pace.sent_ns, pace.sent_bytes) = (now_ns, bytes);
            now_ns += took_ns;
            match pace.came_beside(copies, now_ns) {
                true => now_ns = now_ns.max(pace.until_ms.take().expect("it rests") * MS),
                false => assert_eq!(pace.until_ms, None),
            }
        }
        (count * took_ns) as f64 / now_ns as f64
    }

    #[test]
    fn all_copies_together_take_their_part_while_clients_are_served() {
        let block = BLOCK_BYTES as u64;
        let part = 1.0 / COPY_BUSY_PART as f64;
        for copies in [1, 2, 6, 12, 64] {
            for took_ns in [200_000, 2_600_000] {
                let on_way = copies as f64 * part_on_way(Some(copies), block, took_ns);
                assert!((0.8 * part..=1.01 * part).contains(&on_way), "{copies} copies of {took_ns} ns: {on_way}");
            }
        }
        assert_eq!(part_on_way(None, block, 2_600_000), 1.0, "nobody is served");
        assert!(part_on_way(Some(2), 1_024, 150_000) > 0.75, "what is short holds nobody up");
        let slow = part_on_way(Some(2), block, 3_000 * MS);
        assert!(slow > 0.9, "it comes to an end where the way is full, or the member was paused: {slow}");
    }
}
