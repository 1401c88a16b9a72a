//! Maps on their way: from the node of the warden to all others, over link 0 of each pair, so that one loop does it.
//!
//! To whom, the marks tell that each beat and each answer has. A node that has an earlier map is sent what has changed,
//! if it has the one before, else the whole; the next one when that is answered, and the whole anew where it was not
//! taken. So there is one map at most on its way to each node.

use super::ends::{End, Ends};
use super::hub::View;
use super::peers::Target;
use super::{Came, Note};
use herd_core::limits::MAP_AGAIN_MS;
use herd_core::place::Map;
use herd_core::wire::{Assembly, Header, Kind, LinkId, MapMark, MapSent, VERB_MAP, WireError};
use herd_core::{Error, ErrorKind};
use std::borrow::Cow;

/// The map that was sent last to a node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pushed {
    edition: u64,
    at_ms: u64,
    is_answered: bool,
}

/// A map that has come in part.
pub(super) struct Staged {
    id: LinkId,
    request: Header,
    sent: MapSent,
    assembly: Assembly,
}

impl View {
    /// The bytes that make this map of the one that has this mark, and whether they are a difference.
    pub(super) fn bytes(&self, has: MapMark, is_again: bool) -> (bool, Cow<'_, [u8]>) {
        let is = |map: &Map| (map.epoch, map.revision) == (has.epoch, has.revision);
        let base = [Some(&self.map), self.before.as_ref()].into_iter().flatten().find(|map| is(map));
        match base.filter(|_| !is_again) {
            Some(base) => (true, self.map.encode_since(base).into()),
            None => (false, Cow::Borrowed(self.whole.get_or_init(|| self.map.encode()))),
        }
    }
}

impl End {
    /// Whether it is to be sent the map of this view now, and if so whether that is anew.
    fn wants(&self, view: &View, now_ms: u64) -> Option<bool> {
        let has = self.has?;
        // One that it has it is sent once, too: it may have it of another node, and hears so where the warden is.
        let was_sent = self.pushed.is_some_and(|pushed| pushed.edition == view.edition);
        if has > view.mark || has == view.mark && was_sent {
            return None;
        }
        match self.pushed {
            Some(pushed) if !pushed.is_answered => None,
            Some(pushed) if pushed.edition == view.edition => (now_ms >= pushed.at_ms + MAP_AGAIN_MS).then_some(true),
            _ => Some(false),
        }
    }
}

impl Ends {
    /// Sends the map to a node, if it is for this loop to do so, and the node has an earlier one or was sent none.
    pub(super) fn push(&mut self, target: Target, now_ms: u64) {
        let view = self.view.clone().filter(|view| view.pushes && target.link == 0);
        let Some((view, end)) = view.zip(self.ends.get(&target)) else { return };
        let Some((is_again, has)) = end.wants(&view, now_ms).zip(end.has) else { return };
        let (is_difference, bytes) = view.bytes(has, is_again);
        let sent = MapSent { mark: view.mark, is_difference, may_be_done: false };
        let request = Header { verb: VERB_MAP, ..Header::new(Kind::Request) };
        let encode = |header: Header, out: &mut Vec<u8>| sent.encode(out, header.id, &bytes);
        if self.ask(target.node, request, Note::Map(view.edition), encode).is_ok() {
            let pushed = Pushed { edition: view.edition, at_ms: now_ms, is_answered: false };
            self.ends.entry(target).and_modify(|end| end.pushed = Some(pushed));
        }
    }

    /// A map of that edition was answered.
    pub(super) fn push_answered(&mut self, id: LinkId, edition: u64) {
        let pushed = self.end(id).and_then(|end| end.pushed.as_mut());
        pushed.filter(|pushed| pushed.edition == edition).into_iter().for_each(|pushed| pushed.is_answered = true);
    }

    /// Takes the first frame of a map that is sent here. Whether it is wholly there: then it can be answered. Error: it
    /// is no map, or another one is just coming; its further frames, if it has any, are dropped.
    pub(super) fn receive(
        &mut self,
        id: LinkId,
        header: &Header,
        came: Result<(MapSent, Assembly), WireError>,
        body: &[u8],
    ) -> Result<bool, Error> {
        let (sent, mut assembly) = came?;
        if self.staged.as_ref().is_some_and(|staged| staged.id != id && self.is_current(staged.id)) {
            return Err(Error::new(ErrorKind::Busy, "another map is coming"));
        }
        let is_whole = assembly.take(header, body)?;
        self.staged = Some(Staged { id, request: *header, sent, assembly });
        if is_whole {
            self.received();
        }
        Ok(is_whole)
    }

    /// Takes a further frame. The request, if the map is wholly there now.
    pub(super) fn receive_more(
        &mut self,
        id: LinkId,
        header: &Header,
        body: &[u8],
    ) -> Result<Option<Header>, WireError> {
        let Some(staged) = &mut self.staged else { return Ok(None) };
        if staged.id != id || staged.request.id != header.id || !staged.assembly.take(header, body)? {
            return Ok(None);
        }
        let request = staged.request;
        self.received();
        Ok(Some(request))
    }

    /// Hands the owner the map that has come.
    fn received(&mut self) {
        let Some((staged, hub)) = self.staged.take().zip(self.hub()) else { return };
        let Staged { id, sent, assembly, .. } = staged;
        hub.owner.map_came(Came { from: id.node, sent, bytes: assembly.into_bytes(), is_pushed: true });
    }
}
