"""The commands `fedloom deploy` and `fedloom trial`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from fedloom.cli.deployment import print_change
from fedloom.cli.experiment_options import TYPED, ExperimentOptions, experiment_options
from fedloom.cli.options import (
    EveryOption,
    JsonOption,
    KeepOption,
    ResumeOption,
    checkpoints_of,
    new_folder_for,
    note_printer,
    print_json,
)
from fedloom.errors import BadExperiment

if TYPE_CHECKING:
    from fedloom.flower.deploy.trial_result import TrialResult

MethodArgument = Annotated[str, typer.Argument(help="a name from `fedloom list methods`, or my_file.py:my_method")]
NodesOption = Annotated[int, typer.Option(min=1, help="SuperNodes; clients are dealt to them in turn")]
DeadlineOption = Annotated[float, typer.Option(min=1, help="seconds that a round waits for replies")]
SlackOption = Annotated[
    float,
    typer.Option(
        min=0, help="a round waits so many times the median node's seconds for slower ones; 0: until the deadline"
    ),
]
MetricsOption = Annotated[
    int,
    typer.Option(
        min=0,
        max=65000,
        metavar="PORT",
        help="figures for Prometheus and a health check: the server's on this port of its loopback, node N's on the "
        "port N + 1 after it; 0: none",
    ),
]
QuorumOption = Annotated[int, typer.Option(min=1, help="replies without which a round leaves the model as it was")]


@experiment_options(without=["exact_bytes"])
def deploy_command(
    context: typer.Context,
    method: MethodArgument,
    *,
    out: Annotated[Path, typer.Option(help="a new folder for app, certificates, keys and services")],
    nodes: NodesOption = 10,
    host: Annotated[
        list[str] | None,
        typer.Option(help="a name or address of the link's machine; nodes use the first; repeat as needed"),
    ] = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="of the gate, which nodes reach")] = 8000,
    control: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="where the link listens; whoever reaches it can run code on all machines. 127.0.0.1 and the port "
            "after the gate's if left out",
        ),
    ] = None,
    largest_reply: Annotated[
        int | None, typer.Option(min=1, metavar="BYTES", help="of a node's answer; by the model if left out")
    ] = None,
    run_folder: Annotated[str, typer.Option(help="on the link's machine; run/ in --out if left out")] = "",
    like: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="a deployment whose nodes, hosts, port, keys and certificates this one has too",
        ),
    ] = None,
    shared: ExperimentOptions,
    deadline: DeadlineOption = 300.0,
    slack: SlackOption = 3.0,
    quorum: QuorumOption = 1,
    checkpoint_every: EveryOption = "1",
    keep: KeepOption = 5,
    metrics: MetricsOption = 0,
    as_json: JsonOption = False,
) -> None:
    """Write all that METHOD needs to run on several machines with Flower: app, certificates, keys, services.

    For example `fedloom deploy fedspu --nodes 3 --host link.example.org --out deployment`, then read its README.md.
    `fedloom deploy feddd --like deployment --out second` is another experiment on the same machines.
    """
    from fedloom.flower.deploy.address import address_of
    from fedloom.flower.deploy.change import like as deploy_like
    from fedloom.flower.deploy.commands import deploy
    from fedloom.flower.deploy.trial import CONFIG

    experiment = shared.experiment(method=method)
    checkpoints_of(checkpoint_every)
    config = {**CONFIG, "out": run_folder, "deadline": deadline, "slack": slack, "quorum": quorum}
    config |= {"checkpoint-every": checkpoint_every, "keep": keep, "metrics": metrics}
    if like is not None:
        for name in ("nodes", "host", "port", "control"):
            if context.get_parameter_source(name) is TYPED:
                raise BadExperiment(f"--{name} and --like: nodes, hosts and ports are those of '{like}'; leave it out.")
        print_change(deploy_like(out, experiment, like, config, largest_reply), as_json)
        return
    operators = address_of(control or f"127.0.0.1:{port + 1}", "control")
    made, typed = deploy(out, experiment, nodes, config, tuple(host or ()), port, operators, largest_reply)
    if as_json:
        print_json({"folder": str(made.root), **typed._asdict()})
        return
    console = Console(highlight=False, soft_wrap=True)
    for title, lines in (
        ("everywhere", [typed.environment]), ("the link", [typed.link]), ("its gate", [typed.gate]),
        ("once, for each node", typed.register), ("the nodes", typed.nodes),
        ("the run, on the link's machine", [typed.supervise]),
        ("the same once", [typed.run]), ("after a crash", [typed.resume]),
    ):  # fmt: skip
        console.print(f"# {title}", style="dim", markup=False)
        console.print("\n".join(lines), markup=False)
    console.print(f"# what goes where: {made.root / 'README.md'}", style="dim", markup=False)


def gate_command(
    *,
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="where nodes connect")] = "0.0.0.0:8000",
    link: Annotated[str, typer.Option(metavar="HOST:PORT", help="where Flower's link listens")] = "127.0.0.1:8001",
    certificates: Annotated[Path, typer.Option(help="folder of ca.crt, server.pem and server.key")],
    largest_reply: Annotated[int, typer.Option(min=1, metavar="BYTES", help="of a node's answer to one message")],
    connections: Annotated[int, typer.Option(min=1, help="at a time, of all")] = 1024,
    strangers: Annotated[int, typer.Option(min=1, help="connections without a key at a time, of one address")] = 16,
) -> None:
    """Let nodes reach a Flower link, and nobody else: pass on what nodes need, from registered keys.

    `fedloom deploy` prints the command. It stands next to the link, which listens where only operators are.
    """
    import logging

    from fedloom.flower.deploy.address import address_of
    from fedloom.flower.deploy.certificates import files_in
    from fedloom.flower.gate.limits import Limits
    from fedloom.flower.gate.run import run_gate

    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO, force=True)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    at, to = address_of(listen, "listen"), address_of(link, "link")
    limits = Limits(largest_reply, connections, strangers)
    run_gate(
        at, to, files_in(certificates), limits,
        lambda: logging.getLogger("fedloom").info("nodes are let in at %s, to the link at %s", at, to),
    )  # fmt: skip


@experiment_options(without=["exact_bytes"], rounds=5, device="cpu")
def trial_command(
    context: typer.Context,
    method: Annotated[
        str, typer.Argument(help="a name from `fedloom list methods`, or my_file.py:my_method; a folder to --resume")
    ],
    *,
    nodes: NodesOption = 10,
    shared: ExperimentOptions,
    clients: Annotated[int | None, typer.Option(help="clients in the fleet; one a node if left out")] = None,
    deadline: DeadlineOption = 300.0,
    slack: SlackOption = 3.0,
    out: Annotated[Path | None, typer.Option(help="the run folder; a new one under runs/ if left out")] = None,
    node_data: Annotated[
        Path | None, typer.Option(help="nodes read their clients' own data, DIR/NUMBER.npz", metavar="DIR")
    ] = None,
    work: Annotated[
        Path | None, typer.Option(help="folder for app, certificates, keys and logs; a temporary one if left out")
    ] = None,
    resume: ResumeOption = False,
    checkpoint_every: EveryOption = "1",
    keep: KeepOption = 2,
    metrics: MetricsOption = 0,
    as_json: JsonOption = False,
) -> None:
    """Run METHOD on a real Flower link and real nodes on this machine, with TLS and node authentication.

    For example `fedloom trial fedspu --nodes 10 --rounds 5`. All processes are stopped at the end, also after Ctrl-C.
    A trial that was stopped continues with `fedloom trial --resume DIR`.
    """
    from fedloom.cli.show import progress, summary_table
    from fedloom.flower.deploy.trial import run_trial
    from fedloom.runs.folder import resume_command

    if resume and out is None:
        out = Path(method)  # METHOD is the folder, which has all settings
        experiment = shared.resumed(context, out, clients=clients or nodes)
    else:
        experiment = shared.experiment(method=method, clients=clients or nodes)
    if work is not None and work.exists() and any(work.iterdir()):
        raise BadExperiment(f"work is '{work}', which is not empty; name a new folder.")
    checkpoints_of(checkpoint_every)
    errors = Console(stderr=True)
    console, name = errors if as_json else Console(), experiment.method.name
    folder = out or new_folder_for(experiment)
    try:
        with progress(console, name, experiment.rounds, experiment.build_goal().score) as watch:
            found = run_trial(
                experiment, nodes, out=folder, resume=resume, deadline=deadline, slack=slack,
                checkpoint_every=checkpoint_every, keep=keep, metrics=metrics, data=node_data, work=work,
                watch=watch, tell=note_printer(console),
            )  # fmt: skip
    except KeyboardInterrupt:
        command = resume_command(folder)
        errors.print(
            f"interrupted, all processes stopped; {f'continue with `{command}`' if command else 'no round was begun'}",
            markup=False, highlight=False, soft_wrap=True,
        )  # fmt: skip
        raise typer.Exit(130) from None
    if as_json:
        print_json(found.summary())
        return
    console.print(summary_table(found.result))
    console.print(time_table(found))
    console.print(node_table(found))


def time_table(found: TrialResult) -> Table:
    """Seconds by stage and phase."""
    table = Table(title="where the time went", show_header=False, title_justify="left")
    for name, seconds in found.times.items():
        table.add_row(name, f"{seconds:.1f} s")
    for name, seconds in found.phases.items():
        table.add_row(Text(f"  {name}"), f"{seconds:.2f} s a client and round")
    return table


def node_table(found: TrialResult) -> Table:
    """Bytes of each node in the run, by the tables and on its connections, and its memory."""
    from fedloom.accel.machine import size

    table = Table(Column("node", no_wrap=True), "clients", title="nodes", title_justify="left")
    for name in ("messages up, down", "transport (reckoned)", "on the sockets", "memory"):
        table.add_column(name, justify="right")
    for node in found.nodes:
        payload, transport = (node.payload_up, node.payload_down), (node.transport_up, node.transport_down)
        sizes = [", ".join(map(size, both)) for both in (payload, transport, (node.socket_up, node.socket_down))]
        table.add_row(node.name, node.clients, *sizes, size(node.memory))
    return table
