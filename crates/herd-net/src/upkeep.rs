//! What a loop does besides serving: news from other threads, deferred replies, deadlines, the end.

use crate::conn::Why;
use crate::event_loop::EventLoop;
use crate::output::{Output, Queue, Ticket, ticket_id};
use crate::service::Service;
use crate::stats::add;
use herd_core::limits::STOP_MS;
use mio::net::TcpStream;

impl<S: Service> EventLoop<S> {
    /// All that is due; true when a stopping loop is done.
    #[cold]
    pub(crate) fn upkeep(&mut self) -> bool {
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
        for (socket, peer) in inbox.sockets {
            self.adopt(TcpStream::from_std(socket), peer);
        }
        for ticket in inbox.tickets {
            self.resume(ticket);
        }
        if inbox.stop && self.stopping_ms.is_none() {
            self.stopping_ms = Some(self.now_ms + STOP_MS);
            self.listeners.clear();
            self.ticked = true;
        }
    }

    /// Has the service make a deferred reply and puts it in its place.
    fn resume(&mut self, ticket: Ticket) {
        let at = (ticket.conn & 0xFFFF_FFFF) as usize;
        let Some(Some(conn)) = self.conns.get_mut(at) else {
            return;
        };
        if ticket.conn != ticket_id(at, self.uses[at]) {
            return;
        }
        let (mut buf, mut reply) = (Vec::new(), Queue::resumed(ticket.serial));
        let mut out = Output::new(&mut buf, &mut reply, ticket.conn);
        self.service.resume(&mut conn.session, ticket, &mut out);
        reply.push(&buf);
        if !reply.is_empty() {
            conn.queue.fill(ticket.serial, reply);
            if conn.tell_held(&mut self.service) { self.stand_in_line(at) } else { self.close(at, Why::Shed) }
        }
    }

    /// Called every [`TICK_MS`](herd_core::limits::TICK_MS); true when a stopping loop is done.
    fn tick(&mut self) -> bool {
        if self.accept_after_ms > 0 && self.now_ms >= self.accept_after_ms {
            self.accept_after_ms = 0;
            self.accept_all();
        }
        let mut due = Vec::new();
        self.service.tick(&mut due);
        due.into_iter().for_each(|ticket| self.resume(ticket));
        self.shed();
        self.stopping_ms.is_some_and(|until| self.now_ms >= until || self.conns.iter().all(Option::is_none))
    }

    /// Closes connections whose time is up, and idle ones while stopping.
    fn shed(&mut self) {
        for at in 0..self.conns.len() {
            let Some(conn) = &self.conns[at] else {
                continue;
            };
            let late = conn.deadline_ms != 0 && conn.deadline_ms <= self.now_ms;
            let slow = late && !conn.lingering;
            let idle = conn.queue.is_empty() && self.service.is_idle(&conn.session);
            let stop = self.stopping_ms.is_some() && idle;
            if late || stop {
                self.close(at, if slow { Why::Shed } else { Why::Done });
            }
        }
    }

    /// Closes the connection at `at`.
    pub(crate) fn close(&mut self, at: usize, why: Why) {
        let Some(mut conn) = self.conns[at].take() else {
            return;
        };
        // The poller forgets a socket when it is closed; saying so first is only tidy.
        self.poll.registry().deregister(&mut conn.socket).ok();
        add(&self.remote.stats.closed, 1);
        match why {
            Why::Done => {}
            Why::Shed => add(&self.remote.stats.shed, 1),
            Why::Overrun => add(&self.remote.stats.overrun, 1),
        }
        self.handle.leave();
        conn.release(&mut self.service);
        self.service.close(conn.session);
        self.uses[at] = self.uses[at].wrapping_add(1);
        self.free.push(at);
    }
}
