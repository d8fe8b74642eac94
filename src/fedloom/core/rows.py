"""Row algebra: cut, join and place rows of tensors [C, ...] and of states, one row per client."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from fedloom.core.types import State


def rows(state: State, at: int | slice | Tensor) -> State:
    """Some rows of every tensor; an int gives one client's state, without the row dimension."""
    return {name: value[at] for name, value in state.items()}


def expanded(state: State, count: int) -> State:
    """One client's state as `count` rows that share its memory."""
    return {name: value.expand(count, *value.shape) for name, value in state.items()}


def cat_rows(parts: Sequence[Tensor], at: Sequence[Tensor] | None = None) -> Tensor:
    """Concatenate tensors [c, ...]; with `at`, row k of `parts[n]` becomes row `at[n][k]` of the result."""
    if at is None:
        return torch.cat(list(parts))
    whole = parts[0].new_empty(sum(map(len, parts)), *parts[0].shape[1:])
    for place, part in zip(at, parts):
        whole[place] = part
    return whole


def cat_states(states: Sequence[State], at: Sequence[Tensor] | None = None) -> State:
    """Concatenate states with equal names like `cat_rows`."""
    return {name: cat_rows([state[name] for state in states], at) for name in states[0]}


def scattered(values: Tensor, at: Tensor, count: int) -> Tensor:
    """Row k of `values` as row `at[k]` of `count` rows; the other rows are zero."""
    whole = values.new_zeros(count, *values.shape[1:])
    whole[at] = values
    return whole


def cat_masks(
    masks: Sequence[Tensor | None], like: Sequence[Tensor], at: Sequence[Tensor] | None = None
) -> Tensor | None:
    """Concatenate masks like `cat_rows`; None, which means everything, becomes ones if others are not None."""
    if all(mask is None for mask in masks):
        return None
    whole = [torch.ones_like(own, dtype=torch.bool) if mask is None else mask for mask, own in zip(masks, like)]
    return cat_rows(whole, at)


def cat_extras(states: Sequence[State]) -> State:
    """Concatenate states with equal names; a row that all share stays one row in memory."""
    found: State = {}
    for name, first in states[0].items():
        parts = [state[name] for state in states]
        shared = first.dim() > 1 and all(v.stride(0) == 0 and v.data_ptr() == first.data_ptr() for v in parts)
        found[name] = first[:1].expand(sum(map(len, parts)), *first.shape[1:]) if shared else torch.cat(parts)
    return found


def some_rows(value: Tensor, keep: slice | Tensor) -> Tensor:
    """Some rows; a row that all share stays one row in memory."""
    if isinstance(keep, Tensor) and value.dim() > 1 and value.stride(0) == 0:
        return value[:1].expand(len(keep), *value.shape[1:])
    return value[keep]
