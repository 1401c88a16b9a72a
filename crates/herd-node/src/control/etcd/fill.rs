//! A control store that comes into an etcd whole (`herd_core::warden::moving`): first all of it but the key that makes
//! it a herd's, then, when the old store has its mark, that key.
//!
//! Others may write there, too. What says what the store is (`moving::STAND`) is taken over by one transaction, which
//! compares it with what was seen; from then on nobody begins a herd there, and each further write compares that it is
//! so still. In the end all is read once more.

use super::http::Until;
use super::members::Way;
use super::wire::{self, Decided, coded};
use super::{Etcd, TXN};
use herd_core::control::{Compare, Control, ControlError, Entry, Outcome, Revision, Snapshot, Txn, Write};
use herd_core::limits::{CONTROL_TXN_MAX_BYTES, MOVE_PREPARE_MS, WARDEN_BATCH_MAX};
use herd_core::place::HerdId;
use herd_core::warden::MoveId;
use herd_core::warden::moving::{COMING, Coming, STAND, Standing, beginning, standing, unbegun};
use serde_json::json;

/// Bytes of values that go in one transaction.
const BATCH_BYTES: usize = CONTROL_TXN_MAX_BYTES / 2;

impl Etcd {
    /// Puts the copy of that move here, as nobody's yet. Refused where there is a herd, this one too, or anything. It
    /// takes so long, and one call more, at most: the warden does nothing else meanwhile.
    pub(crate) fn prepare(&mut self, id: MoveId, herd: HerdId, copy: &Snapshot) -> Result<(), ControlError> {
        let until = self.members.within(MOVE_PREPARE_MS);
        let there = self.whole(&until)?;
        may_take(self.prefix.trim_start_matches("herd/").trim_end_matches('/'), herd, &there)?;
        if self.seen(None, &until)?.is_held() {
            return Err(has_warden());
        }
        fill(self, id, copy, &there, |etcd| etcd.whole(&until), || until.is_over())?;
        self.keep_term(copy.term, &until)
    }

    /// The copy of that move becomes the herd's store; one that did so before is it still.
    pub(crate) fn begin(&mut self, id: MoveId) -> Result<(), ControlError> {
        begin(self, id)?
            .ok_or_else(|| self.members.broken(&format!("the copy of the control store of move {} is gone", id.text())))
    }

    /// The next term that is won here is above that one. An error: somebody is in office here.
    fn keep_term(&mut self, term: u64, until: &Until) -> Result<(), ControlError> {
        let seen = self.seen(None, until)?;
        if seen.is_held() {
            return Err(has_warden());
        }
        if seen.term >= term {
            return Ok(());
        }
        let key = self.term_key();
        let value = json!({"term": term, "name": "moved"}).to_string();
        let body = json!({
            "compare": [wire::at_revision(&key, seen.revision())],
            "success": [{"request_put": {"key": coded(&key), "value": coded(value)}}],
        });
        let told: Decided = self.members.ask(Way::Writes, TXN, &body, until)?;
        self.members.latest(&told.header)?;
        if told.succeeded { Ok(()) } else { Err(has_warden()) }
    }
}

fn has_warden() -> ControlError {
    ControlError::Invalid("the store in etcd has a warden: name another one".into())
}

fn others_write() -> ControlError {
    ControlError::Invalid("somebody else writes to the store in etcd: name another one".into())
}

/// An error if what is there, in the store of that name, is, or may be, of use to somebody.
fn may_take(name: &str, herd: HerdId, there: &Snapshot) -> Result<(), ControlError> {
    let refused = |what: &str| {
        let todo = "name another one, as in etcd://HOST:PORT/NAME";
        Err(ControlError::Invalid(format!("the store '{name}' in etcd {what}: {todo}")))
    };
    match standing(&there.entries) {
        Ok(Standing::Empty) => Ok(()),
        Ok(Standing::Coming(coming)) if coming.herd == herd => Ok(()),
        Ok(Standing::Moved(mark)) if mark.herd == herd => Ok(()),
        Ok(Standing::Open { herd: there, .. }) if there == herd => refused("is this herd's already, of another time"),
        Ok(_) => refused("is another herd's"),
        Err(_) => refused("has what is no herd's"),
    }
}

/// Puts the copy of that move into a store that has this, and takes away what is there.
/// `all`: reads all of it at last.
fn fill<S: Control>(
    store: &mut S,
    id: MoveId,
    copy: &Snapshot,
    there: &Snapshot,
    all: impl FnOnce(&mut S) -> Result<Snapshot, ControlError>,
    is_over: impl Fn() -> bool,
) -> Result<(), ControlError> {
    let (first, rest) = unbegun(copy, id).map_err(ControlError::Invalid)?;
    let taken = take(store, there, &first)?;
    let is_new = |key: &str| first.iter().any(|it| it.key() == key) || rest.iter().any(|it| it.key == key);
    let old = there.entries.iter().filter(|entry| !is_new(&entry.key));
    let old = old.map(|entry| Write::Delete { key: entry.key.clone() });
    let puts = rest.iter().map(|it| Write::Put { key: it.key.clone(), value: it.value.clone() });
    for writes in batches(old.chain(puts)) {
        if is_over() {
            return Err(ControlError::Unreachable("etcd takes too long: look at it, and try again".into()));
        }
        let compares = vec![Compare { key: COMING.into(), revision: taken }];
        match store.txn(&Txn { term: None, compares, writes })? {
            Outcome::Done(_) => {}
            Outcome::Refused => return Err(others_write()),
        }
    }
    let holds = |entry: &Entry| match first.iter().find(|it| it.key() == entry.key) {
        Some(Write::Put { value, .. }) => *value == entry.value,
        Some(Write::Delete { .. }) => false,
        None => rest.iter().any(|it| (&it.key, &it.value) == (&entry.key, &entry.value)),
    };
    let now = all(store)?;
    let is_right = now.entries.len() == first.len() + rest.len() && now.entries.iter().all(holds);
    if is_right { Ok(()) } else { Err(others_write()) }
}

/// Takes a store over that has this: nobody begins a herd there from then on. The revision at which it was taken.
fn take(store: &mut impl Control, there: &Snapshot, first: &[Write]) -> Result<Revision, ControlError> {
    let revision = |key: &str| there.entries.iter().find(|entry| entry.key == key).map_or(0, |entry| entry.revision);
    let compares = STAND.map(|key| Compare { key: key.into(), revision: revision(key) });
    let gone = STAND.iter().filter(|key| revision(key) > 0 && first.iter().all(|write| write.key() != **key));
    let gone = gone.map(|key| Write::Delete { key: (*key).into() });
    let txn = Txn { term: None, compares: compares.into(), writes: first.iter().cloned().chain(gone).collect() };
    match store.txn(&txn)? {
        Outcome::Done(revision) => Ok(revision),
        Outcome::Refused => Err(others_write()),
    }
}

/// See [`Etcd::begin`]; `None`: there is no such copy.
fn begin(store: &mut impl Control, id: MoveId) -> Result<Option<()>, ControlError> {
    let there = store.snapshot()?;
    match standing(&there.entries).map_err(ControlError::Broken)? {
        Standing::Open { came: Some(came), .. } if came == id => Ok(Some(())),
        Standing::Coming(coming) if coming.id == id => begin_with(store, &coming, &there.entries).map(Some),
        _ => Ok(None),
    }
}

fn begin_with(store: &mut impl Control, coming: &Coming, entries: &[Entry]) -> Result<(), ControlError> {
    let revision = entries.iter().find(|entry| entry.key == COMING).map_or(0, |entry| entry.revision);
    match store.txn(&beginning(coming, revision))? {
        Outcome::Done(_) => Ok(()),
        Outcome::Refused => Err(ControlError::Unreachable("it is written by somebody else: try again".into())),
    }
}

/// These writes, as many in one transaction as may be.
fn batches(writes: impl Iterator<Item = Write>) -> Vec<Vec<Write>> {
    let (mut all, mut batch, mut bytes) = (Vec::new(), Vec::new(), 0);
    for write in writes {
        let more = match &write {
            Write::Put { key, value } => key.len() + value.len(),
            Write::Delete { key } => key.len(),
        };
        if batch.len() >= WARDEN_BATCH_MAX || bytes + more > BATCH_BYTES && !batch.is_empty() {
            all.push(std::mem::take(&mut batch));
            bytes = 0;
        }
        bytes += more;
        batch.push(write);
    }
    all.extend((!batch.is_empty()).then_some(batch));
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use herd_core::control::{Changes, Office, Page, Range, Table};
    use herd_core::limits::CONTROL_VALUE_MAX_BYTES;
    use herd_core::warden::moving::{MOVED, copy};

    const HERD: HerdId = HerdId([9; 16]);

    fn id(number: u8) -> MoveId {
        MoveId([number; 16])
    }

    fn put(key: &str, value: impl Into<Vec<u8>>) -> Write {
        Write::Put { key: key.into(), value: value.into().into() }
    }

    fn store(writes: Vec<Write>) -> Table {
        let mut table = Table::default();
        batches(writes.into_iter()).into_iter().for_each(|writes| {
            table.txn(&Txn { writes, ..Txn::default() }).expect("it is right");
        });
        table
    }

    fn herd(herd: HerdId) -> String {
        let hex = |bytes: [u8; 16]| bytes.map(|byte| format!("{byte:02x}")).concat();
        let (herd, key) = (hex(herd.0), hex([1; 16]));
        format!("{{\"format\":1,\"herd\":\"{herd}\",\"hash_key\":\"{key}\",\"protocol_min\":1}}")
    }

    /// A herd's store with a map of many parts.
    fn of_herd(it: HerdId) -> Table {
        let part = |number: usize| put(&format!("map/1.1/{number:04x}"), vec![number as u8; CONTROL_VALUE_MAX_BYTES]);
        let first = [put("herd", herd(it)), put("map", "head"), put("node/00000001", "one")];
        store(first.into_iter().chain((0..40).map(part)).collect())
    }

    fn mark(herd: HerdId) -> Table {
        let hex = |bytes: [u8; 16]| bytes.map(|byte| format!("{byte:02x}")).concat();
        let text = format!(
            "{{\"format\":1,\"id\":\"{}\",\"herd\":\"{}\",\"term\":1,\"node\":\"n\",\"addresses\":[],\"etcd\":null}}",
            hex([3; 16]),
            hex(herd.0)
        );
        store(vec![put(MOVED, text), put("map", "an old head"), put("map/0.1/0000", "part"), put("node/00000007", "x")])
    }

    /// A store to which others write, or that is out of reach, from one of its calls on.
    struct Shared {
        table: Table,
        calls: usize,
        at: usize,
        /// What somebody else writes then; `None`: it does not answer from then on.
        other: Option<Txn>,
        came: Option<Outcome>,
    }

    impl Shared {
        fn of(table: Table, at: usize, other: Option<Txn>) -> Self {
            Self { table, calls: 0, at, other, came: None }
        }

        fn call(&mut self) -> Result<&mut Table, ControlError> {
            self.calls += 1;
            match &self.other {
                Some(other) if self.calls == self.at => self.came = Some(self.table.txn(other).expect("it is right")),
                None if self.calls >= self.at => return Err(ControlError::Unreachable("it is away".into())),
                _ => {}
            }
            Ok(&mut self.table)
        }
    }

    impl Control for Shared {
        fn range(&mut self, range: &Range) -> Result<Page, ControlError> {
            self.call()?.range(range)
        }

        fn txn(&mut self, txn: &Txn) -> Result<Outcome, ControlError> {
            self.call()?.txn(txn)
        }

        fn watch(&mut self, after: Revision) -> Result<Changes, ControlError> {
            self.call()?.watch(after)
        }

        fn campaign(&mut self, name: &str, lease_ms: u64, now_ms: u64) -> Result<Office, ControlError> {
            self.call()?.campaign(name, lease_ms, now_ms)
        }

        fn snapshot(&mut self) -> Result<Snapshot, ControlError> {
            self.call()?.snapshot()
        }
    }

    fn prepare(store: &mut Shared, number: u8) -> Result<(), ControlError> {
        let copy = copy(&of_herd(HERD).all(), id(number));
        let there = store.snapshot()?;
        may_take("x", HERD, &there)?;
        fill(store, id(number), &copy, &there, Control::snapshot, || false)
    }

    fn values(table: &Table) -> Vec<(String, Vec<u8>)> {
        table.all().entries.into_iter().map(|entry| (entry.key, entry.value.to_vec())).collect()
    }

    /// Far behind the last call.
    const NEVER: usize = usize::MAX;

    fn half_filled() -> Table {
        let mut half = Shared::of(Table::default(), 4, None);
        prepare(&mut half, 1).expect_err("it goes away");
        half.table
    }

    #[test]
    fn a_copy_comes_whole_and_is_begun_with_by_its_id_alone() {
        let whole = values(&Table::restored(copy(&of_herd(HERD).all(), id(2))).expect("in order"));
        let parts_alone = store(vec![put("map/0.1/0000", "left by a herd that did not begin")]);
        for there in [Table::default(), mark(HERD), half_filled(), parts_alone] {
            let mut store = Shared::of(there, NEVER, None);
            prepare(&mut store, 2).expect("it may come here");
            let entries = store.table.all().entries;
            assert!(matches!(standing(&entries), Ok(Standing::Coming(coming)) if coming.id == id(2)));
            assert_eq!(begin(&mut store, id(1)), Ok(None));
            assert_eq!([0, 1].map(|_| begin(&mut store, id(2))), [Ok(Some(())), Ok(Some(()))]);
            assert_eq!(values(&store.table), whole);
        }
    }

    #[test]
    fn what_is_of_use_to_somebody_stays_as_it_is() {
        let other = HerdId([8; 16]);
        let mut coming = Shared::of(Table::default(), NEVER, None);
        let copy = copy(&of_herd(other).all(), id(7));
        fill(&mut coming, id(7), &copy, &Snapshot::default(), Control::snapshot, || false).expect("it is empty");
        let foreign = store(vec![put("something", "else")]);
        for there in [of_herd(HERD), of_herd(other), mark(other), coming.table, foreign] {
            let before = values(&there);
            let mut store = Shared::of(there, NEVER, None);
            assert!(matches!(prepare(&mut store, 2), Err(ControlError::Invalid(_))));
            assert_eq!(values(&store.table), before);
        }
    }

    /// As a warden does that finds the store empty.
    #[test]
    fn whoever_begins_a_herd_there_meanwhile_has_it_or_the_copy_is_whole() {
        let compares = vec![Compare { key: "map".into(), revision: 0 }];
        let writes = vec![put("herd", herd(HerdId([8; 16]))), put("map", "its head"), put("map/1.1/0000", "its part")];
        let birth = Txn { term: None, compares, writes };
        let mut begun = 0;
        for at in 1.. {
            let mut store = Shared::of(Table::default(), at, Some(birth.clone()));
            let prepared = prepare(&mut store, 2);
            let Some(came) = store.came.take() else { break };
            let is_theirs = matches!(came, Outcome::Done(_));
            assert_eq!(prepared.is_err(), is_theirs, "{at}: {prepared:?}");
            if is_theirs {
                begun += 1;
                assert_eq!(values(&store.table).len(), 3, "{at}: nothing of theirs was changed");
                assert!(values(&store.table).contains(&("map".into(), b"its head".to_vec())), "{at}");
            }
        }
        assert_eq!(begun, 2, "before it is looked at, and before it is taken");
    }

    /// Another move of the same herd, which nobody heard the end of.
    #[test]
    fn whoever_takes_it_meanwhile_is_not_mixed_with() {
        let first = prepare_calls();
        for at in 2..=first {
            let mut store = Shared::of(Table::default(), at, None);
            prepare(&mut store, 1).expect_err("it goes away");
            let (there, half) = (store.table.all(), store.table);
            let mut next = Shared::of(half, NEVER, None);
            prepare(&mut next, 2).expect("it may come here");
            let whole = values(&next.table);
            // What the first one had still to write comes now.
            let copy = copy(&of_herd(HERD).all(), id(1));
            let late = fill(&mut next, id(1), &copy, &there, Control::snapshot, || false);
            assert!(late.is_err() && values(&next.table) == whole, "{at}: {late:?}");
        }
    }

    fn prepare_calls() -> usize {
        let mut store = Shared::of(Table::default(), NEVER, None);
        prepare(&mut store, 1).expect("it is empty");
        store.calls
    }

    #[test]
    fn it_takes_no_longer_than_it_may() {
        let (mut store, copy) = (Table::default(), copy(&of_herd(HERD).all(), id(1)));
        let late = fill(&mut store, id(1), &copy, &Snapshot::default(), Control::snapshot, || true);
        assert!(matches!(late, Err(ControlError::Unreachable(_))), "{late:?}");
    }

    #[test]
    fn a_transaction_has_no_more_than_it_may() {
        let writes = (0..100).map(|number| put(&format!("k{number}"), vec![7; 40_000]));
        let all = batches(writes);
        let compares = vec![Compare { key: COMING.into(), revision: 1 }];
        let is_right = |writes: &Vec<Write>| Txn { term: None, compares: compares.clone(), writes: writes.clone() };
        assert!(all.iter().all(|writes| is_right(writes).check().is_ok() && !writes.is_empty()));
        assert_eq!(all.iter().map(Vec::len).sum::<usize>(), 100);
        assert_eq!(batches(std::iter::empty()), Vec::<Vec<Write>>::new());
    }
}
