//! The warden's thread: time, requests and the store's answers to the warden, its orders carried out in their order.

use super::inbox::{Handle, Inbox};
use crate::control::etcd::Halt;
use crate::control::{Home, Record};
use crate::lease::Leases;
use herd_core::control::{Control, ControlError, Outcome, Snapshot};
use herd_core::limits::{WARDEN_STOP_MS, WARDEN_TICK_MS};
use herd_core::place::Map;
use herd_core::warden::{Ask, Call, Join, Order, Refusal, Reply, Ticket, Warden};
use std::collections::VecDeque;
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

/// A warden at work. Dropped, it ends by itself; [`stop`](Self::stop) waits for that.
pub struct Running {
    handle: Handle,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    pub(super) fn start(
        warden: Warden,
        store: Box<dyn Control + Send>,
        later: Option<Later>,
        remote: Option<Remote>,
        outlets: Outlets,
    ) -> io::Result<Self> {
        let inbox = Arc::new(Inbox::new(remote.as_ref().map(|remote| remote.halt.clone()).unwrap_or_default()));
        let (start, trouble, is_unheard) = (Instant::now(), None, false);
        let driver = Driver { inbox: inbox.clone(), warden, store, later, remote, outlets, start, trouble, is_unheard };
        let thread = std::thread::Builder::new().name("warden".into()).spawn(move || driver.run())?;
        Ok(Self { handle: Handle(inbox), thread: Some(thread) })
    }

    /// To ask it.
    pub fn handle(&self) -> &Handle {
        &self.handle
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

struct Driver {
    inbox: Arc<Inbox>,
    warden: Warden,
    store: Box<dyn Control + Send>,
    later: Option<Later>,
    remote: Option<Remote>,
    outlets: Outlets,
    start: Instant,
    /// What was told last, while it lasts, and whether that was that the store does not answer.
    trouble: Option<String>,
    is_unheard: bool,
}

impl Driver {
    fn run(mut self) {
        self.tick();
        while let Some(work) = self.inbox.wait(Duration::from_millis(WARDEN_TICK_MS)) {
            work.linked.into_iter().for_each(|linked| self.warden.links(linked));
            self.tick();
            let told = work.haves.into_iter();
            let mut orders: Vec<Order> = told
                .flat_map(|(node, (life, epoch, revision))| self.warden.have(node, life, epoch, revision))
                .collect();
            if !work.wants.is_empty() {
                let wants = work.wants.into_iter().map(|(group, (epoch, want))| (group, epoch, want)).collect();
                orders.extend(self.warden.ask(NOBODY, Ask::Wants(wants)));
            }
            for (ticket, ask) in work.asks {
                self.prepare(&ask);
                orders.extend(self.warden.ask(ticket, ask));
            }
            self.carry_out(orders);
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

    fn now_ms(&self) -> u64 {
        self.start.elapsed().as_millis() as u64
    }

    fn tick(&mut self) {
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
        let beating = nodes.into_iter().filter(|(node, life)| grants.is_heard(*node, *life, now_ns)).collect();
        drop(grants);
        self.warden.beats(silent, beating);
        self.warden.cold(cold);
    }

    fn carry_out(&mut self, orders: Vec<Order>) {
        let mut orders = VecDeque::from(orders);
        while let Some(order) = orders.pop_front() {
            match order {
                Order::Store(call) => {
                    let reply = self.call(&call);
                    orders.extend(self.warden.reply(reply, self.now_ms()));
                }
                Order::Push { map, held } => {
                    self.outlets.leases.grants().wrote(map.term, map.epoch);
                    self.inbox.push(map.clone(), held);
                    (self.outlets.push)(map, held);
                }
                Order::Answer(ticket, answer) => self.inbox.answer(ticket, answer),
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
                self.is_unheard = matches!(error, ControlError::Unreachable(_) | ControlError::Unknown(_));
                self.tell(format!("{error}; until then the herd's nodes and collections stay as they are"));
            }
            (Ok(Reply::Outcome(Outcome::Done(_))), Call::Txn(txn)) if !txn.writes.is_empty() => self.trouble = None,
            (Ok(_), _) if self.is_unheard => (self.trouble, self.is_unheard) = (None, false),
            (Ok(_), _) => {}
        }
        reply
    }

    /// Makes a call. What it tells of the office counts from before it was asked.
    fn ask_store(&mut self, call: &Call) -> Result<Reply, ControlError> {
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
