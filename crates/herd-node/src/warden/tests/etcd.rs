//! Herds whose control store is in etcd.

use super::*;
use crate::control::OpenError;
use crate::control::etcd::tests::server::{Real, free_port};
use crate::control::etcd::{Address, Etcd, Halt};
use crate::warden::Newcomer;
use herd_core::control::{Control, ControlError};
use tempfile::TempDir;

fn of(place: &Path, url: &str, name: &str) -> Options {
    let etcd = Some(Address::parse(url).expect("an address").forced(true));
    let port = 7700 + u16::from(name.as_bytes()[name.len() - 1]);
    Options { etcd, name: name.into(), addresses: vec![format!("127.0.0.1:{port}")], ..options(Some(place), true) }
}

/// A herd in etcd, begun by a node of that name in that place.
fn begun(place: &Path, url: &str, name: &str) -> (Begun, Watched) {
    let watched = Watched::default();
    match begin(of(place, url, name), &Drawn::new().expect("chance"), watched.outlets()) {
        Ok(begun) => (begun, watched),
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn a_herd_in_etcd_goes_on_from_its_first_node_and_from_any_other() {
    let Some(etcd) = Real::start() else { return };
    let directory = TempDir::new().expect("a directory");
    let (one, two) = (directory.path().join("one"), directory.path().join("two"));
    let url = etcd.url("a");
    let (first, _) = begun(&one, &url, "n1");
    assert_eq!((first.joined.node.0.get(), first.joined.incarnation, first.first_version), (1, 1, 0));
    assert_eq!(joined(ask(&first, join(2))).node.0.get(), 2);
    let herd = first.joined.herd;
    first.warden.stop().expect("a clean end");
    assert!(one.join("node").exists() && !one.join("control").exists());
    // Who ended by itself left the office: nobody waits for a lease.
    let since = Instant::now();
    let (again, _) = begun(&one, &url, "n1");
    assert!(since.elapsed() < Duration::from_secs(3), "{:?}", since.elapsed());
    assert_eq!((again.joined.herd, again.joined.node.0.get()), (herd, 1));
    assert!(again.joined.incarnation > 1);
    assert_eq!(numbers(&again.map), [1, 2]);
    again.warden.stop().expect("a clean end");
    // The machine of the first node is gone, and with it its directory.
    std::fs::remove_dir_all(&one).expect("it is removed");
    let (third, _) = begun(&two, &url, "n3");
    assert_eq!((third.joined.herd, third.joined.node.0.get()), (herd, 3));
    // Another store of that etcd is another herd's.
    let (other, _) = begun(&one, &etcd.url("b"), "n1");
    assert_ne!(other.joined.herd, herd);
    for begun in [third, other] {
        begun.warden.stop().expect("a clean end");
    }
}

#[test]
fn a_herd_has_one_warden_and_who_comes_beside_it_is_told_where() {
    let Some(etcd) = Real::start() else { return };
    let directory = TempDir::new().expect("a directory");
    let (one, two) = (directory.path().join("one"), directory.path().join("two"));
    let url = etcd.url("a");
    let (first, watched) = begun(&one, &url, "n1");
    let address = Address::parse(&url).expect("an address").forced(true);
    let revision =
        || Etcd::open(&address, Halt::default()).and_then(|mut store| store.snapshot()).map(|all| all.revision);
    let before = revision();
    match refused(of(&two, &url, "n2")) {
        BeginError::Held(name) => assert!(name.starts_with("127.0.0.1:7749 "), "{name}"),
        other => panic!("{other}"),
    }
    assert!(!two.exists(), "of a node that is refused nothing stays");
    assert_eq!(revision(), before, "some 8 s in which nothing happened, and nothing was written");
    assert_eq!(joined(ask(&first, join(3))).node.0.get(), 2);
    assert_eq!(seen(&watched.told), Vec::<String>::new());
    first.warden.stop().expect("a clean end");
}

#[test]
fn a_directory_is_of_a_herd_in_it_or_in_etcd_and_never_of_both() {
    let Some(etcd) = Real::start() else { return };
    let directory = TempDir::new().expect("a directory");
    let (embedded, there) = (directory.path().join("embedded"), directory.path().join("there"));
    herd(&embedded).0.warden.stop().expect("a clean end");
    let error = refused(of(&embedded, &etcd.url("a"), "n1")).to_string();
    assert!(error.contains("is here, and not in etcd: leave --control out"), "{error}");
    let (first, _) = begun(&there, &etcd.url("a"), "n1");
    let own = first.joined.herd;
    first.warden.stop().expect("a clean end");
    match refused(options(Some(&there), true)) {
        BeginError::Elsewhere(_, herd) => assert_eq!(herd, own),
        other => panic!("{other}"),
    }
    // Where its herd is not, none is begun in its place.
    let error = refused(of(&there, &etcd.url("b"), "n1")).to_string();
    assert!(error.contains("there is no herd in it"), "{error}");
    let (other, _) = begun(&embedded.with_extension("new"), &etcd.url("c"), "n1");
    other.warden.stop().expect("a clean end");
    match refused(of(&there, &etcd.url("c"), "n1")) {
        BeginError::Refused(Refusal::OtherHerd { theirs, .. }) => assert_eq!(theirs, own),
        other => panic!("{other}"),
    }
    // A node that joined a herd may come back as its warden; it is the same node.
    let newcomer = Newcomer::new(&options(Some(&there), true), &Drawn::new().expect("chance")).expect("a place");
    assert_eq!(newcomer.join.herd, Some(own));
    let busy = refused(of(&there, &etcd.url("a"), "n1"));
    assert!(matches!(busy, BeginError::Place(OpenError::InUse(_))), "{busy}");
}

#[test]
fn while_etcd_is_down_changes_are_refused_and_then_go_on() {
    let Some(mut etcd) = Real::start() else { return };
    let directory = TempDir::new().expect("a directory");
    let (begun, watched) = begun(directory.path(), &etcd.url("a"), "n1");
    etcd.kill();
    let answer = send(&begun, join(2));
    until("it is told", || seen(&watched.told).iter().any(|line| line.contains("see that it runs")));
    let (map, _) = begun.warden.handle().map().expect("the map stays");
    assert_eq!(numbers(&map), [1]);
    let refusal = answer.recv_timeout(Duration::from_secs(8)).expect("an answer").expect_err("it is not done");
    assert!(matches!(&refusal, Refusal::Store(text) if text.contains("see that it runs")), "{refusal}");
    etcd.revive();
    until("it goes on", || matches!(ask(&begun, join(2)), Ok(Answer::Joined(_))));
    watched.maps();
    etcd.signal("STOP");
    // It is in a call, or makes one soon.
    std::thread::sleep(Duration::from_millis(1_500));
    let since = Instant::now();
    begun.warden.stop().expect("an etcd that stands still does not hold it");
    assert!(since.elapsed() < Duration::from_secs(1), "{:?}", since.elapsed());
    etcd.signal("CONT");
}

#[test]
fn without_etcd_no_herd_begins_and_nothing_is_left() {
    let directory = TempDir::new().expect("a directory");
    let place = directory.path().join("one");
    let since = Instant::now();
    match refused(of(&place, &format!("etcd://127.0.0.1:{}", free_port()), "n1")) {
        BeginError::Etcd(ControlError::Unreachable(text)) => assert!(text.contains("see that it runs"), "{text}"),
        other => panic!("{other}"),
    }
    assert!(since.elapsed() > Duration::from_secs(9), "they may be started together");
    assert!(!place.exists());
}
