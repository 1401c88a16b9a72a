//! Maps there and back, whole and by difference; and bytes that are none.

use super::*;
use crate::checksum::crc32c;

/// Bytes before the first section.
const HEAD_BYTES: usize = 56;

/// A map that anything may have happened to.
fn lived(seed: u64) -> (Map, Map) {
    let mut chance = Chance(seed);
    let count = 1 + chance.below(12) as u32;
    let mut map = herd((1..=count).map(|number| node(number, GIB * (1 + chance.below(64)))).collect());
    let mut earlier = map.clone();
    for step in 0..chance.below(20) {
        if chance.below(4) == 0 {
            earlier = map.clone();
        }
        map = map.next(|draft| befall(&mut chance, draft, step)).expect("a valid map");
    }
    (earlier, map)
}

fn befall(chance: &mut Chance, draft: &mut Draft, step: u64) {
    let at = chance.below(draft.nodes.len() as u64) as usize;
    match chance.below(11) {
        0 => draft.nodes.push(Node { rack: "r é".into(), ..node(100 + step as u32, GIB) }),
        1 => draft.nodes[at].incarnation += 1,
        2 => draft.nodes[at].state = [NodeState::Up, NodeState::Draining, NodeState::Down][chance.below(3) as usize],
        3 => drop(draft.add_spread(Kind::Cache, 1, Grows::No)),
        4 => draft.plan(),
        5 => {
            let spread = chance.below(draft.spreads.len() as u64) as usize;
            let id = CollectionId::new(draft.spreads[spread].id, 1000 + step);
            let class = if draft.spreads[spread].kind == Kind::Cache { "cache" } else { "ram:1" };
            draft.collections.push(collection(id, &format!("c{step}"), class));
            draft.collections.sort_by_key(|it| it.id);
        }
        6 => draft.collections.truncate(1),
        7 => {
            let last = draft.spreads[0].groups.len() as u64;
            (0..50).for_each(|_| draft.spreads[0].slots[chance.below(4096) as usize] = chance.below(last) as u16);
        }
        8 => draft.nodes[at].protocol = 1 + chance.below(3) as u16,
        9 => {
            let group = GroupId { spread: 0, number: chance.below(draft.spreads[0].groups.len() as u64) as u16 };
            let (node, first) = (draft.nodes[at].id, draft.nodes[0].id);
            match chance.below(3) {
                0 => draft.unplace(group),
                is_from => draft.place(Placed { group, node, from: (is_from == 1).then_some(first) }),
            }
        }
        _ => draft.spreads[0].groups.iter_mut().for_each(|group| {
            group.others.iter_mut().for_each(|member| member.standing = Standing::Joining);
            if chance.below(2) == 0 {
                group.primary = None;
            }
            if chance.below(3) == 0 {
                group.lost = draft.epoch * chance.below(2) as u32;
            }
        }),
    }
    draft.term += chance.below(2);
}

#[test]
fn a_map_is_the_same_behind_its_bytes() {
    for seed in 0..40 {
        let (earlier, map) = lived(seed);
        assert_eq!(Map::decode(&map.encode()).as_ref(), Ok(&map), "seed {seed}");
        let change = map.encode_since(&earlier);
        assert_eq!(earlier.decode_since(&change).as_ref(), Ok(&map), "seed {seed}");
        assert_eq!(Map::decode(&map.encode()).expect("as before").encode(), map.encode(), "seed {seed}");
    }
}

#[test]
fn a_change_goes_with_the_map_it_follows_alone() {
    let first = herd(nodes(3));
    let second = first.next(|draft| draft.nodes[0].incarnation += 1).expect("valid");
    let third = second.next(|draft| draft.nodes[1].incarnation += 1).expect("valid");
    let change = third.encode_since(&second);
    assert_eq!(second.decode_since(&change).as_ref(), Ok(&third));
    assert_eq!(first.decode_since(&change), Err(MapError::OtherBase));
    assert_eq!(third.decode_since(&change), Err(MapError::OtherBase));
    assert_eq!(Map::decode(&change), Err(MapError::OtherBase));
    assert_eq!(second.decode_since(&third.encode()), Err(MapError::OtherBase));
    let other = Map::first(Draft { herd: HerdId([9; 16]), ..Draft::clone(&second) }, second.epoch).expect("valid");
    assert_eq!(other.decode_since(&change), Err(MapError::OtherBase));
}

/// Splits groups in two until there are 800.
fn split_to_800(draft: &mut Draft) {
    let spread = &mut draft.spreads[0];
    let planned = spread.groups.len();
    spread.groups.extend_from_within(..800 - planned);
    for number in spread.slots.iter_mut().step_by(2).filter(|number| usize::from(**number) + planned < 800) {
        *number += planned as u16;
    }
}

#[test]
fn a_map_of_100_nodes_and_800_groups_takes_some_50_kib_and_a_death_1() {
    let mut draft = Draft::clone(&herd(nodes(100)));
    split_to_800(&mut draft);
    let map = Map::first(draft, 1).expect("valid");
    assert_eq!((map.spreads[0].groups.len(), map.spreads[0].copies), (800, 3));
    let whole = map.encode().len();
    assert!((48 * 1024..52 * 1024).contains(&whole), "{whole} bytes");
    let dead = id(17);
    let death = map.next(|draft| {
        draft.nodes[16].state = NodeState::Down;
        for group in draft.spreads[0].groups.iter_mut().filter(|group| group.members().any(|member| member == dead)) {
            group.eligible.retain(|&node| node != dead);
            group.others.retain(|member| member.node != dead);
            if group.primary == Some(dead) {
                group.primary = Some(group.others.remove(0).node);
            }
        }
    });
    let change = death.expect("valid").encode_since(&map).len();
    assert!((512..1536).contains(&change), "{change} bytes");
}

/// Bytes with the checksum that goes with them, so that what is within is looked at.
fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
    let end = bytes.len() - 4;
    let crc = crc32c(&bytes[..end]).to_le_bytes();
    bytes[end..].copy_from_slice(&crc);
    bytes
}

#[test]
fn each_changed_or_missing_byte_is_noticed() {
    let bytes = herd(nodes(2)).encode();
    for at in (0..bytes.len()).step_by(7).chain(0..80) {
        let mut other = bytes.clone();
        other[at] ^= 0x10;
        assert!(Map::decode(&other).is_err(), "byte {at}");
        assert!(Map::decode(&bytes[..at]).is_err(), "the first {at} bytes");
    }
    let mut later = bytes.clone();
    later[7] = 2;
    assert_eq!(Map::decode(&later), Err(MapError::Version(2)));
    assert_eq!(Map::decode(b"something else"), Err(MapError::NotAMap));
    let long = [bytes, vec![0; MAP_MAX_BYTES]].concat();
    assert!(matches!(Map::decode(&long), Err(MapError::TooLong(_))));
}

/// Whatever stands in them: an error, or a map that has passed all checks and of which anything may be asked.
#[test]
fn hostile_bytes_make_an_error_or_a_valid_map() {
    let (mut maps, mut errors) = (0, 0);
    let herds: Vec<(Map, Map)> = (0..20).map(lived).collect();
    for seed in 0..3000 {
        let mut chance = Chance(seed);
        let (earlier, map) = &herds[seed as usize % herds.len()];
        let bytes = if chance.below(2) == 0 { map.encode() } else { map.encode_since(earlier) };
        let bytes = sealed(spoil(&mut chance, bytes));
        for decoded in [Map::decode(&bytes), earlier.decode_since(&bytes)] {
            let Ok(decoded) = decoded else {
                errors += 1;
                continue;
            };
            maps += 1;
            decoded.spreads.iter().for_each(|spread| (0..4096).for_each(|slot| drop(spread.since(slot).to_string())));
            decoded.shortfalls();
            assert_eq!(Map::decode(&decoded.encode()).as_ref(), Ok(&decoded), "seed {seed}");
        }
    }
    assert!(maps > 100 && errors > 1000, "{maps} maps, {errors} errors");
}

fn spoil(chance: &mut Chance, mut bytes: Vec<u8>) -> Vec<u8> {
    for _ in 0..1 + chance.below(4) {
        let at = chance.below(bytes.len() as u64 - 12) as usize;
        match chance.below(5) {
            0 => bytes[at] ^= 1 << chance.below(8),
            1 => bytes[at] = [0, 1, 0x7F, 0xFF][chance.below(4) as usize],
            2 => bytes[at..at + 4].copy_from_slice(&(chance.next() as u32).to_le_bytes()),
            3 => drop(bytes.splice(at..at + 8, [])),
            _ => {
                let copy = bytes[at..at + 8].to_vec();
                drop(bytes.splice(at..at, copy));
            }
        }
        if bytes.len() < 64 {
            break;
        }
    }
    bytes
}

/// A section of a later version is passed over.
#[test]
fn what_a_reader_does_not_know_is_passed_over() {
    let map = herd(nodes(2));
    let mut bytes = map.encode();
    let end = bytes.len() - 4;
    bytes.splice(end..end, [200, 3, 0, 0, 0, 1, 2, 3]);
    assert_eq!(Map::decode(&sealed(bytes)), Ok(map));
}

/// Few bytes could else ask for much work: a spread group of 8 bytes has 4,096 groups.
#[test]
fn sections_that_come_twice_or_name_too_many_spread_groups_are_refused() {
    let bytes = herd(nodes(2)).encode();
    let end = bytes.len() - 4;
    let (spreads, many) = ([4, 0, 0, 0, 0], [4, 136, 0, 0, 0]);
    for (at, section) in [(end, &spreads[..]), (HEAD_BYTES, &[&many[..], &[0; 136]].concat()[..])] {
        let mut other = bytes.clone();
        other.splice(at..at, section.iter().copied());
        assert_eq!(Map::decode(&sealed(other)), Err(MapError::Invalid("section out of order or too long", 4)));
    }
}

/// These bytes are in stores and between releases.
#[test]
fn golden_bytes_of_a_herd_of_one() {
    let bytes = herd(vec![Node { addresses: vec!["a:1".into()], ..node(1, GIB) }]).encode();
    let wanted = [
        "484552444d415001",                                       // magic and format
        "612068657264206f662074657374732e",                       // the herd
        "000000000000000000000000",                               // from epoch 0, revision 0
        "010000000100000000000000",                               // to epoch 1, revision 1
        "0000000000000000",                                       // term 0
        "0229000000010000000100000000000000000000400000000000",   // nodes, 41 bytes: 1, incarnation 1, 1 GiB, up
        "066e6f64652d3106686f73742d31000103613a31",               // name, host, rack, one address
        "04080000000000000101010800", // spread groups, 8 bytes: 0, kept, grows, K 1, k 1, 8 groups
        "05b000000000000000010000000100000001000000000101000000", // groups, 176 bytes: 0/0, epochs, primary 1, alone
    ];
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    assert!(hex.starts_with(&wanted.concat()), "{hex}");
}
