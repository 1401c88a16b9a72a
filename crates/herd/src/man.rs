//! The man page: one page, with a section for each command.

use crate::args::Args;
use clap::{Command, CommandFactory};
use clap_mangen::Man;
use std::io::{self, Write};

/// Writes the page to `out`.
pub(crate) fn write(out: &mut dyn Write) -> io::Result<()> {
    let mut herd = Args::command();
    herd.build();
    let man = Man::new(herd.clone()).manual("Herd");
    man.render_title(out)?;
    man.render_name_section(out)?;
    man.render_synopsis_section(out)?;
    man.render_description_section(out)?;
    man.render_extra_section(out)?;
    herd.get_subcommands().try_for_each(|command| section(command, out))
}

/// The section of a command, or those of the commands below it.
fn section(command: &Command, out: &mut dyn Write) -> io::Result<()> {
    if command.is_hide_set() || command.get_name() == "help" {
        return Ok(());
    }
    if command.has_subcommands() {
        return command.get_subcommands().try_for_each(|inner| section(inner, out));
    }
    let name = command.get_bin_name().unwrap_or(command.get_name());
    writeln!(out, ".SH \"{}\"", name.to_uppercase())?;
    let man = Man::new(command.clone());
    let mut text = Vec::new();
    man.render_description_section(&mut text)?;
    man.render_synopsis_section(&mut text)?;
    man.render_options_section(&mut text)?;
    man.render_extra_section(&mut text)?;
    for line in String::from_utf8_lossy(&text).lines() {
        match line.strip_prefix(".SH ") {
            Some("DESCRIPTION") => {}
            Some(title) => writeln!(out, ".SS {title}")?,
            None => writeln!(out, "{line}")?,
        }
    }
    Ok(())
}
