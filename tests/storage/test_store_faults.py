"""A store that fails as real ones do: requests are repeated, or there is one clear error, and never wrong bytes."""

from __future__ import annotations

import io
import pickle
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from faulty_store import FaultyStore, How, faulty_s3
from file_systems import BUCKET
from kafkafmt._util.user_errors import UserError
from kafkafmt.log import LogDirectory
from kafkafmt.records.channel import TruncatedFileError
from kafkafmt.records.retries import NO_RETRIES, Retries, StoreError
from kafkafmt.storage import RemotePath, Storages, read_file, storage_of, write_file
from kafkafmt.storage.upload import Upload
from kafkafmt.types import TopicPartition
from log.samples import batches, name, put_segment

pytestmark = pytest.mark.slow

fs = pytest.importorskip("pyarrow.fs")

MIB = 1024 * 1024
DATA = bytes(range(256)) * 400
LARGE = 25 * MIB  # in three parts
TRANSIENT = ("500", "503", "reset", "lost")


@pytest.fixture(scope="module")
def proxy(s3_options: Mapping[str, str]) -> Iterator[FaultyStore]:
    with faulty_s3(s3_options) as store:
        yield store


@pytest.fixture
def store(proxy: FaultyStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyStore]:
    monkeypatch.setattr("kafkafmt.records.retries._FIRST_WAIT_SECONDS", 0.01)
    proxy.heal()
    yield proxy
    proxy.heal()


@pytest.fixture
def folder(store: FaultyStore, tmp_path: Path) -> RemotePath:
    """A folder of the store, in which no object is."""
    return located(store, tmp_path.name)


def located(store: FaultyStore, path: str, **options: object) -> RemotePath:
    settings = store.options | {one: str(value) for one, value in options.items()}
    found = Storages(settings).locate(f"s3://{BUCKET}/{path}")
    assert isinstance(found, RemotePath)
    return found


def direct(store: FaultyStore, path: RemotePath) -> RemotePath:
    """The same path without faults."""
    found = Storages(store.direct_options).locate(str(path))
    assert isinstance(found, RemotePath)
    return found


def stat(path: RemotePath) -> None:
    assert path.unlisted().stat().st_size == len(DATA)


def read(path: RemotePath) -> None:
    assert read_file(path) == DATA


def listing(path: RemotePath) -> None:
    with path.storage.entries(path.parent) as entries:
        assert [entry.name for entry in entries] == [path.name]


def write(path: RemotePath) -> None:
    write_file(path, DATA[::-1])
    assert read_file(path) == DATA[::-1]


def delete(path: RemotePath) -> None:
    path.storage.delete(path)
    assert not path.unlisted().exists()


REQUESTS = {"HEAD": stat, "GET": read, "list-type": listing, "PUT": write, "DELETE": delete}


@pytest.mark.parametrize("request_of", REQUESTS)
@pytest.mark.parametrize("how", TRANSIENT)
def test_request_when_the_store_fails_twice_then_is_repeated(
    store: FaultyStore, folder: RemotePath, request_of: str, how: str
) -> None:
    path = folder / "object"
    write_file(path, DATA)
    method, text = ("GET", "list-type") if request_of == "list-type" else (request_of, "object")
    fault = store.fail(method, text, how=how, times=2)
    REQUESTS[request_of](path)
    assert fault.hits == 2


@pytest.mark.parametrize("request_of", REQUESTS)
def test_request_when_the_store_fails_always_then_is_one_error_with_uri_attempts_and_its_message(
    store: FaultyStore, folder: RemotePath, request_of: str
) -> None:
    path = located(store, f"{folder.name}/object", max_attempts=3)
    write_file(path, DATA)
    method, text = ("GET", "list-type") if request_of == "list-type" else (request_of, "object")
    fault = store.fail(method, text, how="503", times=None)
    with pytest.raises(StoreError, match=r"gave up after 3 attempts in .*: .*AWS Error") as error:
        REQUESTS[request_of](path)
    assert fault.hits == 3
    assert isinstance(error.value, UserError)
    named = str(path.parent if request_of == "list-type" else path)
    assert str(error.value).startswith(
        f"{named}: cannot be " if request_of != "GET" else f"{named}: cannot read"
    )
    assert str(pickle.loads(pickle.dumps(error.value))) == str(error.value)


@pytest.mark.parametrize("request_of", REQUESTS)
def test_request_when_access_is_denied_then_is_not_repeated(
    store: FaultyStore, folder: RemotePath, request_of: str
) -> None:
    path = folder / "object"
    write_file(path, DATA)
    method, text = ("GET", "list-type") if request_of == "list-type" else (request_of, "object")
    fault = store.fail(method, text, how="403", times=None)
    with pytest.raises(OSError, match="AWS Error ACCESS_DENIED"):
        REQUESTS[request_of](path)
    assert fault.hits == 1


def test_request_when_the_bucket_is_missing_then_is_not_repeated(store: FaultyStore) -> None:
    path = Storages(store.options).locate("s3://no-bucket/object")
    for ask in (lambda: read_file(path), lambda: write_file(path, DATA)):
        store.requests.clear()
        with pytest.raises(OSError, match=r"s3://no-bucket/object|NO_SUCH_BUCKET") as error:
            ask()
        assert error.value.filename == "s3://no-bucket/object"
        assert len(store.requests) == 1


def test_requests_when_the_file_system_was_pickled_then_are_repeated_as_before(
    store: FaultyStore, folder: RemotePath
) -> None:
    path = pickle.loads(pickle.dumps(located(store, f"{folder.name}/object", max_attempts=2)))
    write_file(path, DATA)
    fault = store.fail("GET", "object", how="503", times=None)
    with pytest.raises(StoreError, match="gave up after 2 attempts"):
        read_file(path)
    assert fault.hits == 2


def test_error_when_requests_were_repeated_already_then_is_not_wrapped_in_a_second_one() -> None:
    given_up = StoreError(
        "s3://b/o", "gave up after 2 attempts: AWS Error SLOW_DOWN during GetObject operation: x"
    )

    def request() -> None:
        raise given_up

    with pytest.raises(StoreError) as error:
        NO_RETRIES.run(request, "cannot read 1 bytes", "backup+s3://b!")
    assert error.value is given_up


def test_requests_when_the_time_is_over_then_are_not_repeated(store: FaultyStore, folder: RemotePath) -> None:
    path = located(store, f"{folder.name}/object", max_attempts=100, retry_limit_seconds=0)
    fault = store.fail("HEAD", "object", how="503", times=None)
    with pytest.raises(StoreError, match="gave up after 1 attempt in"):
        path.stat()
    assert fault.hits == 1


@pytest.mark.parametrize("method", ["HEAD", "GET", pytest.param("PUT", marks=pytest.mark.full)])
def test_request_when_the_store_does_not_answer_then_ends_after_the_timeout(
    store: FaultyStore, folder: RemotePath, method: str
) -> None:
    write_file(folder / "object", DATA)
    path = located(store, f"{folder.name}/object", max_attempts=1, request_timeout_seconds=1)
    store.fail(method, "object", how="silent", times=None)
    began = time.monotonic()
    with pytest.raises(StoreError, match="Timeout was reached"):
        REQUESTS[method](path)
    assert time.monotonic() - began < 10  # the timeout of a storage without the option


# Reads


@pytest.mark.parametrize("how", ["truncated", "short"])
@pytest.mark.parametrize("sent", [0, 1000, len(DATA) - 1, len(DATA) - 8])
def test_read_when_a_body_is_too_short_then_is_repeated(
    store: FaultyStore, folder: RemotePath, how: str, sent: int
) -> None:
    path = folder / "object"
    write_file(path, DATA[:60_000])
    sent = min(sent, sent - len(DATA) + 60_000) if sent > 60_000 else sent
    fault = store.fail("GET", "object", how=how, times=2, after_bytes=sent)
    assert read_file(path) == DATA[:60_000]
    assert fault.hits == 2


@pytest.mark.parametrize("how", ["truncated", "short"])
def test_read_when_bodies_are_too_short_always_then_error_names_range_and_sizes(
    store: FaultyStore, folder: RemotePath, how: str
) -> None:
    path = located(store, f"{folder.name}/object", max_attempts=3)
    write_file(path, DATA)
    store.fail("GET", "object", how=how, times=None, after_bytes=1000)
    with path.storage.open(path) as file:
        file.seek(400)
        with pytest.raises(StoreError) as error:
            file.read(5000)
    text = str(error.value)
    assert text.startswith(f"{path}: cannot read 5000 bytes at position 400: gave up after 3 attempts")
    assert ("found 1000" if how == "short" else "4000 bytes missing") in text


def test_read_when_a_body_is_too_short_and_the_last_byte_is_that_of_the_mark_by_chance_then_is_repeated(
    store: FaultyStore, folder: RemotePath, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder / "object"
    write_file(path, DATA)
    monkeypatch.setattr(secrets, "token_bytes", lambda size: DATA[5399:5400].rjust(size, b"?"))
    fault = store.fail("GET", "object", how="short", times=3, after_bytes=1000)
    with path.storage.open(path) as file:
        file.seek(400)
        assert file.read(5000) == DATA[400:5400]
    assert fault.hits == 3


def test_read_when_the_object_became_shorter_then_is_not_repeated(
    store: FaultyStore, folder: RemotePath
) -> None:
    path = folder / "object"
    write_file(path, DATA)
    with path.storage.open(path) as file:
        write_file(direct(store, path), DATA[:1000])
        store.requests.clear()
        with pytest.raises(
            TruncatedFileError, match=f"expected {len(DATA)} .* found 1000: it has 1000 bytes"
        ) as error:
            file.read()
    assert str(path) in str(error.value)
    assert len([one for one in store.requests if one.startswith("HEAD")]) == 1


def test_read_when_the_object_was_deleted_after_it_was_opened_then_error_names_it(
    store: FaultyStore, folder: RemotePath
) -> None:
    path = folder / "object"
    write_file(path, DATA)
    with path.storage.open(path) as file:
        path.storage.delete(direct(store, path))
        with pytest.raises(OSError, match=r"cannot read 102400 bytes at position 0: .*NO_SUCH_KEY") as error:
            file.read()
    assert error.value.filename == str(path)


# Uploads


def upload(path: RemotePath, tmp_path: Path) -> Path:
    source = tmp_path / "source"
    source.write_bytes(bytes(LARGE))
    path.storage.put(source, path)
    return source


@pytest.mark.parametrize("how", ["500", "lost"])
@pytest.mark.parametrize("request_of", ["partNumber=2", "POST"])
def test_upload_when_a_part_fails_once_then_is_complete(
    store: FaultyStore, folder: RemotePath, tmp_path: Path, request_of: str, how: str
) -> None:
    path = folder / "object"
    fault = store.fail(
        None if request_of != "POST" else "POST", "" if request_of == "POST" else request_of, how=how
    )
    assert not upload(path, tmp_path).exists()
    assert fault.hits == 1
    assert path.stat().st_size == LARGE


@pytest.mark.parametrize("how", ["403", "500"])
@pytest.mark.parametrize("request_of", ["partNumber=1", "partNumber=2", "partNumber=3", "POST"])
def test_upload_when_a_part_fails_always_then_the_object_stays_as_it_was(
    store: FaultyStore, folder: RemotePath, tmp_path: Path, request_of: str, how: str
) -> None:
    path = located(store, f"{folder.name}/object", max_attempts=2)
    write_file(path, DATA)
    store.fail(
        "POST" if request_of == "POST" else "PUT",
        "" if request_of == "POST" else request_of,
        how=how,
        times=None,
    )
    with pytest.raises(OSError, match=r"cannot be written: .*AWS Error"):
        upload(path, tmp_path)
    assert read_file(direct(store, path)) == DATA
    assert (tmp_path / "source").exists()


def test_new_file_when_the_answer_to_its_upload_is_lost_then_is_no_other_writers(
    store: FaultyStore, folder: RemotePath
) -> None:
    path = folder / "object"
    fault = store.fail("PUT", "object", how="lost")
    path.storage.write_new(path, [DATA])
    assert fault.hits == 1
    assert read_file(path) == DATA


def test_upload_when_another_writer_stores_the_file_meanwhile_then_is_refused_and_that_one_stays(
    folder: RemotePath, tmp_path: Path
) -> None:
    path, source = folder / "object", tmp_path / "source"
    source.write_bytes(bytes(LARGE))

    class LateFile(io.FileIO):
        def read(self, size: int | None = -1, /) -> bytes:
            if not path.unlisted().exists():
                write_file(path, DATA)
            return super().read(size)

    upload = Upload(path.storage.filesystem, path.path, path.uri, Retries(), path.path)  # type: ignore[arg-type]
    with LateFile(source) as file, pytest.raises(FileExistsError):
        upload.run(file, LARGE)
    for refused in (path, folder / "index"):
        with pytest.raises(FileExistsError):
            path.storage.put_unless(source, refused, path)
    assert read_file(path) == DATA
    assert files(folder) == ["object"]


@pytest.mark.parametrize("how", ["lost", "cut"])
@pytest.mark.parametrize("size", [len(DATA), LARGE])
def test_upload_that_is_to_replace_nothing_when_an_attempt_fails_then_is_complete(
    store: FaultyStore, folder: RemotePath, tmp_path: Path, how: How, size: int
) -> None:
    path, source = folder / "object", tmp_path / "source"
    data = bytes(range(256)) * (size // 256)
    source.write_bytes(data)
    fault = store.fail("PUT", "object", how=how, after_bytes=1000)
    path.storage.put_unless(source, path, path)
    assert fault.hits == 1
    assert read_file(path) == data
    assert files(folder) == ["object"]


def files(folder: RemotePath) -> list[str]:
    return [name for name, _ in folder.storage.walk(folder)]


def test_upload_when_the_store_keeps_less_then_is_repeated_and_at_last_deleted(
    store: FaultyStore, folder: RemotePath
) -> None:
    path = located(store, f"{folder.name}/object", max_attempts=2)
    fault = store.fail("PUT", "object", how="cut", times=1, after_bytes=1000)
    write_file(path, DATA)
    assert fault.hits == 1
    assert read_file(path) == DATA
    store.fail("PUT", "object", how="cut", times=None, after_bytes=1000)
    with pytest.raises(
        StoreError, match=f"cannot be written: gave up after 2 .*: expected {len(DATA)} .* found 1000"
    ):
        write_file(path, DATA)
    assert not direct(store, path).exists()


def test_upload_when_chunks_raise_then_nothing_is_sent(store: FaultyStore, folder: RemotePath) -> None:
    def chunks() -> Iterator[bytes]:
        yield DATA
        raise ZeroDivisionError

    store.requests.clear()
    with pytest.raises(ZeroDivisionError):
        folder.storage.write(folder / "object", chunks())
    assert store.requests == []


def test_upload_when_the_local_file_becomes_shorter_then_there_is_no_object(
    store: FaultyStore, folder: RemotePath, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, source = folder / "object", tmp_path / "source"
    source.write_bytes(bytes(LARGE))
    run: Callable[..., None] = Retries.run

    def shortened(*arguments: object) -> None:
        with source.open("r+b") as file:
            file.truncate(LARGE - 1000)
        run(*arguments)

    monkeypatch.setattr(Retries, "run", shortened)
    with pytest.raises(OSError, match="the local file has become shorter") as error:
        path.storage.put(source, path)
    monkeypatch.undo()
    assert error.value.filename == str(path)
    assert not direct(store, path).exists()
    assert source.exists()


def test_upload_when_the_local_file_is_shorter_and_files_are_renamed_then_the_file_before_stays(
    tmp_path: Path,
) -> None:
    """HDFS has no atomic objects: a file gets its name by a rename."""
    path = tmp_path / "object"
    path.write_bytes(b"before")
    upload = Upload(fs.LocalFileSystem(), str(path), path.as_uri(), Retries(max_attempts=1))
    with pytest.raises(OSError, match="the local file has become shorter: expected 5 bytes"):
        upload.run(io.BytesIO(b"half"), 5)
    assert [(one.name, one.read_bytes()) for one in tmp_path.iterdir()] == [("object", b"before")]


# Listings that lag


@pytest.fixture
def logs(folder: RemotePath, tmp_path: Path) -> RemotePath:
    """A log directory with a partition of three segments."""
    for start in (0, 10, 20):
        put_segment(tmp_path / "orders-0", start, batches(start, start + 10, 5))
    for path in (tmp_path / "orders-0").iterdir():
        write_file(folder / "orders-0" / path.name, path.read_bytes())
    return folder


def offsets(path: RemotePath) -> list[int]:
    log = LogDirectory(path).partition(TopicPartition("orders", 0))
    return [record.offset for record in log.records()]


def test_log_when_its_last_segment_is_not_listed_yet_then_ends_before_it(
    store: FaultyStore, logs: RemotePath
) -> None:
    store.hide(name(20))
    assert offsets(logs) == list(range(20))
    store.heal()
    assert offsets(logs) == list(range(30))


def test_log_when_a_deleted_segment_is_still_listed_then_error_names_it(
    store: FaultyStore, logs: RemotePath
) -> None:
    log = LogDirectory(logs).partition(TopicPartition("orders", 0))
    segments = log.segments()
    storage_of(logs).delete(direct(store, logs) / "orders-0" / name(10))
    with pytest.raises(FileNotFoundError) as error, segments[1].open():
        pass
    assert error.value.filename == f"{logs}/orders-0/{name(10)}"


# Requests


def test_requests_when_a_segment_is_read_then_are_one_for_8_mib(
    store: FaultyStore, folder: RemotePath, tmp_path: Path
) -> None:
    local = put_segment(tmp_path / "orders-0", 0, batches(0, 26, size=1_000_000))
    size = local.stat().st_size
    assert size > 3 * 8 * MIB
    write_file(folder / "orders-0" / local.name, local.read_bytes())
    log = LogDirectory(folder).partition(TopicPartition("orders", 0))
    (segment,) = log.segments()
    for scan in (
        lambda: list(log.records()),
        lambda: [len(run) for run in segment.open().runs(run_bytes=1 * MIB)],
    ):
        store.requests.clear()
        assert scan()
        gets = [one for one in store.requests_of(".log") if one.startswith("GET")]
        assert 0 < len(gets) <= size // (8 * MIB) + 9  # the first requests double from 64 KiB


def test_requests_when_a_file_is_written_then_are_one_and_one_that_checks(
    store: FaultyStore, folder: RemotePath
) -> None:
    store.requests.clear()
    write_file(folder / "object", DATA)
    assert [one.partition(" ")[0] for one in store.requests] == ["PUT", "HEAD"]
