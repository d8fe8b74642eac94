"""What a run does now and has done, as plain numbers: written by the run, read by whoever asks, in any thread."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from fedloom.chance import Chance
from fedloom.core.types import Reply, State, Task
from fedloom.flower.protocol.figures import Figure, Health
from fedloom.flower.server.costs import PHASES
from fedloom.flower.server.network import Network
from fedloom.flower.server.roster import Roster
from fedloom.runs.checkpoint.store import list_all
from fedloom.runs.watch import Watch

STUCK = 60.0  # seconds beyond what waiting may take, after which a phase counts as stuck
REFUSED = "rejected."  # leads the columns of refusals by reason
TRAFFIC = ("bytes_down", "bytes_up", "transport_down", "transport_up")
SERVER, WAITING, EXCHANGE, PERSONAL, STEPS = "server", "waiting", "exchange", "personal", "steps"  # phases


@dataclass
class Status:
    """Dictionaries are replaced, never changed, since another thread may go through them."""

    folder: Path | None
    rounds: int  # of the whole run
    limit: float  # seconds that a phase may take
    score_name: str
    phase: str = SERVER
    since: float = field(default_factory=time.monotonic)  # when the phase began
    row: dict[str, Any] = field(default_factory=dict)  # of the last round
    score: float | None = None  # at the last evaluation
    sums: dict[str, float] = field(default_factory=dict)  # over the rounds that this process played
    refused: dict[str, float] = field(default_factory=dict)  # by reason
    seconds: dict[str, float] = field(default_factory=dict)  # by phase, of phases that are over
    client_seconds: dict[str, float] = field(default_factory=dict)  # by phase, means of the last round
    nodes: dict[str, float] = field(default_factory=dict)  # by status
    clients: dict[str, float] = field(default_factory=dict)  # by whether their node is there

    @contextmanager
    def doing(self, phase: str) -> Iterator[None]:
        """Within, the run is in this phase."""
        before = self.phase
        self._enter(phase)
        try:
            yield
        finally:
            self._enter(before)

    def _enter(self, phase: str) -> None:
        """Begin a phase, and count the seconds of the one before."""
        now = time.monotonic()
        self.seconds = {**self.seconds, self.phase: self.seconds.get(self.phase, 0.0) + now - self.since}
        self.phase, self.since = phase, now

    def seen(self, roster: Roster) -> None:
        """Nodes were looked for."""
        here, total = len(roster.present()), len(roster.numbers)
        self.nodes = {name: float(count) for name, count in roster.counts().items()}
        self.clients = {"here": float(here), "away": float(total - here)}

    def noting(self, watch: Watch) -> Watch:
        """The function that is called with every round's row; the row is noted as well."""

        def both(row: dict[str, Any]) -> None:
            self.played(row)
            watch(row)

        return both

    def played(self, row: dict[str, Any]) -> None:
        """A round is over."""
        names = ("clients", "arrived", "rejected", *TRAFFIC)
        self.sums = {name: self.sums.get(name, 0.0) + (row.get(name) or 0) for name in names}
        reasons = {name.removeprefix(REFUSED): value for name, value in row.items() if name.startswith(REFUSED)}
        self.refused |= {reason: self.refused.get(reason, 0.0) + (value or 0) for reason, value in reasons.items()}
        self._enter(self.phase)  # which lasts since then: without a barrier there is only one
        self.row, self.score = row, self.score if row.get("score") is None else row["score"]

    def answered(self, reply: Reply) -> None:
        """A round's replies are there: how long their clients took, where they answered."""
        columns = None if reply.costs is None else reply.costs.columns
        if columns is not None and bool(reply.arrived.any()):
            self.client_seconds = {
                name.removeprefix("seconds_"): float(columns[name][reply.arrived.cpu()].mean()) for name in PHASES
            }

    def health(self) -> Health:
        """Whether the run gets on."""
        lasts = time.monotonic() - self.since
        what = f"round {self.row.get('round', 0)} of {self.rounds} is over; {self.phase} for {lasts:.0f} s"
        return Health(lasts <= self.limit, what)

    def figures(self) -> list[Figure]:
        """All that Prometheus is told."""
        sums, row, saved = self.sums, self.row, list_all(self.folder / "checkpoint")[:1] if self.folder else []
        since = {self.phase: self.seconds.get(self.phase, 0.0) + time.monotonic() - self.since}
        lost = max(0.0, sums.get("clients", 0.0) - sums.get("arrived", 0.0) - sums.get("rejected", 0.0))
        traffic = {name: sums.get(name, 0.0) for name in TRAFFIC}
        return [
            Figure("round", "the last round that is over", row.get("round", 0)),
            Figure("rounds", "rounds of the whole run", self.rounds),
            Figure("replies_accepted", "replies that counted", sums.get("arrived", 0.0), counts=True),
            Figure("replies_lost", "tasks without a reply in time", lost, counts=True),
            Figure("replies_refused", "replies refused, by reason", dict(self.refused), "reason", True),
            Figure("phase_seconds", "seconds of the server, by phase", {**self.seconds, **since}, "phase", True),
            Figure("round_seconds", "seconds of the last round", row.get("wall_seconds")),
            Figure("client_seconds", "mean seconds of a client in the last round", self.client_seconds, "phase"),
            Figure("bytes", "bytes of messages, and of their transport", traffic, "kind", True),
            Figure("score", f"{self.score_name} at the last evaluation", self.score),
            Figure("nodes", "nodes, by status", self.nodes, "status"),
            Figure("clients", "clients of the fleet, by whether their node is there", self.clients, "status"),
            Figure("checkpoint_timestamp_seconds", "when the run was last saved", _time_of(saved)),
        ]


def _time_of(paths: list[Path]) -> float | None:
    """When the first of these was written; it may be removed meanwhile."""
    try:
        return paths[0].stat().st_mtime if paths else None
    except OSError:
        return None


class Observed:
    """A network whose phases are noted."""

    def __init__(self, network: Network, status: Status) -> None:
        self._network, self._status = network, status

    def train(self, ids: Tensor, task: Task, chance: Chance) -> Reply:
        """As the network."""
        with self._status.doing(EXCHANGE):
            reply = self._network.train(ids, task, chance)
        self._status.answered(reply)
        return reply

    def personal(self, model: Tensor) -> Tensor | None:
        """As the network."""
        with self._status.doing(PERSONAL):
            return self._network.personal(model)

    def settle(self, ids: list[int]) -> None:
        """As the network."""
        self._network.settle(ids)

    def save(self) -> State:
        """As the network."""
        return self._network.save()

    def load(self, state: State) -> None:
        """As the network."""
        self._network.load(state)

    def describe(self) -> dict[str, Any]:
        """As the network."""
        return self._network.describe()
