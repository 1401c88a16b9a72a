//! Addresses of nodes as people write them. Pure: names are looked up by the shells.

use crate::error::{Error, Result};
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

/// Port of a node where none is given.
pub const DEFAULT_PORT: u16 = 7700;

/// Where a node listens: a host by name or number, and a port.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Address {
    /// Name, or number without brackets.
    pub host: String,
    /// Port, above 0.
    pub port: u16,
}

impl Address {
    /// `HOST`, `HOST:PORT`, `:PORT` (of this machine) or `http://HOST[:PORT][/]`. A number of IPv6 that a port follows
    /// stands in brackets. The error says what is wrong, in one line.
    pub fn parse(text: &str) -> Result<Self> {
        let bad = |why: &str| Error::bad_request(format!("'{}' is not a node's address: {why}", text.escape_debug()));
        let rest = match text.split_once("://") {
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http") => rest.strip_suffix('/').unwrap_or(rest),
            Some(("https", _)) => return Err(bad("TLS is not in this version; use http:// or HOST:PORT")),
            Some(_) => return Err(bad("use HOST:PORT or http://HOST:PORT")),
            None => text,
        };
        let (host, port) = split(rest).ok_or_else(|| bad("write IPv6 as [ADDRESS]:PORT"))?;
        let port = match port {
            None if !host.is_empty() && host.bytes().all(|byte| byte.is_ascii_digit()) => {
                return Err(bad(&format!("a port of this machine is written ':{host}'")));
            }
            None => DEFAULT_PORT,
            Some(digits) => port_number(digits).ok_or_else(|| bad("a port is a number from 1 to 65535"))?,
        };
        let host = match host {
            "" if rest.is_empty() => return Err(bad("use HOST:PORT")),
            "" => "127.0.0.1",
            host if is_host(host) => host,
            _ => return Err(bad("a host is a name or an IP address")),
        };
        Ok(Self { host: host.to_owned(), port })
    }

    /// Several addresses, separated by commas; at least one.
    pub fn parse_list(text: &str) -> Result<Vec<Self>> {
        let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
        let addresses: Vec<Self> = parts.map(Self::parse).collect::<Result<_>>()?;
        if addresses.is_empty() {
            return Err(Error::bad_request("no node is given: use HOST:PORT[,HOST:PORT..]"));
        }
        Ok(addresses)
    }

    /// Its number, if the host is one: nothing is to be looked up.
    pub fn ip(&self) -> Option<IpAddr> {
        self.host.parse().ok()
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

/// Host without brackets, and what follows the colon behind it; `None` if brackets or colons do not match.
fn split(text: &str) -> Option<(&str, Option<&str>)> {
    if let Some(rest) = text.strip_prefix('[') {
        let (host, port) = rest.split_once(']')?;
        let port = match port {
            "" => None,
            port => Some(port.strip_prefix(':')?),
        };
        return host.parse::<Ipv6Addr>().ok().map(|_| (host, port));
    }
    match text.split_once(':') {
        None => Some((text, None)),
        Some((host, port)) if !port.contains(':') => Some((host, Some(port))),
        Some(_) => text.parse::<Ipv6Addr>().ok().map(|_| (text, None)),
    }
}

fn port_number(digits: &str) -> Option<u16> {
    let plain = digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse().ok().filter(|&port| plain && port > 0)
}

/// Whether it may be looked up: letters and digits of any script, dots, hyphens, underscores; or IPv6.
fn is_host(host: &str) -> bool {
    host.chars().all(|c| c.is_alphanumeric() || matches!(c, '.' | '-' | '_')) || host.parse::<Ipv6Addr>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_people_write_them() {
        for (text, shown) in [
            ("10.0.0.5:7701", "10.0.0.5:7701"),
            ("localhost", "localhost:7700"),
            ("localhost:7701", "localhost:7701"),
            ("127.0.0.1", "127.0.0.1:7700"),
            (":7701", "127.0.0.1:7701"),
            ("http://node-1.example.org:80/", "node-1.example.org:80"),
            ("HTTP://node_1", "node_1:7700"),
            ("[::1]:7701", "[::1]:7701"),
            ("[::1]", "[::1]:7700"),
            ("::1", "[::1]:7700"),
            ("höhle:1", "höhle:1"),
        ] {
            let address = Address::parse(text).expect(text);
            assert_eq!(address.to_string(), shown, "{text}");
            assert_eq!(Address::parse(shown).expect(shown), address);
        }
        assert_eq!(Address::parse("::1").expect("valid").ip(), Some(IpAddr::V6(Ipv6Addr::LOCALHOST)));
        assert_eq!(Address::parse("localhost").expect("valid").ip(), None);
    }

    #[test]
    fn what_is_no_address_is_told_in_plain_words() {
        for (text, why) in [
            ("", "use HOST:PORT"),
            ("http://", "use HOST:PORT"),
            ("host:", "from 1 to 65535"),
            ("host:0", "from 1 to 65535"),
            ("host:+80", "from 1 to 65535"),
            ("host:65536", "from 1 to 65535"),
            ("host:http", "from 1 to 65535"),
            ("https://host", "TLS is not in this version"),
            ("ftp://host", "http://HOST:PORT"),
            ("http://host:80/o/x", "from 1 to 65535"),
            ("host/x", "a name or an IP address"),
            ("a b:80", "a name or an IP address"),
            ("host\u{1b}[2J", "a name or an IP address"),
            ("[::1", "[ADDRESS]:PORT"),
            ("[host]:80", "[ADDRESS]:PORT"),
            ("[::1]80", "[ADDRESS]:PORT"),
            ("1:2:3", "[ADDRESS]:PORT"),
        ] {
            let error = Address::parse(text).expect_err(text).to_string();
            assert!(error.ends_with(why) || error.contains(why), "{text}: {error}");
            assert!(!error.contains('\u{1b}'), "{error}");
        }
    }

    #[test]
    fn a_list_has_at_least_one() {
        let list = Address::parse_list(" a:1, ,b:2 ,").expect("two");
        assert_eq!(list.iter().map(ToString::to_string).collect::<Vec<_>>(), ["a:1", "b:2"]);
        assert!(Address::parse_list(" , ").is_err());
        assert!(Address::parse_list("a:1,b:x").is_err());
    }
}
