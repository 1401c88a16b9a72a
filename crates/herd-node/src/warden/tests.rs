//! The warden's thread over real stores: how herds begin and go on, what is asked of it, and what disks do to it.

mod begins;
mod disks;
mod etcd;
mod leases;
mod shift;
mod work;

use super::{BeginError, Begun, Drawn, Options, Outlets, begin};
use crate::lease::Leases;
use herd_core::place::{Map, NodeId};
use herd_core::warden::{Answer, Ask, Create, Identity, Join, Joined, Refusal};
use std::path::Path;
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// When the tests take place.
const NOW_MS: u64 = 1_800_000_000_000;
/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// What an outlet was given.
type Seen<T> = Arc<Mutex<Vec<T>>>;

fn seen<T: Clone>(what: &Seen<T>) -> Vec<T> {
    what.lock().expect("no test panics with it").clone()
}

/// What a warden pushed, and told the log.
#[derive(Clone)]
struct Watched {
    pushed: Seen<(Arc<Map>, bool)>,
    told: Seen<String>,
    leases: Arc<Leases>,
}

impl Default for Watched {
    fn default() -> Self {
        Self { pushed: Seen::default(), told: Seen::default(), leases: Leases::of_machine() }
    }
}

impl Watched {
    fn outlets(&self) -> Outlets {
        let (pushed, told) = (self.pushed.clone(), self.told.clone());
        Outlets {
            leases: self.leases.clone(),
            push: Box::new(move |map, held| pushed.lock().expect("as above").push((map, held))),
            tell: Box::new(move |line| told.lock().expect("as above").push(line.into())),
            errands: None,
        }
    }

    /// What was pushed, each later than the one before.
    fn maps(&self) -> Vec<Arc<Map>> {
        let pushed = seen(&self.pushed);
        let number = |(map, held): &(Arc<Map>, bool)| (map.term, map.epoch, map.revision, *held);
        assert!(
            pushed.is_sorted_by(|a, b| number(a) < number(b)),
            "{:?}",
            pushed.iter().map(number).collect::<Vec<_>>()
        );
        pushed.into_iter().map(|(map, _)| map).collect()
    }
}

/// A node that is told nothing but its place.
fn options(place: Option<&Path>, lasts: bool) -> Options {
    Options {
        place: place.map(Path::to_path_buf),
        lasts,
        etcd: None,
        name: "node-1".into(),
        addresses: vec!["127.0.0.1:7700".into()],
        host: "host".into(),
        rack: String::new(),
        memory_bytes: 1 << 30,
        evict: false,
        copies: None,
        unix_ms: NOW_MS,
    }
}

/// A herd over a directory that was given to its first node.
fn herd(place: &Path) -> (Begun, Watched) {
    let watched = Watched::default();
    let drawn = Drawn::new().expect("chance");
    match begin(options(Some(place), true), &drawn, watched.outlets()) {
        Ok(begun) => (begun, watched),
        Err(error) => panic!("{error}"),
    }
}

/// Why there is none.
fn refused(options: Options) -> BeginError {
    match begin(options, &Drawn::new().expect("chance"), Watched::default().outlets()) {
        Ok(_) => panic!("it begins"),
        Err(error) => error,
    }
}

/// The node with that number, not the first one.
fn join(number: u8) -> Ask {
    let Options { host, rack, memory_bytes, .. } = options(None, false);
    Ask::Join(Join {
        herd: None,
        protocol: 1,
        identity: Identity([number; 16]),
        process: [number; 16],
        name: format!("node-{number}"),
        addresses: vec![format!("127.0.0.1:{}", 7700 + u16::from(number))],
        host,
        rack,
        memory_bytes,
        evict: false,
        moved: None,
    })
}

fn flush() -> Ask {
    Ask::Flush { name: "default".into() }
}

type Answered = Receiver<Result<Answer, Refusal>>;

/// Asks; the answer comes there.
fn send(begun: &Begun, ask: Ask) -> Answered {
    let (reply, answer) = sync_channel(1);
    begun.warden.handle().ask(ask, move |answer| reply.send(answer).expect("somebody waits"));
    answer
}

/// Asks, and waits.
fn ask(begun: &Begun, ask: Ask) -> Result<Answer, Refusal> {
    send(begun, ask).recv_timeout(PATIENCE).expect("an answer")
}

fn joined(answer: Result<Answer, Refusal>) -> Joined {
    match answer {
        Ok(Answer::Joined(joined)) => joined,
        other => panic!("{other:?}"),
    }
}

/// All nodes tell that they have the map.
fn all_have(begun: &Begun) {
    let (map, _) = begun.warden.handle().map().expect("it is in office");
    map.nodes.iter().for_each(|node| begun.warden.handle().have(node.id, node.incarnation, map.epoch, map.revision));
}

fn numbers(map: &Map) -> Vec<u32> {
    map.nodes.iter().map(|node| node.id.0.get()).collect()
}

/// Waits until it is so.
fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
