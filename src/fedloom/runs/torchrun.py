"""One experiment over all ranks of torchrun: rank 0 plays, writes and reports; the other ranks train for it."""

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
    """Run `play` on rank 0; every rank returns its result, and an error ends all ranks."""
    with join_ranks(experiment.device) as ranks:
        if ranks.rank > 0:
            return _serve(ranks, experiment, build)
        try:
            result = play()
        except BaseException as problem:
            stop_ranks(ranks, {"stopped": str(problem) or type(problem).__name__})
            raise
        frozen = {name for name, value in result.model.named_parameters() if not value.requires_grad}
        weights = {f"model.{name}": v for name, v in result.model.state_dict().items() if name not in frozen}
        kept = {f"kept.{name}": value for name, value in result.kept.items()}
        facts = {"rounds": result.rounds, "seconds": result.wall_seconds, "outcome": result.outcome}
        stop_ranks(ranks, facts, weights | kept)
        return result


def _serve(ranks: Ranks, experiment: Experiment, build: Callable[[], Prepared]) -> Result:
    """Train for rank 0 until its run is over; the result is that of rank 0, without the folder."""
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
    network.load_state_dict(without_prefix("model.", tensors), strict=False)  # every rank has the frozen parameters
    kept = without_prefix("kept.", tensors)
    return Result(experiment, network, facts["rounds"], facts["seconds"], None, kept, facts["outcome"])
