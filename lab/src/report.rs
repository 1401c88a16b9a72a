//! What a bench measured: samples, paired ratios, verdicts; printed as tables and written as JSON lines.
//!
//! A sample is one run of one arm in one round of one group (arms of a group are comparable). A ratio is taken inside
//! each round, where both arms met the same minute of a noisy machine; the median over the rounds is judged.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;
use serde_json::{Value, json};

use crate::error::{Context, Error, Result};
use crate::hist::{median, spread};
use crate::plot::{self, Chart};
use crate::run::Taken;

/// One run of one arm.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Sample {
    /// Line of the issue: "c".
    pub(crate) line: &'static str,
    /// What is alike for all arms: "get, 64 connections, saturated".
    pub(crate) group: String,
    /// Who: "memcached text".
    pub(crate) arm: String,
    /// Which round, from 0; in line c which time round the arms, several to a round.
    pub(crate) round: usize,
    /// Metric name (with its unit) to value.
    pub(crate) values: BTreeMap<&'static str, f64>,
}

/// A bar and how it was met.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Verdict {
    /// Line of the issue.
    pub(crate) line: &'static str,
    /// What is compared.
    pub(crate) what: String,
    /// Median over the rounds.
    pub(crate) value: f64,
    /// Smallest and largest over the rounds.
    pub(crate) spread: (f64, f64),
    /// The bar.
    pub(crate) bar: f64,
    /// True: at most the bar; false: at least.
    pub(crate) at_most: bool,
    /// True when met.
    pub(crate) pass: bool,
}

/// Median and spread of something over the rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Summary {
    /// Median.
    pub(crate) median: f64,
    /// Smallest.
    pub(crate) low: f64,
    /// Largest.
    pub(crate) high: f64,
}

impl Summary {
    /// All of it, `factor` times.
    pub(crate) fn times(self, factor: f64) -> Self {
        Self { median: self.median * factor, low: self.low * factor, high: self.high * factor }
    }

    /// Of at least one value.
    pub(crate) fn of(values: &[f64]) -> Option<Self> {
        let (low, high) = spread(values);
        (!values.is_empty()).then(|| Self { median: median(values), low, high })
    }
}

/// Samples, verdicts and failures of one bench.
pub(crate) struct Report {
    dir: PathBuf,
    file: File,
    /// Name of the run's files, without an ending.
    pub(crate) stem: String,
    samples: Vec<Sample>,
    verdicts: Vec<Verdict>,
    failures: Vec<String>,
    /// How servers were started, each way once.
    started: Vec<String>,
    /// Tries that were void, by arm.
    voids: BTreeMap<String, usize>,
}

impl Report {
    /// Opens `DIR/NAME-SECONDS.jsonl` and writes `environment` as its first line.
    pub(crate) fn create(dir: &Path, name: &str, environment: &Value) -> Result<Self> {
        fs::create_dir_all(dir).during(|| format!("create {}", dir.display()))?;
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let stem = format!("{name}-{seconds}");
        let path = dir.join(format!("{stem}.jsonl"));
        let file = File::create(&path).during(|| format!("create {}", path.display()))?;
        let (samples, verdicts, failures, started) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let voids = BTreeMap::new();
        let mut report = Self { dir: dir.to_owned(), file, stem, samples, verdicts, failures, started, voids };
        report.write("environment", environment)?;
        Ok(report)
    }

    /// A file of this run beside the JSON lines.
    pub(crate) fn path(&self, ending: &str) -> PathBuf {
        self.dir.join(format!("{}{ending}", self.stem))
    }

    /// Appends one JSON line `{"KIND": VALUE}`.
    pub(crate) fn write(&mut self, kind: &str, value: &impl Serialize) -> Result<()> {
        writeln!(self.file, "{}", json!({ kind: value })).during(|| "write the results".into())
    }

    /// Writes down how an arm's server was started, once for each way.
    pub(crate) fn options(&mut self, arm: &str, options: &str) -> Result<()> {
        let line = format!("{arm}: {options}");
        if self.started.contains(&line) {
            return Ok(());
        }
        self.write("options", &line)?;
        self.started.push(line);
        Ok(())
    }

    /// Draws a chart beside the results, `STEM-NAME.svg` and, where it can be, `.png`.
    pub(crate) fn draw(&self, name: &str, chart: &Chart) -> Result<()> {
        let path = |ending: &str| self.path(&format!("-{name}.{ending}"));
        let (svg, png) = (path("svg"), path("png"));
        match plot::write(chart, &svg, &png)? {
            None => println!("  figure: {} and .png", svg.display()),
            Some(reason) => println!("  figure: {} (no PNG: {reason})", svg.display()),
        }
        Ok(())
    }

    /// Says and writes how many bars were met; an error if runs failed.
    pub(crate) fn conclude(&mut self) -> Result<()> {
        let (met, judged) = self.score();
        let failed = self.failures().len();
        for (arm, count) in &self.voids {
            println!("  {arm}: {count} void, taken again");
        }
        println!("\n{met} of {judged} bars met, {failed} runs failed; {}", self.path(".jsonl").display());
        self.write("score", &json!({ "met": met, "judged": judged, "failed": failed, "void": self.voids }))?;
        if failed == 0 { Ok(()) } else { Err(Error::new(format!("{failed} runs failed, see above"))) }
    }

    /// Keeps a sample.
    pub(crate) fn sample(&mut self, sample: Sample) -> Result<()> {
        self.write("sample", &sample)?;
        self.samples.push(sample);
        Ok(())
    }

    /// Writes down the void tries of a run of an arm; gives what it measured, or nothing after a failure, which it
    /// keeps.
    pub(crate) fn taken<T>(&mut self, run: &str, arm: &str, taken: Taken<T>) -> Result<Option<T>> {
        for reason in taken.voids {
            println!("  void: {run}, {arm}: {reason}");
            self.write("void", &json!({ "run": run, "arm": arm, "reason": reason }))?;
            *self.voids.entry(arm.to_owned()).or_default() += 1;
        }
        match taken.outcome {
            Ok(outcome) => Ok(Some(outcome)),
            Err(error) => self.failure(format!("{run}, {arm}: {error}")).map(|()| None),
        }
    }

    /// The arm among `arms` with the lowest median of a metric.
    pub(crate) fn lowest<'a>(&self, line: &str, group: &str, arms: &[&'a str], metric: &str) -> Option<&'a str> {
        let measured = arms.iter().filter_map(|arm| Some((*arm, self.summary(line, group, arm, metric)?.median)));
        measured.min_by(|(_, one), (_, other)| one.total_cmp(other)).map(|(arm, _)| arm)
    }

    /// Keeps and prints what went wrong in one arm.
    pub(crate) fn failure(&mut self, what: String) -> Result<()> {
        println!("  FAILED: {what}");
        self.write("failure", &what)?;
        self.failures.push(what);
        Ok(())
    }

    fn of<'a>(&'a self, line: &'a str, group: &'a str) -> impl Iterator<Item = &'a Sample> {
        self.samples.iter().filter(move |sample| sample.line == line && sample.group == group)
    }

    /// Arms of a group, in the order they first ran.
    pub(crate) fn arms(&self, line: &str, group: &str) -> Vec<String> {
        let mut arms = Vec::new();
        for sample in self.of(line, group) {
            if !arms.contains(&sample.arm) {
                arms.push(sample.arm.clone());
            }
        }
        arms
    }

    /// Groups of a line, in order.
    pub(crate) fn groups(&self, line: &str) -> Vec<String> {
        let mut groups = Vec::new();
        for sample in self.samples.iter().filter(|sample| sample.line == line) {
            if !groups.contains(&sample.group) {
                groups.push(sample.group.clone());
            }
        }
        groups
    }

    /// One arm's metric over the rounds.
    pub(crate) fn summary(&self, line: &str, group: &str, arm: &str, metric: &str) -> Option<Summary> {
        let values = self.of(line, group).filter(|sample| sample.arm == arm).filter_map(|s| s.values.get(metric));
        Summary::of(&values.copied().collect::<Vec<_>>())
    }

    /// Metric of `(group, arm)` divided by that of another, round by round: each ratio.
    pub(crate) fn ratios(&self, line: &str, over: (&str, &str), under: (&str, &str), metric: &str) -> Vec<f64> {
        let value = |(group, arm): (&str, &str), round: usize| {
            let sample = self.of(line, group).find(|sample| sample.arm == arm && sample.round == round)?;
            sample.values.get(metric).copied()
        };
        let rounds = self.of(line, over.0).filter(|sample| sample.arm == over.1).map(|sample| sample.round);
        rounds.filter_map(|round| Some(value(over, round)? / value(under, round)?)).collect()
    }

    /// Median and spread of [`Report::ratios`].
    pub(crate) fn ratio(&self, line: &str, over: (&str, &str), under: (&str, &str), metric: &str) -> Option<Summary> {
        Summary::of(&self.ratios(line, over, under, metric))
    }

    /// Judges a value against a bar; nothing to judge, nothing said.
    pub(crate) fn judge(
        &mut self,
        line: &'static str,
        what: String,
        value: Option<Summary>,
        bar: f64,
        at_most: bool,
    ) -> Result<()> {
        let Some(Summary { median: value, low, high }) = value else { return Ok(()) };
        let pass = if at_most { value <= bar } else { value >= bar };
        let verdict = Verdict { line, what, value, spread: (low, high), bar, at_most, pass };
        self.write("verdict", &verdict)?;
        self.verdicts.push(verdict);
        Ok(())
    }

    /// Prints a line's groups as tables with the given metrics as columns.
    pub(crate) fn print_tables(&self, line: &str, metrics: &[&'static str]) {
        for group in self.groups(line) {
            println!("\n[{line}] {group}");
            print!("  {:<26}", "median (lowest..highest)");
            metrics.iter().for_each(|metric| print!("{metric:>30}"));
            println!();
            for arm in self.arms(line, &group) {
                print!("  {arm:<26}");
                for metric in metrics {
                    let cell = self.summary(line, &group, &arm, metric).map_or("-".into(), |s| cell(&s));
                    print!("{cell:>30}");
                }
                println!();
            }
        }
    }

    /// Prints a line's verdicts.
    pub(crate) fn print_verdicts(&self, line: &str) {
        let verdicts: Vec<&Verdict> = self.verdicts.iter().filter(|verdict| verdict.line == line).collect();
        if verdicts.is_empty() {
            println!("\n[{line}] nothing to judge (no Herd binary was given, or its arms failed)");
            return;
        }
        println!("\n[{line}] against the bars");
        for verdict in verdicts {
            let word = if verdict.pass { "PASS      " } else { "FALL-SHORT" };
            let sign = if verdict.at_most { "<=" } else { ">=" };
            let (low, high) = verdict.spread;
            let Verdict { what, value, bar, .. } = verdict;
            println!("  {word} {value:>9.3} {sign} {bar:<9.3} ({low:.3}..{high:.3})  {what}");
        }
    }

    /// What went wrong.
    pub(crate) fn failures(&self) -> &[String] {
        &self.failures
    }

    /// How many bars were met, and how many were judged.
    pub(crate) fn score(&self) -> (usize, usize) {
        (self.verdicts.iter().filter(|verdict| verdict.pass).count(), self.verdicts.len())
    }
}

fn cell(summary: &Summary) -> String {
    let digits = match summary.median.abs() {
        size if size >= 1_000.0 => 0,
        size if size >= 10.0 => 1,
        _ => 3,
    };
    let Summary { median, low, high } = summary;
    format!("{median:.digits$} ({low:.digits$}..{high:.digits$})")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let dir = std::env::temp_dir().join(format!("herd-lab-report-{}", std::process::id()));
        Report::create(&dir, "bench", &json!({})).expect("a temporary directory")
    }

    fn add(report: &mut Report, arm: &str, round: usize, value: f64) {
        let values = BTreeMap::from([("cpu_us", value)]);
        let sample = Sample { line: "c", group: "g".into(), arm: arm.into(), round, values };
        report.sample(sample).expect("written");
    }

    #[test]
    fn ratios_pair_rounds() {
        let mut report = report();
        for (round, (ours, theirs)) in [(1.0, 2.0), (3.0, 4.0), (10.0, 10.0)].into_iter().enumerate() {
            add(&mut report, "ours", round, ours);
            add(&mut report, "theirs", round, theirs);
        }
        add(&mut report, "ours", 3, 1.0);
        let ratio = report.ratio("c", ("g", "ours"), ("g", "theirs"), "cpu_us");
        assert_eq!(ratio, Some(Summary { median: 0.75, low: 0.5, high: 1.0 }));
        assert_eq!(report.ratio("c", ("g", "ours"), ("g", "absent"), "cpu_us"), None);
        report.judge("c", "a bar".into(), ratio, 0.75, true).expect("written");
        report.judge("c", "another".into(), ratio, 0.76, false).expect("written");
        report.judge("c", "none".into(), None, 1.0, true).expect("written");
        assert_eq!(report.score(), (1, 2));
        let text = fs::read_to_string(report.path(".jsonl")).expect("the file");
        assert!(text.lines().all(|line| serde_json::from_str::<Value>(line).is_ok()));
        assert_eq!(text.lines().count(), 1 + 7 + 2);
        fs::remove_dir_all(&report.dir).expect("own directory");
    }
}
