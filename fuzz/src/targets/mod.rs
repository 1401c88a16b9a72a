//! The targets, and the table of them all.

pub mod attributes;
pub mod collection;
pub mod door_sniff;
pub mod http_chunked;
pub mod http_field;
pub mod http_head;
pub mod key;
pub mod memcached_delta;
pub mod memcached_line;
pub mod memcached_stream;
pub mod size;
pub mod wire_fields;
pub mod wire_frame;
pub mod wire_list;

use crate::Outcomes;

/// One target: a parser under test.
pub struct Target {
    /// Its name: its module's and its corpus directory's.
    pub name: &'static str,
    function: fn(&[u8]) -> Outcomes,
    outcomes: &'static [&'static [&'static str]],
    /// Words the driver splices in.
    pub dictionary: &'static [&'static [u8]],
}

impl Target {
    /// Runs it on one input; an outcome that is not in its list is a finding as a panic is.
    pub fn run(&self, input: &[u8]) -> Outcomes {
        let reached = (self.function)(input);
        for name in reached.names() {
            assert!(
                self.outcomes().any(|listed| listed == *name),
                "outcome {name:?} is not in the list of {}",
                self.name
            );
        }
        reached
    }

    /// Everything its corpus must reach.
    pub fn outcomes(&self) -> impl Iterator<Item = &'static str> {
        self.outcomes.iter().flat_map(|some| some.iter().copied())
    }

    /// The target with this name.
    pub fn named(name: &str) -> Option<&'static Target> {
        TARGETS.iter().find(|target| target.name == name)
    }
}

/// Makes the table from the names of the modules.
macro_rules! targets {
    ($($name:ident,)+) => {
        /// All targets.
        pub const TARGETS: &[Target] = &[$(Target {
            name: stringify!($name),
            function: $name::run,
            outcomes: $name::OUTCOMES,
            dictionary: $name::DICTIONARY,
        }),+];
    };
}

targets! {
    door_sniff,
    memcached_line,
    memcached_stream,
    memcached_delta,
    http_head,
    http_field,
    http_chunked,
    wire_frame,
    wire_fields,
    wire_list,
    attributes,
    collection,
    key,
    size,
}
