"""A network of the user's own is looked at and tried on one batch before anything is written."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from fedloom.errors import BadModel
from fedloom.runs.experiment import Experiment
from fedloom.runs.play import run

NAN, INF = float("nan"), float("inf")


class Net(nn.Module):
    """Scores of digits, changed by `after` on the way out, with another parameter or buffer `odd`."""

    def __init__(self, after: Callable[[nn.Module, Tensor], Any] | None = None, odd: Tensor | None = None) -> None:
        super().__init__()
        self.out, self.after = nn.Linear(64, 10), after
        if isinstance(odd, nn.Parameter):
            self.odd = odd
        elif odd is not None:
            self.register_buffer("odd", odd)

    def forward(self, x: Tensor) -> Any:
        """Scores [B, 10]."""
        scores = self.out(x.flatten(1))
        return scores if self.after is None else self.after(self, scores)


def parameter(value: Tensor, trained: bool = True) -> nn.Parameter:
    """An unused parameter."""
    return nn.Parameter(value, requires_grad=trained)


def remembering() -> nn.Module:
    """A network that cannot be copied: it keeps a tensor that was computed."""
    net = Net()
    net.remembered = net.out.weight * 2  # type: ignore[assignment]
    return net


def scripted() -> nn.Module:
    """A layer made by torch.jit, which torch itself advises against."""
    with warnings.catch_warnings(action="ignore"):
        return torch.jit.script(nn.Linear(64, 10))


REFUSED: dict[str, tuple[nn.Module, tuple[str, ...]]] = {
    "lazy": (nn.Sequential(nn.Flatten(), nn.LazyLinear(10)), ("'1.weight'", "no numbers yet")),
    "on no device": (nn.Sequential(nn.Flatten(), nn.Linear(64, 10, device="meta")), ("'1.weight'", "meta")),
    "sparse": (Net(odd=parameter(torch.eye(3).to_sparse())), ("'odd'", "sparse", "dense")),
    "complex numbers": (Net(odd=parameter(torch.zeros(3, dtype=torch.complex64))), ("'odd'", "complex64", "float32")),
    "NaN in a parameter nobody uses": (Net(odd=parameter(torch.tensor([0.0, NAN]))), ("parameter 'odd'", "nan")),
    "an infinite buffer that moves": (
        Net(lambda net, y: (net.odd.add_(1), y)[1] if net.training else y, odd=torch.tensor([0.0, -INF])),
        ("buffer 'odd'", "-inf", "averaged"),
    ),
    "all frozen": (Net().requires_grad_(False), ("Net", "frozen")),
    "not to be copied": (remembering(), ("Net", "cannot be copied")),
    "detached": (Net(lambda _, y: y.detach()), ("Net", "detached", "'out.weight'")),
    "whole scores": (Net(lambda _, y: (100 * y).long()), ("Net", "int64", "float")),
    "complex scores": (Net(lambda _, y: y.to(torch.complex64)), ("Net", "complex64", "float")),
    "one row for all": (Net(lambda _, y: y.mean(0, keepdim=True)), ("32 examples", "1 rows")),
    "two rows for each": (Net(lambda _, y: torch.cat([y, y])), ("32 examples", "64 rows")),
    "NaN in one row of the first batch": (
        Net(lambda _, y: torch.where(torch.arange(len(y))[:, None] == 20, NAN, y)),
        ("Net", "NaN", "first examples"),
    ),
    "NaN in training only": (Net(lambda net, y: y * NAN if net.training else y), ("in training", "NaN")),
    "fails in training only": (Net(lambda net, y: 1 / 0 if net.training else y), ("in training", "division by zero")),
    "an infinite loss": (Net(lambda _, y: y * 1e38), ("loss of inf", "first 32 examples")),
    "made by torch.jit": (
        nn.Sequential(nn.Flatten(), scripted()),
        ("layer '1'", "torch.jit", "nn.Module"),
    ),
    "a norm that counts batches": (
        nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64, momentum=None), nn.Linear(64, 10)),
        ("layer '1'", "momentum=None", "0.1"),
    ),
    "checkpointed in the old way": (
        Net(lambda net, y: checkpoint(torch.tanh, y, use_reentrant=True) if net.training else y),
        ("cannot be differentiated", "use_reentrant=False"),
    ),
    "several answers": (Net(lambda _, y: (y, y)), ("a tuple", "tensor of scores", "wrap")),
    "a gradient of NaN": (Net(lambda _, y: (0 * y).sqrt()), ("'out.weight'", "gradient")),
}


def tiny(**changes: Any) -> Experiment:
    """One round of two clients."""
    return Experiment(**{"clients": 4, "per_round": 2, "rounds": 1, "training": {"epochs": 1}, **changes})


@pytest.mark.parametrize(("net", "words"), REFUSED.values(), ids=REFUSED.keys())
def test_refused_before_anything_is_written(net, words, tmp_path):
    with pytest.raises(BadModel) as refused:
        run(tiny(), model=net, out=tmp_path / "run")
    for word in words:
        assert word in str(refused.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "odd",
    [
        torch.tensor([3, 4]),
        torch.tensor([True]),
        torch.tensor([1j]),
        torch.ones(2, dtype=torch.float16),
        torch.tensor([0.0, -INF]),
        parameter(torch.zeros(3, dtype=torch.int64), False),
        parameter(torch.ones(2, dtype=torch.bfloat16), False),
        parameter(torch.ones(2), False),
        parameter(torch.ones(2)),
        parameter(torch.ones(0)),
    ],
    ids=[
        "whole",
        "bool",
        "complex",
        "half",
        "infinite",
        "frozen-whole",
        "frozen-bfloat16",
        "frozen",
        "unused",
        "empty",
    ],
)
def test_what_does_no_harm_is_taken_and_comes_back_as_it_was(odd):
    result = run(tiny(), model=Net(odd=odd))
    assert torch.equal(dict(result.model.state_dict())["odd"], odd)
    assert result.model.state_dict()["odd"].dtype == odd.dtype


def test_the_users_network_and_its_statistics_stay_as_they_were():
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 10))
    before = {name: value.clone() for name, value in net.state_dict().items()}
    run(tiny(), model=net)
    assert net.training
    for name, value in net.state_dict().items():
        assert torch.equal(value, before[name]), name
