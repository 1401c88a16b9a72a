//! Percent-encoding (RFC 3986 §2.1): a name may be any bytes, and costs nothing where it is written plainly.

use std::borrow::Cow;

/// What `+` stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Plus {
    /// Itself, as in a path.
    Plus,
    /// A space, as form encoders write it in a query.
    Space,
}

/// Decodes; borrows where there is nothing to decode. `None`: a `%` without two hexadecimal digits.
pub(super) fn decode(text: &[u8], plus: Plus) -> Option<Cow<'_, [u8]>> {
    let first = match plus {
        Plus::Plus => memchr::memchr(b'%', text),
        Plus::Space => memchr::memchr2(b'%', b'+', text),
    };
    let Some(first) = first else {
        return Some(Cow::Borrowed(text));
    };
    let mut out = Vec::with_capacity(text.len());
    out.extend_from_slice(&text[..first]);
    let mut rest = &text[first..];
    while let [byte, after @ ..] = rest {
        rest = after;
        match *byte {
            b'%' => {
                let [high, low, after @ ..] = rest else { return None };
                out.push(hex(*high)? << 4 | hex(*low)?);
                rest = after;
            }
            b'+' if plus == Plus::Space => out.push(b' '),
            plain => out.push(plain),
        }
    }
    Some(Cow::Owned(out))
}

/// The value of one hexadecimal digit.
pub(super) fn hex(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        b'A'..=b'F' => Some(digit - b'A' + 10),
        _ => None,
    }
}

/// Appends `bytes` with all but unreserved characters and `/` encoded.
pub(super) fn put(out: &mut Vec<u8>, bytes: &[u8]) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    for byte in bytes {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => out.push(*byte),
            _ => out.extend_from_slice(&[b'%', DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_text_is_borrowed_and_coded_text_decoded() {
        assert!(matches!(decode(b"a+b", Plus::Plus), Some(Cow::Borrowed(b"a+b"))));
        assert_eq!(decode(b"a+b%2B", Plus::Space).as_deref(), Some(&b"a b+"[..]));
        assert_eq!(decode(b"%00%fF/%25", Plus::Plus).as_deref(), Some(&b"\0\xff/%"[..]));
    }

    #[test]
    fn a_percent_sign_needs_two_digits() {
        for text in ["%", "%1", "%g1", "%1g", "a%", "%%41", "%+1"] {
            assert_eq!(decode(text.as_bytes(), Plus::Plus), None, "{text}");
        }
    }

    #[test]
    fn all_bytes_read_back_as_they_were_written() {
        let all: Vec<u8> = (0..=255).collect();
        let mut out = Vec::new();
        put(&mut out, &all);
        assert!(out.iter().all(|b| b.is_ascii_graphic()));
        assert_eq!(decode(&out, Plus::Space).as_deref(), Some(&all[..]));
    }
}
