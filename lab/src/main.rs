//! herd-lab: measures Herd beside its peers on one machine, through the doors that users have.
//!
//! `bench` runs the lines of the first milestone; the other subcommands are the processes it starts, pinned away from
//! each other. Only released binaries are run; of Herd's crates the
//! client library alone is linked, as its users do ([`caller`]).

mod ask;
mod awake;
mod bench;
mod bulk;
mod bulkrun;
mod caller;
mod churn;
mod client;
mod crowd;
mod differ;
mod engine;
mod error;
mod etcd;
mod failover;
#[cfg(test)]
mod fake;
mod faults;
mod figure;
mod foreground;
mod hist;
mod histories;
mod holder;
mod map;
mod net;
mod nodes;
mod null;
mod peers;
mod plot;
mod proc;
mod processor;
mod proto;
mod relay;
mod report;
mod run;
mod side;
mod spec;
mod storm;
mod sys;
mod values;
mod wire;

use std::io::{Read, Write};
use std::process::ExitCode;

use clap::builder::PossibleValue;
use clap::{Parser, Subcommand, ValueEnum};
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
    /// Lists what there is: lines to measure, figures, networks to play in, peers and where they come from.
    List(run::Programs),
    /// Measures and draws a figure of the papers again, on pretend networks, with peers beside Herd.
    #[command(after_help = "Example:\n  herd-lab figure hoc-throughput --herd target/release/herd --rounds 3")]
    Figure(figure::Options),
    /// Sends random memcached commands, valid and not, to Herd and to memcached, and compares their replies.
    #[command(after_help = "Example:\n  herd-lab differ --herd target/release/herd --memcached /path/to/memcached")]
    Differ(differ::Options),
    /// Has many clients ask a herd of real nodes while nodes stop and links break, and judges what they were told.
    #[command(after_help = "Example:\n  herd-lab histories --herd target/release/herd --nodes 3 --histories 20")]
    Histories(histories::Options),
    /// Kills, stops and cuts off nodes of a herd with writes under way, and looks for what was acknowledged.
    #[command(after_help = "Examples:\n  herd-lab faults --herd target/release/herd --seed 1\n  \
                            herd-lab faults --herd target/release/herd --short")]
    Faults(faults::Options),
    /// Measures how long writes stay away when nodes fall, and whether anything fails while nodes are restarted.
    #[command(after_help = "Examples:\n  herd-lab failover --herd target/release/herd\n  \
                            herd-lab failover --herd target/release/herd --lines kill,stop --rounds 10")]
    Failover(failover::Options),
    /// Says which runs of `faults` in the ledger still hold: those whose code has not changed since.
    Evidence(faults::ledger::Options),
    /// Measures whether pretend networks do what they say: round trips, rates, losses, cuts, firewalls, clean-up.
    #[command(after_help = "Works as root, and without where user namespaces and /dev/net/tun are for all.")]
    Check(net::check::Options),
    /// Opens a shell, or runs a command, on a host of a pretend network; everything ends with it.
    #[command(after_help = "Examples:\n  herd-lab shell sites\n  herd-lab shell farm -- ping -c 3 node1")]
    Shell {
        /// Which network.
        #[arg(value_enum, default_value = "pair")]
        network: net::presets::Preset,
        /// What to run instead of a shell.
        #[arg(last = true)]
        command: Vec<String>,
    },
    /// Runs a command on a host of the network that this shell is in.
    On {
        /// Its name.
        host: String,
        /// What to run there.
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<String>,
    },
    /// Changes the network that this shell is in: cuts, rates, pauses, power failures.
    #[command(after_help = "Examples:\n  herd-lab net cut here1 there1\n  herd-lab net rate node3 10")]
    Net {
        /// What to change.
        #[command(subcommand)]
        change: net::shell::Change,
    },
    /// A server that answers every request with one fixed reply and does nothing else.
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
        /// One connection at a time, level-triggered.
        #[arg(long)]
        plain: bool,
    },
    /// A server of large bodies from and to one resident buffer.
    NullBulk {
        /// Take the CRC-32C of what arrives.
        #[arg(long)]
        checked: bool,
        /// Small pages, and copies of what is sent.
        #[arg(long)]
        plain: bool,
    },
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
    /// One holder of a lock, run by `herd lock`: adds one to a number a few times.
    #[command(hide = true)]
    Holder(holder::Options),
    /// Keeps every core awake for as long as it runs, and yields to all else.
    #[command(hide = true)]
    Awake,
    /// The distance between pretend sites: specification and commands on stdin, answers on stdout, lines of JSON.
    #[command(hide = true)]
    Relay,
}

/// Exit code where this machine lacks what was wanted, as test drivers take it for skipped.
const LACKING: u8 = 77;

fn read_specification<T: DeserializeOwned>() -> Result<T> {
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text)?;
    Ok(serde_json::from_str(&text)?)
}

/// Prints what there is; a reader that has enough ends it quietly.
fn list(programs: &run::Programs) -> Result<()> {
    fn lines<T: ValueEnum>(title: &str) -> String {
        let values = T::value_variants().iter().filter_map(ValueEnum::to_possible_value);
        let help = |value: &PossibleValue| value.get_help().map(ToString::to_string).unwrap_or_default();
        let lines = values.map(|value| format!("  {:<16} {}\n", value.get_name(), help(&value)));
        format!("{title}:\n{}", lines.collect::<String>())
    }
    let programs: String = run::versions(programs).iter().map(run::version_line).collect();
    let all = [
        lines::<bench::Line>("lines of herd-lab bench"),
        lines::<figure::Name>("figures of herd-lab figure"),
        lines::<net::presets::Preset>("networks of herd-lab shell"),
        format!("programs found (others by their options, or install Debian's packages):\n{programs}"),
    ];
    match std::io::stdout().write_all(all.concat().as_bytes()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        done => Ok(done?),
    }
}

fn print_outcome(outcome: &impl Serialize) -> Result<()> {
    println!("{}", serde_json::to_string(outcome)?);
    Ok(())
}

fn run(command: Command) -> Result<ExitCode> {
    match command {
        Command::Check(options) => {
            return Ok(if net::check::run(&options)? { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        }
        Command::Histories(options) => {
            return Ok(if histories::run(&options)? { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        }
        Command::Faults(options) => {
            return Ok(if faults::run(&options)? { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        }
        Command::Failover(options) => {
            return Ok(if failover::run(&options)? { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        }
        Command::Evidence(options) => {
            return Ok(if faults::ledger::run(&options)? { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        }
        Command::Differ(options) => differ::run(&options)?,
        Command::Figure(options) => figure::run(options)?,
        Command::Shell { network, command } => return net::shell::run(network, &command),
        Command::On { host, command } => return net::shell::on(&host, &command),
        Command::Net { change } => net::shell::change(&change)?,
        Command::Bench(options) => bench::run(options)?,
        Command::List(programs) => list(&programs)?,
        Command::NullServer { proto, op, value_bytes, plain } => null::serve(proto, op, value_bytes, plain)?,
        Command::NullBulk { checked, plain } => null::serve_bulk(checked, plain)?,
        Command::Engine => print_outcome(&engine::run(read_specification()?)?)?,
        Command::Churn => print_outcome(&churn::run(&read_specification()?)?)?,
        Command::Storm => print_outcome(&storm::run(&read_specification()?)?)?,
        Command::Crowd => print_outcome(&crowd::run(&read_specification()?)?)?,
        Command::Holder(options) => holder::run(&options)?,
        Command::Awake => awake::run()?,
        Command::Relay => relay::run()?,
        Command::Bulk => print_outcome(&bulkrun::run(&read_specification()?)?)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn main() -> ExitCode {
    match run(Arguments::parse().command) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("herd-lab: {error}");
            if error.is_lacking() { ExitCode::from(LACKING) } else { ExitCode::FAILURE }
        }
    }
}
