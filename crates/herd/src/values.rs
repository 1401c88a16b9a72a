//! Values as people write them on the command line, with errors in plain words. Pure.

use clap::builder::{PossibleValue, StringValueParser, TypedValueParser};
use clap::{Arg, Command};
use herd_client::Token;
use herd_client::address::Address;
use herd_core::door::http::civil;
use herd_core::key::collection_name_is_valid;
use herd_core::limits::{
    COLLECTION_NAME_MAX_BYTES, COPIES_BUILT, LOCK_LEASE_MAX_MS, LOCK_LEASE_MIN_MS, MAP_TEXT_MAX_BYTES,
};
use herd_node::control::etcd;
use std::ffi::OsStr;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::time::Duration;

/// Bytes: `512`, `64k`, `10m`, `2g`.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    herd_core::size::parse(text).ok_or_else(|| "write a size as 512, 64k, 10m or 2g".into())
}

/// Memory of nodes, in bytes. A small number without a unit is none.
pub(crate) fn memory(text: &str) -> Result<u64, String> {
    const SO_FEW: u64 = 100_000;
    match text.parse::<u64>() {
        Ok(bytes) if (1..SO_FEW).contains(&bytes) => Err(format!("{bytes} is bytes: did you mean {bytes}m?")),
        _ => size(text),
    }
}

/// Bytes, one at least.
pub(crate) fn some_size(text: &str) -> Result<u64, String> {
    size(text).ok().filter(|size| *size > 0).ok_or_else(|| "write a size above 0 as 512, 64k, 10m or 2g".into())
}

/// A word of which some are offered by shell completion; whether there are others is for the herd to say.
#[derive(Clone)]
pub(crate) struct Suggested(pub(crate) &'static [&'static str]);

impl TypedValueParser for Suggested {
    type Value = String;

    fn parse_ref(&self, command: &Command, arg: Option<&Arg>, value: &OsStr) -> Result<String, clap::Error> {
        StringValueParser::new().parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(self.0.iter().map(PossibleValue::new)))
    }
}

/// A span above zero: `30`, `0.5` (seconds), `500ms`, `10s`, `5m`, `1h`, `2d`.
pub(crate) fn span(text: &str) -> Result<Duration, String> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let factor = match unit.trim() {
        "ms" => 0.001,
        "" | "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3_600.0,
        "d" => 86_400.0,
        _ => f64::NAN,
    };
    let is_number = number.starts_with(|c: char| c.is_ascii_digit());
    let seconds = number.parse::<f64>().ok().filter(|_| is_number).map(|number| number * factor);
    let span = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    span.filter(|span| !span.is_zero()).ok_or_else(|| "write a time above 0 as 30s, 500ms, 5m, 1h or 2d".into())
}

/// A span, or 0 in any unit.
pub(crate) fn wait(text: &str) -> Result<Duration, String> {
    let is_zero = matches!(text.trim_end_matches(|c: char| c.is_ascii_alphabetic()), "0");
    if is_zero && span(&text.replacen('0', "1", 1)).is_ok() { Ok(Duration::ZERO) } else { span(text) }
}

/// How long a lock is held unless renewed.
pub(crate) fn lease(text: &str) -> Result<Duration, String> {
    let bounds = Duration::from_millis(LOCK_LEASE_MIN_MS)..=Duration::from_millis(LOCK_LEASE_MAX_MS);
    span(text).ok().filter(|span| bounds.contains(span)).ok_or_else(|| "write 100ms to 24h".into())
}

/// A media type that HTTP can serve: printable ASCII.
pub(crate) fn content_type(text: &str) -> Result<String, String> {
    let is_plain = !text.is_empty() && text.bytes().all(|byte| matches!(byte, b' '..=b'~'));
    if is_plain { Ok(text.into()) } else { Err("write a media type as text/plain".into()) }
}

/// A lock's token, as `herd lock` gives it to its command.
pub(crate) fn token(text: &str) -> Result<Token, String> {
    Token::parse(text).ok_or_else(|| "a token is 32 hexadecimal digits, a dash and a number".into())
}

/// A whole number.
pub(crate) fn number(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| "write a whole number".into())
}

/// A number of threads or transfers.
pub(crate) fn count<const MOST: u16>(text: &str) -> Result<u16, String> {
    let count = text.parse().ok().filter(|count| (1..=MOST).contains(count));
    count.ok_or_else(|| format!("write a number from 1 to {MOST}"))
}

/// A number of copies.
pub(crate) fn copies(text: &str) -> Result<u8, String> {
    count::<9>(text).map_err(|_| format!("write a number from 1 to {COPIES_BUILT}")).map(|copies| copies as u8)
}

/// A port; 0: a free one.
pub(crate) fn port(text: &str) -> Result<u16, String> {
    text.parse().map_err(|_| "write a port, from 0 to 65535".into())
}

/// Bytes A to B, both included, B optional.
pub(crate) fn range(text: &str) -> Result<(u64, Option<u64>), String> {
    let bad = || "write A-B with A <= B, or A-".to_string();
    let (from, to) = text.split_once('-').ok_or_else(bad)?;
    let from = from.parse().map_err(|_| bad())?;
    let to = if to.is_empty() { None } else { Some(to.parse().map_err(|_| bad())?) };
    if to.is_some_and(|to| to < from) { Err(bad()) } else { Ok((from, to)) }
}

/// Where a node is, as other nodes are told it: looked up where it is used.
pub(crate) fn address(text: &str) -> Result<String, String> {
    let bad = || "write an address as HOST:PORT".to_string();
    let (host, port) = text.rsplit_once(':').ok_or_else(bad)?;
    let port: u16 = port.parse().map_err(|_| bad())?;
    let fits = !host.is_empty() && port > 0 && text.len() <= MAP_TEXT_MAX_BYTES;
    if fits && text.bytes().all(|byte| byte.is_ascii_graphic()) { Ok(text.to_owned()) } else { Err(bad()) }
}

/// A node to ask, as `--node` has it: `HOST`, `HOST:PORT`, `:PORT` of this machine, `http://HOST:PORT`.
pub(crate) fn node(text: &str) -> Result<String, String> {
    let address = Address::parse(text).map_err(|error| error.to_string())?.to_string();
    if address.len() <= MAP_TEXT_MAX_BYTES { Ok(address) } else { Err("the name of its host is too long".into()) }
}

/// Where a herd's control store is.
#[derive(Clone, Debug)]
pub(crate) enum Control {
    /// In the directory of its first node.
    Embedded,
    /// In an etcd.
    Etcd(etcd::Address),
}

/// `embedded`, or the address of an etcd.
fn control(text: &str) -> Result<Control, String> {
    if text == "embedded" {
        return Ok(Control::Embedded);
    }
    etcd::Address::parse(text).map(Control::Etcd).map_err(|why| no_control(text, &why))
}

/// What is wrong with what was meant as `embedded`, or as an etcd.
fn no_control(text: &str, why: &str) -> String {
    const SCHEME: &str = "etcd://";
    const PORT: u16 = 2379;
    let is_right = |address: &str| etcd::Address::parse(address).is_ok();
    let with_port = |host: &str| match host.rsplit_once(':') {
        Some((_, port)) if !port.ends_with(']') => host.to_owned(),
        _ => format!("{host}:{PORT}"),
    };
    let with_scheme = format!("{SCHEME}{text}");
    match text.split_once("://") {
        Some(("etcd", rest)) => {
            let (hosts, name) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
            let hosts: Vec<String> = hosts.split(',').map(with_port).collect();
            let filled = format!("{SCHEME}{}{name}", hosts.join(","));
            if is_right(&filled) { format!("the port is missing: {filled}") } else { why.to_owned() }
        }
        Some((scheme, _)) => format!("an etcd is written etcd://HOST:PORT, not {scheme}://"),
        None if is_right(&with_scheme) => format!("an etcd is written {with_scheme}"),
        None if text.to_ascii_lowercase().starts_with("emb") => "did you mean 'embedded'?".into(),
        None => format!("{why}, or 'embedded'"),
    }
}

/// Reads it so on the command line, where shell completion offers the one word there is.
#[derive(Clone)]
pub(crate) struct ControlWords;

impl TypedValueParser for ControlWords {
    type Value = Control;

    fn parse_ref(&self, command: &Command, arg: Option<&Arg>, value: &OsStr) -> Result<Control, clap::Error> {
        control.parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(std::iter::once(PossibleValue::new("embedded"))))
    }
}

/// The name of a node, which may be what that of a collection may be.
pub(crate) fn node_name(text: &str) -> Result<String, String> {
    let bad = || format!("a node's name is 1 to {COLLECTION_NAME_MAX_BYTES} letters, digits, '.', '-' or '_'");
    if collection_name_is_valid(text) { Ok(text.to_owned()) } else { Err(bad()) }
}

/// Where to listen: `ADDR:PORT`, `localhost:PORT`, `:PORT` for all addresses.
pub(crate) fn listen(text: &str) -> Result<SocketAddr, String> {
    let bad = || match text.parse::<u16>() {
        Ok(port) => format!("write an address as 127.0.0.1:{port}, or :{port} for all addresses of this machine"),
        Err(_) => "write an address as 127.0.0.1:7700".to_string(),
    };
    if let Ok(addr) = text.parse() {
        return Ok(addr);
    }
    let (host, port) = text.rsplit_once(':').ok_or_else(bad)?;
    let port: u16 = port.parse().map_err(|_| bad())?;
    match host {
        "" => Ok((IpAddr::from(Ipv4Addr::UNSPECIFIED), port).into()),
        host => (host, port).to_socket_addrs().ok().and_then(|mut found| found.next()).ok_or_else(bad),
    }
}

/// Groups, as `herd group ls` names them: `SPREAD/GROUP`, with a dot too; `SPREAD`; or nothing: all.
pub(crate) fn groups(text: &str) -> Result<(Option<u16>, Option<u16>), String> {
    let bad = || format!("'{text}' names no group: give one as `herd group ls` does, such as 0/7, or a spread group");
    let number = |text: &str| text.parse().map(Some).map_err(|_| bad());
    match text.split_once(['/', '.']) {
        _ if text.is_empty() => Ok((None, None)),
        Some((spread, group)) => Ok((number(spread)?, number(group)?)),
        None => Ok((number(text)?, None)),
    }
}

/// One group: `SPREAD/GROUP`.
pub(crate) fn group(text: &str) -> Result<(u16, u16), String> {
    match groups(text) {
        Ok((Some(spread), Some(group))) => Ok((spread, group)),
        _ => Err(format!("'{text}' names no group: give one as `herd group ls` does, such as 0/7")),
    }
}

/// A moment, s since 1970, as people read it: `2026-11-22 04:59:00 UTC`.
pub(crate) fn date(unix_s: i64) -> String {
    let (days, second) = (unix_s.div_euclid(86_400), unix_s.rem_euclid(86_400));
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC", month + 1)
}

/// A POSIX mode as `ls -l` writes it, with its number: `-rw-r--r-- (644)`.
pub(crate) fn permissions(mode: u32) -> String {
    let kind = match mode & 0o170_000 {
        0o040_000 => 'd',
        0o120_000 => 'l',
        _ => '-',
    };
    let bits = (0..9).map(|at| if mode & (0o400 >> at) != 0 { ['r', 'w', 'x'][at % 3] } else { '-' });
    format!("{kind}{} ({:o})", bits.collect::<String>(), mode & 0o7777)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_media_type_is_one_that_http_can_serve() {
        assert!(content_type("text/plain; charset=utf-8").is_ok());
        for text in ["", "a\r\nX-Evil: 1", "a\u{1b}]0;x", "text/\u{fc}"] {
            assert!(content_type(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_wait_may_be_nothing_and_a_lease_has_bounds() {
        for text in ["0", "0s", "0ms", "0h"] {
            assert_eq!(wait(text), Ok(Duration::ZERO), "{text}");
        }
        assert_eq!(wait("2m"), Ok(Duration::from_secs(120)));
        assert!(wait("0x").is_err() && wait("").is_err() && wait("-1s").is_err());
        assert_eq!(lease("100ms"), Ok(Duration::from_millis(100)));
        assert!(lease("99ms").is_err() && lease("25h").is_err());
    }

    #[test]
    fn spans_as_people_write_them() {
        for (text, ms) in [
            ("30", 30_000),
            ("0.5", 500),
            ("500ms", 500),
            ("10s", 10_000),
            ("1.5m", 90_000),
            ("5min", 300_000),
            ("1h", 3_600_000),
            ("2d", 172_800_000),
        ] {
            assert_eq!(span(text), Ok(Duration::from_millis(ms)), "{text}");
        }
    }

    #[test]
    fn what_is_no_span_is_refused_in_plain_words() {
        for text in
            ["", "0", "0s", "-1", "+1", "1y", "h", "inf", "nan", "1e9", ".5", ".", "9999999999999999999d", "1h2"]
        {
            let error = span(text).expect_err(text);
            assert!(error.contains("30s"), "{error}");
        }
    }

    #[test]
    fn a_range_may_end_at_the_last_number_there_is() {
        assert_eq!(range("0-18446744073709551615"), Ok((0, Some(u64::MAX))));
        assert_eq!(range("5-"), Ok((5, None)));
        for text in ["", "-", "5", "-5", "6-5", "a-b", "0-18446744073709551616"] {
            assert!(range(text).is_err(), "{text}");
        }
    }

    #[test]
    fn dates_and_modes_as_people_read_them() {
        assert_eq!(date(0), "1970-01-01 00:00:00 UTC");
        assert_eq!(date(1_709_210_096), "2024-02-29 12:34:56 UTC");
        assert_eq!(date(-1), "1969-12-31 23:59:59 UTC");
        assert_eq!(permissions(0o100_644), "-rw-r--r-- (644)");
        assert_eq!(permissions(0o042_750), "drwxr-x--- (2750)");
    }

    #[test]
    fn nodes_to_ask_and_their_names() {
        for (text, read) in [
            (":7701", "127.0.0.1:7701"),
            ("one", "one:7700"),
            ("one:7701", "one:7701"),
            ("::1", "[::1]:7700"),
            ("http://one:1/", "one:1"),
        ] {
            assert_eq!(node(text).as_deref(), Ok(read), "{text}");
        }
        let told = node("7701").expect_err("a port alone");
        assert!(told.ends_with("a port of this machine is written ':7701'"), "{told}");
        for text in ["", "a b", "one:0", &"a".repeat(300)] {
            assert!(node(text).is_err(), "{text}");
        }
        assert_eq!(node_name("n1.rack-2_a").as_deref(), Ok("n1.rack-2_a"));
        for text in ["", "a b", ".", "a/b", "\u{fc}", "a\n"] {
            assert!(node_name(text).expect_err(text).contains("letters, digits"), "{text}");
        }
    }

    #[test]
    fn addresses_to_listen_on() {
        let addr = |text: &str| listen(text).map(|addr| addr.to_string());
        assert_eq!(addr("127.0.0.1:0").as_deref(), Ok("127.0.0.1:0"));
        assert_eq!(addr("[::1]:7700").as_deref(), Ok("[::1]:7700"));
        assert_eq!(addr(":7700").as_deref(), Ok("0.0.0.0:7700"));
        assert!(listen("localhost:7700").is_ok_and(|addr| addr.ip().is_loopback()));
        for text in ["", "7700", "127.0.0.1", "127.0.0.1:x", "127.0.0.1:70000"] {
            assert!(listen(text).is_err(), "{text}");
        }
        let told = listen("22100").expect_err("a port alone");
        assert_eq!(told, "write an address as 127.0.0.1:22100, or :22100 for all addresses of this machine");
    }

    #[test]
    fn memory_without_a_unit_is_asked_about() {
        assert_eq!(memory("300").expect_err("bytes"), "300 is bytes: did you mean 300m?");
        assert_eq!((memory("300m"), memory("67108864")), (Ok(300 << 20), Ok(64 << 20)));
        assert!(memory("lots").expect_err("no size").contains("write a size"));
    }

    #[test]
    fn what_is_wrong_with_the_place_of_a_map_is_said() {
        assert!(matches!(control("embedded"), Ok(Control::Embedded)));
        assert!(matches!(control("etcd://a:1,b:2/name"), Ok(Control::Etcd(_))));
        for (text, told) in [
            ("embeded", "did you mean 'embedded'?"),
            ("http://127.0.0.1:2379", "an etcd is written etcd://HOST:PORT, not http://"),
            ("etcd://127.0.0.1", "the port is missing: etcd://127.0.0.1:2379"),
            ("etcd://a,b:1,[::1]/x", "the port is missing: etcd://a:2379,b:1,[::1]:2379/x"),
            ("127.0.0.1:2379", "an etcd is written etcd://127.0.0.1:2379"),
            ("etcd://", "write etcd://HOST:PORT[,HOST:PORT..][/NAME]"),
            ("etcd://a:x", "write etcd://HOST:PORT[,HOST:PORT..][/NAME]"),
            ("disk", "write etcd://HOST:PORT[,HOST:PORT..][/NAME], or 'embedded'"),
        ] {
            assert_eq!(control(text).expect_err(text), told, "{text}");
        }
    }
}
