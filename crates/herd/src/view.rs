//! The herd as a whole: its nodes, its groups, its state. One node is asked what it knows of the herd, then each of the
//! nodes that it names, at once, what it holds. Who does not answer is shown as such, and is no failure: that is what
//! one looks for.

use crate::args::{GroupCommand, HerdArgs, ShowArgs, StatusArgs};
use crate::exit::{Failure, Outcome, REFUSED};
use crate::objects::client;
use crate::out;
use crate::progress::Steps;
use herd_client::Config;
use herd_client::blocking::Client;
use herd_core::place::{HerdId, NodeId};
use herd_core::size;
use herd_core::warden::Hex;
use herd_core::wire::Meant;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::num::NonZeroU32;
use std::time::{Duration, Instant};

/// How long a node is waited for that another one has named.
const PATIENCE: Duration = Duration::from_secs(2);
/// The same of one that the herd goes on without: one that is back answers at once.
const DOWN_PATIENCE: Duration = Duration::from_millis(300);
/// How often it is looked whether groups have their copies.
const AGAIN: Duration = Duration::from_millis(200);
/// How long no node may answer meanwhile.
const SILENT: Duration = Duration::from_secs(10);
/// How long it may wait for the same before it is said what for.
const STUCK: Duration = Duration::from_secs(30);
/// What each node tells of itself that is shown beside its name.
const OWN: [&str; 9] =
    ["objects", "bytes", "memory_used_bytes", "memory_bytes", "connections", "uptime_s", "build", "epoch", "term"];
/// Of that, what can be added up.
const SUMS: [&str; 6] = ["objects", "bytes", "memory_used_bytes", "memory_bytes", "connections", "evictions"];

/// Of a collection, what can be added up.
const COLLECTION_SUMS: [&str; 7] = ["objects", "bytes", "evictions", "expired", "hits", "misses", "refusals"];

/// What the herd says of itself, with what each node holds.
pub(crate) fn gather(herd: &HerdArgs) -> Result<Value, Failure> {
    let asked = client(herd)?.status()?;
    let nodes = asked["nodes"].as_array().cloned().unwrap_or_default();
    let own = asked["node_id"].as_u64();
    let patience = herd.timeout.min(PATIENCE);
    let told: Vec<Option<Value>> = std::thread::scope(|scope| {
        let (asked, is_alone) = (&asked, nodes.len() == 1);
        let asking = nodes.iter().map(|node| {
            let is_own = is_alone || node["id"].as_u64() == own;
            let patience = if node["state"] == "down" { patience.min(DOWN_PATIENCE) } else { patience };
            scope.spawn(move || {
                if is_own { Some(asked.clone()) } else { client_of_node(asked, node, patience).ok()?.status().ok() }
            })
        });
        let asking: Vec<_> = asking.collect();
        asking.into_iter().map(|thread| thread.join().ok().flatten()).collect()
    });
    Ok(merged(asked, nodes, &told))
}

/// A client of a node of the herd that `asked` tells of, and of no other. Where a node is gone, another process may
/// have its address, and may be of another herd and have the same name there. Of a node that is alone, of whoever
/// answers.
pub(crate) fn client_of_node(asked: &Value, node: &Value, patience: Duration) -> herd_client::Result<Client> {
    let herd = asked["herd_id"].as_str().and_then(|hex| Hex::try_from(hex.to_owned()).ok());
    let number = node["id"].as_u64().and_then(|id| NonZeroU32::new(u32::try_from(id).ok()?));
    let meant = herd.zip(number).map(|(herd, node)| Meant { herd: HerdId(herd.0), node: NodeId(node) });
    let addr = node["addr"].as_str().unwrap_or_default();
    Client::new(addr, Config { timeout: patience, meant, ..Config::default() })
}

pub(crate) fn status_of(addr: &str, patience: Duration) -> Option<Value> {
    Client::new(addr, Config { timeout: patience, ..Config::default() }).ok()?.status().ok()
}

/// One document of what all have told.
fn merged(mut all: Value, nodes: Vec<Value>, told: &[Option<Value>]) -> Value {
    let mut sums = [0_u64; SUMS.len()];
    let mut answered = 0;
    let with_own = |(mut node, told): (Value, &Option<Value>)| {
        node["answers"] = told.is_some().into();
        if let Some(told) = told {
            answered += 1;
            OWN.iter().for_each(|field| node[*field] = told[*field].clone());
            SUMS.iter().zip(&mut sums).for_each(|(field, sum)| *sum += told[*field].as_u64().unwrap_or(0));
        }
        node
    };
    for c in all["collections"].as_array_mut().into_iter().flatten() {
        add_up(c, told);
    }
    all["nodes"] = nodes.into_iter().zip(told).map(with_own).collect();
    SUMS.iter().zip(sums).for_each(|(field, sum)| all[*field] = sum.into());
    all["nodes_answered"] = answered.into();
    all
}

/// Of what [`gather`] told: the node of that name.
pub(crate) fn node_of(status: &Value, name: &str) -> Option<Value> {
    status["nodes"].as_array()?.iter().find(|node| node["name"] == name).cloned()
}

/// Waits until nothing of [`missing`] is left; what the herd says of itself then.
fn whole(herd: &HerdArgs) -> Result<Value, Failure> {
    let steps = Steps::new("groups have all their copies");
    let (mut heard, mut changed, mut told, mut last) = (Instant::now(), Instant::now(), false, Vec::new());
    loop {
        let status = match gather(herd) {
            Ok(status) => status,
            // It may be the one that is just started again.
            Err(error) if error.code == REFUSED && heard.elapsed() < SILENT + herd.timeout => {
                std::thread::sleep(AGAIN);
                continue;
            }
            Err(error) => return Err(error),
        };
        heard = Instant::now();
        let left = missing(&status);
        if left.is_empty() {
            return Ok(status);
        }
        let (done, all) = whole_groups(&status);
        steps.at(done, all);
        steps.waits(&left.join("; "));
        if left != last {
            (last, changed, told) = (left, Instant::now(), false);
        } else if changed.elapsed() > STUCK && !told {
            told = true;
            let (what, next) = (last.join("; "), if is_any_away(&status) { AWAY } else { "the logs tell why" });
            steps.tell(&format!("herd: status: it waits, for {} s already: {what}: {next}", STUCK.as_secs()));
        }
        std::thread::sleep(AGAIN);
    }
}

/// What to do about a node that is not there.
const AWAY: &str = "start a node that has ended from its directory, or `herd detach --now` it if it is gone for good";

/// Of what [`gather`] told: why the herd is not whole yet. Each node that does not drain must serve, each group take
/// writes and have all its copies, and all must go by one map. Empty: it is whole.
fn missing(status: &Value) -> Vec<String> {
    let mut all: Vec<String> = away(status).map(|node| format!("{} {}", word(node, "name"), how_away(node))).collect();
    let ((done, groups), stopped) = (whole_groups(status), status["groups_stopped"].as_u64().unwrap_or(0));
    if stopped > 0 {
        all.push(format!("{stopped} of {} groups take no writes", status["groups"]));
    }
    let short = (groups - done).saturating_sub(stopped);
    if short > 0 {
        all.push(format!("{short} of {groups} groups have fewer copies than they should"));
    }
    let nodes = status["nodes"].as_array().into_iter().flatten();
    let epochs: BTreeSet<u64> = nodes.filter_map(|node| node["epoch"].as_u64()).collect();
    if epochs.len() > 1 {
        all.push("not all nodes have the latest map".into());
    }
    all
}

/// The nodes of the herd that should serve and do not: one that drains is on its way out.
fn away(status: &Value) -> impl Iterator<Item = &Value> {
    let nodes = status["nodes"].as_array().into_iter().flatten();
    nodes.filter(|node| node["state"] != "serving" && node["state"] != "draining")
}

fn is_any_away(status: &Value) -> bool {
    away(status).next().is_some()
}

/// What is said of such a node.
fn how_away(node: &Value) -> String {
    match node["state"].as_str() {
        Some("unreachable") => "can't be reached".into(),
        Some(state) => format!("is {}", out::shown(state.as_bytes())),
        None => "does not serve".into(),
    }
}

/// How many groups take writes and have all their copies, as far as there are so many nodes that do not drain; and how
/// many groups there are.
fn whole_groups(status: &Value) -> (u64, u64) {
    let groups = status["group_list"].as_array().map_or(&[][..], Vec::as_slice);
    let nodes = status["nodes"].as_array().into_iter().flatten();
    let nodes = nodes.filter(|node| node["state"] != "draining").count() as u64;
    let is_whole = |group: &&Value| {
        let number = |field: &str| group[field].as_u64().unwrap_or(0);
        group["stops"].is_null() && number("has") >= number("copies").min(nodes)
    };
    (groups.iter().filter(is_whole).count() as u64, groups.len() as u64)
}

/// Of what [`gather`] told: the names of the nodes that were silent.
pub(crate) fn silent(all: &Value) -> impl Iterator<Item = String> {
    let nodes = all["nodes"].as_array().into_iter().flatten();
    nodes.filter(|node| node["answers"] == false).map(|node| word(node, "name"))
}

/// Makes what one node has of a collection what all have. An object counts once, its bytes with each copy.
fn add_up(c: &mut Value, told: &[Option<Value>]) {
    let of_all = |told: &'_ Value| told["collections"].as_array().cloned().unwrap_or_default();
    let theirs: Vec<Value> = told.iter().flatten().flat_map(of_all).filter(|of| of["id"] == c["id"]).collect();
    for field in COLLECTION_SUMS {
        c[field] = theirs.iter().filter_map(|of| of[field].as_u64()).sum::<u64>().into();
    }
    let copies = c["copies"].as_u64().unwrap_or(1).max(1);
    c["objects"] = c["objects"].as_u64().unwrap_or(0).div_ceil(copies).into();
}

pub(crate) fn nodes(args: &ShowArgs) -> Outcome {
    let mut all = gather(&args.herd)?;
    let nodes = all["nodes"].take();
    out::print(if args.json { format!("{nodes}\n") } else { nodes_text(&nodes) })
}

pub(crate) fn status(args: &StatusArgs) -> Outcome {
    let StatusArgs { show: args, wait } = args;
    let status = if *wait { whole(&args.herd)? } else { gather(&args.herd)? };
    out::print(if args.json { format!("{status}\n") } else { status_text(&status) })
}

pub(crate) fn group(command: &GroupCommand) -> Outcome {
    let args = match command {
        GroupCommand::Ls(args) => args,
        GroupCommand::Move(args) => return crate::group::run(args),
        GroupCommand::Recover(args) => return crate::detach::recover(args),
    };
    let mut status = client(&args.herd)?.status()?;
    let groups = match status["group_list"].take() {
        Value::Null => json!([]),
        groups => groups,
    };
    out::print(if args.json { format!("{groups}\n") } else { groups_text(&groups, &status["nodes"]) })
}

fn nodes_text(nodes: &Value) -> String {
    let line = |cells: [&str; 6]| {
        let [name, addr, state, epoch, objects, memory] = cells;
        format!("{name:<20} {addr:<22} {state:<12} {epoch:>8} {objects:>10} {memory:>22}\n")
    };
    let mut text = line(["NAME", "ADDRESS", "STATE", "EPOCH", "OBJECTS", "MEMORY"]);
    for node in nodes.as_array().into_iter().flatten() {
        let number = |field: &str| node[field].as_u64().map_or_else(|| "-".into(), |number| number.to_string());
        text += &line([
            &word(node, "name"),
            &word(node, "addr"),
            &state(node),
            &number("epoch"),
            &number("objects"),
            &memory(node),
        ]);
    }
    text
}

/// How a node is: one that drains, and has given all away, has drained.
fn state(node: &Value) -> String {
    if is_drained(node) { "drained".into() } else { word(node, "state") }
}

/// Whether a node drains, and keeps nothing any more: it may be ended.
pub(crate) fn is_drained(node: &Value) -> bool {
    let is_none = |field: &str| node[field] == 0;
    node["state"] == "draining" && is_none("groups") && is_none("waiting_groups")
}

fn memory(of: &Value) -> String {
    let show = |field: &str| of[field].as_u64().map_or_else(|| "-".into(), size::show);
    format!("{} of {}", show("memory_used_bytes"), show("memory_bytes"))
}

fn status_text(status: &Value) -> String {
    let nodes = status["nodes"].as_array().cloned().unwrap_or_default();
    let mut lines = vec![
        ("herd", herd_line(status, nodes.len())),
        ("security", word(status, "security")),
        ("objects", format!("{}{}", status["objects"], if nodes.len() > 1 { ", each copy counted" } else { "" })),
        ("memory", memory(status)),
        ("connections", status["connections"].to_string()),
        ("uptime", format!("{} s", status["uptime_s"])),
    ];
    if nodes.len() > 1 {
        lines.extend(herd_lines(status, &nodes));
    } else {
        lines.extend(short_lines(status).map(|(_, text)| ("copies", text)));
    }
    lines.extend(losses(status).enumerate().map(|(at, text)| (if at == 0 { "lost" } else { "" }, text)));
    let mut text = String::new();
    for (what, value) in lines {
        writeln!(text, "{what:<11} {value}").expect("a string takes all");
    }
    if nodes.len() > 1 {
        text += "\n";
        text += &nodes_text(&status["nodes"]);
    }
    text
}

/// A herd of one is called as its node is.
fn herd_line(status: &Value, nodes: usize) -> String {
    let build = word(status, "build");
    match status["herd_id"].as_str() {
        Some(id) if nodes > 1 => format!("{} ({build})", id.get(..8).unwrap_or(id)),
        _ => format!("{} ({build})", word(status, "herd")),
    }
}

/// What there is to say of several nodes.
fn herd_lines(status: &Value, nodes: &[Value]) -> Vec<(&'static str, String)> {
    // Who drains serves, too, as long as it is there.
    let drains = |node: &&Value| node["state"] == "draining" && node["answers"] == true;
    let (there, away): (Vec<&Value>, Vec<&Value>) =
        nodes.iter().partition(|node| node["state"] == "serving" || drains(node));
    let named = |nodes: Vec<&Value>| nodes.into_iter().map(|node| word(node, "name")).collect::<Vec<_>>().join(", ");
    let all = format!("{} of {} serving", there.len(), nodes.len());
    let (drained, draining): (Vec<&Value>, Vec<&Value>) =
        there.into_iter().filter(drains).partition(|node| is_drained(node));
    let said = |nodes: Vec<&Value>, one: &str, several: &str| match nodes.len() {
        0 => String::new(),
        1 => format!(", {} {one}", named(nodes)),
        _ => format!(", {} {several}", named(nodes)),
    };
    let draining = said(draining, "drains", "drain") + &said(drained, "is drained", "are drained");
    let away = if away.is_empty() { draining } else { format!(", not {}{draining}", named(away)) };
    let held = if status["held"] == true { "holds objects" } else { "holds no object yet" };
    let map = format!("epoch {}, revision {}, {held}", status["epoch"], status["revision"]);
    let warden = format!("{} ({})", word(status, "warden"), word(status, "warden_state"));
    let mut lines = vec![("nodes", all + &away), ("warden", warden), ("map", map), ("groups", groups_line(status))];
    lines.extend(upgrade_line(status, nodes));
    lines.extend(short_lines(status));
    lines
}

/// While an upgrade is under way: whose programs are of the earlier release still.
fn upgrade_line(status: &Value, nodes: &[Value]) -> Option<(&'static str, String)> {
    let spoken = status["protocol"].as_u64()?;
    let (earlier, later): (Vec<&Value>, Vec<&Value>) =
        nodes.iter().partition(|node| node["protocol"].as_u64().is_none_or(|its| its <= spoken));
    let names = |nodes: &[&Value]| nodes.iter().map(|node| word(node, "name")).collect::<Vec<_>>().join(", ");
    let text = format!("{} of {} nodes; {} not upgraded yet", later.len(), nodes.len(), names(&earlier));
    (!later.is_empty()).then_some(("upgrade", text))
}

/// Where copies are not laid out as they were asked for.
fn short_lines(status: &Value) -> impl Iterator<Item = (&'static str, String)> {
    let short = status["shortfalls"].as_array().into_iter().flatten();
    short.map(|text| ("", out::shown(text.as_str().unwrap_or("?").as_bytes()).into_owned()))
}

/// What groups lost, a line for each time.
pub(crate) fn losses(status: &Value) -> impl Iterator<Item = String> {
    let all = status["losses"].as_array().into_iter().flatten();
    all.map(|text| out::shown(text.as_str().unwrap_or("?").as_bytes()).into_owned())
}

fn groups_line(status: &Value) -> String {
    let (count, stopped) = (&status["groups"], status["groups_stopped"].as_u64().unwrap_or(0));
    let groups = status["group_list"].as_array();
    let why = groups.into_iter().flatten().find(|group| !group["stops"].is_null()).map(|group| word(group, "stops"));
    match why {
        Some(why) => format!("{count}, {stopped} of them stopped: {why}"),
        None => format!("{count}, all take writes"),
    }
}

fn groups_text(groups: &Value, nodes: &Value) -> String {
    let named = |id: &Value| {
        let node = nodes.as_array().into_iter().flatten().find(|node| node["id"] == *id);
        node.map_or_else(|| "-".into(), |node| word(node, "name"))
    };
    let mut text = format!("{:<8} {:<16} {:<32} {:>6}  STATE\n", "GROUP", "PRIMARY", "MEMBERS", "SLOTS");
    for group in groups.as_array().into_iter().flatten() {
        let name = format!("{}/{}", group["spread"], group["group"]);
        let members: Vec<String> = group["members"].as_array().into_iter().flatten().map(named).collect();
        let (primary, members, slots) = (named(&group["primary"]), members.join(","), &group["slots"]);
        let mut state = if group["stops"].is_null() { "takes writes".into() } else { word(group, "stops") };
        if !group["syncing"].is_null() {
            state += &format!("; {} gets its copies", word(group, "syncing"));
        }
        let placed: Vec<String> = group["placed"].as_array().into_iter().flatten().map(named).collect();
        if !placed.is_empty() {
            state += &format!("; put on {}", placed.join(", "));
        }
        if let Some(epoch) = group["lost"].as_u64() {
            state += &format!("; lost its objects at epoch {epoch}");
        }
        writeln!(text, "{name:<8} {primary:<16} {members:<32} {slots:>6}  {state}").expect("a string takes all");
    }
    text
}

/// A text field of what the herd says, as people may see it.
fn word(value: &Value, field: &str) -> String {
    out::shown(value[field].as_str().unwrap_or("-").as_bytes()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nodes_hold_is_added_up_and_who_is_silent_is_shown() {
        let nodes = vec![json!({"name": "a", "state": "serving"}), json!({"name": "b", "state": "unreachable"})];
        let told = [
            Some(json!({"objects": 3, "bytes": 40, "memory_bytes": 64, "epoch": 9,
            "collections": [{"id": 7, "objects": 9}, {"id": 2, "copies": 2, "objects": 3, "bytes": 60}]})),
            None,
        ];
        let asked = json!({"herd_id": "0123456789", "objects": 3, "groups": 8, "groups_stopped": 4,
            "collections": [{"id": 2, "copies": 2, "objects": 1, "bytes": 20}],
            "group_list": [{"stops": null}, {"stops": "b can't be reached"}]});
        let all = merged(asked, nodes, &told);
        assert_eq!((&all["collections"][0]["objects"], &all["collections"][0]["bytes"]), (&json!(2), &json!(60)));
        assert_eq!((&all["objects"], &all["nodes_answered"]), (&json!(3), &json!(1)));
        assert_eq!((&all["nodes"][0]["epoch"], &all["nodes"][1]["answers"]), (&json!(9), &json!(false)));
        assert_eq!(silent(&all).collect::<Vec<_>>(), ["b"]);
        let text = status_text(&all);
        for part in ["1 of 2 serving, not b", "8, 4 of them stopped: b can't be reached", "01234567 ("] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    fn node(name: &str, state: &str, groups: u64) -> Value {
        json!({"name": name, "state": state, "groups": groups, "waiting_groups": 0, "answers": true, "epoch": 4})
    }

    #[test]
    fn a_herd_is_whole_where_all_nodes_serve_and_all_copies_are_there() {
        let group = |has: u64, stops: Option<&str>| json!({"copies": 3, "has": has, "stops": stops});
        let of = |nodes: &[Value], groups: &[Value]| {
            let stopped = groups.iter().filter(|group| !group["stops"].is_null()).count();
            let status = json!({"nodes": nodes, "groups": groups.len(), "groups_stopped": stopped,
                "group_list": groups});
            missing(&status).join("; ")
        };
        let [a, b, c] = ["a", "b", "c"].map(|name| node(name, "serving", 2));
        let three = [a.clone(), b.clone(), c];
        assert_eq!(of(&three, &[group(3, None), group(3, None)]), "");
        assert_eq!(of(&three, &[group(3, None), group(2, None)]), "1 of 2 groups have fewer copies than they should");
        // A node that is down is missed, also where its groups have others by now.
        for (state, told) in
            [("down", "c is down"), ("unreachable", "c can't be reached"), ("stopping", "c is stopping")]
        {
            let nodes = [a.clone(), b.clone(), node("c", state, 0)];
            assert_eq!(of(&nodes, &[group(3, None)]), told);
            let short = format!("{told}; 1 of 1 groups have fewer copies than they should");
            assert_eq!(of(&nodes, &[group(2, None)]), short);
            assert_eq!(of(&nodes, &[group(1, Some("c is gone"))]), format!("{told}; 1 of 1 groups take no writes"));
        }
        // One that drains is not, and no copy is asked of it.
        assert_eq!(of(&[a.clone(), b.clone(), node("c", "draining", 0)], &[group(2, None)]), "");
        assert_eq!(of(&[a.clone(), b.clone()], &[group(2, None)]), "", "there are no more nodes than that");
        let mut late = b;
        late["epoch"] = 3.into();
        assert_eq!(of(&[a, late], &[group(2, None)]), "not all nodes have the latest map");
        assert_eq!(missing(&json!({"nodes": [{"name": "a", "id": 1, "state": "serving"}], "groups": 1})), [""; 0]);
    }

    #[test]
    fn a_node_that_has_given_all_away_is_drained() {
        let nodes = [node("a", "serving", 3), node("b", "draining", 0), node("c", "draining", 2)];
        let shown = nodes_text(&json!(nodes));
        let states: Vec<&str> = shown.lines().skip(1).filter_map(|line| line.split_whitespace().nth(2)).collect();
        assert_eq!(states, ["serving", "drained", "draining"]);
        assert_eq!(herd_lines(&json!({}), &nodes)[0].1, "3 of 3 serving, c drains, b is drained");
    }
}
