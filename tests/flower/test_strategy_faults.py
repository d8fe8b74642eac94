"""Faults of a strategy: a bad reply is dropped and counted, a bad setting is refused, both with a reason."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

from fedloom.errors import BadExperiment, BadModel, RunStopped
from fedloom.flower import hold, masked, strategy
from fedloom.flower.protocol.records import NodeMessage, Payload, pack, unpack
from fedloom.flower.your_app.arrays import from_arrays
from fedloom.methods.fedavg import fedavg
from fedloom.methods.feddd import feddd
from fedloom.methods.fedspu import fedspu
from flower_own import OneProcess, Played, close, plain_app
from worlds import ROUNDS, SEED, played, small, world

FEDDD = small(feddd(class_term=False))

# ---- faults: one reply is dropped for its reason, and the round goes on


def arrays_of(reply: Message) -> ArrayRecord:
    return reply.content.array_records["arrays"]


def resized(reply: Message) -> None:
    arrays_of(reply)["1.weight"] = Array(torch.zeros(9, 36).numpy())


def doubled(reply: Message) -> None:
    arrays_of(reply)["1.weight"] = Array(arrays_of(reply)["1.weight"].numpy().astype("f8"))


def huge(reply: Message) -> None:
    good = arrays_of(reply)["1.weight"]
    data = good.data.replace(b"(8, 36)", b"(8, 99)")
    arrays_of(reply)["1.weight"] = Array(good.dtype, good.shape, good.stype, data)


def cut(reply: Message) -> None:
    good = arrays_of(reply)["1.weight"]
    arrays_of(reply)["1.weight"] = Array(good.dtype, good.shape, good.stype, good.data[:-4])


def renamed(reply: Message) -> None:
    arrays_of(reply)["other"] = arrays_of(reply).pop("1.weight")


def poisoned(reply: Message) -> None:
    arrays_of(reply)["1.weight"] = Array(torch.full((8, 36), torch.nan).numpy())


def weightless(reply: Message) -> None:
    reply.content.metric_records["metrics"]["num-examples"] = 0


def silent(reply: Message) -> None:
    del reply.content["arrays"]


@cache
def without_103() -> Played:
    """A round in which that node's reply is lost."""
    method = small(fedavg(), select=feddd().select)
    return Played(method, world("mlp"), rounds=1, tamper=lambda node, reply: None if node == 103 else reply)


@pytest.mark.parametrize(
    ("change", "reason"),
    [(resized, "shape"), (doubled, "dtype"), (huge, "header"), (cut, "size"), (renamed, "header"), (poisoned, "value"),
     (weightless, "report"), (silent, "header")],
)  # fmt: skip
def test_a_bad_reply_is_as_good_as_none(change, reason: str) -> None:  # type: ignore[no-untyped-def]
    def spoil(node: int, reply: Message) -> Message:
        if node == 103:
            change(reply)
        return reply

    method = small(fedavg(), select=feddd().select)
    bad, lost = Played(method, world("mlp"), rounds=1, tamper=spoil), without_103()
    assert torch.equal(bad.model, lost.model)
    assert bad.total(f"rejected.{reason}") == 1
    assert bad.total("replies") == lost.total("replies") == 11


def test_packed_replies_are_read_strictly() -> None:
    kept: dict[str, bytes] = {}

    def spoil(node: int, reply: Message) -> Message | None:
        data = unpack(reply.content).payloads[0].data
        if node == 102:  # damaged
            reply.content.update(pack(NodeMessage({}, [Payload({}, data[:-1] + bytes([data[-1] ^ 1]))])))
        if node == 104:  # last round's
            reply.content.update(pack(NodeMessage({}, [Payload({}, kept.get("old", data))])))
            kept["old"] = data
        if node == 105:
            reply.content.update(pack(NodeMessage({}, [])))
        return reply

    here = Played(FEDDD, world("mlp"), tamper=spoil)
    assert here.total("rejected.checksum") == here.total("rejected.header") == ROUNDS
    assert here.total("rejected.round") == ROUNDS - 1
    assert here.model.isfinite().all()


def test_if_all_fail_the_model_stays(caplog: pytest.LogCaptureFixture) -> None:
    base = world("mlp")
    here = Played(small(fedavg()), base, tamper=lambda node, reply: None)
    assert torch.equal(here.model, base.model)
    assert here.total("replies") == 0


def test_a_node_that_lost_its_state_is_a_newcomer() -> None:
    """Its first answer is an error; the next starts from the first model."""
    method = small(fedspu(), select=feddd().select)
    rounds: list[int] = []

    def forget(node: int, reply: Message) -> Message:
        rounds.append(node)
        if len(rounds) == 12:  # after the first round
            here_grid[0].contexts[101].state = RecordDict()
        return reply

    here_grid: list[OneProcess] = []
    original = OneProcess.__init__

    def remember(self: OneProcess, *args: object) -> None:
        original(self, *args)  # type: ignore[arg-type]
        here_grid.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OneProcess, "__init__", remember)
        here = Played(method, world("mlp"), rounds=3, tamper=forget)
    answers = [int(r["replies"]) for r in here.result.train_metrics_clientapp.values()]
    assert answers == [12, 11, 12]
    assert "state is gone" in here.grid.errors[0]


def test_newcomers_take_free_places() -> None:
    base, method = world("mlp"), small(fedavg(), select=feddd().select)
    grid = OneProcess(lambda: plain_app(base, method, []), 12)
    server = strategy(method, base.setting.module, clients=12, seed=SEED, evaluate=0.0)
    arrays = ArrayRecord(base.setting.module.state_dict())
    assert len(list(server.configure_train(1, arrays, ConfigRecord(), grid))) == 12
    grid.contexts[999] = grid.contexts.pop(103)
    assert {m.metadata.dst_node_id for m in server.configure_train(2, arrays, ConfigRecord(), grid)} == set(
        grid.contexts
    )
    assert server.nodes[2] == 999


def test_too_few_nodes_end_the_wait() -> None:
    base = world("mlp")
    server = strategy("fedavg", base.setting.module, clients=3, patience=0.0)
    with pytest.raises(RunStopped, match="2 nodes are connected"):
        server.configure_train(
            1, ArrayRecord(base.setting.module.state_dict()), ConfigRecord(), OneProcess(ClientApp, 2)
        )


# ---- evaluation


def test_evaluation_is_the_mean_by_examples() -> None:
    here = Played(small(fedavg()), world("mlp"), rounds=1, evaluate=0.5)
    assert [len(asked) for asked in here.grid.asked] == [8, 6]
    assert 0 <= float(here.result.evaluate_metrics_clientapp[1]["accuracy"]) <= 1
    server = here.strategy
    replies = [
        Message(RecordDict({"m": MetricRecord({"num-examples": n, "a": a})}), dst_node_id=1, message_type="evaluate")
        for n, a in ((1, 1.0), (3, 2.0))
    ]
    assert dict(server.aggregate_evaluate(1, replies) or {}) == {"num-examples": 4, "a": 1.75}
    assert server.aggregate_evaluate(1, []) is None


# ---- what is refused, and how it is said


def test_settings_are_checked() -> None:
    net, example = world("mlp").setting.module, world("mlp").data.x[:1]
    with pytest.raises(BadExperiment, match="did you mean 'feddd'"):
        strategy("fedd", net, example)
    with pytest.raises(BadExperiment, match="did you mean 'budget'"):
        strategy("feddd", net, example, buget=0.4)
    with pytest.raises(BadExperiment, match="example is missing"):
        strategy("feddd", net)
    with pytest.raises(BadExperiment, match=r"dataclasses\.replace"):
        strategy(fedavg(), net, per_round=3)
    with pytest.raises(BadExperiment, match="clients"):
        strategy("fedavg", net, clients=0)
    with pytest.raises(BadExperiment, match="evaluate"):
        strategy("fedavg", net, evaluate=2.0)
    with pytest.raises(BadExperiment, match="unknown fleet"):
        strategy("fedavg", net, fleet="tabel4")
    with pytest.raises(BadExperiment, match=r"nn\.Module"):
        strategy("fedavg", "net")  # type: ignore[arg-type]
    ghost = nn.Linear(2, 2)
    ghost.register_buffer("ghost", torch.zeros(2), persistent=False)
    with pytest.raises(BadModel, match="ghost"):
        strategy("fedavg", ghost)
    assert strategy("fedavg", net, per_round=3).method.select == replace(fedavg().select, count=3)  # type: ignore[type-var]


def test_both_ends_must_have_the_same_method() -> None:
    base = world("mlp")
    module, example = base.setting.module, base.data.x[:1]
    method = FEDDD
    grid = OneProcess(lambda: plain_app(base, method, [masked("fjord", module, example)]), 12)
    server = strategy(method, module, example, clients=12, evaluate=0.0)
    server.start(grid, ArrayRecord(module.state_dict()), num_rounds=1)
    assert "the method and settings of fedloom.flower.strategy" in grid.errors[0]


def test_a_client_without_the_mod_is_told(caplog: pytest.LogCaptureFixture) -> None:
    base = world("mlp")
    module, method = base.setting.module, FEDDD
    grid = OneProcess(lambda: plain_app(base, method, []), 12)
    server = strategy(method, module, base.data.x[:1], clients=12, evaluate=0.0)
    messages = server.configure_train(1, ArrayRecord(module.state_dict()), ConfigRecord(), grid)
    caplog.set_level("WARNING", "flwr")
    server.aggregate_train(1, grid.send_and_receive(messages))
    assert len(grid.errors) == 12


def test_the_mod_leaves_plain_messages_alone() -> None:
    base, method = world("mlp"), small(fedavg())
    module = base.setting.module
    grid = OneProcess(lambda: plain_app(base, method, [masked("feddd", module, base.data.x[:1])]), 12)
    server = strategy(method, module, clients=12, seed=SEED, evaluate=0.0)
    result = server.start(grid, ArrayRecord(module.state_dict()), num_rounds=ROUNDS)
    assert close(from_arrays(result.arrays, module, base.setting.layout), played("mlp", method).model)


def test_methods_that_decide_by_losses_need_one() -> None:
    def mute(node: int, reply: Message) -> Message:
        del reply.content.metric_records["metrics"]["train_loss"]
        return reply

    here = Played(FEDDD, world("mlp"), tamper=mute)
    assert here.total("replies") == 0
    assert here.total("rejected.report") == ROUNDS * 12
    assert Played(small(fedavg()), world("mlp"), tamper=mute).total("replies") == ROUNDS * 8


def test_holding_does_nothing_outside_a_mod() -> None:
    net = nn.Linear(2, 1)
    hold(net)
    net(torch.ones(1, 2)).sum().backward()
    assert net.weight.grad is not None
    assert net.weight.grad.eq(1).all()
