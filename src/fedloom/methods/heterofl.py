"""HeteroFL (Diao et al., arXiv:2010.01264): the leading share of every layer's neurons, for each client its own share.

The sub-model has the first `ceil(share * width)` neurons of every layer. A number is the plain mean over the clients
that hold it and stays where nobody does. While training, hidden pre-activations are divided by the share
(`scale`), so that narrow and wide networks work with numbers of the same size; at a test they are not. A client's
logits of classes it has no example of are 0, and their output rows are neither trained nor averaged (`mask_labels`);
its personal model is tested without that mask. Different from the paper: batch norm statistics are averaged like the
other numbers instead of being measured anew over everybody's data after training.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedloom.aggregate.coverage_mean import CoverageMean
from fedloom.allocate.tiers import Tiers
from fedloom.local.chain import Chain
from fedloom.local.rule import LocalRule
from fedloom.local.sub_model import SubModel
from fedloom.mask.hidden import into_hidden
from fedloom.mask.own_classes import OwnClasses, own_rows
from fedloom.mask.ranked import Ranked
from fedloom.method import Method
from fedloom.types import Setting, State, Task, column

ABSENT, PLAIN, HIDDEN = 0, 1, 2  # what a number is to a client: of a missing class, as it is, into a hidden neuron


@dataclass(frozen=True)
class Rescale(LocalRule):
    """Weights and biases into hidden neurons count `1 / share`-fold in training, output rows of missing classes 0."""

    scale: bool = True
    mask_labels: bool = True

    @property
    def corrects(self) -> bool:
        """The chain rule brings gradients back."""
        return True

    @property
    def scaled(self) -> bool:
        """It is all that happens."""
        return True

    def scales(self, task: Task, like: Tensor) -> Tensor:
        """`factor`, as for `view`."""
        return self._factor(task, like)

    def start(self, task: Task, state: State, params: Tensor) -> Tensor:
        """Output rows of missing classes are zero from the start, as they would be behind a mask."""
        return torch.where(task.extras["roles"] == ABSENT, 0, params) if self.mask_labels else params

    def view(self, task: Task, params: Tensor) -> Tensor:
        """`factor * w`."""
        return params * self._factor(task, params)

    def correct(self, task: Task, state: State, first: Tensor, params: Tensor, grads: Tensor) -> Tensor:
        """`factor * g`."""
        return grads * self._factor(task, grads)

    def server_state(self, setting: Setting, model: Tensor) -> State:
        """Which numbers lead into hidden neurons [P]."""
        roles = torch.full_like(model, PLAIN, dtype=torch.int8)
        for tensor in into_hidden(setting.neurons) if self.scale else ():
            roles[tensor.start : tensor.stop] = HIDDEN
        return {"roles": roles}

    def brief(self, memory: State, setting: Setting, ids: Tensor) -> State:
        """What every number is to each client [C, P]; engines cut it with the model."""
        roles = memory["roles"].expand(len(ids), -1)
        return {"roles": torch.where(own_rows(setting, ids), roles, ABSENT) if self.mask_labels else roles}

    @staticmethod
    def _factor(task: Task, like: Tensor) -> Tensor:
        """What each number is multiplied by [C, P]."""
        roles, share = task.extras["roles"], task.share.to(like.dtype)
        return torch.where(roles == HIDDEN, 1 / column(share, like), roles.to(like.dtype))


def heterofl(
    shares: tuple[float, ...] = (0.2, 0.4, 0.6, 0.8, 1.0), scale: bool = True, mask_labels: bool = True
) -> Method:
    """`shares` are the capacity tiers, in neurons; `scale` and `mask_labels` switch two of the paper's parts off."""
    tiers, leading = Tiers(shares), Ranked("ordered", "ceil")
    scale = scale and min(shares) < 1  # whole networks need no scaling
    return Method(
        allocate=tiers,
        mask=OwnClasses(leading) if mask_labels else leading,
        local=Chain((SubModel(), Rescale(scale, mask_labels))) if scale or mask_labels else SubModel(),
        aggregate=CoverageMean("uniform"),
    )
