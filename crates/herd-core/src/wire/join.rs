//! How a node joins (PROTOCOL.md §1.9). It has no number yet, so it says another hello than that of a link; both prove
//! that they know the herd's secret, as the ends of a link do ([`super::hello`]). Pure: random numbers are handed in.
//!
//! | node that wants in | | any member |
//! |---|---|---|
//! | [`Joining::hello`]: what the warden must know, my nonce | → | [`Admitting::new`] |
//! | [`Joining::welcomed`]: does it know the secret? | ← | [`Admitting::welcome`]: my herd, my nonce, my proof |
//! | a hello with my proof | → | [`Admitting::proved`]: the warden is asked |
//! | [`decode_joined`]; or an error | ← | [`encode_joined`]; or [`LinkError::goodbye`] |
//!
//! Callers: sessions of nodes that join, and of those that are asked.

use super::WireError;
use super::body::{Assembly, encode_with_body};
use super::bytes::Reader;
use super::fields::{Between, Fields};
use super::header::{Header, Kind};
use super::hello::{
    LinkError, LinkErrorKind, PROOF_BYTES, Prover, Secret, check_protocol, hex, none, opening, write_frame,
};
use crate::limits::{MAP_MAX_BYTES, MAP_TEXT_MAX_BYTES, NODE_ADDRESSES_MAX};
use crate::place::{HerdId, NodeId};
use crate::warden::{Identity, Join, Joined, MoveId};
use std::num::NonZeroU32;

/// Bytes of a [`Greeting`]; those of later versions may be longer.
pub(super) const GREETING_BYTES: usize = 40;

/// Bytes of a [`Joined`]; as above.
const JOINED_BYTES: usize = 44;

/// Bits of a join: it was told to evict; it has belonged to a herd; its control store was moved.
const EVICTS: u8 = 1;
const OF_A_HERD: u8 = 2;
const MOVED: u8 = 4;

/// What a member says of itself to a node that wants in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Greeting {
    /// Newest protocol it speaks among nodes.
    pub protocol: u32,
    /// Its herd.
    pub herd: HerdId,
    /// Its number there.
    pub node: NodeId,
    /// Random, and never used again.
    pub nonce: [u8; 16],
}

impl Greeting {
    pub(super) fn encode(&self) -> [u8; GREETING_BYTES] {
        let mut out = [0; GREETING_BYTES];
        out[..4].copy_from_slice(&self.protocol.to_le_bytes());
        out[4..20].copy_from_slice(&self.herd.0);
        out[20..24].copy_from_slice(&self.node.0.get().to_le_bytes());
        out[24..].copy_from_slice(&self.nonce);
        out
    }

    /// Its protocol is judged first: what follows may look otherwise in another one.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, LinkError> {
        let mut rest = Reader(bytes);
        let protocol = rest.u32().ok_or_else(bad)?;
        check_protocol(protocol)?;
        let read = |rest: &mut Reader<'_>| {
            Some(Self { protocol, herd: HerdId(rest.fixed()?), node: node(rest)?, nonce: rest.fixed()? })
        };
        read(&mut rest).ok_or_else(bad)
    }
}

#[cold]
pub(super) fn bad() -> LinkError {
    LinkError::new(LinkErrorKind::BadHello, "this is no hello of a Herd node")
}

pub(super) fn node(rest: &mut Reader<'_>) -> Option<NodeId> {
    NonZeroU32::new(rest.u32()?).map(NodeId)
}

/// The bytes of a join; `None` if a text is too long, or there are too many addresses.
fn encode_join(join: &Join, nonce: &[u8; 16]) -> Option<Vec<u8>> {
    let mut texts = [&join.name, &join.host, &join.rack].into_iter().chain(&join.addresses);
    if join.addresses.len() > NODE_ADDRESSES_MAX || texts.any(|text| text.len() > MAP_TEXT_MAX_BYTES) {
        return None;
    }
    let bit = |is_so, bit| if is_so { bit } else { 0 };
    let bits = bit(join.evict, EVICTS) | bit(join.herd.is_some(), OF_A_HERD) | bit(join.moved.is_some(), MOVED);
    let mut out = join.protocol.to_le_bytes().to_vec();
    out.extend_from_slice(nonce);
    out.push(bits);
    out.extend_from_slice(&join.herd.map_or([0; 16], |herd| herd.0));
    out.extend_from_slice(&join.identity.0);
    out.extend_from_slice(&join.process);
    out.extend_from_slice(&join.memory_bytes.to_le_bytes());
    [&join.name, &join.host, &join.rack].into_iter().for_each(|text| put_text(&mut out, text));
    out.push(join.addresses.len() as u8);
    join.addresses.iter().for_each(|text| put_text(&mut out, text));
    join.moved.iter().for_each(|id| out.extend_from_slice(&id.0));
    Some(out)
}

/// Appends a text, whose length was checked, with its length.
fn put_text(out: &mut Vec<u8>, text: &str) {
    out.push(text.len() as u8);
    out.extend_from_slice(text.as_bytes());
}

/// A join from its bytes. Its protocol is judged first. Whether its texts may stand in a map is the warden's to judge.
fn decode_join(bytes: &[u8]) -> Result<Join, LinkError> {
    let mut rest = Reader(bytes);
    let protocol = rest.u32().ok_or_else(bad)?;
    check_protocol(protocol)?;
    let read = |rest: &mut Reader<'_>| {
        let (_nonce, bits) = (rest.fixed::<16>()?, rest.u8()?);
        let (herd, identity, process) = (HerdId(rest.fixed()?), Identity(rest.fixed()?), rest.fixed()?);
        let memory_bytes = rest.u64()?;
        let [name, host, rack] = [rest.text()?, rest.text()?, rest.text()?].map(str::to_owned);
        let count = Some(usize::from(rest.u8()?)).filter(|count| *count <= NODE_ADDRESSES_MAX)?;
        let addresses = (0..count).map(|_| rest.text().map(str::to_owned)).collect::<Option<_>>()?;
        let (herd, evict) = ((bits & OF_A_HERD != 0).then_some(herd), bits & EVICTS != 0);
        let moved = if bits & MOVED != 0 { Some(MoveId(rest.fixed()?)) } else { None };
        Some(Join { herd, protocol, identity, process, name, addresses, host, rack, memory_bytes, evict, moved })
    };
    read(&mut rest).ok_or_else(bad)
}

/// What the other side says of itself.
pub(super) fn said<'a>(fields: &Fields<'a>) -> &'a [u8] {
    match fields.between {
        Some(Between::Join(bytes)) => bytes,
        _ => &[],
    }
}

/// Whether a first hello is that of a node that wants in.
pub fn wants_in(hello: &Fields<'_>) -> bool {
    matches!(hello.between, Some(Between::Join(_)))
}

/// The node that wants in, from its hello to its proof.
pub struct Joining {
    said: Vec<u8>,
    herd: Option<HerdId>,
    secret: Secret,
}

impl Joining {
    /// With a nonce that is random and never used again. Error: a text is too long, or there are too many addresses.
    pub fn new(join: &Join, nonce: [u8; 16], secret: Secret) -> Result<Self, LinkError> {
        let too_long = || {
            let text = format!(
                "name, host, rack and each address of a node have at most {MAP_TEXT_MAX_BYTES} bytes, and it has at \
                 most {NODE_ADDRESSES_MAX} addresses"
            );
            LinkError::new(LinkErrorKind::BadHello, text)
        };
        let said = encode_join(join, &nonce).ok_or_else(too_long)?;
        Ok(Self { said, herd: join.herd, secret })
    }

    /// Appends the hello.
    pub fn hello(&self, out: &mut Vec<u8>) {
        write_frame(out, Kind::Hello, &Fields { between: Some(Between::Join(&self.said)), ..opening() });
    }

    /// Takes the welcome of a member, and appends the proof of this side. What comes next says what the warden did.
    pub fn welcomed(&self, welcome: &Fields<'_>, out: &mut Vec<u8>) -> Result<Greeting, LinkError> {
        let theirs = said(welcome);
        let greeting = Greeting::decode(theirs)?;
        self.secret.check(&self.secret.proof(Prover::Member, &self.said, theirs), welcome)?;
        if let Some(own) = self.herd.filter(|own| *own != greeting.herd) {
            let (own, others) = (hex(&own.0), hex(&greeting.herd.0));
            let text = format!(
                "this node belongs to herd {own}, and the one it asked to herd {others}: check --join, or give this \
                 node an empty --data"
            );
            return Err(LinkError::new(LinkErrorKind::OtherHerd, text));
        }
        let proof = self.secret.proof(Prover::Joiner, &self.said, theirs);
        write_frame(out, Kind::Hello, &Fields { proof: Some(&proof), ..none() });
        Ok(greeting)
    }
}

/// The member that is asked, from the hello to the other side's proof.
pub struct Admitting {
    join: Join,
    secret: Secret,
    greeting: [u8; GREETING_BYTES],
    proof: [u8; PROOF_BYTES],
    expected: [u8; PROOF_BYTES],
}

impl Admitting {
    /// Takes the hello of a node that wants in.
    pub fn new(hello: &Fields<'_>, me: &Greeting, secret: Secret) -> Result<Self, LinkError> {
        let theirs = said(hello);
        let (join, greeting) = (decode_join(theirs)?, me.encode());
        let [proof, expected] = [Prover::Member, Prover::Joiner].map(|prover| secret.proof(prover, theirs, &greeting));
        Ok(Self { join, secret, greeting, proof, expected })
    }

    /// Appends the welcome.
    pub fn welcome(&self, out: &mut Vec<u8>) {
        let between = Some(Between::Join(&self.greeting));
        write_frame(out, Kind::Welcome, &Fields { between, proof: Some(&self.proof), ..opening() });
    }

    /// Takes the second hello. Gives what the warden is to be asked.
    pub fn proved(self, hello: &Fields<'_>) -> Result<Join, LinkError> {
        self.secret.check(&self.expected, hello).map(|()| self.join)
    }
}

/// Appends the welcome that lets a node in, and the map behind it.
pub fn encode_joined(out: &mut Vec<u8>, joined: &Joined, map: &[u8]) -> Result<(), WireError> {
    let mut bytes = [0; JOINED_BYTES];
    bytes[..16].copy_from_slice(&joined.herd.0);
    bytes[16..32].copy_from_slice(&joined.hash_key);
    bytes[32..36].copy_from_slice(&joined.node.0.get().to_le_bytes());
    bytes[36..].copy_from_slice(&joined.incarnation.to_le_bytes());
    let fields = Fields { between: Some(Between::Joined(&bytes)), ..none() };
    encode_with_body(out, Header::new(Kind::Welcome), &fields, map)
}

/// What the welcome says that lets a node in, and the map that comes behind it, in data frames.
pub fn decode_joined(header: &Header, fields: &Fields<'_>) -> Result<(Joined, Assembly), LinkError> {
    let Some(Between::Joined(bytes)) = fields.between else { return Err(bad()) };
    let read = |rest: &mut Reader<'_>| {
        let (herd, hash_key) = (HerdId(rest.fixed()?), rest.fixed()?);
        Some(Joined { herd, hash_key, node: node(rest)?, incarnation: rest.u64()? })
    };
    let map = Some(header.length).filter(|length| *length > 0).and_then(|it| Assembly::new(it, MAP_MAX_BYTES).ok());
    read(&mut Reader(bytes)).zip(map).ok_or_else(bad)
}

#[cfg(test)]
mod tests;
