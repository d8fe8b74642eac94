"""Repair: the reply of the most similar client replaces a missing one."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedloom.accel.capture import Captured
from fedloom.core.means import as_sparse, plain_mean, uniform_mean
from fedloom.core.part import Repair
from fedloom.core.pruning import prunable
from fedloom.core.types import Reply, Setting, State, column, senders
from fedloom.errors import BadExperiment, unknown

DISTANCES = ("plain", "relative", "shared")
STRETCH = 2048  # numbers of a model in one product
TALLY = ("stand_ins", "same_group", "by_mean", "shared", "kept")  # of the last round


@dataclass(frozen=True)
class MostSimilar(Repair):
    """A missing reply is replaced by the arrived one at the smallest known distance; of equals by the lowest id.

    Distances of sparse models (numbers not sent are zero) are measured whenever two clients arrive together, and kept
    until that happens again: `||u - v||`, or `relative` to `sqrt(||u|| ||v||)`, or the root mean squared difference of
    the numbers that both sent (`shared`), for clients whose parts differ whatever they learn; with `smoothing` s the
    new entry is `s * old + (1 - s) * measured`. A client that was never compared with any of the arrived ones gets the
    mean of the arrived replies, over all of them or, `mask_aware`, of each number over its senders. Clients that were
    not to send are not replaced.
    """

    distance: str = "plain"
    smoothing: float = 0.0
    mask_aware: bool = False

    def __post_init__(self) -> None:
        if self.distance not in DISTANCES:
            raise BadExperiment(unknown("distance of models", self.distance, DISTANCES))
        if not 0 <= self.smoothing < 1:
            raise BadExperiment(f"smoothing (weight of the older distance) is {self.smoothing}; it lies in [0, 1).")

    def init(self, setting: Setting, model: Tensor) -> State:
        """No two clients were compared."""
        fleet = setting.fleet.size
        return {
            "distance": torch.zeros(fleet, fleet, dtype=torch.float64, device=model.device),
            "compared": torch.zeros(fleet, fleet, dtype=torch.bool, device=model.device),
            "tally": torch.zeros(len(TALLY), dtype=torch.float64, device=model.device),
        }

    def note(self, setting: Setting) -> str | None:
        """The size of the table, which grows with the square of the fleet; None for small fleets."""
        fleet = setting.fleet.size
        if fleet < 1000:
            return None
        return f"MostSimilar remembers distances of {fleet} x {fleet} clients, {9 * fleet**2 / 2**20:.1f} MiB."

    def observe(self, memory: State, setting: Setting, model: Tensor, reply: Reply) -> State:
        """Measure all pairs that arrived; their sparse models are kept until the replies are repaired."""
        sparse = {} if self.distance == "shared" else {"sparse": as_sparse(reply)}
        measured = self._measured(sparse["sparse"]) if sparse else _on_shared(reply)
        keepers = reply.arrived.sum().expand(len(model)) if reply.mask is None else senders(reply.mask)  # [P]
        old, known = _among(memory, reply)
        old, known, tally = _noted((measured, old, known, reply.arrived, keepers), self.smoothing, setting)
        if not reply.everyone:
            at = reply.ids[:, None], reply.ids
            old, known = memory["distance"].index_put(at, old), memory["compared"].index_put(at, known)
        return {"distance": old, "compared": known, "tally": tally, **sparse}

    def __call__(self, memory: State, setting: Setting, model: Tensor, reply: Reply) -> tuple[Reply, State]:
        """Fill the gaps; if nothing arrived, the replies stay as they are."""
        arrived, ids, memory = reply.arrived, reply.ids, dict(memory)
        sparse = memory.pop("sparse", None)
        missing = ~arrived if reply.awaited is None else ~arrived & reply.awaited
        if arrived.device.type == "cpu" and not bool(missing.any() & arrived.any()):
            return reply, memory
        facts = *_among(memory, reply), arrived, missing, ids, memory["tally"]
        source, alone, present, tally, *report = _matched((*facts, *reply.report.values()), setting)
        whole = reply._replace(
            params=reply.params.index_select(0, source),
            mask=None if reply.mask is None else reply.mask.index_select(0, source),
            extras={name: _filled(v, arrived, source, alone) for name, v in reply.extras.items()},
            report=dict(zip(reply.report, report)),
            arrived=present,
            staleness=None if reply.staleness is None else _filled(reply.staleness, arrived, source, alone),
        )
        if alone.device.type != "cpu" or bool(alone.any()):
            mean = self._mean(model, reply, as_sparse(reply) if sparse is None else sparse)
            whole = whole._replace(params=torch.where(alone[:, None], mean, whole.params))
            if reply.mask is not None and whole.mask is not None:
                whole = whole._replace(mask=torch.where(alone[:, None], reply.mask.any(0), whole.mask))
        return whole, {**memory, "tally": tally}

    def _mean(self, model: Tensor, reply: Reply, sparse: Tensor) -> Tensor:
        """The mean of the arrived replies [P]."""
        if self.mask_aware:
            return uniform_mean(model, reply)
        return plain_mean(model, reply._replace(params=sparse, mask=None))

    def record(self, memory: State) -> State:
        """How many replies were replaced, the fraction by a client with the same classes, and how far masks overlap."""
        tally = dict(zip(TALLY, memory["tally"]))
        return {
            "stand_ins": tally["stand_ins"],
            "by_mean": tally["by_mean"],
            "same_group": tally["same_group"] / tally["stand_ins"],  # NaN where there is none
            "overlap": tally["shared"] / tally["kept"],
            "distance": torch.where(memory["compared"], memory["distance"], torch.nan),
        }

    def _measured(self, sparse: Tensor) -> Tensor:
        """Distances of all pairs [C, C]; computed from differences, so that equal models are at exactly 0."""
        rows, sparse = len(sparse), sparse.double()
        if sparse.device.type == "cuda":  # products take a fraction of the time there
            products = _products(sparse)
            squares = products.diagonal()
            table = (squares[:, None] + squares - 2 * products).clamp(min=0).sqrt()
        else:
            upper = torch.triu_indices(rows, rows, 1, device=sparse.device)
            kept = sparse[:, sparse.any(0)]  # numbers that nobody sent add nothing, and are most of a pruned model
            table = sparse.new_zeros(rows, rows).index_put(tuple(upper), torch.pdist(kept))
            table = table + table.T
        if self.distance == "plain":
            return table
        root: Tensor = torch.linalg.vector_norm(sparse, dim=1).clamp(min=torch.finfo(sparse.dtype).tiny).sqrt()
        return table / root[:, None] / root


def _on_shared(reply: Reply) -> Tensor:
    """Root mean squared differences over the numbers that both sent [C, C]; not finite where there are none."""
    mask = torch.ones_like(reply.params) if reply.mask is None else reply.mask
    sent = mask.double()
    values = torch.where(sent > 0, reply.params.double(), 0)
    squares = values.square() @ sent.T
    return ((squares + squares.T - 2 * values @ values.T).clamp(min=0) / (sent @ sent.T)).sqrt()


def _products(rows: Tensor) -> Tensor:
    """All inner products of rows [C, n] as [C, C], in pieces: one product so long and narrow leaves a GPU idle."""
    many = rows.shape[1] // STRETCH * STRETCH
    parts, rest = rows[:, :many].unflatten(1, (-1, STRETCH)).transpose(0, 1), rows[:, many:]
    return torch.bmm(parts, parts.mT).sum(0) + rest @ rest.T


def _among(memory: State, reply: Reply) -> tuple[Tensor, Tensor]:
    """Distances within the cohort, and which of them are known [C, C each]."""
    if reply.everyone:
        return memory["distance"], memory["compared"]
    at = reply.ids[:, None], reply.ids
    return memory["distance"][at], memory["compared"][at]


def _note(inputs: tuple[Tensor, ...], smoothing: float, setting: Setting) -> tuple[Tensor, ...]:
    """Distances, which are known, and the tally, after `measured` ones [C, C] of models that `keepers` [P] sent.

    The tally's last two are over ordered pairs of arrived clients: weights that both keep, and that the first keeps.
    """
    measured, old, known, arrived, keepers = inputs
    both = arrived[:, None] & arrived & measured.isfinite()
    both = both & ~torch.eye(len(both), dtype=torch.bool, device=both.device)
    measured = torch.where(known, torch.lerp(measured, old, smoothing), measured)
    keepers = keepers.double() * prunable(setting, keepers.device)
    tally = [*keepers.new_zeros(3), (keepers * (keepers - 1)).sum(), keepers.sum() * (arrived.sum() - 1)]
    return torch.where(both, measured, old), known | both, torch.stack(tally)


def _match(inputs: tuple[Tensor, ...], setting: Setting) -> tuple[Tensor, ...]:
    """The source row of each client [C], who gets the mean, who is present then, the tally, and the reports filled."""
    distance, compared, arrived, missing, ids, tally, *report = inputs
    order = ids.argsort()  # argmin takes the first of equals
    known = compared[:, order] & arrived[order]
    nearest = order[torch.where(known, distance[:, order], torch.inf).argmin(1)]
    stands, found = missing & known.any(1), arrived.any()
    alone = missing & ~known.any(1) & found
    source = torch.where(stands, nearest, torch.arange(len(ids), device=ids.device))
    has = setting.fleet.labels[ids] > 0
    same = (stands & (has == has[source]).all(1)).sum().to(tally)
    if has.shape[1] == 1:  # no classes are known, so that nobody can say
        same = torch.full_like(same, torch.nan)
    counts = torch.stack([stands.sum().to(tally), same, alone.sum().to(tally)])
    filled = (_filled(values, arrived, source, alone) for values in report)
    return source, alone, arrived | (missing & found), torch.cat([counts, tally[3:]]), *filled


_noted, _matched = Captured(_note), Captured(_match)


def _filled(values: Tensor, arrived: Tensor, source: Tensor, alone: Tensor) -> Tensor:
    """Rows of the source clients [C, ...], and the mean of the arrived rows for clients that are `alone`."""
    mean = torch.where(column(arrived, values), values, 0).double().sum(0) / arrived.sum().clamp(min=1)
    mean = mean if values.is_floating_point() else mean.round()
    return torch.where(column(alone, values), mean.to(values.dtype), values[source])
