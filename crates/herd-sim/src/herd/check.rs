//! Whether what was asked and answered can have happened one after the other: a search for such an order, object by
//! object (Wing and Gong, with the memory of Lowe).
//!
//! An operation took effect once between the moment it was asked and the moment its answer was read. One that was not
//! answered took effect at any time after it was asked, or never. An order is found by trying: what has not ended
//! before something else began may come next, if its answer fits the state. A state that was met before with the same
//! operations done is not tried again. Versions belong to the state: they rise with each change, and none falls.
//!
//! Callers: the herd's world, and tests with histories that can't be.

use std::collections::{HashMap, HashSet};
use std::fmt::Write;

/// States tried for one object before the search gives up: a history that takes more is neither right nor wrong.
const TRIES_MAX: usize = 2_000_000;

/// What was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ask {
    Get,
    /// A change of the value, where that is allowed.
    Put {
        value: Vec<u8>,
        when: When,
    },
    /// Adds to what is there; `create`: also to nothing.
    Append {
        value: Vec<u8>,
        create: bool,
    },
    /// Adds to the number that is there; `create`: or to 0.
    Count {
        delta: i64,
        create: bool,
    },
    /// The value; the object is gone.
    Take,
    Remove,
    /// Takes the lock for longer than a run lasts.
    Lock,
    /// Gives it back.
    Unlock {
        grant: u64,
    },
    /// Shows the token of a lock's grant, which the object remembers, or its name where there is none.
    Guarded {
        what: Guarded,
        grant: u64,
    },
    /// All copies were lost: nobody asked for it.
    Lose,
}

/// What is asked by who shows a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Guarded {
    Get,
    Put(Vec<u8>),
    Remove,
}

/// When a put puts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum When {
    Always,
    Absent,
    Present,
    /// The version is this one.
    Version(u64),
    /// The value is this one.
    Value(Vec<u8>),
}

/// What was answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// None: it took effect, or will, or never does.
    Open,
    /// It had no effect, and tells nothing of the object.
    Nothing,
    /// The same, for want of memory.
    Full,
    /// A value, or none.
    Value(Option<Vec<u8>>),
    /// It was done.
    Done,
    /// There was no object.
    Absent,
    /// What was to be there was not.
    Differs,
    /// The number after it.
    Number(i64),
    /// The lock is held under this number.
    Granted(u64),
}

/// An operation on one object, and its answer.
#[derive(Clone, Debug)]
pub(crate) struct Op {
    pub(crate) ask: Ask,
    pub(crate) answer: Answer,
    /// Version that was told: of what was read, or made.
    pub(crate) version: Option<u64>,
    /// Order of the moments at which it was asked and its answer was read.
    pub(crate) begin: u64,
    pub(crate) end: u64,
    /// When an operation began that must stand before this one, if both were answered: it was asked before it on the
    /// same connection.
    pub(crate) after: Option<u64>,
    /// Who asked, and when, for people who read it.
    pub(crate) by: String,
}

/// What a search found.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// There is an order.
    Right,
    /// There is none; what was tried last.
    Wrong(String),
    /// It takes too long to tell.
    TooMany,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct State {
    /// Number of the value among those met; `None`: absent.
    value: Option<u32>,
    /// Its version, once known; else 0.
    version: u64,
    /// No later version is below it.
    floor: u64,
    /// The highest grant that was shown.
    shown: u64,
}

/// A lock held by somebody who was not answered.
const HELD_BY_NOBODY: &[u8] = b"lock of ?";
const LOCK: &[u8] = b"lock of ";

/// What stands for the value of a lock that is held under this grant.
pub(crate) fn lock_value(grant: u64) -> Vec<u8> {
    [LOCK, grant.to_string().as_bytes()].concat()
}

/// Looks for an order of these operations on one object.
pub(crate) fn check(ops: &[Op]) -> Verdict {
    let has_effect = |op: &&Op| !matches!(op.answer, Answer::Nothing | Answer::Full);
    let counts = |op: &&Op| has_effect(op) && !(op.answer == Answer::Open && op.ask == Ask::Get);
    let mut ops: Vec<&Op> = ops.iter().filter(counts).collect();
    ops.sort_by_key(|op| op.begin);
    let mut search = Search { values: Values::default(), ops, met: HashSet::new(), best: (0, Vec::new()) };
    search.run()
}

#[derive(Default)]
struct Values {
    all: Vec<Vec<u8>>,
    numbers: HashMap<Vec<u8>, u32>,
}

impl Values {
    fn number(&mut self, value: &[u8]) -> u32 {
        if let Some(number) = self.numbers.get(value) {
            return *number;
        }
        let number = self.all.len() as u32;
        self.all.push(value.to_vec());
        self.numbers.insert(value.to_vec(), number);
        number
    }
}

/// Which operations are done: a bit each.
type Done = Vec<u64>;

fn is_done(done: &Done, at: usize) -> bool {
    done[at / 64] >> (at % 64) & 1 == 1
}

struct Search<'a> {
    values: Values,
    ops: Vec<&'a Op>,
    met: HashSet<(Done, State, bool)>,
    /// Most operations that were answered and put in order so far, and which were left then.
    best: (usize, Vec<usize>),
}

/// A place in the search: what may still be tried there.
struct Place {
    done: Done,
    state: State,
    /// The last one has no answer, so whoever comes next must be one that sees what it did: else it may as well never
    /// have been done.
    is_owed: bool,
    ordered: usize,
    next: Vec<usize>,
}

impl Search<'_> {
    fn run(&mut self) -> Verdict {
        let answered = self.ops.iter().filter(|op| op.answer != Answer::Open).count();
        let first = State { value: None, version: 0, floor: 0, shown: 0 };
        let mut path = vec![self.place(vec![0; self.ops.len() / 64 + 1], first, false, 0)];
        while let Some(place) = path.last_mut() {
            if place.ordered == answered {
                return Verdict::Right;
            }
            let Some(at) = place.next.pop() else {
                path.pop();
                continue;
            };
            let op = self.ops[at];
            let (is_open, before) = (op.answer == Answer::Open, place.state);
            if place.is_owed && op.is_blind() {
                continue;
            }
            let (mut done, mut ordered) = (place.done.clone(), place.ordered);
            let Some(state) = self.step(before, at) else { continue };
            if is_open && state == before {
                continue;
            }
            if !is_open && state == before {
                // It changes nothing and fits: were there an order with it later, there would be one with it here.
                place.next.clear();
            }
            done[at / 64] |= 1 << (at % 64);
            ordered += usize::from(!is_open);
            if self.met.insert((done.clone(), state, is_open)) {
                path.push(self.place(done, state, is_open, ordered));
            }
            if self.met.len() > TRIES_MAX {
                return Verdict::TooMany;
            }
        }
        Verdict::Wrong(self.tell())
    }

    /// What may come next: all that began before the first end of what is left. Tried last first: so those without an
    /// answer stand in front, and who ended first at the end.
    fn place(&mut self, done: Done, state: State, is_owed: bool, ordered: usize) -> Place {
        let left = || (0..self.ops.len()).filter(|at| !is_done(&done, *at));
        let waits = |at: usize| {
            let before = |begin: u64| self.ops.binary_search_by_key(&begin, |op| op.begin).ok();
            let before = self.ops[at].after.and_then(before);
            before.is_some_and(|before| self.ops[before].answer != Answer::Open && !is_done(&done, before))
        };
        let end = |at: usize| match self.ops[at].answer {
            Answer::Open => u64::MAX,
            _ => self.ops[at].end,
        };
        let first_end = left().map(end).min().unwrap_or(u64::MAX);
        let mut next: Vec<usize> = left().filter(|at| self.ops[*at].begin < first_end && !waits(*at)).collect();
        let is_get = |at: usize| self.ops[at].ask == Ask::Get;
        next.sort_by_key(|at| std::cmp::Reverse((!is_get(*at), end(*at), self.ops[*at].begin)));
        if ordered > self.best.0 || self.best.1.is_empty() {
            self.best = (ordered, left().filter(|at| self.ops[*at].begin <= first_end).collect());
        }
        Place { done, state, is_owed, ordered, next }
    }

    /// The state after the operation, if its answer fits the one before.
    fn step(&mut self, state: State, at: usize) -> Option<State> {
        let op = self.ops[at];
        let is_open = op.answer == Answer::Open;
        match &op.ask {
            Ask::Get => self.fits(state, op),
            Ask::Take => {
                let state = if is_open { state } else { self.fits(state, op)? };
                Some(if state.value.is_some() { gone(state) } else { state })
            }
            Ask::Remove => match (&op.answer, state.value) {
                (Answer::Open, None) | (Answer::Absent, None) => Some(state),
                (Answer::Open | Answer::Done, Some(_)) => Some(gone(state)),
                _ => None,
            },
            Ask::Lose => Some(State { shown: 0, ..gone(state) }),
            Ask::Guarded { grant, .. } if *grant < state.shown => {
                matches!(op.answer, Answer::Open | Answer::Differs).then_some(state)
            }
            Ask::Guarded { what, grant } => self.guarded(state, op, what, *grant),
            Ask::Put { value, when } => self.put(state, op, value, when),
            Ask::Append { value, create } => match (&op.answer, state.value) {
                (Answer::Open | Answer::Absent, None) if !create => Some(state),
                (Answer::Open | Answer::Done, before) if *create || before.is_some() => {
                    let before = before.map(|before| self.values.all[before as usize].clone());
                    let after = [before.unwrap_or_default(), value.clone()].concat();
                    self.changed(state, op, &after)
                }
                _ => None,
            },
            Ask::Count { delta, create } => self.count(state, op, *delta, *create),
            Ask::Lock => match (&op.answer, state.value) {
                (Answer::Open | Answer::Differs, Some(_)) => Some(state),
                (Answer::Open, None) => self.changed(state, op, HELD_BY_NOBODY),
                (Answer::Granted(grant), None) if *grant > state.floor => {
                    let value = Some(self.values.number(&lock_value(*grant)));
                    Some(State { value, version: 0, floor: *grant, ..state })
                }
                _ => None,
            },
            Ask::Unlock { grant } => {
                let own = self.values.number(&lock_value(*grant));
                match (&op.answer, state.value == Some(own)) {
                    (Answer::Open | Answer::Done, true) => Some(gone(state)),
                    (Answer::Open | Answer::Differs, false) => Some(state),
                    _ => None,
                }
            }
        }
    }

    /// The state that a get saw, with what it tells of the version.
    fn fits(&mut self, state: State, op: &Op) -> Option<State> {
        let Answer::Value(value) = &op.answer else { return None };
        if let Some(value) = value.as_ref().filter(|value| value.starts_with(LOCK))
            && state.value == Some(self.values.number(HELD_BY_NOBODY))
        {
            let value = Some(self.values.number(value));
            return self.is_of(State { value, ..state }, op.version);
        }
        let value = value.as_ref().map(|value| self.values.number(value));
        if value != state.value {
            return None;
        }
        // What is taken tells the version at most of what it left.
        let version = op.version.filter(|_| value.is_some() && op.ask == Ask::Get);
        self.is_of(state, version)
    }

    /// The state, if its version may be the one that was told.
    fn is_of(&self, state: State, version: Option<u64>) -> Option<State> {
        match version {
            None => Some(state),
            Some(version) if state.version == version => Some(state),
            Some(version) if state.version == 0 && version >= state.floor => {
                Some(State { version, floor: version, ..state })
            }
            Some(_) => None,
        }
    }

    fn put(&mut self, state: State, op: &Op, value: &[u8], when: &When) -> Option<State> {
        let there = state.value;
        // Whether the condition holds; `None`: nobody knows.
        let holds = match when {
            When::Always => Some(true),
            When::Absent => Some(there.is_none()),
            When::Present => Some(there.is_some()),
            When::Version(_) if there.is_none() => Some(false),
            When::Version(version) => (state.version != 0).then_some(state.version == *version),
            When::Value(expected) => Some(there == Some(self.values.number(expected))),
        };
        let no = match op.answer {
            Answer::Absent => there.is_none(),
            Answer::Differs => true,
            _ => false,
        };
        match (&op.answer, holds) {
            (Answer::Done, Some(true) | None) => {
                let state = match when {
                    When::Version(version) => self.is_of(state, Some(*version))?,
                    _ => state,
                };
                self.changed(state, op, value)
            }
            (Answer::Open, Some(false)) => Some(state),
            // Whoever does not know tries both: that it did nothing is what never taking effect is, too.
            (Answer::Open, Some(true) | None) => self.changed(state, op, value),
            (_, Some(false) | None) if no => Some(state),
            _ => None,
        }
    }

    /// The token is no earlier one than was shown before.
    fn guarded(&mut self, state: State, op: &Op, what: &Guarded, grant: u64) -> Option<State> {
        let is_open = op.answer == Answer::Open;
        let state = match (what, state.value) {
            (Guarded::Get, there) => {
                let state = if is_open { state } else { self.fits(state, op)? };
                // That an object remembers another token makes a version of it.
                let is_new = there.is_some() && grant != state.shown;
                if is_new { State { version: 0, floor: state.floor + 1, ..state } } else { state }
            }
            (Guarded::Put(value), _) if is_open || op.answer == Answer::Done => self.changed(state, op, value)?,
            (Guarded::Remove, Some(_)) if is_open || op.answer == Answer::Done => gone(state),
            // There is nothing to remember it by.
            (Guarded::Remove, None) if is_open || op.answer == Answer::Absent => return Some(state),
            _ => return None,
        };
        Some(State { shown: grant, ..state })
    }

    fn count(&mut self, state: State, op: &Op, delta: i64, create: bool) -> Option<State> {
        let before = match state.value {
            None if !create => {
                return matches!(op.answer, Answer::Open | Answer::Absent).then_some(state);
            }
            None => 0,
            Some(value) => std::str::from_utf8(&self.values.all[value as usize]).ok()?.trim().parse::<i64>().ok()?,
        };
        let after = before.wrapping_add(delta);
        match op.answer {
            Answer::Open => {}
            Answer::Number(told) if told == after => {}
            _ => return None,
        }
        self.changed(state, op, after.to_string().as_bytes())
    }

    /// The state after a change to this value.
    fn changed(&mut self, state: State, op: &Op, value: &[u8]) -> Option<State> {
        let value = Some(self.values.number(value));
        match op.version.filter(|_| op.answer != Answer::Open) {
            Some(version) if version > state.floor => Some(State { value, version, floor: version, ..state }),
            Some(_) => None,
            None => Some(State { value, version: 0, floor: state.floor + 1, ..state }),
        }
    }

    fn tell(&self) -> String {
        let mut text = format!("{} operations can stand in order, and then none of these:\n", self.best.0);
        for at in &self.best.1 {
            writeln!(text, "  {}", self.ops[*at]).expect("a string takes all");
        }
        text
    }
}

impl Op {
    /// Whether it neither sees nor needs what was there before.
    fn is_blind(&self) -> bool {
        matches!(self.ask, Ask::Put { when: When::Always, .. } | Ask::Lose)
    }
}

/// Nothing is there any more.
fn gone(state: State) -> State {
    State { value: None, version: 0, floor: state.floor + 1, ..state }
}

impl std::fmt::Display for Op {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let end = if self.answer == Answer::Open { "-".into() } else { self.end.to_string() };
        let short = |value: &[u8]| {
            let text = String::from_utf8_lossy(&value[..value.len().min(24)]).into_owned();
            if value.len() > 24 { format!("{text}.. ({} bytes)", value.len()) } else { text }
        };
        let ask = match &self.ask {
            Ask::Put { value, when: When::Value(than) } => format!("Put '{}' where '{}'", short(value), short(than)),
            Ask::Put { value, when } => format!("Put '{}' {when:?}", short(value)),
            Ask::Guarded { what: Guarded::Put(value), grant } => format!("Put '{}' under {grant}", short(value)),
            Ask::Append { value, create } => format!("Append '{}' create {create}", short(value)),
            ask => format!("{ask:?}"),
        };
        let answer = match &self.answer {
            Answer::Value(Some(value)) => format!("'{}'", short(value)),
            Answer::Value(None) => "nothing".into(),
            answer => format!("{answer:?}"),
        };
        let version =
            self.version.map_or_else(String::new, |v| format!(", version {}:{}", v >> 40, v & ((1 << 40) - 1)));
        write!(f, "{}..{end} {}: {ask}: {answer}{version}", self.begin, self.by)
    }
}

#[cfg(test)]
mod tests;
