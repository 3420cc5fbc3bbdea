"""Target: what a producer sends for a partition, checked and numbered as it is to be appended.

Input: a byte for the version of Produce, then the records. Whatever the bytes are:

- they are refused with the documented error, or taken;
- what is taken is batches of v2 whose CRCs hold, whose counts are those of their offsets, within the limit, and is
  numbered without gaps from the log's end on;
- of batches of v2 nothing changes but what a log says of them.
"""

from __future__ import annotations

from contextlib import suppress

from _kafkafmt.batches.scan import BatchRun, scan
from _kafkafmt.batches.stamp import assign_offsets
from kafkafmt.server.produced_records import RefusedRecordsError, checked_run

OPTIONS_LENGTH = 1
VERSIONS = 14
MOST_BYTES = 100_000
NEXT_OFFSET = 1000
BEHIND_CRC = 21


def check(data: bytes) -> None:
    version, records = (data[0] % VERSIONS if data else 0), data[OPTIONS_LENGTH:]
    with suppress(RefusedRecordsError):
        _check_taken(records, checked_run(records, version, MOST_BYTES))


def _check_taken(records: bytes, run: BatchRun) -> None:
    if not len(run):
        assert not records
        return
    end_offset = assign_offsets(run.buffer, NEXT_OFFSET, 0)
    stamped, consumed, *_ = scan(run.buffer)
    assert consumed == len(memoryview(run.buffer))
    assert stamped.valid().all()
    rows = stamped.index
    assert (rows["last_offset"] - rows["base_offset"] + 1 == rows["count"]).all()
    assert (rows["size"] <= MOST_BYTES).all()
    firsts, ends = rows["base_offset"].tolist(), (rows["last_offset"] + 1).tolist()
    assert [*firsts, end_offset] == [NEXT_OFFSET, *ends]
    if len(stamped) and records[16] == 2:
        given = scan(records)[0]
        assert [bytes(stamped.batch(i))[BEHIND_CRC:] for i in range(len(stamped))] == [
            bytes(given.batch(i))[BEHIND_CRC:] for i in range(len(given))
        ]
