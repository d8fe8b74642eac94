"""Examples and states away from the device: the same bits as with everything at hand, in any chunking."""

from __future__ import annotations

import pytest
import torch

from fedloom.engine.clients import Clients
from fedloom.engine.cuda.graphs import Graphs
from fedloom.engine.local import Local, local_engine
from fedloom.engine.storage.backing import Backing, Place
from fedloom.engine.storage.client_states import ClientStates
from fedloom.engine.storage.offload import OffloadedShards, offload
from fedloom.errors import RunStopped
from fedloom.method import Method
from worlds import METHODS, World, assert_identical, every_method, everything, play, states_of, world

CPU = torch.device("cpu")


def away(
    here: World, method: Method, place: Place, chunk: int | None, graphs: Graphs | None = None, room: int = 0
) -> Local:
    """The engine of a world whose examples and client states live elsewhere."""
    data, shards = offload(here.data, here.shards, CPU, place, room)
    own = offload(here.data, here.shards, CPU, place, 0)
    return local_engine(Clients(method, here.setting, data, shards, own, own, place), chunk, graphs=graphs)


def at_home(here: World, method: Method, chunk: int | None, graphs: Graphs | None = None) -> Local:
    """The same with everything at hand."""
    own = here.data, here.shards
    return local_engine(Clients(method, here.setting, *own, own, own), chunk, graphs=graphs)


@every_method
def test_a_file_gives_the_same_bits(method: Method) -> None:
    here = world("mlp")
    theirs, ours = at_home(here, method, 3), away(here, method, "file", 3)
    assert_identical(everything(play(here, method, ours)), everything(play(here, method, theirs)))
    known = theirs.clients.states.known().tolist()
    assert ours.clients.states.known().tolist() == known
    if known:
        assert_identical(states_of(ours, known, here.model), states_of(theirs, known, here.model))


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedspu", "feddd", "fedumf"])
@pytest.mark.parametrize(("place", "chunk"), [("host", None), ("host", 1), ("file", 5)])
@pytest.mark.parametrize("network", ["normed", "text"])
def test_any_place_and_chunking(name: str, place: Place, chunk: int | None, network: str) -> None:
    here, method = world(network), dict(METHODS)[name]()
    ours, theirs = (
        play(here, method, engine) for engine in (away(here, method, place, chunk), at_home(here, method, chunk))
    )
    assert_identical(everything(ours), everything(theirs))


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedspu", "fjord"])
def test_buffered_steps_read_the_next_chunk_from_the_same_buffer(name: str) -> None:
    here, method = world("mlp"), dict(METHODS)[name]()
    mine, their = Graphs(capture=False), Graphs(capture=False)
    ours, theirs = away(here, method, "file", 2, mine, 60), at_home(here, method, 2, their)  # no two have more than 60
    assert isinstance(ours.clients.shards, OffloadedShards)
    assert_identical(everything(play(here, method, ours, 4)), everything(play(here, method, theirs, 4)))
    assert len({id(buffers.data.x) for buffers in mine._buffers.values()}) == 1
    assert len(mine._buffers) == len(their._buffers)


def test_personal_accuracy_from_a_shelf() -> None:
    here, method = world("mlp"), dict(METHODS)["fedspu"]()
    found = []
    for engine in (away(here, method, "file", 2), at_home(here, method, 2)):
        found.append(engine.personal(play(here, method, engine).model))
        assert found[-1] is not None
    assert torch.equal(*found)


def test_a_shelf_hands_out_each_clients_own() -> None:
    here = world("mlp")
    order = torch.arange(len(here.data.y)).flip(0)
    shards = type(here.shards)(list(order.split(here.shards.sizes)), CPU)
    offloaded = OffloadedShards(here.data, shards, CPU, "host")
    ids = [4, 0, 1, 11]
    data, rows = offloaded.examples_of(here.data, torch.tensor(ids), ids)
    wanted = shards.rows(torch.tensor(ids), rows.shape[1])
    assert torch.equal(data.x[rows], here.data.x[wanted])
    assert torch.equal(data.y[rows], here.data.y[wanted])
    pieces = [(some.x[part], some.y[part]) for some, part in offloaded.pieces(here.data, 7)]
    assert torch.equal(torch.cat([x for x, _ in pieces]), here.data.x[shards.examples])
    assert torch.equal(torch.cat([y for _, y in pieces]), here.data.y[shards.examples])


def test_clients_without_examples_get_rows_that_exist() -> None:
    here = world("text")
    shards = type(here.shards)([torch.arange(0), torch.arange(3), torch.arange(0)], CPU)
    offloaded = OffloadedShards(here.data, shards, CPU, "file")
    for ids in ([0], [0, 2], [0, 1, 2]):
        data, rows = offloaded.examples_of(here.data, torch.tensor(ids), ids)
        assert data.x[rows].shape[:2] == (len(ids), max(1, *(shards.sizes[i] for i in ids)))
        assert data.x[rows].max() < 50


@pytest.mark.parametrize("place", ["device", "host", "file"])
def test_states_are_saved_and_loaded_at_every_place(place: Place) -> None:
    states, born = ClientStates(20, CPU, place), {"own": torch.zeros(3), "count": torch.tensor(0)}
    for ids in ([3, 1], [7, 3, 19], [0]):
        state = states.get(ids, born)
        state["own"] += torch.tensor(ids)[:, None]
        state["count"] += 1
        states.put(ids, state)
    again = ClientStates(20, CPU, place)
    again.load({name: value.clone() for name, value in states.save().items()})
    everyone = [0, 1, 3, 7, 19]
    assert again.known().tolist() == everyone
    assert_identical(again.get(everyone, born), states.get(everyone, born))
    assert again.get(everyone, born)["count"].tolist() == [1, 1, 2, 1, 1]
    assert again.get([5], born)["count"].tolist() == [0]
    empty = ClientStates(20, CPU, place)
    empty.load(ClientStates(20, CPU, place).save())
    assert empty.known().tolist() == []


def test_a_file_takes_disk_only_for_rows_in_use(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    import os

    backing = Backing(1_000_000, (1000,), torch.float32, "file", CPU)
    assert list(tmp_path.iterdir()) == []  # without a name: nothing is left behind, whatever happens
    assert backing._file is not None
    backing.reserve(10)
    assert os.fstat(backing._file).st_blocks * 512 < 10**6 < os.fstat(backing._file).st_size
    backing.rows[9] = 1.0
    assert backing.rows[9].sum() == 1000
    before = backing.rows.data_ptr()
    backing.reserve(50)
    assert backing.rows.data_ptr() == before


def test_a_full_disk_stops_with_a_reason(monkeypatch) -> None:
    def full(file: int, first: int, length: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full, raising=False)
    with pytest.raises(RunStopped, match=r"no room for 400 more bytes .*No space left.*TMPDIR"):
        Backing(10, (10,), torch.float32, "file", CPU).reserve(10)
