"""Records of Regions: which client trained which region, and how long ago."""

from __future__ import annotations

import pytest
import torch

from fedloom.chance import Chance
from fedloom.core.types import Reply, State
from fedloom.errors import BadExperiment
from fedloom.method import Method
from fedloom.methods.ra_fed import ra_fed
from fedloom.parts.mask.regions import Regions
from worlds import Run, changed, play, small, world

HERE = world("normed")


def lose(reply: Reply, chance: Chance) -> Reply:
    """Half of the replies, in the third round all of them; the rows come in another order, some are missing."""
    arrived = (chance.uniform("lose", reply.ids) > 0.5) & (chance.round != 3)
    order = chance.uniform("order", reply.ids).argsort()[2:]
    mask = None if reply.mask is None else reply.mask[order]
    report = {name: value[order] for name, value in reply.report.items()}
    return Reply(reply.ids[order], reply.params[order], mask, {}, report, arrived[order])


def by_hand(run: Run, regions: Regions, seed: int) -> list[dict[str, float | list[int]]]:
    """The same records with plain loops, from what was sent."""
    size, count = HERE.setting.fleet.size, regions.count
    since, rows = [[0] * count for _ in range(size)], []
    for number, (task, reply) in enumerate(zip(run.tasks, run.replies), 1):
        chance, share = Chance(seed, number), dict(zip(range(size), task.share))
        clients, covered = [0] * count, set()
        trained = set()
        for row, client in enumerate(reply.ids.tolist()):
            if not reply.arrived[row]:
                continue
            mask = torch.ones(len(run.model)) if reply.mask is None else reply.mask[row]
            covered |= set(mask.nonzero().flatten().tolist())
            chosen = regions.chosen(torch.tensor([client]), share[client][None], chance)[0].tolist()
            for region in range(count):
                if number == 1 or chosen[region]:
                    clients[region] += 1
                    trained.add((client, region))
        for client in range(size):
            for region in range(count):
                since[client][region] = 0 if (client, region) in trained else since[client][region] + 1
        stale = [min(since[client][region] for client in range(size)) for region in range(count)]
        some = [n for n in clients if n]
        rows.append(
            {
                "coverage": len(covered) / len(run.model),
                "regions_trained": len(some),
                "fewest_clients": min(some, default=0),
                "staleness_mean": sum(stale) / count,
                "staleness_max": max(stale),
                "tau": max(max(row) for row in since),
                "staleness": stale,
            }
        )
    return rows


@pytest.mark.parametrize(
    "method",
    [
        pytest.param(small(ra_fed("S", period=2)), id="S, every other round the same"),
        pytest.param(small(ra_fed("MIX", 3, "element", redraw=True)), id="elements"),
    ],
)
def test_records_by_hand(method: Method) -> None:
    recorded: list[State] = []
    run = play(HERE, method, changed(HERE.local(method), lose), rounds=6, seed=4)
    memory = method.init(HERE.setting, HERE.model)["mask"]
    for task, reply, number in zip(run.tasks, run.replies, range(1, 7)):
        ids = torch.arange(HERE.setting.fleet.size)
        _, memory = method.mask(memory, HERE.setting, HERE.model, ids, task.share, Chance(4, number))
        memory = method.mask.observe(memory, HERE.setting, HERE.model, reply)
        recorded.append(method.mask.record(memory))
    assert isinstance(method.mask, Regions)
    for ours, theirs in zip(recorded, by_hand(run, method.mask, 4)):
        assert ours.keys() == theirs.keys()
        for name in ours:
            assert ours[name].tolist() == pytest.approx(theirs[name]), name
    for name, value in method.mask.record(run.memory["mask"]).items():
        assert torch.equal(value, recorded[-1][name]), name
    assert recorded[2]["coverage"] == recorded[2]["regions_trained"] == recorded[2]["fewest_clients"] == 0
    assert recorded[0]["coverage"] == 1


def test_periodic_rounds_leave_regions_behind() -> None:
    method = small(ra_fed("S", period=1))
    run = play(HERE, method, HERE.local(method), rounds=4)
    found = method.record(run.memory)
    assert found["mask.staleness"].tolist() == [3, 3, 3, 0]
    assert (found["mask.regions_trained"], found["mask.fewest_clients"], found["mask.tau"]) == (1, 12, 3)
    assert 0 < found["mask.coverage"] < 1
    assert all(value.dim() == (name == "mask.staleness") for name, value in found.items())


CLIENTS, QUARTER = torch.arange(10), torch.full((10,), 0.25)


def dealt(rounds: int, share: torch.Tensor = QUARTER, **settings: object) -> torch.Tensor:
    """Which regions ten clients train in some rounds [rounds, 10, 4]."""
    regions = Regions(period=0, **settings)  # type: ignore[arg-type]
    return torch.stack([regions.chosen(CLIENTS, share, Chance(4, number)) for number in range(2, 2 + rounds)])


@pytest.mark.parametrize("deal", ["drawn", "fixed", "turns"])
@pytest.mark.parametrize("coverage", [1, 2])
def test_the_least_coverage_is_as_asked(coverage: int, deal: str) -> None:
    chosen = dealt(12, coverage=coverage, deal=deal)
    assert (chosen.sum(2) == 1).all()
    assert chosen.sum(1).sort(1).values.tolist() == [[coverage] * 3 + [10 - 3 * coverage]] * 12
    assert dealt(3, 2 * QUARTER, coverage=coverage, deal=deal).sum(2).unique().tolist() == [2]


def test_only_some_regions_are_trained_in_a_round() -> None:
    one = dealt(12, trained=1)
    assert (one.sum(1).sort(1).values == torch.tensor([0, 0, 0, 10])).all()
    assert one.any(0).any(0).all()  # another one now and then
    two = dealt(12, 4 * QUARTER, trained=2)
    assert (two.sum(1) > 0).sum(1).unique().tolist() == [2]
    assert two.sum(2).unique().tolist() == [2]  # and a larger share does not change that


def test_a_deal_decides_how_long_a_client_goes_without_a_region() -> None:
    fixed, turns, drawn = (dealt(8, coverage=1, deal=deal) for deal in ("fixed", "turns", "drawn"))
    assert (fixed == fixed[0]).all()
    for first in range(5):
        assert turns[first : first + 4].any(0).all()  # everyone has every region within four rounds
    assert not torch.equal(drawn[0], drawn[1])


def test_a_deal_is_of_a_cohort_and_trains_as_the_loop_does() -> None:
    assert Regions(coverage=1).depends_on_cohort
    assert not Regions(coverage=1).alone
    assert Regions().alone
    method = small(ra_fed("S", coverage=2, deal="turns"))
    ours, theirs = (play(HERE, method, engine) for engine in (HERE.local(method), HERE.loop(method)))
    assert torch.allclose(ours.model, theirs.model, atol=1e-5)


@pytest.mark.parametrize("settings", [{"coverage": 0}, {"trained": 5}, {"trained": 0}, {"deal": "never"}])
def test_deals_that_cannot_be_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(BadExperiment, match=next(iter(settings))):
        Regions(**settings)  # type: ignore[arg-type]
