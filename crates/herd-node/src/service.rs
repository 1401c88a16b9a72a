//! One loop's service: tells the door of each connection and hands its bytes to it.

use crate::context::{Context, Shared};
use crate::metrics::{DoorName, VerbName};
use crate::wire;
use crate::{http, memcached};
use herd_core::ErrorKind;
use herd_core::door::{self, Door};
use herd_net::{Next, Service, Step, Ticket, Why};
use herd_store::{Body, Foreseen};
use std::io::IoSliceMut;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

/// Where replies go.
pub(crate) type Output<'a> = herd_net::Output<'a, Arc<Body>>;

/// The service of one loop.
pub(crate) struct NodeService {
    cx: Context,
    /// Objects this round will ask for.
    foreseen: Vec<Foreseen>,
}

/// State of a connection, by its door.
pub(crate) enum Session {
    /// It has not said enough.
    New,
    /// memcached text and meta.
    Memcached(memcached::Session),
    /// HTTP/1.1.
    Http(http::Session),
    /// Herd's wire.
    Wire(wire::Session),
}

impl Session {
    #[inline]
    fn name(&self) -> DoorName {
        match self {
            Session::New => DoorName::Other,
            Session::Memcached(_) => DoorName::Memcached,
            Session::Http(_) => DoorName::Http,
            Session::Wire(_) => DoorName::Wire,
        }
    }
}

impl NodeService {
    pub(crate) fn new(shared: Arc<Shared>, number: usize) -> Self {
        Self { cx: Context::new(shared, number), foreseen: Vec::new() }
    }

    fn open_door(&mut self, door: Door, out: &mut Output<'_>) -> Option<Session> {
        match door {
            Door::Memcached => Some(Session::Memcached(memcached::Session::default())),
            Door::Http => Some(Session::Http(http::Session::default())),
            Door::Wire => Some(Session::Wire(wire::Session::default())),
            Door::Tls | Door::Resp => {
                if door == Door::Resp {
                    out.buf.extend_from_slice(b"-ERR RESP is not in this version of Herd\r\n");
                }
                self.cx.count_error(DoorName::Other, VerbName::Admin, ErrorKind::NotInVersion);
                None
            }
        }
    }
}

impl Service for NodeService {
    type Session = Session;
    type Bulk = Arc<Body>;

    #[inline]
    fn begin(&mut self, now: Instant) {
        self.cx.begin(now);
    }

    #[inline]
    fn foresee(&mut self, session: &Session, input: &[u8]) {
        let name = match session {
            Session::Memcached(_) => door::memcached::foresee(input),
            _ => None,
        };
        if let Some(name) = name {
            let foreseen = self.cx.shared.store.foresee(&self.cx.shared.default, name);
            self.foreseen.push(foreseen);
        }
    }

    #[inline]
    fn foreseen(&mut self) {
        self.foreseen.drain(..).for_each(|foreseen| self.cx.shared.store.fetch(foreseen));
    }

    #[inline]
    fn served(&mut self) {
        self.cx.settle();
    }

    fn open(&mut self, _peer: SocketAddr) -> Session {
        Session::New
    }

    #[inline]
    fn serve(&mut self, session: &mut Session, input: &[u8], out: &mut Output<'_>) -> Step {
        if let Session::New = session {
            let Some(door) = door::sniff(input) else {
                return Step { used: 0, next: Next::Read };
            };
            let Some(known) = self.open_door(door, out) else {
                return Step { used: input.len(), next: Next::Close };
            };
            *session = known;
        }
        self.cx.door = session.name();
        match session {
            Session::New => unreachable!("its door was told above"),
            Session::Memcached(session) => session.serve(&mut self.cx, input, out),
            Session::Http(session) => session.serve(&mut self.cx, input, out),
            Session::Wire(session) => session.serve(&mut self.cx, input, out),
        }
    }

    fn space<'a>(&'a mut self, session: &'a mut Session, max: usize) -> Vec<IoSliceMut<'a>> {
        match session {
            Session::New => Vec::new(),
            Session::Memcached(session) => session.space(&mut self.cx, max),
            Session::Http(session) => session.space(&mut self.cx, max),
            Session::Wire(session) => session.space(&mut self.cx, max),
        }
    }

    fn filled(&mut self, session: &mut Session, n: usize, out: &mut Output<'_>) -> Step {
        self.cx.door = session.name();
        match session {
            Session::New => unreachable!("no space was given"),
            Session::Memcached(session) => session.filled(n),
            Session::Http(session) => session.filled(&mut self.cx, n, out),
            Session::Wire(session) => session.filled(&mut self.cx, n, out),
        }
    }

    fn resume(&mut self, session: &mut Session, ticket: Ticket, out: &mut Output<'_>) {
        self.cx.door = session.name();
        match session {
            Session::New | Session::Memcached(_) => {}
            Session::Http(session) => session.resume(&mut self.cx, ticket, out),
            Session::Wire(session) => session.resume(&mut self.cx, ticket, out),
        }
    }

    fn is_multiplexed(&self, session: &Session) -> bool {
        matches!(session, Session::Wire(_))
    }

    #[inline]
    fn wants_more(&self, session: &Session) -> bool {
        matches!(session, Session::Wire(session) if session.wants_more())
    }

    fn more(&mut self, session: &mut Session, out: &mut Output<'_>) {
        if let Session::Wire(session) = session {
            session.more(out);
        }
    }

    fn tick(&mut self, due: &mut Vec<Ticket>) {
        self.cx.due(due);
        if self.cx.number == 0 {
            self.cx.shared.store.maintain(self.cx.now);
        }
    }

    fn is_idle(&self, session: &Session) -> bool {
        match session {
            Session::New => true,
            Session::Memcached(session) => session.is_idle(),
            Session::Http(session) => session.is_idle(),
            Session::Wire(session) => session.is_idle(),
        }
    }

    fn is_known(&self, session: &Session) -> bool {
        match session {
            Session::New => false,
            Session::Http(session) => session.is_known(),
            Session::Memcached(_) | Session::Wire(_) => true,
        }
    }

    fn close(&mut self, session: Session, _why: Why) {
        match session {
            Session::New | Session::Memcached(_) => {}
            Session::Http(session) => session.close(&mut self.cx),
            Session::Wire(session) => session.close(&mut self.cx),
        }
    }
}
