//! What a loop asks of the protocol above it.

use crate::output::{Output, Ticket};
use herd_core::Chunks;
use std::io::IoSliceMut;
use std::net::SocketAddr;

/// What is to happen after bytes were served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// More bytes are needed.
    Read,
    /// The next that many bytes belong straight into [`Service::space`].
    Bulk(u64),
    /// Output is high: flush, then serve the rest of the same bytes again.
    Again,
    /// Send what is queued, then close.
    Close,
    /// The connection, on which nothing was said yet, belongs to the loop of this number: it is handed over, and what
    /// was not used is served there first, by a session of that loop. If something was said, it is closed.
    Move(usize),
}

/// How far a connection is with the body of a request whose reply has its gap already, so that it is read behind that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Intake {
    /// There is none.
    None,
    /// What comes is taken.
    Takes,
    /// Nothing is read, or served, before it is told otherwise: [`Service::resume`] of a ticket of the connection.
    Full,
}

/// What a service made of the bytes it was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Bytes consumed.
    pub used: usize,
    /// What is to happen next.
    pub next: Next,
}

/// A connection that a service wants to make.
pub struct Call<S> {
    /// Where to.
    pub to: SocketAddr,
    /// Its session. It is closed like any other if the connection is not made.
    pub session: S,
}

/// What a service has to do at its own time.
pub struct Due<S> {
    /// Connections and deferred replies to look at: [`Service::resume`].
    pub tickets: Vec<Ticket>,
    /// Connections to make.
    pub calls: Vec<Call<S>>,
}

impl<S> Default for Due<S> {
    fn default() -> Self {
        Self { tickets: Vec::new(), calls: Vec::new() }
    }
}

/// A protocol served by a loop. One value per loop, so it may keep state without locks.
pub trait Service {
    /// State of one connection.
    type Session;
    /// Large bodies sent without being copied.
    type Bulk: Chunks;

    /// A batch of events begins. Times count from a moment that all loops of a node share, and never fall.
    fn begin(&mut self, now_ns: u64);

    /// A connection was opened.
    fn open(&mut self, peer: SocketAddr) -> Self::Session;

    /// These bytes will be served a little later in this round: a good time to begin to fetch what they need.
    fn foresee(&mut self, session: &Self::Session, input: &[u8]);

    /// All of a round was foreseen and is served next.
    fn foreseen(&mut self);

    /// All of a round, or of a turn, was served.
    fn served(&mut self, now_ns: u64);

    /// Serves the bytes that have arrived and were not consumed yet; replies go to `out`. What is not used is handed
    /// in again, followed by what arrives.
    fn serve(&mut self, session: &mut Self::Session, input: &[u8], out: &mut Output<'_, Self::Bulk>) -> Step;

    /// Where up to `max` bytes of a body go, after `Next::Bulk`. None: the service gave up the body and wants its
    /// bytes through [`Service::serve`].
    fn space<'a>(&'a mut self, session: &'a mut Self::Session, max: usize) -> Vec<IoSliceMut<'a>>;

    /// `n` bytes were received into that space. `used` of the answer is not looked at.
    fn filled(&mut self, session: &mut Self::Session, n: usize, out: &mut Output<'_, Self::Bulk>) -> Step;

    /// Gives deferred replies of this loop that became ready by what was served since; asked after each round and turn.
    /// Those of other loops are told to them ([`Remote::resume`](crate::Remote::resume)).
    fn ready(&mut self, tickets: &mut Vec<Ticket>);

    /// As [`Service::ready`], but these come before all that wait: links between nodes, for which many wait elsewhere.
    /// There is at most one of each connection, so that they are few.
    fn urgent(&mut self, tickets: &mut Vec<Ticket>) {
        let _ = tickets;
    }

    /// A deferred reply may be ready: this loop, another one or the clock said so. False: there is none of that ticket
    /// any more, so that to ask cost next to nothing.
    fn resume(&mut self, session: &mut Self::Session, ticket: Ticket, out: &mut Output<'_, Self::Bulk>) -> bool;

    /// Whether the protocol has its own order of replies, so that requests are read while a body is being sent.
    fn is_multiplexed(&self, session: &Self::Session) -> bool;

    /// Whether there is more to send once everything queued was sent.
    fn wants_more(&self, session: &Self::Session) -> bool;

    /// Whether replies are still to come though nothing of them is queued: bodies being sent, and waits.
    fn owes(&self, session: &Self::Session) -> bool;

    /// Whether a body comes whose request has its gap already.
    fn intake(&self, session: &Self::Session) -> Intake {
        let _ = session;
        Intake::None
    }

    /// Everything queued was sent: gives the next piece. Or all before the rest of a reply ([`Output::keep`]), of which
    /// more may come then.
    fn more(&mut self, session: &mut Self::Session, out: &mut Output<'_, Self::Bulk>);

    /// Called about four times a second, and at once when a stop begins: gives tickets whose time has come. While the
    /// node stops that is all of them, so that whoever waits is told.
    fn tick(&mut self, due: &mut Vec<Ticket>);

    /// A turn of work of the service's own, well below a millisecond, after each tick; true: there is more, so it is
    /// called again once those who wait were served.
    fn upkeep(&mut self) -> bool {
        false
    }

    /// Whether a turn of [`Service::upkeep`] is wanted before the next tick; asked after each round and turn.
    fn wants_upkeep(&self) -> bool {
        false
    }

    /// When [`Service::alarm`] is wanted, ms of the loop's clock; `u64::MAX`: not at all. Asked whenever the loop has
    /// worked, so it should cost next to nothing.
    fn alarm_ms(&self) -> u64 {
        u64::MAX
    }

    /// That time has come, or has passed.
    fn alarm(&mut self, now_ms: u64, due: &mut Due<Self::Session>) {
        let _ = (now_ms, due);
    }

    /// A connection that was asked for is made: what this side says first goes to `out`.
    fn connected(&mut self, session: &mut Self::Session, out: &mut Output<'_, Self::Bulk>) {
        let _ = (session, out);
    }

    /// Whether the connection is a link between nodes: it is read however much of its output is not taken, or two nodes
    /// with much to say to each other would wait for ever. What it may owe the service bounds by itself; it is counted
    /// by [`Service::hold`] as far as there is room, and never closed for what clients hold.
    fn is_link(&self, session: &Self::Session) -> bool {
        let _ = session;
        false
    }

    /// Whether the connection is to be closed though its peer says nothing; asked at each tick. What comes before then
    /// is still handed in.
    fn is_dropped(&self, session: &Self::Session) -> bool {
        let _ = session;
        false
    }

    /// Whether the connection is between requests, so that it may wait for ever or be closed by a stop.
    fn is_idle(&self, session: &Self::Session) -> bool;

    /// Whether the connection has told its protocol.
    fn is_known(&self, session: &Self::Session) -> bool;

    /// What connections of this loop hold in buffers, of requests that are not whole and of replies that are not read,
    /// changed by so many bytes. False: there is no room for more; the connection that holds more is then closed,
    /// unless it is a link.
    /// Less is always taken.
    fn hold(&mut self, change_bytes: i64) -> bool;

    /// The connection is closed.
    fn close(&mut self, session: Self::Session);
}
