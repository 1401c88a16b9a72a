//! Where a request goes: the herd's map as a client uses it, and when it asks for a newer one. Pure.
//!
//! A [`Chart`] is made of a map that a node told; it never changes. [`Asks`] decides when to ask: never before a node
//! has told that there are others, at most once a second, and nobody waits for the answer. Whatever a chart says may be
//! old, or of no use where the client stands: any node does what any client asks, so the worst it costs is that a node
//! hands the request on.
//!
//! | asks: state | by | to |
//! |---|---|---|
//! | content | a reply of a later epoch, or of a collection that is not as the chart has it | wanting |
//! | wanting, a second after it asked last | [`Asks::due`] | asked; it goes on wanting |
//! | wanting, asked | [`Asks::answered`] with what it heard of | content |

use crate::limits::MAP_AGAIN_MS;
use crate::request::{Place, Request};
use herd_core::collection::Spec;
use herd_core::key::{self, CollectionId, HashKey, ObjectId};
use herd_core::place::{Map, NodeId};
use herd_core::wire::{MapMark, Meant};
use std::collections::HashMap;

/// A map as a client uses it.
pub(crate) struct Chart {
    pub(crate) map: Map,
    pub(crate) mark: MapMark,
    key: HashKey,
    /// By name: the id, and whether objects are named by index.
    collections: HashMap<String, (CollectionId, bool)>,
    /// Of each node of the map, in its order: where it can be reached, as indices of the client's addresses.
    places: Vec<Vec<usize>>,
}

/// What a chart says of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Toward {
    /// Any node will do: it is not about one object, or nobody decides on that.
    Anyone,
    /// The chart has no such collection.
    Unmapped,
    /// The node, by its place in the map, that decides on the object; and the id of its collection.
    Owner(usize, CollectionId),
}

impl Chart {
    /// Of a map; `place` gives the index of an address, or `None` if it can't be used.
    pub(crate) fn new(map: Map, (mark, key): (MapMark, HashKey), mut place: impl FnMut(&str) -> Option<usize>) -> Self {
        let of_node = |node: &herd_core::place::Node| node.addresses.iter().filter_map(|text| place(text)).collect();
        let places = map.nodes.iter().map(of_node).collect();
        let indexed = |spec: &Spec| spec.indexed;
        let collections = map.collections.iter().map(|it| (it.name.clone(), (it.id, indexed(&it.spec)))).collect();
        Self { map, mark, key, collections, places }
    }

    /// Where a request goes.
    pub(crate) fn toward(&self, request: &Request<'_>) -> Toward {
        let Some((place, name)) = request.object() else { return Toward::Anyone };
        let (id, indexed) = match place {
            Place::Id(id) => (id, false),
            Place::Named(name) => match self.collections.get(name) {
                Some(&known) => known,
                None => return Toward::Unmapped,
            },
        };
        let object = match if indexed { key::index(name) } else { None } {
            Some(index) => ObjectId::at(&self.key, id, index),
            None => ObjectId::of(&self.key, id, name),
        };
        let primary = self.map.group_of(id, object).and_then(|(_, group)| group.primary);
        let at = primary.and_then(|node| self.map.nodes.binary_search_by_key(&node, |node| node.id).ok());
        at.map_or(Toward::Anyone, |at| Toward::Owner(at, id))
    }

    /// Where a node can be reached, best first.
    pub(crate) fn places(&self, node: usize) -> &[usize] {
        &self.places[node]
    }

    /// How a hello says that it means this node.
    pub(crate) fn meant(&self, node: usize) -> Meant {
        let node: NodeId = self.map.nodes[node].id;
        Meant { herd: self.map.herd, node }
    }

    /// How many nodes it has.
    pub(crate) fn nodes(&self) -> usize {
        self.places.len()
    }
}

/// When to ask for the map. Times in ms of one clock.
#[derive(Debug, Default)]
pub(crate) struct Asks {
    /// The latest epoch that a reply told.
    heard: u32,
    /// The epoch of the map at hand.
    known: u32,
    /// A collection is not as the map at hand has it.
    stale: bool,
    /// It must come whole: the map at hand is of another herd.
    pub(crate) anew: bool,
    next_ms: u64,
}

impl Asks {
    /// Takes note of what a reply told; whether a map is wanted.
    pub(crate) fn heard(&mut self, epoch: u32, stale: bool) -> bool {
        self.heard = self.heard.max(epoch);
        self.stale |= stale;
        self.wants()
    }

    /// Whether a map is wanted.
    pub(crate) fn wants(&self) -> bool {
        self.heard > self.known || self.stale || self.anew
    }

    /// The latest epoch of which there is nothing new to hear.
    pub(crate) fn expected(&self) -> u32 {
        self.heard.max(self.known)
    }

    /// Whether to ask now; it is asked then.
    pub(crate) fn due(&mut self, now_ms: u64) -> bool {
        let due = self.wants() && now_ms >= self.next_ms;
        if due {
            self.asked(now_ms);
        }
        due
    }

    /// It is asked, because a request waits for it.
    pub(crate) fn asked(&mut self, now_ms: u64) {
        self.next_ms = now_ms.saturating_add(MAP_AGAIN_MS);
    }

    /// Takes the answer: the epoch of the map at hand then; `None` if there is no other node.
    pub(crate) fn answered(&mut self, known: Option<u32>) {
        (self.stale, self.anew) = (false, false);
        self.known = known.unwrap_or(0);
        self.heard = if known.is_some() { self.heard } else { 0 };
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::{Condition, PutOptions};
    use herd_core::collection::Wanted;
    use herd_core::place::{Collection, Draft, Group, Grows, HerdId, Kind, Node, NodeState};
    use std::num::NonZeroU32;

    pub(crate) const KEY: HashKey = HashKey([3; 16]);

    pub(crate) fn id(number: u32) -> NodeId {
        NodeId(NonZeroU32::new(number).expect("nodes count from 1"))
    }

    /// A herd whose nodes, at these addresses, have one group each; slot s lies in group s modulo nodes.
    pub(crate) fn herd(addresses: &[&str]) -> Map {
        let node = |at: usize| Node {
            id: id(at as u32 + 1),
            name: format!("n{at}"),
            addresses: addresses[at].split('|').map(str::to_owned).collect(),
            incarnation: 1,
            host: format!("h{at}"),
            rack: String::new(),
            memory_bytes: 1 << 30,
            state: NodeState::Up,
            protocol: 1,
        };
        let mut draft = Draft { nodes: (0..addresses.len()).map(node).collect(), ..Draft::empty(HerdId([7; 16])) };
        draft.add_spread(Kind::Kept, 1, Grows::ByItself).expect("there is room");
        let groups = (0..addresses.len()).map(|at| {
            let node = id(at as u32 + 1);
            Group { primary: Some(node), eligible: vec![node], ..Group::default() }
        });
        draft.spreads[0].groups = groups.collect();
        draft.spreads[0].slots.iter_mut().enumerate().for_each(|(s, group)| *group = (s % addresses.len()) as u16);
        let of = |id, name: &str, indexed| {
            let spec = Spec { indexed, ..Spec::of("ram:1") };
            Collection { id, name: name.into(), spec, generation: 1 }
        };
        draft.collections.push(of(CollectionId::DEFAULT, "default", false));
        draft.collections.push(of(CollectionId::new(0, 3), "array", true));
        Map::first(draft, 5).expect("a valid map")
    }

    fn chart() -> Chart {
        let mut seen = Vec::new();
        let map = herd(&["a:1", "unix:/x|b:1|b:2", "c:1"]);
        let mark = MapMark::of(&map, true);
        Chart::new(map, (mark, KEY), |text| {
            seen.push(text.to_owned());
            (!text.starts_with("unix")).then(|| seen.len() - 1)
        })
    }

    #[test]
    fn what_is_about_one_object_goes_to_who_decides_on_it() {
        let chart = chart();
        for i in 0..50 {
            let name = format!("n{i}");
            let slot = ObjectId::of(&KEY, CollectionId::DEFAULT, name.as_bytes()).slot();
            let owner = Toward::Owner(slot % 3, CollectionId::DEFAULT);
            let nothing: [&[u8]; 0] = [];
            for request in [
                Request::get(&name),
                Request::stat(&name),
                Request::put(&name, b"x", &PutOptions::default()),
                Request::remove(&name, Condition::None),
                Request::execute(&name, "touch", &nothing),
            ] {
                assert_eq!(chart.toward(&request.expect("valid")), owner);
            }
        }
    }

    #[test]
    fn neighbours_of_an_array_go_to_one_node_after_the_other() {
        let chart = chart();
        let array = CollectionId::new(0, 3);
        for i in 0..9 {
            let owner = Toward::Owner((array.first_slot() + i) % 3, array);
            assert_eq!(chart.toward(&Request::get(&format!("array/{i}")).expect("valid")), owner);
        }
    }

    #[test]
    fn what_is_not_about_one_object_goes_to_anyone() {
        let chart = chart();
        let requests = [
            Request::list(b"default", b"", None),
            Request::create("new", &Wanted::of(Spec::of("ram:1"))),
            Request::destroy("array"),
            Ok(Request::system("status")),
        ];
        for request in requests {
            assert_eq!(chart.toward(&request.expect("valid")), Toward::Anyone);
        }
        assert_eq!(chart.toward(&Request::get("new/x").expect("valid")), Toward::Unmapped);
        let map = chart.map.next(|draft| draft.spreads[0].groups[1] = Group::default()).expect("valid");
        let mark = MapMark::of(&map, true);
        let orphan = (0..).map(|i| format!("n{i}")).find(|name| {
            let request = Request::get(name).expect("valid");
            matches!(chart.toward(&request), Toward::Owner(1, _))
        });
        let chart = Chart::new(map, (mark, KEY), |_| None);
        let request = orphan.as_ref().map(|name| Request::get(name).expect("valid")).expect("one of many");
        assert_eq!(chart.toward(&request), Toward::Anyone, "nobody decides on it");
    }

    #[test]
    fn addresses_that_can_not_be_used_are_left_out() {
        let chart = chart();
        assert_eq!((chart.places(0), chart.places(1), chart.places(2)), (&[0][..], &[2, 3][..], &[4][..]));
        assert_eq!(chart.meant(1), Meant { herd: HerdId([7; 16]), node: id(2) });
    }

    #[test]
    fn a_map_is_asked_for_once_a_second_while_there_is_a_reason() {
        let mut asks = Asks::default();
        assert!(!asks.heard(0, false) && !asks.due(0), "a node that is alone is not asked");
        assert!(asks.heard(5, false) && asks.due(10));
        assert!(!asks.due(MAP_AGAIN_MS + 9), "it was asked just now");
        assert!(asks.due(MAP_AGAIN_MS + 10), "no answer came");
        asks.answered(Some(5));
        assert!(!asks.heard(5, false) && !asks.heard(4, false) && !asks.due(u64::MAX));
        assert!(asks.heard(5, true) && asks.due(90_000), "a collection is new");
        asks.answered(Some(5));
        assert!(asks.heard(7, false) && asks.due(100_000));
        asks.answered(Some(6));
        assert!(asks.wants() && !asks.due(100_500) && asks.due(101_000), "who answered was behind itself");
        asks.answered(None);
        assert!(!asks.wants(), "there is no other node any more");
        assert!(asks.heard(8, false), "and then there is");
    }
}
