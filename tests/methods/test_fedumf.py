"""FedUMF equals plain loops and FedAvg in its limits; when updates are fused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from fedloom.core.optimiser import Sgd
from fedloom.core.rule import LocalRule, Traits
from fedloom.core.types import Examples, State, Task
from fedloom.core.work import Work
from fedloom.errors import BadExperiment
from fedloom.method import Method
from fedloom.methods.fedavg import fedavg
from fedloom.methods.feddc import DriftCorrection, feddc
from fedloom.methods.fedumf import fedumf
from fedloom.methods.scaffold import ControlVariates
from fedloom.parts.aggregate.coverage_mean import CoverageMean
from fedloom.parts.local.chain import Chain
from fedloom.parts.local.fuse_missed import FuseMissed
from fedloom.parts.local.keep_own import KeepOwn
from fedloom.parts.local.prox import Prox
from fedloom.parts.local.stop_early import StopEarly
from fedloom.parts.local.sub_model import SubModel
from fedloom.parts.select.bernoulli import Bernoulli
from fedloom.parts.select.everyone import Everyone, SomeSend
from fedloom.parts.select.uniform import Uniform
from fedloom.runs.experiment import Experiment
from fedloom.runs.play import run
from methods.by_hand import train_one
from pieces import NETWORKS
from world.made import Cut, equipped, simulated
from worlds import METHODS, SIZES, Run, play, played, small, states_of, world, world_of

FLEET, SENDERS, ROUNDS = 12, 4, 5
EVERYBODY = list(range(FLEET))
DECAYED = Sgd(rate=0.1, momentum=0.5, decay=0.8)


# ---- against the paper


def authorised(run: Run) -> list[set[int]]:
    """The clients that may send, by round; none in round 0."""
    return [set(), *(set(r.ids[r.arrived].tolist()) for r in run.replies)]


def test_five_rounds_by_hand() -> None:
    """Algorithm 1 with a learning rate that falls, momentum, and two means; "cnn" has no running statistics."""
    here = world("cnn", torch.float64)
    for weigh, alpha in (("uniform", 1.0), ("examples", 0.5)):
        method = small(fedumf(alpha, weigh=weigh), select=SomeSend(SENDERS), optimiser=DECAYED)
        found = play(here, method, here.local(method), ROUNDS)
        senders, model = authorised(found), here.model
        stored = [torch.zeros_like(model)] * FLEET
        fused = twice = 0
        for number in range(1, ROUNDS + 1):
            ends = []
            for client in EVERYBODY:
                start = model
                if client in senders[number] and client not in senders[number - 1] and number > 1:
                    start = model + alpha * 0.8 * stored[client]
                    fused += 1
                twice += client in senders[number] & senders[number - 1]
                end, _, _ = train_one(here, method.work, client, number, start, 0.1 * 0.8 ** (number - 1), 0.5)
                stored[client] = end - start
                if client in senders[number]:
                    ends.append((SIZES[client] if weigh == "examples" else 1, end))
            model = sum(weight * end for weight, end in ends) / sum(weight for weight, _ in ends)
            torch.testing.assert_close(found.models[number - 1], model, rtol=0, atol=1e-7)
        assert fused > 5
        assert twice > 2


class Drifts:
    """FedDC's states of every client, and its server, in plain loops."""

    def __init__(self, model: Tensor) -> None:
        self.drift, self.control = ([torch.zeros_like(model)] * FLEET for _ in range(2))
        self.server = torch.zeros_like(model)
        self.mean = torch.zeros_like(model)
        self.size = [n * FLEET / sum(SIZES) for n in SIZES]


@pytest.mark.parametrize("reference", ["global", "fused"])
def test_on_feddc_by_hand(reference: Any) -> None:
    here, weight = world("cnn", torch.float64), 0.05
    method = small(fedumf(0.5, "feddc", weight, reference), select=SomeSend(SENDERS))
    engine = here.local(method)
    found = play(here, method, engine, ROUNDS)
    senders, model, dc = authorised(found), here.model, Drifts(here.model)
    stored = [torch.zeros_like(model)] * FLEET
    for number in range(1, ROUNDS + 1):
        ends, changes, moved = [], torch.zeros_like(model), torch.zeros_like(model)
        for client in EVERYBODY:
            start = model
            if client in senders[number] - senders[number - 1]:
                start = model + 0.5 * stored[client]
            origin, size = (model if reference == "global" else start), dc.size[client]
            drift, control, server = dc.drift[client], dc.control[client], dc.server

            def correction(
                w: Tensor,
                o: Tensor = origin,
                s: float = size,
                h: Tensor = drift,
                c: Tensor = control,
                all_: Any = server,
            ) -> Tensor:
                return weight / s * (w - (o - h)) - c + all_ / s

            end, _, steps = train_one(here, method.work, client, number, start, 0.1, correction=correction)
            stored[client] = end - start
            if client in senders[number]:
                change = -server / size - (end - origin) / (steps * 0.1)
                dc.drift[client] = drift + end - origin
                dc.control[client] = control + change
                ends.append(end)
                changes = changes + change * size / FLEET
                moved = moved + (end - model) / FLEET
        dc.server, dc.mean = dc.server + changes, dc.mean + moved
        model = sum(ends) / len(ends) + dc.mean
    torch.testing.assert_close(found.model, model, rtol=0, atol=1e-7)
    kept = states_of(engine, EVERYBODY, here.model)
    torch.testing.assert_close(kept["inner.drift"], torch.stack(dc.drift), rtol=0, atol=1e-7)
    torch.testing.assert_close(kept["inner.control"], torch.stack(dc.control), rtol=0, atol=1e-6)
    torch.testing.assert_close(kept["missed"], torch.stack(stored), rtol=0, atol=1e-7)


def test_with_the_global_reference_the_server_knows_the_mean_drift() -> None:
    """Of all clients, those included who never sent; with the fused one it cannot."""
    here = world("mlp", torch.float64)
    for reference, same in (("global", True), ("fused", False)):
        method = small(fedumf(base="feddc", reference=reference), select=SomeSend(SENDERS))
        engine = here.local(method)
        memory = play(here, method, engine, ROUNDS).memory["local"]
        mean = states_of(engine, EVERYBODY, here.model)["inner.drift"].mean(0)
        assert torch.allclose(memory["drift"], mean, rtol=0, atol=1e-12) == same


# ---- limits


LIMITS = {
    "uniform": (fedumf(0.0), Method(aggregate=CoverageMean("uniform"))),
    "by examples": (fedumf(0.0, weigh="examples"), fedavg()),
}


@pytest.mark.parametrize("network", ["mlp", "normed"])
@pytest.mark.parametrize("name", LIMITS)
def test_alpha_zero_is_fedavg_on_the_same_selections(name: str, network: str) -> None:
    ours, plain = LIMITS[name]
    for dtype, tolerance in ((torch.float32, 1e-7), (torch.float64, 1e-15)):
        here = world(network, dtype)
        umf, avg = small(ours, select=SomeSend(SENDERS)), small(plain, select=Uniform(SENDERS))
        one, other = play(here, umf, here.local(umf)), play(here, avg, here.local(avg))
        for reply, theirs in zip(one.replies, other.replies):
            assert torch.equal(reply.ids[reply.arrived], theirs.ids)
        torch.testing.assert_close(one.model, other.model, rtol=0, atol=tolerance)


@pytest.mark.parametrize("network", ["mlp", "normed"])
@pytest.mark.parametrize("select", [SomeSend(FLEET), SomeSend(probability=1.0), Everyone()], ids=str)
@pytest.mark.parametrize(("ours", "plain"), [(fedumf(weigh="examples"), fedavg()), (fedumf(base="feddc"), feddc())])
def test_everyone_authorised_is_the_base_exactly(ours: Method, plain: Method, select: Any, network: str) -> None:
    umf, base = small(ours, select=select), small(plain, select=Uniform(FLEET))
    assert torch.equal(played(network, umf).model, played(network, base).model)


def test_round_one_is_fedavg_and_round_two_is_not() -> None:
    umf, avg = small(fedumf(), select=SomeSend(SENDERS)), small(LIMITS["uniform"][1], select=Uniform(SENDERS))
    ours, theirs = played("mlp", umf), played("mlp", avg)
    torch.testing.assert_close(ours.models[0], theirs.models[0], rtol=0, atol=1e-7)
    assert (ours.models[1] - theirs.models[1]).abs().max() > 1e-4


def test_a_plain_inner_rule_changes_nothing() -> None:
    """Hooks pass through: a chain of the same rule, and a rule that only starts elsewhere."""
    umf = small(fedumf(), select=SomeSend(SENDERS))
    chained = replace(umf, local=FuseMissed(inner=Chain((LocalRule(), Prox(0)))))
    assert torch.equal(played("cnn", umf).model, played("cnn", chained).model)


# ---- what is fused when

NUMBERS, TRAINED = 6, 5


def task(now: list[bool], number: int = 3, mask: Tensor | None = None) -> Task:
    return Task(
        model=torch.zeros(NUMBERS),
        mask=mask,
        keep=None,
        share=torch.ones(len(now)),
        authorised=torch.tensor(now),
        extras={},
        round=number,
        rate=0.05,
        base_rate=0.1,
        trained=TRAINED,
    )


def state(sent: list[bool], made: Any) -> State:
    return {
        "missed": torch.ones(len(sent), NUMBERS),
        "made": torch.as_tensor(made, dtype=torch.int32),
        "rate": torch.full((len(sent),), 0.2, dtype=torch.float64),
        "sent": torch.tensor(sent),
    }


def test_only_who_missed_the_last_round_and_may_send_now_fuses() -> None:
    #      may now, could last round, made in round
    cases = [
        (True, False, 2, 0.5 * 0.05 / 0.2),
        (True, True, 2, 0.0),  # selected twice running
        (False, False, 2, 0.0),
        (False, True, 2, 0.0),
        (True, False, 1, 0.0),  # older than a round: the download of round 2 was lost
        (True, False, -1, 0.0),  # never trained
    ]
    now, before, made, wanted = (list(column) for column in zip(*cases))
    start = FuseMissed(0.5).start(task(now), state(before, made), torch.zeros(len(cases), NUMBERS))
    torch.testing.assert_close(start[:, :TRAINED], torch.tensor(wanted)[:, None].expand(-1, TRAINED))
    assert not start[:, TRAINED:].any()  # running statistics


def test_of_sub_models_each_number_has_its_own_date() -> None:
    mask = torch.tensor([[True, True, False, False, True, True]])
    made = [[2, 1, 2, 1, 2, 2]]
    start = FuseMissed(inner=SubModel()).start(task([True], mask=mask), state([False], made), torch.zeros(1, NUMBERS))
    assert (start[0] != 0).tolist() == [True, False, False, False, True, False]


def test_what_was_not_trained_keeps_its_date() -> None:
    rule, mask = FuseMissed(inner=SubModel()), torch.tensor([[True, True, False, False, True, True]])
    before = {**state([True], [[2, 1, 2, 1, 2, 2]]), "inner.keep": torch.ones(1, 2, dtype=torch.bool)}
    last = torch.full((1, NUMBERS), 3.0)
    _, _, after = rule.finish(task([False], mask=mask), before, torch.ones(1, NUMBERS), last, torch.tensor([4]))
    assert after["made"].tolist() == [[3, 3, 2, 1, 3, 3]]
    assert after["missed"].tolist() == [[2.0, 2.0, 1.0, 1.0, 2.0, 2.0]]
    assert (after["sent"].tolist(), after["rate"].tolist()) == ([False], [0.05])


def test_an_update_older_than_a_round_is_not_fused() -> None:
    """The download of a round is lost to one client: it does not train, and what it has is too old in the next."""
    here, method = equipped(), small(fedumf(), select=SomeSend(SENDERS))
    senders = authorised(played("mlp", method, ROUNDS))
    number, client = next((t, c) for t in range(2, ROUNDS) for c in senders[t + 1] - senders[t] - senders[t - 1])
    fusing: dict[int, int] = {}

    class Watched(FuseMissed):
        """Notes how many begin elsewhere than at the model."""

        def start(self, task: Task, state: State, params: Tensor) -> Tensor:
            first = super().start(task, state, params)
            fusing[task.round] = int((first != params).any(1).sum())
            return first

    for channel, missing in ((Cut(), 0), (Cut(down=((number, client),)), 1)):
        watched = replace(method, local=Watched())
        play(here, watched, simulated(here, watched, channel=channel), number + 1)
        assert fusing[number + 1] == len(senders[number + 1] - senders[number]) - missing


def test_a_variance_that_fell_would_be_led_below_zero() -> None:
    """Why running statistics are not fused."""
    grey = world("normed")
    dark = Examples(grey.data.x * 0.2, grey.data.y)  # the layer's variance is far below 1, where it begins
    here = world_of(NETWORKS["normed"](), dark, grey.shards.examples.split(grey.shards.sizes))
    method = small(fedumf(), select=SomeSend(SENDERS), work=Work(epochs=5, batch=6))
    engine = here.local(method)
    run = play(here, method, engine, 1)
    assert here.setting.layout.names[-1].endswith("running_var")
    missed = states_of(engine, EVERYBODY, here.model)["missed"]
    assert ((run.model + missed)[:, -3:] < 0).any()
    assert all((model[-3:] > 0).all() for model in play(here, method, here.local(method), ROUNDS).models)


@pytest.mark.parametrize("inner", [DriftCorrection(), ControlVariates(), KeepOwn(), SubModel()], ids=str)
def test_who_may_not_send_leaves_the_inner_rule_as_it_was(inner: LocalRule) -> None:
    here = world("mlp")
    method = small(Method(select=SomeSend(SENDERS), local=FuseMissed(inner=inner)))
    engine = here.local(method)
    sent = play(here, method, engine, 1).replies[0].arrived
    fresh = inner.client_state(here.setting, here.model)
    states = states_of(engine, EVERYBODY, here.model)
    for name, value in fresh.items():
        now = states[f"inner.{name}"]
        assert torch.equal(now[~sent], value.expand_as(now[~sent]))
        if name != "keep":
            assert not torch.equal(now[sent], value.expand_as(now[sent]))
    assert states["missed"].any(1).all()
    assert torch.equal(states["sent"], sent)


def test_hooks_pass_through() -> None:
    inner = Chain((KeepOwn(freeze=True), Prox(0.1)))
    rule = FuseMissed(inner=inner)
    assert rule.traits == Traits(corrects=True, shifts=True, needs_whole=True, freezes=True)
    assert FuseMissed(inner=SubModel()).traits.cuts
    assert FuseMissed(inner=StopEarly()).traits.judges
    mask = torch.ones(2, NUMBERS, dtype=torch.bool)
    asked = task([True, False], mask=mask)
    assert rule.trains(asked) is mask
    own = torch.arange(2.0 * NUMBERS).view(2, -1)
    assert rule.personal(world("mlp").setting, own[0], {"inner.0.own": own}) is own
    before = {"inner.last": torch.tensor([1.0, 1.0]), "inner.stopped": torch.tensor([False, False]), "sent": own}
    columns, after = FuseMissed(inner=StopEarly()).judge(
        asked, before, torch.tensor([2.0, 2.0]), torch.tensor([2.0, 2.0])
    )
    assert columns["stopped"].tolist() == [1, 1]
    assert after["inner.last"].tolist() == [2, 1]  # the second may not send
    assert after["sent"] is own


# ---- selection, settings and cost


def test_the_senders_are_those_who_would_be_selected() -> None:
    for select, alone in ((SomeSend(SENDERS), Uniform(SENDERS)), (SomeSend(probability=0.4), Bernoulli(0.4))):
        run = played("mlp", small(fedumf(), select=select))
        plain = played("mlp", small(fedavg(), select=alone))
        for ours, theirs in zip(run.replies, plain.replies):
            assert ours.ids.tolist() == EVERYBODY
            assert torch.equal(ours.ids[ours.arrived], theirs.ids)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda: fedumf(alpha=1.5), "alpha .* is 1.5; it lies from 0 to 1"),
        (lambda: fedumf(base="fedavgg"), "unknown base of fedumf 'fedavgg'; did you mean 'fedavg'"),
        (lambda: fedumf(reference="glob"), "unknown reference 'glob'; did you mean 'global'"),
        (lambda: fedumf(probability=0.0), "probability"),
        (lambda: replace(fedumf(), select=Uniform(8)), "Uniform leaves out do not train"),
        (lambda: replace(fedumf(), local=Chain((SubModel(), FuseMissed()))), "FuseMissed.inner=Chain"),
        (lambda: Method(select=SomeSend(), local=FuseMissed(inner=StopEarly())), "StillRunning"),
    ],
)
def test_refusals(wrong: Any, says: str) -> None:
    with pytest.raises(BadExperiment, match=says):
        wrong()


def test_everybodys_work_and_downloads_are_counted() -> None:
    def first(method: str) -> dict[str, Any]:
        training = {"epochs": 2, "batch": 32}
        return run(
            Experiment(method=method, model="linear", clients=20, per_round=5, rounds=1, training=training)
        ).rounds[0]

    ours, plain = first("fedumf"), first("fedavg")
    assert ours["clients"] == 20
    assert ours["arrived"] == plain["arrived"] == 5
    assert ours["examples_trained"] == 2 * 1438  # all digits for training
    assert plain["examples_trained"] < ours["examples_trained"] / 2
    assert ours["bytes_up"] == plain["bytes_up"]
    assert ours["bytes_down"] == 4 * plain["bytes_down"]


def test_all_variants_are_in_the_list() -> None:
    rules = [make().local for name, make in METHODS if name.startswith("fedumf")]
    assert {(type(rule.inner), rule.reference) for rule in rules if isinstance(rule, FuseMissed)} == {
        (LocalRule, "global"), (DriftCorrection, "global"), (DriftCorrection, "fused"), (SubModel, "global")
    }  # fmt: skip


@pytest.mark.slow
def test_fewer_rounds_than_fedavg_to_the_same_accuracy() -> None:
    """Seen under Dirichlet 0.1 to 80 %: 20, 25, 19 rounds against 25, 30, 29; FedAvg of twice the epochs 20, 20, 16."""

    def needed(method: Method) -> int:
        uneven = {"name": "dirichlet", "settings": {"alpha": 0.1}}
        found = [run(Experiment(partition=uneven, rounds=35, seed=seed), method=method) for seed in range(3)]
        return sum(next(row["round"] for row in one.rounds if row["accuracy"] >= 0.8) for one in found)

    assert needed(fedumf()) < needed(LIMITS["uniform"][1])
