//! What a node answers, byte by byte, driven without sockets.

pub(crate) mod away;
mod http;
mod map;
mod memcached;
mod methods;
mod waits;
mod wire;

use crate::drive::{Peer, World};
use herd_core::key::CollectionId;
use herd_core::wire::{self as frames, Fields, Frame, Header, Verb};

/// A frame as bytes.
pub(crate) fn frame(header: Header, fields: &Fields<'_>, body: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    frames::encode_frame(&mut out, header, fields, body).expect("within the limits");
    out
}

pub(crate) fn request(verb: Verb, id: u64) -> Header {
    Header { collection: CollectionId::DEFAULT.0, ..Header::request(verb, id) }
}

/// The frames in `bytes`, all of them whole.
pub(crate) fn frames_of(mut bytes: &[u8]) -> Vec<Frame<'_>> {
    let mut all = Vec::new();
    while !bytes.is_empty() {
        let frame = frames::parse_frame(bytes).expect("a frame").expect("a whole one");
        bytes = &bytes[frame.bytes()..];
        all.push(frame);
    }
    all
}

/// Sends lines of text and gives the answer as text.
fn say(world: &mut World, peer: Peer, line: &str) -> String {
    String::from_utf8_lossy(&world.send(peer, line.as_bytes())).into_owned()
}
