//! Several panels over the same seconds, one above the other: a line of each arm in each, and marks at what befell an
//! arm. Only [`crate::plot`] draws them.

use std::fmt::Write as _;

use crate::plot::{AXIS, OURS, PEER, WIDTH, colour, number, open_svg, step_of, stroke, text};

/// Height of a panel, and of what is between two.
const PANEL: f64 = 190.0;
const BETWEEN: f64 = 34.0;
/// Where the data begin, below the title and the marks' words.
const LEFT: f64 = 76.0;
/// Where what a panel shows begins: marks of the first seconds do not cross it.
const MARGIN: f64 = 12.0;
const MARK_ROW: f64 = 15.0;

/// One arm's values, one each second; a second without any is left out.
#[derive(Clone, Debug)]
pub(crate) struct Series {
    pub(crate) arm: String,
    pub(crate) values: Vec<Option<f64>>,
}

/// What is drawn in one panel.
#[derive(Clone, Debug)]
pub(crate) struct Panel {
    /// What and in which unit.
    pub(crate) label: String,
    /// Logarithmic; else from 0.
    pub(crate) log: bool,
    pub(crate) series: Vec<Series>,
}

/// Something that befell an arm.
#[derive(Clone, Debug)]
pub(crate) struct Mark {
    pub(crate) arm: String,
    pub(crate) second: f64,
    pub(crate) label: String,
}

/// All of it.
#[derive(Clone, Debug)]
pub(crate) struct Times {
    pub(crate) title: String,
    pub(crate) panels: Vec<Panel>,
    pub(crate) marks: Vec<Mark>,
}

/// Places of values in a panel.
struct Scale {
    from: f64,
    to: f64,
    bottom: f64,
    log: bool,
}

impl Scale {
    fn of(panel: &Panel, bottom: f64) -> Self {
        let values = || panel.series.iter().flat_map(|series| series.values.iter().flatten().copied());
        let high = values().fold(1e-9, f64::max);
        let low = values().filter(|value| *value > 0.0).fold(high, f64::min);
        let (from, to) = if panel.log { (low / 1.3, high * 1.3) } else { (0.0, high * 1.1) };
        Self { from, to, bottom, log: panel.log }
    }

    fn place(&self, value: f64) -> f64 {
        let value = value.clamp(self.from, self.to);
        let share = match self.log {
            true => (value / self.from).ln() / (self.to / self.from).ln(),
            false => (value - self.from) / (self.to - self.from),
        };
        self.bottom - PANEL * share
    }

    fn ticks(&self) -> Vec<f64> {
        if !self.log {
            let step = step_of(self.to * 1.6);
            return (0..=(self.to / step) as u32).map(|at| f64::from(at) * step).collect();
        }
        let powers = self.from.log10().floor() as i32..=self.to.log10().ceil() as i32;
        let times: &[f64] = if (self.to / self.from) > 500.0 { &[1.0] } else { &[1.0, 2.0, 5.0] };
        let all = powers.flat_map(|power| times.iter().map(move |times| times * 10f64.powi(power)));
        all.filter(|tick| (self.from..=self.to).contains(tick)).collect()
    }
}

/// The row of each mark's words, from below: above those of all marks whose lines would run through them.
fn rows(marks: &[Mark], x: impl Fn(f64) -> f64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..marks.len()).collect();
    order.sort_by(|one, other| marks[*other].second.total_cmp(&marks[*one].second));
    let mut rows = vec![0; marks.len()];
    for (done, &mark) in order.iter().enumerate() {
        let end = x(marks[mark].second) + 6.4 * marks[mark].label.chars().count() as f64 + 12.0;
        let crossing = order[..done].iter().filter(|right| x(marks[**right].second) < end);
        rows[mark] = crossing.map(|right| rows[*right] + 1).max().unwrap_or(0);
    }
    rows
}

fn paint(arm: &str) -> &'static str {
    if colour(arm) == OURS { OURS } else { PEER }
}

/// Draws them.
pub(super) fn to_svg(chart: &Times) -> String {
    let seconds = chart.panels.iter().flat_map(|panel| &panel.series).map(|series| series.values.len()).max();
    let last = seconds.unwrap_or(1).max(2) as f64;
    // What is written at the last mark has room.
    let right = WIDTH - 120.0;
    let x = |second: f64| LEFT + (right - LEFT) * second / last;
    let rows = rows(&chart.marks, x);
    // The lowest row is that of what the first panel shows.
    let top = 64.0 + MARK_ROW * (rows.iter().max().map_or(0, |row| row + 1) + 1) as f64;
    let panels = chart.panels.len() as f64;
    let bottom = top + panels * PANEL + (panels - 1.0).max(0.0) * BETWEEN;
    let mut out = open_svg(bottom + AXIS, &chart.title);
    legend(&mut out, chart);
    for (number, panel) in chart.panels.iter().enumerate() {
        let scale = Scale::of(panel, top + PANEL + number as f64 * (PANEL + BETWEEN));
        draw_panel(&mut out, panel, &scale, (LEFT, right), &x);
    }
    let step = step_of(last);
    for tick in 0..=(last / step) as u32 {
        let second = f64::from(tick) * step;
        text(&mut out, x(second), bottom + 18.0, "middle", 11, &format!("{second:.0}"));
    }
    text(&mut out, (LEFT + right) / 2.0, bottom + 40.0, "middle", 13, "seconds");
    for (mark, row) in chart.marks.iter().zip(rows) {
        let (at, paint) = (x(mark.second), paint(&mark.arm));
        let y = top - 8.0 - MARK_ROW * (row + 1) as f64;
        stroke(&mut out, (at, y - 8.0), (at, bottom), &format!("stroke=\"{paint}\" stroke-dasharray=\"4 3\""));
        writeln!(out, "<g fill=\"{paint}\">").expect("a String takes all text");
        text(&mut out, at + 4.0, y, "start", 11, &mark.label);
        out.push_str("</g>\n");
    }
    out.push_str("</svg>\n");
    out
}

fn legend(out: &mut String, chart: &Times) {
    let mut at = LEFT;
    for series in chart.panels.first().map_or(&[][..], |panel| &panel.series) {
        stroke(out, (at, 42.0), (at + 26.0, 42.0), &format!("stroke=\"{}\" stroke-width=\"2.4\"", paint(&series.arm)));
        text(out, at + 32.0, 46.0, "start", 12, &series.arm);
        at += 60.0 + 7.0 * series.arm.chars().count() as f64;
    }
}

fn draw_panel(out: &mut String, panel: &Panel, scale: &Scale, (left, right): (f64, f64), x: &impl Fn(f64) -> f64) {
    for tick in scale.ticks() {
        stroke(out, (left, scale.place(tick)), (right, scale.place(tick)), "stroke=\"#ddd\"");
        let label = if tick >= 1.0 || tick == 0.0 { format!("{tick:.0}") } else { number(tick) };
        text(out, left - 8.0, scale.place(tick) + 4.0, "end", 11, &label);
    }
    stroke(out, (left, scale.bottom), (right, scale.bottom), "stroke=\"#222\"");
    text(out, MARGIN, scale.bottom - PANEL - 8.0, "start", 12, &panel.label);
    // Herd's lies on top.
    for series in panel.series.iter().rev() {
        for run in runs(&series.values) {
            let places: Vec<String> = run
                .iter()
                .map(|(second, value)| format!("{:.1},{:.1}", x(*second as f64 + 0.5), scale.place(*value)))
                .collect();
            writeln!(
                out,
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"1.8\" stroke-linejoin=\"round\"/>",
                places.join(" "),
                paint(&series.arm)
            )
            .expect("a String takes all text");
        }
    }
}

/// Stretches without a gap.
fn runs(values: &[Option<f64>]) -> Vec<Vec<(usize, f64)>> {
    let mut runs = vec![Vec::new()];
    for (second, value) in values.iter().enumerate() {
        match (value, runs.last_mut()) {
            (Some(value), Some(run)) => run.push((second, *value)),
            (None, Some(run)) if !run.is_empty() => runs.push(Vec::new()),
            _ => {}
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart() -> Times {
        let series = |arm: &str, first: f64| {
            let values = (0..60).map(|second| (second != 20).then(|| first + f64::from(second))).collect();
            Series { arm: arm.into(), values }
        };
        let panel = |log| Panel { label: "ms".into(), log, series: vec![series("herd", 1.0), series("redis", 30.0)] };
        let mark = |second, label: &str| Mark { arm: "herd".into(), second, label: label.into() };
        let marks = vec![mark(10.0, "a node joins"), mark(11.0, "moved"), mark(50.0, "<back>")];
        Times { title: "t".into(), panels: vec![panel(false), panel(true)], marks }
    }

    #[test]
    fn a_gap_is_a_gap_and_marks_are_named() {
        let svg = to_svg(&chart());
        assert_eq!(svg.matches("<polyline").count(), 8, "two panels, two arms, a gap in each");
        assert!(svg.contains("&lt;back&gt;") && svg.contains(">a node joins<") && svg.ends_with("</svg>\n"));
        assert!(!svg.contains("NaN") && !svg.contains("inf"));
    }

    #[test]
    fn words_of_marks_do_not_run_into_each_other() {
        assert_eq!(rows(&chart().marks, |second| second * 10.0), [1, 0, 0]);
    }

    #[test]
    fn nothing_is_drawn_of_nothing() {
        let svg = to_svg(&Times { title: "t".into(), panels: Vec::new(), marks: Vec::new() });
        assert!(svg.ends_with("</svg>\n") && !svg.contains("NaN"));
    }
}
