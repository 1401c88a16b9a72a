//! What a request is about: the target of its first line (RFC 9112 §3.2), split and percent-decoded.
//!
//! The path is split before it is decoded, so a collection is what precedes the first written slash and a name may hold
//! any bytes, encoded slashes and `..` included; nothing is normalised.

use super::number::decimal;
use super::percent::{Plus, decode};
use super::refusal::Refusal;
use super::status::Status;
use crate::key::name_is_valid;
use crate::limits::{COLLECTION_NAME_MAX_BYTES, LIST_PAGE_DEFAULT, LIST_PAGE_MAX, NAME_MAX_BYTES};
use std::borrow::Cow;

/// What a request is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target<'a> {
    /// `/o/COLLECTION/NAME`: an object. Whether there is such a collection is for the caller to find out.
    Object {
        /// Name of the collection, 1 to 255 bytes.
        collection: Cow<'a, str>,
        /// Name of the object, 1 to 1,024 bytes, any bytes.
        name: Cow<'a, [u8]>,
    },
    /// `/o/COLLECTION?prefix=&after=&limit=`: a page of names.
    List {
        /// Name of the collection, 1 to 255 bytes.
        collection: Cow<'a, str>,
        /// What names begin with; empty: all.
        prefix: Cow<'a, [u8]>,
        /// Names behind this one; empty: from the first.
        after: Cow<'a, [u8]>,
        /// Most names of the page, 1 to [`LIST_PAGE_MAX`].
        limit: u32,
    },
    /// `/metrics`: Prometheus text.
    Metrics,
    /// `/status`: JSON.
    Status,
    /// `/healthz`.
    Health,
    /// `/`.
    Root,
    /// Any other path: 404.
    NotFound,
}

impl<'a> Target<'a> {
    /// Parses a target in origin form, or in absolute form with scheme http or https.
    pub(super) fn parse(text: &'a str) -> Result<Self, Refusal> {
        let text = origin_form(text)?;
        if memchr::memchr(b'#', text.as_bytes()).is_some() {
            return Err(Refusal::bad("the target has a fragment: write # in a name as %23"));
        }
        let (path, query) = match memchr::memchr(b'?', text.as_bytes()) {
            Some(at) => (&text[..at], Some(&text[at + 1..])),
            None => (text, None),
        };
        match path {
            "/" | "" => Ok(Target::Root),
            "/metrics" => Ok(Target::Metrics),
            "/status" => Ok(Target::Status),
            "/healthz" => Ok(Target::Health),
            _ => match path.strip_prefix("/o/") {
                Some(key) if !key.is_empty() => parse_key(key, query),
                _ => Ok(Target::NotFound),
            },
        }
    }

    /// The methods it has, as the header Allow lists them.
    pub(super) fn allow(&self) -> &'static str {
        match self {
            Target::Object { .. } => "GET, HEAD, PUT, DELETE",
            _ => "GET, HEAD",
        }
    }
}

/// Path and query of a target; the authority of an absolute form is dropped (a node serves one herd).
fn origin_form(text: &str) -> Result<&str, Refusal> {
    if text.starts_with('/') {
        return Ok(text);
    }
    let (scheme, rest) = text.split_once("://").ok_or_else(|| Refusal::bad("the target does not begin with /"))?;
    if !scheme.eq_ignore_ascii_case("http") && !scheme.eq_ignore_ascii_case("https") {
        return Err(Refusal::bad("the target has a scheme other than http"));
    }
    Ok(rest.find(['/', '?']).map_or("", |at| &rest[at..]))
}

fn parse_key<'a>(key: &'a str, query: Option<&'a str>) -> Result<Target<'a>, Refusal> {
    let Some(slash) = memchr::memchr(b'/', key.as_bytes()) else {
        return parse_list(collection_of(key)?, query.unwrap_or_default());
    };
    let (collection, name) = (&key[..slash], &key[slash + 1..]);
    if query.is_some() {
        return Err(Refusal::bad("an object takes no query: write ? in a name as %3F"));
    }
    let name = decoded(name, Plus::Plus)?;
    if name.is_empty() {
        return Err(Refusal::bad("the name of the object is empty: /o/COLLECTION/NAME"));
    }
    if !name_is_valid(&name) {
        return Err(Refusal::new(Status::TargetTooLong, "the name of the object is over 1,024 bytes"));
    }
    Ok(Target::Object { collection: collection_of(collection)?, name })
}

fn collection_of(text: &str) -> Result<Cow<'_, str>, Refusal> {
    let not_text = || Refusal::bad("the name of the collection is not UTF-8");
    let name = match decoded(text, Plus::Plus)? {
        Cow::Borrowed(bytes) => Cow::Borrowed(std::str::from_utf8(bytes).map_err(|_| not_text())?),
        Cow::Owned(bytes) => Cow::Owned(String::from_utf8(bytes).map_err(|_| not_text())?),
    };
    if name.is_empty() {
        return Err(Refusal::bad("the name of the collection is empty: /o/COLLECTION/NAME"));
    }
    if name.len() > COLLECTION_NAME_MAX_BYTES {
        return Err(Refusal::new(Status::TargetTooLong, "the name of the collection is over 255 bytes"));
    }
    Ok(name)
}

fn parse_list<'a>(collection: Cow<'a, str>, query: &'a str) -> Result<Target<'a>, Refusal> {
    let (mut prefix, mut after, mut limit) = (None, None, None);
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (field, value) = pair.split_once('=').unwrap_or((pair, ""));
        let twice = match field {
            "prefix" => prefix.replace(name_part(value)?).is_some(),
            "after" => after.replace(name_part(value)?).is_some(),
            "limit" => limit.replace(parse_limit(value)?).is_some(),
            _ => return Err(Refusal::bad("a listing takes prefix, after and limit and nothing else")),
        };
        if twice {
            return Err(Refusal::bad("a field of the query stands twice"));
        }
    }
    let (prefix, after) = (prefix.unwrap_or_default(), after.unwrap_or_default());
    Ok(Target::List { collection, prefix, after, limit: limit.unwrap_or(LIST_PAGE_DEFAULT) })
}

fn name_part(text: &str) -> Result<Cow<'_, [u8]>, Refusal> {
    let name = decoded(text, Plus::Space)?;
    if name.len() > NAME_MAX_BYTES {
        return Err(Refusal::new(Status::TargetTooLong, "a name in the query is over 1,024 bytes"));
    }
    Ok(name)
}

fn parse_limit(text: &str) -> Result<u32, Refusal> {
    let limit = decimal(text.as_bytes()).flatten().and_then(|n| u32::try_from(n).ok());
    limit.filter(|n| (1..=LIST_PAGE_MAX).contains(n)).ok_or_else(|| Refusal::bad("limit is a number from 1 to 10,000"))
}

fn decoded(text: &str, plus: Plus) -> Result<Cow<'_, [u8]>, Refusal> {
    decode(text.as_bytes(), plus).ok_or_else(|| Refusal::bad("a % in the target lacks its two hexadecimal digits"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object<'a>(collection: &'a str, name: &'a [u8]) -> Target<'a> {
        Target::Object { collection: collection.into(), name: name.into() }
    }

    fn list<'a>(prefix: &'a [u8], after: &'a [u8], limit: u32) -> Target<'a> {
        Target::List { collection: "c".into(), prefix: prefix.into(), after: after.into(), limit }
    }

    #[test]
    fn targets_are_understood() {
        let table = [
            ("/o/c/n", object("c", b"n")),
            ("/o/c/a/b//../x", object("c", b"a/b//../x")),
            ("/o/c//", object("c", b"/")),
            ("/o/a%2Fb/%00%ff+%3f", object("a/b", b"\0\xff+?")),
            ("/o/c/gr\u{fc}n", object("c", "gr\u{fc}n".as_bytes())),
            ("http://h:7700/o/c/n", object("c", b"n")),
            ("HTTPS://h", Target::Root),
            ("/o/c", list(b"", b"", 1000)),
            ("/o/c?", list(b"", b"", 1000)),
            ("/o/c?prefix=a%2Fb&after=a+%2B&limit=10000", list(b"a/b", b"a +", 10000)),
            ("/o/c?limit=1&&after=", list(b"", b"", 1)),
            ("/", Target::Root),
            ("/metrics", Target::Metrics),
            ("/metrics?x", Target::Metrics),
            ("/status", Target::Status),
            ("/healthz", Target::Health),
            ("/o", Target::NotFound),
            ("/o/", Target::NotFound),
            ("/status/", Target::NotFound),
            ("/favicon.ico", Target::NotFound),
        ];
        for (text, target) in table {
            assert_eq!(Target::parse(text), Ok(target), "{text}");
        }
    }

    #[test]
    fn plain_names_are_borrowed() {
        let Ok(Target::Object { collection, name }) = Target::parse("/o/c/a+b") else { panic!("an object") };
        assert!(matches!((collection, name), (Cow::Borrowed("c"), Cow::Borrowed(b"a+b"))));
    }

    #[test]
    fn what_is_no_target_says_why() {
        let table = [
            ("*", 400, "begin with /"),
            ("o/c/n", 400, "begin with /"),
            ("ftp://h/x", 400, "scheme"),
            ("/o/c/n#f", 400, "%23"),
            ("/o/c/n?v=1", 400, "%3F"),
            ("/o/c/", 400, "name of the object is empty"),
            ("/o//n", 400, "name of the collection is empty"),
            ("/o/%ff/n", 400, "not UTF-8"),
            ("/o/c/%4", 400, "hexadecimal"),
            ("/o/c?limit=0", 400, "1 to 10,000"),
            ("/o/c?limit=10001", 400, "1 to 10,000"),
            ("/o/c?limit=99999999999999999999", 400, "1 to 10,000"),
            ("/o/c?limit=", 400, "1 to 10,000"),
            ("/o/c?limit=1&limit=2", 400, "twice"),
            ("/o/c?pref=x", 400, "nothing else"),
        ];
        for (text, code, why) in table {
            let refusal = Target::parse(text).expect_err(text);
            assert_eq!(refusal.status.code(), code, "{text}");
            assert!(refusal.text.contains(why), "{text}: {}", refusal.text);
        }
    }

    #[test]
    fn names_are_bounded_after_decoding() {
        let status = |text: String| Target::parse(&text).err().map(|refusal| refusal.status);
        assert_eq!(status(format!("/o/c/{}", "%41".repeat(1024))), None);
        assert_eq!(status(format!("/o/c/{}", "%41".repeat(1025))), Some(Status::TargetTooLong));
        assert_eq!(status(format!("/o/{}/n", "c".repeat(255))), None);
        assert_eq!(status(format!("/o/{}/n", "c".repeat(256))), Some(Status::TargetTooLong));
        assert_eq!(status(format!("/o/c?prefix={}", "a".repeat(1024))), None);
        assert_eq!(status(format!("/o/c?after={}", "a".repeat(1025))), Some(Status::TargetTooLong));
    }
}
