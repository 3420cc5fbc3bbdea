"""How much of a request to produce may be anything but records."""

from __future__ import annotations

import pytest

import kafkafmt as kf
from kafkafmt.serve.producing.frames import ensure_mostly_records
from serve.produced import NOW, produce
from serve.raw_client import frame

SIZE_FIELD = 4
# The newest of each way to write it: without and with transactions, with compact fields, with topic IDs.
VERSIONS = [2, 8, 12, 13]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("size", [100, 20_000, 3_000_000])
def test_request_of_many_partitions_when_all_of_it_is_records_then_passes(version: int, size: int) -> None:
    builder = kf.RecordBatchBuilder()
    builder.append(NOW, b"key", b"\x7f" * size)  # taken for a count or a size, much would follow
    request = frame(produce(*[builder.build()] * 4), version, 1)[SIZE_FIELD:]
    ensure_mostly_records(request, 1000)
