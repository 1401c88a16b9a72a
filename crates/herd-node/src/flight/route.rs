//! Where the parts of flights go, and what becomes of them there.

use super::intake::{cut_short, decide_ms};
use super::landed::{Cargo, Landed};
use super::table::{Arriving, Coming, Flight, FlightId, Part, State, Taken};
use super::{Handing, Later};
use crate::context::{Context, Output, away};
use crate::group::{self, Origin, Told};
use crate::held::Held;
use crate::link::{LinkLost, NoLink, Note};
use crate::metrics::add;
use crate::report::groups::not_led;
use herd_core::bugs::{Bug, has};
use herd_core::limits::{
    DEFERRED_MAX, FLIGHT_AGAIN_MS, FLIGHT_LINK_MS, FLIGHT_MS, FORWARD_HOPS_MAX, GROUP_LINE_PART, INLINE_MAX_BYTES,
    LEASE_MS,
};
use herd_core::place::{self, Group, GroupId, NodeId, Spread};
use herd_core::wire::{Asked, FLAG_MORE, Fields, Header, Kind, LinkId, MapMark, MapSent, STATUS_MOVED, Status};
use herd_core::wire::{LENGTH_UNKNOWN, WireError};
use herd_core::{Error, ErrorKind, quote};
use herd_net::Ticket;
use herd_store::{Collection, Key, Seat};
use std::sync::Arc;

/// Why a node does not answer for what it has of class `cache`.
pub(super) const CACHE_UNLEASED: &str = "the herd's warden has not been heard here for 5 s: another node may have been \
                                         given what this one has of it";

/// Where an object is decided on, as the map of this node has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Where {
    /// Here, by this node alone.
    Here,
    /// Here, by a group of which others are members too.
    Group(GroupId),
    /// At another node.
    Node(NodeId),
    /// Nowhere for a moment: it is of class `cache`, and its group is being given to another node, or this one's lease
    /// of it is over.
    Soon,
    /// Nowhere: no map is known, or the group has no primary.
    Nowhere,
}

impl Context {
    /// Where the object of that name is decided on.
    pub(crate) fn whereabouts(&self, c: &Collection, name: &[u8]) -> Where {
        self.whereabouts_of(&self.shared.store.key(c, name))
    }

    /// As [`Context::whereabouts`], of a key.
    pub(crate) fn whereabouts_of(&self, key: &Key) -> Where {
        let seat = self.shared.store.slot(key.spread(), key.slot()).seat;
        if seat == Seat::Alone || seat == Seat::Leased && self.shared.gates.has_cache_lease() {
            return Where::Here;
        }
        if self.shared.hub.get().is_none() {
            return Where::Nowhere;
        }
        let Some((me, (map, _))) = self.shared.place.get().and_then(|place| Some((place.me(), place.map()?))) else {
            return Where::Nowhere;
        };
        let Some(spread) = map.spread(key.spread()) else { return Where::Nowhere };
        let group = GroupId { spread: spread.id, number: spread.slots[key.slot()] };
        // While a map is taken by which another node leads the seats are those of that already: the part of the group
        // has it asked again.
        let is_known = || map.node(me.node).is_some_and(|node| node.incarnation == me.incarnation);
        let is_part = || seat == Seat::Led || self.shared.gates.is_shared(group) && is_known();
        match spread.group_of(key.slot()).primary {
            Some(node) if node != me.node => Where::Node(node),
            _ if spread.kind == place::Kind::Cache => Where::Soon,
            Some(_) if is_part() => Where::Group(group),
            _ => Where::Nowhere,
        }
    }

    /// Refuses what nobody could be asked.
    pub(crate) fn check_reachable(&self, c: &Collection, name: &[u8]) -> Result<(), Error> {
        if self.whereabouts(c, name) == Where::Nowhere { Err(self.why_away(c, name)) } else { Ok(()) }
    }

    /// The error where nobody can be asked about an object: who decides on it, or why nobody does.
    #[cold]
    pub(super) fn why_away(&self, c: &Collection, name: &[u8]) -> Error {
        let of = quote(name);
        let why = || {
            let (map, _) = self.shared.place.get()?.map()?;
            let key = self.shared.store.key(c, name);
            let group = map.spread(key.spread())?.group_of(key.slot());
            let Some(primary) = group.primary else {
                return Some(format!("no node leads the group of '{of}': {}", not_led(&map, group)));
            };
            if map.spread(key.spread())?.kind == place::Kind::Cache && primary == self.shared.place.get()?.me().node {
                return Some(format!("'{of}' is of class cache, and {CACHE_UNLEASED}"));
            }
            let is_linked = self.shared.hub.get()?.is_linked(primary) || primary == self.shared.place.get()?.me().node;
            let node = map.node(primary).filter(|_| !is_linked)?;
            Some(format!("node '{}', which decides on '{of}', can't be reached: see that it runs", node.name))
        };
        why().map_or_else(|| away(name), |text| Error::new(ErrorKind::Unreachable, text))
    }

    /// Hands operations on, whose answers the door writes in the gap that is left here (`ordered`), or when they are
    /// there. Error: `Busy` where too many wait; nothing was begun.
    pub(crate) fn hand_on(
        &mut self,
        out: &mut Output<'_>,
        ordered: bool,
        later: Later,
        handings: Vec<Handing>,
        limit_ms: u64,
    ) -> Result<Ticket, Error> {
        let held = self.hold_flight(&handings)?;
        let ticket = if ordered { out.defer() } else { Some(out.ticket()) };
        let full = || Error::new(ErrorKind::Busy, "too many requests wait on this connection");
        let ticket = ticket.ok_or_else(full)?;
        self.depart(ticket, later, handings, held, limit_ms);
        Ok(ticket)
    }

    /// As [`Context::hand_on`], for the reply of a ticket whose flight was taken and that is not written yet.
    pub(crate) fn hand_on_again(
        &mut self,
        ticket: Ticket,
        later: Later,
        handings: Vec<Handing>,
        limit_ms: u64,
    ) -> Result<(), Error> {
        let held = self.hold_flight(&handings)?;
        self.depart(ticket, later, handings, held, limit_ms);
        Ok(())
    }

    /// Memory for a flight.
    fn hold_flight(&self, handings: &[Handing]) -> Result<Held, Error> {
        let mut held = Held::nothing(&self.shared.store);
        let list = (size_of::<Flight>() + size_of_val(handings) + handings.len() * size_of::<Part>()) as u64;
        held.set(list + handings.iter().map(Handing::bytes).sum::<u64>())?;
        Ok(held)
    }

    fn depart(&mut self, ticket: Ticket, later: Later, handings: Vec<Handing>, held: Held, limit_ms: u64) {
        let part = |handing: Handing| Part {
            object: handing.key.fingerprint(),
            was_sent: handing.is_retry(),
            handing,
            state: State::InLine,
            is_lined: false,
            moved: 0,
            attempt: 0,
        };
        let now_ms = self.now_ms();
        // A long value is whole here, and goes to the members of its group only now. So it has to begin as soon as
        // others where it is asked here, and in half of the time that another node gives it.
        let long = handings.iter().filter_map(Handing::long_value).map(|body| decide_ms(Some(body.len()))).max();
        let begins_ms = long.map_or(limit_ms, |long_ms| limit_ms.min((FLIGHT_MS + long_ms) / 2));
        let line_ms = now_ms.saturating_add(begins_ms);
        let deadline_ms = now_ms.saturating_add(limit_ms.max(long.unwrap_or(0)));
        let parts: Vec<Part> = handings.into_iter().map(part).collect();
        let (open, began_epoch) = (parts.len(), self.shared.map_mark().epoch);
        let flight =
            Flight { later, parts, open, began_ms: now_ms, began_epoch, line_ms, deadline_ms, is_late: false, held };
        self.flights.insert(ticket, Box::new(flight));
        if self.flights.of_connection(ticket.conn) >= DEFERRED_MAX / 2 {
            // Nothing more is read of it before its replies have gone.
            self.was_dear();
        }
        self.fly();
    }

    /// Takes the flight of a reply that is resumed, if it is over.
    pub(crate) fn take_flight(&mut self, ticket: Ticket) -> Taken {
        self.flights.take(ticket)
    }

    /// A connection is closed: nobody wants its replies.
    pub(crate) fn forget_flights(&mut self, conn: u64) {
        for ticket in self.flights.tickets(conn) {
            self.forget_flight(ticket);
        }
        self.flights.forget_connection(conn);
        self.fly();
    }

    /// Nobody wants this reply.
    pub(crate) fn forget_flight(&mut self, ticket: Ticket) {
        for (link, request) in self.flights.give_up(ticket) {
            self.links.cancel(link, request);
        }
    }

    /// Does what flights have to do by the time.
    pub(crate) fn flights_due(&mut self) {
        let now_ms = self.now_ms();
        for ticket in self.flights.late(now_ms) {
            self.make_flight(ticket);
            let parts = self.flights.flight(ticket).map_or(0, |flight| flight.parts.len());
            for part in 0..parts as u32 {
                self.too_late(FlightId { ticket, part });
            }
        }
        if now_ms >= self.flights.again_ms {
            self.flights.again_ms = u64::MAX;
            let waiting = std::mem::take(&mut self.flights.waiting);
            waiting.into_iter().for_each(|id| self.look_again_at(id));
        }
        self.fly();
    }

    /// The node stops: whoever waits for a newer version is told.
    pub(crate) fn stop_flights(&mut self) {
        for id in self.flights.that_wait() {
            if let Some(Part { state: State::Out(link, request, _), .. }) = self.flights.part(id) {
                let (link, request) = (*link, *request);
                self.links.cancel(link, request);
            }
            let landed = Landed::failed(self, Error::new(ErrorKind::Busy, "the node is stopping"));
            self.land(id, landed);
        }
        self.fly();
    }

    /// The time of a part is over.
    fn too_late(&mut self, id: FlightId) {
        let Some(part) = self.flights.part(id).filter(|_| !has(Bug::EndlessFlight)) else { return };
        if let State::Out(link, request, _) = part.state {
            self.links.cancel(link, request);
        }
        self.lose(id);
    }

    /// A part gets no answer.
    fn lose(&mut self, id: FlightId) {
        let waits_for_leave = self.waits_for_leave(id);
        let Some(part) = self.flights.part_of(id) else { return };
        let (name, stream, changes) = (part.handing.name(), part.handing.stream(), part.handing.changes);
        let error = match stream.filter(|_| !matches!(part.state, State::Waits(..))) {
            _ if part.was_sent && part.handing.changes && !has(Bug::LostForNothing) => self.unanswered(&part.handing),
            _ if waits_for_leave => self.why_not_held(),
            Some(stream) => stream.fault(name),
            None if let Some(node) = part.handing.to => self.node_away(node, changes),
            None => {
                let (c, name) = (part.handing.collection.clone(), part.handing.key.name.clone());
                self.why_away(&c, &name)
            }
        };
        let landed = Landed::failed(self, error);
        self.land(id, landed);
    }

    /// A part waits: whether what it waits for is there.
    fn look_again_at(&mut self, id: FlightId) {
        let (now_ms, mark) = (self.now_ms(), self.shared.map_mark());
        let Some(part) = self.flights.part_of(id) else { return };
        let is_over = |since_ms| now_ms >= since_ms + self.patience_ms(&part.handing.key);
        match part.state {
            State::Waits(since_ms, Some(wanted)) if mark < wanted => {
                let waits_for_leave = self.waits_for_leave(id);
                if waits_for_leave && now_ms >= since_ms + LEASE_MS + FLIGHT_LINK_MS {
                    // It waited at the door before.
                    return self.lose(id);
                }
                if waits_for_leave {
                    self.ask_to_hold();
                }
                self.wait(id);
            }
            State::Waits(since_ms, None) if self.needs_link(part) && is_over(since_ms) => match self.overload(id) {
                None => self.lose(id),
                Some(error) => {
                    let landed = Landed::failed(self, error);
                    self.land(id, landed);
                }
            },
            State::Waits(..) => self.flights.todo.push_back(id),
            _ => {}
        }
    }

    /// Why a part could not be asked for, if its node has a link.
    fn overload(&self, id: FlightId) -> Option<Error> {
        let handing = &self.flights.part_of(id)?.handing;
        let node = match (handing.to, self.whereabouts_of(&handing.key)) {
            (Some(node), _) | (None, Where::Node(node)) => node,
            _ => return None,
        };
        let name = quote(handing.name());
        let text = format!("too much is on its way to the node that has '{name}': ask again later");
        self.links.is_up(node).then(|| Error::new(ErrorKind::Busy, text))
    }

    /// A part that waits is looked at again soon.
    fn wait(&mut self, id: FlightId) {
        let now_ms = self.now_ms();
        self.flights.waiting.push_back(id);
        self.flights.again_ms = self.flights.again_ms.min(now_ms + FLIGHT_AGAIN_MS);
    }

    fn land(&mut self, id: FlightId, mut landed: Landed) {
        if let Some(part) = self.flights.part_of(id).filter(|part| part.handing.is_retry())
            && landed.moved.is_none()
            && landed.done.as_ref().is_err_and(|error| part.handing.is_long() || may_be_undecided(error))
        {
            // This try did nothing; one before it may have. With a long value it may be on its way still.
            let is_away = landed.done.as_ref().is_err_and(|error| error.kind == ErrorKind::Unreachable);
            let error = if is_away { self.unanswered(&part.handing) } else { outcome_unknown(part.handing.name()) };
            landed = Landed::failed(self, error);
        }
        let bytes = landed.bytes();
        if !self.flights.land(id, landed) {
            return;
        }
        self.wake_later(id.ticket);
        if let Some(flight) = self.flights.flight_mut(id.ticket) {
            // What came is there, whether there is room for it or not.
            flight.held.set(bytes).ok();
        }
    }

    /// Sends the parts on their way that may go.
    pub(super) fn fly(&mut self) {
        while let Some(id) = self.flights.todo.pop_front() {
            self.route(id);
        }
    }

    fn route(&mut self, id: FlightId) {
        let Some(part) = self.flights.part_of(id) else { return };
        if matches!(part.state, State::Landed(_) | State::Out(..)) {
            return;
        }
        if let Some(node) = part.handing.to {
            return self.ask(id, node);
        }
        if self.waits_for_leave(id) {
            self.ask_to_hold();
            return match self.flights.part_of(id).filter(|part| part.handing.goes_back()) {
                // The node that has handed it on waits with it.
                Some(_) => self.send_back(id, false),
                None => self.stay(id, Some(MapMark { held: true, ..self.shared.map_mark() })),
            };
        }
        let Some(part) = self.flights.part_of(id) else { return };
        let whereabouts = self.whereabouts_of(&part.handing.key);
        match whereabouts {
            Where::Here | Where::Group(_) if part.handing.stream().is_some() => {
                let landed = Landed::crossed(self, part.handing.name());
                self.land(id, landed);
            }
            Where::Here if let Some(error) = part.handing.why_not_alone(self) => {
                let landed = Landed::failed(self, error);
                self.land(id, landed);
            }
            Where::Here => match part.handing.run(self) {
                Ok(landed) => self.land(id, landed),
                // It has just gone again.
                Err(_) => self.stay(id, None),
            },
            Where::Node(node) => match part.handing.refusal().cloned() {
                None if part.handing.goes_back() => self.send_back(id, false),
                None => {
                    if part.handing.is_handed && part.handing.changes {
                        self.flights.again(id, true);
                    }
                    self.ask(id, node);
                }
                Some(error) => {
                    let landed = Landed::failed(self, error);
                    self.land(id, landed);
                }
            },
            Where::Group(group) => {
                self.flights.part(id).into_iter().for_each(|part| part.state = State::InGroup);
                self.decide_in_group(id, group);
            }
            Where::Soon => self.stay(id, None),
            Where::Nowhere => self.lose(id),
        }
    }

    /// Whether a part brings something, while the herd holds nothing by the map of this node. Its client had leave by
    /// an earlier one, or asked another node.
    fn waits_for_leave(&self, id: FlightId) -> bool {
        self.shared.gates.holds_nothing() && self.flights.part_of(id).is_some_and(|part| part.handing.brings())
    }

    /// What another node handed on is another one's to decide by now, or may have been when it came. The node that
    /// handed it on may have asked it anew meanwhile, and told its client, so it must not be done from here after that:
    /// that node is told where to ask. A long value, which that node may not have any more, goes on as what may have
    /// been done.
    fn send_back(&mut self, id: FlightId, may_be_done: bool) {
        let Some(part) = self.flights.part_of(id) else { return };
        let landed = Landed::moved(self, part.handing.name(), may_be_done || part.handing.is_retry());
        self.land(id, landed);
    }

    /// This node decides for a group of which others are members: a read is answered from what is committed; what
    /// changes something goes to the group's part, which tells what it came to.
    fn decide_in_group(&mut self, id: FlightId, group: GroupId) {
        let origin = Origin::Flight(self.number, id);
        let read = self.flights.part_of(id).and_then(|part| part.handing.read(self, group));
        if let Some((told, since)) = read {
            // The clock is looked at behind the object.
            return match self.shared.gates.has_lease_since(group, since) {
                true => self.told(id, told),
                false => group::confirm(self, group, origin, told, since),
            };
        }
        let now_ms = self.now_ms();
        let Some(flight) = self.flights.flight_mut(id.ticket) else { return };
        let Some(part) = flight.parts.get_mut(id.part as usize) else { return };
        let left_ms = flight.line_ms.saturating_sub(now_ms);
        let until_ms = flight.line_ms - left_ms / GROUP_LINE_PART;
        match part.handing.operation(origin).map(|operation| operation.until(until_ms)) {
            Ok(operation) => {
                let key = group::Key { of: part.handing.key.clone(), generation: part.handing.collection.generation() };
                // From now on it may be done.
                part.was_sent = true;
                group::ask(self, key, Some(group), operation);
            }
            Err(error) => {
                let landed = Landed::failed(self, error);
                self.land(id, landed);
            }
        }
    }

    /// What a group's part has come to.
    pub(crate) fn flight_told(&mut self, id: FlightId, told: Told) {
        self.told(id, told);
        self.fly();
    }

    fn told(&mut self, id: FlightId, told: Told) {
        let Some(part) = self.flights.part_of(id).filter(|part| matches!(part.state, State::InGroup)) else { return };
        let (with_value, goes_back) = (part.handing.with_value, part.handing.goes_back());
        match Landed::told(self, told, with_value) {
            Ok(landed) => self.land(id, landed),
            Err(may_be_done) if goes_back => self.send_back(id, may_be_done),
            Err(may_be_done) => {
                self.flights.again(id, may_be_done);
                self.stay(id, None);
            }
        }
    }

    /// A part waits for a link, or for a map.
    fn stay(&mut self, id: FlightId, wanted: Option<MapMark>) {
        let now_ms = self.now_ms();
        let Some(part) = self.flights.part(id) else { return };
        let since_ms = match part.state {
            State::Waits(since_ms, None) if wanted.is_none() => since_ms,
            _ => now_ms,
        };
        part.state = State::Waits(since_ms, wanted);
        self.wait(id);
    }

    /// Asks another node.
    fn ask(&mut self, id: FlightId, node: NodeId) {
        let (now_ms, epoch) = (self.now_ms(), self.shared.map_mark().epoch);
        let Some(flight) = self.flights.flight_mut(id.ticket) else { return };
        let age_ms = u32::try_from(now_ms - flight.began_ms).unwrap_or(u32::MAX);
        let left_ms = u32::try_from(flight.deadline_ms.saturating_sub(now_ms)).unwrap_or(u32::MAX);
        let Some(part) = flight.parts.get_mut(id.part as usize) else { return };
        if part.moved >= FORWARD_HOPS_MAX {
            return self.lose(id);
        }
        part.attempt += 1;
        // Of a value that comes the time goes on where it is asked again with the same bytes.
        let is_first = part.attempt == 1;
        let note = Note::Flight(id, part.attempt);
        let limit_ms = match part.handing.stream() {
            // It counts from when the value is there.
            Some(stream) => u32::try_from(decide_ms(stream.expected)).unwrap_or(u32::MAX),
            None => left_ms,
        };
        let (verb, time_ms) = (part.handing.verb(), part.handing.wait_ms(age_ms).unwrap_or(limit_ms));
        let request = Header { verb, epoch, time_ms, hops: part.moved + 1, ..Header::new(Kind::Request) };
        let handing = &part.handing;
        let (is_long, is_stream) = (handing.is_long(), handing.stream().is_some());
        let request = handing.header(request);
        let asked = match is_long {
            true => match handing.with_fields(|fields| self.links.ask_streamed(node, request, fields, note)) {
                Ok(asked) => asked,
                Err(_) => return self.lose(id),
            },
            false => self.links.ask(node, request, note, |header, out| handing.encode(header, out)),
        };
        match asked {
            Ok((link, request)) => {
                // A value that is still to come is decided on when its last byte is there.
                part.was_sent |= !is_stream;
                part.state = State::Out(link, request, None);
                add(&self.metrics().handed_on, 1);
                if is_stream {
                    self.supply(id.ticket, is_first);
                }
            }
            Err(NoLink::Down) if self.is_given_up(id, node, now_ms) => self.lose(id),
            Err(NoLink::Down | NoLink::Busy) => self.stay(id, None),
        }
    }

    /// Whether this attempt of a part is out.
    fn is_out(&mut self, id: FlightId, attempt: u32) -> bool {
        let part = self.flights.part(id).filter(|part| part.attempt == attempt);
        part.is_some_and(|part| matches!(part.state, State::Out(..)))
    }

    /// The link was lost before the answer came.
    pub(crate) fn flight_lost(&mut self, id: FlightId, attempt: u32, LinkLost: LinkLost) {
        if self.is_out(id, attempt) {
            match self.flights.part_of(id) {
                // A client that has a part of the answer can't be given another one.
                Some(part) if part.is_passing() => self.lose(id),
                Some(part) if !part.handing.changes || has(Bug::RerunLost) => self.stay(id, None),
                Some(part) if !part.was_sent => self.begin_anew(id, None),
                Some(part) if part.handing.to.is_none() && self.may_be_answered(id) => {
                    self.flights.again(id, true);
                    self.begin_anew(id, None);
                }
                _ => self.lose(id),
            }
            self.fly();
        }
    }

    /// What changes something was sent, and its link was lost: whether there is, or may soon be, somebody who knows
    /// what became of it. A node that keeps the only copy knows of no requests, or is gone with what it knew.
    fn may_be_answered(&self, id: FlightId) -> bool {
        let Some(part) = self.flights.part_of(id) else { return false };
        let State::Out(link, ..) = part.state else { return false };
        self.with_group(&part.handing.key, |spread, group| {
            let has_gone_over = group.primary.is_some_and(|node| node != link.node);
            has_gone_over || !group.others.is_empty() || spread.needed > 1
        })
        .unwrap_or_default()
    }

    /// The error of what changes an object, may have been done, and has no answer.
    fn unanswered(&self, handing: &Handing) -> Error {
        match self.with_group(&handing.key, may_know) {
            Some(false) if handing.to.is_none() => outcome_lost(handing.name()),
            _ => outcome_unknown(handing.name()),
        }
    }

    /// Why a change that is known by an id is not done by a node that decides alone, as that keeps none. Where its
    /// client asks for the first time, and had heard of an epoch of before the group changed, it may be a straggler:
    /// that client has asked again meanwhile, of who kept ids then.
    pub(crate) fn refusal_alone(&self, key: &Key, asked: &Asked) -> Option<Error> {
        let has_changed = |_: &Spread, group: &Group| group.epoch > asked.first_epoch;
        match asked.first_epoch {
            0 => None,
            _ if asked.may_be_done() => Some(outcome_lost(&key.name)),
            _ => self.with_group(key, has_changed).unwrap_or_default().then(group::too_old),
        }
    }

    /// Hands the group of an object to `f`, as the map has it; `None`: there is no map.
    fn with_group<R>(&self, key: &Key, f: impl FnOnce(&Spread, &Group) -> R) -> Option<R> {
        let (map, _) = self.shared.place.get()?.map()?;
        let spread = map.spread(key.spread())?;
        Some(f(spread, spread.group_of(key.slot())))
    }

    /// Whether a part can be answered by the node that it is for alone, so that it waits no longer than for a link to
    /// that: it was never sent, or nobody who takes over can know whether it was done.
    fn needs_link(&self, part: &Part) -> bool {
        let is_lost = || part.handing.changes && self.with_group(&part.handing.key, may_know) == Some(false);
        !part.was_sent || is_lost()
    }

    /// Whether a part does not wait for a link to a node any more.
    fn is_given_up(&self, id: FlightId, node: NodeId, now_ms: u64) -> bool {
        let part = self.flights.part_of(id).filter(|part| self.needs_link(part));
        part.is_some_and(|part| self.links.is_gone(node, now_ms, self.patience_ms(&part.handing.key)))
    }

    /// How long a request waits for a link to the node that decides on its object: longer where another takes over if
    /// that node is silent.
    fn patience_ms(&self, key: &Key) -> u64 {
        let has_backup = self.with_group(key, |_, group| group.backups().next().is_some()).unwrap_or_default();
        if has_backup { LEASE_MS + FLIGHT_LINK_MS } else { FLIGHT_LINK_MS }
    }

    /// The first frame of an answer. Error: the other end breaks the protocol.
    pub(crate) fn flight_answered(
        &mut self,
        (id, attempt): (FlightId, u32),
        from: LinkId,
        header: &Header,
        fields: &Fields<'_>,
        body: &[u8],
    ) -> Result<(), WireError> {
        if !self.is_out(id, attempt) {
            return Ok(());
        }
        let is_moved = header.code == STATUS_MOVED;
        if !header.has(FLAG_MORE) {
            if is_moved {
                self.flight_moved(id, from, MapSent::decode(header, fields)?.0, body.to_vec());
            } else {
                let landed = self.landed(id, header, fields, body);
                self.land(id, landed);
            }
            self.fly();
            return Ok(());
        }
        let (mut head, passes) = (Vec::new(), !is_moved && self.may_pass(id, header));
        fields.encode(&mut head)?;
        if !passes {
            self.links.allow(from, header.id, LENGTH_UNKNOWN);
        }
        let body = match is_moved {
            true => {
                let mut assembly = MapSent::decode(header, fields)?.1;
                assembly.take(header, body)?;
                Coming::Bytes(assembly)
            }
            false => match self.begin_coming(id, passes, (header, fields), body) {
                Ok(coming) => coming,
                Err(error) => {
                    let error = self.answer_lost(id, error);
                    self.fail_arriving(id, error);
                    return Ok(());
                }
            },
        };
        if let Some(Part { state: State::Out(_, _, arriving), .. }) = self.flights.part(id) {
            *arriving = Some(Box::new(Arriving { header: *header, head, body }));
        }
        Ok(())
    }

    /// A further frame of an answer. Error: as of [`Context::flight_answered`].
    pub(crate) fn flight_more(
        &mut self,
        (id, attempt): (FlightId, u32),
        from: LinkId,
        header: &Header,
        body: &[u8],
    ) -> Result<(), WireError> {
        if !self.is_out(id, attempt) {
            return Ok(());
        }
        if let Some(taken) = self.pass_more(id, body, !header.has(FLAG_MORE)) {
            taken.unwrap_or_else(|error| self.fail_arriving(id, error));
            return Ok(());
        }
        let now = self.now;
        let Some(Part { state: State::Out(_, _, arriving), .. }) = self.flights.part(id) else { return Ok(()) };
        let Some(coming) = arriving else { return Ok(()) };
        let taken = match &mut coming.body {
            Coming::Value(upload) => upload.write(body, now),
            Coming::Bytes(assembly) => assembly.take(header, body).map(drop).map_err(Error::from),
            Coming::Passing(_) => Ok(()),
        };
        if let Err(error) = taken {
            let error = self.answer_lost(id, error);
            self.fail_arriving(id, error);
            return Ok(());
        }
        let Some(arrived) = arriving.take_if(|_| !header.has(FLAG_MORE)) else { return Ok(()) };
        let fields = Fields::decode(&arrived.head)?;
        match arrived.body {
            Coming::Bytes(assembly) => {
                let (sent, _) = MapSent::decode(&arrived.header, &fields)?;
                self.flight_moved(id, from, sent, assembly.into_bytes());
            }
            Coming::Value(upload) => {
                let landed = match upload.finish(now) {
                    Ok(body) => self.replied(id, &arrived.header, &fields, Cargo::Large(Arc::new(body))),
                    Err(error) => Landed::failed(self, self.answer_lost(id, error)),
                };
                self.land(id, landed);
            }
            Coming::Passing(_) => {}
        }
        self.fly();
        Ok(())
    }

    fn begin_coming(
        &mut self,
        id: FlightId,
        passes: bool,
        (header, fields): (&Header, &Fields<'_>),
        body: &[u8],
    ) -> Result<Coming, Error> {
        match passes {
            true => self.begin_passing(id, header, fields, body),
            false => self.begin_value(id, header, body).map(Coming::Value),
        }
    }

    /// There is no room for an answer: the rest of it is not wanted.
    pub(super) fn fail_arriving(&mut self, id: FlightId, error: Error) {
        if let Some(Part { state: State::Out(link, request, _), .. }) = self.flights.part(id) {
            let (link, request) = (*link, *request);
            self.links.cancel(link, request);
        }
        let landed = Landed::failed(self, error);
        self.land(id, landed);
        self.fly();
    }

    /// There is no room here for an answer. Of what changes something it says that it was done.
    fn answer_lost(&self, id: FlightId, error: Error) -> Error {
        let Some(part) = self.flights.part_of(id).filter(|part| part.handing.changes) else { return error };
        let text = format!("'{}' was changed, but its answer is lost: {}", quote(part.handing.name()), error.text);
        Error::new(ErrorKind::OutcomeUnknown, text)
    }

    fn begin_value(&mut self, id: FlightId, header: &Header, body: &[u8]) -> Result<herd_store::Upload, Error> {
        let expected = (header.length != LENGTH_UNKNOWN && header.offset == 0).then_some(header.length);
        let store = self.shared.store.clone();
        let Some(part) = self.flights.part(id) else {
            return Err(nobody_waits());
        };
        // A part of a value is shorter than the value.
        let expected = expected.filter(|_| !part.handing.is_range());
        let mut upload = store.admit_passing(&part.handing.collection, part.handing.name(), expected)?;
        upload.write(body, self.now)?;
        Ok(upload)
    }

    /// What came of a part whose whole answer is there.
    fn landed(&mut self, id: FlightId, header: &Header, fields: &Fields<'_>, body: &[u8]) -> Landed {
        let is_object = self.flights.part(id).is_some_and(|part| part.handing.to.is_none());
        match header.status() {
            Some(Status::Ok) if body.len() <= INLINE_MAX_BYTES || !is_object => {
                self.replied(id, header, fields, Cargo::Small(body.to_vec()))
            }
            Some(Status::Ok) => {
                let body = self.begin_value(id, header, body).and_then(|upload| upload.finish(self.now));
                match body {
                    Ok(body) => self.replied(id, header, fields, Cargo::Large(Arc::new(body))),
                    Err(error) => Landed::failed(self, self.answer_lost(id, error)),
                }
            }
            status => {
                let kind = match status {
                    Some(Status::Error(kind)) => kind,
                    _ => ErrorKind::Unreachable,
                };
                let text = fields.error.unwrap_or_default();
                Landed::refused(self, fields, Error::new(kind, text))
            }
        }
    }

    pub(super) fn replied(&mut self, id: FlightId, header: &Header, fields: &Fields<'_>, cargo: Cargo) -> Landed {
        let with_value = self.flights.part(id).is_some_and(|part| part.handing.with_value);
        Landed::replied(self, header, fields, cargo, with_value)
    }

    /// The node that was asked goes by another map.
    fn flight_moved(&mut self, id: FlightId, from: LinkId, sent: MapSent, bytes: Vec<u8>) {
        let mine = self.shared.map_mark();
        let is_later = sent.mark > mine;
        if is_later && !bytes.is_empty() {
            self.links.map_came(from, sent, bytes);
        }
        self.flights.again(id, sent.may_be_done);
        let Some(part) = self.flights.part(id) else { return };
        if is_later {
            part.moved += 1;
        }
        // Where it is behind, it is asked again when it may have the map.
        self.begin_anew(id, Some(sent.mark.max(mine)));
    }

    /// A part of which nothing was done waits to be asked again, if its value is still here.
    fn begin_anew(&mut self, id: FlightId, wanted: Option<MapMark>) {
        let Some(part) = self.flights.part(id) else { return };
        if part.rewind() {
            return self.stay(id, wanted);
        }
        let error = cut_short(part.handing.name());
        let landed = Landed::failed(self, error);
        self.land(id, landed);
    }
}

#[cold]
pub(super) fn nobody_waits() -> Error {
    Error::new(ErrorKind::Busy, "nobody waits for it")
}

/// Whether an error may be told before it is looked whether the request was done already.
fn may_be_undecided(error: &Error) -> bool {
    matches!(error.kind, ErrorKind::Busy | ErrorKind::Unreachable | ErrorKind::Full)
}

/// Whether anybody may remember what was asked of a group by id: where one copy is kept, its node decides alone, unless
/// it has been a copy of another's.
fn may_know(spread: &Spread, group: &Group) -> bool {
    spread.copies > 1 || !group.others.is_empty() || group.epoch != group.primary_since
}

/// What changes an object may have been done, or not, and it is no use to ask again.
#[cold]
fn outcome_lost(name: &[u8]) -> Error {
    let text = format!(
        "the node that had the only copy of '{}' went out of reach: it may have been done, and no other node can tell",
        quote(name)
    );
    Error::new(ErrorKind::OutcomeLost, text)
}

/// What changes an object may have been done, or not.
#[cold]
pub(super) fn outcome_unknown(name: &[u8]) -> Error {
    let text =
        format!("the node that has '{}' went out of reach; the outcome is unknown: it may have been done", quote(name));
    Error::new(ErrorKind::OutcomeUnknown, text)
}
