//! Where things lie in the control store (FORMATS.md, "What a warden keeps"). Small things are JSON, so that people can
//! read them; the map is its bytes, in parts.
//!
//! All hangs on one key, the head: it says which parts make up the map, and each write compares its revision. Parts are
//! never changed: they have the stamp of the write that made them, also where it comes late. So a map of any size takes
//! the old one's place at once.

use super::ask::Identity;
use super::hex::Hex;
use super::state::{Member, State};
use crate::control::{Compare, Entry, NUMBERS_END, Revision, Term, Txn, Write};
use crate::limits::{CONTROL_TXN_MAX_BYTES, CONTROL_TXN_STEPS_MAX, CONTROL_VALUE_MAX_BYTES, MAP_MAX_BYTES};
use crate::place::{HerdId, Map, NodeId};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What never changes.
pub(super) const HERD: &str = "herd";
/// The head; before a slash, of its parts.
pub(super) const MAP: &str = "map";
/// Before a slash, of nodes.
const NODE: &str = "node";
/// The format of all this.
const FORMAT: u8 = 1;

/// Parts that go in one transaction, where not all fit into the last one.
const PARTS: usize = 14;
/// Old parts that go with them.
const OLD_PARTS: usize = 100;

const _: () = assert!(PARTS * (CONTROL_VALUE_MAX_BYTES + 64) + OLD_PARTS * 64 <= CONTROL_TXN_MAX_BYTES);
const _: () = assert!(PARTS + OLD_PARTS <= CONTROL_TXN_STEPS_MAX);
// A batch of joins, the head, the herd, and the comparison.
const _: () = assert!(crate::limits::WARDEN_BATCH_MAX + 3 <= CONTROL_TXN_STEPS_MAX);

/// Which write it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    /// The warden's term.
    pub(super) term: Term,
    /// Its number among the writes of that warden.
    pub(super) flight: u64,
}

/// What the store holds.
#[derive(Clone, Debug)]
pub(super) struct Kept {
    pub(super) state: State,
    /// Revision of the head.
    pub(super) revision: Revision,
    /// Which write made it.
    pub(super) stamp: Stamp,
    /// The map's parts.
    map: Parts,
    /// Keys of parts of other maps.
    left: Vec<String>,
}

impl Kept {
    /// That the store holds this still.
    pub(super) fn compare(&self) -> Compare {
        Compare { key: MAP.into(), revision: self.revision }
    }

    /// The value of the head.
    pub(super) fn head(&self) -> Arc<[u8]> {
        head(&self.state, self.stamp, self.map)
    }

    /// The same, with the head at this revision.
    pub(super) fn at(self, revision: Revision) -> Self {
        Self { revision, ..self }
    }
}

/// A map in parts.
#[derive(Clone, Copy, Debug)]
struct Parts {
    /// Which write made them.
    stamp: Stamp,
    bytes: usize,
}

impl Parts {
    fn keys(self) -> impl Iterator<Item = String> {
        let Stamp { term, flight } = self.stamp;
        let count = self.bytes.div_ceil(CONTROL_VALUE_MAX_BYTES);
        (0..count).map(move |n| format!("{MAP}/{term:016x}.{flight:016x}/{n:04x}"))
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Herd {
    format: u8,
    herd: Hex,
    hash_key: Hex,
    protocol_min: u32,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Head {
    term: Term,
    flight: u64,
    held: bool,
    next_node: u32,
    next_collection: u64,
    map_term: Term,
    map_flight: u64,
    bytes: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct NodeRecord {
    identity: Hex,
    process: Hex,
}

pub(super) fn json(value: &impl Serialize) -> Arc<[u8]> {
    serde_json::to_vec(value).expect("plain data").into()
}

fn delete(key: String) -> Write {
    Write::Delete { key }
}

fn node_key(id: NodeId) -> String {
    format!("{NODE}/{:08x}", id.0)
}

/// The transactions that make `state` of what is kept, of which the last one counts; and what the store holds then, but
/// for the head's revision. Where the two are the same, the one transaction only asks.
pub(super) fn plan(kept: Option<&Kept>, state: State, stamp: Stamp) -> (Vec<Txn>, Kept) {
    let compares = vec![Compare { key: MAP.into(), revision: kept.map_or(0, |kept| kept.revision) }];
    if let Some(kept) = kept.filter(|kept| state.is(&kept.state)) {
        return (vec![Txn { term: Some(stamp.term), compares, writes: Vec::new() }], kept.clone());
    }
    let same = kept.filter(|kept| Arc::ptr_eq(&kept.state.map, &state.map)).map(|kept| kept.map);
    let (map, puts) = same.map_or_else(|| in_parts(&state.map, stamp), |map| (map, Vec::new()));
    let replaced: Vec<String> = kept.filter(|_| same.is_none()).into_iter().flat_map(|kept| kept.map.keys()).collect();
    let old = kept.map_or(Vec::new(), |kept| kept.left.clone());
    let records = records(kept, &state, stamp, map);
    let last = |more: Vec<Write>| Txn {
        term: Some(stamp.term),
        compares: compares.clone(),
        writes: records.iter().cloned().chain(more).collect(),
    };
    let gone = old.iter().chain(&replaced).cloned().map(delete);
    let all = last(puts.iter().cloned().chain(gone).collect());
    let (txns, left) = match all.check() {
        Ok(()) => (vec![all], Vec::new()),
        Err(_) => {
            let (before, old) = ahead(puts, old, stamp.term);
            (before.into_iter().chain([last(Vec::new())]).collect(), [old, replaced].concat())
        }
    };
    (txns, Kept { state, revision: 0, stamp, map, left })
}

fn in_parts(map: &Map, stamp: Stamp) -> (Parts, Vec<Write>) {
    let bytes = map.encode();
    let parts = Parts { stamp, bytes: bytes.len() };
    let put = |(key, part): (String, &[u8])| Write::Put { key, value: part.into() };
    (parts, parts.keys().zip(bytes.chunks(CONTROL_VALUE_MAX_BYTES)).map(put).collect())
}

/// What goes before the last transaction of a large map: its parts, and with them old ones away. The rest of these.
fn ahead(puts: Vec<Write>, mut old: Vec<String>, term: Term) -> (Vec<Txn>, Vec<String>) {
    let stage = |puts: &[Write]| {
        let gone = old.split_off(old.len().saturating_sub(OLD_PARTS));
        let writes = puts.iter().cloned().chain(gone.into_iter().map(delete)).collect();
        Txn { term: Some(term), compares: Vec::new(), writes }
    };
    let txns = puts.chunks(PARTS).map(stage).collect();
    (txns, old)
}

/// All but the parts of the map: the herd once, the nodes that are not as they were, the head.
fn records(kept: Option<&Kept>, state: &State, stamp: Stamp, map: Parts) -> Vec<Write> {
    let put = |key: String, value| Write::Put { key, value };
    let herd = Herd {
        format: FORMAT,
        herd: Hex(state.map.herd.0),
        hash_key: Hex(state.hash_key),
        protocol_min: state.protocol_min,
    };
    let changed =
        |(id, member): &(&NodeId, &Member)| kept.is_none_or(|kept| kept.state.members.get(id) != Some(member));
    let record = |member: &Member| NodeRecord { identity: Hex(member.identity.0), process: Hex(member.process) };
    let nodes = state.members.iter().filter(changed).map(|(id, member)| put(node_key(*id), json(&record(member))));
    let is_gone = |id: &&NodeId| !state.members.contains_key(id);
    let gone = kept.into_iter().flat_map(|kept| kept.state.members.keys().filter(is_gone));
    let nodes = nodes.chain(gone.map(|id| delete(node_key(*id))));
    let herd = kept.is_none().then(|| put(HERD.into(), json(&herd)));
    herd.into_iter().chain(nodes).chain([put(MAP.into(), head(state, stamp, map))]).collect()
}

fn head(state: &State, stamp: Stamp, map: Parts) -> Arc<[u8]> {
    json(&Head {
        term: stamp.term,
        flight: stamp.flight,
        held: state.held,
        next_node: state.next_node,
        next_collection: state.next_collection,
        map_term: map.stamp.term,
        map_flight: map.stamp.flight,
        bytes: map.bytes as u64,
    })
}

/// The herd that a key of it names.
pub(super) fn herd_of(value: &[u8]) -> Result<HerdId, String> {
    let herd: Herd = serde_json::from_slice(value).map_err(|error| format!("key {HERD}: {error}"))?;
    Ok(HerdId(herd.herd.0))
}

#[cfg(test)]
pub(super) fn tests_herd(herd: HerdId) -> String {
    let herd = Herd { format: FORMAT, herd: Hex(herd.0), hash_key: Hex([1; 16]), protocol_min: 1 };
    serde_json::to_string(&herd).expect("plain data")
}

/// What all entries of a store say; `None`: there are none. An error says what is not as it should be.
pub(super) fn load(entries: &[Entry]) -> Result<Option<Kept>, String> {
    if entries.is_empty() {
        return Ok(None);
    }
    let entries: BTreeMap<&str, &Entry> = entries.iter().map(|entry| (entry.key.as_str(), entry)).collect();
    let herd: Herd = record(&entries, HERD)?;
    let head: Head = record(&entries, MAP)?;
    if herd.format != FORMAT {
        return Err(format!("it has format {}: this program reads format {FORMAT}", herd.format));
    }
    let stamp = Stamp { term: head.map_term, flight: head.map_flight };
    let parts = Parts { stamp, bytes: head.bytes.min(MAP_MAX_BYTES as u64 + 1) as usize };
    let mut bytes = Vec::new();
    let mut left: BTreeSet<&str> = entries.keys().copied().filter(|key| key.starts_with("map/")).collect();
    for key in parts.keys() {
        left.remove(key.as_str());
        bytes.extend_from_slice(&entries.get(key.as_str()).ok_or(format!("key {key} is missing"))?.value);
    }
    let map = Map::decode(&bytes).map_err(|error| error.to_string())?;
    if bytes.len() != parts.bytes || map.herd.0 != herd.herd.0 {
        return Err("the map is not the one it should be".into());
    }
    if head.flight.max(head.term) >= NUMBERS_END {
        return Err("a number out of range".into());
    }
    let state = State {
        hash_key: herd.hash_key.0,
        protocol_min: herd.protocol_min,
        held: head.held,
        next_node: head.next_node,
        next_collection: head.next_collection,
        members: members(&entries, &map)?,
        map: Arc::new(map),
    };
    state.check()?;
    let stamp = Stamp { term: head.term, flight: head.flight };
    let left = left.into_iter().map(String::from).collect();
    Ok(Some(Kept { state, revision: entries[MAP].revision, stamp, map: parts, left }))
}

fn record<T: for<'a> Deserialize<'a>>(entries: &BTreeMap<&str, &Entry>, key: &str) -> Result<T, String> {
    let entry = entries.get(key).ok_or_else(|| format!("it has no key '{key}', and is no herd's"))?;
    serde_json::from_slice(&entry.value).map_err(|error| format!("key {key}: {error}"))
}

/// What is known of each node of the map.
fn members(entries: &BTreeMap<&str, &Entry>, map: &Map) -> Result<BTreeMap<NodeId, Member>, String> {
    let member = |id| {
        let node: NodeRecord = record(entries, &node_key(id))?;
        Ok((id, Member { identity: Identity(node.identity.0), process: node.process.0 }))
    };
    map.nodes.iter().map(|node| member(node.id)).collect()
}
