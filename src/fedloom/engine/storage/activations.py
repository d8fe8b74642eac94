"""The memory that a training step of one example keeps for its backward pass."""

from __future__ import annotations

from weakref import WeakKeyDictionary

import torch
from torch import Tensor, fx, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.func import functional_call

from fedloom.core.types import Setting
from fedloom.engine.gradient.graph import traced
from fedloom.engine.gradient.layers import pooled
from fedloom.layout import tensors_of

_known: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()


def activation_bytes(setting: Setting) -> int:
    """Bytes that autograd keeps of one example, each storage once and without those of parameters and buffers.

    Two examples run through the network in training, since batch norms need two. Measured once for a network; neither
    its buffers nor torch's random numbers move.
    """
    if setting.module not in _known:
        _known[setting.module] = _measured(setting)
    return _known[setting.module]


def _measured(setting: Setting) -> int:
    """Run the network as stacked gradients run it, or as it is where torch.fx took it for another one, and count."""
    x = torch.cat([setting.example, setting.example])[:2]
    try:
        return _counted(_as_it_runs(setting.module), x)
    except Exception:  # noqa: BLE001  a branch that fx traced wrongly may raise anything
        return _counted(setting.module, x)


def _counted(module: nn.Module, x: Tensor) -> int:
    """Bytes that autograd keeps of one of two examples."""
    module = module.train()
    buffers = {name: value.clone() for name, value in module.named_buffers()}
    own = {_storage(value) for value in (*tensors_of(module).values(), *buffers.values())}
    kept: dict[int, int] = {}

    def keep(value: Tensor) -> Tensor:
        if _storage(value) not in own:
            kept[_storage(value)] = value.untyped_storage().nbytes()
        return value

    devices = [x.device] if x.device.type == "cuda" else []
    with torch.random.fork_rng(devices), torch.enable_grad(), saved_tensors_hooks(keep, lambda value: value):
        output = functional_call(_Quiet(module), {f"network.{name}": own for name, own in buffers.items()}, (x,))
    del output  # until here it held all that was counted, so that no address was used twice
    return sum(kept.values()) // 2


class _Quiet(nn.Module):
    """A network whose own call, of a graph by torch.fx, would print what goes wrong in it."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        """Its answer."""
        answer: Tensor = self.network.forward(x)
        return answer


class _Pool(nn.Module):
    """Max-pooling that keeps places, not its input, as stacked gradients run it."""

    def __init__(self, layer: nn.MaxPool2d) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        """The largest number of each window."""
        return pooled(self.layer, x)


def _as_it_runs(module: nn.Module) -> nn.Module:
    """The network with max-pooling as stacked gradients run it; the network itself if it cannot be traced."""
    try:
        graph = traced(module)
    except Exception:  # noqa: BLE001  any network may break tracing in its own way
        return module
    found = fx.GraphModule(module, graph)
    for name in {str(node.target) for node in graph.nodes if node.op == "call_module"}:
        if isinstance(layer := module.get_submodule(name), nn.MaxPool2d):
            found.set_submodule(name, _Pool(layer))
    return found


def _storage(value: Tensor) -> int:
    """The address of a tensor's memory."""
    return value.untyped_storage().data_ptr()
