//! Stored values as numbers (`incr`, `decr`), and expiry times, against a model in wider numbers.

use crate::Outcomes;
use crate::random::Random;
use herd_core::door::memcached::{apply_delta, decimal, expires_ms, remaining_s};

/// What the corpus reaches.
pub const OUTCOMES: &[&[&str]] = &[&["not a number", "over 64 bits", "number", "wraps", "stops at 0"]];

/// Words of the driver.
pub const DICTIONARY: &[&[u8]] =
    &[b"18446744073709551615", b"18446744073709551616", b"0000000000000000000000", b" ", b"\t", b"-1", b"+1", b"9"];

/// Runs the target.
pub fn run(input: &[u8]) -> Outcomes {
    let mut outcomes = Outcomes::default();
    let mut random = Random::of(input);
    let model = model(input);
    outcomes.add(match model {
        Ok(_) => "number",
        Err(why) => why,
    });
    for delta in [0, 1, u64::MAX, random.number()] {
        let (up, down) = (apply_delta(input, delta, false), apply_delta(input, delta, true));
        let Ok(value) = model else {
            assert_eq!((up, down), (None, None), "what is no number stays none");
            continue;
        };
        let sum = u128::from(value) + u128::from(delta);
        assert_eq!(up.map(u128::from), Some(sum % (1 << 64)), "an increment wraps");
        assert_eq!(down, Some(value.saturating_sub(delta)), "a decrement stops at 0");
        if sum >> 64 != 0 {
            outcomes.add("wraps");
        }
        if delta > value {
            outcomes.add("stops at 0");
        }
    }
    if let Ok(value) = model {
        let mut out = Vec::new();
        decimal(value, &mut out);
        assert_eq!(out, value.to_string().into_bytes());
        check_expiry(value as i64, random.number() >> 20);
    }
    outcomes
}

/// The number a value is, or why it is none.
fn model(value: &[u8]) -> Result<u64, &'static str> {
    let digits = value.trim_ascii();
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return Err("not a number");
    }
    let wide = digits.iter().fold(0u128, |sum, digit| sum.saturating_mul(10).saturating_add(u128::from(digit - b'0')));
    u64::try_from(wide).map_err(|_| "over 64 bits")
}

fn check_expiry(exptime: i64, now_ms: u64) {
    let at = expires_ms(exptime, now_ms);
    assert_eq!(at == 0, exptime == 0, "only 0 is never");
    match remaining_s(at, now_ms) {
        None => assert_eq!(at, 0),
        Some(left) if exptime < 0 => assert_eq!(left, 0),
        Some(left) => assert!(left <= u64::MAX / 1000 + 1),
    }
}
