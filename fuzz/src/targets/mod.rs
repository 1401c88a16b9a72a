//! The targets, and the table of them all.

pub mod attributes;
pub mod collection;
pub mod control_file;
pub mod door_sniff;
pub mod http_chunked;
pub mod http_field;
pub mod http_head;
pub mod key;
pub mod map;
pub mod memcached_delta;
pub mod memcached_line;
pub mod memcached_stream;
pub mod session_http;
pub mod session_memcached;
pub mod session_mixed;
pub mod session_wire;
pub mod size;
pub mod wire_fields;
pub mod wire_forward;
pub mod wire_frame;
pub mod wire_group;
pub mod wire_hello;
pub mod wire_join;
pub mod wire_list;
pub mod wire_map;
pub mod wire_obituary;

use crate::{Outcomes, session};

/// One target: a parser under test, or a node with its sessions.
pub struct Target {
    /// Its name: its module's and its corpus directory's.
    pub name: &'static str,
    function: fn(&[u8]) -> Outcomes,
    outcomes: &'static [&'static [&'static str]],
    /// Memory one run may take besides a multiple of its input, bytes.
    pub memory_max_bytes: usize,
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

/// Memory of a parser besides a multiple of its input.
const PARSER_BYTES: usize = 1 << 20;
/// Memory of a map, 16 spread groups of 4,096 slots and groups, several times.
const MAP_BYTES: usize = 64 << 20;
/// Memory of a session's run: each step may leave an answer with the largest object in what the clients keep; loops and
/// model have the rest. The store's arena is mapped, not allocated.
const SESSION_BYTES: usize = session::STEPS_MAX * session::OBJECT_MAX_BYTES + (32 << 20);

/// Makes the table from the names of the modules.
macro_rules! targets {
    ($($memory:ident { $($name:ident,)+ })+) => {
        /// All targets.
        pub const TARGETS: &[Target] = &[$($(Target {
            name: stringify!($name),
            function: $name::run,
            outcomes: $name::OUTCOMES,
            memory_max_bytes: $memory,
            dictionary: $name::DICTIONARY,
        }),+),+];
    };
}

targets! {
    PARSER_BYTES {
        door_sniff,
        memcached_line,
        memcached_stream,
        memcached_delta,
        http_head,
        http_field,
        http_chunked,
        wire_frame,
        wire_hello,
        wire_join,
        wire_map,
        wire_obituary,
        wire_group,
        wire_forward,
        wire_fields,
        wire_list,
        attributes,
        collection,
        control_file,
        key,
        size,
    }
    MAP_BYTES {
        map,
    }
    SESSION_BYTES {
        session_memcached,
        session_http,
        session_wire,
        session_mixed,
    }
}
