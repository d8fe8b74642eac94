"""Choice of a method for a fleet: simulate candidates and find which reach a target soonest and cheapest."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from fedloom.core.metric import Metric
from fedloom.errors import BadExperiment
from fedloom.evaluate.judge import ACCURACY, check_target
from fedloom.evaluate.targets import cost_of
from fedloom.runs.experiment import Experiment
from fedloom.studies.compare import Contender, compare
from fedloom.studies.forms import LENGTHS, OWN, experiment_of, takes, waits

CANDIDATES = (
    *("fedavg", "fedprox", "scaffold", "fedcs", "oort"),
    *("fjord", "fedrolex", "federated-dropout", "heterofl"),
    *("feddd", "fedspu", "loom"),
    *("fedbuff", "fedasync", "heterofl+buffered", "fedspu+buffered"),
)
CODECS = ("float32", "int8")


@dataclass(frozen=True)
class Option:
    """A candidate that reached the target under every seed, with its mean costs."""

    name: str
    experiment: Experiment
    rounds: float
    seconds: float
    bytes: float
    joules: float

    def beats(self, other: Option) -> bool:
        """Whether it is no worse in time, bytes and energy, and better in one of them."""
        ours, theirs = (self.seconds, self.bytes, self.joules), (other.seconds, other.bytes, other.joules)
        return all(a <= b for a, b in zip(ours, theirs)) and ours != theirs


@dataclass(frozen=True)
class Plan:
    """The candidates that reached the target, by time, and those that did not."""

    target: float
    options: tuple[Option, ...]
    missed: tuple[Contender, ...]
    score: Metric = ACCURACY  # what the target is a value of

    @property
    def front(self) -> tuple[Option, ...]:
        """The trade-off: options that no other option beats, from the soonest to the cheapest."""
        return tuple(one for one in self.options if not any(other.beats(one) for other in self.options))

    def best(self, what: str) -> Option | None:
        """The option with the least of `seconds`, `bytes` or `joules`."""
        return min(self.options, key=lambda option: getattr(option, what), default=None)


def plan(
    experiment: Experiment,
    target: float,
    methods: Sequence[str] = CANDIDATES,
    seeds: Sequence[int] = (0,),
    codecs: Sequence[str] = CODECS,
    tries: Mapping[str, Sequence[Any]] | None = None,
    watch: Callable[[str, int, dict[str, Any]], None] | None = None,
    stack: bool = True,
    tell: Callable[[str], None] | None = None,
    out: str | Path | None = None,
) -> Plan:
    """Simulate each method with each codec on the experiment's data, model, fleet and world.

    Args:
        experiment: everything but the method and the codec; it must name a fleet.
        target: the score to reach.
        methods: names of methods to try.
        seeds: each candidate runs once per seed.
        codecs: encodings of replies to try.
        tries: values to try for other settings, by their names as in `--set`; see `candidates`.
        watch: called with name, seed and row after each round.
        stack: train runs of one kind together; False runs one after another.
        tell: called with notes on which runs are trained together.
        out: a folder for the run folders; runs in it that are finished are read, and others go on.
    """
    if experiment.fleet.name == "none":
        raise BadExperiment(
            "fleet is 'none', so nothing costs time; name your fleet file or one of `fedloom list fleets`."
        )
    score = experiment.build_goal().score
    check_target(score, target)
    tried = candidates(experiment, methods, codecs, tries or {})
    options, missed = [], []
    for contender in compare(tried, seeds, watch, stack, tell, out):
        costs = contender.reached(target)
        means = {what: cost_of(costs, what) for what in ("rounds", "seconds", "bytes", "joules")}
        if len(costs) < len(seeds) or any(mean is None for mean in means.values()):
            missed.append(contender)
        else:
            found = {what: mean.mean for what, mean in means.items() if mean is not None}
            options.append(Option(contender.name, tried[contender.name], **found))
    return Plan(target, tuple(sorted(options, key=lambda option: option.seconds)), tuple(missed), score)


def candidates(
    experiment: Experiment, methods: Sequence[str], codecs: Sequence[str], tries: Mapping[str, Sequence[Any]]
) -> dict[str, Experiment]:
    """Each method with each codec and each combination of the settings to try, by name.

    A setting is varied for the methods that take it; others run once without it. One that no method takes is refused.
    A method with `+PACE` behind its name runs without a barrier; `pace` in `tries` makes such forms of all methods.
    """
    tries = dict(tries)
    codecs, methods = tries.pop("codec.values", codecs), _formed(methods, tries.pop("pace", ("own",)))
    given = experiment.model_dump()
    given = {key: value for key, value in given.items() if key not in LENGTHS or key in experiment.model_fields_set}
    found: dict[str, Experiment] = {}
    for name, codec in product(methods, codecs):
        values = {**given, "codec": {**given["codec"], "values": codec}}
        values["codec"]["feedback"] = experiment.codec.feedback and codec != "float32"
        fitting = [key for key in tries if applies(key, name, codec, methods)]
        for choice in product(*(tries[key] for key in fitting)):
            pairs = dict(zip(fitting, choice))
            words = [name, *([] if codec == "float32" else [codec])]
            words += [spelled(key.rpartition(".")[2], value) for key, value in pairs.items()]
            found[", ".join(words)] = experiment_of(name, values, pairs, methods)
    return found


def _formed(methods: Sequence[str], paces: Sequence[Any]) -> list[str]:
    """Each method at each pace, once; those without a barrier as they are."""
    every = [f"{name}+{pace}" if pace not in OWN and waits(name) else name for name, pace in product(methods, paces)]
    return list(dict.fromkeys(every))


def spelled(key: str, value: Any) -> str:
    """A setting and its value in a candidate's name."""
    return f"{'' if value else 'no '}{key}" if isinstance(value, bool) else f"{key}={value}"


def applies(key: str, method: str, codec: str, methods: Sequence[str]) -> bool:
    """Whether a setting is worth varying for this method and codec."""
    if key == "codec.feedback":
        return codec != "float32"
    if key == "codec.scale":
        return codec == "int8"
    return takes(method, key) or not any(takes(other, key) for other in methods)  # then it is common to all, or refused
