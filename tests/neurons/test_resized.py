"""A network's own code, told other sizes, is the whole network with the rest masked."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from fedloom.errors import BadModel
from fedloom.neurons.resized import Kept, Sizes, resized
from fedloom.neurons.wiring import Attribute

HEADS, SIZE, WIDTH = 4, 3, 12
Style = Callable[[nn.Module, Tensor], tuple[Tensor, Tensor, Tensor]]


def viewed(net: nn.Module, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """One view with all sizes said, two of them computed from the uncut width."""
    n, places, width = x.shape
    q, k, v = net.qkv(x).view(n, places, 3, HEADS, width // HEADS).permute(2, 0, 3, 1, 4)
    return q, k, v


def taken_apart(net: nn.Module, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Three pieces, each unflattened; the middle one without its size said."""
    q, k, v = net.qkv(x).chunk(3, dim=-1)
    q = q.unflatten(2, (HEADS, SIZE)).transpose(1, 2)
    k = k.reshape(*x.shape[:2], -1, SIZE).transpose(1, 2)
    return q, k, torch.reshape(v, (*x.shape[:2], HEADS, SIZE)).transpose(1, 2)


def split(net: nn.Module, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A split by a size, then heads beside the batch."""
    pieces = net.qkv(x).split(WIDTH, 2)
    q, k, v = (p.view(*x.shape[:2], HEADS, SIZE).transpose(1, 2) for p in pieces)
    flat = [p.reshape(len(x) * HEADS, x.shape[1], SIZE).view(len(x), HEADS, x.shape[1], SIZE) for p in (q, k, v)]
    return flat[0], flat[1], flat[2]


def head(axis: int) -> tuple[Kept, ...]:
    return (Kept(axis, 2, HEADS),)


WIDE = (Kept(2, 6, WIDTH),)
STYLES: dict[str, tuple[Style, dict[int, Any]]] = {
    "viewed": (viewed, {0: ("view", (head(3),)), 1: ("reshape", (WIDE,))}),
    "taken apart": (
        taken_apart,
        {
            0: ("chunk", (WIDE, WIDE, WIDE)), 1: ("unflatten", (head(2),)), 2: ("reshape", (head(2),)),
            3: ("reshape", (head(2),)), 4: ("reshape", (WIDE,)),
        },
    ),
    "split": (
        split,
        {0: ("split", (WIDE, WIDE, WIDE))}
        | {n: ("view", (head(2),)) for n in (1, 2, 3)}
        # the example had two clients: eight entries lie along an axis that heads share with the batch
        | {4 + 2 * n: ("reshape", ((Kept(0, 4, 8),),)) for n in range(3)}
        | {5 + 2 * n: ("view", (head(1),)) for n in range(3)}
        | {10: ("reshape", (WIDE,))},
    ),
}  # fmt: skip


class Attends(nn.Module):
    """Attention by hand."""

    def __init__(self, style: Style) -> None:
        super().__init__()
        self.style, self.qkv, self.out = style, nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.style(self, x)
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape))


def parts(net: nn.Module, heads: list[int]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The tensors with the other heads at zero, and those of these heads alone."""
    kept = torch.cat([torch.arange(h * SIZE, (h + 1) * SIZE) for h in heads])
    rows = torch.cat([kept + part * WIDTH for part in range(3)])
    small, masked = {}, {}
    for name, value in net.named_parameters():
        axis, index = (1, kept) if name.endswith("out.weight") or "out_proj.weight" in name else (0, rows)
        if name.endswith("out.bias") or "out_proj.bias" in name:
            axis, index = 0, torch.arange(len(value))
        small[name] = value.detach().index_select(axis, index)
        masked[name] = torch.zeros_like(value).index_copy(axis, index, small[name])
    return masked, small


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # vmap runs it client by client on a CPU
@pytest.mark.parametrize("n", [1, 2, 5])
@pytest.mark.parametrize("style", STYLES)
def test_heads_however_they_are_written(style: str, n: int) -> None:
    torch.manual_seed(0)
    net = Attends(STYLES[style][0]).double()
    x, sizes = torch.randn(n, 7, WIDTH).double(), Sizes(STYLES[style][1], ())
    masked, small = parts(net, [0, 3])

    def run(tensors: dict[str, Tensor], x: Tensor) -> Tensor:
        with resized(net, sizes):
            return functional_call(net, tensors, (x,))

    torch.testing.assert_close(run(small, x), functional_call(net, masked, (x,)), rtol=1e-12, atol=1e-12)
    both = [parts(net, heads)[1] for heads in ([0, 3], [2, 1])]
    stacked = {name: torch.stack([one[name] for one in both]) for name in small}
    for row, one in enumerate(both):
        found = vmap(grad(lambda t: run(t, x).square().sum()))(stacked)
        alone = grad(lambda t: run(t, x).square().sum())(one)
        for name in one:
            torch.testing.assert_close(found[name][row], alone[name], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("masks", ["none", "causal", "padding", "both", "added"])
def test_multihead_attention(masks: str, weights: bool) -> None:
    torch.manual_seed(0)
    net = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True).double()
    x, own = torch.randn(2, 5, WIDTH).double(), {}
    later = torch.ones(5, 5).bool().triu(1)
    if masks in ("causal", "both"):
        own["attn_mask"] = later
    if masks == "added":
        own["attn_mask"] = torch.randn(5, 5).double()
    if masks in ("padding", "both"):
        own["key_padding_mask"] = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    masked, small = parts(net, [1, 2])
    expected = functional_call(net, masked, (x, x, x), {"need_weights": weights, **own})[0]
    with resized(net, Sizes({}, ())):
        found, seen = functional_call(net, small, (x, x, x), {"need_weights": weights, **own})
        whole = net(x, x, x, need_weights=weights, **own)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(whole, net(x, x, x, need_weights=weights, **own), rtol=1e-12, atol=1e-12)
    assert (seen is not None) == weights
    alone = {k: v[0] if k == "key_padding_mask" else v for k, v in own.items()}
    with resized(net, Sizes({}, ())):
        one = functional_call(net, small, (x[0], x[0], x[0]), {"need_weights": weights, **alone})[0]
    torch.testing.assert_close(one, found[0], rtol=1e-12, atol=1e-12)


def test_attention_that_cannot_be_cut_is_refused() -> None:
    x = torch.randn(2, 5, WIDTH)
    with (
        resized(net := nn.MultiheadAttention(WIDTH, HEADS, add_bias_kv=True, batch_first=True), Sizes({}, ())),
        pytest.raises(BadModel, match="bias_k"),
    ):
        net(x, x, x)
    net = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
    with resized(net, Sizes({}, ())), pytest.raises(BadModel, match="one mask for all heads"):
        functional_call(net, parts(net, [0])[1], (x, x, x), {"attn_mask": torch.zeros(2 * HEADS, 5, 5)})


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("both_ways", [False, True])
def test_recurrent_layers_are_told_their_sizes_for_the_run(kind: Any, both_ways: bool) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(kind(4, 6, num_layers=2, bidirectional=both_ways, batch_first=True)).double()
    attributes = ((Attribute("0", "hidden_size", None), 3), (Attribute("0", "input_size", None), 2))
    small = nn.Sequential(kind(2, 3, num_layers=2, bidirectional=both_ways, batch_first=True)).double()
    x, tensors = torch.randn(5, 7, 2).double(), dict(small.named_parameters())
    with resized(net, Sizes({}, attributes)):
        found = functional_call(net, tensors, (x,))[0]
    assert torch.equal(found, small(x)[0])
    assert (net[0].hidden_size, net[0].input_size) == (6, 4)
    with pytest.raises(RuntimeError), resized(net, Sizes({}, attributes)):
        net(x)  # tensors of the whole network
    assert (net[0].hidden_size, net[0].input_size) == (6, 4)


def test_norms_take_their_shape_from_what_comes() -> None:
    net = nn.Sequential(nn.LayerNorm((2, 6)), nn.RMSNorm(6))
    tensors = {name: value[..., :3] for name, value in net.named_parameters()}
    with resized(net, Sizes({}, ())):
        x = functional_call(net, tensors, (torch.randn(4, 2, 3),))
    torch.testing.assert_close(x.square().mean(2), torch.ones(4, 2), rtol=1e-3, atol=1e-3)


class Branches(nn.Module):
    """Views in training, reshapes in evaluation, and neither without an axis."""

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1) if x.dim() == 3 else x.view(2, 4) if self.training else x.reshape(2, 4)


def test_another_branch_is_refused() -> None:
    net, sizes = Branches(), Sizes({0: ("view", ((Kept(1, 2, 4),),))}, ())
    with resized(net, sizes):
        assert net(torch.randn(2, 2)).shape == (2, 2)
    with (
        pytest.raises(BadModel, match=r"number 0 .* is 'reshape', and was 'view' .* another branch"),
        resized(net, sizes),
    ):
        net.eval()(torch.randn(2, 2))
    with pytest.raises(BadModel, match="told sizes 0 times and not 1 times or more"), resized(net, sizes):
        net(torch.randn(2, 1, 2))


def test_without_sizes_nothing_changes() -> None:
    net = Branches()
    with resized(net, None):
        assert net(torch.randn(2, 4)).shape == (2, 4)
