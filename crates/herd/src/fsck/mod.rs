//! Whether all copies are the same. Each node is asked for the sums of its slots, by the addresses of the map; where
//! those of a slot's copies differ, for its objects, several times: what a write is changing differs for a moment.

mod ask;
mod suspects;
mod tell;

use crate::args::ShowArgs;
use crate::exit::{Failure, Outcome, REFUSED};
use crate::objects::client;
use crate::out;
use crate::view::{client_of_node, is_drained, losses};
use ask::{Groups, Sum, Sums};
use herd_client::blocking::Client;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::Value;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use suspects::{Items, Suspects};

/// How long a node is waited for.
const PATIENCE: Duration = Duration::from_secs(5);
/// Before what differs is asked for again: writes that were under way have ended.
const PAUSE: Duration = Duration::from_millis(200);
/// How often the objects of a slot are asked for, and the sums where the map has changed meanwhile.
const ROUNDS: usize = 4;
/// Slots whose objects are compared side by side. Where so many differ it is enough to know that there are more.
const SLOTS_AT_ONCE: usize = 64;

/// By how much the ends of two copies may differ, ms: each node reckons from when it heard how long is left, which a
/// pause or a cut holds up for as long as a write waits.
const ENDS_SLACK_MS: u64 = 15_000;
/// And that of each of many objects, on average.
const ENDS_EACH_MS: u64 = 1_000;

/// A slot: its spread group and its number.
type Slot = (u64, u64);

/// Why a node is not asked that is in no group.
const DOWN: &str = "it is down";

/// A node that is asked.
struct Node {
    id: u64,
    name: String,
    /// The map calls it down.
    is_down: bool,
    /// It has drained, and nothing is missed without it.
    is_drained: bool,
    /// An error: why it can't be asked.
    client: Result<Client, String>,
}

/// A replica group.
struct Group {
    members: Vec<u64>,
    /// Those of them that are being brought up to date.
    syncing: Vec<u64>,
}

/// The herd as one node knows it.
struct Herd {
    epoch: u64,
    nodes: Vec<Node>,
    /// How many groups there are.
    groups_all: u64,
    /// How many of them have so many members, as far as they are listed.
    sizes: BTreeMap<usize, u64>,
    /// Those whose slots have objects.
    groups: Groups,
    /// What groups lost, a line for each time.
    losses: Vec<String>,
    /// Groups that take no writes.
    stopped: u64,
}

/// A slot whose copies are not the same.
struct Different {
    slot: Slot,
    group: u64,
    /// The nodes that have something of it, or should, and whether they should; by their place in [`Herd::nodes`].
    nodes: Vec<(usize, bool)>,
    /// What each of them has.
    sums: Vec<Sum>,
    suspects: Suspects,
}

/// What came of it.
#[derive(Default)]
struct Found {
    slots: Vec<Different>,
    /// Slots that differ and were not looked at.
    more: usize,
    /// Objects of which nothing can be said, as they are written all the time.
    busy: usize,
}

pub(crate) fn run(args: &ShowArgs) -> Outcome {
    let asked = client(&args.herd)?;
    let patience = args.herd.timeout.min(PATIENCE);
    for _ in 0..ROUNDS {
        let mut herd = Herd::of(&asked.status()?, &asked, patience);
        let bar = herd.bar();
        let sums = herd.sums(&bar);
        bar.finish_and_clear();
        if let Some(sums) = sums {
            let found = herd.differences(&sums);
            return tell::tell(&herd, &sums, &found, args.json);
        }
        std::thread::sleep(PAUSE);
    }
    Err(Failure::new(REFUSED, "fsck: the nodes do not go by the same map, or it changes all the time: try again"))
}

/// How many groups have so many members. A node without a map has one, and is its member.
fn sizes(status: &Value, groups_all: u64) -> BTreeMap<usize, u64> {
    let Some(groups) = status["group_list"].as_array() else { return BTreeMap::from([(1, groups_all)]) };
    let mut sizes = BTreeMap::new();
    for group in groups {
        *sizes.entry(group["members"].as_array().map_or(0, Vec::len)).or_default() += 1;
    }
    sizes
}

impl Herd {
    fn of(status: &Value, asked: &Client, patience: Duration) -> Self {
        let list = |field: &str| status[field].as_array().cloned().unwrap_or_default();
        let all = list("nodes");
        let node = |node: &Value| {
            let name = out::shown(node["name"].as_str().unwrap_or("?").as_bytes()).into_owned();
            let is_down = node["state"] == "down";
            let client = match node["addr"].as_str() {
                _ if all.len() == 1 => Ok(asked.clone()),
                // One that is in groups may keep what fewer others have than a write needs.
                _ if is_down && node["groups"].as_u64().unwrap_or(0) == 0 => Err(DOWN.to_owned()),
                Some(_) => client_of_node(status, node, patience).map_err(|error| error.to_string()),
                None => Err("the map has no address of it".to_owned()),
            };
            Node { id: node["id"].as_u64().unwrap_or(0), name, is_down, is_drained: is_drained(node), client }
        };
        let nodes = all.iter().map(node).collect();
        let losses = losses(status).collect();
        let number = |field: &str| status[field].as_u64().unwrap_or(0);
        let groups_all = number("groups").max(1);
        Self {
            epoch: number("epoch"),
            nodes,
            groups_all,
            sizes: sizes(status, groups_all),
            groups: Groups::new(),
            losses,
            stopped: number("groups_stopped"),
        }
    }

    fn bar(&self) -> ProgressBar {
        let style = ProgressStyle::with_template("{bar:30} {percent} % of what {msg} holds, {elapsed}");
        let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr_with_hz(5));
        bar.set_message(if self.nodes.len() == 1 { "the node" } else { "the herd" });
        bar.with_style(style.expect("the template is valid"))
    }

    /// What each node tells of its slots; who can't be asked is noted. `None`: not all go by this map.
    fn sums(&mut self, bar: &ProgressBar) -> Option<Vec<Sums>> {
        let (epoch, since) = (self.epoch, Instant::now());
        let told: Vec<Result<Option<(Sums, Groups)>, String>> = std::thread::scope(|scope| {
            let ask = |node| scope.spawn(move || ask::sums(node, epoch, since, bar));
            let asking: Vec<_> = self.nodes.iter().map(ask).collect();
            asking.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err("it failed".into()))).collect()
        });
        let mut all = Vec::new();
        for (mut node, told) in std::mem::take(&mut self.nodes).into_iter().zip(told) {
            match told {
                Ok(told) => {
                    let (sums, groups) = told?;
                    self.groups.extend(groups);
                    all.push(sums);
                }
                // It may have been ended.
                Err(_) if node.is_drained => continue,
                Err(why) => {
                    node.client = Err(why);
                    all.push(Sums::new());
                }
            }
            self.nodes.push(node);
        }
        Some(all)
    }

    /// The slots whose sums are not what they should be.
    fn suspected(&self, sums: &[Sums]) -> Vec<Different> {
        let slots: BTreeMap<Slot, u64> =
            sums.iter().flat_map(|sums| sums.iter().map(|(slot, (group, _))| (*slot, *group))).collect();
        let different = |(slot, group): (Slot, u64)| {
            let members = self.groups.get(&(slot.0, group));
            let mut nodes = Vec::new();
            for (at, node) in self.nodes.iter().enumerate().filter(|(_, node)| node.client.is_ok()) {
                let of_group =
                    |ids: fn(&Group) -> &Vec<u64>| members.is_some_and(|group| ids(group).contains(&node.id));
                // A node without a map has all.
                let is_member = members.is_none() || of_group(|group| &group.members);
                let has = sums[at].contains_key(&slot);
                if (is_member || has) && !of_group(|group| &group.syncing) {
                    nodes.push((at, is_member));
                }
            }
            let of = |at: usize| sums[at].get(&slot).map_or(Sum::default(), |(_, sum)| *sum);
            let held: Vec<Sum> = nodes.iter().map(|(at, _)| of(*at)).collect();
            let mut copies = nodes.iter().zip(&held).filter(|((_, is_member), _)| *is_member).map(|(_, sum)| sum);
            let first = copies.next();
            let alike = first.is_none_or(|first| copies.all(|sum| sum.is_like(first)));
            let is_right = alike && nodes.iter().zip(&held).all(|((_, is_member), sum)| *is_member || sum.objects == 0);
            let suspects = Suspects::default();
            (!is_right).then_some(Different { slot, group, nodes, sums: held, suspects })
        };
        slots.into_iter().filter_map(different).collect()
    }

    /// The slots that differ, and stay so.
    fn differences(&mut self, sums: &[Sums]) -> Found {
        let mut found = Found::default();
        let mut suspected = self.suspected(sums);
        while !suspected.is_empty() {
            if found.slots.len() >= SLOTS_AT_ONCE {
                found.more = suspected.len();
                break;
            }
            let mut some: Vec<Different> = suspected.drain(..suspected.len().min(SLOTS_AT_ONCE)).collect();
            for round in 0..ROUNDS {
                if round > 0 && !some.is_empty() {
                    std::thread::sleep(PAUSE);
                }
                some.retain_mut(|different| self.look(different));
            }
            for different in &mut some {
                found.busy += different.suspects.settle();
            }
            found.slots.extend(some.into_iter().filter(|different| !different.suspects.is_empty()));
        }
        found
    }

    /// Asks for the objects of a slot once more. False: they do not differ.
    fn look(&mut self, different: &mut Different) -> bool {
        let asking: Vec<&Node> = different.nodes.iter().map(|(at, _)| &self.nodes[*at]).collect();
        let told: Vec<Result<Items, String>> = std::thread::scope(|scope| {
            let (slot, since) = (different.slot, Instant::now());
            let asked: Vec<_> = asking.iter().map(|node| scope.spawn(move || ask::items(node, slot, since))).collect();
            asked.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err("it failed".into()))).collect()
        });
        let mut items = Vec::new();
        for (&(at, is_member), told) in different.nodes.iter().zip(told) {
            match told {
                Ok(told) => items.push((is_member, told)),
                Err(why) => {
                    // Nothing more is known of this slot than that.
                    self.nodes[at].client = Err(why);
                    return false;
                }
            }
        }
        different.suspects.round(&items);
        !different.suspects.is_empty()
    }
}
