//! The warden: the one writer of the herd's map.
//!
//! Pure: a [`Warden`] takes what happens (a request, an answer of the control store, time) and gives [`Order`]s. It
//! calls nothing, waits for nothing and draws nothing. Whoever drives it carries the orders out in their order, with at
//! most one call to the store under way, and hands its answer in. A reply that was lost is
//! [`ControlError::Unknown`].
//!
//! # How it goes
//!
//! away -> (time) -> seeking the office -> (won) -> loading all from the store -> idle -> (requests) -> writing ->
//! idle, and back to seeking to renew the office. While there are other nodes, idle -> assuring -> idle, a few times a
//! second: the store says that the term is in office still, without which nodes are granted no leases. A transaction is
//! refused -> seeking. Its outcome is unknown, or the store does not answer: a rest, then seeking; after
//! [`WARDEN_UNHEARD_MS`] what waits is refused. Somebody else holds the office, or the store can't be used -> away.
//!
//! # What holds
//!
//! * A map is pushed, and a request answered, when the store has it. Each change compares the head's revision and the
//!   term, so two wardens never make two maps of one epoch and revision. An answer that changes nothing is compared
//!   as well: who was paused past its lease tells nobody what was.
//! * Requests are made into one write a few at a time, and each is answered once. One whose write is in doubt is found
//!   out about: the head says which write made it. Only where somebody else wrote since is it `unknown`.
//! * A write that may still come is never gone on without: it is made again, or the term in which it was begun is given
//!   up, and with a later one it can't come any more. Until it is known whether a node was taken out nothing is granted
//!   to it.
//! * Numbers of nodes, lives and collections are given once.
//! * A process is let in by the warden that it asked, unless another one may have been in office since: it may be over
//!   by then, and the next one of its node be in.
//! * Groups are planned anew with each join while the herd holds no object. A primary that is to hold the first one
//!   asks ([`Ask::Hold`]), and is told when every node that is up has the map: then no plan of before is obeyed
//!   anywhere. Where one of them is gone that is told at once: it may live, and answer for objects by an older plan.
//! * That objects of a collection are gone is answered when every node that is up has the map that says so; after
//!   [`WARDEN_GONE_MS`] the answer names those that have not. That there is a new one is answered then too, but after
//!   [`WARDEN_SEEN_MS`] at last: it is there by then, whoever has not heard of it.
//! * A group that holds nothing, as all nodes that had what it held were started anew, is opened anew over the nodes
//!   that are heard: at once if that are all, or from [`WARDEN_HEARS_MS`](crate::limits::WARDEN_HEARS_MS) after it came
//!   into office on. So it is led by nobody whose life is over and who has not been back to say so.
//! * A node that was started anew while others hold objects is syncing in its groups at once, and those that it led are
//!   led by a backup: what its life before held is gone, and so is that life, as only one process has its directory. A
//!   member becomes a backup when its primary says that it has all ([`Ask::Wants`]).
//! * A node that is silent, while the grants to it have run out (`crate::lease`), is in no group any more that has as
//!   many copies as a write needs without it. When it is heard again, in the same life, it gets copies like any other.
//! * A node whose process has ended, as somebody says who is sure of it ([`Ask::Obituary`]), is in no group from that
//!   moment on, however few copies stay, until it is started anew.
//! * A node that says that it is about to end ([`Ask::Leave`]) leads nothing any more that another one can lead, and is
//!   in no group that has enough copies without it. It gets nothing until it is started anew.
//! * A store that holds less than nodes were told is not gone on from: its numbers would be given a second time.
//!
//! * [`ask`]: requests, answers, refusals.
//! * `state`, `collections`: what a request makes of the herd; `address`: where a node may be that joins.
//! * [`Order`]: what it gives.
//! * `told`: what nodes tell of their maps, and who waits for that.
//! * `reach`: which nodes are heard; `leave`: those that say that they end.
//! * `tend`: what it does of itself.
//! * `layout`: keys and values in the store; [`moving`]: a store that goes whole into another one.
//!
//! Callers: the node of the warden, simulations.

mod address;
pub mod ask;
mod collections;
mod flight;
mod hex;
mod layout;
mod leave;
pub mod moving;
mod order;
mod reach;
mod state;
mod tend;
#[cfg(test)]
mod tests;
mod told;

pub use ask::{Answer, Ask, ControlAsk, Create, GiveUp, Identity, Join, Joined, MoveGroup, Refusal};
pub use hex::Hex;
pub use moving::{Mark, MoveId};
pub use order::{Call, Order, Reply};

use crate::control::{ControlError, Entry, Office, Outcome, Range, Term, Txn};
use crate::limits::{
    CONTROL_MAX_BYTES, MOVE_UNBURIED_MS, OFFICE_LEASE_MS, OFFICE_RENEW_MS, OFFICE_SURE_MS, WARDEN_ASKS_MAX,
    WARDEN_BATCH_MAX, WARDEN_GONE_MS, WARDEN_PATIENCE_MS, WARDEN_SEEN_MS, WARDEN_UNHEARD_MS,
};
use crate::place::{HerdId, Map, NodeId};
use flight::Flight;
use layout::{Kept, Stamp};
use leave::Leave;
use reach::Reach;
use state::{Rules, State};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use tend::Care;
use told::Wait;

/// The map that a control store has, and whether its herd may hold objects: `None`: there is no herd in it, or nothing
/// that can be read. For who looks at a store from outside.
pub fn map_in(entries: &[Entry]) -> Option<(Arc<Map>, bool)> {
    let kept = layout::load(entries).ok()??;
    Some((kept.state.map, kept.state.held))
}

/// The map that a control store has, and the node in it of that identity.
pub fn map_of(entries: &[Entry], identity: Option<Identity>) -> Option<(Arc<Map>, Option<NodeId>)> {
    let state = layout::load(entries).ok()??.state;
    let own = state.members.iter().find(|(_, member)| Some(member.identity) == identity).map(|(id, _)| *id);
    Some((state.map, own))
}

/// A request of the driver's, by its own number.
pub type Ticket = u64;

/// What a warden is started with.
#[derive(Clone, Debug)]
pub struct Config {
    /// Its name as a candidate for the office: of this process alone, for ever; 1 to 255 printable bytes. Others are
    /// told it as the warden's.
    pub name: String,
    /// The newest protocol this program speaks among nodes.
    pub protocol: u32,
    /// Whether the store outlives this process. One that does not is good for a herd of one.
    pub lasts: bool,
    /// The herd to begin where the store is empty; `None`: there must be one.
    pub birth: Option<Birth>,
}

/// How a herd begins.
#[derive(Clone, Debug)]
pub struct Birth {
    /// Its id: random.
    pub herd: HerdId,
    /// The key of its name hash: random.
    pub hash_key: [u8; 16],
    /// Its first map epoch: 1; without a store that lasts, one that no earlier herd of this node came to.
    pub epoch: u32,
    /// The oldest protocol a node may speak.
    pub protocol_min: u32,
    /// Whether collection `default` evicts.
    pub evict: bool,
    /// Copies that `default` keeps; `None`: one, two, three with as many nodes.
    pub copies: Option<u8>,
}

#[derive(Debug)]
enum Phase {
    /// Nothing is under way; not in office.
    Away,
    /// A candidacy is under way.
    Seeking,
    /// A range is under way: the next page of all.
    Loading(Range, Vec<Entry>),
    /// All was read; a transaction is under way that asks whether it is so still, and this in office.
    Confirming(Box<Kept>),
    /// A transaction is under way that only asks whether this is in office still.
    Assuring,
    /// In office, nothing is under way.
    Idle,
    /// A transaction of the flight is under way.
    Writing,
}

/// The warden of a herd, or who would be.
#[derive(Debug)]
pub struct Warden {
    config: Config,
    phase: Phase,
    now_ms: u64,
    /// When to stand for the office next, and when to ask whether it is held still.
    stand_ms: u64,
    sure_ms: u64,
    /// The office as it was last seen; `None`: never yet.
    office: Option<Office>,
    /// The term from which on nobody else was in office, while it is; 0: it never was.
    since: Term,
    /// What the store holds, while in office.
    kept: Option<Kept>,
    /// The requests that are being written, or whose write is in doubt.
    flight: Option<Flight>,
    asks: VecDeque<(Ticket, Ask)>,
    /// Requests for leave to hold objects, until all nodes have the map; and how long they wait.
    holds: Vec<(Ticket, u64)>,
    /// What was done, and is answered when all nodes have the map.
    waits: Vec<Wait>,
    /// Requests of nodes that are about to end, until others lead what they led.
    leaves: Vec<Leave>,
    /// The life, and epoch and revision of the map, that nodes told of.
    have: BTreeMap<NodeId, (u64, u32, u64)>,
    /// The nodes that it hears.
    reach: Reach,
    care: Care,
    /// The latest map that a node told of: epoch and revision.
    told: (u32, u64),
    /// Writes begun so far.
    flights: u64,
    /// Somebody has died, or goes, and that was not looked at yet.
    is_urgent: bool,
    /// Since when somebody has died without a map that says so.
    unburied_ms: Option<u64>,
    /// Why it will never be in office.
    retired: Option<Refusal>,
    /// Where its store went.
    moved: Option<Mark>,
    /// Why it was not, the last time it tried.
    down: Option<Refusal>,
    /// When the call that is under way was made, and since when the store does not answer.
    asked_ms: u64,
    unheard_ms: Option<u64>,
    /// The term is to be given up: a write of it that is no longer waited for may still come.
    renounces: bool,
    /// What was pushed last.
    pushed: Option<(Arc<Map>, bool)>,
    orders: Vec<Order>,
}

impl Warden {
    /// A warden to be; [`tick`](Self::tick) begins.
    pub fn new(config: Config) -> Self {
        Self {
            config,
            phase: Phase::Away,
            now_ms: 0,
            stand_ms: 0,
            sure_ms: 0,
            office: None,
            since: 0,
            kept: None,
            flight: None,
            asks: VecDeque::new(),
            holds: Vec::new(),
            waits: Vec::new(),
            leaves: Vec::new(),
            have: BTreeMap::new(),
            reach: Reach::default(),
            care: Care::default(),
            told: (0, 0),
            flights: 0,
            is_urgent: false,
            unburied_ms: None,
            retired: None,
            moved: None,
            down: None,
            asked_ms: 0,
            unheard_ms: None,
            renounces: false,
            pushed: None,
            orders: Vec::new(),
        }
    }

    /// Time has passed. To be called about each 100 ms.
    #[must_use]
    pub fn tick(&mut self, now_ms: u64) -> Vec<Order> {
        self.now_ms = now_ms;
        if now_ms >= self.stand_ms && self.retired.is_none() && matches!(self.phase, Phase::Away | Phase::Idle) {
            self.seek();
        }
        self.give_up();
        self.tend();
        self.assure();
        self.taken()
    }

    /// Nodes that beat in vain would have no lease: the store says again and again who is in office.
    fn assure(&mut self) {
        let has_others = self.map().is_some_and(|map| map.nodes.len() > 1);
        if has_others && self.now_ms >= self.sure_ms && matches!(self.phase, Phase::Idle) {
            self.sure_ms = self.now_ms + OFFICE_SURE_MS;
            let term = Some(self.term());
            self.call(Phase::Assuring, Call::Txn(Txn { term, ..Txn::default() }));
        }
    }

    fn assured(&mut self, reply: Result<Reply, ControlError>) {
        match reply {
            Ok(Reply::Outcome(Outcome::Done(_))) => self.phase = Phase::Idle,
            Ok(_) => self.seek(),
            Err(error @ (ControlError::Unknown(_) | ControlError::Unreachable(_))) => self.unheard(&error),
            Err(error) => self.lose(&Refusal::Store(error.to_string())),
        }
    }

    /// Somebody asks for something.
    #[must_use]
    pub fn ask(&mut self, ticket: Ticket, ask: Ask) -> Vec<Order> {
        match (self.refusal(&ask), ask) {
            (Some(refusal), _) => self.answer(ticket, Err(refusal)),
            (None, Ask::Wants(wants)) => {
                if let Some(kept) = &self.kept {
                    self.care.wants(&kept.state.map, &wants);
                }
                self.answer(ticket, Ok(Answer::Noted));
            }
            (None, Ask::Obituary(life)) => {
                let answer = self.obituary(life);
                self.answer(ticket, answer);
            }
            (None, Ask::Leave(life)) => self.leave(ticket, life),
            (None, ask) => self.asks.push_back((ticket, ask)),
        }
        self.step();
        self.taken()
    }

    /// Whether something is not to be asked any more that has waited since a term: a join, where somebody else may have
    /// been in office since. Its process may be over, and another process of the same node be in by that one: it would
    /// be thrown out for the dead one. Who lives asks again.
    pub fn is_late(&self, ask: &Ask, term: Term) -> bool {
        matches!(ask, Ask::Join(_)) && term < self.since
    }

    fn refusal(&self, ask: &Ask) -> Option<Refusal> {
        let holder = self.office.as_ref().and_then(|office| office.holder.as_ref());
        let elsewhere = holder.filter(|holder| **holder != self.config.name).cloned();
        let down = self.down.clone().filter(|_| matches!(self.phase, Phase::Away));
        // What waits for nodes must not keep out the join that it waits for.
        let waiting = if matches!(ask, Ask::Join(_)) { 0 } else { self.waiting() };
        let busy = (self.asks.len() + waiting >= WARDEN_ASKS_MAX).then_some(Refusal::Busy);
        let elsewhere = elsewhere.map(|holder| Refusal::NotWarden(Some(holder)));
        self.retired.clone().or(elsewhere).or(down).or(busy)
    }

    /// Requests that wait for nodes.
    fn waiting(&self) -> usize {
        self.holds.len() + self.waits.len() + self.leaves.len()
    }

    /// The call that marks the store as moved, while nothing is under way, in doubt or waited for, and everything that
    /// is known of who has died is in the map, or has not come there for long; `None`: not now. Its answer goes to
    /// [`marked`](Self::marked).
    pub fn marking(&self, mark: &Mark) -> Option<Txn> {
        let kept = self.kept.as_ref().filter(|_| matches!(self.phase, Phase::Idle) && self.flight.is_none())?;
        let waits = self.asks.len() + self.waiting() > 0;
        let is_told = !self.is_urgent && self.reach.unburied(&kept.state.map).is_empty();
        // It can't be written, it seems: the store's disk may be full, and that may be why it is to go. Who has died is
        // found silent by the next warden.
        let is_late = self.unburied_ms.is_some_and(|since_ms| self.now_ms >= since_ms + MOVE_UNBURIED_MS);
        (!waits && (is_told || is_late)).then(|| moving::marking(kept, self.term(), mark))
    }

    /// What came of [`marking`](Self::marking): the store was moved, or something else. Where that is not known the
    /// mark may still come: the term is given up, without which it can't, and what the store says then holds.
    #[must_use]
    pub fn marked(&mut self, reply: Result<Outcome, ControlError>, mark: Mark, now_ms: u64) -> Vec<Order> {
        self.now_ms = now_ms;
        match reply {
            Ok(Outcome::Done(_)) => self.leave_store(mark),
            reply => {
                self.renounces |= matches!(reply, Err(ControlError::Unknown(_)));
                self.kept = None;
                self.seek();
            }
        }
        self.taken()
    }

    /// Where its store went: it is warden no more.
    pub fn moved(&self) -> Option<&Mark> {
        self.moved.as_ref()
    }

    /// The store is another's from now on.
    fn leave_store(&mut self, mark: Mark) {
        self.moved = Some(mark);
        self.retired = Some(Refusal::NotWarden(None));
        self.lose(&Refusal::NotWarden(None));
    }

    /// The store outlives this process from now on.
    pub fn lasts(&mut self) {
        self.config.lasts = true;
    }

    /// Ends: all that waits is answered. No call may be under way.
    #[must_use]
    pub fn stop(&mut self) -> Vec<Order> {
        self.lose(&Refusal::NotWarden(None));
        self.retired = Some(Refusal::NotWarden(None));
        self.taken()
    }

    /// The call by which it leaves its office, if it holds it: to be made when it has ended, where others may stand.
    pub fn resignation(&self) -> Option<Call> {
        let name = &self.config.name;
        let is_ours = self.office.as_ref().is_some_and(|office| office.holder.as_ref() == Some(name));
        is_ours.then(|| Call::Campaign { name: name.clone(), lease_ms: 0 })
    }

    /// The store answered the call that is under way.
    #[must_use]
    pub fn reply(&mut self, reply: Result<Reply, ControlError>, now_ms: u64) -> Vec<Order> {
        self.now_ms = now_ms;
        match reply {
            Err(ControlError::Unknown(_) | ControlError::Unreachable(_)) => {
                self.unheard_ms.get_or_insert(self.asked_ms);
            }
            _ => self.unheard_ms = None,
        }
        match std::mem::replace(&mut self.phase, Phase::Away) {
            Phase::Seeking => self.sought(reply),
            Phase::Loading(range, entries) => self.loaded(range, entries, reply),
            Phase::Confirming(kept) => self.confirmed(*kept, reply),
            Phase::Writing => self.written(reply),
            Phase::Assuring => self.assured(reply),
            // No call was under way.
            other => self.phase = other,
        }
        self.hurry();
        self.step();
        self.taken()
    }

    /// The map as the store had it when it last answered, while somebody else is not known to be in office.
    pub fn map(&self) -> Option<&Arc<Map>> {
        self.kept.as_ref().map(|kept| &kept.state.map)
    }

    fn taken(&mut self) -> Vec<Order> {
        std::mem::take(&mut self.orders)
    }

    fn answer(&mut self, ticket: Ticket, answer: Result<Answer, Refusal>) {
        self.orders.push(Order::Answer(ticket, answer));
    }

    fn call(&mut self, phase: Phase, call: Call) {
        (self.phase, self.asked_ms) = (phase, self.now_ms);
        self.orders.push(Order::Store(call));
    }

    /// Stands for the office, or renews it.
    fn seek(&mut self) {
        let name = self.config.name.clone();
        let lease_ms = if self.renounces { 0 } else { OFFICE_LEASE_MS };
        self.call(Phase::Seeking, Call::Campaign { name, lease_ms });
    }

    /// Tries again in a while.
    fn rest(&mut self) {
        self.phase = Phase::Away;
        self.stand_ms = self.now_ms + OFFICE_RENEW_MS;
    }

    fn sought(&mut self, reply: Result<Reply, ControlError>) {
        self.stand_ms = self.now_ms + OFFICE_RENEW_MS;
        match reply {
            Ok(Reply::Office(office)) => {
                self.reigns(&office);
                self.office = Some(office.clone());
                let knows = self.kept.as_ref().is_some_and(|kept| kept.state.map.term == office.term);
                if office.holder.as_ref() != Some(&self.config.name) {
                    self.lose(&Refusal::NotWarden(office.holder));
                    self.renounces = false;
                } else if knows && self.flight.is_none() {
                    (self.phase, self.down) = (Phase::Idle, None);
                } else {
                    self.load();
                }
            }
            Ok(_) => {}
            Err(error @ (ControlError::Unknown(_) | ControlError::Unreachable(_))) => self.unheard(&error),
            Err(error) => self.lose(&Refusal::Store(error.to_string())),
        }
    }

    /// Where somebody else may have been in office since it was last, what has waited for so long is late.
    fn reigns(&mut self, office: &Office) {
        let is_ours = |office: &Office| office.holder.as_ref() == Some(&self.config.name);
        let last = self.office.as_ref().map_or(Some(0), |last| is_ours(last).then_some(last.term));
        if !is_ours(office) || last.is_some_and(|last| office.term <= last + 1) {
            return;
        }
        self.since = office.term;
        for (ticket, ask) in std::mem::take(&mut self.asks) {
            match self.is_late(&ask, 0) {
                true => self.answer(ticket, Err(Refusal::NotWarden(None))),
                false => self.asks.push_back((ticket, ask)),
            }
        }
    }

    /// The store does not answer: it is asked again in a while. Once that has lasted, what waits is refused, but for
    /// what may have been done.
    fn unheard(&mut self, error: &ControlError) {
        self.rest();
        if self.unheard_ms.is_none_or(|since_ms| self.now_ms < since_ms + WARDEN_UNHEARD_MS) {
            return;
        }
        let refusal = Refusal::Store(error.to_string());
        let flight = self.flight.take_if(|flight| !flight.in_doubt);
        if flight.is_some() {
            // Parts of it may be there: all is read anew when the store answers.
            self.kept = None;
        }
        let flown = flight.into_iter().flat_map(|flight| flight.asks);
        for (ticket, _) in flown.chain(std::mem::take(&mut self.asks)) {
            self.answer(ticket, Err(refusal.clone()));
        }
        self.down = Some(refusal);
    }

    /// In office there is nothing it can do: the lease runs out, and somebody else's turn comes.
    fn give_way(&mut self, refusal: &Refusal) {
        self.lose(refusal);
        self.stand_ms = self.now_ms + 2 * OFFICE_LEASE_MS;
    }

    /// Knows nothing any more, and refuses all that waits.
    fn lose(&mut self, refusal: &Refusal) {
        self.rest();
        self.kept = None;
        self.down = Some(refusal.clone());
        self.have.clear();
        for wait in std::mem::take(&mut self.waits) {
            self.answer(wait.ticket, Err(Refusal::Unknown));
        }
        let (in_doubt, flown) = self.flight.take().map(|flight| (flight.in_doubt, flight.asks)).unwrap_or_default();
        self.renounces |= in_doubt;
        for (ticket, _) in flown {
            self.answer(ticket, Err(if in_doubt { Refusal::Unknown } else { refusal.clone() }));
        }
        for leave in std::mem::take(&mut self.leaves) {
            self.answer(leave.ticket, Err(refusal.clone()));
        }
        let asks = std::mem::take(&mut self.asks).into_iter().map(|(ticket, _)| ticket);
        for ticket in asks.chain(std::mem::take(&mut self.holds).into_iter().map(|(ticket, _)| ticket)) {
            self.answer(ticket, Err(refusal.clone()));
        }
    }

    /// Reads all there is.
    fn load(&mut self) {
        let range = Range::default();
        self.call(Phase::Loading(range.clone(), Vec::new()), Call::Range(range));
    }

    fn loaded(&mut self, mut range: Range, mut entries: Vec<Entry>, reply: Result<Reply, ControlError>) {
        match reply {
            Ok(Reply::Page(page)) => {
                entries.extend(page.entries);
                let bytes: usize = entries.iter().map(|entry| entry.key.len() + entry.value.len()).sum();
                if bytes > CONTROL_MAX_BYTES {
                    let text = format!("control store: it has over {CONTROL_MAX_BYTES} bytes, and no herd has");
                    return self.give_way(&Refusal::Store(text));
                }
                if page.more {
                    range.at = Some(page.revision);
                    range.after = entries.last().map(|entry| entry.key.clone());
                    return self.call(Phase::Loading(range.clone(), entries), Call::Range(range));
                }
                if let Ok(moving::Standing::Moved(mark)) = moving::standing(&entries) {
                    return self.leave_store(mark);
                }
                match layout::load(&entries) {
                    Ok(Some(kept)) => self.confirm(kept),
                    Ok(None) => self.begin_herd(),
                    Err(text) => self.give_way(&Refusal::Store(format!("control store: {text}"))),
                }
            }
            Ok(_) | Err(ControlError::Gap(_)) => self.rest(),
            Err(error @ (ControlError::Unknown(_) | ControlError::Unreachable(_))) => self.unheard(&error),
            Err(error) => self.lose(&Refusal::Store(error.to_string())),
        }
    }

    /// Somebody else may have come into office while this read, and have written: nodes must not be told of that as if
    /// it were of this one's term.
    fn confirm(&mut self, kept: Kept) {
        let compares = vec![kept.compare()];
        let txn = Txn { term: Some(self.term()), compares, ..Txn::default() };
        self.call(Phase::Confirming(Box::new(kept)), Call::Txn(txn));
    }

    fn confirmed(&mut self, kept: Kept, reply: Result<Reply, ControlError>) {
        match reply {
            Ok(Reply::Outcome(Outcome::Done(_))) => self.know(kept),
            Ok(_) => self.rest(),
            Err(error @ (ControlError::Unknown(_) | ControlError::Unreachable(_))) => self.unheard(&error),
            Err(error) => self.lose(&Refusal::Store(error.to_string())),
        }
    }

    /// The term of whoever is in office, as it was seen last; 0: never yet.
    pub fn term(&self) -> Term {
        self.office.as_ref().map_or(0, |office| office.term)
    }

    /// In office, and what the store holds is this.
    fn know(&mut self, mut kept: Kept) {
        self.config.birth = None;
        let (least, has) = (kept.state.protocol_min, (kept.state.map.epoch, kept.state.map.revision));
        if has < self.told {
            let told = self.told;
            let refusal = Refusal::Store(format!(
                "control store: it has epoch {}, revision {} of the map, and nodes have epoch {}, revision {}: it is \
                 an old copy, put back the latest one",
                has.0, has.1, told.0, told.1
            ));
            if self.down.as_ref() != Some(&refusal) {
                self.orders.push(Order::Tell(refusal.to_string()));
            }
            return self.give_way(&refusal);
        }
        if self.config.protocol < least {
            // The lease runs out, and a later program's turn comes.
            let refusal = Refusal::OldProtocol { theirs: self.config.protocol, least };
            self.lose(&refusal);
            self.retired = Some(refusal);
            return;
        }
        let term = self.term();
        let map = kept.state.map.next(|draft| draft.term = term);
        kept.state.map = Arc::new(map.expect("no check looks at the term"));
        (self.phase, self.down) = (Phase::Idle, None);
        self.reach.begins(self.now_ms);
        self.reach.judges_anew();
        match self.flight.take() {
            Some(flight) if flight.made(&kept) => self.land(kept, flight.answers),
            // It is refused, and nothing it compares is otherwise: such a store is not asked on and on.
            Some(mut flight) if flight.follows(&kept) && flight.term == term && flight.is_refused => {
                flight.is_refused = false;
                (self.kept, self.flight) = (Some(kept), Some(flight));
                self.rest();
            }
            Some(flight) if flight.follows(&kept) && flight.term == term => {
                self.kept = Some(kept);
                self.fly(flight.again());
            }
            Some(flight) => {
                let unknown = flight.in_doubt && !flight.follows(&kept);
                self.kept = Some(kept);
                for (ticket, ask) in flight.asks.into_iter().rev() {
                    match unknown {
                        true => self.answer(ticket, Err(Refusal::Unknown)),
                        false if self.is_late(&ask, flight.term) => self.answer(ticket, Err(Refusal::NotWarden(None))),
                        false => self.asks.push_front((ticket, ask)),
                    }
                }
            }
            None => self.kept = Some(kept),
        }
        self.push();
        self.release();
    }

    /// The store is empty.
    fn begin_herd(&mut self) {
        if self.flight.take_if(|flight| flight.is_refused && flight.asks.is_empty()).is_some() {
            return self.rest();
        }
        let Some(birth) = self.config.birth.clone() else {
            let text = "control store: there is no herd in it: begin one anew, with an empty place and without --join";
            return self.give_way(&Refusal::Store(text.into()));
        };
        match State::born(&birth, self.term()) {
            Ok(state) => {
                let stamp = self.next_stamp();
                self.fly(Flight::new(None, state, stamp, Vec::new(), Vec::new()));
            }
            Err(error) => self.give_way(&Refusal::Map(error)),
        }
    }

    /// Begins with what was asked for, if nothing is under way.
    fn step(&mut self) {
        if matches!(self.phase, Phase::Idle) && self.now_ms >= self.stand_ms {
            return self.seek();
        }
        while matches!(self.phase, Phase::Idle)
            && !self.asks.is_empty()
            && let Some(kept) = self.kept.take()
        {
            let mut state = kept.state.clone();
            let (mut asks, mut answers) = (Vec::new(), Vec::new());
            while asks.len() < WARDEN_BATCH_MAX
                && let Some((ticket, ask)) = self.asks.pop_front()
            {
                if matches!(ask, Ask::Hold) && !state.held && !self.is_ready(&state) {
                    self.holds.push((ticket, self.now_ms + WARDEN_PATIENCE_MS));
                    continue;
                }
                answers.push((ticket, state.apply(&ask, &self.rules())));
                asks.push((ticket, ask));
            }
            if asks.is_empty() {
                self.kept = Some(kept);
                self.refuse_holds();
                continue;
            }
            let stamp = self.next_stamp();
            let flight = Flight::new(Some(&kept), state, stamp, asks, answers);
            self.kept = Some(kept);
            self.fly(flight);
        }
    }

    fn rules(&self) -> Rules<'_> {
        Rules { term: self.term(), lasts: self.config.lasts, heard: self.reach.at(self.now_ms) }
    }

    /// What no other write has, ever: a term is one process's.
    fn next_stamp(&mut self) -> Stamp {
        self.flights += 1;
        Stamp { term: self.term(), flight: self.flights }
    }

    /// Makes the flight's next call.
    fn fly(&mut self, flight: Flight) {
        let call = Call::Txn(flight.txn().clone());
        self.flight = Some(flight);
        self.call(Phase::Writing, call);
    }

    fn written(&mut self, reply: Result<Reply, ControlError>) {
        let Some(mut flight) = self.flight.take() else { return self.seek() };
        match reply {
            Ok(Reply::Outcome(Outcome::Done(revision))) => match flight.advance() {
                false => self.fly(flight),
                true => {
                    let (kept, answers) = flight.done(revision);
                    self.land(kept, answers);
                }
            },
            Ok(_) => {
                flight.is_refused = true;
                self.flight = Some(flight);
                self.seek();
            }
            Err(error @ (ControlError::Unknown(_) | ControlError::Unreachable(_))) => {
                flight.in_doubt |= matches!(error, ControlError::Unknown(_)) && flight.writes();
                self.flight = Some(flight);
                self.unheard(&error);
            }
            Err(error) if flight.in_doubt => {
                self.flight = Some(flight);
                self.lose(&Refusal::Store(error.to_string()));
            }
            Err(error) => {
                let refusal = Refusal::Store(error.to_string());
                flight.asks.into_iter().for_each(|(ticket, _)| self.answer(ticket, Err(refusal.clone())));
                match self.kept.take() {
                    // Parts of it may be there, and what is not read anew is not gone on from.
                    Some(_) => self.load(),
                    // The herd could not begin.
                    None => self.lose(&Refusal::Store(error.to_string())),
                }
            }
        }
    }

    /// The write is in the store, which now holds this.
    fn land(&mut self, kept: Kept, answers: Vec<(Ticket, Result<Answer, Refusal>)>) {
        self.config.birth = None;
        (self.phase, self.down) = (Phase::Idle, None);
        self.reach.begins(self.now_ms);
        let map = (kept.state.map.epoch, kept.state.map.revision);
        self.kept = Some(kept);
        self.push();
        for (ticket, answer) in answers {
            if let Ok(Answer::Joined(joined)) = &answer {
                self.reach.joined(joined.node, joined.incarnation);
            }
            match answer {
                Ok(answer @ (Answer::Flushed { .. } | Answer::Destroyed)) => {
                    let until_ms = self.now_ms + WARDEN_GONE_MS;
                    self.waits.push(Wait { ticket, until_ms, map, answer, is_sure: false, of_heard: false });
                }
                Ok(answer @ Answer::Created(_)) => {
                    let until_ms = self.now_ms + WARDEN_SEEN_MS;
                    self.waits.push(Wait { ticket, until_ms, map, answer, is_sure: true, of_heard: false });
                }
                answer => self.answer(ticket, answer),
            }
        }
        self.release();
    }

    /// Pushes the map, unless it was.
    fn push(&mut self) {
        let Some(kept) = &self.kept else { return };
        let now = (kept.state.map.clone(), kept.state.held);
        if self.pushed.as_ref() != Some(&now) {
            self.orders.push(Order::Push { map: now.0.clone(), held: now.1 });
            self.pushed = Some(now);
        }
    }
}
