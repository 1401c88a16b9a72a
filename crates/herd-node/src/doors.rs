//! State of a connection, by its door, and what the loop asks of it beyond serving bytes.

use crate::context::{Context, Output};
use crate::metrics::{DoorName, VerbName};
use crate::{http, link, memcached, wire};
use herd_core::door::{self, Door};
use herd_core::{Error, ErrorKind};
use herd_net::{Next, Step, Ticket};
use std::io::IoSliceMut;

/// State of a connection.
pub(crate) enum Session {
    /// It has not said enough.
    New,
    /// memcached text and meta.
    Memcached(memcached::Session),
    /// HTTP/1.1.
    Http(http::Session),
    /// Herd's wire.
    Wire(wire::Session),
    /// Herd's wire between two nodes.
    Link(link::Session),
}

impl Session {
    /// The session of a connection whose first bytes these are. Error: what is to happen, as they do not tell its door,
    /// or that is not built yet.
    pub(crate) fn of(input: &[u8], cx: &Context, out: &mut Output<'_>) -> Result<Self, Step> {
        let more = Step { used: 0, next: Next::Read };
        let door = door::sniff(input).ok_or(more)?;
        let is_node = door == Door::Wire && link::is_hello(input).ok_or(more)?;
        if is_node {
            return Ok(Session::Link(link::Session::New));
        }
        Session::open(door, cx, out).ok_or(Step { used: input.len(), next: Next::Close })
    }

    /// The session of a client's connection by this door; `None` if that is not built yet.
    fn open(door: Door, cx: &Context, out: &mut Output<'_>) -> Option<Self> {
        match door {
            Door::Memcached => Some(Session::Memcached(memcached::Session::default())),
            Door::Http => Some(Session::Http(http::Session::default())),
            Door::Wire => Some(Session::Wire(wire::Session::default())),
            Door::Tls | Door::Resp => {
                if door == Door::Resp {
                    out.buf.extend_from_slice(b"-ERR RESP is not in this version of Herd\r\n");
                }
                cx.count_error(DoorName::Other, VerbName::Admin, ErrorKind::NotInVersion);
                None
            }
        }
    }

    /// Answers all that was said with an error, and has the connection closed.
    #[cold]
    pub(crate) fn refuse(&self, cx: &Context, error: &Error, input: &[u8], out: &mut Output<'_>) -> Step {
        match self {
            Session::New | Session::Link(_) => {}
            Session::Memcached(_) => memcached::fail(cx, error, out),
            Session::Http(_) => http::fail_all(cx, error, out),
            Session::Wire(session) => session.refuse_all(cx, error, out),
        }
        Step { used: input.len(), next: Next::Close }
    }

    /// Its door, as counted.
    #[inline]
    pub(crate) fn name(&self) -> DoorName {
        match self {
            Session::New => DoorName::Other,
            Session::Memcached(_) => DoorName::Memcached,
            Session::Http(_) => DoorName::Http,
            Session::Wire(_) => DoorName::Wire,
            Session::Link(_) => DoorName::Node,
        }
    }

    /// Where the next bytes of a body go.
    pub(crate) fn space<'a>(&'a mut self, cx: &mut Context, max: usize) -> Vec<IoSliceMut<'a>> {
        match self {
            Session::New | Session::Link(_) => Vec::new(),
            Session::Memcached(session) => session.space(cx, max),
            Session::Http(session) => session.space(cx, max),
            Session::Wire(session) => session.space(cx, max),
        }
    }

    /// `n` bytes of a body were received into its space.
    pub(crate) fn filled(&mut self, cx: &mut Context, n: usize, out: &mut Output<'_>) -> Step {
        match self {
            Session::New | Session::Link(_) => unreachable!("no space was given"),
            Session::Memcached(session) => session.filled(cx, n),
            Session::Http(session) => session.filled(cx, n, out),
            Session::Wire(session) => session.filled(cx, n, out),
        }
    }

    /// The reply in order whose value is coming, and goes to another node.
    pub(crate) fn taking_in(&self) -> Option<Ticket> {
        match self {
            Session::Memcached(session) => session.taking_in(),
            Session::Http(session) => session.taking_in(),
            Session::New | Session::Wire(_) | Session::Link(_) => None,
        }
    }

    /// Values that come and go to other nodes.
    pub(crate) fn intakes(&self) -> usize {
        match self {
            Session::Wire(session) => session.intakes(),
            session => usize::from(session.taking_in().is_some()),
        }
    }

    /// A wait of this ticket may be over. False: there is none any more.
    pub(crate) fn resume(&mut self, cx: &mut Context, ticket: Ticket, out: &mut Output<'_>) -> bool {
        match self {
            Session::New => false,
            Session::Memcached(session) => session.resume(cx, ticket, out),
            Session::Http(session) => session.resume(cx, ticket, out),
            Session::Wire(session) => session.resume(cx, ticket, out),
            Session::Link(session) => session.resume(cx, ticket, out),
        }
    }

    /// Everything queued was sent: gives the next piece.
    pub(crate) fn more(&mut self, cx: &mut Context, out: &mut Output<'_>) {
        match self {
            Session::Wire(session) => session.more(cx, out),
            Session::Link(session) => session.more(cx, out),
            Session::Http(session) => session.more(cx),
            Session::New | Session::Memcached(_) => {}
        }
    }

    /// Whether there is more to send once everything queued was sent.
    #[inline]
    pub(crate) fn wants_more(&self, cx: &Context) -> bool {
        match self {
            Session::Wire(session) => session.wants_more(),
            Session::Link(session) => session.wants_more(cx),
            Session::Http(session) => session.wants_more(),
            Session::New | Session::Memcached(_) => false,
        }
    }

    /// The number of its connection, if it has handed anything on.
    pub(crate) fn flying(&self) -> Option<u64> {
        match self {
            Session::New => None,
            Session::Memcached(session) => session.flying(),
            Session::Http(session) => session.flying(),
            Session::Wire(session) => session.flying(),
            Session::Link(session) => session.flying(),
        }
    }

    /// Whether its connection can't go on.
    pub(crate) fn is_broken(&self, cx: &Context) -> bool {
        match self {
            Session::New | Session::Memcached(_) => false,
            Session::Http(session) => session.is_broken(),
            Session::Wire(session) => session.is_broken(),
            Session::Link(session) => session.is_over(cx),
        }
    }

    /// Whether it is between requests.
    pub(crate) fn is_idle(&self) -> bool {
        match self {
            Session::New | Session::Link(_) => true,
            Session::Memcached(session) => session.is_idle(),
            Session::Http(session) => session.is_idle(),
            Session::Wire(session) => session.is_idle(),
        }
    }

    /// Whether it has told its protocol.
    pub(crate) fn is_known(&self) -> bool {
        match self {
            Session::New => false,
            Session::Http(session) => session.is_known(),
            Session::Memcached(_) | Session::Wire(_) => true,
            Session::Link(session) => session.is_up(),
        }
    }
}
