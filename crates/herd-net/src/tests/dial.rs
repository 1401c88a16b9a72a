//! Real loops over the kernel's sockets: connections that one makes, a refusal, one that belongs to another loop, and
//! alarms at their time.

use super::*;
use crate::EventLoop;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(20);

/// Runs loops with these services until `during` is over; gives how many connections they have shed.
fn with_loops(listeners: Vec<TcpListener>, services: Vec<Words>, during: impl FnOnce()) -> u64 {
    let start = Instant::now();
    let (handle, loops) = EventLoop::group(listeners, services, 10, start).expect("loops");
    let threads: Vec<_> = loops.into_iter().map(|one| std::thread::spawn(move || one.run())).collect();
    during();
    handle.stop();
    threads.into_iter().for_each(|thread| thread.join().expect("no panic").expect("no error"));
    handle.loops().iter().map(|remote| remote.stats.shed.load(Relaxed)).sum()
}

/// A service that is woken at these times, ms, and the first time makes a connection.
fn service(alarms: &[u64], to: SocketAddr) -> (Words, mpsc::Receiver<(&'static str, u64)>) {
    let (told, hears) = mpsc::channel();
    let alarms = alarms.iter().copied().collect();
    (Words { alarms, calls: vec![to], told: Some(told), ..Words::default() }, hears)
}

#[test]
fn a_connection_that_is_made_speaks_first_and_is_served_like_any_other() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    let (service, hears) = service(&[0], listener.local_addr().expect("bound"));
    with_loops(Vec::new(), vec![service], || {
        let (mut socket, _) = listener.accept().expect("it dials");
        let (mut hello, mut reply) = ([0; 5], [0; REPLY.len()]);
        socket.read_exact(&mut hello).expect("it speaks first");
        assert_eq!(&hello, b"hello");
        socket.write_all(b"p\n").expect("it listens");
        socket.read_exact(&mut reply).expect("a reply");
        drop(socket);
        let told = [(); 3].map(|()| hears.recv_timeout(PATIENCE).expect("in time").0);
        assert_eq!(told, ["alarm", "connected", "closed"]);
    });
}

#[test]
fn a_connection_that_is_refused_is_closed_at_once() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    let to = listener.local_addr().expect("bound");
    drop(listener);
    let (service, hears) = service(&[0], to);
    with_loops(Vec::new(), vec![service], || {
        let told = [(); 2].map(|()| hears.recv_timeout(PATIENCE).expect("in time").0);
        assert_eq!(told, ["alarm", "closed"]);
    });
}

#[test]
fn one_that_is_not_answered_is_given_up_and_counts_as_no_slow_client() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    let (service, hears) = service(&[0], listener.local_addr().expect("bound"));
    let service = Words { is_stranger: true, ..service };
    let shed = with_loops(Vec::new(), vec![service], || {
        let _socket = listener.accept().expect("it dials");
        let told = [(); 3].map(|()| hears.recv_timeout(PATIENCE).expect("in time").0);
        assert_eq!(told, ["alarm", "connected", "closed"]);
    });
    assert_eq!(shed, 0);
}

#[test]
fn alarms_come_at_their_time_and_not_with_the_next_tick_only() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    let times = [5, 7, 8, 30, 31, 90];
    let (service, hears) = service(&times, listener.local_addr().expect("bound"));
    with_loops(Vec::new(), vec![service], || {
        let _socket = listener.accept().expect("it dials");
        let told = |hears: &mpsc::Receiver<(&'static str, u64)>| hears.recv_timeout(PATIENCE).expect("in time");
        let all: Vec<_> = (0..times.len() + 1).map(|_| told(&hears)).filter(|(what, _)| *what == "alarm").collect();
        assert_eq!(all.len(), times.len());
        assert!(all.iter().zip(times).all(|((_, now_ms), at_ms)| *now_ms >= at_ms), "{all:?}");
        // A busy machine may delay some of them, not all up to its next tick.
        let soon = all.iter().zip(times).filter(|((_, now_ms), at_ms)| *now_ms < at_ms + 100).count();
        assert!(soon > 0, "{all:?}");
    });
}

#[test]
fn a_connection_is_served_by_the_loop_it_belongs_to() {
    let listener = crate::listen(([127, 0, 0, 1], 0).into()).expect("a free port");
    let to = listener.local_addr().expect("bound");
    // The first connection is given to the first loop.
    let services = vec![Words::default(), Words { is_other_loop: true, ..Words::default() }];
    with_loops(vec![listener], services, || {
        let mut socket = std::net::TcpStream::connect(to).expect("it listens");
        socket.set_read_timeout(Some(PATIENCE)).expect("an option");
        socket.write_all(b"m\n").expect("it listens");
        let (mut moved, mut reply) = ([0; 5], [0; REPLY.len()]);
        socket.read_exact(&mut moved).expect("a reply");
        socket.write_all(b"p\n").expect("it listens");
        socket.read_exact(&mut reply).expect("another one");
        assert_eq!((&moved, reply), (b"moved", REPLY));
    });
}
