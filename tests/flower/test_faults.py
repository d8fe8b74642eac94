"""Faults of a network, on a grid in memory: each costs one reply and is counted, and the run goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

from fedloom.errors import RunStopped
from fedloom.flower.protocol.records import NodeMessage, Payload, pack, unpack
from fedloom.runs.experiment import Experiment
from fedloom.runs.parquet import table_rows
from flower_fake import FakeGrid
from flower_world import assert_same, fake, served, simulated, tiny, tiny_data, weights

BAD = 12  # the node that misbehaves; it hosts two clients
HOSTED = 2
SOON = 3.0  # seconds; the length of rounds in which a reply is lost


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny_data(tmp_path_factory.mktemp("data"))


@pytest.fixture
def experiment(data: str) -> Experiment:
    return tiny(data, method="fedavg", per_round=8)


def training(message: Message) -> bool:
    return message.metadata.message_type == "train"


def changing(
    change: Callable[[NodeMessage], NodeMessage], rounds: tuple[int, ...] = (2,)
) -> Callable[..., Iterable[Message]]:
    """A fault that changes what the bad node answers in these rounds."""

    def fault(node: int, asked: Message, answer: Message) -> Iterable[Message]:
        if node != BAD or not training(asked) or unpack(asked.content).facts["round"] not in rounds:
            return [answer]
        return [Message(pack(change(unpack(answer.content))), reply_to=asked)]

    return fault


def each(change: Callable[[Payload], Payload]) -> Callable[[NodeMessage], NodeMessage]:
    return lambda message: message._replace(payloads=[change(payload) for payload in message.payloads])


def poisoned(payload: Payload) -> Payload:
    """One number is NaN; the checksum is right."""
    from zlib import crc32

    from fedloom.codec.container import AFTER, BEFORE

    data = bytearray(payload.data)
    data[-4:] = b"\x00\x00\xc0\x7f"
    data[BEFORE:AFTER] = b"%08x" % crc32(bytes(data[AFTER:]), crc32(bytes(data[:8])))
    return payload._replace(data=bytes(data))


FAULTS = {
    "value": each(poisoned),
    "checksum": each(lambda payload: payload._replace(data=payload.data[:-1] + bytes([payload.data[-1] ^ 1]))),
    "size": each(lambda payload: payload._replace(data=payload.data[:20])),
    "header": each(lambda payload: payload._replace(data=b"x" * len(payload.data))),
    "client": each(lambda payload: payload._replace(facts={**payload.facts, "client": 7})),
}


@pytest.mark.parametrize("reason", FAULTS)
def test_what_is_wrong_is_refused_and_counted(experiment: Experiment, reason: str) -> None:
    grid = fake(experiment)
    grid.fault = changing(FAULTS[reason])
    found = served(grid, experiment)
    assert [row["arrived"] for row in found.rounds] == [8, 8 - HOSTED, 8]
    assert [row["rejected"] for row in found.rounds] == [0, HOSTED, 0]
    assert found.rounds[1][f"rejected.{reason}"] == HOSTED
    lost = fake(experiment)
    lost.fault = changing(lambda message: message._replace(payloads=[]))
    assert torch.equal(weights(found), weights(served(lost, experiment)))


def test_another_clients_reply_is_refused(experiment: Experiment) -> None:
    """A node swaps its clients' replies: the client in the bytes must be the one that sends them."""

    def swap(message: NodeMessage) -> NodeMessage:
        one, other = message.payloads
        return message._replace(payloads=[one._replace(data=other.data), other._replace(data=one.data)])

    grid = fake(experiment)
    grid.fault = changing(swap)
    assert served(grid, experiment).rounds[1]["rejected.client"] == 2


def test_a_stale_reply_is_refused(experiment: Experiment) -> None:
    """The bytes of round 1 are sent again in round 2."""
    before: dict[int, bytes] = {}

    def again(message: NodeMessage) -> NodeMessage:
        for payload in message.payloads:
            before.setdefault(payload.facts["client"], payload.data)
        return each(lambda payload: payload._replace(data=before[payload.facts["client"]]))(message)

    grid = fake(experiment)
    grid.fault = changing(again, (1, 2))
    found = served(grid, experiment)
    assert found.rounds[1]["rejected.round"] == HOSTED
    assert found.rounds[1]["arrived"] == 8 - HOSTED


def test_the_same_reply_twice_counts_once(experiment: Experiment) -> None:
    grid = fake(experiment)
    grid.fault = changing(lambda message: message._replace(payloads=[*message.payloads, *message.payloads]))
    found = served(grid, experiment)
    assert found.rounds[1]["rejected.duplicate"] == HOSTED
    assert found.rounds[1]["arrived"] == 8
    assert torch.equal(weights(found), weights(served(fake(experiment), experiment)))


@pytest.mark.parametrize(
    "content",
    [
        RecordDict({}),
        RecordDict({"fedloom.facts": ConfigRecord({"json": "{"}), "fedloom.payloads": ArrayRecord()}),
        RecordDict({"fedloom.facts": ConfigRecord({"json": "[]"}), "fedloom.payloads": ArrayRecord()}),
        RecordDict({"fedloom.facts": ConfigRecord({"json": "[" * 100_000}), "fedloom.payloads": ArrayRecord()}),
        RecordDict({"fedloom.facts": ConfigRecord({"json": 3}), "fedloom.payloads": ConfigRecord({})}),
    ],
)
def test_garbage_is_refused(experiment: Experiment, content: RecordDict) -> None:
    grid = fake(experiment)
    grid.fault = lambda node, asked, answer: (
        [Message(content, reply_to=asked)] if node == BAD and training(asked) else [answer]
    )
    found = served(grid, experiment)
    assert [row["arrived"] for row in found.rounds] == [6, 6, 6]
    assert [row["rejected.header"] for row in found.rounds] == [2, 2, 2]


def test_a_late_reply_is_counted_in_the_round_that_receives_it(experiment: Experiment) -> None:
    kept: list[Message] = []
    grid = fake(experiment)

    def fault(node: int, asked: Message, answer: Message) -> list[Message]:
        number = unpack(asked.content).facts["round"] if training(asked) else 0
        if node == BAD and number == 1:
            kept.append(answer)
            return []
        if kept and number == 2:
            late = kept.pop()
            grid.waiting[late.metadata.reply_to_message_id] = [late]
        return [answer]

    grid.fault = fault
    found = served(grid, experiment, deadline=SOON)
    assert [row["arrived"] for row in found.rounds] == [6, 8, 8]
    assert found.rounds[1]["rejected.late"] == HOSTED
    up, down = ([row[f"transport_{way}"] for row in found.rounds] for way in ("up", "down"))
    model = found.rounds[0]["bytes_down"] / found.rounds[0]["clients"]
    assert up[1] > up[2] + HOSTED * model  # it is in no client's bytes
    assert down[1] < down[2] + model  # its task is counted in its own round


def test_a_lost_node_is_lost_replies(experiment: Experiment) -> None:
    grid = fake(experiment)
    grid.before = lambda node, message: grid.down.add(BAD) if training(message) and len(grid.sent) > 6 else None
    found = served(grid, experiment, deadline=SOON)
    assert [row["arrived"] for row in found.rounds] == [8, 6, 6]
    assert all(row["rejected"] == 0 for row in found.rounds)


def test_a_node_that_comes_back_takes_part_again(experiment: Experiment) -> None:
    grid = fake(experiment)

    def before(node: int, message: Message) -> None:
        number = unpack(message.content).facts.get("round") if training(message) else None
        (grid.down.add if number == 2 else grid.down.discard)(BAD)

    grid.before = before
    found = served(grid, experiment, deadline=SOON)
    assert [row["arrived"] for row in found.rounds][:2] == [8, 6]


def test_when_nobody_answers_the_run_stops(experiment: Experiment, tmp_path: Path) -> None:
    few = Experiment(**{**experiment.model_dump(), "world": {"patience": 2}, "rounds": 9})
    grid = fake(few)
    grid.fault = lambda node, asked, answer: [] if training(asked) else [answer]
    with pytest.raises(RunStopped, match="nobody answered in 2 rounds"):
        served(grid, few, deadline=0.2, out=str(tmp_path / "run"))
    assert len(table_rows(tmp_path / "run" / "rounds.parquet")) == 2


def test_without_nodes_nothing_begins(experiment: Experiment) -> None:
    grid = fake(experiment)
    grid.down |= set(grid.contexts)
    with pytest.raises(RunStopped, match="no node that hosts a client"):
        served(grid, experiment, patience=0.2)


def test_a_node_that_fails_is_a_loss(experiment: Experiment) -> None:
    grid = fake(experiment)
    good = grid.app

    def app(message: Message, context: object) -> Message:
        if training(message) and message.metadata.dst_node_id == BAD:
            raise OSError("disk full")
        return good(message, context)  # type: ignore[arg-type]

    grid.app = app  # type: ignore[assignment]
    assert [row["arrived"] for row in served(grid, experiment).rounds] == [6, 6, 6]


def killed_in_round(grid: FakeGrid, number: int, after: int) -> None:
    """The server is killed while it sends that round's messages."""

    def before(node: int, message: Message) -> None:
        if training(message) and unpack(message.content).facts["round"] == number and node == after:
            raise SystemExit("killed")

    grid.before = before


@pytest.mark.parametrize("method", ["fedavg", "fedspu", "scaffold", "feddd", "fedumf"])
def test_a_server_that_was_killed_goes_on_to_the_same_model(data: str, method: str, tmp_path: Path) -> None:
    """Some nodes have trained the round already: they start it again from the same state."""
    codec = {"values": "int8", "feedback": True} if method == "fedavg" else {}
    experiment, out = tiny(data, method=method, codec=codec), str(tmp_path / "run")
    grid = fake(experiment)
    killed_in_round(grid, 2, 13)
    with pytest.raises(SystemExit):
        served(grid, experiment, out=out)
    grid.before = None
    found = served(grid, experiment, out=out, resume=True)
    whole = served(fake(experiment), experiment)
    assert torch.equal(weights(found), weights(whole))
    assert len(found.rounds) == 3


def test_a_message_delivered_twice_trains_once(data: str) -> None:
    """The second time a client starts from the same state, and sends the same reply."""
    experiment = tiny(data, method="fedspu")
    grid, good, answers = fake(experiment), fake(experiment).app, []

    def app(message: Message, context: object) -> Message:
        first = good(message, context)  # type: ignore[arg-type]
        second = good(message, context)  # type: ignore[arg-type]
        if training(message):
            pairs = zip(unpack(first.content).payloads, unpack(second.content).payloads, strict=True)
            answers.append(all(one.data == other.data for one, other in pairs))
        return second

    grid.app = app  # type: ignore[assignment]
    assert_same(served(grid, experiment), simulated(experiment))
    assert answers
    assert all(answers)


def test_states_on_disk_survive_a_restarted_node(data: str, tmp_path: Path) -> None:
    experiment = tiny(data, method="fedspu")
    grid = fake(experiment)
    for node, context in grid.contexts.items():
        context.node_config["state"] = str(tmp_path / str(node))

    def before(node: int, message: Message) -> None:
        grid.contexts[node].state = RecordDict()  # as after a restart

    grid.before = before
    assert_same(served(grid, experiment), simulated(experiment))
