//! When a request may be sent again, and what is told when it may not. Pure: failures, times and chance in, decisions
//! out.
//!
//! A request that is repeatable (all that read, and create) may go again whatever happened, and so may a change that
//! has an id of its own: the herd does it once ([`Tries::has_id`]). Any other one may go again only when it can't have
//! been done: its last byte was not sent, or the node said `busy`. What changes something, was once sent wholly and
//! never answered is of unknown outcome. All tries together take no longer than one silence may, and what is asked
//! again for the second time pauses before, longer each time and by chance, so that clients do not come all at once.

use crate::error::{Error, ErrorKind};
use crate::limits::{BUSY_PAUSE_MAX_MS, BUSY_PAUSE_MS, IDS_MAX, TRIES_MAX, UNKNOWN_AGAIN_MS};
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
    /// A node answered that it does not know whether it was done.
    Unknown(Error),
    /// It was not done, as its id is no good any more.
    OldId(Error),
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
    /// Whether the herd knows by its id what became of it.
    has_id: bool,
    /// Ids that were no good.
    old_ids: u32,
    /// When it is not asked again any more where nobody knows its outcome.
    known_until_ms: u64,
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
            has_id: false,
            old_ids: 0,
            known_until_ms: u64::MAX,
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

    /// Notes whether the try that begins has an id by which the herd knows it.
    pub fn has_id(&mut self, has_id: bool) {
        self.has_id = has_id;
    }

    /// Whether a try before may have done it.
    pub fn may_be_done(&self) -> bool {
        self.may_be_done
    }

    /// Whether it is worthwhile to give it an id.
    pub fn wants_id(&self) -> bool {
        self.old_ids < IDS_MAX
    }

    /// Whether a new try could not start from the beginning.
    pub(crate) fn is_consumed(&self) -> bool {
        self.consumed
    }

    /// Notes that something of the request moved, so that it fails at `deadline_ms`, if that is later. After some
    /// tries that were lost what is sent once more gives it no more time: a change with an id would never end.
    pub fn moved(&mut self, deadline_ms: u64) {
        if self.lost < TRIES_MAX {
            self.deadline_ms = self.deadline_ms.max(deadline_ms);
        }
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

    /// How long the next try may be silent, ms, where its node is to wait `wait_ms` before it answers. A read, or what
    /// has an id, leaves time for the others of `nodes`; and for a new connection, if this one `was_idle`: a firewall
    /// may have forgotten it without a word. None of that is taken from the wait.
    pub fn silence_ms(&self, now_ms: u64, nodes: usize, was_idle: bool, wait_ms: u64) -> u64 {
        let left_ms = self.deadline_ms.saturating_sub(now_ms);
        let untried = (nodes as u64).saturating_sub(u64::from(self.lost + self.missed)).max(1);
        let shares = if self.repeatable || self.has_id { untried + u64::from(was_idle) } else { 1 };
        let wait_ms = wait_ms.min(left_ms);
        wait_ms + (left_ms - wait_ms).div_ceil(shares)
    }

    /// What to do after `failure`. `chance`, any number, spreads the pauses of clients that were refused together.
    pub fn after(&mut self, failure: Failure, now_ms: u64, chance: u64) -> Next {
        match failure {
            // That this try did nothing says nothing of those before.
            Failure::Final(error) if !self.repeatable || !is_verdict(error.kind()) => Next::Fail(self.judged(error)),
            Failure::Final(error) => Next::Fail(error),
            Failure::NoConnection(error) if self.may_be_done => self.after_pause(error, now_ms, chance),
            Failure::NoConnection(error) => Next::Fail(self.judged(error)),
            Failure::Unknown(error) => self.after_unknown(error, now_ms, chance),
            Failure::OldId(error) => self.after_old_id(error, now_ms),
            Failure::Busy(error) => self.after_pause(error, now_ms, chance),
            Failure::Lost { error, may_be_done } => self.after_loss(error, may_be_done, now_ms, chance),
        }
    }

    fn after_pause(&mut self, error: Error, now_ms: u64, chance: u64) -> Next {
        let pause_ms = self.pause_ms / 2 + chance % (self.pause_ms / 2 + 1);
        self.pause_ms = (2 * self.pause_ms).min(BUSY_PAUSE_MAX_MS);
        match self.consumed || now_ms.saturating_add(pause_ms) >= self.deadline_ms {
            true => Next::Fail(self.judged(error)),
            false => Next::Again(pause_ms),
        }
    }

    /// The next node may know.
    fn after_unknown(&mut self, error: Error, now_ms: u64, chance: u64) -> Next {
        self.may_be_done = true;
        self.known_until_ms = self.known_until_ms.min(now_ms.saturating_add(UNKNOWN_AGAIN_MS));
        match now_ms < self.known_until_ms && self.has_id {
            true => self.after_pause(error, now_ms, chance),
            false => Next::Fail(self.judged(error)),
        }
    }

    fn after_old_id(&mut self, error: Error, now_ms: u64) -> Next {
        self.old_ids += 1;
        match self.consumed || self.old_ids > IDS_MAX || now_ms >= self.deadline_ms {
            true => Next::Fail(self.judged(error)),
            false => Next::Again(0),
        }
    }

    fn after_loss(&mut self, error: Error, may_be_done: bool, now_ms: u64, chance: u64) -> Next {
        self.lost += 1;
        self.may_be_done |= may_be_done;
        let harmless = self.repeatable || !may_be_done || (self.has_id && self.lost == 1);
        if harmless && !self.consumed && self.lost < TRIES_MAX && now_ms < self.deadline_ms {
            return Next::Again(0);
        }
        if self.may_be_done && self.has_id && self.lost > 1 {
            return self.after_pause(error, now_ms, chance);
        }
        Next::Fail(self.judged(error))
    }

    /// The error as it is to be told: unknown where the request may have changed something.
    fn judged(&self, error: Error) -> Error {
        if self.changes && self.may_be_done { error.with_kind(ErrorKind::OutcomeUnknown) } else { error }
    }
}

/// Whether a final answer tells what is so. That whoever decides can't be asked tells nothing of a try before.
fn is_verdict(kind: ErrorKind) -> bool {
    use herd_core::ErrorKind::{Timeout, Unreachable};
    !matches!(kind, ErrorKind::Refused(Timeout | Unreachable) | ErrorKind::BadReply)
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
        assert_eq!(put().silence_ms(100, 3, true, 0), 900, "a change without an id is not asked twice");
        let mut known = put();
        known.has_id(true);
        assert_eq!(known.silence_ms(100, 3, false, 0), 300);
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
    fn a_put_with_an_id_goes_again_with_pauses_until_its_time_is_over() {
        let mut tries = Tries::new(&Request::put("x", b"", &PutOptions::default()).expect("valid"), 10_000);
        tries.has_id(true);
        assert!(matches!(tries.after(lost(true), 0, 0), Next::Again(0)));
        let (mut now_ms, mut count) = (0, 0);
        let last = loop {
            let failure = match count % 2 {
                0 => lost(true),
                _ => Failure::NoConnection(Error::new(ErrorKind::Unreachable, "nobody")),
            };
            match tries.after(failure, now_ms, 7) {
                Next::Again(pause_ms) => now_ms += pause_ms.max(1),
                Next::Fail(error) => break error,
            }
            count += 1;
        };
        assert_eq!(last.kind(), ErrorKind::OutcomeUnknown);
        assert!((20..60).contains(&count) && now_ms > 9_000, "{count} tries in {now_ms} ms");
    }

    #[test]
    fn what_is_sent_again_gives_a_put_with_an_id_more_time_a_few_times_only() {
        let mut tries = Tries::new(&Request::put("x", b"", &PutOptions::default()).expect("valid"), 10_000);
        tries.has_id(true);
        let (mut now_ms, mut ends_ms) = (0, Vec::new());
        for _ in 0..1_000 {
            // Each try sends all of it, for most of the time there is, and is lost.
            now_ms += 9_000;
            tries.moved(now_ms + 10_000);
            ends_ms.push(tries.deadline_ms());
            match tries.after(lost(true), now_ms, 7) {
                Next::Again(pause_ms) => now_ms += pause_ms,
                Next::Fail(error) => {
                    assert_eq!(error.kind(), ErrorKind::OutcomeUnknown);
                    break;
                }
            }
        }
        let times = TRIES_MAX as usize;
        assert!(ends_ms[..times].is_sorted_by(|a, b| a < b), "{ends_ms:?}");
        assert!(
            ends_ms.len() < 2 * times && ends_ms[times..].iter().all(|at| *at == ends_ms[times - 1]),
            "{ends_ms:?}"
        );
    }

    #[test]
    fn an_error_that_answers_what_was_asked_again_says_nothing_of_the_first_try() {
        let not_found = || Failure::Final(Error::new(ErrorKind::Refused(herd_core::ErrorKind::NotFound), "none"));
        let mut tries = Tries::new(&Request::remove("x", Condition::None).expect("valid"), 1000);
        tries.has_id(true);
        assert!(again(tries.after(lost(false), 0, 0)));
        assert_eq!(kind(tries.after(not_found(), 0, 0)), ErrorKind::Refused(herd_core::ErrorKind::NotFound));
        let mut tries = Tries::new(&Request::remove("x", Condition::None).expect("valid"), 1000);
        tries.has_id(true);
        assert!(again(tries.after(lost(true), 0, 0)));
        assert_eq!(kind(tries.after(not_found(), 0, 0)), ErrorKind::OutcomeUnknown);
        assert!(again(get_after_loss().after(busy(), 0, 0)));
        assert_eq!(kind(get_after_loss().after(not_found(), 0, 0)), ErrorKind::Refused(herd_core::ErrorKind::NotFound));
    }

    #[test]
    fn what_can_t_be_asked_the_second_time_may_have_been_done_the_first_time() {
        use herd_core::ErrorKind::{NotAllowed, Unreachable};
        let last = |kind| Failure::Final(Error::new(ErrorKind::Refused(kind), "it"));
        let drain = Request::about_node("drain", "n");
        for (loss, end, told) in [
            (true, Unreachable, ErrorKind::OutcomeUnknown),
            (false, Unreachable, ErrorKind::Refused(Unreachable)),
            (true, NotAllowed, ErrorKind::Refused(NotAllowed)),
        ] {
            let mut tries = Tries::new(&drain, 1000);
            assert!(again(tries.after(lost(loss), 0, 0)), "it may be asked twice");
            assert_eq!(kind(tries.after(last(end), 0, 0)), told);
        }
        let refused = kind(get_after_loss().after(last(Unreachable), 0, 0));
        assert_eq!(refused, ErrorKind::Refused(Unreachable), "to read changes nothing");
    }

    fn get_after_loss() -> Tries {
        let mut tries = get();
        assert!(again(tries.after(lost(true), 0, 0)));
        tries
    }

    #[test]
    fn what_a_node_does_not_know_is_asked_for_some_time_and_an_old_id_is_replaced_twice() {
        let unknown = || Failure::Unknown(Error::new(ErrorKind::OutcomeUnknown, "unknown"));
        let mut tries = Tries::new(&Request::remove("x", Condition::None).expect("valid"), 60_000);
        tries.has_id(true);
        let mut now_ms = 1_000;
        while let Next::Again(pause_ms) = tries.after(unknown(), now_ms, 3) {
            assert!(pause_ms > 0 && tries.may_be_done());
            now_ms += pause_ms;
        }
        assert!((1_000 + UNKNOWN_AGAIN_MS..2_000 + UNKNOWN_AGAIN_MS).contains(&now_ms), "{now_ms}");
        let old = || Failure::OldId(Error::new(ErrorKind::Refused(herd_core::ErrorKind::Timeout), "old"));
        let mut tries = put();
        for _ in 0..IDS_MAX {
            assert!(tries.wants_id() && again(tries.after(old(), 0, 0)));
        }
        assert!(!tries.wants_id() && !again(tries.after(old(), 0, 0)));
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
