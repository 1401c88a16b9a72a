//! Built-in methods of `execute`: each is decided while its object is held, so it is atomic, and only its result is
//! stored (and, between nodes, replicated), never the call.
//!
//! On the wire a method has a name ([`NAMES`]) and a list of arguments ([`items`]); numbers are decimal digits, times
//! are milliseconds. The file of a method has its parse, its decision and the form of its answer.
//!
//! Called by [`crate::op::decide`] and by the doors, which parse.

mod items;
pub mod list;
pub mod lock;
pub mod memcached;
mod number;
mod value;

pub use items::{items, push_item};

use crate::change::{Circumstances, Decided, Given, Large};
use crate::entry::{Fence, Found};
use crate::error::quote;
use crate::{Error, ErrorKind};
use items::unsigned;

/// A method and its arguments.
#[derive(Clone, Debug)]
pub enum Method<'a, B> {
    /// `get-and-remove`: the value; the object is gone.
    Take,
    /// `fetch-and-add DELTA`: adds to the number that is there, or to 0; answers the number before.
    Add {
        /// What to add; negative to take away.
        delta: i64,
    },
    /// `append VALUE`, `prepend VALUE`: answers the new size.
    Join {
        /// The bytes to put behind or before what is there.
        value: Given<'a, B>,
        /// Behind.
        behind: bool,
        /// Where there is no object, makes one; else that is `NotFound`.
        create: bool,
    },
    /// `set-if-absent VALUE`.
    SetIfAbsent {
        /// The value.
        value: Given<'a, B>,
    },
    /// `compare-and-set EXPECTED NEW`: where the value is EXPECTED it becomes NEW.
    CompareAndSet {
        /// What must be there.
        expected: &'a [u8],
        /// The new value.
        new: &'a [u8],
    },
    /// `touch TTL_MS`: a new time to live; 0: for ever.
    Touch {
        /// Time to live, ms.
        ttl_ms: u64,
    },
    /// `list-*`.
    List(list::Method<'a>),
    /// `lock`, `renew`, `unlock`, `check`.
    Lock(lock::Method<'a>),
    /// memcached's commands.
    Memcached(memcached::Method<'a, B>),
}

/// Name, arguments and meaning of every method, in the order of the guide.
pub const NAMES: [(&str, &str, &str); 17] = [
    ("get-and-remove", "", "get the value and remove the object"),
    ("fetch-and-add", "DELTA", "add to a number (0 if absent); prints it as it was before"),
    ("append", "VALUE", "add VALUE at the end; prints the new size"),
    ("prepend", "VALUE", "add VALUE at the start; prints the new size"),
    ("set-if-absent", "VALUE", "put VALUE if there is no such object"),
    ("compare-and-set", "EXPECTED NEW", "put NEW if the value is EXPECTED"),
    ("touch", "TTL_MS", "set the time to live in milliseconds; 0: for ever"),
    ("list-push", "ITEM..", "add items at the end of a list; prints its length"),
    ("list-push-front", "ITEM..", "add items at the front, the last one foremost; prints the length"),
    ("list-pop", "", "take the first item off a list"),
    ("list-pop-back", "", "take the last item off a list"),
    ("list-range", "FROM TO", "items FROM up to but not TO; negative numbers count from the end"),
    ("list-length", "", "print how many items a list has"),
    ("lock", "exclusive|shared LEASE_MS [LABEL]", "take a lock; prints granted TOKEN LEASE_MS, or held MS, one a line"),
    ("renew", "TOKEN LEASE_MS", "begin the lease of a held lock anew; prints it"),
    ("unlock", "TOKEN", "give a lock back"),
    ("check", "TOKEN", "print how long the token's lease still lasts, ms"),
];

impl<'a, B> Method<'a, B> {
    /// The method of that name with its arguments, encoded as [`items`]. Errors: `BadRequest`, with the form it takes.
    pub fn parse(name: &str, arguments: &'a [u8]) -> Result<Self, Error> {
        let all = items(arguments).ok_or_else(|| Error::new(ErrorKind::BadRequest, "the arguments are cut short"))?;
        let method = match (name, &all[..]) {
            ("get-and-remove", []) => Method::Take,
            ("fetch-and-add", [delta]) => Method::Add { delta: number::parse(delta).ok_or_else(|| usage(name, &all))? },
            ("append" | "prepend", [value]) => {
                Method::Join { value: Given::Small(value, None), behind: name == "append", create: true }
            }
            ("set-if-absent", [value]) => Method::SetIfAbsent { value: Given::Small(value, None) },
            ("compare-and-set", [expected, new]) => Method::CompareAndSet { expected, new },
            ("touch", [ttl]) => Method::Touch { ttl_ms: unsigned(ttl).ok_or_else(|| usage(name, &all))? },
            ("lock" | "renew" | "unlock" | "check", _) => {
                Method::Lock(lock::Method::parse(name, &all).ok_or_else(|| usage(name, &all))?)
            }
            _ if name.starts_with("list-") => {
                let method = list::Method::parse(name, &all).ok_or_else(|| usage(name, &all))?;
                Method::List(method)
            }
            _ => return Err(usage(name, &all)),
        };
        Ok(method)
    }

    /// Whether its decision reads the value that is there, which may be large.
    pub fn reads_value(&self) -> bool {
        matches!(self, Method::CompareAndSet { .. } | Method::List(_) | Method::Lock(_))
    }

    /// Whether it is one of a lock's.
    pub fn is_lock(&self) -> bool {
        matches!(self, Method::Lock(_))
    }

    /// Whether it makes a lock where there is none.
    pub fn takes_lock(&self) -> bool {
        matches!(self, Method::Lock(lock::Method::Lock { .. }))
    }

    /// Whether it is a get of memcached's that leaves what is there as it is.
    pub(crate) fn only_shows(&self, found: Option<&Found<'_, B>>, at: &Circumstances) -> bool
    where
        B: Large,
    {
        matches!(self, Method::Memcached(memcached::Method::Get(meta)) if memcached::only_shows(meta, found, at))
    }

    /// Whether it never changes the object.
    pub fn only_reads(&self) -> bool {
        match self {
            Method::List(method) => method.only_reads(),
            Method::Lock(method) => method.only_reads(),
            _ => false,
        }
    }
}

/// Whether the method of that name never changes the object: asking twice does no harm.
pub fn only_reads(name: &str) -> bool {
    matches!(name, "list-range" | "list-length" | "check")
}

/// How a method is used, behind the word that must be a number and is none; for a name that is no method, that.
#[cold]
fn usage(name: &str, all: &[&[u8]]) -> Error {
    let Some((name, arguments, _)) = NAMES.iter().find(|(known, ..)| *known == name) else {
        return Error::new(ErrorKind::BadRequest, "no such method");
    };
    let is_number: fn(&[u8]) -> bool = match *name {
        "fetch-and-add" | "list-range" => |word| number::parse(word).is_some(),
        "touch" => |word| unsigned(word).is_some(),
        _ => |_| true,
    };
    let wrong = all.iter().find(|word| !is_number(word)).filter(|_| all.len() == arguments.split(' ').count());
    let wrong = wrong.map_or_else(String::new, |word| format!("'{}' is not a whole number in range; ", quote(word)));
    Error::new(ErrorKind::BadRequest, format!("{wrong}usage: {name} {arguments}").trim_end())
}

/// Decides a method; see [`crate::op::decide`].
pub(crate) fn decide<'a, B: Large>(
    method: &Method<'a, B>,
    max_bytes: u64,
    found: Option<&Found<'_, B>>,
    fence: Option<Fence>,
    at: &Circumstances,
) -> Result<Decided<'a, B>, Error> {
    match method {
        Method::Take => value::take(found, fence),
        Method::Add { delta } => number::add(*delta, found, fence),
        Method::Join { value, behind, create } => value::join(max_bytes, value, *behind, *create, found, fence),
        Method::SetIfAbsent { value } => value::set_if_absent(max_bytes, value, found, fence),
        Method::CompareAndSet { expected, new } => value::compare_and_set(max_bytes, expected, new, found, fence),
        Method::Touch { ttl_ms } => value::touch(*ttl_ms, found, fence, at),
        Method::List(method) => list::decide(method, max_bytes, found, fence),
        Method::Lock(method) => lock::decide(method, max_bytes, found, fence, at),
        Method::Memcached(method) => memcached::decide(method, max_bytes, found, fence, at),
    }
}
