//! herd: the one binary. Parses arguments and calls the libraries; what the words mean is in `args.rs`.

mod args;
mod control;
mod copy;
mod detach;
mod drain;
mod exec;
mod exit;
mod fsck;
mod group;
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
mod top;
mod up;
mod values;
mod view;
#[cfg(target_os = "linux")]
mod witness;

use args::{Args, CollectionCommand, Command, ControlCommand, GroupCommand};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, Parser};
use exit::{Failure, Outcome};
use std::ffi::OsStr;
use std::io::Write;
use std::process::ExitCode;

/// A write that several nodes keep makes a dozen small allocations at each; this one is the quickest at that of those
/// that were measured. Objects do not lie in it: the store has its own memory.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Version and commit, as `--version` shows them.
const BUILD: &str = concat!(env!("CARGO_PKG_VERSION"), " (", env!("HERD_COMMIT"), ")");

fn main() -> ExitCode {
    #[cfg(target_os = "linux")]
    if witness::is_called() {
        return witness::run();
    }
    let words = args::words();
    if let Some(failure) = args::not_in_version(&words) {
        return failure.report();
    }
    let literals = args::literals(&words);
    let verb = words.get(1).cloned().unwrap_or_default();
    match Args::try_parse_from(words).map_err(|error| usage(error, &verb)).and_then(|args| run(args.command, literals))
    {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

/// Prints the help or version that was asked for, or what is wrong with the command line.
fn usage(mut error: clap::Error, verb: &OsStr) -> Failure {
    // That an option could be meant as a value is seldom so, and noise elsewhere. Words of `exec` and `lock` may be.
    let takes_words = verb == "exec" || verb == "lock";
    if error.kind() == ErrorKind::UnknownArgument
        && !takes_words
        && let Some(ContextValue::StyledStrs(mut tips)) = error.remove(ContextKind::Suggested)
    {
        tips.retain(|tip| !tip.to_string().contains("as a value"));
        if !tips.is_empty() {
            error.insert(ContextKind::Suggested, ContextValue::StyledStrs(tips));
        }
    }
    match error.print().and_then(|()| std::io::stdout().flush()) {
        Ok(()) => Failure::new(error.exit_code() as u8, ""),
        Err(error) => out::failed(error),
    }
}

/// The command's words, as errors speak of it.
fn name(command: &Command) -> &'static str {
    match command {
        Command::Node(_) => "node",
        Command::Up(_) | Command::Keep(_) => "up",
        Command::Down(_) => "down",
        Command::Put(_) => "put",
        Command::Get(_) => "get",
        Command::Rm(_) => "rm",
        Command::Ls(_) => "ls",
        Command::Stat(_) => "stat",
        Command::Cp(_) => "cp",
        Command::Exec(_) => "exec",
        Command::Lock(_) => "lock",
        Command::Collection(options) => match options.command {
            CollectionCommand::Create { .. } => "collection create",
            CollectionCommand::Ls(_) => "collection ls",
            CollectionCommand::Rm { .. } => "collection rm",
        },
        Command::Ping(_) => "ping",
        Command::Nodes(_) => "nodes",
        Command::Status(_) => "status",
        Command::Group(options) => match options.command {
            GroupCommand::Ls(_) => "group ls",
            GroupCommand::Move(_) => "group move",
            GroupCommand::Recover(_) => "group recover",
        },
        Command::Drain(_) => "drain",
        Command::Control(options) => match options.command {
            ControlCommand::Show(_) => "control show",
            ControlCommand::Move(_) => "control move",
            ControlCommand::Migrate(_) => "control migrate",
        },
        Command::Detach(_) => "detach",
        Command::Fsck(_) => "fsck",
        Command::Top(_) => "top",
        Command::Completion { .. } => "completion",
        Command::Man => "man",
    }
}

/// `literals`: how many of the last words are values as they stand, whatever they look like.
fn run(command: Command, literals: usize) -> Outcome {
    exit::begin(name(&command));
    match command {
        Command::Node(options) => node::run(&options),
        Command::Up(options) => up::up(&options),
        Command::Down(options) => up::down(&options),
        Command::Keep(options) => up::keep(&options),
        Command::Put(options) => objects::put(&options),
        Command::Get(options) => objects::get(&options),
        Command::Rm(options) => objects::remove(&options),
        Command::Ls(options) => list::run(&options),
        Command::Stat(options) => show::stat(&options),
        Command::Cp(options) => copy::run(&options),
        Command::Collection(options) => show::collection(&options),
        Command::Exec(options) => exec::run(&options, literals),
        Command::Lock(options) => lock::run(&options),
        Command::Ping(options) => objects::ping(&options),
        Command::Nodes(options) => view::nodes(&options),
        Command::Status(options) => view::status(&options),
        Command::Group(options) => view::group(&options.command),
        Command::Drain(options) => drain::run(&options),
        Command::Control(options) => control::run(&options.command),
        Command::Detach(options) => detach::detach(&options),
        Command::Fsck(options) => fsck::run(&options),
        Command::Top(options) => top::run(&options),
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
