//! What is told of the comparison.

use super::ask::Sums;
use super::{DOWN, Different, Found, Herd};
use crate::exit::{Failure, NOT_SO, Outcome, REFUSED};
use crate::out;
use serde_json::{Value, json};
use std::fmt::Write as _;

/// Objects of a slot that are named.
const NAMED_MAX: usize = 10;

/// Prints what was found; fails where copies differ, or a node could not be asked.
pub(super) fn tell(herd: &Herd, sums: &[Sums], found: &Found, as_json: bool) -> Outcome {
    let objects: u64 = sums.iter().flat_map(|sums| sums.values()).map(|(_, sum)| sum.objects).sum();
    let silent: Vec<(&str, &str)> =
        herd.nodes.iter().filter_map(|node| Some((&*node.name, &**node.client.as_ref().err()?))).collect();
    if as_json {
        out::print(format!("{}\n", document(herd, objects, &silent, found)))?;
    } else {
        out::print(text(herd, objects, &silent, found))?;
    }
    let slots = found.slots.len() + found.more;
    if slots > 0 {
        return Err(Failure::new(NOT_SO, format!("fsck: the copies of {slots} slots are not what they should be")));
    }
    match silent[..] {
        [] if herd.nodes.is_empty() => {
            Err(Failure::new(REFUSED, "fsck: no node was asked: by the herd's map none of them is there"))
        }
        [] => Ok(()),
        [(name, DOWN)] => Err(Failure::new(REFUSED, format!("fsck: node {name} is down, and could not be asked"))),
        [(name, _)] => Err(Failure::new(REFUSED, format!("fsck: node {name} could not be asked"))),
        _ => Err(Failure::new(REFUSED, format!("fsck: {} nodes could not be asked", silent.len()))),
    }
}

fn text(herd: &Herd, objects: u64, silent: &[(&str, &str)], found: &Found) -> String {
    let mut text = String::new();
    let mut line = |line: std::fmt::Arguments<'_>| writeln!(text, "{line}").expect("a string takes all");
    // Of one that is down the last line tells.
    for (name, why) in silent.iter().filter(|(_, why)| *why != DOWN) {
        line(format_args!("node {name} could not be asked: {why}"));
    }
    for different in &found.slots {
        let held = different.nodes.iter().zip(&different.sums).map(|((at, is_member), sum)| {
            let stray = if *is_member { "" } else { " and is no member" };
            format!("{} has {}{stray}", herd.nodes[*at].name, counted(sum.objects, "object"))
        });
        let (spread, slot) = different.slot;
        line(format_args!("group {spread}/{}, slot {slot}: {}", different.group, held.collect::<Vec<_>>().join(", ")));
        let named = different.suspects.named();
        for suspect in named.iter().take(NAMED_MAX) {
            let version = |(at, version): (usize, &Option<u64>)| {
                let version = version.map_or_else(|| "none".to_owned(), |version| format!("version {version}"));
                format!("{} {version}", name(herd, different, at))
            };
            let versions: Vec<String> = suspect.versions.iter().enumerate().map(version).collect();
            line(format_args!("  {}: {}", suspect.name, versions.join(", ")));
        }
        if named.len() > NAMED_MAX {
            line(format_args!("  and {} more", named.len() - NAMED_MAX));
        }
    }
    if found.more > 0 {
        line(format_args!("and {} more slots whose sums differ", found.more));
    }
    if found.busy > 0 {
        line(format_args!("{} objects were written all the time, and not compared", found.busy));
    }
    herd.losses.iter().for_each(|loss| line(format_args!("{loss}")));
    let (answered, all) = (herd.nodes.len() - silent.len(), herd.nodes.len());
    let (of, held) = (counted(all as u64, "node"), if objects == 1 { "copy" } else { "copies" });
    let down = down(herd);
    line(format_args!("{answered} of {of} asked{down}, {objects} {held} of objects, {}", copies(herd)));
    if found.slots.is_empty() && answered > 0 && !silent.is_empty() {
        line(format_args!("as far as nodes could be asked, all copies are the same"));
    }
    if found.slots.is_empty() && silent.is_empty() {
        let alone = herd.groups.values().all(|group| group.members.len() <= 1);
        let what = if alone { "each object has one copy, where it belongs" } else { "all copies are the same" };
        match herd.stopped {
            0 => line(format_args!("clean: {what}")),
            _ => line(format_args!("clean, as far as there are copies to compare")),
        }
    }
    if herd.stopped > 0 {
        let (stopped, all) = (herd.stopped, herd.groups_all);
        line(format_args!("{stopped} of {all} groups take no writes: `herd group ls` tells why"));
    }
    text
}

/// A number of things.
fn counted(count: u64, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// Which nodes were not asked as they are down.
fn down(herd: &Herd) -> String {
    let down = herd.nodes.iter().filter(|node| node.is_down && node.client.is_err());
    let names: Vec<&str> = down.map(|node| &*node.name).collect();
    match names[..] {
        [] => String::new(),
        [name] => format!(", {name} is down"),
        _ => format!(", {} are down", names.join(" and ")),
    }
}

/// How many groups there are, and of how many nodes.
fn copies(herd: &Herd) -> String {
    let all = counted(herd.groups_all, "group");
    let (least, most) = (herd.sizes.keys().next().unwrap_or(&1), herd.sizes.keys().last().unwrap_or(&1));
    if herd.sizes.values().sum::<u64>() < herd.groups_all {
        return format!("{all} of {least} to {most}");
    }
    let mut sizes = herd.sizes.iter().rev();
    let first = sizes
        .next()
        .map_or_else(|| format!("{all} of 1"), |(size, count)| format!("{} of {size}", counted(*count, "group")));
    sizes.fold(first, |told, (size, count)| format!("{told} and {count} of {size}"))
}

fn name<'h>(herd: &'h Herd, different: &Different, at: usize) -> &'h str {
    different.nodes.get(at).map_or("?", |(node, _)| &herd.nodes[*node].name)
}

fn document(herd: &Herd, objects: u64, silent: &[(&str, &str)], found: &Found) -> Value {
    let node = |name: &str, why: Option<&str>| json!({"name": name, "asked": why.is_none(), "error": why});
    let nodes: Vec<Value> =
        herd.nodes.iter().map(|of| node(&of.name, of.client.as_ref().err().map(String::as_str))).collect();
    let difference = |different: &Different| {
        let held = different.nodes.iter().zip(&different.sums).map(
            |((at, is_member), sum)| json!({"node": herd.nodes[*at].name, "member": is_member, "objects": sum.objects}),
        );
        let named = different.suspects.named();
        let objects = named.iter().take(NAMED_MAX).map(|suspect| {
            let versions = suspect.versions.iter().enumerate();
            let versions = versions.map(|(at, version)| json!({"node": name(herd, different, at), "version": version}));
            json!({"key": suspect.name, "versions": versions.collect::<Vec<_>>()})
        });
        json!({
            "spread": different.slot.0,
            "group": different.group,
            "slot": different.slot.1,
            "copies": held.collect::<Vec<_>>(),
            "differ": named.len(),
            "objects": objects.collect::<Vec<_>>(),
        })
    };
    json!({
        "clean": found.slots.is_empty() && silent.is_empty(),
        "epoch": herd.epoch,
        "nodes": nodes,
        "groups": herd.groups_all,
        "copies": objects,
        "differences": found.slots.iter().map(difference).collect::<Vec<_>>(),
        "more_slots": found.more,
        "busy": found.busy,
        "groups_stopped": herd.stopped,
        "losses": herd.losses,
    })
}
