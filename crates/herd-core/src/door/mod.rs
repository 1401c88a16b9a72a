//! Doors: the protocols the port speaks, as pure parsers and encoders. Each is told from the others by its first bytes.

pub mod http;
pub mod memcached;

/// A protocol the port may speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Door {
    /// TLS record: not in this version.
    Tls,
    /// Herd's wire.
    Wire,
    /// RESP: not in this version.
    Resp,
    /// HTTP/1.1.
    Http,
    /// memcached text and meta.
    Memcached,
}

/// Tells the door by the first bytes of a connection; `None`: more bytes are needed.
pub fn sniff(first: &[u8]) -> Option<Door> {
    match *first {
        // HTTP allows an empty line before a request (RFC 9112 section 2.2).
        [b'\r', b'\n', ref rest @ ..] => sniff_text(rest),
        [] | [0x16] | [b'\r'] => None,
        [0x16, 0x03, ..] => Some(Door::Tls),
        [0x80, ..] => Some(Door::Memcached),
        [byte, ..] if byte >= 0x82 => Some(Door::Wire),
        [b'*', ..] => Some(Door::Resp),
        _ => sniff_text(first),
    }
}

/// HTTP if it starts with an upper-case word and a space; memcached commands are lower-case.
fn sniff_text(first: &[u8]) -> Option<Door> {
    let word = first.iter().take_while(|b| b.is_ascii_uppercase()).count();
    match first.get(word) {
        _ if word > 16 => Some(Door::Memcached),
        None => None,
        Some(b' ') if word > 0 => Some(Door::Http),
        Some(_) => Some(Door::Memcached),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_bytes_tell_the_door() {
        let table: [(&[u8], Option<Door>); 16] = [
            (b"", None),
            (b"\x16", None),
            (b"\x16\x03", Some(Door::Tls)),
            (b"\x16\x04", Some(Door::Memcached)),
            (b"\xCE", Some(Door::Wire)),
            (b"\x80", Some(Door::Memcached)),
            (b"*1\r\n", Some(Door::Resp)),
            (b"GE", None),
            (b"GET /", Some(Door::Http)),
            (b"GETx", Some(Door::Memcached)),
            (b"get a\r\n", Some(Door::Memcached)),
            (b"\r", None),
            (b"\r\n", None),
            (b"\r\nGET /", Some(Door::Http)),
            (b"\r\nget a\r\n", Some(Door::Memcached)),
            (b"\r\n\r\n", Some(Door::Memcached)),
        ];
        for (first, door) in table {
            assert_eq!(sniff(first), door, "{first:?}");
        }
    }
}
