"""The timeline as a figure: thin bars are transfers, thick ones training, hairlines the wait for a step."""

from __future__ import annotations

from typing import Any

from fedloom.report.charts import Lanes, Span, Timeline
from fedloom.report.plotly_timeline import LABELS, THICK, THIN
from fedloom.report.tasks import COUNTED

FRESH, STALE = "#8ec1e6", "#08306b"
GREY, GRID = "0.45", "0.92"
WIDE = 7.1  # inches
DIGIT = 0.008  # of the window: what a digit takes


def draw_timeline(chart: Timeline, lanes: Lanes) -> Any:
    """The figure of one window."""
    from matplotlib.colors import LinearSegmentedColormap, Normalize  # type: ignore[import-not-found, unused-ignore]
    from matplotlib.figure import Figure  # type: ignore[import-not-found, unused-ignore]
    from matplotlib.patches import Patch  # type: ignore[import-not-found, unused-ignore]

    figure = Figure(figsize=(WIDE, 0.9 + 0.16 * len(lanes.names)), layout="constrained")
    axes = figure.add_subplot()
    colours = LinearSegmentedColormap.from_list("staleness", [FRESH, STALE])
    scale = Normalize(0, max(1, lanes.oldest))
    for lane in range(len(lanes.names)):
        axes.axhline(lane, color=GRID, lw=0.5, zorder=0)
    for _, at in lanes.steps:
        axes.axvline(at, color="0.75", lw=0.5, zorder=1)
    for span in lanes.spans:
        colour = colours(scale(span.staleness)) if span.fate == COUNTED else chart.fates[span.fate][1]
        _draw(axes, chart, lanes, span, colour)
    every = -(-len(lanes.steps) // LABELS) if lanes.steps else 1
    for number, at in lanes.steps[every - 1 :: every]:
        axes.annotate(str(number), (at, -0.65), ha="center", va="bottom", fontsize=6, color=GREY, annotation_clip=True)
    axes.set_yticks(range(len(lanes.names)), [name.replace("$", r"\$") for name in lanes.names], fontsize=6)
    axes.tick_params(axis="y", length=0)
    axes.set(xlim=(lanes.start, lanes.end), ylim=(len(lanes.names) - 0.4, -1.5), xlabel=lanes.axis,
             ylabel="clients, the fastest on top")  # fmt: skip
    occur = {span.fate for span in lanes.spans}
    patches = [Patch(color=colour, label=words) for fate, (words, colour) in chart.fates.items() if fate in occur]
    if lanes.oldest:
        from matplotlib.cm import ScalarMappable  # type: ignore[import-not-found, unused-ignore]

        bar = figure.colorbar(ScalarMappable(scale, colours), ax=axes, shrink=0.6, pad=0.01, aspect=25)
        bar.set_label("staleness of replies that counted")
    else:
        patches = [Patch(color=FRESH, label="replies that counted"), *patches]
    if patches:
        figure.legend(handles=patches, loc="outside upper center", ncols=min(6, len(patches)), columnspacing=1.2)
    return figure


def _draw(axes: Any, chart: Timeline, lanes: Lanes, span: Span, colour: Any) -> None:
    """One task."""
    down, compute, up = span.phases
    begin, end = span.start + down, span.start + down + compute
    axes.broken_barh([(span.start, down), (end, up)], (span.lane - THIN / 2, THIN), color=colour, lw=0, zorder=2)
    axes.broken_barh([(begin, compute)], (span.lane - THICK / 2, THICK), color=colour, lw=0.4, zorder=2)  # to be seen
    if span.taken is None:
        return
    axes.plot([end + up, span.taken], [span.lane] * 2, color=GREY, lw=0.5, zorder=2)
    axes.plot([span.taken], [span.lane], ".", color=GREY, ms=1.8, zorder=3)
    needed = (len(str(span.staleness)) + 1) * DIGIT * lanes.wide
    inside = compute > needed
    right = end if inside else end + up
    if not lanes.oldest or sum(span.phases) < needed or not lanes.start + needed < right < lanes.end:
        return
    if inside:
        dark = span.staleness > 0.4 * lanes.oldest
        axes.text(right - needed / 5, span.lane, str(span.staleness), ha="right", va="center_baseline", fontsize=5,
                  color="white" if dark else "0.15", zorder=4)  # fmt: skip
    else:
        axes.text(right, span.lane - 0.1, str(span.staleness), ha="right", va="bottom", fontsize=5, color=GREY)
