//! Puts that begin at once: the short way of what most writes are. A plain put of a small value, of a client of this
//! very loop, needs no decision: it is done whatever is there. So where nothing of its object is under way, it is
//! prepared in the store and its prepares are written to the links from the bytes of the client, without becoming an
//! operation, a request or a change that somebody keeps. From there on it is a write like any other, and what goes
//! wrong with it goes the long way.
//!
//! The long way is taken for conditions, tokens, fenced objects, ranges, attributes, values that do not lie beside
//! their key, what other nodes or loops hand on, and while a member is syncing, has no link, or takes its messages
//! slowly.

use super::{Gates, Operation, look_at_map, loop_of, with};
use crate::context::Context;
use herd_core::replica::window::RequestId;
use herd_core::wire::Own;
use herd_net::Ticket;
use herd_store::{Collection, Key};

/// A plain put of a small value.
pub(crate) struct AtOnce<'a> {
    /// Its collection.
    pub(crate) collection: &'a Collection,
    /// Its object.
    pub(crate) key: &'a Key,
    /// At most what lies beside a key, and its CRC-32C.
    pub(crate) value: &'a [u8],
    /// See there.
    pub(crate) check: u32,
    /// Opaque flags.
    pub(crate) flags: u32,
    /// When it expires, ms since 1970; 0: never.
    pub(crate) expires_ms: u64,
    /// If it is refused, what was there goes.
    pub(crate) else_remove: bool,
    /// Who asks.
    pub(crate) id: RequestId,
    /// The id that its client has given it, if that is one.
    pub(crate) own: Option<Own>,
    /// That of its reply.
    pub(crate) ticket: Ticket,
    /// Memory of what is kept for that.
    pub(crate) held_bytes: u64,
}

/// What a put that began at once takes here besides its name and value until all members have it, about: the operation,
/// its write, where it stands in the line of its object, and what it answers.
pub(super) const AT_ONCE_BYTES: usize = 2 * size_of::<Operation>() + 512;

/// Whether puts of this object may begin at once: this node decides on it, in a group whose part lives on this loop.
pub(crate) fn may_put_at_once(cx: &Context, key: &Key) -> bool {
    let gates: &Gates = &cx.shared.gates;
    let group = gates.group_of(key.spread(), key.slot());
    group.is_some_and(|group| gates.is_open(group) && loop_of(cx, group) == cx.number)
}

/// Begins a put; what it comes to is told by [`deliver`](super::deliver). False: nothing was begun, and it goes the
/// long way.
pub(crate) fn put_at_once(cx: &mut Context, put: &AtOnce<'_>) -> bool {
    look_at_map(cx);
    let group = cx.shared.gates.group_of(put.key.spread(), put.key.slot());
    with(cx, group, |share, cx| share.put_at_once(cx, put)) == Some(true)
}
