//! The file of an embedded control store: few calls, so that tests can have a disk that fails.

use super::home::{Home, STORE, is_at, sync_directory, write_new};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::PathBuf;

/// A new file, until it takes the old one's place.
const NEW: &str = "control.new";

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
    home: Home,
    /// Open to append; `None` before the first file.
    file: Option<File>,
}

impl Directory {
    pub(super) fn new(home: Home) -> Self {
        Self { home, file: None }
    }

    fn open(&self) -> io::Result<&File> {
        self.file.as_ref().ok_or_else(|| io::Error::other("no file yet"))
    }

    fn path(&self) -> PathBuf {
        self.home.path().join(STORE)
    }

    /// An error if the file is no longer where it was: what is written to it would be lost with this process.
    fn check_there(&self, file: &File) -> io::Result<()> {
        if is_at(file, &self.path()) {
            return Ok(());
        }
        Err(io::Error::other(format!("{} was taken away: put it back", self.path().display())))
    }
}

impl Disk for Directory {
    fn read(&mut self, most: u64) -> io::Result<Option<Vec<u8>>> {
        let file = match File::open(self.path()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened?,
        };
        let mut bytes = Vec::new();
        file.take(most + 1).read_to_end(&mut bytes)?;
        Ok(Some(bytes))
    }

    fn replace(&mut self, bytes: &[u8]) -> Result<(), Failed> {
        let there = self.file.as_ref().map_or(Ok(()), |file| self.check_there(file));
        let path = self.home.path().join(NEW);
        let file = there.and_then(|()| write_new(&path, bytes)).map_err(Failed::Undone)?;
        fs::rename(&path, self.path()).map_err(Failed::Undone)?;
        self.file = Some(file);
        // Until the directory is on the disk, either file may be there after a crash.
        sync_directory(self.home.path()).map_err(Failed::Unknown)
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut file = self.open()?;
        self.check_there(file)?;
        file.write_all(bytes)
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
