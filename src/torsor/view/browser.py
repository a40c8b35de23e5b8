"""A page in an installed Chromium without a window, for pictures, movies and tests.

Chromium is controlled through a pipe, with messages of its DevTools
(https://chromedevtools.github.io/devtools-protocol).
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Self

from torsor.errors import ArgumentError

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "microsoft-edge")
MAC = "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome"
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--enable-unsafe-swiftshader", "--disable-background-networking",
    "--no-first-run", "--hide-scrollbars", "--remote-debugging-pipe",
)  # fmt: skip
# Chromium reads from file descriptor 3 and writes to 4: this moves two descriptors there, whatever their numbers are.
BEGIN = """
import os, sys
from fcntl import F_DUPFD, fcntl
ends = [fcntl(int(x), F_DUPFD, 10) for x in sys.argv[1:3]]
for end, number in zip(ends, (3, 4)):
    os.dup2(end, number)
os.execv(sys.argv[3], sys.argv[3:])
"""
PATIENCE = 120.0  # seconds for an answer; pages of many triangles are slow without a graphics card


def installed() -> str | None:
    """The Chromium, Chrome or Edge that TORSOR_BROWSER names or that is installed."""
    chosen = os.environ.get("TORSOR_BROWSER")
    return shutil.which(chosen) if chosen else next(filter(None, map(shutil.which, (*NAMES, MAC))), None)


class Browser:
    """The page of a file, `width` by `height` pixels, rendered."""

    def __init__(self, page: str | Path, width: int = 1280, height: int = 800, theme: str = "light") -> None:
        program = installed()
        if program is None or os.name != "posix":
            raise ArgumentError(
                "pictures and movies are drawn by Chromium or Chrome, and there is none on the PATH: install it, or "
                "name it in TORSOR_BROWSER; view() writes a page for any browser"
            )
        self._home = tempfile.mkdtemp(prefix="torsor-browser-")
        theirs, self._out = os.pipe()
        self._in, back = os.pipe()
        words = [program, *FLAGS, f"--user-data-dir={self._home}", f"--window-size={width},{height}", "about:blank"]
        begin = [sys.executable, "-c", BEGIN, str(theirs), str(back)]
        quiet: Any = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
        self._process = subprocess.Popen([*begin, *words], pass_fds=(theirs, back), **quiet)
        os.close(theirs)
        os.close(back)
        self._rest, self._number, self._session = b"", 0, ""
        try:
            target = self._ask("Target.createTarget", url="about:blank")["targetId"]
            self._session = self._ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
            self._ask("Emulation.setDeviceMetricsOverride", **size)
            self._ask("Page.navigate", url=f"{Path(page).resolve().as_uri()}#theme={theme}")
            self._wait_for("document.body && document.body.dataset.state")
            if self.evaluate("document.body.dataset.state") != "ready":
                raise ArgumentError(self.evaluate("document.getElementById('error').textContent"))
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def evaluate(self, script: str) -> Any:
        """The value of JavaScript in the page; a promise is awaited."""
        found = self._ask("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in found:
            raise ArgumentError(f"the page fails: {found['exceptionDetails'].get('exception', {}).get('description')}")
        return found["result"].get("value")

    def png(self) -> bytes:
        """What the page shows."""
        return base64.b64decode(self._ask("Page.captureScreenshot", format="png")["data"])

    def mouse(self, kind: str, x: float, y: float, clicks: int = 1) -> None:
        """Move the mouse, or press or release its left button: "mouseMoved", "mousePressed", "mouseReleased"."""
        self._ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", buttons=1, clickCount=clicks)

    def close(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for end in (self._in, self._out):
            os.close(end)
        shutil.rmtree(self._home, ignore_errors=True)

    def _wait_for(self, condition: str) -> None:
        end = time.monotonic() + PATIENCE
        while not self.evaluate(condition):
            if time.monotonic() > end:
                raise ArgumentError(f"the page is not ready after {PATIENCE:g} s")
            time.sleep(0.05)

    def _ask(self, method: str, **parameters: Any) -> Any:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        content = json.dumps(message).encode() + b"\0"
        while content:
            content = content[os.write(self._out, content) :]
        while True:
            answer = json.loads(self._message())
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise ArgumentError(f"Chromium refuses {method}: {answer['error'].get('message')}")
                return answer["result"]

    def _message(self) -> bytes:
        end, parts = time.monotonic() + PATIENCE, [self._rest]
        while b"\0" not in parts[-1]:
            ready, _, _ = select.select([self._in], [], [], max(0.0, end - time.monotonic()))
            part = os.read(self._in, 1 << 16) if ready else b""
            if not part:
                raise ArgumentError("Chromium does not answer" if not ready else "Chromium has ended")
            parts.append(part)
        message, _, self._rest = b"".join(parts).partition(b"\0")
        return message
