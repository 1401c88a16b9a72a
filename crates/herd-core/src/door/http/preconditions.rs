//! Conditions and ranges of a request (RFC 9110 §13 and §14), and what they make of an object.
//!
//! An entity tag is the version in decimal within double quotes. Herd's tags are strong; a weak one of a client never
//! matches in a strong comparison. Malformed conditions are refused, since to ignore one could overwrite data;
//! malformed ranges are ignored.

use super::number::decimal;
use super::refusal::Refusal;
use super::status::Status;
use crate::entry::{Condition, Version};

/// A version no object ever has: a condition on it never holds.
const NEVER: Version = 0;

/// The value of If-Match or If-None-Match, known to be well formed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tags<'a> {
    /// `*`: any version.
    Any,
    /// One tag or more.
    List(&'a [u8]),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Tag<'a> {
    is_weak: bool,
    opaque: &'a [u8],
}

impl Tag<'_> {
    /// The version it stands for, if Herd could have made it.
    fn version(self) -> Option<Version> {
        let is_plain = !self.opaque.starts_with(b"0");
        decimal(self.opaque).flatten().filter(|_| is_plain)
    }
}

impl<'a> Tags<'a> {
    /// Parses a field value; `None` where it is no list of entity tags.
    pub(super) fn parse(value: &'a [u8]) -> Option<Self> {
        if value == b"*" {
            return Some(Tags::Any);
        }
        let mut count = 0;
        for tag in TagIter(value) {
            tag?;
            count += 1;
        }
        (count > 0).then_some(Tags::List(value))
    }

    fn each(self) -> impl Iterator<Item = Tag<'a>> {
        let list = match self {
            Tags::Any => &[][..],
            Tags::List(list) => list,
        };
        TagIter(list).flatten()
    }

    /// Whether it names `version` in the strong comparison (RFC 9110 §8.8.3.2), as If-Match asks.
    pub fn matches_strongly(self, version: Version) -> bool {
        self == Tags::Any || self.each().any(|tag| !tag.is_weak && tag.version() == Some(version))
    }

    /// Whether it names `version` in the weak comparison, as If-None-Match asks.
    pub fn matches_weakly(self, version: Version) -> bool {
        self == Tags::Any || self.each().any(|tag| tag.version() == Some(version))
    }
}

/// Tags of a comma-separated list; `None` for a malformed one, and nothing after it.
struct TagIter<'a>(&'a [u8]);

impl<'a> Iterator for TagIter<'a> {
    type Item = Option<Tag<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        let start = self.0.iter().position(|b| !matches!(b, b' ' | b'\t' | b','))?;
        let rest = std::mem::take(&mut self.0);
        Some(split_tag(&rest[start..]).map(|(tag, after)| {
            self.0 = after;
            tag
        }))
    }
}

/// The tag at the start, and what follows it from the comma on.
fn split_tag(text: &[u8]) -> Option<(Tag<'_>, &[u8])> {
    let (is_weak, quoted) = text.strip_prefix(b"W/").map_or((false, text), |rest| (true, rest));
    let inner = quoted.strip_prefix(b"\"")?;
    let end = memchr::memchr(b'"', inner)?;
    let after = inner[end + 1..].trim_ascii_start();
    let is_ended = after.is_empty() || after[0] == b',';
    is_ended.then_some((Tag { is_weak, opaque: &inner[..end] }, after))
}

/// The condition of a PUT or a DELETE; 501 for what a single [`Condition`] can't say.
pub(super) fn write_condition(
    if_match: Option<Tags<'_>>,
    if_none_match: Option<Tags<'_>>,
) -> Result<Condition, Refusal> {
    let first = match if_match {
        None => Condition::None,
        Some(Tags::Any) => Condition::IfPresent,
        Some(tags) => Condition::IfVersion(only_version(tags)?),
    };
    match (if_none_match, first) {
        (None, _) => Ok(first),
        (Some(Tags::Any), Condition::None) => Ok(Condition::IfAbsent),
        (Some(Tags::Any), _) => Ok(Condition::IfVersion(NEVER)),
        (Some(Tags::List(_)), _) => {
            let text = "If-None-Match of a write takes * only: use If-Match with the version to replace";
            Err(Refusal::new(Status::NotImplemented, text))
        }
    }
}

fn only_version(tags: Tags<'_>) -> Result<Version, Refusal> {
    let mut each = tags.each();
    match (each.next(), each.next()) {
        (Some(tag), None) if !tag.is_weak => Ok(tag.version().unwrap_or(NEVER)),
        (Some(_), None) => Ok(NEVER),
        _ => Err(Refusal::new(Status::NotImplemented, "If-Match of a write takes one version only")),
    }
}

/// The one range of a request, before the size of the object is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ByteRange {
    /// From byte `first` to byte `last`, both within; to the end where `last` is `None`.
    From {
        /// First byte.
        first: u64,
        /// Last byte.
        last: Option<u64>,
    },
    /// The last so many bytes.
    Last(u64),
}

impl ByteRange {
    /// Parses the value of Range; `None`: malformed, another unit or several ranges, all of which are ignored.
    pub(super) fn parse(value: &[u8]) -> Option<Self> {
        let (unit, range) = value.split_at_checked(6)?;
        if !unit.eq_ignore_ascii_case(b"bytes=") {
            return None;
        }
        let dash = memchr::memchr(b'-', range)?;
        // A number over 64 bits is past the end of any object, as the largest one is.
        let number = |text: &[u8]| decimal(text).map(|n| n.unwrap_or(u64::MAX));
        match (&range[..dash], &range[dash + 1..]) {
            (b"", count) => number(count).map(ByteRange::Last),
            (first, b"") => Some(ByteRange::From { first: number(first)?, last: None }),
            (first, last) => {
                let (first, last) = (number(first)?, number(last)?);
                (first <= last).then_some(ByteRange::From { first, last: Some(last) })
            }
        }
    }

    fn plan(self, size_bytes: u64) -> Plan {
        let part = |offset, length| Plan::Part { offset_bytes: offset, length_bytes: length };
        match self {
            ByteRange::Last(0) => Plan::Unsatisfiable,
            ByteRange::Last(_) if size_bytes == 0 => Plan::Whole,
            ByteRange::Last(count) => part(size_bytes - count.min(size_bytes), count.min(size_bytes)),
            ByteRange::From { first, .. } if first >= size_bytes => Plan::Unsatisfiable,
            ByteRange::From { first, last } => {
                let rest = size_bytes - first;
                part(first, last.map_or(rest, |last| (last - first).saturating_add(1).min(rest)))
            }
        }
    }
}

/// What to answer to a GET or HEAD of an object that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plan {
    /// 200 with the whole object.
    Whole,
    /// 206 with a part of at least one byte.
    Part {
        /// Its first byte.
        offset_bytes: u64,
        /// Its length.
        length_bytes: u64,
    },
    /// 304: the client has this version.
    NotModified,
    /// 412: If-Match names other versions.
    ConditionFailed,
    /// 416: the range starts past the end.
    Unsatisfiable,
}

/// A GET that asks for a version newer than one it has, and is ready to wait for it (RFC 7240 §4.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// The newest version the client has.
    pub newer_than: Version,
    /// The longest it waits.
    pub wait_ms: u64,
}

/// What the header fields of a GET or HEAD ask for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Read<'a> {
    /// If-Match.
    pub if_match: Option<Tags<'a>>,
    /// If-None-Match.
    pub if_none_match: Option<Tags<'a>>,
    /// Range, of a GET.
    pub range: Option<ByteRange>,
    /// If-Range: the range holds for this version only, else the whole object is meant.
    pub range_if: Option<Version>,
    /// Prefer: wait.
    pub wait_ms: Option<u64>,
}

impl Read<'_> {
    /// What to answer where the object is there, in the order of RFC 9110 §13.2.2.
    pub fn plan(&self, version: Version, size_bytes: u64) -> Plan {
        if self.if_match.is_some_and(|tags| !tags.matches_strongly(version)) {
            return Plan::ConditionFailed;
        }
        if self.if_none_match.is_some_and(|tags| tags.matches_weakly(version)) {
            return Plan::NotModified;
        }
        match self.range {
            Some(range) if self.range_if.is_none_or(|wanted| wanted == version) => range.plan(size_bytes),
            _ => Plan::Whole,
        }
    }

    /// Whether and for what it would wait: it names a version in If-None-Match and prefers to wait.
    pub fn wait(&self) -> Option<Wait> {
        let wait_ms = self.wait_ms?;
        let newer_than = self.if_none_match?.each().filter_map(Tag::version).max()?;
        Some(Wait { newer_than, wait_ms })
    }

    /// Takes Range and If-Range of a GET. An If-Range that is a date, a weak tag or none of ours never holds.
    pub(super) fn set_range(&mut self, range: Option<&[u8]>, if_range: Option<&[u8]>) {
        self.range = range.and_then(ByteRange::parse);
        if let Some(value) = if_range {
            let tag = split_tag(value).filter(|(tag, after)| !tag.is_weak && after.is_empty());
            self.range_if = Some(tag.and_then(|(tag, _)| tag.version()).unwrap_or(NEVER));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tags(text: &str) -> Option<Tags<'_>> {
        Tags::parse(text.as_bytes())
    }

    #[test]
    fn tags_match_as_the_rfc_says() {
        let table = [
            ("*", true, true),
            ("\"5\"", true, true),
            ("W/\"5\"", false, true),
            ("\"4\", W/\"5\"", false, true),
            (",\"4\" , ,\t\"5\",", true, true),
            ("\"a,b\",\"5\"", true, true),
            ("\"05\"", false, false),
            ("\"+5\"", false, false),
            ("\"\"", false, false),
            ("\"6\"", false, false),
            ("\"99999999999999999999\"", false, false),
        ];
        for (text, strong, weak) in table {
            let tags = tags(text).expect(text);
            assert_eq!((tags.matches_strongly(5), tags.matches_weakly(5)), (strong, weak), "{text}");
        }
        for text in ["", ",", "5", "\"5", "5\"", "w/\"5\"", "\"5\"\"6\"", "\"5\" \"6\"", "*, \"5\"", "\"5\", *"] {
            assert_eq!(tags(text), None, "{text}");
        }
    }

    #[test]
    fn writes_have_one_condition() {
        let condition = |a: Option<&'static str>, b: Option<&'static str>| {
            let parse = |text: Option<&'static str>| text.map(|text| tags(text).expect(text));
            write_condition(parse(a), parse(b)).map_err(|refusal| refusal.status)
        };
        assert_eq!(condition(None, None), Ok(Condition::None));
        assert_eq!(condition(Some("*"), None), Ok(Condition::IfPresent));
        assert_eq!(condition(Some("\"7\""), None), Ok(Condition::IfVersion(7)));
        assert_eq!(condition(None, Some("*")), Ok(Condition::IfAbsent));
        for never in [condition(Some("W/\"7\""), None), condition(Some("\"x\""), None), condition(Some("*"), Some("*"))]
        {
            let never = never.expect("a condition");
            assert!(never.check(None).is_err() && never.check(Some(7)).is_err() && never.check(Some(1)).is_err());
        }
        assert_eq!(condition(Some("\"7\",\"8\""), None), Err(Status::NotImplemented));
        assert_eq!(condition(None, Some("\"7\"")), Err(Status::NotImplemented));
    }

    #[test]
    fn ranges_are_cut_ignored_or_refused() {
        let part = |offset_bytes, length_bytes| Some(Plan::Part { offset_bytes, length_bytes });
        let table = [
            ("bytes=0-0", part(0, 1)),
            ("BYTES=2-4", part(2, 3)),
            ("bytes=2-99", part(2, 8)),
            ("bytes=3-", part(3, 7)),
            ("bytes=-4", part(6, 4)),
            ("bytes=-11", part(0, 10)),
            ("bytes=0-99999999999999999999999", part(0, 10)),
            ("bytes=0-18446744073709551615", part(0, 10)),
            ("bytes=10-", Some(Plan::Unsatisfiable)),
            ("bytes=99999999999999999999999-", Some(Plan::Unsatisfiable)),
            ("bytes=-0", Some(Plan::Unsatisfiable)),
            ("bytes=4-2", None),
            ("bytes=0-1,3-4", None),
            ("bytes=-", None),
            ("bytes=", None),
            ("bytes", None),
            ("bytes= 0-1", None),
            ("bytes=a-b", None),
            ("bytes=--1", None),
            ("lines=0-1", None),
        ];
        for (text, plan) in table {
            assert_eq!(ByteRange::parse(text.as_bytes()).map(|range| range.plan(10)), plan, "{text}");
        }
        assert_eq!(ByteRange::Last(3).plan(0), Plan::Whole);
        assert_eq!(ByteRange::From { first: 0, last: None }.plan(0), Plan::Unsatisfiable);
    }

    #[test]
    fn reads_are_planned_in_the_order_of_the_rfc() {
        let read = |if_match, if_none_match, if_range| {
            let mut read = Read { if_match: tags(if_match), if_none_match: tags(if_none_match), ..Read::default() };
            read.set_range(Some(b"bytes=1-2"), if_range);
            read.plan(5, 10)
        };
        let part = Plan::Part { offset_bytes: 1, length_bytes: 2 };
        assert_eq!(read("\"4\"", "*", None), Plan::ConditionFailed);
        assert_eq!(read("\"5\"", "W/\"5\"", None), Plan::NotModified);
        assert_eq!(read("*", "\"4\"", None), part);
        assert_eq!(read("", "", Some(b"\"5\"")), part);
        for other in [&b"\"4\""[..], b"W/\"5\"", b"Sun, 06 Nov 1994 08:49:37 GMT", b"\"5\",\"4\"", b""] {
            assert_eq!(read("", "", Some(other)), Plan::Whole, "{}", String::from_utf8_lossy(other));
        }
    }

    #[test]
    fn a_read_waits_for_more_than_it_has() {
        let wait = |text, wait_ms| Read { if_none_match: tags(text), wait_ms, ..Read::default() }.wait();
        let newer_than = |newer_than| Some(Wait { newer_than, wait_ms: 10 });
        assert_eq!(wait("\"4\", W/\"9\", \"x\"", Some(10)), newer_than(9));
        assert_eq!(wait("\"4\"", None), None);
        assert_eq!(wait("*", Some(10)), None);
        assert_eq!(wait("\"x\"", Some(10)), None);
        assert_eq!(wait("", Some(10)), None);
    }
}
