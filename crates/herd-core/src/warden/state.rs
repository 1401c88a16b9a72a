//! What the warden keeps of the herd, and what a request makes of it. Collections: `collections`.

use super::Birth;
use super::address;
use super::ask::{Answer, Ask, GiveUp, Identity, Join, Joined, MoveGroup, Refusal};
use super::reach::Heard;
use crate::bugs::{Bug, has};
use crate::collection::{Class, Spec};
use crate::control::Term;
use crate::key::CollectionId;
use crate::limits::{NODES_MAX, PLACED_MAX};
use crate::place::{Collection, Draft, GroupId, Grows, Kind, Map, MapError, Node, NodeId, NodeState, Placed};
use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::sync::Arc;

/// What the warden knows of a node besides what the map says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Member {
    /// Who it is.
    pub(super) identity: Identity,
    /// Which process it is.
    pub(super) process: [u8; 16],
}

/// All that a herd's warden must know, and leaves to the next one.
#[derive(Clone, Debug)]
pub(super) struct State {
    /// The key of the name hash.
    pub(super) hash_key: [u8; 16],
    /// The oldest protocol that nodes may speak.
    pub(super) protocol_min: u32,
    /// Whether the herd may hold objects.
    pub(super) held: bool,
    /// The number of the next node, and of the next collection.
    pub(super) next_node: u32,
    pub(super) next_collection: u64,
    /// The nodes of the map.
    pub(super) members: BTreeMap<NodeId, Member>,
    /// The map.
    pub(super) map: Arc<Map>,
}

/// What else decides about a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules<'a> {
    /// The warden's term.
    pub(super) term: Term,
    /// Whether the store outlives the process.
    pub(super) lasts: bool,
    /// The nodes that are there.
    pub(super) heard: Heard<'a>,
}

impl State {
    /// A herd without nodes: collection `default` alone, in spread group 0.
    pub(super) fn born(birth: &Birth, term: Term) -> Result<Self, MapError> {
        let mut draft = Draft { term, ..Draft::empty(birth.herd) };
        let (kind, class) = match birth.evict {
            true => (Kind::Cache, Class::Cache),
            false => (Kind::Kept, Class::Ram(1)),
        };
        let grows = match birth.copies {
            _ if birth.evict => Grows::No,
            None => Grows::ByItself,
            Some(_) => Grows::ToCopies,
        };
        draft.add_spread(kind, birth.copies.unwrap_or(1), grows);
        let (id, spec) = (CollectionId::DEFAULT, Spec::of(&class.to_string()));
        draft.collections.push(Collection { id, name: "default".into(), spec, generation: 1 });
        Ok(Self {
            hash_key: birth.hash_key,
            protocol_min: birth.protocol_min,
            held: false,
            next_node: 1,
            next_collection: CollectionId::DEFAULT.serial() + 1,
            members: BTreeMap::new(),
            map: Arc::new(Map::first(draft, birth.epoch)?),
        })
    }

    /// An error if numbers that are yet to come are there.
    pub(super) fn check(&self) -> Result<(), String> {
        let nodes = self.map.nodes.iter().all(|node| node.id.0.get() < self.next_node);
        let collections = self.map.collections.iter().all(|it| it.id.serial() < self.next_collection);
        if nodes && collections { Ok(()) } else { Err("a number that was not given yet is there".into()) }
    }

    /// Whether nothing has changed since.
    pub(super) fn is(&self, before: &State) -> bool {
        let numbers = |state: &State| (state.held, state.next_node, state.next_collection);
        Arc::ptr_eq(&self.map, &before.map) && numbers(self) == numbers(before) && self.members == before.members
    }

    /// Does what is asked; where it is refused nothing changes.
    pub(super) fn apply(&mut self, ask: &Ask, rules: &Rules) -> Result<Answer, Refusal> {
        match ask {
            Ask::Join(join) => self.join(join, rules).map(Answer::Joined),
            Ask::Hold => {
                self.held = true;
                Ok(Answer::Held)
            }
            Ask::Create(create) => self.create(create, rules).map(Answer::Created),
            Ask::Destroy { name } => self.destroy(name, rules).map(|()| Answer::Destroyed),
            Ask::Flush { name } => self.flush(name, rules).map(|generation| Answer::Flushed { generation }),
            Ask::Drain { name, stays } => self.drain(name, *stays, rules).map(|()| Answer::Drains),
            Ask::GiveUp(give_up) => self.give_up(give_up, rules).map(|groups| Answer::GaveUp { groups }),
            Ask::MoveGroup(asked) => self.move_group(asked, rules).map(|()| Answer::Placed),
            // Done with what else there is to do.
            Ask::Wants(_) | Ask::Obituary(_) | Ask::Leave(_) => Ok(Answer::Noted),
            Ask::Control(_) => Err(Refusal::NotWarden(None)),
        }
    }

    /// The map after a change of this term.
    pub(super) fn changed(&self, rules: &Rules, change: impl FnOnce(&mut Draft)) -> Result<Arc<Map>, MapError> {
        let map = self.map.next(|draft| {
            draft.term = rules.term;
            change(draft);
        });
        map.map(Arc::new)
    }

    fn joined(&self, node: NodeId, incarnation: u64) -> Joined {
        Joined { herd: self.map.herd, hash_key: self.hash_key, node, incarnation }
    }

    /// Lets a node in. One that is known by its identity keeps its number; if it is another process, its memory is
    /// gone, and it gets its copies back from those who have them.
    fn join(&mut self, join: &Join, rules: &Rules) -> Result<Joined, Refusal> {
        let own = self.members.iter().find(|(_, member)| member.identity == join.identity).map(|(id, _)| *id);
        self.admit(join, own, rules)?;
        let known = own.and_then(|id| self.map.node(id));
        if let Some(node) = known.filter(|node| self.members[&node.id].process == join.process) {
            return Ok(self.joined(node.id, node.incarnation));
        }
        if let Some(node) = known.filter(|node| rules.heard.runs(node)) {
            let address = node.addresses.first().cloned().unwrap_or_default();
            return Err(Refusal::Runs { name: node.name.clone(), address });
        }
        let (id, next_node) = match known {
            Some(node) => (node.id, self.next_node),
            None => {
                let id = NonZeroU32::new(self.next_node).ok_or(Refusal::NoNumber("nodes"))?;
                (NodeId(id), self.next_node.checked_add(1).ok_or(Refusal::NoNumber("nodes"))?)
            }
        };
        let incarnation = match known {
            Some(node) if has(Bug::OldLife) => node.incarnation,
            Some(node) => node.incarnation.checked_add(step(join)).ok_or(Refusal::NoNumber("lives of this node"))?,
            None => 1,
        };
        let drains = known.is_some_and(|node| node.state == NodeState::Draining);
        let node = node(join, id, incarnation);
        let mut held = self.held;
        let map = self.changed(rules, |draft| {
            let was_held = held;
            held = held && draft.start_anew(id, |node| rules.heard.hears(node));
            if was_held && !held {
                // Nobody has all, but some may have half a copy.
                draft.forget_objects(|_| true);
            }
            draft.join(node, held);
            if drains {
                draft.drain(id, true);
                draft.call_off_copies(id);
                if !held {
                    draft.plan();
                }
            }
            if let Some(there) = rules.heard.all_there(&draft.nodes, Some(id)) {
                draft.reopen(&there);
            }
        })?;
        (self.map, self.held, self.next_node) = (map, held, next_node);
        self.members.insert(id, Member { identity: join.identity, process: join.process });
        Ok(self.joined(id, incarnation))
    }

    /// Has a node drain, or stay. Asked again it is so already, unless it drains and has nowhere to give it any more.
    fn drain(&mut self, name: &str, stays: bool, rules: &Rules) -> Result<(), Refusal> {
        let node = self.map.nodes.iter().find(|node| node.name == name);
        let node = node.ok_or_else(|| Refusal::NoNode(name.into()))?;
        let (id, drains) = (node.id, node.state == NodeState::Draining);
        if !stays {
            self.check_drain(node)?;
        }
        if stays != drains {
            return Ok(());
        }
        let held = self.held;
        self.map = self.changed(rules, |draft| {
            draft.drain(id, !stays);
            if !held {
                draft.plan();
            }
        })?;
        Ok(())
    }

    /// Gives up what a node had, which goes from the herd, or groups that wait for nodes which are not there; how many
    /// groups lost what they held.
    fn give_up(&mut self, asked: &GiveUp, rules: &Rules) -> Result<usize, Refusal> {
        let is_meant = |id: &GroupId| {
            asked.spread.is_none_or(|spread| spread == id.spread) && asked.group.is_none_or(|it| it == id.number)
        };
        let node = asked.node.as_ref().map(|name| self.over(name, rules)).transpose()?;
        let lost: BTreeSet<GroupId> = match node {
            Some(node) => self.map.only_at(node),
            None => self.map.waiting(|node| rules.heard.hears(node)).into_iter().filter(is_meant).collect(),
        };
        // Where the herd holds nothing nothing is lost.
        let lost = if self.held { lost } else { BTreeSet::new() };
        if !lost.is_empty() && !asked.accepts {
            return Err(Refusal::WouldLose(lost.len()));
        }
        if node.is_none() && lost.is_empty() {
            return Ok(0);
        }
        let held = self.held;
        self.map = self.changed(rules, |draft| {
            draft.give_up(&lost, &asked.who, asked.unix_ms);
            node.into_iter().for_each(|node| draft.detach(node, |other| rules.heard.hears(other)));
            match rules.heard.all_there(&draft.nodes, None) {
                _ if !held => draft.plan(),
                Some(there) => draft.reopen(&there),
                None => {}
            }
        })?;
        self.members.retain(|id, _| Some(*id) != node);
        Ok(lost.len())
    }

    /// Notes where a group is to be, or that it may be anywhere. The moves come with what else there is to do.
    fn move_group(&mut self, asked: &MoveGroup, rules: &Rules) -> Result<(), Refusal> {
        let id = GroupId { spread: asked.spread, number: asked.group };
        let shown = format!("{}/{}", id.spread, id.number);
        let not = |why: String| Err(Refusal::NotMoved(why));
        let group = self.map.group(id).ok_or(Refusal::NoGroup(id))?;
        let named = |name: &String| {
            let node = self.map.nodes.iter().find(|node| node.name == *name);
            node.ok_or_else(|| Refusal::NoNode(name.clone()))
        };
        let (to, from) = (asked.to.as_ref().map(named).transpose()?, asked.from.as_ref().map(named).transpose()?);
        if self.map.spread(id.spread).is_some_and(|spread| spread.kind == Kind::Cache) {
            return not(format!("group {shown} is of class cache: it is given from node to node, empty, by itself"));
        }
        if !self.held {
            return not("the herd holds no object yet: its groups are dealt when the first one comes".into());
        }
        if let Some(node) = to.filter(|node| node.state != NodeState::Up) {
            return not(format!("node '{}' drains, or is not there: it gets nothing", node.name));
        }
        let has = |node: NodeId| group.members().any(|id| id == node);
        // Asked again it is so, or even done.
        let mut placed = self.map.placed.iter().filter(|it| it.group == id && to.is_some_and(|to| to.id == it.node));
        if placed.any(|it| it.from == from.map(|node| node.id).filter(|from| has(*from))) {
            return Ok(());
        }
        if let Some(node) = from.filter(|node| !has(node.id)) {
            return not(format!("node '{}' has no copy of group {shown}", node.name));
        }
        if let Some(node) = to.filter(|node| from.is_some() && has(node.id)) {
            return not(format!("node '{}' has a copy of group {shown} already: nobody else's goes for it", node.name));
        }
        if to.is_some() && self.map.placed.len() >= PLACED_MAX {
            let next = "call some off with `herd group move SPREAD/GROUP --cancel`";
            return not(format!("{PLACED_MAX} copies were put on nodes already, the most that can be: {next}"));
        }
        let (to, from) = (to.map(|node| node.id), from.map(|node| node.id));
        self.map = self.changed(rules, |draft| match to {
            Some(node) => draft.place(Placed { group: id, node, from }),
            None => draft.unplace(id),
        })?;
        Ok(())
    }

    /// A node that answers for nothing any more, by its name.
    fn over(&self, name: &str, rules: &Rules) -> Result<NodeId, Refusal> {
        let node = self.map.nodes.iter().find(|node| node.name == name);
        let node = node.ok_or_else(|| Refusal::NoNode(name.into()))?;
        let is_over = rules.heard.is_over(&self.map, node);
        is_over.then_some(node.id).ok_or_else(|| Refusal::Lives(name.into()))
    }

    /// An error if what the node keeps has nowhere to go.
    fn check_drain(&self, node: &Node) -> Result<(), Refusal> {
        let name = node.name.clone();
        let stay = self.map.nodes.iter().filter(|it| it.state == NodeState::Up && it.id != node.id).count();
        // What moves has a member more for a while.
        let copies = |id: GroupId| self.map.spread(id.spread).map_or(0, |spread| usize::from(spread.copies));
        let kept = self.map.groups_of(node.id).map(|(id, group)| group.members().count().min(copies(id))).max();
        match kept.filter(|copies| *copies > stay) {
            Some(copies) => Err(Refusal::NoRoomFor { name, copies, nodes: stay }),
            None => Ok(()),
        }
    }

    /// An error if the node can't be one of this herd. `own`: its number, if it was one before.
    fn admit(&self, join: &Join, own: Option<NodeId>, rules: &Rules) -> Result<(), Refusal> {
        let here = self.map.herd;
        if let Some(theirs) = join.herd.filter(|herd| *herd != here) {
            return Err(Refusal::OtherHerd { here, theirs });
        }
        if join.protocol < self.protocol_min {
            return Err(Refusal::OldProtocol { theirs: join.protocol, least: self.protocol_min });
        }
        let named = self.map.nodes.iter().find(|node| node.name == join.name).map(|node| node.id);
        if named.is_some() && named != own {
            return Err(Refusal::NameTaken(join.name.clone()));
        }
        if own.is_none() && !self.map.nodes.is_empty() && !rules.lasts {
            return Err(Refusal::NoPlace);
        }
        if own.is_none() && self.map.nodes.len() >= NODES_MAX {
            return Err(Refusal::TooManyNodes);
        }
        let evicts = self.map.collections.iter().any(|it| it.id == CollectionId::DEFAULT && it.spec.class == "cache");
        if join.evict && !evicts {
            return Err(Refusal::NotEvicting);
        }
        address::check(&self.map, join, own)
    }
}

/// By how much the number of a node's next life is above that of the last one: by chance, so that a warden which goes
/// by an old copy of the control store gives no number that was given since. Processes of equal bytes, as tests name
/// them, step by one.
fn step(join: &Join) -> u64 {
    let drawn = u128::from_le_bytes(join.process);
    1 + (((drawn ^ drawn >> 64) >> 8) & 0xFF_FFFF) as u64
}

fn node(join: &Join, id: NodeId, incarnation: u64) -> Node {
    Node {
        id,
        name: join.name.clone(),
        addresses: join.addresses.clone(),
        incarnation,
        host: join.host.clone(),
        rack: join.rack.clone(),
        memory_bytes: join.memory_bytes,
        state: NodeState::Up,
        protocol: u16::try_from(join.protocol).unwrap_or(u16::MAX),
    }
}
