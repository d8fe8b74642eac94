"""Every method gives the same numbers under every engine and in any chunking."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from fedloom.chance import Chance
from fedloom.core.work import Batches, Work
from fedloom.engine.gradient.fastest import Chosen
from fedloom.engine.gradient.plain import PlainGradient
from fedloom.engine.gradient.vmapped import VmappedGradient
from fedloom.engine.local import local_engine
from fedloom.engine.protocol import Engine
from fedloom.method import Method
from pieces import NETWORKS
from worlds import METHODS, World, assert_close, every_method, everything, play, played, states_of, world

# Every method on the network that has most: convolution, pooling, a dense layer, statistics that are not trained.
# What only the network decides, for one method of each way to take a step: fused, corrected, masked, cut, remembered.
PAIRS = [(name, "normed") for name, _ in METHODS]
WAYS = ("fedavg", "scaffold", "scattered", "fjord", "federated-dropout-heavy")
PAIRS += [(name, network) for name in WAYS for network in NETWORKS if network != "normed"]


@pytest.mark.parametrize(("name", "network"), PAIRS)
def test_loop_equals_local(name: str, network: str) -> None:
    here, method = world(network), dict(METHODS)[name]()
    # a smaller network numbers its units anew, so that dropout strikes others there: equal in law, not in number
    loop, local = here.loop(method), here.local(method, sliced=network != "dropout")
    slow, fast = play(here, method, loop), play(here, method, local)
    assert_close(everything(fast), everything(slow), 1e-5)
    ids = local.clients.states.known().tolist()
    assert ids == loop.clients.states.known().tolist()
    assert_close(states_of(local, ids, here.model), states_of(loop, ids, here.model), 5e-5)  # some are divided by rates
    for ours, theirs in zip(fast.replies, slow.replies):
        assert torch.equal(ours.ids, theirs.ids)
        assert_close(ours.report, theirs.report, 1e-5)


def test_all_networks_are_in_the_pairs() -> None:
    assert {network for _, network in PAIRS} == set(NETWORKS)


@pytest.mark.parametrize("chunk", [1, 7])
@every_method
def test_chunks_equal_the_whole(method: Method, chunk: int) -> None:
    here = world("normed")
    part, whole = play(here, method, here.local(method, chunk), rounds=2), played("normed", method, 2)
    for ours, theirs in zip(part.replies, whole.replies):
        assert torch.equal(ours.ids, theirs.ids)  # who takes part, and in which order they are answered for
    assert_close(everything(part), everything(whole), 1e-5)


CUTTING = [name for name, make in METHODS if make().local.traits.cuts]


@pytest.mark.parametrize("name", CUTTING)
def test_smaller_networks_equal_masked_ones(name: str) -> None:
    here, method = world("normed"), dict(METHODS)[name]()
    masked = play(here, method, here.local(method, sliced=False), rounds=2)
    assert_close(everything(played("normed", method, 2)), everything(masked), 1e-5)


@pytest.mark.parametrize("way", [PlainGradient, VmappedGradient])
@pytest.mark.parametrize("name", ["fjord", "heterofl", "fedrolex", "federated-dropout-heavy"])
def test_smaller_networks_are_differentiated_in_any_way(name: str, way: Any) -> None:
    network = "normed" if way is PlainGradient else "cnn"  # vmap would count padding in batch statistics
    here, method = world(network), dict(METHODS)[name]()
    engine = local_engine(here.clients(method), chosen=Chosen(way(here.setting)))
    assert engine.plan.parts == "sliced"
    assert_close(everything(play(here, method, engine, rounds=2)), everything(played(network, method, 2)), 1e-5)


@dataclass(frozen=True)
class Recorded(Work):
    """Notes which examples every client sees at every step, and its keys for dropout."""

    seen: dict[tuple[int, int, int], tuple[list[int], int]] = field(default_factory=dict, compare=False)

    def plan(self, ids: Tensor, examples: Tensor, sizes: list[int], chance: Chance) -> Batches:
        """The plan as it is, noted by (round, client, step)."""
        batches = super().plan(ids, examples, sizes, chance)
        for row, client in enumerate(ids.tolist()):
            for step in range(int(batches.steps[row])):
                real = batches.real[row, step]
                key = int(batches.keys[row, step])
                self.seen[chance.round, client, step] = (batches.examples[row, step][real].tolist(), key)
        return batches


@pytest.mark.parametrize("work", [Work(epochs=2, batch=4), Work(steps=5, batch=4), Work(epochs=1, batch=0)], ids=str)
def test_batches_are_the_same_in_any_chunking(work: Work) -> None:
    here = world("mlp")

    def seen(engine_of: object) -> dict[tuple[int, int, int], tuple[list[int], int]]:
        recorded = Recorded(work.epochs, work.steps, work.batch)
        method = replace(dict(METHODS)["fedavg"](), work=recorded)
        play(here, method, _engine(here, method, engine_of))
        return recorded.seen

    whole = seen(None)
    assert len(whole) >= 24  # three rounds of eight clients
    for chunk in (1, 7, "loop"):
        assert seen(chunk) == whole


def _engine(here: World, method: Method, kind: object) -> Engine:
    return here.loop(method) if kind == "loop" else here.local(method, kind if isinstance(kind, int) else None)
