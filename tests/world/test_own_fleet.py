"""The guide to a fleet of one's own works as it is written: tables, commands and errors."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest

from fedloom.cli.main import main

GUIDE = (Path(__file__).parents[2] / "docs" / "how-to-own-fleet.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)
DEVICES, TRACE, ERRORS = (text for language, text in BLOCKS if language in ("", "text"))
COMMANDS = [line for line in GUIDE.splitlines() if line.startswith("fedloom ")]
QUICK = {"run": ["--rounds", "1"], "compare": ["--rounds", "1", "--seeds", "1"]}
QUICK["plan"] = ["--rounds", "1", "--methods", "fedavg,fedcs"]


@pytest.fixture(autouse=True)
def _files(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    Path("my_devices.csv").write_text(DEVICES)
    Path("my_trace.csv").write_text(TRACE)


def command(monkeypatch: pytest.MonkeyPatch, words: list[str]) -> int:
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as done:
        main()
    return int(done.value.code or 0)


@pytest.mark.parametrize("line", COMMANDS)
def test_the_commands_run(line, monkeypatch, capsys):
    words = shlex.split(line, comments=True)
    if "--chart" in words:
        pytest.importorskip("matplotlib")
    assert command(monkeypatch, [*words, *QUICK[words[1]]]) == 0, capsys.readouterr().err


BAD = {
    "row 2 is -60000": DEVICES.replace("5000000,20000000", "-60000,20000000"),
    "row 3 is nan": DEVICES.replace("3,1.0e9", "3,nan"),
    "holds 'fast'": DEVICES.replace("1,1.2e9", "1,fast"),
    "row 3 is 9": DEVICES.replace("3,1.0e9", "9,1.0e9"),
    "client is missing": re.sub(r"^[^,]*,([^,]*),[^,]*,([^,]*,[^,]*),.*$", r"\1,\2", DEVICES, flags=re.MULTILINE),
    "lacks client 3": DEVICES[: DEVICES.index("3,1.0e9")],
    "'upp'": DEVICES.replace("up,", "upp,"),
}


@pytest.mark.parametrize("line", ERRORS.splitlines())
def test_the_errors_are_as_shown(line, monkeypatch, capsys):
    text = next(text for words, text in BAD.items() if words in line)
    Path("my_devices.csv").write_text(text)
    assert command(monkeypatch, ["fedloom", "run", "fedavg", "--fleet", "my_devices.csv", "--clients", "4"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert said.startswith(line.removesuffix("..."))
    assert not Path("runs").exists(), "nothing was written"
