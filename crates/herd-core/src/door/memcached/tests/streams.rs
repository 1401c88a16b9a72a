//! Key lists that arrive in pieces, and lines made from a seed.

use super::*;
use crate::chance::Chance as Numbers;
use crate::limits::{MEMCACHED_COMMAND_MAX_BYTES, MEMCACHED_LINE_MAX_BYTES};

/// What a line of keys came to.
#[derive(Debug, PartialEq, Eq)]
struct Served {
    keys: Vec<Vec<u8>>,
    replies: Vec<&'static [u8]>,
    left: usize,
    closed: bool,
}

/// Serves `line`, which arrives in pieces of `piece` bytes after the first `start` bytes.
fn serve(line: &[u8], start: usize, piece: usize) -> Served {
    let mut served = Served { keys: Vec::new(), replies: Vec::new(), left: 0, closed: false };
    let (mut stream, mut at) = KeyStream::open(&line[..start]).expect("the line starts well");
    let mut arrived = start;
    loop {
        assert!(arrived - at <= start + piece + 252, "what must be held is bounded");
        match stream.step(&line[at..arrived]) {
            KeyStep::Key { key, used } => {
                served.keys.push(key.to_vec());
                at += used;
            }
            KeyStep::More { used } => {
                at += used;
                if arrived == line.len() {
                    return Served { left: line.len() - at, ..served };
                }
                arrived = line.len().min(arrived + piece);
            }
            KeyStep::End { used, reply } => {
                served.replies.push(reply);
                return Served { left: line.len() - at - used, ..served };
            }
            KeyStep::Refused { error, used } => {
                served.replies.push(error.reply);
                at += used;
                if error.close {
                    return Served { closed: true, ..served };
                }
            }
        }
    }
}

#[test]
fn keys_come_as_they_arrive_in_pieces_of_any_size() {
    let line = b"gets  a bc   def \r g\rh last\r\nnext";
    let keys: Vec<Vec<u8>> = [&b"a"[..], b"bc", b"def", b"\r", b"g\rh", b"last"].map(<[u8]>::to_vec).into();
    for start in 5..line.len() {
        for piece in 1..line.len() {
            let served = serve(&line[..line.len() - 4], start.min(line.len() - 4), piece);
            let expected = Served { keys: keys.clone(), replies: vec![reply::END], left: 0, closed: false };
            assert_eq!(served, expected, "{start} {piece}");
        }
    }
    assert_eq!(serve(line, line.len(), 1).left, 4, "what follows the line is not touched");
}

#[test]
fn a_stream_knows_its_form() {
    let how = |start: &[u8]| KeyStream::open(start).map(|(stream, used)| (stream.how(), used));
    assert_eq!(how(b"get   "), Ok((GetHow::default(), 4)));
    assert_eq!(how(b"gat 10 a"), Ok((GetHow { with_cas: false, touch: Some(10) }, 6)));
    assert_eq!(how(b"gats  -1 a"), Ok((GetHow { with_cas: true, touch: Some(-1) }, 8)));
    let bad = ClientError::new(reply::BAD_EXPTIME).close();
    for start in [&b"gat "[..], b"gat 10", b"gats x a", b"gat   "] {
        assert_eq!(how(start), Err(bad), "{start:?}");
    }
    for start in [&b""[..], b"get", b"incr   ", b"   get a", b"getx a", b"set a"] {
        assert_eq!(how(start), Err(ClientError::new(b"").close()), "{start:?}");
    }
}

#[test]
fn a_long_key_is_refused_once_and_the_line_dropped() {
    let line = format!("get a {} b c\r\nget d\r\n", "k".repeat(251));
    for piece in [1, 7, 100, 1000] {
        let served = serve(line.as_bytes(), 4, piece);
        assert_eq!(served.keys, [b"a".to_vec()]);
        assert_eq!(served.replies, [reply::BAD_FORMAT, b""]);
        assert!(!served.closed && served.left <= 7);
    }
    let longest = format!("get {}\r\n", "k".repeat(250));
    assert_eq!(serve(longest.as_bytes(), 4, 1).keys[0].len(), 250);
}

#[test]
fn a_line_without_keys_is_refused() {
    assert_eq!(serve(b"get     \r\n", 4, 1).replies, [reply::BAD_FORMAT]);
    assert_eq!(serve(b"get \n", 4, 1).replies, [reply::BAD_FORMAT]);
}

#[test]
fn a_line_is_bounded() {
    let fits = "get ".to_string() + &"k ".repeat((MEMCACHED_LINE_MAX_BYTES - 6) / 2) + "\r\n";
    assert_eq!(fits.len(), MEMCACHED_LINE_MAX_BYTES);
    let served = serve(fits.as_bytes(), 4, 4096);
    assert_eq!((served.keys.len(), served.replies.as_slice()), ((fits.len() - 6) / 2, &[reply::END][..]));
    for junk in ["k ", " ", "k"] {
        let endless = "get ".to_string() + &junk.repeat(MEMCACHED_LINE_MAX_BYTES);
        let served = serve(endless.as_bytes(), 4, 4096);
        assert!(served.closed, "{junk:?}");
        assert_eq!(served.replies.last(), Some(&reply::LINE_TOO_LONG));
    }
}

impl Numbers {
    /// A line of words that commands are made of, with some bytes changed.
    fn line(&mut self) -> Vec<u8> {
        const WORDS: &str = "get gets gat gats set add replace append prepend cas delete incr decr touch mg ms md ma \
            mn me flush_all stats verbosity debugtime slabs noreply 0 1 -1 4294967295 18446744073709551615 \
            99999999999999999999 key b v T30 N5 MA Oopaque 44OG44K544OI q k HTTP/1.1 C7";
        let words: Vec<&str> = WORDS.split(' ').collect();
        let mut line = Vec::new();
        for _ in 0..self.index(9) {
            line.extend_from_slice(words[self.index(words.len())].as_bytes());
            line.resize(line.len() + self.index(3), b' ');
        }
        for _ in 0..self.index(3) {
            if !line.is_empty() {
                let at = self.index(line.len());
                line[at] = self.next() as u8;
            }
        }
        line.retain(|byte| *byte != b'\n');
        line
    }
}

/// Where a command's slices lie, for the check that nothing outside the line is borrowed.
fn borrowed<'a>(command: &Command<'a>) -> Vec<&'a [u8]> {
    match command {
        Command::Get(get) => get.keys.collect(),
        Command::Store(store) => vec![store.key],
        Command::Delete { key, .. } | Command::Arith { key, .. } | Command::Touch { key, .. } => vec![key],
        Command::MetaGet(meta) | Command::MetaDelete(meta) => meta.flags().chain([meta.sent_key]).collect(),
        Command::MetaSet { meta, .. } | Command::MetaArith { meta, .. } => {
            meta.flags().chain([meta.sent_key]).collect()
        }
        Command::MetaDebug(meta) => vec![meta.sent_key],
        _ => Vec::new(),
    }
}

#[test]
fn any_line_is_a_command_or_an_error_and_nothing_outside_it_counts() {
    let mut numbers = Numbers(11);
    let (mut commands, mut errors) = (0, 0);
    for round in 0..200_000 {
        let line = numbers.line();
        let mut longer = line.clone();
        longer.extend_from_slice(b"7 noreply T9");
        let result = parse_line(&longer[..line.len()]);
        assert_eq!(result, parse_line(&line), "round {round}: {:?}", line.escape_ascii().to_string());
        match result {
            Ok(command) => {
                commands += 1;
                for slice in borrowed(&command) {
                    assert!(!slice.is_empty() && slice.len() <= line.len() && !slice.contains(&b' '));
                    assert!(longer[..line.len()].as_ptr_range().contains(&slice.as_ptr()), "round {round}");
                }
            }
            Err(error) => {
                errors += 1;
                assert!(error.reply.is_empty() == error.close && (error.close || error.reply.ends_with(b"\r\n")));
            }
        }
    }
    assert!(commands > 10_000 && errors > 10_000, "{commands} commands, {errors} errors");
}

#[test]
fn every_meta_command_can_be_answered() {
    let mut numbers = Numbers(12);
    let mut answered = 0;
    let mut buffer = Vec::new();
    for _ in 0..200_000 {
        let line = numbers.line();
        let Ok(
            Command::MetaGet(meta)
            | Command::MetaDelete(meta)
            | Command::MetaSet { meta, .. }
            | Command::MetaArith { meta, .. }
            | Command::MetaDebug(meta),
        ) = parse_line(&line)
        else {
            continue;
        };
        answered += 1;
        assert!(!meta.key(&mut buffer).is_empty());
        let mut out = Vec::new();
        meta_get(&meta, &mut HEAD.clone(), numbers.index(2) == 0, NOW, &mut out);
        meta_arith(&meta, &mut HEAD.clone(), false, NOW, numbers.next(), &mut out);
        meta_status(&meta, b"HD", numbers.next(), 3, &mut out);
        meta_miss(&meta, b"EN", &mut out);
        meta_debug(&meta, &HEAD, NOW, &mut out);
        assert!(out.ends_with(b"\r\n") && out.len() < 5 * MEMCACHED_COMMAND_MAX_BYTES);
    }
    assert!(answered > 2_000, "{answered}");
}

#[test]
fn a_stream_serves_what_a_whole_line_serves() {
    let mut numbers = Numbers(13);
    for _ in 0..20_000 {
        let mut line = b"get ".to_vec();
        for _ in 0..numbers.index(12) {
            let length = if numbers.index(20) == 0 { 240 + numbers.index(14) } else { 1 + numbers.index(9) };
            line.resize(line.len() + length, b'k');
            line.resize(line.len() + 1 + numbers.index(3), b' ');
        }
        let streamed = serve(&[&line[..], b"\r\n"].concat(), 4, 1 + numbers.index(300));
        match parse_line(&line) {
            Ok(Command::Get(get)) => {
                assert_eq!(streamed.keys, get.keys.map(<[u8]>::to_vec).collect::<Vec<_>>());
                assert_eq!(streamed.replies, [reply::END]);
            }
            Err(error) => assert_eq!(streamed.replies.first(), Some(&error.reply)),
            Ok(other) => panic!("{other:?}"),
        }
    }
}
