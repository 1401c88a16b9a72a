//! Every command of docs/guide and of README's tour is run against a real node, and what it prints is compared.
//!
//! A page holds commands in fenced blocks only, and each page has a node and a directory of its own:
//! * `console`: lines `$ command`, each with what it prints on both streams below it, then `[exit N]` where N is not 0.
//!   A line `...` stands for any lines, `{..}` for any text within a line.
//! * `python`: a script; what it prints is in the `text` block behind it.
//! * `sh`: what can't be run so. A line `herd node OPTIONS` starts a node with these options, the first one that of the
//!   page; any other line must be in [`ELSEWHERE`].

use crate::node::{Node, herd};
use herd_core::ErrorKind;
use herd_core::door::http::Status;
use herd_core::door::memcached::refusal;
use herd_core::wire::{Header, Kind};
use std::fs::{self, File};
use std::io::{Read, Seek, Write};
use std::net::TcpListener;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

const PAGES: [&str; 8] = [
    "README.md",
    "docs/guide/README.md",
    "docs/guide/command-line.md",
    "docs/guide/curl.md",
    "docs/guide/errors.md",
    "docs/guide/herd.md",
    "docs/guide/python.md",
    "docs/guide/sizing.md",
];

/// The page that starts its nodes by itself.
const HERD: &str = "docs/guide/herd.md";

/// Lines of `sh` blocks, each with what runs it instead.
const ELSEWHERE: [(&str, &str); 9] = [
    ("make run", "the tour, in xtask/src/tests_all.rs"),
    ("make test", "continuous integration"),
    ("export PATH=\"$PWD/target/release:$PATH\"", "fn check, with the program under test"),
    ("make install PREFIX=/usr/local", "the step install, in xtask/src/tests_all.rs"),
    ("python3 -m venv venv", "fn make_venv"),
    ("venv/bin/pip install -r docs/guide/requirements.txt", "fn make_venv"),
    ("venv/bin/python script.py", "fn run_script"),
    ("herd control migrate etcd://10.0.0.1:2379,10.0.0.2:2379,10.0.0.3:2379", "control.rs"),
    ("herd control migrate embedded", "control.rs"),
];

/// First words that make of a text in backquotes a command, which must then stand in a block too.
const COMMANDS: [&str; 6] = ["herd ", "curl ", "make ", "pip ", "python3 ", "venv/bin/"];

/// The port that pages write; their own node's is put in its place.
const PORT: &str = "7700";
/// Memory of the node of a page that does not say.
const MEMORY: &str = "256m";
/// Longest time of one command.
const LIMIT: Duration = Duration::from_secs(20);
/// Longest time of each of the two steps that make the Python environment.
const VENV_LIMIT: Duration = Duration::from_secs(120);

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// A fenced block: its language, the number of its first line, its lines.
struct Block {
    language: String,
    line: usize,
    lines: Vec<String>,
}

/// The blocks of a page, and the lines outside them with their numbers.
fn parse(page: &str, text: &str) -> (Vec<Block>, Vec<(usize, String)>) {
    let (mut blocks, mut prose, mut open): (Vec<Block>, Vec<_>, bool) = (Vec::new(), Vec::new(), false);
    for (number, line) in (1..).zip(text.lines()) {
        match (open, line.strip_prefix("```")) {
            (true, Some("")) => open = false,
            (true, _) => blocks.last_mut().expect("one is open").lines.push(line.into()),
            (false, Some(language)) => {
                blocks.push(Block { language: language.into(), line: number + 1, lines: Vec::new() });
                open = true;
            }
            (false, None) => prose.push((number, line.to_string())),
        }
    }
    assert!(!open, "{page}: a block has no end");
    (blocks, prose)
}

/// A command of a console block and what it should give.
struct Step {
    line: usize,
    command: String,
    want: Vec<String>,
    exit: i32,
}

fn steps(page: &str, block: &Block) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    for (line, text) in (block.line..).zip(&block.lines) {
        if let Some(command) = text.strip_prefix("$ ") {
            steps.push(Step { line, command: command.into(), want: Vec::new(), exit: 0 });
            continue;
        }
        let step = steps.last_mut().unwrap_or_else(|| panic!("{page}:{line}: output before any command"));
        assert!(step.exit == 0, "{page}:{line}: something follows [exit N]");
        match text.strip_prefix("[exit ").and_then(|rest| rest.strip_suffix(']')) {
            Some(number) => step.exit = number.parse().unwrap_or_else(|_| panic!("{page}:{line}: {text}")),
            None => step.want.push(text.clone()),
        }
    }
    steps
}

fn lines_match(want: &[&str], got: &[&str]) -> bool {
    match want.split_first() {
        None => got.is_empty(),
        Some((&"...", rest)) => (0..=got.len()).any(|n| lines_match(rest, &got[n..])),
        Some((line, rest)) => got.first().is_some_and(|g| line_matches(line, g)) && lines_match(rest, &got[1..]),
    }
}

fn line_matches(want: &str, got: &str) -> bool {
    let Some((before, after)) = want.split_once("{..}") else {
        return want == got;
    };
    let ends =
        |rest: &str| (1..=rest.len()).filter(|n| rest.is_char_boundary(*n)).any(|n| line_matches(after, &rest[n..]));
    got.strip_prefix(before).is_some_and(ends)
}

/// The node and directory of a page, and what was found wrong.
struct Run<'a> {
    page: &'a str,
    /// Where the page's first node is.
    port: u16,
    /// That node, unless the page starts its own.
    node: Option<Node>,
    dir: tempfile::TempDir,
    faults: Vec<String>,
}

impl Run<'_> {
    /// `text` with the node's port. A page that starts a herd has the ports behind it too.
    fn here(&self, text: &str) -> String {
        // By way of marks, as the digits of one port may be part of another one: 7700 is in 27700.
        let mark = |n: u8| char::from(1 + n).to_string();
        // Other machines, where a page has some, are ports of this one.
        let text = (1..4).fold(text.to_owned(), |text, n| {
            text.replace(&format!("10.0.0.{n}:{PORT}"), &format!("127.0.0.1:{}", mark(n - 1)))
        });
        let text = text.replace(PORT, &mark(0));
        let behind = if self.node.is_some() { 0..0 } else { 1..4 };
        let text = behind.fold(text, |text, n| text.replace(&format!("770{n}"), &mark(n)));
        (0..4).fold(text, |text, n| text.replace(&mark(n), &(self.port + u16::from(n)).to_string()))
    }

    /// Runs `program` in the page's directory and compares.
    fn check(&mut self, line: usize, what: &str, mut program: Command, want: &[String], exit: i32) {
        let bin = Path::new(env!("CARGO_BIN_EXE_herd")).parent().expect("it lies in a directory");
        let path = std::env::var("PATH").unwrap_or_default();
        program.current_dir(self.dir.path()).env("PATH", format!("{}:{path}", bin.display()));
        program
            .env("HERD_NODE", format!("127.0.0.1:{}", self.port))
            .env_remove("XDG_STATE_HOME")
            .env("HOME", self.dir.path())
            .env("LC_ALL", "C");
        program.env("NO_PROXY", "127.0.0.1").env("no_proxy", "127.0.0.1");
        let (code, got) = finish(program, LIMIT).unwrap_or_else(|text| (-1, text));
        let want: Vec<String> = want.iter().map(|line| self.here(line)).collect();
        let lines: Vec<&str> = want.iter().map(String::as_str).collect();
        if code != exit || !lines_match(&lines, &got.lines().collect::<Vec<_>>()) {
            let (place, want) = (format!("{}:{line}: {what}", self.page), want.join("\n"));
            self.faults.push(format!("{place}\n--- wanted, [exit {exit}]\n{want}\n--- got, [exit {code}]\n{got}"));
        }
    }

    fn console(&mut self, block: &Block) {
        for step in steps(self.page, block) {
            let mut program = Command::new("sh");
            let up = format!("herd up --port {}", self.port);
            program.args(["-c", &self.here(&step.command).replace("herd up", &up)]);
            self.check(step.line, &step.command, program, &step.want, step.exit);
        }
    }

    fn run_script(&mut self, python: &Path, block: &Block, want: &[String]) {
        fs::write(self.dir.path().join("script.py"), self.here(&block.lines.join("\n"))).expect("written");
        let mut program = Command::new(python);
        program.arg("script.py");
        self.check(block.line, "script", program, want, 0);
    }
}

/// Runs a command to its end; its exit status (128 + N for signal N) and what it wrote on both streams.
fn finish(mut command: Command, limit: Duration) -> Result<(i32, String), String> {
    let mut output = tempfile::tempfile().expect("temporary file");
    let stream = || Stdio::from(output.try_clone().expect("a file can be shared"));
    command.stdin(Stdio::null()).stdout(stream()).stderr(stream()).process_group(0);
    let mut child = command.spawn().map_err(|error| format!("{command:?}: {error}"))?;
    let begin = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().expect("it can be waited for") {
            break status;
        }
        if begin.elapsed() > limit {
            Command::new("kill").args(["-KILL", "--", &format!("-{}", child.id())]).status().expect("kill runs");
            child.wait().expect("it ends");
            return Err(format!("{command:?}: not done after {} s", limit.as_secs()));
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let mut bytes = Vec::new();
    output.rewind().and_then(|()| output.read_to_end(&mut bytes)).expect("readable");
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    Ok((code, String::from_utf8_lossy(&bytes).into_owned()))
}

/// Options of a line `herd node ...` without those that say where to listen, which a test does.
fn node_options(line: &str) -> Option<Vec<&str>> {
    let mut words = line.strip_prefix("herd node")?.split_whitespace();
    let mut options = Vec::new();
    while let Some(word) = words.next() {
        match word {
            "--listen" => drop(words.next()),
            _ => options.push(word),
        }
    }
    Some(options)
}

/// The node of a page: as its first line `herd node` says. Further such lines only have to start one.
fn start_node(blocks: &[Block]) -> Node {
    let lines = blocks.iter().filter(|block| block.language == "sh").flat_map(|block| &block.lines);
    let mut nodes = lines.filter_map(|line| node_options(line)).map(|options| Node::start(&options));
    let first = nodes.next().unwrap_or_else(|| Node::start(&["--memory", MEMORY]));
    nodes.for_each(|node| assert_eq!(node.stop(), Some(0)));
    first
}

/// A port that is free, as the three behind it are.
fn free_ports() -> u16 {
    let free = |port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok();
    // Below those that the system gives out by itself.
    (0..100)
        .map(|n| 20_000 + (std::process::id() as u16 % 100) * 100 + 4 * (n % 25))
        .find(|base| (0..4).all(|n| free(base + n)))
        .expect("four free ports")
}

fn run_page(page: &str) {
    let (blocks, _) = parse(page, &read(page));
    let dir = tempfile::tempdir().expect("temporary directory");
    let node = (page != HERD).then(|| start_node(&blocks));
    let port = |node: &Node| node.addr.rsplit(':').next().and_then(|port| port.parse().ok()).expect("a port");
    let port = node.as_ref().map_or_else(free_ports, port);
    let mut run = Run { page, port, node, dir, faults: Vec::new() };
    for (at, block) in blocks.iter().enumerate() {
        match block.language.as_str() {
            "console" => run.console(block),
            "python" => {
                let text = blocks.get(at + 1).filter(|next| next.language == "text");
                if let Some(python) = python() {
                    run.run_script(python, block, text.map_or(&[], |text| &text.lines));
                }
            }
            "text" => assert!(at > 0 && blocks[at - 1].language == "python", "{page}:{}: whose output?", block.line),
            "sh" => {}
            other => panic!("{page}:{}: a block of language '{other}'", block.line),
        }
    }
    let Run { faults, dir, .. } = &run;
    assert!(faults.is_empty(), "faults: {}\n\n{}\n{}", faults.len(), faults.join("\n"), logs(dir.path()));
}

/// What the nodes of a page have logged.
fn logs(dir: &Path) -> String {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    let of = |path: PathBuf| match path.extension() {
        _ if path.is_dir() => logs(&path),
        Some(extension) if extension == "log" => {
            let bytes = fs::read(&path).unwrap_or_default();
            format!("--- {}\n{}", path.display(), String::from_utf8_lossy(&bytes))
        }
        _ => String::new(),
    };
    entries.map(of).collect()
}

/// The interpreter of an environment with docs/guide/requirements.txt; `None` where it can't be had, which is told
/// once, and is a failure in continuous integration.
fn python() -> Option<&'static Path> {
    static PYTHON: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let made = PYTHON.get_or_init(|| make_venv().inspect_err(|text| tell_skipped(text)));
    let in_ci = std::env::var_os("CI").is_some_and(|ci| ci == "true");
    assert!(made.is_ok() || !in_ci, "Python for the guide: {made:?}");
    made.as_deref().ok()
}

/// Not by a macro, whose output the test harness keeps to itself.
fn tell_skipped(text: &str) {
    let told = writeln!(std::io::stdout(), "\nSKIPPED the Python blocks of the guide: {}", text.replace('\n', " "));
    told.expect("stdout takes it");
}

/// Makes the environment, or finds the one an earlier run made of the same requirements.
fn make_venv() -> Result<PathBuf, String> {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("guide-venv");
    let (stamp, python, wanted) = (dir.join("made-of"), dir.join("bin/python"), read("docs/guide/requirements.txt"));
    let lock = File::create(dir.with_extension("lock")).map_err(|error| error.to_string())?;
    lock.lock().map_err(|error| error.to_string())?;
    if fs::read_to_string(&stamp).is_ok_and(|made_of| made_of == wanted) && python.exists() {
        return Ok(python);
    }
    let mut venv = Command::new("python3");
    venv.args(["-m", "venv", "--clear"]).arg(&dir);
    succeed(venv)?;
    let mut pip = Command::new(&python);
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r"]);
    pip.arg(root().join("docs/guide/requirements.txt"));
    succeed(pip)?;
    fs::write(stamp, wanted).map_err(|error| error.to_string())?;
    Ok(python)
}

fn succeed(command: Command) -> Result<(), String> {
    let what = format!("{command:?}");
    match finish(command, VENV_LIMIT)? {
        (0, _) => Ok(()),
        (code, text) => Err(format!("{what}: exit {code}: {}", text.trim())),
    }
}

#[test]
fn the_tour_of_the_readme_is_true() {
    run_page("README.md");
}

#[test]
fn the_page_on_the_command_line_is_true() {
    run_page("docs/guide/command-line.md");
}

#[test]
fn the_page_on_curl_is_true() {
    run_page("docs/guide/curl.md");
}

#[test]
fn the_page_on_errors_is_true() {
    run_page("docs/guide/errors.md");
}

#[test]
fn a_port_with_the_digits_of_the_pages_is_put_in_once() {
    let (dir, faults) = (tempfile::tempdir().expect("temporary directory"), Vec::new());
    let run = Run { page: HERD, port: 27_700, node: None, dir, faults };
    let text = "7700 7701 7703 10.0.0.1:7700 10.0.0.2:7700";
    assert_eq!(run.here(text), "27700 27701 27703 127.0.0.1:27700 127.0.0.1:27701");
}

#[test]
fn the_page_on_a_herd_of_three_is_true() {
    run_page(HERD);
}

#[test]
fn the_page_on_python_is_true() {
    run_page("docs/guide/python.md");
}

#[test]
fn the_page_on_sizing_is_true() {
    run_page("docs/guide/sizing.md");
}

/// No page, no `sh` line, no indented block and no command within a sentence escapes the tests above.
#[test]
fn no_command_is_left_out() {
    let mut there: Vec<String> = fs::read_dir(root().join("docs/guide"))
        .expect("the guide is there")
        .map(|entry| format!("docs/guide/{}", entry.expect("readable").file_name().to_string_lossy()))
        // The page on pretend clusters needs the lab, whose own test runs it: lab/tests/lab/measured.rs.
        .filter(|name| name.ends_with(".md") && name != "docs/guide/lab.md")
        .collect();
    there.sort();
    assert_eq!(there, PAGES[1..], "a page that is not in PAGES is not run");
    let pages: Vec<_> = PAGES.iter().map(|page| (*page, parse(page, &read(page)))).collect();
    let mut known: Vec<String> = ELSEWHERE.iter().map(|(line, _)| line.to_string()).collect();
    for (page, (blocks, _)) in &pages {
        for block in blocks.iter().filter(|block| block.language == "console") {
            known.extend(steps(page, block).into_iter().map(|step| step.command));
        }
        for line in blocks.iter().filter(|block| block.language == "sh").flat_map(|block| &block.lines) {
            let starts_a_node = node_options(line).is_some();
            assert!(starts_a_node || ELSEWHERE.iter().any(|(l, _)| l == line), "{page}: nothing runs '{line}'");
            known.push(line.clone());
        }
    }
    for (page, (_, prose)) in &pages {
        check_prose(page, prose, &known);
        check_links(page, prose);
    }
}

/// A command in backquotes must be the beginning of one that is run.
fn check_prose(page: &str, prose: &[(usize, String)], known: &[String]) {
    let begins =
        |command: &str, span: &str| command.strip_prefix(span).is_some_and(|r| r.is_empty() || r.starts_with(' '));
    for (number, line) in prose {
        let is_block = line.starts_with("    ") || line.starts_with('\t');
        assert!(!is_block && !line.contains("```") && !line.contains("~~~"), "{page}:{number}: use a fence");
        for span in line.split('`').skip(1).step_by(2) {
            let is_command = COMMANDS.iter().any(|word| span.starts_with(word));
            let is_run = known.iter().any(|command| begins(command, span));
            assert!(!is_command || is_run, "{page}:{number}: nothing runs '{span}'");
        }
    }
}

fn check_links(page: &str, prose: &[(usize, String)]) {
    let dir = root().join(page).parent().expect("a page lies in a directory").to_path_buf();
    for (number, line) in prose {
        for link in line.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let is_elsewhere = link.starts_with("https://");
            assert!(is_elsewhere || dir.join(link).exists(), "{page}:{number}: {link} is not there");
        }
    }
}

#[test]
fn the_matcher_is_strict() {
    let matches =
        |want: &str, got: &str| lines_match(&want.lines().collect::<Vec<_>>(), &got.lines().collect::<Vec<_>>());
    for (want, got) in
        [("", ""), ("a\n...", "a"), ("...\nb", "a\n\nb"), ("v {..} x {..}", "v 1 x 2"), ("a\n...\nb", "a\nb")]
    {
        assert!(matches(want, got), "{want:?} is {got:?}");
    }
    for (want, got) in
        [("", "a"), ("a", ""), ("a", "a "), ("a\nb", "a"), ("a", "a\nb"), ("v {..}", "v "), ("{..}b", "b")]
    {
        assert!(!matches(want, got), "{want:?} is not {got:?}");
    }
    for (want, got) in [("...\nb", "a"), ("a ...", "a b"), ("v {..} x", "v 1 y"), ("a\n...\nb", "a\nb\nc")] {
        assert!(!matches(want, got), "{want:?} is not {got:?}");
    }
}

/// Texts in double quotes of a source file, as far as its tests.
fn literals(source: &str) -> Vec<&str> {
    let code = source.split("#[cfg(test)]").next().expect("a first part");
    code.lines().filter_map(|line| line.split('"').nth(1)).map(|text| text.trim_end_matches("\\r\\n")).collect()
}

#[test]
fn every_error_has_its_line() {
    let page = read("docs/guide/errors.md");
    let row = |start: &str| assert!(page.lines().any(|line| line.starts_with(start)), "errors.md: no line {start}");
    for kind in ErrorKind::ALL {
        let reply = String::from_utf8_lossy(refusal(kind));
        row(&format!("| `{}` | {} | `{}` |", kind.name(), Status::of(kind).code(), reply.trim_end()));
    }
    let source = include_str!("../../../herd-core/src/error.rs");
    let body = source.split("pub enum ErrorKind {").nth(1).and_then(|rest| rest.split("\n}").next()).expect("the enum");
    let variants = body.lines().filter(|line| line.ends_with(',')).count();
    assert_eq!(variants, ErrorKind::ALL.len(), "ErrorKind::ALL has all kinds");
    let replies = literals(include_str!("../../../herd-core/src/door/memcached/reply.rs"));
    let errors = |text: &&&str| text.starts_with("CLIENT_ERROR") || text.starts_with("SERVER_ERROR");
    assert!(replies.iter().filter(errors).count() > 20, "the replies are found");
    replies.iter().filter(errors).for_each(|text| row(&format!("| `{text}` |")));
    let statuses = literals(include_str!("../../../herd-core/src/door/http/status.rs"));
    let lines: Vec<&&str> = statuses.iter().filter(|text| text.starts_with("HTTP/1.1 ")).collect();
    let is_word = |text: &&&str| text.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
    let words: Vec<&&str> = statuses.iter().filter(is_word).collect();
    assert!(lines.len() > 20 && words.len() > 8, "the statuses are found");
    lines.iter().filter(|line| line.as_bytes()[9] >= b'4').for_each(|line| row(&format!("| {} |", &line[9..12])));
    words.iter().for_each(|word| assert!(page.contains(&format!("`{word}`")), "errors.md: no `{word}`"));
}

/// Exit 4 of errors.md: a write was sent and no answer came. A read that is not answered is exit 3.
#[test]
fn an_unknown_outcome_is_exit_4() {
    let silent = TcpListener::bind("127.0.0.1:0").expect("a free port");
    // One that says who it is, and no more.
    let polite = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let addr = |of: &TcpListener| of.local_addr().expect("it has an address").to_string();
    let addrs = [&silent, &polite].map(addr);
    std::thread::spawn(move || {
        let sockets = polite.incoming().map(|socket| {
            let mut socket = socket.expect("accepted");
            socket.write_all(&Header::new(Kind::Welcome).encode()).expect("it listens");
            socket
        });
        sockets.collect::<Vec<_>>()
    });
    let ask = |verb: &[&str], addr: &str| {
        let mut command = herd();
        command.args(verb).args(["--timeout", "0.5", "--node", addr]);
        finish(command, LIMIT).expect("it ends")
    };
    let unknown = "the outcome is unknown: it may have been done";
    let [silent, polite] = &addrs;
    let late = format!("no answer in time from {polite}");
    assert_eq!(ask(&["put", "x", "/dev/null"], polite), (4, format!("herd: put default/x: {late}; {unknown}\n")));
    assert_eq!(ask(&["get", "x"], polite), (3, format!("herd: get default/x: {late}\n")));
    let silence = format!("no answer in time from {silent}: it took the connection and said nothing");
    for verb in [&["put", "x", "/dev/null"][..], &["get", "x"]] {
        assert_eq!(ask(verb, silent), (3, format!("herd: {} default/x: {silence}\n", verb[0])));
    }
}
