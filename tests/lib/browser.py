"""Headless Chromium for the tests of pages, driven over two pipes: no driver, no port,
no package.

The protocol is that of its developer tools: JSON messages with a NUL after each, on
descriptors 3 and 4.
"""

from __future__ import annotations

import atexit
import base64
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
_TIMEOUT = 300.0
"""Seconds for one answer: a busy machine is no failure, only a browser that never
answers is.
"""
_DRAWN = 'document.documentElement.dataset.ready === "yes"'
"""The sign of our reports that they are drawn."""
_FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-extensions",
    "--disable-sync",
    "--force-color-profile=srgb",
    "--font-render-hinting=none",
    "--hide-scrollbars",
    "--no-first-run",
    "--remote-debugging-pipe",
    "about:blank",
)


_START = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(word), fcntl.F_DUPFD, 10) for word in sys.argv[1:3]]
os.dup2(ends[0], 3), os.dup2(ends[1], 4)
os.execv(sys.argv[3], sys.argv[3:])
"""
"""Becomes the browser, with the two pipes where it looks for them."""


def found() -> str | None:
    """The path of a Chromium, None where there is none."""
    return next((path for name in _NAMES if (path := shutil.which(name))), None)


class Browser:
    """One browser with one tab. `errors` are what its console said, `requests` what it
    asked for, since `open`.
    """

    def __init__(self) -> None:
        program = found()
        assert program is not None, "no Chromium"
        self._folder = tempfile.mkdtemp(prefix="ckpt-browser-")
        (theirs_in, ours_out), (ours_in, theirs_out) = os.pipe(), os.pipe()
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                _START,
                str(theirs_in),
                str(theirs_out),
                program,
                *_FLAGS,
                f"--user-data-dir={self._folder}",
            ],
            pass_fds=(theirs_in, theirs_out),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in), os.close(theirs_out)
        self._in, self._out = ours_in, ours_out
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        self._is_loaded = False
        self.errors: list[str] = []
        self.requests: list[str] = []
        atexit.register(self.close)
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call(
            "Target.attachToTarget", targetId=target, flatten=True
        )["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """The result of a method of the protocol."""
        self._number += 1
        number = self._number
        message: dict[str, Any] = {"id": number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._out, data) :]
        while True:
            answer = self._message()
            if answer.get("id") == number:
                assert "error" not in answer, (method, answer["error"])
                return dict(answer["result"])
            self._note(answer)

    def _message(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], _TIMEOUT)
            assert ready, "the browser does not answer"
            data = os.read(self._in, 1 << 20)
            assert data, "the browser has ended"
            self._buffer += data
        text, _, self._buffer = self._buffer.partition(b"\0")
        return dict(json.loads(text))

    def _note(self, event: dict[str, Any]) -> None:
        method, params = event.get("method"), event.get("params", {})
        if method == "Page.loadEventFired":
            self._is_loaded = True
        elif method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.errors.append(
                str(details.get("exception", {}).get("description") or details["text"])
            )
        elif method == "Runtime.consoleAPICalled" and params["type"] in (
            "error",
            "warning",
            "assert",
        ):
            self.errors.append(str([each.get("value") for each in params["args"]]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in (
            "error",
            "warning",
        ):
            self.errors.append(params["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])

    def open(
        self,
        path: Path,
        *,
        width: int = 1200,
        height: int = 900,
        dark: bool = False,
        wait: str = _DRAWN,
    ) -> None:
        """Show a page of this machine, and wait until it is drawn: until an expression
        is true.
        """
        self.resize(width, height)
        self.scheme("dark" if dark else "light")
        self.errors.clear(), self.requests.clear()
        self._is_loaded = False
        self.call("Page.navigate", url=path.resolve().as_uri())
        while not self._is_loaded:
            self._note(self._message())
        self.run(
            f"""new Promise((done) => {{
              const look = () => {wait} ? done() : setTimeout(look, 20);
              look();
            }})"""
        )
        self.move(0, 0)  # a place that nothing reacts to
        self.settle()

    def run(self, code: str) -> Any:
        """The value of an expression of JavaScript; a promise is waited for."""
        result = self.call(
            "Runtime.evaluate", expression=code, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def resize(self, width: int, height: int) -> None:
        """Another size of the window, in CSS pixels."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )

    def scheme(self, name: str) -> None:
        """What the user prefers: `light` or `dark`."""
        self.call(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": name}],
        )

    def settle(self) -> None:
        """Wait until what was changed is drawn."""
        self.run(
            "new Promise((done) => requestAnimationFrame(() => "
            "requestAnimationFrame(done)))"
        )

    def click(self, x: float, y: float) -> None:
        """Press and release the mouse at a place of the window."""
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.call(
                "Input.dispatchMouseEvent",
                type=kind,
                x=x,
                y=y,
                button="none" if kind == "mouseMoved" else "left",
                clickCount=0 if kind == "mouseMoved" else 1,
            )
        self.settle()

    def move(self, x: float, y: float) -> None:
        """Move the mouse."""
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        self.settle()

    def press(self, key: str) -> None:
        """Press a key such as `Tab` or `Enter`."""
        codes = {"Tab": 9, "Enter": 13, " ": 32}
        text = {"Enter": "\r", " ": " "}.get(key, "")
        for kind in ("keyDown", "keyUp"):
            more = {"text": text} if text and kind == "keyDown" else {}
            self.call(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                code=key if key != " " else "Space",
                windowsVirtualKeyCode=codes[key],
                **more,
            )
        self.settle()

    def picture(self, path: Path, *, whole: bool = True) -> None:
        """A PNG of the page, all of it or the window."""
        shot = self.call(
            "Page.captureScreenshot", format="png", captureBeyondViewport=whole
        )
        path.write_bytes(base64.b64decode(shot["data"]))

    def close(self) -> None:
        """End the browser."""
        if self._process.poll() is None:
            self._process.terminate()
            self._process.wait()
            os.close(self._in), os.close(self._out)
            shutil.rmtree(
                self._folder, ignore_errors=True
            )  # its children may still write


_browsers: list[Browser] = []


def browser() -> Browser:
    """The browser of this process, started at the first call."""
    if not _browsers:
        _browsers.append(Browser())
    return _browsers[0]
