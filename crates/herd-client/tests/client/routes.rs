//! A client that knows the map: its requests go straight to the owners, and whatever is wrong with the map, or with the
//! way to a node, no call fails for it.

use super::blocking::pattern;
use super::server::{KEY, Server};
use herd_client::blocking::Client;
use herd_client::{Condition, Config, ErrorKind, PutOptions, Range, Request, Spec};
use herd_core::key::{CollectionId, ObjectId};
use herd_core::place::{Collection, Draft, Group, Grows, HerdId, Kind, Map, Node, NodeId, NodeState};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

fn id(number: usize) -> NodeId {
    NodeId(NonZeroU32::new(number as u32).expect("nodes count from 1"))
}

/// The first map of a herd whose nodes, at these addresses, have one group each; slot s lies in group s modulo nodes.
fn map(addresses: &[String]) -> Map {
    let node = |at: usize| Node {
        id: id(at + 1),
        name: format!("n{at}"),
        addresses: vec![addresses[at].clone()],
        incarnation: 1,
        host: format!("h{at}"),
        rack: String::new(),
        memory_bytes: 1 << 30,
        state: NodeState::Up,
        protocol: 1,
    };
    let mut draft = Draft { nodes: (0..addresses.len()).map(node).collect(), ..Draft::empty(HerdId([7; 16])) };
    draft.add_spread(Kind::Kept, 1, Grows::ByItself).expect("there is room");
    let group = |at| Group { primary: Some(id(at + 1)), eligible: vec![id(at + 1)], ..Group::default() };
    draft.spreads[0].groups = (0..addresses.len()).map(group).collect();
    draft.spreads[0].slots.iter_mut().enumerate().for_each(|(s, group)| *group = (s % addresses.len()) as u16);
    let (id, name, spec) = (CollectionId::DEFAULT, "default".into(), Spec::of("ram:1"));
    draft.collections.push(Collection { id, name, spec, generation: 1 });
    Map::first(draft, 5).expect("a valid map")
}

fn names(servers: &[Server]) -> Vec<String> {
    servers.iter().map(Server::name).collect()
}

/// Three nodes, and the map they all go by.
fn herd() -> (Vec<Server>, Arc<Map>) {
    let servers = Server::start_herd(3);
    let map = Arc::new(map(&names(&servers)));
    tell(&servers, &map);
    (servers, map)
}

fn tell(servers: &[Server], map: &Arc<Map>) {
    servers.iter().zip(1..).for_each(|(server, me)| server.set_map(map, me));
}

/// The map in which all groups have the next node as their primary.
fn turned(map: &Map) -> Arc<Map> {
    let nodes = map.nodes.len();
    let next = |node: NodeId| id(node.0.get() as usize % nodes + 1);
    let change = |draft: &mut Draft| {
        for group in &mut draft.spreads[0].groups {
            group.primary = group.primary.map(next);
            group.eligible = group.primary.into_iter().collect();
        }
    };
    Arc::new(map.next(change).expect("valid"))
}

fn client(server: &Server) -> Client {
    Client::new(&server.name(), Config::default()).expect("an address")
}

fn sum(servers: &[Server], count: impl Fn(&super::server::Node) -> &AtomicUsize) -> usize {
    servers.iter().map(|server| count(&server.node).load(SeqCst)).sum()
}

fn put(client: &Client, name: &str) {
    client.put(name, name.as_bytes(), &PutOptions::default()).expect("put");
}

/// Puts until the map is known: it is asked for with the second, and has come when the connection was idle for a while.
fn warm(client: &Client) {
    for i in 0..4 {
        put(client, &format!("warm{i}"));
        std::thread::sleep(Duration::from_millis(30));
    }
}

/// All kinds of requests about one object.
fn work(client: &Client, name: &str) {
    let large = pattern(200_000);
    put(client, name);
    assert_eq!(client.get(name).expect("get").value, name.as_bytes());
    client.execute(name, "append", &["!"], Condition::None).expect("append");
    client.put_range(name, 0, b"X", &PutOptions::default()).expect("put");
    client.stat(name).expect("stat");
    client.put_from(name, &mut &large[..], None, &PutOptions::default()).expect("put");
    let mut out = Vec::new();
    client.get_to(name, Some(Range { offset: 5, length: None }), &mut out).expect("get");
    assert!(out == large[5..]);
    client.remove(name, Condition::None).expect("removed");
    assert_eq!(client.get(name).expect_err("it is gone").kind(), ErrorKind::NotFound);
}

#[test]
fn nothing_is_handed_on_where_the_map_is_known() {
    let (servers, _) = herd();
    let client = client(&servers[0]);
    warm(&client);
    assert!(sum(&servers, |node| &node.handed_on) <= 3, "what came before the map");
    let before = sum(&servers, |node| &node.handed_on);
    (0..40).for_each(|i| work(&client, &format!("name{i}")));
    assert_eq!(sum(&servers, |node| &node.handed_on), before);
    assert_eq!(sum(&servers, |node| &node.asks), 1, "the map is asked for once");
    assert_eq!(sum(&servers, |node| &node.accepted), 3, "one connection to each node serves all");
    assert!(servers.iter().all(|server| server.node.requests.load(SeqCst) > 50), "each has its share");
}

#[test]
fn a_node_that_is_alone_is_asked_for_nothing() {
    let server = Server::start();
    let client = client(&server);
    (0..5).for_each(|i| work(&client, &format!("name{i}")));
    assert_eq!((server.node.asks.load(SeqCst), server.node.requests.load(SeqCst)), (0, 45));
}

#[test]
fn what_is_about_a_node_or_a_collection_goes_to_a_node_that_was_given() {
    let (servers, _) = herd();
    let client = client(&servers[1]);
    warm(&client);
    let before = [0, 2].map(|at: usize| servers[at].node.requests.load(SeqCst));
    for _ in 0..4 {
        client.status().expect("status");
        assert!(client.list("default", "warm").next().expect("one").is_ok());
    }
    assert_eq!([0, 2].map(|at: usize| servers[at].node.requests.load(SeqCst)), before);
}

#[test]
fn a_new_map_is_asked_for_when_a_reply_tells_of_it_and_no_call_fails_meanwhile() {
    let (servers, mut map) = herd();
    let client = client(&servers[0]);
    warm(&client);
    for round in 2..4 {
        map = turned(&map);
        tell(&servers, &map);
        let begun = Instant::now();
        let mut handed_on = usize::MAX;
        for i in 0.. {
            let before = sum(&servers, |node| &node.handed_on);
            work(&client, &format!("name{i}"));
            handed_on = sum(&servers, |node| &node.handed_on) - before;
            if handed_on == 0 || begun.elapsed() > Duration::from_secs(5) {
                break;
            }
        }
        assert_eq!(handed_on, 0, "after {:?}", begun.elapsed());
        (0..20).for_each(|i| work(&client, &format!("again{i}")));
        assert_eq!(sum(&servers, |node| &node.asks), round, "once a second at most, and once for each map");
    }
}

#[test]
fn a_collection_that_is_not_in_the_map_has_it_asked_for() {
    let (servers, first) = herd();
    let client = client(&servers[0]);
    warm(&client);
    client.create_collection("new", &Spec::of("ram:1")).expect("created");
    put(&client, "new/x");
    // The id that a node for tests gives the first one.
    let (id, name, spec) = (CollectionId(10), "new".into(), Spec::of("ram:1"));
    let created = Collection { id, name, spec, generation: 1 };
    let change = |draft: &mut Draft| draft.collections.push(created);
    tell(&servers, &Arc::new(first.next(change).expect("valid")));
    std::thread::sleep(Duration::from_millis(1_100));
    (0..5).for_each(|i| put(&client, &format!("new/{i}")));
    let before = sum(&servers, |node| &node.handed_on);
    (0..20).for_each(|i| put(&client, &format!("new/{i}")));
    assert_eq!(sum(&servers, |node| &node.handed_on), before);
}

/// A name on whose object a node of the herd decides.
fn name_at(node: usize, nodes: usize) -> String {
    let slot = |name: &String| ObjectId::of(&KEY, CollectionId::DEFAULT, name.as_bytes()).slot();
    (0..).map(|i| format!("name{i}")).find(|name| slot(name) % nodes == node).expect("one of many")
}

#[test]
fn an_address_that_is_another_node_where_the_client_stands_gets_nothing() {
    let servers = Server::start_herd(2);
    let stranger = Server::start();
    let mut addresses = names(&servers);
    addresses[1] = stranger.name();
    tell(&servers, &Arc::new(map(&addresses)));
    let client = client(&servers[0]);
    warm(&client);
    let name = name_at(1, 2);
    let seen = stranger.node.refused.load(SeqCst);
    assert!(seen <= 1);
    work(&client, &name);
    (0..10).for_each(|i| work(&client, &format!("{name}{i}")));
    assert_eq!(stranger.node.requests.load(SeqCst), 0);
    assert_eq!(stranger.node.refused.load(SeqCst), 1, "it is left alone for a while");
}

#[test]
fn a_stream_to_an_address_that_is_another_node_is_not_lost() {
    let servers = Server::start_herd(2);
    let stranger = Server::start();
    let mut addresses = names(&servers);
    addresses[1] = stranger.name();
    let map = Arc::new(map(&addresses));
    tell(&servers, &map);
    let client = client(&servers[0]);
    // Both are of a node that can be reached.
    (0..3).for_each(|_| put(&client, &name_at(0, 2)));
    assert_eq!(stranger.node.refused.load(SeqCst), 0);
    let (name, large) = (name_at(1, 2), pattern(9 << 20));
    for length in [None, Some(large.len() as u64)] {
        client.put_from(&name, &mut &large[..], length, &PutOptions::default()).expect("put");
        assert!(client.get(&name).expect("get").value == large);
    }
    assert_eq!((stranger.node.refused.load(SeqCst), stranger.node.requests.load(SeqCst)), (1, 0));
}

#[test]
fn an_owner_that_is_gone_or_silent_costs_its_share_of_the_time_and_no_error() {
    let (mut servers, first) = herd();
    let client = client(&servers[0]);
    warm(&client);
    (0..3).for_each(|node| put(&client, &name_at(node, 3)));
    // It says nothing any more: a read leaves time for others.
    servers[2].node.faults.ignore.store(1, SeqCst);
    let begun = Instant::now();
    client.with_timeout(Duration::from_secs(2)).get(name_at(2, 3)).expect("another node has it handed on");
    assert!(begun.elapsed() < Duration::from_secs(2));
    // Nobody listens there any more.
    let mut addresses = names(&servers);
    let gone = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port").local_addr().expect("bound");
    addresses[1] = gone.to_string();
    let change = |draft: &mut Draft| draft.nodes[1].addresses = vec![addresses[1].clone()];
    tell(&servers, &Arc::new(first.next(change).expect("valid")));
    servers.remove(1);
    std::thread::sleep(Duration::from_millis(1_100));
    let begun = Instant::now();
    (0..20).for_each(|i| work(&client, &format!("name{i}")));
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
}

#[test]
fn where_the_node_that_was_given_goes_the_others_of_the_map_serve() {
    let (mut servers, _) = herd();
    let client = client(&servers[0]);
    warm(&client);
    let gone = servers.remove(0);
    gone.stop();
    std::thread::sleep(Duration::from_millis(30));
    (0..20).for_each(|i| work(&client, &format!("name{i}")));
    assert!(client.list("default", "warm").next().expect("one").is_ok());
    assert_eq!(client.status().expect_err("it is gone").kind(), ErrorKind::Unreachable);
}

#[test]
fn the_async_client_goes_to_the_owners_too() {
    let (servers, _) = herd();
    let client = herd_client::nonblocking::Client::new(&servers[0].name(), Config::default()).expect("an address");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        for i in 0..40 {
            let name = format!("name{i}");
            client.put(&name, b"x", &PutOptions::default()).await.expect("put");
            assert_eq!(client.get(&name).await.expect("get").value, b"x");
        }
    });
    assert!(sum(&servers, |node| &node.handed_on) <= 8, "of 80");
    assert_eq!(sum(&servers, |node| &node.asks), 1);
}

/// Sends so many puts ahead of their answers, in rounds, each to one of a few names; how many went wrong.
fn pipelined(client: &Client, rounds: usize) -> usize {
    let mut pipeline = client.pipeline().expect("connected");
    let names: Vec<String> = (0..10).map(|i| format!("name{i}")).collect();
    let mut failed = 0;
    for round in 0..rounds {
        let values: Vec<Vec<u8>> = (0..50).map(|i| format!("{round}.{i}").into_bytes()).collect();
        let send = |(i, value): (usize, &Vec<u8>)| {
            let request = Request::put(&names[i % 10], value, &PutOptions::default()).expect("valid");
            pipeline.send(&request).expect("sent")
        };
        let tickets: Vec<_> = values.iter().enumerate().map(send).collect();
        failed += tickets.into_iter().map(|ticket| pipeline.wait(ticket)).filter(Result::is_err).count();
        for (i, name) in names.iter().enumerate().filter(|_| failed == 0) {
            let request = Request::get(name).expect("valid");
            let ticket = pipeline.send(&request).expect("sent");
            let (_, value) = pipeline.wait(ticket).expect("get");
            assert_eq!(value, values[40 + i], "the last one sent is the last one done");
        }
    }
    failed
}

#[test]
fn a_pipeline_has_a_lane_to_each_owner_and_keeps_the_order_of_one_object() {
    let (servers, map) = herd();
    let client = client(&servers[0]);
    warm(&client);
    let before = sum(&servers, |node| &node.handed_on);
    assert_eq!(pipelined(&client, 5), 0);
    assert_eq!(sum(&servers, |node| &node.handed_on), before);
    assert_eq!(sum(&servers, |node| &node.accepted), 3, "idle connections serve it");
    tell(&servers, &turned(&map));
    assert_eq!(pipelined(&client, 5), 0);
    std::thread::sleep(Duration::from_millis(1_100));
    pipelined(&client, 2);
    let before = sum(&servers, |node| &node.handed_on);
    assert_eq!(pipelined(&client, 2), 0);
    assert_eq!(sum(&servers, |node| &node.handed_on), before, "it goes by the new map");
}

#[test]
fn a_pipeline_learns_the_map_while_it_is_used() {
    let (servers, _) = herd();
    let client = client(&servers[0]);
    let mut pipeline = client.pipeline().expect("connected");
    for i in 0..20 {
        let before = sum(&servers, |node| &node.handed_on);
        for j in 0..20 {
            let name = format!("name{i}.{j}");
            let ticket = pipeline.send(&Request::get(&name).expect("valid")).expect("sent");
            assert_eq!(pipeline.wait(ticket).expect_err("absent").kind(), ErrorKind::NotFound);
        }
        if sum(&servers, |node| &node.handed_on) == before {
            return;
        }
        std::thread::sleep(Duration::from_millis(30));
    }
    panic!("it never went straight to the owners");
}

#[test]
fn a_pipeline_sends_nothing_to_a_stranger_at_an_owners_address() {
    let servers = Server::start_herd(2);
    let stranger = Server::start();
    let addresses = [servers[0].name(), stranger.name()];
    tell(&servers, &Arc::new(map(&addresses)));
    let client = client(&servers[0]);
    (0..3).for_each(|_| put(&client, &name_at(0, 2)));
    std::thread::sleep(Duration::from_millis(30));
    put(&client, &name_at(0, 2));
    assert_eq!(pipelined(&client, 3), 0);
    assert_eq!((stranger.node.refused.load(SeqCst), stranger.node.requests.load(SeqCst)), (1, 0));
}

#[test]
fn a_client_that_is_not_to_be_routed_asks_the_nodes_it_was_given_alone() {
    let (servers, _) = herd();
    let config = Config { routed: false, ..Config::default() };
    let client = Client::new(&servers[0].name(), config).expect("an address");
    (0..10).for_each(|i| work(&client, &format!("name{i}")));
    assert_eq!((sum(&servers, |node| &node.asks), sum(&servers, |node| &node.accepted)), (0, 1));
}

#[test]
fn what_a_node_can_not_hand_on_goes_to_the_owner_by_the_map_it_knows() {
    let (servers, map) = herd();
    let client = client(&servers[0]);
    servers.iter().for_each(|server| server.node.cut_off.store(true, SeqCst));
    let (small, large) = (name_at(1, 3), name_at(2, 3));
    put(&client, &small);
    assert_eq!(sum(&servers, |node| &node.asks), 1);
    // The next map is not known to the client, and it was asked for just now.
    tell(&servers, &turned(&map));
    for name in [&small, &large] {
        work(&client, name);
    }
    assert_eq!(sum(&servers, |node| &node.asks), 2);
    let cold = super::routes::client(&servers[0]);
    let body = pattern(3 << 20);
    cold.put_from(&large, &mut &body[..], None, &PutOptions::default()).expect("put");
    assert!(cold.get(&large).expect("get").value == body);
}
