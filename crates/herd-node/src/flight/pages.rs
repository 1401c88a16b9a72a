//! A page of names of a whole herd: each node that decides on some of them gives a page of its own, and they are put
//! together. One that can't be asked makes it an error, never a shorter page; so does a map that changes meanwhile.
//!
//! Sorted names are merged. Others have no order but that of each node, so the nodes come one after the other, by
//! their numbers: whose turn it is the name tells that the page before ended with, by the node that has it.

use super::route::CACHE_UNLEASED;
use super::{Handing, Landed, Where};
use crate::context::Context;
use crate::report::groups::not_led;
use herd_core::error::quote;
use herd_core::op::Answer;
use herd_core::place::NodeId;
use herd_core::wire::{Fields, Header, ListEntries, Verb};
use herd_core::{Error, ErrorKind};
use herd_store::{Collection, ListItem, Page, Seat};
use std::collections::BTreeSet;

/// How a page is put together.
pub(crate) struct Pages {
    is_sorted: bool,
    /// How many other nodes come before this one; `None`: its names were all told.
    own: Option<usize>,
    /// This node's part begins behind the name that was asked for; else at its first.
    goes_on: bool,
    limit: usize,
    /// Of the map by which the nodes were asked.
    epoch: u32,
}

impl Context {
    /// Whether this node decides on an object that it has.
    pub(crate) fn decides_on(&self, c: &Collection, name: &[u8]) -> bool {
        matches!(self.shared.store.seat(c, name), Seat::Alone | Seat::Leased | Seat::Led)
    }

    /// Refuses to tell what this node has of class `cache` while others may have been given that.
    pub(crate) fn check_lease(&self, c: &Collection) -> Result<(), Error> {
        let map = self.shared.place.get().and_then(|place| place.map());
        let is_leased = map.is_some_and(|(map, _)| self.shared.gates.is_leased(&map));
        if !c.class().evicts() || !is_leased || self.shared.gates.has_cache_lease() {
            return Ok(());
        }
        let text = format!("collection '{}' is of class cache, and {CACHE_UNLEASED}", c.name());
        Err(Error::new(ErrorKind::Unreachable, text))
    }

    /// The error where a node can't be asked for what is about no object: for names, or for a change of all it has.
    #[cold]
    pub(super) fn node_away(&self, node: NodeId, changes: bool) -> Error {
        let map = self.shared.place.get().and_then(|place| place.map());
        let name = map.and_then(|(map, _)| map.node(node).map(|node| quote(node.name.as_bytes()).to_string()));
        let name = name.unwrap_or_else(|| node.0.to_string());
        let what = if changes { "" } else { ", which has some of the names," };
        let text = format!("node '{name}'{what} can't be reached: see that it runs");
        Error::new(ErrorKind::Unreachable, text)
    }

    /// Whom to ask for a page, in order, and what. Error: some names are out of reach.
    pub(crate) fn pages(
        &mut self,
        c: &Collection,
        prefix: &[u8],
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<(Pages, Vec<Handing>), Error> {
        let out_of_reach = || Error::new(ErrorKind::Unreachable, "not all nodes can be asked: try again");
        let place = self.shared.place.get().filter(|_| self.shared.hub.get().is_some());
        let (me, (map, _)) = place.and_then(|place| Some((place.me().node, place.map()?))).ok_or_else(out_of_reach)?;
        let spread = map.spread(c.id().spread_group()).ok_or_else(out_of_reach)?;
        if let Some(group) = spread.groups.iter().find(|group| group.primary.is_none()) {
            let text = format!("nobody can be asked for some of the names: {}", not_led(&map, group));
            return Err(Error::new(ErrorKind::Unreachable, text));
        }
        let nodes: BTreeSet<NodeId> = spread.groups.iter().filter_map(|group| group.primary).collect();
        let mut nodes: Vec<NodeId> = nodes.into_iter().collect();
        if nodes.contains(&me) {
            self.check_lease(c)?;
        }
        let (is_sorted, epoch) = (c.spec().ordered, map.epoch);
        let first = match after.filter(|_| !is_sorted) {
            None => None,
            Some(name) => Some(match self.whereabouts(c, name) {
                Where::Here | Where::Group(_) => me,
                Where::Node(node) => node,
                Where::Soon | Where::Nowhere => return Err(self.why_away(c, name)),
            }),
        };
        nodes.retain(|node| first.is_none_or(|first| *node >= first));
        let goes_on = |node: NodeId| is_sorted || first == Some(node);
        let own = nodes.iter().position(|node| *node == me);
        let pages = Pages { is_sorted, own, goes_on: goes_on(me), limit, epoch };
        let mut handings = Vec::new();
        for node in nodes.into_iter().filter(|node| *node != me) {
            let (prefix, after) = ((!prefix.is_empty()).then_some(prefix), after.filter(|_| goes_on(node)));
            let limit = Some(limit as u32);
            let fields = Fields { prefix, after, limit, ..Fields::default() };
            handings.push(Handing::to_node(self, c, node, Header::request(Verb::List, 0), &fields)?);
        }
        Ok((pages, handings))
    }
}

impl Pages {
    /// Whether names of this node belong to the page, and whether only those behind the one that was asked for.
    pub(crate) fn own(&self) -> Option<bool> {
        self.own.map(|_| self.goes_on)
    }

    /// An error if the map has changed since.
    pub(crate) fn check(&self, cx: &Context) -> Result<(), Error> {
        if cx.shared.map_mark().epoch == self.epoch { Ok(()) } else { Err(changed()) }
    }

    /// The pages of the other nodes.
    pub(crate) fn of_others(&self, landed: Vec<Landed>) -> Result<Vec<Page>, Error> {
        landed.into_iter().map(|landed| self.of_other(landed)).collect()
    }

    fn of_other(&self, landed: Landed) -> Result<Page, Error> {
        let (_, answer) = landed.done?;
        if landed.relayed.is_some_and(|(header, _)| header.epoch != self.epoch) {
            return Err(changed());
        }
        let Answer::Bytes(bytes) = answer else { return Ok(Page::new()) };
        let item = |entry: herd_core::wire::ListEntry<'_>| ListItem {
            name: entry.name.into(),
            size_bytes: entry.size_bytes,
            version: entry.version,
        };
        ListEntries::new(&bytes).map(|entry| Ok(item(entry?))).collect()
    }

    /// The page, of this node's own and the others', and whether it is the last.
    pub(crate) fn merge(&self, own: Page, mut others: Vec<Page>) -> (Page, bool) {
        if let Some(at) = self.own {
            others.insert(at.min(others.len()), own);
        }
        // What was cut at the limit may go on, and a name behind it may come before one of the next node.
        let mut is_end = others.iter().all(|page| page.len() < self.limit);
        let mut page: Page = match self.is_sorted {
            true => others.into_iter().flatten().collect(),
            false => {
                let whole = others.iter().position(|page| page.len() >= self.limit);
                others.into_iter().take(whole.map_or(usize::MAX, |at| at + 1)).flatten().collect()
            }
        };
        if self.is_sorted {
            page.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        }
        is_end &= page.len() <= self.limit;
        page.truncate(self.limit);
        (page, is_end)
    }
}

#[cold]
fn changed() -> Error {
    Error::new(ErrorKind::Unreachable, "the map of the herd changed while its names were listed: try again")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(names: &str) -> Page {
        let item = |name: char| ListItem { name: name.to_string().as_bytes().into(), size_bytes: 1, version: 1 };
        names.chars().map(item).collect()
    }

    fn merged(is_sorted: bool, own: Option<usize>, limit: usize, pages: [&str; 3]) -> (String, bool) {
        let pages_of = Pages { is_sorted, own, goes_on: false, limit, epoch: 1 };
        let (page, is_end) = pages_of.merge(page(pages[0]), pages[1..].iter().map(|names| page(names)).collect());
        (page.iter().map(|item| String::from_utf8_lossy(&item.name).into_owned()).collect(), is_end)
    }

    #[test]
    fn pages_of_nodes_are_one_page() {
        assert_eq!(merged(true, Some(1), 9, ["be", "ad", "cf"]), ("abcdef".into(), true));
        assert_eq!(merged(true, Some(0), 2, ["be", "ad", "cf"]), ("ab".into(), false));
        assert_eq!(merged(false, Some(1), 9, ["be", "ad", "cf"]), ("adbecf".into(), true));
        assert_eq!(merged(false, Some(2), 3, ["be", "ad", "cf"]), ("adc".into(), false));
        assert_eq!(merged(false, None, 6, ["be", "ad", "cf"]), ("adcf".into(), true));
        assert_eq!(merged(false, None, 2, ["", "ad", "cf"]), ("ad".into(), false), "the last may have more");
        assert_eq!(merged(false, Some(0), 2, ["", "", "f"]), ("f".into(), true));
    }
}
