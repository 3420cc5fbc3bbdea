"""Scans of S3, of tiered storage and of backups: by their URIs, with the settings of the store as options."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import fs

import kafkafmt as kf
from backup.stored import SEGMENT_RECORDS, TOPIC, StoredBackup, write_key_ring
from data.real_logs import LOGS, expected
from file_systems import BUCKET
from storage.tiered_writer import KEY_ID, Transform, key_pair, segments_of, write

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_s3_when_scanned_then_has_the_rows_of_local_files(
    s3_logs: str, s3_options: Mapping[str, str], isolation: str
) -> None:
    arguments = {"topics": ["segments", "transactions", "zstd"], "isolation": isolation, "offsets": (3, 200)}
    wanted = kf.scan(LOGS, **arguments).to_arrow()
    scan = kf.scan(s3_logs, options=s3_options, **arguments)
    assert scan.to_arrow() == wanted
    tasks = pickle.loads(pickle.dumps(scan.tasks(20_000)))
    assert pa.Table.from_batches((rows for task in tasks for rows in task.read()), scan.schema) == wanted
    assert "secret" not in repr(scan)


def test_s3_when_there_is_no_such_topic_then_one_line_without_secrets_says_so(
    s3_logs: str, s3_options: Mapping[str, str]
) -> None:
    uri = f"s3://key:a%2Fsecret%2B@{s3_logs.removeprefix('s3://')}"
    options = {name: value for name, value in s3_options.items() if "_key" not in name}
    with pytest.raises(kf.ScanError, match=f"^no topic 'ordres' in {s3_logs}: found ") as raised:
        kf.scan(uri, topics="ordres", options=options).ranges()
    assert "secret" not in str(raised.value)


def test_tiered_storage_when_encrypted_on_s3_then_is_scanned(
    s3: fs.FileSystem, s3_options: Mapping[str, str], tmp_path: Path
) -> None:
    key = key_pair(tmp_path)
    (tmp_path / "keys.ini").write_text(f"[{KEY_ID}]\nfile = {key.name}\n")
    both = Transform(compressed=True, encrypted=True, chunk_size=100_000)
    write(tmp_path / "store", segments_of(LOGS / "segments-0", both, key))
    fs.copy_files(str(tmp_path / "store"), f"{BUCKET}/tiered-scan", destination_filesystem=s3)
    options = {**s3_options, "key_ring": str(tmp_path / "keys.ini")}
    scan = kf.scan(
        f"tiered+s3://{BUCKET}/tiered-scan", options=options, offsets=(100, 150), columns=["offset"]
    )
    wanted = [one.offset for one in expected("segments-0") if 100 <= one.offset < 150]
    assert scan.to_arrow()["offset"].to_pylist() == wanted


def test_backup_when_encrypted_then_the_chosen_generation_is_scanned(tmp_path: Path) -> None:
    ring = write_key_ring(tmp_path)
    backup = StoredBackup(tmp_path / "backup", tmp_path, ring, compresses=True)
    backup.grow()
    backup.grow(start_offset=5)
    uri = f"backup+{backup.target.as_uri()}"
    for options, wanted in (({}, (5, 2 * SEGMENT_RECORDS)), ({"generation": "1"}, (0, SEGMENT_RECORDS))):
        scan = kf.scan(uri, options={"key_ring": str(ring), **options})
        assert scan.ranges()[TOPIC, 0] == wanted
        assert scan.to_arrow()["offset"].to_pylist() == list(range(*wanted))
