"""Tables of groups, axes, costs and memory."""

import io

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from fedloom.models import build, example
from fedloom.neurons.table import groups_table, tables, whole_table
from fedloom.neurons.trace import neuron_map
from neurons.nets import Apply, cnn


def text(*shown: Table) -> str:
    """Text that a wide terminal shows."""
    console = Console(file=io.StringIO(), width=200)
    for table in shown:
        console.print(table)
    return console.file.getvalue()


def row(shown: str, first: str) -> list[str]:
    """The cells of the row that starts with this one."""
    cells = [[cell.strip() for cell in line.strip("│ ").split("│")] for line in shown.splitlines()]
    return next(line for line in cells if line[0] == first)


def test_groups_axes_and_costs() -> None:
    net_map = neuron_map(cnn(), torch.zeros(2, 1, 8, 8))
    groups, axes, costs = map(text, tables(net_map))
    assert row(groups, "4") == ["4", "6", "channels", "7", "yes"]
    assert row(groups, "11") == ["11", "3", "outputs", "2", "no: output"]
    assert row(axes, "9.weight") == ["9.weight", "8 x 24", "9, 4 x 4"]
    assert row(axes, "4.weight") == ["4.weight", "6 x 4 x 3 x 3", "4, 0, -, -"]
    for share in (0.2, 0.4, 0.6, 0.8, 1.0):
        keep = net_map.cut(-torch.arange(net_map.size).float(), share)
        values = [net_map.parameters(keep), net_map.flops(keep), net_map.bytes(keep)]
        assert [cell.split()[0] for cell in row(costs, f"{share:g}")[1:]] == [f"{int(value):,}" for value in values]


def test_it_tells_where_masking_and_slicing_differ() -> None:
    parts = nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), Apply(lambda x: x.permute(0, 2, 3, 1)), nn.Flatten()
    groups, axes, _ = map(text, tables(neuron_map(nn.Sequential(*parts, nn.Linear(144, 3)), torch.zeros(2, 1, 8, 8))))
    assert "masking and slicing differ: 1" in " ".join(groups.split())
    assert row(groups, "0")[4] == "in multiples of 2"
    assert row(axes, "4.weight")[2] == "4, 36 * 0"


def test_a_transformer_has_heads_and_units_and_a_stream_that_is_whole() -> None:
    torch.manual_seed(0)
    net_map = neuron_map(build("vit", (3, 32, 32), 10, depth=1), example((3, 32, 32)))
    groups, whole = text(groups_table(net_map)), text(whole_table(net_map))
    assert row(groups, "blocks.block1.attention.query") == ["blocks.block1.attention.query", "4", "heads", "6", "yes"]
    assert row(groups, "blocks.block1.wide")[1:3] == ["256", "units"]
    assert row(whole, "position") == ["position", "4,096 (7.1%)"]
    assert "patches" in whole
    assert "blocks.block1.wide" not in whole
    assert "width that residual blocks add to" in " ".join(whole.split())
