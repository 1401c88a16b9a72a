//! A herd's control store goes whole into another one: what is written of that, in the old one and in the new one.
//!
//! open -> (all of it is copied: the copy is *prepared*, and nobody's) -> (the mark is in the old one: *moved*) -> (the
//! copy is begun) -> open, elsewhere.
//!
//! * The mark is the one moment that counts. Before it the old store goes on, whatever became of the copy; from it on
//!   the old store is no herd's any more ([`State::load`](super::Warden) finds it moved), and the copy may be begun.
//! * A copy has the id of its move, and is begun by that id alone: one of a move that came to nothing never is.
//! * The mark compares the term and the head, and writes the head. So no change of the map comes between the copy and
//!   the mark, and none of the old warden's comes behind it: that compares a head that is not there any more.
//!
//! Callers: the node of the warden, and what starts a node.

use super::hex::Hex;
use super::layout::{self, HERD, Kept, MAP};
use crate::control::{Compare, Entry, Snapshot, Term, Txn, Write};
use crate::place::HerdId;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// In a store that was moved, in place of [`HERD`]: the [`Mark`].
pub const MOVED: &str = "moved";
/// In a store that came by a move: its id.
pub const CAME: &str = "came";
/// In a store of others' making (etcd), in place of [`HERD`], until the copy is begun: the [`Coming`].
pub const COMING: &str = "coming";

/// A move, told from all others by 16 bytes drawn for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MoveId(pub [u8; 16]);

impl MoveId {
    /// As it is written.
    pub fn text(self) -> String {
        Hex(self.0).into()
    }

    /// `None`: it is none.
    pub fn parse(text: &str) -> Option<Self> {
        Hex::try_from(text.to_owned()).ok().map(|hex| Self(hex.0))
    }
}

/// Where a store went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The move.
    pub id: MoveId,
    /// The herd.
    pub herd: HerdId,
    /// The term until which the store was that herd's.
    pub term: Term,
    /// Name of the node where the warden goes on.
    pub node: String,
    /// Where that node is.
    pub addresses: Vec<String>,
    /// The etcd in which the store is from then on; `None`: in that node's directory.
    pub etcd: Option<String>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct MarkForm {
    format: u8,
    id: Hex,
    herd: Hex,
    term: Term,
    node: String,
    addresses: Vec<String>,
    etcd: Option<String>,
}

const FORMAT: u8 = 1;

impl Mark {
    fn json(&self) -> Arc<[u8]> {
        let Self { id, herd, term, node, addresses, etcd } = self.clone();
        let (id, herd) = (Hex(id.0), Hex(herd.0));
        layout::json(&MarkForm { format: FORMAT, id, herd, term, node, addresses, etcd })
    }

    fn read(value: &[u8]) -> Result<Self, String> {
        let form: MarkForm = serde_json::from_slice(value).map_err(|error| format!("key {MOVED}: {error}"))?;
        let MarkForm { format, id, herd, term, node, addresses, etcd } = form;
        match format {
            FORMAT => Ok(Self { id: MoveId(id.0), herd: HerdId(herd.0), term, node, addresses, etcd }),
            other => Err(format!("key {MOVED} has format {other}: this program reads format {FORMAT}")),
        }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Id {
    id: Hex,
}

/// A copy in a store that others see, until it is begun.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Coming {
    /// The move.
    pub id: MoveId,
    /// The herd.
    pub herd: HerdId,
    /// What the key of the herd is to have.
    pub value: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ComingForm {
    id: Hex,
    herd: Hex,
    value: String,
}

/// What a store is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// There is nothing in it.
    Empty,
    /// A herd's.
    Open {
        /// The herd.
        herd: HerdId,
        /// The move by which it came here, if it came by one.
        came: Option<MoveId>,
    },
    /// A herd's that went elsewhere.
    Moved(Mark),
    /// Has a copy that is not begun.
    Coming(Coming),
}

/// What a store with these entries is. An error says what is not as it should be.
pub fn standing(entries: &[Entry]) -> Result<Standing, String> {
    let find = |key: &str| entries.iter().find(|entry| entry.key == key);
    if let Some(entry) = find(MOVED) {
        return Mark::read(&entry.value).map(Standing::Moved);
    }
    if let Some(entry) = find(HERD) {
        let herd = layout::herd_of(&entry.value)?;
        return Ok(Standing::Open { herd, came: find(CAME).and_then(|entry| came(&entry.value)) });
    }
    if let Some(entry) = find(COMING) {
        let form: ComingForm =
            serde_json::from_slice(&entry.value).map_err(|error| format!("key {COMING}: {error}"))?;
        let (id, herd) = (MoveId(form.id.0), HerdId(form.herd.0));
        return Ok(Standing::Coming(Coming { id, herd, value: form.value }));
    }
    match entries.iter().all(|entry| entry.key.starts_with("map/")) {
        true => Ok(Standing::Empty),
        false => Err(format!("it has no key '{HERD}', and is no herd's")),
    }
}

fn came(value: &[u8]) -> Option<MoveId> {
    serde_json::from_slice::<Id>(value).ok().map(|it| MoveId(it.id.0))
}

/// The copy of a store that goes to another node's directory: all of it, and by which move it came.
pub fn copy(all: &Snapshot, id: MoveId) -> Snapshot {
    let mut copy = all.clone();
    copy.entries.retain(|entry| entry.key != CAME);
    let entry = Entry { key: CAME.into(), value: layout::json(&Id { id: Hex(id.0) }), revision: all.revision };
    let at = copy.entries.partition_point(|it| *it.key < *CAME);
    copy.entries.insert(at, entry);
    copy
}

/// The keys that say what a store is. Whoever begins a herd in a store, or puts a copy there, compares them.
pub const STAND: [&str; 4] = [HERD, MAP, MOVED, COMING];

/// What a store that others see has of the copy until it is begun: what is written first and at once, with which nobody
/// else can begin a herd there, and the other entries but for that of the herd.
pub fn unbegun(copy: &Snapshot, id: MoveId) -> Result<([Write; 2], Vec<Entry>), String> {
    let of = |key: &str| copy.entries.iter().find(|entry| entry.key == key).ok_or("the store is no herd's");
    let (herd, head) = (of(HERD)?, of(MAP)?);
    let value = std::str::from_utf8(&herd.value).map_err(|_| "the store's key of the herd is no text")?;
    let form = ComingForm { id: Hex(id.0), herd: Hex(layout::herd_of(&herd.value)?.0), value: value.into() };
    let rest = copy.entries.iter().filter(|entry| entry.key != HERD && entry.key != MAP).cloned().collect();
    let coming = Write::Put { key: COMING.into(), value: layout::json(&form) };
    Ok(([coming, Write::Put { key: MAP.into(), value: head.value.clone() }], rest))
}

/// What begins a copy in a store that others see, where its key has that revision.
pub fn beginning(coming: &Coming, revision: u64) -> Txn {
    let value = coming.value.as_bytes().into();
    Txn {
        term: None,
        compares: vec![Compare { key: COMING.into(), revision }, Compare { key: HERD.into(), revision: 0 }],
        writes: vec![Write::Put { key: HERD.into(), value }, Write::Delete { key: COMING.into() }],
    }
}

/// What marks a store that holds this.
pub(super) fn marking(kept: &Kept, term: Term, mark: &Mark) -> Txn {
    let head = Write::Put { key: MAP.into(), value: kept.head() };
    let moved = Write::Put { key: MOVED.into(), value: mark.json() };
    Txn {
        term: Some(term),
        compares: vec![kept.compare()],
        writes: vec![Write::Delete { key: HERD.into() }, head, moved],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::{Control, Table};

    fn mark() -> Mark {
        Mark {
            id: MoveId([3; 16]),
            herd: HerdId([9; 16]),
            term: 4,
            node: "n2".into(),
            addresses: vec!["a:1".into()],
            etcd: None,
        }
    }

    fn put(store: &mut Table, key: &str, value: &[u8]) {
        let txn = Txn { writes: vec![Write::Put { key: key.into(), value: value.into() }], ..Txn::default() };
        store.txn(&txn).expect("it is right");
    }

    #[test]
    fn what_a_store_is_stands_in_it() {
        let mut store = Table::default();
        let of = |store: &mut Table| standing(&store.snapshot().expect("it reads").entries);
        assert_eq!(of(&mut store), Ok(Standing::Empty));
        put(&mut store, "something", b"else");
        assert!(of(&mut store).is_err());
        put(&mut store, HERD, layout::tests_herd(HerdId([9; 16])).as_bytes());
        assert_eq!(of(&mut store), Ok(Standing::Open { herd: HerdId([9; 16]), came: None }));
        let copy = copy(&store.snapshot().expect("it reads"), MoveId([5; 16]));
        let mut there = Table::restored(copy.clone()).expect("in order");
        let came = Some(MoveId([5; 16]));
        assert_eq!(of(&mut there), Ok(Standing::Open { herd: HerdId([9; 16]), came }));
        put(&mut store, MOVED, &mark().json());
        assert_eq!(of(&mut store), Ok(Standing::Moved(mark())));
        put(&mut store, MOVED, b"{\"format\":1}");
        assert!(of(&mut store).is_err());
    }

    #[test]
    fn a_copy_that_others_see_is_no_herd_s_before_it_is_begun_and_is_begun_once() {
        let mut store = Table::default();
        put(&mut store, HERD, layout::tests_herd(HerdId([9; 16])).as_bytes());
        put(&mut store, "map", b"head");
        let id = MoveId([5; 16]);
        let all = copy(&store.snapshot().expect("it reads"), id);
        let (first, rest) = unbegun(&all, id).expect("a herd's");
        let mut there = Table::default();
        there.txn(&Txn { writes: first.into(), ..Txn::default() }).expect("it is right");
        rest.iter().for_each(|entry| put(&mut there, &entry.key, &entry.value));
        let entries = there.snapshot().expect("it reads").entries;
        let Ok(Standing::Coming(coming)) = standing(&entries) else { panic!("{entries:?}") };
        assert_eq!((coming.id, coming.herd), (id, HerdId([9; 16])));
        let revision = entries.iter().find(|entry| entry.key == COMING).expect("it is there").revision;
        let outcomes = [0, 1].map(|_| there.txn(&beginning(&coming, revision)).expect("it is right"));
        assert!(matches!(outcomes[0], crate::control::Outcome::Done(_)), "{outcomes:?}");
        assert_eq!(outcomes[1], crate::control::Outcome::Refused);
        let values = |store: &mut Table| {
            let entries = store.snapshot().expect("it reads").entries;
            entries.into_iter().map(|entry| (entry.key, entry.value)).collect::<Vec<_>>()
        };
        assert_eq!(values(&mut there), values(&mut Table::restored(all).expect("in order")));
    }
}
