"""Models of Hugging Face as networks of token ids."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn

from fedloom import BadModel, Reader


class Answer(NamedTuple):
    """What a model answers with."""

    logits: Tensor


class Bag(nn.Module):
    """A model with the signature of an encoder: the mean of the words that its mask shows."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.out = nn.Embedding(20, 4), nn.Linear(4, 3)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Answer:
        """Scores."""
        there = torch.ones_like(input_ids) if attention_mask is None else attention_mask[:, 0, 0]
        words = self.words(input_ids) * there[..., None].to(self.words.weight.dtype)
        return Answer(self.out(words.sum(1) / there.sum(1, keepdim=True)))


def test_padding_is_hidden_from_encoders_alone() -> None:
    ids = torch.tensor([[5, 6, 0, 0], [7, 0, 0, 0]])
    model = Bag()
    assert torch.allclose(Reader(model)(ids)[:1], Reader(model)(torch.tensor([[5, 6]])))
    assert not torch.allclose(Reader(model, encoder=False)(ids)[:1], Reader(model)(torch.tensor([[5, 6]])))
    assert torch.allclose(Reader(model, padding=6)(torch.tensor([[5, 6]])), Reader(model)(torch.tensor([[5, 0]])))


def test_scores_of_half_precision_become_float32() -> None:
    assert Reader(Bag().to(torch.bfloat16))(torch.tensor([[5, 6]])).dtype == torch.float32


def test_a_model_without_a_head_is_named() -> None:
    class Headless(nn.Module):
        def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
            return input_ids.float()

    with pytest.raises(BadModel, match="Headless answers with Tensor, which has no logits"):
        Reader(Headless())(torch.tensor([[5, 6]]))
