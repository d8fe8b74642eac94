"""Precision: what is set is put back, bfloat16 products round and still learn, and what cannot use them says so."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from fedloom.accel.precision import Precision, computing
from fedloom.engine.local import local_engine
from fedloom.errors import BadExperiment
from fedloom.runs.experiment import Experiment
from fedloom.runs.play import run
from worlds import METHODS, play, world


def flags() -> list[Any]:
    """All that decides what CUDA rounds."""
    back = torch.backends
    new = [back.cuda.matmul.fp32_precision, back.cudnn.conv.fp32_precision, back.cudnn.rnn.fp32_precision]
    return [back.cuda.matmul.allow_tf32, back.cudnn.allow_tf32, *new, torch.get_float32_matmul_precision()]


@pytest.mark.parametrize(("precision", "allowed"), [("float32", False), ("tf32", True)])
def test_flags_are_set_and_put_back(precision: Precision, allowed: bool) -> None:
    before = flags()
    with computing(precision):
        assert torch.backends.cuda.matmul.allow_tf32 is allowed
        assert torch.backends.cudnn.allow_tf32 is allowed
        assert {"tf32" if allowed else "ieee"} == set(flags()[2:5])
    assert flags() == before
    with pytest.raises(ZeroDivisionError), computing(precision):
        raise ZeroDivisionError
    assert flags() == before


@pytest.mark.parametrize("precision", ["default", "bf16"])
def test_flags_are_left_alone(precision: Precision) -> None:
    torch.backends.cuda.matmul.allow_tf32 = True  # the user's own choice
    try:
        with computing(precision):
            assert torch.backends.cuda.matmul.allow_tf32
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False


def test_settings_of_the_newer_kind_come_back_too() -> None:
    matmul: Any = torch.backends.cuda.matmul
    before = matmul.fp32_precision
    matmul.fp32_precision = "tf32"  # the older setting cannot be read now
    try:
        with computing("float32"):
            assert not matmul.allow_tf32
        assert matmul.fp32_precision == "tf32"
    finally:
        matmul.allow_tf32 = False
        matmul.fp32_precision = before


def test_a_run_that_stops_puts_flags_back() -> None:
    before = flags()

    def stop(row: dict[str, Any]) -> None:
        assert torch.backends.cuda.matmul.allow_tf32
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(Experiment(rounds=2, precision="tf32"), watch=stop)
    assert flags() == before


def test_on_a_cpu_only_bf16_changes_numbers_and_still_learns() -> None:
    told: dict[str, list[str]] = {name: [] for name in ("default", "float32", "tf32", "bf16")}
    facts: dict[str, Any] = {"rounds": 8, "partition": "iid", "training": {"rate": 0.3}}
    results = {
        name: run(Experiment(**facts, precision=name), tell=told[name].append)  # type: ignore[arg-type]
        for name in told
    }
    weights = {name: nn.utils.parameters_to_vector(result.model.parameters()) for name, result in results.items()}
    assert torch.equal(weights["default"], weights["float32"])
    assert torch.equal(weights["default"], weights["tf32"])
    assert not torch.equal(weights["default"], weights["bf16"])
    assert (weights["default"] - weights["bf16"]).norm() < 0.05 * weights["default"].norm()
    accuracy = {name: result.accuracy or 0.0 for name, result in results.items()}
    assert accuracy["default"] > 0.8
    assert abs(accuracy["default"] - accuracy["bf16"]) < 0.04
    said = {name: [note for note in notes if "precision" in note] for name, notes in told.items()}
    assert [len(said[name]) for name in told] == [0, 0, 1, 1]
    assert "changes nothing" in said["tf32"][0]


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fjord", "fedspu"])
def test_bf16_does_not_depend_on_the_chunking(name: str) -> None:
    here, method = world("mlp"), dict(METHODS)[name]()
    whole, single = (play(here, method, local_engine(here.clients(method), chunk, "bf16")).model for chunk in (None, 1))
    plain = play(here, method, here.local(method)).model
    assert not torch.equal(whole, plain)
    torch.testing.assert_close(whole, single, rtol=1e-3, atol=2e-3)
    assert (whole - single).norm() <= (whole - plain).norm()


def test_only_stacked_layers_take_bf16() -> None:
    with pytest.raises(BadExperiment, match=r"precision is 'bf16'.*one by one.*engine 'local'"):
        run(Experiment(precision="bf16", engine="loop"))
    with pytest.raises(BadExperiment, match="precision is 'fp8'"):
        Experiment(precision="fp8")
