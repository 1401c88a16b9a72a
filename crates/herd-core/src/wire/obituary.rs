//! How a node's witness tells that the node's process has ended (PROTOCOL.md §1.9.1): as a node asks to join, over a
//! connection of its own, with the proof of both sides that they know the herd's secret. Pure: random numbers are
//! handed in.
//!
//! | witness | | any member |
//! |---|---|---|
//! | [`Telling::hello`]: which life of which node is over, my nonce | → | [`Hearing::new`] |
//! | [`Telling::welcomed`]: does it know the secret? | ← | [`Hearing::welcome`]: my herd, my nonce, my proof |
//! | a hello with my proof | → | [`Hearing::proved`]: the warden is told |
//! | [`is_heard`]; or an error | ← | [`encode_heard`]; or [`LinkError::goodbye`] |
//!
//! Callers: witnesses of nodes, and sessions of those that are told.

use super::LINK_PROTOCOL;
use super::bytes::Reader;
use super::fields::{Between, Fields};
use super::header::Kind;
use super::hello::{
    LinkError, LinkErrorKind, PROOF_BYTES, Prover, Secret, check_protocol, hex, none, opening, write_frame,
};
use super::join::{GREETING_BYTES, Greeting, bad, node, said};
use crate::place::{HerdId, Life};

/// Bytes of what is told; those of later versions may be longer.
const TOLD_BYTES: usize = 48;

fn encode(herd: HerdId, life: Life, nonce: &[u8; 16]) -> [u8; TOLD_BYTES] {
    let mut out = [0; TOLD_BYTES];
    out[..4].copy_from_slice(&u32::from(LINK_PROTOCOL).to_le_bytes());
    out[4..20].copy_from_slice(nonce);
    out[20..36].copy_from_slice(&herd.0);
    out[36..40].copy_from_slice(&life.node.0.get().to_le_bytes());
    out[40..].copy_from_slice(&life.incarnation.to_le_bytes());
    out
}

/// The herd and the life of which is told. The protocol is judged first: what follows may look otherwise in another.
fn decode(bytes: &[u8]) -> Result<(HerdId, Life), LinkError> {
    let mut rest = Reader(bytes);
    check_protocol(rest.u32().ok_or_else(bad)?)?;
    let read = |rest: &mut Reader<'_>| {
        let (_nonce, herd) = (rest.fixed::<16>()?, HerdId(rest.fixed()?));
        Some((herd, Life { node: node(rest)?, incarnation: rest.u64()? }))
    };
    read(&mut rest).ok_or_else(bad)
}

fn told<'a>(fields: &Fields<'a>) -> Option<&'a [u8]> {
    match fields.between {
        Some(Between::Obituary(bytes)) => Some(bytes),
        _ => None,
    }
}

/// Whether a first hello tells that a node's process has ended; or a welcome that this was heard.
pub fn is_obituary(fields: &Fields<'_>) -> bool {
    told(fields).is_some()
}

fn check_herd(own: HerdId, theirs: HerdId) -> Result<(), LinkError> {
    if own == theirs {
        return Ok(());
    }
    let text = format!("this is of herd {}, and the peer's herd is {}", hex(&own.0), hex(&theirs.0));
    Err(LinkError::new(LinkErrorKind::OtherHerd, text))
}

/// The witness, from its hello to its proof.
pub struct Telling {
    said: [u8; TOLD_BYTES],
    herd: HerdId,
    secret: Secret,
}

impl Telling {
    /// With a nonce that is random and never used again.
    pub fn new(herd: HerdId, life: Life, nonce: [u8; 16], secret: Secret) -> Self {
        Self { said: encode(herd, life, &nonce), herd, secret }
    }

    /// Appends the hello.
    pub fn hello(&self, out: &mut Vec<u8>) {
        write_frame(out, Kind::Hello, &Fields { between: Some(Between::Obituary(&self.said)), ..opening() });
    }

    /// Takes the welcome of a member, and appends the proof of this side.
    pub fn welcomed(&self, welcome: &Fields<'_>, out: &mut Vec<u8>) -> Result<(), LinkError> {
        let theirs = said(welcome);
        let greeting = Greeting::decode(theirs)?;
        self.secret.check(&self.secret.proof(Prover::Hearer, &self.said, theirs), welcome)?;
        check_herd(self.herd, greeting.herd)?;
        let proof = self.secret.proof(Prover::Witness, &self.said, theirs);
        write_frame(out, Kind::Hello, &Fields { proof: Some(&proof), ..none() });
        Ok(())
    }
}

/// The member that is told, from the hello to the other side's proof.
pub struct Hearing {
    life: Life,
    secret: Secret,
    greeting: [u8; GREETING_BYTES],
    proof: [u8; PROOF_BYTES],
    expected: [u8; PROOF_BYTES],
}

impl Hearing {
    /// Takes the hello of a witness.
    pub fn new(hello: &Fields<'_>, me: &Greeting, secret: Secret) -> Result<Self, LinkError> {
        let theirs = told(hello).ok_or_else(bad)?;
        let (herd, life) = decode(theirs)?;
        check_herd(me.herd, herd)?;
        let greeting = me.encode();
        let [proof, expected] = [Prover::Hearer, Prover::Witness].map(|it| secret.proof(it, theirs, &greeting));
        Ok(Self { life, secret, greeting, proof, expected })
    }

    /// Appends the welcome.
    pub fn welcome(&self, out: &mut Vec<u8>) {
        let between = Some(Between::Join(&self.greeting));
        write_frame(out, Kind::Welcome, &Fields { between, proof: Some(&self.proof), ..opening() });
    }

    /// Takes the second hello. Gives the life that is over.
    pub fn proved(&self, hello: &Fields<'_>) -> Result<Life, LinkError> {
        self.secret.check(&self.expected, hello).map(|()| self.life)
    }
}

/// Appends the welcome that says that the warden has heard it.
pub fn encode_heard(out: &mut Vec<u8>) {
    write_frame(out, Kind::Welcome, &Fields { between: Some(Between::Obituary(b"")), ..none() });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::place::NodeId;
    use crate::wire::parse_frame;
    use std::num::NonZeroU32;

    const HERD: HerdId = HerdId(*b"the herd's id ..");
    const SECRET: Secret = Secret(*b"sixteen bytes ..");

    fn life() -> Life {
        Life { node: NodeId(NonZeroU32::new(7).expect("not 0")), incarnation: 3 }
    }

    fn greeting(herd: HerdId) -> Greeting {
        Greeting { protocol: 1, herd, node: NodeId(NonZeroU32::MIN), nonce: [2; 16] }
    }

    fn told_to(herd: HerdId, secret: Secret, telling: &Telling) -> Result<Life, LinkError> {
        let (mut hello, mut welcome, mut proof) = (Vec::new(), Vec::new(), Vec::new());
        telling.hello(&mut hello);
        let fields = |bytes: &Vec<u8>| parse_frame(bytes).expect("parses").expect("is whole").fields().is_ok();
        assert!(fields(&hello));
        let hello = parse_frame(&hello).expect("parses").expect("is whole");
        let hearing = Hearing::new(&hello.fields().expect("fields"), &greeting(herd), secret)?;
        hearing.welcome(&mut welcome);
        let welcome = parse_frame(&welcome).expect("parses").expect("is whole");
        telling.welcomed(&welcome.fields().expect("fields"), &mut proof)?;
        let proof = parse_frame(&proof).expect("parses").expect("is whole");
        hearing.proved(&proof.fields().expect("fields"))
    }

    #[test]
    fn who_knows_the_secret_is_heard() {
        let telling = Telling::new(HERD, life(), [1; 16], SECRET);
        assert_eq!(told_to(HERD, SECRET, &telling), Ok(life()));
        let kind = |told: Result<Life, LinkError>| told.expect_err("refused").kind;
        assert_eq!(kind(told_to(HERD, Secret([0; 16]), &telling)), LinkErrorKind::WrongSecret);
        assert_eq!(kind(told_to(HerdId([9; 16]), SECRET, &telling)), LinkErrorKind::OtherHerd);
        let mut heard = Vec::new();
        encode_heard(&mut heard);
        let heard = parse_frame(&heard).expect("parses").expect("is whole");
        assert!(is_obituary(&heard.fields().expect("fields")) && heard.header().kind == Kind::Welcome);
    }

    /// What proves a join, or opens a link, proves no obituary, and none of another life.
    #[test]
    fn a_proof_is_good_for_what_it_was_made_for_alone() {
        let telling = Telling::new(HERD, life(), [1; 16], SECRET);
        let mut hello = Vec::new();
        telling.hello(&mut hello);
        let hello = parse_frame(&hello).expect("parses").expect("is whole");
        let hearing = Hearing::new(&hello.fields().expect("fields"), &greeting(HERD), SECRET).expect("a good hello");
        for prover in [Prover::Acceptor, Prover::Dialer, Prover::Member, Prover::Joiner, Prover::Hearer] {
            let proof = SECRET.proof(prover, &telling.said, &hearing.greeting);
            assert!(hearing.proved(&Fields { proof: Some(&proof), ..none() }).is_err());
        }
        let other = encode(HERD, Life { incarnation: 4, ..life() }, &[1; 16]);
        let proof = SECRET.proof(Prover::Witness, &other, &hearing.greeting);
        assert!(hearing.proved(&Fields { proof: Some(&proof), ..none() }).is_err());
        assert!(hearing.proved(&none()).is_err());
    }

    #[test]
    fn what_is_cut_or_of_no_node_is_no_obituary() {
        let said = encode(HERD, life(), &[1; 16]);
        assert_eq!(decode(&said), Ok((HERD, life())));
        let later = [&said[..], b"more"].concat();
        assert_eq!(decode(&later), Ok((HERD, life())), "a later version says more");
        assert!((0..said.len()).all(|bytes| decode(&said[..bytes]).is_err()));
        let mut nobody = said;
        nobody[36..40].fill(0);
        assert!(decode(&nobody).is_err());
        let mut old = said;
        old[..4].fill(0);
        assert_eq!(decode(&old).expect_err("refused").kind, LinkErrorKind::OlderProtocol);
    }
}
