//! What a node is to each slot as the map says, and which of two maps a node goes by. Pure: a node asks this when a map
//! comes, and its store does the rest.

use super::map::{Group, Map, NodeId, Spread};
use crate::entry::{COUNTER_BITS, Version};

/// The versions of slots begin so far apart, as a power of two: two objects seldom have the same one, and memcached's
/// clients, which see them as CAS values, are used to that.
const APART_BITS: u32 = 10;

/// What a node is to a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Seat {
    /// It has the only copy: it reads and changes objects and asks nobody.
    Alone,
    /// It decides, and others have copies, or must have some.
    Led,
    /// It has a copy, and another node decides.
    Held,
    /// It has none that counts.
    Away,
    /// As [`Seat::Alone`], of what may be given to another node, empty, when this one is silent: it reads and changes
    /// that while its lease of such groups holds, and not otherwise.
    Leased,
}

impl Seat {
    /// Whether what is there may go by itself: nobody else has it.
    #[inline]
    pub fn is_own(self) -> bool {
        matches!(self, Seat::Alone | Seat::Leased)
    }
}

/// One life of a node, from its start to its end: what an earlier one held is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Life {
    /// The node.
    pub node: NodeId,
    /// Which of its lives.
    pub incarnation: u64,
}

impl Map {
    /// Whether a node that goes by the map `than` goes over to this one. `held` is told beside a map: whether its herd
    /// may hold objects.
    pub fn is_later(&self, held: bool, (than, than_held): (&Map, bool)) -> bool {
        let rank = |map: &Map, held: bool| (map.term, map.epoch, map.revision, held);
        self.herd == than.herd && rank(self, held) > rank(than, than_held)
    }

    /// What the node `me` is to each slot (below [`crate::limits::SLOTS`]) of one of the map's spread groups, and the
    /// version that all later ones of the slot are above. A node of which the map knows another life has nothing.
    /// `taken` says what the node makes of the seat that the map gives it in the group of a number.
    pub fn seats<'m, T: Fn(u16, Seat) -> Seat>(
        &self,
        me: Life,
        spread: &'m Spread,
        taken: T,
    ) -> impl Fn(usize) -> (Seat, Version) + use<'m, T> {
        let lives = self.node(me.node).is_some_and(|node| node.incarnation == me.incarnation);
        let seat_of = |group| if lives { spread.seat(me.node, group) } else { Seat::Away };
        let of_groups: Vec<(Seat, u32)> =
            (0..).zip(&spread.groups).map(|(number, it)| (taken(number, seat_of(it)), it.primary_since)).collect();
        move |slot| {
            let (seat, led_since) = of_groups[usize::from(spread.slots[slot])];
            let since = spread.moved[slot].max(led_since);
            (seat, Version::from(since) << COUNTER_BITS | (slot as Version) << APART_BITS)
        }
    }
}

impl Spread {
    /// A primary without other members is alone only where no copy but its own is needed: else it may not go on.
    fn seat(&self, me: NodeId, group: &Group) -> Seat {
        match group.primary == Some(me) {
            true if group.others.is_empty() && self.needed == 1 => Seat::Alone,
            true => Seat::Led,
            false if group.members().any(|member| member == me) => Seat::Held,
            false => Seat::Away,
        }
    }
}
