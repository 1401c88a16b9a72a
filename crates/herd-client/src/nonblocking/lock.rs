//! A lock that is held, for tasks. The timing is in [`crate::lock`].

use super::{Client, Download, Upload};
use crate::error::{ErrorKind, Result};
use crate::lock::{
    self, Grant, Lease, LockOptions, Standing, check_request, clock_ms, lock_request, pause_ms, renew_request,
    unlock_request, wait_ms, wait_until_ms,
};
use crate::request::Request;
use crate::shell::millis;
use herd_core::entry::{Token, Version};
use herd_core::limits::WIRE_FRAME_BODY_MAX_BYTES;
use std::time::Duration;

/// A hold of a lock. It must be tended ([`Lock::tend`]) or it is lost when its lease is over; dropped without
/// [`Lock::release`], it keeps others out until then.
pub struct Lock {
    client: Client,
    key: Vec<u8>,
    token: Token,
    lease_ms: u64,
    lease: Lease,
}

impl Client {
    /// Takes the lock `key`, an object of its own; waits for it up to `wait`. `None`: others held it all the time.
    /// [`Client::with_token`] then guards what the lock protects.
    pub async fn lock(&self, key: impl AsRef<[u8]>, options: &LockOptions, wait: Duration) -> Result<Option<Lock>> {
        // A lock guards others and not itself: a token shown to it would keep out who shows none.
        let client = Client { common: self.common.without_token() };
        let key = key.as_ref();
        let deadline_ms = wait_until_ms(clock_ms(), millis(wait));
        loop {
            let asked_ms = clock_ms();
            let (answer, version) = client.ask(lock_request(key, options)?).await?;
            let held_ms = match Grant::parse(&answer)? {
                Grant::Granted(token) => {
                    let lease_ms = millis(options.lease);
                    let lease = Lease::new(asked_ms, lease_ms);
                    return Ok(Some(Lock { client, key: key.to_vec(), token, lease_ms, lease }));
                }
                Grant::Held(ms) => ms,
            };
            let begun_ms = clock_ms();
            let Some(wait_ms) = wait_ms(begun_ms, deadline_ms, held_ms) else { return Ok(None) };
            client.wait_for_change(key, version, Duration::from_millis(wait_ms)).await?;
            let pause_ms = pause_ms(clock_ms().saturating_sub(begun_ms), self.common.pool.chance());
            tokio::time::sleep(Duration::from_millis(pause_ms)).await;
        }
    }

    /// Returns when the lock has changed, or is gone, or the time is over.
    async fn wait_for_change(&self, key: &[u8], version: Version, wait: Duration) -> Result<()> {
        use herd_core::ErrorKind::Timeout;
        match self.stat_newer(key, version, wait).await {
            Err(error) if !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Refused(Timeout)) => Err(error),
            _ => Ok(()),
        }
    }

    async fn ask(&self, request: Request<'_>) -> Result<(Vec<u8>, Version)> {
        let into = Download::Memory(WIRE_FRAME_BODY_MAX_BYTES as u64, Vec::new());
        let (reply, answer) = self.call(request, Upload::Nothing, into).await?;
        Ok((answer, reply.version))
    }
}

impl Lock {
    /// The token to show to what the lock protects.
    pub fn token(&self) -> Token {
        self.token
    }

    /// Whether the lock is held, by our own clock, which says so no later than the node does.
    pub fn is_held(&mut self) -> bool {
        self.lease.standing(clock_ms()) != Standing::Lost
    }

    /// Does what is due: renews the lease when a third of it is over. To be called again after the time of
    /// [`Standing::Held`]; takes no longer than a sixth of the lease. [`Standing::Lost`] is for ever.
    pub async fn tend(&mut self) -> Standing {
        if let Standing::Due(within) = self.lease.standing(clock_ms()) {
            self.renew(within).await;
        }
        match self.lease.standing(clock_ms()) {
            Standing::Due(_) => Standing::Held(Duration::ZERO),
            other => other,
        }
    }

    async fn renew(&mut self, within: Duration) {
        let asked_ms = clock_ms();
        let answer = match renew_request(&self.key, self.token, self.lease_ms) {
            Ok(request) => self.client.with_timeout(within).ask(request).await.map(|_| ()),
            Err(error) => Err(error),
        };
        self.lease.answered((asked_ms, clock_ms()), answer);
    }

    /// Asks the node how long the lease still lasts; an error of kind `ConditionFailed` if the lock is lost.
    pub async fn check(&mut self) -> Result<Duration> {
        let answer = self.client.ask(check_request(&self.key, self.token)?).await;
        if answer.as_ref().is_err_and(|error| lock::is_loss(error.kind())) {
            self.lease.lose();
        }
        lock::time_left(&answer?.0)
    }

    /// Gives the lock back; an error of kind `ConditionFailed` if it was lost before.
    pub async fn release(self) -> Result<()> {
        self.client.ask(unlock_request(&self.key, self.token)?).await.map(|_| ())
    }
}
