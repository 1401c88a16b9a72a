//! Control stores that move: whatever fails on the way, one store at most is the herd's, and what was answered is in
//! it.

use super::*;
use crate::control::Home;
use crate::warden::drive::{Footing, Running};
use crate::warden::{Errands, keep};
use herd_core::collection::Spec;
use herd_core::control::{
    Changes, Control, ControlError, Office, Outcome, Page, Range, Revision, Snapshot, Table, Txn, Write,
};
use herd_core::place::HerdId;
use herd_core::warden::moving::{MOVED, Standing, standing};
use herd_core::warden::{Birth, Config, ControlAsk, MoveId, map_in};
use herd_core::wire::Errand;
use herd_core::{Error, ErrorKind};
use std::collections::BTreeSet;
use std::path::PathBuf;
use tempfile::TempDir;

/// What becomes of a word to the other node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Done,
    /// It does not come.
    Lost,
    /// It is done, and the answer does not come.
    Unanswered,
}

/// The other nodes, each of which has a directory here.
struct Other {
    directory: PathBuf,
    fates: Mutex<Vec<Fate>>,
    moved: Seen<(NodeId, MoveId)>,
    begun: Seen<MoveId>,
}

impl Other {
    fn of(directory: &Path, fates: &[Fate]) -> Arc<Self> {
        let (directory, fates) = (directory.to_path_buf(), Mutex::new(fates.iter().rev().copied().collect()));
        Arc::new(Self { directory, fates, moved: Seen::default(), begun: Seen::default() })
    }

    fn run(&self, to: NodeId, errand: &Errand) -> Result<(), String> {
        let place = self.directory.join(if to.0.get() == 2 { "two" } else { "three" });
        let home = Home::open(&place).map_err(|error| error.to_string())?;
        match errand {
            Errand::Prepare(id, bytes) => keep(&home, *id, bytes),
            Errand::Begin(id) => {
                home.begin(*id).map_err(|error| error.to_string())?;
                self.begun.lock().expect("no test panics with it").push(*id);
                Ok(())
            }
        }
    }
}

impl Errands for Other {
    fn run(&self, to: NodeId, errand: Errand, _: Duration, _: &dyn Fn() -> bool) -> Result<(), String> {
        let fate = self.fates.lock().expect("as above").pop().unwrap_or(Fate::Done);
        let done = if fate == Fate::Lost { Ok(()) } else { self.run(to, &errand) };
        if fate == Fate::Done { done } else { Err("it is lost".into()) }
    }

    fn moved(&self, to: NodeId, _: &str, id: MoveId) {
        self.moved.lock().expect("as above").push((to, id));
    }
}

/// A herd of two nodes, the other of which has a directory.
fn two(directory: &Path, fates: &[Fate]) -> (Begun, Arc<Other>) {
    let (watched, other) = (Watched::default(), Other::of(directory, fates));
    let outlets = Outlets { errands: Some(other.clone()), ..watched.outlets() };
    let place = directory.join("one");
    let Ok(begun) = begin(options(Some(&place), true), &Drawn::new().expect("chance"), outlets) else {
        panic!("it begins")
    };
    let second = joined(ask(&begun, join(2))).node;
    begun.warden.handle().links(BTreeSet::from([begun.joined.node, second]));
    all_have(&begun);
    (begun, other)
}

fn moves(begun: &Begun) -> Result<Answer, Refusal> {
    ask(begun, Ask::Control(ControlAsk::Move { node: Some("node-2".into()) }))
}

fn make(begun: &Begun, name: &str) {
    let create = Create { name: name.into(), spec: Spec::of("ram:1"), copies: None, spread: None };
    assert!(matches!(ask(begun, Ask::Create(create)), Ok(Answer::Created(_))), "{name}");
}

fn stands(place: &Path) -> Standing {
    Home::open(place).expect("nobody else has it").standing().expect("it can be read")
}

/// The names of the collections that the store in a directory has.
fn collections(place: &Path) -> Vec<String> {
    let mut store = Home::open(place).expect("it is free").store().expect("it opens");
    let (map, _) = map_in(&store.snapshot().expect("it reads").entries).expect("a herd's");
    let mut names: Vec<String> = map.collections.iter().map(|it| it.name.clone()).collect();
    names.sort();
    names
}

fn is_open(standing: &Standing) -> bool {
    matches!(standing, Standing::Open { .. })
}

#[test]
fn whatever_is_lost_on_the_way_one_store_at_most_is_the_herd_s_and_has_all_that_was_answered() {
    let any = [Fate::Done, Fate::Lost, Fate::Unanswered];
    for (prepare, begin) in any.into_iter().flat_map(|first| any.map(|second| (first, second))) {
        let directory = TempDir::new().expect("a directory");
        let (one, two_place) = (directory.path().join("one"), directory.path().join("two"));
        let (begun, other) = two(directory.path(), &[prepare, begin]);
        make(&begun, "before");
        let moved = moves(&begun);
        if prepare != Fate::Done {
            // Nothing has happened, and what is asked now is done here.
            assert!(moved.is_err() && seen(&other.moved).is_empty());
            make(&begun, "behind");
            begun.warden.stop().expect("a clean end");
            assert!(is_open(&stands(&one)) && !is_open(&stands(&two_place)), "{prepare:?}");
            assert_eq!(collections(&one), ["before", "behind", "default"]);
            continue;
        }
        assert_eq!(moved.is_ok(), begin == Fate::Done, "{moved:?}");
        let (_, id) = seen(&other.moved)[0];
        // Whoever asks now is to ask elsewhere.
        assert!(matches!(ask(&begun, flush()), Err(Refusal::NotWarden(_))));
        until("it is told until it begins", || seen(&other.begun).contains(&id));
        begun.warden.stop().expect("a clean end");
        assert!(matches!(stands(&one), Standing::Moved(mark) if mark.id == id && mark.node == "node-2"));
        assert!(matches!(stands(&two_place), Standing::Open { came, .. } if came == Some(id)));
        assert_eq!(collections(&two_place), ["before", "default"]);
    }
}

#[test]
fn a_copy_of_a_move_that_came_to_nothing_is_never_begun() {
    let directory = TempDir::new().expect("a directory");
    let place = directory.path().join("two");
    let (begun, other) = two(directory.path(), &[Fate::Unanswered]);
    moves(&begun).expect_err("nobody knows whether it is there");
    let old = Home::open(&place).expect("it is free").coming();
    assert_eq!(old.len(), 1, "it is there");
    make(&begun, "behind");
    assert!(moves(&begun).is_ok());
    assert!(Home::open(&place).expect("it is free").begin(old[0]).is_err());
    assert_ne!(seen(&other.begun), old);
    begun.warden.stop().expect("a clean end");
    assert_eq!(collections(&place), ["behind", "default"]);
    // And a move that was done is begun again and again, as the same one.
    let id = seen(&other.begun)[0];
    assert!(Home::open(&place).expect("it is free").begin(id).is_ok());
}

/// A node that has a copy of which nobody heard is not to begin with it when it is told of the move that was done.
#[test]
fn a_copy_that_another_node_was_to_have_is_not_that_of_the_one_which_has_it() {
    let directory = TempDir::new().expect("a directory");
    let (begun, other) = two(directory.path(), &[Fate::Unanswered]);
    let third = joined(ask(&begun, join(3))).node;
    let (map, _) = begun.warden.handle().map().expect("it is in office");
    begun.warden.handle().links(map.nodes.iter().map(|node| node.id).collect());
    all_have(&begun);
    assert!(ask(&begun, Ask::Control(ControlAsk::Move { node: None })).is_ok());
    let (to, id) = seen(&other.moved)[0];
    assert_eq!((to, seen(&other.begun)), (third, vec![id]));
    let home = Home::open(&directory.path().join("two")).expect("it is free");
    assert_eq!(home.coming().len(), 1, "it is there");
    assert!(home.begin(id).is_err());
    begun.warden.stop().expect("a clean end");
}

/// A store of which the answer to the mark is lost, which was done, or was not; then it is away for a while.
struct Unsure {
    table: Table,
    is_done: bool,
    away: Option<Instant>,
}

impl Unsure {
    fn table(&mut self) -> Result<&mut Table, ControlError> {
        let is_away = self.away.is_some_and(|until| Instant::now() < until);
        if is_away { Err(ControlError::Unreachable("it is away".into())) } else { Ok(&mut self.table) }
    }
}

impl Control for Unsure {
    fn range(&mut self, range: &Range) -> Result<Page, ControlError> {
        self.table()?.range(range)
    }

    fn txn(&mut self, txn: &Txn) -> Result<Outcome, ControlError> {
        if !txn.writes.iter().any(|write| matches!(write, Write::Put { key, .. } if key == MOVED)) {
            return self.table()?.txn(txn);
        }
        if self.is_done {
            self.table()?.txn(txn)?;
        }
        self.away = Some(Instant::now() + Duration::from_millis(500));
        Err(ControlError::Unknown("no answer".into()))
    }

    fn watch(&mut self, after: Revision) -> Result<Changes, ControlError> {
        self.table()?.watch(after)
    }

    fn campaign(&mut self, name: &str, lease_ms: u64, now_ms: u64) -> Result<Office, ControlError> {
        self.table()?.campaign(name, lease_ms, now_ms)
    }

    fn snapshot(&mut self) -> Result<Snapshot, ControlError> {
        self.table()?.snapshot()
    }
}

#[test]
fn where_it_is_not_known_whether_the_mark_is_there_what_the_store_says_holds() {
    for is_done in [true, false] {
        let directory = TempDir::new().expect("a directory");
        let other = Other::of(directory.path(), &[]);
        let birth =
            Birth { herd: HerdId([1; 16]), hash_key: [7; 16], epoch: 1, protocol_min: 1, evict: false, copies: None };
        let config = Config { name: "a".into(), protocol: 1, lasts: true, birth: Some(birth) };
        let outlets = Outlets { errands: Some(other.clone()), ..Watched::default().outlets() };
        let store = Unsure { table: Table::default(), is_done, away: None };
        let running = Running::start(config, Footing::over(Box::new(store)), outlets).expect("a thread");
        let ask = |ask: Ask| {
            let (reply, answer) = sync_channel(1);
            running.handle().ask(ask, move |answer| reply.send(answer).expect("somebody waits"));
            answer.recv_timeout(PATIENCE).expect("an answer")
        };
        let nodes = [join(1), join(2)].map(|join| joined(ask(join)).node);
        running.handle().links(BTreeSet::from(nodes));
        let (map, _) = running.handle().map().expect("it is in office");
        map.nodes.iter().for_each(|node| running.handle().have(node.id, node.incarnation, map.epoch, map.revision));
        let error = ask(Ask::Control(ControlAsk::Move { node: Some("node-2".into()) })).expect_err("nobody knows");
        assert_eq!(Error::from(error).kind, ErrorKind::OutcomeUnknown);
        if is_done {
            until("the other node begins", || !seen(&other.begun).is_empty());
            assert!(matches!(ask(flush()), Err(Refusal::NotWarden(_))));
        } else {
            until("it goes on here", || ask(Ask::Control(ControlAsk::Show)).is_ok());
            assert!(seen(&other.begun).is_empty() && seen(&other.moved).is_empty());
        }
        running.stop().expect("a clean end");
    }
}

/// As a crash leaves it: the mark is there, and the other node has heard nothing.
#[test]
fn a_store_that_was_moved_is_gone_on_with_by_nobody() {
    let directory = TempDir::new().expect("a directory");
    let one = directory.path().join("one");
    let (begun, _) = two(directory.path(), &[Fate::Done, Fate::Lost, Fate::Lost, Fate::Lost, Fate::Lost]);
    assert!(moves(&begun).is_err());
    begun.warden.stop().expect("a clean end");
    assert!(matches!(stands(&one), Standing::Moved(_)));
    let error = refused(options(Some(&one), true)).to_string();
    assert!(error.contains("no warden"), "{error}");
    assert!(matches!(stands(&one), Standing::Moved(_)));
    // The other one begins when it is told, and numbers go on.
    let two = directory.path().join("two");
    let home = Home::open(&two).expect("it is free");
    let id = home.coming()[0];
    let mut store = home.begin(id).expect("it is there");
    let before = store.snapshot().expect("it reads");
    let office = store.campaign("the next one", 1_000, 0).expect("it is free");
    assert_eq!(office.term, before.term + 1);
    assert!(is_open(&standing(&before.entries).expect("it is a herd's")));
}

#[test]
fn a_store_goes_only_where_it_can_be() {
    let directory = TempDir::new().expect("a directory");
    let (begun, other) = two(directory.path(), &[]);
    let to = |node: &str| ask(&begun, Ask::Control(ControlAsk::Move { node: Some(node.into()) }));
    let text = |answer: Result<Answer, Refusal>| answer.expect_err("it is refused").to_string();
    assert!(text(to("node-9")).contains("no node 'node-9'"));
    assert!(matches!(to("node-1"), Ok(Answer::Control(_))), "it is there");
    begun.warden.handle().links(BTreeSet::from([begun.joined.node]));
    std::thread::sleep(Duration::from_millis(250));
    assert!(text(to("node-2")).contains("can't be reached"));
    let any = ask(&begun, Ask::Control(ControlAsk::Move { node: None }));
    assert!(text(any).contains("no other node is there"));
    assert!(seen(&other.moved).is_empty());
    let shown = ask(&begun, Ask::Control(ControlAsk::Show));
    assert!(matches!(&shown, Ok(Answer::Control(json)) if json.contains("\"embedded\"")), "{shown:?}");
    begun.warden.stop().expect("a clean end");
}

/// A store that is away for a while, and says that in other words each time.
struct Away {
    table: Table,
    away: Option<(Instant, Instant)>,
    tries: u64,
}

impl Away {
    fn table(&mut self) -> Result<&mut Table, ControlError> {
        let now = Instant::now();
        if self.away.is_some_and(|(from, until)| from <= now && now < until) {
            self.tries += 1;
            return Err(ControlError::Unreachable(format!("try {} is not answered", self.tries)));
        }
        Ok(&mut self.table)
    }
}

impl Control for Away {
    fn range(&mut self, range: &Range) -> Result<Page, ControlError> {
        self.table()?.range(range)
    }

    fn txn(&mut self, txn: &Txn) -> Result<Outcome, ControlError> {
        self.table()?.txn(txn)
    }

    fn watch(&mut self, after: Revision) -> Result<Changes, ControlError> {
        self.table()?.watch(after)
    }

    fn campaign(&mut self, name: &str, lease_ms: u64, now_ms: u64) -> Result<Office, ControlError> {
        self.table()?.campaign(name, lease_ms, now_ms)
    }

    fn snapshot(&mut self) -> Result<Snapshot, ControlError> {
        self.table()?.snapshot()
    }
}

#[test]
fn that_a_store_does_not_answer_is_told_once_and_that_it_does_again() {
    let birth =
        Birth { herd: HerdId([1; 16]), hash_key: [7; 16], epoch: 1, protocol_min: 1, evict: false, copies: None };
    let config = Config { name: "a".into(), protocol: 1, lasts: true, birth: Some(birth) };
    let (watched, now) = (Watched::default(), Instant::now());
    let away = Some((now + Duration::from_millis(500), now + Duration::from_millis(3_500)));
    let store = Away { table: Table::default(), away, tries: 0 };
    let running = Running::start(config, Footing::over(Box::new(store)), watched.outlets()).expect("a thread");
    until("it is back", || seen(&watched.told).iter().any(|line| line.contains("answers again")));
    let told = seen(&watched.told);
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(told[0].contains("try 1 is not answered"), "{told:?}");
    running.stop().expect("a clean end");
}
