//! The four doors as a client of small operations sees them: append a request, read a reply.
//!
//! Pure: no sockets, no clock. One match per operation leads to one file per protocol. [`crate::engine`] drives it.

mod etcd;
pub(crate) mod herd;
pub(crate) mod http;
pub(crate) mod memcached;
pub(crate) mod resp;

use std::io::{Read, Write};
use std::net::TcpStream;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::error::{Context, Error, Result};
use crate::values::Values;
use crate::wire;

/// A door's protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Proto {
    /// memcached text.
    Memcached,
    /// Redis's RESP2.
    Resp,
    /// HTTP/1.1 on `/o/default/NAME`.
    Http,
    /// Herd's wire.
    Herd,
    /// etcd's JSON gateway (small objects only).
    Etcd,
    /// The null bulk server's own (large objects only).
    Null,
}

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Op {
    /// Read an object.
    Get,
    /// Write an object.
    Set,
}

impl Op {
    /// As printed.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::Set => "set",
        }
    }
}

/// What a connection learned when it was opened.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Link {
    /// Session in the high 24 bits of request ids (Herd's wire).
    pub(crate) session: u64,
    /// Collection that requests name (Herd's wire); 0: `default`.
    pub(crate) collection: u64,
}

/// A small request that waits for its reply.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    /// Key number.
    pub(crate) key: u32,
    /// Sequence number on its connection, from 0.
    pub(crate) sequence: u64,
}

/// How closely a reply is read. Status and length are always checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Care {
    /// Status and length.
    Shape,
    /// Also the value's bytes and every checksum.
    Content,
}

/// What the start of the receive buffer holds.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    /// Not a whole reply yet.
    Partial,
    /// A right reply of so many bytes.
    Good {
        /// Bytes it took.
        used: usize,
        /// Which request it answers, where the protocol says; else the oldest.
        sequence: Option<u64>,
    },
    /// Anything else.
    Wrong(String),
}

impl Reply {
    fn in_order(used: usize) -> Self {
        Self::Good { used, sequence: None }
    }

    fn wrong(what: &str, bytes: &[u8]) -> Self {
        let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(80)]);
        Self::Wrong(format!("{what}: {shown:?}"))
    }
}

impl Proto {
    /// Appends one request.
    pub(crate) fn append_request(self, link: &Link, op: Op, asked: Asked, values: &Values, out: &mut Vec<u8>) {
        match self {
            Self::Memcached => memcached::append_request(op, asked.key, values, out),
            Self::Resp => resp::append_request(op, asked.key, values, out),
            Self::Http => http::append_request(op, asked.key, values, out),
            Self::Etcd => etcd::append_request(op, asked.key, values, out),
            Self::Herd => herd::append_request(link, op, asked, values, out),
            Self::Null => unreachable!("Spec::check refuses small operations by the bulk protocol"),
        }
    }

    /// Reads the reply at the start of `bytes`. `asked(sequence)` gives the key of that request, or of the oldest.
    pub(crate) fn read_reply(
        self,
        op: Op,
        care: Care,
        asked: impl Fn(Option<u64>) -> Option<u32>,
        values: &Values,
        bytes: &[u8],
    ) -> Reply {
        match self {
            Self::Memcached => memcached::read_reply(op, care, asked(None), values, bytes),
            Self::Resp => resp::read_reply(op, care, asked(None), values, bytes),
            Self::Http => http::read_reply(op, care, asked(None), values, bytes),
            Self::Etcd => etcd::read_reply(op, care, asked(None), values, bytes),
            Self::Herd => herd::read_reply(op, care, asked, values, bytes),
            Self::Null => unreachable!("Spec::check refuses small operations by the bulk protocol"),
        }
    }

    /// Opens the conversation on a fresh blocking connection where the protocol wants it.
    pub(crate) fn greet(self, stream: &mut TcpStream) -> Result<Link> {
        if self != Self::Herd {
            return Ok(Link::default());
        }
        stream.write_all(&wire::hello()).during(|| "send hello".into())?;
        let (header, head) = read_frame(stream)?;
        let session = herd::read_welcome(&header, &head).map_err(Error::new)?;
        Ok(Link { session, collection: 0 })
    }
}

/// Reads one frame without a body, checking its checksums.
fn read_frame(stream: &mut TcpStream) -> Result<(wire::Header, Vec<u8>)> {
    let mut bytes = vec![0; wire::HEADER_BYTES];
    stream.read_exact(&mut bytes).during(|| "read a frame header".into())?;
    let header = wire::Header::decode(&bytes).map_err(Error::new)?.expect("a whole header, long as a greeting's are");
    bytes.resize(header.body_start(), 0);
    stream.read_exact(&mut bytes[wire::HEADER_BYTES..]).during(|| "read a frame head".into())?;
    wire::check_start(&header, &bytes).map_err(Error::new)?;
    if header.body_len != 0 {
        return Err(Error::new("a body where none was asked for"));
    }
    Ok((header, bytes.split_off(wire::HEADER_BYTES)))
}

/// A decimal number of ASCII digits alone.
pub(crate) fn decimal(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || digits.len() > 19 {
        return None;
    }
    digits.iter().try_fold(0u64, |sum, digit| digit.is_ascii_digit().then(|| sum * 10 + u64::from(digit - b'0')))
}

/// Index behind the first CR LF of `bytes`.
pub(crate) fn line_end(bytes: &[u8]) -> Option<usize> {
    let end = bytes.iter().position(|&byte| byte == b'\n')?;
    (end > 0 && bytes[end - 1] == b'\r').then_some(end + 1)
}
