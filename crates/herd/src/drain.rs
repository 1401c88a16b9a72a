//! `herd drain`: has a node give away all that it keeps, and waits until it has.

use crate::args::DrainArgs;
use crate::control::{has_map, leaves};
use crate::exit::{Failure, NOT_SO, Outcome, REFUSED};
use crate::objects::client;
use crate::out;
use crate::progress::Steps;
use crate::view::{gather, node_of};
use herd_client::{Error, ErrorKind};
use herd_core::ErrorKind as Core;
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
    let client = client(&args.herd)?;
    match until_known(|| client.drain(name, args.cancel), SILENT + args.herd.timeout) {
        // A node that could take something may be on its way.
        Err(error) if !args.cancel && is_no(&error) && drains(args) => {}
        asked => asked?,
    }
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
    let node = node_of(&status, name).unwrap_or_default();
    check_saved(name, &node)?;
    let next = match status["warden"].as_str() == Some(name) {
        true => "is empty: it keeps the herd's map, and must go on running",
        false if node["answers"] == false => "is empty, and does not answer: the herd forgets it soon",
        false => "is empty: stop it, and the herd forgets it",
    };
    out::tell(format!("herd: drain: {name} {next}"));
    Ok(())
}

/// A node that may drain gives the herd's map away, too. One that is known not to do that stays as it was.
fn give_map_away(args: &DrainArgs, drained: bool) -> Outcome {
    let name = &args.drained;
    let Err(failure) = leaves(&args.herd, name) else { return Ok(()) };
    let calls_off = || -> Outcome {
        let client = client(&args.herd)?;
        Ok(until_known(|| client.drain(name, true), SILENT + args.herd.timeout)?)
    };
    if !drained && has_map(&args.herd, name) && calls_off().is_ok() {
        return Err(failure);
    }
    let text = format!("{}; {name} drains all the same: `herd drain {name}` again waits for it", failure.text);
    Err(Failure { text, ..failure })
}

/// Asks for something that is the same if it is done twice, again for so long where nobody knows whether it was done:
/// the warden's node may have died meanwhile, and is started again, or another one in its place.
fn until_known(mut ask: impl FnMut() -> Result<(), Error>, patience: Duration) -> Result<(), Error> {
    let mut unknown: Option<(Instant, Error)> = None;
    loop {
        let Err(error) = ask() else { return Ok(()) };
        let since = unknown.as_ref().map(|(since, _)| *since);
        if error.kind() == ErrorKind::OutcomeUnknown {
            unknown = Some((since.unwrap_or_else(Instant::now), error));
        } else if since.is_none() || is_verdict(error.kind()) {
            return Err(error);
        }
        if let Some((_, unknown)) = unknown.take_if(|(since, _)| since.elapsed() >= patience) {
            return Err(unknown);
        }
        std::thread::sleep(AGAIN);
    }
}

/// Whether it tells what is so, where something was asked before that may have been done. That nobody can be asked now
/// does not.
fn is_verdict(kind: ErrorKind) -> bool {
    use Core::{Busy, Timeout};
    !matches!(
        kind,
        ErrorKind::OutcomeUnknown
            | ErrorKind::Unreachable
            | ErrorKind::BadReply
            | ErrorKind::Refused(Busy | Timeout | Core::Unreachable)
    )
}

/// Whether the herd has said that it can't be.
fn is_no(error: &Error) -> bool {
    error.kind() == ErrorKind::Refused(Core::NotAllowed)
}

/// Whether it drains, as is known now.
fn drains(args: &DrainArgs) -> bool {
    let node = gather(&args.herd).ok().and_then(|status| node_of(&status, &args.drained));
    node.is_some_and(|node| node["state"] == "draining")
}

/// An error if what a node that drains keeps has nowhere to go any more: the warden says so, as at the start.
fn check_room(args: &DrainArgs) -> Result<(), Failure> {
    let name = &args.drained;
    let Err(error) = client(&args.herd)?.drain(name, false) else { return Ok(()) };
    if !is_no(&error) {
        return Ok(());
    }
    let failure = Failure::from(error);
    let rest = format!("{name} drains all the same, and goes on when one is there; `herd drain {name} --cancel`");
    Err(Failure { text: format!("{}: {rest} calls it off", failure.text), ..failure })
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
    let now = Instant::now();
    let (mut heard, mut moved, mut looked, mut last, mut told) = (now, now, now, all, false);
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
        if moved.max(looked).elapsed() > STUCK {
            looked = Instant::now();
            // Where it does not drain, to ask would begin that anew.
            if node["state"] == "draining" {
                check_room(args)?;
            }
            if !std::mem::replace(&mut told, true) {
                out::tell(stuck(&args.drained, left, node["answers"] == true));
            }
        }
        steps.at(all.saturating_sub(left), all);
        std::thread::sleep(AGAIN);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What comes of it where the tries end so, and how many there were.
    fn asked(ends: &[ErrorKind], patience: Duration) -> (Result<(), ErrorKind>, usize) {
        let mut tries = 0;
        let ask = || {
            tries += 1;
            ends.get(tries - 1).map_or(Ok(()), |kind| Err(Error::new(*kind, "it")))
        };
        let end = until_known(ask, patience).map_err(|error| error.kind());
        (end, tries)
    }

    #[test]
    fn what_may_have_been_done_is_asked_again_until_that_is_known() {
        use ErrorKind::{BadReply, OutcomeUnknown, Refused, Unreachable};
        let long = Duration::from_secs(60);
        assert_eq!(asked(&[], long), (Ok(()), 1));
        let silent = [OutcomeUnknown, Unreachable, Refused(Core::Busy), Refused(Core::Unreachable), BadReply];
        assert_eq!(asked(&silent, long), (Ok(()), 6));
        assert_eq!(asked(&[OutcomeUnknown, Refused(Core::NotAllowed)], long), (Err(Refused(Core::NotAllowed)), 2));
        assert_eq!(asked(&[Unreachable], long), (Err(Unreachable), 1), "nothing was done");
        assert_eq!(asked(&[Refused(Core::Unreachable)], long), (Err(Refused(Core::Unreachable)), 1), "nor here");
    }

    #[test]
    fn what_nobody_knows_in_the_end_is_told_as_that() {
        use ErrorKind::{OutcomeUnknown, Refused};
        let mut ends = vec![Refused(Core::Unreachable); 99];
        ends[0] = OutcomeUnknown;
        let (end, tries) = asked(&ends, AGAIN + AGAIN / 2);
        assert_eq!(end, Err(OutcomeUnknown));
        assert!((2..=3).contains(&tries), "{tries}");
        assert_eq!(asked(&ends, Duration::ZERO), (Err(OutcomeUnknown), 1));
    }
}
