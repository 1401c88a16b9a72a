//! A node as one of its herd: how it comes in, and how maps reach it.
//!
//! * [`Entry`]: what it is told at its start. [`start`] begins a herd or joins one, before the store of objects and the
//!   loops are made: the herd's key of names and its map come first.
//! * [`Member`]: what its loops share of that.
//! * `mail.rs`: what loops and the warden have for the thread that takes maps: it alone may wait for the shards' locks.
//! * `ask.rs`: what loops ask of the warden.
//! * `join.rs`: the dialing side of a join.
//! * `leave.rs`: how a node that is told to stop has others lead what it leads.
//! * `errand.rs`: control stores that come here, or go elsewhere.
//! * `witness.rs`, `obituary.rs`: the process that tells the warden of this one's end; what it is told, and does.
//!
//! A map is taken by the store first, and then by the links, which tell others that the node has it: so whoever hears
//! that may rely on it.

mod ahead;
mod ask;
mod errand;
mod join;
mod leave;
mod mail;
mod obituary;
mod start;
mod way;
mod witness;

pub(crate) use ask::{Petitions, Said, Slot};
pub(crate) use errand::Sent;
pub use join::JoinError;
pub use obituary::Told;
pub use start::{Entry, StartError};
pub(crate) use start::{Founded, InHerd, Own, enter};
pub use witness::{StartWitness, Witness};

use crate::context::Shared;
use crate::control::Home;
use crate::lease::Leases;
use crate::link::{Came, Hub, Owner, Replies, Warden};
use crate::report::journal::{Journal, called};
use crate::warden::{Handle, Outlets, Running};
use errand::{Known, Queue, Runner, ToDo, has_room, lock};
use herd_core::Error;
use herd_core::limits::{MEMBER_TICK_MS, OUTCAST_AFTER_MS, WANTS_MAX};
use herd_core::place::{GroupId, HerdId, Life, Map, NodeId};
use herd_core::replica::{GroupEpoch, Want};
use herd_core::warden::{Ask, MoveId, Refusal};
use herd_core::wire::{Errand, LinkError, LinkErrorKind, MapMark};
use leave::Leaving;
use mail::{Mail, Mailbox};
use std::io;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use witness::Watched;

/// Takes a line for the log.
pub type Tell = Arc<dyn Fn(&str) + Send + Sync>;

/// What a node is in its herd.
pub(crate) struct Member {
    /// The herd.
    pub(crate) herd: HerdId,
    /// This node, in this life.
    pub(crate) life: Life,
    /// A warden of this node, in office or not; and the thread of the last one that was.
    handle: Mutex<Option<Handle>>,
    running: Mutex<Option<Running>>,
    /// Where its warden went, and by which move.
    gone: Mutex<Option<(NodeId, String, MoveId)>>,
    /// Its directory, if it has one, which is its own as long as this is there.
    home: Mutex<Option<Home>>,
    /// What its warden has for other nodes.
    errands: Queue,
    runner: Arc<Runner>,
    leases: Arc<Leases>,
    /// Whether the herd may hold objects, by the map that was taken last.
    holds: AtomicBool,
    /// Whose node it is.
    warden_node: AtomicU32,
    mailbox: Arc<Mailbox>,
    /// Its links, if it may have any.
    pub(crate) hub: OnceLock<Arc<Hub>>,
    /// The map as the thread took it last.
    map: Mutex<Option<Arc<Map>>>,
    /// What a loop is to tell the warden, which is elsewhere.
    wants: Mutex<Vec<Ask>>,
    /// Its request to be let go, once it is about to end.
    leave: Leaving,
    /// Why the herd goes on without this process, if it does.
    outcast: OnceLock<String>,
}

impl Member {
    /// The warden, if it is here. One that another node follows in office goes on as a candidate, and is asked nothing.
    pub(crate) fn warden(&self) -> Option<Handle> {
        self.candidate().filter(|_| self.warden_node() == self.life.node)
    }

    /// The warden that is here, or would be.
    fn candidate(&self) -> Option<Handle> {
        lock(&self.handle).clone()
    }

    /// The node of the warden; this one, if the warden is here.
    pub(crate) fn warden_node(&self) -> NodeId {
        NonZeroU32::new(self.warden_node.load(Relaxed)).map_or(self.life.node, NodeId)
    }

    /// Takes the map that the node comes in with, before its loops are made.
    pub(crate) fn first(&self, shared: &Shared, map: &Arc<Map>, held: bool) -> Result<(), Error> {
        shared.take_map(self.life, map, held)?;
        self.took(shared, map, held);
        Ok(())
    }

    fn map(&self) -> Option<Arc<Map>> {
        self.map.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Goes over to a map: the store, then the links. Whether it did. `warden`: whose node's it is, if that is known.
    fn take(&self, shared: &Shared, map: &Arc<Map>, held: bool, warden: Option<NodeId>) -> bool {
        match shared.take_map(self.life, map, held) {
            Ok(false) => return false,
            Ok(true) => {}
            Err(error) => {
                self.mailbox.tell(format!("the herd's map can't be taken yet: {error}"));
                return false;
            }
        }
        // Before the links have it: only the node of the warden gives it to others.
        warden.into_iter().for_each(|node| self.led_by(node));
        self.took(shared, map, held);
        true
    }

    fn led_by(&self, node: NodeId) {
        self.warden_node.store(node.0.get(), Relaxed);
    }

    /// The store goes by a map now: all others hear it.
    fn took(&self, shared: &Shared, map: &Arc<Map>, held: bool) {
        shared.held.store(held, Relaxed);
        self.holds.store(held, Relaxed);
        *self.map.lock().unwrap_or_else(PoisonError::into_inner) = Some(map.clone());
        if let Some(hub) = self.hub.get() {
            match self.warden() {
                Some(_) => hub.push(map.clone(), held),
                None => hub.adopt(map.clone(), held),
            }
        }
        self.tell_own(map);
        // Those who wait for leave to hold objects look again.
        shared.loops.get().into_iter().flat_map(|loops| loops.loops()).for_each(|remote| remote.resume(&[]));
    }

    /// The warden that is here, or would be, hears which map its own node has.
    fn tell_own(&self, map: &Map) {
        if let Some(handle) = self.candidate() {
            handle.have(self.life.node, self.life.incarnation, map.epoch, map.revision);
        }
    }

    /// Does what has come; what could not be done is done with the next.
    fn work(&self, shared: &Shared, mail: &mut Mail) {
        if let Some((map, held)) = mail.pushed.take()
            && !self.take(shared, &map, held, Some(self.life.node))
            && self.map().is_none_or(|taken| !Arc::ptr_eq(&taken, &map))
        {
            mail.pushed = Some((map, held));
        }
        if let Some(came) = mail.came.take() {
            self.receive(shared, &came);
        }
        for to_do in std::mem::take(&mut mail.errands) {
            self.run_errand(shared, to_do);
        }
        // A node that left tells nothing any more, and each that comes has a number that none had before.
        self.map().into_iter().for_each(|map| mail.haves.retain(|node, _| !map.has_left(*node)));
        if let Some(handle) = self.candidate() {
            // It hears its own node, whoever was the warden when that joined.
            let linked = self.hub.get().map(|hub| hub.links().into_keys()).into_iter().flatten();
            handle.links(linked.chain([self.life.node]).collect());
            self.map().into_iter().for_each(|map| self.tell_own(&map));
            for (node, (incarnation, epoch, revision)) in &mail.haves {
                handle.have(*node, *incarnation, *epoch, *revision);
            }
        }
        self.tell_wants(mail);
    }

    /// Has the warden told what the groups that this node leads want, again and again until the map says something of
    /// them: what is told while nobody is in office is forgotten.
    fn tell_wants(&self, mail: &mut Mail) {
        let Some(map) = self.map() else { return };
        let is_open = |id: &GroupId, epoch: GroupEpoch| map.group(*id).is_some_and(|group| group.epoch <= epoch);
        mail.wants.retain(|id, (epoch, _)| is_open(id, *epoch));
        let wants: Vec<_> = mail.wants.iter().map(|(id, (epoch, want))| (*id, *epoch, *want)).collect();
        let asks = wants.chunks(WANTS_MAX).map(|wants| Ask::Wants(wants.to_vec()));
        match self.warden() {
            // It says nothing that the map will not.
            Some(handle) => asks.for_each(|ask| handle.ask(ask, drop)),
            None => *self.wants.lock().unwrap_or_else(PoisonError::into_inner) = asks.collect(),
        }
    }

    /// Takes what is to be told to the warden over a link.
    pub(crate) fn take_wants(&self) -> Vec<Ask> {
        std::mem::take(&mut *self.wants.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// What the log is to be told of the herd.
    fn look(&self, journal: &mut Journal, now_ms: u64) -> Vec<String> {
        let Some(map) = self.map() else { return Vec::new() };
        let linked = self.hub.get().map(|hub| hub.links()).unwrap_or_default();
        journal.look((self.life.node, &map), |node| linked.contains_key(&node), now_ms)
    }

    /// Notes that the herd goes on without this process, once it was told so and has had no link for so long since.
    /// `told`: what it was told, and when. From then on it answers for nothing that it has alone.
    fn judge(&self, shared: &Shared, told: &mut Option<(u64, String)>, now_ms: u64) {
        if self.hub.get().is_none_or(|hub| !hub.links().is_empty()) {
            *told = None;
        } else if let Some((since_ms, why)) = told
            && now_ms >= *since_ms + OUTCAST_AFTER_MS
        {
            self.outcast.set(why.clone()).ok();
        }
        shared.bar(told.is_some());
    }

    /// Why the herd goes on without this process, if it does.
    pub(crate) fn outcast(&self) -> Option<&str> {
        self.outcast.get().map(String::as_str)
    }

    /// A node as people know it.
    fn called(&self, node: NodeId) -> String {
        let map = self.map();
        map.as_ref().and_then(|map| map.node(node)).map_or_else(|| node.0.to_string(), called)
    }

    /// Takes a map that came over a link. One that is the difference from another than the one at hand is dropped: its
    /// sender hears which one the node has, and sends the whole.
    fn receive(&self, shared: &Shared, came: &Came) {
        let Some(at_hand) = self.map() else { return };
        match came.sent.map(&came.bytes, &at_hand) {
            Ok(map) if map.herd == self.herd => {
                let is_at_hand =
                    MapMark::of(&map, came.sent.mark.held) == MapMark::of(&at_hand, shared.held.load(Relaxed));
                // A later one than those of the warden here is of another warden: who has it knows more of that.
                let warden = (came.is_pushed || self.warden().is_some()).then_some(came.from);
                self.take(shared, &Arc::new(map), came.sent.mark.held, warden);
                // An earlier one is of a warden that was.
                if came.is_pushed && is_at_hand {
                    self.led_by(came.from);
                }
            }
            Ok(_) | Err(herd_core::place::MapError::OtherBase) => {}
            Err(error) => self.mailbox.tell(format!("node {} sent a map that can't be read: {error}", came.from.0)),
        }
    }
}

/// Puts what links tell into the mailbox: the loops that tell it must not wait.
struct Post {
    mailbox: Arc<Mailbox>,
    member: OnceLock<std::sync::Weak<Member>>,
}

impl Owner for Post {
    fn map_came(&self, came: Came) {
        self.mailbox.change(|mail| {
            // The later one; of two with one mark that of the warden, as it tells where that is.
            let rank = |it: &Came| (it.sent.mark, it.is_pushed);
            if mail.came.as_ref().is_none_or(|old| rank(old) <= rank(&came)) {
                mail.came = Some(came);
            }
        });
    }

    fn has_map(&self, node: NodeId, incarnation: u64, mark: MapMark) {
        self.mailbox.has(node, (incarnation, mark.epoch, mark.revision));
    }

    fn warden(&self) -> Warden {
        let Some(member) = self.member.get().and_then(std::sync::Weak::upgrade) else {
            return Warden::None("the node is only starting: try again".into());
        };
        if let Some(handle) = member.warden() {
            return Warden::Here(handle);
        }
        // That node begins with it if it has not yet.
        if let Some((node, address, id)) = &*lock(&member.gone)
            && *node == member.warden_node()
        {
            return Warden::At(format!("{address} {}", id.text()));
        }
        let address = member.map().and_then(|map| map.node(member.warden_node())?.addresses.first().cloned());
        address.map_or_else(|| Warden::None("this node knows of no warden: ask another".into()), Warden::At)
    }

    fn refused(&self, node: NodeId, error: &LinkError) {
        let member = self.member.get().and_then(std::sync::Weak::upgrade);
        let called = member.map_or_else(|| node.0.to_string(), |member| member.called(node));
        if error.kind == LinkErrorKind::OlderIncarnation {
            self.mailbox.change(|mail| mail.outcast = Some(format!("node {called} says: {error}")));
        }
        self.mailbox.tell(format!("no link to node {called}: {error}"));
    }

    fn turned_away(&self, who: &str, error: &LinkError) {
        let is_final = error.kind != LinkErrorKind::NotNow;
        let done = if is_final { "was refused" } else { "is to ask again" };
        self.mailbox.tell(format!("{who} {done}: {error}"));
    }

    fn errand(&self, from: NodeId, errand: Errand, reply: Replies) {
        let mut reply = Some(reply);
        self.mailbox.change(|mail| {
            if has_room(mail.errands.len()) {
                let reply = reply.take().expect("it is taken once");
                mail.errands.push(ToDo { from, errand, reply });
            }
        });
        reply.into_iter().for_each(|reply| reply(Err(Refusal::Busy)));
    }

    fn wants(&self, group: GroupId, epoch: GroupEpoch, want: Want) {
        self.mailbox.change(|mail| mail.wants.extend([(group, (epoch, want))]));
    }
}

/// The thread that takes maps, and the warden, if it is here.
pub(crate) struct Duty {
    member: Arc<Member>,
    thread: JoinHandle<Watched>,
}

impl Duty {
    /// Begins to take maps.
    pub(crate) fn begin(member: Arc<Member>, shared: Arc<Shared>, entry: &Entry) -> io::Result<Self> {
        let (own, tell) = (member.clone(), entry.tell.clone());
        let mut watched = Watched::new(entry.witness.clone());
        let run = move || {
            let journal = Journal::since(member.map().map_or(0, |map| map.epoch));
            let (mut mail, mut journal, since) = (Mail::default(), journal, Instant::now());
            let mut told = None;
            let mut known = Known::default();
            watched.look(&member).iter().for_each(|line| tell(line));
            while member.mailbox.wait(&mut mail, Duration::from_millis(MEMBER_TICK_MS)) {
                member.work(&shared, &mut mail);
                member.keep_known(&mut known);
                let now_ms = since.elapsed().as_millis() as u64;
                mail.lines.drain(..).filter(|line| journal.is_news(line, now_ms)).for_each(|line| tell(&line));
                member.look(&mut journal, now_ms).iter().for_each(|line| tell(line));
                watched.look(&member).iter().for_each(|line| tell(line));
                told = told.or(mail.outcast.take().map(|why| (now_ms, why)));
                member.judge(&shared, &mut told, now_ms);
            }
            watched
        };
        let thread = std::thread::Builder::new().name("maps".into()).spawn(run)?;
        Ok(Self { member: own, thread })
    }

    /// Ends both. An error: the control store's disk does not answer.
    pub(crate) fn stop(self) -> io::Result<()> {
        self.member.mailbox.stop();
        let ended = self.thread.join().map_err(|_| io::Error::other("the thread of maps panicked"));
        // It would be told to nobody but this node.
        let is_told = self.member.warden().is_none();
        let running = lock(&self.member.running).take();
        running.map_or(Ok(()), Running::stop)?;
        *lock(&self.member.home) = None;
        ended.map(|watched| watched.end(is_told))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drive::World;
    use crate::tests::away::{herd, life};
    use herd_core::wire::MapSent;

    /// Any node answers with its map who asks by an older one; only that of the warden gives it to all.
    #[test]
    fn the_warden_is_where_maps_are_pushed_from_and_not_where_they_came_with_an_answer() {
        let (world, mut map) = (World::new(), Arc::new(herd(3)));
        let member = Member {
            herd: map.herd,
            life: life(2),
            handle: Mutex::default(),
            running: Mutex::default(),
            gone: Mutex::default(),
            home: Mutex::default(),
            errands: Queue::default(),
            runner: Arc::default(),
            leases: Leases::of_machine(),
            holds: AtomicBool::new(false),
            warden_node: AtomicU32::new(1),
            mailbox: Arc::default(),
            hub: OnceLock::new(),
            map: Mutex::new(None),
            wants: Mutex::default(),
            leave: Leaving::default(),
            outcast: OnceLock::new(),
        };
        member.first(&world.shared, &map, true).expect("it may be taken");
        for (from, is_pushed, warden) in [(3, false, 1), (3, true, 3), (1, false, 3)] {
            map = Arc::new(map.next(|draft| draft.collections[0].generation += 1).expect("valid"));
            let sent = MapSent { mark: MapMark::of(&map, true), is_difference: false, may_be_done: false };
            let from = life(from).node;
            member.receive(&world.shared, &Came { from, sent, bytes: map.encode(), is_pushed });
            assert_eq!(
                (member.map().map(|map| map.revision), member.warden_node()),
                (Some(map.revision), life(warden).node)
            );
        }
        // The map at hand, by a warden that has just come; and one from before, which was long on its way.
        let push = |from, map: &Map| {
            let sent = MapSent { mark: MapMark::of(map, true), is_difference: false, may_be_done: false };
            member.receive(&world.shared, &Came { from, sent, bytes: map.encode(), is_pushed: true });
            member.warden_node()
        };
        assert_eq!(push(life(1).node, &map), life(1).node);
        assert_eq!(push(life(3).node, &herd(3)), life(1).node);
        // What a node told that left is told to no warden, however many come and go. One may come before its map.
        let without = map.next(|draft| {
            draft.nodes.retain(|node| node.id != life(1).node);
            draft.plan();
        });
        let without = without.expect("valid");
        push(life(3).node, &without);
        let mut mail = Mail::default();
        mail.haves.extend((1..=4).map(|number| (life(number).node, (1, 1, 1))));
        member.work(&world.shared, &mut mail);
        assert!(mail.haves.into_keys().eq([2, 3, 4].map(|number| life(number).node)));
    }
}
