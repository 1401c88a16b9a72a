//! The project's own checks: `cargo xtask tidy`, `cargo xtask test`, `cargo xtask tour`.

mod links;
#[cfg(test)]
mod scripts_tests;
mod tests_all;
mod tidy;
mod tour;

use std::process::ExitCode;

fn main() -> ExitCode {
    let word = std::env::args().nth(1);
    let result = match word.as_deref() {
        Some("tidy") => tidy::run(),
        Some("test") => tests_all::run(),
        Some("tour") => tour::run(),
        _ => Err("use: cargo xtask tidy | test | tour".to_string()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(text) => {
            eprintln!("{text}");
            ExitCode::from(1)
        }
    }
}
