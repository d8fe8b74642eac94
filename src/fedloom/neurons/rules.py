"""The table of rules, by the names of torch's functions and methods, and `neuron_rule`, which adds one."""

from collections.abc import Callable
from typing import Any

from torch import nn

from fedloom.errors import BadModel, unknown
from fedloom.neurons import attention, einsum, elementwise, norms, products, recurrent, reshapes
from fedloom.neurons.calls import Rule


def sized(names: str) -> str:
    """These names with 1d, 2d and 3d appended."""
    return " ".join(f"{name}{size}d" for name in names.split() for size in (1, 2, 3))


ACTIVATIONS = "relu relu6 leaky_relu elu selu celu gelu silu mish hardtanh hardsigmoid hardswish softplus sigmoid tanh"
SOFTER = "softsign softshrink hardshrink tanhshrink logsigmoid log_sigmoid rrelu threshold erf erfc exp expm1 log log1p"
ROOTS = "sqrt rsqrt square abs absolute neg negative sign reciprocal sin cos nan_to_num round floor ceil trunc"
DROPS = f"dropout alpha_dropout feature_dropout feature_alpha_dropout {sized('dropout')}"
PAIRS = "add sub subtract rsub mul multiply div divide true_divide floor_divide pow rpow rdiv maximum minimum lerp"
MORE = "remainder fmod atan2 addcmul addcdiv eq ne lt le gt ge logical_and logical_or logical_not bitwise_not"
CASTS = "contiguous to float double half bfloat16 bool long int cpu cuda type type_as clone detach alias data real"
LIKES = "zeros_like ones_like full_like rand_like randn_like empty_like expand_as zero fill clamp clamp_min clamp_max"
POOLS = sized("max_pool avg_pool adaptive_max_pool adaptive_avg_pool lp_pool")
SHAPES = "flatten permute transpose swapaxes swapdims movedim moveaxis squeeze unsqueeze t adjoint T mT H mH"

RULES: dict[str, Rule] = {
    name: rule
    for rule, names in (
        (elementwise.elementwise, f"{ACTIVATIONS} {SOFTER} {ROOTS} {DROPS} {PAIRS} {MORE} {LIKES}"),
        (elementwise.same, CASTS),
        (elementwise.blank, "new_zeros new_ones new_empty new_full new_tensor empty_strided"),
        (elementwise.chosen, "where masked_fill copy"),
        (elementwise.softmax, "softmax log_softmax softmin"),
        (elementwise.normalised, "normalize"),
        (elementwise.reduction, "mean sum nansum amax amin max min var std prod logsumexp any all"),
        (elementwise.reduction, "var_mean std_mean norm vector_norm linalg_vector_norm median"),
        (elementwise.following, f"{POOLS} {POOLS.replace('_pool', '_pool_with_indices')} interpolate upsample"),
        (elementwise.padding, "pad"),
        (elementwise.prelu, "prelu"),
        (elementwise.halves, "glu"),
        (elementwise.ordered, "cumsum cumprod sort logcumsumexp"),
        (reshapes.reshaping, f"{SHAPES} tile repeat repeat_interleave"),
        (reshapes.folding, "reshape reshape_as view_as expand broadcast_to unflatten"),
        (reshapes.folding, "split split_with_sizes chunk tensor_split"),
        (reshapes.casting, "view"),
        (reshapes.taking, "getitem select narrow unbind index_select gather take_along_dim roll flip"),
        (reshapes.writing, "setitem"),
        (reshapes.joining, "cat concat concatenate"),
        (reshapes.stacking, "stack"),
        (reshapes.shuffling, "channel_shuffle native_channel_shuffle"),
        (products.linear, "linear"),
        (products.added, "addmm"),
        (products.convolution, f"{sized('conv')} {sized('conv_transpose')}"),
        (products.embedding, "embedding embedding_bag"),
        (products.matrices, "matmul mm bmm"),
        (products.batches_added, "baddbmm"),
        (einsum.einsum, "einsum"),
        (norms.channel_norm, "batch_norm instance_norm"),
        (norms.group_norm, "group_norm"),
        (norms.layer_norm, "layer_norm rms_norm"),
        (attention.dot_product, "scaled_dot_product_attention"),
        (attention.multi_head, "multi_head_attention_forward"),
        (recurrent.layers, "lstm gru rnn_tanh rnn_relu"),
        (recurrent.packed, "pack_padded_sequence pad_packed_sequence"),
        (recurrent.cell, "lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell"),
    )
    for name in names.split()
}

OWN: dict[Any, Rule] = {}  # rules that were added, by function or by the type of a layer


def neuron_rule(kind: Any, rule: Rule | None = None, *, like: str = "") -> Callable[[Rule], Rule]:
    """Say what a function or a type of layer does to neurons, so that networks with it can be cut there.

    Without a rule the layers around an unknown function are kept whole. `@neuron_rule(MyLayer)` over a function makes
    that the rule; where every entry of the answer belongs to the neuron of the input's entry at its place, all it does
    is `return call.ids(call.args[0])`.

    Args:
        kind: a function that PyTorch overrides (`torch.fft.fft`, an operator of your own in `torch.ops`), or the class
            of a layer, whose own code is then not looked at.
        rule: takes a `Call` and returns the ids of the answer. None to use this as a decorator.
        like: in place of a rule, the name of a function of PyTorch that treats neurons the same, such as "relu" where
            every entry depends on one entry of the input, or "mean".
    """
    if not callable(kind):
        raise BadModel(f"neuron_rule needs a function or the class of a layer; got {kind!r}.")
    if like:
        if like not in RULES:
            raise BadModel(unknown("function with a rule", like, RULES))
        rule = RULES[like]

    def add(rule: Rule) -> Rule:
        OWN[kind] = rule
        return rule

    if rule is not None:
        add(rule)
    return add


def own_layer(module: nn.Module) -> Rule | None:
    """The rule that was added for a layer of this type."""
    return OWN.get(type(module))


def plain_name(function: Any) -> str:
    """The name of a function or method, without what marks it as in place, private, reflected or an attribute."""
    name: str = getattr(function, "__name__", "") or str(function)
    if name in ("__get__", "__set__"):
        name = function.__self__.__name__
    name = name.strip("_")
    if name.startswith("r") and name[1:] in ("sub", "add", "mul", "pow", "div", "truediv", "matmul"):
        name = name[1:]
    if name.startswith("i") and name[1:] in ("add", "sub", "mul", "truediv", "pow"):
        name = name[1:]
    return {"truediv": "div", "floordiv": "floor_divide"}.get(name, name)


def rule_for(function: Any, name: str) -> Rule | None:
    """The rule of a function."""
    own = OWN.get(function) or OWN.get(getattr(function, "overloadpacket", None))
    return own or RULES.get(name)
