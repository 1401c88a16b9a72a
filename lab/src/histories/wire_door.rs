//! One operation of a history by Herd's wire: the request's frame, and what its reply means.

use std::net::SocketAddr;
use std::time::Duration;

use crate::ask::Asker;
use crate::error::{Error, Result};
use crate::histories::door::Request;
use crate::histories::record::{Answer, Op, Outcome, Status};
use crate::wire::{self, ALL, DEFAULT_COLLECTION, Header, condition, status, tag, verb};

/// A token of a lock: its bytes on the wire are the lock's id and the grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Token {
    lock: u128,
    pub(crate) grant: u64,
}

impl Token {
    fn parse(text: &str) -> Option<Self> {
        let (lock, grant) = text.split_once('-')?;
        Some(Self { lock: u128::from_str_radix(lock, 16).ok()?, grant: grant.parse().ok()? })
    }

    fn text(self) -> String {
        format!("{:032x}-{}", self.lock, self.grant)
    }

    fn bytes(self) -> [u8; 24] {
        let mut out = [0; 24];
        out[..16].copy_from_slice(&self.lock.to_be_bytes());
        out[16..].copy_from_slice(&self.grant.to_le_bytes());
        out
    }
}

/// A connection to one node.
pub(crate) struct WireDoor {
    asker: Asker,
}

impl WireDoor {
    /// Connects and greets.
    pub(crate) fn open(addr: SocketAddr, patience: Duration) -> Result<Self> {
        Ok(Self { asker: Asker::open_within(addr, patience)? })
    }

    /// Asks; the token is what a lock gave. An error ends the connection, and the outcome is unknown.
    pub(crate) fn ask(&mut self, request: &Request) -> Result<(Outcome, Option<Token>)> {
        let Request { op, name, arg, token } = request;
        let (verb, code, method) = verb_of(*op);
        let text = token.map(Token::text).unwrap_or_default();
        let lease = arg.lease_ms.to_string();
        let arguments: Vec<&[u8]> = match op {
            Op::Append => vec![arg.value.as_bytes()],
            Op::Lock => vec![b"exclusive", lease.as_bytes()],
            Op::Renew => vec![text.as_bytes(), lease.as_bytes()],
            Op::Unlock | Op::Check => vec![text.as_bytes()],
            Op::Get | Op::Put | Op::Cas | Op::Add | Op::Take | Op::Remove => vec![],
        };
        let body = if verb == verb::PUT { arg.value.clone().into_bytes() } else { list(&arguments) };
        let shown = token.filter(|_| !matches!(op, Op::Renew | Op::Unlock | Op::Check)).map(Token::bytes);
        let mut fields = vec![(tag::NAME, name.as_bytes())];
        fields.extend(method.map(|method| (tag::METHOD, method.as_bytes())));
        fields.extend(shown.as_ref().map(|bytes| (tag::TOKEN, &bytes[..])));
        let length = if verb == verb::GET { ALL } else { body.len() as u64 };
        let version = arg.version;
        let header = Header { verb, code, collection: DEFAULT_COLLECTION, version, length, ..Header::default() };
        let (reply, frame) = self.asker.exchange(header, &fields, &body)?;
        if reply.more() {
            return Err(Error::new("a value of more than one frame"));
        }
        answer(*op, &reply, &frame)
    }
}

fn verb_of(op: Op) -> (u8, u16, Option<&'static str>) {
    match op {
        Op::Get => (verb::GET, 0, None),
        Op::Put => (verb::PUT, 0, None),
        Op::Cas => (verb::PUT, condition::IF_VERSION, None),
        Op::Add => (verb::PUT, condition::IF_ABSENT, None),
        Op::Remove => (verb::REMOVE, 0, None),
        Op::Append => (verb::EXECUTE, 0, Some("append")),
        Op::Take => (verb::EXECUTE, 0, Some("get-and-remove")),
        Op::Lock => (verb::EXECUTE, 0, Some("lock")),
        Op::Renew => (verb::EXECUTE, 0, Some("renew")),
        Op::Unlock => (verb::EXECUTE, 0, Some("unlock")),
        Op::Check => (verb::EXECUTE, 0, Some("check")),
    }
}

/// A list of byte strings, as the arguments and answers of methods are written.
fn list(items: &[&[u8]]) -> Vec<u8> {
    let mut out = Vec::new();
    for item in items {
        out.extend_from_slice(&u32::try_from(item.len()).expect("arguments are short").to_le_bytes());
        out.extend_from_slice(item);
    }
    out
}

/// The items of such a list, as text.
fn items(mut bytes: &[u8]) -> Option<Vec<&str>> {
    let mut out = Vec::new();
    while let Some((len, rest)) = bytes.split_first_chunk::<4>() {
        let (item, rest) = rest.split_at_checked(u32::from_le_bytes(*len) as usize)?;
        out.push(std::str::from_utf8(item).ok()?);
        bytes = rest;
    }
    bytes.is_empty().then_some(out)
}

/// What a reply means.
fn answer(op: Op, reply: &Header, frame: &[u8]) -> Result<(Outcome, Option<Token>)> {
    let why = || wire::explain(reply, reply.head(frame));
    let said = |status| Ok((Outcome::Answered(Answer { status, version: reply.version, ..Answer::default() }), None));
    match reply.code {
        status::OK => read_answer(op, reply, &frame[reply.body_start()..]).ok_or_else(|| Error::new(why())),
        status::NOT_FOUND => said(Status::NotFound),
        status::CONDITION_FAILED => said(Status::ConditionFailed),
        status::NOT_ALLOWED => said(Status::NotAllowed),
        status::TOO_LARGE | status::FULL | status::QUOTA | status::BUSY | status::UNREACHABLE => {
            Ok((Outcome::Refused(why()), None))
        }
        _ => Ok((Outcome::Unknown, None)),
    }
}

/// The answer of a request that was carried out; none if its body is not what such an operation answers.
fn read_answer(op: Op, reply: &Header, body: &[u8]) -> Option<(Outcome, Option<Token>)> {
    let text = std::str::from_utf8(body).ok();
    let mut answer = Answer { version: reply.version, ..Answer::default() };
    let mut token = None;
    match op {
        Op::Get | Op::Take => text?.clone_into(&mut answer.value),
        Op::Append => answer.size = Some(text?.parse().ok()?),
        Op::Lock => match items(body)?[..] {
            ["granted", text, _] => {
                token = Some(Token::parse(text)?);
                answer.grant = token?.grant;
            }
            ["held", _] => answer.status = Status::Held,
            _ => return None,
        },
        Op::Put | Op::Cas | Op::Add | Op::Remove | Op::Renew | Op::Unlock | Op::Check => (),
    }
    Some((Outcome::Answered(answer), token))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_read_and_written() {
        let text = "000102030405060708090a0b0c0d0e0f-258";
        let token = Token::parse(text).expect("a token");
        assert_eq!(token.text(), text);
        assert_eq!(token.bytes()[..3], [0, 1, 2]);
        assert_eq!(token.bytes()[16..19], [2, 1, 0]);
        assert_eq!(Token::parse("1-x"), None);
    }

    #[test]
    fn answers_of_locks_are_read() {
        let reply = Header { code: status::OK, ..Header::default() };
        let granted = list(&[b"granted", b"0000000000000000000000000000000a-7", b"200"]);
        let (outcome, token) = read_answer(Op::Lock, &reply, &granted).expect("an answer");
        assert_eq!(token.map(|token| token.grant), Some(7));
        assert_eq!(outcome, Outcome::Answered(Answer { grant: 7, ..Answer::default() }));
        let (outcome, token) = read_answer(Op::Lock, &reply, &list(&[b"held", b"12"])).expect("an answer");
        assert_eq!(token, None);
        assert_eq!(outcome, Outcome::Answered(Answer { status: Status::Held, ..Answer::default() }));
        assert_eq!(read_answer(Op::Lock, &reply, b"junk"), None);
        assert_eq!(read_answer(Op::Append, &reply, b"x"), None);
    }
}
