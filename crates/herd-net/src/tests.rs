//! The engine over pipes: a service of one-word requests shows what connections do at their edges. Links between nodes
//! are in `links.rs`.

mod dial;
mod links;

use crate::{Call, Due, Engine, LoopStats, Moved, Next, Output, Peer, Pipes, Service, Step, Ticket};
use herd_core::Chunks;
use herd_core::limits::{OUTPUT_HIGH_BYTES, SNIFF_TIMEOUT_MS, STALLED_TIMEOUT_MS, TURN_SMALL_BYTES};
use std::collections::VecDeque;
use std::io::IoSliceMut;
use std::net::SocketAddr;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, mpsc};

/// A body of equal bytes.
struct Same(Vec<u8>);

impl Chunks for Same {
    fn size_bytes(&self) -> u64 {
        self.0.len() as u64
    }

    fn chunk(&self, at: u64) -> &[u8] {
        &self.0[at as usize..]
    }
}

/// Requests are lines: `p` a reply of 1,000 bytes, `b` a body of 1 MiB, `w` a reply that comes when `ready` is told,
/// `t` one that comes in no order, `r` makes all of those ready, `l` a reply that takes turns of upkeep, `d` a short
/// reply that is dear, so that what follows is put off, `n` none, `m` one that another loop gives, `i` is followed by a
/// body of one byte, `q` the end.
/// Anything else is never whole.
#[derive(Default)]
struct Words {
    now_ns: Vec<u64>,
    waiting: Vec<Ticket>,
    ready: Vec<Ticket>,
    /// Replies that take turns, and how many turns the next of them still takes.
    long: VecDeque<Ticket>,
    turns: usize,
    /// Replies without a place wait on under another ticket.
    renames: bool,
    /// Requests without a reply, so far.
    quiet: usize,
    /// Connections never become known.
    is_stranger: bool,
    /// Where a body goes.
    body: [u8; 1],
    /// Replies are to come of which nothing is queued.
    owes: bool,
    /// There is always a body to send, in no order with requests.
    is_endless: bool,
    held_bytes: i64,
    /// What was unsent when a deferred reply was made.
    unsent: Vec<usize>,
    /// Least size of replies that come later.
    late_bytes: usize,
    /// May connections hold more?
    refuses: bool,
    closed: usize,
    /// The loop it is for that gives the reply to `m`.
    is_other_loop: bool,
    /// When it wants to be woken, ms; the next wake-up makes these connections.
    alarms: VecDeque<u64>,
    calls: Vec<SocketAddr>,
    /// What happened, and when, ms.
    told: Option<mpsc::Sender<(&'static str, u64)>>,
}

impl Words {
    fn tell(&self, what: &'static str) {
        let now_ms = self.now_ns.last().map_or(0, |ns| ns / 1_000_000);
        // Nobody may listen any more.
        self.told.iter().for_each(|told| told.send((what, now_ms)).unwrap_or_default());
    }
}

const REPLY: [u8; 1000] = [b'r'; 1000];

impl Service for Words {
    type Session = ();
    type Bulk = Same;

    fn begin(&mut self, now_ns: u64) {
        self.now_ns.push(now_ns);
    }

    fn open(&mut self, _peer: SocketAddr) {}

    fn foresee(&mut self, _session: &(), _input: &[u8]) {}

    fn foreseen(&mut self) {}

    fn served(&mut self, now_ns: u64) {
        self.now_ns.push(now_ns);
    }

    fn serve(&mut self, _session: &mut (), input: &[u8], out: &mut Output<'_, Same>) -> Step {
        let mut used = 0;
        for line in input.split_inclusive(|byte| *byte == b'\n').filter(|line| line.ends_with(b"\n")) {
            match line {
                b"p\n" => out.buf.extend_from_slice(&REPLY),
                b"b\n" => out.bulk(Same(vec![b'b'; 1 << 20]), 0, 1 << 20),
                b"w\n" => self.waiting.extend(out.defer()),
                b"t\n" => self.waiting.push(out.ticket()),
                b"r\n" => self.ready.append(&mut self.waiting),
                b"l\n" => self.long.extend(out.defer()),
                b"d\n" => {
                    out.buf.extend_from_slice(b"dear");
                    return Step { used: used + 2, next: Next::Again };
                }
                // Behind an `i`, the body that had come already.
                b"n\n" | b"bn\n" => self.quiet += 1,
                b"i\n" if used + 2 == input.len() => return Step { used: used + 2, next: Next::Bulk(1) },
                b"m\n" if self.is_other_loop => out.buf.extend_from_slice(b"moved"),
                b"m\n" => return Step { used, next: Next::Move(1) },
                b"q\n" => return Step { used: used + 2, next: Next::Close },
                _ => {}
            }
            used += line.len();
            if out.pending_bytes() > OUTPUT_HIGH_BYTES {
                return Step { used, next: Next::Again };
            }
        }
        Step { used, next: Next::Read }
    }

    fn space<'a>(&'a mut self, _session: &'a mut (), _max: usize) -> Vec<IoSliceMut<'a>> {
        vec![IoSliceMut::new(&mut self.body)]
    }

    fn filled(&mut self, _session: &mut (), _n: usize, _out: &mut Output<'_, Same>) -> Step {
        Step { used: 0, next: Next::Read }
    }

    fn ready(&mut self, tickets: &mut Vec<Ticket>) {
        tickets.append(&mut self.ready);
    }

    fn resume(&mut self, _session: &mut (), ticket: Ticket, out: &mut Output<'_, Same>) -> bool {
        if self.turns > 0 {
            self.turns -= 1;
            self.long.push_back(ticket);
            return true;
        }
        if self.renames {
            self.waiting.push(out.ticket());
            return true;
        }
        self.unsent.push(out.pending_bytes());
        out.buf.extend_from_slice(b"late");
        out.buf.resize(4.max(self.late_bytes), b'.');
        true
    }

    fn is_multiplexed(&self, _session: &()) -> bool {
        self.is_endless
    }

    fn wants_more(&self, _session: &()) -> bool {
        self.is_endless
    }

    fn owes(&self, _session: &()) -> bool {
        self.owes
    }

    fn more(&mut self, _session: &mut (), out: &mut Output<'_, Same>) {
        out.bulk(Same(vec![b'b'; 1 << 20]), 0, 1 << 20);
    }

    fn tick(&mut self, _due: &mut Vec<Ticket>) {}

    fn alarm_ms(&self) -> u64 {
        self.alarms.front().copied().unwrap_or(u64::MAX)
    }

    fn alarm(&mut self, _now_ms: u64, due: &mut Due<()>) {
        self.alarms.pop_front();
        self.tell("alarm");
        due.calls.extend(self.calls.drain(..).map(|to| Call { to, session: () }));
    }

    fn connected(&mut self, _session: &mut (), out: &mut Output<'_, Same>) {
        self.tell("connected");
        out.buf.extend_from_slice(b"hello");
    }

    fn upkeep(&mut self) -> bool {
        self.ready.extend(self.long.pop_front());
        self.wants_upkeep()
    }

    fn wants_upkeep(&self) -> bool {
        !self.long.is_empty()
    }

    fn is_idle(&self, _session: &()) -> bool {
        true
    }

    fn is_known(&self, _session: &()) -> bool {
        !self.is_stranger
    }

    fn hold(&mut self, change_bytes: i64) -> bool {
        if self.refuses && change_bytes > 0 {
            return false;
        }
        self.held_bytes += change_bytes;
        true
    }

    fn close(&mut self, _session: ()) {
        self.tell("closed");
        self.closed += 1;
    }
}

struct World {
    engine: Engine<Words, Pipes>,
    pipes: Pipes,
    peers: Vec<Peer>,
}

impl World {
    fn new() -> Self {
        let pipes = Pipes::default();
        let engine = Engine::new(Words::default(), pipes.clone(), Arc::new(LoopStats::default()));
        Self { engine, pipes, peers: Vec::new() }
    }

    /// A connection with room for so many bytes of replies; its number.
    fn connect(&mut self, room: usize) -> usize {
        let (pipe, peer) = self.pipes.connect(1 << 20, room);
        let at = self.engine.adopt(([127, 0, 0, 1], 1).into(), |_| Ok(pipe)).expect("a pipe is always had");
        assert_eq!(at, self.peers.len(), "no place is used twice here");
        self.peers.push(peer);
        at
    }

    /// One iteration of the loop.
    fn work(&mut self) {
        self.engine.begin();
        for (at, peer) in self.peers.iter().enumerate() {
            if let Some(ready) = peer.news() {
                self.engine.note(at, ready);
            }
        }
        self.engine.rounds();
        self.engine.turns();
    }

    fn settle(&mut self) {
        self.work();
        while self.engine.is_busy() {
            self.work();
        }
    }

    /// All that comes, with the client reading `step` bytes at a time.
    fn read_all(&mut self, at: usize, step: usize) -> Vec<u8> {
        let mut all = Vec::new();
        loop {
            self.settle();
            let some = self.peers[at].read(step);
            if some.is_empty() {
                return all;
            }
            all.extend(some);
        }
    }
}

#[test]
fn replies_come_whole_however_small_the_room_and_the_reads() {
    for (room, step) in [(10, 7), (999, 1000), (1 << 20, 3), (70_000, 65_536)] {
        let mut world = World::new();
        let at = world.connect(room);
        world.peers[at].write(b"p\np\nb\np\n");
        world.peers[at].end();
        let all = world.read_all(at, step);
        assert_eq!(all.len(), 3000 + (1 << 20), "room {room}, reads of {step}");
        assert!(all[..2000].iter().chain(&all[2000 + (1 << 20)..]).all(|byte| *byte == b'r'));
        assert!(world.peers[at].is_closed() && !world.peers[at].is_reset());
    }
}

#[test]
fn one_turn_of_many_small_requests_is_bounded_while_others_are_about() {
    let mut world = World::new();
    let (greedy, other) = (world.connect(64 << 20), world.connect(1 << 20));
    world.settle();
    let requests = b"p\n".repeat(4000);
    world.peers[greedy].write(&requests);
    for _ in 0..6 {
        world.peers[other].write(b"p\n");
        world.work();
        let sent = world.peers[greedy].read(usize::MAX).len();
        let most = TURN_SMALL_BYTES + 2 * OUTPUT_HIGH_BYTES + 2 * REPLY.len();
        assert!(sent <= most, "{sent} bytes in one iteration, at most {most}");
        assert_eq!(world.peers[other].read(usize::MAX), REPLY);
    }
    assert_eq!(world.read_all(greedy, 1 << 20).len() % REPLY.len(), 0);
}

/// A link between nodes that went on for seconds so heard no beats, and was given up.
#[test]
fn what_comes_is_read_though_a_long_body_is_taken_as_fast_as_it_is_sent() {
    let mut world = World::new();
    world.engine.service.is_endless = true;
    let at = world.connect(64 << 20);
    for round in 1..=20 {
        world.peers[at].write(b"n\n");
        world.work();
        world.work();
        assert_eq!(world.engine.service.quiet, round, "requests that were read");
        assert!(world.peers[at].read(usize::MAX).len() > TURN_SMALL_BYTES, "and the body goes on");
    }
}

#[test]
fn one_turn_of_many_requests_without_replies_is_bounded_though_nobody_else_is_about() {
    let mut world = World::new();
    let at = world.connect(1 << 20);
    world.settle();
    world.peers[at].write(&b"n\n".repeat(400_000));
    let (mut before, mut iterations) = (0, 0);
    while before < 400_000 {
        world.work();
        let served = world.engine.service.quiet - before;
        assert!((1..=TURN_SMALL_BYTES).contains(&served), "{served} requests in one iteration");
        (before, iterations) = (before + served, iterations + 1);
    }
    assert!(iterations >= 10);
}

#[test]
fn requests_behind_bodies_count_as_requests() {
    let mut world = World::new();
    let at = world.connect(1 << 20);
    world.settle();
    let behind_a_body = [b"b", &b"n\n".repeat(2047)[..], b"i\n"].concat();
    world.peers[at].write(&[b"i\n", &behind_a_body.repeat(100)[..], b"b"].concat());
    let mut before = 0;
    while before < 2047 * 100 {
        world.work();
        let served = world.engine.service.quiet - before;
        assert!((1..=49_200).contains(&served), "{served} requests in one iteration");
        before += served;
    }
}

#[test]
fn of_many_dear_requests_two_are_served_before_others_come() {
    let mut world = World::new();
    let (greedy, other) = (world.connect(1 << 20), world.connect(1 << 20));
    world.settle();
    world.peers[greedy].write(&b"d\n".repeat(100));
    for _ in 0..5 {
        world.peers[other].write(b"p\n");
        world.work();
        assert!(world.peers[greedy].read(usize::MAX).len() <= 2 * 4, "one in the round, one in the turn");
        assert_eq!(world.peers[other].read(usize::MAX), REPLY);
    }
    assert_eq!(world.read_all(greedy, 1 << 20).len() % 4, 0);
}

#[test]
fn many_replies_that_become_ready_at_once_take_turns_with_requests() {
    let mut world = World::new();
    let (waits, other) = (world.connect(1 << 20), world.connect(1 << 20));
    world.settle();
    world.peers[waits].write(&b"t\n".repeat(3000));
    world.settle();
    world.peers[other].write(b"r\n");
    world.work();
    world.peers[other].write(b"p\n");
    world.work();
    assert_eq!(world.peers[other].read(usize::MAX), REPLY, "it need not wait for all of them");
    assert!(world.engine.is_busy(), "there are more");
    world.settle();
    assert_eq!(world.peers[waits].read(usize::MAX).len(), 3000 * 4);
}

/// Or what waits on would be taken for what was asked behind it.
#[test]
fn what_a_late_reply_names_nothing_else_is_called() {
    let mut world = World::new();
    let at = world.connect(1 << 20);
    world.settle();
    world.engine.service.renames = true;
    let mut named: Vec<Ticket> = Vec::new();
    for lines in [&b"t\nt\n"[..], b"r\n", b"t\nr\n", b"t\n"] {
        world.peers[at].write(lines);
        world.settle();
        named.extend(&world.engine.service().waiting);
    }
    let all: std::collections::BTreeSet<_> = named.iter().collect();
    // Two; these anew; all three anew; these again, and the last.
    assert_eq!((named.len(), all.len()), (2 + 2 + 3 + 4, 2 + 2 + 3 + 1), "{named:?}");
}

/// Or they would gather where many wait and cancel.
#[test]
fn tickets_of_what_is_gone_take_nobodys_turn() {
    let mut world = World::new();
    let waits = world.connect(1 << 20);
    world.settle();
    world.peers[waits].write(b"t\n");
    world.settle();
    let ticket = world.engine.service().waiting[0];
    world.peers[waits].reset();
    world.settle();
    (0..10_000).for_each(|_| world.engine.resume_later(ticket));
    world.work();
    assert!(!world.engine.is_busy());
}

#[test]
fn a_socket_that_is_told_of_twice_is_served_once() {
    let mut world = World::new();
    let at = world.connect(1 << 20);
    world.settle();
    world.peers[at].write(b"p\n");
    world.peers[at].end();
    world.engine.begin();
    let ready = world.peers[at].news().expect("bytes came");
    world.engine.note(at, ready);
    world.engine.note(at, ready);
    world.engine.rounds();
    world.engine.turns();
    world.settle();
    assert_eq!(world.peers[at].read(usize::MAX), REPLY);
    assert!(world.peers[at].is_closed());
    assert_eq!(world.engine.service().closed, 1);
}

#[test]
fn what_a_connection_holds_is_told_and_given_back() {
    let mut world = World::new();
    let (deaf, cut) = (world.connect(1000), world.connect(1000));
    world.peers[deaf].write(&b"p\n".repeat(100));
    world.peers[cut].write(&[b'x'; 40_000]);
    world.settle();
    assert!(world.engine.service().held_bytes > 130_000, "{}", world.engine.service().held_bytes);
    world.peers[cut].reset();
    world.settle();
    assert!((90_000..110_000).contains(&world.engine.service().held_bytes), "{}", world.engine.service().held_bytes);
    assert_eq!(world.read_all(deaf, 1000).len(), 100 * REPLY.len());
    assert_eq!(world.engine.service().held_bytes, 0);
    world.engine.service.refuses = true;
    world.peers[deaf].write(&b"p\n".repeat(100));
    world.settle();
    assert!(world.peers[deaf].is_closed());
    assert_eq!(world.engine.stats.shed.load(Relaxed), 1);
    assert_eq!(world.engine.service().held_bytes, 0);
}

#[test]
fn a_request_that_is_never_whole_is_closed_and_counted() {
    let mut world = World::new();
    let at = world.connect(1000);
    for _ in 0..40 {
        world.peers[at].write(&[b'x'; 5000]);
        world.settle();
    }
    assert!(world.peers[at].is_closed());
    assert_eq!(world.engine.stats.overrun.load(Relaxed), 1);
}

#[test]
fn a_reply_that_another_connection_made_ready_goes_out_at_once() {
    let mut world = World::new();
    let (waits, other) = (world.connect(1 << 20), world.connect(1 << 20));
    world.peers[waits].write(b"p\nw\np\n");
    world.peers[waits].end();
    world.settle();
    assert_eq!(world.peers[waits].read(usize::MAX), REPLY);
    world.engine.service.ready = world.engine.service.waiting.clone();
    world.peers[other].write(b"p\n");
    world.settle();
    assert_eq!(world.peers[waits].read(usize::MAX), [&b"late"[..], &REPLY].concat());
    assert!(world.peers[waits].is_closed());
}

#[test]
fn a_connection_that_is_shed_by_its_late_reply_may_wait_for_its_round_or_turn() {
    for request in [&b"p\n"[..], b"b\n"] {
        let mut world = World::new();
        let all: Vec<usize> = (0..40).map(|_| world.connect(1 << 21)).collect();
        all[20..].iter().for_each(|at| assert_eq!(world.peers[*at].write(b"t\n"), 2));
        world.settle();
        (world.engine.service.refuses, world.engine.service.late_bytes) = (true, 20_000);
        world.peers[0].write(b"r\n");
        all[1..].iter().for_each(|at| assert_eq!(world.peers[*at].write(request), 2));
        world.settle();
        assert_eq!(world.engine.service().closed, 20);
        assert!(all[1..20].iter().all(|at| !world.read_all(*at, 1 << 20).is_empty()));
    }
}

#[test]
fn one_that_becomes_known_while_nothing_moves_has_the_time_of_a_request() {
    let mut world = World::new();
    world.engine.service.is_stranger = true;
    let at = world.connect(1 << 20);
    world.peers[at].write(b"half");
    world.settle();
    world.engine.service.is_stranger = false;
    world.engine.stand_in_line(at);
    world.settle();
    for (passes_ms, is_closed) in [(SNIFF_TIMEOUT_MS, false), (STALLED_TIMEOUT_MS - SNIFF_TIMEOUT_MS, true)] {
        world.pipes.pass(passes_ms * 1_000_000);
        world.settle();
        world.engine.tick();
        assert_eq!(world.peers[at].is_closed(), is_closed, "after {passes_ms} ms more");
    }
}

#[test]
fn the_end_and_a_reset_close_whatever_is_under_way() {
    for request in [&b"p\n"[..], b"b\n", b"w\n", b"half", b"q\n", b""] {
        for reset in [false, true] {
            let mut world = World::new();
            let at = world.connect(5000);
            world.peers[at].write(request);
            world.settle();
            if reset {
                world.peers[at].reset()
            } else {
                world.peers[at].end()
            }
            world.settle();
            let waits = request == b"w\n" && !reset;
            world.read_all(at, 1 << 20);
            assert_eq!(world.peers[at].is_closed(), !waits, "{request:?}, reset {reset}");
            assert_eq!(world.engine.open(), usize::from(waits));
        }
    }
}

#[test]
fn the_service_sees_time_pass_while_it_works() {
    let mut world = World::new();
    world.pipes.pass_at_each_look(1_000);
    let at = world.connect(1 << 20);
    world.peers[at].write(b"p\n");
    world.pipes.pass(5_000_000);
    world.settle();
    let times = &world.engine.service().now_ns;
    assert!(times[0] >= 5_000_000 && times.is_sorted_by(|a, b| a < b), "{times:?}");
}

#[test]
fn a_reply_that_takes_turns_waits_for_no_tick() {
    let mut world = World::new();
    let at = world.connect(1 << 20);
    world.engine.service.turns = 5;
    world.peers[at].write(b"l\n");
    world.settle();
    assert_eq!(world.read_all(at, 1 << 20), b"late");
}

#[test]
fn who_is_owed_a_reply_has_it_before_a_stop_closes_the_connection() {
    let mut world = World::new();
    let at = world.connect(1 << 20);
    world.peers[at].write(b"t\n");
    world.settle();
    world.engine.service.owes = true;
    world.engine.stop();
    world.engine.tick();
    assert!(!world.engine.has_stopped());
    world.engine.service.owes = false;
    world.peers[at].write(b"r\n");
    world.settle();
    assert_eq!(world.read_all(at, 1 << 20), b"late");
    world.engine.tick();
    assert!(world.engine.has_stopped());
}

#[test]
fn who_makes_a_deferred_reply_is_told_what_is_unsent() {
    let mut world = World::new();
    let at = world.connect(100);
    world.peers[at].write(b"p\nt\nr\n");
    world.settle();
    assert_eq!(world.engine.service().unsent, [REPLY.len() - 100]);
}

/// What was said to it would be lost on the way.
#[test]
fn a_connection_that_was_spoken_to_is_closed_where_it_belongs_to_another_loop() {
    let mut world = World::new();
    let at = world.connect(100);
    world.peers[at].write(b"p\nm\n");
    world.settle();
    assert_eq!((world.pipes.moved().len(), world.engine.open()), (0, 0));
    assert!(world.peers[at].is_closed());
}

#[test]
fn a_connection_that_belongs_to_another_loop_is_handed_over_with_what_it_had_received() {
    for cut in 0..4 {
        let (mut world, mut other) = (World::new(), World::new());
        let at = world.connect(1 << 20);
        let (first, second) = b"m\np\n".split_at(cut);
        world.peers[at].write(first);
        world.settle();
        world.peers[at].write(second);
        world.settle();
        assert_eq!((world.engine.open(), world.engine.service().closed), (0, 1));
        let [Moved { pipe, to, input }] = world.pipes.moved().try_into().ok().expect("one was handed over");
        assert_eq!(to, 1);
        other.engine.service.is_other_loop = true;
        let at = other.engine.adopt(([127, 0, 0, 1], 1).into(), |_| Ok(pipe)).expect("a pipe is always had");
        other.engine.hand_in(at, input);
        other.peers.append(&mut world.peers);
        other.peers[at].end();
        let all = other.read_all(at, 1 << 20);
        assert_eq!(all, [&b"moved"[..], &REPLY].concat(), "cut at {cut}");
        assert!(other.peers[at].is_closed() && !other.peers[at].is_reset());
    }
}
