//! A client: one connection to some node at a time, over which it asks one thing, or two at once, waits, and goes on.
//!
//! Changes by Herd's wire have ids of its own: what it has no answer to when its connection is lost it asks again, over
//! the next connection of that kind, at whichever node.

use super::check::{Answer, Ask, Op, lock_value};
use super::door::{Door, Told, With};
use super::plan::{Family, Plan};
use super::world::At;
use herd_core::entry::Token;
use herd_core::limits::BLOCK_BYTES;
use herd_core::method::lock::read_holders;
use herd_core::replica::window::RequestId;
use herd_core::wire::{Own, stamp_at};
use herd_net::Peer;
use std::collections::{BTreeMap, BTreeSet};

/// What all clients know together, and what they did.
#[derive(Default)]
pub(super) struct History {
    /// By object.
    pub(super) ops: BTreeMap<usize, Vec<Op>>,
    /// Orders what happens.
    moment: u64,
    /// Version and value of each object that were last seen.
    seen: BTreeMap<usize, (u64, Vec<u8>)>,
    pub(super) asked: usize,
    /// Objects that were changed, as was told, since somebody looked here.
    pub(super) changed: Vec<usize>,
    /// Answers that tell something, that say nothing was done, and operations without one.
    pub(super) told: usize,
    pub(super) nothing: usize,
    pub(super) full: usize,
    pub(super) open: usize,
}

impl History {
    pub(super) fn moment(&mut self) -> u64 {
        self.moment += 1;
        self.moment
    }

    /// Puts an operation down; what it is known by.
    pub(super) fn begin(&mut self, key: usize, ask: Ask, after: Option<u64>, by: String) -> u64 {
        let begin = self.moment();
        self.asked += 1;
        let op = Op { ask, answer: Answer::Open, version: None, begin, end: u64::MAX, after, by };
        self.ops.entry(key).or_default().push(op);
        begin
    }

    pub(super) fn end(&mut self, key: usize, begin: u64, answer: Answer, version: Option<u64>) {
        match answer {
            Answer::Open => self.open += 1,
            Answer::Nothing => self.nothing += 1,
            Answer::Full => self.full += 1,
            _ => self.told += 1,
        }
        let tells = answer != Answer::Value(None) || !Plan::may_go(key);
        let (answer, version) = if tells { (answer, version) } else { (Answer::Open, None) };
        let end = self.moment();
        let ops = self.ops.get_mut(&key).expect("it was begun");
        let op = ops.iter_mut().rev().find(|op| op.begin == begin).expect("it was begun");
        match (&op.ask, &answer) {
            (Ask::Get, Answer::Value(Some(value))) => {
                self.seen.insert(key, (version.unwrap_or(0), value.clone()));
            }
            (Ask::Put { value, .. }, Answer::Done) if version.is_some() => {
                self.seen.insert(key, (version.expect("just looked at"), value.clone()));
            }
            _ => {}
        }
        let is_told = !matches!(answer, Answer::Open | Answer::Nothing | Answer::Full);
        if is_told && op.ask != Ask::Get {
            self.changed.push(key);
        }
        (op.answer, op.version, op.end) = (answer, version, end);
    }

    /// A put at the memcached door that finds no room takes out what was there. Whether one did that was refused, or
    /// not answered, is open.
    fn may_be_gone(&mut self, key: usize, begin: u64) {
        let Some(ops) = self.ops.get_mut(&key) else { return };
        let Some(op) = ops.iter().rev().find(|op| op.begin == begin) else { return };
        if matches!((&op.ask, &op.answer), (Ask::Put { .. }, Answer::Full | Answer::Open)) {
            let (ask, answer, by) = (Ask::Remove, Answer::Open, op.by.clone());
            ops.push(Op { ask, answer, version: None, begin, end: u64::MAX, after: None, by });
        }
    }
}

/// An operation that is not answered.
struct Open {
    key: usize,
    begin: u64,
    /// It sends a value in several pieces.
    is_large: bool,
    asked_ns: u64,
    /// How long its node had been paused.
    paused_ns: u64,
    /// What is asked again if the connection is lost.
    again: Option<(Ask, With)>,
    /// It was asked before.
    is_again: bool,
}

/// The tokens of the lock that guards objects.
const GUARDS: std::ops::RangeInclusive<(usize, u64)> = (Plan::GUARD, 0)..=(Plan::GUARD, u64::MAX);

/// See the module.
pub(super) struct Client {
    number: usize,
    /// The node it is connected to, the connection's number there, and the connection.
    pub(super) link: Option<(usize, usize, Peer)>,
    door: Door,
    open: Vec<Open>,
    /// What is asked again over the next connection.
    lost: Vec<Open>,
    told: Option<Told>,
    /// When it was answered last.
    answered_ns: u64,
    /// The last stamp.
    stamp: u64,
    /// Grants of the locks it holds, by object.
    grants: BTreeMap<usize, u64>,
    /// Those of the locks that it ever held, by object and grant: grants of two locks may be the same number.
    tokens: BTreeMap<(usize, u64), Token>,
}

impl Client {
    pub(super) fn new(number: usize) -> Self {
        let (open, lost, grants, tokens) = <_>::default();
        let (link, door, told, answered_ns, stamp) = (None, Door::new(number as u64, 0), None, 0, 0);
        Self { number, link, door, open, lost, told, answered_ns, stamp, grants, tokens }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.open.is_empty()
    }

    /// How many of its operations are not answered.
    pub(super) fn waits(&self) -> usize {
        self.open.len()
    }

    /// Whether a large value of its own is under way.
    pub(super) fn has_large(&self) -> bool {
        self.open.iter().any(|open| open.is_large)
    }

    /// It has a connection. How many changes it asks again over it.
    pub(super) fn connected(&mut self, link: (usize, usize, Peer), kind: u64, now_ns: u64, paused_ns: u64) -> usize {
        (self.link, self.door) = (Some(link), Door::new(kind, now_ns / 1_000_000));
        if !matches!(self.door, Door::Wire(_)) {
            return 0;
        }
        let lost = std::mem::take(&mut self.lost);
        for open in &lost {
            let Some((ask, with)) = &open.again else { continue };
            self.door.ask(open.begin, &name(open.key), ask, now_ns / 1_000_000, *with);
        }
        let count = lost.len();
        self.open.extend(lost.into_iter().map(|open| Open { asked_ns: now_ns, paused_ns, is_again: true, ..open }));
        count
    }

    /// Whether it can ask all that it waits for again.
    pub(super) fn can_ask_again(&self) -> bool {
        !self.open.is_empty() && self.open.iter().all(|open| open.again.is_some())
    }

    /// Nothing is asked again: what it has no answer to stays open.
    pub(super) fn give_up(&mut self, history: &mut History) {
        for open in self.lost.drain(..) {
            history.end(open.key, open.begin, Answer::Open, None);
        }
    }

    /// An id for a change, if nodes take such; some changes go without.
    fn id(&mut self, begin: u64, ask: &Ask, now_ns: u64) -> Option<Own> {
        let told =
            self.told.filter(|_| matches!(self.door, Door::Wire(_)) && *ask != Ask::Get && !begin.is_multiple_of(4))?;
        self.stamp = stamp_at(told.ahead_ms + now_ns / 1_000_000).max(self.stamp + 1);
        // One number has one change under way at a time.
        let own = |open: &Open| open.again.as_ref().and_then(|(_, with)| with.own).map(|own| own.id.client);
        let used: Vec<u64> = self.open.iter().chain(&self.lost).filter_map(own).collect();
        let client = (0..).map(|lane| 1_000 * (lane + 1) + self.number as u64).find(|client| !used.contains(client))?;
        let id = RequestId { client, sequence: self.stamp };
        Some(Own { id, epoch: told.epoch, may_be_done: false })
    }

    /// Asks for something.
    pub(super) fn ask(&mut self, plan: &mut Plan, history: &mut History, now_ns: u64, paused_ns: u64) {
        if plan.random.chance(5) && self.look_at_all(plan, history, now_ns, paused_ns) {
            return;
        }
        let (key, family) = plan.key();
        let grant = match family {
            Family::Guarded => self.tokens.range(GUARDS).next_back().map(|((_, grant), _)| *grant),
            _ => self.grants.get(&key).copied(),
        };
        let ask = plan.ask(family, history.seen.get(&key), grant);
        let ask = if self.door.takes(&ask) { ask } else { Ask::Get };
        // What a connection asks later sees what it asked before, unless that still arrives in frames between which
        // others are served.
        let is_whole =
            !matches!((&self.door, &ask), (Door::Wire(_), Ask::Put { value, .. }) if value.len() > BLOCK_BYTES);
        let is_followed = ask != Ask::Get && is_whole && plan.random.chance(15);
        let first = self.send(history, (key, ask), None, now_ns, paused_ns);
        if is_followed {
            self.send(history, (key, Ask::Get), Some(first), now_ns, paused_ns);
        }
    }

    /// Asks for many objects at once; whether its door has such a request.
    fn look_at_all(&mut self, plan: &mut Plan, history: &mut History, asked_ns: u64, paused_ns: u64) -> bool {
        if !matches!(self.door, Door::Memcached(_)) {
            return false;
        }
        let keys: BTreeSet<usize> = (0..2 + plan.random.below(8)).map(|_| plan.key().0).collect();
        let by = self.by(asked_ns);
        let begun = keys.into_iter().map(|key| (key, history.begin(key, Ask::Get, None, by.clone())));
        let opened: Vec<(usize, u64)> = begun.collect();
        let asked: Vec<(u64, String)> = opened.iter().map(|(key, begin)| (*begin, name(*key))).collect();
        let open =
            |(key, begin)| Open { key, begin, is_large: false, asked_ns, paused_ns, again: None, is_again: false };
        self.open.extend(opened.into_iter().map(open));
        self.door.get_all(&asked)
    }

    fn by(&self, asked_ns: u64) -> String {
        let at = self.link.as_ref().map_or(0, |link| link.0);
        format!("{} ms client {} at n{} by {}", asked_ns / 1_000_000, self.number, at + 1, self.door.name())
    }

    /// Asks for an object.
    pub(super) fn look(&mut self, history: &mut History, key: usize, now_ns: u64, paused_ns: u64) {
        self.send(history, (key, Ask::Get), None, now_ns, paused_ns);
    }

    /// Puts something.
    pub(super) fn put(&mut self, history: &mut History, what: (usize, Ask), now_ns: u64, paused_ns: u64) {
        self.send(history, what, None, now_ns, paused_ns);
    }

    fn send(
        &mut self,
        history: &mut History,
        (key, ask): (usize, Ask),
        after: Option<u64>,
        asked_ns: u64,
        paused_ns: u64,
    ) -> u64 {
        if let Ask::Unlock { .. } = ask {
            self.grants.remove(&key);
        }
        let by = self.by(asked_ns);
        let begin = history.begin(key, ask.clone(), after, by);
        let token = match ask {
            Ask::Unlock { grant } => self.tokens.get(&(key, grant)),
            Ask::Guarded { grant, .. } => self.tokens.get(&(Plan::GUARD, grant)),
            _ => None,
        };
        let lives = Plan::is_brief(key).then_some(1 << (begin % 6));
        let with = With { token: token.copied(), lives, own: self.id(begin, &ask, asked_ns) };
        self.door.ask(begin, &name(key), &ask, asked_ns / 1_000_000, with);
        let is_large = matches!(&ask, Ask::Put { value, .. } if value.len() > BLOCK_BYTES);
        let again = with.own.map(|own| (ask, With { own: Some(Own { may_be_done: true, ..own }), ..with }));
        self.open.push(Open { key, begin, is_large, asked_ns, paused_ns, again, is_again: false });
        begin
    }

    /// Sends, and reads what came; how many bytes moved.
    pub(super) fn exchange(&mut self, plan: &mut Plan, history: &mut History, now_ns: u64) -> Result<usize, String> {
        let Some((_, _, peer)) = &self.link else { return Ok(0) };
        if self.is_idle() && self.door.output().is_empty() && !peer.has_news() {
            return Ok(0);
        }
        let most = if plan.random.chance(20) { 1 + plan.random.size(3_000) as usize } else { usize::MAX };
        let output = self.door.output();
        let sent = peer.write(&output[..output.len().min(most)]);
        self.door.sent(sent);
        let bytes = peer.read(most);
        let mut granted = Vec::new();
        for (begin, answer, version) in self.door.hear(&bytes, now_ns / 1_000_000, &mut granted)? {
            let at = self.open.iter().position(|open| open.begin == begin).ok_or("an answer to nothing")?;
            let open = self.open.remove(at);
            self.answered_ns = now_ns;
            if let Answer::Granted(grant) = answer {
                self.grants.insert(open.key, grant);
                let token = granted.iter().find(|(number, _)| *number == begin).ok_or("a grant without its token")?;
                self.tokens.insert((open.key, grant), token.1);
            }
            // An error says that this try did nothing, not that those before do nothing.
            let answer = if open.is_again && is_error(&open, &answer) { Answer::Open } else { plain(answer) };
            // What memcached calls a version is that of the value: it stays where a token is remembered.
            let tells = !(Plan::is_guarded(open.key) && matches!(self.door, Door::Memcached(_)));
            history.end(open.key, open.begin, answer, version.filter(|_| tells));
            if matches!(self.door, Door::Memcached(_)) {
                history.may_be_gone(open.key, open.begin);
            }
        }
        if let Some(told) = self.door.told() {
            let before = self.told.unwrap_or(told);
            let ahead_ms = told.ahead_ms.max(before.ahead_ms);
            self.told = Some(Told { ahead_ms, epoch: told.epoch.max(before.epoch) });
        }
        if self.link.as_ref().is_some_and(|(_, _, peer)| peer.is_over()) {
            // That it is over the node has said itself.
            drop(self.lost(history));
        }
        Ok(sent + bytes.len())
    }

    /// Its connection is gone; what is open stays so, but for what is asked again. The end of that which its node has
    /// not heard of.
    pub(super) fn lost(&mut self, history: &mut History) -> Option<(At, Peer)> {
        let (again, open): (Vec<_>, Vec<_>) = self.open.drain(..).partition(|open| open.again.is_some());
        self.lost.extend(again);
        for open in open {
            history.end(open.key, open.begin, Answer::Open, None);
            if matches!(self.door, Door::Memcached(_)) {
                history.may_be_gone(open.key, open.begin);
            }
        }
        let (at, number, peer) = self.link.take()?;
        peer.reset();
        Some(((at, number), peer))
    }

    /// An error if something is open for longer than that, the time that its node was paused left out. Where answers
    /// come in order, what was asked before comes first.
    pub(super) fn check(&self, history: &History, now_ns: u64, paused_ns: u64, most_ns: u64) -> Result<(), String> {
        let last_ns = if matches!(self.door, Door::Wire(_)) { 0 } else { self.answered_ns };
        let late = |open: &&Open| now_ns - open.asked_ns.max(last_ns) > most_ns + (paused_ns - open.paused_ns);
        let Some(open) = self.open.iter().find(late) else { return Ok(()) };
        let op = history.ops[&open.key].iter().find(|op| op.begin == open.begin);
        Err(format!("not answered after {} ms: {}", (now_ns - open.asked_ns) / 1_000_000, op.expect("it was begun")))
    }
}

/// Whether a change was answered by an error. That a lock is held by another is none.
fn is_error(open: &Open, answer: &Answer) -> bool {
    match answer {
        Answer::Nothing | Answer::Full | Answer::Absent | Answer::Value(None) => true,
        Answer::Differs => !matches!(open.again, Some((Ask::Lock, _))),
        _ => false,
    }
}

/// The answer, with what the check knows a lock by in the place of a lock's value.
fn plain(answer: Answer) -> Answer {
    let holders = match &answer {
        Answer::Value(Some(value)) => read_holders(value),
        _ => None,
    };
    match holders.as_deref() {
        Some([holder]) => Answer::Value(Some(lock_value(holder.grant))),
        _ => answer,
    }
}

/// The name of an object.
pub(super) fn name(key: usize) -> String {
    format!("k{key}")
}

/// The object of that name.
pub(super) fn key_of(name: &[u8]) -> usize {
    let number = name.strip_prefix(b"k").and_then(|rest| std::str::from_utf8(rest).ok()?.parse().ok());
    number.expect("a name that clients gave")
}
