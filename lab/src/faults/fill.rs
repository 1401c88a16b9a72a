//! Makes a replica refuse writes: fills the node with the least memory, by objects of groups in which it is a backup,
//! until it has no room for another one; then removes them all.

use crate::error::{Error, Result};
use crate::faults::seen;
use crate::histories::door::{Door, Kind, Request};
use crate::histories::record::{Arg, Op, Outcome};
use crate::map::Map;
use crate::nodes::Herd;
use crate::wire::DEFAULT_COLLECTION;

/// Memory of the small node.
pub(super) const MEMORY: &str = "32m";
/// Bytes of an object: as many as go with a prepare.
const BYTES: usize = 60_000;
/// More than its memory holds.
const MOST: usize = 700;

/// Whether a replica refused a write: by what a client was told, and by the node's own count.
pub(super) fn refuse(herd: &Herd, map: &Map, small: usize, prefix: &str) -> Result<bool> {
    let count = || Ok::<_, Error>(seen::value(&seen::metrics(herd, small)?, seen::REFUSED).unwrap_or(0));
    let before = count()?;
    let names: Vec<String> = names(herd, map, small, prefix);
    let was_told = herd.on_clients(|| {
        let mut door = Door::open(Kind::Wire, herd.place(0))?;
        let value = "f".repeat(BYTES);
        let (mut written, mut told) = (0, false);
        while written < names.len() && !told {
            let (outcome, _) = door.ask(&request(Op::Put, &names[written], &value))?;
            told = matches!(outcome, Outcome::Refused(_));
            written += 1;
        }
        names[..written].iter().try_for_each(|name| door.ask(&request(Op::Remove, name, "")).map(drop))?;
        Ok(told)
    })?;
    Ok(was_told && count()? > before)
}

/// Of objects of which the small node is to keep a copy that another one decides on.
fn names(herd: &Herd, map: &Map, small: usize, prefix: &str) -> Vec<String> {
    let small = herd.place(small);
    let is_backup = |name: &String| {
        let group = map.group_by_name(DEFAULT_COLLECTION, name.as_bytes());
        let members = group.map(|group| map.members(group)).unwrap_or_default();
        members.iter().position(|member| *member == small).is_some_and(|place| place > 0)
    };
    // It may keep nothing just now.
    if !map.groups().any(|group| map.members(group).iter().skip(1).any(|member| *member == small)) {
        return Vec::new();
    }
    (0..1_000_000).map(|number| format!("{prefix}fill-{number}")).filter(is_backup).take(MOST).collect()
}

fn request(op: Op, name: &str, value: &str) -> Request {
    Request { op, name: name.to_owned(), arg: Arg { value: value.to_owned(), ..Arg::default() }, token: None }
}
