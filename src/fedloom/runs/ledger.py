"""The record of a run, by round and by client: tensors, which are fetched when they are written or shown."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedloom.core.costs import Bytes
from fedloom.core.flight import Flight
from fedloom.core.goal import Goal
from fedloom.core.types import Reply, State, Task
from fedloom.evaluate.coverage import Coverage
from fedloom.evaluate.score import Score
from fedloom.files import replace_file
from fedloom.layout import Layout
from fedloom.runs.checkpoint.tensors import pack
from fedloom.runs.columns import (
    PERSONAL,
    SPENT,
    VALIDATION,
    Columns,
    as_tensors,
    by_number,
    joined,
    row_names,
    run_sums,
)
from fedloom.runs.round_rows import fetched, finite, plain_score, row_of
from fedloom.runs.unfinished import unfinished_rows


class Ledger:
    """The rows of `rounds.parquet` and `clients.parquet`, and the tensors of `kept.safetensors`."""

    def __init__(
        self,
        clients: list[int],
        layout: Layout | None,
        examples: Tensor,
        goal: Goal,
        names: Sequence[str] = (),
        whole: Tensor | None = None,
        validates: bool = False,
    ) -> None:
        """`examples` [N]: the number that each client of the fleet trains on in a round, repeats counted.

        `names`: of the partition's clients, for the column `name`; without any there is no such column. `whole` [N]:
        seconds that each client takes for a round with the whole model, by its device. `validates`: the model is
        scored on validation examples too.
        """
        self._validates = validates
        self._names = names
        self._metrics, self._own = [one.name for one in goal.metrics], goal.personal.name
        self._numbers = np.array(clients)  # each client's number in the partition
        self._examples = examples.cpu().numpy()
        self._whole = None if whole is None else by_number(self._numbers, whole.cpu().numpy())
        self._past: list[dict[str, Any]] = []  # rows of rounds before those in `_rounds`
        self._rounds: list[dict[str, Any]] = []  # as they were added
        self._clients: list[Columns] = []  # columns of the rounds in `_past`, on the host
        self._recorded: State = {}  # tensors that the method's parts record of the last round
        self._personal: State = {}  # every client's own score [N] at the last evaluation; NaN: it has no test
        self._coverage = None if layout is None else Coverage(layout)

    @property
    def tensors(self) -> State:
        """Recorded tensors larger than a number: of the last round, of the last evaluation, and of all replies."""
        self._fetch_all()
        sums = run_sums(self._clients[0], self._whole) if self._clients and self._whole is not None else {}
        return {**self._recorded, **self._personal, **({} if self._coverage is None else self._coverage.kept()), **sums}

    @property
    def columns(self) -> list[str]:
        """The names in every row; parts and networks add others."""
        return row_names(self._metrics, self._own) + ([VALIDATION] if self._validates else [])

    def add(self, task: Task, reply: Reply, seconds: float, recorded: State | None = None) -> None:
        """Add a round that was played. Nothing is computed yet: calls on a GPU take time, and a row may not be needed.

        `reply` is as it arrived, with its costs; `recorded` is what the method's parts record of the round.
        """
        costs = reply.costs
        assert costs is not None  # every engine of a run prices its messages
        facts = {"ids": reply.ids, "share": task.share, "arrived": reply.arrived}
        maybe = {"rejected": reply.rejected, "trained": costs.trained, "sent": costs.sent}
        facts |= {name: value for name, value in maybe.items() if value is not None}
        more = {
            **{name: value for name, value in reply.report.items() if value.dim() == 1},
            **(costs.columns or {}),  # also of clients whose reply did not arrive
        }
        self._recorded = {name: value for name, value in (recorded or {}).items() if value.dim() > 0}
        if self._coverage is not None:
            self._coverage.add(reply)
        self._rounds.append({
            "round": task.round,
            "wall_seconds": seconds,
            "virtual": costs.duration,
            "facts": facts,
            "more": more,
            "prices": (costs.down, costs.up),
            "row": costs.row or {},
            "recorded": {name: value for name, value in (recorded or {}).items() if value.dim() == 0},
            "strays": reply.strays,
        })  # fmt: skip

    def score(
        self, score: Score | None, personal: Tensor | None, *seconds: float, validation: Score | None = None
    ) -> None:
        """Add the evaluation after the last round, and its seconds, in the order of `SPENT`.

        A model without layers that clients keep to themselves has no score.
        """
        self._personal, spent = {} if personal is None else {PERSONAL: personal}, dict(zip(SPENT, seconds))
        if self._rounds:
            self._rounds[-1] |= {"score": score, "personal": personal, "validation": validation, "spent": spent}
        else:
            found, checked = (None if one is None else plain_score(one) for one in (score, validation))
            self._past[-1] = self._past[-1] | self._scores(found, personal, checked) | dict.fromkeys(SPENT) | spent

    def drop_score(self) -> None:
        """Remove the evaluation after the last round."""
        self._fetch_all()
        self._past[-1] = self._past[-1] | self._scores(None, None, None) | dict.fromkeys(SPENT)
        self._personal = {}

    def rounds(self) -> list[dict[str, Any]]:
        """One row per round, as plain numbers; None where nothing was measured."""
        here = fetched(self._rounds)
        columns = [self._columns(entry, here) for entry in self._rounds]
        scores = []
        for entry in self._rounds:
            found, checked = (_read(entry.get(name), here) for name in ("score", "validation"))
            scores.append(self._scores(found, entry.get("personal"), checked))
        rows = [row_of(*each) for each in zip(self._rounds, columns, [here] * len(columns), scores)]
        clients = [{**own, "client": self._numbers[own["client"]]} for own in columns]
        self._past, self._clients, self._rounds = [*self._past, *rows], [*self._clients, *clients], []
        return list(self._past)

    def _scores(
        self, score: dict[str, Any] | None, personal: Tensor | None, validation: dict[str, Any] | None
    ) -> dict[str, Any]:
        """An evaluation's part of a row; metrics that are not finite are None."""
        known = None if personal is None else personal[~personal.isnan()]
        own = None if known is None or not len(known) else finite(float(known.mean()))
        values = dict.fromkeys(self._metrics) if score is None else {n: finite(score[n]) for n in self._metrics}
        checked = {VALIDATION: None if validation is None else finite(validation[self._metrics[0]])}
        return {
            "score": values[self._metrics[0]],
            **(checked if self._validates else {}),
            **values,
            "loss": None if score is None else score["loss"],
            "personal_score": own,
            f"personal_{self._own}": own,
        }

    def _columns(self, entry: dict[str, Any], here: dict[int, NDArray[Any]]) -> Columns:
        """A round's columns of clients [C each]; `here`: its tensors on the host, by the identity of the originals."""
        facts = {name: here[id(value)] for name, value in entry["facts"].items()}
        down, up = ([here[id(part)] for part in price] for price in entry["prices"])
        ids, arrived, examples = facts["ids"], facts["arrived"], self._examples[facts["ids"]]
        rejected = facts["rejected"] if "rejected" in facts else np.zeros(ids.shape, np.int8)
        # in a simulated world also replies that were lost
        sent = facts["sent"] > 0 if "sent" in facts else arrived | (rejected > 0)
        return {
            "round": np.full_like(ids, entry["round"]),
            "client": ids,
            "share": facts["share"],
            "arrived": arrived,
            "rejected": rejected,
            "examples_trained": examples * facts["trained"] if "trained" in facts else examples,
            "bytes_down": sum(down),
            "bytes_up": sum(up) * sent,
            **{f"bytes_up_{name}": part * sent for name, part in zip(Bytes._fields, up)},
            **{name: here[id(value)] for name, value in entry["more"].items()},
        }

    def last(self) -> dict[str, Any]:
        """The row of the last round."""
        return self.newest(1)[0]

    def newest(self, count: int) -> list[dict[str, Any]]:
        """The last `count` rows, oldest first; reading them waits for the device."""
        rows = self.rounds()
        return rows[max(0, len(rows) - count) :]

    def clock(self) -> tuple[float, float]:
        """Virtual seconds before and after the last round; they add up as they did while rounds were played."""
        made = [0.0, *accumulate(row["virtual_seconds"] or 0.0 for row in self.rounds())]
        return made[max(0, len(made) - 2)], made[-1]

    @property
    def measures_time(self) -> bool:
        """Whether the last round's seconds were measured or simulated, so that replies can be lost or late."""
        if self._rounds:
            return self._rounds[-1]["virtual"] is not None
        return bool(self._past) and self._past[-1]["virtual_seconds"] is not None

    def unanswered(self, most: int | None = None) -> int:
        """The number of last rounds in which no reply arrived, at most `most`."""
        count = 0
        for number in range(len(self._past) + len(self._rounds) - 1, -1, -1):
            own = number - len(self._past)
            arrived = self._past[number]["arrived"] if own < 0 else bool(self._rounds[own]["facts"]["arrived"].any())
            if arrived or count == most:
                break
            count += 1
        return count

    def save(self) -> tuple[list[dict[str, Any]], State, State]:
        """One row per round, the columns of all clients' rows, and the larger tensors of the last round."""
        self._fetch_all()
        counts = {} if self._coverage is None else self._coverage.save()
        tensors = {**self._recorded, **self._personal, **counts}
        return list(self._past), as_tensors(self._clients[0]) if self._clients else {}, tensors

    def load(self, rows: list[dict[str, Any]], columns: State, tensors: State) -> None:
        """Put back what `save` gave."""
        own = {name: value.clone() for name, value in tensors.items() if not name.startswith("coverage.")}
        self._personal = {name: own.pop(name) for name in (PERSONAL,) if name in own}
        self._past, self._recorded = rows, own
        if self._coverage is not None:
            self._coverage.load(tensors)
        self._clients = [{name: value.clone().numpy() for name, value in columns.items()}] if columns else []

    def _fetch_all(self) -> None:
        """Turn all rounds into plain rows, and the clients' rows into whole columns on the host."""
        self.rounds()
        if self._clients:
            self._clients = [joined(self._clients)]

    def write(self, folder: Path, flight: Flight | None = None) -> None:
        """Write both tables and the recorded tensors, each file replaced as a whole.

        Tasks that are still in a `flight` are at the end of the clients' table, but not in the ledger.
        """
        from fedloom.runs.parquet import column_bytes, table_bytes  # imported here, since most rounds write nothing

        replace_file(folder / "rounds.parquet", [table_bytes(self.rounds(), self.columns)])
        columns = joined(self._clients)
        if flight is not None and columns:
            columns = joined([columns, unfinished_rows(flight, columns, self._numbers)])
        replace_file(folder / "clients.parquet", [column_bytes(as_tensors(columns), self._names)])
        if tensors := self.tensors:
            replace_file(folder / "kept.safetensors", pack(tensors))


def _read(score: Score | None, here: dict[int, NDArray[Any]]) -> dict[str, Any] | None:
    """An evaluation as plain numbers; None: there was none."""
    return None if score is None else plain_score(score, here)
