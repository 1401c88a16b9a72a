//! Pipelining: many requests on one connection, answered in any order.
//!
//! Nothing is sent twice here: when the connection is lost, each open request fails for itself, with `OutcomeUnknown`
//! if it may have been done.

use super::{Client, wait};
use crate::error::{Error, ErrorKind, Result};
use crate::limits::COPIED_BODY_MAX_BYTES;
use crate::link::{Link, Sink, Source, Step};
use crate::reply::Reply;
use crate::request::Request;
use crate::retry::{Failure, Next, Tries};
use crate::shell::{answer, failure_of};
use herd_core::limits::WIRE_OPEN_REQUESTS_MAX;
use std::collections::HashMap;
use std::net::TcpStream;

/// A connection for requests that do not wait for each other. Dropping it gives up what is not answered.
pub struct Pipeline<'a> {
    client: &'a Client,
    link: Option<Link<TcpStream>>,
    /// Per request not waited for: whether it may be repeated, and what it was.
    open: HashMap<u64, (bool, String)>,
    /// Requests that failed before they were waited for.
    failed: HashMap<u64, Error>,
}

/// A request under way; hand it to [`Pipeline::wait`].
#[derive(Debug, PartialEq, Eq)]
#[must_use = "an answer that is not waited for keeps its memory"]
pub struct Ticket(u64);
