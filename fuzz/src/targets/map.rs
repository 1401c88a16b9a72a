//! The map's bytes: a whole map, or the difference from a map at hand.

use crate::Outcomes;
use crate::names::names;
use crate::reasons::reason;
use herd_core::checksum::crc32c;
use herd_core::collection::Spec;
use herd_core::key::CollectionId;
use herd_core::place::{Collection, Draft, Grows, HerdId, Kind, Map, MapError, Node, NodeId, NodeState};
use std::num::NonZeroU32;
use std::sync::LazyLock;

/// What the corpus reaches.
pub const OUTCOMES: &[&[&str]] = &[ERRORS, REASONS, FOUND];

const FOUND: &[&str] = &[
    "a map as it is",
    "a map, its checksum put right",
    "a difference",
    "nodes",
    "spread groups",
    "group without primary",
    "other members",
    "collections",
];

/// Words of the driver: heads of sections, and short items.
#[rustfmt::skip]
pub const DICTIONARY: &[&[u8]] = &[
    b"HERDMAP\x01", b"a herd of fuzz..", b"\x01\x04\0\0\0\x01\0\0\0", b"\x02\x1C\0\0\0", b"\x03\x02\0\0\0\0\0",
    b"\x04\x08\0\0\0\x01\0\0\0\x03\x02\x01\0", b"\x05\x1C\0\0\0", b"\x06\x0C\0\0\0\0\0\0\0\x01\0\x01\0\0\0\0\0",
    b"\x07\x08\0\0\0\x02\0\0\0\0\0\0\0", b"\x08\x2C\0\0\0", b"{\"class\":\"ram:1\"}", b"{\"class\":\"cache\"}",
    b"\x09\0\0\0\0", b"\x0A\x06\0\0\0\x01\0\0\0\x02\0", b"\x0C\x11\0\0\0", b"\x0D\x0D\0\0\0",
    b"\xFF\xFF", b"\x01\0\0\0", b"\x02\0\0\0",
];

names!(error_name, ERRORS, MapError {
    MapError::CutShort => "cut short",
    MapError::NotAMap => "not a map",
    MapError::Version(_) => "version",
    MapError::BadChecksum => "bad checksum",
    MapError::OtherBase => "other base",
    MapError::Invalid(..) => "invalid",
    ; never MapError::TooLong(_) // Inputs are shorter; herd-core's own tests have one.
});

/// What bytes can say that does not go together. Orders and most numbers of items are no reasons here: the reader puts
/// items in their order and counts them itself.
#[rustfmt::skip]
const REASONS: &[&str] = &[
    "text is not UTF-8, of bytes", "no node has number", "section out of order or too long", "more of one kind than",
    "unknown state of a node", "unknown kind of spread group", "too many groups in spread group",
    "no such spread group", "no such group", "unknown standing of a member", "no such slot",
    "bad specification of collection", "no such epoch", "no such revision",
    "text of node too long or not printable", "node without name or host", "too many addresses of node",
    "two nodes of one name, the second is", "no protocol of node", "no such node",
    "copies out of range in spread group", "no spread group has number",
    "more copies needed than kept in spread group", "a cache keeps one copy, not spread group",
    "no or too many groups in spread group", "slot without group in spread group",
    "slot of a later epoch in spread group", "a node twice in group", "a node twice eligible in group",
    "too many members of group", "unknown node in group", "primary not eligible in group",
    "epochs out of order in group", "bad name of collection", "two collections of one name, the second is",
    "bad class of collection", "no spread group of its kind for collection", "what was given up out of order",
    "given up at a later epoch", "text of who gave up too long or not printable",
    "no such group or node to put it on", "no such node to take it from, group",
    "unknown mark of what was put on a node",
];

/// A small herd at its first map, for differences to follow.
static AT_HAND: LazyLock<Map> = LazyLock::new(|| {
    let node = |number: u32| Node {
        id: NodeId(NonZeroU32::new(number).expect("nodes count from 1")),
        name: format!("n{number}"),
        addresses: vec![format!("10.0.0.{number}:7700")],
        incarnation: 1,
        host: format!("h{number}"),
        rack: String::new(),
        memory_bytes: 1 << 30,
        state: NodeState::Up,
        protocol: 1,
    };
    let mut draft = Draft { nodes: (1..=3).map(node).collect(), ..Draft::empty(HerdId(*b"a herd of fuzz..")) };
    draft.add_spread(Kind::Kept, 1, Grows::ByItself).expect("three nodes have room");
    let (id, name, spec) = (CollectionId::DEFAULT, "default".to_owned(), Spec::of("ram:1"));
    draft.collections.push(Collection { id, name, spec, generation: 1 });
    Map::first(draft, 1).expect("a valid map")
});

/// Runs the target.
pub fn run(input: &[u8]) -> Outcomes {
    let mut outcomes = Outcomes::default();
    match Map::decode(input) {
        Ok(map) => {
            outcomes.add("a map as it is");
            understood(&map, &mut outcomes);
        }
        Err(error) => refused(&error, &mut outcomes),
    }
    // Few inputs have the right checksum by chance: the rest of the reader is tried with it put right.
    let Some((content, _)) = input.split_last_chunk::<4>() else { return outcomes };
    let righted = [content, &crc32c(content).to_le_bytes()].concat();
    match Map::decode(&righted) {
        Ok(map) => {
            outcomes.add("a map, its checksum put right");
            understood(&map, &mut outcomes);
        }
        Err(error) => refused(&error, &mut outcomes),
    }
    match AT_HAND.decode_since(&righted) {
        Ok(map) => {
            outcomes.add("a difference");
            let again = AT_HAND.decode_since(&map.encode_since(&AT_HAND));
            assert_eq!(again.as_ref(), Ok(&map), "the difference reads back as it is written");
            understood(&map, &mut outcomes);
        }
        Err(error) => refused(&error, &mut outcomes),
    }
    outcomes
}

fn refused(error: &MapError, outcomes: &mut Outcomes) {
    outcomes.add(error_name(error));
    if let MapError::Invalid(what, _) = error {
        outcomes.add(reason(REASONS, what));
    }
}

fn understood(map: &Map, outcomes: &mut Outcomes) {
    assert_eq!(Map::decode(&map.encode()).as_ref(), Ok(map), "it reads back as it is written");
    let nothing = map.encode_since(map);
    assert_eq!(map.decode_since(&nothing).as_ref(), Ok(map), "no change changes nothing");
    let groups = || map.spreads.iter().flat_map(|spread| &spread.groups);
    for collection in &map.collections {
        let spread = map.spread(collection.id.spread_group());
        assert!(spread.is_some(), "each collection has its spread group");
    }
    for group in groups() {
        assert!(group.members().all(|node| map.node(node).is_some()), "each member is a node of the map");
    }
    let there = [
        ("nodes", !map.nodes.is_empty()),
        ("spread groups", !map.spreads.is_empty()),
        ("group without primary", groups().any(|group| group.primary.is_none())),
        ("other members", groups().any(|group| !group.others.is_empty())),
        ("collections", !map.collections.is_empty()),
    ];
    there.iter().filter(|(_, there)| *there).for_each(|(name, _)| outcomes.add(name));
}
