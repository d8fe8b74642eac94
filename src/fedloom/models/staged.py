"""Networks in stages with an exit after each, which methods that cut depth can shorten."""

from collections.abc import Sequence
from math import prod
from typing import Literal

import torch
from torch import Tensor, nn

from fedloom.errors import BadExperiment, unknown


class Staged(nn.Module):
    """Blocks in a row, each with an exit: `Staged([block, ...], [exit, ...])`.

    In training the answer is that of every exit, [B, D, ...]; in evaluation their `mean`, or that of the `last`.
    """

    def __init__(
        self, blocks: Sequence[nn.Module], exits: Sequence[nn.Module], answer: Literal["mean", "last"] = "mean"
    ) -> None:
        super().__init__()
        if not blocks or len(blocks) != len(exits):
            raise BadExperiment(f"{len(blocks)} blocks and {len(exits)} exits; expected at least one, and as many.")
        if answer not in ("mean", "last"):
            raise BadExperiment(unknown("answer", answer, ("mean", "last")))
        self.answer = answer
        self.blocks, self.exits = nn.ModuleList(blocks), nn.ModuleList(exits)

    @property
    def stages(self) -> tuple[tuple[str, ...], ...]:
        """The names of each stage's tensors: its block's and its exit's."""
        names = [*dict(self.named_parameters()), *dict(self.named_buffers())]
        starts = [(f"blocks.{stage}.", f"exits.{stage}.") for stage in range(len(self.blocks))]
        return tuple(tuple(name for name in names if name.startswith(start)) for start in starts)

    def forward(self, x: Tensor) -> Tensor:
        """The exits' answers."""
        answers = []
        for block, leave in zip(self.blocks, self.exits):
            x = block(x)
            answers.append(leave(x))
        if self.training:
            return torch.stack(answers, 1)
        return answers[-1] if self.answer == "last" else torch.stack(answers, 1).mean(1)


def mlp_exits(
    shape: tuple[int, ...], classes: int, vocabulary: int = 0, *, widths: Sequence[int] = (64, 64, 64, 64)
) -> nn.Module:
    """A perceptron with a softmax exit after every hidden layer."""
    blocks, inputs = list[nn.Module](), prod(shape)
    for width in widths:
        flat = [] if blocks else [nn.Flatten()]
        blocks.append(nn.Sequential(*flat, nn.Linear(inputs, width), nn.ReLU()))
        inputs = width
    return Staged(blocks, [nn.Linear(width, classes) for width in widths])
