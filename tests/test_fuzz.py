"""Both fuzzing targets hold for a few seconds; `make fuzz SECONDS=3600` or `make fuzz RUNS=1000000` asks for more."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

FUZZ = Path(__file__).parent.parent / "fuzz"
SECONDS = 8
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("atheris") is None,
    reason="atheris is not installed (Linux on x86-64, Python 3.11 or 3.12)",
)


@pytest.mark.parametrize("target", ["decode_payload.py", "read_checkpoint.py"])
def test_no_finding(target, tmp_path):
    words = [sys.executable, str(FUZZ / target), f"-max_total_time={SECONDS}", "-rss_limit_mb=2048", "-seed=3"]
    surroundings = {**os.environ, "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(
        words, cwd=tmp_path, env=surroundings, capture_output=True, text=True, timeout=300, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr[-3000:]
    assert "no finding" in ended.stdout
    assert not list(tmp_path.iterdir())
