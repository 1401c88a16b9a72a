"""Draws one chart, given as JSON on stdin, as the PNG named by the first argument. Needs matplotlib."""
import json
import sys

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

chart = json.load(sys.stdin)


def colour(arm):
    if arm.startswith("herd"):
        return "#1f6f54"
    return "#c9b79c" if arm.startswith(("null", "iperf")) else "#7d8fa9"


if chart["kind"] == "line":
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
