"""Shakespeare's characters by role: texts for next-token prediction whose clients are the roles that speak them."""

from collections import defaultdict
from pathlib import Path

import numpy as np

from fedloom.data.dataset import Dataset
from fedloom.data.sampling import Ints, whole
from fedloom.errors import BadData
from fedloom.reading.cap import check_room
from fedloom.reading.texts import read_gzip

NAMES = ("tiny_shakespeare.txt", "tiny_shakespeare.txt.gz")
EMBEDDED = Path(__file__).parent / "embedded" / "shakespeare.txt.gz"
LEAST = 5  # fewest windows of a role, so that one of them is for testing
PADDING = 0
LONGEST = 2**24  # bytes of the text, unpacked; the whole of it has a fifteenth


def shakespeare(folder: Path | None = None, *, length: int = 48, roles: int | None = None) -> Dataset:
    """Windows of `length` characters of the roles' speeches; a role is a client, `roles` are at most those with most.

    The text is tiny_shakespeare.txt or .txt.gz of the folder, if it is there; else the part that comes with fedloom,
    about 17,000 characters of each of its twenty largest roles. A role's speeches are joined and cut into windows, of
    which the last fifth is for testing. Token 0 is padding, the others are characters. Goal `next-token` makes targets
    from the inputs, so targets are 0. Partitions that deal by class deal by role.
    """
    length = whole("length", length, 2)
    file = _find(folder)
    speeches = _speeches(file)
    letters = "".join(sorted(set("".join(speeches.values()))))
    code = {letter: number for number, letter in enumerate(letters, PADDING + 1)}
    texts = {role: np.array([code[letter] for letter in text], np.int64) for role, text in speeches.items()}
    most = sorted(texts, key=lambda role: (-len(texts[role]), role))
    enough = [role for role in most if len(texts[role]) > (LEAST - 1) * length + 1]
    if roles is not None:
        enough = enough[: whole("roles", roles, 1)]
    if not enough:
        raise BadData(f"{file}: no role has {LEAST} windows of {length} characters; set a smaller length")
    cut = [_windows(texts[role], length) for role in enough]
    tested = [-(-len(windows) // 5) for windows in cut]  # a fifth, rounded up
    train = [windows[:-last] for windows, last in zip(cut, tested)]
    test = [windows[-last:] for windows, last in zip(cut, tested)]
    client_train, client_test = (np.repeat(np.arange(len(enough)), [len(w) for w in part]) for part in (train, test))
    x_train, x_test = np.concatenate(train), np.concatenate(test)
    nothing = [np.zeros(len(x), np.int64) for x in (x_train, x_test)]
    return Dataset(
        "shakespeare", x_train, nothing[0], x_test, nothing[1], client_train, client_test, classes=1,
        vocabulary=len(letters) + 1, stratum_train=client_train.copy(), client_names=tuple(enough), divided=True,
    )  # fmt: skip


def letters_of(folder: Path | None = None) -> str:
    """The characters of tokens 1, 2, ... of `shakespeare(folder)`."""
    return "".join(sorted(set("".join(_speeches(_find(folder)).values()))))


def _find(folder: Path | None) -> Path:
    """The file of the whole text in the folder, or of the embedded part."""
    files = [] if folder is None else [Path(folder) / name for name in NAMES]
    return next((file for file in files if file.is_file()), EMBEDDED)


def _speeches(file: Path) -> dict[str, str]:
    """What each role says, its speeches joined by line breaks; the file has a line `ROLE:` above each speech."""
    try:
        check_room(file, 4 * file.stat().st_size)
        raw = read_gzip(file, LONGEST) if file.suffix == ".gz" else file.read_bytes()
        text = raw.decode("utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise BadData(f"{file} cannot be read: {problem}") from problem
    found: dict[str, list[str]] = defaultdict(list)
    for block in text.replace("\r\n", "\n").split("\n\n"):
        role, colon, speech = block.strip("\n").partition(":\n")
        if colon and speech:
            found[role].append(speech)
    if not found:
        raise BadData(
            f"{file}: no speeches found; expected blocks 'ROLE:', a line break and text, with empty lines between"
        )
    return {role: "\n".join(parts) for role, parts in found.items()}


def _windows(tokens: Ints, length: int) -> Ints:
    """Rows [n, length] of a text; the last one is filled up, and left out if it has a single character."""
    tokens = tokens[: len(tokens) - (len(tokens) % length == 1)]
    rows = np.full((-(-len(tokens) // length), length), PADDING, np.int64)
    rows.ravel()[: len(tokens)] = tokens
    return rows
