//! One direction between two sites, as arithmetic: what becomes of each packet, and when it arrives. No clock and no
//! socket: all times are the caller's, in nanoseconds of one clock that does not go back.
//!
//! A path is a transmitter that takes packets at its rate, with a buffer before it that drops what does not fit, and
//! a distance behind it. What is offered is counted exactly once: delivered, lost, dropped, cut, refused, or still
//! in flight. Nothing is ever reordered: [`Path::take`] is first in, first out, and times of arrival never fall.

use std::collections::VecDeque;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::relay::frame::Load;

/// The least default buffer before a path with a rate.
const BUFFER_BYTES_MIN: u64 = 256 * 1_024;
/// The default bound of what is in flight on a path without a rate.
const UNRATED_BYTES: u64 = 256 * 1_024 * 1_024;
/// A packet handed on later than this after its time was held up by the processor.
const LATE_NS: u64 = 1_000_000;
/// Bounds that keep every sum of times within 64 bits: rates in bits per second, delay and jitter in microseconds.
const RATES: Range<u64> = 1_000..1_000_000_000_001;
const DELAY_US_MAX: u64 = 3_600_000_000;
const BIT_NS_IN_BYTE_S: u64 = 8_000_000_000;

/// How one direction between two sites is. The default is a perfect one: no delay, no loss, no rate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Conditions {
    /// Bits per second on the wire, Ethernet headers included; none: as fast as the machine can.
    pub(crate) rate_bits_s: Option<u64>,
    /// Time in flight behind the transmitter, in microseconds.
    pub(crate) delay_us: u64,
    /// Up to this many microseconds more, drawn evenly for each frame; order is kept.
    pub(crate) jitter_us: u64,
    /// Share of the packets that are lost, from 0 to 1, each drawn by itself.
    pub(crate) loss: f64,
    /// Nothing passes, and what is in flight is gone.
    pub(crate) cut: bool,
    /// Bytes that may wait for the transmitter; without a rate, bytes that may be in flight. Default: twice what is
    /// in flight at the rate, at least 256 KiB; without a rate 256 MiB.
    pub(crate) buffer_bytes: Option<u64>,
}

impl Conditions {
    /// Refuses what no path can be.
    pub(crate) fn check(&self) -> Result<()> {
        if self.rate_bits_s.is_some_and(|rate| !RATES.contains(&rate)) {
            return Err(Error::new("rate_bits_s is not from 1 kbit/s to 1 Tbit/s; leave it out for no limit"));
        }
        if self.delay_us > DELAY_US_MAX || self.jitter_us > DELAY_US_MAX {
            return Err(Error::new("delay_us or jitter_us is over an hour"));
        }
        if !(0.0..=1.0).contains(&self.loss) {
            return Err(Error::new("loss is not from 0 to 1"));
        }
        Ok(())
    }

    fn buffer(&self) -> u64 {
        let default = || match self.rate_bits_s {
            None => UNRATED_BYTES,
            Some(rate) => {
                let bytes = u128::from(rate) * 2 * u128::from(self.delay_us) / 8_000_000;
                BUFFER_BYTES_MIN.max(u64::try_from(bytes).unwrap_or(u64::MAX))
            }
        };
        self.buffer_bytes.unwrap_or_else(default)
    }

    fn delay_ns(&self) -> u64 {
        self.delay_us * 1_000
    }
}

/// What has happened on one path since the relay started. Packets are packets of the MTU, bytes are bytes on a wire,
/// Ethernet headers included. Offered is the sum of delivered, lost, dropped, cut, refused and in flight.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Counts {
    /// Packets that came in.
    pub(crate) offered_packets: u64,
    /// Bytes that came in.
    pub(crate) offered_bytes: u64,
    /// Packets handed to the other site.
    pub(crate) delivered_packets: u64,
    /// Bytes handed to the other site.
    pub(crate) delivered_bytes: u64,
    /// Packets lost by the draw.
    pub(crate) lost_packets: u64,
    /// Bytes lost by the draw.
    pub(crate) lost_bytes: u64,
    /// Packets that found the buffer full, or the relay out of memory.
    pub(crate) dropped_packets: u64,
    /// Bytes that found the buffer full, or the relay out of memory.
    pub(crate) dropped_bytes: u64,
    /// Packets that a cut took.
    pub(crate) cut_packets: u64,
    /// Bytes that a cut took.
    pub(crate) cut_bytes: u64,
    /// Packets that the other site's device did not take.
    pub(crate) refused_packets: u64,
    /// Bytes that the other site's device did not take.
    pub(crate) refused_bytes: u64,
    /// Packets on their way.
    pub(crate) in_flight_packets: u64,
    /// Bytes on their way.
    pub(crate) in_flight_bytes: u64,
    /// Packets handed on more than 1 ms after their time: the processor's fault, not the link's.
    pub(crate) late_packets: u64,
    /// The longest that a packet was handed on after its time, in microseconds.
    pub(crate) worst_late_us: u64,
}

/// Numbers that look random and are the same for the same seed (splitmix64).
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    /// The sequence of `seed`.
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number, all 64 bits even.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// Evenly from 0 up to, not including, 1.
    fn share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Evenly from 0 to `most`, both included; `most` is far below 2^64, so the remainder's bias is nothing.
    fn up_to(&mut self, most: u64) -> u64 {
        if most == 0 { 0 } else { self.next() % (most + 1) }
    }
}

/// When a frame left the transmitter and when it arrives, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Times {
    sent_ns: u64,
    /// Arrival at the other end.
    pub(crate) due_ns: u64,
}

/// What becomes of an offered frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// No packet of it arrives.
    Gone,
    /// The survivors arrive.
    Arrives(Times),
}

struct Parcel<T> {
    item: T,
    load: Load,
    times: Times,
}

/// One direction between two sites; `T` is what carries a frame's bytes.
pub(crate) struct Path<T> {
    conditions: Conditions,
    random: Random,
    counts: Counts,
    queue: VecDeque<Parcel<T>>,
    /// When the transmitter will have sent all it has taken, and what rounding left of the last nanosecond.
    busy_until_ns: u64,
    busy_rest: u64,
    last_due_ns: u64,
}

impl<T> Path<T> {
    /// An empty path; the conditions have been checked.
    pub(crate) fn new(conditions: Conditions, seed: u64) -> Self {
        Self {
            conditions,
            random: Random::new(seed),
            counts: Counts::default(),
            queue: VecDeque::new(),
            busy_until_ns: 0,
            busy_rest: 0,
            last_due_ns: 0,
        }
    }

    /// Decides about a frame's packets. Those that arrive are put into `survivors` as runs, ascending; they are then
    /// given to [`Path::carry`] or [`Path::starve`].
    pub(crate) fn offer(&mut self, now_ns: u64, load: Load, survivors: &mut Vec<Range<u32>>) -> Fate {
        self.counts.offered_packets += u64::from(load.packets);
        self.counts.offered_bytes += load.bytes();
        survivors.clear();
        if self.conditions.cut {
            self.counts.cut_packets += u64::from(load.packets);
            self.counts.cut_bytes += load.bytes();
            return Fate::Gone;
        }
        let taken = 0..self.fitting(now_ns, &load);
        self.counts.dropped_packets += u64::from(load.packets - taken.end);
        self.counts.dropped_bytes += load.bytes() - load.bytes_of(&taken);
        if taken.is_empty() {
            return Fate::Gone;
        }
        // What is lost is lost behind the transmitter, and has taken its time there.
        let sent_ns = self.transmit(now_ns, load.bytes_of(&taken));
        self.draw_survivors(&load, taken.end, survivors);
        if survivors.is_empty() {
            return Fate::Gone;
        }
        let jitter_ns = self.random.up_to(self.conditions.jitter_us * 1_000);
        let due_ns = (sent_ns + self.conditions.delay_ns() + jitter_ns).max(self.last_due_ns);
        self.last_due_ns = due_ns;
        Fate::Arrives(Times { sent_ns, due_ns })
    }

    /// How many of the packets, from the first on, the buffer has room for.
    fn fitting(&self, now_ns: u64, load: &Load) -> u32 {
        let backlog = self.backlog_bytes(now_ns);
        let room = self.conditions.buffer().saturating_sub(backlog);
        if load.bytes() <= room {
            return load.packets;
        }
        // The last packet, which may be shorter, is left out here: it comes after one that did not fit.
        let whole = u32::try_from(room / u64::from(load.packet_bytes)).unwrap_or(u32::MAX).min(load.packets - 1);
        // An idle transmitter takes a packet however small the buffer is: it need not wait.
        if backlog == 0 { whole.max(1) } else { whole }
    }

    fn backlog_bytes(&self, now_ns: u64) -> u64 {
        let Some(rate) = self.conditions.rate_bits_s else { return self.counts.in_flight_bytes };
        let waiting_ns = self.busy_until_ns.saturating_sub(now_ns);
        let bytes = u128::from(waiting_ns) * u128::from(rate) / u128::from(BIT_NS_IN_BYTE_S);
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }

    /// Occupies the transmitter for `bytes` and returns when the last of them has left it.
    fn transmit(&mut self, now_ns: u64, bytes: u64) -> u64 {
        let Some(rate) = self.conditions.rate_bits_s else { return now_ns };
        if self.busy_until_ns < now_ns {
            (self.busy_until_ns, self.busy_rest) = (now_ns, 0);
        }
        let work = bytes * BIT_NS_IN_BYTE_S + self.busy_rest;
        self.busy_until_ns += work / rate;
        self.busy_rest = work % rate;
        self.busy_until_ns
    }

    /// Draws for each of the first `taken` packets whether it is lost, and keeps the runs between.
    fn draw_survivors(&mut self, load: &Load, taken: u32, survivors: &mut Vec<Range<u32>>) {
        if self.conditions.loss <= 0.0 {
            survivors.push(0..taken);
            return;
        }
        for packet in 0..taken {
            if self.random.share() < self.conditions.loss {
                self.counts.lost_packets += 1;
                self.counts.lost_bytes += load.bytes_of(&(packet..packet + 1));
            } else {
                match survivors.last_mut() {
                    Some(run) if run.end == packet => run.end += 1,
                    _ => survivors.push(packet..packet + 1),
                }
            }
        }
    }

    /// Takes what survived of the frame offered last on its way.
    pub(crate) fn carry(&mut self, times: Times, load: Load, item: T) {
        self.counts.in_flight_packets += u64::from(load.packets);
        self.counts.in_flight_bytes += load.bytes();
        self.queue.push_back(Parcel { item, load, times });
    }

    /// Drops what survived of the frame offered last, since there is no memory to hold it.
    pub(crate) fn starve(&mut self, load: Load) {
        self.counts.dropped_packets += u64::from(load.packets);
        self.counts.dropped_bytes += load.bytes();
    }

    /// When the next frame arrives.
    pub(crate) fn next_due_ns(&self) -> Option<u64> {
        self.queue.front().map(|parcel| parcel.times.due_ns)
    }

    /// The next frame, if it has arrived by now; it counts as delivered.
    pub(crate) fn take(&mut self, now_ns: u64) -> Option<(T, Load)> {
        let parcel = self.queue.pop_front_if(|parcel| parcel.times.due_ns <= now_ns)?;
        self.land(&parcel.load);
        self.counts.delivered_packets += u64::from(parcel.load.packets);
        self.counts.delivered_bytes += parcel.load.bytes();
        let late_ns = now_ns - parcel.times.due_ns;
        if late_ns > LATE_NS {
            self.counts.late_packets += u64::from(parcel.load.packets);
        }
        self.counts.worst_late_us = self.counts.worst_late_us.max(late_ns / 1_000);
        Some((parcel.item, parcel.load))
    }

    fn land(&mut self, load: &Load) {
        self.counts.in_flight_packets -= u64::from(load.packets);
        self.counts.in_flight_bytes -= load.bytes();
    }

    /// What was taken last could not be handed on after all.
    pub(crate) fn refuse(&mut self, load: &Load) {
        self.counts.delivered_packets -= u64::from(load.packets);
        self.counts.delivered_bytes -= load.bytes();
        self.counts.refused_packets += u64::from(load.packets);
        self.counts.refused_bytes += load.bytes();
    }

    /// Changes the conditions, which have been checked, at once; gives back what a cut takes.
    pub(crate) fn set(&mut self, now_ns: u64, conditions: Conditions, mut gone: impl FnMut(T)) {
        let before = std::mem::replace(&mut self.conditions, conditions);
        if self.conditions.cut {
            while let Some(parcel) = self.queue.pop_front() {
                self.land(&parcel.load);
                self.counts.cut_packets += u64::from(parcel.load.packets);
                self.counts.cut_bytes += parcel.load.bytes();
                gone(parcel.item);
            }
            (self.busy_until_ns, self.busy_rest, self.last_due_ns) = (0, 0, 0);
        } else {
            self.retime(now_ns, &before);
        }
    }

    /// What waits for the transmitter leaves it at the new rate; what is behind it arrives after the shorter of the
    /// delays: a distance that shrinks brings all nearer, one that grows holds back only what sets out later.
    fn retime(&mut self, now_ns: u64, before: &Conditions) {
        let rate = self.conditions.rate_bits_s;
        let rescaled = |at_ns: u64| match (before.rate_bits_s, rate) {
            (Some(old), Some(new)) if at_ns > now_ns => {
                let waiting = u128::from(at_ns - now_ns) * u128::from(old) / u128::from(new);
                now_ns + u64::try_from(waiting).expect("memory at the least rate is 100 days")
            }
            _ => at_ns.min(now_ns),
        };
        let mut last = 0;
        for parcel in &mut self.queue {
            let times = &mut parcel.times;
            let extra_ns = times.due_ns.saturating_sub(times.sent_ns + before.delay_ns());
            let waiting = times.sent_ns > now_ns;
            times.sent_ns = rescaled(times.sent_ns);
            let due_ns = (times.sent_ns + self.conditions.delay_ns() + extra_ns).max(now_ns);
            times.due_ns = if waiting { due_ns } else { due_ns.min(times.due_ns) }.max(last);
            last = times.due_ns;
        }
        self.busy_until_ns = rescaled(self.busy_until_ns);
        self.busy_rest = 0;
        self.last_due_ns = last;
    }

    /// What has happened so far.
    pub(crate) fn counts(&self) -> &Counts {
        &self.counts
    }
}

#[cfg(test)]
mod tests;
