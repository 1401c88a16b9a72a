//! What memcached's clients ask of a node and mean of the whole herd: `stats`, and `debugtime` of its tests. The other
//! nodes are asked over their links, and the answer is made of all of theirs.

use super::admin;
use super::later::Later;
use super::lines::answer_error;
use crate::context::{Context, Output};
use crate::flight::{Handing, Landed, Later as Kept};
use crate::metrics::VerbName;
use herd_core::door::memcached::{Command, DebugTime, StatsTopic, parse_line, reply};
use herd_core::limits::FLIGHT_MS;
use herd_core::op::Answer;
use herd_core::place::{NodeId, NodeState};
use herd_core::{Error, ErrorKind};
use herd_net::Ticket;

/// What one node has another do.
const DEBUG_TIME: &str = "debugtime";
/// What one node asks another for.
const STATS: &str = "stats";

/// What the other nodes were asked for.
#[derive(Clone, Copy)]
pub(crate) enum Gathered {
    /// Their clocks were moved.
    Clocks,
    /// Their figures.
    Stats(StatsTopic),
}

/// The other nodes of the herd that are up.
fn others(cx: &Context) -> Vec<NodeId> {
    let place = cx.shared.place.get().filter(|_| cx.shared.hub.get().is_some());
    let Some((me, (map, _))) = place.and_then(|place| Some((place.me().node, place.map()?))) else { return Vec::new() };
    map.nodes.iter().filter(|node| node.state == NodeState::Up && node.id != me).map(|node| node.id).collect()
}

/// Asks all other nodes; `None`: there are none.
pub(super) fn gather(cx: &mut Context, what: Gathered, word: &[u8], out: &mut Output<'_>) -> Option<Ticket> {
    let nodes = others(cx);
    if nodes.is_empty() {
        return None;
    }
    let method = if matches!(what, Gathered::Clocks) { DEBUG_TIME } else { STATS };
    let handings = nodes.into_iter().map(|node| Handing::admin(cx, node, method, word)).collect::<Result<Vec<_>, _>>();
    let later = Kept::Memcached(Later::Gathered(what));
    match handings.and_then(|handings| cx.hand_on(out, true, later, handings, FLIGHT_MS)) {
        Ok(ticket) => Some(ticket),
        Err(error) => {
            answer_error(cx, VerbName::Admin, &error, false, out);
            Some(out.ticket())
        }
    }
}

/// The answer, once all others have told theirs.
pub(super) fn answer(cx: &mut Context, what: Gathered, landed: &[Landed], out: &mut Output<'_>) {
    let mut figures = admin::figures(cx);
    for landed in landed {
        match (&landed.done, what) {
            (Err(error), _) => return answer_error(cx, VerbName::Admin, error, false, out),
            (Ok((_, Answer::Bytes(bytes))), Gathered::Stats(_)) => match admin::Figures::decode(bytes) {
                Some(theirs) => figures.add(&theirs),
                None => {
                    let error = Error::new(ErrorKind::Unreachable, "another node tells no figures");
                    return answer_error(cx, VerbName::Admin, &error, false, out);
                }
            },
            _ => {}
        }
    }
    match what {
        Gathered::Clocks => out.buf.extend_from_slice(reply::OK),
        Gathered::Stats(topic) => admin::write_stats(cx, topic, &figures, out),
    }
}

/// Does what another node asks for, and gives the answer. Error: it asks for nothing that there is.
pub(crate) fn asked(cx: &mut Context, method: &str, word: &[u8]) -> Result<Vec<u8>, Error> {
    match method {
        STATS => {
            cx.was_dear();
            Ok(admin::figures(cx).encode())
        }
        DEBUG_TIME if cx.shared.config.debug_time => match parse_line(&[b"debugtime ", word].concat()) {
            Ok(Command::DebugTime(time)) => {
                admin::move_clock(cx, time);
                Ok(Vec::new())
            }
            _ => Err(Error::new(ErrorKind::BadRequest, "no such time")),
        },
        DEBUG_TIME => Err(Error::new(ErrorKind::NotAllowed, "this node was not started with HERD_DEBUG_TIME=1")),
        _ => Err(Error::new(ErrorKind::BadRequest, "no such method")),
    }
}

/// As it is said on a line.
pub(super) fn word_of(time: DebugTime) -> Vec<u8> {
    match time {
        DebugTime::Pause => b"p".to_vec(),
        DebugTime::Resume => b"r".to_vec(),
        DebugTime::Move(seconds) => seconds.to_string().into_bytes(),
    }
}
