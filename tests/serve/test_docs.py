"""What docs/serve.md, the operator's tutorial and the README say of the endpoint.

Blocks that are run print what stands below them, and tables of APIs and metrics have what there is. A block of shell
that ends in `kafkafmt serve` starts an endpoint, on a free port, in place of the one before. `/backup` and other
folders at the root are in a temporary one; `/backup` has the committed logs.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from data.real_logs import LOGS
from endpoints.endpoint_process import EndpointProcess
from kafkafmt.server.prometheus import PrometheusMetrics
from kafkafmt.server.wire import SUPPORTED, api_name

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "serve.md").read_text()
README = (ROOT / "README.md").read_text()
TUTORIAL = (ROOT / "docs" / "tutorials" / "operator.md").read_text()
SECTION = re.compile(r"^### Serve to old consumers.*?(?=^##)", re.DOTALL | re.MULTILINE)
BLOCK = re.compile(
    r"```(?P<language>sh|python)\n(?P<code>.*?)```\n(?:\n```text\n(?P<printed>.*?)```\n)?", re.DOTALL
)
SERVE = re.compile(r"^kafkafmt serve (?P<arguments>.*)\Z", re.DOTALL | re.MULTILINE)
FOLDER = re.compile(r"(?<= )/(?=\w+)")
PORT = ":9092"
SECONDS = 60


class Session:
    """Runs blocks one after the other, each with what those before it left: files, names, an endpoint."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._names: dict[str, Any] = {}
        self._endpoint: EndpointProcess | None = None

    def run(self, language: str, code: str) -> str:
        """What a block prints, as if the endpoint's port were Kafka's."""
        code = FOLDER.sub(f"{self._folder}/", code)
        command = SERVE.search(code) if language == "sh" else None
        if command is not None:
            self._shell(code[: command.start()])
            return self._serve(*shlex.split(command["arguments"]))
        assert self._endpoint is not None
        port = f":{self._endpoint.port}"
        printed = (self._python if language == "python" else self._shell)(code.replace(PORT, port))
        return printed.replace(port, PORT)

    def _serve(self, directory: str, *options: str) -> str:
        self.stop()
        self._endpoint = EndpointProcess(Path(directory), *options)
        self._endpoint.start()
        return f"listening on {self._endpoint.host}{PORT}"

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
        return done.stdout.strip()

    def _python(self, code: str) -> str:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, "serve.md", "exec"), self._names)
        return printed.getvalue().strip()

    def stop(self) -> None:
        if self._endpoint is not None:
            self._endpoint.stop()


@pytest.mark.full
@pytest.mark.clients
@pytest.mark.parametrize("text", [PAGE, README, TUTORIAL], ids=["page", "readme", "tutorial"])
def test_text_when_run_then_prints_what_it_says(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(LOGS, tmp_path / "backup")
    monkeypatch.chdir(tmp_path)  # where the endpoint looks for files
    session = Session(tmp_path)
    try:
        for block in BLOCK.finditer(section_of(text)):
            printed = session.run(block["language"], block["code"])
            if block["printed"] is not None or SERVE.search(block["code"]) is None:
                assert printed == (block["printed"] or "").strip(), block["code"]
    finally:
        session.stop()


def section_of(text: str) -> str:
    """Of the README, what is about the endpoint."""
    section = SECTION.search(text)
    return text if section is None else section[0]


def test_page_when_it_says_what_is_printed_then_has_blocks_for_all_of_it() -> None:
    blocks = list(BLOCK.finditer(PAGE))
    assert len(blocks) == PAGE.count("```sh") + PAGE.count("```python") >= 10
    assert sum(block["printed"] is not None for block in blocks) == PAGE.count("```text")


def test_page_when_it_lists_apis_then_has_all_of_them_with_their_versions() -> None:
    rows = re.findall(r"^\| (\w+) \| (\d+) to (\d+) \|", PAGE, re.MULTILINE)
    served = [
        (api_name(key), str(versions[0]), str(versions[-1])) for key, versions in sorted(SUPPORTED.items())
    ]
    assert rows == served


def test_page_when_it_lists_metrics_then_has_all_of_them() -> None:
    rows = re.findall(r"^\| `(kafka\w+)` \|", PAGE, re.MULTILINE)
    metrics = PrometheusMetrics().registry.collect()
    assert rows == [f"{one.name}_total" if one.type == "counter" else one.name for one in metrics]
