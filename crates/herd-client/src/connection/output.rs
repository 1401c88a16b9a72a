//! The output of a connection: frames in order, of which at most one ends in a body that lies in the caller's memory.
//!
//! What is sent next is always `head`, then the caller's part, then `queue`.

/// A part of an outgoing body that is to be sent now, from the caller's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BodyPart {
    /// Request it belongs to.
    pub id: u64,
    /// Its first unsent byte, counted from the start of the body.
    pub position: u64,
    /// Its unsent bytes.
    pub bytes: usize,
}

#[derive(Default)]
pub(super) struct Output {
    head: Vec<u8>,
    head_sent: usize,
    body: Option<BodyPart>,
    queue: Vec<u8>,
    /// Bytes the socket has taken since the connection opened.
    pub(super) sent_bytes: u64,
    /// Bytes put in since the connection opened, bodies included.
    pub(super) queued_bytes: u64,
}

impl Output {
    pub(super) fn is_empty(&self) -> bool {
        self.head_sent == self.head.len() && self.body.is_none() && self.queue.is_empty()
    }

    /// Adds frames: `write` appends them.
    pub(super) fn push<T, E>(&mut self, write: impl FnOnce(&mut Vec<u8>) -> Result<T, E>) -> Result<T, E> {
        let buffer = if self.body.is_some() { &mut self.queue } else { &mut self.head };
        let before = buffer.len();
        let written = write(buffer)?;
        self.queued_bytes += (buffer.len() - before) as u64;
        Ok(written)
    }

    /// Lets a part of the caller's memory follow the frame head that was pushed last.
    pub(super) fn attach(&mut self, part: BodyPart) {
        assert!(self.body.is_none(), "one part at a time");
        self.queued_bytes += part.bytes as u64;
        self.body = (part.bytes > 0).then_some(part);
    }

    pub(super) fn body(&self) -> Option<BodyPart> {
        self.body
    }

    pub(super) fn head(&self) -> &[u8] {
        &self.head[self.head_sent..]
    }

    /// Takes off what the socket has taken.
    pub(super) fn sent(&mut self, mut bytes: usize) {
        self.sent_bytes += bytes as u64;
        let head = bytes.min(self.head.len() - self.head_sent);
        self.head_sent += head;
        bytes -= head;
        if let Some(part) = &mut self.body {
            assert!(bytes <= part.bytes, "only what was offered");
            part.position += bytes as u64;
            part.bytes -= bytes;
        } else {
            assert!(bytes == 0, "only what was offered");
        }
        if self.head_sent == self.head.len() && self.body.is_none_or(|part| part.bytes == 0) {
            self.body = None;
            self.head_sent = 0;
            self.head.clear();
            std::mem::swap(&mut self.head, &mut self.queue);
        }
    }
}
