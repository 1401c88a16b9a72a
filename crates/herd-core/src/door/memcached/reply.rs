//! The fixed replies, each a whole line with its CR LF. Texts that clients match on are memcached's.

/// Stored.
pub const STORED: &[u8] = b"STORED\r\n";
/// The condition of `add` or `replace` does not hold, or there is nothing to append to.
pub const NOT_STORED: &[u8] = b"NOT_STORED\r\n";
/// `cas`: it has another CAS value.
pub const EXISTS: &[u8] = b"EXISTS\r\n";
/// No such item.
pub const NOT_FOUND: &[u8] = b"NOT_FOUND\r\n";
/// Deleted.
pub const DELETED: &[u8] = b"DELETED\r\n";
/// Touched.
pub const TOUCHED: &[u8] = b"TOUCHED\r\n";
/// Done.
pub const OK: &[u8] = b"OK\r\n";
/// `stats reset` done.
pub const RESET: &[u8] = b"RESET\r\n";
/// End of a `get` or `stats`.
pub const END: &[u8] = b"END\r\n";
/// Answer to `mn`.
pub const META_NOOP: &[u8] = b"MN\r\n";
/// `me`: no such item.
pub const META_DEBUG_MISS: &[u8] = b"EN\r\n";

/// No such command.
pub const ERROR: &[u8] = b"ERROR\r\n";
/// The line is not understood.
pub const BAD_FORMAT: &[u8] = b"CLIENT_ERROR bad command line format\r\n";
/// The body does not end in CR LF.
pub const BAD_CHUNK: &[u8] = b"CLIENT_ERROR bad data chunk\r\n";
/// An expiry is not a number.
pub const BAD_EXPTIME: &[u8] = b"CLIENT_ERROR invalid exptime argument\r\n";
/// The delta is not a number.
pub const BAD_DELTA: &[u8] = b"CLIENT_ERROR invalid numeric delta argument\r\n";
/// The value is not a number.
pub const NON_NUMERIC: &[u8] = b"CLIENT_ERROR cannot increment or decrement non-numeric value\r\n";
/// A line of keys is over the limit; the connection closes.
pub const LINE_TOO_LONG: &[u8] = b"CLIENT_ERROR line too long\r\n";

/// Meta: a flag stands twice.
pub const DUPLICATE_FLAG: &[u8] = b"CLIENT_ERROR duplicate flag\r\n";
/// Meta: no such flag.
pub const INVALID_FLAG: &[u8] = b"CLIENT_ERROR invalid flag\r\n";
/// `ma`: one of the two above.
pub const INVALID_OR_DUPLICATE: &[u8] = b"CLIENT_ERROR invalid or duplicate flag\r\n";
/// Meta: too many flags.
pub const TOO_MANY_FLAGS: &[u8] = b"CLIENT_ERROR options flags are too long\r\n";
/// Meta: the number behind a flag is missing or wrong.
pub const BAD_TOKEN: &[u8] = b"CLIENT_ERROR bad token in command line format\r\n";
/// Meta: `b` was given and the key is not base64.
pub const BAD_BASE64: &[u8] = b"CLIENT_ERROR error decoding key\r\n";
/// Meta: an opaque of more than 31 bytes.
pub const OPAQUE_TOO_LONG: &[u8] = b"CLIENT_ERROR opaque token too long\r\n";
/// Meta: the number behind `D` is missing or wrong.
pub const BAD_META_DELTA: &[u8] = b"CLIENT_ERROR invalid numeric delta value\r\n";
/// Meta: the number behind `J` is missing or wrong.
pub const BAD_META_INITIAL: &[u8] = b"CLIENT_ERROR invalid numeric initial value\r\n";
/// `ms`: no such mode.
pub const BAD_SET_MODE: &[u8] = b"CLIENT_ERROR invalid mode for ms M token\r\n";
/// `ma`: no such mode.
pub const BAD_ARITH_MODE: &[u8] = b"CLIENT_ERROR invalid mode for ma M token\r\n";

/// The item is over the limit.
pub const TOO_LARGE: &[u8] = b"SERVER_ERROR object too large for cache\r\n";
/// Memory or quota is full and nothing may be evicted.
pub const OUT_OF_MEMORY: &[u8] = b"SERVER_ERROR out of memory storing object\r\n";
/// Too much under way, or the node is stopping.
pub const BUSY: &[u8] = b"SERVER_ERROR busy, try again\r\n";
/// A deadline passed.
pub const TIMEOUT: &[u8] = b"SERVER_ERROR timed out, the outcome is unknown\r\n";
/// A stored block failed its checksum.
pub const BAD_CHECKSUM: &[u8] = b"SERVER_ERROR stored data failed its checksum\r\n";
/// The caller may not do this.
pub const NOT_ALLOWED: &[u8] = b"CLIENT_ERROR not allowed\r\n";
/// The node that has the item went out of reach before it answered.
pub const OUTCOME_UNKNOWN: &[u8] = b"SERVER_ERROR the outcome is unknown\r\n";
/// The node that has the item can't be asked.
pub const UNREACHABLE: &[u8] = b"SERVER_ERROR the node that has it can't be reached\r\n";
/// The collection behind this door is gone.
pub const NO_COLLECTION: &[u8] = b"SERVER_ERROR the collection of this door does not exist\r\n";

/// `shutdown` is refused.
pub const NO_SHUTDOWN: &[u8] = b"SERVER_ERROR: shutdown not enabled\r\n";
/// `slabs reassign` is refused: there are no slabs.
pub const NO_SLAB_REASSIGN: &[u8] = b"CLIENT_ERROR slab reassignment disabled\r\n";
/// `lru_crawler` is refused: there is no crawler.
pub const NO_LRU_CRAWLER: &[u8] = b"CLIENT_ERROR lru crawler disabled\r\n";
/// `watch` is refused.
pub const NO_WATCH: &[u8] = b"CLIENT_ERROR watch commands not allowed\r\n";
/// `stats detail` is refused.
pub const NO_STATS_DETAIL: &[u8] = b"CLIENT_ERROR stats detail not allowed\r\n";
/// `stats cachedump` is refused.
pub const NO_CACHEDUMP: &[u8] = b"CLIENT_ERROR stats cachedump not allowed\r\n";
/// `cache_memlimit` below memcached's least.
pub const MEMLIMIT_TOO_SMALL: &[u8] = b"MEMLIMIT_TOO_SMALL cannot set maxbytes to less than 8m\r\n";
/// `cache_memlimit` is refused: memory is set at the start.
pub const MEMLIMIT_FIXED: &[u8] = b"MEMLIMIT_ADJUST_FAILED out of bounds or unable to adjust\r\n";
