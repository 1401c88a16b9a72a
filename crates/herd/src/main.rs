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

use args::{Args, CollectionCommand, Command, ControlCommand, GroupCommand, KeepArgs};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, Parser};
use exit::{Failure, Outcome};
use std::ffi::{OsStr, OsString};
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
    let done = match words.get(1).and_then(|verb| verb.to_str()) {
        Some(up::KEEPER) => keep(&words[1..]),
        _ => Args::try_parse_from(&words)
            .map_err(|error| usage(error, &words))
            .and_then(|args| run(args.command, literals)),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

/// As the process that `herd up` leaves behind.
fn keep(words: &[OsString]) -> Outcome {
    exit::begin("up");
    let options = KeepArgs::try_parse_from(words).map_err(|error| usage(error, words))?;
    up::keep(&options)
}

/// Prints the help or version that was asked for, or what is wrong with the command line.
fn usage(mut error: clap::Error, words: &[OsString]) -> Failure {
    let verb = words.get(1).map_or_else(|| OsStr::new(""), OsString::as_os_str);
    if let Some(tip) = tip(&error, verb, words) {
        error.remove(ContextKind::SuggestedSubcommand);
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    }
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

/// What to give in place of a command that other programs have, or of one that lacks a word.
fn tip(error: &clap::Error, verb: &OsStr, words: &[OsString]) -> Option<String> {
    let is_verb =
        |kind| error.get(kind).is_some_and(|word| *word == ContextValue::String(verb.to_string_lossy().into()));
    match error.kind() {
        ErrorKind::InvalidSubcommand if is_verb(ContextKind::InvalidSubcommand) => {
            let mut tips = args::ELSEWHERE.iter();
            tips.find(|(word, _)| verb == *word).map(|(_, tip)| (*tip).to_owned())
        }
        ErrorKind::MissingRequiredArgument if verb == "detach" => {
            // Whether that is all that is missing.
            let with_now = [&words[..2], &["--now".into()], &words[2..]].concat();
            let Command::Detach(options) = Args::try_parse_from(with_now).ok()?.command else { return None };
            let name = out::shown(options.detached.as_bytes()).into_owned();
            Some(format!("`--now` says that nothing is moved away first; `herd drain {name}` moves it"))
        }
        _ => None,
    }
}

/// The command's words, as errors speak of it.
fn name(command: &Command) -> &'static str {
    match command {
        Command::Node(_) => "node",
        Command::Up(_) => "up",
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
