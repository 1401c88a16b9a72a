//! JSON the HTTP door writes: error bodies and pages of a listing. Appended piece by piece, nothing is collected.

use super::number::put_decimal;
use crate::entry::Version;

/// The body of an error: `{"error":WORD,"message":TEXT}` and a line end, for people with a terminal.
pub(super) fn error_body(word: &str, text: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(32 + word.len() + text.len());
    out.extend_from_slice(b"{\"error\":");
    put_string(&mut out, word);
    out.extend_from_slice(b",\"message\":");
    put_string(&mut out, text);
    out.extend_from_slice(b"}\n");
    out
}

/// Writes one page of a listing:
/// `{"collection":"c","objects":[{"name":"n","size_bytes":1,"version":2,"etag":"2"}],"next":null}` and a line end.
///
/// Many readers of JSON round numbers above 2^53, so the version stands there as text too.
/// A name that is not UTF-8 is told as `name_base64` (RFC 4648 §4) in place of `name`, and likewise `next_base64`.
pub struct ListPage {
    is_empty: bool,
}

impl ListPage {
    /// Begins a page of `collection`.
    pub fn start(out: &mut Vec<u8>, collection: &str) -> Self {
        out.extend_from_slice(b"{\"collection\":");
        put_string(out, collection);
        out.extend_from_slice(b",\"objects\":[");
        Self { is_empty: true }
    }

    /// Adds an object.
    pub fn object(&mut self, out: &mut Vec<u8>, name: &[u8], size_bytes: u64, version: Version) {
        if !self.is_empty {
            out.push(b',');
        }
        self.is_empty = false;
        out.push(b'{');
        put_name(out, "name", name);
        out.extend_from_slice(b",\"size_bytes\":");
        put_decimal(out, size_bytes);
        out.extend_from_slice(b",\"version\":");
        put_decimal(out, version);
        out.extend_from_slice(b",\"etag\":\"");
        put_decimal(out, version);
        out.extend_from_slice(b"\"}");
    }

    /// Ends the page; `next` is the `after` that asks for the next one, `None` on the last page.
    pub fn finish(self, out: &mut Vec<u8>, next: Option<&[u8]>) {
        out.extend_from_slice(b"],");
        match next {
            Some(name) => put_name(out, "next", name),
            None => out.extend_from_slice(b"\"next\":null"),
        }
        out.extend_from_slice(b"}\n");
    }
}

fn put_name(out: &mut Vec<u8>, field: &str, name: &[u8]) {
    out.push(b'"');
    out.extend_from_slice(field.as_bytes());
    match std::str::from_utf8(name) {
        Ok(text) => {
            out.extend_from_slice(b"\":");
            put_string(out, text);
        }
        Err(_) => {
            out.extend_from_slice(b"_base64\":\"");
            put_base64(out, name);
            out.push(b'"');
        }
    }
}

fn put_string(out: &mut Vec<u8>, text: &str) {
    serde_json::to_writer(out, text).expect("a string is valid JSON and a Vec takes all bytes");
}

/// Bytes as base64 (RFC 4648 §4).
pub fn put_base64(out: &mut Vec<u8>, bytes: &[u8]) {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for group in bytes.chunks(3) {
        let byte = |at: usize| group.get(at).map_or(0, |b| u32::from(*b));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for place in 0..4 {
            let letter = LETTERS[(bits >> (18 - 6 * place) & 63) as usize];
            out.push(if place <= group.len() { letter } else { b'=' });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_one_object_whatever_its_names_are() {
        let mut out = Vec::new();
        let mut page = ListPage::start(&mut out, "photos");
        page.object(&mut out, b"a\"\n", 3, 7);
        page.object(&mut out, b"\xff\xfe", 0, u64::MAX);
        page.finish(&mut out, Some(b"\xff\xfe"));
        let text = r#"{"collection":"photos","objects":[{"name":"a\"\n","size_bytes":3,"version":7,"etag":"7"},"#
            .to_string()
            + r#"{"name_base64":"//4=","size_bytes":0,"version":18446744073709551615,"etag":"18446744073709551615"}],"#
            + r#""next_base64":"//4="}"#
            + "\n";
        assert_eq!(String::from_utf8(out).expect("UTF-8"), text);
    }

    #[test]
    fn an_empty_page_is_the_last() {
        let mut out = Vec::new();
        ListPage::start(&mut out, "c").finish(&mut out, None);
        assert_eq!(out, b"{\"collection\":\"c\",\"objects\":[],\"next\":null}\n");
    }

    #[test]
    fn base64_is_that_of_the_rfc() {
        let table = [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg==")];
        for (bytes, text) in table {
            let mut out = Vec::new();
            put_base64(&mut out, bytes.as_bytes());
            assert_eq!(out, text.as_bytes());
        }
    }
}
