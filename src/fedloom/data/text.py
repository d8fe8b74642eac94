"""Texts as rows of token ids."""

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np

from fedloom.data.sampling import Ints, whole
from fedloom.reading.cap import check_room

PADDING, UNKNOWN = 0, 1
TOKEN, LETTER = 8, 10  # bytes of memory for each token, and for each letter of a text while its words are counted
_WORD = re.compile(r"\w+")


def encode(
    train: Sequence[str],
    test: Sequence[str],
    vocabulary_size: int = 20_000,
    length: int = 64,
    file: str = "the data",
) -> tuple[Ints, Ints, int]:
    """Token ids of both sets [n, length], and their number; ids stand for the training texts' commonest words."""
    vocabulary_size = whole("vocabulary_size", vocabulary_size, 1)
    length = whole("length", length, 1)
    letters = sum(map(len, train)) + sum(map(len, test))
    check_room(file, TOKEN * length * (len(train) + len(test)) + LETTER * letters)
    train_words = _words(train)
    counts: Counter[str] = Counter()
    for words in train_words:
        counts.update(words)
    common = sorted(counts, key=lambda word: (-counts[word], word))[:vocabulary_size]
    index = {word: i for i, word in enumerate(common, start=UNKNOWN + 1)}
    return _rows(train_words, index, length), _rows(_words(test), index, length), len(index) + 2


def _words(texts: Sequence[str]) -> list[list[str]]:
    """Each text's words: sequences of letters, digits and underscores in lower case."""
    return [_WORD.findall(text.lower()) for text in texts]


def _rows(texts: list[list[str]], index: dict[str, int], length: int) -> Ints:
    """Ids, cut or padded to one length; a text without words is one unknown word, so that no row is only padding."""
    rows = np.full((len(texts), length), PADDING, np.int64)
    for row, words in zip(rows, texts):
        ids = [index.get(word, UNKNOWN) for word in words[:length]] or [UNKNOWN]
        row[: len(ids)] = ids
    return rows
