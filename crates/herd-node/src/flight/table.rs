//! The flights of a loop: which there are, how far each part of them is, and when each must have ended.
//!
//! A flight is known by the ticket of its reply. Nothing here asks or answers anybody.

use super::landed::Landed;
use super::passing::Passing;
use super::{Handing, Later};
use crate::held::Held;
use herd_core::bugs::{Bug, has};
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
    flights: VecDeque<(u32, Box<Flight>)>,
    /// By object, in order: what changes it and is not over, and what stands behind.
    lines: Vec<(u64, FlightId)>,
}

impl OfConnection {
    fn place(&self, serial: u32) -> Result<usize, usize> {
        match self.flights.front() {
            Some((first, _)) if *first == serial => Ok(0),
            _ => self.flights.binary_search_by_key(&serial, |(serial, _)| *serial),
        }
    }

    /// Takes a part out of its line; gives who goes then, as it comes first.
    fn leave_line(&mut self, id: FlightId, object: u64) -> Option<FlightId> {
        let at = self.lines.iter().position(|(_, other)| *other == id)?;
        let was_first = !self.lines[..at].iter().any(|(of, _)| *of == object);
        self.lines.remove(at);
        let next = self.lines[at..].iter().find(|(of, _)| *of == object);
        next.filter(|_| was_first).map(|(_, next)| *next)
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
        flights.map(move |(serial, flight)| (Ticket { conn, serial: *serial }, &flight.later))
    }

    /// What was kept of that one.
    pub(crate) fn later(&self, ticket: Ticket) -> Option<&Later> {
        self.flight(ticket).map(|flight| &flight.later)
    }

    /// As [`Flights::later`].
    pub(crate) fn later_mut(&mut self, ticket: Ticket) -> Option<&mut Later> {
        self.flight_mut(ticket).map(|flight| &mut flight.later)
    }

    /// What was kept of those of a connection.
    pub(crate) fn kept_mut(&mut self, conn: u64) -> impl Iterator<Item = &mut Later> {
        let flights = self.conns.get_mut(&conn).into_iter().flat_map(|of| &mut of.flights);
        flights.map(|(_, flight)| &mut flight.later)
    }

    pub(super) fn flight(&self, ticket: Ticket) -> Option<&Flight> {
        let of = self.conns.get(&ticket.conn)?;
        of.place(ticket.serial).ok().map(|at| &*of.flights[at].1)
    }

    pub(super) fn flight_mut(&mut self, ticket: Ticket) -> Option<&mut Flight> {
        let of = self.conns.get_mut(&ticket.conn)?;
        of.place(ticket.serial).ok().map(|at| &mut *of.flights[at].1)
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
        for (number, part) in flight.parts.iter_mut().enumerate() {
            let id = FlightId { ticket, part: number as u32 };
            let goes = has(Bug::Overtaken) || !of.lines.iter().any(|(object, _)| *object == part.object);
            part.is_lined = part.handing.changes || !goes;
            if part.is_lined {
                of.lines.push((part.object, id));
            }
            self.todo.extend(goes.then_some(id));
        }
        let at = of.flights.partition_point(|(serial, _)| *serial < ticket.serial);
        of.flights.insert(at, (ticket.serial, flight));
    }

    /// A part is asked once more; the last try may have done it, or did nothing.
    pub(super) fn again(&mut self, id: FlightId, may_be_done: bool) {
        let Some(flight) = self.flight_mut(id.ticket) else { return };
        let Some(part) = flight.parts.get_mut(id.part as usize) else { return };
        if may_be_done {
            part.handing.may_be_done(flight.began_epoch);
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

    /// Takes a part out of its line; who comes first then goes.
    fn leave_line(&mut self, id: FlightId, object: u64) {
        let next = self.conns.get_mut(&id.ticket.conn).and_then(|of| of.leave_line(id, object));
        self.todo.extend(next);
    }

    /// Takes a flight that is over.
    pub(crate) fn take(&mut self, ticket: Ticket) -> Taken {
        match self.flight(ticket) {
            None => Taken::None,
            Some(flight) if flight.parts.iter().any(Part::is_passing) => Taken::Passing,
            Some(flight) if flight.open > 0 => Taken::Open,
            Some(_) => self.remove(ticket).map_or(Taken::None, |flight| {
                let landed = flight.parts.into_iter().filter_map(|part| match part.state {
                    State::Landed(landed) => Some(*landed),
                    _ => None,
                });
                Taken::Landed(flight.later, landed.collect())
            }),
        }
    }

    fn remove(&mut self, ticket: Ticket) -> Option<Box<Flight>> {
        let of = self.conns.get_mut(&ticket.conn)?;
        let at = of.place(ticket.serial).ok()?;
        of.flights.remove(at).map(|(_, flight)| flight)
    }

    /// Gives up a flight that nobody wants any more; gives the requests that are out for it.
    pub(super) fn give_up(&mut self, ticket: Ticket) -> Vec<(LinkId, u64)> {
        let mut out = Vec::new();
        let Some(flight) = self.remove(ticket) else { return out };
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

    /// Whether nothing is kept of any flight.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        let is_empty = |of: &OfConnection| of.flights.is_empty() && of.lines.is_empty();
        self.conns.values().all(is_empty) && self.todo.is_empty() && self.again_ms == u64::MAX
    }

    fn all(&self) -> impl Iterator<Item = (Ticket, &Flight)> {
        self.conns.iter().flat_map(|(conn, of)| {
            let ticket = |serial| Ticket { conn: *conn, serial };
            of.flights.iter().map(move |(serial, flight)| (ticket(*serial), &**flight))
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
        let is_late = |flight: &Flight| flight.deadline_ms <= now_ms && !flight.is_late;
        let late = self.all().filter(|(_, flight)| is_late(flight));
        let mut late: Vec<(u64, Ticket)> = late.map(|(ticket, flight)| (flight.deadline_ms, ticket)).collect();
        late.sort_unstable();
        for (_, ticket) in &late {
            self.flight_mut(*ticket).into_iter().for_each(|flight| flight.is_late = true);
        }
        let rest = self.all().filter(|(_, flight)| !flight.is_late).map(|(_, flight)| flight.deadline_ms);
        self.due_ms = rest.min().unwrap_or(u64::MAX);
        late.into_iter().map(|(_, ticket)| ticket).collect()
    }

    /// It must have ended by then, as the loop's clock has it.
    pub(super) fn set_deadline(&mut self, ticket: Ticket, at_ms: u64) {
        if let Some(flight) = self.flight_mut(ticket) {
            (flight.deadline_ms, flight.is_late) = (at_ms, false);
            self.due_ms = self.due_ms.min(at_ms);
        }
    }
}
