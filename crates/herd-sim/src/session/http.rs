//! HTTP/1.1: replies in order, pipelined.

use super::{Outbox, Plan, Session, line, number};
use crate::history::{OpId, Outcome, Seen, What};
use crate::random::value;
use std::collections::VecDeque;

const BY: &str = "http";

enum Asked {
    /// A get from a byte on.
    Get {
        op: OpId,
        head_only: bool,
        waits: bool,
        /// The first byte and the number of bytes of a part.
        part: Option<(usize, usize)>,
    },
    Put(OpId),
    Delete(OpId),
    Health,
}

#[derive(Default)]
pub(crate) struct Http {
    out: Outbox,
    input: Vec<u8>,
    asked: VecDeque<Asked>,
    closes: bool,
    /// The version last seen, of whatever object.
    version: u64,
}

/// A reply's head.
struct Head {
    status: u64,
    length: usize,
    version: Option<u64>,
    /// First byte and size of the whole, of a part.
    part: Option<(usize, usize)>,
    bytes: usize,
}

impl Session for Http {
    fn ask(&mut self, plan: &mut Plan) {
        let key = plan.key();
        match plan.random.below(100) {
            0..40 => self.put(plan, key),
            40..85 => self.get(plan, key),
            85..95 => {
                self.request("DELETE", &format!("/o/default/k{key}"), "");
                self.asked.push_back(Asked::Delete(plan.history.begin(BY, key, What::Remove)));
            }
            _ => {
                self.closes = plan.random.chance(10);
                self.request("GET", "/healthz", if self.closes { "Connection: close\r\n" } else { "" });
                self.asked.push_back(Asked::Health);
            }
        }
    }

    fn output(&mut self) -> &[u8] {
        self.out.rest()
    }

    fn sent(&mut self, n: usize) {
        self.out.sent(n);
    }

    fn hear(&mut self, plan: &mut Plan, bytes: &[u8]) -> Result<(), String> {
        self.input.extend_from_slice(bytes);
        while let Some(used) = self.answer(plan)? {
            self.input.drain(..used);
        }
        Ok(())
    }

    fn pending(&self) -> usize {
        self.asked.len()
    }

    fn expects_end(&self) -> bool {
        self.closes
    }

    fn lost(&mut self, plan: &mut Plan) {
        for asked in self.asked.drain(..) {
            match asked {
                Asked::Get { op, .. } => plan.history.end(op, Outcome::NotDone, None),
                Asked::Put(op) | Asked::Delete(op) => plan.history.end(op, Outcome::Maybe, None),
                Asked::Health => {}
            }
        }
    }
}

impl Http {
    fn request(&mut self, method: &str, path: &str, fields: &str) {
        self.out.bytes.extend(format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n").bytes());
    }

    fn put(&mut self, plan: &mut Plan, key: usize) {
        let ((seed, len), path) = (plan.value(), format!("/o/default/k{key}"));
        let bytes = value(seed, len);
        if plan.random.chance(25) {
            self.request("PUT", &path, "Transfer-Encoding: chunked\r\n");
            for chunk in bytes.chunks(1 + plan.random.size(100_000) as usize * 7) {
                self.out.bytes.extend(format!("{:x}\r\n", chunk.len()).bytes());
                self.out.bytes.extend(chunk);
                self.out.bytes.extend(b"\r\n");
            }
            self.out.bytes.extend(b"0\r\n\r\n");
        } else {
            self.request("PUT", &path, &format!("Content-Length: {len}\r\n"));
            self.out.bytes.extend(bytes);
        }
        self.asked.push_back(Asked::Put(plan.history.begin(BY, key, What::Put { seed, len, ttl_ms: None })));
    }

    fn get(&mut self, plan: &mut Plan, key: usize) {
        let (head_only, waits) = (plan.random.chance(10), plan.waits && plan.random.chance(15));
        let (mut fields, mut part) = (String::new(), None);
        if waits && self.version > 0 {
            let wait_s = 1 + plan.random.below(3);
            fields = format!("If-None-Match: \"{}\"\r\nPrefer: wait={wait_s}\r\n", self.version);
        } else if plan.random.chance(20) {
            let (from, more) = (plan.random.size(plan.value_bytes), plan.random.size(100_000));
            fields = format!("Range: bytes={from}-{}\r\n", from + more);
            part = (!head_only).then_some((from as usize, more as usize + 1));
        }
        self.request(if head_only { "HEAD" } else { "GET" }, &format!("/o/default/k{key}"), &fields);
        let op = plan.history.begin(BY, key, What::Get);
        self.asked.push_back(Asked::Get { op, head_only, waits, part });
    }

    /// Takes one answer; how long it was.
    fn answer(&mut self, plan: &mut Plan) -> Result<Option<usize>, String> {
        let Some(head) = head(&self.input)? else {
            return Ok(None);
        };
        let asked = self.asked.front().ok_or_else(|| format!("nobody asked for status {}", head.status))?;
        let has_body = !matches!(asked, Asked::Get { head_only: true, .. }) && !matches!(head.status, 204 | 304);
        let whole = head.bytes + if has_body { head.length } else { 0 };
        if self.input.len() < whole {
            return Ok(None);
        }
        let asked = self.asked.pop_front().expect("looked at above");
        self.version = head.version.unwrap_or(self.version);
        match (asked, head.status) {
            (Asked::Get { op, head_only, part, .. }, 200 | 206) => {
                let (at, size) = head.part.unwrap_or((0, head.length));
                let bytes = self.input[head.bytes..whole].to_vec();
                if let Some((from, most)) = part
                    && (at, bytes.len()) != (from, most.min(size.saturating_sub(from)))
                {
                    return Err(format!("{} bytes at {at} of {size} for {most} at {from}", bytes.len()));
                }
                let seen = if head_only { Seen::Size(size) } else { Seen::Bytes { at, bytes, size } };
                plan.history.end(op, Outcome::Got(seen), head.version);
            }
            (Asked::Get { op, .. }, 404) => plan.history.end(op, Outcome::Got(Seen::Absent), None),
            (Asked::Get { op, .. }, 416) => plan.history.end(op, Outcome::NotDone, None),
            (Asked::Get { op, waits: true, .. }, 304 | 503) => plan.history.end(op, Outcome::NotDone, head.version),
            (Asked::Put(op), 201 | 204) => plan.history.end(op, Outcome::Done, head.version),
            (Asked::Put(op), 507) => {
                plan.history.end(op, Outcome::NotDone, None);
                self.closes |= true; // its body is perhaps not read
            }
            (Asked::Put(op), 503) => plan.history.end(op, Outcome::NotDone, None),
            (Asked::Delete(op), 204) => plan.history.end(op, Outcome::Done, None),
            (Asked::Delete(op), 404) => plan.history.end(op, Outcome::NotDone, None),
            (Asked::Health, 200) => {}
            (_, status) => return Err(format!("status {status} to something else")),
        }
        Ok(Some(whole))
    }
}

fn head(input: &[u8]) -> Result<Option<Head>, String> {
    let mut head = Head { status: 0, length: 0, version: None, part: None, bytes: 0 };
    while let Some((field, len)) = line(&input[head.bytes..]) {
        head.bytes += len;
        if field.is_empty() {
            return if head.status > 0 { Ok(Some(head)) } else { Err("a head without a status".into()) };
        }
        let text = String::from_utf8_lossy(field).to_ascii_lowercase();
        if let Some(status) = text.strip_prefix("http/1.1 ") {
            head.status = number(&status.as_bytes()[..3]).ok_or("an odd status")?;
        } else if let Some(length) = text.strip_prefix("content-length: ") {
            head.length = number(length.as_bytes()).ok_or("an odd length")? as usize;
        } else if let Some(tag) = text.strip_prefix("etag: ") {
            head.version = number(tag.trim_matches('"').as_bytes());
        } else if let Some(range) = text.strip_prefix("content-range: bytes ") {
            let (part, size) = range.split_once('/').ok_or("an odd range")?;
            let from = part.split('-').next().and_then(|from| number(from.as_bytes()));
            head.part = from.zip(number(size.as_bytes())).map(|(from, size)| (from as usize, size as usize));
        }
    }
    Ok(None)
}
