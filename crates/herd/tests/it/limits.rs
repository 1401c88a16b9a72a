//! A node at its limits: descriptors, memory, quota. Each breach has its own error, and the others are served on.
#![cfg(target_os = "linux")] // It lowers the limits of another process, and reads /proc.

use crate::node::{Node, herd};
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Longest wait for anything a node should do at once.
const SOON: Duration = Duration::from_secs(5);
/// A node tells of shed connections every 10 s.
const REPORT: Duration = Duration::from_secs(15);

/// A node that may open few files, and what it says on stderr.
struct Tight {
    child: Child,
    addr: String,
    log: tempfile::NamedTempFile,
}

impl Tight {
    /// Starts a node under `ulimit -n`, which lowers the hard limit too; no address if it ends by itself.
    fn start(descriptors: u32) -> Self {
        let log = tempfile::NamedTempFile::new().expect("temporary file");
        let mut child = Command::new("sh")
            .args(["-c", &format!("ulimit -n {descriptors}; exec \"$0\" \"$@\"")])
            .arg(herd().get_program())
            .args(["node", "--listen", "127.0.0.1:0", "--memory", "64m", "--threads", "2"])
            // Not the directory that other nodes of this machine have.
            .env("XDG_STATE_HOME", "/dev/null/none")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log.reopen().expect("opened twice"))
            .spawn()
            .expect("sh starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("readable");
        let addr = line.strip_prefix("ready ").unwrap_or("").trim().to_string();
        Self { child, addr, log }
    }

    fn connect(&self) -> TcpStream {
        let socket = TcpStream::connect(&self.addr).expect("the kernel accepts");
        socket.set_read_timeout(Some(SOON)).expect("a socket takes a timeout");
        socket
    }

    fn said(&self) -> String {
        fs::read_to_string(self.log.path()).expect("readable")
    }

    /// Whether its warnings tell of at least `count` shed connections before the next report is over.
    fn tells_of_shed(&self, count: u64) -> bool {
        let told = |line: &str| line.split_once("shed ")?.1.split(' ').next()?.parse::<u64>().ok();
        within(REPORT, || self.said().lines().filter_map(told).sum::<u64>() >= count)
    }

    /// Processor time it took so far, in ticks of 10 ms.
    fn ticks(&self) -> u64 {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id())).expect("it runs");
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
        fields[11..13].iter().map(|ticks| ticks.parse::<u64>().expect("a number")).sum()
    }

    /// It does not turn in circles: a second costs less than a fifth of one.
    fn rests(&self) {
        let before = self.ticks();
        std::thread::sleep(Duration::from_secs(1));
        let ticks = self.ticks() - before;
        assert!(ticks < 20, "{ticks} ticks of processor time in a second of nothing to do");
    }

    /// Lets it open no more files than these.
    fn cut_descriptors(&self, most: u64) {
        let limit = Rlimit { current: Some(most), maximum: Some(most) };
        prlimit(Some(Pid::from_child(&self.child)), Resource::Nofile, limit).expect("lowering is allowed");
    }

    /// Asks it to stop; its exit status.
    fn stop(mut self) -> Option<i32> {
        self.signal("-TERM");
        self.child.wait().expect("it ends").code()
    }

    fn signal(&self, signal: &str) {
        crate::node::signal(self.child.id(), signal);
    }
}

impl Drop for Tight {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            self.signal("-KILL");
            self.child.wait().expect("it ends");
        }
    }
}

/// Whether it holds before `most` is over.
fn within(most: Duration, mut holds: impl FnMut() -> bool) -> bool {
    let begin = Instant::now();
    while !holds() {
        if begin.elapsed() > most {
            return false;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    true
}

/// How a connection fares that asks for the version.
#[derive(Debug, PartialEq)]
enum Fate {
    Served,
    Closed,
    Hanging,
}

fn ask_version(socket: &mut TcpStream) -> Fate {
    // One that was closed already fails here or in the read.
    socket.write_all(b"version\r\n").ok();
    read_version(socket)
}

fn read_version(socket: &mut TcpStream) -> Fate {
    let mut answer = [0; 64];
    match socket.read(&mut answer) {
        Ok(n) if answer[..n].starts_with(b"VERSION ") => Fate::Served,
        Ok(0) => Fate::Closed,
        Ok(n) => panic!("{}", String::from_utf8_lossy(&answer[..n])),
        Err(error) if matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) => {
            Fate::Hanging
        }
        Err(_) => Fate::Closed,
    }
}

/// A number of `/metrics`, asked through a connection that is already there.
fn metric(http: &mut TcpStream, name: &str) -> u64 {
    let text = exchange(http, b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')).expect("it is there");
    line.parse().expect("a number")
}

/// Sends a request and reads one reply with its Content-Length; the connection stays.
fn exchange(http: &mut TcpStream, request: &[u8]) -> String {
    http.write_all(request).expect("sent");
    let mut input = BufReader::new(http);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        assert!(input.read_line(&mut head).expect("answered") > 0, "closed after {head}");
    }
    let len = head.lines().find_map(|line| line.strip_prefix("Content-Length: ")).unwrap_or("0");
    let mut body = vec![0; len.parse().expect("a number")];
    input.read_exact(&mut body).expect("whole");
    head + &String::from_utf8(body).expect("text")
}

#[test]
fn connections_beyond_the_descriptors_are_shed_and_the_others_served() {
    let node = Tight::start(96);
    let mut http = node.connect();
    let shed_before = metric(&mut http, "herd_connections_shed_total");
    let (mut served, mut shed) = (Vec::new(), 0);
    for _ in 0..120 {
        let mut socket = node.connect();
        match ask_version(&mut socket) {
            Fate::Served => served.push(socket),
            Fate::Closed => shed += 1,
            Fate::Hanging => panic!("left hanging after {} served and {shed} closed", served.len()),
        }
    }
    assert!((8..96).contains(&served.len()), "{} served, {shed} closed", served.len());
    assert!(served.iter_mut().all(|socket| ask_version(socket) == Fate::Served), "those that are in stay in");
    assert_eq!(metric(&mut http, "herd_connections_shed_total") - shed_before, shed);
    assert_eq!(metric(&mut http, "herd_connections"), served.len() as u64 + 1);
    node.rests();
    served.truncate(4);
    assert!(within(SOON, || ask_version(&mut node.connect()) == Fate::Served), "there is room again");
    assert!(node.tells_of_shed(shed), "{}", node.said());
    assert_eq!(node.stop(), Some(0));
}

/// 8: `LOOP_DESCRIPTORS` of `herd node`, by which it tells how many connections it can have.
#[test]
fn a_loop_opens_as_many_descriptors_as_a_node_reckons_with() {
    let opened = |threads| {
        let node = Node::start(&["--memory", "64m", "--threads", threads]);
        node.talk(b"version\r\nquit\r\n");
        // The connection's own is closed a little after its end was seen.
        let look = || {
            std::thread::sleep(Duration::from_millis(10));
            fs::read_dir(format!("/proc/{}/fd", node.pid())).expect("it runs").count()
        };
        (0..30).map(|_| look()).min().expect("it was looked")
    };
    assert_eq!(opened("4") - opened("1"), 3 * 8);
}

#[test]
fn a_node_out_of_descriptors_serves_those_it_has_and_rests() {
    let node = Tight::start(1024);
    node.cut_descriptors(40);
    let (mut served, mut others) = (Vec::new(), Vec::new());
    for _ in 0..60 {
        let mut socket = node.connect();
        socket.set_read_timeout(Some(Duration::from_millis(500))).expect("set");
        match ask_version(&mut socket) {
            Fate::Served => served.push(socket),
            Fate::Closed => {}
            Fate::Hanging => others.push(socket),
        }
        if others.len() == 3 {
            break;
        }
    }
    assert!((8..40).contains(&served.len()), "{} served", served.len());
    assert!(served.iter_mut().all(|socket| ask_version(socket) == Fate::Served), "those that are in stay in");
    node.rests();
    served.truncate(4);
    assert!(within(SOON, || ask_version(&mut node.connect()) == Fate::Served), "there is room again");
    for mut socket in others {
        socket.set_read_timeout(Some(SOON)).expect("set");
        assert_eq!(read_version(&mut socket), Fate::Served, "those that waited are served then");
    }
    assert_eq!(node.stop(), Some(0));
}

#[test]
fn those_a_node_out_of_descriptors_can_t_take_are_closed_told_and_counted() {
    let node = Tight::start(1024);
    let mut http = node.connect();
    assert_eq!(metric(&mut http, "herd_connections_shed_total"), 0);
    node.cut_descriptors(40);
    let (mut served, mut closed) = (Vec::new(), 0);
    for _ in 0..60 {
        let mut socket = node.connect();
        match ask_version(&mut socket) {
            Fate::Served => served.push(socket),
            Fate::Closed => closed += 1,
            Fate::Hanging => panic!("left hanging after {} served and {closed} closed", served.len()),
        }
    }
    assert_eq!(metric(&mut http, "herd_connections_shed_total"), closed);
    assert!(closed > 0 && node.tells_of_shed(closed), "{}", node.said());
}

#[test]
fn a_node_with_few_descriptors_serves_some_or_says_why_it_does_not_start() {
    for descriptors in [64, 32, 8] {
        let mut node = Tight::start(descriptors);
        if node.addr.is_empty() {
            let status = node.child.wait().expect("it ended").code();
            let said = node.said();
            assert!(status == Some(2) && said.lines().count() == 1 && said.contains("ulimit -n"), "{said}");
        } else {
            assert_eq!(ask_version(&mut node.connect()), Fate::Served, "{descriptors} descriptors");
        }
    }
}

/// Sends the head of a PUT, without a byte of its body; the whole answer.
fn put_head(node: &Node, path: &str, fields: &str) -> String {
    let head = format!("PUT {path} HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n");
    String::from_utf8(node.talk(head.as_bytes())).expect("text")
}

/// A PUT of that many bytes; the answer to it.
fn put(node: &Node, path: &str, bytes: usize) -> String {
    let head =
        format!("PUT {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {bytes}\r\n\r\n");
    String::from_utf8(node.talk(&[head.as_bytes(), &vec![7; bytes]].concat())).expect("text")
}

/// A PUT that does not say its length, in one chunk.
fn put_chunked(node: &Node, path: &str, bytes: usize) -> String {
    let fields = "Host: localhost\r\nConnection: close\r\nTransfer-Encoding: chunked";
    let head = format!("PUT {path} HTTP/1.1\r\n{fields}\r\n\r\n{bytes:x}\r\n");
    String::from_utf8(node.talk(&[head.as_bytes(), &vec![7; bytes], b"\r\n0\r\n\r\n"].concat())).expect("text")
}

/// It is this status and its message has all these words.
fn is_refused(answer: &str, status: &str, words: &[&str]) {
    let said = answer.starts_with(&format!("HTTP/1.1 {status} ")) && words.iter().all(|word| answer.contains(word));
    assert!(said, "{status} {words:?}: {answer}");
}

/// A command is refused by the herd with one line that has all these words.
fn herd_refuses(node: &Node, args: &[&str], words: &[&str]) {
    let output = node.herd(args);
    let text = String::from_utf8(output.stderr).expect("text");
    let said = text.lines().count() == 1 && words.iter().all(|word| text.contains(word));
    assert!(output.status.code() == Some(3) && said, "{words:?}: {text}");
}

/// A file of that many bytes, none of them on disk.
fn hole(bytes: u64) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().expect("temporary file");
    file.as_file().set_len(bytes).expect("grows");
    file
}

fn path(file: &tempfile::NamedTempFile) -> &str {
    file.path().to_str().expect("text")
}

fn resident_bytes(node: &Node) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", node.pid())).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("it is there");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") * 1024
}

/// The metrics of a node have this line.
fn counted(node: &Node, line: &str) {
    let metrics = node.talk(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    let metrics = String::from_utf8(metrics).expect("text");
    assert!(metrics.lines().any(|other| other == line), "{line} in {metrics}");
}

#[test]
fn half_a_gib_announced_to_a_node_of_64_mib_is_refused_at_its_header() {
    let node = Node::start(&["--memory", "64m", "--memcached-max-value", "1g", "--name", "small"]);
    let (begin, before) = (Instant::now(), resident_bytes(&node));
    let length = "Content-Length: 536870912\r\n";
    for fields in [length.to_string(), format!("Expect: 100-continue\r\n{length}")] {
        is_refused(&put_head(&node, "/o/default/x", &fields), "507", &["512.0 MiB", "at node 'small'", "MiB free"]);
    }
    let file = hole(512 << 20);
    herd_refuses(&node, &["put", "x", path(&file)], &["default/x", "512.0 MiB", "MiB free"]);
    for (line, answer) in [
        (
            "set x 0 0 536870912\r\n",
            "SERVER_ERROR out of memory storing object: object of 512.0 MiB does not fit at node 'small': ",
        ),
        (
            "ms x 536870912\r\n",
            "SERVER_ERROR out of memory storing object: object of 512.0 MiB does not fit at node 'small': ",
        ),
    ] {
        let mut socket = node.connect();
        socket.write_all(line.as_bytes()).expect("sent");
        let mut got = vec![0; answer.len()];
        socket.read_exact(&mut got).expect("answered before the value is sent");
        assert_eq!(String::from_utf8_lossy(&got), answer);
    }
    assert!(begin.elapsed() < SOON, "{:?}", begin.elapsed());
    // What the program itself takes differs from build to build.
    let more = resident_bytes(&node).saturating_sub(before);
    assert!(more < 8 << 20, "nothing was set aside: {more}");
    counted(&node, "herd_errors_total{door=\"http\",verb=\"put\",kind=\"full\"} 2");
    counted(&node, "herd_errors_total{door=\"wire\",verb=\"put\",kind=\"full\"} 1");
    counted(&node, "herd_errors_total{door=\"memcached\",verb=\"put\",kind=\"full\"} 2");
    assert_eq!(node.stop(), Some(0));
}

#[test]
fn an_object_over_the_limit_is_refused_at_its_header_with_both_figures() {
    let node = Node::start(&["--memory", "64m", "--max-object", "10m"]);
    let begin = Instant::now();
    let length = format!("Content-Length: {}\r\n", 11 << 20);
    is_refused(&put_head(&node, "/o/default/x", &length), "413", &["11.0 MiB", "10.0 MiB"]);
    let mut socket = node.connect();
    socket.write_all(format!("set x 0 0 {}\r\n", 2 << 20).as_bytes()).expect("sent");
    let mut got = vec![0; "SERVER_ERROR object too large for cache\r\n".len()];
    socket.read_exact(&mut got).expect("answered before the value is sent");
    assert_eq!(got, b"SERVER_ERROR object too large for cache\r\n");
    assert!(begin.elapsed() < SOON, "{:?}", begin.elapsed());
    // One that does not say its length is refused when it comes to the limit.
    is_refused(&put_chunked(&node, "/o/default/x", 11 << 20), "413", &["10.0 MiB"]);
    is_refused(&put(&node, "/o/default/x", 10 << 20), "201", &[]);
}

#[test]
fn full_memory_is_told_with_both_figures_by_each_door_and_what_is_there_stays() {
    let node = Node::start(&["--memory", "16m"]);
    let stored = (0..40).take_while(|i| put(&node, &format!("/o/default/n{i}"), 1 << 20).contains(" 201 ")).count();
    assert!((10..16).contains(&stored), "{stored} of 1 MiB in 16 MiB");
    is_refused(&put(&node, "/o/default/more", 1 << 20), "507", &["object of 1.0 MiB", "MiB free"]);
    is_refused(
        &put_chunked(&node, "/o/default/more", 2 << 20),
        "507",
        &["the memory of node", "is full: ", "of 16.0 MiB in use"],
    );
    let file = hole(1 << 20);
    herd_refuses(&node, &["put", "more", path(&file)], &["default/more", "object of 1.0 MiB", "MiB free"]);
    // Up to the last small object.
    let small: Vec<_> = (0..2000).map(|i| format!("set s{i} 0 0 4000\r\n{}\r\n", "v".repeat(4000))).collect();
    let answer = String::from_utf8(node.talk((small.concat() + "quit\r\n").as_bytes())).expect("text");
    let (fits, full) = (answer.matches("STORED").count(), answer.matches("SERVER_ERROR out of memory").count());
    assert!(full > 0 && fits + full == 2000, "{fits} stored, {full} refused");
    is_refused(&put(&node, "/o/default/more", 4000), "507", &["the memory of node", "is full: ", "of 16.0 MiB in use"]);
    // What was acknowledged is there, and what is removed makes room.
    for i in 0..stored {
        assert!(node.herd(&["get", &format!("n{i}")]).stdout == vec![7; 1 << 20], "n{i}");
    }
    node.ok(&["rm", "n0"]);
    is_refused(&put(&node, "/o/default/again", 900_000), "201", &[]);
    assert!(resident_bytes(&node) < (16 << 20) * 11 / 10 + (64 << 20));
    assert_eq!(node.stop(), Some(0));
}

#[test]
fn a_full_quota_is_told_with_both_figures_and_bounds_nobody_else() {
    let node = Node::start(&["--memory", "64m"]);
    node.ok(&["collection", "create", "small", "--quota", "1m"]);
    node.ok(&["collection", "create", "free"]);
    is_refused(&put(&node, "/o/small/a", 700 << 10), "201", &[]);
    let words = ["quota of collection 'small' is 1.0 MiB", "KiB in use", "KiB asked"];
    let length = format!("Content-Length: {}\r\n", 700 << 10);
    is_refused(&put_head(&node, "/o/small/b", &length), "507", &words);
    is_refused(&put_chunked(&node, "/o/small/b", 700 << 10), "507", &words[..2]);
    let file = hole(700 << 10);
    herd_refuses(&node, &["put", "small/b", path(&file)], &[&words[..], &["small/b"]].concat());
    is_refused(&put(&node, "/o/free/b", 700 << 10), "201", &[]);
    // Up to the last small object, and none of them is lost.
    let stored: Vec<_> = (0..500).filter(|i| put(&node, &format!("/o/small/s{i}"), 1000).contains(" 201 ")).collect();
    assert!((250..330).contains(&stored.len()), "{} of 1,000 bytes in 324 KiB", stored.len());
    is_refused(&put(&node, "/o/small/more", 1000), "507", &words[..2]);
    assert_eq!(node.ok(&["ls", "small/s"]).lines().count(), stored.len());
    node.ok(&["rm", "small/a"]);
    is_refused(&put(&node, "/o/small/b", 600 << 10), "201", &[]);
    let refused = 500 - stored.len() + 3;
    counted(&node, &format!("herd_errors_total{{door=\"http\",verb=\"put\",kind=\"quota\"}} {refused}"));
    counted(&node, "herd_errors_total{door=\"wire\",verb=\"put\",kind=\"quota\"} 1");
}

/// Clients that ask for much and read nothing.
fn greedy(node: &Node, clients: usize) -> Vec<TcpStream> {
    let ask = |_| {
        let mut socket = node.connect();
        socket.set_nonblocking(true).expect("a socket may not block");
        // The node stops reading when it may hold no more; what the kernel takes until then is enough.
        while matches!(socket.write(&b"get big\r\n".repeat(100)), Ok(n) if n > 0) {}
        socket
    };
    (0..clients).map(ask).collect()
}

fn memory_used(node: &Node) -> u64 {
    let status = String::from_utf8(node.talk(b"GET /status HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"));
    let status = status.expect("text");
    let rest = status.split("\"memory_used_bytes\":").nth(1).expect("the status tells it");
    rest.split([',', '}']).next().expect("a number").parse().expect("a number")
}

#[test]
fn replies_that_nobody_reads_count_in_the_memory_and_are_given_back() {
    let node = Node::start(&["--memory", "64m"]);
    node.talk(&[&b"set big 0 0 4000\r\n"[..], &[b'v'; 4000], b"\r\nquit\r\n"].concat());
    let before = memory_used(&node);
    let clients = greedy(&node, 20);
    assert!(within(SOON, || memory_used(&node) > before + 20 * 50_000), "{} bytes", memory_used(&node) - before);
    drop(clients);
    assert!(within(SOON, || memory_used(&node) == before), "{} bytes", memory_used(&node) - before);
}

#[test]
fn clients_that_read_nothing_are_shed_before_they_take_all_memory() {
    let node = Node::start(&["--memory", "8m"]);
    node.talk(&[&b"set big 0 0 4000\r\n"[..], &[b'v'; 4000], b"\r\nquit\r\n"].concat());
    let _clients = greedy(&node, 60);
    let shed = || {
        let metrics =
            String::from_utf8(node.talk(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"));
        !metrics.expect("text").contains("\nherd_connections_shed_total 0\n")
    };
    assert!(within(SOON, shed));
    assert!(memory_used(&node) <= 3 << 20, "{} bytes", memory_used(&node));
    let stored = node.talk(b"set other 0 0 1\r\nx\r\nquit\r\n");
    assert_eq!(stored, b"STORED\r\n");
}
