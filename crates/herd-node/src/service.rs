//! One loop's service: tells the door of each connection and hands its bytes to it.

use crate::context::{Context, Output, Shared};
use crate::doors::Session;
use crate::{gate, group, link};
use herd_core::{door, wire};
use herd_net::{Due, Intake, Service, Step, Ticket};
use herd_store::{Body, Foreseen};
use std::io::IoSliceMut;
use std::net::SocketAddr;
use std::sync::Arc;

/// Records that upkeep looks at in one turn, at most: under 2 ms, and under 0.5 ms as a rule.
const UPKEEP_RECORDS: usize = 1024;

/// The service of one loop.
pub(crate) struct NodeService {
    pub(crate) cx: Context,
    /// The object this round will ask for that was foreseen last.
    foreseen: Option<Foreseen>,
    /// The store's upkeep of this tick is not done.
    store_left: bool,
}

impl NodeService {
    pub(crate) fn new(shared: Arc<Shared>, number: usize) -> Self {
        Self { cx: Context::new(shared, number), foreseen: None, store_left: false }
    }
}

impl Service for NodeService {
    type Session = Session;
    type Bulk = Arc<Body>;

    #[inline]
    fn begin(&mut self, now_ns: u64) {
        self.cx.begin(now_ns);
    }

    #[inline]
    fn foresee(&mut self, session: &Session, input: &[u8]) {
        let name = match session {
            Session::Memcached(_) => door::memcached::foresee(input),
            Session::Wire(_) => wire::foresee(input),
            _ => None,
        };
        if let Some(name) = name {
            let store = &self.cx.shared.store;
            // The one before had the time of a read for its place in the index to come.
            store.fetch(self.foreseen.replace(store.foresee(&self.cx.shared.default, name)));
        }
    }

    #[inline]
    fn foreseen(&mut self) {
        self.cx.shared.store.fetch(self.foreseen.take());
    }

    #[inline]
    fn serve(&mut self, session: &mut Session, input: &[u8], out: &mut Output<'_>) -> Step {
        if let Session::New = session {
            match Session::of(input, &self.cx, out) {
                Ok(known) => *session = known,
                Err(step) => return step,
            }
        }
        self.cx.door = session.name();
        if let Some(step) = self.cx.put_off_behind_flush(out) {
            return step;
        }
        if !self.cx.held && gate::may_change(session, input) {
            return self.cx.put_off(out).unwrap_or_else(|error| session.refuse(&self.cx, &error, input, out));
        }
        match session {
            Session::New => unreachable!("its door was told above"),
            Session::Memcached(session) => session.serve(&mut self.cx, input, out),
            Session::Http(session) => session.serve(&mut self.cx, input, out),
            Session::Wire(session) => session.serve(&mut self.cx, input, out),
            Session::Link(session) => session.serve(&mut self.cx, input, out),
        }
    }

    #[inline]
    fn served(&mut self, now_ns: u64) {
        self.cx.settle(now_ns);
    }

    #[inline]
    fn ready(&mut self, tickets: &mut Vec<Ticket>) {
        self.cx.take_woken(tickets);
    }

    #[inline]
    fn urgent(&mut self, tickets: &mut Vec<Ticket>) {
        self.cx.links.take_ready(tickets);
    }

    fn open(&mut self, _peer: SocketAddr) -> Session {
        Session::New
    }

    fn space<'a>(&'a mut self, session: &'a mut Session, max: usize) -> Vec<IoSliceMut<'a>> {
        session.space(&mut self.cx, max)
    }

    fn filled(&mut self, session: &mut Session, n: usize, out: &mut Output<'_>) -> Step {
        self.cx.door = session.name();
        session.filled(&mut self.cx, n, out)
    }

    fn resume(&mut self, session: &mut Session, ticket: Ticket, out: &mut Output<'_>) -> bool {
        self.cx.door = session.name();
        if self.cx.passes_gate(ticket) {
            out.pass();
            return true;
        }
        if self.cx.end_flush(ticket, out) {
            return true;
        }
        session.resume(&mut self.cx, ticket, out)
    }

    fn is_multiplexed(&self, session: &Session) -> bool {
        matches!(session, Session::Wire(_) | Session::Link(_))
    }

    #[inline]
    fn wants_more(&self, session: &Session) -> bool {
        session.wants_more(&self.cx)
    }

    #[inline]
    fn owes(&self, session: &Session) -> bool {
        matches!(session, Session::Wire(wire) if wire.owes())
            || session.flying().is_some_and(|conn| self.cx.flights.of_connection(conn) > session.intakes())
    }

    #[inline]
    fn intake(&self, session: &Session) -> Intake {
        match session.taking_in() {
            None => Intake::None,
            Some(ticket) if self.cx.is_full(ticket) => Intake::Full,
            Some(_) => Intake::Takes,
        }
    }

    fn more(&mut self, session: &mut Session, out: &mut Output<'_>) {
        session.more(&mut self.cx, out);
    }

    fn tick(&mut self, due: &mut Vec<Ticket>) {
        self.cx.due(due);
        if self.cx.shared.check_serving().is_err() {
            self.cx.stop_flights();
        }
        self.store_left = true;
    }

    fn upkeep(&mut self) -> bool {
        self.cx.list_on();
        if self.store_left {
            self.store_left = self.cx.shared.store.maintain(self.cx.now, UPKEEP_RECORDS);
        }
        self.store_left || self.cx.has_listings()
    }

    #[inline]
    fn wants_upkeep(&self) -> bool {
        self.cx.has_listings()
    }

    #[inline]
    fn alarm_ms(&self) -> u64 {
        self.cx.links.alarm_ms().min(self.cx.parts_alarm_ms()).min(self.cx.flights.due_ms())
    }

    fn alarm(&mut self, now_ms: u64, due: &mut Due<Session>) {
        link::alarm(&mut self.cx, now_ms, due);
        group::alarm(&mut self.cx);
        self.cx.flights_due();
    }

    fn connected(&mut self, session: &mut Session, out: &mut Output<'_>) {
        if let Session::Link(session) = session {
            session.connected(out);
        }
    }

    fn is_link(&self, session: &Session) -> bool {
        matches!(session, Session::Link(session) if session.is_up())
    }

    fn is_dropped(&self, session: &Session) -> bool {
        session.is_broken(&self.cx)
    }

    fn is_idle(&self, session: &Session) -> bool {
        session.is_idle()
    }

    fn is_known(&self, session: &Session) -> bool {
        session.is_known()
    }

    fn hold(&mut self, change_bytes: i64) -> bool {
        self.cx.shared.store.hold(change_bytes)
    }

    fn close(&mut self, session: Session) {
        session.flying().into_iter().for_each(|conn| self.cx.forget_flights(conn));
        if let Session::Link(mut session) = session {
            session.close(&mut self.cx);
        }
    }
}
