"""A run's inputs, restricted to some clients at their places in the whole fleet of N."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from fedloom.core.types import Examples, Fleet
from fedloom.engine.clients import ClientExamples
from fedloom.engine.storage.shards import Shards
from fedloom.errors import BadExperiment
from fedloom.runs.inputs import Inputs


def restrict(inputs: Inputs, places: Mapping[int, int], size: int) -> Inputs:
    """Keep some clients only: `places` maps a client's place in a fleet of `size` to its place in the inputs' fleet."""
    at = torch.tensor(sorted(places))
    old = torch.tensor([places[client] for client in sorted(places)])
    fleet = inputs.setting.fleet
    if size != fleet.size:
        examples, labels = (_scattered(counts, old, at, size) for counts in (fleet.examples, fleet.labels))
        fleet = Fleet(examples, labels, by_class=fleet.by_class)
    train, shards = _restrict_split((inputs.train, inputs.shards), places, size)
    return inputs._replace(
        setting=replace(inputs.setting, fleet=fleet),
        train=train,
        shards=shards,
        strata=inputs.strata and _restrict_lists(inputs.strata, places, size),
        held_out=inputs.held_out and _restrict_split(inputs.held_out, places, size),
        own_test=inputs.own_test and _restrict_split(inputs.own_test, places, size),
    )


def _restrict_split(split: ClientExamples, places: Mapping[int, int], size: int) -> ClientExamples:
    """The examples of those clients only."""
    data, shards = split
    if not shards.resident:
        raise BadExperiment("a node's examples do not fit its device; set device to cpu, or host fewer clients there.")
    own = _restrict_lists(shards, places, size)
    rows = own.examples
    every = torch.arange(len(rows), device=rows.device)
    return Examples(data.x[rows], data.y[rows]), Shards.of(every, own.sizes, rows.device)


def _restrict_lists(shards: Shards, places: Mapping[int, int], size: int) -> Shards:
    """The lists of those clients only."""
    lists = shards.examples.split(shards.sizes)
    sizes = [0] * size
    for client, place in places.items():
        sizes[client] = shards.sizes[place]
    kept = torch.cat([shards.examples[:0], *(lists[places[client]] for client in sorted(places))])
    return Shards.of(kept, sizes, kept.device)


def _scattered(values: Tensor, old: Tensor, at: Tensor, size: int) -> Tensor:
    """Rows `old` of `values` at places `at` among `size`; zeros elsewhere."""
    chosen = values[old.to(values.device)]
    return values.new_zeros(size, *values.shape[1:]).index_copy(0, at.to(values.device), chosen)
