//! Which loops a link joins (PROTOCOL.md §1.8).
//!
//! A node has as many *lanes* as the largest power of two that is not above the number of its loops. Of two such
//! numbers one divides the other, so the links that join lanes join, for each number of a replica group, the loops on
//! which its parts live at both ends. Loops beyond the lanes have links of their own, for what their connections hand
//! on.

/// Numbers of links from here on are those of loops beyond the lanes.
pub const BEYOND: u16 = 1 << 15;

/// The lanes of a node of so many loops.
pub fn lanes(loops: u16) -> u16 {
    1 << loops.max(1).ilog2()
}

/// Its loops beyond the lanes.
fn beyond(loops: u16) -> u16 {
    loops.max(1) - lanes(loops)
}

/// The loop that a link joins at a node of so many.
pub fn loop_of(link: u16, loops: u16) -> u16 {
    match (link.checked_sub(BEYOND), beyond(loops)) {
        (None, _) => link % lanes(loops),
        (Some(number), 0) => number % loops.max(1),
        (Some(number), beyond) => lanes(loops) + number % beyond,
    }
}

/// The link by which a loop of so many asks, whatever the other node has.
pub fn link_of(number: u16, loops: u16) -> u16 {
    number.checked_sub(lanes(loops)).map_or(number, |number| BEYOND + number)
}

/// Whether there is a link of this number between nodes of so many loops.
pub fn is_link(link: u16, own: u16, theirs: u16) -> bool {
    match link.checked_sub(BEYOND) {
        None => link < lanes(own).max(lanes(theirs)),
        Some(number) => number < beyond(own).max(beyond(theirs)),
    }
}

/// The links that a loop has to a node of so many loops.
pub fn links(number: u16, own: u16, theirs: u16) -> impl Iterator<Item = u16> {
    let joined = 0..lanes(own).max(lanes(theirs));
    let others = (0..beyond(own).max(beyond(theirs))).map(|number| BEYOND + number);
    joined.chain(others).filter(move |link| loop_of(*link, own) == number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn links_join_the_same_lanes_and_each_loop_has_its_own() {
        for (own, theirs) in (1..=20).flat_map(|own| (1..=20).map(move |theirs| (own, theirs))) {
            let all: Vec<u16> = (0..own).flat_map(|number| links(number, own, theirs)).collect();
            let once: BTreeSet<u16> = all.iter().copied().collect();
            assert_eq!(once.len(), all.len(), "each link is one loop's");
            assert!(all.len() <= usize::from(own.max(theirs) + own.min(theirs)), "{own}, {theirs}: {all:?}");
            let other: BTreeSet<u16> = (0..theirs).flat_map(|number| links(number, theirs, own)).collect();
            assert_eq!(once, other, "both ends have them");
            assert!(all.iter().all(|link| is_link(*link, own, theirs)));
            for number in 0..own {
                let link = link_of(number, own);
                assert!(loop_of(link, own) == number && is_link(link, own, theirs), "{number} of {own}, {theirs}");
            }
            for group in 0..64 {
                let link = group % lanes(own).max(lanes(theirs));
                assert_eq!((loop_of(link, own), loop_of(link, theirs)), (group % lanes(own), group % lanes(theirs)));
            }
        }
        assert!(is_link(4, 5, 8) && !is_link(8, 5, 8) && is_link(BEYOND, 5, 8) && !is_link(BEYOND + 1, 5, 8));
        assert_eq!((lanes(0), lanes(5), lanes(u16::MAX)), (1, 4, BEYOND));
    }
}
