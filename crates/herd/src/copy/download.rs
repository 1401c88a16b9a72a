//! Out of the herd. A tree is written below one open directory, and nothing outside it: directories first, then files
//! and links, then the directories' modes and times. Of two objects that mean one path the later one is an error.

use super::{DIRECTORY, Done, FILE, SMALL_BYTES, TYPE_BITS, Work, is_equal, is_stream, last_part, local, prefix_of};
use crate::args::CpArgs;
use crate::exit::{Failure, NOT_SO, Outcome, USAGE};
use crate::objects::{explained, namesake};
use crate::out;
use crate::target::{self, Directory, FILE_MODE_BITS, Output};
use herd_client::blocking::Client;
use herd_client::{Attributes, ErrorKind, Stat};
use herd_core::key;
use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// One object to copy, and where it goes below the target.
struct Job {
    key: Vec<u8>,
    path: PathBuf,
    size_bytes: u64,
}

pub(super) fn run(args: &CpArgs, client: &Client, keys: &[&[u8]], to: &Path) -> Outcome {
    if keys.len() > 1 && !to.is_dir() && !args.recursive {
        return Err(Failure::new(USAGE, format!("{}: is no directory for several objects", to.display())));
    }
    if let [key] = keys
        && (!args.recursive || is_stream(to.as_os_str()))
    {
        return single(args, client, key, to);
    }
    let mut tree = Tree::default();
    for key in keys {
        tree.source(args, client, key, keys.len() > 1)?;
    }
    if let ([key], true) = (keys, tree.is_empty()) {
        return match single(args, client, key, to) {
            Err(failure) if failure.code == NOT_SO => {
                Err(Failure::new(NOT_SO, format!("no objects under herd:{}", out::shown(key))))
            }
            done => done,
        };
    }
    tree.out(args, client, to)
}

/// One object to the path the user wrote, or into the directory there.
fn single(args: &CpArgs, client: &Client, key: &[u8], to: &Path) -> Outcome {
    let stat = client.stat(key).map_err(|error| not_one(args, client, key, error))?;
    if to.is_dir() {
        let mut tree = Tree::default();
        tree.add(key.to_vec(), last_part(key), stat.size_bytes);
        return tree.out(args, client, to);
    }
    let job = Job { key: key.to_vec(), path: to.into(), size_bytes: stat.size_bytes };
    let work = Work::new(args, client, 1, stat.size_bytes);
    let jobs = [job];
    work.run(
        &jobs,
        |job| &job.key,
        |job| if is_stream(to.as_os_str()) { stdout(&work, job) } else { named(&work, job, &stat) },
    );
    work.finish()
}

/// Why there is no object to copy: where a collection was meant, or what lies below a name, `-r` copies it.
fn not_one(args: &CpArgs, client: &Client, key: &[u8], error: herd_client::Error) -> Failure {
    let is_collection = || namesake(client, key).is_some();
    let is_above = || {
        let prefix = prefix_of(key);
        let (collection, inner) = key::split(&prefix);
        client.list(collection, inner).next().is_some_and(|item| item.is_ok())
    };
    let is_none = error.kind() == ErrorKind::NotFound || key.ends_with(b"/");
    if !args.recursive && is_none && (is_collection() || is_above()) {
        return Failure::new(USAGE, format!("herd:{} is more than one object: add -r", out::shown(key)));
    }
    explained(client, key, error)
}

fn stdout(work: &Work<'_>, job: &Job) -> Result<Done, Failure> {
    if work.args.dry_run {
        return Ok(Done::Copied(job.size_bytes));
    }
    let mut out = io::stdout().lock();
    match work.client.get_to(&job.key, None, &mut out) {
        Ok(stat) => out.flush().map(|()| Done::Copied(stat.size_bytes)).map_err(out::failed),
        Err(error) if error.kind() == ErrorKind::Local(io::ErrorKind::BrokenPipe) => Err(Failure::quiet()),
        Err(error) => Err(error.into()),
    }
}

/// To a path that the user wrote: what is there is written to as it is.
fn named(work: &Work<'_>, job: &Job, stat: &Stat) -> Result<Done, Failure> {
    let there = fs::metadata(&job.path).ok();
    if let Some(target) = &stat.attributes.link
        && there.as_ref().is_none_or(fs::Metadata::is_file)
    {
        let parent = job.path.parent().unwrap_or(Path::new("."));
        let dir = Directory::open(parent).map_err(local)?;
        return link(work, &dir, job.path.file_name().unwrap_or_default(), target, &stat.attributes);
    }
    if there.is_some_and(|meta| meta.is_file() && is_here(&meta, stat)) {
        return Ok(Done::Unchanged);
    }
    if work.args.dry_run {
        return Ok(Done::Copied(job.size_bytes));
    }
    let mut output = Output::open(&job.path).map_err(local)?;
    let stat = work.client.get_to(&job.key, None, &mut work.progress.writer(&mut output))?;
    output.finish(file_mode(&stat.attributes), stat.attributes.mtime_ns).map_err(local)?;
    Ok(Done::Copied(stat.size_bytes))
}

fn is_here(meta: &fs::Metadata, stat: &Stat) -> bool {
    use std::os::unix::fs::MetadataExt;
    let mtime_ns = meta.mtime().saturating_mul(1_000_000_000).saturating_add(meta.mtime_nsec());
    let here = Attributes { mode: Some(meta.mode()), mtime_ns: Some(mtime_ns), ..Attributes::default() };
    is_equal(stat, meta.len(), &here, FILE_MODE_BITS)
}

/// The mode of an object that is a file's.
fn file_mode(attributes: &Attributes) -> Option<u32> {
    attributes.mode.filter(|mode| mode & TYPE_BITS == FILE)
}

/// What a listing holds, by kind.
#[derive(Default)]
struct Tree {
    directories: Vec<Job>,
    files: Vec<Job>,
    lost: Vec<(Vec<u8>, String)>,
}

impl Tree {
    fn is_empty(&self) -> bool {
        self.files.is_empty() && self.directories.is_empty() && self.lost.is_empty()
    }

    /// What one argument stands for; `below`: under its own name.
    fn source(&mut self, args: &CpArgs, client: &Client, key: &[u8], below: bool) -> Result<(), Failure> {
        let before = self.files.len() + self.directories.len() + self.lost.len();
        if args.recursive {
            let prefix = prefix_of(key);
            let (collection, inner) = key::split(&prefix);
            let name = last_part(prefix.strip_suffix(b"/").unwrap_or(&prefix));
            let above = if below { [name, b"/"].concat() } else { Vec::new() };
            for item in client.list(collection, inner) {
                let item = item?;
                let key = [collection, b"/", &item.name].concat();
                self.add(key, &[&above, &item.name[inner.len()..]].concat(), item.size_bytes);
            }
        }
        if below && before == self.files.len() + self.directories.len() + self.lost.len() {
            self.add(key.to_vec(), last_part(key), client.stat(key)?.size_bytes);
        }
        Ok(())
    }

    /// An object whose place below the target is `relative`.
    fn add(&mut self, key: Vec<u8>, relative: &[u8], size_bytes: u64) {
        let mut path = PathBuf::new();
        for part in Path::new(OsStr::from_bytes(relative)).components() {
            match part {
                Component::Normal(name) => path.push(name),
                Component::CurDir => {}
                _ => return self.lost.push((key, "leads out of the target".into())),
            }
        }
        let is_directory = relative.is_empty() || relative.ends_with(b"/");
        if path.as_os_str().is_empty() && !is_directory {
            return self.lost.push((key, "is no name for a file".into()));
        }
        if is_directory && size_bytes > 0 {
            return self.lost.push((key, "has a directory's name, but holds bytes: `herd get` it".into()));
        }
        let job = Job { key, path, size_bytes };
        if is_directory { self.directories.push(job) } else { self.files.push(job) }
    }

    /// A file is none where others are to lie below it: a directory must be there.
    fn part_files_from_directories(&mut self) {
        let mut directories = HashSet::new();
        let above = self.files.iter().filter_map(|job| job.path.parent());
        for path in above.chain(self.directories.iter().map(|job| job.path.as_path())) {
            let new = path.ancestors().take_while(|path| !directories.contains(*path)).map(PathBuf::from);
            directories.extend(new.collect::<Vec<_>>());
        }
        let (lost, files) = self.files.drain(..).partition(|job| directories.contains(&job.path));
        self.files = files;
        let text = "can't be a file, as there are others below it: `herd get` it";
        self.lost.extend(Vec::<Job>::into_iter(lost).map(|job| (job.key, text.into())));
    }

    /// Of those that mean one path only the first stays.
    fn part_namesakes(&mut self) {
        for jobs in [&mut self.directories, &mut self.files] {
            jobs.sort_by(|a, b| a.path.cmp(&b.path));
            let mut kept: Vec<Job> = Vec::with_capacity(jobs.len());
            for job in jobs.drain(..) {
                match kept.last().filter(|first| first.path == job.path) {
                    Some(first) => {
                        let text = format!("means the same path as {}, which was copied", out::shown(&first.key));
                        self.lost.push((job.key, text));
                    }
                    None => kept.push(job),
                }
            }
            *jobs = kept;
        }
    }

    fn out(mut self, args: &CpArgs, client: &Client, to: &Path) -> Outcome {
        self.part_namesakes();
        self.part_files_from_directories();
        let is_new = !to.exists();
        let files = self.files.len() + self.lost.len();
        let work = Work::new(args, client, files as u64, self.files.iter().map(|job| job.size_bytes).sum());
        for (key, text) in &self.lost {
            work.fail(key, text);
        }
        if args.dry_run {
            work.run(&self.files, |job| &job.key, |job| Ok(Done::Copied(job.size_bytes)));
            return work.finish();
        }
        fs::create_dir_all(to).map_err(Failure::local(to.display()))?;
        let root = Directory::open(to).map_err(Failure::local(to.display()))?;
        let made = self.make_directories(&work, &root, is_new);
        // A fault of a local file is told with its path.
        let named = |job: &Job, failure: Failure| match failure.code {
            USAGE => Failure { text: format!("{}: {}", to.join(&job.path).display(), failure.text), ..failure },
            _ => failure,
        };
        work.run(&self.files, |job| &job.key, |job| file(&work, &root, job).map_err(|failure| named(job, failure)));
        for (job, attributes) in made.iter().rev() {
            let mode = attributes.mode.filter(|mode| mode & TYPE_BITS == DIRECTORY);
            let set = root.below(&job.path).and_then(|dir| dir.set(mode, attributes.mtime_ns));
            if let Err(error) = set {
                work.fail(&job.key, &local(error).text);
            }
        }
        work.finish()
    }

    /// Makes the directories; gives those that there are now, sorted, with what they are to have in the end. The target
    /// itself is only changed if it was made by this copy.
    fn make_directories(&self, work: &Work<'_>, root: &Directory, is_new: bool) -> Vec<(&Job, Attributes)> {
        let made = Mutex::new(Vec::with_capacity(self.directories.len()));
        let numbered: Vec<(usize, &Job)> = self.directories.iter().enumerate().collect();
        let make = |(at, job): &(usize, &Job)| {
            root.below(&job.path).map_err(local)?;
            if is_new || !job.path.as_os_str().is_empty() {
                let attributes = work.client.stat(&job.key)?.attributes;
                made.lock().unwrap_or_else(PoisonError::into_inner).push((*at, attributes));
            }
            Ok(Done::Made)
        };
        work.run(&numbered, |(_, job)| &job.key, make);
        let mut made = made.into_inner().unwrap_or_else(PoisonError::into_inner);
        made.sort_by_key(|(at, _)| *at);
        made.into_iter().map(|(at, attributes)| (&self.directories[at], attributes)).collect()
    }
}

/// One file or link of a tree.
fn file(work: &Work<'_>, root: &Directory, job: &Job) -> Result<Done, Failure> {
    let name = job.path.file_name().ok_or_else(|| Failure::new(USAGE, "is no name for a file"))?;
    let dir = root.below(job.path.parent().unwrap_or(Path::new(""))).map_err(local)?;
    let there = dir.stat(name).map_err(local)?;
    let here = there.filter(|there| target::is_file(there) && there.st_size as u64 == job.size_bytes);
    let stat = if here.is_some() || job.size_bytes == 0 { Some(work.client.stat(&job.key)?) } else { None };
    if let Some(attributes) = stat.as_ref().map(|stat| &stat.attributes)
        && let Some(target) = &attributes.link
    {
        return link(work, &dir, name, target, attributes);
    }
    if let (Some(here), Some(stat)) = (here, &stat) {
        let mtime_ns = Some(target::mtime_ns_of(&here));
        let here = Attributes { mode: Some(here.st_mode), mtime_ns, ..Attributes::default() };
        if is_equal(stat, job.size_bytes, &here, FILE_MODE_BITS) {
            work.progress.bytes(job.size_bytes);
            return Ok(Done::Unchanged);
        }
    }
    fetch(work, &dir, name, job)
}

fn fetch(work: &Work<'_>, dir: &Directory, name: &OsStr, job: &Job) -> Result<Done, Failure> {
    let (temporary, attributes, size_bytes) = if job.size_bytes <= SMALL_BYTES {
        let object = work.client.get(&job.key)?;
        let mut temporary = dir.temporary().map_err(local)?;
        temporary.file().write_all(&object.value).map_err(local)?;
        work.progress.bytes(object.value.len() as u64);
        (temporary, object.stat.attributes, object.value.len() as u64)
    } else {
        let mut temporary = dir.temporary().map_err(local)?;
        let stat = work.client.get_to(&job.key, None, &mut work.progress.writer(temporary.file()))?;
        (temporary, stat.attributes, stat.size_bytes)
    };
    temporary.place(name, file_mode(&attributes), attributes.mtime_ns).map_err(local)?;
    Ok(Done::Copied(size_bytes))
}

fn link(
    work: &Work<'_>,
    dir: &Directory,
    name: &OsStr,
    target: &[u8],
    attributes: &Attributes,
) -> Result<Done, Failure> {
    if dir.link_at(name).is_some_and(|there| there == target) {
        return Ok(Done::Unchanged);
    }
    if !work.args.dry_run {
        dir.make_link(name, target, attributes.mtime_ns).map_err(local)?;
    }
    Ok(Done::Copied(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(names: &[&str]) -> Tree {
        let mut tree = Tree::default();
        for name in names {
            tree.add([b"c/", name.as_bytes()].concat(), name.as_bytes(), 0);
        }
        tree.part_namesakes();
        tree
    }

    fn keys(jobs: &[Job]) -> Vec<&str> {
        jobs.iter().map(|job| std::str::from_utf8(&job.key).expect("text")).collect()
    }

    #[test]
    fn names_that_lead_out_of_the_target_are_refused() {
        let tree = tree(&["../x", "a/../../x", "/etc/x", "./../x", "/"]);
        assert_eq!((tree.files.len(), tree.directories.len(), tree.lost.len()), (0, 0, 5));
    }

    #[test]
    fn of_two_objects_that_mean_one_path_the_first_stays() {
        let tree = tree(&["a//b", "a/b", "./a/./b", "a/c", "d/", "d//"]);
        assert_eq!((keys(&tree.files), keys(&tree.directories)), (vec!["c/a//b", "c/a/c"], vec!["c/d/"]));
        assert_eq!(tree.lost.len(), 3);
        assert!(tree.lost[0].1.contains("c/d/"), "{}", tree.lost[0].1);
    }

    #[test]
    fn a_file_with_others_below_it_is_left_out() {
        let mut tree = tree(&["a", "a/b", "d", "d/", "e/f"]);
        tree.part_files_from_directories();
        assert_eq!(keys(&tree.files), ["c/a/b", "c/e/f"]);
        assert!(tree.lost[0].0 == b"c/a" && tree.lost[0].1.contains("below it"), "{}", tree.lost[0].1);
    }

    #[test]
    fn the_marker_of_the_directory_itself_is_the_target() {
        let mut tree = Tree::default();
        tree.add(b"photos/2026/".to_vec(), b"", 0);
        assert_eq!((keys(&tree.directories), tree.lost.len()), (vec!["photos/2026/"], 0));
        assert_eq!(tree.directories[0].path, Path::new(""));
    }
}
