"""Partitions of the training examples among clients, and splits of each client's examples."""

from collections.abc import Callable, Sequence
from inspect import Parameter, signature
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedloom.data import schemes
from fedloom.data.lists import Lists
from fedloom.data.sampling import Ints, number, stream, whole
from fedloom.errors import BadData, BadExperiment, unknown

PARTITIONS: dict[str, Callable[..., schemes.Ownership]] = {
    "iid": schemes.iid,
    "dirichlet": schemes.dirichlet,
    "classes": schemes.some_classes,
    "n-classes": schemes.n_classes,
    "shards": schemes.shards,
    "groups": schemes.groups,
    "lognormal": schemes.lognormal,
    "rare-classes": schemes.rare_classes,
    "own": schemes.own,
}


BY_CLASS = PARTITIONS.keys() - {"iid", "lognormal", "own"}  # they need the classes of examples


class Partition(NamedTuple):
    """The training examples of each client."""

    clients: Sequence[Ints]  # sorted indices of training examples
    left_out: int  # examples without a client
    note: str  # what was done, in one sentence
    name: str = "own"  # of the scheme


class Split(NamedTuple):
    """Each client's examples by purpose: lists of indices, in the order of clients."""

    train: Lists
    validation: Lists
    test: Lists


def partition(
    name: str,
    labels: ArrayLike,
    clients: int | None,
    seed: int,
    client_ids: Ints | None = None,
    **settings: Any,
) -> Partition:
    """Divide the training examples among clients by a named scheme.

    `clients` may be None only for 'own', which then takes all clients of the data.
    """
    if name not in PARTITIONS:
        raise BadExperiment(unknown("partition", name, PARTITIONS))
    function = PARTITIONS[name]
    labels = _labels(labels)
    known = settings_of(name)
    for setting in settings:
        if setting not in known:
            raise BadExperiment(unknown(f"setting of partition '{name}'", setting, known))
    if name == "own":
        settings = {"client_ids": client_ids}
    else:
        clients = whole("clients", clients, 1, len(labels))
    dealt = function(labels, clients, stream(seed, "partition"), **settings)
    return _collect(dealt, int(dealt.owner.max()) + 1 if clients is None else clients)._replace(name=name)


def settings_of(name: str) -> dict[str, Any]:
    """A scheme's settings and their defaults."""
    parameters = signature(PARTITIONS[name]).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is Parameter.KEYWORD_ONLY and p.name != "client_ids"}


def split(part: Partition, fractions: tuple[float, float, float] = (0.7, 0.0, 0.3), seed: int = 0) -> Split:
    """Divide each client's examples into training, validation and test.

    A client's split depends only on the seed and its own examples. With few examples, training gets one before testing
    does, and testing before validation.
    """
    if len(fractions) != 3:
        raise BadExperiment(f"fractions is {fractions!r}; expected three numbers: training, validation, test")
    train, validation, test = (number("fractions", f, 0, 1) for f in fractions)
    if train == 0 or abs(train + validation + test - 1) > 1e-6:
        raise BadExperiment(f"fractions is {tuple(fractions)}; expected a positive training part and a sum of 1")
    own = Lists.of(part.clients)
    size = own.sizes
    tested = np.maximum(np.rint(size * test), (test > 0) & (size > 1)).astype(np.int64)
    tested = np.minimum(tested, np.maximum(size - 1, 0))
    checked = np.maximum(np.rint(size * validation), (validation > 0) & (size > 2)).astype(np.int64)
    checked = np.minimum(checked, np.maximum(size - tested - 1, 0))
    if not (tested.any() or checked.any()):
        return Split(own, *(own.where(np.zeros(len(own.examples), bool)) for _ in range(2)))
    drawn = stream(seed, "split").random(int(own.examples.max(initial=-1)) + 1)[own.examples]
    order = np.lexsort((drawn, own.owner))  # by client, shuffled within each
    piece = np.empty(len(order), np.int64)
    left = np.repeat(size, size) - own.place  # number of the client's examples from this one on
    piece[order] = (left <= np.repeat(tested + checked, size)) * 1 + (left <= np.repeat(tested, size))
    return Split(*(own.where(piece == kind) for kind in range(3)))


def _labels(labels: ArrayLike) -> Ints:
    """Labels as an array; anything but a vector of integers is refused."""
    array = np.asarray(labels)
    if array.ndim != 1 or array.dtype.kind not in "iu" or not len(array):
        raise BadData(f"labels have shape {array.shape} and type {array.dtype}; expected whole numbers [n], n > 0")
    return array.astype(np.int64)


def _collect(dealt: schemes.Ownership, clients: int) -> Partition:
    """Each client's sorted examples, from each example's owner."""
    order = np.argsort(dealt.owner, kind="stable")
    sizes = np.bincount(dealt.owner + 1, minlength=clients + 1)  # [0] counts those without an owner
    left_out = int(sizes[0])
    note = f"{dealt.done}; {left_out} of {len(order)} examples left out"
    note += f" ({dealt.why})" if left_out else ""
    note += f"; {int((sizes[1:] == 0).sum())} of {clients} clients empty."
    return Partition(Lists(order[left_out:], sizes[1:]), left_out, note[0].upper() + note[1:])
