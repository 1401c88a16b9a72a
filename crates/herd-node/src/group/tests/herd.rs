//! A herd of nodes with one group or several, and operations asked of their parts.

use crate::apply::{Kept, Snapshot};
use crate::context::Context;
use crate::group::{self, Done, Key, Operation, Origin, Told};
use crate::link::tests::world::{HERD, World, address, member, node};
use crate::request::{Request, Value};
use herd_core::collection::Spec;
use herd_core::entry::Version;
use herd_core::key::CollectionId;
use herd_core::limits::SLOTS;
use herd_core::op::{Given, Op};
use herd_core::place::{Collection, Draft, GroupId, Grows, Kind, Life, Map, Standing};
use herd_core::replica::Want;
use herd_core::replica::window::RequestId;
use herd_core::wire::{Asked, encode_op, value_of};
use herd_core::{Error, ErrorKind};
use herd_store::{Body, SlotCursor, SlotItem};
use std::collections::BTreeMap;
use std::sync::Arc;

/// See the module.
pub(super) struct Herd {
    pub(super) world: World,
    pub(super) map: Arc<Map>,
    asked: u64,
    /// When what is asked next must have begun.
    pub(super) until_ms: u64,
    told: BTreeMap<u64, Told>,
}

fn first_map(nodes: u32, copies: u8) -> Map {
    let mut draft = Draft::empty(HERD);
    draft.nodes = (1..=nodes).map(|number| member(number, address(number).to_string())).collect();
    draft.add_spread(Kind::Kept, copies, Grows::No).expect("there is room");
    let spec = Spec::of("ram:1");
    draft.collections.push(Collection { id: CollectionId::DEFAULT, name: "default".into(), spec, generation: 0 });
    draft.term = 1;
    // Above what a store without a map gives its versions.
    Map::first(draft, 1 << 23).expect("a valid map")
}

impl Herd {
    pub(super) fn new(nodes: u32, copies: u8) -> Self {
        Self::with(nodes, copies, |_| 64 << 20)
    }

    /// Of nodes that have so much memory.
    pub(super) fn with(nodes: u32, copies: u8, memory_bytes: impl Fn(u32) -> u64) -> Self {
        let map = Arc::new(first_map(nodes, copies));
        let mut herd =
            Self { world: World::new(nodes as usize), map, asked: 0, until_ms: u64::MAX, told: BTreeMap::new() };
        for number in 1..=nodes {
            herd.world.memory_bytes = memory_bytes(number);
            herd.world.start(number);
        }
        herd.tell_map();
        herd
    }

    /// Nodes that are linked, and have no map of their groups yet.
    pub(super) fn linked(nodes: u32, copies: u8) -> Self {
        let map = Arc::new(first_map(nodes, copies));
        let mut herd =
            Self { world: World::new(nodes as usize), map, asked: 0, until_ms: u64::MAX, told: BTreeMap::new() };
        for number in 1..=nodes {
            herd.world.start(number);
            let map = herd.map.clone();
            herd.world.machine(number).adopt(&map, true);
        }
        herd.settle();
        herd
    }

    /// All that run go by the map.
    pub(super) fn tell_map(&mut self) {
        for number in self.running() {
            self.tell_map_to(number);
        }
        self.settle();
    }

    pub(super) fn tell_map_to(&mut self, number: u32) {
        let map = self.map.clone();
        let machine = self.world.machine(number);
        let me = Life { node: node(number), incarnation: 1 };
        machine.shared.take_map(me, &map, true).expect("it may be taken");
        machine.adopt(&map, true);
    }

    pub(super) fn change_map(&mut self, change: impl FnOnce(&mut Draft)) {
        self.map = Arc::new(self.map.next(change).expect("a valid map"));
    }

    pub(super) fn running(&self) -> Vec<u32> {
        let all = self.world.machines.iter().enumerate();
        all.filter(|(_, machine)| machine.is_some()).map(|(at, _)| at as u32 + 1).collect()
    }

    /// Until nothing moves; notes what was told.
    pub(super) fn settle(&mut self) {
        self.world.settle();
        self.hear();
    }

    pub(super) fn pass(&mut self, ms: u64) {
        self.world.pass(ms);
        self.hear();
    }

    /// Both ends of a cable are told that the connection is lost.
    pub(super) fn break_link(&mut self, cable: usize) {
        let (ends, cable) = self.world.unplug(cable);
        for (end, peer) in ends.into_iter().zip(cable.into_ends()) {
            peer.reset();
            self.world.note(end, &peer);
        }
    }

    /// What primaries asked of the warden since.
    pub(super) fn wants(&mut self) -> Vec<(GroupId, Want)> {
        let running = self.running();
        let take = |number: u32| std::mem::take(&mut *self.world.machine(number).told.wants.lock().expect("no panic"));
        running.into_iter().flat_map(take).collect()
    }

    pub(super) fn hear(&mut self) {
        for number in self.running() {
            for (number, told) in std::mem::take(&mut self.cx(number).parts.tests) {
                assert!(self.told.insert(number, told).is_none(), "operation {number} was answered twice");
            }
        }
    }

    pub(super) fn cx(&mut self, number: u32) -> &mut Context {
        &mut self.world.machine(number).engine.service_mut().cx
    }

    pub(super) fn key(&mut self, name: &[u8]) -> Key {
        let first = self.running()[0];
        let shared = &self.cx(first).shared;
        Key { of: shared.store.key(&shared.default, name), generation: shared.default.generation() }
    }

    pub(super) fn group(&mut self, name: &[u8]) -> GroupId {
        let slot = self.key(name).of.slot();
        GroupId { spread: 0, number: self.map.spreads[0].slots[slot] }
    }

    /// The node that decides on an object.
    pub(super) fn primary(&mut self, name: &[u8]) -> u32 {
        let group = self.group(name);
        self.map.group(group).and_then(|group| group.primary).expect("a primary").0.get()
    }

    /// Asks an operation of its primary, and goes no further; its number.
    pub(super) fn begin(&mut self, name: &[u8], op: &Op<'_, Arc<Body>>) -> u64 {
        let id = self.asked + 1;
        let to = self.primary(name);
        self.begin_as(to, name, op, (id, 0))
    }

    /// As [`Herd::begin`], under this id, of this node.
    pub(super) fn begin_as(
        &mut self,
        to: u32,
        name: &[u8],
        op: &Op<'_, Arc<Body>>,
        (id, first_epoch): (u64, u32),
    ) -> u64 {
        self.asked += 1;
        let until_ms = self.until_ms;
        let (origin, mut scratch) = (Origin::Test(self.asked), Vec::new());
        let id = RequestId { client: 7, sequence: id };
        let asked = Asked { first_epoch, ..Asked::new(id, 0) };
        let cx = self.cx(to);
        let (header, fields) = encode_op(op, name, &asked, cx.now.unix_ms, &mut scratch).expect("it goes over links");
        let value = value_of(op).map_or_else(Value::none, Value::of);
        let request = Request::new(header, &fields, value).expect("it fits");
        let op = Operation::new(Arc::new(request), (asked, None), origin).until(until_ms);
        let c = &cx.shared.default;
        let key = Key { of: cx.shared.store.key(c, name), generation: c.generation() };
        let group = group::group_of(cx, &key);
        group::ask(cx, key, group, op);
        self.asked
    }

    /// What an operation came to, if it has ended.
    pub(super) fn told(&mut self, number: u64) -> Option<Result<Done, Error>> {
        self.told.remove(&number).map(|told| match told {
            Told::Done(done) => Ok(*done),
            Told::Put(version) => panic!("{version} of a put that began at once, and tests ask none"),
            Told::Failed(error, _) => Err(error),
            Told::Again { may_be_done: false } => Err(Error::new(ErrorKind::Unreachable, "another node decides")),
            Told::Again { may_be_done: true } => Err(Error::new(ErrorKind::OutcomeUnknown, "another node decides")),
        })
    }

    /// Asks an operation and waits for its end.
    pub(super) fn ask(&mut self, name: &[u8], op: &Op<'_, Arc<Body>>) -> Result<Done, Error> {
        let number = self.begin(name, op);
        self.settle();
        self.told(number).expect("it has ended")
    }

    /// A value as an operation takes it.
    pub(super) fn given<'v>(&mut self, name: &[u8], bytes: &'v [u8]) -> Given<'v, Arc<Body>> {
        self.try_given(name, bytes).expect("there is room")
    }

    /// As [`Herd::given`]; `None`: there is no room for it.
    pub(super) fn try_given<'v>(&mut self, name: &[u8], bytes: &'v [u8]) -> Option<Given<'v, Arc<Body>>> {
        if bytes.len() <= herd_core::limits::INLINE_MAX_BYTES {
            return Some(Given::Small(bytes, None));
        }
        let to = self.primary(name);
        let cx = self.cx(to);
        let body = cx.shared.store.body_of(&cx.shared.default, name, &[bytes], cx.now).ok()?;
        Some(Given::Large(Arc::new(body)))
    }

    /// Version and value of an object as it is committed at a node.
    pub(super) fn at(&mut self, number: u32, name: &[u8]) -> Option<(Version, Vec<u8>)> {
        let cx = self.cx(number);
        let entry = cx.shared.store.entry(&cx.shared.default, name, cx.now);
        let found = entry.found_committed().as_ref().map(Snapshot::of);
        drop(entry);
        found.map(|found| (found.head.version, bytes_of(&found.value)))
    }

    /// All that a node has of the slots of the default spread group, and how much is pending there.
    pub(super) fn items(&mut self, number: u32) -> (Vec<SlotItem>, usize) {
        let cx = self.cx(number);
        let (store, mut items) = (&cx.shared.store, Vec::new());
        for slot in 0..SLOTS {
            let mut cursor = SlotCursor::new(0, slot);
            while !cursor.is_at_end() {
                store.slot_turn(&mut cursor, &mut items, usize::MAX, cx.now);
            }
        }
        let pending = store.pendings(0, |_| true, cx.now).len();
        (items, pending)
    }

    /// Each slot's members hold the same, and nothing is pending.
    pub(super) fn check_equal(&mut self) {
        let map = self.map.clone();
        let all: Vec<(u32, Vec<SlotItem>)> = self
            .running()
            .into_iter()
            .map(|number| {
                let (items, pending) = self.items(number);
                assert_eq!(pending, 0, "at node {number}");
                (number, items)
            })
            .collect();
        for (at, group) in map.spreads[0].groups.iter().enumerate() {
            let of_group = |items: &[SlotItem]| -> Vec<SlotItem> {
                let is_its = |item: &&SlotItem| usize::from(map.spreads[0].slots[item.key.slot()]) == at;
                items.iter().filter(is_its).cloned().collect()
            };
            let backups = group.others.iter().filter(|member| member.standing == Standing::Backup);
            let members: Vec<u32> =
                group.primary.iter().copied().chain(backups.map(|member| member.node)).map(|id| id.0.get()).collect();
            let mut held = all.iter().filter(|(number, _)| members.contains(number)).map(|(_, items)| of_group(items));
            let Some(first) = held.next() else { continue };
            assert!(held.all(|items| items == first), "members of group {at} differ");
            for item in first {
                let name = item.key.name.clone();
                let states: Vec<_> = members
                    .iter()
                    .filter(|number| self.running().contains(number))
                    .copied()
                    .collect::<Vec<_>>()
                    .into_iter()
                    .map(|number| self.at(number, &name))
                    .collect();
                assert!(states.windows(2).all(|pair| pair[0] == pair[1]), "{:?}", item.key);
            }
        }
    }
}

pub(super) fn bytes_of(value: &Kept) -> Vec<u8> {
    match value {
        Kept::Small(bytes, _) => bytes.to_vec(),
        Kept::Large(body) => {
            let mut bytes = Vec::new();
            herd_core::entry::Value::Body(&**body).copy(0, body.len(), &mut bytes);
            bytes
        }
    }
}

/// The value that an operation showed.
pub(super) fn shown(done: &Done) -> Option<Vec<u8>> {
    done.object.as_ref().map(|object| bytes_of(&object.value))
}
