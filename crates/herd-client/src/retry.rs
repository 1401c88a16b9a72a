//! When a request may be sent again, and what is told when it may not. Pure: failures, times and chance in, decisions
//! out.
//!
//! A request that is repeatable (all that read, and create) may go again whatever happened. Any other one may go again
//! only when it can't have been done: its last byte was not sent, or the node said `busy`. What changes something, was
//! once sent wholly and never answered is of unknown outcome. All tries together take no longer than one silence may.

use crate::error::{Error, ErrorKind};
use crate::limits::{BUSY_PAUSE_MAX_MS, BUSY_PAUSE_MS, TRIES_MAX};
use crate::request::Request;

/// Why a try failed.
#[derive(Debug)]
pub enum Failure {
    /// No connection to any node could be had.
    NoConnection(Error),
    /// The connection was lost, or the node fell silent or broke the protocol.
    Lost {
        /// What happened.
        error: Error,
        /// Whether the whole request was sent.
        may_be_done: bool,
    },
    /// The node is busy or stopping, and did nothing.
    Busy(Error),
    /// An answer, or a fault of the caller's own: no reason to try again.
    Final(Error),
}

/// What to do now.
#[derive(Debug)]
pub enum Next {
    /// Try again, after a pause, ms; on another node if there is one.
    Again(u64),
    /// Give the error to the caller.
    Fail(Error),
}

/// The tries of one request.
#[derive(Debug)]
pub struct Tries {
    repeatable: bool,
    changes: bool,
    /// Whether a try that got no answer may have done it.
    may_be_done: bool,
    /// Whether caller's data was taken in that is gone now, so that a new try could not start from the beginning.
    consumed: bool,
    lost: u32,
    /// Nodes that could not be connected to.
    missed: u32,
    pause_ms: u64,
    deadline_ms: u64,
}

impl Tries {
    /// For a request that fails at `deadline_ms` unless something of it moves.
    pub fn new(request: &Request<'_>, deadline_ms: u64) -> Self {
        Self {
            repeatable: request.is_repeatable(),
            changes: request.changes(),
            may_be_done: false,
            consumed: false,
            lost: 0,
            missed: 0,
            pause_ms: BUSY_PAUSE_MS,
            deadline_ms,
        }
    }

    /// Notes that a new try could not start from the beginning.
    pub fn consumed(&mut self) {
        self.consumed = true;
    }

    /// Whether a new try could not start from the beginning.
    pub(crate) fn is_consumed(&self) -> bool {
        self.consumed
    }

    /// Notes that something of the request moved, so that it fails at `deadline_ms`, if that is later.
    pub fn moved(&mut self, deadline_ms: u64) {
        self.deadline_ms = self.deadline_ms.max(deadline_ms);
    }

    /// Notes that a try brought a part of what was asked for: what follows is a request of its own.
    pub fn progressed(&mut self) {
        self.lost = 0;
    }

    /// Notes that a node could not be connected to.
    pub fn missed(&mut self) {
        self.missed += 1;
    }

    /// When the request fails, ms.
    pub fn deadline_ms(&self) -> u64 {
        self.deadline_ms
    }

    /// How long the next try may be silent, ms, where its node is to wait `wait_ms` before it answers. A read leaves
    /// time for the others of `nodes`; and for a new connection, if this one `was_idle`: a firewall may have forgotten
    /// it without a word. None of that is taken from the wait.
    pub fn silence_ms(&self, now_ms: u64, nodes: usize, was_idle: bool, wait_ms: u64) -> u64 {
        let left_ms = self.deadline_ms.saturating_sub(now_ms);
        let untried = (nodes as u64).saturating_sub(u64::from(self.lost + self.missed)).max(1);
        let shares = if self.repeatable { untried + u64::from(was_idle) } else { 1 };
        let wait_ms = wait_ms.min(left_ms);
        wait_ms + (left_ms - wait_ms).div_ceil(shares)
    }

    /// What to do after `failure`. `chance`, any number, spreads the pauses of clients that were refused together.
    pub fn after(&mut self, failure: Failure, now_ms: u64, chance: u64) -> Next {
        match failure {
            Failure::Final(error) => Next::Fail(error),
            Failure::NoConnection(error) => Next::Fail(self.judged(error)),
            Failure::Busy(error) => self.after_busy(error, now_ms, chance),
            Failure::Lost { error, may_be_done } => self.after_loss(error, may_be_done, now_ms),
        }
    }

    fn after_busy(&mut self, error: Error, now_ms: u64, chance: u64) -> Next {
        let pause_ms = self.pause_ms / 2 + chance % (self.pause_ms / 2 + 1);
        self.pause_ms = (2 * self.pause_ms).min(BUSY_PAUSE_MAX_MS);
        match self.consumed || now_ms.saturating_add(pause_ms) >= self.deadline_ms {
            true => Next::Fail(self.judged(error)),
            false => Next::Again(pause_ms),
        }
    }

    fn after_loss(&mut self, error: Error, may_be_done: bool, now_ms: u64) -> Next {
        self.lost += 1;
        self.may_be_done |= may_be_done;
        let harmless = self.repeatable || !may_be_done;
        if harmless && !self.consumed && self.lost < TRIES_MAX && now_ms < self.deadline_ms {
            return Next::Again(0);
        }
        Next::Fail(self.judged(error))
    }

    /// The error as it is to be told: unknown where the request may have changed something.
    fn judged(&self, error: Error) -> Error {
        if self.changes && self.may_be_done { error.with_kind(ErrorKind::OutcomeUnknown) } else { error }
    }
}

/// The nodes of a herd, tried in turn: the one that served last comes first.
#[derive(Debug)]
pub struct Turns {
    nodes: usize,
    current: usize,
}

impl Turns {
    /// For `nodes` addresses, at least one.
    pub fn new(nodes: usize) -> Self {
        assert!(nodes > 0, "a client has nodes");
        Self { nodes, current: 0 }
    }

    /// The nodes to try, in this order.
    pub fn order(&self) -> impl Iterator<Item = usize> + use<> {
        let (nodes, current) = (self.nodes, self.current);
        (0..nodes).map(move |step| (current + step) % nodes)
    }

    /// Notes that `node` answers.
    pub fn serves(&mut self, node: usize) {
        self.current = node;
    }

    /// Notes that `node` failed: the next one comes first, unless another has taken its place already.
    pub fn failed(&mut self, node: usize) {
        if self.current == node {
            self.current = (node + 1) % self.nodes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Condition, PutOptions, Spec, Wanted};

    fn lost(may_be_done: bool) -> Failure {
        Failure::Lost { error: Error::new(ErrorKind::Unreachable, "gone"), may_be_done }
    }

    fn busy() -> Failure {
        Failure::Busy(Error::new(ErrorKind::Refused(herd_core::ErrorKind::Busy), "busy"))
    }

    fn kind(next: Next) -> ErrorKind {
        match next {
            Next::Fail(error) => error.kind(),
            Next::Again(_) => panic!("it goes on"),
        }
    }

    fn again(next: Next) -> bool {
        matches!(next, Next::Again(_))
    }

    fn get() -> Tries {
        Tries::new(&Request::get("x").expect("valid"), 1000)
    }

    fn put() -> Tries {
        Tries::new(&Request::put("x", b"", &PutOptions::default()).expect("valid"), 1000)
    }

    #[test]
    fn a_get_goes_again_whatever_was_sent_but_not_for_ever() {
        let mut tries = get();
        for _ in 1..TRIES_MAX {
            assert!(again(tries.after(lost(true), 0, 0)));
        }
        assert_eq!(kind(tries.after(lost(true), 0, 0)), ErrorKind::Unreachable);
    }

    #[test]
    fn nothing_goes_again_after_the_deadline() {
        assert!(again(get().after(lost(true), 999, 0)));
        assert_eq!(kind(get().after(lost(true), 1000, 0)), ErrorKind::Unreachable);
        assert_eq!(kind(put().after(lost(false), 1000, 0)), ErrorKind::Unreachable);
        let mut moved = get();
        moved.moved(1500);
        assert!(again(moved.after(lost(true), 1499, 0)));
    }

    #[test]
    fn a_read_leaves_time_for_the_other_nodes() {
        let mut tries = get();
        assert_eq!((tries.silence_ms(100, 3, false, 0), tries.silence_ms(100, 2, true, 0)), (300, 300));
        assert!(again(tries.after(lost(true), 400, 0)));
        assert_eq!(tries.silence_ms(400, 3, false, 0), 300);
        assert!(again(tries.after(lost(true), 700, 0)));
        assert_eq!((tries.silence_ms(700, 3, false, 0), tries.silence_ms(1100, 3, false, 0)), (300, 0));
        assert_eq!(put().silence_ms(100, 3, true, 0), 900, "a change is not asked twice");
    }

    #[test]
    fn a_wait_is_no_silence_however_many_nodes_there_are() {
        let request = Request::get_newer("x", 7, std::time::Duration::from_secs(60)).expect("valid");
        let (tries, wait_ms) = (Tries::new(&request, 69_000), request.wait_ms());
        assert_eq!(tries.silence_ms(0, 1, false, wait_ms), 69_000);
        assert_eq!(tries.silence_ms(0, 1, true, wait_ms), 64_500);
        assert_eq!(tries.silence_ms(0, 2, true, wait_ms), 63_000);
        assert_eq!(tries.silence_ms(40_000, 2, true, wait_ms), 29_000, "no longer than there is time");
    }

    #[test]
    fn a_put_goes_again_only_while_it_can_not_have_been_done() {
        let mut tries = put();
        assert!(again(tries.after(lost(false), 0, 0)));
        assert_eq!(kind(tries.after(lost(true), 0, 0)), ErrorKind::OutcomeUnknown);
    }

    #[test]
    fn a_put_whose_source_was_read_does_not_go_again() {
        let mut tries = put();
        tries.consumed();
        assert_eq!(kind(tries.after(lost(false), 0, 0)), ErrorKind::Unreachable);
        assert!(!again(tries.after(busy(), 0, 0)));
    }

    #[test]
    fn what_may_have_been_done_once_stays_unknown_whatever_follows() {
        let spec = Spec::of("ram:1");
        for last in [lost(false), busy(), Failure::NoConnection(Error::new(ErrorKind::Unreachable, "nobody"))] {
            let mut tries = Tries::new(&Request::create("c", &Wanted::of(spec.clone())).expect("valid"), 1000);
            assert!(again(tries.after(lost(true), 0, 0)), "creating twice does no harm");
            assert_eq!(kind(tries.after(last, 1000, 0)), ErrorKind::OutcomeUnknown);
        }
        let mut tries = Tries::new(&Request::remove("x", Condition::None).expect("valid"), 1000);
        assert_eq!(kind(tries.after(lost(true), 0, 0)), ErrorKind::OutcomeUnknown);
    }

    #[test]
    fn busy_pauses_grow_and_end_with_the_time() {
        let mut tries = Tries::new(&Request::get("x").expect("valid"), 3_000);
        let (mut now_ms, mut pauses) = (0, Vec::new());
        let last = loop {
            match tries.after(busy(), now_ms, now_ms * 7) {
                Next::Again(pause) => pauses.push(pause),
                Next::Fail(error) => break error,
            }
            now_ms += pauses[pauses.len() - 1];
        };
        assert_eq!(last.kind(), ErrorKind::Refused(herd_core::ErrorKind::Busy));
        assert!(pauses.len() > 8 && now_ms < 3_000, "{pauses:?}");
        for (most, pause) in [10, 20, 40, 80, 160, 320, 500, 500].into_iter().zip(pauses) {
            assert!((most / 2..=most).contains(&pause), "{pause} of {most}");
        }
    }

    #[test]
    fn nodes_take_turns_and_the_one_that_serves_stays() {
        let mut turns = Turns::new(3);
        assert_eq!(turns.order().collect::<Vec<_>>(), [0, 1, 2]);
        turns.failed(0);
        assert_eq!(turns.order().collect::<Vec<_>>(), [1, 2, 0]);
        turns.failed(0);
        turns.serves(2);
        assert_eq!(turns.order().collect::<Vec<_>>(), [2, 0, 1]);
    }
}
