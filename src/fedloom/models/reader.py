"""`Reader`, a model of Hugging Face as a network of one input: token ids, whose padding it hides."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fedloom.errors import BadModel

HALF = (torch.float16, torch.bfloat16)


class Reader(nn.Module):
    """Token ids in, scores out."""

    def __init__(self, model: nn.Module, padding: int = 0, encoder: bool = True) -> None:
        """Take the model as it is.

        Args:
            model: of transformers, with a head that answers with `logits`.
            padding: the token that stands for none.
            encoder: hide padding from attention. A decoder looks back only, and padding is at the end.
        """
        super().__init__()
        self.model, self.padding, self.encoder = model, padding, encoder

    def forward(self, ids: Tensor) -> Tensor:
        """Scores [B, classes], or at every place; as float32 where the model's are of half precision."""
        hidden = {"attention_mask": (ids != self.padding)[:, None, None, :]} if self.encoder else {}
        answer: Any = self.model(input_ids=ids, **hidden)
        try:
            scores: Tensor = answer.logits
        except AttributeError:
            raise BadModel(
                f"{type(self.model).__name__} answers with {type(answer).__name__}, which has no logits; take a model "
                "with a head, as AutoModelForSequenceClassification makes it."
            ) from None
        return scores.float() if scores.dtype in HALF else scores
