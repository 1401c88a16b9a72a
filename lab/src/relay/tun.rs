//! The system calls of the relay: TUN devices, descriptors handed down, and waiting to the microsecond. Linux only.
//!
//! Beside `sys`, the relay's only module with `unsafe`; as there, descriptors are owned, and the kernel is passed
//! only pointers to values that live until the call returns.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::{mem, ptr};

use crate::relay::frame::VNET_BYTES;
use crate::sys::check;

const DEVICE: &std::ffi::CStr = c"/dev/net/tun";

/// Makes the TUN device `name` in the network namespace of the calling thread: packets without link layer, each
/// behind a virtio header of 10 bytes, TCP in frames of up to 64 KiB with checksums left open. Not blocking, and not
/// inherited unless [`hand_down`] says so. The device goes with its last descriptor.
pub(crate) fn create(name: &str) -> io::Result<OwnedFd> {
    let flags = libc::O_RDWR | libc::O_NONBLOCK | libc::O_CLOEXEC;
    // SAFETY: the path is a constant C string; the result is checked and then owned.
    let device = unsafe { OwnedFd::from_raw_fd(check(libc::open(DEVICE.as_ptr(), flags))?) };
    // SAFETY: an all-zero ifreq is valid, and its name then empty.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    if name.is_empty() || name.len() >= request.ifr_name.len() || name.contains('\0') {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{name:?} can't be a device's name")));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from.cast_signed();
    }
    let kind = libc::IFF_TUN | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
    request.ifr_ifru.ifru_flags = kind as libc::c_short;
    let header = libc::c_int::try_from(VNET_BYTES).expect("10 is small");
    let offload = libc::c_ulong::from(libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6);
    let fd = device.as_raw_fd();
    // SAFETY: the first call reads and writes the ifreq, whose name ends in NUL and whose flags are the active field;
    // the second reads an int; both outlive their calls. The third passes a number.
    unsafe {
        check(libc::ioctl(fd, libc::TUNSETIFF, &raw mut request))?;
        check(libc::ioctl(fd, libc::TUNSETVNETHDRSZ, &raw const header))?;
        check(libc::ioctl(fd, libc::TUNSETOFFLOAD, offload))?;
    }
    Ok(device)
}

/// Makes `command` inherit `fds` under their numbers. They must stay open until it is spawned; this process's own
/// flags stay as they are, so nothing else that is spawned meanwhile inherits them.
pub(crate) fn hand_down(command: &mut Command, fds: Vec<RawFd>) {
    let hook = move || {
        for &fd in &fds {
            // SAFETY: no pointers; runs in the child, on its own table of descriptors.
            check(unsafe { libc::fcntl(fd, libc::F_SETFD, 0) })?;
        }
        Ok(())
    };
    // SAFETY: between fork and exec the hook makes system calls without pointers and allocates nothing.
    unsafe { command.pre_exec(hook) };
}

/// Takes over descriptor `fd` that this process inherited. Each may be adopted once, and the standard ones never:
/// the caller sees to the first, this to the second.
pub(crate) fn adopt(fd: RawFd) -> io::Result<OwnedFd> {
    if fd <= libc::STDERR_FILENO {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "a standard descriptor is no device"));
    }
    // SAFETY: no pointers; a number that is no open descriptor is an error.
    check(unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) })?;
    // SAFETY: it is open, and nothing else in this process owns it: it was inherited for this, and is adopted once.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Lets waits of this thread end on time: the kernel may stretch them by 50 us otherwise.
pub(crate) fn wake_on_time() -> io::Result<()> {
    let slack_ns: libc::c_ulong = 1;
    // SAFETY: no pointers.
    check(unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, slack_ns) }).map(drop)
}

/// Puts this process before others that want the processor, as far as that is allowed: a network does not wait for
/// its hosts. Where the kernel shares out by session, it goes before those of its own. Not in real time, which the
/// kernel would stop for 50 ms of each second of full load.
pub(crate) fn go_first() -> io::Result<()> {
    // SAFETY: no pointers.
    check(unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, -20) }).map(drop)
}

/// Descriptors to wait for.
pub(crate) struct Waiter<'a> {
    polled: Vec<libc::pollfd>,
    /// Keeps the descriptors open for as long as they are polled.
    _fds: Vec<BorrowedFd<'a>>,
}

impl<'a> Waiter<'a> {
    /// Waits for reading from `fds`.
    pub(crate) fn new(fds: Vec<BorrowedFd<'a>>) -> Self {
        let polled = |fd: &BorrowedFd<'_>| libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        Self { polled: fds.iter().map(polled).collect(), _fds: fds }
    }

    /// Waits until one can be read (or has ended) or `timeout_ns` has passed; without a timeout, for ever. True when
    /// the time ran out.
    pub(crate) fn wait(&mut self, timeout_ns: Option<u64>) -> io::Result<bool> {
        let limit = timeout_ns.map(|ns| libc::timespec {
            tv_sec: (ns / 1_000_000_000).cast_signed(),
            tv_nsec: (ns % 1_000_000_000).cast_signed(),
        });
        let limit = limit.as_ref().map_or(ptr::null(), ptr::from_ref);
        let count = self.polled.len() as libc::nfds_t;
        // SAFETY: `count` is the vector's length; the time, where there is one, outlives the call.
        match check(unsafe { libc::ppoll(self.polled.as_mut_ptr(), count, limit, ptr::null()) }) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                self.polled.iter_mut().for_each(|polled| polled.revents = 0);
                Ok(false)
            }
            result => result.map(|ready| ready == 0),
        }
    }

    /// Whether descriptor `index` could be read, or had ended, when the last wait returned.
    pub(crate) fn ready(&self, index: usize) -> bool {
        self.polled[index].revents != 0
    }
}
