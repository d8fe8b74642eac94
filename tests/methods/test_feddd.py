"""FedDD equals FedAvg in its limits and plain loops over modules, also with networks of several sizes."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedloom.chance import Chance
from fedloom.core.types import Reply
from fedloom.core.work import Work
from fedloom.engine.client import keep_network
from fedloom.errors import BadExperiment
from fedloom.layout import flatten, load
from fedloom.method import Method
from fedloom.methods.fedavg import fedavg
from fedloom.methods.feddd import feddd
from fedloom.neurons.extract import extract, scatter
from fedloom.parts.local.keep_own import KeepOwn
from fedloom.parts.local.keep_own_part import KeepOwnPart
from fedloom.parts.select.everyone import Everyone
from fedloom.runs.experiment import Experiment
from fedloom.runs.play import run
from worlds import SEED, SIZES, World, assert_close, changed, engine_of, play, played, small, states_of, world

WORK = Work(epochs=1, batch=6)
FEDAVG = small(fedavg(), select=Everyone())


@pytest.mark.parametrize(
    "method",
    [
        pytest.param(small(feddd(budget=1.0, every=1)), id="the whole model every round"),
        pytest.param(small(feddd(budget=1.0)), id="the whole model, for all was sent"),
        pytest.param(small(feddd(budget=1.0, most=0.0, select_by="random")), id="no dropout allowed"),
    ],
)
@pytest.mark.parametrize("network", ["cnn", "normed"])
def test_is_fedavg_exactly(method: Method, network: str) -> None:
    assert torch.equal(played(network, method, 4).model, played(network, FEDAVG, 4).model)


def test_networks_that_are_all_whole_make_no_difference() -> None:
    plain, sized = (played("normed", small(feddd(models=models))) for models in (None, (1.0,)))
    assert_close({"model": sized.model}, {"model": plain.model}, 2e-6)


def test_the_first_round_is_fedavg() -> None:
    assert torch.equal(played("normed", small(feddd())).models[0], played("normed", FEDAVG).models[0])
    assert not torch.equal(played("normed", small(feddd())).models[1], played("normed", FEDAVG).models[1])


# ---- whole rounds by hand


ROWS = {  # layer -> the tensors whose rows are its neurons'
    "cnn": {"0": ["0.weight", "0.bias"], "3": ["3.weight", "3.bias"], "6": ["6.weight", "6.bias"]},
    "normed": {
        "0": ["0.weight", "0.bias", "1.weight", "1.bias", "1.running_mean", "1.running_var"],
        "5": ["5.weight", "5.bias"],
    },
}
Tensors = dict[str, Tensor]


def train(here: World, tensors: Tensors, client: int, number: int) -> Tensors:
    """One client's epoch with `torch.optim`."""
    net = deepcopy(here.setting.module)
    net.load_state_dict(tensors, strict=False)
    step = torch.optim.SGD(net.parameters(), 0.1)
    one, size = torch.tensor([client]), here.shards.sizes[client]
    batches = WORK.plan(one, here.shards.rows(one, size), [size], Chance(SEED, number))
    net.train()
    for examples, real in zip(batches.examples[0], batches.real[0]):
        step.zero_grad()
        F.cross_entropy(net(here.data.x[examples[real]]), here.data.y[examples[real]]).backward()
        step.step()
    state = net.state_dict()
    return {name: state[name].clone() for name in tensors}


def important(before: Tensors, after: Tensors, layer: str, share: float) -> list[int]:
    """Eq. 20 and algorithm 2 for one layer."""
    names = f"{layer}.weight", f"{layer}.bias"
    largest = max(float(before[name].abs().max()) for name in names)
    scores = []
    for unit in range(len(before[names[1]])):
        old, new = (torch.cat([tensors[name][unit].flatten() for name in names]) for tensors in (before, after))
        scores.append(float(((new - old).abs() * new.abs() / (old.abs() + 0.01 * largest)).norm()))
    count = max(1, int(len(scores) * share + 0.5))
    return sorted(sorted(range(len(scores)), key=lambda unit: -scores[unit])[:count])


def by_hand(here: World, network: str, shares: list[list[float]], every: int) -> list[Tensors]:
    """The global model after every round; the rates are given."""
    split = here.setting.layout.split
    model = split(here.model)
    own = [{name: value.clone() for name, value in model.items()} for _ in SIZES]
    models = []
    for number, rates in enumerate(shares, 1):
        trained, sent = [], []
        for client in range(len(SIZES)):
            after = train(here, own[client], client, number)
            sent.append({k: important(own[client], after, k, rates[client]) for k in ROWS[network]})
            trained.append(after)
        new = {name: value.clone() for name, value in model.items()}
        for layer, names in ROWS[network].items():
            for unit in range(len(model[names[1]])):
                senders = [client for client in range(len(SIZES)) if unit in sent[client][layer]]
                for name in names if senders else ():
                    total = sum(SIZES[client] for client in senders)
                    new[name][unit] = sum(trained[client][name][unit] * (SIZES[client] / total) for client in senders)
        model = new
        for client in range(len(SIZES)):
            own[client] = trained[client]
            for layer, names in ROWS[network].items():
                for unit in range(len(model[names[1]])):
                    for name in names:
                        if number % every == 0 or unit in sent[client][layer]:
                            own[client][name][unit] = model[name][unit]
        models.append(model)
    return models


@pytest.mark.parametrize("network", ROWS)
def test_rounds_by_hand(network: str) -> None:
    here, method = world(network), small(feddd(every=3))
    run_ = play(here, method, here.local(method), rounds=5)
    shares = [task.share.tolist() for task in run_.tasks]
    for ours, theirs in zip(run_.models, by_hand(here, network, shares, 3), strict=True):
        assert_close(here.setting.layout.split(ours), theirs, 1e-5)


def test_what_goes_down_and_up() -> None:
    here, method = world("normed"), small(feddd(every=3))
    run_ = play(here, method, here.local(method), rounds=5)
    assert [task.mask is None for task in run_.tasks] == [True, True, False, True, False]
    for number in (2, 4):
        assert torch.equal(torch.as_tensor(run_.tasks[number].mask), torch.as_tensor(run_.replies[number - 1].mask))
    for task, reply in zip(run_.tasks[1:], run_.replies[1:]):
        assert float(task.share.mean()) == pytest.approx(0.6)
        for _, span in here.setting.neurons.spans(6):
            width = span.stop - span.start
            name = "0.weight" if span.start == 0 else "5.weight"
            sent = [int(here.setting.layout.split(own)[name].flatten(1).any(1).sum()) for own in reply.mask]
            assert sent == [max(1, int(width * share + 0.5)) for share in task.share.tolist()]


def test_a_lost_reply_leaves_the_last_rows_in_force() -> None:
    here, method = world("mlp"), small(feddd(budget=0.2, select_by="random", every=10))

    def lose(reply: Reply, chance: Chance) -> Reply:
        return reply._replace(arrived=reply.arrived & ~((reply.ids == 1) & (chance.round == 3)))

    run_ = play(here, method, changed(here.local(method), lose), rounds=4)
    rows = [torch.as_tensor(task.mask)[1] for task in run_.tasks[2:]]
    assert torch.equal(rows[0], rows[1])
    others = [torch.as_tensor(task.mask)[3] for task in run_.tasks[2:]]
    assert not torch.equal(others[0], others[1])


# ---- networks of several sizes


@pytest.mark.parametrize("network", ["mlp", "cnn", "normed"])
def test_small_clients_train_really_small_networks(network: str) -> None:
    here, method = world(network), small(feddd(models=(0.4, 0.7, 1.0)))
    run_ = play(here, method, here.local(method), rounds=1)
    task, reply = run_.tasks[0], run_.replies[0]
    assert task.keep is not None
    for client in (1, 3, 8):
        setting, keep = here.setting, task.keep[client]
        net = extract(load(deepcopy(setting.module), setting.layout, here.model), keep, map=setting.neurons)
        after = train_module(here, net, client)
        big = scatter(load(deepcopy(setting.module), setting.layout, here.model), after, keep, map=setting.neurons)
        torch.testing.assert_close(reply.params[client], flatten(big, setting.layout), rtol=0, atol=1e-5)


def train_module(here: World, net: nn.Module, client: int) -> nn.Module:
    """The first round of a client whose network this is."""
    one, size = torch.tensor([client]), here.shards.sizes[client]
    batches = WORK.plan(one, here.shards.rows(one, size), [size], Chance(SEED, 1))
    step = torch.optim.SGD(net.parameters(), 0.1)
    net.train()
    for examples, real in zip(batches.examples[0], batches.real[0]):
        step.zero_grad()
        F.cross_entropy(net(here.data.x[examples[real]]), here.data.y[examples[real]]).backward()
        step.step()
    return net


@pytest.mark.parametrize("sliced", [True, False])
def test_an_own_part_outlives_the_round(sliced: bool) -> None:
    here, method = world("cnn"), small(feddd(models=(0.4, 1.0), every=10))
    engine = here.local(method, sliced=sliced)
    starts: list[Tensor] = []
    before: list[Tensor] = []

    def noted(ids: Tensor, task, chance: Chance) -> Reply:  # type: ignore[no-untyped-def]
        before.append(states_of(engine, ids.tolist(), task.model)["own"].clone())
        inside = keep_network(here.setting, task)
        starts.append(KeepOwnPart().start(inside, {"own": before[-1]}, task.model.expand(len(ids), -1)))
        return engine.train(ids, task, chance)

    run_ = play(here, method, engine_of(noted), rounds=3)
    task = run_.tasks[2]
    assert task.keep is not None
    assert task.mask is not None
    owned = here.setting.neurons.expand(task.keep)
    kept = owned & ~task.mask
    assert kept.any()
    assert torch.equal(starts[2][kept], before[2][kept])  # what it trained itself
    assert torch.equal(starts[2][task.mask], task.model.expand(12, -1)[task.mask])
    assert not starts[2][~owned].any()
    trained = states_of(engine, list(range(12)), here.model)["own"]
    assert not torch.equal(trained[kept], before[2][kept])
    personal = method.local.personal(here.setting, here.model, states_of(engine, list(range(12)), here.model))
    assert torch.equal(torch.as_tensor(personal), torch.where(owned, trained, 0))


def test_keep_own_part_without_parts_is_keep_own() -> None:
    whole, part = (small(feddd(), local=local) for local in (KeepOwn(), KeepOwnPart()))
    assert torch.equal(played("normed", whole).model, played("normed", part).model)


# ---- as an experiment


def test_runs_and_records() -> None:
    settings = {"clients": 12, "rounds": 3, "fleet": "table4", "training": {"epochs": 1}}
    result = run(Experiment(method="feddd", **settings))  # type: ignore[arg-type]
    last = result.rounds[-1]
    assert last["allocate.mean_share"] == pytest.approx(0.6)
    assert 0.19 < last["allocate.least_share"] < last["allocate.largest_share"] <= 1
    assert last["virtual_seconds"] < 0.6 * result.rounds[0]["virtual_seconds"]
    assert 0.55 < last["bytes_up"] / result.rounds[0]["bytes_up"] < 0.75
    assert result.rounds[1]["bytes_down"] > last["bytes_down"]
    work = Experiment(method="feddd", **settings).build_method()  # type: ignore[arg-type]
    assert work.allocate.work == work.work  # type: ignore[attr-defined]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_rounds_are_shorter_than_those_of_fedavg_and_fedcs_in_the_same_world(seed: int) -> None:
    """At a budget of 0.6 on Table 4's fleet, over the rounds after the first, which sends everything."""
    settings = {"clients": 40, "rounds": 6, "fleet": "table4", "training": {"epochs": 1}, "seed": seed}
    seconds = {}
    for method in ("feddd", "fedcs", "fedavg"):
        more = {"per_round": 40} if method == "fedavg" else {}
        rounds = run(Experiment(method=method, evaluate_every=6, **settings, **more)).rounds  # type: ignore[arg-type]
        seconds[method] = sum(row["virtual_seconds"] for row in rounds[1:])
    assert seconds["feddd"] < seconds["fedcs"] < seconds["fedavg"]


def test_heterogeneous_fleets_run() -> None:
    wide = {"name": "mlp", "settings": {"widths": [20, 10]}}
    method = {"name": "feddd", "settings": {"models": [0.3, 1.0], "select_by": "largest"}}
    result = run(Experiment(method=method, model=wide, clients=6, rounds=3, fleet="table4"))  # type: ignore[arg-type]
    assert result.rounds[-1]["bytes_up"] < 0.7 * result.rounds[0]["bytes_up"]


def test_refuses() -> None:
    with pytest.raises(BadExperiment, match="hidden layers are"):
        run(Experiment(method={"name": "feddd", "settings": {"models": "het-a"}}, fleet="table4"))  # type: ignore[arg-type]
    with pytest.raises(BadExperiment, match="everyone sends at least"):
        Experiment(method={"name": "feddd", "settings": {"budget": 0.1}})  # type: ignore[arg-type]
    with pytest.raises(BadExperiment, match="chooses its own cohort"):
        Experiment(method="feddd", per_round=5)  # type: ignore[arg-type]
