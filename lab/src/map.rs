//! The map of a herd, as far as a client needs it to ask the owner of an object at once: read from its bytes as
//! FORMATS.md, "The map", has them.

use std::collections::{HashMap, HashSet};
use std::hash::Hasher;
use std::net::SocketAddr;

use siphasher::sip128::{Hasher128, SipHasher13};

use crate::wire::crc32c;

/// Slots of a spread group.
const SLOTS: usize = 4_096;
const MAGIC: &[u8] = b"HERDMAP\x01";
/// Herd, the map that it follows, the map that it makes, its term.
const FIXED_BYTES: usize = 16 + 12 + 12 + 8;

/// A replica group: its spread group, and its number in that.
pub(crate) type Group = (u16, u16);

/// Which node owns which slot.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Map {
    /// Of the hash of names.
    key: [u8; 16],
    nodes: HashMap<u32, SocketAddr>,
    draining: HashSet<SocketAddr>,
    /// By spread group and number of the replica group: its members, the primary first (0: none).
    members: HashMap<(u16, u16), Vec<u32>>,
    /// By spread group: the replica group of each slot.
    slots: HashMap<u16, Vec<u16>>,
}

impl Map {
    /// Reads a whole map of a herd whose names are hashed with `key`.
    pub(crate) fn parse(bytes: &[u8], key: [u8; 16]) -> Result<Self, String> {
        let (covered, crc) = bytes.split_last_chunk::<4>().ok_or("a map of no bytes")?;
        if crc32c(covered) != u32::from_le_bytes(*crc) {
            return Err("the map's checksum is wrong".into());
        }
        let mut rest = Bytes(covered.strip_prefix(MAGIC).ok_or("this is no map of format 1")?);
        rest.take(FIXED_BYTES)?;
        let mut map = Self { key, ..Self::default() };
        while !rest.0.is_empty() {
            let (tag, len) = (rest.number(1)?, rest.number(4)? as usize);
            map.section(tag, Bytes(rest.take(len)?))?;
        }
        Ok(map)
    }

    fn section(&mut self, tag: u64, mut items: Bytes<'_>) -> Result<(), String> {
        while !items.0.is_empty() {
            match tag {
                2 => self.node(&mut items)?,
                5 => self.group(&mut items)?,
                6 => self.run_of_slots(&mut items)?,
                _ => return Ok(()),
            }
        }
        Ok(())
    }

    fn node(&mut self, items: &mut Bytes<'_>) -> Result<(), String> {
        let id = items.number(4)? as u32;
        items.take(8 + 8)?;
        let is_draining = items.number(1)? == 1;
        (0..3).try_for_each(|_| items.text().map(drop))?;
        for address in 0..items.number(1)? {
            let text = String::from_utf8_lossy(items.text()?).into_owned();
            let parsed = text.parse();
            if address == 0 {
                let at = parsed.map_err(|_| format!("node {id} has address {text}, which is a name"))?;
                self.nodes.insert(id, at);
                if is_draining {
                    self.draining.insert(at);
                }
            }
        }
        Ok(())
    }

    fn group(&mut self, items: &mut Bytes<'_>) -> Result<(), String> {
        let of = (items.number(2)? as u16, items.number(2)? as u16);
        items.take(8)?;
        let mut members = vec![items.number(4)? as u32];
        for _ in 0..items.number(1)? {
            members.push(items.number(4)? as u32);
            items.take(5)?;
        }
        self.members.insert(of, members);
        let eligible = items.number(1)? as usize;
        items.take(eligible * 4).map(drop)
    }

    fn run_of_slots(&mut self, items: &mut Bytes<'_>) -> Result<(), String> {
        let (spread, first, count) = (items.number(2)? as u16, items.number(2)? as usize, items.number(2)? as usize);
        items.take(4)?;
        let slots = self.slots.entry(spread).or_insert_with(|| vec![0; SLOTS]);
        for slot in first..first + count {
            *slots.get_mut(slot).ok_or("a slot above 4,095")? = items.number(2)? as u16;
        }
        Ok(())
    }

    /// How many nodes there are.
    pub(crate) fn nodes(&self) -> usize {
        self.nodes.len()
    }

    /// Where the object at `index` of an indexed collection lives.
    pub(crate) fn owner(&self, collection: u64, index: u64) -> Option<SocketAddr> {
        self.owner_of_slot(collection, ((collection >> 36) & 0xfff) + index)
    }

    /// Where the object of that name lives, in a collection whose objects have names.
    pub(crate) fn owner_by_name(&self, collection: u64, name: &[u8]) -> Option<SocketAddr> {
        self.owner_of_slot(collection, self.hash(collection, name))
    }

    /// The replica group of the object of that name.
    pub(crate) fn group_by_name(&self, collection: u64, name: &[u8]) -> Option<Group> {
        self.group_of_slot(collection, self.hash(collection, name))
    }

    /// Where the members of a group are, the primary first; empty if there is none.
    pub(crate) fn members(&self, group: Group) -> Vec<SocketAddr> {
        let members = self.members.get(&group).map_or(&[][..], Vec::as_slice);
        members.iter().filter_map(|node| self.nodes.get(node).copied()).collect()
    }

    /// All replica groups.
    pub(crate) fn groups(&self) -> impl Iterator<Item = Group> {
        self.members.keys().copied()
    }

    /// Whether the node there drains, or is empty because it has.
    pub(crate) fn drains(&self, node: SocketAddr) -> bool {
        self.draining.contains(&node)
    }

    /// Whether a group has more members than so many: a copy goes from one node to another.
    pub(crate) fn has_more_than(&self, members: usize) -> bool {
        self.members.values().any(|group| group.len() > members)
    }

    fn hash(&self, collection: u64, name: &[u8]) -> u64 {
        let mut hasher = SipHasher13::new_with_key(&self.key);
        hasher.write(&collection.to_le_bytes());
        hasher.write(name);
        hasher.finish128().h1
    }

    fn group_of_slot(&self, collection: u64, slot: u64) -> Option<Group> {
        let spread = (collection >> 48) as u16;
        Some((spread, *self.slots.get(&spread)?.get((slot % SLOTS as u64) as usize)?))
    }

    fn owner_of_slot(&self, collection: u64, slot: u64) -> Option<SocketAddr> {
        let group = self.group_of_slot(collection, slot)?;
        self.nodes.get(self.members.get(&group)?.first()?).copied()
    }
}

/// What is left to read.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], String> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or("the map ends within an item")?;
        self.0 = rest;
        Ok(taken)
    }

    /// A little-endian number of so many bytes, at most 8.
    fn number(&mut self, len: usize) -> Result<u64, String> {
        Ok(self.take(len)?.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    fn text(&mut self) -> Result<&'a [u8], String> {
        let len = self.number(1)? as usize;
        self.take(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn section(tag: u8, items: &[u8]) -> Vec<u8> {
        [&[tag][..], &(items.len() as u32).to_le_bytes(), items].concat()
    }

    /// The second one drains.
    fn node(id: u8, address: &str) -> Vec<u8> {
        let text = |text: &str| [&[text.len() as u8][..], text.as_bytes()].concat();
        let fixed = [&[id, 0, 0, 0][..], &[0; 16], &[u8::from(id == 2)]].concat();
        [fixed, text("a name"), text("a host"), text(""), vec![2], text(address), text("some.name:1")].concat()
    }

    fn group(number: u8, primary: u8, others: u8) -> Vec<u8> {
        let fixed = [3, 0, number, 0, 9, 0, 0, 0, 9, 0, 0, 0, primary, 0, 0, 0, others];
        [&fixed[..], &vec![7; usize::from(others) * 9], &[1, primary, 0, 0, 0]].concat()
    }

    fn map() -> Vec<u8> {
        let nodes = [node(1, "10.0.0.1:7700"), node(2, "10.0.0.2:7700")].concat();
        let groups = [group(0, 2, 2), group(1, 1, 0)].concat();
        let mut slots = vec![3, 0, 0, 0, 0, 16, 9, 0, 0, 0];
        (0..4_096u16).for_each(|slot| slots.extend((slot % 2).to_le_bytes()));
        let sections = [section(2, &nodes), section(5, &groups), section(6, &slots), section(99, b"later")].concat();
        let mut bytes = [MAGIC, &[0; FIXED_BYTES], &sections].concat();
        bytes.extend(crc32c(&bytes).to_le_bytes());
        bytes
    }

    #[test]
    fn neighbours_are_found_where_the_map_has_them() {
        let map = Map::parse(&map(), [0; 16]).expect("a map");
        let collection = 3 << 48 | 5 << 36 | 1;
        let owners: Vec<_> = (0..3).map(|index| map.owner(collection, index)).collect();
        let [one, two] = ["10.0.0.1:7700", "10.0.0.2:7700"].map(|addr| addr.parse().ok());
        assert_eq!(owners, [one, two, one]);
        assert_eq!(map.owner(collection, 4_091), two, "slot 0 follows slot 4,095");
        assert_eq!([one, two].map(|node| map.drains(node.expect("an address"))), [false, true]);
        assert_eq!(map.owner(4 << 48, 0), None, "another spread group");
        assert_eq!(map.members((3, 1)), one.into_iter().collect::<Vec<_>>());
    }

    #[test]
    fn a_name_lies_in_the_slot_of_its_hash() {
        // As of the protocol's golden hash: its first bytes are 0d 56, so its slot is 0x60d.
        let mut map = Map { key: *b"the herd's key..", ..Map::default() };
        map.nodes.insert(1, "10.0.0.1:7700".parse().expect("an address"));
        map.members.insert((0, 1), vec![1]);
        let mut slots = vec![0; SLOTS];
        slots[0x60d] = 1;
        map.slots.insert(0, slots);
        assert_eq!(map.owner_by_name(2, b"greeting"), "10.0.0.1:7700".parse().ok());
        assert_eq!(map.owner_by_name(2, b"farewell"), None);
    }

    #[test]
    fn what_is_cut_or_damaged_is_no_map() {
        let whole = map();
        assert!((0..whole.len()).all(|len| Map::parse(&whole[..len], [0; 16]).is_err()));
        let mut damaged = whole.clone();
        damaged[70] ^= 1;
        assert!(Map::parse(&damaged, [0; 16]).is_err());
    }
}
