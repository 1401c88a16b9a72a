//! The commands that are not about an item, and memcached's internals that Herd does not have.

use super::number::{signed, unsigned32};
use super::parse::{BAD_FORMAT, Parsed, ends_in_noreply, take_word};
use super::{ClientError, Command, reply};

/// What `stats` asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatsTopic {
    /// No word: the general figures.
    General,
    /// `settings`.
    Settings,
    /// `items`.
    Items,
    /// `slabs`.
    Slabs,
    /// `sizes`.
    Sizes,
    /// `conns`.
    Conns,
    /// `reset`: answered `RESET`.
    Reset,
}

/// What `debugtime` does to the node's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DebugTime {
    /// `p`: stand still.
    Pause,
    /// `r`: go on.
    Resume,
    /// Move by seconds.
    Move(i64),
}

/// `stats [topic]`; `rest` follows the word.
pub(super) fn stats(mut rest: &[u8]) -> Parsed<'_> {
    let topic = match take_word(&mut rest) {
        None => StatsTopic::General,
        Some(b"settings") => StatsTopic::Settings,
        Some(b"items") => StatsTopic::Items,
        Some(b"slabs") => StatsTopic::Slabs,
        Some(b"sizes") => StatsTopic::Sizes,
        Some(b"conns") => StatsTopic::Conns,
        Some(b"reset") => StatsTopic::Reset,
        Some(b"detail") => return Err(ClientError::new(reply::NO_STATS_DETAIL)),
        Some(b"cachedump") => return Err(ClientError::new(reply::NO_CACHEDUMP)),
        Some(_) => return Err(ClientError::new(reply::ERROR)),
    };
    Ok(Command::Stats(topic))
}

/// A line whose word is none of the others'. Spaces before the word are let pass here, as in memcached.
pub(super) fn parse(line: &[u8]) -> Parsed<'_> {
    let mut rest = line;
    let word = take_word(&mut rest).unwrap_or_default();
    let quiet = ends_in_noreply(line);
    let refused = |reply| Err(ClientError::new(reply).quiet(quiet));
    match word {
        b"flush_all" => flush_all(rest, quiet),
        b"verbosity" => match take_word(&mut rest).and_then(unsigned32) {
            Some(level) => Ok(Command::Verbosity { level, quiet }),
            None => Err(BAD_FORMAT.quiet(quiet)),
        },
        b"debugtime" => match take_word(&mut rest).and_then(debug_time) {
            Some(time) => Ok(Command::DebugTime(time)),
            None => refused(reply::ERROR),
        },
        b"shutdown" => refused(reply::NO_SHUTDOWN),
        b"cache_memlimit" => match take_word(&mut rest).and_then(unsigned32) {
            Some(..8) => refused(reply::MEMLIMIT_TOO_SMALL),
            Some(_) => refused(reply::MEMLIMIT_FIXED),
            None => refused(reply::ERROR),
        },
        b"slabs" if take_word(&mut rest) == Some(b"reassign") => refused(reply::NO_SLAB_REASSIGN),
        b"lru_crawler" => match take_word(&mut rest) {
            Some(b"crawl" | b"metadump" | b"mgdump") => refused(reply::NO_LRU_CRAWLER),
            _ => refused(reply::ERROR),
        },
        _ if is_http(rest) => Err(ClientError::new(b"").close()),
        _ => refused(reply::ERROR),
    }
}

/// `[delay] [noreply]`.
fn flush_all(mut rest: &[u8], quiet: bool) -> Parsed<'static> {
    let delay = match take_word(&mut rest) {
        None => 0,
        Some(b"noreply") if quiet && rest.trim_ascii().is_empty() => 0,
        Some(word) => signed(word).ok_or(ClientError::new(reply::BAD_EXPTIME).quiet(quiet))?,
    };
    Ok(Command::FlushAll { delay, quiet })
}

fn debug_time(word: &[u8]) -> Option<DebugTime> {
    match word {
        b"p" => Some(DebugTime::Pause),
        b"r" => Some(DebugTime::Resume),
        _ => signed(word).map(DebugTime::Move),
    }
}

/// Whether the last word is an HTTP version: a browser, or an attack through one, is talking.
fn is_http(rest: &[u8]) -> bool {
    let rest = rest.trim_ascii_end();
    memchr::memrchr(b' ', rest).is_some_and(|at| rest[at + 1..].starts_with(b"HTTP/"))
}
