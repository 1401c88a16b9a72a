//! Pipelining: many requests under way at once, answered in any order.
//!
//! A pipeline has a connection to one node, and where the map is known others, its *lanes*, to the owners of the
//! objects it asks for. Requests about one object are done in the order they were sent: they go over one lane, since
//! the map that a pipeline goes by changes only while nothing is under way.
//!
//! Nothing is sent twice here: when a connection is lost, each request that is open on it fails for itself, with
//! `OutcomeUnknown` if it may have been done.

use super::{Client, wait};
use crate::connection::Patience;
use crate::error::{Error, ErrorKind, Result};
use crate::exchange::{answer, body_of};
use crate::limits::{OWNER_CONNECT_MS, PIPELINE_LANES_MAX, PIPELINE_OUTPUT_BYTES};
use crate::link::{Link, Sink, Source, Step};
use crate::reply::Reply;
use crate::request::Request;
use crate::retry::Failure;
use crate::route::{Chart, Toward};
use crate::shell::Owner;
use herd_core::place::NodeId;
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

/// Connections for requests that do not wait for each other. Dropping it gives up what is not answered.
///
/// Answers are kept in memory until they are waited for.
pub struct Pipeline<'a> {
    client: &'a Client,
    /// The first one takes what is for any node; it is always there.
    lanes: Vec<Lane>,
    /// The map it goes by.
    chart: Option<Arc<Chart>>,
    /// Requests whose answer was not taken yet.
    open: usize,
}

struct Lane {
    /// Whose it is; `None`: any node's.
    node: Option<NodeId>,
    /// `None`: there is no way to this node, or the pipeline is dropped.
    link: Option<Link<TcpStream>>,
    /// Why the connection is lost.
    lost: Option<String>,
}

/// A request under way; hand it to [`Pipeline::wait`] of the pipeline that gave it.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "an answer that is not waited for keeps its memory"]
pub struct Ticket {
    lane: usize,
    id: u64,
    changes: bool,
    is_stale: bool,
}

impl<'a> Pipeline<'a> {
    pub(super) fn new(client: &'a Client, link: Link<TcpStream>) -> Self {
        let lane = Lane { node: None, link: Some(link), lost: None };
        Self { client, lanes: vec![lane], chart: client.common.pool.chart(), open: 0 }
    }

    /// Sends a request. Small ones are gathered and go out with a later one, [`Pipeline::wait`] or
    /// [`Pipeline::flush`]; a put over 64 KiB returns when its value has been taken.
    pub fn send(&mut self, request: &Request<'_>) -> Result<Ticket> {
        if self.open == 0 {
            self.look_at_map();
        }
        let (lane, is_stale) = self.lane_for(request);
        if let Some(lost) = &self.lanes[lane].lost {
            return Err(Error::new(ErrorKind::Unreachable, lost.clone()));
        }
        let request = request.clone().held_by(self.client.common.token);
        let value = request.body();
        let then_ms = self.client.common.patience_ms;
        let first_ms = then_ms.saturating_add(request.wait_ms());
        let patience = Patience { begin_ms: first_ms, first_ms, then_ms };
        let sink = (Sink::Memory(self.client.common.pool.config.value_max_bytes), Vec::new());
        let now_ms = self.client.common.now_ms();
        let id = self.lanes[lane].link().begin(now_ms, &request, body_of(value), sink, patience)?;
        self.open += 1;
        let (client, lane_at) = (self.client, lane);
        let lane = &mut self.lanes[lane_at];
        let source = Source::Slice(value);
        while lane.lost.is_none() && lane.must_drain(id) {
            let blocked = lane.step(client, None, source);
            if lane.must_drain(id) {
                lane.pause(client, blocked);
                lane.give_up_half_sent(id);
            }
        }
        Ok(Ticket { lane: lane_at, id, changes: request.changes(), is_stale })
    }

    /// Waits for the answer: its head, and the value of a get.
    pub fn wait(&mut self, ticket: Ticket) -> Result<(Reply, Vec<u8>)> {
        let client = self.client;
        for (_, lane) in self.lanes.iter_mut().enumerate().filter(|(at, _)| *at != ticket.lane) {
            lane.send_more(client);
        }
        let lane = &mut self.lanes[ticket.lane];
        while lane.lost.is_none() && !lane.link().is_answered(ticket.id) {
            let blocked = lane.step(client, Some(ticket.id), Source::Nothing);
            lane.pause(client, blocked);
        }
        // A connection that lasts may still send what it holds of a request that was given up.
        let may_be_done = lane.lost.is_none() || lane.link().may_be_done(ticket.id);
        let call = lane.link().finish(client.common.now_ms(), ticket.id);
        self.open -= 1;
        if call.is_answered() {
            if let Some(reply) = &call.reply {
                client.common.pool.heard(reply.epoch, ticket.is_stale && !reply.is_no_collection());
            }
            return answer(call).map_err(|failure| match failure {
                Failure::Busy(error) | Failure::Unknown(error) | Failure::Final(error) => error,
                other => unreachable!("an answer is not a loss: {other:?}"),
            });
        }
        let unknown = ticket.changes && may_be_done;
        let kind = if unknown { ErrorKind::OutcomeUnknown } else { ErrorKind::Unreachable };
        Err(Error::new(kind, lane.lost.clone().unwrap_or_else(|| "no answer in time".to_owned())))
    }

    /// Hands all that was gathered to the system.
    pub fn flush(&mut self) {
        let client = self.client;
        for lane in self.lanes.iter_mut().filter(|lane| lane.link.is_some()) {
            while lane.lost.is_none() && lane.link().output_bytes() > 0 {
                let blocked = lane.step(client, None, Source::Nothing);
                if lane.link().output_bytes() > 0 {
                    lane.pause(client, blocked);
                }
            }
        }
    }

    /// Nothing is under way: goes by the latest map, and asks for a later one where there is one.
    fn look_at_map(&mut self) {
        let (pool, now_ms) = (&self.client.common.pool, self.client.common.now_ms());
        let first = &mut self.lanes[0];
        if first.lost.is_none() {
            let link = first.link();
            pool.take_map(link);
            if let Err(error) = pool.ask_map(now_ms, link) {
                first.lost = Some(error.to_string());
            }
        }
        self.chart = pool.chart();
        // Nothing is open on what was lost, so another connection may take its place.
        self.lanes.retain(|lane| lane.node.is_none() || (lane.lost.is_none() && lane.link.is_some()));
    }

    /// The lane of a request, and whether its collection is not in the map.
    fn lane_for(&mut self, request: &Request<'_>) -> (usize, bool) {
        let Some(chart) = &self.chart else { return (0, false) };
        let node = match chart.toward(request) {
            Toward::Owner(node, _) => node,
            toward => return (0, toward == Toward::Unmapped),
        };
        let first = self.lanes[0].link.as_ref().map(|link| link.node);
        if first.is_some_and(|place| chart.places(node).contains(&place)) {
            return (0, false);
        }
        let id = chart.map.nodes[node].id;
        let at = self.lanes.iter().position(|lane| lane.node == Some(id)).unwrap_or_else(|| {
            let owner = Owner { chart: chart.clone(), node };
            let link = if self.lanes.len() < PIPELINE_LANES_MAX { connect(self.client, owner) } else { None };
            self.lanes.push(Lane { node: Some(id), link, lost: None });
            self.lanes.len() - 1
        });
        (if self.lanes[at].serves() { at } else { 0 }, false)
    }
}

/// A connection to the owner of an object, if there is a way. What would be lost with it is not sent again, so it is
/// used once the node has answered the hello.
fn connect(client: &Client, owner: Owner) -> Option<Link<TcpStream>> {
    let (pool, now_ms) = (&client.common.pool, client.common.now_ms());
    if let Some(link) = pool.take_owner(now_ms, &owner) {
        return Some(link);
    }
    if !pool.is_usable(now_ms, &owner) {
        return None;
    }
    let deadline_ms = now_ms.saturating_add(client.common.patience_ms);
    let mut link = client.connect(pool.dial_owner(now_ms, deadline_ms, owner), deadline_ms).ok()?;
    if greet(client, &mut link).is_err() {
        pool.avoid(client.common.now_ms(), link.node);
        return None;
    }
    Some(link)
}

/// Waits for the answer to the hello.
fn greet(client: &Client, link: &mut Link<TcpStream>) -> Result<()> {
    let until_ms = client.common.now_ms().saturating_add(OWNER_CONNECT_MS.min(client.common.patience_ms / 2));
    while !link.is_welcomed() {
        let now_ms = client.common.now_ms();
        let step = link.step(now_ms, None, Source::Nothing)?;
        if let (Step::Wait { write }, false) = (step, link.is_welcomed()) {
            let left_ms = until_ms.checked_sub(now_ms).filter(|&left_ms| left_ms > 0);
            let left_ms = left_ms.ok_or_else(|| Error::new(ErrorKind::Unreachable, "it says nothing"))?;
            wait(&link.socket, write, Duration::from_millis(left_ms)).map_err(Error::lost)?;
        }
    }
    Ok(())
}

impl Lane {
    fn link(&mut self) -> &mut Link<TcpStream> {
        self.link.as_mut().expect("a lane without a link gets no requests")
    }

    /// Whether requests go this way: there is one, and it was not lost. What is for any node has no other.
    fn serves(&self) -> bool {
        self.link.is_some() && self.lost.is_none()
    }

    /// Sends what it can of what was gathered, without waiting.
    fn send_more(&mut self, client: &Client) {
        if self.serves() && self.link().output_bytes() > 0 {
            self.step(client, None, Source::Nothing);
        }
    }

    /// Whether a streamed value must still be at hand, or too much output has gathered.
    fn must_drain(&mut self, id: u64) -> bool {
        let link = self.link();
        link.is_half_sent(id)
            || (link.is_sending(id) && !link.is_answered(id))
            || link.output_bytes() > PIPELINE_OUTPUT_BYTES
    }

    /// Moves bytes; what to wait for, if no more can be moved.
    fn step(&mut self, client: &Client, id: Option<u64>, source: Source<'_>) -> Option<Step> {
        let now_ms = client.common.now_ms();
        let stepped = self.link().step(now_ms, id, source);
        stepped.map_err(|error| self.lose(client, error.to_string())).ok()
    }

    /// The connection is lost; an owner that refuses it, or hangs, is left alone for a while.
    fn lose(&mut self, client: &Client, why: String) {
        self.lost = Some(why);
        if self.node.is_some() {
            let now_ms = client.common.now_ms();
            let place = self.link().node;
            client.common.pool.avoid(now_ms, place);
        }
    }

    fn pause(&mut self, client: &Client, blocked: Option<Step>) {
        let Some(Step::Wait { write }) = blocked else { return };
        let before_ms = client.common.now_ms();
        let link = self.link();
        let most = Duration::from_millis(link.patience_ms(before_ms));
        if most.is_zero() {
            link.expire(before_ms);
        } else if let Err(error) = wait(&link.socket, write, most) {
            self.lose(client, Error::lost(error).to_string());
        }
    }

    /// A value whose time ran out in the middle of a frame leaves nothing that could follow it.
    fn give_up_half_sent(&mut self, id: u64) {
        let link = self.link();
        if link.is_half_sent(id) && link.is_expired(id) {
            self.lost = Some("the node takes no more bytes".to_owned());
        }
    }
}

impl Drop for Pipeline<'_> {
    fn drop(&mut self) {
        for lane in &mut self.lanes {
            if let (Some(link), None) = (lane.link.take(), &lane.lost) {
                self.client.common.pool.give_back(self.client.common.now_ms(), link);
            }
        }
    }
}
