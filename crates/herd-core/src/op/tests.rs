//! Operations against plain models: a byte vector, a deque, a table of holders.

use super::*;
use crate::Chunks;
use crate::checksum::crc32c;
use crate::entry::{Head, Value, Version};
use crate::limits::INLINE_MAX_BYTES;
use crate::method::{items, push_item};
use std::collections::VecDeque;
use std::sync::Arc;

/// A large value that lies in pieces of 1,000 bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pieces(Arc<Vec<u8>>);

impl Chunks for Pieces {
    fn size_bytes(&self) -> u64 {
        self.0.len() as u64
    }

    fn chunk(&self, at: u64) -> &[u8] {
        let at = at as usize;
        &self.0[at..(at / 1000 * 1000 + 1000).min(self.0.len())]
    }
}

pub(crate) enum Stored {
    Small(Vec<u8>),
    Large(Pieces),
}

pub(crate) struct Object {
    pub(crate) head: Head,
    attributes: Vec<u8>,
    fence: Option<Fence>,
    value: Stored,
}

/// One object and what carries decisions out, as simply as can be.
pub(crate) struct Place {
    pub(crate) object: Option<Object>,
    left: Option<Fence>,
    pub(crate) version: Version,
    pub(crate) now_ms: u64,
}

/// The id of the object.
const ID: [u8; 16] = [7; 16];

impl Place {
    pub(crate) fn new() -> Self {
        Self { object: None, left: None, version: 100, now_ms: 1_000_000 }
    }

    pub(crate) fn bytes(&self) -> Option<Vec<u8>> {
        self.object.as_ref().map(|object| match &object.value {
            Stored::Small(bytes) => bytes.clone(),
            Stored::Large(body) => body.0.to_vec(),
        })
    }

    pub(crate) fn run(&mut self, op: &Op<'_, Pieces>) -> Result<Answer<Pieces>, Error> {
        if self.object.as_ref().is_some_and(|object| object.head.is_expired(self.now_ms)) {
            self.object = None;
        }
        let old = self.bytes().unwrap_or_default();
        let found = self.object.as_ref().map(|object| Found {
            head: object.head,
            attributes: &object.attributes,
            fence: object.fence,
            value: match &object.value {
                Stored::Small(bytes) => Value::Inline(bytes, crc32c(bytes)),
                Stored::Large(body) => Value::Body(body),
            },
        });
        let there = There { found, left: self.left };
        let at = Circumstances { now_ms: self.now_ms, next_version: self.version + 1, id: ID, evicts: false };
        let decided = decide(op, &there, &at)?;
        let kept = there.found.as_ref().map(|found| found.attributes.to_vec()).unwrap_or_default();
        match decided.change {
            Change::None => {}
            Change::Leave(fence) => self.left = Some(fence),
            Change::Remove(fence) => {
                (self.object, self.left, self.version) = (None, fence, self.version + 1);
            }
            Change::Put(new) => {
                let value = match new.value {
                    NewValue::Kept => old,
                    NewValue::Small(bytes, crc) => {
                        assert!(bytes.len() <= INLINE_MAX_BYTES && crc.is_none_or(|crc| crc == crc32c(&bytes)));
                        bytes.into_owned()
                    }
                    NewValue::Large(body) => body.0.to_vec(),
                    NewValue::Parts(parts) => {
                        let value = joined(&parts, &old);
                        assert!(value.len() > INLINE_MAX_BYTES, "a smaller value is decided whole");
                        value
                    }
                };
                self.version += 1;
                let head = Head {
                    version: self.version,
                    size_bytes: value.len() as u64,
                    flags: new.flags,
                    expires_ms: new.expires_ms,
                    memcached: new.memcached,
                    ..Head::default()
                };
                let attributes = new.attributes.map_or(kept, <[u8]>::to_vec);
                let large = value.len() > INLINE_MAX_BYTES;
                let value = if large { Stored::Large(Pieces(Arc::new(value))) } else { Stored::Small(value) };
                (self.object, self.left) = (Some(Object { head, attributes, fence: new.fence, value }), None);
            }
        }
        Ok(decided.answer)
    }

    pub(crate) fn execute(&mut self, name: &str, arguments: &[&[u8]]) -> Result<Answer<Pieces>, Error> {
        self.execute_with(name, arguments, None)
    }

    fn execute_with(&mut self, name: &str, arguments: &[&[u8]], token: Option<Token>) -> Result<Answer<Pieces>, Error> {
        let mut encoded = Vec::new();
        arguments.iter().for_each(|argument| push_item(&mut encoded, argument));
        let action = Action::Execute(Method::parse(name, &encoded)?);
        self.run(&Op { token, ..Op::new(action, 1 << 30) })
    }

    fn put(&mut self, value: &[u8], from: Option<u64>, token: Option<Token>) -> Result<Answer<Pieces>, Error> {
        let given = match value.len() {
            0..=INLINE_MAX_BYTES => Given::Small(value, Some(crc32c(value))),
            _ => Given::Large(Pieces(Arc::new(value.to_vec()))),
        };
        let action = Action::Put(Put { from, ..Put::of(given) });
        self.run(&Op { token, ..Op::new(action, 1 << 20) })
    }
}

fn joined(parts: &[Part<'_, Pieces>], old: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    for part in parts {
        assert!(!part.is_empty());
        match part {
            Part::Old(from, to) => out.extend_from_slice(&old[*from as usize..*to as usize]),
            Part::Bytes(bytes) => out.extend_from_slice(bytes),
            Part::Large(body) => out.extend_from_slice(&body.0),
            Part::Zeros(n) => out.resize(out.len() + *n as usize, 0),
        }
    }
    out
}

fn bytes(answer: Answer<Pieces>) -> Vec<u8> {
    match answer {
        Answer::Nothing => Vec::new(),
        Answer::Bytes(bytes) => bytes,
        Answer::Large(body) => body.0.to_vec(),
    }
}

fn kind<T>(result: Result<T, Error>) -> Option<ErrorKind> {
    result.err().map(|error| error.kind)
}

/// A generator with a full period; its high bits are good enough here.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % n
    }

    fn fill(&mut self, n: usize) -> Vec<u8> {
        (0..n).map(|_| self.below(256) as u8).collect()
    }
}

#[test]
fn ranges_do_to_an_object_what_they_do_to_a_vector() {
    for seed in 0..200 {
        let (mut random, mut place, mut model) = (Random(seed), Place::new(), Vec::new());
        for _ in 0..20 {
            let from = random.below(9000) as usize;
            let length = random.below(6000) as usize;
            let new = random.fill(length);
            place.put(&new, Some(from as u64), None).expect("within the limit");
            if model.len() < from + new.len() {
                model.resize(from + new.len(), 0);
            }
            model[from..from + new.len()].copy_from_slice(&new);
            assert_eq!(place.bytes().as_ref(), Some(&model), "seed {seed}");
        }
    }
}

#[test]
fn a_range_beyond_the_limit_is_refused_and_changes_nothing() {
    let mut place = Place::new();
    place.put(b"abc", None, None).expect("room");
    assert_eq!(kind(place.put(b"x", Some(1 << 20), None)), Some(ErrorKind::TooLarge));
    assert_eq!(kind(place.put(b"x", Some(u64::MAX), None)), Some(ErrorKind::TooLarge));
    assert_eq!(place.bytes(), Some(b"abc".to_vec()));
}

#[test]
fn a_list_is_a_deque() {
    for seed in 0..300 {
        let (mut random, mut place, mut model) = (Random(seed), Place::new(), VecDeque::<Vec<u8>>::new());
        for _ in 0..120 {
            let front = random.below(2) == 0;
            if random.below(3) > 0 {
                let length = random.below(400) as usize;
                let new = [random.fill(length), random.fill(3)];
                let name = if front { "list-push-front" } else { "list-push" };
                let answer = place.execute(name, &[&new[0], &new[1]]).expect("room");
                new.iter().for_each(|item| match front {
                    true => model.push_front(item.clone()),
                    false => model.push_back(item.clone()),
                });
                assert_eq!(bytes(answer), model.len().to_string().into_bytes());
            } else {
                let name = if front { "list-pop" } else { "list-pop-back" };
                let wanted = if front { model.pop_front() } else { model.pop_back() };
                assert_eq!(place.execute(name, &[]).ok().map(bytes), wanted, "seed {seed}");
            }
            let (from, to) = (random.below(30) as i64 - 15, random.below(30) as i64 - 15);
            let range = place.execute("list-range", &[from.to_string().as_bytes(), to.to_string().as_bytes()]);
            let end = |n: i64| if n < 0 { (model.len() as i64 + n).max(0) } else { n.min(model.len() as i64) } as usize;
            let wanted: Vec<&[u8]> =
                model.iter().map(|item| &item[..]).skip(end(from)).take(end(to).saturating_sub(end(from))).collect();
            assert_eq!(items(&bytes(range.expect("a list"))), Some(wanted), "seed {seed} {from}..{to}");
            assert_eq!(place.object.is_some(), !model.is_empty(), "an empty list is no object");
        }
    }
}

#[test]
fn what_is_no_list_lock_or_number_is_told_and_kept() {
    let mut random = Random(1);
    for broken in 0..2000u64 {
        let mut place = Place::new();
        place.execute("list-push", &[b"one", b"two", b"three"]).expect("room");
        let mut value = place.bytes().expect("there");
        let at = random.below(value.len() as u64) as usize;
        value[at] ^= 1 << (broken % 8);
        value.truncate(value.len() - random.below(3) as usize);
        place.put(&value, None, None).expect("room");
        for name in ["list-pop", "list-pop-back", "list-length"] {
            place.execute(name, &[]).ok();
        }
        place.execute("list-range", &[b"0", b"9"]).ok();
        place.execute("lock", &[b"shared", b"1000"]).ok();
        place.execute("fetch-and-add", &[b"1"]).ok();
    }
    let mut place = Place::new();
    place.put(b"plain", None, None).expect("room");
    let commands: [(&str, &[&[u8]]); 4] =
        [("list-push", &[b"x"]), ("lock", &[b"shared", b"1000"]), ("fetch-and-add", &[b"1"]), ("list-length", &[])];
    for (name, arguments) in commands {
        assert_eq!(kind(place.execute(name, arguments)), Some(ErrorKind::BadRequest), "{name}");
    }
    assert_eq!(place.bytes(), Some(b"plain".to_vec()));
}

#[test]
fn a_list_ends_at_its_limit() {
    let mut place = Place::new();
    let item = vec![1; 1000];
    let mut pushed = 0;
    while place.execute("list-push", &[&item]).is_ok() {
        pushed += 1;
    }
    assert_eq!(pushed, ((1 << 20) - 12) / 1008);
    assert_eq!(place.execute("list-length", &[]).map(bytes), Ok(pushed.to_string().into_bytes()));
    assert_eq!(kind(place.execute("list-push-front", &[&item])), Some(ErrorKind::TooLarge));
}

#[test]
fn counters_count_and_say_where_they_end() {
    let mut place = Place::new();
    assert_eq!(place.execute("fetch-and-add", &[b"5"]).map(bytes), Ok(b"0".to_vec()));
    assert_eq!(place.execute("fetch-and-add", &[b"-8"]).map(bytes), Ok(b"5".to_vec()));
    assert_eq!(place.bytes(), Some(b"-3".to_vec()));
    place.put(b"41\n", None, None).expect("room");
    assert_eq!(place.execute("fetch-and-add", &[b"1"]).map(bytes), Ok(b"41".to_vec()));
    place.put(i64::MAX.to_string().as_bytes(), None, None).expect("room");
    assert_eq!(kind(place.execute("fetch-and-add", &[b"1"])), Some(ErrorKind::BadRange));
    for argument in [&b"+1"[..], b"", b"1 ", b"x", b"9223372036854775808"] {
        assert_eq!(kind(place.execute("fetch-and-add", &[argument])), Some(ErrorKind::BadRequest));
    }
}

#[test]
fn methods_on_a_value_do_what_they_say() {
    let mut place = Place::new();
    assert_eq!(kind(place.execute("get-and-remove", &[])), Some(ErrorKind::NotFound));
    assert_eq!(place.execute("append", &[b"bc"]).map(bytes), Ok(b"2".to_vec()));
    assert_eq!(place.execute("prepend", &[b"a"]).map(bytes), Ok(b"3".to_vec()));
    assert_eq!(kind(place.execute("set-if-absent", &[b"x"])), Some(ErrorKind::ConditionFailed));
    assert_eq!(kind(place.execute("compare-and-set", &[b"ab", b"x"])), Some(ErrorKind::ConditionFailed));
    assert!(place.execute("compare-and-set", &[b"abc", b"x"]).is_ok());
    assert_eq!(place.execute("get-and-remove", &[]).map(bytes), Ok(b"x".to_vec()));
    assert!(place.execute("set-if-absent", &[&[9; 5000]]).is_ok());
    assert_eq!(place.execute("append", &[b"!"]).map(bytes), Ok(b"5001".to_vec()));
    assert_eq!(place.execute("get-and-remove", &[]).map(bytes).map(|all| all.len()), Ok(5001));
    assert!(place.object.is_none());
    for name in ["", "gone", "touch", "lock", "list-", "list-push", "compare-and-set"] {
        assert_eq!(kind(place.execute(name, &[])), Some(ErrorKind::BadRequest), "{name}");
    }
}

#[test]
fn a_touch_takes_a_version_and_keeps_the_cas_that_clients_saw() {
    let mut place = Place::new();
    place.put(b"v", None, None).expect("room");
    let before = place.object.as_ref().expect("there").head;
    place.execute("touch", &[b"500"]).expect("there");
    let after = place.object.as_ref().expect("there").head;
    assert!(after.version > before.version);
    assert_eq!((after.cas(), after.expires_ms), (before.cas(), place.now_ms + 500));
    place.now_ms += 500;
    assert_eq!(kind(place.execute("touch", &[b"0"])), Some(ErrorKind::NotFound), "expired");
}

fn granted(answer: Answer<Pieces>) -> Option<Token> {
    let answer = bytes(answer);
    let answer = items(&answer).expect("a list");
    match answer[..] {
        [b"granted", token, _] => Some(Token::parse(std::str::from_utf8(token).expect("text")).expect("a token")),
        [b"held", ms] => {
            assert!(ms != b"0", "who is told to wait is told how long");
            None
        }
        _ => panic!("neither granted nor held"),
    }
}

/// Holders as a table: who (grant), shared, until. At times another node decides, whose clock is another one: it was
/// told how long the object has to live, and its value.
#[test]
fn a_lock_is_held_by_one_or_shared_and_its_grants_rise() {
    for seed in 0..300 {
        let (mut random, mut place) = (Random(seed), Place::new());
        let mut model: Vec<(Token, bool, u64)> = Vec::new();
        let mut given: Vec<Token> = Vec::new();
        for _ in 0..200 {
            place.now_ms += random.below(200);
            if random.below(10) == 0 {
                let ahead_ms = random.below(20_000);
                let moved = |ms: u64| ms + ahead_ms - 10_000;
                place.now_ms = moved(place.now_ms);
                place.object.iter_mut().for_each(|object| object.head.expires_ms = moved(object.head.expires_ms));
                model.iter_mut().for_each(|(.., until_ms)| *until_ms = moved(*until_ms));
            }
            let now_ms = place.now_ms;
            model.retain(|(_, _, until_ms)| *until_ms > now_ms);
            let lease_ms = 100 + random.below(900);
            let lease = lease_ms.to_string().into_bytes();
            let one = (!given.is_empty()).then(|| given[random.below(given.len() as u64) as usize]);
            let holds = |model: &[(Token, bool, u64)]| model.iter().position(|(token, ..)| Some(*token) == one);
            let text = one.map(|token| token.to_string().into_bytes()).unwrap_or_default();
            match (random.below(4), one) {
                (0, Some(_)) => {
                    let there = holds(&model);
                    assert_eq!(place.execute("unlock", &[&text]).is_ok(), there.is_some(), "seed {seed}");
                    there.into_iter().for_each(|at| _ = model.swap_remove(at));
                }
                (1, Some(_)) => {
                    let there = holds(&model);
                    assert_eq!(place.execute("renew", &[&text, &lease]).is_ok(), there.is_some(), "seed {seed}");
                    there.into_iter().for_each(|at| model[at].2 = now_ms + lease_ms);
                }
                (2, Some(_)) => {
                    let left = holds(&model).map(|at| (model[at].2 - now_ms).to_string().into_bytes());
                    assert_eq!(place.execute("check", &[&text]).ok().map(bytes), left, "seed {seed}");
                }
                _ => {
                    let shared = random.below(3) > 0;
                    let mode: &[u8] = if shared { b"shared" } else { b"exclusive" };
                    let free = model.iter().all(|(_, other, _)| shared && *other);
                    let got = granted(place.execute("lock", &[mode, &lease, b"host:1"]).expect("a lock"));
                    assert_eq!(got.is_some(), free, "seed {seed}");
                    if let Some(token) = got {
                        assert!(given.last().is_none_or(|last| last.grant < token.grant), "grants rise");
                        given.push(token);
                        model.push((token, shared, now_ms + lease_ms));
                    }
                }
            }
        }
    }
}

#[test]
fn a_shared_lock_has_no_more_holders_than_its_limit() {
    let mut place = Place::new();
    let label = [b'x'; 64];
    for _ in 0..1024 {
        assert!(granted(place.execute("lock", &[b"shared", b"1000", &label]).expect("a lock")).is_some());
    }
    assert!(granted(place.execute("lock", &[b"shared", b"1000"]).expect("a lock")).is_none(), "full");
    place.now_ms += 1000;
    assert!(granted(place.execute("lock", &[b"exclusive", b"1000"]).expect("a lock")).is_some(), "leases are over");
}

#[test]
fn what_was_touched_under_a_later_token_refuses_an_earlier_one_and_none() {
    let token = |grant| Some(Token { lock: [1; 16], grant });
    let other = Some(Token { lock: [2; 16], grant: 99 });
    let get = |place: &mut Place, token| place.run(&Op { token, ..Op::new(Action::Read, 1 << 20) });
    let mut place = Place::new();
    place.put(b"10", None, token(5)).expect("the first token");
    // Holder 6 has only read so far: 5 may write no more, or its write would be lost.
    get(&mut place, token(6)).expect("a later token");
    assert_eq!(kind(place.put(b"11", None, token(5))), Some(ErrorKind::ConditionFailed));
    assert_eq!(kind(get(&mut place, token(5))), Some(ErrorKind::ConditionFailed));
    assert_eq!(kind(place.put(b"11", None, None)), Some(ErrorKind::NotAllowed));
    assert_eq!(kind(place.execute("append", &[b"1"])), Some(ErrorKind::NotAllowed));
    assert_eq!(kind(place.put(b"11", None, other)), Some(ErrorKind::NotAllowed));
    assert!(get(&mut place, None).is_ok(), "a plain get asks for nothing");
    place.execute_with("fetch-and-add", &[b"1"], token(6)).expect("the present token");
    assert_eq!(place.bytes(), Some(b"11".to_vec()));
    // A remove leaves the token behind, and so does a get of nothing.
    place.execute_with("get-and-remove", &[], token(6)).expect("the present token");
    assert_eq!(kind(place.put(b"0", None, token(5))), Some(ErrorKind::ConditionFailed));
    get(&mut place, token(7)).expect("a later token");
    assert_eq!(kind(place.put(b"0", None, token(6))), Some(ErrorKind::ConditionFailed));
    place.put(b"0", None, token(7)).expect("the present token");
    // A method that only reads shows its token as well; a lock takes none but its own.
    place.execute_with("get-and-remove", &[], token(7)).expect("the present token");
    place.execute_with("list-length", &[], token(8)).expect("the empty list");
    assert_eq!(kind(place.put(b"0", None, token(7))), Some(ErrorKind::ConditionFailed));
    let mut lock = Place::new();
    lock.execute_with("lock", &[b"shared", b"1000"], token(9)).expect("a lock");
    assert!(lock.execute("lock", &[b"shared", b"1000"]).is_ok(), "it is not guarded by another lock");
}

#[test]
fn no_lock_is_made_where_another_locks_token_was_left() {
    let mut place = Place::new();
    let token = |lock| Some(Token { lock: [lock; 16], grant: 5 });
    let exclusive: &[&[u8]] = &[b"exclusive", b"1000"];
    place.put(b"10", None, token(1)).expect("the first token");
    place.execute_with("get-and-remove", &[], token(1)).expect("the present token");
    assert_eq!(kind(place.execute("lock", exclusive)), Some(ErrorKind::NotAllowed));
    assert_eq!(kind(place.execute_with("lock", exclusive, token(2))), Some(ErrorKind::NotAllowed));
    assert!(place.object.is_none());
    place.execute_with("lock", exclusive, token(1)).expect("the present token");
    // A lock's own token guards it against nobody who wants the lock.
    let mut place = Place::new();
    let id = Some(Token { lock: ID, grant: 5 });
    place.run(&Op { token: id, ..Op::new(Action::Read, 1 << 20) }).expect("a get of nothing");
    place.execute("lock", exclusive).expect("it is free");
}

#[test]
fn flags_expiry_and_attributes_stay_where_a_method_or_a_range_does_not_name_them() {
    let mut place = Place::new();
    let put = Put {
        flags: Some(3),
        expires_ms: Some(9_000_000),
        attributes: Some(b"a"),
        ..Put::of(Given::Small(b"7", None))
    };
    place.run(&Op::new(Action::Put(put), 99)).expect("room");
    place.execute("fetch-and-add", &[b"1"]).expect("a number");
    place.execute("append", &[b"0"]).expect("room");
    place.put(b"1", Some(0), None).expect("room");
    let object = place.object.as_ref().expect("there");
    assert_eq!((object.head.flags, object.head.expires_ms, &object.attributes[..]), (3, 9_000_000, &b"a"[..]));
    assert_eq!(place.bytes(), Some(b"10".to_vec()));
    place.put(b"new", None, None).expect("room");
    let object = place.object.as_ref().expect("there");
    assert_eq!((object.head.flags, object.head.expires_ms, object.attributes.len()), (0, 0, 0));
}

mod memcached {
    use super::*;
    use crate::door::memcached::{Clock, Command, Meta, meta_arith, meta_get, parse_line};
    use crate::method::memcached::Method as Memcached;

    /// Carries out a meta command line, with a value where it takes one: the bytes of a method's answer.
    fn run(place: &mut Place, line: &str, value: &[u8]) -> Result<Vec<u8>, ErrorKind> {
        let command = parse_line(line.as_bytes()).unwrap_or_else(|error| panic!("{line}: {error:?}"));
        let method = match &command {
            Command::MetaGet(meta) => Memcached::Get(meta),
            Command::MetaDelete(meta) => Memcached::Delete(meta),
            Command::MetaArith { meta, decrement } => Memcached::MetaArith { meta, decrement: *decrement },
            Command::MetaSet { meta, mode, .. } => {
                Memcached::Set { meta, mode: *mode, value: Given::Small(value, None) }
            }
            Command::Arith { delta, decrement, .. } => Memcached::Arith { delta: *delta, decrement: *decrement },
            Command::Touch { exptime, .. } => Memcached::Touch { exptime: *exptime },
            _ => panic!("{line}"),
        };
        let op = Op::new(Action::Execute(Method::Memcached(method)), 1 << 20);
        place.run(&op).map(bytes).map_err(|error| error.kind)
    }

    fn cas(place: &Place) -> u64 {
        place.object.as_ref().expect("there").head.cas()
    }

    #[test]
    fn an_mg_that_changes_nothing_needs_no_token() {
        let mut place = Place::new();
        let token = Some(Token { lock: [1; 16], grant: 5 });
        place.put(b"10", None, token).expect("the first token");
        assert!(run(&mut place, "mg a v c t q", b"").is_ok(), "a plain get asks for nothing");
        for line in ["mg a v T30", "ms a 1", "md a", "ma a"] {
            assert_eq!(run(&mut place, line, b"1"), Err(ErrorKind::NotAllowed), "{line}");
        }
        place.object.as_mut().expect("there").head.memcached.stale = true;
        assert_eq!(
            run(&mut place, "mg a v", b""),
            Err(ErrorKind::NotAllowed),
            "it would hand out the right to recache"
        );
        place.execute_with("get-and-remove", &[], token).expect("the present token");
        assert_eq!(run(&mut place, "mg a v", b""), Err(ErrorKind::NotFound));
        assert_eq!(run(&mut place, "mg a v N30", b""), Err(ErrorKind::NotAllowed), "it would make the object");
    }

    #[test]
    fn every_mode_of_ms_compares_the_cas_value() {
        let (other, bad) = (Err(ErrorKind::ConditionFailed), "C1");
        for mode in ["MS", "MR", "MA", "MP", ""] {
            let mut place = Place::new();
            run(&mut place, "ms a 1", b"x").expect("new");
            assert_eq!(run(&mut place, &format!("ms a 1 {mode} {bad}"), b"y"), other, "{mode}");
            let good = format!("ms a 1 {mode} C{}", cas(&place));
            assert_eq!(run(&mut place, &good, b"y").map(|_| ()), Ok(()), "{mode}");
        }
        let mut place = Place::new();
        for mode in ["MS", "MR"] {
            assert_eq!(run(&mut place, &format!("ms a 1 {mode} C1"), b"y"), Err(ErrorKind::NotFound));
        }
        assert_eq!(run(&mut place, "ms a 1 MR", b"y"), other);
        assert_eq!(run(&mut place, "ms a 1 MA", b"y"), Err(ErrorKind::NotFound));
        assert_eq!(run(&mut place, "ms a 1 MA N30", b"y"), Ok(b"1".to_vec()));
        assert_eq!(place.object.as_ref().map(|object| object.head.expires_ms), Some(place.now_ms + 30_000));
        assert_eq!(run(&mut place, "ms a 1 ME", b"y"), other);
    }

    #[test]
    fn an_older_value_is_kept_as_a_stale_one_by_set_and_replace() {
        for mode in ["MS", "MR"] {
            let mut place = Place::new();
            run(&mut place, "ms a 1 T60 E9", b"x").expect("new");
            run(&mut place, &format!("ms a 1 {mode} C5 I T10"), b"y").expect("an older one");
            let head = place.object.as_ref().expect("there").head;
            assert_eq!((head.memcached.stale, head.expires_ms), (true, place.now_ms + 60_000));
            assert_eq!(run(&mut place, &format!("ms a 1 {mode} C0 I"), b"z"), Err(ErrorKind::ConditionFailed));
            assert_eq!(place.bytes(), Some(b"y".to_vec()));
        }
    }

    #[test]
    fn what_mg_and_ma_change_is_what_their_replies_tell() {
        let lines = [
            "mg a t T30",
            "mg a N30 t",
            "mg a R30 t c",
            "mg a R90 T90 v",
            "mg a",
            "mg a N0 T5",
            "ma a N30 t T60 c",
            "ma a T9 t",
            "ma a MD D2 v",
            "md a I T5",
            "md a I",
            "md a x I",
            "ms a 2 T20",
            "ms a 2 T20 E7",
        ];
        for seed in 0..3000 {
            let (mut random, mut place) = (Random(seed), Place::new());
            for _ in 0..8 {
                place.now_ms += random.below(20_000);
                let line = lines[random.below(lines.len() as u64) as usize];
                let command = parse_line(line.as_bytes()).expect("a command");
                let expired = place.object.as_ref().is_some_and(|object| object.head.is_expired(place.now_ms));
                let before = place.object.as_ref().filter(|_| !expired).map(|object| object.head);
                let done = run(&mut place, line, b"41");
                let Some(after) = place.object.as_ref().map(|object| object.head) else { continue };
                let clock = Clock { now_ms: place.now_ms, node_s: 0 };
                let walk = |meta: &Meta<'_>| {
                    let mut head = before.unwrap_or_default();
                    let mut out = Vec::new();
                    match command {
                        Command::MetaGet(_) => _ = meta_get(meta, &mut head, before.is_none(), clock, &mut out),
                        _ => meta_arith(meta, &mut head, before.is_none(), clock, 1, &mut out),
                    }
                    head
                };
                match &command {
                    Command::MetaGet(meta) if done.is_ok() => {
                        let told = walk(meta);
                        assert_eq!(told.expires_ms, after.expires_ms, "seed {seed} {line}");
                        assert_eq!(told.memcached.token_sent, after.memcached.token_sent, "seed {seed} {line}");
                        assert!(before.is_none_or(|head| head.cas() == after.cas()), "the CAS value stays");
                    }
                    Command::MetaArith { meta, .. } if done.is_ok() && before.is_some() => {
                        assert_eq!(walk(meta).expires_ms, after.expires_ms, "seed {seed} {line}");
                    }
                    _ => {}
                }
            }
        }
    }

    #[test]
    fn numbers_keep_their_length_and_end_at_zero() {
        let mut place = Place::new();
        run(&mut place, "ms a 3", b"100").expect("new");
        assert_eq!(run(&mut place, "decr a 1", b""), Ok(b"99".to_vec()));
        assert_eq!(place.bytes(), Some(b"99 ".to_vec()));
        assert_eq!(run(&mut place, "decr a 1000", b""), Ok(b"0".to_vec()));
        assert_eq!(run(&mut place, "ma a C1", b""), Err(ErrorKind::ConditionFailed));
        run(&mut place, "ms a 1", b"x").expect("room");
        assert_eq!(run(&mut place, "incr a 1", b""), Err(ErrorKind::BadRequest));
        assert_eq!(run(&mut place, "incr a 1", b""), Err(ErrorKind::BadRequest));
        assert_eq!(run(&mut Place::new(), "incr a 1", b""), Err(ErrorKind::NotFound));
        assert_eq!(run(&mut Place::new(), "ma a N0 J12", b""), Ok(b"12".to_vec()));
    }
}
