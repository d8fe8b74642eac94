"""The commands `fedloom deploy show`, `rotate`, `add`, `remove`, `register` and `restart`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from fedloom.cli.options import JsonOption, note_printer, print_json
from fedloom.errors import BadExperiment

if TYPE_CHECKING:
    from fedloom.flower.deploy.change import Change

FolderArgument = Annotated[
    Path, typer.Argument(metavar="DIR", help="the folder that `fedloom deploy --out` has written")
]
PatienceOption = Annotated[float, typer.Option(min=1, help="seconds until a node that does not come is given up")]


def show_command(folder: FolderArgument, *, as_json: JsonOption = False) -> None:
    """Show a deployment: its link, nodes and clients, keys, certificates with days left and, if the link answers, runs.

    For example `fedloom deploy show deployment`. Certificates with less than 30 days left are warned of.
    """
    from fedloom.flower.deploy.opened import open_folder
    from fedloom.flower.deploy.show import facts

    opened = open_folder(folder)
    if not as_json:
        note_printer(Console(stderr=True))(f"asking the link at {opened.gateway.control} ...")
    found = facts(opened)
    if as_json:
        print_json(found)
        return
    console = Console()
    for table in (_deployment_table(found), _node_table(found), _certificate_table(found)):
        console.print(table)
    if found["runs"]:
        console.print(_run_table(found))
    for warning in warnings(found):
        console.print(f"warning: {warning}", style="bold red", markup=False, highlight=False, soft_wrap=True)


def rotate_command(
    folder: FolderArgument,
    *,
    server: Annotated[bool, typer.Option("--server", help="a new certificate and key for the link")] = False,
    ca: Annotated[bool, typer.Option("--ca", help="a new authority, trusted next to the old one")] = False,
    drop_old_ca: Annotated[bool, typer.Option("--drop-old-ca", help="trust the new authority alone")] = False,
    node: Annotated[int | None, typer.Option(min=0, help="a new key for this node")] = None,
    as_json: JsonOption = False,
) -> None:
    """Change a certificate or a key, and say what to copy where and what to type, in order.

    For example `fedloom deploy rotate deployment --server`. For an authority: --ca, then --server, then --drop-old-ca,
    so that link and nodes can change one after another.
    """
    from fedloom.flower.deploy import change

    asked = {"--server": server, "--ca": ca, "--drop-old-ca": drop_old_ca, "--node": node is not None}
    if sum(asked.values()) != 1:
        raise BadExperiment(
            f"rotate got {', '.join(n for n in asked if asked[n]) or 'nothing'}; expected one of {', '.join(asked)}."
        )
    if node is not None:
        print_change(change.rotate_a_node(folder, node), as_json)
        return
    rotate = change.rotate_the_link if server else change.rotate_the_authority if ca else change.drop_the_old_authority
    print_change(rotate(folder), as_json)


def add_command(
    folder: FolderArgument,
    *,
    nodes: Annotated[int, typer.Option(min=1, help="how many")] = 1,
    clients: Annotated[
        str,
        typer.Option(help="those that the new nodes host, as 0-4,7; without: those without a node, or a part of all"),
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """Add nodes to a deployment, and say what to copy where and what to type, in order.

    For example `fedloom deploy add deployment --nodes 2`.
    """
    from fedloom.flower.deploy.change import add_nodes
    from fedloom.flower.protocol.assignment import parse_ranges

    print_change(add_nodes(folder, nodes, parse_ranges(clients) if clients else ()), as_json)


def remove_command(
    folder: FolderArgument,
    *,
    node: Annotated[int, typer.Option(min=0, help="its number")],
    deal: Annotated[bool, typer.Option("--deal", help="deal its clients to the other nodes")] = False,
    as_json: JsonOption = False,
) -> None:
    """Remove a node from a deployment, and say what to type, in order.

    For example `fedloom deploy remove deployment --node 3`.
    """
    from fedloom.flower.deploy.change import remove_node

    print_change(remove_node(folder, node, deal), as_json)


def register_command(
    folder: FolderArgument,
    *,
    retire: Annotated[
        bool, typer.Option("--retire", help="refuse old keys too, each when its node has come with the new one")
    ] = False,
    patience: PatienceOption = 600.0,
) -> None:
    """Let the link admit the keys of all nodes in the folder; with --retire, refuse those that were changed or removed.

    For example `fedloom deploy register deployment`. What is registered already stays as it is.
    """
    from fedloom.flower.deploy.opened import open_folder
    from fedloom.flower.deploy.registered import reached, register_nodes, unregister_retired

    opened, tell = open_folder(folder), note_printer(Console())
    with reached(opened) as control:
        register_nodes(opened, control, tell)
        if retire:
            unregister_retired(opened, control, patience, tell)


def restart_command(
    folder: FolderArgument,
    *,
    with_: Annotated[
        str,
        typer.Option(
            "--with", metavar="COMMAND", help="what restarts a node; {number} in it is the node's, such as 3 of node-3"
        ),
    ],
    patience: PatienceOption = 600.0,
) -> None:
    """Restart the nodes one after another, each when the one before is online again; a run goes on meanwhile.

    For example `fedloom deploy restart deployment --with 'ssh node-{number} systemctl restart fedloom-node@{number}'`.
    """
    from fedloom.flower.deploy.opened import open_folder
    from fedloom.flower.deploy.registered import reached, restart_nodes

    opened = open_folder(folder)
    with reached(opened) as control:
        restart_nodes(opened, control, with_, patience, note_printer(Console()))


def print_change(change: Change, as_json: bool) -> None:
    """Print what was changed and what is to be done."""
    if as_json:
        print_json({**change._asdict(), "folder": str(change.folder)})
        return
    console = Console(highlight=False, soft_wrap=True)
    for line in change.done:
        console.print(line, markup=False)
    for file, place in change.copies:
        console.print(f"# copy {file} to {place}", style="dim", markup=False)
    for why, command in change.steps:
        console.print(f"# {why}", style="dim", markup=False)
        console.print(command, markup=False)
    console.print(f"# {change.stays}", style="dim", markup=False)


def warnings(found: dict[str, Any]) -> list[str]:
    """What is not as it should be."""
    said = [f"the {one['what']}'s certificate {one['note']}" for one in found["certificates"] if one["note"]]
    said += [f"{one} is not refused yet; `fedloom deploy register --retire` does that" for one in found["retired"]]
    if found["problem"]:
        return [*said, found["problem"]]
    return said + [f"{node['name']} is not registered" for node in found["nodes"] if node["link"] is None]


def _deployment_table(found: dict[str, Any]) -> Table:
    """The link and the experiment."""
    table = Table(title=found["folder"], show_header=False, title_justify="left")
    about = found["experiment"]
    table.add_row("nodes connect to", found["gate"])
    table.add_row("operators, to", found["link"])
    table.add_row("names of that machine", ", ".join(found["hosts"]) or "none but its own")
    table.add_row(
        "experiment", f"{about['method']} on {about['data']}, {about['clients']} clients, {about['rounds']} rounds"
    )
    table.add_row("run folder", Text(about["out"]))
    return table


def _node_table(found: dict[str, Any]) -> Table:
    """The nodes."""
    key = Column("key", overflow="fold")
    table = Table(Column("node", no_wrap=True), "clients", "state", key, title="nodes", title_justify="left")
    for node in found["nodes"]:
        state = "" if found["problem"] else "not registered" if node["link"] is None else node["link"]["status"]
        table.add_row(node["name"], node["clients"], state, node["key"])
    return table


def _certificate_table(found: dict[str, Any]) -> Table:
    """The certificates."""
    table = Table("certificate of", "valid until", "days left", "SHA-256", title="certificates", title_justify="left")
    for one in found["certificates"]:
        table.add_row(one["what"], one["until"][:10], f"{one['days']:.0f}", one["fingerprint"][:16])
    return table


def _run_table(found: dict[str, Any]) -> Table:
    """The newest runs of the link."""
    table = Table("run", "state", title="runs on the link", title_justify="left")
    for number, run in found["runs"].items():
        table.add_row(number, " ".join(filter(None, (run["status"], run["outcome"], run["details"]))))
    return table
