"""Select: networks of a pool drawn at random, and for each a client that has managed such networks before."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedloom.chance import Chance
from fedloom.core.part import Select
from fedloom.core.pool import Pool
from fedloom.core.types import Cohort, Reply, Setting, State


@dataclass(frozen=True)
class BySuccess(Select):
    """`count` networks of the `pool` (at most one a client), each for a client not drawn yet, and what it can hold.

    The server remembers for each client how often it managed each network, `success` [N, J], and how often it was asked
    for each level, `asked` [N, L]. A client of class n modulo their number has `room` for a part of the whole network
    that varies from round to round: a normal number of this mean and deviation, within three deviations.
    With `learnt` false clients are drawn with equal probability.
    """

    pool: Pool = Pool()
    count: int = 10
    room: tuple[tuple[float, float], ...] = ((0.24, 0.03), (0.48, 0.03), (1.04, 0.06))
    learnt: bool = True

    def cohort_size(self, fleet_size: int) -> int:
        """The networks that are drawn."""
        return min(self.count, fleet_size)

    def with_count(self, count: int) -> Select | None:
        """So many networks."""
        return replace(self, count=count)

    @property
    def learns(self) -> bool:
        """From whose replies arrived."""
        return True

    def init(self, setting: Setting, model: Tensor) -> State:
        """Every client may manage everything."""
        size, device = setting.fleet.size, model.device
        levels = len(self.pool.widths) + 1
        return {
            "success": torch.ones(size, self.pool.count, dtype=torch.int64, device=device),
            "asked": torch.ones(size, levels, dtype=torch.int64, device=device),
            "sent": torch.zeros(size, dtype=torch.int64, device=device),  # the network that each was meant to train
            "held": torch.zeros(size, dtype=torch.int64, device=device),  # the network that it could hold
        }

    def __call__(self, memory: State, setting: Setting, chance: Chance) -> tuple[Cohort, State]:
        """Draw networks, then clients one by one."""
        size = setting.fleet.size
        draws = chance.uniform("pool", torch.arange(self.cohort_size(size), device=chance.device)).double()
        networks = (draws * self.pool.count).long()
        weights = self.weights(memory) if self.learnt else torch.ones_like(memory["asked"], dtype=torch.float64)
        free, ids = torch.ones(size, dtype=torch.float64, device=weights.device), []
        for turn, network in enumerate(networks.tolist()):
            weight = weights[:, int(self.pool.level(torch.tensor(network)))] * free
            weight = torch.where(weight.sum() > 0, weight, free).cumsum(0)
            at = chance.uniform("client of the pool", turn).double() * weight[-1]
            ids.append(int((weight <= at).sum().clamp(max=size - 1)))
            free[ids[-1]] = 0
        drawn = torch.tensor(ids, device=networks.device)
        order = drawn.argsort()
        drawn, networks = drawn[order], networks[order]
        sizes = self.pool.sizes(setting.neurons)
        held = torch.minimum(networks, self.fitting(sizes, self.rooms(drawn, chance)))
        kept = {**memory, "sent": memory["sent"].index_put((drawn,), networks)}
        kept["held"] = memory["held"].index_put((drawn,), held)
        return Cohort(drawn, torch.ones_like(drawn, dtype=torch.bool), sizes[held]), kept

    def rooms(self, ids: Tensor, chance: Chance) -> Tensor:
        """The part of the whole network that each client has room for in this round [C]."""
        mean, spread = torch.tensor(self.room, dtype=torch.float64, device=ids.device).T[:, ids % len(self.room)]
        room: Tensor = mean + spread * chance.normal("room", ids).clamp(-3, 3)
        return room

    @staticmethod
    def fitting(sizes: Tensor, room: Tensor) -> Tensor:
        """The largest network of the pool that fits [C]; the smallest if none does."""
        return ((sizes <= room[:, None]).long().cumprod(1).sum(1) - 1).clamp(min=0)

    def weights(self, memory: State) -> Tensor:
        """The weight of every client in the draw for each level [N, L]."""
        success, each = memory["success"].double(), len(self.pool.whole)
        tail = success.flip(1).cumsum(1).flip(1) / success.sum(1, keepdim=True)  # of at least this network
        levels = [tail[:, first : first + each].mean(1) for first in range(0, self.pool.count, each)]
        return torch.stack(levels, 1).clamp(max=0.5) / memory["asked"].double().sqrt()

    def observe(self, memory: State, setting: Setting, model: Tensor, reply: Reply) -> State:
        """Update both tables for the clients whose replies arrived."""
        ids = reply.ids
        sent, held = memory["sent"][ids], memory["held"][ids]
        success, asked = self.counted(memory["success"][ids], memory["asked"][ids], sent, held)
        keep = reply.arrived[:, None]
        return {
            **memory,
            "success": memory["success"].index_put((ids,), torch.where(keep, success, memory["success"][ids])),
            "asked": memory["asked"].index_put((ids,), torch.where(keep, asked, memory["asked"][ids])),
        }

    def counted(self, success: Tensor, asked: Tensor, sent: Tensor, held: Tensor) -> tuple[Tensor, Tensor]:
        """Both tables' rows after clients were `sent` networks and trained those that they `held` [C]."""
        last, place = self.pool.count - 1, torch.arange(self.pool.count, device=success.device)
        fits = success + (place >= sent[:, None]) + 3 * ((place == last) & (sent[:, None] == last))
        beyond = place - held[:, None]
        smaller = torch.where(beyond > 0, (success - beyond).clamp(min=0), success + 3 * (beyond == 0))
        new = torch.where((sent == held)[:, None], fits, smaller)
        level = torch.arange(asked.shape[1], device=asked.device)
        asked = asked + (level == self.pool.level(held)[:, None]).long() + (level == self.pool.level(sent)[:, None])
        return new, asked
