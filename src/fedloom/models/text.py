"""Networks with an answer at every place of a text, such as the next character."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedloom.models.dense import check_whole, check_width

KERNEL = 3  # places that a convolution looks at
MOST_LAYERS = 8  # the last of so many convolutions looks 256 places back


class CharConv(nn.Module):
    """Causal convolutions over the embedded tokens, each added to its input; their distances double per layer."""

    def __init__(self, vocabulary: int, width: int, layers: int, classes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.convs = nn.ModuleList(nn.Conv1d(width, width, KERNEL, dilation=2**i) for i in range(layers))
        self.output = nn.Conv1d(width, classes, 1)

    def forward(self, tokens: Tensor) -> Tensor:
        """Scores [n, length, classes] of tokens [n, length]; a place's scores depend on no later place."""
        x = self.embedding(tokens).transpose(1, 2).contiguous()  # [n, width, length]; other strides take twice as long
        for number, conv in enumerate(self.convs):
            before = F.pad(x, ((KERNEL - 1) * 2**number, 0))  # zeros before the first place
            x = x + torch.relu(conv(before))
        scores: Tensor = self.output(x)
        return scores.transpose(1, 2)


def char_conv(
    shape: tuple[int, ...], classes: int, vocabulary: int = 0, *, width: int = 64, layers: int = 3
) -> nn.Module:
    """Causal dilated convolutions; the last place looks back over 2 * (2^layers - 1) places."""
    return CharConv(vocabulary, check_width("width", width), check_whole("layers", layers, MOST_LAYERS), classes)


class CharGru(nn.Module):
    """Gated recurrent units over the embedded tokens."""

    def __init__(self, vocabulary: int, width: int, layers: int, classes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.gru = nn.GRU(width, width, num_layers=layers, batch_first=True)
        self.output = nn.Linear(width, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """Scores [n, length, classes] of tokens [n, length]."""
        states, _ = self.gru(self.embedding(tokens))  # [n, length, width]
        scores: Tensor = self.output(states)
        return scores


def char_gru(
    shape: tuple[int, ...], classes: int, vocabulary: int = 0, *, width: int = 64, layers: int = 1
) -> nn.Module:
    """One or two layers of gated recurrent units."""
    return CharGru(vocabulary, check_width("width", width), check_whole("layers", layers, 2), classes)
