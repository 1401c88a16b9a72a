//! What the warden's thread grants, while the store takes its time, stands still, or has another warden.

use super::*;
use crate::control::etcd::tests::server::Real;
use crate::control::etcd::{Address, Etcd, Halt};
use crate::warden::drive::{Footing, Running};
use herd_core::control::{
    Changes, Control, ControlError, Office, Outcome, Page, Range, Revision, Snapshot, Table, Txn,
};
use herd_core::limits::{LEASE_MS, OFFICE_SURE_MS};
use herd_core::place::{HerdId, NodeState};
use herd_core::warden::{Birth, Config};
use std::sync::MutexGuard;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::{JoinHandle, sleep};
use tempfile::TempDir;

/// How often nodes beat here.
const BEAT: Duration = Duration::from_millis(50);
/// What a busy machine adds.
const SLACK: Duration = Duration::from_millis(300);

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn id(number: u32) -> NodeId {
    NodeId(std::num::NonZeroU32::new(number).expect("from 1"))
}

/// Two nodes that beat, of which the first one is the warden's: as their links have it.
struct Beats {
    /// When the second one was last granted something.
    granted: Seen<Instant>,
    /// Whether the second one beats; whether this ends.
    beats: Arc<AtomicBool>,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Beats {
    fn of(leases: &Arc<Leases>) -> Self {
        let (granted, ends) = (Seen::default(), Arc::new(AtomicBool::new(false)));
        let beats = Arc::new(AtomicBool::new(true));
        let (leases, to, beat, end) = (leases.clone(), granted.clone(), beats.clone(), ends.clone());
        let thread = std::thread::spawn(move || {
            while !end.load(Relaxed) {
                leases.own_beat(id(1), 1);
                if beat.load(Relaxed) && leases.beat_of(id(2), 1).is_some() {
                    to.lock().expect("no test panics with it").push(Instant::now());
                }
                sleep(BEAT);
            }
        });
        Self { granted, beats, ends, thread: Some(thread) }
    }

    fn were_granted_since(&self, since: Instant) -> bool {
        self.granted.lock().expect("as above").last().is_some_and(|at| *at > since)
    }

    /// From now on all goes well again.
    fn go_on(&self, what: &str) {
        let since = Instant::now();
        until(what, || self.were_granted_since(since));
    }
}

impl Drop for Beats {
    fn drop(&mut self) {
        self.ends.store(true, Relaxed);
        self.thread.take().into_iter().for_each(|thread| drop(thread.join()));
    }
}

/// A herd in etcd of two nodes, which may hold objects, long enough in office to take nodes out.
fn two_in(etcd: &Real, place: &Path) -> (Begun, Beats) {
    let address = Address::parse(&etcd.url("a")).expect("an address").forced(true);
    let options = Options { etcd: Some(address), ..options(Some(place), true) };
    let outlets = Watched::default().outlets();
    let beats = Beats::of(&outlets.leases);
    let begun = begin(options, &Drawn::new().expect("chance"), outlets).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(joined(ask(&begun, join(2))).node, id(2));
    let held = send(&begun, Ask::Hold);
    until("both have the map", || {
        all_have(&begun);
        held.try_recv().is_ok_and(|answer| answer.is_ok())
    });
    beats.go_on("leases are granted");
    sleep(ms(2 * LEASE_MS + 500));
    (begun, beats)
}

fn is_up(begun: &Begun) -> bool {
    let (map, _) = begun.warden.handle().map().expect("it is in office");
    map.node(id(2)).is_some_and(|node| node.state == NodeState::Up)
}

#[test]
fn while_etcd_stands_still_nothing_is_granted_and_nobody_is_taken_out() {
    let Some(etcd) = Real::start() else { return };
    let directory = TempDir::new().expect("a directory");
    let (begun, beats) = two_in(&etcd, directory.path());
    etcd.signal("STOP");
    sleep(ms(LEASE_MS / 2) + SLACK);
    let since = Instant::now();
    sleep(ms(5_000));
    assert!(!beats.were_granted_since(since), "who is in office is not known");
    etcd.signal("CONT");
    beats.go_on("leases are granted again");
    assert!(is_up(&begun), "it beat all the while");
    beats.beats.store(false, Relaxed);
    until("who is silent is taken out", || !is_up(&begun));
    begun.warden.stop().expect("a clean end");
}

#[test]
fn while_one_member_of_three_is_gone_leases_go_on() {
    let Some(mut etcd) = Real::of(3) else { return };
    let directory = TempDir::new().expect("a directory");
    let (begun, beats) = two_in(&etcd, directory.path());
    for member in 0..3 {
        etcd.kill_member(member);
        // One of the three was the leader.
        let since = Instant::now();
        until("leases are granted again", || beats.were_granted_since(since + ms(1_000)));
        assert!(since.elapsed() < Duration::from_secs(10), "{:?}", since.elapsed());
        assert!(matches!(ask(&begun, join(3 + member as u8)), Ok(Answer::Joined(_))), "the herd changes");
        assert!(is_up(&begun));
        etcd.revive_member(member);
    }
    begun.warden.stop().expect("a clean end");
}

#[test]
fn a_warden_that_another_one_follows_in_etcd_grants_nothing_more() {
    let Some(etcd) = Real::start() else { return };
    let directory = TempDir::new().expect("a directory");
    let (begun, beats) = two_in(&etcd, directory.path());
    let address = Address::parse(&etcd.url("a")).expect("an address").forced(true);
    let mut store = Etcd::open(&address, Halt::default()).expect("it answers");
    let first = store.campaign("bert", 60_000, 0).expect("a candidacy");
    let name = first.holder.expect("the first node's warden");
    // Its lease runs out as it stands still, say; and it may be there again just before the other one.
    until("another one is in office", || {
        store.campaign(&name, 0, 0).expect("a candidacy");
        let taken = store.campaign("bert", 60_000, 0).expect("a candidacy");
        taken.holder.as_deref() == Some("bert")
    });
    sleep(ms(OFFICE_SURE_MS + 200) + SLACK);
    let since = Instant::now();
    sleep(ms(2_500));
    assert!(!beats.were_granted_since(since));
    let refusal = ask(&begun, flush()).expect_err("it is no warden");
    assert_eq!(refusal, Refusal::NotWarden(Some("bert".into())));
    begun.warden.stop().expect("a clean end");
}

/// A store in memory that takes its time.
#[derive(Clone, Default)]
struct Slow {
    table: Arc<Mutex<Table>>,
    takes_ms: Arc<AtomicU64>,
}

impl Slow {
    fn table(&mut self) -> MutexGuard<'_, Table> {
        sleep(ms(self.takes_ms.load(Relaxed)));
        self.table.lock().expect("no test panics with it")
    }
}

impl Control for Slow {
    fn range(&mut self, range: &Range) -> Result<Page, ControlError> {
        self.table().range(range)
    }

    fn txn(&mut self, txn: &Txn) -> Result<Outcome, ControlError> {
        self.table().txn(txn)
    }

    fn watch(&mut self, after: Revision) -> Result<Changes, ControlError> {
        self.table().watch(after)
    }

    fn campaign(&mut self, name: &str, lease_ms: u64, now_ms: u64) -> Result<Office, ControlError> {
        self.table().campaign(name, lease_ms, now_ms)
    }

    fn snapshot(&mut self) -> Result<Snapshot, ControlError> {
        self.table().snapshot()
    }
}

/// A warden over such a store.
fn over(store: Slow, outlets: Outlets) -> Running {
    let birth =
        Birth { herd: HerdId([1; 16]), hash_key: [7; 16], epoch: 1, protocol_min: 1, evict: false, copies: None };
    let config = Config { name: "a".into(), protocol: 1, lasts: true, birth: Some(birth) };
    Running::start(config, Footing::over(Box::new(store)), outlets).expect("a thread")
}

/// Asks; the answer comes there.
fn asked(running: &Running, ask: Ask) -> Answered {
    let (reply, answer) = sync_channel(1);
    running.handle().ask(ask, move |answer| reply.send(answer).expect("somebody waits"));
    answer
}

/// Another process of the node with that number.
fn next_process(number: u8) -> Ask {
    let Ask::Join(join) = join(number) else { panic!("it is one") };
    Ask::Join(Join { process: [9; 16], ..join })
}

/// A process that asked a warden which then stood still may have ended since, and the next one be in.
#[test]
fn who_asked_to_be_let_in_before_another_warden_came_is_to_ask_again() {
    let (store, start) = (Slow::default(), Instant::now());
    let running = over(store.clone(), Watched::default().outlets());
    for number in [1, 2] {
        asked(&running, join(number)).recv_timeout(PATIENCE).expect("an answer").expect("it is in");
    }
    store.takes_ms.store(1_500, Relaxed);
    sleep(ms(OFFICE_SURE_MS + 200));
    // A call is under way. Before it is over another warden was in office, and is not any more.
    let waits = asked(&running, next_process(2));
    let now_ms = start.elapsed().as_millis() as u64;
    let mut table = store.table.lock().expect("as above");
    table.campaign("a", 0, now_ms).expect("it leaves");
    let others = table.campaign("bert", 1, now_ms).expect("a candidacy");
    drop(table);
    store.takes_ms.store(0, Relaxed);
    assert_eq!(others.holder.as_deref(), Some("bert"));
    assert_eq!(waits.recv_timeout(PATIENCE), Ok(Err(Refusal::NotWarden(None))));
    let (map, _) = running.handle().map().expect("it is in office again");
    assert!(map.term > others.term, "{} after {}", map.term, others.term);
    let again = asked(&running, next_process(2)).recv_timeout(PATIENCE).expect("an answer");
    assert!(joined(again).incarnation > map.node(id(2)).expect("it is in").incarnation);
    running.stop().expect("a clean end");
}

/// An answer tells of when it was asked for, and not of when it came.
#[test]
fn a_store_that_answers_too_late_to_grant_by_grants_nothing() {
    let takes_ms = Arc::new(AtomicU64::new(0));
    let store = Slow { takes_ms: takes_ms.clone(), ..Slow::default() };
    let outlets = Watched::default().outlets();
    let beats = Beats::of(&outlets.leases);
    let running = over(store, outlets);
    for number in [1, 2] {
        asked(&running, join(number)).recv_timeout(PATIENCE).expect("an answer").expect("it is in");
    }
    beats.go_on("leases are granted");
    takes_ms.store(LEASE_MS / 2 + 200, Relaxed);
    sleep(ms(LEASE_MS) + SLACK);
    let since = Instant::now();
    sleep(ms(5_000));
    assert!(!beats.were_granted_since(since));
    takes_ms.store(400, Relaxed);
    beats.go_on("a store that takes 400 ms is in time");
    takes_ms.store(0, Relaxed);
    sleep(ms(LEASE_MS));
    running.stop().expect("a clean end");
}
