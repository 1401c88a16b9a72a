//! What groups promise, one thing after the other.

use super::herd::{Herd, bytes_of, shown};
use crate::apply::Snapshot;
use crate::context::Context;
use crate::group::Done;
use crate::group::copies::Kept;
use crate::link::tests::world::node;
use herd_core::ErrorKind;
use herd_core::entry::{Condition, Token};
use herd_core::limits::{BLOCK_BYTES, COPY_BUSY_PART, COPY_EXPIRY_MS, GROUP_SWEEP_MS, LINK_PART, PART_OPS_MAX, SLOTS};
use herd_core::method::Method;
use herd_core::op::{Action, Answer, Op, Put};
use herd_core::place::{Group, GroupId, Life, Member, NodeId, Standing};
use herd_core::replica::window::RequestId;
use herd_core::wire::Asked;
use herd_store::{Body, Entry, Got};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

const MOST: u64 = 1 << 30;

fn remove<'a>() -> Op<'a, Arc<Body>> {
    Op::new(Action::Remove, MOST)
}

fn read<'a>() -> Op<'a, Arc<Body>> {
    Op::new(Action::Read, MOST)
}

/// Puts and waits.
fn put(herd: &mut Herd, name: &[u8], value: &[u8]) -> Done {
    let op = Op::new(Action::Put(Put::of(herd.given(name, value))), MOST);
    herd.ask(name, &op).expect("it is done")
}

fn small(value: &[u8]) -> Op<'_, Arc<Body>> {
    Op::new(Action::Put(Put::of(herd_core::op::Given::Small(value, None))), MOST)
}

/// What a get at a node finds there, or `Away`.
fn got(herd: &mut Herd, number: u32, name: &[u8]) -> Got<Vec<u8>> {
    let cx = herd.cx(number);
    cx.get(0, &cx.shared.default, name, |found| bytes_of(&Snapshot::of(found).value))
}

#[test]
fn a_backup_answers_what_is_clean_there_and_nothing_else() {
    let mut herd = Herd::new(4, 3);
    let version = put(&mut herd, b"n", b"one").version;
    herd.pass(5);
    let (group, primary) = (herd.group(b"n"), herd.primary(b"n"));
    let members: Vec<u32> = herd.map.group(group).expect("it is there").members().map(|id| id.0.get()).collect();
    let (backup, outside) = (members[1], (1..=4).find(|number| !members.contains(number)).expect("four nodes"));
    let one = Got::Hit(b"one".to_vec());
    assert!(members.iter().all(|number| got(&mut herd, *number, b"n") == one));
    let other = (0..).map(|at| format!("m{at}").into_bytes()).find(|name| herd.group(name) == group).expect("some");
    assert!(members.iter().all(|number| got(&mut herd, *number, &other) == Got::Miss));
    let is_away = |herd: &mut Herd, number, name: &[u8]| matches!(got(herd, number, name), Got::Away { .. });
    assert!(is_away(&mut herd, outside, b"n"));
    for name in [&b"n"[..], &other] {
        let cx = herd.cx(backup);
        let base = if name == b"n" { version } else { 0 };
        let pend = |cx: &Context, act: &dyn Fn(&mut Entry<'_>)| {
            act(&mut cx.shared.store.entry(&cx.shared.default, name, cx.now));
        };
        pend(cx, &|entry| entry.prepare_remove(version + 5, base, None).expect("there is room"));
        assert!(is_away(&mut herd, backup, name) && !is_away(&mut herd, primary, name));
        pend(herd.cx(backup), &|entry| assert!(entry.abort(version + 5)));
        assert!(!is_away(&mut herd, backup, name));
    }
    // It leaves.
    let seal = |herd: &mut Herd, seals: bool| {
        herd.change_map(|draft| {
            let group = &mut draft.spreads[0].groups[usize::from(group.number)];
            group.eligible.retain(|id| *id != node(backup));
            group.eligible.extend((!seals).then(|| node(backup)));
        });
        herd.tell_map();
    };
    seal(&mut herd, true);
    assert!(is_away(&mut herd, backup, b"n") && !is_away(&mut herd, primary, b"n"));
    put(&mut herd, b"n", b"two");
    herd.pass(5);
    seal(&mut herd, false);
    assert_eq!(got(&mut herd, backup, b"n"), Got::Hit(b"two".to_vec()));
    // It began anew, and gets its copy.
    herd.change_map(|draft| _ = draft.start_anew(node(backup), |_| true));
    herd.tell_map();
    assert!(is_away(&mut herd, backup, b"n"));
}

#[test]
fn nothing_is_brought_while_the_herd_holds_nothing() {
    let mut herd = Herd::new(2, 2);
    herd.change_map(|draft| draft.nodes[0].rack = "other".into());
    let map = herd.map.clone();
    let tell = |herd: &mut Herd, held| (1..=2).for_each(|number| herd.world.machine(number).adopt(&map, held));
    tell(&mut herd, false);
    herd.settle();
    let refused = herd.ask(b"n", &small(b"1")).map(drop).expect_err("it waits where it was asked");
    assert_eq!(refused.text, "another node decides");
    assert_eq!(herd.ask(b"n", &remove()).map(drop).map_err(|error| error.kind), Err(ErrorKind::NotFound));
    assert_eq!([1, 2].map(|number| herd.at(number, b"n")), [None, None]);
    tell(&mut herd, true);
    herd.settle();
    herd.ask(b"n", &small(b"1")).expect("there is leave");
}

#[test]
fn what_expires_soon_is_read_at_its_primary() {
    let mut herd = Herd::new(3, 3);
    for (name, lives_ms, is_read) in [(b"a", COPY_EXPIRY_MS - 1_000, false), (b"b", COPY_EXPIRY_MS + 60_000, true)] {
        let expires_ms = herd.cx(1).now.unix_ms + lives_ms;
        let value = Put { expires_ms: Some(expires_ms), ..Put::of(herd.given(name, b"v")) };
        herd.ask(name, &Op::new(Action::Put(value), MOST)).expect("it is done");
        herd.pass(5);
        let primary = herd.primary(name);
        for number in 1..=3 {
            let is_here = got(&mut herd, number, name) == Got::Hit(b"v".to_vec());
            assert_eq!(is_here, is_read || number == primary, "n{number}");
        }
    }
}

#[test]
fn a_put_is_at_all_members_and_a_removal_too() {
    for (nodes, copies) in [(2, 2), (3, 2), (3, 3)] {
        let mut herd = Herd::new(nodes, copies);
        for i in 0..50u32 {
            let done = put(&mut herd, &i.to_le_bytes(), b"value");
            assert!(done.became.created() && done.version >> 40 == 1 << 23);
        }
        herd.pass(5);
        for i in 0..50u32 {
            let there = (1..=nodes).filter(|number| herd.at(*number, &i.to_le_bytes()).is_some()).count();
            assert_eq!(there, usize::from(copies));
        }
        herd.check_equal();
        for i in 0..25u32 {
            assert!(herd.ask(&i.to_le_bytes(), &remove()).expect("it is done").became.before.is_some());
            let missing = herd.ask(&i.to_le_bytes(), &remove()).err().map(|error| error.kind);
            assert_eq!(missing, Some(ErrorKind::NotFound));
        }
        herd.pass(5);
        herd.check_equal();
        let held: usize = (1..=nodes).map(|number| herd.items(number).0.len()).sum();
        assert_eq!(held, 25 * usize::from(copies));
    }
}

#[test]
fn a_member_that_hears_of_the_map_after_its_primary_adopts_all_the_same() {
    for first in 1..=3 {
        let mut herd = Herd::linked(3, 3);
        herd.tell_map_to(first);
        herd.settle();
        herd.tell_map();
        for i in 0..60u32 {
            put(&mut herd, &i.to_le_bytes(), b"value");
        }
        herd.pass(5);
        herd.check_equal();
    }
}

#[test]
fn values_of_any_length_come_to_all_members() {
    let mut herd = Herd::new(3, 3);
    for (i, len) in [0, 1, 4096, 4097, 65_535, 65_536, 65_537, 1 << 20, 5_000_001, 12 << 20].into_iter().enumerate() {
        let (name, value) = (format!("n{i}"), vec![i as u8 + 1; len]);
        put(&mut herd, name.as_bytes(), &value);
        herd.pass(5);
        for number in 1..=3 {
            assert!(herd.at(number, name.as_bytes()).is_some_and(|(_, held)| held == value), "{len} bytes");
        }
        let done = herd.ask(name.as_bytes(), &read()).expect("it is there");
        assert!(shown(&done) == Some(value));
        // Smaller again, so that all fit.
        put(&mut herd, name.as_bytes(), b"x");
    }
    herd.pass(5);
    herd.check_equal();
}

#[test]
fn nothing_is_begun_while_a_member_is_gone() {
    let mut herd = Herd::new(3, 3);
    put(&mut herd, b"n", b"1");
    herd.world.cut = true;
    herd.pass(4_000);
    let refused = herd.begin(b"n", &small(b"2"));
    herd.settle();
    let error = herd.told(refused).expect("it is not waited for").err().expect("it was not begun");
    assert!(error.kind == ErrorKind::Unreachable && error.text.contains("which keeps a copy of 'n'"), "{error:?}");
    let read = herd.begin(b"n", &read());
    herd.settle();
    assert!(herd.told(read).expect("it changes nothing").is_ok_and(|done| shown(&done) == Some(b"1".into())));
    herd.world.cut = false;
    herd.pass(5_000);
    put(&mut herd, b"n", b"3");
    herd.pass(5);
    herd.check_equal();
}

#[test]
fn operations_that_wait_share_a_write_and_each_has_its_own_version() {
    let mut herd = Herd::new(2, 2);
    assert!(herd.ask(b"n", &small(b"0")).is_ok());
    let numbers: Vec<u64> = (0..200u32)
        .map(|i| {
            let value = i.to_string();
            herd.begin(b"n", &small(value.as_bytes()))
        })
        .collect();
    herd.settle();
    let versions: Vec<u64> =
        numbers.iter().map(|number| herd.told(*number).expect("ended").expect("done").version).collect();
    assert!(versions.is_sorted_by(|a, b| a < b), "each its own, in order");
    herd.pass(5);
    assert_eq!(herd.at(1, b"n"), Some((versions[199], b"199".to_vec())));
    herd.check_equal();
    // Who compares an earlier one is told no.
    let stale = Op { condition: Condition::IfVersion(versions[198]), ..small(b"x") };
    assert_eq!(herd.ask(b"n", &stale).err().map(|error| error.kind), Some(ErrorKind::ConditionFailed));
    let fresh = Op { condition: Condition::IfVersion(versions[199]), ..small(b"x") };
    assert!(herd.ask(b"n", &fresh).is_ok());
}

#[test]
fn a_write_waits_while_a_member_is_away_and_a_read_does_not() {
    let mut herd = Herd::new(3, 3);
    put(&mut herd, b"n", b"old");
    herd.pass(5);
    herd.world.cut = true;
    let (write, behind) = (herd.begin(b"n", &small(b"new")), herd.begin(b"n", &read()));
    herd.settle();
    assert!(herd.told(write).is_none() && herd.told(behind).is_none());
    let to = herd.primary(b"n");
    assert_eq!(herd.at(to, b"n").map(|it| it.1), Some(b"old".to_vec()), "what is committed stays to be read");
    let group = herd.group(b"n");
    assert!(herd.cx(to).shared.gates.is_open(group));
    herd.pass(5_000);
    assert!(herd.told(write).is_none());
    let refused = herd.begin(b"n", &small(b"newer"));
    herd.settle();
    let error = herd.told(refused).expect("it does not stand in line").err().expect("it was not begun");
    assert!(
        error.text.ends_with("which keeps a copy of 'n', can't be reached: no write until it is back"),
        "{error:?}"
    );
    herd.world.cut = false;
    herd.pass(3_000);
    assert!(herd.told(write).expect("ended").is_ok());
    assert_eq!(shown(&herd.told(behind).expect("ended").expect("done")), Some(b"new".to_vec()), "in its order");
    herd.pass(5);
    herd.check_equal();
}

#[test]
fn what_stands_in_line_beyond_its_time_was_not_done_and_never_is() {
    let mut herd = Herd::new(3, 3);
    put(&mut herd, b"n", b"old");
    herd.pass(5);
    herd.world.cut = true;
    let write = herd.begin(b"n", &small(b"new"));
    let to = herd.primary(b"n");
    let now_ms = herd.cx(to).now_ms();
    herd.until_ms = now_ms + 3_000;
    let late = herd.begin(b"n", &small(b"late"));
    herd.until_ms = now_ms + 9_000;
    let last = herd.begin(b"n", &small(b"last"));
    herd.pass(2_900);
    assert!(herd.told(late).is_none());
    herd.pass(300);
    let error = herd.told(late).expect("its time is over").err().expect("it was not begun");
    let text = "which keeps a copy of 'n', does not answer: nothing was done, try again";
    assert!(error.kind == ErrorKind::Unreachable && error.text.ends_with(text), "{error:?}");
    assert!(herd.told(write).is_none() && herd.told(last).is_none());
    herd.world.cut = false;
    herd.pass(3_000);
    let versions = [write, last].map(|number| herd.told(number).expect("ended").expect("done").version);
    assert_eq!(versions[1], versions[0] + 1, "nothing came between them");
    assert_eq!(herd.at(to, b"n").map(|it| it.1), Some(b"last".to_vec()));
    herd.pass(5);
    herd.check_equal();
}

#[test]
fn what_is_on_its_way_to_a_member_that_stands_still_is_bounded_by_the_memory() {
    let mut herd = Herd::new(2, 2);
    herd.world.cut = true;
    let names: Vec<[u8; 4]> = (0..400u32).map(u32::to_le_bytes).filter(|name| herd.primary(name) == 1).collect();
    let mut begun = Vec::new();
    for name in &names {
        let value = herd.given(name, &[7; 64 << 10]);
        let op = Op::new(Action::Put(Put::of(value)), MOST);
        begun.push(herd.begin(name, &op));
        herd.settle();
        let bytes = herd.cx(1).links.most_waiting_bytes();
        assert!(bytes <= (64 << 20) / LINK_PART + (66 << 10), "{bytes} bytes of {} values", begun.len());
    }
    assert!(begun.len() > 150 && begun.iter().all(|number| herd.told(*number).is_none()));
    herd.world.cut = false;
    herd.pass(3_000);
    assert!(begun.into_iter().all(|number| herd.told(number).is_some_and(|told| told.is_ok())));
    herd.check_equal();
}

#[test]
fn too_much_at_once_is_busy_and_nothing_of_it_is_begun() {
    let mut herd = Herd::new(2, 2);
    put(&mut herd, b"n", b"old");
    herd.world.cut = true;
    let numbers: Vec<u64> = (0..PART_OPS_MAX as u64 + 10).map(|_| herd.begin(b"n", &small(b"new"))).collect();
    herd.settle();
    let busy = numbers.iter().filter_map(|number| herd.told(*number)).map(|told| told.err().map(|error| error.kind));
    assert_eq!(busy.collect::<Vec<_>>(), vec![Some(ErrorKind::Busy); 10]);
    herd.world.cut = false;
    herd.pass(3_000);
    let done = numbers.iter().filter_map(|number| herd.told(*number)).filter(Result::is_ok).count();
    assert_eq!(done, PART_OPS_MAX);
    herd.pass(5);
    herd.check_equal();
}

fn text(answer: Answer<Arc<Body>>) -> Vec<u8> {
    let Answer::Bytes(bytes) = answer else { panic!("it answers bytes") };
    bytes
}

#[test]
fn a_request_that_is_asked_again_is_answered_and_not_done_twice() {
    let mut herd = Herd::new(3, 3);
    let add = Method::Memcached(herd_core::method::memcached::Method::Arith { delta: 5, decrement: false });
    let add = Op::new(Action::Execute(add), MOST);
    put(&mut herd, b"n", b"10");
    let to = herd.primary(b"n");
    let mut answers = Vec::new();
    for first_epoch in 0..3 {
        let number = herd.begin_as(to, b"n", &add, (1 << 40, first_epoch));
        herd.settle();
        let done = herd.told(number).expect("ended").expect("done");
        answers.push((done.version, text(done.answer)));
    }
    assert_eq!(answers[0].1, b"15");
    assert!(answers.iter().all(|answer| *answer == answers[0]));
    herd.pass(5);
    assert_eq!(herd.at(to, b"n").map(|it| it.1), Some(b"15".to_vec()));
    // Also by who takes over.
    let (group, old) = (herd.group(b"n"), to);
    herd.change_map(|draft| {
        let group = &mut draft.spreads[0].groups[usize::from(group.number)];
        let next = group.others[0].node;
        let before = group.primary.replace(next).expect("it had one");
        group.others[0].node = before;
    });
    herd.tell_map();
    let to = herd.primary(b"n");
    assert_ne!(to, old);
    let number = herd.begin_as(to, b"n", &add, (1 << 40, 5));
    herd.settle();
    let done = herd.told(number).expect("ended").expect("done");
    assert_eq!((done.version, text(done.answer)), answers[0]);
    herd.pass(5);
    herd.check_equal();
}

/// A node that was alone noted nothing of what it did: what it was asked then it does not do again when others come.
#[test]
fn a_request_of_when_its_node_was_alone_is_not_done_again_in_a_group() {
    let mut herd = Herd::new(2, 1);
    let add = Method::Memcached(herd_core::method::memcached::Method::Arith { delta: 5, decrement: false });
    let add = Op::new(Action::Execute(add), MOST);
    let (alone, to) = (herd.map.epoch, herd.primary(b"n"));
    herd.change_map(|draft| {
        for group in &mut draft.spreads[0].groups {
            let other = (1..=2).map(node).find(|id| Some(*id) != group.primary).expect("one of two is");
            group.others.push(Member { node: other, standing: Standing::Syncing, since: 0 });
        }
    });
    herd.tell_map();
    put(&mut herd, b"n", b"10");
    let ask = |herd: &mut Herd, id: u64, first_epoch| {
        let number = herd.begin_as(to, b"n", &add, (id, first_epoch));
        herd.settle();
        herd.told(number).expect("ended").map(|done| text(done.answer)).map_err(|error| error.kind)
    };
    // Who asked under this map may have come before the node had it.
    for (id, first_epoch) in [(1 << 40, alone), (1 << 41, herd.map.epoch)] {
        assert_eq!(ask(&mut herd, id, first_epoch), Err(ErrorKind::OutcomeUnknown));
    }
    assert_eq!(ask(&mut herd, 1 << 42, 0), Ok(b"15".to_vec()), "nobody may have done it");
    assert_eq!(ask(&mut herd, 1 << 42, alone), Ok(b"15".to_vec()), "it is noted");
    let wants = herd.wants();
    herd.change_map(|draft| {
        let epochs: Vec<u32> = draft.spreads[0].groups.iter().map(|group| group.epoch).collect();
        wants.iter().for_each(|(id, want)| assert!(draft.grant(*id, epochs[usize::from(id.number)], *want)));
    });
    herd.tell_map();
    let epoch = herd.map.epoch;
    assert_eq!(ask(&mut herd, 1 << 43, epoch), Ok(b"20".to_vec()), "the node had asked for that map");
    assert_eq!(ask(&mut herd, 1 << 44, epoch - 1), Err(ErrorKind::OutcomeUnknown));
}

/// Its link was lost while it stood in line, and it comes once more: both are decided together.
#[test]
fn a_request_that_stands_in_line_twice_is_done_once() {
    let mut herd = Herd::new(3, 3);
    let add = Method::Memcached(herd_core::method::memcached::Method::Arith { delta: 5, decrement: false });
    let add = Op::new(Action::Execute(add), MOST);
    put(&mut herd, b"n", b"10");
    let to = herd.primary(b"n");
    // While this is under way what follows stands in line.
    let numbers = [(1 << 40, 0), (1 << 41, 0), (1 << 41, 1)].map(|asked| herd.begin_as(to, b"n", &add, asked));
    herd.settle();
    let told = numbers.map(|number| text(herd.told(number).expect("ended").expect("done").answer));
    assert_eq!(told, [b"15", b"20", b"20"]);
    herd.pass(5);
    herd.check_equal();
}

/// Its value has no room at a member, and what it was to replace goes; it comes again before that has gone.
#[test]
fn a_put_that_was_refused_is_not_done_by_one_that_comes_again() {
    let mut herd = Herd::with(2, 2, |number| if number == 2 { 9 << 20 } else { 64 << 20 });
    let names: Vec<Vec<u8>> = (0..200).map(|number| format!("n{number}").into_bytes()).collect();
    let names: Vec<&[u8]> = names.iter().map(|name| &name[..]).filter(|name| herd.primary(name) == 1).collect();
    put(&mut herd, names[0], b"old");
    let value = vec![7; 1 << 20];
    let refused = |name: &[u8], herd: &mut Herd| {
        let op = Op::new(Action::Put(Put::of(herd.given(name, &value))), MOST);
        herd.ask(name, &op).is_err_and(|error| error.kind == ErrorKind::Full)
    };
    assert!(names[1..].iter().any(|name| refused(name, &mut herd)), "the second node has room for all");
    let put = Put::of(herd.given(names[0], &value));
    let op = Op { else_remove: true, ..Op::new(Action::Put(put), MOST) };
    let numbers = [0; 3].map(|since| herd.begin_as(1, names[0], &op, (1 << 40, since)));
    herd.settle();
    let told = numbers.map(|number| herd.told(number).expect("ended").map(|done| done.version));
    assert_eq!(told[0].as_ref().map_err(|error| error.kind), Err(ErrorKind::Full));
    assert!(told.iter().all(Result::is_err), "{told:?}");
    herd.pass(5);
    assert_eq!([1, 2].map(|number| herd.at(number, names[0])), [None, None]);
}

/// What was put is lost, and so is what was noted of it.
#[test]
fn what_was_done_before_a_loss_is_not_done_again() {
    let mut herd = Herd::new(3, 2);
    let (put, before) = (small(b"1"), herd.map.epoch);
    let to = herd.primary(b"n");
    let first = herd.begin_as(to, b"n", &put, (9, 0));
    herd.settle();
    herd.told(first).expect("ended").expect("done");
    herd.pass(5);
    herd.change_map(|draft| {
        let epoch = draft.epoch + 1;
        for group in &mut draft.spreads[0].groups {
            group.lost = epoch;
            group.others.push(Member { node: third(group), standing: Standing::Backup, since: 0 });
            group.eligible = group.members().collect();
        }
    });
    // Nobody here knows of the last one, which may have been done by others: it comes while all that was is dropped.
    (1..=3).for_each(|number| herd.tell_map_to(number));
    let tries = [9, 10].map(|id| herd.begin_as(to, b"n", &put, (id, before)));
    herd.settle();
    let told =
        tries.map(|number| herd.told(number).expect("ended").map(|done| done.version).map_err(|error| error.kind));
    assert_eq!((told, herd.at(to, b"n")), ([Err(ErrorKind::OutcomeUnknown); 2], None));
    // What is asked since is new.
    let since = herd.map.epoch;
    let new = herd.begin_as(to, b"n", &put, (11, since));
    herd.settle();
    herd.told(new).expect("ended").expect("done");
}

/// One that stood in line before it was known to be new is not known to be done, either.
#[test]
fn what_stands_in_line_already_is_never_new() {
    let mut herd = Herd::new(1, 1);
    let mut kept = Kept::new(&herd.cx(1).shared.store, GroupId { spread: 0, number: 0 });
    let id = RequestId { client: 7, sequence: 1 };
    let asked = Asked { first_epoch: 5, ..Asked::new(id, 0) };
    assert!(!kept.stand(&asked, 0), "there is no view yet");
    kept.sees_all(5);
    assert!(!kept.stand(&asked, 0), "the first one is still to be decided");
    kept.leave(id);
    assert!(!kept.stand(&asked, 0), "the second one is");
    (0..2).for_each(|_| kept.leave(id));
    assert!(kept.stand(&asked, 0));
    kept.leave(id);
    kept.lost_before(6);
    assert!(!kept.stand(&asked, 0), "what was done before a loss nobody knows");
}

#[test]
fn what_is_over_is_removed_everywhere_by_who_decides() {
    let mut herd = Herd::new(3, 3);
    let expires_ms = herd.cx(1).now.unix_ms + 1_000;
    for i in 0..40u32 {
        let name = i.to_le_bytes();
        let put = Put {
            expires_ms: Some(expires_ms + u64::from(i % 2) * 100_000),
            ..Put::of(herd_core::op::Given::Small(b"v", None))
        };
        assert!(herd.ask(&name, &Op::new(Action::Put(put), MOST)).is_ok());
    }
    herd.pass(60);
    (1..=3).for_each(|number| assert_eq!(herd.items(number).0.len(), 40));
    herd.pass(20_000);
    herd.check_equal();
    (1..=3).for_each(|number| assert_eq!(herd.items(number).0.len(), 20));
}

#[test]
fn a_flush_ends_all_before_it_at_each_member() {
    let mut herd = Herd::new(3, 3);
    (0..60u32).for_each(|i| drop(put(&mut herd, &i.to_le_bytes(), b"v")));
    herd.change_map(|draft| draft.collections[0].generation += 1);
    // One has the map before the others.
    let first = herd.primary(b"n");
    herd.tell_map_to(first);
    herd.settle();
    put(&mut herd, b"n", b"new");
    herd.tell_map();
    herd.pass(5);
    herd.check_equal();
    (1..=3).for_each(|number| assert_eq!(herd.items(number).0.len(), 1));
}

/// What is over is taken out by a write, which may wait for its member longer than the next look is away.
#[test]
fn a_loop_rests_while_the_removal_of_what_is_over_waits_for_a_member() {
    let mut herd = Herd::new(2, 2);
    let first = herd.primary(b"n");
    let expires_ms = herd.cx(first).now.unix_ms + 500;
    let op = Op::new(Action::Put(Put { expires_ms: Some(expires_ms), ..Put::of(herd.given(b"n", b"1")) }), MOST);
    herd.ask(b"n", &op).expect("it is done");
    herd.pass(5);
    herd.world.cut = true;
    // The link counts as lost only later.
    herd.pass(500 + 3 * GROUP_SWEEP_MS);
    assert_eq!(herd.items(first).1, 1, "its removal is under way");
    herd.world.cut = false;
    herd.pass(5_000);
    assert_eq!((herd.items(1).0, herd.items(2).0), (Vec::new(), Vec::new()));
    herd.check_equal();
}

/// What a flush ends while it is under way leaves nothing behind at any member.
#[test]
fn a_write_that_a_flush_ends_is_kept_nowhere() {
    let mut herd = Herd::new(2, 2);
    put(&mut herd, b"n", b"1");
    herd.pass(5);
    let asked = herd.begin(b"n", &small(b"2"));
    herd.change_map(|draft| draft.collections[0].generation += 1);
    herd.tell_map();
    herd.pass(5);
    assert!(herd.told(asked).expect("it has ended").is_ok());
    let group = herd.group(b"n");
    for number in 1..=2 {
        assert_eq!(herd.cx(number).parts.answering(group), 0, "at node {number}");
    }
    herd.check_equal();
}

/// The link is lost before the member has heard that it is committed, and nothing of it is pending any more.
#[test]
fn a_write_that_a_flush_ends_is_kept_nowhere_when_the_link_is_another_one_by_then() {
    let mut herd = Herd::new(2, 2);
    put(&mut herd, b"n", b"1");
    herd.pass(5);
    let add = Method::Memcached(herd_core::method::memcached::Method::Arith { delta: 5, decrement: false });
    let (to, group) = (herd.primary(b"n"), herd.group(b"n"));
    let add = Op::new(Action::Execute(add), MOST);
    let asked = herd.begin_as(to, b"n", &add, (1 << 40, 0));
    herd.settle();
    assert_eq!(text(herd.told(asked).expect("it has ended").expect("done").answer), b"6");
    let answering = |herd: &mut Herd| [1, 2].map(|number| herd.cx(number).parts.answering(group));
    assert_eq!(answering(&mut herd).iter().sum::<usize>(), 1, "the other one has not heard of it yet");
    herd.change_map(|draft| draft.collections[0].generation += 1);
    (1..=2).for_each(|number| herd.tell_map_to(number));
    herd.world.cut = true;
    herd.pass(4_000);
    herd.world.cut = false;
    herd.pass(5_000);
    assert_eq!(answering(&mut herd), [0, 0]);
    // Who takes over does not do it once more.
    herd.change_map(|draft| {
        let group = &mut draft.spreads[0].groups[usize::from(group.number)];
        group.others[0].node = group.primary.replace(group.others[0].node).expect("it had one");
    });
    herd.tell_map();
    let (to, epoch) = (herd.primary(b"n"), herd.map.epoch);
    let again = herd.begin_as(to, b"n", &add, (1 << 40, epoch));
    herd.settle();
    let told = herd.told(again).expect("it has ended");
    assert_eq!(told.map_err(|error| error.kind).err(), Some(ErrorKind::OutcomeUnknown));
    herd.check_equal();
}

/// A loop looks at the last of the maps that came meanwhile, and the store has obeyed them all.
#[test]
fn a_group_that_was_shared_by_a_map_that_no_loop_saw_is_served() {
    let mut herd = Herd::new(2, 1);
    let mut share = |copies: u8| {
        herd.change_map(|draft| {
            draft.spreads[0].copies = copies;
            for group in &mut draft.spreads[0].groups {
                let primary = group.primary.expect("a primary");
                let other = if primary == node(1) { node(2) } else { node(1) };
                let backup = Member { node: other, standing: Standing::Backup, since: 0 };
                group.others = if copies == 2 { vec![backup] } else { Vec::new() };
                group.eligible = group.members().collect();
            }
        });
        for number in 1..=2 {
            let (map, me) = (herd.map.clone(), Life { node: node(number), incarnation: 1 });
            assert_eq!(herd.world.machine(number).shared.take_map(me, &map, true), Ok(true));
        }
    };
    share(2);
    share(1);
    herd.settle();
    for i in 0..20u32 {
        put(&mut herd, &i.to_le_bytes(), b"value");
    }
}

/// What waits for a take-over that can't end is refused for certain, and not done some day.
#[test]
fn a_group_that_takes_over_while_a_member_is_gone_refuses_at_once() {
    let mut herd = Herd::new(3, 3);
    put(&mut herd, b"n", b"1");
    herd.pass(5);
    herd.world.kill(3);
    herd.change_map(|draft| {
        for group in &mut draft.spreads[0].groups {
            let primary = if group.primary == Some(node(1)) { node(2) } else { node(1) };
            let backup = |node| Member { node, standing: Standing::Backup, since: 0 };
            group.others = group.members().filter(|member| *member != primary).map(backup).collect();
            group.primary = Some(primary);
        }
    });
    herd.tell_map();
    herd.pass(4_000);
    for op in [small(b"2"), read()] {
        let asked = herd.begin(b"n", &op);
        herd.settle();
        let error = herd.told(asked).expect("it is not waited for").err().expect("it was not begun");
        assert!(error.kind == ErrorKind::Unreachable && error.text.contains("which keeps a copy of 'n'"), "{error:?}");
    }
}

/// Groups are planned anew while the herd holds no object, and may be fewer then.
#[test]
fn a_part_of_a_group_that_is_no_more_looks_after_no_slots() {
    let mut herd = Herd::new(2, 2);
    let before = herd.map.spreads[0].groups.len();
    assert!(before > 1);
    herd.change_map(|draft| {
        draft.spreads[0].groups.truncate(1);
        draft.spreads[0].slots.fill(0);
    });
    herd.tell_map();
    for (number, last) in [(1, before as u16 - 1), (2, before as u16 - 1)] {
        let slots = |herd: &mut Herd, group| herd.cx(number).parts.slots(GroupId { spread: 0, number: group });
        assert_eq!((slots(&mut herd, 0), slots(&mut herd, last)), (SLOTS, 0));
    }
    put(&mut herd, b"n", b"1");
    herd.pass(5);
    herd.check_equal();
}

/// The node that is none of a group's members.
fn third(group: &Group) -> NodeId {
    (1..=3).map(node).find(|id| group.members().all(|member| member != *id)).expect("two of three are")
}

/// An earlier holder is refused by a member that came with a copy, after its take-over.
#[test]
fn a_copy_takes_along_the_tokens_that_removed_objects_left() {
    let mut herd = Herd::new(3, 2);
    let names: Vec<[u8; 4]> = (0..60u32).map(u32::to_le_bytes).collect();
    let with = |op: Op<'static, Arc<Body>>, grant| Op { token: Some(Token { lock: [7; 16], grant }), ..op };
    for (at, name) in names.iter().enumerate() {
        herd.ask(name, &with(small(b"1"), 9)).expect("it is done");
        if at % 3 > 0 {
            herd.ask(name, &with(remove(), 9)).expect("it is done");
        }
    }
    let groups = herd.map.spreads[0].groups.clone();
    herd.change_map(|draft| {
        for group in &mut draft.spreads[0].groups {
            let node = third(group);
            group.others.push(Member { node, standing: Standing::Syncing, since: 0 });
        }
    });
    herd.tell_map();
    // One more leaves its token while the copies are made, or after that.
    herd.ask(&names[0], &with(remove(), 9)).expect("it is done");
    herd.settle();
    let wants = herd.wants();
    assert_eq!(wants.len(), groups.len());
    herd.change_map(|draft| {
        let epochs: Vec<u32> = draft.spreads[0].groups.iter().map(|group| group.epoch).collect();
        wants.iter().for_each(|(id, want)| assert!(draft.grant(*id, epochs[usize::from(id.number)], *want)));
    });
    herd.tell_map();
    herd.change_map(|draft| assert!(draft.seat_joined()));
    herd.tell_map();
    herd.change_map(|draft| {
        for (group, old) in draft.spreads[0].groups.iter_mut().zip(&groups) {
            let (first, next) = (group.primary.expect("it has one"), third(old));
            group.primary = Some(next);
            group.others.iter_mut().filter(|member| member.node == next).for_each(|member| member.node = first);
        }
    });
    herd.tell_map();
    for name in &names {
        let refused = |herd: &mut Herd, op| herd.ask(name, &op).err().map(|error| error.kind);
        assert_eq!(refused(&mut herd, with(small(b"2"), 8)), Some(ErrorKind::ConditionFailed));
        assert_eq!(refused(&mut herd, small(b"2")), Some(ErrorKind::NotAllowed));
        assert_eq!(refused(&mut herd, with(small(b"3"), 9)), None);
    }
    herd.pass(5);
    herd.check_equal();
}

/// How long the copy of a group takes, ms, where each way takes one, and clients ask its primary or nobody does.
fn copied_after_ms(is_served: bool) -> u64 {
    let mut herd = Herd::new(3, 2);
    let group = herd.group(b"0");
    let names = (0..).map(|number: u32| number.to_string().into_bytes());
    let names: Vec<Vec<u8>> = names.filter(|name| herd.group(name) == group).take(12).collect();
    for name in &names {
        put(&mut herd, name, &[7; BLOCK_BYTES]);
    }
    herd.pass(5);
    let (primary, next) = (herd.primary(b"0"), third(herd.map.group(group).expect("it is there")));
    herd.change_map(|draft| {
        let group = &mut draft.spreads[0].groups[usize::from(group.number)];
        group.others.push(Member { node: next, standing: Standing::Syncing, since: 0 });
    });
    herd.world.cut = true;
    herd.tell_map();
    for ms in 0..2_000 {
        let now_ms = herd.world.now_ms();
        if is_served {
            herd.cx(primary).shared.asked_ms.store(now_ms, Relaxed);
        }
        herd.world.cut = false;
        herd.world.carry();
        herd.world.cut = true;
        herd.pass(1);
        if !herd.wants().is_empty() {
            assert!(names.iter().all(|name| herd.at(next.0.get(), name).is_some()));
            return ms;
        }
    }
    panic!("the copy comes to no end");
}

#[test]
fn a_copy_rests_while_clients_are_served_and_comes_to_its_end() {
    let (idle_ms, served_ms) = (copied_after_ms(false), copied_after_ms(true));
    let times = served_ms as f64 / idle_ms as f64;
    let part = COPY_BUSY_PART as f64;
    assert!((0.7 * part..1.3 * part).contains(&times), "{served_ms} ms, and {idle_ms} ms where nobody asks");
}

/// What was held before the epoch of a loss is dropped by whoever has it, before the group goes on.
#[test]
fn what_a_group_has_lost_comes_back_from_nobody() {
    let mut herd = Herd::new(3, 2);
    for i in 0..60u32 {
        put(&mut herd, &i.to_le_bytes(), b"old");
    }
    herd.change_map(|draft| {
        let epoch = draft.epoch + 1;
        for (number, group) in draft.spreads[0].groups.iter_mut().enumerate().filter(|(number, _)| number % 2 == 0) {
            group.lost = epoch;
            // Led by the one before, or by its backup.
            if number % 4 == 0 {
                let first = group.primary.replace(group.others[0].node).expect("it has one");
                group.others[0].node = first;
            }
            group.others.push(Member { node: third(group), standing: Standing::Backup, since: 0 });
            group.eligible = group.members().collect();
        }
    });
    herd.tell_map();
    for i in 0..60u32 {
        let name = i.to_le_bytes();
        let is_lost = herd.group(&name).number.is_multiple_of(2);
        let found = herd.ask(&name, &read()).ok().and_then(|done| shown(&done));
        assert_eq!(found.is_none(), is_lost, "object {i}");
        put(&mut herd, &name, b"new");
    }
    herd.pass(5);
    herd.check_equal();
}

/// Of a group a member is sent one long value at a time, and all else behind it.
#[test]
fn what_stands_behind_a_long_value_for_all_of_its_time_is_not_begun() {
    let mut herd = Herd::new(2, 2);
    let group = herd.group(b"long");
    let short = (0..).map(|at| format!("s{at}").into_bytes()).find(|name| herd.group(name) == group).expect("some");
    let value = vec![b'l'; 8 << 20];
    let long = Op::new(Action::Put(Put::of(herd.given(b"long", &value))), MOST);
    herd.world.cut = true;
    let long = herd.begin(b"long", &long);
    herd.settle();
    herd.until_ms = herd.world.now_ms() + 500;
    let late = herd.begin(&short, &small(b"late"));
    herd.until_ms = u64::MAX;
    let behind = herd.begin(&short, &small(b"behind"));
    herd.pass(1_000);
    let error = herd.told(late).expect("its time is over").map(drop).expect_err("it was not begun");
    assert!(error.kind == ErrorKind::Unreachable && error.text.contains("nothing was done"), "{error:?}");
    assert!(herd.told(long).is_none() && herd.told(behind).is_none());
    herd.world.cut = false;
    herd.pass(50);
    assert!(herd.told(long).expect("it is done").is_ok() && herd.told(behind).expect("it is done").is_ok());
    herd.check_equal();
}
