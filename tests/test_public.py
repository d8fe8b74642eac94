"""The public names, and the house rules that a reader relies on."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import fedloom

HOUSE = Path(fedloom.__file__).parent
FILES = sorted(HOUSE.rglob("*.py"))
each_file = pytest.mark.parametrize("file", FILES, ids=[str(file.relative_to(HOUSE)) for file in FILES])

LONGEST = 300  # lines


def parse(file: Path) -> ast.Module:
    """A file's syntax tree."""
    return ast.parse(file.read_text(), str(file))


def dotted(node: ast.expr) -> str:
    """`a.b.c` as it is written; empty for anything but names."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def imported(tree: ast.AST) -> set[str]:
    """The first word of every module that is imported."""
    names = {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    names |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    return {name.partition(".")[0] for name in names}


# ---- the public names


def test_all_is_sorted_and_complete():
    assert fedloom.__all__ == sorted(fedloom.__all__)
    assert len(set(fedloom.__all__)) == len(fedloom.__all__)
    public = {name for name, thing in vars(fedloom).items() if name[0] != "_" and not isinstance(thing, ModuleType)}
    assert public == set(fedloom.__all__)


@pytest.mark.parametrize("name", fedloom.__all__)
def test_every_public_name_says_what_it_is(name):
    thing = getattr(fedloom, name)
    assert callable(thing)
    assert thing.__doc__
    assert thing.__module__.startswith("fedloom.")


def test_the_version_is_the_packages():
    assert fedloom.__version__.count(".") == 2
    assert all(part.isdigit() for part in fedloom.__version__.split(".")[:2])


# ---- docstrings


def documented(tree: ast.AST, path: str) -> Iterator[tuple[str, str | None]]:
    """Every public module, class and function with its docstring; what is inside a function is nobody else's."""
    if isinstance(tree, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        yield path, ast.get_docstring(tree, clean=False)
    if isinstance(tree, ast.Module | ast.ClassDef):
        for node in tree.body:
            named = isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            if named and (node.name == "__call__" or not node.name.startswith("_")):
                yield from documented(node, f"{path}:{node.name}")


@each_file
def test_docstrings_begin_with_one_line(file):
    tree = parse(file)
    if not tree.body:
        return  # an empty __init__.py
    for name, text in documented(tree, file.name):
        assert text, f"{name} has no docstring"
        first, *rest = text.split("\n")
        assert first.strip() == first, f"{name}: the first line is the sentence"
        assert first[-1] in ".?:!", f"{name}: {first!r} does not end"
        assert not rest or not rest[0].strip(), f"{name}: an empty line follows the first"


# ---- house rules


@each_file
def test_no_file_is_long(file):
    assert len(file.read_text().splitlines()) <= LONGEST


def printing(tree: ast.AST) -> Iterator[str]:
    """What writes to a terminal."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and dotted(node.func) in ("print", "pprint", "typer.echo", "rich.print"):
            yield f"line {node.lineno}: {dotted(node.func)}"
        if isinstance(node, ast.Attribute) and dotted(node) in ("sys.stdout", "sys.stderr"):
            yield f"line {node.lineno}: {dotted(node)}"
        if isinstance(node, ast.ImportFrom) and node.module in ("rich", "rich.console", "rich.progress", "typer"):
            yield f"line {node.lineno}: {node.module}"


def drawing(tree: ast.AST) -> Iterator[str]:
    """What draws from torch's or Python's own random streams."""
    names = ("rand", "randn", "rand_like", "randn_like", "randint", "randperm", "bernoulli", "multinomial", "normal")
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and dotted(node.func) in [f"torch.{name}" for name in names]:
            yield f"line {node.lineno}: {dotted(node.func)}"
    used = {dotted(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    if "random" in imported(tree) and {name for name in used if name.startswith("random.")} != {"random.getstate"}:
        yield "import random"  # but for asking whether somebody else drew


@each_file
def test_only_the_command_prints(file):
    assert file.parent.name == "cli" or not list(printing(parse(file)))


@each_file
def test_chance_is_asked_for_randomness(file):
    assert not list(drawing(parse(file)))


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (printing, "print(1)"),
        (printing, "import sys\nsys.stdout.write('1')"),
        (printing, "from rich.console import Console"),
        (drawing, "import random"),
        (drawing, "import random\nrandom.getstate()\nrandom.random()"),
        (drawing, "torch.randn(3)"),
    ],
)
def test_the_rules_find_what_they_look_for(rule, text):
    assert list(rule(ast.parse(text)))
    assert not list(rule(ast.parse("import json")))
