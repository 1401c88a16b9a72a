//! herd: the one binary. Parses arguments and calls the libraries; what the words mean is in `args.rs`.

mod args;
mod copy;
mod exec;
mod exit;
mod list;
mod lock;
mod machine;
mod man;
mod node;
mod objects;
mod out;
mod progress;
mod show;
mod target;
mod values;

use args::{Args, Command};
use clap::{CommandFactory, Parser};
use exit::{Failure, Outcome};
use std::process::ExitCode;

/// Version and commit, as `--version` shows them.
const BUILD: &str = concat!(env!("CARGO_PKG_VERSION"), " (", env!("HERD_COMMIT"), ")");

fn main() -> ExitCode {
    let words = args::words();
    if let Some(failure) = args::not_in_version(&words) {
        return failure.report();
    }
    match run(Args::parse_from(words).command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

fn run(command: Command) -> Outcome {
    match command {
        Command::Node(options) => node::run(&options),
        Command::Put(options) => objects::put(&options),
        Command::Get(options) => objects::get(&options),
        Command::Rm(options) => objects::remove(&options),
        Command::Ls(options) => list::run(&options),
        Command::Stat(options) => show::stat(&options),
        Command::Cp(options) => copy::run(&options),
        Command::Collection(options) => show::collection(&options),
        Command::Exec(options) => exec::run(&options),
        Command::Lock(options) => lock::run(&options),
        Command::Ping(options) => objects::ping(&options),
        Command::Nodes(options) => show::nodes(&options),
        Command::Status(options) => show::status(&options),
        Command::Completion { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Args::command(), "herd", &mut script);
            out::print(script)
        }
        Command::Man => {
            let mut page = Vec::new();
            man::write(&mut page).map_err(Failure::local("man page"))?;
            out::print(page)
        }
    }
}
