"""Which node hosts which clients after nodes came or went."""

from __future__ import annotations

from collections.abc import Sequence

from fedloom.errors import BadExperiment
from fedloom.flower.protocol.assignment import format_ranges

Hosted = dict[int, list[int]]  # clients of each node, by its number


def with_nodes(hosted: Hosted, new: Sequence[int], clients: int, wanted: Sequence[int] = ()) -> Hosted:
    """Clients with more nodes: the `wanted` go to the new ones in turn or, without any, those that have no node.

    If all have one, the new nodes get their part from those with the most, the highest numbers first; no other moves.
    """
    if strange := [client for client in wanted if not 0 <= client < clients]:
        raise BadExperiment(
            f"clients has {format_ranges(strange)}; the experiment's are 0-{clients - 1}. With more clients it is "
            "another experiment: `fedloom deploy METHOD --clients ... --like DIR`."
        )
    wanted = wanted or sorted(set(range(clients)).difference(*hosted.values()))
    found = {node: [one for one in own if one not in wanted] for node, own in hosted.items()}
    found |= {node: list(wanted[at :: len(new)]) for at, node in enumerate(new)}
    while not wanted:
        fullest, emptiest = max(found, key=lambda node: len(found[node])), min(new, key=lambda node: len(found[node]))
        if len(found[fullest]) - len(found[emptiest]) < 2:
            break
        client = max(found[fullest])
        found[fullest].remove(client)
        found[emptiest].append(client)
    if idle := [node for node, own in found.items() if not own]:
        raise BadExperiment(
            f"node {format_ranges(idle)} would host nobody: there are {clients} clients for {len(found)} nodes; add "
            "fewer nodes, or name --clients so that each has one."
        )
    return {node: sorted(own) for node, own in found.items()}


def without_node(hosted: Hosted, node: int, deal: bool) -> Hosted:
    """Clients with a node less; its own are dealt to those with the fewest, or have no node from now on."""
    if node not in hosted:
        raise BadExperiment(f"node is {node}; the deployment has {format_ranges(hosted)}.")
    found = {one: list(own) for one, own in hosted.items() if one != node}
    if not found:
        raise BadExperiment(f"node {node} is the last one; a deployment needs one.")
    for client in hosted[node] if deal else ():
        found[min(found, key=lambda one: len(found[one]))].append(client)
    return {one: sorted(own) for one, own in found.items()}


def moved(before: Hosted, after: Hosted) -> list[tuple[int, int | None, int | None]]:
    """Each client whose node is another now, the node before and the node after; None: no node."""
    old, new = ({client: node for node, own in hosted.items() for client in own} for hosted in (before, after))
    return [
        (client, old.get(client), new.get(client))
        for client in sorted(old.keys() | new.keys())
        if old.get(client) != new.get(client)
    ]
