//! The planner: which nodes make up the replica groups of a spread group, and which slots each group has.
//!
//! **Shares.** Each node holds copies of slots by its memory, but no host more than one copy of each slot: what is
//! above that can't be used. Where there are fewer hosts than copies, each has at least one.
//!
//! **Groups.** The nodes are laid out along a line, each as long as its share, nodes of a host together, hosts of a
//! rack together; the line is K times the slots. Points that are as far apart as there are slots make up one group: as
//! no host is longer than that, no two of them are on one host, and in one rack only where its share does not fit.
//! Every K-th point leads its group. Several such lines (layers), each in an order of its own, spread what a dead node
//! held over many others.
//!
//! **Slots.** They are dealt to the primaries in turn, each as often as it leads points; so neighbours lie on different
//! nodes.
//!
//! All this follows from the nodes alone: the same nodes give the same plan, anywhere. A plan is made anew while a herd
//! holds no object; a node that comes later holds nothing until slots are moved. A slot's group is but a number in a
//! table, so a plan with few moves can come beside this one: it gives a slot to a group that has members in common
//! with the old one.

use super::map::{Draft, Group, Grows, Kind, Member, Node, NodeId, NodeState, Spread, Standing};
use super::{GROUPS_PER_NODE, NEIGHBOURS};
use crate::limits::{SLOTS, SPREADS_MAX};
use siphasher::sip::SipHasher13;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::hash::Hasher;

/// Copies a growing spread group keeps once there are as many nodes.
pub const GROWS_TO: usize = 3;

/// Memory is weighed in MiB: a herd's nodes do not differ by less, and products stay far below 128 bits.
const WEIGHT_BYTES_LOG2: u32 = 20;

impl Draft {
    /// Adds a spread group, planned over the nodes that are up, and gives its id; `None`: there are too many. `copies`
    /// are kept (1 to 9), and as many are needed for a write as [`needed_of`] says of those that can be.
    pub fn add_spread(&mut self, kind: Kind, copies: u8, grows: Grows) -> Option<u16> {
        let id = (0..SPREADS_MAX as u16).find(|id| self.spread(*id).is_none())?;
        let needed = if grows == Grows::No { needed_of(copies) } else { 1 };
        let mut spread = Spread { grows, ..Spread::new(id, kind, copies, needed) };
        spread.plan(&self.nodes);
        self.spreads.insert(self.spreads.partition_point(|it| it.id < id), spread);
        Some(id)
    }

    /// Spread groups in which no collection lies go, but for the default one: they hold nothing, and nobody is to be
    /// waited for who had copies there.
    pub fn drop_unused_spreads(&mut self) {
        let used: BTreeSet<u16> = self.collections.iter().map(|it| it.id.spread_group()).collect();
        self.spreads.retain(|spread| spread.id == 0 || used.contains(&spread.id));
    }

    /// Takes a node in, or its new self. While the herd holds no object all is planned anew; else the node holds
    /// nothing until slots are moved to it, and no more copies are kept than before.
    pub fn join(&mut self, node: Node, holds_objects: bool) {
        match self.nodes.binary_search_by_key(&node.id, |known| known.id) {
            Ok(at) => self.nodes[at] = node,
            Err(at) => self.nodes.insert(at, node),
        }
        if !holds_objects {
            self.plan();
        }
    }

    /// Plans all spread groups anew over the nodes that are up: only while the herd holds no object.
    pub fn plan(&mut self) {
        let nodes = &self.nodes;
        self.spreads.iter_mut().for_each(|spread| spread.plan(nodes));
    }

    /// Groups that hold nothing any more, as all nodes that had what they held were started anew: the nodes that are
    /// there keep anew as many copies as there are to be. Before this nobody led them who lives, so nobody answers for
    /// them by an older map. What somebody has still, half a copy, is of no worth: of a group its part drops it, by
    /// [`Group::lost`]. Where a whole spread group holds nothing it is planned anew, and its collections are emptied;
    /// where fewer nodes are there than a write needs, they wait for more.
    pub fn reopen(&mut self, there: &[Node]) {
        let mut emptied = Vec::new();
        for spread in self.spreads.iter_mut().filter(|spread| spread.may_reopen(there)) {
            if spread.groups.iter().all(is_lost) {
                spread.plan(there);
                emptied.push(spread.id);
                continue;
            }
            for number in 0..spread.groups.len() {
                match spread.kind {
                    _ if !is_lost(&spread.groups[number]) => {}
                    Kind::Kept => spread.renew(number, there),
                    Kind::Cache => spread.open_cache(number, there),
                }
            }
        }
        self.forget_objects(|spread| emptied.contains(&spread));
    }

    /// Whether there are such groups.
    pub fn has_lost_groups(&self) -> bool {
        self.spreads.iter().any(|spread| spread.groups.iter().any(is_lost))
    }

    /// Whether there are such groups that need no more nodes than these.
    pub fn may_reopen(&self, there: &[Node]) -> bool {
        self.spreads.iter().any(|spread| spread.may_reopen(there))
    }

    /// Where placement falls short of what is promised; empty: nowhere.
    pub fn shortfalls(&self) -> Vec<Shortfall> {
        let all = self.spreads.iter().map(|spread| self.shortfall(spread));
        all.filter(|short| short.copies + short.hosts + short.racks > 0).collect()
    }

    fn shortfall(&self, spread: &Spread) -> Shortfall {
        let racks: BTreeSet<&str> = up(&self.nodes).map(|node| node.rack.as_str()).collect();
        let used: BTreeSet<u16> = spread.slots.iter().copied().collect();
        let mut short =
            Shortfall { spread: spread.id, groups: used.len(), wanted: spread.copies, ..Default::default() };
        for group in used.into_iter().map(|number| &spread.groups[usize::from(number)]) {
            let members: Vec<&Node> = group.members().filter_map(|id| self.node(id)).collect();
            let hosts: BTreeSet<&str> = members.iter().map(|node| node.host.as_str()).collect();
            let in_racks: BTreeSet<&str> = members.iter().map(|node| node.rack.as_str()).collect();
            short.copies += usize::from(group.copies() < usize::from(spread.copies));
            short.hosts += usize::from(hosts.len() < members.len());
            short.racks += usize::from(in_racks.len() < members.len().min(racks.len()));
        }
        short
    }
}

/// Groups of one spread group that are not as they should be, for `status`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shortfall {
    /// The spread group.
    pub spread: u16,
    /// Its replica groups that have slots.
    pub groups: usize,
    /// The copies it should keep.
    pub wanted: u8,
    /// Groups with fewer copies.
    pub copies: usize,
    /// Groups with two members on one host.
    pub hosts: usize,
    /// Groups in fewer racks than they might be.
    pub racks: usize,
}

impl fmt::Display for Shortfall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let wanted = match self.wanted {
            1 => "have no copy".to_owned(),
            wanted => format!("have fewer than {wanted} copies"),
        };
        let (hosts, racks) = ("have several copies on one host", "have several copies in one rack");
        let parts = [(self.copies, wanted.as_str()), (self.hosts, hosts), (self.racks, racks)];
        let told = parts.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}"));
        write!(f, "of the {} replica groups of spread group {}, ", self.groups, self.spread)?;
        f.write_str(&told.collect::<Vec<_>>().join(", "))
    }
}

/// Copies without which no write is acknowledged, unless told otherwise: of three copies two, of two one.
pub fn needed_of(copies: u8) -> u8 {
    copies.div_ceil(2).max(1)
}

impl Spread {
    /// Makes its groups and deals its slots anew. Its copies grow with the nodes, if they may, and never fall; neither
    /// do those that are needed.
    pub fn plan(&mut self, nodes: &[Node]) {
        let nodes: Vec<&Node> = up(nodes).collect();
        if self.grows == Grows::ByItself {
            self.copies = self.copies.max(nodes.len().min(GROWS_TO) as u8);
        }
        let copies = nodes.len().min(self.copies.into());
        if self.grows != Grows::No {
            self.needed = self.needed.max(needed_of(copies as u8));
        }
        // A herd holds nothing yet, or all that it held was lost, in all groups alike: that stays known.
        let lost = self.groups.iter().map(|group| group.lost).max().unwrap_or(0);
        let Some(Layout { groups, columns }) = best_layout(&nodes, copies) else {
            (self.groups, *self.slots) = (vec![Group { lost, ..Group::default() }], [0; SLOTS]);
            return;
        };
        *self.slots = deal(nodes.len(), &groups, &columns);
        self.groups = groups.iter().map(|members| Group { lost, ..group(members, &nodes) }).collect();
    }
}

impl Spread {
    fn may_reopen(&self, there: &[Node]) -> bool {
        up(there).count() >= usize::from(self.needed) && self.groups.iter().any(is_lost)
    }

    /// Who leads the fewest groups for its memory leads a group that holds nothing: after a node was started anew, that
    /// one. The other members are each time one of a host and a rack that is not among them, as far as there are such,
    /// and of those who is in the fewest groups.
    fn renew(&mut self, number: usize, nodes: &[Node]) {
        let led = |node: &Node| self.groups.iter().filter(|group| group.primary == Some(node.id)).count() as u128;
        let first = up(nodes).min_by_key(|node| ((led(node) << u64::BITS) / weight(node), node.id));
        let mut members: Vec<&Node> = first.into_iter().collect();
        while members.len() < usize::from(self.copies) {
            let Some(next) = self.next_member(&members, nodes) else { break };
            members.push(next);
        }
        let places: Vec<usize> = (0..members.len()).collect();
        let lost = self.groups[number].lost;
        if !places.is_empty() {
            self.groups[number] = Group { lost, ..group(&places, &members) };
        }
    }

    /// Who of these nodes is to be a member beside those: of another host and another rack, if there is such a one, and
    /// of those who is in the fewest groups.
    pub(super) fn next_member<'n>(&self, members: &[&Node], nodes: &'n [Node]) -> Option<&'n Node> {
        let groups = |node: &Node| self.groups.iter().filter(|group| group.members().any(|id| id == node.id)).count();
        let rest = up(nodes).filter(|node| members.iter().all(|member| member.id != node.id));
        rest.min_by_key(|node| {
            let host = members.iter().any(|member| member.host == node.host);
            let rack = members.iter().any(|member| member.rack == node.rack);
            (host, rack, groups(node), node.id)
        })
    }
}

/// Whether nobody has what a group held.
fn is_lost(group: &Group) -> bool {
    group.eligible.is_empty()
}

fn up(nodes: &[Node]) -> impl Iterator<Item = &Node> {
    nodes.iter().filter(|node| node.state == NodeState::Up)
}

/// A new group of these nodes, the primary first.
fn group(members: &[usize], nodes: &[&Node]) -> Group {
    let eligible: Vec<NodeId> = members.iter().map(|&node| nodes[node].id).collect();
    let others = eligible[1..].iter().map(|&node| Member { node, standing: Standing::Backup, since: 0 }).collect();
    Group { primary: Some(eligible[0]), others, eligible, ..Group::default() }
}

/// What gets a share, and between what bounds.
struct Part {
    weight: u128,
    least: usize,
    most: usize,
}

impl Part {
    /// Its share where one of weight `unit` gets `level`.
    fn at(&self, level: u128, unit: u128) -> usize {
        usize::try_from(self.weight * level / unit).unwrap_or(usize::MAX).clamp(self.least, self.most)
    }
}

/// Shares `total` out by weight within the bounds, whose sums must lie on both sides of it.
fn share(total: usize, parts: &[Part]) -> Vec<usize> {
    let unit = parts.iter().map(|part| part.weight).max().unwrap_or(1);
    let sum = |level: u128| parts.iter().map(|part| part.at(level, unit)).sum::<usize>();
    // From some level on all have their most: the lightest weighs 1.
    let (mut low, mut high) = (0, total as u128 * unit + 1);
    while high - low > 1 {
        let middle = low.midpoint(high);
        *(if sum(middle) <= total { &mut low } else { &mut high }) = middle;
    }
    let mut shares: Vec<usize> = parts.iter().map(|part| part.at(low, unit)).collect();
    let mut left = total - sum(low);
    for (share, part) in shares.iter_mut().zip(parts) {
        let more = left.min(part.at(high, unit) - *share);
        (*share, left) = (*share + more, left - more);
    }
    shares
}

/// The copies of slots that each node that is up is to hold.
pub(super) fn shares(nodes: &[Node], copies: usize) -> Vec<(NodeId, usize)> {
    let nodes: Vec<&Node> = up(nodes).collect();
    let copies = nodes.len().min(copies);
    nodes.iter().map(|node| node.id).zip(holdings(&nodes, copies)).collect()
}

fn weight(node: &Node) -> u128 {
    u128::from(node.memory_bytes >> WEIGHT_BYTES_LOG2).max(1)
}

/// How many copies of slots each node is to hold.
fn holdings(nodes: &[&Node], copies: usize) -> Vec<usize> {
    let mut hosts: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    nodes.iter().enumerate().for_each(|(at, node)| hosts.entry(&node.host).or_default().push(at));
    let enough = hosts.len() >= copies;
    let host = |members: &Vec<usize>| {
        let weight = members.iter().map(|&node| weight(nodes[node])).sum();
        let (least, most) = if enough { (0, SLOTS) } else { (SLOTS, SLOTS * members.len()) };
        Part { weight, least, most }
    };
    let shares = share(copies * SLOTS, &hosts.values().map(host).collect::<Vec<_>>());
    let mut holdings = vec![0; nodes.len()];
    for (members, total) in hosts.values().zip(shares) {
        let parts = members.iter().map(|&node| Part { weight: weight(nodes[node]), least: 0, most: SLOTS });
        let shares = share(total, &parts.collect::<Vec<_>>());
        members.iter().zip(shares).for_each(|(&node, share)| holdings[node] = share);
    }
    holdings
}

/// Groups, as positions of nodes with the primary first, and the group of each column of the layers. There are as many
/// columns as slots; columns that follow each other are of different layers.
struct Layout {
    groups: Vec<Vec<usize>>,
    columns: Vec<u16>,
}

/// The layout with about [`GROUPS_PER_NODE`] groups a node; `None` without nodes.
fn best_layout(nodes: &[&Node], copies: usize) -> Option<Layout> {
    let holdings = holdings(nodes, copies);
    let wanted = GROUPS_PER_NODE * nodes.len();
    let layouts = [8, 4, 2, 1].into_iter().map(|layers| layout(nodes, &holdings, copies, layers));
    layouts.filter(|layout| !layout.groups.is_empty()).min_by_key(|layout| layout.groups.len().abs_diff(wanted))
}

fn layout(nodes: &[&Node], holdings: &[usize], copies: usize, layers: usize) -> Layout {
    let lines: Vec<Vec<usize>> = (0..layers).map(|layer| line(nodes, holdings, layers, layer)).collect();
    let mut layout = Layout { groups: Vec::new(), columns: Vec::new() };
    let mut numbers: Vec<BTreeMap<Vec<usize>, u16>> = vec![BTreeMap::new(); layers];
    if copies == 0 {
        return layout;
    }
    let mut members = Vec::new();
    for at in 0..SLOTS / layers {
        for (line, numbers) in lines.iter().zip(&mut numbers) {
            column(line, at, copies, &mut members);
            let number = numbers.get(&members[..]).copied().unwrap_or_else(|| {
                let number = layout.groups.len() as u16;
                layout.groups.push(members.clone());
                numbers.insert(members.clone(), number);
                number
            });
            layout.columns.push(number);
        }
    }
    layout
}

/// The nodes along one layer, each as often as its part of the holdings.
fn line(nodes: &[&Node], holdings: &[usize], layers: usize, layer: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..nodes.len()).collect();
    let lot = |text: &str| {
        let mut hasher = SipHasher13::new_with_keys(layer as u64, 0);
        hasher.write(text.as_bytes());
        hasher.finish()
    };
    // A host is in one rack, whatever its nodes say.
    let racks: BTreeMap<&str, &str> = nodes.iter().rev().map(|node| (node.host.as_str(), node.rack.as_str())).collect();
    order.sort_by_cached_key(|&at| {
        let (host, rack) = (nodes[at].host.as_str(), racks[nodes[at].host.as_str()]);
        (lot(rack), rack, lot(host), host, lot(&nodes[at].id.0.to_string()))
    });
    let (mut line, mut end) = (Vec::new(), 0);
    for node in order {
        end += holdings[node];
        line.resize(end / layers, node);
    }
    line
}

/// The members at one column of a line, the primary first. Each K-th point of the line leads; where that would make one
/// point of a column as good as another, the count begins one later each time round.
fn column(line: &[usize], at: usize, copies: usize, members: &mut Vec<usize>) {
    let width = line.len() / copies;
    let step = if common_divisor(width, copies) == 1 { width } else { 1 };
    members.clear();
    members.extend((0..copies).map(|copy| line[at + copy * width]));
    let first = (0..copies).find(|copy| (at + copy * step).is_multiple_of(copies));
    members.rotate_left(first.expect("steps without a common divisor meet each remainder"));
}

fn common_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { common_divisor(b, a % b) }
}

/// The group of each slot: primaries in turn, and of each its columns in turn.
fn deal(nodes: usize, groups: &[Vec<usize>], columns: &[u16]) -> [u16; SLOTS] {
    let mut led: Vec<Vec<u16>> = vec![Vec::new(); nodes];
    columns.iter().rev().for_each(|&number| led[groups[usize::from(number)][0]].push(number));
    let counts: Vec<usize> = led.iter().map(Vec::len).collect();
    let turns = turns(&counts);
    std::array::from_fn(|slot| led[turns[slot]].pop().expect("each has as many turns as columns"))
}

/// Whose turn it is, slot by slot: each as often as its count says, evenly spread, and nobody twice within
/// [`NEIGHBOURS`] turns, unless it is overdue. Smooth weighted round robin: each turn brings everybody credit by its
/// count, and costs who takes it a round's credit. They begin as if in the midst of a round, so that slot 0 follows the
/// last one as any slot follows another.
fn turns(counts: &[usize]) -> Vec<usize> {
    let (round, nodes) = (SLOTS as i64, counts.len() as i64);
    let mut credit: Vec<i64> = (0..nodes).map(|node| round * (nodes - 1 - 2 * node) / (2 * nodes)).collect();
    // Who leads more than every eighth slot comes again sooner.
    let rest = (SLOTS / counts.iter().max().expect("there are nodes")).min(NEIGHBOURS) - 1;
    let mut left = counts.to_vec();
    let mut turns: Vec<usize> = Vec::with_capacity(SLOTS);
    for _ in 0..SLOTS {
        credit.iter_mut().zip(counts).for_each(|(credit, &count)| *credit += count as i64);
        let recent = &turns[turns.len().saturating_sub(rest)..];
        let rested = |node: usize| credit[node] > round || !recent.contains(&node);
        let may = (0..counts.len()).filter(|&node| left[node] > 0);
        let next = may.max_by_key(|&node| (rested(node), credit[node], Reverse(node)));
        let next = next.expect("the counts make up all slots");
        credit[next] -= round;
        left[next] -= 1;
        turns.push(next);
    }
    turns
}
