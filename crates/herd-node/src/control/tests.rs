//! The embedded control store: all that any store promises, on a real disk; and a disk that fails, or loses what was
//! not synced, at any moment.

mod home;

use super::disk::{Disk, Failed};
use super::embedded::{Opening, Store};
use super::{Home, OpenError};
use herd_core::control::suite::{Place, run};
use herd_core::control::{Control, ControlError, Outcome, Range, Txn, Write};
use herd_core::warden::MoveId;
use std::cell::RefCell;
use std::fs;
use std::io;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use tempfile::TempDir;

fn open(path: &Path) -> Result<Box<dyn Control + Send>, OpenError> {
    Home::open(path)?.store()
}

/// A store in a directory of this machine.
struct Real {
    directory: TempDir,
    store: Option<Box<dyn Control + Send>>,
    now_ms: u64,
}

impl Real {
    fn new() -> Self {
        let directory = TempDir::new().expect("a directory");
        let store = Some(open(directory.path()).expect("an empty place"));
        Self { directory, store, now_ms: 0 }
    }
}

impl Place for Real {
    type Store = dyn Control + Send;

    fn fresh(&mut self) {
        *self = Self::new();
    }

    fn store(&mut self) -> &mut Self::Store {
        self.store.as_deref_mut().expect("it is open")
    }

    fn restart(&mut self) {
        self.store = None;
        self.store = Some(open(self.directory.path()).expect("it was there"));
    }

    fn pass_ms(&mut self, ms: u64) {
        self.now_ms += ms;
    }

    fn now_ms(&self) -> u64 {
        self.now_ms
    }
}

/// Numbers from a seed: a linear congruence (Knuth's MMIX), of which the high bits are used.
fn chance(seed: u64) -> impl FnMut(u64) -> u64 {
    let mut state = seed;
    move |end| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % end
    }
}

#[test]
fn the_embedded_store_keeps_every_promise() {
    run(&mut Real::new(), &mut chance(1));
}

/// A store that goes to another directory whenever its process would begin anew.
struct Moving(Real, u8);

impl Place for Moving {
    type Store = dyn Control + Send;

    fn fresh(&mut self) {
        *self = Self(Real::new(), 0);
    }

    fn store(&mut self) -> &mut Self::Store {
        self.0.store()
    }

    fn restart(&mut self) {
        let all = self.0.store().snapshot().expect("a snapshot");
        self.1 += 1;
        let (id, directory) = (MoveId([self.1; 16]), TempDir::new().expect("a directory"));
        Home::open(directory.path()).expect("an empty place").prepare(id, &all).expect("it has room");
        let store = Home::open(directory.path()).expect("it is there").begin(id).expect("it is there");
        self.0 = Real { directory, store: Some(store), now_ms: self.0.now_ms };
    }

    fn pass_ms(&mut self, ms: u64) {
        self.0.pass_ms(ms);
    }

    fn now_ms(&self) -> u64 {
        self.0.now_ms()
    }
}

#[test]
fn a_store_that_moves_keeps_every_promise() {
    run(&mut Moving(Real::new(), 0), &mut chance(2));
}

fn put(key: &str, value: impl AsRef<[u8]>) -> Txn {
    let value = Arc::from(value.as_ref());
    Txn { writes: vec![Write::Put { key: key.into(), value }], ..Txn::default() }
}

fn done(store: &mut (impl Control + ?Sized), txn: &Txn) {
    assert!(matches!(store.txn(txn), Ok(Outcome::Done(_))));
}

fn values(store: &mut (impl Control + ?Sized)) -> Vec<(String, Vec<u8>)> {
    let entries = store.range(&Range::default()).expect("a range").entries;
    entries.into_iter().map(|entry| (entry.key, entry.value.to_vec())).collect()
}

#[test]
fn a_store_has_one_owner() {
    let directory = TempDir::new().expect("a directory");
    let first = open(directory.path()).expect("an empty place");
    match open(directory.path()) {
        Err(OpenError::InUse(text)) => assert!(text.contains("belongs to a node that runs"), "{text}"),
        other => panic!("{:?}", other.map(|_| ())),
    }
    drop(first);
    assert!(open(directory.path()).is_ok());
}

#[test]
fn where_nothing_can_be_written_that_is_said() {
    let directory = TempDir::new().expect("a directory");
    let file = directory.path().join("file");
    fs::write(&file, "no directory").expect("a file");
    for bad in [file.join("below"), file] {
        match open(&bad) {
            Err(OpenError::NoPlace(text)) => {
                assert!(text.contains(&bad.display().to_string()) && text.contains("--data"), "{text}");
            }
            other => panic!("{:?}", other.map(|_| ())),
        }
    }
}

#[test]
fn what_can_t_be_believed_is_left_as_it_is() {
    let directory = TempDir::new().expect("a directory");
    let path = directory.path().join("control");
    let mut store = open(directory.path()).expect("an empty place");
    done(&mut *store, &put("a", "1"));
    done(&mut *store, &put("b", "2"));
    drop(store);
    let mut bytes = fs::read(&path).expect("a file");
    bytes[40] ^= 1;
    let damaged = bytes.clone();
    bytes[7] = 2;
    for (content, told) in [(damaged.as_slice(), "damaged"), (&bytes, "format 2"), (b"", "not a control store")] {
        fs::write(&path, content).expect("a file");
        match open(directory.path()) {
            Err(OpenError::Damaged(text)) => assert!(text.contains(told), "{text}"),
            other => panic!("{:?}", other.map(|_| ())),
        }
        assert_eq!(fs::read(&path).expect("a file"), content);
    }
}

#[test]
fn a_file_cut_at_any_byte_of_its_log_opens_with_all_that_was_whole() {
    let directory = TempDir::new().expect("a directory");
    let path = directory.path().join("control");
    let mut store = open(directory.path()).expect("an empty place");
    let length = || fs::metadata(&path).expect("a file").len() as usize;
    let mut lengths = vec![length()];
    for n in 0..6u8 {
        done(&mut *store, &put(&format!("k{}", n % 4), [n; 5]));
        lengths.push(length());
    }
    drop(store);
    let bytes = fs::read(&path).expect("a file");
    for end in lengths[0]..=bytes.len() {
        fs::write(&path, &bytes[..end]).expect("a file");
        let mut store = open(directory.path()).expect("a store");
        let whole = lengths.iter().filter(|length| **length <= end).count() - 1;
        let mut expected: Vec<(String, Vec<u8>)> = Vec::new();
        for n in 0..whole as u8 {
            expected.retain(|(key, _)| *key != format!("k{}", n % 4));
            expected.push((format!("k{}", n % 4), vec![n; 5]));
        }
        expected.sort();
        assert_eq!(values(&mut *store), expected, "cut at {end}");
        assert_eq!(store.snapshot().expect("a snapshot").revision, whole as u64);
        done(&mut *store, &put("more", "1"));
    }
}

#[test]
fn what_an_unfinished_renewal_left_is_no_harm() {
    let directory = TempDir::new().expect("a directory");
    let mut store = open(directory.path()).expect("an empty place");
    done(&mut *store, &put("a", "1"));
    drop(store);
    fs::write(directory.path().join("control.new"), "half of a fil").expect("a file");
    let mut store = open(directory.path()).expect("a store");
    assert_eq!(values(&mut *store), [("a".to_string(), b"1".to_vec())]);
}

/// A log this long is written anew.
const LOG_BYTES: u64 = 400;

/// A disk in memory that can fail, and tells what a crash might leave.
#[derive(Clone, Default)]
struct Pretend(Rc<RefCell<State>>);

#[derive(Clone, Default)]
struct State {
    /// The file as it is read.
    file: Option<Vec<u8>>,
    /// Bytes of it that are on the disk.
    safe_bytes: usize,
    /// What takes its place meanwhile.
    coming: Option<Vec<u8>>,
    /// Bytes that the disk has room for; `None`: any.
    room_bytes: Option<usize>,
    /// Calls until the machine dies; `None`: it does not.
    dies_in: Option<usize>,
    sync_fails: bool,
    cut_fails: bool,
    /// There is no room for a second file.
    no_second: bool,
    directory_fails: bool,
    replaced: usize,
}

impl State {
    fn begin(&mut self) -> io::Result<()> {
        match &mut self.dies_in {
            Some(0) => Err(io::Error::other("the machine is dead")),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn has_room(&self, bytes: usize) -> bool {
        self.room_bytes.is_none_or(|room| self.file.as_ref().map_or(0, Vec::len) + bytes <= room)
    }

    /// All files that a crash may leave.
    fn after_crash(&self) -> Vec<Option<Vec<u8>>> {
        let file = self.file.as_deref();
        let mut left: Vec<Option<Vec<u8>>> = match file {
            None => vec![None],
            Some(file) => (self.safe_bytes..=file.len()).map(|end| Some(file[..end].to_vec())).collect(),
        };
        left.extend(self.coming.clone().map(Some));
        left
    }
}

fn full() -> io::Error {
    io::ErrorKind::StorageFull.into()
}

impl Disk for Pretend {
    fn read(&mut self, _: u64) -> io::Result<Option<Vec<u8>>> {
        Ok(self.0.borrow().file.clone())
    }

    fn replace(&mut self, bytes: &[u8]) -> Result<(), Failed> {
        let mut state = self.0.borrow_mut();
        state.begin().map_err(Failed::Undone)?;
        if state.no_second {
            return Err(Failed::Undone(full()));
        }
        state.coming = Some(bytes.to_vec());
        state.begin().map_err(Failed::Unknown)?;
        if state.directory_fails {
            return Err(Failed::Unknown(io::Error::other("no sync")));
        }
        state.file = state.coming.take();
        state.safe_bytes = bytes.len();
        state.replaced += 1;
        Ok(())
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.0.borrow_mut();
        state.begin()?;
        let fits = state.has_room(bytes.len());
        let taken = if fits { bytes } else { &bytes[..bytes.len() / 2] };
        state.file.as_mut().expect("a file").extend_from_slice(taken);
        if fits { Ok(()) } else { Err(full()) }
    }

    fn cut(&mut self, len: u64) -> io::Result<()> {
        let mut state = self.0.borrow_mut();
        state.begin()?;
        if state.cut_fails {
            return Err(io::Error::other("no cut"));
        }
        state.file.as_mut().expect("a file").truncate(len as usize);
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        let mut state = self.0.borrow_mut();
        state.begin()?;
        if state.sync_fails {
            return Err(io::Error::other("no sync"));
        }
        state.safe_bytes = state.file.as_ref().map_or(0, Vec::len);
        Ok(())
    }
}

fn opened(disk: &Pretend) -> Store<Pretend> {
    Store::open(disk.clone(), LOG_BYTES).unwrap_or_else(|error| panic!("{error:?}"))
}

/// Opens over what a crash left.
fn reopened(file: Option<Vec<u8>>) -> Store<Pretend> {
    let safe_bytes = file.as_ref().map_or(0, Vec::len);
    opened(&Pretend(Rc::new(RefCell::new(State { file, safe_bytes, ..State::default() }))))
}

/// What is done until the machine dies: how many transactions were answered.
fn work(disk: Pretend) -> usize {
    let Ok(mut store) = Store::open(disk, LOG_BYTES) else { return 0 };
    (0..20u8).take_while(|n| store.txn(&put(&format!("k{}", n % 3), [*n; 30])).is_ok()).count()
}

#[test]
fn a_crash_at_any_moment_loses_nothing_that_was_answered() {
    let alive = Pretend::default();
    let all = work(alive.clone());
    assert!(alive.0.borrow().replaced > 1, "the log was renewed on the way");
    for dies_in in 0.. {
        let disk = Pretend(Rc::new(RefCell::new(State { dies_in: Some(dies_in), ..State::default() })));
        let answered = work(disk.clone());
        for file in disk.0.borrow().after_crash() {
            let mut store = reopened(file);
            let revision = store.snapshot().expect("a snapshot").revision as usize;
            assert!(revision == answered || revision == answered + 1, "{revision} of {answered}, dead in {dies_in}");
            for (key, value) in values(&mut store) {
                let latest = (0..revision).rev().find(|n| format!("k{}", n % 3) == key);
                assert_eq!(latest.map(|n| n as u8), value.first().copied());
            }
        }
        if answered == all {
            return;
        }
    }
}

#[test]
fn a_full_disk_refuses_changes_and_goes_on_when_there_is_room() {
    let disk = Pretend::default();
    let mut store = opened(&disk);
    done(&mut store, &put("a", "1"));
    let before = disk.0.borrow().file.clone();
    disk.0.borrow_mut().room_bytes = Some(100);
    for _ in 0..3 {
        assert!(matches!(store.txn(&put("b", [0; 100])), Err(ControlError::Full(_))));
        assert_eq!(disk.0.borrow().file, before, "nothing of it stays");
        assert_eq!(values(&mut store), [("a".to_string(), b"1".to_vec())]);
    }
    disk.0.borrow_mut().room_bytes = None;
    done(&mut store, &put("b", "2"));
    assert_eq!(values(&mut reopened(disk.0.borrow().file.clone())).len(), 2);
}

#[test]
fn where_there_is_no_room_for_two_files_the_log_grows_on() {
    let disk = Pretend::default();
    let mut store = opened(&disk);
    disk.0.borrow_mut().no_second = true;
    let length = || disk.0.borrow().file.as_ref().map_or(0, Vec::len);
    let mut longest = 0;
    while longest < 3 * LOG_BYTES as usize {
        done(&mut store, &put("k", [7; 30]));
        assert!(length() > longest);
        longest = length();
    }
    disk.0.borrow_mut().no_second = false;
    while length() >= longest {
        longest = length();
        done(&mut store, &put("k", [7; 30]));
    }
    assert_eq!((disk.0.borrow().replaced, longest < 5 * LOG_BYTES as usize), (2, true));
}

#[test]
fn after_a_disk_that_does_not_say_what_it_has_the_store_begins_anew_or_not_at_all() {
    let broken: [fn(&mut State); 2] =
        [|state| state.sync_fails = true, |state| (state.room_bytes, state.cut_fails) = (Some(0), true)];
    for spoil in broken {
        let disk = Pretend::default();
        let mut store = opened(&disk);
        done(&mut store, &put("a", "1"));
        store.campaign("anna", 1_000, 0).expect("an office");
        spoil(&mut disk.0.borrow_mut());
        assert!(matches!(store.txn(&put("b", "2")), Err(ControlError::Unknown(_))));
        disk.0.borrow_mut().no_second = true;
        assert!(matches!(store.txn(&put("c", "3")), Err(ControlError::Broken(_))));
        assert!(matches!(store.range(&Range::default()), Err(ControlError::Broken(_))));
        assert!(matches!(store.watch(0), Err(ControlError::Broken(_))));
        assert!(matches!(store.campaign("anna", 1, 0), Err(ControlError::Broken(_))));
        assert!(matches!(store.snapshot(), Err(ControlError::Broken(_))));
        let sound = State { file: disk.0.borrow().file.clone(), ..State::default() };
        *disk.0.borrow_mut() = sound;
        let office = store.campaign("otto", 1_000, 1).expect("an office");
        assert_eq!(office.holder.as_deref(), Some("otto"), "nobody was in it");
        assert_eq!(disk.0.borrow().safe_bytes, disk.0.borrow().file.as_ref().map_or(0, Vec::len));
        assert_eq!(values(&mut store)[0], ("a".to_string(), b"1".to_vec()));
        done(&mut store, &put("c", "3"));
        assert_eq!(values(&mut reopened(disk.0.borrow().file.clone())), values(&mut store));
    }
}

#[test]
fn a_store_does_not_go_back_to_an_older_file() {
    let disk = Pretend::default();
    let mut store = opened(&disk);
    let older = disk.0.borrow().file.clone();
    done(&mut store, &put("a", "1"));
    disk.0.borrow_mut().sync_fails = true;
    store.txn(&put("b", "2")).expect_err("a disk that fails");
    *disk.0.borrow_mut() = State { file: older, ..State::default() };
    assert!(matches!(store.range(&Range::default()), Err(ControlError::Broken(_))));
}

#[test]
fn a_renewal_of_which_nobody_knows_whether_it_is_there_is_made_again() {
    let disk = Pretend::default();
    let mut store = opened(&disk);
    disk.0.borrow_mut().directory_fails = true;
    let ended = (0..50).map(|_| store.txn(&put("k", [7; 30]))).find_map(Result::err).expect("the log is renewed");
    assert!(matches!(ended, ControlError::Broken(_)), "{ended:?}");
    assert!(matches!(Store::open(disk.clone(), LOG_BYTES), Err(Opening::Disk(_))));
    disk.0.borrow_mut().directory_fails = false;
    done(&mut store, &put("k", [8; 30]));
}

#[test]
fn a_file_at_its_limit_is_written_anew_as_soon_as_that_can_be_done() {
    let disk = Pretend::default();
    let mut store = opened(&disk);
    store.most_bytes = 2 * LOG_BYTES;
    disk.0.borrow_mut().no_second = true;
    let ended = (0..50).map(|_| store.txn(&put("k", [7; 30]))).find_map(Result::err).expect("it has a limit");
    assert!(matches!(ended, ControlError::Full(_)), "{ended:?}");
    disk.0.borrow_mut().no_second = false;
    done(&mut store, &put("k", [8; 30]));
    assert!((disk.0.borrow().file.as_ref().map_or(0, Vec::len) as u64) < LOG_BYTES);
}

#[test]
fn a_file_that_was_taken_away_takes_no_change_until_it_is_back() {
    let directory = TempDir::new().expect("a directory");
    let (path, elsewhere) = (directory.path().join("here"), directory.path().join("elsewhere"));
    let mut store = open(&path).expect("an empty place");
    done(&mut *store, &put("a", "1"));
    fs::rename(&path, &elsewhere).expect("it is moved");
    match store.txn(&put("b", "2")) {
        Err(ControlError::Full(text)) => assert!(text.contains("here/control was taken away"), "{text}"),
        other => panic!("{other:?}"),
    }
    fs::create_dir(&path).expect("a directory");
    fs::write(path.join("control"), "another").expect("a file");
    assert!(matches!(store.txn(&put("b", "2")), Err(ControlError::Full(_))));
    assert_eq!(fs::read(path.join("control")).expect("a file"), b"another");
    fs::remove_dir_all(&path).expect("it is removed");
    fs::rename(&elsewhere, &path).expect("it is back");
    done(&mut *store, &put("c", "3"));
    drop(store);
    let mut store = open(&path).expect("a store");
    assert_eq!(values(&mut *store).into_iter().map(|(key, _)| key).collect::<Vec<_>>(), ["a", "c"]);
}
