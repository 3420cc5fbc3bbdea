"""The page docs/mirror.md, what the README says of the mirror, and how their blocks are run.

Each block of shell or Python prints what stands below it. `east:9092` and `west:9092` are two brokers, the folders at
the root are in a temporary one. How long a mirror took is not compared.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "mirror.md").read_text()
BLOCK = re.compile(
    r"```(?P<language>sh|python)\n(?P<code>.*?)```\n(?:\n```text\n(?P<printed>.*?)```\n)?", re.DOTALL
)
FOLDER = re.compile(r"(?:(?<=[ \"])|(?<=file://)|(?<=sqlite:///))/(?=\w+)")
DURATION = re.compile(r"(?<= in )\d+\.\d(?= s\b)")
SECONDS = 200


def section_of_readme() -> str:
    section = re.search(
        r"^### Mirror\n.*?(?=^##)", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE
    )
    assert section is not None
    return section[0]


class Session:
    """Runs blocks one after the other, each with what those before it left: files, names.

    servers: the brokers, by the address that the page has of each.
    """

    def __init__(self, folder: Path, servers: Mapping[str, str]) -> None:
        self._folder, self._servers = folder, servers
        self._names: dict[str, Any] = {}

    def run(self, language: str, code: str) -> str:
        """What a block prints, without spaces at the ends of lines."""
        code = FOLDER.sub(f"{self._folder}/", code)
        for name, address in self._servers.items():
            code = code.replace(name, address)
        printed = (self._python if language == "python" else self._shell)(code)
        return without_durations("\n".join(line.rstrip() for line in printed.splitlines()))

    def _shell(self, code: str) -> str:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", code],
            cwd=self._folder,
            env={**os.environ, "PATH": path},
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def _python(self, code: str) -> str:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, "mirror.md", "exec"), self._names)
        return printed.getvalue()


def without_durations(text: str) -> str:
    return DURATION.sub("0.0", text).strip()
