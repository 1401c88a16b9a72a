//! What replica groups need of a loop's links: to say something to a member over the link that its part goes by, and to
//! hear of links that come and go.

use super::Ends;
use super::ends::{End, lose};
use super::peers::Target;
use crate::context::Context;
use herd_core::place::{GroupId, NodeId};
use herd_core::replica::{GroupEpoch, Want};
use herd_core::wire::LinkId;

/// A link came or went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// It is up, to a node of so many loops.
    Up(LinkId, u16),
    /// It is lost.
    Down(LinkId),
}

impl Ends {
    /// Links that came and went since this was last asked, in order.
    pub(crate) fn take_changes(&mut self) -> Vec<Change> {
        std::mem::take(&mut self.changes)
    }

    /// The links that are up, and the loops of the nodes at their other ends.
    pub(crate) fn current(&self) -> impl Iterator<Item = (LinkId, u16)> + '_ {
        self.ends.values().map(|end| (end.id, end.peer.loops))
    }

    /// Says something over the link to a node of that generation, if it is there; `encode` is given the map's epoch.
    pub(crate) fn tell(&mut self, node: NodeId, generation: u64, encode: impl FnOnce(u32, &mut Vec<u8>)) {
        let epoch = self.mark().epoch;
        let links = self.ends.range_mut(Target { node, link: 0 }..=Target { node, link: u16::MAX });
        let end = links.map(|(_, end)| end).find(|end| end.id.generation() == generation);
        if let Some(ticket) = end.map(|end| end.say(|out| encode(epoch, out))) {
            self.ready.extend(ticket);
        }
    }

    /// Whether more waits to be sent over the link to a node of that generation than changes may add to.
    pub(crate) fn is_laden(&self, node: NodeId, generation: u64) -> bool {
        let mut links = self.ends.range(Target { node, link: 0 }..=Target { node, link: u16::MAX });
        links.any(|(_, end)| end.id.generation() == generation && end.is_laden())
    }

    /// Bytes that wait to be sent over the link that has most of them.
    #[cfg(test)]
    pub(crate) fn most_waiting_bytes(&self) -> u64 {
        self.ends.values().map(End::waiting_bytes).max().unwrap_or(0)
    }

    /// Asks the warden, in the view of that epoch.
    pub(crate) fn want(&self, group: GroupId, epoch: GroupEpoch, want: Want) {
        self.hub().into_iter().for_each(|hub| hub.owner.wants(group, epoch, want));
    }

    /// The link to a node of that generation.
    pub(crate) fn of_generation(&self, node: NodeId, generation: u64) -> Option<LinkId> {
        let mut links = self.ends.range(Target { node, link: 0 }..=Target { node, link: u16::MAX });
        links.find(|(_, end)| end.id.generation() == generation).map(|(_, end)| end.id)
    }
}

/// Closes a link whose other end breaks the rules of its groups; a new one takes its place.
pub(crate) fn close(cx: &mut Context, link: LinkId) {
    let now_ms = cx.now_ms();
    let lost = cx.links.close(link, now_ms);
    lose(cx, lost);
}

impl End {
    /// Says something with the next turn; gives the ticket where nothing was to be said before.
    fn say(&mut self, encode: impl FnOnce(&mut Vec<u8>)) -> Option<herd_net::Ticket> {
        let is_silent = self.unsent.is_empty();
        encode(&mut self.unsent);
        is_silent.then_some(self.ticket)
    }
}
