//! `herd ls`: names sorted as long as they are few, and one object a line whatever its name holds.

use crate::args::LsArgs;
use crate::exit::{Failure, Outcome};
use crate::objects::client;
use crate::out;
use herd_client::Item;
use herd_core::door::http::put_base64;
use herd_core::{key, size};
use serde_json::json;
use std::io::{self, BufWriter, Write};
use std::os::unix::ffi::OsStrExt;

/// Names that are held to be sorted, about 10 MB; what is beyond comes as the herd lists it.
const SORTED_MAX: usize = 100_000;

pub(crate) fn run(args: &LsArgs) -> Outcome {
    let client = client(&args.herd)?;
    let (collection, prefix) = key::split(args.prefix.as_bytes());
    let collection = String::from_utf8_lossy(collection).into_owned();
    let mut listing = client.list(&collection, prefix);
    let mut first = listing.by_ref().take(SORTED_MAX + 1).collect::<Result<Vec<Item>, _>>()?;
    if first.len() > SORTED_MAX {
        out::tell(format!("herd: over {SORTED_MAX} names: they are not sorted"));
    } else {
        first.sort_by(|a, b| a.name.cmp(&b.name));
    }
    let mut lines =
        Lines { args, collection: &collection, out: BufWriter::new(io::stdout().lock()), terminal: out::is_terminal() };
    if args.long && !args.json && !first.is_empty() {
        lines.out.write_all(HEADER).map_err(out::failed)?;
    }
    for item in first {
        lines.write(&item)?;
    }
    for item in listing {
        lines.write(&item?)?;
    }
    lines.out.flush().map_err(out::failed)
}

const HEADER: &[u8] = b"      SIZE              VERSION NAME\n";

struct Lines<'a, W: Write> {
    args: &'a LsArgs,
    collection: &'a str,
    out: W,
    terminal: bool,
}

impl<W: Write> Lines<'_, W> {
    fn write(&mut self, item: &Item) -> Result<(), Failure> {
        self.line(item).map_err(out::failed)
    }

    fn line(&mut self, item: &Item) -> io::Result<()> {
        if self.args.json {
            return writeln!(self.out, "{}", self.json(item));
        }
        if self.args.long {
            write!(self.out, "{:>10} {:>20} ", size::show(item.size_bytes), item.version)?;
        }
        if self.args.null {
            self.out.write_all(&item.name)?;
            return self.out.write_all(b"\0");
        }
        self.out.write_all(&out::listed(&item.name, self.terminal))?;
        self.out.write_all(b"\n")
    }

    fn json(&self, item: &Item) -> serde_json::Value {
        let mut line = json!({"collection": self.collection, "size_bytes": item.size_bytes, "version": item.version});
        let (field, name) = json_name(&item.name);
        line[field] = name.into();
        line
    }
}

/// A name in JSON: one that is not UTF-8 stands as base64 in a field of its own, as by HTTP.
pub(crate) fn json_name(name: &[u8]) -> (&'static str, String) {
    match std::str::from_utf8(name) {
        Ok(text) => ("name", text.into()),
        Err(_) => {
            let mut text = Vec::new();
            put_base64(&mut text, name);
            ("name_base64", String::from_utf8(text).expect("base64 is ASCII"))
        }
    }
}
