"""A run that goes on, as a page on loopback that renews itself, with the report of what there is so far."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from hashlib import sha256
from html import escape
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fedloom.accel.machine import duration, size
from fedloom.core.metric import Metric
from fedloom.errors import FedloomError
from fedloom.evaluate.judge import best_of, is_share
from fedloom.evaluate.wording import direction, label_of, number, title
from fedloom.report.charts import Cells
from fedloom.report.group import read_groups
from fedloom.report.live import Progress, process_exists, read_progress, time_left
from fedloom.report.page import asset, page_of, table_of
from fedloom.report.recorded import FINISHED
from fedloom.report.sections import sections_of
from fedloom.report.tables import own_target
from fedloom.web import Answer, Web

EVERY = 2.0  # seconds between looks of the page
LAST, LINES = 10, 14  # rounds in the table, and lines of the log
TAIL = 2**14  # bytes of the log's end that are read
WIDE, HIGH, EDGE = 960, 220, 8  # pixels of the curve
HTML = "text/html; charset=utf-8"
SCRIPT = """"use strict";
const part = document.getElementById("live");
const look = async () => {
  try {
    const found = await fetch("/live", { cache: "no-store" });
    if (found.ok) part.innerHTML = await found.text();
    part.classList.toggle("gone", !found.ok);
  } catch (refused) { part.classList.add("gone"); }
  setTimeout(look, EVERY);
};
setTimeout(look, EVERY);
"""
STYLE = """
progress { width: 100%; height: 14px; accent-color: var(--accent); }
.now { display: flex; flex-wrap: wrap; gap: 4px 22px; margin: 12px 0; }
.now b { font-weight: 600; }
.curve { width: 100%; height: auto; display: block; }
.curve polyline { fill: none; stroke: var(--accent); stroke-width: 2.5; stroke-linejoin: round; }
.curve line { stroke: var(--grid); }
.curve text { fill: var(--soft); font-size: 13px; }
.setup a { color: var(--accent); }
.gone { opacity: 0.45; }
"""


def serve_live(folder: Path, port: int = 0) -> Web:
    """Serve a run folder's page on a port of loopback; port 0 is any free one."""
    read_progress(folder)  # raises now if it is not a run's folder
    return Web(port, {"/": lambda: whole(folder), "/live": lambda: part(folder), "/report": lambda: report(folder)})


def whole(folder: Path) -> Answer:
    """The page, with what there is now."""
    script = SCRIPT.replace("EVERY", str(int(1000 * EVERY)))
    allowed = b64encode(sha256(script.encode()).digest()).decode()
    rules = f"default-src 'none'; style-src 'unsafe-inline'; connect-src 'self'; script-src 'sha256-{allowed}'"
    about = read_progress(folder).about["experiment"]
    name = f"{about['method']['name']} on {about['data']['name']}"
    link = ' · <a href="/report">report so far</a>' if find_spec("plotly") is not None else ""
    page = f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{rules}">
<title>{escape(name)}</title>
<style>
{asset("page.css")}{STYLE}</style>
<noscript><meta http-equiv="refresh" content="10"></noscript>
</head>
<body>
<header>
<h1>{escape(name)}</h1>
<p class="setup">{escape(str(folder))}{link}</p>
</header>
<main id="live">
{part(folder).body}
</main>
<footer>By <code>fedloom watch --web</code>, for this machine alone. Tables are written every ten seconds.</footer>
<script>{script}</script>
</body>
</html>
"""
    return Answer(page, HTML)


def part(folder: Path) -> Answer:
    """What changes of the page."""
    try:
        progress = read_progress(folder)
    except FedloomError as problem:  # it is being written
        return Answer(f"<p>{escape(str(problem))}</p>", HTML, status=503)
    rows, score = progress.rows, progress.scores.score
    body = [_now(folder, progress)]
    if rows:
        body += [_curve(score, [(row["round"], row["score"]) for row in rows if row["score"] is not None])]
        body += [f"<section><h2>Last rounds</h2>{table_of('', _rounds(score, rows[-LAST:]))}</section>"]
    log = _log(folder / "log.txt")
    body.append(f'<section><h2>Log</h2><div class="code"><pre class="line">{escape(log)}</pre></div></section>')
    return Answer("\n".join(body), HTML)


def report(folder: Path) -> Answer:
    """The report of the rounds so far, as `fedloom report` writes it."""
    try:
        groups, notes = read_groups([folder])
        return Answer(page_of(groups, notes, sections_of(groups, own_target(groups), chosen=True)), HTML)
    except (FedloomError, ImportError) as problem:
        return Answer(f"there is no report: {problem}\n", status=503)


def _now(folder: Path, progress: Progress) -> str:
    """How far the run is."""
    rows, score, done = progress.rows, progress.scores.score, len(progress.rows)
    ended = progress.ended
    if ended is None:
        state = "goes on" if process_exists(folder) else "does not go on: its process is not on this machine"
    else:
        state = "finished" if ended == FINISHED else ended
    facts = {"": state, "rounds": f"{done} of {progress.rounds}"}
    scored = [row["score"] for row in rows if row["score"] is not None]
    if scored:
        facts[label_of(score)] = number(score, scored[-1])
        facts["best"] = " ".join(filter(None, [number(score, best_of(score, scored)), _side(score)]))
    if rows:
        asked, came = (sum(row[name] or 0 for row in rows) for name in ("clients", "arrived"))
        facts["replies"] = f"{came:,} of {asked:,}"
        facts["refused"] = f"{sum(row['rejected'] or 0 for row in rows):,}"
        facts["up, down"] = ", ".join(size(sum(row[name] for row in rows)) for name in ("bytes_up", "bytes_down"))
        facts["time left"] = time_left(progress).removesuffix(" left") or "none"
    items = "".join(f"<span>{escape(name)} <b>{escape(text)}</b></span>" for name, text in facts.items())
    return f'<progress max="{progress.rounds}" value="{done}"></progress><div class="now">{items}</div>'


def _side(score: Metric) -> str:
    """Which side is better, in brackets, where it is not plain."""
    return f"({direction(score)})" if direction(score) else ""


def _curve(score: Metric, points: Sequence[tuple[int, float]]) -> str:
    """The score by rounds as a drawing."""
    if len(points) < 2:
        return ""
    scores = [value for _, value in points]
    low, high = score.limits if is_share(score) else (min(scores), max(scores))
    first, last, span = points[0][0], points[-1][0], (high - low) or 1.0
    places = [
        f"{EDGE + (WIDE - 2 * EDGE) * (at - first) / (last - first):.1f},"
        f"{EDGE + (HIGH - 2 * EDGE) * (high - value) / span:.1f}"
        for at, value in points
    ]
    lines = "".join(
        f'<line x1="0" x2="{WIDE}" y1="{at}" y2="{at}"/><text x="2" y="{at + down}">{number(score, value)}</text>'
        for at, down, value in ((EDGE, 16, high), (HIGH - EDGE, -5, low))
    )
    label = escape(f"{label_of(score)} from round {first} to {last}", quote=True)
    return (
        f"<section><h2>{escape(title(label_of(score)))}</h2>"
        f'<svg class="curve" viewBox="0 0 {WIDE} {HIGH}" role="img" aria-label="{label}">{lines}'
        f'<polyline points="{" ".join(places)}"/></svg></section>'
    )


def _rounds(score: Metric, rows: Sequence[dict[str, Any]]) -> Cells:
    """The last rounds, the newest first."""
    head = ["round", label_of(score), "loss", "arrived", "refused", "up", "down", "seconds"]
    cells = []
    for row in reversed(rows):
        refused = {name.removeprefix("rejected."): n for name, n in row.items() if name.startswith("rejected.") and n}
        spent = row["virtual_seconds"] if row["virtual_seconds"] is not None else row["wall_seconds"]
        cells.append([
            str(row["round"]),
            "" if row["score"] is None else number(score, row["score"]),
            "" if row["loss"] is None else f"{row['loss']:.4f}",
            f"{row['arrived']}/{row['clients']}",
            ", ".join(f"{int(count)} {reason}" for reason, count in refused.items()),
            size(row["bytes_up"]),
            size(row["bytes_down"]),
            "" if spent is None else duration(spent),
        ])  # fmt: skip
    return Cells(head, cells, [None] * len(cells))


def _log(file: Path) -> str:
    """The end of a log."""
    try:
        with file.open("rb") as log:
            log.seek(max(0, log.seek(0, 2) - TAIL))
            return "\n".join(log.read().decode(errors="replace").splitlines()[-LINES:])
    except OSError:
        return "there is no log yet"
