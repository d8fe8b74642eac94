"""What happened, round by round and client by client? Kept as tensors, read when written or shown."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors.torch import save_file
from torch import Tensor

from fedloom.codec import Cost
from fedloom.evaluate.accuracy import Score
from fedloom.files import atomically
from fedloom.types import Reply, State, Task
from fedloom.world.simulated import Costs

ROUNDS = pa.schema(
    [("round", pa.int64())]
    + [(name, pa.float64()) for name in ("accuracy", "top5", "loss")]
    + [("per_class", pa.list_(pa.float64()))]
    + [(name, pa.float64()) for name in ("personal_accuracy", "training_loss")]
    + [(name, pa.int64()) for name in ("clients", "arrived", "rejected", "examples_trained", "bytes_down", "bytes_up")]
    + [(name, pa.float64()) for name in ("virtual_seconds", "joules", "wall_seconds")]
)


class Ledger:
    """Rows of `rounds.parquet` and `clients.parquet`."""

    def __init__(self, clients: list[int]) -> None:
        self._numbers = torch.tensor(clients)  # the partition's number of each client in the fleet
        self._rounds: list[dict[str, Any]] = []
        self._clients: list[dict[str, Tensor]] = []
        self._numbers_kept: list[str] = []  # names of columns that the method's parts add
        self.kept: State = {}  # larger tensors that they keep of the last round

    def add(
        self,
        task: Task,
        reply: Reply,
        seconds: float,
        prices: tuple[Cost, Cost],
        examples: Tensor,
        costs: Costs | None = None,
        kept: State | None = None,
    ) -> None:
        """A round that was played.

        `reply` is as it arrived, `prices` are bytes down and up, `examples` [C] how many each client trains on, repeats
        counted; in a world, `costs` say what the round took. `kept` is what the method's parts record of it.
        """
        down, up = (Cost(*(part.to(reply.ids.device) for part in price)) for price in prices)
        rejected = torch.zeros_like(reply.ids, dtype=torch.int8) if reply.rejected is None else reply.rejected
        sent = reply.arrived | (rejected > 0)
        if costs is not None:
            sent = costs.bytes_up > 0  # in a world, also what was lost on the way
        rows = {
            "round": torch.full_like(reply.ids, task.round),
            "client": reply.ids,
            "share": task.share,
            "arrived": reply.arrived,
            "rejected": rejected,
            "examples_trained": examples if costs is None else examples * costs.trained,
            "bytes_down": down.total,
            "bytes_up": up.total * sent,
            **{f"bytes_up_{name}": part * sent for name, part in up._asdict().items()},
            **{name: value for name, value in reply.report.items() if value.dim() == 1},
            **({} if costs is None else costs.columns()),  # of those as well whose reply did not arrive
        }
        self._clients.append({**rows, "client": self._numbers[reply.ids.cpu()]})
        duration = None if costs is None else costs.duration
        columns = {name: value for name, value in (kept or {}).items() if value.dim() == 0}
        self.kept = {name: value for name, value in (kept or {}).items() if value.dim() > 0}
        self._numbers_kept += [name for name in columns if name not in self._numbers_kept]
        entry = {"round": task.round, "wall_seconds": seconds, "virtual": duration, "rows": rows, "kept": columns}
        self._rounds.append(entry)

    @property
    def length(self) -> int:
        """Rounds so far."""
        return len(self._rounds)

    def score(self, score: Score, personal: Tensor | None) -> None:
        """The evaluation after the round added last."""
        self._rounds[-1]["score"] = score
        self._rounds[-1]["personal"] = personal

    def rounds(self) -> list[dict[str, Any]]:
        """One row a round, as plain numbers; None where nothing was measured."""
        return [self._row(entry) for entry in self._rounds]

    def last(self) -> dict[str, Any]:
        """The newest row."""
        return self._row(self._rounds[-1])

    @staticmethod
    def _row(entry: dict[str, Any]) -> dict[str, Any]:
        rows, score, personal = entry["rows"], entry.get("score"), entry.get("personal")
        arrived = int(rows["arrived"].sum())
        known = None if personal is None else personal[~personal.isnan()]
        return {
            "round": entry["round"],
            "accuracy": None if score is None else float(score.accuracy),
            "top5": None if score is None else float(score.top5),
            "loss": None if score is None else float(score.loss),
            "per_class": None if score is None else score.per_class.tolist(),
            "personal_accuracy": None if known is None or not len(known) else float(known.mean()),
            "training_loss": float((rows["loss"] * rows["arrived"]).sum()) / arrived if arrived else None,
            "clients": len(rows["client"]),
            "arrived": arrived,
            "rejected": int(sum(v for name, v in entry["kept"].items() if name.startswith("rejected."))),
            "examples_trained": int(rows["examples_trained"].sum()),
            "bytes_down": int(rows["bytes_down"].sum()),
            "bytes_up": int(rows["bytes_up"].sum()),
            "virtual_seconds": None if entry["virtual"] is None else float(entry["virtual"]),
            "joules": float(rows["joules"].sum()) if "joules" in rows else None,
            "wall_seconds": entry["wall_seconds"],
            **{name: float(value) for name, value in entry["kept"].items()},
        }

    def write(self, folder: Path) -> None:
        """Both tables and what else was kept, each replaced as a whole."""
        clients = {
            name: torch.cat([rows.get(name, torch.zeros_like(rows["share"])) for rows in self._clients]).cpu().numpy()
            for name in dict.fromkeys(name for rows in self._clients for name in rows)
        }  # a round that reached nobody lacks what a rule reports by itself
        schema = pa.schema([*ROUNDS, *((name, pa.float64()) for name in self._numbers_kept)])
        rounds = pa.Table.from_pylist(self.rounds(), schema)
        for file, table in (("rounds.parquet", rounds), ("clients.parquet", pa.table(clients))):
            atomically(folder / file, partial(pq.write_table, table))
        if self.kept:
            tensors = {name: value.contiguous().cpu() for name, value in self.kept.items()}
            atomically(folder / "kept.safetensors", lambda path: save_file(tensors, path))
