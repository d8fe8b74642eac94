"""Transforms of batches: the same in any company where they say so, right in law, and checked before a run."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, strategies as st

from fedloom.chance import absorb
from fedloom.data.augment import (
    FACTS,
    TRANSFORMS,
    Crop,
    Cutout,
    DropTokens,
    Flip,
    Mixup,
    Noise,
    Own,
    Seeded,
    Several,
    build_transform,
    check_transform,
    facts_of,
    mixes,
    shares,
    transform_of,
)
from fedloom.data.augment.draws import beta_table, normal_table, words
from fedloom.data.augment.mixing import name_of
from fedloom.errors import BadExperiment
from fedloom.goals import classes, next_token, numbers, pixels
from fedloom.runs.settings import fit

CPU = torch.device("cpu")
ONE_BY_ONE = [
    Flip(),
    Crop(3),
    Noise(),
    Cutout(4),
    Several((Crop(1), Flip(), Cutout(3), Noise(0.5))),
    Several((Noise(), Noise())),
]


def keys_of(n: int, seed: int = 0) -> torch.Tensor:
    """One key for each of n examples."""
    return absorb(torch.arange(n), seed)


def images(n: int, *shape: int) -> torch.Tensor:
    """Images whose every number is another one, none of them 0."""
    size = torch.Size(shape).numel()
    return torch.arange(1, n * size + 1, dtype=torch.float32).view(n, *shape)


def jitter(x: torch.Tensor) -> torch.Tensor:
    """Brighten every image by torch's global generator."""
    return x * (0.5 + torch.rand(len(x), *[1] * (x.dim() - 1)))


def shift(x, y, keys, by=1.0):
    """Add a constant."""
    return x + by, y


def centred(x, y, keys):
    """Subtract the batch's mean."""
    return x - x.mean(0), y


# ---- one by one


@pytest.mark.parametrize("transform", ONE_BY_ONE, ids=repr)
@given(
    n=st.integers(1, 9),
    shape=st.lists(st.integers(1, 9), min_size=2, max_size=3),
    seed=st.integers(0, 1000),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.float16, torch.bfloat16]),
    data=st.data(),
)
def test_rows_do_not_depend_on_company_and_order(transform, n, shape, seed, dtype, data):
    x, y, keys = (
        torch.randn(n, *shape, generator=torch.Generator().manual_seed(seed)),
        torch.arange(n),
        keys_of(n, seed),
    )
    x = x.to(dtype)
    before = x.clone()
    new_x, new_y = transform(x, y, keys)
    assert torch.equal(x, before)  # inputs stay as they are
    assert (new_x.shape, new_x.dtype) == (x.shape, x.dtype)
    some = torch.tensor(data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=n)))
    part_x, part_y = transform(x[some], y[some], keys[some])
    assert torch.equal(part_x, new_x[some])
    assert torch.equal(part_y, new_y[some])


@given(st.integers(1, 9), st.integers(0, 9), st.integers(1, 40))
def test_words_are_those_of_other_devices(n, purpose, count):
    keys = keys_of(n)
    assert torch.equal(words(keys, purpose, count), absorb(absorb(keys, purpose)[:, None], torch.arange(count)))


@given(n=st.integers(1, 9), places=st.integers(1, 12), p=st.sampled_from([0.0, 0.1, 0.7, 1.0]), data=st.data())
def test_tokens_do_not_depend_on_company_and_never_all_go(n, places, p, data):
    x = torch.tensor(
        data.draw(st.lists(st.lists(st.integers(0, 3), min_size=places, max_size=places), min_size=n, max_size=n))
    )
    keys = keys_of(n)
    new, _ = DropTokens(p)(x, x, keys)
    some = torch.tensor(data.draw(st.permutations(range(n))))[: max(1, n // 2)]
    assert torch.equal(DropTokens(p)(x[some], x[some], keys[some])[0], new[some])
    assert ((new == x) | (new == 0)).all()
    assert torch.equal((new != 0).any(1), (x != 0).any(1))
    if p == 0:
        assert torch.equal(new, x)
    if p == 1:
        assert torch.equal((new != 0).sum(1), (x != 0).any(1).long())


@pytest.mark.parametrize("transform", [*ONE_BY_ONE, Mixup(3)], ids=repr)
def test_an_empty_batch_stays_empty(transform):
    y = torch.zeros(0, dtype=torch.int64)
    assert transform(torch.zeros(0, 3, 8, 8), y, y)[0].shape == (0, 3, 8, 8)
    assert DropTokens()(torch.zeros(0, 4, dtype=torch.int64), y, y)[0].shape == (0, 4)


# ---- what they do


@given(st.integers(1, 12), st.integers(0, 6), st.integers(1, 3), st.integers(1, 7), st.integers(1, 7))
def test_a_crop_is_one_of_the_windows_of_the_padded_image(n, pad, channels, height, width):
    x, y = images(n, channels, height, width), torch.arange(n)
    new, same = Crop(pad)(x, y, keys_of(n))
    assert same is y
    for one, padded in zip(new, F.pad(x, (pad,) * 4)):
        windows = padded.unfold(1, height, 1).unfold(2, width, 1).flatten(1, 2)  # [channels, windows, height, width]
        assert (windows == one[:, None]).all(0).flatten(1).all(1).any()


@given(st.integers(1, 12), st.integers(0, 6), st.integers(1, 3), st.integers(1, 9))
def test_a_crop_of_a_signal_is_one_of_its_windows(n, pad, channels, length):
    x = images(n, channels, length)
    new, _ = Crop(pad)(x, x, keys_of(n))
    for one, padded in zip(new, F.pad(x, (pad,) * 2)):
        assert (padded.unfold(1, length, 1) == one[:, None]).all(0).all(1).any()


def test_offsets_of_crops_are_uniform():
    n, pad = 40_500, 4
    x = torch.zeros(n, 1, 9, 9)
    x[:, :, 4, 4] = 1  # stays in sight in every window
    new, _ = Crop(pad)(x, torch.zeros(n), keys_of(n))
    count = new.sum((0, 1)).view(-1)  # one image for each place
    assert count.sum() == n
    assert ((count - n / 81).square() / (n / 81)).sum() < 130  # chi-square with 80 degrees of freedom: 99.96 %


def test_half_of_all_images_are_mirrored():
    x = images(20_000, 1, 1, 2)
    new, _ = Flip()(x, x, keys_of(len(x)))
    mirrored = (new == x.flip(3)).all(3)[:, 0, 0]
    assert torch.equal(new[~mirrored], x[~mirrored])
    assert mirrored.float().mean().item() == pytest.approx(0.5, abs=0.015)  # four standard errors


def test_no_chance_and_no_padding_are_the_identity_and_certainty_mirrors_all():
    x, y = images(20, 3, 5, 4), torch.randint(0, 9, (20, 5, 4))
    for transform in (Flip(0), Crop(0), Flip(0, targets=True), Crop(0, targets=True), Noise(0)):
        assert all(map(torch.equal, transform(x, y, keys_of(20)), (x, y)))
    assert torch.equal(Flip(1)(x, y, keys_of(20))[0], x.flip(3))


def test_noise_has_its_deviation():
    x = torch.zeros(200, 3, 33, 7)
    noise = Noise(0.25)(x, x, keys_of(200))[0]
    n = noise.numel()
    assert noise.mean().item() == pytest.approx(0, abs=4 * 0.25 / n**0.5)
    assert noise.var().item() == pytest.approx(0.0625, rel=4 * (2 / n) ** 0.5)
    assert (noise / 0.25).pow(4).mean().item() == pytest.approx(3, abs=4 * (96 / n) ** 0.5)
    flat = noise.flatten(1)
    for by in range(1, 9):  # neighbours come from the same words
        assert (flat[:, by:] * flat[:, :-by]).mean().item() == pytest.approx(0, abs=4 * 0.0625 / n**0.5)
    assert (flat[1:] * flat[:-1]).mean().item() == pytest.approx(0, abs=4 * 0.0625 / n**0.5)


def test_tables_have_the_moments_of_their_distributions():
    table = normal_table(2.0, torch.float64, CPU)
    assert table.std(correction=0).item() == pytest.approx(2)
    assert table.flip(0).numpy() == pytest.approx(-table.numpy())
    for alpha in (0.2, 1.0, 4.0):
        shares_of = beta_table(alpha, CPU).double()
        assert shares_of.mean().item() == pytest.approx(0.5)
        assert shares_of.var().item() == pytest.approx(1 / (4 * (2 * alpha + 1)), rel=1e-4)
    assert beta_table(1.0, CPU).numpy() == pytest.approx((torch.arange(65536).numpy() + 0.5) / 65536, abs=1e-7)


def test_cutout_zeroes_a_square_around_any_place():
    n, size = 3_000, 3
    x = torch.ones(n, 2, 5, 6)
    new, _ = Cutout(size)(x, x, keys_of(n))
    gone = new == 0
    assert torch.equal(gone[:, 0], gone[:, 1])
    rows, columns = gone[:, 0].any(2), gone[:, 0].any(1)
    assert torch.equal(gone[:, 0], rows[:, :, None] & columns[:, None, :])  # a rectangle
    inside = gone[:, 0, 1:-1, 1:-1].sum((1, 2))
    assert set(rows.sum(1).tolist()) == set(columns.sum(1).tolist()) == {2, 3}  # cut at the edges only
    assert inside.min() >= 1
    centres = torch.zeros(5, 6)
    for row in range(5):
        for column in range(6):
            where = torch.zeros(5, 6, dtype=torch.bool)
            where[max(0, row - 1) : row + 2, max(0, column - 1) : column + 2] = True
            centres[row, column] = (gone[:, 0] == where).flatten(1).all(1).sum()
    assert centres.sum() == n
    assert ((centres - n / 30).square() / (n / 30)).sum() < 64  # chi-square with 29 degrees of freedom: 99.98 %
    assert torch.equal(Cutout(99)(x, x, keys_of(n))[0], torch.zeros_like(x))


@given(st.integers(1, 30), st.integers(1, 6))
def test_cutout_of_a_signal(length, size):
    x = torch.full((4, 2, length), torch.nan)  # zeros even where numbers are not finite
    gone = Cutout(size)(x, x, keys_of(4))[0] == 0
    assert torch.equal(gone[:, 0], gone[:, 1])
    assert (gone[:, 0].sum(1) <= size).all()
    assert (gone[:, 0].sum(1) >= min(length, (size + 1) // 2)).all()


def test_tokens_are_dropped_with_their_chance():
    x = torch.randint(1, 9, (500, 100))
    x[:, 60:] = 0
    new, _ = DropTokens(0.3)(x, x, keys_of(500))
    assert (new[:, :60] == 0).float().mean().item() == pytest.approx(0.3, abs=4 * (0.21 / 30_000) ** 0.5)


# ---- targets that are images


@given(st.integers(1, 9), st.integers(0, 5), st.integers(1, 7), st.integers(1, 7), st.integers(0, 99))
def test_targets_of_pixels_move_with_their_pixels(n, pad, height, width, seed):
    y = 1 + torch.arange(n * height * width).view(n, height, width)
    x = torch.stack((y, -y), 1).float()
    transform = Several((Flip(targets=True), Crop(pad, targets=True, fill=255_000), Flip(0.3, targets=True)))
    new_x, new_y = transform(x, y, keys_of(n, seed))
    assert new_y.dtype == torch.int64
    assert torch.equal(new_x[:, 0].long(), torch.where(new_y == 255_000, 0, new_y))
    assert torch.equal(new_x[:, 0], -new_x[:, 1])


def test_images_and_classes_are_cut_alike():
    x, y = images(50, 1, 6, 6), torch.arange(50)
    for one in (Flip(), Crop(2)):
        moved = replace(one, targets=True)(x, x[:, 0].long(), keys_of(50))
        assert torch.equal(moved[0], one(x, y, keys_of(50))[0])


def test_facts_come_from_the_goal():
    assert facts_of(pixels(), 5) == {"classes": 5, "targets": True, "fill": 255}
    assert facts_of(classes(), 5)["targets"] is False
    assert facts_of(numbers(), 1)["targets"] is False
    facts = facts_of(pixels(), 5)
    assert build_transform("crop", {"pad": 2}, facts) == Crop(2, targets=True, fill=255)
    assert build_transform("noise", {}, facts) == Noise()
    assert build_transform("mixup", {"alpha": 1.0}, facts_of(classes(), 7)) == Mixup(7, 1.0)


@pytest.mark.parametrize("name", TRANSFORMS)
def test_settings_of_names_can_be_checked(name):
    assert fit(name, TRANSFORMS[name], {}, FACTS) == {}
    assert build_transform(name, {}, facts_of(classes(), 3)) == build_transform(name, {}, facts_of(classes(), 3))
    with pytest.raises(BadExperiment, match="unknown setting"):
        fit(name, TRANSFORMS[name], {"targets": True}, FACTS)


# ---- mixup


@given(n=st.integers(1, 20), seed=st.integers(0, 99), data=st.data())
def test_mixup_mixes_pairs_in_any_order(n, seed, data):
    x, y, keys = torch.eye(n), torch.arange(n) % 4, keys_of(n, seed)
    new, targets = Mixup(4)(x, y, keys)
    assert torch.equal(new.sum(1), torch.ones(n))  # exactly: a share and the rest
    assert torch.equal(targets.sum(1), torch.ones(n))
    assert torch.allclose(targets, new @ F.one_hot(y, 4).float(), atol=1e-7)
    others = new.clone().fill_diagonal_(0)
    assert ((others > 0).sum(1) <= 1).all()
    if n == 1:
        assert torch.equal(new, x)
    order = torch.tensor(data.draw(st.permutations(range(n))))
    again, targets_again = Mixup(4)(x[order], y[order], keys[order])
    assert torch.equal(again, new[order])
    assert torch.equal(targets_again, targets[order])


def test_partners_of_mixup_are_uniform():
    count, n = torch.zeros(6, 6), 6
    for seed in range(2_000):
        count += (Mixup(2, 4.0)(torch.eye(n), torch.zeros(n, dtype=torch.int64), keys_of(n, seed))[0] > 0).float()
    assert torch.equal(count.diagonal(), torch.full((n,), 2_000.0))
    others = count[~torch.eye(n, dtype=torch.bool)]
    assert others.sum() == 2_000 * n
    assert ((others - 400).square() / 400).sum() < 65  # 30 cells


def test_shares_of_mixup_are_of_the_beta_distribution():
    x, y = torch.eye(2), torch.arange(2)
    for alpha in (0.2, 1.0):
        drawn = torch.tensor([Mixup(2, alpha)(x, y, keys_of(2, seed))[1][0, 0].item() for seed in range(1_500)])
        assert drawn.mean().item() == pytest.approx(0.5, abs=4 * drawn.std().item() / 1_500**0.5)
        assert drawn.var().item() == pytest.approx(1 / (4 * (2 * alpha + 1)), rel=0.08)


def test_mixup_takes_shares_too():
    x, y, keys = torch.randn(6, 3), torch.arange(6) % 3, keys_of(6)
    twice = Several((Mixup(3), Mixup(3)))
    assert torch.allclose(twice(x, y, keys)[1].sum(1), torch.ones(6))
    assert torch.equal(Mixup(3)(x, F.one_hot(y, 3).float(), keys)[1], Mixup(3)(x, y, keys)[1])


def test_losses_of_mixed_targets_are_mixed_losses():
    x, y, keys = torch.randn(8, 3), torch.arange(8) % 3, keys_of(8)
    _, mixed = Mixup(3)(x, y, keys)
    output = torch.randn(8, 3, dtype=torch.float64)
    each = torch.stack([classes().loss(output, torch.full((8,), k)) for k in range(3)], 1)
    assert torch.allclose(classes().loss(output, mixed.double()), (each * mixed).sum(1))


# ---- functions of others


def test_seeded_repeats_and_leaves_the_generator_alone():
    x, y = torch.rand(7, 3, 4, 4), torch.arange(7)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = Seeded(jitter)(x, y, keys_of(7))
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(3)
    again = Seeded(jitter)(x, y, keys_of(7))
    assert torch.equal(first[0], again[0])
    assert first[1] is y
    assert not torch.equal(first[0], Seeded(jitter)(x, y, keys_of(7, 1))[0])
    assert len(Seeded(jitter)(x[:0], y[:0], keys_of(0))[0]) == 0


def test_seeded_with_targets():
    def shuffled(x, y):
        order = torch.randperm(len(x))
        return x[order], y[order]

    x = torch.arange(9.0)
    new_x, new_y = Seeded(shuffled, both=True)(x, x.long(), keys_of(9))
    assert torch.equal(new_x.long(), new_y)
    assert sorted(new_y.tolist()) == list(range(9))
    assert new_y.tolist() != list(range(9))


def test_own_functions_have_settings_and_attributes():
    own = Own(shift, {"by": 2.0})
    x = torch.zeros(3, 2)
    assert torch.equal(own(x, x, keys_of(3))[0], x + 2)
    assert own == Own(shift, {"by": 2.0})
    assert own != Own(shift, {"by": 3.0})
    assert hash(own) == hash(Own(shift, {"by": 3.0}))
    assert repr(own).endswith("test_augment.shift, by=2.0)")
    assert not own.mixes
    assert not own.shares
    assert Own(Mixup(3)).mixes
    assert Own(Mixup(3)).shares


def test_transforms_are_values():
    for first, second in zip((Flip(), Crop(2), Seeded(jitter), Several((Flip(), Crop()))), ONE_BY_ONE):
        assert first != second or first == Flip()
    assert (Flip(), Crop(2), Seeded(jitter)) == (Flip(), Crop(2), Seeded(jitter))
    assert Several((Flip(), Crop())) == Several((Flip(), Crop()))
    assert repr(Several((Flip(0.25), Noise()))) == (
        "Several(transforms=(Flip(chance=0.25, targets=False), Noise(std=0.1)))"
    )
    assert "0x" not in repr(Seeded(jitter))


def test_several_draw_apart_and_join_what_they_say():
    x = torch.zeros(10, 1, 4, 4)
    first, second = Noise()(x, x, keys_of(10))[0], Several((Noise(), Noise()))(x, x, keys_of(10))[0]
    apart = second - Several((Noise(), Noise(0)))(x, x, keys_of(10))[0]
    assert not torch.allclose(apart, second - apart)
    assert not torch.equal(second, 2 * first)
    assert not mixes(Several((Flip(), Crop())))
    assert mixes(Several((Flip(), Seeded(jitter))))
    assert not shares(Several((Flip(), Seeded(jitter))))
    assert shares(Several((Flip(), Mixup(3))))
    assert transform_of([]) is None
    assert transform_of([Flip()]) == Flip()
    assert transform_of([Flip(), Crop()]) == Several((Flip(), Crop()))
    assert not mixes(None)


# ---- before a run


def tried(transform, x=None, y=None, goal=None):
    """The transform tried on images, or on what is given."""
    x = images(40, 3, 8, 8) if x is None else x
    check_transform(transform, x, torch.arange(len(x)) % 5 if y is None else y, goal or classes())


@pytest.mark.parametrize("transform", [*ONE_BY_ONE, Mixup(5), Seeded(jitter), Own(shift), shift], ids=name_of)
def test_good_transforms_pass(transform):
    before = torch.get_rng_state()
    tried(transform)
    assert torch.equal(torch.get_rng_state(), before)


def test_tokens_and_pixels_pass():
    tokens = torch.randint(0, 9, (40, 12))
    tried(DropTokens(), tokens, tokens, next_token())
    facts = facts_of(pixels(), 5)
    for name in ("flip", "crop"):
        tried(build_transform(name, {}, facts), y=torch.randint(0, 5, (40, 8, 8)), goal=pixels())


def refused(words, transform, **how):
    with pytest.raises(BadExperiment, match=words):
        tried(transform, **how)


def marked(function, **attributes):
    """The function with attributes."""
    for name, value in attributes.items():
        setattr(function, name, value)
    return function


FLAT = torch.rand(40, 784)


@pytest.mark.parametrize("name", ["flip", "crop", "cutout"])
def test_images_are_needed(name):
    words = rf"{name} needs images \[channels, height, width\] or signals \[channels, length\]; .* shape \(784,\)"
    refused(words, TRANSFORMS[name](), x=FLAT)


def test_transforms_that_change_shapes_are_refused():
    refused(r"changes examples from \(32, 3, 8, 8\) float32 to \(32, 192\)", lambda x, y, keys: (x.flatten(1), y))
    refused(r"changes examples from .* to \(31,", lambda x, y, keys: (x[1:], y))
    refused(r"changes examples .* float64", lambda x, y, keys: (x.double(), y))
    refused(r"changes targets from \(32,\) int64 to \(32,\) float32", lambda x, y, keys: (x, y.float()))
    refused(r"changes targets .*, expected shares", marked(lambda x, y, keys: (x, y), mixes=True, shares=True))
    refused(r"failed on .*KeyError: 'a'", lambda x, y, keys: {}["a"])
    refused(r"failed on .*returned Tensor and int", lambda x, y, keys: (x, 3))
    refused(r"failed on .*\(16, 3, 8, 8\)", lambda x, y, keys: (x.view(32, 3, 8, 8), y))


def test_random_numbers_of_its_own_are_refused():
    refused("draws random numbers of its own: wrap it in fedloom.Seeded", lambda x, y, keys: (jitter(x), y))
    rare = lambda x, y, keys: (x if torch.rand(()) < 2 else x.flip(3), y)  # noqa: E731  draws, and shows nothing
    refused("draws random numbers of its own", rare)
    calls = iter(range(9))
    refused("draws random numbers of its own", lambda x, y, keys: (x + next(calls), y))


def test_looking_at_others_is_refused_unless_said():
    refused("looks at other examples of the batch: set its attribute mixes = True", centred)
    tried(marked(lambda x, y, keys: centred(x, y, keys), mixes=True))
    refused("looks at other examples", lambda x, y, keys: (x.flip(0), y.flip(0)))


def test_goals_that_take_no_shares_are_refused():
    values = torch.rand(40)
    refused("mixes targets; expected goal 'classes', got 'numbers'", Mixup(5), y=values, goal=numbers())
    refused("class weights", Mixup(5), goal=classes(weights=(1.0, 2.0, 1.0, 1.0, 1.0)))
    refused("focal loss takes classes", Mixup(5), goal=classes(focal=2))
    refused("mixup needs examples of floating-point", Mixup(5), x=torch.ones(40, 3, dtype=torch.int64))


def test_other_kinds_of_numbers_are_refused():
    refused("drop-tokens needs tokens", DropTokens(), x=FLAT)
    refused("noise needs examples of floating-point numbers", Noise(), x=torch.ones(40, 3, dtype=torch.int64))
    refused("crop moves targets with their images", Crop(targets=True))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Flip(1.5), "chance of flip is 1.5"),
        (lambda: Crop(-1), "pad of crop is -1"),
        (lambda: Noise(-0.1), "std of noise"),
        (lambda: Noise(float("inf")), "std of noise"),
        (lambda: Cutout(0), "size of cutout"),
        (lambda: Mixup(3, 0), "alpha of mixup"),
        (lambda: Mixup(0), "classes of mixup"),
        (lambda: DropTokens(2), "p of drop-tokens"),
    ],
)
def test_impossible_settings_are_refused(make, words):
    with pytest.raises(BadExperiment, match=words):
        make()
