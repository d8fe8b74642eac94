"""Partition schemes: from labels to the client that owns each example.

N clients, n examples, K classes. Owners are [n]; -1 marks an example without an owner.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedloom.data.sampling import Ints, by_label, number, portion, whole
from fedloom.errors import BadData, BadExperiment

Random = np.random.Generator
NOBODY = -1


class Ownership(NamedTuple):
    """The owner of each example; in words, what was done and why some examples are left out."""

    owner: Ints  # [n]
    done: str
    why: str = ""


def iid(labels: Ints, clients: int, rng: Random) -> Ownership:
    """Shuffled parts of equal size."""
    owner = np.empty(len(labels), np.int64)
    owner[rng.permutation(len(labels))] = np.arange(len(labels)) % clients
    return Ownership(owner, f"examples dealt evenly and at random to {clients} clients")


def dirichlet(labels: Ints, clients: int, rng: Random, *, alpha: float = 0.1, min_size: int = 1) -> Ownership:
    """Each class is divided by a Dirichlet draw over the clients; a small alpha means few classes per client."""
    alpha = number("alpha", alpha, 0, 1e9, above=True)
    min_size = whole("min_size", min_size, 0, len(labels) // clients)
    owner = np.empty(len(labels), np.int64)
    classes = by_label(_codes(labels)[1], rng)
    for indices, shares in zip(classes, rng.dirichlet(np.full(clients, alpha), len(classes))):
        place = (np.arange(len(indices)) + 0.5) / len(indices)
        owner[indices] = np.minimum(np.searchsorted(np.cumsum(shares), place), clients - 1)
    moved = _top_up(owner, labels, clients, min_size, rng)
    return Ownership(
        owner,
        f"each class cut by Dirichlet({alpha:g}) over {clients} clients, "
        f"{moved} examples moved so that every client has at least {min_size}",
    )


def some_classes(labels: Ints, clients: int, rng: Random, *, low: int = 2, high: int | None = None) -> Ownership:
    """Each client has a random number of random classes (FedDD Non-IID-a: 2 to 10 of 10)."""
    codes, kinds = _classes(labels)
    high = whole("high", kinds if high is None else high, 1, kinds)
    low = whole("low", low, 1, high)
    counts = rng.integers(low, high + 1, clients)
    return _among_owners(
        by_label(codes, rng), _random_owners(counts, kinds, rng), len(labels), rng, f"{low} to {high} random classes"
    )


def n_classes(labels: Ints, clients: int, rng: Random, *, n: int = 3) -> Ownership:
    """Each client has exactly n random classes (FedDD Non-IID-b: 3)."""
    codes, kinds = _classes(labels)
    counts = np.full(clients, whole("n", n, 1, kinds))
    return _among_owners(
        by_label(codes, rng), _random_owners(counts, kinds, rng), len(labels), rng, f"{n} random classes"
    )


def shards(labels: Ints, clients: int, rng: Random, *, per_client: int = 2) -> Ownership:
    """Each client has `per_client` blocks of one label each, so at most as many classes (FedUMF: 2)."""
    per_client = whole("per_client", per_client, 1, len(labels) // clients)
    codes, kinds = _classes(labels)
    blocks, sizes = clients * per_client, np.bincount(codes)
    if blocks >= kinds:
        count = 1 + portion(blocks - kinds, sizes - 1)  # never more blocks than examples
    else:
        count = np.zeros(kinds, np.int64)
        count[np.argsort(-sizes, kind="stable")[:blocks]] = 1
    to = np.split(rng.permutation(blocks) // per_client, np.cumsum(count)[:-1])  # client of each class's blocks
    owner = np.full(len(labels), NOBODY)
    for indices, holders in zip(by_label(codes, rng), to):
        if len(holders):
            owner[indices] = holders[np.arange(len(indices)) * len(holders) // len(indices)]
    done = f"{per_client} blocks of one label each to every one of {clients} clients"
    return Ownership(owner, done, f"{blocks} blocks cannot hold {kinds} classes")


def groups(labels: Ints, clients: int, rng: Random, *, groups: int = 2) -> Ownership:
    """Consecutive clients form groups, and each group owns consecutive labels, evenly (SAFARI: 2 groups)."""
    codes, kinds = _classes(labels)
    groups = whole("groups", groups, 1, min(clients, kinds))
    group_of_client = np.arange(clients) * groups // clients
    group_of_class = np.arange(kinds) * groups // kinds
    owns = group_of_client[:, None] == group_of_class
    return _among_owners(by_label(codes, rng), owns, len(labels), rng, f"the labels of one of {groups} groups")


def lognormal(labels: Ints, clients: int, rng: Random, *, sigma: float = 0.3, alpha: float | None = None) -> Ownership:
    """Log-normal sizes, with labels at random or (alpha) a Dirichlet mix of labels for each client."""
    sigma = number("sigma", sigma, 0, 10)
    # every client has at least one example
    sizes = 1 + portion(len(labels) - clients, np.exp(sigma * rng.standard_normal(clients)))
    slots = np.repeat(np.arange(clients), sizes)  # [n] a slot for each example: the number of its client
    owner = np.empty(len(labels), np.int64)
    done = f"log-normal sizes (sigma {sigma:g}, {sizes.min()} to {sizes.max()} examples) for {clients} clients"
    if alpha is None:
        owner[rng.permutation(len(labels))] = slots
        return Ownership(owner, done + ", labels at random")
    alpha = number("alpha", alpha, 0, 1e9, above=True)
    codes, kinds = _classes(labels)
    mix = rng.dirichlet(np.full(kinds, alpha), clients)  # [N, K]
    wanted = _labels_for(slots, mix, np.bincount(codes), rng)
    for kind, indices in enumerate(by_label(codes, rng)):
        owner[indices] = slots[wanted == kind]
    return Ownership(owner, done + f", each with its own Dirichlet({alpha:g}) mix of labels")


def rare_classes(
    labels: Ints, clients: int, rng: Random, *, rare: Sequence[int] = (0, 1, 2), ratio: float = 0.4, n: int = 3
) -> Ownership:
    """Rare labels have a fraction of the others' equal number; n classes per client (FedDD Fig. 21)."""
    names, codes = _codes(labels)
    ratio = number("ratio", ratio, 0, 1, above=True)
    if not isinstance(rare, list | tuple):
        raise BadExperiment(f"rare is {rare!r}; expected a list of labels")
    is_rare = np.isin(names, rare)
    if is_rare.sum() != len(rare) or not is_rare.any() or is_rare.all():
        raise BadExperiment(f"rare is {rare}; expected some, but not all, of the labels {names.tolist()}")
    sizes = np.bincount(codes)
    common = min(int(sizes[~is_rare].min()), max(1, int(sizes[is_rare].min() / ratio)))
    kept = np.where(is_rare, max(1, round(ratio * common)), common)
    classes = [indices[:size] for indices, size in zip(by_label(codes, rng), kept)]
    owns = _random_owners(np.full(clients, whole("n", n, 1, len(names))), len(names), rng)
    what = f"{n} random classes, labels {rare} having {kept[is_rare][0]} examples and the others {common}"
    dealt = _among_owners(classes, owns, len(labels), rng, what)
    why = "the rare labels are cut, the others made equal"
    return dealt._replace(why=why if owns.any(axis=0).all() else f"{why}; of some, {dealt.why}")


def own(labels: Ints, clients: int | None, rng: Random, *, client_ids: Ints | None) -> Ownership:
    """The data's own clients, in the order of their ids; fewer than all are chosen at random."""
    if client_ids is None:
        raise BadExperiment("partition 'own' needs data with client ids (client_train); choose another partition")
    if len(client_ids) != len(labels):
        raise BadData(f"client_train has {len(client_ids)} rows, the labels have {len(labels)}")
    names, owner = _codes(client_ids)
    wanted = len(names) if clients is None else whole("clients", clients, 1)
    if wanted > len(names):
        raise BadExperiment(
            f"clients is {wanted}; expected a whole number from 1 to {len(names)}, the data's own clients. Say how "
            f"many take part: --clients {len(names)} takes all."
        )
    new = np.full(len(names), NOBODY)
    new[np.sort(rng.permutation(len(names))[:wanted])] = np.arange(wanted)
    done = f"the data's own clients, {wanted} of {len(names)}"
    return Ownership(new[owner], done, f"they belong to the other {len(names) - wanted} clients")


def _codes(values: Ints) -> tuple[Ints, Ints]:
    """The distinct values, and each value's index among them."""
    names, codes = np.unique(values, return_inverse=True)
    return names, codes.astype(np.int64)


def _classes(labels: Ints) -> tuple[Ints, int]:
    """Class codes from 0 without gaps, and the number of classes."""
    names, codes = _codes(labels)
    return codes, len(names)


def _random_owners(counts: Ints, kinds: int, rng: Random) -> NDArray[np.bool_]:
    """Which client owns which class [N, K]: `counts` [N] classes each, and if possible an owner for every class."""
    rank = np.argsort(np.argsort(rng.random((len(counts), kinds)), axis=1), axis=1)
    owns = rank < counts[:, None]
    for orphan in np.flatnonzero(~owns.any(axis=0)):
        most = int(owns.sum(axis=0).argmax())
        holders = np.flatnonzero(owns[:, most])
        if len(holders) > 1:
            giver = rng.choice(holders)
            owns[giver, most] = False
            owns[giver, orphan] = True
    return owns


def _among_owners(classes: list[Ints], owns: NDArray[np.bool_], total: int, rng: Random, what: str) -> Ownership:
    """Divide each class's examples evenly among the clients that own it."""
    owner = np.full(total, NOBODY)
    for kind, indices in enumerate(classes):
        holders = rng.permutation(np.flatnonzero(owns[:, kind]))
        if len(holders):
            owner[indices] = holders[np.arange(len(indices)) % len(holders)]
    held = np.zeros_like(owns)
    for kind, indices in enumerate(classes):
        held[owner[indices][owner[indices] >= 0], kind] = True
    short = int((held.sum(axis=1) < owns.sum(axis=1)).sum())
    done = f"{what} to every one of {len(owns)} clients, each class dealt evenly among its owners"
    if short:
        done += f" ({short} clients miss a class that has fewer examples than owners)"
    return Ownership(owner, done, "no client drew the class")


def _top_up(owner: Ints, labels: Ints, clients: int, least: int, rng: Random) -> int:
    """Move examples in place from clients with more than `least` to those with fewer; return how many were moved."""
    sizes = np.bincount(owner, minlength=clients)
    missing = np.maximum(least - sizes, 0)
    order = np.lexsort((rng.random(len(owner)), owner))  # by client, shuffled within
    rank = np.arange(len(owner)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    moved = rng.permutation(order[rank >= least])[: missing.sum()]
    moved = moved[
        np.argsort(labels[moved], kind="stable")
    ]  # consecutive examples share a label, which preserves the skew
    poor = rng.permutation(clients)
    owner[moved] = np.repeat(poor, missing[poor])
    return len(moved)


def _labels_for(slots: Ints, mix: NDArray[np.float64], left: Ints, rng: Random) -> Ints:
    """Draw a label for each client's slot [n] from the client's mix of the labels that are left."""
    kinds = mix.shape[1]
    wanted = np.full(len(slots), NOBODY)
    open_slots = rng.permutation(len(slots))
    for _ in range(kinds):  # each pass fills every slot or uses up a label
        if not len(open_slots):
            return wanted
        odds = np.where(left > 0, np.maximum(mix, np.finfo(np.float64).tiny * left), 0.0)
        edges = np.cumsum(odds / odds.sum(axis=1, keepdims=True), axis=1) + np.arange(len(mix))[:, None]
        client = slots[open_slots]
        place = np.searchsorted(edges.ravel(), client + rng.random(len(client)), side="right")
        drawn = np.clip(place - client * kinds, 0, kinds - 1)
        order = np.argsort(drawn, kind="stable")
        count = np.bincount(drawn, minlength=kinds)
        rank = np.arange(len(drawn)) - np.repeat(np.cumsum(count) - count, count)
        filled = order[rank < left[drawn[order]]]
        wanted[open_slots[filled]] = drawn[filled]
        left = left - np.minimum(count, left)
        open_slots = np.delete(open_slots, filled)
    wanted[open_slots] = np.repeat(np.arange(kinds), left)
    return wanted
