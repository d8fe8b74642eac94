"""Parts of charts that controls of the page choose, and texts that are safe there.

Where a control of the chart chooses a part, `{"$": control, "of": {key: part}}` stands in its place.
"""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]


def pick(control: str, options: dict[str, Any]) -> Json:
    """A part that a control chooses."""
    return {"$": control, "of": options}


def control(name: str, label: str, options: dict[str, str]) -> Json:
    """A control: buttons, or a list if it has many options."""
    return {"name": name, "label": label, "options": [[key, text] for key, text in options.items()]}


def escape(text: str) -> str:
    """Escape a name, since plotly reads some HTML in texts."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
