"""`kafkafmt convert` to and from an object store writes what it writes to a local folder."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import urlencode

import pytest
from click.testing import Result

from cli.logs import command, content, json_lines, run, write_log
from faulty_store import FaultyStore, faulty_s3
from file_systems import BUCKET
from kafkafmt import Codec
from kafkafmt.log.checkpoints import LOG_START_OFFSET_CHECKPOINT

pytestmark = pytest.mark.slow

fs = pytest.importorskip("pyarrow.fs")

MANIFEST = "kafkafmt-convert.json"
SETTINGS = ("--to-magic", "1", "--jobs", "1")


@pytest.fixture(scope="module")
def proxy(s3_options: Mapping[str, str]) -> Iterator[FaultyStore]:
    with faulty_s3(s3_options) as store:
        yield store


@pytest.fixture
def store(proxy: FaultyStore) -> Iterator[FaultyStore]:
    proxy.heal()
    yield proxy
    proxy.heal()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Two partitions with several segments each, and a log start offset."""
    logs = tmp_path / "logs"
    for number in range(2):
        write_log(logs / f"orders-{number}", codec=Codec.GZIP)
    (logs / LOG_START_OFFSET_CHECKPOINT).write_text("0\n1\norders 1 5\n")
    return logs


def uri(store: FaultyStore, path: str, **options: object) -> str:
    return f"s3://{BUCKET}/{path}?{urlencode({**store.options, **options})}"


def downloaded(store: FaultyStore, path: str, to: Path) -> Path:
    to.mkdir()
    fs.copy_files(f"{BUCKET}/{path}", str(to), source_filesystem=fs.S3FileSystem(**store.direct_options))
    return to


def manifest(folder: Path) -> dict[str, int]:
    found: dict[str, int] = json.loads((folder / MANIFEST).read_text())["segments"]
    return found


def sizes(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): path.stat().st_size for path in folder.rglob("*.log")}


def statuses(result: Result) -> set[str]:
    return {row["status"] for row in json_lines(result.stdout) if "status" in row}


def test_convert_when_source_or_target_is_in_a_store_then_writes_what_a_local_one_has(
    store: FaultyStore, source: Path, tmp_path: Path
) -> None:
    assert run("convert", source, tmp_path / "local", *SETTINGS).exit_code == 0
    first, second = f"{tmp_path.name}/first", f"{tmp_path.name}/second"
    assert run("convert", source, uri(store, first), *SETTINGS).exit_code == 0
    assert (
        run("convert", uri(store, first), uri(store, second), "--codec", "gzip", "--jobs", 1).exit_code == 0
    )
    assert run("convert", uri(store, second), tmp_path / "back", "--to-magic", 1, "--jobs", 1).exit_code == 0
    expected = content(tmp_path / "local")
    there = downloaded(store, first, tmp_path / "there")
    assert content(there) == expected
    assert content(tmp_path / "back") == expected
    for folder in (there, tmp_path / "back"):
        assert (folder / LOG_START_OFFSET_CHECKPOINT).read_bytes() == (
            tmp_path / "local" / LOG_START_OFFSET_CHECKPOINT
        ).read_bytes()
    assert manifest(there) == sizes(there) == sizes(tmp_path / "local")


def test_convert_when_run_again_then_nothing_is_uploaded(
    store: FaultyStore, source: Path, tmp_path: Path
) -> None:
    target = uri(store, tmp_path.name)
    assert statuses(run("convert", source, target, *SETTINGS, "--json")) == {"converted"}
    before = len(store.requests_of("PUT"))
    assert statuses(run("convert", source, target, *SETTINGS, "--json")) == {"unchanged"}
    assert len(store.requests_of("PUT")) == before


def test_convert_when_the_target_has_other_settings_then_is_refused_until_forced(
    store: FaultyStore, source: Path, tmp_path: Path
) -> None:
    target = uri(store, tmp_path.name)
    assert run("convert", source, target, *SETTINGS).exit_code == 0
    other = ("--to-magic", 0, "--jobs", 1)
    refused = run("convert", source, target, *other)
    assert refused.exit_code != 0
    assert "--force replaces them" in refused.output
    assert run("convert", source, target, *other, "--force").exit_code == 0
    assert run("convert", source, tmp_path / "local", *other).exit_code == 0
    there = downloaded(store, tmp_path.name, tmp_path / "there")
    assert content(there) == content(tmp_path / "local")
    assert manifest(there) == sizes(there)


def test_convert_when_the_store_refuses_a_segment_then_it_fails_and_the_target_is_not_complete(
    store: FaultyStore, source: Path, tmp_path: Path
) -> None:
    target = uri(store, tmp_path.name, max_attempts=1)
    store.fail("PUT", "orders-1/00000000000000000000.log", how="503", times=None)
    result = run("convert", source, target, *SETTINGS, "--json")
    assert result.exit_code == 1
    failed = [row for row in json_lines(result.stdout) if row.get("status") == "failed"]
    assert [row["target"].rpartition("/orders-")[2] for row in failed] == ["1/00000000000000000000.log"]
    assert "gave up after 1 attempt" in failed[0]["error"]
    assert not (downloaded(store, tmp_path.name, tmp_path / "part") / MANIFEST).exists()
    store.heal()
    assert run("convert", source, target, *SETTINGS).exit_code == 0
    assert run("convert", source, tmp_path / "local", *SETTINGS).exit_code == 0
    there = downloaded(store, tmp_path.name, tmp_path / "there")
    assert content(there) == content(tmp_path / "local")
    assert manifest(there) == sizes(there)


@pytest.mark.full
def test_convert_when_killed_before_any_upload_then_the_next_run_completes_the_target(
    store: FaultyStore, source: Path, tmp_path: Path
) -> None:
    target = uri(store, tmp_path.name)
    uploads, kills = 0, 0
    while True:
        uploads += 3
        if not convert_and_kill(store, source, target, uploads):
            break
        kills += 1
        part = downloaded(store, tmp_path.name, tmp_path / f"part{kills}")
        assert not (part / MANIFEST).exists()
    assert kills >= 3
    assert run("convert", source, tmp_path / "local", *SETTINGS).exit_code == 0
    there = downloaded(store, tmp_path.name, tmp_path / "there")
    assert content(there) == content(tmp_path / "local")
    assert manifest(there) == sizes(there)


def convert_and_kill(store: FaultyStore, source: Path, target: str, uploads: int) -> bool:
    """Kill a conversion when it has begun `uploads` uploads. Returns whether it was killed."""
    begun = len(store.requests_of("PUT"))
    arguments = command("convert", source, target, *SETTINGS)
    with subprocess.Popen(arguments, start_new_session=True, stdout=subprocess.DEVNULL) as process:
        while process.poll() is None:
            if len(store.requests_of("PUT")) - begun >= uploads:
                os.killpg(process.pid, signal.SIGKILL)
                break
    return process.returncode != 0


def test_convert_when_the_manifest_is_refused_then_fails_and_the_next_run_commits(
    store: FaultyStore, source: Path, tmp_path: Path
) -> None:
    target = uri(store, tmp_path.name, max_attempts=1)
    store.fail("PUT", MANIFEST, how="503", times=None)
    failed = run("convert", source, target, *SETTINGS)
    assert failed.exit_code != 0
    assert not (downloaded(store, tmp_path.name, tmp_path / "part") / MANIFEST).exists()
    store.heal()
    assert run("convert", source, target, *SETTINGS).exit_code == 0
    there = downloaded(store, tmp_path.name, tmp_path / "there")
    assert manifest(there) == sizes(there) != {}


@pytest.mark.parametrize("scheme", ["backup", "tiered"])
def test_convert_when_the_target_is_a_view_then_is_refused(source: Path, tmp_path: Path, scheme: str) -> None:
    (tmp_path / "store").mkdir()
    refused = run("convert", source, f"{scheme}+file://{tmp_path}/store", *SETTINGS)
    assert refused.exit_code == 2
    assert list((tmp_path / "store").iterdir()) == []
