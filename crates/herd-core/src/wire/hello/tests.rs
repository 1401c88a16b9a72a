//! Both sides of a hello: golden bytes, every way to be refused, and nothing that was changed on its way is believed.

use super::*;
use crate::chance::Chance;
use crate::limits::ERROR_TEXT_MAX_BYTES;
use crate::wire::{Frame, parse_frame};

const SECRET: Secret = Secret(*b"sixteen bytes ..");

// Made by another program from PROTOCOL.md and the paper of SipHash.
const DIALER: &str = "\
    010074686520686572642773206964202e2e01000000080706050403020102000100090000000200000001000000\
    01010101010101010101010101010101";
const PROOF_OF_ACCEPTOR: &str = "488aa8ae58da54caca7d16aedbf384c8";
const PROOF_OF_DIALER: &str = "2707a90f1b84aa4fbb3c2dd45ea5741d";

fn node(number: u32) -> NodeId {
    NodeId(NonZeroU32::new(number).expect("not 0"))
}

fn peer(number: u8) -> Peer {
    Peer {
        protocol: 1,
        herd: HerdId(*b"the herd's id .."),
        node: node(number.into()),
        incarnation: 0x0102_0304_0506_0708,
        loops: 2,
        link: 1,
        epoch: 9,
        revision: 0x1_0000_0002,
        nonce: [number; 16],
    }
}

fn random_bytes(chance: &mut Chance) -> [u8; 16] {
    std::array::from_fn(|_| chance.next() as u8)
}

fn random_peer(chance: &mut Chance) -> Peer {
    Peer {
        protocol: LINK_PROTOCOL_LEAST + chance.below(9) as u16,
        herd: HerdId(random_bytes(chance)),
        node: node(chance.next() as u32 | 1),
        incarnation: chance.next(),
        loops: chance.next() as u16 | 1,
        link: chance.next() as u16,
        epoch: chance.next() as u32,
        revision: chance.next(),
        nonce: random_bytes(chance),
    }
}

fn parse(bytes: &[u8]) -> Frame<'_> {
    parse_frame(bytes).expect("parses").expect("is whole")
}

/// What a frame of the three says, to be changed.
#[derive(Clone, Debug, Default)]
struct Said {
    peer: Option<Vec<u8>>,
    proof: Option<[u8; PROOF_BYTES]>,
}

impl Said {
    fn of(frame: &[u8]) -> Self {
        let fields = parse(frame).fields().expect("fields");
        Self { peer: fields.peer.map(<[u8]>::to_vec), proof: fields.proof.copied() }
    }

    fn fields(&self) -> Fields<'_> {
        Fields { peer: self.peer.as_deref(), proof: self.proof.as_ref(), ..none() }
    }
}

/// What the accepting side makes of the dialing one, and it of that; each frame may be changed on its way, and is told
/// by its number.
fn open(
    (dialer, secret, to): (Peer, Secret, u32),
    acceptor: Peer,
    change: impl Fn(usize, &mut Said),
) -> Result<(Peer, Peer), LinkError> {
    let sent = |number: usize, frame: &[u8]| {
        let mut said = Said::of(frame);
        change(number, &mut said);
        said
    };
    let (mut hello, mut welcome, mut proof) = (Vec::new(), Vec::new(), Vec::new());
    let dialing = Dialing::new(dialer, node(to), secret);
    dialing.hello(&mut hello);
    let accepting = Accepting::new(&sent(0, &hello).fields(), &acceptor, SECRET)?;
    accepting.welcome(&mut welcome);
    let theirs = dialing.welcomed(&sent(1, &welcome).fields(), &mut proof)?;
    Ok((accepting.proved(&sent(2, &proof).fields())?, theirs))
}

fn as_it_is(_: usize, _: &mut Said) {}

#[test]
fn the_three_frames_have_their_golden_bytes() {
    let (mut hello, mut welcome, mut proof) = (Vec::new(), Vec::new(), Vec::new());
    let dialing = Dialing::new(peer(1), node(2), SECRET);
    dialing.hello(&mut hello);
    assert_eq!(hex(&Said::of(&hello).peer.expect("a peer")), DIALER);
    let me = Peer { link: 0, ..peer(2) };
    let accepting = Accepting::new(&Said::of(&hello).fields(), &me, SECRET).expect("all is well");
    assert_eq!(accepting.claimed(), &peer(1));
    accepting.welcome(&mut welcome);
    assert_eq!(hex(&Said::of(&welcome).proof.expect("a proof")), PROOF_OF_ACCEPTOR);
    let other = dialing.welcomed(&Said::of(&welcome).fields(), &mut proof).expect("all is well");
    assert_eq!(other, peer(2), "of the link that was dialed");
    assert_eq!([0, 1, 2, 5].map(|link| other.loop_of(link)), [0, 1, 0, 1]);
    assert_eq!(hex(&Said::of(&proof).proof.expect("a proof")), PROOF_OF_DIALER);
    assert_eq!(accepting.proved(&Said::of(&proof).fields()), Ok(peer(1)));
    let kinds = [&hello, &welcome, &proof].map(|frame| parse(frame).header().kind);
    assert_eq!(kinds, [Kind::Hello, Kind::Welcome, Kind::Hello]);
    for frame in [hello, welcome, proof] {
        assert!(!frame.windows(16).any(|bytes| bytes == SECRET.0), "the secret stays at home");
    }
}

#[test]
fn every_way_to_be_refused_has_its_own_error() {
    let refused = |dialer: Peer, secret: [u8; 16], to: u32| {
        let error = open((dialer, Secret(secret), to), peer(2), as_it_is).expect_err("refused");
        assert!(!error.text.is_empty() && error.text.len() < ERROR_TEXT_MAX_BYTES, "{error}");
        error.kind
    };
    assert!(open((peer(1), SECRET, 2), peer(2), as_it_is).is_ok());
    assert_eq!(refused(Peer { herd: HerdId([7; 16]), ..peer(1) }, SECRET.0, 2), LinkErrorKind::OtherHerd);
    assert_eq!(refused(Peer { protocol: 0, ..peer(1) }, SECRET.0, 2), LinkErrorKind::OlderProtocol);
    assert_eq!(refused(peer(1), [7; 16], 2), LinkErrorKind::WrongSecret);
    assert_eq!(refused(peer(1), SECRET.0, 3), LinkErrorKind::OtherNode);
    assert_eq!(refused(peer(2), SECRET.0, 2), LinkErrorKind::Itself);
    assert_eq!(refused(Peer { link: 2, ..peer(1) }, SECRET.0, 2), LinkErrorKind::BadHello);
    assert_eq!(refused(Peer { loops: 0, ..peer(1) }, SECRET.0, 2), LinkErrorKind::BadHello);
    let another_link = |number, said: &mut Said| {
        if number == 1 {
            said.peer = Some(Peer { link: 0, ..peer(2) }.encode().to_vec());
        }
    };
    let error = open((peer(1), SECRET, 2), peer(2), another_link).expect_err("refused");
    assert_eq!(error.kind, LinkErrorKind::BadHello);
    let bare = open((peer(1), SECRET, 2), peer(2), |_, said| said.peer = None).expect_err("a client's hello");
    assert_eq!(bare.kind, LinkErrorKind::BadHello);
}

#[test]
fn a_node_of_a_later_protocol_is_understood_and_spoken_with_in_the_older_one() {
    let later = |number, said: &mut Said| {
        if number == 0
            && let Some(peer) = &mut said.peer
        {
            peer.extend(b"what later versions add");
        }
    };
    let newer = Peer { protocol: 3, ..peer(1) };
    let accepting =
        Accepting::new(&Said { peer: Some(newer.encode().to_vec()), proof: None }.fields(), &peer(2), SECRET);
    assert_eq!(accepting.expect("understood").claimed().spoken_with(&peer(2)), 1);
    // What was added is part of what is proved: here it was added on the way.
    let error = open((newer, SECRET, 2), peer(2), later).expect_err("not what was said");
    assert_eq!(error.kind, LinkErrorKind::WrongSecret);
}

#[test]
fn what_is_changed_on_its_way_is_never_believed() {
    for number in 0..3 {
        for bit in 0..8 * PEER_BYTES {
            let change = |n: usize, said: &mut Said| {
                let bytes = said.peer.as_deref_mut().unwrap_or_default();
                if n == number
                    && let Some(byte) = bytes.get_mut(bit / 8)
                {
                    *byte ^= 1 << (bit % 8);
                }
            };
            assert_eq!(open((peer(1), SECRET, 2), peer(2), change).is_err(), number < 2, "bit {bit} of {number}");
        }
        for bit in 0..8 * PROOF_BYTES {
            let change = |n: usize, said: &mut Said| {
                if n == number
                    && let Some(proof) = &mut said.proof
                {
                    proof[bit / 8] ^= 1 << (bit % 8);
                }
            };
            assert_eq!(open((peer(1), SECRET, 2), peer(2), change).is_err(), number > 0, "bit {bit} of {number}");
        }
    }
}

#[test]
fn a_proof_is_of_no_use_to_anybody_else_nor_a_second_time() {
    let seen = std::cell::RefCell::new(Vec::new());
    open((peer(1), SECRET, 2), peer(2), |_, said| seen.borrow_mut().push(said.clone())).expect("all is well");
    let proofs: Vec<_> = seen.borrow().iter().filter_map(|said| said.proof).collect();
    assert_eq!(proofs.len(), 2);
    for proof in proofs {
        // Sent back to who made it.
        let mirrored = open((peer(1), SECRET, 2), peer(2), |number, said| {
            if number > 0 {
                said.proof = Some(seen.borrow()[1].proof.expect("the acceptor's"));
            }
        });
        assert_eq!(mirrored.expect_err("a mirror").kind, LinkErrorKind::WrongSecret);
        // Shown again, to a node that has another nonce by now.
        let again = Peer { nonce: [9; 16], ..peer(2) };
        let replayed = open((peer(1), SECRET, 2), again, |number, said| {
            if number > 0 {
                said.proof = Some(proof);
            }
        });
        assert_eq!(replayed.expect_err("played again").kind, LinkErrorKind::WrongSecret);
    }
}

#[test]
fn peers_read_back_and_any_bytes_are_taken_or_refused() {
    let chance = &mut Chance(1);
    for _ in 0..2_000 {
        let peer = random_peer(chance);
        assert_eq!(Peer::decode(&peer.encode()), Ok(peer));
        let cut = chance.index(PEER_BYTES);
        let kind = Peer::decode(&peer.encode()[..cut]).expect_err("cut short").kind;
        assert_eq!(kind, LinkErrorKind::BadHello, "{cut} bytes");
        let any: Vec<u8> = (0..chance.below(80)).map(|_| chance.next() as u8).collect();
        if let Ok(peer) = Peer::decode(&any) {
            assert_eq!(peer.encode(), any[..PEER_BYTES]);
        }
    }
}

#[test]
fn a_goodbye_tells_why() {
    for (code, kind) in (1..).zip(LinkErrorKind::ALL) {
        let (error, mut out) = (LinkError::new(kind, format!("because of {code}")), Vec::new());
        error.goodbye(&mut out);
        let frame = parse(&out);
        assert_eq!((frame.header().kind, frame.header().code), (Kind::Goodbye, code));
        assert_eq!(LinkError::of_goodbye(frame.header(), &frame.fields().expect("fields")), Some(error));
    }
    let other = Header::new(Kind::Goodbye);
    assert_eq!(LinkError::of_goodbye(&other, &Fields::failed("stopping")), None);
}
