"""Select: clients of high utility that are not too slow (Oort)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from fedloom.chance import Chance
from fedloom.core.devices import known_devices
from fedloom.core.part import Select
from fedloom.core.types import Cohort, Reply, Setting, State
from fedloom.core.work import Work
from fedloom.errors import BadExperiment
from fedloom.neurons.leading import LeadingNeurons
from fedloom.parts.select.power_of_choice import draw_by_weight
from fedloom.parts.select.within import check_budget, part_of, this_round, within_budget

FLOOR = 0.999  # of the smallest utility, from which utilities are scaled


@dataclass(frozen=True)
class Utility(Select):
    """The clients of highest score: utility at their last reply, plus a bonus for its age, with a penalty if slow.

    The utility `|B| * sqrt(mean loss^2)` is computed as examples times mean loss, which is all that clients report. The
    score is the utility, clipped from above at the quantile `clip` and scaled to 0..1, where 0 is 0.999 of the smallest
    as in the published code, plus `sqrt(bonus * ln t / t_last)`; for clients slower than the preferred duration, the
    `percentile` of all durations, it is multiplied by `(preferred / duration)^alpha`. `count` clients take part, or as
    many as `budget * sum U_n` pays for.

    As FedDD uses it, clients never tried come first, in random order, then the highest scores. With `sampling`, as in
    Oort, a fraction of the cohort is drawn from clients never tried, by their speed: `exploration` at first, multiplied
    by `decay` every round, at least `least`. The rest is drawn by score from clients that reach `cut_off` times the
    score of the last that would fit. Every `pacer` rounds (0: never) the preferred percentile rises by `pace` if the
    cohorts' utility has become flat, and falls by `pace` after a jump.
    """

    budget: float = 0.6
    count: int | None = None
    alpha: float = 2.0
    percentile: float = 60.0
    clip: float = 0.98
    bonus: float = 0.1
    sampling: bool = False
    exploration: float = 0.9
    decay: float = 0.95
    least: float = 0.2
    cut_off: float = 0.7
    pacer: int = 0
    pace: float = 5.0
    work: Work = Work()
    models: LeadingNeurons | None = None  # None: every client has the whole network

    def __post_init__(self) -> None:
        check_budget(self.budget)
        if self.count is not None and self.count < 1:
            raise BadExperiment(f"count of clients a round is {self.count}; at least 1 must take part.")
        for name in ("percentile", "clip", "exploration", "decay", "least", "cut_off"):
            value, high = getattr(self, name), 100 if name == "percentile" else 1
            if not 0 <= value <= high:
                raise BadExperiment(f"{name} is {value}; it lies between 0 and {high}.")
        if self.sampling and self.models is not None:
            raise BadExperiment("models and sampling=true: Oort's draw is of a number of clients; set one of the two.")
        for name in ("alpha", "bonus", "pacer", "pace"):
            if getattr(self, name) < 0:
                raise BadExperiment(f"{name} is {getattr(self, name)}; it must not be negative.")

    @property
    def needs_losses(self) -> bool:
        """Utility is computed from losses."""
        return True

    @property
    def networks(self) -> tuple[LeadingNeurons | None, ...]:
        """Who is slow, and who fits, depends on what each client has."""
        return (self.models,)

    @property
    def needs_devices(self) -> bool:
        """Slow clients have a penalty."""
        return True

    @property
    def asks_one_by_one(self) -> bool:
        """Unless a cohort is sampled."""
        return not self.sampling

    def cohort_size(self, fleet_size: int) -> int:
        """`count` where it is set."""
        return min(fleet_size, self.count or fleet_size)

    def with_count(self, count: int) -> Self:
        """This part with `count` in place of the budget."""
        return replace(self, count=count)

    def for_work(self, work: Work) -> Self:
        """Compute seconds depend on the clients' work."""
        return replace(self, work=work)

    def init(self, setting: Setting, model: Tensor) -> State:
        """No client was tried."""
        known_devices(setting.fleet.devices, "Utility")
        zeros = torch.zeros(setting.fleet.size, dtype=torch.float64, device=model.device)
        start = {"percentile": self.percentile, "gain": 0.0, "gain_before": 0.0}
        return {
            "utility": zeros,
            "last": zeros.long(),  # round of the last reply; 0: none
            "tried": zeros.bool(),
            "round": zeros.new_zeros((), dtype=torch.int64),
            **{name: zeros.new_tensor(value) for name, value in start.items()},
        }

    def __call__(self, memory: State, setting: Setting, chance: Chance) -> tuple[Cohort, State]:
        """Score all clients, then choose."""
        memory = {**memory, "round": torch.full_like(memory["round"], chance.round)}
        size = setting.fleet.size
        part = part_of(setting, self.models)
        slow = self.slowness(memory, this_round(setting, self.work, chance, "Utility", part).total)
        score = self.score(memory) * slow
        first = chance.uniform("select", torch.arange(size, device=score.device)).double()
        order = torch.where(memory["tried"], score, 1 + score.max() + first).argsort(descending=True, stable=True)
        count = min(size, self.count or within_budget(self.budget, order, part))
        chosen = self._sample(memory["tried"], score, slow, count, chance) if self.sampling else order[:count]
        ids = chosen.sort().values
        memory = {**memory, "tried": memory["tried"].index_fill(0, ids, True)}
        return Cohort(ids, torch.ones_like(ids, dtype=torch.bool)), memory

    def next(self, memory: State, setting: Setting, chance: Chance, free: Tensor, count: int) -> tuple[Tensor, State]:
        """Of the free clients those never tried first, in random order, then by falling score.

        With `sampling` a round's draws have sizes that depend on the cohort, and cannot be made one by one.
        """
        if self.sampling:
            raise BadExperiment(
                "select=Utility with sampling=True draws whole cohorts and cannot choose among clients that are free; "
                "set sampling=False, or leave pace out."
            )
        memory = {**memory, "round": torch.full_like(memory["round"], chance.round)}
        seconds = this_round(setting, self.work, chance, "Utility", part_of(setting, self.models)).total
        score = self.score(memory) * self.slowness(memory, seconds)
        order = chance.uniform("select", torch.arange(len(score), device=score.device)).double()
        rank = torch.where(memory["tried"], score, 1 + score.max() + order).argsort(descending=True, stable=True).cpu()
        return rank[free.cpu()[rank]][:count], memory

    def slowness(self, memory: State, seconds: Tensor) -> Tensor:
        """`(preferred / duration)^alpha` for clients slower than preferred, else 1 [N]."""
        place = (memory["percentile"] / 100 * len(seconds)).long().clamp(max=len(seconds) - 1)
        preferred = seconds.sort().values[place]
        return torch.where(seconds > preferred, preferred / seconds, 1.0) ** self.alpha

    def score(self, memory: State) -> Tensor:
        """Scaled utility plus bonus, before the penalty [N]; clients that never answered have a utility of 0."""
        utility, last = memory["utility"], memory["last"]
        order = utility.masked_fill(last == 0, torch.inf).sort().values  # clients that answered come first
        heard = (last > 0).sum()
        place = (self.clip * heard).long().minimum(heard - 1).clamp(min=0)
        known = torch.where(heard > 0, order[torch.stack((place, (heard - 1).clamp(min=0)))], 0)  # [2]
        low = torch.where(heard > 0, FLOOR * order[0], 0)
        scaled = (utility.minimum(known[0]) - low) / (known[1] - low).clamp(min=1e-4)
        age = self.bonus * torch.log(memory["round"].double().clamp(min=1)) / last.clamp(min=1)
        return torch.where(last > 0, scaled, 0.0) + age.sqrt()

    def observe(self, memory: State, setting: Setting, model: Tensor, reply: Reply) -> State:
        """Update the utilities of the replies that arrived, and every `pacer` rounds the preferred percentile."""
        ids, round_ = reply.ids, memory["round"]
        found = reply.report["examples"].double() * reply.report["loss"].double().clamp(min=0)
        arrived = reply.arrived & found.isfinite()
        utility = torch.where(arrived, found, memory["utility"][ids])
        last = torch.where(arrived, round_, memory["last"][ids])
        memory = {
            **memory,
            "tried": memory["tried"].index_fill(0, ids, True),  # those asked without a barrier as well
            "utility": memory["utility"].index_put((ids,), utility),
            "last": memory["last"].index_put((ids,), last),
        }
        return self._pace(memory, torch.where(arrived, found, 0).sum()) if self.pacer else memory

    def _pace(self, memory: State, gained: Tensor) -> State:
        """Move the percentile by comparing the utility gained in the last `pacer` rounds with that gained before."""
        gain, before, percentile = memory["gain"] + gained, memory["gain_before"], memory["percentile"]
        change = (gain - before).abs()
        slower = torch.where(change <= 0.1 * before, self.pace, torch.where(change >= 5 * before, -self.pace, 0.0))
        moved = (percentile + slower).clamp(min(self.pace, self.percentile), 100)
        due = memory["round"] % self.pacer == 0
        second = memory["round"] >= 2 * self.pacer  # there are earlier rounds to compare with
        return {
            **memory,
            "percentile": torch.where(due & second, moved, percentile),
            "gain": torch.where(due, 0, gain),
            "gain_before": torch.where(due, gain, before),
        }

    def _sample(self, tried: Tensor, score: Tensor, slow: Tensor, count: int, chance: Chance) -> Tensor:
        """Oort's draw: tried clients by score, new clients by speed, then the clients left by score."""
        exploring = max(self.least, self.exploration * self.decay**chance.round)
        untried = int((~tried).sum())
        exploit = count if not untried else min(int(count * (1 - exploring)), len(tried) - untried)
        top = score.masked_fill(~tried, -torch.inf).sort(descending=True).values
        enough = tried & (score >= self.cut_off * top[min(exploit, len(tried) - untried - 1)]) if exploit else tried
        known = draw_by_weight(torch.where(enough, score.clamp(min=1e-4), 0), exploit, chance, "exploit")
        new = draw_by_weight(torch.where(tried, 0, slow), min(untried, count - exploit), chance, "explore")
        chosen = torch.cat((known, new))
        rest = torch.where(tried, score.clamp(min=1e-4), 0).index_fill(0, chosen, 0)
        return torch.cat((chosen, draw_by_weight(rest, count - len(chosen), chance, "fill")))
