//! The rules in memory, and the bytes of the file: cut anywhere, and with any byte changed.

use super::file::{FileError, read, record, whole};
use super::suite::{Place, run};
use super::table::{Judged, Record};
use super::{Control, ControlError, Entry, Outcome, Snapshot, Table, Txn, Write};
use crate::chance::Chance;
use crate::limits::{CONTROL_MAX_BYTES, CONTROL_TXN_MAX_BYTES, CONTROL_VALUE_MAX_BYTES};
use std::sync::Arc;

/// A store in memory; a restart takes its snapshot along, as a file would.
#[derive(Default)]
struct Memory {
    table: Table,
    now_ms: u64,
}

impl Place for Memory {
    type Store = Table;

    fn fresh(&mut self) {
        self.table = Table::default();
    }

    fn store(&mut self) -> &mut Table {
        &mut self.table
    }

    fn restart(&mut self) {
        self.table = Table::restored(self.table.all()).expect("what it held");
    }

    fn pass_ms(&mut self, ms: u64) {
        self.now_ms += ms;
    }

    fn now_ms(&self) -> u64 {
        self.now_ms
    }
}

#[test]
fn the_table_keeps_every_promise() {
    for seed in 0..20 {
        let mut chance = Chance(seed);
        run(&mut Memory::default(), &mut |end| chance.below(end));
    }
}

fn put(key: &str, value: &[u8]) -> Write {
    Write::Put { key: key.into(), value: Arc::from(value) }
}

fn record_of(table: &Table, writes: Vec<Write>) -> Record {
    match table.judge(&Txn { writes, ..Txn::default() }) {
        Ok(Judged::Writes(record)) => record,
        other => panic!("{other:?}"),
    }
}

/// A file with a snapshot and some records, and what it holds after each of them with the bytes until there.
fn file() -> (Vec<u8>, Vec<(usize, Snapshot)>) {
    let entry = |key: &str, revision| Entry { key: key.into(), value: Arc::from(&b"value"[..]), revision };
    let snapshot = Snapshot { revision: 7, term: 2, entries: vec![entry("a", 3), entry("b", 7)] };
    let mut bytes = whole(&snapshot);
    let mut table = Table::restored(snapshot.clone()).expect("a snapshot");
    let mut states = vec![(bytes.len(), snapshot)];
    for writes in [
        vec![put("c", b"1"), Write::Delete { key: "a".into() }],
        vec![],
        vec![put("b", &[0; 40])],
        vec![put("d", b""), put("e", b"\xFF")],
    ] {
        let next = match writes.is_empty() {
            true => table.stand("anna", 1, 0).expect("a candidacy").expect("the office is free"),
            false => record_of(&table, writes),
        };
        bytes.extend(record(&next));
        table.apply(next);
        states.push((bytes.len(), table.all()));
    }
    (bytes, states)
}

#[test]
fn a_file_that_is_cut_anywhere_holds_all_that_was_whole() {
    let (bytes, states) = file();
    for end in 0..=bytes.len() {
        let (whole, last) =
            states.iter().rev().find(|(until, _)| *until <= end).map_or((0, None), |it| (it.0, Some(&it.1)));
        match (read(&bytes[..end]), last) {
            (Ok((table, dropped)), Some(state)) => {
                assert_eq!((&table.all(), dropped), (state, end - whole), "cut at {end}");
            }
            // A snapshot takes its place when it is whole: no crash cuts it.
            (Err(_), None) => {}
            (other, _) => panic!("cut at {end}: {other:?}"),
        }
    }
}

#[test]
fn an_end_that_never_reached_the_disk_is_dropped() {
    let (bytes, states) = file();
    let (until, state) = &states[states.len() - 2];
    let mut chance = Chance(1);
    for length in 0..bytes.len() - until {
        let zeros = vec![0; length];
        let noise: Vec<u8> = (0..length).map(|_| chance.next() as u8).collect();
        let mut holed = bytes[*until..].to_vec();
        holed[..length].fill(0);
        for end in [zeros, noise, holed] {
            let torn = [&bytes[..*until], &end].concat();
            if torn == bytes {
                continue;
            }
            let (table, dropped) = read(&torn).expect("the rest is whole");
            assert_eq!((&table.all(), dropped), (state, end.len()));
        }
    }
}

#[test]
fn a_byte_that_changed_before_the_last_record_is_damage() {
    let (bytes, states) = file();
    let last_starts = states[states.len() - 2].0;
    for at in 0..bytes.len() {
        let mut changed = bytes.clone();
        changed[at] ^= 1 << (at % 8);
        match read(&changed) {
            Ok((table, _)) => {
                assert!(at >= last_starts, "byte {at}");
                assert_eq!(table.all(), states[states.len() - 2].1);
            }
            Err(FileError::NotAStore) => assert!(at < 7),
            Err(FileError::Version(_)) => assert_eq!(at, 7),
            Err(FileError::Damaged(found, _)) => assert!(at < last_starts && found <= at, "byte {at}, found {found}"),
        }
    }
}

#[test]
fn a_long_damaged_end_is_no_crash() {
    let (bytes, _) = file();
    let long = [bytes, vec![0; CONTROL_TXN_MAX_BYTES + 100]].concat();
    assert!(matches!(read(&long), Err(FileError::Damaged(..))));
}

#[test]
fn records_that_do_not_follow_are_damage() {
    let (bytes, states) = file();
    let (revision, term) = states.last().map(|(_, state)| (state.revision, state.term)).expect("states");
    let writes = || vec![put("x", b"1")];
    for wrong in [
        Record { revision, term, writes: writes() },
        Record { revision: revision + 2, term, writes: writes() },
        Record { revision: revision + 1, term: term - 1, writes: writes() },
        Record { revision: revision + 1, term: u64::MAX, writes: writes() },
        Record { revision: revision + 1, term, writes: [writes(), writes()].concat() },
    ] {
        let file = [bytes.clone(), record(&wrong)].concat();
        assert!(matches!(read(&file), Err(FileError::Damaged(at, _)) if at == bytes.len()), "{wrong:?}");
    }
    let newest = whole(&Snapshot { revision: u64::MAX, ..Snapshot::default() });
    assert!(matches!(read(&newest), Err(FileError::Damaged(..))));
}

#[test]
fn golden_bytes() {
    let value = Arc::from(&b"v"[..]);
    let entries = vec![Entry { key: "k".into(), value, revision: 2 }];
    let mut bytes = whole(&Snapshot { revision: 3, term: 1, entries });
    let writes = vec![Write::Delete { key: "k".into() }, put("n", b"w")];
    bytes.extend(record(&Record { revision: 4, term: 1, writes }));
    // Made by another program from FORMATS.md.
    let golden = concat!(
        "4845524443544c0103000000000000000100000000000000010000003a5f0fee08000000020000000000000001000000",
        "000000008fa1751d4bc4ef2401016b01000000760b00000004000000000000000100000000000000b8e17dc5df236178",
        "00016b01016e0100000077",
    );
    assert_eq!(bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>(), golden);
}

#[test]
fn a_full_store_says_so_and_takes_what_makes_it_smaller() {
    let mut table = Table::default();
    let value: Arc<[u8]> = Arc::from(vec![7; CONTROL_VALUE_MAX_BYTES]);
    let large = |n: usize| Txn {
        writes: vec![Write::Put { key: format!("k/{n:05}"), value: value.clone() }],
        ..Txn::default()
    };
    let count = (0..).take_while(|n| matches!(table.txn(&large(*n)), Ok(Outcome::Done(_)))).count();
    assert!(count > CONTROL_MAX_BYTES / CONTROL_VALUE_MAX_BYTES - 10);
    assert!(matches!(table.txn(&large(count)), Err(ControlError::Full(_))));
    assert!(table.size_bytes() <= CONTROL_MAX_BYTES);
    let smaller = Txn { writes: vec![put("k/00000", b""), Write::Delete { key: "k/00001".into() }], ..Txn::default() };
    assert!(matches!(table.txn(&smaller), Ok(Outcome::Done(_))));
    assert!(matches!(table.txn(&large(count)), Ok(Outcome::Done(_))));
}
