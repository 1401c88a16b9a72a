//! Histories that can be, and for each kind of mistake one that can't.

use super::{Answer, Ask, Guarded, Op, Verdict, When, check};

fn op(begin: u64, end: u64, ask: Ask, answer: Answer) -> Op {
    Op { ask, answer, version: None, begin, end, after: None, by: String::new() }
}

fn versioned(version: u64, op: Op) -> Op {
    Op { version: Some(version), ..op }
}

fn put(value: &str, when: When) -> Ask {
    Ask::Put { value: value.into(), when }
}

fn set(begin: u64, end: u64, value: &str) -> Op {
    op(begin, end, put(value, When::Always), Answer::Done)
}

fn get(begin: u64, end: u64, value: Option<&str>) -> Op {
    op(begin, end, Ask::Get, Answer::Value(value.map(Into::into)))
}

fn open(begin: u64, ask: Ask) -> Op {
    op(begin, u64::MAX, ask, Answer::Open)
}

#[track_caller]
fn right(ops: &[Op]) {
    assert_eq!(check(ops), Verdict::Right);
}

#[track_caller]
fn wrong(ops: &[Op]) {
    assert!(matches!(check(ops), Verdict::Wrong(_)), "it was taken for right");
}

#[test]
fn gets_beside_a_put_see_either_value_and_never_the_old_one_after_the_new_one() {
    right(&[set(1, 2, "a"), set(3, 8, "b"), get(4, 5, Some("a")), get(6, 7, Some("b"))]);
    right(&[set(1, 8, "a"), get(2, 3, None), get(4, 5, Some("a"))]);
    wrong(&[set(1, 2, "a"), set(3, 8, "b"), get(4, 5, Some("b")), get(6, 7, Some("a"))]);
    wrong(&[set(1, 2, "a"), get(3, 4, None)]);
    wrong(&[set(1, 2, "a"), set(3, 4, "b"), get(5, 6, Some("a"))]);
    wrong(&[get(1, 2, Some("a")), set(3, 4, "a")]);
}

#[test]
fn what_a_connection_asked_later_sees_what_it_asked_before() {
    let later = |value| Op { after: Some(3), ..get(4, 10, value) };
    let first = || op(3, 9, put("b", When::Always), Answer::Done);
    right(&[set(1, 2, "a"), first(), later(Some("b"))]);
    right(&[set(1, 2, "a"), first(), get(4, 10, Some("a"))]);
    wrong(&[set(1, 2, "a"), first(), later(Some("a"))]);
    right(&[set(1, 2, "a"), open(3, put("b", When::Always)), later(Some("a"))]);
}

#[test]
fn what_was_not_answered_may_be_done_late_or_never_but_not_twice_or_early() {
    let lost = || open(3, put("b", When::Always));
    right(&[set(1, 2, "a"), lost(), get(4, 5, Some("a")), get(6, 7, Some("b"))]);
    right(&[set(1, 2, "a"), lost(), get(4, 5, Some("a"))]);
    wrong(&[get(1, 2, Some("b")), lost()]);
    wrong(&[lost(), get(4, 5, Some("b")), set(6, 7, "c"), get(8, 9, Some("b"))]);
    let count = || open(3, Ask::Count { delta: 1, create: true });
    right(&[count(), get(4, 5, Some("1"))]);
    wrong(&[count(), get(4, 5, Some("2"))]);
    right(&[count(), open(4, Ask::Count { delta: 1, create: true }), get(5, 6, Some("2"))]);
}

#[test]
fn an_answer_that_is_no_must_have_been_true_once() {
    let add = |answer| op(3, 4, put("b", When::Absent), answer);
    right(&[set(1, 2, "a"), add(Answer::Differs)]);
    wrong(&[add(Answer::Differs)]);
    wrong(&[set(1, 2, "a"), add(Answer::Done)]);
    // Of a write that failed later: "no" was told beside it.
    wrong(&[op(1, 5, put("a", When::Always), Answer::Nothing), add(Answer::Differs), get(6, 7, None)]);
    let remove = |answer| op(3, 4, Ask::Remove, answer);
    right(&[remove(Answer::Absent)]);
    wrong(&[set(1, 2, "a"), remove(Answer::Absent)]);
    wrong(&[remove(Answer::Done)]);
    right(&[set(1, 2, "a"), remove(Answer::Done), get(5, 6, None)]);
    wrong(&[set(1, 2, "a"), remove(Answer::Done), get(5, 6, Some("a"))]);
    right(&[op(1, 2, put("a", When::Present), Answer::Absent)]);
    wrong(&[set(1, 2, "a"), op(3, 4, put("a", When::Present), Answer::Absent)]);
}

#[test]
fn one_of_two_that_compare_wins() {
    let to = |begin, end, value: &str, answer| op(begin, end, put(value, When::Value(b"a".to_vec())), answer);
    right(&[set(1, 2, "a"), to(3, 6, "b", Answer::Done), to(4, 5, "c", Answer::Differs), get(7, 8, Some("b"))]);
    wrong(&[set(1, 2, "a"), to(3, 6, "b", Answer::Done), to(4, 5, "c", Answer::Done)]);
    let cas = |begin, end, version, answer| op(begin, end, put("x", When::Version(version)), answer);
    let first = || versioned(7, set(1, 2, "a"));
    right(&[first(), versioned(9, cas(3, 4, 7, Answer::Done)), cas(5, 6, 7, Answer::Differs)]);
    wrong(&[first(), cas(3, 4, 7, Answer::Differs)]);
    wrong(&[first(), cas(3, 4, 8, Answer::Done)]);
    wrong(&[first(), set(3, 4, "b"), cas(5, 6, 7, Answer::Done)]);
    wrong(&[first(), cas(3, 4, 7, Answer::Absent)]);
}

#[test]
fn versions_rise_with_each_change_and_stay_without_one() {
    let (five, six) = (versioned(5, set(1, 2, "a")), versioned(6, set(3, 4, "b")));
    right(&[five.clone(), six.clone(), versioned(6, get(5, 6, Some("b")))]);
    wrong(&[versioned(6, set(1, 2, "a")), versioned(5, set(3, 4, "b"))]);
    wrong(&[five.clone(), versioned(5, set(3, 4, "b"))]);
    wrong(&[five.clone(), versioned(6, get(5, 6, Some("a")))]);
    wrong(&[five.clone(), op(3, 4, Ask::Remove, Answer::Done), versioned(5, set(5, 6, "b"))]);
    wrong(&[five, set(3, 4, "a"), versioned(5, get(5, 6, Some("a")))]);
    wrong(&[set(1, 2, "a"), versioned(5, get(3, 4, Some("a"))), versioned(6, get(5, 6, Some("a")))]);
}

#[test]
fn what_is_taken_counted_and_appended_is_so_once() {
    let take = |begin, end, value: Option<&str>| op(begin, end, Ask::Take, Answer::Value(value.map(Into::into)));
    right(&[set(1, 2, "a"), take(3, 6, Some("a")), take(4, 5, None)]);
    wrong(&[set(1, 2, "a"), take(3, 6, Some("a")), take(4, 5, Some("a"))]);
    wrong(&[set(1, 2, "a"), take(3, 4, Some("a")), get(5, 6, Some("a"))]);
    let count = |begin, end, number| op(begin, end, Ask::Count { delta: 2, create: true }, Answer::Number(number));
    right(&[count(1, 4, 4), count(2, 3, 2), get(5, 6, Some("4"))]);
    wrong(&[count(1, 4, 2), count(2, 3, 2)]);
    wrong(&[count(1, 2, 2), count(3, 4, 6)]);
    right(&[op(1, 2, Ask::Count { delta: 1, create: false }, Answer::Absent)]);
    let append =
        |begin, end, value: &str, answer| op(begin, end, Ask::Append { value: value.into(), create: false }, answer);
    right(&[set(1, 2, "a"), append(3, 6, "b", Answer::Done), append(4, 5, "c", Answer::Done), get(7, 8, Some("acb"))]);
    wrong(&[set(1, 2, "a"), append(3, 4, "b", Answer::Done), append(5, 6, "c", Answer::Done), get(7, 8, Some("acb"))]);
    wrong(&[set(1, 2, "a"), append(3, 4, "b", Answer::Done), get(7, 8, Some("abb"))]);
    wrong(&[append(3, 4, "b", Answer::Done)]);
    right(&[append(3, 4, "b", Answer::Absent)]);
}

#[test]
fn one_holds_a_lock_and_grants_rise() {
    let lock = |begin, end, grant| op(begin, end, Ask::Lock, Answer::Granted(grant));
    let unlock = |begin, end, grant, answer| op(begin, end, Ask::Unlock { grant }, answer);
    right(&[lock(1, 2, 5), op(3, 4, Ask::Lock, Answer::Differs), unlock(5, 6, 5, Answer::Done), lock(7, 8, 7)]);
    wrong(&[lock(1, 2, 5), lock(3, 4, 6)]);
    wrong(&[op(3, 4, Ask::Lock, Answer::Differs)]);
    wrong(&[lock(1, 2, 5), unlock(3, 4, 5, Answer::Done), lock(5, 6, 4)]);
    wrong(&[lock(1, 2, 5), unlock(3, 4, 5, Answer::Differs)]);
    right(&[lock(1, 2, 5), unlock(3, 4, 4, Answer::Differs)]);
    right(&[open(1, Ask::Lock), op(3, 4, Ask::Lock, Answer::Differs)]);
}

#[test]
fn who_shows_an_earlier_token_puts_nothing() {
    let under = |begin, end, what, grant, answer| op(begin, end, Ask::Guarded { what, grant }, answer);
    let put = |begin, end, grant, answer| under(begin, end, Guarded::Put(vec![b'a']), grant, answer);
    let get = |begin, end, grant, answer| under(begin, end, Guarded::Get, grant, answer);
    let remove = |begin, end, grant, answer| under(begin, end, Guarded::Remove, grant, answer);
    right(&[put(1, 2, 5, Answer::Done), put(3, 4, 6, Answer::Done), put(5, 6, 5, Answer::Differs)]);
    wrong(&[put(1, 2, 6, Answer::Done), put(3, 4, 5, Answer::Done)]);
    wrong(&[put(1, 2, 5, Answer::Done), put(3, 4, 5, Answer::Differs)]);
    right(&[put(1, 2, 6, Answer::Full), put(3, 4, 5, Answer::Done)]);
    // What was read of nothing, or removed, leaves its token.
    let (nothing, a) = (Answer::Value(None), Answer::Value(Some(vec![b'a'])));
    right(&[get(1, 2, 6, nothing.clone()), put(3, 4, 5, Answer::Differs), put(5, 6, 6, Answer::Done)]);
    wrong(&[get(1, 2, 6, nothing), put(3, 4, 5, Answer::Done)]);
    right(&[put(1, 2, 5, Answer::Done), get(3, 4, 6, a.clone()), get(5, 6, 5, Answer::Differs)]);
    wrong(&[put(1, 2, 5, Answer::Done), get(3, 4, 6, a), put(5, 6, 5, Answer::Done)]);
    right(&[put(1, 2, 5, Answer::Done), remove(3, 4, 6, Answer::Done), remove(5, 6, 5, Answer::Differs)]);
    wrong(&[put(1, 2, 5, Answer::Done), remove(3, 4, 6, Answer::Done), put(5, 6, 5, Answer::Done)]);
    right(&[remove(1, 2, 6, Answer::Absent), put(3, 4, 5, Answer::Done)]);
}

#[test]
fn what_all_copies_lost_is_gone() {
    right(&[set(1, 2, "a"), op(3, 4, Ask::Lose, Answer::Done), get(5, 6, None)]);
    wrong(&[set(1, 2, "a"), op(3, 4, Ask::Lose, Answer::Done), get(5, 6, Some("a"))]);
}

/// Puts side by side, and as many without an answer: without memory this would not end.
#[test]
fn many_at_once_are_put_in_order_soon() {
    let mut ops = Vec::new();
    for round in 0..10u64 {
        let at = round * 100;
        for n in 0..8 {
            ops.push(set(at + n, at + 50 + n, &format!("{round}.{n}")));
        }
        ops.push(open(at + 9, put(&format!("lost{round}"), When::Always)));
        ops.push(get(at + 70, at + 71, Some(&format!("{round}.3"))));
    }
    right(&ops);
    ops.push(get(5_000, 5_001, Some("1.3")));
    wrong(&ops);
}
