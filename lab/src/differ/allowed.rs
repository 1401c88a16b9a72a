//! In what Herd's replies may differ from memcached's: the sentences of PROTOCOL.md, and how each is recognised.

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

/// All of them; the first that fits counts.
pub(super) const ALLOWED: [Allowed; 20] = [
    Allowed {
        name: "client flags above 32 bits",
        sentence: "Client flags above 4,294,967,295 are refused; memcached keeps their low 32 bits.",
        is: |it| it.herd_says("CLIENT_ERROR bad command line format") && it.asks(has_wide_flags),
    },
    Allowed {
        name: "the name noreply",
        sentence: "`delete noreply` removes that name and says so; memcached keeps silent, and its client would wait \
                   for ever.",
        is: |it| {
            it.asks(|words| words == [b"delete", &b"noreply"[..]])
                && (it.herd_says("DELETED") || it.herd_says("NOT_FOUND"))
        },
    },
    Allowed {
        name: "digits and junk",
        sentence: "`incr`, `decr` and `ma` refuse a value that is more than digits and spaces behind them; \
                   memcached takes the digits.",
        is: |it| it.herd_says("CLIENT_ERROR cannot increment or decrement non-numeric value"),
    },
    Allowed {
        name: "ma compares first",
        sentence: "`ma` with C compares before it reads the number, so EX comes where memcached finds no number.",
        is: |it| it.herd_says("EX") && it.memcached_says("CLIENT_ERROR cannot increment or decrement"),
    },
    Allowed {
        name: "times that are over",
        sentence: "The time left of what expires at once is told as 0; memcached tells 4,294,967,296 less the \
                   seconds since.",
        is: |it| it.differs_in(|_, word| word == b"t0" || word.starts_with(b"c")),
    },
    Allowed {
        name: "names in base64",
        sentence: "Meta commands give a name back in the form in which it was sent, not in that in which it was \
                   stored.",
        is: |it| {
            let heads: [&[u8]; 7] = [b"VA", b"HD", b"EN", b"NF", b"NS", b"EX", b"ME"];
            let [first, second] = it.lines.each_ref().map(|line| line.get(..2).unwrap_or_default());
            let coded = |words: &[&[u8]]| words[0].len() == 2 && has_flag(words, b'b');
            first == second && heads.contains(&first) && it.asked_before(coded)
        },
    },
    Allowed {
        name: "fetched or not",
        sentence: "Gets mark an object as fetched (h of `mg`, fetch of `me`), an `add` or `cas` that is refused \
                   too, and every change clears the mark; memcached also marks by `touch` and by `mg` with N, and \
                   keeps the mark where it changes an object in place.",
        is: |it| {
            let facts: [&[u8]; 4] = [b"fetch=", b"cas=", b"cls=", b"size="];
            it.differs_in(|_, word| {
                matches!(word, b"h0" | b"h1")
                    || word.starts_with(b"c")
                    || facts.iter().any(|fact| word.starts_with(fact))
            })
        },
    },
    Allowed {
        name: "spaces behind digits",
        sentence: "A number that became shorter is followed by spaces up to its former length; memcached leaves \
                   them out where it had to move the item.",
        is: |it| {
            let counts: [&[u8]; 3] = [b"incr", b"decr", b"ma"];
            let is_value = it.memcached_says("VALUE ") || it.memcached_says("VA ");
            is_value && it.herd.contains(&b' ') && it.asked_before(|words| counts.contains(&words[0]))
        },
    },
    Allowed {
        name: "me and its words",
        sentence: "`me` passes over flags it does not know, and refuses what is not base64.",
        is: |it| {
            it.asks(|words| words[0] == b"me")
                && (it.memcached_says("EN") || it.memcached_refuses() || it.herd_refuses())
        },
    },
    Allowed {
        name: "delete and a third word",
        sentence: "`delete` takes a number and `noreply` behind the name, and refuses all else: memcached passes over \
                   it, and who names two objects removes one.",
        is: |it| {
            let gone = [b"END", &b"EN"[..], b"NOT_FOUND", b"NF", b"NOT_STORED", b"NS"];
            let third = |words: &[&[u8]]| words[0] == b"delete" && words.len() > 2;
            let missed = it.asked_before(third) && gone.iter().any(|text| it.lines[0].starts_with(text));
            missed || (it.asks(third) && it.herd_says("CLIENT_ERROR"))
        },
    },
    Allowed {
        name: "names that are too long",
        sentence: "A name that is too long is one error, whatever came before it; memcached adds an empty line \
                   after `get`, and keeps back the replies before it.",
        is: |it| it.asks(|words| words[0].starts_with(b"g") && words.iter().any(|word| word.len() > 250)),
    },
    Allowed {
        name: "the block behind a faulty ms",
        sentence: "The block of an `ms` with a faulty flag is passed over; memcached may take it for a command.",
        is: |it| it.asks(|words| words[0] == b"ms") && it.memcached_refuses() && !it.herd_refuses(),
    },
    Allowed {
        name: "values of nearly 1 MiB",
        sentence: "Values up to 1,048,576 bytes are stored; memcached's limit of 1 MiB includes its header and \
                   the name.",
        is: |it| it.memcached_says("SERVER_ERROR object too large for cache"),
    },
    Allowed {
        name: "md with x",
        sentence: "`md` with x is a change, so the object has a new CAS value; memcached keeps the old one.",
        is: |it| it.asked_before(|words| words[0] == b"md" && has_flag(words, b'x')) && !it.herd_refuses(),
    },
    Allowed {
        name: "stale and counted",
        sentence: "What `incr`, `decr` or `ma` changes is stale no longer; memcached keeps it stale.",
        is: |it| {
            let counts: [&[u8]; 3] = [b"incr", b"decr", b"ma"];
            let stale = it.memcached.windows(2).any(|two| two == b" X");
            stale && it.asked_before(|words| counts.contains(&words[0]))
        },
    },
    Allowed {
        name: "C0",
        sentence: "C0 compares with 0 in `ma`, and in `ms` of every mode; memcached takes it for no comparison \
                   there.",
        is: |it| it.asks(|words| words.iter().any(|word| word == b"C0")),
    },
    Allowed {
        name: "ms too large",
        sentence: "An `ms` that is too large removes the old value in mode set only; memcached does in every mode.",
        is: |it| {
            let large = |word: &&[u8]| word.len() == 7 && word.iter().all(u8::is_ascii_digit);
            it.asked_before(|words| words[0] == b"ms" && words.get(2).is_some_and(large))
        },
    },
    Allowed {
        name: "ma, T and E",
        sentence: "`ma` with T or E sets time and CAS value whatever the number becomes; memcached forgets both \
                   where it becomes longer.",
        is: |it| {
            it.asked_before(|words| words[0] == b"ma" && (has_flag(words, b'T') || has_flag(words, b'E')))
                && !it.herd_refuses()
        },
    },
    Allowed {
        name: "too few words",
        sentence: "A storage command with too few words is refused at once; memcached may wait for a block.",
        is: |it| it.memcached_says("(waits)") && it.herd.windows(12).any(|text| text == b"CLIENT_ERROR"),
    },
    Allowed {
        name: "another of several faults",
        sentence: "Where a command has several faults, Herd may name another of them than memcached does.",
        is: |it| it.memcached_refuses() && it.herd_refuses(),
    },
];

/// A storage command whose client flags do not fit.
fn has_wide_flags(words: &[&[u8]]) -> bool {
    let verbs: [&[u8]; 6] = [b"set", b"add", b"replace", b"append", b"prepend", b"cas"];
    let flags = words.get(2).and_then(|word| std::str::from_utf8(word).ok()?.parse::<u64>().ok());
    words.first().is_some_and(|verb| verbs.contains(verb)) && flags.is_some_and(|flags| flags > u64::from(u32::MAX))
}

impl Difference {
    fn memcached_says(&self, text: &str) -> bool {
        self.lines[0].starts_with(text.as_bytes())
    }

    fn herd_says(&self, text: &str) -> bool {
        self.lines[1].starts_with(text.as_bytes())
    }

    fn memcached_refuses(&self) -> bool {
        self.memcached_says("ERROR") || self.memcached_says("CLIENT_ERROR")
    }

    fn herd_refuses(&self) -> bool {
        self.herd_says("ERROR") || self.herd_says("CLIENT_ERROR")
    }

    /// Whether some line of what was sent is so.
    fn asks(&self, is: impl Fn(&[&[u8]]) -> bool) -> bool {
        has_line(&self.request, is)
    }

    /// Whether some line was sent before, or now, about the same names.
    fn asked_before(&self, is: impl Fn(&[&[u8]]) -> bool) -> bool {
        self.asks(&is) || self.past.iter().any(|request| has_line(request, &is))
    }

    /// Whether all words of Herd's line that differ are so; they are given with their places.
    fn differs_in(&self, is: impl Fn(usize, &[u8]) -> bool) -> bool {
        let [first, second] = self.lines.each_ref().map(|line| line.trim_ascii_end().split(|byte| *byte == b' '));
        let pairs: Vec<_> = first.clone().zip(second.clone()).enumerate().collect();
        first.count() == second.count()
            && pairs.iter().all(|(place, (one, other))| one == other || is_near(one, other) || is(*place, other))
    }
}

/// Whether some line of a request is so, in words.
fn has_line(request: &[u8], is: impl Fn(&[&[u8]]) -> bool) -> bool {
    request.split(|byte| *byte == b'\n').any(|line| {
        let words = line.trim_ascii_end().split(|byte| *byte == b' ').filter(|word| !word.is_empty());
        let words: Vec<&[u8]> = words.collect();
        !words.is_empty() && is(&words)
    })
}

/// Times that differ by no more than they may.
fn is_near(one: &[u8], other: &[u8]) -> bool {
    [&b"t"[..], b"l", b"exp=", b"la="].iter().any(|prefix| {
        let seconds = |word: &[u8]| std::str::from_utf8(word.strip_prefix(*prefix)?).ok()?.parse::<u64>().ok();
        seconds(one).zip(seconds(other)).is_some_and(|(one, other)| one.abs_diff(other) <= SECONDS)
    })
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
    fn every_sentence_stands_in_the_protocol() {
        let page = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../PROTOCOL.md");
        let page = std::fs::read_to_string(page).expect("the protocol is in the repository");
        for allowed in &ALLOWED {
            assert!(page.contains(allowed.sentence), "PROTOCOL.md lacks: {}", allowed.sentence);
        }
    }
}
