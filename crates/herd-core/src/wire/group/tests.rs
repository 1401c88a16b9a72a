//! Messages of groups: each reads back as it was written, and bytes that do not go together are refused.

use super::*;
use crate::chance::Chance;
use crate::checksum::crc32c;
use crate::limits::{ATTRIBUTES_MAX_BYTES, NAME_MAX_BYTES};
use crate::wire::hello::hex;
use crate::wire::{HEADER_BYTES, parse_frame};

const GROUP_ID: GroupId = GroupId { spread: 3, number: 0x0102 };

// Made by another program from PROTOCOL.md, with a bitwise CRC-32C.
const PREPARE_OF_A_RANGE: &str = "\
    ce0312083b606555000000000000000003007e0004000000020000000000000009000000000000000400000000000000\
    04000000000000004d0000000000000000000000be8ad78d0101006e0208008403000000000000030400070000000400\
    00121800747474747474747474747474747474740b000000000000001b14001500000000000000160000000000000002\
    0034321a3000030002010500000006000000010000000000000002000000000000000800000000000000000103050000\
    0000000000035e7ffe7070617274";
const NEED_WHOLE: &str = "\
    ce0312080ee38a3d00000000000000000800140000000000020000000000000009000000000000000000000000000000\
    00000000000000004d0000000000000000000000beec421c0101006e1a0d0003000201050000000600000004";
const REFUSED_BY_QUOTA: &str = "\
    ce031208e682edad00000000000000000800140000000000020000000000000009000000000000000000000000000000\
    00000000000000004d0000000000000000000000560be33a0101006e1a0d0003000201050000000600000002";
const ADOPT_A_VIEW: &str = "\
    ce031208d23c46e9000000000000000001000b0020000000000000000000000000000000000000000000000000000000\
    20000000000000004d0000000000000000000000dc5ec0ca1a0800030002010500000097192f20070000000400000003\
    0000000202090000000003000000080000000205000000";
const ADOPTED_AND_MORE: &str = "\
    ce0312086e57c3d6000000000000000002000c0020000000000000000000000000000000000000000000000000000000\
    20000000000000004d000000000000000000000008008b461a090003000201050000000087e98fd00200000000000000\
    0600000001006e0900000000000000080000000000000001";

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

fn node(number: u32) -> NodeId {
    NodeId(NonZeroU32::new(number).expect("not 0"))
}

fn view(chance: &mut Chance) -> View {
    let member = |chance: &mut Chance, number: u64| Member {
        node: node(2 + 7 * number as u32),
        standing: chance.one_of(&STANDINGS).expect("one of them"),
        since: chance.next() as u32,
    };
    let mut members: Vec<Member> = (0..chance.below(9)).map(|number| member(chance, number)).collect();
    let first = chance.index(members.len() + 1);
    members.rotate_left(first);
    let (epoch, primary, since) = (chance.next() as u32, node(1 + 7 * chance.below(1000) as u32), chance.next() as u32);
    View { epoch, primary, since, members, needed: 1 + chance.below(9) as u8, lost: chance.next() as u32 }
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
        ADOPTED => {
            let pending = (0..chance.below(9)).map(|_| (key, pending(chance))).collect();
            Message::Adopted { epoch, pending, is_last: chance.below(2) == 1 }
        }
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
        CONFIRM => Message::Confirm { epoch, round: settled },
        CONFIRMED => Message::Confirmed { epoch, round: settled },
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
    let verdict = Verdict::Refused(Refusal::Quota);
    assert_eq!(hex(&encoded(Message::Answer { epoch: 5, key, version: 9, verdict })), REFUSED_BY_QUOTA);
}

#[test]
fn a_view_and_what_is_pending_have_their_golden_bytes() {
    let backup = Member { node: node(9), standing: Standing::Backup, since: 3 };
    let syncing = Member { node: node(8), standing: Standing::Syncing, since: 5 };
    let view = View { epoch: 5, primary: node(7), since: 4, members: vec![backup, syncing], needed: 2, lost: 3 };
    assert_eq!(hex(&encoded(Message::Adopt { view })), ADOPT_A_VIEW);
    let key = Key { collection: CollectionId::DEFAULT, generation: 6, name: b"n" };
    let pending = vec![(key, Pending { version: 9, base: 8, removes: true })];
    assert_eq!(hex(&encoded(Message::Adopted { epoch: 5, pending, is_last: false })), ADOPTED_AND_MORE);
}

#[test]
fn every_message_reads_back_and_takes_one_frame() {
    for seed in 0..300 {
        let chance = &mut Chance(seed);
        let owned = owned(chance);
        for code in (ADOPT..=MOVED).chain([CONFIRM, CONFIRMED]) {
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
        for code in (ADOPT..=MOVED).chain([CONFIRM, CONFIRMED]) {
            let message = message(code, chance, &owned);
            let kept = message.map(|key| (*key, key.name.to_vec()), |delta| *delta);
            let lent = kept.map(|(key, name)| Key { name, ..*key }, |delta| *delta);
            assert_eq!(lent, message);
        }
    }
}

#[test]
fn what_is_pending_has_a_bound_and_takes_one_frame() {
    let name = [b'n'; NAME_MAX_BYTES];
    let key = Key { collection: CollectionId::DEFAULT, generation: 1, name: &name };
    let write = Pending { version: 2, base: 1, removes: true };
    let message = |count| Message::Adopted { epoch: 5, pending: vec![(key, write); count], is_last: false };
    let bytes = encoded(message(ADOPTED_PENDING_MAX));
    let frame = parse_frame(&bytes).expect("parses").expect("is whole");
    assert_eq!((frame.bytes(), frame.header().has(FLAG_MORE)), (bytes.len(), false));
    assert_eq!(decoded(&bytes), Ok(GroupMessage { group: GROUP_ID, message: message(ADOPTED_PENDING_MAX) }));
    let mut out = Vec::new();
    let refused = GroupMessage { group: GROUP_ID, message: message(ADOPTED_PENDING_MAX + 1) }.encode(&mut out, 1);
    assert!(refused == Err(WireError::BadField(GROUP)) && out.is_empty());
    let fields = frame.fields().expect("fields");
    let item = [&[0; 12][..], &[97, 0], &[b'n'; 97], &[0; 17]].concat();
    for (count, more, fits) in [(512, false, true), (513, false, false), (512, true, false)] {
        let flags = if more { FLAG_MORE } else { 0 };
        let header = Header { flags, length: 0, ..*frame.header() };
        let mut out = Vec::new();
        crate::wire::encode_frame(&mut out, header, &fields, &item.repeat(count)).expect("within the limits");
        assert_eq!(decoded(&out).is_ok(), fits, "{count}, and more: {more}");
    }
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
    let adopted = Message::Adopted { epoch: 1, pending: vec![(nameless, write)], is_last: true };
    assert_eq!(refused(adopted), WireError::BadField(GROUP));
    let member = |number| Member { node: node(number), standing: Standing::Backup, since: 1 };
    let with = |members| View { members, ..View::none() };
    let many = with((2..19).map(member).collect());
    let (twice, itself) = (with(vec![member(2), member(2)]), with(vec![member(1)]));
    for view in [View { needed: 0, ..View::none() }, View { needed: 10, ..View::none() }, many, twice, itself] {
        assert_eq!(refused(Message::Moved { view: view.clone() }), WireError::BadField(GROUP));
        assert_eq!(refused(Message::Adopt { view }), WireError::BadField(GROUP));
    }
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
        for code in (ADOPT..=MOVED).chain([CONFIRM, CONFIRMED]) {
            let message = message(code, chance, &owned);
            let bytes = encoded(message.clone());
            let frame = parse_frame(&bytes).expect("parses").expect("is whole");
            let Some(Between::Group(own)) = frame.fields().expect("fields").between else { panic!("it has one") };
            for cut in 0..own.len() {
                refused(&with_field(message.clone(), |_, own| own.truncate(cut)), &format!("{cut} bytes of {code}"));
            }
            let frame = with_field(message.clone(), |header, _| header.code = CONFIRMED + 1);
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
    refused(&with_field(answer, |_, own| own[12] = 9), "no such verdict");
    let adopted = Message::Adopted { epoch: 1, pending: vec![(key, write)], is_last: true };
    refused(&with_field(adopted, |_, own| own[8] = 2), "it is the last, or is not");
}

#[test]
fn any_bytes_of_a_list_are_taken_or_refused() {
    let chance = &mut Chance(3);
    for code in [ADOPT, ADOPTED, MOVED] {
        for _ in 0..3_000 {
            let body = bytes(chance, 0, 60);
            let short = [0; 9];
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
}

#[test]
fn a_view_that_is_out_of_range_is_refused() {
    let body = |primary, needed, nodes: &[u8], standing| {
        let members = nodes.iter().flat_map(|node| [*node, 0, 0, 0, standing, 6, 0, 0, 0]);
        [primary, 0, 0, 0, 4, 0, 0, 0, 3, 0, 0, 0, needed, nodes.len() as u8]
            .into_iter()
            .chain(members)
            .collect::<Vec<u8>>()
    };
    let many: Vec<u8> = (10..27).collect();
    for (body, fits, why) in [
        (body(1, 2, &[5, 3], 2), true, "all is right"),
        (body(1, 9, &many[1..], 0), true, "as many as may be"),
        (body(0, 2, &[5], 2), false, "no node is the primary"),
        (body(1, 2, &[0], 2), false, "no node is a member"),
        (body(1, 0, &[5], 2), false, "no copy is needed"),
        (body(1, 10, &[5], 2), false, "more copies than there may be"),
        (body(1, 2, &[5, 3, 5], 2), false, "a node stands there once"),
        (body(1, 2, &[1], 2), false, "the primary is no other member"),
        (body(1, 2, &[5], 3), false, "no such standing"),
        (body(1, 2, &many, 0), false, "too many"),
        ([body(1, 2, &[5], 2), vec![0]].concat(), false, "more than a view"),
    ] {
        for code in [ADOPT, MOVED] {
            let header = Header { verb: VERB_GROUP, code, ..Header::new(Kind::Request) };
            let fields = Fields { between: Some(Between::Group(&[0; 8])), ..Fields::default() };
            let mut frame = Vec::new();
            crate::wire::encode_frame(&mut frame, header, &fields, &body).expect("within the limits");
            assert_eq!(decoded(&frame).is_ok(), fits, "{why}");
        }
    }
}

#[test]
fn every_verdict_has_its_code() {
    let key = Key { collection: CollectionId::DEFAULT, generation: 6, name: b"n" };
    for (code, verdict) in VERDICTS.into_iter().enumerate() {
        let bytes = encoded(Message::Answer { epoch: 5, key, version: 9, verdict });
        assert_eq!(bytes.last().copied(), Some(code as u8), "{verdict:?}");
    }
    assert_eq!(VERDICTS.len(), 9);
}

#[test]
fn a_change_is_as_large_as_what_is_sent_of_it() {
    let mut answers = Vec::new();
    assert!(Answers::push(&mut answers, RequestId { client: 1, sequence: 2 }, b"42"));
    let answers = Answers::of(&answers).expect("they were made so");
    let size = |value, attributes| {
        let memcached = Memcached::default();
        let put = PutOf { value, flags: 0, left_ms: None, attributes, memcached, fence: None };
        replica::Change::size_bytes(&Delta { becomes: Becomes::Put(put), answers })
    };
    let staged = Sent::Staged { id: 1, length: 1 << 30 };
    assert_eq!(size(ValueOf::Kept, None), 20);
    assert_eq!(size(ValueOf::Whole(Sent::Inline(b"value", 0)), Some(b"some")), 29);
    assert_eq!(size(ValueOf::Range(7, staged), None), (1 << 30) + 20);
    let most = Sent::Staged { id: 1, length: u64::MAX };
    assert_eq!(size(ValueOf::Whole(most), None), u64::MAX);
    assert_eq!(replica::Change::size_bytes(&Delta { becomes: Becomes::Removed(None), answers }), 20);
}
