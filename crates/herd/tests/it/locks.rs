//! The library's methods, locks and tokens against a real node.

use crate::node::Node;
use herd_client::blocking::Client;
use herd_client::{Condition, Config, ErrorKind, LockOptions, PutOptions, Standing};
use std::time::{Duration, Instant};

fn client(node: &Node) -> Client {
    Client::new(&node.addr, Config::default()).expect("an address")
}

fn lease(ms: u64) -> LockOptions {
    LockOptions { lease: Duration::from_millis(ms), ..LockOptions::default() }
}

#[test]
fn one_after_the_other_holds_a_lock_and_counts() {
    let node = Node::start(&["--memory", "64m"]);
    let client = client(&node);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..25 {
                    let wait = Duration::from_secs(60);
                    let lock = client.lock("lock", &lease(10_000), wait).expect("answered").expect("in time");
                    let holder = client.with_token(lock.token());
                    let count = holder.get("count").map_or(0, |object| object.value.len());
                    holder.put("count", &vec![b'x'; count + 1], &PutOptions::default()).expect("we hold the lock");
                    lock.release().expect("we held it");
                }
            });
        }
    });
    assert_eq!(client.get("count").expect("counted").value.len(), 100);
    let nowhere = client.lock("nowhere/lock", &lease(10_000), Duration::from_secs(60));
    assert_eq!(nowhere.err().map(|error| error.kind()), Some(ErrorKind::NoCollection));
}

#[test]
fn who_waits_for_a_lock_is_woken_and_who_was_paused_is_refused() {
    let node = Node::start(&["--memory", "64m"]);
    let client = client(&node);
    let mut lost = client.lock("lock", &lease(300), Duration::ZERO).expect("answered").expect("free");
    let early = client.with_token(lost.token());
    early.put("data", b"1", &PutOptions::default()).expect("held");
    let start = Instant::now();
    let next = client.lock("lock", &lease(10_000), Duration::from_secs(20)).expect("answered").expect("in time");
    assert!((200..2_000).contains(&start.elapsed().as_millis()), "{:?}", start.elapsed());
    assert_eq!(lost.tend(), Standing::Lost);
    let late = client.with_token(next.token());
    assert_eq!(late.get("data").expect("held").value, b"1");
    let error = early.put("data", b"2", &PutOptions::default()).expect_err("lost");
    assert!(matches!(error.kind(), ErrorKind::ConditionFailed { .. }), "{error}");
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| client.lock("lock", &lease(10_000), Duration::from_secs(20)));
        std::thread::sleep(Duration::from_millis(100));
        let start = Instant::now();
        next.release().expect("held");
        let third = waiting.join().expect("joined").expect("answered").expect("in time");
        assert!(start.elapsed() < Duration::from_millis(1_500), "{:?}", start.elapsed());
        third.release().expect("held");
    });
}

#[test]
fn methods_answer_with_values_of_all_sizes() {
    let node = Node::start(&["--memory", "64m"]);
    let client = client(&node);
    let nothing: [&[u8]; 0] = [];
    assert_eq!(client.execute("n", "fetch-and-add", &["41"], Condition::IfAbsent).expect("added").value, b"0");
    let again = client.execute("n", "fetch-and-add", &["1"], Condition::IfAbsent).expect_err("it is there");
    assert!(matches!(again.kind(), ErrorKind::ConditionFailed { version } if version > 0), "{again}");
    assert_eq!(client.execute("n", "get-and-remove", &nothing, Condition::None).expect("taken").value, b"41");
    let large = crate::node::pattern(9 << 20, 3);
    for value in [&large[..], &large[..70_000], &large[..0]] {
        client.put("large", value, &PutOptions::default()).expect("put");
        assert!(client.execute("large", "get-and-remove", &nothing, Condition::None).expect("taken").value == value);
        assert_eq!(client.stat("large").expect_err("gone").kind(), ErrorKind::NotFound);
    }
    let bytes = [&b"\0\xff\n"[..]; 3];
    client.execute(b"\xff\xfe", "list-push", &bytes, Condition::None).expect("pushed");
    assert_eq!(client.execute(b"\xff\xfe", "list-pop", &nothing, Condition::None).expect("popped").value, bytes[0]);
    let error = client.execute("n", "no-such", &nothing, Condition::None).expect_err("no such method");
    assert_eq!(error.kind(), ErrorKind::Refused(herd_core::ErrorKind::BadRequest));
}
