//! Lists: `list-push`, `list-push-front`, `list-pop`, `list-pop-back`, `list-range`, `list-length`.
//!
//! A list is one object of at most 1 MiB: `HERDLIST`, the number of items (4 bytes), and each item between two copies
//! of its length (4 bytes), so that either end can be taken off without reading the rest (FORMATS.md). Pushing to an
//! absent object makes a list; taking the last item off removes the object. Flags, expiry and attributes stay.

use super::items::push_item;
use super::number;
use crate::change::{Answer, Change, Decided, Large, New, Part, absent, assembled};
use crate::entry::{Fence, Found};
use crate::limits::LIST_MAX_BYTES;
use crate::{Error, ErrorKind};
use std::borrow::Cow;

const MAGIC: &[u8; 8] = b"HERDLIST";
const HEADER_BYTES: u64 = 12;
/// What an item costs beyond its bytes.
const ITEM_BYTES: u64 = 8;

/// A method on a list.
#[derive(Clone, Debug)]
pub enum Method<'a> {
    /// Adds items at an end.
    Push {
        /// The items, in the order they were given.
        items: Vec<&'a [u8]>,
        /// At the front, each before the one given before it.
        front: bool,
    },
    /// Takes an item off an end.
    Pop {
        /// Off the end instead of the front.
        back: bool,
    },
    /// Items `from..to`; negative numbers count from the end.
    Range {
        /// The first item.
        from: i64,
        /// The item after the last.
        to: i64,
    },
    /// Number of items.
    Length,
}

impl<'a> Method<'a> {
    /// The method of that name, if the arguments fit it.
    pub(super) fn parse(name: &str, items: &[&'a [u8]]) -> Option<Self> {
        Some(match (name, items) {
            ("list-push" | "list-push-front", [_, ..]) => {
                Method::Push { items: items.to_vec(), front: name == "list-push-front" }
            }
            ("list-pop" | "list-pop-back", []) => Method::Pop { back: name == "list-pop-back" },
            ("list-range", [from, to]) => Method::Range { from: number::parse(from)?, to: number::parse(to)? },
            ("list-length", []) => Method::Length,
            _ => return None,
        })
    }

    pub(super) fn only_reads(&self) -> bool {
        matches!(self, Method::Range { .. } | Method::Length)
    }
}

/// A list that is there, or the empty one.
struct List<'f, 'o, B> {
    found: Option<&'f Found<'o, B>>,
    count: u32,
    /// Bytes of the object; of the empty list the header's.
    size_bytes: u64,
}

impl<'f, 'o, B: Large> List<'f, 'o, B> {
    fn of(found: Option<&'f Found<'o, B>>) -> Result<Self, Error> {
        let Some(there) = found else {
            return Ok(Self { found, count: 0, size_bytes: HEADER_BYTES });
        };
        let mut list = Self { found, count: 0, size_bytes: there.head.size_bytes };
        let fits = (HEADER_BYTES..=LIST_MAX_BYTES).contains(&list.size_bytes);
        if !fits || list.read(0, MAGIC.len() as u64) != MAGIC {
            return Err(not_a_list());
        }
        list.count = list.number(8)?;
        Ok(list)
    }

    fn read(&self, from: u64, to: u64) -> Vec<u8> {
        let mut out = Vec::with_capacity((to - from) as usize);
        self.found.into_iter().for_each(|found| found.value.copy(from, to, &mut out));
        out
    }

    /// The number at an offset; an error where the object ends before it.
    fn number(&self, at: u64) -> Result<u32, Error> {
        let end = at.checked_add(4).filter(|end| *end <= self.size_bytes).ok_or_else(not_a_list)?;
        let bytes = self.read(at, end);
        Ok(u32::from_le_bytes(bytes.try_into().map_err(|_| not_a_list())?))
    }

    /// Where the item that begins at an offset has its bytes, and where the next one begins.
    fn item(&self, at: u64) -> Result<(u64, u64, u64), Error> {
        let len = u64::from(self.number(at)?);
        let (from, to) = (at + 4, at + 4 + len);
        let whole = to + 4 <= self.size_bytes && self.number(to)? == len as u32;
        if whole { Ok((from, to, to + 4)) } else { Err(not_a_list()) }
    }

    /// Where the last item begins.
    fn last(&self) -> Result<u64, Error> {
        let len = u64::from(self.number(self.size_bytes - 4)?);
        let begins = self.size_bytes.checked_sub(len + ITEM_BYTES).filter(|at| *at >= HEADER_BYTES);
        begins.ok_or_else(not_a_list)
    }
}

pub(super) fn decide<'a, B: Large>(
    method: &Method<'a>,
    max_bytes: u64,
    found: Option<&Found<'_, B>>,
    fence: Option<Fence>,
) -> Result<Decided<'a, B>, Error> {
    let list = List::of(found)?;
    match method {
        Method::Push { items, front } => push(items, *front, &list, max_bytes, fence),
        Method::Pop { back } => pop(*back, &list, max_bytes, fence),
        Method::Range { from, to } => range(*from, *to, &list),
        Method::Length => {
            Ok(Decided { change: Change::None, answer: Answer::Bytes(list.count.to_string().into_bytes()) })
        }
    }
}

fn push<'a, B: Large>(
    items: &[&'a [u8]],
    front: bool,
    list: &List<'_, '_, B>,
    max_bytes: u64,
    fence: Option<Fence>,
) -> Result<Decided<'a, B>, Error> {
    let mut added = Vec::with_capacity(items.iter().map(|item| item.len() + ITEM_BYTES as usize).sum());
    let mut add = |item: &&[u8]| {
        let len = (item.len() as u32).to_le_bytes();
        added.extend_from_slice(&len);
        added.extend_from_slice(item);
        added.extend_from_slice(&len);
    };
    if front {
        items.iter().rev().for_each(&mut add)
    } else {
        items.iter().for_each(&mut add)
    }
    let too_large = || Error::new(ErrorKind::TooLarge, "a list holds at most 1 MiB, 8 bytes for each item included");
    let count = list.count.checked_add(items.len() as u32).ok_or_else(too_large)?;
    if list.size_bytes + added.len() as u64 > LIST_MAX_BYTES {
        return Err(too_large());
    }
    let (old, added) = (Part::Old(HEADER_BYTES, list.size_bytes), Part::Bytes(Cow::Owned(added)));
    let parts = if front { [added, old] } else { [old, added] };
    changed(count, parts, count.to_string().into_bytes(), list, max_bytes, fence)
}

fn pop<'a, B: Large>(
    back: bool,
    list: &List<'_, '_, B>,
    max_bytes: u64,
    fence: Option<Fence>,
) -> Result<Decided<'a, B>, Error> {
    if list.found.is_none() {
        return Err(absent());
    }
    let Some(count) = list.count.checked_sub(1) else {
        return Err(Error::new(ErrorKind::NotFound, "the list is empty"));
    };
    let begins = if back { list.last()? } else { HEADER_BYTES };
    let (from, to, next) = list.item(begins)?;
    let item = list.read(from, to);
    if count == 0 {
        return Ok(Decided { change: Change::Remove(fence), answer: Answer::Bytes(item) });
    }
    let parts = [Part::Old(HEADER_BYTES, begins), Part::Old(next, list.size_bytes)];
    changed(count, parts, item, list, max_bytes, fence)
}

/// The list with another count and these pieces.
fn changed<'a, B: Large>(
    count: u32,
    parts: [Part<'a, B>; 2],
    answer: Vec<u8>,
    list: &List<'_, '_, B>,
    max_bytes: u64,
    fence: Option<Fence>,
) -> Result<Decided<'a, B>, Error> {
    let header = [&MAGIC[..], &count.to_le_bytes()].concat();
    let [first, second] = parts;
    // Of the empty list, which is not there, nothing can be taken.
    let of_old = |part: &Part<'a, B>| !matches!(part, Part::Old(..)) || list.found.is_some();
    let parts = [Part::Bytes(Cow::Owned(header)), first, second].into_iter().filter(of_old).collect();
    let new = New { fence, ..assembled(parts, list.found, max_bytes)? };
    let attributes = if list.found.is_some() { None } else { Some(&[][..]) };
    Ok(Decided { change: Change::Put(New { attributes, ..new }), answer: Answer::Bytes(answer) })
}

fn range<'a, B: Large>(from: i64, to: i64, list: &List<'_, '_, B>) -> Result<Decided<'a, B>, Error> {
    let place = |n: i64| if n < 0 { (i64::from(list.count) + n).max(0) } else { n.min(i64::from(list.count)) };
    let (from, to) = (place(from), place(to));
    let bytes = list.read(0, list.size_bytes);
    let mut rest = bytes.get(HEADER_BYTES as usize..).unwrap_or_default();
    let mut out = Vec::new();
    for nth in 0..to {
        let (len, after) = rest.split_first_chunk::<4>().ok_or_else(not_a_list)?;
        let (item, after) = after.split_at_checked(u32::from_le_bytes(*len) as usize).ok_or_else(not_a_list)?;
        rest = after.strip_prefix(len).ok_or_else(not_a_list)?;
        if nth >= from {
            push_item(&mut out, item);
        }
    }
    Ok(Decided { change: Change::None, answer: Answer::Bytes(out) })
}

fn not_a_list() -> Error {
    Error::new(ErrorKind::BadRequest, "the object is not a list")
}
