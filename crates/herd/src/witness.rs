//! A node's witness: this program once more, under another name, in a process that the node starts and that outlives it
//! by 10 s at most. It tells the herd's warden at once that the node's process has ended, however that came about
//! (docs/decisions/012, "Obituaries").
//!
//! It has three descriptors: what it is told comes by its standard input; its standard output is a pidfd of the node's
//! process, which that opened itself, so it can be no other one's. It is not in the node's process group, and what is
//! sent to end it only has it hurry: its end would be the end of what it is for.

use herd_core::limits::{OBITUARY_HURRY_MS, OBITUARY_LAST_MS, OBITUARY_PATIENCE_MS};
use herd_node::{StartWitness, Told, Witness, close_handed};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{Errno, ioctl_fionbio, read};
use rustix::process::{PidfdFlags, getpid, pidfd_open};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// What such a process is called: by this `main` knows it.
const NAME: &str = "herd-witness";

/// How a node of that name starts its own. Its memory is small, as long as that does not come in pages of 2 MiB.
pub(crate) fn starter(node: &str) -> StartWitness {
    let node = node.to_owned();
    Arc::new(move || {
        let pidfd = pidfd_open(getpid(), PidfdFlags::empty())?;
        let mut command = Command::new("/proc/self/exe");
        command.arg0(NAME).args(["of", &node]).env_clear().env("MIMALLOC_ALLOW_THP", "0").process_group(0);
        let mut child = command.stdin(Stdio::piped()).stdout(pidfd).stderr(Stdio::null()).spawn()?;
        let pipe = child.stdin.take().ok_or_else(|| io::Error::other("it has no pipe"))?;
        ioctl_fionbio(&pipe, true)?;
        Ok(Box::new(Started { child, pipe }))
    })
}

struct Started {
    child: Child,
    pipe: ChildStdin,
}

impl Witness for Started {
    fn tell(&mut self, text: &str) -> io::Result<()> {
        self.pipe.write_all(text.as_bytes())
    }

    fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    fn end(mut self: Box<Self>, patience: Duration) {
        let until = Instant::now() + patience;
        while !self.has_ended() {
            if Instant::now() >= until {
                self.child.kill().ok();
                self.child.wait().ok();
                return;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// Whether this process was started as a witness.
pub(crate) fn is_called() -> bool {
    std::env::args_os().next().is_some_and(|name| name == NAME)
}

/// The life of a witness.
pub(crate) fn run() -> ExitCode {
    close_handed();
    // Else it would be shown as what /proc calls its program, and keep a file system from being unmounted.
    std::fs::write("/proc/self/comm", NAME).ok();
    std::env::set_current_dir("/").ok();
    let hurries = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT, SIGHUP] {
        signal_hook::flag::register(signal, hurries.clone()).ok();
    }
    let mut told = Told::default();
    if wait(&mut told).is_err() {
        return ExitCode::FAILURE;
    }
    let (since, is_over) = (Instant::now(), told.is_over());
    told.tell(random(), || {
        let hurry_ms = if hurries.load(Relaxed) { OBITUARY_HURRY_MS } else { OBITUARY_PATIENCE_MS };
        since + Duration::from_millis(if is_over { OBITUARY_LAST_MS } else { hurry_ms })
    });
    ExitCode::SUCCESS
}

/// Until the node's process has ended, or says that it does.
fn wait(told: &mut Told) -> io::Result<()> {
    let (pidfd, pipe, mut is_open) = (io::stdout(), io::stdin(), true);
    while !told.is_over() {
        let mut fds = [PollFd::new(&pidfd, PollFlags::IN), PollFd::new(&pipe, PollFlags::IN)];
        match poll(&mut fds[..if is_open { 2 } else { 1 }], None) {
            Err(Errno::INTR) => continue,
            polled => polled?,
        };
        let [has_ended, is_told] = [&fds[0], &fds[1]].map(|fd| !fd.revents().is_empty());
        if is_told {
            is_open = hear(told)?;
        } else if has_ended {
            break;
        }
    }
    Ok(())
}

/// Takes what is there of what it is told; false: there is nothing more to come.
fn hear(told: &mut Told) -> io::Result<bool> {
    let mut bytes = [0; 512];
    match read(io::stdin(), &mut bytes) {
        Ok(0) => Ok(false),
        Ok(count) => {
            told.take(&bytes[..count]);
            Ok(true)
        }
        Err(Errno::INTR | Errno::AGAIN) => Ok(true),
        Err(error) => Err(error.into()),
    }
}

/// Without chance, as long as no two exchanges of a process have the same: no nonce comes twice in a herd's life.
fn random() -> [u8; 16] {
    let mut bytes = [0; 16];
    let drawn = std::fs::File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes));
    if drawn.is_err() {
        bytes[..4].copy_from_slice(&std::process::id().to_le_bytes());
    }
    bytes
}
