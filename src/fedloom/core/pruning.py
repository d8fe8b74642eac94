"""Pruning of single weights: scores [C, P] of a cohort's weights, and masks that keep the best share of them.

The definitions are those of Tanaka et al. (arXiv:2006.05467) and the papers they compare with. Only weights of dense
and convolution layers are pruned; biases, norm layers, embeddings and running statistics always stay. Networks are
scored in evaluation mode.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from math import sqrt
from typing import Literal
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from fedloom.accel.capture import Captured
from fedloom.chance import Chance
from fedloom.core.types import Batch, Setting
from fedloom.errors import BadExperiment, unknown

Scope = Literal["global", "layer"]
PRUNERS = ("rand", "mag", "snip", "grasp", "synflow")
SCOPES = ("global", "layer")
PRUNED = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
TEMPERATURE = 200  # GraSP divides the network's outputs by it, where they are logits
STEPS = 100  # of SynFlow

log = logging.getLogger("fedloom")
_TOLD: WeakKeyDictionary[nn.Module, set[str]] = WeakKeyDictionary()  # weights of which a user was warned


def pruned(
    by: str,
    setting: Setting,
    params: Tensor,
    share: Tensor,
    batches: Iterable[Batch],
    ids: Tensor,
    chance: Chance,
    scope: Scope = "global",
) -> Tensor:
    """The weights each client keeps [C, P]: a `share` [C] of its `params` [C, P], by the named pruner.

    A layer whose weights would all go keeps the one with the highest score (by `synflow` the largest), and a warning
    names it.
    `batches` are the clients' examples for `snip` and `grasp`, clients with more batches first; `ids` and `chance` are
    for `rand`. Rows of `params` that share memory (`model.expand(C, -1)`) are scored once by pruners without data.
    """
    if by == "synflow":
        return keep_one(setting, synflow_mask(setting, params, share, scope), mag(params))
    if by == "mag":
        scores = mag(params[:1] if alike(params) else params)
    elif by == "rand":
        scores = rand(params, ids, chance)
    elif by in PRUNERS:
        scores = {"snip": snip, "grasp": grasp}[by](setting, params, batches)
    else:
        raise BadExperiment(unknown("pruner", by, PRUNERS))
    return keep_one(setting, prune(setting, scores, share, scope), scores)


def keep_one(setting: Setting, mask: Tensor, scores: Tensor) -> Tensor:
    """Keep the weight with the highest score of every layer of which a mask [C, P] keeps none, and warn once of each.

    Without it nothing would pass through the network. Scores are [C, P], or one row for everybody.
    """
    told = _TOLD.setdefault(setting.module, set())
    first, rows = not told, torch.arange(len(mask), device=mask.device)
    told.add("")
    for name, span in named_weights(setting).items():
        empty = ~mask[:, span].any(1)
        if mask.device.type == "cpu" and not bool(empty.any()):
            continue
        place = (span.start + scores[:, span].argmax(1)).expand(len(mask))
        mask[rows, place] |= empty
        if name not in told and (first or mask.device.type == "cpu") and bool(empty.any()):  # a GPU is asked once
            told.add(name)
            log.warning(
                "pruning would leave nothing of layer '%s' (%d weights), whose scores are the lowest of the layers "
                "that are ranked together; it keeps one. A smaller sparsity or scope=layer keeps more of it.",
                name.rpartition(".")[0] or name,
                span.stop - span.start,
            )
    return mask


def prune(setting: Setting, scores: Tensor, share: Tensor, scope: Scope = "global") -> Tensor:
    """Remove every score up to the k-th smallest, `k = int((1 - share) * n)`, of all n weights or of each layer's.

    Scores [C, P] or one row for everybody, share [C]; the mask is [C, P].
    """
    if scope not in SCOPES:
        raise BadExperiment(unknown("scope of pruning", scope, SCOPES))
    share = share.to(scores.device)
    if scores.device.type != "cpu":
        return _pruned((scores, share), setting, scope)[0]
    share = as_written(share)
    mask = torch.ones(len(share), scores.shape[1], dtype=torch.bool)
    for group in _groups(setting, scope):
        values = torch.cat([scores[:, span] for span in group], 1)
        removed = _removed(share, values)
        least = values.new_full((len(share), 1), -torch.inf)
        for count in set(removed.tolist()) - {0}:  # far faster than sorting, since shares come in a few tiers
            rows = removed == count
            least[rows] = (values[rows] if len(values) > 1 else values).kthvalue(count, 1, keepdim=True).values
        for span in group:
            mask[:, span] = scores[:, span] > least
    return mask


def _prune(inputs: tuple[Tensor, ...], setting: Setting, scope: Scope) -> tuple[Tensor, ...]:
    """As `prune`, by sorting: reading the counts would wait for the device."""
    scores, share = inputs[0], as_written(inputs[1])
    mask = torch.ones(len(share), scores.shape[1], dtype=torch.bool, device=scores.device)
    for group in _groups(setting, scope):
        values = torch.cat([scores[:, span] for span in group], 1)
        removed = _removed(share, values)[:, None]
        ranked = values.sort(1).values.expand(len(share), -1)
        least = torch.where(removed > 0, ranked.gather(1, (removed - 1).clamp(min=0)), -torch.inf)
        for span in group:
            mask[:, span] = scores[:, span] > least
    return (mask,)


_pruned = Captured(_prune)


def _groups(setting: Setting, scope: Scope) -> list[list[slice]]:
    """The groups of weights that are ranked together."""
    spans = weights_of(setting)
    return [[span] for span in spans] if scope == "layer" else [spans] * bool(spans)


def _removed(share: Tensor, values: Tensor) -> Tensor:
    """The number of values [C, n] that each client prunes [C], rounded down."""
    return ((1 - share) * values.shape[1]).long()


def rand(params: Tensor, ids: Tensor, chance: Chance) -> Tensor:
    """Normal random numbers [C, P], new for each client and round."""
    keys = chance.key("prune", ids[:, None], torch.arange(params.shape[1], device=ids.device))
    place = ((keys >> 11).double() + 0.5) / 2**52  # in (-1, 1), fine enough that ties are rare
    return sqrt(2) * torch.erfinv(place)


def mag(params: Tensor) -> Tensor:
    """`|w|`."""
    return params.abs()


def snip(setting: Setting, params: Tensor, batches: Iterable[Batch]) -> Tensor:
    """`|w * dL/dw|`, with gradients summed over the batches, and scores of each client that add up to 1."""
    slope = vmap(grad(loss_of(setting)))
    total = torch.zeros_like(params, memory_format=torch.contiguous_format)
    for x, y, weight, _ in at_least_one(batches):
        total[: len(y)] += slope(params[: len(y)], x, y, weight)
    scores = torch.where(prunable(setting, params.device), params * total, 0).abs()
    return scores / scores.sum(1, keepdim=True).clamp(min=torch.finfo(scores.dtype).tiny)


def grasp(setting: Setting, params: Tensor, batches: Iterable[Batch]) -> Tensor:
    """`w * (H g)` with softened outputs, g and H summed over the batches, divided by the client's `|sum|`."""
    batches, where = at_least_one(batches), prunable(setting, params.device)
    gradient = grad(loss_of(setting, TEMPERATURE if setting.goal.logits else 1))

    def along(flat: Tensor, direction: Tensor, x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        return torch.dot(gradient(flat, x, y, weight), direction)  # its gradient is H g for constant g

    slope, curve = (torch.zeros_like(params, memory_format=torch.contiguous_format) for _ in range(2))
    for x, y, weight, _ in batches:
        slope[: len(y)] += vmap(gradient)(params[: len(y)], x, y, weight)
    slope = torch.where(where, slope, 0)  # only prunable weights count, in g and in H
    for x, y, weight, _ in batches:
        curve[: len(y)] += vmap(grad(along))(params[: len(y)], slope[: len(y)], x, y, weight)
    scores = torch.where(where, params * curve, 0)
    return scores / (scores.sum(1, keepdim=True).abs() + 1e-10)


def synflow(setting: Setting, params: Tensor) -> Tensor:
    """`|w * dR/dw|`, where R sums the outputs for an input of ones through the absolute values of the model."""
    module, ones = setting.module.eval(), torch.ones_like(setting.example[:1])
    ones = ones.double() if ones.is_floating_point() else ones

    def flow(flat: Tensor) -> Tensor:
        return functional_call(module, tensors_of(setting, flat), (ones,)).sum()  # type: ignore[no-any-return]

    positive = params.double().abs()  # the flow grows with every layer, in deep networks beyond single precision
    slope: Tensor = vmap(grad(flow))(positive)
    return positive * slope.abs()


def synflow_mask(
    setting: Setting, params: Tensor, share: Tensor, scope: Scope = "global", steps: int = STEPS
) -> Tensor:
    """SynFlow pruned step by step to `share^(1/steps)`, `share^(2/steps)`, ...; equal shares are pruned once."""
    share, which = as_written(share.to(params.device)), slice(None)
    if alike(params):
        share, which = share.unique(return_inverse=True)
        params = params[:1].expand(len(share), -1)
    mask = torch.ones(params.shape, dtype=torch.bool, device=params.device)
    for step in range(1, steps + 1):
        mask = prune(setting, synflow(setting, params * mask), share ** (step / steps), scope)
    return mask[which]


def weights_of(setting: Setting) -> list[slice]:
    """The slices of the vector that hold weights of dense and convolution layers."""
    return list(named_weights(setting).values())


def named_weights(setting: Setting) -> dict[str, slice]:
    """The weights of dense and convolution layers, and their slices of the vector."""
    names = {f"{name}.weight".lstrip(".") for name, m in setting.module.named_modules() if isinstance(m, PRUNED)}
    spans, start = {}, 0
    for name, size in zip(setting.layout.names, setting.layout.sizes):
        if name in names:
            spans[name] = slice(start, start + size)
        start += size
    return spans


def prunable(setting: Setting, device: torch.device) -> Tensor:
    """Which numbers may be pruned [P]."""
    where = torch.zeros(setting.layout.total, dtype=torch.bool, device=device)
    for span in weights_of(setting):
        where[span] = True
    return where


def loss_of(setting: Setting, temperature: float = 1) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """The loss of one client as a function of its vector [P] and a batch."""
    module = setting.module.eval()

    def loss(flat: Tensor, x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        output = functional_call(module, tensors_of(setting, flat), (x,))
        return (setting.goal.loss(output / temperature, y) * weight).sum()

    return loss


def tensors_of(setting: Setting, flat: Tensor) -> dict[str, Tensor]:
    """Split the vector [P] by name; running statistics are detached, since they have no gradient."""
    trained = setting.layout.parameters
    return {name: t if name in trained else t.detach() for name, t in setting.layout.split(flat).items()}


def at_least_one(batches: Iterable[Batch]) -> list[Batch]:
    """The batches as a list; `BadExperiment` if there are none."""
    found = list(batches)
    if not found:
        raise BadExperiment("batches is empty; snip and grasp score weights on at least 1 batch of each client's data.")
    return found


def as_written(share: Tensor) -> Tensor:
    """The share in double precision; one in single precision is rounded to seven decimals."""
    return share if share.dtype == torch.float64 else (share.double() * 1e7).round() / 1e7


def alike(params: Tensor) -> bool:
    """Whether all rows share their memory."""
    return params.stride(0) == 0
