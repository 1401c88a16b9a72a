//! Requests to which clients have given ids of their own, that come by several nodes, also as new by each.

use super::*;
use crate::link::tests::world::node;
use crate::tests::{frame, frames_of, request};
use herd_core::ErrorKind;
use herd_core::limits::{FLIGHT_MS, LINK_SILENCE_MS, OWN_AHEAD_MAX_MS, TICK_MS};
use herd_core::method::push_item;
use herd_core::place::{Draft, Member, Standing};
use herd_core::replica::window::RequestId;
use herd_core::wire::{Between, Fields, Header, Own, Status, Verb, stamp_at};
use std::sync::Arc;

const UNKNOWN: Status = Status::Error(ErrorKind::OutcomeUnknown);

/// Status, version and value of an answer.
type Said = (Status, u64, Vec<u8>);

fn own(count: u64, epoch: u32) -> Own {
    // As they are under way at once.
    let id = RequestId { client: 99 + count, sequence: stamp_at(0) + count };
    Own { id, epoch, may_be_done: false }
}

fn again(own: Own) -> Own {
    Own { may_be_done: true, ..own }
}

fn count(name: &str, own: Own) -> Vec<u8> {
    let (bytes, mut arguments) = (own.bytes(), Vec::new());
    push_item(&mut arguments, b"1");
    let between = Some(Between::Own(&bytes));
    let fields = Fields { method: Some("fetch-and-add"), between, ..Fields::named(name.as_bytes()) };
    frame(request(Verb::Execute, 5), &fields, &arguments)
}

fn lock(name: &str, own: Own) -> Vec<u8> {
    let (bytes, mut arguments) = (own.bytes(), Vec::new());
    [&b"exclusive"[..], b"60000"].iter().for_each(|argument| push_item(&mut arguments, argument));
    let between = Some(Between::Own(&bytes));
    let fields = Fields { method: Some("lock"), between, ..Fields::named(name.as_bytes()) };
    frame(request(Verb::Execute, 8), &fields, &arguments)
}

fn contains(said: &[u8], word: &[u8]) -> bool {
    said.windows(word.len()).any(|part| part == word)
}

fn remove(name: &str, own: Own) -> Vec<u8> {
    let bytes = own.bytes();
    let fields = Fields { between: Some(Between::Own(&bytes)), ..Fields::named(name.as_bytes()) };
    frame(request(Verb::Remove, 7), &fields, b"")
}

fn put(name: &str, own: Own, value: &[u8]) -> Vec<u8> {
    let bytes = own.bytes();
    let fields = Fields { between: Some(Between::Own(&bytes)), ..Fields::named(name.as_bytes()) };
    frame(Header { length: value.len() as u64, ..request(Verb::Put, 6) }, &fields, value)
}

fn answer(said: &[u8]) -> Option<Said> {
    let reply = *frames_of(said).first()?;
    Some((reply.header().status()?, reply.header().version, reply.body().expect("good").to_vec()))
}

fn asked(world: &mut World, client: usize, frame: &[u8]) -> Option<Said> {
    answer(&world.say(client, frame))
}

/// An object of such a group, and the map's epoch.
fn object_and_epoch(world: &mut World, backup: u32) -> (String, u32) {
    (led_by_second(world, backup), world.machine(1).map.clone().expect("it has one").epoch)
}

#[test]
fn a_request_that_comes_by_two_nodes_is_done_once_whichever_says_it_is_new() {
    let mut world = World::keeping(3, 2);
    let clients = [1, 2, 3].map(|number| world.connect(number, 1 << 20));
    let (key, epoch) = object_and_epoch(&mut world, 1);
    let first = asked(&mut world, clients[0], &count(&key, own(1, epoch))).expect("answered");
    assert_eq!((first.0, &first.2[..]), (Status::Ok, &b"0"[..]));
    for client in clients {
        for the_same in [own(1, epoch), again(own(1, epoch))] {
            assert_eq!(asked(&mut world, client, &count(&key, the_same)).as_ref(), Some(&first));
        }
    }
    // Both are on their way at once: nobody hears of either before.
    world.cut = true;
    for client in [clients[0], clients[2], clients[1]] {
        assert_eq!(asked(&mut world, client, &count(&key, own(2, epoch))), None);
    }
    world.cut = false;
    world.pass(50);
    let answers = clients.map(|client| asked(&mut world, client, b"").expect("answered"));
    assert_eq!(answers[0].2, b"1");
    assert!(answers.iter().all(|answer| *answer == answers[0]), "{answers:?}");
    let third = asked(&mut world, clients[1], &count(&key, own(3, epoch))).expect("answered");
    assert_eq!((third.0, &third.2[..]), (Status::Ok, &b"2"[..]), "another id is another request");
}

#[test]
fn who_takes_over_knows_what_was_done_and_a_straggler_is_not_done_once_more() {
    let mut world = World::keeping(3, 2);
    let client = world.connect(3, 1 << 20);
    let (key, epoch) = object_and_epoch(&mut world, 1);
    let first = asked(&mut world, client, &count(&key, own(1, epoch))).expect("answered");
    let map = world.machine(1).map.clone().expect("it has one");
    // Its node is cut off with one under way, which may or may not have been done.
    world.cut = true;
    assert_eq!(asked(&mut world, client, &count(&key, own(2, epoch))), None);
    world.pass(LINK_SILENCE_MS + 2 * TICK_MS);
    world.kill(2);
    world.cut = false;
    world.pass(2 * LINK_SILENCE_MS);
    let next = map.next(|draft| draft.bury(node(2), |_| true)).expect("valid");
    world.machine(1).push(&Arc::new(next), true);
    let other = world.connect(1, 1 << 20);
    // The client asks by another node before the one it asked has gone on with it.
    let second = asked(&mut world, other, &count(&key, again(own(2, epoch))));
    world.pass(2 * LINK_SILENCE_MS);
    let second = second.or_else(|| asked(&mut world, other, b"")).expect("answered");
    assert_eq!((second.0, &second.2[..]), (Status::Ok, &b"1"[..]));
    assert_eq!(asked(&mut world, client, b"").as_ref(), Some(&second), "the first one is the same");
    for straggler in [own(2, epoch), again(own(2, epoch))] {
        assert_eq!(asked(&mut world, client, &count(&key, straggler)).as_ref(), Some(&second));
    }
    assert_eq!(asked(&mut world, other, &count(&key, own(1, epoch))).as_ref(), Some(&first));
    let third = asked(&mut world, other, &count(&key, own(3, epoch))).expect("answered");
    assert_eq!((third.0, &third.2[..]), (Status::Ok, &b"2"[..]));
}

/// The first one of what a client asks may come last, so "done, and nothing changed" is no answer to the others.
#[test]
fn what_is_asked_again_and_changes_nothing_is_unknown_unless_it_is_an_error() {
    let mut world = World::keeping(3, 2);
    let clients = [1, 2, 3].map(|number| world.connect(number, 1 << 20));
    let (key, epoch) = object_and_epoch(&mut world, 1);
    let taken = asked(&mut world, clients[0], &lock(&key, own(1, epoch))).expect("answered");
    assert!(taken.0 == Status::Ok && contains(&taken.2, b"granted"), "{taken:?}");
    for client in clients {
        assert_eq!(asked(&mut world, client, &lock(&key, again(own(1, epoch)))).as_ref(), Some(&taken));
        let held = asked(&mut world, client, &lock(&key, again(own(2, epoch)))).expect("answered");
        assert_eq!(held.0, UNKNOWN, "the first try takes the lock if it comes when that is free");
    }
    let held = asked(&mut world, clients[1], &lock(&key, own(3, epoch))).expect("answered");
    assert!(held.0 == Status::Ok && !contains(&held.2, b"granted"), "{held:?}");
    let none = asked(&mut world, clients[2], &remove("none", again(own(4, epoch)))).expect("answered");
    assert_eq!(none.0, Status::Error(ErrorKind::NotFound), "of this try it is true");
}

#[test]
fn a_put_that_began_at_once_is_known_by_its_id() {
    let mut world = World::keeping(3, 2);
    let clients = [1, 2, 3].map(|number| world.connect(number, 1 << 20));
    let (key, epoch) = object_and_epoch(&mut world, 3);
    let first = asked(&mut world, clients[1], &put(&key, own(1, epoch), b"a")).expect("answered");
    assert_eq!(first.0, Status::Ok);
    let later = asked(&mut world, clients[1], &put(&key, own(2, epoch), b"b")).expect("answered");
    assert!(later.1 > first.1);
    for client in clients {
        for the_same in [own(1, epoch), again(own(1, epoch))] {
            let said = asked(&mut world, client, &put(&key, the_same, b"a")).expect("answered");
            assert_eq!((said.0, said.1), (first.0, first.1));
        }
    }
    // Under way at once at the node that decides, and by another.
    world.cut = true;
    for client in [clients[1], clients[0]] {
        assert_eq!(asked(&mut world, client, &put(&key, own(3, epoch), b"c")), None);
    }
    assert_eq!(world.machine(2).engine.service().cx.flights.puts_at_once(), 1);
    world.cut = false;
    world.pass(50);
    let [at_once, by_other] = [clients[1], clients[0]].map(|it| asked(&mut world, it, b"").expect("answered"));
    assert_eq!((at_once.0, at_once.1), (by_other.0, by_other.1));
    assert!(at_once.1 > later.1);
}

#[test]
fn a_node_that_decides_alone_does_what_is_new_and_does_not_know_what_is_asked_again() {
    let (mut world, clients) = herd(2);
    let shared = world.machine(2).shared.clone();
    let has = |key: &String| shared.store.seat(&shared.default, key.as_bytes()) == herd_store::Seat::Alone;
    let key = (0..).map(|at| format!("k{at}")).find(has).expect("it has some");
    let epoch = world.machine(1).map.clone().expect("it has one").epoch;
    for (at, client) in clients.iter().enumerate() {
        let at = at as u64;
        let said = asked(&mut world, *client, &count(&key, own(at, epoch))).expect("answered");
        assert_eq!((said.0, said.2), (Status::Ok, at.to_string().into_bytes()));
        let said = asked(&mut world, *client, &count(&key, again(own(at, epoch)))).expect("answered");
        assert_eq!(said.0, Status::Error(ErrorKind::OutcomeLost));
        let said = asked(&mut world, *client, &count(&key, own(at + 10, 0))).expect("answered");
        assert_eq!(said.0, Status::Error(ErrorKind::Timeout), "its group has changed since, and may know it");
        let ahead = RequestId { client: 99, sequence: stamp_at(2 * OWN_AHEAD_MAX_MS + (1 << 41)) };
        let said = asked(&mut world, *client, &count(&key, Own { id: ahead, ..own(0, epoch) })).expect("answered");
        assert_eq!(said.0, Status::Error(ErrorKind::Timeout), "it would make all others look old");
    }
    let said = asked(&mut world, clients[0], &count(&key, own(20, epoch))).expect("answered");
    assert_eq!(said.2, b"2", "what was refused was not done");
    // That holds when it is gone, too: no other node is worth asking.
    world.kill(2);
    world.pass(2 * LINK_SILENCE_MS);
    let told = |world: &mut World, own: Own| {
        let said = asked(world, clients[0], &count(&key, own));
        world.pass(2 * FLIGHT_MS);
        said.or_else(|| asked(world, clients[0], b"")).expect("answered").0
    };
    assert_eq!(told(&mut world, own(21, epoch)), Status::Error(ErrorKind::Unreachable));
    assert_eq!(told(&mut world, again(own(21, epoch))), Status::Error(ErrorKind::OutcomeLost));
    // Who has come to it as a copy of another's has kept ids since, and may be back.
    let mut map = world.machine(1).map.clone().expect("it has one");
    for others in [vec![Member { node: node(1), standing: Standing::Syncing, since: 0 }], Vec::new()] {
        let change = |draft: &mut Draft| {
            let its = draft.spreads[0].groups.iter_mut().filter(|group| group.primary == Some(node(2)));
            its.for_each(|group| group.others.clone_from(&others));
        };
        map = Arc::new(map.next(change).expect("valid"));
    }
    world.machine(1).push(&map, true);
    assert_eq!(told(&mut world, again(own(22, epoch))), UNKNOWN);
}
