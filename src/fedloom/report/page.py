"""The report as one HTML page that contains styles, plotly.js and numbers and loads nothing."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from html import escape
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

from fedloom.errors import BadExperiment, RunStopped
from fedloom.files import replace_file
from fedloom.report.charts import Cells
from fedloom.report.command_line import command_of
from fedloom.report.group import Group, flat, plain, read_groups
from fedloom.report.plotly_charts import plotly_chart
from fedloom.report.sections import Section, sections_of
from fedloom.report.tables import check_targets, own_target

COPY = '<button type="button" class="copy">copy</button>'
SETUP = ("data", "partition", "model", "clients", "fleet", "rounds")  # shown where all runs agree


def check_page(out: Path) -> None:
    """Refuse, before anything is read, a page that could not be written."""
    if find_spec("plotly") is None:
        raise BadExperiment("report needs plotly, which is not installed; pip install plotly.")
    if not out.absolute().parent.is_dir():
        raise BadExperiment(f"out is '{out}', and there is no folder '{out.absolute().parent}'; make it first.")
    if out.is_dir():
        raise BadExperiment(f"out is '{out}', which is a folder; name a file, such as report.html.")


def write_report(
    runs: Sequence[Path | str], out: Path | str, targets: Sequence[float] = (), title: str | None = None
) -> None:
    """Write the report of these run folders into one HTML file; `targets` are scores to reach."""
    check_page(Path(out))
    groups, notes = read_groups([Path(run) for run in runs])
    asked = check_targets(groups, targets)
    sections = sections_of(groups, asked or own_target(groups), chosen=not asked)
    write_page(groups, notes, sections, Path(out), title)


def write_page(groups: list[Group], notes: list[str], sections: list[Section], out: Path, title: str | None) -> None:
    """Write the page of groups that were read."""
    with saving(out):
        replace_file(out, [page_of(groups, notes, sections, title).encode()])


@contextmanager
def saving(out: Path) -> Iterator[None]:
    """Turn errors of the disk into `RunStopped`."""
    try:
        yield
    except OSError as problem:
        raise RunStopped(f"cannot write '{out}': {problem.strerror or problem}; name another place.") from problem


def page_of(groups: list[Group], notes: list[str], sections: list[Section], title: str | None = None) -> str:
    """The page as HTML."""
    from plotly.offline import get_plotlyjs  # type: ignore[import-untyped, unused-ignore]

    charts = [{"key": one.key, **plotly_chart(one.chart)} for one in sections if one.chart is not None]
    numbers = json.dumps(charts, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    name = title or title_of(groups)
    scripts = [get_plotlyjs(), asset("page.js")]
    hashes = " ".join(f"'sha256-{b64encode(sha256(s.encode()).digest()).decode()}'" for s in scripts)
    rules = f"default-src 'none'; style-src 'unsafe-inline'; script-src {hashes}; img-src data: blob:"
    body = "\n".join(_section(section) for section in sections)
    links = " ".join(f'<a href="#{one.key}">{escape(one.title)}</a>' for one in sections)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{rules}">
<title>{escape(name)}</title>
<style>
{asset("page.css")}
</style>
</head>
<body>
<header>
<h1>{escape(name)}</h1>
<p class="setup">{escape(setup_of(groups))}</p>
{_notes(notes)}
<nav aria-label="sections">{links} <a href="#experiments">Experiments</a></nav>
<noscript><p>The charts need JavaScript; the tables do not.</p></noscript>
</header>
<main>
{body}
{_experiments(groups)}
</main>
<footer>Made by <code>fedloom report</code>. Everything is in this file; it loads nothing.</footer>
<script type="application/json" id="charts">{numbers}</script>
<script>{scripts[0]}</script>
<script>{scripts[1]}</script>
</body>
</html>
"""


def title_of(groups: list[Group]) -> str:
    """The page's title: methods and data sets."""
    methods = dict.fromkeys(group.runs[0].experiment["method"]["name"] for group in groups)
    data = dict.fromkeys(group.runs[0].experiment["data"]["name"] for group in groups)
    return f"{', '.join(methods)} on {', '.join(data)}"


def setup_of(groups: list[Group]) -> str:
    """One line with what all runs have in common, and the values of its settings in which they differ."""
    every = [
        {**flat(run.experiment), "clients": run.fleet}
        | ({"partition": run.about["dealt_by"]} if "dealt_by" in run.about else {})
        for group in groups
        for run in group.runs
    ]
    parts = []
    for key in SETUP:
        values = {plain(one.get(key)) for one in every}
        if len(values) == 1 and (value := values.pop()) != "none":
            own = dict.fromkeys(name for one in every for name in one if name.startswith(f"{key}."))
            settings = []
            for name in own:  # values that differ too: where methods tell lines apart, labels do not name them
                given = dict.fromkeys(plain(one[name]) if name in one else "default" for one in every)
                settings.append(f"{name.partition('.')[2]} {' or '.join(given)}")
            text = f"{value} {key}" if key in ("clients", "rounds") else f"{key} {value}"
            parts.append(text + (f" ({', '.join(settings)})" if settings else ""))
    runs = sum(len(group.runs) for group in groups)
    return " · ".join([*parts, "1 run" if runs == 1 else f"{runs} runs"])


def _section(section: Section) -> str:
    chart = ""
    if section.chart is not None:
        label = escape(f"{section.title}. {section.lead}", quote=True)
        chart = (
            f'<div class="bar" id="controls-{section.key}"></div><div class="legend" id="legend-{section.key}"></div>'
            f'<div class="chart" id="chart-{section.key}" role="img" aria-label="{label}"></div>'
        )
    tables = "".join(table_of(caption, cells) for caption, cells in section.tables)
    return (
        f'<section id="{section.key}"><h2>{escape(section.title)}</h2><p class="lead">{escape(section.lead)}</p>'
        f"{chart}{tables}{_notes(section.notes)}</section>"
    )


def table_of(caption: str, cells: Cells) -> str:
    """A table."""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in cells.head)
    rows = []
    for row, group in zip(cells.rows, cells.groups):
        chip = "" if group is None else f'<i class="chip" style="background:{group.colour}"></i>'
        first = f'<th scope="row"><span class="who">{chip}<span>{escape(row[0])}</span></span></th>'
        rows.append(f"<tr>{first}{_cells(cells.head[1:], row[1:])}</tr>")
    title = f"<caption>{escape(caption)}</caption>" if caption else ""
    kind = ' class="wide"' if len(cells.head) > 4 else ""
    inside = f"{title}<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody>"
    return f'<div class="scroll"><table{kind}>{inside}</table></div>'


def _cells(head: list[str], row: list[str]) -> str:
    return "".join(
        f'<td data-label="{escape(name, quote=True)}"><span>{_cell(text)}</span></td>' for name, text in zip(head, row)
    )


def _cell(text: str) -> str:
    """A cell whose interval is set in small type."""
    mean, sign, rest = text.partition(" ± ")
    half, _, unit = rest.partition(" ")
    return f"{escape(mean)}<small>&nbsp;± {escape(half)}</small> {escape(unit)}".strip() if sign else escape(text)


def _notes(notes: list[str]) -> str:
    return f'<ul class="notes">{"".join(f"<li>{escape(note)}</li>" for note in notes)}</ul>' if notes else ""


def _experiments(groups: list[Group]) -> str:
    """The command and the experiment of each run, to copy."""
    blocks = []
    for group in groups:
        for run in group.runs:
            text, words = json.dumps(run.experiment, indent=2), command_of(run.experiment)
            versions = run.about.get("versions")
            made = ", ".join(f"{k} {v}" for k, v in versions.items()) if isinstance(versions, dict) else ""
            blocks.append(
                f'<details><summary><span class="who"><i class="chip" style="background:{group.colour}"></i>'
                f"<span>{escape(run.name)}, seed {run.experiment['seed']}</span></span></summary><div>"
                f'<div class="code"><pre class="line">{escape(words)}</pre>{COPY}</div>'
                f'<div class="code"><pre>{escape(text)}</pre>{COPY}</div>'
                f'<p class="lead">{escape(made)}</p></div></details>'
            )
    lead = "The command that runs each run again, and all its settings. The command leaves out a network, method or "
    lead += "data set that was passed from Python."
    return f'<section id="experiments"><h2>Experiments</h2><p class="lead">{lead}</p>{"".join(blocks)}</section>'


def asset(name: str) -> str:
    """A file that pages are made of."""
    return files("fedloom.report").joinpath(name).read_text(encoding="utf-8")
