//! The commands on objects and collections, one function each.

use crate::args::{CollectionArgs, CollectionCommand, GetArgs, HerdArgs, LsArgs, PutArgs, RmArgs, ShowArgs, StatArgs};
use crate::exit::{Failure, NOT_SO, Outcome, USAGE};
use herd_client::blocking::Client;
use herd_client::{Attributes, Condition, Config, ErrorKind, PutOptions, Range, Spec, Stat};
use herd_core::{key, size};
use serde_json::{Value, json};
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;
use std::time::Duration;

/// A client of the herd that was named.
pub(crate) fn client(herd: &HerdArgs) -> Result<Client, Failure> {
    let timeout = Duration::try_from_secs_f64(herd.timeout)
        .ok()
        .filter(|timeout| !timeout.is_zero())
        .ok_or_else(|| Failure::new(USAGE, "--timeout takes seconds above 0"))?;
    Ok(Client::new(&herd.node, Config { timeout, ..Config::default() })?)
}

pub(crate) fn put(args: &PutArgs) -> Outcome {
    let condition = match (args.if_absent, args.if_version) {
        (true, _) => Condition::IfAbsent,
        (false, Some(version)) => Condition::IfVersion(version),
        (false, None) => Condition::None,
    };
    let attributes =
        args.content_type.clone().map(|text| Attributes { content_type: Some(text), ..Attributes::default() });
    let options = PutOptions { condition, ttl: args.ttl, flags: None, attributes };
    let client = client(&args.herd)?;
    let (mut source, length) = open(args.file.as_deref())?;
    match args.range {
        None => client.put_from(&args.key, &mut source, length, &options)?,
        Some(offset) => {
            let mut bytes = Vec::new();
            source.read_to_end(&mut bytes).map_err(Failure::local("reading"))?;
            client.put_range(&args.key, offset, &bytes, &options)?
        }
    };
    Ok(())
}

/// A file, or standard input; with its length if that is known.
fn open(file: Option<&Path>) -> Result<(Box<dyn Read>, Option<u64>), Failure> {
    let Some(path) = file.filter(|path| *path != Path::new("-")) else {
        return Ok((Box::new(io::stdin().lock()), None));
    };
    let file = File::open(path).map_err(Failure::local(path.display()))?;
    let meta = file.metadata().map_err(Failure::local(path.display()))?;
    if meta.is_dir() {
        return Err(Failure::new(USAGE, format!("{}: is a directory; use `herd cp -r`", path.display())));
    }
    Ok((Box::new(file), meta.is_file().then_some(meta.len())))
}

pub(crate) fn get(args: &GetArgs) -> Outcome {
    let client = client(&args.herd)?;
    let range = args.range.map(|(from, to)| Range { offset: from, length: to.map(|to| to - from + 1) });
    let Some(path) = &args.output else {
        let mut out = io::stdout().lock();
        client.get_to(&args.key, range, &mut out)?;
        return out.flush().map_err(Failure::local("stdout"));
    };
    // What was there stays until the object is whole.
    let part = path.with_file_name(format!(
        ".{}.herd-{}",
        path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned()),
        std::process::id()
    ));
    let mut file = File::create(&part).map_err(Failure::local(path.display()))?;
    let done = client
        .get_to(&args.key, range, &mut file)
        .map_err(Failure::from)
        .and_then(|_| std::fs::rename(&part, path).map_err(Failure::local(path.display())));
    if done.is_err() {
        // Nothing more can be done about a rest that can't be removed.
        std::fs::remove_file(&part).ok();
    }
    done
}

pub(crate) fn remove(args: &RmArgs) -> Outcome {
    let client = client(&args.herd)?;
    let mut last = Ok(());
    for key in &args.keys {
        if let Err(error) = client.remove(key, Condition::None) {
            let failure = Failure::from(error);
            if failure.code != crate::exit::NOT_SO {
                return Err(failure);
            }
            failure.report();
            last = Err(Failure::new(crate::exit::NOT_SO, ""));
        }
    }
    last
}

pub(crate) fn list(args: &LsArgs) -> Outcome {
    let client = client(&args.herd)?;
    let (collection, prefix) = key::split(args.prefix.as_bytes());
    let collection = String::from_utf8_lossy(collection).into_owned();
    let mut out = io::BufWriter::new(io::stdout().lock());
    for item in client.list(&collection, prefix) {
        let item = item?;
        let name = String::from_utf8_lossy(&item.name);
        let done = if args.json {
            let line =
                json!({"collection": collection, "name": name, "size_bytes": item.size_bytes, "version": item.version});
            writeln!(out, "{line}")
        } else if args.long {
            writeln!(out, "{:>12} {:>20} {name}", item.size_bytes, item.version)
        } else {
            writeln!(out, "{name}")
        };
        match done {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            done => done.map_err(Failure::local("stdout"))?,
        }
    }
    out.flush().map_err(Failure::local("stdout"))
}

pub(crate) fn stat(args: &StatArgs) -> Outcome {
    let client = client(&args.herd)?;
    let stat = client.stat(&args.key)?;
    let checksum = stat.checksum.map_or_else(String::new, |crc| format!("crc32c:{crc:08x}"));
    let (collection, name) = key::split(args.key.as_bytes());
    let class = class_name(&stat);
    if args.json {
        let attributes = &stat.attributes;
        println!(
            "{}",
            json!({
                "collection": String::from_utf8_lossy(collection),
                "name": String::from_utf8_lossy(name),
                "size_bytes": stat.size_bytes,
                "version": stat.version,
                "class": class,
                "copies": stat.copies,
                "checksum": checksum,
                "expires_ms": stat.expires_ms,
                "flags": stat.flags,
                "content_type": attributes.content_type,
                "mode": attributes.mode.map(|mode| format!("{mode:o}")),
                "mtime_ns": attributes.mtime_ns,
                "link": attributes.link.as_ref().map(|link| String::from_utf8_lossy(link)),
            })
        );
        return Ok(());
    }
    println!("{}/{}", String::from_utf8_lossy(collection), String::from_utf8_lossy(name));
    println!("  size      {} ({} bytes)", size::show(stat.size_bytes), stat.size_bytes);
    println!("  version   {}", stat.version);
    println!("  class     {class}, copies {}", stat.copies);
    println!("  checksum  {checksum}");
    match stat.expires_ms {
        Some(ms) => println!("  expires   {}.{:03} s after 1970", ms / 1000, ms % 1000),
        None => println!("  expires   never"),
    }
    if let Some(text) = &stat.attributes.content_type {
        println!("  type      {text}");
    }
    Ok(())
}

fn class_name(stat: &Stat) -> String {
    match stat.class {
        0 => "cache".into(),
        1 => format!("ram:{}", stat.copies.max(1)),
        _ => format!("log:{}", stat.copies.max(1)),
    }
}

pub(crate) fn collection(args: &CollectionArgs) -> Outcome {
    match &args.command {
        CollectionCommand::Create { name, class, ordered, quota, herd } => {
            let spec = Spec { class: class.clone(), ordered: *ordered, quota_bytes: *quota };
            Ok(client(herd)?.create_collection(name, &spec)?)
        }
        CollectionCommand::Rm { name, herd } => match client(herd)?.destroy_collection(name) {
            Err(error) if error.kind() == ErrorKind::NoCollection => {
                Err(Failure::new(NOT_SO, format!("no collection '{name}': `herd collection ls` shows all")))
            }
            done => Ok(done?),
        },
        CollectionCommand::Ls(show) => {
            let all = client(&show.herd)?.collections()?;
            if show.json {
                println!("{all}");
                return Ok(());
            }
            println!("{:<24} {:<8} {:>12} {:>12} {:>12}", "NAME", "CLASS", "OBJECTS", "BYTES", "QUOTA");
            for c in all.as_array().into_iter().flatten() {
                let bytes = |field: &str| c[field].as_u64().map_or_else(|| "-".into(), size::show);
                let text = |field: &str| c[field].as_str().unwrap_or("").to_string();
                let (name, class, objects) = (text("name"), text("class"), c["objects"].as_u64().unwrap_or(0));
                println!("{name:<24} {class:<8} {objects:>12} {:>12} {:>12}", bytes("bytes"), bytes("quota_bytes"));
            }
            Ok(())
        }
    }
}

pub(crate) fn nodes(args: &ShowArgs) -> Outcome {
    let status = client(&args.herd)?.status()?;
    if args.json {
        println!("{}", status["nodes"]);
        return Ok(());
    }
    for node in status["nodes"].as_array().into_iter().flatten() {
        let text = |field: &str| node[field].as_str().unwrap_or("").to_string();
        println!("{:<20} {:<24} {}", text("name"), text("addr"), text("state"));
    }
    Ok(())
}

pub(crate) fn status(args: &ShowArgs) -> Outcome {
    let status = client(&args.herd)?.status()?;
    if args.json {
        println!("{status}");
        return Ok(());
    }
    let show = |value: &Value| value.as_u64().map_or_else(|| "?".into(), size::show);
    println!("herd        {} ({})", status["herd"].as_str().unwrap_or("?"), status["build"].as_str().unwrap_or("?"));
    println!("security    {}", status["security"].as_str().unwrap_or("?"));
    println!("objects     {}", status["objects"]);
    println!("memory      {} of {}", show(&status["memory_used_bytes"]), show(&status["memory_bytes"]));
    println!("connections {}", status["connections"]);
    println!("uptime      {} s", status["uptime_s"]);
    Ok(())
}
