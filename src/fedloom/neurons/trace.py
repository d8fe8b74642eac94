"""Derive a model's neurons: its own code runs on an example, is listened to, and what was found is tried."""

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor, nn

from fedloom.errors import BadModel
from fedloom.layout import Layout, base_of, copied, layout_of
from fedloom.neurons.assemble import assemble
from fedloom.neurons.calls import tensors_in
from fedloom.neurons.ids import plain
from fedloom.neurons.inputs import lively, other_inputs
from fedloom.neurons.listen import Listener, Unheard, listen
from fedloom.neurons.map import NeuronMap
from fedloom.neurons.note import note_of
from fedloom.neurons.tried import Disagreement, tried
from fedloom.neurons.wiring import Wiring

ALL = "All its layers are kept whole."


def neuron_map(
    model: nn.Module, example: Tensor | tuple[Any, ...], layout: Layout | None = None, width: bool = False
) -> NeuronMap:
    """Derive the neurons of a model from its code and one example input.

    Neurons with frozen numbers are never cut, nor are those that functions and layers without a rule read: the map's
    `note` names these.

    Args:
        model: any module; it is left as it is.
        example: a batch of inputs (several inputs as a tuple).
        layout: the layout of the flat vector, if it is not `layout_of(model)`.
        width: also cut residual streams that norms over neurons read, which masking and slicing treat differently.
    """
    layout = layout_of(model) if layout is None else layout
    inputs = example if isinstance(example, tuple) else (example,)
    twin = copied(model).eval()  # it runs, and its statistics must not change
    base, kind = base_of(model, layout), type(model).__name__

    def hear(some: tuple[Any, ...]) -> tuple[Listener, list[Tensor], NeuronMap]:
        listener, outputs = listen(twin, some, Wiring())
        if not outputs or any(ids.dim() < 2 or not len(ids) for ids in outputs):
            shapes = [tuple(ids.shape) for ids in outputs]
            raise BadModel(f"the model must give tensors [batch, classes, ...] for the example; got shapes {shapes}.")
        return listener, outputs, assemble(layout, listener.wiring, outputs, base, width)

    try:
        listener, outputs, found = hear(inputs)
        wiring = listener.wiring
    except Unheard as error:
        return unheard(twin, inputs, layout, base, f"{kind}: its code cannot be listened to: {error}. {ALL}")
    if (way := another_way(inputs, listener, found, lambda some: hear(some)[::2])) is not None:
        note = f"{kind}: its code looks at numbers {way} and may take another way for other inputs. {ALL}"
        return replace(assemble(layout, wiring, outputs, base, width, frozenset(found.groups)), note=note)
    why = dict(wiring.whole)
    wrong, problem = misunderstood(found, twin, lively(inputs))
    if wrong:
        found = assemble(layout, wiring, outputs, base, width, frozenset(wrong))
        why |= dict.fromkeys(wrong, "with half of its neurons cut it is not what it is with the half masked")
        _, problem = misunderstood(found, twin, lively(inputs))
    if problem is not None:
        note = f"{kind}: in a trial {str(problem).rstrip('.')}. {ALL}"
        return replace(assemble(layout, wiring, outputs, base, width, frozenset(found.groups)), note=note)
    return replace(found, note=note_of(why, [*wiring.lost, *wrong], found))


def misunderstood(found: NeuronMap, twin: nn.Module, inputs: tuple[Any, ...]) -> tuple[list[str], BadModel | None]:
    """The groups that cannot be cut after all, each tried by itself, and what a trial of all of them says."""
    found = found.to(next(twin.parameters()).device)
    try:
        tried(found, twin, inputs)
    except Disagreement as problem:
        wrong = []
        for group in found.groups:
            try:
                tried(found, twin, inputs, group)
            except Disagreement:
                wrong.append(group)
        return wrong, problem
    except BadModel:  # the model itself fails on other inputs than the example
        return [], None
    return [], None


def unheard(
    twin: nn.Module, inputs: tuple[Any, ...], layout: Layout, base: Mapping[str, Tensor], note: str
) -> NeuronMap:
    """The map of a model of which nothing is known but that it runs, and what that costs."""
    from torch.utils.flop_counter import FlopCounterMode  # imported here, since it loads triton

    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        results = [plain(x.shape) for x in tensors_in(twin(*inputs))]
    found = assemble(layout, Wiring(), results, base)
    return replace(found, note=note, base_flops=counter.get_total_flops() // len(results[0]))


def another_way(
    inputs: tuple[Any, ...],
    listener: Listener,
    found: NeuronMap,
    hear: Callable[[tuple[Any, ...]], tuple[Listener, NeuronMap]],
) -> str | None:
    """Where the code takes another way for other inputs; it looks at values that parameters decide, or is tried.

    Another way with the same neurons, such as one without a mask where nothing is padding, is as good.
    """
    if not listener.looks:
        return None
    place = next((layer for layer, deep in listener.looks.items() if deep), None)
    if place is None:
        for sign in (1, -1):
            try:
                other, theirs = hear(other_inputs(inputs, sign))
            except (BadModel, Unheard):
                return where(next(iter(listener.looks)))
            if other.trail != listener.trail and not alike(found, theirs):
                return where(next(iter(listener.looks)))
        return None
    return where(place)


def alike(one: NeuronMap, other: NeuronMap) -> bool:
    """Whether two maps of one network are of the same neurons."""
    lists = len(one.lists) == len(other.lists) and all(map(torch.equal, one.lists, other.lists))
    return lists and all(
        getattr(one, part.name) == getattr(other, part.name) for part in fields(NeuronMap) if part.name != "lists"
    )


def where(layer: str) -> str:
    """A layer in words."""
    return f"in layer '{layer}'" if layer else "in its forward"
