"""Prune: what clients train and send, alone and with other parts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor, nn

from fedloom.chance import Chance
from fedloom.codec import Codec
from fedloom.core.optimiser import Adam, Optimiser, Sgd
from fedloom.core.pruning import PRUNERS, prunable
from fedloom.core.types import Batch, Reply, Setting, State, Task
from fedloom.engine.protocol import Engine
from fedloom.errors import BadExperiment
from fedloom.method import Method
from fedloom.methods.safari import safari
from fedloom.parts.local.chain import Chain
from fedloom.parts.local.keep_own import KeepOwn
from fedloom.parts.local.prune import Prune
from fedloom.parts.local.sub_model import SubModel
from fedloom.parts.upload.as_sent import AsSent
from fedloom.parts.upload.as_trained import AsTrained
from fedloom.world.message_parts import MessageParts
from fedloom.world.wire import Wire
from pieces import CLASSES, Forced, Scattered
from worlds import changed, engine_of, play, small, world, world_of

OPTIMISERS = [Sgd(rate=0.1), Sgd(rate=0.05, momentum=0.9, weight_decay=0.01), Adam(rate=0.01)]


@pytest.mark.parametrize(
    ("pruner", "optimiser"), [(pruner, OPTIMISERS[2]) for pruner in PRUNERS] + [("mag", one) for one in OPTIMISERS[:2]]
)
def test_pruned_weights_stay_zero_and_the_rest_is_sent(pruner: str, optimiser: Optimiser) -> None:
    here, method = world("normed"), small(safari(pruner, 0.5, scope="global"), optimiser=optimiser)
    replies: list[Reply] = []  # as clients send them, before the server reads them
    play(here, method, changed(here.local(method), lambda reply, _: replies.append(reply) or reply), rounds=1)
    weights, mask = prunable(here.setting, torch.device("cpu")), replies[0].mask
    assert mask is not None
    assert mask[:, ~weights].all()  # biases, norm layers, statistics
    count = int(weights.sum())
    assert (mask[:, weights].sum(1) == count - count // 2).all()
    assert not replies[0].params[~mask].any()


def supports(method: Method, rounds: int = 3) -> list[Tensor]:
    """Every round's masks [C, P]."""
    here = world("mlp")
    return [r.mask for r in play(here, method, here.local(method), rounds).replies if r.mask is not None]


@pytest.mark.parametrize("pruner", ["mag", "synflow"])
def test_without_data_all_choose_the_same_and_for_good(pruner: str) -> None:
    first, second = supports(small(safari(pruner)), 2)
    assert (first == first[0]).all()
    assert (second == first[0]).all()


def test_random_supports_differ_and_change_unless_kept() -> None:
    anew, kept = supports(small(safari("rand"))), supports(small(safari("rand", remask="first-round")))
    assert torch.equal(anew[0], kept[0])
    assert not torch.equal(anew[1], anew[0])
    assert torch.equal(kept[1], kept[0])
    assert torch.equal(kept[2], kept[0])
    assert not torch.equal(anew[0][0], anew[0][1])


def test_a_late_client_chooses_when_it_is_first_met() -> None:
    here, method = world("mlp"), small(safari("mag", remask="first-round"))
    method = replace(method, select=Forced(((0, 1), (0, 1, 2), (1, 2))), repair=Method().repair)
    first, second, third = (r.mask for r in play(here, method, here.local(method)).replies)
    assert first is not None
    assert second is not None
    assert third is not None
    assert torch.equal(second[:2], first)
    assert torch.equal(third, second[1:])


@dataclass(frozen=True)
class Watching(Prune):
    """Counts the batches that clients look at."""

    def narrow(
        self, setting: Setting, ids: Tensor, task: Task, state: State, look: Iterable[Batch], chance: Chance
    ) -> tuple[Tensor | None, State]:
        """Count, then prune."""
        SEEN.append([float((batch.weight > 0).sum(1).max()) for batch in look])
        return super().narrow(setting, ids, task, state, look, chance)


SEEN: list[list[float]] = []


def test_only_pruners_that_need_data_look_at_some() -> None:
    here = world("mlp")
    for pruner, wanted in (("mag", []), ("synflow", []), ("snip", [2 * CLASSES]), ("grasp", [2 * CLASSES])):
        SEEN.clear()
        method = small(safari(pruner), local=Watching(pruner, per_class=2))
        play(here, method, here.local(method), rounds=1)
        assert [wanted] == SEEN


def test_weights_of_examples_are_as_exact_as_the_network() -> None:
    seen: list[Tensor] = []

    @dataclass(frozen=True)
    class Weighing(Prune):
        def narrow(
            self, setting: Setting, ids: Tensor, task: Task, state: State, look: Iterable[Batch], chance: Chance
        ) -> tuple[Tensor | None, State]:
            seen.extend(batch.weight for batch in look)
            return super().narrow(setting, ids, task, state, look, chance)

    here, method = world("mlp", torch.float64), small(safari("snip"), local=Weighing("snip", per_class=1))
    play(here, method, here.local(method), rounds=1)
    assert {one.dtype for one in seen} == {torch.float64}
    assert all(((one.sum(1) - 1).abs() < 1e-12).all() for one in seen)  # a third is no third in float32


# ---- in other company


def test_a_sub_model_behind_it_changes_nothing() -> None:
    here, alone = world("normed"), small(safari("snip", scope="global"))
    chained = replace(alone, local=Chain((Prune("snip"), SubModel())))
    assert torch.equal(*(play(here, method, here.local(method)).model for method in (alone, chained)))


@pytest.mark.parametrize("freeze", [True, False])
def test_own_numbers_stand_where_zeros_would_and_stay(freeze: bool) -> None:
    here = world("normed")
    method = small(safari("rand"), local=Chain((Prune("rand"), KeepOwn(freeze=freeze))), select=Forced(((1,),)))
    engine = here.local(method)
    reply = play(here, method, engine, rounds=1).replies[0]
    own = engine.clients.states.get([1], {"1.own": here.model})["1.own"]
    assert reply.mask is not None
    assert torch.equal(own[~reply.mask], here.model.expand(1, -1)[~reply.mask])
    assert not torch.equal(own[reply.mask], here.model.expand(1, -1)[reply.mask])


@pytest.mark.parametrize("pruner", PRUNERS)
def test_it_chooses_from_what_was_sent_and_reads_no_more(pruner: str) -> None:
    here, method = world("mlp"), small(safari(pruner), local=Chain((SubModel(), Prune(pruner))), mask=Scattered())
    engine, masks = here.local(method), []

    def spoilt(garbage: float) -> Engine:
        def send(ids: Tensor, task: Task, chance: Chance) -> Reply:
            assert task.mask is not None
            masks.append(task.mask[0])
            rows = task.rows(slice(0, 1))
            part = rows._replace(model=torch.where(task.mask[0], task.model, garbage))
            return engine.train(ids[:1], part, chance)

        return engine_of(send)

    replies = [play(here, method, spoilt(garbage), rounds=1).replies[0] for garbage in (torch.nan, 0.0)]
    assert torch.equal(replies[0].mask, replies[1].mask)
    assert torch.equal(replies[0].params, replies[1].params)
    assert replies[0].mask is not None
    assert not (replies[0].mask[0] & ~masks[0]).any()


class Untraceable(nn.Module):
    """A module whose forward pass depends on its values, which no trace can follow."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(36, 8), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Two layers."""
        if len(x.shape) != 4 or not isinstance(x, Tensor):
            raise ValueError(x)
        for _ in range(x.shape[0] * 0 + 1):
            x = self.one(x.flatten(1)).relu()
        out: Tensor = self.two(x)
        return out


def test_no_neurons_are_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedloom.neurons.trace.neuron_map", lambda *_: pytest.fail("asked for neurons"))
    mlp = world("mlp")
    here = world_of(Untraceable(), mlp.data, mlp.shards.examples.split(mlp.shards.sizes))
    method = small(safari("synflow"))
    wire = Wire(here.local(method), MessageParts(method, here.setting, Codec()), here.setting)
    assert not torch.equal(play(here, method, wire, rounds=1).model, here.model)


def test_masks_travel_up() -> None:
    here, method = world("mlp"), small(safari("snip", scope="global"))
    run = play(here, method, here.local(method), rounds=1)
    down, up = MessageParts(method, here.setting, Codec()).prices(run.tasks[0], run.replies[0])
    assert not down.indices.any()  # everything goes down
    assert (up.indices > 0).all()
    assert (up.total < down.total).all()


def test_the_server_must_be_told_what_clients_chose() -> None:
    with pytest.raises(BadExperiment, match=r"put AsTrained\(\) into upload"):
        Method(local=Chain((Prune(), SubModel())))
    with pytest.raises(BadExperiment, match=r"put AsTrained\(\) into upload"):
        replace(safari(), upload=AsSent())
    assert Method(local=Prune(), upload=AsTrained()).local == Prune()
