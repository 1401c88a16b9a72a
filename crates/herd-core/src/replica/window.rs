//! The requests a group answered last, so that one that is asked again is answered from there and not done twice.
//!
//! It is kept at each member: with a prepare comes who asked and what the answer is, and [`Window::end`] is called when
//! the write is committed. So a retry finds its answer also after a take-over. What is prepared and not committed the
//! caller knows, as it has to keep that by write.
//!
//! What it has forgotten it tells by each client's own count: up to the highest of a client that it forgot, what it
//! does not know may have been done. No clock of another node decides: how long a request was under way, nobody knows.
//! Of each client that makes ids itself ([`RequestId::is_own`]) it keeps the last request alone: such a client has one
//! under way at a time, so it asks none again that came before its last one. There are too many of them to know each
//! for ever: their counts are stamps that rise together, so that the highest one that was forgotten tells what may have
//! been done of all of them. The lowest are forgotten first.
//! Callers: the node, at the group's part; `now_ms` is of its own steady clock.

use crate::entry::Version;
use crate::limits::{
    WINDOW_CLIENT_MS, WINDOW_CLIENTS_MAX, WINDOW_LASTS_MAX, WINDOW_REQUESTS_MAX, WINDOW_RESULT_MAX_BYTES,
};
use std::collections::{BTreeMap, VecDeque};

/// A request, the same however often and wherever it is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId {
    /// Who asks; drawn by chance.
    pub client: u64,
    /// The client's own count: it rises. Where the client makes ids itself, it counts on once what it asked before has
    /// an answer, or is given up.
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
    /// Those of nodes, by when they ended.
    done: VecDeque<Done>,
    /// Their results, one after the other.
    results: VecDeque<u8>,
    /// The highest request of each client that ended and is forgotten, the client whose was forgotten last at the end.
    forgotten: VecDeque<Forgotten>,
    /// A client was forgotten itself: until then it may be anybody.
    unsure_until_ms: u64,
    /// The last request of each client that makes ids itself.
    lasts: BTreeMap<u64, Last>,
    /// Bytes of their results.
    lasts_bytes: usize,
    /// The highest stamp that was forgotten.
    own_forgotten: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Last {
    stamp: u64,
    version: Version,
    /// `None`: it was too long to keep.
    result: Option<Box<[u8]>>,
}

impl Last {
    fn len(&self) -> usize {
        self.result.as_ref().map_or(0, |result| result.len())
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Done {
    id: RequestId,
    version: Version,
    /// Bytes of its result; `None`: it was too long to keep.
    bytes: Option<u16>,
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
        if id.is_own() {
            return self.find_own(id, all_seen);
        }
        let is_forgotten = |it: &Forgotten| it.id.client == id.client && it.id.sequence >= id.sequence;
        // From the latest on, as few wait long to be asked again.
        let mut end = self.results.len();
        for done in self.done.iter().rev() {
            let from = end - done.len();
            if done.id == id {
                let result = || self.results.range(from..end).copied().collect();
                return done.bytes.map_or(Known::Unknown, |_| Known::Done(done.version, result()));
            }
            end = from;
        }
        match () {
            () if !all_seen || now_ms < self.unsure_until_ms => Known::Unknown,
            () if self.forgotten.iter().any(is_forgotten) => Known::Unknown,
            () => Known::New,
        }
    }

    fn find_own(&self, id: RequestId, all_seen: bool) -> Known {
        match self.lasts.get(&id.client) {
            Some(last) if last.stamp == id.sequence => {
                last.result.as_ref().map_or(Known::Unknown, |result| Known::Done(last.version, result.to_vec()))
            }
            // Its client has its answer, or waits for none.
            Some(last) if last.stamp > id.sequence => Known::Unknown,
            _ if all_seen && id.sequence > self.own_forgotten => Known::New,
            _ => Known::Unknown,
        }
    }

    /// A request was done: its write is committed; `None` is a result that was too long to keep. The window keeps the
    /// last `WINDOW_REQUESTS_MAX` of nodes, and the last one of each of `WINDOW_LASTS_MAX` clients.
    pub fn end(&mut self, id: RequestId, version: Version, result: Option<&[u8]>, now_ms: u64) {
        let result = result.filter(|result| result.len() <= WINDOW_RESULT_MAX_BYTES);
        if id.is_own() {
            return self.end_own(id, Last { stamp: id.sequence, version, result: result.map(Box::from) });
        }
        let bytes = result.unwrap_or_default();
        grow(&mut self.results, bytes.len());
        grow(&mut self.done, 1);
        self.results.extend(bytes);
        self.done.push_back(Done { id, version, bytes: result.map(|result| result.len() as u16) });
        if self.done.len() > WINDOW_REQUESTS_MAX {
            self.forget_first(now_ms);
        }
    }

    fn end_own(&mut self, id: RequestId, last: Last) {
        let before = self.lasts.get(&id.client);
        if before.is_some_and(|before| before.stamp > last.stamp) {
            return;
        }
        self.lasts_bytes += last.len();
        self.lasts_bytes -= self.lasts.insert(id.client, last).map_or(0, |before| before.len());
        if self.lasts.len() > WINDOW_LASTS_MAX {
            self.forget_lasts();
        }
    }

    /// Forgets a request of a node, or some of clients, of which there is more. False: there is none.
    pub fn forget_oldest(&mut self, now_ms: u64) -> bool {
        if self.own_bytes() > self.bytes() / 2 { self.forget_lasts() } else { self.forget_first(now_ms) }
    }

    /// Forgets the eighth of clients' requests that has the lowest stamps. False: there are none.
    fn forget_lasts(&mut self) -> bool {
        let mut stamps: Vec<u64> = self.lasts.values().map(|last| last.stamp).collect();
        if stamps.is_empty() {
            return false;
        }
        let at = stamps.len() / 8;
        let highest = *stamps.select_nth_unstable(at).1;
        self.own_forgotten = self.own_forgotten.max(highest);
        self.lasts.retain(|_, last| last.stamp > highest);
        self.lasts_bytes = self.lasts.values().map(Last::len).sum();
        true
    }

    /// Forgets the request of a node that ended first. False: there is none.
    fn forget_first(&mut self, now_ms: u64) -> bool {
        let Some(done) = self.done.pop_front() else { return false };
        let id = done.id;
        self.results.drain(..done.len());
        shrink(&mut self.done);
        shrink(&mut self.results);
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
        (self.results.capacity() + entries) as u64 + self.own_bytes()
    }

    /// Memory of what it keeps.
    pub fn bytes(&self) -> u64 {
        let entries = self.done.len() * size_of::<Done>() + self.forgotten.len() * size_of::<Forgotten>();
        (self.results.len() + entries) as u64 + self.own_bytes()
    }

    /// That of clients' requests; nodes of the tree are two thirds full, and each result has 16 bytes around it.
    fn own_bytes(&self) -> u64 {
        let entry = (size_of::<(u64, Last)>() * 3).div_ceil(2) + 16;
        (self.lasts.len() * entry + self.lasts_bytes) as u64
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
    fn the_last_request_of_each_client_is_kept_however_many_others_came_since() {
        let mut window = Window::default();
        window.end(own(1, 10), 5, Some(b"first"), 100);
        for at in 11..100_000 {
            window.end(own(2, at), at, Some(b"r"), 100);
            window.end(id(at), at, Some(b"n"), 100);
        }
        assert_eq!(window.find(own(1, 10), true, 100), Known::Done(5, b"first".to_vec()));
        assert_eq!(window.find(own(2, 99_999), true, 100), Known::Done(99_999, b"r".to_vec()));
        assert_eq!(window.find(own(2, 99_998), true, 100), Known::Unknown, "its client has that answer");
        assert_eq!(window.find(own(2, 100_000), true, 100), Known::New);
        assert_eq!(window.find(own(3, 5), true, 100), Known::New, "it asks late, and nothing is forgotten");
        window.end(own(2, 50), 7, Some(b"late"), 100);
        assert_eq!(window.find(own(2, 99_999), true, 100), Known::Done(99_999, b"r".to_vec()), "one that ends late");
    }

    #[test]
    fn of_all_clients_one_number_tells_what_may_have_been_done() {
        let mut window = Window::default();
        let most = WINDOW_LASTS_MAX as u64;
        // By clocks that differ: the lowest stamps are forgotten, and not those that came first.
        (1..=most).for_each(|at| window.end(own(at, 10 * (most - at + 1)), at, Some(b"r"), 100));
        assert_eq!(window.find(own(most, 10), true, 100), Known::Done(most, b"r".to_vec()));
        window.end(own(most + 1, 10 * most + 1), 7, Some(b""), 100);
        let highest = 10 * (most / 8 + 1);
        assert_eq!(window.find(own(most, 10), true, 100), Known::Unknown, "it was done, and is forgotten");
        assert_eq!(window.find(own(0, highest), true, 100), Known::Unknown, "as may this one have been");
        assert_eq!(window.find(own(0, highest + 1), true, 100), Known::New, "what was forgotten came before");
        assert_eq!(window.find(own(1, 10 * most), true, 100), Known::Done(1, b"r".to_vec()));
        assert_eq!(window.find(own(0, highest + 1), false, 100), Known::Unknown, "it may be done where nobody saw it");
        assert_eq!(window.find(id(1), true, 100), Known::New, "a node's own count is not a stamp");
    }

    /// What is forgotten first is of those that take more memory: many requests of nodes push out no few of clients.
    #[test]
    fn who_takes_most_memory_is_forgotten_first_and_it_is_all_given_back() {
        let mut window = Window::default();
        (1..100).for_each(|at| window.end(own(at, at), at, Some(&[7; 200]), 100));
        (1..10_000).for_each(|at| window.end(id(at), at, Some(&[7; 200]), 100));
        while window.bytes() > 200_000 {
            assert!(window.forget_oldest(100));
        }
        assert!((1..100).all(|at| matches!(window.find(own(at, at), true, 100), Known::Done(..))));
        while window.forget_oldest(100) {}
        assert!((1..100).all(|at| window.find(own(at, at), true, 100) == Known::Unknown));
        assert!(window.room_bytes() < 32 * 1024, "{}", window.room_bytes());
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
