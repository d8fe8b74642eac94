"""Pages that this machine serves on loopback, as somebody on it asks for them."""

from __future__ import annotations

import urllib.error
import urllib.request
from typing import NamedTuple


class Page(NamedTuple):
    """What came; status 0: nobody listens."""

    status: int
    kind: str = ""
    text: str = ""


def get(port: int, path: str, host: str | None = None) -> Page:
    """Ask for a page, by a name of the host if one is given."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers={"Host": host} if host else {})
    try:
        with urllib.request.urlopen(request, timeout=30) as found:
            return Page(found.status, found.headers["content-type"], found.read().decode())
    except urllib.error.HTTPError as found:
        with found:
            return Page(found.code, found.headers["content-type"], found.read().decode())
    except OSError:
        return Page(0)


def scraped(port: int) -> dict[str, float]:
    """Every sample of the figures as Prometheus reads it, `name{label}` -> value; none if nobody listens."""
    from prometheus_client.parser import text_string_to_metric_families

    status, _, text = get(port, "/metrics")
    assert status in (0, 200), text
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = "".join(f"{{{value}}}" for value in sample.labels.values())
            found[sample.name + labels] = sample.value
    return found
