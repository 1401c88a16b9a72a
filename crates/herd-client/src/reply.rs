//! What a node answers, as values.

use crate::error::{Error, ErrorKind, Result};
use herd_core::attributes::Attributes;
use herd_core::collection::Class;
use herd_core::entry::Version;
use herd_core::wire::{Breach, Fields, Header, LENGTH_UNKNOWN, MapMark, Routes, Status, WireError, clock_told};

/// The head of a reply; what belongs to its body comes apart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reply {
    /// Code of the status, see [`Status`].
    pub code: u16,
    /// Version of the object; of a removal, the version of that.
    pub version: Version,
    /// Bytes of the whole object; `None`: not known.
    pub size_bytes: Option<u64>,
    /// Where in the object the body begins.
    pub offset: u64,
    /// Id of the collection.
    pub collection: u64,
    /// Durability class.
    pub class: Class,
    /// Copies there are.
    pub copies: u8,
    /// Opaque flags of the object.
    pub flags: u32,
    /// When the object expires, ms since 1970.
    pub expires_ms: Option<u64>,
    /// Checksum of the value, where only the head was asked for.
    pub checksum: Option<u32>,
    /// Encoded attributes; empty: none.
    pub attributes: Vec<u8>,
    /// What the node says of an error.
    pub text: String,
    /// Epoch of the node's map; 0: it is in no herd with others.
    pub epoch: u32,
    /// Of the answer to who asks for the map: which map the node has, and the key of the name hash.
    pub(crate) routes: Option<(MapMark, [u8; 16])>,
}

/// What a reply tells of the map; what is malformed tells nothing.
fn routes(header: &Header, fields: &Fields<'_>) -> Option<(MapMark, [u8; 16])> {
    Routes::told(header, fields).ok().flatten().map(|routes| (routes.mark, routes.key.0))
}

impl Reply {
    pub(crate) fn from_wire(header: &Header, fields: &Fields<'_>) -> Self {
        let (class, copies) = header.ack();
        Self {
            code: header.code,
            version: header.version,
            size_bytes: (header.length != LENGTH_UNKNOWN).then_some(header.length),
            offset: header.offset,
            collection: header.collection,
            class,
            copies,
            flags: fields.flags.unwrap_or(0),
            expires_ms: fields.expires_ms,
            checksum: fields.checksum,
            attributes: fields.attributes.unwrap_or_default().to_vec(),
            text: fields.error.unwrap_or_default().to_owned(),
            epoch: header.epoch,
            routes: routes(header, fields),
        }
    }

    /// Whether the request was done.
    pub fn is_ok(&self) -> bool {
        self.code == Status::Ok.code()
    }

    /// Whether there is no such collection.
    pub(crate) fn is_no_collection(&self) -> bool {
        self.code == Status::Error(herd_core::ErrorKind::NoCollection).code()
    }

    /// Whether the node asks to try again later; nothing was done.
    pub(crate) fn is_busy(&self) -> bool {
        self.code == Status::Error(herd_core::ErrorKind::Busy).code()
    }

    /// Whether it is unknown if it was done, and another node may know it.
    pub(crate) fn is_unknown(&self) -> bool {
        self.code == Status::Error(herd_core::ErrorKind::OutcomeUnknown).code()
    }

    /// The error the reply tells of; `None`: it was done.
    pub fn error(&self) -> Option<Error> {
        use herd_core::ErrorKind as Core;
        let kind = match Status::from_code(self.code) {
            Some(Status::Ok) => return None,
            Some(Status::Error(Core::NotFound)) => ErrorKind::NotFound,
            Some(Status::Error(Core::NoCollection)) => ErrorKind::NoCollection,
            Some(Status::Error(Core::OutcomeUnknown | Core::OutcomeLost)) => ErrorKind::OutcomeUnknown,
            Some(Status::Error(Core::ConditionFailed)) => ErrorKind::ConditionFailed { version: self.version },
            Some(Status::Error(kind)) => ErrorKind::Refused(kind),
            None => return Some(Error::bad_reply(format!("status {} is unknown", self.code))),
        };
        let text = match (&self.text[..], kind) {
            ("", ErrorKind::NotFound) => "no such object",
            ("", ErrorKind::NoCollection) => "no such collection",
            ("", ErrorKind::ConditionFailed { version: 0 }) => "condition failed: there is no such object",
            ("", ErrorKind::ConditionFailed { version }) => {
                return Some(Error::new(kind, format!("condition failed: it has version {version}")));
            }
            ("", ErrorKind::OutcomeUnknown) => "it may have been done",
            ("", ErrorKind::Refused(core)) => core.name(),
            (text, _) => text,
        };
        Some(Error::new(kind, text))
    }

    /// What the reply says of the object.
    pub(crate) fn stat(&self) -> Result<Stat> {
        let attributes = Attributes::decode(&self.attributes).map_err(|error| Error::bad_reply(error.text))?;
        Ok(Stat {
            version: self.version,
            size_bytes: self.size_bytes.ok_or_else(|| Error::bad_reply("the reply does not tell the object's size"))?,
            collection: self.collection,
            class: self.class,
            copies: self.copies,
            flags: self.flags,
            expires_ms: self.expires_ms,
            checksum: self.checksum,
            attributes,
        })
    }

    /// What the reply says of a write.
    pub(crate) fn ack(&self) -> Ack {
        Ack { version: self.version, class: self.class, copies: self.copies }
    }
}

/// What is known of an object besides its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Its version.
    pub version: Version,
    /// Bytes of its value.
    pub size_bytes: u64,
    /// Id of its collection.
    pub collection: u64,
    /// Durability class.
    pub class: Class,
    /// Copies there are.
    pub copies: u8,
    /// Opaque flags.
    pub flags: u32,
    /// When it expires, ms since 1970.
    pub expires_ms: Option<u64>,
    /// CRC-32C of the value (above 64 KiB: of the list of its blocks' checksums); told by `stat` only.
    pub checksum: Option<u32>,
    /// Content type, mode, times and pairs.
    pub attributes: Attributes,
}

/// An object, or a range of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    /// The bytes asked for.
    pub value: Vec<u8>,
    /// All else.
    pub stat: Stat,
}

/// What a write was answered with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ack {
    /// The version it made.
    pub version: Version,
    /// Durability class it reached.
    pub class: Class,
    /// Copies there are.
    pub copies: u8,
}

/// What a method answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Its answer, in the form the method has.
    pub value: Vec<u8>,
    /// Version of the object after it.
    pub version: Version,
}

/// What a node says of itself when a connection opens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Welcome {
    /// Feature bits.
    pub features: u64,
    /// Highest protocol version it speaks.
    pub highest_version: u16,
    /// Session: bits 40 to 62 of request ids.
    pub session: u32,
    /// Name and build.
    pub node: String,
    /// Epoch of the node's map; 0: it is in no herd with others.
    pub epoch: u32,
    /// The clock by which ids of clients are made, ms since 1970; `None`: the node takes none.
    pub clock_ms: Option<u64>,
}

impl Welcome {
    pub(crate) fn from_wire(header: &Header, fields: &Fields<'_>) -> Self {
        Self {
            epoch: header.epoch,
            clock_ms: clock_told(fields),
            features: fields.features.unwrap_or(0),
            highest_version: fields.highest_version.unwrap_or(0),
            session: fields.session.unwrap_or(0),
            node: fields.node.unwrap_or_default().to_owned(),
        }
    }
}

impl From<Breach> for Error {
    fn from(breach: Breach) -> Self {
        Error::bad_reply(breach.to_string())
    }
}

impl From<WireError> for Error {
    fn from(error: WireError) -> Self {
        Error::bad_reply("bad frame").caused_by(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use herd_core::ErrorKind as Core;

    #[test]
    fn what_a_node_says_of_an_outcome_it_does_not_know_is_no_refusal() {
        let kind = |core: Core| {
            let reply = Reply { code: Status::Error(core).code(), ..Reply::default() };
            reply.error().expect("it is one").kind()
        };
        assert_eq!(kind(Core::OutcomeUnknown), ErrorKind::OutcomeUnknown);
        assert_eq!(kind(Core::NotFound), ErrorKind::NotFound);
        assert_eq!(kind(Core::Unreachable), ErrorKind::Refused(Core::Unreachable));
        assert_eq!(Reply::default().error().map(|error| error.kind()), None);
    }
}
