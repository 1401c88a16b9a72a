//! Whether the control store in a node's directory may be gone on with. Before its warden comes into office the nodes
//! that it knows are asked which map they have: one that went by an old copy would give numbers again that were given
//! since, and its node would be taken for what it was. And its own node may run elsewhere, from a copy of the
//! directory. Who does not answer in time is not waited for: all may have lost their power.

use super::join::{Talk, Tried, dial, others, strange, unexpected};
use crate::control::Home;
use crate::warden::BeginError;
use herd_core::limits::AHEAD_MS;
use herd_core::place::{Map, Node, NodeId};
use herd_core::wire::{
    Between, Fields, Header, Kind, MapMark, Meant, PROTOCOL_VERSION, Routes, VERB_MAP, encode_frame,
};
use std::net::SocketAddr;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

/// Nodes that are asked at most.
const ASKED_MAX: usize = 64;

/// Where a node is that begins with the store in its directory: what it listens at, and what others are told.
#[derive(Clone, Copy)]
pub(super) struct Begins<'a> {
    pub(super) listens: &'a [SocketAddr],
    pub(super) addresses: &'a [String],
}

/// An error if it is an old copy, or if its node runs. What can't be read is told by what opens it.
pub(super) fn check(place: &Path, me: Begins<'_>) -> Result<(), BeginError> {
    if !Home::is_used(place) {
        return Ok(());
    }
    match Home::open(place)?.map() {
        Some((map, own)) => ask_all(place, &map, own, me),
        None => Ok(()),
    }
}

fn ask_all(place: &Path, map: &Map, own: Option<NodeId>, me: Begins<'_>) -> Result<(), BeginError> {
    let until = Instant::now() + Duration::from_millis(AHEAD_MS);
    let asks = |node| ask(node, map, me, until);
    let told: Vec<(&Node, String, MapMark)> = thread::scope(|scope| {
        let asking = map.nodes.iter().take(ASKED_MAX).map(|node| {
            let thread = thread::Builder::new().name("ask".into());
            thread.spawn_scoped(scope, move || asks(node)).map(|asked| (node, asked))
        });
        let asking: Vec<_> = asking.flatten().collect();
        let heard = |asked: thread::ScopedJoinHandle<'_, _>| asked.join().ok().flatten();
        asking.into_iter().filter_map(|(node, asked)| heard(asked).map(|(at, mark)| (node, at, mark))).collect()
    });
    let path = || place.to_path_buf();
    for (node, address, theirs) in told {
        if Some(node.id) == own {
            return Err(BeginError::Runs { path: path(), address });
        }
        if (theirs.epoch, theirs.revision) > (map.epoch, map.revision) {
            return Err(BeginError::OldCopy { path: path(), address });
        }
    }
    Ok(())
}

/// Where a node answers, other than here, and which map it has. Where the own node was before, another process of it
/// may be.
fn ask(node: &Node, map: &Map, me: Begins<'_>, until: Instant) -> Option<(String, MapMark)> {
    let meant = Meant { herd: map.herd, node: node.id };
    let addresses = others(&node.addresses, me.listens, me.addresses, until).ok()?;
    addresses.into_iter().find_map(|at| {
        let mark = mark_at(&at, meant, MapMark::of(map, false), until).ok()?;
        Some((at, mark))
    })
}

/// Which map the node has that is meant, if that is who answers there.
fn mark_at(address: &str, meant: Meant, own: MapMark, until: Instant) -> Result<MapMark, Tried> {
    let mut talk = Talk::new(address, dial(address, until)?, until);
    let (mut out, meant) = (Vec::new(), meant.bytes());
    let hello = Fields {
        features: Some(0),
        highest_version: Some(PROTOCOL_VERSION),
        between: Some(Between::Meant(&meant)),
        ..Fields::default()
    };
    encode_frame(&mut out, Header::new(Kind::Hello), &hello, b"").map_err(strange)?;
    own.tell(&mut out, Header { verb: VERB_MAP, id: 1, ..Header::new(Kind::Request) });
    talk.say(&out)?;
    talk.hear(|frame, _| match frame.header().kind {
        Kind::Welcome => Ok(()),
        _ => Err(strange(unexpected())),
    })?;
    talk.hear(|frame, fields| match Routes::told(frame.header(), fields) {
        Ok(Some(routes)) if frame.header().kind == Kind::Reply => Ok(routes.mark),
        _ => Err(strange(unexpected())),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::away::herd;
    use herd_core::key::HashKey;
    use herd_core::wire::parse_frame;
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::sync::Arc;

    /// A node that answers who means it with this mark; without one it says nothing.
    fn node(number: u32, map: &Map, mark: Option<MapMark>) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address").to_string();
        let me = Meant { herd: map.herd, node: map.nodes[number as usize - 1].id };
        thread::spawn(move || {
            let (mut stream, mut input) = (listener.accept().expect("it comes").0, vec![0; 1024]);
            let len = stream.read(&mut input).expect("a hello");
            let hello = parse_frame(&input[..len]).expect("a frame").expect("it is whole");
            assert_eq!(Meant::told(&hello.fields().expect("good")), Ok(Some(me)));
            let asks = parse_frame(&input[hello.bytes()..len]).expect("a frame").expect("it is whole");
            let mut out = Vec::new();
            if let Some(mark) = mark {
                encode_frame(&mut out, Header::new(Kind::Welcome), &Fields::default(), b"").expect("it fits");
                let routes = Routes { mark, key: HashKey([7; 16]) };
                routes.encode(&mut out, asks.header(), b"").expect("it fits");
                stream.write_all(&out).expect("it is heard");
            }
            thread::sleep(Duration::from_millis(4 * AHEAD_MS));
        });
        address
    }

    /// What comes of a store beside nodes that are not there, say nothing, or have a map that is ahead of it by so many
    /// epochs and revisions.
    fn told(ahead_of: [Option<Option<(u32, u64)>>; 3]) -> Option<String> {
        let map = herd(3);
        let with = |addresses: &[String]| {
            let next = map.next(|draft| {
                let to = draft.nodes.iter_mut().zip(addresses);
                to.for_each(|(node, address)| node.addresses = vec![address.clone()]);
            });
            Arc::new(next.expect("valid"))
        };
        let mark = MapMark::of(&with(&["127.0.0.1:3".to_owned()]), true);
        let addresses = [1, 2, 3].map(|number| {
            let ahead = |(epochs, revisions)| MapMark {
                epoch: mark.epoch + epochs,
                revision: mark.revision + revisions,
                ..mark
            };
            // Nobody listens at port 1.
            let has = ahead_of[number as usize - 1];
            has.map_or_else(|| "127.0.0.1:1".to_owned(), |it| node(number, &map, it.map(ahead)))
        });
        let (map, place) = (with(&addresses), Path::new("dir"));
        let me = Begins { listens: &[], addresses: &["127.0.0.1:2".to_owned()] };
        let told = ask_all(place, &map, Some(map.nodes[0].id), me).err()?.to_string();
        Some(addresses.iter().enumerate().fold(told, |told, (at, it)| told.replace(it, &format!("n{}", at + 1))))
    }

    #[test]
    fn a_store_is_gone_on_with_unless_a_node_has_a_later_map_or_its_own_node_runs() {
        let same = Some(Some((0, 0)));
        assert_eq!(told([None, None, None]), None, "all have lost their power");
        assert_eq!(told([None, same, same]), None);
        for later in [(1, 0), (0, 1)] {
            let old = told([None, same, Some(Some(later))]).expect("it is told");
            assert!(old.contains("the node at n3 has a later map") && old.ends_with("the latest one"), "{old}");
        }
        let runs = told([same, same, None]).expect("it is told");
        assert!(runs.contains("a process of this node runs at n1"), "{runs}");
        let since = Instant::now();
        assert_eq!(told([None, Some(None), Some(None)]), None);
        assert!(since.elapsed() < Duration::from_millis(3 * AHEAD_MS), "who says nothing is not waited for");
    }
}
