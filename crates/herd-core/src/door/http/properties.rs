//! Properties of the HTTP door over random requests: it never panics, and how bytes are cut into reads changes nothing.
//!
//! Each case is made from a seed, which a failure prints.

use super::chunked::tests::decode;
use super::tests::{encoded, object, piecewise, understood};
use super::*;
use crate::attributes::Attributes;
use crate::chance::Chance as Random;

const CASES: u64 = 5_000;

impl Random {
    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.index(from.len())]
    }

    /// Up to `most` bytes of `alphabet`, or any bytes where it is empty.
    fn bytes(&mut self, most: usize, alphabet: &[u8]) -> Vec<u8> {
        let length = self.index(most + 1);
        (0..length).map(|_| if alphabet.is_empty() { self.next() as u8 } else { self.pick(alphabet) }).collect()
    }
}

fn cases() -> impl Iterator<Item = (u64, Random)> {
    (0..CASES).map(|seed| (seed, Random(seed)))
}

#[rustfmt::skip]
const FRAGMENTS: &[&str] = &[
    "GET ", "HEAD ", "PUT ", "DELETE ", "POST ", "get ", "/o/c/n", "/o/c/", "%41", "%0", "?limit=1", "/", " ",
    " HTTP/1.1\r\n", " HTTP/1.0\r\n", " HTTP/2", "HTTP/", "1.", "1", "\r\n", "\r\n\r\n", "\n", "\r", "Host: h\r\n",
    "Host: ", "Content-Length: 3\r\n", "Transfer-Encoding: chunked\r\n", "If-Match: \"3\"\r\n", "If-Match: ",
    "Range: bytes=1-2\r\n", "Expect: 100-continue\r\n", "Prefer: wait=1\r\n", "Herd-TTL: 1\r\n", "Herd-Link: %2\r\n",
    "Connection: close\r\n", "X: y\r\n", " folded\r\n", ":", "\0", "\t", "\u{e9}", "#", "*", "\"",
];

#[rustfmt::skip]
const LINES: &[&str] = &[
    "Host: h\r\n", "Content-Length: 0\r\n", "Content-Length: 3\r\n", "Transfer-Encoding: chunked\r\n",
    "If-Match: \"3\"\r\n", "If-None-Match: *\r\n", "Range: bytes=1-2\r\n", "If-Range: \"3\"\r\n",
    "Expect: 100-continue\r\n", "Prefer: wait=1\r\n", "Herd-TTL: 1.5\r\n", "Herd-Mode: 644\r\n",
    "Herd-Link: %20\r\n", "Content-Type: a/b\r\n", "Connection: close\r\n", "X: y\r\n", "Y:\r\n",
];

const STARTS: &[&str] = &["", "\r\n", "GET / HTTP/1.1\r\nHost: h\r\n", "PUT /o/c/n HTTP/1.1\r\nHost: h\r\n"];

/// A head put together of likely lines or of fragments of lines, sometimes with one byte changed.
fn head(random: &mut Random) -> Vec<u8> {
    let pieces = random.pick(&[LINES, FRAGMENTS]);
    let mut text = random.pick(STARTS).to_string();
    for _ in 0..random.index(8) {
        text.push_str(random.pick(pieces));
    }
    if random.index(8) > 0 {
        text.push_str("\r\n");
    }
    let mut bytes = text.into_bytes();
    if !bytes.is_empty() && random.index(4) == 0 {
        let at = random.index(bytes.len());
        bytes[at] = random.next() as u8;
    }
    bytes
}

#[test]
fn arbitrary_bytes_never_panic() {
    for (seed, mut random) in cases() {
        let bytes = random.bytes(300, &[]);
        assert_eq!(piecewise(&bytes, 1 + random.index(4)), parse_head(&bytes), "seed {seed}");
    }
}

#[test]
fn heads_byte_by_byte_are_heads_at_once() {
    let (mut whole, mut refused) = (0, 0);
    for (seed, mut random) in cases() {
        let bytes = head(&mut random);
        let at_once = parse_head(&bytes);
        assert_eq!(piecewise(&bytes, 1), at_once, "seed {seed}");
        assert_eq!(piecewise(&bytes, 2 + random.index(5)), at_once, "seed {seed}");
        whole += u64::from(matches!(at_once, Ok(Some(_))));
        refused += u64::from(at_once.is_err());
    }
    assert!(whole > CASES / 20 && refused > CASES / 4, "cases of both kinds: {whole} whole, {refused} refused");
}

#[test]
fn any_name_is_understood_as_it_was_encoded() {
    for (seed, mut random) in cases() {
        let mut name = random.bytes(1023, &[]);
        name.push(random.next() as u8);
        let mut head = b"GET /o/c/".to_vec();
        percent::put(&mut head, &name);
        head.extend_from_slice(b" HTTP/1.1\r\nHost: h\r\n\r\n");
        let target = parse_head(&head).expect("understood").expect("whole").0.target;
        assert_eq!(target, Target::Object { collection: "c".into(), name: name.into() }, "seed {seed}");
    }
}

#[test]
fn attributes_come_back_as_they_were_told() {
    for (seed, mut random) in cases() {
        let mut link = random.bytes(40, &[]);
        link.push(b'/');
        let told = Attributes {
            content_type: Some("a/b".to_string()),
            mode: Some(random.next() as u16 as u32),
            mtime_ns: Some(random.next() as i64),
            link: Some(link),
            pairs: Vec::new(),
        };
        let content = Content::Whole { length_bytes: 0 };
        let response = encoded(&Response { content, object: object(Some(&told)), ..Response::of(Status::Ok) });
        let head = response.replace("HTTP/1.1 200 OK", "PUT /o/c/n HTTP/1.1\r\nHost: h");
        assert_eq!(understood(&head).write.attributes(), told, "seed {seed}");
    }
}

#[test]
fn a_range_selects_the_bytes_a_model_selects() {
    for (seed, mut random) in cases() {
        let (size, first, last) = (random.index(20) as u64, random.index(25) as u64, random.index(25) as u64);
        let (text, selects): (String, &dyn Fn(u64) -> bool) = match random.index(3) {
            0 => (format!("bytes={first}-{last}"), &|at| at >= first && at <= last),
            1 => (format!("bytes={first}-"), &|at| at >= first),
            _ => (format!("bytes=-{last}"), &|at| at + last >= size),
        };
        let selected: Vec<u64> = (0..size).filter(|at| selects(*at)).collect();
        let mut read = Read::default();
        read.set_range(Some(text.as_bytes()), None);
        match read.plan(1, size) {
            Plan::Part { offset_bytes, length_bytes } => {
                let bytes: Vec<u64> = (offset_bytes..offset_bytes + length_bytes).collect();
                assert!(!bytes.is_empty() && bytes == selected, "seed {seed}: {text} of {size}");
            }
            Plan::Unsatisfiable => assert!(selected.is_empty(), "seed {seed}: {text} of {size}"),
            plan => {
                let is_ignored = read.range.is_none() && first > last;
                assert!(plan == Plan::Whole && (is_ignored || size == 0), "seed {seed}: {text} of {size}");
            }
        }
    }
}

#[test]
fn arbitrary_chunks_never_panic_and_the_cut_does_not_matter() {
    let mut ended = 0;
    for (seed, mut random) in cases() {
        let pieces = [
            "1\r\na\r\n",
            "2;x\r\n\r\n\r\n",
            "0\r\n",
            "0\r\n\r\n",
            "\r\n",
            "X: y\r\n",
            "0",
            "f",
            ";",
            "\r",
            "\n",
            " ",
            "\0",
        ];
        let bytes = (0..random.index(8)).map(|_| random.pick(&pieces)).collect::<String>().into_bytes();
        let at_once = decode(&bytes, usize::MAX);
        assert_eq!(decode(&bytes, 1 + random.index(8)), at_once, "seed {seed}");
        ended += u64::from(matches!(at_once.1, Ok(Some(_))));
    }
    assert!(ended > CASES / 50, "{ended} of the bodies end");
}

#[test]
fn what_was_cut_into_chunks_comes_back() {
    for (seed, mut random) in cases() {
        let (mut body, mut bytes) = (Vec::new(), Vec::new());
        for _ in 0..random.index(6) {
            let mut piece = random.bytes(299, &[]);
            piece.push(b'\n');
            bytes.extend_from_slice(format!("{:x}\r\n", piece.len()).as_bytes());
            bytes.extend_from_slice(&piece);
            bytes.extend_from_slice(b"\r\n");
            body.extend_from_slice(&piece);
        }
        bytes.extend_from_slice(b"0\r\n\r\n");
        let used = bytes.len();
        bytes.extend_from_slice(b"GET / HTTP/1.1\r\n");
        assert_eq!(decode(&bytes, 1 + random.index(64)), (body, Ok(Some(used))), "seed {seed}");
    }
}
