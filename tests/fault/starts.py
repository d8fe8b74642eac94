"""Start many runs in one folder at the same moment: one runs, the others are refused with exit code 2.

`python tests/fault/starts.py COUNT`
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from forked import child, command, ended, result_of

RUN = ("run", "fedavg", "--clients", "4", "--rounds", "3", "--set", "model.widths=[8]", "--set", "epochs=1", "--json")


def main(count: int) -> None:
    """All at once."""
    with tempfile.TemporaryDirectory() as place:
        here = Path(place)
        alone = child(command(*RUN, "--out", str(here / "alone")), here / "log")
        assert ended(alone) == 0, (here / "log").read_text()
        logs = [here / f"log-{number}" for number in range(count)]
        pids = [child(command(*RUN, "--out", str(here / "run")), log) for log in logs]
        codes = [ended(pid, 300) for pid in pids]
        texts = [log.read_text() for log in logs]
        assert sorted(codes) == [0] + [2] * (count - 1), list(zip(codes, texts))
        for code, text in zip(codes, texts):
            assert code == 0 or "is in use by another run (process " in text or "is not empty" in text, text
        assert result_of(here / "run") == result_of(here / "alone")
    print(f"{codes.count(0)} ran, {codes.count(2)} were refused")


if __name__ == "__main__":
    main(int(sys.argv[1]))
