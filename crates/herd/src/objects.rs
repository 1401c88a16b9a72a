//! The commands on objects, one function each.

use crate::args::{GetArgs, HerdArgs, PutArgs, RmArgs};
use crate::exit::{Failure, NOT_SO, Outcome, USAGE};
use crate::out;
use crate::target::{self, Output};
use herd_client::blocking::Client;
use herd_client::{Attributes, Condition, Config, ErrorKind, PutOptions, Range};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// A client of the herd that was named.
pub(crate) fn client(herd: &HerdArgs) -> Result<Client, Failure> {
    Ok(Client::new(&herd.nodes(), Config { timeout: herd.timeout, ..Config::default() })?)
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
        None => client.put_from(args.key.as_bytes(), &mut source, length, &options)?,
        Some(offset) => {
            let mut bytes = Vec::new();
            source.read_to_end(&mut bytes).map_err(Failure::local("reading"))?;
            client.put_range(args.key.as_bytes(), offset, &bytes, &options)?
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
    let key = args.key.as_bytes();
    // To the end where A to B is more than a length can tell.
    let length = |from: u64, to: Option<u64>| to.and_then(|to| (to - from).checked_add(1));
    let range = args.range.map(|(from, to)| Range { offset: from, length: length(from, to) });
    let Some(path) = args.output.as_deref().filter(|path| *path != Path::new("-")) else {
        return get_to_stdout(&client, key, range);
    };
    target::prepare("").map_err(Failure::local("signals"))?;
    let mut output = Output::open(path).map_err(Failure::local(path.display()))?;
    client.get_to(key, range, &mut output)?;
    output.finish(None, None).map_err(Failure::local(path.display()))
}

fn get_to_stdout(client: &Client, key: &[u8], range: Option<Range>) -> Outcome {
    let mut out = io::stdout().lock();
    match client.get_to(key, range, &mut out) {
        Ok(_) => out.flush().map_err(out::failed),
        Err(error) if error.kind() == ErrorKind::Local(io::ErrorKind::BrokenPipe) => Err(Failure::quiet()),
        Err(error) => Err(error.into()),
    }
}

pub(crate) fn remove(args: &RmArgs) -> Outcome {
    let client = client(&args.herd)?;
    let mut last = Ok(());
    for key in &args.keys {
        if let Err(error) = client.remove(key.as_bytes(), Condition::None) {
            let failure = Failure::from(error);
            if failure.code != NOT_SO {
                return Err(failure);
            }
            failure.report();
            last = Err(Failure::new(NOT_SO, ""));
        }
    }
    last
}
