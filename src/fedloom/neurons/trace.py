"""Derive a model's neurons: one example and its neuron ids walk through the network's graph together."""

from operator import methodcaller
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.node import map_aggregate, map_arg

from fedloom.errors import BadModel
from fedloom.layout import Layout, base_of, copied, layout_of
from fedloom.neurons.assemble import assemble
from fedloom.neurons.ids import Spread, plain
from fedloom.neurons.map import NeuronMap
from fedloom.neurons.rules import FUNCTIONS, LAYERS, Rule
from fedloom.neurons.wiring import Call, Wiring


class Tracer(fx.Tracer):
    """Traces a model, with every layer that has a rule as one step."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Whether the layer is one step of the graph."""
        return type(m) in LAYERS or super().is_leaf_module(m, module_qualified_name)


def neuron_map(model: nn.Module, example: Tensor | tuple[Any, ...], layout: Layout | None = None) -> NeuronMap:
    """Derive the neurons of a model from its code and one example input (a batch; several inputs as a tuple).

    Neurons with frozen numbers are never cut. `layout`: the layout of the flat vector, if it is not `layout_of(model)`.
    """
    layout = layout_of(model) if layout is None else layout
    refuse_tied(model)
    inputs = example if isinstance(example, tuple) else (example,)
    twin = copied(model).eval()  # the walk runs the model, whose statistics must not change
    wiring = Wiring()
    outputs = walk(twin, graph_of(twin), inputs, wiring)
    if not outputs or any(ids.dim() < 2 or not len(ids) for ids in outputs):
        shapes = [tuple(ids.shape) for ids in outputs]
        raise BadModel(f"the model must give tensors [batch, classes, ...] for the example; got shapes {shapes}.")
    return assemble(layout, wiring, outputs, base_of(model, layout))


def graph_of(model: nn.Module) -> fx.Graph:
    """The model's forward pass as a graph; a model that is one layer gives one step."""
    if type(model) in LAYERS:
        graph = fx.Graph()
        graph.output(graph.call_module("", (graph.placeholder("x"),)))
        return graph
    try:
        return Tracer().trace(model)
    except Exception as error:  # tracing runs user code, which may raise anything
        raise BadModel(
            f"{type(model).__name__} cannot be traced by torch.fx: {error}. Its forward must not branch or loop on the "
            "values or shapes of tensors; move such code into a layer and give that a rule in neurons/rules.py."
        ) from error


def walk(model: nn.Module, graph: fx.Graph, inputs: tuple[Any, ...], wiring: Wiring) -> list[Tensor]:
    """Run the graph on the example and on neuron ids; return the ids of the model's outputs."""
    real: dict[fx.Node, Any] = {}
    ids: dict[fx.Node, Any] = {}
    places = [node for node in graph.nodes if node.op == "placeholder"]
    if not sum(not node.args for node in places) <= len(inputs) <= len(places):
        names = ", ".join(str(node.target) for node in places)
        raise BadModel(f"example must give the model's inputs ({names}); got {len(inputs)} of them.")
    given = iter(inputs)
    for node in graph.nodes:
        if node.op == "output":
            return tensors_in(map_arg(node.args, ids.__getitem__))
        if node.op == "placeholder":
            real[node] = next(given, *node.args)  # the node holds a default
        elif node.op == "get_attr":
            real[node] = attribute(model, node.target)
        else:
            real[node] = run(node, model, map_arg(node.args, real.get), map_arg(node.kwargs, real.get))
        ids[node] = map_aggregate(real[node], lambda x: plain(x.shape) if isinstance(x, Tensor) else x)
        if node.op.startswith("call"):
            ids[node] = follow(node, model, wiring, ids, ids[node])
    raise AssertionError("a graph ends with its output")


def run(node: fx.Node, model: nn.Module, args: Any, kwargs: Any) -> Any:
    """Run a step on the example."""
    try:
        with torch.no_grad():
            return action(node, model)(*args, **kwargs)
    except Exception as error:  # user code may raise anything
        raise BadModel(f"the model fails on the example at {where(node, model)}: {error}") from error


def follow(node: fx.Node, model: nn.Module, wiring: Wiring, ids: dict[fx.Node, Any], result: Any) -> Any:
    """Neuron ids of a step's result, by its rule; `result` gives the shapes."""
    args, kwargs = map_arg(node.args, ids.__getitem__), map_arg(node.kwargs, ids.__getitem__)
    layer = model.get_submodule(str(node.target)) if node.op == "call_module" else None
    shapes = [x.shape for x in tensors_in(result)]
    trained = layer is not None and next(layer.parameters(), None) is not None
    if not shapes or not (trained or any(bool(x.any()) for x in tensors_in((args, kwargs)))):
        return result  # a number, or made of operands without neurons: needs no rule
    kwargs = {"dim" if name == "axis" else name: value for name, value in kwargs.items()}
    call = Call(
        wiring=wiring,
        name=str(node.target) if layer is not None else node.name,
        layer=layer,
        kind=node.target if layer is None else type(layer),
        run=action(node, model),
        args=args,
        kwargs=kwargs,
        written=(*node.args, *node.kwargs.values()),
        shape=shapes[0],
    )
    rule = rule_for(call, node, model)
    try:
        found = rule(call)
    except Spread as error:
        raise BadModel(f"{where(node, model)} cannot be cut into neurons: {error}.") from error
    except (RuntimeError, LookupError, TypeError, ValueError) as error:
        raise BadModel(f"{where(node, model)} is used in a way its rule does not know: {error}.") from error
    if [x.shape for x in tensors_in(found)] != shapes:
        raise BadModel(f"{where(node, model)} gives shapes {[*map(tuple, shapes)]}, which its rule did not expect.")
    return found


def rule_for(call: Call, node: fx.Node, model: nn.Module) -> Rule:
    """The rule of a layer type, function or method."""
    rule = FUNCTIONS.get(call.kind) if call.layer is None else LAYERS.get(call.kind)
    if rule is None:
        table = "FUNCTIONS" if call.layer is None else "LAYERS"
        raise BadModel(
            f"{where(node, model)} has no rule, so its neurons are unknown. Build it from layers that have one, or add "
            f"a rule to {table} in neurons/rules.py."
        )
    return rule


def action(node: fx.Node, model: nn.Module) -> Any:
    """The callable of a step."""
    if node.op == "call_module":
        return model.get_submodule(str(node.target))
    if node.op == "call_method":
        return lambda self, *args, **kwargs: methodcaller(str(node.target), *args, **kwargs)(self)
    return node.target


def where(node: fx.Node, model: nn.Module) -> str:
    """A step in words: its name, its kind, and the layer whose code contains it."""
    if node.op == "call_module":
        return f"layer '{node.target}' of type {type(model.get_submodule(str(node.target))).__name__}"
    kind = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))
    stack = [name for name, _ in (node.meta.get("nn_module_stack") or {}).values()]
    inside = f" in layer '{stack[-1]}'" if stack and stack[-1] else ""
    return f"step '{node.name}' ({'method' if node.op == 'call_method' else 'function'} {kind}){inside}"


def attribute(model: nn.Module, path: Any) -> Any:
    """A tensor that the forward pass uses by name."""
    owner, _, name = str(path).rpartition(".")
    return getattr(model.get_submodule(owner), name)


def tensors_in(value: Any) -> list[Tensor]:
    """The tensors of a nested value, in order."""
    found: list[Tensor] = []
    map_aggregate(value, lambda x: found.append(x) if isinstance(x, Tensor) else None)
    return found


def refuse_tied(model: nn.Module) -> None:
    """Refuse a tensor shared by two layers: they would need one list of neurons, for which there is no rule."""
    owners: dict[int, str] = {}
    for layer, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            path = f"{layer}.{name}".lstrip(".")
            if owners.setdefault(id(parameter), path) != path:
                raise BadModel(
                    f"'{owners[id(parameter)]}' and '{path}' are one tensor shared by two layers, which cannot be cut; "
                    "give each layer its own, or call the same layer twice."
                )
