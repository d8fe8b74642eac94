"""The programs in `examples/` run, and say what their pages say they do; pages run them too, on stand-ins."""

from __future__ import annotations

import runpy
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fedloom import Experiment, run
from fedloom.data.load import data_folder
from fedloom.parts.aggregate.plain_mean import PlainMean

EXAMPLES = Path(__file__).parent.parent / "examples"
SHORT = {"clients": 4, "rounds": 2, "training": {"epochs": 1}}


def parts_of(name: str) -> dict[str, object]:
    """An example's names, without running it."""
    return runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name=name)


def test_every_example_has_a_page_that_shows_it():
    for script in EXAMPLES.glob("*.py"):
        page = EXAMPLES.parent / "docs" / f"example-{script.stem.replace('_', '-')}.md"
        assert f"{{literalinclude}} ../examples/{script.name}" in page.read_text()


def test_agreement_without_sharpness_is_the_equal_mean():
    def mine(sharpness: float) -> dict[str, torch.Tensor]:
        name = f"{EXAMPLES / 'own_method.py'}:agreement"
        return run(Experiment(**SHORT, method={"name": name, "settings": {"sharpness": sharpness}})).model.state_dict()

    ours, sharp = mine(0.0), mine(5.0)
    plain = replace(Experiment(**SHORT).build_method(), aggregate=PlainMean())
    equal = run(Experiment(**SHORT), method=plain).model.state_dict()
    for name, weights in equal.items():
        torch.testing.assert_close(ours[name], weights, rtol=1e-5, atol=1e-6)
    assert any(not torch.allclose(sharp[name], weights) for name, weights in equal.items())


def test_every_person_is_divided():
    activity = parts_of("activity")
    data = activity["by_person"](activity["invented"](), seed=0)
    for part, share in (("train", 0.7), ("test", 0.3)):
        client = getattr(data, f"client_{part}")
        assert np.array_equal(np.unique(client), np.arange(1, 31))
        assert np.allclose(np.bincount(client)[1:], 20 * share)
        assert getattr(data, f"x_{part}").shape == (len(client), 9, 128)


@pytest.mark.slow
def test_people_are_recognised(monkeypatch, capsys):
    if not (data_folder() / "uci-har.npz").is_file():
        pytest.skip("uci-har.npz is not in the data folder")
    monkeypatch.setattr(sys, "argv", ["activity.py", "--rounds", "10"])
    runpy.run_path(str(EXAMPLES / "activity.py"), run_name="__main__")
    mean = float(capsys.readouterr().out.splitlines()[1].split()[1])
    assert mean > 0.7
