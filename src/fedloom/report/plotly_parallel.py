"""Parallel coordinates for plotly.js, as plain lines: its own chart of that kind needs code that pages forbid."""

from __future__ import annotations

from fedloom.report.charts import Axis, Parallel, Parallels
from fedloom.report.plotly_controls import Json, control, escape, pick

COLOUR, BEST = (0, 114, 178), "#D55E00"
FAINTEST = 0.15  # the opacity of the worst line


def plotly_parallel(chart: Parallels) -> Json:
    """Controls, traces and layout: a line for each choice of settings, the better the darker, the best in red."""
    labels = {str(place): label for place, label in enumerate(chart.by)}
    most = max(len(one.paths) for one in chart.by.values())
    traces: list[Json] = []
    for rank in range(most):  # the same number of lines for each method; those that it lacks are empty
        own = {key: _line(chart.by[label], rank - (most - len(chart.by[label].paths))) for key, label in labels.items()}
        parts = {part: pick("run", {key: one[part] for key, one in own.items()}) for part in own["0"]}
        line = {"color": parts.pop("color"), "width": parts.pop("width")}
        traces.append(
            {"type": "scatter", "mode": "lines", **parts, "line": line, "hovertemplate": "%{text}<extra></extra>"}
        )
    axes = {key: chart.by[label].axes for key, label in labels.items()}
    layout = {
        "xaxis": {
            "tickvals": pick("run", {key: list(range(len(own))) for key, own in axes.items()}),
            "ticktext": pick("run", {key: [escape(axis.name) for axis in own] for key, own in axes.items()}),
            "range": pick("run", {key: [-0.25, len(own) - 0.75] for key, own in axes.items()}),
        },
        "yaxis": {"visible": False, "range": [-0.12, 1.12]},
        "annotations": pick("run", {key: _words(own) for key, own in axes.items()}),
        "hovermode": "closest",
    }
    controls = [control("run", "run", labels)] if len(labels) > 1 else []
    legend = [["the best", BEST], ["others, the better the darker", f"rgb{COLOUR}"]]
    return {"controls": controls, "traces": traces, "layout": layout, "height": 430, "legend": legend,
            "state": {"run": "0"}}  # fmt: skip


def _line(one: Parallel, rank: int) -> Json:
    """A method's line of a rank, the worst first; empty below 0."""
    if rank < 0:
        return {"x": [], "y": [], "text": [], "color": BEST, "width": 1}
    route, last = one.paths[rank], len(one.paths) - 1
    shade = FAINTEST + (1 - FAINTEST) * rank / max(1, last)
    colour = BEST if rank == last else f"rgba({','.join(map(str, COLOUR))},{shade:.2f})"
    text = [escape(route.words)] * len(route.places)
    places = [round(place, 4) for place in route.places]
    return {
        "x": list(range(len(places))),
        "y": places,
        "text": text,
        "color": colour,
        "width": 3 if rank == last else 2,
    }


def _words(axes: list[Axis]) -> list[Json]:
    """The values at the axes."""
    return [
        {"x": place, "y": at, "text": escape(text), "showarrow": False, "xanchor": "center",
         "yanchor": "bottom" if at > 0.5 else "top"}
        for place, axis in enumerate(axes)
        for at, text in axis.ticks
    ]  # fmt: skip
