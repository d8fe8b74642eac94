"""FedBuff and FedAsync against whole runs of a public code, and the partial case against an independent derivation.

`fedbuff_fedasync_tiny_linear.json` (FLSim): softmax regression from 4 numbers to 3 classes, clients of 6, 10, 8 and 4
examples, 3 full-batch steps. Its events are fed by hand, since there a client may be in flight twice. Its FedBuff sums
where ours divides by the buffer. `partial_asynchronous.json`: five versions of 12 numbers with counts, and five stale
replies of parts.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedloom.chance import Chance
from fedloom.core.optimiser import Sgd
from fedloom.core.stale import Stale
from fedloom.core.staleness import by_numbers, count_step
from fedloom.core.types import Examples, Reply, Setting
from fedloom.core.unsent import read_unsent_as_unchanged
from fedloom.core.work import Work
from fedloom.engine.storage.shards import Shards
from fedloom.goals import classes
from fedloom.layout import layout_of
from fedloom.method import Method
from fedloom.parts.aggregate.coverage_mean import CoverageMean
from fedloom.parts.stale.as_change import AsChange
from fedloom.parts.stale.as_model import AsModel
from fedloom.parts.stale.discounts import Polynomial
from fedloom.round import ask_cohort
from pieces import Forced
from worlds import World, fleet_of

STEPS = {"rtol": 0, "atol": 1e-6}


@cache
def vectors(name: str) -> dict[str, Any]:
    """A file."""
    found: dict[str, Any] = json.loads((Path(__file__).parent / f"{name}.json").read_text())
    return found


@cache
def here() -> World:
    """The linear problem."""
    file = vectors("fedbuff_fedasync_tiny_linear")
    x, y = ([torch.tensor(one) for one in file[name]] for name in "xy")
    data = Examples(torch.cat(x), torch.cat(y).long())
    shards = Shards(list(torch.arange(len(data.y)).split([len(one) for one in x])), torch.device("cpu"))
    module = nn.Linear(4, 3)
    setting = Setting(fleet_of(data, shards), module, layout_of(module), classes(), data.x[:2])
    return World(setting, data, shards, torch.tensor(file["model"]))


def step(
    stale: Stale, aggregate: CoverageMean, model: Tensor, bases: Tensor, reply: Reply, given: Tensor | None = None
) -> Tensor:
    """A step as a round takes it: rebase, unsent, discount, mean."""
    whole = read_unsent_as_unchanged(model, stale.rebase(model, bases, reply, given))
    new, _ = aggregate({}, here().setting, model, stale.lessen(model, whole))
    return new


CASES = {  # of every run: the parts, its buffer, and what its rate is to our mean
    "fedbuff": (AsChange(Polynomial(0.5)), 2, 2.0),
    "fedasync": (AsModel(0.6, Polynomial(0.5)), 1, 1.0),
    "async delta": (AsChange(Polynomial(0.5)), 1, 0.6),
}


@pytest.mark.parametrize("name", CASES)
def test_whole_runs_of_a_public_code(name: str) -> None:
    run = next(one for one in vectors("fedbuff_fedasync_tiny_linear")["runs"] if one["name"].startswith(name))
    stale, buffer, rate = CASES[name]
    assert run["settings"].get("buffer", 1) == buffer
    model, version, waiting = here().model, 0, []
    for event in run["events"]:
        waiting.append(event)
        assert (event["version_before"], event["counted"]) == (version, True)
        if len(waiting) == buffer:
            tau = torch.tensor([version - one["version_at_start"] for one in waiting])
            reply = Reply(
                ids=torch.tensor([one["client"] for one in waiting]),
                params=torch.tensor([one["last"] for one in waiting]),
                mask=None,
                extras={},
                report={},
                arrived=torch.ones(buffer, dtype=torch.bool),
                staleness=tau,
            )
            new = step(stale, CoverageMean("uniform"), model, torch.tensor([one["first"] for one in waiting]), reply)
            model, version, waiting = torch.lerp(model, new, rate), version + 1, []
        assert version == event["version_after"]
        torch.testing.assert_close(model, torch.tensor(event["model_after"]), **STEPS)
    assert version > 5


@pytest.mark.parametrize("name", CASES)
def test_clients_learn_the_same_from_the_versions_that_they_were_sent(name: str) -> None:
    run = next(one for one in vectors("fedbuff_fedasync_tiny_linear")["runs"] if one["name"].startswith(name))
    for number, event in enumerate(run["events"], 1):
        method = Method(select=Forced(((event["client"],),)), optimiser=Sgd(rate=0.1), work=Work(steps=3, batch=0))
        first, last = torch.tensor(event["first"]), torch.tensor(event["last"])
        memory = method.init(here().setting, first)
        ids, task, _ = ask_cohort(method, memory, first, here().setting, Chance(0, 1))
        reply = here().local(method).train(ids, task, Chance(0, number))
        torch.testing.assert_close(reply.params[0], last, **STEPS)


def partial(garbage: float) -> tuple[Tensor, Tensor, Reply, Tensor, Tensor]:
    """Model, counts, replies, and models and counts of their bases; `garbage` wherever nothing was sent."""
    file = vectors("partial_asynchronous")
    versions, counts = torch.tensor(file["versions"]), torch.tensor(file["counts"], dtype=torch.int16)
    replies, now = file["replies"], file["now"]
    base = torch.tensor([one["base"] for one in replies])
    mask = torch.tensor([one["mask"] for one in replies]).bool()
    values = [[garbage if value is None else value for value in one["values"]] for one in replies]
    reply = Reply(
        ids=torch.arange(len(replies)),
        params=torch.tensor(values),
        mask=mask,
        extras={},
        report={"examples": torch.tensor([one["examples"] for one in replies])},
        arrived=torch.ones(len(replies), dtype=torch.bool),
        base=base,
    )
    bases = torch.where(mask, versions[base], garbage)
    return versions[now], counts[now], reply, bases, counts[base]


RESULTS = {
    "change, by steps, update": (AsChange(Polynomial(0.5), by="steps"), "examples", 1.0),
    "change, by numbers, update": (AsChange(Polynomial(0.5), by="numbers"), "examples", 1.0),
    "change, by steps, weight": (AsChange(Polynomial(0.5), "weight", "steps"), "examples", 1.0),
    "change, by numbers, weight": (AsChange(Polynomial(0.5), "weight", "numbers"), "examples", 1.0),
    "change, by numbers, update, uniform, rate 0.5": (AsChange(Polynomial(0.5), by="numbers"), "uniform", 0.5),
    "model, by numbers, update, alpha 0.6": (AsModel(0.6, Polynomial(0.5), "numbers"), "examples", 1.0),
}


@pytest.mark.parametrize("name", RESULTS)
def test_stale_replies_of_parts(name: str) -> None:
    stale, weigh, rate = RESULTS[name]
    file, found = vectors("partial_asynchronous"), []
    assert file["results"].keys() == RESULTS.keys()
    for garbage in (torch.nan, 1e30):
        model, counts, reply, bases, then = partial(garbage)
        steps = file["now"] - reply.base
        assert steps.tolist() == [one["staleness_steps"] for one in file["replies"]]
        numbers = by_numbers(counts, then, steps)
        assert numbers.tolist() == [one["staleness_numbers"] for one in file["replies"]]
        assert bool((numbers <= steps[:, None]).all())
        reply = reply._replace(staleness=numbers if stale.by == "numbers" else steps)
        new = torch.lerp(model, step(stale, CoverageMean(weigh), model, bases, reply), rate)  # type: ignore[arg-type]
        torch.testing.assert_close(new, torch.tensor(file["results"][name]), **STEPS)
        assert count_step(counts, reply).tolist() == file["counts_after"]
        found.append(new)
    assert torch.equal(*found)  # what nobody sent is not read, of the reply and of its base
