"""One experiment over all ranks of torchrun: the first plays, writes and reports; the others train for it."""

from __future__ import annotations

from collections.abc import Callable

import torch

from fedloom.engine.distributed import serve_rank, stop_ranks, without_prefix
from fedloom.engine.local import Local
from fedloom.engine.ranks import Ranks, join_ranks
from fedloom.errors import RunStopped
from fedloom.runs.build import Prepared
from fedloom.runs.experiment import Experiment
from fedloom.runs.result import Result
from fedloom.runs.threads import SMALL, step_of


def run_on_ranks(experiment: Experiment, play: Callable[[], Result], build: Callable[[], Prepared]) -> Result:
    """The result of `play` on rank 0, on every rank; errors end all of them."""
    with join_ranks(experiment.device) as ranks:
        if ranks.rank > 0:
            return _serve(ranks, experiment, build)
        try:
            result = play()
        except BaseException as problem:
            stop_ranks(ranks, {"stopped": str(problem) or type(problem).__name__})
            raise
        weights = {f"model.{name}": value for name, value in result.model.state_dict().items()}
        kept = {f"kept.{name}": value for name, value in result.kept.items()}
        facts = {"rounds": result.rounds, "seconds": result.wall_seconds, "outcome": result.outcome}
        stop_ranks(ranks, facts, weights | kept)
        return result


def _serve(ranks: Ranks, experiment: Experiment, build: Callable[[], Prepared]) -> Result:
    """Train for rank 0 until it is done; the result is its own, but for the folder."""
    prepared: Prepared | None = None

    def ready() -> Local:
        nonlocal prepared
        prepared = build()
        if step_of(prepared.inputs) < SMALL:
            torch.set_num_threads(1)
        assert isinstance(prepared.trainer, Local)
        return prepared.trainer

    facts, tensors = serve_rank(ranks, ready)
    if "stopped" in facts or prepared is None:
        raise RunStopped(f"rank 0 stopped: {facts.get('stopped')}")
    network = prepared.inputs.network.cpu().eval()
    network.load_state_dict(without_prefix("model.", tensors))
    kept = without_prefix("kept.", tensors)
    return Result(experiment, network, facts["rounds"], facts["seconds"], None, kept, facts["outcome"])
