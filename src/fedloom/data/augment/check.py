"""A trial of a transform before a run: on the first examples of real data, with clear refusals."""

from __future__ import annotations

from typing import NoReturn

import torch
from torch import Tensor

from fedloom.chance import absorb
from fedloom.core.goal import Goal, Transform
from fedloom.data.augment.mixing import name_of
from fedloom.data.augment.several import mixes, shares
from fedloom.errors import BadExperiment, FedloomError

_EXAMPLES = 32


def check_transform(transform: Transform, x: Tensor, y: Tensor, goal: Goal) -> None:
    """Try the transform on the first examples, and refuse one that a run cannot use.

    Args:
        transform: what is tried.
        x: examples [n, ...] as networks get them; the first 32 are used.
        y: their targets.
        goal: what the run trains for.
    """
    x, y = x[:_EXAMPLES], y[:_EXAMPLES]
    keys = absorb(torch.arange(len(x), device=x.device), len(x))
    name = name_of(transform)
    if shares(transform) and goal.name != "classes":
        raise BadExperiment(f"transform {name} mixes targets; expected goal 'classes', got '{goal.name}'.")
    if shares(transform) and goal.weigh is not None:
        raise BadExperiment(f"transform {name} mixes targets, which then have no class weights: leave the weights out.")
    before = torch.get_rng_state()
    new_x, new_y = _applied(transform, x, y, keys)
    _check_shapes(transform, (x, y), (new_x, new_y))
    again = _applied(transform, x, y, keys)
    drew = not torch.equal(before, torch.get_rng_state())
    if drew or not (_same(new_x, again[0]) and _same(new_y, again[1])):
        raise BadExperiment(f"transform {name} draws random numbers of its own: wrap it in fedloom.Seeded.")
    if shares(transform):
        goal.loss(torch.zeros_like(new_y), new_y)  # a focal loss refuses shares
    # every second example, in reverse order; a batch of one if examples are mixed
    some = torch.arange(1 if mixes(transform) else len(x), device=x.device).flip(0)[::2]
    part = _applied(transform, x[some], y[some], keys[some])
    _check_shapes(transform, (x[some], y[some]), part)
    if not mixes(transform) and not (_close(part[0], new_x[some]) and _close(part[1], new_y[some])):
        raise BadExperiment(f"transform {name} looks at other examples of the batch: set its attribute mixes = True.")


def _applied(transform: Transform, x: Tensor, y: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
    """The transform's result; its exceptions name it."""
    try:
        new_x, new_y = transform(x.clone(), y.clone(), keys.clone())
        if not (isinstance(new_x, Tensor) and isinstance(new_y, Tensor)):
            raise TypeError(f"it returned {type(new_x).__name__} and {type(new_y).__name__}")
    except FedloomError:
        raise
    except Exception as problem:
        raise BadExperiment(
            f"transform {name_of(transform)} failed on {_look(x)} and targets {_look(y)}; expected "
            f"(x, y, keys) -> (x, y), all of them tensors: {type(problem).__name__}: {problem}"
        ) from problem
    return new_x, new_y


def _check_shapes(transform: Transform, old: tuple[Tensor, Tensor], new: tuple[Tensor, Tensor]) -> None:
    """Refuse changed shapes and types of examples and targets, but for targets that become shares."""

    def refuse(what: str, before: str, after: Tensor) -> NoReturn:
        raise BadExperiment(f"transform {name_of(transform)} changes {what} from {before} to {_look(after)}.")

    if _look(new[0]) != _look(old[0]):
        refuse("examples", _look(old[0]), new[0])
    if not shares(transform):
        if _look(new[1]) != _look(old[1]):
            refuse("targets", _look(old[1]), new[1])
    elif new[1].dim() != 2 or len(new[1]) != len(old[1]) or not new[1].is_floating_point():
        refuse("targets", f"{_look(old[1])}, expected shares [{len(old[1])}, classes],", new[1])


def _look(x: Tensor) -> str:
    """Shape and type in words."""
    return f"{tuple(x.shape)} {str(x.dtype).removeprefix('torch.')}"


def _same(one: Tensor, other: Tensor) -> bool:
    """Whether both are equal in every number."""
    return one.shape == other.shape and torch.allclose(one, other, rtol=0, atol=0, equal_nan=True)


def _close(one: Tensor, other: Tensor) -> bool:
    """Whether both are equal up to rounding, which may depend on the size of a batch."""
    return torch.allclose(one, other, rtol=1e-3, atol=1e-5, equal_nan=True)
