//! What was asked and answered, and whether a store that is right could have answered so.
//!
//! Each object is a register. An operation lasted from the moment it was asked to the moment its answer was read; it
//! took effect once in between, or, if it was not answered, perhaps. A get may give only what some put gave the object,
//! and nothing that a later change had replaced before the get began. Changes are later if they began after the other
//! ended. Versions of an object rise in the same sense.

use crate::random::value;

/// Number of an operation.
pub(crate) type OpId = usize;

/// An operation on an object.
#[derive(Clone, Debug)]
pub(crate) enum What {
    /// A value of so many bytes from that seed, which lives so long.
    Put {
        seed: u64,
        len: usize,
        ttl_ms: Option<u64>,
    },
    Remove,
    /// Its time to live is another from now on.
    Touch {
        ttl_ms: u64,
    },
    Get,
}

/// What a get gave.
#[derive(Clone, Debug)]
pub(crate) enum Seen {
    Absent,
    /// These bytes of the value from that position on, and the size of the whole.
    Bytes {
        at: usize,
        bytes: Vec<u8>,
        size: usize,
    },
    /// Only the size.
    Size(usize),
}

/// How an operation ended.
#[derive(Clone, Debug)]
pub(crate) enum Outcome {
    Done,
    /// It changed nothing.
    NotDone,
    /// It may have been done.
    Maybe,
    Got(Seen),
}

#[derive(Clone, Debug)]
struct Op {
    key: usize,
    what: What,
    begin: u64,
    begin_ms: u64,
    end: u64,
    end_ms: u64,
    outcome: Outcome,
    version: Option<u64>,
    by: &'static str,
}

/// All operations of a run.
#[derive(Default)]
pub(crate) struct History {
    ops: Vec<Op>,
    /// Orders what happens.
    moment: u64,
    /// The virtual date, ms.
    pub(crate) now_ms: u64,
    /// Objects may vanish at any time.
    pub(crate) evicts: bool,
}

/// How early an object may be found expired.
const EARLY_MS: u64 = 1_000;

impl History {
    pub(crate) fn new(evicts: bool) -> Self {
        Self { evicts, ..Self::default() }
    }

    /// An operation is asked for.
    pub(crate) fn begin(&mut self, by: &'static str, key: usize, what: What) -> OpId {
        self.moment += 1;
        let (begin, begin_ms) = (self.moment, self.now_ms);
        let (end, end_ms, outcome, version) = (u64::MAX, u64::MAX, Outcome::Maybe, None);
        self.ops.push(Op { key, what, begin, begin_ms, end, end_ms, outcome, version, by });
        self.ops.len() - 1
    }

    /// Its answer was read, or there can't be one any more.
    pub(crate) fn end(&mut self, op: OpId, outcome: Outcome, version: Option<u64>) {
        self.moment += 1;
        let op = &mut self.ops[op];
        (op.end, op.end_ms, op.outcome, op.version) = (self.moment, self.now_ms, outcome, version);
    }

    /// It turned out to be another one: a `set` that fails removes what was there.
    pub(crate) fn became(&mut self, op: OpId, what: What) {
        self.ops[op].what = what;
    }

    /// When the object changed last at the latest, by a request or by its end; never where objects are evicted.
    pub(crate) fn rests_since_ms(&self, key: usize) -> u64 {
        if self.evicts {
            return u64::MAX;
        }
        let last = |op: &Op| match op.what {
            What::Get => 0,
            What::Put { ttl_ms, .. } => op.end_ms.saturating_add(ttl_ms.unwrap_or(0)),
            What::Touch { ttl_ms } => op.end_ms.saturating_add(ttl_ms),
            What::Remove => op.end_ms,
        };
        self.ops.iter().filter(|op| op.key == key).map(last).max().unwrap_or(0)
    }

    /// The first thing that can't be.
    pub(crate) fn check(&self) -> Result<(), String> {
        let keys = self.ops.iter().map(|op| op.key + 1).max().unwrap_or(0);
        for key in 0..keys {
            let ops: Vec<&Op> = self.ops.iter().filter(|op| op.key == key).collect();
            for get in &ops {
                if let Outcome::Got(seen) = &get.outcome {
                    self.check_get(&ops, get, seen).map_err(|why| self.tell(&ops, get, &why))?;
                }
            }
            check_versions(&ops).map_err(|(op, why)| self.tell(&ops, op, &why))?;
        }
        Ok(())
    }

    fn check_get(&self, ops: &[&Op], get: &Op, seen: &Seen) -> Result<(), String> {
        if let Seen::Absent = seen {
            return if self.may_be_absent(ops, get) { Ok(()) } else { Err("the object was there".into()) };
        }
        let is_touched = |put: &Op| ops.iter().any(|op| matches!(op.what, What::Touch { .. }) && op.end >= put.begin);
        let fits = |put: &&&Op| {
            let What::Put { seed, len, ttl_ms } = put.what else { return false };
            let dead_ms = ttl_ms.map_or(u64::MAX, |ttl_ms| put.end_ms.saturating_add(ttl_ms));
            put.is_possible()
                && put.begin <= get.end
                && seen.is_of(seed, len)
                && (dead_ms > get.begin_ms || is_touched(put))
        };
        let mut puts = ops.iter().filter(fits).peekable();
        if puts.peek().is_none() {
            return Err("no put gave it these bytes, or they had expired".into());
        }
        let replaced = |put: &Op| {
            ops.iter().any(|op| op.is_change() && op.is_done() && op.begin >= put.end && op.end <= get.begin)
        };
        if puts.all(|put| replaced(put)) { Err("these bytes had been replaced".into()) } else { Ok(()) }
    }

    fn may_be_absent(&self, ops: &[&Op], get: &Op) -> bool {
        if self.evicts {
            return true;
        }
        let touched = ops.iter().any(|op| match op.what {
            What::Touch { ttl_ms } => {
                op.begin <= get.end && op.begin_ms + ttl_ms <= get.end_ms.saturating_add(EARLY_MS)
            }
            _ => false,
        });
        let expired = |op: &Op| match op.what {
            What::Put { ttl_ms: Some(ttl_ms), .. } => op.begin_ms + ttl_ms <= get.end_ms.saturating_add(EARLY_MS),
            _ => false,
        };
        let lasting = |op: &&&Op| {
            matches!(op.what, What::Put { .. }) && op.is_done() && op.end <= get.begin && !expired(op) && !touched
        };
        // Each put that lasted must have been removed, or replaced by what expired, by something that ended after it
        // began.
        let removes = |op: &Op| matches!(op.what, What::Remove) || expired(op);
        let removed = |put: &Op| {
            ops.iter().any(|op| removes(op) && op.is_possible() && op.begin <= get.end && op.end >= put.begin)
        };
        ops.iter().filter(lasting).all(|put| removed(put))
    }

    fn tell(&self, ops: &[&Op], at: &Op, why: &str) -> String {
        let mut text = format!("{why}: key k{}, by {}\n", at.key, at.by);
        for op in ops {
            let mark = if std::ptr::eq(*op, at) { "->" } else { "  " };
            let seen = match &op.outcome {
                Outcome::Got(Seen::Bytes { at, bytes, size }) => format!("{} bytes at {at} of {size}", bytes.len()),
                outcome => format!("{outcome:?}"),
            };
            let (begin, end) = (op.begin, if op.end == u64::MAX { "-".into() } else { op.end.to_string() });
            let line = format!("{mark} {begin}..{end} {} ms {} {:?}: {seen}", op.begin_ms, op.by, op.what);
            text += &format!("{line}, version {:?}\n", op.version);
        }
        text
    }
}

impl Op {
    fn is_change(&self) -> bool {
        matches!(self.what, What::Put { .. } | What::Remove)
    }

    fn is_done(&self) -> bool {
        matches!(self.outcome, Outcome::Done)
    }

    fn is_possible(&self) -> bool {
        !matches!(self.outcome, Outcome::NotDone)
    }
}

impl Seen {
    fn is_of(&self, seed: u64, len: usize) -> bool {
        match self {
            Seen::Absent => false,
            Seen::Size(size) => *size == len,
            Seen::Bytes { at, bytes, size } => {
                let end = at + bytes.len();
                *size == len && end <= len && value(seed, len)[*at..end] == bytes[..]
            }
        }
    }
}

/// Versions never fall, and a change has a higher one than all that ended before it began.
fn check_versions<'a>(ops: &[&'a Op]) -> Result<(), (&'a Op, String)> {
    for later in ops {
        let Some(version) = later.version else { continue };
        for earlier in ops.iter().filter(|earlier| earlier.end < later.begin) {
            let Some(before) = earlier.version else { continue };
            // So does a change of the time to live in between.
            let touched = ops.iter().any(|op| {
                let between = op.begin > earlier.end && op.end < later.begin;
                matches!(op.what, What::Touch { .. }) && op.is_done() && between
            });
            let changes = touched || (later.is_change() && later.is_done());
            let rises = if changes { version > before } else { version >= before };
            if !rises {
                return Err((later, format!("version {version} follows {before}")));
            }
        }
    }
    Ok(())
}
