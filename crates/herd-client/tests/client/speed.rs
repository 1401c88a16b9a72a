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

#[test]
#[ignore = "measures; see the module"]
fn bulk_keeps_up_with_plain_loops() {
    let value = pattern(BYTES);
    let node = Bulk::start(value.clone(), BYTES as u64, false);
    let client = Client::new(&node.address.to_string(), Config::default()).expect("an address");
    let mut plain = TcpStream::connect(plain_server(value.clone())).expect("connected");
    plain.set_nodelay(true).expect("TCP");
    let mut resident = value.clone();
    let mut plain_get = || {
        plain.write_all(b"g").expect("asked");
        let mut filled = 0;
        while filled < BYTES {
            filled += plain.read(&mut resident[filled..]).expect("read");
        }
    };
    let mut into = Vec::new();
    let mut memory = || _ = client.get_into("x", &mut into).expect("get");
    let get = compare("get into memory", &mut plain_get, &mut memory);
    compare("get, memory fresh", &mut plain_get, || _ = client.get("x").expect("get"));
    compare("get to a writer", &mut plain_get, || _ = client.get_to("x", None, &mut std::io::sink()).expect("get"));
    assert!(into == value);
    let mut plain_put = || {
        plain.write_all(b"p").expect("announced");
        value.chunks(PIECE_BYTES).for_each(|piece| plain.write_all(piece).expect("written"));
        plain.read_exact(&mut [0]).expect("answered");
    };
    let options = PutOptions::default();
    let put = compare("put from memory", &mut plain_put, || _ = client.put("x", &value, &options).expect("put"));
    compare("put from a reader", &mut plain_put, || {
        client.put_from("x", &mut &value[..], Some(BYTES as u64), &options).expect("put");
    });
    assert!(get >= 0.9 && put >= 0.9, "get {get:.3}, put {put:.3}");
}
