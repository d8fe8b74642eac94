"""Charts of the page: traces and a layout for plotly.js; the page adds colours for light and dark."""

from __future__ import annotations

from textwrap import wrap
from typing import Any

from fedloom.report.charts import Bars, Chart, Curves, Map, Maps, Parallels, Ranks, Strips, Timeline
from fedloom.report.plotly_controls import Json, control, escape, pick
from fedloom.report.plotly_parallel import plotly_parallel
from fedloom.report.plotly_timeline import plotly_timeline

NAME = 30  # characters of a line of a name
PERCENT = {"tickformat": ".0%"}


def plotly_chart(chart: Chart) -> Json:
    """Controls, traces, layout and height in pixels of a chart."""
    if isinstance(chart, Curves):
        return _curves(chart)
    if isinstance(chart, Bars):
        return _stack(chart) if chart.stacked else _bars(chart)
    if isinstance(chart, Maps):
        return _maps(chart)
    if isinstance(chart, Timeline):
        return plotly_timeline(chart)
    if isinstance(chart, Parallels):
        return plotly_parallel(chart)
    return _strips(chart) if isinstance(chart, Strips) else _ranks(chart)


def _curves(chart: Curves) -> Json:
    traces: list[Json] = []
    for line in chart.lines:
        label, colour = escape(line.group.label), line.group.colour
        x = pick("axis", {axis: line.x.get(axis, []) for axis in chart.axes})
        bands = {m: line.y.get(m) for m in chart.measures}
        wide = len(line.group.runs) > 1
        if wide:
            common = {"type": "scatter", "mode": "lines", "line": {"width": 0}, "hoverinfo": "skip", "name": label}
            low = pick("measure", {m: [] if band is None else band.low for m, band in bands.items()})
            high = pick("measure", {m: [] if band is None else band.high for m, band in bands.items()})
            traces.append({**common, "x": x, "y": low})
            traces.append({**common, "x": x, "y": high, "fill": "tonexty", "fillcolor": _faint(colour)})
        mean = pick("measure", {m: [] if band is None else band.mean for m, band in bands.items()})
        style = {"color": colour, "width": 2.5, "dash": line.group.dash}
        traces.append({"type": "scatter", "mode": "lines", "name": label, "x": x, "y": mean, "line": style})
    dotted = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "line": {"dash": "dot", "width": 1.5}}
    share = chart.score.name in chart.shares
    lines = [{**dotted, "y0": target, "y1": target} for target in chart.targets]
    sign = [f"{100 * t:g}%" if share else f"{t:g}" for t in chart.targets]
    words = [{"xref": "paper", "x": 0, "y": t, "text": f"target {text}", "showarrow": False, "xanchor": "left",
              "yanchor": "bottom"} for t, text in zip(chart.targets, sign)]  # fmt: skip
    layout = {
        "xaxis": {"title": {"text": pick("axis", chart.axes)}, "rangemode": "tozero"},
        "yaxis": {"title": {"text": pick("measure", chart.measures)},
                  "rangemode": "tozero" if chart.from_zero else "normal",
                  "tickformat": pick("measure", {m: ".0%" if m in chart.shares else "" for m in chart.measures})},
        "shapes": pick("measure", {m: lines if m == chart.score.name else [] for m in chart.measures}),
        "annotations": pick("measure", {m: words if m == chart.score.name else [] for m in chart.measures}),
        "hovermode": "closest",
    }  # fmt: skip
    short = {"rounds": "rounds", "time": "virtual time", "bytes": "bytes", "energy": "energy", "wall": "wall time"}
    controls = [control("axis", "against", {axis: short[axis] for axis in chart.axes})]
    if len(chart.measures) > 1:
        controls.append(control("measure", "show", chart.measures))
    legend = [[line.group.label, line.group.colour] for line in chart.lines]
    return {"controls": controls, "traces": traces, "layout": layout, "height": 420, "legend": legend}


def _bars(chart: Bars) -> Json:
    traces = []
    names = [escape(name) for name in chart.categories]
    for one in chart.series:
        trace: Json = {"type": "bar", "name": escape(one.label), "x": names, "y": one.values,
                       "marker": {"color": one.colour}}  # fmt: skip
        if one.low is not None and one.high is not None and one.low != one.high:
            up = [_gap(high, mean) for high, mean in zip(one.high, one.values)]
            down = [_gap(mean, low) for low, mean in zip(one.low, one.values)]
            trace["error_y"] = {"type": "data", "array": up, "arrayminus": down, "symmetric": False, "thickness": 1,
                                "width": 2}  # fmt: skip
        traces.append(trace)
    layout = {
        "barmode": "group",
        "bargap": 0.25,
        "xaxis": {"title": {"text": chart.across}, "type": "category"},
        "yaxis": {"title": {"text": chart.unit}, "range": [0, chart.top], **PERCENT},
    }
    legend = [[one.label, one.colour] for one in chart.series]
    return {"controls": [], "traces": traces, "layout": layout, "height": 360, "legend": legend}


def _stack(chart: Bars) -> Json:
    """Horizontal bars, the first category on top; long names are broken into lines."""
    lines = [wrap(name, NAME) or [""] for name in chart.categories]
    names = ["<br>".join(map(escape, some)) for some in lines]
    traces = [
        {"type": "bar", "orientation": "h", "name": escape(one.label), "y": names, "x": one.values,
         "marker": {"color": one.colour}, "hovertemplate": "%{y}: %{x:.4~g}<extra>" + escape(one.label) + "</extra>"}
        for one in chart.series
    ]  # fmt: skip
    layout = {
        "barmode": "stack",
        "bargap": 0.35,
        "yaxis": {"autorange": "reversed", "type": "category", "automargin": True, "ticks": ""},
        "xaxis": {"title": {"text": chart.unit}, "range": [0, chart.top] if chart.top else None},
        "hovermode": "closest",
    }
    legend = [[one.label, one.colour] for one in chart.series]
    height = 90 + sum(max(44, 16 * len(some) + 12) for some in lines)
    return {"controls": [], "traces": traces, "layout": layout, "height": height, "legend": legend}


def _maps(chart: Maps) -> Json:
    labels = {str(place): label for place, label in enumerate(chart.by)}

    def each(field: str) -> Json:
        return pick("run", {place: pick("what", {what: _shown(getattr(tables[what], field)) for what in chart.scales})
                            for place, tables in zip(labels, chart.by.values())})  # fmt: skip

    named = any(isinstance(name, str) for tables in chart.by.values() for one in tables.values() for name in one.y)
    trace = {
        "type": "heatmap", "z": each("z"), "x": each("x"), "y": each("y"),
        "zmin": pick("what", {what: None if top is None else 0 for what, (_, top) in chart.scales.items()}),
        "zmax": pick("what", {what: top for what, (_, top) in chart.scales.items()}), "colorscale": "sequential",
        "showscale": False,
        "xgap": 0 if chart.square else 0.5, "ygap": 0 if chart.square else 0.5,
        "hovertemplate": f"{chart.across} %{{x}}, {chart.down} %{{y}}: %{{z:.3~g}}<extra></extra>",
    }  # fmt: skip
    axis = {"type": "category", "nticks": 12}
    layout = {
        "xaxis": {"title": {"text": chart.across}, "showgrid": False, **(axis if chart.square else {})},
        "yaxis": {"title": {"text": chart.down}, "showgrid": False, "autorange": "reversed", **(axis if named else {})},
        "hovermode": "closest",
    }
    controls = [control("run", "run", labels)] if len(labels) > 1 else []
    if len(chart.scales) > 1:
        controls.append(control("what", "show", {what: what for what in chart.scales}))
    first = next((place for place, label in labels.items() if label == chart.first), "0")
    state = {"run": first, "what": next(iter(chart.scales))}
    scales = {
        place: pick("what", {what: _scale(chart.by[label][what], *chart.scales[what]) for what in chart.scales})
        for place, label in labels.items()
    }
    height = 520 if chart.square else 470
    return {"controls": controls, "traces": [trace], "layout": layout, "height": height, "legend": [], "state": state,
            "square": chart.square, "scale": pick("run", scales)}  # fmt: skip


def _scale(table: Map, text: str, top: float | None) -> Json:
    """The label of a colour scale, and the numbers at its ends."""
    if top is not None:
        return {"text": text, "low": "0%", "high": f"{100 * top:g}%"}
    known = [value for row in table.z for value in row if value is not None] or [0.0]
    return {"text": text, "low": f"{min(known):.3g}", "high": f"{max(known):.3g}"}


def _strips(chart: Strips) -> Json:
    """Strips of equal width, however many neurons a layer has."""
    labels = {str(place): label for place, label in enumerate(chart.by)}
    most = max(len(strips) for strips in chart.by.values())
    names = {key: [f"{escape(name)} ({wide})" for name, wide, _ in chart.by[label]] for key, label in labels.items()}
    traces = []
    for place in range(most):  # places, not names: heat maps of several traces cannot share an axis of names
        own = {key: chart.by[label][place][2] if place < len(chart.by[label]) else [] for key, label in labels.items()}
        edges = {key: [round(100 * edge / len(row), 3) for edge in range(len(row) + 1)] if row else []
                 for key, row in own.items()}  # fmt: skip
        words = pick(
            "run", {key: f"{(rows + [''] * most)[place]}: %{{z:.1%}}<extra></extra>" for key, rows in names.items()}
        )
        traces.append({
            "type": "heatmap", "x": pick("run", edges), "y": [place - 0.42, place + 0.42],
            "z": pick("run", {key: [row] if row else [] for key, row in own.items()}), "zmin": 0, "zmax": 1,
            "colorscale": "sequential", "showscale": False, "hovertemplate": words,
        })  # fmt: skip
    layout = {
        "xaxis": {"title": {"text": "place of the neuron in its layer (%)"}, "showgrid": False, "range": [0, 100]},
        "yaxis": {"showgrid": False, "range": [most - 0.5, -0.5], "tickvals": list(range(most)),
                  "ticktext": pick("run", names)},
        "hovermode": "closest",
    }  # fmt: skip
    controls = [control("run", "run", labels)] if len(labels) > 1 else []
    scale = {"text": chart.scale, "low": "0%", "high": "100%"}
    return {"controls": controls, "traces": traces, "layout": layout, "height": 80 + 46 * most, "legend": [],
            "state": {"run": "0"}, "scale": scale}  # fmt: skip


def _ranks(chart: Ranks) -> Json:
    traces = [
        {"type": "scatter", "mode": "lines", "name": escape(group.label), "y": values,
         "x": [round(100 * (place + 0.5) / len(values), 2) for place in range(len(values))],
         "line": {"color": group.colour, "width": 2.5, "dash": group.dash, "shape": "hvh"}}
        for group, values in chart.groups
    ]  # fmt: skip
    layout = {
        "xaxis": {"title": {"text": chart.across}, "range": [0, 100]},
        "yaxis": {"title": {"text": chart.unit}, **({"range": [-0.02, 1.02], **PERCENT} if chart.share else {})},
        "hovermode": "closest",
    }
    legend = [[group.label, group.colour] for group, _ in chart.groups]
    return {"controls": [], "traces": traces, "layout": layout, "height": 360, "legend": legend}


def _gap(high: float | None, low: float | None) -> float | None:
    return None if high is None or low is None else round(high - low, 6)


def _faint(colour: str) -> str:
    """A colour with an opacity of 0.16."""
    red, green, blue = (int(colour[a : a + 2], 16) for a in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.16)"


def _shown(values: list[Any]) -> list[Any]:
    """Numbers as they are, names escaped."""
    return [escape(value) if isinstance(value, str) else value for value in values]
