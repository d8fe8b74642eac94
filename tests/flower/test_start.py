"""A run on nodes that begins with given weights: the server reads them, and nodes get them in messages."""

from __future__ import annotations

from pathlib import Path

import pytest
from flwr.app import Message

from fedloom.errors import BadModel
from fedloom.flower.deploy.folder import shipped
from fedloom.runs.experiment import Experiment
from fedloom.runs.play import run
from flower_world import assert_same, fake, served, simulated, tiny, tiny_data


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "fedspu"])
def test_nodes_need_no_file(method: str, tmp_path: Path) -> None:
    """It is gone before the first node is asked anything; the run is resumed without it."""
    data = tiny_data(tmp_path)
    run(tiny(data, method="fedavg", rounds=2, seed=1), out=tmp_path / "before")
    file = tmp_path / "before/model.safetensors"
    experiment = tiny(data, method=method, start=str(file))
    wanted, grid = simulated(experiment), fake(experiment)

    def before(node: int, message: Message) -> None:
        file.unlink(missing_ok=True)

    grid.before = before
    short = tiny(data, method=method, start=str(file), rounds=2)
    served(grid, short, out=str(tmp_path / "run"))
    assert not file.exists()
    assert_same(served(grid, experiment, out=str(tmp_path / "run"), resume=True), wanted)


def test_a_node_that_lost_them_is_given_them_again(tmp_path: Path) -> None:
    """It refuses a round, is asked again whom it hosts, and gets them with the question."""
    data = tiny_data(tmp_path)
    run(tiny(data, method="fedavg", rounds=1, seed=1), out=tmp_path / "before")
    experiment = tiny(data, method="fedspu", start=str(tmp_path / "before"), per_round=8, rounds=4)
    grid, gone = fake(experiment), set[int]()
    for node, context in grid.contexts.items():
        context.node_config["state"] = str(tmp_path / str(node))

    def before(node: int, message: Message) -> None:
        if message.metadata.message_type == "train" and node == 12 and not gone:
            [file] = (tmp_path / "12").glob("start-*.safetensors")
            assert file.stat().st_mode & 0o777 == 0o600
            file.unlink()
            gone.add(node)

    grid.before = before
    arrived = [row["arrived"] for row in served(grid, experiment).rounds]
    assert arrived[0] == 6
    assert arrived[-1] == 8


def test_weights_that_do_not_fit_stop_the_server(tmp_path: Path) -> None:
    data = tiny_data(tmp_path)
    run(Experiment(model="mlp", clients=2, rounds=1), out=tmp_path / "digits")
    experiment = tiny(data, start=str(tmp_path / "digits"))
    with pytest.raises(BadModel, match=r"has shape \[\d+, 64\], and the network's has \[\d+, 36\]"):
        served(fake(experiment), experiment)


def test_a_deployment_names_the_file_by_its_whole_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert shipped(Experiment(start="runs/a")).start == str(tmp_path / "runs/a")
