//! What loops and the warden have for the thread that takes maps. Bounded: of maps the latest, of each node and each
//! group one word, and some lines for the log.

use super::errand::ToDo;
use crate::link::Came;
use herd_core::limits::{MEMBER_LINES_MAX, NODES_MAX};
use herd_core::place::{GroupId, Map, NodeId};
use herd_core::replica::{GroupEpoch, Want};
use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A node's map: its life, and epoch and revision.
type Have = (u64, u32, u64);

/// What has come.
#[derive(Default)]
pub(super) struct Mail {
    /// The map that the warden here pushed last, and whether the herd may hold objects.
    pub(super) pushed: Option<(Arc<Map>, bool)>,
    /// The map that came over a link last.
    pub(super) came: Option<Came>,
    /// The maps that other nodes have: told to the warden again and again, which forgets it when it loses its office.
    pub(super) haves: BTreeMap<NodeId, Have>,
    /// What the groups that this node leads want of the warden, each in the view of that epoch.
    pub(super) wants: BTreeMap<GroupId, (GroupEpoch, Want)>,
    /// What a node said for which this process is none of the herd's any more.
    pub(super) outcast: Option<String>,
    /// What the warden's node asks about control stores.
    pub(super) errands: Vec<ToDo>,
    /// For the log.
    pub(super) lines: Vec<String>,
}

/// Where it is put.
#[derive(Default)]
pub(super) struct Mailbox {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    mail: Mail,
    is_new: bool,
    stopping: bool,
}

impl Mailbox {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts something in, and wakes the thread.
    pub(super) fn change(&self, change: impl FnOnce(&mut Mail)) {
        let mut state = self.lock();
        change(&mut state.mail);
        state.is_new = true;
        drop(state);
        self.changed.notify_all();
    }

    /// A node told which map it has.
    pub(super) fn has(&self, node: NodeId, have: Have) {
        self.change(|mail| {
            if mail.haves.len() < NODES_MAX || mail.haves.contains_key(&node) {
                mail.haves.insert(node, have);
            }
        });
    }

    /// A line for the log; where too many wait it is dropped.
    pub(super) fn tell(&self, line: String) {
        self.change(|mail| {
            if mail.lines.len() < MEMBER_LINES_MAX {
                mail.lines.push(line);
            }
        });
    }

    /// Waits for something, or for `tick`, and takes what has come into `mail`; false: it is to end.
    pub(super) fn wait(&self, mail: &mut Mail, tick: Duration) -> bool {
        let idle = |state: &mut State| !state.is_new && !state.stopping;
        let waited = self.changed.wait_timeout_while(self.lock(), tick, idle);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.is_new = false;
        let new = std::mem::take(&mut state.mail);
        mail.pushed = new.pushed.or(mail.pushed.take());
        mail.came = new.came.or(mail.came.take());
        mail.outcast = new.outcast.or(mail.outcast.take());
        mail.errands.extend(new.errands);
        mail.lines.extend(new.lines);
        mail.haves.extend(new.haves);
        mail.wants.extend(new.wants);
        !state.stopping
    }

    /// The thread is to end.
    pub(super) fn stop(&self) {
        self.lock().stopping = true;
        self.changed.notify_all();
    }
}
