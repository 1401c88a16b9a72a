//! Tests of the wire: golden bytes (which also prove the byte order), round trips over random frames, and hostile
//! bytes. Random tests print their seed when they fail; [`Random::new`] with it plays them again.

use super::*;
use crate::checksum::crc32c;
use crate::collection::Class;
use crate::entry::Condition;
use crate::error::ErrorKind;
use crate::key::CollectionId;
use crate::limits::{ATTRIBUTES_MAX_BYTES, BLOCK_BYTES, NAME_MAX_BYTES, WIRE_FRAME_BODY_MAX_BYTES};
use crate::limits::{COLLECTION_NAME_MAX_BYTES, WIRE_HEAD_MAX_BYTES, WIRE_PEER_MAX_BYTES};

// Golden frames, made from PROTOCOL.md by another program with a bitwise CRC-32C.
const HELLO: &str = "\
    ce0100002f51a40600000000000000000000100000000000000000000000000000000000000000000000000000000000\
    0000000000000000000000000000000000000000b7d2be7d0c080005000000000000000d02000100";
const WELCOME: &str = "\
    ce0200004e9071b500000000000000000000220000000000000000000000000000000000000000000000000000000000\
    0000000000000000000000000000000000000000792278550c080005000000000000000d020001000e0400030201000f\
    08006e3120302e312e30";
const REQUEST: &str = "\
    ce030204442a9ad607000000000302010300190005000000020000000000000088776655443322110000010000000000\
    050000000000000009000000dc050000010001007494a8c00104006e616d6502080060ea000000000000030400efbead\
    de4cbb719a68656c6c6f";
const REPLY: &str = "\
    ce0401004172935808000000000302010000120003000000020000000000000008070605040302010000000000000000\
    03000000000000000000000000000000010100002d9f9a580304000700000010080000505c18a3010000b73f4b366162\
    63";
const BRIEF: &str = "cf0103004279e6e1080000000003020108070605040302010900000001010001b73f4b36616263";
const DATA: &str = "\
    ce050000104ba41108000000000302010000000002000000000000000000000000000000000000000000100000000000\
    0200000000000000000000000000000000000000dac37d222cef06da7879";
const CREDIT: &str = "\
    ce060000dbf31d8b08000000000302010000000000000000000000000000000000000000000000000000000000000000\
    ffffffffffffffff00000000000000000000000000000000";
const CANCEL: &str = "\
    ce070000577112cc08000000000302010000000000000000000000000000000000000000000000000000000000000000\
    000000000000000000000000000000000000000000000000";
const GOODBYE: &str = "\
    ce0800006637585b000000000000000000001a0000000000000000000000000000000000000000000000000000000000\
    000000000000000000000000000000000000000074baba900717006672616d65206b696e64203920697320756e6b6e6f\
    776e";

#[test]
fn a_request_on_default_is_foreseen_by_its_name() {
    let mut frame = Vec::new();
    let mut header = Header::request(Verb::Get, 7);
    header.collection = CollectionId::DEFAULT.0;
    encode_frame(&mut frame, header, &Fields::named(b"name"), &[]).expect("within the limits");
    assert_eq!(foresee(&frame), Some(&b"name"[..]));
    for end in 0..frame.len() {
        assert_eq!(foresee(&frame[..end]), None, "{end} bytes");
    }
    for (id, foreseen) in [(CollectionId::BY_NAME, Some(&b"name"[..])), (CollectionId::SYSTEM, None)] {
        header.collection = id.0;
        frame.clear();
        encode_frame(&mut frame, header, &Fields::named(b"name"), &[]).expect("within the limits");
        assert_eq!(foresee(&frame), foreseen);
    }
}

/// A small random source (xorshift64*), so that a failing case has a seed.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() >> 16) as usize % bound
    }

    fn bytes(&mut self, length: usize) -> Vec<u8> {
        (0..length).map(|_| (self.next() >> 32) as u8).collect()
    }

    fn text(&mut self, length: usize) -> String {
        (0..length).map(|_| char::from(b'a' + self.below(26) as u8)).collect()
    }

    fn maybe<T>(&mut self, make: impl FnOnce(&mut Self) -> T) -> Option<T> {
        (self.below(2) == 1).then(|| make(self))
    }
}

/// Runs `case` with many seeds; a failure names the seed.
fn for_seeds(count: u64, case: impl Fn(&mut Random) + std::panic::RefUnwindSafe) {
    for seed in 0..count {
        let run = std::panic::catch_unwind(|| case(&mut Random::new(seed)));
        assert!(run.is_ok(), "failed with seed {seed}");
    }
}

fn from_hex(text: &str) -> Vec<u8> {
    let digits = text.as_bytes().chunks(2);
    digits.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).expect("hex"), 16).expect("hex")).collect()
}

fn frame(header: Header, fields: &Fields<'_>, body: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    encode_frame(&mut out, header, fields, body).expect("encodes");
    out
}

fn golden(text: &str, header: Header, fields: Fields<'_>, body: &[u8]) {
    let bytes = from_hex(text);
    let encoded = frame(header, &fields, body);
    assert_eq!(encoded, bytes, "encoded as\n{encoded:02x?}");
    let parsed = parse_frame(&bytes).expect("parses").expect("is whole");
    assert_eq!(parsed.fields(), Ok(fields));
    assert_eq!(parsed.body(), Ok(body));
    assert_eq!(parsed.bytes(), bytes.len());
    let lengths = (parsed.header().head_len, parsed.header().body_len, parsed.header().head_crc);
    let (head_len, body_len, head_crc) = lengths;
    assert_eq!(*parsed.header(), Header { head_len, body_len, head_crc, ..header });
    assert_eq!(body_len as usize, body.len());
}

#[test]
fn hello_and_welcome_have_their_golden_bytes() {
    let hello = Fields { features: Some(5), highest_version: Some(1), ..Default::default() };
    golden(HELLO, Header::new(Kind::Hello), hello, b"");
    let welcome = Fields { session: Some(0x01_02_03), node: Some("n1 0.1.0"), ..hello };
    golden(WELCOME, Header::new(Kind::Welcome), welcome, b"");
}

#[test]
fn a_request_has_its_golden_bytes() {
    let mut header = Header {
        flags: FLAG_RANGE,
        collection: 2,
        offset: 0x1_0000,
        length: 5,
        epoch: 9,
        time_ms: 1500,
        extra: 1,
        hops: 1,
        ..Header::request(Verb::Put, request_id(0x01_02_03, 7))
    };
    header.set_condition(Condition::IfVersion(0x1122_3344_5566_7788));
    let fields = Fields { ttl_ms: Some(60_000), flags: Some(0xDEAD_BEEF), ..Fields::named(b"name") };
    golden(REQUEST, header, fields, b"hello");
}

#[test]
fn a_reply_has_its_golden_bytes() {
    let request = Header { collection: 2, ..Header::request(Verb::Get, request_id(0x01_02_03, 8)) };
    let mut header = Header { version: 0x0102_0304_0506_0708, length: 3, ..Header::reply_to(&request, Status::Ok) };
    header.set_ack(Class::Ram(1), 1);
    let fields = Fields { flags: Some(7), expires_ms: Some(1_800_000_000_000), ..Default::default() };
    golden(REPLY, header, fields, b"abc");
    assert_eq!(header.ack(), (Class::Ram(1), 1));
    for ack in [(Class::Cache, 1), (Class::Ram(2), 3), (Class::Ram(9), 9), (Class::Log(3), 255)] {
        header.set_ack(ack.0, ack.1);
        assert_eq!(header.ack(), ack);
    }
}

#[test]
fn the_other_kinds_have_their_golden_bytes() {
    let id = request_id(0x01_02_03, 8);
    golden(DATA, Header { length: 2, ..Header::data(id, 1 << 20, false) }, Fields::default(), b"xy");
    golden(CREDIT, Header::credit(id, LENGTH_UNKNOWN), Fields::default(), b"");
    golden(CANCEL, Header::cancel(id), Fields::default(), b"");
    golden(GOODBYE, Header::new(Kind::Goodbye), Fields::failed("frame kind 9 is unknown"), b"");
}

#[test]
fn codes_are_those_of_the_protocol() {
    let kinds: Vec<u8> = Kind::ALL.iter().map(|&kind| kind as u8).collect();
    assert_eq!(kinds, (1..=8).collect::<Vec<u8>>());
    for code in 0..=255 {
        assert_eq!(Kind::from_code(code).map(|kind| kind as u8), (1..=8).contains(&code).then_some(code));
        assert_eq!(Verb::from_code(code).map(|verb| verb as u8), (1..=7).contains(&code).then_some(code));
        let status = Status::from_code(u16::from(code));
        assert_eq!(status.map(Status::code), (code <= 14 || (16..=18).contains(&code)).then_some(u16::from(code)));
    }
    let names: Vec<_> = (1..=14).map(|code| Status::from_code(code).expect("known")).collect();
    assert_eq!(names[0], Status::Error(ErrorKind::NotFound));
    assert_eq!(names[6], Status::Error(ErrorKind::Full));
    assert_eq!(names[13], Status::Error(ErrorKind::NotAllowed));
    assert_eq!(Status::from_code(16), Some(Status::Error(ErrorKind::Unreachable)));
    assert_eq!(Status::from_code(17), Some(Status::Error(ErrorKind::OutcomeUnknown)));
    assert_eq!(Status::from_code(18), Some(Status::Error(ErrorKind::OutcomeLost)));
}

#[test]
fn conditions_read_back_and_waiting_is_not_one_of_them() {
    let all =
        [Condition::None, Condition::IfAbsent, Condition::IfPresent, Condition::IfVersion(77), Condition::IfCas(78)];
    for condition in all {
        let mut header = Header::request(Verb::Put, 1);
        header.set_condition(condition);
        assert_eq!((header.condition(), header.newer_than()), (Some(condition), None));
    }
    let waits = Header { code: CODE_NEWER, version: 9, ..Header::request(Verb::Get, 1) };
    assert_eq!((waits.condition(), waits.newer_than()), (None, Some(9)));
}

fn random_header(random: &mut Random) -> Header {
    let kind = Kind::ALL[random.below(8)];
    let has_head = !matches!(kind, Kind::Data | Kind::Credit | Kind::Cancel);
    let has_body = matches!(kind, Kind::Request | Kind::Reply | Kind::Data);
    let more = has_body && random.below(2) == 1;
    let blocks = random.below(17) * BLOCK_BYTES;
    Header {
        kind,
        verb: random.next() as u8,
        flags: random.next() as u8 & !FLAG_MORE | u8::from(more),
        id: random.next(),
        code: random.next() as u16,
        head_len: if has_head { random.below(WIRE_HEAD_MAX_BYTES + 1) as u16 } else { 0 },
        body_len: match (has_body, more) {
            (false, _) => 0,
            (true, true) => blocks as u32,
            (true, false) => random.below(WIRE_FRAME_BODY_MAX_BYTES + 1) as u32,
        },
        collection: random.next(),
        version: random.next(),
        offset: random.next(),
        length: random.next(),
        epoch: random.next() as u32,
        time_ms: random.next() as u32,
        extra: random.next() as u16,
        hops: random.next() as u8,
        head_crc: random.next() as u32,
        brief: false,
    }
}

/// A get of object 8 on collection 2 whose reply may be brief, and such a reply of three bytes.
fn brief_reply() -> (Header, Header) {
    let id = request_id(0x01_02_03, 8);
    let request = Header { flags: FLAG_BRIEF, collection: 2, ..Header::request(Verb::Get, id) };
    let mut reply = Header::reply_to(&request, Status::Ok);
    (reply.version, reply.length, reply.epoch, reply.hops) = (0x0102_0304_0506_0708, 3, 9, 1);
    reply.set_ack(Class::Ram(1), 1);
    (request, reply)
}

#[test]
fn a_brief_reply_has_its_golden_bytes_and_every_flipped_bit_is_found() {
    let (_, reply) = brief_reply();
    let bytes = from_hex(BRIEF);
    assert_eq!(frame(reply, &Fields::default(), b"abc"), bytes);
    let read = parse_frame(&bytes).expect("parses").expect("is whole");
    assert_eq!((read.bytes(), read.body()), (39, Ok(&b"abc"[..])));
    // The asker knows the collection.
    assert_eq!(*read.header(), Header { collection: 0, body_len: 3, ..reply });
    for end in 0..bytes.len() {
        assert_eq!(parse_frame(&bytes[..end]), Ok(None), "{end} bytes");
    }
    for bit in 0..8 * bytes.len() {
        let mut bad = bytes.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        // The first bit makes a long frame of it, of which more is needed.
        let found = parse_frame(&bad).map(|frame| frame.map(|frame| frame.body().is_err()));
        assert!(matches!(found, Err(_) | Ok(Some(true)) | Ok(None)) && (bit == 0 || found != Ok(None)), "bit {bit}");
    }
}

#[test]
fn a_reply_is_brief_only_where_nothing_is_lost() {
    let (request, reply) = brief_reply();
    let long = |header: Header, fields: &Fields<'_>, body: &[u8]| frame(header, fields, body)[0] == MAGIC;
    let none = Fields::default();
    assert!(!long(reply, &none, b"abc"));
    let unasked = Header { flags: 0, ..request };
    let by_name = Header { collection: CollectionId::BY_NAME.0, ..request };
    for request in [unasked, by_name] {
        assert!(long(Header { length: 3, ..Header::reply_to(&request, Status::Ok) }, &none, b"abc"));
    }
    assert!(long(reply, &Fields { flags: Some(7), ..none }, b"abc"), "fields");
    for header in [
        Header { flags: FLAG_MORE, length: 0, ..reply },
        Header { offset: 1, length: 0, ..reply },
        Header { length: 1, ..reply },
        Header { time_ms: 1, length: 0, ..reply },
        Header { code: 256, length: 0, ..reply },
        Header { kind: Kind::Request, length: 0, ..reply },
    ] {
        assert!(long(header, &none, b""), "{header:?}");
    }
    let body = vec![7; BLOCK_BYTES];
    assert!(long(Header { length: body.len() as u64, ..reply }, &none, &body), "65,536 bytes");
    let most = &body[1..];
    let bytes = frame(Header { length: most.len() as u64, ..reply }, &none, most);
    assert_eq!((bytes[0], bytes.len()), (BRIEF_MAGIC, BRIEF_BYTES + 4 + most.len()));
    assert_eq!(parse_frame(&bytes).expect("parses").expect("is whole").body(), Ok(most));
}

#[test]
fn headers_read_back_and_every_flipped_bit_is_found() {
    for_seeds(300, |random| {
        let header = random_header(random);
        let bytes = header.encode();
        assert_eq!(Header::decode(&bytes), Ok(header));
        for bit in 0..8 * HEADER_BYTES {
            let mut bad = bytes;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(Header::decode(&bad).is_err(), "bit {bit}");
        }
    });
}

#[test]
fn every_breach_of_a_header_has_its_own_error() {
    let put = Header::request(Verb::Put, 1);
    let decode = |header: Header| Header::decode(&header.encode()).map(|_| ());
    assert_eq!(decode(put), Ok(()));
    assert_eq!(decode(Header { head_len: 8193, ..put }), Err(WireError::HeadTooLong(8193)));
    assert_eq!(decode(Header { body_len: (1 << 20) + 1, ..put }), Err(WireError::BodyTooLong((1 << 20) + 1)));
    assert_eq!(decode(Header { body_len: 1000, flags: FLAG_MORE, ..put }), Err(WireError::BodyNotInBlocks(1000)));
    assert_eq!(decode(Header { head_len: 1, ..Header::credit(1, 1) }), Err(WireError::UnexpectedHead(6)));
    assert_eq!(decode(Header { body_len: 1, ..Header::new(Kind::Hello) }), Err(WireError::UnexpectedBody(1)));
    let mut bytes = put.encode();
    bytes[0] = b'G';
    assert_eq!(Header::decode(&bytes), Err(WireError::BadMagic(b'G')));
    bytes = put.encode();
    bytes[40] ^= 1;
    assert_eq!(Header::decode(&bytes), Err(WireError::BadHeaderCrc));
    bytes = put.encode();
    bytes[1] = 9;
    let crc = crc32c(&[&bytes[..4], &bytes[8..]].concat());
    bytes[4..8].copy_from_slice(&crc.to_le_bytes());
    assert_eq!(Header::decode(&bytes), Err(WireError::UnknownKind(9)));
}

/// Owner of what random [`Fields`] borrow.
struct Owned {
    blobs: [Vec<u8>; 4],
    texts: [String; 5],
}

fn random_owned(random: &mut Random) -> Owned {
    let mut blob = |least: usize, most: usize| {
        let length = least + random.below(most - least + 1);
        random.bytes(length)
    };
    let blobs = [blob(1, NAME_MAX_BYTES), blob(0, ATTRIBUTES_MAX_BYTES), blob(0, 300), blob(0, 300)];
    let mut text = |least: usize, most: usize| {
        let length = least + random.below(most - least + 1);
        random.text(length)
    };
    let texts = [text(1, COLLECTION_NAME_MAX_BYTES), text(0, 300), text(0, 300), text(0, 300), text(0, 300)];
    Owned { blobs, texts }
}

fn random_fields<'a>(random: &mut Random, owned: &'a Owned) -> Fields<'a> {
    Fields {
        name: random.maybe(|_| &owned.blobs[0][..]),
        ttl_ms: random.maybe(Random::next),
        flags: random.maybe(|random| random.next() as u32),
        attributes: random.maybe(|_| &owned.blobs[1][..]),
        collection: random.maybe(|_| &owned.texts[0][..]),
        spec: random.maybe(|_| &owned.texts[1][..]),
        error: random.maybe(|_| &owned.texts[2][..]),
        prefix: random.maybe(|_| &owned.blobs[2][..]),
        after: random.maybe(|_| &owned.blobs[3][..]),
        limit: random.maybe(|random| random.next() as u32),
        method: random.maybe(|_| &owned.texts[3][..]),
        features: random.maybe(Random::next),
        highest_version: random.maybe(|random| random.next() as u16),
        session: random.maybe(|random| random.next() as u32),
        node: random.maybe(|_| &owned.texts[4][..]),
        expires_ms: random.maybe(Random::next),
        checksum: random.maybe(|random| random.next() as u32),
        token: random.maybe(|_| b"sixteen bytes id and a u64".first_chunk().expect("24")),
        peer: random.maybe(|_| &owned.blobs[2][..owned.blobs[2].len().min(WIRE_PEER_MAX_BYTES)]),
        proof: random.maybe(|_| b"sixteen bytes .."),
        between: random.maybe(|random| random_between(random, &owned.blobs[3])),
        answered: random.maybe(|_| &owned.blobs[2][..]),
    }
}

fn random_between<'a>(random: &mut Random, bytes: &'a [u8]) -> Between<'a> {
    let all = [
        Between::Join,
        Between::Joined,
        Between::Map,
        Between::Asked,
        Between::Became,
        Between::Group,
        Between::Meant,
        Between::Routes,
    ];
    all[random.below(all.len())](bytes)
}

#[test]
fn fields_read_back_beside_unknown_ones() {
    for_seeds(500, |random| {
        let owned = random_owned(random);
        let fields = random_fields(random, &owned);
        let mut head = Vec::new();
        fields.encode(&mut head).expect("within the limits");
        head.splice(0..0, [200, 2, 0, 1, 2]);
        head.extend_from_slice(&[255, 0, 0]);
        assert_eq!(Fields::decode(&head), Ok(fields));
    });
}

#[test]
fn every_breach_of_a_head_has_its_own_error() {
    let decode = |head: &[u8]| Fields::decode(head).map(|_| ());
    assert_eq!(decode(&[]), Ok(()));
    assert_eq!(decode(&[1, 1]), Err(WireError::CutShort));
    assert_eq!(decode(&[1, 2, 0, b'a']), Err(WireError::CutShort));
    assert_eq!(decode(&[1, 0, 0]), Err(WireError::FieldLength { tag: 1, length_bytes: 0 }));
    assert_eq!(decode(&[2, 1, 0, 7]), Err(WireError::FieldLength { tag: 2, length_bytes: 1 }));
    assert_eq!(decode(&[7, 1, 0, 0xFF]), Err(WireError::NotText(7)));
    assert_eq!(decode(&[1, 1, 0, b'a', 1, 1, 0, b'b']), Err(WireError::FieldTwice(1)));
    assert_eq!(decode(&[21, 1, 0, b'a', 21, 1, 0, b'b']), Err(WireError::FieldTwice(21)));
    assert_eq!(decode(&[21, 1, 0, b'a', 26, 1, 0, b'b']), Err(WireError::FieldTwice(26)), "one of its kinds at most");
    let long = [&[1, 1, 4][..], &[b'n'; 1025]].concat();
    assert_eq!(decode(&long), Err(WireError::FieldLength { tag: 1, length_bytes: 1025 }));
}

#[test]
fn a_head_over_its_limit_is_refused_and_leaves_no_trace() {
    let text = "x".repeat(5000);
    let fields = Fields { error: Some(&text), node: Some(&text), ..Default::default() };
    let mut out = b"before".to_vec();
    let refused = encode_frame(&mut out, Header::new(Kind::Goodbye), &fields, b"");
    assert_eq!((refused, &out[..]), (Err(WireError::HeadTooLong(10_006)), &b"before"[..]));
    let empty_name = encode_frame(&mut out, Header::request(Verb::Get, 1), &Fields::named(b""), b"");
    assert_eq!((empty_name, &out[..]), (Err(WireError::FieldLength { tag: 1, length_bytes: 0 }), &b"before"[..]));
    let big = vec![0; WIRE_FRAME_BODY_MAX_BYTES + 1];
    let refused = encode_frame(&mut out, Header::request(Verb::Put, 1), &Fields::named(b"n"), &big);
    assert_eq!((refused, out.len()), (Err(WireError::BodyTooLong(big.len())), 6));
}

fn random_frame(random: &mut Random) -> Vec<u8> {
    let owned = random_owned(random);
    let (header, fields) = (random_header(random), random_fields(random, &owned));
    let body = random.bytes(header.body_len as usize);
    let fields = if header.head_len > 0 { fields } else { Fields::default() };
    frame(header, &fields, &body)
}

#[test]
fn a_frame_is_whole_just_at_its_last_byte() {
    for_seeds(60, |random| {
        let bytes = random_frame(random);
        let cut = random.below(bytes.len());
        assert_eq!(parse_frame(&bytes[..cut]), Ok(None));
        let parsed = parse_frame(&bytes).expect("parses").expect("is whole");
        assert_eq!(parsed.bytes(), bytes.len());
        assert_eq!(parsed.header().frame_bytes(), bytes.len());
        assert!(parsed.fields().is_ok() && parsed.body().is_ok());
        let at_body = parsed.head.bytes();
        assert_eq!(parse_frame_head(&bytes[..at_body]).expect("parses"), Some(parsed.head));
        assert_eq!(parse_frame_head(&bytes[..at_body - 1]), Ok(None));
    });
}

#[test]
fn every_flipped_bit_of_a_frame_is_found() {
    let header = Header { length: 70_000, ..Header::request(Verb::Put, 3) };
    let mut random = Random::new(5);
    let whole = frame(header, &Fields::named(b"some name"), &random.bytes(70_000));
    let intact = |bytes: &[u8]| match parse_frame(bytes) {
        Ok(Some(frame)) => frame.body().is_ok() && frame.fields().is_ok(),
        _ => false,
    };
    assert!(intact(&whole));
    for bit in (0..8 * 92).chain((8 * 92..8 * whole.len()).step_by(997)) {
        let mut bad = whole.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        assert!(!intact(&bad), "bit {bit}");
    }
}

#[test]
fn random_bytes_never_panic() {
    for_seeds(20_000, |random| {
        let length = random.below(400);
        let mut bytes = random.bytes(length);
        let _ = Fields::decode(&bytes);
        assert!(ListEntries::new(&bytes).count() <= 1 + length / LIST_ENTRY_OVERHEAD_BYTES);
        if length > 0 {
            bytes[0] = MAGIC;
        }
        assert!(!matches!(parse_frame(&bytes), Ok(Some(_))), "a checksum by chance");
    });
}

/// Frames with right checksums and a random head and lengths: what a hostile client that knows the protocol sends.
#[test]
fn well_sealed_nonsense_never_panics() {
    for_seeds(20_000, |random| {
        let length = random.below(60);
        let middle = random.bytes(length);
        let header = Header {
            head_len: random.below(length + 1) as u16,
            body_len: random.below(70_000) as u32,
            head_crc: crc32c(&middle),
            ..random_header(random)
        };
        let bytes = [&header.encode()[..], &middle].concat();
        if let Ok(Some(head)) = parse_frame_head(&bytes) {
            let _ = head.fields();
            assert_eq!(head.block_checks().count(), head.body_bytes().div_ceil(BLOCK_BYTES));
        }
    });
}

#[test]
fn blocks_are_checked_in_pieces_of_any_size() {
    for_seeds(60, |random| {
        let length = random.below(5 * BLOCK_BYTES);
        let mut body = random.bytes(length);
        let header = Header::request(Verb::Put, 1);
        let bytes = frame(header, &Fields::named(b"n"), &body);
        let head = parse_frame_head(&bytes).expect("parses").expect("is whole");
        let broken = (length > 0).then(|| random.below(length)).filter(|_| random.below(2) == 1);
        if let Some(at) = broken {
            body[at] ^= 0x40;
        }
        let mut checks = head.checker();
        let mut result = Ok(());
        let mut rest = &body[..];
        while !rest.is_empty() && result.is_ok() {
            let most = if random.below(2) == 1 { 4000 } else { 3 * BLOCK_BYTES };
            let (piece, after) = rest.split_at((1 + random.below(most)).min(rest.len()));
            result = checks.update(piece);
            rest = after;
        }
        match broken {
            Some(at) => assert_eq!(result, Err(WireError::BadBlock(at / BLOCK_BYTES))),
            None => assert_eq!((result, checks.remaining_bytes()), (Ok(()), 0)),
        }
    });
}

#[test]
fn listings_read_back_and_a_cut_one_is_refused() {
    for_seeds(200, |random| {
        let names: Vec<Vec<u8>> = (0..random.below(20))
            .map(|_| {
                let length = 1 + random.below(NAME_MAX_BYTES);
                random.bytes(length)
            })
            .collect();
        let entries: Vec<ListEntry<'_>> =
            names.iter().map(|name| ListEntry { name, size_bytes: random.next(), version: random.next() }).collect();
        let mut page = Vec::new();
        entries.iter().for_each(|entry| entry.encode(&mut page));
        assert_eq!(page.len(), entries.iter().map(ListEntry::encoded_bytes).sum::<usize>());
        let back: Result<Vec<_>, _> = ListEntries::new(&page).collect();
        assert_eq!(back.as_deref(), Ok(&entries[..]));
        if let Some(last) = entries.last() {
            let cut = page.len() - 1 - random.below(last.encoded_bytes() - 1);
            let back: Result<Vec<_>, _> = ListEntries::new(&page[..cut]).collect();
            assert_eq!(back, Err(WireError::CutShort));
        }
    });
    let nameless = [0; LIST_ENTRY_OVERHEAD_BYTES];
    let refused = ListEntries::new(&nameless).next();
    assert_eq!(refused, Some(Err(WireError::FieldLength { tag: 1, length_bytes: 0 })));
}
