"""A process loads what its first round needs and no more: PyTorch takes long enough."""

from __future__ import annotations

import gc
import os
import subprocess
import sys

import pytest
import torch

from fedloom.accel.fast_import import uncollected

SLOW = ("scipy", "sklearn", "sympy", "matplotlib", "plotly", "flwr", "datasets", "torch._dynamo", "torch._inductor")
if not torch.cuda.is_available():  # our kernels run on GPUs only
    SLOW += ("triton",)
LIBRARY = """
import sys
from fedloom import Experiment, run
run(Experiment(rounds=1, clients=5, per_round=2), watch=lambda row: print(*sys.modules))
"""
COMMAND = """
import sys, fedloom.runs.play
from fedloom.cli.main import main

def watched(*asked, watch, **others):
    return run(*asked, watch=lambda row: (print(*sys.modules), watch(row)), **others)

run, sys.modules["fedloom.runs.play"].run = sys.modules["fedloom.runs.play"].run, watched
sys.argv = ["fedloom", "run", "fedavg", "--rounds", "1", "--clients", "5", "--out", "out"]
main()
"""


@pytest.mark.parametrize(
    ("program", "unneeded"),
    [(LIBRARY, (*SLOW, "pyarrow", "pandas", "typer", "rich")), (COMMAND, (*SLOW, "pandas", "tensorboard", "mlflow"))],
    ids=["library", "command"],
)
def test_nothing_slow_is_loaded_before_the_first_round_is_over(program, unneeded, tmp_path):
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, env=os.environ)
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.split())
    assert {"torch", "fedloom.round"} <= loaded
    assert not loaded & set(unneeded)


@pytest.fixture
def collecting():
    """The collector as it is in every process at first."""
    before = gc.isenabled()
    gc.enable()
    yield
    (gc.enable if before else gc.disable)()


@pytest.mark.usefixtures("collecting")
def test_nothing_is_collected_meanwhile_and_everything_afterwards():
    class Ring:
        """Cyclic garbage that counts its end."""

        ended = 0

        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:
            Ring.ended += 1

    with uncollected():
        assert not gc.isenabled()
        for _ in range(10 * gc.get_threshold()[0]):
            Ring()
        assert Ring.ended == 0
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0
    gc.collect()
    assert Ring.ended == 10 * gc.get_threshold()[0]


@pytest.mark.usefixtures("collecting")
def test_a_collector_that_was_off_stays_off_and_a_failure_turns_it_on_again():
    with pytest.raises(ImportError), uncollected():
        raise ImportError
    assert gc.isenabled()
    gc.disable()
    with uncollected():
        pass
    assert not gc.isenabled()


@pytest.mark.usefixtures("collecting")
def test_what_others_froze_stays_frozen():
    gc.freeze()
    try:
        frozen = gc.get_freeze_count()
        with uncollected():
            made = [[] for _ in range(1000)]
        assert 0 < gc.get_freeze_count() <= frozen < gc.get_freeze_count() + len(made)
    finally:
        gc.unfreeze()
