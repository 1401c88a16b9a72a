//! The header fields of a request that mean something to Herd, each at most once; all others are skipped.

use super::number::decimal;
use super::refusal::Refusal;

/// A field kept as it came. Connection and Prefer are lists over several lines and are read at once instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Field {
    Host,
    Range,
    Expect,
    IfMatch,
    IfRange,
    HerdTtl,
    HerdMode,
    HerdLink,
    HerdMtime,
    ContentType,
    ContentRange,
    IfNoneMatch,
    ContentLength,
    ContentEncoding,
    TransferEncoding,
    IfUnmodifiedSince,
}

const COUNT: usize = 16;

impl Field {
    /// Its name; case does not matter.
    pub(super) fn name(self) -> &'static str {
        match self {
            Field::Host => "Host",
            Field::Range => "Range",
            Field::Expect => "Expect",
            Field::IfMatch => "If-Match",
            Field::IfRange => "If-Range",
            Field::HerdTtl => "Herd-TTL",
            Field::HerdMode => "Herd-Mode",
            Field::HerdLink => "Herd-Link",
            Field::HerdMtime => "Herd-Mtime",
            Field::ContentType => "Content-Type",
            Field::ContentRange => "Content-Range",
            Field::IfNoneMatch => "If-None-Match",
            Field::ContentLength => "Content-Length",
            Field::ContentEncoding => "Content-Encoding",
            Field::TransferEncoding => "Transfer-Encoding",
            Field::IfUnmodifiedSince => "If-Unmodified-Since",
        }
    }

    fn of(name: &str) -> Option<Self> {
        let candidates: &[Field] = match name.len() {
            4 => &[Field::Host],
            5 => &[Field::Range],
            6 => &[Field::Expect],
            8 => &[Field::IfMatch, Field::IfRange, Field::HerdTtl],
            9 => &[Field::HerdMode, Field::HerdLink],
            10 => &[Field::HerdMtime],
            12 => &[Field::ContentType],
            13 => &[Field::ContentRange, Field::IfNoneMatch],
            14 => &[Field::ContentLength],
            16 => &[Field::ContentEncoding],
            17 => &[Field::TransferEncoding],
            19 => &[Field::IfUnmodifiedSince],
            _ => &[],
        };
        candidates.iter().copied().find(|field| field.name().eq_ignore_ascii_case(name))
    }
}

/// The fields of one request.
#[derive(Default)]
pub(super) struct Fields<'a> {
    values: [Option<&'a [u8]>; COUNT],
    /// Connection has the option close.
    pub(super) close: bool,
    /// Connection has the option keep-alive.
    pub(super) keep_alive: bool,
    /// The first well-formed wait of Prefer, s.
    pub(super) wait_s: Option<u32>,
}

impl<'a> Fields<'a> {
    /// Sorts the fields of a head; 400 where one stands twice that may stand once.
    pub(super) fn collect(headers: &[httparse::Header<'a>]) -> Result<Self, Refusal> {
        let mut fields = Self::default();
        for header in headers {
            match Field::of(header.name) {
                Some(field) => fields.set(field, header.value)?,
                None if header.name.eq_ignore_ascii_case("connection") => fields.add_connection(header.value),
                None if header.name.eq_ignore_ascii_case("prefer") => fields.add_prefer(header.value),
                None => {}
            }
        }
        Ok(fields)
    }

    /// The value of a field, without white space around it.
    pub(super) fn get(&self, field: Field) -> Option<&'a [u8]> {
        self.values[field as usize]
    }

    fn set(&mut self, field: Field, value: &'a [u8]) -> Result<(), Refusal> {
        let place = &mut self.values[field as usize];
        if place.is_none() {
            *place = Some(value);
        } else if field == Field::Range {
            *place = Some(b""); // Two lines are several ranges, which are ignored.
        } else {
            return Err(Refusal::bad(format!("header {} stands twice", field.name())));
        }
        Ok(())
    }

    fn add_connection(&mut self, value: &[u8]) {
        for option in value.split(|b| *b == b',').map(<[u8]>::trim_ascii) {
            self.close |= option.eq_ignore_ascii_case(b"close");
            self.keep_alive |= option.eq_ignore_ascii_case(b"keep-alive");
        }
    }

    fn add_prefer(&mut self, value: &[u8]) {
        let mut waits = value.split(|b| *b == b',').filter_map(parse_wait);
        self.wait_s = self.wait_s.or_else(|| waits.next());
    }
}

/// Seconds of the preference `wait=N`, the number plain or quoted; longer than 32 bits is the longest.
fn parse_wait(preference: &[u8]) -> Option<u32> {
    let without_parameters = preference.split(|b| *b == b';').next()?;
    let equals = memchr::memchr(b'=', without_parameters)?;
    let (name, value) = (without_parameters[..equals].trim_ascii(), without_parameters[equals + 1..].trim_ascii());
    if !name.eq_ignore_ascii_case(b"wait") {
        return None;
    }
    let quoted = value.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\""));
    let seconds = decimal(quoted.unwrap_or(value))?;
    Some(seconds.and_then(|s| u32::try_from(s).ok()).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn collect<'a>(lines: &[(&'a str, &'a str)]) -> Result<Fields<'a>, Refusal> {
        let header = |(name, value): &(&'a str, &'a str)| httparse::Header { name, value: value.as_bytes() };
        Fields::collect(&lines.iter().map(header).collect::<Vec<_>>())
    }

    const ALL: [Field; COUNT] = [
        Field::Host,
        Field::Range,
        Field::Expect,
        Field::IfMatch,
        Field::IfRange,
        Field::HerdTtl,
        Field::HerdMode,
        Field::HerdLink,
        Field::HerdMtime,
        Field::ContentType,
        Field::ContentRange,
        Field::IfNoneMatch,
        Field::ContentLength,
        Field::ContentEncoding,
        Field::TransferEncoding,
        Field::IfUnmodifiedSince,
    ];

    #[test]
    fn every_field_is_found_by_its_name_in_any_case() {
        for (at, field) in ALL.into_iter().enumerate() {
            assert_eq!(field as usize, at);
            assert_eq!(Field::of(&field.name().to_ascii_uppercase()), Some(field));
            assert_eq!(Field::of(&field.name().to_ascii_lowercase()), Some(field));
        }
        assert_eq!(Field::of("Cookie"), None);
    }

    #[test]
    fn a_field_that_stands_twice_is_refused_and_names_itself() {
        for field in ALL.into_iter().filter(|field| *field != Field::Range) {
            let refusal = collect(&[(field.name(), "1"), (field.name(), "1")]).err().expect("refused");
            assert_eq!(refusal, Refusal::bad(format!("header {} stands twice", field.name())));
        }
        let twice = collect(&[("Range", "bytes=0-1"), ("range", "bytes=3-4")]).expect("several ranges");
        assert_eq!(twice.get(Field::Range), Some(&b""[..]));
    }

    #[test]
    fn connection_is_a_list_over_lines() {
        let fields = collect(&[("connection", "foo, Keep-Alive"), ("Connection", ",CLOSE ,")]).expect("fields");
        assert!(fields.close && fields.keep_alive);
        let fields = collect(&[("Connection", "closed, upgrade")]).expect("fields");
        assert!(!fields.close && !fields.keep_alive);
    }

    #[test]
    fn the_first_wait_holds() {
        let table = [
            ("wait=10", Some(10)),
            ("WAIT = \"7\"", Some(7)),
            ("respond-async, wait=10;x=y, wait=20", Some(10)),
            ("wait=99999999999999999999", Some(u32::MAX)),
            ("wait", None),
            ("wait=", None),
            ("wait=-1", None),
            ("waits=1", None),
        ];
        for (text, wait_s) in table {
            assert_eq!(collect(&[("Prefer", text)]).expect(text).wait_s, wait_s, "{text}");
        }
        assert_eq!(collect(&[("Prefer", "wait=1"), ("Prefer", "wait=2")]).expect("fields").wait_s, Some(1));
    }
}
