//! A connection that becomes a link: hello, welcome, proof; then the frames of both sides.
//!
//! | from | by | to |
//! |---|---|---|
//! | new | a node's hello | accepting |
//! | accepting | the other end's proof | up |
//! | new | the hello of a node that wants in, or of who tells of the end of one | joining: `admit.rs` |
//! | dialing | the welcome of the node that was dialed, with its proof | up |
//! | each | a goodbye, a refusal, a breach | over |
//!
//! What is up is served as long as no newer link has taken its place. Before, a connection costs one head; its frames
//! have no body. Nothing from the other end reaches an assertion: what breaks the protocol ends the link.

use super::Note;
use super::admit::Admission;
use super::ends::lose;
use super::peers::Target;
use super::verbs::{self, Reply};
use crate::context::{Context, Output};
use crate::metrics::{DoorName, VerbName};
use crate::{doors, group, wire};
use herd_core::ErrorKind;
use herd_core::bugs::{Bug, has};
use herd_core::limits::{BLOCK_BYTES, LINK_UNSENT_MAX_BYTES, WIRE_FRAME_BODY_MAX_BYTES};
use herd_core::wire::{
    Accepting, Breach, Dialing, FLAG_MORE, Fields, Frame, Header, Kind, LENGTH_UNKNOWN, LinkError, LinkErrorKind,
    LinkId, MAGIC, Peer, Side, VERB_BEAT, WireError, encode_frame, foresee_group, is_obituary, parse_frame,
    parse_frame_head, parse_header, wants_in,
};
use herd_net::{Call, Due, Next, Step, Ticket};

/// Frames that are served at once, so that others have their turn: some 0.2 ms.
const AT_ONCE: usize = 256;
/// Frames for which is fetched ahead what they will need: as many as memory answers at once.
const AHEAD: usize = 16;

/// A longer frame that is not wholly there is kept here and not by the loop, which copies what is left at each read.
const KEPT_BYTES: usize = 16 * 1024;

/// State of a connection between nodes.
pub(crate) enum Session {
    /// Nothing was heard yet.
    New,
    /// Being made, or the welcome is to come.
    Dialing { target: Target, dialing: Box<Dialing>, begun: u64 },
    /// The other end's proof is to come.
    Accepting { accepting: Box<Accepting>, begun: u64 },
    /// The other end wants to be let into the herd.
    Joining(Admission),
    /// A link; `part` of a long frame has come. `served` serves what clients of the other node ask.
    Up { id: LinkId, part: Vec<u8>, served: Box<wire::Session> },
    /// What comes is dropped.
    Over,
}

/// Why a connection goes no further.
enum Fault {
    /// It belongs to the loop of this number.
    Elsewhere(usize),
    /// This end refuses the link.
    Refused(LinkError),
    /// The other end breaks the protocol.
    Broken(String),
    /// The other end has said goodbye; to refuse the link, if it says so.
    Goodbye(Option<LinkError>),
}

impl From<LinkError> for Fault {
    fn from(error: LinkError) -> Self {
        Fault::Refused(error)
    }
}

impl From<WireError> for Fault {
    fn from(error: WireError) -> Self {
        Fault::Broken(error.to_string())
    }
}

impl From<Breach> for Fault {
    fn from(breach: Breach) -> Self {
        Fault::Broken(breach.to_string())
    }
}

/// Whether these first bytes of a connection are a node's hello; `None`: more are needed to tell.
pub(crate) fn is_hello(input: &[u8]) -> Option<bool> {
    const HELLO: u8 = Kind::Hello as u8;
    match input {
        [MAGIC] => None,
        [MAGIC, HELLO, ..] => match parse_frame_head(input) {
            Ok(head) => Some(head?.fields().is_ok_and(|fields| fields.peer.is_some() || is_guest(&fields))),
            Err(_) => Some(false),
        },
        _ => Some(false),
    }
}

/// Whether a first hello is of somebody who has something for the warden, and is no node with links.
fn is_guest(hello: &Fields<'_>) -> bool {
    wants_in(hello) || is_obituary(hello)
}

/// Begins to fetch what the messages of replica groups that come next will need: they are about objects that nobody has
/// looked at for a while. A guess that decides nothing.
fn foresee(cx: &Context, input: &[u8]) {
    let store = &cx.shared.store;
    let (mut rest, mut ahead) = (input, [None; AHEAD]);
    for foreseen in &mut ahead {
        let Some((bytes, of)) = foresee_group(rest) else { break };
        *foreseen = of.map(|(collection, name)| store.foresee_in(collection, name));
        rest = rest.get(bytes..).unwrap_or_default();
    }
    ahead.into_iter().for_each(|foreseen| store.fetch(foreseen));
}

/// Does what links have to do by the time, and obeys a new map.
pub(crate) fn alarm(cx: &mut Context, now_ms: u64, due: &mut Due<doors::Session>) {
    let mut lost = cx.links.look(now_ms);
    lost.extend(cx.links.poll(now_ms));
    let dials = cx.shared.check_serving().is_ok();
    let mut targets = if dials { cx.links.peers.dial(now_ms) } else { Vec::new() };
    targets.extend(if dials { cx.links.ask_around(now_ms) } else { Vec::new() });
    for (target, to) in targets {
        let dialing = cx.links.dial(target).map(|(dialing, begun)| (Box::new(dialing), begun));
        let session = dialing.map(|(dialing, begun)| Session::Dialing { target, dialing, begun });
        due.calls.extend(session.map(|session| Call { to, session: doors::Session::Link(session) }));
    }
    cx.links.plan(dials);
    lose(cx, lost);
}

impl Session {
    /// The connection that this end dialed is made: it speaks first.
    pub(crate) fn connected(&self, out: &mut Output<'_>) {
        if let Session::Dialing { dialing, .. } = self {
            dialing.hello(out.buf);
        }
    }

    /// Whether it is a link.
    pub(crate) fn is_up(&self) -> bool {
        matches!(self, Session::Up { .. })
    }

    /// Whether nothing of it is served any more.
    pub(crate) fn is_over(&self, cx: &Context) -> bool {
        match self {
            Session::Up { id, .. } => !cx.links.is_current(*id) && !has(Bug::OldLink),
            session => matches!(session, Session::Over),
        }
    }

    /// Serves what is there of `input`.
    pub(crate) fn serve(&mut self, cx: &mut Context, input: &[u8], out: &mut Output<'_>) -> Step {
        self.heard(cx, out);
        let mut used = 0;
        for number in 0..AT_ONCE {
            if number % AHEAD == 0 && self.is_up() {
                foresee(cx, &input[used..]);
            }
            if self.is_over(cx) {
                return Step { used: input.len(), next: Next::Close };
            }
            match self.take(cx, &input[used..], out) {
                Ok(0) => {
                    self.speak(cx, out);
                    return Step { used, next: Next::Read };
                }
                Ok(taken) => used += taken,
                Err(Fault::Elsewhere(to)) => {
                    *self = Session::Over;
                    return Step { used: 0, next: Next::Move(to) };
                }
                Err(fault) => {
                    self.fail(cx, fault, out);
                    return Step { used: input.len(), next: Next::Close };
                }
            }
        }
        self.speak(cx, out);
        Step { used, next: Next::Again }
    }

    /// Says what others of this loop had it say, and what was waited for; false: nothing.
    pub(crate) fn resume(&mut self, cx: &mut Context, ticket: Ticket, out: &mut Output<'_>) -> bool {
        match self {
            Session::Joining(admission) => admission.resume(cx, out),
            Session::Up { served, .. } => {
                let is_there = served.resume(cx, ticket, out);
                self.speak(cx, out);
                is_there || out.pending_bytes() > 0
            }
            _ => false,
        }
    }

    /// Whether it has bodies to send.
    pub(crate) fn wants_more(&self, cx: &Context) -> bool {
        match self {
            Session::Up { id, served, .. } => served.wants_more() || cx.links.is_sending(*id),
            _ => false,
        }
    }

    /// Everything queued was sent: the next frame of a body.
    pub(crate) fn more(&mut self, cx: &mut Context, out: &mut Output<'_>) {
        let Session::Up { id, served, .. } = self else { return };
        if served.wants_more() {
            served.more(cx, out);
        }
        send_request(cx, *id, out);
    }

    /// The connection whose flights it has, if it ever had one.
    pub(crate) fn flying(&self) -> Option<u64> {
        match self {
            Session::Up { served, .. } => served.flying(),
            _ => None,
        }
    }

    /// The connection is closed.
    pub(crate) fn close(&mut self, cx: &mut Context) {
        let now_ms = cx.now_ms();
        match std::mem::replace(self, Session::Over) {
            Session::Dialing { target, .. } => cx.links.failed(target, None, now_ms),
            Session::Up { id, .. } => {
                let lost = cx.links.close(id, now_ms);
                lose(cx, lost);
                group::look(cx);
            }
            Session::New | Session::Accepting { .. } | Session::Joining(_) | Session::Over => {}
        }
    }

    /// Something came over a link.
    fn heard(&self, cx: &mut Context, out: &Output<'_>) {
        let now_ms = cx.now_ms();
        if let Session::Up { id, .. } = self
            && let Some(end) = cx.links.end(*id)
        {
            end.beats.heard(now_ms);
            end.pending_bytes = out.pending_bytes();
        }
    }

    fn speak(&mut self, cx: &mut Context, out: &mut Output<'_>) -> bool {
        let Session::Up { id, .. } = self else { return false };
        let any = cx.links.flush(*id, out.buf);
        let pending_bytes = out.pending_bytes();
        cx.links.end(*id).into_iter().for_each(|end| end.pending_bytes = pending_bytes);
        any
    }

    /// Takes one frame; gives how many bytes that were, 0 while it is not wholly there.
    fn take(&mut self, cx: &mut Context, input: &[u8], out: &mut Output<'_>) -> Result<usize, Fault> {
        let Session::Up { part, .. } = self else { return self.take_before(cx, input, out) };
        if !part.is_empty() {
            return self.take_part(cx, input, out);
        }
        if let Some(frame) = parse_frame(input)? {
            return self.up_frame(cx, &frame, input, out).map(|()| frame.bytes());
        }
        let is_long = parse_header(input)?.is_some_and(|header| header.frame_bytes() > KEPT_BYTES);
        if is_long {
            part.extend_from_slice(input);
        }
        Ok(if is_long { input.len() } else { 0 })
    }

    /// Takes what is there of the rest of a long frame.
    fn take_part(&mut self, cx: &mut Context, input: &[u8], out: &mut Output<'_>) -> Result<usize, Fault> {
        let Session::Up { part, .. } = self else { return Ok(0) };
        let whole_bytes = parse_header(part)?.map_or(0, |header| header.frame_bytes());
        let taken = input.len().min(whole_bytes.saturating_sub(part.len()));
        part.extend_from_slice(&input[..taken]);
        if part.len() >= whole_bytes {
            let part = std::mem::take(part);
            if let Some(frame) = parse_frame(&part)? {
                self.up_frame(cx, &frame, &part, out)?;
            }
        }
        Ok(taken)
    }

    /// A frame of before the link is up.
    fn take_before(&mut self, cx: &mut Context, input: &[u8], out: &mut Output<'_>) -> Result<usize, Fault> {
        let Some(header) = parse_header(input)? else { return Ok(0) };
        if !matches!(header.kind, Kind::Hello | Kind::Welcome | Kind::Goodbye) {
            return Err(bad_hello("something else was said before the link was up"));
        }
        let Some(frame) = parse_frame(input)? else { return Ok(0) };
        let (fields, now_ms) = (frame.fields()?, cx.now_ms());
        match (&*self, header.kind) {
            (_, Kind::Goodbye) => return Err(Fault::Goodbye(LinkError::of_goodbye(&header, &fields))),
            (Session::New, Kind::Hello) if frame.bytes() < input.len() => {
                return Err(bad_hello("something was said before the welcome"));
            }
            (Session::New, Kind::Hello) if is_guest(&fields) => {
                *self = Session::Joining(Admission::begin(cx, &fields, out)?);
            }
            (Session::New, Kind::Hello) => self.accept(cx, &fields, out)?,
            (Session::Joining(_), Kind::Hello) => {
                if let Session::Joining(admission) = self {
                    admission.proved(cx, &fields, out.ticket())?;
                }
            }
            (Session::Accepting { accepting, begun }, Kind::Hello) => {
                let (peer, begun) = (accepting.proved(&fields)?, *begun);
                self.up(cx, (&peer, begun), Side::Acceptor, out, now_ms)?;
            }
            (Session::Dialing { dialing, begun, .. }, Kind::Welcome) => {
                let (peer, begun) = (dialing.welcomed(&fields, out.buf)?, *begun);
                self.up(cx, (&peer, begun), Side::Dialer, out, now_ms)?;
            }
            _ => return Err(bad_hello("this is not what a link begins with")),
        }
        Ok(frame.bytes())
    }

    fn accept(&mut self, cx: &mut Context, hello: &Fields<'_>, out: &mut Output<'_>) -> Result<(), Fault> {
        let (accepting, begun) = cx.links.accept(hello)?;
        if let Some(to) = cx.links.elsewhere(accepting.claimed()) {
            return Err(Fault::Elsewhere(to));
        }
        accepting.welcome(out.buf);
        *self = Session::Accepting { accepting: Box::new(accepting), begun };
        Ok(())
    }

    fn up(
        &mut self,
        cx: &mut Context,
        peer: (&Peer, u64),
        side: Side,
        out: &mut Output<'_>,
        now_ms: u64,
    ) -> Result<(), Fault> {
        let (id, lost) = cx.links.up(peer, side, out.ticket(), now_ms)?;
        *self = Session::Up { id, part: Vec::new(), served: Box::new(wire::Session::of_node(id)) };
        lose(cx, lost);
        // Before anything of it is served.
        group::look(cx);
        Ok(())
    }

    /// A frame of a link that is up, with which `bytes` begin.
    fn up_frame(
        &mut self,
        cx: &mut Context,
        frame: &Frame<'_>,
        bytes: &[u8],
        out: &mut Output<'_>,
    ) -> Result<(), Fault> {
        let Session::Up { id, served, .. } = self else { return Ok(()) };
        let (id, header, fields) = (*id, frame.header(), frame.fields()?);
        let is_own = cx.links.end(id).is_some_and(|end| end.has_asked(header.id));
        match header.kind {
            // What is never answered has no id.
            Kind::Request if is_own && header.id != 0 => {
                Err(Fault::Broken("a request with an id of this end's".into()))
            }
            Kind::Request if header.verb < VERB_BEAT => {
                if verbs::admit(cx, id, header, out)? {
                    serve_client(served, cx, &bytes[..frame.bytes()], out)?;
                }
                check_unsent(out)
            }
            Kind::Request => {
                verbs::asked(cx, id, frame, &fields, out)?;
                check_unsent(out)
            }
            Kind::Reply => reply(cx, id, frame, fields, out),
            Kind::Data if is_own => data(cx, id, frame),
            Kind::Data if served.is_receiving(header.id) => serve_client(served, cx, &bytes[..frame.bytes()], out),
            Kind::Data => Ok(verbs::more(cx, id, frame, out)?),
            Kind::Credit if is_own => {
                let note = cx.links.end(id).and_then(|end| {
                    end.asker.take_credit(header);
                    end.asker.note(header.id).copied()
                });
                if let Some(Note::Flight(part, _)) = note {
                    cx.flight_admitted(part);
                }
                Ok(())
            }
            Kind::Credit | Kind::Cancel => serve_client(served, cx, &bytes[..frame.bytes()], out),
            Kind::Goodbye => Err(Fault::Goodbye(LinkError::of_goodbye(header, &fields))),
            Kind::Hello | Kind::Welcome => Err(Fault::Broken("a second hello on a link".into())),
        }
    }

    /// Ends it, and says why.
    fn fail(&mut self, cx: &mut Context, fault: Fault, out: &mut Output<'_>) {
        cx.count_error(DoorName::Node, VerbName::Admin, ErrorKind::NotAllowed);
        let refused = match fault {
            Fault::Refused(error) => {
                error.goodbye(out.buf);
                Some(error)
            }
            Fault::Broken(text) => {
                // A text that was cut fits.
                encode_frame(out.buf, Header::new(Kind::Goodbye), &Fields::failed(&text), b"").ok();
                None
            }
            Fault::Goodbye(error) => error,
            Fault::Elsewhere(_) => None,
        };
        let (target, now_ms) = (self.target(), cx.now_ms());
        refused.iter().for_each(|error| self.tell(cx, error));
        self.close(cx);
        if let Some((target, error)) = target.zip(refused) {
            cx.links.failed(target, Some(&error), now_ms);
        }
    }

    /// Tells of a refusal of a connection that the other end made.
    fn tell(&self, cx: &Context, error: &LinkError) {
        let who = match self {
            Session::New => "a connection that wanted to be a link".to_owned(),
            Session::Accepting { accepting, .. } => format!("a link of node {}", accepting.claimed().node.0),
            Session::Joining(admission) => admission.called().to_owned(),
            Session::Dialing { .. } | Session::Up { .. } | Session::Over => return,
        };
        // To be sent on to the warden is no refusal; and a node that dials where it is to be dialed only asks.
        let is_usual = match self {
            Session::Joining(_) => error.kind == LinkErrorKind::AskWarden,
            _ => error.kind == LinkErrorKind::NotNow,
        };
        if !is_usual {
            cx.links.hub().into_iter().for_each(|hub| hub.owner.turned_away(&who, error));
        }
    }

    /// The link that it is, or that this end wants.
    fn target(&self) -> Option<Target> {
        match self {
            Session::Dialing { target, .. } => Some(*target),
            Session::Up { id, .. } => Some(Target { node: id.node, link: id.link }),
            Session::New | Session::Accepting { .. } | Session::Joining(_) | Session::Over => None,
        }
    }
}

fn bad_hello(text: &str) -> Fault {
    Fault::Refused(LinkError { kind: LinkErrorKind::BadHello, text: text.to_owned() })
}

/// Sends the next frame of a request's body, if one may go.
fn send_request(cx: &mut Context, id: LinkId, out: &mut Output<'_>) {
    let Some(end) = cx.links.end(id) else { return };
    let Some(wanted) = end.asker.wanted(WIRE_FRAME_BODY_MAX_BYTES) else { return };
    let part = match end.asker.note(wanted.id) {
        Some(Note::Flight(part, _)) => *part,
        _ => return,
    };
    let Some((body, from, to)) = cx.flight_body(part, wanted.position, wanted.bytes) else { return };
    let Some(end) = cx.links.end(id) else { return };
    // They begin at whole blocks, as frames do but for the last.
    let blocks = from as usize / BLOCK_BYTES..(to as usize).div_ceil(BLOCK_BYTES);
    let checks = body.as_ref().map_or(&[][..], |body| &body.checksums()[blocks]).iter().copied();
    let bytes = (to - from) as usize;
    if let Ok(started) = end.asker.encode_frame(out.buf, (wanted.id, bytes), checks, false) {
        body.into_iter().for_each(|body| out.bulk(body, from, to));
        cx.flight_sent(part, started.position + bytes as u64, !started.more);
    }
}

/// Serves a whole frame that is about a client's request.
fn serve_client(served: &mut wire::Session, cx: &mut Context, frame: &[u8], out: &mut Output<'_>) -> Result<(), Fault> {
    let mut used = 0;
    while used < frame.len() {
        let step = served.serve(cx, &frame[used..], out);
        if step.next == Next::Close || step.used == 0 {
            return Err(Fault::Goodbye(None));
        }
        used += step.used;
    }
    Ok(())
}

/// Takes an answer, or its first frame.
fn reply(
    cx: &mut Context,
    id: LinkId,
    frame: &Frame<'_>,
    fields: Fields<'_>,
    out: &mut Output<'_>,
) -> Result<(), Fault> {
    let (header, body) = (frame.header(), frame.body()?);
    let Some(end) = cx.links.end(id) else { return Ok(()) };
    let Some(answer) = end.asker.take_reply(header)? else { return Ok(()) };
    let note = match header.has(FLAG_MORE) {
        false => end.asker.end(header.id),
        true => end.asker.note(header.id).map(|note| (*note, false)),
    };
    let Some((note, is_stopped)) = note else { return Ok(()) };
    if header.has(FLAG_MORE) && !matches!(note, Note::Flight(..)) {
        return Err(Fault::Broken("an answer in parts, where none was asked for".into()));
    }
    if answer.needs_credit && !matches!(note, Note::Flight(..)) {
        out.buf.extend_from_slice(&Header::credit(header.id, LENGTH_UNKNOWN).encode());
    }
    if is_stopped {
        out.buf.extend_from_slice(&Header::cancel(header.id).encode());
    }
    Ok(verbs::answered(cx, note, Ok(Reply { from: id, header, fields, body }))?)
}

/// Takes a further frame of an answer.
fn data(cx: &mut Context, id: LinkId, frame: &Frame<'_>) -> Result<(), Fault> {
    let (header, body) = (frame.header(), frame.body()?);
    let Some(end) = cx.links.end(id) else { return Ok(()) };
    if !end.asker.take_data(header)? {
        return Ok(());
    }
    let note = match header.has(FLAG_MORE) {
        false => end.asker.end(header.id).map(|(note, _)| note),
        true => end.asker.note(header.id).copied(),
    };
    match note {
        Some(Note::Flight(part, attempt)) => Ok(cx.flight_more((part, attempt), id, header, body)?),
        _ => Ok(()),
    }
}

/// A link is read however much of its output is not taken: refusals that nobody reads must end somewhere.
fn check_unsent(out: &Output<'_>) -> Result<(), Fault> {
    let bytes = out.pending_bytes();
    if bytes as u64 <= LINK_UNSENT_MAX_BYTES {
        return Ok(());
    }
    Err(Fault::Broken(format!("{bytes} bytes of answers are not read: more requests than a link may have")))
}
