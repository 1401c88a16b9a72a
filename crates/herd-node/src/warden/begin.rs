//! How a herd begins, or goes on: what a node that was not told to join does before it serves.
//!
//! * With a directory of its own that it was given (`--data`), or where a node was before: the herd whose control store
//!   is there goes on; where there is none it begins. Where that fails the node does not start: beside a herd that is
//!   there no other one is begun.
//! * Else nothing is written but the lock of its directory, if that can be had. The store is in memory, and the herd is
//!   of one node. When a second one comes, the store is put where it lasts; where that fails, that node is refused.
//! * With etcd the herd in it goes on, or begins there. The directory says who the node is, and of which herd: so no
//!   herd is begun in it by a start without etcd. Another node's warden may be in office: then the node does not start.

use super::drive::{Footing, Later, Outlets, Remote, Running};
use super::newcomer::placeless;
use crate::control::etcd::{Address, Etcd, Halt};
use crate::control::{Home, OpenError, Record};
use crate::environment::random;
use herd_core::control::{Control, ControlError, Table, Term};
use herd_core::entry::{Version, first_epoch, first_version};
use herd_core::error::quote;
use herd_core::key::CollectionId;
use herd_core::limits::{OFFICE_PATIENCE_MS, WARDEN_START_MS};
use herd_core::place::{HerdId, Map, Node};
use herd_core::warden::moving::Standing;
use herd_core::warden::{Answer, Ask, Birth, Config, Hex, Identity, Join, Joined, Refusal};
use herd_core::wire::{LINK_PROTOCOL, LINK_PROTOCOL_LEAST};
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

/// How soon the office is asked for again that another holds.
const OFFICE_AGAIN: Duration = Duration::from_millis(100);
/// Of an address, what stands in the warden's name.
const ADDRESS_CHARS: usize = 200;

/// What a node is told at its start.
#[derive(Clone, Debug)]
pub struct Options {
    /// Its own directory, if it has any place: [`place`](crate::control::place).
    pub place: Option<PathBuf>,
    /// That directory was given to it (`--data`): what it keeps lasts from the first moment.
    pub lasts: bool,
    /// The etcd in which the herd's control store is; `None`: it is in the directory of its first node.
    pub etcd: Option<Address>,
    /// Its name.
    pub name: String,
    /// Where it can be reached, best first; at least one.
    pub addresses: Vec<String>,
    /// The machine it runs on.
    pub host: String,
    /// The rack of that; empty: not told.
    pub rack: String,
    /// Memory for objects.
    pub memory_bytes: u64,
    /// Collection `default` evicts.
    pub evict: bool,
    /// Copies that `default` keeps in a herd that begins; `None`: one, two, three with as many nodes.
    pub copies: Option<u8>,
    /// The date, ms since 1970.
    pub unix_ms: u64,
}

/// What nobody can guess, drawn at a start; what is known already takes its place.
#[derive(Clone, Copy, Debug)]
pub struct Drawn {
    /// The herd's id.
    pub herd: [u8; 16],
    /// The key of its name hash.
    pub hash_key: [u8; 16],
    /// Who the node is, over its restarts.
    pub identity: [u8; 16],
    /// Which process it is.
    pub process: [u8; 16],
}

impl Drawn {
    /// Draws them from this machine.
    pub fn new() -> io::Result<Self> {
        Ok(Self { herd: random()?, hash_key: random()?, identity: random()?, process: random()? })
    }
}

/// A herd that has begun, or goes on.
pub struct Begun {
    /// Its warden.
    pub warden: Running,
    /// What this node is in it, and the key of names.
    pub joined: Joined,
    /// The map with this node in it.
    pub map: Arc<Map>,
    /// Whether the herd may hold objects.
    pub held: bool,
    /// Below all versions that this node is to give, and above those of its earlier starts that the map does not know
    /// of: with [`Options::lasts`], 0.
    pub first_version: Version,
}

/// Why no herd begins.
#[derive(Debug)]
pub enum BeginError {
    /// Of its directory.
    Place(OpenError),
    /// The directory is that of a node of this herd.
    Elsewhere(PathBuf, HerdId),
    /// The directory is that of a herd's warden, and the node was told to join.
    Warden(PathBuf),
    /// The directory has the control store of a herd in it, and the node was told that it is in etcd.
    Embedded(PathBuf),
    /// The control store in the directory is an old copy.
    OldCopy {
        /// The directory.
        path: PathBuf,
        /// Where a node is that has a later map.
        address: String,
    },
    /// A process of the node runs, from a copy of the directory.
    Runs {
        /// The directory.
        path: PathBuf,
        /// Where it is.
        address: String,
    },
    /// etcd can't be used.
    Etcd(ControlError),
    /// The herd in etcd has a warden, of this name.
    Held(String),
    /// The node can't be one of the herd that is there.
    Refused(Refusal),
    /// The herd that is there keeps so many copies in collection `default`, and other ones were asked for.
    Copies {
        /// What it keeps.
        kept: u8,
        /// What was asked for.
        asked: u8,
    },
    /// The control store does not answer.
    Silent,
    /// There is no thread to be had.
    Thread(io::Error),
}

impl fmt::Display for BeginError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BeginError::Place(error) => error.fmt(f),
            BeginError::Elsewhere(path, herd) => {
                let herd = String::from(Hex(herd.0));
                let path = path.display();
                let todo = "--join that one, name the etcd of its map with --control, or give the node another --data";
                write!(f, "{path}: its node belongs to herd {herd}: {todo}")
            }
            BeginError::Warden(path) => {
                let todo = "start the node without --join, or give it another --data";
                write!(f, "{}: the control store of a herd is there: {todo}", path.display())
            }
            BeginError::Embedded(path) => {
                let todo = "leave --control out, or give the node another --data; `herd control migrate` moves it";
                write!(f, "{}: the map of a herd is here, and not in etcd: {todo}", path.display())
            }
            BeginError::OldCopy { path, address } => write!(
                f,
                "{}: the herd's map is here in an old copy, as the node at {} has a later map: put back the latest one",
                path.display(),
                quote(address.as_bytes())
            ),
            BeginError::Runs { path, address } => write!(
                f,
                "{}: a process of this node runs at {}, from a copy of this directory: end that one first",
                path.display(),
                quote(address.as_bytes())
            ),
            BeginError::Etcd(error) => error.fmt(f),
            BeginError::Held(name) => {
                let address = name.split(' ').next().unwrap_or_default().escape_default();
                write!(f, "the herd in etcd has its warden at {address}: --join that node, and leave --control out")
            }
            BeginError::Refused(refusal) => refusal.fmt(f),
            BeginError::Copies { kept, asked } => {
                let todo = "leave --replicas out, or begin a herd anew";
                write!(f, "--replicas {asked}: the herd that is there keeps {}: {todo}", counted(*kept))
            }
            BeginError::Silent => f.write_str("the control store does not answer: see to its disk, or to etcd"),
            BeginError::Thread(error) => write!(f, "a thread for the warden: {error}"),
        }
    }
}

fn counted(copies: u8) -> String {
    format!("{copies} {} of each object in 'default'", if copies == 1 { "copy" } else { "copies" })
}

impl std::error::Error for BeginError {}

impl BeginError {
    /// Whether the herd has surely not let the node in.
    fn is_outside(&self) -> bool {
        match self {
            BeginError::Refused(refusal) => !matches!(refusal, Refusal::Unknown),
            BeginError::Held(_) => true,
            _ => false,
        }
    }
}

impl From<ControlError> for BeginError {
    fn from(error: ControlError) -> Self {
        BeginError::Etcd(error)
    }
}

impl From<OpenError> for BeginError {
    fn from(error: OpenError) -> Self {
        BeginError::Place(error)
    }
}

/// Begins a herd with this node, or goes on with the one that is in its directory, or in etcd. When this returns the
/// node is in the map. `outlets` are called before that already.
pub fn begin(options: Options, drawn: &Drawn, outlets: Outlets) -> Result<Begun, BeginError> {
    let claim = claim(&options)?;
    let used = |home: &Home| options.lasts || Home::is_used(home.path());
    let lasts = options.etcd.is_some() || claim.as_ref().is_some_and(used);
    let own = claim.as_ref().map(Home::again).transpose()?;
    let Ground { store, record, later, remote, is_new } = match &options.etcd {
        Some(address) => in_etcd(claim, address, &options, drawn)?,
        None => ground(claim, lasts, &options, drawn)?,
    };
    let first_version = if lasts { 0 } else { first_version(options.unix_ms) };
    let join = Join { herd: record.herd, ..join(&options, record.identity, drawn.process) };
    let config = config(&options, &join, drawn, lasts);
    let home = remote.as_ref().and_then(|remote| remote.home.as_ref()).map(Home::again).transpose()?;
    let patience_ms = if remote.is_some() { OFFICE_PATIENCE_MS } else { 0 };
    let (etcd, name) = (options.etcd.clone(), options.name.clone());
    let footing = Footing { store, later, remote, etcd, home: own, name };
    let running = Running::start(config, footing, outlets).map_err(BeginError::Thread)?;
    // The map was pushed before the join was answered.
    let joined = first_join(&running, join, Duration::from_millis(patience_ms));
    let begun = joined.and_then(|joined| Ok((joined, running.handle().map().ok_or(BeginError::Silent)?)));
    let begun = begun.and_then(|begun| check_copies(&options, &begun.1.0).map(|()| begun));
    let is_refused = is_new && begun.as_ref().err().is_some_and(BeginError::is_outside);
    let kept = begun.and_then(|(joined, map)| {
        let record = Record { identity: record.identity, herd: Some(joined.herd) };
        home.as_ref().map_or(Ok(()), |home| home.keep(&record))?;
        Ok((joined, map))
    });
    match kept {
        Ok((joined, (map, held))) => Ok(Begun { warden: running, joined, map, held, first_version }),
        Err(error) => {
            // The directory is free again; where it can't be, its disk hangs, and that is the error.
            running.stop().ok();
            home.filter(|_| is_refused).into_iter().for_each(Home::forget);
            Err(error)
        }
    }
}

/// Goes on as warden with a control store that came to this node's directory by a move. The node is in its map.
pub(crate) fn go_on(
    home: &Home,
    store: Box<dyn Control + Send>,
    node: &Node,
    process: [u8; 16],
    outlets: Outlets,
) -> Result<Running, BeginError> {
    let name = candidate(&node.addresses, process);
    let config = Config { name, protocol: LINK_PROTOCOL.into(), lasts: true, birth: None };
    let (home, name) = (Some(home.again()?), node.name.clone());
    let footing = Footing { store, later: None, remote: None, etcd: None, home, name };
    Running::start(config, footing, outlets).map_err(BeginError::Thread)
}

/// The name of a candidate: where it is, and which process it is.
fn candidate(addresses: &[String], process: [u8; 16]) -> String {
    let address = addresses.iter().flat_map(|address| address.chars()).filter(char::is_ascii_graphic);
    let address: String = address.take(ADDRESS_CHARS).collect();
    format!("{address} {}", String::from(Hex(process)))
}

/// An error if the herd keeps other copies than were asked for: it was made with those.
fn check_copies(options: &Options, map: &Map) -> Result<(), BeginError> {
    let kept = map.spread(CollectionId::DEFAULT.spread_group()).map(|spread| spread.copies);
    match options.copies.zip(kept).filter(|(asked, kept)| asked != kept) {
        Some((asked, kept)) => Err(BeginError::Copies { kept, asked }),
        None => Ok(()),
    }
}

/// What a herd stands on.
struct Ground {
    store: Box<dyn Control + Send>,
    record: Record,
    later: Option<Later>,
    /// Where the store is in no directory.
    remote: Option<Remote>,
    /// Who the node is was just written to its directory.
    is_new: bool,
}

/// The node's directory, which is its own from now on; `None`: it has no place, and needs none yet. That the place
/// can't be had, or another node by itself has it, and nothing there, keeps other nodes from joining, and no more.
fn claim(options: &Options) -> Result<Option<Home>, BeginError> {
    let Some(place) = options.place.as_deref() else { return Ok(None) };
    match Home::open(place) {
        Err(OpenError::NoPlace(_)) if !options.lasts && !Home::is_used(place) => Ok(None),
        Err(OpenError::InUse(_)) if !options.lasts && !Home::is_used(place) && options.etcd.is_none() => Ok(None),
        claim => Ok(Some(claim?)),
    }
}

fn ground(claim: Option<Home>, lasts: bool, options: &Options, drawn: &Drawn) -> Result<Ground, BeginError> {
    let new = Record { identity: Identity(drawn.identity), herd: None };
    let (home, claim) = if lasts { (claim, None) } else { (None, claim) };
    let Some(home) = home else {
        let later = options.place.clone().map(|place| Later { place, claim, record: new });
        return Ok(Ground { store: Box::new(Table::default()), record: new, later, remote: None, is_new: false });
    };
    let known = home.record()?;
    // Beside the control store of a herd that it joined, which came here by a move, all is as it should be.
    if let Some(herd) = known.and_then(|record| record.herd)
        && !matches!(home.standing()?, Standing::Open { .. })
    {
        return Err(BeginError::Elsewhere(home.path().to_path_buf(), herd));
    }
    if known.is_none() {
        // Before the store says that it is a node: without it, it would be another one the next time.
        home.keep(&new)?;
    }
    let (store, record) = (home.store()?, known.unwrap_or(new));
    Ok(Ground { store, record, later: None, remote: None, is_new: false })
}

/// Of a herd whose control store is in etcd: the directory says only who the node is, and of which herd.
fn in_etcd(home: Option<Home>, address: &Address, options: &Options, drawn: &Drawn) -> Result<Ground, BeginError> {
    if let Some(home) = home.as_ref().filter(|home| home.has_store())
        && !matches!(home.standing()?, Standing::Moved(_))
    {
        return Err(BeginError::Embedded(home.path().to_path_buf()));
    }
    let known = home.as_ref().map(Home::record).transpose()?.flatten();
    let halt = Halt::default();
    let opened = Etcd::open(address, halt.clone());
    let store = match opened.and_then(|mut store| store.wait().map(|()| store)) {
        Ok(store) => Box::new(store),
        Err(error) => {
            home.filter(|_| known.is_none()).into_iter().for_each(Home::forget);
            return Err(error.into());
        }
    };
    let identity = if home.is_some() { Identity(drawn.identity) } else { placeless(options) };
    let record = known.unwrap_or(Record { identity, herd: None });
    let new = home.as_ref().filter(|_| known.is_none());
    new.map_or(Ok(()), |home| home.keep(&record))?;
    let is_new = new.is_some();
    Ok(Ground { store, record, later: None, remote: Some(Remote { home, halt }), is_new })
}

/// What a node says of itself.
pub(super) fn join(options: &Options, identity: Identity, process: [u8; 16]) -> Join {
    Join {
        herd: None,
        protocol: LINK_PROTOCOL.into(),
        identity,
        process,
        name: options.name.clone(),
        addresses: options.addresses.clone(),
        host: options.host.clone(),
        rack: options.rack.clone(),
        memory_bytes: options.memory_bytes,
        evict: options.evict,
        moved: None,
    }
}

fn config(options: &Options, join: &Join, drawn: &Drawn, lasts: bool) -> Config {
    let birth = Birth {
        herd: HerdId(drawn.herd),
        hash_key: drawn.hash_key,
        // With its first node the map has the epoch that the clock says.
        epoch: if lasts { 1 } else { first_epoch(options.unix_ms).saturating_sub(1).max(1) },
        protocol_min: LINK_PROTOCOL_LEAST.into(),
        evict: options.evict,
        copies: options.copies,
    };
    let name = candidate(&join.addresses, join.process);
    // Whose herd is elsewhere begins none.
    Config { name, protocol: join.protocol, lasts, birth: join.herd.is_none().then_some(birth) }
}

/// The node's own join, which is the first request of all. Another's office is waited for so long: the life of this
/// node before may hold it yet.
fn first_join(running: &Running, join: Join, patience: Duration) -> Result<Joined, BeginError> {
    let until = Instant::now() + patience;
    loop {
        let (reply, answer) = mpsc::sync_channel(1);
        // It is this process that asks: no term is too late for it.
        let ask = Ask::Join(join.clone());
        running.handle().ask_since(Term::MAX, ask, move |answer| drop(reply.try_send(answer)));
        match answer.recv_timeout(Duration::from_millis(WARDEN_START_MS)) {
            Ok(Ok(Answer::Joined(joined))) => return Ok(joined),
            Ok(Err(Refusal::NotWarden(_))) if Instant::now() < until => std::thread::sleep(OFFICE_AGAIN),
            Ok(Err(Refusal::NotWarden(Some(holder)))) => return Err(BeginError::Held(holder)),
            Ok(Err(refusal)) => return Err(BeginError::Refused(refusal)),
            Ok(Ok(_)) | Err(_) => return Err(BeginError::Silent),
        }
    }
}
