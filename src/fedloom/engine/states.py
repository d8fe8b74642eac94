"""Where is what clients remember between rounds? In rows that are born at a client's first contact."""

from __future__ import annotations

import torch
from torch import Tensor

from fedloom.types import State


class ClientStates:
    """States of those clients that ever took part; memory grows with them, not with the fleet."""

    def __init__(self, fleet_size: int, device: torch.device) -> None:
        self._row = torch.full((fleet_size,), -1, dtype=torch.int64)  # on the host: looked up without waiting
        self._device = device
        self._born = 0
        self._stored: State = {}

    def get(self, ids: list[int], newborn: State) -> State:
        """The states of `ids` [C, ...]; `newborn` is the state of one that was never here before."""
        if not newborn:
            return {}
        for name, value in newborn.items():
            if name not in self._stored:
                self._stored[name] = value.new_empty((0, *value.shape))
        row = self._row[ids]
        fresh = torch.tensor(ids)[row < 0]
        if len(fresh):
            self._row[fresh] = torch.arange(self._born, self._born + len(fresh))
            self._reserve(self._born + len(fresh))
            for name, value in newborn.items():
                self._stored[name][self._born : self._born + len(fresh)] = value
            self._born += len(fresh)
            row = self._row[ids]
        return {name: self._stored[name][row.to(self._device)] for name in newborn}

    def put(self, ids: list[int], state: State) -> None:
        """Write the states of `ids` back."""
        row = self._row[ids].to(self._device)
        for name, value in state.items():
            self._stored[name][row] = value

    def _reserve(self, count: int) -> None:
        for name, stored in self._stored.items():
            if count > len(stored):
                grown = stored.new_empty((max(count, 2 * len(stored)), *stored.shape[1:]))
                grown[: len(stored)] = stored
                self._stored[name] = grown

    def known(self) -> Tensor:
        """The clients that have a state, in rising order."""
        return torch.nonzero(self._row >= 0).flatten()

    def save(self) -> State:
        """Every row that was born, and whose it is (`client`); views, to be copied before the next `put`."""
        if not self._stored:
            return {}
        client = torch.empty(self._born, dtype=torch.int64)
        client[self._row[self.known()]] = self.known()
        return {"client": client, **{f"row.{name}": value[: self._born] for name, value in self._stored.items()}}

    def load(self, saved: State) -> None:
        """Begin with copies of saved rows, before anybody takes part."""
        if not saved:
            return
        client = saved["client"]
        self._born, self._row[client] = len(client), torch.arange(len(client))
        self._stored = {
            name.removeprefix("row."): v.to(self._device, copy=True)
            for name, v in saved.items()
            if name.startswith("row.")
        }
