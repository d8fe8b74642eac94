"""HeteroFL equals its sub-networks in plain PyTorch, with division layers and masked logits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedloom.chance import Chance
from fedloom.core.optimiser import Adam, Optimiser, Sgd
from fedloom.core.types import Examples, Reply, State, Task
from fedloom.core.work import Work
from fedloom.engine.cuda.graphs import Graphs
from fedloom.errors import BadModel
from fedloom.layout import flatten, layout_of
from fedloom.method import Method
from fedloom.methods.heterofl import Rescale, heterofl
from fedloom.neurons.extract import extract
from fedloom.neurons.slicing import slice_index
from fedloom.parts.aggregate.coverage_mean import CoverageMean
from fedloom.parts.local.chain import Chain
from fedloom.parts.local.sub_model import SubModel
from fedloom.parts.mask.hidden import into_hidden
from fedloom.parts.mask.own_classes import own_rows
from fedloom.parts.mask.ranked import Ranked
from fedloom.round import play_round
from worlds import SEED, World, assert_close, play, small, world_of

SHARES = (0.25, 0.5, 1.0)
WORK = Work(epochs=2, batch=4)
OPTIMISERS = [
    Sgd(rate=0.1, weight_decay=0.01),
    Sgd(rate=0.1, momentum=0.5, weight_decay=0.01),
    Adam(rate=0.01, eps=1e-3),
]


class Divide(nn.Module):
    """HeteroFL's division layer behind every hidden layer in training."""

    def __init__(self, by: float) -> None:
        super().__init__()
        self.by = by

    def forward(self, x: Tensor) -> Tensor:
        """`x / share`."""
        return x / self.by if self.training else x


def dense() -> nn.Sequential:
    """Two hidden layers."""
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 9), nn.Tanh(), nn.Linear(9, 6), nn.ReLU(), nn.Linear(6, 3))


def normed() -> nn.Sequential:
    """Scaling before batch norm moves its statistics, which are over 16 places: engines weigh in single precision."""
    return nn.Sequential(
        nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(24, 3)
    )


NETS: dict[str, Callable[[], nn.Sequential]] = {"dense": dense, "normed": normed}
every_net = pytest.mark.parametrize("net", NETS)


@cache
def here(net: str, all_classes: bool = False) -> World:
    """Six clients of 12 examples; the first three have one, two and three classes, and those after them again."""
    owned = [[2], [0, 2], [0, 1, 2]] * 2
    labels = [[(k % 3 if all_classes else own[k % len(own)]) for k in range(12)] for own in owned]
    y = torch.tensor(labels).flatten()
    x = Chance(SEED, 0).uniform("pixels", torch.arange(len(y))[:, None, None, None], torch.arange(36).view(1, 6, 6))
    return world_of(NETS[net](), Examples(x.double() * 4 - 2, y), torch.arange(72).split(12), torch.float64)


def one_round(here: World, method: Method, kind: str) -> tuple[Tensor, Task, Reply]:
    """The first round under one of the engines."""
    # as on a GPU: products of weights and factors descend
    graphs = Graphs(capture=False) if "replayed" in kind else None
    engine = here.loop(method) if kind == "loop" else here.local(method, sliced="sliced" in kind, graphs=graphs)
    memory = method.init(here.setting, here.model)
    model, _, task, reply = play_round(method, memory, here.model, here.setting, engine, Chance(SEED, 1))
    return model, task, reply


def by_hand(here: World, keep: Tensor, share: float, client: int, optimiser: Optimiser, own: Tensor) -> Tensor:
    """A really smaller network with division layers, trained on the client's batches [p]."""
    net = extract(here.setting.module, keep, map=here.setting.neurons)
    parts = []
    for layer in net:  # type: ignore[attr-defined]
        parts.append(layer)
        if isinstance(layer, nn.Linear | nn.Conv2d):
            parts.append(Divide(share))
    run = nn.Sequential(*parts[:-1])  # none behind the output layer
    rate, decay = optimiser.rate, optimiser.weight_decay
    step: torch.optim.Optimizer = torch.optim.Adam(run.parameters(), rate, eps=1e-3, weight_decay=decay)
    if isinstance(optimiser, Sgd):
        step = torch.optim.SGD(run.parameters(), rate, optimiser.momentum, weight_decay=decay)
    one = torch.tensor([client])
    batches = WORK.plan(one, here.shards.rows(one, 12), [12], Chance(SEED, 1))
    run.train()
    for examples, real in zip(batches.examples[0], batches.real[0]):
        step.zero_grad()
        scores = run(here.data.x[examples[real]]).masked_fill(~own, 0)
        F.cross_entropy(scores, here.data.y[examples[real]]).backward()
        step.step()
    return flatten(net, layout_of(net))


@every_net
@pytest.mark.parametrize("kind", ["loop", "masked", "sliced", "masked, replayed", "sliced, replayed"])
@pytest.mark.parametrize("optimiser", OPTIMISERS, ids=["plain", "heavy", "adam"])
def test_clients_train_what_division_layers_and_masked_logits_would(net: str, kind: str, optimiser: Optimiser) -> None:
    world, method = here(net), small(heterofl(SHARES), optimiser=optimiser, work=WORK)
    _, task, reply = one_round(world, method, kind)
    assert task.mask is not None
    assert task.keep is not None
    for row, client in enumerate(reply.ids.tolist()):
        own, share = world.setting.fleet.labels[client] > 0, SHARES[client % 3]
        small_net = by_hand(world, task.keep[row], share, client, optimiser, own)
        index, _ = slice_index(world.setting.neurons, task.keep[row])
        expected = world.model.scatter(0, index, small_net)
        sent = task.mask[row]
        torch.testing.assert_close(reply.params[row][sent], expected[sent], rtol=0, atol=1e-9)
        assert torch.equal(reply.params[row][~sent], world.model[~sent])


@every_net
def test_rows_of_missing_classes_are_neither_sent_nor_averaged(net: str) -> None:
    world, method = here(net), small(heterofl(SHARES))
    model, task, reply = one_round(world, method, "sliced")
    weight = world.setting.layout.split(task.mask)[world.setting.layout.parameters[-2]]  # type: ignore[arg-type]
    own = world.setting.fleet.labels[reply.ids] > 0
    assert torch.equal(weight.any(2), own)
    assert torch.equal(world.setting.layout.split(task.mask)[world.setting.layout.parameters[-1]], own)  # type: ignore[arg-type]
    lonely = task.mask.any(0)  # type: ignore[union-attr]
    assert torch.equal(model[~lonely], world.model[~lonely])
    for place in (lonely & (task.mask.sum(0) < 6)).nonzero().flatten()[:50].tolist():  # type: ignore[union-attr]
        holders = task.mask[:, place]  # type: ignore[index]
        torch.testing.assert_close(model[place], reply.params[holders, place].mean(), rtol=0, atol=1e-12)


@every_net
def test_leading_neurons_rounded_up(net: str) -> None:
    world, method = here(net), small(heterofl(SHARES))
    _, task, reply = one_round(world, method, "masked")
    for _, span in world.setting.neurons.spans(world.setting.neurons.size):
        width = span.stop - span.start
        for keep, client in zip(task.keep, reply.ids.tolist()):  # type: ignore[arg-type]
            count = -int(-width * SHARES[client % 3] // 1)
            assert torch.equal(keep[span], torch.arange(width) < count)


@pytest.mark.parametrize("net", ["dense", "normed"])
def test_whole_models_are_fedavg_with_equal_weights(net: str) -> None:
    world = here(net)
    plain = small(Method(aggregate=CoverageMean("uniform")))
    reduced = small(heterofl((1.0,), mask_labels=False))
    model = play(world, plain, world.local(plain)).model
    assert torch.equal(play(world, reduced, world.local(reduced)).model, model)
    masked = small(heterofl((1.0,)))  # the label mask remains, and steps are no longer fused
    assert not torch.allclose(play(world, masked, world.local(masked)).model, model, atol=1e-4)
    everyone = here(net, all_classes=True)
    model = play(everyone, plain, everyone.local(plain)).model
    assert_close({"model": play(everyone, masked, everyone.local(masked)).model}, {"model": model}, 1e-12)


def test_switches() -> None:
    world = here("dense")
    both, scaled, labels, none = (
        one_round(world, small(heterofl(SHARES, *switches)), "sliced")
        for switches in ((True, True), (True, False), (False, True), (False, False))
    )
    models = [both[0], scaled[0], labels[0], none[0]]
    assert all(not torch.equal(a, b) for k, a in enumerate(models) for b in models[k + 1 :])
    assert torch.equal(scaled[1].mask, none[1].mask)  # type: ignore[arg-type]
    assert torch.equal(both[1].mask, labels[1].mask)  # type: ignore[arg-type]
    whole = [row for row, client in enumerate(scaled[2].ids.tolist()) if client % 3 == 2]
    assert_close(
        {"whole": scaled[2].params[whole]}, {"whole": none[2].params[whole]}, 1e-12
    )  # a share of 1 is not scaled


class Twice(nn.Module):
    """Output classes stand along both axes of a weight, and along the columns of one into hidden neurons."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.again, self.down, self.up = (
            nn.Linear(*ends) for ends in ((36, 3), (3, 3), (3, 4), (4, 3))
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        """The first answer and two that follow from it."""
        scores = self.first(x.flatten(1))
        return scores + self.again(scores) + self.up(self.down(scores).relu())


@pytest.mark.parametrize("make", [dense, normed, Twice])
@pytest.mark.parametrize("switches", [(True, True), (True, False), (False, True), (False, False)])
def test_numbers_count_as_their_neurons_say(make: Callable[[], nn.Module], switches: tuple[bool, bool]) -> None:
    data = here("dense")
    world = world_of(make(), data.data, torch.arange(72).split(12), torch.float64)
    setting, ids, rule = world.setting, torch.arange(6), Rescale(*switches)
    share = torch.tensor(SHARES * 2, dtype=torch.float64)
    extras = rule.brief({}, setting, ids)
    task = Task(world.model, None, None, share, ids >= 0, extras, 1, 0.1, 0.1, setting.layout.trained)
    expected = torch.ones(6, setting.layout.total, dtype=torch.float64)
    for tensor in into_hidden(setting.neurons) if switches[0] else ():
        expected[:, tensor.start : tensor.stop] = 1 / share[:, None]
    if switches[1]:
        expected[~own_rows(setting, ids)] = 0
    ones = torch.ones_like(expected)
    assert torch.equal(rule.view(task, ones), expected)
    assert torch.equal(rule.correct(task, {}, ones, ones, ones), expected)
    assert torch.equal(rule.start(task, {}, ones) == 0, expected == 0)
    back = torch.tensor([5, 0, 3])
    assert torch.equal(rule.view(task.rows(back), ones[back]), expected[back])
    assert torch.equal(rule.scales(task, back, torch.float64), expected[:, back])
    assert extras["kinds"].stride(0) == 0  # no matrix of all clients' numbers


class Silent(Rescale):
    """Rows of missing classes begin where the model is."""

    def start(self, task: Task, state: State, params: Tensor) -> Tensor:
        """Keep the weights."""
        return params


@every_net
@pytest.mark.parametrize("sliced", [False, True])
def test_rows_that_do_not_count_come_back_as_they_were(net: str, sliced: bool) -> None:
    world = here(net)
    method = small(replace(heterofl(SHARES), mask=Ranked("ordered", "ceil"), local=Chain((SubModel(), Silent()))))
    _, task, reply = one_round(world, method, "sliced, replayed" if sliced else "masked, replayed")
    outputs = [t for t in world.setting.neurons.tensors if t.name in world.setting.layout.parameters[-2:]]
    missing, moved = ~own_rows(world.setting, reply.ids), reply.params != world.model
    assert missing.any()
    for tensor in outputs:
        part = slice(tensor.start, tensor.stop)
        assert not (moved & missing & task.mask)[:, part].any()
        assert (moved & ~missing & task.mask)[:, part].any()


def test_a_model_without_class_neurons_is_refused() -> None:
    world = here("dense")
    labels = torch.ones(6, 4, dtype=torch.int64)
    setting = world.setting.__class__(
        world.setting.fleet._replace(labels=labels), world.setting.module, world.setting.layout,
        world.setting.loss, world.setting.example,
    )  # fmt: skip
    with pytest.raises(BadModel, match="each of the 4 classes; the model has 3"):
        own_rows(setting, torch.arange(6))
