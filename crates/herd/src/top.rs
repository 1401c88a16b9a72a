//! What each node does, second by second: differences between two readings of its `/metrics`.

use crate::args::TopArgs;
use crate::exit::{Failure, Outcome};
use crate::objects::client;
use crate::view::client_of_node;
use crate::{out, target};
use herd_client::blocking::Client;
use herd_core::size;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::{Duration, Instant};

/// Between two readings.
const STEP: Duration = Duration::from_secs(1);
/// How long a node is waited for.
const PATIENCE: Duration = Duration::from_millis(900);
/// What is counted from a node's start, and shown for each second: its field, and the metric that is summed up.
const RATES: [(&str, &str); 5] = [
    ("requests_s", "herd_requests_total"),
    ("hits_s", "herd_hits_total"),
    ("in_bytes_s", "herd_network_read_bytes_total"),
    ("out_bytes_s", "herd_network_written_bytes_total"),
    ("handed_on_s", "herd_handed_on_total"),
];
/// What is so now.
const LEVELS: [(&str, &str); 4] = [
    ("objects", "herd_objects"),
    ("memory_used_bytes", "herd_memory_used_bytes"),
    ("links", "herd_links"),
    ("led", "herd_groups_led"),
];

/// What a node told, once.
#[derive(Clone, Debug)]
struct Reading {
    at: Instant,
    rates: [f64; RATES.len()],
    levels: [f64; LEVELS.len()],
    /// The longest turn of any loop in the last minute or two, ms.
    longest_ms: f64,
}

/// A line: a node, or all of them together.
struct Line {
    name: String,
    /// `None`: it does not answer, or did not a second ago.
    shown: Option<Shown>,
}

#[derive(Clone, Copy, Default)]
struct Shown {
    rates: [f64; RATES.len()],
    levels: [f64; LEVELS.len()],
    longest_ms: f64,
}

/// Who is asked under a name. Another one has it where a node was detached and came again, or a new herd was started.
#[derive(PartialEq)]
struct Asked {
    herd: Value,
    id: Value,
    addr: String,
    is_alone: bool,
}

/// The nodes, by name, with what they told the last time.
#[derive(Default)]
struct Top {
    clients: BTreeMap<String, (Asked, Client)>,
    last: BTreeMap<String, Reading>,
}

pub(crate) fn run(args: &TopArgs) -> Outcome {
    target::prepare("").map_err(Failure::local("signals"))?;
    let asked = client(&args.herd)?;
    let (mut top, mut drawn) = (Top::default(), 0);
    top.find(&asked.status()?, &asked);
    top.read();
    loop {
        std::thread::sleep(STEP);
        let lines = top.read();
        let text = if args.json { json_of(&lines) } else { text_of(&lines) };
        let in_place = drawn > 0 && !args.json && out::is_terminal();
        let back = if in_place { format!("\x1b[{drawn}A\x1b[J") } else { String::new() };
        out::print(back + &text)?;
        drawn = text.lines().count();
        if args.once {
            return Ok(());
        }
        // Who came and went; what is not told is as it was.
        if let Ok(status) = asked.status() {
            top.find(&status, &asked);
        }
    }
}

impl Top {
    /// Goes over to the nodes that the herd has now.
    fn find(&mut self, status: &Value, asked: &Client) {
        let nodes = status["nodes"].as_array().cloned().unwrap_or_default();
        let is_alone = nodes.len() == 1;
        let mut clients = BTreeMap::new();
        for node in nodes.iter().filter(|node| node["state"] != "down") {
            let field = |field: &str| node[field].as_str().unwrap_or_default().to_owned();
            let who = Asked { herd: status["herd_id"].clone(), id: node["id"].clone(), addr: field("addr"), is_alone };
            let known =
                self.clients.remove(&field("name")).filter(|(known, _)| *known == who).map(|(_, client)| client);
            let made = known
                .or_else(|| if is_alone { Some(asked.clone()) } else { client_of_node(status, node, PATIENCE).ok() });
            clients.extend(made.map(|client| (field("name"), (who, client))));
        }
        self.clients = clients;
    }

    /// Asks all nodes at once: what each has done since it was asked the last time, and the sum.
    fn read(&mut self) -> Vec<Line> {
        let readings: Vec<(String, Option<Reading>)> = std::thread::scope(|scope| {
            let ask = |(name, (_, client)): (&String, &(Asked, Client))| {
                let (name, client) = (name.clone(), client.clone());
                scope.spawn(move || (name, client.metrics().ok().map(|text| Reading::of(&text, Instant::now()))))
            };
            let asking: Vec<_> = self.clients.iter().map(ask).collect();
            asking.into_iter().filter_map(|thread| thread.join().ok()).collect()
        });
        let mut lines = Vec::new();
        for (name, reading) in &readings {
            let before = self.last.get(name);
            let shown = before.zip(reading.as_ref()).and_then(|(before, now)| now.since(before));
            lines.push(Line { name: name.clone(), shown });
        }
        self.last = readings.into_iter().filter_map(|(name, reading)| Some((name, reading?))).collect();
        let all = lines.iter().filter_map(|line| line.shown).fold(Shown::default(), Shown::and);
        lines.push(Line { name: "herd".into(), shown: Some(all) });
        lines
    }
}

impl Reading {
    fn of(metrics: &str, at: Instant) -> Self {
        let values = |name: &str| {
            // What other nodes handed on is counted where it was asked.
            let asked = |rest: &String| !rest.starts_with("{door=\"node\"");
            let named = metrics.lines().filter_map(move |line| line.strip_prefix(name).map(str::to_owned));
            // Behind the name stand the labels or the value: else it is another metric's.
            let its = named.filter(|rest| rest.starts_with(['{', ' '])).filter(asked);
            its.filter_map(|rest| rest.rsplit(' ').next()?.parse::<f64>().ok()).collect::<Vec<_>>()
        };
        // The sum of nothing is -0.0.
        let sum = |(_, name): (&str, &str)| values(name).iter().fold(0.0, |all, value| all + value);
        let longest_s = values("herd_loop_longest_turn_seconds").into_iter().fold(0.0, f64::max);
        Self { at, rates: RATES.map(sum), levels: LEVELS.map(sum), longest_ms: longest_s * 1e3 }
    }

    /// What went on since an earlier reading; `None`: the node has begun anew meanwhile.
    fn since(&self, before: &Reading) -> Option<Shown> {
        let seconds = self.at.duration_since(before.at).as_secs_f64().max(1e-3);
        let mut rates = [0.0; RATES.len()];
        for (rate, (now, then)) in rates.iter_mut().zip(self.rates.iter().zip(before.rates)) {
            if *now < then {
                return None;
            }
            *rate = (now - then) / seconds;
        }
        Some(Shown { rates, levels: self.levels, longest_ms: self.longest_ms })
    }
}

impl Shown {
    /// Two nodes together: the longest turn is that of either.
    fn and(mut self, other: Self) -> Self {
        self.rates.iter_mut().zip(other.rates).for_each(|(sum, rate)| *sum += rate);
        self.levels.iter_mut().zip(other.levels).for_each(|(sum, level)| *sum += level);
        self.longest_ms = self.longest_ms.max(other.longest_ms);
        self
    }
}

fn text_of(lines: &[Line]) -> String {
    let row = |cells: [&str; 11]| {
        let [name, requests, hits, came, went, handed, objects, memory, longest, links, led] = cells;
        format!(
            "{name:<16} {requests:>9} {hits:>9} {came:>10} {went:>10} {handed:>9} {objects:>10} {memory:>10} \
             {longest:>8} {links:>5} {led:>5}\n"
        )
    };
    let mut text =
        row(["NODE", "REQ/S", "HITS/S", "IN/S", "OUT/S", "HANDED/S", "OBJECTS", "MEMORY", "TURN", "LINKS", "LEADS"]);
    for line in lines {
        let name = out::shown(line.name.as_bytes());
        let Some(Shown { rates, levels, longest_ms }) = line.shown else {
            writeln!(text, "{name:<16} does not answer, or has just begun").expect("a string takes all");
            continue;
        };
        let [requests, hits, handed] = [rates[0], rates[1], rates[4]].map(|rate| format!("{rate:.0}"));
        let [came, went, memory] = [rates[2], rates[3], levels[1]].map(|bytes| size::show(bytes as u64));
        let [objects, links, led] = [levels[0], levels[2], levels[3]].map(|level| format!("{level:.0}"));
        let longest = format!("{longest_ms:.1} ms");
        text += &row([&name, &requests, &hits, &came, &went, &handed, &objects, &memory, &longest, &links, &led]);
    }
    text
}

/// One object a line.
fn json_of(lines: &[Line]) -> String {
    let last = lines.len().saturating_sub(1);
    let object = |(at, line): (usize, &Line)| {
        let mut object = json!({"node": line.name, "answers": line.shown.is_some()});
        if at == last {
            object = json!({"herd": true});
        }
        if let Some(shown) = line.shown {
            let tenths = |value: f64| (value * 10.0).round() / 10.0;
            RATES.iter().zip(shown.rates).for_each(|((field, _), rate)| object[*field] = tenths(rate).into());
            LEVELS.iter().zip(shown.levels).for_each(|((field, _), level)| object[*field] = (level as u64).into());
            object["longest_turn_ms"] = shown.longest_ms.into();
        }
        format!("{object}\n")
    };
    lines.iter().enumerate().map(object).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const METRICS: &str = "# HELP herd_requests_total Requests\nherd_requests_total{door=\"http\",verb=\"get\"} 40\n\
        herd_requests_total{door=\"wire\",verb=\"put\"} 2\n\
        herd_requests_total{door=\"node\",verb=\"put\"} 5\nherd_objects{collection=\"default\"} 7\n\
        herd_objects_other 9\nherd_links{peer=\"b\"} 2\nherd_links{peer=\"c\"} 1\n\
        herd_loop_longest_turn_seconds{loop=\"0\"} 0.001\nherd_loop_longest_turn_seconds{loop=\"1\"} 0.25\n";

    #[test]
    fn rates_are_the_difference_of_two_readings() {
        let at = Instant::now();
        let first = Reading::of(METRICS, at);
        let later = METRICS.replace("} 40", "} 140").replace("} 5", "} 50").replace("\"default\"} 7", "\"default\"} 8");
        let second = Reading::of(&later, at + Duration::from_secs(2));
        let shown = second.since(&first).expect("it went on");
        assert_eq!((shown.rates[0], shown.levels, shown.longest_ms), (50.0, [8.0, 0.0, 3.0, 0.0], 250.0));
        assert!(first.since(&second).is_none(), "counters that fall are those of another life");
        let both = shown.and(shown);
        assert_eq!((both.rates[0], both.levels[0], both.longest_ms), (100.0, 16.0, 250.0));
    }

    #[test]
    fn a_node_that_is_silent_has_its_line() {
        let shown = Some(Shown { rates: [10.0; RATES.len()], levels: [3.0; LEVELS.len()], longest_ms: 0.5 });
        let lines = ["a", "b\x1b", "herd"].map(|name| Line { name: name.into(), shown });
        let lines = lines.map(|line| if line.name.starts_with('b') { Line { shown: None, ..line } } else { line });
        let text = text_of(&lines);
        assert!(text.lines().count() == 4 && text.contains("b\\x1b") && text.contains("does not answer"), "{text}");
        let json: Vec<Value> = json_of(&lines).lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        assert_eq!(
            (&json[0]["requests_s"], &json[1]["answers"], &json[2]["herd"]),
            (&10.0.into(), &false.into(), &true.into())
        );
    }
}
