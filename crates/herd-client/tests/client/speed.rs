//! Bulk speed against plain loops over the same kind of socket. It measures, so it runs only when asked for, best in a
//! network namespace whose congestion control is cubic:
//! `cargo test -p herd-client --release -- --ignored speed --nocapture --test-threads 1`.

use super::blocking::pattern;
use super::bulk::Bulk;
use herd_client::blocking::Client;
use herd_client::{Config, PutOptions};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Instant;

const BYTES: usize = 64 << 20;
const PIECE_BYTES: usize = 1 << 20;
const ROUNDS: usize = 7;

/// A plain server: `g` asks for [`BYTES`], `p` announces as many, answered with one byte.
fn plain_server(value: Vec<u8>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("bound");
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("accepted");
        stream.set_nodelay(true).expect("TCP");
        let (mut what, mut buffer) = ([0], vec![0; 2 << 20]);
        while stream.read_exact(&mut what).is_ok() {
            if what == *b"g" {
                value.chunks(PIECE_BYTES).for_each(|piece| stream.write_all(piece).expect("written"));
                continue;
            }
            let mut left = BYTES;
            while left > 0 {
                let most = left.min(buffer.len());
                left -= stream.read(&mut buffer[..most]).expect("read");
            }
            stream.write_all(b"k").expect("written");
        }
    });
    address
}

/// What a run of one arm cost, seconds.
#[derive(Clone, Copy)]
struct Cost {
    wall: f64,
    /// CPU of this thread; of the other side's nothing.
    cpu: f64,
}

/// CPU time of this thread so far, seconds.
fn thread_cpu() -> f64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}

fn cost(act: impl FnOnce()) -> Cost {
    let (start, cpu) = (Instant::now(), thread_cpu());
    act();
    Cost { wall: start.elapsed().as_secs_f64(), cpu: thread_cpu() - cpu }
}

fn median(costs: &[Cost], of: impl Fn(&Cost) -> f64) -> f64 {
    let mut times: Vec<f64> = costs.iter().map(of).collect();
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// Alternates the arms; prints and returns how many times as fast as `plain` is `ours`, of the medians.
fn compare(what: &str, mut plain: impl FnMut(), mut ours: impl FnMut()) -> f64 {
    plain();
    ours();
    let costs = (0..ROUNDS).map(|_| (cost(&mut plain), cost(&mut ours)));
    let (plain, ours): (Vec<_>, Vec<_>) = costs.unzip();
    let speed = |costs: &[Cost]| BYTES as f64 / median(costs, |cost| cost.wall) / 1e9;
    let cpu = |costs: &[Cost]| median(costs, |cost| cost.cpu) / BYTES as f64 * 1e9;
    let (plain_speed, speed, plain_cpu, cpu) = (speed(&plain), speed(&ours), cpu(&plain), cpu(&ours));
    let ratio = speed / plain_speed;
    println!(
        "{what}: plain {plain_speed:.2} GB/s, {plain_cpu:.3} CPU s/GB; herd {speed:.2} GB/s, {cpu:.3} CPU s/GB; \
         speed ratio {ratio:.3}, CPU ratio {:.3}",
        cpu / plain_cpu
    );
    ratio
}

/// The plain arms, with and without the checksums that ours makes and compares.
struct Plain {
    stream: TcpStream,
    checked: bool,
}

impl Plain {
    fn start(value: &[u8], checked: bool) -> Self {
        let stream = TcpStream::connect(plain_server(value.to_vec())).expect("connected");
        stream.set_nodelay(true).expect("TCP");
        Self { stream, checked }
    }

    fn get(&mut self, into: &mut [u8]) {
        self.stream.write_all(b"g").expect("asked");
        for piece in into.chunks_mut(PIECE_BYTES) {
            self.stream.read_exact(piece).expect("read");
            self.check(piece);
        }
    }

    fn put(&mut self, value: &[u8]) {
        self.stream.write_all(b"p").expect("announced");
        for piece in value.chunks(PIECE_BYTES) {
            self.check(piece);
            self.stream.write_all(piece).expect("written");
        }
        self.stream.read_exact(&mut [0]).expect("answered");
    }

    fn check(&self, piece: &[u8]) {
        if self.checked {
            std::hint::black_box(herd_core::wire::block_checks(piece).fold(0, |sum, check| sum ^ check));
        }
    }
}

#[test]
#[ignore = "measures; see the module"]
fn bulk_keeps_up_with_plain_loops() {
    let value = pattern(BYTES);
    let node = Bulk::start(value.clone(), BYTES as u64, false);
    let client = Client::new(&node.address.to_string(), Config::default()).expect("an address");
    let (mut plain, mut checked) = (Plain::start(&value, false), Plain::start(&value, true));
    let options = PutOptions::default();
    let (mut resident, mut into) = (value.clone(), Vec::new());
    let mut memory = || _ = client.get_into("x", &mut into).expect("get");
    compare("get into memory, of a plain loop", || plain.get(&mut resident), &mut memory);
    let get = compare("get into memory, of one with checksums", || checked.get(&mut resident), &mut memory);
    compare("get into fresh memory", || plain.get(&mut resident), || _ = client.get("x").expect("get"));
    let mut writer = || _ = client.get_to("x", None, &mut std::io::sink()).expect("get");
    let stream = compare("get to a writer, of a plain loop", || plain.get(&mut resident), &mut writer);
    assert!(into == value);
    let mut memory = || _ = client.put("x", &value, &options).expect("put");
    compare("put from memory, of a plain loop", || plain.put(&value), &mut memory);
    let put = compare("put from memory, of one with checksums", || checked.put(&value), &mut memory);
    let mut reader = || {
        client.put_from("x", &mut &value[..], Some(BYTES as u64), &options).expect("put");
    };
    compare("put from a reader, of a plain loop", || plain.put(&value), &mut reader);
    assert!(get >= 0.9 && put >= 0.9 && stream >= 0.9, "get {get:.3}, put {put:.3}, stream {stream:.3}");
}
