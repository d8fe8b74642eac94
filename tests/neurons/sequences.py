"""Small networks over sequences: transformers however they are written, and recurrent ones; named and random."""

from typing import Any

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import Tensor, nn

WORDS, CLASSES = 11, 3


class HandMadeNorm(nn.Module):
    """RMSNorm written out."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


class Packed(nn.Module):
    """Attention with queries, keys and values in one layer."""

    def __init__(self, width: int, heads: int, style: str) -> None:
        super().__init__()
        self.heads, self.size, self.style = heads, width // heads, style
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        n, places, width = x.shape
        if self.style == "literal":
            q, k, v = self.qkv(x).reshape(n, places, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        elif self.style == "minus one":
            q, k, v = self.qkv(x).unflatten(2, (3, -1, self.size)).permute(2, 0, 3, 1, 4).unbind(0)
        elif self.style == "chunk":
            q, k, v = (
                y.view(n, places, self.heads, -1).transpose(1, 2) for y in self.qkv(x).chunk(3, dim=-1)
            )  # fmt: skip
        else:
            q, k, v = (
                y.reshape(n, places, -1, self.size).transpose(1, 2) for y in self.qkv(x).split(width, dim=2)
            )  # fmt: skip
        return q, k, v

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        if self.style == "chunk":
            seen = ((q @ k.transpose(-2, -1)) * self.size**-0.5).softmax(-1) @ v
        else:
            seen = F.scaled_dot_product_attention(q, k, v)
        merged = seen.transpose(1, 2)
        return self.out(merged.flatten(2) if self.style == "minus one" else merged.reshape(x.shape))


class Apart(nn.Module):
    """Attention with three layers; fewer heads of keys and values where queries are grouped."""

    def __init__(self, width: int, heads: int, groups: int = 1) -> None:
        super().__init__()
        self.heads, self.size, self.groups = heads, width // heads, groups
        self.q, self.out = nn.Linear(width, width), nn.Linear(width, width, bias=False)
        self.k, self.v = (nn.Linear(width, width // groups) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        n, places, _ = x.shape
        q = self.q(x).view(n, places, self.heads, self.size).transpose(1, 2)
        k, v = (y(x).view(n, places, self.heads // self.groups, self.size).transpose(1, 2) for y in (self.k, self.v))
        if self.groups > 1:
            k, v = (y.repeat_interleave(self.groups, dim=1) for y in (k, v))
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(seen.transpose(1, 2).reshape(n, places, self.heads * self.size))


class Torchs(nn.Module):
    """`nn.MultiheadAttention`."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.own = nn.MultiheadAttention(width, heads, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.own(x, x, x, need_weights=False)[0]


class Gated(nn.Module):
    """A feed-forward layer whose units are gated, or a plain one."""

    def __init__(self, width: int, units: int, style: str) -> None:
        super().__init__()
        self.style, self.units, several = style, units, 2 if style in ("chunk", "split") else 1
        self.up, self.down = nn.Linear(width, several * units), nn.Linear(units, width)
        self.gate = nn.Linear(width, units) if style == "two layers" else None

    def forward(self, x: Tensor) -> Tensor:
        if self.gate is not None:
            return self.down(F.silu(self.gate(x)) * self.up(x))
        if self.style == "chunk":
            one, other = self.up(x).chunk(2, -1)
            return self.down(F.gelu(one) * other)
        if self.style == "split":
            one, other = self.up(x).split([self.units, self.units], dim=-1)
            return self.down(torch.sigmoid(one) * other)
        return self.down(F.gelu(self.up(x)))


ATTENTIONS: dict[str, Any] = {
    "literal": lambda width, heads: Packed(width, heads, "literal"),
    "minus one": lambda width, heads: Packed(width, heads, "minus one"),
    "chunk": lambda width, heads: Packed(width, heads, "chunk"),
    "split": lambda width, heads: Packed(width, heads, "split"),
    "apart": Apart,
    "grouped": lambda width, heads: Apart(width, heads, 2 if heads % 2 == 0 else 1),
    "torch's": Torchs,
}
NORMS: dict[str, Any] = {"layer": nn.LayerNorm, "rms": nn.RMSNorm, "by hand": HandMadeNorm, "none": nn.Identity}
GATES = ("none", "two layers", "chunk", "split")


class Block(nn.Module):
    """Attention, then a feed-forward layer, each after a norm and added to its input."""

    def __init__(self, width: int, heads: int, units: int, attention: str, norm: str, gate: str) -> None:
        super().__init__()
        self.norm1, self.norm2 = NORMS[norm](width), NORMS[norm](width)
        self.attention, self.feed = ATTENTIONS[attention](width, heads), Gated(width, units, gate)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.feed(self.norm2(x))


class Former(nn.Module):
    """A transformer over words, whose scores are of words, by the embedding itself where `tied`, or of classes."""

    def __init__(self, width: int, places: int, tied: bool, *blocks: nn.Module) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, width)
        self.position = nn.Parameter(torch.randn(places, width) * 0.1)
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(width, WORDS if tied else CLASSES, bias=not tied)
        if tied:
            self.head.weight = self.words.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens) + self.position
        return self.head(self.blocks(x).mean(1))


def encoder(width: int, heads: int, units: int, places: int, depth: int, norm_first: bool) -> nn.Module:
    """`nn.TransformerEncoder`."""
    layer = nn.TransformerEncoderLayer(width, heads, units, 0.0, batch_first=True, norm_first=norm_first)
    return Former(width, places, False, nn.TransformerEncoder(layer, depth, enable_nested_tensor=False))


class Recurrent(nn.Module):
    """Recurrent layers, the mean of their states and a linear layer."""

    def __init__(self, kind: str, inputs: int, units: int, layers: int, ways: bool, first: bool, twice: bool) -> None:
        super().__init__()
        make = {"lstm": nn.LSTM, "gru": nn.GRU}[kind]
        self.first = first
        self.layers = make(inputs, units, layers, bidirectional=ways, batch_first=first)
        wide = units * (2 if ways else 1)
        self.more = make(wide, wide, batch_first=first) if twice else None
        self.out = nn.Linear(wide, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layers(x if self.first else x.transpose(0, 1))[0]
        x = x if self.more is None else self.more(x)[0]
        return self.out(x.mean(1 if self.first else 0))


@st.composite
def formers(draw: st.DrawFn) -> tuple[nn.Module, Tensor]:
    """A transformer and words for it."""
    heads, size, places = draw(st.integers(1, 4)), draw(st.integers(2, 3)), draw(st.integers(2, 5))
    width, tied = heads * size, draw(st.booleans())
    norm, units = draw(st.sampled_from(sorted(NORMS))), draw(st.integers(2, 6))
    # without norms the stream itself is cut, and the size of a head must not be computed from its width
    kinds = sorted(ATTENTIONS) if norm != "none" else ["apart", "grouped", "minus one", "torch's"]
    torch.manual_seed(draw(st.integers(0, 99)))
    tokens = torch.randint(WORDS, (draw(st.integers(2, 3)), places))
    if draw(st.integers(0, 5)) == 0:
        return encoder(width, heads, units, places, draw(st.integers(1, 2)), draw(st.booleans())), tokens
    blocks = [
        Block(width, heads, units, draw(st.sampled_from(kinds)), norm, draw(st.sampled_from(GATES)))
        for _ in range(draw(st.integers(1, 2)))
    ]
    return Former(width, places, tied, *blocks), tokens


@st.composite
def recurrents(draw: st.DrawFn) -> tuple[nn.Module, Tensor]:
    """A recurrent network and signals for it."""
    inputs, flags = draw(st.integers(1, 3)), [draw(st.booleans()) for _ in range(3)]
    torch.manual_seed(draw(st.integers(0, 99)))
    kind, layers = draw(st.sampled_from(("lstm", "gru"))), draw(st.integers(1, 3))
    net = Recurrent(kind, inputs, draw(st.integers(1, 5)), layers, *flags)
    return net, torch.randn(draw(st.integers(2, 3)), draw(st.integers(1, 4)), inputs)
