//! Bugs that are planted on purpose, for the simulator to find: a check that finds none of them checks nothing.
//!
//! Only a build with `--cfg herd_bugs` has them; everywhere else [`has`] is false when the code is compiled, and
//! leaves nothing behind. Which one is there is chosen at run time. Callers: the places where they are planted, and
//! `herd-sim`.
//!
//! The mistakes that a team would make in a herd, as they were listed before it was built, and where each is planted:
//!
//! * A strict read by who leads no more: `StaleRead`; by a lease that is over: `EndlessLease`, `LongLease`, or was
//!   looked at too early: `ClockFirst`; of what is of class `cache`: `EndlessCacheLease`, `LongCacheLease`.
//! * Decided on what is pending, or its "no" told before that ends: `DecidedBeside`.
//! * A member's refusal is told to the client, and the write appears: `EarlyRefusal`.
//! * Something changes at one member alone: `AroundGroup`; without a version: `TouchKeepsVersion`.
//! * What is pending passes for committed: `DirtyRead`. A backup answers beside what is pending: `BesideRead`.
//! * Acks of an older epoch: `OldAck`; a higher prepare commits: `HigherCommits`; another version at a take-over:
//!   `NewVersion`, `DropCommitted`.
//! * A slot moves, with reads at the old place: `StaleRead`; what is held done twice: `RerunLost`; smaller versions:
//!   `LowVersion`. Slots stay in their groups; members move: one goes unsealed: `Unsealed` (it led), `UnsealedCopy`,
//!   `UnsealedCache`.
//! * A copy overtakes or is overtaken: `BesideCopy`, `BehindCopy`; served before all was acked: `EarlyOpen`.
//! * Something old answers something new: `OldLink`; a window that is not replicated: `WindowAtHome`.
//! * An epoch is not looked at: `OldAck`, `OldEpoch`; who has not all leads: `Ineligible`; a copy expires by itself:
//!   `BackupExpires`; a node has the number of its life before: `OldLife`.
//! * Two wardens of one term: `TwoWardens`; a new one takes out at once who is silent: `EarlyRemoval`.
//! * A connection's next request overtakes the last: `Overtaken`; one outlives its deadline: `EndlessFlight`.
//!
//! And more: a pending write is forgotten at a take-over: `ForgottenPending`; acked below k: `AckBelowK`; the call is
//! replicated and not its result: `SentCall`; a retry is run again: `RerunRetried`, `RerunLost`; a prepare of an old
//! link is served: `OldLink`, in the link and in the group; two primaries act in one epoch: `TwoPrimaries`.

#[cfg(herd_bugs)]
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// A bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// Whoever waited for an object stays in the table for ever.
    ForgottenUnwatch = 1,
    /// A shard is locked while a lock of higher rank is held.
    LockOrder,
    /// Objects of before a flush are found.
    StaleGeneration,
    /// The end of a stream that came with its last bytes is forgotten.
    LostEnd,
    /// What a closed connection held stays counted.
    HeldForEver,
    /// Memory promised to a body that never comes is not given back.
    PromisedForEver,
    /// What changes an object's time to live leaves its version as it was.
    TouchKeepsVersion,
    /// Requests that wait until some replies are sent are forgotten.
    EatenRequests,
    /// A reply that comes later goes behind those that were to follow it.
    LateReplyLast,
    /// After a send that was cut short a byte goes twice.
    ByteTwice,
    /// Objects outlive their time.
    NeverExpires,
    /// Nobody who waits for an object is told that it changed.
    UntoldWaiter,
    /// Who waits and was told once, too early, is not told again.
    ToldOnce,
    /// A change whose link was lost is handed on again, though it may have been done.
    RerunLost,
    /// A change whose link was lost is said not to have been done.
    LostForNothing,
    /// Requests that are handed on wait without end.
    EndlessFlight,
    /// A take-over forgets what is pending at home.
    ForgottenPending,
    /// A write is answered that fewer than k hold.
    AckBelowK,
    /// Acks of an epoch that is over are counted.
    OldAck,
    /// A take-over drops at members what it has committed itself.
    DropCommitted,
    /// A refusal is told before all members have dropped the write.
    EarlyRefusal,
    /// What is unread of an old link is served after something of the new one.
    OldLink,
    /// A take-over gives what it prepares again another version.
    NewVersion,
    /// A higher prepare commits what is pending.
    HigherCommits,
    /// A primary serves before its take-over is done.
    EarlyOpen,
    /// After a link broke only what is under way goes again; what was settled meanwhile stays pending.
    LostSettle,
    /// A write of the entry whose copy is under way is sent beside it.
    BesideCopy,
    /// What was committed while the entry's copy was under way is not sent after it.
    BehindCopy,
    /// Who led a group goes on to lead it in the view that has another do so.
    TwoPrimaries,
    /// Who led a group goes on to answer reads of it.
    StaleRead,
    /// Operations are decided on a write that may still fail, and "no" is told before it has not.
    DecidedBeside,
    /// What goes because a put was refused goes at the primary alone.
    AroundGroup,
    /// A read finds what is pending.
    DirtyRead,
    /// A new primary counts versions on from those that it has.
    LowVersion,
    /// Which requests a write answers is not told to members.
    WindowAtHome,
    /// A request that is asked again is done again.
    RerunRetried,
    /// Members are told what was called and make the result themselves, by their own clocks.
    SentCall,
    /// What a connection asks of an object overtakes a change that it asked for before.
    Overtaken,
    /// The clock is looked at before the object is, and what was read is answered by that.
    ClockFirst,
    /// A lease lasts for its holder as long as for the warden.
    LongLease,
    /// A new warden takes out at once who is silent.
    EarlyRemoval,
    /// A control store takes writes of a term that is over.
    TwoWardens,
    /// Who has not all becomes the primary.
    Ineligible,
    /// A node that is started anew has the number of its life before.
    OldLife,
    /// Who had a lease once has it for ever, in its groups or out of them.
    EndlessLease,
    /// The same of the lease for what is of class `cache`.
    EndlessCacheLease,
    /// That lease lasts for its holder as long as for the warden.
    LongCacheLease,
    /// What is of class `cache` goes to another node before the one that had it has heard so.
    UnsealedCache,
    /// Nobody looks at the epoch of what a primary says: neither members, nor who leads by a later view. Of members
    /// alone it would do no harm that is seen: each write needs the ack of all members, and who leads next is one of
    /// them, obeys nobody, and so never acks.
    OldEpoch,
    /// Who leads a group and is to go is taken out at once, and does not hand the lead over first.
    Unsealed,
    /// A node that keeps a copy takes an object out when its time is over by its own clock.
    BackupExpires,
    /// A backup answers with what is committed beside what is pending.
    BesideRead,
    /// A backup that answers reads is taken out before it has heard that it does not.
    UnsealedCopy,
}

impl Bug {
    /// Those that one node shows.
    pub const ONE: [Bug; 13] = [
        Bug::ForgottenUnwatch,
        Bug::LockOrder,
        Bug::StaleGeneration,
        Bug::LostEnd,
        Bug::HeldForEver,
        Bug::PromisedForEver,
        Bug::TouchKeepsVersion,
        Bug::EatenRequests,
        Bug::LateReplyLast,
        Bug::ByteTwice,
        Bug::NeverExpires,
        Bug::UntoldWaiter,
        Bug::ToldOnce,
    ];

    /// Those that only a herd shows.
    pub const HERD: [Bug; 40] = [
        Bug::RerunLost,
        Bug::LostForNothing,
        Bug::EndlessFlight,
        Bug::ForgottenPending,
        Bug::AckBelowK,
        Bug::OldAck,
        Bug::DropCommitted,
        Bug::EarlyRefusal,
        Bug::OldLink,
        Bug::NewVersion,
        Bug::HigherCommits,
        Bug::EarlyOpen,
        Bug::LostSettle,
        Bug::BesideCopy,
        Bug::BehindCopy,
        Bug::TwoPrimaries,
        Bug::StaleRead,
        Bug::DecidedBeside,
        Bug::AroundGroup,
        Bug::DirtyRead,
        Bug::LowVersion,
        Bug::WindowAtHome,
        Bug::RerunRetried,
        Bug::SentCall,
        Bug::Overtaken,
        Bug::ClockFirst,
        Bug::LongLease,
        Bug::EarlyRemoval,
        Bug::TwoWardens,
        Bug::Ineligible,
        Bug::OldLife,
        Bug::EndlessLease,
        Bug::EndlessCacheLease,
        Bug::LongCacheLease,
        Bug::UnsealedCache,
        Bug::OldEpoch,
        Bug::Unsealed,
        Bug::BackupExpires,
        Bug::BesideRead,
        Bug::UnsealedCopy,
    ];
}

#[cfg(herd_bugs)]
static PLANTED: AtomicU32 = AtomicU32::new(0);

/// Plants one bug in this process, instead of the one before.
#[cfg(herd_bugs)]
pub fn plant(bug: Option<Bug>) {
    PLANTED.store(bug.map_or(0, |bug| bug as u32), Relaxed);
}

/// Whether the bug is planted.
#[cfg(herd_bugs)]
#[inline]
pub fn has(bug: Bug) -> bool {
    PLANTED.load(Relaxed) == bug as u32
}

/// Whether the bug is planted: never.
#[cfg(not(herd_bugs))]
#[inline(always)]
pub const fn has(_: Bug) -> bool {
    false
}
