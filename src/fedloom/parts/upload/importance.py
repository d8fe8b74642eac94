"""Upload: the most important rows of every layer after training, up to the client's share."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import Literal

import torch
from torch import Tensor

from fedloom.accel.capture import Captured
from fedloom.accel.machine import own_kernels
from fedloom.chance import Chance
from fedloom.core.part import Upload
from fedloom.core.types import Setting, State, Task, largest
from fedloom.errors import BadExperiment, unknown
from fedloom.neurons.axes import Axes
from fedloom.neurons.leading import LeadingNeurons
from fedloom.neurons.map import POWERS, NeuronMap

KINDS = ("importance", "random", "largest", "most-changed", "ordered")
MODES = ("elementwise", "aggregate")


@dataclass(frozen=True)
class Importance(Upload):
    """The best `share` of every layer's rows (at least one), by the norm of what leads into each neuron.

    The norm is of the `importance` `|dW| * |W + dW| / (|W| + eps)`, where `eps` is `floor` times the layer's largest
    weight, number by number or as an `aggregate` of norms; of the `largest` weights after training; or of the
    `most-changed`. Or rows are chosen at `random`, or the leading rows are (`ordered`). Importance is divided by the
    fraction of clients that own the row. The output layer is chosen from like the others, or always sent whole
    (`outputs` False). Of equal rows the first wins.
    """

    by: str = "importance"
    norm: Literal["l2", "l1"] = "l2"
    mode: Literal["elementwise", "aggregate"] = "elementwise"
    outputs: bool = True
    floor: float = 0.01
    models: LeadingNeurons | None = None  # None: everyone has the whole network

    def __post_init__(self) -> None:
        for what, word, words in (
            ("choice of rows", self.by, KINDS),
            ("norm", self.norm, POWERS),
            ("mode of importance", self.mode, MODES),
        ):
            if word not in words:
                raise BadExperiment(unknown(what, word, words))
        if not self.floor > 0:
            raise BadExperiment(f"floor (part of a layer's largest weight) is {self.floor}; it must be above 0.")

    @property
    def of_neurons(self) -> bool:
        """It does."""
        return True

    @property
    def rows(self) -> bool:
        """Masks are whole rows, unless they are cut to what a client owns."""
        return self.models is None

    @property
    def sends_all_outputs(self) -> bool:
        """The output layer is not chosen from."""
        return not self.outputs

    @property
    def networks(self) -> tuple[LeadingNeurons | None, ...]:
        """Rows are chosen from what each client owns."""
        return (self.models,)

    def __call__(
        self, setting: Setting, task: Task, state: State, first: Tensor, last: Tensor, chance: Chance
    ) -> Tensor | None:
        """Rank the rows that each client owns, and keep its share of them."""
        if task.keep is None and task.share.device.type == "cpu" and bool((task.share >= 1).all()):
            return None
        scores = self.scores(setting, task, first, last, chance)
        if task.keep is not None:
            return self._choose(setting, task, scores)
        return _chosen((task.share, scores), self, setting)[0]

    def _choose(self, setting: Setting, task: Task, scores: Tensor) -> Tensor:
        """The mask [C, P] from the scores of rows [C, K + O]."""
        neurons = setting.neurons
        owned = torch.ones(len(scores), neurons.full_size, dtype=torch.bool, device=scores.device)
        if task.keep is not None:
            owned[:, : neurons.size] = task.keep
        rows = self.chosen_rows(setting, scores, task.share, owned)
        mask = neurons.expand(rows, rows=True)
        return mask if task.keep is None or task.mask is None else mask & task.mask

    def chosen_rows(self, setting: Setting, scores: Tensor, share: Tensor, owned: Tensor) -> Tensor:
        """The rows that go back [C, K + O]."""
        rows = best_rows(setting.neurons, scores, share, owned)
        if not self.outputs:
            rows[:, setting.neurons.size :] = True
        return rows

    def scores(self, setting: Setting, task: Task, first: Tensor, last: Tensor, chance: Chance) -> Tensor:
        """The score of every row for each client [C, K + O]."""
        if self.by == "random":
            assert task.ids is not None
            every = torch.arange(setting.neurons.full_size, device=last.device)
            return chance.uniform("upload", task.ids[:, None], every)
        return self.weight_scores(setting, first, last)

    def weight_scores(self, setting: Setting, first: Tensor, last: Tensor) -> Tensor:
        """The score of every row for each client [C, K + O], for all choices but `random`."""
        neurons = setting.neurons
        if self.by == "ordered":
            return -torch.arange(neurons.full_size, device=last.device).expand(len(last), -1)
        if self.by in ("largest", "most-changed"):
            return neurons.score(last if self.by == "largest" else last - first, self.norm, output=True)
        if self.mode == "elementwise":
            scores = row_importance(neurons, first, last, self.floor, self.norm)
        else:
            changed, after, before = (neurons.score(v, self.norm, output=True) for v in (last - first, last, first))
            scores = changed * after / before.clamp(min=torch.finfo(before.dtype).tiny)
        if self.models is not None:
            coverage = self.models.coverage(neurons, setting.fleet.size, last.device).to(scores.dtype)
            scores[:, : neurons.size] /= coverage.clamp(min=1 / setting.fleet.size)
        return scores


def row_importance(neurons: NeuronMap, first: Tensor, last: Tensor, floor: float, norm: Literal["l2", "l1"]) -> Tensor:
    """The norm [C, K + O] of the importances of what leads into each neuron."""
    weights = [tensor for tensor in neurons.tensors if tensor.weight and tensor.output is not None]
    if not own_kernels(last.device.type) or last.dtype != torch.float32 or any(t.output for t in weights):
        return neurons.score(elementwise(neurons, first, last, floor), norm, output=True)
    from fedloom.parts.upload.importance_kernel import row_sums

    return row_sums(neurons, first, last, floor, POWERS[norm]) ** (1 / POWERS[norm])


def elementwise(neurons: NeuronMap, first: Tensor, last: Tensor, floor: float) -> Tensor:
    """The importance of every number that leads into a neuron [C, P], signed, which no norm sees; 0 elsewhere."""
    found = torch.zeros_like(last)
    for tensors in layers(neurons):
        sizes = [largest(values[:, t.start : t.stop]) for values in (first, last) for t in tensors]
        before, after = torch.stack(sizes).unflatten(0, (2, -1)).amax(1)[:, :, None]  # [C, 1] each
        eps = eps_of(before, after, floor)
        for tensor in tensors:
            was, now, here = (values[:, tensor.start : tensor.stop] for values in (first, last, found))
            torch.sub(now, was, out=here).mul_(now).div_(was.abs().add_(eps))
    return found


def layers(neurons: NeuronMap) -> list[list[Axes]]:
    """The tensors that lead into neurons; those of a layer share their `eps`."""
    weights = [tensor for tensor in neurons.tensors if tensor.weight]
    return [list(group) for _, group in groupby(weights, key=lambda tensor: tensor.name.rpartition(".")[0])]


def eps_of(before: Tensor, after: Tensor, floor: float) -> Tensor:
    """`eps` from the largest weight of a layer before training, or after it for a layer that was all zeros."""
    return floor * torch.where(before > 0, before, after).clamp(min=torch.finfo(after.dtype).tiny / floor)


def best_rows(neurons: NeuronMap, scores: Tensor, share: Tensor, owned: Tensor) -> Tensor:
    """The `share` [C] of the owned rows of every group with the highest scores, rounded half up [C, K + O]."""
    parts = [owned[:, :0]]  # a network of which nothing is known has no rows
    for _, span in neurons.spans(neurons.full_size):
        mine = owned[:, span]
        count = (share.double() * mine.sum(1) + 0.5 + 1e-6).floor().clamp(min=1)
        rank = scores[:, span].double().masked_fill(~mine, -torch.inf).argsort(dim=1, descending=True, stable=True)
        parts.append((rank.argsort(1) < count[:, None]) & mine)
    return torch.cat(parts, 1)


def _choose(inputs: tuple[Tensor, ...], upload: Importance, setting: Setting) -> tuple[Tensor, ...]:
    """The mask of clients that own the whole network."""
    share, scores = inputs
    owned = torch.ones(len(scores), setting.neurons.full_size, dtype=torch.bool, device=scores.device)
    rows = upload.chosen_rows(setting, scores, share, owned)
    return (setting.neurons.expand(rows, rows=True),)


_chosen = Captured(_choose)
