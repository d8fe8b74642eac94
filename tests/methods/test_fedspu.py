"""FedSPU equals plain loops and FedAvg in its limits; early stopping."""

from __future__ import annotations

from dataclasses import replace
from math import floor, inf, nan
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from torch import Tensor

from fedloom.chance import Chance
from fedloom.core.optimiser import Sgd
from fedloom.core.part import NobodyLeft
from fedloom.core.types import Reply, Task
from fedloom.core.work import Work
from fedloom.engine.clients import Clients
from fedloom.engine.local import local_engine
from fedloom.engine.storage.shards import Shards
from fedloom.errors import BadExperiment
from fedloom.method import Method
from fedloom.methods.fedavg import fedavg
from fedloom.methods.fedspu import fedspu
from fedloom.models import build, example
from fedloom.neurons.trace import neuron_map
from fedloom.parts.aggregate.coverage_mean import CoverageMean
from fedloom.parts.local.chain import Chain
from fedloom.parts.local.keep_own import KeepOwn
from fedloom.parts.local.stop_early import StopEarly
from fedloom.parts.select.still_running import StillRunning
from fedloom.parts.select.uniform import Uniform
from fedloom.runs.experiment import Experiment
from fedloom.runs.inputs import inputs_of
from fedloom.runs.play import run
from methods.by_hand import loss_on, train_one
from worlds import SIZES, Run, assert_identical, changed, everything, play, played, small, states_of, world

SHARES = (0.2, 0.4, 0.6, 0.8, 1.0)
STOPPING = small(fedspu(early_stopping=True), select=StillRunning(8))
RATE = 0.1


# ---- against the paper


def active(keep: Tensor, channels: int = 3, inside: int = 9, classes: int = 3) -> Tensor:
    """Which numbers of the "normed" network are active: an entry at a time, both its ends looked up."""
    found = []
    for out in range(channels):  # conv weight [3, 1, 3, 3]: the input image is always there
        found += [bool(keep[out])] * 9
    for _ in range(3):  # conv bias, norm weight, norm bias
        found += [bool(keep[out]) for out in range(channels)]
    for _ in range(classes):  # dense weight [3, 27]: nine columns to a channel, all classes there
        for column in range(channels * inside):
            found.append(bool(keep[column // inside]))
    found += [True] * classes  # dense bias
    for _ in range(2):  # running mean and variance
        found += [bool(keep[out]) for out in range(channels)]
    return torch.tensor(found)


def by_hand(run: Run) -> tuple[Tensor, dict[int, Tensor]]:
    """The global model and the clients' own after the run, written out as algorithm 1 has it."""
    here, model = world("normed"), world("normed").model
    own: dict[int, Tensor] = {}
    for number, (task, reply) in enumerate(zip(run.tasks, run.replies), 1):
        sent = []
        for row, client in enumerate(reply.ids.tolist()):
            assert task.keep is not None
            mask = active(task.keep[row])
            start = torch.where(mask, model, own.get(client, here.model))
            own[client], _, _ = train_one(here, Work(epochs=1, batch=6), client, number, start, RATE, moves=mask)
            sent.append((SIZES[client], mask, own[client]))
        new = model.clone()
        for place in range(len(model)):
            holders = [(size, values[place]) for size, mask, values in sent if mask[place]]
            if holders:
                new[place] = sum(size * value for size, value in holders) / sum(size for size, _ in holders)
        model = new
    return model, own


def test_three_rounds_by_hand() -> None:
    here, method = world("normed"), small(fedspu())
    engine = here.local(method)
    found = play(here, method, engine)
    model, own = by_hand(found)
    torch.testing.assert_close(found.model, model, rtol=0, atol=2e-6)
    ids = engine.clients.states.known().tolist()
    assert ids == sorted(own)
    torch.testing.assert_close(
        states_of(engine, ids, here.model)["own"], torch.stack([own[i] for i in ids]), rtol=0, atol=2e-6
    )


def test_the_mask_is_active_at_both_ends() -> None:
    for task in played("normed", small(fedspu())).tasks:
        assert task.keep is not None
        assert task.mask is not None
        for row, keep in enumerate(task.keep):
            assert torch.equal(task.mask[row], active(keep))


@pytest.mark.parametrize("network", ["mlp", "cnn"])
def test_so_many_neurons_of_every_layer(network: str) -> None:
    here, run = world(network), played(network, small(fedspu()))
    for task, reply in zip(run.tasks, run.replies):
        assert task.keep is not None
        for keep, client in zip(task.keep, reply.ids.tolist()):
            share = SHARES[client % 5]
            for group, span in here.setting.neurons.spans(len(keep)):
                width = here.setting.neurons.widths[group]
                assert int(keep[span].sum()) == max(1, floor(share * width + 1e-9))


def test_neurons_are_drawn_anew_and_evenly() -> None:
    setting, mask = world("mlp").setting, fedspu().mask
    ids, share = torch.arange(40), torch.full((40,), 0.5)
    keeps = [mask({}, setting, world("mlp").model, ids, share, Chance(1, number))[0].keep for number in range(1, 26)]
    drawn = torch.stack([keep for keep in keeps if keep is not None])  # [rounds, clients, 8]
    assert not torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0, 0], drawn[0, 1])
    assert (drawn.float().mean((0, 1)) - 0.5).abs().max() < 0.06  # four standard errors


NETWORKS = {
    "spu-emnist": ((1, 28, 28), 62, 64_802, (0.192, 0.387, 0.587, 0.791)),
    "spu-cifar": ((3, 32, 32), 10, 134_946, (0.039, 0.152, 0.341, 0.604)),
    "spu-speech": ((1, 32, 32), 35, 26_485, (0.141, 0.310, 0.510, 0.740)),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_sizes_and_parts_sent_of_the_papers_networks(name: str) -> None:
    """As measured with the published code; not the square of the share, since first and last layers follow one end."""
    shape, classes, total, fractions = NETWORKS[name]
    neurons = neuron_map(build(name, shape, classes), example(shape))
    assert neurons.total == total
    scores = torch.arange(4 * neurons.size).view(4, -1).sin()
    sent = neurons.expand(neurons.cut(scores, torch.tensor(SHARES[:4]))).double().mean(1)
    assert sent.tolist() == pytest.approx(fractions, abs=0.0005)


# ---- limits


@pytest.mark.parametrize("network", ["cnn", "normed", "text"])
@pytest.mark.parametrize("stopping", [False, True])
def test_whole_shares_are_fedavg_exactly(network: str, stopping: bool) -> None:
    method, plain = small(fedspu((1.0,), stopping)), small(fedavg())
    if stopping:  # everyone improves on nothing: in the first round nobody stops
        method = replace(method, select=StillRunning(8))
    rounds = 1 if stopping else 3
    assert torch.equal(played(network, method, rounds).model, played(network, plain, rounds).model)


def test_without_early_stopping_nothing_is_judged() -> None:
    assert fedspu() == replace(fedspu(), local=KeepOwn(freeze=True), aggregate=CoverageMean("examples"))
    assert not fedspu().local.traits.judges


# ---- early stopping


def judged(training: list[float], held: list[float], last: list[float], stopped: list[bool]) -> tuple[Any, Any]:
    state = {"last": torch.tensor(last), "stopped": torch.tensor(stopped)}
    return StopEarly(0.7).judge(None, state, torch.tensor(training), torch.tensor(held))  # type: ignore[arg-type]


def test_a_client_stops_when_its_loss_rises() -> None:
    #          first time, less, equal, more, no held-out: less, more, stopped before, diverged
    training = [2.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.1, nan]
    held = [4.0, 2.0, 2.0, 2.0, nan, nan, 0.1, nan]
    last = [inf, 1.4, 1.3, 1.29, 1.01, 0.99, 5.0, inf]
    last[2] = float(0.7 * torch.tensor(1.0) + (1 - 0.7) * torch.tensor(2.0))
    columns, state = judged(training, held, last, [False] * 6 + [True, False])
    assert columns["stopped"].tolist() == [0, 0, 0, 1, 0, 1, 1, 1]
    assert state["stopped"].tolist() == [bool(x) for x in columns["stopped"]]
    assert state["last"][:2].tolist() == pytest.approx([0.7 * 2 + 0.3 * 4, 0.7 + 0.3 * 2])
    assert state["last"][4] == 1.0


def test_reports_by_hand() -> None:
    """Losses of every participation, one client at a time; here clients keep back what they also train on."""
    method, rounds = small(fedspu(early_stopping=True), select=StillRunning(12), optimiser=Sgd(rate=0.3)), 4
    here = world("normed")
    run = play(here, method, here.local(method), rounds)
    own, last, gone = {}, dict.fromkeys(range(12), inf), set()
    shards = here.shards.examples.split(here.shards.sizes)
    for number, (task, reply) in enumerate(zip(run.tasks, run.replies), 1):
        assert reply.ids.tolist() == [client for client in range(12) if client not in gone]
        for row, client in enumerate(reply.ids.tolist()):
            mask = active(task.keep[row]) if task.keep is not None else torch.ones_like(here.model).bool()
            start = torch.where(mask, task.model, own.get(client, here.model))
            own[client], loss, _ = train_one(here, method.work, client, number, start, 0.3, moves=mask)
            found = 0.7 * loss + 0.3 * loss_on(here, own[client], shards[client])
            assert bool(reply.report["stopped"][row]) == (found > last[client])
            last[client] = found
            if reply.report["stopped"][row]:
                gone.add(client)
    assert 2 <= len(gone) < 12
    assert int(method.record(run.memory)["select.stopped"]) == len(gone)


def test_while_nobody_has_stopped_the_selection_is_uniform_s() -> None:
    setting, model = world("mlp").setting, world("mlp").model
    for count in (1, 5, 12, 20):
        ours, theirs = StillRunning(count), Uniform(count)
        memory = ours.init(setting, model)
        for number in range(1, 20):
            chance = Chance(3, number)
            assert torch.equal(ours(memory, setting, chance)[0].ids, theirs({}, setting, chance)[0].ids)


def test_those_who_stopped_are_left_out_and_the_last_are_all_taken() -> None:
    setting, select = world("mlp").setting, StillRunning(5)
    stopped = torch.ones(12, dtype=torch.bool)
    stopped[[2, 3, 7, 8, 9, 11]] = False
    seen = set()
    for number in range(1, 30):
        ids = select({"stopped": stopped}, setting, Chance(0, number))[0].ids.tolist()
        assert len(ids) == 5
        assert ids == sorted(ids)
        seen |= set(ids)
    assert seen == {2, 3, 7, 8, 9, 11}
    stopped[[2, 9]] = True
    assert select({"stopped": stopped}, setting, Chance(0, 1))[0].ids.tolist() == [3, 7, 8, 11]
    with pytest.raises(NobodyLeft):
        select({"stopped": torch.ones(12, dtype=torch.bool)}, setting, Chance(0, 1))


def test_who_stopped_unheard_is_asked_again_and_says_so_again() -> None:
    here, method = world("mlp"), replace(STOPPING, select=StillRunning(12), optimiser=Sgd(rate=3.0))
    engine = here.local(method)
    told: list[set[int]] = []

    def lose_second(reply: Reply, chance: Chance) -> Reply:
        told.append(set(reply.ids[reply.report["stopped"] > 0].tolist()))
        return reply._replace(arrived=torch.zeros_like(reply.arrived)) if chance.round == 2 else reply

    run = play(here, method, changed(engine, lose_second), rounds=3)
    assert told[1]
    assert len(run.replies[2].ids) == 12  # nothing was heard
    assert told[1] <= told[2]
    assert set(run.memory["select"]["stopped"].nonzero().flatten().tolist()) == told[2]


def test_clients_without_held_out_examples_go_by_their_training_loss() -> None:
    here, method = world("mlp"), replace(STOPPING, select=StillRunning(12))
    none = Shards([torch.empty(0, dtype=torch.int64)] * 11 + [torch.tensor([3, 4])], torch.device("cpu"))
    engine = local_engine(Clients(method, here.setting, here.data, here.shards, (here.data, none)))
    run = play(here, method, engine, rounds=1)
    last = states_of(engine, list(range(12)), here.model)["1.last"]
    torch.testing.assert_close(last[:11], run.replies[0].report["loss"][:11])
    assert last[11] != run.replies[0].report["loss"][11]


def test_frozen_execution_judges_as_masked_does() -> None:
    here = world("normed")
    ours, theirs = (play(here, STOPPING, here.local(STOPPING, sliced=sliced), rounds=4) for sliced in (True, False))
    for one, other in zip(ours.replies, theirs.replies):
        assert torch.equal(one.ids, other.ids)
        assert torch.equal(one.report["stopped"], other.report["stopped"])
    assert_identical(ours.memory["select"], theirs.memory["select"])


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"select": Uniform(8)}, "StillRunning"),
        ({"local": KeepOwn(freeze=True)}, "StopEarly"),
    ],
)
def test_the_two_halves_refuse_to_be_alone(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(BadExperiment, match=says):
        replace(STOPPING, **changes)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda: fedspu(early_stopping=True, balance=1.1), "balance .* is 1.1; it lies from 0 to 1"),
        (lambda: StopEarly(-0.1), "balance"),
        (lambda: StillRunning(0), "count of clients a round is 0"),
        (lambda: fedspu((0.0,)), "share of tier 0 is 0.0"),
        (lambda: Method(local=Chain((StopEarly(),))), "StillRunning"),
    ],
)
def test_refusals(wrong: Any, says: str) -> None:
    with pytest.raises(BadExperiment, match=says):
        wrong()


# ---- runs


def digits(**changes: Any) -> Experiment:
    return Experiment(
        **{
            "method": {"name": "fedspu", "settings": {"early_stopping": True}},
            "model": {"name": "mlp", "settings": {"widths": [8]}},
            "clients": 6,
            "per_round": 3,
            "rounds": 60,
            "split": (0.7, 0.0, 0.3),
            "training": {"epochs": 1, "batch": 32, "rate": 0.5},
            **changes,
        }
    )


def test_a_run_ends_when_all_have_stopped(tmp_path: Any) -> None:
    result = run(digits(evaluate_every=1000), out=tmp_path / "run")
    stopped = [row["select.stopped"] for row in result.rounds]
    assert 2 < len(result.rounds) < 60
    assert stopped == sorted(stopped)
    assert stopped[-1] == 6
    assert stopped[-2] < 6
    assert result.rounds[-1]["accuracy"] is not None  # the last round is evaluated, though nobody knew it was the last
    assert result.rounds[-1]["personal_accuracy"] is not None
    assert all(row["accuracy"] is None for row in result.rounds[:-1])
    assert [row["clients"] for row in result.rounds] == [3 - max(0, int(n) - 3) for n in [0, *stopped[:-1]]]
    assert "all clients have stopped" in (tmp_path / "run" / "log.txt").read_text()


def test_rounds_that_reach_nobody_are_written_down_too(tmp_path: Any) -> None:
    channel = {"name": "bernoulli", "settings": {"down": 0.5}}
    run(digits(rounds=12, per_round=1, fleet="equal", channel=channel), out=tmp_path / "run")
    rows = pq.read_table(tmp_path / "run" / "clients.parquet").to_pylist()
    reached = [row["steps"] > 0 for row in rows]
    assert 0 < sum(reached) < 12
    assert all(row["stopped"] == 0 for row in rows if not row["steps"])


def test_what_is_held_out() -> None:
    """A validation split where there is one, the own test split else, and no early stopping without either."""
    apart, paper = inputs_of(digits(split=(0.6, 0.1, 0.3))), inputs_of(digits())
    assert apart.held_out is not None
    assert apart.own_test is not None
    assert paper.held_out == paper.own_test
    assert sum(apart.held_out[1].sizes) < sum(apart.own_test[1].sizes) / 2
    assert not set(apart.held_out[1].examples.tolist()) & set(apart.own_test[1].examples.tolist())
    with pytest.raises(BadExperiment, match="split keeps nothing back"):
        inputs_of(digits(split=(1.0, 0.0, 0.0)))


def test_the_server_learns_nothing_but_who_stopped() -> None:
    """The report of a lost reply does not count."""
    here = world("mlp")

    def lose(reply: Reply, chance: Chance) -> Reply:
        return reply._replace(
            arrived=torch.zeros_like(reply.arrived), report={**reply.report, "stopped": torch.ones(len(reply.ids))}
        )

    run = play(here, STOPPING, changed(here.local(STOPPING), lose), rounds=2)
    assert not run.memory["select"]["stopped"].any()
    assert set(everything(run)) == {"model", "select.stopped"}


def test_a_task_that_reached_nobody_changes_nothing() -> None:
    here, select = world("mlp"), StillRunning(8)
    memory = {"stopped": torch.arange(12) % 2 == 0}
    ids = torch.tensor([1, 3])
    task: Task = played("mlp", STOPPING, 1).tasks[0]
    reply = Reply(ids, task.model.expand(2, -1), None, {}, {"loss": torch.zeros(2)}, torch.zeros(2, dtype=torch.bool))
    assert select.observe(memory, here.setting, here.model, reply) is memory


@pytest.mark.slow
def test_own_models_beat_ordered_dropout_on_uneven_data() -> None:
    """Seen under Dirichlet 0.1: 0.909 against 0.875. Under Dirichlet 0.5 it is 0.890 against 0.895, and not claimed."""

    def own(method: str) -> float:
        uneven = {"name": "dirichlet", "settings": {"alpha": 0.1}}
        shared: dict[str, Any] = {"partition": uneven, "rounds": 100, "split": (0.7, 0.0, 0.3), "evaluate_every": 100}
        return (
            sum(run(Experiment(method=method, seed=s, **shared)).rounds[-1]["personal_accuracy"] for s in range(3)) / 3
        )

    assert own("fedspu") > own("fjord") + 0.01
