//! The system calls the lab needs and std does not have: epoll, affinity, namespaces, CPU clocks, limits.
//!
//! With `relay/tun.rs` the only module of the crate with `unsafe`. Every wrapper owns its descriptors (`OwnedFd`) and
//! passes the kernel only pointers to values that live until the call returns. Linux only.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::io;
use std::mem::{self, MaybeUninit};
use std::net::{SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

/// Most bytes lent with one call.
const LEND_BYTES: libc::c_int = 256 * 1_024;

/// Readiness of one descriptor, with the token it was added under.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Event {
    /// The token given to [`Epoll::add`].
    pub(crate) token: usize,
    /// There is something to read, or the peer hung up.
    pub(crate) readable: bool,
    /// There is room to write.
    pub(crate) writable: bool,
}

/// An epoll set.
pub(crate) struct Epoll {
    fd: OwnedFd,
    /// `EPOLLET`, or nothing.
    trigger: libc::c_int,
    events: Vec<libc::epoll_event>,
}

/// What a system call returned, or why it failed.
pub(crate) fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Bytes moved, or why not.
fn check_size(result: libc::ssize_t) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

impl Epoll {
    /// A level-triggered set that reports at most `batch` events for each wait.
    pub(crate) fn new(batch: usize) -> io::Result<Self> {
        Self::open(batch, 0)
    }

    /// The same, edge-triggered: what is ready is told once, and again after [`Epoll::change`].
    pub(crate) fn edge_triggered(batch: usize) -> io::Result<Self> {
        Self::open(batch, libc::EPOLLET)
    }

    fn open(batch: usize, trigger: libc::c_int) -> io::Result<Self> {
        // SAFETY: no pointers; the result is checked and then owned.
        let fd = unsafe { OwnedFd::from_raw_fd(check(libc::epoll_create1(libc::EPOLL_CLOEXEC))?) };
        Ok(Self { fd, trigger, events: vec![libc::epoll_event { events: 0, u64: 0 }; batch] })
    }

    fn control(&self, call: libc::c_int, fd: RawFd, token: usize, write: bool) -> io::Result<()> {
        let flags = self.trigger | libc::EPOLLIN | libc::EPOLLRDHUP | if write { libc::EPOLLOUT } else { 0 };
        let mut event = libc::epoll_event { events: flags.cast_unsigned(), u64: token as u64 };
        // SAFETY: `event` outlives the call; both descriptors are open (owned by self and by the caller).
        check(unsafe { libc::epoll_ctl(self.fd.as_raw_fd(), call, fd, &raw mut event) }).map(drop)
    }

    /// Watches `fd` for reading, and for writing too when `write`.
    pub(crate) fn add(&self, fd: &impl AsRawFd, token: usize, write: bool) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd.as_raw_fd(), token, write)
    }

    /// Changes whether `fd` is watched for writing.
    pub(crate) fn change(&self, fd: &impl AsRawFd, token: usize, write: bool) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_MOD, fd.as_raw_fd(), token, write)
    }

    /// Waits up to `timeout_ms` (0: polls, negative: for ever) and returns how many events [`Epoll::event`] has.
    pub(crate) fn wait(&mut self, timeout_ms: i32) -> io::Result<usize> {
        let room = libc::c_int::try_from(self.events.len()).expect("event batches are small");
        // SAFETY: the kernel writes at most `room` events into the vector, whose length is `room`.
        let count = unsafe { libc::epoll_wait(self.fd.as_raw_fd(), self.events.as_mut_ptr(), room, timeout_ms) };
        match check(count) {
            Ok(count) => Ok(count.unsigned_abs() as usize),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(0),
            Err(error) => Err(error),
        }
    }

    /// Event `index` of the last wait.
    pub(crate) fn event(&self, index: usize) -> Event {
        let event = self.events[index];
        let flags = event.events.cast_signed();
        Event {
            token: usize::try_from(event.u64).expect("tokens were made from usize"),
            readable: flags & !libc::EPOLLOUT != 0,
            writable: flags & libc::EPOLLOUT != 0,
        }
    }
}

/// A huge page of x86-64 and of aarch64 with small pages of 4 KiB.
#[repr(align(2097152))]
struct HugePage {
    _bytes: [MaybeUninit<u8>; 2 << 20],
}

/// Lends bytes to the kernel instead of copying them: a pipe is made to refer to their pages, and from there they go to
/// a socket.
pub(crate) struct Lender {
    reader: OwnedFd,
    writer: OwnedFd,
}

impl Lender {
    /// With a pipe of [`LEND_BYTES`], or a smaller one where the system allows no such size.
    pub(crate) fn new() -> io::Result<Self> {
        let mut ends = [0; 2];
        // SAFETY: the kernel writes two descriptors into the array, which are owned at once; the second call has no
        // pointers.
        unsafe {
            check(libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC))?;
            libc::fcntl(ends[1], libc::F_SETPIPE_SZ, LEND_BYTES);
            Ok(Self { reader: OwnedFd::from_raw_fd(ends[0]), writer: OwnedFd::from_raw_fd(ends[1]) })
        }
    }

    /// Sends `head`, copied, and `body`, lent: who calls does not change it before the peer has read it.
    pub(crate) fn send(&self, socket: &TcpStream, head: &[u8], body: &[u8]) -> io::Result<()> {
        let more = if body.is_empty() { 0 } else { libc::MSG_MORE };
        // SAFETY: the kernel reads within the slice. A head of eight bytes is taken whole by a blocking socket.
        let sent =
            unsafe { libc::send(socket.as_raw_fd(), head.as_ptr().cast(), head.len(), more | libc::MSG_NOSIGNAL) };
        if sent != head.len().cast_signed() {
            return Err(io::Error::last_os_error());
        }
        let mut left = body;
        while !left.is_empty() {
            let part = libc::iovec { iov_base: left.as_ptr().cast_mut().cast(), iov_len: left.len() };
            // SAFETY: the kernel only reads within `left`, which outlives the call; what it still refers to later is
            // resident as long as the process lives.
            let offered = check_size(unsafe { libc::vmsplice(self.writer.as_raw_fd(), &raw const part, 1, 0) })?;
            left = &left[offered..];
            self.drain(socket, offered, !left.is_empty())?;
        }
        Ok(())
    }

    /// Moves `count` bytes from the pipe to the socket.
    fn drain(&self, socket: &TcpStream, mut count: usize, more: bool) -> io::Result<()> {
        let flags = if more { libc::SPLICE_F_MORE } else { 0 };
        let (from, to, none) = (self.reader.as_raw_fd(), socket.as_raw_fd(), std::ptr::null_mut());
        while count > 0 {
            // SAFETY: no pointers but null ones, which mean the descriptors' own places.
            count -= check_size(unsafe { libc::splice(from, none, to, none, count, flags) })?;
        }
        Ok(())
    }
}

/// Asks for huge pages below `memory`, which nobody has touched yet.
pub(crate) fn advise_huge(memory: &mut [MaybeUninit<u8>]) -> io::Result<()> {
    // SAFETY: any bytes are a page of bytes nobody has set; only the place and the length of the middle are used.
    let (_, whole, _) = unsafe { memory.align_to_mut::<HugePage>() };
    // SAFETY: the pages lie within `memory`; the advice changes no byte.
    check(unsafe { libc::madvise(whole.as_mut_ptr().cast(), size_of_val(whole), libc::MADV_HUGEPAGE) }).map(drop)
}

/// Binds the calling thread, and what it starts later, to one core.
pub(crate) fn pin(core: usize) -> io::Result<()> {
    // SAFETY: an all-zero cpu_set_t is the empty set; CPU_SET writes inside it; the kernel only reads it.
    unsafe {
        let mut set: libc::cpu_set_t = mem::zeroed();
        libc::CPU_SET(core, &mut set);
        check(libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set)).map(drop)
    }
}

/// Makes `command` start pinned to `core` (where given) and die with the thread that spawns it.
pub(crate) fn tie(command: &mut Command, core: Option<usize>) {
    let hook = move || {
        // SAFETY: a plain system call without pointers.
        check(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) })?;
        core.map_or(Ok(()), pin)
    };
    // SAFETY: between fork and exec the hook makes two system calls and allocates nothing.
    unsafe { command.pre_exec(hook) };
}

/// Makes `command` start pinned to `core` (where given).
pub(crate) fn pinned(command: &mut Command, core: Option<usize>) {
    // SAFETY: between fork and exec the hook makes one system call and allocates nothing.
    unsafe { command.pre_exec(move || core.map_or(Ok(()), pin)) };
}

/// Cores this process may run on.
pub(crate) fn cores() -> io::Result<Vec<usize>> {
    // SAFETY: an all-zero cpu_set_t is the empty set; the kernel fills it, and CPU_ISSET reads inside it.
    unsafe {
        let mut set: libc::cpu_set_t = mem::zeroed();
        check(libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set))?;
        Ok((0..8 * size_of::<libc::cpu_set_t>()).filter(|&core| libc::CPU_ISSET(core, &set)).collect())
    }
}

/// This thread runs only when no other wants its core.
pub(crate) fn run_when_idle() -> io::Result<()> {
    let none = libc::sched_param { sched_priority: 0 };
    // SAFETY: the kernel reads one local struct.
    check(unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const none) }).map(drop)
}

/// How long events may be waited for, at most `most_ms`, when something is due at `due_ns`: its last millisecond is
/// polled, so that no timer makes it late.
pub(crate) fn pause_ms(due_ns: f64, now_ns: u64, most_ms: i32) -> i32 {
    let whole_ms = ((due_ns - now_ns as f64) / 1e6) as i32 - 1;
    whole_ms.clamp(0, most_ms)
}

/// CPU time a process has used in all its threads, ended ones included, to the nanosecond: the scheduler's
/// `sum_exec_runtime` (what schedstat shows), brought up to date for threads that are running now.
pub(crate) fn process_cpu_ns(pid: i32) -> io::Result<u64> {
    let mut clock = 0;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: both calls write into locals that outlive them.
    unsafe {
        let failed = libc::clock_getcpuclockid(pid, &raw mut clock);
        if failed != 0 {
            return Err(io::Error::from_raw_os_error(failed));
        }
        check(libc::clock_gettime(clock, &raw mut time))?;
    }
    Ok(nanoseconds(time))
}

/// CLOCK_MONOTONIC in nanoseconds: comparable between processes of one machine.
pub(crate) fn monotonic_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes into a local; CLOCK_MONOTONIC always exists, so the call cannot fail.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    nanoseconds(time)
}

fn nanoseconds(time: libc::timespec) -> u64 {
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

/// Raises the soft limit on open files to the hard one; returns it.
pub(crate) fn raise_open_files() -> io::Result<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: reads and writes one local struct.
    unsafe {
        check(libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit))?;
        limit.rlim_cur = limit.rlim_max;
        check(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit))?;
    }
    Ok(limit.rlim_cur)
}

/// Moves this process into a new network namespace; `user` makes a user namespace around it (for those not root).
/// Must be called while the process has one thread.
pub(crate) fn unshare_network(user: bool) -> io::Result<()> {
    let flags = libc::CLONE_NEWNET | if user { libc::CLONE_NEWUSER } else { 0 };
    // SAFETY: no pointers.
    check(unsafe { libc::unshare(flags) }).map(drop)
}

/// Effective user and group id.
pub(crate) fn effective_ids() -> (u32, u32) {
    // SAFETY: these calls cannot fail and take nothing.
    unsafe { (libc::geteuid(), libc::getegid()) }
}

/// Brings the interface `lo` of this network namespace up.
pub(crate) fn loopback_up() -> io::Result<()> {
    // SAFETY: an all-zero ifreq is valid; the name is shorter than its field and stays NUL-terminated; SIOCGIFFLAGS
    // fills the flags, which are then the active field of the union.
    unsafe {
        let socket = OwnedFd::from_raw_fd(check(libc::socket(libc::AF_INET, libc::SOCK_DGRAM, 0))?);
        let mut request: libc::ifreq = mem::zeroed();
        for (to, from) in request.ifr_name.iter_mut().zip(*b"lo") {
            *to = from.cast_signed();
        }
        check(libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFFLAGS, &raw mut request))?;
        request.ifr_ifru.ifru_flags |= i16::try_from(libc::IFF_UP).expect("IFF_UP is 1");
        check(libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw mut request)).map(drop)
    }
}

/// Starts a non-blocking connect to an IPv4 address; the socket is writable once it is connected or has failed.
pub(crate) fn connect_start(to: SocketAddrV4) -> io::Result<TcpStream> {
    let address = libc::sockaddr_in {
        sin_family: libc::AF_INET as libc::sa_family_t,
        sin_port: to.port().to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from(*to.ip()).to_be() },
        sin_zero: [0; 8],
    };
    let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: the new descriptor is owned at once; the address outlives the call and its true size is passed.
    unsafe {
        let socket = OwnedFd::from_raw_fd(check(libc::socket(libc::AF_INET, kind, 0))?);
        let size = size_of::<libc::sockaddr_in>() as libc::socklen_t;
        let result = check(libc::connect(socket.as_raw_fd(), (&raw const address).cast(), size));
        match result {
            Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => Err(error),
            _ => Ok(TcpStream::from(socket)),
        }
    }
}

/// Binds 127.0.0.1:0 and listens with a backlog of 4,096.
pub(crate) fn listen_loopback() -> io::Result<TcpListener> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    // SAFETY: no pointers; listening again on a listening socket only changes its backlog.
    check(unsafe { libc::listen(listener.as_raw_fd(), 4_096) })?;
    Ok(listener)
}

/// Ends process `pid`, a child of ours that has not been waited for, by `signal`.
pub(crate) fn signal(pid: i32, signal: i32) -> io::Result<()> {
    // SAFETY: no pointers.
    check(unsafe { libc::kill(pid, signal) }).map(drop)
}

/// Waits for child `pid` and returns (exit status 0, peak resident bytes).
pub(crate) fn wait_with_peak(pid: i32) -> io::Result<(bool, u64)> {
    let mut status = 0;
    // SAFETY: an all-zero rusage is valid; both locals outlive the call.
    let usage = unsafe {
        let mut usage: libc::rusage = mem::zeroed();
        check(libc::wait4(pid, &raw mut status, 0, &raw mut usage))?;
        usage
    };
    let exited_well = libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0;
    Ok((exited_well, usage.ru_maxrss.unsigned_abs() * 1_024))
}

/// Blocking connect with Nagle off and a bound on each later read and write.
pub(crate) fn connect_blocking(to: SocketAddr, patience: Duration) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&to, patience)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(patience))?;
    stream.set_write_timeout(Some(patience))?;
    Ok(stream)
}

/// Moves the calling thread into the network namespace of `namespace`.
pub(crate) fn enter_network(namespace: &impl AsRawFd) -> io::Result<()> {
    // SAFETY: no pointers.
    check(unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) }).map(drop)
}

/// Makes `command` start in the network namespace of `namespace`, which must stay open until it is spawned.
pub(crate) fn in_network(command: &mut Command, namespace: RawFd) {
    // SAFETY: between fork and exec the hook makes one system call without pointers and allocates nothing.
    unsafe { command.pre_exec(move || check(libc::setns(namespace, libc::CLONE_NEWNET)).map(drop)) };
}

/// Leaves the process, mount and network namespaces of the machine; `user` makes a user namespace around them (for
/// those not root). The next child is the first process of the new process namespace: when it ends, all in it end.
/// Must be called while the process has one thread.
pub(crate) fn unshare_machine(user: bool) -> io::Result<()> {
    let flags = libc::CLONE_NEWPID | libc::CLONE_NEWNS | libc::CLONE_NEWNET;
    // SAFETY: no pointers.
    check(unsafe { libc::unshare(flags | if user { libc::CLONE_NEWUSER } else { 0 }) }).map(drop)
}

/// A mount of this mount namespace.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Mount {
    /// From now on no mount made here shows outside, and none made outside shows here.
    Private,
    /// The process namespace's own /proc.
    Proc,
    /// Memory that vanishes with the namespace, at /dev/shm.
    Memory,
    /// The first file over the second.
    Over(&'static CStr, &'static CStr),
}

/// Makes a mount.
pub(crate) fn mount(mount: Mount) -> io::Result<()> {
    let (source, target, kind, flags) = match mount {
        Mount::Private => (c"none", c"/", c"none", libc::MS_PRIVATE | libc::MS_REC),
        Mount::Proc => (c"proc", c"/proc", c"proc", libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC),
        Mount::Memory => (c"tmpfs", c"/dev/shm", c"tmpfs", libc::MS_NOSUID | libc::MS_NODEV),
        Mount::Over(from, to) => (from, to, c"none", libc::MS_BIND),
    };
    // SAFETY: all strings are NUL-terminated and live for ever; no data is passed.
    check(unsafe { libc::mount(source.as_ptr(), target.as_ptr(), kind.as_ptr(), flags, std::ptr::null()) }).map(drop)
}

/// Ignores, or heeds again, an interrupt from the terminal.
pub(crate) fn ignore_interrupt(ignore: bool) {
    let action = if ignore { libc::SIG_IGN } else { libc::SIG_DFL };
    // SAFETY: no handler of ours is installed, only one of the kernel's own actions chosen.
    unsafe { libc::signal(libc::SIGINT, action) };
}
