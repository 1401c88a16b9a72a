//! `herd ls`: names sorted as long as they are few, and one object a line whatever its name holds.

use crate::args::LsArgs;
use crate::exit::{Failure, Outcome};
use crate::objects::{client, namesake, pipelined};
use crate::out;
use crate::values::date;
use herd_client::blocking::Client;
use herd_client::{Attributes, ErrorKind, Item, Request};
use herd_core::door::http::put_base64;
use herd_core::{key, size};
use serde_json::json;
use std::io::{self, BufWriter, Write};
use std::os::unix::ffi::OsStrExt;

/// Names that are held to be sorted, about 10 MB; what is beyond comes as the herd lists it.
const SORTED_MAX: usize = 100_000;

/// Objects asked about at once for their times.
const BATCH: usize = 1_000;

pub(crate) fn run(args: &LsArgs) -> Outcome {
    let client = client(&args.herd)?;
    let (collection, prefix) = key::split(args.prefix.as_bytes());
    let collection = String::from_utf8_lossy(collection).into_owned();
    let mut listing = client.list(&collection, prefix);
    let mut first = listing.by_ref().take(SORTED_MAX + 1).collect::<Result<Vec<Item>, _>>()?;
    if first.is_empty() {
        hint(args, &client);
    }
    if first.len() > SORTED_MAX {
        out::tell(format!("herd: over {SORTED_MAX} names: they are not sorted"));
    } else {
        first.sort_by(|a, b| a.name.cmp(&b.name));
    }
    let out = BufWriter::new(io::stdout().lock());
    let mut lines = Lines { args, client: &client, collection: &collection, out, terminal: out::is_terminal() };
    if args.long && !args.json && !first.is_empty() {
        lines.out.write_all(HEADER).map_err(out::failed)?;
    }
    for some in first.chunks(BATCH) {
        lines.write(some)?;
    }
    loop {
        let some = listing.by_ref().take(BATCH).collect::<Result<Vec<Item>, _>>()?;
        if some.is_empty() {
            return lines.out.flush().map_err(out::failed);
        }
        lines.write(&some)?;
    }
}

/// A word that names a collection, but was taken for the beginning of names in `default`.
fn hint(args: &LsArgs, client: &Client) {
    if let Some(name) = namesake(client, args.prefix.as_bytes()) {
        out::tell(format!(
            "herd: nothing in collection 'default' starts with '{name}'; \
             collection '{name}' is listed by `herd ls {name}/`"
        ));
    }
}

const HEADER: &[u8] = b"      SIZE MODIFIED                             VERSION NAME\n";

struct Lines<'a, W: Write> {
    args: &'a LsArgs,
    client: &'a Client,
    collection: &'a str,
    out: W,
    terminal: bool,
}

impl<W: Write> Lines<'_, W> {
    fn write(&mut self, items: &[Item]) -> Result<(), Failure> {
        let dates = if self.args.long && !self.args.json { self.dates(items)? } else { Vec::new() };
        for (at, item) in items.iter().enumerate() {
            let date = dates.get(at).map_or("", String::as_str);
            self.line(item, date).map_err(out::failed)?;
        }
        Ok(())
    }

    /// When each was last modified, where that is known.
    fn dates(&self, items: &[Item]) -> Result<Vec<String>, Failure> {
        let keys: Vec<_> = items.iter().map(|item| [self.collection.as_bytes(), b"/", &item.name].concat()).collect();
        let requests = keys.iter().map(Request::stat).collect::<Result<Vec<_>, _>>()?;
        let mut dates = Vec::with_capacity(items.len());
        pipelined(self.client, &requests, |reply| {
            // It may be gone since it was listed.
            let reply = match reply {
                Err(error) if error.kind() == ErrorKind::NotFound => None,
                reply => Some(reply?),
            };
            let attributes = reply.and_then(|reply| Attributes::decode(&reply.attributes).ok());
            let mtime_ns = attributes.and_then(|attributes| attributes.mtime_ns);
            dates.push(mtime_ns.map_or_else(|| "-".into(), |ns| date(ns.div_euclid(1_000_000_000))));
            Ok(())
        })?;
        Ok(dates)
    }

    fn line(&mut self, item: &Item, date: &str) -> io::Result<()> {
        if self.args.json {
            return writeln!(self.out, "{}", self.json(item));
        }
        if self.args.long {
            write!(self.out, "{:>10} {date:<23} {:>20} ", size::show(item.size_bytes), item.version)?;
        }
        if self.args.null {
            self.out.write_all(&item.name)?;
            return self.out.write_all(b"\0");
        }
        self.out.write_all(&out::listed(&item.name, self.terminal))?;
        self.out.write_all(b"\n")
    }

    fn json(&self, item: &Item) -> serde_json::Value {
        let mut line = json!({
            "collection": self.collection,
            "size_bytes": item.size_bytes,
            "version": item.version,
            "etag": item.version.to_string(),
        });
        let (field, name) = json_name(&item.name);
        line[field] = name.into();
        line
    }
}

/// A name in JSON: one that is not UTF-8 stands as base64 in a field of its own, as by HTTP.
pub(crate) fn json_name(name: &[u8]) -> (&'static str, String) {
    match std::str::from_utf8(name) {
        Ok(text) => ("name", text.into()),
        Err(_) => ("name_base64", base64(name)),
    }
}

pub(crate) fn base64(bytes: &[u8]) -> String {
    let mut text = Vec::new();
    put_base64(&mut text, bytes);
    String::from_utf8(text).expect("base64 is ASCII")
}
