"""Rank 1 of two, for tests: `python second_rank.py STORE TESTS`; rank 0 is the process of the test."""

from __future__ import annotations

import sys
from dataclasses import replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from fedloom.chance import Chance
from fedloom.core.types import Reply, Task
from fedloom.engine.clients import Clients
from fedloom.engine.distributed import serve_rank
from fedloom.engine.local import Local, local_engine
from fedloom.engine.ranks import ranks_here
from fedloom.method import Method

HOST = torch.device("cpu")


def meet(store: str, rank: int) -> None:
    """Both ranks in one gloo group, which gives up after a minute."""
    where = f"file://{store}"
    dist.init_process_group("gloo", init_method=where, rank=rank, world_size=2, timeout=timedelta(minutes=1))


def method_of(name: str, cohorts: Any = None) -> Method:
    """A method of the list, with who takes part if that is given."""
    from pieces import Forced
    from worlds import METHODS

    method = dict(METHODS)[name]()
    return method if cohorts is None else replace(method, select=Forced(tuple(tuple(ids) for ids in cohorts)))


class Broken(Local):
    """Trains nobody."""

    def train(self, ids: Tensor, task: Task, chance: Chance) -> Reply:
        """Fail in the second round."""
        if task.round == 2:
            raise ZeroDivisionError("more than it can bear")
        return super().train(ids, task, chance)


def build(network: str, name: str, cohorts: Any = None, fault: str = "") -> Local:
    """The engine of this rank."""
    from worlds import world

    if fault == "build":
        raise FileNotFoundError("no such file here")
    here, method = world(network), method_of(name, cohorts)
    own = here.data, here.shards
    engine = local_engine(Clients(method, here.setting, *own, own, own))
    if fault == "train":
        engine = Broken(engine.clients, engine.chosen, engine.plan, engine.chunk)
    return engine


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.path.insert(0, sys.argv[2])
    meet(sys.argv[1], 1)
    ranks = ranks_here("cpu")
    while "leave" not in (wanted := ranks.receive(0, HOST).facts):
        serve_rank(ranks, lambda wanted=wanted: build(**wanted))  # type: ignore[misc]
    dist.destroy_process_group()
