"""Rules of attention: a head is one neuron, over what it reads and what it gives."""

from math import prod
from typing import Any

from torch import Tensor

from fedloom.neurons.calls import Call
from fedloom.neurons.elementwise import raised, stands
from fedloom.neurons.ids import Spread, emitted, loose, moving, plain, settled, small, spread
from fedloom.neurons.products import mark_heads


def dot_product(call: Call) -> Tensor:
    """`scaled_dot_product_attention`: everything of one head is one neuron, over queries, keys and values."""
    tensors = [call.argument(place, name) for place, name in enumerate(("query", "key", "value"))]
    mask, rank, heads = call.argument(3, "attn_mask"), tensors[0].dim(), None
    lead = list(range(rank - 2))
    for tensor in tensors:
        ids = call.ids(tensor)
        if loose(ids):
            raise Spread("it looks at a bare parameter")
        if not emitted(ids):
            continue
        one = call.wiring.merge(ids, [axis for axis in moving(ids) if axis not in lead])[..., :1, :1]
        if rank > 2 and one.shape[-3] != tensors[0].shape[-3]:  # heads of keys, each with several of queries
            one = one.repeat_interleave(tensors[0].shape[-3] // one.shape[-3], -3)
        if heads is not None:
            call.wiring.unite(heads, one)
        heads = settled(one) if heads is None or len(moving(one)) > len(moving(heads)) else heads
    assert heads is not None
    for tensor in tensors:
        if not emitted(call.ids(tensor)):
            stands(call, tensor, heads, lead)
    if isinstance(mask, Tensor):
        ids = raised(call.ids(mask), rank)
        if loose(ids):
            call.wiring.meets.append((small(ids), small(heads)))
        elif emitted(ids):
            call.wiring.unite(ids, heads)
        else:
            stands(call, mask, heads, lead)
    entries = small(heads).flatten()
    places = tensors[0].shape[-2] * tensors[1].shape[-2]
    flops = 2 * prod(tensors[0].shape[:-2]) * places * (tensors[0].shape[-1] + tensors[2].shape[-1])
    call.product(entries, flops)
    mark_heads(call, entries)
    return heads.expand(call.shape)


NAMES = (
    "query", "key", "value", "embed_dim_to_check", "num_heads", "in_proj_weight", "in_proj_bias", "bias_k", "bias_v",
    "add_zero_attn", "dropout_p", "out_proj_weight", "out_proj_bias", "training", "key_padding_mask", "need_weights",
    "attn_mask", "use_separate_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight",
)  # fmt: skip


def multi_head(call: Call) -> list[Tensor]:
    """`multi_head_attention_forward`, the whole layer: heads, and the neurons of its output."""
    given: dict[str, Any] = {name: call.argument(place, name) for place, name in enumerate(NAMES)}
    mask = given["attn_mask"]
    if given["bias_k"] is not None or given["add_zero_attn"]:
        raise Spread("it adds a key of its own")
    if mask is not None and mask.dim() == 3:
        raise Spread("its mask has an axis for the heads")
    query, key, value = given["query"], given["key"], given["value"]
    heads, width = given["num_heads"], query.shape[-1]
    packed = not given["use_separate_proj_weight"]
    first = given["in_proj_weight"] if packed else given["q_proj_weight"]
    if call.name_of(first) is None:
        raise Spread("its weight is computed, and not a parameter of the network")
    layer, module = call.layer, call.module
    units = call.wiring.open(layer or type(module).__name__.lower(), heads, "heads")
    mark_heads(call, units)
    rows = units.repeat_interleave(width // heads)
    reads = [call.reads(x, -1) for x in (query, key, value)]
    positions = [prod(x.shape[:-1]) for x in (query, key, value)]
    if packed:
        for other in reads[1:]:
            call.wiring.unite(reads[0], other)
        equal = len(set(positions)) == 1
        axes = {0: rows.repeat(3), 1: reads[0]}
        call.bind(first, axes, weight=True, positions=positions[0] if equal else sum(positions) // 3)
    else:
        for name, read, count in zip(("q_proj_weight", "k_proj_weight", "v_proj_weight"), reads, positions):
            call.bind(given[name], {0: rows, 1: read}, weight=True, positions=count)
    call.bind(given["in_proj_bias"], {0: rows.repeat(3)}, weight=True)
    weight, bias = given["out_proj_weight"], given["out_proj_bias"]
    outputs = call.open(weight.shape[0], weight)
    call.bind(weight, {0: outputs, 1: rows}, weight=True, positions=positions[0])
    call.bind(bias, {0: outputs}, weight=True)
    call.resize(call.owner(weight), "in_features", rows)
    call.resize(call.owner(weight), "out_features", outputs)
    call.resize((layer, module), "num_heads", units)
    batch = query.shape[1] if query.dim() == 3 else 1
    call.product(units, 4 * batch * query.shape[0] * key.shape[0] * width)
    answers = call.answer if isinstance(call.answer, tuple) else (call.answer,)
    rest = [plain(part.shape) for part in answers[1:] if isinstance(part, Tensor)]
    return [spread(outputs, answers[0].shape, -1), *rest]
