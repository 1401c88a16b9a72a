//! How long a call waits, and what it then says was done: `timeout` bounds silence, whatever falls silent.

use super::blocking::pattern;
use super::server::Server;
use herd_client::blocking::Client;
use herd_client::{Condition, Config, Error, ErrorKind, PutOptions, Request, Spec};
use herd_core::wire::{Fields, Header, Kind, Status, encode_frame, parse_frame};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, getsockname, listen, socket_with};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

const TIMEOUT_MS: u64 = 500;

fn client(nodes: &str) -> Client {
    let config = Config { timeout: Duration::from_millis(TIMEOUT_MS), ..Config::default() };
    Client::new(nodes, config).expect("addresses")
}

/// The error of `act`, which must come when the time is over and no later.
fn in_time<T>(act: impl FnOnce() -> Result<T, Error>) -> Error {
    let start = Instant::now();
    let Err(error) = act() else { panic!("nobody could answer that") };
    let took_ms = start.elapsed().as_millis() as u64;
    assert!((TIMEOUT_MS - 50..TIMEOUT_MS + 300).contains(&took_ms), "{error} after {took_ms} ms");
    error
}

/// An address at which a connection is never made: the system's queue of such is full.
pub(super) struct Hanging {
    address: SocketAddr,
    _queued: Vec<TcpStream>,
    _listener: OwnedFd,
}

impl Hanging {
    pub(super) fn new() -> Self {
        let listener = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None).expect("TCP");
        bind(&listener, &SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).expect("a port");
        listen(&listener, 0).expect("it listens");
        let address = getsockname(&listener).expect("bound").try_into().expect("an address of the internet");
        let mut queued = Vec::new();
        while let Ok(stream) = TcpStream::connect_timeout(&address, Duration::from_millis(200)) {
            queued.push(stream);
        }
        Self { address, _queued: queued, _listener: listener }
    }

    pub(super) fn name(&self) -> String {
        self.address.to_string()
    }
}

#[test]
fn a_read_that_nobody_answers_ends_with_its_timeout() {
    let server = Server::start();
    server.node.faults.ignore.store(1000, SeqCst);
    let client = client(&server.name());
    assert_eq!(in_time(|| client.get("x")).kind(), ErrorKind::Unreachable);
    assert_eq!(in_time(|| client.stat("x")).kind(), ErrorKind::Unreachable);
    assert_eq!(in_time(|| client.get_to("x", None, &mut io::sink())).kind(), ErrorKind::Unreachable);
    assert_eq!(in_time(|| client.list("default", "").next().expect("an answer")).kind(), ErrorKind::Unreachable);
}

#[test]
fn a_change_that_was_sent_and_not_answered_is_of_unknown_outcome() {
    let server = Server::start();
    server.node.faults.ignore.store(1000, SeqCst);
    let client = client(&server.name());
    let spec = Spec::of("ram:1");
    let put = PutOptions::default();
    assert_eq!(in_time(|| client.put("x", b"1", &put)).kind(), ErrorKind::OutcomeUnknown);
    assert_eq!(in_time(|| client.put_from("x", &mut &b"12"[..], None, &put)).kind(), ErrorKind::OutcomeUnknown);
    assert_eq!(in_time(|| client.remove("x", Condition::None)).kind(), ErrorKind::OutcomeUnknown);
    assert_eq!(in_time(|| client.create_collection("c", &spec)).kind(), ErrorKind::OutcomeUnknown);
    assert_eq!(in_time(|| client.destroy_collection("c")).kind(), ErrorKind::OutcomeUnknown);
    let mut pipeline = client.pipeline().expect("connected");
    let ticket = pipeline.send(&Request::remove("x", Condition::None).expect("valid")).expect("sent");
    assert_eq!(in_time(|| pipeline.wait(ticket)).kind(), ErrorKind::OutcomeUnknown);
}

#[test]
fn a_create_that_was_lost_once_and_then_finds_no_node_is_of_unknown_outcome() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound");
    let serving = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("accepted");
        drop(listener);
        let mut buffer = [0; 4096];
        assert!(stream.read(&mut buffer).expect("read") > 0);
    });
    let spec = Spec::of("ram:1");
    let error = client(&address.to_string()).create_collection("c", &spec).expect_err("nobody answers");
    assert_eq!(error.kind(), ErrorKind::OutcomeUnknown, "{error}");
    serving.join().expect("joined");
}

#[test]
fn connections_that_hang_cost_the_timeout_together() {
    let (one, two) = (Hanging::new(), Hanging::new());
    for nodes in [one.name(), format!("{},{}", one.name(), two.name())] {
        let client = client(&nodes);
        assert_eq!(in_time(|| client.get("x")).kind(), ErrorKind::Unreachable);
        assert_eq!(in_time(|| client.put("x", b"", &PutOptions::default())).kind(), ErrorKind::Unreachable);
        assert_eq!(in_time(|| client.pipeline().map(|_| ())).kind(), ErrorKind::Unreachable);
    }
}

#[test]
fn a_node_that_hangs_leaves_time_for_the_next() {
    let (hanging, silent, server) = (Hanging::new(), Server::start(), Server::start());
    client(&server.name()).put("x", b"1", &PutOptions::default()).expect("put");
    silent.node.faults.ignore.store(1000, SeqCst);
    for first in [hanging.name(), silent.name()] {
        let start = Instant::now();
        let client = client(&format!("{first},{}", server.name()));
        assert_eq!(client.get("x").expect("from the other").value, b"1");
        assert!(start.elapsed() < Duration::from_millis(TIMEOUT_MS + 100), "{first}: {:?}", start.elapsed());
    }
}

/// As nodes that are stopped do: the first one costs 0.6 s, the next one twice that.
#[test]
fn a_node_that_takes_the_connection_and_says_nothing_costs_a_change_less_than_a_second() {
    let silent = [0, 1].map(|_| TcpListener::bind("127.0.0.1:0").expect("a port"));
    let names = silent.each_ref().map(|silent| silent.local_addr().expect("bound").to_string());
    let server = Server::start();
    for (before, least_ms, most_ms) in [(&names[..1], 600, 1_000), (&names[..], 1_800, 2_300)] {
        let nodes = format!("{},{}", before.join(","), server.name());
        let client = Client::new(&nodes, Config::default()).expect("addresses");
        let start = Instant::now();
        client.put("x", b"1", &PutOptions::default()).expect("by the one that answers");
        let took_ms = start.elapsed().as_millis();
        assert!((least_ms..most_ms).contains(&took_ms), "{nodes}: {took_ms} ms");
    }
}

#[test]
fn nodes_are_found_by_name() {
    let server = Server::start();
    let client = client(&format!("http://localhost:{}/", server.address.port()));
    client.put("x", b"1", &PutOptions::default()).expect("put");
    assert_eq!(client.get("x").expect("get").value, b"1");
    let start = Instant::now();
    let error = self::client("no-such-host.invalid").get("x").expect_err("no such name");
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    assert!(start.elapsed() < Duration::from_millis(TIMEOUT_MS + 300), "{:?}", start.elapsed());
}

/// Writes a value in small pieces with pauses in between, all together longer than the timeout.
fn trickle(mut stream: TcpStream, bytes: &[u8]) -> io::Result<()> {
    for piece in bytes.chunks(bytes.len() / 8 + 1) {
        std::thread::sleep(Duration::from_millis(TIMEOUT_MS / 3));
        stream.write_all(piece)?;
    }
    Ok(())
}

#[test]
fn a_download_that_moves_may_take_as_long_as_it_likes() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound");
    // Less than a block, so that none is whole before the end.
    let value = pattern(60_000);
    let sent = value.clone();
    let serving = std::thread::spawn(move || {
        for _ in 0..2 {
            let (mut stream, _) = listener.accept().expect("accepted");
            let mut buffer = vec![0; 4096];
            let bytes = stream.read(&mut buffer).expect("read");
            let hello = parse_frame(&buffer[..bytes]).expect("a frame").expect("whole").bytes();
            let request = *parse_frame(&buffer[hello..bytes]).expect("a frame").expect("whole").header();
            let mut out = Vec::new();
            let reply = Header { length: sent.len() as u64, version: 1, ..Header::reply_to(&request, Status::Ok) };
            encode_frame(&mut out, Header::new(Kind::Welcome), &Fields::default(), b"").expect("encodes");
            encode_frame(&mut out, reply, &Fields::default(), &sent).expect("encodes");
            trickle(stream, &out).expect("the client waits");
        }
    });
    let mut out = Vec::new();
    client(&address.to_string()).get_to("x", None, &mut out).expect("it moves");
    assert!(out == value);
    assert!(client(&address.to_string()).get("x").expect("it moves").value == value);
    serving.join().expect("joined");
}

/// A source that pauses before each of its pieces, and notes how many connections there are at its first bytes.
struct Slow<'a> {
    server: &'a Server,
    left: &'a [u8],
    piece_bytes: usize,
    pause_ms: u64,
    connections: AtomicUsize,
}

impl Read for Slow<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        std::thread::sleep(Duration::from_millis(self.pause_ms));
        self.connections.fetch_max(self.server.node.accepted.load(SeqCst), SeqCst);
        let bytes = self.piece_bytes.min(into.len()).min(self.left.len());
        into[..bytes].copy_from_slice(&self.left[..bytes]);
        self.left = &self.left[bytes..];
        Ok(bytes)
    }
}

#[test]
fn a_source_is_read_before_there_is_a_connection_that_could_fall_silent() {
    let server = Server::start();
    let client = client(&server.name());
    let mut source =
        Slow { server: &server, left: b"hi", piece_bytes: 1, pause_ms: TIMEOUT_MS / 2, connections: 0.into() };
    client.put_from("late", &mut source, None, &PutOptions::default()).expect("put");
    assert_eq!(source.connections.into_inner(), 0, "it connects when it has something to say");
    assert_eq!(client.get("late").expect("get").value, b"hi");
}

#[test]
fn a_source_that_is_slower_than_the_timeout_is_no_silent_node() {
    let server = Server::start();
    let client = client(&server.name());
    let value = pattern(3 << 20);
    let pause_ms = TIMEOUT_MS + 100;
    let mut source = Slow { server: &server, left: &value, piece_bytes: 1 << 20, pause_ms, connections: 0.into() };
    client.put_from("slow", &mut source, None, &PutOptions::default()).expect("put");
    assert!(client.get("slow").expect("get").value == value);
}

#[test]
fn a_put_that_was_cut_off_before_its_last_byte_was_not_done() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound");
    let serving = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("accepted");
        stream.write_all(&Header::new(Kind::Welcome).encode()).expect("it listens");
        stream.read_exact(&mut vec![0; 2 << 20]).expect("more than the first frame");
    });
    let mut value = &pattern(64 << 20)[..];
    let put = client(&address.to_string()).put_from("cut", &mut value, None, &PutOptions::default());
    assert_eq!(put.expect_err("closed").kind(), ErrorKind::Unreachable);
    serving.join().expect("joined");
}

#[test]
fn a_put_goes_again_while_all_that_was_sent_of_it_is_at_hand() {
    let server = Server::start();
    let client = Client::new(&server.name(), Config::default()).expect("an address");
    let value = pattern(32 << 20);
    server.node.faults.close.store(1, SeqCst);
    client.put("large", &value, &PutOptions::default()).expect("put");
    for length in [None, Some(5)] {
        server.node.faults.busy.store(1, SeqCst);
        client.put_from("small", &mut &b"small"[..], length, &PutOptions::default()).expect("put");
    }
    assert!(client.get("large").expect("get").value == value);
    assert_eq!(client.get("small").expect("get").value, b"small");
}
