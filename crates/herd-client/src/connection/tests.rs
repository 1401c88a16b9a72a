//! Scripted conversations: the other side is written out frame by frame, and time is a number.

use super::*;
use crate::ErrorKind;
use herd_core::collection::Class;
use herd_core::entry::Range as ByteRange;
use herd_core::key::CollectionId;
use herd_core::wire::{BRIEF_BYTES, Frame, Status, Verb, parse_frame, request_id};

const PATIENCE_MS: u64 = 1_000;
const PATIENCE: Patience = Patience { begin_ms: PATIENCE_MS, first_ms: PATIENCE_MS, then_ms: PATIENCE_MS };

/// Takes all output that needs no caller's memory.
fn output(connection: &mut Connection) -> Vec<u8> {
    let mut out = Vec::new();
    while connection.output_body().is_none() && connection.has_output() {
        let bytes = connection.output_head().to_vec();
        connection.sent(0, bytes.len());
        out.extend(bytes);
    }
    out
}

fn frames(mut bytes: &[u8]) -> Vec<Frame<'_>> {
    let mut found = Vec::new();
    while let Some(frame) = parse_frame(bytes).expect("a frame") {
        bytes = &bytes[frame.bytes()..];
        found.push(frame);
    }
    assert!(bytes.is_empty(), "whole frames");
    found
}

/// Hands bytes in, at most so many at a time, and gathers the events with the bytes of their bodies.
fn feed(connection: &mut Connection, mut bytes: &[u8], most: usize) -> Result<Vec<(Event, Vec<u8>)>> {
    let mut events = Vec::new();
    while !bytes.is_empty() {
        let space = connection.space();
        let count = bytes.len().min(most).min(space.len());
        space[..count].copy_from_slice(&bytes[..count]);
        connection.filled(0, count);
        bytes = &bytes[count..];
        while let Some(event) = connection.next_event()? {
            events.push((event, connection.body().to_vec()));
        }
    }
    Ok(events)
}

fn frame(header: Header, fields: &Fields<'_>, body: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    encode_frame(&mut out, header, fields, body).expect("encodes");
    out
}

/// A connection past its hello.
fn opened() -> Connection {
    let mut connection = Connection::new(0);
    let out = output(&mut connection);
    let hello = frames(&out)[0];
    assert_eq!(hello.header().kind, Kind::Hello);
    assert_eq!(hello.fields().expect("fields").highest_version, Some(1));
    connection
}

fn get(connection: &mut Connection, key: &str, delivery: Delivery) -> Header {
    let request = Request::get(key).expect("valid");
    let id = connection.open(0, &request, Body::Copied(b""), delivery, PATIENCE).expect("opens");
    let out = output(connection);
    let header = *frames(&out)[0].header();
    assert_eq!(header.id, id);
    header
}

fn ok(request: &Header, size: u64) -> Header {
    let mut reply = Header { version: 7, length: size, ..Header::reply_to(request, Status::Ok) };
    reply.set_ack(Class::Ram(1), 1);
    reply
}

/// A reply's frames: `value` in pieces of `frame_bytes`.
fn reply_frames(request: &Header, value: &[u8], frame_bytes: usize) -> Vec<u8> {
    let mut out = Vec::new();
    let mut position = 0;
    loop {
        let end = value.len().min(position + frame_bytes);
        let more = end < value.len();
        let mut header = match position {
            0 => ok(request, value.len() as u64),
            _ => Header::data(request.id, position as u64, more),
        };
        header.flags = if more { FLAG_MORE } else { 0 };
        out.extend(frame(header, &Fields::default(), &value[position..end]));
        position = end;
        if !more {
            return out;
        }
    }
}

fn bytes(length: usize) -> Vec<u8> {
    (0..length as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

#[test]
fn a_reply_with_another_part_than_was_asked_for_is_refused() {
    for (range, told, good) in [
        (Some(ByteRange { offset: 3, length: Some(4) }), 3, true),
        (Some(ByteRange { offset: 3, length: Some(4) }), 2, false),
        (Some(ByteRange { offset: 3, length: Some(4) }), 0, false),
        (None, 0, true),
        (None, 3, false),
    ] {
        let mut connection = opened();
        let request = Request::get("x").expect("valid");
        let request = range.map_or(request.clone(), |range| request.of_range(range));
        connection.open(0, &request, Body::Copied(b""), Delivery::Early, PATIENCE).expect("opens");
        let out = output(&mut connection);
        let reply = Header { offset: told, ..ok(frames(&out)[0].header(), 7) };
        let body = &b"0123456"[told as usize..];
        let fed = feed(&mut connection, &frame(reply, &Fields::default(), body), 1_000);
        assert_eq!(fed.is_ok(), good, "{range:?} {told} {fed:?}");
    }
}

#[test]
fn a_brief_reply_is_of_the_collection_that_was_asked() {
    let mut connection = opened();
    let request = get(&mut connection, "x", Delivery::Checked);
    let script = reply_frames(&request, b"value", 131_072);
    assert_eq!(script.len(), BRIEF_BYTES + 4 + 5);
    let events = feed(&mut connection, &script, 7).expect("fine");
    let Event::Reply { reply, body_bytes, .. } = &events[0].0 else { panic!("{events:?}") };
    assert_eq!((reply.collection, *body_bytes, reply.version), (CollectionId::DEFAULT.0, Some(5), 7));
    assert_eq!(events.iter().flat_map(|(_, body)| body.clone()).collect::<Vec<u8>>(), b"value");
}

#[test]
fn hello_and_request_go_out_together_and_the_session_is_taken_up() {
    let mut connection = Connection::new(0);
    let request = Request::get("tree/name").expect("valid");
    let first = connection
        .open(
            0,
            &request,
            Body::Copied(b""),
            Delivery::Early,
            Patience { begin_ms: 1500, first_ms: 1500, then_ms: PATIENCE_MS },
        )
        .expect("opens");
    let out = output(&mut connection);
    let sent = frames(&out);
    assert_eq!((sent.len(), sent[0].header().kind, sent[1].header().kind), (2, Kind::Hello, Kind::Request));
    let (header, fields) = (*sent[1].header(), sent[1].fields().expect("fields"));
    assert_eq!((header.verb(), header.id, header.time_ms, header.collection), (Some(Verb::Get), first, 1500, 0));
    assert_eq!((fields.name, fields.collection), (Some(&b"name"[..]), Some("tree")));
    let welcome = Fields { session: Some(0x55), node: Some("n"), highest_version: Some(1), ..Fields::default() };
    let events = feed(&mut connection, &frame(Header::new(Kind::Welcome), &welcome, b""), 1000).expect("fine");
    assert!(matches!(&events[0].0, Event::Welcome(welcome) if welcome.session == 0x55 && welcome.node == "n"));
    let second = get(&mut connection, "x", Delivery::Early).id;
    assert_eq!((first, second), (0, request_id(0x55, 1)));
}

#[test]
fn replies_come_in_any_order_and_cut_anywhere() {
    let values = [bytes(0), bytes(10), bytes(300_000)];
    for most in [1, 7, 1000, 65_536, 1 << 20] {
        if most == 1 && cfg!(debug_assertions) {
            continue;
        }
        let mut connection = opened();
        let requests: Vec<Header> = (0..3).map(|_| get(&mut connection, "x", Delivery::Checked)).collect();
        let script: Vec<u8> =
            [2, 0, 1].iter().flat_map(|&i: &usize| reply_frames(&requests[i], &values[i], 131_072)).collect();
        let events = feed(&mut connection, &script, most).expect("fine");
        let mut found = [const { Vec::new() }; 3];
        let mut order = Vec::new();
        for (event, body) in events {
            let (id, ends) = match event {
                Event::Reply { id, reply, body_bytes, ends } => {
                    assert!(reply.is_ok() && reply.version == 7 && (reply.class, reply.copies) == (Class::Ram(1), 1));
                    assert_eq!(body_bytes, reply.size_bytes);
                    (id, ends)
                }
                Event::Body { id, ends } => (id, ends),
                other => panic!("{other:?}"),
            };
            let at = requests.iter().position(|request| request.id == id).expect("known");
            found[at].extend(body);
            order.extend(ends.then_some(at));
        }
        assert_eq!((found, order), (values.clone(), vec![2, 0, 1]), "pieces of {most}");
        assert!(connection.is_idle());
    }
}

#[test]
fn checked_bytes_come_in_whole_blocks_only_and_damage_is_an_error() {
    let value = bytes(200_000);
    let mut connection = opened();
    let request = get(&mut connection, "x", Delivery::Checked);
    let mut script = reply_frames(&request, &value, 1 << 20);
    let at = script.len() - 1;
    script[at] ^= 1;
    let (good, bad) = script.split_at(script.len() - 10_000);
    let events = feed(&mut connection, good, 5_000).expect("fine so far");
    let lengths: Vec<usize> = events[1..].iter().map(|(_, body)| body.len()).collect();
    assert_eq!(lengths, [BLOCK_BYTES; 2], "the third block is not whole");
    assert_eq!(feed(&mut connection, bad, 5_000).expect_err("damaged").kind(), ErrorKind::BadReply);
}

#[test]
fn bodies_can_be_read_elsewhere() {
    let value = bytes(200_000);
    let mut connection = opened();
    let request = get(&mut connection, "x", Delivery::Early);
    let script = reply_frames(&request, &value, 131_072);
    let events = feed(&mut connection, &script[..200], 200).expect("fine");
    let mut there = events.iter().flat_map(|(_, body)| body.clone()).collect::<Vec<_>>();
    let (id, expected) = connection.expected_body().expect("a body");
    assert_eq!((id, expected + there.len()), (request.id, 131_072));
    assert!(!connection.take_direct(0, &script[200..200 + expected]).expect("good"));
    there.extend(&script[200..200 + expected]);
    assert_eq!(connection.expected_body(), None, "a header comes next");
    let events = feed(&mut connection, &script[200 + expected..], 1 << 20).expect("fine");
    events.iter().for_each(|(_, body)| there.extend(body));
    assert!(there == value && connection.is_idle());
    assert_eq!(events.last().map(|(event, _)| event), Some(&Event::Body { id, ends: true }));
}

#[test]
fn credit_is_granted_when_a_body_needs_it() {
    let mut connection = opened();
    let request = get(&mut connection, "x", Delivery::Early);
    let first = Header { flags: FLAG_MORE, ..ok(&request, 4 << 20) };
    feed(&mut connection, &frame(first, &Fields::default(), &bytes(BLOCK_BYTES)), 1 << 20).expect("fine");
    assert!(!connection.has_output(), "4 MiB need none");
    let request = get(&mut connection, "x", Delivery::Early);
    let first = Header { flags: FLAG_MORE, ..ok(&request, (4 << 20) + 1) };
    feed(&mut connection, &frame(first, &Fields::default(), &bytes(BLOCK_BYTES)), 1 << 20).expect("fine");
    let out = output(&mut connection);
    let grant = *frames(&out)[0].header();
    assert_eq!((grant.kind, grant.id, grant.length), (Kind::Credit, request.id, LENGTH_UNKNOWN));
    let range = ByteRange { offset: 0, length: Some(5 << 20) };
    let request = Request::get_range("x", range).expect("valid");
    connection.open(0, &request, Body::Copied(b""), Delivery::Early, PATIENCE).expect("opens");
    let out = output(&mut connection);
    let kinds: Vec<Kind> = frames(&out).iter().map(|frame| frame.header().kind).collect();
    assert_eq!(kinds, [Kind::Request, Kind::Credit], "a range says beforehand that it needs some");
}

/// Sends what is wanted of `value`; the frames, in order.
fn send_wanted(connection: &mut Connection, value: &[u8]) -> Vec<u8> {
    let mut out = output(connection);
    while let Some(Wanted { id, position, bytes }) = connection.wanted_body() {
        let from = position as usize;
        connection.start_frame(id, &value[from..from + bytes], false).expect("encodes");
        let head = connection.output_head().to_vec();
        out.extend(&head);
        connection.sent(0, head.len());
        while let Some(part) = connection.output_body() {
            let from = part.position as usize;
            let some = part.bytes.min(100_000);
            out.extend(&value[from..from + some]);
            connection.sent(0, some);
        }
    }
    out
}

#[test]
fn a_large_put_waits_for_credit_and_for_nobody_else() {
    let value = bytes((9 << 20) + 5);
    let mut connection = opened();
    let request = Request::put("x", b"", &Default::default()).expect("valid");
    let length = Some(value.len() as u64);
    let id = connection.open(0, &request, Body::Streamed(length), Delivery::Early, PATIENCE).expect("opens");
    let mut out = send_wanted(&mut connection, &value);
    assert!(!connection.may_be_done(id), "its last byte is still to come");
    let body = |out: &[u8]| frames(out).iter().map(|frame| frame.body().expect("good").len()).collect::<Vec<_>>();
    assert_eq!(body(&out), [1 << 20; 4], "4 MiB go without credit");
    let first = *frames(&out)[0].header();
    assert_eq!((first.length, first.has(FLAG_MORE), first.kind), (value.len() as u64, true, Kind::Request));
    assert_eq!(first.time_ms, 0, "a body may take its time");
    get(&mut connection, "other", Delivery::Early);
    feed(&mut connection, &Header::credit(id, 100_000).encode(), 100).expect("fine");
    let small = send_wanted(&mut connection, &value);
    assert_eq!(body(&small), [BLOCK_BYTES], "whole blocks, and small ones beside others");
    feed(&mut connection, &Header::credit(id, LENGTH_UNKNOWN).encode(), 100).expect("fine");
    out.extend(small);
    out.extend(send_wanted(&mut connection, &value));
    let sent = frames(&out);
    let whole: Vec<u8> = sent.iter().flat_map(|frame| frame.body().expect("good").to_vec()).collect();
    assert!(whole == value);
    let mut offset = 0;
    for (i, frame) in sent.iter().enumerate() {
        assert_eq!((frame.header().offset, frame.header().id), (offset, id));
        assert_eq!(frame.header().has(FLAG_MORE), i + 1 < sent.len());
        offset += u64::from(frame.header().body_len);
    }
    let reply = frame(ok(&first, 0), &Fields::default(), b"");
    let events = feed(&mut connection, &reply, 100).expect("fine");
    assert!(matches!(&events[0].0, Event::Reply { reply, ends: true, .. } if reply.version == 7));
}

#[test]
fn two_bodies_take_turns() {
    let value = bytes(3 << 20);
    let mut connection = opened();
    let request = Request::put("x", b"", &Default::default()).expect("valid");
    let streamed = Body::Streamed(Some(value.len() as u64));
    let one = connection.open(0, &request, streamed, Delivery::Early, PATIENCE).expect("opens");
    let two = connection.open(0, &request, streamed, Delivery::Early, PATIENCE).expect("opens");
    let out = send_wanted(&mut connection, &value);
    let order: Vec<u64> = frames(&out).iter().map(|frame| frame.header().id).collect();
    assert_eq!(order.len(), 2 * (3 << 20) / BLOCK_BYTES);
    assert!(order.chunks(2).all(|pair| pair == [one, two]));
}

#[test]
fn a_body_of_unknown_length_ends_when_the_caller_says_so() {
    let mut connection = opened();
    let request = Request::put("x", b"", &Default::default()).expect("valid");
    let id = connection.open(0, &request, Body::Streamed(None), Delivery::Early, PATIENCE).expect("opens");
    assert_eq!(connection.wanted_body(), Some(Wanted { id, position: 0, bytes: 1 << 20 }));
    connection.start_frame(id, &bytes(70_000), true).expect("encodes");
    let frame_head = connection.output_head().to_vec();
    let header = Header::decode(frame_head.first_chunk().expect("a header")).expect("a header");
    assert_eq!((header.length, header.has(FLAG_MORE), header.body_len), (LENGTH_UNKNOWN, false, 70_000));
    connection.sent(0, frame_head.len() + 70_000);
    assert!(!connection.has_output() && !connection.is_sending(None));
}

#[test]
fn a_refusal_in_the_middle_of_a_body_ends_it() {
    let value = bytes(8 << 20);
    let mut connection = opened();
    let request = Request::put("x", b"", &Default::default()).expect("valid");
    let length = Some(value.len() as u64);
    connection.open(0, &request, Body::Streamed(length), Delivery::Early, PATIENCE).expect("opens");
    let out = send_wanted(&mut connection, &value);
    let full = Header::reply_to(frames(&out)[0].header(), Status::Error(herd_core::ErrorKind::Full));
    let refusal = frame(full, &Fields::failed("memory is full"), b"");
    let events = feed(&mut connection, &refusal, 100).expect("fine");
    let Event::Reply { reply, ends: true, .. } = &events[0].0 else { panic!("{events:?}") };
    assert_eq!(reply.error().expect("an error").kind(), ErrorKind::Refused(herd_core::ErrorKind::Full));
    assert_eq!(connection.wanted_body(), None);
    let out = output(&mut connection);
    assert_eq!(frames(&out)[0].header().kind, Kind::Cancel, "the node need not wait for the rest");
    assert!(connection.is_idle());
}

#[test]
fn silence_ends_a_request_and_its_late_reply_is_skipped() {
    let value = bytes(100_000);
    let mut connection = opened();
    let request = get(&mut connection, "x", Delivery::Checked);
    let other = get(&mut connection, "y", Delivery::Checked);
    assert_eq!(connection.next_deadline(), Some(PATIENCE_MS));
    assert_eq!(connection.expire(PATIENCE_MS - 1), None);
    let script = reply_frames(&request, &value, 1 << 20);
    let (mut early, late) = script.split_at(90_000);
    while !early.is_empty() {
        let space = connection.space();
        let (now, then) = early.split_at(early.len().min(space.len()));
        space[..now.len()].copy_from_slice(now);
        connection.filled(800, now.len());
        while connection.next_event().expect("fine").is_some() {}
        early = then;
    }
    assert_eq!(connection.expire(800 + PATIENCE_MS - 1), None, "replies stand in line behind each other");
    assert_eq!(connection.expire(800 + PATIENCE_MS), Some(request.id));
    assert_eq!(connection.expire(800 + PATIENCE_MS), Some(other.id));
    assert_eq!(connection.expire(u64::MAX), None);
    let out = output(&mut connection);
    let cancels: Vec<(Kind, u64)> = frames(&out).iter().map(|f| (f.header().kind, f.header().id)).collect();
    assert_eq!(cancels, [(Kind::Cancel, request.id), (Kind::Cancel, other.id)]);
    let third = get(&mut connection, "z", Delivery::Checked);
    let script = [late, &reply_frames(&other, &value, 65_536), &reply_frames(&third, b"yes", 65_536)].concat();
    let events = feed(&mut connection, &script, 30_000).expect("fine");
    assert!(matches!(events[0].0, Event::Reply { id, .. } if id == third.id), "{events:?}");
    assert_eq!((events.len(), &events[1].1[..]), (2, &b"yes"[..]));
}

#[test]
fn what_was_not_sent_wholly_can_not_have_been_done() {
    let mut connection = opened();
    let request = Request::put("x", b"", &Default::default()).expect("valid");
    let mut open = || {
        let id = connection.open(0, &request, Body::Copied(b"abc"), Delivery::Early, PATIENCE).expect("opens");
        (id, connection.output_head().len())
    };
    let ((one, first), (two, both)) = (open(), open());
    for sent in 0..both {
        assert_eq!((connection.may_be_done(one), connection.may_be_done(two)), (sent >= first, false), "{sent}");
        connection.sent(0, 1);
    }
    assert!(connection.may_be_done(two));
    assert_eq!(connection.expire(PATIENCE_MS), Some(one));
    assert!(connection.may_be_done(one), "of one that was given up nothing is known");
}

#[test]
fn a_large_put_may_be_done_once_its_last_byte_is_sent() {
    let mut connection = opened();
    let value = bytes(200_000);
    let request = Request::put("x", b"", &Default::default()).expect("valid");
    let length = Some(value.len() as u64);
    let id = connection.open(0, &request, Body::Streamed(length), Delivery::Early, PATIENCE).expect("opens");
    let wanted = connection.wanted_body().expect("it may be sent");
    connection.start_frame(id, &value[..wanted.bytes], true).expect("a frame");
    let all = connection.output_head().len() + wanted.bytes;
    connection.sent(0, all - 1);
    assert!(!connection.may_be_done(id));
    connection.sent(0, 1);
    assert!(connection.may_be_done(id));
}

#[test]
fn what_the_caller_keeps_waiting_is_not_silent() {
    let mut connection = opened();
    let id = get(&mut connection, "x", Delivery::Checked).id;
    connection.resumed(700, id);
    assert_eq!(connection.next_deadline(), Some(700 + PATIENCE_MS));
    assert_eq!(connection.deadline(id), connection.next_deadline());
}

#[test]
fn bytes_of_a_block_that_is_not_whole_are_no_silence() {
    let mut connection = opened();
    let request = get(&mut connection, "x", Delivery::Checked);
    let script = reply_frames(&request, &bytes(60_000), 1 << 20);
    for (i, piece) in script.chunks(script.len() / 9).enumerate() {
        let now_ms = i as u64 * 900;
        assert_eq!(connection.expire(now_ms), None);
        connection.space()[..piece.len()].copy_from_slice(piece);
        connection.filled(now_ms, piece.len());
        while connection.next_event().expect("fine").is_some() {}
    }
    assert!(connection.is_idle());
}

#[test]
fn frames_that_bring_nothing_do_not_prolong_a_request() {
    type Script<'a> = &'a dyn Fn(&Header) -> Vec<u8>;
    let empty = |id, position| frame(Header::data(id, position, true), &Fields::default(), b"");
    let scripts: [(&str, Script<'_>, u64); 4] = [
        ("credit for it", &|request| frame(Header::credit(request.id, 65_536), &Fields::default(), b""), 0),
        ("credit for nothing", &|_| frame(Header::credit(999_999, 65_536), &Fields::default(), b""), 0),
        ("empty frames, some to come", &|request| empty(request.id, 65_536), 131_072),
        ("empty frames, none to come", &|request| empty(request.id, 65_536), 65_536),
    ];
    for (what, script, size) in scripts {
        let mut connection = opened();
        let request = get(&mut connection, "x", Delivery::Early);
        let mut pieces = vec![script(&request); 4];
        if size > 0 {
            let first = Header { flags: FLAG_MORE, ..ok(&request, size) };
            pieces[0] = frame(first, &Fields::default(), &bytes(65_536));
        }
        for (piece, now_ms) in pieces.iter().zip([300, 600, 900, 1200]) {
            for part in piece.chunks(16_384) {
                connection.space()[..part.len()].copy_from_slice(part);
                connection.filled(now_ms, part.len());
                while connection.next_event().expect("fine").is_some() {}
            }
        }
        let heard_ms = if size > 0 { 300 } else { 0 };
        assert_eq!(connection.next_deadline(), Some(heard_ms + PATIENCE_MS), "{what}");
    }
}

#[test]
fn goodbye_ends_the_connection() {
    let mut connection = opened();
    get(&mut connection, "x", Delivery::Early);
    let goodbye = frame(Header::new(Kind::Goodbye), &Fields::failed("stopping"), b"");
    let events = feed(&mut connection, &goodbye, 1000).expect("fine");
    assert_eq!(events, [(Event::Goodbye("stopping".into()), Vec::new())]);
    assert!(!connection.is_idle());
}

#[test]
fn a_goodbye_may_say_that_what_was_sent_was_not_read() {
    for (code, may_be_done) in [(0, true), (GOODBYE_UNREAD, false)] {
        let mut connection = opened();
        let id = get(&mut connection, "x", Delivery::Early).id;
        let welcome = frame(Header::new(Kind::Welcome), &Fields::default(), b"");
        feed(&mut connection, &welcome, 1000).expect("fine");
        assert!(connection.may_be_done(id));
        let goodbye = frame(Header { code, ..Header::new(Kind::Goodbye) }, &Fields::failed("later"), b"");
        feed(&mut connection, &goodbye, 1000).expect("fine");
        assert_eq!(connection.may_be_done(id), may_be_done);
    }
}

#[test]
fn every_breach_of_order_is_an_error() {
    let data = |id| frame(Header::data(id, 0, false), &Fields::default(), b"abc");
    type Script<'a> = &'a dyn Fn(&Header) -> Vec<u8>;
    let breaches: [(&str, Script<'_>); 10] = [
        ("data before the reply", &|request| data(request.id)),
        ("a reply to nothing", &|request| frame(ok(&Header { id: 999, ..*request }, 0), &Fields::default(), b"")),
        ("another verb", &|request| {
            let request = Header { verb: Verb::Put as u8, ..*request };
            frame(ok(&request, 0), &Fields::default(), b"")
        }),
        ("too long", &|request| frame(ok(request, 2), &Fields::default(), b"abc")),
        ("too short", &|request| frame(ok(request, 4), &Fields::default(), b"abc")),
        ("a gap", &|request| {
            let first = Header { flags: FLAG_MORE, ..ok(request, 65_536 + 3) };
            let gap = Header::data(request.id, 65_537, false);
            [frame(first, &Fields::default(), &bytes(65_536)), frame(gap, &Fields::default(), b"abc")].concat()
        }),
        ("two replies", &|request| {
            let first = Header { flags: FLAG_MORE, ..ok(request, 65_539) };
            [frame(first, &Fields::default(), &bytes(65_536)), frame(first, &Fields::default(), b"")].concat()
        }),
        ("an error that goes on", &|request| {
            let not_found = Status::Error(herd_core::ErrorKind::NotFound);
            let error = Header { flags: FLAG_MORE, ..Header::reply_to(request, not_found) };
            frame(error, &Fields::failed("none"), b"")
        }),
        ("a request", &|request| frame(*request, &Fields::named(b"x"), b"")),
        ("another protocol", &|_| b"HTTP/1.1 400 Bad Request\r\n".to_vec()),
    ];
    for (what, script) in breaches {
        let mut connection = opened();
        let request = get(&mut connection, "x", Delivery::Early);
        let request = Header { head_len: 0, head_crc: 0, ..request };
        let error = feed(&mut connection, &script(&request), 1 << 20).expect_err(what);
        assert_eq!(error.kind(), ErrorKind::BadReply, "{what}");
    }
}

#[test]
fn requests_on_one_connection_are_bounded() {
    let mut connection = opened();
    let request = Request::get("x").expect("valid");
    let mut open = || connection.open(0, &request, Body::Copied(b""), Delivery::Early, PATIENCE);
    for _ in 0..WIRE_OPEN_REQUESTS_MAX {
        open().expect("opens");
    }
    assert_eq!(open().expect_err("too many").kind(), ErrorKind::Refused(herd_core::ErrorKind::Busy));
}

#[test]
fn who_answers_with_no_frame_is_no_herd_node_and_has_done_nothing() {
    for said in [&b"E"[..], b"HTTP/1.1 400 Bad Request\r\n", b"SSH-2.0-x\r\n", b"\x15\x03\x01\0\x02\x02\x0a"] {
        let mut connection = Connection::new(0);
        let request = Request::get("x").expect("valid");
        let id = connection.open(0, &request, Body::Copied(b""), Delivery::Early, PATIENCE).expect("opens");
        let sent = connection.output_head();
        assert!(sent.windows(4).any(|bytes| bytes == b"\r\n\r\n"), "a server of lines has one to answer");
        let bytes = sent.len();
        connection.sent(1, bytes);
        assert!(connection.may_be_done(id) && !connection.is_foreign());
        feed(&mut connection, said, 1000).expect_err("no frame");
        assert!(connection.is_foreign() && !connection.may_be_done(id));
    }
}
