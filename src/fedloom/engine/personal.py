"""The score of every client's own model on its own test examples."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import functional_call

from fedloom.accel.machine import at_once
from fedloom.core.metric import Mean, Sums
from fedloom.core.types import Examples, Setting, listed
from fedloom.engine.client import initial_state
from fedloom.engine.clients import Clients
from fedloom.engine.gradient.protocol import Gradient
from fedloom.engine.storage.shards import Shards
from fedloom.engine.tuned import Tuner


def personal_score(clients: Clients, gradient: Gradient, model: Tensor, chunk: int) -> Tensor | None:
    """The goal's personal metric of every client's own model on its own test examples [N]; NaN for one without any.

    A client without a model of its own is tested with the global `model`; a client that never took part, with the model
    it would have before its first round. If the rule tunes, all of them are trained further first. At most `chunk` own
    models are tested at once. None: no client has test examples.
    """
    if clients.own_test is None:
        return None
    (data, shards), setting = clients.own_test, clients.setting
    metric = setting.goal.personal
    rule, initial = clients.method.local, initial_state(clients.method, setting, model)
    own = rule.personal(setting, model, {name: value[None] for name, value in initial.items()})
    unmet = model if own is None else own[0]
    totals = _of_global_model(setting, metric, unmet, data, shards)
    met = set() if own is None else set(clients.states.known().tolist())
    tuner = None if rule.tunes is None else Tuner(clients, gradient, rule.tunes)
    tested = [client for client, size in enumerate(shards.sizes) if size]
    known = [client for client in tested if client in met]
    others = [] if tuner is None else [client for client in tested if client not in met]
    for some in (known, others):
        for a in range(0, len(some), chunk):
            ids = some[a : a + chunk]
            own = rule.personal(setting, model, clients.states.get(ids, initial)) if some is known else None
            own = unmet.repeat(len(ids), 1) if own is None else own
            own = own if tuner is None else tuner(own, ids)
            totals[listed(ids, totals.device)] = _of_own_models(metric, gradient, own, data, shards, ids)
    return torch.where(listed(shards.sizes, totals.device) > 0, metric.finish(totals), torch.nan)


def _of_global_model(setting: Setting, metric: Sums | Mean, model: Tensor, data: Examples, shards: Shards) -> Tensor:
    """The metric's totals of one model on every client's examples [N, k], in one pass."""
    tensors, module = setting.layout.split(model), setting.module.eval()
    with torch.no_grad():
        terms = [
            metric.terms(functional_call(module, tensors, (some.x[part],)), some.y[part]).double()
            for some, part in shards.pieces(data, at_once(data.x))
        ]
    whole = torch.cat(terms)
    sizes = listed(shards.sizes, whole.device)
    owner = torch.repeat_interleave(torch.arange(len(sizes), device=whole.device), sizes, output_size=len(whole))
    return whole.new_zeros(len(sizes), whole.shape[1]).index_add_(0, owner, whole)


def _of_own_models(
    metric: Sums | Mean, gradient: Gradient, own: Tensor, data: Examples, shards: Shards, ids: list[int]
) -> Tensor:
    """The totals of the models `own` [C, P] on their clients' examples [C, k], a slice of every client's at a time."""
    own_sizes = [shards.sizes[i] for i in ids]
    sizes, widest = listed(own_sizes, own.device), max(own_sizes)
    data, rows = shards.examples_of(data, listed(ids, own.device), ids)  # [C, widest]
    totals = []
    wide = max(1, at_once(data.x) // len(ids))
    for a in range(0, widest, wide):
        part = rows[:, a : a + wide]
        output, y = gradient.outputs(own, data.x[part]), data.y[part]
        terms = metric.terms(output.flatten(0, 1), y.flatten(0, 1)).double().unflatten(0, part.shape)  # [C, B, k]
        real = torch.arange(a, a + part.shape[1], device=own.device) < sizes[:, None]
        totals.append(torch.where(real[:, :, None], terms, 0).sum(1))
    return torch.stack(totals).sum(0)
