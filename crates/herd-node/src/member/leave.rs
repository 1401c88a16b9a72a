//! How a node that is told to stop has others lead what it leads, before it stops: it asks the warden for leave
//! (PROTOCOL.md §1.14), wherever that is, and serves on until it goes by the map that says so.
//!
//! Nothing depends on it: where the warden can't be asked, or takes too long, the node stops, and the others find out.
//! The thread that stops the node waits here; a loop asks for it.

use super::{Member, Slot};
use crate::context::{Context, Shared};
use herd_core::ErrorKind;
use herd_core::limits::{LEAVE_LAST_MS, LEAVE_MS, LEAVE_UNHEARD_MS, LEAVE_UNLINKED_MS};
use herd_core::place::{Group, Kind, Life, Map};
use herd_core::warden::{Answer, Ask};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How often it is looked.
const STEP: Duration = Duration::from_millis(2);
/// How soon it is asked again where the warden is only coming into office.
const AGAIN: Duration = Duration::from_millis(50);

/// The request of a node that is about to end.
#[derive(Default)]
pub(super) struct Leaving {
    /// A loop is to ask.
    is_wanted: AtomicBool,
    /// Where the answer comes.
    slot: Mutex<Option<Slot>>,
}

/// What a node has, by a map.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Keeps {
    /// Groups that it leads and another one could.
    led: usize,
    /// Groups of which nobody else has all.
    alone: usize,
    /// Whether it is in any group.
    any: bool,
}

impl Keeps {
    fn of(me: Life, map: &Map) -> Self {
        let mut keeps = Self::default();
        if map.node(me.node).is_none_or(|node| node.incarnation != me.incarnation) {
            return keeps;
        }
        for spread in &map.spreads {
            let is_its = |group: &&Group| group.members().any(|id| id == me.node);
            for group in spread.groups.iter().filter(is_its) {
                let leads = group.primary == Some(me.node);
                keeps.any = true;
                keeps.led += usize::from(leads && group.copies() > 1);
                keeps.alone += usize::from(leads && group.copies() == 1 && spread.kind == Kind::Kept);
            }
        }
        keeps
    }
}

impl Member {
    /// See [`crate::Node::leave`].
    pub(crate) fn leave(&self, shared: &Shared, is_cut: impl Fn() -> bool, tell: impl Fn(&str)) {
        let Some(map) = self.map().filter(|map| map.nodes.len() > 1 && shared.held.load(Relaxed)) else { return };
        let (since, keeps) = (Instant::now(), Keeps::of(self.life, &map));
        if keeps.alone > 0 {
            tell(&format!("{} no other copy: what they hold ends with this process", groups(keeps.alone, "have")));
        }
        if keeps.led > 0 {
            tell(&format!("handing over {}", groups(keeps.led, "")));
        }
        match self.let_go(shared, keeps, (&map, since), is_cut) {
            Ok(()) if keeps.led > 0 => {
                tell(&format!("others lead them, {} ms later", since.elapsed().as_millis()));
            }
            Ok(()) => {}
            Err(why) => tell(&format!("not handed over: {why}; others lead what this node led once they miss it")),
        }
    }

    /// Asks, and waits. An error: why it waits no more.
    fn let_go(
        &self,
        shared: &Shared,
        keeps: Keeps,
        (map, since): (&Map, Instant),
        is_cut: impl Fn() -> bool,
    ) -> Result<(), String> {
        if !keeps.any {
            return Ok(());
        }
        self.want_leave(shared);
        let (mut epoch, mut again, mut linked) = (None, None, since);
        loop {
            let now = Instant::now();
            let at_hand = self.map().filter(|it| it.epoch > map.epoch);
            if epoch.is_some_and(|epoch| epoch <= at_hand.as_ref().map_or(map.epoch, |it| it.epoch)) {
                break;
            }
            if is_cut() {
                return Err("it is to end at once".into());
            }
            match self.leave.said() {
                Some(Ok(Answer::Leaves { epoch: told })) => epoch = Some(told),
                Some(Ok(_)) => return Err("the warden's answer can't be read".into()),
                Some(Err(error)) if error.kind == ErrorKind::Busy => again = Some(now + AGAIN),
                Some(Err(error)) => return Err(error.text),
                None => {}
            }
            if again.take_if(|at| *at <= now).is_some() {
                self.want_leave(shared);
            }
            // Others lead: the rest comes soon.
            let goes_on = at_hand.is_some_and(|it| Keeps::of(self.life, &it).led == 0);
            let patience_ms = if goes_on { LEAVE_MS } else { LEAVE_UNHEARD_MS };
            if self.warden().is_some() || self.hub.get().is_some_and(|hub| hub.is_linked(self.warden_node())) {
                linked = now;
            }
            if now > since + Duration::from_millis(patience_ms) {
                return Err("the warden does not answer".into());
            }
            if now > linked + Duration::from_millis(LEAVE_UNLINKED_MS) {
                return Err("the warden's node can't be reached".into());
            }
            std::thread::sleep(STEP);
        }
        let last = Instant::now() + Duration::from_millis(LEAVE_LAST_MS);
        while Instant::now() < last && !is_cut() {
            std::thread::sleep(STEP);
        }
        Ok(())
    }

    /// Has a loop ask for leave.
    fn want_leave(&self, shared: &Shared) {
        self.leave.is_wanted.store(true, Relaxed);
        let loops = shared.loops.get().map(|loops| loops.loops());
        loops.and_then(|loops| loops.first()).into_iter().for_each(|remote| remote.resume(&[]));
    }
}

/// So many groups, and what they do.
fn groups(count: usize, verb: &str) -> String {
    match (count, verb) {
        (1, "have") => "1 group has".into(),
        (1, _) => "1 group".into(),
        (_, "") => format!("{count} groups"),
        _ => format!("{count} groups {verb}"),
    }
}

impl Leaving {
    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Slot>> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The answer, once.
    fn said(&self) -> Option<super::Said> {
        self.lock().as_ref().and_then(Slot::take)
    }
}

impl Context {
    /// Asks the warden to let this node go, if that is wanted; one loop does it.
    #[inline]
    pub(crate) fn ask_leave(&mut self) {
        if self.number == 0 && self.shared.member.get().is_some_and(|member| member.leave.is_wanted.load(Relaxed)) {
            self.ask_leave_now();
        }
    }

    #[cold]
    fn ask_leave_now(&mut self) {
        let Some(member) = self.shared.member.get().cloned() else { return };
        if member.leave.is_wanted.swap(false, Relaxed) {
            let slot = self.ask_warden(Ask::Leave(member.life), None);
            *member.leave.lock() = Some(slot.unwrap_or_else(|error| Slot::of(Err(error))));
        }
    }
}
