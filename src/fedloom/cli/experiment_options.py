"""Options that the commands about an experiment share."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from click.core import ParameterSource

from fedloom.cli.options import DeviceOption, pairs_of

if TYPE_CHECKING:
    from fedloom.runs.experiment import Experiment

Command = Callable[..., None]
TYPED = ParameterSource.COMMANDLINE


@dataclass(frozen=True)
class ExperimentOptions:
    """Keys of an experiment that have options of their own; `--set` takes all others."""

    data: Annotated[
        str, typer.Option(help="a name from `fedloom list data`, a .npz, .csv or .parquet file, or a folder")
    ] = "digits"
    partition: Annotated[
        str,
        typer.Option(help="how data are dealt to clients: `fedloom list partitions`; auto: dirichlet, or by the data"),
    ] = "auto"
    clients: Annotated[int, typer.Option(help="clients in the fleet")] = 100
    model: Annotated[
        str, typer.Option(help="a name from `fedloom list models`, or my_file.py:my_network; auto: by the goal")
    ] = "auto"
    adapter: Annotated[
        str, typer.Option(help="small layers to train in place of the network: `fedloom list adapters`, or none")
    ] = "none"
    goal: Annotated[
        str,
        typer.Option(
            help="what is trained for and judged by: `fedloom list goals`, or my_file.py:my_goal; auto: by the data"
        ),
    ] = "auto"
    start: Annotated[
        str | None,
        typer.Option("--from", metavar="RUN|FILE", help="first weights: a run folder or .safetensors file"),
    ] = None
    fleet: Annotated[
        str, typer.Option(help="devices: a name from `fedloom list fleets`, your own .csv or .parquet, or none")
    ] = "none"
    rounds: Annotated[
        int | None, typer.Option(help="how many rounds, 50 if left out; without a barrier steps, and as much work")
    ] = None
    until: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="end sooner: score=0.9, seconds=3600 (virtual with a fleet), real_seconds=60 or patience=20 rounds "
            "without a better score; repeat as needed",
        ),
    ] = None
    seed: Annotated[int, typer.Option(help="the same seed gives the same run")] = 0
    device: DeviceOption = "auto"
    precision: Annotated[str, typer.Option(help="of products: default (PyTorch's own), float32, tf32 or bf16")] = (
        "default"
    )
    exact_bytes: Annotated[
        bool, typer.Option("--exact-bytes", help="write and read every reply's bytes, not one a round's; slower")
    ] = False
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="any other setting, such as rate=0.05, epochs=5, method.mu=0.1, partition.alpha=0.5, per_round=20, "
            "augment=[crop,flip], goal.loss=huber, "
            "channel.up=0.3, world.deadline=60, pace=buffered; repeat as needed",
        ),
    ] = None

    @property
    def values(self) -> dict[str, Any]:
        """The keys of an experiment that are not left open, without those of `--set`."""
        given = {name: value for name, value in asdict(self).items() if name != "set_" and value is not None}
        return given | ({} if self.until is None else {"until": pairs_of(self.until, "--until", "score=0.9")})

    @property
    def settings(self) -> dict[str, Any]:
        """The `--set` options."""
        return pairs_of(self.set_ or [])

    def experiment(self, **values: Any) -> Experiment:
        """The experiment of these options, with `values` for keys that are not among them or are given elsewhere."""
        from fedloom.runs.experiment import Experiment
        from fedloom.runs.set_values import with_settings

        return Experiment(**with_settings(self.values | values, self.settings))

    def resumed(self, context: typer.Context, folder: Path, **values: Any) -> Experiment:
        """The experiment of a run folder, changed where options were typed."""
        from fedloom.runs.experiment import Experiment
        from fedloom.runs.folder import experiment_in
        from fedloom.runs.set_values import with_settings

        keys = (self.values | values).items()
        typed = {name: value for name, value in keys if context.get_parameter_source(name) is TYPED}
        return Experiment(**with_settings(experiment_in(folder).model_dump() | typed, self.settings))


def experiment_options(without: Collection[str] = (), **defaults: Any) -> Callable[[Command], Command]:
    """Decorate a command: its parameter `shared` becomes the options of `ExperimentOptions`.

    Options that the command declares itself, and those in `without`, are left out; `defaults` replaces defaults.
    """

    def decorate(command: Command) -> Command:
        own = inspect.signature(command, eval_str=True).parameters
        shared = {
            name: one.replace(default=defaults.get(name, one.default))
            for name, one in inspect.signature(ExperimentOptions, eval_str=True).parameters.items()
            if name not in (*own, *without)
        }
        spread = [each for name, one in own.items() for each in (shared.values() if name == "shared" else [one])]
        parameters = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in spread]

        @wraps(command)
        def call(**given: Any) -> None:
            command(shared=ExperimentOptions(**{name: given.pop(name) for name in shared}), **given)

        call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        call.__annotations__ = {one.name: one.annotation for one in parameters}
        return call

    return decorate
