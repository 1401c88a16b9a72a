//! The commands on objects, one function each.

use crate::args::{GetArgs, HerdArgs, PingArgs, PutArgs, RmArgs};
use crate::copy::prefix_of;
use crate::exit::{Failure, NOT_SO, Outcome, USAGE};
use crate::list::json_name;
use crate::out;
use crate::progress::Progress;
use crate::target::{self, Output};
use herd_client::blocking::Client;
use herd_client::{Ack, Attributes, Condition, Config, ErrorKind, PutOptions, Range, Reply, Request, Token};
use herd_core::key;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, IsTerminal, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// Requests sent ahead of their answers where many are to be done.
const AHEAD: usize = 64;
/// Round trips a ping takes the shortest of.
const PINGS: u32 = 5;

/// A client of the herd that was named.
pub(crate) fn client(herd: &HerdArgs) -> Result<Client, Failure> {
    Ok(Client::new(&herd.nodes()?, Config { timeout: herd.timeout, ..Config::default() })?)
}

/// The same as the holder of a lock, whose token it shows with each request.
pub(crate) fn client_of(herd: &HerdArgs, token: Option<Token>) -> Result<Client, Failure> {
    let client = client(herd)?;
    Ok(token.map_or_else(|| client.clone(), |token| client.with_token(token)))
}

/// The collection that is called as the key is, where the key is a bare word: an object in `default`.
pub(crate) fn namesake<'a>(client: &Client, key: &'a [u8]) -> Option<&'a str> {
    let word =
        std::str::from_utf8(key).ok().filter(|word| !word.is_empty() && !word.contains('/') && *word != "default")?;
    // An answer that does not come costs no more than a hint.
    let all = client.collections().ok()?;
    all.as_array()?.iter().any(|c| c["name"].as_str() == Some(word)).then_some(word)
}

/// What an error of a request about `key` is told as: with a hint where a collection may have been meant.
pub(crate) fn explained(client: &Client, key: &[u8], error: herd_client::Error) -> Failure {
    let name = if error.kind() == ErrorKind::NotFound { namesake(client, key) } else { None };
    let mut failure = Failure::from(error);
    if let Some(name) = name {
        write!(failure.text, "; collection '{name}' is listed by `herd ls {name}/`").expect("a string takes all");
    }
    failure
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
    let client = client_of(&args.herd, args.token)?;
    let (mut source, length) = open(args.file.as_deref())?;
    let key = args.key.as_bytes();
    let ack = match args.range {
        None => {
            let progress = Progress::new(false, 1, length.unwrap_or(0));
            let done = client.put_from(key, &mut progress.reader(source), length, &options);
            progress.finish(0);
            done?
        }
        Some(offset) => {
            let mut bytes = Vec::new();
            source.read_to_end(&mut bytes).map_err(Failure::local("reading"))?;
            client.put_range(key, offset, &bytes, &options)?
        }
    };
    if args.json { out::print(format!("{}\n", ack_json(key, ack))) } else { Ok(()) }
}

fn ack_json(key: &[u8], ack: Ack) -> Value {
    let (collection, name) = key::split(key);
    let mut all = json!({
        "collection": String::from_utf8_lossy(collection),
        "version": ack.version,
        "etag": ack.version.to_string(),
        "class": ack.class.to_string(),
        "copies": ack.copies,
    });
    let (field, name) = json_name(name);
    all[field] = name.into();
    all
}

/// A file, or standard input; with its length if that is known.
fn open(file: Option<&Path>) -> Result<(Box<dyn Read>, Option<u64>), Failure> {
    let Some(path) = file.filter(|path| *path != Path::new("-")) else {
        if io::stdin().is_terminal() {
            out::tell("herd: no FILE: reading standard input, what you type; Ctrl-D ends it");
        }
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
    let client = client_of(&args.herd, args.token)?;
    let key = args.key.as_bytes();
    // To the end where A to B is more than a length can tell.
    let length = |from: u64, to: Option<u64>| to.and_then(|to| (to - from).checked_add(1));
    let range = args.range.map(|(from, to)| Range { offset: from, length: length(from, to) });
    let Some(path) = args.output.as_deref().filter(|path| *path != Path::new("-")) else {
        return get_to_stdout(&client, key, range);
    };
    target::prepare("").map_err(Failure::local("signals"))?;
    let mut output = Output::open(path).map_err(Failure::local(path.display()))?;
    let progress = Progress::new(false, 1, size_to_show(&client, key, args));
    let done = client.get_to(key, range, &mut progress.writer(&mut output));
    progress.finish(0);
    done.map_err(|error| explained(&client, key, error))?;
    output.finish(None, None).map_err(Failure::local(path.display()))
}

/// Bytes to come, where somebody sees the progress; 0: nobody knows.
fn size_to_show(client: &Client, key: &[u8], args: &GetArgs) -> u64 {
    let is_seen = io::stderr().is_terminal() && args.range.is_none();
    if is_seen { client.stat(key).map_or(0, |stat| stat.size_bytes) } else { 0 }
}

fn get_to_stdout(client: &Client, key: &[u8], range: Option<Range>) -> Outcome {
    let mut out = io::stdout().lock();
    match client.get_to(key, range, &mut out) {
        Ok(_) => out.flush().map_err(out::failed),
        Err(error) if error.kind() == ErrorKind::Local(io::ErrorKind::BrokenPipe) => Err(Failure::quiet()),
        Err(error) => Err(explained(client, key, error)),
    }
}

pub(crate) fn remove(args: &RmArgs) -> Outcome {
    let client = client_of(&args.herd, args.token)?;
    let mut last = Ok(());
    for key in &args.keys {
        let done =
            if args.recursive { remove_tree(&client, key.as_bytes()) } else { remove_one(&client, key.as_bytes()) };
        match done {
            Ok(removed) if args.recursive && !args.quiet => out::tell(format!("removed {removed}")),
            Ok(_) => {}
            Err(failure) if failure.code == NOT_SO => {
                failure.report();
                last = Err(Failure::new(NOT_SO, ""));
            }
            Err(failure) => return Err(failure),
        }
    }
    last
}

fn remove_one(client: &Client, key: &[u8]) -> Result<u64, Failure> {
    client.remove(key, Condition::None).map_err(|error| explained(client, key, error))?;
    Ok(1)
}

/// Removes all that `cp -r` would copy from there; one that somebody else removes meanwhile is no failure.
fn remove_tree(client: &Client, key: &[u8]) -> Result<u64, Failure> {
    let prefix = prefix_of(key);
    let (collection, inner) = key::split(&prefix);
    let listing = client.list(collection, inner);
    let keys = listing.map(|item| Ok([collection, b"/", &item?.name].concat()));
    let keys = keys.collect::<Result<Vec<Vec<u8>>, herd_client::Error>>().map_err(|error| match error.kind() {
        ErrorKind::NoCollection => {
            let name = out::shown(collection);
            Failure::new(NOT_SO, format!("rm: no collection '{name}': `herd collection ls` shows all"))
        }
        _ => error.into(),
    })?;
    if keys.is_empty() {
        return Err(Failure::new(NOT_SO, format!("no objects under {}", out::shown(&prefix))));
    }
    let (mut removed, mut seen) = (0, 0);
    let requests = keys.iter().map(|key| Request::remove(key, Condition::None)).collect::<Result<Vec<_>, _>>()?;
    let done = pipelined(client, &requests, |reply| {
        match reply {
            Ok(_) => removed += 1,
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error.into()),
        }
        seen += 1;
        Ok(())
    });
    done.map(|()| removed).map_err(|failure| {
        let name = keys.get(seen).map_or("the last one".into(), |key| out::shown(key));
        Failure { text: format!("{name}: {}; {removed} were removed before it", failure.text), ..failure }
    })
}

/// Sends many requests over one connection, some ahead of their answers; `each` sees these in order.
pub(crate) fn pipelined(
    client: &Client,
    requests: &[Request<'_>],
    mut each: impl FnMut(Result<Reply, herd_client::Error>) -> Result<(), Failure>,
) -> Result<(), Failure> {
    if requests.is_empty() {
        return Ok(());
    }
    let mut pipeline = client.pipeline()?;
    for some in requests.chunks(AHEAD) {
        let tickets = some.iter().map(|request| pipeline.send(request)).collect::<Result<Vec<_>, _>>()?;
        for ticket in tickets {
            each(pipeline.wait(ticket).map(|(reply, _)| reply))?;
        }
    }
    Ok(())
}

/// Round trips to each node that was named.
pub(crate) fn ping(args: &PingArgs) -> Outcome {
    let nodes = args.herd.nodes()?;
    let mut last = Ok(());
    for node in nodes.split(',').map(str::trim).filter(|node| !node.is_empty()) {
        match round_trip(node, args) {
            Ok(time) => out::print(format!("{node}: {:.3} ms\n", time.as_secs_f64() * 1e3))?,
            Err(failure) => {
                failure.report();
                last = Err(Failure::new(failure.code, ""));
            }
        }
    }
    last
}

/// The shortest of some round trips.
fn round_trip(node: &str, args: &PingArgs) -> Result<Duration, Failure> {
    // The node itself is asked, not the one that has the object.
    let config = Config { timeout: args.herd.timeout, routed: false, ..Config::default() };
    let client = Client::new(node, config)?;
    client.status()?;
    let mut best = Duration::MAX;
    for _ in 0..PINGS {
        let begin = Instant::now();
        // A question without effect, whatever the answer: a node that refuses has answered, too.
        match client.stat("default/ping") {
            Err(error) if !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Refused(_)) => {
                return Err(error.into());
            }
            _ => best = best.min(begin.elapsed()),
        }
    }
    Ok(best)
}
