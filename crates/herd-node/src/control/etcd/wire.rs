//! What is said to etcd's gateway, and what it says: JSON, with bytes in base64 and long numbers as text. What is 0,
//! false or empty is left out of answers.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use herd_core::control::{Compare, Write};
use herd_core::limits::{ETCD_ITEMS_MAX, ETCD_TEXT_CHARS};
use serde::de::{Error, SeqAccess, Unexpected, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};
use std::fmt;
use std::marker::PhantomData;

/// Bytes as etcd writes them.
pub(super) fn coded(bytes: impl AsRef<[u8]>) -> String {
    STANDARD.encode(bytes)
}

/// The first key behind all that begin with `prefix`, which is not empty and ASCII at its end.
pub(super) fn end_of(prefix: &str) -> Vec<u8> {
    let mut end = prefix.as_bytes().to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return end;
        }
    }
    vec![0]
}

/// That a key was last written at this revision; 0: that there is none.
pub(super) fn at_revision(key: &str, revision: u64) -> Value {
    json!({"key": coded(key), "target": "MOD", "result": "EQUAL", "mod_revision": revision.to_string()})
}

/// That a key is there with this value.
pub(super) fn has_value(key: &str, value: &str) -> Value {
    json!({"key": coded(key), "target": "VALUE", "result": "EQUAL", "value": coded(value)})
}

/// A comparison of a transaction, of keys below a prefix.
pub(super) fn compare(prefix: &str, compare: &Compare) -> Value {
    at_revision(&format!("{prefix}{}", compare.key), compare.revision)
}

/// A write of a transaction, of keys below a prefix.
pub(super) fn write(prefix: &str, write: &Write) -> Value {
    let key = coded(format!("{prefix}{}", write.key()));
    match write {
        Write::Put { value, .. } => json!({"request_put": {"key": key, "value": coded(value)}}),
        Write::Delete { .. } => json!({"request_delete_range": {"key": key}}),
    }
}

/// A number, as text or as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Number(pub(super) u64);

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl Visitor<'_> for Reader {
            type Value = Number;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a whole number, as text or as it is")
            }

            fn visit_u64<E: Error>(self, number: u64) -> Result<Number, E> {
                Ok(Number(number))
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Number, E> {
                text.parse().map(Number).map_err(|_| E::invalid_value(Unexpected::Str(text), &self))
            }
        }
        deserializer.deserialize_any(Reader)
    }
}

/// Bytes in base64.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Bytes(pub(super) Vec<u8>);

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<str>::deserialize(deserializer)?;
        let bytes = STANDARD.decode(text.as_bytes());
        bytes.map(Bytes).map_err(|_| D::Error::invalid_value(Unexpected::Str(&text), &"base64"))
    }
}

/// A list, which is no longer than any of etcd's.
fn list<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Vec<T>, D::Error> {
    struct Reader<T>(PhantomData<T>);
    impl<'de, T: Deserialize<'de>> Visitor<'de> for Reader<T> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "a list of at most {ETCD_ITEMS_MAX}")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Vec<T>, A::Error> {
            let mut all = Vec::new();
            while let Some(item) = items.next_element()? {
                if all.len() >= ETCD_ITEMS_MAX {
                    return Err(A::Error::invalid_length(ETCD_ITEMS_MAX + 1, &self));
                }
                all.push(item);
            }
            Ok(all)
        }
    }
    deserializer.deserialize_seq(Reader(PhantomData))
}

/// A text of etcd's as people may be shown it: short, and nothing that a terminal would obey.
pub(super) fn plain(text: &str) -> String {
    text.chars().take(ETCD_TEXT_CHARS).map(|char| if char.is_control() { '?' } else { char }).collect()
}

/// What each answer begins with.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Header {
    pub(super) cluster_id: Number,
    pub(super) revision: Number,
}

/// An answer that was not refused.
pub(super) trait Answer: for<'de> Deserialize<'de> {
    /// Its header.
    fn header(&self) -> Header;

    /// An error in its place.
    fn fault(&self) -> Option<&Fault> {
        None
    }
}

/// A key and what it has.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Pair {
    pub(super) key: Bytes,
    pub(super) mod_revision: Number,
    pub(super) value: Bytes,
    pub(super) lease: Number,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Ranged {
    pub(super) header: Header,
    #[serde(deserialize_with = "list")]
    pub(super) kvs: Vec<Pair>,
    pub(super) more: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Done {
    pub(super) response_range: Option<Ranged>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Decided {
    pub(super) header: Header,
    pub(super) succeeded: bool,
    #[serde(deserialize_with = "list")]
    pub(super) responses: Vec<Done>,
}

/// Of a lease that was granted.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Granted {
    pub(super) header: Header,
    #[serde(rename = "ID")]
    pub(super) id: Number,
}

/// Of a lease that was to be kept alive.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Kept {
    pub(super) header: Header,
    /// Seconds; 0: there is no such lease.
    #[serde(rename = "TTL")]
    pub(super) ttl: Number,
}

/// What a stream says, a line each.
#[derive(Debug, Deserialize)]
pub(super) struct Said<T> {
    pub(super) result: Option<T>,
    pub(super) error: Option<Fault>,
}

/// Of a member.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Standing {
    pub(super) header: Header,
    pub(super) version: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Event {
    /// `DELETE`, or left out.
    #[serde(rename = "type")]
    pub(super) kind: String,
    pub(super) kv: Pair,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Watched {
    pub(super) header: Header,
    pub(super) canceled: bool,
    pub(super) cancel_reason: String,
    pub(super) compact_revision: Number,
    /// More events, perhaps of the same revision, follow.
    pub(super) fragment: bool,
    #[serde(deserialize_with = "list")]
    pub(super) events: Vec<Event>,
}

/// Why it did not do what was asked: in streams of later versions, and in earlier ones, the fields have other names.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Fault {
    /// As gRPC numbers them.
    #[serde(alias = "grpc_code")]
    pub(super) code: u32,
    pub(super) message: String,
}

macro_rules! answers {
    ($($answer:ty),*) => {
        $(impl Answer for $answer {
            fn header(&self) -> Header {
                self.header
            }
        })*
    };
}

answers!(Ranged, Decided, Granted, Standing, Watched, Kept);

impl<T: Answer> Answer for Said<T> {
    fn header(&self) -> Header {
        self.result.as_ref().map(Answer::header).unwrap_or_default()
    }

    fn fault(&self) -> Option<&Fault> {
        self.error.as_ref()
    }
}
