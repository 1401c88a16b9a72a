//! The file of an embedded control store: few calls, so that tests can have a disk that fails.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

/// The store's file.
const FILE: &str = "control";
/// A new one, until it takes the file's place.
const NEW: &str = "control.new";
/// Locked by who owns the file; it stays where it is, as the file itself does not.
const LOCK: &str = "control.lock";

/// How long a lock is waited for: between fork and exec a process that its owner starts has it too, for some ms.
const LOCK_PATIENCE: Duration = Duration::from_millis(200);
const LOCK_PERIOD: Duration = Duration::from_millis(5);

/// Whether what failed may have been done all the same.
#[derive(Debug)]
pub(super) enum Failed {
    /// All is as it was.
    Undone(io::Error),
    /// It may have been done.
    Unknown(io::Error),
}

/// One file that grows, and is replaced as a whole.
pub(super) trait Disk {
    /// All bytes, up to `most` and one; `None`: there is no file.
    fn read(&mut self, most: u64) -> io::Result<Option<Vec<u8>>>;

    /// The file has these bytes from now on, and after a crash at any moment these or those of before.
    fn replace(&mut self, bytes: &[u8]) -> Result<(), Failed>;

    /// Puts bytes behind the last; after an error some of them may be there.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// Takes away what is behind `len` bytes, and makes that last.
    fn cut(&mut self, len: u64) -> io::Result<()>;

    /// Makes all that was appended last.
    fn sync(&mut self) -> io::Result<()>;
}

/// A directory of this machine.
pub(super) struct Directory {
    path: PathBuf,
    /// Open to append; `None` before the first file.
    file: Option<File>,
    /// As long as it is open the file is ours.
    _lock: File,
}

impl Directory {
    /// Makes the directory where it is missing, and locks the file in it; `None`: somebody else has it.
    pub(super) fn lock(path: &Path) -> io::Result<Option<Self>> {
        fs::create_dir_all(path)?;
        let lock = OpenOptions::new().create(true).write(true).truncate(false).open(path.join(LOCK))?;
        let until = Instant::now() + LOCK_PATIENCE;
        loop {
            match lock.try_lock() {
                Ok(()) => return Ok(Some(Self { path: path.to_path_buf(), file: None, _lock: lock })),
                Err(fs::TryLockError::WouldBlock) if Instant::now() < until => thread::sleep(LOCK_PERIOD),
                Err(fs::TryLockError::WouldBlock) => return Ok(None),
                Err(fs::TryLockError::Error(error)) => return Err(error),
            }
        }
    }

    fn open(&self) -> io::Result<&File> {
        self.file.as_ref().ok_or_else(|| io::Error::other("no file yet"))
    }

    fn write_new(&self, bytes: &[u8]) -> io::Result<File> {
        let path = self.path.join(NEW);
        let mut file = OpenOptions::new().create(true).append(true).open(&path)?;
        file.set_len(0)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        Ok(file)
    }
}

impl Disk for Directory {
    fn read(&mut self, most: u64) -> io::Result<Option<Vec<u8>>> {
        let file = match File::open(self.path.join(FILE)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened?,
        };
        let mut bytes = Vec::new();
        file.take(most + 1).read_to_end(&mut bytes)?;
        Ok(Some(bytes))
    }

    fn replace(&mut self, bytes: &[u8]) -> Result<(), Failed> {
        let file = self.write_new(bytes).map_err(Failed::Undone)?;
        fs::rename(self.path.join(NEW), self.path.join(FILE)).map_err(Failed::Undone)?;
        self.file = Some(file);
        // Until the directory is on the disk, either file may be there after a crash.
        File::open(&self.path).and_then(|directory| directory.sync_all()).map_err(Failed::Unknown)
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.open()?.write_all(bytes)
    }

    fn cut(&mut self, len: u64) -> io::Result<()> {
        let file = self.open()?;
        file.set_len(len)?;
        file.sync_all()
    }

    fn sync(&mut self) -> io::Result<()> {
        self.open()?.sync_data()
    }
}
