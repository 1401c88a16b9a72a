//! Numbers as memcached reads and writes them: plain decimal digits, read strictly, written without formatting
//! machinery.

/// Most digits of a number of 64 bits.
const U64_DIGITS: usize = 20;

/// Longest token read as a number, as in memcached: leading zeros are allowed, but not without end.
const TOKEN_MAX_BYTES: usize = 22;

/// Digits that fit 64 bits whatever they are.
const SAFE_DIGITS: usize = 19;

/// The number a token is; `None` if it is empty, too long, has other bytes than digits, or does not fit.
#[inline]
pub(super) fn unsigned(token: &[u8]) -> Option<u64> {
    let (safe, rest) = token.split_at(token.len().min(SAFE_DIGITS));
    if safe.is_empty() || token.len() > TOKEN_MAX_BYTES {
        return None;
    }
    let mut sum = 0u64;
    for byte in safe {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        sum = sum.wrapping_mul(10).wrapping_add(u64::from(digit));
    }
    for byte in rest {
        let digit = byte.checked_sub(b'0').filter(|digit| *digit <= 9)?;
        sum = sum.checked_mul(10)?.checked_add(u64::from(digit))?;
    }
    Some(sum)
}

/// [`unsigned`] in 32 bits.
#[inline]
pub(super) fn unsigned32(token: &[u8]) -> Option<u32> {
    u32::try_from(unsigned(token)?).ok()
}

/// A number that may be negative.
#[inline]
pub(super) fn signed(token: &[u8]) -> Option<i64> {
    match token {
        [b'-', digits @ ..] => 0i64.checked_sub_unsigned(unsigned(digits)?),
        digits => i64::try_from(unsigned(digits)?).ok(),
    }
}

/// Digits of a number, written from the back into a small buffer.
pub(super) struct Tail<const N: usize> {
    bytes: [u8; N],
    start: usize,
}

impl<const N: usize> Tail<N> {
    /// An empty one.
    pub(super) fn new() -> Self {
        Self { bytes: [0; N], start: N }
    }

    /// Puts `byte` before what is there.
    #[inline]
    pub(super) fn byte(&mut self, byte: u8) {
        self.start -= 1;
        self.bytes[self.start] = byte;
    }

    /// Puts the digits of `number` before what is there.
    #[inline]
    pub(super) fn number(&mut self, mut number: u64) {
        while number >= 10 {
            self.byte(b'0' + (number % 10) as u8);
            number /= 10;
        }
        self.byte(b'0' + number as u8);
    }

    /// What has been written.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[self.start..]
    }
}

/// Appends `number` in decimal.
#[inline]
pub fn decimal(number: u64, out: &mut Vec<u8>) {
    let mut tail = Tail::<U64_DIGITS>::new();
    tail.number(number);
    out.extend_from_slice(tail.bytes());
}

/// What `incr` or `decr` by `delta` makes of `value`; `None` if the value is not a number of 64 bits.
///
/// As in memcached an increment wraps at 64 bits and a decrement stops at 0; white space around the digits and a plus
/// sign before them are let pass.
pub fn apply_delta(value: &[u8], delta: u64, decrement: bool) -> Option<u64> {
    let digits = value.trim_ascii();
    let digits = digits.strip_prefix(b"+").unwrap_or(digits);
    // A value may begin with more zeros than a token may.
    let zeros = digits.iter().take_while(|byte| **byte == b'0').count();
    let number = unsigned(&digits[zeros.min(digits.len().saturating_sub(1))..])?;
    Some(if decrement { number.saturating_sub(delta) } else { number.wrapping_add(delta) })
}
