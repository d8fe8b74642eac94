"""`multi_head_attention_forward` with as many heads as its weights have."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fedloom.errors import BadModel


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    training: bool = True,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Tensor | None = None,
    k_proj_weight: Tensor | None = None,
    v_proj_weight: Tensor | None = None,
    static_k: Tensor | None = None,
    static_v: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """The arguments of torch's function; width and heads of the whole layer say how large a head is.

    The heads that were kept are counted from the weights. The attention weights returned are those of kept heads.
    """
    if bias_k is not None or bias_v is not None or add_zero_attn or static_k is not None or static_v is not None:
        raise BadModel("attention with bias_k, bias_v, zeros or static keys added has no form with fewer heads.")
    if query.dim() == 2:  # one example
        padding = None if key_padding_mask is None else key_padding_mask[None]
        x = query[:, None]
        pair = (x, x) if query is key and key is value else (key[:, None], value[:, None])
        out, seen = attention(
            x, *pair, embed_dim_to_check, num_heads, in_proj_weight, in_proj_bias,
            None, None, False, dropout_p, out_proj_weight, out_proj_bias, training, padding,
            need_weights, attn_mask, use_separate_proj_weight, q_proj_weight, k_proj_weight, v_proj_weight,
            average_attn_weights=average_attn_weights,
        )  # fmt: skip
        return out[:, 0], None if seen is None else seen[0]
    size = embed_dim_to_check // num_heads
    if in_proj_weight is not None and not use_separate_proj_weight and query is key and key is value:
        three = F.linear(query, in_proj_weight, in_proj_bias).chunk(3, 2)
    else:
        separate = (q_proj_weight, k_proj_weight, v_proj_weight)
        weights = separate if in_proj_weight is None or use_separate_proj_weight else in_proj_weight.chunk(3)
        biases = (None, None, None) if in_proj_bias is None else in_proj_bias.chunk(3)
        three = tuple(F.linear(x, w, b) for x, w, b in zip((query, key, value), weights, biases))  # type: ignore[arg-type]
    q, k, v = (x.unflatten(2, (-1, size)).permute(1, 2, 0, 3) for x in three)  # [n, heads, places, size]
    mask = _added(attn_mask, q.dtype)
    if mask is not None and mask.dim() == 3:
        if len(mask) != q.shape[0] * q.shape[1]:
            raise BadModel("attention with a mask for every head cannot be cut; give one mask for all heads.")
        mask = mask.unflatten(0, q.shape[:2])
    padding = _added(key_padding_mask, q.dtype)
    if padding is not None:
        padding = padding[:, None, None, :]
        mask = padding if mask is None else mask + padding
    dropout = dropout_p if training else 0.0
    seen = None
    if need_weights:
        scores = q @ k.transpose(2, 3) * size**-0.5
        seen = (scores if mask is None else scores + mask).softmax(3)
        seen = F.dropout(seen, dropout) if dropout else seen
        mixed = seen @ v
        seen = seen.mean(1) if average_attn_weights else seen
    else:
        mixed = F.scaled_dot_product_attention(q, k, v, mask, dropout)
    return F.linear(mixed.permute(2, 0, 1, 3).flatten(2), out_proj_weight, out_proj_bias), seen


def _added(mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """A mask as numbers that are added to the scores: where a bool is true, nothing is seen."""
    if mask is None or mask.dtype != torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=dtype).masked_fill(mask, float("-inf"))
