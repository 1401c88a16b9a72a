//! Limits of the client, each with the reason for its number. Those of the wire are in `herd_core::limits`.

use herd_core::limits::{
    BLOCK_BYTES, NODE_ADDRESSES_MAX, NODES_MAX, WIRE_ARGUMENTS_MAX_BYTES, WIRE_FRAME_BODY_MAX_BYTES,
    WIRE_HEAD_MAX_BYTES,
};

/// Input buffer of one connection: a few blocks, so that a block cut by the end of one read is seldom and cheaply
/// moved, and the whole stays in a core's cache.
pub const INPUT_BYTES: usize = 4 * BLOCK_BYTES + INPUT_ROOM_BYTES;

/// The same as long as no read has filled it: answers of small objects take no more.
pub const INPUT_FIRST_BYTES: usize = 2 * INPUT_ROOM_BYTES;

/// Room behind what is unread in the input buffer, below which it is moved to the front: the head of any frame fits.
pub const INPUT_ROOM_BYTES: usize = 16 * 1024;

/// Bodies up to this are copied behind their head; a copy of a block costs less than keeping the caller's memory
/// borrowed until it is sent.
pub const COPIED_BODY_MAX_BYTES: usize = BLOCK_BYTES;

/// Frames of bodies that come from a stream: what was just read is still in the core's cache when it is sent. Measured:
/// a tenth less CPU than with frames of 1 MiB.
pub const STREAM_FRAME_BYTES: usize = 8 * BLOCK_BYTES;

/// A source that takes longer than this to fill a frame has what it gave sent in whole blocks: what it still has to say
/// may take longer than a node waits.
pub const SLOW_SOURCE_MS: u64 = 1_000;

/// Rounds of writing and reading after which the clock is read: at most 64 MiB, some ten ms.
pub const STEP_ROUNDS: usize = 64;

/// Output gathered by a pipeline before it is sent: one system call for some hundred requests.
pub const PIPELINE_OUTPUT_BYTES: usize = 64 * 1024;

/// Connections of one pipeline: to the node it began with, and to the owners of what it asks for.
pub const PIPELINE_LANES_MAX: usize = 64;

/// Names asked for in one page of a listing: at most about 1 MiB of names.
pub const LIST_PAGE: u32 = 1_000;

/// Idle connections kept for reuse: some threads, each to some owners of a herd. The one idle for longest goes first.
pub const IDLE_CONNECTIONS_MAX: usize = 64;

/// A connection that was idle for so long is closed when the next one becomes idle: it costs its node memory.
pub const IDLE_MAX_MS: u64 = 60_000;

/// Least time between two requests for the map. A client of an older map only has nodes hand its requests on.
pub const MAP_AGAIN_MS: u64 = 1_000;

/// Longest wait for the map, where a request waits for it at all: before a long body, or when a node knows a later one.
pub const MAP_WAIT_MS: u64 = 1_000;

/// Longest wait for a connection to the owner of an object, before another node is asked: a lost packet is sent again
/// after a second.
pub const OWNER_CONNECT_MS: u64 = 1_500;

/// How long each of several nodes has to take a connection before the next one is tried: longer than a round
/// trip to the other side of the earth. If none does, those that were silent are tried again, with their shares of the
/// time.
pub const QUICK_CONNECT_MS: u64 = 500;

/// How long an address that does not serve is left alone where there is another way.
pub const AVOID_MS: u64 = 30_000;

/// Nodes of the map that are tried besides those the client was given, where none of these answers.
pub const OTHERS_MAX: usize = 3;

/// Addresses a client knows at most, of all maps it has seen: those of the largest herd. Beyond them, the client asks
/// the nodes that it knows.
pub const ADDRESSES_MAX: usize = NODES_MAX * NODE_ADDRESSES_MAX;

/// A connection idle for longer is asked whether the node has closed it before it is used: no node restarts faster.
pub const IDLE_TRUSTED_MS: u64 = 10;

/// Tries of one request on connections that are lost under it.
pub const TRIES_MAX: u32 = 4;

/// How long an answer is waited for from a node that was just connected to, before what changes something is sent;
/// twice as long with each node that gave none. Over a connection that is there a lost packet is sent again after
/// 0.2 s, and if that is lost too, after 0.4 s.
pub const GREETING_MS: u64 = 600;

/// How often a change is asked for under another id, where a group does not know whether it was done under the first.
pub const IDS_MAX: u32 = 2;

/// How long a change is asked for again after a node has answered that its outcome is unknown: a take-over takes less.
pub const UNKNOWN_AGAIN_MS: u64 = 4_000;

/// First pause before a request that was refused as `busy` is sent again; each further one is twice as long.
pub const BUSY_PAUSE_MS: u64 = 10;

/// Longest single pause of that kind.
pub const BUSY_PAUSE_MAX_MS: u64 = 500;

/// Longest wait for a change of a lock that others hold before it is asked for again: what a change between the answer
/// and the wait can cost.
pub const LOCK_WAIT_ROUND_MS: u64 = 500;

/// Pause before a lock is asked for again where a wait ended sooner than that.
pub const LOCK_PAUSE_MS: u64 = 10;

/// Largest JSON document about the node or its collections: a thousand collections of some hundred bytes each.
pub const DOCUMENT_MAX_BYTES: u64 = 16 << 20;

const _: () = assert!(72 + WIRE_HEAD_MAX_BYTES + 4 * (WIRE_FRAME_BODY_MAX_BYTES / BLOCK_BYTES) <= INPUT_ROOM_BYTES);
const _: () = assert!(STREAM_FRAME_BYTES <= WIRE_FRAME_BODY_MAX_BYTES);
const _: () = assert!(WIRE_ARGUMENTS_MAX_BYTES <= COPIED_BODY_MAX_BYTES);
