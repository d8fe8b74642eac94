"""The timeline for plotly.js: thin bars are transfers, thick ones training, hairlines the wait for a step."""

from __future__ import annotations

from typing import Any

from fedloom.report.charts import Lanes, Span, Timeline
from fedloom.report.plotly_controls import Json, control, escape, pick
from fedloom.report.tasks import COUNTED

THIN, THICK = 0.3, 0.78  # of a lane
SHORT = 0.025  # of a window: what has no room for a number
LABELS = 12  # steps with a number at most
HOVER = (
    "client %{customdata[0]}: %{customdata[1]}<br>download %{customdata[2]:.3~g}, training %{customdata[3]:.3~g}, "
    "upload %{customdata[4]:.3~g} UNIT<br>sent version %{customdata[5]}%{customdata[6]}<extra></extra>"
)


def plotly_timeline(chart: Timeline) -> Json:
    """Traces and layout of each run and window, and the controls that choose them."""
    labels = {str(place): label for place, label in enumerate(chart.by)}
    windows = {when: when for lanes in chart.by.values() for when in lanes}

    def chosen(made: dict[tuple[str, str], Any]) -> Json:
        return pick("run", {key: pick("when", {when: made[key, when] for when in windows}) for key in labels})

    shown = {(key, when): chart.by[label][when] for key, label in labels.items() for when in windows}
    traces = {at: timeline_traces(chart, lanes) for at, lanes in shown.items()}
    controls = [control("run", "run", labels)] if len(labels) > 1 else []
    controls += [control("when", "show", windows)] if len(windows) > 1 else []
    legend = [[words, colour] for words, colour in chart.fates.values()]
    return {
        "controls": controls,
        "traces": [chosen({at: own[n] for at, own in traces.items()}) for n in range(2 * len(chart.fates) + 6)],
        "layout": chosen({at: timeline_layout(lanes) for at, lanes in shown.items()}),
        "height": 90 + 21 * max(len(lanes.names) for lanes in shown.values()),
        "tall": True,
        "legend": legend,
        "state": {"run": "0", "when": next(iter(windows))},
        "scale": pick("run", {key: _scale(next(iter(chart.by[label].values()))) for key, label in labels.items()}),
    }


def _scale(lanes: Lanes) -> Json:
    """What the colours of counted replies say."""
    if not lanes.oldest:
        return {"text": "replies that counted", "low": "", "high": "", "colours": "fresh"}
    return {"text": "replies that counted, by staleness", "low": "0", "high": str(lanes.oldest), "colours": "staleness"}


def timeline_traces(chart: Timeline, lanes: Lanes) -> list[Json]:
    """The traces of one window; every window has the same number of them."""
    traces: list[Json] = []
    for fate in (COUNTED, *chart.fates):
        spans = [span for span in lanes.spans if span.fate == fate]
        ends = [_transfers(span) for span in spans]
        thin = [(span, *part) for span, parts in zip(spans, ends) for part in parts if part[1] > 0]
        thick = [(span, span.start + span.phases[0], span.phases[1]) for span in spans if span.phases[1] > 0]
        traces += [_bars(chart, lanes, fate, thin, THIN), _bars(chart, lanes, fate, thick, THICK)]
    waits = [span for span in lanes.spans if span.taken is not None]
    x: list[float | None] = [at for span in waits for at in (_end(span), span.taken, None)]
    y: list[int | None] = [at for span in waits for at in (span.lane, span.lane, None)]
    traces.append({"type": "scatter", "mode": "lines", "x": x, "y": y, "hoverinfo": "skip",
                   "line": {"width": 1, "color": "soft"}})  # fmt: skip
    traces.append({"type": "scatter", "mode": "markers", "x": [span.taken for span in waits], "hoverinfo": "skip",
                   "y": [span.lane for span in waits], "marker": {"size": 3.5, "color": "soft"}})  # fmt: skip
    above = [
        span for span in waits if lanes.oldest and not inside(span, lanes) and sum(span.phases) > SHORT * lanes.wide
    ]
    traces.append({"type": "scatter", "mode": "text", "x": [_end(span) for span in above], "hoverinfo": "skip",
                   "y": [span.lane - 0.1 for span in above], "text": [str(span.staleness) for span in above],
                   "textposition": "top left", "textfont": {"size": 10, "color": "soft"}})  # fmt: skip
    whole = [(span, span.start, sum(span.phases)) for span in lanes.spans]
    facts = [[escape(lanes.names[s.lane]), _word(chart, s), *s.phases, s.version, _stale(s)] for s in lanes.spans]
    traces.append({**_places(whole, 0.95), "marker": {"color": "rgba(0,0,0,0)"}, "customdata": facts,
                   "hovertemplate": HOVER.replace("UNIT", lanes.unit)})  # fmt: skip
    return traces


def inside(span: Span, lanes: Lanes) -> bool:
    """Whether the bar of the training has room for a number."""
    return span.phases[1] > SHORT * lanes.wide


def timeline_layout(lanes: Lanes) -> Json:
    """Axes, and a line for each step that is drawn, some of them with their numbers."""
    every = -(-len(lanes.steps) // LABELS) if lanes.steps else 1
    lines = [
        {"type": "line", "x0": at, "x1": at, "y0": -0.6, "y1": len(lanes.names) - 0.4, "layer": "below",
         "opacity": 0.45, "line": {"width": 1}}
        for _, at in lanes.steps
    ]  # fmt: skip
    words = [
        {"x": at, "y": -0.65, "text": str(number), "showarrow": False, "yanchor": "bottom"}
        for number, at in lanes.steps[every - 1 :: every]
    ]
    return {
        "barmode": "overlay",
        "bargap": 0,
        "uniformtext": {"mode": "hide", "minsize": 10},
        "xaxis": {"title": {"text": lanes.axis}, "range": [lanes.start, lanes.end], "showgrid": False},
        "yaxis": {"title": {"text": "clients, the fastest on top"}, "range": [len(lanes.names) - 0.4, -1.7],
                  "tickvals": list(range(len(lanes.names))), "ticktext": [escape(name) for name in lanes.names]},
        "shapes": lines,
        "annotations": words,
        "hovermode": "closest",
    }  # fmt: skip


def _bars(chart: Timeline, lanes: Lanes, fate: str, parts: list[tuple[Span, float, float]], wide: float) -> Json:
    """Bars of one fate; those of counted replies are coloured by staleness."""
    trace = {**_places(parts, wide), "hoverinfo": "skip"}
    if fate != COUNTED:
        return {**trace, "marker": {"color": chart.fates[fate][1], "line": {"width": 0}}}
    marker = {"color": [span.staleness for span, *_ in parts], "colorscale": "staleness", "cmin": 0,
              "cmax": max(1, lanes.oldest), "line": {"width": 0}}  # fmt: skip
    trace |= {"marker": marker}
    if wide == THICK and lanes.oldest:
        words = [str(span.staleness) if inside(span, lanes) else "" for span, *_ in parts]
        trace |= {"text": words, "textposition": "inside", "textangle": 0, "insidetextanchor": "end",
                  "textfont": {"size": 10}}  # fmt: skip
    return trace


def _places(parts: list[tuple[Span, float, float]], wide: float) -> Json:
    """Horizontal bars at their places."""
    return {"type": "bar", "orientation": "h", "y": [span.lane for span, *_ in parts], "width": wide,
            "base": [round(start, 6) for _, start, _ in parts], "x": [long for *_, long in parts]}  # fmt: skip


def _transfers(span: Span) -> list[tuple[float, float]]:
    """Start and length of download and upload."""
    down, compute, up = span.phases
    return [(span.start, down), (span.start + down + compute, up)]


def _end(span: Span) -> float:
    """When the work ended."""
    return round(span.start + sum(span.phases), 6)


def _word(chart: Timeline, span: Span) -> str:
    """The fate in words."""
    return COUNTED if span.fate == COUNTED else chart.fates[span.fate][0]


def _stale(span: Span) -> str:
    """The staleness in words, where a step took the reply."""
    return f", staleness {span.staleness}" if span.taken is not None else ""
