//! One run: a node, its clients, and what happens between them, all from one seed.

use crate::random::value;
use crate::session::{Http, Memcached, Plan, Session, Wire};
use herd_core::limits::TICK_MS;
use herd_net::{Engine, LoopStats, Peer, Pipes, Service};
use herd_node::{Config, Environment, Inside, Unsettled};
use std::sync::{Arc, OnceLock};

/// The date at which each run begins, ms since 1970.
const START_MS: u64 = 1_800_000_000_000;
const MEMORY_BYTES: u64 = 8 << 20;
/// Requests of a run, and the least number of connections they come by.
const REQUESTS: usize = 220;
const CONNECTIONS: usize = 5;
/// What a run may take at most before somebody is taken to hang.
const STEPS_MAX: usize = 200_000;

/// A client's connection.
struct Link {
    peer: Peer,
    /// Its number in the engine.
    at: usize,
    session: Box<dyn Session>,
    /// Requests it is to make.
    left: usize,
    /// Most requests it has open.
    depth: usize,
    /// How often it reads when it could, in a hundred.
    reads: u64,
    fate: Fate,
    state: State,
    /// The node may close it for its slowness.
    may_be_shed: bool,
}

/// What it does after its last request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// Waits for all answers, then ends.
    Polite,
    /// Sends no more, but reads all answers.
    HalfClose,
    /// Ends at once, unread answers or not.
    Leave,
    Reset,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Open,
    /// It sends no more.
    Ended,
    /// It neither sends nor reads.
    Gone,
}

struct World<S: Service> {
    plan: Plan,
    pipes: Pipes,
    engine: Engine<S, Pipes>,
    inside: Inside,
    links: Vec<Link>,
    requests_left: usize,
    connections: usize,
    now_ns: u64,
    ticked_ns: u64,
    stats: Arc<LoopStats>,
}

/// Runs one seed; the error tells what was wrong.
pub(crate) fn run(seed: u64) -> Result<(), String> {
    let plan = Plan::new(seed);
    let config = Config { memory_bytes: MEMORY_BYTES, evict: plan.history.evicts, ..Config::default() };
    let environment = Environment { unix_ms: START_MS, random: (u128::from(seed) << 1 | 1).to_le_bytes() };
    let (inside, service) = Inside::new(config, &environment).map_err(|error| error.to_string())?;
    let (pipes, stats) = (Pipes::default(), Arc::new(LoopStats::default()));
    let engine = Engine::new(service, pipes.clone(), stats.clone());
    let (links, requests_left, connections, now_ns, ticked_ns) = (Vec::new(), REQUESTS, 0, 0, 0);
    let mut world = World { plan, pipes, engine, inside, links, requests_left, connections, now_ns, ticked_ns, stats };
    world.run()
}

impl Link {
    /// Ends the connection when it is time.
    fn meet_fate(&mut self, plan: &mut Plan) {
        if self.state != State::Open {
            return;
        }
        let sent = self.left == 0 && self.session.output().is_empty();
        let early = plan.random.below(200) == 0;
        match self.fate {
            Fate::Polite if sent && self.session.pending() == 0 => self.end(State::Ended),
            Fate::HalfClose if sent => self.end(State::Ended),
            Fate::Leave if sent || early => self.end(State::Gone),
            Fate::Reset if sent || early => {
                self.peer.reset();
                self.state = State::Gone;
            }
            _ => {}
        }
    }

    fn end(&mut self, state: State) {
        self.peer.end();
        self.state = state;
    }
}

impl<S: Service> World<S> {
    fn run(&mut self) -> Result<(), String> {
        let look_ns = self.plan.random.below(50_000);
        self.pipes.pass_at_each_look(look_ns);
        self.pass(0);
        if self.plan.crowded {
            self.crowd();
        }
        let mut steps = 0;
        while self.requests_left > 0 || !self.links.is_empty() {
            steps += 1;
            if steps > STEPS_MAX {
                return Err(format!("{} connections never come to an end", self.links.len()));
            }
            self.step()?;
            self.check_memory()?;
        }
        self.settle()?;
        self.plan.history.check()
    }

    fn step(&mut self) -> Result<(), String> {
        if self.requests_left > 0 && self.links.len() < 2 + self.plan.random.below(6) as usize {
            self.connect();
        }
        for _ in 0..1 + self.plan.random.below(4) {
            if !self.links.is_empty() {
                let at = self.plan.random.below(self.links.len() as u64) as usize;
                self.act(at)?;
            }
        }
        if self.plan.random.chance(70) {
            self.work();
        }
        let ms = match self.plan.random.below(1000) {
            0 => self.jump(35_000),
            1..10 => self.jump(1_500),
            10..100 => self.plan.random.below(300),
            100..400 => self.plan.random.below(5),
            _ => 0,
        };
        self.pass(ms);
        self.bury()
    }

    fn connect(&mut self) {
        let requests =
            (1 + self.plan.random.size((2 * REQUESTS / CONNECTIONS) as u64) as usize).min(self.requests_left);
        self.requests_left -= requests;
        self.connections += 1;
        let session: Box<dyn Session> = match self.plan.random.below(3) {
            0 => Box::new(Memcached::default()),
            1 => Box::new(Http::default()),
            _ => Box::new(Wire::new(&self.plan)),
        };
        let random = &mut self.plan.random;
        let least = self.plan.value_bytes / 16 + 16;
        let (to_node, to_client) = (random.size(1 << 20).max(least), random.size(1 << 20).max(least));
        let (pipe, peer) = self.pipes.connect(to_node as usize, to_client as usize);
        let fate = [Fate::Polite, Fate::HalfClose, Fate::Leave, Fate::Reset][random.below(4) as usize];
        let (depth, reads) = (1 + random.size(16) as usize, if random.chance(70) { 90 } else { 10 });
        let at = self.engine.adopt(([127, 0, 0, 1], 1).into(), |_| Ok(pipe)).expect("a pipe is always had");
        let (state, may_be_shed) = (State::Open, false);
        self.links.push(Link { peer, at, session, left: requests, depth, reads, fate, state, may_be_shed });
    }

    /// Something that the client of a connection does.
    fn act(&mut self, at: usize) -> Result<(), String> {
        let (link, plan) = (&mut self.links[at], &mut self.plan);
        if link.state == State::Open {
            if link.left > 0 && link.session.pending() < link.depth && !link.session.expects_end() {
                link.session.ask(plan);
                link.left -= 1;
            }
            if link.session.expects_end() {
                self.requests_left += std::mem::take(&mut link.left);
            }
            let most = if plan.random.chance(30) { plan.random.size(2_000) as usize } else { usize::MAX };
            let output = link.session.output();
            let n = link.peer.write(&output[..output.len().min(most)]);
            link.session.sent(n);
        }
        if link.state != State::Gone && plan.random.chance(link.reads) {
            let most = if plan.random.chance(30) { plan.random.size(5_000) as usize } else { usize::MAX };
            let bytes = link.peer.read(most);
            link.session.hear(plan, &bytes)?;
        }
        link.meet_fate(plan);
        Ok(())
    }

    /// The node's loop runs once.
    fn work(&mut self) {
        self.engine.begin();
        for link in &self.links {
            if let Some(ready) = link.peer.news() {
                self.engine.note(link.at, ready);
            }
        }
        self.engine.rounds();
        self.engine.turns();
        let now_ns = herd_net::System::now_ns(&self.pipes);
        self.pass_to(now_ns);
    }

    /// Lets time pass at once; those who have something under way may then be too slow.
    fn jump(&mut self, ms: u64) -> u64 {
        for link in &mut self.links {
            link.may_be_shed = true;
        }
        ms
    }

    fn pass(&mut self, ms: u64) {
        self.pipes.pass(ms * 1_000_000);
        self.pass_to(self.now_ns + ms * 1_000_000);
    }

    fn pass_to(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
        self.plan.history.now_ms = START_MS + now_ns / 1_000_000;
        if self.now_ns - self.ticked_ns >= TICK_MS * 1_000_000 {
            self.ticked_ns = self.now_ns;
            self.engine.begin();
            self.engine.tick();
        }
    }

    /// Forgets connections that are over on both sides.
    fn bury(&mut self) -> Result<(), String> {
        let shed = self.stats.shed.load(std::sync::atomic::Ordering::Relaxed);
        for link in &mut self.links {
            if link.state == State::Gone && !link.peer.is_closed() && !link.peer.read(1).is_empty() {
                link.peer.reset();
            }
            if link.state == State::Open && link.peer.is_over() || link.peer.is_closed() && link.state == State::Gone {
                let excused = link.session.expects_end() || link.may_be_shed || shed > 0 || link.state == State::Gone;
                let open = link.session.pending();
                if open > 0 && !excused {
                    return Err(format!("closed by the node with {open} requests unanswered"));
                }
                self.requests_left += std::mem::take(&mut link.left);
                link.state = State::Gone;
                if !link.peer.is_closed() {
                    link.peer.end();
                }
            } else if link.state == State::Ended && link.peer.is_over() {
                let open = link.session.pending();
                if open > 0 && !link.may_be_shed && shed == 0 && !link.session.expects_end() {
                    return Err(format!("half closed, and then closed with {open} requests unanswered"));
                }
                link.state = State::Gone;
            }
        }
        let plan = &mut self.plan;
        self.links.retain_mut(|link| {
            let over = link.state == State::Gone && link.peer.is_closed();
            if over {
                link.session.lost(plan);
            }
            !over
        });
        Ok(())
    }

    fn check_memory(&self) -> Result<(), String> {
        let (budget, used) = self.inside.memory();
        if used <= budget { Ok(()) } else { Err(format!("{used} bytes used of a budget of {budget}")) }
    }

    /// All clients have gone: nothing of them may be left.
    fn settle(&mut self) -> Result<(), String> {
        for _ in 0..8 {
            self.work();
            self.pass(TICK_MS);
        }
        let unsettled = self.inside.unsettled();
        if unsettled != Unsettled::default() || self.engine.open() > 0 {
            return Err(format!(
                "{} connections, {unsettled:?} are left when all clients have gone",
                self.engine.open()
            ));
        }
        self.fill()
    }

    /// Fills the memory with small objects that nobody asks for, some of them removed again.
    fn crowd(&mut self) {
        const VALUE: [u8; 3_800] = [b'c'; 3_800];
        let set = |name: usize| [format!("set c{name} 0 0 3800 noreply\r\n").as_bytes(), &VALUE, b"\r\n"].concat();
        let mut requests: Vec<u8> = (0..2_000).flat_map(set).collect();
        (0..2_000).step_by(3).for_each(|name| requests.extend(format!("delete c{name} noreply\r\n").bytes()));
        self.ask(&[&requests, b"quit\r\n"]);
    }

    /// All objects are removed; then most of the memory must be there for one.
    fn fill(&mut self) -> Result<(), String> {
        const BODY_BYTES: usize = 5 << 20;
        if !self.ask(&[b"flush_all\r\nquit\r\n"]).starts_with(b"OK") {
            return Err("flush_all is not done".into());
        }
        for _ in 0..8 {
            self.pass(TICK_MS);
        }
        let head = format!("PUT /o/default/whole HTTP/1.1\r\nHost: localhost\r\nContent-Length: {BODY_BYTES}\r\n\r\n");
        static BODY: OnceLock<Vec<u8>> = OnceLock::new();
        let said = self.ask(&[head.as_bytes(), BODY.get_or_init(|| value(7, BODY_BYTES))]);
        if said.starts_with(b"HTTP/1.1 201") {
            return Ok(());
        }
        Err(format!("{BODY_BYTES} bytes do not fit an empty store: {}", String::from_utf8_lossy(&said)))
    }

    /// The answer to a client that is alone.
    fn ask(&mut self, request: &[&[u8]]) -> Vec<u8> {
        let (pipe, peer) = self.pipes.connect(16 << 20, 1 << 20);
        let at = self.engine.adopt(([127, 0, 0, 1], 1).into(), |_| Ok(pipe)).expect("a pipe is always had");
        request.iter().for_each(|part| assert_eq!(peer.write(part), part.len(), "there is room"));
        peer.end();
        while !peer.is_closed() {
            self.engine.begin();
            if let Some(ready) = peer.news() {
                self.engine.note(at, ready);
            }
            self.engine.rounds();
            self.engine.turns();
            self.pass(1);
        }
        peer.read(usize::MAX)
    }
}
