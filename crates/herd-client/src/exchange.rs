//! One request from its first try to its result. Pure but for the sockets it is handed, which never block: time and
//! chance are passed in, and all that waits is left to the shell.
//!
//! [`Exchange::next`] says what the shell must do ([`Need`]), and the shell says what came of it:
//!
//! | state | by | to |
//! |---|---|---|
//! | reading: the first bytes of a source | [`Exchange::supply`] | between |
//! | between tries | an idle connection | open |
//! | between tries | there is none | dialing |
//! | dialing | a connection, and what is asked gets an id | greeting |
//! | greeting | the node's welcome | open |
//! | dialing: the owner's addresses | [`Exchange::connected`] | open, or the next, or astray and between |
//! | dialing: nodes in turn | [`Exchange::connected`] | open, or the next node |
//! | between tries | a long body, and nothing is known of the herd | asking |
//! | asking: the map is waited for, once | it came, or did not in its time | between |
//! | open: the request is under way | an answer, or what can't be helped | ended |
//! | open | a node that could not hand it on, and knows a later map | asking |
//! | open, dialing | a failure after which it may go again | between, perhaps behind a pause |
//!
//! Where the map tells who decides on the object, that node is asked first. A request for which it could not be had is
//! *astray*: it goes to any node, as all do without a map.
//!
//! What changes an object has an id of its own, where the node's welcome says that it takes such; so nothing of it is
//! sent before. A try of which it is not known what came of it is followed by one with the same id. Where all tries
//! before did nothing for certain, the next one has an id that is new.
//!
//! A source is read before there is a connection: who has nothing to say yet is no silent client, and what the first
//! frame holds can be sent again.

use crate::address::Address;
use crate::connection::{Body, Patience};
use crate::error::{Error, ErrorKind, Result};
use crate::ids::Lane;
use crate::limits::{COPIED_BODY_MAX_BYTES, GREETING_MS, MAP_WAIT_MS, STREAM_FRAME_BYTES, TRIES_MAX};
use crate::link::{Call, Link, Sink, Socket, Source, Step};
use crate::reply::Reply;
use crate::request::Request;
use crate::retry::{Failure, Next, Tries};
use crate::shell::{Dial, Pool, Progress};
use herd_core::key::CollectionId;
use herd_core::wire::Own;
use std::io;
use std::time::Duration;

/// What the shell must do before it calls [`Exchange::next`] again.
#[derive(Debug)]
pub(crate) enum Need {
    /// Fill [`Exchange::room`] from the source, and call [`Exchange::supply`].
    Source(Fill),
    /// Connect to this node, of [`Pool::node`], within that time, and call [`Exchange::connected`].
    Connect(usize, Duration),
    /// Wait until [`Exchange::socket`] is readable, or writable too if `write`, but no longer than `most`; call
    /// [`Exchange::waited`].
    Wait {
        /// Whether there is output the socket did not take.
        write: bool,
        /// Longest wait.
        most: Duration,
    },
    /// Wait so long.
    Pause(Duration),
    /// Write [`Exchange::chunk`] out, and call [`Exchange::taken`].
    Chunk,
    /// Read the clock.
    Time,
    /// Nothing: this is the result.
    Done(Result<(Reply, Vec<u8>)>),
}

/// How patiently a source is to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fill {
    /// Until the room is full.
    Full,
    /// If that takes long, until there are whole blocks: a node waits for them.
    Blocks,
}

/// What was read from a source.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Supply {
    /// Bytes in the room.
    pub(crate) bytes: usize,
    /// Whether the source has ended behind them.
    pub(crate) ended: bool,
}

/// Where a request's body comes from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Given<'a> {
    /// It has none, or one of one frame that it holds itself.
    Nothing,
    /// From memory.
    Slice(&'a [u8]),
    /// From a source, so many bytes, or all it has.
    Stream(Option<u64>),
}

/// Where the body stands.
#[derive(Clone, Copy)]
enum Outgoing<'a> {
    Nothing,
    Slice(&'a [u8]),
    /// The buffer holds the whole body.
    Buffered,
    /// The buffer holds the first frame, or a later one; more are to be read.
    Stream(Option<u64>),
}

/// There is one of these for each call, on its stack: a link in a box would cost an allocation a request.
enum State<S> {
    Reading,
    Between,
    Dialing(Dial),
    /// Until then.
    Asking(Link<S>, u64),
    /// Until then.
    Greeting(Link<S>, u64),
    Open(Link<S>, u64),
    Pausing(u64),
    Ended(Option<Result<(Reply, Vec<u8>)>>),
}

/// See the module.
pub(crate) struct Exchange<'a, S> {
    pool: &'a Pool<S>,
    request: Request<'a>,
    outgoing: Outgoing<'a>,
    /// Room for what is read of a source; one frame at most.
    buffer: Vec<u8>,
    /// Bytes of it that were read.
    supplied: usize,
    /// Whether they are the first frame and this try has not sent it yet.
    held: bool,
    sink: Sink,
    memory: Vec<u8>,
    progress: Progress,
    patience_ms: u64,
    /// When a get that waits for a newer version has waited long enough, whatever was lost on the way.
    wait_until_ms: u64,
    tries: Tries,
    /// It does not go to the owner of its object any more.
    astray: bool,
    /// The map was waited for.
    asked: bool,
    /// This try goes to the owner.
    to_owner: bool,
    /// This try's connection was idle before.
    was_idle: bool,
    /// Nodes that took a connection and did not answer the hello in time.
    unwelcomed: u32,
    /// The id that its collection has by the map, 0 if none; `None`: it goes by no map.
    collection: Option<CollectionId>,
    /// The epoch of the map that this try goes by.
    epoch: u32,
    /// The id that it was asked with.
    own: Option<Own>,
    /// By which its ids are made.
    lane: Option<Lane<'a>>,
    state: State<S>,
}

impl<'a, S: Socket> Exchange<'a, S> {
    /// For a request of a client whose `pool` this is; it may be silent for `patience_ms`. `memory` is used for its
    /// answer.
    pub(crate) fn new(
        pool: &'a Pool<S>,
        (now_ms, patience_ms): (u64, u64),
        request: Request<'a>,
        given: Given<'a>,
        (sink, memory): (Sink, Vec<u8>),
    ) -> Self {
        let (outgoing, first_bytes) = match given {
            Given::Nothing => (Outgoing::Nothing, 0),
            Given::Slice(bytes) => (Outgoing::Slice(bytes), 0),
            Given::Stream(length) => (Outgoing::Stream(length), first_frame_bytes(length)),
        };
        let mut exchange = Self {
            pool,
            outgoing,
            buffer: vec![0; first_bytes],
            supplied: 0,
            held: false,
            sink,
            memory,
            progress: Progress::new(&request),
            patience_ms,
            wait_until_ms: 0,
            tries: Tries::new(&request, 0),
            request,
            astray: false,
            asked: false,
            to_owner: false,
            was_idle: false,
            unwelcomed: 0,
            collection: None,
            epoch: 0,
            own: None,
            lane: None,
            state: State::Between,
        };
        match given {
            Given::Stream(_) => exchange.state = State::Reading,
            _ => exchange.start(now_ms),
        }
        exchange
    }

    /// Sets the time until which something must move.
    fn start(&mut self, now_ms: u64) {
        self.wait_until_ms = now_ms.saturating_add(self.request.wait_ms());
        self.tries.moved(self.wait_until_ms.saturating_add(self.patience_ms));
        self.state = State::Between;
    }

    /// What must be done now.
    pub(crate) fn next(&mut self, now_ms: u64) -> Need {
        loop {
            match &mut self.state {
                State::Reading => return Need::Source(Fill::Full),
                State::Between => self.begin(now_ms),
                State::Dialing(dial) => match dial.next(now_ms, self.tries.deadline_ms()) {
                    Some((node, within)) => return Need::Connect(node, within),
                    None if dial.is_of_owner => {
                        self.astray = true;
                        self.state = State::Between;
                    }
                    None => {
                        let failure = self.pool.unreachable(dial.last.take());
                        self.failed(now_ms, Failure::NoConnection(failure));
                    }
                },
                State::Asking(..) => {
                    if let Some(need) = self.await_map(now_ms) {
                        return need;
                    }
                }
                State::Greeting(..) => {
                    if let Some(need) = self.greet(now_ms) {
                        return need;
                    }
                }
                State::Open(..) => {
                    if let Some(need) = self.step(now_ms) {
                        return need;
                    }
                }
                State::Pausing(pause_ms) => {
                    let pause = Duration::from_millis(*pause_ms);
                    self.state = State::Between;
                    return Need::Pause(pause);
                }
                State::Ended(result) => return Need::Done(result.take().expect("a result is told once")),
            }
        }
    }

    // What came of it.

    /// Room for bytes of the source, just as many as are wanted.
    pub(crate) fn room(&mut self) -> &mut [u8] {
        &mut self.buffer
    }

    /// Takes what was read into [`Exchange::room`].
    pub(crate) fn supply(&mut self, now_ms: u64, supply: io::Result<Supply>) {
        let Supply { bytes, ended } = match supply.map_err(Error::local).and_then(|supply| self.check(supply)) {
            Ok(supply) => supply,
            Err(error) => return self.failed(now_ms, Failure::Final(error)),
        };
        self.supplied = bytes;
        if let State::Open(link, id) = &mut self.state {
            let id = *id;
            link.resumed(now_ms, id);
            // A source may have been silent for long. A node that went away meanwhile does not get the last byte.
            return match if ended { link.look(now_ms) } else { Ok(()) } {
                Ok(()) if link.is_answered(id) => {}
                Ok(()) => self.send(now_ms, ended),
                Err(error) => self.lost(now_ms, id, error),
            };
        }
        if let Outgoing::Stream(length) = self.outgoing
            && (ended || length == Some(bytes as u64))
        {
            self.outgoing = Outgoing::Buffered;
        }
        self.start(now_ms);
    }

    /// An error if the source is shorter than was said.
    fn check(&self, supply: Supply) -> Result<Supply> {
        let is_short = supply.ended && supply.bytes < self.buffer.len();
        if is_short && matches!(self.outgoing, Outgoing::Stream(Some(_))) {
            let error = io::Error::new(io::ErrorKind::UnexpectedEof, "it is shorter than was said");
            return Err(Error::local(error));
        }
        Ok(supply)
    }

    /// Takes the connection that was asked for.
    pub(crate) fn connected(&mut self, now_ms: u64, socket: io::Result<S>) {
        let State::Dialing(dial) = &mut self.state else { return };
        match socket {
            Ok(socket) => {
                let link = Link::new(socket, dial.node, now_ms, dial.meant());
                self.open(now_ms, link, false);
            }
            Err(error) => {
                if self.pool.not_connected(now_ms, dial, error) && !dial.is_of_owner {
                    self.tries.missed();
                }
            }
        }
    }

    /// The socket to wait for.
    pub(crate) fn socket(&self) -> &S {
        match &self.state {
            State::Open(link, _) | State::Asking(link, _) | State::Greeting(link, _) => &link.socket,
            _ => unreachable!("only an open request waits"),
        }
    }

    /// Takes note that a wait is over.
    pub(crate) fn waited(&mut self, now_ms: u64, result: io::Result<()>) {
        match (result, &self.state) {
            (Err(error), State::Open(_, id)) => self.lost(now_ms, *id, Error::lost(error)),
            (Err(error), State::Greeting(..)) => self.ungreeted(now_ms, Error::lost(error)),
            (Err(_), State::Asking(..)) => self.state = State::Between,
            _ => {}
        }
    }

    /// Bytes of the answer, to be written out.
    pub(crate) fn chunk(&self) -> &[u8] {
        let State::Open(link, _) = &self.state else { return &[] };
        link.chunk()
    }

    /// Takes note that they were.
    pub(crate) fn taken(&mut self, now_ms: u64, result: io::Result<()>) {
        let State::Open(link, id) = &mut self.state else { return };
        self.progress.bytes += link.chunk().len() as u64;
        link.resumed(now_ms, *id);
        if let Err(error) = result {
            self.failed(now_ms, Failure::Final(Error::local(error)));
        }
    }

    // One try.

    fn begin(&mut self, now_ms: u64) {
        let course = self.pool.course(now_ms, &self.request);
        self.epoch = course.epoch;
        let (owner, about_node) = (course.owner.filter(|_| !self.astray), self.request.is_about_node());
        (self.to_owner, self.collection) = (owner.is_some(), course.collection);
        let idle = match &owner {
            Some(owner) => self.pool.take_owner(now_ms, owner),
            None => self.pool.take(now_ms, about_node),
        };
        match (idle, owner) {
            (Some(link), _) => self.open(now_ms, link, true),
            (None, Some(owner)) => {
                let dial = self.pool.dial_owner(now_ms, self.tries.deadline_ms(), owner);
                self.state = State::Dialing(dial);
            }
            (None, None) => self.state = State::Dialing(self.pool.dial(now_ms, about_node)),
        }
    }

    /// Begins the request over a connection; before a long body, the map is asked for if it never was.
    fn open(&mut self, now_ms: u64, link: Link<S>, was_idle: bool) {
        if self.is_long() && !self.asked && self.pool.knows_nothing() {
            self.ask(now_ms, link);
        } else if self.request.takes_id() && !link.is_welcomed() {
            let left_ms = self.tries.deadline_ms().saturating_sub(now_ms);
            let most_ms = match self.pool.nodes() > 1 {
                true => (GREETING_MS << self.unwelcomed.min(TRIES_MAX)).min(left_ms / 2),
                false => left_ms,
            };
            self.state = State::Greeting(link, now_ms.saturating_add(most_ms));
        } else {
            self.send_request(now_ms, link, was_idle);
        }
    }

    /// What is needed until the node has answered the hello.
    fn greet(&mut self, now_ms: u64) -> Option<Need> {
        let State::Greeting(link, until_ms) = &mut self.state else { unreachable!("checked by the caller") };
        let (step, left_ms) = (link.step(now_ms, None, Source::Nothing), until_ms.saturating_sub(now_ms));
        match step {
            Ok(_) if link.is_welcomed() => {
                let State::Greeting(link, _) = self.leave() else { unreachable!("checked above") };
                self.send_request(now_ms, link, false);
            }
            Ok(Step::Time) => return Some(Need::Time),
            Ok(Step::Wait { write }) if left_ms > 0 => {
                return Some(Need::Wait { write, most: Duration::from_millis(left_ms) });
            }
            Ok(_) => {
                let State::Greeting(link, _) = self.leave() else { unreachable!("checked above") };
                self.unwelcomed += 1;
                self.no_answer(now_ms, &link, false);
            }
            Err(error) => self.ungreeted(now_ms, error),
        }
        None
    }

    /// The link failed before the node had answered the hello.
    fn ungreeted(&mut self, now_ms: u64, error: Error) {
        let State::Greeting(link, _) = self.leave() else { unreachable!("checked by the caller") };
        self.was_idle = false;
        self.lose(now_ms, &link, (error, false));
    }

    /// Whether its body is worth a round trip, if that has it sent once instead of twice.
    fn is_long(&self) -> bool {
        match self.outgoing {
            Outgoing::Nothing | Outgoing::Buffered => false,
            Outgoing::Slice(bytes) => bytes.len() > STREAM_FRAME_BYTES,
            Outgoing::Stream(_) => true,
        }
    }

    /// Asks for the map, and waits for it.
    fn ask(&mut self, now_ms: u64, mut link: Link<S>) {
        self.asked = true;
        let left_ms = self.tries.deadline_ms().saturating_sub(now_ms);
        match self.pool.ask_map_now(now_ms, &mut link) {
            Ok(()) => self.state = State::Asking(link, now_ms.saturating_add(MAP_WAIT_MS.min(left_ms / 2))),
            Err(error) => self.failed(now_ms, Failure::Final(error)),
        }
    }

    /// What is needed until the map is there; nothing if it is, or if it does not come.
    fn await_map(&mut self, now_ms: u64) -> Option<Need> {
        let State::Asking(link, until_ms) = &mut self.state else { unreachable!("checked by the caller") };
        let (step, left_ms) = (link.step(now_ms, link.map(), Source::Nothing), until_ms.saturating_sub(now_ms));
        match step {
            Ok(Step::Time) => return Some(Need::Time),
            Ok(Step::Wait { write }) if left_ms > 0 => {
                return Some(Need::Wait { write, most: Duration::from_millis(left_ms) });
            }
            _ => {}
        }
        let State::Asking(link, _) = self.leave() else { unreachable!("checked above") };
        match step {
            // A map that comes later is taken then.
            Ok(_) => self.pool.give_back(now_ms, link),
            Err(_) => self.pool.failed(link.node),
        }
        None
    }

    fn send_request(&mut self, now_ms: u64, mut link: Link<S>, was_idle: bool) {
        if !self.take_id(now_ms, &link) {
            // This node does not know what became of it, and would do it anew.
            self.pool.give_back(now_ms, link);
            let error =
                Error::new(ErrorKind::OutcomeUnknown, "the node that could be reached takes no ids of requests");
            return self.failed(now_ms, Failure::Final(error));
        }
        self.request.wait_at_most(self.wait_until_ms.saturating_sub(now_ms));
        let body = match self.outgoing {
            Outgoing::Nothing => Body::Copied(self.request.body()),
            Outgoing::Slice(bytes) => body_of(bytes),
            Outgoing::Buffered => body_of(&self.buffer[..self.supplied]),
            Outgoing::Stream(length) => Body::Streamed(length),
        };
        self.held = true;
        let sink = (self.sink, std::mem::take(&mut self.memory));
        let first_ms = self.tries.silence_ms(now_ms, self.pool.nodes(), was_idle, self.request.wait_ms());
        // A change that is asked of another node meanwhile, by its id, may be done by either.
        let left_ms = self.tries.deadline_ms().saturating_sub(now_ms);
        let begin_ms = if self.own.is_some() { left_ms } else { first_ms };
        let patience = Patience { begin_ms, first_ms, then_ms: self.patience_ms };
        self.was_idle = was_idle;
        let begun = link.begin(now_ms, &self.request, body, sink, patience);
        match begun.and_then(|id| self.pool.ask_map(now_ms, &mut link).map(|()| id)) {
            Ok(id) => self.state = State::Open(link, id),
            Err(error) => self.failed(now_ms, Failure::Final(error)),
        }
    }

    /// Gives the request its id. False: it can't be asked over this link, as it may have been done.
    fn take_id(&mut self, now_ms: u64, link: &Link<S>) -> bool {
        if !self.request.takes_id() {
            return true;
        }
        let told = link.ids();
        self.own = match (self.own, told) {
            (Some(own), Some(_)) if self.tries.may_be_done() => Some(Own { may_be_done: true, ..own }),
            _ if self.tries.may_be_done() => return false,
            (_, told) => told
                .filter(|_| self.tries.wants_id())
                .map(|told| self.lane.get_or_insert_with(|| self.pool.ids.lane()).next(now_ms, told)),
        };
        self.tries.has_id(self.own.is_some() && !matches!(self.outgoing, Outgoing::Stream(_)));
        self.request.set_id(self.own);
        true
    }

    /// Moves what can be moved over the open connection; what is needed then, if it is not over with the try.
    fn step(&mut self, now_ms: u64) -> Option<Need> {
        let State::Open(link, id) = &mut self.state else { unreachable!("checked by the caller") };
        let id = *id;
        let source = match self.outgoing {
            Outgoing::Nothing => Source::Nothing,
            Outgoing::Slice(bytes) => Source::Slice(bytes),
            Outgoing::Buffered => Source::Slice(&self.buffer[..self.supplied]),
            Outgoing::Stream(_) => Source::Stream(&self.buffer[..self.supplied]),
        };
        match link.step(now_ms, Some(id), source) {
            Ok(Step::Done) => self.finish(now_ms),
            Ok(Step::Wait { write }) => match link.patience_ms(now_ms) {
                0 => self.silent(now_ms, id),
                most_ms => return Some(Need::Wait { write, most: Duration::from_millis(most_ms) }),
            },
            Ok(Step::Source(bytes)) => return self.source(now_ms, bytes),
            Ok(Step::Chunk) => return self.check_chunk(now_ms),
            Ok(Step::Time) => return Some(Need::Time),
            Err(error) => self.lost(now_ms, id, error),
        }
        None
    }

    /// Sends what was supplied.
    fn send(&mut self, now_ms: u64, ended: bool) {
        let State::Open(link, id) = &mut self.state else { unreachable!("checked by the caller") };
        let id = *id;
        if let Err(error) = link.supply(&self.buffer[..self.supplied], ended) {
            self.lost(now_ms, id, error);
        }
    }

    /// Sends the first frame, which is there, or asks for a later one.
    fn source(&mut self, now_ms: u64, bytes: usize) -> Option<Need> {
        if std::mem::take(&mut self.held) {
            self.send(now_ms, false);
            return None;
        }
        self.tries.consumed();
        self.buffer.resize(bytes, 0);
        Some(Need::Source(Fill::Blocks))
    }

    /// Whether the bytes that have come are of the object that was begun.
    fn check_chunk(&mut self, now_ms: u64) -> Option<Need> {
        let State::Open(link, id) = &mut self.state else { unreachable!("checked by the caller") };
        let reply = link.reply(*id).expect("a body comes behind its reply");
        if !reply.is_ok() {
            return None;
        }
        match self.progress.accept(reply) {
            Ok(()) => Some(Need::Chunk),
            Err(error) => {
                self.failed(now_ms, Failure::Final(error));
                None
            }
        }
    }

    fn finish(&mut self, now_ms: u64) {
        let State::Open(mut link, id) = self.leave() else { unreachable!("checked by the caller") };
        let call = link.finish(now_ms, id);
        self.hear(&call);
        match answer(call) {
            Ok((reply, value)) => {
                self.pool.give_back(now_ms, link);
                let accepted = if self.sink == Sink::Stream { self.progress.accept(&reply) } else { Ok(()) };
                self.end(accepted.map(|()| (reply, value)));
            }
            // Another than the node that was asked decides by now, and nothing was done.
            Err(Failure::Final(error)) if self.may_ask_again(now_ms, &error, &link) => match self.is_outdated() {
                true => {
                    self.asked = true;
                    self.pool.give_back(now_ms, link);
                }
                false => self.ask(now_ms, link),
            },
            Err(failure) => {
                let failure = self.judged_by_id(failure);
                match &failure {
                    Failure::Busy(_) => self.pool.failed(link.node),
                    _ => self.pool.give_back(now_ms, link),
                }
                self.failed(now_ms, failure);
            }
        }
    }

    /// An answer as it is for what has an id.
    fn judged_by_id(&self, failure: Failure) -> Failure {
        let timeout = ErrorKind::Refused(herd_core::ErrorKind::Timeout);
        match (failure, self.own) {
            (Failure::Final(error), Some(own)) if error.kind() == timeout => match own.may_be_done {
                false => Failure::OldId(error),
                true => Failure::Unknown(error.with_kind(ErrorKind::OutcomeUnknown)),
            },
            (Failure::Unknown(error), None) => Failure::Final(error),
            (failure, _) => failure,
        }
    }

    /// Whether a request that its node could not hand on may go to the owner by a later map.
    fn may_ask_again(&self, now_ms: u64, error: &Error, link: &Link<S>) -> bool {
        let unreachable = ErrorKind::Refused(herd_core::ErrorKind::Unreachable);
        let is_unreachable = error.kind() == unreachable && self.request.object().is_some();
        let can_repeat = !self.asked && !self.tries.is_consumed() && now_ms < self.tries.deadline_ms();
        is_unreachable && can_repeat && (self.pool.wants_map() || link.map().is_some() || self.is_outdated())
    }

    /// Whether a later map than this try goes by has come meanwhile.
    fn is_outdated(&self) -> bool {
        self.pool.epoch_at_hand() > self.epoch
    }

    /// Takes note of what an answer tells of the map.
    fn hear(&self, call: &Call) {
        let Some(reply) = &call.reply else { return };
        let is_stale = match self.collection {
            None => false,
            Some(CollectionId(0)) => !reply.is_no_collection(),
            Some(id) => reply.is_ok() && reply.collection != id.0,
        };
        self.pool.heard(reply.epoch, is_stale);
    }

    /// The node of this try is of no use for now.
    fn shun(&mut self, now_ms: u64, node: usize) {
        self.astray |= self.to_owner;
        self.pool.avoid(now_ms, node);
    }

    /// Nothing moved for the time of the try.
    fn silent(&mut self, now_ms: u64, id: u64) {
        let State::Open(link, _) = self.leave() else { unreachable!("checked by the caller") };
        let may_be_done = link.may_be_done(id);
        self.no_answer(now_ms, &link, may_be_done);
    }

    fn no_answer(&mut self, now_ms: u64, link: &Link<S>, may_be_done: bool) {
        self.shun(now_ms, link.node);
        let said = if link.is_known() { "" } else { ": it took the connection and said nothing" };
        let text = format!("no answer in time from {}{said}", self.pool.node(link.node));
        let error = Error::new(ErrorKind::Unreachable, text);
        self.failed(now_ms, Failure::Lost { error, may_be_done });
    }

    /// The link failed.
    fn lost(&mut self, now_ms: u64, id: u64, error: Error) {
        let State::Open(link, _) = self.leave() else { unreachable!("checked by the caller") };
        // What moved before the loss counts as it does while a connection lasts.
        self.tries.moved(link.deadline(id).unwrap_or(0));
        let may_be_done = link.may_be_done(id);
        self.lose(now_ms, &link, (error, may_be_done));
    }

    fn lose(&mut self, now_ms: u64, link: &Link<S>, (error, may_be_done): (Error, bool)) {
        if !matches!(error.kind(), ErrorKind::Unreachable | ErrorKind::BadReply) {
            return self.failed(now_ms, Failure::Final(error));
        }
        match self.was_idle {
            true => self.pool.failed(link.node),
            false => self.shun(now_ms, link.node),
        }
        let error = match (link.is_foreign(), link.is_known()) {
            (true, _) => not_a_node(&self.pool.node(link.node)),
            (false, true) => error,
            (false, false) => error.about(format_args!("{} {SAID_NOTHING}", self.pool.node(link.node))),
        };
        self.failed(now_ms, Failure::Lost { error, may_be_done });
    }

    // Between tries.

    /// Takes the state; the next one is to be set.
    fn leave(&mut self) -> State<S> {
        std::mem::replace(&mut self.state, State::Between)
    }

    /// Decides what follows a failure.
    fn failed(&mut self, now_ms: u64, failure: Failure) {
        let failure = self.progress.judged(failure);
        if self.progress.end_try() {
            self.tries.progressed();
        }
        match self.tries.after(failure, now_ms, self.pool.chance()) {
            Next::Fail(error) => {
                let error = error.of(self.request.verb.name(), self.request.subject());
                self.end(Err(error));
            }
            Next::Again(pause_ms) => self.again(pause_ms),
        }
    }

    /// Begins anew, with the rest of what was asked for.
    fn again(&mut self, pause_ms: u64) {
        self.state = if pause_ms > 0 { State::Pausing(pause_ms) } else { State::Between };
        if self.progress.bytes == 0 {
            return;
        }
        match (self.progress.rest(), &self.progress.reply) {
            (Some(range), _) => self.request = self.request.of_range(range),
            (None, Some(reply)) => {
                let reply = reply.clone();
                self.end(Ok((reply, Vec::new())));
            }
            (None, None) => unreachable!("bytes come behind their reply"),
        }
    }

    fn end(&mut self, result: Result<(Reply, Vec<u8>)>) {
        let result = match (&self.progress.reply, result) {
            (Some(first), Ok((_, value))) => Ok((first.clone(), value)),
            (_, result) => result,
        };
        self.state = State::Ended(Some(result));
    }
}

/// What is told of a server that speaks another protocol.
/// Of an address that ended a connection before its first byte.
const SAID_NOTHING: &str =
    "ended the connection before it said anything; it may be no Herd node, or have all the connections it takes";

fn not_a_node(address: &Address) -> Error {
    let text = format!("{address} answers, but not as a Herd node: check the address");
    Error::new(ErrorKind::Unreachable, text)
}

/// Bytes of a source that are read before there is a connection.
fn first_frame_bytes(length: Option<u64>) -> usize {
    length.map_or(STREAM_FRAME_BYTES, |length| length.min(STREAM_FRAME_BYTES as u64) as usize)
}

/// A body that is in memory: copied if it is small.
pub(crate) fn body_of(bytes: &[u8]) -> Body<'_> {
    if bytes.len() <= COPIED_BODY_MAX_BYTES { Body::Copied(bytes) } else { Body::Streamed(Some(bytes.len() as u64)) }
}

/// The answer of a call that has ended, with its body if that went to memory.
pub(crate) fn answer(call: Call) -> std::result::Result<(Reply, Vec<u8>), Failure> {
    let reply = call.reply.clone().expect("a call ends with its answer");
    match reply.error() {
        None => Ok((reply, call.into_value())),
        Some(error) if reply.is_busy() => Err(Failure::Busy(error)),
        Some(error) if reply.is_unknown() => Err(Failure::Unknown(error)),
        Some(error) => Err(Failure::Final(error)),
    }
}

#[cfg(test)]
mod tests;
