"""`Experiment`, one validated value with all that decides a run's numbers; errors come before anything is written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError
from torch import nn

from fedloom.adapters import ADAPTERS
from fedloom.codec import Codec
from fedloom.core.goal import Goal
from fedloom.core.section import Section
from fedloom.data.load import DATASETS, is_path, usual_goal
from fedloom.data.partition import PARTITIONS, settings_of as partition_settings
from fedloom.engine.plan import ClientWay
from fedloom.errors import BadExperiment, BadModel, short, unknown
from fedloom.goals import GOALS
from fedloom.method import SERVER_SLOTS, Method
from fedloom.methods import METHODS
from fedloom.models import MODELS, build
from fedloom.runs.augment import check_augment
from fedloom.runs.choice import Choice, Named, choice, three_shares
from fedloom.runs.default_fleet import devices_left_open
from fedloom.runs.named_parts import attack_of, with_parts
from fedloom.runs.own_function import own_function
from fedloom.runs.personal import left_to_rule
from fedloom.runs.server import Server
from fedloom.runs.settings import fit, make
from fedloom.runs.training import Training
from fedloom.runs.until import Until
from fedloom.runs.without_barrier import ROUNDS, check_pace, left_to_pace
from fedloom.shown import table
from fedloom.world.attack import Attack
from fedloom.world.channel import Bernoulli, Bursty, Channel
from fedloom.world.fleets import FLEETS
from fedloom.world.table import TABLES
from fedloom.world.world import World

CHANNELS: dict[str, type[Channel]] = {"bernoulli": Bernoulli, "bursty": Bursty}
CHOSEN = ("aggregate", "admit", "pace", "stale", "attack")  # chosen by name for any method
NAMED = ("method", "data", "partition", "model", "adapter", "goal", "fleet", "channel")
SECTIONS = (*NAMED, *CHOSEN)  # a name with its settings
GROUPS: dict[str, type[Section]] = {  # settings without a name
    "training": Training,
    "server": Server,
    "world": World,
    "codec": Codec,
    "until": Until,
}
AUTO = "auto"  # the default goal, model and partition: by the data
NETWORKS = {"tokens": "char-conv", "next-token": "char-conv", "pixels": "fcn"}  # of goals; of all others: mlp
SUPPLIED = ("shape", "classes", "vocabulary")  # a model's facts about the data, not settings
GIVEN = ("module", "seed")  # what an adapter is given, not settings


class Experiment(Section):
    """A method, a model, data, how they are divided among clients, and all else that decides a run's numbers."""

    method: Named = Choice(name="fedavg")
    data: Named = Choice(name="digits")
    partition: Named = Choice(name=AUTO)
    model: Named = Choice(name=AUTO)
    adapter: Named = Choice(name="none")
    goal: Named = Choice(name=AUTO)
    augment: tuple[Named, ...] = Field((), description="transforms of training examples, in order: crop, flip")
    start: str | None = Field(None, description="a run folder or a .safetensors file with the model's first weights")
    fleet: Named = Choice(name="none")
    channel: Named = Choice(name="bernoulli")
    aggregate: Named = Choice(name="own")
    admit: Named = Choice(name="own")
    pace: Named = Choice(name="own")
    stale: Named = Choice(name="own")
    attack: Named = Choice(name="none")
    codec: Codec = Codec()
    exact_bytes: bool = Field(default=False, description="encode and decode every reply, not one a round")
    training: Training = Training()
    server: Server = Server()
    world: World = World()
    until: Until = Until()
    clients: int = Field(100, ge=1, description="clients in the fleet")
    per_round: int | None = Field(None, ge=1, description="clients a round; None leaves it to the method (10)")
    rounds: int = Field(ROUNDS, ge=1, description="rounds; without a barrier steps, more of them if they are small")
    seed: int = Field(0, ge=0, lt=2**63, description="the same seed gives the same run")
    split: Annotated[tuple[float, float, float], BeforeValidator(three_shares)] = Field(
        (1.0, 0.0, 0.0), description="of each client's data: training, validation, own test"
    )
    evaluate_every: int = Field(1, ge=1, description="rounds between evaluations")
    evaluate_seconds: float | None = Field(None, gt=0, description="virtual seconds between evaluations, in its place")
    engine: Literal["local", "loop", "distributed"] = "local"
    execution: Literal["sliced", "masked"] = Field("sliced", description="train sub-models really smaller, or masked")
    way: Literal["auto", ClientWay] = Field("auto", description="how clients share the cores; auto measures it")
    device: str = "auto"
    chunk: int | None = Field(None, ge=1, description="clients trained at a time; None fits them to memory")
    memory: float | None = Field(None, gt=0, description="GiB of the device that may be used; None takes what is free")
    precision: Literal["default", "float32", "tf32", "bf16"] = Field("default", description="how products are rounded")

    def __init__(self, **values: Any) -> None:
        for key in values:
            _check_name("key of an experiment", key, type(self).model_fields)
        given, values = values, {**values, **_left_open(values)}
        self._fill(values)
        method = self.build_method()
        left = devices_left_open(method, self.fleet.name) | left_to_pace(method, values, self.fleet.name)
        if left := left | left_to_rule(method, given):
            self._fill({**values, **left})
        check_pace(self, method)
        self._check()

    def _fill(self, values: Mapping[str, Any]) -> None:
        """Set the fields, with their types checked."""
        try:
            super().__init__(**values)
        except ValidationError as problem:
            raise BadExperiment(explain(problem)) from None

    def _check(self) -> None:
        """Refuse unknown names, and settings that do not fit."""
        if self.model.own is not None:
            fit(f"model '{self.model.name}'", self.model.own.load("model"), self.model.settings)
        else:
            _check_name("model", self.model.name, MODELS)
            fit(f"model '{self.model.name}'", MODELS[self.model.name].make, self.model.settings, SUPPLIED)
        _check_name("partition", self.partition.name, (AUTO, *PARTITIONS))
        takes = {} if self.partition.name == AUTO else partition_settings(self.partition.name)
        for name in self.partition.settings:
            if name not in takes:
                raise BadExperiment(unknown(f"setting of partition '{self.partition.name}'", name, takes))
        if self.fleet.name != "none" and not self.fleet.name.endswith(TABLES):
            _check_name("fleet", self.fleet.name, ("none", *FLEETS))
        _check_name("channel", self.channel.name, CHANNELS)
        self.build_channel()
        self.build_attack()
        self.until.check(self.build_goal().score)
        self._check_adapter()
        check_augment(self.augment)
        if self.fleet.name == "none" and (self.world != World() or self.channel.settings):
            raise BadExperiment(
                "channel and world settings need devices, and fleet is 'none'; choose one: fleet=equal."
            )
        if not is_path(self.data.name):
            _check_name("data set", self.data.name, DATASETS)
        if self.evaluate_seconds is not None and self.evaluate_every != 1:
            raise BadExperiment(
                f"evaluate_every is {self.evaluate_every} (rounds) and evaluate_seconds {self.evaluate_seconds:g}; "
                "expected one of the two."
            )
        if min(self.split) < 0 or abs(sum(self.split) - 1) > 1e-9 or self.split[0] == 0:
            raise BadExperiment(
                f"split is {self.split}; it must be three shares (training, validation, own test) that add up to 1, "
                "with some training."
            )

    def __repr_str__(self, join_str: str) -> str:
        """What differs from the default, as one writes it."""
        return join_str.join(f"{name}={short(value)}" for name, value in self.chosen.items())

    def _repr_html_(self) -> str:
        """A table of what differs from the default, for notebooks."""
        return table("Experiment", [(name, str(value)) for name, value in self.chosen.items()])

    @property
    def chosen(self) -> dict[str, Any]:
        """The method, the data, and all else that differs from the default, by dotted name."""
        found: dict[str, Any] = {}
        for name, field in type(self).model_fields.items():
            value = getattr(self, name)
            if value == field.default and name not in ("method", "data"):
                continue
            if name in SECTIONS:
                found |= {name: value.name, **{f"{name}.{key}": own for key, own in value.settings.items()}}
            elif name in GROUPS:
                usual = field.default.model_dump()
                found |= {f"{name}.{key}": own for key, own in value.model_dump().items() if own != usual[key]}
            else:
                found[name] = [one.model_dump() for one in value] if name == "augment" else value
        return found

    def _check_adapter(self) -> dict[str, Any]:
        """The adapter's settings, each as its own type; refuse unknown names and other types."""
        name, settings = self.adapter.name, self.adapter.settings
        _check_name("adapter", name, ("none", *ADAPTERS))
        if name == "none":
            if settings:
                raise BadExperiment("adapter is 'none' and takes no settings; choose one, as in --adapter lora.")
            return {}
        return fit(f"adapter '{name}'", ADAPTERS[name], settings, GIVEN)

    def build_channel(self) -> Channel:
        """The channel as a value."""
        kind = CHANNELS[self.channel.name]
        return kind(**fit(f"channel '{self.channel.name}'", kind, self.channel.settings))

    def build_attack(self) -> Attack | None:
        """The attack as a value, or None."""
        return attack_of(self.attack.name, self.attack.settings)

    def build_goal(self) -> Goal:
        """The goal as a value."""
        name, own = self.goal.name, self.goal.own
        if own is None:
            _check_name("goal", name, GOALS)
        goal = make(f"goal '{name}'", GOALS[name] if own is None else own.load("goal"), self.goal.settings)
        if not isinstance(goal, Goal):
            raise BadExperiment(f"goal '{name}' gave {type(goal).__name__}; expected a fedloom.Goal.")
        return goal

    def build_model(self, shape: tuple[int, ...], classes: int, vocabulary: int) -> nn.Module:
        """The network for examples of this shape, with newly drawn weights."""
        name, settings, own = self.model.name, self.model.settings, self.model.own
        if own is None:
            return build(name, shape, classes, vocabulary, **settings)
        module = make(f"model '{name}'", own.load("model"), settings)
        if not isinstance(module, nn.Module):
            raise BadModel(f"model '{name}' gave {type(module).__name__}; expected an nn.Module.")
        return module

    def with_adapter(self, network: nn.Module) -> nn.Module:
        """The network with the adapter that was chosen, drawn from the seed; the network itself if there is none."""
        name = self.adapter.name
        return network if name == "none" else ADAPTERS[name](network, **self._check_adapter(), seed=self.seed)

    def build_method(self) -> Method:
        """The method as a value, with this experiment's training settings, cohort size and parts by name."""
        maker = method_maker(self.method.name)
        method = make(f"method '{self.method.name}'", maker, self.method.settings)
        if not isinstance(method, Method):
            raise BadExperiment(f"method '{self.method.name}' returned {type(method).__name__}; expected a Method.")
        method = self.training.apply(method)
        if self.per_round is not None:
            select = method.select.with_count(self.per_round)
            if select is None:
                raise BadExperiment(f"per_round is {self.per_round}, but '{self.method.name}' chooses its own cohort.")
            method = replace(method, select=select)
        return _with_work(with_parts(method, self))


def network_for(goal: str) -> str:
    """The network that a goal trains unless another is named."""
    return NETWORKS.get(goal, "mlp")


def _left_open(values: Mapping[str, Any]) -> dict[str, Any]:
    """What was left open: the data's usual goal, the goal's network, and dirichlet where a partition has settings."""
    goal, model, dealt = (_entry(values.get(key, AUTO)) for key in ("goal", "model", "partition"))
    found: dict[str, Any] = {}
    if goal["name"] == AUTO:
        goal = found["goal"] = {**goal, "name": usual_goal(str(_entry(values.get("data", "digits"))["name"]))}
    if model["name"] == AUTO:
        found["model"] = {**model, "name": network_for(str(goal["name"]))}
    if dealt["name"] == AUTO and dealt.get("settings"):
        found["partition"] = {**dealt, "name": "dirichlet"}
    return found


def _entry(value: Any) -> dict[str, Any]:
    """A name with its settings as a dictionary; values of other types, which validation refuses, have no name."""
    value = choice(value)
    return {"name": None, **dict(value)} if isinstance(value, Choice | dict) else {"name": None}


def _with_work(method: Method) -> Method:
    """The method whose parts reckon with its own work."""
    own = {slot: getattr(method, slot).for_work(method.work) for slot in SERVER_SLOTS}
    return replace(method, **own)


def method_maker(name: str) -> Callable[..., Any]:
    """The function behind a method's name, or behind `file.py:function`."""
    own = own_function(name)
    if own is not None:
        return own.load("method")
    _check_name("method", name, METHODS)
    return METHODS[name]


def _check_name(kind: str, name: str, names: Any) -> None:
    """Refuse a name that is not among `names`, with the nearest one."""
    if name not in names:
        raise BadExperiment(unknown(kind, name, names))


def explain(problem: ValidationError) -> str:
    """Pydantic's errors, one sentence each."""
    lines = []
    for error in problem.errors():
        where = ".".join(str(part) for part in error["loc"] if part != "function-before")
        if error["type"] == "extra_forbidden":
            group = GROUPS.get(where.partition(".")[0], Choice)
            lines.append(unknown("key", where.rpartition(".")[2], group.model_fields))
        elif error["type"] == "value_error":  # raised by fedloom, with the argument's name in it
            lines.append(f"{where}: {error['ctx']['error']}" if where else str(error["ctx"]["error"]))
        else:
            lines.append(f"{where} is {short(error.get('input'))}: {error['msg']}")
    if any(error["loc"][:1] == ("data",) for error in problem.errors()):
        lines.append("data of your own are passed to run: run(experiment, data=...)")
    return "; ".join(lines)
