"""Where a method's extreme is another method, they are equal."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fedloom.core.optimiser import Sgd
from fedloom.core.rule import LocalRule
from fedloom.core.work import Work
from fedloom.method import Method
from fedloom.methods.fedavg import fedavg
from fedloom.methods.feddc import DriftCorrection, feddc
from fedloom.methods.federated_dropout import federated_dropout
from fedloom.methods.fedprox import fedprox
from fedloom.methods.fedrolex import fedrolex
from fedloom.methods.fjord import fjord
from fedloom.methods.scaffold import ControlVariates, scaffold
from fedloom.parts.aggregate.coverage_mean import CoverageMean
from fedloom.parts.local.chain import Chain
from fedloom.parts.local.keep_own import KeepOwn
from fedloom.parts.local.prox import Prox
from fedloom.parts.local.sub_model import SubModel
from pieces import Scattered
from worlds import METHODS, Run, assert_close, assert_identical, everything, played, small

NETWORK = "normed"
FEDAVG = small(fedavg())


def run(method: Method, rounds: int = 3) -> Run:
    """Three rounds on the network with running statistics."""
    return played(NETWORK, method, rounds)


@pytest.mark.parametrize(
    "method",
    [
        pytest.param(small(fedprox(mu=0)), id="fedprox mu=0"),
        pytest.param(small(Method(local=Chain(()))), id="a chain of nothing"),
        pytest.param(small(Method(local=Chain((LocalRule(),)))), id="a chain of the plain rule"),
        pytest.param(small(Method(local=SubModel())), id="the whole as sub-model"),
        pytest.param(small(Method(local=KeepOwn())), id="own models, everything sent"),
        pytest.param(small(Method(local=KeepOwn(freeze=True))), id="own models, nothing frozen"),
        pytest.param(replace(FEDAVG, optimiser=Sgd(rate=0.1, fresh=False)), id="nothing to keep"),
        pytest.param(small(fjord((1.0,))), id="fjord share=1"),
        pytest.param(small(fedrolex((1.0,))), id="fedrolex share=1"),
        pytest.param(small(federated_dropout((1.0,))), id="federated dropout share=1"),
    ],
)
def test_is_fedavg_exactly(method: Method) -> None:
    assert torch.equal(run(method).model, run(FEDAVG).model)


@pytest.mark.parametrize(
    "method",
    [
        pytest.param(small(Method(mask=Scattered(1.0), local=SubModel())), id="a sub-model of everything"),
        pytest.param(small(Method(mask=Scattered(1.0), local=KeepOwn(freeze=True))), id="own models, all overwritten"),
        pytest.param(replace(FEDAVG, optimiser=Sgd(rate=0.1, clip=1e9)), id="step by step instead of fused"),
    ],
)
def test_is_fedavg(method: Method) -> None:
    assert_close({"model": run(method).model}, {"model": run(FEDAVG).model}, 2e-6)


@pytest.mark.parametrize(
    ("rule", "method"),
    [
        (Prox(0.1), small(fedprox(mu=0.1))),
        (ControlVariates(), small(scaffold())),
        (DriftCorrection(0.05), small(feddc(alpha=0.05))),
        (KeepOwn(), dict(METHODS)["keep-own"]()),
        (SubModel(), dict(METHODS)["scattered"]()),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, LocalRule) else "",
)
def test_a_chain_of_one_is_the_rule_itself(rule: LocalRule, method: Method) -> None:
    assert method.local == rule
    chained, alone = run(replace(method, local=Chain((rule,)))), run(method)
    assert torch.equal(chained.model, alone.model)
    renamed = {name.replace("local.", "local.0."): value for name, value in everything(alone).items()}
    assert_identical(everything(chained), renamed)


def test_chains_nest() -> None:
    rules = (Prox(0.1), ControlVariates(), KeepOwn())
    flat = small(scaffold(), local=Chain(rules))
    deep = small(scaffold(), local=Chain((Chain(rules[:1]), Chain(rules[1:]))))
    assert torch.equal(run(flat).model, run(deep).model)


def test_scaffold_begins_as_fedavg_with_the_plain_mean() -> None:
    uniform = small(Method(aggregate=CoverageMean("uniform")))
    first, plain = run(small(scaffold())).models[0], run(uniform).models[0]
    assert_close({"model": first}, {"model": plain}, 1e-6)
    assert not torch.equal(run(small(scaffold())).models[1], run(uniform).models[1])


def test_steps_equal_epochs_of_one_step() -> None:
    epochs = run(small(fedavg(), work=Work(epochs=3, batch=0)))
    steps = run(small(fedavg(), work=Work(steps=3, batch=0)))
    assert torch.equal(epochs.model, steps.model)


def test_an_all_true_mask_is_no_mask() -> None:
    reply = run(FEDAVG).replies[0]
    for weigh in ("examples", "uniform"):
        bare, _ = CoverageMean(weigh)({}, None, run(FEDAVG).tasks[0].model, reply)
        full = reply._replace(mask=torch.ones_like(reply.params, dtype=torch.bool))
        masked, _ = CoverageMean(weigh)({}, None, run(FEDAVG).tasks[0].model, full)
        assert_close({"model": masked}, {"model": bare}, 1e-6)
