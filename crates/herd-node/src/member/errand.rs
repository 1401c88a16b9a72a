//! Control stores that go from this node to another one, or come here (PROTOCOL.md §1.16).
//!
//! The warden's thread asks, by [`Runner`]; a loop sends it over its link and hands the answer back. What comes here
//! the thread that takes maps does: it writes the copy to this node's directory, and starts the warden over it.

use super::{Member, Outlets};
use crate::context::{Context, Shared};
use crate::control::Home;
use crate::environment::random;
use crate::link::{NoLink, Note};
use crate::warden::{self, Errands, Handle};
use herd_core::ErrorKind;
use herd_core::limits::MOVE_BEGIN_MS;
use herd_core::place::NodeId;
use herd_core::warden::{Answer, MoveId, Refusal};
use herd_core::wire::{Errand, Fields, Header, Kind, Status, VERB_CONTROL};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

/// How often it is looked whether an errand is waited for still.
const STEP: Duration = Duration::from_millis(20);

type Done = Result<(), String>;

/// An errand that no loop has yet.
struct Waiting {
    to: NodeId,
    errand: Errand,
    until: Instant,
    answer: SyncSender<Done>,
}

/// Those that no loop has yet.
#[derive(Default)]
pub(super) struct Queue {
    any: AtomicBool,
    all: Mutex<Vec<Waiting>>,
}

impl Queue {
    fn push(&self, waiting: impl IntoIterator<Item = Waiting>) {
        self.all.lock().unwrap_or_else(PoisonError::into_inner).extend(waiting);
        self.any.store(true, Relaxed);
    }

    fn take(&self) -> Vec<Waiting> {
        self.any.store(false, Relaxed);
        std::mem::take(&mut *self.all.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Those that a loop has sent.
#[derive(Default)]
pub(crate) struct Sent {
    open: BTreeMap<u64, SyncSender<Done>>,
    last: u64,
}

/// An errand for this node. The answer is called once.
pub(super) struct ToDo {
    pub(super) from: NodeId,
    pub(super) errand: Errand,
    pub(super) reply: Box<dyn FnOnce(Result<Answer, Refusal>) + Send>,
}

/// Sends the warden's errands. It is made before the member is.
#[derive(Default)]
pub(super) struct Runner(OnceLock<Weak<Member>>);

impl Runner {
    pub(super) fn of(&self, member: &Arc<Member>) {
        self.0.set(Arc::downgrade(member)).ok();
    }

    fn member(&self) -> Result<Arc<Member>, String> {
        self.0.get().and_then(Weak::upgrade).ok_or_else(|| "the node is only starting".into())
    }
}

impl Errands for Runner {
    fn run(&self, to: NodeId, errand: Errand, within: Duration, is_cut: &dyn Fn() -> bool) -> Done {
        let member = self.member()?;
        let loops = member.hub.get().and_then(|hub| hub.loops()).ok_or("the node is only starting")?;
        let (called, until) = (member.called(to), Instant::now() + within);
        let (answer, answered) = sync_channel(1);
        member.errands.push([Waiting { to, errand, until, answer }]);
        loops.loops().first().into_iter().for_each(|remote| remote.resume(&[]));
        while Instant::now() < until && !is_cut() {
            match answered.recv_timeout(STEP) {
                Ok(done) => return done.map_err(|text| format!("node {called}: {text}")),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(format!("node {called} can't be reached")),
            }
        }
        Err(format!("node {called} does not answer"))
    }

    fn moved(&self, to: NodeId, address: &str, id: MoveId) {
        if let Ok(member) = self.member() {
            member.moved(to, address, id);
        }
    }
}

impl Context {
    /// Sends what the warden here has for other nodes; one loop does it.
    #[inline]
    pub(crate) fn run_errands(&mut self) {
        if self.number == 0 && self.shared.member.get().is_some_and(|member| member.errands.any.load(Relaxed)) {
            self.run_errands_now();
        }
    }

    #[cold]
    fn run_errands_now(&mut self) {
        let Some(member) = self.shared.member.get().cloned() else { return };
        let now = Instant::now();
        let mut unsent = Vec::new();
        for waiting in member.errands.take().into_iter().filter(|waiting| now < waiting.until) {
            let number = self.sent.last + 1;
            let request = Header { verb: VERB_CONTROL, ..Header::new(Kind::Request) };
            let encode = |header: Header, out: &mut Vec<u8>| waiting.errand.encode(out, header.id);
            match self.links.ask(waiting.to, request, Note::Errand(number), encode) {
                Ok(_) => {
                    self.sent.last = number;
                    self.sent.open.insert(number, waiting.answer);
                }
                Err(NoLink::Down | NoLink::Busy) => unsent.push(waiting),
            }
        }
        if !unsent.is_empty() {
            member.errands.push(unsent);
        }
    }

    /// What came back; `None`: the link was lost.
    pub(crate) fn errand_answered(&mut self, number: u64, reply: Option<(&Header, &Fields<'_>)>) {
        let Some(answer) = self.sent.open.remove(&number) else { return };
        let done = match reply {
            None => Err("the link was lost".into()),
            Some((header, _)) if header.status() == Some(Status::Ok) => Ok(()),
            Some((_, fields)) => Err(fields.error.unwrap_or("it refuses").to_owned()),
        };
        // Nobody may wait any more.
        answer.try_send(done).ok();
    }
}

impl Member {
    /// The warden went to another node.
    fn moved(&self, to: NodeId, address: &str, id: MoveId) {
        *lock(&self.gone) = Some((to, address.to_owned(), id));
        *lock(&self.handle) = None;
        self.led_by(to);
        // From now on this node gives its map to nobody.
        if let Some((hub, (map, held))) = self.hub.get().zip(self.map().zip(Some(self.holds.load(Relaxed)))) {
            hub.adopt(map, held);
        }
    }

    /// Does what the warden's node asks.
    pub(super) fn run_errand(&self, shared: &Shared, ToDo { from, errand, reply }: ToDo) {
        let done = match errand {
            Errand::Prepare(..) if from != self.warden_node() => Err("another node is the warden's".into()),
            Errand::Prepare(id, bytes) => self.prepare(id, &bytes),
            Errand::Begin(id) => self.begin(shared, id),
        };
        let refusal = |text: String| Refusal::Collection(herd_core::Error::new(ErrorKind::NotAllowed, text));
        reply(done.map(|()| Answer::Noted).map_err(refusal));
    }

    fn prepare(&self, id: MoveId, bytes: &[u8]) -> Done {
        let home = lock(&self.home);
        let home = home.as_ref().ok_or("it has no directory that it can write to: start it with --data")?;
        warden::keep(home, id, bytes)
    }

    /// The warden goes on here, with the copy of that move.
    pub(super) fn begin(&self, shared: &Shared, id: MoveId) -> Done {
        let home = lock(&self.home);
        let home = home.as_ref().ok_or("it has no directory that it can write to")?;
        match self.candidate() {
            Some(handle) if home.came_by() == Some(id) => return self.in_office(&handle),
            // One that another node followed in office is of no more use.
            Some(_) if self.warden().is_some() => return Err("its warden goes by another control store".into()),
            _ => {}
        }
        let handle = self.start_over(home, id)?;
        // The old store has its mark, so nobody else is the warden: it is here, in office by now or soon.
        *lock(&self.gone) = None;
        *lock(&self.handle) = Some(handle.clone());
        self.led_by(self.life.node);
        let loops = shared.loops.get().map(|loops| loops.loops()).unwrap_or_default();
        loops.iter().for_each(|remote| remote.resume(&[]));
        self.in_office(&handle)
    }

    /// Starts the warden over the copy of that move.
    fn start_over(&self, home: &Home, id: MoveId) -> Result<Handle, String> {
        let map = self.map().ok_or("it has no map")?;
        let node = map.node(self.life.node).ok_or("it is not in the herd's map")?;
        let store = home.again().and_then(|home| home.begin(id)).map_err(|error| error.to_string())?;
        let process = random().map_err(|error| error.to_string())?;
        let running = warden::go_on(home, store, node, process, self.outlets()).map_err(|error| error.to_string())?;
        let handle = running.handle().clone();
        *lock(&self.running) = Some(running);
        Ok(handle)
    }

    /// Waits until it has read its store.
    fn in_office(&self, handle: &Handle) -> Done {
        let until = Instant::now() + Duration::from_millis(MOVE_BEGIN_MS / 2);
        while handle.map().is_none() {
            if Instant::now() >= until {
                return Err("its warden does not come into office yet".into());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    /// What a warden that begins here tells.
    fn outlets(&self) -> Outlets {
        let (pushes, tells) = (self.mailbox.clone(), self.mailbox.clone());
        Outlets {
            leases: self.leases.clone(),
            push: Box::new(move |map, held| pushes.change(|mail| mail.pushed = Some((map, held)))),
            tell: Box::new(move |line| tells.tell(line.to_owned())),
            errands: Some(self.runner.clone()),
        }
    }

    /// Keeps where the nodes of the herd are, the warden's first, where that has changed since `known`.
    pub(super) fn keep_known(&self, known: &mut Known) {
        let Some(map) = self.map().filter(|map| map.nodes.len() > 1) else { return };
        let by = Some((map.epoch, self.warden_node()));
        if std::mem::replace(&mut known.by, by) == by {
            return;
        }
        let mut others: Vec<_> = map.nodes.iter().filter(|node| node.id != self.life.node).collect();
        others.sort_by_key(|node| node.id != self.warden_node());
        let addresses: Vec<String> = others.iter().flat_map(|node| node.addresses.iter().cloned()).collect();
        if addresses != known.addresses
            && let Some(home) = &*lock(&self.home)
        {
            // It is a help, and no more: where it can't be written, --join is.
            home.know(self.herd, &addresses).ok();
            known.addresses = addresses;
        }
    }
}

/// Where the nodes of the herd are, as it was kept last.
#[derive(Default)]
pub(super) struct Known {
    /// By the map of this epoch, and while the warden was there.
    by: Option<(u32, NodeId)>,
    addresses: Vec<String>,
}

/// Errands that wait here at most: one of each kind at a time is enough, and the rest is asked again.
const ERRANDS_MAX: usize = 4;

pub(super) fn has_room(waiting: usize) -> bool {
    waiting < ERRANDS_MAX
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
