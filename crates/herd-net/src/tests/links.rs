//! Two engines that speak to each other over a link: dialed by the one, hello, requests of both sides, beats, a new
//! link in the place of an old one. The service is the least that does all of it; what decides is in `herd_core::wire`.

use super::Same;
use crate::{Cable, Call, Due, Engine, LoopStats, Next, Output, Peer as Outer, Pipes, Service, Step, System, Ticket};
use herd_core::limits::{DIAL_TIMEOUT_MS, LINK_BEAT_MS, LINK_OPS_MAX, LINK_SILENCE_MS, OUTPUT_HIGH_BYTES, TICK_MS};
use herd_core::place::{HerdId, NodeId};
use herd_core::wire::{
    Accepting, Asker, Beat, Beats, Dialing, Fields, Frame, Header, Kind, LinkError, LinkId, Links, Peer, Secret, Side,
    Status, VERB_BEAT, Verb, encode_frame, parse_frame,
};
use herd_core::{ErrorKind, limits};
use std::io::IoSliceMut;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::Arc;

const SECRET: Secret = Secret(*b"sixteen bytes ..");
/// When a link that was lost is dialed anew.
const REDIAL_MS: u64 = 50;
/// Frames that are served at once, so that others have their turn.
const AT_ONCE: usize = 8;

fn node(number: usize) -> NodeId {
    NodeId(NonZeroU32::new(number as u32 + 1).expect("not 0"))
}

fn address(number: usize) -> SocketAddr {
    ([127, 0, 0, 1], number as u16 + 1).into()
}

/// A link session, by how far its hello has come.
enum Session {
    /// Being made, or the welcome is to come.
    Dialing(Box<Dialing>, u64),
    /// Nothing was heard yet.
    New,
    /// The other side's proof is to come.
    Accepting(Box<Accepting>, u64),
    Up(Box<Up>),
    /// It is over; what comes is dropped.
    Down,
}

struct Up {
    id: LinkId,
    asker: Asker<u64>,
    beats: Beats,
    ticket: Ticket,
}

/// The least of a node.
struct Node {
    number: usize,
    incarnation: u64,
    nonces: u64,
    now_ms: u64,
    links: Links,
    /// The node it keeps a link to, if it dials, and when it dials next.
    dials: Option<usize>,
    dial_ms: u64,
    /// Tickets of links that are up, and when they beat.
    up: Vec<Ticket>,
    beat_ms: u64,
    ready: Vec<Ticket>,
    /// Requests to be asked, each with a tag that rises, and their size and that of replies.
    to_ask: u64,
    asked: u64,
    request_bytes: usize,
    reply_bytes: usize,
    /// Tags that were served, in order; and of answers, with those that were refused.
    served: Vec<u64>,
    answered: Vec<u64>,
    busy: usize,
    beats: usize,
    refused: Option<LinkError>,
    /// Links that were lost by silence, and connections that were closed before a link was up.
    silent: usize,
    failed: usize,
    most_unsent: usize,
    /// Clients hold all there is.
    is_full: bool,
}

impl Node {
    fn new(number: usize, dials: Option<usize>) -> Self {
        Self {
            number,
            incarnation: 1,
            nonces: 0,
            now_ms: 0,
            links: Links::default(),
            dials,
            dial_ms: if dials.is_some() { 0 } else { u64::MAX },
            up: Vec::new(),
            beat_ms: u64::MAX,
            ready: Vec::new(),
            to_ask: 0,
            asked: 0,
            request_bytes: 100,
            reply_bytes: 100,
            served: Vec::new(),
            answered: Vec::new(),
            busy: 0,
            beats: 0,
            refused: None,
            silent: 0,
            failed: 0,
            most_unsent: 0,
            is_full: false,
        }
    }

    fn me(&mut self) -> Peer {
        self.nonces += 1;
        Peer {
            protocol: 1,
            herd: HerdId([7; 16]),
            node: node(self.number),
            incarnation: self.incarnation,
            loops: 1,
            link: 0,
            epoch: 1,
            revision: 1,
            nonce: u128::from(self.nonces << 8 | self.number as u64).to_le_bytes(),
        }
    }

    fn dial(&mut self, to: usize) -> Session {
        let (me, begun) = (self.me(), self.links.begin());
        Session::Dialing(Box::new(Dialing::new(me, node(to), SECRET)), begun)
    }

    /// The other side has proved itself, after a hello that was the `begun`th.
    fn up(&mut self, peer: &Peer, begun: u64, side: Side, out: &mut Output<'_, Same>) -> Result<Session, LinkError> {
        let (id, ticket) = (self.links.renew(peer, begun)?, out.ticket());
        self.up.push(ticket);
        self.ready.push(ticket);
        self.beat_ms = self.beat_ms.min(self.now_ms + LINK_BEAT_MS);
        let (asker, beats) = (Asker::new(side), Beats::new(self.now_ms));
        Ok(Session::Up(Box::new(Up { id, asker, beats, ticket })))
    }

    /// Takes one frame; an error refuses the link.
    fn frame(&mut self, session: &mut Session, frame: &Frame<'_>, out: &mut Output<'_, Same>) -> Result<(), LinkError> {
        let (header, fields) = (frame.header(), frame.fields().expect("what we write is well made"));
        match (&mut *session, header.kind) {
            (Session::New, Kind::Hello) => {
                let accepting = Accepting::new(&fields, &self.me(), SECRET)?;
                accepting.welcome(out.buf);
                *session = Session::Accepting(Box::new(accepting), self.links.begin());
            }
            (Session::Accepting(accepting, begun), Kind::Hello) => {
                let (peer, begun) = (accepting.proved(&fields)?, *begun);
                *session = self.up(&peer, begun, Side::Acceptor, out)?;
            }
            (Session::Dialing(dialing, begun), Kind::Welcome) => {
                let (peer, begun) = (dialing.welcomed(&fields, out.buf)?, *begun);
                *session = self.up(&peer, begun, Side::Dialer, out)?;
            }
            (_, Kind::Goodbye) => {
                self.refused = LinkError::of_goodbye(header, &fields);
                *session = Session::Down;
            }
            (Session::Up(up), _) => {
                up.beats.heard(self.now_ms);
                self.up_frame(up, frame, out);
            }
            (_, kind) => panic!("{kind:?} before the link is up"),
        }
        Ok(())
    }

    fn up_frame(&mut self, up: &mut Up, frame: &Frame<'_>, out: &mut Output<'_, Same>) {
        let header = frame.header();
        match header.kind {
            Kind::Request if header.verb == VERB_BEAT => reply(header, Status::Ok, &[], out),
            Kind::Request => self.serve_one(frame, out),
            Kind::Reply => {
                up.asker.take_reply(header).expect("in order").expect("nothing is given up");
                let (tag, _) = up.asker.end(header.id).expect("it was open");
                match header.status() {
                    _ if header.verb == VERB_BEAT => self.beats += 1,
                    Some(Status::Ok) => self.answered.push(tag),
                    Some(Status::Error(ErrorKind::Busy)) => self.busy += 1,
                    other => panic!("{other:?}"),
                }
                self.ask(up, out);
            }
            kind => panic!("{kind:?}"),
        }
    }

    /// Answers a request at once, with a reply of its own size.
    fn serve_one(&mut self, frame: &Frame<'_>, out: &mut Output<'_, Same>) {
        let (header, bytes) = (frame.header(), frame.body().expect("whole").len() as u64);
        self.most_unsent = self.most_unsent.max(out.pending_bytes());
        if bytes + out.pending_bytes() as u64 > limits::LINK_BYTES_MAX {
            return reply(header, Status::Error(ErrorKind::Busy), &[], out);
        }
        self.served.push(header.version);
        reply(header, Status::Ok, &vec![b'r'; self.reply_bytes], out);
    }

    /// Asks what there is to ask, as far as it may.
    fn ask(&mut self, up: &mut Up, out: &mut Output<'_, Same>) {
        while self.asked < self.to_ask && up.asker.len() < LINK_OPS_MAX {
            self.asked += 1;
            let header = Header { version: self.asked, ..Header::request(Verb::Execute, up.asker.next_id()) };
            up.asker.open(header, self.asked);
            encode_frame(out.buf, header, &Fields::default(), &vec![b'q'; self.request_bytes]).expect("within limits");
        }
    }

    /// Beats, or finds that the other side does not.
    fn beat(&mut self, up: &mut Up, out: &mut Output<'_, Same>) -> bool {
        match up.beats.poll(self.now_ms) {
            Beat::Rest => {}
            Beat::Send => {
                let header = Header { verb: VERB_BEAT, id: up.asker.next_id(), ..Header::new(Kind::Request) };
                up.asker.open(header, 0);
                encode_frame(out.buf, header, &Fields::default(), &[]).expect("within the limits");
            }
            Beat::Lost => self.silent += 1,
        }
        up.beats.poll(self.now_ms) != Beat::Lost
    }
}

fn reply(request: &Header, status: Status, body: &[u8], out: &mut Output<'_, Same>) {
    let header = Header { length: body.len() as u64, ..Header::reply_to(request, status) };
    encode_frame(out.buf, header, &Fields::default(), body).expect("within the limits");
}

impl Service for Node {
    type Session = Session;
    type Bulk = Same;

    fn begin(&mut self, now_ns: u64) {
        self.now_ms = now_ns / 1_000_000;
    }

    fn open(&mut self, _peer: SocketAddr) -> Session {
        Session::New
    }

    fn foresee(&mut self, _session: &Session, _input: &[u8]) {}

    fn foreseen(&mut self) {}

    fn served(&mut self, _now_ns: u64) {}

    fn serve(&mut self, session: &mut Session, input: &[u8], out: &mut Output<'_, Same>) -> Step {
        let mut used = 0;
        for served in 0.. {
            if self.is_dropped(session) {
                return Step { used: input.len(), next: Next::Close };
            }
            let Some(frame) = parse_frame(&input[used..]).expect("what we write is well made") else { break };
            if served == AT_ONCE {
                return Step { used, next: Next::Again };
            }
            used += frame.bytes();
            if let Err(error) = self.frame(session, &frame, out) {
                error.goodbye(out.buf);
                self.refused = Some(error);
                *session = Session::Down;
            }
        }
        Step { used, next: Next::Read }
    }

    fn space<'a>(&'a mut self, _session: &'a mut Session, _max: usize) -> Vec<IoSliceMut<'a>> {
        Vec::new()
    }

    fn filled(&mut self, _session: &mut Session, _n: usize, _out: &mut Output<'_, Same>) -> Step {
        unreachable!("its bodies are small")
    }

    fn ready(&mut self, tickets: &mut Vec<Ticket>) {
        tickets.append(&mut self.ready);
    }

    fn resume(&mut self, session: &mut Session, _ticket: Ticket, out: &mut Output<'_, Same>) -> bool {
        let Session::Up(up) = session else { return false };
        self.ask(up, out);
        if !self.beat(up, out) {
            self.links.close(up.id);
            self.up.retain(|ticket| *ticket != up.ticket);
            *session = Session::Down;
            self.dial_ms = self.dials.map_or(u64::MAX, |_| self.now_ms);
        }
        true
    }

    fn is_multiplexed(&self, _session: &Session) -> bool {
        true
    }

    fn wants_more(&self, _session: &Session) -> bool {
        false
    }

    fn owes(&self, _session: &Session) -> bool {
        false
    }

    fn more(&mut self, _session: &mut Session, _out: &mut Output<'_, Same>) {}

    fn tick(&mut self, _due: &mut Vec<Ticket>) {}

    fn alarm_ms(&self) -> u64 {
        self.dial_ms.min(self.beat_ms)
    }

    fn alarm(&mut self, now_ms: u64, due: &mut Due<Session>) {
        if now_ms >= self.dial_ms {
            self.dial_ms = u64::MAX;
            due.calls.extend(self.dials.map(|to| Call { to: address(to), session: self.dial(to) }));
        }
        if now_ms >= self.beat_ms {
            self.beat_ms = if self.up.is_empty() { u64::MAX } else { now_ms + LINK_BEAT_MS };
            due.tickets.extend_from_slice(&self.up);
        }
    }

    fn connected(&mut self, session: &mut Session, out: &mut Output<'_, Same>) {
        let Session::Dialing(dialing, _) = session else { panic!("only who dials is connected") };
        dialing.hello(out.buf);
    }

    fn is_link(&self, session: &Session) -> bool {
        matches!(session, Session::Up(_))
    }

    fn is_dropped(&self, session: &Session) -> bool {
        match session {
            Session::Up(up) => !self.links.is_current(up.id),
            session => matches!(session, Session::Down),
        }
    }

    fn is_idle(&self, _session: &Session) -> bool {
        true
    }

    fn is_known(&self, session: &Session) -> bool {
        matches!(session, Session::Up(_))
    }

    fn hold(&mut self, change_bytes: i64) -> bool {
        change_bytes < 0 || !self.is_full
    }

    fn close(&mut self, session: Session) {
        match session {
            Session::Up(up) => {
                self.up.retain(|ticket| *ticket != up.ticket);
                if !self.links.is_current(up.id) {
                    return;
                }
                self.links.close(up.id);
            }
            Session::Down => return,
            _ => self.failed += 1,
        }
        self.dial_ms = self.dials.map_or(u64::MAX, |_| self.now_ms + REDIAL_MS);
    }
}

/// What happens to what is dialed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Answers {
    Yes,
    Refused,
    Silence,
}

/// Two nodes, of which the second dials the first, and what joins them.
struct World {
    engines: [Engine<Node, Pipes>; 2],
    pipes: [Pipes; 2],
    /// Numbers of the connections at both nodes, and the cable between.
    cables: Vec<([usize; 2], Cable)>,
    /// What the second node dialed and nobody accepted.
    alone: Vec<(usize, Outer)>,
    answers: Answers,
    dialed: usize,
    /// Bytes each way that there is room for, and that are carried at once.
    room: usize,
    most: usize,
    ticked_ms: u64,
}

impl World {
    fn new(room: usize, most: usize) -> Self {
        let first = Pipes::default();
        let pipes = [first.clone(), first.another()];
        let engine = |number: usize, dials| {
            Engine::new(Node::new(number, dials), pipes[number].clone(), Arc::new(LoopStats::default()))
        };
        let engines = [engine(0, None), engine(1, Some(0))];
        let (cables, alone, answers, dialed, ticked_ms) = (Vec::new(), Vec::new(), Answers::Yes, 0, 0);
        Self { engines, pipes, cables, alone, answers, dialed, room, most, ticked_ms }
    }

    fn node(&self, at: usize) -> &Node {
        self.engines[at].service()
    }

    /// Tells a node what its sockets have, and lets it work once.
    fn work(&mut self, at: usize) {
        let engine = &mut self.engines[at];
        engine.begin();
        for (numbers, cable) in &self.cables {
            if let Some(ready) = cable.end(at).news() {
                engine.note(numbers[at], ready);
            }
        }
        for (number, outer) in self.alone.iter().filter(|_| at == 1) {
            if let Some(ready) = outer.news() {
                engine.note(*number, ready);
            }
        }
        engine.rounds();
        engine.turns();
        engine.alarm();
    }

    /// Answers what the second node dialed.
    fn answer(&mut self) -> bool {
        let dialed = self.pipes[1].dialed();
        self.dialed += dialed.len();
        let any = !dialed.is_empty();
        for dial in dialed {
            assert_eq!(dial.to, address(0));
            match self.answers {
                Answers::Yes => self.join(dial.at, dial.peer),
                Answers::Refused => {
                    dial.peer.reset();
                    self.alone.push((dial.at, dial.peer));
                }
                Answers::Silence => self.alone.push((dial.at, dial.peer)),
            }
        }
        any
    }

    fn join(&mut self, at: usize, peer: Outer) {
        let (pipe, outer) = self.pipes[0].connect(self.room, self.room);
        peer.accept(self.room, self.room);
        let own = self.engines[0].adopt(address(1), |_| Ok(pipe)).expect("a pipe is always had");
        self.cables.push(([own, at], Cable::new(outer, peer)));
    }

    /// Carries on every cable, once each way; whether anything moved.
    fn carry(&mut self) -> bool {
        let mut moved = 0;
        for (_, cable) in &mut self.cables {
            moved += (0..2).map(|from| cable.carry(from, self.most)).sum::<usize>();
        }
        moved > 0
    }

    /// Until nothing moves any more; gives the iterations that took.
    fn settle(&mut self) -> usize {
        for iterations in 0..2_000_000 {
            let before = (self.node(0).served.len(), self.node(1).served.len());
            (0..2).for_each(|at| self.work(at));
            let moved = self.answer() | self.carry();
            let served = before != (self.node(0).served.len(), self.node(1).served.len());
            if !moved && !served && self.engines.iter().all(|engine| !engine.is_busy()) {
                return iterations;
            }
        }
        panic!("they never come to rest");
    }

    /// Lets time pass; each node works at its own times and at each tick.
    fn pass(&mut self, ms: u64) {
        let end_ms = self.now_ms() + ms;
        loop {
            let alarms = self.engines.iter().map(Engine::alarm_ms).min().expect("two nodes");
            let now_ms = self.now_ms();
            let next_ms = alarms.max(now_ms + 1).min(self.ticked_ms + TICK_MS).min(end_ms);
            self.pipes[0].pass((next_ms - now_ms) * 1_000_000);
            if next_ms >= self.ticked_ms + TICK_MS {
                self.ticked_ms = next_ms;
                self.engines.iter_mut().for_each(|engine| {
                    engine.begin();
                    engine.tick();
                });
            }
            self.settle();
            if next_ms >= end_ms {
                return;
            }
        }
    }

    fn now_ms(&self) -> u64 {
        self.pipes[0].now_ns() / 1_000_000
    }

    /// With a link that is up.
    fn linked(room: usize, most: usize) -> Self {
        let mut world = World::new(room, most);
        world.settle();
        assert_eq!((world.node(0).up.len(), world.node(1).up.len(), world.dialed), (1, 1, 1));
        world
    }

    /// Has a node ask so many more requests on its link.
    fn ask(&mut self, at: usize, requests: u64) {
        let node = &mut self.engines[at].service;
        node.to_ask += requests;
        let ticket = node.up[0];
        self.engines[at].resume_later(ticket);
    }
}

fn tags(count: u64) -> Vec<u64> {
    (1..=count).collect()
}

#[test]
fn requests_of_both_sides_are_answered_over_one_link_however_it_is_cut() {
    for (room, most) in [(1 << 20, 1 << 20), (100, 7), (5_000, 10_000)] {
        let mut world = World::linked(room, most);
        (0..2).for_each(|at| world.ask(at, 200));
        world.settle();
        for at in 0..2 {
            assert_eq!((world.node(at).served.clone(), world.node(at).answered.clone()), (tags(200), tags(200)));
        }
    }
}

#[test]
fn a_link_is_not_closed_for_what_clients_hold() {
    let mut world = World::linked(4_096, 4_096);
    for at in 0..2 {
        let node = &mut world.engines[at].service;
        (node.is_full, node.request_bytes, node.reply_bytes) = (true, 2_000, 10_000);
        world.ask(at, 200);
    }
    world.settle();
    for at in 0..2 {
        assert_eq!((world.node(at).answered.len(), world.node(at).up.len()), (200, 1));
    }
}

/// With what stops reading at its own high mark, both would wait for ever: each has more to say than there is room for.
#[test]
fn two_nodes_that_are_full_of_each_others_requests_do_not_hang() {
    let mut world = World::linked(4_096, 4_096);
    for at in 0..2 {
        let node = &mut world.engines[at].service;
        (node.request_bytes, node.reply_bytes) = (2_000, 10_000);
        world.ask(at, 2_000);
    }
    world.settle();
    for at in 0..2 {
        let node = world.node(at);
        assert_eq!((node.answered.len(), node.busy, node.served.len()), (2_000, 0, 2_000));
        assert!(node.most_unsent > 10 * OUTPUT_HIGH_BYTES, "{} bytes: none was full", node.most_unsent);
    }
}

#[test]
fn who_owes_too_much_refuses_requests_and_never_replies() {
    let mut world = World::linked(16_384, 16_384);
    for at in 0..2 {
        world.engines[at].service.reply_bytes = 40_000;
        world.ask(at, LINK_OPS_MAX as u64);
    }
    world.settle();
    for at in 0..2 {
        let node = world.node(at);
        assert_eq!(node.answered.len() + node.busy, LINK_OPS_MAX, "each request has its answer");
        assert!(node.busy > 0, "{} answered", node.answered.len());
        let least = (limits::LINK_BYTES_MAX - (2 << 20)) / 40_100;
        assert!(node.answered.len() as u64 > least, "{} answered", node.answered.len());
        assert!(node.most_unsent as u64 <= limits::LINK_BYTES_MAX + (1 << 20), "{} bytes", node.most_unsent);
    }
}

#[test]
fn a_link_that_is_replaced_has_none_of_its_unread_bytes_served() {
    // Whether the node is told of the old link in the same round in which it takes the new one's proof, or later.
    for late in [false, true] {
        let mut world = World::linked(1 << 20, 1 << 20);
        world.ask(1, 5);
        world.work(1);
        world.work(1);
        assert!(world.cables[0].1.carry(1, 1 << 20) > 500, "they lie before the first node, unread");
        // The second node loses the link; the first one is not told.
        world.cables[0].1.end(1).reset();
        let ([old_at, own_at], old) = world.cables.remove(0);
        world.engines[1].begin();
        world.engines[1].note(own_at, old.end(1).news().expect("a reset"));
        world.engines[1].rounds();
        assert!(world.node(1).up.is_empty());
        // It dials again, and both go as far as the welcome.
        world.engines[1].service.to_ask = 8;
        world.pipes[0].pass(REDIAL_MS * 1_000_000);
        world.work(1);
        world.answer();
        for _ in 0..3 {
            world.work(1);
            world.carry();
            if world.node(1).up.is_empty() {
                world.work(0);
                world.carry();
            }
        }
        assert_eq!((world.node(1).up.len(), world.node(0).up.len()), (1, 1), "the first has not read the proof");
        // Now it is told of both.
        let news = old.end(0).news().expect("five requests");
        let engine = &mut world.engines[0];
        engine.begin();
        let new = world.cables[0].1.end(0).news().expect("the proof");
        engine.note(world.cables[0].0[0], new);
        if !late {
            engine.note(old_at, news);
        }
        engine.rounds();
        engine.turns();
        if late {
            engine.note(old_at, news);
        }
        world.pass(TICK_MS);
        let node = world.node(0);
        assert_eq!(node.served, [6, 7, 8], "late {late}: what came over the old link is gone");
        assert!(old.end(0).is_closed());
        assert_eq!((node.up.len(), world.engines[0].open()), (1, 1));
    }
}

/// A proof that the network gives back late belongs to a link that the dialing node has dropped since, with all that
/// follows it.
#[test]
fn a_proof_that_comes_late_opens_no_link() {
    let mut world = World::new(1 << 20, 1 << 20);
    world.work(1);
    world.answer();
    let up = |world: &World, at: usize| world.node(at).up.len();
    loop {
        world.work(1);
        if up(&world, 1) == 1 {
            break;
        }
        world.cables[0].1.carry(1, 1 << 20);
        world.work(0);
        world.cables[0].1.carry(0, 1 << 20);
    }
    world.ask(1, 3);
    (0..3).for_each(|_| world.work(1));
    assert_eq!(up(&world, 0), 0, "its proof lies in the network, with three requests");
    let ([held_at, own_at], held) = world.cables.remove(0);
    let late = held.end(1).read(1 << 20);
    assert!(late.len() > 300);
    held.end(1).reset();
    world.engines[1].begin();
    world.engines[1].note(own_at, held.end(1).news().expect("a reset"));
    world.engines[1].rounds();
    world.pass(REDIAL_MS);
    assert_eq!((up(&world, 0), up(&world, 1), world.dialed), (1, 1, 2));
    assert_eq!(held.end(0).write(&late), late.len());
    let engine = &mut world.engines[0];
    engine.begin();
    engine.note(held_at, held.end(0).news().expect("a proof"));
    engine.rounds();
    world.pass(2 * TICK_MS);
    world.ask(1, 2);
    world.settle();
    assert_eq!((up(&world, 0), world.node(0).served.clone()), (1, vec![4, 5]), "the newer link is the present one");
    assert!(held.end(0).is_closed());
}

#[test]
fn beats_keep_an_idle_link_and_silence_ends_it() {
    let mut world = World::linked(1 << 20, 1 << 20);
    world.pass(20 * LINK_SILENCE_MS);
    assert_eq!((world.dialed, world.node(0).silent + world.node(1).silent), (1, 0));
    assert!((0..2).all(|at| world.node(at).beats as u64 >= 20 * LINK_SILENCE_MS / LINK_BEAT_MS - 1));
    // The network takes no more, and tells nobody.
    world.most = 0;
    world.answers = Answers::Silence;
    world.pass(LINK_SILENCE_MS - LINK_BEAT_MS);
    assert_eq!((world.node(0).up.len(), world.node(1).up.len()), (1, 1));
    world.pass(2 * LINK_BEAT_MS);
    assert_eq!((world.node(0).silent, world.node(1).silent, world.dialed), (1, 1, 2));
    world.pass(TICK_MS);
    assert_eq!(world.engines[0].open(), 0, "the socket is given back");
    (world.most, world.answers) = (1 << 20, Answers::Yes);
    world.pass(DIAL_TIMEOUT_MS + 2 * TICK_MS);
    world.ask(1, 3);
    world.settle();
    assert_eq!(world.node(1).answered, tags(3), "it was dialed again");
}

#[test]
fn what_is_refused_or_not_answered_is_dialed_again() {
    for answers in [Answers::Refused, Answers::Silence] {
        let mut world = World::new(1 << 20, 1 << 20);
        world.answers = answers;
        world.pass(3 * (DIAL_TIMEOUT_MS + TICK_MS + REDIAL_MS));
        let node = world.node(1);
        assert!(world.dialed >= 3 && node.up.is_empty(), "{} times", world.dialed);
        assert_eq!(node.failed, world.dialed - world.engines[1].open());
        world.answers = Answers::Yes;
        world.pass(DIAL_TIMEOUT_MS + 2 * TICK_MS);
        assert_eq!((world.node(0).up.len(), world.node(1).up.len()), (1, 1));
        assert!(world.engines.iter().all(|engine| engine.open() == 1));
    }
}

#[test]
fn a_node_that_may_not_have_a_link_is_told_why_and_closed() {
    let mut world = World::new(1 << 20, 1 << 20);
    // The first node takes itself for the second one.
    world.engines[0].service.number = 1;
    world.settle();
    let told = world.node(1).refused.clone().expect("a goodbye");
    assert_eq!(Some(&told), world.node(0).refused.as_ref());
    assert_eq!(told.kind, herd_core::wire::LinkErrorKind::Itself);
    world.pass(2 * TICK_MS);
    assert!(world.engines.iter().all(|engine| engine.open() == 0));
    assert_eq!(world.dialed, 1, "who is refused does not ask again by itself");
}
