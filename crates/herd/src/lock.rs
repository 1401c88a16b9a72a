//! `herd lock`: runs a command while a lock is held.
//!
//! The command has a process group of its own, so that all it starts can be ended with it; where it may read a terminal
//! it stays in ours, as a terminal serves one group only, and is then signalled alone. Each turn begins with a look at
//! the lease: whoever was paused beyond it learns that before anything else.
//!
//! | state | by | to |
//! |---|---|---|
//! | running | the command ends | the lock is given back; its exit status |
//! | running | SIGINT, SIGTERM, SIGHUP | passed on; running |
//! | running | the lock is lost | SIGTERM, after 5 s SIGKILL; exit 1 |
//! | given back | it was lost before, or nobody can be asked: lost with its node | exit 1 |
//! | given back | nothing tells whether it was | exit 4 |

use crate::args::LockArgs;
use crate::exit::{Failure, NOT_SO, Outcome};
use crate::objects::client;
use crate::{machine, out};
use herd_client::blocking::{Client, Lock};
use herd_client::{ErrorKind, LockOptions, Standing};
use herd_core::ErrorKind as Core;
use herd_core::limits::LOCK_LEASE_MAX_MS;
use herd_core::method::lock::{Holder, read_holders};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{
    Pid, Signal, WaitOptions, getpid, kill_process, kill_process_group, set_child_subreaper, test_kill_process_group,
    waitpgid,
};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM};
use std::ffi::OsString;
use std::io::{self, IsTerminal, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// From SIGTERM to SIGKILL where the lock was lost.
const GRACE: Duration = Duration::from_secs(5);
/// How long a wait for a lock is not worth a word.
const TELL_AFTER: Duration = Duration::from_secs(2);
/// How often it is looked whether all of a group are gone.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Signals that are passed on.
const PASSED: [(i32, Signal); 3] = [(SIGINT, Signal::INT), (SIGTERM, Signal::TERM), (SIGHUP, Signal::HUP)];

pub(crate) fn run(args: &LockArgs) -> Outcome {
    let client = client(&args.herd)?;
    let name = out::shown(args.name.as_bytes()).into_owned();
    let options = LockOptions { shared: args.shared, lease: args.lease, label: label() };
    let wait = args.wait.unwrap_or(Duration::MAX);
    let Some(lock) = wait_for(&client, args.name.as_bytes(), &options, wait)? else {
        return Err(Failure::new(NOT_SO, format!("lock {name}: {}", held(&client, args.name.as_bytes()))));
    };
    let token = lock.token().to_string();
    match hold(lock, &args.command, &token, GRACE)? {
        End::Status(0) => Ok(()),
        End::Status(code) => Err(Failure::new(code, "")),
        End::Lost => Err(Failure::new(NOT_SO, format!("lock {name}: lost; the command was ended"))),
        End::LostMeanwhile => Err(Failure::new(NOT_SO, format!("lock {name}: was lost before the command ended"))),
        End::Unseen(code, why) => {
            let text = format!("lock {name}: nothing tells that it was held until the command ended: {why}");
            Err(Failure::new(code, text))
        }
    }
}

/// Takes a lock, or waits for it so long; after a while it is told, once, what is waited for.
fn wait_for(client: &Client, key: &[u8], options: &LockOptions, wait: Duration) -> Result<Option<Lock>, Failure> {
    let soon = client.lock(key, options, wait.min(TELL_AFTER))?;
    if soon.is_some() || wait <= TELL_AFTER {
        return Ok(soon);
    }
    out::tell(format!("herd: lock {}: waiting: {}", out::shown(key), held(client, key)));
    Ok(client.lock(key, options, wait - TELL_AFTER)?)
}

/// By whom a lock is held and for how long, as far as it can be seen.
fn held(client: &Client, key: &[u8]) -> String {
    let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
    let holders = client.get(key).ok().and_then(|object| read_holders(&object.value)).unwrap_or_default();
    told(&holders, now_ms)
}

fn told(holders: &[Holder], now_ms: u64) -> String {
    let Some(last) = holders.iter().max_by_key(|holder| holder.until_ms) else { return "others hold it".into() };
    let others =
        if last.label.is_empty() { "others hold it".into() } else { format!("held by {}", out::shown(&last.label)) };
    let more = match holders.len() {
        1 => String::new(),
        all => format!(" and {} more", all - 1),
    };
    // By the node's clock and ours, which may differ: then nothing is said.
    match last.until_ms.checked_sub(now_ms).filter(|left_ms| (1..=LOCK_LEASE_MAX_MS).contains(left_ms)) {
        Some(left_ms) => {
            format!("{others}{more}; the lease ends in {:.1} s if it is not renewed", left_ms as f64 / 1e3)
        }
        None => format!("{others}{more}"),
    }
}

/// Who holds it, for people who look.
fn label() -> String {
    let mut label = format!("{} {}", machine::name(), std::process::id());
    label.truncate(label.floor_char_boundary(64));
    label
}

/// What is held meanwhile.
trait Hold {
    /// Renews what is due; to be called again when the time it gives is over.
    fn tend(&mut self) -> Standing;
    /// Gives it back; error: what is known of it when the command has ended.
    fn release(self) -> Result<(), End>;
}

impl Hold for Lock {
    fn tend(&mut self) -> Standing {
        Lock::tend(self)
    }

    fn release(self) -> Result<(), End> {
        let Err(error) = Lock::release(self) else { return Ok(()) };
        match error.kind() {
            ErrorKind::ConditionFailed { .. } | ErrorKind::NotFound => Err(End::LostMeanwhile),
            // Its node may be gone, and the lock with it; others may have had it for as long.
            ErrorKind::Unreachable | ErrorKind::Refused(Core::Unreachable) => {
                Err(End::Unseen(NOT_SO, Failure::from(error).text))
            }
            ErrorKind::OutcomeUnknown => {
                let failure = Failure::from(error);
                Err(End::Unseen(failure.code, failure.text))
            }
            _ => {
                // The node has it: it ends with its lease, and what the command did was done under it.
                Failure::from(error).report();
                Ok(())
            }
        }
    }
}

#[derive(Debug, PartialEq)]
enum End {
    /// The command's own exit status.
    Status(u8),
    /// The lock was lost while it ran.
    Lost,
    /// The lock was lost, but it had ended by then.
    LostMeanwhile,
    /// Who has the lock can't be asked: the exit status, and why.
    Unseen(u8, String),
}

/// Runs `command` under `hold`.
fn hold(mut hold: impl Hold, command: &[OsString], token: &str, grace: Duration) -> Result<End, Failure> {
    let signals = Signals::new().map_err(Failure::local("signals"))?;
    let mut running = match Running::start(command, token) {
        Ok(running) => running,
        Err(failure) => {
            hold.release().ok();
            return Err(failure);
        }
    };
    loop {
        let time = match hold.tend() {
            Standing::Held(time) | Standing::Due(time) => time,
            Standing::Lost => {
                running.end(grace);
                return Ok(End::Lost);
            }
        };
        if let Some(status) = running.child.try_wait().map_err(Failure::local("waiting"))? {
            return Ok(hold.release().err().unwrap_or_else(|| End::Status(exit_code(status))));
        }
        signals.wait(time).into_iter().for_each(|signal| running.pass(signal));
    }
}

/// As shells have it: 128 + N for signal N.
fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    u8::try_from(code).unwrap_or(u8::MAX)
}

/// Signals that came, and a descriptor that becomes readable when one does.
struct Signals {
    wake: UnixStream,
    came: Vec<(Signal, Arc<AtomicBool>)>,
}

impl Signals {
    fn new() -> io::Result<Self> {
        let (wake, write) = UnixStream::pair()?;
        wake.set_nonblocking(true)?;
        signal_hook::low_level::pipe::register(SIGCHLD, write.try_clone()?)?;
        let mut came = Vec::with_capacity(PASSED.len());
        for (number, signal) in PASSED {
            let flag = Arc::new(AtomicBool::new(false));
            signal_hook::flag::register(number, flag.clone())?;
            signal_hook::low_level::pipe::register(number, write.try_clone()?)?;
            came.push((signal, flag));
        }
        Ok(Self { wake, came })
    }

    /// Waits for one, at most for `time`; gives those that are to be passed on.
    fn wait(&self, time: Duration) -> Vec<Signal> {
        let timeout = Timespec::try_from(time).ok();
        // Whatever it says, the turn that follows looks at everything.
        poll(&mut [PollFd::new(&self.wake, PollFlags::IN)], timeout.as_ref()).ok();
        let mut bytes = [0; 64];
        while (&self.wake).read(&mut bytes).is_ok_and(|read| read == bytes.len()) {}
        self.came.iter().filter(|(_, came)| came.swap(false, Relaxed)).map(|(signal, _)| *signal).collect()
    }
}

/// The command while it runs.
struct Running {
    child: Child,
    pid: Pid,
    /// Whether it has a process group of its own.
    grouped: bool,
}

impl Running {
    fn start(command: &[OsString], token: &str) -> Result<Self, Failure> {
        let (program, arguments) = command.split_first().expect("the parser asks for a command");
        let grouped = !io::stdin().is_terminal();
        let mut command = Command::new(program);
        command.args(arguments).env("HERD_LOCK_TOKEN", token);
        if grouped {
            command.process_group(0);
            // Where that can't be had, whoever gets the orphans buries them later.
            set_child_subreaper(Some(getpid())).ok();
        }
        let child = command.spawn().map_err(Failure::local(out::shown(program.as_bytes())))?;
        let pid = Pid::from_child(&child);
        Ok(Self { child, pid, grouped })
    }

    /// It and its group may be gone already; then there is nobody to tell.
    fn signal(&self, signal: Signal) {
        if self.grouped { kill_process_group(self.pid, signal) } else { kill_process(self.pid, signal) }.ok();
    }

    /// A terminal gives Ctrl-C to its whole group, which we share then.
    fn pass(&self, signal: Signal) {
        if self.grouped || signal != Signal::INT {
            self.signal(signal);
        }
    }

    /// Ends it and its group: with a word, after `grace` without.
    fn end(&mut self, grace: Duration) {
        self.signal(Signal::TERM);
        // What stands still can't end itself.
        self.signal(Signal::CONT);
        let begin = Instant::now();
        while !self.is_gone() && begin.elapsed() < grace {
            std::thread::sleep(LOOK_EVERY);
        }
        if !self.is_gone() {
            self.signal(Signal::KILL);
            // It can't refuse.
            self.child.wait().ok();
        }
    }

    fn is_gone(&mut self) -> bool {
        let ended = self.child.try_wait().is_ok_and(|status| status.is_some());
        if !ended || !self.grouped {
            return ended;
        }
        // Orphans of its group are ours to bury; until then they count as there.
        while let Ok(Some(_)) = waitpgid(self.pid, WaitOptions::NOHANG) {}
        test_kill_process_group(self.pid).is_err()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::PathBuf;

    /// Held until a file is there, or for ever.
    #[derive(Default)]
    struct Fake {
        until: Option<PathBuf>,
        lost_at_release: bool,
    }

    impl Hold for Fake {
        fn tend(&mut self) -> Standing {
            let lost = self.until.as_ref().is_some_and(|file| file.exists());
            if lost { Standing::Lost } else { Standing::Held(Duration::from_millis(20)) }
        }

        fn release(self) -> Result<(), End> {
            if self.lost_at_release { Err(End::LostMeanwhile) } else { Ok(()) }
        }
    }

    fn end(fake: Fake, script: &str) -> End {
        end_within(fake, script, Duration::from_secs(10))
    }

    fn end_within(fake: Fake, script: &str, grace: Duration) -> End {
        let command = ["sh", "-c", script].map(OsString::from);
        hold(fake, &command, "token", grace).unwrap_or_else(|failure| panic!("{}", failure.text))
    }

    /// How a command ends whose lock is lost when it has done `prepare`; it then waits with a child of its own.
    fn lose(prepare: &str, grace: Duration) -> (End, Duration, tempfile::TempDir) {
        let dir = tempfile::tempdir().expect("temporary directory");
        let ready = dir.path().join("ready");
        // Short sleeps: a shell that is told between two commands looks at its trap only when the next one ends.
        let script = format!("cd {}; {prepare}; touch ready; while :; do sleep 0.1; done", dir.path().display());
        let begin = Instant::now();
        let ended = end_within(Fake { until: Some(ready), ..Fake::default() }, &script, grace);
        (ended, begin.elapsed(), dir)
    }

    #[test]
    fn who_holds_a_lock_is_told_as_far_as_it_is_known() {
        let holder = |label: &str, until_ms| Holder { shared: true, grant: 1, until_ms, label: label.into() };
        assert_eq!(told(&[], 0), "others hold it");
        let text = told(&[holder("vm 8489", 10_800)], 1_000);
        assert_eq!(text, "held by vm 8489; the lease ends in 9.8 s if it is not renewed");
        assert_eq!(told(&[holder("a 1", 5), holder("b 2\x1b[2J", 6)], 7), "held by b 2\\x1b[2J and 1 more");
        assert_eq!(told(&[holder("", 0)], 0), "others hold it");
    }

    #[test]
    fn the_command_s_status_is_ours_and_it_knows_its_token() {
        assert_eq!(end(Fake::default(), "exit 0"), End::Status(0));
        assert_eq!(end(Fake::default(), "test \"$HERD_LOCK_TOKEN\" = token && exit 7"), End::Status(7));
        assert_eq!(end(Fake::default(), "kill -TERM $$"), End::Status(143));
        assert_eq!(end(Fake { lost_at_release: true, ..Fake::default() }, "exit 0"), End::LostMeanwhile);
    }

    #[test]
    fn a_lost_lock_ends_the_command_and_what_it_started() {
        // It ends when it is told; a busy machine may take its time to do so.
        let (ended, took, dir) = lose("trap 'echo told > told; exit' TERM", Duration::from_secs(10));
        assert_eq!(ended, End::Lost);
        assert!(took < Duration::from_secs(20), "{took:?}");
        assert_eq!(fs::read_to_string(dir.path().join("told")).expect("it was told"), "told\n");
    }

    #[test]
    fn what_does_not_listen_is_killed_after_the_grace() {
        let (ended, took, _dir) = lose("trap '' TERM", Duration::from_millis(300));
        assert_eq!(ended, End::Lost);
        assert!(took >= Duration::from_millis(300) && took < Duration::from_secs(20), "{took:?}");
    }

    #[test]
    fn a_command_that_can_not_be_started_gives_the_lock_back() {
        let failed = hold(Fake::default(), &["/no/such/program".into()], "token", GRACE);
        assert!(failed.is_err_and(|failure| failure.code == 2 && failure.text.contains("/no/such/program")));
    }
}
