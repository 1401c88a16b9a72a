//! The herd's map: nodes, spread groups, replica groups, slots and collections, as one value.
//!
//! A [`Map`] is never changed, and shared as `Arc<Map>`. A change is [`Map::next`]: it hands out the parts as a
//! [`Draft`], numbers what has changed, and checks the whole. The numbers are set there and nowhere else:
//!
//! * **epoch**: one more with each change of nodes, groups or slots;
//! * **revision**: one more with each change of collections;
//! * a group's **epoch**: that of its last view, which changes with its members, their incarnations, and k;
//! * **since** of a slot: the epoch at which its group, or the primary of its group, last changed. It is the high part
//!   of the versions made there; as it comes from the one epoch of the map, it never falls, wherever a slot moves.

use super::{GivenUp, MapError, Placed};
use crate::collection::{Class, Spec};
use crate::key::{CollectionId, ObjectId, collection_name_is_valid};
use crate::limits::{
    COLLECTIONS_MAX, COPIES_MAX, GIVEN_UP_MAX, GROUP_MEMBERS_MAX, MAP_EPOCHS_END, MAP_TEXT_MAX_BYTES,
    NODE_ADDRESSES_MAX, NODES_MAX, PLACED_MAX, SLOTS, SPREADS_MAX,
};
pub use crate::replica::Standing;
use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::ops::Deref;

/// A class as text: `cache`, `ram:9`, with some room for zeros before the number.
const CLASS_MAX_BYTES: usize = 16;

/// The herd, for ever: random, made at its birth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HerdId(pub [u8; 16]);

impl HerdId {
    /// As people tell it from others: the first bytes, in hexadecimal.
    pub fn short(&self) -> String {
        self.0[..4].iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// A node of the herd: numbers rise with joins and are not given twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub NonZeroU32);

/// What a node is there for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeState {
    /// Holds its share.
    Up,
    /// Gives away what it holds and gets nothing new.
    Draining,
    /// Silent, and may live: in no group that has enough copies without it.
    Down,
    /// Its process is known to have ended: in no group, and that process gets no link any more.
    Dead,
}

/// A node as the map knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its number.
    pub id: NodeId,
    /// Its name, unique in the herd, 1 to 255 bytes.
    pub name: String,
    /// Where it can be reached, best first: `HOST:PORT` or `unix:PATH`.
    pub addresses: Vec<String>,
    /// Rises with each start of its process: what an earlier one held is gone.
    pub incarnation: u64,
    /// The machine it runs on; nodes of one host die together.
    pub host: String,
    /// The rack of that machine; empty: not told.
    pub rack: String,
    /// Memory for objects, bytes.
    pub memory_bytes: u64,
    /// What it is there for.
    pub state: NodeState,
    /// The newest protocol among nodes that its program speaks, from 1.
    pub protocol: u16,
}

/// What a spread group promises of its objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// They are kept: a group is never re-assigned empty without an operator.
    Kept,
    /// One copy that may go: when its node is gone, the group is re-assigned, empty.
    Cache,
}

/// A replica group by its spread group and its number there. A number may come again; the group's epoch tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupId {
    /// The spread group.
    pub spread: u16,
    /// Its place in [`Spread::groups`].
    pub number: u16,
}

/// A member beside the primary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Member {
    /// The node.
    pub node: NodeId,
    /// What it is in the group.
    pub standing: Standing,
    /// Map epoch at which it came, or at which what it holds became worthless: it started anew, or the primary that
    /// brings it up to date is another.
    pub since: u32,
}

/// A replica group: the nodes that hold the same slots.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Group {
    /// Map epoch of its last view; messages of a lower one are refused.
    pub epoch: u32,
    /// Map epoch at which its primary last changed.
    pub primary_since: u32,
    /// Who decides; `None`: nobody may, until one of the eligible is back or an operator decides.
    pub primary: Option<NodeId>,
    /// The other members.
    pub others: Vec<Member>,
    /// Who holds every acknowledged write: the primary, the backups, and of those that left the last. Only they can
    /// become primary. A backup that is about to leave is not among them any more ([`Group::seal`]).
    pub eligible: Vec<NodeId>,
    /// Map epoch at which it last lost what it held, as all that were eligible had been started anew; 0: never.
    pub lost: u32,
}

impl Group {
    /// All its members, the primary first.
    pub fn members(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.primary.into_iter().chain(self.others.iter().map(|member| member.node))
    }

    /// Its backups.
    pub fn backups(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.others.iter().filter(|member| member.standing == Standing::Backup).map(|member| member.node)
    }

    /// Whether a node is a backup that answers reads: it has a lease, and all that was acknowledged, unless that is
    /// pending there.
    pub fn answers(&self, node: NodeId) -> bool {
        self.backups().any(|id| id == node) && self.eligible.contains(&node)
    }

    /// The backups that answer no reads.
    pub fn sealed(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.backups().filter(|id| !self.eligible.contains(id))
    }

    /// A backup answers no reads from now on; whether it did until now. Writes go on to wait for it. When it has told
    /// that it goes by this view it may be taken out: it answers nothing any more that others change without it.
    pub(super) fn seal(&mut self, node: NodeId) -> bool {
        let answers = self.answers(node);
        if answers {
            self.eligible.retain(|id| *id != node);
            // Nobody has told yet that it has this view: it gets its epoch when the map is made.
            self.epoch = u32::MAX;
        }
        answers
    }

    /// The backups that are sealed answer reads again, but for some; whether there were any.
    pub(super) fn unseal(&mut self, but: impl Fn(NodeId) -> bool) -> bool {
        let sealed: Vec<NodeId> = self.sealed().filter(|id| !but(*id)).collect();
        self.eligible.extend(&sealed);
        !sealed.is_empty()
    }

    /// Whether nobody but this node has all.
    pub(super) fn is_only_at(&self, node: NodeId) -> bool {
        self.eligible == [node] && self.sealed().next().is_none()
    }

    /// Those whose copies count: the primary and the backups.
    pub fn full(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.primary.into_iter().chain(self.backups())
    }

    /// Its copies that count.
    pub fn copies(&self) -> usize {
        self.full().count()
    }
}

/// How the copies of a spread group follow the nodes that are up, while the herd holds no object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grows {
    /// They do not.
    No,
    /// K is one, two, three with as many nodes, and k as goes with it.
    ByItself,
    /// K is asked for, and kept once there are as many nodes; k goes with the copies that can be kept.
    ToCopies,
}

/// A spread group: 4,096 slots over replica groups that keep as many copies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spread {
    /// Its number, below [`SPREADS_MAX`], in the key of each collection it has; 0 is the default one.
    pub id: u16,
    /// What it promises.
    pub kind: Kind,
    /// How K and k follow the herd's nodes while it holds no object.
    pub grows: Grows,
    /// K: copies that are kept, 1 to 9.
    pub copies: u8,
    /// k: copies without which no write is acknowledged, 1 to K.
    pub needed: u8,
    /// Its replica groups, at least one, by number.
    pub groups: Vec<Group>,
    /// The number of each slot's group.
    pub slots: Box<[u16; SLOTS]>,
    /// The map epoch at which each slot came to its group.
    pub moved: Box<[u32; SLOTS]>,
}

impl Spread {
    /// With all slots in one group without members: the planner comes next.
    pub fn new(id: u16, kind: Kind, copies: u8, needed: u8) -> Self {
        let (slots, moved) = (Box::new([0; SLOTS]), Box::new([0; SLOTS]));
        Self { id, kind, grows: Grows::No, copies, needed, groups: vec![Group::default()], slots, moved }
    }

    /// The group of a slot below [`SLOTS`].
    #[inline]
    pub fn group_of(&self, slot: usize) -> &Group {
        &self.groups[usize::from(self.slots[slot])]
    }

    /// How many slots each group has, by number.
    pub fn slots_of_groups(&self) -> Vec<u64> {
        let mut slots = vec![0; self.groups.len()];
        self.slots.iter().for_each(|number| slots[usize::from(*number)] += 1);
        slots
    }

    /// The epoch at which the group or the primary of a slot below [`SLOTS`] last changed.
    #[inline]
    pub fn since(&self, slot: usize) -> u32 {
        self.moved[slot].max(self.group_of(slot).primary_since)
    }

    /// Numbers what differs from `old` with `epoch`, and gives the rest its old numbers.
    fn stamp(&mut self, old: Option<&Spread>, epoch: u32, renewed: &impl Fn(NodeId) -> bool) {
        let needed_as_before = old.is_some_and(|old| old.needed == self.needed);
        for (number, group) in self.groups.iter_mut().enumerate() {
            let before = old.and_then(|old| old.groups.get(number));
            let same_primary = |old: &&Group| old.primary == group.primary && !group.primary.is_some_and(renewed);
            let led = before.filter(same_primary);
            for member in &mut group.others {
                let was = before.and_then(|old| old.others.iter().find(|was| was.node == member.node));
                let syncs_on = led.is_some() && was.is_some_and(|was| was.standing == Standing::Syncing);
                let stayed = |_: &&Member| !renewed(member.node) && (member.standing != Standing::Syncing || syncs_on);
                member.since = was.filter(stayed).map_or(epoch, |was| was.since);
            }
            let same_view = |old: &&Group| old.others == group.others && old.sealed().eq(group.sealed());
            let viewed = led.filter(|old| needed_as_before && same_view(old));
            (group.primary_since, group.epoch) =
                (led.map_or(epoch, |old| old.primary_since), viewed.map_or(epoch, |old| old.epoch));
        }
        for slot in 0..SLOTS {
            let stayed = old.filter(|old| old.slots[slot] == self.slots[slot]);
            self.moved[slot] = stayed.map_or(epoch, |old| old.moved[slot]);
        }
    }
}

/// A collection of the herd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Collection {
    /// Its id, in which its spread group stands.
    pub id: CollectionId,
    /// Its name, unique.
    pub name: String,
    /// What it was created with.
    pub spec: Spec,
    /// Rises when all its objects go at once.
    pub generation: u32,
}

/// The parts of a map, to be changed; not checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Draft {
    /// The herd.
    pub herd: HerdId,
    /// The term of the warden that wrote it.
    pub term: u64,
    /// Counts changes of nodes, groups and slots; 1 to 2^24 - 1.
    pub epoch: u32,
    /// Counts changes of collections.
    pub revision: u64,
    /// The nodes, by rising id.
    pub nodes: Vec<Node>,
    /// The spread groups, by rising id.
    pub spreads: Vec<Spread>,
    /// The collections, by rising id.
    pub collections: Vec<Collection>,
    /// Times that an operator gave up what groups held, by rising epoch: the latest.
    pub given_up: Vec<GivenUp>,
    /// What operators have put on nodes, by rising group and node.
    pub placed: Vec<Placed>,
}

impl Draft {
    /// Nothing yet, to begin a herd or a decoding with.
    pub fn empty(herd: HerdId) -> Self {
        let (nodes, spreads, collections, given_up, placed) = Default::default();
        Self { herd, term: 0, epoch: 0, revision: 0, nodes, spreads, collections, given_up, placed }
    }

    /// A node by its id.
    pub fn node(&self, id: NodeId) -> Option<&Node> {
        self.nodes.binary_search_by_key(&id, |node| node.id).ok().map(|at| &self.nodes[at])
    }

    /// Whether the number was that of a node which is in the herd no more: numbers rise, and are given once.
    pub fn has_left(&self, id: NodeId) -> bool {
        self.node(id).is_none() && self.nodes.last().is_some_and(|node| node.id > id)
    }

    /// The protocol that all nodes of the herd speak: what many nodes see, such as the map, has nothing that is newer.
    pub fn protocol(&self) -> u16 {
        self.nodes.iter().map(|node| node.protocol).min().unwrap_or(1)
    }

    /// A spread group by its id.
    #[inline]
    pub fn spread(&self, id: u16) -> Option<&Spread> {
        self.spreads.iter().find(|spread| spread.id == id)
    }

    /// The replica group that holds an object, if there is such a spread group.
    pub fn group_of(&self, collection: CollectionId, object: ObjectId) -> Option<(GroupId, &Group)> {
        let spread = self.spread(collection.spread_group())?;
        let number = spread.slots[object.slot()];
        Some((GroupId { spread: spread.id, number }, &spread.groups[usize::from(number)]))
    }

    /// A replica group by its id.
    pub fn group(&self, id: GroupId) -> Option<&Group> {
        self.spread(id.spread)?.groups.get(usize::from(id.number))
    }

    /// The groups a node is a member of.
    pub fn groups_of(&self, node: NodeId) -> impl Iterator<Item = (GroupId, &Group)> + '_ {
        let all = self.spreads.iter().flat_map(|spread| {
            let id = move |number| GroupId { spread: spread.id, number: number as u16 };
            spread.groups.iter().enumerate().map(move |(number, group)| (id(number), group))
        });
        all.filter(move |(_, group)| group.members().any(|member| member == node))
    }

    /// A collection by its name.
    pub fn collection(&self, name: &str) -> Option<&Collection> {
        self.collections.iter().find(|collection| collection.name == name)
    }

    /// Numbers what differs from `old`.
    fn stamp(&mut self, old: &Draft) {
        (self.herd, self.epoch, self.revision) = (old.herd, old.epoch, old.revision);
        let incarnation = |draft: &Draft, id| draft.node(id).map(|node| node.incarnation);
        let renewed: BTreeSet<NodeId> =
            self.nodes.iter().map(|node| node.id).filter(|&id| incarnation(self, id) != incarnation(old, id)).collect();
        for spread in &mut self.spreads {
            spread.stamp(old.spread(spread.id), old.epoch + 1, &|node| renewed.contains(&node));
        }
        let is_as_before = self.nodes == old.nodes && self.spreads == old.spreads && self.placed == old.placed;
        self.epoch += u32::from(!is_as_before);
        self.revision += u64::from(self.collections != old.collections);
    }

    /// An error if the parts do not go together.
    fn check(&self) -> Result<(), MapError> {
        hold(self.epoch >= 1 && self.epoch < MAP_EPOCHS_END, "no such epoch", self.epoch)?;
        hold(self.revision < u64::MAX, "no such revision", self.revision)?;
        self.check_nodes()?;
        hold(self.spreads.len() <= SPREADS_MAX, "too many spread groups", self.spreads.len() as u64)?;
        hold(self.spreads.is_sorted_by(|a, b| a.id < b.id), "spread groups out of order", 0u32)?;
        self.spreads.iter().try_for_each(|spread| self.check_spread(spread))?;
        self.check_collections()?;
        self.check_given_up()?;
        self.check_placed()
    }

    fn check_given_up(&self) -> Result<(), MapError> {
        let all = &self.given_up;
        hold(all.len() <= GIVEN_UP_MAX, "too many times that something was given up", all.len() as u64)?;
        hold(all.is_sorted_by(|a, b| a.epoch < b.epoch), "what was given up out of order", 0u32)?;
        for it in all {
            hold(it.epoch <= self.epoch, "given up at a later epoch", it.epoch)?;
            hold(is_text(&it.who), "text of who gave up too long or not printable", it.epoch)?;
        }
        Ok(())
    }

    fn check_placed(&self) -> Result<(), MapError> {
        let all = &self.placed;
        hold(all.len() <= PLACED_MAX, "too many groups put on nodes", all.len() as u64)?;
        hold(all.is_sorted_by(|a, b| a.key() < b.key()), "what was put on nodes out of order", 0u32)?;
        for it in all {
            let id = u64::from(it.group.spread) << 16 | u64::from(it.group.number);
            hold(self.may_be_placed(it), "no such group or node to put it on", id)?;
            hold(it.from.is_none_or(|from| self.node(from).is_some()), "no such node to take it from, group", id)?;
        }
        Ok(())
    }

    fn check_nodes(&self) -> Result<(), MapError> {
        hold(self.nodes.len() <= NODES_MAX, "too many nodes", self.nodes.len() as u64)?;
        hold(self.nodes.is_sorted_by(|a, b| a.id < b.id), "nodes out of order", 0u32)?;
        let mut names = BTreeSet::new();
        for node in &self.nodes {
            let id = node.id.0.get();
            let texts = [&node.name, &node.host, &node.rack].into_iter().chain(&node.addresses);
            hold(texts.clone().all(|text| is_text(text)), "text of node too long or not printable", id)?;
            hold(!node.name.is_empty() && !node.host.is_empty(), "node without name or host", id)?;
            hold(node.protocol > 0, "no protocol of node", id)?;
            hold(node.addresses.len() <= NODE_ADDRESSES_MAX, "too many addresses of node", id)?;
            hold(names.insert(&node.name), "two nodes of one name, the second is", id)?;
        }
        Ok(())
    }

    fn check_spread(&self, spread: &Spread) -> Result<(), MapError> {
        let id = spread.id;
        hold(usize::from(id) < SPREADS_MAX, "no spread group has number", id)?;
        let copies = 1..=COPIES_MAX;
        hold(copies.contains(&spread.copies), "copies out of range in spread group", id)?;
        hold((1..=spread.copies).contains(&spread.needed), "more copies needed than kept in spread group", id)?;
        hold(spread.kind == Kind::Kept || spread.copies == 1, "a cache keeps one copy, not spread group", id)?;
        hold((1..=SLOTS).contains(&spread.groups.len()), "no or too many groups in spread group", id)?;
        let known = |&number: &u16| usize::from(number) < spread.groups.len();
        hold(spread.slots.iter().all(known), "slot without group in spread group", id)?;
        hold(spread.moved.iter().all(|&moved| moved <= self.epoch), "slot of a later epoch in spread group", id)?;
        for (number, group) in spread.groups.iter().enumerate() {
            self.check_group(group, u64::from(id) << 16 | number as u64)?;
        }
        Ok(())
    }

    fn check_group(&self, group: &Group, id: u64) -> Result<(), MapError> {
        let members: BTreeSet<NodeId> = group.members().collect();
        let eligible: BTreeSet<NodeId> = group.eligible.iter().copied().collect();
        hold(group.members().count() == members.len(), "a node twice in group", id)?;
        hold(group.eligible.len() == eligible.len(), "a node twice eligible in group", id)?;
        let most = members.len().max(eligible.len());
        hold(most <= GROUP_MEMBERS_MAX, "too many members of group", id)?;
        let known = |&node: &NodeId| self.node(node).is_some();
        hold(members.iter().chain(&eligible).all(known), "unknown node in group", id)?;
        hold(group.primary.is_none_or(|node| eligible.contains(&node)), "primary not eligible in group", id)?;
        let latest = group.others.iter().map(|member| member.since).max().unwrap_or(0).max(group.primary_since);
        hold([latest, group.epoch, self.epoch].is_sorted(), "epochs out of order in group", id)?;
        hold(group.lost <= self.epoch, "loss of a later epoch in group", id)
    }

    fn check_collections(&self) -> Result<(), MapError> {
        hold(self.collections.len() <= COLLECTIONS_MAX, "too many collections", self.collections.len() as u64)?;
        hold(self.collections.is_sorted_by(|a, b| a.id < b.id), "collections out of order", 0u32)?;
        let mut names = BTreeSet::new();
        for collection in &self.collections {
            let id = collection.id.0;
            hold(collection_name_is_valid(&collection.name), "bad name of collection", id)?;
            hold(names.insert(&collection.name), "two collections of one name, the second is", id)?;
            let spread = self.spread(collection.id.spread_group());
            let class = Some(&collection.spec.class).filter(|class| class.len() <= CLASS_MAX_BYTES);
            let class = class.and_then(|class| Class::parse(class));
            let class = class.ok_or(MapError::Invalid("bad class of collection", id))?;
            let fits = |spread: &Spread| class.evicts() == (spread.kind == Kind::Cache);
            hold(spread.is_some_and(fits), "no spread group of its kind for collection", id)?;
        }
        Ok(())
    }
}

/// The herd's map; all checks have passed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Map(Draft);

impl Map {
    /// The map of these parts as they are, numbers included.
    pub fn new(draft: Draft) -> Result<Self, MapError> {
        draft.check().map(|()| Self(draft))
    }

    /// A herd's first map: everything in it is of `epoch`.
    pub fn first(mut draft: Draft, epoch: u32) -> Result<Self, MapError> {
        let mut before = Draft::empty(draft.herd);
        before.epoch = epoch.checked_sub(1).ok_or(MapError::Invalid("no such epoch", 0))?;
        draft.stamp(&before);
        Self::new(draft)
    }

    /// The map after a change; what has changed gets its numbers, and the whole is checked.
    pub fn next(&self, change: impl FnOnce(&mut Draft)) -> Result<Self, MapError> {
        let mut draft = self.0.clone();
        change(&mut draft);
        draft.forget_placed();
        draft.stamp(self);
        Self::new(draft)
    }
}

impl Deref for Map {
    type Target = Draft;

    fn deref(&self) -> &Draft {
        &self.0
    }
}

/// An error unless `holds`.
fn hold(holds: bool, what: &'static str, which: impl Into<u64>) -> Result<(), MapError> {
    if holds { Ok(()) } else { Err(MapError::Invalid(what, which.into())) }
}

/// Whether it may stand in a map: short, and nothing that a terminal would obey.
fn is_text(text: &str) -> bool {
    text.len() <= MAP_TEXT_MAX_BYTES && !text.chars().any(char::is_control)
}
