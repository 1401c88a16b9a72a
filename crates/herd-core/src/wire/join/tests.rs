//! A join from its hello to the map: golden bytes, every way to be refused, and nothing that was changed on its way is
//! believed.

use super::*;
use crate::chance::Chance;
use crate::limits::ERROR_TEXT_MAX_BYTES;
use crate::wire::{Accepting, Dialing, FLAG_MORE, Frame, Peer, parse_frame};

const SECRET: Secret = Secret(*b"sixteen bytes ..");
const NONCE: [u8; 16] = [1; 16];

// Made by another program from PROTOCOL.md and the paper of SipHash.
const HELLO: &str = "\
    01000000010101010101010101010101010101010000000000000000000000000000000000746865206964656e746974\
    792069732e7468652070726f636573732069732e2e0807060504030201026e3202683200020d31302e302e302e323a37\
    37303007756e69783a2f73";
const PROOF_OF_MEMBER: &str = "5221e66b1bb36a57ea584ce66c64eb63";
const PROOF_OF_JOINER: &str = "0c963bc76752c7b43be74fd5a0c904ee";

fn id(number: u32) -> NodeId {
    NodeId(NonZeroU32::new(number).expect("not 0"))
}

fn join() -> Join {
    Join {
        herd: None,
        protocol: 1,
        identity: Identity(*b"the identity is."),
        process: *b"the process is..",
        name: "n2".into(),
        addresses: vec!["10.0.0.2:7700".into(), "unix:/s".into()],
        host: "h2".into(),
        rack: String::new(),
        memory_bytes: 0x0102_0304_0506_0708,
        evict: false,
        moved: None,
    }
}

fn greeting() -> Greeting {
    Greeting { protocol: 1, herd: HerdId(*b"the herd's id .."), node: id(1), nonce: [2; 16] }
}

fn text(chance: &mut Chance, most: u64) -> String {
    (0..chance.below(most + 1)).map(|_| char::from(b'a' + chance.below(26) as u8)).collect()
}

fn random_join(chance: &mut Chance) -> Join {
    let bytes = |chance: &mut Chance| std::array::from_fn(|_| chance.next() as u8);
    Join {
        herd: (chance.below(2) == 1).then(|| HerdId(bytes(chance))),
        protocol: 1 + chance.below(9) as u32,
        identity: Identity(bytes(chance)),
        process: bytes(chance),
        name: text(chance, 255),
        addresses: (0..chance.below(9)).map(|_| text(chance, 255)).collect(),
        host: text(chance, 255),
        rack: text(chance, 3),
        memory_bytes: chance.next(),
        evict: chance.below(2) == 1,
        moved: (chance.below(2) == 1).then(|| crate::warden::MoveId(bytes(chance))),
    }
}

fn parse(bytes: &[u8]) -> Frame<'_> {
    parse_frame(bytes).expect("parses").expect("is whole")
}

/// What a frame of the three says, to be changed.
#[derive(Clone, Debug, Default)]
struct Told {
    said: Option<Vec<u8>>,
    proof: Option<[u8; PROOF_BYTES]>,
}

impl Told {
    fn of(frame: &[u8]) -> Self {
        let fields = parse(frame).fields().expect("fields");
        let said = Some(said(&fields)).filter(|said| !said.is_empty());
        Self { said: said.map(<[u8]>::to_vec), proof: fields.proof.copied() }
    }

    fn fields(&self) -> Fields<'_> {
        Fields { between: self.said.as_deref().map(Between::Join), proof: self.proof.as_ref(), ..none() }
    }
}

/// What both sides make of each other; each frame may be changed on its way, and is told by its number.
fn enter(
    (join, secret): (&Join, Secret),
    member: &Greeting,
    change: impl Fn(usize, &mut Told),
) -> Result<(Join, Greeting), LinkError> {
    let sent = |number: usize, frame: &[u8]| {
        let mut told = Told::of(frame);
        change(number, &mut told);
        told
    };
    let (mut hello, mut welcome, mut proof) = (Vec::new(), Vec::new(), Vec::new());
    let joining = Joining::new(join, NONCE, secret)?;
    joining.hello(&mut hello);
    let admitting = Admitting::new(&sent(0, &hello).fields(), member, SECRET)?;
    admitting.welcome(&mut welcome);
    let theirs = joining.welcomed(&sent(1, &welcome).fields(), &mut proof)?;
    Ok((admitting.proved(&sent(2, &proof).fields())?, theirs))
}

fn as_it_is(_: usize, _: &mut Told) {}

#[test]
fn the_three_frames_have_their_golden_bytes() {
    let (mut hello, mut welcome, mut proof) = (Vec::new(), Vec::new(), Vec::new());
    let joining = Joining::new(&join(), NONCE, SECRET).expect("within the limits");
    joining.hello(&mut hello);
    assert!(wants_in(&parse(&hello).fields().expect("fields")));
    assert_eq!(hex(&Told::of(&hello).said.expect("a join")), HELLO);
    let admitting = Admitting::new(&Told::of(&hello).fields(), &greeting(), SECRET).expect("all is well");
    admitting.welcome(&mut welcome);
    assert_eq!(hex(&Told::of(&welcome).proof.expect("a proof")), PROOF_OF_MEMBER);
    let member = joining.welcomed(&Told::of(&welcome).fields(), &mut proof).expect("all is well");
    assert_eq!(member, greeting());
    assert_eq!(hex(&Told::of(&proof).proof.expect("a proof")), PROOF_OF_JOINER);
    assert_eq!(admitting.proved(&Told::of(&proof).fields()), Ok(join()));
    let kinds = [&hello, &welcome, &proof].map(|frame| parse(frame).header().kind);
    assert_eq!(kinds, [Kind::Hello, Kind::Welcome, Kind::Hello]);
    for frame in [hello, welcome, proof] {
        assert!(!frame.windows(16).any(|bytes| bytes == SECRET.0), "the secret stays at home");
    }
}

#[test]
fn every_way_to_be_refused_has_its_own_error() {
    let refused = |join: Join, secret: [u8; 16], member: Greeting| {
        let error = enter((&join, Secret(secret)), &member, as_it_is).expect_err("refused");
        assert!(!error.text.is_empty() && error.text.len() < ERROR_TEXT_MAX_BYTES, "{error}");
        error.kind
    };
    let herd = Some(greeting().herd);
    assert!(enter((&Join { herd, ..join() }, SECRET), &greeting(), as_it_is).is_ok());
    let other = Some(HerdId([7; 16]));
    assert_eq!(refused(Join { herd: other, ..join() }, SECRET.0, greeting()), LinkErrorKind::OtherHerd);
    assert_eq!(refused(Join { protocol: 0, ..join() }, SECRET.0, greeting()), LinkErrorKind::OlderProtocol);
    let older = Greeting { protocol: 0, ..greeting() };
    assert_eq!(refused(join(), SECRET.0, older), LinkErrorKind::OlderProtocol);
    assert_eq!(refused(join(), [7; 16], greeting()), LinkErrorKind::WrongSecret);
    let long = |text: usize, addresses: usize| {
        let (name, addresses) = ("n".repeat(text), vec![String::new(); addresses]);
        Joining::new(&Join { name, addresses, ..join() }, NONCE, SECRET).err().map(|error| error.kind)
    };
    assert_eq!(long(255, 8), None);
    assert_eq!([long(256, 8), long(255, 9)], [Some(LinkErrorKind::BadHello); 2]);
    let client = enter((&join(), SECRET), &greeting(), |_, told| told.said = None).expect_err("a client's hello");
    assert_eq!(client.kind, LinkErrorKind::BadHello);
}

#[test]
fn what_is_changed_on_its_way_is_never_believed() {
    let flip = |bytes: Option<&mut [u8]>, bit: usize| {
        if let Some(byte) = bytes.and_then(|bytes| bytes.get_mut(bit / 8)) {
            *byte ^= 1 << (bit % 8);
        }
    };
    let length = encode_join(&join(), &NONCE).expect("within the limits").len();
    for (number, bytes) in [(0, length), (1, GREETING_BYTES)] {
        for bit in 0..8 * bytes {
            let change = |n: usize, told: &mut Told| flip(told.said.as_deref_mut().filter(|_| n == number), bit);
            assert!(enter((&join(), SECRET), &greeting(), change).is_err(), "bit {bit} of {number}");
        }
    }
    for number in 1..3 {
        for bit in 0..8 * PROOF_BYTES {
            let change = |n: usize, told: &mut Told| {
                flip(told.proof.as_mut().map(|proof| &mut proof[..]).filter(|_| n == number), bit);
            };
            let error = enter((&join(), SECRET), &greeting(), change).expect_err("changed");
            assert_eq!(error.kind, LinkErrorKind::WrongSecret, "bit {bit} of {number}");
        }
    }
    let more = |number, told: &mut Told| {
        if number < 2 {
            told.said.as_mut().expect("it says something").extend(b"what later versions add");
        }
    };
    let error = enter((&join(), SECRET), &greeting(), more).expect_err("it was added on the way");
    assert_eq!(error.kind, LinkErrorKind::WrongSecret);
}

#[test]
fn a_proof_is_of_no_use_to_anybody_else_nor_a_second_time() {
    let seen = std::cell::RefCell::new(Vec::new());
    enter((&join(), SECRET), &greeting(), |_, told| seen.borrow_mut().push(told.clone())).expect("all is well");
    let proofs: Vec<_> = seen.borrow().iter().filter_map(|told| told.proof).collect();
    assert_eq!(proofs.len(), 2);
    let with = |member: Greeting, proof| {
        let show = |number, told: &mut Told| {
            if number > 0 {
                told.proof = Some(proof);
            }
        };
        enter((&join(), SECRET), &member, show).expect_err("not its own").kind
    };
    for proof in proofs {
        assert_eq!(with(greeting(), proof), LinkErrorKind::WrongSecret, "sent back to who made it");
        assert_eq!(with(Greeting { nonce: [9; 16], ..greeting() }, proof), LinkErrorKind::WrongSecret, "again");
    }
}

#[test]
fn a_join_is_no_link_and_its_proofs_are_none_of_a_link() {
    let said = b"as long as one likes";
    let of = |prover| SECRET.proof(prover, said, said);
    let all = [Prover::Acceptor, Prover::Dialer, Prover::Member, Prover::Joiner].map(of);
    assert!((0..4).all(|i| (0..i).all(|j| all[i] != all[j])), "each side of each has its own");
    let (mut joins, mut links) = (Vec::new(), Vec::new());
    Joining::new(&join(), NONCE, SECRET).expect("within the limits").hello(&mut joins);
    let (herd, node, nonce) = (greeting().herd, id(2), NONCE);
    let peer = Peer { protocol: 1, herd, node, incarnation: 1, loops: 1, link: 0, epoch: 1, revision: 1, nonce };
    Dialing::new(peer, id(1), SECRET).hello(&mut links);
    let (joins, links) = (parse(&joins), parse(&links));
    let (joins, links) = (joins.fields().expect("fields"), links.fields().expect("fields"));
    assert!(wants_in(&joins) && !wants_in(&links));
    let me = Peer { node: id(1), ..peer };
    assert_eq!(Accepting::new(&joins, &me, SECRET).err().map(|error| error.kind), Some(LinkErrorKind::BadHello));
    let error = Admitting::new(&links, &greeting(), SECRET).err();
    assert_eq!(error.map(|error| error.kind), Some(LinkErrorKind::BadHello));
}

#[test]
fn joins_and_greetings_read_back_and_any_bytes_are_taken_or_refused() {
    let chance = &mut Chance(1);
    for _ in 0..2_000 {
        let join = random_join(chance);
        let mut bytes = encode_join(&join, &NONCE).expect("within the limits");
        assert_eq!(decode_join(&bytes), Ok(join.clone()));
        let cut = chance.index(bytes.len());
        assert_eq!(decode_join(&bytes[..cut]), Err(bad()), "{cut} bytes");
        bytes.extend(b"what later versions add");
        assert_eq!(decode_join(&bytes), Ok(join));
        let any: Vec<u8> = (0..chance.below(200)).map(|_| chance.next() as u8).collect();
        if let Ok(join) = decode_join(&any) {
            let nonce = any[4..].first_chunk().expect("it was read");
            let bits = any[20] & (EVICTS | OF_A_HERD);
            let again = encode_join(&join, nonce).expect("within the limits");
            assert_eq!((again[20], &again[37..]), (bits, &any[37..again.len()]));
        }
        if let Ok(greeting) = Greeting::decode(&any) {
            assert_eq!(greeting.encode(), any[..GREETING_BYTES]);
        }
    }
    for cut in 0..GREETING_BYTES {
        assert_eq!(Greeting::decode(&greeting().encode()[..cut]), Err(bad()));
    }
}

#[test]
fn who_is_let_in_is_told_its_number_and_the_map() {
    let (herd, hash_key) = (HerdId([3; 16]), [4; 16]);
    let joined = Joined { herd, hash_key, node: id(7), incarnation: 1 << 40 };
    let (mut out, map) = (Vec::new(), vec![5; 3_000_000]);
    encode_joined(&mut out, &joined, &map).expect("within the limits");
    let welcome = parse(&out);
    assert_eq!((welcome.header().kind, welcome.header().flags), (Kind::Welcome, FLAG_MORE));
    let fields = welcome.fields().expect("fields");
    let (told, mut assembly) = decode_joined(welcome.header(), &fields).expect("understood");
    assert_eq!(told, joined);
    let (mut rest, mut whole) = (&out[welcome.bytes()..], false);
    while !rest.is_empty() {
        let frame = parse(rest);
        assert_eq!((frame.header().kind, whole), (Kind::Data, false));
        whole = assembly.take(frame.header(), frame.body().expect("checked")).expect("goes on");
        rest = &rest[frame.bytes()..];
    }
    assert!(whole && assembly.into_bytes() == map);
    for length in [0, MAP_MAX_BYTES as u64 + 1, u64::MAX] {
        let header = Header { length, ..*welcome.header() };
        assert_eq!(decode_joined(&header, &fields).err(), Some(bad()), "{length} bytes");
    }
    let Some(Between::Joined(bytes)) = fields.between else { panic!("it tells so") };
    for cut in 0..JOINED_BYTES {
        let fields = Fields { between: Some(Between::Joined(&bytes[..cut])), ..none() };
        assert_eq!(decode_joined(welcome.header(), &fields).err(), Some(bad()), "{cut} bytes");
    }
}
