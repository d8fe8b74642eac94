"""Recurrent networks for texts and signals: LSTM and GRU, with scores for the whole or at every place."""

from torch import Tensor, nn

from fedloom.models.dense import check_whole, check_width

LAYERS: dict[str, type[nn.LSTM | nn.GRU]] = {"lstm": nn.LSTM, "gru": nn.GRU}


class Recurrent(nn.Module):
    """Recurrent layers over embedded tokens, of which 0 is padding, or over the places of a signal."""

    def __init__(
        self, kind: str, shape: tuple[int, ...], vocabulary: int, classes: int, width: int, layers: int, places: bool
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width) if vocabulary else None
        inputs = width if vocabulary else shape[0]
        self.layers = LAYERS[kind](inputs, width, num_layers=layers, batch_first=True)
        self.output = nn.Linear(width, classes)
        self.places = places

    def forward(self, x: Tensor) -> Tensor:
        """Scores of tokens [n, length] or a signal [n, channels, length]: [n, classes], or [n, length, classes]."""
        steps = x.transpose(1, 2) if self.embedding is None else self.embedding(x)
        states, _ = self.layers(steps)  # [n, length, width]
        if not self.places and self.embedding is None:
            states = states.mean(1)
        elif not self.places:
            real = (x != 0).unsqueeze(2)
            states = (states * real).sum(1) / real.sum(1).clamp(min=1)  # the mean of an empty text is the zero vector
        scores: Tensor = self.output(states)
        return scores


def lstm(
    shape: tuple[int, ...],
    classes: int,
    vocabulary: int = 0,
    *,
    width: int = 64,
    layers: int = 1,
    places: bool = False,
) -> nn.Module:
    """Long short-term memory; the mean of its states is scored, or with `places` the state at every place."""
    width, layers = check_width("width", width), check_whole("layers", layers)
    return Recurrent("lstm", shape, vocabulary, classes, width, layers, bool(places))


def gru(
    shape: tuple[int, ...],
    classes: int,
    vocabulary: int = 0,
    *,
    width: int = 64,
    layers: int = 1,
    places: bool = False,
) -> nn.Module:
    """Gated recurrent units; the mean of their states is scored, or with `places` the state at every place."""
    width, layers = check_width("width", width), check_whole("layers", layers)
    return Recurrent("gru", shape, vocabulary, classes, width, layers, bool(places))
