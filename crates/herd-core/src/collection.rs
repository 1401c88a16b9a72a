//! What a collection promises: its class, quota and order.

use crate::error::{Error, ErrorKind, quote};
use crate::size;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The durability class of a collection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Class {
    /// One copy; evicts when the node is full.
    #[default]
    Cache,
    /// At least this many copies in memory; refuses when full.
    Ram(u8),
    /// At least this many copies synced to disk.
    Log(u8),
}

impl Class {
    /// Parses `cache`, `ram:K` or `log:K` with K from 1 to 9.
    pub fn parse(text: &str) -> Option<Self> {
        let copies = |k: &str| k.parse::<u8>().ok().filter(|k| (1..=9).contains(k));
        match text.split_once(':') {
            None if text == "cache" => Some(Class::Cache),
            Some(("ram", k)) => copies(k).map(Class::Ram),
            Some(("log", k)) => copies(k).map(Class::Log),
            _ => None,
        }
    }

    /// Whether objects of this class may be evicted.
    pub fn evicts(self) -> bool {
        matches!(self, Class::Cache)
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Class::Cache => f.write_str("cache"),
            Class::Ram(k) => write!(f, "ram:{k}"),
            Class::Log(k) => write!(f, "log:{k}"),
        }
    }
}

/// The specification a collection is created with; its JSON form is what the wire carries (tag 6).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    /// `cache` or `ram:K`.
    pub class: String,
    /// Whether listings are sorted by name.
    #[serde(default)]
    pub ordered: bool,
    /// Most bytes it may hold, overhead included; `None`: no bound of its own.
    #[serde(default)]
    pub quota_bytes: Option<u64>,
    /// Whether its objects have indices, 0 to 2^64 - 1, for names: then neighbours lie on different nodes.
    #[serde(default)]
    pub indexed: bool,
}

/// What is asked for where a collection is made: a specification, and how its copies are to lie. JSON as of [`Spec`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wanted {
    /// As of [`Spec`].
    pub class: String,
    /// As of [`Spec`].
    #[serde(default)]
    pub ordered: bool,
    /// As of [`Spec`].
    #[serde(default)]
    pub quota_bytes: Option<u64>,
    /// As of [`Spec`].
    #[serde(default)]
    pub indexed: bool,
    /// Copies to keep of each object; `None`: as the class needs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copies: Option<u8>,
    /// The spread group to lie in; `None`: one that fits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spread: Option<u16>,
}

impl Wanted {
    /// This, with its copies as the class needs them.
    pub fn of(spec: Spec) -> Self {
        let Spec { class, ordered, quota_bytes, indexed } = spec;
        Self { class, ordered, quota_bytes, indexed, copies: None, spread: None }
    }

    /// The specification alone.
    pub fn spec(&self) -> Spec {
        let Self { class, ordered, quota_bytes, indexed, .. } = self.clone();
        Spec { class, ordered, quota_bytes, indexed }
    }
}

/// As people read it: `class ram:1, ordered, quota 1.0 MiB`.
impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "class {}", self.class)?;
        for (word, holds) in [("ordered", self.ordered), ("indexed", self.indexed)] {
            if holds {
                write!(f, ", {word}")?;
            }
        }
        match self.quota_bytes {
            Some(bytes) => write!(f, ", quota {}", size::show(bytes)),
            None => f.write_str(", no quota"),
        }
    }
}

impl Spec {
    /// The specification of a class alone.
    pub fn of(class: &str) -> Self {
        Self { class: class.into(), ordered: false, quota_bytes: None, indexed: false }
    }

    /// An error if its parts do not go together, or the class can't be had in this version.
    pub fn check(&self) -> Result<Class, Error> {
        if self.indexed && self.ordered {
            let text = "a collection is sorted by name, or its names are indices, not both";
            return Err(Error::new(ErrorKind::BadRequest, text));
        }
        self.class()
    }

    /// The class, or why it can't be had in this version.
    pub fn class(&self) -> Result<Class, Error> {
        let bad = || {
            let class = quote(self.class.as_bytes());
            Error::new(ErrorKind::BadRequest, format!("class '{class}': use cache, ram:1, ram:2 or ram:3"))
        };
        match Class::parse(&self.class).ok_or_else(bad)? {
            class @ (Class::Cache | Class::Ram(1)) => Ok(class),
            Class::Ram(k) => Err(Error::new(
                ErrorKind::BadRequest,
                format!("class ram:{k} can't be made in this version: use ram:1"),
            )),
            Class::Log(_) => Err(Error::new(ErrorKind::NotInVersion, "class log is not in this version: use ram:1")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_read_back_as_they_are_written() {
        for text in ["cache", "ram:1", "ram:3", "log:2"] {
            assert_eq!(Class::parse(text).expect(text).to_string(), text);
        }
        for text in ["", "ram", "ram:0", "ram:10", "disk", "log:x"] {
            assert_eq!(Class::parse(text), None, "{text}");
        }
    }
}
