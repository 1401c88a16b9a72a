//! How herds begin and go on.

use super::*;
use crate::control::{Home, OpenError, Record};
use crate::warden::Newcomer;
use herd_core::control::{Control, Table, Txn, Write};
use herd_core::entry::{COUNTER_BITS, first_version};
use herd_core::limits::SLOTS;
use herd_core::place::HerdId;
use std::fs;
use tempfile::TempDir;

#[test]
fn a_herd_begins_in_an_empty_place_and_goes_on_there() {
    let directory = TempDir::new().expect("a directory");
    let place = directory.path().join("data");
    let (first, watched) = herd(&place);
    assert_eq!((numbers(&first.map), first.joined.incarnation, first.held), (vec![1], 1, false));
    assert_eq!(watched.maps().last(), Some(&first.map), "it was pushed");
    assert_eq!(first.first_version, 0, "the map's epochs are all there is");
    let drawn = first.joined.clone();
    let mut since = (0..SLOTS).map(|slot| first.map.spread(0).expect("it is there").since(slot)).max();
    first.warden.stop().expect("a clean end");
    let mut life = 1;
    for _ in 2..4 {
        let (again, _) = herd(&place);
        assert!(again.joined.incarnation > life);
        life = again.joined.incarnation;
        assert_eq!(again.joined, Joined { incarnation: life, ..drawn.clone() });
        let spread = again.map.spread(0).expect("it is there");
        assert!((0..SLOTS).all(|slot| Some(spread.since(slot)) > since), "versions rise");
        since = (0..SLOTS).map(|slot| spread.since(slot)).max();
        again.warden.stop().expect("a clean end");
    }
    let (other, _) = herd(&directory.path().join("other"));
    assert_ne!((other.joined.herd, other.joined.hash_key), (drawn.herd, drawn.hash_key));
}

#[test]
fn a_node_that_was_given_no_place_has_one_that_is_its_own_and_empty_until_a_second_one_comes() {
    let directory = TempDir::new().expect("a directory");
    let place = directory.path().join("state/node-1");
    let watched = Watched::default();
    let drawn = Drawn::new().expect("chance");
    let begun = begin(options(Some(&place), false), &drawn, watched.outlets()).expect("a herd");
    assert_eq!(begun.first_version, first_version(NOW_MS));
    let spread = begun.map.spread(0).expect("it is there");
    for slot in 0..SLOTS {
        let since = u64::from(spread.since(slot));
        assert_eq!(since, begun.first_version >> COUNTER_BITS, "two starts in a minute give different versions");
    }
    ask(&begun, Ask::Create(create("c"))).expect("a collection");
    assert!(!Home::is_used(&place));
    // Another one of the same name is a herd by itself, and stays it; who was told to have that place, or joins, is
    // refused. None of them leaves anything there.
    let second = begin(options(Some(&place), false), &drawn, Watched::default().outlets()).expect("a herd");
    assert_eq!(ask(&second, join(2)), Err(Refusal::NoPlace));
    second.warden.stop().expect("a clean end");
    let error = refused(options(Some(&place), true)).to_string();
    assert!(error.ends_with("belongs to a node that runs: give this one another --name or --data"), "{error}");
    let same = Newcomer::new(&options(Some(&place), false), &Drawn::new().expect("chance"));
    assert!(matches!(same, Err(BeginError::Place(OpenError::InUse(_)))));
    assert!(!Home::is_used(&place));
    assert_eq!(joined(ask(&begun, join(2))).node.0.get(), 2);
    assert!(Home::is_used(&place));
    let (map, _) = begun.warden.handle().map().expect("it is in office");
    assert_eq!((numbers(&map), watched.maps().last()), (vec![1, 2], Some(&map)));
    let (key, herd) = (begun.joined.hash_key, begun.joined.herd);
    begun.warden.stop().expect("a clean end");
    // What is there goes on, without being told.
    let again = begin(options(Some(&place), false), &Drawn::new().expect("chance"), watched.outlets()).expect("a herd");
    assert_eq!((again.joined.hash_key, again.joined.herd), (key, herd));
    assert!(again.joined.incarnation > 1);
    assert_eq!(numbers(&again.map), [1, 2]);
    assert!(again.map.collection("c").is_some());
}

fn create(name: &str) -> Create {
    let spec = herd_core::collection::Spec::of("ram:1");
    Create { name: name.into(), spec, copies: None, spread: None }
}

#[test]
fn a_node_without_any_place_is_a_herd_of_one() {
    let watched = Watched::default();
    let drawn = Drawn::new().expect("chance");
    let begun = begin(options(None, false), &drawn, watched.outlets()).expect("a herd");
    assert_eq!(ask(&begun, join(2)), Err(Refusal::NoPlace));
    assert!(ask(&begun, Ask::Create(create("c"))).is_ok());
    assert_eq!(seen(&watched.told), [""; 0]);
}

#[test]
fn where_the_store_can_t_be_put_no_second_node_joins_and_the_log_says_why() {
    let directory = TempDir::new().expect("a directory");
    let (state, place) = (directory.path().join("state"), directory.path().join("state/node-1"));
    let watched = Watched::default();
    let drawn = Drawn::new().expect("chance");
    fs::write(&state, "in the way").expect("a file");
    let begun = begin(options(Some(&place), false), &drawn, watched.outlets()).expect("a herd");
    // Now there is a place, and another first node of the same name was faster.
    fs::remove_file(&state).expect("it goes");
    let (other, _) = herd(&place);
    for _ in 0..3 {
        assert_eq!(ask(&begun, join(2)), Err(Refusal::NoPlace));
    }
    let told = seen(&watched.told);
    assert!(
        told.len() == 1
            && told[0].contains("no other node can join")
            && told[0].contains("belongs to a node that runs"),
        "{told:?}"
    );
    other.warden.stop().expect("a clean end");
    assert_eq!(ask(&begun, join(2)), Err(Refusal::NoPlace));
    assert!(seen(&watched.told)[1].contains("another node was here"), "its herd is not written over");
    fs::remove_dir_all(&place).expect("it goes");
    assert_eq!(joined(ask(&begun, join(2))).node.0.get(), 2);
}

#[test]
fn a_herd_that_is_there_goes_on_or_the_node_does_not_start() {
    let directory = TempDir::new().expect("a directory");
    let place = directory.path().join("node-1");
    let both = || [options(Some(&place), true), options(Some(&place), false)];
    let (begun, _) = herd(&place);
    for options in both() {
        let error = refused(options);
        assert!(matches!(&error, BeginError::Place(OpenError::InUse(_))), "{error}");
        assert!(
            error.to_string().contains("belongs to a node that runs: give this one another --name or --data"),
            "{error}"
        );
    }
    begun.warden.stop().expect("a clean end");
    for options in both() {
        let error = refused(Options { evict: true, ..options });
        assert!(matches!(error, BeginError::Refused(Refusal::NotEvicting)), "{error}");
    }
    fs::write(place.join("control"), b"HERDCTL\x09").expect("it is written");
    for options in both() {
        let error = refused(options);
        assert!(error.to_string().contains("format 9"), "{error}");
    }
    assert!(matches!(refused(options(Some(Path::new("/proc/none")), true)), BeginError::Place(OpenError::NoPlace(_))));
}

#[test]
fn copies_that_a_herd_does_not_keep_are_refused_where_it_goes_on() {
    let directory = TempDir::new().expect("a directory");
    let place = directory.path().join("node-1");
    let asked = |copies| Options { copies, ..options(Some(&place), true) };
    for copies in [Some(2), None, Some(2)] {
        let drawn = Drawn::new().expect("chance");
        let begun =
            begin(asked(copies), &drawn, Watched::default().outlets()).unwrap_or_else(|error| panic!("{error}"));
        begun.warden.stop().expect("a clean end");
    }
    let told = refused(asked(Some(3))).to_string();
    assert!(told.starts_with("--replicas 3: the herd that is there keeps 2 copies"), "{told}");
}

/// Whoever was told of no directory does not begin another herd either, beside one that is there.
#[test]
fn a_place_where_a_node_was_and_that_can_t_be_had_is_an_error() {
    let directory = TempDir::new().expect("a directory");
    let place = directory.path().join("node-1");
    let (begun, _) = herd(&place);
    begun.warden.stop().expect("a clean end");
    let lock = place.join("control.lock");
    fs::remove_file(&lock).expect("it is there");
    fs::create_dir(&lock).expect("in the way");
    assert!(matches!(refused(options(Some(&place), false)), BeginError::Place(OpenError::NoPlace(_))));
}

#[test]
fn who_is_of_another_herd_does_not_begin_one() {
    let directory = TempDir::new().expect("a directory");
    let home = Home::open(directory.path()).expect("a place");
    home.keep(&Record { identity: Identity([7; 16]), herd: Some(HerdId([9; 16])) }).expect("it is kept");
    drop(home);
    let error = refused(options(Some(directory.path()), false)).to_string();
    assert!(error.contains("belongs to herd 09090909") && error.contains("--join"), "{error}");
}

#[test]
fn a_store_of_something_else_is_no_herd_s() {
    let directory = TempDir::new().expect("a directory");
    let mut table = Table::default();
    let write = Write::Put { key: "herd".into(), value: b"{}".as_slice().into() };
    table.txn(&Txn { writes: vec![write], ..Txn::default() }).expect("it is written");
    let record = Record { identity: Identity([7; 16]), herd: None };
    let home = Home::open(directory.path()).expect("a place");
    drop(home.settle(&record, &table.all()).expect("it is empty"));
    let error = refused(options(Some(directory.path()), true));
    assert!(matches!(&error, BeginError::Refused(Refusal::Store(_))), "{error}");
}

#[test]
fn a_newcomer_is_the_same_node_when_it_comes_back() {
    let directory = TempDir::new().expect("a directory");
    let place = directory.path().join("node-1");
    let new = |place, lasts| Newcomer::new(&options(place, lasts), &Drawn::new().expect("chance"));
    let first = new(Some(&place), false).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(first.join.herd, None);
    assert!(matches!(new(Some(&place), false), Err(BeginError::Place(OpenError::InUse(_)))), "it is there once");
    let before = first.join.clone();
    first.joined(HerdId([9; 16])).expect("it is kept");
    drop(first);
    let again = new(Some(&place), false).unwrap_or_else(|error| panic!("{error}")).join;
    assert_eq!((again.identity, again.herd), (before.identity, Some(HerdId([9; 16]))));
    assert_ne!(again.process, before.process);
    // Without a place, or with one where nothing can be written.
    let nowhere = Path::new("/proc/none");
    let placeless = [new(None, false), new(Some(nowhere), false)].map(|it| it.map(|it| it.join.identity).ok());
    assert!(placeless[0].is_some() && placeless[0] == placeless[1]);
    let other = Options { addresses: vec!["127.0.0.1:7701".into()], ..options(None, false) };
    let other = Newcomer::new(&other, &Drawn::new().expect("chance")).map(|it| it.join.identity).ok();
    assert_ne!(other, placeless[0]);
    assert!(matches!(new(Some(nowhere), true), Err(BeginError::Place(OpenError::NoPlace(_)))), "it was told to");
}

#[test]
fn of_a_newcomer_that_is_refused_nothing_stays() {
    let directory = TempDir::new().expect("a directory");
    let new = |place: &Path| {
        let newcomer = Newcomer::new(&options(Some(place), true), &Drawn::new().expect("chance"));
        newcomer.unwrap_or_else(|error| panic!("{error}"))
    };
    let (made, there) = (directory.path().join("made"), directory.path().join("there"));
    fs::create_dir(&there).expect("a directory");
    for place in [&made, &there] {
        new(place).refused();
        assert!(!Home::is_used(place));
    }
    assert!(!made.exists() && there.exists());
    // One that was in a herd stays who it is.
    new(&made).joined(HerdId([9; 16])).expect("it is kept");
    new(&made).refused();
    assert_eq!(new(&made).join.herd, Some(HerdId([9; 16])));
}

#[test]
fn a_warden_s_directory_is_no_newcomer_s() {
    let directory = TempDir::new().expect("a directory");
    herd(directory.path()).0.warden.stop().expect("a clean end");
    match Newcomer::new(&options(Some(directory.path()), true), &Drawn::new().expect("chance")) {
        Err(error) => assert!(error.to_string().contains("start the node without --join"), "{error}"),
        Ok(_) => panic!("it would be two nodes"),
    }
}
