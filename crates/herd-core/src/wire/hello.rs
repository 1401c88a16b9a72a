//! How two nodes open a link (PROTOCOL.md §1.8): who they are, and the proof that both know the herd's secret. Pure:
//! random numbers are handed in.
//!
//! | dialing side | | accepting side |
//! |---|---|---|
//! | [`Dialing::hello`]: who I am, my nonce | → | [`Accepting::new`]: is it one of mine? |
//! | [`Dialing::welcomed`]: is it whom I dialed? | ← | [`Accepting::welcome`]: who I am, my nonce, my proof |
//! | a hello with my proof; the link is up | → | [`Accepting::proved`]; the link is up |
//!
//! A proof is SipHash-2-4 with 128 bits, keyed with the secret, over what both have said: a keyed function made to
//! authenticate short messages, which is in the tree already for names. The secret never goes over the wire; both
//! nonces are in the proof, so that none can be used again, and so is the side, so that none can be sent back. It
//! proves who opened the link. It does not keep what follows from being read or changed on its way: that is for TLS.
//!
//! Callers: link sessions of nodes.

use super::bytes::Reader;
use super::fields::Fields;
use super::header::{Header, Kind};
use super::lanes;
use super::{LINK_PROTOCOL, LINK_PROTOCOL_LEAST, PROTOCOL_VERSION, WireError, encode_frame};
use crate::limits::ERROR_TEXT_MAX_BYTES;
use crate::place::{HerdId, NodeId};
use siphasher::sip128::{Hasher128, SipHasher24};
use std::fmt::{self, Write};
use std::hash::Hasher;
use std::num::NonZeroU32;

/// Bytes of a [`Peer`] on the wire; those of later versions may be longer.
pub const PEER_BYTES: usize = if cfg!(herd_next) { 66 } else { 62 };

/// Bytes of a proof.
pub const PROOF_BYTES: usize = 16;

/// What the nodes of a herd know and nobody else: 16 random bytes, made at its birth and handed over at a join. It is
/// not the key of names, which clients may know too. It is never shown.
#[derive(Clone, Copy)]
pub struct Secret(pub [u8; 16]);

/// What a node says of itself when a link opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Highest protocol of links it speaks.
    pub protocol: u16,
    /// Its herd.
    pub herd: HerdId,
    /// Its number there.
    pub node: NodeId,
    /// Rises with each start of its process.
    pub incarnation: u64,
    /// Loops it has, at least 1.
    pub loops: u16,
    /// Number of the link between the two; which loops it joins: [`lanes`].
    pub link: u16,
    /// Epoch of the map it holds.
    pub epoch: u32,
    /// Revision of that map.
    pub revision: u64,
    /// Random, and never used again.
    pub nonce: [u8; 16],
}

/// Why a link is not opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum LinkErrorKind {
    /// The peer belongs to another herd.
    OtherHerd = 1,
    /// The peer speaks only protocols that are not spoken here any more.
    OlderProtocol = 2,
    /// The peer does not know the herd's secret.
    WrongSecret = 3,
    /// Another node answers than was dialed.
    OtherNode = 4,
    /// A node has dialed itself.
    Itself = 5,
    /// The node has been started anew since.
    OlderIncarnation = 6,
    /// What was said is no hello of a node.
    BadHello = 7,
    /// The warden does not let the node in; the text says why.
    JoinRefused = 8,
    /// Somebody else is the warden; the text is its address, `HOST:PORT`, and nothing else.
    AskWarden = 9,
    /// The warden can't let the node in now, or it is not known whether it has; the text says why. It is asked again.
    NotNow = 10,
}

impl LinkErrorKind {
    /// All kinds, in the order of their codes.
    pub const ALL: [LinkErrorKind; 10] = [
        LinkErrorKind::OtherHerd,
        LinkErrorKind::OlderProtocol,
        LinkErrorKind::WrongSecret,
        LinkErrorKind::OtherNode,
        LinkErrorKind::Itself,
        LinkErrorKind::OlderIncarnation,
        LinkErrorKind::BadHello,
        LinkErrorKind::JoinRefused,
        LinkErrorKind::AskWarden,
        LinkErrorKind::NotNow,
    ];

    /// The kind with this code of a goodbye; 0 and others are none of them.
    pub fn from_code(code: u16) -> Option<LinkErrorKind> {
        LinkErrorKind::ALL.get(usize::from(code).wrapping_sub(1)).copied()
    }
}

/// Why a link is not opened, and what a person should read of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkError {
    /// What is wrong.
    pub kind: LinkErrorKind,
    /// One line: what, which node, what to do.
    pub text: String,
}

impl LinkError {
    /// An error of this kind.
    pub fn new(kind: LinkErrorKind, text: impl Into<String>) -> Self {
        Self { kind, text: text.into() }
    }

    /// What a goodbye tells; `None` if it tells of something else.
    pub fn of_goodbye(header: &Header, fields: &Fields<'_>) -> Option<Self> {
        let kind = LinkErrorKind::from_code(header.code)?;
        // Nobody has proved anything yet, and it is shown to people.
        let text = fields.error.unwrap_or_default().chars().filter(|c| !c.is_control()).take(ERROR_TEXT_MAX_BYTES);
        Some(Self::new(kind, text.collect::<String>()))
    }

    /// Appends the goodbye that tells it to the other side.
    pub fn goodbye(&self, out: &mut Vec<u8>) {
        let header = Header { code: self.kind as u16, ..Header::new(Kind::Goodbye) };
        encode_frame(out, header, &Fields::failed(&self.text), b"").expect("a text that was cut fits");
    }
}

impl fmt::Display for LinkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for LinkError {}

impl Peer {
    /// Its bytes.
    pub fn encode(&self) -> [u8; PEER_BYTES] {
        let mut out = [0; PEER_BYTES];
        out[..2].copy_from_slice(&self.protocol.to_le_bytes());
        out[2..18].copy_from_slice(&self.herd.0);
        out[18..22].copy_from_slice(&self.node.0.get().to_le_bytes());
        out[22..30].copy_from_slice(&self.incarnation.to_le_bytes());
        out[30..32].copy_from_slice(&self.loops.to_le_bytes());
        out[32..34].copy_from_slice(&self.link.to_le_bytes());
        out[34..38].copy_from_slice(&self.epoch.to_le_bytes());
        out[38..46].copy_from_slice(&self.revision.to_le_bytes());
        out[46..62].copy_from_slice(&self.nonce);
        // What the release after this one adds.
        out[62..].copy_from_slice(&self.epoch.to_le_bytes()[..PEER_BYTES - 62]);
        out
    }

    /// Reads the bytes of a peer. Its protocol is judged first: what follows may look otherwise in another one.
    pub fn decode(bytes: &[u8]) -> Result<Self, LinkError> {
        let bad = || LinkError::new(LinkErrorKind::BadHello, "this is no hello of a Herd node");
        let mut rest = Reader(bytes);
        let protocol = rest.u16().ok_or_else(bad)?;
        check_protocol(protocol.into())?;
        let read = |rest: &mut Reader<'_>| {
            Some(Self {
                protocol,
                herd: HerdId(rest.fixed()?),
                node: NodeId(NonZeroU32::new(rest.u32()?)?),
                incarnation: rest.u64()?,
                loops: rest.u16()?,
                link: rest.u16()?,
                epoch: rest.u32()?,
                revision: rest.u64()?,
                nonce: rest.fixed()?,
            })
        };
        read(&mut rest).filter(|peer| peer.loops > 0).ok_or_else(bad)
    }

    /// The loop of this node that the link of this number joins.
    pub fn loop_of(&self, link: u16) -> usize {
        usize::from(lanes::loop_of(link, self.loops))
    }

    /// The protocol that both sides of a link speak.
    pub fn spoken_with(&self, other: &Peer) -> u16 {
        self.protocol.min(other.protocol)
    }

    /// Whether `other` may have a link to this node.
    fn check(&self, other: &Peer) -> Result<(), LinkError> {
        if other.herd != self.herd {
            let (own, others) = (hex(&self.herd.0), hex(&other.herd.0));
            let text = format!("this is a node of herd {own}, and the peer's herd is {others}: check its --join");
            return Err(LinkError::new(LinkErrorKind::OtherHerd, text));
        }
        if other.node == self.node {
            let text = format!("node {} has dialed itself: check its --advertise", self.node.0);
            return Err(LinkError::new(LinkErrorKind::Itself, text));
        }
        Ok(())
    }

    /// Whether there can be a link of that number between the two.
    fn check_link(&self, other: &Peer) -> Result<(), LinkError> {
        if lanes::is_link(other.link, self.loops, other.loops) {
            return Ok(());
        }
        let text = format!("there is no link {} between nodes of {} and {} loops", other.link, self.loops, other.loops);
        Err(LinkError::new(LinkErrorKind::BadHello, text))
    }
}

pub(super) fn check_protocol(protocol: u32) -> Result<(), LinkError> {
    if protocol >= LINK_PROTOCOL_LEAST.into() {
        return Ok(());
    }
    let text = format!(
        "the peer speaks link protocol {protocol} and this node {LINK_PROTOCOL_LEAST} to {LINK_PROTOCOL}: \
         update the peer first"
    );
    Err(LinkError::new(LinkErrorKind::OlderProtocol, text))
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a string takes all");
        text
    })
}

/// Who proves. Each is in its proof, so that none is of use as another's.
#[derive(Clone, Copy)]
pub(super) enum Prover {
    /// The accepting side of a link.
    Acceptor = 1,
    /// The dialing side of a link.
    Dialer = 2,
    /// The member that is asked to let a node in.
    Member = 3,
    /// The node that wants in.
    Joiner = 4,
    /// The member that is told of the end of a node.
    Hearer = 5,
    /// Who tells it.
    Witness = 6,
}

impl Secret {
    /// The proof of one side that it knows the secret, over what both have said.
    pub(super) fn proof(&self, prover: Prover, dialer: &[u8], acceptor: &[u8]) -> [u8; PROOF_BYTES] {
        let mut hasher = SipHasher24::new_with_key(&self.0);
        hasher.write(&[prover as u8]);
        for said in [dialer, acceptor] {
            hasher.write(&(said.len() as u64).to_le_bytes());
            hasher.write(said);
        }
        hasher.finish128().as_bytes()
    }

    /// Whether a peer has proved that it knows the secret.
    pub(super) fn check(&self, expected: &[u8; PROOF_BYTES], fields: &Fields<'_>) -> Result<(), LinkError> {
        let expected = u128::from_le_bytes(*expected);
        // One comparison of all bits: how long it takes tells nothing of them.
        match fields.proof.map(|proof| u128::from_le_bytes(*proof) ^ expected) {
            Some(0) => Ok(()),
            _ => Err(LinkError::new(
                LinkErrorKind::WrongSecret,
                "the secrets differ: give all nodes of a herd the same HERD_SECRET",
            )),
        }
    }
}

/// The dialing side, from its hello to the welcome.
pub struct Dialing {
    me: Peer,
    to: NodeId,
    secret: Secret,
}

impl Dialing {
    /// A link from `me` to the node `to`.
    pub fn new(me: Peer, to: NodeId, secret: Secret) -> Self {
        Self { me, to, secret }
    }

    /// Appends the hello.
    pub fn hello(&self, out: &mut Vec<u8>) {
        let peer = self.me.encode();
        write_frame(out, Kind::Hello, &Fields { peer: Some(&peer), ..opening() });
    }

    /// Takes the welcome, and appends the proof of this side. Gives the other one: the link is up.
    pub fn welcomed(&self, welcome: &Fields<'_>, out: &mut Vec<u8>) -> Result<Peer, LinkError> {
        let said = welcome.peer.unwrap_or_default();
        let other = Peer::decode(said)?;
        self.me.check(&other)?;
        if other.node != self.to {
            let text = format!("node {} was dialed, and node {} answers there", self.to.0, other.node.0);
            return Err(LinkError::new(LinkErrorKind::OtherNode, text));
        }
        if other.link != self.me.link {
            let text = format!("link {} was dialed, and link {} is answered", self.me.link, other.link);
            return Err(LinkError::new(LinkErrorKind::BadHello, text));
        }
        let mine = self.me.encode();
        self.secret.check(&self.secret.proof(Prover::Acceptor, &mine, said), welcome)?;
        let proof = self.secret.proof(Prover::Dialer, &mine, said);
        write_frame(out, Kind::Hello, &Fields { proof: Some(&proof), ..none() });
        Ok(other)
    }
}

/// The accepting side, from the hello to the other side's proof.
pub struct Accepting {
    other: Peer,
    secret: Secret,
    welcome: [u8; PEER_BYTES],
    proof: [u8; PROOF_BYTES],
    expected: [u8; PROOF_BYTES],
}

impl Accepting {
    /// Judges the hello of a node; `link` of `me` is not looked at.
    pub fn new(hello: &Fields<'_>, me: &Peer, secret: Secret) -> Result<Self, LinkError> {
        let said = hello.peer.unwrap_or_default();
        let other = Peer::decode(said)?;
        me.check(&other)?;
        me.check_link(&other)?;
        let welcome = Peer { link: other.link, ..*me }.encode();
        let proof = secret.proof(Prover::Acceptor, said, &welcome);
        let expected = secret.proof(Prover::Dialer, said, &welcome);
        Ok(Self { other, secret, welcome, proof, expected })
    }

    /// Who says it dials, which is not proved yet: the link belongs into its loop.
    pub fn claimed(&self) -> &Peer {
        &self.other
    }

    /// Appends the welcome.
    pub fn welcome(&self, out: &mut Vec<u8>) {
        let fields = Fields { peer: Some(&self.welcome), proof: Some(&self.proof), ..opening() };
        write_frame(out, Kind::Welcome, &fields);
    }

    /// Takes the second hello. Gives the other side: the link is up, once the one that it replaces is dropped.
    pub fn proved(&self, hello: &Fields<'_>) -> Result<Peer, LinkError> {
        self.secret.check(&self.expected, hello).map(|()| self.other)
    }
}

/// What each first hello and each welcome says of the wire.
pub(super) fn opening() -> Fields<'static> {
    Fields { features: Some(0), highest_version: Some(PROTOCOL_VERSION), ..none() }
}

pub(super) fn none() -> Fields<'static> {
    Fields::default()
}

pub(super) fn write_frame(out: &mut Vec<u8>, kind: Kind, fields: &Fields<'_>) {
    let written: Result<(), WireError> = encode_frame(out, Header::new(kind), fields, b"");
    written.expect("a hello is far below the limits");
}

#[cfg(test)]
mod tests;
