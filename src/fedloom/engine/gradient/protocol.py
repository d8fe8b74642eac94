"""The protocol of gradients, which differentiate a cohort's loss."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Literal, Protocol

from torch import Tensor

from fedloom.core.types import Batch
from fedloom.layout import Layout

if TYPE_CHECKING:
    from fedloom.core.rule import Objective
    from fedloom.engine.gradient.stacked import StackedGradient

GradientKind = Literal["stacked", "swapped", "vmapped", "one by one"]


# all steps of `w <- shrink * w - rate * g`: (first [C, P], batches, rate, shrink) -> (parameters [C, P], losses [C])
Descent = Callable[[Tensor, Iterable[Batch], float, float], tuple[Tensor, Tensor]]


class Gradient(Protocol):
    """Differentiates the loss of C clients, each with parameters of its own."""

    @property
    def layout(self) -> Layout:
        """Where each tensor lies in a row of parameters."""

    @property
    def stacked(self) -> StackedGradient | None:
        """The gradient itself where its layers are stacked: it can be frozen and moved tensor by tensor."""

    @property
    def descent(self) -> Descent | None:
        """Takes the steps of plain SGD as part of the backward pass; None: there is no such way."""

    @property
    def kind(self) -> GradientKind:
        """Its name in the plan of steps."""

    @property
    def low(self) -> bool:
        """Whether products round their factors to bfloat16."""

    def __call__(self, params: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Gradients [C, P] and losses [C]; running statistics in `params` move in place."""

    def of_shapes(self, layout: Layout, counts: Sequence[int]) -> Gradient:
        """A copy for sub-models with tensors of these shapes, `counts` of whose neurons lie in the lists of the map."""

    def aimed(self, objective: Objective) -> Gradient:
        """A copy that differentiates this objective, whose facts are of the clients it is called for."""

    def outputs(self, params: Tensor, x: Tensor) -> Tensor:
        """The outputs of every client's network for its own examples [C, B, ...], in evaluation mode."""
