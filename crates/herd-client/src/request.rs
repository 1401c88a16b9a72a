//! What a client can ask, as values: a [`Request`] knows its header and head, and nothing of connections.

use crate::error::{Error, Result};
use crate::limits::LIST_PAGE;
use herd_core::attributes::Attributes;
use herd_core::collection::Wanted;
use herd_core::entry::{Condition, Range, TOKEN_BYTES, Token, Version};
use herd_core::key::{self, CollectionId};
use herd_core::limits::WIRE_ARGUMENTS_MAX_BYTES;
use herd_core::method::{self, push_item};
use herd_core::warden::ControlAsk;
use herd_core::wire::{
    Between, CODE_NEWER, FLAG_BRIEF, FLAG_HEAD_ONLY, FLAG_RANGE, Fields, Header, LENGTH_UNKNOWN, OFFSET_LAST,
    OWN_BYTES, Own, Verb,
};
use serde::Serialize;
use std::borrow::Cow;
use std::fmt::{self, Write};
use std::time::Duration;

/// What a put gives an object besides its value.
#[derive(Clone, Debug, Default)]
pub struct PutOptions {
    /// What must hold for the put to be done.
    pub condition: Condition,
    /// Time to live; `None`: for ever (of a ranged put: as it is).
    pub ttl: Option<Duration>,
    /// Opaque flags, as memcached clients see them.
    pub flags: Option<u32>,
    /// Content type, mode, times and pairs; at most 4 KiB encoded.
    pub attributes: Option<Attributes>,
}

/// One request. Values are borrowed until it is sent.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    pub(crate) verb: Verb,
    collection: Place<'a>,
    name: &'a [u8],
    condition: Condition,
    newer_than: Option<(Version, u64)>,
    pub(crate) range: Option<Range>,
    pub(crate) head_only: bool,
    value: Option<&'a [u8]>,
    method: Option<&'a str>,
    /// Arguments of the method, encoded.
    arguments: Vec<u8>,
    token: Option<[u8; TOKEN_BYTES]>,
    ttl_ms: Option<u64>,
    flags: Option<u32>,
    attributes: Option<Vec<u8>>,
    spec: Option<String>,
    prefix: Option<&'a [u8]>,
    after: Option<&'a [u8]>,
    /// Its own id, encoded.
    own: Option<[u8; OWN_BYTES]>,
}

/// Which collection a request is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place<'a> {
    /// By its id.
    Id(CollectionId),
    /// By its name.
    Named(&'a str),
}

impl<'a> Place<'a> {
    fn parse(name: &'a [u8]) -> Result<Self> {
        let valid = std::str::from_utf8(name).ok().filter(|name| key::collection_name_is_valid(name));
        match valid {
            Some("default") => Ok(Place::Id(CollectionId::DEFAULT)),
            Some(name) => Ok(Place::Named(name)),
            None if name.is_empty() => Err(Error::bad_request("a key may not begin with a slash")),
            None => {
                let name = Shown(name);
                let text = format!("'{name}' is not a valid collection name: use letters, digits, '.', '-', '_'");
                Err(Error::bad_request(text))
            }
        }
    }
}

impl<'a> Request<'a> {
    fn new(verb: Verb, collection: Place<'a>, name: &'a [u8]) -> Self {
        Self {
            verb,
            collection,
            name,
            condition: Condition::None,
            newer_than: None,
            range: None,
            head_only: false,
            value: None,
            method: None,
            arguments: Vec::new(),
            token: None,
            ttl_ms: None,
            flags: None,
            attributes: None,
            spec: None,
            prefix: None,
            after: None,
            own: None,
        }
    }

    /// On the object `key`: `NAME` or `COLLECTION/NAME`.
    fn on(verb: Verb, key: &'a [u8]) -> Result<Self> {
        let (collection, name) = key::split(key);
        if !key::name_is_valid(name) {
            let bytes = name.len();
            if bytes == 0 {
                let text = format!("'{}' names no object: a key is NAME or COLLECTION/NAME", herd_core::quote(key));
                return Err(Error::bad_request(text));
            }
            return Err(Error::bad_request(format!("an object name has 1 to 1,024 bytes, this one {bytes}")));
        }
        Ok(Self::new(verb, Place::parse(collection)?, name))
    }

    /// Reads an object: `NAME` or `COLLECTION/NAME`.
    pub fn get(key: &'a (impl AsRef<[u8]> + ?Sized)) -> Result<Self> {
        Self::on(Verb::Get, key.as_ref())
    }

    /// Reads a part of an object.
    pub fn get_range(key: &'a (impl AsRef<[u8]> + ?Sized), range: Range) -> Result<Self> {
        Ok(Self { range: Some(range), ..Self::get(key)? })
    }

    /// Reads an object once its version is above `version`; after `wait` the answer is the error
    /// `timeout`, and where the object was there and goes meanwhile, `NotFound`.
    pub fn get_newer(key: &'a (impl AsRef<[u8]> + ?Sized), version: Version, wait: Duration) -> Result<Self> {
        Ok(Self { newer_than: Some((version, millis(wait))), ..Self::get(key)? })
    }

    /// Reads what is known of an object besides its value.
    pub fn stat(key: &'a (impl AsRef<[u8]> + ?Sized)) -> Result<Self> {
        Ok(Self { head_only: true, ..Self::get(key)? })
    }

    /// Reads what is known of an object once its version is above `version`, as [`Request::get_newer`].
    pub fn stat_newer(key: &'a (impl AsRef<[u8]> + ?Sized), version: Version, wait: Duration) -> Result<Self> {
        Ok(Self { head_only: true, ..Self::get_newer(key, version, wait)? })
    }

    /// Runs a method on an object: a name of PROTOCOL.md §1.7 and its arguments, at most 48 KiB together.
    pub fn execute<A: AsRef<[u8]>>(
        key: &'a (impl AsRef<[u8]> + ?Sized),
        method: &'a str,
        arguments: &[A],
    ) -> Result<Self> {
        let bytes = arguments.iter().map(|argument| argument.as_ref().len() + 4).sum::<usize>();
        if bytes > WIRE_ARGUMENTS_MAX_BYTES {
            let text = format!("the arguments have {bytes} bytes, the limit is {WIRE_ARGUMENTS_MAX_BYTES}");
            return Err(Error::bad_request(text));
        }
        let mut encoded = Vec::with_capacity(bytes);
        arguments.iter().for_each(|argument| push_item(&mut encoded, argument.as_ref()));
        Ok(Self { method: Some(method), arguments: encoded, ..Self::on(Verb::Execute, key.as_ref())? })
    }

    /// The same request, done only if `condition` holds. A get takes none.
    pub fn with_condition(self, condition: Condition) -> Self {
        Self { condition, ..self }
    }

    /// The same request, showing the token of a lock that is held.
    pub fn with_token(self, token: Token) -> Self {
        Self { token: Some(token.to_bytes()), ..self }
    }

    /// The same request as a holder of a lock makes it: with its token, where it is about an object and shows none yet.
    /// What is done to a lock itself shows none: locks are not guarded by themselves.
    pub(crate) fn held_by(mut self, token: Option<Token>) -> Self {
        let on_lock = matches!(self.method, Some("lock" | "renew" | "unlock" | "check"));
        if !on_lock && self.object().is_some() {
            self.token = self.token.or(token.map(Token::to_bytes));
        }
        self
    }

    /// Writes an object; its value is `value`.
    pub fn put(key: &'a (impl AsRef<[u8]> + ?Sized), value: &'a [u8], options: &PutOptions) -> Result<Self> {
        Ok(Self { value: Some(value), ..Self::put_stream(key, options)? })
    }

    /// Writes an object whose value comes from elsewhere.
    pub(crate) fn put_stream(key: &'a (impl AsRef<[u8]> + ?Sized), options: &PutOptions) -> Result<Self> {
        let attributes = match &options.attributes {
            Some(attributes) => Some(attributes.encode().map_err(|error| Error::bad_request(error.text))?),
            None => None,
        };
        Ok(Self {
            condition: options.condition,
            ttl_ms: options.ttl.map(millis),
            flags: options.flags,
            attributes,
            ..Self::on(Verb::Put, key.as_ref())?
        })
    }

    /// Writes `value` over a part of an object, from byte `offset` on.
    pub fn put_range(
        key: &'a (impl AsRef<[u8]> + ?Sized),
        offset: u64,
        value: &'a [u8],
        options: &PutOptions,
    ) -> Result<Self> {
        let range = Range { offset, length: Some(value.len() as u64) };
        Ok(Self { range: Some(range), ..Self::put(key, value, options)? })
    }

    /// Removes an object if `condition` holds.
    pub fn remove(key: &'a (impl AsRef<[u8]> + ?Sized), condition: Condition) -> Result<Self> {
        Ok(Self { condition, ..Self::on(Verb::Remove, key.as_ref())? })
    }

    /// Creates the collection `name`.
    pub(crate) fn create(name: &'a str, wanted: &Wanted) -> Result<Self> {
        let place = Place::Named(valid_collection(name)?);
        Ok(Self { spec: Some(json(wanted)), ..Self::new(Verb::Create, place, b"") })
    }

    /// Destroys the collection `name` with all its objects.
    pub(crate) fn destroy(name: &'a str) -> Result<Self> {
        Ok(Self::new(Verb::Destroy, Place::Named(valid_collection(name)?), b""))
    }

    /// One page of the names in `collection` that start with `prefix` and come after `after`.
    pub(crate) fn list(collection: &'a [u8], prefix: &'a [u8], after: Option<&'a [u8]>) -> Result<Self> {
        let place = Place::parse(collection)?;
        Ok(Self { prefix: Some(prefix), after, ..Self::new(Verb::List, place, b"") })
    }

    /// Reads an object about the node itself.
    pub(crate) fn system(name: &'a str) -> Self {
        Self::new(Verb::Get, Place::Id(CollectionId::SYSTEM), name.as_bytes())
    }

    /// Has the herd do something about a node of it, by the node's name, or about what [`json`] says.
    pub(crate) fn about_node(method: &'a str, node: &'a str) -> Self {
        Self { method: Some(method), ..Self::new(Verb::Execute, Place::Id(CollectionId::SYSTEM), node.as_bytes()) }
    }

    /// Asks something about the herd's control store.
    pub(crate) fn control(ask: &ControlAsk) -> Self {
        Self { arguments: json(ask).into(), ..Self::about_node("control", "store") }
    }

    /// The collection and the name of the object it is about; `None` if it is about none, or about a node.
    pub(crate) fn object(&self) -> Option<(Place<'a>, &'a [u8])> {
        let on_object = matches!(self.verb, Verb::Get | Verb::Put | Verb::Remove | Verb::Execute);
        (on_object && !self.is_about_node()).then_some((self.collection, self.name))
    }

    /// Whether it is about the node that answers it.
    pub(crate) fn is_about_node(&self) -> bool {
        self.collection == Place::Id(CollectionId::SYSTEM)
    }

    /// Its body, if that is in memory.
    pub(crate) fn body(&self) -> &[u8] {
        self.value.unwrap_or(&self.arguments)
    }

    /// Whether doing it twice does no more than doing it once, so that it may be sent again whatever happened.
    /// Creating a collection is so: with the same specification it is there already.
    pub fn is_repeatable(&self) -> bool {
        !self.changes() || self.verb == Verb::Create || self.is_about_node()
    }

    /// Whether it may change something, so that it matters whether it was done.
    pub fn changes(&self) -> bool {
        match self.verb {
            Verb::Get | Verb::List => false,
            Verb::Execute => !self.method.is_some_and(method::only_reads),
            Verb::Put | Verb::Remove | Verb::Create | Verb::Destroy => true,
        }
    }

    /// Whether it is given an id of its own: it changes an object, and is to do so once.
    pub(crate) fn takes_id(&self) -> bool {
        self.changes() && self.object().is_some()
    }

    /// The same request with this id, for who keeps ids by itself: what is under way at once has ids of different
    /// clients. [`crate::blocking::Client`] gives each change its own.
    pub fn with_id(mut self, own: Own) -> Self {
        self.set_id(Some(own));
        self
    }

    /// Gives it this id, or none.
    pub(crate) fn set_id(&mut self, own: Option<Own>) {
        self.own = own.map(|own| own.bytes());
    }

    /// The same get, of `range`.
    pub(crate) fn of_range(&self, range: Range) -> Self {
        Self { range: Some(range), ..self.clone() }
    }

    /// Has a get that waits for a newer version wait no longer than that.
    pub(crate) fn wait_at_most(&mut self, most_ms: u64) {
        if let Some((_, wait_ms)) = &mut self.newer_than {
            *wait_ms = most_ms.min(*wait_ms);
        }
    }

    /// How much longer than usual its answer may take, ms.
    pub(crate) fn wait_ms(&self) -> u64 {
        self.newer_than.map_or(0, |(_, wait_ms)| wait_ms)
    }

    /// Its header; `body_bytes` is `None` for a body of unknown length. `deadline_ms`: none if 0.
    pub(crate) fn header(&self, id: u64, body_bytes: Option<u64>, deadline_ms: u64) -> Header {
        let mut header = Header { flags: FLAG_BRIEF, ..Header::request(self.verb, id) };
        if let Place::Id(id) = self.collection {
            header.collection = id.0;
        }
        header.length = match self.verb {
            Verb::Get => self.range.and_then(|range| range.length).unwrap_or(LENGTH_UNKNOWN),
            _ => body_bytes.unwrap_or(LENGTH_UNKNOWN),
        };
        if let Some(range) = self.range {
            header.flags |= FLAG_RANGE;
            // The largest of all means the end of the object there; both are past it here.
            header.offset = range.offset.min(OFFSET_LAST - 1);
        }
        if self.head_only {
            header.flags |= FLAG_HEAD_ONLY;
        }
        header.set_condition(self.condition);
        header.time_ms = u32::try_from(deadline_ms).unwrap_or(u32::MAX);
        if let Some((version, wait_ms)) = self.newer_than {
            (header.code, header.version) = (CODE_NEWER, version);
            header.time_ms = u32::try_from(wait_ms).unwrap_or(u32::MAX);
        }
        header
    }

    /// The fields of its head.
    pub(crate) fn fields(&self) -> Fields<'_> {
        Fields {
            name: (!self.name.is_empty()).then_some(self.name),
            ttl_ms: self.ttl_ms,
            flags: self.flags,
            attributes: self.attributes.as_deref(),
            collection: match self.collection {
                Place::Named(name) => Some(name),
                Place::Id(_) => None,
            },
            spec: self.spec.as_deref(),
            prefix: self.prefix,
            after: self.after,
            limit: (self.verb == Verb::List).then_some(LIST_PAGE),
            method: self.method,
            token: self.token.as_ref(),
            between: self.own.as_ref().map(|own| Between::Own(own)),
            ..Fields::default()
        }
    }

    /// What it is about: `default/name`, or a collection.
    pub(crate) fn subject(&self) -> String {
        match self.name {
            b"" => self.collection_name().into_owned(),
            name => format!("{}/{}", self.collection_name(), Shown(name)),
        }
    }

    fn collection_name(&self) -> Cow<'_, str> {
        match self.collection {
            Place::Id(CollectionId::DEFAULT) => "default".into(),
            Place::Id(CollectionId::SYSTEM) => "system".into(),
            Place::Id(id) => id.0.to_string().into(),
            Place::Named(name) => name.into(),
        }
    }
}

/// As people read it: `put default/name`.
impl fmt::Display for Request<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.verb.name(), self.subject())
    }
}

/// A name as it can be shown in a line of text: what is no text, or would move a terminal's cursor, is escaped.
struct Shown<'a>(&'a [u8]);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for chunk in self.0.utf8_chunks() {
            for c in chunk.valid().chars() {
                if c.is_control() { write!(f, "{}", c.escape_default())? } else { f.write_char(c)? }
            }
            write!(f, "{}", chunk.invalid().escape_ascii())?;
        }
        Ok(())
    }
}

/// What is asked of the herd as plain data.
pub(crate) fn json(asked: &impl Serialize) -> String {
    serde_json::to_string(asked).expect("plain data")
}

fn valid_collection(name: &str) -> Result<&str> {
    Place::parse(name.as_bytes()).map(|_| name)
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_any_bytes_are_shown_in_one_line() {
        let shown = |key: &[u8]| Request::get(key).expect("valid").to_string();
        assert_eq!(shown("photos/höhle 日".as_bytes()), "get photos/höhle 日");
        assert_eq!(shown(b"photos/\xff\xfe.raw"), "get photos/\\xff\\xfe.raw");
        assert_eq!(shown(b"a\x1b[2J\nb\x7f"), "get default/a\\u{1b}[2J\\nb\\u{7f}");
        let error = Request::get(b"\xff\x1b/x").expect_err("no collection").to_string();
        assert!(error.starts_with("'\\xff\\u{1b}' is not a valid collection name"), "{error}");
    }

    #[test]
    fn a_holder_shows_its_token_with_all_it_does_to_objects_and_not_to_the_lock() {
        let token = Token { lock: [7; 16], grant: 9 };
        let shows = |request: Result<Request<'_>>| {
            let request = request.expect("valid").held_by(Some(token));
            request.fields().token.and_then(|bytes| Token::from_bytes(bytes))
        };
        let nothing: [&[u8]; 0] = [];
        assert_eq!(shows(Request::get("x")), Some(token));
        assert_eq!(shows(Request::stat("x")), Some(token));
        assert_eq!(shows(Request::put("x", b"", &PutOptions::default())), Some(token));
        assert_eq!(shows(Request::remove("x", Condition::None)), Some(token));
        assert_eq!(shows(Request::execute("x", "append", &["y"])), Some(token));
        for method in ["lock", "renew", "unlock", "check"] {
            assert_eq!(shows(Request::execute("x", method, &nothing)), None);
        }
        assert_eq!(shows(Request::list(b"default", b"", None)), None);
        assert_eq!(shows(Ok(Request::system("status"))), None);
        let other = Token { lock: [7; 16], grant: 1 };
        assert_eq!(shows(Request::get("x").map(|request| request.with_token(other))), Some(other));
    }

    #[test]
    fn methods_that_only_read_may_be_asked_again() {
        let nothing: [&[u8]; 0] = [];
        for (method, reads) in [("check", true), ("list-length", true), ("list-pop", false), ("no-such", false)] {
            let request = Request::execute("x", method, &nothing).expect("valid");
            assert_eq!((request.is_repeatable(), request.changes()), (reads, !reads), "{method}");
        }
        assert!(Request::execute("x", "append", &[vec![0; WIRE_ARGUMENTS_MAX_BYTES - 3]]).is_err());
        Request::execute("x", "append", &[vec![0; WIRE_ARGUMENTS_MAX_BYTES - 4]]).expect("just so many");
    }
}
