"""A run on nodes that goes back: nodes keep what the server can go back to, and forget what never came to be."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Message

from fedloom.codec import Rejected
from fedloom.flower.node.state_store import Start, StateStore
from fedloom.flower.protocol.history import History
from fedloom.flower.protocol.records import unpack
from fedloom.runs.checkpoint import store
from fedloom.runs.experiment import Experiment
from fedloom.runs.result import Result
from fedloom.runs.rollback import roll_back
from flower_fake import FakeGrid
from flower_world import fake, served, tiny, tiny_data, weights

SOON = 0.5  # seconds; the length of rounds in which a node is away
KEYS = ("round", "clients", "arrived", "rejected", "score", "loss", "training_loss", "personal_score")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny_data(tmp_path_factory.mktemp("data"))


def five_rounds(data: str, method: str) -> Experiment:
    codec = {"values": "int8", "feedback": True} if method == "fedavg" else {}
    return tiny(data, method=method, codec=codec, rounds=5)


def train_round(message: Message) -> int:
    """The round that a message asks to train in; 0: none."""
    return int(unpack(message.content).facts["round"]) if message.metadata.message_type == "train" else 0


def killed_in_round(grid: FakeGrid, number: int) -> None:
    """The server is killed while it sends that round's messages: some nodes have trained it."""

    def before(node: int, message: Message) -> None:
        if train_round(message) == number and node == 13:
            raise SystemExit("killed")

    grid.before = before


def away(grid: FakeGrid, node: int, first: int, last: int) -> None:
    """A node is away in these rounds."""

    def before(other: int, message: Message) -> None:
        if number := train_round(message):
            (grid.down.add if first <= number <= last else grid.down.discard)(node)

    grid.before = before


def assert_equal(ours: Result, theirs: Result) -> None:
    """The same bits and the same rows; bytes and seconds have the clock in them."""
    assert torch.equal(weights(ours), weights(theirs))
    for one, other in zip(ours.rounds, theirs.rounds, strict=True):
        assert [one[name] for name in KEYS] == [other[name] for name in KEYS]


@pytest.mark.parametrize("method", ["fedavg", "fedspu", "scaffold", "fedumf"])
def test_a_run_that_went_back_ends_as_a_straight_one(data: str, method: str, tmp_path: Path) -> None:
    experiment, out = five_rounds(data, method), str(tmp_path / "run")
    grid = fake(experiment)
    served(grid, experiment, out=out, keep=5)
    roll_back(tmp_path / "run", 3)
    found = served(grid, experiment, out=out, keep=5, resume=True)
    assert_equal(found, served(fake(experiment), experiment))
    if method == "fedspu":  # and once more, further
        roll_back(tmp_path / "run", 2)
        assert_equal(served(grid, experiment, out=out, keep=5, resume=True), found)


def test_a_client_that_was_away_forgets_rounds_that_were_taken_back(data: str, tmp_path: Path) -> None:
    """It trained rounds 3 to 6 once; it is away when they are played again, and goes on from its state of round 2."""
    experiment, out = tiny(data, method="scaffold", rounds=6, per_round=8), str(tmp_path / "run")
    grid, other = fake(experiment), fake(experiment)
    served(grid, experiment, out=out, keep=5)
    roll_back(tmp_path / "run", 2)
    found = []
    for each, config in ((grid, {"out": out, "keep": 5, "resume": True}), (other, {})):
        away(each, 12, 3, 4)
        found.append(served(each, experiment, deadline=SOON, **config))
    assert [row["arrived"] for row in found[0].rounds] == [8, 8, 6, 6, 6, 8]
    assert_equal(*found)


@pytest.mark.parametrize("every", ["2", "end"])
def test_checkpoints_may_be_further_apart(data: str, every: str, tmp_path: Path) -> None:
    """The server goes back several rounds by itself, and the nodes with it."""
    experiment, out = tiny(data, method="fedspu", rounds=6), str(tmp_path / "run")
    grid, config = fake(experiment), {"out": out, "checkpoint-every": every}
    killed_in_round(grid, 6)
    with pytest.raises(SystemExit):
        served(grid, experiment, **config)
    for path in store.list_all(tmp_path / "run/checkpoint"):  # what a kill does not have time to write
        if path.name.startswith("round-5-"):
            store.remove(path)
    grid.before = None
    found = served(grid, experiment, resume=True, **config)
    assert_equal(found, served(fake(experiment), experiment))


def states(folder: Path) -> dict[int, list[int]]:
    """The rounds of the states that each client of a node has."""
    found: dict[int, list[int]] = {}
    for file in sorted(folder.rglob("*.safetensors")):
        found.setdefault(int(file.parent.name), []).append(int(file.name.partition("-")[0]))
    return {client: sorted(rounds) for client, rounds in found.items()}


def test_nodes_keep_a_state_for_each_checkpoint_and_one_more(data: str, tmp_path: Path) -> None:
    experiment = tiny(data, method="fedspu", rounds=6, per_round=8)
    grid = fake(experiment)
    for node, context in grid.contexts.items():
        context.node_config["state"] = str(tmp_path / str(node))
    served(grid, experiment, out=str(tmp_path / "run"), keep=3)
    assert states(tmp_path / "11") == {client: [3, 4, 5, 6] for client in (0, 1, 2)}
    roll_back(tmp_path / "run", 4)
    served(grid, experiment, out=str(tmp_path / "run"), keep=2, resume=True)
    assert states(tmp_path / "11") == {client: [4, 5, 6] for client in (0, 1, 2)}


def test_a_server_that_goes_back_further_than_it_said_is_refused(data: str, tmp_path: Path, caplog: Any) -> None:
    """Somebody put an older checkpoint back."""
    experiment, out = tiny(data, method="fedspu", rounds=3, per_round=8), tmp_path / "run"
    grid = fake(experiment)
    served(grid, experiment, out=str(out), keep=5)
    shutil.copytree(out / "checkpoint", tmp_path / "old")
    longer = tiny(data, method="fedspu", rounds=8, per_round=8)
    served(grid, longer, out=str(out), keep=1, resume=True)
    shutil.rmtree(out / "checkpoint")
    shutil.copytree(tmp_path / "old", out / "checkpoint")
    served(grid, longer, out=str(out), keep=1, resume=True)
    assert "which is not kept any more; it has those after rounds" in caplog.text


# ---- the store by itself


def history(*starts: tuple[int, int], kept: tuple[int, ...] = ()) -> History:
    return History(starts, kept)


def opened(folder: Path, where: str, context: dict[str, Any], known: History) -> StateStore:
    return StateStore(context, str(folder) if where == "folder" else "", "run", known)


@pytest.mark.parametrize("where", ["folder", "context"])
def test_states_by_round(where: str, tmp_path: Path) -> None:
    context: dict[str, Any] = {}

    def play(known: History, number: int, attempt: int) -> Start:
        box = opened(tmp_path, where, context, known)
        start = box.start_of(3, number)
        box.put(3, number, attempt, start, {"round": torch.tensor([number])})
        return start

    def round_of(start: Start) -> int:
        assert (start.state is None) == (start.round == 0)
        assert start.state is None or int(start.state["round"]) == start.round
        return start.round

    known = history((1, 0), kept=(1, 2))
    assert round_of(play(known, 2, 1)) == 0
    assert round_of(play(known, 2, 1)) == 0  # delivered twice
    assert round_of(play(known, 5, 1)) == 2
    known = history((1, 0), kept=(2, 5))
    assert round_of(play(known, 7, 1)) == 5
    assert round_of(play(history((1, 0), (2, 6), kept=(4, 5, 6)), 7, 2)) == 5  # the server resumed after round 6
    back = history((1, 0), (2, 6), (3, 4), kept=(2, 4))
    assert round_of(opened(tmp_path, where, context, back).start_of(3, 9)) == 2  # not from round 5 or 7
    assert round_of(play(back, 8, 3)) == 2
    assert round_of(opened(tmp_path, where, context, back).start_of(3, 9)) == 8
    assert round_of(opened(tmp_path, where, context, back).start_of(4, 9)) == 0
    for number in (9, 10):
        play(history((1, 0), (2, 6), (3, 4)), number, 3)
    box = opened(tmp_path, where, context, history((1, 0), (2, 6), (3, 4), (4, 5)))
    with pytest.raises(Rejected, match=r"starts from the client's state after round 5, .* those after rounds 9, 10"):
        box.start_of(3, 6)


def test_without_a_barrier_a_task_in_flight_can_be_begun_again(tmp_path: Path) -> None:
    """At the checkpoint of step 6 the task of round 4 was in flight; it came back, and the client was asked again."""
    for barrier, found in ((False, 2), (True, None)):
        folder, known = str(tmp_path / str(barrier)), history((1, 0), kept=(5, 6))
        for number, kept in ((2, known), (4, known), (8, known)):
            box = StateStore({}, folder, "run", kept, barrier)
            box.put(3, number, 1, box.start_of(3, number), {"w": torch.ones(1)})
        box = StateStore({}, folder, "run", history((1, 0), (2, 6), kept=(5, 6)), barrier)
        if found is None:
            with pytest.raises(Rejected, match="not kept any more"):
                box.start_of(3, 4)
        else:
            assert box.start_of(3, 4).round == found


def test_a_state_that_cannot_be_read_is_as_if_lost(tmp_path: Path) -> None:
    box = StateStore({}, str(tmp_path), "run", history())
    box.put(3, 1, 1, Start(0, None), {"w": torch.ones(2)})
    [file] = tmp_path.rglob("*.safetensors")
    whole = file.read_bytes()
    for damaged in (b"", whole[:-1], whole[:8] + b"x" + whole[9:], b"\xff" * 40):
        file.write_bytes(damaged)
        assert box.start_of(3, 2) == Start(1, None)
    (file.parent / "notes.txt").write_text("somebody else's")
    file.write_bytes(whole)
    state = box.start_of(3, 2).state
    assert state is not None
    assert state["w"].tolist() == [1, 1]


@pytest.mark.parametrize(
    "facts",
    [
        {}, {"starts": [], "kept": "3"}, {"starts": {}, "kept": []}, {"starts": [[1, 2, 3], [4]], "kept": []},
        {"starts": [1, 2], "kept": []}, {"starts": [["a", 1]], "kept": []}, {"starts": [], "kept": [None]},
        {"starts": [[1, 1e999]], "kept": []},
    ],
)  # fmt: skip
def test_a_history_that_is_none_is_refused(facts: dict[str, Any]) -> None:
    with pytest.raises(Rejected):
        History.read(facts)
