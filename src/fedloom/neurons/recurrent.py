"""Rules of recurrent layers: a hidden unit of a layer and direction is a neuron, with its row in every gate."""

from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from fedloom.neurons.calls import Call
from fedloom.neurons.ids import Spread, along, emitted, loose, plain, settled, small, spread

GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}


def layers(call: Call) -> list[Tensor]:
    """`lstm`, `gru`, `rnn_tanh`, `rnn_relu`: all layers of one module, on sequences or on packed ones."""
    packed = isinstance(call.args[3], list | tuple)  # data, sizes of batches, states, weights
    x, states, weights = call.args[0], call.args[2 if packed else 1], call.args[3 if packed else 2]
    biases, count = call.args[4 if packed else 3], call.args[5 if packed else 4]
    ways = 2 if call.args[8 if packed else 7] else 1
    gates, each = GATES[call.name], 4 if biases else 2
    if len(weights) != each * count * ways:
        raise Spread("it projects its states")
    reads, positions = call.reads(x, -1), prod(x.shape[:-1])
    call.resize((call.layer, call.module), "input_size", reads)
    names: list[str] = []
    last: list[Tensor] = []
    for layer in range(count):
        units = []
        for way in range(ways):
            begin = each * (layer * ways + way)
            suffix = f"l{layer}{'_reverse' if way else ''}" if count * ways > 1 else ""
            units.append(gated(call, weights[begin : begin + each], reads, gates, positions, suffix, names))
        call.resize((call.layer, call.module), "hidden_size", units[0])
        reads = torch.cat(units)
        last += units
    if len(names) > 1 and tuple(names) not in call.wiring.alike:
        call.wiring.alike.append(tuple(names))
    for state in [states] if isinstance(states, Tensor) else states:
        begun(call, state, torch.stack(last).unsqueeze(1))
    answers: list[Tensor] = [call.answer[0], *call.answer[1:]]
    hidden = torch.stack(last).view(len(last), *(1,) * (answers[1].dim() - 2), -1)
    return [spread(reads, answers[0].shape, -1), *(settled(hidden.expand(state.shape)) for state in answers[1:])]


def cell(call: Call) -> list[Tensor]:
    """`lstm_cell`, `gru_cell`, `rnn_tanh_cell`: one step of one layer."""
    x, states, *weights = call.args
    gates = GATES[call.name.removesuffix("_cell")]
    reads = call.reads(x, -1)
    units = gated(call, weights, reads, gates, prod(x.shape[:-1]), "", [])
    owner = call.owner(weights[0])
    call.resize(owner, "input_size", reads)
    call.resize(owner, "hidden_size", units)
    for state in [states] if isinstance(states, Tensor) else states:
        begun(call, state, units[None])
    answers = [call.answer] if isinstance(call.answer, Tensor) else list(call.answer)
    return [spread(units, state.shape, -1) for state in answers]


def gated(call: Call, weights: Any, reads: Tensor, gates: int, positions: int, suffix: str, names: list[str]) -> Tensor:
    """Bind one layer's tensors in one direction; returns its hidden units."""
    weight, back, *biases = weights
    if call.name_of(weight) is None:
        raise Spread("its weight is computed, and not a parameter of the network")
    layer, module = call.owner(weight)
    name = (layer or type(module).__name__.lower()) + (f".{suffix}" if suffix else "")
    units = call.wiring.open(name, back.shape[1], "hidden units")
    names.append(name)
    rows = units.repeat(gates)
    call.bind(weight, {0: rows, 1: reads}, weight=True, positions=positions)
    call.bind(back, {0: rows, 1: units}, weight=True, positions=positions)
    for bias in biases:
        call.bind(bias, {0: rows}, weight=True)
    return units


def begun(call: Call, state: Tensor, units: Tensor) -> None:
    """A state from before: of the same units, a bare parameter, or one in which all units are alike."""
    ids = call.ids(state)
    if emitted(ids):
        call.wiring.unite(ids, units)
    elif loose(ids):
        call.wiring.meets.append((small(ids), units.expand(state.shape[:-2] + units.shape[-2:])))
    elif not bool((state == state[..., :1]).all()):
        call.wiring.fix(units)
    elif call.made_in(state) != call.layer or not isinstance(call.module, nn.RNNBase | nn.RNNCellBase):
        call.wiring.states.setdefault(call.layer, units.flatten())


def packed(call: Call) -> list[Tensor]:
    """`pack_padded_sequence` and back: places are laid end to end, and neurons stay on the last axis."""
    ids = along(call.ids(call.args[0]), -1)
    return [spread(ids, x.shape, -1) if x.is_floating_point() else plain(x.shape) for x in call.answer]
