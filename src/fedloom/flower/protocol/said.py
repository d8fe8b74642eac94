"""Text that another machine wrote, made fit for a log or an error message."""

from __future__ import annotations

from typing import Any

LONGEST = 200  # characters that are shown


def said(text: Any, longest: int = LONGEST) -> str:
    """The text on one line: what is not printable is escaped, and what is too long is cut, with its length.

    Control characters could move a terminal's cursor, colour it or begin a line that looks like one of our own.
    """
    whole = text if isinstance(text, str) else str(text)
    shown = "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape", "backslashreplace").decode()
        for letter in whole[:longest]
    )
    if len(whole) <= longest and len(shown) <= 2 * longest:
        return shown
    return f"{shown[: 2 * longest]}... ({len(whole)} characters)"
