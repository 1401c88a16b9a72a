//! What the warden's thread does with the control store as a whole: shows it, moves it to another node, and between a
//! node's directory and etcd (`herd_core::warden::moving` says what a move is).
//!
//! Nothing else is done meanwhile: what is asked waits, and what was granted is not granted again. Each step has an
//! end. Before the mark any failure leaves all as it was; from the mark on the copy is begun, however often that takes.

use super::drive::{Driver, Remote};
use super::inbox::Inbox;
use crate::control::Home;
use crate::control::etcd::{Address, Etcd};
use crate::environment::random;
use herd_core::control::{Control, ControlError, Range, Snapshot};
use herd_core::limits::{MOVE_AGAIN_MS, MOVE_BEGIN_MS, MOVE_CALM_MS, MOVE_PREPARE_MS, WIRE_HEAD_MAX_BYTES};
use herd_core::place::{Map, Node, NodeId, NodeState};
use herd_core::warden::moving::copy;
use herd_core::warden::{Answer, Call, Config, ControlAsk, Hex, Mark, MoveId, Ticket, Warden};
use herd_core::wire::Errand;
use herd_core::{Error, ErrorKind};
use serde_json::{Value, json};
use std::io;
use std::time::{Duration, Instant};

/// Has other nodes do something with a control store.
pub trait Errands: Send + Sync {
    /// Has a node do it, within that time, and until `is_cut` says that it is not waited for any more. An error: it was
    /// not done, or that is not known.
    fn run(&self, to: NodeId, errand: Errand, within: Duration, is_cut: &dyn Fn() -> bool) -> Result<(), String>;

    /// This node's warden goes on at that node, at that address, by that move.
    fn moved(&self, to: NodeId, address: &str, id: MoveId);
}

/// Nodes that are asked one after the other to take the store, where none was named: the warden does nothing else
/// meanwhile.
const TARGETS_MAX: usize = 3;

/// A request about the store, until nothing is under way in it.
pub(super) struct Wish {
    ticket: Ticket,
    ask: ControlAsk,
    until: Instant,
}

impl Wish {
    pub(super) fn new(ticket: Ticket, ask: ControlAsk) -> Self {
        Self { ticket, ask, until: Instant::now() + Duration::from_millis(MOVE_CALM_MS) }
    }
}

/// Where the store goes.
enum Target {
    /// To another node's directory.
    Node(NodeId),
    /// From etcd to this node's directory.
    Here,
    /// To an etcd.
    Etcd(Address),
}

/// A copy that is kept where it is to go.
pub(super) enum Prepared {
    Node(NodeId),
    Here,
    Etcd(Box<Etcd>, Address),
}

fn refuse(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::NotAllowed, text)
}

fn unreachable(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::Unreachable, text)
}

impl Driver {
    /// Does what was asked about the store, if it can be done now. Whether this is to go on: its store may have gone.
    pub(super) fn grant_wishes(&mut self) -> bool {
        self.end_doubt();
        for wish in std::mem::take(&mut self.wishes) {
            if self.is_gone {
                break;
            }
            let ticket = wish.ticket;
            match self.grant(&wish) {
                Ok(Some(json)) => self.inbox.answer(ticket, Ok(Answer::Control(json))),
                Ok(None) => self.wishes.push(wish),
                Err(error) => self.inbox.answer(ticket, Err(error.into())),
            }
        }
        !self.is_gone
    }

    /// `None`: something is under way still.
    fn grant(&mut self, wish: &Wish) -> Result<Option<String>, Error> {
        let Some(map) = self.warden.map().cloned() else {
            let late = Instant::now() >= wish.until;
            return if late { Err(unreachable("the herd has no warden at the moment: try again")) } else { Ok(None) };
        };
        let targets = match &wish.ask {
            ControlAsk::Show => return self.show(&map).map(Some),
            ControlAsk::Move { node } if self.etcd.is_none() => self.nodes_for(&map, node.as_deref())?,
            ControlAsk::Move { .. } => {
                let todo = "`herd control migrate embedded --at NODE` puts it into a node's directory";
                return Err(refuse(format!("the control store is in etcd, and no node has it: {todo}")));
            }
            ControlAsk::Embed { node } if self.etcd.is_some() => match node.as_deref() {
                None => vec![Target::Here],
                Some(name) if name == self.name => vec![Target::Here],
                Some(name) => self.nodes_for(&map, Some(name))?,
            },
            ControlAsk::Embed { node: None } => Vec::new(),
            ControlAsk::Embed { node } => self.nodes_for(&map, node.as_deref())?,
            ControlAsk::ToEtcd { etcd, forced } => self.etcd_for(etcd, *forced)?,
        };
        if targets.is_empty() {
            // It is there.
            return self.show(&map).map(Some);
        }
        if self.later.is_some() {
            let todo = "start the node with --data, or with --control etcd://";
            return Err(refuse(format!("this herd of one node keeps its map in memory alone: {todo}")));
        }
        if self.warden.marking(&self.mark(&map, &targets[0], MoveId([0; 16]))).is_none() {
            let text = "changes of the herd are under way and do not end: `herd status` shows them; try again";
            return if Instant::now() >= wish.until { Err(Error::new(ErrorKind::Busy, text)) } else { Ok(None) };
        }
        self.go_to(&map, targets).map(Some)
    }

    /// The nodes that may take the store; empty: it is at the one that was named.
    fn nodes_for(&self, map: &Map, name: Option<&str>) -> Result<Vec<Target>, Error> {
        let is_there = |node: &Node| node.state == NodeState::Up && self.linked.contains(&node.id);
        let Some(name) = name else {
            let mut others: Vec<&Node> =
                map.nodes.iter().filter(|node| node.name != self.name && is_there(node)).collect();
            others.sort_by_key(|node| std::cmp::Reverse(node.memory_bytes));
            let targets: Vec<Target> = others.iter().map(|node| Target::Node(node.id)).collect();
            let none = || unreachable("no other node is there that could have the control store: see that one runs");
            return if targets.is_empty() { Err(none()) } else { Ok(targets) };
        };
        if name == self.name {
            return Ok(Vec::new());
        }
        let shown = name.escape_debug();
        let text = format!("no node '{shown}': `herd nodes` shows all");
        let node = map.nodes.iter().find(|node| node.name == name).ok_or(Error::new(ErrorKind::NotFound, text))?;
        match node.state {
            NodeState::Draining => Err(refuse(format!("node '{shown}' drains: name one that stays"))),
            _ if !is_there(node) => Err(unreachable(format!("node '{shown}' can't be reached: see that it runs"))),
            _ => Ok(vec![Target::Node(node.id)]),
        }
    }

    fn etcd_for(&self, text: &str, forced: bool) -> Result<Vec<Target>, Error> {
        let address = Address::parse(text).map_err(|text| Error::new(ErrorKind::BadRequest, text))?.forced(forced);
        match &self.etcd {
            Some(there) if there.to_string() == address.to_string() => Ok(Vec::new()),
            Some(there) => {
                let todo = "migrate it to 'embedded' first";
                Err(refuse(format!("the control store is in {there}, and from etcd to etcd it does not go: {todo}")))
            }
            None => Ok(vec![Target::Etcd(address)]),
        }
    }

    fn own<'m>(&self, map: &'m Map) -> Option<&'m Node> {
        map.nodes.iter().find(|node| node.name == self.name)
    }

    fn mark(&self, map: &Map, target: &Target, id: MoveId) -> Mark {
        let (node, etcd) = match target {
            Target::Node(id) => (map.node(*id), None),
            Target::Here => (self.own(map), None),
            Target::Etcd(address) => (self.own(map), Some(address.to_string())),
        };
        let (name, addresses) = node.map(|node| (node.name.clone(), node.addresses.clone())).unwrap_or_default();
        Mark { id, herd: map.herd, term: map.term, node: name, addresses, etcd }
    }

    /// Moves it to the first of these that takes it, of so many as are tried.
    fn go_to(&mut self, map: &Map, targets: Vec<Target>) -> Result<String, Error> {
        let all = self.store.snapshot().map_err(|error| unreachable(error.to_string()))?;
        let mut last = unreachable("no node takes it");
        for target in targets.into_iter().take(TARGETS_MAX) {
            // Each try has an id of its own: what one of them left behind unheard is never begun for another's.
            let id = MoveId(random().map_err(|error| unreachable(format!("no chance is to be had: {error}")))?);
            let mark = self.mark(map, &target, id);
            match self.prepare_at(target, id, &copy(&all, id), map) {
                Ok(prepared) => return self.commit(prepared, mark),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn prepare_at(&mut self, target: Target, id: MoveId, copy: &Snapshot, map: &Map) -> Result<Prepared, Error> {
        match target {
            Target::Node(node) => {
                let bytes = herd_core::control::file::whole(copy).into();
                self.errand(node, Errand::Prepare(id, bytes), MOVE_PREPARE_MS).map_err(unreachable)?;
                Ok(Prepared::Node(node))
            }
            Target::Here => {
                let none = || refuse("this node has no directory that it can write to: name another one with --at");
                let home = self.home.as_ref().ok_or_else(none)?;
                home.prepare(id, copy).map_err(|error| refuse(error.to_string()))?;
                Ok(Prepared::Here)
            }
            Target::Etcd(address) => {
                let opened = Etcd::open_at_once(&address, self.inbox.halt());
                let mut etcd = opened.map_err(told)?;
                // Another node may take it up there, whoever is alone in the herd now.
                self.outlets.leases.needed_always();
                etcd.prepare(id, map.herd, copy).map_err(told)?;
                Ok(Prepared::Etcd(Box::new(etcd), address))
            }
        }
    }

    /// Marks the store; from then on it is another's, and that one is begun.
    fn commit(&mut self, prepared: Prepared, mark: Mark) -> Result<String, Error> {
        let busy = || Error::new(ErrorKind::Busy, "the herd has just changed: try again");
        let txn = self.warden.marking(&mark).ok_or_else(busy)?;
        let reply = self.store.txn(&txn);
        let failed = reply.as_ref().err().cloned();
        let orders = self.warden.marked(reply, mark.clone(), self.now_ms());
        self.carry_out(orders);
        if self.warden.moved().is_some() {
            return self.follow(prepared, &mark);
        }
        match failed {
            None => Err(busy()),
            Some(error @ ControlError::Unknown(_)) => {
                self.doubt = Some((prepared, mark));
                let text = format!("whether the control store was moved is not known yet: {error}");
                Err(Error::new(ErrorKind::OutcomeUnknown, format!("{text}: `herd control show` tells")))
            }
            Some(error) => Err(unreachable(format!("the control store was not moved: {error}"))),
        }
    }

    /// Goes on with a move of which it was not known whether its mark is in the store: it is, as has been read there.
    fn end_doubt(&mut self) {
        let moved = self.warden.moved().map(|mark| mark.id);
        let Some((prepared, mark)) = self.doubt.take_if(|(_, mark)| Some(mark.id) == moved) else { return };
        if let Err(error) = self.follow(prepared, &mark) {
            (self.outlets.tell)(&error.text);
        }
    }

    /// Begins with the copy.
    fn follow(&mut self, prepared: Prepared, mark: &Mark) -> Result<String, Error> {
        self.resign();
        let inbox = self.inbox.clone();
        match prepared {
            Prepared::Node(node) => self.hand_over(node, mark),
            Prepared::Here => {
                let store = again(&inbox, &mut self.outlets.tell, || {
                    let home = self.home.as_ref().ok_or_else(|| String::from("no directory"))?;
                    home.again().and_then(|home| home.begin(mark.id)).map_err(|error| error.to_string())
                });
                self.go_on(store, None)
            }
            Prepared::Etcd(mut etcd, address) => {
                let begun =
                    again(&inbox, &mut self.outlets.tell, || etcd.begin(mark.id).map_err(|error| error.to_string()));
                let store = begun.map(|()| etcd as Box<dyn Control + Send>);
                self.go_on(store, Some(address))
            }
        }
    }

    /// Another node's warden goes on; this one has ended when this returns.
    fn hand_over(&mut self, node: NodeId, mark: &Mark) -> Result<String, Error> {
        let Some(errands) = self.outlets.errands.clone() else { return Err(unreachable("there are no links")) };
        errands.moved(node, mark.addresses.first().map_or("", String::as_str), mark.id);
        self.is_gone = true;
        self.gone_to = Some((node, mark.id));
        let begins = self.errand(node, Errand::Begin(mark.id), MOVE_BEGIN_MS);
        match begins {
            Ok(()) => {
                self.gone_to = None;
                Ok(json!({"backend": "embedded", "node": mark.node}).to_string())
            }
            Err(why) => {
                let text = format!(
                    "node '{}' has the control store now, and has not said yet that it goes on ({why}): it is told \
                     again until it does, and `herd control show` tells when",
                    mark.node
                );
                Err(Error::new(ErrorKind::OutcomeUnknown, text))
            }
        }
    }

    /// Tells the node that has the store now to begin, until it has or this node stops.
    pub(super) fn see_through(&mut self) {
        let mut last = None;
        while let Some((node, id)) = self.gone_to
            && !self.inbox.is_stopping()
        {
            match self.errand(node, Errand::Begin(id), MOVE_BEGIN_MS) {
                Ok(()) => self.gone_to = None,
                Err(why) => {
                    if last.as_ref() != Some(&why) {
                        let text =
                            format!("the control store was moved, and its new node does not go on with it: {why}");
                        (self.outlets.tell)(&text);
                        last = Some(why);
                    }
                    std::thread::sleep(Duration::from_millis(MOVE_AGAIN_MS));
                }
            }
        }
    }

    fn errand(&self, to: NodeId, errand: Errand, within_ms: u64) -> Result<(), String> {
        let errands = self.outlets.errands.as_ref().ok_or("this node has no links to others: it has no HERD_SECRET")?;
        errands.run(to, errand, Duration::from_millis(within_ms), &|| self.inbox.is_stopping())
    }

    /// The office in the old store is left: nothing is granted by it any more.
    fn resign(&mut self) {
        let call = Call::Campaign { name: self.config.name.clone(), lease_ms: 0 };
        self.ask_store(&call).ok();
    }

    /// The warden goes on here over another store; `None`: the node is to stop.
    fn go_on(&mut self, store: Option<Box<dyn Control + Send>>, etcd: Option<Address>) -> Result<String, Error> {
        let moved = |why: String| {
            let text = format!("the control store has moved, and the warden does not go on here: {why}");
            Error::new(ErrorKind::OutcomeUnknown, text)
        };
        let Some(store) = store else { return Err(moved("the node is stopping".into())) };
        self.config = candidate(&self.config).map_err(|error| moved(format!("no chance is to be had: {error}")))?;
        self.store = store;
        self.remote = etcd
            .as_ref()
            .map(|_| Remote { home: self.home.as_ref().and_then(|home| home.again().ok()), halt: self.inbox.halt() });
        self.etcd = etcd;
        self.warden = Warden::new(self.config.clone());
        self.warden.links(self.linked.clone());
        self.tick();
        let map = self.warden.map().cloned().ok_or_else(|| {
            let text = "the control store was moved, and does not answer yet: `herd control show` tells when";
            Error::new(ErrorKind::OutcomeUnknown, text)
        })?;
        self.show(&map)
    }

    /// What there is to know of the store.
    fn show(&mut self, map: &Map) -> Result<String, Error> {
        let page = self.store.range(&Range { prefix: "herd".into(), ..Range::default() });
        let revision = page.map_err(|error| unreachable(error.to_string()))?.revision;
        let place = self.home.as_ref().filter(|_| self.later.is_none()).map(|home| home.path().display().to_string());
        let backend = match (&self.etcd, &self.later) {
            (Some(_), _) => "etcd",
            (None, Some(_)) => "memory",
            (None, None) => "embedded",
        };
        Ok(fitting(json!({
            "backend": backend,
            "node": self.name,
            "term": map.term,
            "revision": revision,
            "epoch": map.epoch,
            "map_revision": map.revision,
            "nodes": map.nodes.len(),
            "path": place.filter(|_| self.etcd.is_none()),
            "etcd": self.etcd.as_ref().map(ToString::to_string),
            "members": self.etcd.as_ref().map(Address::endpoints),
        })))
    }
}

/// What is told of a store, bytes of JSON: it goes in the head of a frame, beside little else.
const ABOUT_MAX_BYTES: usize = WIRE_HEAD_MAX_BYTES / 2;
/// How much of an address is told where all of it is too long, characters.
const SHORT: usize = 200;

/// As much of it as a link carries: of an etcd of many members, or a directory that lies deep, not all is told.
fn fitting(mut about: Value) -> String {
    for field in ["members", "path", "etcd"] {
        if about.to_string().len() <= ABOUT_MAX_BYTES {
            break;
        }
        let text = about[field].as_str().map(|text| format!("{}..", text.chars().take(SHORT).collect::<String>()));
        about[field] = json!(text);
    }
    about.to_string()
}

/// A refusal of etcd's is one of what was asked; that it does not answer is none.
fn told(error: ControlError) -> Error {
    match error {
        ControlError::Invalid(text) => refuse(text),
        error => unreachable(error.to_string()),
    }
}

/// Begins with the copy, however often that takes; what keeps it from that is told once while it lasts. `None`: the
/// node is to stop.
fn again<T>(inbox: &Inbox, tell: impl FnMut(&str), mut attempt: impl FnMut() -> Result<T, String>) -> Option<T> {
    let (mut tell, mut last) = (tell, None);
    while !inbox.is_stopping() {
        match attempt() {
            Ok(done) => return Some(done),
            Err(why) if last.as_ref() == Some(&why) => {}
            Err(why) => {
                tell(&format!("the control store was moved, and its copy is not gone on with yet: {why}"));
                last = Some(why);
            }
        }
        std::thread::sleep(Duration::from_millis(MOVE_AGAIN_MS));
    }
    None
}

/// The same as a candidate that nobody was before.
fn candidate(config: &Config) -> io::Result<Config> {
    let address = config.name.split(' ').next().unwrap_or_default();
    let name = format!("{address} {}", String::from(Hex(random()?)));
    Ok(Config { name, lasts: true, birth: None, ..config.clone() })
}

/// A control store that comes to this node's directory by a move.
pub(crate) fn keep(home: &Home, id: MoveId, bytes: &[u8]) -> Result<(), String> {
    let (table, _) = herd_core::control::file::read(bytes).map_err(|error| error.to_string())?;
    home.prepare(id, &table.all()).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use herd_core::limits::MAP_TEXT_MAX_BYTES;

    #[test]
    fn what_keeps_a_copy_from_being_begun_is_told_once_while_it_lasts() {
        let (mut tries, mut told) = (vec![Ok(1), Err("b"), Err("b"), Err("a"), Err("a")], Vec::new());
        let attempt = || tries.pop().expect("it is done by then").map_err(str::to_owned);
        let inbox = Inbox::new(Default::default());
        assert_eq!(again(&inbox, |line: &str| told.push(line.to_owned()), attempt), Some(1));
        assert!(told.len() == 2 && told[0].ends_with("yet: a") && told[1].ends_with("yet: b"), "{told:?}");
    }

    /// What a link does not carry would be told to nobody.
    #[test]
    fn what_is_told_of_a_store_fits_a_link_however_long_its_addresses_are() {
        let endpoints: Vec<String> = (0..16).map(|number| format!("{}-{number}:2379", "h".repeat(245))).collect();
        let (node, path) = ("\"".repeat(MAP_TEXT_MAX_BYTES), format!("/{}", "d".repeat(4_000)));
        let about = |endpoints: &[String], path: Option<&str>| {
            let etcd = (!endpoints.is_empty()).then(|| format!("etcd://{}", endpoints.join(",")));
            let (term, members) = (u64::MAX, endpoints);
            let told = json!({"node": node, "term": term, "path": path, "etcd": etcd, "members": members});
            let text = fitting(told);
            assert!(text.len() <= ABOUT_MAX_BYTES, "{} bytes", text.len());
            serde_json::from_str::<Value>(&text).expect("JSON")
        };
        let long = about(&endpoints, None);
        assert!(long["members"].is_null() && long["etcd"].as_str().is_some_and(|it| it.ends_with("h..")), "{long}");
        assert!(about(&[], Some(&path))["path"].as_str().is_some_and(|it| it.ends_with("d..")));
        let short = about(&["a:1".into(), "b:2".into()], None);
        assert_eq!((short["etcd"].as_str(), short["members"][1].as_str()), (Some("etcd://a:1,b:2"), Some("b:2")));
    }
}
