//! What is asked of a warden at work, and how it ends.

use super::*;
use crate::warden::drive::{Footing, Running};
use herd_core::collection::Spec;
use herd_core::control::{
    Changes, Control, ControlError, Office, Outcome, Page, Range, Revision, Snapshot, Table, Txn,
};
use herd_core::limits::{WARDEN_ASKS_MAX, WARDEN_STOP_MS};
use herd_core::place::{GroupId, HerdId, Life, NodeState};
use herd_core::replica::Want;
use herd_core::warden::{Birth, Config};
use std::sync::mpsc::{Sender, channel};
use tempfile::TempDir;

#[test]
fn nodes_join_one_after_the_other_and_each_map_has_all() {
    let directory = TempDir::new().expect("a directory");
    let (begun, watched) = herd(directory.path());
    for number in 2..=3 {
        let answer = joined(ask(&begun, join(number)));
        assert_eq!((answer.node.0.get(), answer.incarnation), (number.into(), 1));
        assert_eq!((answer.herd, answer.hash_key), (begun.joined.herd, begun.joined.hash_key));
        let last = watched.maps().pop().expect("it was pushed before");
        assert_eq!(numbers(&last), (1..=number.into()).collect::<Vec<_>>());
    }
    begun.warden.stop().expect("a clean end");
    let (again, _) = herd(directory.path());
    assert_eq!(numbers(&again.map), [1, 2, 3]);
}

#[test]
fn nodes_that_join_at_once_get_each_a_number() {
    let directory = TempDir::new().expect("a directory");
    let (begun, watched) = herd(directory.path());
    let answers: Vec<Answered> = std::thread::scope(|scope| {
        let threads: Vec<_> = (2..=9)
            .map(|number| {
                scope.spawn({
                    let begun = &begun;
                    move || send(begun, join(number))
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("it asks")).collect()
    });
    let mut given: Vec<u32> =
        answers.iter().map(|answer| joined(answer.recv_timeout(PATIENCE).expect("an answer")).node.0.get()).collect();
    given.sort_unstable();
    assert_eq!(given, (2..=9).collect::<Vec<_>>());
    assert_eq!(numbers(watched.maps().last().expect("it was pushed")), (1..=9).collect::<Vec<_>>());
}

#[test]
fn collections_are_made_emptied_and_removed() {
    let directory = TempDir::new().expect("a directory");
    let (begun, watched) = herd(directory.path());
    let create = Create { name: "c".into(), spec: Spec::of("ram:1"), copies: None, spread: None };
    let Ok(Answer::Created(id)) = ask(&begun, Ask::Create(create)) else { panic!("it is made") };
    assert_eq!(watched.maps().last().and_then(|map| map.collection("c")).map(|it| it.id), Some(id));
    let flush = send(&begun, Ask::Flush { name: "c".into() });
    let destroy = send(&begun, Ask::Destroy { name: "c".into() });
    until("both are done", || watched.maps().last().is_some_and(|map| map.collection("c").is_none()));
    assert!(flush.try_recv().is_err() && destroy.try_recv().is_err(), "the node has not that map yet");
    all_have(&begun);
    assert_eq!(flush.recv_timeout(PATIENCE), Ok(Ok(Answer::Flushed { generation: 2 })));
    assert_eq!(destroy.recv_timeout(PATIENCE), Ok(Ok(Answer::Destroyed)));
}

#[test]
fn a_node_whose_process_has_ended_is_out_at_once_and_granted_nothing() {
    let directory = TempDir::new().expect("a directory");
    let (begun, watched) = herd(directory.path());
    assert!((2..=3).all(|number| joined(ask(&begun, join(number))).node.0.get() == u32::from(number)));
    all_have(&begun);
    assert_eq!(ask(&begun, Ask::Hold), Ok(Answer::Held));
    let third = begun.joined.node.0.saturating_add(2);
    let grants = |life| watched.leases.grants().beat(NodeId(third), life, watched.leases.now_ns());
    let state = || watched.maps().last().expect("it was pushed").nodes[2].state;
    until("it is in office", || grants(1).is_some());
    let obituary = |incarnation| Ask::Obituary(Life { node: NodeId(third), incarnation });
    assert_eq!(ask(&begun, obituary(2)), Ok(Answer::Noted));
    assert!(state() == NodeState::Up && grants(1).is_some(), "it is not that one's life");
    assert_eq!(ask(&begun, obituary(1)), Ok(Answer::Noted));
    assert!(grants(1).is_none(), "before that is answered");
    until("the map says so", || state() == NodeState::Dead);
}

#[test]
fn objects_may_be_held_when_all_nodes_have_the_map() {
    let directory = TempDir::new().expect("a directory");
    let (begun, watched) = herd(directory.path());
    joined(ask(&begun, join(2)));
    let hold = send(&begun, Ask::Hold);
    let (map, held) = begun.warden.handle().map().expect("it is in office");
    assert!(!held);
    let have = |node: usize, epoch| {
        let node: NodeId = map.nodes[node].id;
        begun.warden.handle().have(node, 1, epoch, map.revision);
    };
    have(0, map.epoch);
    have(1, map.epoch - 1);
    let rest = Duration::from_millis(5 * herd_core::limits::WARDEN_TICK_MS);
    assert!(hold.recv_timeout(rest).is_err(), "node 2 has an older map");
    have(1, map.epoch);
    assert_eq!(hold.recv_timeout(PATIENCE), Ok(Ok(Answer::Held)));
    assert_eq!(seen(&watched.pushed).last().map(|(_, held)| *held), Some(true));
    begun.warden.stop().expect("a clean end");
}

#[test]
fn a_stop_answers_what_waits_and_what_comes_later() {
    let directory = TempDir::new().expect("a directory");
    let (begun, _) = herd(directory.path());
    let (hold, flush) = (send(&begun, Ask::Hold), send(&begun, flush()));
    let handle = begun.warden.handle().clone();
    let start = Instant::now();
    begun.warden.stop().expect("a clean end");
    assert!(start.elapsed() < Duration::from_millis(WARDEN_STOP_MS));
    assert_eq!(hold.try_recv(), Ok(Err(Refusal::NotWarden(None))));
    let flushed = flush.try_recv().expect("an answer");
    // Done, and nobody knows whether the node has the map; or not begun.
    assert!(matches!(flushed, Err(Refusal::Unknown | Refusal::NotWarden(None))), "{flushed:?}");
    let (reply, answer) = sync_channel(1);
    handle.ask(Ask::Hold, move |answer| reply.send(answer).expect("somebody waits"));
    assert_eq!(answer.try_recv(), Ok(Err(Refusal::NotWarden(None))));
    drop(herd(directory.path()));
}

/// A store of which each transaction waits until it is let on; then it is done.
struct Gate {
    table: Table,
    /// Told of each transaction.
    came: Sender<()>,
    go: Arc<Mutex<Receiver<()>>>,
}

impl Control for Gate {
    fn range(&mut self, range: &Range) -> Result<Page, ControlError> {
        self.table.range(range)
    }

    fn txn(&mut self, txn: &Txn) -> Result<Outcome, ControlError> {
        self.came.send(()).ok();
        self.go.lock().expect("one waits").recv().ok();
        self.table.txn(txn)
    }

    fn watch(&mut self, after: Revision) -> Result<Changes, ControlError> {
        self.table.watch(after)
    }

    fn campaign(&mut self, name: &str, lease_ms: u64, now_ms: u64) -> Result<Office, ControlError> {
        self.table.campaign(name, lease_ms, now_ms)
    }

    fn snapshot(&mut self) -> Result<Snapshot, ControlError> {
        self.table.snapshot()
    }
}

/// A warden over a store of which the first transaction hangs; and what lets transactions on.
fn hung() -> (Running, Sender<()>) {
    let birth =
        Birth { herd: HerdId([1; 16]), hash_key: [2; 16], epoch: 1, protocol_min: 1, evict: false, copies: None };
    let config = Config { name: "a".into(), protocol: 1, lasts: true, birth: Some(birth) };
    let ((came, comes), (go, goes)) = (channel(), channel());
    let store = Gate { table: Table::default(), came, go: Arc::new(Mutex::new(goes)) };
    let outlets = Watched::default().outlets();
    let running = Running::start(config, Footing::over(Box::new(store)), outlets).expect("a thread");
    comes.recv_timeout(PATIENCE).expect("it begins the herd");
    (running, go)
}

#[test]
fn a_disk_that_hangs_holds_up_neither_the_end_nor_who_waits() {
    let (running, go) = hung();
    let (reply, answer) = sync_channel(1);
    running.handle().ask(Ask::Hold, move |answer| reply.send(answer).expect("somebody waits"));
    let start = Instant::now();
    let error = running.stop().expect_err("it hangs");
    assert!(start.elapsed() < Duration::from_millis(WARDEN_STOP_MS + 500));
    assert!(error.to_string().contains("the control store's disk does not answer"), "{error}");
    assert_eq!(answer.try_recv(), Ok(Err(Refusal::Unknown)));
    drop(go);
}

/// They are told again each second, and would keep out what is asked once.
#[test]
fn what_groups_want_takes_no_place_while_the_disk_hangs() {
    let (running, go) = hung();
    let (reply, answers) = channel();
    let node = NodeId(std::num::NonZeroU32::MIN);
    let want = (GroupId { spread: 0, number: 0 }, 1, Want::Removed(node));
    for ask in std::iter::repeat_n(Ask::Wants(vec![want]), WARDEN_ASKS_MAX) {
        let reply = reply.clone();
        running.handle().ask(ask, move |answer| reply.send(answer).expect("somebody waits"));
        assert_eq!(answers.try_recv(), Ok(Ok(Answer::Noted)));
    }
    let destroy = Ask::Destroy { name: "nothing".into() };
    running.handle().ask(destroy, move |answer| reply.send(answer).expect("somebody waits"));
    drop(go);
    let answer = answers.recv_timeout(PATIENCE).expect("an answer");
    assert!(matches!(answer, Err(Refusal::Collection(_))), "{answer:?}");
    running.stop().expect("a clean end");
}

#[test]
fn what_waits_for_the_disk_is_bounded_and_answered_once_it_works() {
    let (running, go) = hung();
    let (reply, answers) = channel();
    for n in 0..WARDEN_ASKS_MAX + 1 {
        let reply = reply.clone();
        let ask = Ask::Destroy { name: "nothing".into() };
        running.handle().ask(ask, move |answer| reply.send((n, answer)).expect("somebody waits"));
    }
    assert_eq!(answers.try_recv(), Ok((WARDEN_ASKS_MAX, Err(Refusal::Busy))), "the last one");
    drop(go);
    for n in 0..WARDEN_ASKS_MAX {
        let (answered, answer) = answers.recv_timeout(PATIENCE).expect("an answer");
        assert_eq!(answered, n);
        assert!(matches!(answer, Err(Refusal::Collection(_))), "{answer:?}");
    }
    running.stop().expect("a clean end");
}
