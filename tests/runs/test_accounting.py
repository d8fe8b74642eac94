"""What a run without a barrier writes about time and work adds up, however it is counted."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import load_file

from fedloom.core.flight import FATES
from fedloom.core.pace import Pace
from fedloom.methods import fedavg
from fedloom.parts.pace.buffered import Buffered
from fedloom.parts.pace.by_tier import ByTier
from fedloom.parts.pace.windowed import Windowed
from fedloom.parts.stale.as_change import AsChange
from fedloom.runs.experiment import Experiment
from fedloom.runs.play import run

STEPS = 25
SETTINGS: dict[str, Any] = {
    "model": {"name": "mlp", "settings": {"widths": [4]}}, "fleet": "iot", "clients": 40, "rounds": STEPS,
    "training": {"epochs": 1}, "evaluate_every": STEPS,
    "channel": {"name": "bernoulli", "settings": {"up": 0.1, "down": 0.05}},
}  # fmt: skip
M = 12
PACES: dict[str, Pace] = {
    "buffer": Buffered(4, M),
    "one": Buffered(1, M),
    "step": Buffered(4, M, refill="step"),
    "too old": Buffered(2, M, oldest=6),
    "window": Windowed(2.0, M, least=3),
    "timeout": Buffered(3, M, timeout=8.0),
    "given up": Buffered(3, M, timeout=8.0, late=False),
    "recall": Buffered(4, M, recall=True),
    "tiers": ByTier(3, 4),
}


class Written(NamedTuple):
    """What a run wrote."""

    rounds: dict[str, np.ndarray]
    clients: dict[str, np.ndarray]
    kept: dict[str, np.ndarray]
    made: np.ndarray  # the virtual second of each step, 0 first

    @property
    def flying(self) -> np.ndarray:
        """Which tasks were not over at the end."""
        return self.clients["fate"] == FATES.index("in flight")

    def held(self, seconds: np.ndarray) -> np.ndarray:
        """Task-seconds in each interval, of tasks that took so long from when they were asked."""
        begin, end = self.clients["asked"], self.clients["asked"] + seconds
        parts = [np.minimum(end, b) - np.maximum(begin, a) for a, b in zip(self.made, self.made[1:])]
        return np.array([part.clip(min=0).sum() for part in parts])


def columns_of(file: Path) -> dict[str, np.ndarray]:
    table = pq.read_table(file)
    return {name: table[name].to_numpy() for name in table.column_names if name != "per_class"}


def written(folder: Path) -> Written:
    rounds = columns_of(folder / "rounds.parquet")
    made = np.concatenate([[0.0], np.cumsum(rounds["virtual_seconds"])])
    return Written(rounds, columns_of(folder / "clients.parquet"), load_file(folder / "kept.safetensors"), made)


@pytest.fixture(scope="module", params=list(PACES))
def flown(request, tmp_path_factory) -> tuple[str, Written]:
    folder = tmp_path_factory.mktemp("run") / "run"
    run(Experiment(**SETTINGS), method=replace(fedavg(), pace=PACES[request.param], stale=AsChange()), out=folder)
    return request.param, written(folder)


def test_slots_are_held_or_empty(flown):
    _, found = flown
    held = found.rounds["in_flight"] * found.rounds["virtual_seconds"]
    assert held + found.rounds["idle_seconds"] == pytest.approx(M * found.rounds["virtual_seconds"])
    assert (found.rounds["in_flight"] <= M + 1e-9).all()


def test_slots_are_held_by_tasks(flown):
    name, found = flown
    seconds, fate = found.clients["seconds"], found.clients["fate"]
    if name in ("timeout", "given up"):  # a loss is noticed at the timeout, and a slot is held no longer
        lost = np.isin(fate, [FATES.index("download lost"), FATES.index("upload lost")])
        flying = np.where(found.flying, found.made[-1] - found.clients["asked"], seconds)
        seconds = np.where(lost, 8.0, np.minimum(flying, 8.0))
    if name == "recall":  # nobody holds a slot beyond the step
        seconds = np.minimum(seconds, found.made[found.clients["round"]] - found.clients["asked"])
    assert found.held(seconds) == pytest.approx(found.rounds["in_flight"] * found.rounds["virtual_seconds"], abs=1e-6)
    if name not in ("timeout", "given up", "recall"):
        whole = (found.rounds["in_flight"] * found.rounds["virtual_seconds"]).sum()
        assert found.clients["seconds"].sum() == pytest.approx(whole)


def test_every_task_has_one_row_and_one_fate(flown):
    name, found = flown
    assert sorted(found.clients["serial"]) == list(range(len(found.clients["serial"]))), "all that were asked"
    fates = Counter(FATES[code] for code in found.clients["fate"])
    assert fates["arrived"] == found.clients["arrived"].sum() == found.rounds["arrived"].sum()
    booked = Counter(found.clients["round"][~found.flying].tolist())
    assert [booked[number] for number in range(1, STEPS + 1)] == found.rounds["clients"].tolist()
    expected = {"too old": "too old", "given up": "given up", "recall": "recalled"}
    assert fates[expected.get(name, "upload lost")] > 0
    assert (fates["in flight"] > 0) == (name != "recall")


def test_replies_wait_until_a_step_takes_them(flown):
    name, found = flown
    came = found.clients["asked"] + found.clients["seconds"]
    taken = found.made[np.minimum(found.clients["round"], STEPS)]
    arrived = found.clients["arrived"]
    assert found.clients["waited"][arrived] == pytest.approx((taken - came)[arrived], abs=1e-6)
    assert (found.clients["waited"][~arrived & ~found.flying] == 0).all()
    if name in ("buffer", "one", "step", "window"):  # elsewhere some wait and do not count
        left = (found.made[-1] - came)[found.flying].clip(min=0).sum()
        waited = found.clients["waited"][arrived].sum() + left
        assert found.rounds["waited_seconds"].sum() == pytest.approx(waited, abs=1e-6)


def test_staleness_is_counted_in_steps(flown):
    _, found = flown
    moved = np.concatenate([[0], np.cumsum(found.rounds["arrived"] > 0)])
    stale = moved[found.clients["round"] - 1] - moved[found.clients["base"]]
    assert found.clients["staleness"].tolist() == stale.tolist()
    arrived, step = found.clients["arrived"], found.clients["round"]
    for number, mean, most in zip(range(1, STEPS + 1), found.rounds["staleness_mean"], found.rounds["staleness_max"]):
        own = stale[arrived & (step == number)]
        assert (len(own) == 0 and np.isnan(mean)) or (mean == pytest.approx(own.mean()) and most == own.max())
    assert found.kept["staleness"].tolist() == np.bincount(stale[arrived]).tolist()


def test_waste_is_what_did_not_count(flown):
    _, found = flown
    for number in range(1, STEPS + 1):
        vain = ~found.clients["arrived"] & (found.clients["round"] == number)
        row = {name: found.rounds[name][number - 1] for name in ("wasted_seconds", "wasted_joules", "wasted_bytes")}
        moved = found.clients["bytes_down"] + found.clients["bytes_up"]
        assert row["wasted_seconds"] == pytest.approx(found.clients["seconds"][vain].sum())
        assert row["wasted_joules"] == pytest.approx(found.clients["joules"][vain].sum())
        assert row["wasted_bytes"] == moved[vain].sum()


def test_steps_and_seconds_are_by_client(flown):
    _, found = flown
    client, arrived = found.clients["client"], found.clients["arrived"]
    assert found.kept["fleet.steps"].tolist() == np.bincount(client[arrived], minlength=40).tolist()
    ended = np.bincount(client[~found.flying], weights=found.clients["seconds"][~found.flying], minlength=40)
    assert found.kept["fleet.seconds"] == pytest.approx(ended)


def test_unfinished_tasks_are_written_as_far_as_they_have_come(flown):
    name, found = flown
    if name == "recall":
        return
    here = {key: values[found.flying] for key, values in found.clients.items()}
    assert (here["round"] == STEPS + 1).all()
    assert not here["arrived"].any()
    assert (here["asked"] + here["seconds"] <= found.made[-1] + 1e-9).all()
    phases = here["seconds_down"] + here["seconds_compute"] + here["seconds_up"]
    assert here["seconds"] == pytest.approx(phases)
    began = here["seconds_compute"] > 0
    assert (here["bytes_up"][~began] == 0).all()
    assert {key: values.dtype for key, values in here.items()} == {key: v.dtype for key, v in found.clients.items()}


def test_versions_are_those_that_tasks_refer_to(flown):
    _, found = flown
    step, base, asked = found.clients["round"], found.clients["base"], found.clients["asked"]
    for number, versions in enumerate(found.rounds["versions"], 1):
        alive = (step >= number) & (base < number)
        assert versions == len({number - 1, *base[alive].tolist()}), asked
