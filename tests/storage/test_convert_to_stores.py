"""`kafkafmt convert` into an object store: what it writes, and what is there after a kill or a failed request."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlencode

import pytest

from cli.logs import run, write_log
from file_systems import BUCKET
from kafkafmt.storage import RemotePath, Storages

MANIFEST = "kafkafmt-convert.json"
OPTIONS = ("--to-magic", 2, "--codec", "lz4", "--jobs", 1)


def uri_of(options: Mapping[str, str], name: str) -> str:
    return f"s3://{BUCKET}/{name}?{urlencode(options)}"


def files_in(where: str | Path) -> dict[str, bytes]:
    """The logs, indexes and checkpoints below a folder or URI."""
    root = Storages().locate(where) if isinstance(where, str) else where
    if isinstance(root, RemotePath):
        found = {name: root / name for name, _ in root.storage.walk(root)}
    else:
        found = {str(path.relative_to(root)): path for path in root.rglob("*") if path.is_file()}
    wanted = (".log", "index", "checkpoint")
    contents = {}
    for name, path in found.items():
        if name.endswith(wanted):
            with path.storage.open(path) if isinstance(path, RemotePath) else path.open("rb") as file:
                contents[name] = bytes(file.read())
    return contents


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A log directory with several segments and a log start offset."""
    write_log(tmp_path / "logs" / "orders-0")
    (tmp_path / "logs" / "log-start-offset-checkpoint").write_text("0\n1\norders 0 3\n")
    return tmp_path / "logs"


@pytest.fixture
def expected(log: Path, tmp_path: Path) -> dict[str, bytes]:
    """The files of the conversion to a local folder."""
    assert run("convert", log, tmp_path / "local", *OPTIONS).exit_code == 0
    return files_in(tmp_path / "local")


def manifest_of(uri: str) -> dict[str, int] | None:
    root = Storages().locate(uri)
    path = root / MANIFEST
    if not path.exists():
        return None
    assert isinstance(path, RemotePath)
    with path.storage.open(path) as file:
        segments: dict[str, int] = json.loads(file.read())["segments"]
    return segments


@pytest.mark.parametrize("way", ["local to s3", "s3 to s3", "s3 to local"])
def test_convert_when_source_or_target_is_in_a_store_then_files_are_those_of_local_folders(
    log: Path, expected: dict[str, bytes], tmp_path: Path, s3: object, s3_options: dict[str, str], way: str
) -> None:
    name = way.replace(" ", "-")
    source: str | Path = log
    if way.startswith("s3"):
        source = uri_of(s3_options, f"{name}/source")
        root = Storages().locate(source)
        assert isinstance(root, RemotePath)
        for path in log.rglob("*"):
            if path.is_file():
                root.storage.write(root / str(path.relative_to(log)), [path.read_bytes()])
    target = tmp_path / "out" if way.endswith("local") else uri_of(s3_options, f"{name}/target")
    done = run("convert", source, target, *OPTIONS)
    assert done.exit_code == 0, done.output
    assert files_in(target) == expected
    if isinstance(target, str):
        logs = {name: len(data) for name, data in expected.items() if name.endswith(".log")}
        assert manifest_of(target) == logs
    again = run("convert", source, target, *OPTIONS, "--json")
    assert json.loads(again.stdout.splitlines()[-1])["summary"]["unchanged"] > 1


def test_convert_when_killed_at_any_object_then_target_is_not_committed_and_the_next_run_completes_it(
    log: Path, expected: dict[str, bytes], s3: object, s3_options: dict[str, str]
) -> None:
    program = """
import os, sys
from kafkafmt.storage.remote import RemoteStorage
left, upload = int(sys.argv.pop(1)), RemoteStorage._upload
def killed(self, *arguments):
    global left
    if left == 0:
        os._exit(9)
    left -= 1
    upload(self, *arguments)
RemoteStorage._upload = killed
from kafkafmt.jobs.convert import ConvertOptions, convert_run, convert_segment, plan
from kafkafmt.storage import storage_path
from kafkafmt.types import Codec
from pathlib import Path
source, target, options = Path(sys.argv[1]), storage_path(sys.argv[2]), ConvertOptions(2, codec=Codec.LZ4)
tasks = plan(source, target)
with convert_run(source, target, tasks, options) as writing:
    writing.begin(tasks)
    writing.end([convert_segment(task, options) for task in tasks])
"""
    for killed_at in (0, 1, 2, 4, 5, 7, 1000):
        target = uri_of(s3_options, f"killed-{killed_at}")
        status = subprocess.run(
            [sys.executable, "-c", program, str(killed_at), str(log), target], check=False, timeout=60
        ).returncode
        assert status == (0 if killed_at == 1000 else 9)
        there = files_in(target)
        assert {name for name in there if name.endswith(".log")} <= expected.keys()
        assert all(there[name] == expected[name] for name in there)
        assert (manifest_of(target) is not None) == (killed_at == 1000)
        assert run("convert", log, target, *OPTIONS).exit_code == 0
        assert files_in(target) == expected
        assert manifest_of(target) is not None


def test_convert_when_the_manifest_cannot_be_written_then_it_fails_and_the_next_run_commits(
    log: Path,
    expected: dict[str, bytes],
    s3: object,
    s3_options: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target = uri_of(s3_options, "failing")
    upload = RemotePath.__init__.__globals__["RemoteStorage"]._upload

    def refuse(self: object, path: RemotePath, *arguments: object) -> None:
        if path.name == MANIFEST:
            raise OSError(5, "cannot be written: out of service", path.uri)
        upload(self, path, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr("kafkafmt.storage.remote.RemoteStorage._upload", refuse)
        failed = run("convert", log, target, *OPTIONS)
    assert failed.exit_code != 0
    assert "out of service" in failed.output + str(failed.exception)
    assert manifest_of(target) is None
    assert run("convert", log, target, *OPTIONS).exit_code == 0
    assert files_in(target) == expected
    assert manifest_of(target) is not None


@pytest.mark.parametrize("scheme", ["backup", "tiered"])
def test_convert_when_target_is_a_view_then_refused(log: Path, tmp_path: Path, scheme: str) -> None:
    (tmp_path / "store").mkdir()
    refused = run("convert", log, f"{scheme}+file://{tmp_path / 'store'}", *OPTIONS)
    assert refused.exit_code == 2
    assert list((tmp_path / "store").iterdir()) == []
