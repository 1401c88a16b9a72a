//! Members that fail: each call ends in time, and what is told is what happened.

use super::super::wire;
use super::server::{Answer, header, standing};
use super::*;
use herd_core::control::Snapshot;
use herd_core::place::HerdId;
use herd_core::warden::MoveId;
use serde_json::{Value, json};
use std::sync::Mutex;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::sleep;

const FIT: &str = "3.6.9";

/// What a member does with what is asked, once it has said who it is.
fn member(what: impl Fn(&str, &Value) -> Answer + Send + Sync + 'static) -> Fake {
    Fake::new(behaviour(what))
}

fn behaviour(what: impl Fn(&str, &Value) -> Answer) -> impl Fn(&str, &Value) -> Answer {
    move |path, body| match path {
        "/v3/maintenance/status" => standing(FIT, 1),
        _ => what(path, body),
    }
}

fn says(status: u16, body: &str) -> Answer {
    Answer::Says(status, body.into())
}

fn done() -> Answer {
    says(200, &json!({"header": header(1, 7), "succeeded": true}).to_string())
}

/// The error of a call, and that it came in time.
fn failed<T: std::fmt::Debug>(call: impl FnOnce() -> Result<T, ControlError>) -> ControlError {
    let since = Instant::now();
    let error = call().expect_err("it fails");
    assert!(since.elapsed() < BOUND, "{error} after {:?}", since.elapsed());
    error
}

fn is_unreachable(error: &ControlError) -> bool {
    matches!(error, ControlError::Unreachable(_))
}

/// The warden does nothing else while it puts a copy there: all of that together has an end, and soon.
#[test]
fn a_copy_is_not_put_for_long_into_an_etcd_that_is_silent_once_it_has_said_who_it_is() {
    let fake = member(|_, _| Answer::Silent);
    let mut etcd = opened(&fake.url());
    let error = failed(|| etcd.prepare(MoveId([7; 16]), HerdId([1; 16]), &Snapshot::default()));
    assert!(is_unreachable(&error), "{error}");
}

/// Of what does not come, a read is not done and a write may be.
#[test]
fn where_no_answer_comes_a_write_is_in_doubt_and_a_read_is_not() {
    let whole = b"HTTP/1.1 200 OK\r\nContent-Length: 40\r\n\r\n{\"header\"";
    let cases: [fn(&[u8]) -> Answer; 7] = [
        |_| Answer::Closes,
        |_| Answer::Silent,
        |whole| Answer::Raw(whole.to_vec()),
        |_| Answer::Raw(b"SSH-2.0-OpenSSH_9.9\r\n".to_vec()),
        |_| says(200, "<html>"),
        |_| says(500, "<html>"),
        |_| {
            says(
                503,
                r#"{"error":"etcdserver: request timed out","code":14,"message":"etcdserver: request timed out"}"#,
            )
        },
    ];
    for case in cases {
        let fake = member(move |_, _| case(whole));
        let mut store = opened(&fake.url());
        let error = failed(|| store.txn(&put("a", "1")));
        assert!(matches!(&error, ControlError::Unknown(text) if text.contains(&fake.port().to_string())), "{error:?}");
        for error in [
            failed(|| store.range(&Range::default())),
            failed(|| store.txn(&Txn::default())),
            failed(|| store.watch(3)),
            failed(|| store.campaign("anna", 5_000, 0)),
        ] {
            assert!(is_unreachable(&error), "{error:?}");
        }
    }
}

/// etcd answers a transaction without any read or write by what one member has, which may be what was.
#[test]
fn what_only_asks_is_a_read_of_all_members() {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let seen = asked.clone();
    let fake = member(move |_, body| {
        seen.lock().expect("no fake panics with it").push(body.clone());
        done()
    });
    let mut store = opened(&fake.url());
    assert_eq!(store.txn(&Txn { term: Some(3), ..Txn::default() }), Ok(Outcome::Done(7)));
    store.range(&Range::default()).expect("a range");
    let asked = asked.lock().expect("no fake panics with it");
    for branch in ["success", "failure"] {
        assert!(asked[0][branch][0]["request_range"]["key"].is_string(), "{}", asked[0]);
    }
    assert!(!asked.iter().any(|body| body.to_string().contains("serializable")), "{asked:?}");
}

/// However far an answer came.
#[test]
fn an_answer_cut_at_any_byte_is_none() {
    let body = json!({"header": header(1, 7), "succeeded": true}).to_string();
    let chunk = format!("{:x};x=y\r\n{body}\r\n0\r\nGrpc-Trailer: x\r\n\r\n", body.len());
    for (head, body) in [("Transfer-Encoding: chunked", chunk), (&*format!("content-length: {}", body.len()), body)] {
        let bytes = format!("HTTP/1.1 200 OK\r\n{head}\r\n\r\n{body}").into_bytes();
        let fake = member(|_, _| Answer::Closes);
        let mut store = opened(&fake.url());
        for end in 0..bytes.len() {
            let cut = bytes[..end].to_vec();
            fake.becomes(behaviour(move |_, _| Answer::Raw(cut.clone())));
            let error = failed(|| store.txn(&put("a", "1")));
            assert!(matches!(error, ControlError::Unknown(_)), "{end}: {error:?}");
        }
        fake.becomes(behaviour(move |_, _| Answer::Raw(bytes.clone())));
        assert_eq!(store.txn(&put("a", "1")), Ok(Outcome::Done(7)));
    }
}

#[test]
fn where_etcd_has_no_room_a_write_may_have_been_done_and_it_is_looked_for() {
    let text = "etcdserver: mvcc: database space exceeded";
    let told = json!({"error": text, "message": text, "code": 8}).to_string();
    let compares = |key: &str| Txn { compares: vec![Compare { key: key.into(), revision: 3 }], ..put("a", "1") };
    // Whether what it compares holds still, or is not told; and whether it was surely not done.
    for (txn, holds, is_sure) in [
        (compares("a"), Some(true), true),
        (compares("a"), Some(false), false),
        (compares("a"), None, false),
        (compares("b"), Some(true), false),
        (put("a", "1"), Some(true), false),
    ] {
        let told = told.clone();
        let fake = member(move |_, body| match (body["success"][0].get("request_put"), holds) {
            (Some(_), _) => says(400, &told),
            (None, Some(holds)) => says(200, &json!({"header": header(1, 7), "succeeded": holds}).to_string()),
            (None, None) => Answer::Closes,
        });
        let (text, was_sure) = match failed(|| opened(&fake.url()).txn(&txn)) {
            ControlError::Full(text) => (text, true),
            ControlError::Unknown(text) => (text, false),
            other => panic!("{other:?}"),
        };
        assert_eq!(was_sure, is_sure, "{txn:?} {holds:?}");
        assert!(text.contains("database space exceeded") && text.contains("disarm its alarm"), "{text}");
    }
}

#[test]
fn what_etcd_refuses_was_not_done() {
    let fault = |code: u32, text: &str| json!({"error": text, "message": text, "code": code}).to_string();
    let mut refusals = Vec::new();
    for (code, text) in [
        (3, "etcdserver: too many operations in txn request"),
        (8, "etcdserver: too many requests"),
        (7, "etcdserver: permission denied"),
    ] {
        let told = fault(code, text);
        let fake = member(move |_, _| says(400, &told));
        refusals.push(failed(|| opened(&fake.url()).txn(&put("a", "1"))));
    }
    assert!(matches!(&refusals[0], ControlError::Invalid(text) if text.contains("too many operations")));
    assert!(is_unreachable(&refusals[1]));
    assert!(matches!(&refusals[2], ControlError::Broken(text) if text.contains("not in this version")));
}

#[test]
fn what_was_compacted_is_told_with_the_revision_that_is() {
    let text = "etcdserver: mvcc: required revision has been compacted";
    let told = json!({"error": text, "message": text, "code": 11}).to_string();
    let fake = member(move |_, body| match body.get("revision") {
        Some(_) => says(400, &told),
        None => says(200, &json!({"header": header(1, 9)}).to_string()),
    });
    let mut store = opened(&fake.url());
    let past = Range { at: Some(4), ..Range::default() };
    assert_eq!(store.range(&past), Err(ControlError::Gap(9)));
    assert_eq!(store.watch(4), Err(ControlError::Gap(9)));
}

/// What is compacted while changes come is missing among them, and nothing says so.
#[test]
fn what_is_compacted_meanwhile_is_a_gap_too() {
    let text = "etcdserver: mvcc: required revision has been compacted";
    let gone = json!({"error": text, "message": text, "code": 11}).to_string();
    let key = wire::coded("herd/herd/data/a");
    let event = json!({"kv": {"key": key, "mod_revision": "9", "value": "eA=="}});
    let line = json!({"result": {"header": header(1, 9), "events": [event]}}).to_string() + "\n";
    let streamed = std::sync::atomic::AtomicBool::new(false);
    let fake = member(move |path, body| match path {
        "/v3/watch" => {
            streamed.store(true, Relaxed);
            says(200, &line)
        }
        _ if body.get("revision").is_some() && streamed.load(Relaxed) => says(400, &gone),
        _ => says(200, &json!({"header": header(1, 9)}).to_string()),
    });
    assert_eq!(opened(&fake.url()).watch(4), Err(ControlError::Gap(9)));
}

/// A stream that ends in the middle gives whole revisions, and no half of one.
#[test]
fn of_a_stream_that_breaks_off_whole_revisions_count() {
    let event = |revision: u64, key: &str| {
        let key = wire::coded(format!("herd/herd/data/{key}"));
        json!({"kv": {"key": key, "mod_revision": revision.to_string(), "value": "eA=="}})
    };
    let line = |events: Value, fragment: bool| {
        json!({"result": {"header": header(1, 9), "events": events, "fragment": fragment}}).to_string() + "\n"
    };
    let first = line(json!([event(5, "a"), event(6, "b")]), true);
    let second = line(json!([event(6, "c"), event(7, "d")]), false);
    for (lines, told, up_to) in [(first.clone(), vec!["a"], 5), (first + &second, vec!["a", "b", "c", "d"], 7)] {
        let fake = member(move |path, _| match path {
            "/v3/watch" => says(200, &lines),
            _ => says(200, &json!({"header": header(1, 9)}).to_string()),
        });
        let changes = opened(&fake.url()).watch(4).expect("some of it came");
        let keys: Vec<_> = changes.changes.iter().map(|change| change.key.as_str()).collect();
        assert_eq!((keys, changes.up_to), (told, up_to));
    }
}

#[test]
fn another_etcd_or_an_old_copy_is_never_gone_on_with() {
    let fake = member(|_, _| done());
    let mut store = opened(&fake.url());
    assert_eq!(store.txn(&put("a", "1")), Ok(Outcome::Done(7)));
    // Of another cluster, in an answer, and when it is connected to anew.
    let asked = Arc::new(Mutex::new(Vec::new()));
    let seen = asked.clone();
    let other = json!({"header": header(2, 8), "succeeded": true}).to_string();
    fake.becomes(move |path, _| {
        seen.lock().expect("no fake panics with it").push(path.to_owned());
        if path == "/v3/maintenance/status" { standing(FIT, 2) } else { says(200, &other) }
    });
    for _ in 0..2 {
        match failed(|| store.txn(&put("a", "2"))) {
            ControlError::Broken(text) => assert!(text.contains("cluster 2, and the store is in 1"), "{text}"),
            other => panic!("{other:?}"),
        }
    }
    let asked = asked.lock().expect("no fake panics with it").clone();
    assert_eq!(asked, ["/v3/kv/txn", "/v3/maintenance/status"], "another one is written nothing");
    // Put back to an older copy.
    fake.becomes(behaviour(|_, _| says(200, &json!({"header": header(1, 6), "succeeded": true}).to_string())));
    for error in [failed(|| store.txn(&put("a", "2"))), failed(|| store.range(&Range::default()))] {
        assert!(matches!(&error, ControlError::Broken(text) if text.contains("an old copy")), "{error:?}");
    }
}

#[test]
fn where_one_member_is_gone_the_next_is_asked() {
    let (here, gone) = (member(|_, _| done()), server::free_port());
    let url = format!("etcd://127.0.0.1:{gone},127.0.0.1:{}", here.port());
    assert_eq!(opened(&url).txn(&put("a", "1")), Ok(Outcome::Done(7)), "nobody has got it but the one that did it");
    drop(here);
    let fake = member(|_, _| done());
    let mut store = opened(&fake.url());
    drop(fake);
    for error in [failed(|| store.txn(&put("a", "1"))), failed(|| store.range(&Range::default()))] {
        assert!(is_unreachable(&error) && error.to_string().contains("see that it runs"), "{error:?}");
    }
}

#[test]
fn a_member_that_is_silent_is_passed_over_by_reads_alone_and_asked_last_from_then_on() {
    let (mute, here) = (member(|_, _| Answer::Silent), member(|_, _| done()));
    let url = format!("etcd://127.0.0.1:{},127.0.0.1:{}", mute.port(), here.port());
    let mut store = opened(&url);
    let error = failed(|| store.txn(&put("a", "1")));
    assert!(matches!(error, ControlError::Unknown(_)), "{error:?}");
    let since = Instant::now();
    assert_eq!(store.txn(&put("a", "1")), Ok(Outcome::Done(7)));
    assert!(since.elapsed() < Duration::from_millis(500), "the one that answers is the first now");
    drop(store);
    let since = Instant::now();
    opened(&url).range(&Range::default()).expect("the next one answers");
    assert!(since.elapsed() < BOUND);
}

#[test]
fn a_node_that_stops_does_not_wait_for_an_answer() {
    let fake = member(|_, _| Answer::Silent);
    let halt = Halt::default();
    let address = Address::parse(&fake.url()).expect("an address");
    let mut store = Etcd::open(&address, halt.clone()).expect("it answers");
    let stops = std::thread::spawn(move || {
        sleep(Duration::from_millis(200));
        halt.set();
    });
    let since = Instant::now();
    let error = failed(|| store.txn(&put("a", "1")));
    assert!(matches!(error, ControlError::Unknown(_)), "{error:?}");
    failed(|| store.campaign("anna", 0, 0));
    assert!(since.elapsed() < Duration::from_millis(1_200), "{:?}", since.elapsed());
    stops.join().expect("no panic");
}

/// The key may outlive its lease by a moment. Who holds it stands for it anew, and not as if nothing had been.
#[test]
fn an_office_whose_lease_is_gone_is_won_under_a_later_term() {
    for (ttl, term) in [(Some("5"), 4), (None, 5)] {
        let pair = |key: &str, value: &str, lease: &str| {
            let key = wire::coded(format!("herd/herd/warden/{key}"));
            json!({"key": key, "mod_revision": "6", "value": wire::coded(value), "lease": lease})
        };
        let pairs = [pair("office", "4", "77"), pair("term", r#"{"term":4,"name":"anna"}"#, "0")];
        let fake = member(move |path, body| {
            let answer = match path {
                "/v3/kv/range" => json!({"header": header(1, 9), "kvs": pairs}),
                "/v3/lease/keepalive" => {
                    json!({"result": {"header": header(1, 9), "ID": body["ID"], "TTL": ttl.unwrap_or("0")}})
                }
                "/v3/lease/grant" => json!({"header": header(1, 9), "ID": "78", "TTL": "5"}),
                _ => {
                    let revisions =
                        body["compare"].as_array().map(|all| all.iter().all(|it| it["mod_revision"] == "6"));
                    json!({"header": header(1, 10), "succeeded": revisions == Some(true)})
                }
            };
            says(200, &answer.to_string())
        });
        let office = opened(&fake.url()).campaign("anna", 5_000, 0).expect("a candidacy");
        assert_eq!((office.term, office.holder.as_deref()), (term, Some("anna")));
    }
}

#[test]
fn keys_that_are_not_herd_s_are_said() {
    let foreign = |key: &str, value: &str| {
        let pair = json!({
            "key": wire::coded(format!("herd/herd/{key}")), "mod_revision": "3", "value": wire::coded(value),
        });
        let told = json!({"header": header(1, 9), "kvs": [pair]}).to_string();
        member(move |_, _| says(200, &told))
    };
    let fake = foreign("data/a\n", "");
    let error = failed(|| opened(&fake.url()).range(&Range::default()));
    assert!(matches!(&error, ControlError::Broken(text) if text.contains(r"data/a\n is not Herd's")), "{error:?}");
    for (key, value) in [("warden/term", "5"), ("warden/office", "5")] {
        let fake = foreign(key, value);
        let error = failed(|| opened(&fake.url()).campaign("anna", 5_000, 0));
        assert!(matches!(&error, ControlError::Broken(text) if text.contains("herd/herd/warden/")), "{error:?}");
    }
}

/// Whatever it says: an error that can be shown, soon, and nothing more.
#[test]
fn an_etcd_that_says_what_can_t_be_is_not_believed() {
    let pair = |key: &str, revision: u64| {
        let key = wire::coded(format!("herd/herd/{key}"));
        json!({"key": key, "mod_revision": revision, "value": wire::coded("1")})
    };
    let told = |kvs: Value| json!({"header": header(1, 9), "kvs": kvs, "more": true}).to_string();
    let range = Range { prefix: "b".into(), after: Some("b/1".into()), ..Range::default() };
    for kvs in [
        json!([pair("data/b/2", 0)]),
        json!([pair("data/b/2", 10)]),
        json!([pair("data/b/2", u64::MAX)]),
        json!([pair("data/b/1", 3)]),
        json!([pair("data/b/3", 3), pair("data/b/2", 3)]),
        json!([pair("data/b/2", 3), pair("data/b/2", 3)]),
        json!([pair("data/c", 3)]),
        json!([pair("other", 3)]),
    ] {
        let answer = told(kvs);
        let fake = member(move |_, _| says(200, &answer));
        let error = failed(|| opened(&fake.url()).range(&range));
        assert!(matches!(error, ControlError::Broken(_)), "{error:?}");
    }
    let many = format!(r#"{{"header":{},"kvs":[{}{{}}]}}"#, header(1, 9), "{},".repeat(1 << 21));
    for (revision, answer) in [
        (0, told(json!([]))),
        (1 << 62, told(json!([]))),
        (u64::MAX, told(json!([]))),
        (9, many),
        (9, "[".repeat(1 << 20)),
        (9, r#"{"header":{"cluster_id":-1,"revision":1e99}}"#.into()),
        (9, r#"{"header":{"cluster_id":"1","revision":"99999999999999999999"}}"#.into()),
        (9, r#"{"header":null,"kvs":{"key":1}}"#.into()),
    ] {
        let answer = answer.replace(r#""revision":"9""#, &format!(r#""revision":"{revision}""#));
        let fake = member(move |_, _| says(200, &answer));
        let mut store = opened(&fake.url());
        for error in [
            failed(|| store.range(&Range::default())),
            failed(|| store.snapshot()),
            failed(|| store.watch(3)),
            failed(|| store.campaign("anna", 5_000, 0)),
        ] {
            assert!(matches!(error, ControlError::Broken(_) | ControlError::Unreachable(_)), "{error:?}");
        }
    }
}

#[test]
fn what_etcd_says_is_shown_short_and_without_what_a_terminal_obeys() {
    let text = format!("\u{1b}[2J\r\n{}", "x".repeat(1 << 20));
    let fault = json!({"code": 2, "message": text}).to_string();
    let fake = member(move |_, _| says(500, &fault));
    let error = failed(|| opened(&fake.url()).range(&Range::default())).to_string();
    assert!(error.len() < 500 && error.contains("?[2J??xxx"), "{}", &error[..error.len().min(500)]);
}

/// Who is in office is told to others, and shown.
#[test]
fn a_warden_s_name_or_a_lease_that_can_t_be_is_refused() {
    let pair = |key: &str, value: &str| {
        let key = wire::coded(format!("herd/herd/warden/{key}"));
        json!({"key": key, "mod_revision": "6", "value": wire::coded(value), "lease": "7"})
    };
    for name in ["".to_string(), "a\u{1b}".into(), "x".repeat(256), "x".repeat(1 << 20)] {
        let term = json!({"term": 4, "name": name}).to_string();
        let told = json!({"header": header(1, 9), "kvs": [pair("office", "4"), pair("term", &term)]}).to_string();
        let fake = member(move |_, _| says(200, &told));
        let error = failed(|| opened(&fake.url()).campaign("anna", 5_000, 0));
        assert!(matches!(&error, ControlError::Broken(text) if text.len() < 300), "{error:?}");
    }
    let fake = member(|_, _| says(200, &json!({"header": header(1, 9)}).to_string()));
    let error = failed(|| opened(&fake.url()).campaign("anna", 5_000, 0));
    assert!(matches!(&error, ControlError::Broken(text) if text.contains("no lease")), "{error:?}");
}

/// The call that is under way and the one that leaves the office together, with members that say nothing.
#[test]
fn a_node_that_stops_leaves_its_office_within_a_second() {
    let mute: Vec<Fake> = (0..3).map(|_| member(|_, _| Answer::Silent)).collect();
    let all: Vec<String> = mute.iter().map(|fake| format!("127.0.0.1:{}", fake.port())).collect();
    let halt = Halt::default();
    let address = Address::parse(&format!("etcd://{}", all.join(","))).expect("an address");
    let mut store = Etcd::open(&address, halt.clone()).expect("it answers");
    let stops = std::thread::spawn(move || {
        sleep(Duration::from_millis(200));
        halt.set();
    });
    let since = Instant::now();
    failed(|| store.campaign("anna", 5_000, 0));
    failed(|| store.campaign("anna", 0, 0));
    assert!(since.elapsed() < Duration::from_millis(1_100), "{:?}", since.elapsed());
    stops.join().expect("no panic");
}
