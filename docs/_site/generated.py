"""Generated parts of pages: a mark such as `<!-- generated: commands -->` is replaced from the code at every build."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, get_args, get_type_hints

import click
import typer.main
from sphinx.application import Sphinx

import fedloom
from fedloom.cli.catalogue import catalogue
from fedloom.cli.main import SETTINGS, Kind, app as command
from fedloom.cli.setting_rows import setting_rows
from fedloom.core.paper import PAPERS
from fedloom.core.rule import LocalRule
from fedloom.method import SLOTS, Method
from fedloom.methods import METHODS

DOCS = Path(__file__).parent.parent
END = "<!-- end of what is generated -->"
MARK = re.compile(
    rf"^<!-- generated: ([a-z]+)(?: ([a-z]+))? -->$(?:\n(?:(?!<!-- generated)[^\n]*\n)*?{END}$)?", re.MULTILINE
)


def _cell(text: str) -> str:
    """Text for a cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")


def _table(head: Iterable[str], rows: Iterable[Iterable[str | int]]) -> str:
    """A Markdown table."""
    head = list(head)
    lines = [head, ["---"] * len(head), *([_cell(str(cell)) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _code(text: str) -> str:
    """Text in backticks, unless it is empty."""
    return f"`{text}`" if text else ""


def names(kind: str) -> str:
    """The table that `fedloom list KIND` shows."""
    rows = ((_code(row.name), row.about, _code(row.settings)) for row in catalogue(kind))
    return _table(("name", "what it is", "settings and their defaults"), rows)


def kinds() -> str:
    """All lists but that of parts, which has its own page."""
    shown = [kind.value for kind in Kind if kind is not Kind.parts and kind not in SETTINGS]
    return "\n\n".join(f"## {kind.capitalize()}\n\n`fedloom list {kind}`\n\n{names(kind)}" for kind in shown)


def settings(group: str) -> str:
    """The fields of an experiment, or of one of its groups, as `fedloom list` shows them."""
    rows = (
        (_code(row.name), row.about, _code(row.default), ", ".join(filter(None, (row.range, row.unit))))
        for row in setting_rows(group)
    )
    return _table(("name", "what it is", "default", "range, unit"), rows)


def _commands() -> dict[str, Any]:
    """The commands by name; those of a group by two words."""
    top: Any = typer.main.get_command(command)
    found = {}
    for name, one in top.commands.items():
        inner = getattr(one, "commands", None)
        found |= {name: one} if inner is None else {f"{name} {word}": two for word, two in inner.items()}
    return found


def _callbacks() -> dict[str, Any]:
    """The functions of commands, by the same names."""
    found = {str(one.name): one.callback for one in command.registered_commands}
    for group in command.registered_groups:
        inner: Any = group.typer_instance
        found |= {f"{group.name} {one.name}": one.callback for one in inner.registered_commands}
    return found


def _helps(name: str) -> dict[str, str]:
    """The help texts of a command's parameters; some versions of typer and click lose those of arguments."""
    hints = get_type_hints(_callbacks()[name], include_extras=True)
    said = {key: [getattr(more, "help", None) for more in get_args(hint)[1:]] for key, hint in hints.items()}
    return {key: next(filter(None, texts), "") for key, texts in said.items()}


def _options(name: str, one: click.Command) -> str:
    """A command's arguments and options."""
    rows, said = [], _helps(name)
    for parameter in one.params:
        shown = ", ".join((*parameter.opts, *parameter.secondary_opts))
        argument = isinstance(parameter, click.Argument) or parameter.param_type_name == "argument"
        default = parameter.default
        given = "" if argument or default is None or default is False or callable(default) else str(default)
        label = (parameter.name or "").upper() if argument else shown
        rows.append((_code(label), said.get(parameter.name or "", ""), _code(given)))
    return _table(("argument or option", "what it is", "default"), rows) if rows else ""


def commands() -> str:
    """All commands with their options."""
    pieces = []
    for name, one in _commands().items():
        usage = one.make_context(f"fedloom {name}", [], resilient_parsing=True, terminal_width=80).get_usage()
        about = inspect.cleandoc(one.help or "")
        pieces += [f"## fedloom {name}", about, f"```text\n{usage}\n```", _options(name, one)]
    return "\n\n".join(pieces)


def _auto(directive: str, name: str, *options: str) -> str:
    """A directive of autodoc."""
    lines = [
        f".. {directive}:: {name}",
        *(f"   :{option}" if ": " in option else f"   :{option}:" for option in options),
    ]
    return "```{eval-rst}\n" + "\n".join(lines) + "\n```"


def _documented(thing: Any, *options: str) -> str:
    """The entry of a class or function, under the module that defines it."""
    kind = "autoclass" if inspect.isclass(thing) else "autofunction"
    if inspect.isclass(thing) and issubclass(thing, Exception):
        kind = "autoexception"
    return _auto(kind, f"{thing.__module__}.{thing.__qualname__}", *(options if inspect.isclass(thing) else ()))


def public() -> str:
    """Every public name."""
    things = [getattr(fedloom, name) for name in fedloom.__all__]
    titles = {
        "Running": ("fedloom.runs.", "fedloom.report.", "fedloom.cli."),
        "Studies": ("fedloom.studies.",),
        "Data": ("fedloom.data.",),
        "Methods and their parts": ("fedloom.method", "fedloom.parts.", "fedloom.core.rule"),
        "A round": ("fedloom.round", "fedloom.core.", "fedloom.chance"),
        "Neurons": ("fedloom.neurons.",),
        "Errors": ("fedloom.errors",),
        "More": ("",),
    }
    pieces, left = [], things
    for title, modules in titles.items():
        mine = [thing for thing in left if thing.__module__.startswith(modules)]
        left = [thing for thing in left if thing not in mine]
        if mine:
            hidden = "exclude-members: model_config, model_post_init, count, index"
            pieces += [f"## {title}", *(_documented(thing, hidden) for thing in mine)]
    return "\n\n".join(pieces)


def parts() -> str:
    """The contract of each slot, the parts that fill it without the hooks that all share, and other names."""
    from fedloom import parts as room

    pieces, shown = [], set(fedloom.__all__)
    for slot in SLOTS:
        contract: Any = LocalRule if slot == "local" else getattr(room, slot.capitalize())
        pieces += [f"## {slot}", _documented(contract, "special-members: __call__", *_elsewhere(contract))]
        found = sorted(_leaves(contract), key=lambda leaf: leaf.__name__)
        pieces += [_documented(leaf, "no-members", *_elsewhere(leaf)) for leaf in found if leaf is not contract]
        shown |= {contract.__name__, *(leaf.__name__ for leaf in found)}
    others = [getattr(room, name) for name in room.__all__ if name not in {*shown, "State"}]
    pieces += ["## Other names", *(_documented(thing, "members", *_elsewhere(thing)) for thing in others)]
    return "\n\n".join(pieces)


def _elsewhere(thing: type) -> tuple[str, ...]:
    """The option for names whose entry is on another page."""
    there = thing.__name__ in fedloom.__all__ and getattr(fedloom, thing.__name__) is thing  # there are two `Whole`
    return ("no-index",) if there else ()


def _leaves(kind: type) -> set[type]:
    """The package's parts of one kind."""
    catalogue("parts")  # imports them all
    below: list[type] = kind.__subclasses__()
    own = {leaf for sub in below for leaf in _leaves(sub)}
    own |= {kind} if not inspect.isabstract(kind) else set()
    return {leaf for leaf in own if leaf.__module__.startswith("fedloom.")}


def methods() -> str:
    """Every method: its paper, our differences, and its settings."""
    pieces = []
    for name, maker in METHODS.items():
        pieces += [f"## {name}", _auto("automodule", maker.__module__, "no-members", "no-index")]
        pieces.append(_documented(maker))
    return "\n\n".join(pieces)


def slots() -> str:
    """One row for every method: its paper, and the parts in which it differs from FedAvg, slot by slot."""
    plain, rows = Method(), []
    for name, make in METHODS.items():
        method, said = make(), PAPERS[make]
        parts = [getattr(method, slot) for slot in SLOTS]
        shown = [_names(part) if part != getattr(plain, slot) else "" for slot, part in zip(SLOTS, parts)]
        rows.append(
            (f"[`{name}`](reference-methods.md#{name})", said.source, said.year, said.origin, said.mask, *shown)
        )
    return _table(("name", "paper", "year", "whose", "the mask governs", *SLOTS), rows)


def _names(part: Any) -> str:
    """The name of a part; of a local rule the names of the rules that it is made of."""
    rules = [one for one in part.members() if len(one.members()) == 1] if isinstance(part, LocalRule) else [part]
    return " + ".join(_code(type(one).__name__) for one in rules)


def pages(folder: str) -> str:
    """A list of the pages whose names begin with `folder`, if there are any."""
    found = sorted(
        page.relative_to(DOCS).with_suffix("").as_posix()
        for page in (*DOCS.glob(f"{folder}*.md"), *DOCS.glob(f"{folder}/*.md"))
    )
    listed = "\n".join(found)
    return f"```{{toctree}}\n:caption: {folder.capitalize()}\n:hidden:\n\n{listed}\n```" if found else ""


WRITERS: dict[str, Callable[..., str]] = {
    "commands": commands,
    "kinds": kinds,
    "settings": settings,
    "public": public,
    "parts": parts,
    "methods": methods,
    "slots": slots,
    "pages": pages,
}


def in_clone(page: Path) -> str:
    """The text of a page with what is generated in it, for those who read it without the site."""

    def written(mark: re.Match[str]) -> str:
        name, more = mark[1], mark[2]
        text = PLAIN[name]() if name in PLAIN else WRITERS[name](*(part for part in (more,) if part))
        return (
            mark[0]
            if name == "pages"
            else f"<!-- generated: {' '.join(filter(None, (name, more)))} -->\n\n{text}\n\n{END}"
        )

    return MARK.sub(written, page.read_text())


def _listed(kind: str) -> str:
    """What `fedloom list KIND` shows."""
    return f"`fedloom list {kind}`\n\n{names(kind)}"


def _public_names() -> str:
    """The public names, a sentence each."""
    things = {name: getattr(fedloom, name) for name in fedloom.__all__}
    rows = ((_code(name), (inspect.getdoc(thing) or "").partition("\n")[0]) for name, thing in things.items())
    return _table(("name", "what it is"), rows)


PLAIN: dict[str, Callable[[], str]] = {  # in place of what only Sphinx can write
    "public": _public_names,
    "parts": lambda: _listed("parts"),
    "methods": lambda: _listed("methods"),
}


def _read(app: Sphinx, page: str, source: list[str]) -> None:
    """Replace the marks of a page by generated text."""
    source[0] = MARK.sub(lambda mark: WRITERS[mark[1]](*(part for part in mark.groups()[1:] if part)), source[0])


def _changed(app: Sphinx, env: Any, added: Any, changed: Any, removed: Any) -> list[str]:
    """The pages with marks, which are written anew at every build."""
    return [page for page in env.found_docs if MARK.search(Path(env.doc2path(page)).read_text())]


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the handlers that run before a page is parsed."""
    app.connect("source-read", _read)
    app.connect("env-get-outdated", _changed)
    return {"parallel_read_safe": True}


if __name__ == "__main__":
    for each in sorted(DOCS.glob("reference-*.md")):
        each.write_text(in_clone(each))
