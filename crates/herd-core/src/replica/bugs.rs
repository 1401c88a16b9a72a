//! Bugs that are planted in tests, for the checker to find: a check that finds none of them checks nothing.
//!
//! Outside tests [`has`] is false when the code is compiled, but in a build with `--cfg herd_bugs`, where the simulator
//! looks for some of them (`crate::bugs`). Callers: where they are planted, and `check.rs`.

/// A bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bug {
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
    /// Nothing is resolved: a higher prepare commits what is pending.
    HigherCommits,
    /// A primary serves before its take-over is done.
    EarlyOpen,
    /// A member that is asked to be joining is not waited for until it is.
    LateNeed,
    /// After a link broke only what is under way goes again; what was settled meanwhile stays pending.
    LostSettle,
    /// A write of the entry whose copy is under way is sent beside it.
    BesideCopy,
    /// What was committed while the entry's copy was under way is not sent after it.
    BehindCopy,
    /// A member adopts a view before it has dropped what it had before.
    EarlyAdopted,
    /// What was removed, and is asked for again by a new primary, wants room; refused, it is there again.
    RemovedTwice,
    /// A syncing member is sent the name of a write that it has not, and what follows that before it can have asked.
    NamedAtCopy,
    /// What was committed before drops a later write that a syncing member has pending.
    OlderWhole,
    /// A removal is taken for committed where the put before it is still pending.
    RemovedAhead,
    /// What ends while a syncing member has no link never comes to it.
    MissedTarget,
    /// A primary takes the first message of what is pending at a member for all of it.
    FirstForAll,
    /// What a flush has ended is sent as if it were a removal.
    WholeOfNothing,
    /// What a flush has ended at the primary is dropped at members, though it may be acknowledged.
    ResolvedOver,
    /// Nodes do not look at the generation that a key names.
    NoGeneration,
    /// The cursor of a copy waits for the write under way, and a group below k for the copy.
    WaitingCursor,
    /// Who led goes on to lead in the view that has another do so.
    TwoPrimaries,
    /// Operations are decided on a write that may still fail, and "no" is told before it has not.
    DecidedBeside,
    /// A read without a lease is answered when one member has confirmed it.
    OneConfirms,
    /// A member does what a primary of an epoch that is over says, also where it leads by a later view.
    OldEpoch,
}

#[cfg(test)]
std::thread_local! {
    static PLANTED: std::cell::Cell<Option<Bug>> = const { std::cell::Cell::new(None) };
}

/// Plants one bug in this thread, instead of the one before.
#[cfg(test)]
pub(crate) fn plant(bug: Option<Bug>) {
    PLANTED.set(bug);
}

/// Whether the bug is planted.
#[cfg(test)]
pub(crate) fn has(bug: Bug) -> bool {
    PLANTED.get() == Some(bug)
}

/// Whether the bug is planted: never.
#[cfg(not(any(test, herd_bugs)))]
#[inline(always)]
pub(crate) const fn has(_: Bug) -> bool {
    false
}

/// Whether the bug is planted, for the simulator of whole herds to find.
#[cfg(all(herd_bugs, not(test)))]
pub(crate) fn has(bug: Bug) -> bool {
    use crate::bugs::Bug as Planted;
    let planted = match bug {
        Bug::ForgottenPending => Planted::ForgottenPending,
        Bug::AckBelowK => Planted::AckBelowK,
        Bug::OldAck => Planted::OldAck,
        Bug::DropCommitted => Planted::DropCommitted,
        Bug::EarlyRefusal => Planted::EarlyRefusal,
        Bug::OldLink => Planted::OldLink,
        Bug::NewVersion => Planted::NewVersion,
        Bug::HigherCommits => Planted::HigherCommits,
        Bug::EarlyOpen => Planted::EarlyOpen,
        Bug::LostSettle => Planted::LostSettle,
        Bug::BesideCopy => Planted::BesideCopy,
        Bug::BehindCopy => Planted::BehindCopy,
        Bug::TwoPrimaries => Planted::TwoPrimaries,
        Bug::DecidedBeside => Planted::DecidedBeside,
        Bug::OldEpoch => Planted::OldEpoch,
        _ => return false,
    };
    crate::bugs::has(planted)
}
