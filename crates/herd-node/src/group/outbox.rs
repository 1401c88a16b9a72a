//! What a group's part here says to one member: messages in order, and ahead of each the value that is too long for its
//! frame. And what a member said of that: parts of a value, until the message comes that names it.
//!
//! Of one group a member is sent one long value at a time, and has at most [`AHEAD_BYTES`] of it unanswered; all that
//! is to be said to it later stands behind that, as messages must not pass each other.

use super::change::{Edit, Key, refusal_of};
use crate::context::Context;
use herd_core::limits::{BLOCK_BYTES, GROUP_AHEAD_BYTES as AHEAD_BYTES, WIRE_FRAME_BODY_MAX_BYTES};
use herd_core::place::{GroupId, NodeId};
use herd_core::replica::{Message, Offer, Refusal};
use herd_core::wire::{Ahead, GroupMessage, Said};
use herd_store::{Body, Upload};
use std::collections::VecDeque;
use std::sync::Arc;

/// What is to be said to one member over one link.
pub(super) struct Outbox {
    group: GroupId,
    to: NodeId,
    /// Of the link.
    pub(super) generation: u64,
    waiting: VecDeque<Message<Key, Edit>>,
    /// Number of the value that is sent, or was last; bytes of it that were sent, and that have come.
    id: u64,
    sent: u64,
    taken: u64,
}

impl Outbox {
    pub(super) fn new(group: GroupId, to: NodeId, generation: u64) -> Self {
        Self { group, to, generation, waiting: VecDeque::new(), id: 0, sent: 0, taken: 0 }
    }

    /// Says it, when all before it is said.
    pub(super) fn push(&mut self, cx: &mut Context, message: Message<Key, Edit>) {
        self.waiting.push_back(message);
        if self.waiting.len() == 1 {
            self.go_on(cx);
        }
    }

    /// Whether all is said.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// So many bytes of a value have come.
    pub(super) fn taken(&mut self, cx: &mut Context, id: u64, bytes: u64) {
        if id == self.id && bytes <= self.sent {
            self.taken = self.taken.max(bytes);
            self.go_on(cx);
        }
    }

    fn go_on(&mut self, cx: &mut Context) {
        while let Some(message) = self.waiting.front() {
            if let Some((key, body)) = long_value(message)
                && !{
                    let (key, body) = (key.clone(), body.clone());
                    self.send_value(cx, &key, &body)
                }
            {
                return;
            }
            let Some(message) = self.waiting.pop_front() else { return };
            let (id, now_ms) = (self.id, cx.now.unix_ms);
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
        while self.sent < body.len() && self.sent - self.taken < AHEAD_BYTES {
            let is_laden = cx.links.is_laden(self.to, self.generation);
            if is_laden && self.sent > self.taken {
                // It goes on when what is on its way has come.
                return false;
            }
            let most = if is_laden { BLOCK_BYTES } else { WIRE_FRAME_BODY_MAX_BYTES.min(AHEAD_BYTES as usize) };
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
            self.sent = end;
        }
        self.sent == body.len()
    }
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
