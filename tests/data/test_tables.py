"""Tables of texts by path: csv and parquet, alone, in pairs and in folders."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from fedloom.data.load import load
from fedloom.errors import BadData

ROWS = [(f"word{label} shared text {i}", label) for i in range(10) for label in range(3)]


def write_csv(path, rows=ROWS, header="text,label"):
    path.write_text("\n".join([header, *(",".join(str(cell) for cell in row) for row in rows)]) + "\n")
    return str(path)


@pytest.fixture(autouse=True)
def _folder(monkeypatch, tmp_path):
    """The data folder is empty."""
    monkeypatch.setenv("FEDLOOM_DATA", str(tmp_path))


def test_one_table_is_cut_the_same_way_every_time(tmp_path):
    path = write_csv(tmp_path / "mine.csv")
    data, again = load(path), load(path)
    assert np.bincount(data.y_train).tolist() == [8, 8, 8]
    assert np.bincount(data.y_test).tolist() == [2, 2, 2]
    np.testing.assert_array_equal(data.x_test, again.x_test)
    assert data.x_train.shape == (24, 64)
    assert data.x_train.dtype == np.int64
    assert data.x_train.max() < data.vocabulary


def test_csv_and_parquet_agree(tmp_path):
    rows = [("a, quoted\ntext", 0), ("übergroß ☃", 1), ("", 1), ("plain", 0)] * 5
    write_csv(tmp_path / "mine.csv", [(f'"{text}"', label) for text, label in rows])
    table = pa.table({"text": [text for text, _ in rows], "label": [label for _, label in rows]})
    pyarrow.parquet.write_table(table, tmp_path / "mine.parquet")
    for one, other in zip(load("mine.csv"), load("mine.parquet"), strict=True):
        np.testing.assert_array_equal(one, other)


def test_train_and_test_tables_in_all_ways_of_naming(tmp_path):
    folder = tmp_path / "pair"
    folder.mkdir()
    write_csv(folder / "mine_train_subset.csv")
    write_csv(folder / "mine_test.csv", ROWS[:3])
    for name in ("pair/mine.csv", "pair/mine_train_subset.csv", "pair"):
        data = load(name)
        assert (len(data.y_train), len(data.y_test)) == (30, 3)


def test_ag_news_files_are_found(tmp_path):
    write_csv(tmp_path / "ag_news_train_subset.csv")
    write_csv(tmp_path / "ag_news_test.csv", ROWS[:3])
    data = load("ag-news", vocabulary_size=4, length=5)
    assert data.classes == 4
    assert data.vocabulary == 6
    assert data.x_train.shape == (30, 5)


def test_clients_of_a_table(tmp_path):
    rows = [(f"text {i}", i % 2, name) for i, name in enumerate(["bo", "al", "cy"] * 10)]
    data = load(write_csv(tmp_path / "named.csv", rows, "text,label,client"))
    assert set(data.client_train) | set(data.client_test) == {0, 1, 2}
    assert len(data.client_train) == len(data.y_train)
    numbered = [(text, label, {"bo": 70, "al": 8, "cy": 900}[name]) for text, label, name in rows]
    data = load(write_csv(tmp_path / "numbered.csv", numbered, "text,label,client"))
    assert set(data.client_train) == {8, 70, 900}


@pytest.mark.parametrize(
    ("header", "rows", "says"),
    [
        ("words,label", ROWS, "column text is missing, and column words holds texts; choose inputs by data.x="),
        (
            "text,tag",
            ROWS,
            r"no column is named label, target or y; say which are targets, data.y=NAME",
        ),
        ("text,label", [], "the table has no rows"),
        ("text,label", [("a", 0), ("b", "")], "column label, row 1 is empty"),
        ("text,label", [("a", 0), ("b", 0), ("c", -1)], "column label, row 2 holds -1; expected a class, from 0"),
        ("text,label", [("a", 0), ("b", 1.5)], "column label, row 1 holds 1.5; expected a whole number"),
        ("text,label", [("a", 0), ("b", 0, 0)], "cannot be read as a table"),
        ("text,label", [("a", 0), ("b", 1)], r"array x_test has shape \(0, 64\)"),
    ],
)
def test_bad_tables_are_named(tmp_path, header, rows, says):
    with pytest.raises(BadData, match=says) as caught:
        load(write_csv(tmp_path / "mine.csv", rows, header))
    assert "mine.csv" in str(caught.value)


def test_bad_parquet_is_named(tmp_path):
    path = tmp_path / "mine.parquet"
    table = pa.table({"text": ["a", None, "c"], "label": [0, 1, 0]})
    pyarrow.parquet.write_table(table, path)
    with pytest.raises(BadData, match=r"mine\.parquet: column text, row 1 holds None"):
        load(str(path))
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(BadData, match=r"mine\.parquet cannot be read as a table"):
        load(str(path))


def test_test_labels_outside_the_training_labels_are_refused(tmp_path):
    write_csv(tmp_path / "mine_train.csv")
    write_csv(tmp_path / "mine_test.csv", [("a", 0), ("b", 3)])
    with pytest.raises(BadData, match=r"mine_test\.csv: array y_test, row 1 holds 3; expected a label from 0 to 2"):
        load("mine.csv")


def test_a_client_column_in_one_table_only_is_refused(tmp_path):
    (tmp_path / "d").mkdir()
    write_csv(tmp_path / "d" / "train-0.csv", [("a", 0, 1)], "text,label,client")
    write_csv(tmp_path / "d" / "train-1.csv", [("a", 0)])
    write_csv(tmp_path / "d" / "test.csv", [("a", 0)])
    with pytest.raises(BadData, match=r"train-1\.csv: column client is missing"):
        load("d")


def test_a_folder_without_test_tables_is_refused(tmp_path):
    (tmp_path / "d").mkdir()
    write_csv(tmp_path / "d" / "train.csv")
    with pytest.raises(BadData, match=r"found train\.csv"):
        load("d")
