//! System calls on sockets that std has no name for, and the one use of `unsafe` in this crate.

use herd_core::Lent;
use mio::net::TcpStream;
use rustix::net::{RecvFlags, SendFlags};
use std::io::{self, IoSlice};
use std::os::fd::AsRawFd;

/// A closed peer is an error of the call, not a signal (systems of Apple say so by socket).
#[cfg(not(target_vendor = "apple"))]
const NO_SIGNAL: SendFlags = SendFlags::NOSIGNAL;
#[cfg(target_vendor = "apple")]
const NO_SIGNAL: SendFlags = SendFlags::empty();

/// Receives what is there; 0: the peer has closed.
#[inline]
pub(crate) fn recv(socket: &TcpStream, buf: &mut [u8]) -> io::Result<usize> {
    Ok(rustix::net::recv(socket, buf, RecvFlags::empty())?.0)
}

/// Sends what the kernel takes.
#[inline]
pub(crate) fn send(socket: &TcpStream, bytes: &[u8]) -> io::Result<usize> {
    Ok(rustix::net::send(socket, bytes, NO_SIGNAL)?)
}

/// As `send`; `more`: what follows at once belongs into the same packets.
pub(crate) fn send_slices(socket: &TcpStream, slices: &[IoSlice<'_>], more: bool) -> io::Result<usize> {
    #[cfg(target_os = "linux")]
    let flags = if more { NO_SIGNAL | SendFlags::MORE } else { NO_SIGNAL };
    #[cfg(not(target_os = "linux"))]
    let flags = if more { NO_SIGNAL } else { NO_SIGNAL };
    Ok(rustix::net::sendmsg(socket, slices, &mut rustix::net::SendAncillaryBuffer::default(), flags)?)
}

/// Sends bytes of a file without copying them.
#[cfg(target_os = "linux")]
pub(crate) fn send_file(socket: &TcpStream, lent: &Lent<'_>) -> io::Result<usize> {
    let mut offset = lent.offset;
    Ok(rustix::fs::sendfile(socket, lent.file, Some(&mut offset), lent.bytes)?)
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn send_file(_socket: &TcpStream, _lent: &Lent<'_>) -> io::Result<usize> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Has the kernel tell of arrivals only when so many bytes are there, or it has room for no more. A system that does
/// not do that tells of all, which is only slower.
#[allow(unsafe_code)]
pub(crate) fn set_low_water(socket: &TcpStream, bytes: usize) {
    let value = bytes as libc::c_int;
    let size = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the kernel reads one integer, which outlives the call and whose true size is passed.
    unsafe {
        let value = (&raw const value).cast();
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_RCVLOWAT, value, size);
    }
}
