//! What all loops of a node share of its links: who the node is, which map it has, and whom they tell of what came.

use super::Warden;
use super::resolve::Names;
use crate::lease::Leases;
use herd_core::lease::Grant;
use herd_core::place::{GroupId, HerdId, Map, NodeId, NodeState};
use herd_core::replica::{GroupEpoch, Want};
use herd_core::warden::{Answer, Refusal};
use herd_core::wire::{Errand, LinkError, LinkErrorKind, MapMark, MapSent, Nonces, Peer, Secret};
use herd_net::LoopHandle;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Who a node is in its herd.
#[derive(Clone)]
pub struct Membership {
    /// The herd.
    pub herd: HerdId,
    /// The node's number there.
    pub node: NodeId,
    /// Which of its lives this process is.
    pub incarnation: u64,
    /// What the nodes of the herd know and nobody else.
    pub secret: Secret,
    /// Random, drawn at this start.
    pub random: [u8; 16],
}

/// A map that came over a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Came {
    /// Who gave it.
    pub from: NodeId,
    /// Which map it is, and what the bytes are.
    pub sent: MapSent,
    /// Its bytes, for [`MapSent::map`]. Nothing of them was looked at.
    pub bytes: Vec<u8>,
    /// It is given to all nodes, as by that of the warden alone; else it came with an answer.
    pub is_pushed: bool,
}

/// Takes the one answer to something.
pub type Replies = Box<dyn FnOnce(Result<Answer, Refusal>) + Send>;

/// Whom links tell of what came over them. All is told by loops, so nothing may wait in it, or take long.
pub trait Owner: Send + Sync {
    /// A map came. Once the node has it, [`Hub::adopt`] tells the links so.
    fn map_came(&self, came: Came);

    /// A node, in that life, has this map: told when it has a link, and when that changed.
    fn has_map(&self, node: NodeId, incarnation: u64, mark: MapMark);

    /// Where the warden is: for nodes that want in, and for what only it may do.
    fn warden(&self) -> Warden {
        Warden::None("this node knows of no warden".into())
    }

    /// A link to a node was refused, by it or by this one; told again only when it is refused for another reason, or
    /// was up meanwhile.
    fn refused(&self, node: NodeId, error: &LinkError);

    /// Somebody who connected was refused as a node, or is the one that refuses; `who` says what it wanted to be.
    fn turned_away(&self, who: &str, error: &LinkError) {
        let _ = (who, error);
    }

    /// A node has something to be done with a control store; answered when it is done.
    fn errand(&self, from: NodeId, errand: Errand, reply: Replies) {
        let _ = (from, errand);
        reply(Err(Refusal::NotWarden(None)));
    }

    /// The primary of a group, this node, asks something of the warden in the view of that epoch. In each later view it
    /// asks again, unless that says so, or something else: what was asked in an earlier one stands for nothing then.
    /// One who has no warden to ask lets it be: the group goes on as it is.
    fn wants(&self, group: GroupId, epoch: GroupEpoch, want: Want) {
        let _ = (group, epoch, want);
    }
}

/// See the module. It is made before the loops are.
pub struct Hub {
    pub(super) me: Membership,
    pub(super) owner: Arc<dyn Owner>,
    nonces: Nonces,
    state: Mutex<State>,
    /// Views so far: loops look here whether there is a new one.
    changes: AtomicU64,
    loops: OnceLock<LoopHandle>,
    /// Links that loops have to each node.
    linked: Mutex<BTreeMap<NodeId, usize>>,
    /// Until when this node may answer reads of what others keep too, and what its warden grants, if it has one.
    pub(crate) leases: Arc<Leases>,
}

#[derive(Default)]
struct State {
    view: Option<Arc<View>>,
    names: Names,
}

/// The map as links see it.
pub(super) struct View {
    pub(super) map: Arc<Map>,
    pub(super) mark: MapMark,
    /// The map that was shown before, if there was one.
    pub(super) before: Option<Arc<Map>>,
    /// Rises with each map.
    pub(super) edition: u64,
    /// This node gives the map to the others.
    pub(super) pushes: bool,
    /// Where the nodes are that this one dials.
    pub(super) addresses: BTreeMap<NodeId, Vec<SocketAddr>>,
    /// And those that dial it.
    pub(super) higher: BTreeMap<NodeId, Vec<SocketAddr>>,
    /// The whole map's bytes, once somebody needs them.
    pub(super) whole: OnceLock<Vec<u8>>,
}

impl Hub {
    /// Of a node that has no map yet.
    pub fn new(me: Membership, owner: Arc<dyn Owner>, leases: Arc<Leases>) -> Arc<Self> {
        let (nonces, state, changes, loops) =
            (Nonces::new(me.random), Mutex::default(), AtomicU64::new(0), OnceLock::new());
        Arc::new(Self { me, owner, nonces, state, changes, loops, linked: Mutex::default(), leases })
    }

    /// This node beats, in case the warden is here.
    pub(crate) fn own_beat(&self) {
        let granted = self.leases.own_beat(self.me.node, self.me.incarnation);
        granted.into_iter().for_each(|(grant, sent_ns)| self.granted(grant, sent_ns));
    }

    /// This node was granted something, by the answer to a beat that it sent at that time.
    pub(super) fn granted(&self, grant: Grant, sent_ns: u64) {
        let Some(view) = self.view() else { return };
        let than = (view.mark.term, view.mark.epoch);
        grant.until_ns(than, sent_ns).into_iter().for_each(|until_ns| self.leases.lasts_until(until_ns));
        grant.cache_until_ns(than, sent_ns).into_iter().for_each(|until_ns| self.leases.caches_last_until(until_ns));
    }

    /// The node has this map from now on: links to its nodes are made, those to others closed, and all are told.
    pub fn adopt(self: &Arc<Self>, map: Arc<Map>, held: bool) {
        self.show(map, held, false);
    }

    /// As [`Hub::adopt`], by the node of the warden: each node that has another map is given this one, those too whose
    /// links come up later.
    pub fn push(self: &Arc<Self>, map: Arc<Map>, held: bool) {
        self.show(map, held, true);
    }

    fn show(self: &Arc<Self>, map: Arc<Map>, held: bool, pushes: bool) {
        let mut state = self.lock();
        let (before, edition) = state.view.as_ref().map_or((None, 0), |view| (Some(view.map.clone()), view.edition));
        let all = dialed(&map, &self.me).chain(higher(&map, &self.me));
        state.names.want(self, all.flat_map(|(_, addresses)| addresses.iter()));
        let addresses = state.names.addresses(dialed(&map, &self.me));
        let higher = state.names.addresses(higher(&map, &self.me));
        let (mark, edition, whole) = (MapMark::of(&map, held), edition + 1, OnceLock::new());
        state.view = Some(Arc::new(View { map, mark, before, edition, pushes, addresses, higher, whole }));
        drop(state);
        self.tell();
    }

    /// Names of machines were looked up: the loops are told where these are.
    pub(super) fn found(&self, found: &BTreeMap<String, Vec<SocketAddr>>) {
        let mut state = self.lock();
        if !state.names.take(found) {
            return;
        }
        let Some(view) = state.view.clone() else { return };
        let addresses = state.names.addresses(dialed(&view.map, &self.me));
        let higher = state.names.addresses(higher(&view.map, &self.me));
        let (map, before, whole) = (view.map.clone(), view.before.clone(), view.whole.clone());
        let View { mark, edition, pushes, .. } = *view;
        state.view = Some(Arc::new(View { map, mark, before, edition, pushes, addresses, higher, whole }));
        drop(state);
        self.tell();
    }

    /// What it proves itself with.
    pub(crate) fn secret(&self) -> Secret {
        self.me.secret
    }

    /// What was drawn by chance at this start.
    pub(crate) fn random(&self) -> [u8; 16] {
        self.me.random
    }

    /// The names of machines whose addresses are wanted.
    pub(super) fn names(&self) -> BTreeSet<String> {
        self.lock().names.wanted()
    }

    /// The loops that are told of a new view; without them they find it by themselves, when they work.
    pub(crate) fn set_loops(&self, loops: LoopHandle) {
        self.loops.set(loops).ok();
    }

    /// The loops, once they are made.
    pub(crate) fn loops(&self) -> Option<LoopHandle> {
        self.loops.get().cloned()
    }

    /// A link to a node is up, or is no more.
    pub(super) fn linked(&self, node: NodeId, is_up: bool) {
        let mut linked = self.linked.lock().unwrap_or_else(PoisonError::into_inner);
        let links = linked.entry(node).or_default();
        *links = if is_up { *links + 1 } else { links.saturating_sub(1) };
        if *links == 0 {
            linked.remove(&node);
        }
    }

    /// Whether a loop of this node has a link to that one.
    pub(crate) fn is_linked(&self, node: NodeId) -> bool {
        self.linked.lock().unwrap_or_else(PoisonError::into_inner).contains_key(&node)
    }

    /// How many links the loops of this node have to each other one that has any.
    pub fn links(&self) -> BTreeMap<NodeId, usize> {
        self.linked.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn tell(&self) {
        self.changes.fetch_add(1, Relaxed);
        // Nothing to look at: they are woken, and that is all.
        self.loops.get().into_iter().flat_map(|loops| loops.loops()).for_each(|remote| remote.resume(&[]));
    }

    /// How often the view changed; whoever sees another number looks at [`Hub::view`].
    #[inline]
    pub(super) fn changes(&self) -> u64 {
        self.changes.load(Relaxed)
    }

    pub(super) fn view(&self) -> Option<Arc<View>> {
        self.lock().view.clone()
    }

    /// A nonce that nobody was given before.
    pub(super) fn nonce(&self) -> [u8; 16] {
        self.nonces.next()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The nodes that this one dials, and their addresses: those of lower numbers. One that is taken for silent may live,
/// and one that is known dead may be there again and be the warden, which nobody else could tell.
fn dialed<'a>(map: &'a Map, me: &Membership) -> impl Iterator<Item = (NodeId, &'a [String])> + use<'a> {
    let own = me.node;
    let is_in = map.node(own).is_some();
    let there = map.nodes.iter().filter(move |node| node.id < own && is_in);
    there.map(|node| (node.id, node.addresses.as_slice()))
}

/// The nodes that dial this one, and their addresses.
fn higher<'a>(map: &'a Map, me: &Membership) -> impl Iterator<Item = (NodeId, &'a [String])> + use<'a> {
    let own = me.node;
    map.nodes.iter().filter(move |node| node.id > own).map(|node| (node.id, node.addresses.as_slice()))
}

/// Whether a node may have a link here, by the map that is known; without any, all may.
pub(super) fn check(view: Option<&View>, peer: &Peer) -> Result<(), LinkError> {
    let Some(view) = view else { return Ok(()) };
    let number = peer.node.0;
    let refuse = |kind, text| Err(LinkError { kind, text });
    match view.map.node(peer.node) {
        Some(node) if peer.incarnation < node.incarnation => refuse(
            LinkErrorKind::OlderIncarnation,
            format!("node {number} has been started anew since this process of it"),
        ),
        Some(node) if node.state == NodeState::Dead && peer.incarnation == node.incarnation => {
            refuse(LinkErrorKind::OlderIncarnation, format!("this process of node {number} is known to have ended"))
        }
        // Who has a later map is in that one.
        None if (peer.epoch, peer.revision) <= (view.map.epoch, view.map.revision) => {
            refuse(LinkErrorKind::OlderIncarnation, format!("node {number} is not in the map of this herd"))
        }
        _ => Ok(()),
    }
}

/// Whether a node of a lower number may dial this one, which is the one to dial: its process is not in the map that is
/// known here, and it has a later map, which may tell where it is now.
pub(super) fn is_news(view: Option<&View>, peer: &Peer) -> bool {
    let Some(view) = view else { return false };
    let is_later = (peer.epoch, peer.revision) > (view.map.epoch, view.map.revision);
    is_later && view.map.node(peer.node).is_none_or(|node| node.incarnation < peer.incarnation)
}
