//! What a run is like, as its seed says: the nodes, the load, and the faults with the moments at which they happen.

use super::check::{Ask, Guarded, When};
use crate::random::Random;
use herd_core::limits::{CACHE_LEASE_MS, LEASE_MS};

/// Operations of a run that is not cut short.
pub(super) const OPS: usize = 520;
/// Numbers of the faults of each run.
pub(super) const FAULT_NUMBERS: std::ops::Range<usize> = 0..49;
/// And of them, those that make others lead, besides what else there is.
const DEPOSED_MORE: std::ops::Range<usize> = 16..19;
/// Those in which the old link's bytes come beside the new one, and in which a member refuses.
const LATE: std::ops::Range<usize> = 19..22;
const REFUSED: std::ops::Range<usize> = 22..24;
/// Those in which a node that lives is taken out of its groups.
const EXPELLED: std::ops::Range<usize> = 24..27;
/// And those in which it soon leads again.
const RETURNS: std::ops::Range<usize> = 27..30;
/// Those of the herd's own warden, and of them the one by which a node more comes for certain.
const REIGN: std::ops::Range<usize> = 22..30;
const JOINS: usize = 22;
/// That there are readers behind writers ([`Plan::readers`]).
const READERS: usize = 30;
/// Those that keep from a node that others decide, and the one by which clocks are as far apart as leases allow.
const UNAWARE: std::ops::Range<usize> = 31..35;
const APART: usize = 34;
/// Those in which a node is to give all away, under the herd's own warden, and soon stays.
const DRAINS: std::ops::Range<usize> = 35..41;
/// That there are objects that soon expire ([`Family::Brief`]).
const BRIEF: usize = 41;
/// Those in which a node is told to end, and asks the herd's own warden for leave.
const LEAVES: std::ops::Range<usize> = 42..46;
/// Those in which a node is to give away what it keeps alone, where the test is the warden, and soon stays.
const DRAINS_ALONE: std::ops::Range<usize> = 46..48;
/// That groups are changed in any case.
const CHANGES: usize = 48;
/// Values above this are asked for and given in frames.
const LARGE_BYTES: u64 = 200_000;

/// Place among families of [`Family::Soft`].
const SOFT: usize = 7;
/// Of so many steps, in hundredths, clients ask for such.
const SOFT_ASKS: u64 = 4;

/// Operations after which groups are changed, if they were not before.
const CHANGES_AFTER: usize = OPS / 2;

/// Something that goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// All links between two nodes break, and are made again.
    Break(usize, usize),
    /// They break at the end that made them, once something is on its way from there, which comes so much later, ms.
    Late(usize, usize, u64),
    /// They break, and can't be made again for so long, ms.
    Cut(usize, usize, u64),
    /// Nothing is carried between two nodes, and nobody is told.
    Silence(usize, usize, u64),
    /// Little is carried between two nodes.
    Slow(usize, usize, u64),
    /// A node does nothing.
    Pause(usize, u64),
    /// A node does nothing between its look at the clock and what it does then.
    PauseInside(usize, u64),
    /// The same for a node that does not grant leases, and for longer than a lease.
    Stand(usize, u64),
    /// A node that does not grant leases and the one that does hear nothing of each other for so long, ms: neither
    /// beats nor maps. All others, and clients, hear both.
    Unheard(usize, u64),
    /// A node's process dies, with its memory, and is started anew after so long, ms.
    Crash(usize, u64),
    /// The map gets a new epoch, which each node hears of at another time.
    Epoch(usize),
    /// Others lead what a node led, which lives, and hears of it before them.
    Depose(usize),
    /// A node that lives is taken out of its groups, and is brought back to them later.
    Expel(usize),
    /// When a member has told that it holds a write and another one has not heard of it yet, that other one leads what
    /// the write's primary led, which hears nothing, and a little later that leads again.
    Return(usize),
    /// Where one copy is kept, a node gives away what it keeps; after so long it stays, ms.
    Drain(usize, u64),
    /// Groups are changed if they were not so far.
    Change,
    /// Of the herd's own warden.
    Reign(Reigning),
    /// A node has no memory left. When it refuses a write, others lead what the write's primary led, which can't tell
    /// its other members of the refusal for so long, ms.
    Refuse(usize, u64),
}

/// What goes wrong with the herd's own warden, or what it has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reigning {
    /// The process of who is in office dies, and is started anew after so long, ms.
    Die(u64),
    /// Who is in office does nothing for so long, ms.
    Pause(u64),
    /// The store has a trouble for so long, ms.
    Ail(Trouble, u64),
    /// A node and the machine of who is in office do not hear each other for so long, ms.
    Apart(usize, u64),
    /// A node and who is not in office do not hear each other; a while later the store goes on somewhere else, and
    /// that one is in office.
    Move(usize, u64),
    /// A node is to give away all that it keeps; after so long it stays, ms.
    Drain(usize, u64),
    /// A node is to end, and asks for leave; it is started anew after so long, ms.
    Leave(usize, u64),
    /// A node more.
    Join,
    /// A collection comes, is emptied, or goes.
    Collection(u64),
}

/// What ails a control store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Trouble {
    /// It takes long.
    Slow,
    /// It does not answer, and does nothing.
    Gone,
    /// Some answers are lost, of what is done or not, or done later.
    Lossy,
}

/// What is asked of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    /// Values that are put, compared, taken and removed.
    Value,
    /// Values that grow.
    Text,
    /// Numbers.
    Count,
    Lock,
    /// Values that are put by holders of a lock, and by those who were.
    Guarded,
    /// Values that often expire soon, or within some 30 s. When, each node tells by its own clock: that one is not
    /// there says nothing.
    Brief,
    /// Values of class `cache`, of which one may be gone at any time.
    Soft,
}

/// See the module.
pub(super) struct Plan {
    pub(super) random: Random,
    pub(super) nodes: usize,
    /// The herd's own warden reigns, over a store beside it, or one apart from all nodes.
    pub(super) reigns: bool,
    pub(super) is_embedded: bool,
    /// What there is is of class `cache`: one copy, under the herd's own warden.
    pub(super) evicts: bool,
    /// Nodes that come later.
    pub(super) newcomers: usize,
    /// Copies of each object.
    pub(super) copies: u8,
    /// There is a reader at each node that takes itself for the primary and is none any more: it looks at what others
    /// have just changed.
    pub(super) readers: bool,
    /// There are objects that soon expire.
    brief: bool,
    /// A node with little memory.
    pub(super) small: Option<usize>,
    pub(super) clients: usize,
    pub(super) ops: usize,
    /// With the number of operations after which each happens.
    pub(super) faults: Vec<(usize, Fault)>,
    /// How much slower than the fastest each node's clock goes, in thousandths.
    pub(super) lags: Vec<u64>,
    /// Objects there are of each family.
    pub(super) keys: usize,
    /// Largest value.
    pub(super) value_bytes: u64,
    /// Virtual time that passes at each look at the clock, ns.
    pub(super) look_ns: u64,
    values: u64,
}

/// What is left of a run, to find out what of it matters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cut {
    /// Nodes; else as the seed says.
    pub nodes: Option<usize>,
    /// Copies of each object, at most as many as nodes; else as the seed says.
    pub copies: Option<u8>,
    /// The herd's own warden reigns, and not the test; else as the seed says.
    pub reigns: Option<bool>,
    /// Operations; else as many as a run has.
    pub ops: Option<usize>,
    /// Numbers of the faults that do not happen.
    pub without: Vec<usize>,
}

impl Plan {
    pub(super) fn new(seed: u64, cut: &Cut) -> Self {
        let mut random = Random::new(seed ^ 0x4E_0DE5);
        let drawn = if random.chance(70) { 3 } else { 4 + random.below(2) as usize };
        let nodes = cut.nodes.unwrap_or(drawn);
        let drawn = [1, 2, 3, 3][random.below(4) as usize];
        let copies = cut.copies.unwrap_or(drawn).min(nodes as u8);
        let small = random.chance(25).then(|| random.below(nodes as u64) as usize);
        let clients = 3 + random.below(5) as usize;
        let even = random.chance(50);
        // Often as slow as leases allow.
        let lags: Vec<u64> = (0..nodes).map(|_| if even { 0 } else { (2 * random.below(500)).min(500) }).collect();
        let count = 3 + random.below(6) as usize;
        let mut faults: Vec<(usize, Fault)> = (0..count)
            .map(|_| (20 + random.below(OPS as u64 - 60) as usize, Self::fault(&mut random, nodes)))
            .collect();
        faults.sort_by_key(|(at, _)| *at);
        let mut number = 0;
        faults.retain(|_| {
            number += 1;
            !cut.without.contains(&(number - 1))
        });
        let mut reign = Random::new(seed ^ 0x3E1_6405);
        let drawn = reign.chance(50);
        // Where one copy is kept the test is the warden mostly; else the herd is of class `cache`.
        let drawn = drawn && (copies > 1 || Random::new(seed ^ 0xCA_C4E5).chance(50));
        let reigns = cut.reigns.unwrap_or(drawn);
        let evicts = reigns && copies == 1;
        match copies {
            1 if !reigns => Self::add_drains(&mut faults, seed, nodes, &cut.without),
            _ if !reigns => Self::add_more(&mut faults, seed, nodes, &cut.without),
            _ => {}
        }
        faults.extend((!cut.without.contains(&CHANGES)).then_some((CHANGES_AFTER, Fault::Change)));
        let keys = 2 + random.below(4) as usize;
        let value_bytes = [60, 2_000, 20_000, LARGE_BYTES, 600_000][random.below(5) as usize];
        let look_ns = random.below(20_000);
        let ops = cut.ops.unwrap_or(OPS);
        let is_embedded = reign.chance(50);
        let newcomers = if reigns { 1 + reign.below(2) as usize } else { 0 };
        let mut lags: Vec<u64> = lags.into_iter().chain((0..newcomers).map(|_| reign.below(500))).collect();
        if copies > 1 || evicts {
            let lease_ms = if evicts { CACHE_LEASE_MS } else { LEASE_MS };
            Self::add_unaware(&mut faults, &mut lags, (seed, lease_ms), nodes, &cut.without);
        }
        if reigns {
            Self::add_reign(&mut faults, seed, nodes, &cut.without);
        }
        let random = Random::new(seed);
        Self {
            random,
            nodes,
            reigns,
            is_embedded,
            newcomers,
            evicts,
            readers: (copies > 1 || evicts) && !cut.without.contains(&READERS),
            brief: copies > 1 && !cut.without.contains(&BRIEF),
            copies,
            small,
            clients,
            ops,
            faults,
            lags,
            keys,
            value_bytes,
            look_ns,
            values: 0,
        }
    }

    /// What moves where one copy is kept.
    fn add_drains(faults: &mut Vec<(usize, Fault)>, seed: u64, nodes: usize, without: &[usize]) {
        Self::more(faults, Random::new(seed ^ 0xA1_0E04), DRAINS_ALONE, without, |random, _| {
            Fault::Drain(random.below(nodes as u64) as usize, 2_000 + random.below(8_000))
        });
    }

    fn add_more(faults: &mut Vec<(usize, Fault)>, seed: u64, nodes: usize, without: &[usize]) {
        let one = |random: &mut Random| random.below(nodes as u64) as usize;
        // As retries come of that alone.
        Self::more(faults, Random::new(seed ^ 0xDE_9053), DEPOSED_MORE, without, |random, _| {
            Fault::Depose(one(random))
        });
        Self::more(faults, Random::new(seed ^ 0x1A_7E11), LATE.chain(REFUSED), without, |random, number| {
            let ms = 1 + random.size(4_000);
            let (one, more) = (one(random), random.below(nodes as u64 - 1) as usize);
            let other = (one + 1 + more) % nodes;
            if LATE.contains(&number) { Fault::Late(one, other, ms) } else { Fault::Refuse(one, ms) }
        });
        Self::more(faults, Random::new(seed ^ 0xE8_9E11), EXPELLED.chain(RETURNS), without, |random, number| {
            if EXPELLED.contains(&number) { Fault::Expel(one(random)) } else { Fault::Return(one(random)) }
        });
    }

    /// Nodes that do not hear that others decide. Often the wardens' clocks are the fastest, and those of all others as
    /// slow as leases allow.
    fn add_unaware(
        faults: &mut Vec<(usize, Fault)>,
        lags: &mut [u64],
        (seed, lease_ms): (u64, u64),
        nodes: usize,
        without: &[usize],
    ) {
        let mut random = Random::new(seed ^ 0x51_A1E5);
        if random.chance(50) && !without.contains(&APART) {
            lags.iter_mut().enumerate().for_each(|(at, lag)| *lag = if at < 2 { 0 } else { 500 });
        }
        Self::more(faults, random, UNAWARE, without, |random, _| {
            let (one, ms) = (random.below(nodes as u64) as usize, lease_ms + 200 + random.below(2 * lease_ms));
            match random.below(2) {
                0 => Fault::Stand(one, ms),
                _ => Fault::Unheard(one, ms),
            }
        });
    }

    /// What goes wrong where the herd's own warden reigns: instead of what the test would do.
    fn add_reign(faults: &mut Vec<(usize, Fault)>, seed: u64, nodes: usize, without: &[usize]) {
        for (at, fault) in faults.iter_mut() {
            let ms = 500 + 37 * *at as u64;
            match *fault {
                Fault::Epoch(_) => *fault = Fault::Reign(Reigning::Collection(ms)),
                Fault::Depose(one) => *fault = Fault::Reign(Reigning::Apart(one, ms)),
                _ => {}
            }
        }
        Self::more(faults, Random::new(seed ^ 0x1A_7E11), LATE, without, |random, _| {
            let (one, more) = (random.below(nodes as u64) as usize, random.below(nodes as u64 - 1) as usize);
            Fault::Late(one, (one + 1 + more) % nodes, 1 + random.size(4_000))
        });
        Self::more(faults, Random::new(seed ^ 0xD4_A145), DRAINS, without, |random, _| {
            Fault::Reign(Reigning::Drain(random.below(nodes as u64) as usize, 200 + random.below(1_500)))
        });
        Self::more(faults, Random::new(seed ^ 0x1E_A7E5), LEAVES, without, |random, _| {
            Fault::Reign(Reigning::Leave(random.below(nodes as u64) as usize, random.size(4_000)))
        });
        Self::more(faults, Random::new(seed ^ 0x4E_161E), REIGN, without, |random, number| {
            let one = random.below(nodes as u64) as usize;
            let ms = LEASE_MS + random.below(5_000);
            Fault::Reign(match (number, random.below(8)) {
                (JOINS, _) => Reigning::Join,
                (_, 0) => Reigning::Die(random.size(6_000)),
                (_, 1) => Reigning::Pause(3 * ms),
                (_, 2) => Reigning::Ail(Trouble::Slow, 2 * ms),
                (_, 3) => Reigning::Ail(Trouble::Gone, ms),
                (_, 4) => Reigning::Ail(Trouble::Lossy, 2 * ms),
                (_, 5) => Reigning::Apart(one, ms),
                _ => Reigning::Move(one, ms),
            })
        });
    }

    /// Some more of certain numbers, which only members of a group see.
    fn more(
        faults: &mut Vec<(usize, Fault)>,
        mut random: Random,
        numbers: impl Iterator<Item = usize>,
        without: &[usize],
        fault: impl Fn(&mut Random, usize) -> Fault,
    ) {
        for number in numbers {
            let at = 20 + random.below(OPS as u64 - 60) as usize;
            let fault = fault(&mut random, number);
            faults.extend(Some((at, fault)).filter(|_| !without.contains(&number)));
        }
        faults.sort_by_key(|(at, _)| *at);
    }

    fn fault(random: &mut Random, nodes: usize) -> Fault {
        let one = random.below(nodes as u64) as usize;
        let other = (one + 1 + random.below(nodes as u64 - 1) as usize) % nodes;
        let ms = 1 + random.size(16_000);
        // Mostly longer than a lease.
        let longer = ms + (ms % 4).min(1) * LEASE_MS;
        match random.below(16) {
            0..3 => Fault::Break(one, other),
            3..5 => Fault::Cut(one, other, ms),
            5..7 => Fault::Silence(one, other, longer),
            7..9 => Fault::Slow(one, other, ms),
            9..11 => Fault::Pause(one, longer),
            11 => Fault::PauseInside(one, ms),
            12..14 => Fault::Crash(one, ms),
            14 => Fault::Depose(one),
            _ => Fault::Epoch(one),
        }
    }

    /// An object, its name and what is asked of such.
    pub(super) fn key(&mut self) -> (usize, Family) {
        if self.evicts {
            return (self.soft_key(), Family::Soft);
        }
        const FAMILIES: [Family; 7] =
            [Family::Value, Family::Value, Family::Text, Family::Count, Family::Lock, Family::Guarded, Family::Brief];
        let families = FAMILIES.len() - usize::from(!self.brief);
        let family = self.random.below(families as u64) as usize;
        let keys = if family < 3 { self.keys } else { self.keys.min(2) };
        (family * 16 + self.random.below(keys as u64) as usize, FAMILIES[family])
    }

    /// An object whose values are put.
    pub(super) fn value_key(&mut self) -> usize {
        if self.evicts {
            return self.soft_key();
        }
        let family = self.random.below(2) as usize;
        family * 16 + self.random.below(self.keys as u64) as usize
    }

    /// They are more than of other families, as each group is to have some.
    fn soft_key(&mut self) -> usize {
        SOFT * 16 + self.random.below(16) as usize
    }

    /// The objects of class `cache`.
    pub(super) fn soft_keys(&self) -> std::ops::Range<usize> {
        if self.evicts { SOFT * 16..(SOFT + 1) * 16 } else { 0..0 }
    }

    /// A put of a small value, whatever is there.
    pub(super) fn small_put(&mut self) -> Ask {
        Ask::Put { value: self.value(60), when: When::Always }
    }

    /// Whether a client that has nothing open asks for something now: for what is of class `cache` seldom, as leases of
    /// that last long.
    pub(super) fn asks_now(&mut self) -> bool {
        !self.evicts || self.random.chance(SOFT_ASKS)
    }

    /// Whether it says nothing of an object that it is not there.
    pub(super) fn may_go(key: usize) -> bool {
        Self::is_brief(key) || key / 16 == SOFT
    }

    /// Whether an object is of those that soon expire.
    pub(super) fn is_brief(key: usize) -> bool {
        key / 16 == 6
    }

    /// Whether tokens are shown with an object.
    pub(super) fn is_guarded(key: usize) -> bool {
        key / 16 == 5
    }

    /// The lock whose tokens are shown with objects that are guarded.
    pub(super) const GUARD: usize = 64;

    /// A value that no other is like.
    fn value(&mut self, most: u64) -> Vec<u8> {
        self.values += 1;
        let mut value = format!("v{};", self.values).into_bytes();
        let len = value.len() + self.random.size(most) as usize;
        value.resize(len, b'a' + (self.values % 26) as u8);
        value
    }

    /// What is asked by one who shows a token.
    fn guarded(&mut self) -> Guarded {
        match self.random.below(10) {
            0..2 => Guarded::Get,
            2..4 => Guarded::Remove,
            _ => Guarded::Put(self.value(60)),
        }
    }

    /// What is asked of an object whose last version and value seen are these, by one who may hold its lock, or held
    /// one under this grant.
    pub(super) fn ask(&mut self, family: Family, seen: Option<&(u64, Vec<u8>)>, grant: Option<u64>) -> Ask {
        let put = |value, when| Ask::Put { value, when };
        let most = if family == Family::Text { 60 } else { self.value_bytes };
        match (family, self.random.below(100)) {
            (Family::Lock, _) if grant.is_some_and(|_| self.random.chance(70)) => {
                Ask::Unlock { grant: grant.expect("just looked at") }
            }
            (Family::Lock, 0..80) => Ask::Lock,
            (_, 0..35) => Ask::Get,
            (Family::Brief, _) => put(self.value(60), When::Always),
            (Family::Soft, _) => put(self.value(most), When::Always),
            (Family::Guarded, _) => match grant {
                Some(grant) => Ask::Guarded { what: self.guarded(), grant },
                None => Ask::Get,
            },
            (Family::Lock, _) | (_, 35..42) => Ask::Remove,
            (Family::Count, 42..50) => put(self.random.below(100).to_string().into_bytes(), When::Always),
            (Family::Count, draw) => Ask::Count { delta: 1 + draw as i64 % 3, create: self.random.chance(50) },
            (Family::Text, 42..85) => {
                let create = self.random.chance(50);
                self.values += 1;
                Ask::Append { value: format!("+{}", self.values).into_bytes(), create }
            }
            (_, 42..50) => Ask::Take,
            (_, 50..58) => put(self.value(most), When::Absent),
            (_, 58..62) => put(self.value(most), When::Present),
            (_, 62..78) => match seen {
                Some((version, _)) if self.random.chance(60) => put(self.value(most), When::Version(*version)),
                Some((_, value)) if value.len() < 10_000 => {
                    put(self.value(most.min(10_000)), When::Value(value.clone()))
                }
                _ => Ask::Get,
            },
            _ => put(self.value(most), When::Always),
        }
    }
}
