//! `herd cp`: files and trees into and out of the herd.
//!
//! A tree `DIR` under `herd:KEY` is one object for each entry, named KEY/relative/path: a file's bytes with mode and
//! mtime as attributes; a link as an empty object with its target; a directory as an empty object whose name ends in
//! `/`. Going out, directories are made first, then files, then links, then the directories' modes and times are set; a
//! path that leads out of the target, by `..` or through a link, is refused. What is equal in size, mtime and mode is
//! skipped. A file that fails is listed and the others go on.

use crate::args::CpArgs;
use crate::exit::{Failure, NOT_SO, Outcome, USAGE};
use crate::objects::client;
use herd_client::blocking::Client;
use herd_client::{Attributes, ErrorKind, PutOptions, Stat};
use herd_core::key;
use indicatif::{ProgressBar, ProgressStyle};
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, UTIME_OMIT, utimensat};
use std::ffi::OsStr;
use std::fs::{self, File, Metadata};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

const TYPE_BITS: u32 = 0o170_000;
const FILE: u32 = 0o100_000;
const DIRECTORY: u32 = 0o040_000;
#[cfg(test)]
const LINK: u32 = 0o120_000;

/// Up to this size an object is fetched with its attributes in one request.
const SMALL_BYTES: u64 = 1 << 20;

pub(crate) fn run(args: &CpArgs) -> Outcome {
    match (args.from.strip_prefix("herd:"), args.to.strip_prefix("herd:")) {
        (None, Some(key)) => upload(args, Path::new(&args.from), key),
        (Some(key), None) => download(args, key, Path::new(&args.to)),
        _ => Err(Failure::new(USAGE, "one side is written herd:KEY, the other is a path here")),
    }
}

/// One thing to copy.
struct Job {
    key: Vec<u8>,
    path: PathBuf,
    size_bytes: u64,
}

/// What all workers of a copy share.
struct Work<'a> {
    client: &'a Client,
    bar: ProgressBar,
    next: AtomicUsize,
    copied: AtomicU64,
    skipped: AtomicU64,
    bytes: AtomicU64,
    failed: Mutex<Vec<String>>,
}

impl<'a> Work<'a> {
    fn new(args: &CpArgs, client: &'a Client, jobs: &[Job]) -> Self {
        let bytes = jobs.iter().map(|job| job.size_bytes).sum();
        let bar = if args.quiet { ProgressBar::hidden() } else { ProgressBar::new(bytes) };
        let style = ProgressStyle::with_template("{bar:30} {bytes}/{total_bytes} {bytes_per_sec} {eta} {msg}");
        bar.set_style(style.expect("the template is valid"));
        Self {
            client,
            bar,
            next: AtomicUsize::new(0),
            copied: AtomicU64::new(0),
            skipped: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            failed: Mutex::default(),
        }
    }

    /// Does all jobs, several side by side. `one` tells whether anything had to be copied.
    fn run(&self, threads: u16, jobs: &[Job], one: impl Fn(&Job) -> Result<bool, Failure> + Sync) {
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    while let Some(job) = jobs.get(self.next.fetch_add(1, Relaxed)) {
                        self.note(job, one(job));
                    }
                });
            }
        });
        self.next.store(0, Relaxed);
    }

    fn note(&self, job: &Job, done: Result<bool, Failure>) {
        match done {
            // Directories are made, not copied: in or out, the summary counts files and links.
            Ok(_) if job.key.ends_with(b"/") => {}
            Ok(true) => {
                self.copied.fetch_add(1, Relaxed);
                self.bytes.fetch_add(job.size_bytes, Relaxed);
            }
            Ok(false) => {
                self.skipped.fetch_add(1, Relaxed);
            }
            Err(failure) => self.fail(format!("{}: {}", job.path.display(), failure.text)),
        }
        self.bar.inc(job.size_bytes);
    }

    fn fail(&self, text: String) {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner).push(text);
    }

    /// The summary; a failure if anything failed.
    fn finish(self, args: &CpArgs) -> Outcome {
        self.bar.finish_and_clear();
        let failed = self.failed.into_inner().unwrap_or_else(PoisonError::into_inner);
        for line in &failed {
            eprintln!("herd: {line}");
        }
        if !args.quiet {
            let size = herd_core::size::show(self.bytes.into_inner());
            let (copied, skipped) = (self.copied.into_inner(), self.skipped.into_inner());
            eprintln!("copied {copied} ({size}), skipped {skipped} that were equal, {} failed", failed.len());
        }
        if failed.is_empty() {
            Ok(())
        } else {
            Err(Failure::new(NOT_SO, format!("{} could not be copied", failed.len())))
        }
    }
}

fn upload(args: &CpArgs, from: &Path, key: &str) -> Outcome {
    let meta = fs::symlink_metadata(from).map_err(Failure::local(from.display()))?;
    let client = client(&args.herd)?;
    let mut jobs = Vec::new();
    let mut lost = Vec::new();
    if meta.is_dir() {
        if !args.recursive {
            return Err(Failure::new(USAGE, format!("{} is a directory: add -r", from.display())));
        }
        walk(from, prefix_of(key).as_bytes(), &mut jobs, &mut lost);
    } else {
        jobs.push(Job { key: file_key(key, from), path: from.into(), size_bytes: meta.len() });
    }
    let work = Work::new(args, &client, &jobs);
    lost.into_iter().for_each(|text| work.fail(text));
    work.run(args.jobs, &jobs, |job| upload_one(&work, job));
    work.finish(args)
}

/// The key prefix of a tree: `COLLECTION/` or `COLLECTION/PATH/`; a bare word is a collection.
fn prefix_of(key: &str) -> String {
    match key {
        "" => String::new(),
        key if key.ends_with('/') => key.to_string(),
        key => format!("{key}/"),
    }
}

/// The key of a single file; a key that ends in a slash takes the file's name.
fn file_key(key: &str, path: &Path) -> Vec<u8> {
    let mut out = key.as_bytes().to_vec();
    if key.is_empty() || key.ends_with('/') {
        out.extend_from_slice(path.file_name().unwrap_or_default().as_bytes());
    }
    out
}

fn walk(dir: &Path, key: &[u8], jobs: &mut Vec<Job>, lost: &mut Vec<String>) {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) => return lost.push(format!("{}: {error}", dir.display())),
    };
    for entry in entries {
        let (path, meta) = match entry.and_then(|entry| Ok((entry.path(), fs::symlink_metadata(entry.path())?))) {
            Ok(found) => found,
            Err(error) => {
                lost.push(format!("{}: {error}", dir.display()));
                continue;
            }
        };
        let mut key = [key, path.file_name().unwrap_or_default().as_bytes()].concat();
        if meta.is_dir() {
            key.push(b'/');
            jobs.push(Job { key: key.clone(), path: path.clone(), size_bytes: 0 });
            walk(&path, &key, jobs, lost);
        } else if meta.is_file() || meta.is_symlink() {
            let size_bytes = if meta.is_file() { meta.len() } else { 0 };
            jobs.push(Job { key, path, size_bytes });
        } else {
            lost.push(format!("{}: is neither a file, a directory nor a link", path.display()));
        }
    }
}

fn attributes_of(path: &Path, meta: &Metadata) -> io::Result<Attributes> {
    let link = if meta.is_symlink() { Some(fs::read_link(path)?.as_os_str().as_bytes().to_vec()) } else { None };
    let mtime_ns = meta.mtime().saturating_mul(1_000_000_000).saturating_add(meta.mtime_nsec());
    Ok(Attributes { mode: Some(meta.mode()), mtime_ns: Some(mtime_ns), link, ..Attributes::default() })
}

fn upload_one(work: &Work<'_>, job: &Job) -> Result<bool, Failure> {
    let local = |error: io::Error| Failure::new(USAGE, error.to_string());
    let meta = fs::symlink_metadata(&job.path).map_err(local)?;
    let attributes = attributes_of(&job.path, &meta).map_err(local)?;
    match work.client.stat(&job.key) {
        Ok(stat) if is_equal(&stat, &meta, &attributes) => return Ok(false),
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(error.into()),
    }
    let options = PutOptions { attributes: Some(attributes), ..PutOptions::default() };
    if !meta.is_file() {
        work.client.put(&job.key, &[], &options)?;
        return Ok(true);
    }
    let mut file = File::open(&job.path).map_err(local)?;
    if meta.len() <= SMALL_BYTES {
        let mut bytes = Vec::with_capacity(meta.len() as usize);
        io::Read::read_to_end(&mut file, &mut bytes).map_err(local)?;
        work.client.put(&job.key, &bytes, &options)?;
    } else {
        work.client.put_from(&job.key, &mut file, Some(meta.len()), &options)?;
    }
    Ok(true)
}

fn is_equal(stat: &Stat, meta: &Metadata, attributes: &Attributes) -> bool {
    let size_bytes = if meta.is_file() { meta.len() } else { 0 };
    let there = &stat.attributes;
    stat.size_bytes == size_bytes
        && (there.mode, there.mtime_ns, &there.link) == (attributes.mode, attributes.mtime_ns, &attributes.link)
}

fn download(args: &CpArgs, key: &str, to: &Path) -> Outcome {
    let client = client(&args.herd)?;
    if !args.recursive {
        let path = if to.is_dir() { to.join(key.rsplit('/').next().unwrap_or(key)) } else { to.to_path_buf() };
        let jobs = [Job { key: key.as_bytes().to_vec(), path, size_bytes: client.stat(key)?.size_bytes }];
        let work = Work::new(args, &client, &jobs);
        work.run(1, &jobs, |job| file_out(&work, job));
        return work.finish(args);
    }
    let prefix = prefix_of(key);
    let (collection, inner) = key::split(prefix.as_bytes());
    let collection = String::from_utf8_lossy(collection).into_owned();
    let mut tree = Tree::default();
    for item in client.list(&collection, inner) {
        let item = item?;
        tree.add(&collection, inner.len(), &item.name, item.size_bytes, to);
    }
    if tree.files.is_empty() && tree.directories.is_empty() && tree.lost.is_empty() {
        return Err(Failure::new(NOT_SO, format!("no objects under herd:{key}")));
    }
    tree.out(args, &client, to)
}

/// What a listing holds, sorted by kind.
#[derive(Default)]
struct Tree {
    directories: Vec<Job>,
    files: Vec<Job>,
    lost: Vec<String>,
}

impl Tree {
    fn add(&mut self, collection: &str, skip: usize, name: &[u8], size_bytes: u64, to: &Path) {
        let relative = Path::new(OsStr::from_bytes(&name[skip..]));
        let key = [collection.as_bytes(), b"/", name].concat();
        if !relative.components().all(|part| matches!(part, Component::Normal(_))) || relative.as_os_str().is_empty() {
            return self.lost.push(format!("{}: leads out of the target", relative.display()));
        }
        let job = Job { key, path: to.join(relative), size_bytes };
        if name.ends_with(b"/") { self.directories.push(job) } else { self.files.push(job) }
    }

    fn out(mut self, args: &CpArgs, client: &Client, to: &Path) -> Outcome {
        fs::create_dir_all(to).map_err(Failure::local(to.display()))?;
        self.directories.sort_by(|a, b| a.path.cmp(&b.path));
        let work = Work::new(args, client, &self.files);
        self.lost.into_iter().for_each(|text| work.fail(text));
        for job in &self.directories {
            if let Err(error) = make_directory(to, &job.path) {
                work.fail(format!("{}: {error}", job.path.display()));
            }
        }
        let links = Mutex::new(Vec::new());
        work.run(args.jobs, &self.files, |job| {
            make_directory(to, job.path.parent().unwrap_or(to))
                .map_err(|error| Failure::new(USAGE, error.to_string()))?;
            tree_file(&work, job, &links)
        });
        for (path, target, mtime_ns) in links.into_inner().unwrap_or_else(PoisonError::into_inner) {
            if let Err(error) = make_link(to, &path, &target, mtime_ns) {
                work.fail(format!("{}: {error}", path.display()));
            }
        }
        for job in self.directories.iter().rev() {
            if let Err(failure) = directory_out(client, job) {
                work.fail(format!("{}: {}", job.path.display(), failure.text));
            }
        }
        work.finish(args)
    }
}

/// Makes a directory and those above it within `root`; refuses to pass through a link.
fn make_directory(root: &Path, path: &Path) -> io::Result<()> {
    let relative = path.strip_prefix(root).map_err(io::Error::other)?;
    let mut at = root.to_path_buf();
    for part in relative.components() {
        at.push(part);
        match fs::symlink_metadata(&at) {
            Ok(meta) if meta.is_dir() => {}
            Ok(_) => return Err(io::Error::other(format!("{} is not a directory", at.display()))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => match fs::create_dir(&at) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                made => made?,
            },
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

type Links = Mutex<Vec<(PathBuf, Vec<u8>, Option<i64>)>>;

/// A file of a tree; a link is only noted, so that no file is ever written through one.
fn tree_file(work: &Work<'_>, job: &Job, links: &Links) -> Result<bool, Failure> {
    if job.size_bytes > 0 {
        return file_out(work, job);
    }
    let stat = work.client.stat(&job.key)?;
    let Some(target) = stat.attributes.link else {
        return file_out(work, job);
    };
    let same = fs::read_link(&job.path).is_ok_and(|there| there.as_os_str().as_bytes() == target);
    if !same {
        let mut links = links.lock().unwrap_or_else(PoisonError::into_inner);
        links.push((job.path.clone(), target, stat.attributes.mtime_ns));
    }
    Ok(!same)
}

/// Writes one file, whole or not at all.
fn file_out(work: &Work<'_>, job: &Job) -> Result<bool, Failure> {
    let local = |error: io::Error| Failure::new(USAGE, error.to_string());
    let there = fs::symlink_metadata(&job.path).ok();
    if let Some(meta) = there.as_ref().filter(|meta| meta.is_file() && meta.len() == job.size_bytes) {
        let stat = work.client.stat(&job.key)?;
        let attributes = attributes_of(&job.path, meta).map_err(local)?;
        if stat.attributes.mtime_ns.is_some() && is_equal(&stat, meta, &attributes) {
            return Ok(false);
        }
    }
    let name = job.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let part = job.path.with_file_name(format!(".{name:.200}.herd-{}", std::process::id()));
    let written = write_part(work, job, &part);
    let done = written.and_then(|()| fs::rename(&part, &job.path).map_err(local));
    if done.is_err() {
        // Nothing more can be done about a rest that can't be removed.
        fs::remove_file(&part).ok();
    }
    done.map(|()| true)
}

fn write_part(work: &Work<'_>, job: &Job, part: &Path) -> Result<(), Failure> {
    let local = |error: io::Error| Failure::new(USAGE, error.to_string());
    let mut file = File::options().write(true).create_new(true).open(part).map_err(local)?;
    let attributes = if job.size_bytes <= SMALL_BYTES {
        let object = work.client.get(&job.key)?;
        file.write_all(&object.value).map_err(local)?;
        object.stat.attributes
    } else {
        work.client.get_to(&job.key, None, &mut file)?.attributes
    };
    if let Some(mode) = attributes.mode.filter(|mode| mode & TYPE_BITS == FILE) {
        file.set_permissions(fs::Permissions::from_mode(mode & 0o7777)).map_err(local)?;
    }
    attributes.mtime_ns.map_or(Ok(()), |ns| set_mtime(part, ns)).map_err(local)
}

fn make_link(root: &Path, path: &Path, target: &[u8], mtime_ns: Option<i64>) -> io::Result<()> {
    make_directory(root, path.parent().unwrap_or(root))?;
    if fs::symlink_metadata(path).is_ok_and(|meta| !meta.is_dir()) {
        fs::remove_file(path)?;
    }
    symlink(OsStr::from_bytes(target), path)?;
    mtime_ns.map_or(Ok(()), |ns| set_mtime(path, ns))
}

fn directory_out(client: &Client, job: &Job) -> Result<(), Failure> {
    let local = |error: io::Error| Failure::new(USAGE, error.to_string());
    let attributes = client.stat(&job.key)?.attributes;
    if let Some(mode) = attributes.mode.filter(|mode| mode & TYPE_BITS == DIRECTORY) {
        fs::set_permissions(&job.path, fs::Permissions::from_mode(mode & 0o7777)).map_err(local)?;
    }
    attributes.mtime_ns.map_or(Ok(()), |ns| set_mtime(&job.path, ns)).map_err(local)
}

/// Sets the time of last modification, of a link itself where it is one.
fn set_mtime(path: &Path, ns: i64) -> io::Result<()> {
    let omit = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
    let mtime = Timespec { tv_sec: ns.div_euclid(1_000_000_000), tv_nsec: ns.rem_euclid(1_000_000_000) as _ };
    let times = Timestamps { last_access: omit, last_modification: mtime };
    Ok(utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_lead_out_of_the_target_are_refused() {
        let mut tree = Tree::default();
        for name in ["../x", "a/../../x", "/etc/x", "", "./../x"] {
            tree.add("c", 0, name.as_bytes(), 1, Path::new("/target"));
        }
        assert_eq!((tree.files.len(), tree.lost.len()), (0, 5));
        tree.add("c", 2, b"p/a/b", 1, Path::new("/target"));
        assert_eq!(tree.files[0].path, Path::new("/target/a/b"));
    }

    #[test]
    fn a_link_in_the_way_is_not_followed() {
        let root = tempfile::tempdir().expect("temporary directory");
        symlink("/", root.path().join("out")).expect("link");
        assert!(make_directory(root.path(), &root.path().join("out/etc")).is_err());
        assert!(make_directory(root.path(), &root.path().join("in/deep")).is_ok());
    }

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
}
