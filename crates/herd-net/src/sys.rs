//! System calls on sockets that std has no name for, and the only `unsafe` of this crate.

use mio::net::TcpStream;
use rustix::net::{RecvFlags, SendFlags};
use std::io::{self, IoSlice};
use std::os::fd::AsRawFd;
#[cfg(target_os = "linux")]
use {
    rustix::pipe::{IoSliceRaw, PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice, vmsplice},
    std::fs::File,
    std::os::fd::OwnedFd,
};

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

/// Most bytes lent with one call: large enough to make the calls cheap, small enough to waste little where a socket
/// takes only some of them.
pub(crate) const LEND_BYTES: usize = 256 * 1024;

/// Sends bytes without copying them: a pipe is made to refer to their pages, and the pages go from there to the socket.
/// One for each loop; its pipe is empty between calls.
#[cfg(target_os = "linux")]
pub(crate) struct Lender {
    reader: OwnedFd,
    writer: OwnedFd,
    /// Where what a socket did not take goes.
    sink: File,
}

#[cfg(target_os = "linux")]
impl Lender {
    pub(crate) fn new() -> io::Result<Self> {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        // A smaller pipe, where the system allows no such size, only takes more calls.
        fcntl_setpipe_size(&writer, LEND_BYTES).ok();
        Ok(Self { reader, writer, sink: File::options().write(true).open("/dev/null")? })
    }

    /// Gives how many of `bytes` were offered to the socket, and how many it took. They must be lent
    /// ([`Chunks::lend`](herd_core::Chunks::lend)). `more`: what follows at once belongs into the same packets.
    #[allow(unsafe_code)]
    pub(crate) fn send(&self, socket: &TcpStream, bytes: &[u8], more: bool) -> io::Result<(usize, usize)> {
        // SAFETY: the kernel reads within the slice, and who lent it does not change it while that may be.
        let offered = unsafe { vmsplice(&self.writer, &[IoSliceRaw::from_slice(bytes)], SpliceFlags::NONBLOCK) }?;
        let more = if more || offered < bytes.len() { SpliceFlags::MORE } else { SpliceFlags::empty() };
        let flags = SpliceFlags::NONBLOCK | more;
        let sent = splice(&self.reader, None, socket, None, offered, flags);
        let left = offered - sent.unwrap_or(0);
        if left > 0 {
            splice(&self.reader, None, &self.sink, None, left, SpliceFlags::NONBLOCK)?;
        }
        Ok((offered, sent?))
    }
}

/// Elsewhere nothing is lent.
#[cfg(not(target_os = "linux"))]
pub(crate) struct Lender;

#[cfg(not(target_os = "linux"))]
impl Lender {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self)
    }

    pub(crate) fn send(&self, _socket: &TcpStream, _bytes: &[u8], _more: bool) -> io::Result<(usize, usize)> {
        Err(io::ErrorKind::Unsupported.into())
    }
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
