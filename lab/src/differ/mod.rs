//! `herd-lab differ`: random memcached commands, valid and not, sent alike to Herd and to memcached, replies compared.
//!
//! A step is one or several commands on one of a few connections that share their keys. Both servers get it, then a
//! fence (a `md` of a name that is not there, with a number of its own) whose reply tells that all before it has come.
//! What must differ is mapped ([`compare`]): tokens of `cas` by order of appearance, seconds by a tolerance. What may
//! differ is a table, each with its sentence of PROTOCOL.md ([`allowed`]). Any other difference is cut down to the few
//! commands that show it, and printed. After a difference the keys are removed on both sides, so that it is told once.

mod allowed;
mod compare;
mod generate;
mod talk;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;

use crate::ask::Asker;
use crate::differ::allowed::ALLOWED;
use crate::differ::compare::{Difference, Tokens};
use crate::differ::generate::{Generator, Step};
use crate::differ::talk::Both;
use crate::error::{Error, Result};
use crate::peers::server::{Server, Setup};
use crate::peers::{Kind, Program, find_program, version};

/// Options of `differ`.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Herd's binary.
    #[arg(long)]
    pub(crate) herd: PathBuf,
    /// memcached's binary, 1.6.45 or later [default: the one on PATH].
    #[arg(long)]
    pub(crate) memcached: Option<PathBuf>,
    /// Commands to send.
    #[arg(long, default_value_t = 200_000)]
    pub(crate) commands: u64,
    /// Seed of all that is random.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Nodes of a herd, of which the last is asked, on loopback; 1: a node that is in no herd.
    #[arg(long, default_value_t = 1)]
    pub(crate) nodes: usize,
    /// Copies that the herd keeps of each object.
    #[arg(long, default_value_t = 1)]
    pub(crate) replicas: u8,
}

/// The oldest memcached whose replies Herd's are held to.
const OLDEST: [u32; 3] = [1, 6, 45];
/// Differences that are cut down and printed; more are only counted.
const SHOWN_MAX: usize = 60;
/// Replays of one difference.
const REPLAYS_MAX: usize = 150;
/// Steps before a difference that are tried with it.
const PAST_MAX: usize = 4_000;
/// Commands between two lines of progress.
const PROGRESS: u64 = 50_000;

/// How long the nodes of a herd may take to see each other.
const HERD_PATIENCE: Duration = Duration::from_secs(10);

/// Both servers.
struct Servers {
    /// The nodes of a herd, or one by itself; the last is asked.
    herd: Vec<Server>,
    memcached: Server,
}

impl Servers {
    fn start(options: &Options, memcached: PathBuf) -> Result<Self> {
        let setup = Setup { core: None, ..Setup::default() };
        let memcached = Program::new(Kind::Memcached(""), memcached).start(&setup)?;
        let mut herd = Vec::<Server>::new();
        let kind = if options.nodes > 1 { Kind::HerdMember } else { Kind::Herd };
        for _ in 0..options.nodes.max(1) {
            let join = herd.first().map(|first| first.addr);
            let setup = Setup { join, memory_mib: 512, replicas: options.replicas, ..setup.clone() };
            herd.push(Program::new(kind, &options.herd).start(&setup)?);
        }
        let until = Instant::now() + HERD_PATIENCE;
        for node in herd.iter().filter(|_| options.nodes > 1) {
            while Asker::open(node.addr)?.map()?.is_none_or(|map| map.nodes() < options.nodes) {
                if Instant::now() > until {
                    return Err(Error::new(format!("{} does not see all nodes", node.addr)));
                }
                thread::sleep(Duration::from_millis(10));
            }
        }
        Ok(Self { herd, memcached })
    }

    /// The node that is asked.
    fn asked(&self) -> SocketAddr {
        self.herd[self.herd.len() - 1].addr
    }
}

/// A difference that is not in the table.
struct Found {
    steps: Vec<Step>,
    difference: Difference,
}

/// Sends and compares; an error if something differs that may not.
pub(crate) fn run(options: &Options) -> Result<()> {
    let memcached = options.memcached.clone().or_else(|| find_program("memcached"));
    let memcached = memcached.ok_or_else(|| Error::lacking("no memcached: name one with --memcached"))?;
    let told = version(&memcached);
    if !is_new_enough(&told) {
        return Err(Error::lacking(format!("{told} is older than 1.6.45, whose replies Herd's are compared with")));
    }
    let Options { nodes, replicas, seed, .. } = options;
    println!("{told}; {}; nodes {nodes}, copies {replicas}; seed {seed}", version(&options.herd));
    let servers = Servers::start(options, memcached)?;
    let (sent, allowed, found) = compare_all(options, &servers)?;
    println!("{sent} commands; differences that PROTOCOL.md names:");
    for rule in &ALLOWED {
        println!("  {:>6}  {}", allowed.get(rule.name).unwrap_or(&0), rule.name);
    }
    let count: u64 = found.values().map(|(_, count)| count).sum();
    for (number, (found, count)) in found.values().enumerate() {
        print_difference(number + 1, found, *count);
    }
    if count == 0 {
        println!("PASS: no other difference");
        return Ok(());
    }
    Err(Error::new(format!("{count} replies of {} kinds differ; seed {}", found.len(), options.seed)))
}

fn is_new_enough(told: &str) -> bool {
    let numbers = told.rsplit(' ').next().unwrap_or_default().split(['.', '-', '_']);
    let numbers: Vec<u32> = numbers.map_while(|number| number.parse().ok()).collect();
    numbers.as_slice() >= &OLDEST[..]
}

type Counted = BTreeMap<String, (Found, u64)>;

/// Commands sent, how often each rule of the table held, and what else differed, by its kind.
fn compare_all(options: &Options, servers: &Servers) -> Result<(u64, BTreeMap<&'static str, u64>, Counted)> {
    let mut generator = Generator::new(options.seed);
    let mut session = Session::new(servers, 0)?;
    let (mut sent, mut allowed, mut found) = (0, BTreeMap::new(), Counted::new());
    let (mut past, mut world) = (Vec::new(), 0);
    while sent < options.commands {
        let step = generator.step();
        sent += step.count();
        if sent % PROGRESS < step.count() {
            println!("  {sent} commands, {} kinds of differences", found.len());
        }
        past.push(step.clone());
        let Some(difference) = session.send(&step)? else {
            if session.is_blind {
                past.clear();
                world += 1;
                session = Session::new(servers, world)?;
            } else if past.len() > PAST_MAX {
                past.drain(..PAST_MAX / 2);
            }
            continue;
        };
        let known = |difference: &Difference, found: &Counted| {
            allowed::rule(difference).is_some() || found.contains_key(&difference.kind())
        };
        let mut seen = Found { steps: past.pop().into_iter().collect(), difference };
        if !known(&seen.difference, &found) && found.len() < SHOWN_MAX {
            past.extend(seen.steps);
            seen = cut_down(servers, &past, seen.difference, &mut world)?;
        }
        match allowed::rule(&seen.difference) {
            Some(rule) => *allowed.entry(rule).or_default() += 1,
            None => found.entry(seen.difference.kind()).or_insert((seen, 0)).1 += 1,
        }
        past = Vec::new();
        // A difference leaves the two in different states: the next begins with other names.
        world += 1;
        session = Session::new(servers, world)?;
    }
    Ok((sent, allowed, found))
}

/// The fewest of `past` that still show a difference like this one, found by leaving out more and more of them.
fn cut_down(servers: &Servers, past: &[Step], difference: Difference, world: &mut usize) -> Result<Found> {
    let mut found = Found { steps: past.to_vec(), difference };
    // True, and all that is needed is kept, if these steps show it too.
    let mut shows = |steps: Vec<Step>, found: &mut Found| -> Result<bool> {
        *world += 1;
        let mut session = Session::new(servers, *world)?;
        for (index, step) in steps.iter().enumerate() {
            if let Some(difference) = session.send(step)? {
                let like = difference.shape() == found.difference.shape();
                if like {
                    *found = Found { steps: steps[..=index].to_vec(), difference };
                }
                return Ok(like);
            }
        }
        Ok(false)
    };
    let last = past.last().expect("a difference is of a step");
    shows(past.iter().filter(|step| step.shares_key(last)).cloned().collect(), &mut found)?;
    shows(found.steps.iter().flat_map(Step::apart).collect(), &mut found)?;
    let (mut size, mut tries) = (found.steps.len() / 2, 0);
    while size > 0 && tries < REPLAYS_MAX {
        let mut at = 0;
        // The last step is the one that differs.
        while at + size < found.steps.len() && tries < REPLAYS_MAX {
            let without = [&found.steps[..at], &found.steps[at + size..]].concat();
            tries += 1;
            if !shows(without, &mut found)? {
                at += size;
            }
        }
        size /= 2;
    }
    Ok(found)
}

/// Connections to both servers, and what their tokens mean to each other. Names belong to its world alone, so each
/// session begins with none of its objects there.
struct Session {
    both: Both,
    tokens: Tokens,
    /// What was sent since the world began, by key.
    history: BTreeMap<usize, Vec<Vec<u8>>>,
    /// Both waited once, and what they had said before was not seen: what they hold may differ.
    is_blind: bool,
}

/// Commands remembered for each key.
const HISTORY_MAX: usize = 40;

impl Session {
    fn new(servers: &Servers, world: usize) -> Result<Self> {
        let mut both = Both::open(servers.memcached.addr, servers.asked(), world)?;
        // A bent command may have a name outside of any world.
        both.exchange(0, &[b"flush_all\r\n".to_vec(), b"flush_all\r\n".to_vec()], None)?;
        Ok(Self { both, tokens: Tokens::default(), history: BTreeMap::new(), is_blind: false })
    }

    /// Sends a step to both; what differs in their replies, if anything does.
    fn send(&mut self, step: &Step) -> Result<Option<Difference>> {
        let requests = [0, 1].map(|side| step.bytes(self.both.world(), |key| self.tokens.last(key, side)));
        let Some([memcached, herd]) = self.both.exchange(step.conn, &requests, step.cut)? else {
            self.is_blind = true;
            return Ok(None);
        };
        let difference = self.tokens.compare(&memcached, &herd, |name| step.key_of(name));
        let past = step.keys.iter().filter_map(|key| self.history.get(key)).flatten().cloned().collect();
        for key in &step.keys {
            let history = self.history.entry(*key).or_default();
            history.push(requests[0].clone());
            if history.len() > HISTORY_MAX {
                history.remove(0);
            }
        }
        let [request, _] = requests;
        Ok(difference.map(|replies| Difference { request, past, ..replies }))
    }
}

fn print_difference(number: usize, found: &Found, count: u64) {
    println!("\ndifference {number}, seen {count} times:");
    for step in &found.steps {
        println!("  {}> {}", step.conn, shown(&step.bytes("", |_| None)));
    }
    println!("  memcached: {}", shown(&found.difference.memcached));
    println!("  herd:      {}", shown(&found.difference.herd));
}

/// As text, cut where it is long.
fn shown(bytes: &[u8]) -> String {
    const SHOWN_BYTES: usize = 400;
    let rest = bytes.len().saturating_sub(SHOWN_BYTES);
    let text = bytes[..bytes.len() - rest].escape_ascii().to_string();
    if rest > 0 { format!("{text} .. {rest} more bytes") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_by_number() {
        for new in ["memcached 1.6.45", "memcached 1.6.100", "memcached 1.10.0", "memcached 2.0.1-beta"] {
            assert!(is_new_enough(new), "{new}");
        }
        for old in ["memcached 1.6.38", "memcached 1.5.99", "memcached", "unknown"] {
            assert!(!is_new_enough(old), "{old}");
        }
    }
}
