//! Operations that are handed on become the same operations, and replies tell what a door must know.

use super::*;
use crate::Chunks;
use crate::chance::Chance;
use crate::checksum::crc32c;
use crate::limits::NAME_MAX_BYTES;
use crate::wire::hello::hex;
use crate::wire::{CODE_NEWER, FLAG_HEAD_ONLY, Frame, encode_frame, parse_frame};

const NOW_MS: u64 = 1_800_000_000_000;
const NAME: &[u8] = b"n";

// Made by another program from PROTOCOL.md, with a bitwise CRC-32C.
const APPEND_BY_MS: &str = "\
    ce0304000897420a070000000000000005004a0005000000020000000000000008000000000000000000000000000000\
    05000000000000000500000028230000000001002e86ae4e0101006e121800747474747474747474747474747474740b\
    00000000000000182800150000000000000016000000000000001e000000000010000000000003070201006e04004d41\
    20636303e0e176616c7565";
const WAS_AND_IS: &str = "\
    00505c18a301000064000000030900000000000000050000000000000000000000000000000000000000000000030000\
    005a000000010a000000000000000600000000000000603a5d18a30100000700000000000000030000005b00000006";

/// A large value that nobody looks into.
#[derive(Clone, Debug)]
struct Body(u64);

impl Chunks for Body {
    fn size_bytes(&self) -> u64 {
        self.0
    }

    fn chunk(&self, _: u64) -> &[u8] {
        &[]
    }
}

type AnOp<'a> = Op<'a, Body>;

fn asked(chance: &mut Chance) -> Asked {
    Asked {
        id: RequestId { client: chance.next(), sequence: chance.next() },
        first_epoch: chance.next() as u32,
        max_bytes: chance.next(),
        at_primary: chance.below(2) == 1,
        else_remove: chance.below(2) == 1,
        uncounted: chance.below(2) == 1,
        is_first: chance.below(2) == 1,
        is_again: chance.below(2) == 1,
    }
}

fn metas() -> Vec<Meta<'static>> {
    let words: [&[u8]; 7] =
        [b"", b"v", b"t s v T90 N30 R10", b"c q O123 k C77 E78", b"I x F5", b"N0 D3 J9 MI", b"S5 v"];
    let all = words.map(|words| Meta::of_sent(NAME, words));
    let mut all: Vec<Meta<'_>> = all.into_iter().flatten().collect();
    assert_eq!(all.len(), 6, "S is no flag");
    all.push(Meta::of_sent(b"bg==", b"b v").expect("a name in base64"));
    all
}

/// A value as doors give it.
fn given<'a>(chance: &mut Chance, bytes: &'a [u8]) -> Given<'a, Body> {
    match chance.below(2) {
        0 => Given::Large(Body(1 + chance.below(1 << 30))),
        _ => Given::Small(bytes, Some(crc32c(bytes))),
    }
}

/// Every kind of operation that doors make, with all that it may say.
fn actions<'a>(chance: &mut Chance, metas: &'a [Meta<'a>], bytes: &'a [u8]) -> Vec<Action<'a, Body>> {
    let of = |method| Action::Execute(Method::Memcached(method));
    let (exptime, delta, decrement) = (chance.next() as i64, chance.next(), chance.below(2) == 1);
    let mut all = vec![
        Action::Read,
        Action::Remove,
        Action::Put(Put::of(given(chance, bytes))),
        Action::Put(Put {
            from: Some(chance.next()),
            flags: Some(chance.next() as u32),
            expires_ms: Some(NOW_MS + chance.below(1 << 40)),
            attributes: Some(bytes),
            ..Put::of(given(chance, bytes))
        }),
        of(memcached::Method::Touch { exptime }),
        of(memcached::Method::Arith { delta, decrement }),
    ];
    let join = |behind, value| Action::Execute(Method::Join { value, behind, create: false });
    all.extend([join(true, given(chance, bytes)), join(false, given(chance, bytes))]);
    for meta in metas {
        let mode = chance.one_of(&SET_MODES).expect("one of them");
        all.push(of(memcached::Method::Get(meta)));
        all.push(of(memcached::Method::Set { meta, mode, value: given(chance, bytes) }));
        all.push(of(memcached::Method::Delete(meta)));
        all.push(of(memcached::Method::MetaArith { meta, decrement }));
    }
    all
}

fn parse(bytes: &[u8]) -> Frame<'_> {
    parse_frame(bytes).expect("parses").expect("is whole")
}

/// The frame of an operation, without the body if that is large.
fn frame(op: &AnOp<'_>, asked: &Asked) -> Option<Vec<u8>> {
    let (mut out, mut scratch) = (Vec::new(), b"of the one before".to_vec());
    let (header, fields) = encode_op(op, NAME, asked, NOW_MS, &mut scratch)?;
    assert_eq!(fields.name, Some(NAME));
    let header = Header { id: 7, collection: 2, epoch: 5, hops: 1, time_ms: 9_000, ..header };
    let body = match value_of(op) {
        Some(Given::Small(bytes, _)) => *bytes,
        _ => &[],
    };
    encode_frame(&mut out, header, &fields, body).expect("within the limits");
    Some(out)
}

/// What the node that serves it does by a frame; `value` is what came with it.
fn served(frame: &Frame<'_>, value: Given<'_, Body>) -> (Asked, Result<String, Error>) {
    let (header, fields) = (frame.header(), frame.fields().expect("fields"));
    let handed = Handed::decode(header, &fields).expect("well formed").expect("it was handed on");
    let op = handed.op(header, &fields, value, NOW_MS);
    (handed.asked, op.map(|op| format!("{op:?}")))
}

#[test]
fn a_request_and_what_became_of_it_have_their_golden_bytes() {
    let meta = Meta::of_sent(NAME, b"MA c").expect("a command");
    let value = Given::<Body>::Small(b"value", None);
    let method = memcached::Method::Set { meta: &meta, mode: SetMode::Append, value };
    let op = Op {
        action: Action::Execute(Method::Memcached(method)),
        condition: Condition::IfCas(8),
        token: Some(Token { lock: [b't'; 16], grant: 11 }),
        max_bytes: 1 << 20,
        else_remove: true,
    };
    let id = RequestId { client: 21, sequence: 22 };
    let asked = Asked { first_epoch: 30, at_primary: true, else_remove: true, ..Asked::new(id, 1 << 20) };
    assert_eq!(hex(&frame(&op, &asked).expect("it can be handed on")), APPEND_BY_MS);
    let (flags, fetched, memcached) = (3, true, Memcached::default());
    let before = Head { version: 9, size_bytes: 5, flags, expires_ms: 0, access_s: 90, fetched, memcached };
    let memcached = Memcached { cas: 7, stale: true, token_sent: true };
    let expires_ms = NOW_MS + 60_000;
    let after = Head { version: 10, size_bytes: 6, expires_ms, access_s: 91, fetched: false, memcached, ..before };
    let (clock, mut bytes) = (Clock { now_ms: NOW_MS, node_s: 100 }, Vec::new());
    Became { clock, before: Some(before), after: Some(after) }.encode(&mut bytes);
    assert_eq!(hex(&bytes), WAS_AND_IS);
}

#[test]
fn every_operation_of_a_door_is_the_same_where_it_is_served() {
    let metas = metas();
    for seed in 0..200 {
        let chance = &mut Chance(seed);
        let bytes: Vec<u8> = (0..chance.below(4096)).map(|_| chance.next() as u8).collect();
        for action in actions(chance, &metas, &bytes) {
            let conditions = [
                Condition::None,
                Condition::IfAbsent,
                Condition::IfPresent,
                Condition::IfVersion(7),
                Condition::IfCas(8),
            ];
            let condition = chance.one_of(&conditions).expect("one of them");
            let token = (chance.below(2) == 1).then(|| Token { lock: [3; 16], grant: chance.next() });
            let asked = asked(chance);
            let Asked { max_bytes, else_remove, .. } = asked;
            let op = Op { action, condition, token, max_bytes, else_remove };
            let bytes = frame(&op, &asked).expect("it can be handed on");
            let frame = parse(&bytes);
            let body = frame.body().expect("its blocks are right");
            let value = match value_of(&op) {
                Some(Given::Large(body)) => Given::Large(body.clone()),
                _ => Given::Small(body, Some(crc32c(body))),
            };
            assert_eq!(served(&frame, value), (asked, Ok(format!("{op:?}"))), "seed {seed}");
            let length = value_of(&op).map_or(0, Given::len);
            assert_eq!((frame.header().length, frame.header().epoch), (length, 5));
        }
    }
}

#[test]
fn times_go_by_what_is_left_of_them() {
    let op = |expires_ms| Op::new(Action::Put(Put { expires_ms, ..Put::<Body>::of(Given::Small(b"", None)) }), 9);
    let arrives = |expires_ms, now_ms| {
        let bytes = frame(&op(expires_ms), &asked(&mut Chance(1))).expect("it can be handed on");
        let frame = parse(&bytes);
        let (header, fields) = (frame.header(), frame.fields().expect("fields"));
        let handed = Handed::decode(header, &fields).expect("well formed").expect("it was handed on");
        match handed.op(header, &fields, Given::<Body>::Small(b"", None), now_ms).expect("an operation").action {
            Action::Put(put) => put.expires_ms,
            other => panic!("not a put: {other:?}"),
        }
    };
    assert_eq!(arrives(None, 5), None);
    assert_eq!(arrives(Some(0), 5), None, "never");
    assert_eq!(arrives(Some(NOW_MS + 700), 5), Some(705), "by another clock");
    assert_eq!([arrives(Some(1), 5), arrives(Some(1), 0)], [Some(5), Some(1)], "over already, and not never");
}

#[test]
fn a_method_of_the_wire_goes_on_as_it_came() {
    let op = |method| Op::<Body>::new(Action::Execute(method), 9);
    let asked = Asked { max_bytes: 1 << 20, ..asked(&mut Chance(1)) };
    for method in [Method::Take, Method::Join { value: Given::Small(b"x", None), behind: true, create: true }] {
        assert!(frame(&op(method), &asked).is_none());
    }
    let (mut said, mut arguments, mut out) = (Vec::new(), Vec::new(), Vec::new());
    asked.encode(&mut said);
    crate::method::push_item(&mut arguments, b"5");
    let fields = Fields { method: Some("fetch-and-add"), between: Some(Between::Asked(&said)), ..Fields::named(NAME) };
    encode_frame(&mut out, Header::request(Verb::Execute, 7), &fields, &arguments).expect("within the limits");
    let expected = Op { else_remove: asked.else_remove, ..op(Method::Add { delta: 5 }) };
    let expected = Op { max_bytes: 1 << 20, ..expected };
    let told = served(&parse(&out), Given::Small(&arguments, None));
    assert_eq!(told, (asked, Ok(format!("{expected:?}"))));
    let refused = |given| served(&parse(&out), given).1.expect_err("refused").kind;
    assert_eq!([refused(Given::Small(b"?", None)), refused(Given::Large(Body(9)))], [ErrorKind::BadRequest; 2]);
}

#[test]
fn a_get_that_waits_is_a_read_and_other_verbs_are_not_handed_on() {
    let mut said = Vec::new();
    asked(&mut Chance(1)).encode(&mut said);
    let fields = Fields { between: Some(Between::Asked(&said)), ..Fields::named(NAME) };
    let op = |header: Header| {
        let handed = Handed::decode(&header, &fields).expect("well formed").expect("it was handed on");
        let op = handed.op(&header, &fields, Given::<Body>::Small(b"", None), NOW_MS);
        op.map(|op| (matches!(op.action, Action::Read), op.condition)).map_err(|error| error.kind)
    };
    let waits = Header { code: CODE_NEWER, version: 9, flags: FLAG_HEAD_ONLY, ..Header::request(Verb::Get, 1) };
    assert_eq!(op(waits), Ok((true, Condition::None)));
    assert_eq!(op(Header { code: 99, ..waits }), Err(ErrorKind::BadRequest));
    for verb in [Verb::Create, Verb::Destroy, Verb::List, Verb::Execute] {
        assert_eq!(op(Header::request(verb, 1)), Err(ErrorKind::BadRequest), "{verb:?}");
    }
}

#[test]
fn what_does_not_go_together_or_has_come_too_far_is_refused() {
    let metas = metas();
    let chance = &mut Chance(4);
    let header = Header::request(Verb::Execute, 1);
    let decode = |header: &Header, said: &[u8]| {
        let fields = Fields { between: Some(Between::Asked(said)), ..Fields::default() };
        Handed::decode(header, &fields).map(|handed| handed.expect("it was handed on").asked)
    };
    for action in actions(chance, &metas, b"value") {
        let asked = asked(chance);
        let mut scratch = Vec::new();
        let op = Op { else_remove: asked.else_remove, ..Op::new(action, asked.max_bytes) };
        encode_op(&op, NAME, &asked, NOW_MS, &mut scratch).expect("it can be handed on");
        let said = &scratch[TOKEN_BYTES..];
        assert_eq!(decode(&header, said), Ok(asked));
        assert_eq!(decode(&Header { hops: FORWARD_HOPS_MAX, ..header }, said), Ok(asked));
        let far = Header { hops: FORWARD_HOPS_MAX + 1, ..header };
        assert_eq!(decode(&far, said), Err(WireError::BadField(ASKED)));
        for cut in 0..said.len() {
            assert_eq!(decode(&header, &said[..cut]), Err(WireError::BadField(ASKED)), "{cut} bytes of {said:?}");
        }
        for _ in 0..50 {
            let mut said = said.to_vec();
            let at = chance.index(said.len());
            said[at] = chance.next() as u8;
            let _ = decode(&header, &said);
        }
    }
    assert!(Handed::decode(&header, &Fields::default()).expect("well formed").is_none(), "a client's");
}

fn random_head(chance: &mut Chance) -> Head {
    let (stale, token_sent) = (chance.below(2) == 1, chance.below(2) == 1);
    Head {
        version: chance.next(),
        size_bytes: chance.next(),
        flags: chance.next() as u32,
        expires_ms: chance.next(),
        access_s: chance.next() as u32,
        fetched: chance.below(2) == 1,
        memcached: Memcached { cas: chance.next(), stale, token_sent },
    }
}

#[test]
fn a_reply_tells_what_was_and_what_is_there() {
    let chance = &mut Chance(1);
    for _ in 0..500 {
        let mut some = || (chance.below(2) == 1).then(|| random_head(chance));
        let (before, after) = (some(), some());
        let clock = Clock { now_ms: chance.next(), node_s: chance.next() as u32 };
        let (became, mut bytes) = (Became { clock, before, after }, Vec::new());
        became.encode(&mut bytes);
        let decode = |bytes| Became::decode(&Fields { between: Some(Between::Became(bytes)), ..Fields::default() });
        assert_eq!(decode(&bytes), Ok(Some(became)));
        for cut in 0..bytes.len() {
            assert_eq!(decode(&bytes[..cut]), Err(WireError::BadField(BECAME)), "{cut} bytes");
        }
        assert_eq!(became.created(), before.is_none() && after.is_some());
        let found = became.found::<Body>(b"attributes", Value::Inline(b"value", 5));
        let told = found.map(|found| (found.head, found.attributes, found.fence));
        assert_eq!(told, after.map(|head| (head, &b"attributes"[..], None)));
    }
    assert_eq!(Became::decode(&Fields::named(&[b'n'; NAME_MAX_BYTES])), Ok(None));
}

#[test]
fn one_formatter_serves_what_is_here_and_what_was_handed_on() {
    let (chance, mut bytes) = (&mut Chance(9), Vec::new());
    let head = Head { size_bytes: 5, expires_ms: NOW_MS + 60_000, access_s: 90, ..random_head(chance) };
    let clock = Clock { now_ms: NOW_MS, node_s: 100 };
    Became { clock, before: Some(head), after: Some(head) }.encode(&mut bytes);
    let fields = Fields { between: Some(Between::Became(&bytes)), ..Fields::default() };
    let became = Became::decode(&fields).expect("well formed").expect("it tells");
    let meta = Meta::of_sent(NAME, b"t l s c f h v T30").expect("a command");
    let answer = |mut head: Head, clock| {
        let mut out = Vec::new();
        crate::door::memcached::meta_get(&meta, &mut head, false, clock, &mut out);
        String::from_utf8(out).expect("text")
    };
    let found = became.found::<Body>(b"", Value::Inline(b"value", 0)).expect("there is one");
    let here = answer(head, clock);
    assert_eq!(answer(found.head, became.clock), here);
    assert!(here.contains(" t60 l10 s5 "), "by the clocks of the node that has it: {here}");
}
