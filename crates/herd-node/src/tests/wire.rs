//! The wire.

use super::{frame, frames_of, request};
use crate::drive::World;
use herd_core::ErrorKind;
use herd_core::limits::{ERROR_TEXT_MAX_BYTES, NAME_MAX_BYTES, WIRE_HEAD_MAX_BYTES};
use herd_core::wire::{FLAG_RANGE, Fields, Header, Status, Verb};

/// Every way to be refused with one's own words, each of the greatest length the wire takes.
#[test]
fn an_error_is_told_however_long_the_words_it_quotes() {
    let mut world = World::new();
    let peer = world.connect();
    let long = "\u{65e5}".repeat(WIRE_HEAD_MAX_BYTES);
    let spec = |start: &str, end: &str, room: usize| {
        let mut text = format!("{start}{long}");
        text.truncate(text.floor_char_boundary(room - end.len()));
        text + end
    };
    // Two fields, each with tag and length, and the name of one byte.
    let room = WIRE_HEAD_MAX_BYTES - 2 * 3 - 1;
    let class = spec("{\"class\":\"", "\"}", room);
    let field = spec("{\"class\":\"cache\",\"", "\":1}", room);
    let control = format!("{{\"class\":\"{}\"}}", "\\u0000".repeat(1300));
    let (names, collection) = (vec![0xFF; NAME_MAX_BYTES], "c".repeat(255));
    let bad_name = "'".repeat(255);
    let named = |name: &'static str| Fields { collection: Some(name), ..Fields::default() };
    let cases = [
        (Verb::Create, Fields { spec: Some(&class), ..named("c") }),
        (Verb::Create, Fields { spec: Some(&field), ..named("c") }),
        (Verb::Create, Fields { spec: Some(&control), ..named("c") }),
        (
            Verb::Create,
            Fields { collection: Some(&bad_name), spec: Some("{\"class\":\"cache\"}"), ..Fields::default() },
        ),
        (Verb::Get, Fields::named(&names)),
        (Verb::Remove, Fields::named(&names)),
        (Verb::Get, Fields { collection: Some(&collection), ..Fields::named(&names) }),
        (Verb::List, Fields { collection: Some(&bad_name), ..Fields::default() }),
        (Verb::Destroy, Fields { collection: Some(&collection), ..Fields::default() }),
        (Verb::Execute, Fields { method: Some(&long[..8100]), ..Fields::default() }),
        (Verb::Put, Fields { attributes: Some(&[0xFF; 4096]), ..Fields::named(&names) }),
    ];
    for (verb, fields) in cases {
        let by_name = fields.collection.is_some();
        let header = if by_name { Header::request(verb, 1) } else { request(verb, 1) };
        let said = world.send(peer, &frame(header, &fields, &[]));
        let [reply] = frames_of(&said)[..] else { panic!("one reply") };
        assert!(matches!(reply.header().status(), Some(Status::Error(_))), "{verb:?}");
        let text = reply.fields().expect("fields").error.expect("a text");
        assert!(!text.is_empty() && text.len() <= ERROR_TEXT_MAX_BYTES, "{} bytes", text.len());
        assert!(!text.chars().any(char::is_control), "{text:?}");
    }
    let far = Header { offset: u64::MAX, length: 1, flags: FLAG_RANGE, ..request(Verb::Put, 2) };
    let said = world.send(peer, &frame(far, &Fields::named(b"n"), b"x"));
    assert_eq!(frames_of(&said)[0].header().status(), Some(Status::Error(ErrorKind::TooLarge)));
    assert!(!world.is_closed(peer));
}
