//! One memcached command line: what is understood keeps its promises and reads back as it is written.

use crate::Outcomes;
use crate::names::names;
use crate::pieces::prefixes;
use crate::random::Random;
use herd_core::door::memcached::{
    ClientError, Clock, Command, DebugTime, Get, Meta, SetMode, StatsTopic, Store, StoreVerb, foresee, meta_arith,
    meta_debug, meta_get, meta_miss, meta_status, parse_line, reply, split_line,
};
use herd_core::entry::{Head, Memcached};
use herd_core::limits::MEMCACHED_KEY_MAX_BYTES;

/// What the corpus reaches.
#[rustfmt::skip]
pub const OUTCOMES: &[&[&str]] = &[
    COMMANDS, STORES, MODES, TOPICS, TIMES, REPLIES, &["get", "gets", "gat", "gats"],
    &["no line end", "quiet", "quiet error", "body to drop", "closes", "base64 key"],
];

/// Words of the driver.
#[rustfmt::skip]
pub const DICTIONARY: &[&[u8]] = &[
    b"get ", b"gets ", b"gat ", b"gats ", b"set ", b"add ", b"replace ", b"append ", b"prepend ", b"cas ", b"delete ",
    b"incr ", b"decr ", b"touch ", b"mg ", b"ms ", b"md ", b"ma ", b"mn\r\n", b"me ", b"stats ", b"watch", b"version",
    b"quit", b"flush_all", b"verbosity ", b"debugtime ", b"shutdown", b"cache_memlimit ", b"slabs reassign",
    b"lru_crawler ", b"crawl", b"metadump", b"detail", b"cachedump", b"settings", b"items", b"sizes", b"conns",
    b"reset", b" noreply", b" HTTP/1.1", b"\r\n", b" ", b" k", b" v", b" b", b" q", b" T0", b" N30", b" R5", b" C1",
    b" E9", b" F4", b" D2", b" J3", b" MS", b" ME", b" MA", b" MD", b" Oabc", b" s", b" t", b" c", b" f", b" l", b" h",
    b" I", b" x", b"Zm9v", b"==", b"-1", b"4294967296", b"18446744073709551616", b"2147483645", b"9223372036854775808",
];

names!(command_name, COMMANDS, Command<'_> {
    Command::Get(_) => "get command",
    Command::Store(_) => "store command",
    Command::Delete { .. } => "delete",
    Command::Arith { decrement: false, .. } => "incr",
    Command::Arith { decrement: true, .. } => "decr",
    Command::Touch { .. } => "touch",
    Command::MetaGet(_) => "mg",
    Command::MetaSet { .. } => "ms",
    Command::MetaDelete(_) => "md",
    Command::MetaArith { decrement: false, .. } => "ma",
    Command::MetaArith { decrement: true, .. } => "ma, down",
    Command::MetaNoop => "mn",
    Command::MetaDebug(_) => "me",
    Command::FlushAll { .. } => "flush_all",
    Command::Stats(_) => "stats",
    Command::Verbosity { .. } => "verbosity",
    Command::Version => "version",
    Command::Quit => "quit",
    Command::DebugTime(_) => "debugtime",
});

names!(store_name, STORES, StoreVerb {
    StoreVerb::Set => "set",
    StoreVerb::Add => "add",
    StoreVerb::Replace => "replace",
    StoreVerb::Append => "append",
    StoreVerb::Prepend => "prepend",
    StoreVerb::Cas => "cas",
});

names!(mode_name, MODES, SetMode {
    SetMode::Set => "mode set",
    SetMode::Add => "mode add",
    SetMode::Append => "mode append",
    SetMode::Prepend => "mode prepend",
    SetMode::Replace => "mode replace",
});

names!(topic_name, TOPICS, StatsTopic {
    StatsTopic::General => "general",
    StatsTopic::Settings => "settings",
    StatsTopic::Items => "items",
    StatsTopic::Slabs => "slabs",
    StatsTopic::Sizes => "sizes",
    StatsTopic::Conns => "conns",
    StatsTopic::Reset => "reset",
});

names!(time_name, TIMES, DebugTime {
    DebugTime::Pause => "p",
    DebugTime::Resume => "r",
    DebugTime::Move(_) => "move",
});

/// Makes the table of replies and the list of their names, which are those of their constants.
macro_rules! replies {
    ($($name:ident,)+) => {
        const TABLE: &[(&[u8], &str)] = &[$((reply::$name, stringify!($name))),+];
        /// The replies the parser of a line may give; a test compares them with its source.
        pub const REPLIES: &[&str] = &[$(stringify!($name)),+];
    };
}

replies! {
    ERROR, BAD_FORMAT, BAD_EXPTIME, BAD_DELTA, DUPLICATE_FLAG, INVALID_FLAG, INVALID_OR_DUPLICATE, TOO_MANY_FLAGS,
    BAD_TOKEN, BAD_BASE64, OPAQUE_TOO_LONG, BAD_META_DELTA, BAD_META_INITIAL, BAD_SET_MODE, BAD_ARITH_MODE,
    NO_SHUTDOWN, NO_SLAB_REASSIGN, NO_LRU_CRAWLER, NO_WATCH, NO_STATS_DETAIL, NO_CACHEDUMP, MEMLIMIT_TOO_SMALL,
    MEMLIMIT_FIXED,
}

/// Largest body a line can announce.
const BODY_MAX_BYTES: u32 = i32::MAX as u32 - 2;

/// Runs the target on the first line of the input, or on all of it if it has no line end.
pub fn run(input: &[u8]) -> Outcomes {
    let mut outcomes = Outcomes::default();
    let line = match split_line(input) {
        Some((line, used)) => {
            assert!(used <= input.len() && input[used - 1] == b'\n' && line.len() < used && used - line.len() <= 2);
            for end in prefixes(input, &[used]) {
                let told = split_line(&input[..end]);
                assert_eq!(told, (end >= used).then_some((line, used)), "the first {end} bytes");
            }
            line
        }
        None => {
            assert!(!input.contains(&b'\n'));
            outcomes.add("no line end");
            input
        }
    };
    assert!(!line.contains(&b'\n'));
    match parse_line(line) {
        Ok(command) => {
            check_foreseen(input, line, &command);
            understood(line, &command, &mut outcomes);
        }
        Err(error) => refused(&error, &mut outcomes),
    }
    outcomes
}

/// What was foreseen of a whole line is what it asks for first.
fn check_foreseen(input: &[u8], line: &[u8], command: &Command<'_>) {
    let asked = match command {
        Command::Get(get) => get.keys.into_iter().next(),
        Command::Store(store) => Some(store.key),
        _ => None,
    };
    let foreseen = foresee(input).filter(|_| line.iter().all(|byte| *byte >= b' '));
    assert!(foreseen.is_none() || foreseen == asked, "{foreseen:?} instead of {asked:?}");
}

fn refused(error: &ClientError, outcomes: &mut Outcomes) {
    for (holds, name) in
        [(error.close, "closes"), (error.quiet, "quiet error"), (error.swallow_bytes > 0, "body to drop")]
    {
        if holds {
            outcomes.add(name);
        }
    }
    assert!(error.swallow_bytes == 0 || (2..=BODY_MAX_BYTES + 2).contains(&error.swallow_bytes));
    assert!(!error.close || error.swallow_bytes == 0);
    if error.reply.is_empty() {
        assert!(error.close, "only a connection that closes gets no reply");
        return;
    }
    let found = TABLE.iter().find(|(reply, _)| *reply == error.reply);
    outcomes.add(found.map(|(_, name)| *name).expect("the reply has no entry in the table of the target"));
}

fn understood(line: &[u8], command: &Command<'_>, outcomes: &mut Outcomes) {
    outcomes.add(command_name(command));
    match command {
        Command::Get(get) => outcomes.add(get_name(get)),
        Command::Store(store) => outcomes.add(store_name(&store.verb)),
        Command::Stats(topic) => outcomes.add(topic_name(topic)),
        Command::DebugTime(time) => outcomes.add(time_name(time)),
        Command::MetaSet { meta, mode, bytes } => {
            outcomes.add(mode_name(mode));
            assert!(*bytes <= BODY_MAX_BYTES);
            check_meta(line, meta, outcomes);
        }
        Command::MetaGet(meta)
        | Command::MetaDelete(meta)
        | Command::MetaArith { meta, .. }
        | Command::MetaDebug(meta) => check_meta(line, meta, outcomes),
        _ => {}
    }
    let Some((written, is_quiet)) = write(command) else { return };
    if is_quiet {
        outcomes.add("quiet");
    }
    let again = parse_line(&written).expect("what was understood is written in a line that is understood");
    let keys = |command: &Command<'_>| match command {
        Command::Get(get) => Some((get.how, get.keys.map(<[u8]>::to_vec).collect::<Vec<_>>())),
        _ => None,
    };
    let is_same = if let Command::Get(_) = command { keys(&again) == keys(command) } else { again == *command };
    assert!(is_same, "{} reads back as {again:?}", String::from_utf8_lossy(&written));
}

fn get_name(get: &Get<'_>) -> &'static str {
    match (get.how.touch.is_some(), get.how.with_cas) {
        (false, false) => "get",
        (false, true) => "gets",
        (true, false) => "gat",
        (true, true) => "gats",
    }
}

fn checked(key: &[u8]) -> Vec<u8> {
    assert!((1..=MEMCACHED_KEY_MAX_BYTES).contains(&key.len()) && !key.contains(&b' '), "a key: {key:?}");
    key.to_vec()
}

/// A command in its plainest form, and whether it is quiet; `None` for meta commands, whose words are kept as sent.
fn write(command: &Command<'_>) -> Option<(Vec<u8>, bool)> {
    let text = |number: &dyn ToString| number.to_string().into_bytes();
    let (mut words, is_quiet): (Vec<Vec<u8>>, bool) = match command {
        Command::Get(get) => {
            let start = [Some(get_name(get).into()), get.how.touch.map(|exptime| text(&exptime))];
            (start.into_iter().flatten().chain(get.keys.map(checked)).collect(), false)
        }
        Command::Store(Store { verb, key, flags, exptime, bytes, cas, quiet }) => {
            assert!(*bytes <= BODY_MAX_BYTES);
            let mut words = vec![store_name(verb).into(), checked(key), text(flags), text(exptime), text(bytes)];
            words.extend((*verb == StoreVerb::Cas).then(|| text(cas)));
            (words, *quiet)
        }
        Command::Delete { key, quiet } => (vec!["delete".into(), checked(key)], *quiet),
        Command::Arith { key, delta, quiet, .. } => {
            (vec![command_name(command).into(), checked(key), text(delta)], *quiet)
        }
        Command::Touch { key, exptime, quiet } => (vec!["touch".into(), checked(key), text(exptime)], *quiet),
        Command::FlushAll { delay, quiet } => (vec!["flush_all".into(), text(delay)], *quiet),
        Command::Verbosity { level, quiet } => (vec!["verbosity".into(), text(level)], *quiet),
        Command::DebugTime(DebugTime::Move(by)) => (vec!["debugtime".into(), text(by)], false),
        Command::DebugTime(time) => (vec!["debugtime".into(), time_name(time).into()], false),
        Command::Stats(StatsTopic::General) => (vec!["stats".into()], false),
        Command::Stats(topic) => (vec!["stats".into(), topic_name(topic).into()], false),
        Command::MetaNoop | Command::Version | Command::Quit => (vec![command_name(command).into()], false),
        Command::MetaGet(_) | Command::MetaSet { .. } | Command::MetaDelete(_) => return None,
        Command::MetaArith { .. } | Command::MetaDebug(_) => return None,
    };
    if is_quiet {
        words.push(b"noreply".to_vec());
    }
    Some((words.join(&b' '), is_quiet))
}

/// The key is one, and every reply is one line of bounded length.
fn check_meta(line: &[u8], meta: &Meta<'_>, outcomes: &mut Outcomes) {
    let mut buffer = Vec::new();
    let key = meta.key(&mut buffer);
    if meta.has(b'b') {
        outcomes.add("base64 key");
        assert!((1..=MEMCACHED_KEY_MAX_BYTES * 3 / 4).contains(&key.len()));
    } else {
        checked(key);
    }
    let mut random = Random::of(line);
    for created in [false, true] {
        let memcached = Memcached { cas: random.number(), stale: random.once_in(2), token_sent: random.once_in(2) };
        let (size_bytes, expires_ms) = (random.number(), random.pick(&[0, 1, u64::MAX]));
        let mut head = Head { size_bytes, expires_ms, fetched: created, memcached, ..Head::default() };
        let clock = Clock { now_ms: random.number() >> 20, node_s: 5 };
        let mut out = Vec::new();
        meta_get(meta, &mut head, created, clock, &mut out);
        check_reply(line, &out, 1);
        out.clear();
        meta_debug(meta, &head, clock, &mut out);
        check_reply(line, &out, 1);
        out.clear();
        meta_arith(meta, &mut head, created, clock, random.number(), &mut out);
        check_reply(line, &out, if meta.has(b'v') { 2 } else { 1 });
        out.clear();
        meta_status(meta, b"HD", random.number(), size_bytes, &mut out);
        check_reply(line, &out, 1);
        out.clear();
        meta_miss(meta, b"EN", &mut out);
        check_reply(line, &out, 1);
    }
}

fn check_reply(line: &[u8], out: &[u8], lines: usize) {
    assert!(out.ends_with(b"\r\n") && out.iter().filter(|byte| **byte == b'\n').count() == lines);
    // Ten numbers of 20 digits with their letters, a key and an opaque.
    assert!(out.len() <= 300 + line.len(), "{} bytes for a line of {}", out.len(), line.len());
}
