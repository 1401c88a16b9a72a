//! Objects of one slot whose copies differed each time they were asked for. Pure.

use super::ENDS_SLACK_MS;
use std::collections::{BTreeMap, BTreeSet};

/// Objects that are kept of a slot: enough to name some.
const KEPT_MAX: usize = 1000;

/// An object as a node told of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Item {
    /// `COLLECTION/NAME`, as people may see it.
    pub(super) name: String,
    pub(super) version: u64,
    /// Of all that must be alike.
    pub(super) digest: u128,
    /// When it ends, ms since all were asked.
    pub(super) ends_ms: Option<u128>,
}

/// What a node has of a slot, by what tells the objects apart.
pub(super) type Items = BTreeMap<String, Item>;

/// An object whose copies differ.
pub(super) struct Suspect {
    pub(super) name: String,
    /// At each node, the version, `None` where it is missing; as it was at last.
    pub(super) versions: Vec<Option<u64>>,
    /// The digests at each node, as they were at last.
    digests: Vec<Option<u128>>,
    /// At which nodes it was the same all the time.
    still: Vec<bool>,
}

/// Those of one slot.
#[derive(Default)]
pub(super) struct Suspects {
    rounds: usize,
    all: BTreeMap<String, Suspect>,
}

impl Suspects {
    /// What each node has of the slot now, and whether it should have what the others have; one that should not must
    /// have nothing.
    pub(super) fn round(&mut self, told: &[(bool, Items)]) {
        let ids: BTreeSet<&String> = told.iter().flat_map(|(_, items)| items.keys()).collect();
        let mut now = BTreeMap::new();
        for id in ids {
            let found: Vec<Option<&Item>> = told.iter().map(|(_, items)| items.get(id)).collect();
            let digests: Vec<Option<u128>> = found.iter().map(|item| item.map(|item| item.digest)).collect();
            if are_right(told, &digests) && end_together(&found)
                || (self.rounds > 0 && !self.all.contains_key(id))
                || now.len() == KEPT_MAX
            {
                continue;
            }
            let before = self.all.get(id);
            let same = |at: usize| before.is_none_or(|before| before.still[at] && before.digests[at] == digests[at]);
            let suspect = Suspect {
                name: found.iter().flatten().next().map_or_else(String::new, |item| item.name.clone()),
                versions: found.iter().map(|item| item.map(|item| item.version)).collect(),
                still: (0..told.len()).map(same).collect(),
                digests,
            };
            now.insert(id.clone(), suspect);
        }
        (self.all, self.rounds) = (now, self.rounds + 1);
    }

    /// Whether nothing differed each time.
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Keeps those that are proved to differ: at one node at least they have not changed all the time. Gives how many
    /// were written at all nodes, so that nothing can be said of them.
    pub(super) fn settle(&mut self) -> usize {
        let before = self.all.len();
        self.all.retain(|_, suspect| suspect.still.contains(&true));
        before - self.all.len()
    }

    /// In the order of their names.
    pub(super) fn named(&self) -> Vec<&Suspect> {
        let mut all: Vec<&Suspect> = self.all.values().collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all
    }
}

/// Whether copies end at about the same time, as far as they end.
fn end_together(found: &[Option<&Item>]) -> bool {
    let ends = || found.iter().flatten().filter_map(|item| item.ends_ms);
    let (first, last) = (ends().min().unwrap_or(0), ends().max().unwrap_or(0));
    last - first <= ENDS_SLACK_MS.into()
}

/// Whether all that should have the object have the same, and the others nothing.
fn are_right(told: &[(bool, Items)], digests: &[Option<u128>]) -> bool {
    let mut copies = told.iter().zip(digests).filter(|((is_member, _), _)| *is_member).map(|(_, digest)| digest);
    let first = copies.next();
    let alike = first.is_none_or(|first| copies.all(|digest| digest == first));
    alike && told.iter().zip(digests).all(|((is_member, _), digest)| *is_member || digest.is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn items(of: &[(&str, u64)]) -> Items {
        let one = |&(name, version): &(&str, u64)| {
            (name.to_owned(), Item { name: name.to_owned(), version, digest: version.into(), ends_ms: None })
        };
        of.iter().map(one).collect()
    }

    fn after(rounds: &[[&[(&str, u64)]; 2]], second_is_member: bool) -> (Vec<String>, usize) {
        let mut suspects = Suspects::default();
        for [a, b] in rounds {
            suspects.round(&[(true, items(a)), (second_is_member, items(b))]);
        }
        let busy = suspects.settle();
        (suspects.named().iter().map(|suspect| suspect.name.clone()).collect(), busy)
    }

    #[test]
    fn what_differs_for_a_moment_is_none() {
        let (none, some): (&[_], &[_]) = (&[], &[("a", 1), ("b", 2)]);
        assert_eq!(after(&[[some, some]], true).0, [""; 0]);
        assert_eq!(after(&[[some, none], [some, &[("a", 1)]]], true).0, ["b"]);
        assert_eq!(after(&[[&[("a", 1)], none], [&[("a", 1)], &[("a", 1)]]], true).0, [""; 0]);
        // Another one differs the next time: a write that is under way.
        assert_eq!(after(&[[&[("a", 1)], none], [&[("b", 1)], none]], true).0, [""; 0]);
    }

    #[test]
    fn a_copy_that_lags_is_told_from_an_object_that_is_written_all_the_time() {
        let lags: [[&[_]; 2]; 3] = [[&[("a", 3)], &[("a", 1)]], [&[("a", 4)], &[("a", 1)]], [&[("a", 5)], &[("a", 1)]]];
        assert_eq!(after(&lags, true), (vec!["a".into()], 0));
        let busy: [[&[_]; 2]; 2] = [[&[("a", 3)], &[("a", 2)]], [&[("a", 5)], &[("a", 4)]]];
        assert_eq!(after(&busy, true), (vec![], 1));
    }

    #[test]
    fn copies_that_end_at_other_times_differ() {
        let ending = |ends_ms| {
            let mut items = items(&[("a", 1)]);
            items.values_mut().for_each(|item| item.ends_ms = Some(ends_ms));
            (true, items)
        };
        for (ends_ms, differ) in [(0, 0), (15_000, 0), (15_001, 1), (3_600_000, 1)] {
            let mut suspects = Suspects::default();
            (0..4).for_each(|_| suspects.round(&[ending(1_000), ending(1_000 + ends_ms)]));
            assert_eq!((suspects.settle(), suspects.named().len()), (0, differ), "{ends_ms}");
        }
    }

    #[test]
    fn who_is_no_member_must_have_nothing() {
        let some: &[_] = &[("a", 1)];
        assert_eq!(after(&[[some, some], [some, some]], false).0, ["a"]);
        assert_eq!(after(&[[some, &[]]], false).0, [""; 0]);
    }
}
