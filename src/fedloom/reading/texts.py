"""JSON files, and texts that are packed as .gz."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from fedloom.errors import BadData
from fedloom.reading.cap import check_room, reason

OBJECTS = 24  # bytes of memory for each byte of JSON, at most: an empty list


def read_json(file: Path) -> Any:
    """What a JSON file holds; a file that is not there raises FileNotFoundError, as a path through a file does."""
    try:
        check_room(file, OBJECTS * file.stat().st_size)
        return json.loads(file.read_bytes())
    except (FileNotFoundError, NotADirectoryError, BadData):
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise BadData(f"'{file}' cannot be read ({reason(error)}).") from error


def read_gzip(file: Path, most: int) -> bytes:
    """What a .gz file unpacks to, refused beyond `most` bytes."""
    try:
        with gzip.open(file) as opened:
            found = opened.read(most + 1)
    except Exception as error:  # gzip, zlib and struct each have their own
        raise BadData(f"{file} cannot be read ({reason(error)}); copy it again.") from error
    if len(found) > most:
        raise BadData(f"{file} unpacks to more than {most:,} bytes; it is not the text that is expected.")
    return found
