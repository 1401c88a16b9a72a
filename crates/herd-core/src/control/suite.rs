//! What every control store must do, whatever it is made of: the embedded one, the one in memory, and others to come.
//!
//! [`run`] asks a store at a [`Place`] for all that the five calls promise, and panics at the first promise that is not
//! kept. It relies on nothing a store may do in its own way: revisions may rise by more than one, a page may end
//! anywhere, the past may be forgotten.
//!
//! Callers: tests of stores, in this crate and others. It has no feature of its own, as that would have all crates
//! built twice, for tests and for programs; in these nothing of it is left.

use super::{Compare, Control, ControlError, Entry, Office, Outcome, Page, Range, Revision, Term, Txn, Write};
use crate::limits::{
    CONTROL_KEY_MAX_BYTES, CONTROL_PAGE_BYTES, CONTROL_TXN_MAX_BYTES, CONTROL_TXN_STEPS_MAX, CONTROL_VALUE_MAX_BYTES,
};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Where a store can be had, be stopped, and time passes.
pub trait Place {
    /// The store.
    type Store: Control + ?Sized;

    /// From now on a store that never held anything.
    fn fresh(&mut self);

    /// The store.
    fn store(&mut self) -> &mut Self::Store;

    /// The store's process, and ours, end and begin anew.
    fn restart(&mut self);

    /// Lets time pass.
    fn pass_ms(&mut self, ms: u64);

    /// Our clock.
    fn now_ms(&self) -> u64;
}

/// A lease long enough for any store.
const LEASE_MS: u64 = 5_000;
/// By then it has run out, in any store.
const LEASE_OUT_MS: u64 = LEASE_MS + 1_500;

/// Holds a store against all its promises. `chance` gives a number below its argument.
pub fn run<P: Place>(place: &mut P, chance: &mut impl FnMut(u64) -> u64) {
    let cases: [fn(&mut P); 13] = [
        an_empty_store_has_nothing,
        what_is_put_is_read_back_after_a_restart_too,
        a_comparison_that_does_not_hold_stops_all_of_it,
        of_two_who_saw_the_same_one_writes,
        deleting_what_is_not_there_is_no_write,
        limits_are_told_and_what_is_at_them_fits,
        a_range_has_its_prefix_alone_and_pages_of_one_revision,
        a_page_of_the_past_is_true_or_refused,
        who_watches_sees_all_in_order,
        who_watches_too_late_is_told,
        one_holds_the_office_and_terms_rise,
        only_the_present_term_writes,
        a_snapshot_is_all_there_is,
    ];
    for case in cases {
        place.fresh();
        case(place);
    }
    place.fresh();
    any_calls_do_what_a_simple_map_does(place, chance);
}

fn put(key: &str, value: impl AsRef<[u8]>) -> Write {
    Write::Put { key: key.into(), value: Arc::from(value.as_ref()) }
}

fn delete(key: &str) -> Write {
    Write::Delete { key: key.into() }
}

fn txn(writes: Vec<Write>) -> Txn {
    Txn { writes, ..Txn::default() }
}

fn if_at(key: &str, revision: Revision, writes: Vec<Write>) -> Txn {
    Txn { compares: vec![Compare { key: key.into(), revision }], writes, ..Txn::default() }
}

/// A transaction that must be done; its revision.
fn done<P: Place>(place: &mut P, txn: &Txn) -> Revision {
    match place.store().txn(txn) {
        Ok(Outcome::Done(revision)) => revision,
        other => panic!("{txn:?} gave {other:?}"),
    }
}

fn refused<P: Place>(place: &mut P, txn: &Txn) {
    assert_eq!(place.store().txn(txn), Ok(Outcome::Refused), "{txn:?}");
}

/// All pages of a prefix.
fn all<P: Place>(place: &mut P, prefix: &str) -> (Revision, Vec<Entry>) {
    let mut range = Range { prefix: prefix.into(), ..Range::default() };
    let mut entries: Vec<Entry> = Vec::new();
    loop {
        let page = place.store().range(&range).expect("a range");
        assert!(range.at.is_none_or(|at| at == page.revision), "pages are of one revision");
        entries.extend(page.entries);
        if !page.more {
            return (page.revision, entries);
        }
        range.after = entries.last().map(|entry| entry.key.clone());
        range.at = Some(page.revision);
    }
}

fn read<P: Place>(place: &mut P, key: &str) -> Option<(Vec<u8>, Revision)> {
    let (_, entries) = all(place, key);
    entries.into_iter().find(|entry| entry.key == key).map(|entry| (entry.value.to_vec(), entry.revision))
}

fn campaign<P: Place>(place: &mut P, name: &str, lease_ms: u64) -> Office {
    let now_ms = place.now_ms();
    place.store().campaign(name, lease_ms, now_ms).expect("a candidacy")
}

/// Wins the office.
fn won<P: Place>(place: &mut P, name: &str) -> Term {
    let office = campaign(place, name, LEASE_MS);
    assert_eq!(office.holder.as_deref(), Some(name));
    office.term
}

fn an_empty_store_has_nothing<P: Place>(place: &mut P) {
    let (revision, entries) = all(place, "");
    assert!(entries.is_empty());
    let changes = place.store().watch(revision).expect("a watch from now on");
    assert!(changes.changes.is_empty() && changes.up_to >= revision);
    let snapshot = place.store().snapshot().expect("a snapshot");
    assert!(snapshot.entries.is_empty() && snapshot.term == 0);
    assert_eq!(campaign(place, "nobody", 0), Office { term: 0, holder: None }, "to resign what nobody holds");
    refused(place, &Txn { term: Some(0), ..Txn::default() });
}

fn what_is_put_is_read_back_after_a_restart_too<P: Place>(place: &mut P) {
    let first = done(place, &txn(vec![put("a", "1"), put("b", [0, 255, b'\n'])]));
    let second = done(place, &txn(vec![put("a", "1"), put("empty", "")]));
    assert!(first > 0 && second > first, "revisions rise, also where a value stays as it was");
    for restarted in [false, true] {
        if restarted {
            place.restart();
        }
        assert_eq!(read(place, "a"), Some((b"1".to_vec(), second)));
        assert_eq!(read(place, "b"), Some((vec![0, 255, b'\n'], first)));
        assert_eq!(read(place, "empty"), Some((Vec::new(), second)));
        assert_eq!(read(place, "c"), None);
    }
    done(place, &txn(vec![delete("a")]));
    place.restart();
    assert_eq!(read(place, "a"), None);
    assert!(done(place, &txn(vec![put("a", "2")])) > second, "a restart does not set revisions back");
}

fn a_comparison_that_does_not_hold_stops_all_of_it<P: Place>(place: &mut P) {
    let first = done(place, &if_at("a", 0, vec![put("a", "1")]));
    refused(place, &if_at("a", 0, vec![put("a", "2"), put("b", "2")]));
    refused(place, &if_at("a", first + 1, vec![put("b", "2")]));
    let mut two = if_at("a", first, vec![put("b", "2")]);
    two.compares.push(Compare { key: "c".into(), revision: first });
    refused(place, &two);
    assert_eq!((read(place, "a"), read(place, "b")), (Some((b"1".to_vec(), first)), None));
    two.compares[1].revision = 0;
    let second = done(place, &two);
    assert_eq!(read(place, "b"), Some((b"2".to_vec(), second)));
    let asks = if_at("a", first, Vec::new());
    assert!(done(place, &asks) >= second, "to ask writes nothing, and tells the latest revision");
    assert_eq!(read(place, "a"), Some((b"1".to_vec(), first)));
}

fn of_two_who_saw_the_same_one_writes<P: Place>(place: &mut P) {
    let mut seen = done(place, &txn(vec![put("head", "0")]));
    for round in 1..=20u8 {
        let (mine, yours) =
            (if_at("head", seen, vec![put("head", [round])]), if_at("head", seen, vec![put("head", "")]));
        let now = done(place, &mine);
        refused(place, &yours);
        refused(place, &mine);
        assert!(now > seen);
        seen = now;
        assert_eq!(read(place, "head"), Some((vec![round], seen)));
    }
}

fn deleting_what_is_not_there_is_no_write<P: Place>(place: &mut P) {
    let first = done(place, &txn(vec![put("a", "1")]));
    let same = done(place, &txn(vec![delete("b")]));
    assert!(same >= first);
    assert_eq!(place.store().watch(first).expect("a watch").changes, Vec::new());
    let gone = done(place, &txn(vec![delete("a"), delete("b")]));
    let changes = place.store().watch(first).expect("a watch").changes;
    assert_eq!(changes.iter().map(|change| (change.revision, change.key.as_str())).collect::<Vec<_>>(), [(gone, "a")]);
    done(place, &if_at("a", 0, vec![put("a", "again")]));
}

fn limits_are_told_and_what_is_at_them_fits<P: Place>(place: &mut P) {
    let (long, large) = ("k".repeat(CONTROL_KEY_MAX_BYTES), vec![7; CONTROL_VALUE_MAX_BYTES]);
    let revision = done(place, &txn(vec![put(&long, &large)]));
    assert_eq!(read(place, &long), Some((large.clone(), revision)));
    let many = |count: usize| txn((0..count).map(|n| put(&format!("n/{n:03}"), "x")).collect());
    done(place, &many(CONTROL_TXN_STEPS_MAX));
    let full = CONTROL_TXN_MAX_BYTES / CONTROL_VALUE_MAX_BYTES;
    let large_txn = |last: usize| {
        let mut writes: Vec<Write> = (0..full - 1).map(|n| put(&format!("l/{n:02}"), &large)).collect();
        let counted: usize = writes.iter().map(Write::counted_bytes).sum();
        let rest = CONTROL_TXN_MAX_BYTES - counted - put("l/99", "").counted_bytes();
        writes.push(put("l/99", vec![7; rest + last]));
        txn(writes)
    };
    done(place, &large_txn(0));
    place.restart();
    assert_eq!(all(place, "l/").1.len(), full);
    let before = all(place, "");
    let bad = [
        txn(vec![put(&"k".repeat(CONTROL_KEY_MAX_BYTES + 1), "")]),
        txn(vec![put("", "")]),
        txn(vec![put("a\n", "")]),
        txn(vec![put("a", vec![7; CONTROL_VALUE_MAX_BYTES + 1])]),
        txn(vec![put("a", "1"), delete("a")]),
        if_at("", 0, vec![put("a", "1")]),
        many(CONTROL_TXN_STEPS_MAX + 1),
        large_txn(1),
    ];
    for bad in &bad {
        assert!(matches!(place.store().txn(bad), Err(ControlError::Invalid(_))), "{} writes", bad.writes.len());
    }
    let now_ms = place.now_ms();
    assert!(matches!(place.store().campaign("", LEASE_MS, now_ms), Err(ControlError::Invalid(_))));
    assert_eq!(all(place, ""), before, "what is refused leaves nothing");
}

fn a_range_has_its_prefix_alone_and_pages_of_one_revision<P: Place>(place: &mut P) {
    let value = vec![1; CONTROL_VALUE_MAX_BYTES];
    let count = 5 * CONTROL_PAGE_BYTES / CONTROL_VALUE_MAX_BYTES;
    for n in 0..count {
        done(place, &txn(vec![put(&format!("m/{n:03}"), &value)]));
    }
    done(place, &txn(vec![put("m", ""), put("m0", ""), put("l/9", ""), put("n", "")]));
    let (_, entries) = all(place, "m/");
    let keys: Vec<String> = (0..count).map(|n| format!("m/{n:03}")).collect();
    assert_eq!(entries.iter().map(|entry| entry.key.clone()).collect::<Vec<_>>(), keys);
    let page = place.store().range(&Range { prefix: "m/".into(), ..Range::default() }).expect("a page");
    assert!(page.more && !page.entries.is_empty() && page.entries.len() < count, "a page has an end");
    let after = |key: &str| Range { prefix: "m/".into(), after: Some(key.into()), at: None };
    let last = format!("m/{:03}", count - 2);
    let page = place.store().range(&after(&last)).expect("a page");
    assert_eq!((page.entries.len(), page.more), (1, false));
    for (key, left) in [("a", count), ("n", 0), ("m/zzz", 0), (keys[count - 1].as_str(), 0)] {
        let first = place.store().range(&after(key)).expect("a page").entries.first().map(|entry| entry.key.clone());
        assert_eq!(first.is_some(), left > 0, "behind {key}");
    }
}

fn a_page_of_the_past_is_true_or_refused<P: Place>(place: &mut P) {
    let old = done(place, &txn(vec![put("x/1", "old"), put("x/2", "old")]));
    done(place, &txn(vec![put("y", "elsewhere")]));
    let at = |at| Range { prefix: "x/".into(), after: Some("x/1".into()), at: Some(at) };
    let then = |page: Page| page.entries.iter().map(|entry| entry.value.to_vec()).collect::<Vec<_>>();
    for value in ["old", "new"] {
        match place.store().range(&at(old)) {
            Ok(page) => assert_eq!((page.revision, then(page)), (old, vec![b"old".to_vec()])),
            Err(error) => assert!(matches!(error, ControlError::Gap(now) if now > old), "{error:?}"),
        }
        done(place, &txn(vec![put("x/2", value), put("x/3", "")]));
    }
    let ahead = place.store().snapshot().expect("a snapshot").revision + 1_000;
    assert!(place.store().range(&at(ahead)).is_err(), "what is yet to come is not made up");
}

fn who_watches_sees_all_in_order<P: Place>(place: &mut P) {
    let (mut seen, _) = all(place, "");
    let from = seen;
    let mut made: Vec<(Revision, String, Option<Vec<u8>>)> = Vec::new();
    for round in 0..30u8 {
        let key = format!("k{}", round % 7);
        let gone = round % 5 == 4;
        let other = if gone { delete("z") } else { put("z", [round]) };
        let revision = done(place, &txn(vec![other, put(&key, [round])]));
        made.push((revision, key, Some(vec![round])));
        made.push((revision, "z".into(), (!gone).then(|| vec![round])));
        if round == 17 {
            won(place, "an office is no key");
        }
    }
    let mut told = Vec::new();
    loop {
        let changes = place.store().watch(seen).expect("it was not long ago");
        let within = |revision: Revision| revision > seen && revision <= changes.up_to;
        assert!(changes.changes.iter().all(|change| within(change.revision)));
        told.extend(
            changes.changes.iter().map(|it| (it.revision, it.key.clone(), it.value.as_ref().map(|v| v.to_vec()))),
        );
        if changes.up_to == seen {
            break;
        }
        seen = changes.up_to;
    }
    assert_eq!(told, made);
    assert!(place.store().watch(from).is_ok(), "to watch uses nothing up");
}

fn who_watches_too_late_is_told<P: Place>(place: &mut P) {
    let (start, _) = all(place, "");
    let value = vec![1; CONTROL_VALUE_MAX_BYTES];
    for n in 0..8 * CONTROL_PAGE_BYTES / CONTROL_VALUE_MAX_BYTES {
        done(place, &txn(vec![put("k", &value), put("n", n.to_string())]));
    }
    let last = read(place, "n").expect("it was put");
    let (now, _) = all(place, "");
    match place.store().watch(start) {
        // It may remember all; then it tells all.
        Ok(changes) => assert_eq!(changes.changes.first().map(|change| change.key.as_str()), Some("k")),
        Err(error) => assert!(matches!(error, ControlError::Gap(revision) if revision >= now), "{error:?}"),
    }
    assert_eq!(place.store().watch(now).expect("from now on").changes, Vec::new());
    let (mut seen, mut latest) = (last.1 - 1, None);
    loop {
        let changes = place.store().watch(seen).expect("the latest write is remembered");
        latest = changes.changes.last().map(|change| change.value.as_ref().map(|v| v.to_vec())).or(latest);
        if changes.up_to == seen {
            break;
        }
        seen = changes.up_to;
    }
    assert_eq!(latest, Some(Some(last.0)));
    assert!(matches!(place.store().watch(now + 1_000), Err(ControlError::Gap(_))), "that is yet to come");
}

fn one_holds_the_office_and_terms_rise<P: Place>(place: &mut P) {
    let first = won(place, "anna");
    assert!(first >= 1);
    assert_eq!(campaign(place, "bert", LEASE_MS), Office { term: first, holder: Some("anna".into()) });
    assert_eq!(won(place, "anna"), first, "to stand again renews");
    for _ in 0..3 {
        place.pass_ms(LEASE_MS / 2);
        assert_eq!(won(place, "anna"), first, "a lease that is renewed does not run out");
        assert_eq!(campaign(place, "bert", LEASE_MS).holder.as_deref(), Some("anna"));
    }
    place.pass_ms(LEASE_OUT_MS);
    let second = won(place, "bert");
    assert!(second > first);
    assert_eq!(campaign(place, "anna", LEASE_MS), Office { term: second, holder: Some("bert".into()) });
    assert_eq!(campaign(place, "anna", 0).holder.as_deref(), Some("bert"), "nobody resigns for another");
    assert_eq!(campaign(place, "bert", 0), Office { term: second, holder: None });
    let third = won(place, "anna");
    place.pass_ms(LEASE_OUT_MS);
    let fourth = won(place, "anna");
    assert!(second < third && third < fourth, "who was away comes back under a new term");
    place.restart();
    place.pass_ms(LEASE_OUT_MS);
    assert!(won(place, "carl") > fourth, "terms rise over restarts");
}

fn only_the_present_term_writes<P: Place>(place: &mut P) {
    let of = |term, writes| Txn { term: Some(term), compares: Vec::new(), writes };
    let first = won(place, "anna");
    done(place, &of(first, vec![put("a", "1")]));
    done(place, &of(first, Vec::new()));
    refused(place, &of(first + 1, vec![put("a", "2")]));
    place.pass_ms(LEASE_OUT_MS);
    let second = won(place, "bert");
    for late in [vec![put("a", "late")], Vec::new()] {
        refused(place, &of(first, late));
    }
    done(place, &of(second, vec![put("b", "2")]));
    campaign(place, "bert", 0);
    refused(place, &of(second, vec![put("b", "late")]));
    place.restart();
    refused(place, &of(second, vec![put("b", "late")]));
    let value = |it: Option<(Vec<u8>, Revision)>| it.map(|(value, _)| value);
    assert_eq!((value(read(place, "a")), value(read(place, "b"))), (Some(b"1".to_vec()), Some(b"2".to_vec())));
}

fn a_snapshot_is_all_there_is<P: Place>(place: &mut P) {
    let term = won(place, "anna");
    done(place, &txn(vec![put("a", "1"), put("b", "2")]));
    done(place, &txn(vec![delete("a"), put("c", "3")]));
    let (revision, entries) = all(place, "");
    let snapshot = place.store().snapshot().expect("a snapshot");
    assert_eq!((snapshot.term, &snapshot.entries), (term, &entries));
    assert!(snapshot.revision >= revision);
    place.restart();
    let again = place.store().snapshot().expect("a snapshot");
    assert_eq!((again.term, again.entries), (snapshot.term, snapshot.entries));
    assert!(again.revision >= snapshot.revision);
}

/// What a store should hold.
#[derive(Default)]
struct Model {
    entries: BTreeMap<String, (Vec<u8>, Revision)>,
    revision: Revision,
}

impl Model {
    fn holds(&self, txn: &Txn) -> bool {
        txn.compares.iter().all(|compare| self.entries.get(&compare.key).map_or(0, |it| it.1) == compare.revision)
    }

    fn write(&mut self, writes: &[Write], revision: Revision) {
        for write in writes {
            match write {
                Write::Put { key, value } => drop(self.entries.insert(key.clone(), (value.to_vec(), revision))),
                Write::Delete { key } => drop(self.entries.remove(key)),
            }
        }
    }
}

/// Somebody who knows the store only by watching it.
#[derive(Default)]
struct Follower {
    entries: BTreeMap<String, Vec<u8>>,
    seen: Option<Revision>,
}

impl Follower {
    fn follow<P: Place>(&mut self, place: &mut P) {
        loop {
            let Some(seen) = self.seen else {
                let (revision, entries) = all(place, "");
                self.entries = entries.into_iter().map(|entry| (entry.key, entry.value.to_vec())).collect();
                self.seen = Some(revision);
                continue;
            };
            let changes = match place.store().watch(seen) {
                Ok(changes) => changes,
                Err(ControlError::Gap(_)) => {
                    self.seen = None;
                    continue;
                }
                Err(error) => panic!("{error}"),
            };
            for change in changes.changes {
                match change.value {
                    Some(value) => drop(self.entries.insert(change.key, value.to_vec())),
                    None => drop(self.entries.remove(&change.key)),
                }
            }
            if changes.up_to == seen {
                return;
            }
            self.seen = Some(changes.up_to);
        }
    }
}

fn any_calls_do_what_a_simple_map_does<P: Place>(place: &mut P, chance: &mut impl FnMut(u64) -> u64) {
    let (mut model, mut follower) = (Model::default(), Follower::default());
    for _ in 0..400 {
        match chance(40) {
            0 => place.restart(),
            1..4 => follower.follow(place),
            4 => drop(campaign(place, "anna", LEASE_MS)),
            _ => one_txn(place, &mut model, chance),
        }
        if chance(8) == 0 {
            let (_, entries) = all(place, "");
            let held = entries.into_iter().map(|it| (it.key, (it.value.to_vec(), it.revision))).collect();
            assert_eq!(model.entries, held);
        }
    }
    follower.follow(place);
    let held: BTreeMap<String, Vec<u8>> = model.entries.into_iter().map(|(key, (value, _))| (key, value)).collect();
    assert_eq!(follower.entries, held, "who watches comes to know what there is");
}

fn one_txn<P: Place>(place: &mut P, model: &mut Model, chance: &mut impl FnMut(u64) -> u64) {
    let key = |chance: &mut dyn FnMut(u64) -> u64| format!("k/{}", chance(12));
    let mut writes = BTreeMap::new();
    for _ in 0..chance(4) {
        let key = key(chance);
        let size = if chance(10) == 0 { CONTROL_VALUE_MAX_BYTES as u64 } else { chance(40) };
        let value = vec![chance(256) as u8; size as usize];
        let write = if chance(3) == 0 { delete(&key) } else { put(&key, value) };
        writes.insert(key, write);
    }
    let compares = (0..chance(3)).map(|_| {
        let key = key(chance);
        let there = model.entries.get(&key).map_or(0, |it| it.1);
        Compare { key, revision: if chance(4) == 0 { chance(there + 2) } else { there } }
    });
    let compares = compares.collect();
    let txn = Txn { term: None, compares, writes: writes.into_values().collect() };
    match place.store().txn(&txn).expect("a transaction within its limits") {
        Outcome::Refused => assert!(!model.holds(&txn), "{txn:?}"),
        Outcome::Done(revision) => {
            assert!(model.holds(&txn), "{txn:?}");
            let gone = |write: &Write| matches!(write, Write::Delete { key } if !model.entries.contains_key(key));
            let writes = txn.writes.iter().any(|write| !gone(write));
            assert!(revision > model.revision || !writes && revision == model.revision, "revisions rise");
            model.revision = revision;
            model.write(&txn.writes, revision);
        }
    }
}
