"""Figures for papers: charts drawn by matplotlib, as wide as a column or a page, with type of 8 points."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from fedloom.errors import BadExperiment
from fedloom.evaluate.wording import direction
from fedloom.report.charts import Bars, Curves, Map, Maps, Parallels, Ranks, Row, Strips, Timeline, spaced
from fedloom.report.figure_parallel import draw_parallel
from fedloom.report.figure_timeline import draw_timeline
from fedloom.report.recorded import as_floats
from fedloom.report.sections import Section

COLUMN, PAGE = 3.5, 7.1  # inches
DASHES = {"solid": "-", "dash": "--", "dot": ":", "dashdot": "-."}
STYLE: dict[Any, Any] = {
    "font.size": 8, "axes.titlesize": 8, "axes.labelsize": 8, "legend.fontsize": 7, "xtick.labelsize": 7,
    "ytick.labelsize": 7, "axes.linewidth": 0.6, "lines.linewidth": 1.2, "axes.spines.top": False,
    "axes.spines.right": False, "legend.frameon": False, "pdf.fonttype": 42, "savefig.dpi": 300,
    "xtick.major.width": 0.6, "ytick.major.width": 0.6, "font.family": "sans-serif", "text.usetex": False,
}  # fmt: skip
COLOURS = "Blues"


def check_figures(folder: Path) -> None:
    """Refuse, before anything is read, figures that could not be drawn or written."""
    if find_spec("matplotlib") is None:
        raise BadExperiment("figures need matplotlib, which is not installed; pip install 'fedloom[report]'.")
    if folder.exists() and not folder.is_dir():
        raise BadExperiment(f"'{folder}' is a file; name a folder for the figures.")


def write_figures(sections: list[Section], folder: Path, ending: str) -> list[Path]:
    """Write one file per chart (per axis of curves, per group of maps) and return their names."""
    check_figures(folder)
    import matplotlib as mpl  # type: ignore[import-not-found, unused-ignore]

    folder.mkdir(parents=True, exist_ok=True)
    written = []
    with mpl.rc_context(STYLE):
        for section in sections:
            for name, draw in _pictures(section):
                figure = draw()
                written.append(folder / f"{name}.{ending}")
                figure.savefig(written[-1])
    return written


def _pictures(section: Section) -> list[tuple[str, Callable[[], Any]]]:
    """File names of a section, and functions that draw their figures."""
    chart, key = section.chart, section.key
    if isinstance(chart, Curves):
        return [(f"{key}-{axis}", lambda axis=axis: _curves(chart, axis)) for axis in chart.axes]  # type: ignore[misc]
    if isinstance(chart, Bars):
        return [(key, lambda: _stack(chart) if chart.stacked else _bars(chart))]
    if isinstance(chart, Ranks):
        return [(key, lambda: _ranks(chart))]
    if isinstance(chart, Strips):
        return [(f"{key}-{slug(label, place)}", lambda label=label: _strips(chart, label))  # type: ignore[misc]
                for place, label in enumerate(chart.by)]  # fmt: skip
    if isinstance(chart, Maps):
        return [(f"{key}-{slug(label, place)}" + (f"-{what.split()[0]}" if len(chart.scales) > 1 else ""),
                 lambda label=label, what=what: _map(chart, label, what))  # type: ignore[misc]
                for place, label in enumerate(chart.by) for what in chart.scales]  # fmt: skip
    if isinstance(chart, Parallels):
        return [(f"{key}-{slug(label, place)}",
                 lambda label=label, one=one: draw_parallel(one, label, chart.scale))  # type: ignore[misc]
                for place, (label, one) in enumerate(chart.by.items())]  # fmt: skip
    if isinstance(chart, Timeline):
        return [(f"{key}-{slug(label, place)}" + (f"-{when}" if len(windows) > 1 else ""),
                 lambda lanes=lanes: draw_timeline(chart, lanes))  # type: ignore[misc]
                for place, (label, windows) in enumerate(chart.by.items())
                for when, lanes in windows.items()]  # fmt: skip
    return []


def slug(label: str, place: int) -> str:
    """A group's label for a file name: its number and method, without settings."""
    method = re.sub(r"[^a-z0-9]+", "-", label.partition(",")[0].lower()).strip("-")[:40]
    return f"{place + 1}-{method}".strip("-")


def _axes(wide: float, high: float) -> tuple[Any, Any]:
    from matplotlib.figure import Figure  # type: ignore[import-not-found, unused-ignore]

    figure = Figure(figsize=(wide, high), layout="constrained")
    return figure, figure.add_subplot()


def _curves(chart: Curves, axis: str) -> Any:
    figure, axes = _axes(COLUMN, 2.5)
    score = chart.score
    for line in chart.lines:
        if axis not in line.x or score.name not in line.y:
            continue
        band, x = line.y[score.name], line.x[axis]
        style = DASHES[line.group.dash]
        axes.plot(x, as_floats(band.mean), color=line.group.colour, ls=style, label=plain_text(line.group.label))
        if len(line.group.runs) > 1:
            axes.fill_between(x, as_floats(band.low), as_floats(band.high), color=line.group.colour, alpha=0.18, lw=0)
    for target in chart.targets:
        axes.axhline(target, color="0.45", lw=0.8, ls=":")
    words = chart.measures[score.name] + (f" ({direction(score)})" if direction(score) else "")
    axes.set(xlabel=chart.axes[axis], ylabel=plain_text(words), xlim=(0, None))
    if chart.from_zero:
        axes.set_ylim(0, None)
    if score.name in chart.shares:
        _percent(axes.yaxis)
    _legend(figure)
    return figure


def _ranks(chart: Ranks) -> Any:
    figure, axes = _axes(COLUMN, 2.5)
    for group, values in chart.groups:
        x = 100 * (np.arange(len(values)) + 0.5) / len(values)
        axes.plot(x, values, color=group.colour, ls=DASHES[group.dash], label=plain_text(group.label))
    axes.set(xlabel=chart.across, ylabel=plain_text(chart.unit), xlim=(0, 100))
    if chart.share:
        axes.set(ylim=(-0.02, 1.02))
        _percent(axes.yaxis)
    _legend(figure)
    return figure


def _bars(chart: Bars) -> Any:
    figure, axes = _axes(PAGE if len(chart.categories) * len(chart.series) > 16 else COLUMN, 2.4)
    each, places = 0.8 / len(chart.series), np.arange(len(chart.categories))
    for place, one in enumerate(chart.series):
        heights = as_floats(one.values)
        error = None
        if one.low is not None and one.high is not None:
            error = np.nan_to_num([heights - as_floats(one.low), as_floats(one.high) - heights]).clip(min=0)
        x = places + (place - (len(chart.series) - 1) / 2) * each
        axes.bar(x, heights, each, yerr=error, color=one.colour, label=plain_text(one.label), error_kw={"lw": 0.6})
    _names_across(axes, places.tolist(), chart.categories)
    axes.set(xlabel=chart.across, ylabel=chart.unit, ylim=(0, chart.top))
    _percent(axes.yaxis)
    _legend(figure)
    return figure


def _stack(chart: Bars) -> Any:
    figure, axes = _axes(COLUMN, 0.9 + 0.28 * len(chart.categories))
    start, places = np.zeros(len(chart.categories)), np.arange(len(chart.categories))
    for one in chart.series:
        wide = np.nan_to_num(as_floats(one.values))
        axes.barh(places, wide, 0.62, left=start, color=one.colour, label=plain_text(one.label))
        start = start + wide
    axes.set_yticks(places, [plain_text(name) for name in chart.categories])
    axes.invert_yaxis()
    axes.set(xlabel=chart.unit, xlim=(0, chart.top))
    _legend(figure)
    return figure


def _map(chart: Maps, label: str, what: str) -> Any:
    table, (words, top) = chart.by[label][what], chart.scales[what]
    figure, axes = _axes(COLUMN, 3.2 if chart.square else 2.8)
    if chart.square:
        image = axes.imshow(_array(table.z), cmap=COLOURS, interpolation="nearest")
        every = max(1, len(table.x) // 8)
        _names_across(axes, range(0, len(table.x), every), [str(name) for name in table.x[::every]])
        axes.set_yticks(range(0, len(table.y), every), [plain_text(str(name)) for name in table.y[::every]])
    else:
        down = np.arange(len(table.y)) if _named(table) else np.array(table.y)
        image = axes.pcolormesh(np.array(table.x), down, _array(table.z), cmap=COLOURS, vmin=0, vmax=top,
                                shading="nearest", rasterized=True)  # fmt: skip
        if _named(table):
            some = spaced(len(table.y), 12)
            axes.set_yticks(some, [plain_text(str(table.y[place])) for place in some])
        axes.invert_yaxis()
    axes.set(xlabel=chart.across, ylabel=chart.down, title=plain_text(label))
    figure.colorbar(image, ax=axes, label=words, shrink=0.8)
    return figure


def _strips(chart: Strips, label: str) -> Any:
    from matplotlib.figure import Figure  # type: ignore[import-not-found, unused-ignore]

    strips = chart.by[label]
    figure = Figure(figsize=(COLUMN, 0.7 + 0.3 * len(strips)), layout="constrained")
    many = figure.subplots(len(strips), 1, squeeze=False)[:, 0]
    for axes, (name, neurons, values) in zip(many, strips):
        image = axes.imshow(_array([values]), cmap=COLOURS, vmin=0, vmax=1, aspect="auto", interpolation="nearest")
        axes.set_yticks([0], [f"{plain_text(name)} ({neurons})"])
        axes.set_xticks([])
        axes.tick_params(length=0)
    many[0].set_title(plain_text(label))
    figure.colorbar(image, ax=list(many), label=chart.scale)
    return figure


def _names_across(axes: Any, places: Sequence[int], names: list[str]) -> None:
    """Names below the places of the horizontal axis, slanted where they are longer than numbers."""
    long = max((len(name) for name in names), default=0) > 4
    slanted = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"} if long else {}
    axes.set_xticks(places, [plain_text(name) for name in names], **slanted)


def _named(table: Map) -> bool:
    """Whether the rows have names in place of numbers."""
    return any(isinstance(name, str) for name in table.y)


def _array(rows: list[Row]) -> np.ndarray:
    return np.array([as_floats(row) for row in rows])


def _percent(axis: Any) -> None:
    from matplotlib.ticker import PercentFormatter  # type: ignore[import-not-found, unused-ignore]

    axis.set_major_formatter(PercentFormatter(1.0, decimals=0))


def _legend(figure: Any) -> None:
    """Add a legend above the figure, where it covers nothing."""
    entries = figure.axes[0].get_legend_handles_labels()
    wide = max((len(name) for name in entries[1]), default=0)
    figure.legend(*entries, loc="outside upper center", ncols=max(1, min(4, 52 // (wide + 6))), columnspacing=1.2)


def plain_text(text: str) -> str:
    """Escape a name, since matplotlib reads formulas between dollar signs."""
    return text.replace("$", r"\$")
