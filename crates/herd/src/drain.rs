//! `herd drain`: has a node give away all that it keeps, and waits until it has.

use crate::args::DrainArgs;
use crate::control::{has_map, leaves};
use crate::exit::{Failure, NOT_SO, Outcome, REFUSED};
use crate::objects::client;
use crate::out;
use crate::progress::Steps;
use crate::view::{gather, node_of};
use herd_core::size;
use serde_json::Value;
use std::time::{Duration, Instant};

/// How often it is looked.
pub(crate) const AGAIN: Duration = Duration::from_millis(200);
/// How long the map in which it drains takes to come to the node that is asked, at most.
const HEARD: Duration = Duration::from_secs(3);
/// How long no node may answer meanwhile.
pub(crate) const SILENT: Duration = Duration::from_secs(10);
/// How long nothing may move before it is said so.
pub(crate) const STUCK: Duration = Duration::from_secs(30);

pub(crate) fn run(args: &DrainArgs) -> Outcome {
    let name = &args.drained;
    let node = node_of(&gather(&args.herd)?, name)
        .ok_or_else(|| Failure::new(NOT_SO, format!("drain: no node '{name}': `herd nodes` shows all")))?;
    if !args.cancel {
        check_saved(name, &node)?;
    }
    client(&args.herd)?.drain(name, args.cancel)?;
    if args.cancel {
        let was = node["state"] == "draining";
        let text = if was { "stays, and gets its share again" } else { "was not draining, and stays" };
        out::tell(format!("herd: drain: {name} {text}"));
        return Ok(());
    }
    give_map_away(args, node["state"] == "draining")?;
    let groups = node["groups"].as_u64().unwrap_or(0);
    if groups > 0 {
        let bytes = node["bytes"].as_u64().map_or_else(String::new, |bytes| format!(", {}", size::show(bytes)));
        out::tell(format!(
            "herd: drain: {name} gives away {groups} groups{bytes}; Ctrl-C ends only this command: `herd drain {name} \
             --cancel` calls it off"
        ));
    }
    let status = wait(args, groups)?;
    if node_of(&status, name).is_none() {
        out::tell(format!("herd: drain: {name} is not in the herd any more: it has ended, and was forgotten"));
        return Ok(());
    }
    check_saved(name, &node_of(&status, name).unwrap_or_default())?;
    let next = match status["warden"].as_str() == Some(name) {
        true => "it keeps the herd's map, and must go on running",
        false => "stop it, and the herd forgets it",
    };
    out::tell(format!("herd: drain: {name} is empty: {next}"));
    Ok(())
}

/// A node that may drain gives the herd's map away, too. One that can't do that stays as it was.
fn give_map_away(args: &DrainArgs, drained: bool) -> Outcome {
    let Err(failure) = leaves(&args.herd, &args.drained) else { return Ok(()) };
    if !drained && has_map(&args.herd, &args.drained) {
        client(&args.herd)?.drain(&args.drained, true)?;
    }
    Err(failure)
}

/// What only a node that has ended had can't be given away: an error that says so.
fn check_saved(name: &str, node: &Value) -> Result<(), Failure> {
    let groups = node["waiting_groups"].as_u64().unwrap_or(0);
    if groups == 0 {
        return Ok(());
    }
    let (groups, their) = if groups == 1 { ("1 group".into(), "its") } else { (format!("{groups} groups"), "their") };
    let text = format!(
        "drain: {name} has ended, and {groups} had {their} only copy there, which can't be given away: start it again \
         from its directory, or give them up: `herd detach --now {name}` lists what that is"
    );
    Err(Failure::new(REFUSED, text))
}

/// What is told where nothing has moved for a while.
fn stuck(name: &str, left: u64, answers: bool) -> String {
    let what = if left == 1 { "1 group".into() } else { format!("{left} groups") };
    let next = match answers {
        true => "`herd group ls` and the logs tell why".into(),
        false => format!("nobody hears {name}: start it again, or `herd detach --now {name}` if it is gone for good"),
    };
    format!("herd: drain: {what} of {name} have not moved for {} s: {next}", STUCK.as_secs())
}

/// Until it keeps nothing, or is gone.
fn wait(args: &DrainArgs, all: u64) -> Result<Value, Failure> {
    let steps = Steps::new("groups given away");
    let (mut heard, mut moved, mut last, mut told) = (Instant::now(), Instant::now(), all, false);
    // Since when it does not drain, as is said.
    let mut stays: Option<Instant> = None;
    loop {
        let status = match gather(&args.herd) {
            Ok(status) => status,
            Err(error) if error.code == REFUSED && heard.elapsed() < SILENT + args.herd.timeout => {
                std::thread::sleep(AGAIN);
                continue;
            }
            Err(error) => return Err(error),
        };
        heard = Instant::now();
        let Some(node) = node_of(&status, &args.drained) else { return Ok(status) };
        let left = node["groups"].as_u64().unwrap_or(0);
        match node["state"].as_str() {
            Some("draining") if left == 0 => return Ok(status),
            // The map with it may not have come to the node that was asked.
            Some("draining") | None => stays = None,
            Some(_) if heard.duration_since(*stays.get_or_insert(heard)) < HEARD => {}
            Some(_) => {
                let text = format!("drain: {} does not drain any more: it was called off", args.drained);
                return Err(Failure::new(NOT_SO, text));
            }
        }
        if left != last {
            (last, moved, told) = (left, Instant::now(), false);
        }
        if moved.elapsed() > STUCK && !told {
            told = true;
            out::tell(stuck(&args.drained, left, node["answers"] == true));
        }
        steps.at(all.saturating_sub(left), all);
        std::thread::sleep(AGAIN);
    }
}
