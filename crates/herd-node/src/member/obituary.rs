//! What a witness is told, and how it tells the end of its node (PROTOCOL.md §1.9.1). It runs in a process of its own,
//! which does nothing else, and blocks.
//!
//! It is told in lines: first whose witness it is ([`Charge`]), then, again and again, where the warden's node is, and
//! perhaps that the node's end is in good order. The secret comes so, and stands nowhere where others could read it.

use super::join::{Talk, Tried, dial, named, unexpected};
use herd_core::limits::{
    JOIN_HOPS_MAX, OBITUARY_AGAIN_MAX_MS, OBITUARY_AGAIN_MS, OBITUARY_ASK_MS, OBITUARY_LINE_MAX_BYTES,
};
use herd_core::place::{HerdId, Life, NodeId};
use herd_core::warden::Hex;
use herd_core::wire::{Fields, Frame, Kind, Nonces, Secret, Telling, is_obituary};
use std::time::{Duration, Instant};

/// Whose witness it is, and what it proves with.
#[derive(Clone)]
pub(super) struct Charge {
    pub(super) herd: HerdId,
    pub(super) life: Life,
    pub(super) secret: Secret,
}

impl Charge {
    /// The node's end is in good order.
    pub(super) const OVER: &str = "over\n";

    /// The first line.
    pub(super) fn line(&self) -> String {
        let [herd, secret] = [self.herd.0, self.secret.0].map(|bytes| String::from(Hex(bytes)));
        format!("of {herd} {} {} {secret}\n", self.life.node.0, self.life.incarnation)
    }

    fn of<'a>(mut words: impl Iterator<Item = &'a str>) -> Option<Self> {
        let hex = |word: &str| Hex::try_from(word.to_owned()).ok().map(|hex| hex.0);
        let herd = HerdId(hex(words.next()?)?);
        let life = Life { node: NodeId(words.next()?.parse().ok()?), incarnation: words.next()?.parse().ok()? };
        Some(Self { herd, life, secret: Secret(hex(words.next()?)?) })
    }

    /// The line that tells where the warden's node is. An address is a host and a port: there is no space in it.
    pub(super) fn at(addresses: &[String]) -> String {
        format!("at {}\n", addresses.join(" "))
    }
}

/// What a witness has been told so far.
#[derive(Default)]
pub struct Told {
    charge: Option<Charge>,
    addresses: Vec<String>,
    is_over: bool,
    /// Of a line whose end is to come.
    part: Vec<u8>,
}

impl Told {
    /// Takes what came next.
    pub fn take(&mut self, bytes: &[u8]) {
        for byte in bytes {
            match byte {
                b'\n' => self.line(),
                byte if self.part.len() < OBITUARY_LINE_MAX_BYTES => self.part.push(*byte),
                _ => {}
            }
        }
    }

    fn line(&mut self) {
        let line = String::from_utf8(std::mem::take(&mut self.part)).unwrap_or_default();
        let mut words = line.split(' ');
        match words.next() {
            Some("of") => self.charge = Charge::of(words),
            Some("at") => self.addresses = words.map(str::to_owned).collect(),
            Some("over") => self.is_over = true,
            _ => {}
        }
    }

    /// Whether the node itself says that it is over: its process ends soon, and serves nobody until then.
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// The node's process has ended: tells the warden so, again and again until that is heard, or it is too late.
    /// `random`: drawn for this, and for nothing else.
    pub fn tell(&self, random: [u8; 16], until: impl Fn() -> Instant) {
        let Some(charge) = &self.charge else { return };
        let (nonces, mut rest_ms) = (Nonces::new(random), OBITUARY_AGAIN_MS);
        while Instant::now() < until() {
            if self.addresses.iter().any(|address| charge.tell(address, &nonces, &until).is_ok()) {
                return;
            }
            std::thread::sleep(Duration::from_millis(rest_ms));
            rest_ms = (2 * rest_ms).min(OBITUARY_AGAIN_MAX_MS);
        }
    }
}

impl Charge {
    /// Tells the node at an address, or the one that it names as the warden's.
    fn tell(&self, address: &str, nonces: &Nonces, until: &impl Fn() -> Instant) -> Result<(), Tried> {
        let mut at = address.to_owned();
        for _ in 0..JOIN_HOPS_MAX {
            match self.exchange(&at, nonces.next(), until()) {
                Err(Tried::Elsewhere(to)) => at = named(&to).0.to_owned(),
                done => return done,
            }
        }
        Err(Tried::Elsewhere(at))
    }

    fn exchange(&self, address: &str, nonce: [u8; 16], last: Instant) -> Result<(), Tried> {
        let until = last.min(Instant::now() + Duration::from_millis(OBITUARY_ASK_MS));
        let mut talk = Talk::new(address, dial(address, until)?, until);
        let (telling, mut out) = (Telling::new(self.herd, self.life, nonce, self.secret), Vec::new());
        telling.hello(&mut out);
        talk.say(&out)?;
        out.clear();
        talk.hear(|frame, fields| Ok(telling.welcomed(welcome(frame, fields)?, &mut out)?))?;
        talk.say(&out)?;
        talk.hear(|frame, fields| match is_obituary(welcome(frame, fields)?) {
            true => Ok(()),
            false => Err(unexpected().into()),
        })
    }
}

fn welcome<'f, 'a>(frame: &Frame<'_>, fields: &'f Fields<'a>) -> Result<&'f Fields<'a>, Tried> {
    if frame.header().kind == Kind::Welcome { Ok(fields) } else { Err(unexpected().into()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::num::NonZeroU32;

    #[test]
    fn what_a_witness_is_told_comes_in_any_pieces_and_the_last_word_holds() {
        let life = Life { node: NodeId(NonZeroU32::new(7).expect("not 0")), incarnation: 3 };
        let charge = Charge { herd: HerdId([0xab; 16]), life, secret: Secret([0xcd; 16]) };
        let text = [charge.line(), Charge::at(&["a:1".into(), "b:2".into()]), Charge::at(&["c:3".into()])].concat();
        for piece in [1, 3, 1_000] {
            let mut told = Told::default();
            text.as_bytes().chunks(piece).for_each(|bytes| told.take(bytes));
            let known = told.charge.as_ref().expect("it was told whose it is");
            assert_eq!((known.herd, known.life, known.secret.0), (charge.herd, life, [0xcd; 16]));
            assert_eq!((told.addresses.join(" "), told.is_over()), ("c:3".into(), false));
            told.take(Charge::OVER.as_bytes());
            assert!(told.is_over());
        }
    }

    #[test]
    fn who_was_not_told_whose_witness_it_is_says_nothing() {
        let mut told = Told::default();
        told.take(b"of 12 7 3 34\nat 127.0.0.1:1\n\xff\n\nwhat else\n");
        told.take(&[b'x'; 10 * OBITUARY_LINE_MAX_BYTES]);
        assert!(told.charge.is_none() && told.part.len() == OBITUARY_LINE_MAX_BYTES);
        told.tell([0; 16], || panic!("it does not begin"));
    }
}
