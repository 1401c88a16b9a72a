//! The kernel's sockets and clocks, system calls that std has no name for, and the only `unsafe` of this crate.

use crate::group::{Handed, LoopHandle, Seat};
use crate::system::System;
use herd_core::limits::TICK_MS;
use mio::net::TcpStream;
use mio::{Interest, Registry, Token};
use rustix::net::{RecvFlags, SendFlags};
use std::io::{self, IoSlice, IoSliceMut, Read};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};
#[cfg(target_os = "linux")]
use {
    mio::unix::SourceFd,
    rustix::pipe::{IoSliceRaw, PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice, vmsplice},
    rustix::time::{
        Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
    },
    std::fs::File,
    std::os::fd::OwnedFd,
};

/// A closed peer is an error of the call, not a signal (systems of Apple say so by socket).
#[cfg(not(target_vendor = "apple"))]
const NO_SIGNAL: SendFlags = SendFlags::NOSIGNAL;
#[cfg(target_vendor = "apple")]
const NO_SIGNAL: SendFlags = SendFlags::empty();

/// Closes what a process was handed at its start, but for the three standard descriptors: else it would keep open what
/// the others of them close. To be called first thing, where nothing has been opened yet.
#[cfg(target_os = "linux")]
#[allow(unsafe_code)]
pub fn close_handed() {
    let Ok(listed) = std::fs::read_dir("/proc/self/fd") else { return };
    let number = |fd: io::Result<std::fs::DirEntry>| fd.ok()?.file_name().to_str()?.parse().ok();
    let handed: Vec<std::os::fd::RawFd> = listed.filter_map(number).filter(|fd| *fd > 2).collect();
    // The listing's own is closed.
    let is_open = |fd: &i32| std::fs::symlink_metadata(format!("/proc/self/fd/{fd}")).is_ok();
    for fd in handed.into_iter().filter(is_open) {
        // SAFETY: it is open, and no value owns it, as nothing was opened here.
        unsafe { rustix::io::close(fd) };
    }
}

/// The machine under a loop.
pub(crate) struct Kernel {
    lender: Lender,
    start: Instant,
    /// Of the loop's poller.
    registry: Registry,
    loops: LoopHandle,
}

/// A socket of the machine, and its place among the connections a node may have. One that the node dialed needs none.
pub(crate) struct Tcp {
    pub(crate) stream: TcpStream,
    pub(crate) seat: Option<Seat>,
}

impl Kernel {
    /// `start`: when the clock of the node began.
    pub(crate) fn new(start: Instant, registry: Registry, loops: LoopHandle) -> io::Result<Self> {
        Ok(Self { lender: Lender::new()?, start, registry, loops })
    }
}

/// Nanoseconds since a moment before this process began, also while the machine slept, as far as it knows.
pub fn boot_ns() -> u64 {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    let id = rustix::time::ClockId::Boottime;
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    let id = rustix::time::ClockId::Monotonic;
    let time = rustix::time::clock_gettime(id);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

impl System for Kernel {
    type Socket = Tcp;

    #[inline]
    fn now_ns(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    fn cpu_ns(&self) -> u64 {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
    }

    fn dial(&self, to: SocketAddr, at: usize) -> io::Result<Tcp> {
        let mut stream = TcpStream::connect(to)?;
        stream.set_nodelay(true).ok();
        self.registry.register(&mut stream, Token(at), Interest::READABLE | Interest::WRITABLE)?;
        Ok(Tcp { stream, seat: None })
    }

    fn hand_over(&self, socket: Tcp, to: usize, input: Vec<u8>) {
        let Tcp { mut stream, seat } = socket;
        // One that can't be polled elsewhere, or is gone already, is closed.
        if self.registry.deregister(&mut stream).is_ok()
            && let Ok(peer) = stream.peer_addr()
        {
            self.loops.hand(to, Handed { socket: stream.into(), peer, seat, input });
        }
    }

    fn connected(&self, socket: &Tcp) -> io::Result<()> {
        if let Some(error) = socket.stream.take_error()? {
            return Err(error);
        }
        match socket.stream.peer_addr() {
            Err(error) if error.kind() == io::ErrorKind::NotConnected => Err(io::ErrorKind::WouldBlock.into()),
            made => made.map(|_| ()),
        }
    }

    #[inline]
    fn recv(&self, socket: &Tcp, buf: &mut [u8]) -> io::Result<usize> {
        Ok(rustix::net::recv(&socket.stream, buf, RecvFlags::empty())?.0)
    }

    fn recv_slices(&self, socket: &Tcp, slices: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        (&socket.stream).read_vectored(slices)
    }

    #[inline]
    fn send(&self, socket: &Tcp, bytes: &[u8]) -> io::Result<usize> {
        Ok(rustix::net::send(&socket.stream, bytes, NO_SIGNAL)?)
    }

    fn send_slices(&self, socket: &Tcp, slices: &[IoSlice<'_>], more: bool) -> io::Result<usize> {
        #[cfg(target_os = "linux")]
        let flags = if more { NO_SIGNAL | SendFlags::MORE } else { NO_SIGNAL };
        #[cfg(not(target_os = "linux"))]
        let flags = if more { NO_SIGNAL } else { NO_SIGNAL };
        Ok(rustix::net::sendmsg(&socket.stream, slices, &mut rustix::net::SendAncillaryBuffer::default(), flags)?)
    }

    fn lend(&self, socket: &Tcp, bytes: &[u8], more: bool) -> io::Result<(usize, usize)> {
        self.lender.send(&socket.stream, bytes, more)
    }

    fn end(&self, socket: &Tcp) -> io::Result<()> {
        socket.stream.shutdown(Shutdown::Write)
    }

    /// A system that can't do that tells of all arrivals, which is only slower.
    #[allow(unsafe_code)]
    fn set_low_water(&self, socket: &Tcp, bytes: usize) {
        let value = bytes as libc::c_int;
        let size = size_of::<libc::c_int>() as libc::socklen_t;
        // SAFETY: the kernel reads one integer, which outlives the call and whose true size is passed.
        unsafe {
            let value = (&raw const value).cast();
            libc::setsockopt(socket.stream.as_raw_fd(), libc::SOL_SOCKET, libc::SO_RCVLOWAT, value, size);
        }
    }
}

/// Most bytes lent with one call: large enough to make the calls cheap, small enough to waste little where a socket
/// takes only some of them.
pub(crate) const LEND_BYTES: usize = 256 * 1024;

/// Sends bytes without copying them: a pipe is made to refer to their pages, and the pages go from there to the socket.
/// One for each loop; its pipe is empty between calls, or what one client did not take would go to the next.
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
        let mut left = offered - sent.unwrap_or(0);
        while left > 0 {
            let dropped = splice(&self.reader, None, &self.sink, None, left, SpliceFlags::NONBLOCK);
            left -= dropped.ok().filter(|n| *n > 0).expect("what is in a pipe can be dropped");
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

/// Tells a loop every [`TICK_MS`] that it is time for its upkeep: by a timer that runs all the time, since a time limit
/// on each wait costs about 2 % of a small request.
#[cfg(target_os = "linux")]
pub(crate) struct Ticker {
    /// The poller tells when it fires; it goes on once it is read.
    timer: OwnedFd,
}

#[cfg(target_os = "linux")]
impl Ticker {
    pub(crate) fn new(registry: &Registry, token: Token) -> io::Result<Self> {
        let every = Timespec { tv_sec: 0, tv_nsec: TICK_MS as i64 * 1_000_000 };
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
        timerfd_settime(&timer, TimerfdTimerFlags::empty(), &Itimerspec { it_interval: every, it_value: every })?;
        registry.register(&mut SourceFd(&timer.as_raw_fd()), token, Interest::READABLE)?;
        Ok(Self { timer })
    }

    /// How long to wait for events.
    #[inline]
    pub(crate) fn wait(&self, _now_ms: u64, _alarm_ms: u64) -> Option<Duration> {
        None
    }

    /// Whether it is time; `told`: the poller said so.
    #[inline]
    pub(crate) fn is_due(&mut self, told: bool, _now_ms: u64) -> bool {
        told && rustix::io::read(&self.timer, &mut [0; 8]).is_ok()
    }
}

/// Elsewhere waits have a time limit.
#[cfg(not(target_os = "linux"))]
pub(crate) struct Ticker {
    next_ms: u64,
}

#[cfg(not(target_os = "linux"))]
impl Ticker {
    pub(crate) fn new(_registry: &Registry, _token: Token) -> io::Result<Self> {
        Ok(Self { next_ms: TICK_MS })
    }

    pub(crate) fn wait(&self, now_ms: u64, alarm_ms: u64) -> Option<Duration> {
        Some(Duration::from_millis(self.next_ms.min(alarm_ms).saturating_sub(now_ms)))
    }

    pub(crate) fn is_due(&mut self, _told: bool, now_ms: u64) -> bool {
        let due = now_ms >= self.next_ms;
        if due {
            self.next_ms = now_ms + TICK_MS;
        }
        due
    }
}

/// Wakes a loop at a time of its service's own. It is set only where there is such a time, and not again before it
/// fired, if that is soon enough: once a millisecond at most.
#[cfg(target_os = "linux")]
pub(crate) struct Alarm {
    timer: OwnedFd,
    /// When it fires, ms of the loop's clock; `u64::MAX`: it does not.
    set_ms: u64,
}

#[cfg(target_os = "linux")]
impl Alarm {
    pub(crate) fn new(registry: &Registry, token: Token) -> io::Result<Self> {
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
        registry.register(&mut SourceFd(&timer.as_raw_fd()), token, Interest::READABLE)?;
        Ok(Self { timer, set_ms: u64::MAX })
    }

    /// Has it fire at `at_ms`, unless it does so before.
    #[inline]
    pub(crate) fn set(&mut self, at_ms: u64, now_ns: impl FnOnce() -> u64) {
        if at_ms < self.set_ms {
            self.arm(at_ms, now_ns());
        }
    }

    #[cold]
    fn arm(&mut self, at_ms: u64, now_ns: u64) {
        let left_ns = at_ms.saturating_mul(1_000_000).saturating_sub(now_ns).max(1);
        let (tv_sec, tv_nsec) = ((left_ns / 1_000_000_000) as i64, (left_ns % 1_000_000_000) as _);
        let time =
            Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: Timespec { tv_sec, tv_nsec } };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &time).expect("a time within range is taken");
        self.set_ms = at_ms;
    }

    /// It fired.
    pub(crate) fn rang(&mut self) {
        if rustix::io::read(&self.timer, &mut [0; 8]).is_ok() {
            self.set_ms = u64::MAX;
        }
    }
}

/// Elsewhere waits have a time limit, see [`Ticker::wait`].
#[cfg(not(target_os = "linux"))]
pub(crate) struct Alarm;

#[cfg(not(target_os = "linux"))]
impl Alarm {
    pub(crate) fn new(_registry: &Registry, _token: Token) -> io::Result<Self> {
        Ok(Self)
    }

    pub(crate) fn set(&mut self, _at_ms: u64, _now_ns: impl FnOnce() -> u64) {}

    pub(crate) fn rang(&mut self) {}
}
