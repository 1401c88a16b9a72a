//! A node's witness, as the node has it: a small process that outlives the node's own, and tells the warden of its end
//! (docs/decisions/012, "Obituaries"). The thread that takes maps starts it once the herd has another node, and tells
//! it where the warden's node is, each time that this changes.
//!
//! Nothing depends on it: where there is none the herd hears the node's silence, later.

use super::Member;
use super::obituary::Charge;
use herd_core::limits::OBITUARY_LAST_MS;
use herd_core::place::Map;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// A witness that runs.
pub trait Witness: Send {
    /// Passes on what [`super::Told`] takes; must not wait. An error: it takes nothing any more.
    fn tell(&mut self, text: &str) -> io::Result<()>;

    /// Whether it runs no more.
    fn has_ended(&mut self) -> bool;

    /// Waits for its end, for so long at most, and then ends it. One that is merely dropped goes on.
    fn end(self: Box<Self>, patience: Duration);
}

/// Starts one.
pub type StartWitness = Arc<dyn Fn() -> io::Result<Box<dyn Witness>> + Send + Sync>;

/// See the module.
pub(super) struct Watched {
    /// Until it was tried.
    start: Option<StartWitness>,
    witness: Option<Box<dyn Witness>>,
    /// Where the warden's node is, as it was told.
    addresses: Vec<String>,
}

impl Watched {
    pub(super) fn new(start: Option<StartWitness>) -> Self {
        Self { start, witness: None, addresses: Vec::new() }
    }

    /// Does what is to be done by the map that the node has; a line for the log, if something is wrong.
    pub(super) fn look(&mut self, member: &Member) -> Option<String> {
        let (hub, map) = (member.hub.get()?, member.map().filter(|map| map.nodes.len() > 1)?);
        let why = "if this process dies, the herd will notice its silence, and no sooner";
        if let Some(start) = self.start.take() {
            match start() {
                Ok(witness) => self.witness = Some(witness),
                Err(error) => return Some(format!("no witness can be started ({error}): {why}")),
            }
            self.tell(&Charge { herd: member.herd, life: member.life, secret: hub.secret() }.line());
        }
        self.point(member, &map);
        self.witness.take_if(|witness| witness.has_ended()).map(|_| format!("the witness has ended: {why}"))
    }

    /// Whether it took that. One that takes nothing any more ends soon.
    fn tell(&mut self, text: &str) -> bool {
        self.witness.as_mut().is_some_and(|witness| witness.tell(text).is_ok())
    }

    /// Tells it where the warden's node is, if that has changed.
    fn point(&mut self, member: &Member, map: &Map) {
        let node = map.node(member.warden_node()).filter(|node| node.addresses != self.addresses);
        if let Some(node) = node
            && self.tell(&Charge::at(&node.addresses))
        {
            self.addresses.clone_from(&node.addresses);
        }
    }

    /// The node has come to its end in good order: nothing of it answers anybody any more. That is told, unless nobody
    /// is there to hear it, and no process is left behind.
    pub(super) fn end(self, is_told: bool) {
        let Some(mut witness) = self.witness else { return };
        let is_told = is_told && witness.tell(Charge::OVER).is_ok();
        witness.end(Duration::from_millis(if is_told { OBITUARY_LAST_MS } else { 0 }));
    }
}
