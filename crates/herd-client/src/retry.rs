//! When a request may be sent again, and to whom. Pure: failures in, decisions out.
//!
//! A request that is repeatable (get, stat, list) may always go again. Any other one may go again only when nothing of
//! it had been sent, or when the node said `busy`, which means that it did nothing; else its outcome is unknown.

use crate::error::{Error, ErrorKind};
use crate::limits::{BUSY_PAUSE_MAX_MS, BUSY_PAUSE_MS, TRIES_MAX};

/// Why a try failed.
#[derive(Debug)]
pub enum Failure {
    /// No connection to any node could be had; nothing was sent.
    NoConnection(Error),
    /// The connection was lost, or the node fell silent or broke the protocol.
    Lost {
        /// What happened.
        error: Error,
        /// Whether not one byte of the request was sent.
        nothing_sent: bool,
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
    /// Whether caller's data was taken in or given out, so that a new try could not start from the beginning.
    consumed: bool,
    lost: u32,
    paused_ms: u64,
    pause_ms: u64,
    patience_ms: u64,
}

impl Tries {
    /// For a request; pauses for busy nodes add up to at most `patience_ms`.
    pub fn new(repeatable: bool, patience_ms: u64) -> Self {
        Self { repeatable, consumed: false, lost: 0, paused_ms: 0, pause_ms: BUSY_PAUSE_MS, patience_ms }
    }

    /// Notes that a new try could not start from the beginning.
    pub fn consumed(&mut self) {
        self.consumed = true;
    }

    /// What to do after `failure`.
    pub fn after(&mut self, failure: Failure) -> Next {
        match failure {
            Failure::NoConnection(error) | Failure::Final(error) => Next::Fail(error),
            Failure::Busy(error) => self.after_busy(error),
            Failure::Lost { error, nothing_sent } => self.after_loss(error, nothing_sent),
        }
    }

    fn after_busy(&mut self, error: Error) -> Next {
        if self.consumed || self.paused_ms >= self.patience_ms {
            return Next::Fail(error);
        }
        let pause_ms = self.pause_ms;
        self.paused_ms += pause_ms;
        self.pause_ms = (2 * pause_ms).min(BUSY_PAUSE_MAX_MS);
        Next::Again(pause_ms)
    }

    fn after_loss(&mut self, error: Error, nothing_sent: bool) -> Next {
        let harmless = self.repeatable || nothing_sent;
        self.lost += 1;
        if harmless && !self.consumed && self.lost < TRIES_MAX {
            return Next::Again(0);
        }
        let kind = if harmless { error.kind() } else { ErrorKind::OutcomeUnknown };
        Next::Fail(error.with_kind(kind))
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

    fn lost(nothing_sent: bool) -> Failure {
        Failure::Lost { error: Error::new(ErrorKind::Unreachable, "gone"), nothing_sent }
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

    #[test]
    fn a_get_goes_again_whatever_was_sent_but_not_for_ever() {
        let mut tries = Tries::new(true, 1000);
        for _ in 1..TRIES_MAX {
            assert!(again(tries.after(lost(false))));
        }
        assert_eq!(kind(tries.after(lost(false))), ErrorKind::Unreachable);
    }

    #[test]
    fn a_put_goes_again_only_while_nothing_was_sent() {
        let mut tries = Tries::new(false, 1000);
        assert!(again(tries.after(lost(true))));
        assert_eq!(kind(tries.after(lost(false))), ErrorKind::OutcomeUnknown);
    }

    #[test]
    fn a_put_whose_source_was_read_does_not_go_again() {
        let mut tries = Tries::new(false, 1000);
        tries.consumed();
        assert_eq!(kind(tries.after(lost(true))), ErrorKind::Unreachable);
        let busy = Error::new(ErrorKind::Refused(herd_core::ErrorKind::Busy), "busy");
        assert!(!again(tries.after(Failure::Busy(busy))));
    }

    #[test]
    fn busy_pauses_grow_and_end() {
        let mut tries = Tries::new(false, 1000);
        let mut pauses = Vec::new();
        let last = loop {
            let busy = Error::new(ErrorKind::Refused(herd_core::ErrorKind::Busy), "busy");
            match tries.after(Failure::Busy(busy)) {
                Next::Again(pause) => pauses.push(pause),
                Next::Fail(error) => break error,
            }
        };
        assert_eq!(pauses, [10, 20, 40, 80, 160, 320, 500]);
        assert_eq!(last.kind(), ErrorKind::Refused(herd_core::ErrorKind::Busy));
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
