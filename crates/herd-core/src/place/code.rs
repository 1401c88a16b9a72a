//! The bytes of a map (FORMATS.md, "The map"): the difference between two maps. A whole map is the difference from
//! nothing, so that there is one writer and one reader.
//!
//! A reader takes bytes from anybody: it is bounded by their number and by the limits of a map, never panics, and what
//! it gives has passed all checks.

use super::map::{
    Collection, Draft, Group, Grows, HerdId, Kind, Map, Member, Node, NodeId, NodeState, Spread, Standing,
};
use super::{GivenUp, GroupId, MapError, Placed};
use crate::checksum::crc32c;
use crate::collection::Spec;
use crate::key::CollectionId;
use crate::limits::{
    COLLECTIONS_MAX, GIVEN_UP_MAX, MAP_MAX_BYTES, NODES_MAX, PLACED_MAX, SLOTS, SPEC_MAX_BYTES, SPREADS_MAX,
};
use std::num::NonZeroU32;

const MAGIC: [u8; 7] = *b"HERDMAP";
const VERSION: u8 = 1;
const CRC_BYTES: usize = 4;
/// Bytes of an item of [`SPREADS`].
const SPREAD_BYTES: usize = 8;

// Sections, in the order they are written: what goes before what comes, and what is named before who names it.
const NODES_GONE: u8 = 1;
const NODES: u8 = 2;
const SPREADS_GONE: u8 = 3;
const SPREADS: u8 = 4;
const GROUPS: u8 = 5;
const SLOT_RUNS: u8 = 6;
const COLLECTIONS_GONE: u8 = 7;
const COLLECTIONS: u8 = 8;
const LOSSES: u8 = 9;
const PROTOCOLS: u8 = 10;
/// What the release after this one adds, once all nodes are of it.
const NEXT: u8 = 11;
const GIVEN_UP: u8 = 12;
const PLACED: u8 = 13;

impl Map {
    /// The whole map.
    pub fn encode(&self) -> Vec<u8> {
        self.encode_since(&Draft::empty(self.herd))
    }

    /// What makes this map of `old`, an earlier one of the same herd.
    pub fn encode_since(&self, old: &Draft) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend_from_slice(&MAGIC);
        out.push(VERSION);
        out.extend_from_slice(&self.herd.0);
        for (epoch, revision) in [(old.epoch, old.revision), (self.epoch, self.revision)] {
            put_u32(&mut out, epoch);
            put_u64(&mut out, revision);
        }
        put_u64(&mut out, self.term);
        write_nodes(&mut out, old, self);
        write_spreads(&mut out, old, self);
        write_collections(&mut out, old, self);
        section(&mut out, LOSSES, |out| write_losses(out, old, self));
        section(&mut out, PROTOCOLS, |out| write_protocols(out, old, self));
        if cfg!(herd_next) && self.protocol() > 1 {
            section(&mut out, NEXT, |out| put_u32(out, self.epoch));
        }
        section(&mut out, GIVEN_UP, |out| write_given_up(out, old, self));
        section(&mut out, PLACED, |out| write_placed(out, old, self));
        let crc = crc32c(&out);
        put_u32(&mut out, crc);
        out
    }

    /// A whole map.
    pub fn decode(bytes: &[u8]) -> Result<Map, MapError> {
        read(bytes, Draft::empty)
    }

    /// The map that `bytes` make of this one; [`MapError::OtherBase`] if they follow another.
    pub fn decode_since(&self, bytes: &[u8]) -> Result<Map, MapError> {
        read(bytes, |_| Draft::clone(self))
    }
}

fn put_u16(out: &mut Vec<u8>, value: u16) {
    out.extend_from_slice(&value.to_le_bytes());
}

fn put_u32(out: &mut Vec<u8>, value: u32) {
    out.extend_from_slice(&value.to_le_bytes());
}

fn put_u64(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(&value.to_le_bytes());
}

/// Appends a count; the checks of a map keep it below 256.
fn put_count(out: &mut Vec<u8>, count: usize) {
    out.push(u8::try_from(count).expect("the limits of a map are below 256 here"));
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    put_count(out, text.len());
    out.extend_from_slice(text.as_bytes());
}

/// Appends a section, unless it is empty.
fn section(out: &mut Vec<u8>, tag: u8, write: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.push(tag);
    put_u32(out, 0);
    let from = out.len();
    write(out);
    match out.len() - from {
        0 => out.truncate(start),
        bytes => {
            let bytes = u32::try_from(bytes).expect("a map is far below 4 GiB");
            out[start + 1..from].copy_from_slice(&bytes.to_le_bytes());
        }
    }
}

/// The keys that are in `old` alone.
fn gone<'a, T, K: Ord>(old: &'a [T], new: &'a [T], key: impl Fn(&T) -> K + Copy + 'a) -> impl Iterator<Item = K> + 'a {
    old.iter().map(key).filter(move |of| new.binary_search_by_key(of, key).is_err())
}

/// The items that are not in `old` as they are.
fn came<'a, T: PartialEq, K: Ord>(
    old: &'a [T],
    new: &'a [T],
    key: impl Fn(&T) -> K + 'a,
) -> impl Iterator<Item = &'a T> + 'a {
    new.iter().filter(move |item| old.binary_search_by_key(&key(item), &key).ok().is_none_or(|at| &old[at] != *item))
}

fn write_nodes(out: &mut Vec<u8>, old: &Draft, new: &Draft) {
    section(out, NODES_GONE, |out| {
        gone(&old.nodes, &new.nodes, |node| node.id).for_each(|id| put_u32(out, id.0.get()))
    });
    section(out, NODES, |out| came(&old.nodes, &new.nodes, |node| node.id).for_each(|node| write_node(out, node)));
}

fn write_node(out: &mut Vec<u8>, node: &Node) {
    put_u32(out, node.id.0.get());
    put_u64(out, node.incarnation);
    put_u64(out, node.memory_bytes);
    out.push(match node.state {
        NodeState::Up => 0,
        NodeState::Draining => 1,
        NodeState::Down => 2,
        NodeState::Dead => 3,
    });
    [&node.name, &node.host, &node.rack].into_iter().for_each(|text| put_text(out, text));
    put_count(out, node.addresses.len());
    node.addresses.iter().for_each(|address| put_text(out, address));
}

fn write_spreads(out: &mut Vec<u8>, old: &Draft, new: &Draft) {
    let changed: Vec<(&Spread, Option<&Spread>)> =
        came(&old.spreads, &new.spreads, |spread| spread.id).map(|spread| (spread, old.spread(spread.id))).collect();
    section(out, SPREADS_GONE, |out| {
        gone(&old.spreads, &new.spreads, |spread| spread.id).for_each(|id| put_u16(out, id))
    });
    section(out, SPREADS, |out| changed.iter().for_each(|(spread, _)| write_spread(out, spread)));
    section(out, GROUPS, |out| changed.iter().for_each(|(spread, old)| write_groups(out, *old, spread)));
    section(out, SLOT_RUNS, |out| changed.iter().for_each(|(spread, old)| write_slots(out, *old, spread)));
}

fn write_spread(out: &mut Vec<u8>, spread: &Spread) {
    put_u16(out, spread.id);
    let kind = match spread.kind {
        Kind::Kept => 0,
        Kind::Cache => 1,
    };
    let grows = match spread.grows {
        Grows::No => 0,
        Grows::ByItself => 1,
        Grows::ToCopies => 2,
    };
    out.extend_from_slice(&[kind, grows, spread.copies, spread.needed]);
    put_u16(out, spread.groups.len() as u16);
}

fn write_groups(out: &mut Vec<u8>, old: Option<&Spread>, spread: &Spread) {
    let none = Group::default();
    for (number, group) in spread.groups.iter().enumerate() {
        if group == old.and_then(|old| old.groups.get(number)).unwrap_or(&none) {
            continue;
        }
        put_u16(out, spread.id);
        put_u16(out, number as u16);
        put_u32(out, group.epoch);
        put_u32(out, group.primary_since);
        put_u32(out, group.primary.map_or(0, |node| node.0.get()));
        put_count(out, group.others.len());
        for member in &group.others {
            put_u32(out, member.node.0.get());
            out.push(match member.standing {
                Standing::Backup => 0,
                Standing::Joining => 1,
                Standing::Syncing => 2,
            });
            put_u32(out, member.since);
        }
        put_count(out, group.eligible.len());
        group.eligible.iter().for_each(|node| put_u32(out, node.0.get()));
    }
}

/// Groups that lost what they held at another epoch than was known.
fn write_losses(out: &mut Vec<u8>, old: &Draft, new: &Draft) {
    for spread in &new.spreads {
        for (number, group) in spread.groups.iter().enumerate() {
            let before = old.spread(spread.id).and_then(|old| old.groups.get(number)).map_or(0, |old| old.lost);
            if group.lost != before {
                put_u16(out, spread.id);
                put_u16(out, number as u16);
                put_u32(out, group.lost);
            }
        }
    }
}

/// Nodes whose program speaks another protocol than was known; at first it is 1.
fn write_protocols(out: &mut Vec<u8>, old: &Draft, new: &Draft) {
    for node in &new.nodes {
        if node.protocol != old.node(node.id).map_or(1, |old| old.protocol) {
            put_u32(out, node.id.0.get());
            put_u16(out, node.protocol);
        }
    }
}

/// All of it, if it is not as it was: it is short, and never falls to nothing.
fn write_given_up(out: &mut Vec<u8>, old: &Draft, new: &Draft) {
    for it in new.given_up.iter().filter(|_| old.given_up != new.given_up) {
        put_u32(out, it.epoch);
        put_u16(out, it.groups);
        put_u64(out, it.unix_ms);
        put_text(out, &it.who);
    }
}

/// What is placed no more, and what is so now.
fn write_placed(out: &mut Vec<u8>, old: &Draft, new: &Draft) {
    let is_gone = |it: &&Placed| new.placed.binary_search_by_key(&it.key(), Placed::key).is_err();
    let gone = old.placed.iter().filter(is_gone).map(|it| (it, true));
    for (it, is_gone) in gone.chain(came(&old.placed, &new.placed, Placed::key).map(|it| (it, false))) {
        put_u16(out, it.group.spread);
        put_u16(out, it.group.number);
        put_u32(out, it.node.0.get());
        out.push(is_gone.into());
        put_u32(out, it.from.filter(|_| !is_gone).map_or(0, |node| node.0.get()));
    }
}

/// Runs of slots that changed and came to their groups in one epoch.
fn write_slots(out: &mut Vec<u8>, old: Option<&Spread>, spread: &Spread) {
    let of = |spread: &Spread, slot: usize| (spread.slots[slot], spread.moved[slot]);
    let changed = |slot: usize| of(spread, slot) != old.map_or((0, 0), |old| of(old, slot));
    let mut first = 0;
    while first < SLOTS {
        let moved = spread.moved[first];
        let run = (first..SLOTS).take_while(|&slot| changed(slot) && spread.moved[slot] == moved).count();
        if run > 0 {
            put_u16(out, spread.id);
            put_u16(out, first as u16);
            put_u16(out, run as u16);
            put_u32(out, moved);
            spread.slots[first..first + run].iter().for_each(|&number| put_u16(out, number));
        }
        first += run.max(1);
    }
}

fn write_collections(out: &mut Vec<u8>, old: &Draft, new: &Draft) {
    let (old, new) = (&old.collections, &new.collections);
    section(out, COLLECTIONS_GONE, |out| gone(old, new, |it| it.id).for_each(|id| put_u64(out, id.0)));
    section(out, COLLECTIONS, |out| came(old, new, |it| it.id).for_each(|it| write_collection(out, it)));
}

fn write_collection(out: &mut Vec<u8>, collection: &Collection) {
    put_u64(out, collection.id.0);
    put_u32(out, collection.generation);
    put_text(out, &collection.name);
    let spec = serde_json::to_vec(&collection.spec).expect("a specification is plain data");
    put_u16(out, u16::try_from(spec.len()).expect("the class of a checked map is short"));
    out.extend_from_slice(&spec);
}

/// Takes values off the front of bytes.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn bytes(&mut self, count: usize) -> Result<&'a [u8], MapError> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(MapError::CutShort)?;
        self.0 = rest;
        Ok(taken)
    }

    fn fixed<const N: usize>(&mut self) -> Result<[u8; N], MapError> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(MapError::CutShort)?;
        self.0 = rest;
        Ok(*taken)
    }

    fn u8(&mut self) -> Result<u8, MapError> {
        self.fixed().map(u8::from_le_bytes)
    }

    fn u16(&mut self) -> Result<u16, MapError> {
        self.fixed().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32, MapError> {
        self.fixed().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, MapError> {
        self.fixed().map(u64::from_le_bytes)
    }

    fn text(&mut self) -> Result<String, MapError> {
        let length = self.u8()?;
        let text = std::str::from_utf8(self.bytes(length.into())?);
        text.map(str::to_owned).map_err(|_| MapError::Invalid("text is not UTF-8, of bytes", length.into()))
    }

    fn node(&mut self) -> Result<NodeId, MapError> {
        NonZeroU32::new(self.u32()?).map(NodeId).ok_or(MapError::Invalid("no node has number", 0))
    }

    /// A count, and as many items.
    fn several<T>(&mut self, item: impl Fn(&mut Self) -> Result<T, MapError>) -> Result<Vec<T>, MapError> {
        let count = self.u8()?;
        (0..count).map(|_| item(self)).collect()
    }
}

/// Reads a difference onto what `base` gives.
fn read(bytes: &[u8], base: impl FnOnce(HerdId) -> Draft) -> Result<Map, MapError> {
    let mut reader = Reader(opened(bytes)?);
    let herd = HerdId(reader.fixed()?);
    let mut draft = base(herd);
    let from = (herd, reader.u32()?, reader.u64()?);
    if from != (draft.herd, draft.epoch, draft.revision) {
        return Err(MapError::OtherBase);
    }
    (draft.epoch, draft.revision, draft.term) = (reader.u32()?, reader.u64()?, reader.u64()?);
    let mut last = 0;
    while !reader.0.is_empty() {
        let (tag, length) = (reader.u8()?, reader.u32()? as usize);
        // Each section once, and few spread groups, whose items make much of few bytes: so the work has a bound.
        if tag <= last || tag == SPREADS && length > SPREADS_MAX * SPREAD_BYTES {
            return Err(MapError::Invalid("section out of order or too long", tag.into()));
        }
        last = tag;
        let mut items = Reader(reader.bytes(length)?);
        if tag == GIVEN_UP {
            draft.given_up.clear();
        }
        while !items.0.is_empty() {
            read_item(tag, &mut items, &mut draft)?;
        }
    }
    Map::new(draft)
}

/// What is between the version and the checksum, if both are right.
fn opened(bytes: &[u8]) -> Result<&[u8], MapError> {
    let after = bytes.strip_prefix(&MAGIC).ok_or(MapError::NotAMap)?;
    if bytes.len() > MAP_MAX_BYTES {
        return Err(MapError::TooLong(bytes.len()));
    }
    let (version, after) = after.split_first().ok_or(MapError::CutShort)?;
    if *version != VERSION {
        return Err(MapError::Version(*version));
    }
    let (content, crc) = after.split_last_chunk::<CRC_BYTES>().ok_or(MapError::CutShort)?;
    let checked = crc32c(&bytes[..bytes.len() - CRC_BYTES]) == u32::from_le_bytes(*crc);
    checked.then_some(content).ok_or(MapError::BadChecksum)
}

/// Reads one item of a section; all of a section that is not known.
fn read_item(tag: u8, items: &mut Reader<'_>, draft: &mut Draft) -> Result<(), MapError> {
    match tag {
        NODES_GONE => take(&mut draft.nodes, items.node()?, |node| node.id),
        NODES => {
            let node = read_node(items)?;
            let protocol = draft.node(node.id).map_or(1, |before| before.protocol);
            put(&mut draft.nodes, Node { protocol, ..node }, |node| node.id, NODES_MAX)
        }
        SPREADS_GONE => take(&mut draft.spreads, items.u16()?, |spread| spread.id),
        SPREADS => read_spread(items, draft),
        GROUPS => read_group(items, draft),
        SLOT_RUNS => read_slots(items, draft),
        COLLECTIONS_GONE => take(&mut draft.collections, CollectionId(items.u64()?), |it| it.id),
        LOSSES => read_loss(items, draft),
        PROTOCOLS => read_protocol(items, draft),
        NEXT if cfg!(herd_next) => read_next(items, draft),
        GIVEN_UP => read_given_up(items, draft),
        PLACED => read_placed(items, draft),
        COLLECTIONS => put(&mut draft.collections, read_collection(items)?, |it| it.id, COLLECTIONS_MAX),
        _ => items.bytes(items.0.len()).map(|_| ()),
    }
}

/// Puts an item in its place, instead of the one of the same key.
fn put<T, K: Ord>(list: &mut Vec<T>, item: T, key: impl Fn(&T) -> K, most: usize) -> Result<(), MapError> {
    match list.binary_search_by_key(&key(&item), &key) {
        Ok(at) => list[at] = item,
        Err(_) if list.len() == most => return Err(MapError::Invalid("more of one kind than", most as u64)),
        Err(at) => list.insert(at, item),
    }
    Ok(())
}

/// Takes the item with that key away.
fn take<T, K: Ord>(list: &mut Vec<T>, of: K, key: impl Fn(&T) -> K) -> Result<(), MapError> {
    list.binary_search_by_key(&of, key).map(|at| drop(list.remove(at))).map_err(|_| MapError::OtherBase)
}

fn read_node(items: &mut Reader<'_>) -> Result<Node, MapError> {
    let (id, incarnation, memory_bytes) = (items.node()?, items.u64()?, items.u64()?);
    let state = match items.u8()? {
        0 => NodeState::Up,
        1 => NodeState::Draining,
        2 => NodeState::Down,
        3 => NodeState::Dead,
        other => return Err(MapError::Invalid("unknown state of a node", other.into())),
    };
    let (name, host, rack) = (items.text()?, items.text()?, items.text()?);
    let addresses = items.several(Reader::text)?;
    Ok(Node { id, name, addresses, incarnation, host, rack, memory_bytes, state, protocol: 1 })
}

fn read_spread(items: &mut Reader<'_>, draft: &mut Draft) -> Result<(), MapError> {
    let id = items.u16()?;
    let [kind, grows, copies, needed] = items.fixed()?;
    let unknown = || MapError::Invalid("unknown kind of spread group", id.into());
    let kind = match kind {
        0 => Kind::Kept,
        1 => Kind::Cache,
        _ => return Err(unknown()),
    };
    let grows = match grows {
        0 => Grows::No,
        1 => Grows::ByItself,
        2 => Grows::ToCopies,
        _ => return Err(unknown()),
    };
    let groups = usize::from(items.u16()?);
    if groups > SLOTS {
        return Err(MapError::Invalid("too many groups in spread group", id.into()));
    }
    if draft.spread(id).is_none() {
        put(&mut draft.spreads, Spread::new(id, kind, copies, needed), |spread| spread.id, SPREADS_MAX)?;
    }
    let spread = named(id, draft)?;
    (spread.kind, spread.grows, spread.copies, spread.needed) = (kind, grows, copies, needed);
    spread.groups.resize_with(groups, Group::default);
    Ok(())
}

/// The spread group an item names.
fn named(id: u16, draft: &mut Draft) -> Result<&mut Spread, MapError> {
    let found = draft.spreads.iter_mut().find(|spread| spread.id == id);
    found.ok_or(MapError::Invalid("no such spread group", id.into()))
}

fn read_group(items: &mut Reader<'_>, draft: &mut Draft) -> Result<(), MapError> {
    let spread = named(items.u16()?, draft)?;
    let number = items.u16()?;
    let group = Group {
        epoch: items.u32()?,
        primary_since: items.u32()?,
        primary: NonZeroU32::new(items.u32()?).map(NodeId),
        others: items.several(read_member)?,
        eligible: items.several(Reader::node)?,
        lost: 0,
    };
    let place = group_at(spread, number)?;
    *place = Group { lost: place.lost, ..group };
    Ok(())
}

fn group_at(spread: &mut Spread, number: u16) -> Result<&mut Group, MapError> {
    spread.groups.get_mut(usize::from(number)).ok_or(MapError::Invalid("no such group", number.into()))
}

fn read_loss(items: &mut Reader<'_>, draft: &mut Draft) -> Result<(), MapError> {
    let spread = named(items.u16()?, draft)?;
    let number = items.u16()?;
    group_at(spread, number)?.lost = items.u32()?;
    Ok(())
}

fn read_protocol(items: &mut Reader<'_>, draft: &mut Draft) -> Result<(), MapError> {
    let (id, protocol) = (items.node()?, items.u16()?);
    let node = draft.nodes.iter_mut().find(|node| node.id == id);
    node.ok_or(MapError::Invalid("no such node", id.0.get().into()))?.protocol = protocol;
    Ok(())
}

/// Only a herd whose nodes all are of the release after this one may say it.
fn read_next(items: &mut Reader<'_>, draft: &Draft) -> Result<(), MapError> {
    let told = items.u32()?;
    let is_right = draft.protocol() > 1 && told == draft.epoch;
    if is_right { Ok(()) } else { Err(MapError::Invalid("said too early, at epoch", told.into())) }
}

fn read_given_up(items: &mut Reader<'_>, draft: &mut Draft) -> Result<(), MapError> {
    if draft.given_up.len() == GIVEN_UP_MAX {
        return Err(MapError::Invalid("more of one kind than", GIVEN_UP_MAX as u64));
    }
    let (epoch, groups, unix_ms, who) = (items.u32()?, items.u16()?, items.u64()?, items.text()?);
    draft.given_up.push(GivenUp { epoch, groups, unix_ms, who });
    Ok(())
}

fn read_placed(items: &mut Reader<'_>, draft: &mut Draft) -> Result<(), MapError> {
    let group = GroupId { spread: items.u16()?, number: items.u16()? };
    let (node, is_gone, from) = (items.node()?, items.u8()?, NonZeroU32::new(items.u32()?).map(NodeId));
    match is_gone {
        0 => put(&mut draft.placed, Placed { group, node, from }, Placed::key, PLACED_MAX),
        1 => take(&mut draft.placed, (group, node), Placed::key),
        other => Err(MapError::Invalid("unknown mark of what was put on a node", other.into())),
    }
}

fn read_member(items: &mut Reader<'_>) -> Result<Member, MapError> {
    let node = items.node()?;
    let standing = match items.u8()? {
        0 => Standing::Backup,
        1 => Standing::Joining,
        2 => Standing::Syncing,
        other => return Err(MapError::Invalid("unknown standing of a member", other.into())),
    };
    Ok(Member { node, standing, since: items.u32()? })
}

fn read_slots(items: &mut Reader<'_>, draft: &mut Draft) -> Result<(), MapError> {
    let spread = named(items.u16()?, draft)?;
    let (first, count, moved) = (usize::from(items.u16()?), usize::from(items.u16()?), items.u32()?);
    let run = first..first + count;
    let slots = spread.slots.get_mut(run.clone()).ok_or(MapError::Invalid("no such slot", run.end as u64))?;
    for slot in slots {
        *slot = items.u16()?;
    }
    spread.moved[run].fill(moved);
    Ok(())
}

fn read_collection(items: &mut Reader<'_>) -> Result<Collection, MapError> {
    let (id, generation, name) = (CollectionId(items.u64()?), items.u32()?, items.text()?);
    let length = usize::from(items.u16()?);
    let spec = Some(items.bytes(length)?).filter(|spec| spec.len() <= SPEC_MAX_BYTES);
    let spec: Option<Spec> = spec.and_then(|spec| serde_json::from_slice(spec).ok());
    Ok(Collection {
        id,
        name,
        generation,
        spec: spec.ok_or(MapError::Invalid("bad specification of collection", id.0))?,
    })
}
