//! The warden's thread: time, requests and the store's answers to the warden, its orders carried out in their order.

use super::inbox::{Handle, Inbox};
use super::shift::{Errands, Prepared, Wish};
use crate::control::etcd::Address;
use crate::control::etcd::Halt;
use crate::control::{Home, Record};
use crate::lease::Leases;
use herd_core::control::{Control, ControlError, Outcome, Snapshot};
use herd_core::limits::{WARDEN_STOP_MS, WARDEN_TICK_MS};
use herd_core::place::{Map, NodeId};
use herd_core::warden::{Ask, Call, Config, Join, Mark, MoveId, Order, Refusal, Reply, Ticket, Warden};
use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Where a warden's orders and troubles go. Both are called from its thread, and must not wait.
pub struct Outlets {
    /// What it grants, and hears, by its node's links.
    pub leases: Arc<Leases>,
    /// Gives a map to all its nodes, this one too; and whether the herd may hold objects.
    pub push: Box<dyn FnMut(Arc<Map>, bool) + Send>,
    /// A line for the log: what does not work, and what to do.
    pub tell: Box<dyn FnMut(&str) + Send>,
    /// Has other nodes do something with the control store; `None`: there are no links.
    pub errands: Option<Arc<dyn Errands>>,
}

/// What a warden stands on.
pub(super) struct Footing {
    pub(super) store: Box<dyn Control + Send>,
    pub(super) later: Option<Later>,
    pub(super) remote: Option<Remote>,
    /// The etcd in which the store is, if it is in one.
    pub(super) etcd: Option<Address>,
    /// The node's directory, if it has any.
    pub(super) home: Option<Home>,
    /// The node's name.
    pub(super) name: String,
}

/// A store in memory, and where one that lasts goes when a second node comes.
pub(super) struct Later {
    pub(super) place: PathBuf,
    /// That place, if it could be taken.
    pub(super) claim: Option<Home>,
    pub(super) record: Record,
}

/// Of a store that is in no directory of the node's.
pub(super) struct Remote {
    /// The node's directory, which is its own as long as the warden works.
    pub(super) home: Option<Home>,
    /// Tells a call that is under way to end.
    pub(super) halt: Halt,
}

#[cfg(test)]
impl Footing {
    /// Of that store, and nothing else.
    pub(super) fn over(store: Box<dyn Control + Send>) -> Self {
        Self { store, later: None, remote: None, etcd: None, home: None, name: "node-1".into() }
    }
}

/// A warden at work. Dropped, it ends by itself; [`stop`](Self::stop) waits for that.
pub struct Running {
    handle: Handle,
    thread: Option<JoinHandle<()>>,
    /// Its node's directory, if it has any.
    home: Option<Home>,
}

impl Running {
    pub(super) fn start(config: Config, footing: Footing, outlets: Outlets) -> io::Result<Self> {
        let Footing { store, later, remote, etcd, home, name } = footing;
        let own = home.as_ref().and_then(|home| home.again().ok());
        let inbox = Arc::new(Inbox::new(remote.as_ref().map(|remote| remote.halt.clone()).unwrap_or_default()));
        let driver = Driver {
            inbox: inbox.clone(),
            warden: Warden::new(config.clone()),
            config,
            store,
            later,
            remote,
            etcd,
            home,
            name,
            outlets,
            start: Instant::now(),
            trouble: None,
            is_unheard: false,
            linked: BTreeSet::new(),
            wishes: Vec::new(),
            doubt: None,
            is_gone: false,
            gone_to: None,
        };
        let thread = std::thread::Builder::new().name("warden".into()).spawn(move || driver.run())?;
        Ok(Self { handle: Handle(inbox), thread: Some(thread), home: own })
    }

    /// To ask it.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Its node's directory, for another part of the node.
    pub(crate) fn home(&self) -> Option<Home> {
        self.home.as_ref().and_then(|home| home.again().ok())
    }

    /// Ends it; all that waits is answered when this returns, which is within a second. An error: the disk of the store
    /// does not answer, and the thread is left behind.
    pub fn stop(mut self) -> io::Result<()> {
        let inbox = &self.handle.0;
        inbox.stop();
        let ended = inbox.wait_for_end(Duration::from_millis(WARDEN_STOP_MS));
        inbox.answer_all(&Refusal::Unknown);
        match self.thread.take().filter(|_| ended) {
            Some(thread) => thread.join().map_err(|_| io::Error::other("the warden panicked")),
            None => Err(io::Error::new(io::ErrorKind::TimedOut, "the control store's disk does not answer")),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.handle.0.stop();
    }
}

/// Who waits for no answer: the inbox's tickets begin above it.
const NOBODY: Ticket = 0;

pub(super) struct Driver {
    pub(super) inbox: Arc<Inbox>,
    pub(super) warden: Warden,
    /// What the warden was made with.
    pub(super) config: Config,
    pub(super) store: Box<dyn Control + Send>,
    pub(super) later: Option<Later>,
    pub(super) remote: Option<Remote>,
    pub(super) etcd: Option<Address>,
    pub(super) home: Option<Home>,
    pub(super) name: String,
    pub(super) outlets: Outlets,
    /// The nodes that have links here.
    pub(super) linked: BTreeSet<NodeId>,
    /// What is asked about the store and can't be done yet.
    pub(super) wishes: Vec<Wish>,
    /// A move of which it is not known whether its mark is in the store.
    pub(super) doubt: Option<(Prepared, Mark)>,
    /// The store is another node's, which may not have begun with it yet.
    pub(super) is_gone: bool,
    pub(super) gone_to: Option<(NodeId, MoveId)>,
    start: Instant,
    /// What was told last, while it lasts, and whether that was that the store does not answer.
    trouble: Option<String>,
    is_unheard: bool,
}

impl Driver {
    fn run(mut self) {
        self.tick();
        while let Some(work) = self.inbox.wait(Duration::from_millis(WARDEN_TICK_MS)) {
            if let Some(linked) = work.linked {
                self.linked.clone_from(&linked);
                self.warden.links(linked);
            }
            self.tick();
            let told = work.haves.into_iter();
            let mut orders: Vec<Order> = told
                .flat_map(|(node, (life, epoch, revision))| self.warden.have(node, life, epoch, revision))
                .collect();
            if !work.wants.is_empty() {
                let wants = work.wants.into_iter().map(|(group, (epoch, want))| (group, epoch, want)).collect();
                orders.extend(self.warden.ask(NOBODY, Ask::Wants(wants)));
            }
            for (ticket, term, ask) in work.asks {
                if let Ask::Control(ask) = ask {
                    self.wishes.push(Wish::new(ticket, ask));
                    continue;
                }
                if self.warden.is_late(&ask, term) {
                    self.inbox.answer(ticket, Err(Refusal::NotWarden(None)));
                    continue;
                }
                self.prepare(&ask);
                orders.extend(self.warden.ask(ticket, ask));
            }
            self.carry_out(orders);
            if !self.grant_wishes() {
                break;
            }
        }
        if self.is_gone {
            return self.end_elsewhere();
        }
        let orders = self.warden.stop();
        self.carry_out(orders);
        self.inbox.answer_all(&Refusal::NotWarden(None));
        // The next one need not wait for the lease. Where that is not heard, it waits.
        if let Some(call) = self.warden.resignation().filter(|_| self.remote.is_some()) {
            // Nothing is granted from then on.
            self.ask_store(&call).ok();
        }
        // Whoever hears of the end may open the store.
        let inbox = self.inbox.clone();
        drop(self);
        inbox.end();
    }

    /// The store is another node's: what waits is asked there, and that one is told until it goes on.
    fn end_elsewhere(mut self) {
        self.inbox.close();
        self.inbox.answer_all(&Refusal::NotWarden(None));
        self.see_through();
        let inbox = self.inbox.clone();
        drop(self);
        inbox.end();
    }

    pub(super) fn now_ms(&self) -> u64 {
        self.start.elapsed().as_millis() as u64
    }

    pub(super) fn tick(&mut self) {
        self.judge();
        let orders = self.warden.tick(self.now_ms());
        self.carry_out(orders);
    }

    /// Which nodes are silent, and which are not.
    fn judge(&mut self) {
        let Some(nodes) = self.warden.judged() else { return };
        let now_ns = self.outlets.leases.now_ns();
        let mut grants = self.outlets.leases.grants();
        let silent = grants.silent(&nodes, now_ns);
        let cold = grants.cold(&silent, now_ns);
        let has_caches = |(node, _): &(NodeId, u64)| self.warden.map().is_some_and(|map| map.has_caches(*node));
        let may_answer = |life: &(NodeId, u64)| grants.may_answer(*life, has_caches(life), now_ns);
        let granted = nodes.iter().copied().filter(may_answer).collect();
        let beating = nodes.into_iter().filter(|(node, life)| grants.is_heard(*node, *life, now_ns)).collect();
        drop(grants);
        self.warden.beats(silent, beating);
        self.warden.granted(granted);
        self.warden.cold(cold);
    }

    pub(super) fn carry_out(&mut self, orders: Vec<Order>) {
        let mut orders = VecDeque::from(orders);
        while let Some(order) = orders.pop_front() {
            match order {
                Order::Store(call) => {
                    let reply = self.call(&call);
                    orders.extend(self.warden.reply(reply, self.now_ms()));
                    self.inbox.sees_term(self.warden.term());
                }
                Order::Push { map, held } => {
                    self.outlets.leases.grants().wrote(map.term, map.epoch);
                    self.inbox.push(map.clone(), held);
                    (self.outlets.push)(map, held);
                }
                Order::Answer(ticket, answer) => self.inbox.answer(ticket, answer),
                Order::Tell(text) => (self.outlets.tell)(&text),
            }
        }
    }

    /// Makes a call, unless the end is near: what waits then is answered soon.
    fn call(&mut self, call: &Call) -> Result<Reply, ControlError> {
        if self.inbox.is_stopping() {
            return Err(ControlError::Unreachable("the node is stopping".into()));
        }
        let reply = self.ask_store(call);
        match (&reply, call) {
            (Err(ControlError::Gap(_)), _) => {}
            (Err(error), _) => {
                let is_unheard = matches!(error, ControlError::Unreachable(_) | ControlError::Unknown(_));
                // Each try may say it in other words.
                if !is_unheard || !self.is_unheard {
                    self.tell(format!("{error}; until then the herd's nodes and collections stay as they are"));
                }
                self.is_unheard = is_unheard;
            }
            (Ok(_), _) if self.is_unheard => {
                (self.trouble, self.is_unheard) = (None, false);
                (self.outlets.tell)("the control store answers again");
            }
            (Ok(Reply::Outcome(Outcome::Done(_))), Call::Txn(txn)) if !txn.writes.is_empty() => self.trouble = None,
            (Ok(_), _) => {}
        }
        reply
    }

    /// Makes a call. What it tells of the office counts from before it was asked.
    pub(super) fn ask_store(&mut self, call: &Call) -> Result<Reply, ControlError> {
        let (now_ms, asked_ns) = (self.now_ms(), self.outlets.leases.now_ns());
        let reply = call.run(&mut *self.store, now_ms);
        let answered_ns = self.outlets.leases.now_ns();
        self.outlets.leases.grants().answered(call, &reply, asked_ns, answered_ns);
        reply
    }

    /// Tells of a trouble, once while it lasts.
    fn tell(&mut self, text: String) {
        if self.trouble.as_ref() != Some(&text) {
            (self.outlets.tell)(&text);
            self.trouble = Some(text);
        }
    }

    /// What must be so before the warden is asked.
    fn prepare(&mut self, ask: &Ask) {
        match ask {
            Ask::Join(join) => self.settle(join),
            // Before the map says so: from now on nothing is granted to it.
            Ask::Obituary(life) => self.outlets.leases.grants().bury(life.node, life.incarnation),
            _ => {}
        }
    }

    /// Before a second node joins the store comes to last. Where it can't, the warden refuses that node.
    fn settle(&mut self, join: &Join) {
        let Some(at) = self.later.take_if(|at| at.record.identity != join.identity) else { return };
        let all = self.store.snapshot().map_err(|error| error.to_string());
        match all.and_then(|all| at.settle(&all)) {
            Ok(store) => {
                self.store = store;
                self.home = self.home.take().or_else(|| Home::open(&at.place).ok());
                self.warden.lasts();
            }
            Err(text) => {
                self.tell(format!("no other node can join: {text}"));
                self.later = Some(at);
            }
        }
    }
}

impl Later {
    fn settle(&self, all: &Snapshot) -> Result<Box<dyn Control + Send>, String> {
        let home = self.claim.as_ref().map_or_else(|| Home::open(&self.place), Home::again);
        let store = home.and_then(|home| home.settle(&self.record, all));
        store.map_err(|error| error.to_string())
    }
}
