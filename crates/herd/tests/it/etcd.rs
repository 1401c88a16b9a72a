//! Herds whose map is kept in etcd. What needs one is passed over where none is on the PATH, which is said.

use crate::herds::all_serve;
use crate::node::{Node, herd, signal, within};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Takes the etcd that there is, however old.
pub(crate) const FORCE: (&str, &str) = ("HERD_ETCD_FORCE", "1");
const PATIENCE: Duration = Duration::from_secs(30);

/// An etcd of one member, whose process ends with this.
pub(crate) struct Etcd {
    directory: TempDir,
    ports: (u16, u16),
    child: Child,
}

impl Etcd {
    pub(crate) fn start() -> Option<Self> {
        let known = Command::new("etcd").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        if !known.is_ok_and(|status| status.success()) {
            println!("passed over: there is no etcd on the PATH");
            return None;
        }
        let (directory, ports) = (tempfile::tempdir().expect("a directory"), (free_port(), free_port()));
        let child = spawn(directory.path(), ports);
        let etcd = Self { directory, ports, child };
        etcd.wait();
        Some(etcd)
    }

    pub(crate) fn url(&self) -> String {
        format!("etcd://127.0.0.1:{}", self.ports.0)
    }

    fn kill(&mut self) {
        self.child.kill().expect("it is ours");
        self.child.wait().expect("it is ours");
    }

    fn revive(&mut self) {
        self.child = spawn(self.directory.path(), self.ports);
        self.wait();
    }

    /// Waits until it reads.
    fn wait(&self) {
        until("etcd serves", || {
            let Ok(mut stream) = TcpStream::connect(("127.0.0.1", self.ports.0)) else { return false };
            let head = "POST /v3/kv/range HTTP/1.0\r\nHost: etcd\r\nContent-Length: 14\r\n\r\n{\"key\":\"AA==\"}";
            let mut answer = String::new();
            stream.set_read_timeout(Some(Duration::from_secs(2))).expect("a socket takes a timeout");
            stream.write_all(head.as_bytes()).and_then(|()| stream.read_to_string(&mut answer)).is_ok()
                && answer.contains("cluster_id")
        });
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

fn spawn(directory: &Path, (client, peer): (u16, u16)) -> Child {
    let (client, peer) = (format!("http://127.0.0.1:{client}"), format!("http://127.0.0.1:{peer}"));
    let mut command = Command::new("etcd");
    command.arg("--data-dir").arg(directory.join("etcd"));
    command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
    command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
    command.args(["--initial-cluster", &format!("default={peer}")]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("etcd runs")
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port").port()
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn node(dir: &Path, name: &str, more: &[&str]) -> Node {
    let data = dir.join(name);
    let args = ["--memory", "64m", "--threads", "1", "--name", name, "--data", data.to_str().expect("text")];
    Node::with_env(&[&args, more].concat(), &[FORCE])
}

/// A node that does not start: its exit status, and what it told, which is one line.
fn refused(dir: &Path, more: &[&str], env: &[(&str, &str)]) -> (Option<i32>, String) {
    let mut command = herd();
    command.args(["node", "--listen", "127.0.0.1:0", "--memory", "64m", "--log", "error"]).args(more);
    command.arg("--data").arg(dir.join("refused")).envs(env.iter().copied());
    let output = command.stdin(Stdio::null()).output().expect("herd runs");
    (output.status.code(), String::from_utf8(output.stderr).expect("text"))
}

#[test]
fn what_can_t_be_is_refused_with_what_to_do() {
    let dir = tempfile::tempdir().expect("a directory");
    let (code, told) = refused(dir.path(), &["--control", "etcd://127.0.0.1:1", "--join", "127.0.0.1:2"], &[]);
    assert!(code == Some(2) && told.contains("is not in this version: only the herd's first node"), "{told}");
    for (bad, why) in [
        ("redis://a:1", "an etcd is written etcd://HOST:PORT, not redis://"),
        ("etcd://", "write etcd://HOST:PORT"),
        ("etcd://a:1/b/c", "NAME is 1 to"),
        ("Embedded", "did you mean 'embedded'?"),
        ("disk", "[/NAME], or 'embedded'"),
    ] {
        let (code, told) = refused(dir.path(), &["--control", bad], &[]);
        assert!(code == Some(2) && told.contains(why), "{told}");
    }
    let (code, told) = refused(dir.path(), &["--control", "etcd://127.0.0.1:1"], &[]);
    assert!(code == Some(3) && told.contains("etcd at 127.0.0.1:1: Connection refused: see that it runs"), "{told}");
    assert_eq!(told.lines().count(), 1, "{told}");
    assert!(!dir.path().join("refused/node").exists());
    let help = herd().args(["node", "--help"]).output().expect("herd runs");
    assert!(String::from_utf8_lossy(&help.stdout).contains("--control <WHERE>"));
}

#[test]
fn an_embedded_herd_may_be_asked_for_by_its_name() {
    let dir = tempfile::tempdir().expect("a directory");
    let embedded = node(dir.path(), "n1", &["--control", "embedded"]);
    embedded.feed(&["put", "a", "-"], b"1");
    assert!(dir.path().join("n1/control").exists());
}

#[test]
fn a_herd_serves_while_its_etcd_is_gone_and_goes_on_when_it_is_back() {
    let Some(mut etcd) = Etcd::start() else { return };
    let dir = tempfile::tempdir().expect("a directory");
    let control = ["--control", &etcd.url()];
    let first = node(dir.path(), "n1", &control);
    let second = node(dir.path(), "n2", &["--join", &first.addr]);
    first.feed(&["put", "a", "-"], b"1");
    assert_eq!(second.ok(&["get", "a"]), "1");
    second.ok(&["collection", "create", "before"]);
    etcd.kill();
    second.feed(&["put", "a", "-"], b"2");
    assert_eq!(first.ok(&["get", "a"]), "2", "no object goes by etcd");
    let refused = second.herd(&["collection", "create", "meanwhile"]);
    assert!(!refused.status.success(), "a change of the herd does");
    etcd.revive();
    until("the herd changes again", || second.herd(&["collection", "create", "after"]).status.success());
    // The first node comes back as the same one, with the herd's map; its objects are with the others.
    let addr = first.addr.clone();
    assert_eq!(first.stop(), Some(0));
    let first = node(dir.path(), "n1", &[control[0], control[1], "--listen", &addr]);
    until("all is there again", || first.herd(&["get", "a"]).stdout == b"2");
    let collections = first.ok(&["collection", "ls"]);
    assert!(collections.contains("before") && collections.contains("after"), "{collections}");
    assert!(!dir.path().join("n1/control").exists(), "the map is in etcd alone");
}

#[test]
fn who_finds_another_warden_or_an_etcd_that_is_too_old_does_not_start() {
    let Some(etcd) = Etcd::start() else { return };
    let dir = tempfile::tempdir().expect("a directory");
    let first = node(dir.path(), "n1", &["--control", &etcd.url()]);
    let (code, told) = refused(dir.path(), &["--name", "n2", "--control", &etcd.url()], &[FORCE]);
    let why = format!("the herd in etcd has its warden at {}: --join that node, and leave --control out", first.addr);
    assert!(code == Some(3) && told.contains(&why), "{told}");
    assert_eq!(first.stop(), Some(0));
    let version = Command::new("etcd").arg("--version").output().expect("it runs").stdout;
    if String::from_utf8_lossy(&version).contains(" 3.4.23") {
        let (code, told) = refused(dir.path(), &["--control", &etcd.url()], &[]);
        assert!(code == Some(3) && told.contains("version 3.4.23, which may read old data"), "{told}");
    }
}

/// What the herd's map says of it: its epoch, which each node that is taken out raises.
fn epoch(node: &Node) -> u64 {
    let status: serde_json::Value = serde_json::from_str(&node.ok(&["status", "--json"])).expect("JSON");
    status["epoch"].as_u64().expect("a number")
}

/// Nobody has a lease meanwhile: primaries ask the others of their groups, and all of these are there.
#[test]
fn while_etcd_stands_still_objects_are_read_and_written_and_no_node_is_taken_out() {
    let Some(etcd) = Etcd::start() else { return };
    let dir = tempfile::tempdir().expect("a directory");
    let first = node(dir.path(), "n1", &["--control", &etcd.url(), "--replicas", "2"]);
    let nodes = [node(dir.path(), "n2", &["--join", &first.addr]), node(dir.path(), "n3", &["--join", &first.addr])];
    let nodes: Vec<Node> = [first].into_iter().chain(nodes).collect();
    all_serve(&nodes, &["n1", "n2", "n3"]);
    let names: Vec<String> = (0..12).map(|number| format!("k{number}")).collect();
    names.iter().for_each(|name| nodes[0].feed(&["put", name, "-"], b"old"));
    nodes[0].ok(&["status", "--wait", "--timeout", "30s"]);
    // Long enough in office to take nodes out.
    std::thread::sleep(Duration::from_secs(5));
    let before = epoch(&nodes[1]);
    signal(etcd.child.id(), "-STOP");
    std::thread::sleep(Duration::from_millis(2_500));
    for (number, name) in names.iter().enumerate() {
        let node = |at: usize| &nodes[(number + at) % 3];
        assert_eq!(node(0).ok(&["get", name]), "old");
        node(1).feed(&["put", name, "-"], b"new");
        assert_eq!(node(2).ok(&["get", name]), "new");
    }
    std::thread::sleep(Duration::from_millis(2_500));
    signal(etcd.child.id(), "-CONT");
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(epoch(&nodes[1]), before, "nobody was silent");
    // Then it is again as it was: who falls silent is taken out.
    nodes[2].signal("-STOP");
    assert!(within(PATIENCE, || epoch(&nodes[1]) > before), "the silent node is taken out");
    assert!(names.iter().all(|name| nodes[1].ok(&["get", name]) == "new"));
    nodes[2].signal("-CONT");
}

/// What was asked of the warden and never answered is asked again, also where it can't be reached for a while.
#[test]
fn a_drain_goes_on_after_the_warden_s_node_died_with_its_question() {
    let Some(etcd) = Etcd::start() else { return };
    let dir = tempfile::tempdir().expect("a directory");
    let mut first = node(dir.path(), "n1", &["--control", &etcd.url(), "--replicas", "2"]);
    let others = ["n2", "n3"].map(|name| node(dir.path(), name, &["--join", &first.addr]));
    for number in 0..12 {
        others[0].feed(&["put", &format!("k{number}"), "-"], b"v");
    }
    others[0].ok(&["status", "--wait", "--timeout", "30s"]);
    signal(etcd.child.id(), "-STOP");
    let mut drain = herd();
    drain.args(["drain", "n3"]).env("HERD_NODE", &others[0].addr);
    let drain = drain.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("herd runs");
    // Its question is with the warden by then, and no longer than that may wait there.
    std::thread::sleep(Duration::from_millis(1_200));
    first.signal("-KILL");
    first.wait();
    signal(etcd.child.id(), "-CONT");
    // So long that the node that is asked says it can't reach the warden's.
    std::thread::sleep(Duration::from_millis(1_500));
    let _first = node(dir.path(), "n1", &["--control", &etcd.url()]);
    let output = drain.wait_with_output().expect("it ends");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && text.contains("n3 is empty"), "{:?}, {text}", output.status.code());
    others[0].ok(&["fsck"]);
}

/// A warden's process that stood still while another node came into office goes by that one when it is back, and what
/// the groups that it leads want comes there.
#[test]
fn who_was_the_warden_and_lives_goes_by_the_one_that_followed() {
    let Some(etcd) = Etcd::start() else { return };
    let dir = tempfile::tempdir().expect("a directory");
    let control = ["--control", &etcd.url()];
    let first = node(dir.path(), "n1", &[&control[..], &["--replicas", "2"]].concat());
    let others = ["n2", "n3"].map(|name| node(dir.path(), name, &["--join", &first.addr]));
    let names: Vec<String> = (0..12).map(|number| format!("k{number}")).collect();
    names.iter().for_each(|name| others[0].feed(&["put", name, "-"], b"v"));
    others[0].ok(&["status", "--wait", "--timeout", "30s"]);
    first.signal("-STOP");
    // Its office is over then. It is not silent for long enough that it would lead nothing any more.
    let next = node(dir.path(), "n4", &control);
    first.signal("-CONT");
    let warden = |node: &Node| {
        let status: serde_json::Value = serde_json::from_str(&node.ok(&["status", "--json"])).expect("JSON");
        status["warden"].as_str().map(str::to_owned)
    };
    for node in [&first, &others[0], &others[1], &next] {
        assert!(within(PATIENCE, || warden(node).as_deref() == Some("n4")), "{:?}", warden(node));
    }
    // What is asked through it is done, and copies in its groups go from one node to another.
    first.ok(&["collection", "create", "after"]);
    let mut drain = herd();
    drain.args(["drain", "n2"]).env("HERD_NODE", &first.addr);
    let mut drain = drain.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("herd runs");
    let has_ended = within(PATIENCE, || drain.try_wait().expect("it is ours").is_some());
    drain.kill().ok();
    assert!(drain.wait().expect("it is ours").success() && has_ended, "the groups of n2 are given away");
    assert!(names.iter().all(|name| first.ok(&["get", name]) == "v"));
    first.ok(&["fsck"]);
    // It is the warden again once nobody else is.
    assert_eq!(next.stop(), Some(0));
    for node in [&first, &others[1]] {
        assert!(within(PATIENCE, || warden(node).as_deref() == Some("n1")), "{:?}", warden(node));
    }
    others[1].ok(&["collection", "create", "again"]);
}
