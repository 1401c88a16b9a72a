//! Replies of both servers, line by line and word by word, but for what must differ: tokens of `cas` and seconds.
//!
//! A token of one server stands for the token of the other that came in the same place; from then on the two mean the
//! same. Where one of them is known and the other is not, or both are and mean others, the replies differ.

use std::collections::BTreeMap;

/// Seconds by which times may differ.
pub(super) const SECONDS: u64 = 2;

/// Replies that differ.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Difference {
    /// What was asked, as the first server got it.
    pub(super) request: Vec<u8>,
    /// What was sent before about its keys, oldest first.
    pub(super) past: Vec<Vec<u8>>,
    /// All replies of the first server.
    pub(super) memcached: Vec<u8>,
    /// All replies of the second.
    pub(super) herd: Vec<u8>,
    /// The first line of each that differs.
    pub(super) lines: [Vec<u8>; 2],
    /// Which line it is.
    pub(super) at: usize,
    /// Which words of it differ; none if one line has more of them.
    pub(super) places: Vec<usize>,
}

impl Difference {
    /// Differences of one kind are told once: the same verb, and replies that begin alike.
    pub(super) fn kind(&self) -> String {
        let verb = self.request.split(|byte| b" \r\n".contains(byte)).next().unwrap_or_default();
        format!("{} | {}", String::from_utf8_lossy(verb), self.shape())
    }

    /// The lines that differ, but for numbers.
    pub(super) fn shape(&self) -> String {
        let [first, second] = self.lines.each_ref().map(|line| {
            let shape = line.iter().take(40).map(|byte| if byte.is_ascii_digit() { b'0' } else { *byte });
            let mut shape: Vec<u8> = shape.collect();
            shape.dedup();
            String::from_utf8_lossy(&shape).into_owned()
        });
        format!("{first} | {second}")
    }
}

/// Which tokens of the two servers mean the same.
#[derive(Default)]
pub(super) struct Tokens {
    meanings: [BTreeMap<u64, u64>; 2],
    next: u64,
    /// The last pair seen of each key.
    last: BTreeMap<usize, [u64; 2]>,
}

impl Tokens {
    /// The token of `key` that server `side` gave last.
    pub(super) fn last(&self, key: usize, side: usize) -> Option<u64> {
        self.last.get(&key).map(|pair| pair[side])
    }

    /// Compares replies; `key_of` gives the key of a name, or of the step where there is only one.
    pub(super) fn compare(
        &mut self,
        memcached: &[u8],
        herd: &[u8],
        key_of: impl Fn(Option<&[u8]>) -> Option<usize>,
    ) -> Option<Difference> {
        let both = [memcached, herd].map(|bytes| bytes.split(|byte| *byte == b'\n').collect::<Vec<_>>());
        let [first, second] = &both;
        for index in 0..first.len().max(second.len()) {
            let lines = [first, second].map(|lines| lines.get(index).copied().unwrap_or(b"(nothing)"));
            if let Some(places) = self.differing(lines, &key_of) {
                let lines = lines.map(<[u8]>::to_vec);
                let (memcached, herd) = (memcached.to_vec(), herd.to_vec());
                return Some(Difference { memcached, herd, lines, at: index, places, ..Difference::default() });
            }
        }
        None
    }

    /// Which words of two lines differ, none if one has more of them; `None`: the lines say the same.
    fn differing(&mut self, lines: [&[u8]; 2], key_of: &impl Fn(Option<&[u8]>) -> Option<usize>) -> Option<Vec<usize>> {
        let words = lines.map(|line| line.trim_ascii_end().split(|byte| *byte == b' ').collect::<Vec<_>>());
        let [first, second] = &words;
        if first.len() != second.len() {
            return Some(Vec::new());
        }
        let head = first[0];
        let is_value = head == b"VALUE" && first.len() == 5;
        let is_meta = matches!(head, b"VA" | b"HD" | b"NF" | b"NS" | b"EX" | b"ME" | b"EN");
        let named = first.iter().skip(1).find_map(|word| is_meta.then(|| word.strip_prefix(b"k")).flatten());
        let key = key_of(if is_value { first.get(1).copied() } else { named });
        let mut same = |place: usize| {
            let pair = [first[place], second[place]];
            match pair.map(number) {
                [Some(one), Some(other)] if is_value && place == 4 => self.same_token(one, other, key),
                _ if is_meta && place > 0 => self.same_word(pair, key),
                _ => pair[0] == pair[1] || pair.iter().all(|word| place == 1 && head == b"VERSION" && !word.is_empty()),
            }
        };
        let places: Vec<usize> = (0..first.len()).filter(|place| !same(*place)).collect();
        (!places.is_empty()).then_some(places)
    }

    /// A flag that a meta command gives back, or a fact of `me`.
    fn same_word(&mut self, pair: [&[u8]; 2], key: Option<usize>) -> bool {
        let value = |prefix: &[u8]| {
            let [one, other] = pair.map(|word| word.strip_prefix(prefix).and_then(number));
            Some((one?, other?))
        };
        if let Some((one, other)) = value(b"c").or_else(|| value(b"cas=")) {
            return self.same_token(one, other, key);
        }
        // Where an item lies is each server's own affair.
        if value(b"cls=").or_else(|| value(b"size=")).is_some() {
            return true;
        }
        let times = [&b"t"[..], b"l", b"exp=", b"la="].into_iter().find_map(value);
        times.map_or(pair[0] == pair[1], |(one, other)| one.abs_diff(other) <= SECONDS)
    }

    fn same_token(&mut self, one: u64, other: u64, key: Option<usize>) -> bool {
        if let Some(key) = key {
            self.last.insert(key, [one, other]);
        }
        // No server gives 0 of itself: it means that nothing was stored.
        if one == 0 || other == 0 {
            return one == other;
        }
        match [self.meanings[0].get(&one), self.meanings[1].get(&other)] {
            [Some(meaning), Some(other)] => meaning == other,
            [None, None] => {
                self.next += 1;
                self.meanings[0].insert(one, self.next);
                self.meanings[1].insert(other, self.next);
                true
            }
            _ => false,
        }
    }
}

/// A decimal number of digits alone.
fn number(word: &[u8]) -> Option<u64> {
    let digits = !word.is_empty() && word.iter().all(u8::is_ascii_digit);
    digits.then(|| std::str::from_utf8(word).ok()?.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn differ(tokens: &mut Tokens, memcached: &str, herd: &str) -> bool {
        tokens.compare(memcached.as_bytes(), herd.as_bytes(), |_| Some(0)).is_some()
    }

    #[test]
    fn tokens_are_mapped_by_order_of_appearance() {
        let mut tokens = Tokens::default();
        assert!(!differ(&mut tokens, "VALUE k 0 1 7\r\nx\r\nEND\r\n", "VALUE k 0 1 900\r\nx\r\nEND\r\n"));
        assert!(!differ(&mut tokens, "HD c7\r\n", "HD c900\r\n"));
        assert_eq!((tokens.last(0, 0), tokens.last(0, 1)), (Some(7), Some(900)));
        assert!(differ(&mut tokens, "HD c7\r\n", "HD c901\r\n"), "one changed, the other did not");
        assert!(differ(&mut tokens, "HD c8\r\n", "HD c900\r\n"));
        assert!(!differ(&mut tokens, "HD c8\r\n", "HD c902\r\n"));
        assert!(differ(&mut tokens, "HD c7\r\n", "HD c902\r\n"), "they mean others");
    }

    #[test]
    fn seconds_have_a_tolerance_and_all_else_has_none() {
        let mut tokens = Tokens::default();
        assert!(!differ(&mut tokens, "VA 1 t1000 s1\r\nx\r\n", "VA 1 t999 s1\r\nx\r\n"));
        assert!(differ(&mut tokens, "HD t1000\r\n", "HD t990\r\n"));
        assert!(differ(&mut tokens, "HD t-1\r\n", "HD t990\r\n"));
        assert!(differ(&mut tokens, "HD s10\r\n", "HD s11\r\n"));
        assert!(differ(&mut tokens, "STORED\r\n", "STORED\r\nSTORED\r\n"));
        assert!(differ(&mut tokens, "VALUE k 0 1\r\nx\r\n", "VALUE k 0 1\r\ny\r\n"));
        assert!(!differ(
            &mut tokens,
            "ME k exp=5 la=0 cas=9 fetch=no cls=1 size=60\r\n",
            "ME k exp=4 la=1 cas=5 fetch=no cls=1 size=20\r\n"
        ));
        assert!(differ(&mut tokens, "ME k fetch=no\r\n", "ME k fetch=yes\r\n"));
    }

    #[test]
    fn kinds_forget_numbers() {
        let kind = |line: &str| Difference {
            request: b"incr k 1\r\n".to_vec(),
            lines: [line.as_bytes().to_vec(), b"ERROR".to_vec()],
            ..Difference::default()
        };
        assert_eq!(kind("12").kind(), kind("4567").kind());
        assert_ne!(kind("12").kind(), kind("STORED").kind());
    }
}
