"""Which node hosts which clients, and the text `0-4,7` that says so in a node's configuration."""

from __future__ import annotations

from collections.abc import Iterable

from fedloom.errors import BadExperiment


def deal_clients(clients: int, nodes: int) -> list[list[int]]:
    """The clients of each node, dealt in turn: node 0 hosts 0, `nodes`, 2 `nodes`, ..."""
    if not 1 <= nodes <= clients:
        raise BadExperiment(f"nodes is {nodes} for {clients} clients; expected from 1 to {clients}, or more --clients.")
    return [list(range(first, clients, nodes)) for first in range(nodes)]


def format_ranges(numbers: Iterable[int]) -> str:
    """Numbers as text, rising, neighbours joined: `0-4,7`."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and runs[-1][-1] == number - 1:
            runs[-1] = [runs[-1][0], number]
        else:
            runs.append([number])
    return ",".join("-".join(map(str, run)) for run in runs)


def parse_ranges(text: str) -> list[int]:
    """The numbers of `0-4,7`, each once and rising."""
    found: set[int] = set()
    for part in text.replace(" ", "").split(","):
        first, dash, last = part.partition("-")
        if not first.isdigit() or (dash and not last.isdigit()) or (dash and int(last) < int(first)):
            raise BadExperiment(f"node config: clients is '{text}'; expected numbers and ranges, such as 0-4,7.")
        found |= set(range(int(first), int(last or first) + 1)) if dash else {int(first)}
    return sorted(found)
