//! `herd-fuzz`: fuzzes parsers and sessions with nothing but a stable compiler.
//!
//! Seeded mutations of the corpus; an input that reaches a new set of outcomes is mutated further. A panic, a hang or
//! growth is a finding: its input is saved, the command that replays it is printed, and the exit status is 1.

mod alloc;
mod args;
mod drive;
mod mutate;
mod watch;

use args::{Args, Task};
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: alloc::Counting = alloc::Counting;

fn main() -> ExitCode {
    let result = args::parse(std::env::args().skip(1)).and_then(|args| carry_out(&args));
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(text) => {
            eprintln!("herd-fuzz: {text}");
            ExitCode::from(1)
        }
    }
}

fn carry_out(args: &Args) -> Result<(), String> {
    match &args.task {
        Task::Help => print!("{}", args::HELP),
        Task::List => args.targets.iter().for_each(|target| println!("{}", target.name)),
        Task::Replay(path) => return drive::replay(args.targets[0], path),
        Task::Cook(dir) => {
            for target in &args.targets {
                drive::cook(target, dir)?;
            }
        }
        Task::Distil(dir) => {
            for target in &args.targets {
                println!("{}", drive::fuzz(target, args.seconds, args.seed, Some(dir))?);
            }
        }
        Task::Fuzz => {
            for target in &args.targets {
                println!("{}", drive::fuzz(target, args.seconds, args.seed, None)?);
            }
        }
    }
    Ok(())
}
