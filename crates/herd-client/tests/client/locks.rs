//! Methods, locks and tokens, against a node that decides as Herd's own do.

use super::server::Server;
use herd_client::blocking::Client;
use herd_client::{Condition, Config, ErrorKind, LockOptions, PutOptions, Range, Request, Standing, Token};
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

const NOTHING: [&[u8]; 0] = [];

fn client(server: &Server) -> Client {
    Client::new(&server.name(), Config::default()).expect("an address")
}

fn lease(ms: u64) -> LockOptions {
    LockOptions { lease: Duration::from_millis(ms), label: "test".into(), ..LockOptions::default() }
}

const NO_WAIT: Duration = Duration::ZERO;

#[test]
fn methods_run_on_objects() {
    let server = Server::start();
    let client = client(&server);
    let run = |key: &str, method: &str, arguments: &[&[u8]]| client.execute(key, method, arguments, Condition::None);
    assert_eq!(run("n", "fetch-and-add", &[b"5"]).expect("a number").value, b"0");
    let added = run("n", "fetch-and-add", &[b"-7"]).expect("a number");
    assert_eq!(added.value, b"5");
    assert_eq!(client.stat("n").expect("stat").version, added.version);
    let wrong = client.execute("n", "append", &["x"], Condition::IfVersion(added.version + 1));
    assert_eq!(wrong.expect_err("another version").kind(), ErrorKind::ConditionFailed { version: 0 });
    assert_eq!(run("n", "fetch-and-add", &[]).expect_err("usage").kind(), refused(herd_core::ErrorKind::BadRequest));
    // Names and arguments are any bytes.
    let (key, item) = (&b"\xff\xfe/x\n"[..], vec![0xFF; 3_000]);
    client.execute("tree", "append", &[&item], Condition::None).expect("appended");
    assert_eq!(client.get("tree").expect("get").value, item);
    assert!(client.execute(key, "append", &["x"], Condition::None).is_err(), "its collection has no valid name");
    client.execute(b"\xff\xfex\n", "append", &[&item], Condition::None).expect("appended");
    assert_eq!(client.execute(b"\xff\xfex\n", "get-and-remove", &NOTHING, Condition::None).expect("taken").value, item);
    assert_eq!(client.get(b"\xff\xfex\n").expect_err("gone").kind(), ErrorKind::NotFound);
    let mut pipeline = client.pipeline().expect("connected");
    let push = |item: &str| Request::execute("l", "list-push", &[item.to_owned()]).expect("valid");
    let tickets: Vec<_> = (0..100).map(|i| pipeline.send(&push(&i.to_string())).expect("sent")).collect();
    for (i, ticket) in tickets.into_iter().enumerate() {
        assert_eq!(pipeline.wait(ticket).expect("pushed").1, (i + 1).to_string().as_bytes());
    }
}

fn refused(kind: herd_core::ErrorKind) -> ErrorKind {
    ErrorKind::Refused(kind)
}

#[test]
fn a_method_that_was_sent_and_lost_is_of_unknown_outcome_and_one_that_reads_is_asked_again() {
    let server = Server::start();
    let client = client(&server);
    client.execute("l", "list-push", &["x"], Condition::None).expect("pushed");
    server.node.faults.close.store(1, SeqCst);
    let lost = client.execute("l", "list-push", &["y"], Condition::None).expect_err("lost");
    assert_eq!(lost.kind(), ErrorKind::OutcomeUnknown);
    assert!(lost.to_string().starts_with("execute default/l: "), "{lost}");
    server.node.faults.close.store(1, SeqCst);
    assert_eq!(client.execute("l", "list-length", &NOTHING, Condition::None).expect("again").value, b"1");
}

#[test]
fn one_holds_a_lock_and_the_next_comes_when_it_is_given_back() {
    let server = Server::start();
    let client = client(&server);
    let mut first = client.lock("lock", &lease(10_000), NO_WAIT).expect("answered").expect("free");
    assert!(first.is_held());
    assert!(client.lock("lock", &lease(10_000), NO_WAIT).expect("answered").is_none(), "somebody has it");
    let start = Instant::now();
    assert!(client.lock("lock", &lease(10_000), Duration::from_millis(150)).expect("answered").is_none());
    assert!(start.elapsed() >= Duration::from_millis(150));
    let left = first.check().expect("held");
    assert!((5_000..=10_000).contains(&left.as_millis()), "{left:?}");
    std::thread::scope(|scope| {
        let next = scope.spawn(|| client.lock("lock", &lease(10_000), Duration::from_secs(20)));
        std::thread::sleep(Duration::from_millis(60));
        let token = first.token();
        first.release().expect("it was held");
        let start = Instant::now();
        let next = next.join().expect("joined").expect("answered").expect("free");
        assert!(start.elapsed() < Duration::from_secs(5), "it is told of the release");
        assert!(next.token().grant > token.grant);
        next.release().expect("it was held");
    });
}

#[test]
fn shared_holders_stand_beside_each_other() {
    let server = Server::start();
    let client = client(&server);
    let shared = LockOptions { shared: true, ..lease(10_000) };
    let one = client.lock("lock", &shared, NO_WAIT).expect("answered").expect("free");
    let two = client.lock("lock", &shared, NO_WAIT).expect("answered").expect("shared");
    assert!(client.lock("lock", &lease(10_000), NO_WAIT).expect("answered").is_none());
    one.release().expect("held");
    two.release().expect("held");
    client.lock("lock", &lease(10_000), NO_WAIT).expect("answered").expect("free").release().expect("held");
}

#[test]
fn a_lock_that_is_tended_outlives_its_lease_and_one_that_is_not_is_lost() {
    let server = Server::start();
    let client = client(&server);
    let mut tended = client.lock("tended", &lease(600), NO_WAIT).expect("answered").expect("free");
    let mut left = client.lock("left", &lease(600), NO_WAIT).expect("answered").expect("free");
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(1_500) {
        let Standing::Held(next) = tended.tend() else { panic!("it was lost after {:?}", start.elapsed()) };
        assert!(next <= Duration::from_millis(200), "{next:?}");
        std::thread::sleep(next.max(Duration::from_millis(1)));
    }
    assert!(client.lock("tended", &lease(600), NO_WAIT).expect("answered").is_none());
    assert_eq!((left.tend(), left.is_held()), (Standing::Lost, false));
    let error = left.check().expect_err("lost");
    assert!(matches!(error.kind(), ErrorKind::ConditionFailed { .. }), "{error}");
    assert!(matches!(left.release().expect_err("lost").kind(), ErrorKind::ConditionFailed { .. }));
    tended.release().expect("held");
}

#[test]
fn a_node_that_falls_silent_costs_the_lock_by_the_end_of_its_lease() {
    let server = Server::start();
    let mut lock = client(&server).lock("lock", &lease(600), NO_WAIT).expect("answered").expect("free");
    let start = Instant::now();
    server.node.faults.ignore.store(1_000, SeqCst);
    loop {
        match lock.tend() {
            Standing::Held(next) => std::thread::sleep(next),
            Standing::Due(_) => panic!("what is due was done"),
            Standing::Lost => break,
        }
    }
    assert!((550..900).contains(&start.elapsed().as_millis()), "{:?}", start.elapsed());
    server.node.faults.ignore.store(0, SeqCst);
    assert_eq!(lock.tend(), Standing::Lost, "for ever");
}

#[test]
fn the_token_of_an_earlier_holder_is_refused_once_a_later_one_was_shown() {
    let server = Server::start();
    let client = client(&server);
    let put = PutOptions::default();
    let hold = |previous: Option<herd_client::blocking::Lock>| {
        if let Some(lock) = previous {
            lock.release().expect("held");
        }
        client.lock("lock", &lease(10_000), NO_WAIT).expect("answered").expect("free")
    };
    let first = hold(None);
    let early = client.with_token(first.token());
    early.put("data", b"1", &put).expect("put");
    let bare = client.put("data", b"0", &put).expect_err("guarded");
    assert_eq!(bare.kind(), refused(herd_core::ErrorKind::NotAllowed));
    let second = hold(Some(first));
    let late = client.with_token(second.token());
    assert_eq!(late.get("data").expect("get").value, b"1");
    let lost = |error: herd_client::Error| matches!(error.kind(), ErrorKind::ConditionFailed { .. });
    assert!(lost(early.put("data", b"2", &put).expect_err("lost")));
    assert!(lost(early.put_from("data", &mut &b"2"[..], None, &put).expect_err("lost")));
    assert!(lost(early.put_range("data", 1, b"2", &put).expect_err("lost")));
    assert!(lost(early.get("data").expect_err("lost")));
    assert!(lost(early.get_range("data", Range::ALL).expect_err("lost")));
    assert!(lost(early.stat("data").expect_err("lost")));
    assert!(lost(early.remove("data", Condition::None).expect_err("lost")));
    assert!(lost(early.execute("data", "append", &["x"], Condition::None).expect_err("lost")));
    let mut pipeline = early.pipeline().expect("connected");
    let ticket = pipeline.send(&Request::get("data").expect("valid")).expect("sent");
    assert!(lost(pipeline.wait(ticket).expect_err("lost")));
    assert_eq!(client.get("data").expect("reading is free").value, b"1");
    late.put("data", b"3", &put).expect("put");
    // Who holds one lock may take another, which is not guarded by the first.
    let other = late.lock("other", &lease(10_000), NO_WAIT).expect("answered").expect("free");
    assert!(client.lock("other", &lease(10_000), Duration::from_millis(30)).expect("answered").is_none());
    other.release().expect("held");
    client.lock("other", &lease(10_000), NO_WAIT).expect("answered").expect("free").release().expect("held");
    late.remove("data", Condition::None).expect("removed");
    assert!(lost(early.put("data", b"4", &put).expect_err("lost, also after the remove")));
    assert!(Token::parse(&second.token().to_string()).is_some_and(|token| token == second.token()));
}
