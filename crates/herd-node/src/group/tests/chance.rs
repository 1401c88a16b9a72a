//! Writes by chance, beside cuts, lost links, other primaries, members that come anew, and full memory at one member:
//! what is told must be true, and members equal at the end.

use super::herd::Herd;
use crate::link::tests::world::node;
use herd_core::ErrorKind;
use herd_core::entry::{Condition, Version};
use herd_core::method::{Method, memcached};
use herd_core::op::{Action, Op, Put};
use herd_core::place::{Member, Standing};
use herd_core::replica::Want;
use herd_store::Body;
use std::collections::BTreeMap;
use std::sync::Arc;

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

/// What is known of an object from what was told.
#[derive(Default)]
struct Known {
    /// The highest version that was acknowledged.
    version: Version,
    /// Of a counter: what it was raised by, and by how much more at most.
    sum: u64,
    unknown: u64,
}

struct Run {
    herd: Herd,
    random: Random,
    /// Operations that were not answered yet: what they add, and their object.
    open: BTreeMap<u64, (Vec<u8>, u64)>,
    known: BTreeMap<Vec<u8>, Known>,
    seen: BTreeMap<&'static str, u64>,
}

const MOST: u64 = 1 << 30;

impl Run {
    fn new(seed: u64) -> Self {
        let herd = Herd::with(3, 3, |number| if number == 3 { 9 << 20 } else { 64 << 20 });
        let (open, known, seen) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Self { herd, random: Random(seed), open, known, seen }
    }

    fn saw(&mut self, what: &'static str) {
        *self.seen.entry(what).or_default() += 1;
    }

    /// Whether the node decides; else nobody is asked, as flights would find another.
    fn ask(&mut self) {
        let counts = self.random.below(4) == 0;
        let name = if counts { format!("c{}", self.random.below(5)) } else { format!("k{}", self.random.below(150)) };
        let name = name.into_bytes();
        let len = match self.random.below(8) {
            0..3 => self.random.below(300_000),
            3..5 => self.random.below(9_000),
            _ => self.random.below(300),
        };
        let (value, by) = (vec![self.random.next() as u8; len as usize], 1 + self.random.below(9));
        let put = |value, condition| Op { condition, ..Op::new(Action::Put(Put::of(value)), MOST) };
        let number = if counts {
            let add = Method::Memcached(memcached::Method::Arith { delta: by, decrement: false });
            self.herd.begin(&name, &Op::new(Action::Execute(add), MOST))
        } else {
            let primary = self.herd.primary(&name);
            match self.random.below(6) {
                0 => self.herd.begin(&name, &Op::new(Action::Remove, MOST)),
                1 => self.herd.begin(&name, &Op::new(Action::Read, MOST)),
                2 => {
                    let there = self.herd.at(primary, &name).map_or(1, |(version, _)| version);
                    let Some(value) = self.herd.try_given(&name, &value) else { return self.saw("full here") };
                    self.herd.begin(&name, &put(value, Condition::IfVersion(there)))
                }
                _ => {
                    let Some(value) = self.herd.try_given(&name, &value) else { return self.saw("full here") };
                    self.herd.begin(&name, &put(value, Condition::None))
                }
            }
        };
        self.open.insert(number, (name, if counts { by } else { 0 }));
    }

    fn hear(&mut self) {
        self.herd.hear();
        let numbers: Vec<u64> = self.open.keys().copied().collect();
        for number in numbers {
            let Some(told) = self.herd.told(number) else { continue };
            let (name, by) = self.open.remove(&number).expect("it was open");
            let known = self.known.entry(name).or_default();
            let what = match told {
                Ok(done) => {
                    known.version = known.version.max(done.version);
                    known.sum += by;
                    "done"
                }
                Err(error) => match error.kind {
                    ErrorKind::OutcomeUnknown => {
                        known.unknown += by;
                        "unknown"
                    }
                    ErrorKind::Full => "full",
                    ErrorKind::Unreachable => "unreachable",
                    ErrorKind::Busy => "busy",
                    ErrorKind::NotFound | ErrorKind::ConditionFailed => "no",
                    kind => panic!("{kind:?}: {}", error.text),
                },
            };
            self.saw(what);
        }
    }

    /// One small step of the world.
    fn step(&mut self) {
        match self.random.below(8) {
            0 => {
                self.herd.world.carry();
            }
            1 => {
                self.herd.world.answer();
            }
            2 => {
                let ms = self.random.below(4);
                self.herd.world.clock.pass(ms * 1_000_000);
            }
            _ => {
                let at = self.random.below(3) as usize;
                self.herd.world.work(at);
            }
        }
        self.hear();
    }

    fn trouble(&mut self) {
        match self.random.below(5) {
            0 => {
                self.herd.world.cut = !self.herd.world.cut;
                self.saw("cut");
            }
            1 => {
                let cables = self.herd.world.cables.len() as u64;
                if cables > 0 {
                    let cable = self.random.below(cables) as usize;
                    self.herd.break_link(cable);
                    self.saw("link lost");
                }
            }
            2 => self.turn(),
            3 => self.leave(),
            _ => self.warden(),
        }
    }

    /// Another member of some group decides.
    fn turn(&mut self) {
        let groups = self.herd.map.spreads[0].groups.len() as u64;
        let at = self.random.below(groups) as usize;
        self.herd.change_map(|draft| {
            let epoch = draft.epoch + 1;
            let group = &mut draft.spreads[0].groups[at];
            let Some(next) = group.others.iter().position(|member| member.standing == Standing::Backup) else { return };
            let next = group.others.remove(next).node;
            let before = group.primary.replace(next).expect("it had one");
            group.others.push(Member { node: before, standing: Standing::Backup, since: epoch });
        });
        self.saw("another primary");
        self.tell_some();
    }

    /// A member of some group begins anew.
    fn leave(&mut self) {
        let groups = self.herd.map.spreads[0].groups.len() as u64;
        let at = self.random.below(groups) as usize;
        if self.herd.map.spreads[0].groups[at].others.iter().any(|member| member.standing != Standing::Backup) {
            return;
        }
        let gone = self.herd.map.spreads[0].groups[at].others[0].node;
        self.herd.change_map(|draft| {
            let group = &mut draft.spreads[0].groups[at];
            group.others.retain(|member| member.node != gone);
            group.eligible.retain(|node| *node != gone);
        });
        self.herd.change_map(|draft| {
            let since = draft.epoch + 1;
            draft.spreads[0].groups[at].others.push(Member { node: gone, standing: Standing::Syncing, since });
        });
        self.saw("syncs");
        self.tell_some();
    }

    /// The map comes to some nodes first; to the others when they are told next.
    fn tell_some(&mut self) {
        let first = 1 + self.random.below(3) as u32;
        self.herd.tell_map_to(first);
    }

    /// What primaries want is done.
    fn warden(&mut self) {
        for (id, want) in self.herd.wants() {
            let (peer, standing) = match want {
                Want::Joining(peer) => (peer, Some(Standing::Joining)),
                Want::Removed(peer) => (peer, None),
            };
            let at = usize::from(id.number);
            let members = &self.herd.map.spreads[0].groups[at].others;
            if members.iter().any(|member| member.node == peer && member.standing == Standing::Syncing) {
                self.herd.change_map(|draft| {
                    let others = &mut draft.spreads[0].groups[at].others;
                    match standing {
                        Some(standing) => {
                            let member = others.iter_mut().find(|member| member.node == peer);
                            member.into_iter().for_each(|member| member.standing = standing);
                        }
                        None => others.retain(|member| member.node != peer),
                    }
                });
                self.saw(if standing.is_some() { "joined" } else { "copy refused" });
            }
        }
        self.herd.tell_map();
        self.herd.change_map(|draft| {
            for group in &mut draft.spreads[0].groups {
                for member in group.others.iter_mut().filter(|member| member.standing == Standing::Joining) {
                    member.standing = Standing::Backup;
                    group.eligible.push(member.node);
                }
            }
        });
        self.herd.tell_map();
        self.hear();
    }

    fn finish(&mut self) {
        self.herd.world.cut = false;
        for _ in 0..8 {
            self.herd.tell_map();
            self.herd.pass(2_500);
            self.warden();
        }
        self.hear();
        assert!(self.open.is_empty(), "{} operations were not answered", self.open.len());
        self.herd.check_equal();
        for (name, known) in &self.known {
            let primary = self.herd.primary(name);
            let there = self.herd.at(primary, name);
            if name[0] == b'c' {
                let text = there.map_or(Vec::new(), |(_, value)| value);
                let value: u64 = String::from_utf8_lossy(&text).trim().parse().unwrap_or(0);
                assert!((known.sum..=known.sum + known.unknown).contains(&value), "{value} of {}", known.sum);
            } else if let Some((version, _)) = there {
                assert!(version >= known.version, "it fell");
            }
        }
    }
}

/// `HERD_GROUP_SEEDS=1000` runs more.
#[test]
fn what_is_told_is_true_and_members_are_equal_whatever_happens() {
    let seeds = std::env::var("HERD_GROUP_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(4);
    let mut seen: BTreeMap<&'static str, u64> = BTreeMap::new();
    for seed in 1..=seeds {
        println!("seed {seed}");
        let mut run = Run::new(seed);
        for name in 0..5 {
            let name = format!("c{name}").into_bytes();
            let zero = Op::new(Action::<Arc<Body>>::Put(Put::of(herd_core::op::Given::Small(b"0", None))), MOST);
            assert!(run.herd.ask(&name, &zero).is_ok());
        }
        for _ in 0..6_000 {
            match run.random.below(120) {
                0 => run.trouble(),
                1..20 => run.ask(),
                _ => run.step(),
            }
        }
        run.finish();
        run.seen.iter().for_each(|(what, times)| *seen.entry(what).or_default() += times);
        assert_eq!(run.herd.map.node(node(1)).map(|node| node.incarnation), Some(1));
    }
    println!("{seen:?}");
    for what in ["done", "full", "joined", "another primary", "link lost", "cut"] {
        assert!(seen.get(what).is_some_and(|times| *times > 0), "{what}: never happened");
    }
}
