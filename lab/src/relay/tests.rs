//! The process's loop over pairs of datagram sockets in place of devices, and the handle over a stand-in program.

use std::fs;
use std::io::{BufRead, BufReader, PipeReader, PipeWriter};
use std::os::fd::{IntoRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::*;

/// A relay in a thread, its sites' ends of the devices, and its pipes.
struct Bench {
    sites: Vec<UnixDatagram>,
    commands: Option<PipeWriter>,
    answers: BufReader<PipeReader>,
    thread: Option<JoinHandle<Result<()>>>,
}

/// Three sites; paths join the first two.
fn spec(there: Conditions) -> Spec {
    let device = |network: &str| Device { fd: 0, network: network.into() };
    let back = Conditions::default();
    Spec {
        devices: ["10.1.0.0/16", "10.2.0.0/16", "10.3.0.0/16"].map(device).into(),
        paths: vec![PathSpec { from: 0, to: 1, conditions: there }, PathSpec { from: 1, to: 0, conditions: back }],
        core: None,
        seed: 1,
    }
}

impl Bench {
    fn start(mut spec: Spec) -> Self {
        let mut sites = Vec::new();
        for device in &mut spec.devices {
            let (site, relay) = UnixDatagram::pair().expect("sockets");
            relay.set_nonblocking(true).expect("sockets");
            site.set_read_timeout(Some(Duration::from_secs(5))).expect("sockets");
            device.fd = relay.into_raw_fd();
            sites.push(site);
        }
        let (its_commands, commands) = io::pipe().expect("pipe");
        let (answers, mut its_answers) = io::pipe().expect("pipe");
        let commands_file = File::from(OwnedFd::from(its_commands));
        let thread = Some(std::thread::spawn(move || serve(commands_file, &mut its_answers)));
        let mut bench = Self { sites, commands: Some(commands), answers: BufReader::new(answers), thread };
        bench.tell(&serde_json::to_string(&spec).expect("JSON"));
        assert_eq!(bench.answer(), "{\"ready\":true}\n");
        bench
    }

    fn tell(&mut self, line: &str) {
        let commands = self.commands.as_mut().expect("not ended");
        commands.write_all(format!("{line}\n").as_bytes()).expect("pipe");
    }

    fn answer(&mut self) -> String {
        let mut line = String::new();
        self.answers.read_line(&mut line).expect("pipe");
        line
    }

    fn report(&mut self) -> Report {
        self.tell("{\"report\":true}");
        serde_json::from_str(&self.answer()).expect("a report")
    }

    /// Ends the commands and returns how the relay ended.
    fn end(&mut self) -> Result<()> {
        self.commands = None;
        self.thread.take().expect("ended once").join().expect("no panic")
    }

    fn receive(&self, site: usize) -> Vec<u8> {
        let mut frame = vec![0; 70_000];
        let bytes = self.sites[site].recv(&mut frame).expect("a frame within 5 s");
        frame.truncate(bytes);
        frame
    }
}

/// A frame of UDP to `to`, its payload all `mark`.
fn frame(to: [u8; 4], mark: u8, payload_bytes: u16) -> Vec<u8> {
    let total = 28 + payload_bytes;
    let mut frame = vec![0; 10];
    frame.extend([0x45, 0]);
    frame.extend(total.to_be_bytes());
    frame.extend([0, 0, 0x40, 0, 64, 17, 0, 0, 10, 1, 0, 1]);
    frame.extend(to);
    frame.resize(38, 0);
    frame.resize(10 + usize::from(total), mark);
    frame
}

/// A frame of TCP to site 1 that stands for `packets` packets of 100 bytes of payload.
fn segmented(packets: u16) -> Vec<u8> {
    let mut frame = frame([10, 2, 0, 1], 7, 12 + packets * 100);
    frame[..10].copy_from_slice(&[1, 1, 40, 0, 100, 0, 20, 0, 16, 0]);
    frame[19] = 6;
    frame[42] = 5 << 4;
    frame
}

#[test]
fn frames_reach_their_site_unchanged_after_the_delay_and_in_order() {
    let mut bench = Bench::start(spec(Conditions { delay_us: 20_000, ..Conditions::default() }));
    let started = Instant::now();
    // A pair of sockets holds no more than ten frames, and few long ones.
    let sent: Vec<Vec<u8>> = (0..8).map(|n| frame([10, 2, 9, 9], n, u16::from(n) * 3_000)).collect();
    for frame in &sent {
        bench.sites[0].send(frame).expect("sent");
    }
    for frame in &sent {
        assert!(bench.receive(1) == *frame, "{} bytes", frame.len());
    }
    assert!(started.elapsed() >= Duration::from_millis(20));
    let back = frame([10, 1, 0, 1], 1, 5);
    bench.sites[1].send(&back).expect("sent");
    assert_eq!(bench.receive(0), back);
    let report = bench.report();
    let delivered: Vec<u64> = report.paths.iter().map(|path| path.counts.delivered_packets).collect();
    assert_eq!((delivered, report.buffers_in_use_bytes), (vec![8, 1], 0));
    bench.end().expect("it ends well when its commands do");
}

#[test]
fn what_has_no_path_is_counted_by_reason() {
    let mut bench = Bench::start(spec(Conditions::default()));
    let mut six = frame([0; 4], 0, 30);
    six[10] = 0x60;
    let strays = [frame([10, 3, 0, 1], 0, 9), frame([10, 9, 0, 1], 0, 9), frame([10, 1, 0, 1], 0, 9), six, vec![0; 9]];
    for frame in strays.iter().chain([&frame([10, 2, 0, 1], 3, 9)]) {
        bench.sites[0].send(frame).expect("sent");
    }
    assert_eq!(bench.receive(1), frame([10, 2, 0, 1], 3, 9), "what came before it has been looked at");
    let report = bench.report();
    assert_eq!((report.unconnected_packets, report.unroutable_packets), (2, 1));
    assert_eq!((report.ipv6_frames, report.malformed_frames), (1, 1));
    bench.end().expect("it ends well");
}

#[test]
fn conditions_change_at_once_and_a_cut_is_a_cut() {
    let mut bench = Bench::start(spec(Conditions { delay_us: 3_600_000_000, ..Conditions::default() }));
    bench.sites[0].send(&frame([10, 2, 0, 1], 1, 5)).expect("sent");
    while bench.report().paths[0].counts.in_flight_packets == 0 {
        std::thread::yield_now();
    }
    bench.tell(r#"{"set":{"from":0,"to":1,"conditions":{"cut":true}}}"#);
    assert_eq!(bench.answer(), "{\"done\":true}\n");
    assert_eq!(bench.report().paths[0].counts.cut_packets, 1);
    bench.tell(r#"{"set":{"from":0,"to":1,"conditions":{}}}"#);
    assert_eq!(bench.answer(), "{\"done\":true}\n");
    bench.sites[0].send(&frame([10, 2, 0, 1], 2, 5)).expect("sent");
    assert_eq!(bench.receive(1), frame([10, 2, 0, 1], 2, 5));
    bench.end().expect("it ends well");
}

#[test]
fn a_frame_that_lost_packets_goes_on_in_pieces() {
    let mut bench = Bench::start(spec(Conditions { loss: 0.3, ..Conditions::default() }));
    let whole = segmented(20);
    bench.sites[0].send(&whole).expect("sent");
    let counts = loop {
        let counts = bench.report().paths.swap_remove(0).counts;
        if counts.delivered_packets > 0 && counts.in_flight_packets == 0 {
            break counts;
        }
    };
    assert_eq!((counts.offered_packets, counts.refused_packets), (20, 0));
    assert!((1..15).contains(&counts.lost_packets), "{} of 20", counts.lost_packets);
    let mut payload_bytes = 0;
    while payload_bytes < counts.delivered_packets * 100 {
        let piece = bench.receive(1);
        assert!(piece.len() < whole.len());
        payload_bytes += piece.len() as u64 - 50;
    }
    assert_eq!(payload_bytes, counts.delivered_packets * 100);
    bench.end().expect("it ends well");
}

#[test]
fn a_broken_command_ends_it_with_a_reason() {
    for (line, reason) in [
        ("nonsense", "broken command \"nonsense\""),
        (r#"{"set":{"from":0,"to":2,"conditions":{}}}"#, "no path from 0 to 2"),
        (r#"{"set":{"from":0,"to":9,"conditions":{}}}"#, "no path from 0 to 9"),
        (r#"{"set":{"from":0,"to":1,"conditions":{"loss":2}}}"#, "loss is not from 0 to 1"),
        (r#"{"set":{"from":0,"to":1,"conditions":{"lose":1}}}"#, "lose"),
    ] {
        let mut bench = Bench::start(spec(Conditions::default()));
        bench.tell(line);
        let error = bench.end().expect_err(line).to_string();
        assert!(error.contains(reason), "{error}");
    }
}

#[test]
fn a_specification_that_makes_no_sense_is_refused() {
    let wrong = |change: fn(&mut Spec), reason: &str| {
        let mut spec = spec(Conditions::default());
        change(&mut spec);
        let error = Hub::new(&spec).map(drop).expect_err(reason).to_string();
        assert!(error.contains(reason), "{error}");
    };
    wrong(|spec| spec.devices[1].network = "10.1.2.0/24".into(), "part of another");
    wrong(|spec| spec.devices[1].network = "10.2.0.1/16".into(), "no IPv4 network");
    wrong(|spec| spec.devices[1].network = "10.2.0.0/33".into(), "no IPv4 network");
    wrong(|spec| spec.paths[1].to = 3, "from 1 to 3");
    wrong(|spec| spec.paths[1].to = 1, "from 1 to 1");
    wrong(|spec| spec.paths[1] = spec.paths[0].clone(), "twice");
    wrong(|spec| spec.paths[0].conditions.rate_bits_s = Some(1), "rate_bits_s");
    let mut spec = spec(Conditions::default());
    spec.devices.iter_mut().for_each(|device| device.fd = 2);
    assert!(adopt(&spec).expect_err("standard error is no device").to_string().contains("standard descriptor"));
    spec.devices.iter_mut().for_each(|device| device.fd = 1_000_000);
    assert!(adopt(&spec).is_err(), "not open");
}

/// A program in place of the relay: it answers, and tells by the report whether the descriptors came along.
fn stand_in(name: &str, script: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("herd-lab-relay-{}-{name}", std::process::id()));
    fs::write(&path, format!("#!/bin/sh\n{script}\n")).expect("a file");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).expect("a file");
    path
}

#[test]
fn the_handle_hands_devices_down_and_asks() {
    let script = r#"read -r spec; echo '{"ready":true}'; read -r line; echo '{"done":true}'; read -r line
        here=0; for fd in $(echo "$spec" | grep -o '"fd":[0-9]*' | cut -d: -f2); do
        [ -e /proc/$$/fd/$fd ] && here=$((here + 1)); done
        printf '{"paths":[],"unroutable_packets":%d,"unconnected_packets":0,"out_of_memory_packets":0,' $here
        echo '"ipv6_frames":0,"malformed_frames":0,"buffers_in_use_bytes":0}'; exec sleep 60"#;
    let program = stand_in("asks", script);
    let pairs: Vec<_> = (0..3).map(|_| UnixDatagram::pair().expect("sockets")).collect();
    let (kept, fds): (Vec<_>, Vec<_>) = pairs.into_iter().map(|(ours, its)| (ours, OwnedFd::from(its))).unzip();
    let mut relay = Relay::start(&program, spec(Conditions::default()), fds).expect("started");
    relay.set(0, 1, Conditions::default()).expect("done");
    assert!(relay.set(0, 1, Conditions { loss: -1.0, ..Conditions::default() }).is_err(), "refused before it is sent");
    assert_eq!(relay.report().expect("a report").unroutable_packets, 3, "all three descriptors are open in it");
    let process = PathBuf::from(format!("/proc/{}", relay.pid()));
    assert!(process.exists());
    drop(relay);
    assert!(!process.exists(), "killed and waited for");
    // A process that another test is just starting holds copies of all descriptors until it is another program.
    let held = || kept[0].send(b"x").is_ok();
    let patience = Instant::now() + Duration::from_secs(5);
    while held() && Instant::now() < patience {
        thread::sleep(Duration::from_millis(5));
    }
    assert!(!held(), "nobody holds the devices any longer");
    fs::remove_file(program).expect("removed");
}

#[test]
fn the_handle_says_when_the_relay_ended() {
    let program = stand_in("ends", "exit 1");
    let (_ours, its) = UnixDatagram::pair().expect("sockets");
    let one = Spec { devices: spec(Conditions::default()).devices[..1].into(), paths: vec![], core: None, seed: 0 };
    let error = Relay::start(&program, one.clone(), vec![OwnedFd::from(its)]).map(drop).expect_err("it ended");
    assert!(error.to_string().contains("it has ended"), "{error}");
    assert!(Relay::start(&program, one, vec![]).is_err(), "a device without its descriptor");
    fs::remove_file(program).expect("removed");
}

/// In a network namespace of its own thread; where none may be made there is nothing to test.
#[test]
fn a_device_exists_as_long_as_its_descriptor() {
    let there = || fs::read_to_string("/proc/thread-self/net/dev").expect("listed").contains("relay-test");
    let try_it = move || {
        if sys::effective_ids().0 != 0 || sys::unshare_network(false).is_err() {
            return;
        }
        let device = create("relay-test").expect("root may");
        assert!(there());
        assert_eq!(create("relay-test").expect_err("taken").kind(), ErrorKind::ResourceBusy);
        assert_eq!(create("a-name-too-long-for-it").expect_err("too long").kind(), ErrorKind::InvalidInput);
        let error = File::from(device).read(&mut [0; 64]).expect_err("nothing to read, and not blocking");
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
        assert!(!there());
    };
    std::thread::spawn(try_it).join().expect("no panic");
}

#[test]
fn waits_are_shorter_by_what_waking_takes() {
    let mut alarm = Alarm::default();
    assert_eq!(alarm.timeout_ns(500_000), 500_000);
    for _ in 0..100 {
        alarm.rang(400_000, 430_000);
        alarm.rang(0, 1_000);
    }
    let timeout_ns = alarm.timeout_ns(500_000);
    assert!((470_000..470_100).contains(&timeout_ns), "{timeout_ns}");
    assert_eq!(alarm.timeout_ns(20_000), 0);
    for _ in 0..100 {
        alarm.rang(400_000, 90_000_000);
    }
    assert!(alarm.timeout_ns(500_000) >= 440_000, "one held up does not spin for long");
}
