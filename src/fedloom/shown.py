"""Small tables and sparklines as HTML, for notebooks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from math import isfinite

WIDE, HIGH, EDGE = 160, 32, 2  # pixels of a sparkline


def table(title: str, rows: Iterable[tuple[str, str]], below: str = "") -> str:
    """Names and texts as a table; `below` is HTML."""
    cells = "".join(
        f'<tr><td style="text-align:left;opacity:0.7">{escape(name)}</td>'
        f'<td style="text-align:left">{escape(text)}</td></tr>'
        for name, text in rows
    )
    return f"<div><b>{escape(title)}</b><table>{cells}</table>{below}</div>"


def sparkline(values: Sequence[float | None], words: str) -> str:
    """Values as a line of one word's height; those that are not known are left out."""
    known = [(place, value) for place, value in enumerate(values) if value is not None and isfinite(value)]
    if len(known) < 2:
        return ""
    low, high = (pick(value for _, value in known) for pick in (min, max))
    first, last = known[0][0], known[-1][0]
    points = " ".join(
        f"{EDGE + (WIDE - 2 * EDGE) * (place - first) / (last - first):.1f},"
        f"{HIGH - EDGE - (HIGH - 2 * EDGE) * (value - low) / ((high - low) or 1):.1f}"
        for place, value in known
    )
    return (
        f'<svg width="{WIDE}" height="{HIGH}" role="img" aria-label="{escape(words, quote=True)}">'
        f'<polyline points="{points}" fill="none" stroke="#0072B2" stroke-width="1.5"/></svg> '
        f"<small>{escape(words)}</small>"
    )
