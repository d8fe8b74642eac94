"""Parallel coordinates as a figure."""

from __future__ import annotations

from typing import Any

from fedloom.report.charts import Parallel
from fedloom.report.plotly_parallel import BEST, COLOUR, FAINTEST

WIDE, HIGH = 3.5, 2.6  # inches


def draw_parallel(chart: Parallel, title: str, scale: str) -> Any:
    """A line for each choice of settings: the better the darker, the best in red."""
    from matplotlib.figure import Figure  # type: ignore[import-not-found, unused-ignore]

    figure = Figure(figsize=(WIDE, HIGH), layout="constrained")
    axes, last = figure.add_subplot(), len(chart.paths) - 1
    for rank, route in enumerate(chart.paths):
        shade = FAINTEST + (1 - FAINTEST) * rank / max(1, last)
        colour = BEST if rank == last else tuple(part / 255 for part in COLOUR)
        axes.plot(route.places, color=colour, alpha=1 if rank == last else shade, lw=1.6 if rank == last else 0.9)
    for place, axis in enumerate(chart.axes):
        axes.axvline(place, color="0.8", lw=0.6, zorder=0)
        for at, text in axis.ticks:
            axes.annotate(text, (place, at), (0, 3 if at > 0.5 else -3), textcoords="offset points", fontsize=6,
                          ha="center", va="bottom" if at > 0.5 else "top")  # fmt: skip
    names = [axis.name for axis in chart.axes[:-1]] + [scale.replace(" on ", "\non ", 1)]
    axes.set_xticks(range(len(chart.axes)), [name.replace("$", r"\$") for name in names])
    axes.set(ylim=(-0.12, 1.12), xlim=(-0.3, len(chart.axes) - 0.7), title=title.replace("$", r"\$"), yticks=[])
    axes.spines["left"].set_visible(False)
    return figure
