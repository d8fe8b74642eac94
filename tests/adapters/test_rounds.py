"""Rounds with adapters: engines agree, ranks are shares of any method, and the base never changes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from adapter_worlds import ADAPTED, HALF, RANK, adapted
from fedloom.core.types import Reply, Task
from fedloom.errors import BadExperiment
from fedloom.layout import base_of
from fedloom.method import Method
from fedloom.methods.fedit import fedit
from fedloom.methods.ffa_lora import ffa_lora
from fedloom.methods.fjord import fjord
from fedloom.methods.flexlora import flexlora
from fedloom.methods.hetlora import hetlora
from fedloom.parts.local.shrink_tail import ShrinkTail
from worlds import METHODS, assert_close, everything, play, small, world

CASES = [(name, make, network) for name, make in ADAPTED for network in ("dense", "images")]
CASES += [(name, make, "half") for name, make in HALF]


@pytest.mark.parametrize(("name", "make", "network"), CASES)
def test_engines_agree_and_the_base_stays(name: str, make: Callable[[], Method], network: str) -> None:
    here, method = adapted(network), make()
    base = {key: value.clone() for key, value in base_of(here.setting.module, here.setting.layout).items()}
    loop = play(here, method, here.loop(method))
    for engine in (here.local(method), here.local(method, chunk=3), here.local(method, sliced=False)):
        assert_close(everything(play(here, method, engine)), everything(loop), 2e-5)
    assert not torch.equal(loop.model, here.model)
    for key, value in base_of(here.setting.module, here.setting.layout).items():
        assert torch.equal(value, base[key]), key


@pytest.mark.parametrize("method", [pytest.param(make(), id=name) for name, make in METHODS])
def test_every_method_takes_rank_components_as_neurons(method: Method) -> None:
    here = adapted()
    one, other = (play(here, method, engine, rounds=2) for engine in (here.loop(method), here.local(method)))
    assert bool(one.model.isfinite().all())
    assert_close({"model": other.model}, {"model": one.model}, 1e-4)


def test_dropout_in_adapters_is_keyed() -> None:
    here, method = adapted("dropout"), small(fedit())
    runs = [play(here, method, engine) for engine in (here.loop(method), here.local(method), here.local(method, 3))]
    for run in runs[1:]:
        assert_close(everything(run), everything(runs[0]), 2e-5)


def test_a_share_is_a_rank() -> None:
    here, method = adapted(), small(fjord((0.25, 0.5, 1.0)))
    run = play(here, method, here.local(method), rounds=1)
    ids, mask = run.tasks[0].ids, run.replies[0].mask
    assert ids is not None
    assert mask is not None
    a = here.setting.layout.split(mask)["1.a.weight"].any(2).sum(1)
    assert a.tolist() == [{0: 1, 1: 2, 2: RANK}[int(n) % 3] for n in ids]
    head = here.setting.layout.split(mask)["5.weight"]
    assert bool(head.all())  # the head is whole


def test_with_equal_ranks_hetlora_by_examples_is_fedit() -> None:
    here = adapted()
    method = small(hetlora((1.0,), penalty=0.0, prune=False, weigh="examples"))
    ours = play(here, method, here.local(method)).model
    torch.testing.assert_close(ours, play(here, small(fedit()), here.local(small(fedit()))).model, rtol=0, atol=1e-6)


def test_flexlora_keeps_the_mean_of_products() -> None:
    here, method = adapted(), small(flexlora((0.25, 0.5)))  # products of 2 components, and a mean of at most 4 is kept
    run = play(here, method, here.local(method), rounds=1)
    reply, new = run.replies[0], run.model
    sent = torch.where(reply.mask, reply.params, 0) if reply.mask is not None else reply.params
    weight = reply.arrived * reply.report["examples"]
    share = (weight / weight.sum())[:, None, None]
    for pair in here.setting.neurons.pairs:
        mean = (share * (pair.b.of(sent).mT @ pair.a.of(sent))).sum(0)
        product = pair.b.of(new).T @ pair.a.of(new)
        u, s, v = torch.linalg.svd(mean)
        best = u[:, :RANK] * s[:RANK] @ v[:RANK]
        torch.testing.assert_close(product, best, rtol=0, atol=1e-5)


def test_ffa_lora_averages_products_exactly() -> None:
    here, method = adapted("half"), small(ffa_lora())
    assert not any(name.endswith("a.weight") for name in here.setting.layout.names)
    run = play(here, method, here.local(method), rounds=1)
    reply, tensors = run.replies[0], here.setting.layout.split(run.replies[0].params)
    weight = reply.arrived * reply.report["examples"]
    a = here.setting.module.get_parameter("1.a.weight")
    mean = torch.einsum("c,coi->oi", weight / weight.sum(), tensors["1.b.weight"] @ a)
    torch.testing.assert_close(here.setting.layout.split(run.model)["1.b.weight"] @ a, mean, rtol=0, atol=1e-6)


@pytest.mark.parametrize("method", [hetlora(), flexlora()])
def test_methods_for_ranks_refuse_a_network_without_any(method: Method) -> None:
    here = world("mlp")
    with pytest.raises(BadExperiment, match="--adapter lora"):
        method.init(here.setting, here.model)


def test_ffa_lora_refuses_to_train_a() -> None:
    here = adapted()
    with pytest.raises(BadExperiment, match="freeze_a=true"):
        ffa_lora().init(here.setting, here.model)


def test_the_penaltys_gradient_is_autograds() -> None:
    here = adapted(dtype=torch.float64)
    rule, ids, keep = ShrinkTail(0.7, gamma=0.5), torch.arange(3), torch.ones(3, here.setting.neurons.size).bool()
    keep[1, 2:4] = keep[1, 6:8] = False  # rank 2
    mask = here.setting.neurons.expand(keep)
    task = Task(here.model, mask, keep, torch.ones(3), keep[:, 0], rule.brief({}, here.setting, ids), 1, 0.1, 0.1,
                here.setting.layout.trained, ids)  # fmt: skip
    params = torch.where(mask, here.model * torch.tensor([[1.0], [2.0], [0.5]]), 0).requires_grad_()
    loss = params.new_zeros(())
    for client, rank in enumerate((4, 2, 4)):
        for pair in here.setting.neurons.pairs:
            tails = [factor.of(params[client])[rank // 2 : rank] for factor in (pair.a, pair.b)]
            loss = loss + 0.7 * tails[0].norm() * tails[1].norm()
    (expected,) = torch.autograd.grad(loss, params)
    found = rule.correct(task, {}, params.detach(), params.detach(), torch.zeros_like(params))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_ranks_only_fall_and_not_below_the_least() -> None:
    here = adapted()
    method = small(hetlora((0.5, 1.0), r_min=2, gamma=0.6, penalty=0.3))
    run = play(here, method, here.local(method), rounds=6)
    asked: dict[int, list[float]] = {}
    for task in run.tasks:
        assert task.ids is not None
        for client, share in zip(task.ids.tolist(), task.share.tolist()):
            asked.setdefault(client, []).append(share * RANK)
    assert all(ranks == sorted(ranks, reverse=True) and min(ranks) >= 2 for ranks in asked.values())
    assert any(ranks[-1] < ranks[0] for ranks in asked.values())
    mean = method.record(run.memory)["allocate.rank"]
    assert float(mean) == float(run.memory["allocate"]["share"].mean())


def test_lost_replies_change_no_rank() -> None:
    here = adapted()
    method = small(hetlora((1.0,), gamma=0.6, penalty=0.3))
    memory = method.init(here.setting, here.model)["allocate"]
    run = play(here, method, here.local(method), rounds=1)
    reply = run.replies[0]
    lost: Tensor = torch.zeros_like(reply.arrived)
    after = method.allocate.observe(memory, here.setting, here.model, replace_arrived(reply, lost))
    assert torch.equal(after["share"], memory["share"])


def replace_arrived(reply: Reply, arrived: Tensor) -> Reply:
    """The reply with others that arrived."""
    return reply._replace(arrived=arrived)


def test_nothing_that_arrives_leaves_the_model() -> None:
    here = adapted()
    for method in (small(hetlora(prune=False)), small(flexlora())):
        run = play(here, method, here.local(method), rounds=1)
        nobody = replace_arrived(run.replies[0], torch.zeros_like(run.replies[0].arrived))
        new, _ = method.aggregate({}, here.setting, here.model, nobody)
        assert torch.equal(new, here.model)
