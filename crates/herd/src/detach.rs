//! `herd detach --now`: takes a node out of the herd for good, whatever it alone has. `herd group recover`: has groups
//! begin anew that wait for nodes which will not come back. Both say first what is lost, and do nothing where that was
//! not said to be right.

use crate::args::{DetachArgs, RecoverArgs};
use crate::control::about;
use crate::exit::{Failure, NOT_SO, Outcome, REFUSED};
use crate::objects::client;
use crate::view::{client_of_node, gather, node_of};
use crate::{machine, out};
use herd_client::ErrorKind;
use herd_core::ErrorKind as Core;
use herd_core::key::CollectionId;
use herd_core::limits::SLOTS;
use herd_core::warden::GiveUp;
use serde_json::Value;
use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How often it is looked, or asked again.
const AGAIN: Duration = Duration::from_millis(200);
/// How long a node that was told to end may take, and how long all may be over that was granted to a silent one.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long the node that was asked may take to hear that the herd goes on without the other.
const HEARD: Duration = Duration::from_secs(2);
/// How many nodes are named in one text.
const NAMES_MAX: usize = 4;
/// How much is told of who asks, characters.
const WHO_MAX: usize = 60;

pub(crate) fn detach(args: &DetachArgs) -> Outcome {
    let name = &args.detached;
    let (status, node) = found(args)?;
    if status["warden"].as_str() == Some(name) {
        return Err(Failure::new(REFUSED, is_the_warden_s(name, &node)));
    }
    let only = |group: &&Value| group["kind"] == "kept" && is_only(&group["eligible"], &node["id"]);
    let lost: Vec<&Value> = groups(&status).filter(only).collect();
    let its = (node["answers"] == true).then(|| client_of_node(&status, &node, args.herd.timeout)).transpose()?;
    let own = its.as_ref().and_then(|its| its.status().ok());
    let lines = lines(&status, &lost, own.as_ref());
    tell_lost(&lines, "would be lost, as only this node has it")?;
    if !lines.is_empty() && !args.yes {
        let instead = match its {
            Some(_) => format!("`herd drain {name}` moves it to the others"),
            None => format!("if {name} is only cut off, or stands still, it still has that when it is back"),
        };
        let text = format!("detach: {name}: nothing was done: --yes gives that up; {instead}");
        return Err(Failure::new(REFUSED, text));
    }
    if let Some(its) = &its {
        // Without a warden the node would end, and stay in the herd.
        let unled = "the warden's node can't be reached, without which no node is taken out: `herd status` names it, \
                     see that it runs";
        about(&args.herd)
            .map_err(|why| Failure::new(why.code, format!("detach: {name}: nothing was done: {unled}")))?;
        its.end(name)?;
        out::tell(format!("herd: detach: {name} was told to end"));
    }
    // What waits, led by nobody, was a process that is known to have ended.
    if its.is_none() && !lines.is_empty() && node["waiting_groups"] == 0 {
        out::tell(format!(
            "herd: detach: {name} can't be told to end: if it runs, it serves what only it has to those who reach it, \
             until it hears of this: see that it has ended"
        ));
    }
    let is_there = its.is_none() || wait_for_end(args, &node)?;
    let groups = if is_there { ask(args, &give_up(Some(name), args.yes))? } else { 0 };
    wait_for_map(args);
    out::tell(format!("herd: detach: {name} is no longer in the herd, {}", lost_groups(groups)));
    Ok(())
}

pub(crate) fn recover(args: &RecoverArgs) -> Outcome {
    let status = gather(&args.herd)?;
    let is_meant = |group: &&Value| {
        let is = |asked: Option<u16>, field: &str| asked.is_none_or(|asked| group[field] == asked);
        is(args.groups.0, "spread") && is(args.groups.1, "group")
    };
    // Who is there may lead again by itself.
    let is_there = |id: &Value| nodes(&status).any(|node| node["id"] == *id && node["answers"] == true);
    let waits = |group: &&Value| {
        let eligible = group["eligible"].as_array().map_or(&[][..], Vec::as_slice);
        group["kind"] == "kept" && group["primary"].is_null() && !eligible.is_empty() && !eligible.iter().any(is_there)
    };
    let lost: Vec<&Value> = groups(&status).filter(waits).filter(is_meant).collect();
    let asked = [args.groups.0, args.groups.1].into_iter().flatten().map(|number| number.to_string());
    let asked = asked.collect::<Vec<_>>().join("/");
    if !asked.is_empty() && !groups(&status).any(|group| is_meant(&group)) {
        return Err(Failure::new(NOT_SO, format!("group recover: no group {asked}: `herd group ls` shows all")));
    }
    if lost.is_empty() {
        check_warden(&status)?;
        let rest = awaited(&status, is_meant);
        out::tell(format!("herd: group recover: no group waits for a node that is gone: nothing was done{rest}"));
        return Ok(());
    }
    tell_lost(&lines(&status, &lost, None), "would be lost, as only nodes that are gone have it")?;
    if !args.accept_data_loss {
        let text = "group recover: nothing was done: --accept-data-loss gives that up; a node that is only cut off, or \
                    stands still, still has it when it is back";
        return Err(Failure::new(REFUSED, text));
    }
    let (spread, group) = args.groups;
    let asked = GiveUp { spread, group, ..give_up(None, true) };
    let groups = client(&args.herd)?.give_up(&asked)?;
    out::tell(format!("herd: group recover: {}; `herd status` tells of it", lost_groups(groups)));
    Ok(())
}

/// For which silent nodes these groups wait, as they may live, and what to do.
fn awaited(status: &Value, is_meant: impl Fn(&&Value) -> bool) -> String {
    let is_silent = |node: &&Value| node["answers"] == false && status["warden"] != node["name"];
    let waits = |group: &Value, node: &Value| ["full", "eligible"].iter().any(|field| has(&group[*field], &node["id"]));
    let is_stopped =
        |group: &&Value| !group["stops"].is_null() && nodes(status).filter(is_silent).any(|it| waits(group, it));
    let stopped: Vec<&Value> = groups(status).filter(is_meant).filter(is_stopped).collect();
    let is_awaited = |node: &&Value| stopped.iter().any(|group| waits(group, node));
    let names = nodes(status).filter(is_silent).filter(is_awaited).filter_map(|node| node["name"].as_str());
    let names: Vec<_> = names.map(|name| out::shown(name.as_bytes())).collect();
    let Some(first) = names.first() else { return String::new() };
    let more = if names.len() > NAMES_MAX { format!(" and {} more", names.len() - NAMES_MAX) } else { String::new() };
    let groups = if stopped.len() == 1 { "1 group waits".into() } else { format!("{} groups wait", stopped.len()) };
    format!(
        "; {groups} for {}{more}, which may be alive: start what has ended, or `herd detach --now {first}` if that is \
         gone for good",
        names[..names.len().min(NAMES_MAX)].join(", ")
    )
}

/// While the warden is out of reach nobody knows which nodes are gone.
fn check_warden(status: &Value) -> Outcome {
    let is_stopped = status["groups_stopped"].as_u64().unwrap_or(0) > 0;
    if !is_stopped || status["warden_state"] == "serving" {
        return Ok(());
    }
    let warden = out::shown(status["warden"].as_str().unwrap_or("-").as_bytes());
    let text =
        format!("group recover: the warden's node {warden} can't be reached, without which no group is given up");
    Err(Failure::new(REFUSED, text + ": see that it runs, then ask again"))
}

/// Why the node of the warden can't be detached, and what to do.
fn is_the_warden_s(name: &str, node: &Value) -> String {
    let next = match node["answers"] == true {
        true => format!("`herd control move` takes the map to another node, `herd drain {name}` empties this one"),
        false => "start it again from its directory, or, where the map is in etcd, start another node with the same \
                  --control in its place, and then detach this one"
            .into(),
    };
    format!("detach: {name} keeps the herd's map, and can't be detached: {next}")
}

fn lost_groups(groups: u64) -> String {
    match groups {
        0 => "and nothing was lost".into(),
        1 => "1 group lost what it held, and begins anew".into(),
        _ => format!("{groups} groups lost what they held, and begin anew"),
    }
}

fn found(args: &DetachArgs) -> Result<(Value, Value), Failure> {
    let (status, name) = (gather(&args.herd)?, &args.detached);
    let none = || Failure::new(NOT_SO, format!("detach: no node '{name}': `herd nodes` shows all"));
    let node = node_of(&status, name).ok_or_else(none)?;
    Ok((status, node))
}

/// Until the process that was told so has ended; whether the herd knows the node still.
fn wait_for_end(args: &DetachArgs, node: &Value) -> Result<bool, Failure> {
    let (since, name) = (Instant::now(), &args.detached);
    while since.elapsed() < PATIENCE {
        std::thread::sleep(AGAIN);
        let now = match found(args) {
            Ok((_, now)) => now,
            Err(error) if error.code == NOT_SO => return Ok(false),
            Err(_) => continue,
        };
        if now["incarnation"] != node["incarnation"] {
            let text = format!("detach: {name} has ended, and was started again: stop what starts it, then detach it");
            return Err(Failure::new(REFUSED, text));
        }
        if now["answers"] != true {
            return Ok(true);
        }
    }
    Err(Failure::new(REFUSED, format!("detach: {name} was told to end, and has not: end it, then detach it")))
}

/// Until the node that is asked has the map without that node, so that who asks it next is not told of it. It is out
/// of the herd in any case.
fn wait_for_map(args: &DetachArgs) {
    let since = Instant::now();
    let is_known = || {
        let status = client(&args.herd).and_then(|client| Ok(client.status()?));
        status.is_ok_and(|status| node_of(&status, &args.detached).is_some())
    };
    while since.elapsed() < HEARD && is_known() {
        std::thread::sleep(AGAIN / 4);
    }
}

/// Asks for it until the herd is sure that the node answers for nothing any more.
fn ask(args: &DetachArgs, asked: &GiveUp) -> Result<u64, Failure> {
    let since = Instant::now();
    loop {
        match client(&args.herd)?.give_up(asked) {
            Err(error) if error.kind() == ErrorKind::Refused(Core::Busy) && since.elapsed() < PATIENCE => {
                std::thread::sleep(AGAIN);
            }
            done => return Ok(done?),
        }
    }
}

fn give_up(node: Option<&str>, accepts: bool) -> GiveUp {
    let known = ["USER", "LOGNAME"].into_iter().find_map(|name| std::env::var(name).ok());
    // Under cron, or a service manager, nobody has a name.
    let nameless = || format!("user {}", rustix::process::getuid().as_raw());
    let user = known.filter(|user| !user.is_empty()).unwrap_or_else(nameless);
    let who: String = format!("{user}@{}", machine::name()).chars().filter(|c| !c.is_control()).take(WHO_MAX).collect();
    let unix_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
    GiveUp { node: node.map(Into::into), spread: None, group: None, accepts, who, unix_ms }
}

fn nodes(status: &Value) -> impl Iterator<Item = &Value> {
    status["nodes"].as_array().into_iter().flatten()
}

fn groups(status: &Value) -> impl Iterator<Item = &Value> {
    status["group_list"].as_array().into_iter().flatten()
}

fn has(ids: &Value, id: &Value) -> bool {
    ids.as_array().is_some_and(|ids| ids.contains(id))
}

fn is_only(ids: &Value, id: &Value) -> bool {
    ids.as_array().is_some_and(|ids| ids.len() == 1 && ids[0] == *id)
}

/// What these groups hold: a line for each collection that has slots there. `own`: what the node tells of itself that
/// has them.
fn lines(status: &Value, lost: &[&Value], own: Option<&Value>) -> Vec<String> {
    let mut slots: BTreeMap<u64, u64> = BTreeMap::new();
    for group in lost {
        *slots.entry(group["spread"].as_u64().unwrap_or(0)).or_default() += group["slots"].as_u64().unwrap_or(0);
    }
    let collections = status["collections"].as_array().into_iter().flatten();
    let line = |c: &Value| {
        let spread = u64::from(CollectionId(c["id"].as_u64()?).spread_group());
        let (slots, name) = (*slots.get(&spread).filter(|slots| **slots > 0)?, c["name"].as_str().unwrap_or("?"));
        let part = 100.0 * slots as f64 / SLOTS as f64;
        // Where several copies are kept most of what a node has others have, too.
        let is_single = groups(status).any(|group| group["spread"] == spread && group["copies"] == 1);
        let its = own.filter(|_| is_single).and_then(|own| own["collections"].as_array());
        let objects = its.and_then(|its| its.iter().find(|it| it["id"] == c["id"])?["objects"].as_u64());
        let objects = objects.map_or_else(String::new, |objects| format!(", {objects} objects"));
        let name = out::shown(name.as_bytes());
        Some(format!("collection {name}: {slots} of {SLOTS} slots ({part:.1} %){objects}"))
    };
    collections.filter_map(line).collect()
}

fn tell_lost(lines: &[String], how: &str) -> Outcome {
    let text: String = lines.iter().map(|line| format!("{line} {how}\n")).collect();
    if text.is_empty() { Ok(()) } else { out::print(text) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn group(number: u32, full: &[u32], stops: Value) -> Value {
        json!({"group": number, "full": full, "eligible": [], "stops": stops})
    }

    #[test]
    fn who_may_live_and_is_waited_for_is_told() {
        let node = |id: u32, answers: bool| json!({"id": id, "name": format!("n{id}"), "answers": answers});
        let stops = || json!("it stops");
        let status =
            |groups: Vec<Value>, nodes: Vec<Value>| json!({"warden": "n1", "nodes": nodes, "group_list": groups});
        let nodes = vec![node(1, false), node(2, true), node(3, false), node(4, false), node(5, false)];
        let groups = vec![
            group(0, &[2, 3], stops()),
            group(1, &[2], stops()),
            group(2, &[2, 4], Value::Null),
            group(3, &[3, 5], stops()),
            group(4, &[1, 2], stops()),
        ];
        let it = status(groups, nodes);
        let told = awaited(&it, |_| true);
        assert!(told.starts_with("; 2 groups wait for n3, n5, which may be alive"), "{told}");
        assert!(told.ends_with("or `herd detach --now n3` if that is gone for good"), "{told}");
        let told = awaited(&it, |group| group["group"] == 3);
        assert!(told.starts_with("; 1 group waits for n3, n5, "), "{told}");
        assert_eq!(awaited(&it, |group| group["group"] == 1), "", "it waits for copies");
        let many: Vec<u32> = (2..9).collect();
        let it = status(vec![group(0, &many, stops())], many.iter().map(|id| node(*id, false)).collect());
        assert!(awaited(&it, |_| true).starts_with("; 1 group waits for n2, n3, n4, n5 and 3 more, which"));
    }
}
