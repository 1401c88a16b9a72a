//! What an [`Engine`](crate::Engine) asks of the machine: bytes of its sockets, and the time.
//!
//! [`Kernel`](crate::sys::Kernel) is the real one; [`Pipes`](crate::Pipes) a pretended one, for simulations. Which it
//! is, is known when the engine is compiled: nothing is looked up at run time.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::SocketAddr;

/// The sockets and the clock under an engine. No call waits: where there is nothing to read or no room to write, the
/// error is `WouldBlock`.
pub trait System {
    /// The socket of a connection; dropping it closes it.
    type Socket;

    /// Nanoseconds since a moment that all loops of a node share; never falls.
    fn now_ns(&self) -> u64;

    /// Nanoseconds of processor time that this thread took so far.
    fn cpu_ns(&self) -> u64;

    /// Begins to make a connection, which will have the number `at` in its engine.
    fn dial(&self, to: SocketAddr, at: usize) -> io::Result<Self::Socket>;

    /// Hands a socket over to the loop of this number, with what arrived and is not served.
    fn hand_over(&self, socket: Self::Socket, to: usize, input: Vec<u8>);

    /// Whether the connection that was dialed is made; `WouldBlock`: not yet.
    fn connected(&self, socket: &Self::Socket) -> io::Result<()>;

    /// Receives what is there; 0: the peer sends no more.
    fn recv(&self, socket: &Self::Socket, buf: &mut [u8]) -> io::Result<usize>;

    /// As `recv`, into several places one after the other.
    fn recv_slices(&self, socket: &Self::Socket, slices: &mut [IoSliceMut<'_>]) -> io::Result<usize>;

    /// Sends what there is room for.
    fn send(&self, socket: &Self::Socket, bytes: &[u8]) -> io::Result<usize>;

    /// As `send`, from several places; `more`: what follows at once belongs into the same packets.
    fn send_slices(&self, socket: &Self::Socket, slices: &[IoSlice<'_>], more: bool) -> io::Result<usize>;

    /// Sends bytes that are lent ([`Chunks::lend`](herd_core::Chunks::lend)) without copying them, if it can; gives how
    /// many were offered to the socket, and how many it took.
    fn lend(&self, socket: &Self::Socket, bytes: &[u8], more: bool) -> io::Result<(usize, usize)>;

    /// Tells the peer that no more is sent.
    fn end(&self, socket: &Self::Socket) -> io::Result<()>;

    /// Asks to be told of arrivals only when there are so many bytes, or the end.
    fn set_low_water(&self, socket: &Self::Socket, bytes: usize);
}
