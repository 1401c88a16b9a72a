//! Numbers as header fields have them: read strictly, written without formatting machinery.

/// Reads one or more decimal digits and nothing else. `None`: not a number; `Some(None)`: over 64 bits.
pub(super) fn decimal(text: &[u8]) -> Option<Option<u64>> {
    if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let mut value = Some(0u64);
    for digit in text {
        value = value.and_then(|v| v.checked_mul(10)?.checked_add(u64::from(digit - b'0')));
    }
    Some(value)
}

/// Reads seconds with an optional decimal fraction as ms, rounded up; `None` where it is none or over 64 bits.
pub(super) fn seconds_as_ms(text: &[u8]) -> Option<u64> {
    let (whole, fraction) = match memchr::memchr(b'.', text) {
        Some(at) => (&text[..at], &text[at + 1..]),
        None => (text, &b"0"[..]),
    };
    decimal(fraction)?;
    let mut ms = 0;
    for place in 0..3 {
        ms = ms * 10 + fraction.get(place).map_or(0, |digit| u64::from(digit - b'0'));
    }
    let more = fraction.iter().skip(3).any(|digit| *digit != b'0');
    decimal(whole)??.checked_mul(1000)?.checked_add(ms + u64::from(more))
}

/// Reads a POSIX mode, 1 to 6 octal digits and at most 16 bits; a leading zero or two is fine.
pub(super) fn octal_mode(text: &[u8]) -> Option<u32> {
    if text.is_empty() || text.len() > 8 || !text.iter().all(|b| matches!(b, b'0'..=b'7')) {
        return None;
    }
    let mode = text.iter().fold(0, |mode, digit| mode * 8 + u32::from(digit - b'0'));
    (mode <= 0xFFFF).then_some(mode)
}

/// Appends `value` in decimal.
pub(super) fn put_decimal(out: &mut Vec<u8>, value: u64) {
    put_radix(out, value, 10);
}

/// Appends `value` in octal.
pub(super) fn put_octal(out: &mut Vec<u8>, value: u32) {
    put_radix(out, u64::from(value), 8);
}

fn put_radix(out: &mut Vec<u8>, mut value: u64, radix: u64) {
    let mut digits = [0; 22];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (value % radix) as u8;
        value /= radix;
        if value == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimals_are_digits_and_nothing_else() {
        assert_eq!(decimal(b"18446744073709551615"), Some(Some(u64::MAX)));
        assert_eq!(decimal(b"18446744073709551616"), Some(None));
        assert_eq!(decimal(b"007"), Some(Some(7)));
        for text in ["", "+1", "-1", " 1", "1 ", "0x1", "1_0"] {
            assert_eq!(decimal(text.as_bytes()), None, "{text:?}");
        }
    }

    #[test]
    fn seconds_become_ms_rounded_up() {
        let table = [("1", 1000), ("1.5", 1500), ("0.0001", 1), ("2.0000", 2000), ("0", 0), ("0.1239", 124)];
        for (text, ms) in table {
            assert_eq!(seconds_as_ms(text.as_bytes()), Some(ms), "{text}");
        }
        for text in ["", ".5", "1.", "-1", "1e3", "1.2.3", "18446744073709551615", "99999999999999999999"] {
            assert_eq!(seconds_as_ms(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn modes_are_octal_and_16_bits() {
        assert_eq!(octal_mode(b"100644"), Some(0o100644));
        assert_eq!(octal_mode(b"0755"), Some(0o755));
        for text in ["", "8", "200000", "-1", "000000000"] {
            assert_eq!(octal_mode(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn numbers_are_written_whole() {
        for value in [0, 9, 10, u64::MAX] {
            let mut out = Vec::new();
            put_decimal(&mut out, value);
            assert_eq!(out, value.to_string().into_bytes());
        }
        let mut out = Vec::new();
        put_octal(&mut out, 0o100644);
        assert_eq!(out, b"100644");
    }
}
