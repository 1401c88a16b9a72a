//! herd: the one binary. Parses arguments and calls the libraries; what the words mean is in `args.rs`.

mod args;
mod copy;
mod exit;
mod man;
mod node;
mod objects;

use args::{Args, Command};
use clap::{CommandFactory, Parser};
use exit::{Failure, Outcome};
use std::process::ExitCode;

/// Version and commit, as `--version` shows them.
const BUILD: &str = concat!(env!("CARGO_PKG_VERSION"), " (", env!("HERD_COMMIT"), ")");

fn main() -> ExitCode {
    if let Some(failure) = args::not_in_version() {
        return failure.report();
    }
    match run(Args::parse().command) {
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
        Command::Ls(options) => objects::list(&options),
        Command::Stat(options) => objects::stat(&options),
        Command::Cp(options) => copy::run(&options),
        Command::Collection(options) => objects::collection(&options),
        Command::Nodes(options) => objects::nodes(&options),
        Command::Status(options) => objects::status(&options),
        Command::Completion { shell } => {
            clap_complete::generate(shell, &mut Args::command(), "herd", &mut std::io::stdout());
            Ok(())
        }
        Command::Man => man::write(&mut std::io::stdout()).map_err(Failure::local("man page")),
    }
}
