//! Which way a node comes into its herd: by what it was told, and by what is in its directory. What it was told may be
//! of a time when the herd's control store was elsewhere; what is in the directory holds.
//!
//! | in the directory | told nothing, or an etcd | told to join |
//! |---|---|---|
//! | nothing | begins, or goes on in etcd | joins |
//! | a control store | goes on with it | goes on with it, if it came by a move |
//! | one that was moved to a node | joins, by the nodes that it knew | joins, by these too |
//! | nothing, and in that etcd is a copy that is not begun | joins, by the nodes that it knew | joins |
//! | one that was moved to etcd | goes on in that, or where it went from there | joins, unless it was the last here |
//!
//! Where that etcd does not answer, and it was told to join, it joins: who is in the herd knows where the map is.
//!
//! Where another node's warden is in office in that etcd by now, the node joins that one (`start.rs`).

use super::StartError;
use super::start::Entry;
use crate::control::etcd::{Address, Etcd, Halt};
use crate::control::{Home, OpenError};
use crate::warden::{BeginError, Options};
use herd_core::control::Control;
use herd_core::place::HerdId;
use herd_core::warden::moving::{Standing, standing};
use herd_core::warden::{Mark, MoveId};

/// See the module.
pub(super) enum Way {
    /// With a warden of its own.
    Begin(Box<Options>),
    /// By one of these nodes.
    Join {
        nodes: Vec<String>,
        /// The control store that was here went to the first of them, which is to begin with it.
        moved: Option<MoveId>,
    },
}

/// Of a node with these options.
pub(super) fn way(entry: &Entry, options: Options) -> Result<Way, StartError> {
    let plain = |options: Options| match entry.join.is_empty() {
        true => Way::Begin(Box::new(options)),
        false => Way::Join { nodes: entry.join.clone(), moved: None },
    };
    // What is wrong with the directory is told by what takes it.
    let used = options.place.as_deref().filter(|place| Home::is_used(place)).map(Home::open);
    let Some(Ok(home)) = used else { return Ok(plain(options)) };
    let herd = home.record().map_err(BeginError::Place)?.and_then(|record| record.herd);
    let known = herd.map_or(Vec::new(), |herd| home.known(herd));
    // What can't be believed is told by what opens it.
    let Ok(standing) = home.standing() else { return Ok(plain(options)) };
    match standing {
        Standing::Open { .. } if herd.is_some() => Ok(Way::Begin(Box::new(Options { etcd: None, ..options }))),
        Standing::Moved(mark) => of_moved(entry, options, &home, mark),
        Standing::Empty if !entry.join.is_empty() => Ok(Way::Join { nodes: joined(&entry.join, &known), moved: None }),
        Standing::Empty if options.etcd.is_some() => of_etcd(entry, options, &home),
        _ => Ok(plain(options)),
    }
}

/// The control store that was in its directory went elsewhere.
fn of_moved(entry: &Entry, options: Options, home: &Home, mark: Mark) -> Result<Way, StartError> {
    let Some(text) = &mark.etcd else {
        let nodes = joined(&joined(&mark.addresses, &entry.join), &home.known(mark.herd));
        keep_herd(home, mark.herd)?;
        return Ok(Way::Join { nodes, moved: Some(mark.id) });
    };
    let bad = |text| BeginError::Place(OpenError::Damaged(format!("{}: {text}", home.path().display())));
    let address = Address::parse(text).map_err(bad)?.forced(entry.forced);
    let mut etcd = Etcd::open(&address, Halt::default()).and_then(|mut etcd| etcd.wait().map(|()| etcd));
    if let (Err(error), false) = (&etcd, entry.join.is_empty()) {
        // Who is in that herd knows where the map is by now.
        (entry.tell)(&format!("the herd's map went to {address}: {error}; asking the nodes of --join instead"));
        keep_herd(home, mark.herd)?;
        return Ok(Way::Join { nodes: joined(&entry.join, &home.known(mark.herd)), moved: None });
    }
    let standing = etcd.as_mut().map_err(|error| BeginError::Etcd(error.clone())).and_then(|etcd| {
        // That may have been done, and the store may have gone on since.
        etcd.begin(mark.id).ok();
        etcd.snapshot().map_err(BeginError::Etcd)
    })?;
    keep_herd(home, mark.herd)?;
    let there = self::standing(&standing.entries);
    // By a later move another node's warden may have come there.
    let is_last = !matches!(&there, Ok(Standing::Open { came, .. }) if *came != Some(mark.id));
    let is_its = mark.node == options.name && is_last || entry.join.is_empty();
    match there {
        Ok(Standing::Moved(next)) => by_mark(entry, options, home, next),
        _ if is_its => Ok(Way::Begin(Box::new(Options { etcd: Some(address), ..options }))),
        _ => Ok(Way::Join { nodes: joined(&entry.join, &home.known(mark.herd)), moved: None }),
    }
}

/// The control store that it was told is in etcd may have gone elsewhere.
fn of_etcd(entry: &Entry, options: Options, home: &Home) -> Result<Way, StartError> {
    let begin = |options| Ok(Way::Begin(Box::new(options)));
    let Some(address) = &options.etcd else { return begin(options) };
    let mut etcd = Etcd::open(address, Halt::default()).map_err(BeginError::Etcd)?;
    let entries = etcd.wait().and_then(|()| etcd.snapshot()).map_err(BeginError::Etcd)?.entries;
    match standing(&entries) {
        Ok(Standing::Moved(mark)) => by_mark(entry, options, home, mark),
        // It is on its way back there, or was and came to nothing: whoever has it by now is one of these.
        Ok(Standing::Coming(coming)) if !home.known(coming.herd).is_empty() => {
            Ok(Way::Join { nodes: joined(&entry.join, &home.known(coming.herd)), moved: None })
        }
        // What is wrong with it is told by who begins in it.
        _ => begin(options),
    }
}

/// The control store that was in an etcd went to a node's directory, perhaps to this one.
fn by_mark(entry: &Entry, options: Options, home: &Home, mark: Mark) -> Result<Way, StartError> {
    if home.coming().contains(&mark.id) {
        home.again().and_then(|home| home.begin(mark.id)).map(drop).map_err(BeginError::Place)?;
        keep_herd(home, mark.herd)?;
        return Ok(Way::Begin(Box::new(Options { etcd: None, ..options })));
    }
    let nodes = joined(&joined(&mark.addresses, &entry.join), &home.known(mark.herd));
    Ok(Way::Join { nodes, moved: Some(mark.id) })
}

/// The first ones, and those others that are not among them.
fn joined(first: &[String], more: &[String]) -> Vec<String> {
    let more = more.iter().filter(|text| !first.contains(text));
    first.iter().chain(more).cloned().collect()
}

/// The node belongs to that herd, and not to one whose control store is beside it any more.
fn keep_herd(home: &Home, herd: HerdId) -> Result<(), StartError> {
    let record = home.record().map_err(BeginError::Place)?.filter(|record| record.herd != Some(herd));
    let kept = record.map(|record| home.keep(&crate::control::Record { herd: Some(herd), ..record }));
    Ok(kept.unwrap_or(Ok(())).map_err(BeginError::Place)?)
}

/// The copy of that move becomes the control store of this node, which was told so by who moved it.
pub(super) fn take_up(options: &Options, id: MoveId) -> Result<(), StartError> {
    let Some(place) = options.place.as_deref() else { return Ok(()) };
    let begun = Home::open(place).and_then(|home| home.begin(id)).map(drop);
    Ok(begun.map_err(BeginError::Place)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::Record;
    use crate::control::etcd::tests::server::Real;
    use herd_core::control::{Entry as Kept, Snapshot};
    use herd_core::warden::Identity;
    use std::sync::Arc;
    use tempfile::TempDir;

    const HERD: HerdId = HerdId([9; 16]);

    fn copy() -> Snapshot {
        let hex = |byte: &str| byte.repeat(16);
        let (herd, key) = (hex("09"), hex("01"));
        let herd = format!("{{\"format\":1,\"herd\":\"{herd}\",\"hash_key\":\"{key}\",\"protocol_min\":1}}");
        let entries = [("herd", herd.as_str()), ("map", "a head")];
        let entry = |(key, value): (&str, &str)| Kept { key: key.into(), value: value.as_bytes().into(), revision: 1 };
        Snapshot { revision: 1, term: 3, entries: entries.map(entry).into() }
    }

    fn entry(place: &TempDir) -> Entry {
        Entry {
            join: Vec::new(),
            place: Some(place.path().into()),
            lasts: true,
            etcd: None,
            forced: true,
            advertise: Vec::new(),
            machine: "m".into(),
            host: "h".into(),
            rack: String::new(),
            copies: None,
            secret: None,
            witness: None,
            tell: Arc::new(|_| {}),
        }
    }

    fn options(place: &TempDir, etcd: &Address) -> Options {
        Options {
            place: Some(place.path().into()),
            lasts: true,
            etcd: Some(etcd.clone()),
            name: "n1".into(),
            addresses: vec!["127.0.0.1:1".into()],
            host: "h".into(),
            rack: String::new(),
            memory_bytes: 1 << 30,
            evict: false,
            copies: None,
            unix_ms: 0,
        }
    }

    /// A node that was started with that etcd goes where its herd is, and begins none there.
    #[test]
    fn a_copy_in_etcd_that_is_not_begun_is_no_herd_s_yet() {
        let Some(real) = Real::start() else { return };
        let address = Address::parse(&real.url("it")).expect("right").forced(true);
        let mut etcd = Etcd::open(&address, Halt::default()).expect("it is there");
        etcd.prepare(MoveId([4; 16]), HERD, &copy()).expect("it is empty");
        for knows in [true, false] {
            let place = TempDir::new().expect("a directory");
            let home = Home::open(place.path()).expect("it is free");
            home.keep(&Record { identity: Identity([1; 16]), herd: Some(HERD) }).expect("written");
            if knows {
                home.know(HERD, &["10.0.0.2:7700".into()]).expect("written");
            }
            drop(home);
            match way(&entry(&place), options(&place, &address)).expect("etcd is there") {
                Way::Join { nodes, moved } => {
                    assert_eq!((nodes.join(","), moved, knows), ("10.0.0.2:7700".into(), None, true))
                }
                Way::Begin(options) => assert!(options.etcd.is_some() && !knows, "what is wrong is told by who begins"),
            }
        }
    }
}
