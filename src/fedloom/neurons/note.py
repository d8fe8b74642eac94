"""Which layers of a network are kept whole because they are not understood, in words."""

from collections.abc import Mapping, Sequence

from fedloom.neurons.map import NeuronMap

SHOWN = 6  # layers and reasons that a note names
HINT = "`fedloom.neuron_rule` says what an unknown function or layer does to neurons."


def note_of(why: Mapping[str, str], lost: Sequence[str], neurons: NeuronMap) -> str | None:
    """Which layers are kept whole, what share of the parameters they hold, and why that is.

    Args:
        why: layers whose code is not understood ("" for the network's own), and what of it.
        lost: layers whose neurons are not cut because of those.
        neurons: the map without them.
    """
    if not why:
        return None
    layers = list(dict.fromkeys((*lost, *(layer for layer in why if layer and layer not in neurons.groups))))
    trained = [tensor for tensor in neurons.tensors if tensor.trained]
    total = sum(tensor.stop - tensor.start for tensor in trained)
    held = sum(t.stop - t.start for t in trained if any(t.name == n or t.name.startswith(f"{n}.") for n in layers))
    reasons = [f"{named(layer)} ({reason})" for layer, reason in why.items()]
    names = first([named(layer) for layer in layers], ", ") or "nothing that could be cut"
    share = f"{held / total:.0%} of the parameters"
    return f"kept whole, with {share}: {names}. Not understood: {first(reasons, '; ')}. {HINT}"


def named(layer: str) -> str:
    """A layer in words."""
    return f"'{layer}'" if layer else "the network's own code"


def first(words: list[str], between: str) -> str:
    """The first of them, and how many more there are."""
    more = [f"{len(words) - SHOWN} more"] if len(words) > SHOWN else []
    return between.join([*words[:SHOWN], *more])
