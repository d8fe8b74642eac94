"""A matplotlib figure that notebooks show without pyplot."""

from __future__ import annotations

from io import BytesIO

from matplotlib.figure import Figure  # type: ignore[import-not-found, unused-ignore]


class Picture(Figure):  # type: ignore[misc, unused-ignore]
    """A figure that shows itself as PNG."""

    def _repr_png_(self) -> bytes:
        """The picture for notebooks."""
        self.savefig(file := BytesIO(), format="png", dpi=110)
        return file.getvalue()
