//! A node's own directory: who the node is over its restarts, and, if its warden lives there, the herd's control store.
//!
//! * It has one owner, from its start on: a lock that the kernel drops with the process, however that ends.
//! * Only its owner's user may read it: what is in it lets one aim at single slots.
//!
//! * A copy of a control store that is to come here lies beside it, under the id of its move, until that is begun.
//! * Of a herd that it belongs to it knows where the nodes are, so that it finds them whichever of them runs.
//!
//! Callers: what begins a herd, what joins one, and what moves a control store.

use super::OpenError;
use super::disk::Directory;
use super::embedded;
use herd_core::control::file::{read, whole};
use herd_core::control::{Control, Snapshot};
use herd_core::limits::{CONTROL_FILE_MAX_BYTES, KNOWN_MAX_BYTES, NODE_RECORD_MAX_BYTES};
use herd_core::place::{HerdId, Map, NodeId};
use herd_core::warden::moving::{Standing, standing};
use herd_core::warden::{Hex, Identity, MoveId, map_of};
use serde::{Deserialize, Serialize};
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// The control store.
pub(super) const STORE: &str = "control";
/// Locked by who owns the directory.
const LOCK: &str = "control.lock";
/// How long the lock is waited for: between fork and exec a process that its owner starts has it too, for some ms.
const LOCK_PATIENCE: Duration = Duration::from_millis(200);
/// How often it is tried.
const LOCK_PERIOD: Duration = Duration::from_millis(5);
/// A copy that is to come, before the id of its move.
const COMING: &str = "coming-";
/// Where the nodes of its herd are.
const KNOWN: &str = "nodes";
/// Who the node is.
const RECORD: &str = "node";
/// The format of that.
const FORMAT: u8 = 1;

/// Who a node is, as it is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// The node.
    pub identity: Identity,
    /// The herd that it joined, or whose control store is in etcd; `None`: none yet, or the one whose control store
    /// lies beside this.
    pub herd: Option<HerdId>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Form {
    format: u8,
    identity: Hex,
    herd: Option<Hex>,
}

/// Where the nodes of a herd are, as it is kept.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct KnownForm {
    format: u8,
    herd: Hex,
    addresses: Vec<String>,
}

/// A node's directory, while it is ours.
pub struct Home {
    path: PathBuf,
    /// As long as it is open the directory is ours.
    lock: File,
    /// The directory was made for us.
    is_made: bool,
}

impl Home {
    /// Makes the directory where it is missing, and takes it.
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        let (is_made, until) = (!path.exists(), Instant::now() + LOCK_PATIENCE);
        loop {
            let lock = make(path).and_then(|()| private(path.join(LOCK), OpenOptions::new().write(true)));
            let lock = lock.map_err(|error| no_place(path, &error))?;
            match lock.try_lock() {
                Ok(()) if is_at(&lock, &path.join(LOCK)) => {
                    return Ok(Self { path: path.to_path_buf(), lock, is_made });
                }
                // Its owner took it away while we waited for it.
                Ok(()) => {}
                Err(TryLockError::WouldBlock) if Instant::now() < until => thread::sleep(LOCK_PERIOD),
                Err(TryLockError::WouldBlock) => break,
                Err(TryLockError::Error(error)) => return Err(no_place(path, &error)),
            }
        }
        let todo = "give this one another --name or --data";
        Err(OpenError::InUse(format!("{} belongs to a node that runs: {todo}", path.display())))
    }

    /// The same directory for another part of its owner; taken anew, if it was removed meanwhile.
    pub fn again(&self) -> Result<Self, OpenError> {
        if !is_at(&self.lock, &self.path.join(LOCK)) {
            return Self::open(&self.path);
        }
        let lock = self.lock.try_clone().map_err(|error| no_place(&self.path, &error))?;
        Ok(Self { path: self.path.clone(), lock, is_made: self.is_made })
    }

    /// Takes away what [`keep`](Self::keep) wrote, and the directory if it was made for that.
    pub fn forget(self) {
        // What stays behind is a node that no herd knows.
        fs::remove_file(self.path.join(RECORD)).ok();
        if self.is_made {
            fs::remove_file(self.path.join(LOCK)).ok();
            fs::remove_dir(&self.path).ok();
        }
    }

    /// Whether a node was here before. Writes nothing; a place that can't be looked at is none.
    pub fn is_used(path: &Path) -> bool {
        [STORE, RECORD].iter().any(|name| path.join(name).exists())
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the herd's control store is here.
    pub fn has_store(&self) -> bool {
        self.path.join(STORE).exists()
    }

    /// Who the node is; `None`: nobody yet.
    pub fn record(&self) -> Result<Option<Record>, OpenError> {
        let path = self.path.join(RECORD);
        let mut bytes = Vec::new();
        match File::open(&path).and_then(|file| file.take(NODE_RECORD_MAX_BYTES).read_to_end(&mut bytes)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(no_place(&self.path, &error)),
            Ok(_) => {}
        }
        let form = serde_json::from_slice::<Form>(&bytes).ok().filter(|form| form.format == FORMAT);
        let text =
            || format!("{}: not what this program wrote: move it away, and the node is a new one", path.display());
        let form = form.ok_or_else(|| OpenError::Damaged(text()))?;
        Ok(Some(Record { identity: Identity(form.identity.0), herd: form.herd.map(|herd| HerdId(herd.0)) }))
    }

    /// Keeps who the node is; on the disk when this returns.
    pub fn keep(&self, record: &Record) -> Result<(), OpenError> {
        let herd = record.herd.map(|herd| Hex(herd.0));
        let form = Form { format: FORMAT, identity: Hex(record.identity.0), herd };
        let written = serde_json::to_vec(&form).map_err(io::Error::from).and_then(|bytes| {
            write_new(&self.path.join("node.new"), &bytes)?;
            fs::rename(self.path.join("node.new"), self.path.join(RECORD))?;
            sync_directory(&self.path)
        });
        written.map_err(|error| no_place(&self.path, &error))
    }

    /// What the control store here is. Writes nothing.
    pub fn standing(&self) -> Result<Standing, OpenError> {
        let path = self.path.join(STORE);
        let bytes = match read_up_to(&path, CONTROL_FILE_MAX_BYTES) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Standing::Empty),
            bytes => bytes.map_err(|error| no_place(&self.path, &error))?,
        };
        let table =
            read(&bytes).map_err(|error| error.to_string()).and_then(|(table, _)| standing(&table.all().entries));
        table.map_err(|text| damaged(&self.path, &text))
    }

    /// The map in the control store here, and which node of it this is. Writes nothing; `None`: there is none, or it
    /// can't be read.
    pub fn map(&self) -> Option<(Arc<Map>, Option<NodeId>)> {
        let bytes = read_up_to(&self.path.join(STORE), CONTROL_FILE_MAX_BYTES).ok()?;
        let (table, _) = read(&bytes).ok()?;
        let own = self.record().ok().flatten().map(|record| record.identity);
        map_of(&table.all().entries, own)
    }

    /// Keeps a copy of a control store, for that move; those of other moves go. On the disk when this returns.
    pub fn prepare(&self, id: MoveId, copy: &Snapshot) -> Result<(), OpenError> {
        let new = self.path.join("coming.new");
        let written = self.drop_coming(Some(id)).and_then(|()| {
            write_new(&new, &whole(copy))?;
            fs::rename(&new, self.path.join(format!("{COMING}{}", id.text())))?;
            sync_directory(&self.path)
        });
        written.map_err(|error| no_place(&self.path, &error))
    }

    /// The moves for which there are copies.
    pub fn coming(&self) -> Vec<MoveId> {
        let names = fs::read_dir(&self.path).into_iter().flatten().flatten().map(|entry| entry.file_name());
        names.filter_map(|name| MoveId::parse(name.to_str()?.strip_prefix(COMING)?)).collect()
    }

    /// The move by which the control store here came.
    pub fn came_by(&self) -> Option<MoveId> {
        match self.standing() {
            Ok(Standing::Open { came, .. }) => came,
            _ => None,
        }
    }

    /// Takes the copies away, but for that of one move.
    fn drop_coming(&self, but: Option<MoveId>) -> io::Result<()> {
        let others = self.coming().into_iter().filter(|id| Some(*id) != but);
        others.into_iter().try_for_each(|id| fs::remove_file(self.path.join(format!("{COMING}{}", id.text()))))
    }

    /// The copy of that move becomes the control store here; one that did so before is it still. An error: there is no
    /// such copy.
    pub fn begin(self, id: MoveId) -> Result<Box<dyn Control + Send>, OpenError> {
        let copy = self.path.join(format!("{COMING}{}", id.text()));
        if copy.exists() {
            let begun = fs::rename(&copy, self.path.join(STORE)).and_then(|()| sync_directory(&self.path));
            begun.map_err(|error| no_place(&self.path, &error))?;
        } else if !matches!(self.standing()?, Standing::Open { came: Some(came), .. } if came == id) {
            let path = self.path.display();
            return Err(OpenError::Damaged(format!(
                "{path}: the copy of the control store of move {} is gone",
                id.text()
            )));
        }
        // What is left of others is of no use.
        self.drop_coming(None).ok();
        self.store()
    }

    /// Keeps where the nodes of the herd are.
    pub fn know(&self, herd: HerdId, addresses: &[String]) -> io::Result<()> {
        let form = KnownForm { format: FORMAT, herd: Hex(herd.0), addresses: addresses.to_vec() };
        let new = self.path.join("nodes.new");
        write_new(&new, &serde_json::to_vec(&form)?)?;
        fs::rename(&new, self.path.join(KNOWN))
    }

    /// Where the nodes of that herd were; empty: that is not known.
    pub fn known(&self, herd: HerdId) -> Vec<String> {
        let bytes = read_up_to(&self.path.join(KNOWN), KNOWN_MAX_BYTES).unwrap_or_default();
        let form = serde_json::from_slice::<KnownForm>(&bytes).ok();
        let form = form.filter(|form| form.format == FORMAT && form.herd.0 == herd.0);
        form.map_or(Vec::new(), |form| form.addresses)
    }

    /// The control store here, begun if there is none.
    pub fn store(self) -> Result<Box<dyn Control + Send>, OpenError> {
        let path = self.path.clone();
        embedded::over(Directory::new(self), &path)
    }

    /// The place of a node that had none: keeps who it is, and gives a control store that goes on with what another
    /// held. No node may have been here before. Where it can't be done nothing of it stays, so it may be tried again.
    pub fn settle(self, record: &Record, snapshot: &Snapshot) -> Result<Box<dyn Control + Send>, OpenError> {
        if Self::is_used(&self.path) {
            let text = "another node was here: give this one a --data, or a --name, of its own";
            return Err(OpenError::InUse(format!("{}: {text}", self.path.display())));
        }
        let own = self.again()?;
        let kept = self.keep(record);
        let settled = kept.and_then(|()| embedded::hand_over(Directory::new(self), &own.path, snapshot));
        if settled.is_err() {
            // None of it is another node's: that was looked at.
            [STORE, RECORD].iter().for_each(|name| drop(fs::remove_file(own.path.join(name))));
        }
        settled
    }
}

fn damaged(path: &Path, text: &str) -> OpenError {
    let (path, todo) = (path.display(), "move it away, and the herd begins anew, with nothing in it");
    OpenError::Damaged(format!("control store in {path}: {text}: {todo}"))
}

fn read_up_to(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(most + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

pub(super) fn no_place(path: &Path, error: &io::Error) -> OpenError {
    let path = path.display();
    OpenError::NoPlace(format!("{path}: {error}: give the node a directory that it can write to with --data"))
}

/// Whether an open file is the one of that path.
pub(super) fn is_at(file: &File, path: &Path) -> bool {
    let identity = |of: fs::Metadata| (of.dev(), of.ino());
    let (ours, there) = (file.metadata().map(identity), fs::metadata(path).map(identity));
    matches!((ours, there), (Ok(ours), Ok(there)) if ours == there)
}

/// Makes a directory where it is missing, so that it lasts.
fn make(path: &Path) -> io::Result<()> {
    let missing = path.ancestors().take_while(|path| !path.as_os_str().is_empty() && !path.exists()).count();
    DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    let parents = path.ancestors().skip(1).take(missing);
    parents.filter(|path| !path.as_os_str().is_empty()).try_for_each(sync_directory)
}

/// Opens a file, made where it is missing, that only its user may read.
pub(super) fn private(path: PathBuf, options: &mut OpenOptions) -> io::Result<File> {
    options.create(true).mode(0o600).open(path)
}

/// A new file with these bytes, which are on the disk then.
pub(super) fn write_new(path: &Path, bytes: &[u8]) -> io::Result<File> {
    let mut file = private(path.to_path_buf(), OpenOptions::new().append(true))?;
    file.set_len(0)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    Ok(file)
}

pub(super) fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}
