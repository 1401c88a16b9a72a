//! `herd control`: where the herd's control store is, and how it goes elsewhere while the herd serves.

use crate::args::{ControlCommand, HerdArgs, MigrateArgs, MoveArgs, ShowArgs};
use crate::exit::{Failure, Outcome, REFUSED, USAGE, plain};
use crate::node::forced_etcd;
use crate::objects::client;
use crate::out;
use crate::values::Control;
use crate::view::gather;
use herd_client::{Error, ErrorKind};
use herd_core::warden::ControlAsk;
use serde_json::Value;
use std::fmt::Write as _;
use std::time::{Duration, Instant};

/// How often it is looked.
const AGAIN: Duration = Duration::from_millis(100);
/// How long the nodes that answer may take to hear of the warden, and another one may take to be it.
const HEARD: Duration = Duration::from_secs(15);

pub(crate) fn run(command: &ControlCommand) -> Outcome {
    match command {
        ControlCommand::Show(args) => show(args),
        ControlCommand::Move(MoveArgs { to, herd }) => moves(herd, &ControlAsk::Move { node: Some(to.clone()) }),
        ControlCommand::Migrate(args) => moves(&args.herd, &migration(args)?),
    }
}

fn migration(args: &MigrateArgs) -> Result<ControlAsk, Failure> {
    match &args.target {
        Control::Embedded => Ok(ControlAsk::Embed { node: args.at.clone() }),
        Control::Etcd(_) if args.at.is_some() => {
            let text = "control migrate: --at names the node that takes the map out of etcd: leave it out here";
            Err(Failure::new(USAGE, text))
        }
        Control::Etcd(address) => Ok(ControlAsk::ToEtcd { etcd: address.to_string(), forced: forced_etcd() }),
    }
}

/// What there is to know of the store.
pub(crate) fn about(herd: &HerdArgs) -> Result<Value, Failure> {
    client(herd)?.control(&ControlAsk::Show).map_err(unanswered)
}

/// Why a question has no answer. To ask changes nothing: where the answer was lost, nothing may have been done.
fn unanswered(error: Error) -> Failure {
    if error.kind() != ErrorKind::OutcomeUnknown {
        return error.into();
    }
    let reason = plain(&error.reason());
    // A node speaks of what it was asked as of a change.
    let why = if reason.contains("may have been done") { "the warden did not answer" } else { &reason };
    Failure::spoken(REFUSED, &format!("{why}: try again"))
}

/// The same, asked again for a while where the warden's node is gone: another one may take its place.
fn known(herd: &HerdArgs) -> Result<Value, Failure> {
    let until = Instant::now() + HEARD;
    loop {
        match about(herd) {
            Err(error) if error.code == REFUSED && Instant::now() < until => std::thread::sleep(AGAIN),
            told => return told,
        }
    }
}

fn show(args: &ShowArgs) -> Outcome {
    let about = about(&args.herd)?;
    if args.json {
        return out::print(format!("{about}\n"));
    }
    let mut lines = vec![("backend", word(&about, "backend")), ("warden", word(&about, "node"))];
    let place = ["path", "etcd"].into_iter().find(|field| about[*field].is_string());
    lines.extend(place.map(|field| (if field == "path" { "directory" } else { "address" }, word(&about, field))));
    let members = about["members"].as_array().into_iter().flatten().filter_map(Value::as_str);
    lines.extend(members.enumerate().map(|(at, text)| (if at == 0 { "members" } else { "" }, text.to_owned())));
    lines.push(("term", about["term"].to_string()));
    lines.push(("revision", about["revision"].to_string()));
    lines.push(("map", format!("epoch {}, revision {}", about["epoch"], about["map_revision"])));
    let mut text = String::new();
    for (what, value) in lines {
        writeln!(text, "{what:<11} {value}").expect("a string takes all");
    }
    out::print(text)
}

/// Has it go elsewhere, and waits until all nodes that answer know where.
fn moves(herd: &HerdArgs, ask: &ControlAsk) -> Outcome {
    let before = about(herd)?;
    let client = client(herd)?;
    client.control(ask)?;
    let after = wait(herd)?;
    if (&before["backend"], &before["node"], &before["etcd"]) == (&after["backend"], &after["node"], &after["etcd"]) {
        out::tell(format!("herd: control: the control store is at {} already", place(&after)));
        return Ok(());
    }
    if let ControlAsk::Move { node: Some(asked) } = ask
        && after["node"] != asked.as_str()
    {
        let text = format!("the control store is at {}: another command moved it", place(&after));
        return Err(Failure::new(REFUSED, text));
    }
    out::tell(format!(
        "herd: control: moved from {} to {}: term {} follows {}",
        place(&before),
        place(&after),
        after["term"],
        before["term"]
    ));
    Ok(())
}

/// Whether a node has the herd's map in its directory.
pub(crate) fn has_map(herd: &HerdArgs, name: &str) -> bool {
    about(herd).is_ok_and(|about| about["node"] == name && about["backend"] == "embedded")
}

/// Has the control store leave a node, if it has the warden and its store is one that can.
pub(crate) fn leaves(herd: &HerdArgs, name: &str) -> Outcome {
    let before = known(herd)?;
    if before["node"] != name || before["backend"] != "embedded" {
        return Ok(());
    }
    client(herd)?.control(&ControlAsk::Move { node: None })?;
    let after = wait(herd)?;
    let (node, term) = (word(&after, "node"), &after["term"]);
    out::tell(format!("herd: drain: {name} had the herd's map: {node} keeps it from now on, in term {term}"));
    Ok(())
}

/// Until all nodes that answer name the warden's node, and have its map; what the warden says of its store then.
fn wait(herd: &HerdArgs) -> Result<Value, Failure> {
    let until = Instant::now() + HEARD;
    loop {
        let told = about(herd).and_then(|about| Ok((has_come(&about, &gather(herd)?), about)));
        match told {
            Ok((true, about)) => return Ok(about),
            Err(error) if error.code != REFUSED => return Err(error),
            Err(error) if Instant::now() >= until => {
                let text = format!("control: moved, and nothing was heard since: {}", error.text);
                return Err(Failure::new(REFUSED, text));
            }
            Ok(_) if Instant::now() >= until => {
                let text = "control: moved, and not all nodes have heard of it yet: `herd nodes` shows their epochs";
                return Err(Failure::new(REFUSED, text));
            }
            _ => std::thread::sleep(AGAIN),
        }
    }
}

/// Whether the nodes that answer go by the map of the warden's term.
fn has_come(about: &Value, status: &Value) -> bool {
    let nodes = status["nodes"].as_array().into_iter().flatten();
    let mut nodes = nodes.filter(|node| node["answers"] == true);
    status["warden"] == about["node"] && nodes.all(|node| node["term"] == about["term"])
}

/// Where the store is.
fn place(about: &Value) -> String {
    match about["etcd"].as_str() {
        Some(etcd) => format!("{}, with the warden at {}", out::shown(etcd.as_bytes()), word(about, "node")),
        None => word(about, "node"),
    }
}

fn word(value: &Value, field: &str) -> String {
    out::shown(value[field].as_str().unwrap_or("-").as_bytes()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_whose_answer_was_lost_has_done_nothing() {
        use ErrorKind::{OutcomeUnknown, Unreachable};
        for (kind, said, told) in [
            (OutcomeUnknown, "no answer in time: it may have been done", "the warden did not answer: try again"),
            (OutcomeUnknown, "no answer in time from h:1", "no answer in time from h:1: try again"),
            (Unreachable, "it may have been done", "it may have been done"),
        ] {
            let failure = unanswered(Error::new(kind, said));
            assert_eq!((failure.code, &failure.text[..]), (REFUSED, told));
        }
    }
}
