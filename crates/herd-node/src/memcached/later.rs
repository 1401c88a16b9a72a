//! Commands on items of other nodes: what is handed on, what is kept of it, and the replies once the answers are there.
//!
//! A command's line is kept and parsed again. Keys of one line are asked for together, and answered in one piece: an
//! error at one of them ends the answer to the line.

use super::herd::{self, Gathered};
use super::lines::answer_error;
use super::text::{self, Given};
use super::{Session, State, meta, write_value};
use crate::context::{Context, Output};
use crate::flight::{Handing, How, Landed, Later as Kept, Plain, Taken};
use crate::metrics::VerbName;
use herd_core::door::memcached::{self as proto, Command, Get, GetHow, KeyStep, KeyStream, Store, StoreVerb, reply};
use herd_core::limits::{FLIGHT_KEYS_MAX, FLIGHT_MS};
use herd_core::method::memcached::Method;
use herd_core::op::{Action, Op};
use herd_core::{Error, ErrorKind};
use herd_net::{Next, Step, Ticket};
use herd_store::Body;
use std::sync::Arc;

/// What is kept of a command that was handed on.
pub(crate) enum Later {
    /// Its line.
    Line(Box<[u8]>),
    /// That it is a plain `set`; whether it wants no answer.
    Set(bool),
    /// Keys of a line; whether its end follows them.
    Keys(GetHow, Vec<Box<[u8]>>, bool),
    /// What all other nodes are asked for.
    Gathered(Gathered),
    /// The value of a command did not end where it should; whether that is to be told.
    BadChunk(bool),
    /// Nothing: nobody asked for it.
    Unasked,
}

/// The verb of a command as counted, and whether it wants no errors.
fn kind(command: &Command<'_>) -> (VerbName, bool) {
    match command {
        Command::Store(store) => (VerbName::Put, store.quiet),
        Command::MetaSet { .. } => (VerbName::Put, false),
        Command::Delete { quiet, .. } => (VerbName::Remove, *quiet),
        Command::Arith { quiet, .. } => (VerbName::Arithmetic, *quiet),
        Command::Touch { quiet, .. } => (VerbName::Touch, *quiet),
        Command::MetaDelete(_) => (VerbName::Remove, false),
        Command::MetaArith { .. } => (VerbName::Arithmetic, false),
        Command::MetaDebug(_) => (VerbName::Admin, false),
        _ => (VerbName::Get, false),
    }
}

/// A command on an item, to be handed on. Error: `BadRequest`, where it is about none.
pub(super) fn handing(cx: &mut Context, command: &Command<'_>, given: Given<'_>) -> Result<Handing, Error> {
    let mut buffer = Vec::new();
    let plain = How::default();
    let (key, op, how): (&[u8], Op<'_, Arc<Body>>, How) = match command {
        Command::Store(store) => (store.key, text::store_op(cx, store, given), plain),
        Command::MetaSet { meta, mode, .. } => (meta.key(&mut buffer), meta::set_op(cx, meta, *mode, given), plain),
        Command::Delete { key, .. } => (key, Op::new(Action::Remove, 0), plain),
        Command::Arith { key, delta, decrement, .. } => {
            (key, text::method(cx, Method::Arith { delta: *delta, decrement: *decrement }), plain)
        }
        Command::Touch { key, exptime, .. } => (key, text::method(cx, Method::Touch { exptime: *exptime }), plain),
        Command::MetaGet(meta) => {
            let how = How { with_value: meta.has(b'v'), ..plain };
            (meta.key(&mut buffer), text::method(cx, Method::Get(meta)), how)
        }
        Command::MetaDelete(meta) => (meta.key(&mut buffer), text::method(cx, Method::Delete(meta)), plain),
        Command::MetaArith { meta, decrement } => {
            (meta.key(&mut buffer), text::method(cx, Method::MetaArith { meta, decrement: *decrement }), plain)
        }
        Command::MetaDebug(meta) => (meta.key(&mut buffer), Op::new(Action::Read, 0), How { uncounted: true, ..plain }),
        _ => return Err(Error::new(ErrorKind::BadRequest, "this is about no item")),
    };
    let default = cx.shared.default.clone();
    cx.check_reachable(&default, key)?;
    Handing::of_op(cx, &default, key, &op, how)
}

/// A key of a `get` or a `gat`, to be handed on.
fn handing_of_key(cx: &mut Context, key: &[u8], how: GetHow) -> Result<Handing, Error> {
    let op = match how.touch {
        None => Op::new(Action::Read, 0),
        Some(exptime) => text::method(cx, Method::Touch { exptime }),
    };
    let default = cx.shared.default.clone();
    Handing::of_op(cx, &default, key, &op, How { with_value: true, uncounted: false })
}

impl Session {
    /// Hands a command on whose item another node has.
    #[cold]
    pub(super) fn hand_on(
        &mut self,
        cx: &mut Context,
        command: &Command<'_>,
        line: &[u8],
        given: Given<'_>,
        out: &mut Output<'_>,
    ) {
        if let Command::Store(store @ Store { verb: StoreVerb::Set, .. }) = command {
            let op = text::store_op(cx, store, given.clone());
            let collection = &cx.shared.default.clone();
            let plain =
                Plain { collection, name: store.key, op: &op, own: None, is_ordered: true, limit_ms: FLIGHT_MS };
            if let Some(ticket) = cx.put_at_once(out, &plain, || Kept::Memcached(Later::Set(store.quiet))) {
                self.conn = Some(ticket.conn);
                return;
            }
        }
        let later = Kept::Memcached(Later::Line(line.into()));
        let begun =
            handing(cx, command, given).and_then(|handing| cx.hand_on(out, true, later, vec![handing], FLIGHT_MS));
        match begun {
            Ok(ticket) => self.conn = Some(ticket.conn),
            Err(error) => {
                let (verb, quiet) = kind(command);
                answer_error(cx, verb, &error, quiet, out);
            }
        }
    }

    /// What is there of an item goes, at another node; nobody is told.
    #[cold]
    pub(super) fn remove_elsewhere(
        &mut self,
        cx: &mut Context,
        key: &[u8],
        op: &Op<'_, Arc<Body>>,
        out: &mut Output<'_>,
    ) {
        let (default, later) = (cx.shared.default.clone(), Kept::Memcached(Later::Unasked));
        let handing = Handing::of_op(cx, &default, key, op, How::default());
        let begun = handing.and_then(|handing| cx.hand_on(out, true, later, vec![handing], FLIGHT_MS));
        if let Ok(ticket) = begun {
            self.conn = Some(ticket.conn);
        }
    }

    /// The rest of a whole line of keys, from one on that another node has.
    #[cold]
    pub(super) fn hand_on_line(
        &mut self,
        cx: &mut Context,
        line: &[u8],
        len: usize,
        first: &[u8],
        mut get: Get<'_>,
        out: &mut Output<'_>,
    ) -> Step {
        let mut keys = vec![first.into()];
        while keys.len() < FLIGHT_KEYS_MAX
            && let Some(key) = get.keys.next()
        {
            cx.count(VerbName::Get);
            keys.push(key.into());
        }
        let rest_bytes = get.keys.rest_bytes();
        if !self.ask_keys(cx, get.how, keys, rest_bytes == 0, out) || rest_bytes == 0 {
            return Step { used: len, next: Next::Read };
        }
        self.go_on_later(get.how, line.len() - rest_bytes)
    }

    /// As [`Session::hand_on_line`], of a line that is still arriving; gives how many bytes of `rest` it took.
    #[cold]
    pub(super) fn keys_elsewhere(
        &mut self,
        cx: &mut Context,
        first: &[u8],
        rest: &[u8],
        out: &mut Output<'_>,
    ) -> usize {
        let State::Keys(stream) = &mut self.state else { unreachable!("called inside a line of keys") };
        let (how, mut keys, mut taken, mut ends) = (stream.how(), vec![first.into()], 0, false);
        while keys.len() < FLIGHT_KEYS_MAX && !ends {
            let mut ahead: KeyStream = **stream;
            let used = match ahead.step(&rest[taken..]) {
                KeyStep::Key { key, used } => {
                    cx.count(VerbName::Get);
                    keys.push(key.into());
                    used
                }
                KeyStep::End { used, .. } => {
                    ends = true;
                    used
                }
                KeyStep::More { .. } | KeyStep::Refused { .. } => break,
            };
            (**stream, taken) = (ahead, taken + used);
        }
        if ends {
            self.state = State::Lines;
        }
        if !self.ask_keys(cx, how, keys, ends, out) && !ends {
            self.state = State::SwallowLine;
        }
        taken
    }

    /// Asks for keys of a line; false: an error was answered.
    fn ask_keys(
        &mut self,
        cx: &mut Context,
        how: GetHow,
        keys: Vec<Box<[u8]>>,
        ends: bool,
        out: &mut Output<'_>,
    ) -> bool {
        let handings = keys.iter().map(|key| handing_of_key(cx, key, how)).collect::<Result<Vec<_>, _>>();
        let later = Kept::Memcached(Later::Keys(how, keys, ends));
        match handings.and_then(|handings| cx.hand_on(out, true, later, handings, FLIGHT_MS)) {
            Ok(ticket) => {
                self.conn = Some(ticket.conn);
                self.keys_out = (!ends).then_some(ticket);
                true
            }
            Err(error) => {
                answer_error(cx, VerbName::Get, &error, false, out);
                false
            }
        }
    }

    /// Writes the reply of this ticket, if its answers are there. False: there is none.
    pub(crate) fn resume(&mut self, cx: &mut Context, ticket: Ticket, out: &mut Output<'_>) -> bool {
        let (later, landed) = match cx.take_flight(ticket) {
            Taken::Landed(Kept::Memcached(later), landed) => (later, landed),
            Taken::Put(Kept::Memcached(Later::Set(quiet)), _) => {
                out.pass();
                super::admin::say(reply::STORED, quiet, out);
                return true;
            }
            Taken::Put(..) => return false,
            Taken::None | Taken::Open | Taken::Passing | Taken::Landed(..) => return false,
        };
        out.pass();
        match later {
            Later::Unasked => {}
            Later::Set(quiet) => {
                let set = Store { verb: StoreVerb::Set, key: b"", flags: 0, exptime: 0, bytes: 0, cas: 0, quiet };
                if let Some(landed) = landed.first() {
                    answer(cx, &Command::Store(set), landed, out);
                }
            }
            Later::Gathered(what) => herd::answer(cx, what, &landed, out),
            Later::BadChunk(quiet) => super::admin::say(reply::BAD_CHUNK, quiet, out),
            Later::Line(line) => {
                self.answered(ticket);
                if let (Ok(command), Some(landed)) = (proto::parse_line(&line), landed.first()) {
                    answer(cx, &command, landed, out);
                }
            }
            Later::Keys(how, keys, ends) => {
                let is_answered = answer_keys(cx, how, &keys, &landed, out);
                if is_answered && ends {
                    out.buf.extend_from_slice(reply::END);
                }
                if self.keys_out == Some(ticket) {
                    self.keys_out = None;
                    if !is_answered && matches!(self.state, State::Keys(_)) {
                        self.state = State::SwallowLine;
                    }
                }
            }
        }
        true
    }
}

/// The values that are there; false: an error was answered.
fn answer_keys(cx: &Context, how: GetHow, keys: &[Box<[u8]>], landed: &[Landed], out: &mut Output<'_>) -> bool {
    for (key, landed) in keys.iter().zip(landed) {
        match (&landed.done, landed.found()) {
            (Ok(_), Some(found)) => write_value(cx, key, &found, how.with_cas, out),
            (Ok(_), None) => {}
            (Err(error), _) if error.kind == ErrorKind::NotFound => {}
            (Err(error), _) => {
                answer_error(cx, VerbName::Get, error, false, out);
                return false;
            }
        }
    }
    true
}

/// The reply to a command, by what became of its item.
fn answer(cx: &Context, command: &Command<'_>, landed: &Landed, out: &mut Output<'_>) {
    let outcome = landed.outcome();
    let (done, before) = (outcome.done.clone(), outcome.before);
    match command {
        Command::Store(store) => text::answer_store(cx, store, done.map(drop), before, out),
        Command::MetaSet { meta, mode, bytes, .. } => {
            meta::answer_set(cx, meta, *mode, u64::from(*bytes), done, out);
        }
        Command::Delete { quiet, .. } => text::answer_delete(cx, done, *quiet, out),
        Command::Arith { quiet, .. } => text::answer_arith(cx, done, *quiet, out),
        Command::Touch { quiet, .. } => text::answer_touch(cx, done, *quiet, out),
        Command::MetaGet(meta) => meta::answer_got(cx, meta, outcome, out),
        Command::MetaDelete(meta) => meta::answer_delete(cx, meta, done, out),
        Command::MetaArith { meta, .. } => meta::answer_arith(cx, meta, done, before, landed.clock, out),
        Command::MetaDebug(meta) => match done {
            Err(error) if error.kind != ErrorKind::NotFound => answer_error(cx, VerbName::Admin, &error, false, out),
            _ => meta::answer_debug(meta, landed.found().map(|found| found.head), landed.clock, out),
        },
        _ => {}
    }
}
