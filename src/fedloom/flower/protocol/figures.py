"""Figures for Prometheus and a health check, as two pages on loopback: `/metrics` and `/health`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from fedloom.web import Answer, Web

if TYPE_CHECKING:
    from prometheus_client.core import Metric

log = logging.getLogger("fedloom")

METRICS = "FEDLOOM_METRICS"  # environment of a node: the port of its pages; 0 or nothing: none


class Health(NamedTuple):
    """Whether all is well, and what goes on."""

    well: bool
    what: str


class Figure(NamedTuple):
    """A number, or several that differ in a label."""

    name: str  # without the unit's `_total`
    what: str
    values: dict[str, float] | float | None  # by label; None: there is none yet
    label: str = ""
    counts: bool = False  # whether it only grows


def port_of_node(port: int, number: int) -> int:
    """The port of a node's pages, where the server's have `port`; 0 where it has none."""
    return port + 1 + number if port else 0


@contextmanager
def figures_served(port: int, figures: Callable[[], list[Figure]], health: Callable[[], Health]) -> Iterator[None]:
    """Within, both pages are there; with port 0 they are not."""
    web = figures_web(port, figures, health) if port else None
    try:
        if web is not None:
            web.start()
        yield
    finally:
        if web is not None:
            web.close()


def figures_web(
    port: int, figures: Callable[[], list[Figure]], health: Callable[[], Health], threads: bool = True
) -> Web | None:
    """Both pages on a port of loopback; None, with the reason in the log, if that cannot be: a run goes on without."""
    try:
        from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
        from prometheus_client.exposition import CONTENT_TYPE_LATEST
    except ImportError:
        log.warning("metrics need the package prometheus-client: pip install 'fedloom[metrics]'")
        return None

    class Collector:
        """Our figures, as they are when somebody asks."""

        def collect(self) -> Iterable[Metric]:
            """All of them."""
            return [_family(figure) for figure in figures() if figure.values is not None]

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Collector())
    ProcessCollector(registry=registry)

    def page() -> Answer:
        return Answer(generate_latest(registry).decode(), CONTENT_TYPE_LATEST)

    def check() -> Answer:
        found = health()
        return Answer(f"{'ok' if found.well else 'not well'}: {found.what}\n", status=200 if found.well else 503)

    try:
        return Web(port, {"/metrics": page, "/health": check}, threads)
    except OSError as problem:
        log.warning("metrics cannot be served on port %d (%s); name another one", port, problem.strerror)
        return None


def _family(figure: Figure) -> Metric:
    """A figure in Prometheus's own form."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    kind = CounterMetricFamily if figure.counts else GaugeMetricFamily
    values = figure.values if isinstance(figure.values, dict) else {"": figure.values or 0.0}
    family = kind(f"fedloom_{figure.name}", figure.what, labels=[figure.label] if figure.label else [])
    for label, value in values.items():
        family.add_metric([label] if figure.label else [], value)
    return family
