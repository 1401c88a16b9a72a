//! Curves over one variable, with error bars, dashed limits and stars: what they hold, and the SVG.
//!
//! Only [`crate::plot`] draws them.

use std::fmt::Write as _;

use crate::plot::{AXIS, LINE_HEIGHT, OURS, PEER, TOP, colour, escape, open_svg, step_of, stroke, text};

/// Curves of Herd's doors, of peers, and dashed limits: within each, shades that differ in grey print too.
const OUR_CURVES: [&str; 3] = [OURS, "#59b08c", "#0f3b2d"];
const PEER_CURVES: [&str; 5] = [PEER, "#33486b", "#a8b8cf", "#4f7cab", "#5b6470"];
const LIMIT_CURVES: [&str; 3] = ["#8a6d3b", "#b59a68", "#5e4a28"];
const STAR: &str = "#b03a2e";
/// Where the legend of curves starts, right of the data.
const LEGEND: f64 = 722.0;
/// Characters of a line of it.
const LEGEND_CHARS: usize = 29;

/// How an axis' numbers are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Quantity {
    /// As numbers, in the unit of the axis' label.
    Plain,
    /// As bytes: 512 B, 8 KB, 1 MB.
    Bytes,
}

/// One axis of curves.
#[derive(Clone, Debug)]
pub(crate) struct Axis {
    /// What and in which unit.
    pub(crate) label: String,
    /// How its numbers are written.
    pub(crate) quantity: Quantity,
    /// Logarithmic; else linear, the vertical one from 0.
    pub(crate) log: bool,
}

/// One point of a curve, in the units of the axes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Point {
    /// Place on the horizontal axis.
    pub(crate) x: f64,
    /// Where its marker is.
    pub(crate) median: f64,
    /// Error bar's start.
    pub(crate) low: f64,
    /// Error bar's end.
    pub(crate) high: f64,
}

/// One curve.
#[derive(Clone, Debug)]
pub(crate) struct Curve {
    /// Which arm.
    pub(crate) name: String,
    /// By rising x.
    pub(crate) points: Vec<Point>,
}

/// A single point from elsewhere.
#[derive(Clone, Debug)]
pub(crate) struct Star {
    /// Written beside it.
    pub(crate) label: String,
    /// Place on the horizontal axis.
    pub(crate) x: f64,
    /// Place on the vertical axis.
    pub(crate) y: f64,
}

/// Curves over one variable.
#[derive(Clone, Debug)]
pub(crate) struct Curves {
    /// Above the figure.
    pub(crate) title: String,
    /// The variable.
    pub(crate) x: Axis,
    /// What was measured.
    pub(crate) y: Axis,
    /// Markers with error bars; Herd's are drawn last.
    pub(crate) curves: Vec<Curve>,
    /// Names and points of dashed lines.
    pub(crate) limits: Vec<(String, Vec<(f64, f64)>)>,
    /// Points from elsewhere.
    pub(crate) stars: Vec<Star>,
}

/// Maps values of an axis to places in the figure.
struct Scale {
    from: f64,
    to: f64,
    /// Places of `from` and `to`.
    places: (f64, f64),
    log: bool,
}

impl Scale {
    /// Holds all `values` with some room; a linear one starts at 0 where it must.
    fn over(axis: &Axis, values: &[f64], places: (f64, f64), from_zero: bool) -> Self {
        let good = || values.iter().copied().filter(|value| value.is_finite() && (!axis.log || *value > 0.0));
        let (low, high) = (good().fold(f64::INFINITY, f64::min), good().fold(f64::NEG_INFINITY, f64::max));
        let (low, high) = if low <= high { (low, high) } else { (1.0, 2.0) };
        let room = if high > low { 0.05 * (high - low) } else { 0.5 * high.abs().max(1.0) };
        let (from, to) = match (axis.log, from_zero) {
            (true, _) => (low / (high / low).powf(0.05).max(1.1), high * (high / low).powf(0.05).max(1.1)),
            (false, true) => (low.min(0.0), high.max(1e-9) * 1.1),
            (false, false) => (low - room, high + room),
        };
        Self { from, to, places, log: axis.log }
    }

    fn place(&self, value: f64) -> f64 {
        let value = value.clamp(self.from, self.to);
        let share = if self.log {
            (value / self.from).ln() / (self.to / self.from).ln()
        } else {
            (value - self.from) / (self.to - self.from)
        };
        self.places.0 + (self.places.1 - self.places.0) * share
    }

    /// Round values within: 1, 2 and 5 times powers of ten, or only the powers where these are many.
    fn ticks(&self) -> Vec<f64> {
        if !self.log {
            let step = step_of(self.to - self.from);
            let first = (self.from / step).ceil();
            return (0..=((self.to / step) - first).max(0.0) as u32).map(|at| (first + f64::from(at)) * step).collect();
        }
        let powers = self.from.log10().floor() as i32..=self.to.log10().ceil() as i32;
        let times: &[f64] = if powers.clone().count() > 4 { &[1.0] } else { &[1.0, 2.0, 5.0] };
        let all = powers.flat_map(|power| times.iter().map(move |times| times * 10f64.powi(power)));
        all.filter(|tick| (self.from..=self.to).contains(tick)).collect()
    }

    /// The measured values themselves where they are few and stand apart, else round ones.
    fn ticks_at(&self, mut values: Vec<f64>) -> Vec<f64> {
        const APART: f64 = 46.0;
        values.sort_by(f64::total_cmp);
        values.dedup();
        let apart = values.windows(2).all(|pair| self.place(pair[1]) - self.place(pair[0]) >= APART);
        if apart && values.len() > 1 { values } else { self.ticks() }
    }
}

/// A tick's label: 512 B, 8 KB, 1 MB (of 1,024 unless the number is round in thousands), or the plain number.
fn tick_label(value: f64, quantity: Quantity) -> String {
    let plain = |value: f64| {
        let digits = if value.abs() >= 100.0 { 0 } else { 3 };
        let text = format!("{value:.digits$}");
        let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
        thousands(text)
    };
    if quantity == Quantity::Plain {
        return plain(value);
    }
    let base: f64 = if value >= 1_000.0 && value % 1_000.0 == 0.0 { 1_000.0 } else { 1_024.0 };
    let units = ["B", "KB", "MB", "GB", "TB"];
    let power = (0..units.len()).rev().find(|power| value >= base.powi(*power as i32)).unwrap_or(0);
    format!("{} {}", plain((value / base.powi(power as i32) * 10.0).round() / 10.0), units[power])
}

/// Commas between the thousands of a number of five digits or more.
fn thousands(text: &str) -> String {
    let whole = text.find('.').unwrap_or(text.len());
    let digits = whole - usize::from(text.starts_with('-'));
    let mut out = String::new();
    for (at, letter) in text.char_indices() {
        let left = whole.saturating_sub(at);
        if digits > 4 && left > 0 && left % 3 == 0 && left < digits {
            out.push(',');
        }
        out.push(letter);
    }
    out
}

/// How a curve is drawn. Curves that lie on each other must still be seen: Herd's have full markers on top, each of its
/// curves narrower than the one below it; those of others are rings around them, each wider than the last.
#[derive(Clone, Copy)]
struct Look {
    colour: &'static str,
    /// Which marker, of six.
    marker: usize,
    /// Of its size.
    times: f64,
    /// Of its line.
    width: f64,
    ring: bool,
}

/// Each curve's in order: shades of the house colours.
fn looks(curves: &[Curve]) -> Vec<Look> {
    let (mut ours, mut others) = (0, 0);
    let all_ours = curves.iter().filter(|curve| colour(&curve.name) == OURS).count();
    let look = |(marker, curve): (usize, &Curve)| {
        let kin = colour(&curve.name);
        let count = if kin == OURS { &mut ours } else { &mut others };
        *count += 1;
        let at = *count - 1;
        let colour = match kin {
            OURS => OUR_CURVES[at % OUR_CURVES.len()],
            PEER => PEER_CURVES[at % PEER_CURVES.len()],
            other => other,
        };
        // How many of Herd's lie on top of this one.
        let over = (all_ours - ours) as f64;
        let (times, width) =
            if kin == OURS { (0.8 + 0.5 * over, 1.6 + 1.8 * over) } else { (1.4 + 0.35 * at as f64, 1.6) };
        Look { colour, marker, times, width, ring: kin != OURS }
    };
    curves.iter().enumerate().map(look).collect()
}

/// A marker around a place.
fn draw_marker(out: &mut String, look: Look, (x, y): (f64, f64)) {
    let times = look.times;
    let shape = |corners: &[(f64, f64)]| {
        let place = |(dx, dy): &(f64, f64)| format!("{:.1},{:.1}", x + times * dx, y + times * dy);
        let places: Vec<String> = corners.iter().map(place).collect();
        format!("<polygon points=\"{}\"", places.join(" "))
    };
    let shape = match look.marker % 6 {
        0 => format!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{:.1}\"", 5.0 * times),
        1 => shape(&[(-4.5, -4.5), (4.5, -4.5), (4.5, 4.5), (-4.5, 4.5)]),
        2 => shape(&[(0.0, -6.0), (5.5, 4.5), (-5.5, 4.5)]),
        3 => shape(&[(0.0, -6.5), (5.5, 0.0), (0.0, 6.5), (-5.5, 0.0)]),
        4 => shape(&[(0.0, 6.0), (5.5, -4.5), (-5.5, -4.5)]),
        _ => shape(&[(-6.0, -2.5), (6.0, -2.5), (6.0, 2.5), (-6.0, 2.5)]),
    };
    let colour = look.colour;
    let paint = if look.ring {
        format!("fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.8\"")
    } else {
        format!("fill=\"{colour}\" stroke=\"white\"")
    };
    writeln!(out, "{shape} {paint}/>").expect("a String takes all text");
}

fn polyline(out: &mut String, places: &[(f64, f64)], style: &str) {
    let places: Vec<String> = places.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    writeln!(out, "<polyline points=\"{}\" fill=\"none\" {style}/>", places.join(" "))
        .expect("a String takes all text");
}

/// Draws them, with a legend right of the data.
pub(super) fn to_svg(chart: &Curves) -> String {
    let bottom = TOP + LINE_HEIGHT;
    let (left, right) = (90.0, LEGEND - 22.0);
    let points = || chart.curves.iter().flat_map(|curve| &curve.points);
    let others = || chart.limits.iter().flat_map(|(_, points)| points.iter().copied());
    let stars = || chart.stars.iter().map(|star| (star.x, star.y));
    let xs: Vec<f64> = points().map(|point| point.x).chain(others().chain(stars()).map(|(x, _)| x)).collect();
    let ys = points().flat_map(|point| [point.low, point.median, point.high]);
    let ys: Vec<f64> = ys.chain(others().chain(stars()).map(|(_, y)| y)).collect();
    let x = Scale::over(&chart.x, &xs, (left, right), false);
    let y = Scale::over(&chart.y, &ys, (bottom, TOP), true);
    let mut out = open_svg(bottom + AXIS, &chart.title);
    for tick in y.ticks() {
        stroke(&mut out, (left, y.place(tick)), (right, y.place(tick)), "stroke=\"#ddd\"");
        text(&mut out, left - 8.0, y.place(tick) + 4.0, "end", 12, &tick_label(tick, chart.y.quantity));
    }
    for tick in x.ticks_at(points().map(|point| point.x).collect()) {
        stroke(&mut out, (x.place(tick), TOP), (x.place(tick), bottom + 5.0), "stroke=\"#ddd\"");
        text(&mut out, x.place(tick), bottom + 20.0, "middle", 12, &tick_label(tick, chart.x.quantity));
    }
    stroke(&mut out, (left, bottom), (right, bottom), "stroke=\"#222\"");
    text(&mut out, (left + right) / 2.0, bottom + 42.0, "middle", 13, &chart.x.label);
    text(&mut out, 16.0, 46.0, "start", 13, &chart.y.label);
    text(&mut out, right, 46.0, "end", 11, "marker: median; bar: lowest to highest");
    draw_curves(&mut out, chart, &x, &y);
    out.push_str("</svg>\n");
    out
}

/// Limits, then peers, then Herd, then stars: what matters lies on top. The legend keeps the given order.
fn draw_curves(out: &mut String, chart: &Curves, x: &Scale, y: &Scale) {
    let mut legend = TOP + 8.0;
    for (index, (name, points)) in chart.limits.iter().enumerate() {
        let style = format!(
            "stroke=\"{}\" stroke-width=\"3.2\" stroke-dasharray=\"{}\"",
            LIMIT_CURVES[index % 3],
            ["7 4", "3 3", "10 3 2 3"][index % 3]
        );
        let places: Vec<(f64, f64)> = points.iter().map(|&(px, py)| (x.place(px), y.place(py))).collect();
        polyline(out, &places, &style);
        stroke(out, (LEGEND, legend), (LEGEND + 30.0, legend), &style);
        legend = legend_text(out, legend, name);
    }
    let looks = looks(&chart.curves);
    for rings in [true, false] {
        let all = chart.curves.iter().zip(&looks);
        all.filter(|(_, look)| look.ring == rings)
            .for_each(|(curve, look)| draw_curve(out, &curve.points, *look, x, y));
    }
    for (curve, look) in chart.curves.iter().zip(&looks) {
        let style = format!("stroke=\"{}\" stroke-width=\"{:.1}\"", look.colour, look.width);
        stroke(out, (LEGEND, legend), (LEGEND + 30.0, legend), &style);
        draw_marker(out, *look, (LEGEND + 15.0, legend));
        legend = legend_text(out, legend, &curve.name);
    }
    for star in &chart.stars {
        draw_star(out, star, &chart.stars, x, y);
    }
}

/// Writes a legend's entry, in as many lines as it needs; returns where the next begins.
fn legend_text(out: &mut String, mut y: f64, name: &str) -> f64 {
    let mut line = String::new();
    for word in name.split(' ') {
        if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > LEGEND_CHARS {
            text(out, LEGEND + 38.0, y + 4.0, "start", 12, &line);
            line.clear();
            y += 15.0;
        }
        line.push_str(if line.is_empty() { "" } else { " " });
        line.push_str(word);
    }
    text(out, LEGEND + 38.0, y + 4.0, "start", 12, &line);
    y + 22.0
}

fn draw_curve(out: &mut String, points: &[Point], look: Look, x: &Scale, y: &Scale) {
    let colour = look.colour;
    let places: Vec<(f64, f64)> = points.iter().map(|point| (x.place(point.x), y.place(point.median))).collect();
    polyline(out, &places, &format!("stroke=\"{colour}\" stroke-width=\"{:.1}\"", look.width));
    let style = format!("stroke=\"{colour}\" stroke-width=\"1.2\"");
    for (point, &(at, middle)) in points.iter().zip(&places) {
        let (low, high) = (y.place(point.low), y.place(point.high));
        stroke(out, (at, low), (at, high), &style);
        for end in [low, high] {
            stroke(out, (at - 4.0, end), (at + 4.0, end), &style);
        }
        draw_marker(out, look, (at, middle));
    }
}

/// A star, hollow, for it may lie on a curve, and its label below it, which turns away from the nearer side or from a
/// star close by.
fn draw_star(out: &mut String, star: &Star, others: &[Star], x: &Scale, y: &Scale) {
    let (px, py) = (x.place(star.x), y.place(star.y));
    let corner = |at: u32| {
        let (radius, angle) =
            (if at.is_multiple_of(2) { 9.0 } else { 3.8 }, f64::from(at) * std::f64::consts::PI / 5.0);
        format!("{:.1},{:.1}", px + radius * angle.sin(), py - radius * angle.cos())
    };
    let corners: Vec<String> = (0..10).map(corner).collect();
    let close = |other: &Star| (1.0..120.0).contains(&(x.place(other.x) - px)) && (y.place(other.y) - py).abs() < 36.0;
    let leftwards = px > (x.places.0 + x.places.1) / 2.0 || others.iter().any(close);
    let (anchor, dx) = if leftwards { ("end", -12.0) } else { ("start", 12.0) };
    let dy = if py > TOP + LINE_HEIGHT - 24.0 { -8.0 } else { 20.0 };
    writeln!(
        out,
        "<polygon points=\"{}\" fill=\"none\" stroke=\"{STAR}\" stroke-width=\"1.5\"/>\n<text x=\"{:.1}\" y=\"{:.1}\" \
         text-anchor=\"{anchor}\" font-size=\"12\" fill=\"{STAR}\" stroke=\"white\" stroke-width=\"3\" \
         paint-order=\"stroke\">{}</text>",
        corners.join(" "),
        px + dx,
        py + dy,
        escape(&star.label)
    )
    .expect("a String takes all text");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plot::Chart;

    /// All that curves can have.
    fn curves(log: bool) -> Curves {
        let point = |x: f64, median: f64| Point { x, median, low: median * 0.9, high: median * 1.15 };
        let curve = |name: &str, times: f64| {
            let points = [512.0, 8_192.0, 65_536.0, 1_048_576.0].map(|x: f64| point(x, times * x.sqrt() / 10.0));
            Curve { name: name.into(), points: points.to_vec() }
        };
        Curves {
            title: "Bytes a second <by size>".into(),
            x: Axis { label: "object size".into(), quantity: Quantity::Bytes, log: true },
            y: Axis { label: "MB/s".into(), quantity: Quantity::Plain, log },
            curves: vec![
                curve("herd wire", 1.1),
                curve("herd text", 1.05),
                curve("memcached text", 0.95),
                curve("redis", 0.8),
                curve("nginx, files in the page cache, one worker", 0.7),
                curve("null bulk", 1.3),
            ],
            limits: vec![
                ("link".into(), vec![(512.0, 118.0), (1_048_576.0, 118.0)]),
                ("half of the link".into(), vec![(512.0, 59.0), (1_048_576.0, 59.0)]),
            ],
            stars: vec![
                Star { label: "paper: 91 MB/s".into(), x: 1_048_576.0, y: 91.0 },
                Star { label: "paper: 4 MB/s".into(), x: 512.0, y: 4.0 },
            ],
        }
    }

    #[test]
    fn curves_have_all_their_parts_and_herd_on_top() {
        for log in [false, true] {
            let svg = crate::plot::to_svg(&Chart::Curves(curves(log)));
            for part in
                [">512 B<", ">8 KB<", ">1 MB<", ">MB/s<", ">object size<", ">link<", "paper: 91 MB/s", "&lt;by size"]
            {
                assert!(svg.contains(part), "{part}");
            }
            let drawn = |colour: &str| svg.find(&format!("fill=\"none\" stroke=\"{colour}\"")).expect("a curve");
            assert!(drawn(PEER_CURVES[1]) < drawn(OURS) && drawn(PEER) < drawn(OUR_CURVES[1]));
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        }
        let nothing = Curves { curves: vec![], limits: vec![], stars: vec![], ..curves(true) };
        assert!(!to_svg(&nothing).contains("NaN"));
    }

    #[test]
    fn curves_of_herd_that_lie_on_each_other_are_told_apart() {
        let curve = |name: &str| Curve { name: name.into(), points: Vec::new() };
        let looks = looks(&[curve("herd text"), curve("memcached"), curve("herd wire"), curve("herd http")]);
        let ours: Vec<&Look> = looks.iter().filter(|look| !look.ring).collect();
        assert_eq!(ours.len(), 3);
        for pair in ours.windows(2) {
            assert!(pair[0].times > pair[1].times && pair[0].width > pair[1].width, "what is drawn later is narrower");
            assert!(pair[0].colour != pair[1].colour && pair[0].marker != pair[1].marker);
        }
    }

    #[test]
    fn ticks_are_labelled_with_units() {
        let bytes = |value| tick_label(value, Quantity::Bytes);
        assert_eq!([512.0, 8_192.0, 1_048_576.0, 1e6, 1_536.0].map(bytes), ["512 B", "8 KB", "1 MB", "1 MB", "1.5 KB"]);
        let plain = |value| tick_label(value, Quantity::Plain);
        assert_eq!([0.0, 0.05, 2.5, 1_024.0, 12_345.0, -1_234_567.0].map(plain)[..3], ["0", "0.05", "2.5"]);
        assert_eq!([1_024.0, 12_345.0, -1_234_567.0].map(plain), ["1024", "12,345", "-1,234,567"]);
    }

    #[test]
    fn scales_hold_their_values() {
        let axis = |log| Axis { label: "l".into(), quantity: Quantity::Plain, log };
        for (log, values) in [(true, [3.0, 90_000.0]), (false, [0.2, 7.0]), (true, [5.0, 5.0]), (false, [5.0, 5.0])] {
            let scale = Scale::over(&axis(log), &values, (0.0, 100.0), true);
            let places = values.map(|value| scale.place(value));
            assert!(places.iter().all(|place| (0.0..100.0).contains(place)), "{places:?}");
            let ticks = scale.ticks();
            assert!((1..=13).contains(&ticks.len()), "{ticks:?}");
        }
    }
}
