"""docs/gateway.md: its blocks print what stands below them, and its files of configuration are accepted.

A block of shell that ends in `kafkafmt gateway` starts a gateway, on free ports, in place of the one before.
`broker1:9092` is the broker of the run.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cli.logs import run
from endpoints.endpoint_process import GATEWAY
from endpoints.logged_endpoint import LoggedEndpoint

if TYPE_CHECKING:
    from broker.broker import Broker

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "gateway.md").read_text()
UNIT, MANIFEST = DOCS / "deploy" / "kafkafmt-gateway.service", DOCS / "deploy" / "kafkafmt-gateway.yaml"
BLOCK = re.compile(
    r"^```sh\n(?P<code>.*?)^```\n(?:\n```text\n(?P<printed>.*?)^```\n)?", re.DOTALL | re.MULTILINE
)
START = re.compile(r"^kafkafmt gateway (?P<arguments>(?:(?!--check).)*)\Z", re.DOTALL | re.MULTILINE)
BROKER, PORT, METRICS = "broker1:9092", ":9192", "127.0.0.1:9308"
TOPIC = "orders-by-gateway"  # other tests have the topic that the page names
NEEDED = ("curl", "jq", "kcat", "openssl")
SECONDS = 60


class Session:
    """Runs blocks one after the other, each with the files and the gateway of those before it."""

    def __init__(self, folder: Path, broker: str) -> None:
        self._folder, self._broker = folder, broker
        self._gateway: LoggedEndpoint | None = None
        self._addresses: dict[str, str] = {BROKER: broker, "-t orders ": f"-t {TOPIC} "}

    def run(self, code: str) -> str:
        """What a block prints."""
        command = START.search(code)
        if command is None:
            return self._shell(code)
        self._shell(code[: command.start()])
        return self._start(
            *shlex.split(command["arguments"].replace("\\\n", " ").replace(BROKER, self._broker))
        )

    def _start(self, cluster: str, *options: str) -> str:
        self.stop()
        place = options.index("--listen")
        others = [*options[:place], *options[place + 2 :]]
        assert options[place + 1].endswith(PORT)
        told = ["127.0.0.1:0" if one == METRICS else one for one in others]
        self._gateway = LoggedEndpoint(cluster, *told, command=GATEWAY)  # type: ignore[arg-type]
        self._gateway.start()
        self._addresses[PORT] = f":{self._gateway.port}"
        if METRICS in others:
            self._addresses[METRICS] = self._gateway.event("metrics are served")["address"]
        return f"listening on {self._gateway.host}{PORT}"

    def _shell(self, code: str) -> str:
        for name, address in self._addresses.items():
            code = code.replace(name, address)
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", code],
            cwd=self._folder,
            env={**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert done.returncode == 0, f"{code}\n{done.stdout}{done.stderr}"
        return done.stdout.strip()

    def stop(self) -> None:
        if self._gateway is not None:
            self._gateway.stop()


@pytest.fixture
def session(broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    for program in NEEDED:
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not there")
    monkeypatch.chdir(tmp_path)  # where the gateway looks for files
    session = Session(tmp_path, broker.bootstrap)
    yield session
    session.stop()


@pytest.mark.broker
def test_page_when_run_then_prints_what_it_says(broker: Broker, session: Session) -> None:
    broker.create_topic(TOPIC)
    for block in BLOCK.finditer(PAGE):
        assert session.run(block["code"]) == (block["printed"] or "").strip(), block["code"]


def test_page_when_it_says_what_is_printed_then_has_blocks_for_all_of_it() -> None:
    blocks = list(BLOCK.finditer(PAGE))
    assert len(blocks) >= 7
    assert sum(block["printed"] is not None for block in blocks) == len(
        re.findall("^```text", PAGE, re.MULTILINE)
    )


def assert_accepted(text: str, folder: Path) -> None:
    """Check a file of configuration as `--check` does: nobody answers at its addresses, but the file is right."""
    path = folder / "gateway.toml"
    path.write_text(re.sub(r'(?m)^cluster = ".*"$', 'cluster = "kafka://127.0.0.1:1"', text))
    result = run("gateway", "--config", path, "--check")
    assert result.exit_code == 1, result.stderr
    assert "failure  127.0.0.1:1: " in result.stdout


def test_configuration_of_the_page_then_is_accepted(tmp_path: Path) -> None:
    (text,) = re.findall(r"^```toml\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    assert_accepted(text, tmp_path)


def test_unit_then_systemd_accepts_it(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not there")
    unit = tmp_path / UNIT.name
    program = str(Path(sys.executable).with_name("kafkafmt"))
    unit.write_text(UNIT.read_text().replace("/opt/kafkafmt/bin/kafkafmt", program))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", unit],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    complaints = [line for line in done.stderr.splitlines() if UNIT.name in line]
    assert (done.returncode, complaints) == (0, [])


def test_manifest_then_has_objects_that_fit_and_a_configuration_that_is_accepted(tmp_path: Path) -> None:
    yaml = pytest.importorskip("yaml")
    objects = {one["kind"]: one for one in yaml.safe_load_all(MANIFEST.read_text())}
    assert list(objects) == ["ConfigMap", "Deployment", "Service", "PodDisruptionBudget"]
    files = objects["ConfigMap"]["data"]
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert_accepted(files["gateway.toml"].replace("/etc/kafkafmt", str(tmp_path)), tmp_path)
    template = objects["Deployment"]["spec"]["template"]
    (container,) = template["spec"]["containers"]
    ports = {one["name"]: one["containerPort"] for one in container["ports"]}
    assert f'listen = "0.0.0.0:{ports["kafka"]}"' in files["gateway.toml"]
    assert f'metrics = "0.0.0.0:{ports["metrics"]}"' in files["gateway.toml"]
    assert objects["Service"]["spec"]["ports"][0]["targetPort"] in ports
    assert objects["Service"]["spec"]["selector"].items() <= template["metadata"]["labels"].items()
    assert [container[f"{name}Probe"]["httpGet"]["path"] for name in ("readiness", "liveness")] == [
        "/health/ready",
        "/health/live",
    ]
