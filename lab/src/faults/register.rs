//! A register: one object that one client writes, each time with the next number, and that anybody may read. Pure.
//!
//! As nobody else writes it, what a read may tell follows from what its writer was told: at least what had been
//! acknowledged, or read by anybody, when the read was asked; at most what had been tried when it was answered; and
//! never what was refused. After a write of unknown outcome nothing more is written to it: so that write may still be
//! done at any time, and yet no number ever goes back. Nor is there after a `set` by memcached's protocol that found no
//! room: that removes what was there.

use std::collections::BTreeSet;

/// How a write ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Acknowledged,
    /// The client was told that nothing was done.
    Refused,
    /// It was not done, and what was there before may have been removed in its place.
    Removed,
    /// It may have been done, or may yet be.
    Unknown,
}

/// What is wrong with a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wrong {
    /// It tells less than it must.
    Old { must: u64, told: u64 },
    /// It tells what nobody has written.
    Invented(u64),
    /// It tells what was refused.
    Refused(u64),
}

/// What is known of a register.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Register {
    pub(crate) name: String,
    tried: u64,
    /// The latest number that was acknowledged or read; 0: none.
    floor: u64,
    refused: BTreeSet<u64>,
    /// Nothing more is written to it.
    is_closed: bool,
    /// It may be absent, whatever had been written.
    may_be_absent: bool,
}

impl Register {
    pub(crate) fn new(name: String) -> Self {
        Self { name, ..Self::default() }
    }

    /// The number of the write that begins now; none if there may be no more.
    pub(crate) fn begin(&mut self) -> Option<u64> {
        if self.is_closed {
            return None;
        }
        self.tried += 1;
        Some(self.tried)
    }

    /// The write of that number has ended.
    pub(crate) fn end(&mut self, number: u64, end: End) {
        match end {
            End::Acknowledged => self.floor = self.floor.max(number),
            End::Refused => drop(self.refused.insert(number)),
            End::Removed => {
                self.refused.insert(number);
                (self.is_closed, self.may_be_absent) = (true, true);
            }
            End::Unknown => self.is_closed = true,
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// What a read that is asked now must tell at least.
    pub(crate) fn floor(&self) -> u64 {
        self.floor
    }

    /// Judges a read that was asked when the floor was `must`; 0: there is no such object.
    pub(crate) fn read(&mut self, must: u64, told: u64) -> Result<(), Wrong> {
        if told > self.tried {
            return Err(Wrong::Invented(told));
        }
        if self.refused.contains(&told) {
            return Err(Wrong::Refused(told));
        }
        if told == 0 && self.may_be_absent {
            return Ok(());
        }
        if told < must {
            return Err(Wrong::Old { must, told });
        }
        self.floor = self.floor.max(told);
        Ok(())
    }

    /// The value of that number.
    pub(crate) fn value(&self, number: u64) -> String {
        value(&self.name, number)
    }

    /// The number of a value that was read; none if it is no whole value of this register.
    pub(crate) fn number(&self, value: &str) -> Option<u64> {
        let number = value.split_once(' ')?.0.parse().ok()?;
        (value == self.value(number)).then_some(number)
    }
}

/// Most values are short; one in so many is as long as fits in a block.
const LONG_EACH: u64 = 16;
const SHORT_BYTES: usize = 120;
const LONG_BYTES: usize = 60_000;

/// Number, name, and letters that depend on both, so that halves of two values make no value.
fn value(name: &str, number: u64) -> String {
    let bytes = if number.is_multiple_of(LONG_EACH) { LONG_BYTES } else { SHORT_BYTES };
    let unit = format!("{number} {name};");
    let mut value = unit.repeat(bytes.div_ceil(unit.len()));
    value.truncate(bytes);
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(ends: &[End]) -> Register {
        let mut register = Register::new("r".into());
        for end in ends {
            let number = register.begin().expect("it is open");
            register.end(number, *end);
        }
        register
    }

    #[test]
    fn a_read_tells_what_was_acknowledged_when_it_was_asked_or_later() {
        let mut register = written(&[End::Acknowledged, End::Acknowledged]);
        let must = register.floor();
        assert_eq!(register.read(must, 1), Err(Wrong::Old { must: 2, told: 1 }));
        assert_eq!(register.read(must, 0), Err(Wrong::Old { must: 2, told: 0 }));
        assert_eq!(register.read(must, 3), Err(Wrong::Invented(3)));
        assert_eq!(register.begin(), Some(3));
        assert_eq!(register.read(must, 3), Ok(()), "it is under way");
        assert_eq!(register.read(register.floor(), 2), Err(Wrong::Old { must: 3, told: 2 }), "it was read");
        assert_eq!(register.read(must, 2), Ok(()), "asked before that");
    }

    #[test]
    fn refused_is_refused() {
        let mut register = written(&[End::Acknowledged, End::Refused]);
        assert_eq!(register.read(1, 2), Err(Wrong::Refused(2)));
        assert_eq!(register.read(1, 1), Ok(()));
        assert_eq!(register.begin(), Some(3));
    }

    #[test]
    fn a_write_without_room_may_have_removed_what_was_there_and_nothing_else() {
        let mut register = written(&[End::Acknowledged, End::Removed]);
        assert_eq!(register.begin(), None);
        assert_eq!((register.read(1, 1), register.read(1, 0)), (Ok(()), Ok(())));
        assert_eq!(register.read(1, 2), Err(Wrong::Refused(2)));
    }

    #[test]
    fn nothing_follows_an_unknown_outcome() {
        let mut register = written(&[End::Acknowledged, End::Unknown]);
        assert_eq!(register.begin(), None);
        assert_eq!(register.read(1, 1), Ok(()));
        assert_eq!(register.read(1, 2), Ok(()));
        assert_eq!(register.read(register.floor(), 1), Err(Wrong::Old { must: 2, told: 1 }));
    }

    #[test]
    fn values_are_whole_or_none() {
        let register = Register::new("r-1".into());
        for number in [1, 16, 123] {
            let value = register.value(number);
            assert_eq!(register.number(&value), Some(number));
            assert_eq!(register.number(&value[..value.len() - 1]), None);
            assert_eq!(Register::new("r-2".into()).number(&value), None);
        }
        assert_eq!(register.number(""), None);
    }
}
