//! The members of an etcd, asked one after the other: the one that answered last is the first the next time.
//!
//! * One connection is kept. Before anything is asked on a new one its member says its version and its cluster, so
//!   nothing is ever written to another etcd, nor to one of a version that may read stale.
//! * What reads is asked of the next member where one does not answer; what writes, only if the one before has not got
//!   all of it. Else its outcome is unknown.
//! * Revisions never fall. An etcd whose revision does was put back to an older copy, and is not gone on with.

use super::address::{Address, Endpoint};
use super::http::{Connection, Halt, Until};
use super::version::{self, Fitness};
use super::wire::{Answer, Fault, Header, Standing, plain};
use herd_core::control::{ControlError, NUMBERS_END, Revision};
use herd_core::limits::ETCD_TRY_MS;
use serde_json::Value;
use std::collections::VecDeque;
use std::io;
use std::time::Duration;

/// Numbers of gRPC for what went wrong.
mod code {
    pub(super) const CANCELLED: u32 = 1;
    pub(super) const UNKNOWN: u32 = 2;
    pub(super) const INVALID: u32 = 3;
    pub(super) const TOO_LATE: u32 = 4;
    pub(super) const NOT_FOUND: u32 = 5;
    pub(super) const DENIED: u32 = 7;
    pub(super) const EXHAUSTED: u32 = 8;
    pub(super) const ABORTED: u32 = 10;
    pub(super) const OUT_OF_RANGE: u32 = 11;
    pub(super) const UNBUILT: u32 = 12;
    pub(super) const INTERNAL: u32 = 13;
    pub(super) const UNAVAILABLE: u32 = 14;
    pub(super) const UNPROVED: u32 = 16;
}

/// Whether it changes anything, so that it matters whether it was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Reads,
    Writes,
}

/// Why there is no answer.
#[derive(Debug)]
pub(super) enum Trouble {
    /// etcd no longer has that revision, or has not come to it.
    Past,
    /// There is no such lease.
    NoLease,
    /// etcd says of a write that it has no room. It says so before it does it, and after.
    NoRoom(String),
    /// Any other.
    Control(ControlError),
}

impl From<Trouble> for ControlError {
    fn from(trouble: Trouble) -> Self {
        match trouble {
            Trouble::Control(error) => error,
            // Where that may be, it is looked for.
            Trouble::Past => ControlError::Broken("etcd has no such revision".into()),
            Trouble::NoRoom(text) => ControlError::Unknown(text),
            Trouble::NoLease => ControlError::Unreachable("the lease ran out meanwhile: try again".into()),
        }
    }
}

/// How asking one member ended without an answer.
enum Lost {
    /// It has not got all of the request.
    Unsent(String),
    /// It may have done what was asked.
    Unanswered(String),
    /// It is not to be asked.
    Unfit(String),
}

/// All of them.
#[derive(Debug)]
pub(super) struct Members {
    endpoints: VecDeque<Endpoint>,
    /// To the first of them.
    connection: Option<Connection>,
    /// Which etcd it is, once one of them has said so.
    cluster: Option<u64>,
    /// The latest revision that was told.
    revision: Revision,
    /// Versions that may read stale are taken too.
    forced: bool,
    halt: Halt,
}

impl Members {
    /// Its names are looked up within that time.
    pub(super) fn new(address: &Address, within: Duration, halt: Halt) -> Result<Self, ControlError> {
        let (endpoints, forced) = (address.look_up(within)?.into(), address.forced);
        Ok(Self { endpoints, connection: None, cluster: None, revision: 0, forced, halt })
    }

    /// The time a call has.
    pub(super) fn within(&self, ms: u64) -> Until {
        Until::within(ms, &self.halt)
    }

    /// Whether one answers, and is fit.
    pub(super) fn check(&mut self, until: &Until) -> Result<(), ControlError> {
        self.each(Way::Reads, until, |members, until| members.ready(until).map(drop)).map_err(Into::into)
    }

    /// Asks, and takes the answer.
    pub(super) fn ask<T: Answer>(&mut self, way: Way, path: &str, body: &Value, until: &Until) -> Result<T, Trouble> {
        let body = body.to_string().into_bytes();
        let (status, answer) = self.each(way, until, |members, until| members.exchange(path, &body, until))?;
        let told = if status == 200 { serde_json::from_slice::<T>(&answer).ok() } else { None };
        let fault = match &told {
            Some(told) => told.fault().cloned(),
            None if status == 200 => None,
            None => serde_json::from_slice::<Fault>(&answer).ok().filter(|fault| !fault.message.is_empty()),
        };
        match (told, fault) {
            (_, Some(fault)) => Err(self.refused(way, &fault)),
            (Some(told), None) => {
                self.belongs(&told.header()).map_err(Trouble::Control)?;
                Ok(told)
            }
            (None, None) => {
                let text = format!("{} does not answer as etcd does ({status}): check its address", self.first());
                self.turn();
                Err(Trouble::Control(in_doubt(way, text)))
            }
        }
    }

    /// Sends a request whose answer comes line by line, on a connection of its own.
    pub(super) fn stream(&mut self, path: &str, body: &Value, until: &Until) -> Result<Connection, Trouble> {
        let body = body.to_string().into_bytes();
        self.each(Way::Reads, until, |members, until| {
            let status = members.begin(path, &body, until)?;
            let connection = members.connection.take().ok_or_else(|| Lost::Unsent("no connection".into()))?;
            match status {
                200 => Ok(connection),
                status => Err(Lost::Unanswered(format!("it answers {status}"))),
            }
        })
    }

    /// The latest revision, by an answer that must tell it: what reads all members alike, or wrote.
    pub(super) fn latest(&mut self, header: &Header) -> Result<Revision, ControlError> {
        let revision = header.revision.0;
        if !(1..NUMBERS_END).contains(&revision) {
            return Err(self.broken("it tells no revision: check its address"));
        }
        if revision < self.revision {
            let (before, first) = (self.revision, self.first());
            let text = format!(
                "etcd at {first} is at revision {revision}, and was at {before} before: it is an old copy, put back \
                 the latest one"
            );
            self.turn();
            return Err(ControlError::Broken(text));
        }
        self.revision = revision;
        Ok(revision)
    }

    /// The error that a text of an answer stands for.
    pub(super) fn broken(&self, text: &str) -> ControlError {
        ControlError::Broken(format!("etcd at {}: {text}", self.first()))
    }

    fn first(&self) -> String {
        self.endpoints.front().map(|endpoint| endpoint.name.clone()).unwrap_or_default()
    }

    /// The next time another one is asked first.
    fn turn(&mut self) {
        self.connection = None;
        self.endpoints.rotate_left(1);
    }

    /// Tries one after the other until one answers.
    fn each<T>(
        &mut self,
        way: Way,
        until: &Until,
        mut attempt: impl FnMut(&mut Self, &Until) -> Result<T, Lost>,
    ) -> Result<T, Trouble> {
        let (count, mut told, mut unfit) = (self.endpoints.len(), Vec::new(), false);
        for turn in 0..count {
            let is_last = turn + 1 == count || way == Way::Writes;
            let mine = if is_last { until.clone() } else { until.at_most(ETCD_TRY_MS) };
            let lost = match attempt(self, &mine) {
                Ok(answer) => return Ok(answer),
                Err(lost) => lost,
            };
            let first = self.first();
            self.turn();
            match lost {
                Lost::Unsent(text) => told.push(format!("{first}: {text}")),
                Lost::Unanswered(text) if way == Way::Reads => told.push(format!("{first}: {text}")),
                Lost::Unanswered(text) => {
                    return Err(Trouble::Control(ControlError::Unknown(format!("etcd at {first}: {text}"))));
                }
                Lost::Unfit(text) => {
                    unfit = true;
                    told.push(format!("{first}: {text}"));
                }
            }
            if until.is_over() {
                break;
            }
        }
        let text = told.join("; ");
        Err(Trouble::Control(match unfit {
            true => ControlError::Broken(format!("etcd at {text}")),
            false => ControlError::Unreachable(format!("etcd at {text}: see that it runs")),
        }))
    }

    fn exchange(&mut self, path: &str, body: &[u8], until: &Until) -> Result<(u16, Vec<u8>), Lost> {
        let status = self.begin(path, body, until)?;
        let connection = self.connection.as_mut().ok_or_else(|| Lost::Unsent("no connection".into()))?;
        let answer = connection.body(until).map_err(unanswered)?;
        Ok((status, answer))
    }

    /// Sends it, and waits for the answer to begin.
    fn begin(&mut self, path: &str, body: &[u8], until: &Until) -> Result<u16, Lost> {
        let first = self.first();
        let connection = self.ready(until)?;
        connection.send(&first, path, body, until).map_err(unsent)?;
        connection.status(until).map_err(unanswered)
    }

    /// The connection to the first one, made anew where it was lost, once that has said who it is.
    fn ready(&mut self, until: &Until) -> Result<&mut Connection, Lost> {
        if !self.connection.as_ref().is_some_and(Connection::is_ready) {
            self.connection = None;
            let Some(Endpoint { name, addrs }) = self.endpoints.front() else {
                return Err(Lost::Unsent("no endpoint".into()));
            };
            let mut connection = Connection::open(addrs, until).map_err(unsent)?;
            // It reads no disk for that.
            let standing = standing(&mut connection, name, &until.at_most(ETCD_TRY_MS))?;
            self.judge(&standing).map_err(Lost::Unfit)?;
            self.connection = Some(connection);
        }
        self.connection.as_mut().ok_or_else(|| Lost::Unsent("no connection".into()))
    }

    /// Whether a member may be asked; remembers which etcd it is.
    fn judge(&mut self, standing: &Standing) -> Result<(), String> {
        match version::judge(&standing.version) {
            Fitness::Fit => {}
            Fitness::Stale if self.forced => {}
            Fitness::Stale => return Err(version::stale(&plain(&standing.version))),
            Fitness::Unknown => return Err("it tells no version of etcd: check its address".into()),
        }
        self.same(&standing.header).map(|cluster| self.cluster = Some(cluster))
    }

    fn same(&self, header: &Header) -> Result<u64, String> {
        match (header.cluster_id.0, self.cluster) {
            (0, _) => Err("it tells no cluster: check its address".into()),
            (told, Some(cluster)) if told != cluster => {
                Err(format!("it is of cluster {told:x}, and the store is in {cluster:x}: name members of one etcd"))
            }
            (told, _) => Ok(told),
        }
    }

    /// An error if an answer is of another etcd.
    pub(super) fn belongs(&mut self, header: &Header) -> Result<(), ControlError> {
        self.same(header).map(drop).map_err(|text| {
            let error = self.broken(&text);
            self.turn();
            error
        })
    }

    /// What an error of etcd's means.
    fn refused(&mut self, way: Way, fault: &Fault) -> Trouble {
        let text = format!("etcd at {}: {}", self.first(), plain(&fault.message));
        if fault.message.contains("database space exceeded") {
            let text = format!("{text}: compact and defragment it, then disarm its alarm");
            return match way {
                Way::Reads => Trouble::Control(ControlError::Full(text)),
                Way::Writes => Trouble::NoRoom(text),
            };
        }
        match fault.code {
            code::OUT_OF_RANGE => Trouble::Past,
            code::NOT_FOUND => Trouble::NoLease,
            code::INVALID => Trouble::Control(ControlError::Invalid(text)),
            code::DENIED | code::UNPROVED => {
                let todo = "users of etcd are not in this version";
                Trouble::Control(ControlError::Broken(format!("{text}: {todo}")))
            }
            code::EXHAUSTED => Trouble::Control(ControlError::Unreachable(text)),
            code::UNBUILT => Trouble::Control(ControlError::Broken(text)),
            code::CANCELLED | code::UNKNOWN | code::TOO_LATE | code::ABORTED | code::INTERNAL | code::UNAVAILABLE => {
                // It may have no leader: another one may.
                self.turn();
                Trouble::Control(in_doubt(way, text))
            }
            _ => Trouble::Control(in_doubt(way, text)),
        }
    }
}

/// Asks a member who it is.
fn standing(connection: &mut Connection, name: &str, until: &Until) -> Result<Standing, Lost> {
    connection.send(name, "/v3/maintenance/status", b"{}", until).map_err(unsent)?;
    let status = connection.status(until).map_err(unsent)?;
    let answer = connection.body(until).map_err(unsent)?;
    let told = serde_json::from_slice(&answer).ok().filter(|_| status == 200);
    told.ok_or_else(|| Lost::Unsent(format!("it does not answer as etcd does ({status})")))
}

fn unsent(error: io::Error) -> Lost {
    Lost::Unsent(said(&error))
}

fn unanswered(error: io::Error) -> Lost {
    Lost::Unanswered(said(&error))
}

/// Without the number that the system has for it.
fn said(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}

fn in_doubt(way: Way, text: String) -> ControlError {
    match way {
        Way::Reads => ControlError::Unreachable(text),
        Way::Writes => ControlError::Unknown(text),
    }
}
