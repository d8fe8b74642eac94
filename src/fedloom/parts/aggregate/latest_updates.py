"""Aggregate: a step by the mean of all clients' latest updates, which the server remembers."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from fedloom.core.means import uniform_mean
from fedloom.core.part import Aggregate
from fedloom.core.types import Reply, Setting, State, senders
from fedloom.errors import BadExperiment, unknown

if TYPE_CHECKING:
    from fedloom.method import Method

DTYPES = {"float32": torch.float32, "float16": torch.float16}
BLOCK = 2**19  # numbers of a cohort that are processed at a time on a CPU; they fit its cache


@dataclass(frozen=True)
class LatestUpdates(Aggregate):
    """A step by the mean of all N clients' latest updates, number by number; clients that never answered count as 0.

    With `Delta_n = (model - reply_n) / rate` of the G clients that sent a number, and `u_n` remembered of all clients:

        v = mean_n u_n + (1/G) * sum of (Delta_n - u_n)    if `correct` (mean_n u_n where G = 0)
        v = mean_n u_n with this round's updates in it     if not
        model <- model - rate * v,    u_n <- Delta_n where it was sent

    A round without any reply changes nothing. With `wait`, the model stays until every client has answered once.
    Running statistics are not remembered: they follow the uniform coverage mean.

    The table `updates` [N, numbers trained] is an exception to the rule that memory is never written in place: copying
    it every round would cost time by the fleet, not the cohort. It can have half the size (`float16`; sums stay exact
    to what is stored), or lie in an unnamed file in `folder`, which disappears with the run.
    """

    dtype: Literal["float32", "float16"] = "float32"
    folder: str | None = None
    correct: bool = True
    wait: bool = False

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise BadExperiment(unknown("dtype of remembered updates", self.dtype, DTYPES))

    def clash(self, method: Method) -> str | None:
        """Refuse replies of rounds with different learning rates, by one of which their updates are divided."""
        if method.pace.barrier or method.optimiser.decay == 1:
            return None
        return (
            f"it divides updates by the learning rate, which differs from reply to reply with decay="
            f"{method.optimiser.decay:g} where rounds have no barrier; set training.decay=1, or leave pace out."
        )

    def init(self, setting: Setting, model: Tensor) -> State:
        """No updates, and no client has answered."""
        clients, numbers, dtype = setting.fleet.size, setting.layout.trained, DTYPES[self.dtype]
        if self.folder is None:
            updates = torch.zeros(clients, numbers, dtype=dtype, device=model.device)
        else:
            updates = zeros_on_disk(self.folder, clients * numbers, dtype).view(clients, numbers)
        return {
            "updates": updates,
            "mean": torch.zeros(numbers, dtype=torch.float64, device=model.device),  # over the fleet
            "heard": torch.zeros(clients, dtype=torch.bool, device=model.device),
        }

    def resume(self, setting: Setting, model: Tensor, saved: State) -> State:
        """As other memory, but a table in a file is written to a new file."""
        if self.folder is None:
            return super().resume(setting, model, saved)
        rest = super().resume(setting, model, {name: value for name, value in saved.items() if name != "updates"})
        return {"updates": self.init(setting, model)["updates"].copy_(saved["updates"]), **rest}

    def __call__(self, memory: State, setting: Setting, model: Tensor, reply: Reply) -> tuple[Tensor, State]:
        """Step by `v`, in double precision.

        For whole models the step starts from their plain mean, so that it is FedAvg to the bit if all clients send.
        """
        updates, mean, heard, trained = memory["updates"], memory["mean"], memory["heard"], setting.layout.trained
        before = mean * setting.fleet.size if reply.everyone else None
        gained, ahead, count = _remember(updates, model[:trained], reply, before)
        mean_now = mean + gained / setting.fleet.size
        start, v = model[:trained], mean_now
        if self.correct:
            start = start if reply.mask is not None else _plain(model, reply, slice(trained))
            v = mean.addcdiv(ahead, count.clamp(min=1))
        moved = start.sub(v, alpha=reply.rate).to(model.dtype)
        if trained < len(model):
            moved = torch.cat((moved, _plain(model, reply, slice(trained, None))))
        if reply.everyone:
            heard = heard | reply.arrived
        else:
            heard = heard.index_put((reply.ids,), heard[reply.ids] | reply.arrived)
        steps = reply.arrived.any() & heard.all() if self.wait else reply.arrived.any()
        return torch.where(steps, moved, model), {"updates": updates, "mean": mean_now, "heard": heard}

    def covered(self, model: Tensor, reply: Reply) -> Tensor:
        """All numbers, by what is remembered of others."""
        return reply.arrived.any()

    def record(self, memory: State) -> State:
        """How many clients have ever answered."""
        return {"heard": memory["heard"].sum()}

    def note(self, setting: Setting) -> str:
        """The size of the memory."""
        clients, numbers = setting.fleet.size, setting.layout.trained
        megabytes = clients * numbers * DTYPES[self.dtype].itemsize / 1e6
        where = "memory" if self.folder is None else f"a file in '{self.folder}'"
        waits = f" The model stays until all {clients} clients were heard of." if self.wait else ""
        return (
            f"The server remembers every client's latest update: {clients:,} x {numbers:,} numbers ({self.dtype}) = "
            f"{megabytes:,.3g} MB in {where}.{waits}"
        )


def _remember(
    updates: Tensor, model: Tensor, reply: Reply, total: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Write what was sent into `updates`, and return three sums per number [T].

    These are the change of the sum of `updates`, the sum over senders of `Delta_n - u_n` (for whole models `-u_n`), and
    the number of senders. `total` is the sum of the rows before [T], where it is known. Numbers are processed in
    blocks, since most time goes into fresh memory pages for temporaries. Numbers not sent stay, so that the change of
    sums over all rows is that of sums over the senders.
    """
    ids, at, sums = reply.ids, reply.ids.to(updates.device), []  # the table is on the CPU if it is in a file
    most, in_place = torch.finfo(updates.dtype).max, reply.everyone and updates.device == reply.ids.device
    width = max(1, (BLOCK if ids.device.type == "cpu" else 128 * BLOCK) // max(1, len(ids)))
    for start in range(0, len(model), width):
        some = slice(start, min(start + width, len(model)))
        sent = reply.arrived[:, None] if reply.mask is None else reply.mask[:, some]  # of replies that arrived
        update = (model[some] - reply.params[:, some]).div_(reply.rate)
        stored = update.clamp_(-most, most) if updates.dtype == update.dtype else update.clamp(-most, most)
        table = updates[:, some]
        old = table if in_place else table.index_select(0, at).to(ids.device)
        before = old.sum(0, dtype=torch.float64) if total is None else total[some]
        ahead = None
        if reply.mask is None:
            ahead = torch.where(sent, -old, 0).sum(0, dtype=torch.float64)
        elif stored is not update:  # else it equals `gained`
            ahead = torch.where(sent, update - old, 0).sum(0, dtype=torch.float64)
        new = torch.where(sent, stored.to(old.dtype), old, out=old)
        if not in_place:
            table.index_copy_(0, at, new.to(updates.device))
        gained = new.sum(0, dtype=torch.float64) - before
        count = reply.arrived.sum().expand(len(gained)) if reply.mask is None else senders(sent)
        sums.append((gained, gained if ahead is None else ahead, count))
    if len(sums) == 1:
        return sums[0]
    gained, ahead, count = (torch.cat(blocks) for blocks in zip(*sums))
    return gained, ahead, count


def _plain(model: Tensor, reply: Reply, part: slice) -> Tensor:
    """The uniform coverage mean of some of the numbers."""
    some = reply._replace(params=reply.params[:, part], mask=None if reply.mask is None else reply.mask[:, part])
    return uniform_mean(model[part], some)


def zeros_on_disk(folder: str, size: int, dtype: torch.dtype) -> Tensor:
    """Zeros [size] in an unlinked file: its disk space is freed with the tensor, however the program ends."""
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        file, name = tempfile.mkstemp(prefix="fedloom-", dir=folder)
    except OSError as problem:
        raise BadExperiment(f"folder is '{folder}', where no file can be made: {problem.strerror}.") from problem
    try:
        if hasattr(os, "posix_fallocate"):  # writing to a full disk later would end the program
            os.posix_fallocate(file, 0, size * dtype.itemsize)
        return torch.from_file(name, shared=True, size=size, dtype=dtype)
    except OSError as problem:
        needs = f"{size * dtype.itemsize / 1e6:,.3g} MB"
        raise BadExperiment(f"folder is '{folder}', which has no room for {needs}: {problem.strerror}.") from problem
    finally:
        os.close(file)
        os.unlink(name)
