//! Collections: made, removed, emptied. Each change is one of the map's revision; a new way to keep copies makes a
//! spread group, which is one of its epoch.

use super::ask::{Create, Refusal, listed};
use super::reach::Heard;
use super::state::{Rules, State};
use crate::collection::{Class, Spec};
use crate::error::{Error, ErrorKind, quote};
use crate::key::{CollectionId, collection_name_is_valid};
use crate::limits::{COLLECTIONS_MAX, COPIES_BUILT, COPIES_MAX, SPREADS_MAX};
use crate::place::plan::{GROWS_TO, needed_of};
use crate::place::{Collection, Draft, Grows, Kind, NodeState, Spread};

/// Serial numbers of collections end here: they have 36 bits of an id.
const SERIALS_END: u64 = 1 << 36;

/// How the objects of a collection are to be kept.
#[derive(Clone, Copy)]
struct Keeping {
    kind: Kind,
    copies: u8,
    needed: u8,
}

impl Keeping {
    /// Whether a spread group keeps them so. One whose copies may yet grow does not stay as it is.
    fn fits(self, spread: &Spread) -> bool {
        let same = (spread.kind, spread.copies, spread.needed) == (self.kind, self.copies, self.needed);
        let is_grown = match spread.grows {
            Grows::No => true,
            Grows::ByItself => usize::from(self.copies) >= GROWS_TO,
            Grows::ToCopies => self.needed >= needed_of(self.copies),
        };
        same && is_grown
    }
}

impl State {
    /// Makes a collection, or finds it as it is asked for.
    pub(super) fn create(&mut self, create: &Create, rules: &Rules) -> Result<CollectionId, Refusal> {
        // There are several ways to write a number; one of them is kept.
        let class = Class::parse(&create.spec.class).map_or(create.spec.class.clone(), |class| class.to_string());
        let create = &Create { spec: Spec { class, ..create.spec.clone() }, ..create.clone() };
        let name = quote(create.name.as_bytes());
        if !collection_name_is_valid(&create.name) {
            let text = format!("'{name}' can't name a collection: use 1 to 255 letters, digits, '.', '-' or '_'");
            return Err(Error::new(ErrorKind::BadRequest, text).into());
        }
        if let Some(there) = self.map.collection(&create.name) {
            return self.same(there, create);
        }
        if self.map.collections.len() >= COLLECTIONS_MAX {
            let text = format!("the herd has {COLLECTIONS_MAX} collections, the most it can: remove one");
            return Err(Error::new(ErrorKind::Full, text).into());
        }
        let serial = self.next_collection;
        if serial >= SERIALS_END {
            return Err(Refusal::NoNumber("collections"));
        }
        let mut draft = Draft::clone(&self.map);
        let spread = spread_for(&mut draft, create, rules.heard)?;
        let id = CollectionId::new(spread, serial);
        let collection = Collection { id, name: create.name.clone(), spec: create.spec.clone(), generation: 1 };
        let at = draft.collections.partition_point(|it| it.id < id);
        draft.collections.insert(at, collection);
        self.map = self.changed(rules, |map| *map = Draft { term: map.term, ..draft })?;
        self.next_collection = serial + 1;
        Ok(id)
    }

    /// The collection that is there, if it is what is asked for.
    fn same(&self, there: &Collection, create: &Create) -> Result<CollectionId, Refusal> {
        let spread = self.map.spread(there.id.spread_group());
        let copies = create.copies.is_none_or(|copies| spread.is_some_and(|spread| spread.copies == copies));
        let lies = create.spread.is_none_or(|asked| asked == there.id.spread_group());
        if there.spec == create.spec && copies && lies {
            return Ok(there.id);
        }
        let (name, spec) = (quote(create.name.as_bytes()), &there.spec);
        // Of what was not asked for nothing is told.
        let copies = create.copies.and(spread).map_or(String::new(), |spread| format!(", copies {}", spread.copies));
        let lies = create.spread.map_or(String::new(), |_| format!(", in spread group {}", there.id.spread_group()));
        let text = format!("collection '{name}' exists with {spec}{copies}{lies}: take another name, or remove it");
        Err(Error::new(ErrorKind::Exists, text).into())
    }

    /// Removes a collection with all its objects.
    pub(super) fn destroy(&mut self, name: &str, rules: &Rules) -> Result<(), Refusal> {
        let id = self.named(name)?.id;
        if id == CollectionId::DEFAULT {
            let text = "collection 'default' can't be removed: empty it instead";
            return Err(Error::new(ErrorKind::BadRequest, text).into());
        }
        self.map = self.changed(rules, |draft| {
            draft.collections.retain(|it| it.id != id);
            draft.drop_unused_spreads();
        })?;
        Ok(())
    }

    /// Removes all objects of a collection; gives its generation from then on.
    pub(super) fn flush(&mut self, name: &str, rules: &Rules) -> Result<u32, Refusal> {
        let there = self.named(name)?;
        let (id, next) = (there.id, there.generation.checked_add(1));
        let generation = next.ok_or(Refusal::NoNumber("generations of this collection"))?;
        self.map = self.changed(rules, |draft| {
            let flushed = draft.collections.iter_mut().filter(|it| it.id == id);
            flushed.for_each(|it| it.generation = generation);
        })?;
        Ok(generation)
    }

    fn named(&self, name: &str) -> Result<&Collection, Refusal> {
        let text = || format!("no collection '{}': 'herd collection create' makes one", quote(name.as_bytes()));
        Ok(self.map.collection(name).ok_or_else(|| Error::new(ErrorKind::NoCollection, text()))?)
    }
}

/// The spread group that a new collection is to lie in, made over the nodes that are there if there is none.
fn spread_for(draft: &mut Draft, create: &Create, heard: Heard<'_>) -> Result<u16, Error> {
    let keeping = keeping(draft, create)?;
    if let Some(asked) = create.spread {
        return asked_spread(draft, asked, keeping, create.copies);
    }
    if let Some(spread) = draft.spreads.iter().find(|spread| keeping.fits(spread)) {
        return Ok(spread.id);
    }
    enough_are_there(draft, create, keeping, heard)?;
    let text = || format!("the herd has {SPREADS_MAX} spread groups, the most it can: choose one with --spread");
    let id = draft.add_spread(keeping.kind, keeping.copies, Grows::No);
    let id = id.ok_or_else(|| Error::new(ErrorKind::Full, text()))?;
    let there = heard.there(&draft.nodes);
    for spread in draft.spreads.iter_mut().filter(|spread| spread.id == id) {
        spread.needed = keeping.needed;
        spread.plan(&there);
    }
    Ok(id)
}

/// Groups that are made stay on the nodes they are made on: an error where fewer are there than copies were asked for,
/// though the herd has them.
fn enough_are_there(draft: &Draft, create: &Create, keeping: Keeping, heard: Heard<'_>) -> Result<(), Error> {
    let silent: Vec<String> = heard.silent(&draft.nodes).into_iter().map(|node| node.name.clone()).collect();
    let there = heard.there(&draft.nodes).len();
    let all = there + silent.len();
    let wanted = usize::from(create.copies.unwrap_or(keeping.needed)).min(all);
    if there >= wanted {
        return Ok(());
    }
    let what = match create.copies {
        Some(copies) => format!("to keep {copies} copies needs"),
        None => format!("class {} needs", create.spec.class),
    };
    let (count, names) = (silent.len(), listed(&silent));
    let text = format!(
        "{what} {wanted} nodes, and of the {all} of this herd {count} can't be reached ({names}): start them, then \
         create the collection"
    );
    Err(Error::new(ErrorKind::Unreachable, text))
}

/// The spread group that is asked for, if it keeps what is asked for.
fn asked_spread(draft: &Draft, asked: u16, keeping: Keeping, copies: Option<u8>) -> Result<u16, Error> {
    let Some(spread) = draft.spread(asked) else {
        return Err(bad(format!("spread group {asked} is not there: `herd group ls` lists them")));
    };
    let has_copies = copies.is_none_or(|copies| copies == spread.copies);
    if spread.kind == keeping.kind && spread.needed >= keeping.needed && has_copies {
        return Ok(asked);
    }
    let keeps = match (spread.kind, spread.copies, spread.needed) {
        (Kind::Cache, ..) => "is of class cache".to_owned(),
        (_, 1, _) => "keeps 1 copy".to_owned(),
        (_, copies, needed) => format!("keeps {copies} copies, of which a write needs {needed}"),
    };
    let text = format!("spread group {asked} {keeps}, and not what is asked for: `herd group ls` lists them");
    Err(bad(text))
}

/// How a collection is to be kept, if that can be had.
fn keeping(draft: &Draft, create: &Create) -> Result<Keeping, Error> {
    let (kind, needed) = match Class::parse(&create.spec.class) {
        Some(Class::Cache) => (Kind::Cache, 1),
        Some(Class::Ram(needed)) => (Kind::Kept, needed),
        // They can't be had, and it says why.
        None | Some(Class::Log(_)) => (Kind::Kept, create.spec.class().map(|_| 1)?),
    };
    // The rest of a specification does not depend on the class.
    Spec { class: "ram:1".into(), ..create.spec.clone() }.check()?;
    // Of 2k - 1 copies k are needed, as of the default group's three two, where there can be so many.
    let copies = create.copies.unwrap_or((2 * needed - 1).min(COPIES_BUILT.max(needed)));
    let up = draft.nodes.iter().filter(|node| node.state == NodeState::Up).count();
    let class = &create.spec.class;
    if usize::from(needed) > up {
        return Err(bad(format!("class {class} needs {needed} nodes and this herd has {up}: add nodes, or use ram:1")));
    }
    if kind == Kind::Cache && copies != 1 {
        return Err(bad(format!("class cache keeps one copy, not {copies}: leave --replicas out, or use ram:1")));
    }
    if !(needed..=COPIES_MAX).contains(&copies) {
        return Err(bad(format!("class {class} keeps {needed} to {COPIES_MAX} copies, not {copies}")));
    }
    Ok(Keeping { kind, copies, needed })
}

fn bad(text: String) -> Error {
    Error::new(ErrorKind::BadRequest, text)
}
