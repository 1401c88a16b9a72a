//! Groups of real stores: `herd_core::replica` over this store, by chance and from a seed, in small memory. What the
//! rules promise in every order of events is held by the checker of the core; here the store is.

use super::*;
use herd_core::entry::COUNTER_BITS;
use herd_core::limits::INLINE_MAX_BYTES;
use herd_core::replica::{
    Change, Copies, Effect, GroupEpoch, Member, Message, NodeId, Outcome, Part, Pending, Refusal, Standing, State,
    View, Want,
};
use std::collections::{BTreeMap, VecDeque};
use std::num::NonZeroU32;

/// A change of an object's value.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Edit {
    Gone,
    Whole(Vec<u8>),
    /// These bytes from there on, zeros before them where there are none.
    Range(usize, Vec<u8>),
}

impl Change for Edit {
    fn removes(&self) -> bool {
        *self == Edit::Gone
    }

    fn size_bytes(&self) -> u64 {
        match self {
            Edit::Gone => 0,
            Edit::Whole(bytes) | Edit::Range(_, bytes) => bytes.len() as u64,
        }
    }
}

impl Edit {
    fn over(&self, before: Option<Vec<u8>>) -> Option<Vec<u8>> {
        match self {
            Edit::Gone => None,
            Edit::Whole(bytes) => Some(bytes.clone()),
            Edit::Range(from, bytes) => {
                let mut all = before.unwrap_or_default();
                all.resize(all.len().max(from + bytes.len()), 0);
                all[*from..from + bytes.len()].copy_from_slice(bytes);
                Some(all)
            }
        }
    }

    fn of(state: Option<Vec<u8>>) -> Self {
        state.map_or(Edit::Gone, Edit::Whole)
    }
}

/// A group's objects in a store: all of one collection.
struct Group {
    store: Arc<Store>,
    c: Collection,
}

impl Group {
    fn new(memory_bytes: u64) -> Self {
        // No wall clock in versions: their prefix is the epoch since which their primary decides.
        let hash_key = HashKey([3; 16]);
        let config =
            Config { node: "n".into(), memory_bytes, threads: 2, object_max_bytes: 1 << 30, hash_key, start_ms: 0 };
        let store = Store::new(&config).expect("maps");
        let c = store.create("r", Spec { ordered: true, ..spec("ram:1") }).expect("new");
        store.set_seats(0, |_| (Seat::Led, 0));
        Self { store, c }
    }

    fn entry<'e>(&'e self, key: &'e Key) -> Entry<'e> {
        self.store.entry(&self.c, &key.name, at(1))
    }

    fn state(&self, key: &Key) -> Option<Vec<u8>> {
        self.entry(key).found_committed().map(|found| bytes_of(&found))
    }

    /// Keeps a value in the store until `keep` has it in the object.
    fn keep(
        &self,
        key: &Key,
        bytes: &[u8],
        keep: impl FnOnce(&mut Entry<'_>, &NewObject<'_>) -> Result<(), Error>,
    ) -> Result<(), Refusal> {
        let value = if bytes.len() <= INLINE_MAX_BYTES {
            Given::Small(bytes, None)
        } else {
            let body = self.store.body_of(&self.c, &key.name, &[bytes], at(1));
            Given::Large(Arc::new(body.map_err(|_| Refusal::Full)?))
        };
        let new = NewObject::of(value);
        let kept = keep(&mut self.entry(key), &new);
        kept.map_err(|error| {
            assert_eq!(error.kind, ErrorKind::Full, "{}", error.text);
            Refusal::Full
        })
    }

    fn clear(&self) {
        for slot in 0..SLOTS {
            let mut cursor = SlotCursor::new(0, slot);
            while !cursor.is_at_end() {
                self.store.clear_turn(&mut cursor, usize::MAX, at(1), |_| true);
            }
        }
    }

    fn items(&self) -> Vec<SlotItem> {
        let mut items = Vec::new();
        for slot in (0..SLOTS).filter(|slot| self.store.slot(0, *slot).entries > 0) {
            let mut cursor = SlotCursor::new(0, slot);
            while !cursor.is_at_end() {
                self.store.slot_turn(&mut cursor, &mut items, usize::MAX, at(1));
            }
        }
        items
    }
}

impl Copies<Key, Edit> for Group {
    fn state(&self, key: &Key) -> State {
        let entry = self.entry(key);
        State { committed: entry.committed(), pending: entry.pending(), is_over: false }
    }

    fn pendings(&self) -> Vec<(Key, Pending)> {
        self.store.pendings(0, |_| true, at(1))
    }

    fn next_version(&mut self, key: &Key, since: GroupEpoch) -> u64 {
        self.entry(key).take_version(u64::from(since) << COUNTER_BITS)
    }

    fn prepare(&mut self, key: &Key, write: Pending, change: &Edit) -> Result<(), Refusal> {
        match change.over(self.state(key)) {
            Some(bytes) => self.keep(key, &bytes, |entry, new| entry.prepare(write.version, write.base, new)),
            None => {
                let done = self.entry(key).prepare_remove(write.version, write.base, None);
                assert!(done.is_ok(), "one pending write, and a removal needs no room");
                Ok(())
            }
        }
    }

    fn end(&mut self, key: &Key, version: u64, is_committed: bool) {
        let mut entry = self.entry(key);
        if is_committed {
            entry.commit(version)
        } else {
            entry.abort(version)
        };
    }

    fn whole(&self, key: &Key) -> Edit {
        let entry = self.entry(key);
        match entry.pending() {
            Some(_) => Edit::of(entry.found_pending().map(|found| bytes_of(&found))),
            None => Edit::of(entry.found_committed().map(|found| bytes_of(&found))),
        }
    }

    fn whole_committed(&self, key: &Key) -> Edit {
        Edit::of(self.state(key))
    }

    fn has_token(&self, _: &Key) -> bool {
        false
    }

    fn next_key(&self, after: Option<&Key>) -> Option<Key> {
        let (mut items, first) = (Vec::new(), after.map_or(0, Key::slot));
        for slot in (first..SLOTS).filter(|slot| *slot == first || self.store.slot(0, *slot).entries > 0) {
            let from = after.filter(|_| slot == first);
            let mut cursor = from.map_or(SlotCursor::new(0, slot), |key| self.store.cursor_at(key));
            while !cursor.is_at_end() {
                self.store.slot_turn(&mut cursor, &mut items, 100, at(1));
                if let Some(item) = items.drain(..).find(|item| after.is_none_or(|after| item.key > *after)) {
                    return Some(item.key);
                }
            }
        }
        None
    }

    fn copy(&mut self, key: &Key, version: u64, state: &Edit) -> Result<(), Refusal> {
        let Edit::Whole(bytes) = state else { unreachable!("an entry that is copied has a value") };
        self.keep(key, bytes, |entry, new| entry.copy(version, new))
    }
}

type Asked = (u64, Edit);
type Post = Message<Key, Edit>;

struct Node {
    part: Part<Key, Edit, Asked>,
    group: Group,
}

/// Three or four nodes, all linked, over links that keep their order; they neither die nor break here.
struct World {
    nodes: BTreeMap<NodeId, Node>,
    pipes: BTreeMap<(NodeId, NodeId), VecDeque<Post>>,
    view: View,
    random: Random,
    asked: u64,
    answers: u64,
    /// The highest version of each object that was acknowledged.
    acked: BTreeMap<Key, u64>,
    seen: BTreeMap<&'static str, u32>,
}

const KEYS: u64 = 60;
/// The first; versions of a store that is new lie below it.
const EPOCH: GroupEpoch = 10;

fn node(id: u32) -> NodeId {
    NodeId(NonZeroU32::new(id).expect("not 0"))
}

impl World {
    fn new(seed: u64) -> Self {
        let member = |id| Member { node: node(id), standing: Standing::Backup, since: EPOCH };
        let members = vec![member(2), member(3)];
        let view = View { epoch: EPOCH, primary: node(1), since: EPOCH, members, needed: 2, lost: 0 };
        let of = |id| (node(id), Node { part: Part::new(node(id)), group: Group::new(8 << 20) });
        let mut world = Self {
            nodes: (1..=4).map(of).collect(),
            pipes: BTreeMap::new(),
            view,
            random: Random(seed),
            asked: 0,
            answers: 0,
            acked: BTreeMap::new(),
            seen: BTreeMap::new(),
        };
        // One has less memory than the others.
        let short = &world.nodes[&node(3)].group.store;
        short.arena.charge(11 << 19);
        for a in 1..=4 {
            for b in (1..=4).filter(|b| *b != a) {
                world.with(node(a), |at| at.part.link_up(node(b), 1));
            }
        }
        world.tell();
        world
    }

    fn saw(&mut self, what: &'static str) {
        *self.seen.entry(what).or_default() += 1;
    }

    fn with(&mut self, id: NodeId, f: impl FnOnce(&mut Node)) {
        let mut node = self.nodes.remove(&id).expect("it lives");
        f(&mut node);
        loop {
            let effects = node.part.effects();
            if effects.is_empty() {
                break;
            }
            effects.into_iter().for_each(|effect| self.carry_out(id, &mut node, effect));
        }
        self.nodes.insert(id, node);
    }

    fn carry_out(&mut self, id: NodeId, node: &mut Node, effect: Effect<Key, Edit, Asked>) {
        match effect {
            Effect::Send(to, _, message) => self.pipes.entry((id, to)).or_default().push_back(message),
            Effect::Decide(key, ops) => self.decide(node, key, ops),
            Effect::Answer(ops, outcome) => self.answered(&ops, outcome),
            Effect::Want(Want::Joining(peer)) => self.stand(peer, Some(Standing::Joining)),
            Effect::Want(Want::Removed(peer)) => self.stand(peer, None),
            Effect::Clear => {
                node.group.clear();
                node.part.cleared(&mut node.group);
            }
            Effect::TookOver(_) => {}
            Effect::Close(peer) => panic!("{id:?} says {peer:?} broke the rules"),
        }
    }

    fn decide(&mut self, node: &mut Node, key: Key, ops: Vec<Asked>) {
        let before = node.group.state(&key);
        let after = ops.iter().fold(before.clone(), |state, (_, edit)| edit.over(state));
        let change = match (ops.as_slice(), &after) {
            ([(_, edit)], Some(_)) => Some(edit.clone()),
            (_, None) => before.map(|_| Edit::Gone),
            (_, Some(bytes)) => Some(Edit::Whole(bytes.clone())),
        };
        self.answers += if change.is_none() && node.part.is_open() { ops.len() as u64 } else { 0 };
        node.part.begin(&mut node.group, key, ops, change);
    }

    fn answered(&mut self, ops: &[Asked], outcome: Outcome) {
        self.answers += ops.len() as u64;
        self.saw(match outcome {
            Outcome::Done(_) => "done",
            Outcome::Refused(_, Refusal::Full) => "full",
            _ => "not told",
        });
        if let Outcome::Done(version) = outcome {
            let c = &self.nodes.values().next().expect("others live").group;
            let key = c.store.key(&c.c, &ops[0].0.wrapping_rem(KEYS).to_le_bytes());
            let acked = self.acked.entry(key).or_default();
            *acked = version.max(*acked);
        }
    }

    /// The warden's next view, with a member in another standing, or gone.
    fn stand(&mut self, peer: NodeId, standing: Option<Standing>) {
        let Some(at) = self.view.members.iter().position(|member| member.node == peer) else { return };
        self.view.epoch += 1;
        match standing {
            Some(standing) => self.view.members[at].standing = standing,
            None => drop(self.view.members.remove(at)),
        }
        self.saw(if standing.is_some() { "joined" } else { "copy refused" });
    }

    fn tell(&mut self) {
        let view = self.view.clone();
        let ids: Vec<NodeId> = self.nodes.keys().copied().collect();
        for id in ids {
            let view = view.clone();
            self.with(id, |node| node.part.take(&mut node.group, view));
        }
    }

    /// What must happen; false: nothing is left.
    fn go_on(&mut self) -> bool {
        let known = self.nodes[&self.view.primary].part.view().epoch;
        let pipes: Vec<_> = self.pipes.iter().filter(|(_, pipe)| !pipe.is_empty()).map(|(pair, _)| *pair).collect();
        let joining = self.view.members.iter().find(|member| member.standing == Standing::Joining);
        let joining = joining.map(|member| member.node);
        if known < self.view.epoch {
            self.tell();
        } else if !pipes.is_empty() {
            let (from, to) = pipes[self.random.below(pipes.len() as u64) as usize];
            let message = self.pipes.get_mut(&(from, to)).and_then(VecDeque::pop_front).expect("it is not empty");
            self.with(to, |node| node.part.receive(&mut node.group, from, 1, message));
        } else if let Some(peer) = joining {
            self.stand(peer, Some(Standing::Backup));
        } else {
            return self.settle();
        }
        true
    }

    fn settle(&mut self) -> bool {
        let primary = self.view.primary;
        let owed = self
            .view
            .members
            .iter()
            .map(|member| member.node)
            .find(|peer| self.nodes[&primary].part.owes_settle(*peer));
        owed.into_iter().for_each(|peer| self.with(primary, |node| node.part.settle(peer)));
        owed.is_some()
    }

    fn ask(&mut self) {
        self.asked += 1;
        let (id, len) = (self.asked, self.random.below(6_000) as usize);
        let edit = match self.random.below(6) {
            0 => Edit::Gone,
            1 => Edit::Range(self.random.below(70_000) as usize, value(id, len)),
            2 => Edit::Whole(value(id, len * 20)),
            _ => Edit::Whole(value(id, len)),
        };
        let primary = self.view.primary;
        self.with(primary, |node| {
            let key = node.group.store.key(&node.group.c, &(id % KEYS).to_le_bytes());
            node.part.ask(key, (id, edit));
        });
    }

    /// Another primary, or a member that leaves and comes again.
    fn turn(&mut self) {
        self.view.epoch += 1;
        let epoch = self.view.epoch;
        let is_backup = |member: &&Member| member.standing == Standing::Backup;
        let backups: Vec<NodeId> = self.view.members.iter().filter(is_backup).map(|member| member.node).collect();
        let without = |members: &mut Vec<Member>, id| members.retain(|member| member.node != id);
        match self.random.below(3) {
            0 if backups.len() > 1 => {
                let next = backups[self.random.below(backups.len() as u64) as usize];
                let old = std::mem::replace(&mut self.view.primary, next);
                self.view.since = epoch;
                without(&mut self.view.members, next);
                self.view.members.push(Member { node: old, standing: Standing::Backup, since: epoch });
                for member in self.view.members.iter_mut().filter(|member| member.standing == Standing::Syncing) {
                    member.since = epoch;
                }
                self.saw("another primary");
            }
            1 if backups.len() > 1 => without(&mut self.view.members, backups[0]),
            _ => {
                let is_out = |id: &&NodeId| **id != self.view.primary && self.view.member(**id).is_none();
                let out: Vec<NodeId> = self.nodes.keys().filter(is_out).copied().collect();
                if let Some(id) = out.first() {
                    self.view.members.push(Member { node: *id, standing: Standing::Syncing, since: epoch });
                }
            }
        }
        self.tell();
    }

    /// Nothing is pending, and all members have the same.
    fn check_quiet(&self) {
        let primary = &self.nodes[&self.view.primary];
        assert!(primary.part.is_open() && self.asked == self.answers, "{} of {} answered", self.answers, self.asked);
        let items = primary.group.items();
        for id in std::iter::once(&self.view.primary).chain(self.view.members.iter().map(|member| &member.node)) {
            let group = &self.nodes[id].group;
            assert_eq!(group.pendings(), [], "{id:?}");
            assert!(group.items() == items, "{id:?} has other objects, or versions");
            for item in &items {
                assert!(group.state(&item.key) == primary.group.state(&item.key), "{id:?}: {:?}", item.key);
            }
            let listed = group.store.list(&group.c, b"", None, usize::MAX, at(1)).len();
            let objects = group.store.counts(&group.c).objects as usize;
            assert_eq!((listed, objects), (items.len(), items.len()), "{id:?}");
        }
        for item in &items {
            assert!(self.acked.get(&item.key).is_none_or(|acked| *acked <= item.version), "{:?} fell", item.key);
        }
    }
}

/// `HERD_STORE_SEEDS=1000` runs more.
#[test]
fn members_of_a_group_hold_the_same_whatever_one_of_them_refuses() {
    let seeds = std::env::var("HERD_STORE_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(6);
    let mut seen: BTreeMap<&'static str, u32> = BTreeMap::new();
    for seed in 1..=seeds {
        println!("seed {seed}");
        let mut world = World::new(seed);
        for _ in 0..6_000 {
            match world.random.below(200) {
                0 => world.turn(),
                1..60 => world.ask(),
                _ => drop(world.go_on()),
            }
        }
        while world.go_on() {}
        world.check_quiet();
        world.seen.iter().for_each(|(what, times)| *seen.entry(what).or_default() += times);
    }
    println!("{seen:?}");
    for what in ["done", "full", "joined", "another primary"] {
        assert!(seen.get(what).is_some_and(|times| *times > 0), "{what}: never happened");
    }
}
