//! The flights of a loop: which there are, how far each part of them is, and when each must have ended.
//!
//! A flight is known by the ticket of its reply. Nothing here asks or answers anybody.

use super::landed::Landed;
use super::passing::Passing;
use super::{Handing, Later};
use crate::held::Held;
use herd_core::replica::window::RequestId;
use herd_core::wire::{Assembly, Header, LinkId, MapMark};
use herd_net::Ticket;
use herd_store::Upload;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

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
    pub(super) table: BTreeMap<Ticket, Flight>,
    deadlines: BTreeSet<(u64, Ticket)>,
    /// How many there are, by connection.
    counts: HashMap<u64, usize>,
    /// By connection and object: what changes it and is not over, and what stands behind.
    lines: HashMap<(u64, u64), VecDeque<FlightId>>,
    /// Parts that wait, by when they began to.
    pub(super) waiting: VecDeque<FlightId>,
    /// Parts to be sent on their way now.
    pub(super) todo: VecDeque<FlightId>,
    /// When those that wait are looked at again.
    pub(super) again_ms: u64,
}

impl Flights {
    /// Of a loop whose requests are those of this client.
    pub(crate) fn new(client: u64) -> Self {
        let (table, deadlines) = (BTreeMap::new(), BTreeSet::new());
        let (counts, lines) = (HashMap::new(), HashMap::new());
        let (waiting, todo) = (VecDeque::new(), VecDeque::new());
        Self { client, sequence: 0, table, deadlines, counts, lines, waiting, todo, again_ms: u64::MAX }
    }

    /// The id of the next request.
    pub(crate) fn next_id(&mut self) -> RequestId {
        self.sequence += 1;
        RequestId { client: self.client, sequence: self.sequence }
    }

    /// When there is something to do by the time.
    #[inline]
    pub(crate) fn due_ms(&self) -> u64 {
        self.deadlines.first().map_or(self.again_ms, |(at_ms, _)| self.again_ms.min(*at_ms))
    }

    /// How many there are of a connection.
    pub(crate) fn of_connection(&self, conn: u64) -> usize {
        self.counts.get(&conn).copied().unwrap_or_default()
    }

    /// Those of a connection, and what was kept of them.
    pub(crate) fn kept(&self, conn: u64) -> impl Iterator<Item = (Ticket, &Later)> {
        self.table.range(tickets(conn)).map(|(ticket, flight)| (*ticket, &flight.later))
    }

    /// What was kept of that one.
    pub(crate) fn later(&self, ticket: Ticket) -> Option<&Later> {
        self.table.get(&ticket).map(|flight| &flight.later)
    }

    /// As [`Flights::later`].
    pub(crate) fn later_mut(&mut self, ticket: Ticket) -> Option<&mut Later> {
        self.table.get_mut(&ticket).map(|flight| &mut flight.later)
    }

    /// What was kept of those of a connection.
    pub(crate) fn kept_mut(&mut self, conn: u64) -> impl Iterator<Item = &mut Later> {
        self.table.range_mut(tickets(conn)).map(|(_, flight)| &mut flight.later)
    }

    pub(super) fn part_of(&self, id: FlightId) -> Option<&Part> {
        self.table.get(&id.ticket).and_then(|flight| flight.parts.get(id.part as usize))
    }

    pub(super) fn part(&mut self, id: FlightId) -> Option<&mut Part> {
        self.table.get_mut(&id.ticket).and_then(|flight| flight.parts.get_mut(id.part as usize))
    }

    /// Takes a new flight in; its parts stand in line, or are to be sent on their way.
    pub(super) fn insert(&mut self, ticket: Ticket, flight: Flight) {
        self.deadlines.insert((flight.deadline_ms, ticket));
        let parts = flight.parts.iter().map(|part| (part.object, part.handing.changes)).collect::<Vec<_>>();
        self.table.insert(ticket, flight);
        *self.counts.entry(ticket.conn).or_default() += 1;
        for (number, (object, changes)) in parts.into_iter().enumerate() {
            let id = FlightId { ticket, part: number as u32 };
            let line = self.lines.get_mut(&(ticket.conn, object));
            let (is_lined, goes) = match line {
                Some(line) => {
                    line.push_back(id);
                    (true, false)
                }
                None if changes => {
                    self.lines.insert((ticket.conn, object), VecDeque::from([id]));
                    (true, true)
                }
                None => (false, true),
            };
            self.part(id).into_iter().for_each(|part| part.is_lined = is_lined);
            self.todo.extend(goes.then_some(id));
        }
    }

    /// A part is asked once more; the last try may have done it, or did nothing.
    pub(super) fn again(&mut self, id: FlightId, may_be_done: bool) {
        let Some(flight) = self.table.get_mut(&id.ticket) else { return };
        let Some(part) = flight.parts.get_mut(id.part as usize) else { return };
        if may_be_done {
            part.handing.may_be_done(flight.began_epoch);
        }
        part.was_sent = part.handing.is_retry();
    }

    /// A part has landed; gives whether its flight is over. Later news of it mean nothing.
    pub(super) fn land(&mut self, id: FlightId, landed: Landed) -> bool {
        let Some(flight) = self.table.get_mut(&id.ticket) else { return false };
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
        let key = (id.ticket.conn, object);
        let Some(line) = self.lines.get_mut(&key) else { return };
        let was_first = line.front() == Some(&id);
        line.retain(|other| *other != id);
        match line.front() {
            None => drop(self.lines.remove(&key)),
            Some(next) if was_first => self.todo.push_back(*next),
            Some(_) => {}
        }
    }

    /// Takes a flight that is over.
    pub(crate) fn take(&mut self, ticket: Ticket) -> Taken {
        match self.table.get(&ticket) {
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

    pub(super) fn remove(&mut self, ticket: Ticket) -> Option<Flight> {
        let flight = self.table.remove(&ticket)?;
        self.deadlines.remove(&(flight.deadline_ms, ticket));
        if let Some(count) = self.counts.get_mut(&ticket.conn) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&ticket.conn);
            }
        }
        Some(flight)
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

    /// The flights of a connection.
    pub(super) fn tickets(&self, conn: u64) -> Vec<Ticket> {
        self.table.range(tickets(conn)).map(|(ticket, _)| *ticket).collect()
    }

    /// Parts that wait for a newer version, and are not over.
    pub(super) fn that_wait(&self) -> Vec<FlightId> {
        let waits = |part: &Part| part.handing.wait_ms(0).is_some() && !matches!(part.state, State::Landed(_));
        let of = |(ticket, flight): (&Ticket, &Flight)| {
            let ticket = *ticket;
            let parts = flight.parts.iter().enumerate().filter(|(_, part)| waits(part));
            parts.map(|(part, _)| FlightId { ticket, part: part as u32 }).collect::<Vec<_>>()
        };
        self.table.iter().flat_map(of).collect()
    }

    /// Flights whose time is over, and that have not landed.
    pub(super) fn late(&self, now_ms: u64) -> Vec<Ticket> {
        self.deadlines.iter().take_while(|(at_ms, _)| *at_ms <= now_ms).map(|(_, ticket)| *ticket).collect()
    }

    /// It must have ended by then, as the loop's clock has it.
    pub(super) fn set_deadline(&mut self, ticket: Ticket, at_ms: u64) {
        if let Some(flight) = self.table.get_mut(&ticket) {
            self.deadlines.remove(&(flight.deadline_ms, ticket));
            flight.deadline_ms = at_ms;
            self.deadlines.insert((at_ms, ticket));
        }
    }

    /// It needs no deadline any more.
    pub(super) fn forget_deadline(&mut self, ticket: Ticket) {
        if let Some(flight) = self.table.get(&ticket) {
            self.deadlines.remove(&(flight.deadline_ms, ticket));
        }
    }
}

/// The tickets of a connection.
fn tickets(conn: u64) -> std::ops::RangeInclusive<Ticket> {
    Ticket { conn, serial: 0 }..=Ticket { conn, serial: u32::MAX }
}
