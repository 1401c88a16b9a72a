//! A node that was told to join a herd that is there: who it is, and what it says of itself.

use super::begin::{BeginError, Drawn, Options, join};
use crate::control::{Home, OpenError, Record};
use herd_core::key::{CollectionId, HashKey, ObjectId};
use herd_core::place::HerdId;
use herd_core::warden::moving::Standing;
use herd_core::warden::{Identity, Join, MoveId};

/// A node on its way into a herd.
pub struct Newcomer {
    /// What it asks of the warden.
    pub join: Join,
    /// Its directory, which nobody else has meanwhile; `None`: it has no place.
    home: Option<Home>,
    /// Nobody was there before.
    is_new: bool,
}

impl Newcomer {
    /// A node that is told this. Its directory is taken, so that it is in a herd only once at a time. Without any place
    /// it is whoever has its name, host and address: it comes back as the same node.
    pub fn new(options: &Options, drawn: &Drawn) -> Result<Self, BeginError> {
        let home = match options.place.as_deref().map(Home::open) {
            Some(Err(OpenError::NoPlace(_))) if !options.lasts => None,
            home => home.transpose()?,
        };
        let (record, is_new) = match &home {
            Some(home) => known(home, drawn)?,
            None => (Record { identity: placeless(options), herd: None }, false),
        };
        let join = Join { herd: record.herd, ..join(options, record.identity, drawn.process) };
        Ok(Self { join, home, is_new })
    }

    /// Its directory, for as long as the node runs.
    pub(crate) fn into_home(self) -> Option<Home> {
        self.home
    }

    /// The moves whose copies of a control store are in its directory.
    pub(crate) fn coming(&self) -> Vec<MoveId> {
        self.home.as_ref().map_or(Vec::new(), Home::coming)
    }

    /// The herd did not let it in, so nobody knows who it is: what was written of that goes.
    pub fn refused(self) {
        self.home.filter(|_| self.is_new).into_iter().for_each(Home::forget);
    }

    /// It is in: from now on it belongs to this herd, and to no other.
    pub fn joined(&self, herd: HerdId) -> Result<(), OpenError> {
        let record = Record { identity: self.join.identity, herd: Some(herd) };
        self.home.as_ref().map_or(Ok(()), |home| home.keep(&record))
    }
}

/// Who the node of a directory is, and whether it is somebody new, as it was nobody's yet. That is written before the
/// herd is asked: a node that ends before it hears the answer may be in, and must be the same one the next time.
fn known(home: &Home, drawn: &Drawn) -> Result<(Record, bool), BeginError> {
    // One that was moved is no store any more.
    if home.has_store() && !matches!(home.standing()?, Standing::Moved(_)) {
        return Err(BeginError::Warden(home.path().to_path_buf()));
    }
    match home.record()? {
        Some(record) => Ok((record, false)),
        None => {
            let record = Record { identity: Identity(drawn.identity), herd: None };
            home.keep(&record)?;
            Ok((record, true))
        }
    }
}

/// A number for where the node is: two that run at once have not the same address.
pub(super) fn placeless(options: &Options) -> Identity {
    let told = [Some(&options.name), Some(&options.host), options.addresses.first()];
    let told: Vec<&str> = told.into_iter().flatten().map(String::as_str).collect();
    Identity(ObjectId::of(&HashKey([0; 16]), CollectionId(0), told.join("\0").as_bytes()).to_bytes())
}
