"""A LaTeX table for papers (booktabs): means over seeds with 95 % intervals."""

from __future__ import annotations

from pathlib import Path

from fedloom.evaluate.targets import Interval, cost_of
from fedloom.report.curves import largest_unit
from fedloom.report.group import Group
from fedloom.report.tables import AXES, HEADS, costs_of, final_of, own_target

SPECIAL = {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
}  # fmt: skip


def latex_table(groups: list[Group], targets: tuple[float, ...]) -> str:
    """Final accuracy of each group, and its costs to reach each target."""
    targets = targets or own_target(groups)
    costs = {(group.place, t): costs_of(group, t) for group in groups for t in targets}
    shown = [(t, what) for t in targets for what in AXES if any(cost_of(costs[g.place, t], what) for g in groups)]
    units = {what: _unit(what, [cost_of(costs[g.place, t], what) for g in groups for t in targets]) for what in AXES}
    lines = [
        "% needs \\usepackage{booktabs}; means over seeds, $\\pm$ is half the 95 % interval (Student's t)",
        f"\\begin{{tabular}}{{lr{'r' * len(shown)}}}",
        "\\toprule",
    ]
    if targets:
        spans = [(t, sum(own == t for own, _ in shown)) for t in targets]
        heads = [f"\\multicolumn{{{wide}}}{{c}}{{to {100 * t:g}\\,\\%}}" for t, wide in spans if wide]
        lines.append(" & ".join(["", "", *heads]).strip() + " \\\\")
        column = 3
        for _, wide in spans:
            if wide:
                lines.append(f"\\cmidrule(lr){{{column}-{column + wide - 1}}}")
            column += wide
    names = [f"{HEADS[what]}{f' ({units[what][1]})' if units[what][1] else ''}" for _, what in shown]
    lines += [" & ".join(["method", "accuracy (\\%)", *names]) + " \\\\", "\\midrule"]
    for group in groups:
        cells = [escape_latex(group.label), _number(final_of(group), 0.01, 1)]
        for t, what in shown:
            own = costs[group.place, t]
            text = _number(cost_of(own, what), units[what][0], 1)
            missed = (
                f" ({len(own)} of {len(group.runs)})" if what == "rounds" and 0 < len(own) < len(group.runs) else ""
            )
            cells.append(text + missed)
        lines.append(" & ".join(cells) + " \\\\")
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}", ""])


def write_latex(groups: list[Group], targets: tuple[float, ...], file: Path) -> None:
    """Write the table as a file."""
    file.write_text(latex_table(groups, targets))


def _unit(what: str, values: list[Interval | None]) -> tuple[float, str]:
    """One unit for a whole column."""
    return largest_unit(AXES[what], max((value.mean for value in values if value is not None), default=0.0))


def _number(value: Interval | None, unit: float, digits: int) -> str:
    """A mean and half its interval in math mode; a dash where there is none."""
    if value is None:
        return "--"
    half = "" if not value.half else f" \\pm {value.half / unit:.{digits}f}"
    return f"${value.mean / unit:.{digits}f}{half}$"


def escape_latex(text: str) -> str:
    """Escape LaTeX's special characters; characters outside ASCII stay as they are."""
    return "".join(SPECIAL.get(letter, letter) for letter in text)
