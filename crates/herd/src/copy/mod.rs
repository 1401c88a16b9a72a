//! `herd cp`: files and trees into and out of the herd.
//!
//! A tree `DIR` under `herd:KEY` is one object for each entry, named KEY/relative/path: a file's bytes with mode and
//! mtime as attributes; a link as an empty object with its target; a directory as an empty object whose name ends in
//! `/`. What is equal in size, mtime and mode is left as it is. A file that fails is told and the others go on; what
//! would fail for all others too ends the copy at once.

mod download;
mod upload;

use crate::args::CpArgs;
use crate::exit::{Failure, NOT_SO, Outcome, USAGE};
use crate::objects::client_of;
use crate::progress::Progress;
use crate::{out, target};
use herd_client::blocking::Client;
use herd_client::{Attributes, Stat};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

const TYPE_BITS: u32 = 0o170_000;
const FILE: u32 = 0o100_000;
const DIRECTORY: u32 = 0o040_000;

/// Up to this size an object goes with its attributes in one request.
const SMALL_BYTES: u64 = 1 << 20;

pub(crate) fn run(args: &CpArgs) -> Outcome {
    let (to, from) = args.paths.split_last().expect("the parser asks for two");
    let client = client_of(&args.herd, args.token)?;
    target::prepare("interrupted; the same command again copies the rest").map_err(Failure::local("signals"))?;
    let keys: Vec<&[u8]> = from.iter().filter_map(|path| herd_key(path)).collect();
    match herd_key(to) {
        Some(key) if keys.is_empty() => upload::run(args, &client, from, key),
        None if keys.len() == from.len() => download::run(args, &client, &keys, Path::new(to)),
        None if keys.is_empty() => {
            Err(Failure::new(USAGE, "nothing here is in the herd: write what to copy, or where to, as herd:KEY"))
        }
        _ => Err(Failure::new(USAGE, "one side is written herd:KEY, the other is a path on this machine")),
    }
}

/// The key of what is written `herd:KEY`.
fn herd_key(word: &OsString) -> Option<&[u8]> {
    word.as_bytes().strip_prefix(b"herd:")
}

/// Whether a path means standard input or output.
fn is_stream(path: &OsStr) -> bool {
    path == "-"
}

/// The key prefix of a tree: `COLLECTION/` or `COLLECTION/PATH/`; a bare word is a collection.
pub(crate) fn prefix_of(key: &[u8]) -> Vec<u8> {
    match key {
        b"" => b"default/".to_vec(),
        key if key.ends_with(b"/") => key.to_vec(),
        key => [key, b"/"].concat(),
    }
}

/// What comes behind the last slash of a key.
fn last_part(key: &[u8]) -> &[u8] {
    key.rsplit(|byte| *byte == b'/').next().unwrap_or(key)
}

/// What all workers of a copy share.
struct Work<'a> {
    args: &'a CpArgs,
    client: &'a Client,
    progress: Progress,
    copied: AtomicU64,
    unchanged: AtomicU64,
    bytes: AtomicU64,
    failed: AtomicU64,
    /// All there are.
    files: u64,
    /// Set once nothing more is to be begun.
    stopped: AtomicBool,
    why: Mutex<Option<Failure>>,
}

/// What became of one entry.
enum Done {
    Copied(u64),
    Unchanged,
    /// A directory: made, but not counted, in or out.
    Made,
}

impl<'a> Work<'a> {
    fn new(args: &'a CpArgs, client: &'a Client, files: u64, bytes: u64) -> Self {
        Self {
            args,
            client,
            progress: Progress::new(args.quiet || args.dry_run, files, bytes),
            copied: AtomicU64::new(0),
            unchanged: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            files,
            stopped: AtomicBool::new(false),
            why: Mutex::default(),
        }
    }

    /// Does all jobs, several side by side; `name` is what a job is told as.
    fn run<J: Sync>(
        &self,
        jobs: &[J],
        name: impl Fn(&J) -> &[u8] + Sync,
        one: impl Fn(&J) -> Result<Done, Failure> + Sync,
    ) {
        let next = AtomicUsize::new(0);
        let threads = usize::from(self.args.jobs).min(jobs.len());
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    while !self.stopped.load(Relaxed)
                        && let Some(job) = jobs.get(next.fetch_add(1, Relaxed))
                    {
                        self.note(name(job), one(job));
                    }
                });
            }
        });
    }

    fn note(&self, name: &[u8], done: Result<Done, Failure>) {
        match done {
            Ok(Done::Made) => {}
            Ok(Done::Unchanged) => {
                self.unchanged.fetch_add(1, Relaxed);
                self.progress.file();
            }
            Ok(Done::Copied(bytes)) => {
                self.copied.fetch_add(1, Relaxed);
                self.bytes.fetch_add(bytes, Relaxed);
                self.progress.file();
                if self.args.verbose || self.args.dry_run {
                    let word = if self.args.dry_run { "would copy" } else { "copied" };
                    self.progress.tell(&format!("{word} {}", out::shown(name)));
                }
            }
            Err(failure) if failure.fatal => self.stop(name, failure),
            Err(failure) => self.fail(name, &failure.text),
        }
    }

    /// Tells of one entry that failed.
    fn fail(&self, name: &[u8], text: &str) {
        self.failed.fetch_add(1, Relaxed);
        self.progress.tell(&format!("herd: {}", about(name, text)));
    }

    /// Ends the copy; the first reason is the one told. What others under way say then counts as not copied.
    fn stop(&self, name: &[u8], failure: Failure) {
        self.stopped.store(true, Relaxed);
        let mut why = self.why.lock().unwrap_or_else(PoisonError::into_inner);
        why.get_or_insert(Failure { text: about(name, &failure.text), ..failure });
    }

    /// The summary; a failure if anything failed.
    fn finish(self) -> Outcome {
        let rate = self.progress.finish(self.bytes.load(Relaxed));
        let (copied, failed) = (self.copied.into_inner(), self.failed.into_inner());
        let why = self.why.into_inner().unwrap_or_else(PoisonError::into_inner);
        if why.as_ref().is_some_and(Failure::is_quiet) {
            return Err(Failure::quiet());
        }
        if !self.args.quiet {
            let size = herd_core::size::show(self.bytes.into_inner());
            let word = if self.args.dry_run { "would copy" } else { "copied" };
            let unchanged = self.unchanged.into_inner();
            let rest = match self.files.saturating_sub(copied + unchanged + failed) {
                files if files > 0 && why.is_some() => format!(", {files} not copied"),
                _ => String::new(),
            };
            let rate = if self.args.dry_run { String::new() } else { format!("; {rate}") };
            out::tell(format!("{word} {copied} ({size}), {unchanged} unchanged, {failed} failed{rest}{rate}"));
        }
        match why {
            Some(failure) => Err(Failure { text: format!("{}; the copy ends here", failure.text), ..failure }),
            None if failed == 0 => Ok(()),
            None => Err(Failure::new(NOT_SO, format!("{failed} could not be copied"))),
        }
    }
}

/// An error of one entry. What the client says tells the object already.
fn about(name: &[u8], text: &str) -> String {
    let name = out::shown(name);
    // Nothing is to be told of a reader that has enough.
    if text.is_empty() || text.contains(&*name) { text.into() } else { format!("{name}: {text}") }
}

/// The failure of something on this machine, where the entry is told elsewhere.
fn local(error: io::Error) -> Failure {
    Failure::io(error)
}

/// Whether an object is what is here, as far as size, mode and time tell. Mode bits outside `mode_bits` don't count.
fn is_equal(stat: &Stat, size_bytes: u64, here: &Attributes, mode_bits: u32) -> bool {
    let there = &stat.attributes;
    let mode = |attributes: &Attributes| attributes.mode.map(|mode| mode & (TYPE_BITS | mode_bits));
    stat.size_bytes == size_bytes
        && (mode(there), there.mtime_ns, &there.link) == (mode(here), here.mtime_ns, &here.link)
}
