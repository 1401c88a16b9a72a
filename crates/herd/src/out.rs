//! What goes to stdout and stderr. A reader that went away ends a command quietly, and no name from a herd reaches a
//! terminal with bytes that it would obey.

use crate::exit::{Failure, Outcome};
use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};

/// Writes to stdout, all of it or an error.
pub(crate) fn print(text: impl AsRef<[u8]>) -> Outcome {
    let mut out = io::stdout().lock();
    out.write_all(text.as_ref()).and_then(|()| out.flush()).map_err(failed)
}

/// The failure of a write to stdout: none to speak of if its reader has enough.
pub(crate) fn failed(error: io::Error) -> Failure {
    if error.kind() == io::ErrorKind::BrokenPipe { Failure::quiet() } else { Failure::local("stdout")(error) }
}

/// One line on stderr. Where that can't be written, nobody can be told.
pub(crate) fn tell(text: impl AsRef<str>) {
    writeln!(io::stderr().lock(), "{}", one_line(text.as_ref())).ok();
}

/// What a signal cut short: on a terminal in place of the progress bar.
pub(crate) fn interrupted(hint: &str) {
    let mut out = io::stderr().lock();
    if out.is_terminal() {
        out.write_all(b"\r\x1b[K").ok();
    }
    if !hint.is_empty() {
        writeln!(out, "herd: {hint}").ok();
    }
}

/// Whether stdout is a terminal.
pub(crate) fn is_terminal() -> bool {
    io::stdout().is_terminal()
}

/// A name as people may see it: what is not printable, and the backslash, as escapes.
pub(crate) fn shown(name: &[u8]) -> Cow<'_, str> {
    match std::str::from_utf8(name) {
        Ok(text) if !text.chars().any(|c| c == '\\' || is_unsafe(c)) => text.into(),
        _ => escaped(name).into(),
    }
}

fn escaped(name: &[u8]) -> String {
    let mut out = String::with_capacity(name.len() + 8);
    for chunk in name.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\\' => out.push_str("\\\\"),
                c => push(&mut out, c),
            }
        }
        for byte in chunk.invalid() {
            write!(out, "\\x{byte:02x}").expect("a string takes all");
        }
    }
    out
}

/// A name as a line of a listing: for a terminal as people may see it, else its bytes. One that holds a line's end is
/// never given as bytes: it would look like two.
pub(crate) fn listed(name: &[u8], terminal: bool) -> Cow<'_, [u8]> {
    if !terminal && !name.contains(&b'\n') {
        return name.into();
    }
    match shown(name) {
        Cow::Borrowed(text) => text.as_bytes().into(),
        Cow::Owned(text) => text.into_bytes().into(),
    }
}

/// `text` without what ends a line or moves a cursor.
fn one_line(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_unsafe) {
        return text.into();
    }
    let mut out = String::with_capacity(text.len() + 8);
    text.chars().for_each(|c| push(&mut out, c));
    out.into()
}

fn push(out: &mut String, c: char) {
    match c {
        '\n' => out.push_str("\\n"),
        '\r' => out.push_str("\\r"),
        '\t' => out.push_str("\\t"),
        c if c.is_ascii() && is_unsafe(c) => write!(out, "\\x{:02x}", c as u32).expect("a string takes all"),
        c if is_unsafe(c) => write!(out, "\\u{{{:x}}}", c as u32).expect("a string takes all"),
        c => out.push(c),
    }
}

/// Control characters, and those that change the direction of a line.
fn is_unsafe(c: char) -> bool {
    c.is_control() || matches!(c, '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_can_not_move_the_cursor_nor_end_the_line() {
        for (name, seen) in [
            (&b"plain \xc3\xa4"[..], "plain \u{e4}"),
            (b"\x1b[2Jx", "\\x1b[2Jx"),
            (b"a\nb\t\r", "a\\nb\\t\\r"),
            (b"\xff\xfe", "\\xff\\xfe"),
            (b"back\\slash", "back\\\\slash"),
            ("\u{9b}2J\u{202e}".as_bytes(), "\\u{9b}2J\\u{202e}"),
        ] {
            assert_eq!(shown(name), seen);
        }
    }

    #[test]
    fn a_pipe_gets_the_bytes_unless_they_would_look_like_two_names() {
        assert_eq!(&*listed(b"\xff\x1b\\", false), b"\xff\x1b\\");
        assert_eq!(&*listed(b"a\nb", false), b"a\\nb");
        assert_eq!(&*listed(b"\xff", true), b"\\xff");
    }

    #[test]
    fn what_is_told_is_one_line() {
        assert_eq!(one_line("no 'a\nb\x1b' \\ here"), "no 'a\\nb\\x1b' \\ here");
    }
}
