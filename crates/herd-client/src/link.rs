//! A connection and its socket, driven together. Exchanges and pipelines use it.
//!
//! [`Link::step`] moves all it can without waiting and then says what is to be done. The socket never blocks; the time
//! is handed in, as ms from any moment that is the same for all calls.

use crate::connection::{Body, BodyPart, Connection, Delivery, Event, Patience, Wanted};
use crate::error::{Error, ErrorKind, Result};
use crate::ids::IdsTold;
use crate::limits::{IDLE_TRUSTED_MS, STEP_ROUNDS, STREAM_FRAME_BYTES};
use crate::reply::{Reply, Welcome};
use crate::request::Request;
use herd_core::limits::MAP_MAX_BYTES;
use herd_core::wire::{MapMark, Meant};
use std::collections::BTreeMap;
use std::io::{self, IoSlice, IoSliceMut};

/// A stream socket that does not block.
pub(crate) trait Socket {
    /// Reads what is there; `WouldBlock` if nothing is.
    fn read(&self, into: &mut [IoSliceMut<'_>]) -> io::Result<usize>;
    /// Writes what there is room for; `WouldBlock` if there is none.
    fn write(&self, from: &[IoSlice<'_>]) -> io::Result<usize>;
}

/// Where the body of a reply goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sink {
    /// Into memory of the call; an error if it is more than so many bytes.
    Memory(u64),
    /// To the caller, in pieces, by [`Step::Chunk`].
    Stream,
}

/// Where the body of a request comes from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Source<'a> {
    /// It has none, or it was copied.
    Nothing,
    /// From memory.
    Slice(&'a [u8]),
    /// In pieces, by [`Step::Source`]; here the one that was supplied last.
    Stream(&'a [u8]),
}

/// What must be done before the next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Wait until the socket is readable, or writable too if `write`.
    Wait {
        /// Whether there is output the socket did not take.
        write: bool,
    },
    /// Hand the next bytes of the request's body to [`Link::supply`]: so many, or fewer whole blocks, or its end.
    Source(usize),
    /// Take [`Link::chunk`].
    Chunk,
    /// Read the clock: much was moved in one step.
    Time,
    /// The call is answered: [`Link::finish`].
    Done,
}

/// A request under way, and then its answer.
#[derive(Debug)]
pub(crate) struct Call {
    sink: Sink,
    /// The head of the answer, once it is there.
    pub(crate) reply: Option<Reply>,
    /// Its body, if it goes to memory.
    value: Vec<u8>,
    filled: usize,
    ended: bool,
}

impl Call {
    fn answer(&mut self, reply: Reply, body_bytes: Option<u64>, ends: bool) -> Result<()> {
        self.reply = Some(reply);
        self.ended = ends;
        match (self.sink, body_bytes) {
            (Sink::Memory(_), Some(bytes)) if !ends => self.grow(bytes),
            _ => Ok(()),
        }
    }

    /// Makes the value `bytes` long, within the limit. What lies behind the bytes that have arrived is of no meaning;
    /// fresh memory costs nothing until it is filled.
    fn grow(&mut self, bytes: u64) -> Result<()> {
        let Sink::Memory(most) = self.sink else { return Ok(()) };
        if bytes > most {
            let text = format!("the answer has {bytes} bytes or more and the limit is {most}: read it in parts");
            return Err(Error::new(ErrorKind::Refused(herd_core::ErrorKind::TooLarge), text));
        }
        let bytes = bytes as usize;
        if self.filled == 0 && bytes > self.value.capacity() {
            self.value = vec![0; bytes];
        } else {
            self.value.resize(bytes, 0);
        }
        Ok(())
    }

    /// Room for the next `bytes` of the body.
    fn room(&mut self, bytes: usize) -> Result<&mut [u8]> {
        let end = self.filled + bytes;
        if end > self.value.len() {
            self.grow(end as u64)?;
        }
        Ok(&mut self.value[self.filled..end])
    }

    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        self.room(bytes.len())?.copy_from_slice(bytes);
        self.filled += bytes.len();
        Ok(())
    }

    /// Whether the answer is there wholly; `false` of one that was given up.
    pub(crate) fn is_answered(&self) -> bool {
        self.ended && self.reply.is_some()
    }

    /// The body.
    pub(crate) fn into_value(mut self) -> Vec<u8> {
        self.value.truncate(self.filled);
        self.value
    }
}

/// See the module.
pub(crate) struct Link<S> {
    connection: Connection,
    pub(crate) socket: S,
    calls: BTreeMap<u64, Call>,
    /// Index of its address among those the client knows.
    pub(crate) node: usize,
    /// The call that asks for the map.
    map: Option<u64>,
    idle_since_ms: u64,
    made_ms: u64,
    /// What the node said of itself.
    welcome: Option<Welcome>,
}

impl<S: Socket> Link<S> {
    /// Over a fresh socket to the address `node`; `meant`: only that node is to take what is asked.
    pub(crate) fn new(socket: S, node: usize, now_ms: u64, meant: Option<Meant>) -> Self {
        let connection = match meant {
            Some(meant) => Connection::to_node(now_ms, meant),
            None => Connection::new(now_ms),
        };
        Self {
            connection,
            socket,
            calls: BTreeMap::new(),
            node,
            map: None,
            idle_since_ms: now_ms,
            made_ms: now_ms,
            welcome: None,
        }
    }

    /// Asks for the map beside what else is under way; nobody waits for the answer, see [`Link::take_map`].
    pub(crate) fn ask_map(&mut self, now_ms: u64, mark: Option<MapMark>) -> Result<()> {
        if self.map.is_none() {
            let id = self.connection.ask_map(now_ms, mark)?;
            let sink = Sink::Memory(MAP_MAX_BYTES as u64);
            self.calls.insert(id, Call { sink, reply: None, value: Vec::new(), filled: 0, ended: false });
            self.map = Some(id);
        }
        Ok(())
    }

    /// The call that asks for the map, until its answer is taken.
    pub(crate) fn map(&self) -> Option<u64> {
        self.map
    }

    /// The answer to who asked for the map, once it is there.
    pub(crate) fn take_map(&mut self) -> Option<Call> {
        let id = self.map.filter(|&id| self.is_answered(id))?;
        self.map = None;
        self.calls.remove(&id)
    }

    /// Opens a request and says its id. `memory` is used for its answer.
    pub(crate) fn begin(
        &mut self,
        now_ms: u64,
        request: &Request<'_>,
        body: Body<'_>,
        (sink, memory): (Sink, Vec<u8>),
        patience: Patience,
    ) -> Result<u64> {
        let delivery = match sink {
            Sink::Memory(_) => Delivery::Early,
            Sink::Stream => Delivery::Checked,
        };
        let id = self.connection.open(now_ms, request, body, delivery, patience)?;
        let call = Call { sink, reply: None, value: memory, filled: 0, ended: false };
        self.calls.insert(id, call);
        Ok(id)
    }

    /// Moves what can be moved until the call `id` needs something; if `None`, until no more can be moved. An error of
    /// kind `Unreachable` or `BadReply` means that the connection is lost; after any other one, too, it is not to be
    /// used again.
    pub(crate) fn step(&mut self, now_ms: u64, id: Option<u64>, source: Source<'_>) -> Result<Step> {
        for _ in 0..STEP_ROUNDS {
            if self.drain()? {
                return Ok(Step::Chunk);
            }
            if id.is_some_and(|id| self.is_answered(id)) {
                return Ok(Step::Done);
            }
            if let Some(bytes) = self.feed(source)? {
                return Ok(Step::Source(bytes));
            }
            let wrote = match self.connection.has_output().then(|| self.write(now_ms, source)) {
                Some(Err(error)) => return Err(self.last_words(now_ms, error)),
                Some(Ok(wrote)) => wrote,
                None => false,
            };
            let left = self.connection.has_output();
            // Right behind a request its answer can't be there; while a body goes out, credit or a refusal can.
            let sent_all = wrote && !left;
            if sent_all && !self.connection.is_sending(None) {
                return Ok(Step::Wait { write: false });
            }
            if !self.read(now_ms)? && !sent_all {
                return Ok(Step::Wait { write: left });
            }
        }
        Ok(Step::Time)
    }

    /// Why the connection is lost. What a stranger said before it closed tells more than that it did.
    fn last_words(&mut self, now_ms: u64, error: Error) -> Error {
        if self.connection.is_known() {
            return error;
        }
        self.read(now_ms).and_then(|_| self.drain()).err().unwrap_or(error)
    }

    /// Takes what has come while a body goes out, perhaps the answer; an error if the node has closed the connection.
    pub(crate) fn look(&mut self, now_ms: u64) -> Result<()> {
        while self.read(now_ms)? && !self.drain()? {}
        Ok(())
    }

    /// Whether what answers is no Herd node.
    pub(crate) fn is_foreign(&self) -> bool {
        self.connection.is_foreign()
    }

    /// Whether the node has answered the hello.
    pub(crate) fn is_welcomed(&self) -> bool {
        self.connection.is_welcomed()
    }

    /// What its node has told for the ids of requests; `None`: it takes none.
    pub(crate) fn ids(&self) -> Option<IdsTold> {
        let welcome = self.welcome.as_ref()?;
        let ahead_ms = welcome.clock_ms?.saturating_sub(self.made_ms);
        Some(IdsTold { ahead_ms, epoch: welcome.epoch })
    }

    /// Whether what answers is a Herd node.
    pub(crate) fn is_known(&self) -> bool {
        self.connection.is_known()
    }

    /// Whether the call is answered wholly.
    pub(crate) fn is_answered(&self, id: u64) -> bool {
        self.calls.get(&id).is_none_or(|call| call.ended)
    }

    /// Whether the body of the call is still being sent.
    pub(crate) fn is_sending(&self, id: u64) -> bool {
        self.connection.is_sending(Some(id))
    }

    /// Whether a frame of the call has gone out in part, so that the rest must follow.
    pub(crate) fn is_half_sent(&self, id: u64) -> bool {
        self.connection.output_body().is_some_and(|part| part.id == id)
    }

    /// Whether the call has ended without an answer.
    pub(crate) fn is_expired(&self, id: u64) -> bool {
        self.calls.get(&id).is_some_and(|call| call.ended && call.reply.is_none())
    }

    /// Whether the open request was sent wholly.
    pub(crate) fn may_be_done(&self, id: u64) -> bool {
        self.connection.may_be_done(id)
    }

    /// When the open call is given up unless something moves.
    pub(crate) fn deadline(&self, id: u64) -> Option<u64> {
        self.connection.deadline(id)
    }

    /// The head of the answer, once it is there.
    pub(crate) fn reply(&self, id: u64) -> Option<&Reply> {
        self.calls.get(&id)?.reply.as_ref()
    }

    /// Takes the call off, answered or not.
    pub(crate) fn finish(&mut self, now_ms: u64, id: u64) -> Call {
        self.idle_since_ms = now_ms;
        self.calls.remove(&id).expect("it was begun")
    }

    /// How long the next wait may last, ms.
    pub(crate) fn patience_ms(&self, now_ms: u64) -> u64 {
        self.connection.next_deadline().unwrap_or(0).saturating_sub(now_ms)
    }

    /// Gives up the requests whose deadline has passed; they count as ended without an answer.
    pub(crate) fn expire(&mut self, now_ms: u64) {
        while let Some(id) = self.connection.expire(now_ms) {
            if let Some(call) = self.calls.get_mut(&id) {
                (call.reply, call.ended) = (None, true);
            }
        }
    }

    /// Bytes that wait to be sent.
    pub(crate) fn output_bytes(&self) -> usize {
        self.connection.output_head().len()
    }

    /// Whether it can serve another request: nothing is under way but perhaps a map and, after a pause, the node has
    /// not closed it.
    pub(crate) fn is_usable(&mut self, now_ms: u64) -> bool {
        self.is_quiet() && (self.idle_ms(now_ms) < IDLE_TRUSTED_MS || self.stays_quiet(now_ms))
    }

    /// How long it has been idle.
    pub(crate) fn idle_ms(&self, now_ms: u64) -> u64 {
        now_ms.saturating_sub(self.idle_since_ms)
    }

    fn is_quiet(&self) -> bool {
        match self.map.filter(|&id| !self.is_answered(id)) {
            Some(id) => self.calls.len() == 1 && self.connection.is_idle_but(id),
            None => self.calls.len() == usize::from(self.map.is_some()) && self.connection.is_idle(),
        }
    }

    /// Whether what has arrived meanwhile leaves it usable.
    fn stays_quiet(&mut self, now_ms: u64) -> bool {
        for _ in 0..STEP_ROUNDS {
            match self.read(now_ms) {
                Ok(false) => return self.is_quiet(),
                Ok(true) if matches!(self.drain(), Ok(false)) => {}
                Ok(true) | Err(_) => return false,
            }
        }
        false
    }

    /// Handles all events; whether one has bytes for the caller.
    fn drain(&mut self) -> Result<bool> {
        while let Some(event) = self.connection.next_event()? {
            match event {
                Event::Welcome(welcome) => self.welcome = Some(welcome),
                Event::Goodbye(text) => {
                    return Err(Error::new(ErrorKind::Unreachable, format!("the node said goodbye: {text}")));
                }
                Event::Reply { id, reply, body_bytes, ends } => {
                    let call = self.calls.get_mut(&id).expect("a call for each request");
                    call.answer(reply, body_bytes, ends)?;
                }
                Event::Body { id, ends } => {
                    let call = self.calls.get_mut(&id).expect("a call for each request");
                    call.ended = ends;
                    let bytes = self.connection.body();
                    match call.sink {
                        Sink::Memory(_) => call.append(bytes)?,
                        Sink::Stream if bytes.is_empty() => {}
                        Sink::Stream => return Ok(true),
                    }
                }
            }
        }
        Ok(false)
    }

    /// Starts the next frame of an outgoing body; how many bytes of a stream are wanted first.
    fn feed(&mut self, source: Source<'_>) -> Result<Option<usize>> {
        let Some(Wanted { id, position, bytes }) = self.connection.wanted_body() else { return Ok(None) };
        match source {
            Source::Nothing => Ok(None),
            Source::Stream(_) => Ok(Some(bytes.min(STREAM_FRAME_BYTES))),
            Source::Slice(slice) => {
                let from = position as usize;
                self.connection.start_frame(id, &slice[from..from + bytes], false)?;
                Ok(None)
            }
        }
    }

    /// Sends `bytes` next; `last` if the source has ended behind them. They are to be the end of [`Source::Stream`] in
    /// the steps that follow.
    pub(crate) fn supply(&mut self, bytes: &[u8], last: bool) -> Result<()> {
        let Wanted { id, .. } = self.connection.wanted_body().expect("it asked for them");
        self.connection.start_frame(id, bytes, last)
    }

    /// Notes that the call was kept waiting by its source, or by whoever took [`Link::chunk`].
    pub(crate) fn resumed(&mut self, now_ms: u64, id: u64) {
        self.connection.resumed(now_ms, id);
    }

    /// The bytes of [`Step::Chunk`].
    pub(crate) fn chunk(&self) -> &[u8] {
        self.connection.body()
    }

    /// Writes once; whether the socket took anything.
    fn write(&mut self, now_ms: u64, source: Source<'_>) -> Result<bool> {
        let body = match self.connection.output_body() {
            Some(part) => part_of(part, source),
            None => &[],
        };
        let slices = [IoSlice::new(self.connection.output_head()), IoSlice::new(body)];
        let Some(bytes) = moved(|| self.socket.write(&slices))? else { return Ok(false) };
        self.connection.sent(now_ms, bytes);
        Ok(bytes > 0)
    }

    /// Reads once, straight into a call's memory where its body comes next; whether anything was there.
    fn read(&mut self, now_ms: u64) -> Result<bool> {
        let Some((id, bytes)) = self.connection.expected_body() else { return self.read_input(now_ms) };
        let call = self.calls.get_mut(&id).expect("a call for each request");
        let into = call.room(bytes)?;
        let mut slices = [IoSliceMut::new(into), IoSliceMut::new(self.connection.space())];
        let Some(arrived) = arrived(|| self.socket.read(&mut slices))? else { return Ok(false) };
        let direct = arrived.min(bytes);
        let (start, end) = (call.filled, call.filled + direct);
        call.ended = self.connection.take_direct(now_ms, &call.value[start..end])?;
        call.filled = end;
        self.connection.filled(now_ms, arrived - direct);
        Ok(true)
    }

    fn read_input(&mut self, now_ms: u64) -> Result<bool> {
        let space = self.connection.space();
        let found = arrived(|| self.socket.read(&mut [IoSliceMut::new(space)]))?;
        self.connection.filled(now_ms, found.unwrap_or(0));
        Ok(found.is_some())
    }
}

/// The unsent bytes of a body's part.
fn part_of<'a>(part: BodyPart, source: Source<'a>) -> &'a [u8] {
    match source {
        Source::Slice(slice) => &slice[part.position as usize..][..part.bytes],
        Source::Stream(supplied) => &supplied[supplied.len() - part.bytes..],
        Source::Nothing => unreachable!("a body has a source until it is sent"),
    }
}

/// The bytes that arrived; `None` if none are there yet, and an error at the end of the stream.
fn arrived(read: impl FnMut() -> io::Result<usize>) -> Result<Option<usize>> {
    match moved(read)? {
        Some(0) => Err(Error::lost(io::ErrorKind::UnexpectedEof.into())),
        found => Ok(found),
    }
}

/// Reads or writes without blocking, again when interrupted; `None` if it would block.
fn moved(mut act: impl FnMut() -> io::Result<usize>) -> Result<Option<usize>> {
    loop {
        match act() {
            Ok(bytes) => return Ok(Some(bytes)),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(error) => return Err(Error::lost(error)),
        }
    }
}
