//! What a part does as a member: it obeys the primary of the newest epoch it knows, and nobody else.

use super::{Change, Copies, Effect, GroupEpoch, Message, NodeId, Part, Standing, Verdict, View, copies};

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
        }
        self.send(from, Message::Adopted { epoch, pending: at.pendings() });
    }

    /// Whether the sender is the primary of this node's epoch; if not, it is told.
    pub(super) fn obeys(&mut self, from: NodeId, epoch: GroupEpoch) -> bool {
        if epoch < self.view.epoch {
            let view = self.view.clone();
            self.send(from, Message::Moved { view });
            return false;
        }
        let obeys = epoch == self.view.epoch && from == self.view.primary && self.view.members.contains_key(&self.me);
        if !obeys {
            self.out.push(Effect::Close(from));
        }
        obeys
    }

    /// What the primary of this epoch says of one entry.
    pub(super) fn serve<S: Copies<K, C>>(&mut self, at: &mut S, from: NodeId, message: Message<K, C>) {
        let graves = self.is_syncing();
        let (key, version, verdict) = match message {
            Message::Prepare { serial, settled, key, write, offer, .. } => {
                self.settle_up_to(at, from, settled);
                let verdict = copies::prepare(at, &key, write, &offer, graves);
                if at.pending(&key).is_some_and(|pending| pending.version == write.version)
                    && let Some(link) = self.links.get_mut(&from)
                {
                    link.receive(serial, key.clone(), write.version);
                }
                (key, write.version, verdict)
            }
            Message::Abort { settled, key, version, .. } => {
                self.settle_up_to(at, from, settled);
                copies::end(at, &key, version, false, graves);
                (key, version, Verdict::Aborted)
            }
            Message::Resolve { key, version, commit, .. } => {
                copies::end(at, &key, version, commit, graves);
                (key, version, Verdict::Resolved)
            }
            Message::Copy { key, version, state, .. } if graves => {
                let verdict = copies::copy(at, &key, version, &state);
                (key, version, verdict)
            }
            Message::Settle { settled, .. } => return self.settle_up_to(at, from, settled),
            // A copy for who is not syncing, and what is no order.
            _ => return,
        };
        let epoch = self.view.epoch;
        self.send(from, Message::Answer { epoch, key, version, verdict });
    }

    fn settle_up_to<S: Copies<K, C>>(&mut self, at: &mut S, from: NodeId, settled: u64) {
        let graves = self.is_syncing();
        let Some(link) = self.links.get_mut(&from) else { return };
        while let Some((key, version)) = link.next_settled(settled) {
            copies::end(at, &key, version, true, graves);
        }
    }

    fn is_syncing(&self) -> bool {
        self.view.members.get(&self.me).is_some_and(|member| member.standing == Standing::Syncing)
    }
}
