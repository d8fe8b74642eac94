"""Runs with adapters: on the command line, from other weights, resumed, saved, in memory, and with half a base."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from fedloom import BadExperiment, BadModel, Experiment, load_model, lora, resume, run
from fedloom.layout import base_of
from fedloom.runs.build import prepare
from fedloom.runs.set_values import with_settings

LORA = {"name": "lora", "settings": {"rank": 4, "targets": "linear"}}


def tiny(**changes: object) -> Experiment:
    """Two rounds of two clients on digits, with adapters."""
    values = {"clients": 4, "per_round": 2, "rounds": 2, "training": {"epochs": 1, "batch": 100}, "device": "cpu"}
    return Experiment(**{**values, "adapter": LORA, **changes})


def test_settings_of_the_adapter_are_set_by_name() -> None:
    given = {"adapter.rank": 2, "targets": "linear", "freeze_a": True}
    values = with_settings({"model": "mlp", "adapter": "lora"}, given)
    assert values["adapter"] == {"name": "lora", "settings": {"rank": 2, "targets": "linear", "freeze_a": True}}
    with pytest.raises(BadExperiment, match="unknown adapter 'dora'"):
        Experiment(adapter="dora")
    with pytest.raises(BadExperiment, match="rank"):
        Experiment(adapter={"name": "lora", "settings": {"rank": "two"}})


def test_what_is_saved_and_sent_is_what_is_trained(tmp_path: Path) -> None:
    result = run(tiny(method="fedit"), out=tmp_path)
    saved = load_file(tmp_path / "model.safetensors")
    trained = {name: value for name, value in result.model.named_parameters() if value.requires_grad}
    assert saved.keys() == trained.keys()
    assert {name.rpartition(".")[0] for name in saved} == {"dense1.a", "dense1.b", "dense2.a", "dense2.b", "output"}
    numbers = sum(value.numel() for value in trained.values())
    up = result.rounds[0]["bytes_up"]
    assert 2 * 4 * numbers <= up <= 2 * (1.02 * 4 * numbers + 512)
    again = load_model(tmp_path)
    for name, value in result.model.state_dict().items():
        assert torch.equal(again.state_dict()[name], value), name


@pytest.mark.parametrize("method", ["hetlora", "flexlora"])
def test_a_resumed_run_is_a_straight_one(method: str, tmp_path: Path) -> None:
    straight = run(tiny(method=method, rounds=3)).model.state_dict()
    run(tiny(method=method, rounds=1), out=tmp_path)
    for name, value in resume(tmp_path, rounds=3).model.state_dict().items():
        assert torch.equal(value, straight[name]), name


def test_the_base_has_the_weights_of_another_run(tmp_path: Path) -> None:
    whole = run(tiny(method="fedavg", adapter="none", rounds=1), out=tmp_path / "whole")
    prepared = prepare(tiny(start=str(tmp_path / "whole"), seed=5))
    base = base_of(prepared.inputs.network, prepared.inputs.setting.layout)
    assert torch.equal(base["dense1.base.weight"], whole.model.state_dict()["dense1.weight"])
    head = prepared.inputs.network.state_dict()["output.weight"]
    assert torch.equal(head, whole.model.state_dict()["output.weight"])
    straight = run(tiny(start=str(tmp_path / "whole"), seed=5)).model.state_dict()
    run(tiny(start=str(tmp_path / "whole"), seed=5, rounds=1), out=tmp_path / "adapted")
    for name, value in resume(tmp_path / "adapted", rounds=2).model.state_dict().items():
        assert torch.equal(value, straight[name]), name
    further = prepare(tiny(start=str(tmp_path / "adapted"), seed=5))  # adapters' own weights, on the seed's base
    saved = load_file(tmp_path / "adapted" / "model.safetensors")
    assert torch.equal(further.inputs.network.state_dict()["dense1.a.weight"], saved["dense1.a.weight"])


def test_another_base_is_refused(tmp_path: Path) -> None:
    run(tiny(method="fedavg", adapter="none", rounds=1), out=tmp_path / "whole")
    run(tiny(start=str(tmp_path / "whole"), rounds=1), out=tmp_path / "adapted")
    other = tmp_path / "other"
    run(tiny(method="fedavg", adapter="none", rounds=1, seed=3), out=other)
    (tmp_path / "whole" / "model.safetensors").write_bytes((other / "model.safetensors").read_bytes())
    with pytest.raises(BadExperiment, match=r"base|frozen"):
        resume(tmp_path / "adapted", rounds=2)


def test_a_base_of_half_precision_is_trained_as_the_loop_trains_it() -> None:
    torch.manual_seed(0)
    base = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU()).to(torch.bfloat16)

    class Half(nn.Module):
        """A body of half precision and a head of full."""

        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = base, nn.Linear(16, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            """Scores."""
            answer: torch.Tensor = self.head(self.body(x.flatten(1).to(torch.bfloat16)).float())
            return answer

    network = lora(Half(), 4, targets="body")
    assert network.body[0].base.weight.dtype == torch.bfloat16
    ends = [run(tiny(adapter="none", engine=engine), model=network).model.state_dict() for engine in ("loop", "local")]
    for name, value in ends[0].items():
        torch.testing.assert_close(ends[1][name], value, rtol=0, atol=1e-3)


def test_rows_of_a_hundred_clients_hold_adapters_alone() -> None:
    width = 3200  # two layers of 10 M numbers
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
    network.append(nn.Linear(width, 10))
    adapted = lora(network, 4, targets="3", also=("5",))
    inputs = prepare(tiny(adapter="none", clients=100, per_round=100), model=adapted).inputs
    base = sum(value.numel() for value in base_of(inputs.network, inputs.setting.layout).values())
    assert base > 10_000_000
    assert inputs.setting.layout.total * 4 * 100 < 64 * 2**20
    own = {name: value.data_ptr() for name, value in network.named_parameters()}
    assert inputs.network.state_dict()["3.base.weight"].data_ptr() == own["3.weight"]
    assert inputs.setting.module.state_dict()["3.base.weight"].data_ptr() == own["3.weight"]


def test_networks_without_the_named_layers_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(BadModel, match=r"adapter.targets is 'attention'"):
        run(tiny(adapter="lora"), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
