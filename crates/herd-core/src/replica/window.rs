//! The requests a group answered last, so that one that is asked again is answered from there and not done twice.
//!
//! It is kept at each member: with a prepare comes who asked and what the answer is, and [`Window::end`] is called when
//! the write is committed. So a retry finds its answer also after a take-over. What is prepared and not committed the
//! caller knows, as it has to keep that by write.
//!
//! What it has forgotten it tells by each client's own count: up to the highest of a client that it forgot, what it
//! does not know may have been done. No clock of another node decides: how long a request was under way, nobody knows.
//! Of the ids that clients have made ([`RequestId::is_own`]) there are too many clients to know each: their counts are
//! stamps that rise together, so that the highest one that was forgotten tells the same of all of them.
//! Callers: the node, at the group's part; `now_ms` is of its own steady clock.

use crate::entry::Version;
use crate::limits::{WINDOW_CLIENT_MS, WINDOW_CLIENTS_MAX, WINDOW_REQUESTS_MAX, WINDOW_RESULT_MAX_BYTES};
use std::collections::VecDeque;

/// A request, the same however often and wherever it is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId {
    /// Who asks; drawn by chance.
    pub client: u64,
    /// The client's own count: it rises.
    pub sequence: u64,
}

/// The bit of a sequence that makes it a stamp of a client, which nodes never set.
pub const OWN_STAMP: u64 = 1 << 63;

impl RequestId {
    /// Whether a client has made it, and not a node for it: then it may come to a primary by several nodes at once, and
    /// is looked for whatever who asks knows of it.
    pub fn is_own(&self) -> bool {
        self.sequence & OWN_STAMP != 0
    }
}

/// What is known of a request that is asked again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Known {
    /// It was never begun here, or was dropped: it may be done.
    New,
    /// It is being done: who asks waits for its end.
    UnderWay,
    /// It was done, and this was the answer.
    Done(Version, Vec<u8>),
    /// It may have been done, and nothing tells how it ended: it is never done again.
    Unknown,
}

/// The window of one group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Window {
    /// By when they ended.
    done: VecDeque<Done>,
    /// Their results, one after the other.
    results: VecDeque<u8>,
    /// The highest request of each client that ended and is forgotten, the client whose was forgotten last at the end.
    forgotten: VecDeque<Forgotten>,
    /// A client was forgotten itself: until then it may be anybody.
    unsure_until_ms: u64,
    /// The highest stamp that was forgotten.
    own_forgotten: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Done {
    id: RequestId,
    version: Version,
    /// Bytes of its result; `None`: it was too long to keep.
    bytes: Option<u16>,
    /// The highest stamp of a client up to here.
    stamp: u64,
}

impl Done {
    fn len(&self) -> usize {
        self.bytes.map_or(0, usize::from)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Forgotten {
    id: RequestId,
    at_ms: u64,
}

impl Window {
    /// What is known of a request that is asked again and is not under way. `all_seen`: all that was done since it was
    /// asked first came by here.
    pub fn find(&self, id: RequestId, all_seen: bool, now_ms: u64) -> Known {
        let is_forgotten = |it: &Forgotten| it.id.client == id.client && it.id.sequence >= id.sequence;
        // From the latest on, as few wait long to be asked again.
        let mut end = self.results.len();
        for done in self.done.iter().rev() {
            if id.is_own() && done.stamp < id.sequence {
                // Stamps come nearly in order, so one that is new has few before it.
                break;
            }
            let from = end - done.len();
            if done.id == id {
                let result = || self.results.range(from..end).copied().collect();
                return done.bytes.map_or(Known::Unknown, |_| Known::Done(done.version, result()));
            }
            end = from;
        }
        match () {
            () if !all_seen => Known::Unknown,
            () if id.is_own() && id.sequence > self.own_forgotten => Known::New,
            () if id.is_own() || now_ms < self.unsure_until_ms => Known::Unknown,
            () if self.forgotten.iter().any(is_forgotten) => Known::Unknown,
            () => Known::New,
        }
    }

    /// A request was done: its write is committed; `None` is a result that was too long to keep. The window keeps the
    /// last `WINDOW_REQUESTS_MAX`.
    pub fn end(&mut self, id: RequestId, version: Version, result: Option<&[u8]>, now_ms: u64) {
        let result = result.filter(|result| result.len() <= WINDOW_RESULT_MAX_BYTES);
        let bytes = result.unwrap_or_default();
        grow(&mut self.results, bytes.len());
        grow(&mut self.done, 1);
        self.results.extend(bytes);
        let stamp = self.done.back().map_or(0, |last| last.stamp).max(if id.is_own() { id.sequence } else { 0 });
        self.done.push_back(Done { id, version, bytes: result.map(|result| result.len() as u16), stamp });
        if self.done.len() > WINDOW_REQUESTS_MAX {
            self.forget_oldest(now_ms);
        }
    }

    /// Forgets the request that ended first. False: there is none.
    pub fn forget_oldest(&mut self, now_ms: u64) -> bool {
        let Some(done) = self.done.pop_front() else { return false };
        let id = done.id;
        self.results.drain(..done.len());
        shrink(&mut self.done);
        shrink(&mut self.results);
        if id.is_own() {
            self.own_forgotten = self.own_forgotten.max(id.sequence);
            return true;
        }
        let at = self.forgotten.iter().position(|it| it.id.client == id.client);
        let before = at.and_then(|at| self.forgotten.remove(at));
        let sequence = before.map_or(id.sequence, |before| before.id.sequence.max(id.sequence));
        self.forgotten.push_back(Forgotten { id: RequestId { sequence, ..id }, at_ms: now_ms });
        if self.forgotten.len() > WINDOW_CLIENTS_MAX {
            let until_ms = self.forgotten.pop_front().map_or(0, |first| first.at_ms.saturating_add(WINDOW_CLIENT_MS));
            self.unsure_until_ms = self.unsure_until_ms.max(until_ms);
        }
        true
    }

    /// Memory that is reserved for it: about an eighth above [`Window::bytes`], at most twice as much while it shrinks.
    pub fn room_bytes(&self) -> u64 {
        let entries = self.done.capacity() * size_of::<Done>() + self.forgotten.capacity() * size_of::<Forgotten>();
        (self.results.capacity() + entries) as u64
    }

    /// Memory of what it keeps.
    pub fn bytes(&self) -> u64 {
        let entries = self.done.len() * size_of::<Done>() + self.forgotten.len() * size_of::<Forgotten>();
        (self.results.len() + entries) as u64
    }
}

/// Makes room for more, in steps of an eighth: doubled, half of a long list would lie idle.
fn grow<T>(list: &mut VecDeque<T>, more: usize) {
    if list.len() + more > list.capacity() {
        list.reserve_exact(more.max(list.len() / 8).max(64));
    }
}

/// Gives room back where half of it lies idle.
fn shrink<T>(list: &mut VecDeque<T>) {
    if list.capacity() > 2 * list.len() + 256 {
        list.shrink_to(list.len() + list.len() / 8);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(sequence: u64) -> RequestId {
        RequestId { client: 7, sequence }
    }

    fn result(sequence: u64) -> Vec<u8> {
        vec![sequence as u8; sequence as usize % 7]
    }

    #[test]
    fn a_retry_is_answered() {
        let mut window = Window::default();
        assert_eq!(window.find(id(1), true, 10), Known::New);
        window.end(id(1), 5, Some(b"6"), 20);
        assert_eq!(window.find(id(1), true, 10), Known::Done(5, b"6".to_vec()));
        assert_eq!(window.find(id(2), true, 10), Known::New);
    }

    #[test]
    fn what_is_reserved_is_little_more_than_what_is_kept_and_goes_with_it() {
        let mut window = Window::default();
        for sequence in 0..10_000 {
            window.end(id(sequence), sequence, Some(b"a result"), 100);
            let (bytes, room_bytes) = (window.bytes(), window.room_bytes());
            assert!(room_bytes <= bytes + bytes / 7 + 4_096, "{room_bytes} for {bytes}");
        }
        while window.forget_oldest(100) {}
        assert!(window.room_bytes() < 32 * 1024, "{}", window.room_bytes());
    }

    #[test]
    fn each_request_keeps_its_own_result_while_others_are_forgotten() {
        let mut window = Window::default();
        for sequence in 1..=400 {
            let result = result(sequence);
            window.end(id(sequence), sequence, (sequence % 5 > 0).then_some(&*result), 100);
            if sequence % 3 == 0 {
                assert!(window.forget_oldest(100));
            }
            let first = sequence / 3 + 1;
            for known in [first, (first + sequence) / 2, sequence] {
                let result = self::result(known);
                let expected = if known % 5 > 0 { Known::Done(known, result) } else { Known::Unknown };
                assert_eq!(window.find(id(known), true, 100), expected, "{known} after {sequence}");
            }
        }
    }

    #[test]
    fn what_a_client_asked_before_what_is_forgotten_of_it_is_unknown_and_what_it_asked_later_is_new() {
        let mut window = Window::default();
        for sequence in 0..=WINDOW_REQUESTS_MAX as u64 {
            window.end(id(2 * sequence + 10), 1 + sequence, Some(b""), 100);
        }
        assert_eq!(window.find(id(10), true, 100), Known::Unknown, "it ended and was forgotten");
        assert_eq!(window.find(id(9), true, 100), Known::Unknown, "as may this one have been");
        assert_eq!(window.find(id(11), true, 100), Known::New, "its client asked it later");
        assert_eq!(window.find(RequestId { client: 8, sequence: 9 }, true, 100), Known::New, "as did this one");
        assert_eq!(window.find(id(12), true, 100), Known::Done(2, Vec::new()));
    }

    #[test]
    fn a_client_that_is_forgotten_leaves_all_unsure_for_as_long_as_it_may_ask() {
        let mut window = Window::default();
        let of = |client| RequestId { client, sequence: 1 };
        let most = (WINDOW_REQUESTS_MAX + WINDOW_CLIENTS_MAX) as u64;
        (0..most).for_each(|client| window.end(of(client), 1, Some(b""), 100 + client));
        assert_eq!(window.find(of(0), true, 100), Known::Unknown, "its count is kept");
        assert_eq!(window.find(of(most), true, 100), Known::New);
        window.end(of(most), 1, Some(b""), 1_000);
        let until_ms = 100 + WINDOW_REQUESTS_MAX as u64 + WINDOW_CLIENT_MS;
        assert_eq!(window.find(of(0), true, until_ms - 1), Known::Unknown);
        assert_eq!(window.find(of(most + 1), true, until_ms - 1), Known::Unknown);
        assert_eq!(window.find(of(most + 1), true, until_ms), Known::New);
    }

    #[test]
    fn a_result_too_long_to_keep_is_unknown_and_not_done_again() {
        let mut window = Window::default();
        window.end(id(1), 5, Some(&[0; WINDOW_RESULT_MAX_BYTES]), 1);
        window.end(id(2), 6, Some(&[0; WINDOW_RESULT_MAX_BYTES + 1]), 2);
        let first = window.find(id(1), true, 0);
        assert!(matches!(&first, Known::Done(5, result) if result.len() == WINDOW_RESULT_MAX_BYTES));
        assert_eq!(window.find(id(2), true, 0), Known::Unknown);
    }

    fn own(client: u64, count: u64) -> RequestId {
        RequestId { client, sequence: OWN_STAMP | count }
    }

    #[test]
    fn of_what_clients_have_made_one_number_tells_what_may_have_been_done() {
        let mut window = Window::default();
        let most = WINDOW_REQUESTS_MAX as u64;
        // Far more clients than are known one by one.
        (1..=most).for_each(|at| window.end(own(at, 10 * at), at, Some(b"r"), 100));
        assert_eq!(window.find(own(1, 10), true, 100), Known::Done(1, b"r".to_vec()));
        assert_eq!(window.find(own(9, 5), true, 100), Known::New, "it asks late, and nothing is forgotten");
        window.end(own(9, 5), 7, Some(b""), 100);
        window.end(own(most, 3), 7, Some(b""), 100);
        assert_eq!(window.find(own(1, 10), true, 100), Known::Unknown, "it was done, and is forgotten");
        assert_eq!(window.find(own(77, 20), true, 100), Known::Unknown, "as may this one have been");
        assert_eq!(window.find(own(77, 21), true, 100), Known::New, "what was forgotten came before");
        assert_eq!(window.find(own(9, 5), true, 100), Known::Done(7, Vec::new()), "that is known which is here");
        assert_eq!(window.find(own(77, 21), false, 100), Known::Unknown, "it may have been done where nobody saw it");
        assert_eq!(window.find(id(1), true, 100), Known::New, "a node's own count is not a stamp");
    }

    #[test]
    fn a_stamp_that_is_behind_or_ahead_of_those_of_others_is_found() {
        let mut window = Window::default();
        // By the clocks of three clients, one of them far ahead, and a node between them.
        let stamps = |at: u64| [own(1, 100 * at), own(2, 100 * at - 90), own(3, 100 * at + 5_000)];
        for at in 1..=50 {
            stamps(at).into_iter().for_each(|id| window.end(id, at, Some(b"r"), 100));
            window.end(id(at), at, Some(b"n"), 100);
        }
        for at in 1..=50 {
            let all = stamps(at).into_iter().map(|id| (id, "r")).chain([(id(at), "n")]);
            all.for_each(|(id, result)| assert_eq!(window.find(id, true, 100), Known::Done(at, result.into())));
        }
        assert_eq!(window.find(own(1, 150), true, 100), Known::New);
        assert_eq!(window.find(own(1, 100_000), true, 100), Known::New);
    }

    #[test]
    fn clients_that_are_forgotten_leave_nobody_unsure() {
        let mut window = Window::default();
        let most = (WINDOW_REQUESTS_MAX + 4 * WINDOW_CLIENTS_MAX) as u64;
        (1..=most).for_each(|client| window.end(own(client, client), 1, Some(b""), 100));
        assert_eq!(window.find(own(0, most + 1), true, 100), Known::New);
        assert_eq!(window.find(id(1), true, 100), Known::New);
        while window.forget_oldest(100) {}
        assert!(window.room_bytes() < 32 * 1024, "{}", window.room_bytes());
    }

    #[test]
    fn who_has_not_seen_all_since_a_request_was_asked_knows_only_what_it_has_seen() {
        let mut window = Window::default();
        window.end(id(1), 5, Some(b""), 1);
        assert_eq!(window.find(id(2), false, 0), Known::Unknown);
        assert_eq!(window.find(id(1), false, 0), Known::Done(5, Vec::new()));
    }
}
