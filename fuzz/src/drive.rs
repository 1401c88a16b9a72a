//! The loop of the driver: mutate, run, judge, keep.

use crate::alloc;
use crate::mutate::Mutator;
use crate::watch::{Watch, cpu_time};
use herd_fuzz::random::{Random, hash};
use herd_fuzz::{Target, corpus};
use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::Duration;

/// Most memory of one run: its target's, and so many times the input.
const PEAK_TIMES_INPUT: usize = 64;

/// Most inputs kept for one target.
const KEPT_MAX: usize = 4_096;

/// Executions between two looks at the clock.
const LOOK_EVERY: u64 = 32;

/// Runs one file and prints what it reaches.
pub(crate) fn replay(target: &'static Target, path: &Path) -> Result<(), String> {
    let input = corpus::read(path)?;
    let watch = Watch::start(target.name);
    run(target, &watch, &input).map_err(|what| format!("{}: {}: {what}", target.name, path.display()))?;
    println!("{}: {}", target.name, target.run(&input).names().join(", "));
    Ok(())
}

/// Writes the corpus of a target as plain inputs, for fuzzers that know no recipes.
pub(crate) fn cook(target: &Target, dir: &Path) -> Result<(), String> {
    let dir = dir.join(target.name);
    let told = |error| format!("{}: {error}", dir.display());
    fs::create_dir_all(&dir).map_err(told)?;
    for seed in corpus::load(target.name)? {
        fs::write(dir.join(seed.path.file_stem().unwrap_or_default()), &seed.input).map_err(told)?;
    }
    Ok(())
}

/// What is known of the inputs so far.
struct Kept {
    inputs: Vec<Vec<u8>>,
    by_signature: HashMap<u64, usize>,
    reached: BTreeSet<&'static str>,
}

/// Fuzzes one target for `seconds` of CPU; the line that tells of it, or the finding. What it found goes to `distil`.
pub(crate) fn fuzz(target: &'static Target, seconds: u64, seed: u64, distil: Option<&Path>) -> Result<String, String> {
    let (start, budget) = (cpu_time(), Duration::from_secs(seconds));
    let watch = Watch::start(target.name);
    let mut kept = Kept { inputs: Vec::new(), by_signature: HashMap::new(), reached: BTreeSet::new() };
    let mut executions = 0u64;
    for seed in corpus::load(target.name)? {
        kept.take(target, &watch, seed.input)?;
        executions += 1;
    }
    let mut mutator = Mutator::new(target.dictionary, Random::new(seed));
    let mut input = Vec::new();
    while !executions.is_multiple_of(LOOK_EVERY) || cpu_time() - start < budget {
        mutator.make(&kept.inputs, &mut input);
        kept.take(target, &watch, std::mem::take(&mut input)).map(|back| input = back)?;
        executions += 1;
    }
    if let Some(dir) = distil {
        kept.distil(target, &dir.join(target.name)).map_err(|error| format!("{}: {error}", dir.display()))?;
    }
    let cpu_s = (cpu_time() - start).as_secs_f64();
    Ok(format!(
        "{:<18}{executions:>12} executions{:>10.0}/s{:>5} of {:>3} outcomes{:>6} inputs kept{cpu_s:>8.1} s CPU",
        target.name,
        executions as f64 / cpu_s,
        kept.reached.len(),
        target.outcomes().count(),
        kept.inputs.len(),
    ))
}

impl Kept {
    /// Writes the fewest and shortest inputs that reach all outcomes, each named by the first that no other reached.
    fn distil(&self, target: &'static Target, dir: &Path) -> std::io::Result<()> {
        let mut all: Vec<(&Vec<u8>, BTreeSet<&str>)> =
            self.inputs.iter().map(|input| (input, target.run(input).names().iter().copied().collect())).collect();
        fs::create_dir_all(dir)?;
        let mut open = self.reached.clone();
        while !open.is_empty() {
            let worth = |(input, names): &(&Vec<u8>, BTreeSet<&str>)| {
                (names.intersection(&open).count(), std::cmp::Reverse(input.len()))
            };
            let Some(at) = (0..all.len()).max_by_key(|at| worth(&all[*at])) else { break };
            let (input, names) = all.swap_remove(at);
            let news: Vec<&str> = names.intersection(&open).copied().collect();
            let name = news.first().copied().unwrap_or_default().replace([' ', ':'], "_");
            let hex: String = input.iter().map(|byte| format!("{byte:02x}")).collect();
            fs::write(dir.join(format!("{name}.recipe")), format!("# {}\nhex {hex}\n", news.join(", ")))?;
            open.retain(|name| !names.contains(name));
        }
        Ok(())
    }

    /// Runs an input and keeps it if it reaches a new set of outcomes, or a known one with fewer bytes. Gives back a
    /// buffer to use again.
    fn take(&mut self, target: &'static Target, watch: &Watch, input: Vec<u8>) -> Result<Vec<u8>, String> {
        let signature = run(target, watch, &input).map_err(|what| save(target.name, &input, &what))?;
        match self.by_signature.get(&signature) {
            Some(at) if self.inputs[*at].len() > input.len() => Ok(std::mem::replace(&mut self.inputs[*at], input)),
            None if self.inputs.len() < KEPT_MAX => {
                self.reached.extend(target.run(&input).names());
                self.by_signature.insert(signature, self.inputs.len());
                self.inputs.push(input);
                Ok(Vec::new())
            }
            _ => Ok(input),
        }
    }
}

/// Runs one input: the signature of its outcomes, or what is wrong.
fn run(target: &'static Target, watch: &Watch, input: &[u8]) -> Result<u64, String> {
    watch.begin(input);
    let before = alloc::mark();
    let result = catch_unwind(AssertUnwindSafe(|| target.run(input).signature()));
    let (after, peak) = (alloc::live_bytes(), alloc::peak_bytes());
    watch.end();
    let signature = result.map_err(|_| "panic: its message stands above".to_string())?;
    let most = target.memory_max_bytes + PEAK_TIMES_INPUT * input.len();
    if peak - before > most {
        return Err(format!("growth: {} bytes at the peak for {} bytes of input", peak - before, input.len()));
    }
    // Something may be made once for all; what grows with every run is kept for nothing.
    if after > before && (0..4).all(|_| kept_bytes(target, input) > 0) {
        return Err(format!("growth: {} bytes are kept after the run", after - before));
    }
    Ok(signature)
}

/// Bytes that live after a run and did not before it.
fn kept_bytes(target: &'static Target, input: &[u8]) -> usize {
    let before = alloc::live_bytes();
    drop(target.run(input));
    alloc::live_bytes().saturating_sub(before)
}

/// Saves the input of a finding; the text that tells of it.
pub(crate) fn save(target: &str, input: &[u8], what: &str) -> String {
    let name = format!("{target}-{:016x}", hash(input));
    let dir = corpus::root().join("artifacts");
    let saved = fs::create_dir_all(&dir).and_then(|()| fs::write(dir.join(&name), input));
    let trouble = saved.err().map_or(String::new(), |error| format!(" (not saved: {error})"));
    format!(
        "{target}: {what}; {} bytes{trouble}\n  replay: cargo run --release -p herd-fuzz -- --file \
         fuzz/artifacts/{name} {target}",
        input.len()
    )
}
