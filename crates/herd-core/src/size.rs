//! Sizes as people write them: `64`, `64k`, `10m`, `1.5g`, `2GiB` (powers of 1,024).

/// Parses a size in bytes; `None` if it is not one.
pub fn parse(text: &str) -> Option<u64> {
    let lower = text.trim().to_ascii_lowercase();
    let number = lower.trim_end_matches("ib").trim_end_matches('b');
    let (digits, shift) = match number.char_indices().next_back()? {
        (at, 'k') => (&number[..at], 10),
        (at, 'm') => (&number[..at], 20),
        (at, 'g') => (&number[..at], 30),
        (at, 't') => (&number[..at], 40),
        _ => (number, 0),
    };
    if let Ok(whole) = digits.parse::<u64>() {
        return whole.checked_mul(1 << shift);
    }
    let value = digits.parse::<f64>().ok().filter(|v| v.is_finite() && *v >= 0.0)?;
    let bytes = value * (1u64 << shift) as f64;
    (bytes < 9e18).then_some(bytes as u64)
}

/// A size for people: `512 B`, `1.5 MiB`.
pub fn show(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_as_people_write_them() {
        for (text, bytes) in
            [("0", 0), ("64", 64), ("64k", 65536), ("1.5g", 1610612736), ("2GiB", 2 << 30), ("5MB", 5 << 20)]
        {
            assert_eq!(parse(text), Some(bytes), "{text}");
        }
        for text in ["", "x", "-1", "1q", "99999999999t", "nan", "1e"] {
            assert_eq!(parse(text), None, "{text}");
        }
        assert_eq!(show(1536 << 10), "1.5 MiB");
    }
}
