//! HTTP/1.1 (RFC 9110, RFC 9112): parsing of requests and encoding of responses, without sockets or a clock.
//!
//! The shell hands what has arrived to [`parse_head`], carries out the [`Request`], and appends a [`Response`], an
//! error ([`put_error`]) or a [`Refusal`] to its output. A body in chunks goes through a [`ChunkedDecoder`], which says
//! where in the received bytes the body lies and copies nothing.
//!
//! Invariants: a request is refused rather than guessed at wherever another recipient could read it differently, so no
//! second request can be smuggled inside a first; only a PUT of an object has a body; the outcome depends on the bytes
//! alone, never on how they were cut into reads; after a refusal the connection closes. Only the node's HTTP door calls
//! it.

mod chunked;
mod date;
mod fields;
mod json;
mod number;
mod percent;
mod preconditions;
#[cfg(test)]
mod properties;
mod refusal;
mod request;
mod response;
mod status;
mod target;
#[cfg(test)]
mod tests;

pub use chunked::{ChunkedDecoder, Fed};
pub use date::{HttpDate, civil};
pub use json::{ListPage, put_base64};
pub use preconditions::{ByteRange, Plan, Read, Tags, Wait};
pub use refusal::Refusal;
pub use request::{Body, Connection, Method, Request, Write, parse_head};
pub use response::{About, CONTINUE, Content, ObjectHead, Response, put_error};
pub use status::Status;
pub use target::Target;
