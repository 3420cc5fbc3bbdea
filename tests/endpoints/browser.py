"""A real browser without a window: Chromium, where it is installed."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_NAMES = ("chromium", "chromium-browser", "google-chrome")
_SECONDS = 120


def installed() -> str | None:
    """The path of the browser; None where there is none."""
    return next(filter(None, map(shutil.which, _NAMES)), None)


def rendered(url: str) -> str:
    """The document as the browser has it once it is loaded, as HTML."""
    return _run("--dump-dom", url)


def take_picture(url: str, path: Path, width: int, height: int) -> None:
    """Write a PNG file of the window."""
    _run(f"--screenshot={path}", f"--window-size={width},{height}", "--hide-scrollbars", url)


class Page:
    """A page in a browser that a test drives, through the DevTools protocol on two pipes.

    console: the errors and warnings that the page has logged. requests: the addresses that it has asked for.
    """

    def __init__(self, sending: int, receiving: int) -> None:
        self._sending = sending
        self._receiving = os.fdopen(receiving, "rb")
        self._number = 0
        self._session: str | None = None
        self.console: list[str] = []
        self.requests: list[str] = []

    def open(self, url: str, width: int, height: int, *, scheme: str = "light") -> None:
        """Load a page, and wait for its load event. scheme: "light" or "dark", as the user prefers."""
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self._call(f"{domain}.enable")
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self._call("Emulation.setEmulatedMedia", features=[feature])
        self._call("Emulation.setScrollbarsHidden", hidden=True)
        self._call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        self._call("Page.navigate", url=url)
        while self._read().get("method") != "Page.loadEventFired":
            pass

    def run(self, script: str) -> Any:
        """Return the value of a JavaScript expression, which may be a promise."""
        done = self._call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in done, done["exceptionDetails"]
        return done["result"].get("value")

    def painted(self) -> None:
        """Wait until what the page has changed is painted."""
        self.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(0))))")

    def move(self, x: float, y: float) -> None:
        """Move the mouse."""
        self._call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def press(self, key: str) -> None:
        """Press a key and release it."""
        text = {"text": key} if len(key) == 1 else {}
        self._call("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
        self._call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def take_picture(self, path: Path) -> None:
        """Write a PNG file of the window."""
        self.painted()
        path.write_bytes(base64.b64decode(self._call("Page.captureScreenshot")["data"]))

    def close(self) -> None:
        """Close the pipes. The browser ends."""
        os.close(self._sending)
        self._receiving.close()

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._sending, data) :]
        while (answer := self._read()).get("id") != self._number:
            pass
        assert "error" not in answer, answer
        result: dict[str, Any] = answer["result"]
        return result

    def _read(self) -> dict[str, Any]:
        """Return the next message, and note what it says of the console and the network."""
        data = bytearray()
        while (byte := self._receiving.read(1)) != b"\0":
            assert byte, "the browser has ended"
            data += byte
        message: dict[str, Any] = json.loads(data)
        parameters = message.get("params", {})
        match message.get("method"):
            case "Runtime.exceptionThrown":
                self.console.append(json.dumps(parameters["exceptionDetails"]))
            case "Runtime.consoleAPICalled" if parameters["type"] in ("error", "warning", "assert"):
                self.console.append(json.dumps(parameters["args"]))
            case "Log.entryAdded" if parameters["entry"]["level"] in ("error", "warning"):
                self.console.append(parameters["entry"]["text"])
            case "Network.requestWillBeSent":
                self.requests.append(parameters["request"]["url"])
        return message


@contextlib.contextmanager
def driven() -> Iterator[Page]:
    """Start a browser, and yield a page that a test drives."""
    commands, sending = os.pipe()
    receiving, answers = os.pipe()
    with tempfile.TemporaryDirectory(prefix="browser-", ignore_cleanup_errors=True) as profile:
        # The browser reads commands from descriptor 3, and writes answers to 4.
        redirect = f'exec "$@" 3<&{commands} 4>&{answers}'
        command = [
            "bash",
            "-c",
            redirect,
            "bash",
            *_command(profile, "--remote-debugging-pipe", "about:blank"),
        ]
        with subprocess.Popen(
            command, pass_fds=(commands, answers), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        ) as process:
            os.close(commands)
            os.close(answers)
            page = Page(sending, receiving)
            try:
                yield page
            finally:
                page.close()
                try:
                    process.wait(_SECONDS)
                except subprocess.TimeoutExpired:
                    process.kill()


def _run(*arguments: str) -> str:
    """Run the browser with a profile of its own, offline but for this machine."""
    with tempfile.TemporaryDirectory(prefix="browser-", ignore_cleanup_errors=True) as profile:
        command = _command(profile, *arguments)
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _command(profile: str, *arguments: str) -> list[str]:
    browser = installed()
    assert browser is not None
    return [
        browser,
        "--headless",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--no-first-run",
        "--disable-background-networking",
        "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
        f"--user-data-dir={profile}",
        *(["--no-sandbox"] if os.geteuid() == 0 else []),  # Chromium's sandbox is not for root
        *arguments,
    ]
