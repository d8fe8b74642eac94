"""Checks before a run that a network can be trained on the data: its tensors, and one batch forward and backward."""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from fedloom.core.goal import Loss
from fedloom.errors import BadModel

FIRST = 32  # examples in the batch


def own_copy(module: nn.Module, device: torch.device) -> nn.Module:
    """Check a user's network and copy it, so that the user's own does not change."""
    check_numbers(module)
    try:
        return deepcopy(module).to(device)
    except Exception as problem:
        raise BadModel(f"{type(module).__name__} cannot be copied to {device}: {problem}") from problem


def check_numbers(module: nn.Module) -> None:
    """Refuse tensors that are lazy, meta or sparse, or hold NaN or infinity."""
    for kind, tensors in (("parameter", module.named_parameters()), ("buffer", module.named_buffers())):
        for name, value in tensors:
            if is_lazy(value) or value.is_meta:
                raise BadModel(f"{kind} '{name}' has no numbers yet (lazy or meta); run one batch through it before.")
            if value.layout != torch.strided:
                raise BadModel(f"{kind} '{name}' is {value.layout}; expected a dense tensor.")
            if value.is_floating_point() and not bool(value.isfinite().all()):
                found = float(value.detach()[~value.isfinite()].flatten()[0])
                hint = "" if kind == "parameter" else "; float buffers are averaged: make such a constant in forward()"
                raise BadModel(f"{kind} '{name}' holds {found} before any training; expected finite numbers{hint}.")


def check_network(module: nn.Module, loss: Loss, x: Tensor, y: Tensor, classes: int) -> None:
    """Run one batch forward and backward; expect finite scores for every class, and a gradient for some parameter."""
    name, x, y = type(module).__name__, x[:FIRST], y[:FIRST]
    with torch.no_grad():
        check_answer(name, _answer(name, module.eval(), x, classes), len(x), classes)
    copy = deepcopy(module).train(
        len(x) > 1
    )  # a copy, since training moves running statistics; norms need two examples
    output = _answer(f"{name} in training", copy, x, classes)
    check_answer(f"{name} in training", output, len(x), classes)
    trained = {key: value for key, value in copy.named_parameters() if value.requires_grad}
    if output.grad_fn is None:
        raise BadModel(
            f"{name}'s answer does not depend on what is trained; was it detached from '{next(iter(trained))}'?"
        )
    mean = loss(output, y).mean()
    if not bool(mean.isfinite()):
        raise BadModel(
            f"{name} has a loss of {float(mean.detach())} on the first {len(x)} examples, before any training."
        )
    gradients = torch.autograd.grad(mean, list(trained.values()), allow_unused=True)
    for key, gradient in zip(trained, gradients):
        if gradient is not None and not bool(gradient.isfinite().all()):
            raise BadModel(
                f"parameter '{key}' of {name} has a gradient with NaN or infinity on the first {len(x)} examples."
            )


def _answer(name: str, module: nn.Module, x: Tensor, classes: int) -> Tensor:
    """The network's output; an exception in it becomes a `BadModel`."""
    try:
        output = module(x)
    except Exception as problem:
        raise BadModel(f"{name} does not take inputs of shape {list(x.shape[1:])}: {problem}") from problem
    if not isinstance(output, Tensor):
        raise BadModel(
            f"{name} answers with a {type(output).__name__}; expected a tensor of scores for {classes} classes."
        )
    return output


def check_answer(name: str, output: Tensor, count: int, classes: int) -> None:
    """Refuse an output that is not a row of finite scores for each example."""
    if output.dim() != 2 or output.shape[1] < classes:
        got = list(output.shape[1:])
        raise BadModel(
            f"{name} answers with {got} numbers per example; the data have {classes} classes (labels "
            "are counted from 0 up to the largest)."
        )
    if len(output) != count:
        raise BadModel(f"{name} answers {count} examples with {len(output)} rows; expected one each.")
    if not output.is_floating_point():
        raise BadModel(f"{name} answers with {output.dtype}; expected float scores.")
    if not bool(output.isfinite().all()):
        raise BadModel(f"{name} answers with NaN or infinity on the first examples, before any training.")
