//! herd-lab: measures Herd beside its peers on one machine, through the doors that users have.
//!
//! `bench` runs the lines of the first milestone; the other subcommands are the processes it starts, pinned away from
//! each other. No Herd crate is linked: only released binaries are run.

mod bench;
mod bulk;
mod bulkrun;
mod churn;
mod crowd;
mod engine;
mod error;
#[cfg(test)]
mod fake;
mod hist;
mod netns;
mod null;
mod peers;
mod plot;
mod proc;
mod proto;
mod report;
mod side;
mod spec;
mod storm;
mod sys;
mod values;
mod wire;

use std::io::Read;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use serde::{Serialize, de::DeserializeOwned};

use crate::error::Result;
use crate::proto::{Op, Proto};

/// Measures Herd beside memcached, Redis, pogocache, null servers and iperf3.
#[derive(Parser)]
#[command(name = "herd-lab", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Measures Herd beside its peers and judges the milestone's bars.
    Bench(bench::Options),
    /// Lists the lines that can be measured and the servers that are there.
    List(bench::Programs),
    /// A server that answers every request with one fixed reply: the limit for small operations.
    NullServer {
        /// Protocol of the reply.
        #[arg(long, value_enum)]
        proto: Proto,
        /// What is answered.
        #[arg(long, value_enum)]
        op: Op,
        /// Bytes of the value in the reply to a get.
        #[arg(long, default_value_t = 256)]
        value_bytes: usize,
    },
    /// A server of large bodies from and to one resident buffer: the limit for large objects.
    NullBulk,
    /// One run of the small-operation engine: specification on stdin, outcome on stdout, both JSON.
    #[command(hide = true)]
    Engine,
    /// One run of the large-object client: specification on stdin, outcome on stdout, both JSON.
    #[command(hide = true)]
    Bulk,
    /// One crowd of connections that read objects: specification on stdin, outcome on stdout, both JSON.
    #[command(hide = true)]
    Crowd,
    /// One churn: specification on stdin, outcome on stdout, both JSON.
    #[command(hide = true)]
    Churn,
    /// One crowd of reconnecting clients: specification on stdin, outcome on stdout, both JSON.
    #[command(hide = true)]
    Storm,
}

fn read_specification<T: DeserializeOwned>() -> Result<T> {
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text)?;
    Ok(serde_json::from_str(&text)?)
}

fn print_outcome(outcome: &impl Serialize) -> Result<()> {
    println!("{}", serde_json::to_string(outcome)?);
    Ok(())
}

fn run(command: Command) -> Result<()> {
    match command {
        Command::Bench(options) => bench::run(options),
        Command::List(programs) => {
            bench::list(&programs);
            Ok(())
        }
        Command::NullServer { proto, op, value_bytes } => null::serve(proto, op, value_bytes),
        Command::NullBulk => null::serve_bulk(),
        Command::Engine => print_outcome(&engine::run(read_specification()?)?),
        Command::Crowd => print_outcome(&crowd::run(&read_specification()?)?),
        Command::Churn => print_outcome(&churn::run(&read_specification()?)?),
        Command::Storm => print_outcome(&storm::run(&read_specification()?)?),
        Command::Bulk => print_outcome(&bulkrun::run(&read_specification()?)?),
    }
}

fn main() -> ExitCode {
    match run(Arguments::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("herd-lab: {error}");
            ExitCode::FAILURE
        }
    }
}
