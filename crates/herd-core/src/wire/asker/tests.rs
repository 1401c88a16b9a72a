//! Two sides that ask on one stream with the same sequence numbers, frames of both interleaved by chance; and every
//! breach of the order of frames. A failure names its seed.

use super::*;
use crate::chance::Chance;
use crate::limits::WIRE_FRAME_BODY_MAX_BYTES;
use crate::wire::{Frame, Kind, block_checks, encode_frame, parse_frame};

/// Requests that each side makes.
const REQUESTS: u64 = 12;

/// The bytes of the body that belongs to a request: no two requests have the same.
fn body(id: u64, len: u64) -> Vec<u8> {
    let mut chance = Chance(id);
    let words = (0..len.div_ceil(8)).flat_map(|_| chance.next().to_le_bytes());
    words.take(len as usize).collect()
}

/// A request that is being served: the body of its put, or what is left of the reply to its get.
#[derive(Default)]
struct Serving {
    verb: u8,
    taken: Vec<u8>,
    reply: Vec<u8>,
    sent: usize,
    credit: u64,
    replied: bool,
}

/// One side, that asks and serves.
struct End {
    side: Side,
    /// Beside each request the body it sends, or what has come of the reply.
    asker: Asker<Vec<u8>>,
    serving: BTreeMap<u64, Serving>,
    /// Frames on their way to the other side.
    out: VecDeque<Vec<u8>>,
    /// Requests made, answered, and given up.
    made: u64,
    done: u64,
    given_up: u64,
}

impl End {
    fn new(side: Side) -> Self {
        let asker = Asker::new(side);
        Self { side, asker, serving: BTreeMap::new(), out: VecDeque::new(), made: 0, done: 0, given_up: 0 }
    }

    fn frame(&mut self, header: Header, body: &[u8]) {
        let mut out = Vec::new();
        encode_frame(&mut out, header, &Fields::default(), body).expect("within the limits");
        self.out.push_back(out);
    }

    /// Makes a request: a put or a get, now and then of more than goes without credit.
    fn ask(&mut self, chance: &mut Chance) {
        self.made += 1;
        let id = self.asker.next_id();
        let most = [100, 100, 3 * BLOCK_BYTES as u64, 5 << 20][chance.index(4)];
        let len = chance.below(most);
        if chance.below(2) == 0 {
            let request = Header { length: len, ..Header::request(Verb::Put, id) };
            return self.asker.open_streamed(request, &Fields::default(), body(id, len)).expect("no fields");
        }
        // The length to be had stands in the version: the other side serves what it is asked for.
        let request = Header { length: LENGTH_UNKNOWN, version: len, ..Header::request(Verb::Get, id) };
        self.asker.open(request, Vec::new());
        self.frame(request, b"");
    }

    /// Sends the next frame of a body it was asked for, or asks with.
    fn speak(&mut self, chance: &mut Chance) {
        let most = [BLOCK_BYTES, WIRE_FRAME_BODY_MAX_BYTES][chance.index(2)];
        if let Some(Wanted { id, position, bytes }) = self.asker.wanted(most) {
            let whole = self.asker.note(id).expect("it is open");
            let part = whole[position as usize..][..bytes].to_vec();
            let more = position as usize + bytes < whole.len();
            let mut out = Vec::new();
            let started = self.asker.encode_frame(&mut out, (id, bytes), block_checks(&part), false);
            assert_eq!(started, Ok(Started { position, more }));
            out.extend(part);
            self.out.push_back(out);
        }
        let gets = self.serving.iter().filter(|(_, serving)| serving.verb == Verb::Get as u8);
        let ready = gets.filter(|(_, serving)| serving.credit > 0).map(|(&id, _)| id).collect::<Vec<_>>();
        if let Some(id) = chance.one_of(&ready) {
            self.reply(id, most);
        }
    }

    /// Sends the next frame of the reply to a get.
    fn reply(&mut self, id: u64, most: usize) {
        let serving = self.serving.get_mut(&id).expect("it is served");
        let left = serving.reply.len() - serving.sent;
        let bytes = left.min(most).min(serving.credit as usize);
        let bytes = if bytes < left { bytes / BLOCK_BYTES * BLOCK_BYTES } else { bytes };
        let (from, more) = (serving.sent, bytes < left);
        let first = !std::mem::replace(&mut serving.replied, true);
        serving.sent += bytes;
        serving.credit -= bytes as u64;
        let part = serving.reply[from..from + bytes].to_vec();
        let mut header = Header::data(id, from as u64, more);
        if first {
            let request = Header { verb: serving.verb, id, ..Header::new(Kind::Request) };
            let length = serving.reply.len() as u64;
            header = Header { length, flags: header.flags, ..Header::reply_to(&request, Status::Ok) };
        }
        if !more {
            self.serving.remove(&id);
        }
        self.frame(header, &part);
    }

    /// Takes a frame of the other side. Whose request it belongs to is told by the id alone.
    fn take(&mut self, bytes: &[u8]) {
        let frame = parse_frame(bytes).expect("parses").expect("is whole");
        let header = *frame.header();
        let mine = self.side.opened(header.id);
        match header.kind {
            Kind::Request => assert!(!mine && self.begin(&frame), "id {:x}", header.id),
            Kind::Reply => self.take_reply(&frame),
            Kind::Data if mine => {
                if self.asker.take_data(&header).expect("in order") {
                    self.append(&frame);
                }
            }
            Kind::Data => self.take_body(&frame),
            Kind::Credit if mine => self.asker.take_credit(&header),
            Kind::Credit => {
                let serving = self.serving.get_mut(&header.id);
                serving.into_iter().for_each(|serving| serving.credit = serving.credit.saturating_add(header.length));
            }
            Kind::Cancel => {
                assert!(!mine, "id {:x}", header.id);
                self.serving.remove(&header.id);
            }
            kind => panic!("{kind:?}"),
        }
    }

    fn begin(&mut self, frame: &Frame<'_>) -> bool {
        let header = frame.header();
        let credit = WIRE_FIRST_CREDIT_BYTES;
        let reply = if header.verb == Verb::Get as u8 { body(header.id, header.version) } else { Vec::new() };
        let serving = Serving { verb: header.verb, reply, credit, ..Serving::default() };
        let is_new = self.serving.insert(header.id, serving).is_none();
        if header.verb == Verb::Put as u8 {
            self.frame(Header::credit(header.id, LENGTH_UNKNOWN), b"");
            self.take_body(frame);
        }
        is_new
    }

    /// Takes a part of the body of a put that the other side asks for.
    fn take_body(&mut self, frame: &Frame<'_>) {
        let header = *frame.header();
        let Some(serving) = self.serving.get_mut(&header.id) else { return };
        assert_eq!(serving.taken.len() as u64, header.offset);
        serving.taken.extend_from_slice(frame.body().expect("whole"));
        if !header.has(FLAG_MORE) {
            let serving = self.serving.remove(&header.id).expect("as above");
            assert!(serving.taken == body(header.id, serving.taken.len() as u64), "put {:x}", header.id);
            let request = Header { verb: serving.verb, id: header.id, ..Header::new(Kind::Request) };
            self.frame(Header { length: serving.taken.len() as u64, ..Header::reply_to(&request, Status::Ok) }, b"");
        }
    }

    fn take_reply(&mut self, frame: &Frame<'_>) {
        let header = *frame.header();
        let Some(answer) = self.asker.take_reply(&header).expect("in order") else { return };
        if answer.needs_credit {
            self.frame(Header::credit(header.id, LENGTH_UNKNOWN), b"");
        }
        if header.verb == Verb::Put as u8 {
            assert_eq!(header.length, self.asker.open[&header.id].request.length, "another put's answer");
        }
        self.append(frame);
    }

    /// Takes bytes of a reply in; at its end they must be those that were asked for.
    fn append(&mut self, frame: &Frame<'_>) {
        let header = frame.header();
        let request = self.asker.open[&header.id].request;
        if request.verb == Verb::Get as u8 {
            self.asker.note_mut(header.id).expect("open").extend_from_slice(frame.body().expect("whole"));
        }
        if header.has(FLAG_MORE) {
            return;
        }
        let (got, stopped) = self.asker.end(header.id).expect("open");
        let len = if request.verb == Verb::Get as u8 { request.version } else { request.length };
        assert!(!stopped && got == body(header.id, len), "{:x}: {} of {len} bytes", header.id, got.len());
        self.done += 1;
    }

    fn give_up(&mut self, chance: &mut Chance) {
        let ids: Vec<u64> = self.asker.notes().map(|(id, _)| id).collect();
        if let Some(id) = chance.one_of(&ids) {
            self.given_up += 1;
            if self.asker.give_up(id) {
                self.frame(Header::cancel(id), b"");
            }
        }
    }
}

#[test]
fn two_askers_on_one_stream_get_their_own_bodies_and_nobody_elses() {
    for seed in 0..if cfg!(debug_assertions) { 3 } else { 60 } {
        let chance = &mut Chance(seed);
        let mut ends = [End::new(Side::Dialer), End::new(Side::Acceptor)];
        let mut steps = 0;
        while ends.iter().any(|end| end.done + end.given_up < REQUESTS || !end.out.is_empty()) {
            steps += 1;
            assert!(steps < 100_000, "seed {seed}: it does not come to an end");
            let at = chance.index(2);
            let end = &mut ends[at];
            match chance.below(12) {
                0 if end.made < REQUESTS => end.ask(chance),
                1 if end.made > 6 && end.given_up < 3 => end.give_up(chance),
                2..6 => end.speak(chance),
                _ => {
                    let frame = ends[1 - at].out.pop_front();
                    frame.into_iter().for_each(|frame| ends[at].take(&frame));
                }
            }
        }
        assert!(ends.iter().all(|end| end.asker.is_empty() && end.asker.turns.is_empty()), "seed {seed}");
        assert_eq!(ends[0].made + ends[1].made, 2 * REQUESTS);
    }
}

#[test]
fn ids_tell_who_opened_them() {
    let (dialer, acceptor) = (Side::Dialer.id(0xFF_FFFF, 7), Side::Acceptor.id(0xFF_FFFF, 7));
    assert_eq!((dialer, acceptor), (0x7FFF_FF00_0000_0007, 0xFFFF_FF00_0000_0007));
    for (side, own, other) in [(Side::Dialer, dialer, acceptor), (Side::Acceptor, acceptor, dialer)] {
        assert!(side.opened(own) && !side.opened(other));
    }
}

/// An asker of one get of bytes 3 to 10, the second of its requests, and its header.
fn asked() -> (Asker<()>, Header) {
    let mut asker = Asker::new(Side::Acceptor);
    asker.open(Header::request(Verb::Remove, asker.next_id()), ());
    let request = Header { flags: FLAG_RANGE, offset: 3, length: 7, ..Header::request(Verb::Get, asker.next_id()) };
    assert!(!asker.open(request, ()));
    (asker, request)
}

#[test]
fn every_breach_of_order_has_its_own_error() {
    let ok = |request: &Header| Header { length: 100, body_len: 7, ..Header::reply_to(request, Status::Ok) };
    let (_, request) = asked();
    for (reply, breach) in [
        (Header { verb: Verb::Put as u8, ..ok(&request) }, Breach::AnotherRequest),
        (Header { offset: 4, ..ok(&request) }, Breach::AnotherPart),
        (Header { body_len: 8, ..ok(&request) }, Breach::BodyTooLong),
        (Header { body_len: 5, ..ok(&request) }, Breach::BodyTooShort(2)),
        (Header { id: request.id + 1, ..ok(&request) }, Breach::NeverAsked),
        (Header { id: request.id ^ ID_OF_ACCEPTOR, ..ok(&request) }, Breach::NeverAsked),
    ] {
        assert_eq!(asked().0.take_reply(&reply), Err(breach));
    }
    let (mut asker, request) = asked();
    let data = Header { body_len: 7, ..Header::data(request.id, 3, false) };
    assert_eq!(asker.take_data(&data), Err(Breach::UnaskedData));
    let first = Header { body_len: 0, flags: FLAG_MORE, ..ok(&request) };
    assert_eq!(asker.take_reply(&first).map(|answer| answer.map(|a| a.body_bytes)), Ok(Some(Some(7))));
    assert_eq!(asker.take_reply(&first), Err(Breach::AnotherRequest));
    assert_eq!(asker.take_data(&Header { offset: 4, ..data }), Err(Breach::UnaskedData));
    assert_eq!(asker.take_data(&data), Ok(true));
    assert_eq!(asker.end(request.id), Some(((), false)));
    assert_eq!((asker.take_data(&data), asker.take_reply(&first)), (Ok(false), Ok(None)), "late, and skipped");
}

#[test]
fn the_last_bytes_of_an_object_begin_where_its_size_says() {
    for (length, size, from) in [(7, 100, 93), (7, 7, 0), (7, 3, 0), (0, 5, 5), (LENGTH_UNKNOWN, 9, 0)] {
        let mut asker = Asker::new(Side::Dialer);
        let get = Header::request(Verb::Get, asker.next_id());
        let request = Header { flags: FLAG_RANGE, offset: OFFSET_LAST, length, ..get };
        assert_eq!(request.range_within(size), Ok((from, size - from)));
        asker.open(request, ());
        let reply = Header { length: size, offset: from, ..Header::reply_to(&request, Status::Ok) };
        let wrong = Header { offset: from + 1, ..reply };
        assert_eq!(asker.take_reply(&wrong), Err(Breach::AnotherPart));
        let reply = Header { body_len: (size - from) as u32, ..reply };
        assert_eq!(asker.take_reply(&reply).map(|it| it.and_then(|it| it.body_bytes)), Ok(Some(size - from)));
    }
}

#[test]
fn a_put_that_is_answered_or_given_up_midway_is_told_by_a_cancel_if_it_had_begun() {
    for begun in [false, true] {
        for answered in [false, true] {
            let mut asker = Asker::new(Side::Dialer);
            let request = Header { length: 1 << 20, ..Header::request(Verb::Put, asker.next_id()) };
            asker.open_streamed(request, &Fields::named(b"n"), ()).expect("a name fits");
            if begun {
                let wanted = asker.wanted(BLOCK_BYTES).expect("4 MiB go without credit");
                asker.encode_frame(&mut Vec::new(), (wanted.id, wanted.bytes), [0], false).expect("it fits");
            }
            let told = if answered { asker.end(request.id) == Some(((), true)) } else { asker.give_up(request.id) };
            assert_eq!((told, asker.is_sending(None), asker.is_empty()), (begun, false, true));
        }
    }
}

#[test]
fn a_body_that_comes_bit_by_bit_is_sent_as_far_as_it_is_there() {
    const BLOCK: u64 = BLOCK_BYTES as u64;
    for length in [2 * BLOCK + 9, LENGTH_UNKNOWN] {
        let mut asker = Asker::new(Side::Dialer);
        let request = |asker: &Asker<()>| Header { length, ..Header::request(Verb::Put, asker.next_id()) };
        let (slow, other) = (request(&asker), Header { length: 5, ..request(&asker) });
        asker.open_streamed(slow, &Fields::named(b"n"), ()).expect("a name fits");
        asker.supply(slow.id, BLOCK - 1, false);
        assert!(!asker.can_send() && asker.is_sending(Some(slow.id)), "no whole block is there");
        // It holds up no other body.
        let other = Header { id: asker.next_id(), ..other };
        asker.open_streamed(other, &Fields::named(b"n"), ()).expect("a name fits");
        assert_eq!(asker.wanted(BLOCK_BYTES), Some(Wanted { id: other.id, position: 0, bytes: 5 }));
        asker.encode_frame(&mut Vec::new(), (other.id, 5), [0], false).expect("it fits");
        asker.supply(slow.id, 2 * BLOCK + 9, false);
        for position in [0, BLOCK] {
            assert_eq!(asker.wanted(BLOCK_BYTES), Some(Wanted { id: slow.id, position, bytes: BLOCK_BYTES }));
            asker.encode_frame(&mut Vec::new(), (slow.id, BLOCK_BYTES), [0], false).expect("it fits");
        }
        assert!(!asker.can_send(), "the end is kept back while the body may be given up");
        asker.supply(slow.id, 2 * BLOCK + 9, true);
        assert_eq!(asker.wanted(BLOCK_BYTES), Some(Wanted { id: slow.id, position: 2 * BLOCK, bytes: 9 }));
        let started = asker.encode_frame(&mut Vec::new(), (slow.id, 9), [0], false);
        assert_eq!(started, Ok(Started { position: 2 * BLOCK, more: false }));
        assert!(!asker.is_sending(None));
    }
}
