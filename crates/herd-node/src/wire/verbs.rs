//! The verbs that change no object: get, list, and those on collections.

use super::send::{FirstFields, Outgoing, send_small};
use super::write::{self, answer_done};
use super::{Session, later, refuse, write_frame};
use crate::apply::apply;
use crate::context::{Context, Output, not_found};
use crate::metrics::VerbName;
use crate::request::asked_of;
use crate::watch::Watched;
use herd_core::collection::Wanted;
use herd_core::entry::Token;
use herd_core::key::{CollectionId, name_is_valid};
use herd_core::limits::WAIT_MAX_MS;
use herd_core::op::{Action, Op};
use herd_core::warden::{Ask, Create};
use herd_core::wire::{Became, Between, FLAG_HEAD_ONLY, Fields, Header, Status};
use herd_core::{Error, ErrorKind, quote};
use herd_net::Ticket;
use herd_store::{Collection, Found, Given, Got, Seat, Value};
use std::sync::atomic::Ordering::Relaxed;

/// A get that waits for a newer version.
pub(super) struct Wait {
    request: Header,
    watched: Watched,
    /// What the node asked that has handed it on; empty: nobody has.
    asked: Box<[u8]>,
    /// There was an object when it began.
    was_there: bool,
    until_ms: u64,
}

impl Wait {
    pub(super) fn id(&self) -> u64 {
        self.request.id
    }

    /// Whether it is over, and with what error; if not, it is looked at again when the object expires.
    fn end(&mut self, cx: &Context) -> Option<Result<(), Error>> {
        self.watched.arm();
        let (collection, name) = (self.watched.collection(), self.watched.name());
        if collection.is_destroyed() {
            return Some(Err(no_collection(collection.id())));
        }
        let entry = cx.shared.store.entry(collection, name, cx.now);
        if !cx.shared.gates.may_wait(&entry) {
            // Whoever has it now answers.
            return Some(Ok(()));
        }
        let head = entry.found().map(|found| found.head);
        let is_sure = cx.shared.gates.may_read(&entry);
        drop(entry);
        if head.map(|head| head.version) > self.request.newer_than() {
            return Some(Ok(()));
        }
        if head.is_none() && self.was_there {
            // Without a lease the members are asked first.
            return Some(if is_sure { Err(not_found(collection.name(), name)) } else { Ok(()) });
        }
        let late = cx.now.unix_ms >= self.until_ms;
        let timeout = || Err(Error::new(ErrorKind::Timeout, "no newer version came in time"));
        let end = cx.shared.check_serving().err().map(Err).or_else(|| late.then(timeout));
        if end.is_none() {
            // Also where there is nothing: the time that has just come may have been that of an object that is gone.
            self.watched.set_time(head.map_or(self.until_ms, |head| head.or_expiry_ms(self.until_ms)));
        }
        end
    }
}

/// What a get found, taken out from under the lock.
pub(super) enum Taken {
    /// The reply is written.
    Done,
    /// A body to be sent.
    Large(Box<Outgoing>),
    /// The version is not newer than asked for.
    NotNewer,
}

/// The collection of a request; `default`, which most name, without touching its count of references, which all loops
/// share.
pub(super) enum Place {
    Default,
    Other(Collection),
}

impl Place {
    #[inline]
    pub(super) fn of(cx: &Context, header: &Header, fields: &Fields<'_>) -> Result<Self, Error> {
        match CollectionId(header.collection) {
            CollectionId::DEFAULT => Ok(Place::Default),
            CollectionId::BY_NAME if fields.collection.is_none_or(|name| name == "default") => Ok(Place::Default),
            _ => collection(cx, header, fields).map(Place::Other),
        }
    }

    #[inline]
    pub(super) fn get<'a>(&'a self, cx: &'a Context) -> &'a Collection {
        match self {
            Place::Default => &cx.shared.default,
            Place::Other(collection) => collection,
        }
    }
}

/// The collection a request is about.
pub(super) fn collection(cx: &Context, header: &Header, fields: &Fields<'_>) -> Result<Collection, Error> {
    let id = CollectionId(header.collection);
    if id == CollectionId::DEFAULT {
        return Ok(cx.shared.default.clone());
    }
    if id != CollectionId::BY_NAME {
        return cx.shared.store.collection_by_id(id).ok_or_else(|| no_collection(id));
    }
    let name = fields.collection.unwrap_or("default");
    cx.shared.collection(name)
}

fn no_collection(id: CollectionId) -> Error {
    Error::new(ErrorKind::NoCollection, format!("no collection with id {}", id.0))
}

/// The name a request is about.
pub(super) fn name<'a>(fields: &Fields<'a>) -> Result<&'a [u8], Error> {
    let missing = || Error::new(ErrorKind::BadRequest, "the request names no object (1 to 1,024 bytes)");
    fields.name.filter(|name| name_is_valid(name)).ok_or_else(missing)
}

/// This node, if it is called so, is to end.
fn end(cx: &Context, name: &str, header: &Header, out: &mut Output<'_>) -> Result<(), Error> {
    if name != cx.shared.config.name || cx.shared.member.get().is_none() {
        let text = format!("this is not node '{}' of a herd: ask that one", quote(name.as_bytes()));
        return Err(Error::new(ErrorKind::NotFound, text));
    }
    cx.shared.told_to_end.store(true, Relaxed);
    let mut reply = Header::reply_to(header, Status::Ok);
    reply.collection = CollectionId::BY_NAME.0;
    super::write_frame(reply, &Fields::default(), &[], out);
    Ok(())
}

impl Session {
    #[inline]
    pub(super) fn get(
        &mut self,
        cx: &mut Context,
        header: &Header,
        fields: &Fields<'_>,
        out: &mut Output<'_>,
    ) -> Result<(), Error> {
        let name = name(fields)?;
        if header.code != 0 && header.newer_than().is_none() {
            return Err(Error::new(ErrorKind::BadRequest, "this condition is not one of a get"));
        }
        if header.collection == CollectionId::SYSTEM.0 {
            return get_system(cx, header, name, out);
        }
        let place = Place::of(cx, header, fields)?;
        self.get_from(cx, &place, header, fields, out)
    }

    #[inline]
    pub(super) fn get_from(
        &mut self,
        cx: &mut Context,
        place: &Place,
        header: &Header,
        fields: &Fields<'_>,
        out: &mut Output<'_>,
    ) -> Result<(), Error> {
        let (name, is_handed, conn) = (fields.name.unwrap_or_default(), self.peer.is_some(), out.conn());
        let collection = place.get(cx);
        let mut reply = cx.reply_to(header, Status::Ok);
        reply.collection = collection.id().0;
        cx.durability(collection, name).tell(&mut reply);
        let answer = |found: &Found<'_>| answer_get(cx, header, reply, found, is_handed, out);
        let got = match write::token(fields) {
            None => cx.get(conn, collection, name, answer),
            Some(token) => get_with(cx, collection, name, token, answer)?,
        };
        let taken = match got {
            Got::Hit(taken) => Some(taken?),
            Got::Miss => None,
            Got::Away { .. } => {
                let collection = collection.clone();
                return self.elsewhere(cx, &collection, header, fields, Given::Small(b"", None), 0, out);
            }
        };
        match taken {
            Some(Taken::Done) => Ok(()),
            Some(Taken::Large(mut outgoing)) => {
                self.check_open(cx)?;
                outgoing.hold(&cx.shared.store)?;
                self.begin_send(*outgoing, out);
                Ok(())
            }
            Some(Taken::NotNewer) => self.wait(cx, &place.get(cx).clone(), (header, fields), true, out),
            None if header.newer_than().is_some() => {
                self.wait(cx, &place.get(cx).clone(), (header, fields), false, out)
            }
            None => Err(not_found(collection.name(), name)),
        }
    }

    /// Keeps a get until there is a newer version, where this node decides: also without a lease, as nothing is
    /// answered before it is looked again. `was_there`: it has found an object.
    pub(super) fn wait(
        &mut self,
        cx: &mut Context,
        collection: &Collection,
        (header, fields): (&Header, &Fields<'_>),
        was_there: bool,
        out: &mut Output<'_>,
    ) -> Result<(), Error> {
        let name = fields.name.unwrap_or_default();
        if header.time_ms == 0 {
            return Err(Error::new(ErrorKind::Timeout, "there is no newer version"));
        }
        self.check_open(cx)?;
        cx.shared.check_serving()?;
        let seat = cx.shared.watch.admit(name)?;
        let entry = cx.shared.store.entry(collection, name, cx.now);
        if !cx.shared.gates.may_wait(&entry) {
            drop(entry);
            return self.elsewhere(cx, collection, header, fields, Given::Small(b"", None), 0, out);
        }
        let head = entry.found().map(|found| found.head);
        if head.map(|head| head.version) > header.newer_than() {
            drop(entry);
            let fields = Fields { between: fields.between, ..Fields::named(name) };
            return self.get_from(cx, &Place::Other(collection.clone()), header, &fields, out);
        }
        let (ticket, until_ms) = (out.ticket(), cx.now.unix_ms + u64::from(header.time_ms).min(WAIT_MAX_MS));
        // Where it has just gone that is told soon.
        let gone_ms = if was_there { cx.now.unix_ms } else { until_ms };
        let look_again_ms = head.map_or(gone_ms, |head| head.or_expiry_ms(until_ms));
        let watched = seat.watch(collection, name, cx.waiter(ticket), look_again_ms);
        drop(entry);
        let (asked, was_there) = (asked_of(fields).unwrap_or_default().into(), was_there || head.is_some());
        let wait = Wait { request: *header, watched, asked, was_there, until_ms };
        self.open().waits.insert(ticket.serial, wait);
        Ok(())
    }

    /// A wait of this ticket may be over, or a listing has its turn. False: there is neither any more.
    pub(crate) fn resume(&mut self, cx: &mut Context, ticket: Ticket, out: &mut Output<'_>) -> bool {
        if self.warden_answered(cx, ticket, out) {
            return true;
        }
        if self.conn.is_some()
            && let Some(is_there) = self.landed(cx, ticket, out)
        {
            return is_there;
        }
        let Some(open) = &mut self.open else {
            return false;
        };
        let Some(wait) = open.waits.get_mut(&ticket.serial) else {
            return self.list_on(cx, ticket, out);
        };
        let Some(end) = wait.end(cx) else {
            return true;
        };
        let Wait { mut request, watched, asked, was_there, until_ms } =
            open.waits.remove(&ticket.serial).expect("found above");
        // Who goes on waiting has the time that is left.
        request.time_ms = until_ms.saturating_sub(cx.now.unix_ms).min(request.time_ms.into()) as u32;
        let place = Place::Other(watched.collection().clone());
        let between = (!asked.is_empty()).then_some(Between::Asked(&asked));
        let fields = Fields { between, ..Fields::named(watched.name()) };
        let answered = end.and_then(|()| self.get_from(cx, &place, &request, &fields, out));
        if let Some(conn) = self.conn.filter(|_| was_there) {
            later::was_there(cx, conn, request.id);
        }
        if let Err(error) = answered {
            refuse(cx, VerbName::Get, &request, 0, &error, out);
        }
        true
    }
}

/// A get that shows a token, which the object remembers from then on: both under one lock, or the object might be
/// another by the time it is read.
#[cold]
fn get_with<R>(
    cx: &Context,
    collection: &Collection,
    name: &[u8],
    token: Token,
    answer: impl FnOnce(&Found<'_>) -> R,
) -> Result<Got<R>, Error> {
    let op = Op { token: Some(token), ..Op::new(Action::Read, 0) };
    let got = apply(cx, collection, name, &op, |mut outcome| {
        outcome.done.as_ref().map_err(Error::clone)?;
        let answered = outcome.found().map(|found| answer(&found));
        outcome.count_get(answered.is_some());
        Ok(answered.map_or(Got::Miss, Got::Hit))
    });
    got.unwrap_or(Ok(Got::Away { slot: 0, seat: Seat::Away }))
}

/// Answers with what was found, under its lock; a large body is only taken hold of.
#[inline]
pub(super) fn answer_get(
    cx: &Context,
    request: &Header,
    mut reply: Header,
    found: &Found<'_>,
    is_handed: bool,
    out: &mut Output<'_>,
) -> Result<Taken, Error> {
    let head = &found.head;
    if request.newer_than().is_some_and(|than| head.version <= than) {
        return Ok(Taken::NotNewer);
    }
    let (from, len) = request.range_within(head.size_bytes)?;
    (reply.version, reply.length, reply.offset) = (head.version, head.size_bytes, from);
    let fields = Fields {
        flags: (head.flags != 0).then_some(head.flags),
        expires_ms: (head.expires_ms != 0).then_some(head.expires_ms),
        attributes: (!found.attributes.is_empty()).then_some(found.attributes),
        ..Fields::default()
    };
    let mut became = Vec::new();
    if is_handed {
        Became { clock: cx.clock(), before: Some(*head), after: Some(*head) }.encode(&mut became);
    }
    let fields = Fields { between: is_handed.then_some(Between::Became(&became)), ..fields };
    if !request.has(FLAG_HEAD_ONLY) {
        cx.count_out(VerbName::Get, len);
    }
    match found.value {
        value if request.has(FLAG_HEAD_ONLY) => {
            let checksum = match value {
                Value::Inline(_, check) => check,
                Value::Body(body) => body.checksum(),
            };
            write_frame(reply, &Fields { checksum: Some(checksum), ..fields }, &[], out);
        }
        Value::Inline(bytes, check) => {
            let part = &bytes[from as usize..(from + len) as usize];
            send_small(reply, &fields, part, (part.len() == bytes.len()).then_some(check), out);
        }
        Value::Body(_) if len == 0 => write_frame(reply, &fields, &[], out),
        Value::Body(body) => {
            let first =
                FirstFields { flags: head.flags, expires_ms: head.expires_ms, attributes: found.attributes.into() };
            let outgoing = Outgoing::new(reply, first, body.clone(), from, from + len).telling(&became);
            return Ok(Taken::Large(Box::new(outgoing)));
        }
    }
    Ok(Taken::Done)
}

/// Read-only objects about the node.
fn get_system(cx: &Context, header: &Header, name: &[u8], out: &mut Output<'_>) -> Result<(), Error> {
    cx.was_dear();
    let text = cx
        .shared
        .system_object(name, cx.now)
        .ok_or_else(|| Error::new(ErrorKind::NotFound, "the system collection has: status, collections, metrics"))?;
    let mut reply = cx.reply_to(header, Status::Ok);
    reply.length = text.len() as u64;
    if text.len() > herd_core::limits::WIRE_FRAME_BODY_MAX_BYTES {
        return Err(Error::new(ErrorKind::TooLarge, "the answer is over 1 MiB: use HTTP"));
    }
    let body = if header.has(FLAG_HEAD_ONLY) { &[][..] } else { text.as_bytes() };
    write_frame(reply, &Fields::default(), body, out);
    Ok(())
}

impl Session {
    pub(super) fn create(
        &mut self,
        cx: &mut Context,
        header: &Header,
        fields: &Fields<'_>,
        out: &mut Output<'_>,
    ) -> Result<(), Error> {
        let bad = |text: String| Error::new(ErrorKind::BadRequest, text);
        let name = fields.collection.ok_or_else(|| bad("the request names no collection".into()))?;
        let json = fields.spec.ok_or_else(|| bad("the request has no specification".into()))?;
        // The library's message quotes the client's own words, of any length and with control characters.
        let wrong = |error: serde_json::Error| bad(format!("specification: {}", error.to_string().escape_debug()));
        let wanted: Wanted = serde_json::from_str(json).map_err(wrong)?;
        if cx.shared.member.get().is_some() {
            return self.ask_warden(cx, header, Ask::Create(Create::of(name.into(), &wanted)), out);
        }
        cx.shared.check_alone_with_all()?;
        if wanted.copies.is_some_and(|copies| copies != 1) || wanted.spread.is_some() {
            return Err(bad("this node is in no herd, and keeps one copy".into()));
        }
        let collection = cx.shared.store.create(name, wanted.spec())?;
        answer_done(cx, (&collection, b""), header, Ok(0), out);
        Ok(())
    }

    /// What is asked of the herd about a node, by its name, or about its control store.
    pub(super) fn of_herd(
        &mut self,
        cx: &mut Context,
        header: &Header,
        fields: &Fields<'_>,
        body: &[u8],
        out: &mut Output<'_>,
    ) -> Result<(), Error> {
        if fields.method == Some("control") {
            let bad = |_| Error::new(ErrorKind::BadRequest, "what is asked of the control store can't be read");
            return self.ask_warden(cx, header, Ask::Control(serde_json::from_slice(body).map_err(bad)?), out);
        }
        let name = String::from_utf8_lossy(name(fields)?).into_owned();
        let ask = match fields.method {
            Some("drain") => Ask::Drain { name, stays: false },
            Some("stay") => Ask::Drain { name, stays: true },
            Some("give_up") => {
                let bad = |_| Error::new(ErrorKind::BadRequest, "what is given up can't be read");
                Ask::GiveUp(serde_json::from_str(&name).map_err(bad)?)
            }
            Some("move") => {
                let bad = |_| Error::new(ErrorKind::BadRequest, "which group is moved can't be read");
                Ask::MoveGroup(serde_json::from_str(&name).map_err(bad)?)
            }
            Some("end") => return end(cx, &name, header, out),
            _ => {
                return Err(Error::new(
                    ErrorKind::NotInVersion,
                    "the system collection has: drain, stay, give_up, move, end, control",
                ));
            }
        };
        self.ask_warden(cx, header, ask, out)
    }

    pub(super) fn destroy(
        &mut self,
        cx: &mut Context,
        header: &Header,
        fields: &Fields<'_>,
        out: &mut Output<'_>,
    ) -> Result<(), Error> {
        let collection = collection(cx, header, fields)?;
        if collection.id() == CollectionId::DEFAULT {
            return Err(Error::new(ErrorKind::NotAllowed, "collection 'default' can't be removed"));
        }
        if cx.shared.member.get().is_some() {
            return self.ask_warden(cx, header, Ask::Destroy { name: collection.name().into() }, out);
        }
        cx.shared.check_alone(&collection)?;
        cx.shared.store.destroy(&collection);
        cx.emptied(collection.id());
        answer_done(cx, (&collection, b""), header, Ok(0), out);
        Ok(())
    }
}
