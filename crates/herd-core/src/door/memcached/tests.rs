//! Golden lines for each command and flag, and properties over lines made from a seed.

use super::*;
use crate::entry::{Head, Memcached};

/// An error without a body, loud, that keeps the connection.
fn plain(reply: &'static [u8]) -> ClientError {
    ClientError::new(reply)
}

fn refused(line: &str) -> ClientError {
    parse_line(line.as_bytes()).expect_err(line)
}

fn parsed(line: &str) -> Command<'_> {
    parse_line(line.as_bytes()).expect(line)
}

fn keys(line: &str) -> (Vec<&str>, GetHow) {
    match parsed(line) {
        Command::Get(get) => (get.keys.map(|key| str::from_utf8(key).expect("the line is text")).collect(), get.how),
        other => panic!("{line}: {other:?}"),
    }
}

fn meta(line: &str) -> Meta<'_> {
    match parsed(line) {
        Command::MetaGet(meta) | Command::MetaDelete(meta) | Command::MetaDebug(meta) => meta,
        Command::MetaSet { meta, .. } | Command::MetaArith { meta, .. } => meta,
        other => panic!("{line}: {other:?}"),
    }
}

fn text(write: impl FnOnce(&mut Vec<u8>)) -> String {
    let mut out = Vec::new();
    write(&mut out);
    String::from_utf8(out).expect("replies are text")
}

#[test]
fn lines_are_cut_at_lf_and_lose_one_cr() {
    assert_eq!(split_line(b"get a"), None);
    assert_eq!(split_line(b"\n"), Some((&b""[..], 1)));
    assert_eq!(split_line(b"get a\r\nget b"), Some((&b"get a"[..], 7)));
    assert_eq!(split_line(b"get a\nx"), Some((&b"get a"[..], 6)));
    assert_eq!(split_line(b"get a\r\r\n"), Some((&b"get a\r"[..], 8)));
}

#[test]
fn get_takes_keys_between_any_spaces() {
    let plain = GetHow::default();
    assert_eq!(keys("get a"), (vec!["a"], plain));
    assert_eq!(keys("get   a  bc   d "), (vec!["a", "bc", "d"], plain));
    assert_eq!(keys("gets a b"), (vec!["a", "b"], GetHow { with_cas: true, touch: None }));
    assert_eq!(keys("gat 10 a b"), (vec!["a", "b"], GetHow { with_cas: false, touch: Some(10) }));
    assert_eq!(keys("gats -1 a"), (vec!["a"], GetHow { with_cas: true, touch: Some(-1) }));
    assert_eq!(keys("get noreply"), (vec!["noreply"], plain));
}

#[test]
fn get_without_keys_or_with_a_long_one_is_refused() {
    for line in ["get", "get ", "gets", "gets  ", "gat", "gat 10", "gat 10 ", "gats", "gats 5", "gat x"] {
        assert_eq!(refused(line), plain(reply::BAD_FORMAT), "{line}");
    }
    assert_eq!(refused("gat x a"), plain(reply::BAD_EXPTIME));
    let longest = "k".repeat(250);
    assert_eq!(keys(&format!("get a {longest}")).0.len(), 2);
    assert_eq!(refused(&format!("get a {longest}k")), plain(reply::BAD_FORMAT));
    assert_eq!(refused(&format!("get {longest}k a")), plain(reply::BAD_FORMAT));
    let many = "get ".to_string() + &"foobarbaz ".repeat(20_000);
    assert_eq!(keys(&many).0.len(), 20_000);
}

#[test]
fn storage_commands_are_taken_apart() {
    let table = [
        ("set", StoreVerb::Set),
        ("add", StoreVerb::Add),
        ("replace", StoreVerb::Replace),
        ("append", StoreVerb::Append),
        ("prepend", StoreVerb::Prepend),
    ];
    for (word, verb) in table {
        let expected = Store { verb, key: b"k", flags: 7, exptime: -5, bytes: 12, cas: 0, quiet: false };
        assert_eq!(parsed(&format!("{word} k 7 -5 12")), Command::Store(expected));
        assert_eq!(parsed(&format!("{word}  k  7 -5  12  ")), Command::Store(expected));
        assert_eq!(parsed(&format!("{word} k 7 -5 12 noreply")), Command::Store(Store { quiet: true, ..expected }));
        assert_eq!(parsed(&format!("{word} k 7 -5 12 other")), Command::Store(expected));
    }
    let expected = Store { verb: StoreVerb::Cas, key: b"k", flags: 0, exptime: 9, bytes: 6, cas: 123, quiet: false };
    assert_eq!(parsed("cas k 0 9 6 123"), Command::Store(expected));
    assert_eq!(parsed("cas k 0 9 6 123 noreply"), Command::Store(Store { quiet: true, ..expected }));
    let widest = Store { verb: StoreVerb::Set, flags: u32::MAX, exptime: 1 << 40, bytes: 2_147_483_645, ..expected };
    assert_eq!(parsed("set k 4294967295 1099511627776 2147483645"), Command::Store(Store { cas: 0, ..widest }));
}

#[test]
fn storage_errors_drop_the_body_once_its_length_is_known() {
    for line in [
        "set",
        "set ",
        "set k",
        "set k 0",
        "set k 0 0",
        "set k 0 0 -1",
        "set k 0 0 x",
        "set k 0 0 4294967295",
        "set k 0 0 2147483646",
        "set k 0 0 noreply",
        "cas k 0 0 blah 0",
        "add",
        "append k 0 0 1x",
    ] {
        assert_eq!(refused(line), plain(reply::BAD_FORMAT), "{line}");
    }
    let dropped = plain(reply::BAD_FORMAT).swallow(3);
    for line in [
        "set k x 0 3",
        "set k -1 0 3",
        "set k 4294967296 0 3",
        "set k 0 x 3",
        "set k 0 1- 3",
        "cas k 0 0 3",
        "cas k 0 0 3 x",
        "cas bad blah 0 3 0",
        "cas k 0 0 3 -1",
        "cas k 0 0 3 18446744073709551616",
    ] {
        assert_eq!(refused(line), dropped, "{line}");
    }
    assert_eq!(dropped.swallow_bytes, 5);
    assert_eq!(refused("set k x 0 3 noreply"), dropped.quiet(true));
    assert_eq!(refused("cas k 0 0 3 noreply"), dropped.quiet(true));
    assert_eq!(refused(&format!("set {} 0 0 3", "k".repeat(251))), dropped);
    assert!(parse_line(format!("set {} 0 0 3", "k".repeat(250)).as_bytes()).is_ok());
}

#[test]
fn delete_takes_what_old_clients_send() {
    for (line, quiet) in
        [("delete k", false), ("delete k noreply", true), ("delete k 0", false), ("delete k 10 noreply", true)]
    {
        assert_eq!(parsed(line), Command::Delete { key: b"k", quiet }, "{line}");
    }
    assert_eq!(parsed("delete noreply"), Command::Delete { key: b"noreply", quiet: false });
    assert_eq!(refused("delete"), plain(reply::BAD_FORMAT));
    assert_eq!(refused(&format!("delete {} noreply", "k".repeat(251))), plain(reply::BAD_FORMAT).quiet(true));
}

#[test]
fn incr_decr_and_touch() {
    let arith = |delta, decrement, quiet| Command::Arith { key: b"n", delta, decrement, quiet };
    assert_eq!(parsed("incr n 5"), arith(5, false, false));
    assert_eq!(parsed("decr n 18446744073709551615 noreply"), arith(u64::MAX, true, true));
    assert_eq!(refused("incr n"), plain(reply::BAD_FORMAT));
    assert_eq!(refused("decr"), plain(reply::BAD_FORMAT));
    for line in ["incr n x", "incr n -1", "decr n 18446744073709551616", "incr n 00000000000000000000001"] {
        assert_eq!(refused(line), plain(reply::BAD_DELTA), "{line}");
    }
    assert_eq!(refused("incr n noreply"), plain(reply::BAD_DELTA).quiet(true));
    assert_eq!(parsed("touch n 10"), Command::Touch { key: b"n", exptime: 10, quiet: false });
    assert_eq!(parsed("touch n -1 noreply"), Command::Touch { key: b"n", exptime: -1, quiet: true });
    assert_eq!(refused("touch n"), plain(reply::BAD_FORMAT));
    assert_eq!(refused("touch n x"), plain(reply::BAD_EXPTIME));
    assert_eq!(refused(&format!("touch {} 1", "k".repeat(251))), plain(reply::BAD_FORMAT));
}

#[test]
fn commands_about_the_server() {
    assert_eq!(parsed("mn"), Command::MetaNoop);
    assert_eq!(parsed("version"), Command::Version);
    assert_eq!(parsed("quit now"), Command::Quit);
    assert_eq!(parsed("verbosity 1"), Command::Verbosity { level: 1, quiet: false });
    assert_eq!(parsed("verbosity 0 noreply"), Command::Verbosity { level: 0, quiet: true });
    assert_eq!(refused("verbosity"), plain(reply::BAD_FORMAT));
    assert_eq!(refused("verbosity noreply"), plain(reply::BAD_FORMAT).quiet(true));
    for (line, delay, quiet) in [
        ("flush_all", 0, false),
        ("flush_all noreply", 0, true),
        ("flush_all 0 noreply", 0, true),
        ("flush_all 86400", 86_400, false),
        (" flush_all -1", -1, false),
    ] {
        assert_eq!(parsed(line), Command::FlushAll { delay, quiet }, "{line}");
    }
    assert_eq!(refused("flush_all invalid"), plain(reply::BAD_EXPTIME));
    assert_eq!(refused("flush_all noreply x noreply"), plain(reply::BAD_EXPTIME).quiet(true));
    assert_eq!(parsed("debugtime 3"), Command::DebugTime(DebugTime::Move(3)));
    assert_eq!(parsed("debugtime -3"), Command::DebugTime(DebugTime::Move(-3)));
    assert_eq!(parsed("debugtime p"), Command::DebugTime(DebugTime::Pause));
    assert_eq!(parsed("debugtime r"), Command::DebugTime(DebugTime::Resume));
    assert_eq!(refused("debugtime"), plain(reply::ERROR));
    assert_eq!(refused("debugtime x"), plain(reply::ERROR));
}

#[test]
fn stats_topics() {
    for (line, topic) in [
        ("stats", StatsTopic::General),
        ("stats settings", StatsTopic::Settings),
        ("stats items", StatsTopic::Items),
        ("stats slabs", StatsTopic::Slabs),
        ("stats sizes", StatsTopic::Sizes),
        ("stats conns", StatsTopic::Conns),
        ("stats reset", StatsTopic::Reset),
    ] {
        assert_eq!(parsed(line), Command::Stats(topic), "{line}");
    }
    assert_eq!(refused("stats detail on"), plain(reply::NO_STATS_DETAIL));
    assert_eq!(refused("stats cachedump 1 1"), plain(reply::NO_CACHEDUMP));
    assert_eq!(refused("stats bogus"), plain(reply::ERROR));
}

#[test]
fn what_herd_does_not_have_gets_memcacheds_errors() {
    for (line, reply) in [
        ("shutdown", reply::NO_SHUTDOWN),
        ("shutdown graceful", reply::NO_SHUTDOWN),
        ("slabs reassign 1 2", reply::NO_SLAB_REASSIGN),
        ("slabs automove 1", reply::ERROR),
        ("lru_crawler metadump all", reply::NO_LRU_CRAWLER),
        ("lru_crawler crawl 1", reply::NO_LRU_CRAWLER),
        ("lru_crawler enable", reply::ERROR),
        ("lru mode flat", reply::ERROR),
        ("watch fetchers", reply::NO_WATCH),
        ("extstore item_age 1", reply::ERROR),
        ("cache_memlimit 1", reply::MEMLIMIT_TOO_SMALL),
        ("cache_memlimit 64", reply::MEMLIMIT_FIXED),
        ("cache_memlimit", reply::ERROR),
        ("refresh_certs", reply::ERROR),
        ("boguscommand slkdsldkfjsd", reply::ERROR),
        (" get a", reply::ERROR),
        ("Get a", reply::ERROR),
        ("getx a", reply::ERROR),
        ("\t\t", reply::ERROR),
        ("", reply::BAD_FORMAT),
        (" ", reply::BAD_FORMAT),
        ("x", reply::BAD_FORMAT),
    ] {
        assert_eq!(refused(line), plain(reply), "{line:?}");
    }
    assert_eq!(refused("bogus noreply"), plain(reply::ERROR).quiet(true));
    assert_eq!(refused("noreply"), plain(reply::ERROR).quiet(true));
    for line in ["GET / HTTP/1.0", "PUT /asdf HTTP/1.1", "x y HTTP/2"] {
        assert_eq!(refused(line), plain(b"").close(), "{line}");
    }
    assert_eq!(parse_line(b"\x80\x12\x00\x01"), Err(plain(reply::ERROR)));
}

#[test]
fn meta_flags_are_taken_apart() {
    let got = meta("mg foo s v Oopaque T30 N-1 R7 C9 E8 q");
    assert_eq!(got.key(&mut Vec::new()), b"foo");
    assert_eq!((got.exptime, got.vivify_exptime, got.recache_exptime), (30, -1, 7));
    assert_eq!((got.compare_cas, got.new_cas, got.delta, got.initial), (9, 8, 1, 0));
    assert!(got.has(b's') && got.has(b'v') && got.has(b'T') && !got.has(b't') && got.is_quiet());
    assert_eq!(meta("mg foo P LL/path").flags().count(), 2);
    assert_eq!(meta("ma foo D30 J13").delta, 30);
    assert_eq!(meta("ma foo J13 N0").initial, 13);
    assert!(matches!(parsed("md foo x I"), Command::MetaDelete(meta) if meta.has(b'x') && meta.has(b'I')));
}

#[test]
fn meta_set_has_a_length_and_a_mode() {
    for (flags, mode) in [
        ("", SetMode::Set),
        ("MS", SetMode::Set),
        ("ME", SetMode::Add),
        ("MA", SetMode::Append),
        ("MP", SetMode::Prepend),
        ("MR", SetMode::Replace),
        ("MAx", SetMode::Append),
    ] {
        let line = format!("ms foo 12 T30 {flags}");
        match parsed(&line) {
            Command::MetaSet { meta, mode: got, bytes: 12 } => assert_eq!((got, meta.exptime), (mode, 30)),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(meta("ms a 1 F2147483648").client_flags, 1 << 31);
    for line in ["ms", "ms foo", "ms foo x", "ms foo -1", "ms foo S2", "ms foo 2147483646"] {
        assert_eq!(refused(line), plain(reply::BAD_FORMAT), "{line}");
    }
    for (flags, reply) in [
        ("MZ", reply::BAD_SET_MODE),
        ("M", reply::BAD_SET_MODE),
        ("T", reply::BAD_TOKEN),
        ("Tx", reply::BAD_TOKEN),
        ("F4294967296", reply::BAD_FORMAT),
        ("F", reply::BAD_FORMAT),
        ("C-1", reply::BAD_TOKEN),
        ("E", reply::BAD_TOKEN),
        ("c c", reply::DUPLICATE_FLAG),
        ("S1", reply::INVALID_FLAG),
        ("b", reply::BAD_BASE64),
        ("D", reply::BAD_META_DELTA),
        ("Jx", reply::BAD_META_INITIAL),
    ] {
        assert_eq!(refused(&format!("ms foo 2 {flags}")), plain(reply).swallow(2), "{flags}");
    }
    assert_eq!(refused(&format!("ms {} 2", "k".repeat(251))), plain(reply::BAD_FORMAT).swallow(2));
}

#[test]
fn meta_errors_without_a_body() {
    for (line, reply) in [
        ("mg", reply::BAD_FORMAT),
        ("md ", reply::BAD_FORMAT),
        ("ma", reply::BAD_FORMAT),
        ("me", reply::BAD_FORMAT),
        ("me foo v z", reply::OK),
        ("me foo v -", reply::BAD_FORMAT),
        ("mg foo m o o o o o o o o o", reply::INVALID_FLAG),
        ("mg foo s s", reply::DUPLICATE_FLAG),
        ("mg foo \u{ff}", reply::BAD_FORMAT),
        ("mg foo !", reply::BAD_FORMAT),
        ("mg foo [", reply::INVALID_FLAG),
        ("mg foo 1", reply::INVALID_FLAG),
        ("mg foo N", reply::BAD_TOKEN),
        ("mg foo R1x", reply::BAD_TOKEN),
        ("mg foo b", reply::BAD_BASE64),
        ("mg foo= b", reply::OK),
        ("mg f=== b", reply::BAD_BASE64),
        ("mg fo=o b", reply::BAD_BASE64),
        ("mx foo", reply::ERROR),
        ("ma foo s s", reply::INVALID_OR_DUPLICATE),
        ("ma foo D", reply::INVALID_OR_DUPLICATE),
        ("ma foo MX", reply::BAD_ARITH_MODE),
        ("ma foo M", reply::BAD_ARITH_MODE),
    ] {
        let got = parse_line(line.as_bytes()).map_or_else(|error| error, |_| plain(reply::OK));
        assert_eq!(got, plain(reply), "{line}");
    }
    let opaque = |length: usize| format!("mg foo O{}", "o".repeat(length));
    assert!(parse_line(opaque(31).as_bytes()).is_ok());
    assert_eq!(refused(&opaque(32)), plain(reply::OPAQUE_TOO_LONG));
    assert_eq!(refused(&opaque(32).replace("mg", "ma")), plain(reply::OPAQUE_TOO_LONG));
    assert_eq!(refused(&format!("me {}", "k".repeat(251))), plain(reply::BAD_FORMAT));
    assert_eq!(refused(&format!("mg {}", "k".repeat(251))), plain(reply::BAD_FORMAT));
    let most = "mg foo c f h k l q s t u v x C1 D1 E1 F1 I J1 L";
    assert_eq!(meta(most).flags().count(), 18);
    assert_eq!(refused(&format!("{most} P")), plain(reply::TOO_MANY_FLAGS));
}

#[test]
fn of_several_faults_in_a_meta_line_memcacheds_is_named() {
    let long = format!("O{}", "o".repeat(32));
    for (line, reply) in [
        ("mg foo Tx N b", reply::BAD_BASE64),
        ("mg foo b N", reply::BAD_TOKEN),
        ("mg foo Tx F", reply::BAD_TOKEN),
        ("mg foo F Tx", reply::BAD_TOKEN),
        ("mg foo Tx s s", reply::DUPLICATE_FLAG),
        ("mg foo s s z", reply::DUPLICATE_FLAG),
        ("mg foo z s s", reply::INVALID_FLAG),
        ("mg foo Tx Tx z", reply::DUPLICATE_FLAG),
        ("mg foo s s -", reply::BAD_FORMAT),
        ("mg foo z z z z z z z z z z z z z z z z z z z", reply::TOO_MANY_FLAGS),
        ("mg foo F LONG", reply::BAD_FORMAT),
        ("mg foo LONG F", reply::BAD_FORMAT),
        ("mg foo LONG D", reply::BAD_META_DELTA),
        ("ma foo s s -", reply::BAD_FORMAT),
        ("ma foo LONG F", reply::INVALID_OR_DUPLICATE),
    ] {
        assert_eq!(refused(&line.replace("LONG", &long)), plain(reply), "{line}");
    }
}

#[test]
fn meta_arith_modes() {
    for (line, decrement) in
        [("ma n", false), ("ma n MI", false), ("ma n M+", false), ("ma n MD", true), ("ma n M-", true)]
    {
        assert!(matches!(parsed(line), Command::MetaArith { decrement: got, .. } if got == decrement), "{line}");
    }
}

#[test]
fn binary_keys_are_decoded() {
    let mut buffer = Vec::new();
    for (sent, key) in [
        ("44OG44K544OI", "テスト".as_bytes()),
        ("TQ==", b"M"),
        ("TWE=", b"Ma"),
        ("TWFu", b"Man"),
        ("/+8=", b"\xff\xef"),
    ] {
        for line in [format!("mg {sent} b"), format!("me {sent} b"), format!("md {sent} q b")] {
            assert_eq!(meta(&line).key(&mut buffer), key, "{line}");
        }
        assert_eq!(meta(&format!("mg {sent}")).key(&mut buffer), sent.as_bytes());
    }
    let line = format!("mg {} b", "A".repeat(248));
    assert_eq!(meta(&line).key(&mut buffer).len(), 186);
    for bad in ["====", "A", "AA", "AAA", "AA=A", "AAAA=", "AA A", "A-_A", "=AAA"] {
        assert_eq!(refused(&format!("mg {bad} b")).reply.first(), Some(&b'C'), "{bad}");
    }
}

#[test]
fn value_lines() {
    let line = |flags, size, cas| text(|out| value_line(b"key", flags, size, cas, out));
    assert_eq!(line(0, 0, None), "VALUE key 0 0\r\n");
    assert_eq!(line(123, 1_048_576, None), "VALUE key 123 1048576\r\n");
    let widest = "VALUE key 4294967295 18446744073709551615 18446744073709551615\r\n";
    assert_eq!(line(u32::MAX, u64::MAX, Some(u64::MAX)), widest);
    for number in [0, 9, 10, 99, 100, 101, 999, 1000, 12_345, 1 << 32, u64::MAX] {
        assert_eq!(text(|out| decimal(number, out)), number.to_string());
    }
    assert_eq!(text(|out| stat("pid", 7, out)), "STAT pid 7\r\n");
}

/// An item as the tests of `mg` meet it, 20.5 s before its expiry, at [`NOW`].
const HEAD: Head = Head {
    version: 77,
    size_bytes: 4,
    flags: 5,
    expires_ms: 1_020_500,
    access_s: 40,
    fetched: true,
    memcached: Memcached { cas: 0, stale: false, token_sent: false },
};

const NOW: Clock = Clock { now_ms: 1_000_000, node_s: 43 };

fn hit(line: &str, head: &mut Head, created: bool) -> (String, bool) {
    let mut with_value = false;
    let reply = text(|out| with_value = meta_get(&meta(line), head, created, NOW, out));
    (reply, with_value)
}

#[test]
fn meta_get_answers_flags_in_their_order() {
    for (line, reply) in [
        ("mg foo", "HD\r\n"),
        ("mg foo v", "VA 4\r\n"),
        ("mg foo s v", "VA 4 s4\r\n"),
        ("mg foo t c s", "HD t21 c77 s4\r\n"),
        ("mg foo k Oabc f h l q u", "HD kfoo Oabc f5 h1 l3\r\n"),
        ("mg TWFu v k b t", "VA 4 kTWFu b t21\r\n"),
        ("mg foo C77 v c", "HD c77\r\n"),
        ("mg foo C78 v c", "VA 4 c77\r\n"),
        ("mg foo t T300", "HD t21\r\n"),
        ("mg foo T300 t", "HD t300\r\n"),
        ("mg foo T0 t", "HD t-1\r\n"),
        ("mg foo P L", "HD\r\n"),
    ] {
        let (got, with_value) = hit(line, &mut HEAD.clone(), false);
        assert_eq!((got.as_str(), with_value), (reply, reply.starts_with("VA")), "{line}");
    }
}

#[test]
fn meta_get_hands_out_the_right_to_recache_once() {
    let mut head = Head { size_bytes: 0, expires_ms: 0, fetched: false, ..HEAD };
    assert_eq!(hit("mg foo s c v N30 t", &mut head, true).0, "VA 0 s0 c77 t30 W\r\n");
    assert_eq!((head.expires_ms, head.memcached.token_sent), (1_030_000, true));
    assert_eq!(hit("mg foo s c v N30 t", &mut head, false).0, "VA 0 s0 c77 t30 Z\r\n");
    assert_eq!(head.expires_ms, 1_030_000);

    let mut head = HEAD;
    assert_eq!(hit("mg foo R20", &mut head, false).0, "HD\r\n");
    assert_eq!(hit("mg foo R21", &mut head, false).0, "HD W\r\n");
    assert_eq!(hit("mg foo R21", &mut head, false).0, "HD Z\r\n");
    let mut eternal = Head { expires_ms: 0, ..HEAD };
    assert_eq!(hit("mg foo R21", &mut eternal, false).0, "HD\r\n");

    let mut stale = HEAD;
    stale.memcached.stale = true;
    assert_eq!(hit("mg foo s", &mut stale, false).0, "HD s4 X W\r\n");
    assert_eq!(hit("mg foo s", &mut stale, false).0, "HD s4 Z X\r\n");
}

#[test]
fn meta_status_lines() {
    let status = |line, status: &[u8; 2], cas, size| text(|out| meta_status(&meta(line), status, cas, size, out));
    assert_eq!(status("ms a 1", b"HD", 9, 1), "HD\r\n");
    assert_eq!(status("ms a 1 c Otest s k T9 F3", b"HD", 9, 4), "HD c9 Otest s4 ka\r\n");
    assert_eq!(status("ms a 1 c C5", b"EX", 0, 1), "EX c0\r\n");
    assert_eq!(status("ms TWFu 1 k b", b"NS", 0, 1), "NS kTWFu b\r\n");
    let miss = |line, status: &[u8; 2]| text(|out| meta_miss(&meta(line), status, out));
    assert_eq!(miss("mg a s v Ox k t", b"EN"), "EN Ox ka\r\n");
    assert_eq!(miss("md a", b"NF"), "NF\r\n");
    assert_eq!(miss("md a q k I T30", b"HD"), "HD ka\r\n");
}

#[test]
fn meta_arith_lines() {
    let arith = |line, created| {
        let mut head = HEAD;
        let reply = text(|out| meta_arith(&meta(line), &mut head, created, NOW, 13, out));
        (reply, head.expires_ms)
    };
    assert_eq!(arith("ma n", false), ("HD\r\n".into(), HEAD.expires_ms));
    assert_eq!(arith("ma n v t c", false), ("VA 2 t21 c77\r\n13\r\n".into(), HEAD.expires_ms));
    assert_eq!(arith("ma n T300 v t", false), ("VA 2 t300\r\n13\r\n".into(), 1_300_000));
    assert_eq!(arith("ma n N0 J13 v t k", true), ("VA 2 t-1 kn\r\n13\r\n".into(), 0));
    assert_eq!(arith("ma n N90", false), ("HD\r\n".into(), HEAD.expires_ms));
}

#[test]
fn meta_debug_lines() {
    let line = text(|out| meta_debug(&meta("me foo"), &HEAD, NOW, out));
    assert_eq!(line, "ME foo exp=21 la=3 cas=77 fetch=yes cls=0 size=4\r\n");
    let line = text(|out| meta_debug(&meta("me TWFu b"), &Head::default(), NOW, out));
    assert_eq!(line, "ME TWFu exp=-1 la=43 cas=0 fetch=no cls=0 size=0\r\n");
}

#[test]
fn expiry_times() {
    let now_ms = 1_800_000_000_000;
    for (exptime, expires) in [
        (0, 0),
        (1, now_ms + 1000),
        (2_592_000, now_ms + 2_592_000_000),
        (2_592_001, 2_592_001_000),
        (1_800_000_001, now_ms + 1000),
        (-1, 1),
        (i64::MIN, 1),
        (i64::MAX, u64::MAX),
    ] {
        assert_eq!(expires_ms(exptime, now_ms), expires, "{exptime}");
    }
    assert!(Head { expires_ms: expires_ms(-1, now_ms), ..HEAD }.is_expired(now_ms));
    assert_eq!(remaining_s(0, now_ms), None);
    assert_eq!(remaining_s(now_ms + 1, now_ms), Some(1));
    assert_eq!(remaining_s(now_ms, now_ms), Some(0));
    assert_eq!(remaining_s(1, now_ms), Some(0));
}

#[test]
fn deltas() {
    for (value, delta, decrement, result) in [
        ("9223372036854775807", 1, false, Some(1 << 63)),
        ("18446744073709551615", 1, false, Some(0)),
        ("10", 1, true, Some(9)),
        ("0", 5, true, Some(0)),
        ("9 ", 1, false, Some(10)),
        (" 7", 1, false, Some(8)),
        ("", 1, false, None),
        ("hi", 1, false, None),
        ("-1", 1, false, None),
        ("+5", 1, false, Some(6)),
        (" +5 ", 1, false, Some(6)),
        ("+", 1, false, None),
        ("++5", 1, false, None),
        ("+ 5", 1, false, None),
        ("1 x", 1, false, None),
        ("18446744073709551616", 1, false, None),
        ("0000000000000000000000000000000000041", 1, false, Some(42)),
        ("00000000000000000000000000 ", 1, false, Some(1)),
    ] {
        assert_eq!(apply_delta(value.as_bytes(), delta, decrement), result, "{value:?}");
    }
}

#[test]
fn every_kind_of_error_has_a_line() {
    for kind in ErrorKind::ALL {
        let reply = refusal(kind);
        assert!(reply.ends_with(b"\r\n") && memchr::memchr(b'\n', reply) == Some(reply.len() - 1), "{kind:?}");
    }
    assert_eq!(refusal(ErrorKind::Full), b"SERVER_ERROR out of memory storing object\r\n");
    let mut said = Vec::new();
    write_refusal(&mut said, &Error::new(ErrorKind::Full, "node 'n\r\n1' is full"));
    assert_eq!(said, b"SERVER_ERROR out of memory storing object: node 'n  1' is full\r\n");
    said.clear();
    write_refusal(&mut said, &Error::new(ErrorKind::Busy, "not told"));
    assert_eq!(said, reply::BUSY);
}

mod streams;
