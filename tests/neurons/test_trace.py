"""Rules for neurons of feed-forward networks, what is kept whole, and what is refused."""

import re

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedloom.errors import BadModel
from fedloom.layout import copied, flatten, layout_of, load
from fedloom.neurons.axes import FIXED_GROUP, Segment
from fedloom.neurons.extract import extract
from fedloom.neurons.trace import neuron_map
from fedloom.neurons.tried import tried
from neurons.equality import check
from neurons.nets import Apply, Dense, Padded, mlp


class Twice(nn.Module):
    """A layer that is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.again, self.last = nn.Linear(3, 5), nn.Linear(5, 5), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.again(torch.relu(self.first(x)))
        return self.last(self.again(x.sigmoid()))


class Spotlight(nn.Module):
    """One neuron that scales all the others, pixel by pixel."""

    def __init__(self) -> None:
        super().__init__()
        self.light = nn.Conv2d(4, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.light(x).sigmoid()


def conv_net(*middle: nn.Module, after: int = 4) -> nn.Module:
    """A convolution of 4 channels, something, the mean over the image, and 3 classes."""
    return nn.Sequential(nn.Conv2d(2, 4, 3), *middle, Apply(lambda x: x.mean(dim=(2, 3))), nn.Linear(after, 3))


IMAGE = torch.randn(3, 2, 6, 6, generator=torch.Generator().manual_seed(0))
KNOWN = {
    "batch norm": nn.BatchNorm2d(4),
    "instance norm": nn.InstanceNorm2d(4, affine=True, track_running_stats=True),
    "one channel a group": nn.GroupNorm(4, 4),
    "pooling functions": Apply(lambda x: F.avg_pool2d(F.max_pool2d(x, 2), 2)),
    "adaptive pooling": Apply(lambda x: F.adaptive_max_pool2d(x, 2)),
    "resampling": nn.Upsample(scale_factor=2),
    "padding layer": nn.ZeroPad2d(1),
    "padding function": Apply(lambda x: F.pad(x, (1, 1, 2, 0), value=1.0)),
    "methods": Apply(lambda x: x.relu().add(1).mul(2).clamp(min=0.1).contiguous()),
    "functions": Apply(lambda x: torch.tanh(F.gelu(x)) - F.silu(x) / 2),
    "operators": Apply(lambda x: -x + 2 * x**2),
    "comparison": Apply(lambda x: torch.where(x > 0, x, x * 0.1)),
    "flatten and back": nn.Sequential(nn.Flatten(), nn.Unflatten(1, (-1, 4, 4))),
    "view": Apply(lambda x: x.view(x.size(0), x.shape[1], -1).reshape(3, -1, 4, 4)),
    "channels last": Apply(lambda x: x.permute(0, 2, 3, 1).transpose(1, 3)),
    "a part of the image": Apply(lambda x: x[:, :, 1:, ::2]),
    "halves of the image": Apply(lambda x: x.chunk(2, dim=2)[1]),
    "joined images": Apply(lambda x: torch.cat([x, x * 2], dim=2)),
    "unsqueezed": Apply(lambda x: x.unsqueeze(1).squeeze(1)),
    "largest over height": Apply(lambda x: x.max(2, keepdim=True)[0]),
    "one-dimensional": nn.Sequential(nn.Flatten(2), nn.Conv1d(4, 4, 3), nn.BatchNorm1d(4), nn.Unflatten(2, (2, 7))),
    "gate of one neuron": Spotlight(),
    "spatial softmax": Apply(lambda x: x.flatten(2).softmax(-1).view(x.shape)),
}


@pytest.mark.parametrize("name", KNOWN)
def test_what_a_layer_does_leaves_masked_and_sliced_equal(name: str) -> None:
    for seed in range(3):
        check(conv_net(KNOWN[name]), (IMAGE,), seed)


def test_a_layer_called_twice_has_one_list_of_neurons() -> None:
    net_map = neuron_map(Twice(), torch.randn(2, 3))
    assert net_map.widths == {"first": 5, "last": 2}
    for seed in range(3):
        check(Twice(), (torch.randn(3, 3),), seed)


def test_concatenation_joins_segments() -> None:
    net_map = neuron_map(conv_net(Dense(nn.Conv2d(4, 2, 1)), nn.Conv2d(6, 4, 1)), IMAGE)
    assert net_map.axes["2.weight"][1] == (Segment("0", 1, 0, 4), Segment("1.body", 1, 0, 2))


def test_depthwise_keeps_its_group_and_grouped_cuts_whole_groups() -> None:
    net = conv_net(nn.Conv2d(4, 8, 1, groups=4), nn.Conv2d(8, 6, 1, groups=2), after=6)
    net_map = neuron_map(net, IMAGE)
    assert net_map.widths == {"0": 2, "4": 3}  # two groups of two inputs, each the parent of two channels
    assert net_map.axes["0.weight"][0] == (Segment("0", 2, 0, 2),)
    assert net_map.axes["1.weight"] == ((Segment("0", 4, 0, 2),), None, None, None)
    small = extract(net, {"0": [1]}, map=net_map)
    assert (small[1].groups, small[2].groups, small[2].in_channels, small[2].out_channels) == (2, 1, 4, 3)


def test_channels_of_zeros_are_never_cut() -> None:
    net_map = neuron_map(conv_net(Padded(4, 1), nn.Conv2d(6, 4, 1)), IMAGE)
    assert net_map.axes["1.body.weight"][0] == (
        Segment(FIXED_GROUP, 1, 0, 1),
        Segment("0", 1, 0, 4),
        Segment(FIXED_GROUP, 1, 0, 1),
    )


def test_what_is_done_to_the_input_needs_no_rule() -> None:
    patches = nn.Sequential(nn.Unfold(3), Apply(lambda x: torch.fft.fft(x).real), nn.Flatten(), nn.Linear(288, 4))
    check(nn.Sequential(patches, nn.Linear(4, 2)), (IMAGE,), 0)


def test_what_is_added_to_the_input_is_never_cut() -> None:
    class AroundInput(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.back, self.last = nn.Linear(4, 6), nn.Linear(6, 4), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(x + self.back(self.inner(x)))

    assert neuron_map(AroundInput(), torch.randn(2, 4)).groups == ("inner",)


def test_norms_over_several_neurons_are_named() -> None:
    net = conv_net(nn.GroupNorm(2, 4), nn.LayerNorm([4, 4, 4]), nn.LayerNorm([4, 4]), nn.Softmax(1))
    net_map = neuron_map(net, IMAGE)
    # over [4, 4] only the image is normed; the softmax runs over channels
    image_only = conv_net(nn.LayerNorm([4, 4]))
    assert net_map.across == ("1", "2", "4")
    assert neuron_map(image_only, IMAGE).across == ()
    check(image_only, (IMAGE,), 1)
    small = extract(net, net_map.cut(torch.rand(4), 0.5), map=net_map)
    assert (small[1].num_channels, small[2].normalized_shape) == (2, (2, 4, 4))
    assert small(IMAGE).shape == (3, 3)


def test_group_norm_is_cut_in_multiples_of_its_groups() -> None:
    net = conv_net(nn.GroupNorm(2, 4))
    net_map = neuron_map(net, IMAGE)
    counts = net_map.cut(torch.rand(4), torch.tensor([0.1, 0.5, 0.75, 1.0])).sum(-1)
    assert counts.tolist() == [2, 2, 2, 4]
    with pytest.raises(BadModel, match="group norm '1' has 2 groups, which do not divide the 3 of 4 channels"):
        extract(net, {"0": [0, 1, 2]}, map=net_map)


def test_tracing_leaves_the_model_as_it_is() -> None:
    net = conv_net(nn.BatchNorm2d(4), nn.Dropout2d(0.5)).train()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    neuron_map(net, IMAGE)
    assert all(module.training for module in net.modules())
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) if x.sum() > 0 else x


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.key, self.value = nn.Linear(2, 3), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        key = self.key(x)
        return self.value(key @ key.transpose(1, 2) @ key)


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(2, 3), nn.Linear(2, 4)

    def forward(self, x: Tensor) -> Tensor:
        return (self.one(x).unsqueeze(1) * self.two(x).unsqueeze(2)).flatten(1)


def tied() -> nn.Module:
    net = mlp(3, 3, 3)
    net[2].weight = net[0].weight
    return net


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        return grad * 2


class Detour(nn.Module):
    """A layer whose middle is computed by something other than torch's functions."""

    def __init__(self, detour) -> None:
        super().__init__()
        self.first, self.detour, self.last = nn.Linear(2, 6), detour, nn.Linear(6, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.last(self.detour(self.first(x))).relu())


def through_numpy(x: Tensor) -> Tensor:
    return torch.from_numpy(np.flip(x.detach().numpy(), 1).copy())


ROW, ROWS = torch.randn(2, 2), torch.randn(2, 5, 2)
REFUSED = {
    "wrong example": (mlp(3, 4, 2), ROW, "fails on the example at layer '0' of type Linear"),
    "too many inputs": (mlp(2, 4, 2), (ROW, ROW), "fails on the example at Sequential.forward.* 3 were given"),
    "no batch in the output": (
        nn.Sequential(nn.Linear(2, 3), nn.Flatten(0)),
        ROW,
        "tensors .batch, classes, .*; got shapes",
    ),
    "mean over the classes": (nn.Sequential(nn.Linear(2, 3), Apply(lambda x: x.mean(1))), ROW, "got shapes .*2,"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_run_is_refused(name: str) -> None:
    model, example, words = REFUSED[name]
    with pytest.raises(BadModel, match=words):
        neuron_map(model, example)


def fft(x: Tensor) -> Tensor:
    return torch.fft.fft(x).real


WHOLE = {
    "a function without a rule": (Detour(Apply(fft)), r"50% .*|kept whole.*'detour' \(fft_fft: it has no rule\)"),
    "an autograd function": (Detour(Doubled.apply), r"'last' \(Doubled: it cannot be listened to\)"),
    "a way through numpy": (Detour(through_numpy), r"the network's own code \(numpy: its numbers leave"),
    "half of the neurons": (
        Detour(Apply(lambda x: torch.cat([x[:, 3:], x[:, :3]], 1))),
        r"'first', .* \(getitem: it tells places along neurons apart\)",
    ),
    "the largest neuron": (
        Detour(Apply(lambda x: x + x.amax(1, keepdim=True))),
        r"'first', .* \(amax: it tells places",
    ),
}


@pytest.mark.parametrize("name", WHOLE)
def test_what_has_no_rule_is_kept_whole_and_the_rest_is_cut(name: str) -> None:
    model, words = WHOLE[name]
    found = neuron_map(model, ROW)
    assert found.groups == ("last",)
    assert re.search(words, found.note)
    assert "fedloom.neuron_rule" in found.note
    tried(found, model, ROW)


def test_a_layer_along_the_neurons_keeps_them_whole() -> None:
    shifted = nn.Sequential(nn.Unflatten(1, (1, 6)), nn.Conv1d(1, 1, 3, padding=1), nn.Flatten())
    found = neuron_map(Detour(shifted), ROW)
    assert found.groups == ("detour.1", "last")
    assert "'first'. Not understood: 'detour.1' (conv1d: it works along another axis than neurons)" in found.note


def test_code_that_may_take_another_way_keeps_all_layers_whole() -> None:
    found = neuron_map(Branching(), ROW)
    assert found.groups == ()
    assert re.fullmatch(
        r"Branching: its code looks at numbers in its forward .* All its layers are kept whole\.", found.note
    )
    assert int(found.flops(torch.ones(0, dtype=torch.bool))) == (2 * 2 * 2 if ROW.sum() > 0 else 0)


class Masked(nn.Module):
    """Attention that builds a mask only where there is padding."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.attention = nn.Embedding(9, 8), nn.MultiheadAttention(8, 4, batch_first=True)
        self.norm, self.last = nn.LayerNorm(8), nn.Linear(8, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        x, padding = self.words(tokens), tokens == 0
        mask = padding.view(*tokens.shape).expand(*tokens.shape) if bool(padding.any()) else None
        x = x + self.attention(self.norm(x), x, x, key_padding_mask=mask, need_weights=False)[0].view(x.shape)
        return self.last(x.mean(1))


def test_a_way_that_leads_to_the_same_neurons_is_as_good() -> None:
    some, padded = torch.tensor([[1, 2, 3], [4, 5, 8]]), torch.tensor([[1, 2, 3], [4, 0, 0]])
    model = Masked().double()
    for example in (some, padded):
        found = neuron_map(model, example)
        assert found.note is None
        assert found.groups == ("attention",)
        keep, layout = torch.tensor([True, False, False, True]), layout_of(model)
        small = extract(model, keep, map=found)
        masked = load(copied(model), layout, flatten(model, layout) * found.expand(keep))
        for tokens in (some, padded):  # whichever way was listened to
            torch.testing.assert_close(small(tokens), masked(tokens))


class Strolls(nn.Module):
    """Writes down how many neurons there are, and reshapes once more in training."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(2, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = x.view(-1, 2) if self.training else x
        return self.last(self.first(x).view(-1, 6))


def test_another_way_in_training_keeps_layers_whole() -> None:
    found = neuron_map(Strolls(), ROW)
    assert found.groups == ()
    assert "Not understood: 'first'" in found.note


class Careful(nn.Module):
    """Looks at its input, and goes on in the same way whatever it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = mlp(2, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        assert not torch.isnan(x).any()
        return self.inner(x)


def test_looking_is_allowed_where_it_changes_nothing() -> None:
    assert neuron_map(Careful(), ROW).widths == {"inner.0": 4, "inner.2": 3}


def test_what_meets_across_is_one_neuron_or_stays_whole() -> None:
    assert neuron_map(Outer(), ROW).widths == {"two": 4}  # all products of both, of which one stays whole
    assert neuron_map(nn.Sequential(Attention()), ROWS).widths == {"0.key": 1, "0.value": 2}  # one head
    pairs = nn.Sequential(nn.Linear(2, 4), Apply(lambda x: x.view(-1, 2, 2)), nn.Flatten(), nn.Linear(4, 3))
    assert neuron_map(pairs, ROW).widths == {"0": 2, "3": 3}
    assert neuron_map(tied(), torch.randn(2, 3)).groups == ()  # its neurons are the inputs as well
