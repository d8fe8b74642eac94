"""Every partition deals each example at most once, repeats with its seed, and keeps its own promise."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from fedloom.data.partition import PARTITIONS, Partition, partition, settings_of
from fedloom.errors import BadData, BadExperiment

VARIANTS = [(name, {}) for name in PARTITIONS if name not in ("own", "rare-classes")] + [
    ("dirichlet", {"alpha": 10.0, "min_size": 2}),
    ("dirichlet", {"alpha": 1e-3, "min_size": 0}),
    ("classes", {"low": 1, "high": 3}),
    ("shards", {"per_client": 1}),
    ("groups", {"groups": 3}),
    ("lognormal", {"sigma": 2.0}),
    ("lognormal", {"alpha": 0.1}),
    ("lognormal", {"sigma": 0, "alpha": 5.0}),
    ("rare-classes", {"rare": [1, 2], "ratio": 0.5, "n": 2}),
    ("rare-classes", {}),
]


@st.composite
def labels_of(draw):
    """Shuffled labels of a few classes, not all of the same size and not all numbers used."""
    names = draw(st.lists(st.integers(3, 40), min_size=1, max_size=9, unique=True))
    sizes = [draw(st.integers(4, 40)) for _ in range(len(names) + 3)]
    labels = np.repeat([0, 1, 2, *names], sizes)
    return np.random.default_rng(draw(st.integers(0, 99))).permutation(labels)


def of_ten(size=1000):
    return np.random.default_rng(5).permutation(np.arange(size) % 10)


def held(part: Partition, labels: np.ndarray) -> list[set[int]]:
    return [set(labels[indices].tolist()) for indices in part.clients]


def same(a: Partition, b: Partition) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(a.clients, b.clients, strict=True))


def assert_sound(part: Partition, labels: np.ndarray, clients: int) -> None:
    assert len(part.clients) == clients
    dealt = np.concatenate(part.clients)
    assert len(np.unique(dealt)) == len(dealt) == len(labels) - part.left_out
    assert all(indices.dtype == np.int64 and (np.diff(indices) > 0).all() for indices in part.clients)
    assert not len(dealt) or (dealt.min() >= 0 and dealt.max() < len(labels))
    assert f"{part.left_out} of {len(labels)} examples left out" in part.note
    assert f"{sum(not len(indices) for indices in part.clients)} of {clients} clients empty." in part.note


@pytest.mark.parametrize(("name", "values"), VARIANTS)
@given(labels=labels_of(), clients=st.integers(3, 8), seed=st.integers(0, 2**40))
@settings(max_examples=25, deadline=None)
def test_disjoint_covering_and_repeatable(name, values, labels, clients, seed):
    part = partition(name, labels, clients, seed, **values)
    assert_sound(part, labels, clients)
    assert same(part, partition(name, labels, clients, seed, **values))


@pytest.mark.parametrize(("name", "values"), VARIANTS)
def test_another_seed_is_another_partition(name, values):
    assert not same(partition(name, of_ten(), 8, 1, **values), partition(name, of_ten(), 8, 2, **values))


@pytest.mark.parametrize("name", PARTITIONS)
def test_ten_thousand_clients(name):
    labels, ids = of_ten(200_000), np.arange(200_000) % 10_000
    assert_sound(partition(name, labels, 10_000, 0, client_ids=ids), labels, 10_000)


@pytest.mark.parametrize("name", ["iid", "dirichlet", "shards", "groups", "lognormal"])
@given(labels=labels_of(), clients=st.integers(3, 8))
@settings(max_examples=20, deadline=None)
def test_nothing_is_left_out_where_it_need_not_be(name, labels, clients):
    enough = clients * 2 >= len(np.unique(labels))
    assert partition(name, labels, clients, 0).left_out == 0 or (name == "shards" and not enough)


@given(size=st.integers(1, 300), clients=st.integers(1, 300))
def test_iid_sizes_differ_by_one_at_most(size, clients):
    clients = min(size, clients)
    sizes = [len(c) for c in partition("iid", np.zeros(size, int), clients, 0).clients]
    assert max(sizes) - min(sizes) <= 1


@given(labels=labels_of(), clients=st.integers(1, 8), least=st.integers(0, 2), alpha=st.floats(1e-6, 1e6))
@settings(deadline=None)
def test_dirichlet_gives_every_client_its_least(labels, clients, least, alpha):
    part = partition("dirichlet", labels, clients, 0, alpha=alpha, min_size=least)
    assert min(len(indices) for indices in part.clients) >= least


def test_dirichlet_can_have_to_make_all_equal():
    part = partition("dirichlet", of_ten(100), 10, 0, alpha=0.01, min_size=10)
    assert {len(indices) for indices in part.clients} == {10}


def test_dirichlet_extremes():
    labels = of_ten(10_000)
    even = partition("dirichlet", labels, 10, 0, alpha=1e6)
    for indices in even.clients:
        assert np.abs(np.bincount(labels[indices], minlength=10) - 100).max() <= 2
    skewed = partition("dirichlet", labels, 10, 0, alpha=1e-3, min_size=0)
    # nearly every class goes to one client whole
    assert sum(len(kinds) for kinds in held(skewed, labels)) <= 13


def test_dirichlet_keeps_the_skew_where_it_tops_up():
    labels = of_ten(1000)
    part = partition("dirichlet", labels, 50, 0, alpha=1e-4, min_size=10)
    topped_up = [kinds for kinds, c in zip(held(part, labels), part.clients) if len(c) == 10]
    assert len(topped_up) >= 35
    assert np.mean([len(kinds) for kinds in topped_up]) <= 2


@given(n=st.integers(1, 10), clients=st.integers(1, 30), seed=st.integers(0, 99))
@settings(deadline=None)
def test_n_classes_exactly_and_evenly(n, clients, seed):
    labels = of_ten()
    part = partition("n-classes", labels, clients, seed, n=n)
    assert {len(kinds) for kinds in held(part, labels)} == {n}
    for kind in range(10):
        sizes = [size for indices in part.clients if (size := int((labels[indices] == kind).sum()))]
        assert not sizes or max(sizes) - min(sizes) <= 1
    unowned = max(10 - n * clients, 0)
    assert part.left_out == 100 * unowned


@given(low=st.integers(1, 10), more=st.integers(0, 9), clients=st.integers(1, 30))
@settings(deadline=None)
def test_classes_lie_between_low_and_high(low, more, clients):
    labels, high = of_ten(), min(low + more, 10)
    counts = [len(kinds) for kinds in held(partition("classes", labels, clients, 3, low=low, high=high), labels)]
    assert low <= min(counts) <= max(counts) <= high


def test_classes_default_is_two_to_all():
    counts = {len(kinds) for kinds in held(partition("classes", of_ten(10_000), 100, 0), of_ten(10_000))}
    assert counts == set(range(2, 11))


def test_a_class_smaller_than_its_owners_is_said():
    labels = np.array([0] * 50 + [1])
    assert "3 clients miss a class" in partition("n-classes", labels, 4, 0, n=2).note


@given(labels=labels_of(), clients=st.integers(1, 8), each=st.integers(1, 2))
@settings(deadline=None)
def test_shards_hold_at_most_so_many_classes(labels, clients, each):
    part = partition("shards", labels, clients, 0, per_client=each)
    assert max(len(kinds) for kinds in held(part, labels)) <= each
    assert min(len(indices) for indices in part.clients) >= 1
    left = set(labels.tolist()) - set().union(*held(part, labels))
    assert len(left) == max(len(np.unique(labels)) - clients * each, 0)


@given(labels=labels_of())
@settings(max_examples=30, deadline=None)
def test_as_many_shards_as_examples(labels):
    assert {len(c) for c in partition("shards", labels, len(labels), 0, per_client=1).clients} == {1}


def test_shards_of_equal_classes_are_equal():
    assert {len(c) for c in partition("shards", of_ten(), 50, 0).clients} == {20}


@given(groups=st.integers(1, 10), per_group=st.integers(1, 4))
@settings(deadline=None)
def test_groups_share_out_the_labels(groups, per_group):
    labels, clients = of_ten(), groups * per_group
    part = partition("groups", labels, clients, 0, groups=groups)
    kinds = held(part, labels)
    teams = [kinds[start : start + per_group] for start in range(0, clients, per_group)]
    assert all(team == [team[0]] * per_group for team in teams)
    assert sorted(kind for team in teams for kind in team[0]) == list(range(10))


def test_groups_as_in_safari():
    labels = of_ten(50_000)
    part = partition("groups", labels, 10, 0)
    assert held(part, labels) == [{0, 1, 2, 3, 4}] * 5 + [{5, 6, 7, 8, 9}] * 5
    assert all(np.bincount(labels[c])[-5:].tolist() == [1000] * 5 for c in part.clients)


def test_lognormal_spread_is_sigma():
    sizes = np.array([len(c) for c in partition("lognormal", of_ten(500_000), 1000, 0, sigma=0.3).clients])
    assert abs(np.log(sizes).std() - 0.3) < 0.03
    equal = partition("lognormal", of_ten(), 10, 0, sigma=0).clients
    assert {len(c) for c in equal} == {100}


def test_lognormal_with_alpha_keeps_the_sizes_and_skews_the_labels():
    labels = of_ten(20_000)
    sizes = [len(c) for c in partition("lognormal", labels, 50, 7).clients]
    skewed = partition("lognormal", labels, 50, 7, alpha=0.05)
    assert [len(c) for c in skewed.clients] == sizes
    largest = [np.bincount(labels[c]).max() / len(c) for c in skewed.clients]
    assert np.mean(largest) > 0.6
    even = partition("lognormal", labels, 50, 7, alpha=1e6)
    assert max(np.bincount(labels[c]).max() / len(c) for c in even.clients) < 0.2


@given(
    ratio=st.floats(0.05, 1), clients=st.integers(4, 20), sizes=st.lists(st.integers(40, 90), min_size=7, max_size=7)
)
@settings(deadline=None)
def test_rare_classes_have_their_ratio(ratio, clients, sizes):
    labels = np.repeat(np.arange(7), sizes)
    part = partition("rare-classes", labels, clients, 0, ratio=ratio)
    counts = np.bincount(labels[np.concatenate(part.clients)], minlength=7)
    assert len(set(counts[3:])) == 1
    assert len(set(counts[:3])) == 1
    assert counts[0] == max(1, round(ratio * counts[3]))
    assert max(len(kinds) for kinds in held(part, labels)) <= 3


def test_own_follows_the_ids():
    ids = np.array([7, 3, 7, 20, 3, 7])
    part = partition("own", np.arange(6), None, 0, client_ids=ids)
    assert [c.tolist() for c in part.clients] == [[1, 4], [0, 2, 5], [3]]
    fewer = partition("own", np.arange(6), 2, 0, client_ids=ids)
    assert len(fewer.clients) == 2
    assert all(len(set(ids[c])) == 1 for c in fewer.clients)
    assert fewer.left_out == 6 - sum(len(c) for c in fewer.clients) > 0


def test_settings_of_shows_the_defaults():
    assert settings_of("dirichlet") == {"alpha": 0.1, "min_size": 1}
    assert settings_of("own") == {}


@pytest.mark.parametrize(
    ("name", "clients", "values", "says"),
    [
        ("dirichlett", 5, {}, "did you mean 'dirichlet'"),
        ("dirichlet", 5, {"alhpa": 1}, "did you mean 'alpha'"),
        ("own", 5, {"alpha": 1}, "setting of partition 'own'"),
        ("iid", 0, {}, "clients is 0; expected a whole number from 1 to 1000"),
        ("iid", 1001, {}, "clients is 1001"),
        ("iid", None, {}, "clients is None"),
        ("iid", 2.0, {}, "clients is 2.0"),
        ("iid", True, {}, "clients is True"),
        ("dirichlet", 5, {"alpha": 0}, "alpha is 0; expected a number above 0"),
        ("dirichlet", 5, {"alpha": -1.0}, "alpha is -1.0"),
        ("dirichlet", 5, {"alpha": float("nan")}, "alpha is nan"),
        ("dirichlet", 5, {"alpha": "big"}, "alpha is 'big'"),
        ("dirichlet", 5, {"min_size": 201}, "min_size is 201; expected a whole number from 0 to 200"),
        ("n-classes", 5, {"n": 11}, "n is 11; expected a whole number from 1 to 10"),
        ("n-classes", 5, {"n": 0}, "n is 0"),
        ("classes", 5, {"low": 4, "high": 3}, "low is 4; expected a whole number from 1 to 3"),
        ("classes", 5, {"high": 11}, "high is 11"),
        ("shards", 5, {"per_client": 201}, "per_client is 201"),
        ("groups", 5, {"groups": 6}, "groups is 6; expected a whole number from 1 to 5"),
        ("lognormal", 5, {"sigma": -0.1}, "sigma is -0.1"),
        ("lognormal", 5, {"alpha": 0}, "alpha is 0"),
        ("rare-classes", 5, {"rare": [10]}, r"rare is \[10\]"),
        ("rare-classes", 5, {"rare": list(range(10))}, "but not all"),
        ("rare-classes", 5, {"rare": 1}, "rare is 1; expected a list"),
        ("rare-classes", 5, {"ratio": 1.1}, "ratio is 1.1"),
        ("own", None, {}, "needs data with client ids"),
    ],
)
def test_impossible_wishes_are_refused(name, clients, values, says):
    with pytest.raises(BadExperiment, match=says):
        partition(name, of_ten(), clients, 0, **values)


def test_a_negative_seed_is_refused():
    with pytest.raises(BadExperiment, match="seed is -1"):
        partition("iid", of_ten(), 5, -1)


def test_more_own_clients_than_there_are_is_refused():
    with pytest.raises(BadExperiment, match="clients is 3; expected a whole number from 1 to 2"):
        partition("own", [0, 1], 3, 0, client_ids=np.array([1, 2]))


@pytest.mark.parametrize("labels", [[], [[1, 2]], [0.5, 1.0], ["a"]])
def test_labels_that_are_not_labels_are_refused(labels):
    with pytest.raises(BadData, match="labels have shape"):
        partition("iid", labels, 1, 0)


def test_client_ids_of_another_length_are_refused():
    with pytest.raises(BadData, match="client_train has 1 rows, the labels have 2"):
        partition("own", [0, 1], None, 0, client_ids=np.array([1]))
