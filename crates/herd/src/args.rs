//! The words of the command line, with their help.

use crate::exit::{Failure, USAGE};
use crate::values::{
    Control, ControlWords, Suggested, address, content_type, copies, count, lease, listen, memory, node, node_name,
    number, port, range, some_size, span, token, wait,
};
use clap::builder::{NonEmptyStringValueParser, PossibleValuesParser};
use clap::{Args as ClapArgs, Parser, Subcommand, ValueEnum};
use herd_client::Token;
use herd_core::method::NAMES;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

const KEYS: &str = "A KEY is NAME (in collection 'default') or COLLECTION/NAME.";

/// One object repository from the memory of many machines.
#[derive(Parser)]
#[command(name = "herd", version = crate::BUILD, max_term_width = 100, after_help = "Examples:
  herd node --memory 4g                 run a node on 127.0.0.1:7700
  herd up                               or a herd of three, in the background
  herd put greeting hello.txt           store a file
  herd get greeting                     print it
  herd cp -r photos herd:photos         copy a tree into the herd
  curl http://127.0.0.1:7700/o/default/greeting

Exit status: 0 done, 1 not found or condition failed, 2 usage or local file,
3 herd unreachable or refusing, 4 outcome unknown, 130 Ctrl-C.")]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Run a node
    Node(NodeArgs),
    /// Start a herd on this machine, in the background
    Up(UpArgs),
    /// End the herd that `up` started
    Down(DownArgs),
    /// Store an object
    Put(PutArgs),
    /// Print or save an object
    Get(GetArgs),
    /// Remove objects
    Rm(RmArgs),
    /// List objects
    Ls(LsArgs),
    /// Show an object's metadata
    Stat(StatArgs),
    /// Copy files or trees into or out of the herd
    Cp(CpArgs),
    /// Run a method on an object: a counter, a list, and more
    Exec(ExecArgs),
    /// Run a command while a lock is held
    Lock(LockArgs),
    /// Create, list and remove collections
    Collection(CollectionArgs),
    /// Time the way to a node and back
    Ping(PingArgs),
    /// List the nodes
    #[command(after_help = "Example:\n  herd nodes --json")]
    Nodes(ShowArgs),
    /// Show the state of the herd
    #[command(
        after_help = "--wait returns when all nodes of the herd serve, but for those that drain, each replica group \
takes writes, and each has all its copies, or one at each node where there are fewer nodes than copies. It waits for \
a node that is down until that is started again or `herd detach` takes it out; `timeout 5m herd status --wait` ends \
it then.

Examples:
  herd status
  herd status --json --node one:7700
  herd status --wait > /dev/null"
    )]
    Status(StatusArgs),
    /// Show the replica groups: who leads, who has copies, what stops writes
    Group(GroupArgs),
    /// Move all that a node keeps to the others, so that it can be stopped
    #[command(
        after_help = "Objects stay readable and writable while they move. The command returns when the node is empty; \
a node that is empty may be stopped, and the herd forgets it. It may be interrupted and given again.

Exit status: 0 the node is empty, 1 there is no such node, or the drain was called off meanwhile, 3 what it keeps has \
nowhere to go, or the herd can't be reached, 4 it is not known whether it drains.

Examples:
  herd drain n3
  herd drain n3 --cancel"
    )]
    Drain(DrainArgs),
    /// Show where the herd's map is kept, and move it while the herd serves
    Control(ControlArgs),
    /// Take a node out of the herd for good, whatever it alone has
    #[command(
        after_help = "A node that answers is told to end. What others have copies of is not lost; what only this node \
has is listed first, and lost with --yes alone. `herd drain` loses nothing.

Exit status: 0 the node is no longer in the herd, 1 there is no such node, 3 nothing was done, as something would \
be lost, or the node can't be detached.

Examples:
  herd detach --now n3
  herd detach --now n3 --yes"
    )]
    Detach(DetachArgs),
    /// Compare the copies of all objects
    #[command(
        after_help = "Each node sums up what it holds, beside its other work. Slots whose copies differ are asked for \
again, up to three times, as writes may be under way; then they are named with their objects.

Exit status: 0 all copies are the same; 1 some differ; 3 a node of the herd is down, or could not be asked.

Examples:
  herd fsck
  herd fsck --json --node one:7700"
    )]
    Fsck(ShowArgs),
    /// Show what each node does, second by second
    #[command(after_help = "Ctrl-C ends it. The last line is the sum of all nodes.

  REQ/S     requests of clients; one that was handed on counts at both nodes
  HITS/S    objects that were asked for and found
  IN/S      bytes read from clients and other nodes; OUT/S: written to them
  HANDED/S  requests that went on to the node that leads the object's group
  OBJECTS   objects there are, each copy counted; MEMORY: what they take
  TURN      the longest that an event loop was busy with one thing, in the last minute or two
  LINKS     links to other nodes that are up, one for each event loop and node
  LEADS     replica groups that the node leads

Examples:
  herd top
  herd top --once --json --node one:7700")]
    Top(TopArgs),
    /// Print a shell completion script
    #[command(after_help = "Example:\n  herd completion bash > /etc/bash_completion.d/herd")]
    Completion {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print the man page
    #[command(after_help = "Example:\n  herd man > /usr/local/share/man/man1/herd.1")]
    Man,
}

/// Which herd to ask.
#[derive(ClapArgs)]
pub(crate) struct HerdArgs {
    /// Nodes to ask, tried in turn [env: HERD_NODE] [default: 127.0.0.1:7700]
    #[arg(long, value_name = "HOST:PORT,..", value_parser = NonEmptyStringValueParser::new())]
    node: Option<String>,
    /// How long to wait for a reply, or for a transfer to move on
    #[arg(long, default_value = "10s", value_name = "TIME", value_parser = span)]
    pub(crate) timeout: Duration,
}

impl HerdArgs {
    /// The nodes to ask.
    pub(crate) fn nodes(&self) -> Result<String, Failure> {
        let given = self.node.clone().or_else(|| Some(std::env::var_os("HERD_NODE")?.to_string_lossy().into_owned()));
        let nodes = given.unwrap_or_else(|| "127.0.0.1:7700".into());
        if nodes.trim().is_empty() {
            return Err(Failure::new(USAGE, "HERD_NODE is set but empty: write HOST:PORT there, or unset it"));
        }
        Ok(nodes)
    }
}

#[derive(ClapArgs)]
#[command(after_help = "Examples:
  herd node
  herd node --listen 127.0.0.1:0 --memory 2g --threads 2
  herd node --listen 10.0.0.5:7700 --plain        without TLS, on a network you trust
  herd node --data /var/lib/herd --join one:7700  one more node of the herd in which node one is
  herd node --control etcd://e1:2379,e2:2379,e3:2379

HERD_SECRET, 32 hex digits that all nodes of a herd are given, lets nodes beyond loopback be of one herd.
HERD_ETCD_FORCE=1 accepts an etcd of a version that may answer reads with old data, which is refused otherwise. Use it \
for trials only.")]
pub(crate) struct NodeArgs {
    /// Address to listen on; port 0 takes a free one; may be given again
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:7700", value_parser = listen)]
    pub(crate) listen: Vec<SocketAddr>,
    /// Join the herd of these nodes, tried in turn; without it a herd of its own begins, or goes on
    #[arg(long, value_name = "HOST:PORT,..", value_delimiter = ',', value_parser = node)]
    pub(crate) join: Vec<String>,
    /// Where other nodes reach this one, best first [default: where it listens; of 0.0.0.0 the host's name, without a
    /// domain, which must lead the others here]
    #[arg(long, value_name = "HOST:PORT,..", value_delimiter = ',', value_parser = address)]
    pub(crate) advertise: Vec<String>,
    /// Name of this node: letters, digits, '.', '-', '_' [default: the host's name]
    #[arg(long, value_parser = node_name)]
    pub(crate) name: Option<String>,
    /// Machine it runs on: copies lie on different ones [default: the host's name]
    #[arg(long, value_name = "LABEL", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) host: Option<String>,
    /// Rack of that machine
    #[arg(long, value_name = "LABEL", default_value = "")]
    pub(crate) rack: String,
    /// Copies of each object in collection 'default', once there are as many nodes; told to the first node of a herd,
    /// when it begins [default: one a node, up to 3]
    #[arg(long, value_name = "K", value_parser = copies)]
    pub(crate) replicas: Option<u8>,
    /// Directory for who it is in its herd, and, of a herd's first node, for the herd's map; it is that node's alone
    /// [default: one by its name in the user's state directory]
    #[arg(long, value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,
    /// Where the herd's map is kept, told to its first node: 'embedded', in that node's directory, or an etcd, which
    /// outlives any machine: etcd://HOST:PORT[,HOST:PORT..][/NAME]
    #[arg(long, value_name = "WHERE", default_value = "embedded", value_parser = ControlWords)]
    #[arg(hide_possible_values = true)]
    pub(crate) control: Control,
    /// Memory for objects, overhead included [default: half of the machine's or cgroup's]
    #[arg(long, value_name = "SIZE", value_parser = memory)]
    pub(crate) memory: Option<u64>,
    /// Event loops [default: one a core]
    #[arg(long, value_name = "N", value_parser = count::<1024>)]
    pub(crate) threads: Option<u16>,
    /// Let collection 'default' evict when memory is full (class cache)
    #[arg(long)]
    pub(crate) evict: bool,
    /// Allow plaintext beyond loopback
    #[arg(long)]
    pub(crate) plain: bool,
    /// Largest object
    #[arg(long, value_name = "SIZE", value_parser = some_size, default_value = "1g")]
    pub(crate) max_object: u64,
    /// Largest value through the memcached protocol
    #[arg(long, value_name = "SIZE", value_parser = some_size, default_value = "1m")]
    pub(crate) memcached_max_value: u64,
    /// What to log
    #[arg(long, default_value = "info")]
    pub(crate) log: Level,
}

#[derive(ClapArgs)]
#[command(
    after_help = "Prints one line, `ready` and the addresses, once all nodes serve and see each other. What dies is \
started again, without what it held. With --data the herd goes on the next time, with its collections; without, each \
one is new.

Examples:
  herd up
  herd up --nodes 5 --replicas 2
  herd up --nodes 5 --port 9000 --memory 4g --data ~/herd"
)]
pub(crate) struct UpArgs {
    /// How many nodes
    #[arg(long, value_name = "N", default_value = "3", value_parser = count::<64>)]
    pub(crate) nodes: u16,
    /// Copies of each object in collection 'default', of a herd that begins [default: one a node, up to 3]
    #[arg(long, value_name = "K", value_parser = copies)]
    pub(crate) replicas: Option<u8>,
    /// Directory for the herd [default: one in the user's state directory]
    #[arg(long, value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,
    /// Port of the first node, the others follow; 0 takes free ones
    #[arg(long, value_name = "PORT", default_value = "7700", value_parser = port)]
    pub(crate) port: u16,
    /// Memory for objects, of all nodes together [default: half of the machine's or cgroup's]
    #[arg(long, value_name = "SIZE", value_parser = memory)]
    pub(crate) memory: Option<u64>,
}

#[derive(ClapArgs)]
#[command(after_help = "Examples:\n  herd down\n  herd down --data ~/herd")]
pub(crate) struct DownArgs {
    /// Directory that `up` was given
    #[arg(long, value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,
}

/// Of the process that `up` leaves behind: nobody else gives this command, and no help tells of it.
#[derive(Parser)]
pub(crate) struct KeepArgs {
    #[arg(long)]
    pub(crate) dir: PathBuf,
    #[arg(long)]
    pub(crate) nodes: u16,
    #[arg(long)]
    pub(crate) replicas: Option<u8>,
    #[arg(long)]
    pub(crate) port: u16,
    #[arg(long)]
    pub(crate) memory: u64,
}

/// How much a node tells; each level holds those before it.
#[derive(Clone, Copy, PartialEq, PartialOrd, ValueEnum)]
pub(crate) enum Level {
    Error,
    Warn,
    Info,
}

#[derive(ClapArgs)]
#[command(after_help = format!("{KEYS}\n\nExamples:
  herd put notes/today today.txt --ttl 1h
  tar c . | herd put backups/home.tar -
  herd put counter - --if-version 42 < value
  herd put disk.img part --range 1048576         replace bytes from 1 MiB on"))]
pub(crate) struct PutArgs {
    /// Object to store
    pub(crate) key: OsString,
    /// File to read; - or nothing: standard input
    pub(crate) file: Option<PathBuf>,
    /// Time until it expires: 30s, 5m, 1h, 2d
    #[arg(long, value_name = "TIME", value_parser = span, allow_hyphen_values = true)]
    pub(crate) ttl: Option<Duration>,
    /// Only if the object has this version
    #[arg(long, value_name = "VERSION", value_parser = number)]
    pub(crate) if_version: Option<u64>,
    /// Only if there is no such object
    #[arg(long, conflicts_with = "if_version")]
    pub(crate) if_absent: bool,
    /// Media type
    #[arg(long, value_name = "TYPE", value_parser = content_type)]
    pub(crate) content_type: Option<String>,
    /// Replace a range from this offset on
    #[arg(long, value_name = "OFFSET", value_parser = number)]
    pub(crate) range: Option<u64>,
    /// Print the version it got, as JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Token of the lock you hold ($HERD_LOCK_TOKEN under herd lock)
    #[arg(long, value_parser = token)]
    pub(crate) token: Option<Token>,
    #[command(flatten)]
    pub(crate) herd: HerdArgs,
}

#[derive(ClapArgs)]
#[command(after_help = format!("{KEYS}\n\nExamples:
  herd get notes/today
  herd get backups/home.tar -o home.tar
  herd get disk.img --range 0-511 | xxd"))]
pub(crate) struct GetArgs {
    /// Object to get
    pub(crate) key: OsString,
    /// File, device or pipe to write [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Bytes A to B, both included; B may be left out
    #[arg(long, value_name = "A-B", value_parser = range, allow_hyphen_values = true)]
    pub(crate) range: Option<(u64, Option<u64>)>,
    /// Token of the lock you hold ($HERD_LOCK_TOKEN under herd lock)
    #[arg(long, value_parser = token)]
    pub(crate) token: Option<Token>,
    #[command(flatten)]
    pub(crate) herd: HerdArgs,
}

#[derive(ClapArgs)]
#[command(after_help = format!("{KEYS}\n\nExamples:
  herd rm notes/today notes/yesterday
  herd rm -r photos/2026     all below photos/2026/
  herd rm -r photos          all in collection 'photos'"))]
pub(crate) struct RmArgs {
    /// Remove all below KEY/; a KEY without a slash is a collection, as for cp -r
    #[arg(short, long)]
    pub(crate) recursive: bool,
    /// With -r: don't say how many were removed
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// Objects to remove
    #[arg(required = true)]
    pub(crate) keys: Vec<OsString>,
    /// Token of the lock you hold ($HERD_LOCK_TOKEN under herd lock)
    #[arg(long, value_parser = token)]
    pub(crate) token: Option<Token>,
    #[command(flatten)]
    pub(crate) herd: HerdArgs,
}

#[derive(ClapArgs)]
#[command(after_help = "Examples:
  herd ls                    all of collection 'default'
  herd ls photos/2026        names that start with 2026 in collection 'photos'
  herd ls photos/ -l --json  one JSON object a line")]
pub(crate) struct LsArgs {
    /// COLLECTION/ or COLLECTION/PREFIX, or a prefix in 'default'
    #[arg(default_value = "")]
    pub(crate) prefix: OsString,
    /// Also size, time of last modification (of what cp stored) and version
    #[arg(short, long)]
    pub(crate) long: bool,
    /// One JSON object a line
    #[arg(long)]
    pub(crate) json: bool,
    /// End each name with a zero byte instead of a newline
    #[arg(short = '0', long, conflicts_with = "json")]
    pub(crate) null: bool,
    #[command(flatten)]
    pub(crate) herd: HerdArgs,
}

#[derive(ClapArgs)]
#[command(after_help = format!("{KEYS}\n\nExample:\n  herd stat notes/today --json"))]
pub(crate) struct StatArgs {
    /// Object
    pub(crate) key: OsString,
    /// As JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) herd: HerdArgs,
}

#[derive(ClapArgs)]
#[command(
    override_usage = "herd cp [OPTIONS] <FROM>... <TO>",
    after_help = "The herd's side is written herd:KEY. Links, modes, times and empty directories are kept; \
what is equal (size, time, mode) is left as it is; nothing is written outside the target. A FROM that is a link is \
followed; with -r it is copied as a link, unless it ends in a slash.

Examples:
  herd cp report.pdf herd:docs/report.pdf
  herd cp -r photos herd:photos          what is in photos to collection 'photos'
  herd cp -r herd:photos restored
  herd cp a.jpg b.jpg herd:photos/       several, each under its own name
  herd cp herd:docs/report.pdf - | less"
)]
pub(crate) struct CpArgs {
    /// Copy a directory with all in it
    #[arg(short, long)]
    pub(crate) recursive: bool,
    /// What to copy, then where to: files, directories or -, and herd:KEY
    #[arg(required = true, num_args = 2.., value_name = "PATH")]
    pub(crate) paths: Vec<OsString>,
    /// Parallel transfers
    #[arg(long, default_value = "8", value_name = "N", value_parser = count::<256>)]
    pub(crate) jobs: u16,
    /// No progress bar, no summary
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// List each file as it is copied
    #[arg(short, long)]
    pub(crate) verbose: bool,
    /// Only list what would be copied
    #[arg(short = 'n', long)]
    pub(crate) dry_run: bool,
    /// Token of the lock you hold ($HERD_LOCK_TOKEN under herd lock)
    #[arg(long, value_parser = token)]
    pub(crate) token: Option<Token>,
    #[command(flatten)]
    pub(crate) herd: HerdArgs,
}

#[derive(ClapArgs)]
#[command(after_help = format!("{KEYS}\n\n{}\n\nExamples:
  herd exec hits fetch-and-add 1
  herd exec jobs list-push first second
  herd exec jobs list-pop
  tail -n 1 log | herd exec notes append -
  herd exec notes append -- -                    a dash as it is", methods()))]
pub(crate) struct ExecArgs {
    /// Object the method runs on
    pub(crate) key: OsString,
    /// What to do
    #[arg(value_parser = PossibleValuesParser::new(NAMES.map(|(name, ..)| name)), hide_possible_values = true)]
    pub(crate) method: String,
    /// What the method takes; - is standard input; behind -- each is taken as it stands
    #[arg(value_name = "ARG", allow_negative_numbers = true)]
    pub(crate) arguments: Vec<OsString>,
    /// The answer as one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    /// End the answer, or each item of a list, with a zero byte, and escape nothing
    #[arg(long, conflicts_with = "json")]
    pub(crate) null: bool,
    /// Only if the object has this version
    #[arg(long, value_name = "VERSION", value_parser = number)]
    pub(crate) if_version: Option<u64>,
    /// Token of the lock you hold ($HERD_LOCK_TOKEN under herd lock)
    #[arg(long, value_parser = token)]
    pub(crate) token: Option<Token>,
    #[command(flatten)]
    pub(crate) herd: HerdArgs,
}

/// The methods with what they take, as help has them.
fn methods() -> String {
    const COLUMN: usize = 28;
    let lines = NAMES.iter().map(|(name, takes, does)| {
        let usage = format!("{name} {takes}");
        // What is too long for its column has its meaning on the next line.
        let rest = if usage.len() > COLUMN { format!("\n  {:COLUMN$}", "") } else { String::new() };
        format!("\n  {usage:<COLUMN$}{rest}  {does}")
    });
    format!("Methods:{}", lines.collect::<String>())
}

#[derive(ClapArgs)]
#[command(
    after_help = "CMD finds the lock's token in HERD_LOCK_TOKEN. Pass it with --token to put, get, cp, rm and exec: \
then nothing that a holder does too late can undo what the next one did. If the lock is lost, CMD gets SIGTERM, \
after 5 s SIGKILL, and the exit status is 1; else it is CMD's.

Examples:
  herd lock nightly -- ./backup.sh
  herd lock report --wait 30s -- make report
  herd lock config --shared -- ./read-config"
)]
pub(crate) struct LockArgs {
    /// Name of the lock, a KEY used for nothing else; who wants the same lock gives the same name
    pub(crate) name: OsString,
    /// Hold it together with others who also say --shared
    #[arg(long)]
    pub(crate) shared: bool,
    /// How long it lasts if not renewed, 100ms to 24h; renewed at each third of it
    #[arg(long, default_value = "10s", value_name = "TIME", value_parser = lease)]
    pub(crate) lease: Duration,
    /// How long to wait for it; 0: not at all [default: until it is free]
    #[arg(long, value_name = "TIME", value_parser = wait)]
    pub(crate) wait: Option<Duration>,
    #[command(flatten)]
    pub(crate) herd: HerdArgs,
    /// Command to run, with its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

#[derive(ClapArgs)]
#[command(after_help = "Examples:
  herd collection create photos
  herd collection ls
  herd collection rm photos")]
pub(crate) struct CollectionArgs {
    #[command(subcommand)]
    pub(crate) command: CollectionCommand,
}

#[derive(Subcommand)]
pub(crate) enum CollectionCommand {
    /// Create a collection; one that is there with the same settings is left as it is
    #[command(after_help = "Examples:
  herd collection create notes --ordered
  herd collection create thumbs --class cache --quota 2g
  herd collection create safe --class ram:2 --replicas 3")]
    Create {
        /// Its name
        name: String,
        /// cache (evicts when full) or ram:K (refuses when full; a write needs K copies)
        #[arg(long, default_value = "ram:1", value_parser = Suggested(&["cache", "ram:1", "ram:2", "ram:3"]))]
        #[arg(hide_possible_values = true)]
        class: String,
        /// Keep names sorted, for listings in order
        #[arg(long)]
        ordered: bool,
        /// Name objects by index, 0 to 2^64 - 1: neighbours lie on different nodes
        #[arg(long, conflicts_with = "ordered")]
        indexed: bool,
        /// Maximum size
        #[arg(long, value_name = "SIZE", value_parser = some_size)]
        quota: Option<u64>,
        /// Copies of each object [default: as the class needs: 1, of ram:2 3]
        #[arg(long, value_name = "K", value_parser = copies)]
        replicas: Option<u8>,
        /// Spread group to lie in, which must keep them so [default: one that does]
        #[arg(long, value_name = "G")]
        spread: Option<u16>,
        #[command(flatten)]
        herd: HerdArgs,
    },
    /// List collections
    #[command(after_help = "Example:\n  herd collection ls --json")]
    Ls(ShowArgs),
    /// Remove a collection with all its objects
    #[command(after_help = "Example:\n  herd collection rm thumbs")]
    Rm {
        /// Its name
        name: String,
        #[command(flatten)]
        herd: HerdArgs,
    },
}

#[derive(ClapArgs)]
#[command(after_help = "Example:\n  herd group ls")]
pub(crate) struct GroupArgs {
    #[command(subcommand)]
    pub(crate) command: GroupCommand,
}

#[derive(Subcommand)]
pub(crate) enum GroupCommand {
    /// List the replica groups
    #[command(after_help = "Examples:\n  herd group ls\n  herd group ls --json")]
    Ls(ShowArgs),
    /// Put a copy of a group on a node, or let it move as it comes again
    #[command(
        after_help = "The node gets a copy; then the member that keeps most above its share, or the one that --from \
names, gives its own away. Objects stay readable and writable. The group stays on that node from then on, also when \
copies are evened out, until the node drains or --cancel lets it move as any other group.

Exit status: 0 done, or it was so already; 1 no such node or group, or it was called off meanwhile; 3 refused.

Examples:
  herd group move 0/3 n4
  herd group move 0/3 n4 --from n2
  herd group move 0/3 --cancel"
    )]
    Move(MoveGroupArgs),
    /// Give up what groups held whose nodes will not come back: they begin anew, empty
    #[command(
        after_help = "Groups that nobody leads wait for the nodes that had their only copies. This gives up those \
whose nodes are gone; without --accept-data-loss it says what would be lost. Who gave up what, and when, is told by \
`herd status` from then on.

Exit status: 0 done, or no group waits; 1 there is no such group; 3 nothing was done, as something would be lost.

Examples:
  herd group recover
  herd group recover 0/7 --accept-data-loss"
    )]
    Recover(RecoverArgs),
}

#[derive(ClapArgs)]
pub(crate) struct MoveGroupArgs {
    /// The group, as `herd group ls` names it
    #[arg(value_name = "SPREAD/GROUP", value_parser = crate::values::group)]
    pub(crate) group: (u16, u16),
    /// The node that is to have a copy
    #[arg(value_name = "NODE", required_unless_present = "cancel")]
    pub(crate) to: Option<String>,
    /// The node whose copy goes
    #[arg(long, value_name = "NODE", requires = "to")]
    pub(crate) from: Option<String>,
    /// Call off what was asked of this group
    #[arg(long, conflicts_with = "to")]
    pub(crate) cancel: bool,
    #[command(flatten)]
    pub(crate) herd: HerdArgs,
}

#[derive(ClapArgs)]
pub(crate) struct RecoverArgs {
    /// The groups of one spread group, or one group, as `herd group ls` names it; else all
    #[arg(value_name = "SPREAD[/GROUP]", value_parser = crate::values::groups, default_value = "")]
    #[arg(hide_default_value = true)]
    pub(crate) groups: (Option<u16>, Option<u16>),
    /// What they held may be lost
    #[arg(long)]
    pub(crate) accept_data_loss: bool,
    #[command(flatten)]
    pub(crate) herd: HerdArgs,
}

#[derive(ClapArgs)]
#[command(after_help = "Example:\n  herd control show")]
pub(crate) struct ControlArgs {
    #[command(subcommand)]
    pub(crate) command: ControlCommand,
}

#[derive(Subcommand)]
pub(crate) enum ControlCommand {
    /// Show where the control store is: its kind, the warden's node, term, revision, and epoch of the map
    #[command(after_help = "Examples:\n  herd control show\n  herd control show --json")]
    Show(ShowArgs),
    /// Move the control store, and the warden with it, to another node
    #[command(
        after_help = "Objects stay readable and writable. The node must be there, and have a directory that it can \
write to. The command returns when the nodes that answer know of it. It may be given again.

Exit status: 0 it is there, 1 there is no such node, 3 the node can't have it, or can't be reached; 4 not known.

Example:
  herd control move n2"
    )]
    Move(MoveArgs),
    /// Move the control store from a node to an etcd, or from an etcd to a node
    #[command(
        after_help = "Objects stay readable and writable. An etcd must have no herd under that name. Nodes may be \
started again as they were before: where the store went stands where it was. HERD_ETCD_FORCE=1 \
accepts an etcd of a version that may answer reads with old data.

Exit status: 0 it is there, 1 there is no such node, 3 it can't go there, or can't be reached; 4 not known.

Examples:
  herd control migrate etcd://e1:2379,e2:2379,e3:2379
  herd control migrate embedded
  herd control migrate embedded --at n2"
    )]
    Migrate(MigrateArgs),
}

#[derive(ClapArgs)]
pub(crate) struct MoveArgs {
    /// Name of the node that is to have it
    #[arg(value_name = "NODE")]
    pub(crate) to: String,
    #[command(flatten)]
    pub(crate) herd: HerdArgs,
}

#[derive(ClapArgs)]
pub(crate) struct MigrateArgs {
    /// 'embedded', or etcd://HOST:PORT[,HOST:PORT..][/NAME]
    #[arg(value_name = "TARGET", value_parser = ControlWords, hide_possible_values = true)]
    pub(crate) target: Control,
    /// Name of the node that is to have it, of 'embedded' [default: the warden's]
    #[arg(long, value_name = "NODE")]
    pub(crate) at: Option<String>,
    #[command(flatten)]
    pub(crate) herd: HerdArgs,
}

#[derive(ClapArgs)]
#[command(after_help = "Example:\n  herd ping --node one:7700,two:7700")]
pub(crate) struct PingArgs {
    #[command(flatten)]
    pub(crate) herd: HerdArgs,
}

#[derive(ClapArgs)]
pub(crate) struct ShowArgs {
    /// As JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) herd: HerdArgs,
}

#[derive(ClapArgs)]
pub(crate) struct DrainArgs {
    /// Name of the node
    #[arg(value_name = "NODE")]
    pub(crate) drained: String,
    /// Call it off: what has moved stays where it is, and the node gets its share again
    #[arg(long)]
    pub(crate) cancel: bool,
    #[command(flatten)]
    pub(crate) herd: HerdArgs,
}

#[derive(ClapArgs)]
pub(crate) struct DetachArgs {
    /// Name of the node
    #[arg(value_name = "NODE")]
    pub(crate) detached: String,
    /// At once: nothing is moved away before
    #[arg(long, required = true)]
    pub(crate) now: bool,
    /// What only this node has may be lost
    #[arg(long)]
    pub(crate) yes: bool,
    #[command(flatten)]
    pub(crate) herd: HerdArgs,
}

#[derive(ClapArgs)]
pub(crate) struct StatusArgs {
    /// Wait, however long it takes, until each node that does not drain serves, and each replica group takes writes and
    /// has all its copies
    #[arg(long)]
    pub(crate) wait: bool,
    #[command(flatten)]
    pub(crate) show: ShowArgs,
}

#[derive(ClapArgs)]
pub(crate) struct TopArgs {
    /// Show one second, and end
    #[arg(long)]
    pub(crate) once: bool,
    /// One JSON object a line
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) herd: HerdArgs,
}

/// Commands that other programs have: what does that here.
pub(crate) const ELSEWHERE: [(&str, &str); 8] = [
    ("remove", "a node leaves by `herd drain` or `herd detach`, an object is removed by `herd rm`"),
    ("leave", LEAVES),
    ("stop", ENDS),
    ("restart", AGAIN),
    ("upgrade", AGAIN),
    ("add", "a node is added by `herd node --join HOST:PORT`, an object by `herd put`"),
    ("join", "a node is added by `herd node --join HOST:PORT`"),
    ("start", "a node is started by `herd node`, a herd on this machine by `herd up`"),
];
const LEAVES: &str = "a node leaves by `herd drain`, or by `herd detach` if it is gone";
const ENDS: &str = "a node is ended by SIGTERM (kill PID), a herd of `herd up` by `herd down`";
const AGAIN: &str = "nodes are ended (kill PID) and started again one after the other, with `herd status --wait` in \
                     between: see docs/guide/herd.md";

/// The words of the command line. Options of every command may also stand before its name: they are moved behind it.
pub(crate) fn words() -> Vec<OsString> {
    reorder(std::env::args_os().collect())
}

fn reorder(mut words: Vec<OsString>) -> Vec<OsString> {
    const EVERYWHERE: [&str; 2] = ["--node", "--timeout"];
    let mut moved = Vec::new();
    while let Some(word) = words.get(1).map(|word| word.to_string_lossy().into_owned()) {
        let count = match word.split_once('=') {
            Some((name, _)) if EVERYWHERE.contains(&name) => 1,
            None if EVERYWHERE.contains(&word.as_str()) && words.len() > 2 => 2,
            _ => break,
        };
        moved.extend(words.drain(1..1 + count));
    }
    let verb_words = if words.get(1).is_some_and(|verb| verb == "collection" || verb == "group") { 2 } else { 1 };
    let at = words.len().min(1 + verb_words);
    words.splice(at..at, moved);
    words
}

/// How many of the last words stand behind `--`: each is a value as it is written.
pub(crate) fn literals(words: &[OsString]) -> usize {
    words.iter().position(|word| word == "--").map_or(0, |at| words.len() - at - 1)
}

/// Commands and options that are planned and not in this version: said, not guessed.
pub(crate) fn not_in_version(words: &[OsString]) -> Option<Failure> {
    const COMMANDS: [&str; 11] =
        ["bench", "volume", "mount", "umount", "share", "site", "segment", "web", "backup", "restore", "ca"];
    const NODE_OPTIONS: [&str; 4] = ["--dial-ports", "--site", "--tier", "--config"];
    let words: Vec<_> = words.iter().skip(1).map(|word| word.to_string_lossy()).collect();
    let words: Vec<&str> = words.iter().map(|word| &**word).take_while(|word| *word != "--").collect();
    let find = |options: &[&str]| {
        let is_one = |word: &&&str| options.contains(&word.split('=').next().unwrap_or(""));
        words.iter().find(is_one).map(|word| word.to_string())
    };
    let what = match words[..] {
        [command, ..] if COMMANDS.contains(&command) => command.to_string(),
        ["group", command, ..] if ["create", "set"].contains(&command) => format!("group {command}"),
        ["node", ..] => {
            let socket = words.iter().any(|word| word.trim_start_matches("--listen=").starts_with("unix:"));
            let option = if socket { Some("--listen unix:".into()) } else { find(&NODE_OPTIONS) };
            format!("node {}", option?)
        }
        ["collection", "create", ..] => {
            format!("collection create {}", find(&["--home"])?)
        }
        _ => return None,
    };
    Some(Failure::new(USAGE, format!("'{what}' is not in this version; `herd --help` lists what is")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;

    #[test]
    fn what_is_planned_is_said_to_be_so() {
        let told = |line: &str| not_in_version(&line.split(' ').map(OsString::from).collect::<Vec<_>>()).is_some();
        for line in [
            "herd group set",
            "herd backup",
            "herd node --site a",
            "herd node --config=herd.toml",
            "herd node --listen unix:/run/herd",
            "herd node --listen=unix:/x",
            "herd collection create c --home a",
        ] {
            assert!(told(line), "{line}");
        }
        for line in [
            "herd",
            "herd ls",
            "herd status --wait",
            "herd put a --wait",
            "herd lock l -- herd drain",
            "herd node --listen :0",
        ] {
            assert!(!told(line), "{line}");
        }
    }

    #[test]
    fn options_before_the_verb_mean_the_same_as_behind_it() {
        for (line, want) in [
            ("herd ls x", "herd ls x"),
            ("herd --node a:1 ls x", "herd ls --node a:1 x"),
            ("herd --timeout=1s --node a:1 get -- k", "herd get --timeout=1s --node a:1 -- k"),
            ("herd --node a:1 collection ls", "herd collection ls --node a:1"),
            ("herd --node", "herd --node"),
            ("herd --node a:1", "herd --node a:1"),
            ("herd", "herd"),
        ] {
            let words = reorder(line.split(' ').map(OsString::from).collect());
            assert_eq!(words.join(OsStr::new(" ")), want, "{line}");
        }
    }
}
