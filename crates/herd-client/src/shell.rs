//! What the two shells share: settings, the nodes and the idle connections to them, and where a get to a stream stands.

use crate::address::Address;
use crate::error::{Error, ErrorKind, Result};
use crate::ids::Ids;
use crate::limits::{
    ADDRESSES_MAX, AVOID_MS, IDLE_CONNECTIONS_MAX, IDLE_MAX_MS, OTHERS_MAX, OWNER_CONNECT_MS, QUICK_CONNECT_MS,
};
use crate::link::{Link, Socket};
use crate::reply::Reply;
use crate::request::Request;
use crate::retry::{Failure, Turns};
use crate::route::{Asks, Chart, Toward};
use herd_core::entry::{Range, Token};
use herd_core::key::{CollectionId, HashKey};
use herd_core::limits::OBJECT_MAX_BYTES;
use herd_core::place::Map;
use herd_core::wire::{MapMark, Meant};
use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasher;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Settings of a client.
#[derive(Clone, Debug)]
pub struct Config {
    /// How long to wait for a reply, or for progress: a call fails when nothing of it moves for so long, connecting,
    /// other nodes and repeats included. A transfer that moves may take longer.
    pub timeout: Duration,
    /// Longest wait for a connection to one node, within `timeout`. Of several nodes each has half a second at first,
    /// and is tried again when no other has taken the connection.
    pub connect_timeout: Duration,
    /// Largest value read into memory; larger ones must be streamed.
    pub value_max_bytes: u64,
    /// Whether requests go straight to the owners of objects, where a node tells who they are; else only nodes that
    /// were given are asked.
    pub routed: bool,
    /// The one node that may be asked; another one that answers at its address, as this one is gone, is told nothing.
    /// `None`: whoever answers. Requests are not routed where there is one.
    pub meant: Option<Meant>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(10),
            connect_timeout: Duration::from_secs(2),
            value_max_bytes: OBJECT_MAX_BYTES,
            routed: true,
            meant: None,
        }
    }
}

/// What a client and all made of it have in common, and in what they differ.
pub(crate) struct Common<S> {
    shared: Arc<Shared<S>>,
    /// Shown with each request about an object.
    pub(crate) token: Option<Token>,
    /// How long a request may be silent.
    pub(crate) patience_ms: u64,
}

pub(crate) struct Shared<S> {
    pub(crate) pool: Pool<S>,
    started: Instant,
}

impl<S: Socket> Common<S> {
    pub(crate) fn new(nodes: &str, config: Config) -> Result<Self> {
        // A number nobody else has, from the system.
        let seed = std::hash::RandomState::new().hash_one(0);
        let patience_ms = millis(config.timeout);
        let shared = Shared { pool: Pool::new(nodes, config, seed)?, started: Instant::now() };
        Ok(Self { shared: Arc::new(shared), token: None, patience_ms })
    }

    /// Ms since the client was made.
    pub(crate) fn now_ms(&self) -> u64 {
        millis(self.started.elapsed())
    }

    pub(crate) fn with_token(&self, token: Token) -> Self {
        Self { token: Some(token), ..self.clone() }
    }

    pub(crate) fn without_token(&self) -> Self {
        Self { token: None, ..self.clone() }
    }

    pub(crate) fn with_timeout(&self, timeout: Duration) -> Self {
        Self { patience_ms: millis(timeout), ..self.clone() }
    }
}

impl<S> Clone for Common<S> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone(), token: self.token, patience_ms: self.patience_ms }
    }
}

impl<S> std::ops::Deref for Common<S> {
    type Target = Shared<S>;

    fn deref(&self) -> &Shared<S> {
        &self.shared
    }
}

pub(crate) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// The nodes of a herd, the idle connections to them, and the map if there is one.
///
/// Addresses are told by their index: first those the client was given, then those of maps, which only get more.
pub(crate) struct Pool<S> {
    pub(crate) config: Config,
    /// Addresses that were given.
    given: usize,
    state: Mutex<State<S>>,
    /// Whether there is a chart. A client of a node that is alone never looks for one.
    has_chart: AtomicBool,
    /// Whether a map is wanted.
    wants_map: AtomicBool,
    /// The epoch that replies are expected to tell.
    epoch: AtomicU32,
    /// Whether no node has answered yet.
    knows_nothing: AtomicBool,
    /// The ids of its requests.
    pub(crate) ids: Ids,
}

struct State<S> {
    turns: Turns,
    /// The one idle for longest comes first.
    idle: VecDeque<Link<S>>,
    chance: u64,
    addresses: Vec<Arc<Address>>,
    indices: HashMap<Arc<Address>, usize>,
    /// Of each address: until when it is left alone where there is another way.
    avoid_until_ms: Vec<u64>,
    /// Of each address: until when it is tried behind those of whom nothing bad is known, where any node will do, as it
    /// did not take a connection at once.
    last_until_ms: Vec<u64>,
    /// Of each address: whether a node has answered there.
    works: Vec<bool>,
    /// Until when no owner is dialed where none has answered yet: a firewall is in the way, it seems.
    strange_until_ms: u64,
    chart: Option<Arc<Chart>>,
    asks: Asks,
}

/// The node that decides on an object.
#[derive(Clone)]
pub(crate) struct Owner {
    pub(crate) chart: Arc<Chart>,
    /// Its place in the map.
    pub(crate) node: usize,
}

/// Where a request is to go.
pub(crate) struct Course {
    /// To this node, if it can be reached.
    pub(crate) owner: Option<Owner>,
    /// The id of its collection by the map, 0 if the map has none; `None`: it goes by no map.
    pub(crate) collection: Option<CollectionId>,
    /// The epoch of the map; 0: there is none.
    pub(crate) epoch: u32,
}

impl<S: Socket> Pool<S> {
    /// For the nodes at such addresses, see [`Address::parse_list`]; `seed` is a number nobody else has.
    pub(crate) fn new(nodes: &str, config: Config, seed: u64) -> Result<Self> {
        let config = Config { routed: config.routed && config.meant.is_none(), ..config };
        let addresses: Vec<_> = Address::parse_list(nodes)?.into_iter().map(Arc::new).collect();
        let given = addresses.len();
        let state = State {
            turns: Turns::new(given),
            idle: VecDeque::new(),
            chance: seed,
            indices: addresses.iter().cloned().zip(0..).collect(),
            avoid_until_ms: vec![0; given],
            last_until_ms: vec![0; given],
            works: vec![false; given],
            strange_until_ms: 0,
            addresses,
            chart: None,
            asks: Asks::default(),
        };
        let (has_chart, wants_map, knows_nothing) = (false.into(), false.into(), true.into());
        let (state, epoch) = (Mutex::new(state), AtomicU32::new(0));
        let ids = Ids::new(seed);
        Ok(Self { config, given, state, has_chart, wants_map, epoch, knows_nothing, ids })
    }

    fn state(&self) -> MutexGuard<'_, State<S>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The map, if there is one.
    pub(crate) fn chart(&self) -> Option<Arc<Chart>> {
        if self.has_chart.load(Relaxed) { self.state().chart.clone() } else { None }
    }

    pub(crate) fn node(&self, index: usize) -> Arc<Address> {
        self.state().addresses[index].clone()
    }

    /// How many nodes a request may be tried on.
    pub(crate) fn nodes(&self) -> usize {
        self.given + self.chart().map_or(0, |chart| chart.nodes().saturating_sub(self.given).min(OTHERS_MAX))
    }

    /// Where a request is to go.
    pub(crate) fn course(&self, now_ms: u64, request: &Request<'_>) -> Course {
        let Some(chart) = self.chart() else { return Course { owner: None, collection: None, epoch: 0 } };
        let epoch = chart.mark.epoch;
        match chart.toward(request) {
            Toward::Anyone => Course { owner: None, collection: None, epoch },
            Toward::Unmapped => Course { owner: None, collection: Some(CollectionId(0)), epoch },
            Toward::Owner(node, collection) => {
                let owner = Some(Owner { chart, node }).filter(|owner| self.is_usable(now_ms, owner));
                Course { owner, collection: Some(collection), epoch }
            }
        }
    }

    /// Begins to connect to any node; `about_node`: to one that was given.
    pub(crate) fn dial(&self, now_ms: u64, about_node: bool) -> Dial {
        let state = self.state();
        let mut order: Vec<Stop> = state.turns.order().map(|place| Stop { place, node: None }).collect();
        let chart = state.chart.clone().filter(|_| !about_node);
        let rank = |stop: &Stop| match () {
            () if state.avoid_until_ms[stop.place] > now_ms => 2,
            () if state.last_until_ms[stop.place] > now_ms => 1,
            () => 0,
        };
        if let Some(chart) = &chart {
            let from = state.chance as usize % chart.nodes().max(1);
            let nodes = (0..chart.nodes()).map(|at| (from + at) % chart.nodes());
            let is_given = |place: &usize| *place < self.given;
            let others = nodes.filter_map(|node| {
                let place = state.usable(chart.places(node), now_ms).find(|place| !is_given(place))?;
                Some(Stop { place, node: Some(node) })
            });
            let mut others: Vec<Stop> = others.collect();
            others.sort_by_key(rank);
            order.extend(others.into_iter().take(OTHERS_MAX));
        }
        order.sort_by_key(rank);
        let quick = if order.len() > 1 { order.len() } else { 0 };
        Dial { quick, ..self.dialing(order, u64::MAX, chart, false) }
    }

    fn dialing(&self, order: Vec<Stop>, until_ms: u64, chart: Option<Arc<Chart>>, is_of_owner: bool) -> Dial {
        let most_ms = millis(self.config.connect_timeout).max(1);
        let only = self.config.meant;
        Dial { order, tried: 0, quick: 0, node: 0, most_ms, until_ms, chart, only, is_of_owner, last: None }
    }

    /// Notes that the node that was told last could not be connected to; whether it is given up.
    pub(crate) fn not_connected(&self, now_ms: u64, dial: &mut Dial, error: io::Error) -> bool {
        let timed_out = error.kind() == io::ErrorKind::TimedOut;
        dial.last = Some(error);
        if timed_out && dial.put_off() {
            self.state().last_until_ms[dial.node] = now_ms.saturating_add(AVOID_MS);
            return false;
        }
        self.avoid(now_ms, dial.node);
        if timed_out && dial.is_of_owner {
            self.hangs(now_ms, dial.node);
        }
        true
    }

    /// The epoch of the map at hand; 0: there is none.
    pub(crate) fn epoch_at_hand(&self) -> u32 {
        self.chart().map_or(0, |chart| chart.mark.epoch)
    }

    /// Whether any address of the node is not left alone.
    pub(crate) fn is_usable(&self, now_ms: u64, owner: &Owner) -> bool {
        self.state().reachable(owner.chart.places(owner.node), now_ms).next().is_some()
    }

    /// Begins to connect to the owner of an object; that takes no longer than a part of the time until `deadline_ms`.
    pub(crate) fn dial_owner(&self, now_ms: u64, deadline_ms: u64, owner: Owner) -> Dial {
        let stop = |place| Stop { place, node: Some(owner.node) };
        let order = self.state().reachable(owner.chart.places(owner.node), now_ms).map(stop).collect();
        let until_ms = now_ms.saturating_add(OWNER_CONNECT_MS.min(deadline_ms.saturating_sub(now_ms) / 2));
        self.dialing(order, until_ms, Some(owner.chart), true)
    }

    /// An idle connection to any node that still works; `about_node`: to one that was given.
    pub(crate) fn take(&self, now_ms: u64, about_node: bool) -> Option<Link<S>> {
        let given = self.given;
        self.take_if(now_ms, |idle| {
            let of_given = idle.iter().rposition(|link| link.node < given);
            of_given.or(if about_node { None } else { idle.len().checked_sub(1) })
        })
    }

    /// An idle connection to the owner of an object that still works.
    pub(crate) fn take_owner(&self, now_ms: u64, owner: &Owner) -> Option<Link<S>> {
        let places = owner.chart.places(owner.node);
        self.take_if(now_ms, |idle| idle.iter().rposition(|link| places.contains(&link.node)))
    }

    fn take_if(&self, now_ms: u64, choose: impl Fn(&VecDeque<Link<S>>) -> Option<usize>) -> Option<Link<S>> {
        loop {
            let mut link = {
                let mut state = self.state();
                let at = choose(&state.idle)?;
                state.idle.remove(at)?
            };
            let usable = link.is_usable(now_ms);
            self.take_map(&mut link);
            if usable {
                return Some(link);
            }
        }
    }

    /// Keeps a connection whose request is answered, if it can serve another.
    pub(crate) fn give_back(&self, now_ms: u64, mut link: Link<S>) {
        self.take_map(&mut link);
        let usable = link.is_usable(now_ms);
        let mut state = self.state();
        state.works[link.node] = true;
        state.last_until_ms[link.node] = 0;
        if link.node < self.given {
            state.turns.serves(link.node);
        }
        if usable {
            state.idle.push_back(link);
        }
        let is_over = |link: &Link<S>| link.idle_ms(now_ms) > IDLE_MAX_MS;
        while state.idle.len() > IDLE_CONNECTIONS_MAX || state.idle.front().is_some_and(is_over) {
            state.idle.pop_front();
        }
    }

    /// Notes that a node does not serve: connections to it are dropped, and the next node comes first.
    pub(crate) fn failed(&self, node: usize) {
        let mut state = self.state();
        state.turns.failed(node);
        state.idle.retain(|link| link.node != node);
    }

    /// Notes besides that it is to be left alone for a while.
    pub(crate) fn avoid(&self, now_ms: u64, node: usize) {
        self.failed(node);
        self.state().avoid_until_ms[node] = now_ms.saturating_add(AVOID_MS);
    }

    /// Notes that an owner did not take a connection in time. Behind a firewall that holds for all, so others that have
    /// never answered are left alone too, instead of one wait for each.
    fn hangs(&self, now_ms: u64, node: usize) {
        let mut state = self.state();
        if !state.works[node] {
            state.strange_until_ms = now_ms.saturating_add(AVOID_MS);
        }
    }

    /// What is told when no node could be connected to.
    pub(crate) fn unreachable(&self, last: Option<io::Error>) -> Error {
        let nodes: Vec<String> = self.state().addresses[..self.given].iter().map(ToString::to_string).collect();
        let error = Error::new(ErrorKind::Unreachable, format!("no node answers at {}", nodes.join(", ")));
        match last {
            Some(last) => error.caused_by(last),
            None => error,
        }
    }

    /// A number by chance, good enough to spread pauses.
    pub(crate) fn chance(&self) -> u64 {
        let mut state = self.state();
        state.chance = state.chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state.chance >> 33
    }

    // The map.

    /// Takes note of what a reply tells of the node's map, and of whether a collection was not as the map at hand has
    /// it.
    pub(crate) fn heard(&self, epoch: u32, is_stale: bool) {
        self.ids.heard(epoch);
        if self.knows_nothing.load(Relaxed) {
            self.knows_nothing.store(false, Relaxed);
        }
        if self.config.routed && (is_stale || epoch > self.epoch.load(Relaxed)) {
            self.epoch.fetch_max(epoch, Relaxed);
            let wants = self.state().asks.heard(epoch, is_stale);
            self.wants_map.store(wants, Relaxed);
        }
    }

    /// Asks for the map over a connection that is in use, if it is time.
    pub(crate) fn ask_map(&self, now_ms: u64, link: &mut Link<S>) -> Result<()> {
        if !self.wants_map.load(Relaxed) {
            return Ok(());
        }
        let mark = {
            let mut state = self.state();
            if !state.asks.due(now_ms) {
                return Ok(());
            }
            state.chart.as_ref().filter(|_| !state.asks.anew).map(|chart| chart.mark)
        };
        link.ask_map(now_ms, mark)
    }

    /// Asks for the map because a request waits for it.
    pub(crate) fn ask_map_now(&self, now_ms: u64, link: &mut Link<S>) -> Result<()> {
        let mark = {
            let mut state = self.state();
            state.asks.asked(now_ms);
            state.chart.as_ref().filter(|_| !state.asks.anew).map(|chart| chart.mark)
        };
        self.knows_nothing.store(false, Relaxed);
        link.ask_map(now_ms, mark)
    }

    /// Whether no node has said anything yet, so that there may be a map.
    pub(crate) fn knows_nothing(&self) -> bool {
        self.config.routed && self.knows_nothing.load(Relaxed)
    }

    /// Whether a later map than the one at hand is known of.
    pub(crate) fn wants_map(&self) -> bool {
        self.wants_map.load(Relaxed)
    }

    /// Takes the map that has come over a connection.
    pub(crate) fn take_map(&self, link: &mut Link<S>) {
        if let Some(call) = link.take_map()
            && let Some(reply) = call.reply.clone().filter(Reply::is_ok)
        {
            self.learn(reply.routes, &call.into_value());
        }
    }

    /// Takes the answer of a node that was asked for the map. What can't be read changes nothing; it is asked for again
    /// when there is a later one.
    pub(crate) fn learn(&self, routes: Option<(MapMark, [u8; 16])>, bytes: &[u8]) {
        let map = Map::decode(bytes).ok();
        let mut state = self.state();
        let at_hand = state.chart.as_ref().map(|chart| (chart.map.herd, chart.mark));
        match (routes, map) {
            (None, _) => state.chart = None,
            (Some((mark, key)), Some(map)) => {
                let is_later = at_hand.is_none_or(|(herd, than)| herd != map.herd || than < mark);
                if is_later {
                    let chart = Chart::new(map, (mark, HashKey(key)), |text| state.index(text));
                    state.chart = Some(Arc::new(chart));
                }
            }
            (Some(_), None) => {}
        }
        let told = routes.map(|(mark, _)| mark);
        let is_another = at_hand.is_some_and(|(_, mark)| bytes.is_empty() && told.is_some_and(|told| told != mark));
        let known = state.chart.as_ref().map(|chart| chart.mark.epoch);
        state.asks.answered(told.map(|told| known.unwrap_or(told.epoch)));
        state.asks.anew = is_another;
        self.has_chart.store(state.chart.is_some(), Relaxed);
        self.wants_map.store(state.asks.wants(), Relaxed);
        self.epoch.store(state.asks.expected(), Relaxed);
    }
}

impl<S> State<S> {
    /// Those of the addresses that are not left alone.
    fn usable<'a>(&'a self, places: &'a [usize], now_ms: u64) -> impl Iterator<Item = usize> + 'a {
        places.iter().copied().filter(move |&at| self.avoid_until_ms[at] <= now_ms)
    }

    /// Those of an owner's addresses that are worth a try.
    fn reachable<'a>(&'a self, places: &'a [usize], now_ms: u64) -> impl Iterator<Item = usize> + 'a {
        self.usable(places, now_ms).filter(move |&at| self.works[at] || self.strange_until_ms <= now_ms)
    }

    /// The index of an address of a map; `None` if it is none that a client can use.
    fn index(&mut self, text: &str) -> Option<usize> {
        let address = Address::parse(text).ok().filter(|_| !text.starts_with("unix:"))?;
        if let Some(&index) = self.indices.get(&address) {
            return Some(index);
        }
        let index = Some(self.addresses.len()).filter(|&index| index < ADDRESSES_MAX)?;
        let address = Arc::new(address);
        self.addresses.push(address.clone());
        self.avoid_until_ms.push(0);
        self.last_until_ms.push(0);
        self.works.push(false);
        self.indices.insert(address, index);
        Some(index)
    }
}

/// An address to try.
#[derive(Clone, Copy)]
struct Stop {
    place: usize,
    /// The node that is meant, by its place in the map; `None`: whoever answers.
    node: Option<usize>,
}

/// The nodes in turn, each with its share of the time: quickly at first, so that one that hangs does not hold up those
/// that answer.
pub(crate) struct Dial {
    order: Vec<Stop>,
    tried: usize,
    /// So many, from the first on, are tried quickly.
    quick: usize,
    /// The node that was told last.
    pub(crate) node: usize,
    most_ms: u64,
    /// When it must be over, whatever the deadline is.
    until_ms: u64,
    /// The map that nodes were looked up in.
    chart: Option<Arc<Chart>>,
    /// The one node that may be asked, if there is one.
    only: Option<Meant>,
    /// Whether it is one node that is dialed, for what it has.
    pub(crate) is_of_owner: bool,
    /// Why it could not be connected to.
    pub(crate) last: Option<io::Error>,
}

impl Dial {
    /// The next node and how long connecting to it may take, if all may take until `deadline_ms`.
    pub(crate) fn next(&mut self, now_ms: u64, deadline_ms: u64) -> Option<(usize, Duration)> {
        let left_ms = deadline_ms.min(self.until_ms).saturating_sub(now_ms);
        let (stops, most_ms) = match self.tried < self.quick {
            true => (self.quick, self.most_ms.min(QUICK_CONNECT_MS)),
            false => (self.order.len(), self.most_ms),
        };
        let share_ms = left_ms.div_ceil((stops - self.tried).max(1) as u64).min(most_ms);
        self.node = self.order.get(self.tried).filter(|_| left_ms > 0)?.place;
        self.tried += 1;
        Some((self.node, Duration::from_millis(share_ms)))
    }

    /// Has the node that was told last tried once more behind the others, if it was tried quickly; whether it was.
    fn put_off(&mut self) -> bool {
        let last = self.tried.checked_sub(1).filter(|&last| last < self.quick);
        self.order.extend(last.map(|last| self.order[last]));
        last.is_some()
    }

    /// What the hello says to the node that was told last: whom it means, if it was looked up in the map, or is the
    /// only one.
    pub(crate) fn meant(&self) -> Option<Meant> {
        let stop = self.order.get(self.tried.checked_sub(1)?)?;
        let looked_up = stop.node.zip(self.chart.as_ref()).map(|(node, chart)| chart.meant(node));
        looked_up.or(self.only)
    }
}

/// Where a get to a stream stands, so that it can go on over another connection.
pub(crate) struct Progress {
    /// What was asked for.
    range: Range,
    /// Bytes given out by the tries before this one.
    before: u64,
    /// Bytes given out.
    pub(crate) bytes: u64,
    /// The answer they belong to.
    pub(crate) reply: Option<Reply>,
}

impl Progress {
    /// Of a request that has given out nothing yet.
    pub(crate) fn new(request: &Request<'_>) -> Self {
        Self { range: request.range.unwrap_or(Range::ALL), before: 0, bytes: 0, reply: None }
    }

    /// Takes the answer of a try; an error if the object is another by now.
    pub(crate) fn accept(&mut self, reply: &Reply) -> Result<()> {
        match &self.reply {
            Some(first) if first.version != reply.version => {
                let text = format!("the object changed after {} bytes had been read", self.bytes);
                return Err(Error::new(ErrorKind::Changed, text));
            }
            Some(_) => {}
            None => self.reply = Some(reply.clone()),
        }
        Ok(())
    }

    /// The failure of a try as it is for the whole: an object that is gone, or shorter, is another one.
    pub(crate) fn judged(&self, failure: Failure) -> Failure {
        use herd_core::ErrorKind::BadRange;
        match failure {
            Failure::Final(error)
                if self.before > 0 && matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Refused(BadRange)) =>
            {
                Failure::Final(error.with_kind(ErrorKind::Changed))
            }
            other => other,
        }
    }

    /// Ends a try; whether it gave out anything.
    pub(crate) fn end_try(&mut self) -> bool {
        let moved = self.bytes > self.before;
        self.before = self.bytes;
        moved
    }

    /// The bytes that are missing; `None`: there are none.
    pub(crate) fn rest(&self) -> Option<Range> {
        let size = self.reply.as_ref().and_then(|reply| reply.size_bytes).unwrap_or(u64::MAX);
        let whole = self.range.length.unwrap_or(u64::MAX).min(size.saturating_sub(self.range.offset));
        let left = whole.saturating_sub(self.bytes);
        (left > 0).then(|| Range { offset: self.range.offset + self.bytes, length: Some(left) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three nodes that are dialed.
    fn dial(quick: usize) -> Dial {
        let order = [2, 0, 1].map(|place| Stop { place, node: None }).into();
        let (chart, only, is_of_owner, last) = (None, None, false, None);
        Dial { order, tried: 0, quick, node: 0, most_ms: 2_000, until_ms: u64::MAX, chart, only, is_of_owner, last }
    }

    #[test]
    fn nodes_share_the_time_to_connect() {
        let mut dial = dial(0);
        assert_eq!(dial.next(100, 1_000), Some((2, Duration::from_millis(300))));
        assert_eq!(dial.next(150, 1_000), Some((0, Duration::from_millis(425))), "what one leaves is the others'");
        assert_eq!(dial.next(1_000, 1_000), None, "the time is over");
        assert_eq!(dial.next(150, 10_000), Some((1, Duration::from_millis(2_000))));
        assert!(!dial.put_off());
        assert_eq!(dial.next(150, 10_000), None, "all were tried");
    }

    #[test]
    fn a_node_that_hangs_is_tried_again_behind_the_others() {
        let mut dial = dial(3);
        let quick = Duration::from_millis(QUICK_CONNECT_MS);
        assert_eq!(dial.next(0, 10_000), Some((2, quick)));
        assert!(dial.put_off());
        assert_eq!(dial.next(500, 10_000), Some((0, quick)), "this one refuses");
        assert_eq!(dial.next(500, 10_000), Some((1, quick)));
        assert!(dial.put_off());
        assert_eq!(dial.next(1_000, 4_000), Some((2, Duration::from_millis(1_500))));
        assert!(!dial.put_off(), "it had its time");
        assert_eq!(dial.next(2_500, 10_000), Some((1, Duration::from_millis(2_000))));
        assert_eq!(dial.next(4_500, 10_000), None);
        let mut dial = self::dial(3);
        assert_eq!(dial.next(0, 900), Some((2, Duration::from_millis(300))));
        assert!(dial.put_off());
        assert_eq!(
            dial.next(300, 900),
            Some((0, Duration::from_millis(300))),
            "a second try takes nothing from a first"
        );
    }

    fn pool(nodes: &str, config: Config) -> Pool<std::net::TcpStream> {
        Pool::new(nodes, config, 1).expect("addresses")
    }

    #[test]
    fn who_was_late_once_comes_behind_those_that_serve_and_before_those_that_fail() {
        let pool = pool("a,b,c", Config::default());
        let order = |now_ms| pool.dial(now_ms, false).order.iter().map(|stop| stop.place).collect::<Vec<_>>();
        let mut dial = pool.dial(0, false);
        assert_eq!(dial.next(0, 10_000), Some((0, Duration::from_millis(QUICK_CONNECT_MS))));
        assert!(!pool.not_connected(500, &mut dial, io::ErrorKind::TimedOut.into()), "it is tried again");
        assert_eq!(order(500), [1, 2, 0]);
        pool.avoid(1_000, 1);
        assert_eq!(order(1_000), [2, 0, 1]);
        pool.avoid(1_000, 2);
        assert_eq!(order(1_000), [0, 1, 2], "all others fail");
        assert_eq!(order(2_000 + AVOID_MS), [0, 1, 2], "nothing is held against anybody");
    }

    #[test]
    fn where_one_node_is_meant_no_other_is_asked() {
        let node = herd_core::place::NodeId(std::num::NonZeroU32::new(3).expect("not 0"));
        let meant = Meant { herd: herd_core::place::HerdId([7; 16]), node };
        let pool = pool("a", Config { meant: Some(meant), ..Config::default() });
        let mut dial = pool.dial(0, false);
        assert_eq!((dial.next(0, 1_000).map(|next| next.0), dial.meant()), (Some(0), Some(meant)));
        assert!(!pool.knows_nothing(), "it looks for no map");
    }
}
