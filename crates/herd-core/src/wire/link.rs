//! What both ends of a link between two nodes keep of it (PROTOCOL.md §1.8), besides their requests: which link is the
//! present one, what it owes, and whether the other node is still there. Pure: time is handed in.
//!
//! * A link is known by the node at its other end and its number. A new one takes the place of the old one ([`Links`]),
//!   whose unread bytes must not be served any more: a prepare could be served behind its abort. Which is the newer one
//!   the hellos tell, not the proofs: the network may keep a proof until the node that dialed has dropped its link and
//!   dialed anew, but it never said a hello before it dropped the link of the one before.
//! * A link is read always, or two nodes with much to send to each other would wait for ever. So what it owes is
//!   bounded where a client's request that is handed on is taken, in open requests and in unsent bytes: beyond that it
//!   is refused as busy. What nodes say to each other for themselves (verbs from [`VERB_BEAT`] on), and replies, are
//!   always taken: an abort that is refused would hold up its group for ever. That these and refusals are bounded is up
//!   to who asks: it has at most [`LINK_OPS_MAX`](crate::limits::LINK_OPS_MAX) requests open.
//! * Each end lets the other one hear from it ([`Beats`]).
//!
//! Callers: link sessions of nodes, one [`Links`] a loop.

use super::hello::{LinkError, LinkErrorKind, Peer};
use crate::limits::{LINK_BEAT_MS, LINK_SILENCE_MS};
use crate::place::NodeId;
use siphasher::sip128::{Hasher128, SipHasher24};
use std::collections::BTreeMap;
use std::hash::Hasher;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Verb of a beat, the request by which a node lets the other end of a link hear from it. It has no body; it tells
/// which map its sender has, and so does its reply ([`super::MapMark::tell`]).
pub const VERB_BEAT: u8 = 16;

/// Which of the links to a node a session is, one after the other under the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkId {
    /// The node at the other end.
    pub node: NodeId,
    /// The link's number between the two.
    pub link: u16,
    generation: u64,
}

impl LinkId {
    /// Rises with each link of the loop that it belongs to.
    pub fn generation(self) -> u64 {
        self.generation
    }
}

/// The links of one loop that are there.
#[derive(Default)]
pub struct Links {
    nodes: BTreeMap<NodeId, Known>,
    generations: u64,
}

struct Known {
    incarnation: u64,
    /// The last generation of each link that was up, by number, and whether it is.
    links: BTreeMap<u16, (u64, bool)>,
}

impl Links {
    /// A generation for a link that is dialed now, or whose hello came now.
    pub fn begin(&mut self) -> u64 {
        self.generations += 1;
        self.generations
    }

    /// Takes the link of the generation `begun`, whose other end has proved itself. From now on none of that number
    /// that began before, and none of an older incarnation of the node, is the present one. An older incarnation than
    /// is known has no link any more, nor has one that began before the last.
    pub fn renew(&mut self, peer: &Peer, begun: u64) -> Result<LinkId, LinkError> {
        let new = || Known { incarnation: peer.incarnation, links: BTreeMap::new() };
        let known = self.nodes.entry(peer.node).or_insert_with(new);
        if peer.incarnation < known.incarnation {
            let text = format!("node {} has been started anew since this process of it", peer.node.0);
            return Err(LinkError::new(LinkErrorKind::OlderIncarnation, text));
        }
        if peer.incarnation > known.incarnation {
            *known = new();
        }
        let last = known.links.entry(peer.link).or_default();
        if begun < last.0 {
            let text = format!("a newer link {} of node {} is there", peer.link, peer.node.0);
            return Err(LinkError::new(LinkErrorKind::BadHello, text));
        }
        *last = (begun, true);
        Ok(LinkId { node: peer.node, link: peer.link, generation: begun })
    }

    /// Whether what comes over this link is to be served: no newer one has taken its place.
    #[inline]
    pub fn is_current(&self, id: LinkId) -> bool {
        let known = self.nodes.get(&id.node);
        known.and_then(|known| known.links.get(&id.link)).is_some_and(|last| *last == (id.generation, true))
    }

    /// The link is closed. Its generation and the incarnation stay known.
    pub fn close(&mut self, id: LinkId) {
        if self.is_current(id)
            && let Some(known) = self.nodes.get_mut(&id.node)
        {
            known.links.insert(id.link, (id.generation, false));
        }
    }
}

/// Nonces of a process: of random bytes that it drew at its start, so that nobody outside can guess one, and none comes
/// twice.
pub struct Nonces {
    random: [u8; 16],
    given: AtomicU64,
}

impl Nonces {
    /// Of these random bytes.
    pub fn new(random: [u8; 16]) -> Self {
        Self { random, given: AtomicU64::new(0) }
    }

    /// The next one.
    pub fn next(&self) -> [u8; 16] {
        let mut hasher = SipHasher24::new_with_key(&self.random);
        hasher.write(&self.given.fetch_add(1, Relaxed).to_le_bytes());
        hasher.finish128().as_bytes()
    }
}

/// What a link asks for, by the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beat {
    /// Nothing yet.
    Rest,
    /// A beat is to be sent.
    Send,
    /// Nothing was heard for too long: the link is lost.
    Lost,
}

/// When one end of a link was heard of, and spoke, last.
#[derive(Clone, Copy, Debug)]
pub struct Beats {
    heard_ms: u64,
    sent_ms: u64,
}

impl Beats {
    /// A link that is up since now.
    pub fn new(now_ms: u64) -> Self {
        Self { heard_ms: now_ms, sent_ms: now_ms }
    }

    /// Bytes came.
    #[inline]
    pub fn heard(&mut self, now_ms: u64) {
        self.heard_ms = now_ms;
    }

    /// What is to be done; a beat that is asked for counts as sent.
    pub fn poll(&mut self, now_ms: u64) -> Beat {
        match () {
            () if now_ms >= self.heard_ms + LINK_SILENCE_MS => Beat::Lost,
            () if now_ms >= self.sent_ms + LINK_BEAT_MS => {
                self.sent_ms = now_ms;
                Beat::Send
            }
            () => Beat::Rest,
        }
    }

    /// When to ask again.
    pub fn due_ms(&self) -> u64 {
        (self.sent_ms + LINK_BEAT_MS).min(self.heard_ms + LINK_SILENCE_MS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::place::HerdId;
    use crate::wire::LINK_PROTOCOL;
    use std::num::NonZeroU32;

    fn peer(node: u32, incarnation: u64, link: u16) -> Peer {
        Peer {
            protocol: LINK_PROTOCOL,
            herd: HerdId([1; 16]),
            node: NodeId(NonZeroU32::new(node).expect("not 0")),
            incarnation,
            loops: 4,
            link,
            epoch: 1,
            revision: 1,
            nonce: [2; 16],
        }
    }

    #[test]
    fn a_link_takes_the_place_of_the_one_before_and_of_no_other() {
        let mut links = Links::default();
        let mut renew = |peer: &Peer| {
            let begun = links.begin();
            links.renew(peer, begun)
        };
        let old = renew(&peer(1, 7, 0)).expect("the first");
        let others = [peer(1, 7, 1), peer(2, 7, 0)].map(|peer| renew(&peer).expect("another link"));
        let new = renew(&peer(1, 7, 0)).expect("its successor");
        assert!(!links.is_current(old) && links.is_current(new));
        links.close(old);
        assert!(links.is_current(new) && others.iter().all(|id| links.is_current(*id)));
        links.close(new);
        assert!(!links.is_current(new));
        let (late, begun) = (links.begin(), links.begin());
        let again = links.renew(&peer(1, 7, 0), begun).expect("the third");
        assert!(links.is_current(again) && !links.is_current(old) && !links.is_current(new));
        // A proof that comes after that of a link whose hello came later, there still or not.
        for _ in 0..2 {
            assert!(links.renew(&peer(1, 7, 0), late).is_err());
            links.close(again);
        }
    }

    #[test]
    fn a_node_that_starts_anew_has_none_of_its_old_links_and_an_old_process_gets_none() {
        let mut links = Links::default();
        let mut renew = |peer: &Peer| {
            let begun = links.begin();
            links.renew(peer, begun)
        };
        let old = [0, 1].map(|link| renew(&peer(1, 7, link)).expect("the first"));
        let new = renew(&peer(1, 8, 1)).expect("a newer one");
        assert!(links.is_current(new) && !old.iter().any(|id| links.is_current(*id)));
        let begun = links.begin();
        let error = links.renew(&peer(1, 7, 1), begun).expect_err("an older one");
        assert_eq!(error.kind, LinkErrorKind::OlderIncarnation);
        links.close(new);
        assert!(links.renew(&peer(1, 7, 0), begun).is_err(), "also when the newer one has no link");
    }

    #[test]
    fn no_nonce_comes_twice_and_each_start_has_its_own() {
        let starts = [[1; 16], [2; 16]].map(Nonces::new);
        let all: std::collections::BTreeSet<_> = (0..2_000).map(|n| starts[n % 2].next()).collect();
        assert_eq!(all.len(), 2_000);
    }

    #[test]
    fn an_end_speaks_in_time_and_gives_up_who_is_silent() {
        let mut beats = Beats::new(1_000);
        assert_eq!(beats.poll(beats.due_ms() - 1), Beat::Rest);
        let mut sent = 0;
        let lost_ms = loop {
            let now_ms = beats.due_ms();
            match beats.poll(now_ms) {
                Beat::Send => sent += 1,
                Beat::Lost => break now_ms,
                Beat::Rest => panic!("it asked for this time"),
            }
        };
        assert_eq!((lost_ms, sent), (1_000 + LINK_SILENCE_MS, LINK_SILENCE_MS / LINK_BEAT_MS - 1));
        let mut beats = Beats::new(0);
        for now_ms in (0..60_000).step_by(LINK_BEAT_MS as usize) {
            assert_ne!(beats.poll(now_ms), Beat::Lost);
            beats.heard(now_ms);
        }
    }
}
