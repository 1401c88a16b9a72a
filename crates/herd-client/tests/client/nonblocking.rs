//! The async client: what differs from the blocking one, which shares all but the waiting with it.

use super::blocking::pattern;
use super::patience::Hanging;
use super::server::Server;
use herd_client::nonblocking::Client;
use herd_client::{Condition, Config, ErrorKind, LockOptions, PutOptions, Range, Spec, Standing};
use std::future::Future;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

fn run<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(future)
}

fn client(server: &Server) -> Client {
    Client::new(&server.name(), Config::default()).expect("an address")
}

#[test]
fn objects_of_all_sizes_come_back_as_they_were_put() {
    let server = Server::start();
    let client = client(&server);
    run(async {
        for size in [0, 1, 65_536, 70_000, 1 << 20, (4 << 20) + 77, (11 << 20) + 12_345] {
            let value = pattern(size);
            let ack = client.put("object", &value, &PutOptions::default()).await.expect("put");
            let object = client.get("object").await.expect("get");
            assert!(object.value == value, "{size} bytes");
            assert_eq!(object.stat.version, ack.version);
            for length in [Some(size as u64), None] {
                client.put_from("stream", &mut &value[..], length, &PutOptions::default()).await.expect("put");
                let mut out = Vec::new();
                client.get_to("stream", None, &mut out).await.expect("get to");
                assert!(out == value, "{size} bytes");
            }
        }
        assert_eq!(server.node.accepted.load(SeqCst), 1, "one connection serves one after the other");
    });
}

#[test]
fn every_other_verb_answers() {
    let server = Server::start();
    let client = client(&server);
    run(async {
        let spec = Spec { ordered: true, ..Spec::of("ram:1") };
        client.create_collection("tree", &spec).await.expect("created");
        for i in 0..1100 {
            client.put(format!("tree/{i:05}"), b"0123456789", &PutOptions::default()).await.expect("put");
        }
        let mut listing = client.list("tree", "0");
        let mut names = Vec::new();
        while let Some(item) = listing.next().await {
            names.push(item.expect("lists").name);
        }
        assert_eq!(names.len(), 1100);
        client.put_range("tree/00000", 8, b"abc", &PutOptions::default()).await.expect("put");
        let range = Range { offset: 7, length: None };
        assert_eq!(client.get_range("tree/00000", range).await.expect("get").value, b"7abc");
        let stat = client.stat("tree/00000").await.expect("stat");
        assert_eq!(stat.size_bytes, 11);
        let newer = client.get_newer("tree/00000", stat.version, Duration::from_millis(30)).await;
        assert_eq!(newer.expect_err("nothing").kind(), ErrorKind::Refused(herd_core::ErrorKind::Timeout));
        client.remove("tree/00000", Condition::IfVersion(stat.version)).await.expect("removed");
        client.destroy_collection("tree").await.expect("destroyed");
        assert_eq!(client.get("tree/1").await.expect_err("gone").kind(), ErrorKind::NoCollection);
        assert_eq!(client.status().await.expect("status")["nodes"], 1);
    });
}

#[test]
fn many_calls_run_at_once_in_one_thread() {
    let server = Server::start();
    let client = client(&server);
    run(async {
        let first = client.put("w", b"1", &PutOptions::default()).await.expect("put").version;
        let put_later = async {
            tokio::time::sleep(Duration::from_millis(30)).await;
            client.put("w", b"2", &PutOptions::default()).await.expect("put")
        };
        let wait = Duration::from_secs(20);
        let (one, two, _) =
            tokio::join!(client.get_newer("w", first, wait), client.get_newer("w", first, wait), put_later);
        assert_eq!((&one.expect("newer").value[..], &two.expect("newer").value[..]), (&b"2"[..], &b"2"[..]));
    });
}

#[test]
fn losses_are_told_as_by_the_blocking_client() {
    let server = Server::start();
    let config = Config { timeout: Duration::from_millis(1_000), ..Config::default() };
    let client = Client::new(&format!("127.0.0.1:1,{}", server.name()), config).expect("addresses");
    run(async {
        let value = pattern(9 << 20);
        client.put("f", &value, &PutOptions::default()).await.expect("put");
        server.node.faults.close.store(1, SeqCst);
        assert!(client.get("f").await.expect("again").value == value);
        server.node.faults.corrupt.store(1, SeqCst);
        assert!(client.get("f").await.expect("again").value == value);
        server.node.faults.cut_body.store(2, SeqCst);
        let mut out = Vec::new();
        client.get_to("f", None, &mut out).await.expect("goes on");
        assert!(out == value);
        server.node.faults.close.store(1, SeqCst);
        let unknown = client.put("f", b"x", &PutOptions::default()).await.expect_err("lost");
        assert_eq!(unknown.kind(), ErrorKind::OutcomeUnknown);
        server.node.faults.ignore.store(1, SeqCst);
        let start = Instant::now();
        let silent = client.put("f", b"x", &PutOptions::default()).await.expect_err("silence");
        assert_eq!(silent.kind(), ErrorKind::OutcomeUnknown);
        assert!((950..2_500).contains(&start.elapsed().as_millis()), "{:?}", start.elapsed());
    });
}

#[test]
fn a_call_that_is_dropped_leaves_the_client_whole() {
    let server = Server::start();
    let client = client(&server);
    run(async {
        client.put("f", &pattern(9 << 20), &PutOptions::default()).await.expect("put");
        for patience_us in [0, 50, 200, 800, 3000] {
            let _ = tokio::time::timeout(Duration::from_micros(patience_us), client.get("f")).await;
            assert_eq!(client.stat("f").await.expect("stat").size_bytes, 9 << 20);
        }
    });
}

#[test]
fn locks_are_taken_tended_and_given_back() {
    let server = Server::start();
    let client = client(&server);
    let options = LockOptions { lease: Duration::from_millis(600), ..LockOptions::default() };
    run(async {
        assert_eq!(client.execute("n", "fetch-and-add", &["2"], Condition::None).await.expect("added").value, b"0");
        let mut lock = client.lock("lock", &options, Duration::ZERO).await.expect("answered").expect("free");
        assert!(client.lock("lock", &options, Duration::from_millis(50)).await.expect("answered").is_none());
        for _ in 0..4 {
            let Standing::Held(next) = lock.tend().await else { panic!("it was tended") };
            tokio::time::sleep(next).await;
        }
        let holder = client.with_token(lock.token());
        holder.put("data", b"1", &PutOptions::default()).await.expect("put");
        assert!(client.put("data", b"2", &PutOptions::default()).await.is_err(), "it is guarded");
        lock.check().await.expect("held");
        let (released, next) = tokio::join!(lock.release(), client.lock("lock", &options, Duration::from_secs(5)));
        released.expect("held");
        assert!(next.expect("answered").is_some_and(|mut next| next.is_held()));
    });
}

#[test]
fn the_timeout_binds_connections_nodes_and_repeats_together() {
    let (hanging, server) = (Hanging::new(), Server::start());
    let config = Config { timeout: Duration::from_millis(400), ..Config::default() };
    let client = |nodes: String| Client::new(&nodes, config.clone()).expect("addresses");
    run(async {
        let start = Instant::now();
        let error = client(hanging.name()).get("x").await.expect_err("nobody");
        assert_eq!(error.kind(), ErrorKind::Unreachable);
        assert!((350..700).contains(&start.elapsed().as_millis()), "{:?}", start.elapsed());
        let start = Instant::now();
        let both = client(format!("{},{}", hanging.name(), server.name()));
        both.put("x", b"1", &PutOptions::default()).await.expect("the other has time left");
        assert!(start.elapsed() < Duration::from_millis(500), "{:?}", start.elapsed());
        server.node.faults.ignore.store(100, SeqCst);
        let spec = Spec::of("ram:1");
        let start = Instant::now();
        let unknown = both.create_collection("c", &spec).await.expect_err("silence");
        assert_eq!(unknown.kind(), ErrorKind::OutcomeUnknown);
        assert!((350..700).contains(&start.elapsed().as_millis()), "{:?}", start.elapsed());
    });
}
