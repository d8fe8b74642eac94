"""Every reply through the codec: priced to the byte, and as it would arrive."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from fedloom.chance import Chance
from fedloom.codec import Codec
from fedloom.core.types import Reply, Task
from fedloom.errors import BadExperiment, RunStopped
from fedloom.method import Method
from fedloom.methods.fjord import fjord
from fedloom.runs.experiment import Experiment
from fedloom.runs.play import run
from fedloom.world.message_parts import MessageParts
from fedloom.world.simulated import Simulated
from fedloom.world.wire import Wire
from world.made import Cut, equipped
from worlds import World, assert_identical, every_method, everything, play, small, world


def wired(here: World, method: Method, codec: Codec | None = None, exact: bool = True) -> Wire:
    """The local engine behind a codec."""
    return Wire(here.local(method), MessageParts(method, here.setting, codec or Codec()), here.setting, exact)


@every_method
def test_a_wire_of_whole_numbers_changes_nothing(method: Method) -> None:
    here = world("mlp")
    wire = wired(here, method)  # raises if bytes or numbers are not as priced
    assert_identical(everything(play(here, method, wire)), everything(play(here, method, here.local(method))))


@pytest.mark.parametrize("values", ["float16", "bfloat16", "int8"])
@pytest.mark.parametrize("scale", ["block", "tensor"])
def test_lossy_values_arrive_as_the_codec_brings_them(values: str, scale: str) -> None:
    here, method = world("mlp"), small(Method())
    codec = Codec(values=values, scale=scale)  # type: ignore[arg-type]
    brought = play(here, method, wired(here, method, codec))
    plain = play(here, method, here.local(method))
    first, sent = brought.replies[0].params, plain.replies[0].params
    off = (first - sent).abs()
    assert off.max() > 0
    change = (sent - here.model).abs()
    largest = change.amax(1, keepdim=True).expand_as(change) if values == "int8" else change
    assert (off <= codec.bound(largest) + 1e-7 * sent.abs()).all()


def test_prices_are_apart_and_smaller_parts_cost_less() -> None:
    here, totals = world("mlp"), []
    for method in (small(fjord((0.5,))), small(Method())):
        wire = wired(here, method, exact=False)
        run = play(here, method, wire, rounds=1)
        assert run.replies[0].costs is not None
        down, up, *_ = run.replies[0].costs
        assert not up.indices.any()  # the server chose the part
        assert bool((down.indices > 0).all()) == (run.tasks[0].mask is not None)
        totals.append(int(up.total.sum()))
    assert totals[0] < totals[1]


def test_a_wrong_price_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    here, method = world("mlp"), small(Method())
    wire = wired(here, method, exact=False)
    right = wire.parts.prices

    def wrong(task, reply):  # type: ignore[no-untyped-def]
        down, up = right(task, reply)
        return down, up._replace(overhead=up.overhead + 1)

    monkeypatch.setattr(wire.parts, "prices", wrong)
    with pytest.raises(RunStopped, match=r"bytes instead of"):
        play(here, method, wire, rounds=1)


# ---- feedback


@dataclass(frozen=True)
class Always:
    """An engine whose clients change the model by the same each round, as far as they are asked for it."""

    change: Tensor  # [P]

    def train(self, ids: Tensor, task: Task, chance: Chance) -> Reply:
        """Client `i` changes it `i + 1` times as much."""
        params = task.model + (ids + 1)[:, None] * self.change
        params = params if task.mask is None else torch.where(task.mask, params, torch.nan)
        report = {"examples": ids + 1, "steps": ids + 1, "loss": torch.zeros(len(ids))}
        return Reply(ids, params, task.mask, {}, report, task.authorised)


ROUNDS = 40
IDS = torch.arange(3)


def task_of(here: World, number: int, mask: Tensor | None = None, authorised: tuple[bool, ...] = (True,) * 3) -> Task:
    """A round's task on a model of zeros."""
    zeros, some = torch.zeros_like(here.model), torch.ones(3)
    return Task(zeros, mask, None, some, torch.tensor(authorised), {}, number, 0.1, 0.1, here.setting.layout.trained)


def fixed(here: World, values: str, feedback: bool) -> Wire:
    """A wire behind clients that always want the same: a third, and one number so large that int8 has wide steps."""
    change = torch.full_like(here.model, 1 / 3)
    change[::256] = 40.0
    codec = Codec(values=values, feedback=feedback)  # type: ignore[arg-type]
    return Wire(Always(change), MessageParts(Method(), here.setting, codec), here.setting, exact=True)  # type: ignore[arg-type]


@pytest.mark.parametrize("values", ["float16", "bfloat16", "int8"])
def test_with_feedback_the_sum_of_what_arrives_keeps_up_with_what_was_meant(values: str) -> None:
    here, off = world("mlp"), {}
    for feedback in (True, False):
        wire = fixed(here, values, feedback)
        meant = arrived = torch.zeros(3, len(here.model), dtype=torch.float64)
        for number in range(1, ROUNDS + 1):
            task, chance = task_of(here, number), Chance(3, number)
            meant = meant + wire.engine.train(IDS, task, chance).params
            arrived = arrived + wire.train(IDS, task, chance).params
        off[feedback] = (arrived - meant).abs()
        largest = 2 * (meant / ROUNDS).amax(1, keepdim=True).expand_as(meant)  # a change and a residual at most
        bound = wire.codec.bound(largest if values == "int8" else 2 * meant / ROUNDS)
        assert (off[True] <= bound + 1e-5).all(), "never more than one rounding behind"
        assert wire._residuals.known().tolist() == ([0, 1, 2] if feedback else [])
        left = wire._residuals.get([0, 1, 2], {"residual": torch.zeros(len(here.model))})["residual"]
        assert torch.allclose(arrived + left, meant, atol=1e-4) == feedback
    assert off[False].mean() > 2 * off[True].mean(), "without it they pile up, as the root of the rounds even in int8"


def test_only_what_is_sent_moves_a_residual() -> None:
    here = world("mlp")
    wire, zeros = fixed(here, "bfloat16", True), {"residual": torch.zeros(len(here.model))}
    kept = None
    first = torch.arange(len(here.model)) < 100
    for number, mask in ((1, first), (2, ~first)):
        before = wire._residuals.known().tolist()
        wire.train(IDS, task_of(here, number, mask.expand(3, -1), (True, False, True)), Chance(3, number))
        assert before == ([] if number == 1 else [0, 2]), "grows with those who sent"
        left = wire._residuals.get([0, 2], zeros)["residual"]
        assert (left[:, :100] != 0).any()
        assert bool((left[:, 100:] != 0).any()) == (number == 2)
        kept = left[:, :100] if kept is None else kept
        assert torch.equal(left[:, :100], kept), "what was not sent again waits"
    assert wire._residuals.known().tolist() == [0, 2], "the other may not send"


def test_a_residual_moves_on_though_the_reply_is_lost() -> None:
    here, method = equipped(), small(Method())
    found = []
    for lost in ((), tuple((1, client) for client in range(12))):
        wire = wired(here, method, Codec(values="int8", feedback=True), exact=False)
        engine = Simulated(wire, method, here.setting, price=wire.parts.prices, channel=Cut(up=lost))
        arrived = play(here, method, engine, rounds=1).replies[0].arrived
        assert bool(arrived.any()) == (not lost)
        known = wire._residuals.known().tolist()
        found.append(wire._residuals.get(known, {"residual": torch.zeros(len(here.model))})["residual"])
    assert torch.equal(*found)
    assert found[0].any()


def test_feedback_in_a_run_and_where_nothing_is_lost() -> None:
    few = {"clients": 8, "per_round": 4, "rounds": 3, "exact_bytes": True}
    runs = [run(Experiment(**few, codec={"values": "int8", "feedback": on})) for on in (False, True)]
    assert runs[0].rounds[0]["loss"] == runs[1].rounds[0]["loss"], "nothing to add yet"
    assert runs[0].rounds[-1]["loss"] != runs[1].rounds[-1]["loss"]
    assert runs[0].rounds[-1]["bytes_up"] == runs[1].rounds[-1]["bytes_up"]
    with pytest.raises(BadExperiment, match=r"float32 loses nothing; set codec\.values too"):
        Experiment(codec={"feedback": True})
