//! Figures: bars with whiskers (median, lowest to highest), one line over time, and curves over a variable, as SVG
//! written here, and as PNG of it where `rsvg-convert` is installed.

pub(crate) mod curves;
pub(crate) mod times;

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::error::{Context, Result};
use crate::plot::curves::Curves;
use crate::plot::times::Times;

const WIDTH: f64 = 940.0;
const LEFT: f64 = 190.0;
const RIGHT: f64 = 120.0;
const ROW: f64 = 22.0;
const HEADER: f64 = 30.0;
const TOP: f64 = 56.0;
const AXIS: f64 = 56.0;
const LINE_HEIGHT: f64 = 360.0;
const OURS: &str = "#1f6f54";
const PEER: &str = "#7d8fa9";
const LIMIT: &str = "#c9b79c";

/// One bar.
#[derive(Clone, Debug)]
pub(crate) struct Bar {
    /// Which arm.
    pub(crate) arm: String,
    /// Length.
    pub(crate) median: f64,
    /// Whisker's start.
    pub(crate) low: f64,
    /// Whisker's end.
    pub(crate) high: f64,
}

/// Bars in named groups over one axis, one line over seconds, or curves over a variable.
#[derive(Clone, Debug)]
pub(crate) enum Chart {
    /// Grouped horizontal bars.
    Bars {
        /// Above the figure.
        title: String,
        /// Below the axis: what and in which unit.
        unit: String,
        /// Group name and its bars.
        groups: Vec<(String, Vec<Bar>)>,
    },
    /// A line over seconds, and a limit.
    Line {
        /// Above the figure.
        title: String,
        /// Beside the vertical axis.
        unit: String,
        /// One value each second.
        values: Vec<f64>,
        /// Drawn as a dashed line.
        limit: f64,
    },
    /// Several curves over a variable.
    Curves(Curves),
    /// Panels over the same seconds.
    Times(Times),
}

/// Writes `STEM-NAME.svg`, and `.png` when it can; returns why there is no PNG.
pub(crate) fn write(chart: &Chart, svg: &Path, png: &Path) -> Result<Option<String>> {
    fs::write(svg, to_svg(chart)).during(|| format!("write {}", svg.display()))?;
    Ok(to_png(svg, png).err())
}

/// The same picture by librsvg's program, which `make figures` and `make bench` install.
fn to_png(svg: &Path, png: &Path) -> Result<(), String> {
    let mut command = Command::new("rsvg-convert");
    command.args(["--zoom", "2", "--output"]).arg(png).arg(svg).stdin(Stdio::null());
    let output = command.output().map_err(|error| format!("rsvg-convert, Debian: librsvg2-bin: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(said.lines().last().unwrap_or("rsvg-convert failed").to_owned())
}

fn to_svg(chart: &Chart) -> String {
    match chart {
        Chart::Bars { title, unit, groups } => bars_svg(title, unit, groups),
        Chart::Line { title, unit, values, limit } => line_svg(title, unit, values, *limit),
        Chart::Curves(chart) => curves::to_svg(chart),
        Chart::Times(chart) => times::to_svg(chart),
    }
}

/// A step of 1, 2 or 5 times a power of ten that cuts `highest` into at most eight.
fn step_of(highest: f64) -> f64 {
    let raw = (highest / 8.0).max(f64::MIN_POSITIVE);
    let power = 10f64.powf(raw.log10().floor());
    [1.0, 2.0, 5.0, 10.0].into_iter().map(|times| times * power).find(|step| *step >= raw).unwrap_or(raw)
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

fn text(out: &mut String, x: f64, y: f64, anchor: &str, size: u32, words: &str) {
    let words = escape(words);
    writeln!(out, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" font-size=\"{size}\">{words}</text>")
        .expect("a String takes all text");
}

fn stroke(out: &mut String, from: (f64, f64), to: (f64, f64), style: &str) {
    let ((x1, y1), (x2, y2)) = (from, to);
    writeln!(out, "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" {style}/>")
        .expect("a String takes all text");
}

fn open_svg(height: f64, title: &str) -> String {
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
         viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" fill=\"#222\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    text(&mut out, 16.0, 26.0, "start", 17, title);
    out
}

fn colour(arm: &str) -> &'static str {
    match arm {
        arm if arm.starts_with("herd") => OURS,
        arm if arm.starts_with("null") || arm.starts_with("iperf") => LIMIT,
        _ => PEER,
    }
}

fn number(value: f64) -> String {
    let digits = if value.abs() >= 100.0 { 0 } else { 2 };
    format!("{value:.digits$}")
}

fn bars_svg(title: &str, unit: &str, groups: &[(String, Vec<Bar>)]) -> String {
    let rows: usize = groups.iter().map(|(_, bars)| bars.len()).sum();
    let bottom = TOP + rows as f64 * ROW + groups.len() as f64 * HEADER;
    let highest = groups.iter().flat_map(|(_, bars)| bars).map(|bar| bar.high).fold(1e-9, f64::max);
    let scale = (WIDTH - LEFT - RIGHT) / highest;
    let mut out = open_svg(bottom + AXIS, title);
    text(&mut out, 16.0, 44.0, "start", 12, "bar: median of the rounds; whisker: lowest to highest round");
    let step = step_of(highest);
    for tick in 0..=(highest / step) as u32 {
        let value = f64::from(tick) * step;
        let x = LEFT + value * scale;
        stroke(&mut out, (x, TOP), (x, bottom + 5.0), "stroke=\"#ddd\"");
        text(&mut out, x, bottom + 20.0, "middle", 11, &format!("{}", (value * 1e6).round() / 1e6));
    }
    text(&mut out, LEFT + (WIDTH - LEFT - RIGHT) / 2.0, bottom + 42.0, "middle", 13, unit);
    let mut y = TOP;
    for (group, bars) in groups {
        text(&mut out, 16.0, y + 20.0, "start", 13, group);
        y += HEADER;
        for bar in bars {
            draw_bar(&mut out, bar, y, scale);
            y += ROW;
        }
    }
    out.push_str("</svg>\n");
    out
}

fn draw_bar(out: &mut String, bar: &Bar, y: f64, scale: f64) {
    let (width, middle, fill) = (bar.median.max(0.0) * scale, y + ROW / 2.0, colour(&bar.arm));
    text(out, LEFT - 8.0, middle + 4.0, "end", 12, &bar.arm);
    let (top, height) = (y + 3.0, ROW - 6.0);
    writeln!(out, "<rect x=\"{LEFT}\" y=\"{top}\" width=\"{width:.1}\" height=\"{height}\" fill=\"{fill}\"/>")
        .expect("a String takes all text");
    let (low, high) = (LEFT + bar.low.max(0.0) * scale, LEFT + bar.high.max(0.0) * scale);
    stroke(out, (low, middle), (high, middle), "stroke=\"#222\"");
    for x in [low, high] {
        stroke(out, (x, middle - 4.0), (x, middle + 4.0), "stroke=\"#222\"");
    }
    text(out, high + 8.0, middle + 4.0, "start", 11, &number(bar.median));
}

fn line_svg(title: &str, unit: &str, values: &[f64], limit: f64) -> String {
    let highest = values.iter().copied().fold(limit, f64::max) * 1.08;
    let bottom = TOP + LINE_HEIGHT;
    let (left, right) = (90.0, WIDTH - 40.0);
    let x = |second: f64| left + (right - left) * second / (values.len().max(2) - 1) as f64;
    let y = |value: f64| bottom - LINE_HEIGHT * value / highest;
    let mut out = open_svg(bottom + AXIS, title);
    let step = step_of(highest);
    for tick in 0..=(highest / step) as u32 {
        let value = f64::from(tick) * step;
        stroke(&mut out, (left, y(value)), (right, y(value)), "stroke=\"#ddd\"");
        text(&mut out, left - 8.0, y(value) + 4.0, "end", 11, &number(value));
    }
    let step = step_of(values.len() as f64);
    for tick in 0..=((values.len().max(1) - 1) as f64 / step) as u32 {
        let second = f64::from(tick) * step;
        text(&mut out, x(second), bottom + 20.0, "middle", 11, &number(second));
    }
    text(&mut out, (left + right) / 2.0, bottom + 42.0, "middle", 13, "seconds");
    text(&mut out, 16.0, 46.0, "start", 13, unit);
    stroke(&mut out, (left, y(limit)), (right, y(limit)), "stroke=\"#b03a2e\" stroke-dasharray=\"6 4\"");
    text(&mut out, right, y(limit) - 6.0, "end", 12, &format!("limit {}", number(limit)));
    let points: Vec<String> =
        values.iter().enumerate().map(|(second, value)| format!("{:.1},{:.1}", x(second as f64), y(*value))).collect();
    writeln!(out, "<polyline points=\"{}\" fill=\"none\" stroke=\"{OURS}\" stroke-width=\"2\"/>", points.join(" "))
        .expect("a String takes all text");
    out.push_str("</svg>\n");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_round_and_few() {
        for highest in [0.07, 1.0, 3.9, 8.0, 95.0, 12_345.0] {
            let step = step_of(highest);
            assert!((1.0..=8.001).contains(&(highest / step)), "{highest}: {step}");
        }
        assert_eq!(step_of(8.0), 1.0);
        assert_eq!(step_of(95.0), 20.0);
    }

    #[test]
    fn a_png_is_the_same_picture_or_says_what_to_install() {
        let path = |ending: &str| std::env::temp_dir().join(format!("herd-lab-plot-{}.{ending}", std::process::id()));
        let (svg, png) = (path("svg"), path("png"));
        let chart = Chart::Line { title: "t".into(), unit: "MiB".into(), values: vec![1.0, 2.0], limit: 3.0 };
        match write(&chart, &svg, &png).expect("a temporary directory") {
            None => assert!(fs::read(&png).expect("just written").starts_with(b"\x89PNG")),
            Some(reason) => assert!(reason.contains("librsvg2-bin"), "{reason}"),
        }
        fs::remove_file(&svg).expect("just written");
        fs::remove_file(&png).ok();
    }

    #[test]
    fn figures_name_their_unit_and_arms() {
        let bar = Bar { arm: "herd <wire>".into(), median: 2.0, low: 1.0, high: 3.0 };
        let groups = vec![("g".into(), vec![bar])];
        let bars = Chart::Bars { title: "t".into(), unit: "microseconds".into(), groups };
        let svg = to_svg(&bars);
        assert!(svg.contains(">microseconds<") && svg.contains(">herd &lt;wire&gt;<") && svg.contains(OURS));
        let line = Chart::Line { title: "t".into(), unit: "MiB".into(), values: vec![1.0, 2.0], limit: 3.0 };
        let svg = to_svg(&line);
        assert!(svg.contains(">MiB<") && svg.contains("limit 3.00") && svg.ends_with("</svg>\n"));
    }
}
