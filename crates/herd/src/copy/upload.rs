//! Into the herd. A path given as argument is followed if it is a link, as `cp` does; with `-r` a link is copied as
//! one, unless a slash behind it says to follow it. Links within a tree are always copied as links.

use super::{Done, SMALL_BYTES, Work, is_equal, is_stream, last_part, local, prefix_of};
use crate::args::CpArgs;
use crate::exit::{Failure, Outcome, USAGE};
use crate::objects::namesake;
use crate::out;
use herd_client::blocking::Client;
use herd_client::{Attributes, ErrorKind, PutOptions};
use rustix::fs::{CWD, Mode, OFlags, openat};
use std::ffi::OsString;
use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// One thing to copy.
struct Job {
    key: Vec<u8>,
    path: PathBuf,
    kind: Kind,
    size_bytes: u64,
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    /// A file; `follow`: its name may be a link, as the user wrote it.
    File { follow: bool },
    /// A link or a directory: all there is to it is attributes.
    Empty,
    /// A pipe, a device or standard input: read to its end.
    Stream,
}

/// What a walk finds.
#[derive(Default)]
struct Plan {
    jobs: Vec<Job>,
    lost: Vec<(PathBuf, String)>,
}

pub(super) fn run(args: &CpArgs, client: &Client, from: &[OsString], key: &[u8]) -> Outcome {
    let mut plan = Plan::default();
    for path in from {
        // Several go into one place, each under its own name.
        let key = if from.len() > 1 { prefix_of(key) } else { key.to_vec() };
        plan.source(args, Path::new(path), key, from.len() > 1)?;
    }
    let files = plan.jobs.iter().filter(|job| !job.key.ends_with(b"/")).count() as u64;
    let work =
        Work::new(args, client, files + plan.lost.len() as u64, plan.jobs.iter().map(|job| job.size_bytes).sum());
    for (path, text) in &plan.lost {
        work.fail(path.as_os_str().as_bytes(), text);
    }
    if let ([job], false) = (&plan.jobs[..], args.quiet)
        && let Some(name) = namesake(client, &job.key)
    {
        out::tell(format!(
            "herd: '{name}' is an object in collection 'default' here; collection '{name}' is herd:{name}/"
        ));
    }
    work.run(&plan.jobs, |job| job.path.as_os_str().as_bytes(), |job| one(&work, job));
    work.finish()
}

impl Plan {
    /// What one argument stands for.
    fn source(&mut self, args: &CpArgs, path: &Path, key: Vec<u8>, below: bool) -> Result<(), Failure> {
        if is_stream(path.as_os_str()) {
            if last_part(&key).is_empty() {
                return Err(Failure::new(USAGE, "standard input has no name: write the whole key behind herd:"));
            }
            self.jobs.push(Job { key, path: path.into(), kind: Kind::Stream, size_bytes: 0 });
            return Ok(());
        }
        let meta = if args.recursive { fs::symlink_metadata(path) } else { fs::metadata(path) };
        let meta = meta.map_err(Failure::local(path.display()))?;
        if meta.is_dir() {
            return self.tree(args, path, &key, below);
        }
        let kind = match meta.file_type() {
            kind if kind.is_file() => Kind::File { follow: true },
            kind if kind.is_symlink() => Kind::Empty,
            _ => Kind::Stream,
        };
        let size_bytes = if kind == Kind::Empty { 0 } else { meta.len() };
        self.jobs.push(Job { key: file_key(key, path), path: path.into(), kind, size_bytes });
        Ok(())
    }

    fn tree(&mut self, args: &CpArgs, path: &Path, key: &[u8], below: bool) -> Result<(), Failure> {
        if !args.recursive {
            return Err(Failure::new(USAGE, format!("{} is a directory: add -r", path.display())));
        }
        let mut prefix = prefix_of(key);
        if below && let Some(name) = path.file_name() {
            prefix.extend_from_slice(name.as_bytes());
            prefix.push(b'/');
            self.jobs.push(Job { key: prefix.clone(), path: path.into(), kind: Kind::Empty, size_bytes: 0 });
        }
        self.walk(path, &prefix);
        Ok(())
    }

    fn walk(&mut self, dir: &Path, key: &[u8]) {
        let entries = match fs::read_dir(dir) {
            Ok(entries) => entries,
            Err(error) => return self.lost.push((dir.into(), Failure::io(error).text)),
        };
        for entry in entries {
            match entry.and_then(|entry| Ok((entry.path(), entry.metadata()?))) {
                Ok((path, meta)) => self.entry(path, &meta, key),
                Err(error) => self.lost.push((dir.into(), Failure::io(error).text)),
            }
        }
    }

    fn entry(&mut self, path: PathBuf, meta: &Metadata, key: &[u8]) {
        let mut key = [key, path.file_name().unwrap_or_default().as_bytes()].concat();
        if meta.is_dir() {
            key.push(b'/');
            self.jobs.push(Job { key: key.clone(), path: path.clone(), kind: Kind::Empty, size_bytes: 0 });
            self.walk(&path, &key);
        } else if meta.is_file() {
            self.jobs.push(Job { key, path, kind: Kind::File { follow: false }, size_bytes: meta.len() });
        } else if meta.is_symlink() {
            self.jobs.push(Job { key, path, kind: Kind::Empty, size_bytes: 0 });
        } else {
            self.lost.push((path, "is neither a file, a directory nor a link".into()));
        }
    }
}

/// The key of a single file; a key that ends in a slash takes the file's name.
fn file_key(mut key: Vec<u8>, path: &Path) -> Vec<u8> {
    if last_part(&key).is_empty() {
        key.extend_from_slice(path.file_name().unwrap_or_default().as_bytes());
    }
    key
}

fn attributes_of(path: &Path, meta: &Metadata) -> io::Result<Attributes> {
    let link = if meta.is_symlink() { Some(fs::read_link(path)?.as_os_str().as_bytes().to_vec()) } else { None };
    let mtime_ns = meta.mtime().saturating_mul(1_000_000_000).saturating_add(meta.mtime_nsec());
    Ok(Attributes { mode: Some(meta.mode()), mtime_ns: Some(mtime_ns), link, ..Attributes::default() })
}

fn one(work: &Work<'_>, job: &Job) -> Result<Done, Failure> {
    match job.kind {
        Kind::File { follow } => file(work, job, follow),
        Kind::Empty => empty(work, job),
        Kind::Stream => stream(work, job),
    }
}

fn file(work: &Work<'_>, job: &Job, follow: bool) -> Result<Done, Failure> {
    // Should it have become a pipe or a link meanwhile, nothing waits and nothing is followed.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let flags = if follow { flags } else { flags | OFlags::NOFOLLOW };
    let mut file: File = openat(CWD, &job.path, flags, Mode::empty()).map_err(|error| local(error.into()))?.into();
    let meta = file.metadata().map_err(local)?;
    if !meta.is_file() {
        return Err(Failure::new(USAGE, "is a file no more"));
    }
    let attributes = attributes_of(&job.path, &meta).map_err(local)?;
    if is_there(work, job, meta.len(), &attributes)? {
        work.progress.bytes(job.size_bytes);
        return Ok(Done::Unchanged);
    }
    if work.args.dry_run {
        return Ok(Done::Copied(meta.len()));
    }
    let options = PutOptions { attributes: Some(attributes), ..PutOptions::default() };
    if meta.len() > SMALL_BYTES {
        work.client.put_from(&job.key, &mut work.progress.reader(&mut file), Some(meta.len()), &options)?;
        return Ok(Done::Copied(meta.len()));
    }
    let mut bytes = Vec::with_capacity(meta.len() as usize);
    file.take(SMALL_BYTES + 1).read_to_end(&mut bytes).map_err(local)?;
    work.client.put(&job.key, &bytes, &options)?;
    work.progress.bytes(bytes.len() as u64);
    Ok(Done::Copied(bytes.len() as u64))
}

fn empty(work: &Work<'_>, job: &Job) -> Result<Done, Failure> {
    let meta = fs::symlink_metadata(&job.path).map_err(local)?;
    let attributes = attributes_of(&job.path, &meta).map_err(local)?;
    let is_directory = job.key.ends_with(b"/");
    if is_there(work, job, 0, &attributes)? {
        return Ok(if is_directory { Done::Made } else { Done::Unchanged });
    }
    if !work.args.dry_run {
        let options = PutOptions { attributes: Some(attributes), ..PutOptions::default() };
        work.client.put(&job.key, &[], &options)?;
    }
    Ok(if is_directory { Done::Made } else { Done::Copied(0) })
}

fn stream(work: &Work<'_>, job: &Job) -> Result<Done, Failure> {
    if work.args.dry_run {
        return Ok(Done::Copied(0));
    }
    let mut counted = Counted { bytes: 0 };
    if is_stream(job.path.as_os_str()) {
        counted.put(work, job, io::stdin().lock())?;
    } else {
        counted.put(work, job, File::open(&job.path).map_err(local)?)?;
    }
    Ok(Done::Copied(counted.bytes))
}

/// Bytes of a stream, which nobody knows before its end.
struct Counted {
    bytes: u64,
}

impl Counted {
    fn put(&mut self, work: &Work<'_>, job: &Job, source: impl Read) -> Result<(), Failure> {
        let mut source = Counting { source: work.progress.reader(source), bytes: &mut self.bytes };
        work.client.put_from(&job.key, &mut source, None, &PutOptions::default())?;
        Ok(())
    }
}

struct Counting<'a, R> {
    source: R,
    bytes: &'a mut u64,
}

impl<R: Read> Read for Counting<'_, R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.source.read(into)?;
        *self.bytes += read as u64;
        Ok(read)
    }
}

/// Whether the object is there already, as it is here.
fn is_there(work: &Work<'_>, job: &Job, size_bytes: u64, here: &Attributes) -> Result<bool, Failure> {
    match work.client.stat(&job.key) {
        Ok(stat) => Ok(is_equal(&stat, size_bytes, here, 0o7777)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::copy::TYPE_BITS;
    use std::os::unix::fs::symlink;

    const LINK: u32 = 0o120_000;

    #[test]
    fn the_bits_of_a_link_are_those_of_a_link() {
        let root = tempfile::tempdir().expect("temporary directory");
        let path = root.path().join("l");
        symlink("target", &path).expect("link");
        let meta = fs::symlink_metadata(&path).expect("there");
        let attributes = attributes_of(&path, &meta).expect("readable");
        assert_eq!(attributes.mode.map(|mode| mode & TYPE_BITS), Some(LINK));
        assert_eq!(attributes.link.as_deref(), Some(&b"target"[..]));
    }

    #[test]
    fn a_key_that_ends_in_a_slash_takes_the_name() {
        for (key, want) in [("", "f"), ("c/", "c/f"), ("c/p/", "c/p/f"), ("c", "c"), ("c/x", "c/x")] {
            assert_eq!(file_key(key.into(), Path::new("dir/f")), want.as_bytes(), "{key}");
        }
    }
}
