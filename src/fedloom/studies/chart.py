"""Charts of a plan's trade-off: time against bytes, on a terminal or as a picture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from math import log
from pathlib import Path
from string import ascii_letters

from fedloom.accel.machine import duration, size
from fedloom.errors import BadExperiment
from fedloom.evaluate.wording import label_of
from fedloom.studies.plan import Plan

PICTURES = (".svg", ".png", ".pdf")
WIDTH, HEIGHT = 60, 12  # characters


def letters(plan: Plan) -> dict[str, str]:
    """A letter for each option of the trade-off, the soonest first."""
    return {option.name: letter for option, letter in zip(plan.front, ascii_letters)}


def text_chart(plan: Plan) -> str:
    """The options by time and bytes, on logarithmic axes: letters for the trade-off, dots for all others."""
    if not plan.options:
        return ""
    marks, grid = letters(plan), [[" "] * WIDTH for _ in range(HEIGHT)]
    across = _places([option.seconds for option in plan.options], WIDTH)
    up = _places([option.bytes for option in plan.options], HEIGHT)
    points = sorted(zip(plan.options, across, up), key=lambda point: point[0].name not in marks)  # letters first
    for option, column, row in points:
        line, mark = grid[HEIGHT - 1 - row], marks.get(option.name, "\N{MIDDLE DOT}")
        if option.name in marks:  # if the place is taken, the nearest free one in the line
            free = [place for place in range(WIDTH) if line[place] == " "]
            line[min(free, key=lambda place, column=column: abs(place - column - 0.1))] = mark  # type: ignore[misc]
        elif line[column] == " ":
            line[column] = mark
    high, low = (size(pick(option.bytes for option in plan.options)) for pick in (max, min))
    soon, late = (duration(pick(option.seconds for option in plan.options)) for pick in (min, max))
    edge = max(len(high), len(low), len("bytes"))
    names = [high, *[""] * (HEIGHT - 2), low]
    lines = [f"{name:>{edge}} \N{BOX DRAWINGS LIGHT VERTICAL}{''.join(row)}".rstrip() for name, row in zip(names, grid)]
    floor = "\N{BOX DRAWINGS LIGHT UP AND RIGHT}" + "\N{BOX DRAWINGS LIGHT HORIZONTAL}" * WIDTH
    ends = f"{soon}{'virtual time':^{max(14, WIDTH - len(soon) - len(late))}}{late}"
    return "\n".join([f"{'bytes':>{edge}}", *lines, f"{'':{edge}} {floor}", f"{'':{edge}}  {ends}"])


def _places(values: Sequence[float], cells: int) -> list[int]:
    """The cell of each value on a logarithmic axis of `cells` cells."""
    logs = [log(max(value, 1e-9)) for value in values]
    low, span = min(logs), (max(logs) - min(logs)) or 1.0
    return [round((value - low) / span * (cells - 1)) for value in logs]


def check_chart(path: Path) -> None:
    """Refuse, before anything is simulated, a picture that could not be drawn."""
    if path.suffix not in PICTURES:
        raise BadExperiment(f"chart is '{path}'; expected a file that ends in {', '.join(PICTURES)}.")
    if not path.absolute().parent.is_dir():
        raise BadExperiment(f"chart is '{path}', and there is no folder '{path.parent}'; make it first.")
    if find_spec("matplotlib") is None:
        raise BadExperiment("chart needs matplotlib, which is not installed; pip install 'fedloom[plots]'.")


def draw_chart(plan: Plan, path: Path) -> None:
    """Draw the options as a picture: point size is energy, a line joins the trade-off, a legend names it."""
    check_chart(path)
    from matplotlib.figure import Figure  # type: ignore[import-not-found, unused-ignore]
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator  # type: ignore[import-not-found, unused-ignore]

    figure, marks = Figure(figsize=(9, 5), layout="constrained"), letters(plan)
    axes = figure.add_subplot(xscale="log", yscale="log", xlabel="virtual time to the target", ylabel="bytes moved")
    axes.margins(0.12)
    axes.set_title(f"to reach {label_of(plan.score)} {plan.target:g}")
    most = max((option.joules for option in plan.options), default=1.0) or 1.0
    named: dict[tuple[float, float], list[str]] = {}  # options at one point share its label
    for option in plan.options:
        mark, at = marks.get(option.name), (option.seconds, option.bytes)
        named.setdefault(at, []).append(mark or option.name)
        label = None if mark is None else f"{mark}  {option.name}"
        colour = "lightgrey" if mark is None else "tab:blue"
        axes.scatter(*at, s=20 + 180 * option.joules / most, color=colour, label=label, zorder=2)
    for at, names in named.items():
        axes.annotate(", ".join(names), at, (7, 7), textcoords="offset points", fontsize=8, annotation_clip=False)
    axes.plot([o.seconds for o in plan.front], [o.bytes for o in plan.front], color="tab:blue", lw=1, zorder=1)
    writers: tuple[Callable[[float], str], ...] = (duration, size)
    for axis, write in zip((axes.xaxis, axes.yaxis), writers):
        axis.set_major_locator(LogLocator(subs=(1.0, 1.5, 2.0, 3.0, 5.0, 7.0)))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(FuncFormatter(lambda value, _, write=write: write(value)))
    if marks:
        axes.legend(loc="center left", bbox_to_anchor=(1.02, 0.5), fontsize=8, frameon=False, handlelength=0)
    figure.savefig(path)
