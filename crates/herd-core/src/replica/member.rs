//! What a part does as a member: it obeys the primary of the newest epoch it knows, and nobody else.

use super::bugs::{self, Bug};
use super::{Change, Copies, Effect, GroupEpoch, Message, NodeId, Part, Pending, Standing, Verdict, View, copies};
use crate::entry::{COUNTER_BITS, Version};
use crate::limits::ADOPTED_PENDING_MAX;

/// No primary comes to versions from here on: those after them would have no numbers.
const VERSIONS_END: Version = Version::MAX - (1 << (COUNTER_BITS - 1));

/// Prepared writes in one message; the checker must meet several messages.
const ADOPTED_PENDING: usize = if cfg!(test) { 1 } else { ADOPTED_PENDING_MAX };

impl<K: Ord + Clone, C: Change, O> Part<K, C, O> {
    /// A primary tells its view and asks what is pending here.
    pub(super) fn obey<S: Copies<K, C>>(&mut self, at: &mut S, from: NodeId, view: View) {
        let epoch = view.epoch;
        self.take(at, view);
        if !self.obeys(from, epoch) {
            return;
        }
        if let Some(link) = self.links.get_mut(&from) {
            link.adopted();
            link.owes_adopted = true;
        }
        self.tell_pendings(at);
    }

    /// All that was here is dropped, as [`Effect::Clear`] asked. From now on the part takes its primary's writes, or
    /// decides on its own.
    pub fn cleared<S: Copies<K, C>>(&mut self, at: &mut S) {
        self.is_clearing = false;
        self.tell_pendings(at);
        self.open(at);
        self.go_on(at);
    }

    /// What is pending here, to the primary that waits for it, but only once what is of no worth has gone.
    fn tell_pendings<S: Copies<K, C>>(&mut self, at: &mut S) {
        let (epoch, primary) = (self.view.epoch, self.view.primary);
        let Some(link) = self.links.get_mut(&primary).filter(|link| link.owes_adopted) else { return };
        if self.is_clearing && !bugs::has(Bug::EarlyAdopted) {
            return;
        }
        link.owes_adopted = false;
        at.sift();
        let mut all = at.pendings().into_iter().peekable();
        loop {
            let pending = all.by_ref().take(ADOPTED_PENDING).collect();
            let is_last = all.peek().is_none();
            self.send(primary, Message::Adopted { epoch, pending, is_last });
            if is_last {
                return;
            }
        }
    }

    /// Whether the sender is the primary of this node's epoch; if not, it is told.
    pub(super) fn obeys(&mut self, from: NodeId, epoch: GroupEpoch) -> bool {
        if epoch < self.view.epoch && bugs::has(Bug::OldEpoch) {
            return true;
        }
        if epoch < self.view.epoch {
            let view = self.view.clone();
            self.send(from, Message::Moved { view });
            return false;
        }
        let obeys = epoch == self.view.epoch && from == self.view.primary && self.view.member(self.me).is_some();
        if !obeys {
            self.out.push(Effect::Close(from));
        }
        obeys
    }

    /// What the primary of this epoch says of one entry, as it asked for it in that epoch.
    pub(super) fn serve<S: Copies<K, C>>(
        &mut self,
        at: &mut S,
        from: NodeId,
        epoch: GroupEpoch,
        message: Message<K, C>,
    ) {
        if matches!(&message, Message::Prepare { write: Pending { version, .. }, .. } | Message::Copy { version, .. }
            if *version >= VERSIONS_END)
        {
            return self.out.push(Effect::Close(from));
        }
        let (key, version, verdict) = match message {
            Message::Prepare { serial, settled, key, write, offer, .. } => {
                self.settle_up_to(at, from, settled);
                let (verdict, is_pending) = copies::prepare(at, &key, write, &offer, self.is_syncing());
                if is_pending && let Some(link) = self.links.get_mut(&from) {
                    link.receive(serial, key.clone(), write.version);
                }
                (key, write.version, verdict)
            }
            Message::Abort { settled, key, version, .. } => {
                self.settle_up_to(at, from, settled);
                at.end(&key, version, false);
                (key, version, Verdict::Aborted)
            }
            Message::Resolve { key, version, commit, .. } => {
                at.end(&key, version, commit);
                (key, version, Verdict::Resolved)
            }
            Message::Copy { key, version, state, .. } if self.is_syncing() => {
                let verdict = copies::copy(at, &key, version, &state);
                (key, version, verdict)
            }
            Message::Settle { settled, .. } => return self.settle_up_to(at, from, settled),
            Message::Confirm { round, .. } => return self.say_yes(from, epoch, round),
            // A copy for who is not syncing, and what is no order.
            _ => return,
        };
        self.send(from, Message::Answer { epoch, key, version, verdict });
    }

    fn settle_up_to<S: Copies<K, C>>(&mut self, at: &mut S, from: NodeId, settled: u64) {
        let Some(link) = self.links.get_mut(&from) else { return };
        while let Some((key, version)) = link.next_settled(settled) {
            at.end(&key, version, true);
        }
    }

    fn is_syncing(&self) -> bool {
        self.view.member(self.me).is_some_and(|member| member.standing == Standing::Syncing)
    }
}
