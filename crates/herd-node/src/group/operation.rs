//! Operations on an object of a group, while they wait and when they are decided.
//!
//! An operation that waits is the head of the request that it would be between nodes (`wire::encode_op`), and the value
//! that came with it. All that wait for an object are decided in order, each on what those before it came to, and share
//! one write of the result; each change has a version of its own, as clients compare versions, and the write has that
//! of the last. What each is told is made when it is decided, and told when the write is done: also a "no", which may
//! be due to one of the others.

use super::change::{self, Becomes, Edit, Key, Object};
use super::copies::{Copies, floor};
use super::mail::Room;
use crate::apply::{self, Kept, Snapshot};
use crate::context::Context;
use crate::flight::FlightId;
use crate::metrics::add;
use crate::request::{Request, Value};
use crate::wire::get_is_use;
use herd_core::bugs::{Bug, has};
use herd_core::door::memcached::Clock;
use herd_core::entry::{Fence, Head, Version};
use herd_core::limits::WINDOW_RESULT_MAX_BYTES;
use herd_core::method::{Method, memcached};
use herd_core::op::{Action, Answer, Change, Circumstances, Decided, New, NewValue, Op, There, decide};
use herd_core::place::GroupId;
use herd_core::replica::GroupEpoch;
use herd_core::replica::window::{Known, RequestId};
use herd_core::wire::{Answers, Asked, Became, Between, Fields, Verb};
use herd_core::{Error, ErrorKind};
use herd_net::Ticket;
use herd_store::{Body, Collection, Seat};
use std::sync::Arc;

/// An operation that waits.
pub(crate) struct Operation {
    what: What,
    /// Who is told.
    pub(crate) origin: Origin,
    /// Who asks; the same however often it is asked.
    pub(super) id: Option<RequestId>,
    /// What is said of that.
    pub(super) asked: Option<Asked>,
    sent: Option<Sent>,
    /// Nobody had asked the same before when it came; else it may have been done.
    pub(super) is_new: bool,
    /// It is among those that stand here.
    pub(super) stands: bool,
    /// What is told once the write that it shares is done.
    told: Option<Told>,
    /// Its object, once it stands in line.
    pub(super) key: Option<Key>,
    /// If it is not begun by then, nobody waits for it any more.
    pub(super) until_ms: u64,
    /// Memory for it, once it stands in line.
    room: Option<Room>,
}

/// How another node has handed an operation on that changes something.
#[derive(Clone, Copy)]
pub(crate) struct Sent {
    /// The epoch of its map.
    pub(crate) epoch: GroupEpoch,
    /// It asks anew what is not decided here.
    pub(crate) goes_back: bool,
}

enum What {
    /// What was asked.
    Request(Arc<Request>),
    /// The object goes, if its time is over.
    Expire,
    /// What was there goes, since what was to take its place was refused, of which this is told.
    Instead(Error),
    /// A put that began at once; whether what was there goes if it is refused.
    Put(bool),
}

/// Who is told of the end of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// Nobody.
    Nobody,
    /// A part of a flight of this loop.
    Flight(usize, FlightId),
    /// A put of this loop that began at once, by the ticket of its reply.
    Put(Ticket),
    /// A test.
    #[cfg(test)]
    Test(u64),
}

/// What became of an operation.
pub(crate) enum Told {
    /// It was done, or needed nothing to be done.
    Done(Box<Done>),
    /// A put that began at once was done: its version.
    Put(Version),
    /// It was not done; and what was there.
    Failed(Error, Option<Head>),
    /// Another node decides now: it is asked again, with the same id. It may have been done, or not even begun.
    Again {
        /// It may have been done.
        may_be_done: bool,
    },
}

impl Told {
    /// It failed, whatever was there.
    pub(super) fn failed(error: Error) -> Self {
        Told::Failed(error, None)
    }
}

/// An operation that was done.
pub(crate) struct Done {
    /// The object's version, or that of its removal; 0: there is none.
    pub(crate) version: Version,
    /// What was there and what is there, by this node's clock.
    pub(crate) became: Became,
    /// What a method answered.
    pub(crate) answer: Answer<Arc<Body>>,
    /// The object as it is now; `None` where there is none, and where a retry is answered.
    pub(crate) object: Option<Arc<Snapshot>>,
}

/// Operations that were decided.
#[derive(Default)]
pub(super) struct Decision {
    /// Those that were, in order.
    pub(super) ops: Vec<Operation>,
    /// Those for whose answers the same write has no room, or that are among those already: they come next.
    pub(super) rest: Vec<Operation>,
    /// What they come to, if they change anything.
    pub(super) change: Option<Edit>,
    /// Its version.
    pub(super) version: Option<Version>,
}

impl Operation {
    /// Of a request as nodes hand it on, and who asks it now; of one that changes something, how another node handed it
    /// on.
    pub(crate) fn new(request: Arc<Request>, (asked, sent): (Asked, Option<Sent>), origin: Origin) -> Self {
        let what = What::Request(request);
        Self { what, origin, id: Some(asked.id), asked: Some(asked), sent, is_new: false, ..Self::expire() }
    }

    /// Of what another node has handed on by a map of before that epoch: that node may have asked others anew since,
    /// and told its client. Whether it may have been done then, and is to be asked as that.
    pub(super) fn is_of_before(&self, epoch: GroupEpoch) -> Option<bool> {
        self.sent.filter(|sent| sent.epoch < epoch).map(|sent| !sent.goes_back)
    }

    /// Takes an object out whose time is over.
    pub(super) fn expire() -> Self {
        Self {
            what: What::Expire,
            origin: Origin::Nobody,
            id: None,
            asked: None,
            sent: None,
            is_new: true,
            stands: false,
            told: None,
            key: None,
            until_ms: u64::MAX,
            room: None,
        }
    }

    /// A put that began at once, of this request.
    pub(super) fn put(ticket: Ticket, id: RequestId, key: Key, else_remove: bool) -> Self {
        let (origin, what) = (Origin::Put(ticket), What::Put(else_remove));
        Self { what, origin, id: Some(id), is_new: false, key: Some(key), ..Self::expire() }
    }

    /// It keeps this memory for as long as it is there.
    pub(super) fn holding(self, room: Room) -> Self {
        Self { room: Some(room), ..self }
    }

    /// It is to have begun by then.
    pub(crate) fn until(self, until_ms: u64) -> Self {
        Self { until_ms, ..self }
    }

    /// Takes memory for it: what was asked, whose small value is also what is kept and told. Error: `Busy`.
    pub(super) fn hold(&mut self, cx: &Context) -> Result<(), Error> {
        let What::Request(request) = &self.what else { return Ok(()) };
        self.room = Some(Room::take(&cx.shared, 2 * size_of::<Self>() as u64 + request.bytes())?);
        Ok(())
    }

    /// It stands in line for its object.
    pub(super) fn of(self, key: Key) -> Self {
        Self { key: Some(key), ..self }
    }

    /// Whether it may bring something.
    pub(super) fn brings(&self) -> bool {
        match &self.what {
            What::Request(request) => request.with_op(0, |op, _| op.brings()).unwrap_or(true),
            What::Expire | What::Instead(_) | What::Put(_) => false,
        }
    }

    /// Whether it is the node's own, which takes out what is over.
    pub(super) fn is_expiry(&self) -> bool {
        matches!(self.what, What::Expire)
    }

    /// Whether it takes out what was there, as what was to take its place was refused.
    pub(super) fn is_instead(&self) -> bool {
        matches!(self.what, What::Instead(_))
    }

    /// What it is told now that its write is done, which has this version.
    pub(super) fn take_told(&mut self, version: Version) -> Told {
        self.told.take().unwrap_or_else(|| match self.what {
            What::Put(_) => Told::Put(version),
            _ => Told::failed(unknown()),
        })
    }

    /// A get of memcached that may have changed its object is done: it is counted, and was a use of what is there now.
    pub(super) fn note_use(&self, cx: &Context, told: &Told) {
        let (What::Request(request), Some(key), Told::Done(done)) = (&self.what, &self.key, told) else { return };
        if request.header.verb() != Some(Verb::Execute) {
            return;
        }
        let is_use = request.with_op(0, |op, _| get_is_use(&request.header, op));
        let Ok(Some(is_use)) = is_use else { return };
        let Some(c) = cx.shared.store.collection_by_id(key.of.collection) else { return };
        let (mut entry, is_hit) = (cx.shared.store.entry_of(&c, &key.of, cx.now), done.became.before.is_some());
        if is_use || !is_hit { entry.count_get(is_hit) } else { entry.count_hit() }
    }

    /// What it becomes once it is refused: where its client meant what was there to be gone, the object goes.
    pub(crate) fn instead(self, error: Error) -> Result<Self, Box<(Self, Error)>> {
        let removes = match &self.what {
            What::Request(request) => request.with_op(0, |op, _| op.else_remove).unwrap_or(false),
            What::Put(else_remove) => *else_remove,
            What::Expire | What::Instead(_) => false,
        };
        if removes { Ok(Self { what: What::Instead(error), told: None, ..self }) } else { Err(Box::new((self, error))) }
    }
}

/// An object while operations on it are decided.
struct State {
    object: Option<Arc<Snapshot>>,
    /// The token that is left where there is none.
    left: Option<Fence>,
    /// The version of the last change.
    version: Option<Version>,
    /// The requests that changed it, encoded.
    answers: Vec<u8>,
}

/// What surrounds the decisions about one object.
struct Place<'a, 'c> {
    copies: &'a mut Copies<'c>,
    c: &'a Collection,
    key: &'a Key,
    id: [u8; 16],
    since: GroupEpoch,
}

/// Decides operations on an object, one after the other; its primary decides `since` then. `Err`: they name a
/// generation that a flush has ended, or is about to end, of which nothing can be said.
pub(super) fn decide_all(
    copies: &mut Copies<'_>,
    (c, key): (&Collection, &Key),
    since: GroupEpoch,
    mut ops: Vec<Operation>,
) -> Result<Decision, Vec<Operation>> {
    // What goes as a request was refused goes before that request is decided once more: it may have come again.
    ops.sort_by_key(|op| !op.is_instead());
    let there = copies.look(key, |entry| {
        let is_tip = has(Bug::DecidedBeside) && entry.pending().is_some();
        let found = if is_tip { entry.found_pending() } else { entry.found_committed() };
        let found = found.as_ref().map(Snapshot::of);
        (found, entry.left(), entry.is_due(), entry.id())
    });
    let Some((found, left, is_due, id)) = there else { return Err(ops) };
    let before = found.map(Arc::new);
    let mut state = State { object: before.clone(), left, version: None, answers: Vec::new() };
    if is_due {
        // Nobody finds it; the token of a lock stays behind, as when it is taken out.
        state.left = state.object.take().and_then(|object| object.fence).or(left);
    }
    let mut place = Place { copies, c, key, id, since };
    let mut decision = Decision::default();
    for mut op in ops {
        // The same request once more is answered when it is known what the first one came to.
        let is_first = op.is_new || op.id.is_none() || decision.ops.iter().all(|before| before.id != op.id);
        if !decision.rest.is_empty() || !is_first || !op.decide(&mut place, &mut state, is_due) {
            decision.rest.push(op);
        } else {
            decision.ops.push(op);
        }
    }
    decision.version = state.version;
    decision.change = state.version.map(|_| state.edit(before.as_deref()));
    Ok(decision)
}

impl Operation {
    /// False: the write has no room for its answer.
    fn decide(&mut self, place: &mut Place<'_, '_>, state: &mut State, is_due: bool) -> bool {
        match &self.what {
            What::Expire => {
                let was = state.head();
                if is_due && state.version.is_none() {
                    state.version = Some(place.take_version());
                }
                self.told = Some(Told::Done(Box::new(done(place, was, state, Answer::Nothing))));
                true
            }
            // It was decided before, and stands in no line.
            What::Put(_) => {
                self.told = Some(Told::Again { may_be_done: false });
                true
            }
            What::Instead(error) => {
                let error = Error::new(error.kind, error.text.clone());
                let was = state.head();
                if !state.remove(place, self.id) {
                    return false;
                }
                self.told = Some(Told::Failed(error, was));
                true
            }
            What::Request(request) => {
                let request = request.clone();
                self.decide_request(&request, place, state)
            }
        }
    }

    fn decide_request(&mut self, request: &Request, place: &mut Place<'_, '_>, state: &mut State) -> bool {
        let now = place.copies.cx.now;
        let is_known = !self.is_new && !has(Bug::RerunRetried);
        if let Some(told) = self.asked.filter(|_| is_known).and_then(|asked| retried(place, &asked)) {
            self.told = Some(told);
            return true;
        }
        if is_known && self.id.is_some_and(|id| place.copies.kept.undoing.contains(&id)) {
            // The first one was refused, and what was there goes yet.
            self.told = Some(Told::failed(unknown()));
            return true;
        }
        let before = state.version;
        let told = request.with_op(now.unix_ms, |op, _| decide_one(place, state, (op, &request.value), self.id));
        self.told = match told {
            Ok(Some(told)) => Some(told),
            Ok(None) => return false,
            Err(error) => Some(Told::failed(error)),
        };
        let has_changed = state.version != before;
        if self.asked.is_some_and(|asked| asked.id.is_own() && !asked.is_first && !has_changed) {
            self.told = self.told.take().map(in_doubt);
        }
        true
    }
}

/// What its client is told of a request that came to no change, and that the client has asked before: that may be on
/// its way still, and is done if it comes where it finds something to do. So to say "done, and nothing changed" would
/// not be true. An error says no more than that this try did nothing, and the client knows of the others.
fn in_doubt(told: Told) -> Told {
    if let Told::Done(_) = told { Told::failed(unknown()) } else { told }
}

/// `None`: the write has no room for its answer.
fn decide_one(
    place: &mut Place<'_, '_>,
    state: &mut State,
    (op, value): (&Op<'_, Arc<Body>>, &Value),
    id: Option<RequestId>,
) -> Option<Told> {
    let was = state.head();
    let at = Circumstances {
        now_ms: place.copies.cx.decides_ms(op),
        next_version: place.next_version(),
        id: place.id,
        evicts: place.c.class().evicts(),
    };
    let (cx, of) = (place.copies.cx, (place.c, &*place.key.of.name));
    let decided = {
        let there = There { found: state.object.as_ref().map(|object| object.found()), left: state.left };
        decide(op, &there, &at).and_then(|it| apply::built(cx, of, it, state.object.as_deref()))
    };
    let decided = match decided {
        Ok(decided) => decided,
        Err(error) => {
            let removes = op.else_remove && !matches!(error.kind, ErrorKind::ConditionFailed | ErrorKind::NotAllowed);
            if removes && !state.remove(place, id) {
                return None;
            }
            return Some(Told::Failed(error, was));
        }
    };
    let Decided { change, answer } = decided;
    if matches!(change, Change::None) {
        return Some(Told::Done(Box::new(done(place, was, state, answer))));
    }
    let version = place.take_version();
    let next = state.after(change, value, version, place);
    let done = done(place, was, &next, answer);
    let mut answers = std::mem::take(&mut state.answers);
    let has_room = id.is_none_or(|id| Answers::push(&mut answers, id, &result_of(op, &done)));
    if !has_room {
        state.answers = answers;
        return None;
    }
    *state = State { answers, ..next };
    Some(Told::Done(Box::new(done)))
}

#[cold]
fn unknown() -> Error {
    Error::new(ErrorKind::OutcomeUnknown, "the request was asked again, and may have been done before")
}

/// The error of a request that its client asks for the first time, where what was forgotten may have been the same: the
/// client asks it under another id.
#[cold]
pub(crate) fn too_old() -> Error {
    let text = "the id of the request is older than what is remembered here: nothing was done, ask with another id";
    Error::new(ErrorKind::Timeout, text)
}

/// The answer of a request that was asked before; `None`: it is new.
fn retried(place: &mut Place<'_, '_>, asked: &Asked) -> Option<Told> {
    let (clock, now_ms) = (place.copies.cx.clock(), place.copies.cx.now_ms());
    match place.copies.kept.known(asked, now_ms) {
        Known::New => None,
        Known::Unknown if asked.is_first && !asked.is_again => Some(Told::failed(too_old())),
        // Of an object under way nothing is decided; so it is one of another object.
        Known::UnderWay | Known::Unknown => Some(Told::failed(unknown())),
        Known::Done(version, result) => {
            let done = done_of(version, &result, clock);
            add(&place.copies.cx.metrics().answered_again, 1);
            Some(done.map_or_else(|| Told::failed(unknown()), |done| Told::Done(Box::new(done))))
        }
    }
}

fn done(place: &Place<'_, '_>, before: Option<Head>, state: &State, answer: Answer<Arc<Body>>) -> Done {
    let clock = place.copies.cx.clock();
    let after = state.head();
    let version = match (state.version, after) {
        (_, Some(head)) => head.version,
        (version, None) => version.unwrap_or(0),
    };
    Done { version, became: Became { clock, before, after }, answer, object: state.object.clone() }
}

impl Place<'_, '_> {
    /// The version that is taken next: nobody else takes any of the group's slots.
    fn next_version(&self) -> Version {
        let floor = floor(self.since);
        self.copies.look(self.key, |entry| entry.next_version()).unwrap_or(0).max(floor + 1)
    }

    fn take_version(&mut self) -> Version {
        let floor = floor(self.since);
        self.copies.look(self.key, |mut entry| entry.take_version(floor)).unwrap_or(floor + 1)
    }
}

impl State {
    fn head(&self) -> Option<Head> {
        self.object.as_ref().map(|object| object.head)
    }

    /// What was there goes, as a request failed. That it was done is kept, and not how: one that is asked again is of
    /// unknown outcome, or it would be done after others have seen the object gone. False: the write has no room for
    /// that.
    fn remove(&mut self, place: &mut Place<'_, '_>, id: Option<RequestId>) -> bool {
        let unknown = [0; WINDOW_RESULT_MAX_BYTES + 1];
        let has_room = self.object.is_none() || id.is_none_or(|id| Answers::push(&mut self.answers, id, &unknown));
        if has_room && self.object.take().is_some() {
            self.version = Some(place.take_version());
        }
        has_room
    }

    /// As it is after a change.
    fn after(&self, change: Change<'_, Arc<Body>>, value: &Value, version: Version, place: &Place<'_, '_>) -> State {
        let (object, left) = match change {
            Change::None => (self.object.clone(), self.left),
            Change::Put(new) => (Some(Arc::new(self.put(new, value, version, place))), None),
            Change::Remove(fence) => (None, fence.or(self.left)),
            Change::Leave(fence) => (None, Some(fence)),
        };
        State { object, left, version: Some(version), answers: Vec::new() }
    }

    fn put(&self, new: New<'_, Arc<Body>>, value: &Value, version: Version, place: &Place<'_, '_>) -> Snapshot {
        let old = self.object.as_deref();
        let value = match new.value {
            NewValue::Small(bytes, check) => {
                let (bytes, check) = value.share(&bytes, check);
                Kept::Small(bytes, check)
            }
            NewValue::Large(body) => Kept::Large(body),
            // What is made of parts was put together before.
            NewValue::Kept | NewValue::Parts(_) => match old.map(|old| &old.value) {
                Some(Kept::Small(bytes, crc)) => Kept::Small(bytes.clone(), *crc),
                Some(Kept::Large(body)) => Kept::Large(body.clone()),
                None => Kept::Small(Arc::default(), 0),
            },
        };
        let size_bytes = match &value {
            Kept::Small(bytes, _) => bytes.len() as u64,
            Kept::Large(body) => body.len(),
        };
        let old_attributes = || old.map(|old| old.attributes.clone()).unwrap_or_default();
        let head = Head {
            version,
            size_bytes,
            flags: new.flags,
            expires_ms: new.expires_ms,
            access_s: place.copies.cx.now.uptime_s,
            fetched: false,
            memcached: new.memcached,
        };
        Snapshot {
            head,
            attributes: new.attributes.map_or_else(old_attributes, <[u8]>::to_vec),
            fence: new.fence,
            value,
        }
    }

    /// The change that makes this of what was there before.
    fn edit(self, before: Option<&Snapshot>) -> Edit {
        let Some(object) = &self.object else { return Edit::new(Becomes::Removed(self.left), self.answers) };
        let kept = before.is_some_and(|before| before.value.is(&object.value));
        let value = if kept { change::Held::Kept } else { change::Held::of(object) };
        Edit::new(Becomes::Put(Object::of(object, value)), self.answers)
    }
}

/// Answers a read of an object of a group that this node decides for, from what is committed, and says since which
/// epoch it decided when it looked. `None`: it does not decide, or the read is to change something.
pub(crate) fn read(
    cx: &Context,
    group: GroupId,
    (c, name): (&Collection, &[u8]),
    op: &Op<'_, Arc<Body>>,
    is_counted: bool,
) -> Option<(Told, GroupEpoch)> {
    let mut entry = cx.shared.store.entry(c, name, cx.now);
    let since = cx.shared.gates.since(group);
    // Under the lock: whoever takes the group away has closed its gate, or sets the seat after this.
    if entry.seat() != Seat::Led || !cx.shared.gates.is_open_since(group, since) {
        return None;
    }
    let found = entry.found();
    let was = found.as_ref().map(|found| found.head);
    let object = found.as_ref().map(|found| Arc::new(Snapshot::of(found)));
    let there = There { found, left: entry.left() };
    let at = Circumstances {
        now_ms: cx.decides_ms(op),
        next_version: entry.next_version(),
        id: entry.id(),
        evicts: c.class().evicts(),
    };
    let told = match decide(op, &there, &at) {
        Ok(Decided { change: Change::None, answer }) => {
            let (version, clock) = (was.map_or(0, |head| head.version), cx.clock());
            let became = Became { clock, before: was, after: was };
            Told::Done(Box::new(Done { version, became, answer, object }))
        }
        Ok(_) => return None,
        Err(error) => Told::Failed(error, was),
    };
    match &op.action {
        Action::Execute(Method::Memcached(memcached::Method::Get(meta))) if was.is_some() && meta.has(b'u') => {
            entry.count_hit();
        }
        Action::Execute(Method::Memcached(memcached::Method::Get(_))) => entry.count_get(was.is_some()),
        Action::Read if is_counted => entry.count_get(was.is_some()),
        _ => {}
    }
    Some((told, since))
}

/// What a retry of a put that began at once is answered with: that it was done. Its version is known, and its client is
/// told no more.
pub(super) const PUT_AT_ONCE: &[u8] = &[2];

/// What a retry is answered with; longer than may be kept where the object itself was shown.
fn result_of(op: &Op<'_, Arc<Body>>, done: &Done) -> Vec<u8> {
    let mut out = Vec::with_capacity(128);
    let shows = matches!(op.action, Action::Read | Action::Execute(Method::Memcached(memcached::Method::Get(_))));
    match &done.answer {
        Answer::Nothing => out.push(0),
        Answer::Bytes(bytes) if bytes.len() <= WINDOW_RESULT_MAX_BYTES => {
            out.push(1);
            out.extend_from_slice(&(bytes.len() as u16).to_le_bytes());
            out.extend_from_slice(bytes);
        }
        Answer::Bytes(_) | Answer::Large(_) => out.resize(WINDOW_RESULT_MAX_BYTES + 1, 0),
    }
    if shows {
        out.resize(WINDOW_RESULT_MAX_BYTES + 1, 0);
    }
    out.extend_from_slice(&done.version.to_le_bytes());
    done.became.encode(&mut out);
    out
}

fn done_of(version: Version, result: &[u8], clock: Clock) -> Option<Done> {
    let (answer, rest) = match result.split_first()? {
        (0, rest) => (Answer::Nothing, rest),
        _ if result == PUT_AT_ONCE => {
            let became = Became { clock, before: None, after: None };
            return Some(Done { version, became, answer: Answer::Nothing, object: None });
        }
        (_, rest) => {
            let (len, rest) = rest.split_first_chunk::<2>()?;
            let (bytes, rest) = rest.split_at_checked(usize::from(u16::from_le_bytes(*len)))?;
            (Answer::Bytes(bytes.to_vec()), rest)
        }
    };
    let (version, became) = rest.split_first_chunk::<8>()?;
    let fields = Fields { between: Some(Between::Became(became)), ..Fields::default() };
    let became = Became::decode(&fields).ok().flatten()?;
    Some(Done { version: u64::from_le_bytes(*version), became: Became { clock, ..became }, answer, object: None })
}
