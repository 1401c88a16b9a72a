//! Messages of replica groups as frames (PROTOCOL.md §1.11): [`replica::Message`] with borrowed keys and changes. Pure.
//!
//! A message is a request that is never answered: what answers it is a message of its own, about the same key and
//! version. So a small write that is replicated takes one frame each way, and neither end keeps a table of what is
//! asked. The value is the frame's body, and its checksum the one that the store keeps: it is reckoned once.
//!
//! Callers: the node, where a part of a group meets its links.
//!
//! [`replica::Message`]: crate::replica::Message

use super::bytes::Reader;
use super::fields::{Between, Fields, GROUP};
use super::header::{FLAG_MORE, FLAG_QUIET, Header, Kind};
use super::{FrameHead, WireError, encode_frame, encode_frame_head};
use crate::entry::{Fence, Memcached, Token};
use crate::key::{CollectionId, name_is_valid};
use crate::limits::{
    ADOPTED_PENDING_MAX, BLOCK_BYTES, COPIES_MAX, GROUP_ANSWERS_MAX_BYTES, GROUP_MEMBERS_MAX, WINDOW_RESULT_MAX_BYTES,
};
use crate::place::GroupId;
use crate::replica::window::RequestId;
use crate::replica::{self, Member, Message, NodeId, Offer, Pending, Refusal, Standing, Verdict, View};
use std::num::NonZeroU32;

/// Verb of a message of a replica group.
pub const VERB_GROUP: u8 = 18;

// Which message it is: the code in the header.
const ADOPT: u16 = 1;
const ADOPTED: u16 = 2;
const PREPARE: u16 = 3;
const ABORT: u16 = 4;
const SETTLE: u16 = 5;
const RESOLVE: u16 = 6;
const COPY: u16 = 7;
const ANSWER: u16 = 8;
const MOVED: u16 = 9;
const CONFIRM: u16 = 12;
const CONFIRMED: u16 = 13;

// What a write makes of its object; with a bit if the value was sent before.
const REMOVED: u8 = 0;
const KEPT: u8 = 1;
const WHOLE: u8 = 2;
const RANGE: u8 = 3;
const STAGED: u8 = 4;

/// Length of a result that was too long to keep.
const NOT_KEPT: u16 = u16::MAX;

const STANDINGS: [Standing; 3] = [Standing::Backup, Standing::Joining, Standing::Syncing];
const VERDICTS: [Verdict; 9] = [
    Verdict::Prepared,
    Verdict::Refused(Refusal::Full),
    Verdict::Refused(Refusal::Quota),
    Verdict::Refused(Refusal::NoCollection),
    Verdict::NeedWhole,
    Verdict::Aborted,
    Verdict::Resolved,
    Verdict::Copied,
    Verdict::CopyRefused,
];

/// An object of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key<'a> {
    /// Its collection.
    pub collection: CollectionId,
    /// The collection's generation by the sender's map: a write must not get before or behind a flush at one member.
    pub generation: u32,
    /// Its name.
    pub name: &'a [u8],
}

/// A change of an object, and the requests that it answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delta<'a> {
    /// What becomes of the object.
    pub becomes: Becomes<'a>,
    /// The requests.
    pub answers: Answers<'a>,
}

/// What becomes of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Becomes<'a> {
    /// It is removed; a fence may stay behind.
    Removed(Option<Fence>),
    /// It is as this says.
    Put(PutOf<'a>),
}

/// An object as it is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PutOf<'a> {
    /// Its value.
    pub value: ValueOf<'a>,
    /// Opaque flags.
    pub flags: u32,
    /// How long it has to live, ms; `None`: for ever.
    pub left_ms: Option<u64>,
    /// Attributes, encoded; `None`: as they are.
    pub attributes: Option<&'a [u8]>,
    /// What the memcached door keeps.
    pub memcached: Memcached,
    /// The highest token of a lock that was shown.
    pub fence: Option<Fence>,
}

/// The value of an object as it is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueOf<'a> {
    /// As it is.
    Kept,
    /// This.
    Whole(Sent<'a>),
    /// As it is but for the bytes from there on; a gap before them reads as zeros.
    Range(u64, Sent<'a>),
}

/// Where the bytes of a value are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent<'a> {
    /// Here, at most 64 KiB, with their CRC-32C.
    Inline(&'a [u8], u32),
    /// They came before, as the body of a request on the same link.
    Staged {
        /// Id of that request.
        id: u64,
        /// Bytes.
        length: u64,
    },
}

impl replica::Change for Delta<'_> {
    fn removes(&self) -> bool {
        matches!(self.becomes, Becomes::Removed(_))
    }

    fn size_bytes(&self) -> u64 {
        let (value, attributes) = match self.becomes {
            Becomes::Removed(_) => (0, 0),
            Becomes::Put(put) => (put.value.sent_bytes(), put.attributes.map_or(0, <[u8]>::len)),
        };
        value.saturating_add((attributes + self.answers.0.len()) as u64)
    }
}

impl ValueOf<'_> {
    /// Bytes of it that are sent, now or before.
    fn sent_bytes(&self) -> u64 {
        match self {
            ValueOf::Kept => 0,
            ValueOf::Whole(Sent::Inline(bytes, _)) | ValueOf::Range(_, Sent::Inline(bytes, _)) => bytes.len() as u64,
            ValueOf::Whole(Sent::Staged { length, .. }) | ValueOf::Range(_, Sent::Staged { length, .. }) => *length,
        }
    }
}

/// The requests that a write answers, for the window of each member: who asked, and the result. Encoded, and checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Answers<'a>(&'a [u8]);

impl<'a> Answers<'a> {
    /// Of bytes that [`Answers::push`] made, or that came; `None` if they do not go together.
    pub fn of(bytes: &'a [u8]) -> Option<Self> {
        let mut rest = Reader(bytes);
        while !rest.0.is_empty() {
            answer(&mut rest)?;
        }
        (bytes.len() <= GROUP_ANSWERS_MAX_BYTES).then_some(Self(bytes))
    }

    /// Appends a request to the bytes of answers; of a result that is too long to keep only that it was. `false`: there
    /// is no room for it in the same write.
    pub fn push(out: &mut Vec<u8>, id: RequestId, result: &[u8]) -> bool {
        let kept = Some(result).filter(|result| result.len() <= WINDOW_RESULT_MAX_BYTES);
        let bytes = kept.unwrap_or_default();
        let fits = out.len() + 18 + bytes.len() <= GROUP_ANSWERS_MAX_BYTES;
        if fits {
            out.extend_from_slice(&id.client.to_le_bytes());
            out.extend_from_slice(&id.sequence.to_le_bytes());
            out.extend_from_slice(&kept.map_or(NOT_KEPT, |result| result.len() as u16).to_le_bytes());
            out.extend_from_slice(bytes);
        }
        fits
    }

    /// Its bytes.
    pub fn bytes(self) -> &'a [u8] {
        self.0
    }

    /// Each request with its result; `None`: that was too long to keep.
    pub fn iter(self) -> impl Iterator<Item = (RequestId, Option<&'a [u8]>)> {
        let mut rest = Reader(self.0);
        std::iter::from_fn(move || answer(&mut rest))
    }
}

fn answer<'a>(rest: &mut Reader<'a>) -> Option<(RequestId, Option<&'a [u8]>)> {
    let id = RequestId { client: rest.u64()?, sequence: rest.u64()? };
    let result = match rest.u16()? {
        NOT_KEPT => None,
        length if usize::from(length) > WINDOW_RESULT_MAX_BYTES => return None,
        length => Some(rest.bytes(length.into())?),
    };
    Some((id, result))
}

/// A message of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupMessage<'a> {
    /// The group.
    pub group: GroupId,
    /// The message.
    pub message: Message<Key<'a>, Delta<'a>>,
}

impl<'a> GroupMessage<'a> {
    /// Appends its frame; `map_epoch` is that of the sender's map. On an error `out` is as it was: what is inline is
    /// over 64 KiB, a name or attributes are too long, or a view or what is pending is not what may be sent.
    pub fn encode(&self, out: &mut Vec<u8>, map_epoch: u32) -> Result<(), WireError> {
        let draft = Draft::new(self.group, map_epoch);
        match &self.message {
            Message::Adopt { view } => draft.of(ADOPT, view.epoch).finish_with(out, &view_bytes(view)?),
            Message::Moved { view } => draft.of(MOVED, view.epoch).finish_with(out, &view_bytes(view)?),
            Message::Adopted { epoch, pending, is_last } => {
                draft.of(ADOPTED, *epoch).bytes(&[u8::from(*is_last)]).finish_with(out, &pending_bytes(pending)?)
            }
            Message::Prepare { epoch, serial, settled, key, write, offer } => draft
                .of(PREPARE, *epoch)
                .about(key, write.version)
                .numbers(&[*settled, *serial, write.base])
                .bytes(&[u8::from(write.removes)])
                .offer(offer)
                .finish(out),
            Message::Abort { epoch, settled, key, version } => {
                draft.of(ABORT, *epoch).about(key, *version).numbers(&[*settled]).finish(out)
            }
            Message::Settle { epoch, settled } => draft.of(SETTLE, *epoch).numbers(&[*settled]).finish(out),
            Message::Resolve { epoch, key, version, commit } => {
                draft.of(RESOLVE, *epoch).about(key, *version).bytes(&[u8::from(*commit)]).finish(out)
            }
            Message::Copy { epoch, key, version, state } => {
                draft.of(COPY, *epoch).about(key, *version).delta(state).finish(out)
            }
            Message::Confirm { epoch, round } => draft.of(CONFIRM, *epoch).numbers(&[*round]).finish(out),
            Message::Confirmed { epoch, round } => draft.of(CONFIRMED, *epoch).numbers(&[*round]).finish(out),
            Message::Answer { epoch, key, version, verdict } => {
                draft.of(ANSWER, *epoch).about(key, *version).bytes(&[code_of(&VERDICTS, verdict)]).finish(out)
            }
        }
    }

    /// The message of a frame with verb [`VERB_GROUP`] and its body, whose blocks have passed their checks: each
    /// message is one frame.
    pub fn decode(head: &FrameHead<'a>, body: &'a [u8]) -> Result<Self, WireError> {
        let fields = head.fields()?;
        let Some(Between::Group(bytes)) = fields.between else { return Err(WireError::BadField(GROUP)) };
        if head.header.has(FLAG_MORE) {
            return Err(WireError::BadField(GROUP));
        }
        let crc = head.block_checks().next().unwrap_or_default();
        let mut source = Source { rest: Reader(bytes), header: &head.header, fields, body, crc };
        source.read().ok_or(WireError::BadField(GROUP))
    }
}

/// A message that is being written.
struct Draft<'a> {
    header: Header,
    fields: Fields<'a>,
    fence: Option<Fence>,
    value: (&'a [u8], u32),
    short: [u8; SHORT_BYTES],
    short_len: usize,
}

/// Most bytes of the message's own field: group and epoch, generation, three numbers, two kinds, and a value that was
/// sent before.
const SHORT_BYTES: usize = 8 + 4 + 24 + 2 + 10 + 16;

impl<'a> Draft<'a> {
    fn new(group: GroupId, map_epoch: u32) -> Self {
        let header = Header { verb: VERB_GROUP, flags: FLAG_QUIET, epoch: map_epoch, ..Header::new(Kind::Request) };
        let short = [0; SHORT_BYTES];
        let draft = Self { header, fields: Fields::default(), fence: None, value: (&[], 0), short, short_len: 0 };
        draft.bytes(&group.spread.to_le_bytes()).bytes(&group.number.to_le_bytes())
    }

    fn of(mut self, code: u16, epoch: u32) -> Self {
        self.header.code = code;
        self.bytes(&epoch.to_le_bytes())
    }

    fn about(mut self, key: &Key<'a>, version: u64) -> Self {
        (self.header.collection, self.header.version) = (key.collection.0, version);
        self.fields.name = Some(key.name);
        self.bytes(&key.generation.to_le_bytes())
    }

    fn numbers(self, numbers: &[u64]) -> Self {
        numbers.iter().fold(self, |draft, number| draft.bytes(&number.to_le_bytes()))
    }

    fn bytes(mut self, bytes: &[u8]) -> Self {
        let end = self.short_len + bytes.len();
        self.short[self.short_len..end].copy_from_slice(bytes);
        self.short_len = end;
        self
    }

    fn offer(self, offer: &Offer<Delta<'a>>) -> Self {
        match offer {
            Offer::Name => self.bytes(&[0]),
            Offer::Change(delta) => self.bytes(&[1]).delta(delta),
            Offer::Whole(delta) => self.bytes(&[2]).delta(delta),
        }
    }

    fn delta(mut self, delta: &Delta<'a>) -> Self {
        self.fields.answered = Some(delta.answers.0).filter(|answers| !answers.is_empty());
        match &delta.becomes {
            Becomes::Removed(fence) => {
                self.fence = *fence;
                self.bytes(&[REMOVED])
            }
            Becomes::Put(put) => self.put(put),
        }
    }

    fn put(mut self, put: &PutOf<'a>) -> Self {
        self.fence = put.fence;
        self.fields.ttl_ms = put.left_ms;
        self.fields.flags = Some(put.flags).filter(|flags| *flags != 0);
        self.fields.attributes = put.attributes;
        let (kind, sent) = match &put.value {
            ValueOf::Kept => (KEPT, None),
            ValueOf::Whole(sent) => (WHOLE, Some(sent)),
            ValueOf::Range(offset, sent) => {
                self.header.offset = *offset;
                (RANGE, Some(sent))
            }
        };
        let Memcached { cas, stale, token_sent } = put.memcached;
        let (cas, bits) = (cas.to_le_bytes(), [u8::from(stale) | u8::from(token_sent) << 1]);
        match sent {
            Some(Sent::Staged { id, length }) => {
                self.bytes(&[kind | STAGED]).bytes(&cas).bytes(&bits).numbers(&[*id, *length])
            }
            Some(Sent::Inline(bytes, crc)) => {
                self.value = (bytes, *crc);
                self.bytes(&[kind]).bytes(&cas).bytes(&bits)
            }
            None => self.bytes(&[kind]).bytes(&cas).bytes(&bits),
        }
    }

    /// Appends the frame, with the value as its body.
    fn finish(self, out: &mut Vec<u8>) -> Result<(), WireError> {
        let (value, crc) = self.value;
        if value.len() > BLOCK_BYTES {
            return Err(WireError::BodyTooLong(value.len()));
        }
        let token = self.fence.map(Token::to_bytes);
        let between = Some(Between::Group(&self.short[..self.short_len]));
        let fields = Fields { between, token: token.as_ref(), ..self.fields };
        let header = Header { length: value.len() as u64, ..self.header };
        encode_frame_head(out, header, &fields, value.len(), (!value.is_empty()).then_some(crc))?;
        out.extend_from_slice(value);
        Ok(())
    }

    /// Appends the frame of a message whose body is a view or a list.
    fn finish_with(self, out: &mut Vec<u8>, body: &[u8]) -> Result<(), WireError> {
        let between = Some(Between::Group(&self.short[..self.short_len]));
        let header = Header { length: body.len() as u64, ..self.header };
        encode_frame(out, header, &Fields { between, ..self.fields }, body)
    }
}

/// A message that is being read. `None`, here: it does not go together.
struct Source<'a, 'h> {
    rest: Reader<'a>,
    header: &'h Header,
    fields: Fields<'a>,
    body: &'a [u8],
    crc: u32,
}

impl<'a> Source<'a, '_> {
    fn read(&mut self) -> Option<GroupMessage<'a>> {
        let group = GroupId { spread: self.rest.u16()?, number: self.rest.u16()? };
        let epoch = self.rest.u32()?;
        let message = match self.header.code {
            ADOPT => Message::Adopt { view: self.view(epoch)? },
            MOVED => Message::Moved { view: self.view(epoch)? },
            ADOPTED => Message::Adopted { epoch, is_last: self.bit()?, pending: self.pending()? },
            SETTLE => Message::Settle { epoch, settled: self.rest.u64()? },
            CONFIRM => Message::Confirm { epoch, round: self.rest.u64()? },
            CONFIRMED => Message::Confirmed { epoch, round: self.rest.u64()? },
            _ => self.read_about(epoch)?,
        };
        Some(GroupMessage { group, message })
    }

    /// A message about an object.
    fn read_about(&mut self, epoch: u32) -> Option<Message<Key<'a>, Delta<'a>>> {
        let (collection, generation) = (CollectionId(self.header.collection), self.rest.u32()?);
        let key = Key { collection, generation, name: self.fields.name? };
        let version = self.header.version;
        match self.header.code {
            PREPARE => return self.prepare(epoch, key),
            COPY => {
                let state = self.delta().filter(is_whole)?;
                return Some(Message::Copy { epoch, key, version, state });
            }
            _ => self.nothing_more()?,
        }
        Some(match self.header.code {
            ABORT => Message::Abort { epoch, settled: self.rest.u64()?, key, version },
            RESOLVE => Message::Resolve { epoch, commit: self.bit()?, key, version },
            ANSWER => Message::Answer { epoch, key, version, verdict: coded(&VERDICTS, self.rest.u8()?)? },
            _ => return None,
        })
    }

    /// Nothing where the message brings no value.
    fn nothing_more(&self) -> Option<()> {
        self.body.is_empty().then_some(())
    }

    fn bit(&mut self) -> Option<bool> {
        bit(&mut self.rest)
    }

    fn prepare(&mut self, epoch: u32, key: Key<'a>) -> Option<Message<Key<'a>, Delta<'a>>> {
        let (settled, serial, base) = (self.rest.u64()?, self.rest.u64()?, self.rest.u64()?);
        let write = Pending { version: self.header.version, base, removes: self.bit()? };
        let fits = |delta: &Delta<'_>| replica::Change::removes(delta) == write.removes;
        let offer = match self.rest.u8()? {
            0 => self.nothing_more().map(|()| Offer::Name)?,
            1 => Offer::Change(self.delta().filter(fits)?),
            2 => Offer::Whole(self.delta().filter(fits).filter(is_whole)?),
            _ => return None,
        };
        Some(Message::Prepare { epoch, serial, settled, key, write, offer })
    }

    fn delta(&mut self) -> Option<Delta<'a>> {
        let answers = Answers::of(self.fields.answered.unwrap_or_default())?;
        let fence = self.fields.token.and_then(|token| Token::from_bytes(token));
        let kind = self.rest.u8()?;
        if kind == REMOVED {
            return self.nothing_more().map(|()| Delta { becomes: Becomes::Removed(fence), answers });
        }
        let (cas, bits) = (self.rest.u64()?, self.rest.u8()?);
        let put = PutOf {
            memcached: Memcached { cas, stale: bits & 1 != 0, token_sent: bits & 2 != 0 },
            value: self.value(kind)?,
            flags: self.fields.flags.unwrap_or_default(),
            left_ms: self.fields.ttl_ms,
            attributes: self.fields.attributes,
            fence,
        };
        Some(Delta { becomes: Becomes::Put(put), answers })
    }

    fn value(&mut self, kind: u8) -> Option<ValueOf<'a>> {
        let sent = match kind & STAGED != 0 {
            true => Sent::Staged { id: self.rest.u64()?, length: self.rest.u64()? },
            false => Sent::Inline(self.body, self.crc),
        };
        let fits = match sent {
            Sent::Inline(bytes, _) if kind != KEPT => bytes.len() <= BLOCK_BYTES,
            _ => self.body.is_empty(),
        };
        match kind & !STAGED {
            _ if !fits => None,
            KEPT if kind == KEPT => Some(ValueOf::Kept),
            WHOLE => Some(ValueOf::Whole(sent)),
            RANGE => Some(ValueOf::Range(self.header.offset, sent)),
            _ => None,
        }
    }

    fn view(&mut self, epoch: u32) -> Option<View> {
        let mut rest = Reader(self.body);
        let (primary, since) = (node(&mut rest)?, rest.u32()?);
        let (lost, needed, count) = (rest.u32()?, rest.u8()?, rest.u8()?);
        let member = |_| {
            let (node, standing) = (node(&mut rest)?, coded(&STANDINGS, rest.u8()?)?);
            Some(Member { node, standing, since: rest.u32()? })
        };
        let members: Option<Vec<Member>> = (0..count).map(member).collect();
        let view = View { epoch, primary, since, members: members?, needed, lost };
        (view_fits(&view) && rest.0.is_empty()).then_some(view)
    }

    fn pending(&self) -> Option<Vec<(Key<'a>, Pending)>> {
        let (mut rest, mut pending) = (Reader(self.body), Vec::new());
        while !rest.0.is_empty() {
            let (collection, generation, length) = (CollectionId(rest.u64()?), rest.u32()?, rest.u16()?);
            let name = rest.bytes(length.into()).filter(|name| name_is_valid(name))?;
            let (version, base, removes) = (rest.u64()?, rest.u64()?, bit(&mut rest)?);
            pending.push((Key { collection, generation, name }, Pending { version, base, removes }));
        }
        (pending.len() <= ADOPTED_PENDING_MAX).then_some(pending)
    }
}

/// Whether it tells all of the object, or its absence.
fn is_whole(delta: &Delta<'_>) -> bool {
    match delta.becomes {
        Becomes::Removed(_) => true,
        Becomes::Put(put) => matches!(put.value, ValueOf::Whole(_)),
    }
}

fn coded<T: Copy>(all: &[T], code: u8) -> Option<T> {
    all.get(usize::from(code)).copied()
}

fn code_of<T: PartialEq>(all: &[T], value: &T) -> u8 {
    all.iter().position(|it| it == value).unwrap_or(all.len()) as u8
}

fn bit(rest: &mut Reader<'_>) -> Option<bool> {
    rest.u8().filter(|bit| *bit <= 1).map(|bit| bit == 1)
}

fn node(rest: &mut Reader<'_>) -> Option<NodeId> {
    NonZeroU32::new(rest.u32()?).map(NodeId)
}

/// Whether it is within its limits, and each node stands in it once.
fn view_fits(view: &View) -> bool {
    let mut nodes: Vec<NodeId> = view.members.iter().map(|member| member.node).chain([view.primary]).collect();
    nodes.sort_unstable();
    let once = nodes.windows(2).all(|pair| pair[0] != pair[1]);
    once && (1..=COPIES_MAX).contains(&view.needed) && view.members.len() <= GROUP_MEMBERS_MAX
}

fn view_bytes(view: &View) -> Result<Vec<u8>, WireError> {
    if !view_fits(view) {
        return Err(WireError::BadField(GROUP));
    }
    let mut out = Vec::new();
    [view.primary.0.get(), view.since, view.lost]
        .iter()
        .for_each(|number| out.extend_from_slice(&number.to_le_bytes()));
    out.extend_from_slice(&[view.needed, view.members.len() as u8]);
    for member in &view.members {
        out.extend_from_slice(&member.node.0.get().to_le_bytes());
        out.push(code_of(&STANDINGS, &member.standing));
        out.extend_from_slice(&member.since.to_le_bytes());
    }
    Ok(out)
}

fn pending_bytes(pending: &[(Key<'_>, Pending)]) -> Result<Vec<u8>, WireError> {
    if pending.len() > ADOPTED_PENDING_MAX {
        return Err(WireError::BadField(GROUP));
    }
    let mut out = Vec::new();
    for (key, write) in pending {
        if !name_is_valid(key.name) {
            return Err(WireError::BadField(GROUP));
        }
        out.extend_from_slice(&key.collection.0.to_le_bytes());
        out.extend_from_slice(&key.generation.to_le_bytes());
        out.extend_from_slice(&(key.name.len() as u16).to_le_bytes());
        out.extend_from_slice(key.name);
        [write.version, write.base].iter().for_each(|number| out.extend_from_slice(&number.to_le_bytes()));
        out.push(u8::from(write.removes));
    }
    Ok(out)
}

#[cfg(test)]
mod tests;
