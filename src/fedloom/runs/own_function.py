"""Functions in files of the user's own, written `path/to/file.py:function`."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from fedloom.errors import BadExperiment, unknown


class OwnFunction(NamedTuple):
    """A function in a file of the user's own."""

    file: Path
    function: str

    def __str__(self) -> str:
        """The name as the user writes it."""
        return f"{self.file}:{self.function}"

    def load(self, what: str) -> Callable[..., Any]:
        """Run the file and return the function; `what` names the setting in errors."""
        if not self.file.is_file():
            raise BadExperiment(f"{what} '{self}': there is no file '{self.file}'; expected path/to/file.py:function.")
        try:
            module = _module(self.file.resolve(), self.file.stat().st_mtime_ns)
        except Exception as problem:
            failure = f"{type(problem).__name__}: {problem}"
            raise BadExperiment(f"{what} '{self}': '{self.file}' does not run: {failure}") from problem
        function = getattr(module, self.function, None)
        if not callable(function):
            names = [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
            raise BadExperiment(unknown(f"function in {self.file}", self.function, names))
        return function  # type: ignore[no-any-return]


def own_function(name: str) -> OwnFunction | None:
    """The user's own function that `name` stands for; None for every other name."""
    file, _, function = name.rpartition(":")
    return OwnFunction(Path(file), function) if file.endswith(".py") else None


@lru_cache(maxsize=32)
def _module(file: Path, changed: int) -> ModuleType:
    """A user's file as a module, run again only after it has changed (`changed` in nanoseconds)."""
    spec = importlib.util.spec_from_file_location(f"fedloom_user_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise ImportError("not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[spec.name]
        raise
    return module
