//! Line d's last part: an object of 1 GiB through `herd put` and `herd get`, and what node and client keep resident.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::bench::Bench;
use crate::error::{Context, Error, Result};
use crate::peers::server::Server;
use crate::peers::{Kind, Setup};
use crate::proc;
use crate::processor::CLIENT_CORE;
use crate::proto::Proto;
use crate::report::{Sample, Summary};
use crate::sys;
use crate::values::printable;

const LINE: &str = "d";
const GROUP: &str = "1 GiB by herd put and get";
const KEY: &str = "lab-gib";
const CHUNK_BYTES: usize = 1 << 20;
const CHUNKS: u64 = 1_024;
const MIB: f64 = 1_048_576.0;

/// A file that is removed when it is no longer needed.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        // It may never have been made.
        let _ = fs::remove_file(&self.0);
    }
}

/// Measures, where there is a Herd binary.
pub(super) fn run(bench: &mut Bench) -> Result<()> {
    let Some(arm) = bench.arm("herd command", Kind::Herd, Proto::Herd) else { return Ok(()) };
    let setup = Setup { memory_mib: 2_048, ..Setup::default() };
    let outcome = arm.peer.start(&setup).and_then(|server| through(&arm.peer.program, &server));
    let values = match outcome {
        Ok(values) => values,
        Err(error) => return bench.report.failure(format!("[{LINE}] {GROUP}: {error}")),
    };
    let bars = [("node_peak_mib", CHUNKS as f64 + 32.0), ("put_peak_mib", 64.0), ("get_peak_mib", 64.0)];
    for (metric, bar) in bars {
        let value = Summary::of(&[values[metric]]);
        bench.report.judge(LINE, format!("{metric}: {GROUP}"), value, bar, true)?;
    }
    let (group, arm) = (GROUP.to_owned(), arm.name);
    bench.report.sample(Sample { line: LINE, group, arm, round: 0, values })
}

fn through(program: &Path, server: &Server) -> Result<BTreeMap<&'static str, f64>> {
    let file = |end: &str| Scratch(std::env::temp_dir().join(format!("herd-lab-{}-{end}", std::process::id())));
    let (sent, received) = (file("sent"), file("received"));
    write_pattern(&sent.0, CHUNKS)?;
    let (put_s, put_peak_bytes) = command(program, server, &["put", KEY, &sent.0.to_string_lossy()])?;
    let (get_s, get_peak_bytes) = command(program, server, &["get", KEY, "-o", &received.0.to_string_lossy()])?;
    check_pattern(&received.0, CHUNKS)?;
    let gb = (CHUNKS * CHUNK_BYTES as u64) as f64 / 1e9;
    Ok(BTreeMap::from([
        ("node_peak_mib", proc::peak_resident_bytes(server.pid())? as f64 / MIB),
        ("put_peak_mib", put_peak_bytes as f64 / MIB),
        ("get_peak_mib", get_peak_bytes as f64 / MIB),
        ("put_gb_per_s", gb / put_s),
        ("get_gb_per_s", gb / get_s),
    ]))
}

/// Runs one `herd` command to its end; returns its seconds and peak resident bytes.
fn command(program: &Path, server: &Server, arguments: &[&str]) -> Result<(f64, u64)> {
    let mut command = Command::new(program);
    command.args(arguments).env("HERD_NODE", server.addr.to_string());
    command.stdin(Stdio::null()).stdout(Stdio::null());
    sys::tie(&mut command, Some(CLIENT_CORE));
    let start = Instant::now();
    let child = command.spawn().during(|| format!("start herd {}", arguments[0]))?;
    let pid = i32::try_from(child.id()).expect("pids fit an i32");
    let (exited_well, peak_bytes) = sys::wait_with_peak(pid)?;
    if exited_well {
        return Ok((start.elapsed().as_secs_f64(), peak_bytes));
    }
    Err(Error::new(format!("herd {} failed", arguments[0])))
}

/// So many MiB, no two alike.
fn write_pattern(path: &Path, chunks: u64) -> Result<()> {
    let mut file = BufWriter::new(File::create(path).during(|| format!("create {}", path.display()))?);
    let mut chunk = printable(CHUNK_BYTES);
    for index in 0..chunks {
        chunk[..8].copy_from_slice(&index.to_le_bytes());
        file.write_all(&chunk)?;
    }
    Ok(file.flush()?)
}

fn check_pattern(path: &Path, chunks: u64) -> Result<()> {
    let mut file = BufReader::new(File::open(path).during(|| format!("open {}", path.display()))?);
    let mut expected = printable(CHUNK_BYTES);
    let mut chunk = vec![0; CHUNK_BYTES];
    for index in 0..chunks {
        expected[..8].copy_from_slice(&index.to_le_bytes());
        file.read_exact(&mut chunk).during(|| format!("read MiB {index} of what came back"))?;
        if chunk != expected {
            return Err(Error::new(format!("MiB {index} came back with other bytes")));
        }
    }
    match file.read(&mut chunk)? {
        0 => Ok(()),
        _ => Err(Error::new("more came back than was put")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    #[test]
    fn a_changed_byte_is_found() {
        let scratch = Scratch(std::env::temp_dir().join(format!("herd-lab-pattern-{}", std::process::id())));
        write_pattern(&scratch.0, 8).expect("room for 8 MiB");
        check_pattern(&scratch.0, 8).expect("what was written");
        assert!(check_pattern(&scratch.0, 7).is_err(), "too long");
        assert!(check_pattern(&scratch.0, 9).is_err(), "too short");
        let file = File::options().write(true).open(&scratch.0).expect("own file");
        file.write_all_at(b"\n", 5 << 20).expect("own file");
        assert!(check_pattern(&scratch.0, 8).is_err());
    }
}
