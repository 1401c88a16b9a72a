//! Status codes the HTTP door gives (RFC 9110 §15), and the one table from error kinds to them.

use crate::error::ErrorKind;

/// A status of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    /// 200: the whole object, or a page.
    Ok,
    /// 201: a put made a new object.
    Created,
    /// 204: a put replaced an object, or a remove was done.
    NoContent,
    /// 206: a range of the object.
    Partial,
    /// 304: the client has this version already.
    NotModified,
    /// 400.
    BadRequest,
    /// 403.
    Forbidden,
    /// 404.
    NotFound,
    /// 405.
    MethodNotAllowed,
    /// 409.
    Conflict,
    /// 411: a PUT says neither its length nor that it is chunked.
    LengthRequired,
    /// 412: the condition does not hold.
    PreconditionFailed,
    /// 413: the object is over the limit.
    TooLarge,
    /// 414: the target or a name in it is over the limit.
    TargetTooLong,
    /// 415: a content coding, which Herd would not keep.
    UnsupportedCoding,
    /// 416: the range starts past the end.
    BadRange,
    /// 417: an expectation other than 100-continue.
    ExpectationFailed,
    /// 431: too many or too long header fields.
    HeadTooLarge,
    /// 501: not in this version.
    NotImplemented,
    /// 503: busy or stopping, or the node that has the object can't be asked.
    Unavailable,
    /// 504: a deadline passed.
    Timeout,
    /// 505: neither HTTP/1.0 nor HTTP/1.1.
    VersionNotSupported,
    /// 507: memory or quota full.
    InsufficientStorage,
}

impl Status {
    /// The status that tells an error of this kind.
    pub fn of(kind: ErrorKind) -> Self {
        match kind {
            ErrorKind::NotFound | ErrorKind::NoCollection => Status::NotFound,
            ErrorKind::ConditionFailed => Status::PreconditionFailed,
            ErrorKind::Exists => Status::Conflict,
            ErrorKind::BadRequest | ErrorKind::BadChecksum => Status::BadRequest,
            ErrorKind::TooLarge => Status::TooLarge,
            ErrorKind::Full | ErrorKind::Quota => Status::InsufficientStorage,
            ErrorKind::NotInVersion => Status::NotImplemented,
            ErrorKind::Timeout | ErrorKind::OutcomeUnknown | ErrorKind::OutcomeLost => Status::Timeout,
            ErrorKind::Busy | ErrorKind::Unreachable => Status::Unavailable,
            ErrorKind::BadRange => Status::BadRange,
            ErrorKind::NotAllowed => Status::Forbidden,
        }
    }

    /// The status line with its line end.
    pub fn line(self) -> &'static str {
        match self {
            Status::Ok => "HTTP/1.1 200 OK\r\n",
            Status::Created => "HTTP/1.1 201 Created\r\n",
            Status::NoContent => "HTTP/1.1 204 No Content\r\n",
            Status::Partial => "HTTP/1.1 206 Partial Content\r\n",
            Status::NotModified => "HTTP/1.1 304 Not Modified\r\n",
            Status::BadRequest => "HTTP/1.1 400 Bad Request\r\n",
            Status::Forbidden => "HTTP/1.1 403 Forbidden\r\n",
            Status::NotFound => "HTTP/1.1 404 Not Found\r\n",
            Status::MethodNotAllowed => "HTTP/1.1 405 Method Not Allowed\r\n",
            Status::Conflict => "HTTP/1.1 409 Conflict\r\n",
            Status::LengthRequired => "HTTP/1.1 411 Length Required\r\n",
            Status::PreconditionFailed => "HTTP/1.1 412 Precondition Failed\r\n",
            Status::TooLarge => "HTTP/1.1 413 Content Too Large\r\n",
            Status::TargetTooLong => "HTTP/1.1 414 URI Too Long\r\n",
            Status::UnsupportedCoding => "HTTP/1.1 415 Unsupported Media Type\r\n",
            Status::BadRange => "HTTP/1.1 416 Range Not Satisfiable\r\n",
            Status::ExpectationFailed => "HTTP/1.1 417 Expectation Failed\r\n",
            Status::HeadTooLarge => "HTTP/1.1 431 Request Header Fields Too Large\r\n",
            Status::NotImplemented => "HTTP/1.1 501 Not Implemented\r\n",
            Status::Unavailable => "HTTP/1.1 503 Service Unavailable\r\n",
            Status::Timeout => "HTTP/1.1 504 Gateway Timeout\r\n",
            Status::VersionNotSupported => "HTTP/1.1 505 HTTP Version Not Supported\r\n",
            Status::InsufficientStorage => "HTTP/1.1 507 Insufficient Storage\r\n",
        }
    }

    /// The three-digit code.
    pub fn code(self) -> u16 {
        self.line()[9..12].parse().expect("every status line has its code there")
    }

    /// The word a refusal with this status has in its JSON body; the words of [`ErrorKind::name`] where they fit.
    pub(super) fn word(self) -> &'static str {
        match self {
            Status::NotFound => "not_found",
            Status::MethodNotAllowed => "method_not_allowed",
            Status::LengthRequired => "length_required",
            Status::TooLarge => "too_large",
            Status::TargetTooLong => "target_too_long",
            Status::UnsupportedCoding => "unsupported_coding",
            Status::ExpectationFailed => "expectation_failed",
            Status::HeadTooLarge => "head_too_large",
            Status::NotImplemented => "not_in_version",
            Status::VersionNotSupported => "version_not_supported",
            _ => "bad_request",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_error_kind_has_the_status_of_the_contract() {
        let table = [
            ("not_found", 404),
            ("condition_failed", 412),
            ("no_collection", 404),
            ("exists", 409),
            ("bad_request", 400),
            ("too_large", 413),
            ("full", 507),
            ("quota", 507),
            ("bad_checksum", 400),
            ("not_in_version", 501),
            ("timeout", 504),
            ("busy", 503),
            ("bad_range", 416),
            ("not_allowed", 403),
            ("unreachable", 503),
            ("outcome_unknown", 504),
            ("outcome_lost", 504),
        ];
        for (kind, (name, code)) in ErrorKind::ALL.into_iter().zip(table) {
            assert_eq!((kind.name(), Status::of(kind).code()), (name, code));
        }
    }
}
