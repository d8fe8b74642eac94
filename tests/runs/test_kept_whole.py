"""Runs of networks that are not understood, or in part: what can be cut is, and one warning says what is not."""

import logging

import pytest
import torch
from torch import Tensor, nn

from fedloom import Experiment, run


class Unknown(nn.Module):
    """A function without a rule between two layers, and two layers behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(64, 12), nn.Linear(12, 12), nn.Linear(12, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.special.i1e(self.first(x.flatten(1)))
        return self.last(self.second(x).relu())


class Branches(nn.Module):
    """Looks at its own numbers before it goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, 8), nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x.flatten(1))
        return self.last(x if float(x.detach().mean()) > 100 else x.relu())


def played(method: str, network: type[nn.Module], engine: str = "local") -> nn.Module:
    """The network after two rounds of four clients."""
    torch.manual_seed(0)
    experiment = Experiment(method=method, clients=4, rounds=2, training={"batch": 100}, engine=engine)
    return run(experiment, model=network()).model


@pytest.mark.parametrize("method", ["fjord", "fedspu", "heterofl"])
def test_the_rest_is_cut_and_the_engines_agree(method: str, caplog) -> None:
    with caplog.at_level(logging.WARNING, "fedloom"):
        ours, theirs = (played(method, Unknown, engine) for engine in ("local", "loop"))
    said = [record.getMessage() for record in caplog.records if "kept whole" in record.getMessage()]
    assert len(said) == 2  # one a run
    assert "'first'. Not understood: the network's own code (special_i1e: it has no rule)" in said[0]
    for one, other in zip(ours.parameters(), theirs.parameters()):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def test_code_that_branches_is_trained_whole(caplog) -> None:
    with caplog.at_level(logging.WARNING, "fedloom"):
        played("fjord", Branches)
    assert any("may take another way" in record.getMessage() for record in caplog.records)
