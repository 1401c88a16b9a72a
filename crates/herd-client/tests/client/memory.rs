//! What streaming costs in memory: a 1 GiB object goes through a process of its own, whose peak is read from Linux.
#![cfg(target_os = "linux")]

use super::bulk::Bulk;
use herd_client::blocking::Client;
use herd_client::{Config, PutOptions};
use std::io::{self, Read, Write};
use std::process::Command;

const BYTES: u64 = 1 << 30;
const PATTERN_BYTES: u64 = 8 << 20;
const ALLOWED_KIB: u64 = 64 * 1024;
const NODE: &str = "HERD_TEST_NODE";

/// Gives and takes bytes that tell their place in the pattern, a word at a time.
struct Words {
    position: u64,
}

impl Words {
    fn new() -> Self {
        Words { position: 0 }
    }

    fn next(&mut self) -> [u8; 8] {
        self.position += 8;
        ((self.position - 8) % PATTERN_BYTES).to_le_bytes()
    }
}

impl Read for Words {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let bytes = into.len().min((BYTES - self.position) as usize) / 8 * 8;
        for word in into[..bytes].as_chunks_mut::<8>().0 {
            *word = self.next();
        }
        Ok(bytes)
    }
}

impl Write for Words {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        let (words, rest) = from.as_chunks::<8>();
        assert!(rest.is_empty(), "checked blocks are whole");
        words.iter().for_each(|word| assert_eq!(*word, self.next()));
        Ok(from.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Peak of the resident memory of this process, KiB.
fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).expect("a peak");
    line.split_whitespace().nth(1).and_then(|number| number.parse().ok()).expect("a number")
}

/// What the other process does; only there a node is named.
#[test]
fn stream_as_a_process_of_its_own() {
    let Ok(node) = std::env::var(NODE) else { return };
    let client = Client::new(&node, Config::default()).expect("an address");
    client.put_from("big", &mut Words::new(), Some(BYTES), &PutOptions::default()).expect("put");
    let mut taken = Words::new();
    client.get_to("big", None, &mut taken).expect("get");
    assert_eq!(taken.position, BYTES);
    assert!(peak_kib() < ALLOWED_KIB, "{} KiB were resident", peak_kib());
    println!("peak {} KiB", peak_kib());
}

#[test]
fn streaming_a_gibibyte_stays_under_64_mib() {
    let mut pattern = vec![0; PATTERN_BYTES as usize];
    Words::new().read_exact(&mut pattern).expect("words");
    let node = Bulk::start(pattern, BYTES, true);
    let program = std::env::current_exe().expect("this program");
    let arguments = ["memory::stream_as_a_process_of_its_own", "--exact", "--nocapture"];
    let output = Command::new(program).args(arguments).env(NODE, node.address.to_string()).output().expect("it runs");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("peak"), "{text}{}", String::from_utf8_lossy(&output.stderr));
    print!("{text}");
    assert_eq!(node.received_bytes(), BYTES, "the other process did put it");
}
