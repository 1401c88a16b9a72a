//! Writing files here, safely. Used by `get -o` and `cp`.
//!
//! * What a name leads to is opened step by step from a directory's descriptor, never through a link: nothing outside a
//!   target is written, whatever the names in a herd say and whoever changes the directory meanwhile.
//! * A file appears whole or not at all. Its bytes go to a temporary without a name where the file system has such;
//!   elsewhere to one with a random name, which is removed on error, Ctrl-C and SIGTERM.
//! * What the user named is written to as it is: a link's target, a device, a pipe; a file keeps its mode and owner.

use crate::out;
use rustix::fs::{
    Access, AtFlags, CWD, FileType, Gid, Mode, OFlags, Stat, Timespec, Timestamps, UTIME_OMIT, Uid, access, chmodat,
    fchmod, fchown, futimens, linkat, mkdirat, openat, readlinkat, renameat, statat, symlinkat, unlinkat, utimensat,
};
use rustix::io::Errno;
use rustix::process::umask;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Links followed from one name to what it leads to, as the kernel has it.
const LINKS_MAX: usize = 40;
/// Permissions of a file; of a directory also set-group-ID and the sticky bit. Nobody gets a program with set-user-ID
/// out of a herd.
pub(crate) const FILE_MODE_BITS: u32 = 0o777;
const DIRECTORY_MODE_BITS: u32 = 0o3777;

/// Temporaries that have a name, to be removed if a signal ends the process.
static NAMED: Mutex<Vec<(Directory, OsString)>> = Mutex::new(Vec::new());
/// Mode of a new file that nobody asked a mode for.
static PLAIN_MODE: OnceLock<u32> = OnceLock::new();

fn named() -> MutexGuard<'static, Vec<(Directory, OsString)>> {
    NAMED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// To be called once, before any thread is started: a signal from now on removes temporaries, tells `hint`, and ends
/// the process with 128 + its number.
pub(crate) fn prepare(hint: &'static str) -> io::Result<()> {
    PLAIN_MODE.get_or_init(|| {
        let mask = umask(Mode::from_raw_mode(0o077));
        umask(mask);
        0o666 & !mask.as_raw_mode()
    });
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        if let Some(signal) = signals.forever().next() {
            // Held to the end, so that no other thread makes or places one meanwhile.
            let named = named();
            for (dir, name) in named.iter() {
                unlinkat(&*dir.0, name, AtFlags::empty()).ok();
            }
            out::interrupted(hint);
            std::process::exit(128 + signal);
        }
    })?;
    Ok(())
}

fn random_name() -> OsString {
    format!(".herd-{:016x}.part", RandomState::new().hash_one(std::process::id())).into()
}

/// An open directory; a copy is the same one.
#[derive(Clone)]
pub(crate) struct Directory(Arc<OwnedFd>);

impl Directory {
    const FLAGS: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

    /// The directory that `path` leads to, through links too: the user named it.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        Ok(Self(Arc::new(openat(CWD, path, Self::FLAGS, Mode::empty())?)))
    }

    /// The directory `relative` below this one, never through a link; what is missing is made.
    pub(crate) fn below(&self, relative: &Path) -> io::Result<Self> {
        relative.components().try_fold(self.clone(), |at, part| match part {
            Component::Normal(name) => at.child(name),
            _ => Err(io::Error::other(format!("{}: leads out of the target", relative.display()))),
        })
    }

    fn child(&self, name: &OsStr) -> io::Result<Self> {
        let flags = Self::FLAGS.union(OFlags::NOFOLLOW);
        let open = || openat(&*self.0, name, flags, Mode::empty());
        let opened = match open() {
            Err(Errno::NOENT) => match mkdirat(&*self.0, name, Mode::from_raw_mode(0o777)) {
                Ok(()) | Err(Errno::EXIST) => open(),
                Err(error) => Err(error),
            },
            opened => opened,
        };
        match opened {
            Ok(fd) => Ok(Self(Arc::new(fd))),
            Err(Errno::LOOP | Errno::NOTDIR) => {
                Err(io::Error::other(format!("{} is in the way and not a directory", out::shown(name.as_bytes()))))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// What is at `name`, itself if it is a link; `None`: nothing.
    pub(crate) fn stat(&self, name: &OsStr) -> io::Result<Option<Stat>> {
        match statat(&*self.0, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Sets mode and time of the directory itself, as far as they differ.
    pub(crate) fn set(&self, mode: Option<u32>, mtime_ns: Option<i64>) -> io::Result<()> {
        let there = statat(&*self.0, ".", AtFlags::empty())?;
        if let Some(ns) = mtime_ns.filter(|ns| *ns != mtime_ns_of(&there)) {
            utimensat(&*self.0, ".", &times(ns), AtFlags::empty())?;
        }
        match mode.map(|mode| mode & DIRECTORY_MODE_BITS).filter(|mode| *mode != there.st_mode & 0o7777) {
            Some(mode) => Ok(chmodat(&*self.0, ".", Mode::from_raw_mode(mode), AtFlags::empty())?),
            None => Ok(()),
        }
    }

    /// A file for bytes that are to become one of this directory's.
    pub(crate) fn temporary(&self) -> io::Result<Temporary> {
        let file = if descriptors_have_paths() { self.nameless()? } else { None };
        match file {
            Some(file) => Ok(Temporary { dir: self.clone(), file, name: None }),
            None => self.named_temporary(),
        }
    }

    /// A file without a name, gone with the process; `None` where the file system can't do that.
    fn nameless(&self) -> io::Result<Option<File>> {
        let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
        match openat(&*self.0, ".", flags, Mode::from_raw_mode(0o600)) {
            Ok(fd) => Ok(Some(fd.into())),
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL | Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn named_temporary(&self) -> io::Result<Temporary> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let (name, fd) = self.under_a_random_name(|name| openat(&*self.0, name, flags, Mode::from_raw_mode(0o600)))?;
        Ok(Temporary { dir: self.clone(), file: fd.into(), name: Some(name) })
    }

    /// Makes something under a random name that nothing has yet, and notes it.
    fn under_a_random_name<T>(&self, make: impl Fn(&OsStr) -> Result<T, Errno>) -> io::Result<(OsString, T)> {
        loop {
            let name = random_name();
            let mut named = named();
            match make(&name) {
                Ok(made) => {
                    named.push((self.clone(), name.clone()));
                    return Ok((name, made));
                }
                Err(Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Gives what has the random name `from` its own.
    fn rename(&self, from: &OsStr, to: &OsStr) -> io::Result<()> {
        let mut named = named();
        renameat(&*self.0, from, &*self.0, to)?;
        named.retain(|(_, name)| name != from);
        Ok(())
    }

    fn discard(&self, name: &OsStr) {
        let mut named = named();
        // Nothing more can be done about a rest that can't be removed.
        unlinkat(&*self.0, name, AtFlags::empty()).ok();
        named.retain(|(_, other)| other != name);
    }

    /// The target of the link at `name`; `None`: there is no link.
    pub(crate) fn link_at(&self, name: &OsStr) -> Option<Vec<u8>> {
        readlinkat(&*self.0, name, Vec::new()).ok().map(|target| target.into_bytes())
    }

    /// Makes a link at `name`, in place of what is there unless that is a directory.
    pub(crate) fn make_link(&self, name: &OsStr, target: &[u8], mtime_ns: Option<i64>) -> io::Result<()> {
        let (part, ()) = self.under_a_random_name(|part| symlinkat(OsStr::from_bytes(target), &*self.0, part))?;
        let timed = mtime_ns.map_or(Ok(()), |ns| utimensat(&*self.0, &part, &times(ns), AtFlags::SYMLINK_NOFOLLOW));
        let done = timed.map_err(io::Error::from).and_then(|()| self.rename(&part, name));
        if done.is_err() {
            self.discard(&part);
        }
        done
    }
}

/// Whether a descriptor can be given a name by its path.
fn descriptors_have_paths() -> bool {
    static THEY_HAVE: OnceLock<bool> = OnceLock::new();
    *THEY_HAVE
        .get_or_init(|| Path::new("/proc/self/fd/0").symlink_metadata().is_ok() || Path::new("/proc/self/fd").is_dir())
}

/// A file that is not yet where it belongs; removed if it never gets there.
pub(crate) struct Temporary {
    dir: Directory,
    file: File,
    name: Option<OsString>,
}

impl Temporary {
    /// Where the bytes go.
    pub(crate) fn file(&mut self) -> &mut File {
        &mut self.file
    }

    /// Gives it mode and time, and puts it at `name`, in place of what is there unless that is a directory. Without a
    /// mode it is a new file's.
    pub(crate) fn place(mut self, name: &OsStr, mode: Option<u32>, mtime_ns: Option<i64>) -> io::Result<()> {
        let plain = *PLAIN_MODE.get().unwrap_or(&0o600);
        fchmod(&self.file, Mode::from_raw_mode(mode.map_or(plain, |mode| mode & FILE_MODE_BITS)))?;
        if let Some(ns) = mtime_ns {
            futimens(&self.file, &times(ns))?;
        }
        match self.name.take() {
            Some(part) => self.rename(part, name),
            None => self.link(name),
        }
    }

    fn rename(&mut self, part: OsString, name: &OsStr) -> io::Result<()> {
        let done = self.dir.rename(&part, name);
        self.name = if done.is_ok() { None } else { Some(part) };
        done
    }

    /// Gives a nameless one its name.
    fn link(&mut self, name: &OsStr) -> io::Result<()> {
        let path = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        let link = |name: &OsStr| linkat(CWD, path.as_str(), &*self.dir.0, name, AtFlags::SYMLINK_FOLLOW);
        match link(name) {
            Err(Errno::EXIST) => {}
            done => return Ok(done?),
        }
        let (part, ()) = self.dir.under_a_random_name(link)?;
        self.rename(part, name)
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if let Some(name) = self.name.take() {
            self.dir.discard(&name);
        }
    }
}

/// What the user named as output.
pub(crate) enum Output {
    /// A file, or nothing yet: it is replaced when all bytes are there.
    Whole {
        /// They are here until then.
        temporary: Temporary,
        /// Its name.
        name: OsString,
        /// Mode and owner of what is there.
        kept: Option<(u32, Uid, Gid)>,
    },
    /// A device, a pipe, or a file in a directory that takes no other: opened when the first byte comes.
    Direct(PathBuf, Option<File>),
}

impl Output {
    /// For the path that the user wrote.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let meta = match fs::metadata(path) {
            Ok(meta) => meta,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Self::whole(&end_of_links(path)?, None),
            Err(error) => return Err(error),
        };
        let kind = meta.file_type();
        if kind.is_dir() {
            return Err(io::ErrorKind::IsADirectory.into());
        }
        if kind.is_char_device() || kind.is_block_device() || kind.is_fifo() || kind.is_socket() {
            return Ok(Self::Direct(path.into(), None));
        }
        access(path, Access::WRITE_OK)?;
        let kept = (meta.mode() & 0o7777, Uid::from_raw(meta.uid()), Gid::from_raw(meta.gid()));
        match fs::canonicalize(path).and_then(|real| Self::whole(&real, Some(kept))) {
            Err(error) if is_unwritable(&error) => Ok(Self::Direct(path.into(), None)),
            done => done,
        }
    }

    fn whole(path: &Path, kept: Option<(u32, Uid, Gid)>) -> io::Result<Self> {
        if path.as_os_str().as_bytes().ends_with(b"/") {
            return Err(io::Error::other("there is no such directory"));
        }
        let name = path.file_name().ok_or_else(|| io::Error::other("is no name for a file"))?.to_os_string();
        let temporary = Directory::open(path.parent().unwrap_or(Path::new(".")))?.temporary()?;
        Ok(Self::Whole { temporary, name, kept })
    }

    /// All bytes are there. `mode` and `mtime_ns` are the object's, if it has them and they are wanted.
    pub(crate) fn finish(self, mode: Option<u32>, mtime_ns: Option<i64>) -> io::Result<()> {
        match self {
            Self::Whole { temporary, name, kept } => {
                if let Some((_, user, group)) = kept {
                    // Only root may give files away; others can replace what is theirs, or their group's.
                    fchown(&temporary.file, Some(user), Some(group)).ok();
                }
                temporary.place(&name, mode.or(kept.map(|(mode, ..)| mode)), mtime_ns)
            }
            Self::Direct(path, None) => direct(&path).map(|_| ()),
            Self::Direct(_, Some(mut file)) => file.flush(),
        }
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Whole { temporary, .. } => temporary.file.write(bytes),
            Self::Direct(_, Some(file)) => file.write(bytes),
            Self::Direct(path, file) => file.insert(direct(path)?).write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn direct(path: &Path) -> io::Result<File> {
    File::options().write(true).truncate(true).open(path)
}

/// Whether a directory takes no new file, though one in it may be written.
fn is_unwritable(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem)
}

/// Where a chain of links ends, whose last target does not exist.
fn end_of_links(path: &Path) -> io::Result<PathBuf> {
    let mut at = path.to_path_buf();
    for _ in 0..LINKS_MAX {
        match fs::read_link(&at) {
            Ok(target) => at = at.parent().unwrap_or(Path::new("")).join(target),
            Err(_) => return Ok(at),
        }
    }
    Err(Errno::LOOP.into())
}

fn times(mtime_ns: i64) -> Timestamps {
    let omit = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
    let (tv_sec, tv_nsec) = (mtime_ns.div_euclid(1_000_000_000), mtime_ns.rem_euclid(1_000_000_000));
    Timestamps { last_access: omit, last_modification: Timespec { tv_sec, tv_nsec: tv_nsec as _ } }
}

/// Time of last modification, ns since 1970.
pub(crate) fn mtime_ns_of(stat: &Stat) -> i64 {
    stat.st_mtime.saturating_mul(1_000_000_000).saturating_add(stat.st_mtime_nsec as i64)
}

/// Whether it is a plain file.
pub(crate) fn is_file(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn root() -> (tempfile::TempDir, Directory) {
        let root = tempfile::tempdir().expect("temporary directory");
        let dir = Directory::open(root.path()).expect("a directory");
        (root, dir)
    }

    /// Both kinds of temporary, whichever this file system would take.
    fn temporaries(dir: &Directory) -> [Temporary; 2] {
        [dir.temporary().expect("made"), dir.named_temporary().expect("made")]
    }

    #[test]
    fn a_temporary_takes_the_place_of_a_file_or_link_and_leaves_no_rest() {
        let (root, dir) = root();
        std::fs::write(root.path().join("other"), "other").expect("written");
        for (name, there) in [("new", false), ("file", true), ("link", true)] {
            for mut temporary in temporaries(&dir) {
                let path = root.path().join(name);
                fs::remove_file(&path).ok();
                match name {
                    "link" => symlink("other", &path).expect("linked"),
                    _ if there => fs::write(&path, "old").expect("written"),
                    _ => {}
                }
                temporary.file().write_all(b"new").expect("written");
                temporary.place(OsStr::new(name), Some(0o106_751), Some(1_500_000_000)).expect("placed");
                let meta = fs::symlink_metadata(&path).expect("there");
                assert!(meta.is_file() && fs::read(&path).expect("there") == b"new");
                assert_eq!(
                    (meta.permissions().mode() & 0o7777, meta.mtime(), meta.mtime_nsec()),
                    (0o751, 1, 500_000_000)
                );
            }
        }
        assert_eq!(fs::read(root.path().join("other")).expect("there"), b"other");
        assert_eq!(fs::read_dir(root.path()).expect("readable").count(), 4);
    }

    #[test]
    fn a_temporary_that_is_given_up_or_can_not_be_placed_is_removed() {
        let (root, dir) = root();
        fs::create_dir(root.path().join("d")).expect("made");
        for temporary in temporaries(&dir) {
            assert!(temporary.place(OsStr::new("d"), None, None).is_err(), "a directory is in the way");
        }
        assert!(dir.make_link(OsStr::new("d"), b"x", None).is_err());
        drop(temporaries(&dir));
        assert_eq!(fs::read_dir(root.path()).expect("readable").count(), 1);
    }

    #[test]
    fn what_a_signal_must_remove_is_known_as_long_as_it_is_there() {
        let (_root, dir) = root();
        let is_known = |name: &OsStr| named().iter().any(|(_, known)| known == name);
        let temporary = dir.named_temporary().expect("made");
        let name = temporary.name.clone().expect("it has one");
        assert!(is_known(&name));
        temporary.place(OsStr::new("x"), None, None).expect("placed");
        assert!(!is_known(&name));
    }

    #[test]
    fn no_link_and_no_name_leads_out_of_a_directory() {
        let (root, dir) = root();
        symlink("/", root.path().join("out")).expect("linked");
        fs::write(root.path().join("file"), "x").expect("written");
        for path in ["out", "out/tmp", "file", "file/x", "..", "../x", "/tmp", "a/../../x"] {
            assert!(dir.below(Path::new(path)).is_err(), "{path}");
        }
        assert!(dir.below(Path::new("in/deep")).is_ok() && root.path().join("in/deep").is_dir());
    }

    #[test]
    fn a_chain_of_links_without_end_is_an_error() {
        let (root, _) = root();
        symlink("b", root.path().join("a")).expect("linked");
        symlink("a", root.path().join("b")).expect("linked");
        assert!(end_of_links(&root.path().join("a")).is_err());
    }
}
