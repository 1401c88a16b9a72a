//! The requests a slot answered last, so that one that is asked again is answered from there and not done twice.
//!
//! It is kept at each member: with a prepare comes who asked and what the answer is; [`Window::begin`] when the write
//! is prepared, [`Window::end`] when it is committed, [`Window::forget`] when it is dropped. So a retry finds its
//! answer also after a take-over. Time comes in as a value: milliseconds of the node's own steady clock. Callers: the
//! node, under the lock of the slot.

use crate::entry::Version;
use crate::limits::{WINDOW_REQUESTS_MAX, WINDOW_RESULT_MAX_BYTES};
use std::collections::VecDeque;

/// A request, the same however often and wherever it is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId {
    /// Who asks; drawn by chance.
    pub client: u64,
    /// The client's own count.
    pub sequence: u64,
}

/// What is known of a request that is asked again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known<'a> {
    /// It was never begun here, or was dropped: it may be done.
    New,
    /// It is being done: who asks waits for its end.
    UnderWay,
    /// It was done, and this was the answer.
    Done(Version, &'a [u8]),
    /// It may have been done, and nothing tells how it ended: it is never done again.
    Unknown,
}

/// The window of one slot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Window {
    /// By when they ended.
    done: VecDeque<Done>,
    /// Bytes of their results.
    results_bytes: u64,
    /// Begun and not ended; bounded as operations are.
    under_way: Vec<RequestId>,
    /// Up to then, what ended may have been forgotten.
    forgotten_ms: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Done {
    id: RequestId,
    version: Version,
    /// `None`: it was too long to keep.
    result: Option<Box<[u8]>>,
    ended_ms: u64,
}

impl Window {
    /// The window of a member that came with a copy: it has seen nothing of what ended before.
    pub fn since(now_ms: u64) -> Self {
        Self { forgotten_ms: Some(now_ms), ..Self::default() }
    }

    /// What is known of a request that is asked again; it was asked for the first time at `first_ms` or later, which
    /// the caller reckons from how old the request says it is, and takes early rather than late.
    pub fn find(&self, id: RequestId, first_ms: u64) -> Known<'_> {
        if self.under_way.contains(&id) {
            return Known::UnderWay;
        }
        match self.done.iter().rev().find(|done| done.id == id) {
            Some(Done { version, result: Some(result), .. }) => Known::Done(*version, result),
            Some(Done { result: None, .. }) => Known::Unknown,
            // What has ended before it was asked for the first time was another.
            None if self.forgotten_ms.is_some_and(|forgotten_ms| forgotten_ms >= first_ms) => Known::Unknown,
            None => Known::New,
        }
    }

    /// A request is being done: its write is prepared.
    pub fn begin(&mut self, id: RequestId) {
        if !self.under_way.contains(&id) {
            self.under_way.push(id);
        }
    }

    /// It will not be done: its write was dropped.
    pub fn forget(&mut self, id: RequestId) {
        self.under_way.retain(|other| *other != id);
    }

    /// It was done: its write is committed; `None` is a result that was too long to keep. The window keeps the last
    /// `WINDOW_REQUESTS_MAX`.
    pub fn end(&mut self, id: RequestId, version: Version, result: Option<&[u8]>, now_ms: u64) {
        self.forget(id);
        let result: Option<Box<[u8]>> = result.filter(|result| result.len() <= WINDOW_RESULT_MAX_BYTES).map(Into::into);
        self.results_bytes += length(&result);
        let ended_ms = self.done.back().map_or(now_ms, |last| last.ended_ms.max(now_ms));
        self.done.push_back(Done { id, version, result, ended_ms });
        if self.done.len() > WINDOW_REQUESTS_MAX {
            self.forget_oldest();
        }
    }

    /// Forgets the request that ended first. False: there is none.
    pub fn forget_oldest(&mut self) -> bool {
        let oldest = self.done.pop_front();
        self.results_bytes -= oldest.as_ref().map_or(0, |oldest| length(&oldest.result));
        self.forgotten_ms = self.forgotten_ms.max(oldest.as_ref().map(|oldest| oldest.ended_ms));
        oldest.is_some()
    }

    /// Memory it takes, about.
    pub fn bytes(&self) -> u64 {
        self.results_bytes + (self.done.len() * size_of::<Done>()) as u64
    }
}

fn length(result: &Option<Box<[u8]>>) -> u64 {
    result.as_ref().map_or(0, |result| result.len() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(sequence: u64) -> RequestId {
        RequestId { client: 7, sequence }
    }

    #[test]
    fn a_retry_is_answered_and_one_under_way_is_told_so() {
        let mut window = Window::default();
        assert_eq!(window.find(id(1), 10), Known::New);
        window.begin(id(1));
        assert_eq!(window.find(id(1), 10), Known::UnderWay);
        window.end(id(1), 5, Some(b"6"), 20);
        assert_eq!(window.find(id(1), 10), Known::Done(5, b"6"));
        window.begin(id(2));
        window.forget(id(2));
        assert_eq!(window.find(id(2), 10), Known::New);
    }

    #[test]
    fn a_retry_that_is_older_than_the_window_is_unknown_and_a_younger_one_is_new() {
        let mut window = Window::default();
        for sequence in 0..=WINDOW_REQUESTS_MAX as u64 {
            window.end(id(sequence), 1 + sequence, Some(b""), 100 + sequence);
        }
        assert_eq!(window.find(id(0), 90), Known::Unknown, "it ended and was forgotten");
        assert_eq!(window.find(id(9999), 100), Known::Unknown, "as may this one have been");
        assert_eq!(window.find(id(9999), 101), Known::New, "asked after the last that was forgotten had ended");
        assert_eq!(window.find(id(1), 90), Known::Done(2, b""));
    }

    #[test]
    fn a_result_too_long_to_keep_is_unknown_and_not_done_again() {
        let mut window = Window::default();
        window.end(id(1), 5, Some(&[0; WINDOW_RESULT_MAX_BYTES]), 1);
        window.end(id(2), 6, Some(&[0; WINDOW_RESULT_MAX_BYTES + 1]), 2);
        assert!(matches!(window.find(id(1), 0), Known::Done(5, result) if result.len() == WINDOW_RESULT_MAX_BYTES));
        assert_eq!(window.find(id(2), 0), Known::Unknown);
    }

    #[test]
    fn a_member_that_came_with_a_copy_has_seen_nothing_before() {
        let window = Window::since(50);
        assert_eq!(window.find(id(1), 50), Known::Unknown);
        assert_eq!(window.find(id(1), 51), Known::New);
    }

    #[test]
    fn a_clock_that_stands_or_falls_makes_nothing_forgotten_look_new() {
        let mut window = Window::default();
        window.end(id(0), 1, Some(b""), 100);
        for sequence in 1..=WINDOW_REQUESTS_MAX as u64 {
            window.end(id(sequence), 1, Some(b""), 50);
        }
        assert_eq!(window.find(id(0), 100), Known::Unknown);
        assert_eq!(window.find(id(0), 60), Known::Unknown);
    }
}
