//! A client of the node: what it has to send, what it has asked for, and what it has heard.

use super::model::{Class, Model, Seen};
use super::{http, memcached, wire};
use crate::Outcomes;
use std::collections::VecDeque;

/// Which protocol a client speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Door {
    Memcached,
    Http,
    Wire,
}

/// A request that was asked for, and what its answer is to be.
pub(super) struct Asked<K> {
    pub(super) kind: K,
    /// Its keys, with the numbers of its reads or writes.
    pub(super) parts: Vec<(usize, u64)>,
    /// Whether those are writes.
    pub(super) writes: bool,
    /// Where it ends in all that the client has to send.
    pub(super) end: u64,
}

/// What a client has asked for, by its door.
pub(super) enum Talk {
    Memcached(VecDeque<Asked<memcached::Kind>>),
    Http(VecDeque<Asked<http::Kind>>),
    Wire(wire::Talk),
}

/// A client.
pub(super) struct Client {
    /// Number of its connection.
    pub(super) number: usize,
    pub(super) door: Door,
    pub(super) talk: Talk,
    /// What is to be sent, and how much was sent before.
    pub(super) outgoing: VecDeque<u8>,
    pub(super) sent: u64,
    /// What was read and is not understood yet.
    pub(super) got: Vec<u8>,
    /// Less than so much of it need not be looked at again: a long answer that comes in small pieces is read from its
    /// start each time.
    enough_bytes: usize,
    /// It reads nothing by itself.
    pub(super) deaf: bool,
    /// It sent bytes that may mean anything.
    pub(super) wild: bool,
    /// They were the first it sent, so they chose its door.
    pub(super) strange: bool,
    /// Those bytes.
    pub(super) raw: Vec<u8>,
    /// It tore its connection down.
    pub(super) torn: bool,
    /// It sends no more.
    pub(super) ended: bool,
    /// An answer said that the connection closes.
    pub(super) told_end: bool,
    /// Connections that were given up before this one was made.
    pub(super) shed_before: u64,
}

/// What a request's answer is held against.
pub(super) struct Judge<'a> {
    pub(super) model: &'a mut Model,
    pub(super) outcomes: &'a mut Outcomes,
    pub(super) may_be_full: bool,
}

impl Judge<'_> {
    /// The answer to a write.
    pub(super) fn written(&mut self, part: (usize, u64), class: Class, version: Option<u64>, cas: Option<u64>) {
        assert!(class != Class::Full || self.may_be_full, "full, and hardly any memory is taken");
        self.model.written(part.0, part.1, class, version, cas);
        self.outcomes.add(match class {
            Class::Done => "done",
            Class::Refused => "refused",
            Class::Absent => "absent",
            Class::Full => "full",
            Class::TooLarge => "too large",
            Class::NoNumber => "no number",
        });
    }

    /// A read found nothing.
    pub(super) fn missed(&mut self, part: (usize, u64)) {
        self.model.missed(part.0, part.1);
        self.outcomes.add("miss");
        if self.model.at.may_vanish {
            self.outcomes.add("miss after evictions");
        }
    }

    /// A read found something.
    pub(super) fn found(&mut self, part: (usize, u64), seen: &Seen<'_>) {
        self.model.found(part.0, part.1, seen);
        self.outcomes.add(match seen.size_bytes {
            0 => "found empty",
            1..=4_096 => "found beside its key",
            4_097..=65_536 => "found in a block",
            _ => "found in blocks",
        });
    }
}

impl Client {
    pub(super) fn new(number: usize, door: Door, shed_before: u64) -> Self {
        let talk = match door {
            Door::Memcached => Talk::Memcached(VecDeque::new()),
            Door::Http => Talk::Http(VecDeque::new()),
            Door::Wire => Talk::Wire(wire::Talk::default()),
        };
        Self {
            number,
            door,
            talk,
            outgoing: VecDeque::new(),
            sent: 0,
            got: Vec::new(),
            enough_bytes: 0,
            deaf: false,
            wild: false,
            strange: false,
            raw: Vec::new(),
            torn: false,
            ended: false,
            told_end: false,
            shed_before,
        }
    }

    /// Where what is queued now ends in all that it has to send.
    pub(super) fn end(&self) -> u64 {
        self.sent + self.outgoing.len() as u64
    }

    /// Requests that are not answered.
    pub(super) fn open(&self) -> usize {
        match &self.talk {
            Talk::Memcached(asked) => asked.len(),
            Talk::Http(asked) => asked.len(),
            Talk::Wire(talk) => talk.open(),
        }
    }

    /// Whether an answer is owed to something that was wholly sent.
    pub(super) fn is_owed(&self) -> bool {
        match &self.talk {
            Talk::Memcached(asked) => asked.iter().any(|asked| asked.end <= self.sent && !asked.kind.is_silent()),
            Talk::Http(asked) => asked.iter().any(|asked| asked.end <= self.sent),
            Talk::Wire(talk) => talk.is_owed(self.sent),
        }
    }

    /// Understands what was read.
    pub(super) fn hear(&mut self, judge: &mut Judge<'_>) {
        if self.strange {
            return self.got.clear();
        }
        if self.got.len() < self.enough_bytes {
            return;
        }
        let mut used = 0;
        while !self.told_end || self.door == Door::Wire {
            let rest = &self.got[used..];
            let step = match &mut self.talk {
                Talk::Memcached(asked) => memcached::hear(asked, rest, judge, self.wild),
                Talk::Http(asked) => http::hear(asked, rest, judge, &mut self.told_end),
                Talk::Wire(talk) => talk.hear(rest, judge, self.wild, &mut self.told_end),
            };
            match step {
                Some(n) if n > 0 => used += n,
                _ => break,
            }
        }
        let all = self.wild && self.open() == 0 && self.door != Door::Wire;
        self.got.drain(..if all { self.got.len() } else { used });
        assert!(all || self.open() > 0 || self.got.is_empty() || self.door == Door::Wire, "more than was asked for");
        self.enough_bytes = self.got.len() + self.got.len() / 8;
    }

    /// As `hear`, of all there is: nothing more is to come for now.
    pub(super) fn hear_out(&mut self, judge: &mut Judge<'_>) {
        if self.enough_bytes > self.got.len() {
            self.enough_bytes = 0;
            self.hear(judge);
        }
    }

    /// Gives up all that was asked for and not answered.
    pub(super) fn forget(&mut self, model: &mut Model) {
        let parts: Vec<(bool, Vec<(usize, u64)>)> = match &mut self.talk {
            Talk::Memcached(asked) => asked.drain(..).map(|asked| (asked.writes, asked.parts)).collect(),
            Talk::Http(asked) => asked.drain(..).map(|asked| (asked.writes, asked.parts)).collect(),
            Talk::Wire(talk) => talk.forget(),
        };
        for (writes, parts) in parts {
            parts.into_iter().for_each(|(key, id)| if writes { model.lost(key, id) } else { model.forget(key, id) });
        }
    }
}
