//! One line to one command, by its first word; a plain `get` or `set` has been told already (`get.rs`).

use super::admin;
use super::get::{KeyList, get, skip_spaces};
use super::meta::{self, Meta};
use super::number::{signed, unsigned, unsigned32};
use super::{ClientError, Command, Get, GetHow, Store, StoreVerb, reply};
use crate::limits::MEMCACHED_KEY_MAX_BYTES;
use memchr::memchr;

/// The result of parsing.
pub(super) type Parsed<'a> = Result<Command<'a>, ClientError>;

/// A line that is not understood.
pub(super) const BAD_FORMAT: ClientError = ClientError::new(reply::BAD_FORMAT);

/// Largest body memcached's protocol can name: its CR LF must fit in 31 bits too.
const BODY_MAX_BYTES: u32 = i32::MAX as u32 - 2;

/// All commands by their first word.
pub(super) fn parse_other(line: &[u8]) -> Parsed<'_> {
    if line.len() < 2 {
        return Err(BAD_FORMAT);
    }
    let (word, rest) = line.split_at(memchr(b' ', line).unwrap_or(line.len()));
    match word {
        b"get" => get(rest, false),
        b"gets" => get(rest, true),
        b"gat" => get_and_touch(rest, false),
        b"gats" => get_and_touch(rest, true),
        b"set" => store(StoreVerb::Set, rest),
        b"add" => store(StoreVerb::Add, rest),
        b"replace" => store(StoreVerb::Replace, rest),
        b"append" => store(StoreVerb::Append, rest),
        b"prepend" => store(StoreVerb::Prepend, rest),
        b"cas" => store(StoreVerb::Cas, rest),
        b"delete" => delete(rest),
        b"incr" => arith(rest, false),
        b"decr" => arith(rest, true),
        b"touch" => touch(rest),
        b"mg" => Meta::parse(rest).map(Command::MetaGet),
        b"ms" => meta::parse_set(rest),
        b"md" => Meta::parse(rest).map(Command::MetaDelete),
        b"ma" => meta::parse_arith(rest),
        b"mn" => Ok(Command::MetaNoop),
        b"me" => meta::parse_debug(rest),
        b"stats" => admin::stats(rest),
        b"watch" => Err(ClientError::new(reply::NO_WATCH)),
        b"version" => Ok(Command::Version),
        b"quit" => Ok(Command::Quit),
        _ => admin::parse(line),
    }
}

/// Takes the next word off `rest`.
#[inline]
pub(super) fn take_word<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let start = skip_spaces(rest);
    if start.is_empty() {
        return None;
    }
    let end = start.iter().position(|&byte| byte == b' ').unwrap_or(start.len());
    let (word, after) = start.split_at(end);
    *rest = after;
    Some(word)
}

/// Takes the next word off `rest`, where it may be a long one.
#[inline]
pub(super) fn take_key<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let start = skip_spaces(rest);
    if start.is_empty() {
        return None;
    }
    let (key, after) = start.split_at(memchr(b' ', start).unwrap_or(start.len()));
    *rest = after;
    Some(key)
}

/// Whether the last word of `rest` is `noreply`.
#[inline]
pub(super) fn ends_in_noreply(rest: &[u8]) -> bool {
    if rest.is_empty() {
        return false;
    }
    let rest = rest.trim_ascii_end();
    let start = memchr::memrchr(b' ', rest).map_or(0, |at| at + 1);
    &rest[start..] == b"noreply"
}

/// The length of a body.
pub(super) fn body_bytes(word: &[u8]) -> Option<u32> {
    unsigned32(word).filter(|bytes| *bytes <= BODY_MAX_BYTES)
}

fn get_and_touch(mut rest: &[u8], with_cas: bool) -> Parsed<'_> {
    let exptime = take_word(&mut rest).ok_or(BAD_FORMAT)?;
    let exptime = signed(exptime).ok_or(ClientError::new(reply::BAD_EXPTIME));
    let exptime = if skip_spaces(rest).is_empty() { Err(BAD_FORMAT) } else { exptime }?;
    let keys = KeyList::new(rest)?;
    Ok(Command::Get(Get { keys, how: GetHow { with_cas, touch: Some(exptime) } }))
}

/// `<key> <flags> <exptime> <bytes> [<cas>] [noreply]`. Once the length is known, any error drops the body.
#[inline]
pub(super) fn store(verb: StoreVerb, mut rest: &[u8]) -> Parsed<'_> {
    let (Some(key), Some(flags), Some(exptime), Some(bytes)) =
        (take_key(&mut rest), take_word(&mut rest), take_word(&mut rest), take_word(&mut rest))
    else {
        return Err(BAD_FORMAT);
    };
    let bytes = body_bytes(bytes).ok_or(BAD_FORMAT)?;
    let quiet = ends_in_noreply(rest);
    let cas = if verb == StoreVerb::Cas { take_word(&mut rest).and_then(unsigned) } else { Some(0) };
    match (unsigned32(flags), signed(exptime), cas) {
        (Some(flags), Some(exptime), Some(cas)) if key.len() <= MEMCACHED_KEY_MAX_BYTES => {
            Ok(Command::Store(Store { verb, key, flags, exptime, bytes, cas, quiet }))
        }
        _ => Err(BAD_FORMAT.swallow(bytes).quiet(quiet)),
    }
}

/// The key, or an error if it is too long.
fn checked_key(key: &[u8], quiet: bool) -> Result<&[u8], ClientError> {
    if key.len() > MEMCACHED_KEY_MAX_BYTES { Err(BAD_FORMAT.quiet(quiet)) } else { Ok(key) }
}

fn delete(mut rest: &[u8]) -> Parsed<'_> {
    let key = take_key(&mut rest).ok_or(BAD_FORMAT)?;
    let quiet = ends_in_noreply(rest);
    // Once there was a time behind the key, and old clients still send one; nothing else may stand there.
    let mut words = rest;
    let (first, second, third) = (take_word(&mut words), take_word(&mut words), take_word(&mut words));
    let is_time = |word: &[u8]| unsigned(word).is_some();
    let known = match (first, second, third) {
        (None, _, _) | (Some(b"noreply"), None, _) => true,
        (Some(time), None, _) | (Some(time), Some(b"noreply"), None) => is_time(time),
        _ => false,
    };
    if !known {
        return Err(BAD_FORMAT.quiet(quiet));
    }
    Ok(Command::Delete { key: checked_key(key, quiet)?, quiet })
}

fn arith(mut rest: &[u8], decrement: bool) -> Parsed<'_> {
    let (Some(key), after) = (take_key(&mut rest), rest) else { return Err(BAD_FORMAT) };
    let delta = take_word(&mut rest).ok_or(BAD_FORMAT)?;
    let quiet = ends_in_noreply(after);
    let key = checked_key(key, quiet)?;
    let delta = unsigned(delta).ok_or(ClientError::new(reply::BAD_DELTA).quiet(quiet))?;
    Ok(Command::Arith { key, delta, decrement, quiet })
}

fn touch(mut rest: &[u8]) -> Parsed<'_> {
    let (Some(key), after) = (take_key(&mut rest), rest) else { return Err(BAD_FORMAT) };
    let exptime = take_word(&mut rest).ok_or(BAD_FORMAT)?;
    let quiet = ends_in_noreply(after);
    let key = checked_key(key, quiet)?;
    let exptime = signed(exptime).ok_or(ClientError::new(reply::BAD_EXPTIME).quiet(quiet))?;
    Ok(Command::Touch { key, exptime, quiet })
}
