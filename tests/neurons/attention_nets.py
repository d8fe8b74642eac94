"""Small networks with attention, written in the ways that people write it, and recurrent ones."""

from typing import Any

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import Tensor, nn

HEADS, SIZE = 3, 4
WIDTH = HEADS * SIZE
PLACES, WORDS = 5, 20


class ByHand(nn.Module):
    """Attention from one packed layer; `style` is how its heads are taken apart and multiplied."""

    def __init__(self, style: str, width: int = WIDTH, heads: int = HEADS) -> None:
        super().__init__()
        self.style, self.heads = style, heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, places, width = x.shape
        heads, size = self.heads, width // self.heads
        packed = self.qkv(x)
        if self.style == "reshape":
            q, k, v = packed.reshape(batch, places, 3, heads, size).permute(2, 0, 3, 1, 4)
        elif self.style == "einsum":
            packed = torch.einsum("bni,oi->bno", x, self.qkv.weight) + self.qkv.bias
            q, k, v = packed.view(batch, places, 3, heads, size).unbind(2)
        elif self.style == "unbind":
            q, k, v = packed.view(batch, places, 3, -1, size).permute(2, 0, 3, 1, 4).unbind(0)
        elif self.style == "chunk":
            q, k, v = (part.view(batch, places, heads, size).transpose(1, 2) for part in packed.chunk(3, -1))
        else:
            q, k, v = (part.unflatten(-1, (heads, size)).transpose(1, 2) for part in packed.split(width, dim=-1))
        if self.style == "einsum":
            scores = torch.einsum("bnhd,bmhd->bhnm", q, k) * size**-0.5
            return self.out(torch.einsum("bhnm,bmhd->bnhd", scores.softmax(-1), v).reshape(batch, places, width))
        if self.style == "chunk":
            mixed = ((q * size**-0.5) @ k.transpose(-2, -1)).softmax(-1) @ v
        elif self.style == "split":  # heads laid end to end with the batch
            q, k, v = (x.reshape(batch * heads, places, size) for x in (q, k, v))
            scores = torch.baddbmm(torch.zeros(()).to(q), q, k.transpose(1, 2), alpha=size**-0.5)
            mixed = torch.bmm(scores.softmax(-1), v).view(batch, heads, places, size)
        else:
            mixed = F.scaled_dot_product_attention(q, k, v)
        merged = mixed.transpose(1, 2)
        return self.out(merged.flatten(2) if self.style == "unbind" else merged.reshape(batch, places, width))


class Grouped(nn.Module):
    """Two query heads for each key head, rotary places, and a norm of each head."""

    def __init__(self, repeat: str) -> None:
        super().__init__()
        self.repeat = repeat
        self.q, self.k = nn.Linear(WIDTH, 4 * SIZE, bias=False), nn.Linear(WIDTH, 2 * SIZE, bias=False)
        self.v, self.out = nn.Linear(WIDTH, 2 * SIZE, bias=False), nn.Linear(4 * SIZE, WIDTH, bias=False)
        self.norm = nn.RMSNorm(SIZE)
        angles = torch.arange(PLACES)[:, None] * torch.tensor([1.0, 0.1])
        self.register_buffer("cos", torch.cat([angles, angles], -1).cos())
        self.register_buffer("sin", torch.cat([angles, angles], -1).sin())

    def turned(self, x: Tensor) -> Tensor:
        one, other = x[..., : SIZE // 2], x[..., SIZE // 2 :]
        return x * self.cos + torch.cat([-other, one], -1) * self.sin

    def forward(self, x: Tensor) -> Tensor:
        batch, places, _ = x.shape
        q = self.turned(self.norm(self.q(x).view(batch, places, 4, SIZE).transpose(1, 2)))
        k = self.turned(self.k(x).view(batch, places, 2, SIZE).transpose(1, 2))
        v = self.v(x).view(batch, places, 2, SIZE).transpose(1, 2)
        if self.repeat == "expand":
            k, v = (y[:, :, None].expand(batch, 2, 2, places, SIZE).reshape(batch, 4, places, SIZE) for y in (k, v))
        elif self.repeat == "interleave":
            k, v = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.repeat == "argument")
        return self.out(mixed.transpose(1, 2).reshape(batch, places, 4 * SIZE))


class Norm(nn.Module):
    """Root mean square, by hand."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.scale


class Gated(nn.Module):
    """A feed-forward layer: plain, or gated from two layers, from one in chunks, or by `glu`."""

    def __init__(self, gate: str, width: int, hidden: int = 6) -> None:
        super().__init__()
        self.gate = gate
        self.up = nn.Linear(width, hidden if gate in ("none", "two") else 2 * hidden)
        self.beside = nn.Linear(width, hidden) if gate == "two" else None
        self.down = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        wide = self.up(x)
        if self.gate == "two":
            return self.down(F.silu(wide) * self.beside(x))
        if self.gate == "chunk":
            one, other = wide.chunk(2, dim=-1)
            return self.down(F.gelu(one) * other)
        return self.down(F.glu(wide, -1) if self.gate == "glu" else F.gelu(wide))


class Decoder(nn.Module):
    """Embedded words with a place each, one block, and scores at every place."""

    def __init__(self, attention: nn.Module, norm: Any, gate: str, tied: bool) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Parameter(torch.randn(1, PLACES, WIDTH))
        self.attention, self.feed = attention, Gated(gate, WIDTH)
        self.before, self.between, self.after = norm(WIDTH), norm(WIDTH), norm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        if tied:
            self.head.weight = self.words.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens) + self.places[:, : tokens.shape[1]]
        x = x + self.attention(self.before(x))
        x = x + self.feed(self.between(x))
        return self.head(self.after(x))


class Torchs(nn.Module):
    """`nn.TransformerEncoder`, or a decoder that also looks at something else."""

    def __init__(self, memory: bool = False, **settings: Any) -> None:
        super().__init__()
        kind = nn.TransformerDecoderLayer if memory else nn.TransformerEncoderLayer
        self.words = nn.Embedding(WORDS, WIDTH)
        layer = kind(WIDTH, HEADS, 8, dropout=0.0, batch_first=True, **settings)
        stack = nn.TransformerDecoder if memory else nn.TransformerEncoder
        self.body = stack(layer, 2, **({} if memory else {"enable_nested_tensor": False}))
        self.memory = nn.Linear(WIDTH, WIDTH) if memory else None
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens)
        x = self.body(x) if self.memory is None else self.body(x, self.memory(x.flip(1)))
        return self.head(x.mean(1))


class Patches(nn.Module):
    """A vision transformer with a class token, `nn.MultiheadAttention` and a scale for each layer."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, 4, 4)
        self.token, self.places = nn.Parameter(torch.randn(1, 1, WIDTH)), nn.Parameter(torch.randn(1, 5, WIDTH))
        self.norm1, self.norm2, self.norm3 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.scale1, self.scale2 = nn.Parameter(torch.rand(WIDTH)), nn.Parameter(torch.rand(WIDTH))
        self.feed, self.head = Gated("none", WIDTH), nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[0]
        x = self.patches(x).reshape(n, WIDTH, -1).permute(0, 2, 1)
        x = torch.cat([self.token.expand(n, -1, -1), x], 1) + self.places
        y = self.norm1(x)
        x = x + self.scale1 * self.attention(y, y, y, need_weights=False)[0]
        x = x + self.scale2 * self.feed(self.norm2(x))
        return self.head(self.norm3(x)[:, 0])


class Window(nn.Module):
    """Attention in windows of 2x2 with a bias for each distance and head, shifted or not."""

    def __init__(self, width: int = 8, heads: int = 2, shift: int = 0) -> None:
        super().__init__()
        self.heads, self.shift = heads, shift
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out, self.feed = nn.Linear(width, 3 * width), nn.Linear(width, width), Gated("none", width)
        self.table = nn.Parameter(torch.randn(9, heads))
        across = torch.arange(4) // 2
        down = torch.arange(4) % 2
        index = (across[:, None] - across + 1) * 3 + down[:, None] - down + 1
        self.register_buffer("index", index.flatten())

    def attend(self, x: Tensor) -> Tensor:
        batch, height, across, width = x.shape
        x = torch.roll(x, (-self.shift, -self.shift), (1, 2)) if self.shift else x
        x = x.view(batch, height // 2, 2, across // 2, 2, width).permute(0, 1, 3, 2, 4, 5).reshape(-1, 4, width)
        packed = F.linear(x, self.qkv.weight, self.qkv.bias).reshape(len(x), 4, 3, self.heads, width // self.heads)
        q, k, v = packed.permute(2, 0, 3, 1, 4)[0], packed[:, :, 1].transpose(1, 2), packed[:, :, 2].transpose(1, 2)
        scores = (q * (width // self.heads) ** -0.5).matmul(k.transpose(-2, -1))
        scores = scores + self.table[self.index].view(4, 4, -1).permute(2, 0, 1).contiguous().unsqueeze(0)
        if self.shift:
            windows = len(x) // batch
            mask = x.new_zeros(windows, 4, 4)
            mask[0] = -100.0
            scores = scores.view(batch, windows, self.heads, 4, 4) + mask[None, :, None]
            scores = scores.view(-1, self.heads, 4, 4)
        x = self.out(scores.softmax(-1).matmul(v).transpose(1, 2).reshape(-1, 4, width))
        x = x.view(batch, height // 2, across // 2, 2, 2, width).permute(0, 1, 3, 2, 4, 5)
        x = x.reshape(batch, height, across, width)
        return torch.roll(x, (self.shift, self.shift), (1, 2)) if self.shift else x

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attend(self.norm1(x))
        return x + self.feed(self.norm2(x))


class Cosine(nn.Module):
    """Attention by cosines, with a scale and a computed bias for each head."""

    def __init__(self, heads: int = HEADS) -> None:
        super().__init__()
        self.words, self.heads = nn.Embedding(WORDS, WIDTH), heads
        self.qkv, self.out, self.norm = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)
        self.scale, self.far = nn.Parameter(torch.rand(heads, 1, 1)), nn.Sequential(nn.Linear(1, 4), nn.ReLU())
        self.bias, self.head = nn.Linear(4, heads, bias=False), nn.Linear(WIDTH, 3)
        steps = torch.arange(PLACES).float()
        self.register_buffer("table", (steps[:, None] - steps).reshape(-1, 1))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens)
        batch, places, width = x.shape
        packed = F.linear(x, self.qkv.weight, self.qkv.bias * 2).reshape(
            batch, places, 3, self.heads, width // self.heads
        )
        q, k, v = packed.permute(2, 0, 3, 1, 4)
        scores = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1)
        bias = self.bias(self.far(self.table)).view(places, places, self.heads)
        scores = scores * self.scale.clamp(max=4.0).exp() + bias.permute(2, 0, 1).unsqueeze(0)
        mixed = (scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, places, width)
        return self.head(self.norm(x + self.out(mixed)).mean(1))


class Merged(nn.Module):
    """Four neighbours become one, twice as wide."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.reduction = nn.LayerNorm(4 * width), nn.Linear(4 * width, 2 * width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        parts = [x[..., 0::2, 0::2, :], x[..., 1::2, 0::2, :], x[..., 0::2, 1::2, :], x[..., 1::2, 1::2, :]]
        return self.reduction(self.norm(torch.cat(parts, -1)))


class Permuted(nn.Module):
    """Axes in another order."""

    def __init__(self, *axes: int) -> None:
        super().__init__()
        self.axes = axes

    def forward(self, x: Tensor) -> Tensor:
        return x.permute(self.axes)


def windows() -> nn.Module:
    """A hierarchical transformer of shifted windows."""
    front = nn.Sequential(nn.Conv2d(3, 8, 2, 2), Permuted(0, 2, 3, 1), nn.LayerNorm(8), Window(), Window(shift=1))
    back = nn.Sequential(Merged(8), Window(16, 4), nn.LayerNorm(16), Permuted(0, 3, 1, 2))
    return nn.Sequential(*front, *back, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 3))


class Next(nn.Module):
    """A depthwise convolution, a norm over channels, and a scale for the layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.depth, self.norm = nn.Conv2d(width, width, 7, padding=3, groups=width), nn.LayerNorm(width)
        self.feed, self.scale = Gated("none", width), nn.Parameter(torch.rand(width, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        y = self.feed(self.norm(self.depth(x).permute(0, 2, 3, 1))).permute(0, 3, 1, 2)
        keep = torch.ones(len(x), 1, 1, 1, dtype=x.dtype)  # stochastic depth, with nothing dropped
        return x + self.scale * y * keep


def convnext() -> nn.Module:
    """Two such blocks, at two resolutions."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 2, 2), Next(8), nn.Conv2d(8, 12, 2, 2), Next(12), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(12, 3),
    )  # fmt: skip


class Shuffled(nn.Module):
    """Half of the channels pass a branch; then the channels of both halves alternate."""

    def __init__(self, width: int) -> None:
        super().__init__()
        half = width // 2
        self.branch = nn.Sequential(
            nn.Conv2d(half, half, 1), nn.BatchNorm2d(half), nn.ReLU(inplace=True),
            nn.Conv2d(half, half, 3, 1, 1, groups=half), nn.BatchNorm2d(half), nn.Conv2d(half, half, 1),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        one, other = x.chunk(2, dim=1)
        x = torch.cat((one, self.branch(other)), dim=1)
        n, width, height, across = x.size()
        return x.view(n, 2, width // 2, height, across).transpose(1, 2).contiguous().view(n, width, height, across)


def shufflenet() -> nn.Module:
    """Two such blocks."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3), Shuffled(16), Shuffled(16), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 3)
    )


class Inverted(nn.Module):
    """An inverted bottleneck with squeeze and excitation, added to its input in place."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.wide, self.depth = nn.Conv2d(width, hidden, 1), nn.Conv2d(hidden, hidden, 3, 1, 1, groups=hidden)
        self.norm, self.narrow = nn.BatchNorm2d(hidden), nn.Conv2d(hidden, width, 1)
        self.squeeze, self.excite = nn.Conv2d(hidden, 2, 1), nn.Conv2d(2, hidden, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = F.silu(self.norm(self.depth(F.silu(self.wide(x), inplace=True))), inplace=True)
        y = y * torch.sigmoid(self.excite(F.silu(self.squeeze(F.adaptive_avg_pool2d(y, 1)))))
        y = self.narrow(y)
        y += x
        return y


def efficientnet() -> nn.Module:
    """Two such blocks."""
    return nn.Sequential(
        nn.Conv2d(3, 6, 3), Inverted(6, 10), Inverted(6, 8), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 3)
    )


class Reads(nn.Module):
    """Embedded words, a recurrent layer, and scores of the mean of its states or of the last one."""

    def __init__(self, kind: type[nn.RNNBase], last: bool = False, **settings: Any) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 6)
        self.layer = kind(6, 7, batch_first=True, **settings)
        self.head, self.last = nn.Linear(7 * (1 + self.layer.bidirectional), 3), last

    def forward(self, tokens: Tensor) -> Tensor:
        states, end = self.layer(self.words(tokens))
        end = end[0] if isinstance(end, tuple) else end
        return self.head(end[-1] if self.last else states.mean(1))


class Begun(nn.Module):
    """Recurrent layers whose first states are zeros that the code makes, or learnt."""

    def __init__(self, learnt: bool) -> None:
        super().__init__()
        self.words, self.layer = nn.Embedding(WORDS, 6), nn.LSTM(6, 7, num_layers=2)
        self.second = nn.GRU(7, 5)
        self.first = nn.Parameter(torch.randn(2, 1, 7)) if learnt else None
        self.last = nn.Linear(5, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens).transpose(0, 1)
        zeros = torch.zeros(2, len(tokens), 7, dtype=x.dtype)
        states, _ = self.layer(x, (zeros if self.first is None else self.first.expand(-1, len(tokens), -1), zeros))
        states, _ = self.second(states, torch.zeros(1, len(tokens), 5, dtype=x.dtype))
        return self.last(states[-1])


class Packed(nn.Module):
    """Texts of several lengths, packed."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.layer, self.head = nn.Embedding(WORDS, 6), nn.LSTM(6, 7), nn.Linear(7, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        lengths = torch.arange(len(tokens), 0, -1)
        packed = nn.utils.rnn.pack_padded_sequence(self.words(tokens), lengths, batch_first=True)
        states, _ = nn.utils.rnn.pad_packed_sequence(self.layer(packed)[0], batch_first=True)
        return self.head(states.sum(1))


class Cells(nn.Module):
    """A loop over a cell, from zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.LSTMCell(5, 7), nn.Linear(7, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = c = torch.zeros(len(x), 7, dtype=x.dtype)
        for place in range(x.shape[1]):
            h, c = self.cell(x[:, place], (h, c))
        return self.head(h)


class Steps(nn.Module):
    """Recurrent cells, called once a step."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.LSTMCell(5, 7), nn.GRUCell(7, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        state, other = None, None
        for step in x.unbind(1):
            state = self.first(step, state)
            other = self.second(state[0], other)
        return self.head(other)


IMAGES = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
TEXTS = torch.randint(0, WORDS, (3, PLACES), generator=torch.Generator().manual_seed(0))
NETS: dict[str, tuple[Any, Tensor]] = {
    "encoder": (Torchs, TEXTS),
    "encoder, norm first": (lambda: Torchs(norm_first=True, activation="gelu"), TEXTS),
    "decoder": (lambda: Torchs(memory=True), TEXTS),
    "patches": (Patches, IMAGES),
    "windows": (windows, IMAGES),
    "convnext": (convnext, IMAGES),
    "shufflenet": (shufflenet, IMAGES),
    "efficientnet": (efficientnet, IMAGES),
    "lstm": (lambda: Reads(nn.LSTM), TEXTS),
    "lstm of two layers": (lambda: Reads(nn.LSTM, num_layers=2), TEXTS),
    "lstm both ways, last": (lambda: Reads(nn.LSTM, num_layers=2, bidirectional=True), TEXTS),
    "gru of two layers, last": (lambda: Reads(nn.GRU, last=True, num_layers=2), TEXTS),
    "rnn": (lambda: Reads(nn.RNN, nonlinearity="relu", bias=False), TEXTS),
    "zeros to begin with": (lambda: Begun(learnt=False), TEXTS),
    "a learnt beginning": (lambda: Begun(learnt=True), TEXTS),
    "packed": (Packed, TEXTS),
    "a cell from zeros": (Cells, torch.randn(2, 4, 5, generator=torch.Generator().manual_seed(0))),
    "cells": (Steps, torch.randn(2, 4, 5, generator=torch.Generator().manual_seed(0))),
}
NORMS = {"layer": nn.LayerNorm, "rms": nn.RMSNorm, "by hand": Norm}
STYLES = ("reshape", "unbind", "chunk", "split", "einsum", "expand", "interleave", "argument")


def decoder(style: str, norm: str, gate: str, tied: bool) -> nn.Module:
    """A decoder whose parts are written in these ways."""
    attention = ByHand(style) if style in STYLES[:5] else Grouped(style)
    return Decoder(attention, NORMS[norm], gate, tied)


@st.composite
def decoders(draw: st.DrawFn) -> nn.Module:
    """A decoder written in any way."""
    torch.manual_seed(draw(st.integers(0, 99)))
    return decoder(
        draw(st.sampled_from(STYLES)), draw(st.sampled_from(tuple(NORMS))),
        draw(st.sampled_from(("none", "two", "chunk", "glu"))), draw(st.booleans()),
    )  # fmt: skip


@st.composite
def readers(draw: st.DrawFn) -> nn.Module:
    """A recurrent network."""
    torch.manual_seed(draw(st.integers(0, 99)))
    return Reads(
        draw(st.sampled_from((nn.LSTM, nn.GRU, nn.RNN))), False,
        num_layers=draw(st.integers(1, 2)), bidirectional=draw(st.booleans()), bias=draw(st.booleans()),
    )  # fmt: skip
