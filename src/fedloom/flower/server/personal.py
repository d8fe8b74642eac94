"""Scores of clients' own models, which their nodes try: the second exchange of a round."""

from __future__ import annotations

import time
from math import isfinite
from typing import Any

import torch

from fedloom.core.metric import Limits
from fedloom.flower.protocol.records import NodeMessage, Payload
from fedloom.flower.server.closing import Closing
from fedloom.flower.server.mailbox import Mailbox


class Scores:
    """Score of every client's own model [N]; NaN where no node answered for a client."""

    def __init__(self, size: int, limits: Limits) -> None:
        self.found = torch.full((size,), torch.nan, dtype=torch.float64)
        self.limits = limits

    def take(self, facts: dict[str, Any], clients: list[int]) -> None:
        """Enter a node's answer for its clients."""
        for client, score in reported_scores(facts, clients, self.limits):
            self.found[client] = score


def ask_for_scores(
    mailbox: Mailbox,
    hosts: dict[int, int],
    facts: dict[str, Any],
    payload: Payload,
    scores: Scores,
    deadline: float,
    closing: Closing,
) -> None:
    """Send the model to the node of every client, and enter the scores that come in time."""
    began, clients_by_name = time.monotonic(), dict[str, list[int]]()
    for node in sorted(set(hosts.values())):
        own = [client for client, host in hosts.items() if host == node]
        if (name := mailbox.send("evaluate", node, facts, [payload])) is not None:
            clients_by_name[name] = own
    nodes, clients, replies, took = len(clients_by_name), sum(map(len, clients_by_name.values())), 0, list[float]()
    while clients_by_name and (waited := time.monotonic() - began) < deadline:
        if closing.over(nodes, took, clients, replies, waited):
            break
        for name, answer in mailbox.receive(list(clients_by_name)):
            own = clients_by_name.pop(name)
            if isinstance(answer, NodeMessage):
                scores.take(answer.facts, own)
                took.append(time.monotonic() - began)
                replies += len(own)
            else:
                nodes, clients = nodes - 1, clients - len(own)
        time.sleep(mailbox.interval if clients_by_name else 0)


def reported_scores(facts: dict[str, Any], clients: list[int], limits: Limits) -> list[tuple[int, float]]:
    """Client and score, as a node reports them; entries that are not finite numbers within limits are left out."""
    reported, (least, most) = facts.get("score"), limits
    pairs = [p for p in reported if isinstance(p, list) and len(p) == 2] if isinstance(reported, list) else []
    hosted = set(clients)
    return [
        (client, float(value))
        for client, value in pairs
        if type(client) is int and client in hosted and type(value) in (int, float)
        if least <= value <= most and abs(value) < 2**1000 and isfinite(value)  # a whole number may be no float
    ]
