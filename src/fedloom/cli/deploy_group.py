"""The group `fedloom deploy`: `fedloom deploy METHOD` writes a deployment, and its other commands change one."""

from __future__ import annotations

import click
import typer
from typer.core import TyperGroup

from fedloom.cli.deployment import (
    add_command,
    register_command,
    remove_command,
    restart_command,
    rotate_command,
    show_command,
)
from fedloom.cli.flower import deploy_command

NEW = "new"  # the command of `fedloom deploy METHOD`


class DeployGroup(TyperGroup):
    """Commands by name; whatever else comes first is a METHOD to deploy."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put `new` before a METHOD and its options."""
        if args and args[0] not in self.commands and args[0] != "--help":
            args = [NEW, *args]
        return super().parse_args(ctx, args)


deploy_app = typer.Typer(
    cls=DeployGroup, no_args_is_help=True,
    help="Write all that METHOD needs to run on several machines, or change a deployment that is there.\n\n"
    "`fedloom deploy METHOD --out DIR` is `fedloom deploy new METHOD --out DIR`.",
)  # fmt: skip
deploy_app.command(NEW)(deploy_command)
deploy_app.command("show")(show_command)
deploy_app.command("rotate")(rotate_command)
deploy_app.command("add")(add_command)
deploy_app.command("remove")(remove_command)
deploy_app.command("register")(register_command)
deploy_app.command("restart")(restart_command)
