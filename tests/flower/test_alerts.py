"""The example of alert rules: its form, and that every figure in it is one that a server or a node has."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

import yaml

from fedloom.flower.node.figures import NodeFigures
from fedloom.flower.node.reports import Heard
from fedloom.flower.server.status import Status

FILE = Path(__file__).parents[2] / "examples" / "prometheus-alerts.yml"
NAME = re.compile(r"\b(?:fedloom|process)_\w+")
OTHERS = {"process_resident_memory_bytes"}  # Prometheus's own client has it


@pytest.fixture
def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(FILE.read_text())["groups"] for rule in group["rules"]]


def names() -> set[str]:
    """All samples that there may be."""
    hearing, telling = os.pipe()
    figures = [*Status(None, 1, 1.0, "").figures(), *NodeFigures(Heard(hearing), dict, time.time()).figures()]
    os.close(hearing)
    os.close(telling)
    return {f"fedloom_{one.name}_total" if one.counts else f"fedloom_{one.name}" for one in figures} | OTHERS


def test_every_rule_has_its_parts(rules: list[dict[str, Any]]) -> None:
    assert len(rules) >= 8
    assert len({rule["alert"] for rule in rules}) == len(rules)
    for rule in rules:
        assert set(rule) == {"alert", "expr", "for", "labels", "annotations"}
        assert re.fullmatch(r"\d+[mh]", rule["for"])
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert rule["annotations"]["summary"]
        assert rule["expr"].count("(") == rule["expr"].count(")")


def test_every_figure_is_one_of_ours(rules: list[dict[str, Any]]) -> None:
    used = {name for rule in rules for name in NAME.findall(rule["expr"])}
    assert used <= names()
    assert len(used) >= 8


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool, of Prometheus, is not installed")
def test_prometheus_reads_it_and_every_alert_fires() -> None:
    for words in (["check", "rules", str(FILE)], ["test", "rules", str(Path(__file__).with_name("alerts.test.yml"))]):
        said = subprocess.run(["promtool", *words], capture_output=True, text=True, check=False)
        assert said.returncode == 0, said.stdout + said.stderr
