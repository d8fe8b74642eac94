"""Checks before a run that a network can be trained on the data: its tensors, and one batch forward and backward."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from fedloom.core.goal import Goal
from fedloom.core.stages import stages_of
from fedloom.errors import BadModel
from fedloom.layout import Layout, copied, tensors_of

FIRST = 32  # examples in the batch
AT_PLACES = {1: "char-conv, char-gru, and lstm, gru or transformer with places=true", 2: "fcn, unet"}
NORMS = (nn.modules.batchnorm._NormBase,)  # batch and instance norms of every kind


def own_copy(module: nn.Module, device: torch.device) -> nn.Module:
    """Check a user's network and copy all that can change of it, so that the user's own does not."""
    check_numbers(module)
    check_layers(module)
    try:
        return copied(module).to(device)
    except Exception as problem:
        raise BadModel(f"{type(module).__name__} cannot be copied to {device}: {problem}") from problem


def check_numbers(module: nn.Module) -> None:
    """Refuse tensors that are lazy, meta or sparse, and parameters that hold NaN or infinity."""
    for kind, tensors in (("parameter", module.named_parameters()), ("buffer", module.named_buffers())):
        for name, value in tensors:
            if is_lazy(value) or value.is_meta:
                raise BadModel(f"{kind} '{name}' has no numbers yet (lazy or meta); run one batch through it before.")
            if value.layout != torch.strided:
                raise BadModel(f"{kind} '{name}' is {value.layout}; expected a dense tensor.")
            if kind == "parameter" and (found := _not_finite(value)) is not None:
                raise BadModel(f"parameter '{name}' holds {found} before any training; expected finite numbers.")


def check_layers(module: nn.Module) -> None:
    """Refuse compiled modules whose tensors cannot be replaced, and norms that count the batches they ever saw."""
    for name, part in module.named_modules():
        if isinstance(part, torch.jit.ScriptModule):
            raise BadModel(
                f"{f'layer {name!r}' if name else 'the network'} is made by torch.jit, and every client needs tensors "
                "of its own in it, which torch.jit does not allow; pass the nn.Module that it was made from."
            )
        if isinstance(part, NORMS) and part.track_running_stats and part.momentum is None:
            raise BadModel(
                f"layer '{name}' ({type(part).__name__}) has momentum=None: its statistics are means over all batches "
                "that it ever saw, which no client knows of; set a momentum, such as 0.1."
            )


def check_buffers(module: nn.Module, layout: Layout) -> None:
    """Refuse NaN or infinity in buffers that are part of the vector; constants may hold them, as masks do."""
    for name, value in module.named_buffers():
        if name in layout.names and (found := _not_finite(value)) is not None:
            raise BadModel(
                f"buffer '{name}' holds {found} before any training; expected finite numbers, since it is averaged "
                "like a weight; if training does not change it, make such a constant in forward()."
            )


def _not_finite(value: Tensor) -> float | None:
    """The first NaN or infinity in a tensor."""
    if not value.is_floating_point() or bool(value.isfinite().all()):
        return None
    return float(value.detach()[~value.isfinite()].flatten()[0])


def moving_buffers(module: nn.Module, x: Tensor) -> frozenset[str]:
    """The float buffers that training moves: those of batch and instance norms, and others that one pass changes.

    A network that fails on the batch keeps all of them; `check_network` says what is wrong with it.
    """
    buffers = {name: value for name, value in module.named_buffers() if value.is_floating_point()}
    norms = {
        f"{layer}.{name}".lstrip(".")
        for layer, part in module.named_modules()
        if isinstance(part, NORMS)
        for name, _ in part.named_buffers(recurse=False)
    }
    if buffers.keys() <= norms:
        return frozenset(buffers)
    copy, x = copied(module).train(), x[:FIRST]
    try:
        with torch.no_grad():
            copy(x if len(x) > 1 else torch.cat([x, x]))  # norms need two examples
    except Exception:  # noqa: BLE001  a user's code may raise anything
        return frozenset(buffers)
    after = tensors_of(copy)
    return frozenset(name for name, value in buffers.items() if name in norms or _differ(value, after[name]))


def _differ(before: Tensor, after: Tensor) -> bool:
    """Whether a tensor has other numbers; NaN equals NaN."""
    return before.shape != after.shape or not bool(((before == after) | (before.isnan() & after.isnan())).all())


def check_network(module: nn.Module, goal: Goal, x: Tensor, y: Tensor, outputs: int) -> None:
    """Run one batch forward and backward; expect finite answers, losses and gradients, and one loss per example."""
    name, x, y = type(module).__name__, x[:FIRST], y[:FIRST]
    with torch.no_grad():
        check_answer(name, _answer(name, module.eval(), x, goal, outputs), y, goal, outputs)
    copy = copied(module).train(len(x) > 1)  # training moves running statistics; norms need two examples
    output = _answer(f"{name} in training", copy, x, goal, outputs)
    if stages_of(module):
        output = output.mean(1)  # of all exits, so that each has a gradient
    check_answer(f"{name} in training", output, y, goal, outputs)
    trained = {key: value for key, value in copy.named_parameters() if value.requires_grad}
    if output.grad_fn is None:
        raise BadModel(
            f"{name}'s answer does not depend on what is trained; was it detached from '{next(iter(trained))}'?"
        )
    mean = _losses(goal, output, y).mean()
    if not bool(mean.isfinite()):
        raise BadModel(
            f"{name} has a loss of {float(mean.detach())} on the first {len(x)} examples, before any training."
        )
    try:
        gradients = torch.autograd.grad(mean, list(trained.values()), allow_unused=True)
    except RuntimeError as problem:
        hint = "pass use_reentrant=False. " if "use_reentrant" in str(problem) else ""
        raise BadModel(f"{name} cannot be differentiated: {hint}{problem}") from problem
    for key, gradient in zip(trained, gradients):
        if gradient is not None and not bool(gradient.isfinite().all()):
            raise BadModel(
                f"parameter '{key}' of {name} has a gradient with NaN or infinity on the first {len(x)} examples."
            )


def _losses(goal: Goal, output: Tensor, y: Tensor) -> Tensor:
    """The goal's loss of each example [B], refused if it is anything else."""
    what = f"the loss of goal '{goal.name}'"
    try:
        losses = goal.loss(output, y)
    except Exception as problem:
        shapes = f"answers {list(output.shape)} and targets {list(y.shape)} ({y.dtype})"
        raise BadModel(f"{what} does not take {shapes}: {problem}") from problem
    if not isinstance(losses, Tensor) or losses.shape != (len(y),):
        got = list(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
        hint = " A mean over the batch becomes that with reduction='none' (and .mean(1) over what is left)."
        raise BadModel(f"{what} gave {got} for {len(y)} examples; expected one number each, [{len(y)}].{hint}")
    return losses


def _answer(name: str, module: nn.Module, x: Tensor, goal: Goal, outputs: int) -> Tensor:
    """The network's output; an exception in it becomes a `BadModel`."""
    try:
        output = module(x)
    except Exception as problem:
        raise BadModel(f"{name} does not take inputs of shape {list(x.shape[1:])}: {problem}") from problem
    if not isinstance(output, Tensor):
        wanted = f"a tensor of scores for {outputs} classes" if goal.answer == "scores" else "a tensor"
        raise BadModel(
            f"{name} answers with a {type(output).__name__}; expected {wanted}. Return that alone, or wrap the network "
            "in a module that does."
        )
    return output


def check_answer(name: str, output: Tensor, y: Tensor, goal: Goal, outputs: int) -> None:
    """Refuse an output that is not a finite answer for each example, of the width that the goal needs."""
    if output.dim() == 0 or len(output) != len(y):
        rows = len(output) if output.dim() else "a single number and no"
        raise BadModel(f"{name} answers {len(y)} examples with {rows} rows; expected one each.")
    _check_width(name, output, y, goal, outputs)
    if not output.is_floating_point():
        raise BadModel(f"{name} answers with {output.dtype}; expected float scores.")
    if not bool(output.isfinite().all()):
        raise BadModel(f"{name} answers with NaN or infinity on the first examples, before any training.")


def _check_width(name: str, output: Tensor, y: Tensor, goal: Goal, outputs: int) -> None:
    """Refuse answers of another shape than the goal's: scores for every class, or as many numbers as a target has."""
    got = list(output.shape[1:])
    if goal.answer == "numbers" and output.reshape(len(output), -1).shape[1] != outputs:
        raise BadModel(f"{name} answers with {got} numbers per example; goal '{goal.name}' needs {outputs}.")
    if goal.answer != "scores":
        return
    shape, places = list(output.shape), list(y.shape[1:])
    width = shape.pop(goal.axis) if output.dim() == y.dim() + 1 else 0
    if width < outputs or shape[1:] != places:
        if not places:
            what = f"the data have {outputs} classes (labels are counted from 0 up to the largest)."
        else:
            wanted = [*places]
            wanted.insert(goal.axis - 1 if goal.axis > 0 else len(wanted), outputs)
            what = f"goal '{goal.name}' needs a score for each of {outputs} classes at every place, {wanted}"
            what += f"; networks by name that answer so: {AT_PLACES[len(places)]}." if len(places) in AT_PLACES else "."
        raise BadModel(f"{name} answers with {got} numbers per example; {what}")
