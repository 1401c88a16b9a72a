//! Why a request is refused before anything looked at the store.

use super::date::HttpDate;
use super::json::error_body;
use super::request::Connection;
use super::response::{Content, Response};
use super::status::Status;
use std::borrow::Cow;
use std::fmt;

/// A request that is refused as it stands. After its response the connection closes: where the next request would
/// start is not known, or not to be trusted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Status of the response.
    pub status: Status,
    /// One line: what is wrong and what to do.
    pub text: Cow<'static, str>,
    /// Methods the target has, for 405 (RFC 9110 §10.2.1).
    pub allow: Option<&'static str>,
    /// The request is a HEAD: its response has no body.
    pub head_only: bool,
}

impl Refusal {
    /// A refusal of a request that is no HEAD.
    pub(super) fn new(status: Status, text: impl Into<Cow<'static, str>>) -> Self {
        Self { status, text: text.into(), allow: None, head_only: false }
    }

    /// A refusal with status 400.
    pub(super) fn bad(text: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Status::BadRequest, text)
    }

    /// Appends the whole response: head with `Connection: close`, and a JSON body.
    pub fn encode(&self, out: &mut Vec<u8>, date: Option<&HttpDate>) {
        let body = error_body(self.status.word(), &self.text);
        let head = Response {
            connection: Connection::Close,
            date,
            content: Content::Whole { length_bytes: body.len() as u64 },
            content_type: Some("application/json"),
            allow: self.allow,
            ..Response::of(self.status)
        };
        head.encode(out);
        if !self.head_only {
            out.extend_from_slice(&body);
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.status.code(), self.text)
    }
}

impl std::error::Error for Refusal {}
