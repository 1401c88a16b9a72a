//! Attributes of an object: content type, mode, times, link target and free pairs (PROTOCOL.md §1.6).
//!
//! Stored encoded, at most [`ATTRIBUTES_MAX_BYTES`], and free where absent.

use crate::error::{Error, ErrorKind};
use crate::limits::ATTRIBUTES_MAX_BYTES;

const CONTENT_TYPE: u8 = 1;
const MODE: u8 = 2;
const MTIME: u8 = 3;
const LINK: u8 = 4;
const PAIR: u8 = 5;

/// The attributes of one object, decoded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// Media type (RFC 9110 §8.3).
    pub content_type: Option<String>,
    /// POSIX mode with the file type bits.
    pub mode: Option<u32>,
    /// Time of last modification, ns since 1970.
    pub mtime_ns: Option<i64>,
    /// Target of a symbolic link.
    pub link: Option<Vec<u8>>,
    /// Free pairs; a key has at most 255 bytes.
    pub pairs: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Attributes {
    /// Encodes; an error if the result is over the limit.
    pub fn encode(&self) -> Result<Vec<u8>, Error> {
        let mut out = Vec::new();
        if let Some(text) = &self.content_type {
            put(&mut out, CONTENT_TYPE, &[text.as_bytes()])?;
        }
        if let Some(mode) = self.mode {
            put(&mut out, MODE, &[&mode.to_le_bytes()])?;
        }
        if let Some(ns) = self.mtime_ns {
            put(&mut out, MTIME, &[&ns.to_le_bytes()])?;
        }
        if let Some(target) = &self.link {
            put(&mut out, LINK, &[target])?;
        }
        for (key, value) in &self.pairs {
            let len = u8::try_from(key.len()).map_err(|_| bad("attribute key is over 255 bytes"))?;
            put(&mut out, PAIR, &[&[len], key, value])?;
        }
        Ok(out)
    }

    /// Decodes what [`Attributes::encode`] wrote; unknown fields are skipped.
    pub fn decode(mut bytes: &[u8]) -> Result<Self, Error> {
        if bytes.len() > ATTRIBUTES_MAX_BYTES {
            return Err(bad("attributes are over 4,096 bytes"));
        }
        let mut found = Self::default();
        while let [tag, low, high, rest @ ..] = bytes {
            let len = usize::from(u16::from_le_bytes([*low, *high]));
            let (value, after) = rest.split_at_checked(len).ok_or_else(|| bad("attribute is cut short"))?;
            found.take(*tag, value)?;
            bytes = after;
        }
        if bytes.is_empty() { Ok(found) } else { Err(bad("attribute is cut short")) }
    }

    fn take(&mut self, tag: u8, value: &[u8]) -> Result<(), Error> {
        match tag {
            CONTENT_TYPE => {
                let text = String::from_utf8(value.to_vec()).map_err(|_| bad("content type is not text"))?;
                self.content_type = Some(text);
            }
            MODE => self.mode = Some(u32::from_le_bytes(value.try_into().map_err(|_| bad("mode is not 4 bytes"))?)),
            MTIME => {
                let ns = value.try_into().map_err(|_| bad("mtime is not 8 bytes"))?;
                self.mtime_ns = Some(i64::from_le_bytes(ns));
            }
            LINK => self.link = Some(value.to_vec()),
            PAIR => {
                let (len, rest) = value.split_first().ok_or_else(|| bad("pair is empty"))?;
                let (key, value) = rest.split_at_checked(usize::from(*len)).ok_or_else(|| bad("pair is cut short"))?;
                self.pairs.push((key.to_vec(), value.to_vec()));
            }
            _ => {}
        }
        Ok(())
    }
}

fn put(out: &mut Vec<u8>, tag: u8, parts: &[&[u8]]) -> Result<(), Error> {
    let len: usize = parts.iter().map(|part| part.len()).sum();
    if out.len() + 3 + len > ATTRIBUTES_MAX_BYTES {
        return Err(bad("attributes are over 4,096 bytes"));
    }
    out.push(tag);
    out.extend_from_slice(&(len as u16).to_le_bytes());
    for part in parts {
        out.extend_from_slice(part);
    }
    Ok(())
}

fn bad(text: &str) -> Error {
    Error::new(ErrorKind::BadRequest, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_read_back_as_they_were_written() {
        let all = Attributes {
            content_type: Some("text/plain".into()),
            mode: Some(0o100644),
            mtime_ns: Some(-5),
            link: Some(b"../x".to_vec()),
            pairs: vec![(b"k".to_vec(), b"v".to_vec()), (b"".to_vec(), b"".to_vec())],
        };
        assert_eq!(Attributes::decode(&all.encode().expect("fits")).expect("decodes"), all);
    }

    #[test]
    fn what_is_cut_short_or_too_long_is_refused() {
        let some = Attributes { mode: Some(1), ..Default::default() }.encode().expect("fits");
        for cut in 1..some.len() {
            assert!(Attributes::decode(&some[..cut]).is_err());
        }
        let long = Attributes { link: Some(vec![0; 5000]), ..Default::default() };
        assert!(long.encode().is_err());
        assert!(Attributes::decode(&[0; 5000]).is_err());
    }
}
