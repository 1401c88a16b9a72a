//! How a node that was told to join comes into the herd (PROTOCOL.md §1.9): the side that dials, before it has loops.
//!
//! It blocks, for [`JOIN_PATIENCE_MS`] in all at most: names are looked up by threads of their own, which nobody waits
//! for any longer than that. The addresses are tried in turn, and again while nobody answers, or the herd can't say yet
//! whether the node is in: nodes that are started together may come in any order, and a warden, or its store, may be
//! about to come back. One that takes the connection and says nothing, as it is paused or wants in itself, is passed
//! over after [`JOIN_ANSWER_MS`]. A refusal is final. Only of a refusal, and of no try before it that may have been
//! done, is it sure that the node is not in ([`JoinError::Refused`]). Caller: the start of a node.

use herd_core::limits::{
    JOIN_ANSWER_MS, JOIN_DIAL_MS, JOIN_HOPS_MAX, JOIN_PATIENCE_MS, JOIN_REDIAL_MS, MAP_MAX_BYTES,
    WIRE_FRAME_BODY_MAX_BYTES,
};
use herd_core::place::{Map, NodeId};
use herd_core::warden::{Join, Joined, MoveId};
use herd_core::wire::{
    Assembly, Fields, Frame, Header, Joining, Kind, LinkError, LinkErrorKind, Nonces, Secret, decode_joined,
    parse_frame,
};
use std::fmt;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

/// Bytes read at once.
const READ_BYTES: usize = 64 * 1024;

/// What a node has been told when it is in.
pub(super) struct Entered {
    pub(super) joined: Joined,
    pub(super) map: Map,
    /// The warden's node.
    pub(super) warden: NodeId,
}

/// Why a node is not in the herd.
#[derive(Debug)]
pub enum JoinError {
    /// Nobody answers as a node, or can say by now whether the node is in.
    Unreachable(String),
    /// A node of the herd, or this one, refuses; what to do stands in it. The node is surely not in.
    Refused(String),
    /// What answered is no node of this version, or a try before may have been done; whether the node was let in is not
    /// known.
    Broken(String),
    /// The only node that it was told to ask is this one.
    Itself(String),
    /// The herd's control store came to this node by that move, and it is to begin with it.
    Begins(MoveId),
}

impl fmt::Display for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            JoinError::Unreachable(text) | JoinError::Refused(text) | JoinError::Broken(text) => f.write_str(text),
            JoinError::Begins(_) => f.write_str("the herd's control store is here"),
            JoinError::Itself(address) => {
                write!(f, "{address}: that is this node itself: name another one, or begin a herd without --join")
            }
        }
    }
}

impl std::error::Error for JoinError {}

/// What came of one try.
pub(super) enum Tried {
    /// Another node is the warden's: this is its address.
    Elsewhere(String),
    /// Nobody is there yet; nothing was done.
    Nobody(String),
    /// Nobody is there yet where a node says that the warden is; nothing was done.
    NoWarden(String),
    /// It is not known whether it was done; it may be tried again.
    Unsure(String),
    /// It is of no use to try again.
    Final(JoinError),
}

impl From<LinkError> for Tried {
    fn from(error: LinkError) -> Self {
        match error.kind {
            LinkErrorKind::AskWarden => Tried::Elsewhere(error.text),
            LinkErrorKind::NotNow => Tried::Unsure(error.text),
            _ => Tried::Final(JoinError::Refused(error.text)),
        }
    }
}

/// When a node that begins to join now gives it up.
pub(super) fn patience() -> Instant {
    Instant::now() + Duration::from_millis(JOIN_PATIENCE_MS)
}

/// Of the nodes to ask those that are not this one, which listens there and is known by these addresses.
pub(super) fn others(
    asked: &[String],
    listens: &[SocketAddr],
    known: &[String],
    until: Instant,
) -> Result<Vec<String>, JoinError> {
    let is_own = |to: SocketAddr| {
        let same = |own: &SocketAddr| *own == to || own.ip().is_unspecified() && to.ip().is_loopback();
        listens.iter().any(|own| own.port() == to.port() && same(own))
    };
    let has_port = |text: &str| listens.iter().any(|own| text.ends_with(&format!(":{}", own.port())));
    // Names are looked up only where they may be this node's; what can't be is told when it is asked.
    let resolves = |text: &str| has_port(text) && look_up(text, until).is_ok_and(|found| found.into_iter().any(is_own));
    let others: Vec<String> = asked.iter().filter(|text| !known.contains(text) && !resolves(text)).cloned().collect();
    match asked.first().filter(|_| others.is_empty()) {
        Some(itself) => Err(JoinError::Itself(itself.clone())),
        None => Ok(others),
    }
}

/// Asks the nodes at these addresses to be let in. `coming`: the moves whose copies of a control store are here.
pub(super) fn enter(
    addresses: &[String],
    join: &Join,
    coming: &[MoveId],
    secret: Secret,
    random: [u8; 16],
    until: Instant,
) -> Result<Entered, JoinError> {
    let nonces = Nonces::new(random);
    let mut is_unsure = false;
    // What came of the turn before, and of this one, each with how much it tells.
    let (mut before, mut told) = (None, None);
    loop {
        for address in addresses {
            // A try for which no time is left tells nothing of a node.
            if before.is_some() && Instant::now() + Duration::from_millis(JOIN_ANSWER_MS) >= until {
                let least = before.as_ref().map_or(0, |(weight, _)| *weight);
                return Err(given_up(told.filter(|(weight, _)| *weight > least).or(before)));
            }
            let (weight, text) = match follow(address, (join, coming), secret, &nonces, until) {
                Ok(entered) => return Ok(entered),
                Err(Tried::Nobody(text)) => (0, text),
                Err(Tried::NoWarden(text)) => (1, text),
                Err(Tried::Elsewhere(to)) => (1, lost(&to)),
                Err(Tried::Unsure(text)) => {
                    is_unsure = true;
                    (2, format!("{text}; start this node again: it is the same one"))
                }
                Err(Tried::Final(JoinError::Refused(text))) if is_unsure => return Err(JoinError::Broken(text)),
                Err(Tried::Final(error)) => return Err(error),
            };
            if told.as_ref().is_none_or(|(least, _)| *least < weight) {
                told = Some((weight, text));
            }
        }
        if Instant::now() + Duration::from_millis(JOIN_REDIAL_MS) >= until {
            return Err(given_up(told));
        }
        before = told.take();
        std::thread::sleep(Duration::from_millis(JOIN_REDIAL_MS));
    }
}

fn given_up(told: Option<(u8, String)>) -> JoinError {
    let why = told.map_or_else(|| "--join names no address".into(), |(_, text)| text);
    JoinError::Unreachable(format!("{why} (tried for {} s)", JOIN_PATIENCE_MS / 1000))
}

fn lost(to: &str) -> String {
    format!("one node names another as the warden's, the last of them {to}: see that the herd's first node runs")
}

/// Asks the node at an address, and whomever it names.
fn follow(
    address: &str,
    (join, coming): (&Join, &[MoveId]),
    secret: Secret,
    nonces: &Nonces,
    until: Instant,
) -> Result<Entered, Tried> {
    let mut at = address.to_owned();
    for _ in 0..JOIN_HOPS_MAX {
        match ask(&at, join, Joining::new(join, nonces.next(), secret)?, until) {
            Err(Tried::Elsewhere(to)) => {
                let (to, by) = named(&to);
                if let Some(id) = by.filter(|id| coming.contains(id)) {
                    return Err(Tried::Final(JoinError::Begins(id)));
                }
                at = to.to_owned();
            }
            Err(Tried::Nobody(text)) if at != address => {
                let text = format!("{text}; {address} says that the herd's warden is there: start that node");
                return Err(Tried::NoWarden(text));
            }
            done => return done,
        }
    }
    Err(Tried::Elsewhere(at))
}

/// What a node says of where the warden is: an address, and, if it went there just now, by which move.
pub(super) fn named(text: &str) -> (&str, Option<MoveId>) {
    match text.split_once(' ') {
        Some((address, id)) => (address, MoveId::parse(id)),
        None => (text, None),
    }
}

/// One exchange.
fn ask(address: &str, join: &Join, joining: Joining, until: Instant) -> Result<Entered, Tried> {
    let socket = dial(address, until)?;
    let mut talk = Talk::new(address, socket, until.min(Instant::now() + Duration::from_millis(JOIN_ANSWER_MS)));
    let mut out = Vec::new();
    joining.hello(&mut out);
    talk.say(&out)?;
    out.clear();
    let mut goodbye = Vec::new();
    let warden = talk.hear(|frame, fields| match frame.header().kind {
        Kind::Welcome => match joining.welcomed(fields, &mut out) {
            Ok(welcomed) => Ok(welcomed.node),
            Err(error) => {
                error.goodbye(&mut goodbye);
                Err(error.into())
            }
        },
        _ => Err(Tried::from(unexpected())),
    });
    // That node's log tells it, too.
    if !goodbye.is_empty() {
        talk.say(&goodbye).ok();
    }
    let warden = warden?;
    // The warden may have to wait for its store.
    (talk.proves, talk.until) = (true, until);
    talk.say(&out)?;
    let (joined, mut assembly) = talk.hear(|frame, fields| decode_joined(frame.header(), fields).map_err(strange))?;
    while !talk.hear(|frame, _| take(&mut assembly, frame))? {}
    let map = Map::decode(&assembly.into_bytes()).map_err(|error| talk.broken(&error.to_string()))?;
    let is_there = map.node(joined.node).is_some_and(|node| node.incarnation == joined.incarnation);
    if map.herd != joined.herd || !is_there || join.herd.is_some_and(|herd| herd != joined.herd) {
        return Err(talk.broken("the map that it sent is not the one of its herd"));
    }
    Ok(Entered { joined, map, warden })
}

/// A frame of the map that comes behind the welcome.
fn take(assembly: &mut Assembly, frame: &Frame<'_>) -> Result<bool, Tried> {
    match frame.header().kind {
        Kind::Data => assembly.take(frame.header(), frame.body().map_err(strange)?).map_err(strange),
        _ => Err(strange(unexpected())),
    }
}

/// It has let the node in, or not, and says it in a way that can't be understood.
pub(super) fn strange(error: impl fmt::Display) -> Tried {
    Tried::Final(JoinError::Broken(error.to_string()))
}

pub(super) fn unexpected() -> LinkError {
    LinkError::new(LinkErrorKind::BadHello, "it answered what does not belong to a join")
}

/// A connection to what an address names, the first that can be had.
pub(super) fn dial(address: &str, until: Instant) -> Result<TcpStream, Tried> {
    let nobody = |error: &dyn fmt::Display| Tried::Nobody(format!("no node answers at {address}: {error}"));
    let found = look_up(address, until).map_err(|error| nobody(&error))?;
    let mut last = nobody(&if found.is_empty() { "the name has no address" } else { "there was no time left" });
    for to in found {
        let left = until.saturating_duration_since(Instant::now()).min(Duration::from_millis(JOIN_DIAL_MS));
        if left.is_zero() {
            break;
        }
        match TcpStream::connect_timeout(&to, left) {
            Ok(socket) => return Ok(socket),
            Err(error) => last = nobody(&plain(&error)),
        }
    }
    Err(last)
}

/// What the system says of an address, in the order in which it says it.
fn look_up(address: &str, until: Instant) -> io::Result<Vec<SocketAddr>> {
    if let Ok(address) = address.parse() {
        return Ok(vec![address]);
    }
    let name = address.to_owned();
    within(until, move || name.to_socket_addrs().map(Iterator::collect))
}

/// Looks a name up, for as long as a node is dialed at most. The system may take longer, and can't be told to stop: a
/// thread does it, which ends when the system has answered, and nobody waits for that.
fn within(
    until: Instant,
    look_up: impl FnOnce() -> io::Result<Vec<SocketAddr>> + Send + 'static,
) -> io::Result<Vec<SocketAddr>> {
    let left = until.saturating_duration_since(Instant::now()).min(Duration::from_millis(JOIN_DIAL_MS));
    let (found, finds) = sync_channel(1);
    std::thread::Builder::new().name("name".into()).spawn(move || found.send(look_up()).ok())?;
    let late = "the name is not found in time: see to what this machine looks names up with";
    finds.recv_timeout(left).unwrap_or_else(|_| Err(io::Error::new(io::ErrorKind::TimedOut, late)))
}

/// An error of the system without its number.
fn plain(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}

/// A connection on which frames are said and heard.
pub(super) struct Talk<'a> {
    address: &'a str,
    socket: TcpStream,
    input: Vec<u8>,
    used: usize,
    until: Instant,
    /// What was asked for was proved, so it may be done from now on.
    proves: bool,
}

impl<'a> Talk<'a> {
    pub(super) fn new(address: &'a str, socket: TcpStream, until: Instant) -> Self {
        Self { address, socket, input: Vec::new(), used: 0, until, proves: false }
    }

    fn broken(&self, text: &str) -> Tried {
        let address = self.address;
        Tried::Final(JoinError::Broken(format!("{address} does not answer as a node of this version: {text}")))
    }

    /// No answer came.
    fn nobody(&self, text: &str) -> Tried {
        let text = format!("{} {text}", self.address);
        if self.proves { Tried::Unsure(text) } else { Tried::Nobody(text) }
    }

    fn late(&self) -> Tried {
        self.nobody("takes the connection and does not answer: look at it")
    }

    fn left(&self) -> Result<Duration, Tried> {
        let left = self.until.saturating_duration_since(Instant::now());
        Some(left).filter(|left| !left.is_zero()).ok_or_else(|| self.late())
    }

    pub(super) fn say(&mut self, bytes: &[u8]) -> Result<(), Tried> {
        let left = self.left()?;
        let said = self.socket.set_write_timeout(Some(left)).and_then(|()| self.socket.write_all(bytes));
        said.map_err(|error| self.failed(&error))
    }

    fn failed(&self, error: &io::Error) -> Tried {
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => self.late(),
            _ => self.nobody(&format!("broke the connection: {}", plain(error))),
        }
    }

    /// The next frame, as `take` reads it; a goodbye is what it says.
    pub(super) fn hear<T>(
        &mut self,
        take: impl FnOnce(&Frame<'_>, &Fields<'_>) -> Result<T, Tried>,
    ) -> Result<T, Tried> {
        loop {
            let input = &self.input[self.used..];
            if let Some(frame) = parse_frame(input).map_err(|error| self.broken(&error.to_string()))? {
                let fields = frame.fields().map_err(|error| self.broken(&error.to_string()))?;
                let taken = match frame.header().kind {
                    Kind::Goodbye => Err(self.goodbye(frame.header(), &fields)),
                    _ => take(&frame, &fields),
                };
                self.used += frame.bytes();
                return taken.map_err(|tried| self.placed(tried));
            }
            self.read()?;
        }
    }

    /// What a goodbye says.
    fn goodbye(&self, header: &Header, fields: &Fields<'_>) -> Tried {
        let text = || fields.error.unwrap_or("it said goodbye").chars().filter(|c| !c.is_control()).collect();
        match LinkError::of_goodbye(header, fields) {
            Some(error) => error.into(),
            // It ends for a reason of its own.
            None if self.proves => Tried::Unsure(text()),
            None => Tried::Final(JoinError::Refused(text())),
        }
    }

    /// What the other side said, with the address it came from.
    fn placed(&self, tried: Tried) -> Tried {
        let address = self.address;
        match tried {
            Tried::Final(JoinError::Refused(text)) => Tried::Final(JoinError::Refused(format!("{address}: {text}"))),
            Tried::Final(JoinError::Broken(text)) => Tried::Final(JoinError::Broken(format!("{address}: {text}"))),
            Tried::Unsure(text) => Tried::Unsure(format!("{address} can't let this node in now: {text}")),
            tried => tried,
        }
    }

    fn read(&mut self) -> Result<(), Tried> {
        self.input.drain(..self.used);
        self.used = 0;
        if self.input.len() > 2 * WIRE_FRAME_BODY_MAX_BYTES + MAP_MAX_BYTES.min(READ_BYTES) {
            return Err(self.broken("a frame without an end"));
        }
        let left = self.left()?;
        let at = self.input.len();
        self.input.resize(at + READ_BYTES, 0);
        let read = self.socket.set_read_timeout(Some(left)).and_then(|()| self.socket.read(&mut self.input[at..]));
        self.input.truncate(at + *read.as_ref().unwrap_or(&0));
        match read {
            Ok(0) if self.proves => Err(self.nobody("closed the connection before it said whether this node is in")),
            Ok(0) => Err(self.nobody("closed the connection and said nothing: see what listens there")),
            Ok(_) => Ok(()),
            // A signal came. What is to be read is still there.
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            Err(error) => Err(self.failed(&error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_does_not_ask_itself() {
        let listens = ["0.0.0.0:7701", "10.0.0.2:7700"].map(|text| text.parse().expect("an address"));
        let ask = |text: &str| {
            let asked: Vec<String> = text.split(',').map(str::to_owned).collect();
            others(&asked, &listens, &["two:7700".into()], patience()).map(|others| others.join(","))
        };
        for own in ["127.0.0.1:7701", "10.0.0.2:7700", "two:7700"] {
            assert!(matches!(ask(own), Err(JoinError::Itself(text)) if text == own), "{own}");
            assert_eq!(ask(&format!("{own},10.0.0.1:7700")).ok().as_deref(), Some("10.0.0.1:7700"));
        }
        assert_eq!(ask("10.0.0.2:7701,127.0.0.1:7700").ok().as_deref(), Some("10.0.0.2:7701,127.0.0.1:7700"));
    }

    #[test]
    fn a_name_that_is_not_found_in_time_is_not_waited_for() {
        let (answer, hangs) = sync_channel(0);
        let since = Instant::now();
        let late = within(since + Duration::from_millis(50), move || hangs.recv().unwrap_or_else(|_| Ok(Vec::new())));
        assert_eq!(late.expect_err("it hangs").kind(), io::ErrorKind::TimedOut);
        assert!(since.elapsed() < Duration::from_millis(JOIN_DIAL_MS));
        drop(answer);
        let at: SocketAddr = "127.0.0.1:7".parse().expect("an address");
        assert_eq!(within(patience(), move || Ok(vec![at])).expect("it is found"), [at]);
        assert_eq!(look_up("127.0.0.1:7", since).expect("no name"), [at], "no time is needed");
    }
}
