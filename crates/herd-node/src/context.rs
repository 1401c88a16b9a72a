//! What every door works with: the store, the time, the counters; one context per loop.

use crate::config::Config;
use crate::debug_time::DebugTime;
use crate::flight::Flights;
use crate::gate::Gate;
use crate::group::{self, Gates, Mail, Parts};
use crate::link::{Ends, Hub};
use crate::member::{Member, Petitions, Sent};
use crate::memcached::Flushes;
use crate::metrics::{Batch, DoorName, Metrics, VerbName};
use crate::place::Place;
use crate::watch::{Waiter, Watch};
use herd_core::collection::Class;
use herd_core::door::memcached::Clock;
use herd_core::key::CollectionId;
use herd_core::limits::{COPY_BUSY_MS, WIRE_FIRST_CREDIT_BYTES};
use herd_core::method::Method;
use herd_core::op::{Action, Op};
use herd_core::place::{Life, Map};
use herd_core::wire::MapMark;
use herd_core::wire::{Header, Status};
use herd_core::{Error, ErrorKind, quote};
use herd_net::{LoopHandle, Ticket};
use herd_store::{Body, Collection, Entry, Found, Got, Now, Seat, Store, Upload};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Where replies go.
pub(crate) type Output<'a> = herd_net::Output<'a, Arc<Body>>;

/// What all loops of a node share.
pub(crate) struct Shared {
    /// The objects.
    pub(crate) store: Arc<Store>,
    /// The collection of names without a slash, and of the memcached door.
    pub(crate) default: Collection,
    /// How the node was started.
    pub(crate) config: Config,
    /// Counters, by loop.
    pub(crate) metrics: Vec<Metrics>,
    /// Handle on the loops, once they are made.
    pub(crate) loops: OnceLock<LoopHandle>,
    /// It listens on loopback only.
    pub(crate) is_private: bool,
    /// Set when the node stops.
    pub(crate) stopping: AtomicBool,
    /// Set when somebody asked it to stop.
    pub(crate) told_to_end: AtomicBool,
    /// When it was started, which is when its clock began, ms since 1970.
    pub(crate) start_unix_ms: u64,
    /// The clock of memcached's tests.
    pub(crate) debug_time: DebugTime,
    /// When `flush_all` with a delay is to be asked of the warden, by the clock of requests; 0: not at all.
    pub(crate) flush_at_ms: AtomicU64,
    /// Who waits for which object.
    pub(crate) watch: Arc<Watch>,
    /// Its place in a herd, once it has one; without it all is its own.
    pub(crate) place: OnceLock<Place>,
    /// Which replica groups it decides for.
    pub(crate) gates: Gates,
    /// What it is in the herd that its warden, or the nodes it joined, told it of; a node without is given its maps by
    /// whoever drives it.
    pub(crate) member: OnceLock<Arc<Member>>,
    /// The herd may hold objects: until then whoever brings one waits (`gate.rs`).
    pub(crate) held: AtomicBool,
    /// What its loops hand each other about groups.
    pub(crate) mail: Mail,
    /// Addresses it listens on, once it does.
    pub(crate) addrs: OnceLock<Vec<SocketAddr>>,
    /// Sessions of the wire so far.
    pub(crate) sessions: AtomicU32,
    /// Copies that are being made from here to members that are syncing.
    pub(crate) copies: AtomicU64,
    /// When objects were last asked for, by the clock of the loops, ms; some ms are nothing to it. 0: never.
    pub(crate) asked_ms: AtomicU64,
    /// What its links share, if it takes any; set before the loops are made.
    pub(crate) hub: OnceLock<Arc<Hub>>,
}

/// How an object is kept.
#[derive(Clone, Copy)]
pub(crate) struct Durability {
    /// Its class: what writes need.
    pub(crate) class: Class,
    /// Copies there are.
    pub(crate) copies: u8,
}

impl Durability {
    /// Puts it into a reply.
    #[inline]
    pub(crate) fn tell(self, reply: &mut Header) {
        reply.set_ack(self.class, self.copies);
    }
}

/// Telling so many waiters of a change takes longer than most requests.
const DEAR_WAITERS: usize = 256;

/// A loop's view of the node.
pub(crate) struct Context {
    /// What all loops share.
    pub(crate) shared: Arc<Shared>,
    /// Number of this loop.
    pub(crate) number: usize,
    /// The time of this batch of events.
    pub(crate) now: Now,
    /// When this batch of events began, by the clock of the loops.
    began_ns: u64,
    /// The epoch of the map that clients are told in this batch.
    epoch: u32,
    /// The door that is being served.
    pub(crate) door: DoorName,
    /// Requests counted since.
    batch: Batch,
    /// Waits of this loop that are to look again.
    woken: RefCell<Vec<Ticket>>,
    /// Listings of this loop that are not done; they take turns.
    listings: VecDeque<Ticket>,
    /// A request was served that takes much longer than its bytes tell.
    dear: Cell<bool>,
    /// This loop's links to other nodes.
    pub(crate) links: Ends,
    /// This loop's parts of replica groups.
    pub(crate) parts: Parts,
    /// The herd may hold objects, as was seen when this batch began.
    pub(crate) held: bool,
    /// Connections that wait for that.
    pub(crate) gate: Gate,
    /// What this loop has asked of the warden.
    pub(crate) petitions: Petitions,
    /// What it sent for the warden here.
    pub(crate) sent: Sent,
    /// Connections that wait until all nodes have forgotten all objects.
    pub(crate) flushes: Flushes,
    /// Requests of this loop's connections that others answer.
    pub(crate) flights: Flights,
}

impl Context {
    pub(crate) fn new(shared: Arc<Shared>, number: usize) -> Self {
        let links = Ends::new(shared.hub.get().cloned(), number, shared.config.threads, shared.config.memory_bytes);
        let flights = Flights::new(shared.client_of(number));
        let mut context = Self {
            shared,
            number,
            now: Now::default(),
            began_ns: 0,
            epoch: 0,
            door: DoorName::Other,
            batch: Batch::default(),
            woken: RefCell::default(),
            listings: VecDeque::new(),
            dear: Cell::new(false),
            links,
            parts: Parts::default(),
            held: false,
            gate: Gate::default(),
            petitions: Petitions::default(),
            sent: Sent::default(),
            flushes: Flushes::default(),
            flights,
        };
        context.begin(0);
        context
    }

    /// Takes the time, once for all events of a batch.
    #[inline]
    pub(crate) fn begin(&mut self, now_ns: u64) {
        self.began_ns = now_ns;
        self.shared.gates.begin();
        self.held = self.shared.held.load(Relaxed);
        self.now = self.shared.now_at(now_ns);
        self.epoch = self.shared.place.get().map_or(0, Place::epoch_told);
    }

    /// The header of the reply to a client's request on Herd's wire. It tells the epoch of this node's map.
    #[inline]
    pub(crate) fn reply_to(&self, request: &Header, status: Status) -> Header {
        Header { epoch: self.epoch, ..Header::reply_to(request, status) }
    }

    /// The epoch of the map that clients are told.
    pub(crate) fn epoch_told(&self) -> u32 {
        self.epoch
    }

    /// How long the node has been up, by the clock of its loops.
    pub(crate) fn up(&self) -> Duration {
        Duration::from_nanos(self.began_ns)
    }

    /// The same in whole milliseconds.
    pub(crate) fn now_ms(&self) -> u64 {
        self.began_ns / 1_000_000
    }

    /// The clocks as memcached's replies need them.
    pub(crate) fn clock(&self) -> Clock {
        Clock { now_ms: self.now.unix_ms, node_s: self.now.uptime_s }
    }

    /// When an operation is decided, ms since 1970. For a lock that is looked up anew: it may have come in the midst of
    /// a batch that began long before, as threads stand still where processors are few, and no lease may end earlier
    /// than its holder counts from when it asked.
    pub(crate) fn decides_ms<B>(&self, op: &Op<'_, B>) -> u64 {
        if matches!(op.action, Action::Execute(Method::Lock(_))) { self.clock_now().unix_ms } else { self.now.unix_ms }
    }

    /// The clocks now, and not as the batch of events began: the thread may have stood still since.
    pub(crate) fn clock_now(&self) -> Now {
        self.shared.loops.get().map_or(self.now, |loops| self.shared.now_at(loops.now_ns()))
    }

    /// The clock that requests see was moved.
    pub(crate) fn look_again(&mut self) {
        self.now = self.shared.now_at(self.began_ns);
    }

    /// A request is served that takes much longer than its bytes tell: others come before the connection's next.
    pub(crate) fn was_dear(&self) {
        self.dear.set(true);
    }

    /// Room for a large value ([`Store::admit`]); where another node decides on its object, until it has gone there.
    /// Who is refused for want of it has had all of the memory looked through.
    pub(crate) fn admit(&self, c: &Collection, name: &[u8], expected: Option<u64>) -> Result<Upload, Error> {
        let store = &self.shared.store;
        if !store.is_alone(c) {
            let seat = store.seat(c, name);
            if !seat.is_own() {
                self.check_reachable(c, name)?;
                self.check_members(c, name, expected)?;
            }
            // What this node leads it keeps as well.
            if !matches!(seat, Seat::Alone | Seat::Leased | Seat::Led) {
                return store.admit_passing(c, name, expected).inspect_err(|_| self.was_dear());
            }
        }
        store.admit(c, name, expected).inspect_err(|_| self.was_dear())
    }

    /// Refuses a value that a node which is to keep it has no memory for, whatever it holds: before it is sent.
    pub(crate) fn check_members(&self, c: &Collection, name: &[u8], expected: Option<u64>) -> Result<(), Error> {
        // What is shorter fits any node that is empty.
        let Some(bytes) = expected.filter(|bytes| *bytes > WIRE_FIRST_CREDIT_BYTES) else { return Ok(()) };
        let Some((map, _)) = self.shared.place.get().and_then(|place| place.map()) else { return Ok(()) };
        let key = self.shared.store.key(c, name);
        let Some(spread) = map.spread(key.spread()) else { return Ok(()) };
        let members = spread.group_of(key.slot()).members().filter_map(|id| map.node(id));
        let small = members
            .filter(|node| bytes > herd_store::values_bytes(node.memory_bytes))
            .min_by_key(|node| node.memory_bytes);
        small.map_or(Ok(()), |node| Err(herd_store::never_fits(&node.name, bytes, node.memory_bytes)))
    }

    /// Whether such a request was served since the last time this was asked.
    #[inline]
    pub(crate) fn take_dear(&self) -> bool {
        self.dear.get() && self.dear.replace(false)
    }

    /// Counts a request to the door that is being served.
    #[inline]
    pub(crate) fn count(&mut self, verb: VerbName) {
        self.batch.count(self.door, verb);
    }

    /// Counts bytes of a value that came.
    #[inline]
    pub(crate) fn count_in(&self, verb: VerbName, bytes: u64) {
        self.batch.count_values(self.door, verb, bytes, 0);
    }

    /// Counts bytes of a value that is answered.
    #[inline]
    pub(crate) fn count_out(&self, verb: VerbName, bytes: u64) {
        self.batch.count_values(self.door, verb, 0, bytes);
    }

    /// Counts an error.
    pub(crate) fn count_error(&self, door: DoorName, verb: VerbName, kind: ErrorKind) {
        self.metrics().error(door, verb, kind);
    }

    /// Books the requests counted since the last time.
    #[inline]
    pub(crate) fn settle(&mut self, now_ns: u64) {
        if !self.batch.is_empty() {
            self.shared.metrics[self.number].settle(&mut self.batch, now_ns - self.began_ns);
            if self.batch.take_of_objects() {
                self.note_asked(now_ns / 1_000_000);
            }
        }
    }

    /// Objects were asked for. What all loops write is written seldom.
    #[inline]
    fn note_asked(&self, now_ms: u64) {
        let asked_ms = &self.shared.asked_ms;
        if now_ms > asked_ms.load(Relaxed) + COPY_BUSY_MS / 4 {
            asked_ms.store(now_ms, Relaxed);
        }
    }

    /// Whether clients are served: of this node, or of others that asked this one.
    pub(crate) fn is_busy(&self) -> bool {
        let asked_ms = self.shared.asked_ms.load(Relaxed);
        asked_ms > 0 && self.now_ms() <= asked_ms + COPY_BUSY_MS
    }

    /// Gets an object for a connection where it is read here: it is this node's alone, or its group's that this node
    /// decides for, or is a backup of, as it is committed. What the connection has changed and is under way it must
    /// see: then it is [`Got::Away`], and the get that is handed on stands behind the change.
    #[inline]
    pub(crate) fn get<R>(&self, conn: u64, c: &Collection, name: &[u8], f: impl FnOnce(&Found<'_>) -> R) -> Got<R> {
        let may_read = |entry: &Entry<'_>| {
            self.shared.gates.may_get(entry, self.now.unix_ms) && self.flights.of_connection(conn) == 0
        };
        self.shared.store.get_where(c, name, self.now, may_read, f)
    }

    /// As [`Context::get`], where this node decides on the object: there waits are kept.
    pub(crate) fn get_to_wait<R>(
        &self,
        conn: u64,
        c: &Collection,
        name: &[u8],
        f: impl FnOnce(&Found<'_>) -> R,
    ) -> Got<R> {
        let may_read = |entry: &Entry<'_>| self.shared.gates.may_read(entry) && self.flights.of_connection(conn) == 0;
        self.shared.store.get_where(c, name, self.now, may_read, f)
    }

    /// How an object is kept.
    #[inline]
    pub(crate) fn durability(&self, c: &Collection, name: &[u8]) -> Durability {
        let place = self.shared.place.get();
        let copies = place.map_or(1, |place| place.copies(&self.shared.store, c, name));
        Durability { class: self.shared.class(c), copies }
    }

    /// When [`group::alarm`](crate::group::alarm) has something to do.
    #[inline]
    pub(crate) fn parts_alarm_ms(&self) -> u64 {
        let Some(place) = self.shared.place.get() else { return u64::MAX };
        if group::has_mail(self) { 0 } else { self.parts.alarm_ms(place.maps()) }
    }

    /// Who waits with `ticket` here.
    pub(crate) fn waiter(&self, ticket: Ticket) -> Waiter {
        Waiter { loop_number: self.number, ticket }
    }

    /// An object was put or removed: those who wait for it look again.
    #[inline]
    pub(crate) fn changed(&self, collection: &Collection, name: &[u8]) {
        self.wake(self.shared.watch.waiters(collection.id(), name));
    }

    /// All objects of a collection went: those who wait for any look again.
    pub(crate) fn emptied(&self, collection: CollectionId) {
        self.was_dear();
        self.wake(self.shared.watch.waiters_of_all(collection));
    }

    fn wake(&self, mut waiters: Vec<Waiter>) {
        if waiters.is_empty() {
            return;
        }
        waiters.sort_unstable();
        if waiters.len() > DEAR_WAITERS {
            self.was_dear();
        }
        // They come by loop, so each loop is told once.
        for of_loop in waiters.chunk_by(|a, b| a.loop_number == b.loop_number) {
            let tickets = of_loop.iter().map(|waiter| waiter.ticket);
            if of_loop[0].loop_number == self.number {
                self.woken.borrow_mut().extend(tickets);
            } else if let Some(loops) = self.shared.loops.get() {
                loops.loops()[of_loop[0].loop_number].resume(&tickets.collect::<Vec<_>>());
            }
        }
    }

    /// Takes the waits of this loop that are to look again.
    #[inline]
    pub(crate) fn take_woken(&mut self, tickets: &mut Vec<Ticket>) {
        self.send_petitions();
        self.ask_leave();
        self.run_errands();
        self.look_at_gate(tickets);
        tickets.append(self.woken.get_mut());
    }

    /// Who waits with this ticket here looks again.
    pub(crate) fn wake_later(&mut self, ticket: Ticket) {
        self.woken.get_mut().push(ticket);
    }

    /// A listing goes on when it is its turn.
    pub(crate) fn list_later(&mut self, ticket: Ticket) {
        self.listings.push_back(ticket);
    }

    /// Whether listings want a turn.
    #[inline]
    pub(crate) fn has_listings(&self) -> bool {
        !self.listings.is_empty()
    }

    /// Gives the next listing its turn.
    pub(crate) fn list_on(&mut self) {
        self.woken.get_mut().extend(self.listings.pop_front());
    }

    /// Tickets whose time has come; all, once the node stops.
    pub(crate) fn due(&mut self, due: &mut Vec<Ticket>) {
        self.sweep_petitions();
        self.tick_gate();
        self.sweep_flushes();
        let stopping = self.shared.stopping.load(Relaxed);
        self.shared.watch.due(self.number, if stopping { u64::MAX } else { self.now.unix_ms }, due);
        if self.number == 0 {
            self.shared.hub.get().into_iter().for_each(|hub| hub.own_beat());
            self.tell_wants();
            self.shared.watch.flushed(self.now.unix_ms).into_iter().for_each(|id| self.emptied(id));
            if self.shared.place.get().is_some_and(Place::has_news) {
                self.wake(self.shared.watch.everybody());
            }
        }
    }

    /// This loop's counters.
    pub(crate) fn metrics(&self) -> &Metrics {
        &self.shared.metrics[self.number]
    }
}

impl Shared {
    /// The node has links by this hub, and the lease that comes over them; before its loops are made.
    pub(crate) fn link_by(&self, hub: Arc<Hub>) {
        self.gates.go_by(hub.leases.clone());
        self.hub.set(hub).ok();
    }

    /// The class of a collection: where its spread group needs more copies than it was made with, the better one.
    #[inline]
    pub(crate) fn class(&self, c: &Collection) -> Class {
        match c.class() {
            Class::Ram(k) => Class::Ram(k.max(self.place.get().map_or(0, |place| place.needed(c)))),
            class => class,
        }
    }

    /// Refuses what would wait once the node stops.
    pub(crate) fn check_serving(&self) -> Result<(), Error> {
        let stopping = || Err(Error::new(ErrorKind::Busy, "the node is stopping"));
        if self.stopping.load(Relaxed) { stopping() } else { Ok(()) }
    }

    /// Goes over to a map of the herd in which this node is `me`, if it is later than the one it has; gives whether it
    /// did. Those who wait look again at the next tick. Errors: as of [`Store::adopt`], and `NotAllowed` where
    /// collection `default`, which a node has from its start to its end, is another in that herd.
    pub(crate) fn take_map(&self, me: Life, map: &Arc<Map>, held: bool) -> Result<bool, Error> {
        let (own, theirs) = (self.default.spec(), map.collection("default").map(|it| &it.spec));
        if theirs != Some(own) {
            let theirs = theirs.map_or("none".into(), ToString::to_string);
            let text = format!("this node's collection 'default' has {own}, and the herd's {theirs}: start it anew");
            return Err(Error::new(ErrorKind::NotAllowed, text));
        }
        let now = self.now_at(self.loops.get().map_or(0, |loops| loops.now_ns()));
        self.place.get_or_init(|| Place::new(me)).take((&self.store, now), &self.gates, map, held)
    }

    /// The herd goes on without this process, as other nodes say, or it does not: what this node has alone another one
    /// may have by now, so it answers for none of it meanwhile.
    pub(crate) fn bar(&self, is_barred: bool) {
        if self.gates.bar(is_barred)
            && let Some(place) = self.place.get()
        {
            place.sit_again(&self.store, &self.gates);
        }
    }

    /// Refuses what is about all objects of a collection where other nodes have some.
    pub(crate) fn check_alone(&self, c: &Collection) -> Result<(), Error> {
        if self.store.is_alone(c) { Ok(()) } else { Err(elsewhere(&format!("collection '{}'", c.name()))) }
    }

    /// Refuses what is about the collections of a herd of several nodes, which its warden makes.
    pub(crate) fn check_alone_with_all(&self) -> Result<(), Error> {
        if self.store.is_alone_with_all() { Ok(()) } else { Err(elsewhere("the herd")) }
    }

    /// The collection of that name; the error says how to make it.
    pub(crate) fn collection(&self, name: &str) -> Result<Collection, Error> {
        if name == "default" {
            return Ok(self.default.clone());
        }
        let missing = || {
            let name = quote(name.as_bytes());
            let text = format!("no collection '{name}': make it with `herd collection create {name}`");
            Error::new(ErrorKind::NoCollection, text)
        };
        self.store.collection(name.as_bytes()).ok_or_else(missing)
    }

    /// Which map it goes by.
    pub(crate) fn map_mark(&self) -> MapMark {
        let taken = self.place.get().and_then(Place::map);
        taken.map_or_else(MapMark::default, |(map, held)| MapMark::of(&map, held))
    }

    /// The name under which a loop of this process hands requests on: no other, and no earlier process, has it.
    fn client_of(&self, number: usize) -> u64 {
        let mut hasher = DefaultHasher::new();
        let random = self.hub.get().map(|hub| hub.random());
        (random, self.start_unix_ms, number).hash(&mut hasher);
        hasher.finish()
    }

    /// The number of a new session of the wire; 23 bits, never 0.
    pub(crate) fn next_session(&self) -> u32 {
        self.sessions.fetch_add(1, Relaxed) % 0x7F_FFFF + 1
    }

    #[inline]
    fn now_at(&self, up_ns: u64) -> Now {
        let up = self.debug_time.up(Duration::from_nanos(up_ns));
        Now { unix_ms: self.start_unix_ms + up.as_millis() as u64, uptime_s: up.as_secs() as u32 }
    }
}

/// The error where another node decides on the object of that name.
#[cold]
pub(crate) fn away(name: &[u8]) -> Error {
    let text = format!("the node that has '{}' can't be reached: try again", quote(name));
    Error::new(ErrorKind::Unreachable, text)
}

#[cold]
fn elsewhere(what: &str) -> Error {
    let text = format!("not all nodes of {what} can be reached: try again");
    Error::new(ErrorKind::Unreachable, text)
}

/// The error where there is no object of that name.
pub(crate) fn not_found(collection: &str, name: &[u8]) -> Error {
    let text = format!("no object '{}' in collection '{}'", quote(name), quote(collection.as_bytes()));
    Error::new(ErrorKind::NotFound, text)
}
