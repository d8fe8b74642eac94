"""SAFA (Wu et al., IEEE Transactions on Computers 2021, arXiv:1910.01355): rounds that end with the first comers.

All clients train in every round. Those that answered in the last one are sent the global model, and so are those whose
last answer is more than `lag` rounds old; the others are sent nothing and go on from their own model. A round ends when
`ceil(share * N)` replies have been picked: of those that come first, clients that were not picked in the last round
before those that were (`compensate`). With the `lag` that is tolerated, entries `x_k` of a cache become

1. before the round's mean, of clients that answered too long ago, the global model; of those picked, their reply;
2. the next global model `w = sum_k (n_k / n) x_k`, over all N clients;
3. after it, of clients that answered and were not picked, their reply, which counts in the next round.

With `share` 1 and nobody missing this is FedAvg with the whole fleet in every round.

Different from the paper and its code: the cache begins as the initial model (in the code everybody trains once to fill
it), the model of the best test loss is not kept, and rounds do not grow by the transfers of all rounds before. A
client that cannot be reached trains nothing, and the server cannot know: one that answered too long ago is sent the
model until it answers. The paper's limit of a round is `world.deadline`, after which nobody is picked. A round without
any reply leaves the model. Where arrival is not timed (no devices, or a real network) replies come at once, and of
equals the lower number is first. Availability that a trace gives is read as if rounds lasted until all had answered.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedloom.chance import Chance
from fedloom.core.cohort import once
from fedloom.core.flight import SPARE
from fedloom.core.means import coverage_mean
from fedloom.core.paper import paper
from fedloom.core.part import Admit, Aggregate, Mask, Upload
from fedloom.core.types import Cohort, Portion, Reply, Setting, State, Task
from fedloom.errors import BadExperiment
from fedloom.method import Method
from fedloom.parts.admit.finite import Finite
from fedloom.parts.local.keep_own import KeepOwn
from fedloom.parts.select.everyone import Everyone

if TYPE_CHECKING:
    from fedloom.core.costs import Costs


def rounds_behind(behind: Tensor, ids: Tensor, answered: Tensor) -> Tensor:
    """The rounds since each client's last answer [N] after a round in which clients `ids` [C] have `answered` [C]."""
    return torch.where(_of_fleet(ids, answered, len(behind)), 0, behind + 1)


def _of_fleet(ids: Tensor, facts: Tensor, size: int) -> Tensor:
    """Facts of rows [C] as facts of clients [N]; whatever holds for one row of a client holds for the client."""
    none = torch.zeros(size, dtype=torch.uint8, device=ids.device)
    return none.scatter_reduce(0, ids, facts.byte(), "amax").bool()


def answered(reply: Reply) -> Tensor:
    """Which clients answered [C], also those that were not picked."""
    return reply.arrived | reply.report["spare"] if "spare" in reply.report else reply.arrived


def _check_lag(lag: int) -> None:
    if lag < 0:
        raise BadExperiment(f"lag (rounds that an answer may be old) is {lag}; it must not be negative.")


@dataclass(frozen=True)
class Refresh(Mask):
    """Everything, to clients that answered in the last round or longer ago than `lag` rounds; nothing to others."""

    lag: int = 5

    def __post_init__(self) -> None:
        _check_lag(self.lag)

    def init(self, setting: Setting, model: Tensor) -> State:
        """As if all had answered."""
        return {"behind": torch.zeros(setting.fleet.size, dtype=torch.int64, device=model.device)}

    def __call__(
        self, memory: State, setting: Setting, model: Tensor, ids: Tensor, share: Tensor, chance: Chance
    ) -> tuple[Portion, State]:
        """Return all numbers or none, for each client."""
        behind = memory["behind"][ids]
        fresh = (behind == 0) | (behind > self.lag)
        if fresh.device.type == "cpu" and bool(fresh.all()):  # elsewhere a check would wait for the device
            return Portion(), memory
        return Portion(fresh[:, None].repeat(1, len(model))), memory

    def observe(self, memory: State, setting: Setting, model: Tensor, reply: Reply) -> State:
        """Remember who answered."""
        return {"behind": rounds_behind(memory["behind"], reply.ids, answered(reply))}

    def record(self, memory: State) -> State:
        """How many clients will go on from their own model."""
        behind = memory["behind"]
        return {"tolerated": ((behind > 0) & (behind <= self.lag)).sum()}


@dataclass(frozen=True)
class Complete(Upload):
    """The whole model, whatever part of it was sent down."""

    def __call__(
        self, setting: Setting, task: Task, state: State, first: Tensor, last: Tensor, chance: Chance
    ) -> Tensor | None:
        """No mask."""
        return None


@dataclass(frozen=True)
class FirstComers(Admit):
    """Of the replies that pass the `checks`, those that come first, up to a `share` of the fleet; others are spare.

    With `compensate`, clients that were not picked in the last round come before those that were. Spare replies have
    not `arrived`; their column `spare` and their fate say so. The round ends with the last reply that is picked.
    """

    share: float = 0.3
    compensate: bool = True
    checks: Admit = Finite()

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise BadExperiment(
                f"share (of the fleet that is picked) is {self.share}; it lies above 0 and at most at 1."
            )

    @property
    def checking(self) -> Admit:
        """The checks alone."""
        return self.checks

    def checked_by(self, checks: Admit) -> Admit:
        """The same choice, of what other checks admit."""
        return FirstComers(self.share, self.compensate, checks)

    @property
    def learns(self) -> bool:
        """Who counts depends on the others."""
        return True

    def clash(self, method: Method) -> str | None:
        """As the checks."""
        return self.checks.clash(method)

    def init(self, setting: Setting, model: Tensor) -> State:
        """The checks' memory; nobody was picked."""
        nobody = torch.zeros(setting.fleet.size, dtype=torch.bool, device=model.device)
        return {**self.checks.init(setting, model), "picked": nobody}

    def observe(self, memory: State, setting: Setting, model: Tensor, reply: Reply) -> State:
        """Let the checks observe."""
        return {**self.checks.observe(memory, setting, model, reply), "picked": memory["picked"]}

    def __call__(self, memory: State, setting: Setting, model: Tensor, task: Task, reply: Reply) -> tuple[Reply, State]:
        """Check, then pick."""
        assert task.ids is not None
        reply, own = self.checks(memory, setting, model, task, reply)
        reply = once(Cohort(task.ids, task.authorised), model, reply)  # a client is picked once, and read if it is not
        size = setting.fleet.size
        quota, here = ceil(self.share * size - 1e-9), _of_fleet(reply.ids, reply.arrived, size)  # 0.07 * 100 is above 7
        seconds = reply.report.get("seconds")
        timed = torch.zeros_like(reply.ids, dtype=torch.float64) if seconds is None else seconds
        timed = torch.where(reply.arrived, timed, torch.inf)
        came = torch.full((size,), torch.inf, dtype=timed.dtype, device=timed.device)
        came = came.scatter_reduce(0, reply.ids, timed, "amin")  # [N]
        turn = torch.where(here, (memory["picked"] & self.compensate).byte(), 2)
        order = came.argsort(stable=True)
        order = order[turn[order].argsort(stable=True)]
        picked = torch.zeros_like(here).index_fill(0, order[:quota], True) & here
        counts = picked[reply.ids] & reply.arrived
        spare = reply.arrived & ~counts
        costs = None if reply.costs is None else _ended(reply.costs, spare, counts, seconds, quota)
        reply = reply._replace(arrived=counts, report={**reply.report, "spare": spare}, costs=costs)
        return reply, {**own, "picked": picked}


def _ended(costs: Costs, spare: Tensor, counts: Tensor, seconds: Tensor | None, quota: int) -> Costs:
    """The costs of a round that ends with the last of those who count [C], if they are a `quota` and are timed."""
    columns, duration, sent = dict(costs.columns or {}), costs.duration, costs.sent
    if sent is None:
        sent = costs.up.total * (counts | spare)
    if "fate" in columns:
        columns["fate"] = torch.where(spare, SPARE, columns["fate"])
    if duration is not None and seconds is not None:
        last = torch.where(counts, seconds, 0).max()
        duration = torch.where(counts.sum() >= quota, last.to(duration), duration)
    return costs._replace(columns=columns, duration=duration, sent=sent)


@dataclass(frozen=True)
class CachedMean(Aggregate):
    """The mean of all clients' cached models, weighted by examples; a cache entry moves only where it was sent.

    The server remembers N x P numbers.
    """

    lag: int = 5

    def __post_init__(self) -> None:
        _check_lag(self.lag)

    def clash(self, method: Method) -> str | None:
        """Refuse rounds that do not ask the fleet again and again."""
        if method.pace.barrier and method.select.whole_fleet:
            return None
        return (
            "it counts the rounds since each client answered, and every client must be asked in each; leave pace and "
            "select as they are."
        )

    def init(self, setting: Setting, model: Tensor) -> State:
        """Everybody's model is the initial one."""
        nobody = torch.zeros(setting.fleet.size, dtype=torch.int64, device=model.device)
        return {"cache": model.repeat(setting.fleet.size, 1), "behind": nobody}

    def __call__(self, memory: State, setting: Setting, model: Tensor, reply: Reply) -> tuple[Tensor, State]:
        """Average what is known of all clients, with the replies that count; the spare ones are for the next round."""
        behind, fleet = memory["behind"], setting.fleet
        cache = torch.where((behind > self.lag)[:, None], model, memory["cache"])
        cache = _moved(cache, reply, reply.arrived)
        everyone = torch.arange(fleet.size, device=model.device)
        whole = Reply(everyone, cache, None, {}, {}, torch.ones_like(everyone, dtype=torch.bool))
        mean = coverage_mean(model, whole, whole.arrived.to(model.dtype) * fleet.examples)
        cache = _moved(cache, reply, answered(reply) & ~reply.arrived)
        behind = rounds_behind(behind, reply.ids, answered(reply))
        return torch.where(answered(reply).any(), mean, model), {"cache": cache, "behind": behind}

    def covered(self, model: Tensor, reply: Reply) -> Tensor:
        """All numbers, by what is remembered of others."""
        return answered(reply).any()

    def note(self, setting: Setting) -> str:
        """The size of the cache."""
        clients, numbers = setting.fleet.size, setting.layout.total
        return (
            f"The server keeps every client's latest model: {clients:,} x {numbers:,} numbers = "
            f"{4e-6 * clients * numbers:,.3g} MB."
        )


def _moved(cache: Tensor, reply: Reply, which: Tensor) -> Tensor:
    """The cache [N, P] with some of the replies [C] in it, where they were sent."""
    sent = which[:, None] if reply.mask is None else reply.mask & which[:, None]
    return cache.index_copy(0, reply.ids, torch.where(sent, reply.params, cache[reply.ids]))


@paper(
    "Wu et al., IEEE Transactions on Computers",
    2021,
    "whole models, for some; others are sent nothing and train on",
)
def safa(share: float = 0.3, lag: int = 5, compensate: bool = True) -> Method:
    """A `share` of the fleet is picked each round; clients may go on from their own model for `lag` rounds."""
    return Method(
        select=Everyone(),
        mask=Refresh(lag),
        local=KeepOwn(),
        upload=Complete(),
        admit=FirstComers(share, compensate),
        aggregate=CachedMean(lag),
    )
