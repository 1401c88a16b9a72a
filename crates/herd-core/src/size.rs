//! Sizes as people write them: `64`, `64k`, `10m`, `1.5g`, `2GiB`, `1.5 MiB` (powers of 1,024).
//!
//! The grammar, in any case: `digits [. digits] [space] [unit]`, where a unit is `b`, or `k`, `m`, `g` or `t`, alone or
//! followed by `b` or `ib`. White space around it does not count. What [`show`] prints is read by [`parse`].

const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];

/// Parses a size in bytes, a fraction of a byte left off; `None` if it is not one.
pub fn parse(text: &str) -> Option<u64> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let factor = 1 << shift(unit.strip_prefix(' ').unwrap_or(unit))?;
    let (whole, fraction) = number.split_at(number.find('.').unwrap_or(number.len()));
    let whole = whole.parse::<u64>().ok()?.checked_mul(factor)?;
    if fraction.is_empty() {
        return Some(whole);
    }
    // The whole is not made a float: that would round what is above 2^53. A point alone is no number.
    let part = fraction.parse::<f64>().ok()? * factor as f64;
    whole.checked_add(part as u64)
}

/// The power of two a unit stands for.
fn shift(unit: &str) -> Option<u32> {
    Some(match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return None,
    })
}

/// A size for people: `512 B`, `1.5 MiB`; what is beyond a tenth is left off.
pub fn show(bytes: u64) -> String {
    let unit = (bytes.max(1).ilog2() / 10).min(UNITS.len() as u32 - 1);
    if unit == 0 {
        return format!("{bytes} B");
    }
    let (whole, rest) = (bytes >> (10 * unit), bytes % (1 << (10 * unit)));
    format!("{whole}.{} {}", (rest * 10) >> (10 * unit), UNITS[unit as usize])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_as_people_write_them() {
        for (text, bytes) in [
            ("0", 0),
            ("64", 64),
            ("64k", 65536),
            ("1.5g", 1610612736),
            ("2GiB", 2 << 30),
            ("5MB", 5 << 20),
            ("1.5 MiB", 3 << 19),
            ("512 B", 512),
            ("7b", 7),
            ("0.5kib", 512),
            ("1.1k", 1126),
            ("007", 7),
            (" 10 m\n", 10 << 20),
            ("16777215t", 16777215 << 40),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(parse(text), Some(bytes), "{text}");
        }
    }

    #[test]
    fn what_is_not_a_size_is_refused() {
        for text in [
            "", " ", "x", "-1", "+1", "1q", "nan", "inf", "1e", "1e3", "0x10", ".", ".5", "5.", "1.2.3", "1..2", "1,5",
            "5kibib", "5bbb", "5ibb", "5ib", "5kk", "5 ki", "5  k", "5\tk", "5k b", "1. 5k", "k", "KiB", " B", "5 k5",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn more_than_64_bits_are_refused() {
        for text in ["18446744073709551616", "99999999999t", "16777216t", "16777216.0t", "18446744073709551616.5"] {
            assert_eq!(parse(text), None, "{text}");
        }
        assert_eq!(parse(&("9".repeat(400) + ".5")), None);
    }

    #[test]
    fn every_unit_is_read_in_any_case() {
        for (shift, letter) in [(10, "k"), (20, "m"), (30, "g"), (40, "t")] {
            for rest in ["", "b", "B", "ib", "iB", "IB"] {
                for letter in [letter.to_string(), letter.to_uppercase()] {
                    assert_eq!(parse(&format!("3{letter}{rest}")), Some(3 << shift), "{letter}{rest}");
                    assert_eq!(parse(&format!("3 {letter}{rest}")), Some(3 << shift), "{letter}{rest}");
                }
            }
        }
    }

    #[test]
    fn sizes_for_people() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1536 << 10, "1.5 MiB"),
            ((1 << 20) - 1, "1023.9 KiB"),
            (5 << 40, "5.0 TiB"),
            (u64::MAX, "16777215.9 TiB"),
        ] {
            assert_eq!(show(bytes), text);
        }
    }

    /// Every size is read back from what is shown of it, less than a tenth of the unit too small.
    #[test]
    fn what_is_shown_reads_back_close() {
        let mut state = 1u64;
        let mut random = || {
            // A full-period generator; its high bits are good enough to spread the values.
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            state
        };
        let edges = (0..64).flat_map(|bit| [(1u64 << bit) - 1, 1 << bit, (1 << bit) + 1]).chain([u64::MAX]);
        let spread: Vec<u64> = (0..20_000).map(|_| random() >> (random() >> 58)).collect();
        for bytes in edges.chain(spread) {
            let back = parse(&show(bytes)).unwrap_or_else(|| panic!("{bytes}: {}", show(bytes)));
            let unit = 1u64 << (10 * (bytes.max(1).ilog2() / 10).min(4));
            // A tenth is no binary fraction: its nearest value may lie a byte below.
            let most = if unit == 1 { 0 } else { unit / 10 + 1 };
            assert!(back <= bytes && bytes - back <= most, "{bytes} came back as {back} from {}", show(bytes));
        }
    }
}
