"""Runs that all tests of the report read; those that change a folder take a copy."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from report.folders import several, small


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three methods in a world, one of them under two seeds."""
    return several(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="session")
def _plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small(tmp_path_factory.mktemp("plain") / "run")


@pytest.fixture
def plain(_plain: Path, tmp_path: Path) -> Callable[[str], Path]:
    """A copy of a run without a fleet, under any name."""

    def copy(name: str) -> Path:
        return Path(shutil.copytree(_plain, tmp_path / name))

    return copy
