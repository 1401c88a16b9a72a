//! Locks with leases, as values: what is asked and answered, when a lease is to be renewed, and when it is lost. Pure:
//! the shells (`blocking::Lock`, `nonblocking::Lock`) ask, wait and read the clock.
//!
//! A lease begins, for its holder, when it asks: so it ends here before it ends at the node, however long the answer
//! took, as long as both clocks run at the same rate. A lease that was lost once is lost: what the node grants later is
//! another one.
//!
//! | state | by | to |
//! |---|---|---|
//! | held | a third of the lease has passed | due |
//! | due | [`Lease::renewed`] | held, from when the renewal was asked for |
//! | due | [`Lease::failed`] | held, due again a twelfth of the lease later |
//! | held, due | the lease has passed, or [`Lease::lose`] | lost |

use crate::error::{Error, ErrorKind, Result};
use crate::limits::{LOCK_PAUSE_MS, LOCK_WAIT_ROUND_MS};
use crate::request::Request;
use herd_core::entry::Token;
use herd_core::method::items;
use std::time::Duration;

/// How a lock is to be taken.
#[derive(Clone, Debug)]
pub struct LockOptions {
    /// Others may hold it too, if they share it.
    pub shared: bool,
    /// How long it is held unless renewed: 100 ms to a day.
    pub lease: Duration,
    /// Who holds it, for people who look; at most 64 bytes.
    pub label: String,
}

impl Default for LockOptions {
    fn default() -> Self {
        Self { shared: false, lease: Duration::from_secs(10), label: String::new() }
    }
}

/// What a holder is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// The lock is held; nothing is to be done for so long.
    Held(Duration),
    /// The lock is held and the lease is to be renewed now; an answer that takes longer is of no use.
    Due(Duration),
    /// The lock is lost: others may hold it.
    Lost,
}

/// A lease as its holder sees it; times in ms of one clock that never goes back.
#[derive(Clone, Debug)]
pub struct Lease {
    lease_ms: u64,
    until_ms: u64,
    renew_ms: u64,
    lost: bool,
}

impl Lease {
    /// A lease that was asked for at `asked_ms`.
    pub fn new(asked_ms: u64, lease_ms: u64) -> Self {
        let mut lease = Self { lease_ms, until_ms: 0, renew_ms: 0, lost: false };
        lease.renewed(asked_ms);
        lease
    }

    /// Begins it anew: the renewal that was asked for at `asked_ms` was granted.
    pub fn renewed(&mut self, asked_ms: u64) {
        self.until_ms = asked_ms.saturating_add(self.lease_ms);
        self.renew_ms = asked_ms.saturating_add(self.lease_ms / 3);
    }

    /// A renewal was not answered, or refused for a reason that may pass.
    pub fn failed(&mut self, now_ms: u64) {
        self.renew_ms = now_ms.saturating_add(self.lease_ms / 12);
    }

    /// The node says that the lock is lost, or it was given back.
    pub fn lose(&mut self) {
        self.lost = true;
    }

    /// What is to be done at `now_ms`.
    pub fn standing(&mut self, now_ms: u64) -> Standing {
        self.lost |= now_ms >= self.until_ms;
        let left_ms = self.until_ms.saturating_sub(now_ms);
        match (self.lost, self.renew_ms.saturating_sub(now_ms)) {
            (true, _) => Standing::Lost,
            (false, 0) => Standing::Due(Duration::from_millis((self.lease_ms / 6).clamp(1, left_ms))),
            (false, due_ms) => Standing::Held(Duration::from_millis(due_ms.min(left_ms))),
        }
    }

    /// Takes the answer to a renewal that was asked for at `asked_ms`.
    pub(crate) fn answered(&mut self, (asked_ms, now_ms): (u64, u64), answer: Result<()>) {
        match answer.map_err(|error| error.kind()) {
            Ok(()) => self.renewed(asked_ms),
            Err(kind) if is_loss(kind) => self.lose(),
            Err(_) => self.failed(now_ms),
        }
    }
}

/// Whether the node says that the lock is not held any more.
pub(crate) fn is_loss(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::ConditionFailed { .. } | ErrorKind::NotFound | ErrorKind::NoCollection)
}

/// What the node answers to `lock`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Grant {
    /// It is held.
    Granted(Token),
    /// Others hold it, for so long unless they renew, ms.
    Held(u64),
}

impl Grant {
    /// Reads an answer; an error if it is none of this protocol.
    pub(crate) fn parse(answer: &[u8]) -> Result<Self> {
        let bad = || Error::bad_reply("the node's answer to 'lock' is not of this version");
        let number = |bytes: &[u8]| std::str::from_utf8(bytes).ok()?.parse().ok();
        match &items(answer).ok_or_else(bad)?[..] {
            [b"granted", token, _lease, ..] => {
                let token = std::str::from_utf8(token).ok().and_then(Token::parse);
                token.map(Grant::Granted).ok_or_else(bad)
            }
            [b"held", ms, ..] => number(ms).map(Grant::Held).ok_or_else(bad),
            _ => Err(bad()),
        }
    }
}

/// When a wait of so long is over: not before, though the clock leaves out what is beyond its milliseconds.
pub(crate) fn wait_until_ms(now_ms: u64, wait_ms: u64) -> u64 {
    now_ms.saturating_add(wait_ms).saturating_add(u64::from(wait_ms > 0))
}

/// How long to wait for a lock that others hold for `held_ms`, before asking again: until it may be free, or changes.
/// `None`: the time, until `deadline_ms`, is over.
pub(crate) fn wait_ms(now_ms: u64, deadline_ms: u64, held_ms: u64) -> Option<u64> {
    let left_ms = deadline_ms.checked_sub(now_ms).filter(|&left| left > 0)?;
    Some(held_ms.saturating_add(1).min(LOCK_WAIT_ROUND_MS).min(left_ms))
}

/// How long to pause after a wait that took `waited_ms`: those who were woken together do not all ask at once, and a
/// node whose waits end at once is not asked without end.
pub(crate) fn pause_ms(waited_ms: u64, chance: u64) -> u64 {
    if waited_ms < LOCK_PAUSE_MS { LOCK_PAUSE_MS + chance % LOCK_PAUSE_MS } else { 0 }
}

/// The requests about a lock.
pub(crate) fn lock_request<'a>(key: &'a [u8], options: &LockOptions) -> Result<Request<'a>> {
    let mode = if options.shared { "shared" } else { "exclusive" };
    let lease = crate::shell::millis(options.lease).to_string();
    Request::execute(key, "lock", &[mode.as_bytes(), lease.as_bytes(), options.label.as_bytes()])
}

pub(crate) fn renew_request<'a>(key: &'a [u8], token: Token, lease_ms: u64) -> Result<Request<'a>> {
    Request::execute(key, "renew", &[token.to_string(), lease_ms.to_string()])
}

pub(crate) fn unlock_request(key: &[u8], token: Token) -> Result<Request<'_>> {
    Request::execute(key, "unlock", &[token.to_string()])
}

pub(crate) fn check_request(key: &[u8], token: Token) -> Result<Request<'_>> {
    Request::execute(key, "check", &[token.to_string()])
}

/// Reads the answer to `check`.
pub(crate) fn time_left(answer: &[u8]) -> Result<Duration> {
    let ms = std::str::from_utf8(answer).ok().and_then(|text| text.parse().ok());
    let bad = || Error::bad_reply("the node's answer to 'check' is not of this version");
    ms.map(Duration::from_millis).ok_or_else(bad)
}

/// The time by a clock that goes on while the machine sleeps, where there is one: leases do not wait for us.
pub(crate) fn clock_ms() -> u64 {
    #[cfg(target_os = "linux")]
    let clock = rustix::time::ClockId::Boottime;
    #[cfg(not(target_os = "linux"))]
    let clock = rustix::time::ClockId::Monotonic;
    let now = rustix::time::clock_gettime(clock);
    now.tv_sec.unsigned_abs() * 1_000 + now.tv_nsec.unsigned_abs() / 1_000_000
}

#[cfg(test)]
mod tests {
    use super::*;
    use herd_core::method::push_item;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn a_lease_counts_from_before_it_was_asked_for_and_is_renewed_at_a_third() {
        let mut lease = Lease::new(1_000, 9_000);
        assert_eq!(lease.standing(1_000), Standing::Held(ms(3_000)));
        assert_eq!(lease.standing(3_999), Standing::Held(ms(1)));
        assert_eq!(lease.standing(4_000), Standing::Due(ms(1_500)));
        lease.renewed(4_000);
        assert_eq!(lease.standing(5_500), Standing::Held(ms(1_500)), "the answer came late; the lease began before");
        assert_eq!(lease.standing(12_999), Standing::Due(ms(1)), "no answer is of use after the end");
        assert_eq!(lease.standing(13_000), Standing::Lost);
    }

    #[test]
    fn a_lease_that_was_lost_is_lost() {
        let mut lease = Lease::new(0, 900);
        assert_eq!(lease.standing(5_000), Standing::Lost, "whoever was paused learns it first of all");
        lease.renewed(4_900);
        assert_eq!(lease.standing(5_000), Standing::Lost, "an answer that comes then is of no use");
        let mut told = Lease::new(0, 900);
        told.answered((300, 310), Err(Error::new(ErrorKind::ConditionFailed { version: 0 }, "lost")));
        assert_eq!(told.standing(311), Standing::Lost);
    }

    #[test]
    fn renewals_that_fail_are_tried_again_until_the_end() {
        let mut lease = Lease::new(0, 1_200);
        let (mut now_ms, mut tries) = (0, 0);
        loop {
            match lease.standing(now_ms) {
                Standing::Held(next) => now_ms += next.as_millis() as u64,
                Standing::Due(within) => {
                    assert!(now_ms + within.as_millis() as u64 <= 1_200);
                    let asked_ms = now_ms;
                    now_ms += within.as_millis() as u64;
                    let error = Error::new(ErrorKind::Unreachable, "silence");
                    lease.answered((asked_ms, now_ms), Err(error));
                    tries += 1;
                }
                Standing::Lost => break,
            }
        }
        assert_eq!((now_ms, tries), (1_200, 3));
    }

    #[test]
    fn a_holder_learns_of_its_loss_within_half_a_lease() {
        let lease_ms = 12_000;
        let mut lease = Lease::new(0, lease_ms);
        let Standing::Held(next) = lease.standing(1) else { panic!("it is held") };
        let due_ms = 1 + next.as_millis() as u64;
        let Standing::Due(within) = lease.standing(due_ms) else { panic!("it is due") };
        assert!(due_ms + within.as_millis() as u64 <= lease_ms / 2);
    }

    #[test]
    fn answers_are_read_and_others_refused() {
        let list = |items: &[&[u8]]| {
            let mut out = Vec::new();
            items.iter().for_each(|item| push_item(&mut out, item));
            out
        };
        let token = Token { lock: [3; 16], grant: 77 };
        let text = token.to_string();
        assert_eq!(
            Grant::parse(&list(&[b"granted", text.as_bytes(), b"10"])).expect("an answer"),
            Grant::Granted(token)
        );
        assert_eq!(Grant::parse(&list(&[b"held", b"250"])).expect("an answer"), Grant::Held(250));
        for bad in [&b""[..], b"x", &list(&[b"held"]), &list(&[b"held", b"-1"]), &list(&[b"granted", b"7", b"1"])] {
            assert_eq!(Grant::parse(bad).expect_err("no answer").kind(), ErrorKind::BadReply);
        }
        assert_eq!(time_left(b"25").expect("a time"), ms(25));
        assert!(time_left(b"soon").is_err());
    }

    #[test]
    fn waits_end_with_the_hold_with_the_time_and_now_and_then() {
        assert_eq!(wait_ms(0, 10_000, 40), Some(41));
        assert_eq!(wait_ms(0, 30, 40), Some(30));
        assert_eq!(wait_ms(0, 60_000, 40_000), Some(LOCK_WAIT_ROUND_MS));
        assert_eq!((wait_ms(30, 30, 40), wait_ms(31, 30, 40)), (None, None));
        assert_eq!(pause_ms(LOCK_PAUSE_MS, 9), 0);
        assert!((LOCK_PAUSE_MS..2 * LOCK_PAUSE_MS).contains(&pause_ms(0, u64::MAX)));
    }
}
