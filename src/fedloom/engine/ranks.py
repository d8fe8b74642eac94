"""Messages between the processes that torchrun starts: facts (JSON) and tensors; nothing is pickled."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from fedloom.accel.kept_memory import kept_memory
from fedloom.core.types import State
from fedloom.errors import BadExperiment, RunStopped

PATIENCE = timedelta(minutes=30)  # how long to wait for a rank that sends nothing
HOW = "torchrun --nproc-per-node 2 -m fedloom run fedavg --engine distributed"
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
WHOLE = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
KINDS = {str(kind): kind for kind in FLOATS + WHOLE}


class Message(NamedTuple):
    """Facts and tensors that one rank sends to another."""

    facts: dict[str, Any]
    tensors: State


class Ranks(NamedTuple):
    """The rank of this process, and the number of ranks in the run; rank 0 leads."""

    rank: int
    size: int
    via: torch.device  # where tensors travel: this rank's GPU under NCCL, host memory under gloo

    def send(self, to: int, message: Message) -> None:
        """Send a header, then every tensor; rows that share one memory are sent once."""
        thin = {name: _shared(value) for name, value in message.tensors.items()}
        spec = [
            (name, str(value.dtype), [*value.shape], [*message.tensors[name].shape]) for name, value in thin.items()
        ]
        header = bytearray(json.dumps({"facts": message.facts, "tensors": spec}).encode())
        with _connection(to):
            dist.send(torch.tensor([len(header)]), to)
            dist.send(torch.frombuffer(header, dtype=torch.uint8), to)
            for value in thin.values():
                if value.numel():
                    dist.send(_bytes(value.detach().to(self.via).contiguous()), to)

    def receive(self, of: int, device: torch.device) -> Message:
        """Receive the next message of rank `of`, with its tensors on `device`."""
        with _connection(of):
            length = torch.zeros(1, dtype=torch.int64)
            dist.recv(length, of)
            header = torch.empty(int(length), dtype=torch.uint8)
            dist.recv(header, of)
            sent, tensors = json.loads(header.numpy().tobytes()), {}
            for name, kind, shape, whole in sent["tensors"]:
                value = torch.empty(shape, dtype=KINDS[kind], device=self.via)
                if value.numel():
                    dist.recv(_bytes(value), of)
                tensors[name] = value.to(device).expand(whole)
        return Message(sent["facts"], tensors)


def _shared(value: Tensor) -> Tensor:
    """One row [1, ...] where all rows share one memory, as after `expand`; else the tensor as it is."""
    return value[:1] if value.dim() > 1 and len(value) > 1 and value.stride(0) == 0 else value


def _bytes(value: Tensor) -> Tensor:
    """The tensor's memory as bytes, which every backend can send."""
    return value.view(-1).view(torch.uint8)


@contextmanager
def _connection(rank: int) -> Iterator[None]:
    """Raise RunStopped in place of torch's errors about a lost connection."""
    try:
        yield
    except RuntimeError as problem:
        raise RunStopped(f"lost contact with rank {rank}; look there for the cause ({problem}).") from problem


def ranks_here(device: str) -> Ranks:
    """The rank of this process in the group that it has joined; it trains on `device`."""
    if not dist.is_initialized():
        raise BadExperiment(
            f"engine is 'distributed', but this process was not started by torchrun; start it so: {HOW}"
        )
    via = device if _own_gpu() and device.startswith("cuda") else "cpu"
    return Ranks(dist.get_rank(), dist.get_world_size(), torch.device(via))


def rank_device(name: str) -> str:
    """This rank's device if the experiment gives no number; ranks share GPUs where there are more ranks than GPUs."""
    if name in ("auto", "cuda") and torch.cuda.is_available():
        return f"cuda:{_local_rank() % torch.cuda.device_count()}"
    return name


@contextmanager
def join_ranks(device: str) -> Iterator[Ranks]:
    """Join the process group, with an equal share of the machine's cores; both are undone at the end.

    A process group that exists already is used and stays.
    """
    ours, threads = not dist.is_initialized(), torch.get_num_threads()
    if ours and {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys():
        if _own_gpu():
            torch.cuda.set_device(_local_rank())
        dist.init_process_group("cpu:gloo,cuda:nccl" if _own_gpu() else "gloo", timeout=PATIENCE)
    here = ranks_here(rank_device(device))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    torch.set_num_threads(max(1, cores // _on_this_machine()))
    try:
        with kept_memory():
            yield here
    finally:
        torch.set_num_threads(threads)
        if ours:
            dist.destroy_process_group()


def _local_rank() -> int:
    """The number of this rank on its machine."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def _on_this_machine() -> int:
    """The number of ranks on this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", os.environ.get("WORLD_SIZE", "1")))


def _own_gpu() -> bool:
    """Whether every rank on this machine has a GPU of its own, which NCCL needs."""
    return torch.cuda.is_available() and dist.is_nccl_available() and torch.cuda.device_count() >= _on_this_machine()
