//! Herd's wire, by the real client's connection: requests side by side, checked bodies, waits and cancels.

use super::{Outbox, Plan, Session};
use crate::history::{OpId, Outcome, Seen, What};
use crate::random::value;
use herd_client::connection::{Body, Connection, Delivery, Event, Patience};
use herd_client::limits::COPIED_BODY_MAX_BYTES;
use herd_client::{Condition, PutOptions, Range, Reply, Request};
use herd_core::ErrorKind;
use herd_core::wire::Status;
use std::collections::BTreeMap;
use std::time::Duration;

const BY: &str = "wire";
/// Nothing is given up by the client itself.
const PATIENCE: Patience = Patience { begin_ms: u32::MAX as u64, first_ms: u32::MAX as u64, then_ms: u32::MAX as u64 };

/// A wait so long that all that a run does is over before it.
const LONG_MS: u64 = 300_000;

struct Asked {
    op: OpId,
    key: usize,
    what: Kind,
    /// The first byte and the length of what was asked for, if that was a part.
    range: Option<Range>,
    asked_ms: u64,
    /// How long it may wait.
    wait_ms: u64,
    reply: Option<Reply>,
    bytes: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Get,
    Stat,
    /// A get that waits for a newer version.
    Wait,
    Put,
    Remove,
}

pub(crate) struct Wire {
    connection: Connection,
    out: Outbox,
    asked: BTreeMap<u64, Asked>,
    /// Values of puts that are sent in frames.
    bodies: BTreeMap<u64, Vec<u8>>,
    /// The version last seen, of whatever object, and of each.
    version: u64,
    versions: BTreeMap<usize, u64>,
}

impl Session for Wire {
    fn ask(&mut self, plan: &mut Plan) {
        let key = plan.key();
        let name = format!("k{key}");
        match plan.random.below(100) {
            0..35 => self.put(plan, key, &name),
            35..60 => {
                let request = Request::get(&name).expect("a valid name");
                self.open(plan, key, &request, What::Get, Kind::Get);
            }
            60..70 => self.get_range(plan, key, &name),
            70..75 => {
                self.open(plan, key, &Request::stat(&name).expect("a valid name"), What::Get, Kind::Stat);
            }
            75..85 if plan.waits => self.wait(plan, key, &name),
            85..90 if !self.asked.is_empty() => self.cancel(plan),
            _ => {
                let request = Request::remove(&name, Condition::None).expect("a valid name");
                self.open(plan, key, &request, What::Remove, Kind::Remove);
            }
        }
    }

    fn output(&mut self) -> &[u8] {
        self.pump();
        self.out.rest()
    }

    fn sent(&mut self, n: usize) {
        self.out.sent(n);
    }

    fn hear(&mut self, plan: &mut Plan, bytes: &[u8]) -> Result<(), String> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let space = self.connection.space();
            let n = space.len().min(rest.len());
            space[..n].copy_from_slice(&rest[..n]);
            rest = &rest[n..];
            self.connection.filled(plan.history.now_ms, n);
            while let Some(event) = self.connection.next_event().map_err(|error| error.to_string())? {
                self.event(plan, event)?;
            }
        }
        Ok(())
    }

    fn pending(&self) -> usize {
        self.asked.len()
    }

    fn expects_end(&self) -> bool {
        false
    }

    fn lost(&mut self, plan: &mut Plan) {
        for asked in std::mem::take(&mut self.asked).into_values() {
            plan.history.end(asked.op, asked.what.unknown(), None);
        }
    }
}

impl Asked {
    /// An error if the answer gives another part than was asked for, or comes too early or too late.
    fn check(&self, plan: &Plan) -> Result<(), String> {
        let reply = self.reply.as_ref().expect("a reply comes before its body");
        let status = Status::from_code(reply.code);
        if let (Some(Range { offset, length }), Some(Status::Ok)) = (self.range, status) {
            let rest = reply.size_bytes.unwrap_or(0).saturating_sub(offset);
            let bytes = length.map_or(rest, |length| length.min(rest));
            if (reply.offset, self.bytes.len() as u64) != (offset, bytes) {
                return Err(format!("{} bytes at {} for {bytes} at {offset}", self.bytes.len(), reply.offset));
            }
        }
        let waited_ms = plan.history.now_ms - self.asked_ms;
        match status {
            Some(Status::Error(ErrorKind::Timeout)) if waited_ms < self.wait_ms => {
                Err(format!("a wait of {} ms is over after {waited_ms}", self.wait_ms))
            }
            Some(Status::Ok | Status::Error(ErrorKind::NotFound))
                if self.wait_ms == LONG_MS
                    && waited_ms >= LONG_MS
                    && plan.history.rests_since_ms(self.key) < self.asked_ms + LONG_MS / 2 =>
            {
                Err("who waits was not told of a change, and found it when the wait was over".into())
            }
            _ => Ok(()),
        }
    }
}

impl Kind {
    /// The outcome where there is no answer.
    fn unknown(self) -> Outcome {
        if matches!(self, Kind::Put | Kind::Remove) { Outcome::Maybe } else { Outcome::NotDone }
    }
}

impl Wire {
    pub(crate) fn new(plan: &Plan) -> Self {
        let connection = Connection::new(plan.history.now_ms);
        let (out, asked, bodies, version, versions) = Default::default();
        Self { connection, out, asked, bodies, version, versions }
    }

    fn get_range(&mut self, plan: &mut Plan, key: usize, name: &str) {
        let offset = plan.random.below(2) * plan.random.size(plan.value_bytes);
        let range = Range { offset, length: Some(1 + plan.random.size(100_000)) };
        let request = Request::get_range(name, range).expect("a valid name");
        self.open(plan, key, &request, What::Get, Kind::Get).range = Some(range);
    }

    /// Waits for a version that is newer than the object's, or than any number.
    fn wait(&mut self, plan: &mut Plan, key: usize, name: &str) {
        // Only where answers are short: a long one may be read so slowly that it seems late.
        let long = plan.value_bytes <= 2_000 && plan.random.chance(50);
        let wait_ms = if long { LONG_MS } else { plan.random.below(5_000) };
        let own = plan.random.chance(50);
        let than = if own { self.versions.get(&key).copied().unwrap_or(0) } else { self.version };
        let request = Request::get_newer(name, than, Duration::from_millis(wait_ms)).expect("a valid name");
        self.open(plan, key, &request, What::Get, Kind::Wait).wait_ms = wait_ms;
    }

    fn open(&mut self, plan: &mut Plan, key: usize, request: &Request<'_>, what: What, kind: Kind) -> &mut Asked {
        let id = self.open_with(plan, key, request, Body::Copied(b""), what, kind);
        self.asked.get_mut(&id).expect("it was just asked")
    }

    fn open_with(
        &mut self,
        plan: &mut Plan,
        key: usize,
        request: &Request<'_>,
        body: Body<'_>,
        what: What,
        kind: Kind,
    ) -> u64 {
        let now_ms = plan.history.now_ms;
        let id = self.connection.open(now_ms, request, body, Delivery::Checked, PATIENCE).expect("it may be asked");
        let op = plan.history.begin(BY, key, what);
        let (reply, bytes, range, wait_ms) = (None, Vec::new(), None, 0);
        self.asked.insert(id, Asked { op, key, what: kind, range, asked_ms: now_ms, wait_ms, reply, bytes });
        id
    }

    fn put(&mut self, plan: &mut Plan, key: usize, name: &str) {
        let ((seed, len), ttl_s) = (plan.value(), plan.ttl_s());
        let (bytes, ttl) = (value(seed, len), ttl_s.map(Duration::from_secs));
        let request = Request::put(name, &bytes, &PutOptions { ttl, ..PutOptions::default() }).expect("a valid name");
        let what = What::Put { seed, len, ttl_ms: ttl_s.map(|s| s * 1000) };
        if len <= COPIED_BODY_MAX_BYTES {
            self.open_with(plan, key, &request, Body::Copied(&bytes), what, Kind::Put);
        } else {
            let length = plan.random.chance(70).then_some(len as u64);
            let id = self.open_with(plan, key, &request, Body::Streamed(length), what, Kind::Put);
            self.bodies.insert(id, bytes);
        }
    }

    /// Gives up any open request.
    fn cancel(&mut self, plan: &mut Plan) {
        let at = plan.random.below(self.asked.len() as u64) as usize;
        let id = *self.asked.keys().nth(at).expect("there are so many");
        self.connection.cancel(id);
        // What is under way of its body still goes out.
        self.pump();
        self.bodies.remove(&id);
        self.asked.remove(&id);
        // A put may be done long after: its end is open.
    }

    /// Takes all that the connection has to send.
    fn pump(&mut self) {
        loop {
            if let Some(wanted) = self.connection.wanted_body() {
                let body = &self.bodies[&wanted.id];
                let from = wanted.position as usize;
                let to = body.len().min(from + wanted.bytes);
                let last = to == body.len();
                self.connection.start_frame(wanted.id, &body[from..to], last).expect("a frame of its body");
            }
            if !self.connection.has_output() {
                return;
            }
            let head = self.connection.output_head().to_vec();
            let mut n = head.len();
            self.out.bytes.extend(head);
            if let Some(part) = self.connection.output_body() {
                let from = part.position as usize;
                self.out.bytes.extend(&self.bodies[&part.id][from..from + part.bytes]);
                n += part.bytes;
            }
            self.connection.sent(0, n);
        }
    }

    fn event(&mut self, plan: &mut Plan, event: Event) -> Result<(), String> {
        match event {
            Event::Welcome(_) => Ok(()),
            Event::Goodbye(text) => Err(format!("the node says goodbye: {text}")),
            Event::Reply { id, reply, ends, .. } => {
                self.asked.get_mut(&id).ok_or("a reply nobody asked for")?.reply = Some(reply);
                if ends { self.over(plan, id) } else { Ok(()) }
            }
            Event::Body { id, ends } => {
                let bytes = self.connection.body().to_vec();
                self.asked.get_mut(&id).ok_or("a body nobody asked for")?.bytes.extend(bytes);
                if ends { self.over(plan, id) } else { Ok(()) }
            }
        }
    }

    fn over(&mut self, plan: &mut Plan, id: u64) -> Result<(), String> {
        let asked = self.asked.remove(&id).expect("looked at above");
        self.bodies.remove(&id);
        asked.check(plan)?;
        let Asked { op, key, what, reply, bytes, .. } = asked;
        let reply = reply.expect("a reply comes before its body");
        let seen = |reply: &Reply| {
            let size = reply.size_bytes.unwrap_or(u64::MAX) as usize;
            if what == Kind::Stat { Seen::Size(size) } else { Seen::Bytes { at: reply.offset as usize, bytes, size } }
        };
        let (outcome, version) = match (what, Status::from_code(reply.code)) {
            (Kind::Put, Some(Status::Ok)) => (Outcome::Done, Some(reply.version)),
            (Kind::Remove, Some(Status::Ok)) => (Outcome::Done, None),
            (_, Some(Status::Ok)) => (Outcome::Got(seen(&reply)), Some(reply.version)),
            (Kind::Get | Kind::Stat | Kind::Wait, Some(Status::Error(ErrorKind::NotFound))) => {
                (Outcome::Got(Seen::Absent), None)
            }
            (Kind::Get, Some(Status::Error(ErrorKind::BadRange))) => (Outcome::NotDone, None),
            (Kind::Wait, Some(Status::Error(ErrorKind::Timeout | ErrorKind::Busy))) => (Outcome::NotDone, None),
            (Kind::Put, Some(Status::Error(ErrorKind::Full | ErrorKind::Busy))) => (Outcome::NotDone, None),
            (Kind::Remove, Some(Status::Error(ErrorKind::NotFound))) => (Outcome::NotDone, None),
            (_, _) => return Err(format!("status {} '{}' to something else", reply.code, reply.text)),
        };
        if let Some(version) = version {
            self.version = version;
            self.versions.insert(key, version);
        }
        plan.history.end(op, outcome, version);
        Ok(())
    }
}
