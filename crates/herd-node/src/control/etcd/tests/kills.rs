//! A real etcd that is killed, or stands still, in the middle of calls.

use super::*;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

/// Puts that follow each other, until `ends`: the last value that is known to be there, and the one in doubt.
fn write_on(store: &mut Etcd, from: u64, ends: &AtomicBool) -> (u64, Option<u64>) {
    let (mut last, mut revision) = (from, revision_of(store));
    while !ends.load(Relaxed) {
        let mut txn = put("n", (last + 1).to_string());
        txn.compares.push(Compare { key: "n".into(), revision });
        let since = Instant::now();
        let told = store.txn(&txn);
        assert!(since.elapsed() < BOUND, "{told:?} after {:?}", since.elapsed());
        match told {
            Ok(Outcome::Done(done)) => (last, revision) = (last + 1, done),
            Err(ControlError::Unreachable(_)) => thread::sleep(Duration::from_millis(20)),
            Err(ControlError::Unknown(_)) => return (last, Some(last + 1)),
            other => panic!("{other:?}"),
        }
    }
    (last, None)
}

fn entry(store: &mut Etcd) -> Option<(u64, u64)> {
    let entries = store.range(&Range::default()).expect("a range").entries;
    let number = |value: &[u8]| std::str::from_utf8(value).expect("text").parse().expect("a number");
    entries.first().map(|entry| (number(&entry.value), entry.revision))
}

fn revision_of(store: &mut Etcd) -> u64 {
    entry(store).map_or(0, |(_, revision)| revision)
}

#[test]
fn what_was_answered_is_there_whenever_etcd_is_killed() {
    let Some(mut etcd) = Real::start() else { return };
    let mut last = 0;
    for round in 0..4 {
        let mut store = opened(&etcd.url("a"));
        let ends = AtomicBool::new(false);
        let (known, doubt) = thread::scope(|scope| {
            let writer = scope.spawn(|| write_on(&mut store, last, &ends));
            thread::sleep(Duration::from_millis(150 + 37 * round));
            etcd.kill();
            thread::sleep(Duration::from_millis(100));
            ends.store(true, Relaxed);
            writer.join().expect("no panic")
        });
        assert!(known > last, "it wrote");
        let since = Instant::now();
        for error in [store.txn(&put("n", "0")).err(), store.range(&Range::default()).err(), store.watch(1).err()] {
            assert!(matches!(error, Some(ControlError::Unreachable(_))), "{error:?}");
        }
        assert!(since.elapsed() < BOUND);
        etcd.revive();
        // The same store goes on by itself.
        let (there, _) = entry(&mut store).expect("it is there");
        assert!(there == known || Some(there) == doubt, "{there}, {known} and perhaps {doubt:?}");
        last = there;
    }
}

/// Of three members one is killed and comes back, each in its turn: the store goes on with the others, and knows what
/// it wrote.
#[test]
fn a_store_goes_on_while_one_of_three_members_is_gone() {
    let Some(mut etcd) = Real::of(3) else { return };
    let mut store = opened(&etcd.url("a"));
    let term = store.campaign("anna", 60_000, 0).expect("a candidacy").term;
    let mut last = 0;
    for member in 0..3 {
        etcd.kill_member(member);
        let end = Instant::now() + Duration::from_secs(20);
        while store.campaign("anna", 60_000, 0).is_err() {
            assert!(Instant::now() < end, "two of three have a leader");
        }
        let since = Instant::now();
        let ends = AtomicBool::new(false);
        let (known, doubt) = thread::scope(|scope| {
            let writer = scope.spawn(|| write_on(&mut store, last, &ends));
            thread::sleep(Duration::from_millis(300));
            ends.store(true, Relaxed);
            writer.join().expect("no panic")
        });
        assert!(known > last && since.elapsed() < BOUND, "{known} after {last}, {doubt:?}");
        etcd.revive_member(member);
        let (there, _) = entry(&mut store).expect("it is there");
        assert!(there == known || Some(there) == doubt, "{there}, {known} and perhaps {doubt:?}");
        last = there;
    }
    let office = store.campaign("anna", 60_000, 0).expect("a candidacy");
    assert_eq!((office.term, office.holder.as_deref()), (term, Some("anna")), "its office outlives each of them");
}

#[test]
fn an_etcd_that_stands_still_costs_no_call_more_than_its_time() {
    let Some(etcd) = Real::start() else { return };
    let mut store = opened(&etcd.url("a"));
    let won = store.campaign("anna", 2_000, 0).expect("a candidacy");
    let held = |txn: Txn| Txn { term: Some(won.term), ..txn };
    assert!(matches!(store.txn(&held(put("n", "1"))), Ok(Outcome::Done(_))));
    etcd.signal("STOP");
    let timed = |error: Option<ControlError>, since: Instant| {
        assert!(since.elapsed() < BOUND, "{error:?} after {:?}", since.elapsed());
        error.expect("it stands still")
    };
    let since = Instant::now();
    let error = timed(store.txn(&held(put("n", "2"))).err(), since);
    assert!(matches!(error, ControlError::Unknown(_)), "{error:?}");
    let since = Instant::now();
    let error = timed(store.txn(&held(Txn::default())).err(), since);
    assert!(matches!(error, ControlError::Unreachable(_)), "{error:?}");
    etcd.signal("CONT");
    // The write that was in doubt comes now, or never: its term's lease has run out or not, but it is the same term.
    let office = store.campaign("anna", 2_000, 0).expect("a candidacy");
    assert_eq!(office.holder.as_deref(), Some("anna"));
    let (there, _) = entry(&mut store).expect("it is there");
    assert!(there == 1 || there == 2, "{there}");
    // Once somebody else is in office nothing of the old term is written.
    store.campaign("anna", 0, 0).expect("it resigns");
    let next = store.campaign("bert", 2_000, 0).expect("a candidacy");
    assert!(next.term > office.term);
    assert_eq!(store.txn(&held(put("n", "3"))), Ok(Outcome::Refused));
}

/// A lease that nobody renews ends by etcd's clock, and not before.
#[test]
fn an_office_that_nobody_renews_ends_in_time_and_not_before() {
    let Some(etcd) = Real::start() else { return };
    let mut store = opened(&etcd.url("a"));
    let since = Instant::now();
    let won = store.campaign("anna", 2_000, 0).expect("a candidacy");
    drop(store);
    let mut other = opened(&etcd.url("a"));
    loop {
        let office = other.campaign("bert", 2_000, 0).expect("a candidacy");
        if office.holder.as_deref() == Some("bert") {
            assert!(office.term > won.term);
            break;
        }
        assert_eq!(office, won);
        thread::sleep(Duration::from_millis(20));
    }
    let took = since.elapsed();
    assert!(took > Duration::from_millis(1_990) && took < Duration::from_millis(3_500), "{took:?}");
}
