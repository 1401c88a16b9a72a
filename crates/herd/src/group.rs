//! `herd group move`: puts a copy of a group on a node, says what that means before, and waits until it is done.

use crate::args::MoveGroupArgs;
use crate::drain::{AGAIN, SILENT, STUCK};
use crate::exit::{Failure, NOT_SO, Outcome, REFUSED};
use crate::objects::client;
use crate::out;
use crate::view::node_of;
use herd_core::warden::MoveGroup;
use serde_json::Value;
use std::time::{Duration, Instant};

/// How long it may take to be seen by the node that is asked.
const SEEN: Duration = Duration::from_secs(10);

/// A group as it is now: who has all, who is getting its copy, and who was put there.
struct Now {
    has: Vec<u64>,
    comes: bool,
    placed: Vec<u64>,
    slots: u64,
    /// How many are to have one.
    copies: u64,
}

pub(crate) fn run(args: &MoveGroupArgs) -> Outcome {
    let (spread, group) = args.group;
    let shown = format!("{spread}/{group}");
    let asked = MoveGroup { spread, group, to: args.to.clone(), from: args.from.clone() };
    let client = client(&args.herd)?;
    let Some(to) = &args.to else {
        client.move_group(&asked)?;
        out::tell(format!("herd: group move: {shown} stays where it is, and moves as any other group from now on"));
        return Ok(());
    };
    let status = client.status()?;
    let none = || Failure::new(NOT_SO, format!("group move: no node '{to}': `herd nodes` shows all"));
    let id = node_of(&status, to).and_then(|node| node["id"].as_u64()).ok_or_else(none)?;
    let before = of(&status, args.group);
    client.move_group(&asked)?;
    let Some(before) = before else {
        out::tell(format!("herd: group move: {shown} will be at {to}: `herd group ls` shows when"));
        return Ok(());
    };
    if before.has.contains(&id) && args.from.is_none() {
        out::tell(format!("herd: group move: {shown} is at {to} already, and stays there"));
        return Ok(());
    }
    let goes = args.from.clone().unwrap_or_else(|| "the node that keeps most above its share".into());
    let slots = before.slots;
    out::tell(format!("herd: group move: {to} gets a copy of {shown}, {slots} slots, and {goes} gives its own away"));
    wait(args, id)?;
    out::tell(format!("herd: group move: {shown} is at {to}, and stays there"));
    Ok(())
}

fn of(status: &Value, (spread, number): (u16, u16)) -> Option<Now> {
    let mut groups = status["group_list"].as_array()?.iter();
    let group = groups.find(|it| it["spread"] == spread && it["group"] == number)?;
    let ids = |field: &str| group[field].as_array().into_iter().flatten().filter_map(Value::as_u64).collect();
    let members: Vec<u64> = ids("members");
    let has: Vec<u64> = ids("full");
    Some(Now {
        comes: members.len() > has.len(),
        has,
        placed: ids("placed"),
        slots: group["slots"].as_u64().unwrap_or(0),
        copies: group["copies"].as_u64().unwrap_or(0),
    })
}

/// Until the node has its copy, and no more nodes have one than are to.
fn wait(args: &MoveGroupArgs, id: u64) -> Outcome {
    let (begun, mut heard, mut told) = (Instant::now(), Instant::now(), false);
    let name = args.to.as_deref().unwrap_or_default();
    let (spread, group) = args.group;
    loop {
        std::thread::sleep(AGAIN);
        let now = match client(&args.herd).and_then(|client| Ok(client.status()?)) {
            Ok(status) => of(&status, args.group),
            Err(error) if error.code == REFUSED && heard.elapsed() < SILENT + args.herd.timeout => continue,
            Err(error) => return Err(error),
        };
        heard = Instant::now();
        let is_done = |now: &Now| now.has.contains(&id) && now.has.len() as u64 <= now.copies && !now.comes;
        if now.as_ref().is_some_and(is_done) {
            return Ok(());
        }
        let is_noted = now.as_ref().is_some_and(|now| now.placed.contains(&id));
        if !is_noted && begun.elapsed() > SEEN {
            let text = format!("group move: {spread}/{group} is not to be at {name} any more: it was called off");
            return Err(Failure::new(NOT_SO, text));
        }
        if begun.elapsed() > STUCK && !now.is_some_and(|now| now.comes) && !told {
            told = true;
            out::tell(format!(
                "herd: group move: nothing has moved for {} s: see that {name} runs and has room; Ctrl-C leaves it \
                 noted, `herd group move {spread}/{group} --cancel` calls it off",
                STUCK.as_secs()
            ));
        }
    }
}
