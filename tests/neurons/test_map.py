"""Masks, scores, cuts and costs of neurons, against counts by hand."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import nn

from fedloom.errors import BadExperiment, BadModel
from fedloom.layout import flatten, layout_of
from fedloom.neurons.axes import FIXED_GROUP, Segment
from fedloom.neurons.map import NeuronMap
from fedloom.neurons.trace import neuron_map
from neurons.nets import block, cnn, mlp, random_keep, resnet


@pytest.fixture(scope="module")
def net() -> nn.Module:
    torch.manual_seed(0)
    return cnn()


@pytest.fixture(scope="module")
def net_map(net: nn.Module) -> NeuronMap:
    return neuron_map(net, torch.randn(2, 1, 8, 8))


def test_groups_and_axes_of_a_cnn(net_map: NeuronMap) -> None:
    assert net_map.groups == ("0", "4", "9")
    assert net_map.outputs == ("11",)
    assert net_map.widths == {"0": 4, "4": 6, "9": 8, "11": 3}
    assert net_map.fixed == {FIXED_GROUP, "11"}
    assert (net_map.size, net_map.full_size) == (18, 21)
    first, second, dense, last = (Segment(g, 1, 0, w) for g, w in net_map.widths.items())
    assert net_map.axes["0.weight"] == ((first,), (Segment(FIXED_GROUP, 1, 0, 1),), None, None)
    assert net_map.axes["4.weight"] == ((second,), (first,), None, None)
    assert net_map.axes["5.running_var"] == net_map.axes["5.bias"] == net_map.axes["4.bias"] == ((second,),)
    assert net_map.axes["9.weight"] == ((dense,), (Segment("4", 4, 0, 6),))  # 2 x 2 columns of every channel
    assert net_map.axes["11.weight"] == ((last,), (dense,))
    assert "5.num_batches_tracked" not in net_map.axes


def test_expand_keeps_what_both_ends_keep_or_what_the_row_keeps(net: nn.Module, net_map: NeuronMap) -> None:
    keep = random_keep(net_map, 1)
    classes = torch.tensor([True, False, True])
    channels, dense = keep[4:10], keep[10:18]
    both = layout_of(net).split(net_map.expand(keep))
    assert torch.equal(both["9.weight"], dense[:, None] & channels.repeat_interleave(4)[None])
    assert torch.equal(both["11.weight"], dense.expand(3, 8))
    assert both["11.bias"].all()
    rows = layout_of(net).split(net_map.expand(torch.cat([keep, classes]), rows=True))
    assert torch.equal(rows["9.weight"], dense[:, None].expand(8, 24))
    assert torch.equal(rows["11.weight"], classes[:, None].expand(3, 8))
    assert torch.equal(rows["5.running_mean"], channels)
    assert torch.equal(rows["4.weight"], channels.view(6, 1, 1, 1).expand(6, 4, 3, 3))


def test_a_keep_without_the_outputs_keeps_them(net_map: NeuronMap) -> None:
    keep = random_keep(net_map, 2)
    whole = torch.cat([keep, torch.ones(3, dtype=torch.bool)])
    for rows in (False, True):
        assert torch.equal(net_map.expand(keep, rows=rows), net_map.expand(whole, rows=rows))


@pytest.mark.parametrize(("how", "order"), [("l2", 2), ("l1", 1)])
def test_score_is_the_norm_of_incoming_weights_and_bias(
    net: nn.Module, net_map: NeuronMap, how: str, order: int
) -> None:
    flat = flatten(net, layout_of(net))
    score = net_map.score(torch.stack([flat, 2 * flat]), how, output=True)
    rows = [torch.cat([net[i].weight.flatten(1), net[i].bias[:, None]], 1) for i in (0, 4, 9, 11)]
    expected = torch.cat([torch.linalg.vector_norm(row.detach(), order, 1) for row in rows])
    torch.testing.assert_close(score, torch.stack([expected, 2 * expected]))
    assert torch.equal(net_map.score(flat, how), score[0, :18])


def test_a_residual_stream_is_one_group_with_one_score() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 1), block(4, 4), nn.Flatten(), nn.Linear(16, 2))
    net_map = neuron_map(net, torch.randn(2, 3, 2, 2))
    assert net_map.widths == {"0": 4, "1.body.0": 4, "3": 2}
    assert net_map.axes["1.body.3.weight"][0] == net_map.axes["0.weight"][0]
    parts = (net[0].weight, net[0].bias, net[1].body[3].weight)
    squares = sum(part.detach().view(4, -1).square().sum(1) for part in parts)
    torch.testing.assert_close(net_map.score(flatten(net, layout_of(net)))[:4], squares.sqrt())


@settings(max_examples=50, deadline=None)
@given(
    widths=st.lists(st.integers(1, 12), min_size=1, max_size=3),
    shares=st.lists(st.sampled_from((0.01, 0.2, 0.29, 0.5, 0.6, 0.7, 0.8, 1.0)), min_size=1, max_size=4),
    rounding=st.sampled_from(("floor", "half-up", "ceil")),
    precision=st.sampled_from((torch.float32, torch.float64)),
    seed=st.integers(0, 99),
)
def test_cut_keeps_the_best_of_every_group(widths, shares, rounding, precision, seed) -> None:
    net_map = neuron_map(mlp(3, *widths, 2), torch.randn(2, 3))
    scores = torch.rand(len(shares), net_map.size, generator=torch.Generator().manual_seed(seed))
    keep = net_map.cut(scores, torch.tensor(shares, dtype=precision), rounding=rounding)
    for client, share in enumerate(shares):
        for group, span in net_map.spans(net_map.size):
            width = net_map.widths[group]
            hundredths = round(share * 100) * width  # whole numbers, so that nothing rounds by accident
            count = {"floor": hundredths // 100, "half-up": (hundredths + 50) // 100, "ceil": -(-hundredths // 100)}
            best = scores[client, span].argsort(descending=True)[: max(1, count[rounding])]
            assert torch.equal(keep[client, span].nonzero().flatten(), best.sort().values)


def test_equal_scores_keep_the_first_and_one_row_of_scores_serves_many_shares() -> None:
    net_map = neuron_map(mlp(2, 4, 2), torch.randn(2, 2))
    keep = net_map.cut(torch.zeros(4), torch.tensor([0.25, 0.5, 1.0]))
    assert keep.tolist() == [[True, False, False, False], [True, True, False, False], [True] * 4]
    assert net_map.cut(torch.zeros(4), 0.25, minimum=3).sum() == 3


def test_cut_covers_the_outputs_when_the_scores_do(net_map: NeuronMap) -> None:
    keep = net_map.cut(torch.rand(net_map.full_size), 0.4, rounding="half-up")
    assert [int(keep[span].sum()) for _, span in net_map.spans(net_map.full_size)] == [2, 2, 3, 1]


def fedspu(channels: tuple[int, int, int], dense: tuple[int, ...], **conv: int) -> nn.Module:
    """FedSPU's kind of network: two convolutions with batch norm, dense layers of which the last has a bias."""
    one, two, three = channels
    layers: list[nn.Module] = [nn.Conv2d(one, two, **conv), nn.BatchNorm2d(two), nn.ReLU(), nn.MaxPool2d(2)]
    layers += [nn.Conv2d(two, three, **conv), nn.BatchNorm2d(three), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
    layers += [nn.Linear(*pair, bias=False) for pair in pairwise(dense[:-1])]
    return nn.Sequential(*layers, nn.Linear(*dense[-2:]))


# numbers in the network, and the part of them that its published code sends at shares of 0.2, 0.4, 0.6 and 0.8
@pytest.mark.parametrize(
    ("net", "size", "total", "sent"),
    [
        (fedspu((1, 20, 20), (980, 62), kernel_size=3, padding=1), 28, 64_802, (0.192, 0.387, 0.587, 0.791)),
        (fedspu((3, 6, 16), (1024, 120, 84, 10), kernel_size=3, padding=1), 32, 134_946, (0.039, 0.152, 0.341, 0.604)),
        (fedspu((1, 50, 50), (450, 35), kernel_size=2, stride=2, padding=2), 32, 26_485, (0.141, 0.31, 0.51, 0.74)),
    ],
    ids=("emnist", "cifar", "speech"),
)
def test_what_fedspu_sends(net: nn.Module, size: int, total: int, sent: tuple[float, ...]) -> None:
    net_map = neuron_map(net, torch.zeros(2, net[0].in_channels, size, size))
    keep = net_map.cut(-torch.arange(net_map.size).float(), torch.tensor([0.2, 0.4, 0.6, 0.8]))
    assert net_map.total == total
    torch.testing.assert_close(net_map.bytes(keep) / (4 * total), torch.tensor(sent), rtol=0, atol=6e-4)


def test_nothing_waits_for_the_device() -> None:
    """On the meta device asking for a value raises, so this shows that a round never does."""
    net_map = neuron_map(resnet((4, 8), 1), torch.randn(2, 3, 8, 8)).to("meta")
    scores = net_map.score(torch.empty(5, net_map.total, device="meta"), output=True)
    keep = net_map.cut(scores, torch.empty(5, device="meta"))
    assert keep.shape == (5, net_map.full_size)
    assert net_map.expand(keep).shape == net_map.expand(keep, rows=True).shape == (5, net_map.total)
    assert net_map.parameters(keep).shape == net_map.flops(keep).shape == net_map.bytes(keep).shape == (5,)


def test_a_model_without_hidden_neurons() -> None:
    for net in (nn.Linear(4, 3), nn.Sequential(nn.Linear(4, 3), nn.LogSoftmax(1))):
        net_map = neuron_map(net, torch.randn(2, 4))
        assert (net_map.size, net_map.full_size, net_map.across) == (0, 3, ())
        keep = net_map.cut(torch.zeros(2, 0), 0.5)
        assert net_map.expand(keep).all()
        rows = net_map.expand(net_map.cut(torch.tensor([1.0, 3.0, 2.0]), 0.5), rows=True)
        assert rows.tolist() == [False] * 4 + [True] * 4 + [False] * 4 + [False, True, False]


@pytest.mark.parametrize(
    ("keep", "words"),
    [
        (
            torch.ones(17, dtype=torch.bool),
            "over 18 neurons .or 21 with the output classes.; got torch.bool of shape .17",
        ),
        (torch.ones(18), "got torch.float32"),
        ({"5": [0]}, "unknown group of neurons '5'"),
        ({"4": [0, 6]}, "group '4' must be 6 bools or indices from 0 to 5"),
        ({"4": torch.ones(5, dtype=torch.bool)}, "group '4' must be 6 bools"),
    ],
)
def test_a_wrong_keep_is_refused(net_map: NeuronMap, keep, words: str) -> None:
    with pytest.raises(BadModel, match=words):
        net_map.expand(net_map.flat(keep))


@pytest.mark.parametrize("share", [0, 1.01, -0.5, float("nan"), torch.tensor([0.5, 0.0])])
def test_a_share_outside_0_to_1_is_refused(net_map: NeuronMap, share) -> None:
    with pytest.raises(BadExperiment, match="share must be above 0 and at most 1"):
        net_map.cut(torch.zeros(2, 18), share)


def test_unknown_words_are_refused(net_map: NeuronMap) -> None:
    with pytest.raises(BadExperiment, match="did you mean 'floor'"):
        net_map.cut(torch.zeros(18), 0.5, rounding="flor")
    with pytest.raises(BadExperiment, match="unknown norm 'l3'"):
        net_map.score(torch.zeros(net_map.total), "l3")
    with pytest.raises(BadModel, match="scores must be of 18 or 21 neurons"):
        net_map.cut(torch.zeros(5), 0.5)
