//! How a node comes into its herd: it begins one, goes on with the one in its directory, or joins one.

use super::ahead::{self, Begins};
use super::errand::{Queue, Runner};
use super::join::{Entered, JoinError, enter as dial, others, patience};
use super::leave::Leaving;
use super::mail::Mailbox;
use super::way::{Way, take_up, way};
use super::{Member, Post, StartWitness, Tell};
use crate::control::Home;
use crate::control::etcd::Address;
use crate::lease::Leases;
use crate::link::{Hub, Membership};
use crate::warden::{BeginError, Drawn, Errands, Newcomer, Options, Outlets, Running, begin};
use herd_core::collection::Spec;
use herd_core::error::quote;
use herd_core::key::HashKey;
use herd_core::place::{Life, Map, MapError, NodeId};
use herd_core::warden::{Joined, MoveId, Refusal};
use herd_core::wire::Secret;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;

/// What a node is told of the herd that it begins or joins.
#[derive(Clone)]
pub struct Entry {
    /// Nodes to ask to be let in; empty: it begins a herd, or goes on with the one in its directory.
    pub join: Vec<String>,
    /// Its own directory, if it has any place.
    pub place: Option<PathBuf>,
    /// That directory was given to it.
    pub lasts: bool,
    /// The etcd in which its herd's control store is, if it is a herd's first node; `None`: it is in that directory.
    pub etcd: Option<Address>,
    /// An etcd whose version may read what is no longer so is taken, too, where the control store went to one.
    pub forced: bool,
    /// Where others reach it; empty: where it listens.
    pub advertise: Vec<String>,
    /// The name of its machine, by which others reach it where it listens on all addresses.
    pub machine: String,
    /// What the machine is called where copies are laid out.
    pub host: String,
    /// The rack of that; empty: not told.
    pub rack: String,
    /// Copies that collection `default` keeps, in a herd that begins; `None`: more with more nodes.
    pub copies: Option<u8>,
    /// What the nodes of the herd know and nobody else; `None`: it has no links, and takes no joins.
    pub secret: Option<Secret>,
    /// Starts the process that tells the warden of the end of this one; `None`: there is to be none.
    pub witness: Option<StartWitness>,
    /// Takes what an operator must know, line by line.
    pub tell: Tell,
}

/// Why a node does not start.
#[derive(Debug)]
pub enum StartError {
    /// Of this machine: an address, memory, threads.
    Machine(io::Error),
    /// No herd begins, and none goes on.
    Begin(BeginError),
    /// It is not let into the herd.
    Join(JoinError),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::Machine(error) => error.fmt(f),
            StartError::Begin(error) => error.fmt(f),
            StartError::Join(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for StartError {}

impl From<io::Error> for StartError {
    fn from(error: io::Error) -> Self {
        StartError::Machine(error)
    }
}

impl From<BeginError> for StartError {
    fn from(error: BeginError) -> Self {
        StartError::Begin(error)
    }
}

impl StartError {
    /// Whether what the node was told is contradicted by the herd: that is a matter of its command line.
    pub fn is_usage(&self) -> bool {
        let evicts = Refusal::NotEvicting.to_string();
        match self {
            StartError::Begin(BeginError::Etcd(_) | BeginError::Held(_)) => false,
            StartError::Machine(_) | StartError::Begin(_) | StartError::Join(JoinError::Itself(_)) => true,
            StartError::Join(JoinError::Unreachable(_) | JoinError::Broken(_) | JoinError::Begins(_)) => false,
            StartError::Join(JoinError::Refused(text)) => text.ends_with(&evicts),
        }
    }
}

/// What a node's store is made with, as its herd has it.
pub(crate) struct Founded {
    /// Key of the name hash.
    pub(crate) hash_key: HashKey,
    /// Versions begin above those of starts before this moment, ms since 1970.
    pub(crate) versions_ms: u64,
    /// What collection `default` promises.
    pub(crate) default: Spec,
}

/// A node that is in its herd, before it has a store.
pub(crate) struct InHerd {
    pub(crate) member: Arc<Member>,
    pub(crate) founded: Founded,
    pub(crate) map: Arc<Map>,
    pub(crate) held: bool,
}

/// What a node is known by.
pub(crate) struct Own<'a> {
    pub(crate) name: &'a str,
    pub(crate) memory_bytes: u64,
    pub(crate) evict: bool,
    pub(crate) unix_ms: u64,
    pub(crate) listens: &'a [SocketAddr],
}

/// Brings a node into its herd.
pub(crate) fn enter(entry: &Entry, me: &Own<'_>) -> Result<InHerd, StartError> {
    let options = options(entry, me);
    match way(entry, options.clone())? {
        Way::Begin(begin) => match check(&begin, me).and_then(|()| begins(entry, *begin, me)) {
            // That etcd was found in its directory; the herd has gone on with another node's warden.
            Err(StartError::Begin(BeginError::Held(holder))) if entry.etcd.is_none() => {
                joins(entry, &options, me, &beside(&holder, &entry.join), None)
            }
            begun => begun,
        },
        Way::Join { nodes, moved } => match joins(entry, &options, me, &nodes, moved) {
            // The herd's control store is here: it came before this node ended.
            Err(StartError::Join(JoinError::Begins(id))) => {
                take_up(&options, id)?;
                begins(entry, Options { etcd: None, ..options }, me)
            }
            joined => joined,
        },
    }
}

/// An error if the control store in its directory may not be gone on with.
fn check(options: &Options, me: &Own<'_>) -> Result<(), StartError> {
    let Some(place) = options.place.as_deref().filter(|_| options.etcd.is_none()) else { return Ok(()) };
    Ok(ahead::check(place, Begins { listens: me.listens, addresses: &options.addresses })?)
}

/// Where a warden of that name is, and these other nodes.
fn beside(holder: &str, join: &[String]) -> Vec<String> {
    let address = holder.split(' ').next().unwrap_or_default();
    let others = join.iter().filter(|other| *other != address);
    std::iter::once(address).chain(others.map(String::as_str)).map(str::to_owned).collect()
}

/// With a warden of its own.
fn begins(entry: &Entry, options: Options, me: &Own<'_>) -> Result<InHerd, StartError> {
    let (drawn, nonces) = (Drawn::new()?, Drawn::new()?);
    let (mailbox, leases, runner) = (Arc::new(Mailbox::default()), Leases::of_machine(), Arc::<Runner>::default());
    if options.etcd.is_some() {
        leases.needed_always();
    }
    let (pushes, tells) = (mailbox.clone(), mailbox.clone());
    let outlets = Outlets {
        leases: leases.clone(),
        push: Box::new(move |map, held| pushes.change(|mail| mail.pushed = Some((map, held)))),
        tell: Box::new(move |line| tells.tell(line.to_owned())),
        errands: entry.secret.map(|_| runner.clone() as Arc<dyn Errands>),
    };
    let etcd = options.etcd.clone();
    let begun = begin(options, &drawn, outlets)?;
    let is_new = (begun.joined.node.0.get(), begun.joined.incarnation) == (1, 1);
    if let Some(etcd) = etcd.filter(|_| is_new) {
        (entry.tell)(&format!("begins a new herd, {}: there was none in {etcd}", begun.joined.herd.short()));
    }
    let versions_ms = if begun.first_version == 0 { 0 } else { me.unix_ms };
    let (joined, map) = (&begun.joined, begun.map.clone());
    let known = Known { joined, map, versions_ms, mailbox, leases, runner, home: begun.warden.home() };
    let (member, founded) = known.member(entry, nonces.process, Some(begun.warden), begun.joined.node)?;
    Ok(InHerd { member, founded, map: begun.map, held: begun.held })
}

/// As one of a herd whose warden is elsewhere.
fn joins(
    entry: &Entry,
    options: &Options,
    me: &Own<'_>,
    nodes: &[String],
    moved: Option<MoveId>,
) -> Result<InHerd, StartError> {
    let (drawn, nonces) = (Drawn::new()?, Drawn::new()?);
    let secret = entry.secret.ok_or_else(|| JoinError::Refused(NO_SECRET.into())).map_err(StartError::Join)?;
    let until = patience();
    let nodes = others(nodes, me.listens, &options.addresses, until).map_err(StartError::Join)?;
    let mut newcomer = Newcomer::new(options, &drawn)?;
    newcomer.join.moved = moved;
    let (newcomer, Entered { joined, map, warden }) = admitted(&nodes, newcomer, secret, nonces.herd, until)?;
    newcomer.joined(joined.herd).map_err(BeginError::Place)?;
    let (map, mailbox, leases) = (Arc::new(map), Arc::default(), Leases::of_machine());
    let (runner, home) = (Arc::default(), newcomer.into_home());
    let known = Known { joined: &joined, map: map.clone(), versions_ms: 0, mailbox, leases, runner, home };
    let keeper = map.node(warden).map_or_else(|| warden.0.to_string(), |node| quote(node.name.as_bytes()));
    (entry.tell)(&format!("in herd {}, whose map node {keeper} keeps", joined.herd.short()));
    let (member, founded) = known.member(entry, nonces.process, None, warden)?;
    Ok(InHerd { member, founded, map, held: false })
}

/// Asks to be let in. Of a node that is surely refused nothing stays; one that may be in is the same the next time.
fn admitted(
    nodes: &[String],
    newcomer: Newcomer,
    secret: Secret,
    random: [u8; 16],
    until: Instant,
) -> Result<(Newcomer, Entered), StartError> {
    match dial(nodes, &newcomer.join, &newcomer.coming(), secret, random, until) {
        Ok(entered) => Ok((newcomer, entered)),
        Err(error) => {
            if matches!(error, JoinError::Refused(_)) {
                newcomer.refused();
            }
            Err(StartError::Join(error))
        }
    }
}

const NO_SECRET: &str = "a node that listens beyond loopback needs the herd's secret to join: set HERD_SECRET";

fn options(entry: &Entry, me: &Own<'_>) -> Options {
    let own = me.listens.iter().map(|addr| match addr.ip().is_unspecified() {
        true => format!("{}:{}", entry.machine, addr.port()),
        false => addr.to_string(),
    });
    let addresses = if entry.advertise.is_empty() { own.collect() } else { entry.advertise.clone() };
    Options {
        place: entry.place.clone(),
        lasts: entry.lasts,
        etcd: entry.etcd.clone(),
        name: me.name.to_owned(),
        addresses,
        host: entry.host.clone(),
        rack: entry.rack.clone(),
        memory_bytes: me.memory_bytes,
        evict: me.evict,
        copies: entry.copies,
        unix_ms: me.unix_ms,
    }
}

/// What is known of a herd once a node is in.
struct Known<'a> {
    joined: &'a Joined,
    map: Arc<Map>,
    versions_ms: u64,
    mailbox: Arc<Mailbox>,
    leases: Arc<Leases>,
    runner: Arc<Runner>,
    home: Option<Home>,
}

impl Known<'_> {
    fn member(
        self,
        entry: &Entry,
        random: [u8; 16],
        running: Option<Running>,
        warden: NodeId,
    ) -> Result<(Arc<Member>, Founded), StartError> {
        let Joined { herd, hash_key, node, incarnation } = self.joined.clone();
        let no_default = || {
            StartError::Begin(BeginError::Refused(Refusal::Map(MapError::Invalid("it has no collection 'default'", 0))))
        };
        let default = self.map.collection("default").map(|it| it.spec.clone()).ok_or_else(no_default)?;
        let member = Arc::new(Member {
            herd,
            life: Life { node, incarnation },
            handle: Mutex::new(running.as_ref().map(|running| running.handle().clone())),
            running: Mutex::new(running),
            gone: Mutex::default(),
            home: Mutex::new(self.home),
            errands: Queue::default(),
            runner: self.runner.clone(),
            leases: self.leases.clone(),
            holds: AtomicBool::new(false),
            warden_node: AtomicU32::new(NonZeroU32::get(warden.0)),
            mailbox: self.mailbox.clone(),
            hub: OnceLock::new(),
            map: Mutex::new(None),
            wants: Mutex::default(),
            leave: Leaving::default(),
            outcast: OnceLock::new(),
        });
        self.runner.of(&member);
        if let Some(secret) = entry.secret {
            let post = Post { mailbox: self.mailbox, member: OnceLock::new() };
            post.member.set(Arc::downgrade(&member)).ok();
            let me = Membership { herd, node, incarnation, secret, random };
            member.hub.set(Hub::new(me, Arc::new(post), self.leases)).ok();
        }
        Ok((member, Founded { hash_key: HashKey(hash_key), versions_ms: self.versions_ms, default }))
    }
}

#[cfg(test)]
mod tests {
    use super::super::join::named;
    use super::*;
    use crate::tests::away::{herd, life};
    use herd_core::wire::{
        Admitting, Greeting, Header, Kind, LINK_PROTOCOL, LinkError, LinkErrorKind, encode_frame, encode_joined,
        parse_frame,
    };
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::path::Path;
    use tempfile::TempDir;

    const SECRET: Secret = Secret([7; 16]);

    /// What a member of a herd says to a node that has proved who it is.
    enum Says {
        Goodbye(LinkErrorKind),
        /// That the warden is at an address, to which it went by a move.
        Moved(String),
        /// One that gives no reason.
        Ends,
        Closes,
        /// It takes the connection and says nothing, as one that is paused.
        Nothing,
        /// It hangs up at once.
        HangsUp,
        /// What is no answer to a join.
        Nonsense,
        Welcome,
    }

    fn next(stream: &mut TcpStream, input: &mut Vec<u8>) -> usize {
        loop {
            if let Some(frame) = parse_frame(input).expect("a frame") {
                return frame.bytes();
            }
            let mut bytes = [0; 4096];
            let read = stream.read(&mut bytes).expect("more");
            assert!(read > 0, "it hung up");
            input.extend_from_slice(&bytes[..read]);
        }
    }

    fn hears(mut stream: TcpStream, says: &Says) {
        let (mut input, mut out, map) = (Vec::new(), Vec::new(), herd(2));
        let me = Greeting { protocol: LINK_PROTOCOL.into(), herd: map.herd, node: life(1).node, nonce: [3; 16] };
        let used = next(&mut stream, &mut input);
        let hello = parse_frame(&input).expect("a frame").expect("it is there");
        let admitting = Admitting::new(&hello.fields().expect("fields"), &me, SECRET).expect("it wants in");
        admitting.welcome(&mut out);
        stream.write_all(&out).expect("it is heard");
        input.drain(..used);
        out.clear();
        next(&mut stream, &mut input);
        let proof = parse_frame(&input).expect("a frame").expect("it is there");
        admitting.proved(&proof.fields().expect("fields")).expect("it knows the secret");
        match says {
            Says::Goodbye(kind) => LinkError::new(*kind, "because").goodbye(&mut out),
            Says::Moved(text) => LinkError::new(LinkErrorKind::AskWarden, text.clone()).goodbye(&mut out),
            Says::Ends => {
                encode_frame(&mut out, Header::new(Kind::Goodbye), &Default::default(), b"").expect("it fits")
            }
            Says::Closes | Says::Nothing | Says::HangsUp => {}
            Says::Nonsense => {
                encode_frame(&mut out, Header::new(Kind::Hello), &Default::default(), b"").expect("it fits")
            }
            Says::Welcome => {
                let joined = Joined { herd: map.herd, hash_key: [1; 16], node: life(2).node, incarnation: 1 };
                encode_joined(&mut out, &joined, &map.encode()).expect("it fits");
            }
        }
        stream.write_all(&out).expect("it is heard");
    }

    /// How a node in that directory fares with a member that says this, time after time.
    fn joins(place: &Path, says: Vec<Says>) -> Result<Entered, JoinError> {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address").to_string();
        let thread = std::thread::spawn(move || {
            let mut silent = Vec::new();
            for says in &says {
                let (stream, _) = listener.accept().expect("it comes");
                match says {
                    Says::Nothing => silent.push(stream),
                    Says::HangsUp => drop(stream),
                    says => hears(stream, says),
                }
            }
        });
        let options = Options {
            place: Some(place.to_path_buf()),
            lasts: true,
            etcd: None,
            name: "n2".into(),
            addresses: vec!["127.0.0.1:2".into()],
            host: "h2".into(),
            rack: String::new(),
            memory_bytes: 1 << 30,
            evict: false,
            copies: None,
            unix_ms: 0,
        };
        let newcomer = Newcomer::new(&options, &Drawn::new().expect("chance")).expect("its own place");
        let joined = admitted(&[address], newcomer, SECRET, [5; 16], patience());
        thread.join().expect("all of it was asked");
        match joined {
            Ok((_, entered)) => Ok(entered),
            Err(StartError::Join(error)) => Err(error),
            Err(error) => panic!("{error}"),
        }
    }

    fn is_known(place: &Path) -> bool {
        place.join("node").exists()
    }

    #[test]
    fn a_node_with_the_copy_of_a_move_begins_if_that_very_move_is_named_and_no_other() {
        let place = TempDir::new().expect("a directory");
        let (id, other) = (MoveId([7; 16]), MoveId([8; 16]));
        Home::open(place.path()).and_then(|home| home.prepare(id, &Default::default())).expect("it has room");
        let says = |id: MoveId| Says::Moved(format!("127.0.0.1:1 {}", id.text()));
        // Of another one it asks where it is named, in vain, and then here again.
        match joins(place.path(), vec![says(other), says(id)]) {
            Err(JoinError::Begins(begins)) => assert_eq!(begins, id),
            other => panic!("{:?}", other.map(|_| ())),
        }
        assert_eq!(named("host:1"), ("host:1", None));
    }

    #[test]
    fn a_node_that_can_t_be_let_in_now_asks_again() {
        let firsts = [Says::Goodbye(LinkErrorKind::NotNow), Says::Ends, Says::Closes, Says::Nothing, Says::HangsUp];
        for first in firsts {
            let place = TempDir::new().expect("a directory");
            let entered = joins(place.path(), vec![first, Says::Welcome]).expect("it is in");
            assert_eq!((entered.joined.node, entered.warden), (life(2).node, life(1).node));
            assert!(is_known(place.path()));
        }
    }

    #[test]
    fn who_a_node_is_is_forgotten_only_if_it_is_surely_not_in() {
        let refused = || Says::Goodbye(LinkErrorKind::JoinRefused);
        let cases = [
            (vec![refused()], false),
            (vec![Says::Goodbye(LinkErrorKind::NotNow), refused()], true),
            (vec![Says::Closes, refused()], true),
            (vec![Says::Nonsense], true),
        ];
        for (number, (says, stays)) in cases.into_iter().enumerate() {
            let place = TempDir::new().expect("a directory");
            let error = joins(place.path(), says).err().expect("it is not let in");
            assert_eq!(matches!(error, JoinError::Refused(_)), !stays, "{number}: {error}");
            assert_eq!(is_known(place.path()), stays, "{number}: {error}");
        }
    }
}
