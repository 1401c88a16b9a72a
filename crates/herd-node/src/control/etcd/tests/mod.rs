//! The control store in etcd: all that any store promises, over a real etcd; members that fail in every way; and what
//! versions it takes.
//!
//! Where there is no `etcd` on the PATH that is said, and what needs one is passed over.

mod faults;
mod kills;
pub(crate) mod server;

use super::{Address, Etcd, Halt};
use herd_core::control::suite::{Place, run};
use herd_core::control::{Compare, Control, ControlError, Outcome, Range, Txn, Write};
use server::{Fake, Real};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longer than any call takes: its bound, and what a busy machine adds.
const BOUND: Duration = Duration::from_millis(herd_core::limits::ETCD_CALL_MS + 1_000);

fn put(key: &str, value: impl AsRef<[u8]>) -> Txn {
    let value = Arc::from(value.as_ref());
    Txn { writes: vec![Write::Put { key: key.into(), value }], ..Txn::default() }
}

fn opened(url: &str) -> Etcd {
    let address = Address::parse(url).expect("an address").forced(true);
    Etcd::open(&address, Halt::default()).unwrap_or_else(|error| panic!("{error}"))
}

/// A real etcd, and a store in it.
struct There {
    etcd: Real,
    stores: usize,
    store: Etcd,
    start: Instant,
}

impl There {
    fn new() -> Option<Self> {
        let etcd = Real::start()?;
        let store = opened(&etcd.url("store-0"));
        Some(Self { etcd, stores: 0, store, start: Instant::now() })
    }

    fn reopen(&mut self) {
        self.store = opened(&self.etcd.url(&format!("store-{}", self.stores)));
    }
}

impl Place for There {
    type Store = Etcd;

    fn fresh(&mut self) {
        self.stores += 1;
        self.reopen();
    }

    fn store(&mut self) -> &mut Etcd {
        &mut self.store
    }

    fn restart(&mut self) {
        self.etcd.restart();
        self.reopen();
    }

    fn pass_ms(&mut self, ms: u64) {
        std::thread::sleep(Duration::from_millis(ms));
    }

    fn now_ms(&self) -> u64 {
        self.start.elapsed().as_millis() as u64
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

/// Some 45 s, nearly all of which it sleeps: leases of etcd run out by the clock.
#[test]
fn the_store_in_etcd_keeps_every_promise() {
    let Some(mut there) = There::new() else { return };
    run(&mut there, &mut chance(1));
}

#[test]
fn two_stores_of_one_etcd_see_nothing_of_each_other() {
    let Some(etcd) = Real::start() else { return };
    let (mut one, mut two) = (opened(&etcd.url("a")), opened(&etcd.url("ab")));
    assert!(matches!(one.txn(&put("k", "1")), Ok(Outcome::Done(_))));
    let after = one.snapshot().expect("a snapshot").revision;
    assert_eq!(two.range(&Range::default()).expect("a range").entries, []);
    assert!(matches!(two.txn(&put("k", "2")), Ok(Outcome::Done(_))));
    let (mine, yours) = (one.campaign("anna", 5_000, 0), two.campaign("bert", 5_000, 0));
    let holders = [mine, yours].map(|office| office.expect("a candidacy").holder);
    assert_eq!(holders, [Some("anna".into()), Some("bert".into())]);
    let changes = one.watch(after).expect("a watch");
    assert!(changes.changes.is_empty() && changes.up_to >= after + 3, "others' revisions are passed over: {changes:?}");
    let (one, two) = (one.snapshot().expect("a snapshot"), two.snapshot().expect("a snapshot"));
    assert_eq!((one.entries[0].value.to_vec(), two.entries[0].value.to_vec()), (b"1".to_vec(), b"2".to_vec()));
}

#[test]
fn the_largest_transactions_fit_with_the_term() {
    let Some(etcd) = Real::start() else { return };
    let mut store = opened(&etcd.url("a"));
    let term = Some(store.campaign("anna", 60_000, 0).expect("a candidacy").term);
    let most = herd_core::limits::CONTROL_TXN_STEPS_MAX;
    let key = |n: usize| format!("k/{n:03}");
    let writes = (0..most).map(|n| Write::Put { key: key(n), value: Arc::from(&b"1"[..]) }).collect();
    assert!(matches!(store.txn(&Txn { term, writes, ..Txn::default() }), Ok(Outcome::Done(_))));
    let compares = (most..2 * most).map(|n| Compare { key: key(n), revision: 0 }).collect();
    assert!(matches!(store.txn(&Txn { term, compares, ..Txn::default() }), Ok(Outcome::Done(_))));
    let compares = (0..most).map(|n| Compare { key: key(n), revision: 0 }).collect();
    assert_eq!(store.txn(&Txn { term, compares, ..Txn::default() }), Ok(Outcome::Refused));
}

#[test]
fn to_renew_an_office_or_to_ask_writes_nothing() {
    let Some(etcd) = Real::start() else { return };
    let mut store = opened(&etcd.url("a"));
    let won = store.campaign("anna", 5_000, 0).expect("a candidacy");
    let before = store.snapshot().expect("a snapshot").revision;
    let asks = Txn { term: Some(won.term), ..Txn::default() };
    for _ in 0..20 {
        assert_eq!(store.campaign("anna", 5_000, 0), Ok(won.clone()));
        assert_eq!(store.txn(&asks), Ok(Outcome::Done(before)));
        assert_eq!(store.watch(before).map(|changes| changes.up_to), Ok(before));
    }
    // Nor does who has lost its memory, and who stands while another holds it.
    let mut other = opened(&etcd.url("a"));
    assert_eq!(other.campaign("anna", 5_000, 0), Ok(won.clone()));
    assert_eq!(other.campaign("bert", 5_000, 0), Ok(won.clone()));
    assert_eq!(other.snapshot().expect("a snapshot").revision, before);
    // Another length is another lease, of the same term.
    assert_eq!(store.campaign("anna", 60_000, 0), Ok(won));
    assert_eq!(store.campaign("anna", 0, 0).expect("a candidacy").holder, None);
}

/// One revision larger than a page, and than what etcd tells at once.
#[test]
fn large_revisions_are_told_whole() {
    let Some(etcd) = Real::start() else { return };
    let mut store = opened(&etcd.url("a"));
    let before = store.snapshot().expect("a snapshot").revision;
    let value: Arc<[u8]> = Arc::from(vec![7; herd_core::limits::CONTROL_VALUE_MAX_BYTES]);
    let large = |round: usize| {
        let writes = (0..15).map(|n| Write::Put { key: format!("k/{round}.{n:02}"), value: value.clone() });
        Txn { writes: writes.collect(), ..Txn::default() }
    };
    for round in 0..6 {
        assert!(matches!(store.txn(&large(round)), Ok(Outcome::Done(_))));
    }
    let (mut seen, mut told) = (before, Vec::new());
    while seen < before + 6 {
        let changes = store.watch(seen).expect("a watch");
        assert!(changes.up_to > seen && changes.changes.len() % 15 == 0, "{} changes", changes.changes.len());
        seen = changes.up_to;
        told.extend(changes.changes.into_iter().map(|change| change.key));
    }
    let all: Vec<String> = (0..6).flat_map(|round| (0..15).map(move |n| format!("k/{round}.{n:02}"))).collect();
    assert_eq!(told, all);
}

#[test]
fn what_was_compacted_is_a_gap_and_never_half_of_what_was() {
    let Some(etcd) = Real::start() else { return };
    let mut store = opened(&etcd.url("a"));
    let mut revisions = Vec::new();
    for round in 0..6u8 {
        let delete = Write::Delete { key: "gone".into() };
        let txn = if round % 2 == 1 { Txn { writes: vec![delete], ..Txn::default() } } else { put("gone", [round]) };
        match store.txn(&txn) {
            Ok(Outcome::Done(revision)) => revisions.push(revision),
            other => panic!("{other:?}"),
        }
    }
    let last = revisions[5];
    for (compacted, revision) in revisions.iter().enumerate() {
        etcd.compact(*revision);
        for (at, from) in revisions.iter().enumerate() {
            match store.watch(*from) {
                Ok(changes) if at >= compacted => {
                    let told: Vec<_> = changes.changes.iter().map(|it| (it.revision, it.value.is_some())).collect();
                    let all: Vec<_> = (at + 1..6).map(|round| (revisions[round], round % 2 == 0)).collect();
                    assert_eq!((told, changes.up_to), (all, last));
                }
                other => assert!(at < compacted && other == Err(ControlError::Gap(last)), "{at}: {other:?}"),
            }
            let page = store.range(&Range { at: Some(*from), ..Range::default() });
            match page {
                Ok(page) => assert_eq!((page.revision, page.entries.len()), (*from, (at + 1) % 2)),
                other => assert!(at < compacted && other == Err(ControlError::Gap(last)), "{at}: {other:?}"),
            }
        }
    }
}

#[test]
fn an_old_version_is_refused_unless_it_is_forced() {
    let old = Fake::etcd("3.5.27", 1);
    let address = Address::parse(&old.url()).expect("an address");
    match Etcd::open(&address, Halt::default()) {
        Err(ControlError::Broken(text)) => {
            assert!(text.contains("3.5.27, which may read") && text.contains("HERD_ETCD_FORCE=1"), "{text}");
        }
        other => panic!("{other:?}"),
    }
    Etcd::open(&address.forced(true), Halt::default()).expect("it is forced");
    let new = Fake::etcd("3.5.28", 1);
    Etcd::open(&Address::parse(&new.url()).expect("an address"), Halt::default()).expect("it is fit");
}

#[test]
fn addresses_are_read_strictly() {
    for (text, shown) in [
        ("etcd://10.0.0.5:2379", "etcd://10.0.0.5:2379"),
        ("etcd://a:1,b:2,[::1]:3", "etcd://a:1,b:2,[::1]:3"),
        ("etcd://a:1/herd", "etcd://a:1"),
        ("etcd://a:1,b:2/blue-1", "etcd://a:1,b:2/blue-1"),
    ] {
        assert_eq!(Address::parse(text).map(|address| address.to_string()), Ok(shown.into()));
    }
    let many = format!("etcd://{}", ["a:1"; 17].join(","));
    for bad in [
        "",
        "a:1",
        "http://a:1",
        "etcd://",
        "etcd://a",
        "etcd://a:",
        "etcd://a:0",
        "etcd://a:70000",
        "etcd://:1",
        "etcd://a:1,",
        "etcd://a:1/",
        "etcd://a:1/b/c",
        "etcd://u:p@a:1",
        "etcd://a b:1",
        "etcd://a:1/b c",
        &many,
    ] {
        assert!(Address::parse(bad).is_err_and(|told| told.contains("etcd://HOST:PORT")), "{bad}");
    }
}
