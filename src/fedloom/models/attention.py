"""Networks of attention: a vision transformer for images, and a transformer for texts."""

from collections import OrderedDict

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedloom.errors import BadExperiment
from fedloom.models.dense import check_whole, check_width


class Attention(nn.Module):
    """Every place looks at all others, in several heads."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.size = width // heads  # numbers of one head; how many heads there are follows from the layers
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width, bias=False)  # it would add the same to all scores of a place
        self.value = nn.Linear(width, width)
        self.output = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """[n, places, width] to [n, places, width]."""
        layers = (self.query, self.key, self.value)
        q, k, v = (layer(x).unflatten(2, (-1, self.size)).transpose(1, 2) for layer in layers)
        seen = F.scaled_dot_product_attention(q, k, v)  # [n, heads, places, size]
        mixed: Tensor = self.output(seen.transpose(1, 2).flatten(2))
        return mixed


class Block(nn.Module):
    """Attention and a feed-forward layer, each after a norm and added to its input."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.wide = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """[n, places, width] to [n, places, width]."""
        x = x + self.attention(self.norm1(x))
        wide: Tensor = self.narrow(F.gelu(self.wide(self.norm2(x))))
        return x + wide


class ViT(nn.Module):
    """A vision transformer: patches with a learnt position each, blocks, the mean over the patches, the output layer.

    Images whose sides are no multiples of the patch get zeros on the right and at the bottom.
    """

    def __init__(self, shape: tuple[int, ...], classes: int, width: int, depth: int, heads: int, patch: int) -> None:
        super().__init__()
        channels, height, across = shape
        self.pad = nn.ZeroPad2d((0, -across % patch, 0, -height % patch))
        self.patches = nn.Conv2d(channels, width, patch, stride=patch)
        places = -(-height // patch) * -(-across // patch)
        self.position = nn.Parameter(nn.init.normal_(torch.empty(places, width), std=0.02))
        self.blocks = nn.Sequential(OrderedDict((f"block{i}", Block(width, heads)) for i in range(1, depth + 1)))
        self.norm = nn.LayerNorm(width)
        self.output = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Scores [n, classes] of images [n, channels, h, w]."""
        x = self.patches(self.pad(x)).flatten(2).transpose(1, 2) + self.position  # [n, patches, width]
        scores: Tensor = self.output(self.norm(self.blocks(x)).mean(1))
        return scores


def vit(
    shape: tuple[int, ...],
    classes: int,
    vocabulary: int = 0,
    *,
    width: int = 64,
    depth: int = 6,
    heads: int = 4,
    patch: int = 4,
) -> nn.Module:
    """A vision transformer of `depth` blocks, `width` wide, that sees squares of `patch` pixels a side."""
    check_heads(width, heads)
    return ViT(shape, classes, width, check_whole("depth", depth), heads, check_whole("patch", patch))


class Transformer(nn.Module):
    """`nn.TransformerEncoder` over the embedded tokens, which have a learnt position each; token 0 is padding."""

    def __init__(
        self, length: int, vocabulary: int, classes: int, width: int, depth: int, heads: int, places: bool
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.position = nn.Parameter(nn.init.normal_(torch.empty(length, width), std=0.02))
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, depth, nn.LayerNorm(width), enable_nested_tensor=False)
        self.output = nn.Linear(width, classes)
        self.places = places
        later = torch.ones(length, length, dtype=torch.bool).triu(1)  # [place, places that it does not see]
        self.register_buffer("later", later if places else None, persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Scores of tokens [n, length]: [n, classes], or [n, length, classes] where every place has its own."""
        x = self.embedding(tokens) + self.position
        if self.places:  # padding at the end of a text is later than all words
            scores: Tensor = self.output(self.encoder(x, mask=self.later))
            return scores
        real = tokens != 0
        hidden = ~real & real.any(1, keepdim=True)  # an empty text hides nothing: somebody must be looked at
        x = self.encoder(x, src_key_padding_mask=hidden)
        real = real.unsqueeze(2)
        mean = (x * real).sum(1) / real.sum(1).clamp(min=1)  # [n, width]
        scores = self.output(mean)
        return scores


def transformer(
    shape: tuple[int, ...],
    classes: int,
    vocabulary: int = 0,
    *,
    width: int = 64,
    depth: int = 2,
    heads: int = 4,
    places: bool = False,
) -> nn.Module:
    """A transformer of `depth` blocks, `width` wide; `places`: scores at every place, which sees no later one."""
    check_heads(width, heads)
    return Transformer(shape[0], vocabulary, classes, width, check_whole("depth", depth), heads, bool(places))


def check_heads(width: int, heads: int) -> None:
    """Refuse heads that do not share the width equally."""
    if check_width("width", width) % check_whole("heads", heads):
        raise BadExperiment(f"width must be a multiple of heads; got width {width} and {heads} heads")
