//! How far a transfer is, or something else that takes long, on stderr while that is a terminal.

use crate::out;
use herd_core::size;
use indicatif::{HumanDuration, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use std::io::{Read, Write};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Before that nothing sensible can be said of the time left.
const GUESS_AFTER: Duration = Duration::from_secs(1);
/// What is done sooner shows no bar.
const SHOW_EVERY: Duration = Duration::from_millis(200);

/// A transfer of some files; shared by those that do it.
pub(crate) struct Progress {
    bar: ProgressBar,
    begin: Instant,
    files: u64,
    files_done: AtomicU64,
}

impl Progress {
    /// Of `files` files with `bytes` bytes in all; 0 bytes: nobody knows.
    pub(crate) fn new(quiet: bool, files: u64, bytes: u64) -> Self {
        let template = match (files, bytes) {
            (0..=1, 0) => "{bytes}, {speed}",
            (0..=1, _) => "{bar:30} {bytes} of {total_bytes}, {speed}, {left}",
            _ => "{bar:30} {msg} files, {bytes} of {total_bytes}, {speed}, {left}",
        };
        let style = ProgressStyle::with_template(template).expect("the template is valid");
        let style = style.with_key("left", left).with_key("speed", speed);
        let target = if quiet { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr_with_hz(5) };
        let bar = ProgressBar::with_draw_target((bytes > 0).then_some(bytes), target).with_style(style);
        if !bar.is_hidden() {
            bar.enable_steady_tick(SHOW_EVERY);
        }
        let progress = Self { bar, begin: Instant::now(), files, files_done: AtomicU64::new(0) };
        progress.show_files(0);
        progress
    }

    fn show_files(&self, done: u64) {
        if !self.bar.is_hidden() && self.files > 1 {
            self.bar.set_message(format!("{done}/{}", self.files));
        }
    }

    /// One more file is done.
    pub(crate) fn file(&self) {
        self.show_files(self.files_done.fetch_add(1, Relaxed) + 1);
    }

    /// So many more bytes are done.
    pub(crate) fn bytes(&self, bytes: u64) {
        self.bar.inc(bytes);
    }

    /// `source`, whose bytes count.
    pub(crate) fn reader<R: Read>(&self, source: R) -> impl Read + use<R> {
        self.bar.wrap_read(source)
    }

    /// `sink`, whose bytes count.
    pub(crate) fn writer<W: Write>(&self, sink: W) -> impl Write + use<W> {
        self.bar.wrap_write(sink)
    }

    /// One line on stderr, above the bar.
    pub(crate) fn tell(&self, line: &str) {
        self.bar.suspend(|| out::tell(line));
    }

    /// Ends it; how long it took, and how fast that is for `bytes` bytes.
    pub(crate) fn finish(&self, bytes: u64) -> String {
        self.bar.finish_and_clear();
        let time = self.begin.elapsed();
        format!("{:.1} s, {}/s", time.as_secs_f64(), size::show(rate(bytes, time)))
    }
}

/// How many of some things are done, while stderr is a terminal.
pub(crate) struct Steps {
    bar: ProgressBar,
    what: &'static str,
}

impl Steps {
    /// Of things that are called so.
    pub(crate) fn new(what: &'static str) -> Self {
        let style = ProgressStyle::with_template("{bar:30} {pos} of {len} {msg}").expect("the template is valid");
        let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr_with_hz(5)).with_style(style);
        Self { bar: bar.with_message(what), what }
    }

    /// So many of them are done.
    pub(crate) fn at(&self, done: u64, all: u64) {
        self.bar.set_length(all);
        self.bar.set_position(done);
    }

    /// What else there is to say of what is not done.
    pub(crate) fn waits(&self, why: &str) {
        self.bar.set_message(format!("{}; {why}", self.what));
    }

    /// One line on stderr, above them.
    pub(crate) fn tell(&self, line: &str) {
        self.bar.suspend(|| out::tell(line));
    }
}

impl Drop for Steps {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

fn rate(bytes: u64, time: Duration) -> u64 {
    (bytes as f64 / time.as_secs_f64().max(1e-3)) as u64
}

fn speed(state: &ProgressState, out: &mut dyn std::fmt::Write) {
    write!(out, "{}/s", size::show(rate(state.pos(), state.elapsed()))).ok();
}

fn left(state: &ProgressState, out: &mut dyn std::fmt::Write) {
    let done = state.pos();
    let Some(len) = state.len().filter(|_| done > 0 && state.elapsed() > GUESS_AFTER) else {
        return;
    };
    let left = state.elapsed().mul_f64(len.saturating_sub(done) as f64 / done as f64);
    write!(out, "{:#} left", HumanDuration(left)).ok();
}
