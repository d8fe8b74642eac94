"""Nothing that came as data is run: no pickle, no eval, no shell; and the lock holds what the project asks for."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parent.parent
FOLDERS = ("src", "tests", "benchmarks", "fuzz")
FILES = sorted(
    file
    for folder in FOLDERS
    for file in (ROOT / folder).rglob("*.py")
    if ".venv" not in file.parts  # of the peers
)
EXCEPTIONS = {  # what is allowed where, and why
    "tests/documented.py": {"exec", "compile"},  # our own documentation
    "tests/test_readme.py": {"exec", "compile"},  # our own README
    "tests/parts/test_public.py": {"eval"},  # how our own methods print
    "tests/data/test_load.py": {"np.savez"},  # writes what must be refused
    "tests/neurons/test_cut.py": {"torch.save", "torch.load"},  # what it has just written, whole modules too
    "tests/neurons/test_export.py": {"torch.save", "torch.load"},
    "tests/neurons/test_extract.py": {"torch.save"},  # writes, to show that a module can be saved; never loads
}
MODULES = {"pickle", "_pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib", "jsonpickle"}
CALLS = {"eval", "exec", "compile", "__import__", "os.system", "os.popen", "torch.load", "torch.save", "torch.jit.load"}
CALLS |= {"torch.package.PackageImporter", "torch.hub.load", "yaml.load", "yaml.unsafe_load", "yaml.full_load"}
CALLS |= {"pd.read_pickle", "pandas.read_pickle", "tempfile.mktemp", "tarfile.open", "shutil.unpack_archive"}
CALLS |= {"np.core.records.fromfile", "np.lib.format.read_array", "xml.etree.ElementTree.parse"}


def dotted(node: ast.expr) -> str:
    """`a.b.c` as it is written; empty for anything but names."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def unsafe(tree: ast.AST) -> Iterator[str]:
    """What runs code that came as data. Python files named by the user are run by importlib, as an import is."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names if name.name.partition(".")[0] in MODULES)
        if isinstance(node, ast.ImportFrom):
            yield from [node.module or ""] if (node.module or "").partition(".")[0] in MODULES else []
            named = [f"{node.module}.{name.name}" for name in node.names]
            yield from (name for name in named if name in CALLS)
        if isinstance(node, ast.Call):
            name, words = dotted(node.func), {word.arg: word.value for word in node.keywords}
            if name in CALLS:
                yield name
            pickles = words.get("allow_pickle", ast.Constant(name in ("np.load", "numpy.load", "np.fromfile")))
            if not isinstance(pickles, ast.Constant) or pickles.value is not False:
                yield name
            shell = words.get("shell", ast.Constant(False))
            if not isinstance(shell, ast.Constant) or shell.value is not False:
                yield f"{name} with a shell"


@pytest.mark.parametrize("file", FILES, ids=[str(file.relative_to(ROOT)) for file in FILES])
def test_nothing_that_came_as_data_is_run(file):
    allowed = EXCEPTIONS.get(file.relative_to(ROOT).as_posix(), set())
    assert set(unsafe(ast.parse(file.read_text()))) <= allowed


def test_every_exception_is_needed():
    for name, allowed in EXCEPTIONS.items():
        assert set(unsafe(ast.parse((ROOT / name).read_text()))) == allowed


@pytest.mark.parametrize(
    "text",
    [
        *("import pickle", "from pickle import loads", "import joblib.numpy_pickle", "import cloudpickle as c"),
        *("eval('1')", "exec('1')", "compile('1', '', 'eval')", "__import__(name)", "os.system('ls')"),
        *("torch.load('file')", "from torch import load", "torch.jit.load('file')", "from torch.hub import load"),
        *("np.load('file')", "np.load('file', allow_pickle=True)", "np.load('file', allow_pickle=trusted)"),
        *("yaml.load(text)", "from yaml import unsafe_load", "subprocess.run('ls', shell=True)", "pd.read_pickle('f')"),
    ],
)
def test_the_rule_finds_what_it_looks_for(text):
    assert list(unsafe(ast.parse(text)))


def test_the_rule_leaves_the_rest_alone():
    fine = "import json\nspec.loader.exec_module(m)\nnp.load(f, allow_pickle=False)\nre.compile('a')\nmodel.eval()"
    assert not list(unsafe(ast.parse(fine)))


# ---- the lock

LOCK = (ROOT / "requirements.lock").read_text()
PINS = [Requirement(line.rstrip(" \\")) for line in LOCK.splitlines() if re.match("[a-z]", line)]


def pinned(name: str, python: str) -> Version | None:
    """The version that the lock has for Linux and a version of Python."""
    here = {"sys_platform": "linux", "platform_machine": "x86_64", "python_full_version": f"{python}.0"}
    here |= {"python_version": python, "platform_python_implementation": "CPython", "implementation_name": "cpython"}
    for pin in PINS:
        if pin.name == name and (pin.marker is None or Marker(str(pin.marker)).evaluate(here)):
            return Version(next(iter(pin.specifier)).version)
    return None


@pytest.mark.parametrize("python", ["3.11", "3.12"])
def test_the_lock_holds_what_the_project_asks_for(python):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = [*project["project"]["dependencies"], *project["project"]["optional-dependencies"]["dev"]]
    for requirement in map(Requirement, [*wanted, *project["build-system"]["requires"]]):
        if requirement.name != "torch":  # pinned in the Makefile: its builds have one version and many files
            found = pinned(requirement.name, python)
            assert found is not None, requirement.name
            assert found in requirement.specifier, requirement


def test_every_line_of_the_lock_is_hashed_and_torch_is_not_in_it():
    assert all(str(next(iter(pin.specifier)).operator) == "==" for pin in PINS)
    entries = re.split(r"\n(?=[a-z])", re.sub(r"^#.*\n", "", LOCK, flags=re.MULTILINE))
    assert len(entries) == len(PINS) > 50
    assert all("--hash=sha256:" in entry for entry in entries)
    assert not [pin.name for pin in PINS if pin.name == "torch" or pin.name.startswith(("nvidia", "cuda"))]


def test_torch_is_pinned_within_what_the_project_allows():
    pin = re.search(r"install --quiet (torch==\d\S*)", (ROOT / "Makefile").read_text())
    assert pin is not None
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    allowed = next(Requirement(one) for one in project["dependencies"] if one.startswith("torch"))
    assert Version(pin[1].partition("==")[2]) in allowed.specifier
