"""How a cohort takes its training steps: every choice of a faster way, made once, with the reasons.

`Facts` describe a run in plain values; `plan_steps` turns them into a `StepPlan`. A way is a function that says why it
does not fit, or None. Adding a way is a function and a line in a table here, and the work in a file of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from fedloom.core.goal import Head
from fedloom.core.optimiser import Optimiser, Sgd
from fedloom.core.rule import Traits
from fedloom.engine.cpu.native.move import why_not_optimiser
from fedloom.engine.gradient.protocol import GradientKind
from fedloom.engine.plain_layers import PlainLayer

StepWay = Literal["native", "kernels", "fused", "momentum", "autograd"]
ClientWay = Literal["together", "in-turn", "in-turn-channels-last", "per-core", "per-core-channels-last"]
PartWay = Literal["whole", "masked", "sliced", "compact", "sliced or compact", "frozen"]

MEANINGS: dict[str, str] = {
    "together": "many clients at once, as matrices",
    "in-turn": "one client after another, each on all threads",
    "in-turn-channels-last": "as in-turn, and an image's channels lie side by side in memory",
    "per-core": "every core trains one client after another",
    "per-core-channels-last": "as per-core, and an image's channels lie side by side in memory",
    "stacked": "all clients of a chunk at once, layer by layer, each with weights of its own",
    "swapped": "all clients of a chunk at once, by the network's own code with layers that hold weights for each",
    "vmapped": "all clients of a chunk at once, by torch.func.vmap",
    "one by one": "of every client by itself, in plain PyTorch",
    "native": "C code compiled for this machine takes all steps of a client in one call",
    "kernels": "Triton kernels take whole steps of linear layers in a row",
    "fused": "the SGD step is part of the backward pass, so that no gradient is stored",
    "momentum": "gradients of every tensor, then SGD with momentum in one pass over it",
    "autograd": "gradients first, then the local rule's corrections and the optimiser",
    "whole": "the method sends whole models",
    "masked": "the whole network runs, and masks choose the parameters that are sent or trained",
    "sliced": "really smaller networks; clients with equally many neurons train together",
    "compact": "networks of all sizes together, by kernels that stop where a client's neurons end",
    "sliced or compact": "really smaller networks, or all sizes together where a cohort has more than two sizes",
    "frozen": "the whole network runs, and only the gradients of the neurons that were sent are computed",
}


@dataclass(frozen=True)
class Facts:
    """What decides how steps are taken. A reason is a sentence without its full stop; empty where there is none."""

    gradient: GradientKind  # the quickest that agrees with plain PyTorch on this network
    slower: tuple[tuple[str, str], ...] = ()  # quicker gradients, and the reason why each was not taken
    traits: Traits = Traits()
    optimiser: Optimiser = Sgd()
    layers: tuple[PlainLayer, ...] = ()  # of a network that is a row of plain layers; empty: it is not
    head: Head | None = None  # the goal's loss; None: it is none of those that `Head` can say
    loss: str = ""  # the goal's loss in words
    transformed: bool = False  # examples are transformed when a batch is gathered
    low: bool = False  # products round their factors to bfloat16
    sliced: bool = True  # may sub-models be cut? No under execution=masked
    captured: bool = False  # steps are replayed as CUDA graphs
    no_graph: str = ""  # why they are not, where they would be
    no_native: str = ""  # why the C code cannot train this network here
    no_kernels: str = ""  # why our Triton kernels for linear layers in a row cannot
    no_compact: str = ""  # why kernels cannot train convolutional networks of several sizes side by side


@dataclass(frozen=True)
class StepPlan:
    """How steps are taken. A chunk takes the first of `steps` that suits its sizes and its task."""

    gradient: GradientKind
    steps: tuple[StepWay, ...]
    parts: PartWay  # what becomes of a task that asks for a part of the model
    captured: bool
    layers: tuple[PlainLayer, ...]  # of a network that is a row of plain layers
    reasons: tuple[tuple[str, str], ...]  # every faster way that was not taken, and why
    clients: ClientWay = "together"
    measured: tuple[tuple[str, float], ...] = field(default=(), compare=False)  # ways, and ms of a client's step

    def record(self) -> dict[str, Any]:
        """Plain values for the run folder."""
        return {name: getattr(self, name) for name in ("gradient", "parts", "captured")} | {
            "steps": list(self.steps),
            "reasons": dict(self.reasons),
            "clients": self.clients,
            "measured": dict(self.measured),
        }


def lines_of(record: dict[str, Any]) -> list[tuple[str, str]]:
    """A recorded plan as names and sentences."""
    first, *others = record["steps"]
    graph = "; the step is captured as a CUDA graph and replayed" if record["captured"] else ""
    then = f"; {others[0]} where a chunk's sizes or masks do not suit that" if others else ""
    taken = record["clients"]
    tried = ", ".join(f"{way} {ms:.3g}" for way, ms in record["measured"].items())
    found = [
        ("clients", f"{taken}: {MEANINGS[taken]}"),
        *([("measured", f"ms for a client's step: {tried}")] if tried else []),
        ("gradients", f"{record['gradient']}: {MEANINGS[record['gradient']]}"),
        ("steps", f"{first}: {MEANINGS[first]}{graph}{then}"),
        ("sub-models", f"{record['parts']}: {MEANINGS[record['parts']]}"),
    ]
    return found + [(f"not {way}", why) for way, why in record["reasons"].items()]


def plan_steps(facts: Facts, clients: ClientWay = "together", measured: tuple[tuple[str, float], ...] = ()) -> StepPlan:
    """Choose the fastest ways that fit, and keep the reason why each faster one does not."""
    reasons = list(facts.slower)
    steps: list[StepWay] = []
    for way, fits in STEPS.items():
        if (why := fits(facts)) is None:
            steps.append(way)
            if facts.captured:
                break  # the buffers of a captured step are made for one way
        elif not steps and why:
            reasons.append((way, why))
    traits = facts.traits
    if facts.no_graph:
        reasons.append(("captured", facts.no_graph))
    parts: PartWay = "masked" if traits.cuts or traits.needs_whole or traits.chooses else "whole"
    for part, suits in PARTS.items():
        if (why := suits(facts)) is None:
            parts = part
            break
        if why:
            reasons.append((part, why))
    found = (facts.gradient, tuple(steps), parts, facts.captured, facts.layers, tuple(reasons))
    return StepPlan(*found, clients, measured)


def _in_words(optimiser: Optimiser) -> str:
    """An optimiser in words, as far as ways differ in what they take."""
    words = [type(optimiser).__name__]
    words += ["with momentum"] if optimiser.momentum else []
    words += ["with clipped gradients"] if optimiser.clip is not None else []
    words += [] if optimiser.fresh else ["with moments kept between rounds"]
    return " ".join(words)


def _stacks(facts: Facts) -> str | None:
    """Whether layers are stacked over the clients."""
    if facts.gradient == "stacked":
        return None
    return f"it needs gradients of stacked layers, and this network's are taken {facts.gradient}"


def _uncorrected(facts: Facts) -> str | None:
    """Whether a step needs the gradient of the loss alone."""
    return "the local rule corrects gradients between the backward pass and the step" if facts.traits.corrects else None


def _native(facts: Facts) -> str | None:
    """C code of our own for CPUs."""
    if facts.captured or facts.gradient == "one by one":
        return ""  # it is not for these
    if why := why_not_optimiser(facts.optimiser):
        return why
    if facts.low:
        return "it computes in float32, and products are to round to bfloat16"
    if not facts.layers:
        return "the network is not a row of plain convolutions and linear layers"
    if facts.head is None:
        return f"the goal's loss, {facts.loss}, is not one that the C code knows"
    if facts.traits.corrects and not facts.traits.shifts:
        return "the local rule corrects gradients otherwise than by a pull to the start and a push for the round"
    return _stacks(facts) or facts.no_native or None


def _steps_by_tensor(facts: Facts) -> str | None:
    """Whether a captured step can move each tensor by itself."""
    if facts.traits.corrects and not facts.traits.scales:
        return _uncorrected(facts)
    if not facts.optimiser.plain and not facts.optimiser.heavy:
        return f"it takes steps of plain SGD or of SGD with momentum, not of {_in_words(facts.optimiser)}"
    return _stacks(facts)


def _kernels(facts: Facts) -> str | None:
    """Triton kernels for linear layers in a row."""
    if not facts.captured:
        return ""
    if not facts.layers or any(layer.padding is not None for layer in facts.layers):
        return "the network is not a row of linear layers"
    if facts.head != Head("softmax"):
        return f"they know softmax cross-entropy without class weights and smoothing, and the loss is {facts.loss}"
    if facts.transformed:
        return "they gather examples by themselves, and transforms come between"
    if facts.low:
        return "they compute in float32, and products are to round to bfloat16"
    return _steps_by_tensor(facts) or facts.no_kernels or None


def _fused(facts: Facts) -> str | None:
    """The step as part of the backward pass."""
    if facts.gradient == "vmapped":
        return "torch.func.vmap returns gradients and takes no steps"
    if facts.gradient == "swapped":
        return "only layers of a traced network take steps in their backward pass"
    if not facts.optimiser.plain:
        return f"only plain SGD can be part of the backward pass, not {_in_words(facts.optimiser)}"
    return _uncorrected(facts)


def _momentum(facts: Facts) -> str | None:
    """SGD with momentum, or plain SGD of scaled parameters, tensor by tensor; captured steps alone have it."""
    if not facts.captured:
        return ""
    return _steps_by_tensor(facts)


def _autograd(facts: Facts) -> str | None:
    """The general way."""
    return None


def _frozen(facts: Facts) -> str | None:
    """The whole network with gradients of the neurons that were sent."""
    if not facts.traits.freezes:
        return ""
    if not facts.sliced:
        return "execution is masked"
    return _stacks(facts) or ("captured steps hold masked numbers in place instead" if facts.captured else None)


def _cuts(facts: Facts) -> str | None:
    """Really smaller networks."""
    if not facts.traits.cuts:
        return ""
    return None if facts.sliced else "execution is masked"


def _compact(facts: Facts) -> str | None:
    """Linear networks of all sizes together."""
    if not facts.captured:
        return ""
    return _cuts(facts) if _cuts(facts) is not None else _kernels(facts)


def _sliced_or_compact(facts: Facts) -> str | None:
    """Convolutional networks of several sizes together."""
    if not facts.captured:
        return ""
    return _cuts(facts) if _cuts(facts) is not None else _steps_by_tensor(facts) or facts.no_compact or None


STEPS: dict[StepWay, Callable[[Facts], str | None]] = {
    "native": _native,
    "kernels": _kernels,
    "fused": _fused,
    "momentum": _momentum,
    "autograd": _autograd,
}
PARTS: dict[PartWay, Callable[[Facts], str | None]] = {
    "frozen": _frozen,
    "compact": _compact,
    "sliced or compact": _sliced_or_compact,
    "sliced": _cuts,
}
