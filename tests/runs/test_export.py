"""What a device holds: its part, its numbers, and files that give PyTorch's answers elsewhere."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from fedloom import BadExperiment, BadModel, Dataset, Experiment, device_model, export_model, from_arrays, run
from fedloom.layout import layout_of, load
from fedloom.neurons.trace import neuron_map
from fedloom.runs.export import FORMS, Form, write_network

FORMAT = ["onnx", "pt2", pytest.param("pte", marks=pytest.mark.skipif(
    find_spec("executorch") is None, reason="needs executorch, which is not installed here"))]  # fmt: skip
NETS = {"mlp": (1, 8, 8), "spu-emnist": (1, 12, 12), "vit": (1, 8, 8), "transformer": (9,), "lstm": (9,)}


def data_of(shape: tuple[int, ...]) -> Dataset:
    """A few drawn examples: texts where the shape has one axis, else images."""
    draw = np.random.default_rng(0)
    x = draw.integers(1, 30, (80, *shape)) if len(shape) == 1 else draw.normal(size=(80, *shape)).astype(np.float32)
    y = np.arange(80) % 4
    return from_arrays("drawn", {"x_train": x, "y_train": y, "x_test": x[:20], "y_test": y[:20]})


def played(folder: Path, method: str, net: str = "mlp", rounds: int = 2, **settings: object) -> Dataset:
    """A short run in a folder; its data."""
    data = data_of(NETS[net])
    model = {"name": net, "settings": {"depth": 1} if net in ("vit", "transformer") else {}}
    experiment = Experiment(
        method={"name": method, "settings": settings}, model=model, clients=8, per_round=4, rounds=rounds,
        partition="iid", device="cpu",
    )  # fmt: skip
    run(experiment, data=data, out=folder)
    return data


@pytest.mark.parametrize("ending", FORMAT)
@pytest.mark.parametrize("net", NETS)
def test_half_of_a_network_answers_elsewhere_as_in_torch(tmp_path: Path, net: str, ending: str) -> None:
    data = played(tmp_path / "run", "fjord", net, rounds=1)
    made = export_model(tmp_path / "run", tmp_path / f"half.{ending}", 0.5, 3, data=data)
    assert made.difference <= 1e-5
    assert made.bytes == made.file.stat().st_size > 1000
    assert made.examples == 16
    assert made.input == (1, *NETS[net])
    assert made.parameters < 0.85 * made.whole


def test_a_whole_network_is_the_models_and_takes_batches(tmp_path: Path) -> None:
    data = played(tmp_path / "run", "fedavg")
    made = export_model(tmp_path / "run", tmp_path / "new" / "net.onnx", batch=4, data=data)
    assert made.parameters == made.whole
    assert made.input[0] == 4
    assert not made.notes
    x = torch.from_numpy(data.x_test)
    found = device_model(tmp_path / "run", data=data).network
    assert torch.equal(layout_of(found).join(load_file(tmp_path / "run" / "model.safetensors"), 0), flat(found))
    assert found(x).shape == (20, 4)


def flat(network: nn.Module) -> Tensor:
    """Its parameters as one vector."""
    return torch.cat([value.detach().flatten() for value in network.parameters()])


@pytest.mark.parametrize(("method", "part"), [("fjord", slice(0, None)), ("fedrolex", slice(2, None))])
def test_the_methods_own_neurons_are_cut(tmp_path: Path, method: str, part: slice) -> None:
    """FjORD keeps the leading half; FedRolex's window stands at neuron 2 in round 3."""
    data = played(tmp_path / "run", method)
    whole, half = (device_model(tmp_path / "run", share, 5, data=data) for share in (None, 0.5))
    first = next(p for p in whole.network.parameters())
    mine = next(p for p in half.network.parameters())
    last = device_model(tmp_path / "run", client=5, data=data)
    assert whole.round == half.round == 2
    if method == "fjord":
        assert torch.equal(mine, device_model(tmp_path / "run", data=data).network.state_dict()[name_of(half)][:50])
    else:
        everything = device_model(tmp_path / "run", data=data).network.state_dict()[name_of(half)]
        assert torch.equal(mine, everything[part][:50])
    assert "last round" in " ".join(last.notes) or "no state" in " ".join(last.notes)
    assert len(first) in (20, 40, 60, 80, 100)


def name_of(made: object) -> str:
    """The first parameter's name."""
    return next(name for name, _ in made.network.named_parameters())  # type: ignore[attr-defined]


def test_the_cut_network_is_the_masked_one(tmp_path: Path) -> None:
    data = played(tmp_path / "run", "fedavg")
    whole, half = (device_model(tmp_path / "run", share, data=data) for share in (None, 0.5))
    assert any("largest weights" in note for note in half.notes)
    x = torch.from_numpy(data.x_test)
    map, layout = neuron_map(whole.network, x[:2]), layout_of(whole.network)
    keep = map.cut(map.score(flat(whole.network)), 0.5)
    masked = load(whole.network, layout, flat(whole.network) * map.expand(keep))
    torch.testing.assert_close(half.network(x), masked(x), rtol=1e-5, atol=1e-6)


def test_a_client_has_its_own_numbers(tmp_path: Path) -> None:
    """FedSPU's clients keep a whole model of their own, which one that was never asked does not have yet."""
    data = played(tmp_path / "run", "fedspu")
    common = flat(device_model(tmp_path / "run", data=data).network)
    several = {client: device_model(tmp_path / "run", client=client, data=data) for client in range(8)}
    own = {client: flat(made.network) for client, made in several.items() if "own" in " ".join(made.notes[:1])}
    strange = [client for client, made in several.items() if "no state" in " ".join(made.notes)]
    met = [client for client in several if client not in strange]
    assert len(met) >= 4
    assert all(not torch.equal(own[client], common) for client in met)
    assert not torch.equal(own[met[0]], own[met[1]])
    assert all(torch.equal(flat(several[client].network), common) for client in strange)


def test_without_a_checkpoint_the_model_is_the_server_s(tmp_path: Path) -> None:
    data = played(tmp_path / "run", "fjord")
    before = device_model(tmp_path / "run", 0.5, 3, data=data)
    for path in (tmp_path / "run" / "checkpoint").glob("round-*"):
        for file in path.iterdir():
            file.unlink()
        path.rmdir()
    after = device_model(tmp_path / "run", 0.5, 3, data=data)
    assert after.round == 0
    assert torch.equal(flat(before.network), flat(after.network))


def test_wrong_input_is_refused_with_what_to_do(tmp_path: Path) -> None:
    data = played(tmp_path / "run", "fedavg", rounds=1)
    for given, wrong in (
        ({"out": "net.bin"}, r"ends in \.onnx, \.pt2, \.pte"),
        ({"share": 1.5}, "share is 1.5"),
        ({"client": 8}, "has clients 0 to 7"),
        ({"batch": 0}, "1 or more"),
        ({"batch": 64}, "test set has 20 examples"),
    ):
        with pytest.raises(BadExperiment, match=wrong):
            export_model(tmp_path / "run", **{"out": tmp_path / "net.pt2", "data": data, **given})
    if find_spec("executorch") is None:
        with pytest.raises(BadExperiment, match="pip install executorch"):
            export_model(tmp_path / "run", tmp_path / "net.pte", data=data)
    with pytest.raises(BadModel, match=r"numbers and this network"):
        export_model(
            tmp_path / "run", tmp_path / "net.pt2", data=data, model=nn.Sequential(nn.Flatten(), nn.Linear(64, 4))
        )
    assert not (tmp_path / "net.pt2").exists()


class Odd(nn.Module):
    """A network whose code looks at values, which no exporter follows."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.flatten(1)) * (2.0 if x.sum().item() > 0 else 1.0)


def test_what_cannot_be_written_says_so(tmp_path: Path) -> None:
    data = data_of((1, 8, 8))
    experiment = Experiment(clients=4, rounds=1, partition="iid", device="cpu", engine="loop")
    run(experiment, data=data, model=Odd(), out=tmp_path / "run")
    with pytest.raises(BadModel, match=r"cannot be written for torch\.export.*another of"):
        export_model(tmp_path / "run", tmp_path / "net.pt2", data=data, model=Odd())


def test_a_file_that_answers_otherwise_is_not_written(tmp_path: Path) -> None:
    data = played(tmp_path / "run", "fedavg", rounds=1)
    made, good = device_model(tmp_path / "run", data=data), FORMS[".pt2"]
    for spoil in (lambda y: y + 1e-3, lambda y: y * float("nan"), lambda y: y[:, :2]):
        start = good.start
        bad = Form(
            *good[:5], lambda contents, start=start, spoil=spoil: lambda x: [spoil(y) for y in start(contents)(x)]
        )
        with pytest.raises(BadModel, match=r"Nothing was written"):
            write_network(made, tmp_path / "net.pt2", bad)
    assert not (tmp_path / "net.pt2").exists()
