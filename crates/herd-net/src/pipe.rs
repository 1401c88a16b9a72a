//! Pretended sockets and a pretended clock, so that an [`Engine`](crate::Engine) runs in one thread in virtual time.
//!
//! A [`Pipe`] is the node's end of a connection, a [`Peer`] the client's. Each direction has a buffer of its own size,
//! so writes are cut short and refused as the kernel's are; ends, half ends and resets are as TCP has them. What the
//! poller would say, and when, is [`Peer::news`]: once for each change, as an edge-triggered poller does. What a node
//! dials is [`Pipes::dialed`]; a [`Cable`] joins two nodes.
//!
//! Callers: `herd-sim`, tests.

use crate::engine::Ready;
use crate::system::System;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// The system of a simulation: its clock, what the loop dialed, and what it handed over. All clones share them.
#[derive(Clone, Default)]
pub struct Pipes {
    now_ns: Arc<AtomicU64>,
    look_ns: Arc<AtomicU64>,
    /// How much slower than the others' its clock goes, in thousandths.
    lag: u64,
    dialed: Rc<RefCell<Vec<Dialed>>>,
    moved: Rc<RefCell<Vec<Moved>>>,
}

/// A connection that a node dialed. It is made by [`Peer::accept`] and refused by [`Peer::reset`].
pub struct Dialed {
    /// Its number in the node's engine.
    pub at: usize,
    /// Where to.
    pub to: SocketAddr,
    /// Its other end.
    pub peer: Peer,
}

/// A connection that a loop handed over.
pub struct Moved {
    /// Its end.
    pub pipe: Pipe,
    /// Number of the loop it is for.
    pub to: usize,
    /// What that loop is to serve first: [`Engine::hand_in`](crate::Engine::hand_in).
    pub input: Vec<u8>,
}

/// The node's end of a connection.
pub struct Pipe(Rc<RefCell<Line>>);

/// The client's end of a connection. To drop it says nothing to the node: see [`Peer::end`] and [`Peer::reset`].
pub struct Peer(Rc<RefCell<Line>>);

/// What lies between the ends.
struct Line {
    to_node: Way,
    to_client: Way,
    /// It is made.
    made: bool,
    /// The client tore it down.
    reset: bool,
    /// The node closed it.
    closed: bool,
    /// Arrivals are told from so many bytes on.
    low_water: usize,
    /// The node was refused room since it was last told of any.
    wants_room: bool,
    /// Something changed that the node was not told of.
    edge: bool,
}

struct Way {
    bytes: VecDeque<u8>,
    room: usize,
    ended: bool,
}

impl Way {
    fn new(room: usize) -> Self {
        Self { bytes: VecDeque::new(), room, ended: false }
    }

    fn put(&mut self, bytes: &[u8]) -> usize {
        let n = bytes.len().min(self.room - self.bytes.len().min(self.room));
        self.bytes.extend(&bytes[..n]);
        n
    }

    fn take(&mut self, buf: &mut [u8]) -> usize {
        let (first, second) = self.first(buf.len());
        let (cut, n) = (first.len(), first.len() + second.len());
        buf[..cut].copy_from_slice(first);
        buf[cut..n].copy_from_slice(second);
        self.bytes.drain(..n);
        n
    }

    fn take_to(&mut self, max: usize, into: &mut Vec<u8>) -> usize {
        let (first, second) = self.first(max);
        let n = first.len() + second.len();
        if n > 0 {
            into.reserve(n);
            into.extend_from_slice(first);
            into.extend_from_slice(second);
            self.bytes.drain(..n);
        }
        n
    }

    /// The bytes that come first, at most so many.
    fn first(&self, max: usize) -> (&[u8], &[u8]) {
        let n = max.min(self.bytes.len());
        let (first, second) = self.bytes.as_slices();
        let cut = n.min(first.len());
        (&first[..cut], &second[..n - cut])
    }
}

impl Pipes {
    /// Lets time pass.
    pub fn pass(&self, ns: u64) {
        self.now_ns.fetch_add(ns, SeqCst);
    }

    /// Lets so much time pass at each look at the clock: while the node works.
    pub fn pass_at_each_look(&self, ns: u64) {
        self.look_ns.store(ns, SeqCst);
    }

    /// The system of another loop, or node, which has the same clock.
    pub fn another(&self) -> Pipes {
        Pipes { dialed: Rc::default(), moved: Rc::default(), ..self.clone() }
    }

    /// The system of another node, whose clock goes slower by so many thousandths, at most 999.
    pub fn another_slower(&self, thousandths: u64) -> Pipes {
        Pipes { lag: thousandths.min(999), ..self.another() }
    }

    /// A look at this clock, for who has no loop: it takes as long as one of the loop.
    pub fn clock(&self) -> impl Fn() -> u64 + Send + Sync + use<> {
        let (now_ns, look_ns, lag) = (self.now_ns.clone(), self.look_ns.clone(), self.lag);
        move || {
            now_ns.fetch_add(look_ns.load(SeqCst), SeqCst);
            lagging(now_ns.load(SeqCst), lag)
        }
    }

    /// The connections that the loop handed over since the last time.
    pub fn moved(&self) -> Vec<Moved> {
        self.moved.take()
    }

    /// What the node dialed since the last time.
    pub fn dialed(&self) -> Vec<Dialed> {
        self.dialed.take()
    }

    /// A connection whose buffers hold so many bytes.
    pub fn connect(&self, to_node_bytes: usize, to_client_bytes: usize) -> (Pipe, Peer) {
        let (pipe, peer) = Self::line();
        peer.accept(to_node_bytes, to_client_bytes);
        (pipe, peer)
    }

    /// A connection that is not made yet.
    fn line() -> (Pipe, Peer) {
        let line = Rc::new(RefCell::new(Line {
            to_node: Way::new(0),
            to_client: Way::new(0),
            made: false,
            reset: false,
            closed: false,
            low_water: 1,
            wants_room: false,
            edge: false,
        }));
        (Pipe(line.clone()), Peer(line))
    }
}

impl Line {
    /// Whether the node is told of what arrived: it is as much as it wants, or as there is room for.
    fn tells(&self) -> bool {
        let bytes = self.to_node.bytes.len();
        bytes > 0 && (bytes >= self.low_water || bytes >= self.to_node.room)
    }

    fn receive(&mut self, mut fill: impl FnMut(&mut Way) -> usize) -> io::Result<usize> {
        if self.reset {
            return Err(ErrorKind::ConnectionReset.into());
        }
        match fill(&mut self.to_node) {
            0 if self.to_node.ended => Ok(0),
            0 => Err(ErrorKind::WouldBlock.into()),
            n => Ok(n),
        }
    }

    fn send(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        if self.reset {
            return Err(ErrorKind::BrokenPipe.into());
        }
        let asked: usize = slices.iter().map(|slice| slice.len()).sum();
        let sent: usize = slices.iter().map(|slice| self.to_client.put(slice)).sum();
        self.wants_room |= sent < asked;
        if sent == 0 && asked > 0 { Err(ErrorKind::WouldBlock.into()) } else { Ok(sent) }
    }
}

/// What a clock shows that goes slower by so many thousandths.
fn lagging(ns: u64, thousandths: u64) -> u64 {
    let goes = 1000 - thousandths;
    ns / 1000 * goes + ns % 1000 * goes / 1000
}

impl System for Pipes {
    type Socket = Pipe;

    fn now_ns(&self) -> u64 {
        self.pass(self.look_ns.load(SeqCst));
        self.cpu_ns()
    }

    fn cpu_ns(&self) -> u64 {
        lagging(self.now_ns.load(SeqCst), self.lag)
    }

    fn dial(&self, to: SocketAddr, at: usize) -> io::Result<Pipe> {
        let (pipe, peer) = Self::line();
        self.dialed.borrow_mut().push(Dialed { at, to, peer });
        Ok(pipe)
    }

    fn hand_over(&self, socket: Pipe, to: usize, input: Vec<u8>) {
        // Who takes it is told of what it has.
        socket.0.borrow_mut().edge = true;
        self.moved.borrow_mut().push(Moved { pipe: socket, to, input });
    }

    fn connected(&self, socket: &Pipe) -> io::Result<()> {
        let line = socket.0.borrow();
        match () {
            () if line.reset => Err(ErrorKind::ConnectionRefused.into()),
            () if !line.made => Err(ErrorKind::WouldBlock.into()),
            () => Ok(()),
        }
    }

    fn recv(&self, socket: &Pipe, buf: &mut [u8]) -> io::Result<usize> {
        socket.0.borrow_mut().receive(|way| way.take(buf))
    }

    fn recv_slices(&self, socket: &Pipe, slices: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        socket.0.borrow_mut().receive(|way| slices.iter_mut().map(|slice| way.take(slice)).sum())
    }

    fn send(&self, socket: &Pipe, bytes: &[u8]) -> io::Result<usize> {
        socket.0.borrow_mut().send(&[IoSlice::new(bytes)])
    }

    fn send_slices(&self, socket: &Pipe, slices: &[IoSlice<'_>], _more: bool) -> io::Result<usize> {
        socket.0.borrow_mut().send(slices)
    }

    fn lend(&self, socket: &Pipe, bytes: &[u8], _more: bool) -> io::Result<(usize, usize)> {
        Ok((bytes.len(), socket.0.borrow_mut().send(&[IoSlice::new(bytes)])?))
    }

    fn end(&self, socket: &Pipe) -> io::Result<()> {
        socket.0.borrow_mut().to_client.ended = true;
        Ok(())
    }

    fn set_low_water(&self, socket: &Pipe, bytes: usize) {
        socket.0.borrow_mut().low_water = bytes;
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        let mut line = self.0.borrow_mut();
        line.closed = true;
        line.to_client.ended = true;
        // What the node did not read comes back as a reset, which takes unread replies with it.
        if !line.to_node.bytes.is_empty() {
            line.reset = true;
            line.to_client.bytes.clear();
        }
    }
}

impl Peer {
    /// Makes the connection, with buffers of so many bytes.
    pub fn accept(&self, to_node_bytes: usize, to_client_bytes: usize) {
        let mut line = self.0.borrow_mut();
        (line.to_node.room, line.to_client.room) = (to_node_bytes, to_client_bytes);
        (line.made, line.edge) = (true, true);
    }

    /// Sends what there is room for; gives how much. Nothing is taken once the node closed.
    pub fn write(&self, bytes: &[u8]) -> usize {
        let mut line = self.0.borrow_mut();
        if line.closed || line.reset || line.to_node.ended {
            return 0;
        }
        let n = line.to_node.put(bytes);
        line.edge |= n > 0 && line.tells();
        n
    }

    /// Sends no more.
    pub fn end(&self) {
        let mut line = self.0.borrow_mut();
        line.edge |= !line.to_node.ended;
        line.to_node.ended = true;
    }

    /// Tears the connection down: what is under way is lost.
    pub fn reset(&self) {
        let mut line = self.0.borrow_mut();
        (line.reset, line.edge) = (true, true);
        line.to_client.bytes.clear();
    }

    /// Takes up to `max` bytes of what came.
    pub fn read(&self, max: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.read_to(max, &mut bytes);
        bytes
    }

    /// The same, behind what is there.
    fn read_to(&self, max: usize, into: &mut Vec<u8>) {
        let mut line = self.0.borrow_mut();
        let n = line.to_client.take_to(max, into);
        if n > 0 && std::mem::take(&mut line.wants_room) {
            line.edge = true;
        }
    }

    /// Whether something came that is not read yet, or nothing more will come.
    pub fn has_news(&self) -> bool {
        let line = self.0.borrow();
        line.reset || line.to_client.ended || !line.to_client.bytes.is_empty()
    }

    /// Whether nothing more will come.
    pub fn is_over(&self) -> bool {
        let line = self.0.borrow();
        line.reset || (line.to_client.ended && line.to_client.bytes.is_empty())
    }

    /// Whether the connection was torn down, by either side.
    pub fn is_reset(&self) -> bool {
        self.0.borrow().reset
    }

    /// Whether the node closed it.
    pub fn is_closed(&self) -> bool {
        self.0.borrow().closed
    }

    /// What a poller would tell the node now.
    pub fn news(&self) -> Option<Ready> {
        let mut line = self.0.borrow_mut();
        if line.closed || !std::mem::take(&mut line.edge) {
            return None;
        }
        let ended = line.to_node.ended || line.reset;
        let readable = ended || line.tells();
        let writable = line.reset || line.to_client.bytes.len() < line.to_client.room;
        Some(Ready { readable, ended, writable })
    }
}

/// Joins the outer ends of two nodes' connections, so that these are one: bytes, ends and resets go from each to the
/// other, when somebody carries them.
pub struct Cable {
    ends: [Peer; 2],
    /// Bytes that left one node and found no room at the other.
    held: [Vec<u8>; 2],
    /// The end that has lost the connection, while what it sent before is on its way.
    lost: Option<usize>,
}

impl Cable {
    /// Between these two.
    pub fn new(a: Peer, b: Peer) -> Self {
        Self { ends: [a, b], held: [Vec::new(), Vec::new()], lost: None }
    }

    /// The end at the first or the second node.
    pub fn end(&self, at: usize) -> &Peer {
        &self.ends[at]
    }

    /// Bytes that the node at the end `from` has sent and that have not arrived.
    pub fn sent(&self, from: usize) -> usize {
        self.held[from].len() + self.ends[from].0.borrow().to_client.bytes.len()
    }

    /// The end `at` loses the connection. The other one knows nothing of it: what was sent to it before is on its way
    /// still, and after that comes the end. What it sends is lost.
    pub fn lose(&mut self, at: usize) {
        let sent = self.ends[at].read(usize::MAX);
        self.held[at].extend(sent);
        self.ends[at].reset();
        self.lost = Some(at);
    }

    /// Bytes that are under way: sent by one node, and not read by the other.
    pub fn under_way(&self) -> usize {
        let unread = |end: &Peer| {
            let line = end.0.borrow();
            line.to_node.bytes.len() + line.to_client.bytes.len()
        };
        self.held.iter().map(Vec::len).sum::<usize>() + self.ends.iter().map(unread).sum::<usize>()
    }

    /// The ends, of a cable that is taken away: what it held is lost.
    pub fn into_ends(self) -> [Peer; 2] {
        self.ends
    }

    /// Carries up to so many bytes from the node at the end `from` to the other one; how many arrived.
    pub fn carry(&mut self, from: usize, most: usize) -> usize {
        let (source, target, held) = (&self.ends[from], &self.ends[1 - from], &mut self.held[from]);
        if held.is_empty() && !source.has_news() {
            return 0;
        }
        if self.lost == Some(1 - from) {
            held.clear();
            return source.read(most).len();
        }
        if held.is_empty() {
            source.read_to(most, held);
        }
        let carried = target.write(&held[..held.len().min(most)]);
        held.drain(..carried);
        // A reset takes with it what is under way. Who writes to one that has closed gets one.
        let lost = source.is_reset() && self.lost.is_none() || (target.is_closed() && !held.is_empty());
        if lost {
            held.clear();
            self.cut();
        } else if held.is_empty() && source.is_over() {
            target.end();
        }
        carried
    }

    /// Tears the connection down for both.
    pub fn cut(&self) {
        self.ends.iter().filter(|end| !end.is_reset()).for_each(Peer::reset);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_sent_before_an_end_lost_the_cable_arrives_and_then_the_end() {
        let pipes = Pipes::default();
        let (first, outer) = pipes.connect(8, 8);
        let (second, other) = pipes.connect(8, 8);
        let mut cable = Cable::new(outer, other);
        let (mut buf, of) = ([0; 8], |result: io::Result<usize>| result.map_err(|error| error.kind()));
        assert_eq!((of(pipes.send(&second, b"before")), cable.sent(1)), (Ok(6), 6));
        cable.lose(1);
        assert_eq!((cable.sent(1), of(pipes.recv(&second, &mut buf))), (6, Err(ErrorKind::ConnectionReset)));
        assert_eq!(of(pipes.recv(&first, &mut buf)), Err(ErrorKind::WouldBlock), "it knows of nothing");
        assert_eq!(of(pipes.send(&first, b"lost")), Ok(4));
        assert_eq!((cable.carry(0, 8), cable.carry(1, 4)), (4, 4));
        assert_eq!((of(pipes.recv(&first, &mut buf)), &buf[..4]), (Ok(4), &b"befo"[..]));
        assert_eq!((cable.carry(1, 4), of(pipes.recv(&first, &mut buf))), (2, Ok(2)));
        assert_eq!(of(pipes.recv(&first, &mut buf)), Ok(0), "the end");
    }
}
