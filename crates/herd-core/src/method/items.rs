//! Lists of byte strings, as arguments and answers of methods are written.

/// The items of a list as the wire has it: each its length (4 bytes, little-endian) and its bytes. `None` if the last
/// is cut short.
pub fn items(mut bytes: &[u8]) -> Option<Vec<&[u8]>> {
    let mut out = Vec::new();
    while let Some((len, rest)) = bytes.split_first_chunk::<4>() {
        let (item, rest) = rest.split_at_checked(u32::from_le_bytes(*len) as usize)?;
        out.push(item);
        bytes = rest;
    }
    bytes.is_empty().then_some(out)
}

/// Appends one item of such a list. Items come from frames of at most 1 MiB, so a length fits.
pub fn push_item(out: &mut Vec<u8>, item: &[u8]) {
    out.extend_from_slice(&(item.len() as u32).to_le_bytes());
    out.extend_from_slice(item);
}

/// A number of decimal digits.
pub(crate) fn unsigned(digits: &[u8]) -> Option<u64> {
    let plain = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(digits).ok().filter(|_| plain)?.parse().ok()
}
