"""Data as people have them become the same dataset as arrays, or an error says how to build one."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from torch.utils.data import DataLoader, Dataset as TorchDataset, IterableDataset, Subset, TensorDataset

from fedloom.data.dataset import Dataset
from fedloom.data.from_columns import from_frame
from fedloom.data.from_torch import from_clients, from_torch
from fedloom.data.load import load
from fedloom.data.prepare import from_arrays
from fedloom.data.sources import as_dataset
from fedloom.data.targets import for_goal
from fedloom.errors import BadData, BadExperiment, FedloomError
from fedloom.goals import classes, numbers, tokens

RNG = np.random.default_rng(3)
X, Y = RNG.normal(size=(40, 3)).astype(np.float32), np.arange(40) % 4
EXPECTED = from_arrays("a", {"x_train": X[:30], "y_train": Y[:30], "x_test": X[30:], "y_test": Y[30:]})


class Pairs(TorchDataset):
    """Pairs by number."""

    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.y)

    def __getitem__(self, at):
        return self.x[at], self.y[at]


class Noisy(Pairs):
    """Inputs are other ones at every reading."""

    def __getitem__(self, at):
        return self.x[at] + np.random.default_rng().normal(size=3), self.y[at]


class Stream(IterableDataset):
    """Examples one after another."""

    def __iter__(self):
        yield from zip(X, Y)


TRAIN, TEST = Pairs(X[:30], Y[:30]), Pairs(torch.tensor(X[30:]), torch.tensor(Y[30:]))


def ready(data) -> Dataset:
    """Any data for the goal `classes`."""
    return for_goal(as_dataset(data), classes(), "data")


@pytest.mark.parametrize(
    "data",
    [
        EXPECTED,
        EXPECTED._replace(x_train=X[:30].astype(np.float64), y_train=Y[:30].astype(np.uint8)),
        EXPECTED._replace(x_train=torch.tensor(X[:30]), y_train=torch.tensor(Y[:30], dtype=torch.int32)),
        {"x_train": X[:30], "y_train": Y[:30], "x_test": X[30:].tolist(), "y_test": Y[30:].tolist()},
        (TRAIN, TEST),
        (DataLoader(TRAIN, batch_size=7, shuffle=True), DataLoader(TEST, num_workers=0)),
        (TensorDataset(torch.tensor(X[:30]), torch.tensor(Y[:30])), Subset(Pairs(X, Y), range(30, 40))),
    ],
)
def test_all_kinds_give_the_same_arrays(data):
    found = ready(data)
    for name in ("x_train", "y_train", "x_test", "y_test"):
        np.testing.assert_array_equal(getattr(found, name), getattr(EXPECTED, name))
        assert getattr(found, name).dtype == getattr(EXPECTED, name).dtype
    assert found.classes == 4


@pytest.mark.parametrize("data", [(X, Y), {"x": X, "y": Y}, {"x_train": X, "y_train": Y}, Pairs(X, Y)])
def test_without_a_test_set_a_fifth_of_every_class_is_kept_back(data):
    found = ready(data)
    assert np.bincount(found.y_test).tolist() == [2, 2, 2, 2]
    whole = np.concatenate([found.x_train, found.x_test])
    assert sorted(map(tuple, whole.tolist())) == sorted(map(tuple, X.tolist()))


def test_clients_are_those_of_the_arrays():
    pieces = [(X[:10], Y[:10]), Pairs(X[10:25], Y[10:25]), {"x": X[25:30], "y": Y[25:30]}]
    found = for_goal(from_clients(pieces, (X[30:], Y[30:])), classes(), "data")
    np.testing.assert_array_equal(found.x_train, X[:30])
    np.testing.assert_array_equal(found.x_test, X[30:])
    assert found.client_train.tolist() == [0] * 10 + [1] * 15 + [2] * 5
    assert found.client_test is None
    assert found.divided


def test_clients_keep_a_fifth_each_and_their_names():
    found = as_dataset({"anna": (X[:20], Y[:20]), "ben": (X[20:], Y[20:])})
    assert found.client_names == ("anna", "ben")
    assert np.bincount(found.client_test).tolist() == [4, 4]
    own = from_clients([(X[:20], Y[:20]), (X[20:], Y[20:])], [(X[:3], Y[:3]), (X[3:4], Y[3:4])])
    assert own.client_test.tolist() == [0, 0, 0, 1]


def test_a_client_without_examples_is_named():
    one = (np.ones((4, 2)), np.arange(4) % 2)
    with pytest.raises(BadData, match="client ben has no examples; leave"):
        from_clients({"anna": one, "ben": (one[0][:0], one[1][:0])})


def test_ids_of_clients_and_strata_go_with_a_torch_dataset():
    ids = ["a", "b", "c"] * 10
    found = from_torch(TRAIN, TEST, client=ids, client_test=["b"] * 10, stratum=np.arange(30) % 5)
    assert found.client_names == ("a", "b", "c")
    assert found.client_train.tolist() == [0, 1, 2] * 10
    assert found.stratum_train.tolist() == (np.arange(30) % 5).tolist()
    with pytest.raises(BadData, match="client has 29 entries for 30 examples"):
        from_torch(TRAIN, TEST, client=ids[1:])


def test_texts_of_unequal_length_are_padded():
    rows = [[1, 2, 3], [4], [5, 6, 7, 8], [1, 1]]
    tags = [[0, 1, 0], [1], [1, 1, 0, 0], [0, 1]]
    found = for_goal(from_torch(Pairs(list(map(np.array, rows)), list(map(np.array, tags)))), tokens(), "data")
    whole = np.concatenate([found.x_train, found.x_test])
    assert sorted(whole.tolist()) == [[1, 1, 0, 0], [1, 2, 3, 0], [4, 0, 0, 0], [5, 6, 7, 8]]
    both = np.concatenate([found.y_train, found.y_test])
    assert (both[whole == 0] == -100).all()


def test_a_loaders_own_collate_is_used():
    def doubled(items):
        x, y = zip(*items)
        return 2 * torch.tensor(np.stack(x)), torch.tensor(y)

    found = from_torch(DataLoader(TRAIN, batch_size=5, collate_fn=doubled), TEST)
    np.testing.assert_array_equal(found.x_train, 2 * X[:30])


def test_examples_can_stay_on_disk(tmp_path):
    told = []
    found = for_goal(from_torch(TRAIN, TEST, into=tmp_path / "big", tell=told.append), classes(), "data")
    assert isinstance(found.x_train, np.memmap)
    np.testing.assert_array_equal(found.x_train, X[:30])
    np.save(tmp_path / "big" / "y_train.npy", Y[:30])
    np.save(tmp_path / "big" / "y_test.npy", Y[30:])
    again = load(str(tmp_path / "big"))
    assert isinstance(again.x_train, np.memmap)
    np.testing.assert_array_equal(again.x_test, X[30:])


@pytest.mark.parametrize(
    ("data", "kind", "says"),
    [
        (Noisy(X, Y), BadData, "two readings of example 0 of Noisy differ.*transform= to run"),
        (Stream(), BadData, "Stream has no length"),
        (Pairs(X[:0], Y[:0]), BadData, "has no examples"),
        (Pairs([X[0], X[1][:2]] * 5, Y[:10]), BadData, r"example 1 of Pairs has inputs of shape \[2\]"),
        (TensorDataset(torch.tensor(X)), BadData, "example 0 of TensorDataset is tuple; expected a pair"),
        ([], BadExperiment, "data is of type builtins.list; expected a fedloom.Dataset"),
        ([(X, Y[:5])], BadData, "client 0: 40 inputs and 5 targets"),
        ([(X, Y), 3], BadData, "client 1 is of type int; expected a pair"),
        ([(X, Y), (X[:, :2], Y)], BadData, r"clients have inputs of shapes \(3,\) and \(2,\)"),
        ({"images": X}, BadExperiment, "data is a dict with images; expected a fedloom.Dataset"),
        ({"x_train": X, "y_train": Y, "x_tset": X}, BadData, "data have arrays x_tset; expected x_train"),
        (7, BadExperiment, "data is of type builtins.int; expected"),
        ("digits", BadExperiment, r"data is 'digits' \(str\).*Experiment\(data='digits'\)"),
        ((X, Y[:7]), BadData, "40 inputs and 7 targets"),
    ],
)
def test_what_is_no_data_is_refused_with_what_to_build(data, kind, says):
    with pytest.raises(FedloomError, match=says) as refused:
        as_dataset(data)
    assert type(refused.value) is kind


# ---- tables


def frame() -> pd.DataFrame:
    """Forty rows."""
    shop = np.array(["north", "south"])[np.arange(40) % 2]
    return pd.DataFrame({"size": 10 * X[:, 0] + 5, "age": X[:, 1], "price": X[:, 2], "kind": Y, "shop": shop})


def test_a_frame_with_chosen_columns():
    found = for_goal(from_frame(frame(), y="price", x=["size", "age"], client="shop"), numbers(), "data")
    np.testing.assert_allclose(found.x_train.mean(0), 0, atol=1e-6)
    np.testing.assert_allclose(found.x_train.std(0), 1, atol=1e-5)
    assert set(found.y_train.tolist()) | set(found.y_test.tolist()) == set(X[:, 2].tolist())
    assert found.client_names == ("north", "south")
    raw = from_frame(frame(), y="price", x=["size", "age"], standardise="none")
    assert set(raw.x_train[:, 1]) <= set(X[:, 1])
    both = from_frame(frame(), y=["price", "age"], x="size", standardise="all")
    assert both.y_train.shape[1:] == (2,)
    np.testing.assert_allclose(both.y_train.mean(0), 0, atol=1e-6)


def test_tables_on_disk_are_frames(tmp_path):
    frame().to_csv(tmp_path / "shops.csv", index=False)
    frame().to_parquet(tmp_path / "shops.parquet")
    how = {"y": "price", "x": ["size", "age"], "client": "shop"}
    expected = for_goal(from_frame(frame(), **how), numbers(), "data")
    for name in ("shops.csv", "shops.parquet"):
        found = load(str(tmp_path / name), goal="numbers", **how)
        for ours, theirs in zip(found[1:7], expected[1:7]):
            np.testing.assert_allclose(ours, theirs, rtol=1e-6)
        assert found.client_names == ("north", "south")


def test_a_frame_is_data_as_it_is():
    found = ready(frame().drop(columns=["shop"]).rename(columns={"kind": "label"}))
    assert found.x_train.shape[1:] == (3,)
    assert found.classes == 4


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({}, "no column is named label, target or y"),
        ({"y": "kind"}, "column text is missing, and column shop holds texts; choose inputs by data.x"),
        ({"y": "cost"}, "column cost is missing; found size, age, price, kind, shop"),
        (
            {"y": "kind", "x": ["size", "shop"]},
            "column shop, row 0 holds 'north'; expected numbers, or one column of texts",
        ),
        ({"y": ["price", "shop"], "x": "size"}, "column shop, row 0 holds 'north'; several targets must be numbers"),
    ],
)
def test_columns_that_do_not_fit_are_named(how, says):
    with pytest.raises(BadData, match=says):
        from_frame(frame(), **how)


def test_empty_cells_are_named(tmp_path):
    (tmp_path / "gaps.csv").write_text("a,label\n1,0\n,1\n2,0\n")
    with pytest.raises(BadData, match=r"gaps\.csv: column a, row 1 is empty or not finite"):
        load(str(tmp_path / "gaps.csv"))
    with pytest.raises(BadExperiment, match="unknown standardise 'al'; did you mean 'all'"):
        load(str(tmp_path / "gaps.csv"), standardise="al")


def test_a_text_column_of_any_name_with_labels_that_are_texts(tmp_path):
    rows = [f"word{at % 3} again {at},{'good' if at % 2 else 'bad'}" for at in range(20)]
    (tmp_path / "reviews.csv").write_text("\n".join(["review,verdict", *rows]) + "\n")
    found = load(str(tmp_path / "reviews.csv"), x="review", y="verdict", length=5)
    assert found.class_names == ("bad", "good")
    assert found.x_train.shape == (16, 5)
    assert found.vocabulary > 3
