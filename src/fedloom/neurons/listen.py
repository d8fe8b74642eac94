"""Listening to a network: it runs its own code on an example, and the neurons of every tensor are followed."""

from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from fedloom.errors import BadModel
from fedloom.neurons.calls import Call, Rule, tensors_in
from fedloom.neurons.ids import Spread, emitted, loose, plain, settled
from fedloom.neurons.rules import own_layer, plain_name, rule_for
from fedloom.neurons.told import told_name
from fedloom.neurons.wiring import Wiring

LOOKS = frozenset(("bool", "item", "float", "int", "index", "equal", "allclose"))
LEAVES = frozenset(("numpy", "array", "tolist"))  # numbers go where nobody listens
PIECES = frozenset(("split", "split_with_sizes", "chunk", "tensor_split"))
TRANSPOSES = frozenset(("t", "T", "mT", "transpose", "swapaxes", "permute"))


class Unheard(Exception):
    """Raised where a model runs, but not while it is listened to."""


class Known(NamedTuple):
    """What is known of a tensor."""

    tensor: Tensor  # held, so that no other tensor gets its identity
    ids: Tensor
    made: Any  # the step of autograd that made it
    layer: str  # whose code made it
    deep: bool  # depends on parameters
    data: bool  # depends on the example


class Listener(TorchFunctionMode):
    """Hears every call of torch's functions in a forward pass."""

    def __init__(self, model: nn.Module, wiring: Wiring) -> None:
        super().__init__()
        self.wiring = wiring
        self.names: dict[int, str] = {}
        self.owners: dict[int, list[tuple[str, nn.Module]]] = {}
        self.transposes: dict[int, Tensor] = {}
        self.known: dict[int, Known] = {}
        self.steps: dict[Any, Tensor] = {}  # of autograd -> ids of what they made
        self.stack: list[tuple[str, nn.Module]] = [("", model)]
        self.told = 0
        self.muted = 0
        self.trail: list[str] = []  # the calls in order, to tell whether another example takes another way
        self.looks: dict[str, bool] = {}  # layer that looks at values -> whether parameters decide these
        for layer, module in model.named_modules():
            own = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
            for name, tensor in own:
                if tensor is not None:
                    self.names.setdefault(id(tensor), f"{layer}.{name}".lstrip("."))
                    self.owners.setdefault(id(tensor), []).append((layer, module))
                    self.known[id(tensor)] = Known(tensor, plain(tensor.shape), None, layer, True, False)

    @property
    def place(self) -> tuple[str, nn.Module]:
        """The layer whose code runs."""
        return self.stack[-1]

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run a function, and follow the neurons through it."""
        number = None
        if told_name(func, args) is not None:
            number = self.told
            self.told += 1
        answer = func(*args, **(kwargs or {}))
        if not self.muted:
            self.heard(func, args, kwargs or {}, answer, number)
        return answer

    def heard(self, function: Any, args: Any, kwargs: dict[str, Any], answer: Any, number: int | None) -> None:
        """Follow the neurons through a call that has run."""
        answers = tensors_in(answer)
        given = tensors_in((args, kwargs))
        name = plain_name(function)
        if not answers:
            if name in LOOKS:
                self.looked(given)
            if name in LEAVES and any(id(x) in self.known and emitted(self.known[id(x)].ids) for x in given):
                call = Call(self.wiring, self, function, name, args, kwargs, answer)
                self.keep_whole(call, given, "its numbers leave what can be listened to")
            if name != "setitem":
                return
            answers = [args[0]]
        self.trail.append(name)
        if name in TRANSPOSES and given[0].dim() == 2 and id(given[0]) in self.names:
            self.transposes[id(answers[0])] = given[0]
        call = Call(self.wiring, self, function, name, args, kwargs, answers[0] if name == "setitem" else answer)
        self.follow(call, rule_for(function, name), given, answers)
        if number is not None:
            found = tuple(self.known[id(part)].ids for part in answers)
            if any(map(emitted, found)):
                pieces = name in PIECES
                dim = call.argument(2, "dim", 0) % found[0].dim() if pieces else None
                self.wiring.told.append((number, told_name(function, args) or name, found, dim))

    def follow(self, call: Call, rule: Rule | None, given: list[Tensor], answers: list[Tensor]) -> None:
        """Find the ids of the answers by a rule; where there is none, what the call reads is kept whole."""
        own = any(id(x) in self.names and x.is_floating_point() for x in given)
        before = [self.known[id(x)] for x in given if id(x) in self.known]
        deep, data = own or any(k.deep for k in before), any(k.data for k in before)
        found = [plain(part.shape) for part in answers]
        strange = any(self.strange(x) for x in given if all(x is not part for part in answers))
        if own or strange or any(k.ids.numel() and (emitted(k.ids) or loose(k.ids)) for k in before):
            self.wiring.place = call.layer, call.name
            try:
                if rule is None:
                    raise Spread("it has no rule")
                ids = tensors_in(rule(call))
                if [x.shape for x in ids] != [x.shape for x in answers]:
                    raise Spread(f"its rule gives shapes {[tuple(x.shape) for x in ids]}")
                found = [settled(x) if x.numel() else plain(x.shape) for x in ids]
            except (Spread, RuntimeError, LookupError, TypeError, ValueError, AttributeError, AssertionError) as error:
                reason = str(error) if isinstance(error, Spread) else "it is used in a way that its rule does not know"
                self.keep_whole(call, given, reason)
        for part, own_ids in zip(answers, found):
            counts = part.is_floating_point() or part.dtype == torch.bool  # places and numbers of words have no neurons
            self.know(part, own_ids if counts else plain(part.shape), deep, data)

    def know(self, tensor: Tensor, ids: Tensor, deep: bool, data: bool) -> None:
        """Remember the ids of a tensor."""
        base = tensor._base if tensor._is_view() else None
        before = self.known.get(id(tensor))
        if base is not None and before is not None and not emitted(before.ids) and not torch.equal(before.ids, ids):
            self.wiring.fix(ids)  # written into a part of another tensor
        if base is not None and before is not None and id(base) in self.known:
            # autograd knows the tensor that was written into by another step now
            self.known[id(base)] = self.known[id(base)]._replace(made=base.grad_fn)
            self.steps |= {} if base.grad_fn is None else {base.grad_fn: self.known[id(base)].ids}
        if id(tensor) in self.names:
            return
        self.known[id(tensor)] = Known(tensor, ids, tensor.grad_fn, self.place[0], deep, data)
        if tensor.grad_fn is not None:
            self.steps[tensor.grad_fn] = ids

    def keep_whole(self, call: Call, given: list[Tensor], reason: str) -> None:
        """Fix all neurons that a call reads, and remember why if there are any."""
        told = False
        for tensor in given:
            if id(tensor) in self.names:
                self.wiring.stuck.add(self.names[id(tensor)])
            else:
                self.wiring.fix(self.ids_of(tensor))
            told |= tensor.requires_grad or (id(tensor) in self.known and emitted(self.known[id(tensor)].ids))
        if told:
            self.wiring.whole.setdefault(call.layer, f"{call.name}: {reason}")

    def ids_of(self, tensor: Tensor) -> Tensor:
        """The ids of a tensor; a bare parameter's entries get some at first use."""
        name = self.names.get(id(tensor))
        if name is not None:
            return self.wiring.entries_of(name, tensor.shape) if tensor.is_floating_point() else plain(tensor.shape)
        return self.known[id(tensor)].ids if id(tensor) in self.known else plain(tensor.shape)

    def strange(self, tensor: Tensor) -> bool:
        """Whether a tensor was made unheard, by code outside torch's functions; the neurons it depends on are fixed."""
        known = self.known.get(id(tensor))
        if tensor.grad_fn is None or (known is not None and known.made is tensor.grad_fn) or id(tensor) in self.names:
            return False
        name, seen, todo = tensor.grad_fn.name(), set(), [tensor.grad_fn]
        while todo:
            step = todo.pop()
            if step in seen:
                continue
            seen.add(step)
            if step in self.steps:
                self.wiring.fix(self.steps[step])
            elif hasattr(step, "variable"):
                self.wiring.stuck.add(self.names.get(id(step.variable), ""))
            else:
                todo += [before for before, _ in step.next_functions if before is not None]
        self.wiring.whole.setdefault(self.place[0], f"{name.removesuffix('Backward')}: it cannot be listened to")
        self.know(tensor, plain(tensor.shape), True, True)
        return True

    def looked(self, given: list[Tensor]) -> None:
        """The code has looked at values, perhaps to take one way or another."""
        for tensor in given:
            known = self.known.get(id(tensor))
            if known is not None and known.data:
                self.looks[self.place[0]] = self.looks.get(self.place[0], False) or known.deep

    def made_in(self, tensor: Tensor) -> str:
        """The layer whose code made a tensor."""
        return self.known[id(tensor)].layer if id(tensor) in self.known else ""

    def owner(self, tensor: Any, layer: str) -> tuple[str, nn.Module]:
        """The layer that a parameter belongs to; the one that runs, where it is one of them."""
        owners = self.owners.get(id(tensor), [self.place])
        return next((owner for owner in owners if owner[0] == layer), owners[0])

    def enter(self, layer: str, module: nn.Module) -> None:
        """A layer begins."""
        self.stack.append((layer, module))
        self.muted += own_layer(module) is not None

    def leave(self, module: nn.Module, args: Any, kwargs: dict[str, Any], answer: Any) -> None:
        """A layer ends; one with a rule of its own is followed as a whole."""
        rule = own_layer(module)
        if rule is not None:
            self.muted -= 1
            if not self.muted:
                call = Call(self.wiring, self, module, type(module).__name__, args, kwargs, answer)
                self.trail.append(call.name)
                with torch._C.DisableTorchFunction():  # what this calls is not the network's
                    self.follow(call, rule, tensors_in((args, kwargs)), tensors_in(answer))
        self.stack.pop()


def listen(model: nn.Module, inputs: tuple[Any, ...], wiring: Wiring) -> tuple[Listener, list[Tensor]]:
    """Run a model in eval mode on the example; returns what was heard and the ids of the model's outputs."""
    listener = Listener(model, wiring)
    for tensor in tensors_in(inputs):
        listener.known[id(tensor)] = Known(tensor, plain(tensor.shape), tensor.grad_fn, "", False, True)
    hooks = []
    place, problem = listener.place, None
    for layer, module in model.named_modules():
        if module is not model or own_layer(module) is not None:

            def enter(module: nn.Module, args: Any, kwargs: Any, layer: str = layer) -> None:
                listener.enter(layer, module)

            def leave(module: nn.Module, args: Any, kwargs: Any, answer: Any) -> None:
                listener.leave(module, args, kwargs, answer)

            hooks.append(module.register_forward_pre_hook(enter, with_kwargs=True))
            hooks.append(module.register_forward_hook(leave, with_kwargs=True))
    try:
        with torch.enable_grad(), listener:
            outputs = tensors_in(model(*inputs))
    except Exception as error:  # noqa: BLE001  user code may raise anything
        place, problem = listener.place, error
    finally:
        for hook in hooks:
            hook.remove()
    if problem is not None:
        refuse(model, inputs, place, problem)
    return listener, [listener.ids_of(x) for x in outputs]


def refuse(model: nn.Module, inputs: tuple[Any, ...], place: tuple[str, nn.Module], problem: Exception) -> NoReturn:
    """Say whether a model that has failed runs unheard."""
    try:
        with torch.no_grad():
            model(*inputs)
    except Exception as error:  # user code may raise anything
        layer, module = place
        where = f"layer '{layer}' of type {type(module).__name__}" if layer else f"{type(module).__name__}.forward"
        raise BadModel(f"the model fails on the example at {where}: {str(error) or type(error).__name__}") from error
    raise Unheard(str(problem) or type(problem).__name__) from problem
