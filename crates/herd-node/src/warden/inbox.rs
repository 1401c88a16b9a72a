//! What comes to the warden from other threads: requests, what nodes told of their maps, and which have links;
//! and who waits for an answer.
//!
//! Bounded: as many requests as the warden itself lets wait, one word of each node, and one of each group.

use crate::control::etcd::Halt;
use herd_core::control::Term;
use herd_core::limits::{NODES_MAX, WANTED_MAX, WARDEN_ASKS_MAX};
use herd_core::place::{GroupId, Map, NodeId};
use herd_core::replica::{GroupEpoch, Want};
use herd_core::warden::{Answer, Ask, Refusal, Ticket};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Is told the answer. It is called from the warden's thread, or from the one that stops it, and must not wait.
type Reply = Box<dyn FnOnce(Result<Answer, Refusal>) + Send>;

/// A node's map: its life, and epoch and revision.
type Have = (NodeId, (u64, u32, u64));

/// Asks the warden of this node.
#[derive(Clone)]
pub struct Handle(pub(super) Arc<Inbox>);

impl Handle {
    /// Asks; `reply` is called once, within [`WARDEN_STOP_MS`](herd_core::limits::WARDEN_STOP_MS) of a stop at the
    /// latest. It must not wait. What groups want is told again and again, and takes no place from what is asked once:
    /// it is noted at once.
    pub fn ask(&self, ask: Ask, reply: impl FnOnce(Result<Answer, Refusal>) + Send + 'static) {
        self.ask_since(self.term(), ask, reply);
    }

    /// The term that is in office, as it was seen last; 0: none was yet.
    pub fn term(&self) -> Term {
        self.0.term.load(Relaxed)
    }

    /// Asks for somebody who lived when that term was in office, as was seen here then; nothing is known of since.
    /// What lives as long as this process does is of [`Term::MAX`].
    pub fn ask_since(&self, term: Term, ask: Ask, reply: impl FnOnce(Result<Answer, Refusal>) + Send + 'static) {
        let mut state = self.0.lock();
        if let Ask::Wants(wants) = &ask
            && !state.stopping
            && !state.is_closed
        {
            state.want(wants);
            drop(state);
            self.0.changed.notify_all();
            return reply(Ok(Answer::Noted));
        }
        let busy = (state.replies.len() >= WARDEN_ASKS_MAX).then_some(Refusal::Busy);
        let refusal = if state.stopping || state.is_closed { Some(Refusal::NotWarden(None)) } else { busy };
        if let Some(refusal) = refusal {
            drop(state);
            return reply(Err(refusal));
        }
        state.tickets += 1;
        let ticket = state.tickets;
        state.replies.insert(ticket, Box::new(reply));
        state.asks.push_back((ticket, term, ask));
        drop(state);
        self.0.changed.notify_all();
    }

    /// A node, this one too, tells which map it has, in this of its lives: with each beat.
    pub fn have(&self, node: NodeId, incarnation: u64, epoch: u32, revision: u64) {
        let mut state = self.0.lock();
        let have = (incarnation, epoch, revision);
        if state.haves.len() < NODES_MAX || state.haves.contains_key(&node) {
            let known = state.haves.entry(node).or_default();
            *known = (*known).max(have);
        }
        // Requests wait for nodes to have a map; what was told before can wait for the next tick.
        let is_bounded = state.told.len() < NODES_MAX || state.told.contains_key(&node);
        let is_news = is_bounded && state.told.insert(node, have) != Some(have);
        state.told_news |= is_news;
        drop(state);
        if is_news {
            self.0.changed.notify_all();
        }
    }

    /// The nodes to which this one has links: told again and again.
    pub fn links(&self, linked: BTreeSet<NodeId>) {
        self.0.lock().linked = Some(linked);
    }

    /// The map that was pushed last, and whether the herd may hold objects.
    pub fn map(&self) -> Option<(Arc<Map>, bool)> {
        self.0.lock().map.clone()
    }
}

/// The warden's side of it.
#[derive(Default)]
pub(super) struct Inbox {
    state: Mutex<State>,
    changed: Condvar,
    /// The term of whoever is in office, as it was seen last.
    term: AtomicU64,
    /// Tells a call to the store that is under way to end.
    halt: Halt,
}

#[derive(Default)]
struct State {
    asks: VecDeque<(Ticket, Term, Ask)>,
    haves: BTreeMap<NodeId, (u64, u32, u64)>,
    /// What nodes of the herd told last, and whether it was something new.
    told: BTreeMap<NodeId, (u64, u32, u64)>,
    told_news: bool,
    /// Nodes that have links to this one, where that was told since.
    linked: Option<BTreeSet<NodeId>>,
    /// What groups want, each in the latest view in which that was told.
    wants: BTreeMap<GroupId, (GroupEpoch, Want)>,
    /// Of all requests that were not answered.
    replies: BTreeMap<Ticket, Reply>,
    tickets: Ticket,
    map: Option<(Arc<Map>, bool)>,
    stopping: bool,
    /// The warden is elsewhere.
    is_closed: bool,
    ended: bool,
}

impl State {
    fn want(&mut self, wants: &[(GroupId, GroupEpoch, Want)]) {
        for (group, epoch, want) in wants {
            let known = self.wants.get(group);
            if known.map_or(self.wants.len() < WANTED_MAX, |(known, _)| known <= epoch) {
                self.wants.insert(*group, (*epoch, *want));
            }
        }
    }
}

/// What has come since.
pub(super) struct Work {
    /// With the term that was in office when who asks was known to live.
    pub(super) asks: VecDeque<(Ticket, Term, Ask)>,
    pub(super) haves: Vec<Have>,
    pub(super) linked: Option<BTreeSet<NodeId>>,
    pub(super) wants: BTreeMap<GroupId, (GroupEpoch, Want)>,
}

impl Inbox {
    pub(super) fn new(halt: Halt) -> Self {
        Self { halt, ..Self::default() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells a call that is under way to end once the node is to stop.
    pub(super) fn halt(&self) -> Halt {
        self.halt.clone()
    }

    /// What has come, or nothing after a tick; `None`: it is to stop.
    pub(super) fn wait(&self, tick: Duration) -> Option<Work> {
        let idle =
            |state: &mut State| state.asks.is_empty() && state.wants.is_empty() && !state.told_news && !state.stopping;
        let waited = self.changed.wait_timeout_while(self.lock(), tick, idle);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if state.stopping {
            return None;
        }
        state.told_news = false;
        let haves = std::mem::take(&mut state.haves).into_iter().collect();
        let (asks, wants) = (std::mem::take(&mut state.asks), std::mem::take(&mut state.wants));
        Some(Work { asks, haves, linked: state.linked.take(), wants })
    }

    /// From now on it is known that this term is in office.
    pub(super) fn sees_term(&self, term: Term) {
        self.term.store(term, Relaxed);
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.lock().stopping
    }

    pub(super) fn push(&self, map: Arc<Map>, held: bool) {
        let mut state = self.lock();
        state.told.retain(|node, _| !map.has_left(*node));
        state.map = Some((map, held));
    }

    pub(super) fn answer(&self, ticket: Ticket, answer: Result<Answer, Refusal>) {
        // The lock is free again when the reply is called.
        let reply = self.lock().replies.remove(&ticket);
        if let Some(reply) = reply {
            reply(answer);
        }
    }

    /// Answers all that is left.
    pub(super) fn answer_all(&self, refusal: &Refusal) {
        let replies = std::mem::take(&mut self.lock().replies);
        replies.into_values().for_each(|reply| reply(Err(refusal.clone())));
    }

    /// Nothing more is taken, and the thread is to end.
    pub(super) fn stop(&self) {
        self.lock().stopping = true;
        self.halt.set();
        self.changed.notify_all();
    }

    /// Nothing more is taken: the warden is elsewhere. The thread may go on.
    pub(super) fn close(&self) {
        self.lock().is_closed = true;
    }

    /// The thread has ended.
    pub(super) fn end(&self) {
        self.lock().ended = true;
        self.changed.notify_all();
    }

    /// Waits for the thread's end; whether it came.
    pub(super) fn wait_for_end(&self, patience: Duration) -> bool {
        let waited = self.changed.wait_timeout_while(self.lock(), patience, |state| !state.ended);
        waited.unwrap_or_else(PoisonError::into_inner).0.ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::away::{herd, life};

    #[test]
    fn who_comes_is_heard_at_once_however_many_have_left() {
        let handle = Handle(Arc::new(Inbox::new(Halt::default())));
        let last = NODES_MAX as u32 + 1;
        (1..last).for_each(|number| handle.have(life(number).node, 1, 1, 1));
        let map = herd(1).next(|draft| {
            draft.nodes[0].id = life(last).node;
            draft.plan();
        });
        let map = map.expect("valid");
        handle.0.push(Arc::new(map), true);
        assert!(handle.0.wait(Duration::ZERO).is_some_and(|work| work.haves.len() == NODES_MAX));
        handle.have(life(last).node, 1, 1, 1);
        assert!(handle.0.lock().told_news);
    }
}
