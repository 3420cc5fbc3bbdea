"""A scan of tiered storage on S3 costs a request for 8 MiB of a segment, and a few more."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from file_systems import BUCKET, Requests
from kafkafmt import RecordBatchBuilder
from kafkafmt.log import LogAppender, LogDirectory
from kafkafmt.storage import Storages
from storage.tiered_writer import KEY_ID, Transform, key_pair, segments_of, write

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

fs = pytest.importorskip("pyarrow.fs")
pytest.importorskip("cryptography")
pytestmark = [pytest.mark.oracle, pytest.mark.full]

MIB = 1024 * 1024
SEGMENT_MIB = 32
# Of a log: its size, the first reads, which are small, and the last one. Each of two indexes: its size and its bytes.
FEW_MORE = 6


def test_segment_of_each_transform_when_scanned_on_s3_then_costs_a_request_for_8_mib(
    s3: FileSystem, s3_options: Mapping[str, str], tmp_path: Path
) -> None:
    key, source = key_pair(tmp_path), tmp_path / "source" / "orders-0"
    (tmp_path / "keys.ini").write_text(f"[{KEY_ID}]\nfile = {key.name}\n")
    rng = random.Random(1)
    with LogAppender(source) as log:
        for offset in range(SEGMENT_MIB):
            builder = RecordBatchBuilder(base_offset=offset)
            builder.append(1_700_000_000_000, None, rng.randbytes(MIB))
            log.append(builder.build())
    transforms = [
        Transform(compressed, encrypted, 4 * MIB)
        for compressed in (False, True)
        for encrypted in (False, True)
    ]
    told = [one for each in transforms for one in segments_of(source, each, key, f"{each.name}/")]
    write(tmp_path / "store", told)
    fs.copy_files(str(tmp_path / "store"), f"{BUCKET}/scanned", destination_filesystem=s3)
    storages = Storages({**s3_options, "key_ring": str(tmp_path / "keys.ini")})
    for transform in transforms:
        with Requests() as requests:
            directory = LogDirectory(storages.locate(f"tiered+s3://{BUCKET}/scanned/{transform.name}"))
            (segment,) = directory.partition("orders", 0).segments()
            with segment.open() as records:
                assert sum(batch.is_valid() for batch in records.batches()) == SEGMENT_MIB
        assert len(requests.of(".log")) <= SEGMENT_MIB // 8 + FEW_MORE, transform
        assert len(requests.of("rsm-manifest")) <= 2
        assert len(requests.of("list-type")) <= 2
        assert len(requests.of(".indexes")) <= 4
