//! Nodes whose process ends: the others hear of it by its witness, at once, and nothing is left of that.

use crate::herds::{json, three_that_keep};
use crate::node::{Node, signal, within};
use crate::silence::put;
use herd_core::limits::LEASE_MS;
use herd_core::place::{HerdId, Life, NodeId};
use herd_core::warden::Hex;
use herd_core::wire::{Kind, LinkErrorKind, Secret, Telling, is_obituary, parse_frame};
use std::fs;
use std::io::{Read, Write};
use std::num::NonZeroU32;
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_secs(10);
/// By its silence a node is taken out a lease after its last beat, which came up to 200 ms before its end.
const SILENCE: Duration = Duration::from_millis(LEASE_MS - 200);
const ARGS: [&str; 4] = ["--memory", "64m", "--threads", "1"];
const SECRET: &str = "000102030405060708090a0b0c0d0e0f";

/// The witnesses of a process, which are its only children.
fn witnesses(pid: u32) -> Vec<u32> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).expect("it runs");
    let children = threads.map(|thread| fs::read_to_string(thread.expect("listed").path().join("children")));
    let children: String = children.map(|text| text.unwrap_or_default()).collect();
    children.split_whitespace().map(|pid| pid.parse().expect("a number")).collect()
}

fn witness(node: &Node) -> u32 {
    let mut found = Vec::new();
    let is_one = within(SOON, || {
        found = witnesses(node.pid());
        found.len() == 1 && comm(found[0]) == "herd-witness\n"
    });
    assert!(is_one, "{found:?}");
    found[0]
}

fn comm(pid: u32) -> String {
    fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default()
}

/// Whether a process is there; one that has ended and is not waited for is not, nor is another one of its number.
fn is_there(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit(") ").next().and_then(|rest| rest.chars().next());
    state.is_some_and(|state| state != 'Z') && comm(pid) == "herd-witness\n"
}

fn state(of: &Node, name: &str) -> String {
    let all = json(of, &["nodes", "--json"]);
    let node = all.as_array().expect("nodes").iter().find(|node| node["name"] == name);
    node.expect("it is one of them")["state"].as_str().expect("text").to_owned()
}

#[test]
fn the_keys_of_a_node_that_is_killed_are_written_before_its_silence_could_be_heard() {
    let mut nodes = three_that_keep(3, &ARGS, &[]);
    let names: Vec<String> = (0..24).map(|number| format!("k{number}")).collect();
    assert!(names.iter().all(|name| put(&nodes[0].0, name, "old")));
    let mut took = Vec::new();
    // Silence takes so long each time: one time in which it is quicker shows that somebody told of the end.
    for _ in 0..3 {
        let (third, dir) = nodes.pop().expect("three");
        let (addr, witness) = (third.addr.clone(), witness(&third));
        let since = Instant::now();
        third.signal("-KILL");
        for (number, name) in names.iter().enumerate() {
            assert!(within(SOON, || put(&nodes[number % 2].0, name, "new")), "{name} is written without the third");
        }
        took.push(since.elapsed());
        assert_eq!(state(&nodes[0].0, "n3"), "down");
        drop(third);
        let data = dir.path().to_str().expect("text");
        let args = ["--name", "n3", "--data", data, "--join", &nodes[0].0.addr];
        nodes.push((Node::at(&addr, &[&args[..], &ARGS].concat()), dir));
        assert!(within(SOON, || !is_there(witness)), "it has said what it had to say");
        nodes[0].0.ok(&["status", "--wait", "--timeout", "30s"]);
        if took.iter().any(|took| *took < SILENCE) {
            break;
        }
    }
    assert!(took.iter().any(|took| *took < SILENCE), "{took:?}");
    nodes[0].0.ok(&["fsck"]);
}

#[test]
fn a_witness_has_nothing_of_its_node_and_goes_when_that_ends_in_good_order() {
    let nodes = three_that_keep(3, &ARGS, &[("HERD_SECRET", SECRET)]);
    assert!((0..24).all(|number| put(&nodes[0].0, &format!("k{number}"), "old")));
    let [first, second, third] = <[_; 3]>::try_from(nodes).unwrap_or_else(|_| panic!("three"));
    let all = [&first.0, &second.0, &third.0].map(witness);
    for pid in all {
        let told = |file: &str| fs::read_to_string(format!("/proc/{pid}/{file}")).expect("it runs");
        assert!(!told("cmdline").contains(SECRET) && told("cmdline").starts_with("herd-witness\0of\0n"));
        assert!(!told("environ").contains("HERD"), "{}", told("environ"));
        assert_eq!(fs::read_dir(format!("/proc/{pid}/fd")).expect("it runs").count(), 3);
        assert_eq!(fs::read_link(format!("/proc/{pid}/cwd")).expect("it runs").to_str(), Some("/"));
        let status = told("status");
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB"));
        let resident_kib: u64 = resident.and_then(|kib| kib.parse().ok()).expect("its memory");
        assert!(resident_kib < 12 << 10, "{resident_kib} KiB");
        // What is sent to end it, as by a terminal, does not.
        signal(pid, "-INT");
        signal(pid, "-TERM");
    }
    assert!(all.iter().all(|pid| is_there(*pid)));
    assert_eq!(third.0.stop(), Some(0));
    let since = Instant::now();
    assert!(within(SOON, || state(&first.0, "n3") == "down") && since.elapsed() < SILENCE);
    assert!(!is_there(all[2]), "the node has waited for it");
    assert!(within(SOON, || (0..24).all(|number| put(&second.0, &format!("k{number}"), "new"))));
    assert_eq!((second.0.stop(), first.0.stop()), (Some(0), Some(0)));
    assert!(all.iter().all(|pid| !is_there(*pid)));
}

#[test]
fn a_node_alone_has_no_witness_and_one_that_loses_its_own_goes_on() {
    let nodes = three_that_keep(3, &ARGS, &[]);
    let (first, third) = (&nodes[0].0, &nodes[2].0);
    assert!((0..24).all(|number| put(first, &format!("k{number}"), "old")));
    signal(witness(third), "-KILL");
    assert!(within(SOON, || witnesses(third.pid()).is_empty()), "it is waited for, and no other is started");
    assert!((0..24).all(|number| put(third, &format!("k{number}"), "new")));
    third.signal("-KILL");
    let last = |number: usize| within(SOON, || put(&nodes[number % 2].0, &format!("k{number}"), "last"));
    assert!((0..24).all(last), "its silence is heard");
    let alone = Node::start(&ARGS);
    assert!(put(&alone, "k", "v") && witnesses(alone.pid()).is_empty());
}

/// Says to a node that a life of the third is over; what it answers to the proof, if it gets so far.
fn tell(to: &Node, herd: HerdId, incarnation: u64, secret: [u8; 16]) -> (Kind, u16, bool) {
    tell_of(3, to, herd, incarnation, secret)
}

/// The same of any node.
fn tell_of(number: u32, to: &Node, herd: HerdId, incarnation: u64, secret: [u8; 16]) -> (Kind, u16, bool) {
    let life = Life { node: NodeId(NonZeroU32::new(number).expect("not 0")), incarnation };
    let telling = Telling::new(herd, life, [incarnation as u8; 16], Secret(secret));
    let (mut socket, mut out) = (to.connect(), Vec::new());
    telling.hello(&mut out);
    socket.write_all(&out).expect("said");
    let mut told = vec![0; 4096];
    let count = socket.read(&mut told).expect("answered");
    let welcome = parse_frame(&told[..count]).expect("a frame").expect("whole");
    out.clear();
    if let Err(error) = telling.welcomed(&welcome.fields().expect("fields"), &mut out) {
        assert_eq!(error.kind, LinkErrorKind::WrongSecret);
        // So another one would see it: let it try with a proof of nothing.
        let right = Telling::new(herd, life, [incarnation as u8; 16], Secret([0; 16]));
        right.welcomed(&welcome.fields().expect("fields"), &mut out).expect("that is the secret");
        let last = out.len() - 5;
        out = forged(&out, last);
    }
    socket.write_all(&out).expect("said");
    told.clear();
    socket.read_to_end(&mut told).expect("answered and closed");
    let frame = parse_frame(&told).expect("a frame").expect("whole");
    let is_heard = is_obituary(&frame.fields().expect("fields"));
    (frame.header().kind, frame.header().code, is_heard)
}

/// The same frame with another proof.
fn forged(frame: &[u8], at: usize) -> Vec<u8> {
    let frame = parse_frame(frame).expect("a frame").expect("whole");
    let fields = frame.fields().expect("fields");
    let mut proof = *fields.proof.expect("a proof");
    proof[at % 16] ^= 1;
    let mut out = Vec::new();
    let forged = herd_core::wire::Fields { proof: Some(&proof), ..fields };
    herd_core::wire::encode_frame(&mut out, *frame.header(), &forged, b"").expect("short");
    out
}

#[test]
fn what_is_made_up_changes_nothing() {
    let mut nodes = three_that_keep(3, &ARGS, &[]);
    let first = &nodes[0].0;
    assert!((0..24).all(|number| put(first, &format!("k{number}"), "old")));
    first.ok(&["status", "--wait", "--timeout", "30s"]);
    let epoch = || json(first, &["status", "--json"])["epoch"].clone();
    let herd = json(first, &["status", "--json"])["herd_id"].as_str().expect("text").to_owned();
    let herd = HerdId(Hex::try_from(herd).expect("32 hex digits").0);
    let before = epoch();
    assert_eq!(tell(first, herd, 1, [7; 16]), (Kind::Goodbye, LinkErrorKind::WrongSecret as u16, false));
    for incarnation in [0, 2, u64::MAX] {
        assert_eq!(tell(first, herd, incarnation, [0; 16]), (Kind::Welcome, 0, true));
    }
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!((epoch(), state(first, "n3").as_str()), (before, "serving"));
    assert!((0..24).all(|number| put(&nodes[2].0, &format!("k{number}"), "new")));
    // Who hears that its own process has ended knows better.
    assert_eq!(tell_of(1, first, herd, 1, [0; 16]), (Kind::Goodbye, LinkErrorKind::JoinRefused as u16, false));
    assert_eq!((state(first, "n1").as_str(), state(&nodes[1].0, "n1").as_str()), ("serving", "serving"));
    // By another node it comes to the warden's, too: that one names it.
    assert_eq!(tell(&nodes[1].0, herd, 0, [0; 16]), (Kind::Goodbye, LinkErrorKind::AskWarden as u16, false));
    assert_eq!(tell(first, herd, 1, [0; 16]), (Kind::Welcome, 0, true));
    assert!(within(SOON, || state(first, "n3") == "down"), "this was its life");
    // The process of which that was said finds no way back, and ends, so that whoever keeps it starts it anew.
    let mut third = nodes.pop().expect("three").0;
    assert!(within(2 * SOON, || third.has_ended()), "it is of no use any more");
    assert_eq!(third.wait(), Some(3), "the herd refuses it");
    assert!(within(SOON, || state(&nodes[0].0, "n3") == "down"));
}

/// The first node dials nobody, and nobody dials it any more.
#[test]
fn a_node_that_others_dial_hears_too_that_the_herd_goes_on_without_it() {
    let mut nodes = three_that_keep(2, &ARGS, &[]);
    assert!((0..24).all(|number| put(&nodes[0].0, &format!("k{number}"), "old")));
    nodes[1].0.ok(&["control", "move", "n3"]);
    nodes[0].0.signal("-STOP");
    let detached = within(3 * SOON, || nodes[1].0.herd(&["detach", "--now", "n1", "--yes"]).status.success());
    nodes[0].0.signal("-CONT");
    assert!(detached);
    assert!(within(3 * SOON, || nodes[0].0.has_ended()));
    assert_eq!(nodes[0].0.wait(), Some(3));
}

/// What a node has alone it answers for as long as it takes itself for one of the herd, and no longer.
#[test]
fn a_node_that_hears_that_the_herd_goes_on_without_it_acknowledges_nothing_more() {
    let mut nodes = three_that_keep(1, &ARGS, &[]);
    let names: Vec<String> = (0..48).map(|number| format!("k{number}")).collect();
    assert!(names.iter().all(|name| put(&nodes[0].0, name, "old")));
    nodes[2].0.signal("-STOP");
    let detached = within(3 * SOON, || nodes[0].0.herd(&["detach", "--now", "n3", "--yes"]).status.success());
    nodes[2].0.signal("-CONT");
    assert!(detached);
    std::thread::sleep(Duration::from_millis(1_500));
    assert!(!nodes[2].0.has_ended(), "it waits for a while whether that changes");
    let stored: Vec<&String> = names.iter().filter(|name| put(&nodes[2].0, name, "new")).collect();
    assert!(stored.is_empty(), "{stored:?} are written where nobody finds them");
    assert!(within(3 * SOON, || nodes[2].0.has_ended()));
    assert!(names.iter().all(|name| put(&nodes[0].0, name, "newer")), "the others have all of them");
}
