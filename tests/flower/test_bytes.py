"""Counted bytes are the bytes that were sent; codecs of fewer bits work as in the simulator."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch

from fedloom.flower.protocol.records import unpack
from flower_fake import FakeGrid
from flower_world import fake, served, simulated, tiny, tiny_data, weights


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny_data(tmp_path_factory.mktemp("data"))


def sent_down(grid: FakeGrid) -> int:
    """Bytes of all tasks, their facts included."""
    messages = [unpack(m.content) for m in grid.sent if m.metadata.message_type == "train"]
    facts = [json.dumps(own.facts, separators=(",", ":")) for message in messages for own in message.payloads]
    return sum(len(own.data) for message in messages for own in message.payloads) + sum(map(len, facts))


@pytest.mark.parametrize("method", ["fedavg", "feddd", "fjord", "fedumf", "safari", "scaffold"])
def test_the_ledger_has_the_bytes_that_were_sent(data: str, method: str, tmp_path: Path) -> None:
    experiment = tiny(data, method=method)
    grid, up = fake(experiment), []

    def fault(node: int, asked: object, answer: object) -> list[object]:
        if asked.metadata.message_type == "train":  # type: ignore[attr-defined]
            up.append(sum(own.size for own in unpack(answer.content).payloads))  # type: ignore[attr-defined]
        return [answer]

    grid.fault = fault  # type: ignore[assignment]
    found = served(grid, experiment, out=str(tmp_path / "run"))
    assert sum(row["bytes_down"] for row in found.rounds) == sent_down(grid)
    assert sum(row["bytes_up"] for row in found.rounds) == sum(up)
    table = pq.read_table(tmp_path / "run" / "clients.parquet").to_pydict()
    assert sum(table["bytes_up"]) == sum(up)
    parts = sum(sum(table[f"bytes_up_{name}"]) for name in ("values", "indices", "overhead"))
    assert parts == sum(up)


def test_feddd_at_a_budget_of_two_fifths_sends_less_than_half(data: str) -> None:
    wide = {"name": "mlp", "settings": {"widths": [200]}}
    feddd = tiny(data, method={"name": "feddd", "settings": {"budget": 0.4}}, model=wide)
    fedavg = tiny(data, method="fedavg", model=wide)
    ours, theirs = (served(fake(one), one).rounds[-1]["bytes_up"] for one in (feddd, fedavg))
    assert ours <= 0.45 * theirs


@pytest.mark.parametrize("values", ["float16", "bfloat16", "int8"])
@pytest.mark.parametrize("feedback", [False, True])
@pytest.mark.parametrize("method", ["fedavg", "fjord"])
def test_fewer_bits_are_rounded_as_in_the_simulator(data: str, values: str, feedback: bool, method: str) -> None:
    experiment = tiny(data, method=method, codec={"values": values, "feedback": feedback})
    ours, theirs = weights(served(fake(experiment), experiment)), weights(simulated(experiment))
    close = (ours - theirs).abs() < 1e-5
    assert close.float().mean() > 0.99  # a number on the edge between two steps may fall to either side
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0.02)


def test_a_client_that_chooses_what_it_sends_may_round_it(data: str) -> None:
    """It has no model where it was sent nothing: there its reply is the weights, not their change."""
    experiment = tiny(data, method="feddd", codec={"values": "int8", "feedback": True})
    ours, theirs = weights(served(fake(experiment), experiment)), weights(simulated(experiment))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0.05)
