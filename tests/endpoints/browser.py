"""A real browser without a window: Chromium, where it is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

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


def _run(*arguments: str) -> str:
    """Run the browser with a profile of its own, offline but for this machine."""
    browser = installed()
    assert browser is not None
    with tempfile.TemporaryDirectory(prefix="browser-", ignore_cleanup_errors=True) as profile:
        command = [
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
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
