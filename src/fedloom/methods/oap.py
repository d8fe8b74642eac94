"""OAP (Zhou et al., FL workshop of NeurIPS 2022; "Every Parameter Matters", NeurIPS 2023): quarters of ranked weights.

Every round the weights of each hidden layer are ranked by their magnitude in the current model and divided into four
quarters, q1 of the smallest to q4 of the largest. A client of type 1 trains all of them; 2: q1 q2 q4; 3: q1 q3 q4;
4: q2 q3 q4; 5: q1 q4; 6: q2 q4; 7: q3 q4. So these have the largest quarter, and a cohort of several types covers the
others: what counts is the least number of clients that train any weight (`mask.fewest`, recorded). Types 8 to 11 are
ours: single quarters, for RA-Fed's level S. Biases, norms and the output layer are trained by all. A number is the
plain mean over the clients that have it.

Different from the published code, of which an early version was read: it cuts the first layer only, and ranks by
`argsort`, which is the inverse of a ranking, of signed weights, so that its quarters are close to random
(`ranks="published"`). A weight that no client has becomes 0 there (0 / 0); here it stays, unless `erase`. Which client
has which type is not said: client n can train as much as type `types[n % len(types)]`, and of the types of that size
the clients of a cohort take turns. With type 1 alone it is FedAvg with equal weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor

from fedloom.chance import Chance
from fedloom.core.paper import paper
from fedloom.core.part import Mask
from fedloom.core.types import Portion, Setting, State
from fedloom.errors import BadExperiment
from fedloom.method import Method
from fedloom.methods.oap_largest import Erasing
from fedloom.parts.aggregate.coverage_mean import CoverageMean
from fedloom.parts.allocate.tiers import Tiers
from fedloom.parts.local.sub_model import SubModel

QUARTERS = {1: "1234", 2: "124", 3: "134", 4: "234", 5: "14", 6: "24", 7: "34"}  # of each type
QUARTERS |= {8: "1", 9: "2", 10: "3", 11: "4"}  # a quarter alone, as RA-Fed's level S


@dataclass(frozen=True)
class Quarters(Mask):
    """The quarters of every hidden layer's weights that belong to a client's type, and all other numbers."""

    types: tuple[int, ...] = (2, 3, 4)
    ranks: Literal["magnitude", "published"] = "magnitude"

    def __post_init__(self) -> None:
        if not self.types or not set(self.types) <= QUARTERS.keys():
            raise BadExperiment(f"types is {self.types}; expected at least one type, each from 1 to 11.")

    @property
    def alone(self) -> bool:
        """Clients of a cohort take turns, unless there is one type of each size."""
        return not self.depends_on_cohort

    @property
    def depends_on_cohort(self) -> bool:
        """As they take turns."""
        return len({len(QUARTERS[each]) for each in self.types}) < len(set(self.types))

    def init(self, setting: Setting, model: Tensor) -> State:
        """Nothing is covered."""
        return {"fewest": torch.zeros((), dtype=torch.int64, device=model.device)}

    def __call__(
        self, memory: State, setting: Setting, model: Tensor, ids: Tensor, share: Tensor, chance: Chance
    ) -> tuple[Portion, State]:
        """Rank the weights, and give each client its quarters."""
        has = self.quarters(share, chance.round)  # [C, 4]
        memory = {"fewest": has.sum(0).amin()}
        if set(self.types) == {1}:
            return Portion(), memory
        mask = torch.ones(len(ids), len(model), dtype=torch.bool, device=model.device)
        for span in setting.hidden_weights.spans:
            values = model[span.place]
            order = values.abs().argsort(stable=True)
            rank = values.argsort() if self.ranks == "published" else torch.empty_like(order)
            if self.ranks == "magnitude":
                rank[order] = torch.arange(len(order), device=model.device)
            mask[:, span.place] = has[:, rank * 4 // len(rank)]
        return Portion(mask), memory

    def quarters(self, share: Tensor, number: int) -> Tensor:
        """Which quarters each client has [C, 4], in this round."""
        has = torch.zeros(len(share), 4, dtype=torch.bool, device=share.device)
        for size in (1, 2, 3, 4):
            types = sorted({each for each in self.types if len(QUARTERS[each]) == size})
            if types:
                here = share == size / 4
                turn = (here.cumsum(0) - 1 + number) % len(types)
                has = torch.where(here[:, None], _table(tuple(types), share.device)[turn], has)
        return has

    def record(self, memory: State) -> State:
        """The least number of clients that train any weight."""
        return memory


@lru_cache(maxsize=32)
def _table(types: tuple[int, ...], device: torch.device) -> Tensor:
    """Which quarters each type has [T, 4]; copied to the device once."""
    return torch.tensor([[str(q) in QUARTERS[each] for q in (1, 2, 3, 4)] for each in types]).to(device)


@paper("Zhou et al., NeurIPS workshop", 2022, "quarters of every hidden layer's weights, ranked in the current model")
def oap(
    types: tuple[int, ...] = (2, 3, 4), ranks: Literal["magnitude", "published"] = "magnitude", erase: bool = False
) -> Method:
    """`types` (1 to 11) are what clients can train, by turns; `erase` sets to 0 what no client has."""
    return Method(
        allocate=Tiers(tuple(len(QUARTERS[each]) / 4 for each in types if each in QUARTERS) or (1.0,)),
        mask=Quarters(types, ranks),
        local=SubModel(own_part=False),
        aggregate=Erasing() if erase else CoverageMean("uniform"),
    )
