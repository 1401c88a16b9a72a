//! iperf3: one TCP stream, what a link carries when nothing but the kernel is between.

use std::path::PathBuf;
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use serde_json::Value;

use crate::error::{Context, Error, Result};
use crate::net::{HostId, Network};
use crate::peers::server::Server;
use crate::peers::{Load, Peer, Values};
use crate::sys;

/// The program, by name.
pub(crate) const IPERF3: &str = "iperf3";
/// Where it listens, unless told otherwise.
const PORT: u16 = 5_201;

/// iperf3, from the servers' host to the clients', as gets flow.
pub(crate) struct Stream {
    program: PathBuf,
}

impl Stream {
    /// By its program's path.
    pub(crate) fn new(program: PathBuf) -> Self {
        Self { program }
    }

    /// Payload bits per second of one stream from the server's host to `to`, over `seconds` after one to warm up.
    pub(crate) fn bits_per_s(&self, net: &Network, to: HostId, server: &Server, seconds: u64) -> Result<f64> {
        let mut client = net.command(to, &self.program);
        client.args(["-J", "-R", "-O", "1", "-t", &seconds.to_string(), "-c", &server.addr.ip().to_string()]);
        let output = client.output().during(|| "run iperf3".into())?;
        let told: Value = serde_json::from_slice(&output.stdout)?;
        let bits = told.pointer("/end/sum_received/bits_per_second").and_then(Value::as_f64);
        bits.ok_or_else(|| Error::new(format!("iperf3 gave no rate: {}", told["error"])))
    }
}

impl Peer for Stream {
    fn name(&self) -> &'static str {
        IPERF3
    }

    fn start(&self, net: &Network, host: HostId, core: Option<usize>) -> Result<Server> {
        let mut command = net.command(host, &self.program);
        command.args(["-s", "-1"]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        sys::pinned(&mut command, core);
        let child = command.spawn().needing(|| "start iperf3 (Debian: iperf3)".into())?;
        let addr = (net.address(host), PORT).into();
        let server = Server { child, addr, options: "-s -1".into(), _scratch: None };
        await_listener(net, host)?;
        Ok(server)
    }

    fn load(&self, net: &Network, clients: HostId, servers: &[Server], load: &Load) -> Result<Values> {
        let bits_s = self.bits_per_s(net, clients, &servers[0], load.run_ms.div_ceil(1_000))?;
        Ok(vec![("MB/s", bits_s / 8e6)])
    }
}

/// Waits until it listens on a host. It serves once, so nobody connects: its port is looked for.
fn await_listener(net: &Network, host: HostId) -> Result<()> {
    let local = format!(":{PORT:04X}");
    let listens = |line: &str| {
        let mut fields = line.split_ascii_whitespace().skip(1);
        fields.next().is_some_and(|at| at.ends_with(&local)) && fields.nth(1) == Some("0A")
    };
    for _ in 0..200 {
        let tables = net.on(host, || {
            let read = |file: &str| std::fs::read_to_string(format!("/proc/thread-self/net/{file}"));
            Ok(read("tcp")? + &read("tcp6").unwrap_or_default())
        })?;
        if tables.lines().any(listens) {
            return Ok(());
        }
        thread::sleep(Duration::from_millis(10));
    }
    Err(Error::new(format!("nothing listens at port {PORT} of {}", net.address(host))))
}
