"""An engine in a world: who trains, what arrives, and what it cost."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fedloom.chance import Chance
from fedloom.core.clock import full_seconds
from fedloom.core.costs import Bytes
from fedloom.core.flight import FATES
from fedloom.core.part import Allocate, Mask, Select
from fedloom.core.types import Cohort, Portion, Reply, Setting, State, Task
from fedloom.core.work import Work
from fedloom.errors import BadExperiment
from fedloom.method import Method
from fedloom.methods.fedavg import fedavg
from fedloom.methods.fedcs import fedcs
from fedloom.methods.fjord import fjord
from fedloom.methods.scaffold import scaffold
from fedloom.parts.local.keep_own import KeepOwn
from fedloom.parts.select.uniform import Uniform
from fedloom.round import play_round
from fedloom.runs.experiment import Experiment
from fedloom.world.channel import Bernoulli, Bursty, Pieces
from fedloom.world.fleets import make_devices
from fedloom.world.simulated import Simulated
from fedloom.world.trace import read_trace
from pieces import Forced
from world.made import FLEET, Cut, Watched, equipped, made, simulated
from worlds import (
    METHODS,
    SIZES,
    World,
    assert_identical,
    every_method,
    everything,
    play,
    reply_rows,
    scattered_parts,
    small,
    states_of,
    world,
)

NUMBERS = 36 * 8 + 8 + 8 * 3 + 3
ALL = small(fedavg(), select=Uniform(FLEET))


def fates(engine: Watched) -> list[str]:
    """What became of the last cohort."""
    return [FATES[place] for place in engine.columns["fate"].tolist()]


# ---- a perfect world changes nothing


@pytest.mark.parametrize("name", [name for name, make in METHODS if not make().admit.learns])
def test_a_perfect_world_changes_no_number(name):
    """Unless the first to come count, which only a world knows."""
    here, method = equipped(), dict(METHODS)[name]()
    run = play(here, method, simulated(here, method))
    assert_identical(everything(run), everything(play(here, method, here.local(method))))


@every_method
def test_when_all_are_lost_the_model_stays(method):
    here = equipped()
    run = play(here, method, simulated(here, method, channel=Bernoulli(down=1.0)), rounds=2)
    assert torch.equal(run.model, here.model)
    assert not run.replies[-1].arrived.any()


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "feddc", "fjord", "keep-own", "heterofl", "fedavg-kept-adam"])
def test_those_without_a_task_might_as_well_not_be_there(name):
    method = dict(METHODS)[name]()
    absent, cohorts = (1, 4, 6), ((1, 2, 4, 6, 9), (0, 1, 2, 4, 6))
    here = equipped()
    lost = tuple((number, client) for number in (1, 2) for client in absent)
    with_them = replace(method, select=Forced(cohorts))
    without = replace(method, select=Forced(tuple(tuple(c for c in cohort if c not in absent) for cohort in cohorts)))
    ours = simulated(here, with_them, channel=Cut(down=lost))
    theirs = here.local(without)
    run, other = play(here, with_them, ours, 2), play(here, without, theirs, 2)
    torch.testing.assert_close(run.model, other.model, rtol=0, atol=1e-6)
    assert torch.equal(ours.engine.clients.states.known(), theirs.clients.states.known())
    arrived = run.replies[-1].arrived
    assert run.tasks[-1].model.shape == run.replies[-1].params[0].shape
    assert torch.equal(run.replies[-1].params[~arrived], run.models[0].expand(3, -1))
    rows, fewer = reply_rows(run.replies[-1], arrived.nonzero().flatten()), other.replies[-1]
    assert torch.equal(rows.ids, fewer.ids)
    torch.testing.assert_close(rows.params, fewer.params, rtol=0, atol=1e-6)


# ---- client state


def test_a_lost_download_leaves_a_client_as_it_was_and_a_lost_upload_does_not():
    method = scattered_parts(KeepOwn(), select=Forced(((0, 1, 2), (0, 1, 2))))
    here = equipped()
    engine = simulated(here, method, channel=Cut(down=((2, 0),), up=((2, 1),)))
    local, before = engine.engine, own_after_one(here, method)
    run = play(here, method, engine, rounds=2)
    after = states_of(local, [0, 1, 2], here.model)["own"]
    assert torch.equal(after[0], before[0]), "no task, no training"
    assert not torch.equal(after[1], before[1]), "it trained, though nobody heard of it"
    assert not torch.equal(after[2], before[2])
    assert fates(engine) == ["download lost", "upload lost", "arrived"]
    assert run.replies[1].arrived.tolist() == [False, False, True]


def own_after_one(here: World, method: Method) -> Tensor:
    """The clients' own models after one round in which all went well."""
    engine = here.local(method)
    play(here, method, engine, rounds=1)
    return states_of(engine, [0, 1, 2], here.model)["own"]


def test_a_client_that_never_got_a_task_was_never_born():
    method = scattered_parts(KeepOwn(), select=Forced(((3, 5, 7),)))
    here = equipped(made(availability=[1.0] * 7 + [1e-9] + [1.0] * 4))
    engine = simulated(here, method, channel=Cut(down=((1, 3),), up=((1, 5),)))
    play(here, method, engine, rounds=1)
    assert fates(engine) == ["download lost", "upload lost", "unavailable"]
    assert engine.engine.clients.states.known().tolist() == [5]


# ---- seconds, bytes, joules


def test_a_round_by_hand():
    devices = made(up=2e3, down=1e5, cycles=2e9, cycles_per_example=4e6, compute_watts=3.0, radio_watts=0.5)
    here = equipped(devices)
    method = small(fedavg(), select=Forced(((1, 3, 5),)), work=Work(epochs=2, batch=6))
    engine = simulated(here, method, channel=Cut(down=((1, 3),), up=((1, 5),)))
    report = play(here, method, engine, rounds=1).replies[0].report
    columns = engine.columns
    size, down, up = 4 * NUMBERS, 32 * NUMBERS / 1e5, 32 * NUMBERS / 2e3
    compute = [4e6 * examples * 2 / 2e9 for examples in (30, 0, 1)]  # the second has nothing to train on
    assert columns["seconds_down"].tolist() == pytest.approx([down] * 3)
    assert columns["seconds_compute"].tolist() == pytest.approx(compute)
    assert columns["seconds_up"].tolist() == pytest.approx([up, 0, up])
    assert columns["bytes_down"].tolist() == [size] * 3
    assert columns["bytes_up"].tolist() == [size, 0, size], "a lost upload was sent"
    joules = [3 * compute[0] + 0.5 * (down + up), 0.5 * down, 3 * compute[2] + 0.5 * (down + up)]
    assert columns["joules"].tolist() == pytest.approx(joules)
    total = columns["seconds"]
    assert float(engine.costs.duration) == float(engine.now) == float(total.max())
    assert report["seconds"].tolist() == [float(total[0]), 0, 0], (
        "the server knows of those who answered, the ledger of all"
    )
    assert columns["fate"].tolist() == [0, 3, 4]
    assert engine.costs.trained.tolist() == [True, False, True], "a lost upload was work too"
    assert report["bytes_up"].tolist() == [size, 0, 0]
    assert {"seconds_down", "seconds_compute", "seconds_up", "joules", "bytes_down"} <= report.keys()


def test_parts_and_extras_are_priced():
    here = equipped()
    method = small(fjord((0.5,)), select=Uniform(4))
    engine = simulated(here, method)
    run = play(here, method, engine, rounds=1)
    half = 36 * 4 + 4 + 4 * 3 + 3
    assert engine.columns["bytes_down"].tolist() == engine.columns["bytes_up"].tolist() == [4 * half] * 4
    assert run.replies[0].report["bytes_up"].tolist() == [4 * half] * 4
    engine = simulated(here, small(scaffold(), select=Uniform(4)))
    play(here, engine.method, engine, rounds=1)
    assert engine.columns["bytes_down"].tolist() == [4 * (2 * NUMBERS + 1)] * 4  # the control and the relative size
    assert engine.columns["bytes_up"].tolist() == [4 * 2 * NUMBERS] * 4


def test_another_price_may_be_asked():
    here = equipped(made(down=8.0, up=16.0, latency=0.5, cycles=1e30))

    def price(task: Task, reply: Reply) -> tuple[Bytes, Bytes]:
        none = torch.zeros_like(reply.ids)
        return Bytes(reply.ids, none, none + 1), Bytes(none + 2, none, none)

    engine = simulated(here, ALL, price=price)
    play(here, ALL, engine, rounds=1)
    assert engine.columns["bytes_down"].tolist() == list(range(1, 13))
    assert engine.columns["seconds_down"].tolist() == [client + 1 + 0.5 for client in range(12)]
    assert engine.columns["seconds_up"].tolist() == [1.5] * 12


def test_sub_models_compute_less_by_operations():
    here = equipped(made(flops=1e3))
    shares = (0.25, 0.5, 1.0)
    method = small(fjord(shares), select=Forced(((0, 1, 2),)))
    engine = simulated(here, method, compute="flops")
    play(here, method, engine, rounds=1)
    forward = [2 * width * (36 + 3) for width in (2, 4, 8)]
    expected = [3 * each * size / 1e3 for each, size in zip(forward, SIZES)]
    assert engine.columns["seconds_compute"].tolist() == pytest.approx(expected)
    whole = replace(method, local=KeepOwn(freeze=True))
    engine = simulated(here, whole, compute="flops")
    play(here, whole, engine, rounds=1)
    assert engine.columns["seconds_compute"].tolist() == pytest.approx(
        [3 * forward[2] * size / 1e3 for size in SIZES[:3]]
    )


def test_time_adds_up():
    here = equipped()
    engine = simulated(here, ALL)
    durations = []
    for number in (1, 2, 3):
        play(here, replace(ALL, select=Forced(((number,),) * 3)), engine, rounds=1)
        durations.append(float(engine.costs.duration))
    assert float(engine.now) == pytest.approx(sum(durations))
    assert len(set(durations)) == 3


# ---- who is waited for

QUICK = {"cycles": 1e30, "down": 1e30}  # only uploads take time: 32 * NUMBERS / up seconds
BITS = 32 * NUMBERS


def test_the_slowest_ends_the_round_unless_a_deadline_does():
    ends = [5.0, 1.0, 3.0, 4.0]
    here = equipped(made(up=[BITS / end for end in ends] + [1e9] * 8, **QUICK))
    method = small(fedavg(), select=Forced(((0, 1, 2, 3),)))
    for deadline, fate, duration in (
        (None, ["arrived"] * 4, 5.0),
        (6.0, ["arrived"] * 4, 5.0),
        (4.0 + 1e-9, ["late", "arrived", "arrived", "arrived"], 4.0),
        (2.0, ["late", "arrived", "late", "late"], 2.0),
        (0.5, ["late"] * 4, 0.5),
    ):
        engine = simulated(here, method, deadline=deadline)
        run = play(here, method, engine, rounds=1)
        assert fates(engine) == fate
        assert run.replies[0].arrived.tolist() == [one == "arrived" for one in fate]
        assert float(engine.costs.duration) == pytest.approx(duration)
        assert torch.equal(run.model, here.model) == ("arrived" not in fate)


def test_silence_is_waited_for_until_the_deadline():
    here = equipped(made(up=[BITS / end for end in (5.0, 1.0, 3.0)] + [1e9] * 9, **QUICK))
    method = small(fedavg(), select=Forced(((0, 1, 2),)))
    for lost, deadline, duration in (
        (Cut(up=((1, 1),)), None, 5.0),
        (Cut(up=((1, 0),)), None, 5.0),  # a lost message is noticed when it should have come
        (Cut(down=((1, 0),)), None, 3.0),
        (Cut(up=((1, 1),)), 20.0, 20.0),
        (Cut(), 20.0, 5.0),
    ):
        engine = simulated(here, method, channel=lost, deadline=deadline)
        play(here, method, engine, rounds=1)
        assert float(engine.costs.duration) == pytest.approx(duration)


def test_more_are_asked_than_needed_and_the_first_count():
    ends = [5.0, 1.0, 3.0, 4.0]
    here = equipped(made(up=[BITS / end for end in ends] + [1e9] * 8, **QUICK))
    method = small(fedavg(), select=Forced(((0, 1, 2, 3),)))
    for settings, fate, duration in (
        ({"first": 2}, ["surplus", "arrived", "arrived", "surplus"], 3.0),
        ({"first": 4}, ["arrived"] * 4, 5.0),
        ({"first": 9}, ["arrived"] * 4, 5.0),
        ({"first": 2, "channel": Cut(up=((1, 1),))}, ["surplus", "upload lost", "arrived", "arrived"], 4.0),
        ({"first": 2, "deadline": 2.0}, ["late", "arrived", "late", "late"], 2.0),
        ({"first": 2, "deadline": 20.0, "channel": Cut(up=((1, 1),))}, ["surplus", "upload lost"] + ["arrived"] * 2, 4),
    ):
        engine = simulated(here, method, **settings)
        play(here, method, engine, rounds=1)
        assert fates(engine) == fate
        assert float(engine.costs.duration) == pytest.approx(duration)


@dataclass(frozen=True)
class OneMaySend(Select):
    """Three train, one of them may send."""

    def __call__(self, memory: State, setting: Setting, chance: Chance) -> tuple[Cohort, State]:
        """Clients 0, 1, 2."""
        return Cohort(torch.arange(3), torch.tensor([False, True, False])), memory


def test_those_who_may_not_send_cost_no_upload_and_no_time():
    here = equipped(
        made(up=[BITS / end for end in (5.0, 1.0, 3.0)] + [1e9] * 9, down=1e30, cycles=[1.0, 1e30, 1.0] * 4)
    )
    method = small(fedavg(), select=OneMaySend())
    engine = simulated(here, method, deadline=20.0)
    play(here, method, engine, rounds=1)
    assert fates(engine) == ["silent", "arrived", "silent"]
    assert float(engine.costs.duration) == pytest.approx(1)
    assert engine.columns["bytes_up"].tolist() == [0, 4 * NUMBERS, 0]
    assert engine.columns["seconds_up"].tolist() == pytest.approx([0, 1, 0])
    assert engine.columns["seconds_compute"][0] > 0, "it trained"


def test_uploads_share_the_servers_link():
    here = equipped(made(up=1e3, down=1e30, cycles=1e30))
    method = small(fedavg(), select=Uniform(4))
    for total, seconds in ((1e9, BITS / 1e3), (4e3, BITS / 1e3), (2e3, 2 * BITS / 1e3), (500, 8 * BITS / 1e3)):
        engine = simulated(here, method, server_up=total)
        play(here, method, engine, rounds=1)
        assert engine.columns["seconds_up"].tolist() == pytest.approx([seconds] * 4)
    here = equipped(made(down=1e3, up=1e30, cycles=1e30, latency=0.25))
    engine = simulated(here, method, server_down=2e3, channel=Cut(up=((1, 0),)))
    play(here, method, engine, rounds=1)
    assert engine.columns["seconds_down"].tolist() == pytest.approx([2 * BITS / 1e3 + 0.25] * 4)


# ---- the same world for everybody


def test_a_world_is_the_same_for_every_method():
    devices = make_devices("iot", FLEET, 5, availability=0.8)
    settings = {"channel": Bursty(0.3, 0.5, good=0.1)}
    found = []
    for name in ("fedavg", "scaffold", "fjord", "keep-own"):
        here, method = equipped(devices), replace(dict(METHODS)[name](), select=Uniform(FLEET))
        engine = simulated(here, method, **settings)
        history = []
        for number in range(1, 9):
            engine_round(here, method, engine, number)
            rates = 8 * engine.columns["bytes_down"] / (engine.columns["seconds_down"] - devices.latency)
            history.append((fates(engine), rates))
        found.append(history)
    for other in found[1:]:
        for (fate, rates), (their_fate, their_rates) in zip(found[0], other):
            assert fate == their_fate
            torch.testing.assert_close(rates, their_rates, equal_nan=True)
    seen = {fate for history in found for fates_, _ in history for fate in fates_}
    assert {"arrived", "unavailable", "download lost", "upload lost"} <= seen


def engine_round(here: World, method: Method, engine: Simulated, number: int) -> None:
    """One round of the whole fleet, from the start."""
    play_round(method, method.init(here.setting, here.model), here.model, here.setting, engine, Chance(1, number))


def test_clients_come_and_go_by_trace(tmp_path: Path):
    text = "time,client,available,up_factor\n0,0,1,0.5\n0,1,0,1\n0,2,1,1\n4,0,0,1\n4,1,1,1\n4,2,1,2\n"
    (tmp_path / "trace.csv").write_text(text)
    trace = read_trace(tmp_path / "trace.csv", FLEET)  # period 8
    here = equipped(made(up=BITS / 3.0, **QUICK))
    method = small(fedavg(), select=Forced(((0, 1, 2),) * 3))
    engine = simulated(here, method, trace=trace)
    engine_round(here, method, engine, 1)
    assert fates(engine) == ["upload lost", "unavailable", "arrived"]  # the first is gone before its 6 s are over
    assert engine.columns["seconds_up"].tolist() == pytest.approx([6, 0, 3])
    assert float(engine.now) == pytest.approx(6)
    engine_round(here, method, engine, 2)
    assert fates(engine) == ["unavailable", "upload lost", "arrived"]  # at 9 s it is the time before 4 again
    assert engine.columns["seconds_up"].tolist() == pytest.approx([0, 3, 1.5])


def test_messages_are_lost_by_trace(tmp_path: Path):
    rows = [
        f"{second},{client},{one}" for client in range(8) for second, one in ((0, client % 2), (2, client // 2 % 2))
    ]
    (tmp_path / "trace.csv").write_text("\n".join(["time,client,reliability", *rows]) + "\n")
    here = equipped(made(up=BITS / 3.0, **QUICK))  # up to 3 s long: sent before, there after 2 s
    method = small(fedavg(), select=Forced((tuple(range(8)),)))
    engine = simulated(here, method, trace=read_trace(tmp_path / "trace.csv", FLEET, period=9.0))
    engine_round(here, method, engine, 1)
    assert fates(engine) == ["download lost", "upload lost", "download lost", "arrived"] * 2


def test_time_goes_on_when_nobody_is_there(tmp_path: Path):
    (tmp_path / "trace.csv").write_text("time,client,available\n0,0,0\n100,0,1\n")
    trace = read_trace(tmp_path / "trace.csv", FLEET)
    here = equipped(made(up=1e30, **QUICK))
    method = small(fedavg(), select=Forced(((0,),) * 3))
    engine = simulated(here, method, trace=trace)
    run = play(here, method, engine, rounds=3)
    assert [bool(reply.arrived.any()) for reply in run.replies] == [False, False, True]
    assert float(engine.now) == pytest.approx(120)
    engine = simulated(here, method, trace=trace, deadline=7.0)
    play(here, method, engine, rounds=1)
    assert float(engine.now) == 7


def test_a_reply_may_arrive_in_part():
    here = equipped()
    pieces = Pieces(4, 0.4, "neurons")
    engine = simulated(here, ALL, pieces=pieces)
    reply = play(here, ALL, engine, rounds=1).replies[0]
    survive = pieces.survive(reply.ids, Chance(7, 1))
    assert torch.equal(reply.arrived, survive.any(1))
    assert 0 < survive.sum() < survive.numel()
    assert torch.equal(reply.mask, survive[:, pieces.piece_of(here.setting)])
    assert torch.equal(reply.params[~reply.mask], here.model.expand(FLEET, -1)[~reply.mask])
    assert engine.columns["bytes_up"].tolist() == [4 * NUMBERS] * FLEET, "what is lost was sent"
    scattered = scattered_parts(KeepOwn(), select=Uniform(FLEET))
    engine = simulated(here, scattered, pieces=pieces)
    part = play(here, scattered, engine, rounds=1)
    assert torch.equal(part.replies[0].mask, part.tasks[0].mask & reply.mask)
    engine = simulated(here, ALL, pieces=Pieces(4, 0.0))
    assert torch.allclose(play(here, ALL, engine).model, play(here, ALL, here.local(ALL)).model, atol=1e-6)


# ---- what selection and parts save


@dataclass(frozen=True)
class SlowSendLess(Allocate):
    """As FedDD allots: the longest round is as short as a budget allows, with a floor. Unit: numbers."""

    budget: float = 0.6
    floor: float = 0.2

    def __call__(self, memory: State, setting: Setting, ids: Tensor, chance: Chance) -> tuple[Tensor, State]:
        """Bisection on the length of the round."""
        down, compute, up = (part[ids] for part in full_seconds(setting, setting.fleet.devices, Work(epochs=1)))
        whole, low, high = down + up, 0.0, float((down + compute + up).max())
        for _ in range(60):
            middle = (low + high) / 2
            mean = float(((middle - compute) / whole).clamp(self.floor, 1).mean())
            low, high = (middle, high) if mean < self.budget else (low, middle)
        return ((high - compute) / whole).clamp(self.floor, 1), memory


@dataclass(frozen=True)
class Leading(Mask):
    """The first so many numbers, rounded up."""

    def __call__(
        self, memory: State, setting: Setting, model: Tensor, ids: Tensor, share: Tensor, chance: Chance
    ) -> tuple[Portion, State]:
        """Whatever they are; a share is a little uncertain."""
        return Portion(torch.arange(len(model)) < (share * len(model) - 1e-6).ceil()[:, None]), memory


LIKE_FEDDD = small(Method(allocate=SlowSendLess(), mask=Leading(), local=KeepOwn()), select=Uniform(FLEET))


def test_an_allocation_of_table_4_by_hand():
    # Links are 1, 1.25, 2.5, 5 and 5 times as slow as the quickest, and everyone computes for 0.03 s. A round of 1.25
    # units lets the five send 1 + 1 + 1/2 + 1/4 + 1/4 = 3 models, which is 0.6 of 5.
    cohort, cycles = (0, 1, 2, 4, 6), 1e9
    examples = torch.tensor(SIZES, dtype=torch.float64)
    rates = dict(zip(cohort, (5e3, 4e3, 2e3, 1e3, 1e3)))
    up = [rates.get(client, 5e3) for client in range(FLEET)]
    columns = {"cycles_per_example": (0.03 * cycles / examples).tolist(), "cycles": cycles}
    here = equipped(made(up=up, down=[40 * rate for rate in up], **columns))
    unit, seconds = 32 * NUMBERS * (1 / 5e3 + 1 / 2e5), {}  # 2.12 s
    work = {"work": Work(epochs=1, batch=6), "select": Forced((cohort,))}
    for name, method in {"fedavg": replace(ALL, **work), "feddd": replace(LIKE_FEDDD, **work)}.items():
        engine = simulated(here, method)
        run = play(here, method, engine, rounds=1)
        seconds[name] = float(engine.costs.duration)
    assert run.tasks[0].share.tolist() == pytest.approx([1, 1, 0.5, 0.25, 0.25])
    counts = [NUMBERS, NUMBERS, 162, 81, 81]  # of 323
    assert (
        engine.columns["bytes_up"].tolist() == engine.columns["bytes_down"].tolist() == [4 * count for count in counts]
    )
    slowest = 32 * 81 * (1 / 1e3 + 1 / 4e4) + 0.03
    assert engine.columns["seconds"].tolist()[3:] == pytest.approx([slowest] * 2)
    assert seconds["feddd"] == pytest.approx(slowest)  # 2.69 s, 1.25 units but for whole numbers
    assert seconds["feddd"] == pytest.approx(1.25 * unit + 0.03, rel=0.01)
    assert seconds["fedavg"] == pytest.approx(5 * unit + 0.03)  # 10.62 s


def test_the_slowest_send_no_less_than_the_floor():
    up = [5e3] * 8 + [1e3] * 4
    here = equipped(made(up=up, down=2e5, cycles=1e10, cycles_per_example=1e6))
    method = replace(LIKE_FEDDD, allocate=SlowSendLess(budget=0.2))
    shares = play(here, method, simulated(here, method), rounds=1).tasks[0].share
    assert shares.tolist() == pytest.approx([0.2] * FLEET), "no freedom is left"


@pytest.mark.parametrize("seed", range(5))
def test_parts_from_slow_links_make_the_shortest_rounds(seed):
    here = equipped(make_devices("table4", FLEET, seed))
    work = {"work": Work(epochs=1, batch=6)}
    methods = {"fedavg": replace(ALL, **work), "fedcs": small(fedcs(0.6)), "feddd": replace(LIKE_FEDDD, **work)}
    seconds, sent = {}, {}
    for name, method in methods.items():
        engine = simulated(here, method)
        play(here, method, engine, rounds=2)
        seconds[name], sent[name] = float(engine.now), int(engine.columns["bytes_up"].sum())
    assert seconds["feddd"] < seconds["fedcs"] < seconds["fedavg"]
    assert sent["feddd"] <= 0.6 * sent["fedavg"] + 4 * FLEET
    assert sent["fedcs"] <= 0.6 * sent["fedavg"]


# ---- refusals


def test_a_world_needs_devices():
    here = world("mlp")
    bare = replace(here.setting, fleet=here.setting.fleet._replace(devices=None))
    with pytest.raises(BadExperiment, match="a simulated world needs a fleet with devices"):
        Simulated(here.local(ALL), ALL, bare)


@pytest.mark.parametrize(
    "settings",
    [
        {"deadline": 0},
        {"first": 0},
        {"server_up": -1},
        {"patience": 0},
        {"piece_loss": 1.1},
        {"deadline": float("nan")},
        {"compute": "guess"},
    ],
)
def test_impossible_worlds_are_refused(settings):
    with pytest.raises(BadExperiment, match=next(iter(settings))):
        Experiment(fleet="equal", world=settings)
