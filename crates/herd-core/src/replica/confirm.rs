//! Reads of a primary that has no lease: it looks first, and then asks each member that it needs whether that is in its
//! view still. If all are, nobody else has decided by then, as each of them would have had to take another view before.
//!
//! Many reads share a round of asking: one that begins while a round is under way waits for the next. A member is asked
//! over a link on which it has adopted the view, and again over the next one.

use super::bugs::{self, Bug};
use super::{Change, GroupEpoch, Message, NodeId, Part};
use std::collections::{BTreeMap, BTreeSet};

/// The rounds of a primary, by number.
#[derive(Clone, Debug, Default, Hash)]
pub(super) struct Rounds {
    /// The last one that was begun.
    begun: u64,
    /// The last one to which all said yes.
    over: u64,
    /// Up to here all is void: somebody else has decided meanwhile, or may have.
    void: u64,
    /// Another one is wanted after that which is under way.
    is_wanted: bool,
    /// Who was asked in the last one, over the link of which generation, and who said yes.
    asked: BTreeMap<NodeId, u64>,
    yes: BTreeSet<NodeId>,
}

impl Rounds {
    fn is_under_way(&self) -> bool {
        self.begun > self.over.max(self.void)
    }

    /// Somebody else decides from now on.
    pub(super) fn end(&mut self) {
        // The one that is wanted was given a number, too.
        self.begun += 1;
        (self.void, self.is_wanted) = (self.begun, false);
        self.forget();
    }

    /// All are asked anew.
    pub(super) fn forget(&mut self) {
        self.asked.clear();
        self.yes.clear();
    }
}

impl<K: Ord + Clone, C: Change, O> Part<K, C, O> {
    /// A read has looked. Gives the number of the round that tells whether it may be answered: [`Part::confirmed`].
    pub fn confirm(&mut self) -> u64 {
        if self.rounds.is_under_way() {
            self.rounds.is_wanted = true;
            return self.rounds.begun + 1;
        }
        self.begin_round();
        self.rounds.begun
    }

    /// Whether what was looked at before the round of this number was asked for may be answered; `None`: it is not
    /// known yet.
    pub fn confirmed(&self, round: u64) -> Option<bool> {
        match () {
            () if round <= self.rounds.void => Some(false),
            () if round <= self.rounds.over => Some(true),
            () => None,
        }
    }

    fn begin_round(&mut self) {
        self.rounds.begun += 1;
        self.rounds.forget();
    }

    /// A member is in the view of that epoch.
    pub(super) fn says_yes(&mut self, from: NodeId, epoch: GroupEpoch, round: u64) {
        if self.leads_in(epoch) && round == self.rounds.begun {
            self.rounds.yes.insert(from);
        }
    }

    /// Asks those that the round under way needs, as soon as they have adopted the view, and ends it when all have said
    /// yes. Who is needed may have changed since it was begun; so this is done before each look at the effects.
    pub(super) fn go_on_confirming(&mut self) {
        while self.rounds.is_under_way() && self.leads() {
            let members: Vec<NodeId> = self.view.members.iter().map(|member| member.node).collect();
            let needed: Vec<NodeId> = members.into_iter().filter(|peer| self.needs(*peer)).collect();
            needed.iter().for_each(|peer| self.ask_to_confirm(*peer));
            let one_will_do = bugs::has(Bug::OneConfirms) && !self.rounds.yes.is_empty();
            if !one_will_do && !needed.iter().all(|peer| self.rounds.yes.contains(peer)) {
                return;
            }
            self.rounds.over = self.rounds.begun;
            if std::mem::take(&mut self.rounds.is_wanted) {
                self.begin_round();
            }
        }
    }

    fn ask_to_confirm(&mut self, peer: NodeId) {
        let Some(link) = self.links.get(&peer).filter(|link| link.is_up && link.is_ready) else { return };
        if self.rounds.asked.insert(peer, link.generation) != Some(link.generation) {
            let (epoch, round) = (self.view.epoch, self.rounds.begun);
            self.send(peer, Message::Confirm { epoch, round });
        }
    }

    /// A primary asks whether this node is in its view still; called where it obeys that.
    pub(super) fn say_yes(&mut self, from: NodeId, asked: GroupEpoch, round: u64) {
        let epoch = if bugs::has(Bug::OldEpoch) { asked } else { self.view.epoch };
        self.send(from, Message::Confirmed { epoch, round });
    }
}
