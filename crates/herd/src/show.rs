//! What the herd says of objects and collections: for people in columns, for programs as JSON.

use crate::args::{CollectionArgs, CollectionCommand, StatArgs};
use crate::exit::{Failure, NOT_SO, Outcome};
use crate::list::json_name;
use crate::node::check_replicas;
use crate::objects::{client, explained};
use crate::out;
use crate::values::{date, permissions};
use herd_client::{ErrorKind, Spec, Stat, Wanted};
use herd_core::{key, size};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt;

pub(crate) fn stat(args: &StatArgs) -> Outcome {
    let key = args.key.as_bytes();
    let client = client(&args.herd)?;
    let stat = client.stat(key).map_err(|error| explained(&client, key, error))?;
    out::print(if args.json { format!("{}\n", stat_json(key, &stat)) } else { stat_text(key, &stat) })
}

fn stat_json(key: &[u8], stat: &Stat) -> Value {
    let (collection, name) = key::split(key);
    let attributes = &stat.attributes;
    let mut all = json!({
        "collection": String::from_utf8_lossy(collection),
        "size_bytes": stat.size_bytes,
        "version": stat.version,
        "etag": stat.version.to_string(),
        "class": stat.class.to_string(),
        "copies": stat.copies,
        "checksum": checksum(stat),
        "expires_ms": stat.expires_ms,
        "flags": stat.flags,
        "content_type": attributes.content_type,
        "mode": attributes.mode.map(|mode| format!("{mode:o}")),
        "mtime_ns": attributes.mtime_ns,
        "link": attributes.link.as_ref().map(|link| String::from_utf8_lossy(link)),
    });
    let (field, name) = json_name(name);
    all[field] = name.into();
    all
}

fn stat_text(key: &[u8], stat: &Stat) -> String {
    let (collection, name) = key::split(key);
    let attributes = &stat.attributes;
    let class = format!("{}, copies {}", stat.class, stat.copies);
    let mut lines = vec![
        ("size", format!("{} ({} bytes)", size::show(stat.size_bytes), stat.size_bytes)),
        ("version", stat.version.to_string()),
        ("class", class),
        ("checksum", checksum(stat)),
        ("expires", stat.expires_ms.map_or_else(|| "never".into(), |ms| date((ms / 1000) as i64))),
    ];
    lines.extend(attributes.content_type.as_ref().map(|text| ("type", out::shown(text.as_bytes()).into_owned())));
    lines.extend(attributes.mode.map(|mode| ("mode", permissions(mode))));
    lines.extend(attributes.mtime_ns.map(|ns| ("modified", date(ns.div_euclid(1_000_000_000)))));
    lines.extend(attributes.link.as_ref().map(|link| ("link to", out::shown(link).into_owned())));
    let mut text = format!("{}/{}\n", out::shown(collection), out::shown(name));
    for (what, value) in lines {
        writeln!(text, "  {what:<9} {value}").expect("a string takes all");
    }
    text
}

fn checksum(stat: &Stat) -> String {
    stat.checksum.map_or_else(String::new, |crc| format!("crc32c:{crc:08x}"))
}

pub(crate) fn collection(args: &CollectionArgs) -> Outcome {
    match &args.command {
        CollectionCommand::Create { name, class, ordered, indexed, quota, replicas, spread, herd } => {
            check_replicas("collection create", *replicas)?;
            let spec = Spec { ordered: *ordered, quota_bytes: *quota, indexed: *indexed, ..Spec::of(class) };
            let wanted = Wanted { copies: *replicas, spread: *spread, ..Wanted::of(spec) };
            Ok(client(herd)?.create_collection_as(name, &wanted)?)
        }
        CollectionCommand::Rm { name, herd } => match client(herd)?.destroy_collection(name) {
            Err(error) if error.kind() == ErrorKind::NoCollection => {
                let text = format!("collection rm: no collection '{name}': `herd collection ls` shows all");
                Err(Failure::new(NOT_SO, text))
            }
            done => Ok(done?),
        },
        CollectionCommand::Ls(show) => {
            let mut all = crate::view::gather(&show.herd)?;
            for node in crate::view::silent(&all) {
                out::tell(format!("herd: collection ls: node {node} does not answer: what it has is not counted"));
            }
            let all = all["collections"].take();
            out::print(if show.json { format!("{all}\n") } else { collections_text(&all) })
        }
    }
}

fn collections_text(all: &Value) -> String {
    let line = |cells: [&str; 6]| {
        let [name, class, copies, objects, bytes, quota] = cells;
        format!("{name:<24} {class:<8} {copies:>6} {objects:>12} {bytes:>12} {quota:>12}\n")
    };
    let mut text = line(["NAME", "CLASS", "COPIES", "OBJECTS", "BYTES", "QUOTA"]);
    for c in all.as_array().into_iter().flatten() {
        let bytes = |field: &str| c[field].as_u64().map_or_else(|| "-".into(), size::show);
        let number = |field: &str| c[field].as_u64().map_or_else(|| "-".into(), |number| number.to_string());
        text += &line([
            &word(c, "name"),
            &word(c, "class"),
            &number("copies"),
            &number("objects"),
            &bytes("bytes"),
            &bytes("quota_bytes"),
        ]);
    }
    text
}

/// A text field of what the herd says, as people may see it.
fn word(value: &Value, field: &str) -> String {
    out::shown(value[field].as_str().unwrap_or("?").as_bytes()).into_owned()
}
