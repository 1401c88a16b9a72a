//! A request that one node hands on to another (PROTOCOL.md §1.12): the frame it would be from a client, and who asks.
//! The reply tells what a door must know to write its own as if the object were here. Pure.
//!
//! What a client said on Herd's wire is handed on as it came, with [`Asked`] added; what it said to another door is an
//! [`Op`] there, and [`encode_op`] makes the frame. Either way [`Handed::op`] makes the same operation of it, at the
//! node that has the object. Times are told as what is left of them, since clocks differ; a reply tells the clock that
//! its times are by.
//!
//! Callers: doors that hand on, and link sessions that serve it.

use super::Own;
use super::WireError;
use super::bytes::Reader;
use super::fields::{ASKED, BECAME, Between, Fields};
use super::header::{FLAG_RANGE, Header, Verb};
use crate::change::{Given, Large};
use crate::door::memcached::{Clock, Meta, SetMode};
use crate::entry::{Condition, Found, Head, Memcached, TOKEN_BYTES, Token, Value};
use crate::limits::FORWARD_HOPS_MAX;
use crate::method::{Method, memcached};
use crate::op::{Action, Op, Put};
use crate::replica::window::RequestId;
use crate::{Error, ErrorKind};

// What a memcached command does, where verb and head do not say it.
const NO_COMMAND: u8 = 0;
const APPEND: u8 = 1;
const PREPEND: u8 = 2;
const TOUCH: u8 = 3;
const INCR: u8 = 4;
const DECR: u8 = 5;
const META_GET: u8 = 6;
const META_SET: u8 = 7;
const META_DELETE: u8 = 8;
const META_INCR: u8 = 9;
const META_DECR: u8 = 10;

const SET_MODES: [SetMode; 5] = [SetMode::Set, SetMode::Add, SetMode::Append, SetMode::Prepend, SetMode::Replace];

// Bits of who asks.
const AT_PRIMARY: u8 = 1;
const ELSE_REMOVE: u8 = 2;
const UNCOUNTED: u8 = 4;
const FIRST: u8 = 8;
const AGAIN: u8 = 16;

/// Who asks, of a request that is handed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    /// The request, the same however often and wherever it is asked.
    pub id: RequestId,
    /// The epoch of the asker's map before anybody may have done it; 0: nobody may have.
    pub first_epoch: u32,
    /// Largest value it may make, bytes.
    pub max_bytes: u64,
    /// To be read at the primary: the asker has changes under way, which it must see.
    pub at_primary: bool,
    /// See [`Op::else_remove`].
    pub else_remove: bool,
    /// The read is not counted, nor noted as a use.
    pub uncounted: bool,
    /// It has a first epoch, as it is looked for whatever is known of it; but its client asks for the first time.
    pub is_first: bool,
    /// Of that: a node has asked it before all the same.
    pub is_again: bool,
}

/// Where the first epoch stands in the bytes of who asks.
const FIRST_EPOCH: std::ops::Range<usize> = 16..20;

/// Where its bits do.
const BITS: usize = 28;

impl Asked {
    /// Has the bytes of who asks say that it may have been done, by nobody before that epoch.
    pub fn ask_again(bytes: &mut [u8], first_epoch: u32) {
        if let Some(epoch) = bytes.get_mut(FIRST_EPOCH) {
            epoch.copy_from_slice(&first_epoch.to_le_bytes());
        }
        if let Some(bits) = bytes.get_mut(BITS).filter(|bits| **bits & FIRST != 0) {
            *bits |= AGAIN;
        }
    }

    /// Whether it may have been done before it is asked now.
    pub fn may_be_done(&self) -> bool {
        self.first_epoch != 0 && (!self.is_first || self.is_again)
    }

    /// Of a request that nobody has asked yet, which may make a value of so many bytes.
    pub fn new(id: RequestId, max_bytes: u64) -> Self {
        let (at_primary, else_remove, uncounted) = <_>::default();
        let (first_epoch, is_first, is_again) = <_>::default();
        Self { id, first_epoch, max_bytes, at_primary, else_remove, uncounted, is_first, is_again }
    }

    /// Of a request that its client has given an id of its own, which may make a value of so many bytes.
    pub fn of_own(own: &Own, max_bytes: u64) -> Self {
        let (first_epoch, is_first) = (own.epoch.max(1), !own.may_be_done);
        Self { first_epoch, is_first, ..Self::new(own.id, max_bytes) }
    }

    /// Appends its bytes ([`Between::Asked`]), for a frame that is handed on as it came.
    pub fn encode(&self, out: &mut Vec<u8>) {
        self.put(out);
        out.push(NO_COMMAND);
    }

    fn put(&self, out: &mut Vec<u8>) {
        let bit = |is_set, bit| if is_set { bit } else { 0 };
        let bits = bit(self.at_primary, AT_PRIMARY)
            | bit(self.else_remove, ELSE_REMOVE)
            | bit(self.uncounted, UNCOUNTED)
            | bit(self.is_first, FIRST)
            | bit(self.is_again, AGAIN);
        out.extend_from_slice(&self.id.client.to_le_bytes());
        out.extend_from_slice(&self.id.sequence.to_le_bytes());
        out.extend_from_slice(&self.first_epoch.to_le_bytes());
        out.extend_from_slice(&self.max_bytes.to_le_bytes());
        out.push(bits);
    }
}

/// A request to hand on, but for its body, which is [`value_of`] the operation; `scratch` holds what the fields borrow.
/// `now_ms` is the time by which the operation expires. In the header the caller then sets id, collection, epoch, hops
/// and the time that is left. `None`: it is a method of the wire, whose frame goes on as it came.
pub fn encode_op<'a, B: Large>(
    op: &Op<'a, B>,
    name: &'a [u8],
    asked: &Asked,
    now_ms: u64,
    scratch: &'a mut Vec<u8>,
) -> Option<(Header, Fields<'a>)> {
    scratch.clear();
    scratch.extend_from_slice(&op.token.map_or([0; TOKEN_BYTES], Token::to_bytes));
    Asked { max_bytes: op.max_bytes, else_remove: op.else_remove, ..*asked }.put(scratch);
    let mut fields = Fields::named(name);
    let verb = match &op.action {
        Action::Read => Verb::Get,
        Action::Put(_) => Verb::Put,
        Action::Remove => Verb::Remove,
        Action::Execute(_) => Verb::Execute,
    };
    let mut header = Header { length: value_of(op).map_or(0, Given::len), ..Header::request(verb, 0) };
    header.set_condition(op.condition);
    match &op.action {
        Action::Execute(method) => put_command(scratch, method)?,
        _ => scratch.push(NO_COMMAND),
    }
    if let Action::Put(put) = &op.action {
        (fields.flags, fields.attributes) = (put.flags, put.attributes);
        fields.ttl_ms = put.expires_ms.filter(|at_ms| *at_ms != 0).map(|at_ms| at_ms.saturating_sub(now_ms));
        (header.offset, header.flags) = put.from.map_or((0, 0), |from| (from, FLAG_RANGE));
    }
    let (token, said) = scratch.split_first_chunk()?;
    (fields.token, fields.between) = (op.token.map(|_| token), Some(Between::Asked(said)));
    Some((header, fields))
}

/// The value that comes with an operation: the body of its request.
pub fn value_of<'o, 'a, B>(op: &'o Op<'a, B>) -> Option<&'o Given<'a, B>> {
    match &op.action {
        Action::Put(put) => Some(&put.value),
        Action::Execute(Method::Join { value, .. } | Method::Memcached(memcached::Method::Set { value, .. })) => {
            Some(value)
        }
        _ => None,
    }
}

/// Appends what a memcached command does; `None`: the method is one of the wire.
fn put_command<B>(out: &mut Vec<u8>, method: &Method<'_, B>) -> Option<()> {
    match method {
        Method::Join { behind, create: false, .. } => out.push(if *behind { APPEND } else { PREPEND }),
        Method::Memcached(method) => put_memcached(out, method),
        _ => return None,
    }
    Some(())
}

fn put_memcached<B>(out: &mut Vec<u8>, method: &memcached::Method<'_, B>) {
    let meta = match method {
        memcached::Method::Touch { exptime } => {
            out.push(TOUCH);
            return out.extend_from_slice(&exptime.to_le_bytes());
        }
        memcached::Method::Arith { delta, decrement } => {
            out.push(if *decrement { DECR } else { INCR });
            return out.extend_from_slice(&delta.to_le_bytes());
        }
        memcached::Method::Set { meta, mode, .. } => {
            let mode = SET_MODES.iter().position(|it| it == mode).unwrap_or_default();
            out.extend_from_slice(&[META_SET, mode as u8]);
            meta
        }
        memcached::Method::Get(meta) => {
            out.push(META_GET);
            meta
        }
        memcached::Method::Delete(meta) => {
            out.push(META_DELETE);
            meta
        }
        memcached::Method::MetaArith { meta, decrement } => {
            out.push(if *decrement { META_DECR } else { META_INCR });
            meta
        }
    };
    let (key, words) = meta.sent();
    for part in [key, words] {
        // A command's line is far below 64 KiB.
        out.extend_from_slice(&(part.len() as u16).to_le_bytes());
        out.extend_from_slice(part);
    }
}

/// A request that was handed on, and that its operation borrows from.
#[derive(Debug)]
pub struct Handed<'a> {
    /// Who asks.
    pub asked: Asked,
    command: Command<'a>,
}

#[derive(Debug)]
enum Command<'a> {
    None,
    Join { behind: bool },
    Touch { exptime: i64 },
    Arith { delta: u64, decrement: bool },
    Get(Meta<'a>),
    Set(Meta<'a>, SetMode),
    Delete(Meta<'a>),
    MetaArith { meta: Meta<'a>, decrement: bool },
}

impl<'a> Handed<'a> {
    /// Of a request's fields; `None`: it was not handed on. Errors: `BadField`; also where it has come too far.
    pub fn decode(header: &Header, fields: &Fields<'a>) -> Result<Option<Self>, WireError> {
        let Some(Between::Asked(bytes)) = fields.between else { return Ok(None) };
        let handed = Self::read(&mut Reader(bytes)).filter(|_| header.hops <= FORWARD_HOPS_MAX);
        handed.map(Some).ok_or(WireError::BadField(ASKED))
    }

    fn read(rest: &mut Reader<'a>) -> Option<Self> {
        let id = RequestId { client: rest.u64()?, sequence: rest.u64()? };
        let (first_epoch, max_bytes, bits) = (rest.u32()?, rest.u64()?, rest.u8()?);
        let has = |bit| bits & bit != 0;
        let (at_primary, else_remove, uncounted) = (has(AT_PRIMARY), has(ELSE_REMOVE), has(UNCOUNTED));
        let (is_first, is_again) = (has(FIRST), has(AGAIN));
        let asked = Asked { id, first_epoch, max_bytes, at_primary, else_remove, uncounted, is_first, is_again };
        Some(Self { asked, command: command(rest)? })
    }

    /// The operation; `value` is what came as the request's body: a value, or the arguments of a method, in one piece
    /// of any length. Errors: `BadRequest`, and what [`Method::parse`] says.
    pub fn op<'s, B>(
        &'s self,
        header: &Header,
        fields: &Fields<'s>,
        value: Given<'s, B>,
        now_ms: u64,
    ) -> Result<Op<'s, B>, Error> {
        let action = match header.verb() {
            Some(Verb::Get) => Action::Read,
            Some(Verb::Remove) => Action::Remove,
            Some(Verb::Put) => Action::Put(Put {
                from: header.has(FLAG_RANGE).then_some(header.offset),
                flags: fields.flags,
                expires_ms: fields.ttl_ms.map(|left_ms| now_ms.saturating_add(left_ms).max(1)),
                attributes: fields.attributes,
                ..Put::of(value)
            }),
            Some(Verb::Execute) => Action::Execute(self.method(fields, value)?),
            _ => return Err(bad("no verb that is handed on")),
        };
        let condition = match header.newer_than() {
            Some(_) => Condition::None,
            None => header.condition().ok_or_else(|| bad("no such condition"))?,
        };
        let token = fields.token.and_then(|token| Token::from_bytes(token));
        let Asked { max_bytes, else_remove, .. } = self.asked;
        Ok(Op { action, condition, token, max_bytes, else_remove })
    }

    fn method<'s, B>(&'s self, fields: &Fields<'s>, value: Given<'s, B>) -> Result<Method<'s, B>, Error> {
        let method = match &self.command {
            Command::None => {
                let name = fields.method.ok_or_else(|| bad("the request names no method"))?;
                let Given::Small(arguments, _) = value else { return Err(bad("the arguments are too long")) };
                return Method::parse(name, arguments);
            }
            Command::Join { behind } => return Ok(Method::Join { value, behind: *behind, create: false }),
            Command::Touch { exptime } => memcached::Method::Touch { exptime: *exptime },
            Command::Arith { delta, decrement } => memcached::Method::Arith { delta: *delta, decrement: *decrement },
            Command::Get(meta) => memcached::Method::Get(meta),
            Command::Set(meta, mode) => memcached::Method::Set { meta, mode: *mode, value },
            Command::Delete(meta) => memcached::Method::Delete(meta),
            Command::MetaArith { meta, decrement } => memcached::Method::MetaArith { meta, decrement: *decrement },
        };
        Ok(Method::Memcached(method))
    }
}

#[cold]
fn bad(text: &str) -> Error {
    Error::new(ErrorKind::BadRequest, text)
}

fn command<'a>(rest: &mut Reader<'a>) -> Option<Command<'a>> {
    Some(match rest.u8()? {
        NO_COMMAND => Command::None,
        kind @ (APPEND | PREPEND) => Command::Join { behind: kind == APPEND },
        TOUCH => Command::Touch { exptime: i64::from_le_bytes(rest.fixed()?) },
        kind @ (INCR | DECR) => Command::Arith { delta: rest.u64()?, decrement: kind == DECR },
        META_GET => Command::Get(meta(rest)?),
        META_SET => {
            let mode = SET_MODES.get(usize::from(rest.u8()?)).copied()?;
            Command::Set(meta(rest)?, mode)
        }
        META_DELETE => Command::Delete(meta(rest)?),
        kind @ (META_INCR | META_DECR) => Command::MetaArith { meta: meta(rest)?, decrement: kind == META_DECR },
        _ => return None,
    })
}

fn meta<'a>(rest: &mut Reader<'a>) -> Option<Meta<'a>> {
    let mut part = || {
        let length = rest.u16()?;
        rest.bytes(length.into())
    };
    Meta::of_sent(part()?, part()?)
}

/// What became of the object of a request that was handed on. Heads are as at the node that has the object, by its
/// clocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Became {
    /// Its clocks when it answered.
    pub clock: Clock,
    /// The object before, if there was one.
    pub before: Option<Head>,
    /// The object as it is now, if there is one.
    pub after: Option<Head>,
}

impl Became {
    /// Appends its bytes ([`Between::Became`]), for the reply; attributes and value have their own places there.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.clock.now_ms.to_le_bytes());
        out.extend_from_slice(&self.clock.node_s.to_le_bytes());
        out.push(u8::from(self.before.is_some()) | u8::from(self.after.is_some()) << 1);
        self.before.iter().chain(&self.after).for_each(|head| put_head(out, head));
    }

    /// Of a reply's fields; `None`: it says nothing of the object.
    pub fn decode(fields: &Fields<'_>) -> Result<Option<Self>, WireError> {
        let Some(Between::Became(bytes)) = fields.between else { return Ok(None) };
        let read = |rest: &mut Reader<'_>| {
            let clock = Clock { now_ms: rest.u64()?, node_s: rest.u32()? };
            let bits = rest.u8()?;
            let mut head_if = |bit| if bits & bit != 0 { head(rest).map(Some) } else { Some(None) };
            Some(Self { clock, before: head_if(1)?, after: head_if(2)? })
        };
        read(&mut Reader(bytes)).map(Some).ok_or(WireError::BadField(BECAME))
    }

    /// Whether the request made the object.
    pub fn created(&self) -> bool {
        self.before.is_none() && self.after.is_some()
    }

    /// The object as it is now, with attributes and value of the reply, as a door that has found it here is given it.
    pub fn found<'b, B>(&self, attributes: &'b [u8], value: Value<'b, B>) -> Option<Found<'b, B>> {
        self.after.map(|head| Found { head, attributes, fence: None, value })
    }
}

fn put_head(out: &mut Vec<u8>, head: &Head) {
    for number in [head.version, head.size_bytes, head.expires_ms, head.memcached.cas] {
        out.extend_from_slice(&number.to_le_bytes());
    }
    for number in [head.flags, head.access_s] {
        out.extend_from_slice(&number.to_le_bytes());
    }
    let Memcached { stale, token_sent, .. } = head.memcached;
    out.push(u8::from(head.fetched) | u8::from(stale) << 1 | u8::from(token_sent) << 2);
}

fn head(rest: &mut Reader<'_>) -> Option<Head> {
    let (version, size_bytes, expires_ms, cas) = (rest.u64()?, rest.u64()?, rest.u64()?, rest.u64()?);
    let (flags, access_s, bits) = (rest.u32()?, rest.u32()?, rest.u8()?);
    let memcached = Memcached { cas, stale: bits & 2 != 0, token_sent: bits & 4 != 0 };
    Some(Head { version, size_bytes, flags, expires_ms, access_s, fetched: bits & 1 != 0, memcached })
}

#[cfg(test)]
mod tests;
