"""Folders published in a store that fails at a request: all files are there, or readers refuse the folder."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cli.logs import content, run, write_log
from faulty_store import Fault, FaultyStore, How, faulty_s3
from kafkafmt._util.sizes import MIB
from kafkafmt.storage import RemotePath, storage_path
from kafkafmt.storage.publication import INCOMPLETE, Publication, publish_folder
from store_folders import files_in, uri_of

pytestmark = pytest.mark.slow

pytest.importorskip("pyarrow.fs")


@pytest.fixture(scope="module")
def proxy(s3: object, s3_options: Mapping[str, str]) -> Iterator[FaultyStore]:
    with faulty_s3(s3_options) as store:
        yield store


@pytest.fixture
def store(proxy: FaultyStore) -> Iterator[FaultyStore]:
    proxy.heal()
    yield proxy
    proxy.heal()


@pytest.fixture
def log(tmp_path: Path) -> Path:
    for number in range(2):
        write_log(tmp_path / "logs" / f"orders-{number}")
    return tmp_path / "logs"


def logs_of(files: Mapping[str, bytes]) -> dict[str, bytes]:
    return {name: data for name, data in files.items() if name.endswith((".log", "index"))}


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("PUT", INCOMPLETE),
        ("PUT", "orders-0/00000000000000000000.index"),
        ("PUT", "orders-1/00000000000000000030.log"),
        ("DELETE", INCOMPLETE),
    ],
)
def test_publication_when_the_store_refuses_a_request_then_readers_refuse_the_folder_until_the_next_run(
    store: FaultyStore, log: Path, tmp_path: Path, method: str, path: str
) -> None:
    target = uri_of(store.options, tmp_path.name)
    store.fail(method, f"/{path}", how="403", times=None)
    failed = run("repair", log, target)
    assert failed.exit_code == 2
    assert f"{tmp_path.name}/{path}" in failed.stderr
    store.heal()
    there = files_in(target)
    assert (INCOMPLETE in there) == bool(there)
    if there:
        assert "incomplete" in run("inspect", target).stderr
    assert run("repair", log, target).exit_code == 0
    assert logs_of(files_in(target)) == content(log)
    assert INCOMPLETE not in files_in(target)


@pytest.mark.parametrize(
    ("method", "how"), [("PUT", "503"), ("PUT", "lost"), ("DELETE", "503"), ("DELETE", "lost")]
)
def test_publication_when_a_request_fails_for_a_passing_reason_then_is_completed(
    store: FaultyStore, log: Path, tmp_path: Path, method: str, how: How
) -> None:
    target = uri_of(store.options, tmp_path.name)
    fault = store.fail(method, INCOMPLETE, how=how)
    assert run("repair", log, target).exit_code == 0
    assert fault.hits == 1
    assert logs_of(files_in(target)) == content(log)
    assert INCOMPLETE not in files_in(target)


def test_publication_when_another_command_writes_to_the_folder_then_is_not_committed(
    store: FaultyStore, tmp_path: Path
) -> None:
    folder = folder_of(store, tmp_path)
    first, second = Publication(folder, "repair"), Publication(folder, "repair")
    first.begin()
    second.begin()
    with pytest.raises(OSError, match="another command writes to this folder"):
        first.commit()
    assert (folder / INCOMPLETE).exists()
    second.commit()
    assert not (folder / INCOMPLETE).exists()


@pytest.mark.parametrize(("size", "path"), [(100, ".index"), (4 * MIB, "partNumber=2")])
def test_publication_when_suspended_while_another_run_publishes_then_replaces_none_of_its_files(
    store: FaultyStore, tmp_path: Path, size: int, path: str
) -> None:
    """The suspension is in a file of one request, or of several."""
    publish_during(store, store.fail("PUT", path, how="held"), tmp_path, size)


def test_publication_when_suspended_before_it_deletes_what_a_killed_run_left_then_deletes_no_file_of_another_run(
    store: FaultyStore, tmp_path: Path
) -> None:
    Publication(folder_of(store, tmp_path), "repair").begin()
    publish_during(store, store.fail("GET", "list-type=2", how="held"), tmp_path, size=100)


def publish_during(store: FaultyStore, held: Fault, tmp_path: Path, size: int) -> None:
    """Publish a folder while a request of an earlier run is held. Check that its files stay, and the run's error."""
    for writer in ("late", "other"):
        partition = tmp_path / writer / "orders-0"
        partition.mkdir(parents=True)
        (partition / "0.index").write_bytes(writer.encode() * size)
        (partition / "0.log").write_bytes(writer.encode())
    folder = folder_of(store, tmp_path)
    with ThreadPoolExecutor(1) as thread:
        late = thread.submit(publish_folder, tmp_path / "late", folder, "repair")
        while not (held.hits or late.done()):
            time.sleep(0.01)
        publish_folder(tmp_path / "other", folder, "repair")
        store.heal()
        with pytest.raises(OSError, match="another command writes to this folder"):
            late.result(timeout=120)
    assert files_in(uri_of(store.options, tmp_path.name)) == files_in(tmp_path / "other")


def folder_of(store: FaultyStore, tmp_path: Path) -> RemotePath:
    folder = storage_path(uri_of(store.options, tmp_path.name))
    assert isinstance(folder, RemotePath)
    return folder


def test_publication_when_the_temporary_folder_is_open_to_others_then_is_refused(
    store: FaultyStore, log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    target = uri_of(store.options, tmp_path.name)
    assert run("repair", log, target).exit_code == 0
    (folder,) = tmp_path.glob("kafkafmt-repair-*")
    folder.chmod(0o755)
    refused = run("repair", log, uri_of(store.options, f"{tmp_path.name}/other"))
    assert refused.exit_code == 2
    assert "only this user can read" in refused.stderr
