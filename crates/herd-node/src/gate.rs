//! Before the herd holds its first object: whoever brings one waits here until the warden has given leave.
//!
//! Groups are planned anew with each node that joins, as long as there is no object to be moved. So the first one must
//! not be acknowledged before all nodes go by the last of these plans (`herd_core::warden`, `Ask::Hold`). A connection
//! that may change something is put off as a whole, with what it has said, and served again when the map says that the
//! herd holds objects. That happens once in the life of a herd, unless all that it holds is lost; from then on one word
//! of the loop is looked at for each batch of what connections say. What is under way when all is lost, and what a node
//! with an earlier map hands on, waits among the flights: whoever decides on it looks once more
//! (`Gates::holds_nothing`).
//!
//! What may change something is told by its first bytes, and in doubt it does: to ask too early costs nothing but that
//! nodes which join later hold nothing yet.
//!
//! Caller: the loop's service.

use crate::context::{Context, Output};
use crate::doors::Session;
use crate::member::Slot;
use herd_core::limits::{HOLD_AGAIN_MS, HOLD_PATIENCE_MS};
use herd_core::warden::Ask;
use herd_core::wire::{Kind, Verb, parse_header};
use herd_core::{Error, ErrorKind};
use herd_net::{Next, Step, Ticket};

/// Commands of memcached that change no object, or only all at once.
const READS: [&[u8]; 13] = [
    b"get",
    b"gets",
    b"mg",
    b"mn",
    b"me",
    b"version",
    b"stats",
    b"verbosity",
    b"quit",
    b"flush_all",
    b"debugtime",
    b"delete",
    b"md",
];

/// Those of a loop that wait.
#[derive(Default)]
pub(crate) struct Gate {
    waiting: Vec<Ticket>,
    /// What the warden says, once it was asked.
    slot: Option<Slot>,
    until_ms: u64,
    /// Those that are served again, until they are; and since when.
    opened: (Vec<Ticket>, u64),
    /// Why leave was not given, and until when nobody asks again.
    refused: Option<(Error, u64)>,
}

/// Whether these bytes may bring an object.
pub(crate) fn may_change(session: &Session, input: &[u8]) -> bool {
    match session {
        Session::Memcached(_) => {
            input.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).any(brings_by_memcached)
        }
        Session::Http(_) => brings_by_http(input),
        Session::Wire(_) => brings_by_wire(input),
        Session::New | Session::Link(_) => false,
    }
}

fn brings_by_memcached(line: &[u8]) -> bool {
    let mut words = line.split(|byte| b" \r".contains(byte));
    let command = words.next().unwrap_or_default();
    // A meta get makes the object that it misses, if it is told how long that lives.
    !READS.contains(&command) || command == b"mg" && words.any(|word| word.starts_with(b"N"))
}

fn brings_by_http(input: &[u8]) -> bool {
    let mut rest = input;
    while !rest.is_empty() {
        if ![&b"GET "[..], b"HEAD "].iter().any(|method| rest.starts_with(method)) {
            return true;
        }
        let end = rest.windows(4).position(|end| end == b"\r\n\r\n");
        rest = end.map_or(&[], |end| &rest[end + 4..]);
    }
    false
}

fn brings_by_wire(input: &[u8]) -> bool {
    let mut rest = input;
    // What can't be read is refused by its door, and what is not wholly there is looked at again.
    while let Ok(Some(header)) = parse_header(rest) {
        let verb = if header.kind == Kind::Request { header.verb() } else { None };
        if matches!(verb, Some(Verb::Put | Verb::Execute)) {
            return true;
        }
        let bytes = header.frame_bytes();
        if bytes == 0 || bytes >= rest.len() {
            return false;
        }
        rest = &rest[bytes..];
    }
    false
}

impl Context {
    /// Puts a connection off until the herd may hold objects. Error: that was refused just now.
    #[cold]
    pub(crate) fn put_off(&mut self, out: &mut Output<'_>) -> Result<Step, Error> {
        let now_ms = self.now_ms();
        if let Some((error, until_ms)) = &self.gate.refused {
            if now_ms < *until_ms {
                return Err(error.clone());
            }
            self.gate.refused = None;
        }
        self.shared.check_serving()?;
        let busy = || Error::new(ErrorKind::Busy, "too many requests of this connection are under way");
        let ticket = out.defer().ok_or_else(busy)?;
        if self.gate.waiting.is_empty() {
            (self.gate.until_ms, self.gate.slot) = (now_ms + HOLD_PATIENCE_MS, None);
            self.ask_to_hold();
        }
        self.gate.waiting.push(ticket);
        Ok(Step { used: 0, next: Next::Again })
    }

    /// Asks for leave, if that is not under way. Whoever drives a node that has nobody to ask does so in its place.
    pub(crate) fn ask_to_hold(&mut self) {
        if self.gate.waiting.is_empty() {
            // Nobody else looks at what came of the last time.
            self.note_refusal();
        }
        if self.gate.slot.is_some() || self.shared.member.get().is_none() {
            return;
        }
        match self.ask_warden(Ask::Hold, None) {
            Ok(slot) => self.gate.slot = Some(slot),
            Err(error) => self.gate.refused = Some((error, self.now_ms())),
        }
    }

    /// Notes that leave was refused, if so.
    fn note_refusal(&mut self) -> Option<ErrorKind> {
        let said = self.gate.slot.as_ref().and_then(Slot::take)?;
        self.gate.slot = None;
        let error = said.err()?;
        let kind = error.kind;
        self.gate.refused = Some((error, self.now_ms()));
        Some(kind)
    }

    /// Why what brings an object gets no leave.
    pub(crate) fn why_not_held(&self) -> Error {
        let late = || Error::new(ErrorKind::Unreachable, "not all nodes have the herd's map: see that they run");
        self.gate.refused.as_ref().map_or_else(late, |(error, _)| error.clone())
    }

    /// Gives the connections that are to be served again.
    #[inline]
    pub(crate) fn look_at_gate(&mut self, tickets: &mut Vec<Ticket>) {
        if !self.gate.waiting.is_empty() {
            self.look_at_waiting(tickets);
        }
    }

    #[cold]
    fn look_at_waiting(&mut self, tickets: &mut Vec<Ticket>) {
        let now_ms = self.now_ms();
        if self.note_refusal() == Some(ErrorKind::Unreachable) {
            // Who can't be reached now is not waited for: whoever said so has tried.
            self.gate.until_ms = now_ms;
        }
        let is_late = now_ms >= self.gate.until_ms;
        if !self.held && !is_late {
            return;
        }
        if !self.held {
            self.gate.refused = Some((self.why_not_held(), now_ms + HOLD_AGAIN_MS));
        }
        self.gate.slot = None;
        tickets.extend(&self.gate.waiting);
        self.gate.opened.0.append(&mut self.gate.waiting);
        self.gate.opened.1 = now_ms;
    }

    /// Asks again where that failed; forgets connections that are gone.
    pub(crate) fn tick_gate(&mut self) {
        if !self.gate.waiting.is_empty() && !self.held {
            self.ask_to_hold();
        }
        if self.now_ms() > self.gate.opened.1 + HOLD_PATIENCE_MS {
            self.gate.opened.0 = Vec::new();
        }
    }

    /// Whether this is a connection that is to be served again.
    #[inline]
    pub(crate) fn passes_gate(&mut self, ticket: Ticket) -> bool {
        let opened = &mut self.gate.opened.0;
        if opened.is_empty() {
            return false;
        }
        let at = opened.iter().position(|one| *one == ticket);
        at.map(|at| opened.swap_remove(at)).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use herd_core::wire::{Fields, Header, encode_frame};

    #[test]
    fn in_doubt_something_is_changed() {
        let memcached = Session::Memcached(Default::default());
        for (input, changes) in [
            (&b"get a\r\nmg b v\r\n"[..], false),
            (b"version\r\n", false),
            (b"set a 0 0 1\r\n", true),
            (b"get a\r\nset a 0 0 1\r\nx\r\n", true),
            (b"touch a 1\r\n", true),
            (b"get a\r\nmg b v N30\r\n", true),
            (b"se", true),
        ] {
            assert_eq!(may_change(&memcached, input), changes, "{}", input.escape_ascii());
        }
        let http = Session::Http(Default::default());
        for (input, changes) in [
            (&b"GET /status HTTP/1.1\r\n\r\n"[..], false),
            (b"GET /status HT", false),
            (b"PUT /o/a/b HTTP/1.1\r\n", true),
            (b"GET / HTTP/1.1\r\n\r\nPUT /o/a/b HTTP/1.1\r\n", true),
        ] {
            assert_eq!(may_change(&http, input), changes, "{}", input.escape_ascii());
        }
        let wire = Session::Wire(Default::default());
        let mut out = Vec::new();
        for (verb, changes) in [(Verb::Get, false), (Verb::List, false), (Verb::Create, false), (Verb::Put, true)] {
            encode_frame(&mut out, Header::request(verb, 7), &Fields::named(b"a"), b"").expect("fits");
            assert_eq!(may_change(&wire, &out), changes);
            assert!(!may_change(&wire, &out[..8]), "too little to tell");
        }
    }
}
