//! The ends of links that a loop has, and what it asks over them.

use super::group::Change;
use super::hub::{self, View};
use super::peers::{Peers, Target};
use super::petition::Answers;
use super::push::{Pushed, Staged};
use super::{Came, Hub, LinkLost, NoLink, Note, verbs};
use crate::context::Context;
use herd_core::limits::{
    ASK_AROUND_MS, LINK_ASKED_MAX_MS, LINK_BYTES_MAX, LINK_OPS_MAX, LINK_PART, LINK_REDIAL_MAX_MS, LINK_ROOM_MIN_BYTES,
    STALLED_TIMEOUT_MS,
};
use herd_core::place::NodeId;
use herd_core::wire::{
    Accepting, Asker, Beat, Beats, Dialing, ErrandComing, Fields, Header, Kind, LENGTH_UNKNOWN, LINK_PROTOCOL,
    LinkError, LinkErrorKind, LinkId, Links, MapMark, MapSent, Peer, Side, Status, VERB_BEAT, WireError, lanes,
};
use herd_net::Ticket;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

/// The links of one loop.
pub(crate) struct Ends {
    number: u16,
    loops: u16,
    /// Bytes that may wait to be sent over one of them before nothing more is asked that may be refused.
    room_bytes: u64,
    hub: Option<Arc<Hub>>,
    /// The map as it was seen last, and the hub's changes then.
    pub(super) view: Option<Arc<View>>,
    seen: u64,
    links: Links,
    pub(super) ends: BTreeMap<Target, End>,
    pub(super) peers: Peers,
    /// Since when links are gone that were there.
    gone_ms: BTreeMap<Target, u64>,
    /// When [`super::alarm`] has something to do, unless there is a new map.
    due_ms: u64,
    /// When those are asked that should dial this node; `None`: all have.
    around_ms: Option<u64>,
    /// Ends with something to say.
    pub(super) ready: Vec<Ticket>,
    /// Links that came and went.
    pub(super) changes: Vec<Change>,
    /// Connections of links that went: what came over them, and is not begun, is not to be done any more.
    left: Vec<u64>,
    /// What the warden has answered to requests that came over these links.
    pub(super) answers: Arc<Answers>,
    /// A map of several frames that is coming.
    pub(super) staged: Option<Staged>,
    /// A control store that is coming, over which link, by which request.
    pub(super) errand: Option<(LinkId, Header, ErrandComing)>,
    /// Why nodes were refused, as the owner was told.
    refused: BTreeMap<NodeId, LinkErrorKind>,
    /// What came of the probes of tests.
    #[cfg(test)]
    pub(super) probes: Vec<(u64, Result<Option<herd_core::wire::Status>, LinkLost>)>,
}

/// This end of a link that is up.
pub(super) struct End {
    pub(super) id: LinkId,
    pub(super) peer: Peer,
    pub(super) asker: Asker<Note>,
    side: Side,
    /// Bytes that may wait to be sent before nothing is taken or asked any more that may be refused.
    pub(super) room_bytes: u64,
    pub(super) beats: Beats,
    /// Since when a beat is not answered.
    unanswered_ms: Option<u64>,
    /// Until when it lasts at most, if the other node dialed, which has the lower number.
    until_ms: Option<u64>,
    /// Makes the connection speak.
    pub(super) ticket: Ticket,
    /// What it is to say with the next turn.
    pub(super) unsent: Vec<u8>,
    /// Bytes that it had to send besides when it was last looked at.
    pub(super) pending_bytes: usize,
    /// The map that the other end has, as far as it told.
    pub(super) has: Option<MapMark>,
    pub(super) pushed: Option<Pushed>,
}

impl End {
    fn new(id: LinkId, peer: Peer, side: Side, (ticket, room_bytes): (Ticket, u64), now_ms: u64) -> Self {
        Self {
            id,
            peer,
            asker: Asker::new(side),
            side,
            room_bytes,
            beats: Beats::new(now_ms),
            unanswered_ms: None,
            until_ms: None,
            ticket,
            unsent: Vec::new(),
            pending_bytes: 0,
            has: None,
            pushed: None,
        }
    }

    /// Asks: `encode` appends the frames of the request, which has the header that it is given.
    fn ask(
        &mut self,
        request: Header,
        note: Note,
        encode: impl FnOnce(Header, &mut Vec<u8>) -> Result<(), WireError>,
    ) -> Result<u64, NoLink> {
        self.check_room(note)?;
        let request = Header { kind: Kind::Request, id: self.asker.next_id(), ..request };
        encode(request, &mut self.unsent).expect("who asks keeps the limits of a frame");
        // That of a flight is allowed when it has begun to come.
        if self.asker.open(request, note) && !matches!(note, Note::Flight(..)) {
            self.unsent.extend_from_slice(&Header::credit(request.id, LENGTH_UNKNOWN).encode());
        }
        Ok(request.id)
    }

    /// Whether one more may be asked.
    fn check_room(&self, note: Note) -> Result<(), NoLink> {
        // What nodes ask for themselves is little.
        let room_bytes = if matches!(note, Note::Flight(..)) { self.room_bytes } else { LINK_BYTES_MAX };
        let is_full = self.asker.len() >= LINK_OPS_MAX || self.waiting_bytes() > room_bytes;
        if is_full { Err(NoLink::Busy) } else { Ok(()) }
    }

    /// Whether too much waits to be sent for anything to be asked that may be refused.
    pub(super) fn is_laden(&self) -> bool {
        self.waiting_bytes() > self.room_bytes
    }

    /// Bytes that wait to be sent.
    pub(super) fn waiting_bytes(&self) -> u64 {
        (self.pending_bytes + self.unsent.len()) as u64
    }

    /// Whether this end opened the request of that id.
    pub(super) fn has_asked(&self, id: u64) -> bool {
        self.side.opened(id)
    }

    /// Says that this end is there, and which map it has.
    fn beat(&mut self, mark: MapMark, now_ms: u64, sent_ns: u64) {
        let request = Header { verb: VERB_BEAT, ..Header::new(Kind::Request) };
        let beat = |header, out: &mut Vec<u8>| {
            mark.tell(out, header);
            Ok(())
        };
        // Where too much is under way for a beat, that is heard.
        if self.ask(request, Note::Beat(sent_ns), beat).is_ok() {
            self.unanswered_ms.get_or_insert(now_ms);
        }
    }

    /// Whether it is needed no more: a node of a lower number dialed, and what it had to tell is known.
    fn has_told(&self, view: Option<&View>) -> bool {
        self.until_ms.is_some() && !hub::is_news(view, &self.peer)
    }

    /// A beat was answered.
    pub(super) fn beat_answered(&mut self) {
        self.unanswered_ms = None;
    }

    /// What is due now. An end whose other one sends and never reads is lost as well.
    fn poll(&mut self, now_ms: u64) -> Beat {
        let answered_by_ms = self.unanswered_ms.map(|since_ms| since_ms + STALLED_TIMEOUT_MS);
        match [answered_by_ms, self.until_ms].into_iter().flatten().min() {
            Some(until_ms) if now_ms >= until_ms => Beat::Lost,
            _ => self.beats.poll(now_ms),
        }
    }
}

impl Ends {
    /// Of the loop of this number, of so many; without a hub it has none.
    pub(crate) fn new(hub: Option<Arc<Hub>>, number: usize, loops: usize, memory_bytes: u64) -> Self {
        let small = |n: usize| u16::try_from(n).unwrap_or(u16::MAX);
        let (number, loops) = (small(number), small(loops).max(1));
        Self {
            number,
            loops,
            room_bytes: (memory_bytes / LINK_PART).clamp(LINK_ROOM_MIN_BYTES, LINK_BYTES_MAX),
            hub,
            view: None,
            seen: 0,
            links: Links::default(),
            ends: BTreeMap::new(),
            peers: Peers::new(number, loops),
            gone_ms: BTreeMap::new(),
            due_ms: u64::MAX,
            around_ms: None,
            ready: Vec::new(),
            changes: Vec::new(),
            left: Vec::new(),
            answers: Arc::default(),
            staged: None,
            errand: None,
            refused: BTreeMap::new(),
            #[cfg(test)]
            probes: Vec::new(),
        }
    }

    /// When [`super::alarm`] has something to do.
    #[inline]
    pub(crate) fn alarm_ms(&self) -> u64 {
        match &self.hub {
            Some(hub) if hub.changes() != self.seen => 0,
            _ => self.due_ms,
        }
    }

    /// Gives the tickets of ends that have something to say.
    #[inline]
    pub(crate) fn take_ready(&mut self, tickets: &mut Vec<Ticket>) {
        if self.answers.are_there() {
            self.pass_on_answers();
        }
        tickets.append(&mut self.ready);
    }

    /// Asks something of a node: `encode` appends the frames of the request, which has the header that it is given and
    /// keeps the limits of a frame. What becomes of it comes to [`verbs::answered`], with the note. All that is asked
    /// of one node takes one link, in order.
    pub(crate) fn ask(
        &mut self,
        node: NodeId,
        request: Header,
        note: Note,
        encode: impl FnOnce(Header, &mut Vec<u8>) -> Result<(), WireError>,
    ) -> Result<(LinkId, u64), NoLink> {
        let target = Target { node, link: lanes::link_of(self.number, self.loops) };
        let end = self.ends.get_mut(&target).ok_or(NoLink::Down)?;
        let id = end.ask(request, note, encode)?;
        self.ready.push(end.ticket);
        Ok((end.id, id))
    }

    /// As [`Ends::ask`], of a request whose body is sent frame by frame, as the link takes it.
    pub(crate) fn ask_streamed(
        &mut self,
        node: NodeId,
        request: Header,
        fields: &Fields<'_>,
        note: Note,
    ) -> Result<(LinkId, u64), NoLink> {
        let target = Target { node, link: lanes::link_of(self.number, self.loops) };
        let end = self.ends.get_mut(&target).ok_or(NoLink::Down)?;
        end.check_room(note)?;
        let request = Header { kind: Kind::Request, id: end.asker.next_id(), ..request };
        end.asker.open_streamed(request, fields, note).expect("who asks keeps the limits of a frame");
        self.ready.push(end.ticket);
        Ok((end.id, request.id))
    }

    /// So many bytes of the body of a request are there; `is_whole`: they are all.
    pub(crate) fn supply(&mut self, id: LinkId, request: u64, bytes: u64, is_whole: bool) {
        let Some(end) = self.end(id) else { return };
        end.asker.supply(request, bytes, is_whole);
        if end.asker.can_send() {
            let ticket = end.ticket;
            self.ready.push(ticket);
        }
    }

    /// Whether this loop has a link by which it asks a node.
    pub(crate) fn is_up(&self, node: NodeId) -> bool {
        self.ends.contains_key(&Target { node, link: lanes::link_of(self.number, self.loops) })
    }

    /// Whether this loop's link to a node was there and has been gone for so long: it is not waited for.
    pub(crate) fn is_gone(&self, node: NodeId, now_ms: u64, for_ms: u64) -> bool {
        let gone_ms = self.gone_ms.get(&Target { node, link: lanes::link_of(self.number, self.loops) });
        gone_ms.is_some_and(|gone_ms| now_ms >= gone_ms + for_ms)
    }

    /// So many bytes more of the answer to a request may come.
    pub(crate) fn allow(&mut self, id: LinkId, request: u64, bytes: u64) {
        self.say(id, |out| out.extend_from_slice(&Header::credit(request, bytes).encode()));
    }

    /// Nobody wants the answer to a request any more.
    pub(crate) fn cancel(&mut self, id: LinkId, request: u64) {
        let Some(end) = self.ends.get_mut(&of(id)).filter(|end| end.id == id) else { return };
        if end.asker.give_up(request) {
            end.unsent.extend_from_slice(&Header::cancel(request).encode());
            self.ready.push(end.ticket);
        }
    }

    /// Whether there is a part of a body to send, of a request of this end.
    pub(super) fn is_sending(&self, id: LinkId) -> bool {
        let end = self.ends.get(&of(id)).filter(|end| end.id == id);
        end.is_some_and(|end| end.asker.can_send())
    }

    /// Hands the owner a map that came as an answer.
    pub(crate) fn map_came(&self, from: LinkId, sent: MapSent, bytes: Vec<u8>) {
        if let Some(hub) = self.hub() {
            hub.owner.map_came(Came { from: from.node, sent, bytes, is_pushed: false });
        }
    }

    /// Appends the answer to a request of an end that goes by another map: with the map, if that is the later one.
    /// It may have been done, or nothing was.
    pub(crate) fn moved(&mut self, id: LinkId, request: &Header, may_be_done: bool, out: &mut Vec<u8>) {
        let has = self.end(id).and_then(|end| end.has);
        let Some(view) = &self.view else { return };
        let is_later = view.mark.epoch > request.epoch || has.is_some_and(|has| has < view.mark);
        let (is_difference, bytes) = match has.filter(|_| is_later) {
            Some(has) => view.bytes(has, false),
            None => (false, Default::default()),
        };
        let sent = MapSent { mark: view.mark, is_difference, may_be_done };
        sent.moved(out, request, &bytes).expect("a map is within the limits");
    }

    /// Has an end say something more; whether it is there.
    pub(super) fn say(&mut self, id: LinkId, encode: impl FnOnce(&mut Vec<u8>)) -> bool {
        let Some(end) = self.end(id) else { return false };
        encode(&mut end.unsent);
        let ticket = end.ticket;
        self.ready.push(ticket);
        true
    }

    pub(super) fn number(&self) -> usize {
        self.number.into()
    }

    /// Appends what an end is to say; whether there was anything.
    pub(super) fn flush(&mut self, id: LinkId, out: &mut Vec<u8>) -> bool {
        let Some(end) = self.end(id).filter(|end| !end.unsent.is_empty()) else { return false };
        if out.is_empty() {
            std::mem::swap(&mut end.unsent, out);
        } else {
            out.append(&mut end.unsent);
        }
        true
    }

    /// The end of this link, unless another has taken its place.
    pub(super) fn end(&mut self, id: LinkId) -> Option<&mut End> {
        self.ends.get_mut(&of(id)).filter(|end| end.id == id)
    }

    /// Whether what comes over this link is served.
    pub(crate) fn is_current(&self, id: LinkId) -> bool {
        self.links.is_current(id)
    }

    /// The map that is told to others.
    pub(super) fn mark(&self) -> MapMark {
        self.view.as_ref().map_or_else(MapMark::default, |view| view.mark)
    }

    /// Answers a beat.
    pub(super) fn answer_beat(&mut self, id: LinkId, header: &Header, out: &mut Vec<u8>) {
        let incarnation = self.end(id).map(|end| end.peer.incarnation);
        let grant = self.hub().zip(incarnation).and_then(|(hub, incarnation)| hub.leases.beat_of(id.node, incarnation));
        let (mark, reply) = (self.mark(), Header::reply_to(header, Status::Ok));
        match grant {
            Some(grant) => mark.tell_granted(out, reply, grant),
            None => mark.tell(out, reply),
        }
    }

    /// The answer to a beat that was sent at that time.
    pub(super) fn granted(&self, fields: &Fields<'_>, sent_ns: u64) {
        let hub = self.hub().zip(MapMark::granted(fields));
        hub.into_iter().for_each(|(hub, grant)| hub.granted(grant, sent_ns));
    }

    fn lease_now_ns(&self) -> u64 {
        self.hub().map_or(0, |hub| hub.leases.now_ns())
    }

    pub(super) fn hub(&self) -> Option<&Hub> {
        self.hub.as_deref()
    }

    /// What this node says of itself.
    fn me(&self, hub: &Hub, link: u16) -> Peer {
        let (me, mark) = (&hub.me, self.mark());
        Peer {
            protocol: LINK_PROTOCOL,
            herd: me.herd,
            node: me.node,
            incarnation: me.incarnation,
            loops: self.loops,
            link,
            epoch: mark.epoch,
            revision: mark.revision,
            nonce: hub.nonce(),
        }
    }

    /// Begins to dial.
    pub(super) fn dial(&mut self, target: Target) -> Option<(Dialing, u64)> {
        let hub = self.hub.as_ref()?;
        let dialing = Dialing::new(self.me(hub, target.link), target.node, hub.me.secret);
        Some((dialing, self.links.begin()))
    }

    /// Judges the hello of a node; an error refuses it.
    pub(super) fn accept(&mut self, hello: &Fields<'_>) -> Result<(Accepting, u64), LinkError> {
        let refuse = |text| Err(LinkError { kind: LinkErrorKind::BadHello, text });
        let Some(hub) = &self.hub else {
            return refuse("this node is in no herd with others, and takes no links".to_owned());
        };
        let accepting = Accepting::new(hello, &self.me(hub, 0), hub.me.secret)?;
        let (own, theirs) = (hub.me.node, accepting.claimed().node);
        // Before the welcome: else the other end takes the link for one that is up, for a moment, each time it dials.
        // Who has no link to anybody asks so, too, whether the herd goes on without it.
        hub::check(self.view.as_deref(), accepting.claimed())?;
        if theirs < own {
            self.check_asked(hub, accepting.claimed())?;
        }
        Ok((accepting, self.links.begin()))
    }

    /// Whether this node, which is the one to dial, takes a link that a node of a lower number dials: only where it has
    /// none, and could not know where to dial.
    fn check_asked(&self, hub: &Hub, peer: &Peer) -> Result<(), LinkError> {
        if peer.link == 0 && hub::is_news(self.view.as_deref(), peer) && !hub.is_linked(peer.node) {
            return Ok(());
        }
        let text = format!("node {} dials node {}, not the other way round", hub.me.node.0, peer.node.0);
        Err(LinkError { kind: LinkErrorKind::NotNow, text })
    }

    /// Until when a link that comes up now lasts at most, as far as this end ends it. Of two that come up at once the
    /// one stays that is dialed as always.
    fn lasts(&self, peer: &Peer, side: Side, now_ms: u64) -> Result<Option<u64>, LinkError> {
        let Some(hub) = self.hub() else { return Ok(None) };
        let is_asked = (side == Side::Dialer) == (hub.me.node < peer.node);
        if !is_asked {
            return Ok(None);
        }
        match side {
            Side::Acceptor => self.check_asked(hub, peer).map(|()| Some(now_ms + LINK_ASKED_MAX_MS)),
            Side::Dialer if hub.is_linked(peer.node) => {
                let text = format!("node {} has dialed by itself", peer.node.0);
                Err(LinkError { kind: LinkErrorKind::NotNow, text })
            }
            Side::Dialer => Ok(None),
        }
    }

    /// The loop a link belongs to, if it is another one.
    pub(super) fn elsewhere(&self, peer: &Peer) -> Option<usize> {
        let number = lanes::loop_of(peer.link, self.loops);
        (number != self.number).then_some(number.into())
    }

    /// The other end has proved itself: the link is up. Gives it, and what was asked over those whose place it takes.
    pub(super) fn up(
        &mut self,
        (peer, begun): (&Peer, u64),
        side: Side,
        ticket: Ticket,
        now_ms: u64,
    ) -> Result<(LinkId, Vec<Note>), LinkError> {
        hub::check(self.view.as_deref(), peer)?;
        let until_ms = self.lasts(peer, side, now_ms)?;
        let id = self.links.renew(peer, begun)?;
        let lost = self.sweep(now_ms);
        let mut end = End::new(id, *peer, side, (ticket, self.room_bytes), now_ms);
        end.until_ms = until_ms;
        end.beat(self.mark(), now_ms, self.lease_now_ns());
        self.due_ms = self.due_ms.min(end.beats.due_ms());
        self.ends.insert(of(id), end);
        self.gone_ms.remove(&of(id));
        self.changes.push(Change::Up(id, peer.loops));
        self.hub().into_iter().for_each(|hub| hub.linked(id.node, true));
        self.peers.up(of(id), peer.loops, now_ms);
        self.due_ms = self.due_ms.min(self.peers.due_ms());
        Ok((id, lost))
    }

    /// Closes a link; gives what was asked over it.
    pub(super) fn close(&mut self, id: LinkId, now_ms: u64) -> Vec<Note> {
        if !self.is_current(id) {
            return Vec::new();
        }
        self.links.close(id);
        let Some(end) = self.ends.remove(&of(id)) else { return Vec::new() };
        self.left.push(end.ticket.conn);
        self.gone_ms.insert(of(id), now_ms);
        self.changes.push(Change::Down(id));
        self.hub().into_iter().for_each(|hub| hub.linked(id.node, false));
        self.peers.lost(of(id), now_ms);
        // It is to be planned when that node is asked, if it does not dial.
        self.due_ms = self.due_ms.min(if id.link == 0 { now_ms } else { self.peers.due_ms() });
        end.asker.notes().map(|(_, note)| *note).collect()
    }

    /// A dialing has failed; `error`: it was refused.
    pub(super) fn failed(&mut self, target: Target, error: Option<&LinkError>, now_ms: u64) {
        match error {
            None => self.peers.failed(target, now_ms),
            Some(error) => {
                self.peers.refused(target, now_ms);
                self.tell_refused(target, error);
            }
        }
        self.due_ms = self.due_ms.min(self.peers.due_ms());
    }

    /// Tells the owner, once, and by one loop.
    fn tell_refused(&mut self, target: Target, error: &LinkError) {
        let is_dialed = self.hub().is_some_and(|hub| target.node < hub.me.node);
        // What those say who were only asked is news if the herd goes on without this process.
        if !is_dialed && error.kind != LinkErrorKind::OlderIncarnation {
            return;
        }
        let told = target.link == 0 && self.refused.insert(target.node, error.kind) != Some(error.kind);
        self.hub().filter(|_| told).into_iter().for_each(|hub| hub.owner.refused(target.node, error));
    }

    /// The other end told which map it has.
    pub(super) fn marked(&mut self, id: LinkId, mark: MapMark, now_ms: u64) {
        let Some(end) = self.end(id) else { return };
        (end.peer.epoch, end.peer.revision) = (mark.epoch, mark.revision);
        let (is_news, incarnation) = (end.has.replace(mark) != Some(mark), end.peer.incarnation);
        if id.link == 0 && is_news {
            self.refused.remove(&id.node);
            self.hub().into_iter().for_each(|hub| hub.owner.has_map(id.node, incarnation, mark));
        }
        self.push(of(id), now_ms);
    }

    /// Takes ends away whose place others have taken; gives what was asked over them.
    fn sweep(&mut self, now_ms: u64) -> Vec<Note> {
        let (links, mut lost) = (&self.links, Vec::new());
        for (target, end) in self.ends.extract_if(.., |_, end| !links.is_current(end.id)) {
            lost.extend(end.asker.notes().map(|(_, note)| *note));
            self.left.push(end.ticket.conn);
            self.changes.push(Change::Down(end.id));
            self.hub.iter().for_each(|hub| hub.linked(end.id.node, false));
            self.peers.lost(target, now_ms);
        }
        lost
    }

    /// Looks whether there is a new map, and obeys it; gives what was asked over links that it ends.
    pub(super) fn look(&mut self, now_ms: u64) -> Vec<Note> {
        let Some(hub) = self.hub.as_ref().filter(|hub| hub.changes() != self.seen) else { return Vec::new() };
        self.seen = hub.changes();
        let view = hub.view();
        let gone = |end: &End| hub::check(view.as_deref(), &end.peer).is_err() || end.has_told(view.as_deref());
        let gone: Vec<LinkId> = self.ends.values().filter(|end| gone(end)).map(|end| end.id).collect();
        let lost = gone.into_iter().flat_map(|id| self.close(id, now_ms)).collect();
        self.peers.adopt(view.as_ref().map_or(&BTreeMap::new(), |view| &view.addresses), now_ms);
        self.view = view;
        let targets: Vec<Target> = self.ends.keys().copied().collect();
        for target in targets {
            self.beat(target, now_ms);
            self.push(target, now_ms);
        }
        lost
    }

    /// Sends the beats that are due, and gives up who is silent; gives what was asked of them.
    pub(super) fn poll(&mut self, now_ms: u64) -> Vec<Note> {
        let due: Vec<_> = self.ends.iter_mut().map(|(target, end)| (*target, end.id, end.poll(now_ms))).collect();
        let mut lost = Vec::new();
        for (target, id, beat) in due {
            match beat {
                Beat::Rest => {}
                Beat::Send => self.beat(target, now_ms),
                Beat::Lost => lost.extend(self.close(id, now_ms)),
            }
        }
        lost
    }

    fn beat(&mut self, target: Target, now_ms: u64) {
        let (mark, sent_ns) = (self.mark(), self.lease_now_ns());
        if let Some(end) = self.ends.get_mut(&target) {
            end.beat(mark, now_ms, sent_ns);
            self.ready.push(end.ticket);
        }
    }

    /// The nodes to be asked, by the loop of link 0: those of higher numbers, which dial and are not dialed, to which
    /// there is no link. One that goes on without this process says so, and one that has not heard where it is takes
    /// the link; else it refuses.
    pub(super) fn ask_around(&mut self, now_ms: u64) -> Vec<(Target, SocketAddr)> {
        let Some((hub, view)) = self.hub.as_ref().zip(self.view.as_ref()) else { return Vec::new() };
        let target = |node: &NodeId| Target { node: *node, link: 0 };
        let is_alone = |node: &NodeId| !self.ends.contains_key(&target(node));
        if self.number != 0 || !view.higher.keys().any(is_alone) {
            self.around_ms = None;
            return Vec::new();
        }
        let due_ms = *self.around_ms.get_or_insert(now_ms + LINK_REDIAL_MAX_MS);
        if now_ms < due_ms {
            return Vec::new();
        }
        self.around_ms = Some(now_ms + ASK_AROUND_MS);
        let alone = view.higher.iter().filter(|(node, _)| is_alone(node) && !hub.is_linked(**node));
        alone.filter_map(|(node, addresses)| Some((target(node), *addresses.first()?))).collect()
    }

    /// Reckons when there is something to do next.
    pub(super) fn plan(&mut self, dials: bool) {
        let beats = self.ends.values().map(|end| end.beats.due_ms()).min().unwrap_or(u64::MAX);
        let dialing = self.peers.due_ms().min(self.around_ms.unwrap_or(u64::MAX));
        self.due_ms = beats.min(if dials { dialing } else { u64::MAX });
    }
}

fn of(id: LinkId) -> Target {
    Target { node: id.node, link: id.link }
}

/// Tells who asked that the link was lost.
pub(super) fn lose(cx: &mut Context, lost: Vec<Note>) {
    // The other node asks anew what was under way there, and may do so over the next link: what it asked first must not
    // come after that.
    std::mem::take(&mut cx.links.left).into_iter().for_each(|conn| cx.forget_flights(conn));
    for note in lost {
        verbs::answered(cx, note, Err(LinkLost)).expect("what did not come breaks no protocol");
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::world::{Told, address, map, membership, node};
    use super::*;
    use crate::lease::Leases;

    /// The second node, which dials the first one; its loop is the first of one.
    fn dialing() -> Ends {
        let hub = Hub::new(membership(2), Arc::new(Told::default()), Leases::new(Arc::new(|| 7)));
        hub.adopt(Arc::new(map(2)), false);
        let mut ends = Ends::new(Some(hub), 0, 1, 64 << 20);
        assert_eq!(ends.look(0), []);
        ends
    }

    /// The first node, of two loops, answers on this link.
    fn up(ends: &mut Ends, link: u16, incarnation: u64, now_ms: u64) -> (LinkId, Vec<Note>) {
        let me = ends.me(ends.hub().expect("a hub"), link);
        let peer = Peer { node: node(1), incarnation, loops: 2, ..me };
        let (begun, ticket) = (ends.links.begin(), Ticket { conn: link.into(), serial: 1 });
        ends.up((&peer, begun), Side::Dialer, ticket, now_ms).expect("it may have a link")
    }

    fn dialed(ends: &mut Ends, now_ms: u64) -> Vec<u16> {
        let due = ends.peers.dial(now_ms).into_iter();
        due.inspect(|(_, to)| assert_eq!(*to, address(1))).map(|(target, _)| target.link).collect()
    }

    #[test]
    fn a_node_that_starts_anew_is_dialed_again_on_all_links() {
        let mut ends = dialing();
        assert_eq!(dialed(&mut ends, 0), [0]);
        let (first, _) = up(&mut ends, 0, 1, 0);
        assert_eq!(dialed(&mut ends, 0), [1], "it has two loops");
        let (second, _) = up(&mut ends, 1, 1, 0);
        assert_eq!((ends.ends.len(), dialed(&mut ends, 9_000)), (2, vec![]));
        let (third, lost) = up(&mut ends, 0, 2, 9_000);
        assert_eq!(lost, [Note::Beat(7), Note::Beat(7)], "what was asked over both is lost");
        assert_eq!([first, second, third].map(|id| ends.is_current(id)), [false, false, true]);
        assert_eq!((dialed(&mut ends, 9_000), dialed(&mut ends, 9_050)), (vec![], vec![1]));
        // The old connections are closed, which means nothing any more.
        assert_eq!((ends.close(first, 9_060), ends.close(second, 9_060)), (vec![], vec![]));
        assert_eq!((ends.ends.len(), dialed(&mut ends, 99_000)), (1, vec![]));
    }

    #[test]
    fn of_two_links_that_come_up_at_once_the_one_stays_that_is_dialed_as_always() {
        // At the node that was dialed by both: the link from below is too late, and before it is told.
        let mut ends = dialing();
        let peer = |ends: &Ends, number: u32, incarnation: u64| Peer {
            node: node(number),
            incarnation,
            revision: 9,
            ..ends.me(ends.hub().expect("a hub"), 0)
        };
        let ticket = Ticket { conn: 1, serial: 1 };
        let first = peer(&ends, 1, 2);
        let begun = [ends.links.begin(), ends.links.begin()];
        let (below, _) = ends.up((&first, begun[0]), Side::Acceptor, ticket, 0).expect("it has a later map");
        let (usual, _) = ends.up((&first, begun[1]), Side::Dialer, ticket, 0).expect("it is dialed");
        assert_eq!([below, usual].map(|id| ends.is_current(id)), [false, true]);
        let begun = ends.links.begin();
        let late = ends.up((&first, begun), Side::Acceptor, ticket, 0).expect_err("there is one");
        assert_eq!((late.kind, ends.is_current(usual)), (LinkErrorKind::NotNow, true));
        // At the node that asked.
        let hub = Hub::new(membership(1), Arc::new(Told::default()), Leases::new(Arc::new(|| 7)));
        hub.adopt(Arc::new(map(2)), false);
        let mut ends = Ends::new(Some(hub), 0, 1, 64 << 20);
        ends.look(0);
        let second = peer(&ends, 2, 1);
        let begun = [ends.links.begin(), ends.links.begin()];
        let (usual, _) = ends.up((&second, begun[0]), Side::Acceptor, ticket, 0).expect("it dials");
        let late = ends.up((&second, begun[1]), Side::Dialer, ticket, 0).expect_err("there is one");
        assert_eq!((late.kind, ends.is_current(usual)), (LinkErrorKind::NotNow, true));
    }

    #[test]
    fn no_more_is_asked_than_may_be() {
        let mut ends = dialing();
        let request = Header { verb: 200, ..Header::new(Kind::Request) };
        let ask = |ends: &mut Ends, bytes: usize| {
            let encode = |_, out: &mut Vec<u8>| {
                out.resize(out.len() + bytes, 0);
                Ok(())
            };
            ends.ask(node(1), request, Note::Probe(1), encode).map(drop)
        };
        assert_eq!(ask(&mut ends, 1), Err(NoLink::Down));
        let (id, _) = up(&mut ends, 0, 1, 0);
        let asked = (0..).take_while(|_| ask(&mut ends, 1).is_ok()).count();
        assert_eq!(asked, LINK_OPS_MAX - 1, "and a beat");
        assert_eq!(ask(&mut ends, 1), Err(NoLink::Busy));
        assert_eq!(ends.close(id, 0).len(), LINK_OPS_MAX);
        let (id, _) = up(&mut ends, 0, 1, 0);
        assert_eq!(ask(&mut ends, LINK_BYTES_MAX as usize), Ok(()));
        assert_eq!(ask(&mut ends, 1), Err(NoLink::Busy));
        // What was sent makes room, what waits in the connection does not.
        let mut out = Vec::new();
        assert!(ends.flush(id, &mut out) && !ends.flush(id, &mut out));
        assert_eq!(ask(&mut ends, 1), Ok(()));
        ends.end(id).expect("it is up").pending_bytes = out.len();
        assert_eq!(ask(&mut ends, 1), Err(NoLink::Busy));
    }
}
