//! memcached's text protocol: replies in order, values in line.

use super::{Outbox, Plan, Session, line, number};
use crate::history::{OpId, Outcome, Seen, What};
use crate::random::value;
use std::collections::VecDeque;

const BY: &str = "memcached";

enum Asked {
    /// The keys that were not given yet.
    Get(VecDeque<(usize, OpId)>),
    Set(OpId),
    Delete(OpId),
    Touch(OpId),
    Flush(Vec<OpId>),
    Version,
    Quit,
    /// Without an answer: over when a later one is answered.
    Quiet(OpId),
}

#[derive(Default)]
pub(crate) struct Memcached {
    out: Outbox,
    input: Vec<u8>,
    asked: VecDeque<Asked>,
    quits: bool,
}

impl Session for Memcached {
    fn ask(&mut self, plan: &mut Plan) {
        let key = plan.key();
        match plan.random.below(100) {
            0..40 => self.set(plan, key),
            40..80 => {
                let keys: Vec<usize> = (0..1 + plan.random.size(40)).map(|_| plan.key()).collect();
                let names: Vec<String> = keys.iter().map(|key| format!("k{key}")).collect();
                self.out.bytes.extend(format!("get {}\r\n", names.join(" ")).bytes());
                let begin = |key| (key, plan.history.begin(BY, key, What::Get));
                self.asked.push_back(Asked::Get(keys.into_iter().map(begin).collect()));
            }
            80..88 => {
                self.out.bytes.extend(format!("delete k{key}\r\n").bytes());
                self.asked.push_back(Asked::Delete(plan.history.begin(BY, key, What::Remove)));
            }
            88..94 if plan.expires => {
                let ttl_s = 1 + plan.random.below(5);
                self.out.bytes.extend(format!("touch k{key} {ttl_s}\r\n").bytes());
                let what = What::Touch { ttl_ms: ttl_s * 1000 };
                self.asked.push_back(Asked::Touch(plan.history.begin(BY, key, what)));
            }
            94..96 if plan.flushes => {
                self.out.bytes.extend(b"flush_all\r\n");
                let all = (0..plan.keys as usize).map(|key| plan.history.begin(BY, key, What::Remove)).collect();
                self.asked.push_back(Asked::Flush(all));
            }
            96 if plan.random.chance(20) && !self.quits => {
                self.out.bytes.extend(b"quit\r\n");
                self.quits = true;
                self.asked.push_back(Asked::Quit);
            }
            _ => {
                self.out.bytes.extend(b"version\r\n");
                self.asked.push_back(Asked::Version);
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
        loop {
            let quiet = |asked: &Asked| matches!(asked, Asked::Quiet(_));
            let quiets = self.asked.iter().take_while(|asked| quiet(asked)).count();
            let Some(used) = self.answer(plan, quiets)? else {
                return Ok(());
            };
            self.input.drain(..used);
        }
    }

    fn pending(&self) -> usize {
        self.asked.iter().filter(|asked| !matches!(asked, Asked::Quiet(_) | Asked::Quit)).count()
    }

    fn expects_end(&self) -> bool {
        self.quits
    }

    fn lost(&mut self, plan: &mut Plan) {
        for asked in self.asked.drain(..) {
            match asked {
                Asked::Get(keys) => keys.into_iter().for_each(|(_, op)| plan.history.end(op, Outcome::NotDone, None)),
                Asked::Set(op) | Asked::Delete(op) | Asked::Touch(op) | Asked::Quiet(op) => {
                    plan.history.end(op, Outcome::Maybe, None);
                }
                Asked::Flush(ops) => ops.into_iter().for_each(|op| plan.history.end(op, Outcome::Maybe, None)),
                Asked::Version | Asked::Quit => {}
            }
        }
    }
}

impl Memcached {
    fn set(&mut self, plan: &mut Plan, key: usize) {
        let ((seed, len), ttl_s, quiet) = (plan.value(), plan.ttl_s(), plan.random.chance(10));
        let noreply = if quiet { " noreply" } else { "" };
        self.out.bytes.extend(format!("set k{key} 0 {} {len}{noreply}\r\n", ttl_s.unwrap_or(0)).bytes());
        self.out.bytes.extend(value(seed, len));
        self.out.bytes.extend(b"\r\n");
        let op = plan.history.begin(BY, key, What::Put { seed, len, ttl_ms: ttl_s.map(|s| s * 1000) });
        self.asked.push_back(if quiet { Asked::Quiet(op) } else { Asked::Set(op) });
    }

    /// Takes one answer, or one value of a get, to what was asked behind `quiets` without one; how long it was.
    fn answer(&mut self, plan: &mut Plan, quiets: usize) -> Result<Option<usize>, String> {
        let Some((said, len)) = line(&self.input) else {
            return Ok(None);
        };
        let text = String::from_utf8_lossy(said).into_owned();
        let Some(asked) = self.asked.get_mut(quiets) else {
            return Err(format!("nobody asked for '{text}'"));
        };
        let used = match asked {
            Asked::Get(keys) if said.starts_with(b"VALUE ") => {
                return value_of(plan, keys, said, &self.input[len..]).map(|body| body.map(|body| len + body));
            }
            Asked::Get(keys) if said == b"END" => {
                keys.drain(..).for_each(|(_, op)| plan.history.end(op, Outcome::Got(Seen::Absent), None));
                len
            }
            Asked::Set(op) => {
                match &text[..] {
                    "STORED" => plan.history.end(*op, Outcome::Done, None),
                    _ if text.starts_with("SERVER_ERROR") => {
                        plan.history.became(*op, What::Remove);
                        plan.history.end(*op, Outcome::Maybe, None);
                    }
                    _ => return Err(format!("'{text}' to a set")),
                }
                len
            }
            Asked::Delete(op) => {
                let outcome = match &text[..] {
                    "DELETED" => Outcome::Done,
                    "NOT_FOUND" => Outcome::NotDone,
                    _ => return Err(format!("'{text}' to a delete")),
                };
                plan.history.end(*op, outcome, None);
                len
            }
            Asked::Touch(op) => {
                let outcome = match &text[..] {
                    "TOUCHED" => Outcome::Done,
                    "NOT_FOUND" => Outcome::NotDone,
                    _ if text.starts_with("SERVER_ERROR") => Outcome::NotDone,
                    _ => return Err(format!("'{text}' to a touch")),
                };
                plan.history.end(*op, outcome, None);
                len
            }
            Asked::Flush(ops) if said == b"OK" => {
                ops.drain(..).for_each(|op| plan.history.end(op, Outcome::Done, None));
                len
            }
            Asked::Version if said.starts_with(b"VERSION ") => len,
            _ => return Err(format!("an answer to something else: '{text}'")),
        };
        for asked in self.asked.drain(..=quiets) {
            if let Asked::Quiet(op) = asked {
                plan.history.end(op, Outcome::Maybe, None);
            }
        }
        Ok(Some(used))
    }
}

/// Takes one value of a get from the bytes behind its line; how many they were, if they are there.
fn value_of(
    plan: &mut Plan,
    keys: &mut VecDeque<(usize, OpId)>,
    said: &[u8],
    rest: &[u8],
) -> Result<Option<usize>, String> {
    let mut words = said.split(|byte| *byte == b' ').skip(1);
    let key = words.next().and_then(|name| number(name.strip_prefix(b"k")?));
    let size = words.nth(1).and_then(number).ok_or("an odd value line")? as usize;
    if rest.len() < size + 2 {
        return Ok(None);
    }
    if &rest[size..size + 2] != b"\r\n" {
        return Err("no end of line behind a value".into());
    }
    let at = keys.iter().position(|(asked, _)| Some(*asked as u64) == key).ok_or("a key nobody asked for")?;
    for (_, op) in keys.drain(..at) {
        plan.history.end(op, Outcome::Got(Seen::Absent), None);
    }
    let (_, op) = keys.pop_front().expect("found above");
    plan.history.end(op, Outcome::Got(Seen::Bytes { at: 0, bytes: rest[..size].to_vec(), size }), None);
    Ok(Some(size + 2))
}
