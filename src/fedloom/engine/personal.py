"""The accuracy of every client's own model on its own test examples."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import functional_call

from fedloom.accel.machine import at_once
from fedloom.core.types import Examples, Setting, listed
from fedloom.engine.client import initial_state
from fedloom.engine.clients import Clients
from fedloom.engine.gradient.protocol import Gradient
from fedloom.engine.storage.shards import Shards


def personal_accuracy(clients: Clients, gradient: Gradient, model: Tensor, chunk: int) -> Tensor | None:
    """Accuracy of every client's own model on its own test examples [N]; NaN for a client without any.

    A client without a model of its own is tested with the global `model`; a client that never took part, with the model
    it would have before its first round. At most `chunk` own models are tested at once. None: no client has test
    examples.
    """
    if clients.own_test is None:
        return None
    (data, shards), setting = clients.own_test, clients.setting
    rule, initial = clients.method.local, initial_state(clients.method, setting, model)
    own = rule.personal(setting, model, {name: value[None] for name, value in initial.items()})
    accuracy = _of_global_model(setting, model if own is None else own[0], data, shards)
    if own is None:
        return accuracy
    known = [client for client in clients.states.known().tolist() if shards.sizes[client]]
    for a in range(0, len(known), chunk):
        ids = known[a : a + chunk]
        own = rule.personal(setting, model, clients.states.get(ids, initial))
        assert own is not None
        accuracy[listed(ids, accuracy.device)] = _of_own_models(gradient, own, data, shards, ids)
    return accuracy


def _of_global_model(setting: Setting, model: Tensor, data: Examples, shards: Shards) -> Tensor:
    """The accuracy of one model on every client's examples [N], in one pass."""
    tensors, module = setting.layout.split(model), setting.module.eval()
    with torch.no_grad():
        right = [
            _right(functional_call(module, tensors, (some.x[part],)), some.y[part])
            for some, part in shards.pieces(data, at_once(data.x))
        ]
    hits = torch.cat(right).double() if right else data.x.new_zeros(0, dtype=torch.float64)
    sizes = listed(shards.sizes, hits.device)
    owner = torch.repeat_interleave(torch.arange(len(sizes), device=hits.device), sizes, output_size=len(hits))
    return torch.zeros(len(sizes), dtype=torch.float64, device=hits.device).index_add_(0, owner, hits) / sizes


def _right(output: Tensor, y: Tensor) -> Tensor:
    """Which outputs [..., classes] are right; a model whose outputs are not finite is never right."""
    return (output.argmax(-1) == y) & output.isfinite().all(-1)


def _of_own_models(gradient: Gradient, own: Tensor, data: Examples, shards: Shards, ids: list[int]) -> Tensor:
    """The accuracy of the models `own` [C, P] on their clients' examples, a slice of every client's at a time."""
    own_sizes = [shards.sizes[i] for i in ids]
    sizes, widest = listed(own_sizes, own.device), max(own_sizes)
    data, rows = shards.examples_of(data, listed(ids, own.device), ids)  # [C, widest]
    hits = torch.zeros(len(ids), dtype=torch.float64, device=own.device)
    wide = max(1, at_once(data.x) // len(ids))
    for a in range(0, widest, wide):
        part = rows[:, a : a + wide]
        right = _right(gradient.outputs(own, data.x[part]), data.y[part])
        real = torch.arange(a, a + part.shape[1], device=own.device) < sizes[:, None]
        hits += (right & real).sum(1)
    return hits / sizes
