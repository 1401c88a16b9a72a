//! `herd top` over real nodes, and the metrics it is made of.

use crate::herds::{all_serve, three};
use crate::node::{Node, herd, text, within};
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// A busy machine takes its time.
const SOON: Duration = Duration::from_secs(20);

#[test]
fn a_second_of_a_herd_is_a_line_for_each_node_and_the_sum() {
    let dir = tempfile::tempdir().expect("a directory");
    let nodes = three(dir.path());
    all_serve(&nodes, &["n1", "n2", "n3"]);
    let sets: String = (0..200).map(|number| format!("set k{number} 0 0 1\r\nx\r\n")).collect();
    let asked = |node: &Node| {
        let metrics = text(&node.talk(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"));
        let of_puts = metrics.lines().filter(|line| line.starts_with("herd_requests_total{") && line.contains("put"));
        let count = |door: &str| {
            let its = of_puts.clone().filter(|line| line.contains(&format!("door=\"{door}\"")));
            its.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum::<u64>()
        };
        ["memcached", "wire", "node"].map(count)
    };
    nodes[1].talk((sets + "quit\r\n").as_bytes());
    let puts = [asked(&nodes[0]), asked(&nodes[1]), asked(&nodes[2])];
    assert!(puts[0][..2] == [0, 0] && puts[1] == [200, 0, 0] && puts[2][..2] == [0, 0], "{puts:?}");
    assert!(puts[0][2] > 0 && puts[2][2] > 0, "what was handed on is told apart: {puts:?}");
    let told = nodes[0].ok(&["top", "--once", "--json"]);
    let lines: Vec<Value> = told.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let names: Vec<&str> = lines.iter().filter_map(|line| line["node"].as_str()).collect();
    assert_eq!((names, lines.len(), &lines[3]["herd"]), (vec!["n1", "n2", "n3"], 4, &true.into()));
    for line in &lines[..3] {
        assert!(line["links"].as_u64().is_some_and(|links| links >= 2), "{line}");
        assert!(line["led"].as_u64().is_some_and(|led| led > 0), "{line}");
    }
    assert!(lines[3]["objects"].as_u64().is_some_and(|objects| objects >= 200), "{told}");
    let metrics = text(&nodes[1].talk(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"));
    let handed_on = metrics.lines().find_map(|line| line.strip_prefix("herd_handed_on_total "));
    assert!(handed_on.is_some_and(|count| count.parse::<u64>().is_ok_and(|count| count > 0)), "{metrics}");
    let led = metrics.lines().find_map(|line| line.strip_prefix("herd_take_overs_total ")?.parse::<u64>().ok());
    assert!(led.is_some_and(|count| count > 0), "{metrics}");
    for part in [
        "herd_links{peer=\"n1\"}",
        "herd_take_overs_pending_total 0\n",
        "herd_group_state{group=\"0/",
        "role=\"primary\"} 1",
    ] {
        assert!(metrics.contains(part), "{part}: {metrics}");
    }
}

/// Writes that wait for a member which does not answer are told of, group by group.
#[test]
fn writes_that_wait_are_told_of() {
    let dir = tempfile::tempdir().expect("a directory");
    let nodes = three(dir.path());
    all_serve(&nodes, &["n1", "n2", "n3"]);
    let told = |node: &Node, gauge: &str| {
        let metrics = text(&node.talk(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"));
        let of = metrics.lines().filter_map(|line| line.strip_prefix(gauge)?.strip_prefix("{group=\"0/"));
        of.map(|line| line.rsplit(' ').next().expect("a number").parse().expect("a number")).collect::<Vec<u64>>()
    };
    let pending = || told(&nodes[0], "herd_group_pending_writes");
    let prepared = || told(&nodes[1], "herd_group_prepared_writes").iter().sum::<u64>();
    let set = |number: u32| format!("set k{number} 0 0 1\r\nx\r\n");
    nodes[0].talk((set(0) + "quit\r\n").as_bytes());
    assert!(within(SOON, || pending() == [0; 8]), "it leads a third of the groups: {:?}", pending());
    nodes[2].signal("-STOP");
    let mut sockets: Vec<_> = (0..40).map(|_| nodes[0].connect()).collect();
    let all = sockets.iter_mut().zip(0..);
    all.for_each(|(socket, number)| socket.write_all(set(number).as_bytes()).expect("sent"));
    let mut most = 0;
    let waits = within(SOON, || {
        most = most.max(pending().iter().sum::<u64>());
        most > 3
    });
    assert!(waits, "at most {most}");
    assert!(within(SOON, || prepared() > 0), "the member that answers has them, too");
    nodes[2].signal("-CONT");
    assert!(within(SOON, || pending() == [0; 8]), "{:?}", pending());
    assert!(within(SOON, || prepared() == 0), "{}", prepared());
}

#[test]
fn top_goes_on_until_ctrl_c() {
    let node = crate::node::Node::start(&["--memory", "64m", "--threads", "1"]);
    let mut command = herd();
    command.args(["top", "--node", &node.addr]).stdout(Stdio::piped());
    let mut top = command.spawn().expect("herd runs");
    let mut lines = BufReader::new(top.stdout.take().expect("a pipe")).lines();
    let mut heads = 0;
    while heads < 2 {
        let line = lines.next().expect("it goes on").expect("text");
        heads += u32::from(line.starts_with("NODE"));
    }
    Command::new("kill").args(["-INT", &top.id().to_string()]).status().expect("kill runs");
    assert_eq!(top.wait().expect("it ends").code(), Some(130));
}

/// The nodes of a herd that ended, and of another one that was begun at the same addresses under the same names.
#[test]
fn top_goes_over_to_a_new_herd_at_the_addresses_of_the_one_before() {
    let both = |addrs: [&str; 2], dir: &Path| {
        let data = ["n1", "n2"].map(|name| dir.join(name).display().to_string());
        let own = |at: usize, name| ["--memory", "64m", "--threads", "1", "--name", name, "--data", data[at].as_str()];
        let first = Node::at(addrs[0], &own(0, "n1"));
        let second = Node::at(addrs[1], &[&own(1, "n2")[..], &["--join", &first.addr]].concat());
        [first, second]
    };
    let dirs = [(); 2].map(|()| tempfile::tempdir().expect("a directory"));
    let nodes = both(["127.0.0.1:0"; 2], dirs[0].path());
    let addrs = nodes.each_ref().map(|node| node.addr.clone());
    let mut top = herd().args(["top", "--json", "--node", &addrs[0]]).stdout(Stdio::piped()).spawn().expect("starts");
    let mut lines = BufReader::new(top.stdout.take().expect("a pipe")).lines();
    let mut waits_until_all = |answer: bool| {
        let mut answers = Vec::new();
        for _ in 0..100 {
            let line: Value = serde_json::from_str(&lines.next()?.ok()?).ok()?;
            match line["herd"] == true {
                false => answers.push(line["answers"] == true),
                true if answers == [answer; 2] => return Some(()),
                true => answers.clear(),
            }
        }
        None
    };
    assert!(waits_until_all(true).is_some());
    drop(nodes);
    assert!(waits_until_all(false).is_some());
    let _nodes = both(addrs.each_ref().map(String::as_str), dirs[1].path());
    let goes_over = waits_until_all(true);
    top.kill().and_then(|()| top.wait()).expect("it is ours");
    assert!(goes_over.is_some());
}
