//! In what Herd's replies may differ from memcached's: the sentences of PROTOCOL.md, and how each is recognised.
//!
//! A row names three things as narrowly as it can: the command that was sent (or was sent before about the same name),
//! what memcached said, and what Herd said. A row that any reply would fit hides defects.

use crate::differ::compare::{Difference, SECONDS};

/// A difference that PROTOCOL.md names.
pub(super) struct Allowed {
    /// As counted and printed.
    pub(super) name: &'static str,
    /// The sentence, word by word.
    #[cfg_attr(not(test), expect(dead_code, reason = "a test holds it against PROTOCOL.md"))]
    pub(super) sentence: &'static str,
    is: fn(&Difference) -> bool,
}

const BAD_FORMAT: &str = "CLIENT_ERROR bad command line format";
const BAD_EXPTIME: &str = "CLIENT_ERROR invalid exptime argument";
const BAD_TOKEN: &str = "CLIENT_ERROR bad token in command line format";
const INVALID_OR_DUPLICATE: &str = "CLIENT_ERROR invalid or duplicate flag";
const OPAQUE_TOO_LONG: &str = "CLIENT_ERROR opaque token too long";
const NON_NUMERIC: &str = "CLIENT_ERROR cannot increment or decrement non-numeric value";
const BAD_CHUNK: &str = "CLIENT_ERROR bad data chunk";
const NO_MEMORY: &str = "SERVER_ERROR out of memory storing object";
const TOO_LARGE: &str = "SERVER_ERROR object too large for cache";

/// All of them; the first that fits counts.
pub(super) const ALLOWED: [Allowed; 32] = [
    Allowed {
        name: "whose memory is full",
        sentence: "Behind `SERVER_ERROR out of memory storing object` stand a colon and which node's memory, or which \
                   quota, is full: memcached has one memory.",
        is: |it| it.memcached_is(NO_MEMORY) && it.herd_says("SERVER_ERROR out of memory storing object: "),
    },
    Allowed {
        name: "client flags above 32 bits",
        sentence: "Client flags above 4,294,967,295 are refused: memcached keeps their low 32 bits, and a client \
                   would read others than it wrote.",
        is: |it| {
            it.asks(|words| is_storage(words) && words.get(2).is_some_and(|word| word == b"4294967296"))
                && it.memcached_is_any(&["STORED", "NOT_STORED", "EXISTS", "NOT_FOUND", TOO_LARGE, BAD_CHUNK])
                && it.herd_is(BAD_FORMAT)
        },
    },
    Allowed {
        name: "the name noreply",
        sentence: "`delete noreply` removes that name and says so; memcached keeps silent, and its client would \
                   wait for ever.",
        is: |it| {
            it.asks(|words| words == [b"delete", &b"noreply"[..]])
                && it.herd_is_any(&["DELETED", "NOT_FOUND"])
                && it.herd_lines() > it.memcached_lines()
        },
    },
    Allowed {
        name: "digits and junk",
        sentence: "`incr`, `decr` and `ma` refuse a value that is more than digits, a plus before them and spaces \
                   around: memcached takes the digits it begins with, and drops the rest.",
        is: |it| {
            let quiet =
                |words: &[&[u8]]| is_count(words) && (has_flag(words, b'q') || words.last() == Some(&&b"noreply"[..]));
            let silent = it.asks(quiet) && it.herd_lines() > it.memcached_lines();
            let answers = it.memcached_is_number() || it.memcached_says("HD") || it.memcached_says("VA ");
            let refused = it.asks(is_count) && it.herd_is(NON_NUMERIC) && (answers || silent);
            let kept = it.is_block();
            let longer = it.same_head(&["VALUE", "VA", "HD"]) && it.differs_only_in(|place, _, _| place > 0);
            (it.value_before(is_junk) || it.asked_before(is_join))
                && (refused || (it.asked_before(quiet) && (kept || longer)))
        },
    },
    Allowed {
        name: "ma compares first",
        sentence: "`ma` with C compares before it looks at the value: memcached refuses an empty or very large one \
                   before.",
        is: |it| {
            it.asks(|words| is(words, b"ma") && has_flag(words, b'C'))
                && it.memcached_is(NON_NUMERIC)
                && it.herd_says("EX")
        },
    },
    Allowed {
        name: "times that are over",
        sentence: "The time left of what expires at once is told as 0: memcached counts below 0 and tells \
                   4,294,967,296 less the seconds since.",
        is: |it| {
            it.asks(|words| words[0].len() == 2)
                && it.differs_only_in(|_, one, other| other == b"t0" && one.starts_with(b"t4294"))
        },
    },
    Allowed {
        name: "names in base64",
        sentence: "Meta commands give a name back in the form in which it was sent: memcached gives it in that in \
                   which it was stored.",
        is: |it| {
            let coded = |words: &[&[u8]]| words[0].len() == 2 && has_flag(words, b'b');
            let far = it.asked_before(|words| is_storage(words) && is_far(words));
            // Marks, one way alone, and far times may differ besides, as other rows say.
            let turned = |one: &[u8], other: &[u8]| has(&it.lines[0], one) && has(&it.lines[1], other);
            let is_turned = turned(b" h0", b" h1") || turned(b" fetch=no", b" fetch=yes");
            let marked = it.asked_before(marks);
            let is_mark = |word: &[u8]| word.starts_with(b"fetch=") || (marked && [&b"h0"[..], b"h1"].contains(&word));
            let also = |word: &[u8]| is_mark(word) || (far && word.starts_with(b"exp="));
            let raw = it.lines[0].contains(&0) && (it.lines[0].starts_with(b"ME ") || has(&it.lines[0], b" k"));
            it.same_head(&["VA", "HD", "ME"])
                && it.asked_before(coded)
                && !is_turned
                && (raw || it.same_but_for(|word| word.starts_with(b"k") || word == b"b" || also(word), b"ME"))
        },
    },
    Allowed {
        name: "fetched or not",
        sentence: "Every change clears the mark of an object that was fetched (h of `mg`, fetch of `me`), for \
                   nobody has fetched the new value: memcached keeps it where it changes the object in place. \
                   `touch`, and the N that makes an object, are no fetch: memcached marks by both.",
        is: |it| {
            it.asked_before(marks)
                && it.differs_only_in(|_, one, other| {
                    (one == b"h1" && other == b"h0") || (one == b"fetch=yes" && other == b"fetch=no")
                })
        },
    },
    Allowed {
        name: "spaces behind digits",
        sentence: "A number that became shorter is followed by spaces up to its former length: memcached leaves \
                   them out where it had to move the item.",
        is: |it| {
            let longer = |one: &[u8], other: &[u8]| {
                let size = |word: &[u8]| number(word.strip_prefix(b"s").unwrap_or(word));
                size(one).zip(size(other)).is_some_and(|(one, other)| one < other)
            };
            it.asked_before(is_count)
                && it.same_head(&["VALUE", "VA", "HD"])
                && it.differs_only_in(|_, one, other| longer(one, other))
                && (it.same_head(&["HD"]) || it.same_block_without_spaces())
        },
    },
    Allowed {
        name: "me and its words",
        sentence: "`me` takes b without another flag behind it, and refuses what is not base64: memcached takes the \
                   name as it stands.",
        is: |it| {
            let coded = |words: &[&[u8]]| is(words, b"me") && words.get(2) == Some(&&b"b"[..]);
            let found = it.memcached_is("EN") && it.herd_says("ME ");
            let refused = (it.memcached_is("EN") || it.memcached_says("ME ")) && it.herd_is(BAD_FORMAT);
            it.asks(coded) && (found || refused)
        },
    },
    Allowed {
        name: "names that are too long",
        sentence: "A name that is too long gets one error, and what came before it its replies: memcached adds an \
                   empty line after `get`, and drops replies it has not sent yet.",
        is: |it| {
            let long = |words: &[&[u8]]| words[0].starts_with(b"g") && words.iter().any(|word| word.len() > 250);
            let doubled = has(&it.memcached, b"CLIENT_ERROR bad command line format\r\n\r\n");
            // The error, but not the line behind it, is kept back where the last name is `noreply`.
            let silent = it.asks(|words| long(words) && words.last() == Some(&&b"noreply"[..]));
            it.asks(long)
                && (doubled || (silent && it.lines[0] == b"\r"))
                && has(&it.herd, b"CLIENT_ERROR bad command line format\r\n")
        },
    },
    Allowed {
        name: "the block behind a faulty ms",
        sentence: "The block of an `ms` with a word that cannot be a flag is passed over: memcached takes it for a \
                   command.",
        is: |it| {
            let stray = |words: &[&[u8]]| {
                is(words, b"ms") && words.iter().skip(3).any(|word| !matches!(word[0], b'A'..=b'z' | b'0'..=b'9'))
            };
            let herd = has(&it.herd, BAD_FORMAT.as_bytes()) || it.herd_is("(waits)");
            let memcached = it.memcached_is_any(&["ERROR", BAD_FORMAT]) || it.memcached_says("(closed)");
            it.asks(stray) && herd && (memcached || has(&it.memcached, BAD_FORMAT.as_bytes()))
        },
    },
    Allowed {
        name: "far behind too many flags",
        sentence: "A word that cannot be a flag is named wherever it stands: memcached looks at 23 words of a \
                   line.",
        is: |it| {
            it.asks(|words| words[0].len() == 2 && words.len() > 23)
                && it.memcached_is("CLIENT_ERROR options flags are too long")
                && it.herd_is(BAD_FORMAT)
        },
    },
    Allowed {
        name: "values of nearly 1 MiB",
        sentence: "Values up to 1,048,576 bytes are stored: memcached's limit of 1 MiB includes its header and the \
                   name.",
        is: |it| {
            let near = |words: &[&[u8]]| length(words).is_some_and(|bytes| (1_048_000..=1_048_576).contains(&bytes));
            let answers = it.memcached_lines() > it.herd_lines()
                || it.herd_is_any(&["STORED", "NOT_STORED", "EXISTS", "NOT_FOUND"])
                || ["HD", "NS", "EX", "NF"].iter().any(|head| it.herd_says(head));
            let joined = it.asks(is_join) && it.asked_before(near);
            (it.asks(near) && it.memcached_is(TOO_LARGE) && answers)
                || (joined && it.memcached_is("NOT_STORED") && it.herd_is("STORED"))
        },
    },
    Allowed {
        name: "joined beyond 1 MiB",
        sentence: "A value that `append`, `prepend` or `ms` would make too large is refused as that: memcached says \
                   NOT_STORED or NS, as if no object were there.",
        is: |it| {
            let made = it.asked_before(|words| (is_storage(words) || is(words, b"ms")) && !is_join(words));
            it.asks(is_join) && made && it.memcached_is_any(&["NOT_STORED", "NS"]) && it.herd_is(TOO_LARGE)
        },
    },
    Allowed {
        name: "md with x",
        sentence: "`md` with x is a change, so the object has a new CAS value: memcached keeps the old one, and who \
                   compares it does not see that the value is gone.",
        is: |it| {
            let emptied = |words: &[&[u8]]| is(words, b"md") && has_flag(words, b'x') && !has_flag(words, b'E');
            it.asked_before(emptied) && it.is_about_tokens()
        },
    },
    Allowed {
        name: "stale and counted",
        sentence: "What `incr`, `decr` or `ma` changes is stale no longer, and the right to recache it is free \
                   again: memcached keeps both where it changes the item in place.",
        is: |it| {
            let mark = |word: &[u8]| matches!(word, b"X" | b"Z" | b"W");
            let marked = |line: &[u8]| has(line, b" X") || has(line, b" Z");
            it.asked_before(is_count) && marked(&it.lines[0]) && !marked(&it.lines[1]) && it.same_but_for(mark, b"")
        },
    },
    Allowed {
        name: "C0",
        sentence: "C0 compares with 0 in `ma`, and in `ms` of every mode: memcached takes it for no comparison \
                   there.",
        is: |it| {
            let zero = |words: &[&[u8]]| {
                words.iter().skip(2).any(|word| number(word.strip_prefix(b"C").unwrap_or_default()) == Some(0))
            };
            let answers =
                ["HD", "VA ", "NS"].iter().any(|head| it.memcached_says(head)) || it.memcached_is(NON_NUMERIC);
            let quiet = it.asks(|words| zero(words) && has_flag(words, b'q')) && it.herd_lines() > it.memcached_lines();
            it.asks(|words| (is(words, b"ma") || is_join(words)) && zero(words))
                && (answers || quiet)
                && it.herd_says("EX")
        },
    },
    Allowed {
        name: "I and E",
        sentence: "CAS values that Herd makes are larger than most that a client gives an object by E: where I asks \
                   whether one of them is older than the other, memcached, which counts from 1, finds the opposite.",
        is: |it| {
            let compares = |words: &[&[u8]]| {
                let is_meta = is(words, b"ms") || is(words, b"md");
                is_meta && has_flag(words, b'C') && has_flag(words, b'I')
            };
            let opposite =
                (it.memcached_says("HD") && it.herd_says("EX")) || (it.memcached_says("EX") && it.herd_says("HD"));
            it.asks(compares) && it.asked_before(|words| has_flag(words, b'E')) && opposite
        },
    },
    Allowed {
        name: "ms too large",
        sentence: "An `ms` that is too large removes the old value only in mode set without C, where the client \
                   meant it to be gone: memcached does in every mode.",
        is: |it| {
            let large = |words: &[&[u8]]| {
                let kept = words.iter().any(|word| matches!(word, [b'M', b'E' | b'A' | b'P' | b'R', ..] | [b'C', ..]));
                is(words, b"ms") && length(words).is_some_and(|bytes| bytes > 1_048_000) && kept
            };
            it.asked_before(large) && it.memcached_misses()
        },
    },
    Allowed {
        name: "ma, T and E",
        sentence: "`ma` with T or E sets time and CAS value whatever the number becomes: memcached forgets both \
                   where it becomes longer.",
        is: |it| {
            let time = |word: &[u8]| word.starts_with(b"t") || word.starts_with(b"exp=");
            let sets = |flag| it.asked_before(|words| is(words, b"ma") && has_flag(words, flag));
            (sets(b'T') && (it.differs_only_in(|_, _, other| time(other)) || it.herd_misses()))
                || (sets(b'E') && it.is_about_tokens())
        },
    },
    Allowed {
        name: "times after 2038",
        sentence: "Times are 64 bits wide: memcached takes one of more than 31 bits modulo 32 bits in storage \
                   commands, and refuses it elsewhere.",
        is: |it| {
            let refused = it.memcached_is_any(&[BAD_EXPTIME, BAD_TOKEN, INVALID_OR_DUPLICATE]);
            let stored = |words: &[&[u8]]| is_storage(words) && is_far(words);
            let time = |word: &[u8]| word.starts_with(b"t") || word.starts_with(b"exp=");
            let remade = it.same_head(&["VALUE", "VA", "HD"]);
            let quiet = it.asks(|words| words[0].len() == 2 && has_flag(words, b'q'));
            let silent = quiet && it.herd_lines() != it.memcached_lines();
            let lasts = it.memcached_misses()
                || it.herd_misses()
                || remade
                || silent
                || it.differs_only_in(|_, one, _| time(one));
            (refused && it.asks(|words| !is_storage(words) && is_far(words))) || (it.asked_before(stored) && lasts)
        },
    },
    Allowed {
        name: "signs and tabs",
        sentence: "A number is digits, a time may have a minus before them: memcached also takes a plus, tabs \
                   beside it, and a minus before nothing or 0.",
        is: |it| {
            let odd = |word: &&[u8]| {
                let (number, behind) = (*word, word.get(1..).unwrap_or_default());
                number.contains(&b'\t')
                    || number[0] == b'+'
                    || [number, behind].iter().any(|word| word == b"-")
                    || number == b"-0"
            };
            it.asks(|words| words.iter().skip(1).any(odd)) && it.herd_says("CLIENT_ERROR") && !it.memcached_is("ERROR")
        },
    },
    Allowed {
        name: "leading zeros",
        sentence: "A number has up to 22 digits, zeros before it included: memcached takes 11 where it keeps 32 \
                   bits.",
        is: |it| {
            let long = |word: &&[u8]| matches!(word[0], b'F' | b'T' | b'N' | b'R') && (13..=23).contains(&word.len());
            let refused = it.memcached_is_any(&[BAD_FORMAT, BAD_TOKEN, INVALID_OR_DUPLICATE]);
            it.asks(|words| words[0].len() == 2 && words.iter().skip(2).any(long)) && refused
        },
    },
    Allowed {
        name: "lines that are too long",
        sentence: "A line of more than 2,048 bytes closes the connection unless it is a list of keys, of `gat` too: \
                   memcached closes only if the line comes in pieces, a list of `gat` as well.",
        is: |it| {
            let long = |start: &[u8]| {
                it.request.split(|byte| *byte == b'\n').any(|line| line.len() > 2_048 && line.starts_with(start))
            };
            (long(b"") && (it.herd_says("(closed)") || (it.memcached_says("(closed)") && has(&it.herd, b"(closed)"))))
                || (long(b"gat") && it.memcached_says("(closed)"))
        },
    },
    Allowed {
        name: "times in milliseconds",
        sentence: "Times are counted in milliseconds: of an object that has just as long to live as R of `mg` says \
                   Herd gives the right to recache, memcached once a second has passed.",
        is: |it| {
            it.asks(|words| is(words, b"mg") && has_flag(words, b'R'))
                && it.lines[1].trim_ascii_end().ends_with(b" W")
                && it.same_but_for(|word| word == b"W" || word == b"t0" || word.starts_with(b"t4294"), b"")
        },
    },
    Allowed {
        name: "delete and a third word",
        sentence: "`delete` takes a number and `noreply` behind the name, and refuses all else: memcached passes \
                   over it, and who names two objects removes one.",
        is: |it| {
            let third = |words: &[&[u8]]| is(words, b"delete") && words.len() > 2;
            let silent = |words: &[&[u8]]| third(words) && words.len() > 3 && words.last() == Some(&&b"noreply"[..]);
            (it.asks(third) && it.memcached_is_any(&["DELETED", "NOT_FOUND"]) && it.herd_is(BAD_FORMAT))
                || (it.asked_before(silent) && it.memcached_misses())
        },
    },
    Allowed {
        name: "an opaque that is too long",
        sentence: "A command with an opaque that is too long is refused before anything is done: memcached looks at \
                   it when `ma` has counted and `mg` has done what its flags say, and names a wrong mode first.",
        is: |it| {
            let long = |words: &[&[u8]]| {
                words[0].len() == 2 && words.iter().skip(2).any(|word| word[0] == b'O' && word.len() > 32)
            };
            let first = it.memcached_is(NON_NUMERIC) || it.memcached_says("CLIENT_ERROR invalid mode for m");
            let refused = it.asks(long) && first && it.herd_is(OPAQUE_TOO_LONG);
            let counted = it.asked_before(|words| (is(words, b"ma") || is(words, b"mg")) && long(words));
            let time = |word: &[u8]| word.starts_with(b"t") || word.starts_with(b"exp=");
            let mark = |word: &[u8]| matches!(word, b"h0" | b"fetch=no") || time(word);
            let marks = it.differs_only_in(|_, _, other| mark(other));
            let numbers = it.differs_only_in(|_, one, other| number(one).is_some() && number(other).is_some());
            let quiet = it.asks(|words| is(words, b"mg") && has_flag(words, b'q'));
            let silent = quiet && it.herd_lines() < it.memcached_lines();
            let misses = silent || it.herd_misses() || it.memcached_misses();
            refused || (counted && (numbers || marks || it.is_about_tokens() || misses))
        },
    },
    Allowed {
        name: "debugtime and noreply",
        sentence: "`debugtime`, which is for tests, is answered under `noreply` too: memcached without it keeps \
                   silent.",
        is: |it| {
            it.asks(|words| is(words, b"debugtime") && words.last() == Some(&&b"noreply"[..]))
                && it.herd_is("ERROR")
                && it.herd_lines() > it.memcached_lines()
        },
    },
    Allowed {
        name: "E0",
        sentence: "E0 gives no CAS value, so the object has its own: memcached sets 0 by `mg`, `md` and `ma`.",
        is: |it| {
            let zero = |words: &[&[u8]]| {
                words.iter().skip(2).any(|word| number(word.strip_prefix(b"E").unwrap_or_default()) == Some(0))
            };
            it.asked_before(|words| words[0].len() == 2 && zero(words)) && it.is_about_tokens()
        },
    },
    Allowed {
        name: "not quite base64",
        sentence: "A name in base64 has the letters of base64 only: memcached passes over others.",
        is: |it| {
            let letter = |byte: &u8| byte.is_ascii_alphanumeric() || b"+/=".contains(byte);
            let bent = |words: &[&[u8]]| words[0].len() == 2 && has_flag(words, b'b') && !words[1].iter().all(letter);
            it.asks(bent) && it.herd_is_any(&["CLIENT_ERROR error decoding key", INVALID_OR_DUPLICATE, BAD_FORMAT])
        },
    },
    Allowed {
        name: "three bytes",
        sentence: "A line of two letters may end in LF alone, so `mn` too: memcached refuses a line of three \
                   bytes.",
        is: |it| {
            let mut lines = it.request.split(|byte| *byte == b'\n');
            lines.any(|line| line.len() == 2 && !line.ends_with(b"\r"))
                && it.memcached_is(BAD_FORMAT)
                && it.herd_is_any(&["MN", "ERROR"])
        },
    },
];

fn is(words: &[&[u8]], verb: &[u8]) -> bool {
    words[0] == verb
}

/// A text command that stores a value.
fn is_storage(words: &[&[u8]]) -> bool {
    matches!(words[0], b"set" | b"add" | b"replace" | b"append" | b"prepend" | b"cas")
}

/// A command that counts.
fn is_count(words: &[&[u8]]) -> bool {
    matches!(words[0], b"incr" | b"decr" | b"ma")
}

/// A command that adds to a value.
fn is_join(words: &[&[u8]]) -> bool {
    let joins = |word: &&[u8]| matches!(word, [b'M', b'A' | b'P', ..]);
    matches!(words[0], b"append" | b"prepend") || (is(words, b"ms") && words.iter().skip(3).any(joins))
}

/// An `mg` that may make an object.
fn is_mg_n(words: &[&[u8]]) -> bool {
    is(words, b"mg") && has_flag(words, b'N')
}

/// A command after which one of the servers may have an object marked as fetched and the other not.
fn marks(words: &[&[u8]]) -> bool {
    is_count(words) || is(words, b"touch") || is(words, b"md") || is_mg_n(words)
}

/// Whether a time in it has more than 31 bits.
fn is_far(words: &[&[u8]]) -> bool {
    let far = |word: &[u8]| number(word.strip_prefix(b"-").unwrap_or(word)).is_some_and(|time| time >= 1 << 31);
    let place = match words[0] {
        b"gat" | b"gats" | b"flush_all" => 1,
        b"touch" => 2,
        _ if is_storage(words) => 3,
        _ => {
            let times = words.iter().skip(2).filter(|word| matches!(word[0], b'T' | b'N' | b'R'));
            return words[0].len() == 2 && times.into_iter().any(|word| far(&word[1..]));
        }
    };
    words.get(place).is_some_and(|word| far(word))
}

/// The bytes of the value that a command announces.
fn length(words: &[&[u8]]) -> Option<u64> {
    let place = if is(words, b"ms") { 2 } else { 4 };
    (is(words, b"ms") || is_storage(words)).then(|| number(words.get(place)?)).flatten()
}

/// A value that begins with a number for memcached, but is none for Herd.
fn is_junk(value: &[u8]) -> bool {
    let text = value.trim_ascii();
    let digits = text.strip_prefix(b"+").or_else(|| text.strip_prefix(b"-")).unwrap_or(text);
    let taken = text.strip_prefix(b"+").unwrap_or(text);
    digits.first().is_some_and(u8::is_ascii_digit) && !taken.iter().all(u8::is_ascii_digit)
}

fn has(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

fn number(word: &[u8]) -> Option<u64> {
    let digits = !word.is_empty() && word.iter().all(u8::is_ascii_digit);
    digits.then(|| std::str::from_utf8(word).ok()?.parse().ok()).flatten()
}

impl Difference {
    fn memcached_says(&self, text: &str) -> bool {
        self.lines[0].starts_with(text.as_bytes())
    }

    fn herd_says(&self, text: &str) -> bool {
        self.lines[1].starts_with(text.as_bytes())
    }

    fn memcached_is(&self, text: &str) -> bool {
        self.lines[0].strip_suffix(b"\r") == Some(text.as_bytes())
    }

    fn herd_is(&self, text: &str) -> bool {
        self.lines[1].strip_suffix(b"\r") == Some(text.as_bytes())
    }

    fn memcached_is_any(&self, texts: &[&str]) -> bool {
        texts.iter().any(|text| self.memcached_is(text))
    }

    fn herd_is_any(&self, texts: &[&str]) -> bool {
        texts.iter().any(|text| self.herd_is(text))
    }

    fn memcached_is_number(&self) -> bool {
        number(self.lines[0].trim_ascii_end()).is_some()
    }

    fn memcached_lines(&self) -> usize {
        self.memcached.split(|byte| *byte == b'\n').count()
    }

    fn herd_lines(&self) -> usize {
        self.herd.split(|byte| *byte == b'\n').count()
    }

    /// memcached finds nothing where Herd finds something, or of several names only a later one.
    fn memcached_misses(&self) -> bool {
        misses(&self.lines[0], &self.lines[1]) || self.names_differ()
    }

    /// Herd finds nothing where memcached finds something.
    fn herd_misses(&self) -> bool {
        misses(&self.lines[1], &self.lines[0]) || self.names_differ()
    }

    /// Whether both have found something, but not of the same name.
    fn names_differ(&self) -> bool {
        self.same_head(&["VALUE"]) && self.places.contains(&1)
    }

    /// Whether some line of what was sent is so.
    fn asks(&self, is: impl Fn(&[&[u8]]) -> bool) -> bool {
        has_line(&self.request, is)
    }

    /// Whether some line was sent before, or now, about the same names.
    fn asked_before(&self, is: impl Fn(&[&[u8]]) -> bool) -> bool {
        self.asks(&is) || self.past.iter().any(|request| has_line(request, &is))
    }

    /// Whether some line that was sent, as a whole, is so.
    fn value_before(&self, is: impl Fn(&[u8]) -> bool) -> bool {
        let mut requests = self.past.iter().chain([&self.request]);
        requests.any(|request| request.split(|byte| *byte == b'\n').any(&is))
    }

    /// Whether both lines begin with the same of these words.
    fn same_head(&self, heads: &[&str]) -> bool {
        let [first, second] = self.lines.each_ref().map(|line| line.split(|byte| b" \r".contains(byte)).next());
        first == second && first.is_some_and(|first| heads.iter().any(|head| head.as_bytes() == first))
    }

    /// Whether all words that differ are so; they are given with their places. Both lines have as many words.
    fn differs_only_in(&self, is: impl Fn(usize, &[u8], &[u8]) -> bool) -> bool {
        let [first, second] = self.words();
        !self.places.is_empty() && self.places.iter().all(|place| is(*place, first[*place], second[*place]))
    }

    /// Whether the lines are the same but for words that are so, and a name right behind `head`.
    fn same_but_for(&self, is: impl Fn(&[u8]) -> bool, head: &[u8]) -> bool {
        let rest = |words: Vec<&[u8]>| -> Vec<Vec<u8>> {
            let named = !head.is_empty() && words[0] == head;
            let kept = words.into_iter().enumerate().filter(|(place, word)| !(is(word) || (named && *place == 1)));
            kept.map(|(_, word)| word.to_vec()).collect()
        };
        let [first, second] = self.words().map(rest);
        first.len() == second.len() && first.iter().zip(&second).all(|(one, other)| is_alike(one, other))
    }

    fn words(&self) -> [Vec<&[u8]>; 2] {
        self.lines.each_ref().map(|line| line.trim_ascii_end().split(|byte| *byte == b' ').collect())
    }

    /// Whether the lines behind those that differ are the same but for spaces.
    fn same_block_without_spaces(&self) -> bool {
        let [first, second] = [&self.memcached, &self.herd].map(|replies| {
            let line = replies.split(|byte| *byte == b'\n').nth(self.at + 1).unwrap_or_default();
            line.iter().copied().filter(|byte| *byte != b' ').collect::<Vec<u8>>()
        });
        first == second
    }

    /// Whether the lines that differ are values.
    fn is_block(&self) -> bool {
        [&self.memcached, &self.herd].iter().all(|replies| {
            let before = self.at.checked_sub(1).and_then(|at| replies.split(|byte| *byte == b'\n').nth(at));
            before.is_some_and(|line| line.starts_with(b"VALUE ") || line.starts_with(b"VA "))
        })
    }

    /// Whether CAS values differ, or what was compared with one.
    fn is_about_tokens(&self) -> bool {
        let token = |place: usize, word: &[u8]| {
            let meta = word.strip_prefix(b"cas=").or_else(|| word.strip_prefix(b"c"));
            meta.and_then(number).is_some() || (place == 4 && self.memcached_says("VALUE "))
        };
        let compares = |words: &[&[u8]]| is(words, b"cas") || has_flag(words, b'C');
        let head = |line: &[u8]| line.get(..2).map(<[u8]>::to_vec).unwrap_or_default();
        let compared = [&b"HD"[..], b"VA", b"EX", b"ST"];
        self.differs_only_in(|place, _, other| token(place, other))
            || (self.asks(compares)
                && self.lines.iter().all(|line| compared.contains(&&head(line)[..]))
                && head(&self.lines[0]) != head(&self.lines[1]))
    }
}

/// Whether `first` says that nothing is there, or that something new was made, and `second` that there is something.
fn misses(first: &[u8], second: &[u8]) -> bool {
    let nothing: [&[u8]; 6] = [b"END", b"EN", b"NOT_FOUND", b"NF", b"NOT_STORED", b"NS"];
    let says = |line: &[u8], texts: &[&[u8]]| {
        let word = line.split(|byte| b" \r".contains(byte)).next().unwrap_or_default();
        texts.contains(&word)
    };
    let adds = says(first, &[b"STORED", b"HD"]) && says(second, &[b"NOT_STORED", b"NS"]);
    adds || (says(first, &nothing)
        && !says(second, &nothing)
        && (!second.starts_with(b"CLIENT_ERROR") || second.starts_with(NON_NUMERIC.as_bytes())))
}

/// Whether some line of a request is so, in words.
fn has_line(request: &[u8], is: impl Fn(&[&[u8]]) -> bool) -> bool {
    request.split(|byte| *byte == b'\n').any(|line| {
        let words = line.trim_ascii_end().split(|byte| *byte == b' ').filter(|word| !word.is_empty());
        let words: Vec<&[u8]> = words.collect();
        !words.is_empty() && is(&words)
    })
}

/// The same words, or times that differ by no more than they may, or CAS values.
fn is_alike(one: &[u8], other: &[u8]) -> bool {
    let both = |prefix: &[u8]| Some((number(one.strip_prefix(prefix)?)?, number(other.strip_prefix(prefix)?)?));
    let near = [&b"t"[..], b"l", b"exp=", b"la="].into_iter().find_map(both);
    let free = [&b"c"[..], b"cas=", b"cls=", b"size="].into_iter().find_map(both);
    one == other || free.is_some() || near.is_some_and(|(one, other)| one.abs_diff(other) <= SECONDS)
}

fn has_flag(words: &[&[u8]], flag: u8) -> bool {
    words.iter().skip(2).any(|word| word.first() == Some(&flag))
}

/// The name of the rule that a difference falls under.
pub(super) fn rule(difference: &Difference) -> Option<&'static str> {
    ALLOWED.iter().find(|allowed| (allowed.is)(difference)).map(|allowed| allowed.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_and_the_list_of_the_protocol_are_the_same() {
        let page = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../PROTOCOL.md");
        let page = std::fs::read_to_string(page).expect("the protocol is in the repository");
        let (_, section) = page.split_once("\n### 3.1 ").expect("the section is there");
        let section = section.split("\n#").next().expect("the first of some");
        let listed: Vec<&str> = section.lines().filter_map(|line| line.strip_prefix("* ")).collect();
        let known: Vec<&str> = ALLOWED.iter().map(|allowed| allowed.sentence).collect();
        assert_eq!(listed, known);
    }
}
