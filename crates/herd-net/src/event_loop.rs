//! The event loop of one thread: an [`Engine`] with the kernel's sockets, and what tells it of them.
//!
//! The poller is edge-triggered. News from other threads wakes it: connections to take over, replies that are ready,
//! the order to stop.

use crate::engine::{Engine, Ready};
use crate::group::{ALARM, Handed, LISTENERS, LoopHandle, Remote, TICK, WAKE};
use crate::service::Service;
use crate::sys::{Alarm, Kernel, Ticker};
use mio::event::Event;
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Poll, Token};
use std::io;
use std::sync::Arc;
use std::time::Duration;

const EVENTS: usize = 1024;

/// A loop, to be run by a thread of its own.
pub struct EventLoop<S: Service> {
    pub(crate) engine: Engine<S, Kernel>,
    pub(crate) poll: Poll,
    pub(crate) handle: LoopHandle,
    pub(crate) remote: Arc<Remote>,
    pub(crate) listeners: Vec<TcpListener>,
    pub(crate) ticker: Ticker,
    pub(crate) alarm: Alarm,
    /// It is time for upkeep.
    pub(crate) ticked: bool,
    pub(crate) woken: bool,
    pub(crate) accept_after_ms: u64,
    /// A batch was accepted and more may be waiting.
    pub(crate) accept_more: bool,
    /// A descriptor held back, so that a connection that can't be kept can still be taken and closed.
    pub(crate) reserve: Option<std::fs::File>,
}

impl<S: Service> EventLoop<S> {
    /// Runs until it is stopped; an error is one of the poller itself.
    pub fn run(mut self) -> io::Result<()> {
        let mut events = Events::with_capacity(EVENTS);
        loop {
            let busy = self.engine.is_busy() || self.accept_more;
            let alarm_ms = self.engine.alarm_ms();
            self.alarm.set(alarm_ms, || self.engine.now_ns());
            let wait = if busy { Some(Duration::ZERO) } else { self.ticker.wait(self.engine.now_ms(), alarm_ms) };
            match self.poll.poll(&mut events, wait) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
                _ => {}
            }
            self.engine.begin();
            events.iter().for_each(|event| self.note(event));
            self.engine.rounds();
            self.engine.turns();
            self.engine.alarm();
            self.ticked = self.ticker.is_due(self.ticked, self.engine.now_ms());
            if (self.woken || self.accept_more || self.ticked) && self.upkeep() {
                return Ok(());
            }
        }
    }

    /// Sorts out what the kernel says.
    #[inline]
    fn note(&mut self, event: &Event) {
        match event.token() {
            WAKE => self.woken = true,
            TICK => self.ticked = true,
            ALARM => self.alarm.rang(),
            Token(n) if n >= LISTENERS => self.accept(n - LISTENERS),
            Token(at) => {
                let ended = event.is_read_closed() || event.is_error();
                self.engine.note(at, Ready { readable: event.is_readable(), ended, writable: event.is_writable() });
            }
        }
    }

    /// All that is due; true when a stopping loop is done.
    #[cold]
    fn upkeep(&mut self) -> bool {
        if std::mem::take(&mut self.woken) {
            self.read_inbox();
        }
        if self.accept_more {
            self.accept_all();
        }
        std::mem::take(&mut self.ticked) && self.tick()
    }

    fn read_inbox(&mut self) {
        let inbox = self.remote.inbox();
        for Handed { socket, peer, seat, input } in inbox.sockets {
            self.adopt(TcpStream::from_std(socket), peer, seat, input);
        }
        for ticket in inbox.tickets {
            self.engine.resume_later(ticket);
        }
        if let Some(within_ms) = inbox.stop {
            self.engine.stop_within(within_ms);
            self.listeners.clear();
            self.ticked = true;
        }
    }

    fn tick(&mut self) -> bool {
        if self.accept_after_ms > 0 && self.engine.now_ms() >= self.accept_after_ms {
            self.accept_after_ms = 0;
            self.accept_all();
        }
        self.engine.tick();
        self.engine.has_stopped()
    }
}
