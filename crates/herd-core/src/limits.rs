//! Every limit of Herd in one place, each with the reason for its number.
//!
//! A breach of a limit is its own clear error at the edge; inside, types carry the proof.

/// One unit for checksums, flow-control credit, cache and re-sync.
pub const BLOCK_BYTES: usize = 64 * 1024;

/// Longest object name: long enough for paths and URLs, short enough to lie beside its value.
pub const NAME_MAX_BYTES: usize = 1024;

/// Longest collection name: one component of a URL path and of a file name.
pub const COLLECTION_NAME_MAX_BYTES: usize = 255;

/// Longest name of a node: it stands in each welcome and status.
pub const NODE_NAME_MAX_BYTES: usize = 255;

/// Most collections of one node: each costs a log page or two in each shard.
pub const COLLECTIONS_MAX: usize = 1024;

/// Collections of one node, those included that are gone and not all forgotten: of a map that has the most there may
/// be, each may have taken the place of another.
pub const COLLECTIONS_KEPT_MAX: usize = 2 * COLLECTIONS_MAX;

/// Attributes of one object, encoded.
pub const ATTRIBUTES_MAX_BYTES: usize = 4096;

/// Largest value that lies in the arena beside its key and is copied under the lock: copying 4 KiB takes about as
/// long as the lock costs to hand over; above it a reference to blocks is cheaper.
pub const INLINE_MAX_BYTES: usize = 4096;

/// Largest object unless the node is told otherwise.
pub const OBJECT_MAX_BYTES: u64 = 1 << 30;

/// Slots of a spread group, fixed for ever: where an object lies follows from them.
pub const SLOTS: usize = 4096;

/// memcached: longest key, as its protocol document has it.
pub const MEMCACHED_KEY_MAX_BYTES: usize = 250;

/// memcached: longest command line. A `get` may name thousands of keys; they are served as they arrive, so this
/// bounds one line, not a buffer.
pub const MEMCACHED_LINE_MAX_BYTES: usize = 256 * 1024;

/// memcached: bytes without a line end after which only a list of keys is still read; anything else is closed without
/// a word, as memcached does. No other command of memcached comes near it.
pub const MEMCACHED_COMMAND_MAX_BYTES: usize = 2048;

/// memcached: largest item unless the node is told otherwise, as memcached has it.
pub const MEMCACHED_VALUE_MAX_BYTES: u64 = 1 << 20;

/// Entries that a node looks at for one page of sums of its slots: half a millisecond.
pub const COMPARE_ENTRIES: usize = 4096;

/// A page of a slot's objects ends when it has so many bytes: with what one more stretch can bring it is a frame.
pub const COMPARE_PAGE_BYTES: usize = 128 * 1024;

/// Bytes of a name on such a page: enough to find the object by.
pub const COMPARE_NAME_BYTES: usize = 256;

/// HTTP: request line and headers together. Twice what browsers and proxies send at most in practice.
pub const HTTP_HEAD_MAX_BYTES: usize = 16 * 1024;

/// HTTP: header fields of one request.
pub const HTTP_HEADERS_MAX: usize = 64;

/// HTTP: the longest body that is dropped where its PUT is refused, so that the connection goes on: to receive it takes
/// no longer than to connect anew.
pub const HTTP_DROPPED_MAX_BYTES: usize = 64 * 1024;

/// HTTP: longest line that announces a chunk: 16 digits and room for the few extensions proxies add; it is read and
/// dropped, so a longer one only costs work.
pub const HTTP_CHUNK_LINE_MAX_BYTES: usize = 256;

/// Wire: head section of a frame: a name, attributes and some fields.
pub const WIRE_HEAD_MAX_BYTES: usize = 8192;

/// Text of an error as the wire tells it: some lines of a terminal. What is longer is cut.
pub const ERROR_TEXT_MAX_BYTES: usize = 512;

/// Bytes of a client's own words that an error quotes: enough to find them again.
pub const QUOTE_MAX_BYTES: usize = 40;

/// Wire: body bytes of one frame, so that a frame never holds up others for long.
pub const WIRE_FRAME_BODY_MAX_BYTES: usize = 1 << 20;

/// Wire: what a node says of itself when a link opens: those of later versions may say four times as much as today's.
pub const WIRE_PEER_MAX_BYTES: usize = 256;

/// Wire: what a node says of itself that wants in: name, host, rack and addresses of the greatest length, and as much
/// again for later versions.
pub const WIRE_JOIN_MAX_BYTES: usize = 6144;

/// Wire: arguments of a method: they are taken when they are wholly there, so a connection holds them meanwhile.
pub const WIRE_ARGUMENTS_MAX_BYTES: usize = 48 * 1024;

/// Wire: bytes of one body that may be under way without credit.
pub const WIRE_FIRST_CREDIT_BYTES: u64 = 4 << 20;

/// Wire: requests open on one connection; beyond it the answer is `busy`.
pub const WIRE_OPEN_REQUESTS_MAX: usize = 1024;

/// Link: requests that one end has asked, and that the other has taken and not answered; beyond it the answer is
/// `busy`. A loop serves some hundred thousand a second, so that these are some 50 ms of work.
pub const LINK_OPS_MAX: usize = 8192;

/// Link: bytes that wait to be sent beyond which nothing is taken or asked that may be refused: what 10 Gbit/s
/// carry in 50 ms.
pub const LINK_BYTES_MAX: u64 = 64 << 20;

/// Link: what waits to be sent over one takes at most one part in so many of the node's memory, before what would add
/// to it has to wait: a node that stands still holds up what goes to it, and not the memory of others.
pub const LINK_PART: u64 = 32;

/// Link: what may wait to be sent whatever the memory: the largest frame, and another one meanwhile.
pub const LINK_ROOM_MIN_BYTES: u64 = 2 << 20;

/// Link: how often each end lets the other one hear from it.
pub const LINK_BEAT_MS: u64 = 200;

/// A node that does not answer the dialing of a link, and its hello, for so long is dialed anew: a lost packet is sent
/// again after 1 s.
pub const DIAL_TIMEOUT_MS: u64 = 2_000;

/// Link: silence after which it is taken to be lost: ten beats. No loop is busy for so long, and whoever waits for an
/// answer over a link that was cut is told well before its own 10 s are over.
pub const LINK_SILENCE_MS: u64 = 2_000;

/// Link: bytes that wait to be sent beyond which it is closed: what may be owed ([`LINK_BYTES_MAX`]), a map, and as
/// many refusals as an end may have requests open. An end that asks more, and reads nothing, breaks the protocol.
pub const LINK_UNSENT_MAX_BYTES: u64 = LINK_BYTES_MAX + MAP_MAX_BYTES as u64 + (8 << 20);

/// How soon a link that was lost is dialed again: a node is started anew within some 100 ms.
pub const LINK_REDIAL_MS: u64 = 50;

/// How long at most, and how long one that was refused rests: each costs the other node some 10 us.
pub const LINK_REDIAL_MAX_MS: u64 = 1_000;

/// A map that was sent and not taken is sent whole after this: meanwhile the receiver may just be at work on it.
pub const MAP_AGAIN_MS: u64 = 1_000;

/// How soon a machine's name that was not found is looked up again: a new machine's is known after some seconds.
pub const NAMES_RETRY_MS: u64 = 1_000;

/// How often names that are known are looked up: machines move, and resolvers keep what they know about as long.
pub const NAMES_AGAIN_MS: u64 = 30_000;

/// Names in one page of a listing.
pub const LIST_PAGE_MAX: u32 = 10_000;

/// A page of a listing ends once it has so many bytes: it is made at once, in the connection's buffer.
pub const LIST_PAGE_HIGH_BYTES: usize = OUTPUT_HIGH_BYTES;

/// Names of a page that are looked up at once.
pub const LIST_STEP: usize = 256;

/// Names in one page of a listing where the client asks for no number: some 100 KiB of JSON.
pub const LIST_PAGE_DEFAULT: u32 = 1_000;

/// A connection that has sent nothing that tells its protocol, or no whole HTTP head, is closed after this and before
/// 5 s are over.
pub const SNIFF_TIMEOUT_MS: u64 = 4_500;

/// A request whose bytes stopped arriving, or a reply nobody reads, is given up after this.
pub const STALLED_TIMEOUT_MS: u64 = 30_000;

/// How long a connection that was closed by us is read on, so that our last reply is not lost to a reset.
pub const LINGER_MS: u64 = 2_000;

/// A connection that is silent for this long is asked whether its peer lives: idle clients may stay for ever, dead ones
/// must not. With the two limits below a peer that is gone without a word is closed within 2 minutes.
pub const KEEPALIVE_IDLE_S: u64 = 60;

/// How long an answer to such a question is waited for before the next.
pub const KEEPALIVE_INTERVAL_S: u64 = 15;

/// Questions without an answer until the peer counts as dead.
pub const KEEPALIVE_PROBES: u32 = 4;

/// Replies built before the connection must take some: bounds memory of one pipelining client.
pub const OUTPUT_HIGH_BYTES: usize = 128 * 1024;

/// Steps in which the buffers of a connection count in the node's memory: a connection costs about so much anyway, and
/// a request that happens to be cut in two is not worth a count.
pub const HELD_STEP_BYTES: usize = 8 * 1024;

/// The part of the node's memory, one in so many bytes, that buffers of connections may take: clients that do not read
/// must not be able to push all objects out.
pub const HELD_PART: u64 = 4;

/// Bytes of a body moved in one turn while other connections are waiting: about 10 us of copying. A byte of requests
/// counts as [`TURN_REQUEST_COSTS`] of a body.
pub const TURN_SMALL_BYTES: usize = BLOCK_BYTES;

/// The same while nobody waits.
pub const TURN_LARGE_BYTES: usize = 1 << 20;

/// A byte of requests takes as long as so many of a body, about: puts of 64 bytes some 1 us each.
pub const TURN_REQUEST_COSTS: usize = 16;

/// Deferred replies (waits) of one connection.
pub const DEFERRED_MAX: usize = 1024;

/// Longest wait for a newer version; longer ones are cut. Clients ask again; what they forgot is not kept for ever.
pub const WAIT_MAX_MS: u64 = 60 * 60 * 1000;

/// Memory a wait is charged besides its name twice: the request, its places in three tables, and their growth.
pub const WAIT_BYTES: u64 = 768;

/// All waits of a node hold at most one part in so many of its memory: the rest is for objects.
pub const WAITS_SHARE: u64 = 8;

/// Names in one page of a listing by the wire: names of the longest kind still fit one frame.
pub const WIRE_LIST_PAGE_MAX: u32 = 1_000;

/// How often a loop looks at deadlines and does its upkeep.
pub const TICK_MS: u64 = 250;

/// How long a graceful stop may take, with the time in which it hands over what it leads: with what follows it, it is
/// done within 5 s.
pub const STOP_MS: u64 = 4_000;

/// Connections of one node unless descriptors run out first.
pub const CONNECTIONS_MAX: u64 = 65_536;

/// Bytes of a list: it is one object, rewritten by each change, and its answers fit one frame of the wire.
pub const LIST_MAX_BYTES: u64 = 1 << 20;

/// Holders of one shared lock; with labels of full length some 84 KiB, rewritten by each change.
pub const LOCK_HOLDERS_MAX: usize = 1024;

/// Label of a lock's holder: a host name and a process.
pub const LOCK_LABEL_MAX_BYTES: usize = 64;

/// How long a removed object remembers the highest token it was shown: longer than anybody is paused and goes on.
pub const LEFT_FENCE_MS: u64 = 3600 * 1000;

/// Names without an object that remember a token take at most one part in so many of the memory, beyond which the
/// oldest is forgotten; each costs some 200 bytes and twice the name.
pub const LEFT_FENCES_PART: u64 = 64;

/// Largest value that a method makes: it is rewritten by each change, while its loop serves nobody else.
pub const METHOD_VALUE_MAX_BYTES: u64 = 1 << 20;

/// Shortest lease of a lock: below it a renewal could not be relied upon to come in time.
pub const LOCK_LEASE_MIN_MS: u64 = 100;

/// Longest lease of a lock: nobody should have to wait longer for a holder that is gone.
pub const LOCK_LEASE_MAX_MS: u64 = 24 * 3600 * 1000;

/// Requests a group remembers: at 100,000 writes a second on 64 groups those of the last 10 s. To look for one that is
/// asked again takes some 10 us.
pub const WINDOW_REQUESTS_MAX: usize = 16_384;

/// Clients that make ids themselves of which a group remembers the last request; one that asks several things at once
/// counts as several.
pub const WINDOW_LASTS_MAX: usize = 16_384;

/// Clients (loops of nodes) of which a group knows up to where it forgot their requests: more than most herds have, and
/// some 6 KiB.
pub const WINDOW_CLIENTS_MAX: usize = 256;

/// How long a client that is forgotten itself may still ask something again, ms: far longer than any deadline.
pub const WINDOW_CLIENT_MS: u64 = 3600 * 1000;

/// How far the stamp of a request's own id may be ahead of a node's clock, ms: what is further ahead would make the
/// stamps of all others look as if they had been forgotten, for as long.
pub const OWN_AHEAD_MAX_MS: u64 = 300 * 1000;

/// A result up to here is kept for a retry: counters, versions, short values. A group's window is then at most some
/// 10 MiB.
pub const WINDOW_RESULT_MAX_BYTES: usize = 256;

/// Requests that one write answers, as they stand in its message, with their results: with a name and attributes of the
/// greatest length they still fit one head. These are some 80 of short results, or 10 of the longest.
pub const GROUP_ANSWERS_MAX_BYTES: usize = 2816;

/// How often a request is handed on: to the node that the map names, and to others where the map has changed meanwhile.
pub const FORWARD_HOPS_MAX: u8 = 4;

/// How long a request that is handed on may take where its client says nothing: as long as clients wait.
pub const FLIGHT_MS: u64 = 10_000;

/// A value that goes on to another node while it comes, and of which no more comes for so long, is given up: some time
/// before the connection that stalls is closed, so that its client is told.
pub const BODY_STALL_MS: u64 = STALLED_TIMEOUT_MS - 5_000;

/// Bytes of such a value for each of which the node that decides on it has a millisecond more, copies included: three
/// of them fit 1 Gbit/s.
pub const FLIGHT_BYTES_A_MS: u64 = 8 * 1024;

/// Bytes of the pieces in which such a value is held: as much as is read at once.
pub const INTAKE_PIECE_BYTES: u64 = 256 * 1024;

/// Without a link for so long, what was never sent fails: a link that was lost is there again within some 100 ms.
pub const FLIGHT_LINK_MS: u64 = 1_000;

/// How soon it is looked again whether there is a link, or a later map: about as long as a link takes to be made.
pub const FLIGHT_AGAIN_MS: u64 = 10;

/// memcached: keys of one line that are asked for together, where other nodes have some: some 100 KiB of requests.
pub const FLIGHT_KEYS_MAX: usize = 256;

/// Operations that one part of a replica group has in line and under way, and prepares on one link that are not
/// settled; beyond it the answer is `busy`. Links never refuse what replicas say to each other, so the primary bounds
/// it: as many as one link takes of other requests.
pub const PART_OPS_MAX: usize = LINK_OPS_MAX;

/// Bytes of the changes that one part has under way; beyond it the answer is `busy`. What 10 Gbit/s carry in some
/// 12 ms: several groups share the links of two nodes. A change counts for half of it at most, so that one of any size
/// keeps no small ones out.
pub const PART_BYTES_MAX: u64 = LINK_BYTES_MAX / 4;

/// Bytes of a long value that a member of a replica group is sent before it has told what has come: what 10 Gbit/s
/// carry in some 0.8 ms, and all that one group has a link hold of a value: many groups do at once while a member
/// stands still.
pub const GROUP_AHEAD_BYTES: u64 = 1 << 20;

/// While a node serves clients, all copies that are made from it together are on their way in one part of the time in
/// so many, counted by blocks of [`BLOCK_BYTES`]: each rests in between, so that what clients ask for finds the way
/// free. What is shorter than a block counts for as much less: it holds nothing up.
pub const COPY_BUSY_PART: u64 = 4;

/// A copy rests for so long at most, and no entry counts as if it had taken longer. Where many copies are made from one
/// node each may rest for so long once more for every [`COPY_REST_COPIES`] of them.
pub const COPY_REST_MAX_MS: u64 = 250;

/// See [`COPY_REST_MAX_MS`]: so many copies take turns within one such rest on links of 100 Mbit/s.
pub const COPY_REST_COPIES: u64 = 8;

/// A node serves clients if one of them was answered so long ago at most.
pub const COPY_BUSY_MS: u64 = 100;

/// How long a member may be without a link before its group's writes are refused at once. Shorter losses are waited
/// out: a link that broke is made anew within this.
pub const GROUP_LINK_PATIENCE_MS: u64 = 1_000;

/// How often the primary of a group looks for operations whose time in line is over, at most and at least, while it has
/// any: a look goes through all its lines.
pub const GROUP_LATE_MIN_MS: u64 = 50;

/// See [`GROUP_LATE_MIN_MS`].
pub const GROUP_LATE_MAX_MS: u64 = 1_000;

/// An operation that stands in line ends before its time is over, by one part in so many of it: who asked is then told
/// that nothing was done, and not that nobody knows.
pub const GROUP_LINE_PART: u64 = 16;

/// How long what is committed waits to be told to a member, for a message that goes there anyway.
pub const GROUP_SETTLE_MS: u64 = 4;

/// How often the primary of a group looks for objects whose time is over; until it has found one nobody else does.
pub const GROUP_SWEEP_MS: u64 = TICK_MS;

/// Entries that a group's upkeep looks at in one turn, of any group: some 0.5 ms.
pub const GROUP_TURN_ENTRIES: usize = 4096;

/// Answered requests of a node's groups take at most one part in so many of its memory, and of that each group its
/// share of the slots; each request of a node costs 32 bytes, that of another client some 90, and what it was answered.
pub const WINDOWS_PART: u64 = 32;

/// Prepared writes in one message that tells them: with names of the longest kind half of what a frame takes.
pub const ADOPTED_PENDING_MAX: usize = 512;

/// Map epochs end here: they are the high 24 bits of versions. At one change a second it takes half a year; changes
/// are joins, deaths and moves.
pub const MAP_EPOCHS_END: u32 = 1 << 24;

/// Nodes of a herd: four slots a node in each spread group, below which shares grow coarse.
pub const NODES_MAX: usize = 1024;

/// Spread groups of a herd, numbered from 0: one for each way to keep copies; a node keeps 24 KiB of tables for each,
/// and 64 KiB of what it knows of its slots.
pub const SPREADS_MAX: usize = 16;

/// Copies a spread group may keep, as the classes `ram:9` and `log:9` have it.
pub const COPIES_MAX: u8 = 9;

/// Copies that nodes of this version can keep, whatever the formats have room for.
pub const COPIES_BUILT: u8 = 3;

/// Members of one replica group: all copies, and some more that are on their way in while others leave.
pub const GROUP_MEMBERS_MAX: usize = 16;

/// Times that an operator gave up what groups held, of which the map tells: the latest ones.
pub const GIVEN_UP_MAX: usize = 16;

/// Groups that operators have put on nodes, of which the map tells.
pub const PLACED_MAX: usize = 256;

/// Addresses of one node: some networks, and a local socket.
pub const NODE_ADDRESSES_MAX: usize = 8;

/// Name, address or label in a map: its length is one byte.
pub const MAP_TEXT_MAX_BYTES: usize = 255;

/// A collection's specification as JSON; those of today take some 80 bytes.
pub const SPEC_MAX_BYTES: usize = 1024;

/// Bytes of a map: with every limit above reached it takes some 18 MiB; one of 100 nodes takes some 50 KiB.
pub const MAP_MAX_BYTES: usize = 32 << 20;

/// Key of the control store, or name of a candidate for the office of warden: its length is one byte.
pub const CONTROL_KEY_MAX_BYTES: usize = 255;

/// Value of the control store. Maps are cut into such parts; etcd takes 1.5 MiB a request, and is best with little.
pub const CONTROL_VALUE_MAX_BYTES: usize = 64 * 1024;

/// Comparisons and writes of one transaction of the control store: etcd takes 128 of each unless it is told otherwise,
/// and one of the comparisons is that of the term.
pub const CONTROL_TXN_STEPS_MAX: usize = 127;

/// Keys and values of one transaction, each step with 8 bytes more: below etcd's 1.5 MiB a request.
pub const CONTROL_TXN_MAX_BYTES: usize = 1 << 20;

/// A page of a range, or of changes, ends once it has so many bytes: a reply of etcd's that clients take is 4 MiB.
pub const CONTROL_PAGE_BYTES: usize = 1 << 20;

/// Changes that an embedded control store keeps for those who watch: who falls further behind reads all anew.
pub const CONTROL_HISTORY_BYTES: usize = 4 << 20;

/// All that a control store holds: two maps of the largest size, of which one is just being replaced, and the nodes.
pub const CONTROL_MAX_BYTES: usize = 96 << 20;

/// An embedded control store's file is written anew once its log has so many bytes, and as many as what it holds.
pub const CONTROL_LOG_BYTES: u64 = 4 << 20;

/// The file of an embedded control store: what it holds, as much log, and room for their frames.
pub const CONTROL_FILE_MAX_BYTES: u64 = 256 << 20;

/// The file in which a node keeps where the nodes of its herd are: some addresses of each.
pub const KNOWN_MAX_BYTES: u64 = 4 << 20;

/// How long a control store that is to move waits until nothing is under way in it: what is waited for longest there,
/// that all nodes have heard of a flush, and some more.
pub const MOVE_CALM_MS: u64 = WARDEN_GONE_MS + 1_000;

/// How long such a store waits for a map that says who has died: where it takes none, as on a full disk, it goes
/// without.
pub const MOVE_UNBURIED_MS: u64 = 1_000;

/// How long a node has to keep the copy of a control store: as long as a disk takes for some MiB when it is busy.
pub const MOVE_PREPARE_MS: u64 = 3_000;

/// How long a node is waited for that is to begin with a control store, before the one who asked for it is told that it
/// does so later.
pub const MOVE_BEGIN_MS: u64 = 2_500;

/// How soon it is told again.
pub const MOVE_AGAIN_MS: u64 = 200;

/// How long a request goes after a warden that moves, or is only coming into office.
pub const ELSEWHERE_MS: u64 = 5_000;

/// How long an endpoint of etcd is dialed: a lost packet of a handshake would come again after a second. A node that
/// stops waits a second for its warden, which may be dialing, and then leaves its office ([`ETCD_HALT_MS`]).
pub const ETCD_DIAL_MS: u64 = 600;

/// How long a call to a control store in etcd takes in all: below the lease of the office by more than the next try
/// takes. etcd answers within some ms, and within a second or two while it chooses a leader.
pub const ETCD_CALL_MS: u64 = 3_000;

/// How long one endpoint of several is waited for by a call that can be made again at the next.
pub const ETCD_TRY_MS: u64 = 1_000;

/// How long a call is waited for once the node is to stop: one that is under way, and then the one that leaves the
/// office.
pub const ETCD_HALT_MS: u64 = 300;

/// How long all that a store in etcd holds may take to be read: [`CONTROL_MAX_BYTES`] at some 10 MB a second.
pub const ETCD_SNAPSHOT_MS: u64 = 15_000;

/// Entries that are asked of etcd at once: at most 4 MiB, which are 5.5 MiB in base64.
pub const ETCD_PAGE_ENTRIES: usize = 64;

/// Bytes of an answer of etcd's: a page as above, or as many changes as etcd tells at once, and room.
pub const ETCD_ANSWER_MAX_BYTES: usize = 16 << 20;

/// Keys, changes or answers in one answer of etcd's: it tells at most 1.5 MiB of changes at once, of 30 bytes or more
/// each. An empty one takes 3 bytes of an answer, and some 100 of memory.
pub const ETCD_ITEMS_MAX: usize = 1 << 16;

/// What is shown of a text of etcd's: its own have some 100 characters.
pub const ETCD_TEXT_CHARS: usize = 300;

/// Endpoints of one etcd: it is of 3 or 5, rarely 7 members.
pub const ETCD_ENDPOINTS_MAX: usize = 16;

/// How long a node that starts waits for etcd: they may be started together.
pub const ETCD_START_MS: u64 = 10_000;

/// How long a node that starts waits for the office of warden: its own life before may hold it for as long as a lease
/// takes and two seconds more.
pub const OFFICE_PATIENCE_MS: u64 = OFFICE_LEASE_MS + 3_000;

/// What a node keeps of itself: some 120 bytes of JSON.
pub const NODE_RECORD_MAX_BYTES: u64 = 4096;

/// How long a warden holds its office after it was last heard of; etcd counts in seconds.
pub const OFFICE_LEASE_MS: u64 = 5_000;

/// How often a warden renews its office, and how soon it asks a control store again that did not answer.
pub const OFFICE_RENEW_MS: u64 = 1_000;

/// How long the lease of a node is taken to last, by the warden; its holder uses half of it (`lease`). Ten beats: a
/// node that is taken out while it lives costs a copy of all that it has.
pub const LEASE_MS: u64 = 2_000;

/// Objects that expire sooner than this, by the clock of a backup, are read at their primary alone, ms: so far the
/// clocks of nodes may be apart. Source: our own choice.
pub const COPY_EXPIRY_MS: u64 = 10_000;

/// How long a node's lease of groups of class `cache` is taken to last, by the warden; its holder uses half of it. It
/// is long, as there is no other member who could be asked: while a warden's node is started again they are served on.
pub const CACHE_LEASE_MS: u64 = 10_000;

/// How long the warden's node may not have beaten itself before it is taken to have stood still, so that it judges
/// nobody: three beats.
pub const LEASE_STEADY_MS: u64 = 600;

/// How often the warden has the store say that it is in office still: a few times while it may grant by one answer.
pub const OFFICE_SURE_MS: u64 = 300;

/// Requests that may wait for the warden, and besides as many that wait for nodes to have a map: some of each node.
pub const WARDEN_ASKS_MAX: usize = 4 * NODES_MAX;

/// Requests that the warden makes one write of: each costs some 100 us, a join with 1,000 nodes some 30 ms for each
/// spread group, and all together should take less than the office lasts.
pub const WARDEN_BATCH_MAX: usize = 16;

/// How long a request waits for all nodes to have a map: as long as clients wait for what has no deadline of its own.
pub const WARDEN_PATIENCE_MS: u64 = 10_000;

/// How long the answer that objects are gone waits for all nodes to know it, before it names those that do not. Maps
/// reach nodes within some 10 ms; people are told within 3 s.
pub const WARDEN_GONE_MS: u64 = 2_500;

/// How long the answer that a collection is there waits for all nodes to know it. Maps reach nodes within some 10 ms.
pub const WARDEN_SEEN_MS: u64 = 2_000;

/// How long a control store does not answer before what waits for it is refused: an etcd that loses its leader has
/// another within some 2 s.
pub const WARDEN_UNHEARD_MS: u64 = 2_500;

/// How long a warden that has come into office takes a node for late that it does not hear, before it is gone: links
/// are made within some 100 ms, and nodes that are started together with the warden's join within a second or two.
pub const WARDEN_HEARS_MS: u64 = 3_000;

/// How long a drained node that is silent may be but paused, or cut off, before it is forgotten. One whose process is
/// known to have ended, and that kept nothing any more, is forgotten at once.
pub const FORGET_AFTER_MS: u64 = 60_000;

/// How often a node asks those of higher numbers to which it has no link, which dial it and not the other way round,
/// whether the herd goes on without it, or has not heard where it is: seldomer than they dial it. It begins once they
/// had the time to dial it themselves.
pub const ASK_AROUND_MS: u64 = 3 * LINK_REDIAL_MAX_MS;

/// How long a link that the node of the lower number dialed lasts at most: so long has the map to come that tells where
/// that node is. It joins one loop to one, and nothing else may come to depend on it.
pub const LINK_ASKED_MAX_MS: u64 = 5_000;

/// How long a process that the herd goes on without, as other nodes say, and that has no link to any, waits for that to
/// change before it ends.
pub const OUTCAST_AFTER_MS: u64 = 5_000;

/// How long a node that was to drain, and whose process ended before it had given all away, may be started again and go
/// on draining, before it is forgotten.
pub const FORGET_DEAD_AFTER_MS: u64 = REPAIR_AFTER_MS;

/// How long a group keeps fewer copies than it should before another node is asked to keep one: one that is only
/// started anew is there again by then, and one that had no room may have some.
pub const REPAIR_AFTER_MS: u64 = 10_000;

/// How long at most a node that could not keep a copy is not asked to keep one again: it is asked ever later.
pub const REPAIR_AGAIN_MAX_MS: u64 = 3_600_000;

/// How long the warden leaves out what makes no valid map, before it tries that again: each step of it is tried alone
/// then, which costs as much as a change of the map.
pub const TEND_AGAIN_MS: u64 = 1_000;

/// How long the map is the same before the lead of groups is shared out again: what makes it change comes in a row.
pub const BALANCE_CALM_MS: u64 = 3_000;

/// Groups whose lead goes to another member with one map: each takes no write for some ms.
pub const BALANCE_MOVES_MAX: usize = 64;

/// Copies of groups that are made at one node at a time where members move: two, so that the next is under way while
/// one is being seated; what clients ask of that node stands behind one object of each at most.
pub const MOVES_AT_ONCE: usize = 2;

/// What primaries want, in one request: in JSON at most 60 bytes each, in a field of 1 KiB.
pub const WANTS_MAX: usize = 16;

/// Groups whose wants wait for the warden's thread: more than herds have, in some MB.
pub const WANTED_MAX: usize = 1 << 16;

/// How often the warden looks at its clock.
pub const WARDEN_TICK_MS: u64 = 100;

/// How long a node that stops waits for its warden: a call to a sound disk takes some ms.
pub const WARDEN_STOP_MS: u64 = 1_000;

/// How long the warden waits for others to have the map by which they lead what a node led that is about to end: two
/// maps, each of which reaches nodes within some 10 ms, on a busy machine some 100.
pub const WARDEN_LEAVE_MS: u64 = 800;

/// How long the warden believes that a node is about to end. One that lives on gets its copies back then.
pub const WARDEN_LEFT_MS: u64 = 10_000;

/// How long a node that was told to stop goes on serving at most, for others to lead what it leads. It counts in the
/// time of its stop.
pub const LEAVE_MS: u64 = 3_000;

/// How long it does so while the warden says nothing, and no map comes by which others lead it.
pub const LEAVE_UNHEARD_MS: u64 = 1_000;

/// How long it does so while there is no link to the warden's node: one that was lost is dialed again within some ms.
pub const LEAVE_UNLINKED_MS: u64 = 250;

/// How long it serves on when it leads nothing any more: what others have sent it by the map before is on its way
/// still.
pub const LEAVE_LAST_MS: u64 = 100;

/// How long a node that starts waits for its control store: some ms as a rule; a disk that is written to by others may
/// take seconds for a sync.
pub const WARDEN_START_MS: u64 = 30_000;

/// How long a node tries to join in all, before it says that nobody answers: nodes that are started together may come
/// in any order, and a machine takes seconds to begin.
pub const JOIN_PATIENCE_MS: u64 = 10_000;

/// How long one address of a join is dialed: two lost packets of a handshake, which come again after 1 and 3 s.
pub const JOIN_DIAL_MS: u64 = 3_500;

/// How long the nodes that a control store knows are asked which map they have, before its warden comes into office:
/// some round trips. One that is dead, or paused, costs its first node's start so much.
pub const AHEAD_MS: u64 = 500;

/// How long a node that was dialed for a join may take to say who it is, before the next one is asked: it takes no more
/// than a round trip. One that is paused says nothing, and one that wants to join itself does not yet.
pub const JOIN_ANSWER_MS: u64 = 500;

/// How soon the addresses of a join are tried again.
pub const JOIN_REDIAL_MS: u64 = 200;

/// Nodes that a join asks one after the other, each of which names the next as the warden's.
pub const JOIN_HOPS_MAX: usize = 5;

/// How long a witness tells the end of its node in all: the warden's node may be started again meanwhile, and removes
/// by itself what has been silent for longer.
pub const OBITUARY_PATIENCE_MS: u64 = 10_000;

/// How long it does so when it was told to end itself: who waits for it, such as a unit that starts the node again, is
/// not to wait for long.
pub const OBITUARY_HURRY_MS: u64 = 1_000;

/// How long a node that ends in good order waits for its witness: an exchange, and the warden's disk.
pub const OBITUARY_LAST_MS: u64 = 300;

/// How soon a witness tells it again that was not heard.
pub const OBITUARY_AGAIN_MS: u64 = 20;

/// How long it rests at most, as that grows.
pub const OBITUARY_AGAIN_MAX_MS: u64 = 500;

/// How long one exchange of a witness may take.
pub const OBITUARY_ASK_MS: u64 = 1_000;

/// A line of what a witness is told: the addresses of a node.
pub const OBITUARY_LINE_MAX_BYTES: usize = 2 * NODE_ADDRESSES_MAX * (MAP_TEXT_MAX_BYTES + 1);

/// How long a connection waits for leave to hold the herd's first object. Those by HTTP end 5 s after they began.
pub const HOLD_PATIENCE_MS: u64 = 4_000;

/// How long a loop waits for what it asked of the warden: a little over what that lets it wait for nodes.
pub const PETITION_PATIENCE_MS: u64 = WARDEN_PATIENCE_MS + 1_000;

/// How long a request to the warden waits for a link: one that was lost is dialed again within it.
pub const UNLINKED_MS: u64 = 1_000;

/// How soon leave to hold objects is asked for again after it was refused.
pub const HOLD_AGAIN_MS: u64 = 500;

/// Groups that a node's state lists, 200 bytes each: with 1,000 nodes it stays below the 1 MiB of one frame.
pub const STATUS_GROUPS_MAX: usize = 3_000;

/// How often a node tells its warden which maps others have, and looks at what else is late.
pub const MEMBER_TICK_MS: u64 = 200;

/// Lines for the log that wait to be written: each kind of trouble of a link is told once.
pub const MEMBER_LINES_MAX: usize = 64;

/// How long a node has no link before the log tells that it is out of reach: one that broke is made anew within this.
pub const JOURNAL_PATIENCE_MS: u64 = 1_000;

/// How soon the log tells the same again that others bring about: refused links, which are dialed each second.
pub const JOURNAL_AGAIN_MS: u64 = 60_000;

/// Different lines of that kind in that time: whoever can connect can bring them about, and a log must not grow so.
pub const JOURNAL_LINES_MAX: usize = 64;

const _: () = assert!(HOLD_PATIENCE_MS < SNIFF_TIMEOUT_MS);
const _: () = assert!((LINK_OPS_MAX * (ERROR_TEXT_MAX_BYTES + 128)) < (8 << 20));
const _: () = assert!(WIRE_FRAME_BODY_MAX_BYTES.is_multiple_of(BLOCK_BYTES));
const _: () = assert!(NAME_MAX_BYTES + ATTRIBUTES_MAX_BYTES + GROUP_ANSWERS_MAX_BYTES + 160 < WIRE_HEAD_MAX_BYTES);
const _: () = assert!(2 * (MAP_TEXT_MAX_BYTES + 1) * (3 + NODE_ADDRESSES_MAX) < WIRE_JOIN_MAX_BYTES);
const _: () = assert!(WIRE_LIST_PAGE_MAX as usize * (NAME_MAX_BYTES + 18) <= WIRE_FRAME_BODY_MAX_BYTES);
const _: () = assert!(ADOPTED_PENDING_MAX * (NAME_MAX_BYTES + 1024) <= WIRE_FRAME_BODY_MAX_BYTES);
const _: () = assert!(NAME_MAX_BYTES + ATTRIBUTES_MAX_BYTES < WIRE_HEAD_MAX_BYTES);
const _: () = assert!(ERROR_TEXT_MAX_BYTES + 64 < WIRE_HEAD_MAX_BYTES);
const _: () = assert!(INLINE_MAX_BYTES + NAME_MAX_BYTES + ATTRIBUTES_MAX_BYTES + 64 < BLOCK_BYTES);
