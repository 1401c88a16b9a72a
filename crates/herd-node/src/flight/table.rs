//! The flights of a loop: which there are, how far each part of them is, and when each must have ended.
//!
//! A flight is known by the ticket of its reply. Nothing here asks or answers anybody.

use super::at_once::Put;
use super::landed::Landed;
use super::passing::Passing;
use super::{Handing, Later};
use crate::held::Held;
use herd_core::bugs::{Bug, has};
use herd_core::entry::Version;
use herd_core::replica::window::RequestId;
use herd_core::wire::{Assembly, Header, LinkId, MapMark};
use herd_net::Ticket;
use herd_store::Upload;
use std::collections::{HashMap, VecDeque};

/// A part of a flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct FlightId {
    /// That of the flight's reply.
    pub(crate) ticket: Ticket,
    /// Which of its parts.
    pub(crate) part: u32,
}

/// A flight.
pub(super) struct Flight {
    pub(super) later: Later,
    pub(super) parts: Vec<Part>,
    /// Parts that have not landed.
    pub(super) open: usize,
    pub(super) began_ms: u64,
    /// The epoch of this node's map then.
    pub(super) began_epoch: u32,
    /// Until when it has to begin where a group decides.
    pub(super) line_ms: u64,
    pub(super) deadline_ms: u64,
    /// Its end is not looked for any more.
    pub(super) is_late: bool,
    pub(super) held: Held,
}

/// See [`super`].
pub(super) struct Part {
    pub(super) handing: Handing,
    pub(super) object: u64,
    pub(super) state: State,
    /// It stands in the line of its object, or before it.
    pub(super) is_lined: bool,
    /// It may have been done.
    pub(super) was_sent: bool,
    /// How often it was sent to a node that has nothing of it any more.
    pub(super) moved: u8,
    /// How often it was sent.
    pub(super) attempt: u32,
}

impl Part {
    /// Whether its answer goes to its client while it comes.
    pub(super) fn is_passing(&self) -> bool {
        matches!(&self.state, State::Out(_, _, Some(arriving)) if matches!(arriving.body, Coming::Passing(_)))
    }
}

/// How far a part is.
pub(super) enum State {
    /// Others of its object come before it.
    InLine,
    /// For a link since then, or for a map that is at least this one.
    Waits(u64, Option<MapMark>),
    /// Asked as this request of this link; what has come of a long reply.
    Out(LinkId, u64, Option<Box<Arriving>>),
    /// With the group's part here.
    InGroup,
    /// It is over.
    Landed(Box<Landed>),
}

/// A long reply.
pub(super) struct Arriving {
    pub(super) header: Header,
    /// Its encoded fields.
    pub(super) head: Vec<u8>,
    pub(super) body: Coming,
}

pub(super) enum Coming {
    /// A value.
    Value(Upload),
    /// A value that goes to its client while it comes.
    Passing(Box<Passing>),
    /// Something else.
    Bytes(Assembly),
}

/// What waits for its reply.
pub(super) enum Entry {
    /// Parts that others answer.
    Flight(Box<Flight>),
    /// A put that began at once.
    Put(Box<Put>),
}

impl Entry {
    fn later(&self) -> &Later {
        match self {
            Entry::Flight(flight) => &flight.later,
            Entry::Put(put) => &put.later,
        }
    }

    fn later_mut(&mut self) -> &mut Later {
        match self {
            Entry::Flight(flight) => &mut flight.later,
            Entry::Put(put) => &mut put.later,
        }
    }

    /// When it must have ended, and whether its end is not looked for any more.
    fn end(&mut self) -> (u64, &mut bool) {
        match self {
            Entry::Flight(flight) => (flight.deadline_ms, &mut flight.is_late),
            Entry::Put(put) => (put.deadline_ms, &mut put.is_late),
        }
    }

    fn flight(&self) -> Option<&Flight> {
        if let Entry::Flight(flight) = self { Some(flight) } else { None }
    }
}

/// What became of a flight that was asked for.
pub(crate) enum Taken {
    /// There is none of that ticket.
    None,
    /// It is not over.
    Open,
    /// Its answer has begun to come: [`Context::pass_on`](crate::context::Context::pass_on).
    Passing,
    /// What its door kept, and what its parts came to.
    Landed(Later, Vec<Landed>),
    /// A put that began at once was done: what its door kept, and its version.
    Put(Later, Version),
}

/// The flights of a loop.
pub(crate) struct Flights {
    client: u64,
    sequence: u64,
    conns: HashMap<u64, OfConnection>,
    /// No flight must have ended before.
    due_ms: u64,
    /// Parts that wait, by when they began to.
    pub(super) waiting: VecDeque<FlightId>,
    /// Parts to be sent on their way now.
    pub(super) todo: VecDeque<FlightId>,
    /// When those that wait are looked at again.
    pub(super) again_ms: u64,
}

/// The flights of a connection; they are few, but where it asks ahead.
#[derive(Default)]
struct OfConnection {
    /// By the number of their ticket.
    flights: VecDeque<(u32, Entry)>,
    /// What is not over, in order, that changes an object or is ordered with what does.
    lines: Vec<Place>,
}

/// A part's place in the line of its object. What changes the object is on its way alone, what reads it side by side.
struct Place {
    object: u64,
    id: FlightId,
    changes: bool,
    /// It was sent on its way.
    goes: bool,
}

impl OfConnection {
    fn place(&self, serial: u32) -> Result<usize, usize> {
        match self.flights.front() {
            Some((first, _)) if *first == serial => Ok(0),
            _ => self.flights.binary_search_by_key(&serial, |(serial, _)| *serial),
        }
    }

    fn insert(&mut self, serial: u32, entry: Entry) {
        let at = self.flights.partition_point(|(other, _)| *other < serial);
        self.flights.insert(at, (serial, entry));
    }

    /// Whether what comes last may go at once.
    fn may_go(&self, object: u64, changes: bool) -> bool {
        !self.lines.iter().any(|place| place.object == object && (changes || place.changes || !place.goes))
    }

    /// Takes a part out of its line; those that come first then go.
    fn leave_line(&mut self, id: FlightId, object: u64, mut go: impl FnMut(FlightId)) {
        let Some(at) = self.lines.iter().position(|place| place.id == id) else { return };
        self.lines.remove(at);
        for (before, place) in self.lines.iter_mut().filter(|place| place.object == object).enumerate() {
            if place.changes && before > 0 {
                return;
            }
            if !std::mem::replace(&mut place.goes, true) {
                go(place.id);
            }
            if place.changes {
                return;
            }
        }
    }
}

impl Flights {
    /// Of a loop whose requests are those of this client.
    pub(crate) fn new(client: u64) -> Self {
        let (conns, waiting, todo) = (HashMap::new(), VecDeque::new(), VecDeque::new());
        Self { client, sequence: 0, conns, due_ms: u64::MAX, waiting, todo, again_ms: u64::MAX }
    }

    /// The id of the next request.
    pub(crate) fn next_id(&mut self) -> RequestId {
        self.sequence += 1;
        RequestId { client: self.client, sequence: self.sequence }
    }

    /// When there is something to do by the time, at the earliest.
    #[inline]
    pub(crate) fn due_ms(&self) -> u64 {
        self.due_ms.min(self.again_ms)
    }

    /// How many there are of a connection.
    pub(crate) fn of_connection(&self, conn: u64) -> usize {
        self.conns.get(&conn).map_or(0, |of| of.flights.len())
    }

    /// Those of a connection, and what was kept of them.
    pub(crate) fn kept(&self, conn: u64) -> impl Iterator<Item = (Ticket, &Later)> {
        let flights = self.conns.get(&conn).into_iter().flat_map(|of| &of.flights);
        flights.map(move |(serial, entry)| (Ticket { conn, serial: *serial }, entry.later()))
    }

    /// What was kept of that one.
    pub(crate) fn later(&self, ticket: Ticket) -> Option<&Later> {
        self.entry(ticket).map(Entry::later)
    }

    /// As [`Flights::later`].
    pub(crate) fn later_mut(&mut self, ticket: Ticket) -> Option<&mut Later> {
        self.entry_mut(ticket).map(Entry::later_mut)
    }

    /// What was kept of those of a connection.
    pub(crate) fn kept_mut(&mut self, conn: u64) -> impl Iterator<Item = &mut Later> {
        let flights = self.conns.get_mut(&conn).into_iter().flat_map(|of| &mut of.flights);
        flights.map(|(_, entry)| entry.later_mut())
    }

    pub(super) fn flight(&self, ticket: Ticket) -> Option<&Flight> {
        self.entry(ticket).and_then(Entry::flight)
    }

    fn entry(&self, ticket: Ticket) -> Option<&Entry> {
        let of = self.conns.get(&ticket.conn)?;
        of.place(ticket.serial).ok().map(|at| &of.flights[at].1)
    }

    fn entry_mut(&mut self, ticket: Ticket) -> Option<&mut Entry> {
        let of = self.conns.get_mut(&ticket.conn)?;
        of.place(ticket.serial).ok().map(|at| &mut of.flights[at].1)
    }

    pub(super) fn flight_mut(&mut self, ticket: Ticket) -> Option<&mut Flight> {
        match self.entry_mut(ticket)? {
            Entry::Flight(flight) => Some(flight),
            Entry::Put(_) => None,
        }
    }

    pub(super) fn part_of(&self, id: FlightId) -> Option<&Part> {
        self.flight(id.ticket).and_then(|flight| flight.parts.get(id.part as usize))
    }

    pub(super) fn part(&mut self, id: FlightId) -> Option<&mut Part> {
        self.flight_mut(id.ticket).and_then(|flight| flight.parts.get_mut(id.part as usize))
    }

    /// Takes a new flight in; its parts stand in line, or are to be sent on their way.
    pub(super) fn insert(&mut self, ticket: Ticket, mut flight: Box<Flight>) {
        self.due_ms = self.due_ms.min(flight.deadline_ms);
        let of = self.conns.entry(ticket.conn).or_default();
        let is_ordered = flight.later.is_ordered();
        for (number, part) in flight.parts.iter_mut().enumerate() {
            let (id, object, changes) = (FlightId { ticket, part: number as u32 }, part.object, part.handing.changes);
            let goes = has(Bug::Overtaken) || of.may_go(object, changes);
            // A read may be asked again, and must not find then what was asked after it. One that waits for a change is
            // not waited for.
            let is_ordered = is_ordered && part.handing.wait_ms(0).is_none();
            part.is_lined = changes || is_ordered || !goes;
            if part.is_lined {
                of.lines.push(Place { object, id, changes, goes });
            }
            self.todo.extend(goes.then_some(id));
        }
        of.insert(ticket.serial, Entry::Flight(flight));
    }

    /// Whether nothing of a connection stands in line for an object, or before it.
    pub(super) fn is_free(&self, conn: u64, object: u64) -> bool {
        self.conns.get(&conn).is_none_or(|of| !of.lines.iter().any(|place| place.object == object))
    }

    /// Takes a put in that began at once, for an object that [is free](Flights::is_free): it is the first in its line.
    pub(super) fn insert_put(&mut self, ticket: Ticket, put: Box<Put>) {
        self.due_ms = self.due_ms.min(put.deadline_ms);
        let of = self.conns.entry(ticket.conn).or_default();
        let (object, id) = (put.key.fingerprint(), FlightId { ticket, part: 0 });
        of.lines.push(Place { object, id, changes: true, goes: true });
        of.insert(ticket.serial, Entry::Put(put));
    }

    /// A put that began at once was done; false: there is none.
    pub(super) fn land_put(&mut self, ticket: Ticket, version: Version) -> bool {
        let Some(Entry::Put(put)) = self.entry_mut(ticket) else { return false };
        put.version = Some(version);
        let object = put.key.fingerprint();
        self.leave_line(FlightId { ticket, part: 0 }, object);
        true
    }

    /// A put that began at once, and is not done.
    pub(super) fn put(&self, ticket: Ticket) -> Option<&Put> {
        match self.entry(ticket)? {
            Entry::Put(put) if put.version.is_none() => Some(put),
            _ => None,
        }
    }

    /// Has a flight of one part take the place of a put that began at once, in its line too.
    pub(super) fn replace_put(&mut self, ticket: Ticket, flight: impl FnOnce(Put) -> Box<Flight>) {
        let Some(of) = self.conns.get_mut(&ticket.conn) else { return };
        let Ok(at) = of.place(ticket.serial) else { return };
        match of.flights.remove(at) {
            Some((_, Entry::Put(put))) => of.insert(ticket.serial, Entry::Flight(flight(*put))),
            Some((_, other)) => of.insert(ticket.serial, other),
            None => {}
        }
    }

    /// A part is asked once more; the last try may have done it, or did nothing.
    pub(super) fn again(&mut self, id: FlightId, may_be_done: bool) {
        let Some(flight) = self.flight_mut(id.ticket) else { return };
        let Some(part) = flight.parts.get_mut(id.part as usize) else { return };
        if may_be_done {
            part.handing.may_be_done(part.handing.sent_epoch().unwrap_or(flight.began_epoch));
        }
        part.was_sent = part.handing.is_retry();
    }

    /// A part has landed; gives whether its flight is over. Later news of it mean nothing.
    pub(super) fn land(&mut self, id: FlightId, landed: Landed) -> bool {
        let Some(flight) = self.flight_mut(id.ticket) else { return false };
        let Some(part) = flight.parts.get_mut(id.part as usize) else { return false };
        if matches!(part.state, State::Landed(_)) {
            return false;
        }
        part.state = State::Landed(Box::new(landed));
        let (is_lined, object) = (part.is_lined, part.object);
        flight.open -= 1;
        let is_over = flight.open == 0;
        if is_lined {
            self.leave_line(id, object);
        }
        is_over
    }

    /// As [`OfConnection::leave_line`].
    fn leave_line(&mut self, id: FlightId, object: u64) {
        if let Some(of) = self.conns.get_mut(&id.ticket.conn) {
            of.leave_line(id, object, |next| self.todo.push_back(next));
        }
    }

    /// Takes a flight that is over.
    pub(crate) fn take(&mut self, ticket: Ticket) -> Taken {
        match self.entry(ticket) {
            None => return Taken::None,
            Some(Entry::Put(put)) if put.version.is_none() => return Taken::Open,
            Some(Entry::Flight(flight)) if flight.parts.iter().any(Part::is_passing) => return Taken::Passing,
            Some(Entry::Flight(flight)) if flight.open > 0 => return Taken::Open,
            Some(_) => {}
        }
        match self.remove(ticket) {
            None => Taken::None,
            Some(Entry::Put(put)) => Taken::Put(put.later, put.version.unwrap_or(0)),
            Some(Entry::Flight(flight)) => {
                let landed = flight.parts.into_iter().filter_map(|part| match part.state {
                    State::Landed(landed) => Some(*landed),
                    _ => None,
                });
                Taken::Landed(flight.later, landed.collect())
            }
        }
    }

    fn remove(&mut self, ticket: Ticket) -> Option<Entry> {
        let of = self.conns.get_mut(&ticket.conn)?;
        let at = of.place(ticket.serial).ok()?;
        of.flights.remove(at).map(|(_, entry)| entry)
    }

    /// Gives up a flight that nobody wants any more; gives the requests that are out for it.
    pub(super) fn give_up(&mut self, ticket: Ticket) -> Vec<(LinkId, u64)> {
        let mut out = Vec::new();
        let flight = match self.remove(ticket) {
            None => return out,
            Some(Entry::Flight(flight)) => flight,
            Some(Entry::Put(put)) => {
                self.leave_line(FlightId { ticket, part: 0 }, put.key.fingerprint());
                return out;
            }
        };
        for (number, part) in flight.parts.into_iter().enumerate() {
            if part.is_lined && !matches!(part.state, State::Landed(_)) {
                self.leave_line(FlightId { ticket, part: number as u32 }, part.object);
            }
            if let State::Out(link, request, _) = part.state {
                out.push((link, request));
            }
        }
        out
    }

    /// A connection is closed; gives the tickets of its flights, which are still to be given up.
    pub(super) fn tickets(&self, conn: u64) -> Vec<Ticket> {
        self.kept(conn).map(|(ticket, _)| ticket).collect()
    }

    /// All flights of a connection were given up, and there will be no more.
    pub(super) fn forget_connection(&mut self, conn: u64) {
        self.conns.remove(&conn);
    }

    /// Puts that began at once.
    #[cfg(test)]
    pub(crate) fn puts_at_once(&self) -> usize {
        let entries = self.conns.values().flat_map(|of| &of.flights);
        entries.filter(|(_, entry)| matches!(entry, Entry::Put(_))).count()
    }

    /// Whether nothing is kept of any flight.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        let is_empty = |of: &OfConnection| of.flights.is_empty() && of.lines.is_empty();
        self.conns.values().all(is_empty) && self.todo.is_empty() && self.again_ms == u64::MAX
    }

    /// Flights of all connections.
    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.all().count()
    }

    fn all(&self) -> impl Iterator<Item = (Ticket, &Flight)> {
        self.conns.iter().flat_map(|(conn, of)| {
            let ticket = |serial| Ticket { conn: *conn, serial };
            of.flights.iter().filter_map(move |(serial, entry)| Some((ticket(*serial), entry.flight()?)))
        })
    }

    /// Parts that wait for a newer version, and are not over.
    pub(super) fn that_wait(&self) -> Vec<FlightId> {
        let waits = |part: &Part| part.handing.wait_ms(0).is_some() && !matches!(part.state, State::Landed(_));
        let of = |(ticket, flight): (Ticket, &Flight)| {
            let parts = flight.parts.iter().enumerate().filter(|(_, part)| waits(part));
            parts.map(|(part, _)| FlightId { ticket, part: part as u32 }).collect::<Vec<_>>()
        };
        let mut all: Vec<FlightId> = self.all().flat_map(of).collect();
        all.sort_unstable();
        all
    }

    /// Flights whose time is over, and that have not landed; each is told once.
    pub(super) fn late(&mut self, now_ms: u64) -> Vec<Ticket> {
        if now_ms < self.due_ms {
            return Vec::new();
        }
        let mut late: Vec<(u64, Ticket)> = Vec::new();
        self.due_ms = u64::MAX;
        for (conn, of) in &mut self.conns {
            for (serial, entry) in &mut of.flights {
                match entry.end() {
                    (_, &mut true) => {}
                    (at_ms, is_late) if at_ms <= now_ms => {
                        *is_late = true;
                        late.push((at_ms, Ticket { conn: *conn, serial: *serial }));
                    }
                    (at_ms, _) => self.due_ms = self.due_ms.min(at_ms),
                }
            }
        }
        late.sort_unstable();
        late.into_iter().map(|(_, ticket)| ticket).collect()
    }

    /// It must have ended by then, as the loop's clock has it.
    pub(super) fn set_deadline(&mut self, ticket: Ticket, at_ms: u64) {
        if let Some(flight) = self.flight_mut(ticket) {
            (flight.line_ms, flight.deadline_ms, flight.is_late) = (at_ms, at_ms, false);
            self.due_ms = self.due_ms.min(at_ms);
        }
    }
}
