//! This node's own lease, as its loops look at it, and what its warden grants, if that is here (`herd_core::lease`).
//!
//! The order is *look, then clock, then answer*: whoever reads an object first takes it under its lock and then asks
//! [`Leases::holds`]. If that is so, nobody else had decided on the object when it was looked at, however long the
//! process stood still before or stands still after.

use herd_core::bugs::{Bug, has};
use herd_core::lease::{Grant, Grants};
use herd_core::place::NodeId;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A clock that all threads of a node share and that goes on while the machine sleeps, ns.
pub type Clock = Arc<dyn Fn() -> u64 + Send + Sync>;

/// See the module. One for each node.
pub struct Leases {
    clock: Clock,
    /// What the warden grants, if it is here.
    grants: Mutex<Grants>,
    /// Until when this node may answer reads without asking.
    until_ns: AtomicU64,
    /// Until when it may answer for what it has of class `cache`.
    caches_until_ns: AtomicU64,
    /// That may be given to others also by a map in which there is no other node.
    always: AtomicBool,
    /// When the batch of events began: what a planted bug looks at.
    began_ns: AtomicU64,
}

impl Leases {
    /// By that clock; nothing is granted yet.
    pub fn new(clock: Clock) -> Arc<Self> {
        let (grants, until_ns, caches_until_ns, began_ns) = Default::default();
        Arc::new(Self { clock, grants, until_ns, caches_until_ns, always: AtomicBool::new(false), began_ns })
    }

    /// By the clock of this machine.
    pub(crate) fn of_machine() -> Arc<Self> {
        Self::new(Arc::new(herd_net::boot_ns))
    }

    /// The time, ns.
    pub fn now_ns(&self) -> u64 {
        (self.clock)()
    }

    /// What the warden of this node grants: locked for a moment, and for no call.
    pub fn grants(&self) -> MutexGuard<'_, Grants> {
        self.grants.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A node beats, in that life: what it is granted, if anything.
    pub(crate) fn beat_of(&self, node: NodeId, incarnation: u64) -> Option<Grant> {
        let mut grants = self.grants();
        // Behind the lock: whoever bars a node and then looks when it was last granted something finds this.
        grants.beat(node, incarnation, self.now_ns())
    }

    /// The warden of this node, if there is one, hears this node itself; called a few times a second. What it grants,
    /// and when it was asked.
    pub(crate) fn own_beat(&self, node: NodeId, incarnation: u64) -> Option<(Grant, u64)> {
        let sent_ns = self.now_ns();
        let mut grants = self.grants();
        grants.own_beat(node, incarnation, self.now_ns()).map(|grant| (grant, sent_ns))
    }

    /// It lasts until then at least.
    pub(crate) fn lasts_until(&self, ns: u64) {
        self.until_ns.fetch_max(ns, SeqCst);
    }

    /// For what is of class `cache` it lasts until then at least.
    pub(crate) fn caches_last_until(&self, ns: u64) {
        self.caches_until_ns.fetch_max(ns, SeqCst);
    }

    /// The herd's map is kept where another node may take it up: also a node that is alone by it needs a lease.
    pub(crate) fn needed_always(&self) {
        self.always.store(true, SeqCst);
    }

    /// Whether a node that is alone needs one.
    pub(crate) fn is_always(&self) -> bool {
        self.always.load(SeqCst)
    }

    /// Whether it holds now for what is of class `cache`: asked while what is read or changed is locked.
    #[inline]
    pub(crate) fn holds_caches(&self) -> bool {
        let until_ns = self.caches_until_ns.load(SeqCst);
        until_ns > 0 && (self.now_ns() < until_ns || has(Bug::EndlessCacheLease))
    }

    /// Whether it holds now: asked when what is to be answered has been looked at.
    #[inline]
    pub(crate) fn holds(&self) -> bool {
        let until_ns = self.until_ns.load(SeqCst);
        if has(Bug::ClockFirst) {
            return self.began_ns.load(SeqCst) < until_ns;
        }
        until_ns > 0 && (self.now_ns() < until_ns || has(Bug::EndlessLease))
    }

    /// A batch of events begins.
    pub(crate) fn begin(&self) {
        if has(Bug::ClockFirst) {
            self.began_ns.store(self.now_ns(), SeqCst);
        }
    }
}
