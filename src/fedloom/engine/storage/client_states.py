"""Client states between rounds, in rows that are created at a client's first contact."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedloom.core.types import State
from fedloom.engine.storage.backing import Backing, Place

BEHIND = 2  # chunks whose states may be pending copies from a GPU to the host, at most


class _Pending(NamedTuple):
    """States that are being copied to the host."""

    row: Tensor
    values: State
    done: Any  # a CUDA event


class ClientStates:
    """States of all clients that ever took part; memory grows with their number, not with the fleet.

    They lie on the device, in the host's memory, or in a file that is mapped into it. With `waits`, a new state is kept
    aside where it was computed until it is settled, and nobody reads it before; a client has at most one aside.
    """

    def __init__(self, fleet_size: int, device: torch.device, place: Place = "device", *, waits: bool = False) -> None:
        self._waits = waits
        self._aside: dict[int, tuple[State, int]] = {}  # by client: new states, and which row is its own
        self._row = torch.full((fleet_size,), -1, dtype=torch.int64)  # -1: none; on the host, to be read at once
        self._device, self._place = device, place
        self._count = 0
        self._stored: dict[str, Backing] = {}
        self._pending: list[_Pending] = []
        self._last: tuple[list[int], Tensor, Tensor | slice] | None = None  # clients of the last call, and their rows
        away = place != "device" and device.type == "cuda"
        self._copy_stream = torch.cuda.Stream(device) if away else None

    def get(self, ids: list[int], initial: State) -> State:
        """The states of clients `ids` [C, ...]; a client without one starts from `initial`."""
        if not initial:
            return {}
        if self._waits and not self.met(ids):
            return self._look(ids, initial)
        if not self.met(ids) or not initial.keys() <= self._stored.keys():
            self._create(torch.tensor(ids)[self._row[ids] < 0], initial)
        row, at = self._rows_of(ids)
        if self._copy_stream is not None:
            return self._fetch(row, self._copy_stream, list(initial))
        stored = {name: self._stored[name].rows for name in initial}
        if isinstance(at, slice):
            return {name: rows[at].to(self._device, copy=True) for name, rows in stored.items()}
        return {name: rows.index_select(0, at).to(self._device) for name, rows in stored.items()}

    def met(self, ids: list[int]) -> bool:
        """Whether all of these clients have a state."""
        return (self._last is not None and self._last[0] == ids) or bool((self._row[ids] >= 0).all())

    def _create(self, fresh: Tensor, initial: State) -> None:
        """Create the states of clients that take part for the first time."""
        self._reserve(self._count + len(fresh), initial)
        self._row[fresh] = torch.arange(self._count, self._count + len(fresh))
        for name, value in initial.items():
            rows = self._stored[name].rows
            rows[self._count : self._count + len(fresh)] = value.to(rows.device)
        self._count += len(fresh)

    def _rows_of(self, ids: list[int]) -> tuple[Tensor, Tensor | slice]:
        """The rows of clients that have a state, on the host and as an index of the states; rows never change."""
        if self._last is None or self._last[0] != ids:
            row = self._row[ids]
            first = int(row[0]) if ids else 0
            adjacent = torch.equal(row, torch.arange(first, first + len(row)))  # a slice is quicker to copy
            here = row if adjacent or self._place != "device" else row.to(self._device, non_blocking=True)
            at = slice(first, first + len(row)) if adjacent else here
            self._last = list(ids), row, at
        return self._last[1:]

    def put(self, ids: list[int], state: State) -> None:
        """Write the states of `ids` back."""
        if not state:
            return
        if self._waits:
            self._aside.update((client, (state, place)) for place, client in enumerate(ids))
        else:
            self._write(ids, state)

    def settle(self, ids: list[int]) -> None:
        """Write the states that were kept aside for some clients."""
        found = [(client, *self._aside.pop(client)) for client in ids if client in self._aside]
        if found and not self.met([client for client, _, _ in found]):  # in one order, whoever trained together
            row = self._row[[client for client, _, _ in found]]
            fresh = torch.tensor([client for client, _, _ in found])[row < 0]
            self._create(fresh, {name: value[0] for name, value in found[0][1].items()})
        for state in {id(state): state for _, state, _ in found}.values():
            mine = [(client, place) for client, own, place in found if own is state]
            some, at = [client for client, _ in mine], torch.tensor([place for _, place in mine])
            self._write(some, {name: value[at.to(value.device)] for name, value in state.items()})
            self._compact(state)

    def _compact(self, state: State) -> None:
        """Copy the rows of states kept aside that are still needed, if they are less than half of them."""
        left = [(client, place) for client, (own, place) in self._aside.items() if own is state]
        if left and 2 * len(left) < len(next(iter(state.values()))):
            at = torch.tensor([place for _, place in left])
            rows = {name: value[at.to(value.device)] for name, value in state.items()}
            self._aside.update((client, (rows, place)) for place, (client, _) in enumerate(left))

    def _look(self, ids: list[int], initial: State) -> State:
        """The states of clients of whom some have none, which creates none."""
        known = self._row[ids] >= 0
        at = known.nonzero().flatten()
        found = {name: value.to(self._device).repeat(len(ids), *(1,) * value.dim()) for name, value in initial.items()}
        if len(at):
            for name, rows in self.get([ids[place] for place in at.tolist()], initial).items():
                found[name][at.to(self._device)] = rows
        return found

    def _write(self, ids: list[int], state: State) -> None:
        """Write states of clients that have one."""
        row, at = self._rows_of(ids)
        if self._copy_stream is not None:
            self._send(row, state)
            return
        for name, value in state.items():
            self._stored[name].rows[at] = value

    def _fetch(self, row: Tensor, side: Any, names: list[str]) -> State:
        """Copy states from the host to a GPU while it still trains other clients."""
        if any(bool(torch.isin(row, one.row).any()) for one in self._pending):
            self._finish(0)
        found: State = {}
        with torch.cuda.stream(side):
            for name in names:
                rows = self._stored[name].rows
                pinned = torch.empty((len(row), *rows.shape[1:]), dtype=rows.dtype, pin_memory=True)
                torch.index_select(rows, 0, row, out=pinned)
                found[name] = pinned.to(self._device, non_blocking=True)
        now = torch.cuda.current_stream(self._device)
        now.wait_stream(side)
        for value in found.values():
            value.record_stream(now)
        return found

    def _send(self, row: Tensor, state: State) -> None:
        """Begin to copy states from a GPU to the host; `_finish` stores them."""
        self._finish(BEHIND - 1)
        values = {name: torch.empty(v.shape, dtype=v.dtype, pin_memory=True) for name, v in state.items()}
        for name, value in state.items():
            values[name].copy_(value, non_blocking=True)
        done = torch.cuda.Event()
        done.record(torch.cuda.current_stream(self._device))
        self._pending.append(_Pending(row, values, done))

    def _finish(self, left: int) -> None:
        """Store copied states, oldest first, until at most `left` chunks are pending."""
        while len(self._pending) > left:
            one = self._pending.pop(0)
            one.done.synchronize()
            for name, value in one.values.items():
                self._stored[name].rows[one.row] = value

    def _reserve(self, count: int, like: State) -> None:
        """Make room for `count` rows; a file is made for the whole fleet, and takes disk space as rows are created."""
        for name, value in like.items():
            old = self._stored.get(name)
            if old is not None and count <= len(old.rows):
                old.reserve(count)
                continue
            self._finish(0)
            size = len(self._row) if self._place == "file" else max(count, 0 if old is None else 2 * len(old.rows))
            grown = Backing(size, tuple(value.shape), value.dtype, self._place, self._device)
            grown.reserve(count)
            if old is not None:
                grown.rows[: len(old.rows)] = old.rows
            self._stored[name] = grown

    def known(self) -> Tensor:
        """The clients that have a state, in rising order."""
        return torch.nonzero(self._row >= 0).flatten()

    def save(self) -> State:
        """Every row, and which client's it is (`client`); views, to be copied before the next `put`.

        Rows that are kept aside have names that begin with `aside.`.
        """
        saved: State = {}
        if self._aside:
            every = sorted(self._aside)
            saved["aside.client"] = torch.tensor(every)
            for name in self._aside[every[0]][0]:
                rows = [state[name][place] for state, place in (self._aside[client] for client in every)]
                saved[f"aside.row.{name}"] = torch.stack(rows)
        if not self._stored:
            return saved
        self._finish(0)
        client = torch.empty(self._count, dtype=torch.int64)
        client[self._row[self.known()]] = self.known()
        rows_of_all = {f"row.{name}": own.rows[: self._count] for name, own in self._stored.items()}
        return {"client": client, **rows_of_all, **saved}

    def load(self, saved: State) -> None:
        """Replace all states with copies of saved rows; clients without a saved row have no state."""
        self._finish(0)
        self._last, self._count, self._stored = None, 0, {}
        self._row.fill_(-1)
        aside = {
            n.removeprefix("aside.row."): v.to(self._device) for n, v in saved.items() if n.startswith("aside.row.")
        }
        self._aside = (
            {client: (aside, place) for place, client in enumerate(saved["aside.client"].tolist())} if aside else {}
        )
        if "client" not in saved:
            return
        client = saved["client"]
        self._count, self._row[client] = len(client), torch.arange(len(client))
        values = {name.removeprefix("row."): v for name, v in saved.items() if name.startswith("row.")}
        self._reserve(len(client), {name: value[0] for name, value in values.items()})
        for name, value in values.items():
            self._stored[name].rows[: len(client)] = value
