"""HeteroFL (Diao et al., arXiv:2010.01264): the leading share of every layer's neurons, with a share for each client.

The sub-model has the first `ceil(share * width)` neurons of every layer. A number is the plain mean over the clients
that have it, and stays if none has. In training, hidden pre-activations are divided by the share (`scale`), so that
narrow and wide networks compute numbers of similar size; in evaluation they are not. A client's logits of classes it
has no example of are 0, and their output rows are neither trained nor averaged (`mask_labels`); its personal model is
tested without that mask. Different from the paper: batch norm statistics are averaged like the other numbers instead of
being measured anew over everybody's data after training.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from fedloom.core.paper import paper
from fedloom.core.rule import LocalRule, Traits
from fedloom.core.types import Setting, State, Task, column
from fedloom.method import Method
from fedloom.neurons.axes import on_axis
from fedloom.neurons.map import NeuronMap
from fedloom.parts.aggregate.coverage_mean import CoverageMean
from fedloom.parts.allocate.tiers import Tiers
from fedloom.parts.local.chain import Chain
from fedloom.parts.local.sub_model import SubModel
from fedloom.parts.mask.hidden import into_hidden
from fedloom.parts.mask.own_classes import OwnClasses, owned
from fedloom.parts.mask.ranked import Ranked

ABSENT, PLAIN, HIDDEN = 0, 1, 2  # the role of a number for a client: of a missing class, plain, into a hidden neuron


@dataclass(frozen=True)
class Rescale(LocalRule):
    """In training, multiplies numbers into hidden neurons by `1 / share` and output rows of missing classes by 0."""

    scale: bool = True
    mask_labels: bool = True

    @property
    def traits(self) -> Traits:
        """Weights are multiplied, and by the chain rule their gradients; nothing else happens."""
        return Traits(corrects=True, scales=True, masks_classes=self.mask_labels)

    def scales(self, task: Task, at: Tensor, dtype: torch.dtype) -> Tensor:
        """The factors of `view` at some places."""
        kinds = task.extras["kinds"]
        some = kinds[0, at].expand(len(kinds), -1) if kinds.stride(0) == 0 else kinds[:, at]
        return _each(self._factors(task, dtype), some)

    def start(self, task: Task, state: State, params: Tensor) -> Tensor:
        """Set output rows of missing classes to zero, as a mask would."""
        if not self.mask_labels:
            return params
        return torch.where(_each(task.extras["roles"] == ABSENT, task.extras["kinds"]), 0, params)

    def view(self, task: Task, params: Tensor) -> Tensor:
        """`factor * w`."""
        return params * _each(self._factors(task, params.dtype), task.extras["kinds"])

    def correct(self, task: Task, state: State, first: Tensor, params: Tensor, grads: Tensor) -> Tensor:
        """`factor * g`."""
        return grads * _each(self._factors(task, grads.dtype), task.extras["kinds"])

    def brief(self, memory: State, setting: Setting, ids: Tensor) -> State:
        """The kind of each number [C, P], which engines cut like the model, and the role of kinds for clients [C, n].

        Kinds are the same for all clients, so that no tensor of the size of all clients' models is made.
        """
        kinds, roles = _kinds(setting.neurons, setting.fleet.labels, self.scale, self.mask_labels)
        return {"kinds": kinds.expand(len(ids), -1), "roles": roles[ids]}

    @staticmethod
    def _factors(task: Task, dtype: torch.dtype) -> Tensor:
        """The factors of numbers of each kind [C, n]."""
        roles, share = task.extras["roles"], task.share.to(dtype)
        return torch.where(roles == HIDDEN, column(share, roles).reciprocal(), roles.to(dtype))


def _each(values: Tensor, kinds: Tensor) -> Tensor:
    """The value of every number [C, P] from the values of each kind [C, n]."""
    if kinds.stride(0) == 0:  # all clients share one row
        return values.index_select(1, kinds[0])
    return values.gather(1, kinds.long())


@lru_cache(maxsize=8)
def _kinds(neurons: NeuronMap, labels: Tensor, scale: bool, mask_labels: bool) -> tuple[Tensor, Tensor]:
    """The kind of each number [P], and the role of kinds for every client [N, n].

    Two numbers are of one kind if they belong to the same outputs, and both or neither lead into hidden neurons.
    """
    outputs, codes, hidden = neurons.full_size - neurons.size, [], into_hidden(neurons) if scale else []
    for tensor in neurons.tensors:
        code = torch.zeros(tensor.shape, dtype=torch.int64)
        for axis, which in tensor.owners(False):
            place = neurons.lists[which].cpu() - neurons.size + 1  # outputs count from 1
            place = torch.where((place > 0) & (place <= outputs), place, 0)
            code = code * (outputs + 1) + on_axis(place[None], axis, code.dim())[0]
        codes.append(2 * code.flatten() + (tensor in hidden))
    found, kinds = torch.cat(codes).unique(return_inverse=True)
    roles = torch.where(found % 2 == 1, HIDDEN, PLAIN).to(labels.device, torch.int8).expand(len(labels), -1)
    if mask_labels:
        own, rest = F.pad(owned(neurons, labels), (1, 0), value=True), found // 2
        while bool(rest.any()):  # numbers may belong to several outputs, all of which a client must have
            roles = torch.where(own[:, (rest % (outputs + 1)).to(own.device)], roles, ABSENT)
            rest = rest // (outputs + 1)
    return kinds.to(labels.device, torch.int32), roles


@paper("Diao et al., ICLR", 2021, "the leading neurons of every layer, and outputs of the client's classes")
def heterofl(
    shares: tuple[float, ...] = (0.2, 0.4, 0.6, 0.8, 1.0), scale: bool = True, mask_labels: bool = True
) -> Method:
    """`shares` are the capacity tiers, in neurons; `scale` and `mask_labels` can switch off two parts of the paper."""
    tiers, leading = Tiers(shares), Ranked("ordered", "ceil")
    scale = scale and min(shares) < 1  # whole networks need no scaling
    return Method(
        allocate=tiers,
        mask=OwnClasses(leading) if mask_labels else leading,
        local=Chain((SubModel(), Rescale(scale, mask_labels))) if scale or mask_labels else SubModel(),
        aggregate=CoverageMean("uniform"),
    )
