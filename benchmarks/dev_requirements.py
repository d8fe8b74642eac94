"""Print what fedloom and its tests need, without bounds from above and without torch and flwr, one word each."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

OWN = ("torch", "flwr")  # whose versions are given
FIXED = ("ruff", "mypy")  # which check style and types, and run no test


def main() -> None:
    """Print the requirements for this platform."""
    project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    for one in wanted:
        requirement, _, _ = one.partition(";")
        name = re.split(r"[<>=\[ ]", requirement)[0]
        if name not in (*OWN, *FIXED, "atheris"):
            bounded = name == "click"  # with newer ones, the typer that flwr asks for loses its help
            print(requirement.strip() if bounded else re.sub(r",?<[\d.]+", "", requirement).strip())


if __name__ == "__main__":
    main()
