"""A page in headless Chromium, driven over its DevTools protocol."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--remote-debugging-port=0"),
)
PATIENCE = 120.0  # seconds


def chromium() -> str:
    """Where Chromium is; without it the test is skipped."""
    pytest.importorskip("websockets", reason="websockets is not installed, by which Chromium is driven")
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip(f"no Chromium was found (looked for {', '.join(NAMES)})")
    return found


class Tab:
    """One page."""

    def __init__(self, socket: Any) -> None:
        self._socket, self._number = socket, 0
        self.problems: list[str] = []  # what the console complained about

    def ask(self, method: str, **arguments: Any) -> dict[str, Any]:
        """One command of the protocol and its answer."""
        self._number += 1
        self._socket.send(json.dumps({"id": self._number, "method": method, "params": arguments}))
        while True:
            said = json.loads(self._socket.recv(timeout=PATIENCE))
            self._hear(said)
            if said.get("id") == self._number:
                assert "error" not in said, said
                return dict(said.get("result", {}))

    def _hear(self, said: dict[str, Any]) -> None:
        facts = said.get("params", {})
        if said.get("method") == "Runtime.exceptionThrown":
            self.problems.append(
                str(facts["exceptionDetails"].get("exception", facts["exceptionDetails"]).get("description"))[:500]
            )
        if said.get("method") == "Runtime.consoleAPICalled" and facts["type"] in ("error", "warning", "assert"):
            self.problems.append(json.dumps(facts["args"])[:500])
        if said.get("method") == "Log.entryAdded" and facts["entry"]["level"] in ("error", "warning"):
            self.problems.append(json.dumps(facts["entry"])[:500])
        if said.get("method") == "Network.requestWillBeSent" and not facts["request"]["url"].startswith(
            ("file:", "data:", "blob:")
        ):
            self.problems.append(f"asked for {facts['request']['url']}")

    def open(self, page: Path, width: int = 1100, height: int = 900, dark: bool = False, media: str = "") -> None:
        """Show a page and wait until its charts are drawn."""
        for area in ("Runtime", "Log", "Network", "Page"):
            self.ask(f"{area}.enable")
        self.ask(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.ask("Emulation.setEmulatedMedia", media=media, features=scheme)
        for address in ("about:blank", page.absolute().as_uri()):
            self.ask("Page.navigate", url=address)
        self.wait("document.documentElement?.dataset.drawn")

    def wait(self, expression: str) -> Any:
        """Until something is true of the page."""
        until = time.monotonic() + PATIENCE
        while not (found := self.get(expression)):
            assert time.monotonic() < until, f"{expression} never came true: {self.problems}"
            time.sleep(0.05)
        return found

    def get(self, expression: str) -> Any:
        """What JavaScript answers."""
        answer = self.ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def picture(self, file: Path, clip: str | None = None) -> None:
        """A PNG of the whole page, or of one element of it."""
        arguments: dict[str, Any] = {"format": "png", "captureBeyondViewport": True}
        where = "document.documentElement" if clip is None else f"document.querySelector({json.dumps(clip)})"
        sizes = "[r.x + scrollX, r.y + scrollY, r.width, r.height]"
        box = self.get(f"(() => {{ const r = {where}.getBoundingClientRect(); return {sizes} }})()")
        arguments["clip"] = {**dict(zip(("x", "y", "width", "height"), box)), "scale": 1}
        file.write_bytes(b64decode(self.ask("Page.captureScreenshot", **arguments)["data"]))

    def pdf(self, file: Path) -> None:
        """The page as it is printed."""
        file.write_bytes(b64decode(self.ask("Page.printToPDF", preferCSSPageSize=True, printBackground=True)["data"]))


@contextmanager
def browser(folder: Path) -> Iterator[Tab]:
    """A fresh Chromium with one page; it ends with the block."""
    from websockets.sync.client import connect

    program = chromium()
    with subprocess.Popen(
        [program, *FLAGS, f"--user-data-dir={folder / 'profile'}", "about:blank"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ, "HOME": str(folder)},
    ) as process:  # fmt: skip
        try:
            port = folder / "profile" / "DevToolsActivePort"
            until = time.monotonic() + PATIENCE
            while not port.exists() or not port.read_text().count("\n"):
                assert process.poll() is None, "Chromium ended"
                assert time.monotonic() < until, "Chromium did not start"
                time.sleep(0.05)
            number, path = port.read_text().split("\n")[:2]
            with connect(f"ws://127.0.0.1:{number}{path}", max_size=None, proxy=None, compression=None) as root:
                main = Tab(root)
                targets = main.ask("Target.getTargets")["targetInfos"]
                one = next(target["targetId"] for target in targets if target["type"] == "page")
                address = f"ws://127.0.0.1:{number}/devtools/page/{one}"
                with connect(address, max_size=None, proxy=None, compression=None) as socket:
                    yield Tab(socket)
                main.ask("Browser.close")
            process.wait(PATIENCE)
        finally:
            if process.poll() is None:
                process.kill()
