//! The end of a run: nothing goes wrong any more, and all is looked at.

use super::super::check::{Op, Verdict, check};
use super::super::machine::node;
use super::*;
use herd_node::Unsettled;

/// Until when a herd is whole again in which nothing goes wrong, ms. Clocks go up to twice as slow.
const WHOLE_MS: u64 = 90_000;
/// How long links that were cut take to be there again, and copies to be evened out, where the test is the warden: with
/// a clock twice as slow a node waits 4 s for the answer to a dialing, and 2 s more before the next.
const LINKED_MS: u64 = 9_000;
/// How long the removal of an object whose time is over is under way at most, ms.
const EXPIRES_MS: u64 = 2_000;
/// How long the map is the same when nothing more will change it.
const STILL_MS: u64 = 9_000;

impl<S: Service> World<S> {
    /// Nothing goes wrong any more: what is under way ends, and each object is looked at by each node.
    pub(super) fn calm(&mut self) -> Result<(), String> {
        self.quiet = true;
        self.paths.iter_mut().for_each(|of_one| of_one.fill(Path::default()));
        self.traps.clear();
        self.alone.append(&mut self.unheard);
        self.deaf.fill(0);
        self.cables.iter_mut().for_each(|it| it.late_ns = 0);
        let now_ns = self.now_ns();
        self.paused.iter_mut().for_each(|paused| wake(paused, now_ns));
        self.machines.iter().flatten().for_each(|machine| machine.inside.leave_memory(None));
        self.restarts.values_mut().for_each(|until_ns| *until_ns = 0);
        self.news.iter_mut().for_each(|news_ns| *news_ns = 0);
        self.come_to_rest()?;
        if self.is_over {
            return Ok(());
        }
        // Of what was asked again the answers may be on their way yet.
        while !self.clients.iter().all(Client::is_idle) {
            self.step()?;
        }
        self.clients.iter_mut().for_each(|client| client.give_up(&mut self.history));
        let keys: Vec<usize> = self.history.ops.keys().copied().collect();
        let untold = self.history.nothing + self.history.open;
        for at in 0..self.begun {
            self.alone.extend(self.clients[0].lost(&mut self.history));
            self.clients[0].give_up(&mut self.history);
            for key in &keys {
                // Also where the node has closed the connection behind an error, which is told below.
                if self.clients[0].link.is_none() {
                    self.connect_to(0, at, at as u64);
                }
                let (now_ns, paused_ns) = (self.now_ns(), slept(&self.paused[at], self.now_ns()));
                self.clients[0].look(&mut self.history, *key, now_ns, paused_ns);
                while !self.clients[0].is_idle() {
                    self.step()?;
                }
            }
        }
        if self.history.nothing + self.history.open > untold {
            let last = |ops: &Vec<Op>| ops.iter().rev().take(self.begun).map(|op| format!("{op}\n")).collect();
            let last: Vec<String> = self.history.ops.values().map(last).collect();
            let groups: Vec<String> = self.map.spreads[0].groups.iter().map(|group| format!("{group:?}\n")).collect();
            let text = "not all objects can be had when nothing goes wrong any more";
            return Err(format!("{text}:\n{}{}", last.concat(), groups.concat()));
        }
        for client in &mut self.clients {
            self.alone.extend(client.lost(&mut self.history));
            client.give_up(&mut self.history);
        }
        self.plan.ops = 0;
        self.rest(1_000)?;
        self.compare_lasting()?;
        self.compare_brief()?;
        for (at, machine) in self.machines[..self.begun].iter().enumerate() {
            let mut unsettled = machine.as_ref().expect("all run by now").inside.unsettled();
            // The requests that groups answered are kept, also where one copy is and it has moved.
            unsettled.held_bytes = 0;
            if unsettled != Unsettled::default() {
                return Err(format!("{unsettled:?} are left at n{} when all clients have gone", at + 1));
            }
        }
        Ok(())
    }

    /// All members of a group have the same of what does not expire. What is evened out later than others waited for is
    /// waited for once more.
    fn compare_lasting(&mut self) -> Result<(), String> {
        let lasts = |key| !Plan::is_brief(key);
        let result = self.compare(lasts);
        if result.is_ok() || !self.map.is_moving() {
            return result;
        }
        self.come_to_rest()?;
        if self.is_over { Ok(()) } else { self.compare(lasts) }
    }

    /// The same of objects that expire, where the removal of one may be under way just then.
    fn compare_brief(&mut self) -> Result<(), String> {
        let mut result = self.compare(Plan::is_brief);
        for _ in 0..EXPIRES_MS / 500 {
            if result.is_ok() {
                break;
            }
            self.rest(500)?;
            result = self.compare(Plan::is_brief);
        }
        result
    }

    /// All members of a group have the same of these objects, and no write is pending.
    pub(super) fn compare(&self, is_meant: impl Fn(usize) -> bool) -> Result<(), String> {
        let (spread, mut of_slot) = (&self.map.spreads[0], BTreeMap::new());
        for (at, machine) in self.machines[..self.begun].iter().enumerate() {
            for copy in machine.as_ref().expect("all run by now").inside.copies() {
                let inside = &machine.as_ref().expect("as above").inside;
                let slot = inside.slot(&copy.name);
                if !is_meant(key_of(&copy.name)) {
                    continue;
                }
                if spread.group_of(slot).members().any(|member| member == node(at)) {
                    of_slot.entry((slot, copy.name.clone())).or_insert_with(Vec::new).push((at, copy));
                }
            }
        }
        for ((slot, _), copies) in of_slot {
            let group = spread.group_of(slot);
            let (first, whole) =
                (&copies[0].1, group.copies() == copies.len() && group.others.len() + 1 == copies.len());
            // What fewer nodes have than it needs stays under way until there are enough.
            let is_enough = group.copies() >= usize::from(spread.needed);
            let state = |copy: &herd_node::Copy| (copy.version, copy.value.clone(), copy.token);
            let differs = |copy: &herd_node::Copy| state(copy) != state(first) || is_enough && copy.pending.is_some();
            if !whole || copies.iter().any(|(_, copy)| differs(copy)) {
                let told = |(at, copy): &(usize, herd_node::Copy)| {
                    let (version, pending, token) = (copy.version, copy.pending, copy.token);
                    let bytes = copy.value.len();
                    format!("n{} has {bytes} bytes, version {version}, token {token:?}, pending {pending:?}; ", at + 1)
                };
                let all: String = copies.iter().map(told).collect();
                return Err(format!("copies of {} differ: {all}{group:?}", String::from_utf8_lossy(&first.name)));
            }
        }
        Ok(())
    }

    /// Lets time pass until all that was under way has ended, and the herd is whole.
    fn come_to_rest(&mut self) -> Result<(), String> {
        let Some(reign) = &mut self.reign else { return self.rest(LINKED_MS) };
        reign.store.heal();
        let until_ns = self.now_ns() + WHOLE_MS * 1_000_000;
        // Nodes get their shares when the map has been the same for a while.
        let (mut epoch, mut since_ns) = (0, 0);
        while self.now_ns() < since_ns + STILL_MS * 1_000_000 || epoch != self.map.epoch {
            let short = self.shortfall().or_else(|| self.map.is_moving().then(|| "members move".into()));
            if self.now_ns() > until_ns {
                let short = short.unwrap_or_else(|| format!("the map changes: epoch {}", self.map.epoch));
                return Err(format!(
                    "after {WHOLE_MS} ms in which nothing went wrong the herd is not whole: {short}\n{}",
                    self.told_of_all()
                ));
            }
            if short.is_some() || epoch != self.map.epoch {
                (epoch, since_ns) = (self.map.epoch, self.now_ns());
            }
            self.end_drains();
            self.rest(500)?;
            if self.is_over {
                return Ok(());
            }
        }
        Ok(())
    }

    /// The herd, for people.
    fn told_of_all(&self) -> String {
        let nodes =
            self.map.nodes.iter().map(|node| format!("{} life {} {:?}; ", node.name, node.incarnation, node.state));
        let wants = self.machines.iter().flatten().map(|it| format!("{:?} wants {:?}; ", it.me, it.still_wanted()));
        let offices = self.reign.iter().flat_map(|reign| &reign.offices).map(|office| format!("\n{}", office.told()));
        let epoch = self.map.epoch;
        format!(
            "epoch {epoch}, {}{}{}",
            nodes.collect::<String>(),
            wants.collect::<String>(),
            offices.collect::<String>()
        )
    }

    /// Lets so much time pass.
    pub(super) fn rest(&mut self, ms: u64) -> Result<(), String> {
        let end_ns = self.now_ns() + ms * 1_000_000;
        while self.now_ns() < end_ns {
            self.step()?;
        }
        Ok(())
    }

    pub(super) fn judge(&mut self) -> Result<(), String> {
        let mut undecided = 0;
        for (key, ops) in &self.history.ops {
            match check(ops) {
                Verdict::Right => {}
                Verdict::TooMany => undecided += 1,
                Verdict::Wrong(why) => {
                    let mut text = format!("no order of what happened to {} explains it: {why}", name(*key));
                    ops.iter().for_each(|op| text += &format!("    {op}\n"));
                    return Err(text);
                }
            }
        }
        self.counts.insert("objects not decided", undecided);
        Ok(())
    }
}
