//! Keys as users write them: collection, slash, name; and the place a name has.

use crate::Outcomes;
use herd_core::key::{CollectionId, HashKey, ObjectId, collection_name_is_valid, name_is_valid, split};
use herd_core::limits::{COLLECTION_NAME_MAX_BYTES, NAME_MAX_BYTES, SLOTS};

/// What the corpus reaches.
pub const OUTCOMES: &[&[&str]] = &[&[
    "collection given",
    "default collection",
    "collection not text",
    "collection refused",
    "collection too long",
    "collection valid",
    "name empty",
    "name too long",
    "name valid",
]];

/// Words of the driver.
pub const DICTIONARY: &[&[u8]] = &[b"/", b"//", b"default/", b".", b"..", b"a-b_c.d/", b"\0", b"\xFF"];

/// Runs the target.
pub fn run(input: &[u8]) -> Outcomes {
    let mut outcomes = Outcomes::default();
    let (collection, name) = split(input);
    if input.contains(&b'/') {
        assert_eq!([collection, b"/", name].concat(), input, "nothing is lost");
        assert!(!collection.contains(&b'/'), "the first slash counts");
        outcomes.add("collection given");
    } else {
        assert_eq!((collection, name), (&b"default"[..], input));
        outcomes.add("default collection");
    }
    outcomes.add(collection_outcome(collection));
    outcomes.add(match (name_is_valid(name), name.len()) {
        (false, 0) => "name empty",
        (false, length) => {
            assert!(length > NAME_MAX_BYTES, "any other name is valid");
            "name too long"
        }
        (true, _) => "name valid",
    });
    let key = HashKey([7; 16]);
    let id = ObjectId::of(&key, CollectionId::DEFAULT, name);
    assert!(id.slot() < SLOTS && id == ObjectId::of(&key, CollectionId::DEFAULT, name));
    outcomes
}

fn collection_outcome(collection: &[u8]) -> &'static str {
    let Ok(text) = std::str::from_utf8(collection) else { return "collection not text" };
    if !collection_name_is_valid(text) {
        let is_long = text.len() > COLLECTION_NAME_MAX_BYTES;
        return if is_long { "collection too long" } else { "collection refused" };
    }
    assert!((1..=COLLECTION_NAME_MAX_BYTES).contains(&text.len()) && !text.starts_with('.'));
    assert!(text.is_ascii() && !text.contains(['/', '\\', '%', ' ', '\n', '\0']), "fit for paths: {text:?}");
    "collection valid"
}
