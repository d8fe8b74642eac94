"""The nouns of a round: fleet, setting, cohort, task, batch, reply.

A model is one vector of P numbers, a cohort of C clients one matrix [C, P]. Letters in shapes, here and everywhere:

    N clients in the fleet         P numbers in the model, trained parameters, then moving buffers
    C clients in the cohort        K hidden neurons, O outputs
    S local steps of a client      B examples in a batch
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from fedloom.chance import Chance
from fedloom.core.rows import cat_extras, cat_masks, cat_rows, cat_states, rows, scattered, some_rows
from fedloom.layout import Layout

if TYPE_CHECKING:
    from fedloom.core.costs import Costs
    from fedloom.core.devices import Devices
    from fedloom.core.goal import Goal, Loss, Transform
    from fedloom.neurons.map import NeuronMap
    from fedloom.neurons.weights import HiddenWeights, Layer

log = logging.getLogger("fedloom")

State = dict[str, Tensor]  # tensors by name and nothing else, so that it can be stacked, saved and sent


class Fleet(NamedTuple):
    """All N clients, with the facts that the server has about them."""

    examples: Tensor  # [N] number of training examples (int64)
    labels: (
        Tensor  # [N, strata] number of examples of each class, or other stratum (int64); one stratum if none are known
    )
    devices: Devices | None = None  # speed and links of each client, where they are simulated
    by_class: bool = True  # whether column k of `labels` counts the class that output k of a network is the score of

    @property
    def size(self) -> int:
        """N, the number of clients."""
        return int(self.examples.shape[0])


@dataclass(frozen=True)
class Setting:
    """What is fixed during a run: the fleet, the network and the goal."""

    fleet: Fleet
    module: nn.Module  # holds the base: tensors that are not in the layout, one set for all clients
    layout: Layout
    goal: Goal
    example: Tensor  # [2, ...] two inputs, to trace the network with
    transform: Transform | None = None  # of training examples, when a batch is gathered
    draws: bool = False  # whether functions in the network's code draw random numbers, as F.dropout does

    @cached_property
    def stages(self) -> tuple[tuple[str, ...], ...]:
        """The names of tensors by stage, of a network that declares stages with exits."""
        from fedloom.core.stages import stages_of

        return stages_of(self.module)

    @cached_property
    def loss(self) -> Loss:
        """The loss of each example in training; of a network with exits the sum of theirs."""
        from fedloom.core.stages import Summed

        plain: Loss = self.goal.loss
        return Summed(plain).__call__ if self.stages else plain

    @cached_property
    def neurons(self) -> NeuronMap:
        """Which neuron owns which number; computed at first use, since FedAvg does not need it.

        A warning says once which layers are kept whole because they are not understood.
        """
        from fedloom.neurons.trace import neuron_map

        found = neuron_map(self.module, self.example, self.layout)
        if found.note is not None:
            log.warning("%s", found.note)
        return found.to(self.example.device)

    @cached_property
    def hidden_weights(self) -> HiddenWeights:
        """The weights of hidden layers, for methods that choose single numbers; any forward will do."""
        from fedloom.neurons.weights import hidden_weights

        return hidden_weights(self.module, self.example, self.layout)

    @cached_property
    def layers(self) -> tuple[Layer, ...]:
        """All layers that have weights, with the places of their numbers; norm layers are not among them."""
        from fedloom.neurons.weights import layers_of

        return layers_of(self.module, self.layout)


class Cohort(NamedTuple):
    """The clients that take part in a round."""

    ids: Tensor  # [C] rising; on the host where chance alone decides, so that reading them does not wait for a GPU
    authorised: Tensor  # [C] False: the client trains but may send nothing back
    share: Tensor | None = None  # [C] how much of the model each may use, where that is chosen with the client


class Portion(NamedTuple):
    """The part of the model that each client is sent; None means everything."""

    mask: Tensor | None = None  # [C, P] bool, over numbers
    keep: Tensor | None = None  # [C, K] bool, over neurons, if the mask is a sub-model of whole neurons


class Task(NamedTuple):
    """What the server sends down to the cohort. `mask` None means everything."""

    model: Tensor  # [P] the global model
    mask: Tensor | None  # [C, P] the numbers that each client is sent (bool)
    keep: Tensor | None  # [C, K] the neurons behind the mask (bool): engines may train a smaller network
    share: Tensor  # [C] the fraction of the model that each client may use
    authorised: Tensor  # [C] whether each client may send back (bool)
    extras: State  # [C, ...] each: tensors that the local rule's server half adds
    round: int  # counted from 1; a tensor while steps are captured, like `rate`
    rate: float  # the learning rate of this round
    base_rate: float  # the learning rate before any decay
    trained: int  # the first `trained` of the P numbers are trained, the others are running statistics
    ids: Tensor | None = None  # [C] the clients, needed where a client draws its own chance
    all_send: bool = False  # True: the host knows that all are authorised
    everyone: bool = False  # True: the host knows that row n is client n, for the whole fleet

    def rows(self, keep: slice | Tensor) -> Task:
        """The task of some clients of the cohort."""
        return self._replace(
            mask=None if self.mask is None else self.mask[keep],
            keep=None if self.keep is None else self.keep[keep],
            share=self.share[keep],
            authorised=self.authorised[keep],
            extras={name: some_rows(value, keep) for name, value in self.extras.items()},
            ids=None if self.ids is None else self.ids[keep],
            everyone=False,
        )

    @staticmethod
    def cat(tasks: Sequence[Task]) -> Task:
        """Concatenate the tasks of several groups of clients; model and round are those of the first task."""
        keeps, ids = [task.keep for task in tasks], [task.ids for task in tasks]
        return tasks[0]._replace(
            mask=cat_masks([t.mask for t in tasks], [t.model.expand(len(t.share), -1) for t in tasks]),
            keep=None if any(keep is None for keep in keeps) else torch.cat([k for k in keeps if k is not None]),
            share=torch.cat([task.share for task in tasks]),
            authorised=torch.cat([task.authorised for task in tasks]),
            extras=cat_extras([task.extras for task in tasks]),
            ids=None if any(own is None for own in ids) else torch.cat([own for own in ids if own is not None]),
            all_send=all(task.all_send for task in tasks),
            everyone=False,
        )


class Examples(NamedTuple):
    """A data set of n examples, on the device that trains."""

    x: Tensor  # [n, ...]
    y: Tensor  # [n, ...]


class Batch(NamedTuple):
    """The examples of one step, for the clients that take it."""

    x: Tensor  # [C, B, ...]
    y: Tensor  # [C, B, ...]
    weight: Tensor  # [C, B] adds up to 1 for every client; 0 marks padding and examples that count for nothing
    keys: Tensor  # [C] random keys for the network's own randomness, such as dropout


class Reply(NamedTuple):
    """What the cohort sends up to the server. `mask` None means everything."""

    ids: Tensor  # [C] the clients
    params: Tensor  # [C, P] weights after training; the round replaces those not sent by the model's own
    mask: Tensor | None  # [C, P] the numbers that each client sends back (bool)
    extras: State  # [C, ...] each: tensors that the local rule's client half adds
    report: State  # [C] each: examples, steps, loss, ...
    arrived: Tensor  # [C] False: lost, late or refused
    rate: float = 1.0  # the learning rate of the round; filled in by the server
    awaited: Tensor | None = None  # [C] who was to send; None: all
    rejected: Tensor | None = None  # [C] the reason of a refusal as its index in `REASONS`; 0 or None: not refused
    strays: Tensor | None = None  # [R] the number of other refused messages by reason, in the order of `REASONS`
    chance: Chance | None = None  # of the round, for what the server draws after replies arrived
    everyone: bool = False  # True: the host knows that row n is client n, for the whole fleet
    costs: Costs | None = None  # what the round cost, where the engine measures or simulates it
    base: Tensor | None = None  # [C] the version of the model that each client was sent; None: the model as it is
    staleness: Tensor | None = None  # [C] steps made since then, or [C, P] steps that moved the number; None: all fresh
    weight: Tensor | None = None  # [C] or [C, P] factors of rows' weights in the mean; None: 1

    def rows(self, at: slice | Tensor) -> Reply:
        """The replies of some clients of the cohort, or of all in another order."""
        return self._replace(
            ids=self.ids[at],
            params=self.params[at],
            mask=None if self.mask is None else self.mask[at],
            extras=rows(self.extras, at),
            report=rows(self.report, at),
            arrived=self.arrived[at],
            awaited=None if self.awaited is None else self.awaited[at],
            rejected=None if self.rejected is None else self.rejected[at],
            everyone=False,
            base=None if self.base is None else self.base[at],
            staleness=None if self.staleness is None else self.staleness[at],
            weight=None if self.weight is None else self.weight[at],
        )

    @staticmethod
    def cat(replies: Sequence[Reply], at: Sequence[Tensor] | None = None) -> Reply:
        """Concatenate engines' replies of several groups of clients.

        With `at`, row k of `replies[n]` becomes row `at[n][k]`. Clients that send everything get a mask of ones if
        others do not.
        """
        return Reply(
            ids=cat_rows([reply.ids for reply in replies], at),
            params=cat_rows([reply.params for reply in replies], at),
            mask=cat_masks([reply.mask for reply in replies], [reply.params for reply in replies], at),
            extras=cat_states([reply.extras for reply in replies], at),
            report=cat_states([reply.report for reply in replies], at),
            arrived=cat_rows([reply.arrived for reply in replies], at),
        )

    def scatter(self, at: Tensor, ids: Tensor, model: Tensor) -> Reply:
        """An engine's reply of all clients `ids` [C], of which these are at rows `at`; the others send nothing.

        The parameters of the others are those of `model` [P]; all else of them is zero.
        """
        count = len(ids)
        return Reply(
            ids=ids,
            params=model.repeat(count, 1).index_copy(0, at, self.params),
            mask=None if self.mask is None else scattered(self.mask, at, count),
            extras={name: scattered(value, at, count) for name, value in self.extras.items()},
            report={name: scattered(value, at, count) for name, value in self.report.items()},
            arrived=scattered(self.arrived, at, count),
        )


def listed(values: Sequence[int] | Sequence[float] | list[list[int]], device: torch.device) -> Tensor:
    """Copy Python numbers to a device without waiting for it."""
    return torch.tensor(values).to(device, non_blocking=True)


def column(values: Tensor, like: Tensor) -> Tensor:
    """Reshape one value per client [C] to broadcast over `like` [C, ...]."""
    return values.view(-1, *(1,) * (like.dim() - 1))


def largest(values: Tensor) -> Tensor:
    """The largest absolute value in each row [C] of values [C, n], or NaN; makes no copy of the values."""
    if values.device.type == "cpu":
        return torch.maximum(values.amax(1), -values.amin(1))
    return torch.linalg.vector_norm(values, torch.inf, 1)  # type: ignore[no-any-return]  # one pass; slow on a CPU


def on_host(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Copy tensors to the host, those of each device and dtype in one transfer."""
    found = [t for t in tensors if t.device.type == "cpu"]
    here = dict(zip(map(id, found), found))
    kinds: dict[tuple[torch.dtype, torch.device], dict[int, Tensor]] = {}
    for t in tensors:
        if id(t) not in here:
            kinds.setdefault((t.dtype, t.device), {})[id(t)] = t
    for some in kinds.values():
        whole = torch.cat([t.reshape(-1) for t in some.values()]).cpu()
        parts = whole.split([t.numel() for t in some.values()])
        here |= {name: part.view(t.shape) for (name, t), part in zip(some.items(), parts)}
    return [here[id(t)] for t in tensors]


def senders(mask: Tensor) -> Tensor:
    """The number of clients that send each number [P], from a mask [C, P].

    Counted in bytes, at most 255 rows at a time: a sum of bools first makes a copy of eight times the size.
    """
    counts = [part.sum(0, dtype=torch.uint8).long() for part in mask.view(torch.uint8).split(255)]
    return counts[0] if len(counts) == 1 else torch.stack(counts).sum(0)
