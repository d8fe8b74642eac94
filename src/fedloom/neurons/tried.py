"""A trial of a map of neurons: half of them masked against half of them cut, on the example."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._pytree import tree_leaves

from fedloom.chance import absorb, uniform
from fedloom.errors import BadModel
from fedloom.layout import copied, flatten, layout_of
from fedloom.neurons.map import NeuronMap
from fedloom.neurons.resized import Sizes, resized, sizes_of
from fedloom.neurons.slicing import slice_index, slices

KEY = 7
LARGEST = 2**27  # numbers of a network that is tried in float64 on an accelerator
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}  # relative to the largest number


class Disagreement(BadModel):
    """The network with neurons cut is not that with these masked."""


def tried(map: NeuronMap, model: nn.Module, example: Any, group: str | None = None) -> None:
    """Keep half of every group by a fixed key; `BadModel` where the network masked and the network cut disagree.

    A wrong rule for a layer, and code that takes tensors where nothing sees them, are found so. Not tried where a layer
    has statistics over neurons (`map.across`): there masking and cutting differ.

    Args:
        map: the model's neurons.
        model: it is left as it is.
        example: a batch of inputs, or several inputs as a tuple.
        group: the only one that is halved, and those that must keep as many; None: all of them.
    """
    if not map.groups or map.across:
        return
    inputs, keep = example if isinstance(example, tuple) else (example,), halved(map, group)
    if any(value.is_cuda for value in model.parameters()) and sum(v.numel() for v in model.parameters()) <= LARGEST:
        try:  # accelerators round the products of float32
            return _compare(map, copied(model).double(), _in_double(inputs), keep)
        except Disagreement:
            raise
        except BadModel:  # code that says float32
            pass
    _compare(map, model, inputs, keep)


def _compare(map: NeuronMap, model: nn.Module, inputs: tuple[Any, ...], keep: Tensor) -> None:
    """Run the network masked and cut."""
    index, shapes = slice_index(map, keep)
    model = copied(model)  # runs change counters and modes
    layout = layout_of(model, frozenset(axes.name for axes in map.tensors))
    flat = flatten(model, layout)
    small = layout._replace(shapes=shapes).split(flat[index.to(flat.device)])
    whole = layout.split(flat * map.expand(keep).to(flat.device))
    masked = _Run(model, whole, inputs)
    sizes = sizes_of(map, slices(map, keep)[1])
    cut = _Run(model, small, inputs, sizes)
    if masked.problem is not None:
        raise BadModel(f"the model fails on the example in {masked.where()}: {masked.problem}") from masked.problem
    if cut.problem is not None:
        raise Disagreement(
            f"the network with half of its neurons fails in {cut.where()}: {str(cut.problem).rstrip('.')}. {WAYS}"
        ) from cut.problem
    tolerance = TOLERANCE.get(flat.dtype, 1e-4)
    if not masked.agrees(cut.answer, masked.answer, tolerance):
        first = next((n for n, x in masked.seen.items() if not masked.agrees(cut.seen.get(n), x, tolerance)), None)
        where = "its answer differs" if first is None else f"the answer of layer '{first}' differs"
        raise Disagreement(
            f"the network with half of its neurons cut is not that with the half masked: {where}. {WAYS}"
        )
    if sizes.calls:
        training = _Run(model, small, inputs, sizes, train=True)
        failed = training.problem is not None and _Run(model, whole, inputs, train=True).problem is None
        if failed or (training.problem is None and training.met != cut.met):
            raise Disagreement("in training its code is told other sizes; reshape as in evaluation, so that it is cut")


def _in_double(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """The inputs with numbers of twice the precision."""
    return tuple(x.double() if isinstance(x, Tensor) and x.is_floating_point() else x for x in inputs)


WAYS = (
    "Neurons meet there in a way that was not seen: code that leaves torch, a rule that is wrong, or sizes that are "
    "written down. Write it with torch's own functions, or give the layer a rule."
)


def halved(map: NeuronMap, only: str | None = None) -> Tensor:
    """Half of the neurons of every group (or only of one, and those alike), and always the same ones."""
    scores = uniform(absorb(torch.tensor(KEY), torch.arange(map.size, device=_device(map))))
    keep = map.cut(scores, 0.5)
    if only is not None:
        these = next((groups for groups in map.alike if only in groups), (only,))
        for group, span in map.spans(map.size):
            keep[span] |= group not in these
    return keep


def _device(map: NeuronMap) -> torch.device:
    return map.lists[0].device


class _Run:
    """One run of the model: its answer, and what its layers gave."""

    def __init__(
        self,
        model: nn.Module,
        tensors: dict[str, Tensor],
        inputs: tuple[Any, ...],
        sizes: Sizes | None = None,
        train: bool = False,
    ) -> None:
        self.seen: dict[str, list[Tensor]] = {}
        self.inside: list[str] = []  # layers that have begun and not ended
        self.answer: list[Tensor] = []
        self.problem: Exception | None = None
        self.met = 0  # calls that were told sizes
        model.train(train)
        hooks = []
        devices = [x.device for x in tensors.values() if x.is_cuda][:1]
        for name, layer in model.named_modules():
            if name:
                hooks.append(layer.register_forward_pre_hook(lambda *_, n=name: self.inside.append(n)))
                hooks.append(layer.register_forward_hook(lambda _, __, out, n=name: self._end(n, out)))
        try:
            # with gradients, else torch fuses whole layers into one call
            with torch.random.fork_rng(devices), torch.enable_grad(), resized(model, sizes) as mode:
                self.answer = _tensors(functional_call(model, tensors, inputs))
                self.met = 0 if mode is None else mode.met
        except Exception as problem:  # noqa: BLE001  user code may raise anything
            self.problem = problem
        finally:
            for hook in hooks:
                hook.remove()

    def _end(self, name: str, out: Any) -> None:
        """A layer's first answer."""
        self.inside.pop()
        self.seen.setdefault(name, _tensors(out))

    def where(self) -> str:
        """The innermost layer that was running."""
        return f"layer '{self.inside[-1]}'" if self.inside else "the model's own code"

    @staticmethod
    def agrees(ours: list[Tensor] | None, theirs: list[Tensor], tolerance: float) -> bool:
        """Whether tensors of equal shapes hold equal numbers; others hold other neurons and say nothing."""
        return (
            ours is not None
            and len(ours) == len(theirs)
            and all(
                a.shape != b.shape
                or torch.allclose(a, b, rtol=0, atol=tolerance * max(1.0, _largest(b)), equal_nan=True)
                for a, b in zip(ours, theirs)
            )
        )


def _largest(x: Tensor) -> float:
    """The largest finite number."""
    return float(x.detach().abs().nan_to_num(0, 0, 0).max()) if x.numel() else 0.0


def _tensors(value: Any) -> list[Tensor]:
    """The tensors of numbers in a nested value."""
    return [x.detach() for x in tree_leaves(value) if isinstance(x, Tensor) and x.is_floating_point()]
