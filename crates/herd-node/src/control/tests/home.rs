//! A node's directory: where it is, whose it is, and who it says the node is.

use super::super::{Record, component, place};
use super::*;
use herd_core::control::Table;
use herd_core::place::HerdId;
use herd_core::warden::Identity;
use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

#[test]
fn what_lies_in_a_node_s_directory_is_its_user_s_alone() {
    let directory = TempDir::new().expect("a directory");
    let path = directory.path().join("a/b");
    let home = Home::open(&path).expect("a new one");
    home.keep(&RECORD).expect("a record");
    drop(home.store().expect("a store"));
    let mode = |path: &Path| fs::metadata(path).expect("it is there").mode() & 0o777;
    assert_eq!(mode(&path), 0o700);
    for file in fs::read_dir(&path).expect("a directory") {
        let file = file.expect("a file").path();
        assert_eq!(mode(&file), 0o600, "{}", file.display());
    }
}

const RECORD: Record = Record { identity: Identity([7; 16]), herd: Some(HerdId([9; 16])) };

#[test]
fn a_node_knows_who_it_is_when_it_comes_back() {
    let directory = TempDir::new().expect("a directory");
    assert!(!Home::is_used(directory.path()));
    for record in [RECORD, Record { herd: None, ..RECORD }] {
        let home = Home::open(directory.path()).expect("a place");
        home.keep(&record).expect("a record");
        assert!(matches!(Home::open(directory.path()), Err(OpenError::InUse(_))));
        drop(home);
        let home = Home::open(directory.path()).expect("a place");
        assert_eq!((home.record(), home.has_store()), (Ok(Some(record)), false));
    }
    assert!(Home::is_used(directory.path()));
    for bad in ["", "{", r#"{"format":2,"identity":"07070707070707070707070707070707","herd":null}"#] {
        fs::write(directory.path().join("node"), bad).expect("a file");
        let home = Home::open(directory.path()).expect("a place");
        assert!(matches!(home.record(), Err(OpenError::Damaged(text)) if text.contains("node: ")), "{bad}");
    }
}

#[test]
fn what_another_store_held_goes_on_in_a_place_of_its_own() {
    let mut table = Table::default();
    done(&mut table, &put("a", "1"));
    table.campaign("anna", 1_000, 0).expect("an office");
    let directory = TempDir::new().expect("a directory");
    let settle = || Home::open(directory.path()).and_then(|home| home.settle(&RECORD, &table.all()));
    let mut store = settle().expect("an empty place");
    assert_eq!(values(&mut *store), values(&mut table.clone()));
    let office = store.campaign("anna", 1_000, 1).expect("an office");
    assert_eq!(office.term, 2, "a later term");
    drop(store);
    assert!(matches!(settle(), Err(OpenError::InUse(text)) if text.contains("another node was here")));
    assert_eq!(Home::open(directory.path()).and_then(|home| home.record()), Ok(Some(RECORD)));
}

/// A disk may have room again.
#[test]
fn what_could_not_be_put_into_a_place_is_put_there_later() {
    let (table, directory) = (Table::default(), TempDir::new().expect("a directory"));
    let settle = || Home::open(directory.path()).and_then(|home| home.settle(&RECORD, &table.all()));
    for file in ["control.new", "node.new"] {
        let in_the_way = directory.path().join(file);
        fs::create_dir(&in_the_way).expect("a directory");
        assert!(settle().is_err(), "{file} can't be written");
        assert!(!Home::is_used(directory.path()), "{file}");
        fs::remove_dir(&in_the_way).expect("it is empty");
    }
    settle().expect("an empty place");
}

#[test]
fn a_node_s_place_is_its_own() {
    let variables = |set: &'static [(&str, &str)]| {
        move |name: &str| set.iter().find(|(key, _)| *key == name).map(|(_, value)| OsString::from(value))
    };
    let of = |set, name| place(None, name, variables(set));
    let all: &[(&str, &str)] = &[("HOME", "/h"), ("XDG_STATE_HOME", "/x"), ("STATE_DIRECTORY", "/s")];
    assert_eq!(place(Some(Path::new("d")), "n", variables(all)), Some(PathBuf::from("d")));
    assert_eq!(of(all, "n"), Some(PathBuf::from("/s/n")));
    assert_eq!(of(&[("HOME", "/h"), ("XDG_STATE_HOME", "/x")], "n"), Some(PathBuf::from("/x/herd/n")));
    assert_eq!(of(&[("STATE_DIRECTORY", "/s:/t")], "n"), Some(PathBuf::from("/s/n")));
    assert_eq!(
        of(&[("HOME", "/h"), ("XDG_STATE_HOME", "relative")], "n"),
        Some(PathBuf::from("/h/.local/state/herd/n"))
    );
    assert_eq!(of(&[("HOME", "")], "n"), None);
    for (name, told) in
        [("a.b-c_9", "a.b-c_9"), ("..", "%2E."), ("a/../b", "a%2F..%2Fb"), ("\u{e4}", "%C3%A4"), ("", "")]
    {
        assert_eq!(component(name), told);
    }
    let (long, longer) = (component(&"/".repeat(255)), component(&"/".repeat(254)));
    assert!(long.len() < 255 && long != longer);
}
