"""The files beside segments: those of real brokers are read, and malformed ones are told with the place."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from data.real_logs import LOGS
from file_systems import CountingHandler, far
from fuzz import broker_file as target
from kafkafmt import log as kafka_log
from kafkafmt._util.directory_lock import lock_log_directory
from kafkafmt.log import BrokerFileError, LeaderEpoch, broker_file_rows, broker_file_table
from kafkafmt.log.broker_files.kinds import BROKER_FILE_KINDS, kind_of
from kafkafmt.types import TopicPartition

FILES = Path(__file__).parents[1] / "data" / "broker_files"
LINES = ("3.9", "4.3")
SEGMENT = "00000000000000000062"
OLD_PROPERTIES = {"version": 0, "cluster_id": None, "node_id": 3, "directory_id": None}


def samples() -> Iterator[Path]:
    yield from sorted(path for path in FILES.rglob("*") if path.is_file() and kind_of(path.name))


def small_samples() -> list[Path]:
    """A file of each kind and line."""
    found = {
        (path.relative_to(FILES).parts[0], path.name.partition(SEGMENT)[2] or path.name): path
        for path in samples()
    }
    return list(found.values())


@pytest.fixture(params=LINES)
def directory(request: pytest.FixtureRequest) -> Path:
    """The data directory that a broker of that line left."""
    return FILES / str(request.param)


def test_sample_when_kinds_are_counted_then_has_every_kind_but_the_lock() -> None:
    for line in LINES:
        found = {kind_of(path.name) for path in samples() if path.is_relative_to(FILES / line)}
        assert [kind.names for kind in BROKER_FILE_KINDS if kind not in found] == [(".lock",)]


def test_snapshot_when_a_broker_wrote_it_then_has_its_producers(directory: Path) -> None:
    first, second = kafka_log.producer_snapshot(directory / "orders-0" / f"{SEGMENT}.snapshot")
    assert (first.producer_id, second.producer_id) == (0, 1)
    assert (first.last_sequence, first.last_offset, first.offset_delta) == (18, 48, 5)
    assert (second.transaction_first_offset, first.transaction_first_offset) == (49, 43)


def test_indexes_when_a_broker_wrote_them_then_have_its_entries(directory: Path) -> None:
    stem = directory / "orders-0" / SEGMENT
    offsets = list(broker_file_rows(stem.with_suffix(".index")))
    assert offsets[0] == {"offset": 84, "position": 920}
    assert len(offsets) == len(kafka_log.offset_index(stem.with_suffix(".index"))) == 6
    times = list(broker_file_rows(stem.with_suffix(".timeindex")))
    assert [row["offset"] for row in times] == [65, 89, 114]
    assert len(kafka_log.time_index(stem.with_suffix(".timeindex"))) == 3
    first, _ = kafka_log.transaction_index(stem.with_suffix(".txnindex"))
    assert first == kafka_log.AbortedTransaction(0, 66, 89, 90)


def test_checkpoints_when_a_broker_wrote_them_then_have_its_offsets(directory: Path) -> None:
    orders = TopicPartition("orders", 0)
    assert kafka_log.leader_epochs(directory / "orders-0" / "leader-epoch-checkpoint") == [LeaderEpoch(0, 20)]
    assert kafka_log.offset_checkpoint(directory / "log-start-offset-checkpoint") == {orders: 20}
    for name in ("recovery-point-offset-checkpoint", "replication-offset-checkpoint"):
        assert kafka_log.offset_checkpoint(directory / name)[orders] == 385


def test_files_of_a_cluster_when_a_broker_wrote_them_then_have_its_ids(directory: Path) -> None:
    static = kafka_log.quorum_state(directory / "__cluster_metadata-0" / "quorum-state")
    assert (static.version, static.leader_id, static.voters, static.voted_directory_id) == (0, 1, (1,), None)
    dynamic = kafka_log.quorum_state(directory / "dynamic-quorum" / "quorum-state")
    assert (dynamic.version, dynamic.leader_id, dynamic.voters) == (1, 5, None)
    assert dynamic.voted_directory_id == UUID(int=0)
    meta = kafka_log.meta_properties(directory / "dynamic-quorum" / "meta.properties")
    assert (meta.version, meta.node_id, meta.cluster_id) == (1, 5, "hs1Vw0UsRPG1R5jOsDkGUA")
    assert meta.directory_id is not None
    assert kafka_log.clean_shutdown(directory / ".kafka_cleanshutdown").broker_epoch > 0
    assert kafka_log.topic_id(directory / "__cluster_metadata-0" / "partition.metadata") == UUID(int=1)


def test_files_of_real_logs_when_read_then_none_is_malformed() -> None:
    found = [path for path in LOGS.rglob("*") if path.is_file() and kind_of(path.name)]
    assert len(found) > 100
    for path in found:
        list(broker_file_rows(path))


def test_table_when_made_from_a_file_then_has_its_rows_and_fields() -> None:
    pytest.importorskip("pyarrow")
    for path in small_samples():
        table = broker_file_table(path)
        kind = kind_of(path.name)
        assert kind is not None
        assert table.schema.names == [field.name for field in kind.fields]
        assert table.num_rows == len(list(broker_file_rows(path)))


def test_file_when_on_another_storage_then_is_read_as_a_local_one() -> None:
    pytest.importorskip("pyarrow")
    for path in small_samples():
        assert list(broker_file_rows(far(CountingHandler(), path))) == list(broker_file_rows(path))


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        (
            "leader-epoch-checkpoint",
            b"0\n1\n5\n",
            "line 3: expected leader epoch and start offset, found '5'",
        ),
        (
            "leader-epoch-checkpoint",
            b"0\n2\n5 10\n4 20\n",
            "line 4: expected an epoch above 5 and an offset not below 10, found '4 20'",
        ),
        ("quorum-state", b"[1]", "expected a JSON object, found '[1]'"),
        ("quorum-state", b"{", "position 1: expected a JSON object, found the end"),
        ("quorum-state", b"[" * 100_000, "expected a JSON object, found '[["),
        ("quorum-state", b"\xff", "position 0: expected UTF-8 text"),
        ("quorum-state", b"{}", "data_version: expected an integer from 0 to 1, found no such field"),
        ("quorum-state", b'{"data_version":2}', "data_version: expected an integer from 0 to 1, found 2"),
        (
            "quorum-state",
            b'{"data_version":1,"leaderId":1,"leaderEpoch":1,"votedId":-1,"votedDirectoryId":"AA"}',
            "votedDirectoryId: expected a UUID of 22 characters of base64, found 'AA'",
        ),
        (
            "quorum-state",
            b'{"data_version":0,"leaderId":1,"leaderEpoch":1,"votedId":-1,"currentVoters":[7]}',
            "currentVoters: expected a list of objects, found [7]",
        ),
        ("meta.properties", b"", "version: expected 0 or 1, found no such key"),
        ("meta.properties", b"version", "line 1: expected key=value, found 'version'"),
        ("meta.properties", b"version=2\n", "version: expected 0 or 1, found 2"),
        ("meta.properties", b"version=1\nversion=1\n", "line 2: 'version' is there already"),
        (
            "meta.properties",
            b"version=1\ncluster.id=a\n",
            "node.id: expected a value in version 1, found none",
        ),
        (
            "meta.properties",
            b"version=1\nnode.id=-1\n",
            "line 2: node.id: expected an integer from 0 to 2147483647, found '-1'",
        ),
        ("partition.metadata", b"version: 1\ntopic_id: x\n", "line 1: expected version 0, found '1'"),
        ("partition.metadata", b"version: 0\n", "line 2: expected topic_id, found the end"),
        (".kafka_cleanshutdown", b'{"version":0}', "brokerEpoch: expected an integer from -1 to"),
        (".lock", b"x", "expected an empty file, found 1 bytes"),
        (f"{SEGMENT}.index", b"\0\0\0\1\0\0\0", "expected entries of 8 bytes, found 7 bytes"),
        (
            f"{SEGMENT}.index",
            b"\0\0\0\5\0\0\1\0\0\0\0\5\0\0\2\0",
            "entry 1 at position 8: expected an offset and a position above those before, "
            "found relative_offset 5, position 512",
        ),
        (
            f"{SEGMENT}.txnindex",
            bytes(34),
            "entry 0 at position 0: expected version 0, a producer id, and ascending offsets, found version 0",
        ),
        (f"{SEGMENT}.snapshot", b"", "expected 10 bytes or more, found 0"),
        (f"{SEGMENT}.snapshot", b"\0\2" + bytes(8), "position 0: expected version 1, found 2"),
        (f"{SEGMENT}.snapshot", b"\0\1" + bytes(8), "position 2: expected CRC 00000000, found"),
        (
            "copy.index",
            b"",
            "expected a name that begins with the base offset in 20 digits, found copy.index",
        ),
    ],
)
def test_file_when_malformed_then_the_error_names_file_and_place(
    tmp_path: Path, name: str, data: bytes, message: str
) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(BrokerFileError) as caught:
        list(broker_file_rows(path))
    assert str(caught.value).startswith(f"{path}: {message}")


@pytest.mark.parametrize(
    ("name", "data", "rows"),
    [
        ("meta.properties", b"#\nversion=0\nbroker.id=3\n", [OLD_PROPERTIES]),
        (
            "meta.properties",
            b"version=0\r\nbroker.id=3\r\ncluster.id=a\\:b\r\n",
            [OLD_PROPERTIES | {"cluster_id": "a:b"}],
        ),
        (".kafka_cleanshutdown", b"", [{"version": 0, "broker_epoch": -1}]),
        (f"{SEGMENT}.index", bytes(4096), []),
        (f"{SEGMENT}.timeindex", bytes(4092), []),
        (f"{SEGMENT}.txnindex", b"", []),
        ("cleaner-offset-checkpoint", b"", []),
    ],
)
def test_file_when_of_an_older_broker_or_new_then_is_well_formed(
    tmp_path: Path, name: str, data: bytes, rows: list[dict[str, object]]
) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    assert list(broker_file_rows(path)) == rows


def test_name_when_unknown_then_the_error_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"\*\.index, \*\.timeindex, .*quorum-state"):
        broker_file_rows(tmp_path / "orders.bin")


def test_lock_when_held_then_says_by_whom_and_takes_none(tmp_path: Path) -> None:
    with lock_log_directory(tmp_path):
        (row,) = broker_file_rows(tmp_path / ".lock")
        assert row["is_held"] in (True, None)
    (row,) = broker_file_rows(tmp_path / ".lock")
    assert row["is_held"] in (False, None)


@pytest.mark.parametrize("path", small_samples(), ids=lambda path: path.relative_to(FILES).as_posix())
def test_file_when_cut_anywhere_or_a_byte_is_changed_then_rows_or_one_clean_error(
    path: Path, seed: int
) -> None:
    chosen = random.Random(seed)
    data = path.read_bytes()
    number = next(n for n, name in enumerate(target.NAMES) if kind_of(name) is kind_of(path.name))
    head = bytes([number])
    for position in range(len(data)):
        changed = bytearray(data)
        changed[position] ^= chosen.randrange(1, 256)
        target.check(head + bytes(changed))
        target.check(head + data[:position])


def test_snapshot_when_cut_anywhere_or_a_bit_is_flipped_then_is_refused(tmp_path: Path) -> None:
    data = (FILES / "4.3" / "orders-0" / f"{SEGMENT}.snapshot").read_bytes()
    path = tmp_path / f"{SEGMENT}.snapshot"
    for position in range(len(data)):
        changed = bytearray(data)
        changed[position] ^= 1 << position % 8
        for some in (bytes(changed), data[:position]):
            path.write_bytes(some)
            with pytest.raises(BrokerFileError):
                kafka_log.producer_snapshot(path)


@pytest.mark.parametrize(
    ("read", "within"),
    [
        (kafka_log.leader_epochs, "orders-0/leader-epoch-checkpoint"),
        (kafka_log.topic_id, "orders-0/partition.metadata"),
        (kafka_log.producer_snapshot, f"orders-0/{SEGMENT}.snapshot"),
        (kafka_log.transaction_index, f"orders-0/{SEGMENT}.txnindex"),
        (kafka_log.offset_checkpoint, "log-start-offset-checkpoint"),
        (kafka_log.meta_properties, "meta.properties"),
    ],
)
def test_reader_of_a_file_when_given_text_or_a_uri_then_as_with_a_path(
    directory: Path, read: Callable[[Any], object], within: str
) -> None:
    path = directory / within
    assert read(str(path)) == read(path.as_uri()) == read(path)


def test_indexes_when_given_text_then_as_with_a_path_and_equal_to_themselves_only(directory: Path) -> None:
    stem = str(directory / "orders-0" / SEGMENT)
    base_offset = int(SEGMENT)
    for one, other in (
        (kafka_log.offset_index(f"{stem}.index"), kafka_log.OffsetIndex.read(f"{stem}.index", base_offset)),
        (
            kafka_log.time_index(f"{stem}.timeindex"),
            kafka_log.TimeIndex.read(f"{stem}.timeindex", base_offset),
        ),
    ):
        assert one.entries.tolist() == other.entries.tolist() != []
        assert (one == one, one == other, len({one, other})) == (True, False, 2)


def test_segment_when_given_text_then_as_with_a_path(directory: Path) -> None:
    path = directory / "orders-0" / f"{SEGMENT}.log"
    assert kafka_log.Segment(str(path)) == kafka_log.Segment(path)
