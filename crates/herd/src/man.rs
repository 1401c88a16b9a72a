//! The man page: one page, with a section for each command.

use crate::args::Args;
use clap::{Command, CommandFactory};
use clap_mangen::Man;
use std::io::{self, Write};

const DESCRIPTION: &str = "herd node runs a node, which holds objects in memory and serves them to the other \
commands, over HTTP and to memcached clients. A KEY is NAME (in collection 'default') or COLLECTION/NAME.";

const ENVIRONMENT: [(&str, &str); 5] = [
    ("HERD_NODE", "Nodes to ask, HOST:PORT[,HOST:PORT..], tried in turn, where --node does not say."),
    ("HERD_LOCK_TOKEN", "Set by herd lock for the command it runs: the lock's token, to be given with --token."),
    (
        "HERD_SECRET",
        "32 hex digits, the same at all nodes of a herd; needless on loopback, if you trust all users there.",
    ),
    ("HERD_ETCD_FORCE", "1 accepts an etcd of a version that may answer reads with old data: for trials only."),
    ("HERD_DEBUG_TIME", "1 enables memcached's command debugtime on a node, for tests."),
];

const EXIT_STATUS: [(&str, &str); 6] = [
    ("0", "Done; an empty listing too."),
    ("1", "What was asked is not so: no such object, condition failed; lock held or lost; some files of cp failed."),
    ("2", "Bad usage, or a local file fails."),
    ("3", "The herd can't be reached, or refuses: full, quota, too large, not allowed."),
    ("4", "Outcome unknown: it was sent, and no answer came."),
    ("130", "Ctrl-C."),
];

const EXIT_STATUS_OF_LOCK: &str = "herd lock ends with the exit status of CMD, 128 + N if signal N ended it; \
with 1 if others hold the lock, or if it was lost.";

/// Writes the page to `out`.
pub(crate) fn write(out: &mut dyn Write) -> io::Result<()> {
    let mut herd = Args::command();
    herd.build();
    let man = Man::new(herd.clone()).manual("Herd");
    man.render_title(out)?;
    man.render_name_section(out)?;
    man.render_synopsis_section(out)?;
    writeln!(out, ".SH DESCRIPTION\n{}", escaped(DESCRIPTION))?;
    herd.get_subcommands().try_for_each(|command| section(command, out))?;
    list("ENVIRONMENT", &ENVIRONMENT, out)?;
    list("EXIT STATUS", &EXIT_STATUS, out)?;
    writeln!(out, ".PP\n{}", escaped(EXIT_STATUS_OF_LOCK))?;
    writeln!(out, ".SH EXAMPLES")?;
    // What else stands there is in the two sections above.
    examples(&after_help(&herd).1, out)
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
    // clap's own line of usage: that of its manual pages leaves out `--` and what repeats.
    let usage = command.clone().render_usage().to_string();
    writeln!(text, ".SH SYNOPSIS\n\\fB{}\\fR", escaped(usage.trim_start_matches("Usage: ")))?;
    man.render_options_section(&mut text)?;
    for line in String::from_utf8_lossy(&text).lines() {
        match line.strip_prefix(".SH ") {
            Some("DESCRIPTION") => {}
            Some(title) => writeln!(out, ".SS {title}")?,
            None => writeln!(out, "{line}")?,
        }
    }
    let (more, lines) = after_help(command);
    if !more.is_empty() {
        writeln!(out, ".SS NOTES")?;
        notes(&more, out)?;
    }
    if lines.is_empty() {
        return Ok(());
    }
    writeln!(out, ".SS EXAMPLES")?;
    examples(&lines, out)
}

/// What stands behind the options of a command's help: a text, and examples up to the next empty line.
fn after_help(command: &Command) -> (String, String) {
    let text = command.get_after_help().map_or_else(String::new, ToString::to_string);
    let (more, rest) = text.split_once("Example").unwrap_or((&text, ""));
    let lines = rest.split_once('\n').map_or("", |(_, lines)| lines);
    let lines = lines.split("\n\n").next().unwrap_or("");
    (more.trim().to_string(), lines.to_string())
}

/// Text, in which what is indented is a table, and stays as it is.
fn notes(text: &str, out: &mut dyn Write) -> io::Result<()> {
    let mut was_table = false;
    for line in text.lines() {
        let is_table = line.starts_with(' ');
        if is_table != was_table {
            writeln!(out, "{}", if is_table { ".nf" } else { ".fi" })?;
        }
        was_table = is_table;
        writeln!(out, "{}", escaped(line))?;
    }
    if was_table { writeln!(out, ".fi") } else { Ok(()) }
}

fn examples(lines: &str, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, ".nf")?;
    lines.lines().try_for_each(|line| writeln!(out, "{}", escaped(line)))?;
    writeln!(out, ".fi")
}

fn list(title: &str, entries: &[(&str, &str)], out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, ".SH \"{title}\"")?;
    entries.iter().try_for_each(|(name, text)| writeln!(out, ".TP\n\\fB{}\\fR\n{}", escaped(name), escaped(text)))
}

/// A line as text, whatever a formatter would read in it.
fn escaped(line: &str) -> String {
    let text = line.replace('\\', "\\\\").replace('-', "\\-");
    if text.starts_with(['.', '\'']) { format!("\\&{text}") } else { text }
}
