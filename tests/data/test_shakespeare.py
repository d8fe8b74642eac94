"""Shakespeare by roles: windows, clients and their names, files of the user's own, no test window in training."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from fedloom.data.shakespeare import letters_of, shakespeare
from fedloom.errors import BadData, BadExperiment
from fedloom.goals import next_token

PLAY = """ANNA:
{anna}

BEN:
{ben}

ANNA:
And again.

SILENT:

CEM:
Hi.
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a small play."""
    text = PLAY.format(anna="abcdefghij" * 6, ben="klmnopqrst" * 4)
    (tmp_path / "tiny_shakespeare.txt").write_text(text)
    return tmp_path


def spoken(data, part: str, client: int, letters: str) -> str:
    """What a client says in a part of the data."""
    x, whose = getattr(data, f"x_{part}"), getattr(data, f"client_{part}")
    return "".join(letters[token - 1] for row in x[whose == client] for token in row if token)


def test_the_embedded_part():
    data = shakespeare()
    assert data.x_train.shape == (5426, 48)
    assert data.x_test.shape == (1365, 48)
    assert data.x_train.dtype == data.y_train.dtype == np.int64
    assert data.vocabulary == len(letters_of()) + 1 == 64
    assert (data.x_train.min(), data.x_train.max(), data.x_test.min()) == (1, 63, 0)  # a role's last window is padded
    assert data.client_names is not None
    assert len(data.client_names) == 20
    assert data.divided
    assert {"ROMEO", "JULIET", "GLOUCESTER"} < set(data.client_names)
    assert set(data.client_train.tolist()) == set(data.client_test.tolist()) == set(range(20))
    assert not data.y_train.any()
    assert not data.y_test.any()


def test_the_embedded_part_comes_with_the_package():
    import fedloom

    file = Path(fedloom.__file__).parent / "data" / "embedded" / "shakespeare.txt.gz"
    assert 100_000 < file.stat().st_size < 150_000
    text = gzip.decompress(file.read_bytes()).decode()
    assert "ROMEO:\n" in text
    assert text.count("\n\n") > 1000


def test_windows_are_the_speeches_in_order(folder):
    data, letters = shakespeare(folder, length=8), letters_of(folder)
    assert data.client_names == ("ANNA", "BEN")
    anna = "abcdefghij" * 6 + "\nAnd again."
    assert spoken(data, "train", 0, letters) + spoken(data, "test", 0, letters) == anna
    assert spoken(data, "train", 1, letters) + spoken(data, "test", 1, letters) == "klmnopqrst" * 4
    assert np.bincount(data.client_test).tolist() == [2, 1]
    np.testing.assert_array_equal(data.stratum_train, data.client_train)


def test_padding_is_at_the_end_and_every_window_has_a_character_to_predict():
    data = shakespeare()
    for x in (data.x_train, data.x_test):
        real = x != 0
        assert not (real[:, 1:] & ~real[:, :-1]).any()
        assert real[:, :2].all()
    targets = next_token().derive(data.x_test)
    assert (targets != -100).any(1).all()
    assert ((targets >= 1) | (targets == -100)).all()


def test_a_single_last_character_is_left_out(tmp_path):
    (tmp_path / "tiny_shakespeare.txt").write_text("ANNA:\n" + "ab" * 20 + "c\n")
    data = shakespeare(tmp_path, length=8)
    assert len(data.x_train) + len(data.x_test) == 5
    assert (data.x_test != 0).all()


def test_the_test_windows_come_after_the_training_windows():
    data, letters = shakespeare(), letters_of()
    whole = [spoken(data, "train", k, letters) + spoken(data, "test", k, letters) for k in range(20)]
    for client, text in enumerate(whole):
        own = spoken(data, "test", client, letters)
        assert text.endswith(own)
        assert 0.18 < len(own) / len(text) < 0.22


def test_the_whole_text_is_taken_if_it_is_there(folder):
    packed = folder / "packed"
    packed.mkdir()
    (packed / "tiny_shakespeare.txt.gz").write_bytes(gzip.compress((folder / "tiny_shakespeare.txt").read_bytes()))
    one, other = shakespeare(folder, length=8), shakespeare(packed, length=8)
    np.testing.assert_array_equal(one.x_train, other.x_train)
    assert len(shakespeare(folder / "nowhere", length=48).client_names or ()) == 20


@pytest.mark.parametrize(("roles", "names"), [(1, ("ANNA",)), (2, ("ANNA", "BEN")), (9, ("ANNA", "BEN"))])
def test_roles_are_those_that_speak_most(folder, roles, names):
    data = shakespeare(folder, length=8, roles=roles)
    assert data.client_names == names
    assert data.vocabulary == shakespeare(folder, length=8).vocabulary


def test_it_is_the_same_every_time():
    for one, other in zip(shakespeare()[1:7], shakespeare()[1:7]):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("set_to", [{"length": 1}, {"length": "48"}, {"roles": 0}, {"roles": 1.5}])
def test_settings_that_make_no_sense(set_to):
    with pytest.raises(BadExperiment, match=next(iter(set_to))):
        shakespeare(**set_to)


def test_files_that_make_no_sense(tmp_path, folder):
    with pytest.raises(BadData, match="set a smaller length"):
        shakespeare(folder, length=500)
    for content, words in ((b"no speech here", "expected blocks 'ROLE:'"), (b"\xff\xfe\xfa", "cannot be read")):
        (tmp_path / "tiny_shakespeare.txt").write_bytes(content)
        with pytest.raises(BadData, match=words):
            shakespeare(tmp_path)
    (tmp_path / "tiny_shakespeare.txt").unlink()
    (tmp_path / "tiny_shakespeare.txt.gz").write_bytes(b"not packed")
    with pytest.raises(BadData, match="cannot be read"):
        shakespeare(tmp_path)
