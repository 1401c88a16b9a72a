//! Messages of groups: each reads back as it was written, and bytes that do not go together are refused.

use super::*;
use crate::chance::Chance;
use crate::checksum::crc32c;
use crate::limits::{ATTRIBUTES_MAX_BYTES, NAME_MAX_BYTES};
use crate::wire::hello::hex;
use crate::wire::{FLAG_MORE, HEADER_BYTES, parse_frame};

const GROUP_ID: GroupId = GroupId { spread: 3, number: 0x0102 };

// Made by another program from PROTOCOL.md, with a bitwise CRC-32C.
const PREPARE_OF_A_RANGE: &str = "\
    ce0312083b606555000000000000000003007e0004000000020000000000000009000000000000000400000000000000\
    04000000000000004d0000000000000000000000be8ad78d0101006e0208008403000000000000030400070000000400\
    00121800747474747474747474747474747474740b000000000000001b14001500000000000000160000000000000002\
    0034321a3000030002010500000006000000010000000000000002000000000000000800000000000000000103050000\
    0000000000035e7ffe7070617274";
const NEED_WHOLE: &str = "\
    ce031208e682edad00000000000000000800140000000000020000000000000009000000000000000000000000000000\
    00000000000000004d0000000000000000000000560be33a0101006e1a0d0003000201050000000600000002";

/// Owner of what a random message borrows.
struct Owned {
    name: Vec<u8>,
    value: Vec<u8>,
    attributes: Vec<u8>,
    answers: Vec<u8>,
}

fn bytes(chance: &mut Chance, least: usize, most: usize) -> Vec<u8> {
    let length = least + chance.index(most - least + 1);
    (0..length).map(|_| chance.next() as u8).collect()
}

fn owned(chance: &mut Chance) -> Owned {
    let most = chance.one_of(&[0, 1, 100, BLOCK_BYTES]).expect("one of them");
    let mut answers = Vec::new();
    for _ in 0..chance.below(4) {
        let result = bytes(chance, 0, 300);
        Answers::push(&mut answers, RequestId { client: chance.next(), sequence: chance.next() }, &result);
    }
    let (name, value) = (bytes(chance, 1, NAME_MAX_BYTES), bytes(chance, 0, most));
    Owned { name, value, attributes: bytes(chance, 0, ATTRIBUTES_MAX_BYTES), answers }
}

fn some<T>(chance: &mut Chance, make: impl FnOnce(&mut Chance) -> T) -> Option<T> {
    (chance.below(2) == 1).then(|| make(chance))
}

fn fence(chance: &mut Chance) -> Option<Fence> {
    some(chance, |chance| Token { lock: [chance.next() as u8; 16], grant: chance.next() })
}

fn put<'a>(chance: &mut Chance, owned: &'a Owned, whole: bool) -> PutOf<'a> {
    let sent = match chance.below(2) {
        0 => Sent::Staged { id: chance.next(), length: chance.next() },
        _ => Sent::Inline(&owned.value, crc32c(&owned.value)),
    };
    let value = match chance.below(3) {
        0 if !whole => ValueOf::Kept,
        1 if !whole => ValueOf::Range(chance.next(), sent),
        _ => ValueOf::Whole(sent),
    };
    let (stale, token_sent) = (chance.below(2) == 1, chance.below(2) == 1);
    PutOf {
        value,
        flags: some(chance, |chance| chance.next() as u32).unwrap_or_default(),
        left_ms: some(chance, Chance::next),
        attributes: some(chance, |_| &owned.attributes[..]),
        memcached: Memcached { cas: chance.next(), stale, token_sent },
        fence: fence(chance),
    }
}

fn delta<'a>(chance: &mut Chance, owned: &'a Owned, removes: bool, whole: bool) -> Delta<'a> {
    let becomes = if removes { Becomes::Removed(fence(chance)) } else { Becomes::Put(put(chance, owned, whole)) };
    Delta { becomes, answers: Answers::of(&owned.answers).expect("they were made so") }
}

fn view(chance: &mut Chance) -> View {
    let member = |chance: &mut Chance| Member {
        standing: chance.one_of(&STANDINGS).expect("one of them"),
        since: chance.next() as u32,
    };
    let members = (0..chance.below(9)).map(|node| (NodeId(node as u32 * 7), member(chance))).collect();
    let (epoch, primary, since) = (chance.next() as u32, NodeId(chance.next() as u32), chance.next() as u32);
    View { epoch, primary, since, members, k: 1 + chance.index(9) }
}

fn pending(chance: &mut Chance) -> Pending {
    Pending { version: chance.next(), base: chance.next(), removes: chance.below(2) == 1 }
}

/// A message of the kind with this code.
fn message<'a>(code: u16, chance: &mut Chance, owned: &'a Owned) -> Message<Key<'a>, Delta<'a>> {
    let key = Key { collection: CollectionId(chance.next()), generation: chance.next() as u32, name: &owned.name };
    let (epoch, version, settled) = (chance.next() as u32, chance.next(), chance.next());
    match code {
        ADOPT => Message::Adopt { view: view(chance) },
        ADOPTED => Message::Adopted { epoch, pending: (0..chance.below(9)).map(|_| (key, pending(chance))).collect() },
        PREPARE => {
            let (serial, write) = (chance.next(), pending(chance));
            let offer = match chance.below(3) {
                0 => Offer::Name,
                1 => Offer::Change(delta(chance, owned, write.removes, false)),
                _ => Offer::Whole(delta(chance, owned, write.removes, true)),
            };
            Message::Prepare { epoch, serial, settled, key, write, offer }
        }
        ABORT => Message::Abort { epoch, settled, key, version },
        SETTLE => Message::Settle { epoch, settled },
        RESOLVE => Message::Resolve { epoch, key, version, commit: chance.below(2) == 1 },
        COPY => {
            let removes = chance.below(2) == 1;
            Message::Copy { epoch, key, version, state: delta(chance, owned, removes, true) }
        }
        ANSWER => Message::Answer { epoch, key, version, verdict: chance.one_of(&VERDICTS).expect("one") },
        _ => Message::Moved { view: view(chance) },
    }
}

fn encoded(message: Message<Key<'_>, Delta<'_>>) -> Vec<u8> {
    let mut out = Vec::new();
    GroupMessage { group: GROUP_ID, message }.encode(&mut out, 77).expect("within the limits");
    out
}

/// What is read of one frame.
fn decoded(frame: &[u8]) -> Result<GroupMessage<'_>, WireError> {
    let frame = parse_frame(frame).expect("parses").expect("is whole");
    GroupMessage::decode(&frame.head, frame.body().expect("its blocks are right"))
}

#[test]
fn a_prepare_and_its_answer_have_their_golden_bytes() {
    let key = Key { collection: CollectionId::DEFAULT, generation: 6, name: b"n" };
    let mut answers = Vec::new();
    assert!(Answers::push(&mut answers, RequestId { client: 21, sequence: 22 }, b"42"));
    let put = PutOf {
        value: ValueOf::Range(4, Sent::Inline(b"part", crc32c(b"part"))),
        flags: 7,
        left_ms: Some(900),
        attributes: Some(b""),
        memcached: Memcached { cas: 5, stale: true, token_sent: true },
        fence: Some(Token { lock: [b't'; 16], grant: 11 }),
    };
    let answers = Answers::of(&answers).expect("they were made so");
    let offer = Offer::Change(Delta { becomes: Becomes::Put(put), answers });
    let write = Pending { version: 9, base: 8, removes: false };
    let prepare = Message::Prepare { epoch: 5, serial: 2, settled: 1, key, write, offer };
    assert_eq!(hex(&encoded(prepare)), PREPARE_OF_A_RANGE);
    let answer = Message::Answer { epoch: 5, key, version: 9, verdict: Verdict::NeedWhole };
    assert_eq!(hex(&encoded(answer)), NEED_WHOLE);
}

#[test]
fn every_message_reads_back_and_takes_one_frame() {
    for seed in 0..300 {
        let chance = &mut Chance(seed);
        let owned = owned(chance);
        for code in ADOPT..=MOVED {
            let message = message(code, chance, &owned);
            let bytes = encoded(message.clone());
            let frame = parse_frame(&bytes).expect("parses").expect("is whole");
            let header = frame.header();
            assert_eq!((frame.bytes(), header.verb, header.code), (bytes.len(), VERB_GROUP, code), "seed {seed}");
            assert_eq!((header.kind, header.id, header.epoch), (Kind::Request, 0, 77));
            assert!(header.has(FLAG_QUIET), "nobody answers it");
            assert_eq!(decoded(&bytes), Ok(GroupMessage { group: GROUP_ID, message }), "seed {seed}, message {code}");
        }
    }
}

#[test]
fn a_small_replicated_write_takes_few_bytes_each_way() {
    let key = Key { collection: CollectionId::DEFAULT, generation: 1, name: b"a name of 16 b.." };
    let write = Pending { version: 9, base: 8, removes: false };
    let value = ValueOf::Whole(Sent::Inline(&[7; 64], crc32c(&[7; 64])));
    let (attributes, memcached) = (Some(&[][..]), Memcached::default());
    let put = PutOf { value, flags: 0, left_ms: None, attributes, memcached, fence: None };
    let mut answers = Vec::new();
    assert!(Answers::push(&mut answers, RequestId { client: 1, sequence: 2 }, b""));
    let answers = Answers::of(&answers).expect("they were made so");
    let offer = Offer::Change(Delta { becomes: Becomes::Put(put), answers });
    let prepare = encoded(Message::Prepare { epoch: 1, serial: 5, settled: 4, key, write, offer });
    let answer = encoded(Message::Answer { epoch: 1, key, version: 9, verdict: Verdict::Prepared });
    assert_eq!((prepare.len(), answer.len()), (HEADER_BYTES + 162, HEADER_BYTES + 35));
}

#[test]
fn a_message_is_the_same_in_owned_form() {
    for seed in 0..100 {
        let chance = &mut Chance(seed);
        let owned = owned(chance);
        for code in ADOPT..=MOVED {
            let message = message(code, chance, &owned);
            let kept = message.map(|key| (*key, key.name.to_vec()), |delta| *delta);
            let lent = kept.map(|(key, name)| Key { name, ..*key }, |delta| *delta);
            assert_eq!(lent, message);
        }
    }
}

#[test]
fn what_is_pending_may_take_many_frames_and_has_a_bound() {
    let name = [b'n'; NAME_MAX_BYTES];
    let key = Key { collection: CollectionId::DEFAULT, generation: 1, name: &name };
    let write = Pending { version: 2, base: 1, removes: true };
    let message = |count| Message::Adopted { epoch: 5, pending: vec![(key, write); count] };
    let bytes = encoded(message(3_000));
    let (mut rest, mut body, mut first) = (&bytes[..], None, None);
    while !rest.is_empty() {
        let frame = parse_frame(rest).expect("parses").expect("is whole");
        let header = frame.header();
        let assembly = body.get_or_insert_with(|| GroupMessage::body(header).expect("within the limit"));
        assert_eq!(assembly.take(header, frame.body().expect("checked")), Ok(!header.has(FLAG_MORE)));
        first.get_or_insert(frame.head);
        rest = &rest[frame.bytes()..];
    }
    let body = body.expect("some frames").into_bytes();
    let read = GroupMessage::decode(&first.expect("some frames"), &body).expect("understood");
    assert_eq!(read, GroupMessage { group: GROUP_ID, message: message(3_000) });
    let mut out = Vec::new();
    let refused = GroupMessage { group: GROUP_ID, message: message(17_000) }.encode(&mut out, 1);
    assert!(matches!(refused, Err(WireError::BodyTooLong(_))) && out.is_empty());
}

#[test]
fn what_is_over_a_limit_is_not_written() {
    let refused = |message| GroupMessage { group: GROUP_ID, message }.encode(&mut Vec::new(), 1).expect_err("refused");
    let key = Key { collection: CollectionId::DEFAULT, generation: 1, name: b"n" };
    let value = vec![0; BLOCK_BYTES + 1];
    let value = ValueOf::Whole(Sent::Inline(&value, 0));
    let put = PutOf { value, flags: 0, left_ms: None, attributes: None, memcached: Memcached::default(), fence: None };
    let state = Delta { becomes: Becomes::Put(put), answers: Answers::default() };
    assert_eq!(refused(Message::Copy { epoch: 1, key, version: 1, state }), WireError::BodyTooLong(BLOCK_BYTES + 1));
    let nameless = Key { name: b"", ..key };
    let error = refused(Message::Abort { epoch: 1, settled: 1, key: nameless, version: 1 });
    assert_eq!(error, WireError::FieldLength { tag: 1, length_bytes: 0 });
    let write = Pending { version: 2, base: 1, removes: true };
    assert_eq!(refused(Message::Adopted { epoch: 1, pending: vec![(nameless, write)] }), WireError::BadField(GROUP));
    for view in [View { k: 0, ..View::none() }, View { k: 10, ..View::none() }] {
        assert_eq!(refused(Message::Moved { view }), WireError::BadField(GROUP));
    }
    let member = Member { standing: Standing::Backup, since: 1 };
    let members = (0..17).map(|node| (NodeId(node), member)).collect();
    assert_eq!(refused(Message::Adopt { view: View { members, ..View::none() } }), WireError::BadField(GROUP));
}

#[test]
fn answers_are_as_many_as_fit_and_long_results_are_not_kept() {
    let (mut out, mut count) = (Vec::new(), 0);
    let id = |sequence| RequestId { client: 9, sequence };
    let result = [7; WINDOW_RESULT_MAX_BYTES];
    while Answers::push(&mut out, id(count), &result) {
        count += 1;
    }
    assert_eq!(count, (GROUP_ANSWERS_MAX_BYTES / (18 + WINDOW_RESULT_MAX_BYTES)) as u64);
    assert!(Answers::push(&mut out, id(count), &[7; WINDOW_RESULT_MAX_BYTES + 1]), "it takes few bytes");
    let read: Vec<_> = Answers::of(&out).expect("they were made so").iter().collect();
    assert!(read[..count as usize].iter().zip(0..).all(|(it, sequence)| *it == (id(sequence), Some(&result[..]))));
    assert_eq!(read[count as usize..], [(id(count), None)]);
    for cut in 1..out.len() {
        let whole = cut % (18 + WINDOW_RESULT_MAX_BYTES) == 0;
        assert_eq!(Answers::of(&out[..cut]).is_some(), whole, "{cut} bytes");
    }
    assert_eq!(Answers::of(&vec![0; GROUP_ANSWERS_MAX_BYTES + 18]), None);
    let too_long = [&[0; 16][..], &257u16.to_le_bytes(), &[0; 257]].concat();
    assert_eq!(Answers::of(&too_long), None);
}

/// A frame of this message, with another field of its own, or none, in place of the right one.
fn with_field(message: Message<Key<'_>, Delta<'_>>, change: impl FnOnce(&mut Header, &mut Vec<u8>)) -> Vec<u8> {
    let bytes = encoded(message);
    let frame = parse_frame(&bytes).expect("parses").expect("is whole");
    let (mut header, fields) = (*frame.header(), frame.fields().expect("fields"));
    let Some(Between::Group(own)) = fields.between else { panic!("it has one") };
    let mut own = own.to_vec();
    change(&mut header, &mut own);
    let mut out = Vec::new();
    let fields = Fields { between: Some(Between::Group(&own)), ..fields };
    crate::wire::encode_frame(&mut out, header, &fields, frame.body().expect("checked")).expect("within the limits");
    out
}

#[test]
fn a_message_that_is_cut_or_does_not_go_together_is_refused() {
    let refused = |frame: &[u8], why: &str| assert_eq!(decoded(frame), Err(WireError::BadField(GROUP)), "{why}");
    for seed in 0..20 {
        let chance = &mut Chance(seed);
        let owned = owned(chance);
        for code in ADOPT..=MOVED {
            let message = message(code, chance, &owned);
            let bytes = encoded(message.clone());
            let frame = parse_frame(&bytes).expect("parses").expect("is whole");
            let Some(Between::Group(own)) = frame.fields().expect("fields").between else { panic!("it has one") };
            for cut in 0..own.len() {
                refused(&with_field(message.clone(), |_, own| own.truncate(cut)), &format!("{cut} bytes of {code}"));
            }
            let frame = with_field(message.clone(), |header, _| header.code = MOVED + 1);
            refused(&frame, "no such message");
            assert!(decoded(&with_field(message, |_, own| own.extend(b"later"))).is_ok(), "what later versions add");
        }
    }
    let key = Key { collection: CollectionId::DEFAULT, generation: 1, name: b"n" };
    let write = Pending { version: 2, base: 1, removes: true };
    let removal = Delta { becomes: Becomes::Removed(None), answers: Answers::default() };
    let offer = Offer::Change(removal);
    let prepare = Message::Prepare { epoch: 1, serial: 1, settled: 1, key, write, offer };
    refused(&with_field(prepare.clone(), |_, own| own[36] = 0), "it removes, and it does not");
    refused(&with_field(prepare, |_, own| own[38] = 6), "no such change");
    let kept = PutOf {
        value: ValueOf::Kept,
        flags: 0,
        left_ms: None,
        attributes: None,
        memcached: Memcached::default(),
        fence: None,
    };
    let state = Delta { becomes: Becomes::Put(kept), answers: Answers::default() };
    refused(&encoded(Message::Copy { epoch: 1, key, version: 1, state }), "a copy is whole");
    let answer = Message::Answer { epoch: 1, key, version: 1, verdict: Verdict::Prepared };
    refused(&with_field(answer, |_, own| own[12] = 7), "no such verdict");
}

#[test]
fn any_bytes_of_a_list_are_taken_or_refused() {
    let chance = &mut Chance(3);
    for code in [ADOPT, ADOPTED, MOVED] {
        for _ in 0..3_000 {
            let body = bytes(chance, 0, 60);
            let short = [0; 8];
            let fields = Fields { between: Some(Between::Group(&short)), ..Fields::default() };
            let header = Header { verb: VERB_GROUP, code, ..Header::new(Kind::Request) };
            let mut frame = Vec::new();
            crate::wire::encode_frame(&mut frame, header, &fields, &body).expect("within the limits");
            if let Ok(read) = decoded(&frame) {
                let again = encoded(read.message.clone());
                assert_eq!(decoded(&again).map(|again| again.message), Ok(read.message));
            }
        }
    }
    let twice = [&[0; 8][..], &[1, 2], &[5, 0, 0, 0, 0, 0, 0, 0, 0], &[5, 0, 0, 0, 0, 0, 0, 0, 0]].concat();
    let once = [&[0; 8][..], &[1, 1], &[5, 0, 0, 0, 0, 0, 0, 0, 0]].concat();
    for (body, fits) in [(twice, false), (once, true)] {
        let header = Header { verb: VERB_GROUP, code: ADOPT, ..Header::new(Kind::Request) };
        let fields = Fields { between: Some(Between::Group(&[0; 8])), ..Fields::default() };
        let mut frame = Vec::new();
        crate::wire::encode_frame(&mut frame, header, &fields, &body).expect("within the limits");
        assert_eq!(decoded(&frame).is_ok(), fits, "a node stands there once");
    }
}
