//! Locks: `lock`, `renew`, `unlock`, `check`.
//!
//! A lock is one object: `HERDLOCK`, then each holder's mode, grant, end of lease and label (FORMATS.md). It is there
//! while somebody holds it: giving the last hold back removes the object, and the object expires with the last lease.
//!
//! | state | `lock exclusive` | `lock shared` | `renew`, `check` by a holder | `unlock` by a holder |
//! |---|---|---|---|---|
//! | free (absent, or all leases over) | exclusive | shared | lost | lost |
//! | exclusive | held | held | as before | free |
//! | shared by n | held | shared by n + 1, up to 1,024 | as before | shared by n - 1, or free |
//!
//! A grant is a version that the slot has not given yet, so grants of one lock rise for ever, also across its removal.
//! A lease that is over is lost, also if nobody else has come: whoever was paused learns it with the next request.
//! Time is that of the node which decides; a holder counts its lease from before it asked, so it ends there first.
//! Nodes' clocks differ, and who wrote the object may be another one than who decides next. Members tell each other the
//! object's expiry as the time that is left, and never its value; so each lease ends as long before the expiry, which
//! is the end of the last one, as it was written. Whoever gives the object another expiry, as a touch does, moves all
//! its leases along.

use super::items::{push_item, unsigned};
use crate::change::{Answer, Change, Circumstances, Decided, Large, New, Part, assembled};
use crate::entry::{Fence, Found, Head, Token};
use crate::limits::{LOCK_HOLDERS_MAX, LOCK_LABEL_MAX_BYTES, LOCK_LEASE_MAX_MS, LOCK_LEASE_MIN_MS};
use crate::{Error, ErrorKind};
use std::borrow::Cow;

const MAGIC: &[u8; 8] = b"HERDLOCK";
/// Bytes of a holder without its label.
const HOLDER_BYTES: usize = 18;

/// A method on a lock.
#[derive(Clone, Copy, Debug)]
pub enum Method<'a> {
    /// Takes it.
    Lock {
        /// Others may hold it beside, if they share too.
        shared: bool,
        /// How long it is held unless renewed, ms.
        lease_ms: u64,
        /// Who takes it, for people who look.
        label: &'a [u8],
    },
    /// Begins the lease anew.
    Renew {
        /// The hold.
        token: Token,
        /// How long it is held from now on, ms.
        lease_ms: u64,
    },
    /// Gives it back.
    Unlock {
        /// The hold.
        token: Token,
    },
    /// Tells how long it is still held.
    Check {
        /// The hold.
        token: Token,
    },
}

impl<'a> Method<'a> {
    /// The method of that name, if the arguments fit it.
    pub(super) fn parse(name: &str, arguments: &[&'a [u8]]) -> Option<Self> {
        let token = |bytes: &[u8]| Token::parse(std::str::from_utf8(bytes).ok()?);
        let lease = |bytes: &[u8]| unsigned(bytes).filter(|ms| (LOCK_LEASE_MIN_MS..=LOCK_LEASE_MAX_MS).contains(ms));
        Some(match (name, arguments) {
            ("lock", [mode, ms, label @ ..]) => Method::Lock {
                shared: match *mode {
                    b"shared" => true,
                    b"exclusive" => false,
                    _ => return None,
                },
                lease_ms: lease(ms)?,
                label: match label {
                    [] => b"",
                    [label] if label.len() <= LOCK_LABEL_MAX_BYTES => label,
                    _ => return None,
                },
            },
            ("renew", [hold, ms]) => Method::Renew { token: token(hold)?, lease_ms: lease(ms)? },
            ("unlock", [hold]) => Method::Unlock { token: token(hold)? },
            ("check", [hold]) => Method::Check { token: token(hold)? },
            _ => return None,
        })
    }

    pub(super) fn only_reads(&self) -> bool {
        matches!(self, Method::Check { .. })
    }
}

/// One who holds a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Whether others may hold it too.
    pub shared: bool,
    /// Number of the hold, as in its token.
    pub grant: u64,
    /// End of the lease, ms since 1970, by the clock of the node that wrote it.
    pub until_ms: u64,
    /// Who it is, for people who look.
    pub label: Vec<u8>,
}

/// The holders that a lock's value tells of, also those whose lease is over; `None`: it is no lock's.
pub fn read_holders(value: &[u8]) -> Option<Vec<Holder>> {
    let mut rest = value.strip_prefix(MAGIC)?;
    let mut all = Vec::new();
    while !rest.is_empty() {
        let (holder, after) = Holder::decode(rest)?;
        all.push(holder);
        rest = after;
    }
    Some(all)
}

impl Holder {
    fn encode(&self, out: &mut Vec<u8>) {
        out.push(u8::from(self.shared));
        out.extend_from_slice(&self.grant.to_le_bytes());
        out.extend_from_slice(&self.until_ms.to_le_bytes());
        out.push(self.label.len() as u8);
        out.extend_from_slice(&self.label);
    }

    /// The holder at the start of `bytes`, and what follows it.
    fn decode(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (head, rest) = bytes.split_first_chunk::<HOLDER_BYTES>()?;
        let number = |at: usize| head[at..at + 8].try_into().map(u64::from_le_bytes).ok();
        let (label, rest) = rest.split_at_checked(usize::from(head[17]))?;
        let holder = Holder { shared: head[0] == 1, grant: number(1)?, until_ms: number(9)?, label: label.to_vec() };
        Some((holder, rest))
    }
}

/// The holders of a lock whose lease is not over.
fn holders<B: Large>(found: Option<&Found<'_, B>>, now_ms: u64) -> Result<Vec<Holder>, Error> {
    let Some(found) = found else {
        return Ok(Vec::new());
    };
    let other = || Error::new(ErrorKind::BadRequest, "the object is not a lock");
    let size_max = MAGIC.len() + LOCK_HOLDERS_MAX * (HOLDER_BYTES + LOCK_LABEL_MAX_BYTES);
    if found.head.size_bytes > size_max as u64 {
        return Err(other());
    }
    let mut bytes = Vec::with_capacity(found.head.size_bytes as usize);
    found.value.copy(0, found.head.size_bytes, &mut bytes);
    let mut all = read_holders(&bytes).ok_or_else(other)?;
    let last_ms = all.iter().map(|holder| holder.until_ms).max().unwrap_or(0);
    let expires_ms = if found.head.expires_ms == 0 { last_ms } else { found.head.expires_ms };
    all.iter_mut().for_each(|holder| holder.until_ms = expires_ms.saturating_sub(last_ms - holder.until_ms));
    all.retain(|holder| holder.until_ms > now_ms);
    Ok(all)
}

pub(super) fn decide<'a, B: Large>(
    method: &Method<'a>,
    max_bytes: u64,
    found: Option<&Found<'_, B>>,
    fence: Option<Fence>,
    at: &Circumstances,
) -> Result<Decided<'a, B>, Error> {
    let mut all = holders(found, at.now_ms)?;
    let (token, answer) = match *method {
        Method::Lock { shared, lease_ms, label } => {
            if at.evicts {
                let text = "a collection of class cache may evict a lock: use one of class ram";
                return Err(Error::new(ErrorKind::NotAllowed, text));
            }
            let in_the_way = |holder: &&Holder| !(shared && holder.shared);
            let held_until = all.iter().filter(in_the_way).map(|holder| holder.until_ms).max();
            let full_until = all.iter().map(|holder| holder.until_ms).min().filter(|_| all.len() >= LOCK_HOLDERS_MAX);
            if let Some(until_ms) = held_until.or(full_until) {
                return Ok(Decided { change: Change::None, answer: held(until_ms - at.now_ms) });
            }
            let token = Token { lock: at.id, grant: at.next_version };
            let until_ms = at.now_ms.saturating_add(lease_ms);
            all.push(Holder { shared, grant: token.grant, until_ms, label: label.to_vec() });
            (token, granted(token, lease_ms))
        }
        Method::Renew { token, lease_ms } => {
            let until_ms = at.now_ms.saturating_add(lease_ms);
            hold(&mut all, token, at)?.until_ms = until_ms;
            (token, Answer::Bytes(lease_ms.to_string().into_bytes()))
        }
        Method::Unlock { token } => {
            hold(&mut all, token, at)?;
            all.retain(|holder| holder.grant != token.grant);
            (token, Answer::Nothing)
        }
        Method::Check { token } => {
            let left_ms = hold(&mut all, token, at)?.until_ms - at.now_ms;
            return Ok(Decided { change: Change::None, answer: Answer::Bytes(left_ms.to_string().into_bytes()) });
        }
    };
    assert_eq!(token.lock, at.id, "a hold of this lock was found or made");
    if all.is_empty() {
        return Ok(Decided { change: Change::Remove(fence), answer });
    }
    Ok(Decided { change: Change::Put(encoded(&all, max_bytes, fence)?), answer })
}

/// The hold of a token; an error if its lease is over, or it was given back.
fn hold<'h>(all: &'h mut [Holder], token: Token, at: &Circumstances) -> Result<&'h mut Holder, Error> {
    let lost = || Error::new(ErrorKind::ConditionFailed, "the lock is lost: its lease is over, or it was given back");
    all.iter_mut().find(|holder| token.lock == at.id && holder.grant == token.grant).ok_or_else(lost)
}

/// The object of a lock with these holders; it expires with the last lease.
fn encoded<'a, B: Large>(all: &[Holder], max_bytes: u64, fence: Option<Fence>) -> Result<New<'a, B>, Error> {
    let mut bytes = MAGIC.to_vec();
    all.iter().for_each(|holder| holder.encode(&mut bytes));
    let expires_ms = all.iter().map(|holder| holder.until_ms).max().unwrap_or(0);
    let new = assembled(vec![Part::Bytes(Cow::Owned(bytes))], None, max_bytes)?;
    Ok(New { expires_ms, fence, attributes: Some(&[]), flags: Head::default().flags, ..new })
}

/// `granted`, the token and the lease.
fn granted<B>(token: Token, lease_ms: u64) -> Answer<B> {
    let mut out = Vec::new();
    push_item(&mut out, b"granted");
    push_item(&mut out, token.to_string().as_bytes());
    push_item(&mut out, lease_ms.to_string().as_bytes());
    Answer::Bytes(out)
}

/// `held`, and for how long at most unless it is renewed, ms.
fn held<B>(for_ms: u64) -> Answer<B> {
    let mut out = Vec::new();
    push_item(&mut out, b"held");
    push_item(&mut out, for_ms.to_string().as_bytes());
    Answer::Bytes(out)
}
