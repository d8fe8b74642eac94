"""Which node hosts which clients? Written as `0-4,7` in a node's configuration."""

from __future__ import annotations

from collections.abc import Iterable

from fedloom.errors import BadExperiment


def dealt(clients: int, nodes: int) -> list[list[int]]:
    """The clients of each node, dealt like cards."""
    if not 1 <= nodes <= clients:
        raise BadExperiment(f"nodes is {nodes} for {clients} clients; expected from 1 to {clients}, or more --clients.")
    return [list(range(first, clients, nodes)) for first in range(nodes)]


def written(numbers: Iterable[int]) -> str:
    """Numbers in order, neighbours joined: `0-4,7`."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and runs[-1][-1] == number - 1:
            runs[-1] = [runs[-1][0], number]
        else:
            runs.append([number])
    return ",".join("-".join(map(str, run)) for run in runs)
