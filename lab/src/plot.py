"""Draws one chart, given as JSON on stdin, as the PNG named by the first argument. Needs matplotlib."""
import json
import sys
import textwrap

import matplotlib

matplotlib.use("Agg")
from matplotlib import patheffects, pyplot, ticker

chart = json.load(sys.stdin)


def colour(arm):
    if arm.startswith("herd"):
        return "#1f6f54"
    return "#c9b79c" if arm.startswith(("null", "iperf")) else "#7d8fa9"


def shades(names):
    """Colour of each curve in order: as plot.rs has them."""
    left = {
        "#1f6f54": ["#1f6f54", "#59b08c", "#0f3b2d"],
        "#7d8fa9": ["#7d8fa9", "#33486b", "#a8b8cf", "#4f7cab", "#5b6470"],
        "#c9b79c": ["#c9b79c"],
    }
    for kin in map(colour, names):
        left[kin].append(left[kin].pop(0))
        yield left[kin][-1]


def tick_label(value, quantity):
    if quantity == "plain":
        digits = f"{value:.0f}" if abs(value) >= 100 else f"{value:.3f}".rstrip("0").rstrip(".")
        return f"{int(digits):,}" if abs(value) >= 10_000 else digits
    base = 1000 if value >= 1000 and value % 1000 == 0 else 1024
    power = max((power for power in range(5) if value >= base**power), default=0)
    return f"{round(value / base**power, 1):g} {('B', 'KB', 'MB', 'GB', 'TB')[power]}"


def draw_axes(axes, chart):
    """Scales, ticks at what was measured where that is little and apart, and labels."""
    for axis, name in ((axes.xaxis, "x"), (axes.yaxis, "y")):
        told = chart[name]
        if told["log"]:
            getattr(axes, f"set_{name}scale")("log")
            axis.set_minor_locator(ticker.NullLocator())
            low, high = axis.get_view_interval()
            few = high / low < 2000
            axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5) if few else (1,)))
        form = ticker.FuncFormatter(lambda value, _, quantity=told["quantity"]: tick_label(value, quantity))
        axis.set_major_formatter(form)
    if not chart["y"]["log"]:
        axes.set_ylim(0, axes.get_ylim()[1] * 1.04)
    values = sorted({point["x"] for curve in chart["curves"] for point in curve["points"]})
    places = [axes.transData.transform((value, 1))[0] for value in values]
    if len(values) > 1 and all(right - left >= 40 for left, right in zip(places, places[1:])):
        axes.set_xticks(values)
    axes.grid(alpha=0.4)
    axes.set_axisbelow(True)
    axes.set_xlabel(chart["x"]["label"])
    axes.set_ylabel(chart["y"]["label"] + "\n(marker: median; bar: lowest to highest)")


def draw_star(axes, star, others):
    """Hollow, for it may lie on a curve; its label below it, away from the nearer side or from a star close by."""
    axes.plot(
        star["x"], star["y"], "*", markerfacecolor="none", markeredgecolor="#b03a2e", markersize=15, markeredgewidth=1.5, zorder=6
    )
    places = axes.transAxes.inverted().transform(axes.transData.transform([(one["x"], one["y"]) for one in (star, *others)]))
    place = places[0]
    left = place[0] > 0.5 or any(0 < other[0] - place[0] < 0.2 and abs(other[1] - place[1]) < 0.1 for other in places[1:])
    label = axes.annotate(
        star["label"], (star["x"], star["y"]), (-9 if left else 9, 6 if place[1] < 0.06 else -16),
        textcoords="offset points", ha="right" if left else "left", fontsize=9, color="#b03a2e", zorder=7,
    )
    label.set_path_effects([patheffects.withStroke(linewidth=3, foreground="white")])


def draw_curves(chart):
    figure, axes = pyplot.subplots(figsize=(9, 4.6))
    for index, (name, points) in enumerate(chart["limits"]):
        style = {"color": ("#8a6d3b", "#b59a68", "#5e4a28")[index % 3], "linestyle": ("--", (0, (2, 2)), "-.")[index % 3]}
        axes.plot([x for x, _ in points], [y for _, y in points], label=name, linewidth=3.2, zorder=2, **style)
    names = [curve["name"] for curve in chart["curves"]]
    others = 0
    for index, (curve, shade) in enumerate(zip(chart["curves"], shades(names))):
        # Curves that lie on each other must still be seen: Herd's small and full on top, others as wider rings.
        ours = curve["name"].startswith("herd")
        size = 5.5 if ours else 8.5 + 2 * others
        others += not ours
        points = curve["points"]
        median = [point["median"] for point in points]
        below = [point["median"] - point["low"] for point in points]
        above = [point["high"] - point["median"] for point in points]
        axes.errorbar(
            [point["x"] for point in points], median, yerr=[below, above], label=textwrap.fill(curve["name"], 26), color=shade,
            marker="os^Dvp"[index % 6], markersize=size, markeredgecolor="white" if ours else shade, linewidth=1.3,
            markerfacecolor=shade if ours else "none", markeredgewidth=0.6 if ours else 1.5, capsize=3,
            zorder=5 if ours else 3,
        )
    draw_axes(axes, chart)
    for star in chart["stars"]:
        draw_star(axes, star, chart["stars"])
    if names or chart["limits"]:
        axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.02), fontsize=9, frameon=False)
    return figure, axes


if chart["kind"] == "curves":
    figure, axes = draw_curves(chart)
elif chart["kind"] == "line":
    figure, axes = pyplot.subplots(figsize=(9, 4.5))
    axes.plot(chart["values"], color=colour("herd"))
    axes.axhline(chart["limit"], color="#b03a2e", linestyle="--", label=f"limit {chart['limit']:.0f}")
    axes.set_xlabel("seconds")
    axes.set_ylabel(chart["unit"])
    axes.set_ylim(bottom=0)
    axes.legend()
else:
    rows = sum(len(bars) + 1 for _, bars in chart["groups"])
    figure, axes = pyplot.subplots(figsize=(9, 1.2 + 0.27 * rows))
    row, labels = 0, []
    for group, bars in chart["groups"]:
        labels.append((row, group, True))
        row += 1
        for bar in bars:
            spread = [[bar["median"] - bar["low"]], [bar["high"] - bar["median"]]]
            axes.barh(row, bar["median"], xerr=spread, color=colour(bar["arm"]), capsize=3)
            label = f"{bar['median']:,.0f}" if bar["median"] >= 100 else f"{bar['median']:.3g}"
            axes.annotate(label, (bar["high"], row), (5, -4), textcoords="offset points", fontsize=8)
            labels.append((row, bar["arm"], False))
            row += 1
    axes.set_yticks([label[0] for label in labels], [label[1] for label in labels])
    for tick, label in zip(axes.get_yticklabels(), labels):
        tick.set_fontweight("bold" if label[2] else "normal")
        tick.set_fontsize(9)
    axes.invert_yaxis()
    axes.grid(axis="x", alpha=0.4)
    axes.set_axisbelow(True)
    axes.set_xlim(left=0)
    axes.set_xlabel(chart["unit"] + " (median; whisker: lowest to highest round)")
axes.set_title(chart["title"], fontsize=11)
figure.tight_layout()
figure.savefig(sys.argv[1], dpi=130)
