"""Figures for Prometheus and the health check, of a run's server and of a node."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")
pytest.importorskip("prometheus_client")

from fedloom.flower.deploy.trial import free_port
from fedloom.flower.node.figures import NodeFigures
from fedloom.flower.node.reports import Heard, Reports
from fedloom.flower.protocol.figures import figures_served, figures_web
from fedloom.flower.server import play
from fedloom.runs.experiment import Experiment
from flower_fake import FakeGrid
from flower_world import config_of, fake, tiny, tiny_data
from pages import Page, get, scraped


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny_data(tmp_path_factory.mktemp("data"))


def test_a_run_is_scraped_while_it_goes_on(data: str, tmp_path: Path) -> None:
    """The figures are sums over the rows so far; afterwards nobody listens."""
    experiment, port = tiny(data, method="fedspu", split=(0.6, 0.2, 0.2)), free_port()
    grid = fake(experiment)
    grid.fault = lambda node, asked, answer: [] if node == 12 and asked.metadata.message_type == "train" else [answer]
    seen: list[tuple[dict[str, Any], dict[str, float], Page]] = []

    def look(row: dict[str, Any]) -> None:
        seen.append((row, scraped(port), get(port, "/health")))

    config = {"metrics": port, "deadline": 0.5, "out": str(tmp_path / "run")}
    play.serve(grid, {**config_of(experiment), **config}, look, interval=0.005)  # type: ignore[arg-type]
    assert get(port, "/metrics").status == 0
    rows = [row for row, _, _ in seen]
    for place, (row, found, health) in enumerate(seen, 1):
        assert found["fedloom_round"] == row["round"] == place
        assert found["fedloom_rounds"] == experiment.rounds
        assert found["fedloom_replies_accepted_total"] == sum(one["arrived"] for one in rows[:place])
        assert found["fedloom_replies_lost_total"] == sum(one["clients"] - one["arrived"] for one in rows[:place]) > 0
        for name in ("bytes_down", "bytes_up", "transport_down", "transport_up"):
            assert found[f"fedloom_bytes_total{{{name}}}"] == sum(one[name] for one in rows[:place]) > 0
        assert found["fedloom_score"] == pytest.approx(row["score"])
        assert found["fedloom_round_seconds"] == pytest.approx(row["wall_seconds"])
        assert health.status == 200
        assert f"round {place} of {experiment.rounds} is over" in health.text
    last = seen[-1][1]
    assert last["fedloom_nodes{hosting}"] == 3
    assert last["fedloom_clients{here}"] == 8
    assert last["fedloom_clients{away}"] == 0
    assert last["fedloom_phase_seconds_total{exchange}"] >= 3 * 0.5
    assert last["fedloom_phase_seconds_total{personal}"] > 0
    assert last["fedloom_client_seconds{compute}"] > 0
    assert abs(last["fedloom_checkpoint_timestamp_seconds"] - time.time()) < 60
    assert last["process_resident_memory_bytes"] > 2**20


def served_config(experiment: Experiment) -> dict[str, Any]:
    from flower_world import config_of

    return config_of(experiment)


def test_refusals_by_reason(data: str) -> None:
    experiment, port = tiny(data, method="fedavg", rounds=2), free_port()
    grid = fake(experiment)
    spoil(grid)
    found: list[dict[str, float]] = []
    config = {**config_of(experiment), "metrics": port}
    play.serve(grid, config, lambda row: found.append(scraped(port)), interval=0.005)  # type: ignore[arg-type]
    assert [one["fedloom_replies_refused_total{checksum}"] for one in found] == [2, 4]


def spoil(grid: FakeGrid) -> None:
    """Node 12 sends replies with a bit flipped."""
    from flwr.app import Message

    from fedloom.flower.protocol.records import pack, unpack

    def fault(node: int, asked: Message, answer: Message) -> list[Message]:
        if node != 12 or asked.metadata.message_type != "train":
            return [answer]
        content = unpack(answer.content)
        flipped = [
            one._replace(data=one.data[:-9] + bytes([one.data[-9] ^ 1]) + one.data[-8:]) for one in content.payloads
        ]
        return [Message(pack(content._replace(payloads=flipped)), reply_to=asked)]

    grid.fault = fault


def test_a_round_that_is_stuck_is_not_well(data: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that asks meanwhile sees 503, and 200 when the round goes on."""
    monkeypatch.setattr(play, "STUCK", -59.5)  # so that a phase may take half a second
    experiment, port = tiny(data, method="fedavg", rounds=2), free_port()
    grid = fake(experiment)
    during: list[Page] = []

    def before(node: int, message: Any) -> None:
        if message.metadata.message_type == "train" and not during:
            time.sleep(0.8)
            during.append(get(port, "/health"))

    grid.before = before
    after: list[int] = []
    config = {**config_of(experiment), "metrics": port}
    play.serve(grid, config, lambda row: after.append(get(port, "/health").status), interval=0.005)  # type: ignore[arg-type]
    assert during[0].status == 503
    assert during[0].text.startswith("not well: round 0 of 2 is over; exchange for 1 s")
    assert after == [200, 200]


def test_a_node() -> None:
    hearing, telling = os.pipe()
    heard, reports = Heard(hearing), Reports(telling)
    figures = NodeFigures(heard, lambda: {"node": 3.0}, time.time())
    web = figures_web(0, figures.figures, figures.health)
    assert web is not None
    web.start()
    assert "fedloom_node_link_contact_timestamp_seconds" not in scraped(web.port)
    assert get(web.port, "/health").text == "ok: the link has not answered yet; 0 messages answered, 0 failed\n"
    reports.call(True, 200)
    heard.read()
    for well in (True, True, False):
        figures.ended(well)
    found = scraped(web.port)
    assert found["fedloom_node_messages_answered_total"] == 2
    assert found["fedloom_node_errors_total"] == 1
    assert found["fedloom_node_memory_bytes{node}"] == 3
    assert abs(found["fedloom_node_link_contact_timestamp_seconds"] - time.time()) < 60
    heard.answered = time.time() - 500
    status, _, text = get(web.port, "/health")
    assert status == 503
    assert "the link answered 500 s ago" in text
    web.close()
    os.close(hearing)
    os.close(telling)


def test_a_port_that_is_taken_ends_no_run(caplog: pytest.LogCaptureFixture) -> None:
    web = figures_web(0, list, lambda: (True, ""))  # type: ignore[arg-type,return-value]
    assert web is not None
    with figures_served(web.port, list, lambda: (True, "")):  # type: ignore[arg-type,return-value]
        pass
    assert f"cannot be served on port {web.port}" in caplog.text
    web.close()
