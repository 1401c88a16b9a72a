//! herd: the one binary.

use clap::{Parser, Subcommand};
use std::net::SocketAddr;

#[derive(Parser)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a node.
    Node {
        #[arg(long, default_value = "127.0.0.1:7700")]
        listen: Vec<SocketAddr>,
        #[arg(long)]
        threads: Option<usize>,
        #[arg(long, default_value = "1g")]
        memory: String,
        #[arg(long)]
        evict: bool,
    },
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let Command::Node { listen, threads, memory, evict } = Args::parse().command;
    let mut config = herd_node::Config { listen, evict, ..Default::default() };
    config.threads = threads.unwrap_or(config.threads);
    config.memory_bytes = herd_core::size::parse(&memory).ok_or("bad --memory")?;
    let node = herd_node::Node::start(config)?;
    println!("ready {}", node.addrs()[0]);
    loop {
        std::thread::park();
    }
}
